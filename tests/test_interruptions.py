"""A fit that is interrupted, wherever, leaves what was before, or all that it has made."""

import contextlib
import copy
import sys
from pathlib import Path

import numpy as np
import pytest
from golden_cases import made
from numpy.testing import assert_array_equal

import fedpca_sklearn
from fedpca_sklearn import (
    AnalyzeGauss,
    FederatedPCA,
    PrivacyLedger,
    StreamingPCA,
    Subspace,
    SubspaceMonitor,
)
from fedpca_sklearn._kernels.threads import running_blocks
from fedpca_sklearn.monitoring._learning import DriftTest
from fedpca_sklearn.monitoring._model import MonitorModel
from fedpca_sklearn.privacy import _ledger

PACKAGE = Path(fedpca_sklearn.__file__).parent
# Where states are published.
BASE = str(PACKAGE / "_base")
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((60, 6)) * [5, 4, 3, 2, 1, 1], RNG.standard_normal((20, 6)) + 3


def interrupted_at(line, work, where=BASE):
    """Raise in a line of a part, counted as they come: the error, or whether there are so many."""
    lines, outer = 0, sys.gettrace()

    def trace(frame, event, argument):
        nonlocal lines
        if not frame.f_code.co_filename.startswith(where):
            return None
        lines += event == "line"
        if event == "line" and lines == line:
            sys.settrace(outer)
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt as error:
        return error
    finally:
        sys.settrace(outer)
    return lines >= line


def assert_equal_bits(a, b):
    assert_array_equal(a.components_, b.components_)
    assert_array_equal(a.mean_, b.mean_)
    assert a.n_samples_ == b.n_samples_
    assert vars(a).keys() == vars(b).keys()


@pytest.mark.parametrize("code", ["StreamingPCA(2)", "SubspaceTracker(2)"])
@pytest.mark.parametrize("rows", [Y[:6], Y[:1]], ids=["batch", "row"])
def test_an_interruption_where_a_state_is_published(code, rows):
    before = made(code).fit(X)
    after = copy.deepcopy(before).partial_fit(rows)
    line, n_before, go_on = 0, 0, True
    while go_on:
        line += 1
        model = copy.deepcopy(before)
        go_on = interrupted_at(line, lambda model=model: model.partial_fit(rows))
        expected = after if model.n_samples_ == after.n_samples_ else before
        n_before += expected is before
        assert_equal_bits(model, expected)
        model.partial_fit(rows)
        assert_equal_bits(model, copy.deepcopy(expected).partial_fit(rows))
    assert n_before > 5


def test_an_interrupted_transform_gives_the_threads_of_blas_back():
    """Also while somebody keeps the traceback, as an interactive session does."""
    pca, rows = StreamingPCA(2).fit(X), np.ones((6000, 6))
    line, kept = 0, True
    while kept:
        line += 1
        kept = interrupted_at(line, lambda: pca.transform(rows), contextlib.__file__)
        assert not running_blocks()
    assert line > 5


@pytest.mark.parametrize("there", [True, False])
def test_an_interruption_of_a_save_leaves_a_whole_file_and_no_other(tmp_path, there):
    path, line, go_on = tmp_path / "model", 0, True
    while go_on:
        line += 1
        Subspace.from_rows(X).save(path)
        if not there:
            path.unlink()
        go_on = interrupted_at(
            line,
            lambda: Subspace.from_rows(Y).save(path),
            str(PACKAGE / "_validation" / "files.py"),
        )
        assert list(tmp_path.iterdir()) == [path] * path.exists()
        assert not path.exists() or Subspace.load(path).n_samples in (60, 20)
    assert line > 10


def test_an_interrupted_call_of_a_ledger_gives_its_lock_back(tmp_path):
    """Also while somebody keeps the traceback: the next fit would wait for ever."""
    ledger, mechanism = PrivacyLedger(tmp_path / "ledger"), AnalyzeGauss(90.0, 1e-5, 9.0)
    FederatedPCA(2, mechanism=mechanism.set_params(ledger=ledger), random_state=0).fit(X)
    line, kept = 0, True
    while kept:
        line += 1
        kept = interrupted_at(line, lambda: ledger.spent(1e-5), contextlib.__file__)
        with open(ledger.path) as file:
            _ledger.fcntl.flock(file, _ledger.fcntl.LOCK_EX | _ledger.fcntl.LOCK_NB)


def statistics(monitor):
    return np.concatenate(
        [monitor.score_samples(X), [monitor.drift_angle_, monitor.q_limit_, monitor.offset_]]
    )


def monitor_after(n_single):
    """After a batch, and rows that came one by one."""
    monitor = SubspaceMonitor(StreamingPCA(2)).fit(X).partial_fit(Y)
    for row in Y[:n_single]:
        monitor.partial_fit(row[None])
    return monitor


learn = StreamingPCA.partial_fit


def fail(*args, **kwargs):
    if isinstance(args[0], StreamingPCA):
        learn(*args, **kwargs)  # before it fails
    raise MemoryError


@pytest.mark.parametrize("n_single", [0, 3])
@pytest.mark.parametrize("rows", [Y[:5], Y[:1]], ids=["batch", "row"])
def test_a_monitor_that_fails_late_has_learnt_nothing_and_a_copy_goes_on_alone(
    monkeypatch, n_single, rows
):
    same = monitor_after(n_single)
    before = statistics(same)
    places = (MonitorModel, "of"), (DriftTest, "after"), (StreamingPCA, "partial_fit")
    for place in places[n_single > 0 :]:  # a model is made after a batch
        monitor = monitor_after(n_single)
        with monkeypatch.context() as patch:
            patch.setattr(*place, fail)
            with pytest.raises(MemoryError):
                monitor.partial_fit(rows)
        assert_array_equal(statistics(monitor), before)
    other = copy.copy(monitor)
    assert not np.array_equal(statistics(other.partial_fit(rows)), before)
    assert_array_equal(statistics(monitor), before)
    # limits do not depend on who has looked
    for one in (monitor, same, other):
        if one is not other:
            one.partial_fit(rows)
        one.set_params(contamination=0.2)
        assert_array_equal(statistics(one), statistics(monitor))
