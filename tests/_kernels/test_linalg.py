"""Leading eigenpairs: what numpy finds when it is asked for all of them. Bases are orthonormal."""

import numpy as np
import pytest
from helpers import rows_of_decay
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.decomposition import PCA

from fedpca_sklearn import FederatedPCA, StreamingPCA
from fedpca_sklearn._kernels.linalg import complete_basis, eigh_top

M = 300
MANY_EQUAL = {
    "one level and a zero": np.eye(M) - 1 / M,
    "one level": np.eye(M),
    "two levels": np.diag(1.0 + (np.arange(M) > 200)),
    "nearly one level": np.eye(M) - 1 / M + np.diag(1e-15 * np.arange(M)),
}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("count", [1, 3, 10])
@pytest.mark.parametrize("S", MANY_EQUAL.values(), ids=MANY_EQUAL)
def test_equal_eigenvalues_are_all_found(S, count, overwrite):
    """LAPACK's bisection finds none, or some, of the last eigenvalues of I - 1/m."""
    lower = np.tril(S) + np.triu(np.full((M, M), np.nan), 1)  # only one triangle is read
    lam, W = eigh_top(np.asfortranarray(lower), count, overwrite=overwrite)
    lam, W = lam[:count], W[:, :count]
    assert_allclose(lam, np.linalg.eigvalsh(S)[::-1][:count], atol=1e-13)
    assert_allclose(S @ W, W * lam, atol=1e-13)
    assert_allclose(W.T @ W, np.eye(count), atol=1e-13)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n_rows", [3, 7, 11, 60])
@pytest.mark.parametrize("sizes", [[60], [30, 30], [2] * 30, [1, 2, 3, 54], [20, 1, 1, 38]])
def test_a_basis_is_completed_where_axes_differ_along_it_only(sizes, n_rows, dtype):
    """Rows that are constant over each group of columns, as those of equal columns are."""
    groups = np.repeat(np.eye(len(sizes)), sizes, axis=1) / np.sqrt(sizes)[:, None]
    turned = np.linalg.qr(np.random.default_rng(0).standard_normal((len(sizes),) * 2))[0]
    V = (turned @ groups)[:n_rows].astype(dtype)
    full = complete_basis(V, n_rows)
    assert full.dtype == dtype
    assert_allclose(full[: len(V)], V, atol=0)
    assert_allclose(full @ full.T, np.eye(n_rows), atol=20 * np.finfo(dtype).eps)


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(d=st.integers(1, 12), data=st.data())
def test_the_extended_rows_are_orthonormal_whatever_the_first_are(d, data):
    k = data.draw(st.integers(0, d))
    # few different entries: rows whose entries on some axes are alike, or zero
    entries = st.lists(st.sampled_from([0.0, 0.0, 1.0, -1.0]), min_size=d * k, max_size=d * k)
    some = np.array(data.draw(entries)).reshape(k, d)
    V = np.linalg.svd(some, full_matrices=False)[2][: np.linalg.matrix_rank(some)] if k else some
    dtype = data.draw(st.sampled_from(["f8", "f4"]))
    n_rows = data.draw(st.one_of(st.just(d), st.integers(0, d)))
    full = complete_basis(V.astype(dtype), n_rows)
    assert full.shape == (max(n_rows, len(V)), d)
    assert full.dtype == dtype
    assert_array_equal(full[: len(V)], V.astype(dtype))
    eps = 20 * d * np.finfo(dtype).eps
    assert_allclose(full @ full.T, np.eye(len(full)), atol=eps)


def test_axes_that_the_rows_do_not_touch_are_taken_as_they_are():
    V = np.zeros((2, 7))
    V[0, [1, 4]], V[1, [1, 4]] = [0.6, 0.8], [0.8, -0.6]
    assert_array_equal(complete_basis(V, 5)[2:], np.eye(7)[[0, 2, 3]])


@pytest.mark.parametrize("make", [StreamingPCA, FederatedPCA])
def test_all_components_of_rows_of_low_rank_are_a_basis(make):
    # columns that are sums of the same two scores: to the rows least covered axes look alike
    rng = np.random.default_rng(0)
    for seed in range(30):
        mix = (np.random.default_rng(seed).random((2, 9)) < 0.4).astype(float)
        X = rows_of_decay(rng, 40, 2) @ mix
        pca = make().fit(X) if make is StreamingPCA else make().fit(X, clients=np.arange(40) % 3)
        V = pca.components_
        assert_allclose(V @ V.T, np.eye(9), atol=1e-12)
        assert_allclose(pca.inverse_transform(pca.transform(X)), X, atol=1e-12)
        assert_allclose(pca.explained_variance_, PCA().fit(X).explained_variance_, atol=1e-12)


@pytest.mark.parametrize("exponent", [-500, -400, -250, 250, 500])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_few_pairs_are_the_same_in_any_unit(exponent, overwrite):
    """LAPACK's evr lost six digits of the vectors below 2^-480."""
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((257, 257)))[0]
    variances = np.full(257, 1e-4)
    variances[:18] = rng.integers(1, 4, 18) ** 2 + rng.random(18) / 100
    G = np.asfortranarray((Q * variances) @ Q.T)
    G = (G + G.T) / 2
    lam, W = eigh_top(np.asfortranarray(np.ldexp(G, exponent)), 18, overwrite)
    assert_allclose(np.ldexp(lam, -exponent), np.sort(variances)[:-19:-1], rtol=1e-12)
    assert_allclose(np.abs(np.linalg.svd(W.T @ Q[:, :18], compute_uv=False)), 1, atol=1e-12)
    rest = G @ W - W * np.ldexp(lam, -exponent)
    assert np.abs(rest).max() < 1e-13 * variances.max()


def test_no_matrix_has_no_pairs():
    lam, W = eigh_top(np.zeros((0, 0)), 3)
    assert lam.shape == (0,)
    assert W.shape == (0, 0)
