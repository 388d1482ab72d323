"""Scaling and confounders over Flower: the numbers of one process, and of scikit-learn."""

import os

import numpy as np
import pandas as pd
import pytest

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")

from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import StandardScaler
from test_flower import grid_of, run

from fedpca_sklearn import (
    AnalyzeGauss,
    DistributedPCA,
    FederatedPCA,
    make_power_law,
    subspace_distance,
)
from fedpca_sklearn.engines import _secure_fits
from fedpca_sklearn.engines.flower import (
    SecureAggregation,
    SiteRows,
    fit_sites,
    partial_fit_sites,
)

rng = np.random.default_rng(0)
X = (rng.standard_normal((120, 6)) @ rng.standard_normal((6, 6)) + 1) * 10.0 ** np.arange(-6, 6, 2)
NAMES = ["age", *"abcde"]
FRAMES = {
    site: pd.DataFrame(rows, columns=NAMES)
    for site, rows in zip(["east", "north", "west"], np.split(X, [30, 70]), strict=True)
}
LABELS = np.repeat(list(FRAMES), [30, 40, 50])


@pytest.mark.parametrize("kind", [FederatedPCA, DistributedPCA])
def test_the_numbers_of_one_process_and_of_pooled_rows(kind):
    pca = kind(2, scale=True, partial_out=["age"])
    fitted = run(pca, FRAMES)
    alone = kind(2, scale=True, partial_out=0).fit(X, clients=LABELS)
    np.testing.assert_allclose(fitted.components_, alone.components_, atol=1e-10)
    Y = X[:, 1:] - LinearRegression().fit(X[:, :1] * 1e6, X[:, 1:]).predict(X[:, :1] * 1e6)
    scaler = StandardScaler().fit(Y)
    _, s, V = np.linalg.svd(scaler.transform(Y), full_matrices=False)
    np.testing.assert_allclose(fitted.scale_, scaler.scale_, rtol=1e-10)
    np.testing.assert_allclose(fitted.explained_variance_, s[:2] ** 2 / 119, rtol=1e-10)
    assert subspace_distance(fitted.components_, V[:2]) < 1e-10
    assert fitted.n_features_in_ == 6
    np.testing.assert_allclose(fitted.transform(FRAMES["west"]), alone.transform(X[70:]), atol=1e-9)


@pytest.mark.parametrize("kind", [FederatedPCA, DistributedPCA])
def test_batches_with_weights(kind):
    weight = rng.integers(1, 4, 120).astype(float)
    streams = {
        site: [
            SiteRows(FRAMES[site].iloc[half], weight[site == LABELS][half])
            for half in (slice(0, 15), slice(15, None))
        ]
        for site in FRAMES
    }
    fitted = kind(2, scale=True, partial_out=["age"])
    grid = grid_of(fitted, streams)
    for _ in range(2):
        fitted = partial_fit_sites(grid, fitted, wait=0)
    alone = kind(2, scale=True, partial_out=0).fit(X, clients=LABELS, sample_weight=weight)
    np.testing.assert_allclose(fitted.explained_variance_, alone.explained_variance_, rtol=1e-10)
    np.testing.assert_allclose(fitted.components_, alone.components_, atol=1e-10)


def test_rounds_over_many_columns():
    Z = make_power_law(300, 300, alpha=1.5, random_state=0) * 10.0 ** rng.uniform(-2, 2, 300)
    parts = {"east": Z[:150], "west": Z[150:]}
    pca = FederatedPCA(3, scale=True, partial_out=[5], n_refinements=3)
    fitted = run(pca, parts)
    Y = np.delete(Z, 5, axis=1)
    Y = StandardScaler().fit_transform(Y - LinearRegression().fit(Z[:, [5]], Y).predict(Z[:, [5]]))
    V = np.linalg.svd(Y, full_matrices=False)[2][:3]
    assert subspace_distance(fitted.components_, V) < 1e-5
    assert fitted.n_refinements_ == 3


# -------------------------------------------------------------------- by secure sums

SECURE = SecureAggregation(threshold=2)
UNITS = 2.0 ** np.array([-20, -14, -7, 0, 7, 14])


def secure_fit(estimator, parts=FRAMES, spoil=None, secure=SECURE, **of_site):
    grid = grid_of(estimator, parts, spoil, secure=secure, **of_site)
    return fit_sites(grid, estimator, wait=0, secure=secure)


def scaled(rows):
    scaler = StandardScaler().fit(rows)
    _, s, V = np.linalg.svd(scaler.transform(rows), full_matrices=False)
    return scaler, s**2 / (len(rows) - 1), V


def test_secure_sums_scale_as_pooled_rows_are():
    """Columns of 1e-6 beside 1e4, of which second moments as they are would leave no digit."""
    came = []

    def note(site, message, reply):
        came.extend(reply.content.array_records["arrays"])
        return reply

    fitted = secure_fit(FederatedPCA(2, scale=True), spoil=note)
    assert set(came) == {"bounds", "masked"}
    scaler, variances, V = scaled(X)
    np.testing.assert_allclose(fitted.scale_, scaler.scale_, rtol=1e-9)
    np.testing.assert_allclose(fitted.explained_variance_, variances[:2], rtol=1e-9)
    np.testing.assert_allclose((fitted.mean_ - scaler.mean_) / scaler.scale_, 0, atol=1e-9)
    error = subspace_distance(fitted.components_, V[:2])
    assert error < 1e-9
    assert error <= fitted.subspace_error_bound_ < 1e-3
    low, high = fitted.explained_variance_interval_.T
    assert ((low <= variances[:2]) & (variances[:2] <= high)).all()
    assert fitted.transform(FRAMES["west"]).shape == (50, 2)


def test_secure_sums_take_confounders_out():
    fitted = secure_fit(DistributedPCA(2, scale=True, partial_out=["age"]))
    ages = X[:, :1] * 1e6
    Y = X[:, 1:] - LinearRegression().fit(ages, X[:, 1:]).predict(ages)
    scaler, variances, V = scaled(Y)
    np.testing.assert_allclose(fitted.scale_, scaler.scale_, rtol=1e-8)
    np.testing.assert_allclose(fitted.explained_variance_, variances[:2], rtol=1e-8)
    assert subspace_distance(fitted.components_, V[:2]) < 1e-8
    plain = secure_fit(FederatedPCA(2, partial_out=["age"]))
    variances = np.linalg.svd(Y - Y.mean(axis=0), compute_uv=False) ** 2 / 119
    np.testing.assert_allclose(plain.explained_variance_, variances[:2], rtol=1e-8)
    assert plain.subspace_error_bound_ == np.inf  # nothing is said of effects


def test_secure_sums_of_columns_without_variance():
    """Constant ones, also far from zero, are not blown up; few bits serve."""
    Z = np.column_stack([X[:, 2:], np.full(120, 7.0), np.zeros(120), np.full(120, 1e8)])
    parts = {site: Z[site == LABELS] for site in FRAMES}
    for secure, tol in (
        (SECURE, 1e-6),
        (SecureAggregation(threshold=2, bits=24), 1e-4),
    ):
        pca = secure_fit(FederatedPCA(2, scale=True), parts, secure=secure)
        expected = FederatedPCA(2, scale=True).fit(Z)
        np.testing.assert_array_equal(pca.scale_[4:], 1.0)
        np.testing.assert_allclose(pca.explained_variance_, expected.explained_variance_, rtol=tol)
        error = subspace_distance(pca.components_, expected.components_)
        assert error < tol
        assert error <= pca.subspace_error_bound_
    constant = {site: rows * 0 + 3 for site, rows in parts.items()}
    fitted = secure_fit(FederatedPCA(2, scale=True), constant)
    assert not fitted.explained_variance_.any()
    np.testing.assert_array_equal(fitted.scale_, 1.0)


def test_columns_of_which_sums_tell_too_little():
    """In between constant and told: an error that names the column, and no number."""
    Z = X[:, 2:].copy()
    for noise, pca, why in (
        (0.0, DistributedPCA(2, scale=True, partial_out=[0]), "leaves less of column 1"),
        (1e-6, FederatedPCA(2, scale=True, partial_out=[0]), "leaves less of column 1"),
    ):
        Z[:, 1] = Z[:, 0] + noise * rng.standard_normal(120) * Z[:, 0].std()
        with pytest.raises(ValueError, match=why):
            secure_fit(pca, {site: Z[site == LABELS] for site in FRAMES})


def test_a_site_that_is_lost_between_secure_sums():
    gone = []

    def lost(site, message, reply):
        if site == "west" and "second_moments" in message.metadata.message_type:
            gone.append(site)
        return None if site == "west" and gone else reply

    with pytest.warns(UserWarning, match="Fitted without site 'west'"):
        fitted = secure_fit(FederatedPCA(2, scale=True), spoil=lost)
    _, variances, V = scaled(X[:70])
    np.testing.assert_allclose(fitted.explained_variance_, variances[:2], rtol=1e-9)
    assert subspace_distance(fitted.components_, V[:2]) < 1e-9


def test_what_secure_sums_do_not_scale(monkeypatch):
    monkeypatch.setattr(_secure_fits, "MAX_FEATURES", 5)
    for estimator in (FederatedPCA(2, scale=True, n_refinements=1), DistributedPCA(2, scale=True)):
        with pytest.raises(ValueError, match=r"take up to 5 features, got 6.*FederatedScaler"):
            secure_fit(estimator)
    private = FederatedPCA(2, scale=True, mechanism=AnalyzeGauss(1.0, 1e-5, 1.0))
    with pytest.raises(ValueError, match=r"mechanism must be None with scale=True.*are public"):
        private.fit(X)
