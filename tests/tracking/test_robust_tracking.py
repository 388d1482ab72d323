"""Sparse recovery, alternating projections and the robust tracker, against independent solvers.

The optimum of the sparse recovery comes from a linear program (xi = 0) or from sequential quadratic
programming (xi > 0). Streams without noise are recovered up to rounding errors, so supports are
compared exactly: outliers of 10 to 25 are far from what is left.
"""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import (
    PAPER,
    assert_finite_and_orthonormal,
    f1_score,
    fitted_attributes,
    peak_bytes,
    random_basis,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import linprog, minimize
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline

from fedpca_sklearn import (
    AlternatingProjections,
    RobustSubspaceTracker,
    SubspaceTracker,
    make_subspace_stream,
    projected_sparse_recovery,
    subspace_distance,
)
from fedpca_sklearn.tracking._outliers import find_outliers

nan, inf = np.nan, np.inf
examples = settings(max_examples=40, derandomize=True, deadline=None, database=None)


# ------------------------------------------------------------------------------ data and helpers


def constant_stream(n=600, d=120, k=5, outliers=0.07, seed=0, **options):
    """Rows of one subspace, and where their outliers can be seen."""
    stream = make_subspace_stream(
        n, d, k, **{"delta": 0, "outliers": outliers, "random_state": seed, **options}
    )
    stream.visible = stream.outliers & ~stream.missing
    stream.V = stream.subspace_at(0)
    stream.clean = np.where(stream.visible, nan, stream.X)
    return stream


def spiked_rows(seed, n=6, d=12, k=3, noise=0.1, share=0.2, missing=0.2):
    """Few rows near a subspace, with many outliers and holes: recovery is not exact."""
    rng = np.random.default_rng(seed)
    V = random_basis(rng, k, d)
    X = 3 * rng.standard_normal((n, k)) @ V + noise * rng.standard_normal((n, d))
    X += 5 * rng.standard_normal((n, d)) * (rng.random((n, d)) < share)
    return np.where(rng.random((n, d)) < missing, nan, X), V


def unexplained(X, V):
    """What least squares of each row's own entries leaves; zero where they are missing."""
    R = np.zeros_like(X)
    for x, r in zip(X, R, strict=True):
        seen = ~np.isnan(x)
        A = V[:, seen].T
        if seen.any():
            r[seen] = (
                x[seen] - A @ np.linalg.lstsq(A, x[seen], rcond=None)[0] if len(V) else x[seen]
            )
    return R


def least_absolute(x, V):
    """Minimum of ||x - V^T c||_1 over the entries that are there, by a linear program."""
    seen = ~np.isnan(x)
    A, b = V[:, seen].T, x[seen]
    m, k = A.shape
    if not m:
        return 0.0
    cost = np.concatenate([np.zeros(k), np.ones(m)])
    A_ub = np.block([[A, -np.eye(m)], [-A, -np.eye(m)]])
    bounds = [(None, None)] * k + [(0, None)] * m
    result = linprog(cost, A_ub=A_ub, b_ub=np.concatenate([b, -b]), bounds=bounds)
    assert result.success
    return result.fun


def least_norm_in_ball(x, V, xi):
    """Minimum of ||s||_1 with ||Psi (x - s)|| <= xi by SLSQP on s = p - q; None if it gives up."""
    seen = ~np.isnan(x)
    A, b = V[:, seen].T, x[seen]
    m = len(b)
    Psi = np.eye(m) - A @ np.linalg.pinv(A)
    if np.linalg.norm(Psi @ b) <= xi:
        return 0.0

    def slack(z):
        return xi**2 - np.sum((Psi @ (b - z[:m] + z[m:])) ** 2)

    def slope(z):
        half = 2 * Psi @ (b - z[:m] + z[m:])
        return np.concatenate([half, -half])

    start = np.concatenate([np.maximum(b, 0), np.maximum(-b, 0)]) + 0.1
    result = minimize(
        np.sum,
        start,
        jac=np.ones_like,
        bounds=[(0, None)] * (2 * m),
        constraints=[{"type": "ineq", "fun": slack, "jac": slope}],
        method="SLSQP",
        options={"ftol": 1e-13, "maxiter": 500},
    )
    return result.fun if result.success else None


def relative_error(found, true):
    return np.linalg.norm(found - true) / np.linalg.norm(true)


# ---------------------------------------------------------------------- projected sparse recovery


@examples
@given(
    seed=st.integers(0, 2**31),
    d=st.integers(1, 15),
    k=st.integers(0, 6),
    missing=st.sampled_from([0.0, 0.3, 0.8]),
    max_iter=st.sampled_from([1, 5, 25, 100, 5000]),
)
def test_the_gap_bounds_the_distance_from_the_linear_program(seed, d, k, missing, max_iter):
    X, V = spiked_rows(seed, 5, d, min(k, d), missing=missing)
    sparse, gap = projected_sparse_recovery(X, V, tol=1e-7, max_iter=max_iter)
    best = np.array([least_absolute(x, V) for x in X])
    found = np.abs(sparse).sum(axis=1)
    rounding = 1e-9 * np.nansum(np.abs(X), axis=1)
    assert (found >= best - rounding).all()
    assert (best >= (1 - gap) * found - rounding).all()
    assert (gap >= 0).all()


def test_the_optimum_is_that_of_the_linear_program():
    X, V = spiked_rows(0, 60)
    sparse, gap = projected_sparse_recovery(X, V, tol=1e-6, max_iter=100_000)
    assert gap.max() <= 1e-6
    best = np.array([least_absolute(x, V) for x in X])
    assert_allclose(np.abs(sparse).sum(axis=1), best, rtol=1.1e-6, atol=1e-9)


@pytest.mark.parametrize("xi", [0.05, 0.5, 2.0])
@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_the_optimum_with_noise_is_that_of_quadratic_programming(xi, missing):
    X, V = spiked_rows(1, 40, missing=missing)
    sparse, gap = projected_sparse_recovery(X, V, xi, tol=1e-6, max_iter=100_000)
    assert gap.max() <= 1e-6
    best = [least_norm_in_ball(x, V, xi) for x in X]
    known = [b is not None for b in best]
    assert np.mean(known) > 0.6
    found = np.abs(sparse).sum(axis=1)
    assert_allclose(found[known], np.array(best)[known].astype(float), rtol=3e-6, atol=1e-7)


@examples
@given(
    seed=st.integers(0, 2**31),
    xi=st.sampled_from([0.0, 1e-3, 0.3, 5.0, "rows"]),
    missing=st.sampled_from([0.0, 0.3, 0.9]),
    max_iter=st.sampled_from([1, 10, 500]),
)
def test_the_sparse_part_is_feasible(seed, xi, missing, max_iter):
    X, V = spiked_rows(seed, 9, missing=missing)
    xi = np.linspace(0, 3, 9) if xi == "rows" else xi
    sparse, gap = projected_sparse_recovery(X, V, xi, max_iter=max_iter)
    left = np.linalg.norm(unexplained(X - sparse, V), axis=1)
    # fewer than twice as many entries as components may determine them badly
    size = np.sqrt(np.nansum(X**2, axis=1))
    assert (left <= xi + 1e-8 * size).all()
    assert_array_equal(sparse[np.isnan(X)], 0)
    assert np.isfinite(sparse).all()
    assert np.isfinite(gap).all()


def test_each_row_may_have_its_own_xi():
    X, V = spiked_rows(2, 9)
    xi = np.linspace(0, 2, 9)
    together = projected_sparse_recovery(X, V, xi, tol=1e-8, max_iter=50_000)[0]
    for x, one, s in zip(X, xi, together, strict=True):
        alone = projected_sparse_recovery(x[None], V, one, tol=1e-8, max_iter=50_000)[0][0]
        assert_allclose(np.abs(s).sum(), np.abs(alone).sum(), rtol=3e-8, atol=1e-12)


@pytest.mark.parametrize("missing", [0.0, 0.1])
@pytest.mark.parametrize("xi", [0.0, 1.0])
def test_rows_are_independent_in_any_order(missing, xi):
    stream = constant_stream(12, 60, 4, missing=missing)
    X = stream.X + 0.05 * np.random.default_rng(0).standard_normal(stream.X.shape)
    order = np.random.default_rng(0).permutation(12)
    exact = {"tol": 1e-5, "max_iter": 20_000}
    sparse, gap = projected_sparse_recovery(X, stream.V, xi, **exact)
    assert gap.max() <= 1e-5
    turned, _ = projected_sparse_recovery(X[order], stream.V, xi, **exact)
    assert_allclose(turned, sparse[order], rtol=1e-9, atol=1e-10)
    # others that need more iterations may improve a row that is finished, within its gap
    alone = np.concatenate(
        [projected_sparse_recovery(x[None], stream.V, xi, **exact)[0] for x in X]
    )
    assert_allclose(np.abs(alone).sum(axis=1), np.abs(sparse).sum(axis=1), rtol=2e-5)


def test_a_row_alone_is_as_among_others():
    stream = constant_stream(400, 60, 4, 0.05)
    rng = np.random.default_rng(0)
    X = (
        stream.low_rank
        + 0.3 * rng.standard_normal((400, 60))
        + stream.sparse * rng.random((400, 1))
    )
    sparse, _ = projected_sparse_recovery(X, stream.V, 1.0)
    alone = np.concatenate([projected_sparse_recovery(x[None], stream.V, 1.0)[0] for x in X])
    assert_allclose(alone, sparse, atol=1e-9)


@pytest.mark.parametrize("scale", [2.0**40, 2.0**-300, 1e6, 1e-6, 1e100, 1e-100])
@pytest.mark.parametrize("xi", [0.0, 0.4])
def test_recovery_is_in_units_of_the_rows(scale, xi):
    X, V = spiked_rows(3, 20)
    sparse, gap = projected_sparse_recovery(X, V, xi)
    scaled, scaled_gap = projected_sparse_recovery(scale * X, V, scale * xi)
    if np.log2(scale) % 1:
        assert_allclose(scaled / scale, sparse, atol=1e-9)
        assert_allclose(scaled_gap, gap, atol=1e-9)
    else:
        assert_allclose(scaled / scale, sparse, rtol=1e-13)
        assert_allclose(scaled_gap, gap, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("pattern", ["bernoulli", "moving"])
@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_outliers_of_both_signs_are_recovered_by_the_exact_basis(pattern, missing):
    stream = constant_stream(60, 300, 5, 0.1, outlier_pattern=pattern, missing=missing)
    sparse, gap = projected_sparse_recovery(stream.X, stream.V, tol=1e-8, max_iter=5000)
    true = np.where(stream.missing, 0, stream.sparse)
    assert (true > 0).any()
    assert (true < 0).any()
    assert gap.max() <= 1e-8
    # an optimum that is unique is sharp: its distance is a multiple of its gap, of 500 in a row
    assert_allclose(sparse, true, atol=1e-4)
    assert_array_equal(np.abs(sparse) > 5, stream.visible)


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_rows_of_the_span_have_no_outliers(missing):
    stream = constant_stream(30, 40, 5, 0.0, missing=missing)
    sparse, gap = projected_sparse_recovery(stream.X, stream.V)
    assert_allclose(sparse, 0, atol=1e-12)
    assert (gap <= 1e-3).all()


def test_rows_within_xi_of_the_span_have_no_outliers():
    X, V = spiked_rows(4, 10)
    xi = 1.0001 * np.linalg.norm(unexplained(X, V), axis=1)
    sparse, gap = projected_sparse_recovery(X, V, xi)
    assert_array_equal(sparse, 0)
    assert_array_equal(gap, 0)


def test_rows_without_entries_or_with_fewer_than_components_have_no_outliers():
    X, V = spiked_rows(5, 6, missing=0.0)
    X[0] = nan
    X[1, 1:] = nan
    X[2, 3:] = nan
    X[3] = 0
    sparse, gap = projected_sparse_recovery(X, V)
    assert_allclose(sparse[:4], 0, atol=1e-9)
    assert np.isfinite(gap).all()
    assert sparse[4:].any(axis=1).all()


def test_without_a_basis_everything_is_sparse():
    X, _ = spiked_rows(6)
    sparse, gap = projected_sparse_recovery(X, np.empty((0, 12)))
    assert_allclose(sparse, np.nan_to_num(X), atol=1e-9)
    assert (gap <= 1e-3).all()


def test_with_a_basis_of_everything_nothing_is_sparse():
    X, _ = spiked_rows(6)
    sparse, _ = projected_sparse_recovery(X, np.eye(12))
    assert_array_equal(sparse, 0)


def test_too_few_iterations_show_in_the_gap():
    X, V = spiked_rows(7, 40)
    for max_iter in (1, 10):
        sparse, gap = projected_sparse_recovery(X, V, tol=1e-6, max_iter=max_iter)
        assert (gap > 1e-6).any()
        assert (gap <= 1).all()
    assert (projected_sparse_recovery(X, V, tol=1e-3)[1] <= 1e-3).all()
    assert sparse.shape == X.shape


def test_recovery_leaves_its_arguments_as_they_are():
    X, V = spiked_rows(8)
    xi = np.full(len(X), 0.1)
    before = X.copy(), V.copy(), xi.copy()
    projected_sparse_recovery(X, V, xi)
    for array, copy in zip((X, V, xi), before, strict=True):
        assert_array_equal(array, copy)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("components", np.eye(3, 11)),
        ("components", np.ones((2, 12))),
        ("components", 2 * np.eye(3, 12)),
        ("components", np.eye(3, 12) + 1e-3),
        ("components", np.full((3, 12), nan)),
        ("components", np.ones(12)),
        ("xi", -1.0),
        ("xi", nan),
        ("xi", np.ones(5)),
        ("xi", np.ones((6, 1))),
        ("xi", np.array([1, 1, 1, 1, 1, -1e-9])),
        ("tol", 0.0),
        ("tol", -1e-3),
        ("tol", nan),
        ("max_iter", 0),
        ("X", np.full((6, 12), inf)),
    ],
)
def test_a_bad_argument_is_named(name, value):
    X, V = spiked_rows(0)
    with pytest.raises(ValueError, match=name):
        projected_sparse_recovery(**{"X": X, "components": V, name: value})


@pytest.mark.parametrize(
    ("name", "value"), [("max_iter", 2.5), ("max_iter", None), ("tol", "small"), ("xi", "auto")]
)
def test_an_argument_of_a_wrong_type_is_named(name, value):
    X, V = spiked_rows(0)
    with pytest.raises((ValueError, TypeError), match=name):
        projected_sparse_recovery(X, V, **{name: value})


# -------------------------------------------------------------------------- where outliers are


@pytest.mark.parametrize("options", [{}, {"xi": 10 / 15, "threshold": 5.0}])
def test_outliers_are_found_by_the_exact_basis(options):
    stream = constant_stream(40, 200, 5, 0.1)
    mask, least = find_outliers(stream.X, stream.V, **options)
    assert_array_equal(mask, stream.visible)
    assert least.shape == (200,)
    if options:
        assert_array_equal(least, 5.0)


def test_thresholds_of_columns_may_be_given():
    stream = constant_stream(40, 200, 5, 0.1)
    least = np.full(200, 17.0)
    mask, same = find_outliers(stream.X, stream.V, least=least)
    assert same is least
    # those that are not found move the fit to their row a little
    assert mask[stream.visible & (np.abs(stream.sparse) > 19)].all()
    assert not mask[~stream.visible | (np.abs(stream.sparse) < 15)].any()


def test_what_fills_less_than_half_of_a_column_is_an_outlier():
    stream = constant_stream(40, 200, 5, 0.0)
    X = stream.X.copy()
    X[::3, 7] += 20
    mask, _ = find_outliers(X, stream.V)
    assert_array_equal(mask, (X != stream.X) & ~stream.missing)


def test_what_fills_most_of_a_column_is_not_an_outlier():
    stream = constant_stream(40, 200, 5, 0.0)
    X = stream.X.copy()
    X[:36, 7] += 20
    assert not find_outliers(X, stream.V)[0].any()


def test_outliers_may_fill_more_than_half_of_a_row():
    stream = constant_stream(40, 400, 2, 0.0, missing=0.0)
    rng = np.random.default_rng(0)
    X, hit = stream.X.copy(), np.zeros((40, 400), bool)
    hit[3] = rng.random(400) < 0.55
    X[hit] += rng.choice([-1, 1], hit.sum()) * rng.uniform(10, 25, hit.sum())
    assert_array_equal(find_outliers(X, stream.V)[0], hit)


# ------------------------------------------------------------------------ alternating projections


def assert_separated(model, X, center=0.0):
    """The two parts and the error are what they are said to be."""
    left = np.where(np.isnan(X), 0, X - model.low_rank_ - model.sparse_)
    norm = np.linalg.norm(np.nan_to_num(X - center)) or 1.0
    assert_allclose(np.linalg.norm(left) / norm, model.error_, rtol=1e-6, atol=1e-12)
    assert_array_equal(model.sparse_[np.isnan(X)], 0)
    s = np.linalg.svd(model.low_rank_ - model.mean_, compute_uv=False)
    assert (s[model.n_components :] <= 1e-9 * s[0]).all()


@pytest.mark.parametrize("shape", [(400, 150), (150, 400)], ids=["tall", "wide"])
@pytest.mark.parametrize("k", [5, 20])
@pytest.mark.parametrize("pattern", ["bernoulli", "moving"])
@pytest.mark.parametrize(("share", "missing"), [(0.05, 0.1), (0.1, 0.0), (0.1, 0.1)])
def test_low_rank_and_outliers_are_separated(shape, k, pattern, share, missing):
    stream = constant_stream(*shape, k, share, outlier_pattern=pattern, missing=missing, seed=1)
    model = AlternatingProjections(k).fit(stream.X)
    assert_array_equal(model.sparse_ != 0, stream.visible)
    assert_separated(model, stream.X)
    assert model.error_ <= 1e-4
    # the error of the fit at most doubles where entries are lost: they are a small share
    bound = 2 * model.error_ * np.linalg.norm(np.nan_to_num(stream.X))
    assert np.linalg.norm(model.low_rank_ - stream.low_rank) <= bound
    assert subspace_distance(model.components_, stream.V) <= bound / (0.8 * np.sqrt(len(stream.X)))


@pytest.mark.parametrize("shape", [(200, 200), (100, 100)])
@pytest.mark.parametrize("pattern", ["bernoulli", "moving"])
def test_square_matrices_are_separated(shape, pattern):
    for seed in range(4):
        stream = constant_stream(*shape, 5, 0.1, outlier_pattern=pattern, seed=seed)
        model = AlternatingProjections(5).fit(stream.X)
        assert relative_error(model.low_rank_, stream.low_rank) < 0.01


@pytest.mark.parametrize("kind", ["zeros", "one spike"])
def test_nothing_is_separated_at_once(kind):
    X = np.zeros((90, 8))
    X[50, 0] = kind == "one spike"
    assert AlternatingProjections(3).fit(X).n_iter_ < 100


def test_a_smaller_tol_gives_a_smaller_error():
    stream = constant_stream(150, 400, 5, 0.1)
    model = AlternatingProjections(5, tol=1e-10).fit(stream.X)
    assert model.error_ <= 1e-10
    assert relative_error(model.low_rank_, stream.low_rank) < 1e-8
    assert subspace_distance(model.components_, stream.V) < 1e-8
    assert_allclose(model.sparse_, np.where(stream.visible, stream.sparse, 0), atol=1e-7)


@pytest.mark.parametrize("mean", [1e2, 1e6])
def test_the_low_rank_part_may_be_far_from_the_origin(mean):
    stream = constant_stream(300, 120, 5, 0.07)
    offset = mean * np.random.default_rng(0).standard_normal(120)
    model = AlternatingProjections(5, center=True).fit(stream.X + offset)
    assert_array_equal(model.sparse_ != 0, stream.visible)
    assert_allclose(model.mean_, np.nanmedian(stream.X + offset, axis=0), rtol=1e-12)
    assert_separated(model, stream.X + offset, model.mean_)
    # the median is not the mean, hence one direction more; a few entries of it are left
    assert relative_error(model.low_rank_ - offset, stream.low_rank) < 0.1


def test_transform_and_back_is_the_low_rank_part():
    stream = constant_stream(150, 400, 5, 0.1, missing=0.0)
    model = AlternatingProjections(5, tol=1e-10).fit(stream.X)
    assert_allclose(
        model.inverse_transform(model.transform(model.low_rank_)), model.low_rank_, atol=1e-10
    )
    assert_allclose(
        model.inverse_transform(model.fit_transform(stream.low_rank)), stream.low_rank, atol=1e-10
    )


def test_attributes_are_those_of_the_low_rank_part():
    stream = constant_stream(150, 400, 5, 0.1)
    model = AlternatingProjections(5).fit(stream.X)
    s = np.linalg.svd(model.low_rank_, compute_uv=False)[:5]
    assert_allclose(model.singular_values_, s, rtol=1e-9)
    assert_allclose(model.components_ @ model.components_.T, np.eye(5), atol=1e-12)
    assert_allclose(model.explained_variance_ratio_.sum(), 1)
    assert model.noise_variance_ == 0
    assert model.n_samples_seen_ == 150


@pytest.mark.parametrize("max_iter", [1, 2, 7])
def test_iterations_are_limited(max_iter):
    stream = constant_stream(150, 400, 5, 0.1)
    with pytest.warns(ConvergenceWarning, match=f"max_iter={max_iter} iterations leave error_="):
        model = AlternatingProjections(5, max_iter=max_iter).fit(stream.X)
    assert model.n_iter_ == max_iter
    assert model.error_ > 1e-4
    assert_separated(model, stream.X)


def test_rows_without_outliers_have_the_components_of_pca():
    X = constant_stream(300, 80, 5, 0.0, missing=0.0).X
    origin = AlternatingProjections(5).fit(X)
    assert_array_equal(origin.sparse_, 0)
    assert_allclose(origin.low_rank_, X, atol=1e-12)
    assert subspace_distance(origin.components_, np.linalg.svd(X)[2][:5]) < 1e-12
    model, pca = AlternatingProjections(5, center=True).fit(X), PCA(5).fit(X)
    median = np.median(X, axis=0)
    assert_array_equal(model.sparse_, 0)
    assert subspace_distance(model.components_, np.linalg.svd(X - median)[2][:5]) < 1e-12
    # About the median, n m m^T is added to the scatter matrix, m from the mean to the median. By
    # Davis and Kahan it turns the axes by its part between their span and the rest.
    m = median - X.mean(axis=0)
    off = np.linalg.norm(m - pca.components_.T @ (pca.components_ @ m))
    bound = 300 * np.linalg.norm(m) * off / (pca.singular_values_[-1] ** 2 - 300 * off**2)
    assert bound < 0.1
    assert subspace_distance(model.components_, pca.components_) <= bound


@pytest.mark.parametrize("noise", [0.01, 0.1])
def test_with_a_large_threshold_it_is_pca(noise):
    X = constant_stream(300, 80, 5, 0.0, missing=0.0, noise_std=noise).X
    model = AlternatingProjections(5, threshold_scale=1e3).fit(X)
    _, s, Vt = np.linalg.svd(X, full_matrices=False)
    assert_array_equal(model.sparse_, 0)
    assert subspace_distance(model.components_, Vt[:5]) < 1e-10
    assert_allclose(model.singular_values_, s[:5])
    assert_allclose(model.error_, np.sqrt(np.sum(s[5:] ** 2) / np.sum(s**2)))


@pytest.mark.parametrize("scale", [1e-100, 1e-6, 1e6, 1e100])
def test_separation_is_in_units_of_the_rows(scale):
    X = constant_stream(150, 300, 5, 0.1).X
    model = AlternatingProjections(5).fit(X)
    scaled = AlternatingProjections(5).fit(scale * X)
    assert_allclose(scaled.low_rank_ / scale, model.low_rank_, atol=1e-9)
    assert_allclose(scaled.sparse_ / scale, model.sparse_, atol=1e-9)
    assert scaled.n_iter_ == model.n_iter_


def test_separation_in_single_precision_is_that_in_double_rounded():
    X = constant_stream(150, 300, 5, 0.1).X.astype(np.float32)
    single, double = (
        AlternatingProjections(5).fit(X),
        AlternatingProjections(5).fit(X.astype(float)),
    )
    for name in ("low_rank_", "sparse_", "components_", "mean_", "singular_values_"):
        assert getattr(single, name).dtype == np.float32
        assert_allclose(getattr(single, name), getattr(double, name), rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------------------------------- edges


def low_rank(rng, n=130, d=8, k=3):
    return rng.standard_normal((n, k)) @ rng.standard_normal((k, d))


def edges():
    rng = np.random.default_rng(0)
    silent, silent_start, persistent, shifted, dead = (low_rank(rng) for _ in range(5))
    silent[:45], silent_start[:100] = nan, nan
    persistent[:, 2] += 50 * rng.standard_normal(130)
    shifted[:, 2] += 50
    dead[:, 3] = nan
    spike = np.zeros((100, 8))
    spike[50, 0] = 1
    return {
        "one row": low_rank(rng, 1),
        "one row with a hole": np.where(np.arange(8) == 0, nan, low_rank(rng, 1)),
        "one row without entries": np.full((1, 8), nan),
        "two rows": low_rank(rng, 2),
        "constant": np.ones((90, 8)),
        "zeros": np.zeros((90, 8)),
        "zeros between": low_rank(rng) * (rng.random((130, 1)) < 0.4),
        "duplicates": np.repeat(low_rank(rng, 3), 40, axis=0),
        "silent at first": silent,
        "silent for the first batch": silent_start,
        "always silent": np.full((60, 8), nan),
        "a persistent outlier": persistent,
        "a constant outlier": shifted,
        "a dead feature": dead,
        "noise": rng.standard_normal((130, 8)),
        "one spike": spike,
        "outliers only": rng.standard_normal((100, 8)) * (rng.random((100, 8)) < 0.1),
        "rank one": low_rank(rng, k=1),
        "mostly holes": np.where(rng.random((130, 8)) < 0.6, nan, low_rank(rng)),
        "empty rows between": np.where(rng.random((130, 1)) < 0.5, nan, low_rank(rng)),
    }


EDGES = edges()
VARIANTS = {
    "plain": {},
    "centred": {"center": True},
    "svd": {"init": "svd"},
    "given": {"init": np.eye(8)[:3]},
    "fixed": {"xi": 0.1, "support_threshold": 1.0},
    "zero": {"xi": 0.0, "support_threshold": 0.0},
    "changes": {"detect_changes": True, "n_updates": 2},
    "fading": {"forgetting_factor": 0.98, "n_iter": 2},
    "all": {"n_components": 8},
    "one by one": {"batch_size": 1, "init_size": 1},
    "few": {"batch_size": 2, "init_size": 3},
}


@pytest.mark.filterwarnings("ignore:.*support_threshold:UserWarning")  # test_films.py has them
@pytest.mark.parametrize("kind", EDGES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_edges_give_finite_numbers(kind, variant):
    X = EDGES[kind]
    model = RobustSubspaceTracker(**{**PAPER, **{"n_components": 3, **VARIANTS[variant]}}).fit(X)
    full, sparse = model.decompose(X)
    more = full, sparse, model.transform(X), model.impute(X), model.score(X)
    known = ~np.isnan(X).all(axis=0)  # of the others there is no threshold
    assert_finite_and_orthonormal(model, *more, model.support_threshold_[known])
    assert model.outlier_mask_.shape == X.shape
    assert not model.outlier_mask_[np.isnan(X)].any()
    assert_array_equal(sparse[np.isnan(X)], 0)


@pytest.mark.parametrize("kind", EDGES)
@pytest.mark.parametrize(
    "options",
    [{}, {"center": True}, {"n_components": 8}, {"threshold_scale": 0.01}, {"max_iter": 1}],
    ids=str,
)
def test_edges_are_separated_into_finite_numbers(kind, options):
    X = EDGES[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = AlternatingProjections(**{"n_components": 3, **options}).fit(X)
    more = model.low_rank_, model.sparse_, model.error_, model.transform(X), model.impute(X)
    assert_finite_and_orthonormal(model, *more)
    assert_array_equal(model.sparse_[np.isnan(X)], 0)
    seen = ~np.isnan(X)
    centre = np.broadcast_to(model.mean_, X.shape)
    size = np.linalg.norm((X - centre)[seen])
    left = (X - model.low_rank_ - model.sparse_)[seen]
    assert np.linalg.norm(left) <= 1.0001 * model.error_ * size + 1e-12


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("n", [1, 30, 300])
def test_one_feature_is_never_an_outlier(n, center):
    X = np.random.default_rng(0).standard_normal((n, 1))
    model = RobustSubspaceTracker(1, center=center, forgetting_factor=0.0, fill="subspace").fit(X)
    assert_array_equal(model.components_, [[1.0]])
    assert not model.outlier_mask_.any()
    assert_allclose(model.inverse_transform(model.transform(X)), X, atol=1e-12)
    separated = AlternatingProjections(1, center=center).fit(X)
    assert_finite_and_orthonormal(separated, separated.low_rank_)


@pytest.mark.parametrize("kind", ["constant", "zeros", "duplicates"])
def test_rows_of_low_rank_have_no_outliers(kind):
    model = RobustSubspaceTracker(3, **PAPER).fit(EDGES[kind])
    assert not model.outlier_mask_.any()
    assert_allclose(model.decompose(EDGES[kind])[0], EDGES[kind], atol=1e-12)


# ------------------------------------------------------------------------------ the robust tracker


@pytest.mark.parametrize(
    ("n", "options", "least"),
    [
        (1500, {"delta": 0, "outliers": 0.05}, 1.0),
        (1500, {"delta": 0, "outliers": 0.1, "outlier_pattern": "moving"}, 1.0),
        (1500, {"model": "piecewise", "outliers": 0.05}, 1.0),
        (1500, {"outliers": 0.05}, 0.998),
        (1500, {"model": "rotation", "outliers": 0.05}, 0.998),
    ],
    ids=["constant", "moving", "piecewise", "walk", "rotation"],
)
def test_outliers_of_the_streams_of_the_paper_are_found(n, options, least):
    stream = make_subspace_stream(n, 1000, 30, random_state=0, **options)
    model = RobustSubspaceTracker(30, **PAPER).fit(stream.X)
    assert f1_score(model.outlier_mask_, stream.outliers & ~stream.missing) >= least
    if options.get("model") == "piecewise" or options.get("delta") == 0:
        assert subspace_distance(model.components_, stream.subspace_at(n - 1)) < 1e-4


@pytest.mark.parametrize("pattern", ["bernoulli", "moving"])
@pytest.mark.parametrize("share", [0.05, 0.1])
@pytest.mark.parametrize("missing", [0.0, 0.1, 0.3])
def test_every_outlier_is_found(pattern, share, missing):
    stream = constant_stream(580, 300, 5, share, outlier_pattern=pattern, missing=missing)
    model = RobustSubspaceTracker(5, **PAPER).fit(stream.X)
    assert model.outlier_mask_[stream.visible].all()
    # entries that the second subspace, known to 1e-4, fails to explain
    assert np.mean(model.outlier_mask_ & ~stream.visible) < 1e-4
    assert np.mean(model.outlier_mask_[300:] != stream.visible[300:]) < 1e-4
    # the error falls by a factor of the share that is lost with each batch
    assert subspace_distance(model.components_, stream.V) < 1e-6


@pytest.mark.parametrize(("seed", "d", "k"), [(0, 100, 10), (2, 200, 10)])
def test_a_bad_start_is_overcome(seed, d, k):
    stream = constant_stream(900, d, k, 0.1, seed=seed)
    model = RobustSubspaceTracker(k, **PAPER).fit(stream.X)
    assert subspace_distance(model.components_, stream.V) < 1e-8


def test_paper_settings_find_every_outlier():
    stream = constant_stream(600, 300, 5, 0.05)
    model = RobustSubspaceTracker(5, xi=10 / 15, support_threshold=5.0, **PAPER).fit(stream.X)
    assert_array_equal(model.outlier_mask_, stream.visible)
    assert subspace_distance(model.components_, stream.V) < 1e-10
    assert_array_equal(model.support_threshold_, 5.0)


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("seed", range(3))
def test_noise_is_no_outlier(noise, seed):
    stream = constant_stream(600, 200, 5, 0.0, noise_std=noise, seed=seed)
    model = RobustSubspaceTracker(5, **PAPER).fit(stream.X)
    # The threshold is six deviations of all of a batch at least, known to 2 %: an entry in 2e8
    # is above, of 108000 here.
    assert not model.outlier_mask_.any()
    assert not model.decompose(stream.X)[1].any()


@pytest.mark.parametrize("noise", [0.05, 0.2])
def test_outliers_are_found_in_noise(noise):
    stream = constant_stream(600, 300, 5, 0.05, noise_std=noise)
    model = RobustSubspaceTracker(5, **PAPER).fit(stream.X)
    assert_array_equal(model.outlier_mask_, stream.visible)
    assert_allclose(model.transform(stream.X), model.transform(stream.clean), atol=1e-12)
    assert_array_equal(
        model.impute(stream.X)[stream.missing], model.impute(stream.clean)[stream.missing]
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"forgetting_factor": 0.98},
        {"n_iter": 3},
        {"detect_changes": True, "n_updates": 3},
        {"batch_size": 25},
    ],
    ids=str,
)
def test_it_is_the_tracker_that_is_told_the_outliers(options):
    stream = constant_stream(600, 120, 5)
    options = {**options, "init": stream.V, "store_subspaces": True}
    robust = RobustSubspaceTracker(5, **{**PAPER, **options}).fit(stream.X)
    told = SubspaceTracker(5, **{**PAPER, **options}).fit(stream.clean)
    assert len(robust.subspaces_) == len(told.subspaces_) == 600 // options.get("batch_size", 40)
    for V, W in zip(robust.subspaces_, told.subspaces_, strict=True):
        assert subspace_distance(V, W) < 1e-10
    for name in ("mean_", "singular_values_", "noise_variance_", "explained_variance_"):
        assert_allclose(getattr(robust, name), getattr(told, name), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mean", [0.0, 1e6])
def test_centred_it_is_the_tracker_that_is_told_the_outliers(mean):
    stream = constant_stream(1500, 120, 5, 0.05)
    options = {"center": True, "init": stream.V}
    robust = RobustSubspaceTracker(5, **{**PAPER, **options}).fit(stream.X + mean)
    told = SubspaceTracker(5, **{**PAPER, **options}).fit(stream.clean + mean)
    assert_array_equal(robust.outlier_mask_, stream.visible)
    # the means of the first batches differ, the median here
    assert subspace_distance(robust.components_, told.components_) < 1e-8
    assert_allclose(robust.mean_, told.mean_, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("mean", [1.0, 1e6])
def test_centred_streams_may_be_far_from_the_origin(mean):
    stream = constant_stream(1000, 120, 5, 0.05)
    offset = mean * np.random.default_rng(0).standard_normal(120)
    model = RobustSubspaceTracker(5, center=True, forgetting_factor=0.0, fill="subspace").fit(
        stream.X + offset
    )
    assert_array_equal(model.outlier_mask_, stream.visible)
    assert subspace_distance(model.components_, stream.V) < 1e-7
    low_rank, sparse = model.decompose(stream.X + offset)
    assert_array_equal(sparse != 0, stream.visible)
    assert_allclose(low_rank - offset, stream.low_rank, atol=1e-6)


def test_the_first_subspace_may_come_from_an_svd():
    stream = constant_stream(600, 300, 5, 0.05)
    model = RobustSubspaceTracker(5, init="svd", store_subspaces=True, **PAPER).fit(stream.X)
    # nothing is removed from the first batch
    assert not model.outlier_mask_[:40].any()
    filled = np.where(stream.missing, 0, stream.X)[:40]
    assert subspace_distance(model.subspaces_[0], np.linalg.svd(filled)[2][:5]) < 1e-10
    assert np.mean(model.outlier_mask_[300:] != stream.visible[300:]) < 1e-4
    assert subspace_distance(model.components_, stream.V) < 1e-8


@pytest.mark.parametrize("part", [2, 5])
def test_the_first_subspace_may_be_given(part):
    stream = constant_stream(600, 300, 5, 0.05)
    init = np.random.default_rng(0).standard_normal((part, 5)) @ stream.V
    model = RobustSubspaceTracker(5, init=init, **PAPER).fit(stream.X)
    assert np.mean(model.outlier_mask_[300:] != stream.visible[300:]) < 1e-4
    assert subspace_distance(model.components_, stream.V) < 1e-8
    if part == 5:
        assert_array_equal(model.outlier_mask_, stream.visible)


@pytest.mark.parametrize("init_size", [1, 10, 40, 137, 600, 1000])
def test_the_first_batch_may_have_any_size(init_size):
    stream = constant_stream(600, 300, 5, 0.05)
    model = RobustSubspaceTracker(5, init_size=init_size, store_subspaces=True, **PAPER).fit(
        stream.X
    )
    full = 0 if init_size > 600 else 1 + (600 - init_size) // 40
    assert len(model.subspaces_) == full
    assert np.mean(model.outlier_mask_[300:] != stream.visible[300:]) < 1e-4
    # the first subspace is as exact as the separation: 1e-4 of the rows with their outliers, which
    # are sqrt(0.05 320 / (5 / 300)) = 31 times as large as those without
    bound = 1e-8 if init_size < 600 else 2e-4 * 31
    assert subspace_distance(model.components_, stream.V) < bound


@pytest.mark.parametrize(("k", "expected"), [(5, 100), (30, 150)])
def test_the_first_batch_of_auto_has_five_rows_a_component_and_at_least_100(k, expected):
    stream = constant_stream(expected, 80, k, 0.0)
    model = RobustSubspaceTracker(k, store_subspaces=True, **PAPER)
    assert model.partial_fit(stream.X[:-1]).subspaces_ == []
    assert len(model.partial_fit(stream.X[-1:]).subspaces_) == 1


# ------------------------------------------------------------------------------- parts of a stream


PIECES = (1, 1, 7, 100, 1, 40, 39, 2, 300)


def pieces(X):
    return np.split(X, np.cumsum(PIECES))[:-1]


def test_the_mask_is_that_of_the_rows_of_the_last_call():
    stream = constant_stream(sum(PIECES), 120, 5)
    model = RobustSubspaceTracker(5, **PAPER)
    masks = []
    for rows in pieces(stream.X):
        model.partial_fit(rows)
        assert model.outlier_mask_.shape == rows.shape
        assert model.outlier_mask_.dtype == bool
        masks.append(model.outlier_mask_)
    # rows that wait for the first batch are searched without it
    assert_array_equal(np.concatenate(masks[-1:]), stream.visible[-300:])
    whole = RobustSubspaceTracker(5, **PAPER).fit(stream.X)
    assert_array_equal(whole.components_, model.components_)
    assert_array_equal(whole.outlier_mask_[-300:], masks[-1])
    assert_array_equal(whole.support_threshold_, model.support_threshold_)


def test_rows_may_come_one_by_one():
    stream = constant_stream(260, 120, 5)
    model = RobustSubspaceTracker(5, **PAPER).fit(stream.X[:200])
    masks = []
    for x in stream.X[200:]:
        masks.append(model.partial_fit(x[None]).outlier_mask_)
        assert masks[-1].shape == (1, 120)
    # thresholds of a few rows, of a subspace that is known to 1e-4, are not exact
    assert np.mean(np.concatenate(masks) & ~stream.visible[200:]) < 0.01
    whole = RobustSubspaceTracker(5, **PAPER).fit(stream.X)
    assert_array_equal(model.components_, whole.components_)


@pytest.mark.parametrize("n", [1, 2])
def test_outliers_of_a_few_rows_are_found(n):
    stream = constant_stream(300 + n, 120, 5)
    model = RobustSubspaceTracker(5, **PAPER).fit(stream.X[:300])
    model.partial_fit(stream.X[300:])
    assert_array_equal(model.outlier_mask_, stream.visible[300:])
    assert subspace_distance(model.components_, stream.V) < 1e-3


def test_outliers_of_a_moving_object_are_found_in_the_rows_that_wait():
    stream = constant_stream(600, 300, 5, 0.1, outlier_pattern="moving")
    model = RobustSubspaceTracker(5, **PAPER).fit(stream.X)
    assert_array_equal(model.outlier_mask_[580:], stream.visible[580:])


def test_the_mask_of_an_iterable_is_that_of_its_last_batch():
    stream = constant_stream(600, 120, 5)
    model = RobustSubspaceTracker(5, **PAPER).fit(
        iter([stream.X[:200], stream.X[200:333], stream.X[333:]])
    )
    assert_array_equal(model.outlier_mask_, stream.visible[333:])
    whole = RobustSubspaceTracker(5, **PAPER).fit(stream.X)
    assert_array_equal(model.components_, whole.components_)


def test_the_mask_is_not_shared_between_calls():
    stream = constant_stream(300, 120, 5)
    model = RobustSubspaceTracker(5, **PAPER).fit(stream.X[:200])
    mask = model.outlier_mask_
    copy = mask.copy()
    model.partial_fit(stream.X[200:])
    assert_array_equal(mask, copy)
    assert model.outlier_mask_.shape == (100, 120)


def test_a_failed_call_changes_neither_mask_nor_threshold():
    stream = constant_stream(300, 120, 5)
    model = RobustSubspaceTracker(5, **PAPER).fit(stream.X[:200])
    before = fitted_attributes(model)
    with pytest.raises(ValueError, match="infinity"):
        model.partial_fit(np.full((3, 120), inf))
    assert fitted_attributes(model).keys() == before.keys()
    assert model.outlier_mask_ is before["outlier_mask_"]
    assert model.support_threshold_ is before["support_threshold_"]


def test_changes_are_detected_among_outliers():
    stream = make_subspace_stream(2000, 200, 5, model="piecewise", outliers=0.05, random_state=0)
    model = RobustSubspaceTracker(5, detect_changes=True, **PAPER).fit(stream.X)
    # batches begin at 100 + 40 i
    assert_array_equal(model.change_points_, [980])
    assert_array_equal(model.outlier_mask_, stream.outliers & ~stream.missing)
    assert subspace_distance(model.components_, stream.subspace_at(1999)) < 1e-10
    constant = constant_stream(2000, 200, 5, 0.05)
    still = RobustSubspaceTracker(5, detect_changes=True, **PAPER).fit(constant.X)
    assert not len(still.change_points_)


def test_one_subspace_is_stored_for_each_full_batch():
    stream = constant_stream(230, 120, 5)
    model = RobustSubspaceTracker(5, store_subspaces=True, **PAPER).fit(stream.X)
    assert len(model.subspaces_) == 1 + 130 // 40
    for V in model.subspaces_:
        assert V.shape == (5, 120)
        assert subspace_distance(V, stream.V) < 2e-2
    assert "subspaces_" not in vars(RobustSubspaceTracker(5, **PAPER).fit(stream.X))


# ---------------------------------------------------------------------------------- new rows


@pytest.fixture(scope="module")
def fitted():
    stream = constant_stream(700, 120, 5)
    stream.model = RobustSubspaceTracker(5, **PAPER).fit(stream.X[:500])
    return stream


def test_new_rows_are_decomposed(fitted):
    low_rank, sparse = fitted.model.decompose(fitted.X)
    assert_array_equal(sparse != 0, fitted.visible)
    assert_allclose(low_rank, fitted.low_rank, atol=1e-7)
    kept = ~fitted.outliers & ~fitted.missing
    assert_array_equal(low_rank[kept], fitted.X[kept])
    # the sum is rounded: EPS of outliers of 25 and of what they hide
    assert_allclose(
        (low_rank + sparse)[~fitted.missing], fitted.X[~fitted.missing], rtol=0, atol=1e-14
    )


def test_rows_without_entries_are_decomposed_into_the_mean(fitted):
    low_rank, sparse = fitted.model.decompose(np.full((2, 120), nan))
    assert_array_equal(sparse, 0)
    assert_array_equal(low_rank, np.tile(fitted.model.mean_, (2, 1)))


def test_outliers_do_not_move_coordinates(fitted):
    Z = fitted.model.transform(fitted.X)
    assert_allclose(Z, fitted.model.transform(fitted.clean), atol=1e-13)
    # of the rows as they were before outliers and holes: to the error of the subspace
    assert_allclose(Z, fitted.model.transform(fitted.low_rank), atol=1e-7)


def test_outliers_do_not_move_what_is_imputed(fitted):
    full = fitted.model.impute(fitted.X)
    assert_array_equal(full[~fitted.missing], fitted.X[~fitted.missing])
    assert_allclose(full[fitted.missing], fitted.low_rank[fitted.missing], atol=1e-7)


def test_outliers_do_not_move_the_score(fitted):
    robust, clean = fitted.model.score(fitted.X), fitted.model.score(fitted.clean)
    assert_allclose(robust, clean, rtol=0, atol=1e-12)
    assert robust > 1 - 1e-9
    told = SubspaceTracker(5, **PAPER).fit(fitted.clean)
    assert told.score(fitted.X) < 0.5


@pytest.mark.parametrize("threshold", ["auto", 5.0])
def test_new_rows_stand_for_themselves(fitted, threshold):
    model = RobustSubspaceTracker(5, support_threshold=threshold, **PAPER).fit(fitted.X[:500])
    X = fitted.X + 0.3 * np.random.default_rng(0).standard_normal(fitted.X.shape)
    order = np.random.default_rng(0).permutation(700)
    Z, (low_rank, sparse) = model.transform(X), model.decompose(X)
    assert_allclose(model.transform(X[order]), Z[order], atol=1e-11)
    assert_allclose(model.decompose(X[order])[1], sparse[order], atol=1e-11)
    for i in range(0, 700, 37):
        assert_allclose(model.transform(X[i : i + 1]), Z[i : i + 1], atol=1e-11)
        assert_allclose(model.decompose(X[i : i + 1])[0], low_rank[i : i + 1], atol=1e-11)


def test_new_rows_change_nothing(fitted):
    X, before = fitted.X.copy(), dict(vars(fitted.model))
    for method in ("transform", "impute", "score", "decompose"):
        getattr(fitted.model, method)(X)
    assert_array_equal(X, fitted.X)
    assert vars(fitted.model) == before


@pytest.mark.parametrize("form", ["csr_array", "csc_array"])
def test_sparse_rows_are_the_dense_ones(form):
    stream = constant_stream(300, 120, 5, missing=0.0)
    X = getattr(sp, form)(stream.X)
    dense, model = (
        RobustSubspaceTracker(5, **PAPER).fit(stream.X),
        RobustSubspaceTracker(5, **PAPER).fit(X),
    )
    assert_array_equal(model.components_, dense.components_)
    assert_array_equal(model.outlier_mask_, dense.outlier_mask_)
    assert_array_equal(model.transform(X), dense.transform(stream.X))
    for part, other in zip(model.decompose(X), dense.decompose(stream.X), strict=True):
        assert_array_equal(part, other)


# ------------------------------------------------------------------------- scale and precision


@pytest.mark.parametrize("scale", [1e-100, 1e-6, 1e6, 1e100])
@pytest.mark.parametrize("center", [False, True])
def test_the_scale_of_the_rows_does_not_matter(scale, center):
    stream = constant_stream(300, 120, 5)
    model = RobustSubspaceTracker(5, center=center, forgetting_factor=0.0, fill="subspace").fit(
        stream.X
    )
    scaled = RobustSubspaceTracker(5, center=center, forgetting_factor=0.0, fill="subspace").fit(
        scale * stream.X
    )
    assert_array_equal(scaled.outlier_mask_, model.outlier_mask_)
    assert subspace_distance(scaled.components_, model.components_) < 1e-9
    for part, other in zip(
        scaled.decompose(scale * stream.X), model.decompose(stream.X), strict=True
    ):
        assert_allclose(part / scale, other, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_thresholds_are_in_units_of_the_rows(scale):
    stream = constant_stream(300, 120, 5)
    options = {"xi": 10 / 15 * scale, "support_threshold": 5 * scale}
    model = RobustSubspaceTracker(5, **{**PAPER, **options}).fit(scale * stream.X)
    assert_array_equal(model.outlier_mask_, stream.visible)


def test_single_precision_is_kept():
    stream = constant_stream(600, 120, 5)
    X = stream.X.astype(np.float32)
    model = RobustSubspaceTracker(5, **PAPER).fit(X)
    assert model.components_.dtype == model.mean_.dtype == np.float32
    assert subspace_distance(model.components_.astype(float), stream.V) < 1e-6
    low_rank, sparse = model.decompose(X)
    assert low_rank.dtype == sparse.dtype == model.transform(X).dtype == np.float32
    assert_array_equal(np.abs(sparse) > 1e-5, stream.visible)
    assert_allclose(low_rank, stream.low_rank, atol=1e-5)
    assert model.outlier_mask_[stream.visible].all()


def test_rounding_errors_of_single_precision_are_not_outliers():
    stream = constant_stream(600, 120, 5)
    X = stream.X.astype(np.float32)
    model = RobustSubspaceTracker(5, **PAPER).fit(X)
    assert_array_equal(model.outlier_mask_, stream.visible)
    assert_array_equal(model.decompose(X)[1] != 0, stream.visible)


# ------------------------------------------------------------------------------ documented limits


def test_a_column_may_be_hit_in_less_than_half_of_a_batch():
    stream = constant_stream(600, 200, 5, 0.02)
    X, hit = stream.X.copy(), stream.visible.copy()
    often = np.arange(600) % 40 < 15
    X[often, 7] += np.where(np.arange(600) % 3, 100, -100)[often]
    hit[often, 7] = ~stream.missing[often, 7]
    model = RobustSubspaceTracker(5, **PAPER).fit(X)
    assert_array_equal(model.outlier_mask_[100:], hit[100:])
    assert subspace_distance(model.components_, stream.V) < 1e-5


def test_what_is_always_in_a_column_is_a_direction_not_an_outlier():
    stream = constant_stream(600, 200, 5, 0.0)
    X = stream.X.copy()
    X[:, 7] += 20 * np.random.default_rng(0).choice([-1, 1], 600)
    model = RobustSubspaceTracker(6, **PAPER).fit(X)
    assert not model.outlier_mask_.any()
    axis = np.concatenate([stream.V, np.eye(200)[[7]]])
    assert subspace_distance(model.components_, np.linalg.qr(axis.T)[0].T) < 1e-8


def test_an_outlier_below_the_threshold_stays_in_the_row():
    stream = constant_stream(200, 120, 5, 0.0)
    X = stream.X.copy()
    X[150, 3] = stream.low_rank[150, 3] + 2
    X[150, 4] = stream.low_rank[150, 4] + 20
    model = RobustSubspaceTracker(5, init=stream.V, xi=0.0, support_threshold=5.0, **PAPER).fit(X)
    assert_array_equal(np.argwhere(model.outlier_mask_), [[150, 4]])


# ---------------------------------------------------------------------------- memory, selection


@pytest.mark.parametrize("d", [1000, 4000])
def test_memory_is_that_of_a_few_batches_and_bases(d):
    stream = constant_stream(180, d, 5, 0.05)
    model = RobustSubspaceTracker(5, **PAPER)
    # some 15 arrays of a batch's size are held at once by the iteration
    assert peak_bytes(lambda: model.partial_fit(stream.X[:100])) < 20 * 8 * d * (100 + 5)
    assert peak_bytes(lambda: model.partial_fit(stream.X[100:])) < 20 * 8 * d * (40 + 5)


def test_memory_grows_by_a_byte_an_entry_with_the_rows():
    stream = constant_stream(1300, 1000, 5, 0.05)
    model = RobustSubspaceTracker(5, **PAPER).partial_fit(stream.X[:100])
    few = peak_bytes(lambda: model.partial_fit(stream.X[100:300]))
    many = peak_bytes(lambda: model.partial_fit(stream.X[300:1300]))
    # the masks of blocks and their concatenation
    assert many - few < 2.5 * 800 * 1000


def test_new_rows_take_the_memory_of_a_copy():
    stream = constant_stream(400, 1000, 5, 0.05)
    model = RobustSubspaceTracker(5, **PAPER).fit(stream.X[:200])
    one = peak_bytes(lambda: model.transform(stream.X[:100]))
    two = peak_bytes(lambda: model.transform(stream.X))
    assert two - one < 2.5 * 8 * 300 * 1000


@pytest.mark.filterwarnings("ignore:.*lower support_threshold:UserWarning")  # of 1e6
def test_a_grid_search_picks_rank_and_threshold():
    stream = constant_stream(450, 150, 4, 0.05, noise_std=0.05)
    grid = {
        "robustsubspacetracker__n_components": [2, 4],
        "robustsubspacetracker__support_threshold": ["auto", 5.0, 1e6],
    }
    search = GridSearchCV(make_pipeline(RobustSubspaceTracker(**PAPER)), grid, cv=KFold(3)).fit(
        stream.X
    )
    assert search.best_params_["robustsubspacetracker__n_components"] == 4
    assert search.best_params_["robustsubspacetracker__support_threshold"] != 1e6
    assert search.best_score_ > 0.8
    assert search.transform(stream.X).shape == (450, 4)


# -------------------------------------------------------------------------------- bad parameters


@pytest.mark.parametrize("scale", [1e78, 1e-82])
def test_what_is_warned_of_does_not_depend_on_units(scale):
    X = np.random.default_rng(3).standard_normal((400, 20)) / np.arange(1, 21)
    with pytest.warns(UserWarning, match="n_components=3 explains little"):
        RobustSubspaceTracker(3).fit(X)
    with pytest.warns(UserWarning, match="n_components=3 explains little"):
        RobustSubspaceTracker(3).fit(X * scale)


def test_another_start_while_the_first_rows_wait_is_not_taken():
    X = np.random.default_rng(0).standard_normal((20, 9))
    tracker = RobustSubspaceTracker(3).fit(X).set_params(init=np.eye(3, 9))
    expected = RobustSubspaceTracker(3).fit(X).partial_fit(X)
    np.testing.assert_array_equal(tracker.partial_fit(X).components_, expected.components_)
