"""Leading eigenpairs: what numpy finds when it is asked for all of them. Bases are orthonormal."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

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
