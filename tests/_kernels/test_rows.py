"""Products of rows with a basis, about a mean."""

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import peak_bytes
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from rounds_helpers import examples, seeds
from sklearn.base import clone
from sklearn.decomposition import PCA

from fedpca_sklearn import FederatedPowerPCA, StreamingPCA
from fedpca_sklearn._kernels.rows import coordinates_and_norms, scatter_about, scatter_product


@examples
@given(
    seed=seeds,
    n=st.integers(1, 30),
    d=st.integers(1, 9),
    k=st.integers(0, 4),
    weighted=st.booleans(),
    kind=st.sampled_from([np.asarray, sp.csr_array, sp.csr_matrix, sp.csc_array]),
    dtype=st.sampled_from([np.float64, np.float32, np.int64]),
)
def test_scatter_product_is_the_product_with_the_scatter(seed, n, d, k, weighted, kind, dtype):
    rng = np.random.default_rng(seed)
    X = (4 * rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.6)).astype(dtype)
    mean, V = rng.standard_normal(d), rng.standard_normal((k, d))
    w = rng.random(n) if weighted else None
    Z = X - mean
    want = V @ Z.T @ np.diag(np.ones(n) if w is None else w) @ Z
    got = scatter_product(kind(X), mean, V, w)
    assert type(got) is np.ndarray
    assert got.dtype == np.float64
    assert_allclose(got, want, atol=1e-11 * max(1, np.abs(want).max(initial=0)))


@pytest.mark.parametrize("weighted", [False, True])
def test_scatter_product_goes_through_large_rows_in_blocks(weighted):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1500, 400))  # more than two blocks of 2^18 entries
    w = rng.random(1500) if weighted else None
    mean, V = X.mean(axis=0), rng.standard_normal((2, 400))
    Z = X - mean
    want = (V @ Z.T if w is None else V @ Z.T * w) @ Z
    assert_allclose(scatter_product(X, mean, V, w), want, rtol=1e-10, atol=1e-8)
    # a block and its products, not a centred copy of the rows
    assert peak_bytes(lambda: scatter_product(X, mean, V, w)) < 0.7 * X.nbytes


def test_scatter_product_does_not_cancel_at_a_large_mean():
    X = np.random.default_rng(0).integers(-4, 5, (50, 6)).astype(float)
    mean, V = np.full(6, 2.0**30), np.eye(6)[:2]
    assert_allclose(scatter_product(X + mean, mean, V), V @ X.T @ X, rtol=1e-12)


def rows_with_times(n=200):
    """Sparse rows: counts, and a column of times, seconds since 1970, which has no zeros."""
    rng = np.random.default_rng(0)
    X = rng.poisson(0.5, (n, 6)).astype(np.float64)
    X[:, 2] = 1.7e9 + rng.integers(0, 1_000, n)
    return X, sp.csr_array(X)


@pytest.mark.parametrize("kind", [sp.csr_array, sp.csr_matrix, sp.csc_array])
@pytest.mark.parametrize("scale", [None, np.arange(1.0, 7.0)])
def test_norms_of_sparse_rows_far_from_the_origin(kind, scale):
    X, sparse = rows_with_times()
    V, norms = np.eye(6)[[2, 0]], np.empty(len(X))
    Z = X - X.mean(axis=0) if scale is None else (X - X.mean(axis=0)) / scale
    got = coordinates_and_norms(kind(sparse), V, X.mean(axis=0), norms, scale)
    assert_allclose(got, Z @ V.T, atol=1e-9)
    assert_allclose(norms, (Z**2).sum(axis=1), rtol=1e-9)
    assert_allclose(
        scatter_about(kind(sparse), X.mean(axis=0), None),
        (Z**2).sum() if scale is None else ((Z * scale) ** 2).sum(),
    )


def test_likelihoods_of_sparse_rows_with_a_column_of_times():
    X, sparse = rows_with_times()
    pca = StreamingPCA(2).fit(X)
    expected = PCA(2, svd_solver="full").fit(X).score_samples(X)
    assert_allclose(pca.score_samples(sparse), expected, rtol=1e-6)
    power = FederatedPowerPCA(2, random_state=0)
    noise = [clone(power).fit(rows).noise_variance_ for rows in (sparse, X)]
    assert_allclose(*noise, rtol=1e-4)  # products round to 1.7e9 eps of 290
    scaled = StreamingPCA(2, scale=True).fit(sparse.astype(np.float32))
    assert scaled.transform(sparse.astype(np.float32)).dtype == np.float32


@pytest.mark.parametrize("kind", ["full at first", "full after", "full", "stored twice"])
def test_sparse_rows_are_centred_whatever_a_few_of_them_tell(kind):
    rng = np.random.default_rng(0)
    X = rng.poisson(0.5, (300, 6)).astype(np.float64)
    rows = {"full at first": slice(0, 100), "full after": slice(40, None)}.get(kind, slice(None))
    X[:, 4] = 0
    X[rows, 4] = 1e3 + rng.random(len(X[rows]))
    sparse = sp.csr_array(X)
    if kind == "stored twice":  # in halves
        parts = (np.repeat(a, 2) for a in (sparse.data / 2, sparse.indices))
        sparse = sp.csr_array((*parts, 2 * sparse.indptr), X.shape)
        assert sparse.nnz > np.count_nonzero(X)
    mean, V, norms = X.mean(axis=0), np.linalg.qr(rng.standard_normal((6, 2)))[0].T, np.empty(300)
    Z = X - mean
    before = sparse.data.copy()
    assert_allclose(coordinates_and_norms(sparse, V, mean, norms), Z @ V.T, atol=1e-9)
    assert_allclose(norms, (Z**2).sum(axis=1), rtol=1e-9)
    assert_allclose(coordinates_and_norms(sparse, V, mean), Z @ V.T, atol=1e-9)
    assert_allclose(scatter_about(sparse, mean, None), (Z**2).sum())
    assert_allclose(sparse.data, before, rtol=0)
