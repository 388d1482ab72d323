"""Limits to one BLAS thread, for clients that run in parallel and for small products."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from operator import attrgetter, itemgetter
from typing import Any, Generic, TypeVar

import threadpoolctl

from .sizes import slices_of

Found = TypeVar("Found")

# Entries of a block up to which a second thread may cost far more than it brings: where other work
# keeps the cores busy, threads wait for each other in every product (64 features: 11 s, not 0.1 s).
_SMALL = 2**22
# Entries up to which BLAS takes one thread by itself, 16 d^2 with d = 22: with d = 24 a second one
# costs nothing yet in OpenBLAS, with 32 three times the processor. A limit costs 12 to 45 us.
TINY_CALL = 2**13

# Entries of rows of which products with eight directions take one thread by themselves.
TINY_ROWS = 2**15
# A thread that sets a number keeps all others from it, since threadpoolctl 3.8, until it says that
# it has done so.
_CONTROL = getattr(threadpoolctl, "CONTROLLING_THREAD_OWNERSHIP", None)

# Garbage collection ends generators at any time, so a thread that has the lock may want it again.
_lock = threading.RLock()
# Blocks of `single_blas_thread` that are running now, each with its thread, and whether threads of
# Python may take the place of those of BLAS.
_inside: dict[object, tuple[int, bool]] = {}
# Libraries under a limit, each with the number of threads that it had.
_limited: list[tuple[Any, int]] = []


@cache
def _libraries() -> list[Any]:
    """BLAS libraries of the process; each has a number of threads that may be set."""
    controller = threadpoolctl.ThreadpoolController()
    return [library for library in controller.lib_controllers if library.user_api == "blas"]


def blas_architectures() -> set[str]:
    """Processors whose kernels the BLAS libraries use, of those that tell."""
    return {library.info().get("architecture", "") for library in _libraries()}


@contextmanager
def single_blas_thread(shared: bool = False) -> Iterator[None]:
    """Limit BLAS to one thread; the last one out restores the user's setting.

    The setting belongs to the process, so threads that are inside at the same time share one limit.
    ``shared``: whether threads of Python may take the place of those of BLAS.
    """
    block = object()
    try:
        _inside[block] = threading.get_ident(), shared
        _settle()
        yield
    finally:
        try:
            _settle(block)
        except BaseException:  # a signal that came meanwhile
            _settle(block)
            raise


def running_blocks() -> set[object]:
    """Blocks that some thread is inside."""
    return set(_inside)


def leave_later_blocks(earlier: set[object]) -> None:
    """Leave the blocks of this thread that came later: those of generators left by an error.

    Such a generator ends when nobody keeps the traceback, which an interactive session does.
    """
    here = threading.get_ident()
    for block, (thread, _) in list(_inside.items()):
        if thread == here and block not in earlier:
            _inside.pop(block, None)
    _settle()


def _settle(left: object = None) -> None:
    """Limit the libraries if somebody is inside, and give back what they had if nobody is.

    ``left`` is a block that ends before.
    """
    _inside.pop(left, None)
    with _lock:
        limit = bool(_inside)
        if limit == bool(_limited):
            return
        libraries = _libraries()
        if limit:
            found = zip(libraries, map(attrgetter("num_threads"), libraries), strict=True)
            if not _limited:  # by a generator that ended meanwhile
                _limited.extend(found)
        if _CONTROL is not None:  # other threads of Python may set others afterwards
            _CONTROL.increment()
        try:
            for library, before in _limited:
                # a number that somebody has set meanwhile is left alone
                if limit or library.num_threads == 1:
                    library.set_num_threads(1 if limit else before)
        finally:
            if _CONTROL is not None:
                _CONTROL.decrement()
        if not limit:
            _limited.clear()


def _after_fork() -> None:
    """Forget the threads that a forked process has not, and a lock that one of them held."""
    global _lock
    _lock = threading.RLock()
    for block, (thread, _) in list(_inside.items()):
        if thread != threading.get_ident():
            del _inside[block]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def usable_threads() -> int:
    """Threads that may share a product now: as many as BLAS has, or had before small products.

    One where clients run in parallel, and where another thread is at work.
    """
    here = threading.get_ident()
    if any(thread != here or not shared for thread, shared in list(_inside.values())):
        return 1
    numbers = [n for _, n in list(_limited)] or [library.num_threads for library in _libraries()]
    return max(numbers, default=1)


def in_shares(n_rows: int, n_threads: int, find: Callable[[slice], Found]) -> list[Found]:
    """What a function finds in shares of rows, each in a thread of its own, with one of BLAS.

    In the order of the shares, so that the same number of threads gives the same numbers.
    """
    if n_threads <= 1 or n_rows <= 1:
        return [find(slice(0, n_rows))]
    shares = list(slices_of(n_rows, -(-n_rows // n_threads)))
    with single_blas_thread(), ThreadPoolExecutor(len(shares)) as pool:
        return list(pool.map(find, shares))


def threads_for(entries: int, tiny: int = 0) -> AbstractContextManager[None]:
    """One BLAS thread for blocks of few entries, the user's setting for larger ones.

    A thread that is inside a limit already has it, and up to ``tiny`` entries BLAS takes one by
    itself: in all that a call does, `TINY_CALL`, or in products of rows with few directions,
    `TINY_ROWS`. Of a factorisation of m x d with m <= d the entries are 16 m d: it takes that many
    passes.
    """
    if not tiny < entries <= _SMALL or threading.get_ident() in map(
        itemgetter(0), list(_inside.values())
    ):
        return nullcontext()
    return single_blas_thread(shared=True)


class computed_once(Generic[Found]):
    """`functools.cached_property` without the lock that all objects of a class share.

    Up to Python 3.11 eigenproblems of different objects would wait for each other. Threads that
    read the same object at once may compute it each; all see what was kept first.
    """

    def __init__(self, find: Callable[[Any], Found]):
        self._find, self._name = find, find.__name__
        self.__doc__ = find.__doc__

    def __get__(self, obj: Any, kind: Any = None) -> Found:
        return vars(obj).setdefault(self._name, self._find(obj))
