"""What is kept does not grow with the number of calls, and a call costs what it changes."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import arrays_in
from numpy.testing import assert_allclose, assert_array_equal

from fedpca_sklearn import (
    AnalyzeGauss,
    CommunicationDisplay,
    CommunicationLog,
    ContributionBounds,
    FederatedPCA,
    FederatedPowerPCA,
    GaussianChannel,
    RankRule,
    StreamingPCA,
    Subspace,
    SubspaceMerge,
    SubspaceTracker,
    subspace_distance,
)
from fedpca_sklearn.federated import _merge
from fedpca_sklearn.streaming import _blocks

KEPT = 1000
MESSAGE = SimpleNamespace(n_floats=3, nbytes=24)


def log_of(n_rounds):
    log = CommunicationLog(floats_pooled=7)
    for i in range(n_rounds):
        log.record([MESSAGE] * (1 + i % 3), [MESSAGE])
    return log


# -------------------------------------------------------------------- the log


def test_totals_are_of_all_rounds_and_the_table_of_the_last():
    log, n = log_of(2500), 2500
    sent = [1 + i % 3 for i in range(n)]
    assert len(log.table) == KEPT
    assert [row["messages_up"] for row in log.table] == sent[-KEPT:]
    assert (log.rounds, log.floats_up, log.bytes_up) == (n, 3 * sum(sent), 24 * sum(sent))
    assert (log.floats_down, log.bytes_down) == (3 * n, 24 * n)
    assert log.floats_busiest == 3 * sum(sent)
    assert log.totals["messages_up"] == sum(sent)


@pytest.mark.parametrize("n_rounds", [0, 5, KEPT, KEPT + 1, 2500])
def test_a_log_is_copied_compared_and_pickled_with_its_totals(n_rounds):
    log = log_of(n_rounds)
    for other in (log.copy(), pickle.loads(pickle.dumps(log))):
        assert other == log
        assert repr(other) == repr(log)
        other.record([MESSAGE])
        assert other.rounds == n_rounds + 1
        assert other != log
    assert log == log_of(n_rounds)


def test_logs_that_differ_in_forgotten_rounds_differ():
    one, other = log_of(1500), log_of(1500)
    other.totals["floats_up"] += 1
    assert one.table == other.table
    assert one != other


def test_a_log_does_not_grow():
    size = [len(pickle.dumps(log_of(n))) for n in (2000, 20_000)]
    assert size[1] <= size[0] + 100


def test_the_display_goes_on_from_what_was_sent_before():
    display = CommunicationDisplay(log_of(1500)).plot()
    sent = np.cumsum([3 * (1 + i % 3) + 3 for i in range(1500)])
    assert_array_equal(display.line_.get_xdata(), np.arange(501, 1501))
    assert_array_equal(display.line_.get_ydata(), sent[500:])


def test_more_rounds_than_are_kept_in_one_fit():
    X = np.random.default_rng(0).standard_normal((20, 3))
    model = FederatedPowerPCA(1, n_rounds=1200, channel=GaussianChannel(1.0), random_state=0)
    model.fit(X)
    assert model.communication_.rounds == 1202
    assert model.communication_.floats_up == 2 * (4 + 1200 * 3 + 3)
    assert len(model.communication_.table) == KEPT


# -------------------------------------------------------------------- histories


class Sawtooth(RankRule):
    """Up to five, down to one, and up again."""

    def __init__(self, hold_off=0):
        self.hold_off = hold_off

    def step(self, rank, subspace):
        return 1 if rank < 5 else -4


def test_the_last_ranks_are_remembered_however_the_stream_is_cut(monkeypatch):
    assert _blocks._RANKS_KEPT == 10_000
    monkeypatch.setattr(_blocks, "_RANKS_KEPT", 1000)
    X = np.random.default_rng(0).standard_normal((1500, 6))
    options = {"rank_rule": ContributionBounds(0.1, 0.16), "block_size": 1}
    whole = StreamingPCA(2, **options).fit(X)
    parts = StreamingPCA(2, **options)
    for rows in np.split(X, [1, 10, 800, 1400]):
        if parts.partial_fit(rows).n_samples_seen_ == 800:
            few = parts.rank_history_.copy()
    assert len(whole.rank_history_) == 1000
    assert_array_equal(parts.rank_history_, whole.rank_history_)
    assert len(few) == 800
    assert_array_equal(whole.rank_history_[:300], few[500:])


def test_a_failing_call_leaves_the_history_alone():
    X = np.random.default_rng(0).standard_normal((100, 6))
    pca = StreamingPCA(2, rank_rule=Sawtooth(), block_size=5).fit(X)
    before = pca.rank_history_.copy()
    with pytest.raises(ValueError, match="NaN"):
        pca.partial_fit(iter([X[:20], np.full((5, 6), np.nan)]))
    assert_array_equal(pca.rank_history_, before)


def test_changes_of_a_stream_are_remembered_up_to_a_number():
    rng = np.random.default_rng(0)
    tracker = SubspaceTracker(
        1, batch_size=2, detect_changes=True, n_updates=1, change_threshold=1e-9
    )
    n = 2 * 2 * 1200
    axes = np.eye(6)[np.arange(n) // 4 % 6]
    tracker.fit(axes * (1 + rng.random((n, 1))))
    assert len(tracker.change_points_) == KEPT
    assert tracker.change_points_[-1] > n - 20


# -------------------------------------------------------------------- sums and trees


def size_of(model):
    return sum({id(array): array.nbytes for array in arrays_in(model)}.values())


def test_sums_of_clients_are_added_up_call_by_call():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 8)) / np.arange(1, 9)
    mechanism = AnalyzeGauss(np.inf, 1e-5, 10.0, trust="sum", n_releases=40)
    model, sizes = FederatedPCA(3, mechanism=mechanism, n_clients=4), []
    for rows in np.split(X, 40):
        model.partial_fit(rows)
        sizes.append(size_of(model))
    assert sizes[-1] == sizes[1]
    _, s, Vt = np.linalg.svd(X - X.mean(axis=0))
    assert_allclose(model.singular_values_, s[:3], rtol=1e-9)
    assert subspace_distance(model.components_, Vt[:3]) <= 1e-9
    assert model.n_samples_ == 400


@pytest.mark.parametrize(("fan_in", "most"), [(2, 8), (4, 4)])
def test_a_client_that_joins_or_changes_costs_one_path_of_the_tree(monkeypatch, fan_in, most):
    merged = []
    merged_parts = _merge.merged_parts

    def counted(parts, *args, **kwargs):
        merged.append(len(parts))
        return merged_parts(parts, *args, **kwargs)

    monkeypatch.setattr(_merge, "merged_parts", counted)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((256, 6))
    pca = FederatedPCA(2, merge=SubspaceMerge(fan_in=fan_in)).fit(X[:200], clients=range(200))
    assert len(merged) >= 200 // fan_in
    for label in (200, 201, 202, 7, 199, 203):
        merged.clear()
        pca.partial_fit(X[label % 256 : label % 256 + 1], clients=[label])
        assert len(merged) <= most + 1
        assert max(merged) <= fan_in
    rows = [*range(200), 200, 201, 202, 7, 199, 203]
    whole = Subspace.from_rows(X[rows])
    assert_allclose(pca.singular_values_, whole.singular_values[:2], rtol=1e-12)
