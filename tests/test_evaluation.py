"""evaluate_stream against errors computed from all rows at every checkpoint.

Subspace distances and reconstruction errors against projectors and numpy's SVD.
"""

import numpy as np
import pytest
import scipy.sparse as sp
from golden_cases import made
from helpers import random_basis
from numpy.testing import assert_allclose, assert_array_equal

from fedpca_sklearn import (
    GROUSE,
    ContributionBounds,
    StreamingPCA,
    evaluate_stream,
    excess_error,
    make_power_law,
    reconstruction_error,
    subspace_distance,
)


def left(X, V, mean):
    D = X - mean
    return float(np.sum((D - D @ V.T @ V) ** 2))


def best(X, k, mean):
    return float(np.sum(np.linalg.svd(X - mean, compute_uv=False)[k:] ** 2))


CENTRED = ["OjaPCA(3, random_state=0)", "IncrementalPCA(5)"]
# about the origin, rows far from it are one direction
ABOUT_ORIGIN = ["FrequentDirections(4, center=False)", "SPIRIT(center=False)"]
TRUNCATED = "StreamingPCA(3, block_size=30, oversampling=0, center=False)"


@pytest.mark.parametrize(
    ("code", "far"),
    [*((c, 0.0) for c in [*CENTRED, *ABOUT_ORIGIN, TRUNCATED]), *((c, 1e6) for c in CENTRED)],
)
def test_errors_are_those_of_all_rows_so_far_and_of_projections_that_are_kept(code, far):
    X = make_power_law(430, 20, alpha=1.0, random_state=0) + 0.3 + far
    stream = evaluate_stream(made(code), X, batch_size=40, n_checkpoints=5)
    model, found, rest, n_rest, Yhat = made(code), [], 0.0, 0, np.zeros((0, 20))
    for start in range(0, 430, 40):
        batch, seen = X[start : start + 40], X[: start + 40]
        if start:
            rest += left(batch, model.components_, model.mean_)
            n_rest += len(batch)
        V, centre = model.partial_fit(batch).components_, model.mean_
        kept = V[model.singular_values_ > 0]  # SPIRIT adds some at a batch's end
        Yhat = centre + (np.concatenate([Yhat, batch]) - centre) @ kept.T @ kept
        if len(seen) in stream.n_samples:
            n, mean = len(seen), seen.mean(axis=0) if getattr(model, "center", True) else 0.0
            errors = left(seen, V, centre) / n, best(seen, len(V), mean) / n
            kept_error = np.sum((seen - Yhat) ** 2) / n
            found.append((n, len(V), *errors, rest / (n_rest * 20), kept_error))
            rest, n_rest = 0.0, 0
    n_samples, ranks, *errors = np.array(found).T
    assert_array_equal(stream.n_samples, n_samples)
    assert (len(n_samples), n_samples[-1]) == (5, 430)
    assert_array_equal(stream.ranks, ranks)
    # squares are kept in a matrix: their rounding, and that of a mean of 1e6, is allowed for
    tolerances = 1e-6, 1e-6, 1e-9, 1e-6 if far else 1e-9
    names = "errors", "best_errors", "prequential_errors", "accumulated_errors"
    for name, expected, tol in zip(names, errors, tolerances, strict=True):
        assert_allclose(getattr(stream, name), expected, rtol=tol)
    assert (np.diff(stream.seconds) > 0).all()
    assert_allclose(stream.excess, stream.errors / stream.best_errors - 1)


@pytest.mark.parametrize("rule", [None, ContributionBounds(0.02, 0.09, growth="canonical")])
def test_the_accumulated_error_of_spca_is_that_of_equation_5(rule):
    """Eq. 5 as printed: the r-SVD of the projected data so far and a block, which bounds eq. 16."""
    X = make_power_law(400, 30, alpha=0.5, random_state=0)
    pca = StreamingPCA(4, block_size=50, oversampling=0, center=False, rank_rule=rule)
    stream, Yhat = evaluate_stream(pca, X, batch_size=50), np.zeros((0, 30))
    for i, block in enumerate(np.split(X, 8)):
        r = stream.ranks[i - 1] if i else 4  # a rank that has grown is that of the next block
        U, s, Vt = np.linalg.svd(np.concatenate([Yhat, block]))
        Yhat = (U[:, :r] * s[:r]) @ Vt[:r]
        error = np.sum((X[: len(Yhat)] - Yhat) ** 2) / len(Yhat)
        assert_allclose(stream.accumulated_errors[i], error, rtol=1e-10)
        subspace = pca.partial_fit(block).subspace_
        left_out = subspace.scatter - np.sum(subspace.singular_values**2)
        assert_allclose(stream.accumulated_errors[i] * len(Yhat), left_out, rtol=1e-10)
    assert (stream.accumulated_errors[1:] > stream.errors[1:]).all()
    assert (stream.ranks[-1] > 4) == (rule is not None)


POWER_LAW = make_power_law(300, 20, alpha=0.5, random_state=1)


@pytest.mark.parametrize(
    ("X", "k", "size"), [(POWER_LAW, 5, 7), (np.outer(np.arange(12.0), np.ones(3)), 1, 3)]
)
def test_an_exact_estimator_has_no_excess_and_is_not_touched(X, k, size):
    model = StreamingPCA(k)
    stream = evaluate_stream(model, X, batch_size=size)
    assert np.abs(stream.excess).max() < 1e-10
    assert len(stream.n_samples) == min(20, len(X) // size)
    assert not hasattr(model, "components_")
    first = evaluate_stream(model, X, batch_size=len(X))  # which has no prediction
    assert_array_equal(first.n_samples, [len(X)])
    assert np.isnan(first.prequential_errors).all()


def test_missing_entries_are_measured_by_the_full_rows():
    X = make_power_law(300, 15, alpha=2.0, random_state=0)
    holes = np.where(np.random.default_rng(0).random(X.shape) < 0.3, np.nan, X)
    stream = evaluate_stream(GROUSE(3, random_state=0), holes, X, batch_size=50, n_checkpoints=2)
    model, rest = GROUSE(3, random_state=0), 0.0
    for start in range(0, 300, 50):
        if start >= 150:
            rest += left(X[start : start + 50], model.components_, model.mean_)
        model.partial_fit(holes[start : start + 50])
    V, centre = model.components_, model.mean_
    assert_allclose(stream.errors[-1], left(X, V, centre) / 300, rtol=1e-9)
    assert_allclose(stream.best_errors[-1], best(X, 3, X.mean(axis=0)) / 300, rtol=1e-9)
    assert_allclose(stream.prequential_errors[-1], rest / (150 * 15), rtol=1e-9)


def test_sparse_rows_and_single_precision_reach_the_estimator():
    X = make_power_law(200, 15, random_state=0).astype(np.float32)
    X[np.abs(X) < 0.1] = 0
    seen = []

    class Watching(StreamingPCA):
        def partial_fit(self, X, y=None, sample_weight=None):
            seen.append((sp.issparse(X), X.dtype))
            return super().partial_fit(X)

    dense, sparse = (evaluate_stream(Watching(3), A) for A in (X, sp.csr_array(X)))
    assert set(seen) == {(False, np.dtype(np.float32)), (True, np.dtype(np.float32))}
    assert_allclose(sparse.errors, dense.errors, rtol=1e-4)
    V, mean = (a.astype(float) for a in (Watching(3).fit(X).components_, X.mean(axis=0)))
    assert_allclose(dense.errors[-1], left(X.astype(float), V, mean) / 200, rtol=1e-4)


# --------------------------------------------------------------------------- distances and errors

EPS = np.finfo(np.float64).eps
# Of principal angles; euclidean: of the nearest orthonormal bases (orthogonal Procrustes).
METRICS = {
    "sin": lambda angles: np.sin(angles).max(),
    "chordal": lambda angles: np.linalg.norm(np.sin(angles)),
    "projection": lambda angles: np.sqrt(2) * np.linalg.norm(np.sin(angles)),
    "euclidean": lambda angles: 2 * np.linalg.norm(np.sin(np.divide(angles, 2))),
}


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


# -------------------------------------------------------------------- distances


ANGLES = [[0.0], [0.3], [np.pi / 2] * 2, [0.2, 1.1], [0, 1e-5, 1.5], [1e-4], [1e-8], [1e-12]]


@pytest.mark.parametrize("angles", [*ANGLES, [1e-15]])
def test_a_distance_is_its_formula_in_the_principal_angles_whatever_the_bases(angles):
    k = len(angles)
    Q = random_basis(np.random.default_rng(0), 2 * k, 40)
    A, B = Q[:k], np.cos(angles)[:, None] * Q[:k] + np.sin(angles)[:, None] * Q[k:]
    # entries of unit vectors carry eps / 2 each, and both bases are computed anew
    for first, second, scale in [
        (A, B, 20),
        (-3 * B[::-1], A, 20),
        (np.tril(np.ones((k, k))) @ A, B, 80),
        (np.diag([1e6, -2, 1e-3])[:k, :k] @ A, B, 1e9),
    ]:
        for metric, formula in METRICS.items():
            found = subspace_distance(first, second, metric=metric)
            assert isinstance(found, float)
            assert_allclose(found, formula(angles), atol=scale * EPS, rtol=1e-8)


@pytest.mark.parametrize("metric", ["sin", "projection", "chordal"])
@pytest.mark.parametrize(("k_A", "k_B"), [(1, 1), (3, 3), (2, 5), (1, 9), (9, 9)])
def test_distances_of_any_two_dimensions_are_those_of_projectors(metric, k_A, k_B):
    rng = np.random.default_rng(k_A + 10 * k_B)
    A, B = rng.standard_normal((k_A, 9)), rng.standard_normal((k_B, 9))
    more = [np.concatenate([B[:3], row]) for row in (2 * B[:1], np.zeros((1, 9)))]  # the same span
    for other in (B, B + 50, A[:1] + 1e-3 * B, *more):
        found = subspace_distance(A, other, metric=metric)
        assert_allclose(found, direct_distance(A, other, metric), atol=1e-12)
        assert_allclose(subspace_distance(other, A, metric=metric), found, atol=1e-13)
    within = rng.standard_normal((1, k_B)) @ B
    expected = np.sqrt(k_B - 1) if metric == "projection" else 0
    assert_allclose(subspace_distance(within, B, metric=metric), expected, atol=1e-12)


def test_float32_bases_are_compared_in_double_precision():
    A, B = np.eye(2, 5, dtype=np.float32), np.eye(2, 5, dtype=np.float32)
    B[0, 4] = 1e-6
    assert_allclose(subspace_distance(A, B), np.float64(B[0, 4]), rtol=1e-9)


# -------------------------------------------------------------------- reconstruction


def direct_errors(X, components, mean):
    """Reconstruction error and that of the best subspace, by residuals and the SVD."""
    Z = X - X[0] if mean is None else X - mean  # exact where the mean is large
    Z = Z - Z.mean(axis=0) if mean is None else Z
    error = np.sum((Z - Z @ projector(components)) ** 2)
    k = np.linalg.matrix_rank(components)
    return error, np.sum(np.linalg.svd(Z, compute_uv=False)[k:] ** 2)


def sparse_rows(rng, n, d):
    return sp.random(n, d, density=0.3, random_state=rng, format="csr").toarray() * 3


def read_only(*arrays):
    for array in arrays:
        for part in (array.data, array.indices, array.indptr) if sp.issparse(array) else (array,):
            part.flags.writeable = False
    return arrays


@pytest.mark.parametrize("shape", [(60, 8), (8, 60), (20, 20)], ids=["tall", "wide", "square"])
@pytest.mark.parametrize("container", [np.array, sp.csr_array, sp.csc_matrix])
@pytest.mark.parametrize("mean", [None, 0, 0.7, "vector"])
@pytest.mark.parametrize("k", [1, 4])
def test_errors_are_those_of_residuals_and_nothing_is_written(shape, container, mean, k):
    rng = np.random.default_rng(3)
    X, V = sparse_rows(rng, *shape), rng.standard_normal((k, shape[1]))
    if mean == "vector":
        (mean,) = read_only(np.linspace(-1, 2, shape[1]))
    error, best = direct_errors(X, V, mean)
    held, V = read_only(container(X), V)
    for basis in (V, 7 * V[::-1], np.concatenate([V, 2 * V[:1], 0 * V[:1]])):  # of one span
        assert_allclose(reconstruction_error(held, basis, mean), error, rtol=1e-10)
        assert_allclose(excess_error(held, basis, mean), error / best - 1, rtol=1e-9)


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


FAR = [(c, size, "f8") for c in (np.asarray, sp.csr_array) for size in (1e4, 1e8)]


@pytest.mark.parametrize(("container", "size", "dtype"), [*FAR, (np.asarray, 1e3, "f4")])
def test_a_huge_mean_does_not_cancel_and_float32_is_summed_in_float64(container, size, dtype):
    rng = np.random.default_rng(5)
    X = sparse_rows(rng, 80, 6)
    X[:, 0] = rng.standard_normal(80) + size
    X, V = X.astype(dtype), rng.standard_normal((2, 6))
    error, best = direct_errors(X.astype(float), V, None)
    tol = 1e-9 + 10 * EPS * size  # the mean itself is rounded
    assert_allclose(reconstruction_error(container(X), V), error, rtol=tol)
    assert_allclose(excess_error(container(X), V), error / best - 1, rtol=10 * tol)


@pytest.mark.parametrize("container", [np.asarray, sp.csr_array])
def test_where_the_best_error_is_zero_the_excess_is_zero_or_infinite(container):
    rng = np.random.default_rng(7)
    V = random_basis(rng, 3, 9)
    dense = rng.standard_normal((30, 3)) @ V
    X = container(dense)
    assert excess_error(X, V) == 0
    assert excess_error(X, V, mean=0) == 0
    error, best = direct_errors(dense, V[:2], None)
    assert_allclose(excess_error(X, V[:2]), error / best - 1, rtol=1e-9)
    assert excess_error(X, rng.standard_normal((3, 9))) == np.inf
    assert reconstruction_error(X, V) <= 1e-12 * abs(X).max() ** 2 * 270
    assert excess_error(container(np.eye(4)), np.eye(4)) == 0  # as many components as columns
    assert excess_error(container(np.eye(2, 9)), np.eye(9)[4:6]) == np.inf  # as many as rows
    assert excess_error(container(np.ones((5, 4))), np.eye(2, 4)) == 0  # no variance at all


def test_a_far_first_row_hides_no_error():
    X = make_power_law(2000, 10, alpha=0.5, random_state=0) + 1
    X[0] += 1e8
    stream = evaluate_stream(StreamingPCA(5), X, n_checkpoints=4)
    for n, error in zip(stream.n_samples, stream.best_errors, strict=True):
        # singular values are known up to 1e-16 of the first one, 1e8 times the others
        assert_allclose(error, best(X[:n], 5, X[:n].mean(axis=0)) / n, rtol=1e-6)
    assert (stream.errors >= stream.best_errors * (1 - 1e-6)).all()


@pytest.mark.parametrize("n", [48, 64, 300])
def test_the_best_of_equal_directions_is_found(n):
    """Of rows that are the axes, all directions across the mean are equally good."""
    X = np.eye(n)
    V = np.linalg.qr((X - X.mean(axis=0))[:, :3])[0].T
    assert excess_error(X, V) <= 1e-12
    V[2] = n**-0.5  # the mean's direction explains nothing
    assert_allclose(excess_error(X, V), (n - 3) / (n - 4) - 1, rtol=1e-9)
