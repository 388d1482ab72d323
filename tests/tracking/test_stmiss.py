"""SubspaceTracker against STMiss and NORST as printed, and the streams that they are made for.

The oracle takes one row after another: least squares by numpy on the entries that are there, an SVD
of all the rows that count (Algorithm 1 of Narayanamurthy et al. 2022). Both compute the same
numbers up to rounding errors and to the trace of 1e-20 that the past leaves; 1e-8 is far above
these and far below any error in the algebra.
"""

import pickle
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
import tracker_helpers
from helpers import PAPER, leading, peak_bytes, sine, with_holes
from numpy.testing import assert_allclose, assert_array_equal

from fedpca_sklearn import (
    ChangeDetection,
    SubspaceTracker,
    make_subspace_stream,
)
from fedpca_sklearn.tracking._stmiss import fill

nan, inf = np.nan, np.inf
EPS = np.finfo(float).eps
planted = partial(tracker_helpers.planted, noise=0.0)


def tracker(k, size="auto", f=0.0, **options):
    options = {"batch_size": size, "forgetting_factor": f, "store_subspaces": True, **options}
    return SubspaceTracker(k, **{**PAPER, **options})


# ------------------------------------------------------------------------------ the oracle


def naive_fill(X, V, mean):
    """Rows with missing entries replaced by formula (3): what the others of the row tell.

    y - I_M (Psi_M)^+ Psi y with Psi = I - P P^T; about a mean, which is all without a basis.
    """
    full, Psi = X.copy(), np.eye(X.shape[1]) - V.T @ V
    for x in full:
        M = np.flatnonzero(np.isnan(x))
        z = np.nan_to_num(x - mean)
        if len(V):
            z[M] -= np.linalg.pinv(Psi[:, M], rcond=1e-6) @ (Psi @ z)
        x[M] = (z + mean)[M]
    return full


class Past(NamedTuple):
    """What a naive tracker knows: basis, singular values, mean, number of rows, scatter."""

    V: np.ndarray
    s: np.ndarray
    mean: np.ndarray
    n: float
    scatter: float


def naive_update(past, L, k, weight, center):
    """An SVD of filled rows below the past, which counts by a weight."""
    m, n = len(L), weight * past.n
    block = L.mean(axis=0) if center else np.zeros(L.shape[1])
    between = np.sqrt(n * m / (n + m)) * (block - past.mean)
    new = np.vstack([L - block, between]) if center else L
    stack = np.vstack([np.sqrt(weight) * past.s[:, None] * past.V[: len(past.s)], new])
    _, s, Vt = np.linalg.svd(stack, full_matrices=False)
    mean = (n * past.mean + m * block) / (n + m)
    return Past(Vt[:k], s[:k], mean, n + m, weight * past.scatter + np.sum(new**2))


def naive(X, k, size, f=0.0, n_iter=1, center=False, init=None, fill="subspace"):
    """STMiss batch by batch: the state after each."""
    V = np.empty((0, X.shape[1])) if init is None else np.linalg.qr(init.T)[0].T
    past, history = Past(V, np.zeros(0), np.zeros(X.shape[1]), 0.0, 0.0), []
    for start in range(0, len(X), size):
        Y, now = X[start : start + size], past
        if center and not past.n:
            now = past._replace(mean=np.nanmean(Y, axis=0))
        counts = ~np.isnan(Y).all(axis=1)  # rows without entries are left out
        # rows that do not fill a batch displace their share of the last one
        weight = max(f ** counts.sum(), 1 - counts.sum() / size)
        for _ in range(n_iter):
            V = now.V if fill == "subspace" else now.V[:0]
            now = naive_update(past, naive_fill(Y[counts], V, now.mean), k, weight, center)
        past = now
        history.append(past)
    return history


# rows, features, components, rows of a batch, share of missing entries
SIZES = [
    (200, 20, 3, 40, 0.1),
    (97, 12, 2, 25, 0.2),
    (90, 50, 5, 10, 0.2),
    (99, 30, 4, 6, 0.1),
    (50, 15, 1, 50, 0.4),
]
OPTIONS = {
    "plain": {},
    "three times": {"n_iter": 3},
    "zeros": {"fill": "zeros"},
    "centred": {"center": True},
    "centred, twice": {"center": True, "n_iter": 2},
    "centred, zeros": {"center": True, "fill": "zeros"},
    "fading": {"f": 0.97},
    "fading slowly, centred": {"f": 0.999, "center": True},
    "fading fast, centred, twice": {"f": 0.8, "center": True, "n_iter": 2},
    "without fading": {"f": 1.0},
    "given": {"init": 100 * np.random.default_rng(1).standard_normal((2, 150))},
}


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("name", OPTIONS)
def test_every_batch_is_that_of_the_algorithm(name, at):
    options = dict(OPTIONS[name])
    n, d, k, size, share = SIZES[([*OPTIONS].index(name) + at) % len(SIZES)]
    if "init" in options:
        options["init"] = options["init"][:, :d]
    X = with_holes(planted(n, d, k, noise=0.3, mean=3.0 * ("center" in options))[0], share)
    X[n // 2 :: 7] = nan
    model, history = tracker(k, size, **options).fit(X), naive(X, k, size, **options)
    assert len(model.subspaces_) == n // size
    assert model.n_samples_seen_ == n
    for V, state in zip(model.subspaces_, history, strict=False):
        assert sine(V, state.V) < 1e-8
    last, Y = history[-1], X[-size:]
    assert sine(model.components_, last.V) < 1e-8
    assert_allclose(model.singular_values_, last.s, rtol=1e-8)
    assert_allclose(model.mean_, last.mean, atol=1e-8)
    assert_allclose(model.explained_variance_ratio_, last.s**2 / last.scatter, rtol=1e-8)
    if "fill" not in options:
        assert_allclose(model.impute(Y), naive_fill(Y, last.V, last.mean), atol=1e-8)


@pytest.mark.parametrize(("share", "counts"), [(1 / 500, True), (1 / 2000, False)])
def test_rows_that_amplify_noise_a_thousandfold_do_not_count(share, counts):
    V = np.array([[np.sqrt(1 - share), np.sqrt(share)]])
    filled = fill(np.array([[1.0, 1.0], [nan, 1.0]]), np.zeros(2), V)
    assert_array_equal(filled.counts, [True, counts])
    # where no row is determined those with enough entries count
    filled = fill(np.array([[nan, 1.0], [nan, nan]]), np.zeros(2), np.array([[1.0, 0.0]]))
    assert_array_equal(filled.counts, [True, False])
    assert_array_equal(filled.rows, [[0.0, 1.0], [0.0, 0.0]])


def test_batches_of_auto_have_at_least_40_rows_and_only_the_last_counts_in_the_paper():
    for k, size in ((1, 40), (20, 40), (21, 42)):
        X = planted(2 * size, 60, 21, noise=0.1)[0]
        model = tracker(k)
        assert len(model.fit(X[:-1]).subspaces_) == 1
        assert len(model.fit(X).subspaces_) == 2
        assert sine(model.components_, leading(X[-size:], k)) < 1e-10


# ------------------------------------------------------------------------------ changes (NORST)


def norst(X, k, size, n_updates, threshold=None):
    """Change points, bases, and the levels in units of the threshold, for full batches only.

    A level is the largest eigenvalue of the second moments of what is left of the rows.
    """
    V, left, last = None, n_updates, None
    changes, bases, ratios = [], [], []
    for start in range(0, len(X) - size + 1, size):
        Y = X[start : start + size]
        if V is not None:
            L = naive_fill(Y, V, np.zeros(X.shape[1]))
            now = np.linalg.svd(L - L @ V.T @ V, compute_uv=False)[0] ** 2 / len(Y)
            if not left:
                ratios.append(now / (2 * last if threshold is None else threshold))
                if ratios[-1] > 1:
                    changes.append(start)
                    left = n_updates
            if left:
                left, last, V = left - 1, now, leading(L, k)
        else:
            V = leading(np.where(np.isnan(Y), 0.0, Y), k)
        bases.append(V)
    return changes, bases, np.array(ratios)


def piecewise(n, d, changes, k=3, noise=0.0, seed=0, **options):
    return make_subspace_stream(
        n, d, k, model="piecewise", change_points=changes, noise_std=noise, random_state=seed,
        **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("threshold", "scale"), [("auto", 1e-100), ("auto", 1.0), (0.03, 1e100), (0.06, 1e-100)]
)
def test_changes_in_noise_are_those_of_the_rule_in_any_units(threshold, scale):
    X = piecewise(2400, 100, (800, 1500), noise=0.05, delta=0.05).X
    least = None if threshold == "auto" else threshold
    changes, bases, ratios = norst(X, 3, 40, 8, least)
    assert np.abs(ratios - 1).min() > 1e-6  # rounding decides nothing
    assert changes == [800, 1480]
    given = threshold if least is None else threshold * scale**2
    model = tracker(3, 40, detect_changes=ChangeDetection(8, given)).fit(scale * X)
    assert_array_equal(model.change_points_, changes)
    for V, W in zip(model.subspaces_, bases, strict=True):
        assert sine(V, W) < 1e-8
    moved = [np.any(V != W) for V, W in pairwise(model.subspaces_)]
    # the first batch has no residuals; then eight updates, and eight from each change on
    updates = [*range(1, 9), *range(20, 28), *range(37, 45)]
    assert_array_equal(1 + np.flatnonzero(moved), updates)
    frozen = model.components_.copy()
    assert_array_equal(model.partial_fit(scale * X[-400:]).components_, frozen)


@pytest.mark.parametrize("threshold", ["auto", 2.0])
@pytest.mark.parametrize(
    ("powers", "changes"),
    [((0.1, 1), []), ((1.9, 1), []), ((2.1, 1), [20]), ((3, 9, 27), [20, 60])],
)
def test_a_change_is_twice_the_level_of_the_last_update(threshold, powers, changes):
    """And the batch after a change is its rest."""
    # residuals of one direction, uncorrelated with the rows in the subspace: levels of 1 and powers
    signs = np.tile([[1.0, 1.0], [1.0, -1.0]], (10, 1))
    rows = np.concatenate([signs * [10, np.sqrt(power)] for power in (1, *powers)])
    options = {"init": np.eye(1, 5), "detect_changes": ChangeDetection(1, threshold)}
    model = SubspaceTracker(1, batch_size=20, **{**PAPER, **options}).fit(
        np.pad(rows, [(0, 0), (0, 3)])
    )
    assert_array_equal(model.change_points_, changes)


@pytest.mark.parametrize(("size", "found"), [(1e-6, True), (1e-9, False)])
def test_residuals_of_rounding_are_no_change(size, found):
    """Squares of 1e-12 or 1e-18 beside rows of squares of 100, after residuals of zero."""
    signs = np.tile([[1.0, 1.0], [1.0, -1.0]], (10, 1))
    X = np.zeros((40, 5))
    X[:, :2] = np.concatenate([signs * [10, 0], signs * [10, size]])
    options = {"init": np.eye(1, 5), "detect_changes": ChangeDetection(1)}
    model = SubspaceTracker(1, batch_size=20, **{**PAPER, **options}).fit(X)
    assert_array_equal(model.change_points_, [20] if found else [])


# ------------------------------------------------------------------------------ features, means


FEATURES = {  # which rows lack features 4 and 11, whether they are found all the same, and a mean
    "never there": (slice(None), False, 0.0),
    "never there, far": (slice(None), False, 5.0),
    "late": (slice(0, 100), True, 0.0),
    "late, far": (slice(0, 40), True, 1e3),
    "silent": (slice(400, None), True, 0.0),
    "none": (slice(0, 0), True, 1e8),
}


@pytest.mark.parametrize(("lost", "found", "mean"), FEATURES.values(), ids=FEATURES)
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("f", [0.0, 0.9])
@pytest.mark.parametrize("given", [False, True])
def test_features_may_be_missing_and_means_far_away(lost, found, mean, center, f, given):
    X, V = planted(1600)
    away = mean * center
    Y = with_holes(X + away, 0.1)
    Y[lost, 4] = Y[lost, 11] = nan
    options = {"center": center, "forgetting_factor": f, "init": V if given and found else "svd"}
    model = SubspaceTracker(3, **{**PAPER, **options}).fit(Y)
    there = np.setdiff1d(np.arange(20), [] if found else [4, 11])
    # The first mean is off by about sqrt(4^2 / 40), the next ones by less. Then the rows are
    # rounded to mean * EPS, and so is the mean of 40 rows, a few times.
    assert sine(model.components_[:, there], V[:, there]) < 1e-6 + 100 * mean * EPS
    if not found:
        assert_allclose(model.components_[:, [4, 11]], 0, atol=1e-15)
        assert_allclose(model.mean_[[4, 11]], 0, atol=1e-13)
        assert_allclose(model.impute(Y)[:, [4, 11]], 0, atol=1e-13)
    elif lost.stop is None or lost.stop:
        assert_allclose(model.impute(Y), X + away, atol=1e-3 + 1000 * mean * EPS)


@pytest.mark.parametrize("center", [False, True])
def test_rows_without_enough_entries_do_not_count(center):
    X, few = with_holes(planted(200, noise=0.1)[0], 0.1), np.full((200, 20), nan)
    few[::2, 3], few[::2, 4] = 100.0, -100.0
    model = tracker(3, 40, center=center).fit(X)
    before = model.components_.copy(), model.mean_.copy(), model.singular_values_.copy()
    model.partial_fit(few)
    for old, new in zip(before, (model.components_, model.mean_, model.singular_values_)):  # noqa: B905
        assert_array_equal(new, old)
    assert model.n_samples_seen_ == 400


def test_directions_stay_while_batches_have_lower_rank():
    (X, V), (Y, W) = planted(40), planted(40, k=1, seed=1)
    model = SubspaceTracker(3, **PAPER)
    for later in (np.tile(X[0], (400, 1)), np.zeros((4000, 20))):
        assert sine(model.fit(X).partial_fit(later).components_, V) < 1e-12
    model.fit(np.concatenate([X, Y]))
    assert sine(model.components_[:1], W) < 1e-9
    assert np.linalg.norm(model.components_[1:] @ W.T) < 1e-9
    union = np.linalg.qr(np.concatenate([V, W]).T)[0].T
    assert_allclose(np.linalg.norm(model.components_ @ union.T, axis=1), 1, atol=1e-9)
    rows = tracker(3, 1).fit(X)  # batches of one row keep the last rows
    assert [len(B) for B in rows.subspaces_[2:]] == 38 * [3]
    assert sine(rows.components_, V) < 100 * EPS
    for n in (0, 1, 2):  # a given subspace stays but for what the first rows replace
        few = np.where(np.arange(5)[:, None] < n, X[:5], nan)
        assert sine(SubspaceTracker(3, init=V, **PAPER).fit(few).components_, V) < 100 * EPS


# ------------------------------------------------------------------------------ stored subspaces


def test_one_subspace_is_stored_for_each_full_batch_and_shared_with_nobody():
    X = with_holes(planted(210, noise=0.3)[0], 0.1)
    whole, parts = tracker(3, 40, detect_changes=True).fit(X), tracker(3, 40, detect_changes=True)
    counts = [len(parts.partial_fit(rows).subspaces_) for rows in np.split(X, [39, 40, 41, 200])]
    assert counts == [0, 1, 1, 5, 5]
    for V, W in zip(parts.subspaces_, whole.subspaces_, strict=True):
        assert_allclose(V, W, atol=1e-12)
        assert_allclose(V @ V.T, np.eye(3), atol=1e-12)
    first, bases = whole.subspaces_, list(whole.subspaces_)
    with pytest.raises(ValueError, match="features"):
        whole.partial_fit([X, X[:, :5]])
    assert whole.subspaces_ is first
    other = pickle.loads(pickle.dumps(whole)).partial_fit(X)
    assert (len(other.subspaces_), len(whole.subspaces_)) == (10, 5)
    assert all(V is W for V, W in zip(first, bases, strict=True))
    whole.set_params(store_subspaces=False, detect_changes=False).fit(X)
    assert not hasattr(whole, "subspaces_")
    assert not hasattr(whole, "change_points_")
    whole.set_params(store_subspaces=True).partial_fit(X[:80])
    assert len(whole.subspaces_) == 2


# ------------------------------------------------------------------------------ steps and blocks


def test_memory_is_that_of_a_few_batches_and_bases():
    d, k, m = 20_000, 10, 40
    X = with_holes(np.random.default_rng(0).standard_normal((8 * m, d)), 0.1)
    peaks = []
    for n in (2, 8):
        model = SubspaceTracker(k, batch_size=m, detect_changes=True, **PAPER).fit(X[:m])
        peaks.append(peak_bytes(lambda n=n, model=model: model.partial_fit(X[: n * m])))
    # m x d: the rows, less the mean, their fit, that plus the mean, the filled rows, and two masks
    # of an eighth each; k x d: the basis, the next, the one shown; 2^18 products of loadings
    assert max(peaks) < 6 * 8 * d * (m + k) + 8 * 2**19
    assert peaks[1] < 1.1 * peaks[0]
    assert len(pickle.dumps(model)) < 8 * d * (3 * k + 4)  # no rows wait; three bases
