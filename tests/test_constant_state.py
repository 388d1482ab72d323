"""What is kept does not grow with the number of calls, and a call costs what it changes."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import arrays_in
from numpy.testing import assert_allclose, assert_array_equal

from fedpca_sklearn import (
    AnalyzeGauss,
    ChangeDetection,
    CommunicationDisplay,
    CommunicationLog,
    FederatedPCA,
    RankRule,
    StreamingPCA,
    SubspaceTracker,
    subspace_distance,
)
from fedpca_sklearn.streaming import _blocks
from fedpca_sklearn.tracking import _stmiss

KEPT = 1000
MESSAGE = SimpleNamespace(n_floats=3, nbytes=24)
RNG = np.random.default_rng(0)


def log_of(n_rounds):
    log = CommunicationLog(floats_pooled=7)
    for i in range(n_rounds):
        log.record([MESSAGE] * (1 + i % 3), [MESSAGE])
    return log


@pytest.mark.parametrize("n", [0, 5, KEPT, KEPT + 1, 2500])
def test_totals_of_a_log_are_of_all_rounds_and_its_table_of_the_last(n):
    log, sent = log_of(n), [1 + i % 3 for i in range(n)]
    assert [row["messages_up"] for row in log.table] == sent[-KEPT:]
    assert (log.rounds, log.floats_up, log.bytes_up) == (n, 3 * sum(sent), 24 * sum(sent))
    assert (log.floats_down, log.bytes_down) == (3 * n, 24 * n)
    assert log.floats_busiest == 3 * sum(sent)
    assert log.totals.get("messages_up", 0) == sum(sent)
    for other in (log.copy(), pickle.loads(pickle.dumps(log))):
        assert other == log == log_of(n)
        assert repr(other) == repr(log)
        other.record([MESSAGE])
        assert other.rounds == n + 1
        assert other != log
    if n > KEPT:  # of forgotten rounds
        other = log_of(n)
        other.totals["floats_up"] += 1
        assert (other.table, other == log) == (log.table, False)
        assert len(pickle.dumps(log)) <= len(pickle.dumps(log_of(KEPT + 1))) + 100
        display = CommunicationDisplay(log).plot()  # goes on from what was sent before
        assert_array_equal(display.line_.get_xdata(), np.arange(n - KEPT + 1, n + 1))
        assert_array_equal(display.line_.get_ydata(), np.cumsum(3 * np.array(sent) + 3)[-KEPT:])


# -------------------------------------------------------------------- histories


class Sawtooth(RankRule):
    """Up to five, down to one, and up again."""

    hold_off = 0

    def step(self, rank, subspace):
        return 1 if rank < 5 else -4


def test_the_last_ranks_are_remembered_however_the_stream_is_cut(monkeypatch):
    assert _blocks._RANKS_KEPT == 10_000
    monkeypatch.setattr(_blocks, "_RANKS_KEPT", 200)
    X = np.random.default_rng(0).standard_normal((300, 6))
    options = {"rank_rule": Sawtooth(), "block_size": 1}
    whole, parts = StreamingPCA(2, **options).fit(X), StreamingPCA(2, **options)
    for rows in np.split(X, [1, 10, 160, 280]):
        if parts.partial_fit(rows).n_samples_seen_ == 160:
            few = parts.rank_history_.copy()
            with pytest.raises(ValueError, match="NaN"):
                parts.partial_fit(iter([X[:20], np.full((5, 6), np.nan)]))
            assert_array_equal(parts.rank_history_, few)
    assert (len(whole.rank_history_), len(few)) == (200, 160)
    assert set(whole.rank_history_) == {1, 2, 3, 4, 5}
    assert_array_equal(parts.rank_history_, whole.rank_history_)
    assert_array_equal(whole.rank_history_[:60], few[100:])


def test_changes_of_a_stream_are_remembered_up_to_a_number(monkeypatch):
    assert _stmiss._CHANGES_KEPT == KEPT
    monkeypatch.setattr(_stmiss, "_CHANGES_KEPT", 100)
    options = {"detect_changes": ChangeDetection(1, 1e-9)}
    tracker, n = SubspaceTracker(1, batch_size=2, **options), 2 * 2 * 120
    axes = np.eye(6)[np.arange(n) // 4 % 6]
    tracker.fit(axes * (1 + RNG.random((n, 1))))
    assert len(tracker.change_points_) == 100
    assert tracker.change_points_[-1] > n - 20


# -------------------------------------------------------------------- sums and trees


def size_of(model):
    return sum({id(array): array.nbytes for array in arrays_in(model)}.values())


def test_sums_of_clients_are_added_up_call_by_call():
    X = RNG.standard_normal((400, 8)) / np.arange(1, 9)
    mechanism = AnalyzeGauss(np.inf, 1e-5, 10.0, trust="sum", n_releases=40)
    model = FederatedPCA(3, mechanism=mechanism, n_clients=4)
    sizes = [size_of(model.partial_fit(rows)) for rows in np.split(X, 40)]
    assert sizes[-1] == sizes[1]
    _, s, Vt = np.linalg.svd(X - X.mean(axis=0))
    assert_allclose(model.singular_values_, s[:3], rtol=1e-9)
    assert subspace_distance(model.components_, Vt[:3]) <= 1e-9
    assert model.n_samples_ == 400
