"""PCA of scaled rows, and of what confounders leave, without pooling: against scikit-learn."""

import numpy as np
import pandas as pd
import pytest
from helpers import sine
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedpca_sklearn import (
    DistributedPCA,
    FederatedPCA,
    LoadingsDisplay,
    NoiseAwareMerge,
    ProjectionAverage,
    RobustMerge,
    StreamingPCA,
    make_power_law,
)

ESTIMATORS = [StreamingPCA, FederatedPCA, DistributedPCA]
each_kind = pytest.mark.parametrize("kind", ESTIMATORS)
D = 8


def rows_of(seed=0, n=120, spread=0.0, mean=0.0):
    """Correlated columns with deviations from 10^-spread to 10^spread, one of them constant."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, D)) @ (rng.standard_normal((D, D)) + 2 * np.eye(D)) + mean
    X[:, 3] = 5.0
    return X * 10.0 ** rng.permutation(np.linspace(-spread, spread, D))


def left_by(X, confounders):
    """Residuals of least squares with an intercept, by scikit-learn; X itself for none."""
    if not confounders:
        return X
    C, Y = X[:, confounders], np.delete(X, confounders, axis=1)
    size = C.std(axis=0)
    C = (C - C.mean(axis=0)) / np.where(size > 0, size, 1)
    return Y - LinearRegression().fit(C, Y).predict(C)


def pooled(Y, k=3, scale=True):
    return make_pipeline(StandardScaler(with_std=scale), PCA(k, svd_solver="full")).fit(Y)


def assert_pooled(pca, X, confounders=(), scale=True, tol=1e-10):
    Y = left_by(X, list(confounders))
    expected = pooled(Y, pca.n_components_, scale)
    for name in ("explained_variance_", "explained_variance_ratio_"):
        assert_allclose(getattr(pca, name), getattr(expected[-1], name), rtol=tol)
    assert sine(pca.components_, expected[-1].components_) < tol
    Z = expected.transform(Y)
    signs = np.sign(np.einsum("ij,ij->j", Z, pca.transform(X)))
    assert_allclose(pca.transform(X), Z * signs, atol=100 * tol)


# ------------------------------------------------------------------------------ exact summaries


@given(
    seed=st.integers(0, 99),
    labels=st.lists(st.integers(0, 4), min_size=12, max_size=40),
    spread=st.sampled_from([0.0, 2.0, 8.0]),
    mean=st.sampled_from([0.0, 1e5]),
    confounders=st.sampled_from([None, [1], [6, 0]]),
    kind=st.sampled_from(ESTIMATORS),
    weighted=st.booleans(),
    calls=st.integers(1, 5),
)
@settings(max_examples=40, deadline=None)
def test_any_clients_scales_and_means(
    seed, labels, spread, mean, confounders, kind, weighted, calls
):
    X, rng = rows_of(seed, len(labels), spread, mean), np.random.default_rng(seed)
    w = rng.integers(1, 4, len(X)) if weighted else np.ones(len(X), int)
    pca = kind(3, scale=True, partial_out=confounders)
    for at in np.array_split(np.arange(len(X)), calls):
        more = {} if kind is StreamingPCA else {"clients": np.array(labels)[at]}
        pca.partial_fit(X[at], sample_weight=w[at] if weighted else None, **more)
    rows = np.repeat(X, w, axis=0)
    assert_pooled(pca, rows, confounders or ())
    scaler = StandardScaler().fit(left_by(rows, confounders))
    assert_allclose(pca.scale_, scaler.scale_, rtol=1e-10)


@pytest.mark.parametrize("scale", [False, True])
def test_of_many_columns_each_has_a_noise_of_its_own_given_the_confounders(scale):
    rng, d = np.random.default_rng(0), 301
    X = 3 + rng.standard_normal((900, 6)) @ rng.standard_normal((6, d))
    X += rng.standard_normal(X.shape) * np.linspace(0.5, 2, d)
    pca = StreamingPCA(3, scale=scale, partial_out=[0]).fit(X)
    Y = left_by(X, [0]) - left_by(X, [0]).mean(axis=0)
    sizes = Y.std(axis=0) if scale else np.ones(d - 1)
    C = np.cov(Y / sizes, rowvar=False)
    lam, W = np.linalg.eigh(C)
    low = (W[:, -3:] * lam[-3:]) @ W[:, -3:].T
    normal = multivariate_normal(np.zeros(d - 1), low + np.diag(np.diag(C - low)))
    expected = normal.logpdf(Y / sizes) - np.log(sizes).sum()
    assert_allclose(pca.score_samples(X), expected, atol=1e-9)


@pytest.mark.parametrize("confounders", [None, [4, 1]])
@pytest.mark.parametrize("scale", [False, True])
def test_the_model_of_the_rows(scale, confounders):
    X = rows_of(6)[:, [0, 1, 2, 4, 5, 6, 7]] * [1, 50, 3, 20, 1, 0.1, 5]
    pca = FederatedPCA(3, scale=scale, partial_out=confounders).fit(X)
    Y, C = left_by(X, confounders), pca.get_covariance()
    normal = multivariate_normal(np.zeros(len(C)), C)
    assert_allclose(pca.score_samples(X), normal.logpdf(Y - Y.mean(axis=0)))
    assert_allclose(pca.get_precision() @ C, np.eye(len(C)), atol=1e-8)
    of_scaled = pooled(Y, scale=scale)
    if scale:  # a pipeline scores the scaled rows
        shift = np.log(pca.scale_).sum()
        assert_allclose(pca.score_samples(X), of_scaled.score_samples(Y) - shift)
    Z = pca.transform(X)
    back = pca.inverse_transform(Z)
    assert_allclose(pca.transform(back), Z, atol=1e-10)
    others = np.delete(np.arange(7), confounders or [])
    expected = of_scaled.inverse_transform(of_scaled.transform(Y))
    if confounders:
        expected += X[:, others].mean(axis=0)
        assert_allclose(back[:, confounders], np.tile(X[:, confounders].mean(0), (120, 1)))
        effects = LinearRegression().fit(X[:, confounders], X[:, others]).coef_.T
        assert_allclose(pca.confounder_effects_, effects)
        assert_array_equal(pca.confounders_, confounders)
    assert_allclose(back[:, others], expected)
    assert pca.n_features_in_ == len(pca.mean_) == 7
    assert pca.components_.shape == (3, len(others))
    whitened = StreamingPCA(3, whiten=True, scale=scale, partial_out=confounders).fit(X)
    Z = whitened.transform(X)
    assert_allclose(Z.var(axis=0, ddof=1), 1)
    assert_allclose(whitened.inverse_transform(Z), back, atol=1e-9)


def test_names_of_confounders_and_a_pipeline_of_scikit_learn():
    X = pd.DataFrame(rows_of(8, mean=3.0), columns=[f"c{i}" for i in range(D)])
    for kind in ESTIMATORS:
        by_name = kind(3, partial_out=["c6", "c1"], scale=True).fit(X)
        assert_array_equal(by_name.confounders_, [6, 1])
        by_place = kind(3, partial_out=(-2, 1), scale=True).fit(X.to_numpy())
        assert_allclose(by_name.components_, by_place.components_, atol=1e-12)
    sites = [StreamingPCA(3).fit(X[:50]).subspace_, StreamingPCA(3).fit(X[50:]).subspace_]
    of_files = FederatedPCA.from_subspaces(sites, 3, partial_out="c1")
    assert_array_equal(of_files.confounders_, [1])
    assert list(of_files.get_feature_names_out()) == [f"federatedpca{i}" for i in range(3)]
    assert LoadingsDisplay.from_estimator(of_files).names == [f"c{i}" for i in range(D) if i != 1]
    with pytest.raises(ValueError, match="has no counterpart in scikit-learn"):
        of_files.to_sklearn()
    pca, scaler = FederatedPCA(3, scale=True).fit(X), StandardScaler().fit(X)
    exported, Z = pca.to_sklearn(), pca.transform(X)
    assert_allclose(exported.transform(X), Z, atol=1e-12)
    assert_allclose(exported.inverse_transform(Z), pca.inverse_transform(Z), atol=1e-12)
    assert_allclose(exported.score(X), make_pipeline(StandardScaler(), PCA(3)).fit(X).score(X))
    assert_allclose(exported[0].var_, scaler.var_, atol=1e-20)


@pytest.mark.parametrize("merge", [RobustMerge(), NoiseAwareMerge(), ProjectionAverage()])
def test_merges_that_judge_sites_judge_scaled_rows(merge):
    X, clients = rows_of(16, spread=1.5, mean=3.0), np.arange(120) % 5
    pca = FederatedPCA(2, scale=True, merge=merge).fit(X, clients=clients)
    of_scaled = FederatedPCA(2, merge=merge).fit(StandardScaler().fit_transform(X), clients=clients)
    assert sine(pca.components_, of_scaled.components_) < 1e-9
    assert_allclose(pca.explained_variance_, of_scaled.explained_variance_)


def test_columns_that_come_late_and_rows_without_deviation():
    late = rows_of(19)
    late[:50, 1] = 2.0  # constant so far
    late[50:, 1] *= 1e9
    for size in (1, 10, 50):
        batches = [late[i : i + size] for i in range(0, 120, size)]
        assert_pooled(StreamingPCA(3, scale=True).fit(iter(batches)), late)
    pca = StreamingPCA(2, scale=True).fit(late[:1])
    assert_array_equal(pca.scale_, 1.0)
    assert_array_equal(pca.transform(late[:1]), 0.0)
    pca = FederatedPCA(scale=True, partial_out=[0]).fit(late[:2])
    assert_array_equal(pca.explained_variance_, 0.0)
    assert_array_equal(pca.refine(late[:2]).explained_variance_interval_, 0.0)
    pca = StreamingPCA(3, scale=True).fit(late)
    bound = pca.subspace_error_bound_
    assert pca.set_params(scale=False).subspace_error_bound_ == bound  # of what was fitted
    assert not hasattr(pca.fit(late), "scale_")


@each_kind
def test_what_rounding_leaves_of_explained_columns_is_not_scaled_up(kind):
    """Times in seconds are a thousand and more deviations from zero, and so are their sums."""
    rng = np.random.default_rng(0)
    time, signal = rng.standard_normal(60), rng.standard_normal((60, 2)) * [1.0, 0.5]
    explained = np.outer(time, [1.0, 1.0, 3.0]) + np.array([1e6, 0.0, -1e6])
    X = np.column_stack([time + 1e6, explained, signal])
    pca = kind(2, scale=True, partial_out=[0]).fit(X)
    assert_array_equal(pca.scale_[:3], 1)
    expected = StandardScaler().fit_transform(left_by(X[:, [0, 4, 5]], [0]))
    assert_allclose(pca.singular_values_, np.linalg.svd(expected, compute_uv=False), rtol=1e-8)
    assert_allclose(pca.components_[:, :3], 0, atol=1e-7)


# ------------------------------------------------------------------------------ rows that are cut


@pytest.mark.parametrize("known", [False, True])
def test_products_of_rows_that_sites_have_cut(known):
    """Sites that know of no confounder cut it; the first round makes its effects exact."""
    rng = np.random.default_rng(17)
    X = make_power_law(300, 280, alpha=1.5, random_state=0) * 10.0 ** rng.uniform(-2, 2, 280)
    parts = np.split(X, 3)
    X[:, 7] += 0.1 * X[:, 8]
    site = StreamingPCA(3, scale=True, oversampling=9, partial_out=[7] if known else None)
    sites = [site.fit(rows).subspace_ for rows in parts]
    pca = FederatedPCA.from_subspaces(sites, 3, scale=True, partial_out=[7])
    n_kept = pca.subspace_.n_components
    for _ in range(3):
        pca.refine(X, clients=np.repeat([0, 1, 2], 100))
        assert not known or pca.subspace_.n_components == n_kept
    Y = StandardScaler().fit_transform(left_by(X, [7]))
    s, V = np.linalg.svd(Y, full_matrices=False)[1:]
    assert sine(pca.components_, V[:3]) < min(1e-4, pca.subspace_error_bound_)
    low, high = pca.explained_variance_interval_.T
    slack = 1e-6 if known else 1e-12  # effects from what sites have kept, or from a round
    assert (low <= s[:3] ** 2 / 299 * (1 + slack)).all()
    assert (high >= s[:3] ** 2 / 299 * (1 - slack)).all()
    effects = LinearRegression().fit(X[:, [7]], np.delete(X, 7, axis=1)).coef_.T
    error = X[:, 7].std() * (pca.confounder_effects_ - effects) / np.delete(X, 7, axis=1).std(0)
    assert np.abs(error).max() < slack


@pytest.mark.parametrize(("size", "d"), [(1.0, 20), (1e2, 300), (1e4, 20), (1e4, 300)])
def test_the_bound_knows_the_rounding_of_what_confounders_explain(size, d):
    rng = np.random.default_rng(0)
    C = rng.standard_normal((900, 2))
    rest = rng.standard_normal((900, 4)) @ rng.standard_normal((4, d - 2))
    X = np.hstack([C, size * C @ rng.standard_normal((2, d - 2)) + rest])
    Q = np.linalg.qr(X[:, :2] - X[:, :2].mean(axis=0))[0]
    left = X[:, 2:] - X[:, 2:].mean(axis=0)
    for _ in range(3):
        left -= Q @ (Q.T @ left)
    V = np.linalg.svd(left, full_matrices=False)[2][:3]
    for model in (StreamingPCA(3, partial_out=[0, 1]), FederatedPCA(3, partial_out=[0, 1])):
        error = sine(model.fit(X).components_, V)
        assert error <= model.subspace_error_bound_ < 1e-4
