"""Sites over Flower whose rows come in batches: questions out of turn, and hostile answers."""

import os

import numpy as np
import pytest

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")

from test_flower import assert_same, grid_of
from test_hostile_server import Site, assert_refused
from test_hostile_sites import arrays, as_bytes, sending, spoiling

from fedpca_sklearn import (
    DistributedPCA,
    FederatedPCA,
    FederatedPowerPCA,
    OnlineDistributedPCA,
    Subspace,
    TruncatedDistributedPCA,
)
from fedpca_sklearn.engines.flower import SiteRows, fit_sites, partial_fit_sites

RNG = np.random.default_rng(11)
ROWS = RNG.standard_normal((90, 6)) * np.arange(1, 7) + 2
BATCHES = np.split(ROWS, [30, 60])
STEPS = OnlineDistributedPCA(2)
BASIS = np.linalg.qr(RNG.standard_normal((6, 3)))[0].T.copy()
OUT_OF_TURN = [
    (FederatedPCA(2), "summary_of_batch"),
    (DistributedPCA(2), "factor_of_batch"),
    (STEPS, "space"),
]
BY_KIND = {"ids": [kind for _, kind in OUT_OF_TURN]}


# -------------------------------------------------------------------- questions


@pytest.mark.parametrize(("estimator", "kind"), OUT_OF_TURN, **BY_KIND)
def test_batches_are_asked_for_in_turn(estimator, kind):
    site = Site(estimator, BATCHES)
    assert site.answers(kind, 0)
    assert_refused(site, kind, 2, why="batch 2 is out of turn, the last one was 0")
    assert site.answers(kind, 1)
    assert_refused(site, kind, 0, why="batch 0 is out of turn, the last one was 1")
    for _ in range(2):
        assert site.answers(kind, 1)
    assert_refused(site, kind, 1, why="a batch begins at most 3 times")
    assert site.answers(kind, 2)
    config, over = site.ask(kind, 3)
    assert list(over) == ["over"]
    assert config["dtype"] == "float64"
    assert Site(estimator, BATCHES).answers(kind, 2)  # a run goes on where another has ended


@pytest.mark.parametrize("number", [-1, 0.5, 2.0**53, [0.0], np.nan])
def test_numbers_of_batches_that_are_none(number):
    why = "argument 0 is NaN" if number is np.nan else "the number of a batch must be a whole num"
    assert_refused(Site(STEPS, BATCHES), "space", number, why=why)


def test_a_fit_of_all_rows_begins_three_times_whatever_is_asked_in_between():
    site = Site(DistributedPCA(2), BATCHES)
    for batch in range(3):
        assert site.answers("factor")
        assert site.answers("factor_of_batch", batch)
    assert_refused(site, "factor", why="a run begins at most 3 times")


def test_a_batch_that_is_too_small_is_told_by_all_rows_and_the_others():
    """What no count of rows in one question prevents; the pages say so."""
    site = Site(FederatedPCA(6), [ROWS[:60], ROWS[60:61]])
    told = [site.ask("summary")[1], site.ask("summary_of_batch", 0)[1]]
    assert_refused(site, "summary_of_batch", 1, why="fewer than min_rows=10 rows")
    whole, first = (Subspace.from_bytes(one["summary"].astype(np.uint8)) for one in told)
    row = whole.n_samples * whole.mean - first.n_samples * first.mean
    np.testing.assert_allclose(row, ROWS[60], rtol=1e-9)


def test_small_batches_and_second_questions():
    assert_refused(Site(STEPS, [ROWS[:9], ROWS[9:]]), "space", 0, why="fewer than min_rows=10")
    site = Site(STEPS, BATCHES)
    assert_refused(site, "moments", 0, BASIS, why="batch 0 is out of turn, the last one was None")
    assert site.answers("space", 0)
    assert_refused(site, "moments", 1, BASIS, why="batch 1 is out of turn")
    for basis, why in (
        (2 * BASIS, "orthonormal rows"),
        (BASIS[:, :5], "shape (k, 6)"),
        (np.eye(7)[:, :6], "k <= 6"),
    ):
        site = Site(STEPS, BATCHES)
        assert site.answers("space", 0)
        assert_refused(site, "moments", 0, basis, why=why)
    site = Site(STEPS, BATCHES)
    assert site.answers("space", 0)
    assert site.answers("moments", 0, BASIS)
    assert_refused(site, "moments", 0, BASIS, why="more than 1 questions of the kind 'moments'")


# -------------------------------------------------------------------- answers

STREAMS = {"east": BATCHES, "north": [b + 1 for b in BATCHES], "west": [2 * b for b in BATCHES]}
WIDE = Subspace.from_rows(ROWS, 6).to_bytes()
SHORT = Subspace.from_rows(ROWS[:, :5], 2).to_bytes()
FLAT = Subspace.from_rows(ROWS, 2, center=False).to_bytes()
ATTACKS = {
    "more directions than asked": (STEPS, "space", arrays(summary=as_bytes(WIDE)), "6 directions"),
    "about the origin": (STEPS, "space", arrays(summary=as_bytes(FLAT)), "its centring is False"),
    "a tall factor": (STEPS, "moments", arrays(factor=np.ones((9, 4))), "a factor of 9 rows"),
    "a wide factor": (STEPS, "moments", arrays(factor=np.ones((2, 7))), "shape"),
    "a large factor": (STEPS, "moments", arrays(factor=np.full((4, 4), 1e200)), "too large"),
    "no step": (STEPS, "moments", sending(error="I give up"), "I give up"),
    "over in the middle": (STEPS, "moments", arrays(factor=None, over=np.ones(1)), "no array"),
    "other columns": (
        FederatedPCA(2),
        "summary_of_batch",
        arrays(summary=as_bytes(SHORT)),
        "its number of features is 5",
    ),
    "half a row": (FederatedPCA(2), "summary_of_batch", arrays(rows=[9.5, 9.0]), "rows="),
    "no rows": (DistributedPCA(2), "factor_of_batch", arrays(rows=[0.0, 9.0]), "count=0.0"),
}


@pytest.mark.parametrize("attack", list(ATTACKS))
def test_what_a_site_sends_of_a_batch_leaves_it_out(attack):
    estimator, kind, change, reason = ATTACKS[attack]
    fitted = partial_fit_sites(grid_of(estimator, STREAMS), estimator, wait=0)
    grid = grid_of(estimator, STREAMS, spoiling(change, kind=kind))
    with pytest.warns(UserWarning, match=f"Fitted without site '(west|node 3)' .*{reason}"):
        after = partial_fit_sites(grid, fitted, wait=0)
    rows = [STREAMS[site][1] for site in ("east", "north")]
    labels = np.repeat(["east", "north"], 30)
    assert_same(after, fitted.partial_fit(np.concatenate(rows), clients=labels))


def test_over_where_all_rows_were_asked_for():
    for estimator, kind in ((DistributedPCA(2), "factor"), (FederatedPCA(2), "summary")):
        change = arrays(
            **dict.fromkeys(("factor", "mean", "mean_rest", "count", "summary")), over=np.ones(1)
        )
        grid = grid_of(estimator, STREAMS, spoiling(change, kind=kind))
        with pytest.warns(UserWarning, match="no array"):
            fitted = fit_sites(grid, estimator, wait=0)
        assert fitted.clients_ == ["east", "north"]


def test_a_truncated_summary_of_something_else():
    estimator = TruncatedDistributedPCA(2)
    for summary in (FLAT, WIDE):
        change = arrays(summary=as_bytes(summary))
        with pytest.warns(UserWarning, match="another summary than of leading components"):
            fitted = fit_sites(
                grid_of(
                    estimator, {s: np.concatenate(b) for s, b in STREAMS.items()}, spoiling(change)
                ),
                estimator,
                wait=0,
            )
        assert fitted.clients_ == ["east", "north"]


def test_weights_of_a_hostile_site():
    estimator = FederatedPowerPCA(2, random_state=0)
    parts = {s: SiteRows(np.concatenate(b), np.ones(90)) for s, b in STREAMS.items()}
    huge = np.r_[np.ones(6), 2.0**60]
    grid = grid_of(estimator, parts, spoiling(arrays(message=huge), kind="moments"))
    with pytest.warns(UserWarning, match="expected a number of rows"):
        assert fit_sites(grid, estimator, wait=0).clients_ == ["east", "north"]
