"""What holds for every tracker of one stream, beside the rules of the papers (test_recursions.py).

Oracles are numpy's SVD and moments of all rows. Limits on errors are those of statistics: with
noise of deviation s, n rows of which all count and directions of deviation a, a basis is off by
about s sqrt(d / n) / a, and k directions explain (1 + k / n) times the least error.
"""

import pickle
import re
from itertools import pairwise

import numpy as np
import pytest
from golden_cases import made
from helpers import assert_finite_and_orthonormal, leading, measured, peak_bytes, sine, with_holes
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits, load_wine
from tracker_helpers import centred_row_by_row, fading, fed, planted, seen_by_the_rule, trackers

from fedpca_sklearn import GROUSE, PETRELS, OjaPCA, excess_error, make_power_law
from fedpca_sklearn._base.missing_entries import MissingEntriesMixin
from fedpca_sklearn.base import Tracker
from fedpca_sklearn.streaming._innovations import Fading, Features, innovations

EPS = np.finfo(float).eps
centred = pytest.mark.parametrize("center", [True, False])


def factor(model):
    """What a row leaves of the weight of all before it."""
    value = getattr(model, "forgetting_factor", 1.0)
    return 1.0 if isinstance(value, str) else value


def each(*codes):
    return pytest.mark.parametrize("model", [*map(made, codes)], ids=codes)


# ------------------------------------------------------------------------------ centring


class Recorder(Tracker):
    """A rule that keeps the rows it sees, and shows an axis."""

    def __init__(self, n_components=1, *, center=True):
        self.n_components = n_components
        self.center = center

    def _begin(self, d, rng):
        return np.zeros((0, d))

    def _updated(self, state, Z):
        return np.concatenate([state, Z])

    def _basis(self, state):
        return np.eye(1, state.shape[1])

    def _show_state(self, state):
        self.rows_ = state


class RecorderOfHoles(MissingEntriesMixin, Recorder):
    pass


def test_a_rule_sees_all_rows_but_those_without_weight():
    X = planted(100, 6, noise=1.0, mean=3.0)[0]
    for center in (True, False):
        seen = fed(Recorder(center=center), X).rows_
        assert_allclose(seen, seen_by_the_rule(X, center))
    X = np.arange(24.0).reshape(6, 4) ** 2
    X[0, 2:] = X[1, :2] = X[3] = np.nan  # the second row is the first one of the other features
    seen = fed(RecorderOfHoles(), X).rows_
    assert len(seen) == 4
    assert_allclose(seen[0], [(X[2, j] - X[j // 2, j]) * np.sqrt(1 / 2) for j in range(4)])
    assert np.isnan(seen[1]).all()


def test_a_rule_without_a_beginning_is_told_what_it_lacks():
    class Unbegun(Recorder):
        _begin = Tracker._begin

    with pytest.raises(TypeError, match="Unbegun must write _begin, or _begin_at"):
        Unbegun().fit(np.eye(5))


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(
    seed=st.integers(0, 2**31),
    n=st.integers(1, 90),
    d=st.integers(1, 6),
    cuts=st.lists(st.integers(0, 90), max_size=6),
    mean=st.sampled_from([0.0, 1.0, 1e4, 1e8]),
    f=st.sampled_from([1.0, 0.99, 0.9, 0.5]),
    share=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
    center=st.booleans(),
)
def test_centred_rows_carry_the_exact_scatter_of_each_feature(
    seed, n, d, cuts, mean, f, share, center
):
    rng = np.random.default_rng(seed)
    whole = rng.standard_normal((n, d)) * 10.0 ** rng.integers(-2, 3, d)
    whole = whole + mean * rng.uniform(-1, 1, d)
    X = with_holes(whole, share, seed)
    known, parts = Features.empty(d), []
    for rows in np.split(X, sorted(cuts)):
        if len(rows):
            Z, known = innovations(known, rows.copy(), center, Fading.by_rows(f, len(rows)))
            parts.append(Z)
    Z, w = np.concatenate(parts), fading(n, f)
    assert_array_equal(np.isnan(Z), np.isnan(X))
    # a running mean is rounded once a block, and enters every centred row
    rounding = n * EPS * (np.abs(whole).max() + 1)
    squares, weights = (np.broadcast_to(a, d) for a in (known.squares, known.weight))
    D = np.zeros((n, d))
    for j in range(d):
        seen = ~np.isnan(X[:, j])
        x, v = X[seen, j], w[seen]
        assert_allclose(weights[j], v.sum(), rtol=1e-12)
        if not len(x):
            assert known.mean[j] == squares[j] == 0
            continue
        middle = (x[0] + v @ (x - x[0]) / v.sum()) if center else 0.0
        D[seen, j] = (x - x[0] - v @ (x - x[0]) / v.sum()) if center else x
        assert_allclose(known.mean[j], middle, rtol=0, atol=rounding * center)
        if center:
            assert Z[seen, j][0] == 0
    Z, size = np.nan_to_num(Z), w @ D**2
    tol = 1e-12 * size + center * (4 * rounding * np.sqrt(n * size) + n * rounding**2)
    assert np.all(np.abs(squares - size) <= tol)
    assert np.all(np.abs(w @ Z**2 - size) <= tol)
    if not share:
        S, tol = (w[:, None] * D).T @ D, np.sqrt(np.outer(tol, size.sum() + tol)) + tol.sum()
        assert np.all(np.abs((w[:, None] * Z).T @ Z - S) <= tol)


# ------------------------------------------------------------------------------ moments


@trackers()
@pytest.mark.parametrize("n", [2, 3, 31, 32, 150])
@centred
def test_mean_and_total_variance_are_exact(model, n, center):
    X = planted(n, mean=5.0)[0]
    model = fed(clone(model).set_params(center=center), X)
    w = fading(n, factor(model))
    mean = center * (w @ X) / w.sum()
    total = np.sum(w @ (X - mean) ** 2) / max(w.sum() - 1, w.sum() / 2)
    variance = model.explained_variance_
    left = (20 - len(variance)) * model.noise_variance_
    assert_allclose(model.mean_, mean, atol=1e-12)
    assert_allclose(variance.sum() + left, total, rtol=1e-10)
    assert_allclose(model.explained_variance_ratio_, variance / total, rtol=1e-10)
    assert_allclose(model.subspace_.total_variance, total, rtol=1e-10)
    assert_allclose(model.subspace_.n_samples, w.sum(), rtol=1e-12)
    assert model.n_samples_ == model.n_samples_seen_ == n


@trackers("holes")
@centred
def test_features_with_holes_count_as_if_they_had_none(model, center):
    X = with_holes(planted(500, mean=2.0)[0], 0.5)
    model = fed(clone(model).set_params(center=center), X)
    w, seen = fading(500, factor(model)), ~np.isnan(X)
    weight = w @ seen
    mean = center * (w @ np.where(seen, X, 0)) / weight
    squares = w @ np.where(seen, X - mean, 0) ** 2
    total = np.sum(squares / weight) * w.sum() / (w.sum() - 1)
    if center:  # within the affine subspace; across it, the errors of these means differ
        assert_allclose((model.mean_ - mean) @ model.components_.T, 0, atol=1e-11)
    else:
        assert_array_equal(model.mean_, 0)
    assert_allclose(model.subspace_.total_variance, total, rtol=1e-10)


@trackers()
def test_a_long_stream_has_an_orthonormal_basis_and_the_variances_of_all_rows(model):
    X, V = planted(3000, mean=5.0, noise=0.05)
    model = clone(model).fit(X)
    assert_finite_and_orthonormal(model)
    assert sine(model.components_, V) < 0.3
    if factor(model) == 1:
        variance = np.var((X - X.mean(axis=0)) @ model.components_.T, axis=0, ddof=1)
        assert_allclose(model.explained_variance_, variance, rtol=0.1)
        assert_allclose(model.singular_values_**2, model.explained_variance_ * 2999, rtol=1e-10)


@trackers("fixed")
def test_variances_of_noise_are_those_of_all_rows(model):
    if factor(model) < 1 or getattr(model, "step_size", "") == "greedy":  # fits each row
        return
    X = np.random.default_rng(0).standard_normal((1000, 20))
    model = clone(model).fit(X)
    true = np.mean(((X - X.mean(axis=0)) @ model.components_.T) ** 2)
    # 1,000 k squares of unit variance, of components that move all the time: 5 sigma, and the
    # first of 32 blocks, whose components fit it
    assert abs(model.explained_variance_.mean() - true) < 5 * np.sqrt(2 / 3000) + 2 / 32


@each("GROUSE(3, center=False, random_state=0)", "PAST(3, forgetting_factor=0.99, random_state=0)")
@pytest.mark.parametrize(("init", "first"), [("rows", 7), ("random", 33)])
def test_variances_are_the_energy_that_the_components_of_the_time_held(model, init, first):
    model, f = clone(model).set_params(init=init), factor(model)
    X = np.concatenate([planted(320)[0], planted(330, seed=9)[0]])
    Z, first = (centred_row_by_row(X, f), first) if model.center else (X, first - 1)
    weight, held = fading(650, f), 0.0
    for start, end in pairwise([0, *range(first, 650, 32), 650]):
        part, before = slice(start, end), start or first  # the first block in its own basis
        V = clone(model).fit(X[:before]).components_
        held += weight[part] @ np.sum((Z[part] @ V.T) ** 2, axis=1)
    model.fit(X)
    assert_allclose(model.explained_variance_ratio_.sum(), held / (weight @ np.sum(Z**2, axis=1)))


# ------------------------------------------------------------------------------ unlike streams


def silence(kind, n):
    return {
        "zeros": np.zeros((n, 20)),
        "constant": np.full((n, 20), 3.0),
        "one direction": np.outer(np.sin(np.arange(n)), planted(1)[0]),
        "vanishing squares": 1e-170 * planted(n)[0],
        "repeated": np.repeat(planted(n // 3 + 1)[0], 3, axis=0)[:n],
        "no entries": np.full((n, 20), np.nan),
        "holes of zeros": with_holes(np.zeros((n, 20)), 0.3),
        "few entries": np.where(np.arange(20) < 3, planted(n)[0], np.nan),
    }[kind]


KINDS = ["zeros", "constant", "one direction", "vanishing squares", "repeated"]
HOLES = ["no entries", "holes of zeros", "few entries"]


@trackers()
@pytest.mark.parametrize("kind", KINDS + HOLES)
@pytest.mark.parametrize("n", [1, 2, 9, 50])
@centred
def test_a_stream_may_start_without_news(model, kind, n, center):
    if kind in HOLES and not isinstance(model, GROUSE | PETRELS):
        return
    first, model = silence(kind, n), clone(model).set_params(center=center)
    assert_finite_and_orthonormal(model.fit(first))
    if not hasattr(model, "lower"):  # whose rank changes
        assert len(model.components_) == model.n_components_ == min(3, n)
    if kind in ("zeros", "no entries"):
        assert_array_equal(model.explained_variance_, 0)
        assert model.noise_variance_ == 0
    X, V = planted(900, noise=0.01)
    assert_finite_and_orthonormal(model.partial_fit(X))
    if not hasattr(model, "lower") and (not np.nansum(first**2) or factor(model) < 1):
        assert sine(model.components_, V) < 0.2


@trackers("forgets")
@pytest.mark.parametrize("kind", [*KINDS[:3], "no entries"])
@pytest.mark.parametrize("f", [0.5, 0.9])
@centred
def test_a_long_silence_is_survived(model, kind, f, center):
    if kind in HOLES and not isinstance(model, PETRELS):
        return
    X, V = planted(200)
    model = clone(model).set_params(center=center, forgetting_factor=f).fit(X)
    n = int(-1200 * np.log(2) / np.log(f))
    model.partial_fit(silence(kind, n))  # rows fade by 2^-1200, below the smallest number
    assert_finite_and_orthonormal(model)
    model.partial_fit(planted(600)[0])
    assert_finite_and_orthonormal(model)
    if f == 0.9 and not hasattr(model, "lower"):  # whose rank changes
        assert sine(model.components_, V) < 0.3


LOUD = {
    "change": (planted(700)[0], planted(300, seed=9), 0.95),
    "silence": (np.full((2000, 20), 3.0), planted(1600, seed=9), 0.99),
    "loud rows": (1e8 * np.random.default_rng(3).standard_normal((32, 20)), planted(4500), 0.99),
    "nearly silent": (1e12 * planted(500)[0], planted(6500, seed=9), 0.99),
}


@trackers("forgets")
@pytest.mark.parametrize("kind", LOUD)
def test_what_comes_before_is_forgotten(model, kind):
    before, (after, V), f = LOUD[kind]  # until its weight is that of one row
    model = clone(model).set_params(forgetting_factor=f, center=False)
    if hasattr(model, "lower"):
        model.set_params(lower=0.0, upper=1.0)  # keeps three components
    assert sine(model.fit(np.concatenate([before, after])).components_, V) < 0.2


@each("PAST(3, random_state=0)", "PETRELS(3, random_state=0)")
def test_a_row_of_any_size_is_forgotten(model):
    B = planted(1)[1]
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 3)) * [3, 2, 1.5] @ B + 0.1 * rng.standard_normal((3000, 20))
    X[500] = 1e12 * rng.standard_normal(20)
    X[501] *= 1e-3
    model = clone(model).set_params(forgetting_factor=0.95, center=False)
    assert sine(model.partial_fit(X[:502]).components_, B) > 0.5
    # 1e24 times the variance, times .95 for each of 2,500 rows, is nothing
    assert sine(model.partial_fit(X[502:]).components_, B) < 3 * 0.1 / 1.5 * np.sqrt(20 * 0.05)


@trackers()
@pytest.mark.parametrize("scale", [1e-120, 1e-100, 1e8, 1e120])
@pytest.mark.parametrize("n", [7, 200])  # those of a start, and more
def test_the_scale_of_the_rows_does_not_matter(model, scale, n):
    X = planted(n, noise=1.0, mean=1.0)[0]
    plain, scaled = (clone(model).fit(a * X) for a in (1.0, scale))
    assert sine(scaled.components_, plain.components_) < 1e-8
    assert_allclose(scaled.singular_values_, scale * plain.singular_values_, rtol=1e-8)


@trackers()
def test_wide_rows_take_memory_for_a_few_bases_and_blocks(model):
    d, k = 5000, 3
    X = np.random.default_rng(0).standard_normal((100, d))
    whole, model = clone(model), clone(model)
    # the basis, the block, and a dozen copies and products of them
    assert peak_bytes(lambda: fed(whole, X)) < 12 * (k + 40) * d * 8
    if isinstance(model, GROUSE | PETRELS):
        X = with_holes(X, 0.5)
        assert peak_bytes(lambda: fed(model, X)) < 12 * (k + k**2 + 32) * d * 8


@trackers("fixed")
def test_the_state_does_not_grow_with_the_stream(model):
    model = clone(model).fit(planted(2000)[0])
    # 40 rows for bases and moments, up to 127 rows that wait, of 20 numbers of 8 bytes
    assert len(pickle.dumps(model._stream)) < 8 * 20 * (40 + 127)


# ------------------------------------------------------------------------------ first bases


@trackers("starts")
@pytest.mark.parametrize("n", [1, 2, 4, 6])
@centred
def test_the_first_rows_show_their_svd(model, n, center):
    X = planted(n + center, noise=0.3)[0]
    model = clone(model).set_params(center=center).fit(X)
    k = min(3, n) if factor(model) == 1 or not center else min(2, n)  # fading weighs the rows
    if factor(model) == 1:
        assert sine(model.components_[:k], leading(X - center * X.mean(axis=0), k)) < 1e-10
    assert_finite_and_orthonormal(model)


@trackers("starts")
def test_a_start_is_of_given_rows_whatever_the_seed_or_of_a_given_basis(model):
    X = planted(40, noise=0.3)[0]
    a, b = (clone(model).set_params(random_state=s).fit(X) for s in (1, 2))
    assert sine(a.components_, b.components_) < 1e-7
    later = clone(model).set_params(center=False)
    later.partial_fit(np.zeros((40, 20))).partial_fit(X[:6])  # zeros leave the start to others
    assert sine(later.components_, leading(X[:6], 3)) < 1e-7
    V = leading(planted(200, seed=1)[0], 3)
    init = np.random.default_rng(0).standard_normal((3, 3)) @ V
    given, before = clone(model).set_params(init=init, center=False), 1e-9 * V
    assert sine(given.fit(before).components_, V) < 1e-6


@trackers("holes")
@pytest.mark.parametrize("share", [0.6, 1.0])
def test_rows_with_too_few_entries_start_at_random(model, share):
    X = with_holes(planted(6)[0], share)  # all are of the start
    X[:, 3] = np.nan
    model = clone(model).set_params(center=False)
    random = clone(model).set_params(init="random")
    assert_allclose(model.fit(X).components_, random.fit(X).components_, atol=1e-10)


# ------------------------------------------------------------------------------ what counts


DEFAULTS = [f"{name}(random_state=0)" for name in ("GROUSE", "OjaPCA", "PAST", "PETRELS")]
DEFAULTS.append("StreamingPowerMethod(random_state=0)")


@each(*DEFAULTS)
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_by_default_noise_averages_out_over_all_rows(model, share):
    if share and not isinstance(model, GROUSE | PETRELS):
        return
    X, V = planted(3000, 30, 4, noise=0.25)
    model = clone(model).set_params(n_components=4, center=not share).fit(with_holes(X, share))
    # k (d - k) numbers, of which each adds its variance / n to the error of (d - k) variances; half
    # of the rows at least count, and a step along one direction leaves a few times as much
    if not share:
        assert excess_error(X, model.components_) < 4 * 2 * 4 / 3000
    # weights like t^m count 3000 (2 m + 1) / (m + 1)^2 rows of 1 - share entries
    m = 1 / (1 - share)
    count = (1 - share) * 3000 * (2 * m + 1) / (m + 1) ** 2
    assert sine(model.components_, V) < 2 * 2 * 0.25 / 2 * np.sqrt(30 / count)


@each(*DEFAULTS)
@pytest.mark.parametrize("data", ["light", "digits", "power law"])
def test_a_short_stream_is_at_most_twice_as_far_as_its_best_subspace(model, data):
    """Streams of 240 rows that no default was chosen on: sections of light, and other data."""
    if data == "light":
        X = measured("motes_light").astype(float)
        sections = [X[at : at + 240] for at in (1000, 2345, 6420)]
    elif data == "digits":
        sections = [load_digits().data[900:1140]]
    else:
        sections = [make_power_law(240, 80, alpha=1.5, random_state=42)]
    model = clone(model).set_params(n_components=10)
    errors = [1 + excess_error(X, clone(model).fit(X).components_) for X in sections]
    assert np.median(errors) < 2


@each("GROUSE(4)", "PAST(4)", "PAST(4, deflation=True)", "PETRELS(4)")
def test_columns_of_unlike_scales_need_no_scaling(model):
    # deviations from 0.1 to 300: what the first rows say of weak directions counts as well
    X = load_wine().data[np.random.default_rng(3).permutation(178)]
    assert excess_error(X, clone(model).set_params(random_state=0).fit(X).components_) < 0.01


def test_oja_forgets_what_was_weak():
    # 40 rows in the dark along other directions, and then the day
    for seed in range(4):
        rng = np.random.default_rng(seed)
        Q = np.linalg.qr(rng.standard_normal((20, 20)))[0]
        day = np.r_[3, 2.5, 2, 1.5, 1, np.full(15, 0.3)]
        X = rng.standard_normal((200, 20)) * day @ Q
        X[:40] = 0.05 * rng.standard_normal((40, 20)) * day[::-1] @ Q
        # k / n for the best of n rows; half of them count, and steps leave as much again
        assert excess_error(X, OjaPCA(5).fit(X).components_) < 4 * 5 / 160


# ------------------------------------------------------------------------------ missing entries


AFFINE = """GROUSE(4, random_state=0)
GROUSE(4, step_size="greedy", random_state=0)
PETRELS(4, random_state=0)
PETRELS(4, forgetting_factor=0.98, random_state=0)
SubspaceTracker(4)
RobustSubspaceTracker(4)
FederatedSubspaceTracker(4, n_clients=3, random_state=0)""".splitlines()


@each(*AFFINE)
@pytest.mark.parametrize("mean", [0.0, 1.0, 100.0])
def test_rows_of_an_affine_subspace_are_found_exactly(model, mean):
    X, V = planted(1600, 30, 4, noise=0.0, mean=mean)
    point = X.mean(axis=0)
    model = clone(model).fit(with_holes(X, 0.1))
    assert model.components_.shape == V.shape  # none is lost to the mean
    assert sine(model.components_, V) < 1e-8
    off = model.mean_ - point
    assert_allclose(off - off @ V.T @ V, 0, atol=1e-8 * max(mean, 1))
    assert_allclose(model.impute(with_holes(X, 0.3, seed=2)), X, atol=1e-7 * max(mean, 1))
    if hasattr(model, "_entry_noise") and type(model) in (GROUSE, PETRELS):
        X[800:] += 5.0 * V[0] + 3.0 * V[1]  # the mean moves within the subspace
        assert sine(clone(model).fit(with_holes(X, 0.1)).components_, V) < 1e-8


@each(*AFFINE)
def test_a_mean_costs_nothing_in_noise(model):
    X, V = planted(1000, 30, 4, noise=0.1)
    near, far = (clone(model).fit(with_holes(X + at, 0.1)) for at in (0.0, 50.0))
    assert abs(sine(far.components_, V) - sine(near.components_, V)) < 1e-6
    assert_allclose(far.mean_ - 50.0, near.mean_, atol=1e-6)


@trackers("holes")
@pytest.mark.parametrize("init", ["rows", "random"])
@pytest.mark.parametrize(("share", "tol"), [(0.0, 1e-6), (0.3, 1e-8), (0.7, 1e-6)])
def test_a_subspace_is_recovered_from_some_of_the_entries(model, init, share, tol):
    if init == "random" and not share:  # whole rows leave a random basis slowly
        return
    X, V = planted(2500, 60, noise=0.0)
    if (factor(model) == 1 and getattr(model, "step_size", "greedy") != "greedy") or share < 0.7:
        model = clone(model).set_params(center=False, init=init).fit(with_holes(X, share))
        # whole rows: residuals below 1e-7 of a row are differences of squares that are equal
        assert sine(model.components_, V) < tol


@trackers("holes")
@pytest.mark.parametrize("kind", ["fit", *HOLES, "zeros"])
@pytest.mark.parametrize("n", [1, 40])
def test_rows_without_news_leave_the_basis(model, kind, n):
    model = clone(model).set_params(center=False).fit(planted(320, noise=0.3)[0])
    before = model.components_
    fits = with_holes(np.random.default_rng(3).standard_normal((n, 3)) @ before, 0.3)
    model.partial_fit(fits if kind == "fit" else silence(kind, n))
    assert sine(model.components_, before) < 1e-9
    assert_finite_and_orthonormal(model)


@trackers("holes")
@centred
def test_features_may_be_missing_from_all_rows(model, center):
    X, V = planted(1000, noise=0.01)
    Y, there = X.copy(), np.setdiff1d(np.arange(20), [4, 11])
    Y[:, [4, 11]] = np.nan
    model = clone(model).set_params(center=center).fit(Y)
    assert_finite_and_orthonormal(model, model.transform(Y))
    assert_array_equal(model.mean_[[4, 11]], 0)
    assert sine(model.components_[:, there], V[:, there]) < 0.2
    assert_finite_and_orthonormal(model.partial_fit(X))
    assert sine(model.components_, V) < 0.2
    same = np.where(np.arange(20) % 3 == 0, np.nan, np.full((50, 20), 7.0))
    model = clone(model).set_params(center=True).fit(same)  # rows that do not differ
    assert_allclose(model.mean_, np.nan_to_num(same[0]), atol=1e-12)
    assert_allclose(model.explained_variance_, 0, atol=1e-12)


@each("GROUSE(3, random_state=0)", "PETRELS(3, forgetting_factor=1.0, random_state=0)")
def test_variances_do_not_depend_on_the_share_of_the_holes(model):
    X, V = planted(2000, 100, noise=0.1, mean=1.0)
    for share in (0.2, 0.5):
        found = clone(model).fit(with_holes(X, share))
        assert sine(found.components_, V) < 0.1
        variance = np.var((X - X.mean(axis=0)) @ found.components_.T, axis=0, ddof=1)
        # 100 (1 - share) entries for 3 coordinates: least squares lose nearly nothing; the first
        # rows are measured in a basis that still turns
        assert_allclose(found.explained_variance_, variance, rtol=0.15)
        assert found.noise_variance_ > 0


@each("GROUSE(1, center=False, random_state=0)", "PETRELS(1, center=False, random_state=0)")
@pytest.mark.parametrize(("rest", "counts"), [(0.2, True), (0.01, False)])
def test_rows_whose_holes_amplify_noise_tenfold_do_not_count_in_variances(model, rest, counts):
    # noise of a coordinate is amplified by 1 / (square of the component in the entries seen)
    rng = np.random.default_rng(0)
    v = np.r_[np.sqrt(1 - rest), np.full(10, np.sqrt(rest / 10))]
    scores = 3 * rng.standard_normal(4000) * np.where(np.arange(4000) % 2, 10, 1)
    X = scores[:, None] * v
    X[1::2, 0] = np.nan  # every second row, of a hundred times the variance
    variance = clone(model).fit(X).explained_variance_[0]  # of the entries seen 98 and 13.4 at most
    assert variance > 80 if counts else abs(variance - 9) < 5 * 9 * np.sqrt(2 / 2000)


@pytest.mark.parametrize("after", ["greedy", 0.02, "averaged"])
@pytest.mark.parametrize("before", ["averaged", "greedy", 0.1])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_another_step_size_holds_from_the_next_rows_on(before, after, share):
    if before == after:
        return
    X, given = with_holes(planted(400, 8, noise=0.3)[0], share), {"center": False}
    model = GROUSE(3, step_size=before, init=np.eye(3, 8), **given).fit(X[:256])  # whole blocks
    other = GROUSE(3, step_size=after, init=model.components_, **given).fit(X[256:])
    model.set_params(step_size=after).partial_fit(X[256:])
    assert sine(model.components_, other.components_) < 1e-8


# ------------------------------------------------------------------------------ refusals


STARTS = "init must have shape (3, 20), got (3, 19)"
CHANGED = [  # a fitted tracker, what is set, and words of the error of the next call
    ("OjaPCA(3)", {"n_components": 4}, "n_components=4 differs from"),
    ("OjaPCA(3)", {"batch_size": 5}, "batch_size=5 differs from"),
    ("GROUSE(3)", {"center": False}, "center=False differs from"),
    ("StreamingPowerMethod(3)", {"block_size": 7}, "block_size=7 differs from"),
    ("FrequentDirections(3)", {"sketch_size": 9}, "sketch_size=9 differs from"),
    ("PAST(3)", {"deflation": True}, "deflation=True differs from"),
    ("PETRELS(3)", {"init": "random"}, "differs from 'rows' for the rows seen"),
    ("PETRELS(3)", {"init": np.eye(3, 20)}, "differs from 'rows' for the rows seen"),
]
WRONG = [  # parameters of a new one
    ("FrequentDirections(5)", {"sketch_size": 5}, "sketch_size=5"),
    ("SPIRIT()", {"lower": 0.9, "upper": 0.9}, "lower=0.9"),
    ("PAST(3)", {"init": np.eye(3, 19)}, STARTS),
    ("GROUSE(3)", {"init": np.full((3, 20), np.nan)}, "init must be finite"),
    ("OjaPCA(3)", {"init": "svd"}, "'init' parameter"),
    ("PETRELS(3)", {"init": None}, "'init' parameter"),
]


@pytest.mark.parametrize(("code", "change", "words"), CHANGED + WRONG, ids=str)
def test_what_is_wrong_or_cannot_change_on_the_way_is_named(code, change, words):
    X, model = planted(100)[0], made(code)
    if "differs" in words:
        model.fit(X)
    model.set_params(**change)
    with pytest.raises(ValueError, match=re.escape(words)):
        model.partial_fit(X)
    assert getattr(model, "n_samples_seen_", 0) == (100 if "differs" in words else 0)


@trackers()
def test_rows_whose_squares_overflow_are_refused(model):
    X = planted(100)[0]
    model = clone(model).fit(X)
    before = model.components_
    with pytest.raises(ValueError, match=r"too large: their variance overflows float64"):
        model.partial_fit(1e200 * X)
    assert model.components_ is before
    model.partial_fit(X)
