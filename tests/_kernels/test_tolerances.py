"""The shared tolerances do what their derivations say; a thousandfold of any is noticed."""

import numpy as np
import pytest
from helpers import random_basis

from fedpca_sklearn import (
    FederatedPowerPCA,
    Subspace,
    VerticalFederatedKernelPCA,
    projected_sparse_recovery,
)
from fedpca_sklearn._kernels import linalg, tolerances

EPS = np.finfo(np.float64).eps


def basis(k, d, seed=0):
    return random_basis(np.random.default_rng(seed), k, d)


def rows_of_singular_values(s, d=60, seed=0):
    return (basis(len(s), len(s), seed) * s) @ basis(len(s), d, seed + 1)


# -------------------------------------------------------------------- orthonormal rows


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("least", [0.3, 0.03, 3e-3])
def test_a_gram_matrix_leaves_directions_orthonormal_up_to_their_squared_condition(dtype, least):
    M = rows_of_singular_values(np.geomspace(1, least, 30)).astype(dtype)
    lam, W = np.linalg.eigh(M @ M.T)
    error = linalg.orthonormality_error(((W / np.sqrt(lam)).T @ M).astype(np.float64))
    # products, eigenvectors and the Gram matrix that is looked at each round
    assert error <= 3 * np.finfo(dtype).eps / least**2
    if error > tolerances.ORTHONORMALITY_TOL[np.dtype(dtype)]:
        assert least < {np.float64: 1.5e-3, np.float32: 0.11}[dtype]


def test_a_basis_that_a_gram_matrix_cannot_give_is_computed_in_another_way():
    for least in np.geomspace(1, 1e-6, 13):
        summary = Subspace.from_rows(rows_of_singular_values(np.geomspace(1, least, 30), d=300))
        assert linalg.orthonormality_error(summary.components) < 1e-9


def test_a_basis_that_is_nearly_orthonormal_or_was_stored_in_float32_is_taken():
    stored = basis(3, 20).astype(np.float32).astype(np.float64)
    assert linalg.orthonormality_error(stored) > 1000 * EPS

    def summary(V):
        return Subspace(V, [3.0, 2.0, 1.0], np.zeros(20), 9, 20)

    def recovery(V):
        return projected_sparse_recovery(np.ones((4, 20)), V, xi=1.0)

    for take, V, off, too_far in ((summary, basis(3, 20), 1e-8, 1e-5), (recovery, stored, 0, 1e-4)):
        V[0] *= 1 + off / 2
        take(V)
        V[0] *= 1 + too_far / 2
        with pytest.raises(ValueError, match="orthonormal"):
            take(V)


# -------------------------------------------------------------------- rounding errors


@pytest.mark.parametrize(("n", "d", "k"), [(1000, 1000, 5), (64, 500, 3), (800, 90, 40)])
def test_singular_values_beyond_the_rank_are_rounding_errors(n, d, k):
    rng = np.random.default_rng(n)
    M = rng.standard_normal((n, k)) @ rng.standard_normal((k, d))
    assert linalg.numerical_rank(np.linalg.svd(M, compute_uv=False)) == k
    M = rows_of_singular_values(np.array([1.0, 1e-12]))  # one part in a trillion is none
    assert linalg.numerical_rank(np.linalg.svd(M, compute_uv=False)) == 2


@pytest.mark.parametrize("found", [3, 2])
def test_rounds_and_kernels_find_what_their_matrices_resolve(found):
    def X(least):
        return rows_of_singular_values(np.array([1.0, 0.5, least]), d=12)

    rows = np.repeat(X(1e-6 if found == 3 else 3e-8), 2, axis=0)
    rounds = FederatedPowerPCA(3, center=False, random_state=0).fit(rows)
    rows = X(1e-5 if found == 3 else 3e-7).T
    kernel = VerticalFederatedKernelPCA(3, kernel="linear", random_state=0)
    kernel.fit(np.concatenate([rows, -rows]))
    for values in (rounds.explained_variance_, kernel.eigenvalues_):
        assert np.count_nonzero(values) == found
