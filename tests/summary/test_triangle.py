"""Triangular factors of rows, and their merge."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import (
    peak_bytes,
    rows_of_decay,
    sine_of_orthonormal,
)
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from triangle_helpers import Oracle, assert_is_gram, centred, examples, seeds

from fedpca_sklearn.summary._triangle import (
    merge_factors,
    pooled,
    subspace_of,
    triangle_of_rows,
)


@st.composite
def trapezoids(draw, d):
    m = draw(st.integers(0, d))
    return np.triu(np.random.default_rng(draw(seeds)).standard_normal((m, d)))


@examples
@given(data=st.data(), d=st.integers(1, 40))
def test_trapezoids_of_any_sizes_merge(data, d):
    first, second = data.draw(trapezoids(d)), data.draw(trapezoids(d))
    before = first.copy(), second.copy()
    for pair in ((first, second), (second, first)):
        R = merge_factors(*pair)
        assert R.shape == (min(len(first) + len(second), d), d)
        assert_array_equal(np.tril(R, -1), 0)
        assert_is_gram(R.T @ R, first.T @ first + second.T @ second, 1e-12)
    assert_array_equal(first, before[0])
    assert_array_equal(second, before[1])


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("m", [1, 15, 16, 17, 99, 100])
def test_merging_is_blocked_and_exact_for_badly_scaled_columns(m, order):
    rng = np.random.default_rng(24)
    scale = 10.0 ** rng.integers(-8, 9, 100)
    first = np.array(np.triu(rng.standard_normal((100, 100))) * scale, order=order)
    second = np.array(np.triu(rng.standard_normal((m, 100))) * scale, order=order)
    R = merge_factors(first, second)
    assert_array_equal(np.tril(R, -1), 0)
    assert_is_gram(R.T @ R, first.T @ first + second.T @ second, 1e-12)


@examples
@given(
    n=st.integers(0, 30),
    d=st.integers(1, 20),
    mean=st.sampled_from([0.0, 1e8]),
    kind=st.sampled_from(["dense", "Fortran", "float32", "CSR"]),
    weights=st.sampled_from([None, "zeros", "fractions"]),
    seed=seeds,
)
def test_rows_become_a_factor_about_their_mean(n, d, mean, kind, weights, seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) + mean
    if kind == "float32":
        X = (X - 0.9999 * mean).astype(np.float32)
    w = None if weights is None else rng.uniform(0.1, 3, n)
    if weights == "zeros":
        w *= rng.random(n) < 0.6
    data = {"CSR": sp.csr_array, "Fortran": np.asfortranarray}.get(kind, np.asarray)(X)
    triangle = triangle_of_rows(data, w)
    kept = n if w is None else np.count_nonzero(w)
    m = min(kept, d)
    assert triangle.factor.shape == (m, d)
    assert triangle.factor.dtype == np.float64
    assert triangle.n_samples == pytest.approx(n if w is None else w.sum())
    if kept:
        Z, want = centred(X, w)
        assert_is_gram(triangle.factor.T @ triangle.factor, Z.T @ Z, 1e-12)
        assert_allclose(triangle.mean, want, rtol=1e-15, atol=1e-14)
    else:
        assert not triangle.mean.any()


@pytest.mark.parametrize(("n", "d"), [(999, 3), (1000, 3), (1001, 3), (3500, 3), (1300, 400)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("container", [np.asarray, sp.csr_array])
def test_rows_are_reduced_block_by_block(n, d, weighted, container):
    rng = np.random.default_rng(25)
    X = rng.standard_normal((n, d)) + 3 * np.linspace(-1, 1, n)[:, None]  # blocks are unlike
    w = rng.integers(0, 3, n).astype(float) if weighted else None
    triangle = triangle_of_rows(container(X), w)
    Z, mean = centred(X, w)
    assert_is_gram(triangle.factor.T @ triangle.factor, Z.T @ Z, 1e-11)
    assert_allclose(triangle.mean, mean, atol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_are_not_copied_as_a_whole(dtype, weighted):
    X = np.random.default_rng(29).standard_normal((100_000, 8)).astype(dtype)
    w = np.full(len(X), 2.0) if weighted else None
    triangle_of_rows(X[:10], w if w is None else w[:10])
    assert peak_bytes(lambda: triangle_of_rows(X, w)) < 10 * 1000 * 8 * 8  # a few blocks


@pytest.mark.parametrize("parts", [1, 4])
def test_a_mean_far_away_is_exact_to_the_last_digit_of_the_spread(parts):
    rng = np.random.default_rng(26)
    X = 1e8 + rng.standard_normal((1500, 2))
    triangles = [triangle_of_rows(part) for part in np.split(X, parts)]
    whole = pooled(triangles[0].factor, triangles)
    for j in range(2):
        exact = sum(map(Fraction, X[:, j].tolist())) / len(X)
        error = Fraction(float(whole.mean[j])) + Fraction(float(whole.mean_rest[j])) - exact
        assert abs(error) < 1e-14
        assert abs(whole.mean_rest[j]) <= np.spacing(1e8)


@examples
@given(
    sizes=st.lists(st.integers(0, 25), min_size=1, max_size=8),
    d=st.integers(1, 12),
    mean=st.sampled_from([0.0, 1e8]),
    seed=seeds,
)
def test_triangles_pool_to_the_triangle_of_all_rows(sizes, d, mean, seed):
    rng = np.random.default_rng(seed)
    parts = [rng.standard_normal((n, d)) + 9 * rng.standard_normal(d) + mean for n in sizes]
    triangles = [triangle_of_rows(part) for part in parts]
    factor = triangles[0].factor
    for other in triangles[1:]:
        factor = merge_factors(factor, other.factor)
    whole = pooled(factor, triangles)
    X = np.concatenate(parts)
    assert whole.n_samples == len(X)
    if not len(X):
        assert whole.factor.shape == (0, d)
        return
    Z, want = centred(X)
    assert_is_gram(whole.factor.T @ whole.factor, Z.T @ Z, 1e-11)
    assert_allclose(whole.mean, want, rtol=1e-15, atol=1e-13)


@examples
@given(n=st.integers(1, 30), d=st.integers(1, 15), seed=seeds)
def test_a_rotation_of_rows_or_features_rotates_the_result(n, d, seed):
    rng = np.random.default_rng(seed)
    X = rows_of_decay(rng, n, d)
    R = triangle_of_rows(X).factor
    shuffled = triangle_of_rows(X[rng.permutation(n)] + 2.0).factor
    assert_allclose(shuffled.T @ shuffled, R.T @ R, atol=1e-12 * n)
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    turned = triangle_of_rows(X @ Q)
    assert_allclose(turned.factor.T @ turned.factor, Q.T @ R.T @ R @ Q, atol=1e-12 * n)
    # and the rows of a factor may be mixed before it is merged
    U = np.linalg.qr(rng.standard_normal((len(R), len(R))))[0]
    for mixed in (merge_factors(np.zeros((0, d)), R), np.linalg.qr(U @ R)[1]):
        assert_allclose(mixed.T @ mixed, R.T @ R, atol=1e-12 * n)
    s = subspace_of(turned).singular_values
    assert_allclose(s, Oracle(X).s[: len(s)], rtol=0, atol=1e-12 * np.sqrt(n))


def test_directions_of_rounding_are_left_out():
    rng = np.random.default_rng(27)
    X = rng.standard_normal((40, 3)) @ rng.standard_normal((3, 10)) + 1
    found = subspace_of(triangle_of_rows(X))
    assert found.n_components == 3
    assert sine_of_orthonormal(found.components, Oracle(X).components[:3]) < 1e-12
