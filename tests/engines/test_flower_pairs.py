"""Rows with missing entries at sites over Flower: moments of pairs, equal to one process."""

import os

import numpy as np
import pytest
from numpy.testing import assert_allclose
from pair_helpers import covariance_of_pairs, nearest_model, rows_with_holes

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")

from test_flower import grid_of
from test_hostile_server import Site, assert_refused
from test_hostile_sites import arrays, spoiling

from fedpca_sklearn import (
    AvailablePairs,
    DistributedPCA,
    FederatedPCA,
    PairMoments,
)
from fedpca_sklearn.engines.flower import (
    SiteRows,
    fit_sites,
    partial_fit_sites,
)

X = rows_with_holes(0, 360, 5, share=0.2, mean=30.0)
PARTS = {"east": X[:120], "north": X[120:240].copy(), "west": X[240:]}
PARTS["north"][:, 2] = np.nan  # nobody measures it there
ALL = np.concatenate(list(PARTS.values()))
LABELS = np.repeat(list(PARTS), 120)
ESTIMATORS = [
    FederatedPCA(3, missing=AvailablePairs()),
    DistributedPCA(3, missing=AvailablePairs()),
]
each = pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)


def assert_equal(fitted, expected):
    for name in ("components_", "explained_variance_", "mean_", "noise_variance_"):
        assert_allclose(getattr(fitted, name), getattr(expected, name), rtol=1e-12, atol=1e-13)
    assert fitted.n_samples_ == expected.n_samples_
    assert fitted.negative_variance_ == pytest.approx(expected.negative_variance_, abs=1e-12)
    assert fitted.clients_ == expected.clients_


@each
def test_sites_give_the_numbers_of_one_process(estimator):
    fitted = fit_sites(grid_of(estimator, PARTS), estimator, wait=0)
    expected = type(estimator)(3, missing=AvailablePairs()).fit(ALL, clients=LABELS)
    assert_equal(fitted, expected)
    assert fitted.communication_.floats_up == expected.communication_.floats_up
    values, _ = nearest_model(covariance_of_pairs(ALL))
    assert_allclose(fitted.explained_variance_, values[:3], rtol=1e-10)
    assert np.isfinite(fitted.transform(ALL)).all()


@each
def test_batches_and_weights(estimator):
    weight = np.random.default_rng(0).integers(1, 4, 360).astype(float)
    halves = {
        site: [
            SiteRows(rows[at], weight[site == LABELS][at]) for at in (slice(60), slice(60, None))
        ]
        for site, rows in PARTS.items()
    }
    grid, fitted = grid_of(estimator, halves, min_rows=1), estimator
    for _ in range(2):
        fitted = partial_fit_sites(grid, fitted, wait=0)
    expected = type(estimator)(3, missing=AvailablePairs())
    expected.fit(ALL, clients=LABELS, sample_weight=weight)
    assert_equal(fitted, expected)


def test_sums_that_tell_few_rows_are_refused():
    few = PARTS["east"].copy()
    few[:, 0] = 1.0
    few[3, 0] = np.nan  # the sums with and without column 0 differ by this row
    estimator = ESTIMATORS[0]
    assert_refused(Site(estimator, few), "pairs", why="fewer than 10 rows have a pair of columns")
    grid = grid_of(estimator, PARTS | {"west": few}, min_rows=1)
    assert fit_sites(grid, estimator, wait=0).n_samples_ == 360
    # rows of weight zero hide nobody: one of the twenty with column 0 counts
    whole, weight = np.nan_to_num(few), np.ones(len(few))
    whole[20:, 0], weight[1:20] = np.nan, 0.0
    site = Site(estimator, SiteRows(whole, weight))
    assert_refused(site, "pairs", why="fewer than 10 rows have a pair of columns")


def sent(rows, **changes):
    moments = PairMoments.from_rows(rows)
    return np.frombuffer(moments._replace(**changes).to_bytes(), np.uint8)


NONE = np.full((5, 5), 1e6)
ATTACKS = {
    "no moments": (np.zeros(99, np.uint8), "no valid moments"),
    "products of no rows": (sent(X, products=NONE - 1e5 * np.eye(5)), "must not exceed"),
    "other columns": (sent(X[:, :4]), "its number of features is 4"),
    "values that overflow": (sent(X, origin=np.full(5, 1e300)), "too large"),
}


@pytest.mark.parametrize("attack", list(ATTACKS))
def test_what_no_rows_have_leaves_a_site_out(attack):
    data, reason = ATTACKS[attack]
    estimator = ESTIMATORS[0]
    grid = grid_of(estimator, PARTS, spoiling(arrays(pairs=data), kind="pairs"))
    with pytest.warns(UserWarning, match=f"Fitted without site '(west|node 3)' .*{reason}"):
        fitted = fit_sites(grid, estimator, wait=0)
    there = LABELS != "west"
    expected = FederatedPCA(3, missing=AvailablePairs()).fit(ALL[there], clients=LABELS[there])
    assert_equal(fitted, expected)
