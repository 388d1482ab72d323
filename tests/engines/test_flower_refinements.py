"""`FederatedPCA` over Flower, refined by rounds of products with the rows of the sites."""

import os

import numpy as np
import pytest

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")

from test_flower import grid_of, run, without
from test_hostile_server import Site, assert_refused
from test_hostile_sites import arrays, spoiling

from fedpca_sklearn import FederatedPCA, Subspace, make_power_law, subspace_distance
from fedpca_sklearn.engines import _secure_fits
from fedpca_sklearn.engines.flower import SecureAggregation, SiteRows, fit_sites, site_work

X = make_power_law(600, 300, alpha=1.5, random_state=0) + 3.0
PARTS = {"east": X[:150], "north": X[150:400], "west": X[400:]}
LABELS = np.repeat(list(PARTS), [150, 250, 200])
PCA = FederatedPCA(3, n_refinements=3)


def pooled(rows, k=3):
    return np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)[2][:k]


def test_rounds_lead_to_the_pooled_components_as_in_one_process():
    fitted = run(PCA, PARTS)
    assert subspace_distance(fitted.components_, pooled(X)) < 1e-6
    assert subspace_distance(run(FederatedPCA(3), PARTS).components_, pooled(X)) > 1e-4
    expected = PCA.fit(X, clients=LABELS)
    assert subspace_distance(fitted.components_, expected.components_) < 1e-9
    assert fitted.n_refinements_ == 3
    np.testing.assert_allclose(
        fitted.subspace_error_bound_, expected.subspace_error_bound_, rtol=1e-3
    )
    assert fitted.communication_.rounds == 3


def test_a_tolerance_and_weights():
    weights = np.random.default_rng(0).integers(1, 4, 600)
    at = np.cumsum([150, 250])
    parts = {s: SiteRows(x, w) for (s, x), w in zip(PARTS.items(), np.split(weights, at))}  # noqa: B905
    fitted = run(FederatedPCA(3, tol=1e-3), parts)
    assert fitted.subspace_error_bound_ <= 1e-3
    assert subspace_distance(fitted.components_, pooled(np.repeat(X, weights, axis=0))) <= 1e-3


def test_a_site_that_is_lost_between_rounds_leaves_no_trace():
    with pytest.warns(UserWarning, match="Fitted without site 'west'"):
        fitted = run(PCA, PARTS, spoil=without("west", "products"))
    assert fitted.clients_ == ["east", "north"]
    assert subspace_distance(fitted.components_, pooled(X[:400])) < 1e-6
    assert fitted.n_samples_ == 400


@pytest.mark.parametrize("at", ["products", "sum", "scatter", "count"])
def test_products_of_other_rows_than_those_of_the_summary_are_left_out(at):
    def change(message, reply):
        numbers = reply.content.array_records["arrays"]["message"].numpy().copy()
        where = {"products": slice(0, 300), "sum": -10, "scatter": -2, "count": -1}[at]
        numbers[where] = numbers[where] * 1.1 + 500
        return arrays(message=numbers)(message, reply)

    with pytest.warns(UserWarning, match="products of other rows than those of its summary"):
        fitted = run(PCA, PARTS, spoil=spoiling(change, kind="products"))
    assert fitted.clients_ == ["east", "north"]
    assert subspace_distance(fitted.components_, pooled(X[:400])) < 1e-6


@pytest.mark.parametrize("at", [0, -10, -2, -1], ids=["products", "sum", "scatter", "count"])
@pytest.mark.parametrize("size", [1e20, 1e150, 1.7e308])
def test_numbers_that_overflow_are_left_out(at, size):
    def change(message, reply):
        numbers = reply.content.array_records["arrays"]["message"].numpy().copy()
        numbers[at] = size
        return arrays(message=numbers)(message, reply)

    with pytest.warns(UserWarning, match="products of other rows than those of its summary"):
        fitted = run(PCA, PARTS, spoil=spoiling(change, kind="products"))
    assert fitted.clients_ == ["east", "north"]


def test_a_server_asks_about_orthonormal_directions_about_one_mean():
    site = Site(PCA, X)
    site.ask("summary")
    mean, V = X.mean(axis=0), np.eye(300)[:20]
    config, found = site.ask("products", mean, V)
    assert "error" not in config
    assert found["message"].shape == (20 * 300 + 302,)
    assert_refused(site, "products", mean + 1, V, why="must stay the same")
    assert_refused(site, "products", mean, 2 * V, why="orthonormal")
    site.ask("summary")
    assert_refused(site, "products", X, V, why="the mean must have shape")
    site.ask("summary")
    assert_refused(site, "products", mean, np.eye(300), why="with k <=")
    assert "products" not in site_work(FederatedPCA(3))


# -------------------------------------------------------------------- by secure sums


def secure_fit(estimator, spoil=None):
    secure = SecureAggregation(threshold=2)
    grid = grid_of(estimator, PARTS, spoil, secure=secure)
    return fit_sites(grid, estimator, wait=0, secure=secure)


@pytest.fixture
def few_features(monkeypatch):
    """More features than second moments are summed of."""
    monkeypatch.setattr(_secure_fits, "MAX_FEATURES", 20)


@pytest.mark.usefixtures("few_features")
def test_secure_sums_refine_random_directions_as_one_process_does():
    came = set()

    def note(site, message, reply):
        came.update(reply.content.array_records["arrays"])
        return reply

    fitted = secure_fit(FederatedPCA(3, n_refinements=3, random_state=0), note)
    assert came == {"bounds", "masked"}
    rng, n = np.random.RandomState(0), fitted.subspace_.n_components
    start = np.linalg.qr(rng.standard_normal((300, n)))[0].T
    scatter = float(np.sum((X - X.mean(axis=0)) ** 2))
    sizes = np.full(n, np.sqrt(scatter / 300))
    subspace = Subspace(start, sizes, X.mean(axis=0), len(X), scatter)
    expected = FederatedPCA.from_subspaces([subspace], 3).refine(X, clients=LABELS, n_rounds=3)
    assert subspace_distance(fitted.components_, expected.components_) < 1e-6
    np.testing.assert_allclose(fitted.explained_variance_, expected.explained_variance_, rtol=1e-6)
    bound = fitted.subspace_error_bound_
    np.testing.assert_allclose(bound, expected.subspace_error_bound_, rtol=1e-3)
    assert subspace_distance(fitted.components_, pooled(X)) <= bound < np.inf
    assert fitted.n_refinements_ == 3


@pytest.mark.usefixtures("few_features")
def test_what_secure_sums_of_many_features_need():
    with pytest.raises(ValueError, match="up to 20 features, got 300"):
        secure_fit(FederatedPCA(3))
    with pytest.raises(ValueError, match=r"n_components must be an integer to refine .* got 0.5"):
        secure_fit(FederatedPCA(0.5, n_refinements=1))


def test_up_to_the_bound_secure_sums_are_exact_and_say_so():
    fitted = secure_fit(FederatedPCA(3, tol=1e-6))
    assert subspace_distance(fitted.components_, pooled(X)) <= fitted.subspace_error_bound_ <= 1e-6
    assert fitted.n_refinements_ == 0


@pytest.mark.parametrize("bits", [22, 50])
@pytest.mark.parametrize("estimator", [FederatedPCA(3), FederatedPCA(3, n_refinements=3)])
def test_a_bound_allows_for_integers(bits, estimator, monkeypatch):
    """Numbers of few bits leave an error, and none that the bound does not cover."""
    if estimator.n_refinements:
        monkeypatch.setattr(_secure_fits, "MAX_FEATURES", 20)
    rows = X[:, :60]
    parts = {site: x[:, :60] for site, x in PARTS.items()}
    secure = SecureAggregation(threshold=2, bits=bits)
    fitted = fit_sites(grid_of(estimator, parts, secure=secure), estimator, wait=0, secure=secure)
    exact = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    error = subspace_distance(fitted.components_, exact[2][:3])
    assert 1e-16 < error <= fitted.subspace_error_bound_ < 1
    low, high = fitted.explained_variance_interval_.T
    variances = exact[1][:3] ** 2 / (len(rows) - 1)
    assert (low <= variances).all()
    assert (variances <= high).all()


def test_names_of_columns_keep_what_is_certain():
    pd = pytest.importorskip("pandas")
    names = [f"feature {i}" for i in range(300)]
    frames = {site: pd.DataFrame(rows, columns=names) for site, rows in PARTS.items()}
    fitted = run(PCA, frames)
    assert fitted.feature_names_in_.tolist() == names
    assert subspace_distance(fitted.components_, pooled(X)) <= fitted.subspace_error_bound_ < 1
