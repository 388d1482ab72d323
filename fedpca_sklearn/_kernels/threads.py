"""Limits to one BLAS thread, for clients that run in parallel and for small products."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

# Entries of a block up to which a second thread may cost far more than it brings: where other work
# keeps the cores busy, threads wait for each other in every product (64 features: 11 s, not 0.1 s).
_SMALL = 2**22

_lock = threading.Lock()
_inside = 0
_limit: Any = None


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


@contextmanager
def single_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread; the last one out restores the user's setting.

    The setting belongs to the process, so threads that are inside at the same time share one limit.
    """
    global _inside, _limit
    with _lock:
        if _inside == 0:
            _limit = _controller().limit(limits=1, user_api="blas")
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _limit.restore_original_limits()


def usable_threads() -> int:
    """Threads that BLAS may use now; one inside a limit, as of clients that run in parallel."""
    if _inside:
        return 1
    pools = _controller().lib_controllers
    return max((pool.num_threads for pool in pools if pool.user_api == "blas"), default=1)


def threads_for(entries: int) -> AbstractContextManager[None]:
    """One BLAS thread for blocks of few entries, the user's setting for larger ones."""
    return single_blas_thread() if entries <= _SMALL else nullcontext()
