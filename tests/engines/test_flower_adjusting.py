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

from fedpca_sklearn import DistributedPCA, FederatedPCA, make_power_law, subspace_distance
from fedpca_sklearn.engines.flower import SecureAggregation, SiteRows, partial_fit_sites

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


def test_secure_sums_are_refused():
    with pytest.raises(ValueError, match="scale must be False and partial_out None"):
        run(FederatedPCA(2, scale=True), FRAMES, secure=SecureAggregation(threshold=2))
