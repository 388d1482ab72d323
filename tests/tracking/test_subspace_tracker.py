"""SubspaceTracker against the algorithm as printed, and the streams that it is made for.

The oracle takes one row after another: least squares by numpy on the entries that are there, an SVD
of all the rows that count. Both compute the same numbers up to rounding errors and to the trace of
1e-20 that the past leaves; 1e-8 is far above these and far below any error in the algebra.
"""

import pickle
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from helpers import PAPER, leading, peak_bytes, random_basis, sine, with_holes
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from fedpca_sklearn import (
    GROUSE,
    PETRELS,
    FederatedSubspaceTracker,
    OjaPCA,
    OnlineDistributedPCA,
    RobustSubspaceTracker,
    SubspaceTracker,
    make_subspace_stream,
)
from fedpca_sklearn._base.block_transformer import BlockTransformer
from fedpca_sklearn._kernels.missing import coordinates

EPS = np.finfo(float).eps
nan, inf = np.nan, np.inf
examples = settings(max_examples=30, derandomize=True, deadline=None, database=None)


# ------------------------------------------------------------------------------ data and helpers


def planted(n, d=20, k=3, noise=0.0, seed=0, mean=0.0):
    """Rows of a strong random k-dimensional subspace, and an orthonormal basis of it."""
    rng = np.random.default_rng(seed)
    V = random_basis(rng, k, d)
    X = rng.standard_normal((n, k)) * np.linspace(4, 2, k) @ V
    return X + noise * rng.standard_normal((n, d)) + mean, V


def fitted_to(x, V, mean=0.0):
    """Coordinates of one row by least squares on the entries that are there."""
    there = ~np.isnan(x)
    return np.linalg.lstsq(V[:, there].T, (x - mean)[there], rcond=1e-5)[0]


def predicted(z, model):
    """Coordinates of a centred row by which the model predicts what is missing in it.

    By least squares, or with the variances and the noise of the model as a normal prior.
    """
    V, noise = model.components_.astype(float), getattr(model, "_entry_noise", 0.0)
    if model.get_params().get("fill") == "subspace" or not noise > 0:
        return fitted_to(z, V)
    there = ~np.isnan(z)
    prior = np.maximum(model.explained_variance_.astype(float) - noise, 1e-12 * noise)
    A = np.concatenate([V[:, there].T / np.sqrt(noise), np.diag(prior**-0.5)])
    b = np.concatenate([z[there] / np.sqrt(noise), np.zeros(len(V))])
    return np.linalg.lstsq(A, b, rcond=None)[0]


def noise_for(model):
    """Noise of the rows of a fit whose predictions are to be exact: a prior would be in the way."""
    return 0.1 if model.get_params().get("fill") == "subspace" else 0.0


def naive_fill(X, V, mean):
    """Rows with missing entries replaced by what the others of the row tell."""
    full = X.copy()
    for x in full:
        lost = np.isnan(x)
        if lost.any() and len(V):
            # no row of these tests is so poor in entries that it would be left out
            assert np.linalg.svd(V[:, ~lost], compute_uv=False)[-1] ** 2 > 1e-3
            x[lost] = (fitted_to(x, V, mean) @ V + mean)[lost]
        x[lost] = np.where(np.isnan(x[lost]), mean[lost], x[lost])
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
    scatter = weight * past.scatter + np.sum(new**2)
    return Past(Vt[:k], s[:k], mean, n + m, scatter)


def naive(X, k, size, f=0.0, n_iter=1, center=False, init=None, fill="subspace"):
    """STMiss batch by batch: the state after each."""
    d = X.shape[1]
    V = np.empty((0, d)) if init is None else np.linalg.qr(init.T)[0].T
    past = Past(V, np.zeros(0), np.zeros(d), 0.0, 0.0)
    history = []
    for start in range(0, len(X), size):
        Y = X[start : start + size]
        now = past
        if center and not past.n:
            now = past._replace(mean=np.nanmean(Y, axis=0))
        # rows that do not fill a batch displace their share of the last one
        weight = max(f ** len(Y), 1 - len(Y) / size)
        for _ in range(n_iter):
            V = now.V if fill == "subspace" else now.V[:0]
            now = naive_update(past, naive_fill(Y, V, now.mean), k, weight, center)
        past = now
        history.append(past)
    return history


def assert_tracks(model, X, history):
    """A fitted model with ``store_subspaces`` is where the naive one is."""
    n_full = len(X) // model.batch_size
    assert len(model.subspaces_) == n_full
    for V, state in zip(model.subspaces_, history, strict=False):
        assert sine(V, state.V) < 1e-8
    last = history[-1]
    assert sine(model.components_, last.V) < 1e-8
    assert_allclose(model.singular_values_, last.s, rtol=1e-8)
    assert_allclose(model.mean_, last.mean, atol=1e-8)
    assert_allclose(model.explained_variance_ratio_, last.s**2 / last.scatter, rtol=1e-8)
    Y = X[-model.batch_size :]
    assert_allclose(model.impute(Y), naive_fill(Y, last.V, last.mean), atol=1e-8)


def assert_sound(model, *rows):
    """Everything is finite, and the basis orthonormal."""
    for name in (
        "components_",
        "mean_",
        "singular_values_",
        "explained_variance_",
        "explained_variance_ratio_",
        "noise_variance_",
    ):
        assert np.isfinite(getattr(model, name)).all(), name
    V = model.components_
    assert_allclose(V @ V.T, np.eye(len(V)), atol=1e-10 if V.dtype == np.float64 else 1e-5)
    for X in rows:
        assert np.isfinite(model.transform(X)).all()
        full = model.impute(X)
        assert np.isfinite(full).all()
        assert_array_equal(full[~np.isnan(X)], X[~np.isnan(X)])
        assert model.score(X) <= 1


MODELS = {
    "tracker": SubspaceTracker(3, **PAPER),
    "by default": SubspaceTracker(3),
    "grouse": GROUSE(3, random_state=0),
    "petrels": PETRELS(3, random_state=0),
}
each = pytest.mark.parametrize("model", [clone(m) for m in MODELS.values()], ids=MODELS.keys())


# ------------------------------------------------------------------------------------- the oracle


# rows, features, components, rows of a batch, share of missing entries
SIZES = [
    (200, 20, 3, 40, 0.1),
    (200, 12, 2, 25, 0.3),
    (90, 50, 5, 10, 0.2),
    (96, 30, 4, 6, 0.1),
    (100, 300, 3, 20, 0.5),
    (50, 15, 1, 50, 0.4),
]
OPTIONS = {
    "plain": {},
    "twice": {"n_iter": 2},
    "three times": {"n_iter": 3},
    "zeros": {"fill": "zeros"},
    "centred": {"center": True},
    "centred, twice": {"center": True, "n_iter": 2},
    "centred, zeros": {"center": True, "fill": "zeros"},
    "fading": {"f": 0.97},
    "fading slowly, centred": {"f": 0.999, "center": True},
    "fading fast, centred, twice": {"f": 0.8, "center": True, "n_iter": 2},
    "without fading": {"f": 1.0},
}


def tracker(k, size, f=0.0, **options):
    options = {"batch_size": size, "forgetting_factor": f, "store_subspaces": True, **options}
    return SubspaceTracker(k, **{**PAPER, **options})


@pytest.mark.parametrize(("n", "d", "k", "size", "share"), SIZES)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_every_batch_is_that_of_the_algorithm(n, d, k, size, share, options):
    mean = 3.0 if options.get("center") else 0.0
    X = with_holes(planted(n, d, k, noise=0.3, mean=mean)[0], share)
    assert_tracks(tracker(k, size, **options).fit(X), X, naive(X, k, size, **options))


@pytest.mark.parametrize("tail", [1, 7, 39])
@pytest.mark.parametrize("f", [0.0, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("center", [False, True])
def test_rows_that_do_not_fill_a_batch_displace_their_share(tail, f, center):
    X = with_holes(planted(120 + tail, noise=0.3)[0], 0.1)
    model = tracker(3, 40, f, center=center).fit(X)
    assert_tracks(model, X, naive(X, 3, 40, f, center=center))
    assert model.n_samples_seen_ == 120 + tail


@pytest.mark.parametrize("k_init", [1, 3, 6])
def test_the_first_batch_is_filled_by_a_given_subspace(k_init):
    X = with_holes(planted(120, noise=0.3)[0], 0.2)
    init = 100 * np.random.default_rng(1).standard_normal((k_init, 20))
    model = tracker(3, 40, init=init.tolist()).fit(X)
    assert_tracks(model, X, naive(X, 3, 40, init=init))
    assert sine(tracker(3, 40).fit(X[:40]).components_, model.subspaces_[0]) > 1e-3


def test_the_batches_of_auto_have_at_least_40_rows():
    for k, size in ((1, 40), (20, 40), (21, 42)):
        X = planted(2 * size, 60, 21, noise=0.1)[0]
        model = SubspaceTracker(k, store_subspaces=True, **PAPER)
        assert len(model.fit(X[:-1]).subspaces_) == 1
        assert len(model.fit(X).subspaces_) == 2


def test_only_the_last_batch_counts_without_fading():
    (X, _), (Y, V) = planted(400, noise=0.3), planted(40, noise=0.3, seed=1)
    model = SubspaceTracker(3, batch_size=40, **PAPER).fit(np.concatenate([X, Y]))
    assert sine(model.components_, leading(Y, 3)) < 1e-12
    assert sine(model.components_, V) < 0.5


@pytest.mark.parametrize("center", [False, True])
def test_whole_rows_without_fading_are_those_of_the_svd(center):
    X = planted(200, noise=0.3, mean=2.0)[0]
    model = SubspaceTracker(20, forgetting_factor=1.0, center=center, fill="subspace").fit(X)
    _, s, Vt = np.linalg.svd(X - center * X.mean(axis=0), full_matrices=False)
    assert_allclose(model.singular_values_, s, rtol=1e-10)
    assert_allclose(np.abs(np.sum(model.components_ * Vt, axis=1)), 1, rtol=1e-10)


# ------------------------------------------------------------------ the streams of the experiments


def errors(stream, model, size):
    """Distance of every stored subspace to that of the last row of its batch."""
    model = clone(model).set_params(batch_size=size, store_subspaces=True).fit(stream.X)
    return np.array(
        [sine(V, stream.subspace_at((i + 1) * size - 1)) for i, V in enumerate(model.subspaces_)]
    )


def test_a_piecewise_constant_subspace_is_found_to_machine_precision():
    stream = make_subspace_stream(model="piecewise", missing=0.1, random_state=0)
    error = errors(stream, SubspaceTracker(30, **PAPER), 60)
    assert error[:25][0] > 0.1
    assert error[25] > 0.1  # the change, after 25 batches
    assert error[19] < 1e-6
    assert error[25 + 19] < 1e-6
    assert error[24] < 1e-10
    assert error[49] < 1e-10
    # without a floor: five batches more, ten times less, down to rounding errors
    for start in (0, 25):
        part = error[start : start + 25]
        assert np.all(part[5:] < np.maximum(part[:-5] / 10, 1e-12))


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_the_error_of_a_constant_subspace_has_no_floor(share):
    stream = make_subspace_stream(
        4000, 100, 5, model="piecewise", change_points=(), missing=share, random_state=1
    )
    error = errors(stream, SubspaceTracker(5, **PAPER), 40)
    assert error[-20:].max() < 1e-13


@pytest.mark.parametrize("seed", [0, 1])
def test_a_rotating_subspace_is_followed_three_times_closer_than_by_simple_pca(seed):
    stream = make_subspace_stream(model="rotation", random_state=seed)
    filled = errors(stream, SubspaceTracker(30, **PAPER), 60)
    zeros = errors(
        stream, SubspaceTracker(30, fill="zeros", forgetting_factor=0.0, center=False), 60
    )
    assert np.all(3 * filled[4:] < zeros[4:])
    # the r-SVD of the batch without holes; missing 10 % of the entries costs 1.36 times at most
    last = np.arange(59, 3000, 60)
    rows = (stream.low_rank[t - 59 : t + 1] for t in last)
    clean = [sine(leading(Y, 30), stream.subspace_at(t)) for Y, t in zip(rows, last, strict=True)]
    assert np.all(filled[4:] < 1.5 * np.array(clean)[4:])


def test_both_fills_are_the_r_svd_of_rows_without_holes():
    stream = make_subspace_stream(600, 200, 5, missing=0.0, random_state=0)
    for fill in ("subspace", "zeros"):
        model = tracker(5, 40, fill=fill).fit(stream.X)
        for i, V in enumerate(model.subspaces_):
            assert sine(V, leading(stream.low_rank[40 * i : 40 * i + 40], 5)) < 1e-10


def test_fading_averages_noise():
    X, V = planted(2000, 100, 3, noise=0.5)
    X = with_holes(X, 0.1)
    last, many = (
        SubspaceTracker(3, forgetting_factor=f, fill="subspace", center=False).fit(X).components_
        for f in (0.0, 0.999)
    )
    # 40 rows against about 1000: the error falls with the root of their number, by 5
    assert sine(many, V) < sine(last, V) / 3


# ----------------------------------------------------------------------------- changes (NORST)


def level(Y, V):
    """Largest eigenvalue of the second moments of what is left of rows, by its definition."""
    R = np.array([np.where(np.isnan(y), 0.0, y - fitted_to(y, V) @ V) for y in Y])
    return np.linalg.svd(R, compute_uv=False)[0] ** 2 / len(Y)


def norst(X, k, size, n_updates, threshold=None):
    """Change points, bases, and the levels in units of the threshold, for full batches only."""
    V, left, last = None, n_updates, None
    changes, bases, ratios = [], [], []
    for start in range(0, len(X) - size + 1, size):
        Y = X[start : start + size]
        if V is not None:
            now = level(Y, V)
            if not left:
                ratios.append(now / (2 * last if threshold is None else threshold))
                if ratios[-1] > 1:
                    changes.append(start)
                    left = n_updates
            if left:
                left, last = left - 1, now
                V = leading(naive_fill(Y, V, np.zeros(X.shape[1])), k)
        else:
            V = leading(np.where(np.isnan(Y), 0.0, Y), k)
        bases.append(V)
    return changes, bases, np.array(ratios)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("d", "k", "size", "change"),
    [(100, 3, 40, 1200), (100, 3, 40, 1213), (300, 5, 20, 819), (50, 2, 60, 1799)],
)
def test_a_change_is_found_in_the_batch_where_it_happens(d, k, size, change, seed):
    stream = make_subspace_stream(
        3000, d, k, model="piecewise", change_points=(change,), random_state=seed
    )
    model = SubspaceTracker(k, batch_size=size, detect_changes=True, **PAPER).fit(stream.X)
    # Without noise there is no margin to speak of: the residuals of a batch are rounding errors,
    # of the order of 1e-30, or those of a change, of which one row in a batch is enough.
    assert_array_equal(model.change_points_, [change // size * size])
    assert model.change_points_.dtype.kind == "i"
    assert sine(model.components_, stream.subspace_at(2999)) < 1e-6


def test_every_change_is_found():
    changes = (1000, 2010, 3399)
    stream = make_subspace_stream(
        4400, 100, 3, model="piecewise", change_points=changes, random_state=0
    )
    model = tracker(3, 40, detect_changes=True, n_updates=15).fit(stream.X)
    assert_array_equal(model.change_points_, [1000, 2000, 3360])
    assert len(model.subspaces_) == 110


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("d", "k", "size"), [(200, 3, 40), (500, 5, 100), (60, 2, 30)])
def test_noise_is_not_taken_for_a_change(d, k, size, seed):
    stream = make_subspace_stream(
        40 * size,
        d,
        k,
        model="piecewise",
        change_points=(),
        noise_std=0.1,
        random_state=seed,
    )
    model = tracker(k, size, detect_changes=True).fit(stream.X)
    assert_array_equal(model.change_points_, [])
    # The root of a level is a function of the noise with Lipschitz constant sigma / sqrt(size), so
    # that it deviates from its median by t times that with probability exp(-t^2 / 2) at most. The
    # median is about sigma (1 + sqrt(d / size)), more with the error of the basis, and the root of
    # the threshold sqrt(2) of a typical one. With t = 3 at both ends no level could be above 0.5
    # ((M + 3) / (M - 3))^2 of the threshold, with M = sqrt(d) + sqrt(size).
    M = np.sqrt(d) + np.sqrt(size)
    changes, _, ratios = norst(stream.X, k, size, 20)
    assert not changes
    assert len(ratios) == 19
    assert ratios.max() < min(0.5 * ((M + 3) / (M - 3)) ** 2, 1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("threshold", [None, 0.03, 0.06])
def test_changes_in_noise_are_those_of_the_rule(seed, threshold):
    stream = make_subspace_stream(
        2400,
        100,
        3,
        model="piecewise",
        delta=0.05,
        change_points=(800, 1500),
        noise_std=0.05,
        random_state=seed,
    )
    auto = "auto" if threshold is None else threshold
    options = {"detect_changes": True, "n_updates": 8, "change_threshold": auto}
    model = tracker(3, 40, **options).fit(stream.X)
    changes, bases, ratios = norst(stream.X, 3, 40, 8, threshold)
    assert np.abs(ratios - 1).min() > 1e-6  # rounding decides nothing
    assert_array_equal(model.change_points_, changes)
    assert changes == [800, 1480]
    for V, W in zip(model.subspaces_, bases, strict=True):
        assert sine(V, W) < 1e-8


def test_the_basis_rests_between_updates():
    stream = make_subspace_stream(
        3000, 100, 3, model="piecewise", noise_std=0.01, change_points=(2020,), random_state=0
    )
    model = tracker(3, 40, detect_changes=True, n_updates=6).fit(stream.X)
    assert_array_equal(model.change_points_, [2000])
    moved = [np.any(V != W) for V, W in pairwise(model.subspaces_)]
    # the first batch has no residuals; then six updates; six from batch 50 on
    assert_array_equal(1 + np.flatnonzero(moved), [1, 2, 3, 4, 5, 6, 50, 51, 52, 53, 54, 55])
    frozen = model.components_.copy()
    model.partial_fit(stream.X[-400:])
    assert_array_equal(model.components_, frozen)
    assert model.n_samples_seen_ == 3400


@pytest.mark.parametrize("threshold", ["auto", 2.0])
@pytest.mark.parametrize(("power", "found"), [(0.1, False), (1.9, False), (2.1, True)])
def test_a_change_is_twice_the_level_of_the_last_update(threshold, power, found):
    # residuals of one direction, uncorrelated with the rows in the subspace: levels of 1 and power
    signs = np.tile([[1.0, 1.0], [1.0, -1.0]], (10, 1))
    X = np.zeros((60, 5))
    X[:, :2] = np.concatenate([signs * [10, 1], signs * [10, np.sqrt(power)], signs * [10, 1]])
    options = {"init": np.eye(1, 5), "n_updates": 1, "change_threshold": threshold}
    model = SubspaceTracker(1, batch_size=20, detect_changes=True, **{**PAPER, **options}).fit(X)
    assert_array_equal(model.change_points_, [20] if found else [])


def test_all_changes_are_below_a_large_threshold_and_none_below_zero():
    stream = make_subspace_stream(2000, 50, 3, model="piecewise", noise_std=0.01, random_state=0)
    model = SubspaceTracker(3, detect_changes=True, n_updates=5, **PAPER)
    high = clone(model).set_params(change_threshold=1e6).fit(stream.X)
    assert_array_equal(high.change_points_, [])
    # the sixth update would be in the seventh batch; then every fifth one is taken for a change
    zero = clone(model).set_params(change_threshold=0.0).fit(stream.X)
    assert_array_equal(zero.change_points_, np.arange(6, 50, 5) * 40)


@pytest.mark.parametrize("scale", [1e-100, 1e-3, 1e100])
def test_thresholds_are_in_units_of_the_rows_squared(scale):
    stream = make_subspace_stream(2000, 50, 3, model="piecewise", noise_std=0.01, random_state=0)
    for threshold in ("auto", 0.01):
        model = SubspaceTracker(
            3, detect_changes=True, n_updates=8, change_threshold=threshold, **PAPER
        )
        changes = clone(model).fit(stream.X).change_points_
        assert_array_equal(changes, [1000])
        if threshold != "auto":
            model.set_params(change_threshold=threshold * scale**2)
        assert_array_equal(model.fit(scale * stream.X).change_points_, changes)


def test_times_go_on_over_calls_and_start_anew_with_fit():
    stream = make_subspace_stream(2000, 50, 3, model="piecewise", random_state=0)
    model = SubspaceTracker(3, detect_changes=True, **PAPER)
    for rows in np.split(stream.X, [11, 900, 1003, 1700]):
        model.partial_fit(rows)
    assert_array_equal(model.change_points_, [1000])
    # 20 updates from batch 25 on: the subspace rests when another comes after batch 49
    model.partial_fit(make_subspace_stream(200, 50, 3, random_state=1).X)
    assert_array_equal(model.change_points_, [1000, 2000])
    assert_array_equal(model.fit(stream.X[:900]).change_points_, [])


@pytest.mark.parametrize("d", [50, 200, 1000])
@pytest.mark.parametrize("tail", [1, 5])
def test_a_few_rows_at_the_end_are_not_taken_for_a_change(d, tail):
    X = planted(1200 + tail, d, noise=0.1, seed=3)[0]
    model = SubspaceTracker(3, detect_changes=True, **PAPER).fit(X)
    assert_array_equal(model.change_points_, [])


@pytest.mark.parametrize("change", [80, 100])
@pytest.mark.parametrize("n_updates", [5, 15])
def test_a_change_during_the_last_updates_is_followed(change, n_updates):
    stream = make_subspace_stream(
        2000, 200, 5, model="piecewise", delta=0.02, change_points=(change,), random_state=0
    )
    model = SubspaceTracker(5, batch_size=20, n_updates=n_updates, detect_changes=True, **PAPER)
    model.fit(stream.X)
    assert_array_equal(model.change_points_, [change])
    # an update leaves of the error about the share of missing entries, a tenth; 20 rows are few,
    # so twice that is allowed
    assert sine(model.components_, stream.subspace_at(1999)) < 0.2**n_updates


# ------------------------------------------------------------------------------------------ edges


VARIANTS = {
    "plain": {},
    "centred": {"center": True},
    "fading": {"forgetting_factor": 0.95, "center": True},
    "norst": {"detect_changes": True, "n_updates": 2, "batch_size": 7},
    "zeros": {"fill": "zeros"},
    "twice": {"n_iter": 2, "center": True, "batch_size": 11},
    "row by row": {"batch_size": 1},
    "two rows": {"batch_size": 2, "center": True},
    "given": {"init": np.eye(3, 20), "detect_changes": True},
}
# in batches of one or two rows the third direction is one of rounding errors
LARGER = {name: v for name, v in VARIANTS.items() if v.get("batch_size", 40) > 2}
variants = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())


def edges():
    X = with_holes(planted(120, noise=0.1, mean=1.0)[0], 0.2)
    order = np.random.default_rng(1).permuted(np.tile(np.arange(20), (120, 1)), axis=1)
    few = np.where(order < np.arange(120)[:, None] % 3, planted(120)[0], nan)
    some, columns, late = X.copy(), X.copy(), X.copy()
    some[::3] = nan
    columns[:, [2, 7]] = late[:40, [2, 7]] = nan
    return {
        "no entries": np.full((90, 20), nan),
        "no entries at first": np.concatenate([np.full((60, 20), nan), X]),
        "no entries at last": np.concatenate([X, np.full((90, 20), nan)]),
        "rows without entries": some,
        "fewer entries than components": few,
        "few entries at last": np.concatenate([X, few]),
        "columns that are never there": columns,
        "columns that come late": late,
        "one row": X[:1],
        "two rows": X[:2],
        "one whole row": planted(1)[0],
        "39 rows": X[:39],
        "constant": np.ones((90, 20)),
        "constant, with holes": with_holes(np.full((90, 20), 7.0), 0.3),
        "constant at last": np.concatenate([X, np.ones((200, 20))]),
        "zeros": np.zeros((90, 20)),
        "zeros, with holes": with_holes(np.zeros((90, 20)), 0.3),
        "zeros at last": np.concatenate([X, np.zeros((200, 20))]),
        "duplicates": np.repeat(X[:4], 30, axis=0),
        "one entry": np.where(np.arange(20) == 4, 1.0, nan)[None],
        "rank one": np.outer(np.arange(90.0), np.ones(20)),
        "far": with_holes(planted(120, noise=0.1)[0], 0.2) + 1e8,
        "huge": 1e100 * X,
        "tiny": 1e-100 * X,
    }


EDGES = edges()


@variants
@pytest.mark.parametrize("kind", EDGES)
def test_edges_give_finite_numbers_and_an_orthonormal_basis(options, kind):
    X = EDGES[kind]
    model = SubspaceTracker(3, **{**PAPER, **options}).fit(X)
    assert_sound(model, X, with_holes(planted(30)[0], 0.5))
    assert model.n_samples_seen_ == len(X)
    assert len(model.components_) == model.n_components_ == min(3, len(X))
    model.partial_fit(planted(100)[0])
    assert_sound(model, X)


@examples
@given(
    parts=st.lists(st.tuples(st.sampled_from(sorted(EDGES)), st.integers(1, 60)), max_size=5),
    variant=st.sampled_from(sorted(VARIANTS)),
)
def test_edges_in_any_order_give_finite_numbers(parts, variant):
    model = SubspaceTracker(3, **{**PAPER, **VARIANTS[variant]})
    for kind, n in [*parts, ("two rows", 2)]:
        model.partial_fit(EDGES[kind][:n])
        assert_sound(model, EDGES["few entries at last"])


@pytest.mark.parametrize("kind", ["no entries", "zeros", "constant", "one entry", "one row"])
@pytest.mark.parametrize("center", [False, True])
def test_a_stream_may_start_without_news(kind, center):
    X, V = planted(1000, seed=1)
    model = (
        SubspaceTracker(3, center=center, forgetting_factor=0.0, fill="subspace")
        .fit(EDGES[kind])
        .partial_fit(with_holes(X, 0.1))
    )
    # the rows of the start stand in one batch with the first others, all of which are replaced
    assert sine(model.components_, V) < 1e-6


@pytest.mark.parametrize("center", [False, True])
def test_rows_without_enough_entries_do_not_count(center):
    X = with_holes(planted(200, noise=0.1)[0], 0.1)
    few = np.full((200, 20), nan)
    few[::2, 3], few[::2, 4] = 100.0, -100.0
    model = SubspaceTracker(
        3, batch_size=40, center=center, forgetting_factor=0.0, fill="subspace"
    ).fit(X)
    before = model.components_.copy(), model.mean_.copy(), model.singular_values_.copy()
    model.partial_fit(few)
    after = model.components_, model.mean_, model.singular_values_
    for old, new in zip(before, after, strict=True):
        assert_array_equal(new, old)
    assert model.n_samples_seen_ == 400


def test_rows_that_count_displace_their_share_of_the_past():
    X = with_holes(planted(120, noise=0.3)[0], 0.1)
    X[80::4] = nan  # ten rows of the last batch are left out
    history = naive(X[:80], 3, 40)
    L = naive_fill(np.delete(X[80:], np.arange(0, 40, 4), axis=0), history[-1].V, np.zeros(20))
    want = naive_update(history[-1], L, 3, 1 - 30 / 40, False)
    model = SubspaceTracker(3, batch_size=40, **PAPER).fit(X)
    assert sine(model.components_, want.V) < 1e-8
    assert_allclose(model.singular_values_, want.s, rtol=1e-8)


@pytest.mark.parametrize("center", [False, True])
def test_a_feature_that_is_never_there_has_no_part(center):
    X, V = planted(800, mean=center * 5.0)
    X[:, [4, 11]] = nan
    model = SubspaceTracker(3, center=center, forgetting_factor=0.0, fill="subspace").fit(
        with_holes(X, 0.1)
    )
    assert_allclose(model.components_[:, [4, 11]], 0, atol=1e-15)
    assert_allclose(model.mean_[[4, 11]], 0, atol=1e-13)
    assert_allclose(model.impute(X)[:, [4, 11]], 0, atol=1e-13)
    there = np.setdiff1d(np.arange(20), [4, 11])
    assert sine(model.components_[:, there], V[:, there]) < 1e-6


@pytest.mark.parametrize("n_missing", [1, 40, 100])
def test_a_feature_may_come_late(n_missing):
    X, V = planted(1200)
    X = with_holes(X, 0.1)
    X[:n_missing, [4, 11]] = nan
    assert sine(SubspaceTracker(3, **PAPER).fit(X).components_, V) < 1e-8


@pytest.mark.parametrize("center", [False, True])
def test_a_feature_may_fall_silent(center):
    X, V = planted(1600)
    X = with_holes(X, 0.1)
    X[400:, [4, 11]] = nan
    model = SubspaceTracker(3, center=center, forgetting_factor=0.0, fill="subspace").fit(X)
    assert_sound(model, X)
    # its loadings are filled in from those before, for ever
    assert sine(model.components_, V) < 1e-6


@pytest.mark.parametrize("mean", [1.0, 1e4, 1e8])
@pytest.mark.parametrize("f", [0.0, 0.99])
def test_a_mean_far_away_is_no_trouble_when_centred(mean, f):
    X, V = planted(1600)
    away = mean * np.random.default_rng(1).uniform(-1, 1, 20)
    Y = with_holes(X + away, 0.1)
    model = SubspaceTracker(3, center=True, forgetting_factor=f, fill="subspace").fit(Y)
    # The first mean is off by about sqrt(4^2 / 40), the next ones by less. Then the rows are
    # rounded to mean * EPS, and so is the mean of 40 rows, a few times.
    assert sine(model.components_, V) < 1e-5 + 100 * mean * EPS
    assert_allclose(model.impute(Y), X + away, atol=1e-3 + 1000 * mean * EPS)
    assert_sound(model, Y)


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("center", [False, True])
def test_there_may_be_as_many_components_as_features(d, center):
    X = np.random.default_rng(0).standard_normal((200, d))
    model = SubspaceTracker(
        d, batch_size=40, center=center, forgetting_factor=0.0, fill="subspace"
    ).fit(with_holes(X, 0.2))
    assert_sound(model, with_holes(X, 0.2))
    assert model.noise_variance_ == 0
    # a row with a hole does not determine d coordinates: only whole rows count after the first
    model.partial_fit(X)
    assert_allclose(model.inverse_transform(model.transform(X)), X, atol=1e-12)
    Y = X[-40:] - center * X[-40:].mean(axis=0)
    assert_allclose(model.singular_values_, np.linalg.svd(Y, compute_uv=False), rtol=1e-9)


def test_one_feature_is_all_or_nothing():
    X = np.array([[2.0], [nan], [4.0], [nan]])
    model = SubspaceTracker(
        1, batch_size=4, center=True, forgetting_factor=0.0, fill="subspace"
    ).fit(X)
    assert_allclose(model.mean_, [3.0])
    assert_allclose(model.impute(X), [[2.0], [3.0], [4.0], [3.0]])
    assert_allclose(np.abs(model.transform(X)), [[1.0], [0.0], [1.0], [0.0]])


@pytest.mark.parametrize("center", [False, True])
def test_single_precision_is_rounded_only_at_the_end(center):
    X = with_holes(planted(300, noise=0.1, mean=10.0)[0], 0.2).astype(np.float32)
    model = SubspaceTracker(3, center=center, forgetting_factor=0.0, fill="subspace")
    single, double = clone(model).fit(X), clone(model).fit(X.astype(np.float64))
    assert single.components_.dtype == single.mean_.dtype == np.float32
    assert_allclose(single.components_, double.components_, atol=1e-6)
    assert_allclose(single.singular_values_, double.singular_values_, rtol=1e-6)
    assert_sound(single, X)


@pytest.mark.parametrize("scale", [1e-100, 1e100])
@pytest.mark.parametrize("options", LARGER.values(), ids=LARGER.keys())
def test_the_scale_of_the_rows_does_not_matter(options, scale):
    X = with_holes(planted(300, noise=0.1)[0], 0.2)
    model, scaled = (SubspaceTracker(3, **{**PAPER, **options}).fit(a * X) for a in (1.0, scale))
    assert sine(scaled.components_, model.components_) < 1e-10
    assert_allclose(scaled.impute(scale * X), scale * model.impute(X), rtol=1e-9, atol=1e-9 * scale)
    assert_allclose(scaled.singular_values_, scale * model.singular_values_, rtol=1e-9)
    assert_allclose(scaled.score(scale * X), model.score(X), rtol=1e-9)


def test_rows_of_lower_rank_replace_as_many_directions():
    (X, V), (Y, W) = planted(40), planted(40, k=1, seed=1)
    model = SubspaceTracker(3, **PAPER).fit(np.concatenate([X, Y]))
    # the strongest two of the others stay
    rest = V - V @ W.T @ W
    kept = np.linalg.svd(model.components_ @ rest.T)[1]
    assert sine(model.components_[:1], W) < 1e-9
    assert np.linalg.norm(model.components_[1:] @ W.T) < 1e-9
    union = np.linalg.qr(np.concatenate([V, W]).T)[0].T
    assert_allclose(np.linalg.norm(model.components_ @ union.T, axis=1), 1, atol=1e-9)
    assert kept[1] > 0.5


@pytest.mark.parametrize("n_batches", [2, 3, 10])
def test_directions_stay_over_many_batches_of_lower_rank(n_batches):
    X, V = planted(40)
    constant = np.tile(X[0], (40 * n_batches, 1))
    model = SubspaceTracker(3, **PAPER).fit(np.concatenate([X, constant]))
    assert sine(model.components_, V) < 100 * EPS  # every batch lies in the span, so only rounding


def test_the_subspace_stays_while_the_stream_is_silent():
    X, V = planted(40)
    model = SubspaceTracker(3, **PAPER).fit(X).partial_fit(np.zeros((4000, 20)))
    assert sine(model.components_, V) < 1e-9


def test_batches_of_one_row_keep_the_last_rows():
    X, V = planted(30)
    model = tracker(3, 1).fit(X)
    assert [len(B) for B in model.subspaces_[2:]] == 28 * [3]
    assert sine(model.components_, V) < 100 * EPS


@pytest.mark.parametrize("hole", [slice(None), slice(0, 1), slice(0, 5)])
def test_a_row_without_coordinates_does_not_take_the_others_with_it(hole):
    Y = planted(10, 6, 2)[0]
    Y[1, 5] = Y[2, 4] = Y[3, 3] = nan
    Y[0, hole] = nan
    Y[4:] = nan
    gain = coordinates(Y, np.eye(2, 6))[1]
    assert gain[0] == inf
    assert_allclose(gain[1:4], 1)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_a_given_subspace_stays_but_for_what_the_first_rows_replace(n):
    X, V = planted(5)
    X[n:] = nan
    model = SubspaceTracker(3, init=V, **PAPER).fit(X)
    assert sine(model.components_, V) < 100 * EPS  # the rows lie in the given span


@pytest.mark.parametrize("mean", [1e3, 1e8])
def test_a_given_subspace_may_be_far_from_the_origin(mean):
    X, V = planted(800)
    model = SubspaceTracker(3, init=V, center=True, forgetting_factor=0.0, fill="subspace").fit(
        with_holes(X + mean, 0.2)
    )
    assert sine(model.components_, V) < 1e-6 + 100 * mean * EPS


@pytest.mark.parametrize("mean", [10.0, 1e3])
def test_a_feature_may_come_late_and_from_far_away(mean):
    X, V = planted(1600)
    X = with_holes(X + mean, 0.1)
    X[:40, [4, 11]] = nan
    # its mean is taken for zero at first, and rows where it is missing do not count meanwhile
    model = SubspaceTracker(3, center=True, forgetting_factor=0.0, fill="subspace").fit(X)
    assert sine(model.components_, V) < 1e-6


def test_a_centred_stream_may_start_without_entries_and_go_on_far_away():
    X, V = planted(800)
    X = np.concatenate([np.full((40, 20), nan), with_holes(X + 1e8, 0.1)])
    model = SubspaceTracker(3, center=True, forgetting_factor=0.0, fill="subspace").fit(X)
    # entries are rounded by 1e8 EPS / 2 at most and turn the axes as noise does, by that times
    # (sqrt(17) + sqrt(3)) / (2 (sqrt(40) - sqrt(3))), less than one; so do the mean's
    assert sine(model.components_, V) < 2 * 1e8 * EPS


def test_no_row_may_count_when_a_batch_is_filled_again():
    X = np.zeros((20, 6))
    X[:, 3:5] = np.random.default_rng(0).standard_normal((20, 2))
    X[::2, 3] = X[1::2, 4] = nan  # the first pass finds the two features of which one is missing
    model = SubspaceTracker(
        2, n_iter=2, center=True, batch_size=20, forgetting_factor=0.0, fill="subspace"
    ).fit(X)
    assert_sound(model, X)


def test_a_sensor_that_dies_does_not_stop_the_tracker():
    (X, _), (Y, V) = planted(800), planted(800, seed=5)
    alone = np.arange(20) == 4
    X[:, alone] = 6 * np.random.default_rng(0).standard_normal((800, 1))
    Y[:, alone] = nan
    X[200:, alone] = nan
    model = SubspaceTracker(4, **PAPER).fit(with_holes(np.concatenate([X, Y]), 0.05))
    V = np.where(alone, 0, V)
    inside = V @ model.components_.T @ model.components_
    assert (
        np.linalg.norm(inside - V) < 1e-2
    )  # four directions for rank three: the last one is of filling errors


# ------------------------------------------------------------------- transform, imputation, score


@examples
@given(
    seed=st.integers(0, 2**31),
    n=st.integers(1, 12),
    d=st.integers(1, 40),
    k=st.integers(1, 6),
    share=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
    scale=st.sampled_from([1e-100, 1.0, 1e100]),
)
def test_coordinates_are_by_least_squares(seed, n, d, k, share, scale):
    assume(k <= d)
    V = random_basis(np.random.default_rng(seed), k, d)
    Z = with_holes(scale * np.random.default_rng(seed + 1).standard_normal((n, d)), share, seed)
    C, gain = coordinates(Z, V)
    assert np.isfinite(C).all()
    for z, c, g in zip(Z, C, gain, strict=True):
        there = ~np.isnan(z)
        s = np.linalg.svd(V[:, there], compute_uv=False)
        squares = np.zeros(k)
        squares[: len(s)] = s**2
        if there.all():
            assert g == 1
        elif squares[-1] < 1e-12:
            assert g == inf
        elif squares[-1] > 1e-9:
            # the largest entry of an inverse is between a k-th of its norm and its norm
            assert 0.9 / squares[-1] / k <= g <= 1.1 / squares[-1]
        if not there.any():
            assert_array_equal(c, 0)
        elif squares[-1] > 1e-9:
            want = fitted_to(z, V)
            # the normal equations lose by the square of the condition
            tol = 100 * k * EPS / squares[-1] * np.abs(z[there]).max() * np.sqrt(d)
            assert_allclose(c, want, rtol=0, atol=tol * max(1.0, 1 / squares[-1]))


@pytest.mark.parametrize("loading", [1.0, 1e-1, 1e-2, 1e-4, 1e-6])
def test_coordinates_are_taken_for_undetermined_below_a_share_of_1e_10(loading):
    V = np.array([[1.0, 0.0, 0.0], [0.0, loading, np.sqrt(1 - loading**2)]])
    C, gain = coordinates(np.array([[2.0, 3 * loading, nan]]), V)
    if loading**2 > 1e-10:  # which is 1 less what is missing, hence rounded to EPS
        assert_allclose(gain, loading**-2, rtol=4 * EPS / loading**2)
        assert_allclose(C, [[2.0, 3.0]], rtol=4 * EPS / loading**2)
    else:
        assert_array_equal(gain, inf)
        assert_allclose(C, [[2.0, 0.0]], atol=1e-15)


@each
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_observed_entries_are_kept_bit_for_bit(model, dtype):
    X = planted(200, noise=0.3, mean=100.0)[0].astype(dtype)
    X[0, 0] = -0.0
    model = clone(model).fit(with_holes(X, 0.2))
    Y = with_holes(X, 0.4, seed=1)
    Y[0, 0], Y[5] = -0.0, nan
    before = Y.copy()
    full = model.impute(Y)
    assert full.dtype == dtype
    seen = ~np.isnan(Y)
    assert full[seen].tobytes() == Y[seen].tobytes()
    assert_array_equal(Y, before)
    assert not np.shares_memory(full, Y)
    assert not np.isnan(full).any()
    assert_array_equal(full[5], model.mean_)
    assert_array_equal(model.impute(X), X)
    assert not np.shares_memory(model.impute(X), X)


@each
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("n", [1, 64, 150])
def test_rows_of_the_subspace_are_imputed_exactly(model, center, n):
    model = clone(model).set_params(center=center)
    noise = noise_for(model)
    model.fit(planted(300, noise=noise, mean=2.0 if noise or center else 0.0)[0])
    C = np.random.default_rng(2).standard_normal((n, 3))
    X = C @ model.components_ + model.mean_
    Y = with_holes(X, 0.4)
    assert_allclose(model.impute(Y), X, atol=1e-10)
    assert_allclose(model.transform(Y), C, atol=1e-10)
    assert_allclose(model.inverse_transform(model.transform(Y)), X, atol=1e-10)


@each
def test_transform_and_impute_are_by_what_is_predicted(model):
    model = clone(model).set_params(center=True).fit(planted(300, noise=0.1, mean=2.0)[0])
    Y = with_holes(planted(100, noise=0.5, mean=2.0, seed=3)[0], 0.5)
    Y[7, 2:] = nan  # two entries for three coordinates
    V, mean = model.components_, model.mean_
    C = np.array([predicted(y - mean, model) for y in Y])
    full = np.where(np.isnan(Y), C @ V + mean, Y)
    assert_allclose(model.transform(Y), (full - mean) @ V.T, atol=1e-7)
    assert_allclose(model.impute(Y), full, atol=1e-7)
    assert_allclose(model.transform(Y[:1]), model.transform(Y)[:1], atol=1e-12)


@each
@pytest.mark.parametrize("form", [sp.csr_array, sp.csc_array, sp.coo_matrix])
def test_sparse_rows_are_the_dense_ones(model, form):
    X = planted(200, noise=0.3)[0] * (np.random.default_rng(1).random((200, 20)) < 0.5)
    X = with_holes(X, 0.1)
    dense, sparse = clone(model).fit(X), clone(model).fit(form(X))
    assert_allclose(sparse.components_, dense.components_, atol=1e-12)
    assert isinstance(dense.impute(form(X)), np.ndarray)
    assert_array_equal(dense.impute(form(X)), dense.impute(X))
    assert_allclose(dense.transform(form(X)), dense.transform(X), atol=1e-12)
    assert_allclose(dense.score(form(X)), dense.score(X), rtol=1e-12)


@each
def test_bad_rows_are_refused_before_anything_is_imputed(model):
    X = planted(100)[0]
    for method in ("impute", "score", "transform"):
        with pytest.raises(NotFittedError):
            getattr(clone(model), method)(X)
        fitted = clone(model).fit(X)
        with pytest.raises(ValueError, match="infinity"):
            getattr(fitted, method)(np.where(np.arange(20) == 3, inf, X))
        with pytest.raises(ValueError, match="19 features"):
            getattr(fitted, method)(X[:, :19])


def naive_score(model, X, weight=None):
    """Every entry is predicted from its row without a fifth of the entries, itself among them."""
    V, mean = model.components_.astype(float), model.mean_.astype(float)
    Z = X.astype(float) - mean
    fold = np.random.default_rng(0).integers(5, size=X.shape)
    error = 0.0
    weight = np.ones(len(X)) if weight is None else weight
    shown = np.ma.masked_invalid(X.astype(float))
    means = np.ma.average(shown, axis=0, weights=weight)
    total = np.ma.sum(weight[:, None] * (shown - means) ** 2)
    for i, z in enumerate(Z):
        w = weight[i]
        for part in range(5):
            hidden = (fold[i] == part) & ~np.isnan(z)
            c = predicted(np.where(fold[i] == part, nan, z), model)
            error += w * np.sum((z - c @ V)[hidden] ** 2)
    return 1 - error / total


@each
@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize("n", [3, 63, 64, 150])
def test_the_score_is_that_of_predicting_hidden_entries(model, share, n):
    model = clone(model).fit(planted(300, noise=0.3, mean=2.0)[0])
    X = with_holes(planted(n, noise=0.3, mean=2.0)[0], share)
    assert_allclose(model.score(X), naive_score(model, X), rtol=1e-8)
    weight = np.random.default_rng(1).uniform(0.5, 2, n)
    weight[n // 2 : n // 2 + (n > 1)] = 0
    assert_allclose(
        model.score(X, sample_weight=weight), naive_score(model, X, weight), rtol=1e-8, atol=1e-8
    )
    assert_allclose(model.score(X, sample_weight=np.full(n, 7.0)), model.score(X), rtol=1e-12)
    assert model.score(X) == model.score(X)


@each
def test_the_score_is_one_for_rows_of_the_subspace_and_zero_for_the_mean(model):
    model = clone(model).set_params(center=True)
    model.fit(planted(300, 60, noise=noise_for(model), mean=2.0)[0])
    C = np.random.default_rng(2).standard_normal((100, 3))
    X = C @ model.components_ + model.mean_
    assert_allclose(model.score(X), 1, rtol=1e-12)
    assert_allclose(model.score(with_holes(X, 0.3)), 1, rtol=1e-12)
    # rows across the subspace: three coordinates fitted to 48 entries of noise make it worse
    noise = np.random.default_rng(3).standard_normal((1000, 60)) + model.mean_
    assert -0.2 < model.score(noise) < 0
    assert model.score(np.tile(model.mean_, (5, 1))) == 0
    assert model.score(np.full((5, 60), nan)) == 0


@each
def test_an_offset_is_no_credit_to_a_model_about_the_origin(model):
    X = with_holes(planted(300, noise=0.3)[0], 0.1)
    about_mean = clone(model).set_params(n_components=1, center=True)
    scores = [about_mean.fit(X + offset).score(X + offset) for offset in (0.0, 1000.0)]
    assert_allclose(scores[0], scores[1], rtol=1e-6)
    about_origin = clone(model).set_params(n_components=1, center=False).fit(X + 1000.0)
    assert about_origin.score(X + 1000.0) < scores[0] + 0.01


@each
def test_weights_of_the_score_are_checked(model):
    X = planted(100)[0]
    model = clone(model).fit(X)
    for weight, message in ((np.zeros(100), "positive sum"), (-np.ones(100), "Negative")):
        with pytest.raises(ValueError, match=message):
            model.score(X, sample_weight=weight)
    with pytest.raises(ValueError, match="sample_weight"):
        model.score(X, sample_weight=np.ones(99))


@pytest.mark.parametrize("seed", range(3))
def test_a_grid_search_over_rows_with_holes_picks_the_rank(seed):
    X = with_holes(planted(450, 40, 3, noise=0.3, seed=seed)[0], 0.2)
    pipeline = Pipeline([("scale", StandardScaler()), ("track", SubspaceTracker(**PAPER))])
    grid = {
        "track__n_components": [1, 2, 3, 4, 6],
        "track__batch_size": [30, 100],
        "track__forgetting_factor": [0.0, 0.995],
    }
    search = GridSearchCV(pipeline, grid, cv=KFold(3), error_score="raise").fit(X)
    assert search.best_params_["track__n_components"] == 3
    # rows do not change: the more of them count, the better
    assert search.best_params_["track__forgetting_factor"] == 0.995
    assert search.best_score_ > 0.5


@each
def test_pandas_comes_out_of_rows_with_holes(model):
    columns = [f"sensor {i}" for i in range(20)]
    X = pd.DataFrame(with_holes(planted(100)[0], 0.2), columns=columns, index=range(50, 150))
    model = clone(model).set_output(transform="pandas").fit(X)
    Z = model.transform(X)
    assert list(Z.columns) == [f"{type(model).__name__.lower()}{i}" for i in range(3)]
    assert list(Z.index) == list(X.index)
    assert not Z.isna().any(axis=None)
    assert not np.isnan(model.impute(X)).any()
    assert list(model.feature_names_in_) == columns


# ------------------------------------------------------------------------------- stored subspaces


def test_one_subspace_is_stored_for_each_full_batch():
    X = with_holes(planted(210, noise=0.3)[0], 0.1)
    whole, parts = tracker(3, 40).fit(X), tracker(3, 40)
    counts = []
    for rows in np.split(X, [39, 40, 41, 200]):
        counts.append(len(parts.partial_fit(rows).subspaces_))
    assert counts == [0, 1, 1, 5, 5]
    for V, W in zip(parts.subspaces_, whole.subspaces_, strict=True):
        assert_allclose(V, W, atol=1e-12)
        assert_allclose(V @ V.T, np.eye(3), atol=1e-12)
    assert len(whole.fit(X[:100]).subspaces_) == 2
    assert whole.fit(X[:39]).subspaces_ == []
    assert_array_equal(whole.fit(X[:80]).subspaces_[-1], whole.components_)


def test_subspaces_are_not_stored_unless_asked():
    assert not hasattr(SubspaceTracker(3, **PAPER).fit(planted(100)[0]), "subspaces_")
    assert not hasattr(SubspaceTracker(3, **PAPER).fit(planted(100)[0]), "change_points_")


def test_stored_subspaces_are_not_shared():
    X = planted(100)[0]
    model = tracker(3, 40).fit(X)
    first = model.subspaces_
    assert not hasattr(clone(model), "subspaces_")
    other = pickle.loads(pickle.dumps(model)).partial_fit(X)
    assert len(other.subspaces_) == 5
    assert len(model.subspaces_) == 2
    model.partial_fit(X)
    assert len(first) == 2
    assert len(model.subspaces_) == 5


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize("kind", ["infinity", "another width", "bad batch of a stream"])
def test_a_failed_call_stores_nothing(method, kind):
    X = planted(100)[0]
    model = tracker(3, 40).fit(X)
    before, bases = model.subspaces_, list(model.subspaces_)
    bad = {
        "infinity": np.where(np.arange(100)[:, None] == 99, inf, X),
        "another width": [X, X[:, :5]],
        "bad batch of a stream": iter([X, np.full((40, 20), inf)]),
    }[kind]
    with pytest.raises(ValueError, match=r"infinity|features"):
        getattr(model, method)(bad)
    assert model.subspaces_ is before
    assert len(before) == 2
    for V, W in zip(before, bases, strict=True):
        assert V is W
    assert len(model.partial_fit(X).subspaces_) == 5


def test_subspaces_may_be_stored_from_later_on():
    X = planted(80)[0]
    model = SubspaceTracker(3, batch_size=40, **PAPER).fit(X)
    model.set_params(store_subspaces=True).partial_fit(X)
    assert len(model.subspaces_) == 2


def test_no_attribute_of_an_earlier_fit_is_left():
    model = tracker(3, 40, detect_changes=True).fit(planted(80)[0])
    model.set_params(store_subspaces=False, detect_changes=False).fit(planted(80)[0])
    assert not hasattr(model, "subspaces_")
    assert not hasattr(model, "change_points_")


def test_stored_subspaces_have_the_shape_of_the_components():
    model = tracker(3, 40).fit(np.concatenate([np.ones((40, 20)), planted(40)[0]]))
    assert [V.shape for V in model.subspaces_] == [(3, 20), (3, 20)]


# ---------------------------------------------------------------------------- memory, parameters


def test_memory_is_that_of_a_few_batches_and_bases():
    d, k, m = 20_000, 10, 40
    X = with_holes(np.random.default_rng(0).standard_normal((8 * m, d)), 0.1)
    peaks = []
    for n in (2, 8):
        model = SubspaceTracker(k, batch_size=m, **PAPER).fit(X[:m])
        peaks.append(peak_bytes(lambda n=n, model=model: model.partial_fit(X[: n * m])))
    # m x d: the rows, less the mean, their fit, that plus the mean, the filled rows, and two masks
    # of an eighth each; k x d: the basis, the next, the one shown; 2^18 products of loadings
    assert max(peaks) < 6 * 8 * d * (m + k) + 8 * 2**19
    assert peaks[1] < 1.1 * peaks[0]


def test_memory_does_not_grow_with_the_stream():
    d, m = 5000, 20
    X = with_holes(np.random.default_rng(0).standard_normal((m, d)), 0.1)
    model = SubspaceTracker(3, batch_size=m, detect_changes=True, **PAPER)
    for _ in range(3):
        model.partial_fit(X)
    peaks = [peak_bytes(lambda: model.partial_fit(X)) for _ in range(15)]
    assert peaks[-1] < 1.1 * peaks[0]
    assert len(pickle.dumps(model)) < 8 * d * (3 * 3 + m)  # no rows wait; three bases


# ---------------------------------------------------------------------- the shell of block by block


class Blocks(BlockTransformer):
    """Remembers its blocks: the first of five rows, the others of three."""

    n_components = 1

    def _check_parameters(self):
        pass

    def _block_rows(self, d, first=True):
        return 5 if first else 3

    def _start(self, d):
        return ()

    def _next_state(self, state, Y):
        return (*state, Y)

    def _show(self, state, n_rows, dtype):
        self.blocks_, self.n_rows_, self.dtype_ = state, n_rows, dtype


@examples
@given(
    n=st.integers(1, 40),
    cuts=st.lists(st.integers(1, 39), max_size=6),
    form=st.sampled_from([np.asarray, sp.csr_array, sp.coo_matrix, list]),
)
def test_blocks_lie_on_a_grid_however_the_stream_is_cut(n, cuts, form):
    X = np.arange(2.0 * n).reshape(n, 2)
    model = Blocks()
    for rows in np.split(X, sorted(cuts)):
        if len(rows):
            model.partial_fit(form(rows))
    want = np.split(X, range(5, n, 3))
    assert len(model.blocks_) == len(want)
    for block, rows in zip(model.blocks_, want, strict=True):
        assert_array_equal(block, rows)
        assert block.dtype == np.float64
    assert model.n_rows_ == n
    assert_array_equal(np.concatenate(Blocks().fit(X).blocks_), X)


def test_blocks_are_of_finite_rows():
    for bad in (nan, inf):
        with pytest.raises(ValueError, match=r"X contains (NaN|infinity)"):
            Blocks().fit(np.array([[1.0], [bad]]))
    assert Blocks().fit(np.ones((2, 2), dtype=np.float32)).dtype_ == np.float32
    assert Blocks().fit(np.ones((2, 2), dtype=int)).dtype_ == np.float64


def test_changes_are_not_looked_for_with_zeros_filled_in():
    model = SubspaceTracker(
        2, fill="zeros", detect_changes=True, forgetting_factor=0.0, center=False
    )
    with pytest.raises(ValueError, match="detect_changes needs fill='conditional'"):
        model.fit(np.ones((50, 4)))


@pytest.mark.parametrize(
    "model",
    [
        SubspaceTracker(2, batch_size=10, **PAPER),
        SubspaceTracker(2, batch_size=10, center=True, forgetting_factor=0.0, fill="subspace"),
        RobustSubspaceTracker(
            2, batch_size=10, init="svd", center=True, forgetting_factor=0.0, fill="subspace"
        ),
        OjaPCA(2, random_state=0),
        FederatedSubspaceTracker(2, batch_size=10, random_state=0, **PAPER),
        OnlineDistributedPCA(2),
    ],
)
def test_a_mean_beyond_the_first_rows_dtype_is_refused(model):
    X = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)
    model = clone(model).fit(X)
    before = model.transform(X)
    with pytest.raises(ValueError, match=r"too large.*float32"):
        model.partial_fit(np.full((40, 6), 1e39))
    assert_array_equal(model.transform(X), before)
    assert model.n_samples_seen_ == 40
