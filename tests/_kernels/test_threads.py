"""The limit to one BLAS thread: shared by threads, given back by the last, whatever comes."""

import os
import signal
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
from golden_cases import NAMES
from threadpoolctl import threadpool_limits

from fedpca_sklearn import FederatedPowerPCA, PerfectChannel, Subspace
from fedpca_sklearn._kernels import threads
from fedpca_sklearn._kernels.threads import single_blas_thread, threads_for, usable_threads


def set_numbers(pairs):
    """Set numbers of threads, and let other threads of Python set others afterwards."""
    if threads._CONTROL is not None:
        threads._CONTROL.increment()
    for library, n in pairs:
        library.set_num_threads(n)
    if threads._CONTROL is not None:
        threads._CONTROL.decrement()


def numbers():
    return [library.num_threads for library in threads._libraries()]


@pytest.fixture(autouse=True)
def two_threads():
    libraries = threads._libraries()
    if not libraries:
        pytest.skip("no BLAS whose threads can be set")
    before = list(zip(libraries, numbers(), strict=True))
    set_numbers((library, 2) for library in libraries)
    if set(numbers()) != {2}:
        pytest.skip("a BLAS without threads")
    yield
    set_numbers(before)
    assert not threads._inside
    assert not threads._limited


def under_limit():
    with single_blas_thread():
        return numbers()


@contextmanager
def another_thread(*also):
    """A thread that is inside a limit, or more, until it is told to leave; then it waits."""
    entered, leave, left, end = (threading.Event() for _ in range(4))

    def other():
        with single_blas_thread():
            for each in also:
                each.acquire()
            entered.set()
            leave.wait()
            for each in also:
                each.release()
        left.set()
        end.wait()  # alive: threadpoolctl asks whether who has set a number still is

    def go():
        leave.set()
        left.wait()

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait()
    try:
        yield go
    finally:
        go()
        end.set()
        thread.join()


@pytest.mark.parametrize("first_out", [True, False])
def test_the_last_one_out_gives_the_threads_back(first_out):
    with another_thread() as leave:
        with single_blas_thread():
            if first_out:
                leave()
            assert set(numbers()) == {1}
        if not first_out:
            assert set(numbers()) == {1}
            leave()
        assert set(numbers()) == {2}


FACTORISATIONS = {"svd", "eigh", "eigvalsh", "qr", "cholesky", "eigh_top"}
FACTORISATIONS |= {"n_above", "orthonormalised"}
ROWS = np.random.default_rng(0).standard_normal((120, 40)) * np.arange(1, 41)
WIDE = np.random.default_rng(0).standard_normal((40, 530))
SITES = [Subspace.from_rows(rows) for rows in np.split(ROWS, 4)]
SMALL = """
StreamingPCA(3).fit(ROWS)
OnlineDistributedPCA(3).fit(ROWS)
FederatedPCA(3, merge=SubspaceMerge("svd", fan_in=2), n_clients=4).fit(ROWS)
TruncatedDistributedPCA(3, n_clients=4).fit(ROWS)
FederatedPowerPCA(3, n_clients=4, random_state=0).fit(ROWS)
merge_subspaces(SITES, 3, method="svd")
Subspace.from_rows(ROWS[:15]).update(ROWS[15:40], 3)
ProjectionAverage(3).merge(SITES, 3)
excess_error(ROWS, np.eye(40)[:2])
AlternatingProjections(3).fit(ROWS)
VerticalFederatedPCA(3, feature_groups=3, random_state=0).fit(ROWS)
VerticalFederatedPCA(3, method="power", feature_groups=3, random_state=0).fit(ROWS)
VerticalFederatedPCA(3, method="merge", feature_groups=3, random_state=0).fit(ROWS)
VerticalFederatedKernelPCA(3, feature_groups=3, random_state=0).fit(ROWS)
merge_subspaces([Subspace.from_rows(WIDE[i::8]) for i in range(8)], 5, method="svd")
"""
LARGE = 'merge_subspaces(LARGE, 5, method="svd")'


@pytest.mark.parametrize("code", [*SMALL.strip().splitlines(), LARGE])
def test_small_factorisations_have_one_thread_large_ones_those_of_the_user(code, monkeypatch):
    """When eigenvectors, singular vectors and the like are looked for, here or by numpy."""
    found, names = set(), {**NAMES, "ROWS": ROWS, "WIDE": WIDE, "SITES": SITES}
    if code == LARGE:  # by another bound: two threads of a large SVD spin beside other tests
        assert isinstance(threads_for(16 * 600**2), nullcontext)
        monkeypatch.setattr(threads, "_SMALL", 2**13)
        names["LARGE"] = [Subspace.from_rows(k * np.eye(30)) for k in (1, 2)]

    def note(frame, event, arg):
        where, name = frame.f_code.co_filename.replace(os.sep, "/"), frame.f_code.co_name
        theirs = "/numpy/linalg/" in where or "/scipy/linalg/" in where
        ours = where.endswith("/_kernels/linalg.py")
        if event == "call" and (theirs or ours) and name in FACTORISATIONS:
            found.update(numbers())

    sys.setprofile(note)
    try:
        eval(code, names)
    finally:
        sys.setprofile(None)
    assert found == ({2} if code == LARGE else {1})
    assert set(numbers()) == {2}


def test_a_number_that_is_set_meanwhile_is_kept():
    with single_blas_thread():
        set_numbers((library, 3) for library in threads._libraries())
        expected = numbers()
    assert numbers() == expected


@pytest.mark.parametrize("call", range(4))
def test_a_signal_at_any_time_leaves_no_limit(monkeypatch, call):
    calls, settle = iter(range(9)), threads._settle

    def interrupted(function):
        def run(*args):
            if next(calls) == call:
                raise KeyboardInterrupt
            function(*args)
            if next(calls) == call:
                raise KeyboardInterrupt

        return run

    monkeypatch.setattr(threads, "_settle", interrupted(settle))
    with pytest.raises(KeyboardInterrupt), single_blas_thread():
        pass
    assert not threads._inside
    assert set(numbers()) == {2}


class Failing(PerfectChannel):
    """A server that fails at the first message."""

    def receive(self, messages, rng):
        next(messages)
        raise ValueError("a message too large")


def test_a_server_that_fails_leaves_no_limit_while_its_traceback_is_kept():
    model = FederatedPowerPCA(2, n_jobs=2, n_clients=4, channel=Failing(), random_state=0)
    with single_blas_thread():
        with pytest.raises(ValueError, match="too large") as kept:
            model.fit(ROWS)
        assert set(numbers()) == {1}
    assert set(numbers()) == {2}
    assert kept.tb is not None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_waits_for_no_thread_of_its_parent():
    with another_thread(threads._lock), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a process with threads is forked
        child = os.fork()
        if child == 0:
            os._exit(0 if under_limit() and threads._inside == {} else 1)
    end, done, status = time.monotonic() + 10, 0, None
    while not done and time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.002)
    if not done:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert status == 0


def test_a_thread_that_sets_a_limit_may_come_to_another_one():
    """As where garbage collection ends a generator that is inside one."""
    seen = []

    def work():
        with threads._lock:
            seen.append(under_limit())

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(10)
    assert [set(one) for one in seen] == [{1}]


def test_many_threads_share_one_limit():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            seen = list(pool.map(lambda _: under_limit(), range(400)))
    finally:
        sys.setswitchinterval(interval)
    assert {number for one in seen for number in one} == {1}
    assert set(numbers()) == {2}


def test_who_works_in_parallel_has_one_thread_and_small_products_leave_theirs_to_python():
    with threadpool_limits(2, user_api="blas"), ThreadPoolExecutor(1) as pool:
        assert usable_threads() == 2
        with single_blas_thread():
            assert usable_threads() == 1
        with threads_for(1):
            assert usable_threads() == 2
            assert pool.submit(usable_threads).result() == 1  # not beside another thread
