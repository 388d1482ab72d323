"""Sparse recovery and alternating projections, against independent solvers and clean rows.

The optimum of the sparse recovery comes from a linear program (xi = 0) or from sequential quadratic
programming (xi > 0). Streams without noise are recovered up to rounding errors, so supports are
compared exactly: outliers of 10 to 25 are far from what is left. Rows with zeros are judged before
they were corrupted: what components leave of them, over what those of PCA of these rows leave.
"""

import re
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import naming, random_basis
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import linprog, minimize
from sklearn.datasets import load_breast_cancer
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler
from tracker_helpers import constant_stream

from fedpca_sklearn import (
    AlternatingProjections,
    make_power_law,
    projected_sparse_recovery,
    subspace_distance,
)
from fedpca_sklearn.tracking._outliers import lowered

nan, inf = np.nan, np.inf
examples = settings(max_examples=40, derandomize=True, deadline=None, database=None)


# ------------------------------------------------------------------------------ sparse recovery


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
        r[seen] = x[seen] - A @ (np.linalg.pinv(A) @ x[seen])
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

    result = minimize(
        np.sum,
        np.concatenate([np.maximum(b, 0), np.maximum(-b, 0)]) + 0.1,
        jac=np.ones_like,
        bounds=[(0, None)] * (2 * m),
        constraints=[{"type": "ineq", "fun": slack, "jac": slope}],
        method="SLSQP",
        options={"ftol": 1e-13, "maxiter": 500},
    )
    return result.fun if result.success else None


@examples
@given(
    seed=st.integers(0, 2**31),
    d=st.integers(1, 15),
    k=st.integers(0, 6),
    xi=st.sampled_from([0.0, 0.0, 1e-3, 0.3, 5.0, "rows"]),
    missing=st.sampled_from([0.0, 0.3, 0.8]),
    max_iter=st.sampled_from([1, 5, 25, 500, 5000]),
)
def test_the_sparse_part_is_feasible_and_within_its_gap_of_the_optimum(
    seed, d, k, xi, missing, max_iter
):
    X, V = spiked_rows(seed, 5, d, min(k, d), missing=missing)
    xi = np.linspace(0, 3, 5) if xi == "rows" else xi
    given = X.copy(), V.copy()
    sparse, gap = projected_sparse_recovery(X, V, xi, tol=1e-7, max_iter=max_iter)
    left, size = np.linalg.norm(unexplained(X - sparse, V), axis=1), np.nansum(np.abs(X), axis=1)
    # fewer than twice as many entries as components may determine them badly
    assert (left <= xi + 1e-8 * size).all()
    assert_array_equal(sparse[np.isnan(X)], 0)
    assert np.isfinite(sparse).all()
    assert ((gap >= 0) & (gap <= 1)).all()
    if np.all(np.equal(xi, 0)):
        best, found = np.array([least_absolute(x, V) for x in X]), np.abs(sparse).sum(axis=1)
        assert (found >= best - 1e-9 * size).all()
        assert (best >= (1 - gap) * found - 1e-9 * size).all()
    for array, copy in zip((X, V), given, strict=True):
        assert_array_equal(array, copy)


@pytest.mark.parametrize("xi", [0.0, 0.05, 0.5, 2.0])
def test_the_optimum_is_that_of_linear_or_quadratic_programming(xi):
    X, V = spiked_rows(1, 40)
    sparse, gap = projected_sparse_recovery(X, V, xi, tol=1e-6, max_iter=100_000)
    assert gap.max() <= 1e-6
    best = [least_norm_in_ball(x, V, xi) if xi else least_absolute(x, V) for x in X]
    known = [b is not None for b in best]
    assert np.mean(known) > 0.6
    found = np.abs(sparse).sum(axis=1)
    assert_allclose(found[known], np.array(best)[known].astype(float), rtol=3e-6, atol=1e-7)
    few = [projected_sparse_recovery(X, V, xi, tol=1e-6, max_iter=n)[1].max() for n in (1, 10)]
    assert min(few) > 1e-6  # too few iterations show in the gap


def test_neither_the_order_of_rows_nor_their_unit_matters():
    X, V = spiked_rows(2, 8)
    order = np.random.default_rng(0).permutation(8)
    for xi in (np.zeros(8), np.linspace(0, 2, 8)):
        sparse, gap = projected_sparse_recovery(X, V, xi)
        turned = projected_sparse_recovery(X[order], V, xi[order])[0]
        assert_allclose(turned, sparse[order], rtol=1e-9, atol=1e-10)
        for scale in (2.0**40, 2.0**-300, 1e6, 1e100, 1e-100):
            scaled, scaled_gap = projected_sparse_recovery(scale * X, V, scale * xi)
            tol = 1e-9 if np.log2(scale) % 1 else 1e-13
            assert_allclose(scaled / scale, sparse, rtol=tol, atol=tol)
            assert_allclose(scaled_gap, gap, atol=1e-9)


WRONG = [
    *(("components", V) for V in (np.eye(3, 11), np.ones((2, 12)), 2 * np.eye(3, 12), np.ones(12))),
    *(("components", V) for V in (np.eye(3, 12) + 1e-3, np.full((3, 12), nan))),
    *(("xi", xi) for xi in (-1.0, nan, np.ones(5), np.ones((6, 1)), np.r_[np.ones(5), -1e-9], "a")),
    *(("tol", tol) for tol in (0.0, -1e-3, nan, "small")),
    *(("max_iter", n) for n in (0, 2.5, None)),
    ("X", np.full((6, 12), inf)),
]


def test_a_bad_argument_is_named():
    X, V = spiked_rows(0)
    for name, value in WRONG:
        with naming((name, value)), pytest.raises(ValueError, match=name):
            projected_sparse_recovery(**{"X": X, "components": V, name: value})


@pytest.mark.parametrize(("noise", "fall"), [(1.0, True), (0.5, True), (0.1, False)])
def test_thresholds_fall_to_a_faint_object_but_in_rows_of_hardly_any_noise(noise, fall):
    """Twenty entries of five deviations among 400; thresholds are of six."""
    size = noise * np.abs(np.random.default_rng(0).standard_normal((1, 400))).clip(max=2.9)
    size[0, :20] = 5.0
    (threshold,) = 6 * lowered(size, np.full(size.shape, 6.0))
    assert 3 <= threshold < 5 if fall else threshold == 6


# ------------------------------------------------------------------------------ projections


def assert_separated(model, X):
    """The two parts and the error are what they are said to be."""
    left = np.where(np.isnan(X), 0, X - model.low_rank_ - model.sparse_)
    norm = np.linalg.norm(np.nan_to_num(X - model.mean_)) or 1.0
    assert_allclose(np.linalg.norm(left) / norm, model.error_, rtol=1e-6, atol=1e-12)
    assert_array_equal(model.sparse_[np.isnan(X)], 0)
    s = np.linalg.svd(model.low_rank_ - model.mean_, compute_uv=False)
    assert (s[model.n_components :] <= 1e-9 * s[0]).all()
    assert_allclose(model.singular_values_, s[: model.n_components], rtol=1e-9, atol=1e-9 * s[0])
    assert_allclose(model.explained_variance_ratio_.sum(), 1)
    assert model.noise_variance_ == 0


@pytest.mark.parametrize(
    ("shape", "k"), [((400, 150), 20), ((150, 400), 20), ((200, 200), 5)], ids=str
)
@pytest.mark.parametrize("pattern", ["bernoulli", "moving"])
@pytest.mark.parametrize(("share", "missing"), [(0.1, 0.0), (0.1, 0.1)])
def test_low_rank_and_outliers_are_separated(shape, k, pattern, share, missing):
    stream = constant_stream(*shape, k, share, outlier_pattern=pattern, missing=missing, seed=1)
    model = AlternatingProjections(k).fit(stream.X)
    assert_separated(model, stream.X)
    assert_array_equal(model.sparse_ != 0, stream.visible)
    assert model.error_ <= 1e-4
    # the error of the fit at most doubles where entries are lost: they are a small share
    bound = 2 * model.error_ * np.linalg.norm(np.nan_to_num(stream.X))
    assert np.linalg.norm(model.low_rank_ - stream.low_rank) <= bound
    assert subspace_distance(model.components_, stream.V) <= bound / (0.8 * np.sqrt(len(stream.X)))


def test_a_smaller_tol_gives_a_smaller_error_and_iterations_are_limited():
    stream = constant_stream(150, 400, 5, 0.1, missing=0.0)
    model = AlternatingProjections(5, tol=1e-10).fit(stream.X)
    assert 1e-12 < model.error_ <= 1e-10  # no digits beyond those that are asked for
    assert_allclose(model.low_rank_, stream.low_rank, atol=1e-7)
    assert_allclose(model.sparse_, np.where(stream.visible, stream.sparse, 0), atol=1e-7)
    for Z in (model.transform(model.low_rank_), model.fit_transform(stream.low_rank)):
        assert_allclose(model.inverse_transform(Z), stream.low_rank, atol=1e-7)
    for n in (1, 7):
        with pytest.warns(ConvergenceWarning, match=f"max_iter={n} iterations leave error_="):
            model = AlternatingProjections(5, max_iter=n).fit(stream.X)
        assert model.n_iter_ == n
        assert model.error_ > 1e-4
        assert_separated(model, stream.X)
    for spike in (0, 1):  # nothing is separated at once
        X = np.zeros((90, 8))
        X[50, 0] = spike
        assert AlternatingProjections(3).fit(X).n_iter_ < 100


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("center", [False, True])
def test_without_outliers_or_with_a_large_threshold_it_is_an_svd(noise, center):
    X = constant_stream(300, 80, 5, 0.0, missing=0.0, noise_std=noise).X
    model = AlternatingProjections(5, threshold_scale=1e3 if noise else 1.0, center=center).fit(X)
    _, s, V = np.linalg.svd(X - np.median(X, axis=0) * center, full_matrices=False)
    assert_array_equal(model.sparse_, 0)
    assert subspace_distance(model.components_, V[:5]) < 1e-10
    assert_allclose(model.error_, np.sqrt(np.sum(s[5:] ** 2) / np.sum(s**2)), atol=1e-12)


@pytest.mark.parametrize("center", [False, True])
def test_new_rows_are_separated_by_themselves(center):
    stream = constant_stream(400, 150, outliers=0.07)
    model = AlternatingProjections(5, center=center).fit(stream.X[:250])
    X, before = stream.X.copy(), dict(vars(model))
    low_rank, sparse = model.decompose(X)
    assert vars(model) == before
    assert_array_equal(X, stream.X)
    assert_array_equal(sparse != 0, stream.visible)
    assert_array_equal(sparse[:250] != 0, model.sparse_ != 0)
    kept = ~stream.outliers & ~stream.missing
    assert_array_equal(low_rank[kept], X[kept])
    seen = ~stream.missing
    assert_allclose((low_rank + sparse)[seen], X[seen], rtol=0, atol=1e-13)
    # where entries are lost it is the fit: the basis is as exact as the separation, a share of
    # the rows with their outliers, which are some 30 times as large as those without
    missed = np.linalg.norm((low_rank - stream.low_rank)[~kept])
    assert missed <= 30 * 2 * model.error_ * np.linalg.norm(stream.low_rank)
    for i in (0, 150, 399):
        for part, all_rows in zip(model.decompose(X[i : i + 1]), (low_rank, sparse), strict=True):
            assert_allclose(part[0], all_rows[i], atol=1e-11)


# ------------------------------------------------------------------------------ rows with zeros


def noisy(n=1000, d=40, k=3, noise=0.3, seed=0):
    """Rows near a subspace through the origin."""
    rng = np.random.default_rng(seed)
    X = 3 * rng.standard_normal((n, k)) @ rng.standard_normal((k, d))
    return X + noise * rng.standard_normal((n, d))


def spikes(shape, share, seed=1, size=(20.0, 40.0)):
    """Sparse matrix of outliers of both signs."""
    rng = np.random.default_rng(seed)
    return (rng.random(shape) < share) * rng.choice([-1, 1], shape) * rng.uniform(*size, shape)


def counts(level=0.8, seed=0):
    rng = np.random.default_rng(seed)
    rates = rng.gamma(0.5, 1, (800, 4)) @ rng.gamma(0.3, 1, (4, 60))
    return rng.poisson(level * rates).astype(float)


def indicators(seed=0):
    """Columns of categories that depend on three factors."""
    rng = np.random.default_rng(seed)
    factors = rng.standard_normal((1000, 3))
    columns = []
    for n in (3, 4, 5, 6, 8):
        p = np.exp(2 * factors @ rng.standard_normal((3, n)))
        p = (p / p.sum(axis=1, keepdims=True)).cumsum(axis=1)
        columns.append((p > rng.random((1000, 1))).argmax(axis=1)[:, None] == np.arange(n))
    return np.hstack(columns).astype(float)


DATA = {
    "counts": (counts(), 4),
    "categories": (indicators(), 5),
    "cancer": (StandardScaler().fit_transform(load_breast_cancer().data), 5),
    "zero columns": (np.c_[noisy(), np.zeros((1000, 41))], 3),
    "zero rows": (np.r_[noisy(), np.zeros((1500, 40))], 3),
}


def principal(X, k, center):
    return PCA(k).fit(X).components_ if center else np.linalg.svd(X, full_matrices=False)[2][:k]


def left(X, V, center):
    """Squares of rows that components leave, about the mean or the origin."""
    Z = X - X.mean(axis=0) if center else X
    return np.sum((Z - Z @ V.T @ V) ** 2)


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("hit", [False, True])
def test_rows_with_zeros_are_nearly_as_by_pca_of_clean_ones(kind, center, hit):
    X, k = DATA[kind]
    size = 10 * X.std(axis=0).max()
    off = hit * spikes(X.shape, 0.05, size=(size, 2 * size))
    model = AlternatingProjections(k, center=center).fit(X + off)
    best = left(X, principal(X, k, center), center)
    assert left(X, model.components_, center) <= 1.2 * best
    found = model.sparse_ != 0
    assert found[off != 0].all()
    assert found[off == 0].mean() < 0.02
    if hit:
        assert left(X, principal(X + off, k, center), center) > 1.5 * best
    else:
        assert np.mean(model.decompose(X)[1] != 0) < 0.02
        sparse = AlternatingProjections(k, center=center).fit(sp.csr_matrix(X))
        assert_array_equal(sparse.low_rank_, model.low_rank_)


def test_constant_columns_are_as_columns_of_zeros_and_missing_entries_are_not():
    X = noisy() + spikes((1000, 40), 0.05)
    fixed = np.tile(np.linspace(-7, 7, 60), (1000, 1))
    rounded = np.full((1000, 60), 0.1) * np.linspace(1, 7, 60)
    rounded -= rounded.mean(axis=0)  # the caller's own centring leaves rounding errors of them
    assert np.count_nonzero(rounded) > 0.8 * rounded.size
    for center, columns in ((True, fixed), (False, rounded)):
        model, alone = (
            AlternatingProjections(3, center=center).fit(rows) for rows in (np.c_[X, columns], X)
        )
        assert_array_equal(model.sparse_ != 0, np.pad(alone.sparse_ != 0, [(0, 0), (0, 60)]))
    off, X = spikes((1000, 100), 0.05), np.c_[noisy(), np.zeros((1000, 60))]
    hidden = np.random.default_rng(2).random(X.shape) < 0.1
    model = AlternatingProjections(3).fit(np.where(hidden, nan, X + off))
    assert_array_equal(model.sparse_ != 0, (off != 0) & ~hidden)


def film(noise, seed=0):
    """A scene whose left half is black, and an object that crosses it."""
    rng = np.random.default_rng(seed)
    scene = rng.uniform(50, 200, (20, 20))
    scene[:, :10] = 0
    mask = np.zeros((100, 20, 20), dtype=bool)
    for t in range(100):
        mask[t, 3 * t % 16 :, t // 5 % 16 :][:5, :5] = True
    X = scene + noise * rng.standard_normal(mask.shape) * (scene > 0)
    return np.where(mask, 250.0, X).reshape(100, -1), mask.reshape(100, -1)


UNITS = make_power_law(1000, 40, alpha=1.5, random_state=9) + 1
TOLD = [  # estimator and rows of which little can be told, words of the warning, and others
    (1, True, film(0.0)[0], "Most entries are the median.*or set center=False", None),
    (4, False, counts(0.2), "Most entries are 0, .* Raise n_components; PCA", (30, counts(0.2))),
    (
        10,
        False,
        UNITS / np.repeat([1, 1000], 20),
        r"of \d+ of 40 features are outliers.*standardise",
        (10, UNITS),
    ),
]


@pytest.mark.parametrize(("k", "center", "X", "words", "other"), TOLD, ids=range(3))
def test_what_cannot_be_told_is_told(k, center, X, words, other):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = AlternatingProjections(k, center=center).fit(X)
    assert any(re.search(words, str(w.message), re.DOTALL) for w in caught)
    if k == 4:
        assert left(X, model.components_, False) <= 1.2 * left(X, principal(X, k, False), False)
    if other:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            AlternatingProjections(other[0]).fit(other[1])


@pytest.mark.parametrize("center", [True, False])
def test_it_is_told_of_one_column_in_larger_units(center):
    """Times in seconds beside numbers near one: PCA has their column as its first component."""
    rng = np.random.default_rng(0)
    X = np.c_[1.7e9 + 1e7 * rng.random(300), rng.standard_normal((300, 12))]
    with pytest.warns(UserWarning, match="Most entries of 1 of 13 features are outliers: if these"):
        AlternatingProjections(3, center=center).fit(X)
    rows = X[:, 1:] @ rng.standard_normal((12, 12))
    rows[:180, 0] += 100.0  # a sensor that is wrong for three fifths of the rows is an outlier
    model = AlternatingProjections(6, center=center).fit(rows)
    assert 0.3 < np.mean(model.sparse_[:, 0] != 0) < 2 / 3
