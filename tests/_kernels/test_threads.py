"""The limit to one BLAS thread: shared by threads, given back by the last, whatever comes."""

import os
import signal
import sys
import threading
import time
import warnings

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from fedpca_sklearn import (
    AlternatingProjections,
    FederatedPCA,
    FederatedPowerPCA,
    OnlineDistributedPCA,
    PerfectChannel,
    ProjectionAverage,
    RobustMerge,
    StreamingPCA,
    Subspace,
    SubspaceMerge,
    TruncatedDistributedPCA,
    VerticalFederatedKernelPCA,
    VerticalFederatedPCA,
    excess_error,
    merge_subspaces,
)
from fedpca_sklearn._kernels import threads
from fedpca_sklearn._kernels.threads import single_blas_thread


def numbers():
    return [library.num_threads for library in threads._libraries()]


@pytest.fixture(autouse=True)
def two_threads():
    libraries = threads._libraries()
    if not libraries:
        pytest.skip("no BLAS whose threads can be set")
    before = list(zip(libraries, numbers(), strict=True))
    threads._set((library, 2) for library in libraries)
    if set(numbers()) != {2}:
        pytest.skip("a BLAS without threads")
    yield
    threads._set(before)
    assert not threads._inside
    assert not threads._limited


def in_another_thread(function):
    result = []
    thread = threading.Thread(target=lambda: result.append(function()))
    thread.start()
    thread.join()
    return result[0]


def under_limit():
    with single_blas_thread():
        return numbers()


@pytest.mark.parametrize("first_out", [True, False])
def test_the_last_one_out_gives_the_threads_back(first_out):
    entered, leave, end = (threading.Event() for _ in range(3))
    left = threading.Event()

    def other():
        with single_blas_thread():
            entered.set()
            leave.wait()
        left.set()
        end.wait()  # alive: threadpoolctl asks whether who has set a number still is

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait()
    with single_blas_thread():
        if first_out:
            leave.set()
            left.wait()
        assert set(numbers()) == {1}
    if not first_out:
        assert set(numbers()) == {1}
        leave.set()
        left.wait()
    assert set(numbers()) == {2}
    end.set()
    thread.join()


def test_a_fit_leaves_the_threads_to_others():
    StreamingPCA(2).fit(np.random.default_rng(0).standard_normal((40, 6)))

    def limited():
        with threadpool_limits(1, "blas"):
            return numbers()

    assert set(in_another_thread(limited)) == {1}
    assert set(in_another_thread(under_limit)) == {1}
    assert set(numbers()) == {2}


def threads_of_factorisations(function):
    """Numbers of BLAS threads when eigenvectors, singular vectors and the like are looked for."""
    found = set()

    def note(frame, event, arg):
        where, name = frame.f_code.co_filename.replace(os.sep, "/"), frame.f_code.co_name
        theirs = "/numpy/linalg/" in where or "/scipy/linalg/" in where
        ours = where.endswith("/_kernels/linalg.py")
        if event == "call" and (theirs or ours) and name in FACTORISATIONS:
            found.update(numbers())

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return found


FACTORISATIONS = {"svd", "eigh", "eigvalsh", "qr", "cholesky", "eigh_top", "orthonormalised"}
ROWS = np.random.default_rng(0).standard_normal((120, 40)) * np.arange(1, 41)
SITES = [Subspace.from_rows(rows) for rows in np.split(ROWS, 4)]
GROUPS = {"feature_groups": 3, "random_state": 0}
SMALL = {
    "online": lambda: OnlineDistributedPCA(3).fit(ROWS),
    "steps": lambda: OnlineDistributedPCA(3, average="steps").partial_fit(ROWS),
    "tree": lambda: FederatedPCA(3, merge=SubspaceMerge("svd", fan_in=2), n_clients=4).fit(ROWS),
    "robust": lambda: FederatedPCA(3, merge=RobustMerge(), n_clients=5).fit(ROWS),
    "truncated": lambda: TruncatedDistributedPCA(3, n_clients=4).fit(ROWS),
    "rounds": lambda: FederatedPowerPCA(3, n_clients=4, random_state=0).fit(ROWS),
    "merge": lambda: merge_subspaces(SITES, 3, method="svd"),
    "summaries": lambda: FederatedPCA.from_subspaces(SITES, 3, merge=SubspaceMerge("qr")),
    "rows": lambda: Subspace.from_rows(ROWS[:15]).update(ROWS[15:40], 3),
    "mean of projections": lambda: ProjectionAverage(3).merge(SITES, 3),
    "error": lambda: excess_error(ROWS, np.eye(40)[:2]),
    "separation": lambda: AlternatingProjections(3).fit(ROWS),
    "columns": lambda: VerticalFederatedPCA(3, **GROUPS).fit(ROWS),
    "columns, power": lambda: VerticalFederatedPCA(3, method="power", **GROUPS).fit(ROWS),
    "columns, merge": lambda: VerticalFederatedPCA(3, method="merge", **GROUPS).fit(ROWS),
    "kernels": lambda: VerticalFederatedKernelPCA(3, **GROUPS).fit(ROWS),
    "landmarks": lambda: VerticalFederatedKernelPCA(3, n_landmarks=30, **GROUPS).fit(ROWS),
}


@pytest.mark.parametrize("name", SMALL)
def test_small_factorisations_have_one_thread(name):
    assert threads_of_factorisations(SMALL[name]) == {1}
    assert set(numbers()) == {2}


def test_large_factorisations_have_those_of_the_user():
    X = np.random.default_rng(0).standard_normal((40, 530))
    sites = [Subspace.from_rows(X[i::8]) for i in range(8)]
    wide = [Subspace.from_rows(np.eye(600)), Subspace.from_rows(2 * np.eye(600))]
    assert threads_of_factorisations(lambda: merge_subspaces(sites, 5, method="svd")) == {1}
    assert threads_of_factorisations(lambda: merge_subspaces(wide, 5, method="svd")) == {2}


def test_a_number_that_is_set_meanwhile_is_kept():
    with single_blas_thread():
        threads._set((library, 3) for library in threads._libraries())
        expected = numbers()
    assert numbers() == expected


@pytest.mark.parametrize("call", range(4))
def test_a_signal_at_any_time_leaves_no_limit(monkeypatch, call):
    calls, settle, leave = iter(range(9)), threads._settle, threads._leave

    def interrupted(function):
        def run(*args):
            if next(calls) == call:
                raise KeyboardInterrupt
            function(*args)
            if next(calls) == call:
                raise KeyboardInterrupt

        return run

    def work():
        with single_blas_thread():
            monkeypatch.setattr(threads, "_settle", settle)
            monkeypatch.setattr(threads, "_leave", interrupted(leave))

    monkeypatch.setattr(threads, "_settle", interrupted(settle))
    with pytest.raises(KeyboardInterrupt):
        work()
    assert not threads._inside
    assert set(numbers()) == {2}


class Failing(PerfectChannel):
    """A server that fails at the first message."""

    def receive(self, messages, rng):
        next(messages)
        raise ValueError("a message too large")


def test_a_server_that_fails_leaves_no_limit_while_its_traceback_is_kept():
    X = np.random.default_rng(0).standard_normal((40, 6))
    model = FederatedPowerPCA(2, n_jobs=2, n_clients=4, channel=Failing(), random_state=0)
    with single_blas_thread():
        with pytest.raises(ValueError, match="too large") as kept:
            model.fit(X)
        assert set(numbers()) == {1}
    assert set(numbers()) == {2}
    assert kept.tb is not None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_waits_for_no_thread_of_its_parent():
    entered, leave = threading.Event(), threading.Event()

    def other():
        with single_blas_thread(), threads._lock:
            entered.set()
            leave.wait()

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a process with threads is forked
        child = os.fork()
    if child == 0:
        os._exit(0 if under_limit() and threads._inside == {} else 1)
    leave.set()
    thread.join()
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
    seen, interval = [], sys.getswitchinterval()

    def work():
        for _ in range(50):
            seen.append(under_limit())

    sys.setswitchinterval(1e-6)
    try:
        workers = [threading.Thread(target=work) for _ in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(interval)
    assert {number for one in seen for number in one} == {1}
    assert set(numbers()) == {2}
