"""Triangular factors of rows and their merge; means of projection matrices in factored form."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import peak_bytes, random_basis, sine, sine_of_orthonormal
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from projection_helpers import assert_orthonormal
from triangle_helpers import Oracle, assert_is_gram, centred, examples, seeds

from fedpca_sklearn import Subspace
from fedpca_sklearn._kernels import linalg
from fedpca_sklearn.summary._projection_mean import ProjectionMean
from fedpca_sklearn.summary._rayleigh_ritz import along
from fedpca_sklearn.summary._triangle import merge_factors, pooled, subspace_of, triangle_of_rows


@examples
@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 40), st.sampled_from("CF"), seeds)
def test_trapezoids_of_any_sizes_merge(d, m, k, order, seed):
    rng = np.random.default_rng(seed)
    first, second = (np.triu(rng.standard_normal((min(n, d), d))) for n in (m, k))
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
    first, second = (
        np.array(np.triu(rng.standard_normal((n, 100))) * scale, order=order) for n in (100, m)
    )
    R = merge_factors(first, second)
    assert_array_equal(np.tril(R, -1), 0)
    assert_is_gram(R.T @ R, first.T @ first + second.T @ second, 1e-12)


@examples
@given(
    size=st.sampled_from([*[(0, 1), (1, 5), (3, 8), (9, 4), (30, 20)] * 4, (1001, 3), (1100, 40)]),
    mean=st.sampled_from([0.0, 1e8]),
    kind=st.sampled_from([np.asarray, np.asfortranarray, np.float32, sp.csr_array]),
    weights=st.sampled_from([None, "zeros", "fractions"]),
    seed=seeds,
)
def test_rows_become_a_factor_about_their_mean(size, mean, kind, weights, seed):
    rng, (n, d) = np.random.default_rng(seed), size
    X = rng.standard_normal((n, d)) + mean + 3 * np.linspace(-1, 1, n)[:, None]  # blocks are unlike
    if kind is np.float32:
        X = (X - 0.9999 * mean).astype(np.float32)
    w = None if weights is None else rng.uniform(0.1, 3, n)
    if weights == "zeros":
        w *= rng.random(n) < 0.6
    triangle = triangle_of_rows(kind(X), w)
    kept = n if w is None else np.count_nonzero(w)
    assert triangle.factor.shape == (min(kept, d), d)
    assert triangle.factor.dtype == np.float64
    assert triangle.n_samples == pytest.approx(n if w is None else w.sum())
    if kept:
        Z, want = centred(X, w)
        assert_is_gram(triangle.factor.T @ triangle.factor, Z.T @ Z, 1e-11)
        assert_allclose(triangle.mean, want, rtol=1e-15, atol=1e-13)
    else:
        assert not triangle.mean.any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_are_not_copied_as_a_whole(dtype, weighted):
    X = np.random.default_rng(29).standard_normal((100_000, 8)).astype(dtype)
    w = np.full(len(X), 2.0) if weighted else None
    triangle_of_rows(X[:10], w if w is None else w[:10])
    assert peak_bytes(lambda: triangle_of_rows(X, w)) < 10 * 1000 * 8 * 8  # a few blocks


@pytest.mark.parametrize("parts", [1, 4])
def test_a_mean_far_away_is_exact_to_the_last_digit_of_the_spread(parts):
    X = 1e8 + np.random.default_rng(26).standard_normal((1500, 2))
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
    whole, X = pooled(factor, triangles), np.concatenate(parts)
    assert whole.n_samples == len(X)
    if not len(X):
        assert whole.factor.shape == (0, d)
        return
    Z, want = centred(X)
    assert_is_gram(whole.factor.T @ whole.factor, Z.T @ Z, 1e-11)
    assert_allclose(whole.mean, want, rtol=1e-15, atol=1e-13)


def test_directions_of_rounding_are_left_out():
    rng = np.random.default_rng(27)
    X = rng.standard_normal((40, 3)) @ rng.standard_normal((3, 10)) + 1
    found = subspace_of(triangle_of_rows(X))
    assert found.n_components == 3
    assert_allclose(found.singular_values, Oracle(X).s[:3], rtol=1e-12)
    assert sine_of_orthonormal(found.components, Oracle(X).components[:3]) < 1e-12


# -------------------------------------------------------------------------- means of projections


def of_basis(V):
    return Subspace(V, np.zeros(len(V)), np.zeros(V.shape[1]), 1, 0)


@examples
@given(
    calls=st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=6),
    max_keep=st.sampled_from([3, 8, 30]),
    used=st.sampled_from([8, 30]),
    seed=seeds,
)
def test_what_was_cut_off_is_positive_and_within_the_bound(calls, max_keep, used, seed):
    """Of bases of all columns, or of some columns each."""
    rng, d = np.random.default_rng(seed), 30
    mean, total, exact = ProjectionMean.empty(d), 0.0, np.zeros((d, d))
    for i, ranks in enumerate(calls):
        bases = [np.zeros((r, d)) for r in ranks]
        for V in bases:
            V[:, 4 * i % 20 :][:, :used] = random_basis(rng, len(V), min(used, d - 4 * i % 20))
        weights = rng.uniform(0.1, 5, len(ranks))
        mean = mean.add([of_basis(V) for V in bases], weights, max_keep)
        exact += sum((w * V.T @ V for w, V in zip(weights, bases, strict=True)), np.zeros((d, d)))
        total += weights.sum()
        assert_allclose(mean.weight, total)
        assert len(mean.vectors) == len(mean.values) <= max_keep
        assert_orthonormal(mean.vectors)
        assert np.all(np.diff(mean.values) <= 0)
        kept = (mean.vectors.T * mean.values) @ mean.vectors
        values = np.linalg.eigvalsh(exact / (total or 1) - kept)
        assert values[0] >= -1e-12
        assert values[-1] <= mean.dropped + 1e-12
        assert not mean.vectors[:, np.diag(exact) == 0].any()
        if max_keep == d:
            assert mean.dropped <= 1e-12


def test_many_projections_of_few_features_take_a_small_eigenproblem(monkeypatch):
    rng = np.random.default_rng(4)
    bases = [random_basis(rng, 5, 12) for _ in range(300)]
    orders, eigh_top = [], linalg.eigh_top

    def counted(G, max_keep):
        orders.append(len(G))
        return eigh_top(G, max_keep)

    monkeypatch.setattr(linalg, "eigh_top", counted)
    mean = ProjectionMean.empty(12).add([of_basis(V) for V in bases], np.ones(300), 12)
    assert max(orders) <= 24
    found = (mean.vectors.T * mean.values) @ mean.vectors
    assert_allclose(found, np.mean([V.T @ V for V in bases], axis=0), atol=1e-13)


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_a_summary_along_directions_has_the_scatter_along_them(rows):
    rng = np.random.default_rng(1)
    total = Subspace.from_rows(rng.standard_normal((40, 9)), 0)
    V, factor = random_basis(rng, 4, 9), 0.1 * rng.standard_normal((rows, 4))
    part = along(total, V, factor)
    C, S = part.components, V.T @ (factor.T @ factor) @ V
    assert_orthonormal(C)
    assert sine(C, V) <= 1e-12
    assert_allclose(C @ S @ C.T, np.diag(part.singular_values**2), atol=1e-12)
    assert np.all(np.diff(part.singular_values) <= 0)
    assert (part.n_components, part.scatter, part.n_samples) == (4, total.scatter, 40)
    assert_array_equal(part.mean, total.mean)
