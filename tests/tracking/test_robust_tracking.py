"""The robust tracker on streams and films whose outliers are known.

Objects of 40 grey levels are 16 deviations of the noise (2.5) from what is behind them, so that
their pixels are told apart but where background of that contrast is not in the subspace. In streams
without noise supports are compared exactly: outliers of 10 to 25 are far from what is left.
"""

import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from helpers import PAPER, f1_score, fitted_attributes
from numpy.testing import assert_allclose, assert_array_equal
from tracker_helpers import constant_stream, planted

from fedpca_sklearn import (
    ChangeDetection,
    FirstSubspace,
    OutlierSupport,
    RobustSubspaceTracker,
    SubspaceTracker,
    make_subspace_stream,
    subspace_distance,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks._films import make_film

nan, inf = np.nan, np.inf


def tracker(k=5, **options):
    return RobustSubspaceTracker(k, **{**PAPER, **options})


# ------------------------------------------------------------------------------ streams


@pytest.mark.parametrize(
    ("options", "least"),
    [
        ({"model": "piecewise", "outliers": 0.05}, 1.0),
        ({"outliers": 0.05}, 0.998),
        ({"model": "rotation", "outliers": 0.05}, 0.998),
    ],
    ids=["piecewise", "walk", "rotation"],
)
def test_outliers_of_the_streams_of_the_paper_are_found(options, least):
    stream = make_subspace_stream(900, 300, 20, random_state=0, **options)
    model = tracker(20).fit(stream.X)
    assert f1_score(model.outlier_mask_, stream.outliers & ~stream.missing) >= least
    if least == 1:
        assert subspace_distance(model.components_, stream.subspace_at(899)) < 1e-4


STARTS = {
    "auto": {},
    "few rows": {"init": FirstSubspace(n_rows=10)},
    "137 rows": {"init": FirstSubspace(n_rows=137)},
    "svd": {"init": "svd"},
    "given": {"init": "V"},
    "a part": {"init": "part"},
    "paper": {"support_threshold": OutlierSupport(5.0, 10 / 15)},
    "far": {"center": True},
}


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(
    ("d", "seed", "pattern", "missing"), [(200, 0, "bernoulli", 0.0), (100, 2, "moving", 0.1)]
)
def test_every_outlier_is_found_however_the_tracker_starts(start, d, seed, pattern, missing):
    stream = constant_stream(
        600, d, seed=seed, outlier_pattern=pattern, missing=missing, outliers=0.07
    )
    options, V, rng = dict(STARTS[start]), stream.V, np.random.default_rng(0)
    if options.get("init") in ("V", "part"):
        options["init"] = rng.standard_normal((5 if options["init"] == "V" else 2, 5)) @ V
    offset = 1e6 * rng.standard_normal(d) * (start == "far")
    model = tracker(store_subspaces=True, **options).fit(stream.X + offset)
    # entries that the second subspace, known to 1e-4, fails to explain
    assert np.mean(model.outlier_mask_[300:] != stream.visible[300:]) < 1e-4
    # the error falls by a factor of the share that is lost with each batch
    assert subspace_distance(model.components_, V) < 1e-6
    first = getattr(options.get("init"), "n_rows", 40 if "init" in options else 100)
    assert len(model.subspaces_) == 1 + (600 - first) // 40
    if start == "svd":  # nothing is removed from the first batch
        filled = np.where(stream.missing, 0, stream.X)[:40]
        assert not model.outlier_mask_[:40].any()
        U = np.linalg.svd(filled)[2][:5]
        assert subspace_distance(model.subspaces_[0], U) < 1e-10
    elif start in ("given", "paper"):
        assert_array_equal(model.outlier_mask_, stream.visible)
    if start == "paper":
        assert_array_equal(model.support_threshold_, 5.0)


def test_the_first_batch_of_auto_has_five_rows_a_component_and_at_least_100():
    for k, expected in ((5, 100), (30, 150)):
        stream = constant_stream(expected, 80, k, 0.0)
        model = tracker(k, store_subspaces=True)
        assert model.partial_fit(stream.X[:-1]).subspaces_ == []
        assert len(model.partial_fit(stream.X[-1:]).subspaces_) == 1
    stream = constant_stream(300, 300)
    start = FirstSubspace(n_rows=1000)  # that never come: as exact as the separation,
    model = tracker(init=start).fit(stream.X)
    # 1e-4 of the rows with their outliers, sqrt(0.05 320 / (5 / 300)) = 31 times as large
    assert subspace_distance(model.components_, stream.V) < 2e-4 * 31


@pytest.mark.parametrize(("noise", "outliers"), [(0.0, 0.0), (0.0, 0.05), (0.2, 0.05)])
def test_noise_is_no_outlier(noise, outliers):
    stream = constant_stream(600, 200, outliers=outliers, noise_std=noise)
    model = tracker().fit(stream.X)
    # The threshold is six deviations of all of a batch at least, known to 2 %: an entry in 2e8
    # is above, of 108000 here.
    if noise or not outliers:
        assert_array_equal(model.outlier_mask_, stream.visible)
    assert_allclose(model.transform(stream.X), model.transform(stream.clean), atol=1e-12)
    full, clean = model.impute(stream.X), model.impute(stream.clean)
    assert_array_equal(full[stream.missing], clean[stream.missing])


@pytest.mark.parametrize(
    ("options", "mean"),
    [
        ({"forgetting_factor": 0.98, "n_iter": 3}, 0.0),
        ({"detect_changes": ChangeDetection(3), "batch_size": 25}, 0.0),
        ({"center": True}, 1e6),
    ],
    ids=str,
)
def test_it_is_the_tracker_that_is_told_the_outliers(options, mean):
    center = "center" in options
    stream = constant_stream(1500 if center else 600, 120)
    options = {**PAPER, "init": stream.V, "store_subspaces": True, **options}
    robust = RobustSubspaceTracker(5, **options).fit(stream.X + mean)
    told = SubspaceTracker(5, **options).fit(stream.clean + mean)
    assert_array_equal(robust.outlier_mask_, stream.visible)
    for V, W in list(zip(robust.subspaces_, told.subspaces_, strict=True))[20 * center :]:
        # the means of the first batches differ, the median here
        assert subspace_distance(V, W) < (1e-6 if center else 1e-10)
    for name in ("mean_", "singular_values_", "noise_variance_", "explained_variance_"):
        found, want = getattr(robust, name), getattr(told, name)
        assert_allclose(found, want, rtol=1e-9, atol=1e-9 if center else 1e-12)


# ------------------------------------------------------------------------------ parts of a stream


def test_the_mask_is_that_of_the_rows_of_the_last_call():
    stream = constant_stream(700)
    model, whole, before = tracker().fit(stream.X[:500]), tracker().fit(stream.X), {}
    for x, visible in zip(stream.X[500:530], stream.visible[500:530], strict=True):
        mask = model.partial_fit(x[None]).outlier_mask_
        assert_array_equal(mask, [visible])
        assert mask is not before.get("outlier_mask_")
        before = fitted_attributes(model)
    with pytest.raises(ValueError, match="infinity"):
        model.partial_fit(np.full((3, 120), inf))
    assert model.outlier_mask_ is before["outlier_mask_"]
    assert model.support_threshold_ is before["support_threshold_"]
    model.partial_fit(iter([stream.X[530:532], stream.X[532:]]))
    assert_array_equal(model.outlier_mask_, stream.visible[532:])
    assert_array_equal(model.outlier_mask_, whole.outlier_mask_[532:])
    assert_array_equal(model.components_, whole.components_)
    assert_array_equal(model.support_threshold_, whole.support_threshold_)


# ------------------------------------------------------------------------------ new rows


@pytest.fixture(scope="module")
def fitted():
    stream = constant_stream(700, 120, outliers=0.07)
    stream.model = tracker().fit(stream.X[:500])
    return stream


def test_new_rows_are_decomposed_and_outliers_move_nothing(fitted):
    model, X, before = fitted.model, fitted.X.copy(), dict(vars(fitted.model))
    low_rank, sparse = model.decompose(X)
    assert_array_equal(sparse != 0, fitted.visible)
    assert_allclose(low_rank, fitted.low_rank, atol=1e-7)
    kept = ~fitted.outliers & ~fitted.missing
    assert_array_equal(low_rank[kept], X[kept])
    # the sum is rounded: EPS of outliers of 25 and of what they hide
    seen = ~fitted.missing
    assert_allclose((low_rank + sparse)[seen], X[seen], rtol=0, atol=1e-14)
    for part, want in zip(model.decompose(np.full((2, 120), nan)), (model.mean_, 0), strict=True):
        assert_array_equal(part, np.zeros((2, 120)) + want)
    # coordinates, imputed entries and score are those of rows without outliers or holes
    Z, full = model.transform(X), model.impute(X)
    assert_allclose(Z, model.transform(fitted.clean), atol=1e-13)
    assert_allclose(Z, model.transform(fitted.low_rank), atol=1e-7)
    assert_array_equal(full[seen], X[seen])
    assert_allclose(full[fitted.missing], fitted.low_rank[fitted.missing], atol=1e-7)
    assert_allclose(model.score(X), model.score(fitted.clean), rtol=0, atol=1e-12)
    assert model.score(X) > 1 - 1e-9
    assert SubspaceTracker(5, **PAPER).fit(fitted.clean).score(X) < 0.5
    assert_array_equal(X, fitted.X)
    assert vars(model) == before


# ------------------------------------------------------------------------------ limits


def test_outliers_are_what_fills_less_than_half_of_a_column_above_the_threshold():
    stream, quiet = constant_stream(600, 200, outliers=0.02), constant_stream(600, 200, 5, 0.0)
    X, hit = stream.X.copy(), stream.visible.copy()
    often = np.arange(600) % 40 < 15
    X[often, 7] += np.where(np.arange(600) % 3, 100, -100)[often]
    hit[often, 7] = ~stream.missing[often, 7]
    model = tracker().fit(X)
    assert_array_equal(model.outlier_mask_[100:], hit[100:])
    assert subspace_distance(model.components_, stream.V) < 1e-5
    X = quiet.X.copy()  # what is always in a column is a direction
    X[:, 7] += 20 * np.random.default_rng(0).choice([-1, 1], 600)
    model = tracker(6).fit(X)
    assert not model.outlier_mask_.any()
    axis = np.linalg.qr(np.concatenate([quiet.V, np.eye(200)[[7]]]).T)[0].T
    assert subspace_distance(model.components_, axis) < 1e-8
    X = quiet.X.copy()
    X[150, 3], X[150, 4] = quiet.low_rank[150, 3] + 2, quiet.low_rank[150, 4] + 20
    model = tracker(init=quiet.V, support_threshold=OutlierSupport(5.0, 0.0)).fit(X)
    assert_array_equal(np.argwhere(model.outlier_mask_), [[150, 4]])
    one = np.random.default_rng(0).standard_normal((300, 1))  # nor in the only column
    assert not tracker(1).fit(one).outlier_mask_.any()


def test_dead_loud_and_zero_columns_do_not_move_the_others():
    stream = constant_stream(400, 100, 4, 0.05, noise_std=0.1)
    true, X = stream.visible.copy(), stream.X.copy()
    X[:, 3], X[:, 4], X[:, 5] = 7.0, 0.0, nan
    others = np.delete(np.arange(100), [3, 4, 5])
    for zeros, most in ((0, 0), (60, 1e-4)):  # the largest noise may be above a threshold
        found = RobustSubspaceTracker(5).fit(np.c_[X, np.zeros((400, zeros))]).outlier_mask_
        assert not np.delete(found, others, axis=1).any()
        assert found[:, :100][true][~np.isin(np.nonzero(true)[1], [3, 4, 5])].all()
        assert np.mean(found[:, others] != true[:, others]) <= most
    X = stream.X.copy()
    X[200:, 3] += 50 * np.random.default_rng(0).choice([-1, 1], 200)  # nothing but outliers
    true[200:, 3] = ~stream.missing[200:, 3]
    assert_array_equal(RobustSubspaceTracker(4).fit(X).outlier_mask_, true)


# ------------------------------------------------------------------------------ films


TRAIN = 100  # frames at first that have no object
OPTIONS = {"n_components": 6, "center": True, "forgetting_factor": 0.99}


def small_film(kind, motion, n=200):
    """Of one object in few pixels."""
    return make_film(kind, motion, n=n, shape=(30, 40), sizes=(0.3,))


def overlap(found, true):
    return (found & true).sum() / (found | true).sum()


NEAR_A_HALF = pytest.mark.filterwarnings("ignore:More than a third of the first")


@NEAR_A_HALF
@pytest.mark.parametrize(
    ("kind", "options", "share"),
    [
        ("still", {}, 0.95),
        ("still", {"contrast": 20.0}, 0.95),
        ("still", {"contrast": 35.0, "noise": 6.0}, 0.95),
        # leaves that wave, of which three components are too few of five
        ("waving", {"seed": 2}, 1.0),
        ("drift", {"shape": (30, 40), "sizes": (0.2,)}, 0.9),  # but for entries of few rows
    ],
)
def test_an_object_that_lingers_is_found_as_by_the_best_of_thresholds(kind, options, share):
    """That no film tells, from the median of frames or the scene itself in a light that changes."""
    film = make_film(kind, "lingering", **options)
    X, true = film.X[TRAIN:], film.mask[TRAIN:]
    behind = np.median(X, axis=0)
    if kind == "drift":  # the same without an object
        behind = make_film(kind, "lingering", **options | {"sizes": (), "noise": 0.0}).X[TRAIN:]
    rest = np.abs(X - behind)
    best = max(overlap(rest > level, true) for level in range(6, 50, 2))
    assert overlap(RobustSubspaceTracker(3).fit(X).decompose(X)[1] != 0, true) >= share * best


@pytest.mark.parametrize("kind", ["still", "drift"])
def test_it_is_told_where_features_are_outlying_nearly_as_often_as_not(kind):
    film = make_film(kind, "lingering", seed=3)
    share = film.mask[TRAIN:][:100].mean(axis=0)
    assert 0.02 < np.mean(share > 0.4) < 0.1
    with pytest.warns(UserWarning, match="third of the first 100 rows are outliers in .* features"):
        RobustSubspaceTracker(3).fit(film.X[TRAIN:])
    RobustSubspaceTracker(8).fit(film.X[:TRAIN])  # clean frames, components too many


def share_of_what_stays(absorb_after, away=slice(0)):
    """Found of it in each row; in rows ``away`` it is not there."""
    film = small_film("still", "stopping", n=300)
    X = film.X.copy()
    X[away] = X[:TRAIN][: len(X[away])]
    support = OutlierSupport(absorb_after=absorb_after)
    model = RobustSubspaceTracker(**OPTIONS, support_threshold=support).fit(X[:TRAIN])
    return model.partial_fit(X[TRAIN:]).outlier_mask_[:, film.mask[200]].mean(axis=1)


@pytest.mark.parametrize("absorb_after", [40, 80, None])
def test_what_stays_is_learnt_after_as_many_rows_as_are_said(absorb_after):
    share = share_of_what_stays(absorb_after)
    # counted by batches of 40, from the first in which it fills most of a column
    assert share[25:absorb_after].min() > 0.9  # from where it rests
    if absorb_after is not None:
        assert share[absorb_after + 80 :].max() < 0.05


def test_what_has_left_and_comes_back_is_counted_anew():
    share = share_of_what_stays(80, slice(TRAIN + 80, TRAIN + 120))  # the third of five batches
    assert share[80:120].max() < 0.05
    assert share[120:].min() > 0.9


def test_the_level_of_what_stays_is_learnt_and_of_a_bursting_column_nothing():
    X, _ = planted(1000)
    stays = X.copy()
    stays[400:, 4] += 20
    support = OutlierSupport(absorb_after=100)
    model = RobustSubspaceTracker(3, support_threshold=support).fit(stays)
    assert not model.decompose(stays[-50:])[1].any()
    burst = np.arange(500, 700)
    X[burst, 4] += np.where(burst % 5, 50 * (-1) ** burst, 0)  # four of five
    others = X.copy()
    others[burst[::5], 4] += 0.2
    first, second = (RobustSubspaceTracker(3, batch_size=50).fit(rows) for rows in (X, others))
    assert_array_equal(first.outlier_mask_, second.outlier_mask_)
    assert_array_equal(first.components_, second.components_)


# ------------------------------------------------------------------------------ warnings


def majority(share, zeros=0):
    rng = np.random.default_rng(0)
    X = constant_stream(200, 120, outliers=0).X.copy()
    hit = rng.random(X.shape) < share
    X[hit] += rng.choice([-1, 1], hit.sum()) * rng.uniform(10, 25, hit.sum())
    return np.c_[X, np.zeros((200, zeros))]


NOISY = np.random.default_rng(3).standard_normal((400, 20)) / np.arange(1, 21)
WAVING, STILL = (small_film(kind, "moving").X for kind in ("waving", "still"))
LOOSE, TIGHT = {"support_threshold": 1e3}, {"support_threshold": OutlierSupport(0.0, 0.0)}
HALF = "half of the entries are outliers"
WARNED = [  # parameters, rows, and words of the warning
    ({**OPTIONS, "n_components": 1}, [WAVING[:TRAIN]], "Raise n_components"),
    ({**OPTIONS, **LOOSE}, [STILL[:TRAIN], STILL[TRAIN:]], "lower support_threshold"),
    ({**OPTIONS, **TIGHT}, [WAVING[:TRAIN]], "raise support_threshold"),
    ({"n_components": 5}, [majority(0.8)], HALF),
    ({"n_components": 5}, [majority(0.6, 500)], HALF),
    ({"n_components": 3}, [NOISY * 1e78], "n_components=3 explains little"),
    ({"n_components": 3}, [NOISY * 1e-82], "n_components=3 explains little"),
]


@pytest.mark.parametrize(("options", "batches", "words"), WARNED, ids=range(len(WARNED)))
def test_what_is_wrong_is_told_in_any_units(options, batches, words):
    with pytest.warns(UserWarning, match=words):
        RobustSubspaceTracker(**options).fit(iter(batches))


def test_a_subspace_that_changes_or_frames_without_objects_are_no_reason_to_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not RobustSubspaceTracker(**OPTIONS).fit(WAVING[:TRAIN]).outlier_mask_.any()
        warnings.filterwarnings("ignore", "the subspace of the rows has changed")
        for model in ("piecewise", "walk", "rotation"):
            stream = make_subspace_stream(500, 100, 5, model=model, outliers=0, random_state=0)
            RobustSubspaceTracker(5).fit(stream.X)


@pytest.mark.parametrize("shape", [(60, 10), (60, 25), (100, 50)])
@pytest.mark.parametrize("slope", [0.7, 1.0])
def test_columns_that_vary_the_most_are_no_outliers(shape, slope):
    """Normal rows, of each column by itself: numpy's SVD has the least error."""
    for seed in range(3):
        X = np.random.default_rng(seed).standard_normal(shape) / np.arange(1, shape[1] + 1) ** slope
        for k in (2, 4):
            tracker = RobustSubspaceTracker(k).fit(X)
            rest = X - tracker.mean_
            rest -= rest @ tracker.components_.T @ tracker.components_
            least = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)[k:]
            assert np.sum(rest**2) < 1.3 * np.sum(least**2)
