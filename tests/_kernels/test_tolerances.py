"""The shared tolerances do what their derivations say; a thousandfold of any is noticed."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from fedpca_sklearn import (
    GROUSE,
    AlternatingProjections,
    FederatedPowerPCA,
    Subspace,
    SubspaceTracker,
    VerticalFederatedKernelPCA,
    projected_sparse_recovery,
)
from fedpca_sklearn._kernels import linalg, tolerances
from fedpca_sklearn._kernels.missing import coordinates

EPS = np.finfo(np.float64).eps


def basis(k, d, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((d, k)))[0].T


def rows_of_singular_values(s, d=60, seed=0):
    return (basis(len(s), len(s), seed) * s) @ basis(len(s), d, seed + 1)


# -------------------------------------------------------------------- orthonormal rows


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("least", [0.3, 0.03, 3e-3])
def test_a_gram_matrix_leaves_directions_orthonormal_up_to_their_squared_condition(dtype, least):
    M = rows_of_singular_values(np.geomspace(1, least, 30)).astype(dtype)
    lam, W = np.linalg.eigh(M @ M.T)
    V = (W / np.sqrt(lam)).T @ M
    error = linalg.orthonormality_error(V.astype(np.float64))
    # products, eigenvectors and the Gram matrix that is looked at each round
    assert error <= 3 * np.finfo(dtype).eps / least**2
    if error > tolerances.ORTHONORMALITY_TOL[np.dtype(dtype)]:
        assert least < {np.float64: 1.5e-3, np.float32: 0.11}[dtype]


def test_a_basis_that_a_gram_matrix_cannot_give_is_computed_in_another_way():
    for least in np.geomspace(1, 1e-6, 13):
        summary = Subspace.from_rows(rows_of_singular_values(np.geomspace(1, least, 30), d=300))
        assert linalg.orthonormality_error(summary.components) < 1e-9


@pytest.mark.parametrize(("off", "valid"), [(1e-8, True), (1e-5, False)])
def test_a_summary_takes_a_basis_that_is_nearly_orthonormal(off, valid):
    V = basis(3, 20)
    V[0] *= 1 + off / 2
    fields = {
        "singular_values": [3.0, 2.0, 1.0],
        "mean": np.zeros(20),
        "n_samples": 9,
        "scatter": 20,
    }
    if valid:
        Subspace(V, **fields)
        return
    with pytest.raises(ValueError, match="orthonormal"):
        Subspace(V, **fields)


def test_a_basis_that_was_stored_in_float32_is_taken():
    V, X = basis(3, 50), np.random.default_rng(0).standard_normal((4, 50))
    stored = V.astype(np.float32).astype(np.float64)
    assert linalg.orthonormality_error(stored) > 1000 * EPS
    projected_sparse_recovery(X, stored, xi=1.0)
    V[0] *= 1 + 1e-4
    with pytest.raises(ValueError, match="orthonormal"):
        projected_sparse_recovery(X, V, xi=1.0)


# -------------------------------------------------------------------- rounding errors


@pytest.mark.parametrize(("n", "d", "k"), [(1000, 1000, 5), (64, 500, 3), (800, 90, 40)])
def test_singular_values_beyond_the_rank_are_rounding_errors(n, d, k):
    rng = np.random.default_rng(n)
    M = rng.standard_normal((n, k)) @ rng.standard_normal((k, d))
    assert linalg.numerical_rank(np.linalg.svd(M, compute_uv=False)) == k


def test_a_direction_of_one_part_in_a_trillion_is_none():
    s = np.linalg.svd(rows_of_singular_values(np.array([1.0, 1e-12])), compute_uv=False)
    assert linalg.numerical_rank(s) == 2


@pytest.mark.parametrize(("least", "found"), [(1e-6, 3), (3e-8, 2)])
def test_the_power_method_finds_what_a_scatter_matrix_resolves(least, found):
    X = rows_of_singular_values(np.array([1.0, 0.5, least]), d=12)
    model = FederatedPowerPCA(3, center=False, random_state=0).fit(np.repeat(X, 2, axis=0))
    assert np.count_nonzero(model.explained_variance_) == found


@pytest.mark.parametrize(("least", "found"), [(1e-5, 3), (3e-7, 2)])
def test_kernel_pca_finds_what_a_centred_kernel_resolves(least, found):
    rows = rows_of_singular_values(np.array([1.0, 0.5, least]), d=12).T
    X = np.concatenate([rows, -rows])
    model = VerticalFederatedKernelPCA(3, kernel="linear", random_state=0).fit(X)
    assert np.count_nonzero(model.eigenvalues_) == found


# -------------------------------------------------------------------- rows with holes


@pytest.mark.parametrize(("size", "determined"), [(1e-4, True), (1e-6, False)])
def test_entries_that_hardly_determine_a_coordinate_leave_it_out(size, determined):
    V = np.array([[0.0, 0, 1, 0], [1, size, 0, 0]]) / np.array([[1], [np.hypot(1, size)]])
    z = np.array([5.0, 2.0]) @ V
    z[0] = np.nan
    C, gain = coordinates(z[None], V)
    assert_allclose(C[0], [5, 2] if determined else [5, 0], atol=1e-6)
    assert np.isfinite(gain[0]) == determined


def test_rows_that_amplify_noise_do_not_count_in_a_trackers_variances():
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((2200, 3)) * [3, 2, 1] @ basis(3, 20, seed)
        X += 0.1 * rng.standard_normal(X.shape)  # 20 dB below the third component
        X[200:][rng.random((2000, 20)) < 0.75] = np.nan
        model = GROUSE(3, center=False, random_state=0).fit(X)
        assert_allclose(model.explained_variance_, [9, 4, 1], rtol=0.2)


def test_rows_that_amplify_noise_do_not_count_in_the_svd_of_stmiss():
    for seed in range(3):
        rng = np.random.default_rng(seed)
        B = rng.standard_normal((3, 30))
        B[2, 5:] *= 1e-3  # without the first five entries a gain of 1e5
        X = rng.standard_normal((1200, 3)) * [3, 2, 1] @ B + 0.05 * rng.standard_normal((1200, 30))
        want = np.linalg.svd(X, compute_uv=False)[:3] ** 2 / len(X)
        X[rng.random(1200) < 0.5, :5] = np.nan
        model = SubspaceTracker(3, center=False, batch_size=60).fit(X)
        assert_allclose(model.explained_variance_, want, rtol=0.5)


# -------------------------------------------------------------------- outliers


def test_normal_noise_has_no_outliers():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 3)) @ rng.standard_normal((3, 40))
    noisy = X + 0.01 * rng.standard_normal(X.shape)
    noisy[7, 9] += 0.15
    model = AlternatingProjections(3).fit(noisy)
    assert np.argwhere(model.sparse_).tolist() == [[7, 9]]
