"""Weights of rows at sites, and sites whose rows come in batches."""

import os

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")

from test_flower import InProcessGrid, assert_same, grid_of, without

from fedpca_sklearn import (
    DistributedPCA,
    FederatedPCA,
    FederatedPowerPCA,
    OnlineDistributedPCA,
    StreamingPCA,
    SubspaceMerge,
    TruncatedDistributedPCA,
)
from fedpca_sklearn.engines.flower import (
    NoBatchError,
    SiteRows,
    client_app,
    fit_sites,
    partial_fit_sites,
)

X = load_digits().data[:420, 10:42]
RNG = np.random.default_rng(0)
PARTS = {"east": X[:200], "north": X[200:300], "west": X[300:]}
LABELS = np.repeat(list(PARTS), [len(rows) for rows in PARTS.values()])
BY_NAME = {"ids": lambda e: type(e).__name__}


# -------------------------------------------------------------------- weights

WEIGHTED = [
    FederatedPCA(5),
    DistributedPCA(5),
    TruncatedDistributedPCA(5),
    FederatedPowerPCA(5, random_state=0),
    OnlineDistributedPCA(5),
]


def weighted(weight):
    return {site: SiteRows(X[site == LABELS], weight[site == LABELS]) for site in PARTS}


@pytest.mark.parametrize("estimator", WEIGHTED, **BY_NAME)
def test_weights_at_sites_are_those_of_clients_in_one_process(estimator):
    weight = RNG.integers(0, 3, len(X)).astype(float)
    fitted = fit_sites(grid_of(estimator, weighted(weight)), estimator, wait=0)
    expected = clone(estimator).fit(X, clients=LABELS, sample_weight=weight)
    assert_same(fitted, expected)


def test_weights_repeat_rows():
    weight = RNG.integers(0, 3, len(X))
    pooled = PCA(5).fit(np.repeat(X, weight, axis=0))
    for estimator in WEIGHTED[:2]:
        fitted = fit_sites(grid_of(estimator, weighted(weight)), estimator, wait=0)
        np.testing.assert_allclose(fitted.explained_variance_, pooled.explained_variance_)
        np.testing.assert_allclose(fitted.mean_, pooled.mean_, atol=1e-12)


def test_batches_of_sites_are_merged_about_the_mean_of_all_of_their_rows():
    estimator = FederatedPCA(5, merge=SubspaceMerge(center="site"))
    halves = {site: [rows[:60], rows[60:]] for site, rows in PARTS.items()}
    grid, fitted = grid_of(estimator, halves), estimator
    for _ in range(2):
        fitted = partial_fit_sites(grid, fitted, wait=0)
    assert_same(fitted, clone(estimator).fit(X, clients=LABELS))


@pytest.mark.parametrize("estimator", [FederatedPCA(), DistributedPCA()], **BY_NAME)
def test_fractional_weights_stand_for_as_many_rows_as_in_one_process(estimator):
    weight = np.full(len(X), 0.02)
    fitted = fit_sites(grid_of(estimator, weighted(weight)), estimator, wait=0)
    expected = clone(estimator).fit(X, clients=LABELS, sample_weight=weight)
    assert len(fitted.components_) == len(expected.components_) == 32
    assert fitted.n_samples_ == len(X)
    np.testing.assert_allclose(fitted.singular_values_, expected.singular_values_, atol=1e-9)


def test_weights_that_are_none():
    estimator = DistributedPCA(3)
    for weight, reason in (
        (np.r_[np.ones(9), np.zeros(111)], "refused: fewer than min_rows=10 rows"),
        (np.full(120, 1e-3), "refused: sample_weight has a sum below 1"),
        (-np.ones(120), "ValueError"),
        (np.full(120, np.nan), "ValueError"),
        (np.ones(119), "ValueError"),
    ):
        parts = {**PARTS, "west": SiteRows(PARTS["west"], weight)}
        with pytest.warns(UserWarning, match=reason):
            fitted = fit_sites(grid_of(estimator, parts), estimator, wait=0)
        assert fitted.clients_ == ["east", "north"]


def test_a_sub_estimator_without_weights():
    estimator = FederatedPCA(5, estimator=PCA(5))
    with pytest.raises(RuntimeError, match=r"Left out: .*TypeError"):
        fit_sites(grid_of(estimator, weighted(np.ones(len(X)))), estimator, wait=0)


# -------------------------------------------------------------------- batches

STREAMS = {site: np.array_split(rows, [40, 70]) for site, rows in PARTS.items()}
FIRST = {site: batches[0] for site, batches in STREAMS.items()}
GOING_ON = [
    FederatedPCA(5),
    FederatedPCA(0.8),
    DistributedPCA(5),
    OnlineDistributedPCA(5),
    OnlineDistributedPCA(5, average="steps", center=False, variances="sent"),
]


def pooled_batch(number, sites=PARTS):
    rows = [STREAMS[site][number] for site in sites]
    return np.concatenate(rows), np.repeat(list(sites), [len(part) for part in rows])


@pytest.mark.parametrize("estimator", GOING_ON, **BY_NAME)
def test_batches_of_sites_are_calls_of_partial_fit(estimator):
    grid, fitted, expected = grid_of(estimator, STREAMS), clone(estimator), clone(estimator)
    for number in range(3):
        before = fitted
        fitted = partial_fit_sites(grid, before, wait=0)
        rows, labels = pooled_batch(number)
        assert_same(fitted, expected.partial_fit(rows, clients=labels))
        assert fitted is not before
        assert fitted.n_batches_ == number + 1
        assert fitted.clients_ == expected.clients_
        assert fitted.n_features_in_ == 32
    assert fitted.n_samples_ == len(X)
    with pytest.raises(NoBatchError, match="No site has batch 3"):
        partial_fit_sites(grid, fitted, wait=0)
    assert not hasattr(estimator, "components_")


def test_a_fit_takes_all_batches():
    for estimator in (FederatedPCA(5), DistributedPCA(5), FederatedPowerPCA(5, random_state=0)):
        fitted = fit_sites(grid_of(estimator, STREAMS), estimator, wait=0)
        assert_same(fitted, clone(estimator).fit(X, clients=LABELS))


def test_sparse_and_weighted_batches():
    streams = {
        site: [sp.csr_array(batches[0]), SiteRows(batches[1], np.full(len(batches[1]), 2.0))]
        for site, batches in STREAMS.items()
    }
    rows = [np.repeat(a, 1 + i, axis=0) for b in STREAMS.values() for i, a in enumerate(b[:2])]
    pooled = PCA(5).fit(np.concatenate(rows))
    for estimator in (FederatedPCA(5), DistributedPCA(5)):
        fitted = fit_sites(grid_of(estimator, streams), estimator, wait=0)
        np.testing.assert_allclose(fitted.explained_variance_, pooled.explained_variance_)
        grid = grid_of(estimator, streams)
        fitted = partial_fit_sites(grid, partial_fit_sites(grid, estimator, wait=0), wait=0)
        np.testing.assert_allclose(fitted.explained_variance_, pooled.explained_variance_)


def test_a_generator_of_batches():
    made = []

    def batches():
        for batch in STREAMS["east"]:
            made.append(len(batch))
            yield batch

    app = client_app(lambda context: batches(), DistributedPCA(5))
    grid = InProcessGrid([app], ["east"])
    partial_fit_sites(grid, DistributedPCA(5), wait=0, min_sites=1)
    assert made == [40]  # what comes later is not read


@pytest.mark.parametrize("estimator", [GOING_ON[0], *GOING_ON[2:4]], **BY_NAME)
def test_sites_that_end_join_or_fail(estimator):
    streams = {**STREAMS, "east": STREAMS["east"][:1]}
    lost = without("west", how="timeout")
    grid = grid_of(estimator, streams)
    fitted = partial_fit_sites(grid, estimator, wait=0)
    grid.spoil = lost
    with pytest.warns(UserWarning, match=r"Fitted without site 'node 3' \(no answer"):
        fitted = partial_fit_sites(grid, fitted, wait=0)
    assert fitted.clients_ == ["east", "north", "west"]
    assert list(fitted.missing_sites_) == ["node 3"]
    grid.spoil = None
    fitted = partial_fit_sites(grid, fitted, wait=0)
    assert fitted.missing_sites_ == {}
    expected = clone(estimator)
    for number, sites in enumerate((PARTS, ["north"], ["north", "west"])):
        rows, labels = pooled_batch(number, sites)
        expected.partial_fit(rows, clients=labels)
    assert_same(fitted, expected)


def test_the_number_of_the_batch():
    grid = grid_of(DistributedPCA(5), STREAMS)
    whole = fit_sites(grid, DistributedPCA(5), wait=0)
    with pytest.raises(ValueError, match="batch must be given: the estimator was fitted in anoth"):
        partial_fit_sites(grid, whole, wait=0)
    later = partial_fit_sites(grid, whole, batch=2, wait=0)
    assert later.n_batches_ == 3
    assert later.n_samples_ == len(X) + sum(len(batches[2]) for batches in STREAMS.values())
    for number in (-1, 1.5):
        with pytest.raises(ValueError, match="batch must be an integer of at least 0"):
            partial_fit_sites(grid, DistributedPCA(5), batch=number, wait=0)
    with pytest.raises(TypeError, match=r"one of DistributedPCA, FederatedPCA, .*PowerPCA"):
        partial_fit_sites(grid, FederatedPowerPCA(5), wait=0)


def test_batches_with_other_columns():
    pd = pytest.importorskip("pandas")
    columns = [f"pixel{i}" for i in range(32)]
    streams = {
        site: [pd.DataFrame(batch, columns=columns) for batch in batches]
        for site, batches in STREAMS.items()
    }
    for estimator in (FederatedPCA(5), OnlineDistributedPCA(5)):
        grid = grid_of(estimator, streams)
        fitted = partial_fit_sites(grid, estimator, wait=0)
        assert fitted.feature_names_in_.tolist() == columns
        other = {site: [batches[0], batches[1][columns[::-1]]] for site, batches in streams.items()}
        with pytest.raises(RuntimeError, match="the same features in another order: 'pixel31'"):
            partial_fit_sites(grid_of(estimator, other), fitted, wait=0)
        other = {site: [batches[0], batches[1][:, :31]] for site, batches in STREAMS.items()}
        with pytest.raises(RuntimeError, match="its number of features is 31, that of the others"):
            partial_fit_sites(grid_of(estimator, other), fitted, wait=0)


def test_one_process_goes_on_where_sites_ended():
    for estimator in (FederatedPCA(5), DistributedPCA(5)):
        fitted = partial_fit_sites(grid_of(estimator, STREAMS), estimator, wait=0)
        rows, labels = pooled_batch(1)
        expected = clone(estimator).partial_fit(*_first()).partial_fit(rows, clients=labels)
        assert_same(fitted.partial_fit(rows, clients=labels), expected)


def _first():
    rows, labels = pooled_batch(0)
    return rows, None, labels


def test_directions_that_a_site_had_sent_do_not_add_up():
    rows = RNG.standard_normal((180, 300))
    streams = {"a": np.split(rows[:90], 3), "b": np.split(rows[90:], 3)}
    grid, fitted = grid_of(FederatedPCA(4), streams), FederatedPCA(4)
    sizes = []
    for _ in range(3):
        fitted = partial_fit_sites(grid, fitted, wait=0)
        sizes.append(fitted.subspace_.n_components)
    assert sizes[1:] == sizes[:1] * 2
    assert StreamingPCA(4).fit(rows).n_samples_ == fitted.n_samples_
