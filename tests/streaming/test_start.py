"""First bases of the trackers, and the memory of their rules.

The oracle of a start from rows is numpy's SVD of these rows about their mean. Limits on errors are
those of statistics: with noise of deviation s, n rows of which all count and singular directions of
deviation a, a basis is off by about s sqrt(d / n) / a, and k directions explain
(1 + k / n) times the least error.
"""

import pickle

import numpy as np
import pytest
from helpers import assert_finite_and_orthonormal, measured, sine, with_holes
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits, load_wine

from fedpca_sklearn import (
    GROUSE,
    PAST,
    PETRELS,
    OjaPCA,
    StreamingPowerMethod,
    excess_error,
    make_power_law,
)
from fedpca_sklearn.base import Tracker
from fedpca_sklearn.streaming._recursive_least_squares import Memory
from fedpca_sklearn.streaming._start import filled, leading_directions

STARTED = {
    "grouse": GROUSE(4, random_state=0),
    "grouse-greedy": GROUSE(4, step_size="greedy", random_state=0),
    "oja": OjaPCA(4, random_state=0),
    "oja-adaptive": OjaPCA(4, learning_rate="adaptive", batch_size=16, random_state=0),
    "power": StreamingPowerMethod(4, random_state=0),
    "power-blocks": StreamingPowerMethod(4, block_size=30, random_state=0),
    "past": PAST(4, random_state=0),
    "pastd": PAST(4, deflation=True, random_state=0),
    "petrels": PETRELS(4, random_state=0),
    "petrels-fading": PETRELS(4, forgetting_factor=0.98, random_state=0),
}
HOLES = {name: model for name, model in STARTED.items() if name[:3] in ("gro", "pet")}


def each(models):
    return pytest.mark.parametrize("model", [clone(m) for m in models.values()], ids=models.keys())


def rows(n, d=15, seed=0, mean=2.0):
    """Rows of four strong directions, noise, and a mean."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return rng.standard_normal((n, d)) * np.r_[4, 3, 2.5, 2, np.full(d - 4, 0.3)] @ Q + mean


def leading(X, k, center=True):
    """Leading directions of rows about their mean, by numpy."""
    return np.linalg.svd(X - X.mean(axis=0) * center)[2][:k]


# ------------------------------------------------------------------------------ the first rows


@each({name: m for name, m in STARTED.items() if name != "petrels-fading"})  # it weighs rows
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("n", [5, 6, 7, 8])
def test_the_first_rows_show_their_svd(model, center, n):
    X = rows(n + center, mean=0.0)
    model = clone(model).set_params(center=center).fit(X)
    assert sine(model.components_, leading(X, 4, center)) < 1e-10
    assert_finite_and_orthonormal(model)


@each(STARTED)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_fewer_rows_than_components_are_within_the_basis(model, n):
    X = rows(n, mean=0.0)
    model = clone(model).set_params(center=False).fit(X)
    assert len(model.components_) == n
    assert sine(model.components_, leading(X, n, center=False)) < 1e-10


@each({**STARTED, **{f"{name} holes": m for name, m in HOLES.items()}})
def test_one_row_at_a_time_is_one_batch_to_the_last_bit(model, request):
    X = rows(70)
    if "holes" in request.node.name:
        X = with_holes(X, 0.2)
    whole, single = clone(model).fit(X), clone(model)
    for x in X:
        single.partial_fit(x[None])
    assert_array_equal(single.components_, whole.components_)
    assert_array_equal(single.singular_values_, whole.singular_values_)


@each(STARTED)
@pytest.mark.parametrize("seen", [3, 8, 9, 20])
def test_a_pickle_goes_on_in_the_middle_of_the_start(model, seen):
    X = rows(60)
    whole, model = clone(model).fit(X), clone(model).partial_fit(X[:seen])
    model = pickle.loads(pickle.dumps(model)).partial_fit(X[seen:])
    assert_array_equal(model.components_, whole.components_)


@each(STARTED)
@pytest.mark.parametrize("kind", ["constant", "zeros", "rank one", "repeated"])
def test_rows_that_span_too_little_are_completed(model, kind):
    rng = np.random.default_rng(0)
    first = {
        "constant": np.full((9, 15), 3.0),
        "zeros": np.zeros((9, 15)),
        "rank one": np.outer(np.arange(9.0), rng.standard_normal(15)),
        "repeated": np.repeat(rng.standard_normal((3, 15)), 3, axis=0),
    }[kind]
    model = clone(model).fit(first)
    assert_finite_and_orthonormal(model)
    spanned = np.linalg.matrix_rank(first - first.mean(axis=0))
    V, U = model.components_, leading(first, spanned)
    assert_allclose(U @ V.T @ V, U, atol=1e-10)
    later = rows(600, seed=1)
    model.partial_fit(later)
    assert_finite_and_orthonormal(model)
    if model.get_params().get("forgetting_factor") != 1.0:  # of PAST all rows count for ever
        assert sine(model.components_, leading(later, 4)) < 1


@each(STARTED)
def test_constant_rows_leave_the_start_to_the_first_others(model):
    X = rows(33)
    model = clone(model).set_params(center=False)
    before = np.zeros((9 + 31, 15))  # the block of the start, and others
    model.partial_fit(before).partial_fit(X[:8])
    assert sine(model.components_, leading(X[:8], 4, center=False)) < 1e-7


@each(STARTED)
def test_a_given_basis_is_the_start(model):
    X, V = rows(3), leading(rows(500), 4)
    R = np.random.default_rng(0).standard_normal((4, 4))
    model = clone(model).set_params(init=R @ V)
    assert sine(model._found(model._start(15))[0], V) < 1e-10
    assert len(model.fit(X).components_) == 3


@each(STARTED)
@pytest.mark.parametrize(
    ("init", "text"),
    [
        (np.eye(3, 15), r"init must have shape \(4, 15\), got \(3, 15\)"),
        (np.eye(4, 14), r"init must have shape \(4, 15\), got \(4, 14\)"),
        (np.full((4, 15), np.nan), "init must be finite"),
        ("svd", "'init' parameter"),
        (None, "'init' parameter"),
    ],
    ids=["rank", "features", "nan", "text", "none"],
)
def test_a_bad_start_is_named(model, init, text):
    model = clone(model).set_params(init=init)
    with pytest.raises(ValueError, match=text):
        model.fit(rows(50))
    assert not hasattr(model, "components_")


@each(STARTED)
@pytest.mark.parametrize("change", ["random", np.eye(4, 15)], ids=["random", "array"])
def test_a_start_cannot_change_on_the_way(model, change):
    model = clone(model).fit(rows(5)).set_params(init=change)
    with pytest.raises(ValueError, match="differs from 'rows' for the rows seen"):
        model.partial_fit(rows(50))


@each(STARTED)
def test_the_seed_does_not_matter_where_rows_span_enough(model):
    X = rows(200)
    a, b = (clone(model).set_params(random_state=s).fit(X) for s in (1, 2))
    assert sine(a.components_, b.components_) < 1e-7


@each(STARTED)
@pytest.mark.parametrize("scale", [1e-100, 1e100])
def test_the_start_does_not_depend_on_the_scale(model, scale):
    X = rows(9)
    assert sine(clone(model).fit(scale * X).components_, clone(model).fit(X).components_) < 1e-9


# ---------------------------------------------------------------------------- missing entries


def test_filling_finds_a_matrix_of_low_rank():
    rng = np.random.default_rng(0)
    V = np.linalg.qr(rng.standard_normal((60, 4)))[0].T
    Z = rng.standard_normal((8, 4)) @ V
    holed = with_holes(Z, 0.1)
    lost = np.isnan(holed)
    Y = filled(holed, lost, 4)
    assert_allclose(Y[~lost], Z[~lost], rtol=1e-12)
    zeros = np.where(lost, 0.0, Z)
    assert np.linalg.norm(Y - Z) < np.linalg.norm(zeros - Z) / 2
    found, of_zeros = (leading_directions(A, np.eye(4, 60)) for A in (Y, zeros))
    assert sine(found, V) < sine(of_zeros, V)


@each(HOLES)
@pytest.mark.parametrize("share", [0.6, 1.0])
def test_rows_with_too_few_entries_start_at_random(model, share):
    X = with_holes(rows(8, mean=0.0), share)
    X[:, 3] = np.nan
    model = clone(model).set_params(center=False, init="rows")
    random = clone(model).set_params(init="random")
    assert_allclose(model.fit(X).components_, random.fit(X).components_, atol=1e-10)


@each({"grouse": GROUSE(5, center=False), "petrels": PETRELS(5, center=False)})
@pytest.mark.parametrize(
    ("share", "init"),
    [(0.0, "rows"), (0.1, "rows"), (0.3, "rows"), (0.1, "random"), (0.3, "random")],
)
def test_a_subspace_without_noise_is_found_to_rounding(model, share, init):
    rng = np.random.default_rng(7)
    V = np.linalg.qr(rng.standard_normal((40, 5)))[0].T
    X = with_holes(rng.standard_normal((1500, 5)) * [5, 4, 3, 2, 1] @ V, share)
    model = clone(model).set_params(init=init, random_state=0).fit(X)
    # whole rows: residuals below 1e-7 of a row are differences of squares that are equal
    assert sine(model.components_, V) < (1e-6 if share == 0 else 1e-8)


# ------------------------------------------------------------------------------------ memory


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_weights_grow_with_the_rows_while_residuals_stay(share):
    memory, weights = Memory(), []
    for _ in range(50):
        factor, memory = memory.after(0.5, share)
        weights = [factor * w for w in weights] + [1.0]
    assert_allclose(np.array(weights), (np.arange(1, 51) / 50) ** (1 / share))


def test_whole_rows_take_no_weight():
    factor, memory = Memory(7.0, 0.5, 0.5).after(1e-9, 1.0)
    assert factor == 1
    assert memory == Memory(8.0, 0.5, 0.5)


def test_rows_with_holes_age_the_memory_more():
    for share in (0.9, 0.5, 0.25):
        assert_allclose(Memory(100.0).after(0.5, share)[0], (100 / 101) ** (1 / share))


def test_a_patient_memory_ages_by_what_is_missing_while_residuals_stay():
    for share in (0.9, 0.5, 0.25):
        before = Memory(100.0, 0.5, 0.5, patient=True)
        assert_allclose(before.after(0.6, share)[0], (100 / 101) ** ((1 - share) / share))
        other = Memory(100.0, 0.5, 0.5).after(0.1, share)
        factor, memory = before.after(0.1, share)  # as any other where they fall
        assert (factor, memory.rows, memory.patient) == (other[0], other[1].rows, True)


@pytest.mark.parametrize("fall", [0.8, 0.95])
def test_falling_residuals_shorten_the_memory_and_rising_ones_do_not(fall):
    memory = Memory(1000.0)
    for t in range(400):
        memory = memory.after(fall**t, 0.9)[1]
    # where residuals fall by a factor in each row, so does the memory, up to the row it gains; the
    # average over 20 rows falls by 0.95 at most
    rate = max(fall, 0.95)
    assert memory.rows < max(1.5 / (1 - rate), 40)
    for _ in range(500):
        memory = memory.after(1.0, 0.9)[1]
    assert memory.rows > 500


# ------------------------------------------------------------------------- rows that are not alike


LEAST_SQUARES = {n: m for n, m in STARTED.items() if n in ("grouse", "past", "pastd", "petrels")}


@each(LEAST_SQUARES)
def test_columns_of_unlike_scales_need_no_scaling(model):
    # deviations from 0.1 to 300: what the first rows say of weak directions counts as well
    X = load_wine().data[np.random.default_rng(3).permutation(178)]
    assert excess_error(X, clone(model).fit(X).components_) < 0.01


@pytest.mark.parametrize("seed", range(4))
def test_oja_forgets_what_was_weak(seed):
    # 40 rows in the dark along other directions, and then the day
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((20, 20)))[0]
    day = np.r_[3, 2.5, 2, 1.5, 1, np.full(15, 0.3)]
    X = rng.standard_normal((200, 20)) * day @ Q
    X[:40] = 0.05 * rng.standard_normal((40, 20)) * day[::-1] @ Q
    # k / n for the best of n rows; half of them count, and steps leave as much again
    assert excess_error(X, OjaPCA(5).fit(X).components_) < 4 * 5 / 160


def noisy(n, d=30, k=4, seed=0):
    """Rows of a subspace with noise of a tenth, and the basis."""
    rng = np.random.default_rng(seed)
    V = np.linalg.qr(rng.standard_normal((d, k)))[0].T
    return rng.standard_normal((n, k)) @ V + 0.1 * rng.standard_normal((n, d)), V


@each({name: m for name, m in STARTED.items() if "-" not in name})
def test_by_default_noise_averages_out_over_all_rows(model):
    X, _ = noisy(3000, seed=11)
    # k (d - k) numbers, of which each adds its variance / n to the error of (d - k) variances; half
    # of the rows at least count, and a step along one direction leaves a few times as much
    assert excess_error(X, clone(model).fit(X).components_) < 4 * 2 * 4 / 3000


@each({name: STARTED[name] for name in ("grouse", "petrels")})
def test_by_default_noise_averages_out_over_rows_with_holes(model):
    X, V = noisy(3000, seed=12)
    model = clone(model).set_params(center=False).fit(with_holes(X, 0.3))
    # weights like t^(1 / .7) count 3000 (2 m + 1) / (m + 1)^2 rows of .7 d entries each
    m = 1 / 0.7
    count = 0.7 * 3000 * (2 * m + 1) / (m + 1) ** 2
    assert sine(model.components_, V) < 2 * 0.1 * np.sqrt(30 / count)


def sections(name):
    """Streams of 240 rows that no default was chosen on: sections of light, and other data."""
    if name == "light":
        X = measured("motes_light").astype(np.float64)
        for at in (1000, 2345, 6420):
            yield X[at : at + 240]
    elif name == "digits":
        yield load_digits().data[900:1140]
    else:
        yield make_power_law(240, 80, alpha=1.5, random_state=42)


@each(
    {
        "grouse": GROUSE(10, random_state=0),
        "oja": OjaPCA(10, random_state=0),
        "power": StreamingPowerMethod(10, random_state=0),
        "past": PAST(10, random_state=0),
        "petrels": PETRELS(10, random_state=0),
    }
)
@pytest.mark.parametrize("data", ["light", "digits", "power law"])
def test_a_short_stream_is_at_most_twice_as_far_as_its_best_subspace(model, data):
    errors = [1 + excess_error(X, clone(model).fit(X).components_) for X in sections(data)]
    assert np.median(errors) < 2


def test_a_rule_without_a_beginning_is_told_what_it_lacks():
    class Unbegun(Tracker):
        def __init__(self, n_components=2, *, center=True):
            self.n_components = n_components
            self.center = center

        def _updated(self, state, Z):
            return state

        def _basis(self, state):
            return state

    with pytest.raises(TypeError, match="Unbegun must write _begin, or _begin_at"):
        Unbegun().fit(np.eye(5))
