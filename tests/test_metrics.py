"""Subspace distances and reconstruction errors against projectors and numpy's SVD."""

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import as_dense, random_basis
from numpy.testing import assert_allclose
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from fedpca_sklearn import excess_error, reconstruction_error, subspace_distance

METRICS = ["sin", "projection", "chordal"]
EPS = np.finfo(np.float64).eps


def projector(A):
    U, s, _ = np.linalg.svd(np.asarray(A, dtype=float).T, full_matrices=False)
    U = U[:, s > 1e-10 * s[0]]
    return U @ U.T


def direct_distance(A, B, metric):
    """From the two d x d projectors; good to the root of eps near zero."""
    P, Q = projector(A), projector(B)
    if metric == "projection":
        return np.linalg.norm(P - Q)
    if np.trace(P) > np.trace(Q):
        P, Q = Q, P
    outside = np.linalg.svd(P - Q @ P, compute_uv=False)  # sines of the angles
    return outside[0] if metric == "sin" else np.linalg.norm(outside)


def directions_at(angles, d=7):
    """Two bases with the given principal angles."""
    k = len(angles)
    A, B = np.eye(k, d), np.zeros((k, d))
    B[np.arange(k), np.arange(k)] = np.cos(angles)
    B[np.arange(k), k + np.arange(k)] = np.sin(angles)
    return A, B


# -------------------------------------------------------------------- distances


@pytest.mark.parametrize("angles", [[0.0], [0.3], [np.pi / 2], [0.2, 1.1], [0.0, 1e-5, 1.5]])
def test_known_angles(angles):
    A, B = directions_at(angles)
    sines = np.sin(angles)
    assert_allclose(subspace_distance(A, B), sines.max(), atol=4 * EPS)
    chordal = subspace_distance(A, B, metric="chordal")
    assert_allclose(chordal, np.linalg.norm(sines), atol=4 * EPS)
    projection = subspace_distance(A, B, metric="projection")
    assert_allclose(projection, np.sqrt(2) * np.linalg.norm(sines), atol=8 * EPS)


@pytest.mark.parametrize("metric", [*METRICS, "euclidean"])
@pytest.mark.parametrize("angle", [1e-4, 1e-8, 1e-12, 1e-15])
def test_small_angles_do_not_drown_in_cosines(metric, angle):
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((40, 40)))[0]
    A, B = Q[:3], Q[:3].copy()
    B[0] = np.cos(angle) * Q[0] + np.sin(angle) * Q[3]
    want = np.sqrt(2) * angle if metric == "projection" else angle
    # entries of unit vectors carry eps / 2 each, and both bases are computed anew
    assert_allclose(subspace_distance(A, B, metric=metric), want, atol=20 * EPS, rtol=1e-8)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("k_A", "k_B"), [(1, 1), (3, 3), (2, 5), (5, 2), (1, 9), (9, 9), (4, 6)])
def test_distances_are_those_of_projectors(metric, k_A, k_B):
    rng = np.random.default_rng(k_A + 10 * k_B)
    A, B = rng.standard_normal((k_A, 9)), rng.standard_normal((k_B, 9))
    for other in (B, B + 50, A[:1] + 1e-3 * B):
        want = direct_distance(A, other, metric)
        got = subspace_distance(A, other, metric=metric)
        assert isinstance(got, float)
        assert_allclose(got, want, atol=1e-12)
        assert_allclose(subspace_distance(other, A, metric=metric), got, atol=1e-13)  # symmetric


@pytest.mark.parametrize("k", [1, 2, 3])
def test_euclidean_is_the_distance_of_the_nearest_bases(k):
    rng = np.random.default_rng(k)
    A, B = random_basis(rng, k, 7), random_basis(rng, k, 7)
    W, _, Zt = np.linalg.svd(A @ B.T)  # orthogonal Procrustes: the turn of B that is nearest to A
    want = np.linalg.norm(A - W @ Zt @ B)
    assert_allclose(subspace_distance(A, B, metric="euclidean"), want, rtol=1e-12)
    if k == 1:  # of vectors: of unit length, with the better of two signs
        pair = np.linalg.norm(A - B), np.linalg.norm(A + B)
        assert_allclose(subspace_distance(-3 * A, 2 * B, metric="euclidean"), min(pair))
    with pytest.raises(ValueError, match=f"equal dimension, got dimensions {k} and {k + 1}"):
        subspace_distance(A, random_basis(rng, k + 1, 7), metric="euclidean")


@pytest.mark.parametrize("metric", METRICS)
def test_the_basis_does_not_matter(metric):
    rng = np.random.default_rng(1)
    A, B = rng.standard_normal((3, 10)), rng.standard_normal((3, 10))
    want = subspace_distance(A, B, metric=metric)
    T = np.array([[1e6, 0, 0], [3, -2, 0], [1, 1, 1e-3]])
    assert_allclose(subspace_distance(T @ A, B, metric=metric), want, rtol=1e-6)
    assert_allclose(subspace_distance(A[::-1], -5 * B, metric=metric), want, rtol=1e-12)
    R = np.linalg.qr(rng.standard_normal((10, 10)))[0]  # nor a rotation of the space
    assert_allclose(subspace_distance(A @ R, B @ R, metric=metric), want, rtol=1e-12)
    assert subspace_distance(A, T @ A, metric=metric) < 1e-6


def test_a_subspace_of_the_other_has_sine_zero_but_is_not_equal():
    rng = np.random.default_rng(2)
    B = rng.standard_normal((5, 12))
    A = rng.standard_normal((2, 5)) @ B
    for first, second in ((A, B), (B, A)):
        assert subspace_distance(first, second) < 1e-13
        assert subspace_distance(first, second, metric="chordal") < 1e-13
        projection = subspace_distance(first, second, metric="projection")
        assert_allclose(projection, np.sqrt(3), rtol=1e-12)


def test_orthogonal_subspaces_have_the_largest_distance():
    A, B = np.eye(2, 6), np.eye(6)[3:5]
    assert subspace_distance(A, B) == 1.0
    assert_allclose(subspace_distance(A, B, metric="chordal"), np.sqrt(2), rtol=1e-15)
    assert_allclose(subspace_distance(A, B, metric="projection"), 2, rtol=1e-15)


def test_float32_bases_are_compared_in_double_precision():
    A = np.eye(2, 5, dtype=np.float32)
    B = A.copy()
    B[0, 4] = 1e-6
    assert_allclose(subspace_distance(A, B), np.float64(B[0, 4]), rtol=1e-9)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("extra", [[2.0, 0, 0, 0], [0.0, 0, 0, 0]], ids=["dependent", "zero"])
def test_rows_that_add_nothing_do_not_change_the_span(metric, extra):
    A, B = np.array([[1.0, 0, 0, 0], extra]), np.array([[0.6, 0, 0, 0.8]])
    got = subspace_distance(A, B, metric=metric)
    assert_allclose(got, direct_distance(A, B, metric), atol=1e-14)


@pytest.mark.parametrize(
    ("A", "B", "options", "message"),
    [
        (np.eye(2, 4), np.eye(2, 5), {}, "columns, got 4 and 5"),
        (np.ones((5, 3)), np.eye(2, 3), {}, r"A must have at most .*\(5, 3\)"),
        (np.eye(2, 3), np.ones((5, 3)), {}, r"B must have at most .*\(5, 3\)"),
        (np.eye(2, 4), np.eye(2, 4), {"metric": "cos"}, "metric must be one of .*'cos'"),
        (np.ones(4), np.eye(2, 4), {}, "2D array"),
        (np.eye(2, 4), [[1, np.nan, 0, 0]], {}, "B contains NaN"),
        (np.ones((0, 4)), np.eye(2, 4), {}, "0 sample"),
    ],
)
def test_bad_bases_are_refused(A, B, options, message):
    with pytest.raises(ValueError, match=message):
        subspace_distance(A, B, **options)


# -------------------------------------------------------------------- reconstruction


def direct_errors(X, components, mean):
    """Reconstruction error and that of the best subspace, by residuals and the SVD."""
    X = as_dense(X)
    if mean is None:
        Z = X - X[0]  # exact where the mean is large
        Z = Z - Z.mean(axis=0)
    else:
        Z = X - mean
    error = np.sum((Z - Z @ projector(components)) ** 2)
    k = np.linalg.matrix_rank(components)
    return error, np.sum(np.linalg.svd(Z, compute_uv=False)[k:] ** 2)


def sparse_rows(rng, n, d):
    return sp.random(n, d, density=0.3, random_state=rng, format="csr") * 3


MEANS = {
    "own": lambda X: None,
    "zero": lambda X: 0,
    "number": lambda X: 0.7,
    "vector": lambda X: np.linspace(-1, 2, X.shape[1]),
}


@pytest.mark.parametrize("shape", [(60, 8), (8, 60), (20, 20)], ids=["tall", "wide", "square"])
@pytest.mark.parametrize("container", [np.asarray, sp.csr_array, sp.csc_matrix])
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("k", [1, 4])
def test_errors_are_those_of_residuals(shape, container, mean, k):
    rng = np.random.default_rng(3)
    X = sparse_rows(rng, *shape).toarray()
    V = rng.standard_normal((k, shape[1]))
    point = MEANS[mean](X)
    error, best = direct_errors(X, V, point)
    assert_allclose(reconstruction_error(container(X), V, point), error, rtol=1e-10)
    assert_allclose(excess_error(container(X), V, point), error / best - 1, rtol=1e-9)
    assert_allclose(reconstruction_error(container(X), 7 * V[::-1], point), error, rtol=1e-10)


@pytest.mark.parametrize("container", [np.asarray, sp.csr_array])
def test_the_leading_components_have_no_excess(container):
    X = load_digits().data
    for k in (1, 10, 40):
        V = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[2]
        assert excess_error(container(X), V[:k]) <= 1e-9
        swapped = np.concatenate([V[: k - 1], V[k : k + 1]])  # the next one for the last
        s = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)
        want = (s[k - 1] ** 2 - s[k] ** 2) / np.sum(s[k:] ** 2)
        assert_allclose(excess_error(container(X), swapped), want, rtol=1e-8)


def test_large_matrices_by_lanczos_agree_with_the_svd():
    rng = np.random.default_rng(4)
    scores, loadings = rng.standard_normal((2600, 6)), rng.standard_normal((6, 2700))
    X = scores @ loadings
    V = rng.standard_normal((3, 2700))
    U, R = np.linalg.qr(loadings.T)  # rows of rank 6: a small SVD tells their spectrum
    Z = (scores - scores.mean(axis=0)) @ R.T
    P = np.linalg.qr(V.T)[0]
    error = np.sum(Z**2) - np.sum((Z @ (U.T @ P)) ** 2)
    best = np.sum(np.linalg.svd(Z, compute_uv=False)[3:] ** 2)
    assert_allclose(excess_error(X, V), error / best - 1, rtol=1e-8)


@pytest.mark.parametrize("size", [1e4, 1e8])
@pytest.mark.parametrize("container", [np.asarray, sp.csr_array])
def test_a_huge_mean_does_not_cancel(container, size):
    rng = np.random.default_rng(5)
    X = sparse_rows(rng, 80, 6).toarray()
    X[:, 0] = rng.standard_normal(80) + size
    V = rng.standard_normal((2, 6))
    error, best = direct_errors(X, V, None)
    tol = 1e-9 + 10 * EPS * size  # the mean itself is rounded
    assert_allclose(reconstruction_error(container(X), V), error, rtol=tol)
    assert_allclose(excess_error(container(X), V), error / best - 1, rtol=10 * tol)


def test_float32_rows_are_summed_in_double_precision():
    rng = np.random.default_rng(6)
    X = (rng.standard_normal((500, 5)) * [4, 3, 2, 1, 1] + 1000).astype(np.float32)
    V = rng.standard_normal((2, 5))
    error, best = direct_errors(X, V, None)
    assert_allclose(reconstruction_error(X, V), error, rtol=1e-9)
    assert_allclose(excess_error(X, V), error / best - 1, rtol=1e-8)


@pytest.mark.parametrize("container", [np.asarray, sp.csr_array])
def test_where_the_best_error_is_zero_the_excess_is_zero_or_infinite(container):
    rng = np.random.default_rng(7)
    V = random_basis(rng, 3, 9)
    X = container(rng.standard_normal((30, 3)) @ V)
    assert excess_error(X, V) == 0
    assert excess_error(X, V, mean=0) == 0
    error, best = direct_errors(X, V[:2], None)
    assert_allclose(excess_error(X, V[:2]), error / best - 1, rtol=1e-9)
    assert excess_error(X, rng.standard_normal((3, 9))) == np.inf
    assert reconstruction_error(X, V) <= 1e-12 * abs(X).max() ** 2 * 270
    assert excess_error(container(np.eye(4)), np.eye(4)) == 0  # as many components as columns
    assert excess_error(container(np.ones((5, 4))), np.eye(2, 4)) == 0  # no variance at all


def test_errors_fall_as_components_are_added():
    X = load_digits().data
    V = PCA(20).fit(X).components_
    errors = [reconstruction_error(X, V[:k]) for k in range(1, 21)]
    s = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)
    assert_allclose(errors, np.sum(s**2) - np.cumsum(s[:20] ** 2), rtol=1e-10)


@pytest.mark.parametrize("extra", [[2.0, 0, 0, 0], [0.0, 0, 0, 0]], ids=["dependent", "zero"])
def test_components_that_add_nothing_do_not_reduce_the_error(extra):
    X = np.random.default_rng(8).standard_normal((30, 4))
    V = np.array([[1.0, 0, 0, 0], extra])
    assert_allclose(reconstruction_error(X, V), reconstruction_error(X, V[:1]), rtol=1e-12)
    assert_allclose(reconstruction_error(X, V), direct_errors(X, V, None)[0], rtol=1e-12)


def test_inputs_are_not_written_to():
    rng = np.random.default_rng(9)
    X, V, mean = rng.standard_normal((20, 4)), rng.standard_normal((2, 4)), np.ones(4)
    for array in (X, V, mean):
        array.flags.writeable = False
    excess_error(X, V, mean)
    reconstruction_error(X, V, mean)
    S = sp.csr_array(X)
    for array in (S.data, S.indices, S.indptr):
        array.flags.writeable = False
    excess_error(S, V, mean)
    reconstruction_error(S, V, mean)


@pytest.mark.parametrize("function", [excess_error, reconstruction_error])
@pytest.mark.parametrize(
    ("X", "components", "mean", "message"),
    [
        (np.ones((5, 3)), np.eye(2, 4), None, "components.*(3|4)"),
        (np.ones((5, 3)), np.ones((4, 3)), None, r"components must have at most .*\(4, 3\)"),
        (np.ones((5, 3)), np.eye(2, 3), np.zeros(2), "mean"),
        (np.ones((5, 3)), np.eye(2, 3), np.nan, "mean"),
        (np.full((5, 3), np.nan), np.eye(2, 3), None, "X contains NaN"),
        (np.ones((5, 3)), [[np.inf, 0, 0]], None, "components contains inf"),
    ],
)
def test_bad_arguments_are_named(function, X, components, mean, message):
    with pytest.raises(ValueError, match=message):
        function(X, components, mean)


@pytest.mark.parametrize("n", [48, 64, 300])
def test_the_best_of_equal_directions_is_found(n):
    """Of rows that are the axes, all directions across the mean are equally good."""
    X = np.eye(n)
    V = np.linalg.qr((X - X.mean(axis=0))[:, :3])[0].T
    assert excess_error(X, V) <= 1e-12
    V[2] = n**-0.5  # the mean's direction explains nothing
    assert_allclose(excess_error(X, V), (n - 3) / (n - 4) - 1, rtol=1e-9)
