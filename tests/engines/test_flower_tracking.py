"""`FederatedSubspaceTracker` at sites with missing entries: equal to one process."""

import os
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")

from test_flower import grid_of, without
from test_hostile_server import Site, assert_refused
from test_hostile_sites import arrays, spoiling

from fedpca_sklearn import (
    FederatedSubspaceTracker,
    GaussianChannel,
    make_subspace_stream,
    subspace_distance,
)
from fedpca_sklearn.engines._site_policy import RefusedError
from fedpca_sklearn.engines._tracked_rows import Cleaning, Model
from fedpca_sklearn.engines.flower import NoBatchError, SiteRows, fit_sites, partial_fit_sites
from fedpca_sklearn.rounds._outlier_sums import Limits

SIZE, NAMES = 20, ("east", "north", "west")
STREAM = make_subspace_stream(
    180, 12, 2, delta=0, missing=0.1, noise_std=0.05, outliers=0.02, random_state=1
)
BLOCKS = np.split(STREAM.X, 9)  # the blocks of the sites in turn, three for each batch
PARTS = {site: np.concatenate(BLOCKS[i::3]) for i, site in enumerate(NAMES)}
LABELS = np.repeat([NAMES[i % 3] for i in range(9)], SIZE)
OPTIONS = {"batch_size": SIZE, "random_state": 0, "n_rounds": 4, "init_rounds": 6}
OPTIONS |= {"support_threshold": 0.5}
TRACKERS = [
    FederatedSubspaceTracker(2, **OPTIONS, robust=False),
    FederatedSubspaceTracker(2, **OPTIONS),
    FederatedSubspaceTracker(
        2, **OPTIONS, center=False, forgetting_factor=0.0, fill="subspace", n_iter=2
    ),
    FederatedSubspaceTracker(
        2, **OPTIONS, init="altproj", init_size=SIZE, detect_changes=True, n_updates=2
    ),
]
TRACKERS.append(clone(TRACKERS[1]).set_params(support_threshold="auto"))
IDS = ["missing", "robust", "paper", "changes", "auto"]


def in_one_process(estimator, n_sites=3):
    size = {"batch_size": n_sites * SIZE, "init_size": n_sites * SIZE}
    return clone(estimator).set_params(**size)


def assert_same_tracker(fitted, expected):
    assert subspace_distance(fitted.components_, expected.components_) < 1e-8
    np.testing.assert_allclose(fitted.explained_variance_, expected.explained_variance_, rtol=1e-7)
    np.testing.assert_allclose(fitted.mean_, expected.mean_, atol=1e-8)
    np.testing.assert_allclose(fitted.noise_variance_, expected.noise_variance_, rtol=1e-6)
    assert fitted.n_samples_ == expected.n_samples_


@pytest.mark.parametrize("estimator", TRACKERS, ids=IDS)
def test_sites_give_what_clients_in_one_process_give(estimator):
    fitted = fit_sites(grid_of(estimator, PARTS), estimator, wait=0)
    expected = in_one_process(estimator).fit(STREAM.X, clients=LABELS)
    assert_same_tracker(fitted, expected)
    assert type(fitted) is FederatedSubspaceTracker
    assert fitted.clients_ == list(NAMES)
    assert fitted.n_batches_ == 3
    assert fitted.communication_ == expected.communication_
    if estimator.support_threshold == "auto":
        expected_limits = expected.support_threshold_
        np.testing.assert_allclose(fitted.support_threshold_, expected_limits, rtol=1e-9)
    np.testing.assert_allclose(
        fitted.transform(STREAM.X[-40:]), expected.transform(STREAM.X[-40:]), atol=1e-6
    )


def test_rows_of_low_rank_about_a_mean_far_from_zero():
    rng = np.random.default_rng(0)
    L = rng.standard_normal((720, 2)) @ rng.standard_normal((2, 8)) + 100 * (1 + rng.random(8))
    X = np.where(rng.random(L.shape) < 0.1, np.nan, L)
    estimator = clone(TRACKERS[0]).set_params(n_rounds=3)
    parts = {site: X[i::3] for i, site in enumerate(NAMES)}
    fitted = fit_sites(grid_of(estimator, parts), estimator, wait=0)
    truth = np.linalg.svd(L - L.mean(axis=0), full_matrices=False)[2][:2]
    assert subspace_distance(fitted.components_, truth) < 1e-8
    assert np.abs(fitted.impute(X) - L).max() < 1e-8


# -------------------------------------------------------------------- batch by batch


def test_a_loop_of_partial_fit():
    estimator = clone(TRACKERS[0]).set_params(store_subspaces=True)
    streams = {site: np.split(rows, [7, 33]) for site, rows in PARTS.items()}  # cut anew
    grid, fitted = grid_of(estimator, streams), estimator
    expected = in_one_process(estimator)
    for number in range(3):
        fitted = partial_fit_sites(grid, fitted, wait=0)
        rows = slice(60 * number, 60 * number + 60)
        expected.partial_fit(STREAM.X[rows], clients=LABELS[rows])
        assert_same_tracker(fitted, expected)
        assert len(fitted.subspaces_) == number + 1
    with pytest.raises(NoBatchError, match="No site has batch 3"):
        partial_fit_sites(grid, fitted, wait=0)


def test_rows_that_fill_no_batch_wait_and_sites_end():
    estimator = TRACKERS[0]
    parts = PARTS | {"north": PARTS["north"][:35]}
    fitted = fit_sites(grid_of(estimator, parts), estimator, wait=0)
    assert fitted.n_samples_ == 60 + 20 + 60
    assert fitted.clients_ == list(NAMES)
    tracker = in_one_process(estimator)
    tracker.communication_ = fitted.communication_
    state = tracker._start(12)
    for number, sites in enumerate((NAMES, ("east", "west"), ("east", "west"))):
        blocks = [parts[site][SIZE * number : SIZE * (number + 1)] for site in sites]
        state = replace(state, owners=np.repeat(np.array(sites, dtype=object), SIZE))
        state = tracker._next_state(state, np.concatenate(blocks))
    assert subspace_distance(fitted.components_, state.basis) < 1e-8
    np.testing.assert_allclose(fitted.mean_, state.mean, atol=1e-10)
    with pytest.warns(UserWarning, match="fewer rows than a batch has"):
        fit_sites(grid_of(estimator, PARTS | {"north": BLOCKS[1][:19]}), estimator, wait=0)


def test_a_site_that_is_lost_when_a_batch_begins():
    estimator = TRACKERS[0]
    grid = grid_of(estimator, PARTS, without("west", "batch", "timeout"))
    with pytest.warns(UserWarning, match=r"Fitted without site '(west|node 3)'"):
        fitted = fit_sites(grid, estimator, wait=0)
    there = LABELS != "west"
    expected = in_one_process(estimator, 2).fit(STREAM.X[there], clients=LABELS[there])
    assert_same_tracker(fitted, expected)


@pytest.mark.parametrize(
    ("which", "kind"),
    [
        *(("robust", kind) for kind in ("observed", "low_rank", "filled", "misfits")),
        ("changes", "times_scatter"),
        *(("auto", kind) for kind in ("sizes", "filled", "moments")),
    ],
)
def test_a_site_that_is_lost_in_a_batch(which, kind):
    """The others are given the same thresholds and models again, and their rows alone count."""
    estimator = TRACKERS[IDS.index(which)]
    grid = grid_of(estimator, PARTS, without("west", kind, "timeout"))
    with pytest.warns(UserWarning, match="Fitted without site '(west|node 3)'"):
        fitted = fit_sites(grid, estimator, wait=0)
    assert fitted.n_samples_ == 120
    assert len(fitted.missing_sites_) == 1
    assert subspace_distance(fitted.components_, STREAM.subspace_at(0)) < 0.04


def test_names_of_columns():
    pd = pytest.importorskip("pandas")
    names = [f"sensor {i}" for i in range(12)]
    parts = {site: pd.DataFrame(rows[:20], columns=names) for site, rows in PARTS.items()}
    fitted = fit_sites(grid_of(TRACKERS[0], parts), TRACKERS[0], wait=0)
    assert fitted.feature_names_in_.tolist() == names
    assert fitted.subspace_.feature_names == tuple(names)


def test_a_fit_without_any_batch():
    over = arrays(count=None, columns=None, over=np.ones(1))

    def spoil(site, message, reply):
        return over(message, reply)

    with pytest.raises(NoBatchError, match="No site has any batch"):
        fit_sites(grid_of(TRACKERS[0], PARTS, spoil), TRACKERS[0], wait=0)


def test_weights_and_channels_are_refused():
    with pytest.raises(ValueError, match="channel must be None over a real network"):
        grid_of(FederatedSubspaceTracker(2, channel=GaussianChannel()), PARTS)
    site = Site(TRACKERS[0], SiteRows(PARTS["east"], np.ones(60)))
    assert_refused(site, "batch", 0, why="the estimator takes no sample_weight")


# -------------------------------------------------------------------- a hostile server

ROWS = PARTS["east"]
V = np.linalg.qr(np.random.default_rng(0).standard_normal((12, 2)))[0].T.copy()
MODEL = np.vstack([np.zeros(12), V])
RIDGE = np.array([1.0, 0.1, 0.1])
NONE = np.zeros(13)
GOOD = (MODEL, MODEL, RIDGE, NONE)


def asked(estimator=TRACKERS[0], rows=ROWS):
    site = Site(estimator, rows)
    assert site.answers("batch", 0)
    return site


def test_models_that_are_none():
    shape = "a model must be a mean"
    models = (
        (2 * MODEL, RIDGE, "orthonormal rows"),
        (MODEL[:, :11], RIDGE, "the mean must have shape (12,), got (11,)"),
        (np.vstack([MODEL, V[:1]]), np.zeros(4), "k <= 2"),
        (MODEL[0], RIDGE, shape),
        (np.zeros((20, 12)), np.zeros(20), "k <= 2"),
    )
    ridges = ((MODEL, RIDGE[:2], shape), (MODEL, -RIDGE, "a ridge must not be negative"))
    for clean, model, ridge, why in (
        *((clean, MODEL, RIDGE, why) for clean, _, why in models),
        *((MODEL, *each) for each in models + ridges),
    ):
        for kind, more in (("filled", ()), ("misfits", ()), ("times_scatter", (V, V[0] * 0))):
            assert_refused(asked(), kind, 0, clean, model, ridge, NONE, *more, why=why)
    paper = asked(TRACKERS[2])
    assert_refused(paper, "filled", 0, MODEL + 1, *GOOD[1:], why="zero with center=False")


def test_thresholds_that_are_none():
    """Thresholds of the server's choice would be holes of its choice."""
    auto, ones = TRACKERS[-1], np.ones(13)
    for limits, why in {
        "too few": (NONE[:-1], "thresholds must be 0, 1 or 2 and 12 numbers"),
        "negative": (-ones, "thresholds must be 0, 1 or 2"),
        "of another kind": (3 * ones, "thresholds must be 0, 1 or 2"),
        "none": (NONE, "thresholds are needed"),
    }.values():
        assert_refused(asked(auto), "filled", 0, *GOOD[:3], limits, why=why)
    for tracker in TRACKERS[:2]:
        why = "those of the site's own estimator"
        assert_refused(asked(tracker), "filled", 0, *GOOD[:3], ones, why=why)
        assert_refused(asked(tracker), "sizes", 0, MODEL, NONE, why="finds no thresholds")
    site = asked(auto)
    for limits in (NONE, ones):
        assert site.answers("sizes", 0, MODEL, limits)
    assert_refused(site, "sizes", 0, MODEL, ones, why="more than 2 questions of the kind 'sizes'")
    assert site.answers("filled", 0, *GOOD[:3], ones)
    why = "a batch has one set of thresholds in all its beginnings, got another"
    assert_refused(site, "misfits", 0, *GOOD[:3], 2 * ones, why=why)
    assert_refused(site, "filled", 0, *models_of_zeros(), why="one model by which outliers are")


def models_of_zeros():
    empty = MODEL[:1] + 1.0
    return empty, empty, np.zeros(1), NONE


def test_sizes_of_residuals_that_few_rows_have():
    rows = ROWS.copy()
    rows[:11, 0] = np.nan
    message = asked(TRACKERS[-1], rows).ask("sizes", 0, MODEL, NONE)[1]["message"]
    assert message[0] == message[12] == 0
    assert message[1:12].all()


def test_questions_about_a_batch_are_counted():
    site = asked()
    for _ in range(4):
        assert site.answers("filled", 0, *GOOD)
    assert_refused(site, "filled", 0, *GOOD, why="more than 4 questions of the kind 'filled'")
    other = np.vstack([np.ones(12), V])
    assert_refused(site, "misfits", 0, other, *GOOD[1:], why="one model by which outliers are")
    for kind, more in (("moments", ()), ("variances", (V, MODEL[0]))):
        for _ in range(2):
            assert site.answers(kind, 0, *GOOD, *more)
        assert_refused(site, kind, 0, *GOOD, *more, why="more than 2 questions")
    assert_refused(site, "moments", 1, *GOOD, why="batch 1 is out of turn")


def test_a_basis_does_not_single_out_rows_with_the_same_holes():
    """Rows count whose entries determine their coordinates: of an axis, those that have it."""
    rows = ROWS.copy()
    rows[:, 0] = np.nan
    rows[3, 0] = 1.0
    alone = np.vstack([np.zeros(12), np.eye(12)[:1]])
    models = (alone, alone, np.zeros(2), NONE)
    site = asked(rows=rows)
    assert site.ask("filled", 0, *models)[1]["count"] == 0
    assert not site.ask("moments", 0, *models)[1]["message"].any()
    observed = asked(rows=rows).ask("observed", 0)[1]["message"]
    assert observed[0] == observed[12] == 0  # a feature that one row has


# -------------------------------------------------------------------- a hostile site

ATTACKS = {
    "half a row": ("batch", arrays(count=[2.5]), "expected a whole number"),
    "other columns": ("batch", arrays(columns=[11.0]), "its number of features is 11"),
    "more rows than it has": ("filled", arrays(count=[1e9]), "expected at most 20 rows"),
    "moments of others": ("moments", arrays(message=np.ones(9)), "a sum of 8 columns"),
    "moments of more rows": ("moments", arrays(message=np.full(13, 99.0)), "at most 20 rows"),
    "a large product": ("times_scatter", arrays(message=np.full((2, 12), 1e300)), "too large"),
    "misfits of NaN": ("misfits", arrays(message=np.full(14, np.nan)), "NaN or infinity"),
}


@pytest.mark.parametrize("attack", list(ATTACKS))
def test_what_a_site_sends_of_a_batch_leaves_it_out(attack):
    kind, change, reason = ATTACKS[attack]
    estimator = TRACKERS[1]
    parts = {site: rows[:40] for site, rows in PARTS.items()}
    grid = grid_of(estimator, parts, spoiling(change, kind=kind))
    with pytest.warns(UserWarning, match=f"Fitted without site '(west|node 3)' .*{reason}"):
        fitted = fit_sites(grid, estimator, wait=0)
    rest = {site: parts[site] for site in ("east", "north")}
    expected = fit_sites(grid_of(estimator, rest), estimator, wait=0)
    assert fitted.n_samples_ == expected.n_samples_
    assert subspace_distance(fitted.components_, expected.components_) < 0.03
    if kind == "batch":
        assert_same_tracker(fitted, expected)


def test_no_threshold_travels_as_a_finite_number():
    tracker = FederatedSubspaceTracker(2, random_state=0)
    model = Model(np.zeros(4), np.eye(2, 4))
    sent = Cleaning(model, Limits(True, np.array([1.0, np.inf, 2.0, 0.0]))).arrays
    assert all(np.isfinite(array).all() for array in sent)
    arrived = Cleaning.asked(tracker, sent, 4)
    np.testing.assert_array_equal(arrived.limits.columns, [1.0, np.inf, 2.0, 0.0])


@pytest.mark.parametrize("wrong", [-2.0, -0.5, -1e-300])
def test_a_server_sends_no_other_thresholds_below_zero(wrong):
    sent = np.vstack([np.zeros(4), np.eye(2, 4)]), np.array([1.0, 1.0, wrong, 2.0, 0.0])
    with pytest.raises(RefusedError, match="numbers of at least 0, or -1"):
        Cleaning.asked(FederatedSubspaceTracker(2), sent, 4)
