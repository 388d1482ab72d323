"""Rows with missing entries at clients: filled in by the subspace of all, over rounds."""

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import sine
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from pair_helpers import rows_with_holes

from fedpca_sklearn import (
    AvailablePairs,
    ConditionalFill,
    FederatedPCA,
    StreamingPCA,
    SubspaceMerge,
    excess_error,
    make_power_law,
)

examples = settings(max_examples=15, derandomize=True, deadline=None, database=None)


def by_definition(X, k, n_rounds, weight=None):
    """Mean, eigenvalues, directions and noise of all rows, filled in row by row.

    The first time by the means of what is there, then by the normal distribution with the leading
    eigenpairs and one variance elsewhere: that of what is left of the entries that are there, which
    are fewer than all by the missing ones and the coordinates of each row.
    """
    X = np.asarray(X, np.float64)
    X = X if weight is None else np.repeat(X, weight, axis=0)
    n, d = X.shape
    lost = np.isnan(X)
    origin = np.nanmean(X, axis=0)
    filled = np.where(lost, 0.0, X - origin)
    filled = np.where(lost, filled.sum(axis=0) / (~lost).sum(axis=0), filled)
    mean, C = None, None
    for number in range(n_rounds + 1):
        if number:
            for row, gone in zip(filled, lost, strict=True):
                there = ~gone
                b = np.linalg.solve(C[np.ix_(there, there)], (row - mean)[there])
                row[gone] = mean[gone] + C[np.ix_(gone, there)] @ b
        mean = filled.mean(axis=0)
        S = (filled - mean).T @ (filled - mean)
        found, W = np.linalg.eigh(S)
        values, V = found[::-1][:k] / (n - 1), W[:, ::-1].T[:k]
        free = n * (d - k) - lost.sum()
        square = (np.trace(S) - found[::-1][:k].sum()) / free
        total = np.trace(S) + square * lost.sum()
        noise = (total / (n - 1) - values.sum()) / (d - k)
        C = (V.T * (values - noise)) @ V + noise * np.eye(d)
    return origin + mean, values, V, noise, total / (n - 1)


def assert_is(pca, expected, tol=1e-9):
    mean, values, V, noise, total = expected
    scale = np.sqrt(values[0])
    assert_allclose(pca.mean_, mean, atol=tol * scale)
    assert_allclose(pca.explained_variance_, values, rtol=tol, atol=tol * values[0])
    assert_allclose(pca.explained_variance_ratio_, values / total, rtol=tol, atol=tol)
    assert_allclose(pca.noise_variance_, noise, rtol=tol, atol=tol * values[0])
    if values[-1] > 1.2 * noise:
        assert sine(pca.components_, V) < 100 * tol


@examples
@given(
    seed=st.integers(0, 10**6),
    sizes=st.lists(st.integers(1, 25), min_size=1, max_size=6),
    share=st.sampled_from([0.0, 0.1, 0.3]),
    weighted=st.booleans(),
    n_rounds=st.integers(1, 3),
)
def test_equal_to_the_definition_on_all_rows(seed, sizes, share, weighted, n_rounds):
    n, d, k = sum(sizes) + 40, 7, 2
    X = rows_with_holes(seed, n, d, share, mean=3.0)
    rng = np.random.default_rng(seed)
    clients = rng.permutation(np.repeat(np.arange(len(sizes) + 1), [*sizes, 40]))
    weight = rng.integers(1, 4, n) if weighted else None
    pca = FederatedPCA(k, missing=ConditionalFill(n_rounds=n_rounds))
    pca.fit(X, clients=clients, sample_weight=weight)
    assert_is(pca, by_definition(X, k, n_rounds, weight))


def low_rank(n=400, d=12, k=3, mean=0.0, share=0.1):
    rng = np.random.default_rng(0)
    L = rng.standard_normal((n, k)) @ rng.standard_normal((k, d)) + mean * (1 + rng.random(d))
    return L, np.where(rng.random(L.shape) < share, np.nan, L)


@pytest.mark.parametrize("mean", [0.0, 1e6])
def test_rows_of_low_rank_are_found_to_rounding_by_many_rounds(mean):
    L, X = low_rank(mean=mean)
    truth = np.linalg.svd(L - L.mean(axis=0), full_matrices=False)[2][:3]
    errors = []
    for n_rounds in (2, 4, 40):
        pca = FederatedPCA(3, missing=ConditionalFill(n_rounds=n_rounds))
        errors.append(sine(pca.fit(X, clients=np.arange(400) % 5).components_, truth))
    assert errors[0] > 2 * errors[1]
    assert errors[-1] < 1e-8
    assert np.abs(pca.impute(X) - L).max() < 1e-7


def test_two_sites_that_measure_other_columns():
    """No pair of their own columns is ever there, but the subspace says what it is."""
    L, X = low_rank(n=600, share=0.0, mean=5.0)
    clients = np.arange(600) // 300
    X[clients == 0, :3], X[clients == 1, -3:] = np.nan, np.nan
    with pytest.raises(ValueError, match="observed together in 0 rows"):
        FederatedPCA(3, missing=AvailablePairs()).fit(X, clients=clients)
    pca = FederatedPCA(3, missing=ConditionalFill(n_rounds=60)).fit(X, clients=clients)
    truth = np.linalg.svd(L - L.mean(axis=0), full_matrices=False)[2][:3]
    assert sine(pca.components_, truth) < 1e-3
    X[:, 5] = np.nan
    with pytest.raises(ValueError, match="column 5 is observed in 0 rows"):
        pca.fit(X, clients=clients)


def test_above_the_exact_dimension_and_beside_mean_imputation():
    F = make_power_law(1500, 300, alpha=1.5, random_state=0)
    X = np.where(np.random.default_rng(0).random(F.shape) < 0.2, np.nan, F)
    clients = np.arange(1500) % 6
    whole = FederatedPCA(10).fit(F, clients=clients)
    means = FederatedPCA(10).fit(np.where(np.isnan(X), np.nanmean(X, axis=0), X), clients=clients)
    pca = FederatedPCA(10, missing=ConditionalFill()).fit(X, clients=clients)
    assert_allclose(pca.explained_variance_[0], whole.explained_variance_[0], rtol=0.02)
    assert means.explained_variance_[0] < 0.7 * whole.explained_variance_[0]
    assert_allclose(pca.noise_variance_, whole.noise_variance_, rtol=0.02)
    excess, by_means = (excess_error(F, p.components_, p.mean_) for p in (pca, means))
    assert excess < 0.3 * by_means
    assert pca.subspace_error_bound_ == np.inf


def test_what_is_sent():
    X, k, d, s = low_rank()[1], 3, 12, 5
    pca = FederatedPCA(k, missing=ConditionalFill(n_rounds=2)).fit(X, clients=np.arange(400) % s)
    log = pca.communication_
    assert log.rounds == 6  # models that go down count as well
    summary = d * (d + 1) // 2 + 2 * d + 2  # all directions, up to 256 features
    assert log.floats_up == s * (2 * d + 3 * summary)
    assert log.floats_down == s * (d + 2 * (k * d + d + k + 1))


def test_containers_and_sub_estimators():
    X = low_rank(mean=2.0)[1]
    clients = np.arange(400) % 5
    fill = ConditionalFill()
    pca = FederatedPCA(3, missing=fill).fit(X, clients=clients)
    sparse = FederatedPCA(3, missing=fill).fit(sp.csr_array(X), clients=clients)
    assert_allclose(sparse.components_, pca.components_, atol=1e-10)
    single = FederatedPCA(3, missing=fill).fit(X.astype(np.float32), clients=clients)
    assert single.components_.dtype == np.float32
    assert_allclose(single.explained_variance_, pca.explained_variance_, rtol=1e-4)
    tree = FederatedPCA(
        3, missing=fill, estimator=StreamingPCA(3), merge=SubspaceMerge(fan_in=2), n_jobs=2
    ).fit(X, clients=clients)
    assert_allclose(tree.components_, pca.components_, atol=1e-9)
    assert np.isfinite(pca.transform(X)).all()
    assert list(pca.estimators_) == pca.clients_


def test_what_is_refused():
    X = low_rank()[1]
    with pytest.raises(ValueError, match=r"n_components must be .* got None"):
        FederatedPCA(missing=ConditionalFill()).fit(X)
    with pytest.raises(ValueError, match=r"n_components=11 .* too few entries"):
        FederatedPCA(11, missing=ConditionalFill()).fit(X)
    with pytest.raises(ValueError, match="n_rounds"):
        FederatedPCA(2, missing=ConditionalFill(n_rounds=0)).fit(X)
    with pytest.raises(ValueError, match="tol must be None"):
        FederatedPCA(2, missing=ConditionalFill(), tol=0.1).fit(X)
    bad = X.copy()
    bad[0, 0] = np.inf
    with pytest.raises(ValueError, match=r"Client 0.*infinity"):
        FederatedPCA(2, missing=ConditionalFill()).fit(bad)
    pca = FederatedPCA(2, missing=ConditionalFill()).fit(X)
    assert not hasattr(pca, "partial_fit")
    with pytest.raises(ValueError, match="remove"):
        pca.remove(0)
    with pytest.raises(ValueError, match="cannot be refined"):
        pca.refine(X)
    with pytest.raises(ValueError, match="missing must not change"):
        pca.set_params(missing=None).partial_fit(np.nan_to_num(X))
    da = pytest.importorskip("dask.array")
    with pytest.raises(TypeError, match="dask"):
        FederatedPCA(2, missing=ConditionalFill()).fit(da.from_array(X, chunks=(100, 12)))
