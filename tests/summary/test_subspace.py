"""Subspace: what it says about rows must be what numpy's SVD of all those rows says."""

import copy
import dataclasses
import pickle
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import as_dense, random_basis
from scipy.stats import multivariate_normal
from sklearn.decomposition import PCA, IncrementalPCA, TruncatedSVD

from fedpca_sklearn import (
    FederatedPCA,
    StreamingPCA,
    Subspace,
    make_power_law,
    merge_subspaces,
    subspace_distance,
)
from fedpca_sklearn.summary._updating import updated

EPS = np.finfo(np.float64).eps
# Data have condition numbers up to about 30. A Gram matrix costs the square of it, a subspace
# another factor of 20 (see MIN_GAP) and sums a few hundred roundings: 900 * 20 * 200 eps < 1e-9.
# float32: products are rounded to 6e-8, and cond^2 / gap is kept below a few thousand.
TOL = {np.dtype(np.float64): 1e-9, np.dtype(np.float32): 2e-3}
ORTHONORMAL = {np.dtype(np.float64): 1e-10, np.dtype(np.float32): 1e-5}
MIN_GAP = 0.05  # relative gap of two squared singular values between which subspaces are compared

CONTAINERS = {
    "dense": np.ascontiguousarray,
    "fortran": np.asfortranarray,
    "csr": sp.csr_array,
    "csc": sp.csc_matrix,
}
# by route: small d x d Gram; wide stack; several blocks above 256 features; several column chunks
SHAPES = [(300, 40), (30, 200), (900, 300), (40, 7000)]


def make_rows(n, d, *, cond=5.0, mean=3.0, density=1.0, seed=0, dtype=np.float64):
    """Rows about a random mean, with prescribed singular values where density is 1."""
    rng = np.random.default_rng(seed)
    r = min(n - 1, d)
    U = rng.standard_normal((n, r))
    U = np.linalg.qr(U - U.mean(axis=0))[0]
    V = np.linalg.qr(rng.standard_normal((d, r)))[0]
    X = (U * (np.sqrt(n) * np.geomspace(1, 1 / cond, r))) @ V.T
    X += mean * rng.standard_normal(d)
    if density < 1:
        X *= rng.random((n, d)) < density
    return X.astype(dtype)


def oracle(X, w=None, center=True):
    """Count, mean, scatter, singular values and right singular vectors by numpy's SVD."""
    X = as_dense(X)
    w = np.ones(len(X)) if w is None else np.asarray(w, dtype=np.float64)
    mean = np.zeros(X.shape[1])
    for _ in range(2 if center else 0):  # the second pass removes the rounding of the first
        mean = mean + w @ (X - mean) / w.sum()
    Z = np.sqrt(w)[:, None] * (X - mean)
    s, Vt = np.linalg.svd(Z, full_matrices=False)[1:]
    return w.sum(), mean, np.sum(Z * Z), s, Vt


def assert_orthonormal(components):
    V = components.astype(np.float64)
    np.testing.assert_allclose(V @ V.T, np.eye(len(V)), atol=ORTHONORMAL[components.dtype])


def assert_summarises(subspace, X, w=None, *, center=True, n_components=None, tol=None):
    """Subspace, orthonormality, singular values, mean, count and scatter, all together."""
    n, mean, scatter, s, Vt = oracle(X, w, center)
    V, k = subspace.components, subspace.n_components
    tol = TOL[V.dtype] if tol is None else tol
    if n_components is None:  # nothing but rounding errors may be left out
        assert np.all(s[k:] <= tol * s[0])
    else:
        assert k == n_components
    assert subspace.centered == center
    assert_orthonormal(V)
    np.testing.assert_allclose(subspace.singular_values, s[:k], rtol=tol / 10, atol=tol * s[0] / 10)
    np.testing.assert_allclose(subspace.n_samples, n, rtol=1e-12)
    np.testing.assert_allclose(subspace.scatter, scatter, rtol=tol / 10)
    rounding = 100 * EPS * np.abs(mean).max() + 10 * np.finfo(V.dtype).eps * np.abs(X - mean).max()
    np.testing.assert_allclose(subspace.mean, mean, rtol=0, atol=rounding)
    squares = np.append(s, 0.0) ** 2
    cuts = [r for r in range(1, k + 1) if squares[r - 1] - squares[r] > MIN_GAP * squares[r - 1]]
    assert cuts, "these data compare no subspaces"
    for r in {cuts[0], cuts[len(cuts) // 2], cuts[-1]}:
        assert subspace_distance(V[:r], Vt[:r]) <= tol
    loadings = V[np.arange(k), np.abs(V).argmax(axis=1)]
    assert np.all(loadings > 0), "signs are not fixed"


def in_chunks(X, sizes, start=None, **kwargs):
    """Update with chunks of the sizes, in turn, until all rows are used."""
    weight = kwargs.pop("sample_weight", None)
    subspace = Subspace.empty(X.shape[1], dtype=X.dtype) if start is None else start
    at, i = 0, 0
    while at < X.shape[0]:
        rows = slice(at, at + sizes[i % len(sizes)])
        w = None if weight is None else weight[rows]
        subspace = subspace.update(X[rows], sample_weight=w, **kwargs)
        at, i = rows.stop, i + 1
    return subspace


# -------------------------------------------------------------------------- exactness


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    ("shape", "container"),
    [(s, c) for s in SHAPES for c in CONTAINERS if s[1] < 5000 or c in ("dense", "csr")],
)
def test_summary_equals_svd_of_the_rows(shape, container, dtype, center):
    density = 0.5 if container in ("csr", "csc") else 1.0
    X = make_rows(*shape, density=density, mean=1.0, dtype=dtype)
    subspace = Subspace.from_rows(CONTAINERS[container](X), center=center)
    assert subspace.components.dtype == dtype
    assert_summarises(subspace, X, center=center)


def test_lists_and_integers_are_rows_too():
    X = np.random.default_rng(0).integers(-9, 9, (50, 6))
    assert_summarises(Subspace.from_rows(X), X)
    assert_summarises(Subspace.from_rows(X.tolist()), X)


@pytest.mark.parametrize("sizes", [[1], [7], [1, 40, 2, 90], [1000]])
@pytest.mark.parametrize(("n", "d"), [(150, 20), (120, 300)])
@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array])
def test_updates_in_any_chunks_equal_svd_of_all_rows(n, d, sizes, convert):
    X = make_rows(n, d, density=0.5)
    assert_summarises(in_chunks(convert(X), sizes), X)


@pytest.mark.parametrize("block_size", [1, 7, 64, 1000])
def test_no_row_is_dropped_by_a_block_size_that_does_not_divide(block_size):
    X = make_rows(103, 30)
    assert_summarises(updated(Subspace.empty(30), X, block_size=block_size), X)


def test_float32_rows_continue_a_float64_summary_and_the_reverse():
    X = make_rows(100, 30, dtype=np.float32)
    for first, second in ((np.float64, np.float32), (np.float32, np.float64)):
        start = Subspace.from_rows(X[:60].astype(first))
        subspace = start.update(X[60:].astype(second))
        assert subspace.components.dtype == first
        assert_summarises(subspace, X, tol=TOL[np.dtype(np.float32)])


def test_signs_do_not_depend_on_the_chunks():
    X = make_rows(200, 20)
    whole, chunked = Subspace.from_rows(X), in_chunks(X, [3, 50])
    np.testing.assert_allclose(whole.components, chunked.components, atol=1e-9)


# -------------------------------------------------------------------------- weights, forgetting


@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array])
@pytest.mark.parametrize(("n", "d"), [(90, 20), (60, 300)])
@pytest.mark.parametrize("center", [True, False])
def test_integer_weights_equal_repeated_rows(convert, n, d, center):
    X = make_rows(n, d, density=0.5)
    w = np.random.default_rng(1).integers(0, 4, n)
    subspace = Subspace.from_rows(convert(X), center=center, sample_weight=w)
    assert_summarises(subspace, np.repeat(X, w, axis=0), center=center)


@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("d", [20, 300])
def test_fractional_weights_equal_weighted_svd(convert, d):
    X = make_rows(80, d)
    w = np.random.default_rng(1).uniform(0.1, 2, 80)
    assert_summarises(in_chunks(convert(X), [1, 30], sample_weight=w), X, w)


@pytest.mark.parametrize("position", [0, 40])
@pytest.mark.parametrize(("n", "d"), [(90, 20), (60, 300)])
@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array])
def test_row_of_zero_weight_has_no_influence_however_large(convert, n, d, position):
    X, w = make_rows(n, d), np.ones(n)
    X[position], w[position] = 1e20, 0
    subspace = Subspace.from_rows(convert(X), sample_weight=w)
    assert_summarises(subspace, np.delete(X, position, axis=0))


@pytest.mark.parametrize("d", [5, 300])
def test_rows_all_of_zero_weight_change_nothing(d):
    X, zero = make_rows(10, d), np.zeros(10)
    assert Subspace.from_rows(X, sample_weight=zero).n_samples == 0
    start = Subspace.from_rows(X)
    after = start.update(X + 1, sample_weight=zero)
    assert (after.n_samples, after.scatter) == (start.n_samples, start.scatter)
    np.testing.assert_array_equal(after.components, start.components)


@pytest.mark.parametrize("sizes", [[1], [13], [1, 60], [1000]])
@pytest.mark.parametrize("factor", [0.999, 0.95])
@pytest.mark.parametrize(
    ("d", "convert"), [(20, np.asarray), (300, np.asarray), (300, sp.csr_array)]
)
def test_forgetting_equals_exponentially_weighted_svd_however_cut(factor, sizes, d, convert):
    X = make_rows(120, d, cond=3)
    w = np.random.default_rng(1).uniform(0.5, 2, len(X))
    fading = factor ** np.arange(len(X))[::-1]
    # at 0.95 the first rows weigh 0.95^119 = 0.002, the condition number grows to 3 / 0.045
    plain = in_chunks(convert(X), sizes, forgetting_factor=factor)
    assert_summarises(plain, X, fading)
    weighted = in_chunks(convert(X), sizes, forgetting_factor=factor, sample_weight=w)
    assert_summarises(weighted, X, w * fading)


def test_rows_of_zero_weight_still_let_time_pass():
    X = make_rows(60, 10)
    w = np.ones(60)
    w[20:40] = 0
    fading = 0.95 ** np.arange(60)[::-1]
    for sizes in ([60], [20]):
        subspace = in_chunks(X, sizes, forgetting_factor=0.95, sample_weight=w)
        assert_summarises(subspace, X, w * fading)


def test_long_forgotten_rows_underflow_quietly():
    X = make_rows(3000, 4, cond=2)
    X[:1000] *= 1e6
    subspace = in_chunks(X, [1, 2500], forgetting_factor=0.5)
    last = slice(-100, None)  # older rows weigh 2^-100 at most
    assert_summarises(subspace, X[last], 0.5 ** np.arange(100)[::-1])


def test_decay_equals_weights():
    X = make_rows(50, 20)
    start = Subspace.from_rows(X)
    assert_summarises(start.decay(0.3), X, np.full(50, 0.3))
    assert start.decay(1.0) is start
    nothing = start.decay(0)
    assert (nothing.n_samples, nothing.scatter, nothing.n_components) == (0, 0, 0)


def test_rows_too_light_for_a_float_are_forgotten():
    subspace = Subspace.from_rows(1e3 * np.random.default_rng(0).standard_normal((3, 4)))
    subspace = subspace._named(list("abcd"))
    assert subspace.n_samples * 1e-300 * 1e-25 == 0 < subspace.scatter * 1e-300 * 1e-25
    for weight in (1e-18, 1e-21, 1e-23, 1e-25):
        light = subspace.decay(1e-300).decay(weight)
        assert Subspace.from_bytes(light.to_bytes()).to_bytes() == light.to_bytes()
        assert light.feature_names == subspace.feature_names
        assert (light.n_samples == 0) == (len(light.components) == 0) == (weight < 1e-23)


# -------------------------------------------------------------------------- truncation


@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array])
@pytest.mark.parametrize(("n", "d"), [(3000, 30), (90, 256), (60, 300)])
def test_truncation_is_exact_while_all_directions_are_kept_between(convert, n, d):
    # 60 rows by 300 features: one block, so nothing was cut before the end
    X = make_rows(n, d, cond=100)
    subspace = Subspace.from_rows(convert(X), 3)
    assert_summarises(subspace, X, n_components=3)
    assert_summarises(Subspace.from_rows(convert(X)).truncate(3), X, n_components=3)


def test_scatter_stays_exact_when_directions_are_cut_block_by_block():
    X = make_rows(1500, 300)
    subspace = in_chunks(X, [1, 70, 200], n_components=4)
    n, mean, scatter, _, _ = oracle(X)
    assert subspace.n_components == 4
    np.testing.assert_allclose(subspace.scatter, scatter, rtol=1e-12)
    np.testing.assert_allclose(subspace.mean, mean, rtol=0, atol=100 * EPS * np.abs(X).max())
    np.testing.assert_allclose(subspace.total_variance, X.var(axis=0, ddof=1).sum(), rtol=1e-12)
    np.testing.assert_allclose(subspace.n_samples, n)
    assert_orthonormal(subspace.components)


def test_derived_variances_are_those_of_numpy():
    X = make_rows(100, 20)
    subspace = Subspace.from_rows(X, 3)
    _, _, scatter, s, _ = oracle(X)
    np.testing.assert_allclose(subspace.explained_variance, s[:3] ** 2 / 99, rtol=1e-10)
    np.testing.assert_allclose(subspace.explained_variance_ratio, s[:3] ** 2 / scatter, rtol=1e-10)


def test_many_blocks_above_256_features_stay_near_the_best_subspace():
    X = make_power_law(10_000, 500, alpha=1.0, random_state=0)
    subspace = Subspace.from_rows(X, 20)
    assert_orthonormal(subspace.components)
    Z = X - X.mean(axis=0)
    best = np.linalg.eigvalsh(Z.T @ Z)[:-20].sum()
    error = np.sum(Z**2) - np.sum((Z @ subspace.components.T) ** 2)
    assert error / best - 1 <= 1e-4


@pytest.mark.parametrize("d", [256, 257, 300])
def test_all_directions_are_kept_when_no_number_is_given(d):
    X = make_rows(700, d)
    subspace = Subspace.from_rows(X)
    assert subspace.n_components == d
    assert_summarises(subspace, X)


def test_truncate_keeps_what_fits_and_zero_is_allowed():
    subspace = Subspace.from_rows(make_rows(20, 5))
    assert subspace.truncate(9) is subspace
    none = subspace.truncate(0)
    assert none.components.shape == (0, 5)
    assert (none.scatter, none.n_samples) == (subspace.scatter, subspace.n_samples)


# -------------------------------------------------------------------------- large means


@pytest.mark.parametrize("sizes", [[1000], [1, 30]])
@pytest.mark.parametrize("d", [20, 300])
@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array])
def test_mean_1e8_with_deviation_1(convert, d, sizes):
    X = make_rows(200, d) + 1e8
    # the mean itself is rounded to eps 1e8, once per chunk
    assert_summarises(in_chunks(convert(X), sizes), X, tol=100 * EPS * 1e8)


@pytest.mark.parametrize("sizes", [[1000], [1, 30]])
@pytest.mark.parametrize("d", [20, 300])
@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array])
def test_float32_with_mean_1000_and_deviation_1(convert, d, sizes):
    X = (make_rows(200, d) + 1000).astype(np.float32)
    subspace = in_chunks(convert(X), sizes)
    assert subspace.components.dtype == np.float32
    assert_summarises(subspace, X)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n_components", [None, 5])
def test_sparse_rows_with_mean_1000_beside_an_empty_row(dtype, n_components):
    """No column is fully stored, and all directions but one live below that of the mean."""
    n = 600
    X = make_rows(n, 300) + 1000
    X[17] = 0
    X = X.astype(dtype)
    _, mean, scatter, s, _ = oracle(X)
    subspace = Subspace.from_rows(sp.csr_array(X), n_components)
    k = subspace.n_components
    # backward stable in the working precision, or Lanczos' 1e-2 squared
    atol = 10 * np.finfo(dtype).eps * s[0]
    # of Gram type in float64: s_i^2 is known to n eps s_0^2
    atol = np.maximum(atol, n * EPS * s[0] ** 2 / s[:k]) + (1e-4 * s[:k] if n_components else 0)
    assert np.all(np.abs(subspace.singular_values - s[:k]) <= atol)
    np.testing.assert_allclose(subspace.mean, mean, rtol=10 * np.finfo(dtype).eps)
    # sum of squares less n |mean|^2 loses a factor of n, so that it must be summed in float64
    np.testing.assert_allclose(subspace.scatter, scatter, rtol=10 * n * EPS)


@pytest.mark.parametrize("weighted", [False, True])
def test_sparse_columns_fully_stored_with_mean_1e6(weighted):
    X = make_rows(150, 300, density=0.3)
    X[:, ::50] = 1e6 + np.random.default_rng(0).standard_normal((150, 6))
    w = np.random.default_rng(1).uniform(0.5, 2, 150) if weighted else None
    sparse = sp.csr_array(X)
    before = sparse.data.copy()
    subspace = in_chunks(sparse, [150, 1], sample_weight=w)
    assert_summarises(subspace, X, w, tol=100 * EPS * 1e6)
    np.testing.assert_array_equal(sparse.data, before)


# -------------------------------------------------------------------------- degenerate rows


def degenerate(kind, n, d):
    row = np.random.default_rng(0).standard_normal(d) + 0.1
    if kind == "constant":
        return np.tile(row, (n, 1))
    if kind == "zero":
        return np.zeros((n, d))
    return row[None]


@pytest.mark.parametrize("n_components", [None, 5])
@pytest.mark.parametrize(("n", "d"), [(30, 20), (30, 300), (700, 300)])
@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("kind", ["constant", "zero", "one row"])
def test_rows_without_variance_give_zeros_not_nan(kind, convert, n, d, n_components):
    X = degenerate(kind, n, d)
    subspace = Subspace.from_rows(convert(X), n_components)
    assert subspace.n_samples == len(X)
    rounding = 100 * EPS * np.abs(X).max()
    np.testing.assert_allclose(subspace.mean, X[0], rtol=0, atol=rounding)
    assert subspace.scatter <= len(X) * d * rounding**2
    assert_orthonormal(subspace.components)
    for values in (
        subspace.singular_values,
        subspace.explained_variance,
        subspace.explained_variance_ratio,
    ):
        assert np.isfinite(values).all()
    assert np.isfinite(subspace.total_variance)
    assert Subspace.from_bytes(subspace.to_bytes()).n_samples == len(X)
    # and it can be continued
    more = make_rows(50, d)
    everything = np.concatenate([X, more])
    assert_summarises(Subspace.from_rows(convert(X)).update(convert(more)), everything)


@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("d", [20, 300])
def test_constant_and_zero_columns_get_no_loading(convert, d):
    X = make_rows(100, d)
    X[:, 3], X[:, 4] = 0.1, 0
    subspace = in_chunks(convert(X), [1, 33])
    assert_summarises(subspace, X)
    leading = subspace.singular_values > 1e-3 * subspace.singular_values[0]
    assert np.abs(subspace.components[leading][:, 3:5]).max() <= 1e-10


@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("d", [20, 300])
def test_duplicate_rows_count_and_add_no_direction(convert, d):
    X = np.repeat(make_rows(5, d), 40, axis=0)
    subspace = Subspace.from_rows(convert(X))
    assert subspace.n_components == 4
    assert_summarises(subspace, X)


@pytest.mark.parametrize("solver", ["auto", "gram", "qr"])
def test_blocks_of_more_rows_than_columns_of_which_few_directions_are_kept(solver):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 5)) @ rng.standard_normal((5, 30)) + 7
    subspace = Subspace.empty(30)
    for part in np.array_split(X, 4):
        subspace = updated(subspace, part, max_keep=5, svd_solver=solver)
    assert_summarises(subspace, X)


@pytest.mark.parametrize("d", [20, 300])
@pytest.mark.parametrize("solver", ["auto", "gram", "qr"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_fewer_rows_than_components(n, solver, d):
    X = np.random.default_rng(0).standard_normal((n, d)) + 5
    subspace = updated(Subspace.empty(d), X, max_keep=10, svd_solver=solver)
    assert subspace.n_components == n - 1
    np.testing.assert_allclose(subspace.singular_values, oracle(X)[3][: n - 1], rtol=1e-10)
    more = make_rows(40, d)
    everything = np.concatenate([X, more])
    assert_summarises(updated(subspace, more, svd_solver="auto"), everything)


def test_low_rank_sparse_rows_on_the_lanczos_route():
    rng = np.random.default_rng(0)
    X = (rng.random((800, 2)) < 0.2) @ rng.standard_normal((2, 500))
    subspace = Subspace.from_rows(sp.csr_array(X), 5)
    assert_summarises(subspace, X)


# -------------------------------------------------------------------------- solvers


@pytest.mark.parametrize("solver", ["auto", "gram", "qr"])
@pytest.mark.parametrize("shape", SHAPES[:3])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_every_solver_equals_svd(solver, shape, dtype):
    X = make_rows(*shape, dtype=dtype)
    start = Subspace.empty(shape[1], dtype=dtype)
    assert_summarises(updated(start, X, svd_solver=solver, block_size=200), X)


@pytest.mark.parametrize("solver", ["auto", "qr"])
@pytest.mark.parametrize(("n", "d"), [(60, 12), (20, 300)])
@pytest.mark.parametrize("block_size", [7, 1000])
def test_huge_condition_numbers_are_resolved_by_qr(solver, n, d, block_size):
    X = make_rows(n, d, cond=1e11, mean=0)
    _, _, _, s, Vt = oracle(X)
    subspace = updated(Subspace.empty(d), X, svd_solver=solver, block_size=block_size)
    backward = 100 * EPS * s[0]
    r = min(n - 1, d)
    assert_orthonormal(subspace.components)
    np.testing.assert_allclose(subspace.singular_values[:r], s[:r], rtol=0, atol=backward)
    for cut in range(1, r):  # a Gram matrix knows nothing below 1e-8 of the largest
        gap = s[cut - 1] - s[cut]
        distance = subspace_distance(subspace.components[:cut], Vt[:cut])
        assert distance <= backward / gap


@pytest.mark.parametrize(("n", "d"), [(60, 12), (20, 300)])
def test_forced_gram_on_huge_condition_numbers_keeps_what_it_resolves(n, d):
    X = make_rows(n, d, cond=1e11, mean=0)
    _, _, scatter, s, Vt = oracle(X)
    subspace = updated(Subspace.empty(d), X, svd_solver="gram")
    assert_orthonormal(subspace.components)
    resolved = s > 1e-4 * s[0]  # squared: 1e-8, eight digits above eps
    r = int(resolved.sum())
    np.testing.assert_allclose(subspace.singular_values[:r], s[:r], rtol=100 * EPS * 1e8)
    assert subspace_distance(subspace.components[:r], Vt[:r]) <= 100 * EPS * 1e8
    np.testing.assert_allclose(subspace.scatter, scatter, rtol=1e-12)


@pytest.mark.parametrize("d", [20, 300])
@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array])
def test_float32_rows_whose_squares_overflow_float32(convert, d):
    X = make_rows(60, d, dtype=np.float32) * np.float32(1e20)
    assert_summarises(Subspace.from_rows(convert(X)), X)


@pytest.mark.parametrize("d", [20, 300])
@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array])
def test_rows_whose_scatter_is_no_finite_number_are_refused(convert, d):
    X = make_rows(60, d) * 1e160
    with np.errstate(all="ignore"), pytest.raises(ValueError, match=r"X .*large|overflow|finite"):
        Subspace.from_rows(convert(X))


# -------------------------------------------------------------------------- sparse, many features


def sparse_rows(n, d, rank=5, noise=5.0):
    """About 10 % stored: each row is one of rank + 1 sparse patterns, and 1 % of noise."""
    rng = np.random.default_rng(0)
    words = np.argsort(rng.random((rank + 1, d)), axis=1)[:, : d // 10]
    topic = rng.integers(rank + 1, size=n)
    X = np.where(rng.random((n, d)) < 0.01, noise * rng.random((n, d)), 0.0)
    np.add.at(X, (np.arange(n)[:, None], words[topic]), rank + 2.0 - topic[:, None])
    return X


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("block_size", [10_000, 700])
def test_sparse_lanczos_route_finds_the_leading_subspace(block_size, weighted):
    # at least 700 rows a block, 5 + 10 directions: R > 512 and 4 * 15 < min(R, d)
    X = sparse_rows(1400, 1000, noise=0.1)
    w = np.random.default_rng(1).uniform(0.5, 2, len(X)) if weighted else None
    start = Subspace.empty(1000)
    kept = updated(start, sp.csr_array(X), w, max_keep=15, block_size=block_size)
    subspace = kept.truncate(5)
    _, mean, scatter, s, Vt = oracle(X, w)
    assert_orthonormal(kept.components)
    np.testing.assert_allclose(subspace.mean, mean, atol=1e-14)
    np.testing.assert_allclose(subspace.scatter, scatter, rtol=1e-12)
    # energy converges as the square of Lanczos' tolerance of 1e-2, directions as itself
    np.testing.assert_allclose(subspace.singular_values, s[:5], rtol=1e-4)
    assert subspace_distance(subspace.components, Vt[:5]) <= 1e-2
    best = np.sum(s[5:] ** 2)
    error = scatter - np.sum(((s[:, None] * Vt) @ subspace.components.T) ** 2)
    assert error / best - 1 <= 1e-4


@pytest.mark.parametrize("n_components", [None, 5])
def test_sparse_explicit_gram_route_is_exact(n_components):
    X = sparse_rows(450, 1000)
    subspace = Subspace.from_rows(sp.csr_array(X), n_components)
    if n_components is None:
        # the last few of 449 directions have small values, compared with absolute tolerance
        subspace = subspace.truncate(100)
    assert_summarises(subspace, X, n_components=subspace.n_components)


@pytest.mark.parametrize("n_components", [1, None])
@pytest.mark.parametrize("n", [2, 40, 600])
def test_csr_with_duplicate_entries_means_their_sums(n, n_components):
    X = sp.csr_array(sparse_rows(n, 300, rank=3))
    halves = np.repeat(X.data / 2, 2)
    split = sp.csr_array((halves, np.repeat(X.indices, 2), 2 * X.indptr), shape=X.shape)
    subspace = Subspace.from_rows(split, n_components)
    assert split.nnz == 2 * X.nnz, "the caller's matrix was changed"
    _, mean, scatter, s, _ = oracle(X)
    np.testing.assert_allclose(subspace.scatter, scatter, rtol=1e-12)
    np.testing.assert_allclose(subspace.mean, mean, atol=1e-14)
    np.testing.assert_allclose(subspace.singular_values[:1], s[:1], rtol=1e-4)  # as Lanczos does


def test_sparse_rows_with_many_features_are_never_densified():
    d, k = 50_000, 10
    X = sp.csr_array(sp.random(600, d, density=1e-3, format="csr", random_state=0))
    tracemalloc.start()
    try:
        subspace = Subspace.from_rows(X, k)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    kept = 8 * d * (k + 15)  # one basis with its oversampling; the dense rows are 24 times that
    assert peak <= 6 * kept
    assert_orthonormal(subspace.components)
    centre = np.eye(600) - 1 / 600
    squares = np.linalg.eigvalsh(centre @ (X @ X.T).toarray() @ centre)[::-1]
    np.testing.assert_allclose(subspace.scatter, squares.sum(), rtol=1e-12)
    np.testing.assert_allclose(subspace.mean, X.mean(axis=0), rtol=1e-12)
    # Lanczos stops at 1e-2: without gaps a value may err by that, downwards; energy by its square
    best = np.sqrt(squares[:k])
    assert np.all(subspace.singular_values <= best * (1 + 1e-12))
    assert np.all(subspace.singular_values >= best * (1 - 1e-2))
    error = squares.sum() - np.sum((centre @ (X @ subspace.components.T)) ** 2)
    assert error / squares[k:].sum() - 1 <= 1e-4


# -------------------------------------------------------------------------- a value


def freeze(X):
    for array in (X.data, X.indices, X.indptr) if sp.issparse(X) else (X,):
        array.flags.writeable = False
    return X


@pytest.mark.parametrize("solver", ["auto", "gram", "qr"])
@pytest.mark.parametrize("d", [20, 300])
@pytest.mark.parametrize("convert", [np.array, sp.csr_array, sp.csc_array])
def test_read_only_input_works(convert, d, solver):
    X = make_rows(80, d)
    frozen = freeze(convert(X))
    w = freeze(np.random.default_rng(1).uniform(0.5, 2, 80))
    assert_summarises(Subspace.from_rows(frozen, sample_weight=w), X, w)
    assert_summarises(Subspace.from_rows(frozen, center=False), X, center=False)
    # past the estimator's validation, by every solver
    if convert is not sp.csc_array:
        assert_summarises(updated(Subspace.empty(d), frozen, w, svd_solver=solver), X, w)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("shape", SHAPES[:3])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("container", ["dense", "fortran", "csr"])
def test_input_is_neither_written_nor_aliased(container, dtype, shape, center):
    original = make_rows(*shape, dtype=dtype)
    X = CONTAINERS[container](original.copy(order="K"))
    w = np.ones(shape[0])
    subspace = Subspace.from_rows(X, center=center, sample_weight=w)
    np.testing.assert_array_equal(X.toarray() if sp.issparse(X) else X, original)
    assert np.all(w == 1)
    values = X.data if sp.issparse(X) else X
    for array in (subspace.components, subspace.singular_values, subspace.mean):
        assert not np.shares_memory(array, values)


def test_operations_leave_their_summary_alone():
    X = make_rows(60, 300)
    subspace = Subspace.from_rows(X[:30])
    before = subspace.to_bytes()
    subspace.update(X[30:], 3, forgetting_factor=0.9)
    subspace.decay(0.5)
    subspace.truncate(2)
    assert subspace.to_bytes() == before


def test_summary_is_immutable():
    subspace = Subspace.from_rows(make_rows(30, 5))
    for piece in (
        subspace,
        subspace.truncate(2),
        subspace.decay(0.5),
        subspace.update([[1.0] * 5]),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            piece.n_samples = 3.0
        for name in ("components", "singular_values", "mean"):
            with pytest.raises(ValueError, match="read-only"):
                getattr(piece, name)[...] = 0


def test_constructor_copies_its_arrays():
    V, s, mean = np.eye(2, 3), np.array([2.0, 1.0]), np.zeros(3)
    subspace = Subspace(V, s, mean, 5, 6.0)
    V[:], s[:], mean[:] = 7, 7, 7
    np.testing.assert_array_equal(subspace.components, np.eye(2, 3))
    np.testing.assert_array_equal(subspace.singular_values, [2, 1])
    np.testing.assert_array_equal(subspace.mean, 0)


@pytest.mark.parametrize("clone", [lambda s: pickle.loads(pickle.dumps(s)), copy.deepcopy])
def test_pickle_and_copy_keep_the_value_and_the_stream_goes_on(clone):
    X = make_rows(60, 300)
    subspace = Subspace.from_rows(X[:30])
    twin = clone(subspace)
    assert twin.to_bytes() == subspace.to_bytes()
    with pytest.raises(ValueError, match="read-only"):
        twin.mean[0] = 1
    assert_summarises(twin.update(X[30:]), X)


def test_huge_counts_do_not_overflow():
    rng = np.random.default_rng(0)
    V = random_basis(rng, 3, 6)
    s = np.array([3e6, 2e6, 1e6])
    huge = Subspace(V, s, np.zeros(6), np.int64(10**12), s @ s)
    row = rng.standard_normal((1, 6))
    after = huge.update(row, sample_weight=[1e12])
    # stack of the summary's rows and the mean correction, with n1 n2 / (n1 + n2) = 5e11
    stack = np.concatenate([s[:, None] * V, np.sqrt(5e11) * row])
    expected, Vt = np.linalg.svd(stack, full_matrices=False)[1:]
    assert after.n_samples == 2e12
    np.testing.assert_allclose(after.singular_values, expected, rtol=1e-10)
    assert subspace_distance(after.components, Vt) <= 1e-10
    np.testing.assert_allclose(after.scatter, np.sum(stack**2), rtol=1e-12)
    np.testing.assert_allclose(after.mean, row[0] / 2, rtol=1e-12)


def test_variances_of_one_row_and_of_no_row_are_zero():
    for subspace, n in ((Subspace.empty(3), 0), (Subspace.from_rows([[1.0, 2, 3]]), 1)):
        assert (subspace.n_samples, subspace.total_variance, subspace.scatter) == (n, 0, 0)
        np.testing.assert_array_equal(subspace.explained_variance, 0)
        np.testing.assert_array_equal(subspace.explained_variance_ratio, 0)
        assert f"n_samples={n}" in repr(subspace)


def test_empty_is_where_every_stream_starts():
    X = make_rows(50, 20, dtype=np.float32)
    empty = Subspace.empty(20, dtype=np.float32)
    assert (empty.n_samples, empty.n_components, empty.n_features) == (0, 0, 20)
    assert_summarises(empty.update(X), X)
    about_origin = Subspace.empty(20, centered=False).update(X)
    assert_summarises(about_origin, X, center=False, tol=TOL[X.dtype])


# -------------------------------------------------------------------------- other estimators


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("make", [PCA, IncrementalPCA, StreamingPCA])
def test_fitted_pca_is_read_as_a_summary(make, dtype):
    X = make_rows(120, 10, dtype=dtype)
    tol = TOL[np.dtype(dtype)]
    whole = Subspace.from_estimator(make(10).fit(X))
    assert_summarises(whole, X, tol=tol)
    cut = Subspace.from_estimator(make(3).fit(X))
    # the scatter is recovered from the ratios, although seven directions are gone
    np.testing.assert_allclose(cut.scatter, oracle(X)[2], rtol=tol)
    assert cut.n_samples == 120
    more = make_rows(40, 10, seed=1, dtype=dtype)
    assert_summarises(whole.update(more), np.concatenate([X, more]), tol=TOL[np.dtype(np.float32)])


def test_truncated_svd_needs_the_count_and_is_about_the_origin():
    X = make_rows(120, 10, mean=2.0)
    svd = TruncatedSVD(4, algorithm="arpack", random_state=0).fit(X)
    with pytest.raises(ValueError, match=r"TruncatedSVD .*n_samples"):
        Subspace.from_estimator(svd)
    total = np.sum(X**2)
    subspace = Subspace.from_estimator(svd, n_samples=120, scatter=total)
    assert_summarises(subspace, X, center=False, n_components=4)
    least = Subspace.from_estimator(svd, n_samples=120)
    np.testing.assert_allclose(least.scatter, np.sum(oracle(X, center=False)[3][:4] ** 2))


@pytest.mark.parametrize("estimator", [PCA(), object()])
def test_unfitted_or_unfit_estimator_is_named(estimator):
    with pytest.raises(TypeError, match=rf"{type(estimator).__name__} has no components_"):
        Subspace.from_estimator(estimator)


# -------------------------------------------------------------------------- columns


def column_squares(X, w=None, center=True):
    """Sum of squares of each column about the mean, by the definition."""
    X = as_dense(X)
    w = np.ones(len(X)) if w is None else w
    mean = w @ X / w.sum() if center else 0
    return w @ (X - mean) ** 2


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize(("n", "d"), [(300, 40), (30, 200), (900, 300), (60, 3000)])
def test_scatter_of_each_column_is_that_of_numpy(n, d, container, center):
    density = 0.5 if container in ("csr", "csc") else 1.0
    X = make_rows(n, d, density=density)
    w = np.random.default_rng(1).uniform(0.5, 2, n)
    fading = 0.99 ** np.arange(n)[::-1]
    given = CONTAINERS[container](X)
    for weight, factor, true in ((None, 1.0, np.ones(n)), (w, 1.0, w), (w, 0.99, w * fading)):
        start = Subspace.empty(d, centered=center)
        options = {"sample_weight": weight, "forgetting_factor": factor}
        found = in_chunks(given, [n // 2, 7], start, n_components=3, **options)
        assert found.n_components == 3
        expected = column_squares(X, true, center)
        np.testing.assert_allclose(found.column_scatter, expected, rtol=1e-11)
        np.testing.assert_allclose(found.column_scatter.sum(), found.scatter, rtol=1e-12)
    halves = [Subspace.from_rows(given[rows], 3, center=center) for rows in (slice(9), slice(9, n))]
    merged = merge_subspaces(halves, 2)
    np.testing.assert_allclose(merged.column_scatter, column_squares(X, None, center), rtol=1e-11)
    half = merged.decay(0.5).column_scatter
    np.testing.assert_array_equal(half, merged.column_scatter / 2)
    unknown = merge_subspaces([halves[0], halves[1]._replace(column_scatter=None)])
    assert unknown.column_scatter is None


def test_scatter_of_columns_beside_a_large_mean():
    X = make_rows(200, 300, density=0.4)
    X[:, ::50] = 1e6 + np.random.default_rng(0).standard_normal((200, 6))
    X[:, 7] = 3.0
    for convert in (np.asarray, sp.csr_array):
        found = in_chunks(convert(X), [150, 1]).column_scatter
        expected = column_squares(X)
        np.testing.assert_allclose(found[::50], expected[::50], rtol=1e-8)
        np.testing.assert_allclose(np.delete(found, 7), np.delete(expected, 7), rtol=1e-8)
        assert 0 <= found[7] <= 1e-20
    single = in_chunks(X.astype(np.float32), [150, 50]).column_scatter
    np.testing.assert_allclose(single[1:7], column_squares(X.astype(np.float32))[1:7], rtol=1e-6)


def test_scatter_of_columns_of_many_sparse_columns():
    X = sp.csr_array(sp.random(300, 50_000, density=1e-3, format="csr", random_state=0))
    found = Subspace.from_rows(X, 5)
    n, mean = X.shape[0], X.mean(axis=0)
    expected = X.power(2).sum(axis=0) - n * mean**2
    np.testing.assert_allclose(found.column_scatter, expected, rtol=1e-10, atol=1e-14)


def units(n=2000, d=400):
    """Power-law rows in columns of different units."""
    rng = np.random.default_rng(0)
    return make_power_law(n, d, alpha=1.0, random_state=0) * rng.lognormal(0, 1, d)


@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array])
def test_covariance_above_256_features_has_the_exact_diagonal(convert):
    X = units()
    pca = StreamingPCA(10).fit(convert(X))
    covariance = pca.get_covariance()
    np.testing.assert_allclose(np.diag(covariance), X.var(axis=0, ddof=1), rtol=1e-10)
    product = pca.get_precision() @ covariance
    np.testing.assert_allclose(product, np.eye(400), atol=1e-9)
    new = units(50) + 0.1
    density = multivariate_normal(pca.mean_, covariance).logpdf(new)
    np.testing.assert_allclose(pca.score_samples(convert(new)), density, rtol=1e-9)
    shards = FederatedPCA(10, n_clients=7).fit(convert(X))
    np.testing.assert_allclose(np.diag(shards.get_covariance()), np.diag(covariance), rtol=1e-10)


def test_residuals_of_columns_are_likelier_than_one_for_all():
    X = units(3000)
    ours, theirs = StreamingPCA(10).fit(X[:2000]), PCA(10).fit(X[:2000])
    assert ours.score(X[2000:]) > theirs.score(X[2000:])


def test_covariance_up_to_256_features_is_that_of_scikit_learn():
    X = units(d=256)
    ours, theirs = StreamingPCA(10).fit(X), PCA(10, svd_solver="full").fit(X)
    np.testing.assert_allclose(ours.get_covariance(), theirs.get_covariance(), atol=1e-10)
    np.testing.assert_allclose(ours.score(X), theirs.score(X), rtol=1e-10)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_column_without_variance_is_not_impossible_in_the_next_row(dtype):
    X = units().astype(dtype)
    X[:, 5] = 0
    pca = StreamingPCA(10).fit(X)
    assert pca.get_covariance()[5, 5] == 0
    assert pca.get_covariance().dtype == dtype
    row = X[:1].copy()
    row[0, 5] = np.sqrt(pca.noise_variance_)
    before, after = pca.score_samples(np.concatenate([X[:1], row]))
    np.testing.assert_allclose(before - after, 0.5, rtol=1e-3)


@pytest.mark.parametrize("n_components", [None, 0.999999, 50])
def test_covariance_where_nothing_is_left_out(n_components):
    X = make_rows(60, 300)
    pca = StreamingPCA(n_components).fit(X)
    np.testing.assert_allclose(np.diag(pca.get_covariance()), X.var(axis=0, ddof=1), rtol=1e-3)
    assert np.isfinite(pca.get_precision()).all()
    assert np.isfinite(pca.score(X))


# -------------------------------------------------------------------------- errors


def fields(**changes):
    good = {
        "components": np.eye(2, 4),
        "singular_values": [2.0, 1.0],
        "mean": np.zeros(4),
        "n_samples": 9,
        "scatter": 6.0,
    }
    return good | changes


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"components": np.eye(5, 4)}, r"components .*at most d=4 rows, got 5"),
        ({"components": np.ones(4)}, r"components .*2-D.*\(4,\)"),
        ({"components": np.zeros((2, 0))}, r"components .*non-empty"),
        ({"components": np.eye(2, 4) * 1j}, r"components .*complex"),
        ({"components": np.eye(2, 4) * 1.01}, r"components .*orthonormal"),
        ({"components": np.ones((2, 4)) / 2}, r"components .*orthonormal"),
        ({"components": np.full((2, 4), np.nan)}, r"components .*finite"),
        ({"singular_values": [1.0]}, r"singular_values must have shape \(2,\), got \(1,\)"),
        ({"singular_values": [1.0, 2.0]}, r"singular_values .*decreasing"),
        ({"singular_values": [2.0, -1.0]}, r"singular_values .*non-negative"),
        ({"singular_values": [np.inf, 1.0]}, r"singular_values .*finite"),
        ({"mean": np.zeros(3)}, r"mean must have shape \(4,\), got \(3,\)"),
        ({"mean": [0, 0, 0, np.inf]}, r"mean .*finite"),
        ({"mean": np.ones(4), "centered": False}, r"mean .*zero .*centered=False"),
        ({"n_samples": -1}, r"n_samples .*non-negative, got -1"),
        ({"n_samples": np.nan}, r"n_samples .*finite"),
        ({"n_samples": 0}, r"n_samples=0 .*no energy"),
        ({"scatter": 4.9}, r"scatter=4.9 .*5.0"),
        ({"scatter": np.inf}, r"scatter .*finite"),
    ],
)
def test_fields_that_do_not_fit_together_are_refused(changes, match):
    with pytest.raises(ValueError, match=match):
        Subspace(**fields(**changes))
    assert Subspace(**fields()).n_components == 2


def test_entries_whose_products_overflow_are_not_orthonormal():
    # V V^T holds inf - inf = NaN: a comparison with a tolerance must not let it pass
    huge = np.random.default_rng(0).choice([1e200, -1e200], size=(16, 1024))
    with np.errstate(all="ignore"), pytest.raises(ValueError, match=r"components .*orthonormal"):
        Subspace(huge, np.zeros(16), np.zeros(1024), 1, 0.0)


@pytest.mark.parametrize("n_components", [-1, -40, 2.5, "3"])
@pytest.mark.parametrize("d", [5, 300])
def test_bad_number_of_components_is_named(d, n_components):
    X = make_rows(20, d)
    match = rf"n_components must .*got {n_components!r}"
    subspace = Subspace.from_rows(X)
    for call in (
        lambda: Subspace.from_rows(X, n_components),
        lambda: subspace.update(X, n_components),
        lambda: subspace.truncate(n_components),
    ):
        with pytest.raises((ValueError, TypeError), match=match):
            call()


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda s: s.update(np.ones((2, 6))), r"X has 6 features, expected 5"),
        (lambda s: s.update(np.full((2, 5), np.nan)), r"X contains NaN"),
        (lambda s: s.update(np.full((2, 5), np.inf)), r"X contains infinity"),
        (lambda s: s.update(np.ones((0, 5))), r"0 sample"),
        (lambda s: s.update(np.ones(5)), r"Expected 2D array"),
        (lambda s: s.update(np.ones((2, 5)), forgetting_factor=0), r"forgetting_factor .*got 0"),
        (lambda s: s.update(np.ones((2, 5)), forgetting_factor=1.1), r"forgetting_factor .*1\.1"),
        (lambda s: s.update(np.ones((2, 5)), sample_weight=[1, -1]), r"sample_weight"),
        (lambda s: s.update(np.ones((2, 5)), sample_weight=[1]), r"[Ss]ample_weight"),
        (lambda s: s.update(np.ones((2, 5)), sample_weight=[1, np.nan]), r"[Ss]ample_weight|NaN"),
        (lambda s: s.decay(-0.5), r"weight .*got -0\.5"),
        (lambda s: s.decay(np.inf), r"weight .*got inf"),
        (lambda s: Subspace.empty(0), r"n_features .*got 0"),
        (lambda s: Subspace.empty(2.5), r"n_features .*got 2\.5"),
    ],
)
def test_bad_arguments_are_named_with_value_and_expectation(call, match):
    with pytest.raises(ValueError, match=match):
        call(Subspace.from_rows(make_rows(20, 5)))


def test_a_summary_without_directions_has_count_mean_and_scatter():
    rng = np.random.default_rng(0)
    X = 10 * rng.standard_normal((400, 3)) @ rng.standard_normal((3, 300))  # three stand out
    X += rng.standard_normal((400, 300)) + 2
    summary = Subspace.from_rows(X, 0)
    assert summary.n_components <= 10  # reserves
    assert summary.n_samples == 400
    np.testing.assert_allclose(summary.mean, X.mean(axis=0))
    np.testing.assert_allclose(summary.scatter, np.sum((X - X.mean(axis=0)) ** 2))
