"""Rows with missing entries by secure sums, beside the same fits of one process."""

import os

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")

from engines.test_flower import InProcessGrid
from engines.test_hostile_server import Site

from fedpca_sklearn import AvailablePairs, ConditionalFill, DistributedPCA, FederatedPCA
from fedpca_sklearn.engines._missing import pair_tasks
from fedpca_sklearn.engines._secure_fits import secure_tasks
from fedpca_sklearn.engines.flower import (
    RefusedError,
    SecureAggregation,
    SiteRows,
    client_app,
    fit_sites,
)
from fedpca_sklearn.summary import PairMoments

SECURE = SecureAggregation(threshold=2)
PAIRS = FederatedPCA(3, missing=AvailablePairs())
FILLS = FederatedPCA(3, missing=ConditionalFill(3))
SITES = {"east": slice(0, 150), "north": slice(150, 230), "west": slice(230, 400)}


def rows(scales=1.0, shift=0.0, seed=0):
    """400 rows of three directions and noise, whose sites lack different shares of the entries."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((400, 3)) @ rng.standard_normal((3, 9)) * 3
    X = (X + rng.standard_normal(X.shape)) * scales + shift
    for share, at in zip((0.1, 0.4, 0.25), SITES.values(), strict=True):
        X[at][rng.random(X[at].shape) < share] = np.nan
    return X


def over_sites(estimator, X, weight=None, columns=None, spoil=None):
    def load(at):
        some = None if weight is None else weight[at]
        part = SiteRows(X[at], sample_weight=some, columns=columns)
        return lambda context: part

    apps = [client_app(load(at), estimator, min_rows=4, secure=SECURE) for at in SITES.values()]
    return fit_sites(InProcessGrid(apps, list(SITES), spoil), estimator, wait=0, secure=SECURE)


def here(estimator, X, weight=None):
    labels = np.repeat(list(SITES), [at.stop - at.start for at in SITES.values()])
    return clone(estimator).fit(X, clients=labels, sample_weight=weight)


def assert_same(found, expected, tol=1e-9):
    for name in ("components_", "explained_variance_", "mean_"):
        a, b = getattr(found, name), getattr(expected, name)
        np.testing.assert_allclose(a, b, rtol=0, atol=tol * np.abs(b).max(), err_msg=name)
    assert found.n_samples_ == expected.n_samples_


CASES = {
    "plain": {},
    "columns of any size": {"scales": 10.0 ** np.linspace(-4, 4, 9)},
    "a mean of 1e4 deviations": {"shift": 1e5},
}


@pytest.mark.parametrize("estimator", [PAIRS, DistributedPCA(3, missing=AvailablePairs()), FILLS])
@pytest.mark.parametrize("case", list(CASES))
def test_sums_of_the_sites_are_those_of_one_process(estimator, case):
    X = rows(**CASES[case])
    assert_same(over_sites(estimator, X), here(estimator, X), 1e-7 if "mean" in case else 1e-9)


def test_the_number_that_predicts_hidden_entries_best():
    """Of columns of one size: singular values below 1e-7 of the largest are lost to integers."""
    pca, X = FederatedPCA("held-out", missing=ConditionalFill()), rows()
    found, expected = over_sites(pca, X), here(pca, X)
    assert found.n_components_ == expected.n_components_
    assert_same(found, expected)


@pytest.mark.parametrize("estimator", [PAIRS, FILLS])
def test_weights_and_names(estimator):
    X, weight = rows(), np.random.default_rng(1).integers(1, 4, 400).astype(float)
    names = [f"gene {i}" for i in range(9)]
    found = over_sites(estimator, X, weight, names)
    assert_same(found, here(estimator, X, weight))
    assert found.feature_names_in_.tolist() == names


@pytest.mark.parametrize("estimator", [PAIRS, FILLS])
def test_sparse_rows_and_float32(estimator):
    X = rows()
    assert_same(over_sites(estimator, sp.csr_array(X)), here(estimator, X))
    single = over_sites(estimator, X.astype(np.float32))
    assert single.components_.dtype == np.float32
    assert_same(single, here(estimator, X.astype(np.float32)), 1e-5)


def test_pandas_covariance_is_the_oracle():
    pd = pytest.importorskip("pandas")
    X = rows(scales=10.0 ** np.linspace(-2, 2, 9))
    values = np.linalg.eigvalsh(pd.DataFrame(X).cov().to_numpy())[::-1]
    found = over_sites(PAIRS, X)
    np.testing.assert_allclose(found.explained_variance_, values[:3], rtol=1e-10)


@pytest.mark.parametrize("estimator", [PAIRS, FILLS])
def test_a_site_whose_sums_would_tell_few_rows_takes_no_part(estimator):
    """One row of a site alone has a column, or lacks it: what it adds would be that row's."""
    X = rows()
    west = SITES["west"]
    X[west, 2] = np.nan
    X[west.start + 5 : west.start + 7, 2] = 1.0
    with pytest.warns(UserWarning, match="fewer than"):
        found = over_sites(estimator, X)
    (missing,) = found.missing_sites_.values()
    assert "west" in missing


def test_what_a_site_adds_depends_on_its_moments_alone():
    """For any mean that a server asks about: numbers, means and products of pairs tell it all."""
    X = rows()[SITES["east"]]
    work = secure_tasks(PAIRS, SECURE)["pairs"].work
    own = PairMoments.from_rows(X)
    for mean in (np.zeros(9), own.mean, np.linspace(-50, 50, 9)):
        sent = work("east", X, mean, weight=None, min_rows=5)
        gaps = own.means + (own.origin - mean)[:, None]
        expected = own.products + own.counts * gaps * gaps.T
        np.testing.assert_array_equal(sent["products"], expected[np.triu_indices(9)])
    plain = pair_tasks(PAIRS.missing)["pairs"].work("east", X, weight=None, min_rows=5)
    told = PairMoments.from_bytes(plain["pairs"])
    np.testing.assert_array_equal(told.products, own.products)


def test_a_mean_that_no_rows_have_is_refused():
    site = Site(PAIRS, rows()[:, :8], secure=SECURE)
    _, arrays = site.ask("bounds")
    assert set(arrays) == {"bounds"}
    config, arrays = site.ask("pairs", np.full(8, 1e9))
    assert not arrays
    assert "refused" in config["error"]


def test_a_site_that_is_lost_between_the_rounds():
    X = rows()

    def spoil(site, message, reply):
        return None if site == "west" and message.metadata.message_type == "query.filled" else reply

    with pytest.warns(UserWarning, match="Fitted without site"):
        found = over_sites(FILLS, X, spoil=spoil)
    assert_same(found, clone(FILLS).fit(X[:230], clients=np.repeat(["east", "north"], [150, 80])))


def test_a_column_that_nobody_has():
    X = rows()
    X[:, 4] = np.nan
    with pytest.raises(ValueError, match="column 4 is observed in 0 rows of all sites"):
        over_sites(PAIRS, X)


@pytest.mark.parametrize(
    ("estimator", "kind"), [(PAIRS, "pairs"), (FILLS, "entries"), (FILLS, "filled")]
)
def test_rows_that_have_changed_since_the_first_question_are_checked_again(estimator, kind):
    """One entry of a column that was whole: with it missing, the sum of the others tells it."""
    X, tasks = rows()[:150], secure_tasks(estimator, SECURE)
    X[:, 3] = np.arange(150.0)
    X[0, 3] = np.nan
    model = np.vstack([np.zeros(9), np.eye(3, 9)])
    arguments = {"pairs": (np.zeros(9),), "filled": (model, [150.0, 9.0, 1.0, 1.0, 1.0])}
    more = {"weight": None, "min_rows": 4}
    given = [np.asarray(a, dtype=float) for a in arguments.get(kind, ())]
    with pytest.raises(RefusedError, match="would tell them"):
        tasks[kind].work("east", X, *given, **more)


@pytest.mark.parametrize("estimator", [PAIRS, FILLS])
def test_values_whose_squares_overflow_are_refused(estimator):
    X = rows()
    X[SITES["west"], 1] *= 1e150
    with pytest.warns(UserWarning, match="values that are too large"):
        found = over_sites(estimator, X)
    labels = np.repeat(["east", "north"], [150, 80])
    assert_same(found, clone(estimator).fit(X[:230], clients=labels))
