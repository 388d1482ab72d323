"""Mapping over clients, and the log of their messages."""

import os
import threading
import time
from types import SimpleNamespace

import joblib
import numpy as np
import pytest
from sklearn import config_context, get_config
from sklearn.exceptions import NotFittedError
from threadpoolctl import threadpool_info, threadpool_limits

from fedpca_sklearn import CommunicationLog, Subspace
from fedpca_sklearn.communication import Federation

COLUMNS = ["messages_up", "floats_up", "bytes_up", "messages_down", "floats_down", "bytes_down"]
COLUMNS += ["floats_busiest"]


def message(n_floats, nbytes):
    return SimpleNamespace(n_floats=n_floats, nbytes=nbytes)


def test_rounds_are_rows_and_totals_are_their_sums():
    log = CommunicationLog()
    assert log.table == []
    assert (log.rounds, log.floats_up, log.floats_down, log.bytes_up, log.bytes_down) == (0,) * 5
    log.record(up=[message(3, 30), message(4, 40)], down=[message(5, 50)])
    log.record(down=(message(1, 10) for _ in range(3)))  # any iterable, read once
    log.record()
    assert CommunicationLog().table == []
    assert [list(row) for row in log.table] == [COLUMNS] * 3
    assert [list(row.values()) for row in log.table] == [
        [2, 7, 70, 1, 5, 50, 7],
        [0, 0, 0, 3, 3, 30, 1],
        [0, 0, 0, 0, 0, 0, 0],
    ]
    want = "CommunicationLog(rounds=3, floats_up=7, floats_down=8, bytes_up=70, bytes_down=80)"
    assert repr(log) == want
    assert log == log.copy()
    assert log != CommunicationLog(log.table[:2])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_summary_is_a_message_of_its_true_size(dtype):
    X = np.random.default_rng(0).standard_normal((20, 6)).astype(dtype)
    summary = Subspace.from_rows(X, 3)
    log = CommunicationLog()
    log.record(up=[summary])
    assert log.bytes_up == len(summary.to_bytes())
    numbers = (summary.components, summary.singular_values, summary.mean, summary.column_scatter)
    assert log.floats_up == sum(a.size for a in numbers) + 2  # and the count and the scatter


# -------------------------------------------------------------------- map


def label_and_sum(label, *numbers):
    return label, sum(numbers)


def blas_threads(label=None):
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def fail(label, kind=ValueError):
    raise kind("of no use")


@pytest.mark.parametrize("n_jobs", [None, 1, 2, -1])
def test_results_come_in_the_order_of_the_clients(n_jobs):
    calls = [(f"c{i}", i, 10 * i) for i in range(20)]
    got = list(Federation(n_jobs).map(label_and_sum, iter(calls)))
    assert got == [(f"c{i}", 11 * i) for i in range(20)]
    assert list(Federation(n_jobs).map(label_and_sum, [])) == []


def test_parallel_clients_are_threads_unless_the_user_says_otherwise():
    calls = [(i,) for i in range(4)]

    def process(label):  # processes do not import this module for what is defined here
        return os.getpid()

    def fail(label):
        raise ValueError("of no use")

    assert set(Federation(2).map(process, calls)) == {os.getpid()}
    barrier = threading.Barrier(2, timeout=60)  # breaks unless two clients are inside
    got = list(Federation(2).map(lambda label: (label, barrier.wait() >= 0), [("a",), ("b",)]))
    assert got == [("a", True), ("b", True)]
    with joblib.parallel_config(backend="loky", n_jobs=2):
        elsewhere = set(Federation().map(process, calls))
        with pytest.raises(ValueError, match="Client 'b': of no use"):
            list(Federation().map(fail, [("b",)]))
    assert len(elsewhere - {os.getpid()}) == len(elsewhere) > 0


@pytest.mark.parametrize("function", [blas_threads, fail])
def test_blas_has_one_thread_per_worker_and_gets_the_others_back(function):
    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        try:
            inside = list(Federation(2).map(function, [("a",), ("b",)]))
        except ValueError:
            inside = []
        assert all(threads == {1} for threads in inside)
        assert blas_threads() == before


@pytest.mark.parametrize(
    ("kind", "raised"),
    [
        (ValueError, ValueError),
        (TypeError, TypeError),
        (MemoryError, MemoryError),
        (NotFittedError, ValueError),  # a kind of ValueError stays one
        (np.linalg.LinAlgError, ValueError),
        (KeyError, RuntimeError),
        (type("Strange", (Exception,), {}), RuntimeError),
    ],
)
def test_an_error_names_its_client_and_keeps_its_cause(kind, raised):
    def function(name, *_):
        return fail(name, kind) if name in labels else name

    labels = "north", 7
    for n_jobs, label in enumerate(labels, start=1):
        with pytest.raises(raised, match=f"Client {label!r}: .*of no use") as caught:
            list(Federation(n_jobs).map(function, [("a",), (label, 1, 2), ("z",)]))
        cause = caught.value.__cause__  # joblib's workers hand over its text
        assert type(cause) is kind or f"{kind.__name__}: " in str(cause)


@pytest.mark.parametrize("n_jobs", [None, 1])
def test_an_interrupt_is_not_disguised(n_jobs):
    with pytest.raises(KeyboardInterrupt):
        list(Federation(n_jobs).map(fail, [("a", KeyboardInterrupt)]))


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_clients_have_the_configuration_of_scikit_learn(n_jobs):
    def known(label):
        return threading.get_ident(), get_config()["working_memory"]

    with config_context(working_memory=7):
        threads, known_there = zip(*Federation(n_jobs).map(known, [("a",), ("b",)]), strict=True)
    assert known_there == (7, 7)
    assert (threading.get_ident() in threads) == (n_jobs is None)


def test_who_fails_between_two_results_is_not_warned_of_the_others():
    """By joblib: an error of the server would come with a warning, some time later."""
    done = threading.Barrier(3, timeout=60)

    def work(label):
        if label:
            done.wait()
        return label

    results = Federation(n_jobs=2).map(work, [(i,) for i in range(3)])
    next(results)
    done.wait()
    time.sleep(0.1)  # the others' results are there
    results.close()
