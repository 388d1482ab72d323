"""The robust tracker on films with planted objects, whose masks are known.

Objects of 40 grey levels are 16 deviations of the noise (2.5) from what is behind them, so that
their pixels are told apart but where background of that contrast is not in the subspace.
"""

import copy
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from fedpca_sklearn import AlternatingProjections, RobustSubspaceTracker, make_subspace_stream

NOISE, CONTRAST, TRAIN = 2.5, 40.0, 100
OPTIONS = {"n_components": 6, "center": True, "forgetting_factor": 0.99}


def make_film(kind, motion, n=200, shape=(30, 40), contrast=CONTRAST, seed=0):
    """Frames, the mask of an object from frame TRAIN on, and the background."""
    rng = np.random.default_rng(seed)
    t, d = np.arange(n), shape[0] * shape[1]
    behind = np.tile(rng.uniform(60, 160, d), (n, 1))
    if kind == "waving":
        leaves = rng.permutation(d) < 0.3 * d
        for phase in (0, np.pi / 2):
            for period in (7.3, 17.9):
                wave = np.sin(2 * np.pi * t / period + phase)
                behind += 8 * leaves * wave[:, None] * rng.standard_normal(d)
    if kind == "drift":
        behind *= 1 + 0.2 * np.sin(2 * np.pi * t / 170)[:, None]
    mask = np.zeros((n, *shape), dtype=bool)
    for i in range(TRAIN, n):
        at = i - TRAIN
        along = {
            "moving": at,
            "lingering": 25 * (at // 50) + max(0, at % 50 - 25),
            "stopping": min(at, 15),
        }[motion] % (shape[1] - 8)
        mask[i, 10:18, along : along + 8] = True
    mask = mask.reshape(n, d)
    X = behind + contrast * mask + NOISE * rng.standard_normal((n, d))
    return X, mask, behind


def overlap(found, true):
    return (found & true).sum() / (found | true).sum()


@pytest.mark.parametrize("kind", ["still", "waving", "drift"])
@pytest.mark.parametrize("motion", ["moving", "lingering", "stopping"])
def test_objects_are_found_wherever_they_stay(kind, motion):
    X, mask, behind = make_film(kind, motion)
    tracker = RobustSubspaceTracker(**OPTIONS).fit(X[:TRAIN])
    decomposed = tracker.decompose(X[TRAIN:])[1] != 0
    found = tracker.partial_fit(X[TRAIN:]).outlier_mask_
    best = 0
    for rest in (X - np.median(X[:TRAIN], axis=0), X - behind):  # the truth is the best of all
        best = max(
            best, *(overlap(np.abs(rest[TRAIN:]) > t, mask[TRAIN:]) for t in (8, 12, 20, 30))
        )
    assert overlap(found, mask[TRAIN:]) >= 0.95 * best
    assert overlap(decomposed, mask[TRAIN:]) >= 0.95 * best


@pytest.mark.parametrize("contrast", [15.0, 20.0])
def test_faint_objects_are_found_in_frames_with_many_of_their_pixels(contrast):
    # 64 pixels of six or eight deviations, of which the threshold of six loses half or 2 %
    X, mask, _ = make_film("still", "moving", contrast=contrast)
    tracker = RobustSubspaceTracker(**OPTIONS).fit(X[:TRAIN])
    found = tracker.partial_fit(X[TRAIN:]).outlier_mask_
    rest = np.abs(X - np.median(X[:TRAIN], axis=0))[TRAIN:]
    best = max(overlap(rest > t, mask[TRAIN:]) for t in np.arange(6.0, 15.0))
    assert overlap(found, mask[TRAIN:]) >= 0.95 * best


def test_frames_without_objects_have_no_foreground():
    X = make_film("waving", "moving")[0][:TRAIN]
    found = RobustSubspaceTracker(**OPTIONS).fit(X).outlier_mask_
    assert not found.any()


def test_a_sensor_that_moves_all_the_time_does_not_hide_the_others():
    rng = np.random.default_rng(0)
    stream = make_subspace_stream(
        400, 100, 4, delta=0, missing=0, outliers=0, noise_std=0.1, random_state=0
    )
    X, hit = stream.X.copy(), np.zeros((400, 100), dtype=bool)
    X[:, 7] += 0.6 * rng.standard_normal(400)
    hit[200:, :5] = rng.random((200, 5)) < 0.3
    X[hit] += 3
    tracker = RobustSubspaceTracker(4, forgetting_factor=0.99, center=False).fit(X[:200])
    found = tracker.partial_fit(X[200:]).outlier_mask_
    # 30 deviations of the others, five of the seventh
    assert_array_equal(found[:, :5], hit[200:, :5])
    assert not found[:, 7].any()
    # 200 rows tell a deviation to 5 %; that of the seventh, with its noise, is .61
    assert_allclose(tracker.support_threshold_[7], 6 * 0.61, rtol=0.15)
    assert tracker.support_threshold_[8] < 6 * 0.15


@pytest.mark.parametrize("absorb_after", [40, 80, None])
def test_what_stays_is_learnt_after_as_many_rows_as_are_said(absorb_after):
    X, mask, _ = make_film("still", "stopping", n=300)
    tracker = RobustSubspaceTracker(**OPTIONS, absorb_after=absorb_after).fit(X[:TRAIN])
    found = tracker.partial_fit(X[TRAIN:]).outlier_mask_
    stays = mask[200]
    share = found[:, stays].mean(axis=1)
    if absorb_after is None:
        assert share[20:].min() > 0.9
        return
    # counted by batches of 40, from the first in which it fills most of a column
    assert share[20:absorb_after].min() > 0.9
    assert share[absorb_after + 80 :].max() < 0.05


def test_frames_one_by_one_are_as_all_at_once():
    X, _, _ = make_film("waving", "lingering", n=190)
    whole = RobustSubspaceTracker(**OPTIONS).fit(X[:TRAIN])
    single = RobustSubspaceTracker(**OPTIONS).fit(X[:TRAIN])
    whole.partial_fit(X[TRAIN:])
    masks = [single.partial_fit(x[None]).outlier_mask_ for x in X[TRAIN:]]
    assert_array_equal(np.concatenate(masks)[-10:], whole.outlier_mask_[-10:])
    assert_allclose(single.components_, whole.components_, atol=1e-12)
    assert_allclose(single.mean_, whole.mean_, rtol=1e-12)


@pytest.mark.parametrize("seed", [2, 3, 5, 7])
def test_who_looks_or_copies_changes_no_bit(seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((50, 4)) * [9, 6, 4, 3] @ rng.standard_normal((4, 6))
    X += rng.standard_normal((50, 6))
    X[40:] += 5 * rng.standard_normal(6)
    whole = RobustSubspaceTracker(3, init="svd", batch_size=9).fit(X[:40])
    looked, copied = copy.deepcopy(whole), copy.deepcopy(whole)
    for n, row in enumerate(X[40:], 41):
        assert looked.partial_fit(row[None]).n_samples_ == n
        copied = copy.copy(copied.partial_fit(row[None]))
    whole.partial_fit(X[40:])
    for other in (looked, copied):
        assert_array_equal(other.support_threshold_, whole.support_threshold_)
        assert_array_equal(other.components_, whole.components_)


def test_another_xi_between_two_calls_searches_the_waiting_rows_again():
    X, _, _ = make_film("still", "moving", n=130)
    changed = RobustSubspaceTracker(**OPTIONS).fit(X[:TRAIN]).partial_fit(X[TRAIN : TRAIN + 10])
    changed.set_params(xi=5.0).partial_fit(X[TRAIN + 10 :])
    same = RobustSubspaceTracker(**OPTIONS).fit(X[:TRAIN])
    same.set_params(xi=5.0).partial_fit(X[TRAIN:])
    assert_array_equal(changed._last_search.found.start, same._last_search.found.start)


# ------------------------------------------------------------------------------------- warnings


def test_too_few_components_are_told():
    X, _, _ = make_film("waving", "moving")
    with pytest.warns(UserWarning, match="Raise n_components"):
        RobustSubspaceTracker(**{**OPTIONS, "n_components": 1}).fit(X[:TRAIN])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RobustSubspaceTracker(**OPTIONS).fit(X[:TRAIN])


def test_a_threshold_above_all_outliers_is_told():
    X, _, _ = make_film("still", "moving")
    with pytest.warns(UserWarning, match="lower support_threshold"):
        RobustSubspaceTracker(**OPTIONS, support_threshold=1e3).fit(X[:TRAIN]).partial_fit(
            X[TRAIN:]
        )


def test_a_support_that_leaves_too_little_of_the_rows_is_told():
    X, _, _ = make_film("waving", "moving")
    with pytest.warns(UserWarning, match="raise support_threshold"):
        RobustSubspaceTracker(**OPTIONS, xi=0.0, support_threshold=0.0).fit(X[:TRAIN])


@pytest.mark.parametrize("share", [0.6, 0.8])
def test_a_majority_of_outliers_is_told(share):
    rng = np.random.default_rng(0)
    X = make_subspace_stream(200, 120, 5, delta=0, outliers=0, random_state=0).X.copy()
    hit = rng.random(X.shape) < share
    X[hit] += rng.choice([-1, 1], hit.sum()) * rng.uniform(10, 25, hit.sum())
    with pytest.warns(UserWarning, match="half of the entries are outliers"):
        RobustSubspaceTracker(5).fit(X)


@pytest.mark.parametrize("model", ["piecewise", "walk", "rotation"])
def test_a_subspace_that_changes_is_no_reason_to_warn(model):
    stream = make_subspace_stream(800, 120, 5, model=model, outliers=0, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RobustSubspaceTracker(5).fit(stream.X)


# -------------------------------------------------------------------------------------- attacks


def test_constant_and_dead_columns_take_no_part():
    stream = make_subspace_stream(
        400, 100, 4, delta=0, outliers=0.05, noise_std=0.1, random_state=0
    )
    X = stream.X.copy()
    X[:, 3], X[:, 4], X[:, 5] = 7.0, 0.0, np.nan
    found = RobustSubspaceTracker(5).fit(X).outlier_mask_
    assert not found[:, 3:6].any()
    rest = np.r_[0:3, 6:100]
    true = (stream.outliers & ~stream.missing)[:, rest]
    assert_array_equal(found[:, rest], true)


def test_a_column_of_nothing_but_outliers_does_not_move_the_others():
    stream = make_subspace_stream(
        400, 100, 4, delta=0, outliers=0.05, noise_std=0.1, random_state=0
    )
    X, true = stream.X.copy(), stream.outliers & ~stream.missing
    X[200:, 3] += 50 * np.random.default_rng(0).choice([-1, 1], 200)
    true[200:, 3] = ~stream.missing[200:, 3]
    assert_array_equal(RobustSubspaceTracker(4).fit(X).outlier_mask_, true)


# ------------------------------------------------------------------------ alternating projections


@pytest.mark.parametrize("center", [False, True])
def test_new_rows_are_separated_by_alternating_projections(center):
    stream = make_subspace_stream(400, 150, 5, delta=0, outliers=0.07, random_state=0)
    model = AlternatingProjections(5, center=center).fit(stream.X[:250])
    low_rank, sparse = model.decompose(stream.X)
    true = stream.outliers & ~stream.missing
    assert_array_equal(sparse != 0, true)
    assert_array_equal(sparse[:250] != 0, model.sparse_ != 0)
    kept = ~true & ~stream.missing
    assert_array_equal(low_rank[kept], stream.X[kept])
    seen = ~stream.missing
    assert_allclose((low_rank + sparse)[seen], stream.X[seen], rtol=0, atol=1e-13)
    # where entries are lost it is the fit: the basis is as exact as the separation, a share of
    # the rows with their outliers, which are some 30 times as large as those without
    missed = np.linalg.norm((low_rank - stream.low_rank)[~kept])
    assert missed <= 30 * 2 * model.error_ * np.linalg.norm(stream.low_rank)


def test_separated_rows_stand_for_themselves_and_change_nothing():
    stream = make_subspace_stream(300, 100, 4, delta=0, outliers=0.07, random_state=0)
    model = AlternatingProjections(4).fit(stream.X[:200])
    X, before = stream.X.copy(), dict(vars(model))
    low_rank, sparse = model.decompose(X)
    assert_array_equal(X, stream.X)
    assert vars(model) == before
    for i in (0, 150, 299):
        one, rest = model.decompose(X[i : i + 1])
        assert_allclose(one[0], low_rank[i], atol=1e-11)
        assert_allclose(rest[0], sparse[i], atol=1e-11)
