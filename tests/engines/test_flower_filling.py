"""Rows that sites fill in over Flower: the numbers of one process, and what a liar gets."""

import os

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")

from test_flower import grid_of, without
from test_flower_pairs import ALL, LABELS, PARTS, X
from test_hostile_server import Site, assert_refused
from test_hostile_sites import arrays, spoiling

from fedpca_sklearn import ConditionalFill, FederatedPCA, Subspace
from fedpca_sklearn.engines.flower import (
    SiteRows,
    fit_sites,
    partial_fit_sites,
)

PCA = FederatedPCA(2, missing=ConditionalFill())
# rounds enough for a fixed point
LONG = FederatedPCA(2, missing=ConditionalFill(n_rounds=120))


def assert_equal(fitted, expected):
    for name in ("components_", "explained_variance_", "mean_", "noise_variance_"):
        assert_allclose(getattr(fitted, name), getattr(expected, name), rtol=1e-12, atol=1e-13)
    assert fitted.n_samples_ == expected.n_samples_
    assert fitted.clients_ == expected.clients_


@pytest.mark.parametrize("weighted", [False, True])
def test_sites_give_the_numbers_of_one_process(weighted):
    weight, parts = None, PARTS
    if weighted:
        weight = np.random.default_rng(0).integers(1, 4, 360).astype(float)
        parts = {site: SiteRows(rows, weight[site == LABELS]) for site, rows in PARTS.items()}
    grid = grid_of(PCA, parts)
    fitted = fit_sites(grid, PCA, wait=0)
    expected = FederatedPCA(2, missing=ConditionalFill())
    expected.fit(ALL, clients=LABELS, sample_weight=weight)
    assert_equal(fitted, expected)
    for name in ("rounds", "floats_up", "floats_down"):
        assert getattr(fitted.communication_, name) == getattr(expected.communication_, name)
    assert [kind for site, kind in grid.asked if site == "east"] == [
        "query.entries",
        *["query.filled"] * 3,
    ]
    assert np.isfinite(fitted.impute(ALL)).all()


@pytest.mark.parametrize(("kind", "estimator"), [("entries", PCA), ("filled", LONG)])
def test_a_site_that_is_lost_between_rounds_leaves_no_trace(kind, estimator):
    """The others go on from models of its rows, too, which no longer matter after enough rounds."""
    grid = grid_of(estimator, PARTS, without("west", kind))
    with pytest.warns(UserWarning, match="Fitted without site '?(west|node 3)"):
        fitted = fit_sites(grid, estimator, wait=0)
    there = LABELS != "west"
    assert_equal(fitted, clone(estimator).fit(ALL[there], clients=LABELS[there]))
    n_models = estimator.missing.n_rounds + 1
    assert [kind for site, kind in grid.asked if site == "east"].count("query.filled") == n_models


def sent(rows):
    return {"summary": np.frombuffer(Subspace.from_rows(rows).to_bytes(), np.uint8)}


WHOLE = np.nan_to_num(X)
ATTACKS = {
    "counts of no rows": ("entries", {"entries": np.full((2, 5), -1.0)}, "counts"),
    "more entries than rows": ("entries", {"entries": np.full((2, 5), 121.0)}, "counts"),
    "other columns": ("entries", {"entries": np.full((2, 4), 9.0)}, "its number of features is 4"),
    "means that overflow": ("entries", {"entries": np.full((2, 5), 1e300)}, "too large|counts"),
    "no summary": ("filled", {"summary": np.zeros(99, np.uint8)}, "no valid summary"),
    "a summary of other rows": ("filled", sent(WHOLE[:70]), "other rows than"),
    "one of other columns": ("filled", sent(WHOLE[:120, :2]), "its number of features is 2"),
}


@pytest.mark.parametrize("attack", list(ATTACKS))
@pytest.mark.filterwarnings("ignore:Fitted without")
def test_what_no_rows_have_leaves_a_site_out(attack):
    kind, change, reason = ATTACKS[attack]
    estimator = PCA if kind == "entries" else LONG
    grid = grid_of(estimator, PARTS, spoiling(arrays(**change), kind=kind))
    fitted = fit_sites(grid, estimator, wait=0)
    (text,) = fitted.missing_sites_.values()
    assert any(part in text for part in reason.split("|")), text
    there = LABELS != "west"
    assert_equal(fitted, clone(estimator).fit(ALL[there], clients=LABELS[there]))


def test_a_server_sends_a_model_that_rows_can_have():
    """Whatever else it sends is refused before the rows are touched."""
    rows, mean, V = PARTS["east"], np.full(5, 30.0), np.eye(5)[:2]
    sums = np.array([360.0, 1e4, 50.0, 30.0])  # rows, their scatter, singular values
    good = np.vstack([mean, V])
    site = Site(PCA, rows)
    assert_refused(site, "filled", good * [[1], [2], [1]], sums, why="orthonormal")
    for model, numbers, why in (
        (np.full((3, 5), np.nan), sums, "NaN or infinity"),
        (good[:, :4], sums, "shape"),
        (np.vstack([good, np.eye(5)[2:3]]), np.append(sums, 1.0), "at most 2 directions"),
        (good, sums[:-1], "shape"),
        (good, sums * [1, 1, 1e3, 1], "scatter"),
        (good, sums * [1, -1, 1, 1], "scatter"),
        (good, sums * [1, 1, -1, 1], "singular_values"),
        (good, sums[[0, 1, 3, 2]], "decreasing"),
        (mean, sums, "shape"),
    ):
        assert_refused(Site(PCA, rows), "filled", model, numbers, why=why)
    site = Site(PCA, rows)
    site.ask("entries")
    assert all(site.answers("filled", good, sums) for _ in range(3))
    assert_refused(site, "filled", good, sums, why="more than 3 questions")
    config, found = Site(PCA, rows).ask("filled", np.full((1, 5), 1e200), sums[:2])
    assert found == {}
    assert "TooLargeError" in config["error"]


def test_sums_of_few_rows_are_refused():
    rows = WHOLE[:120]
    site = Site(PCA, rows[:9])
    assert_refused(site, "entries", why="fewer than min_rows=10 rows")
    model, sums = np.full((1, 5), 30.0), [120.0, 1e4]
    for holes in (slice(3, None), slice(0, 1)):
        few = rows.copy()
        few[holes, 1] = np.nan
        for kind, question in (("entries", ()), ("filled", (model, sums))):
            why = "a column that fewer than min_rows=10 rows have, or have not"
            assert_refused(Site(PCA, few), kind, *question, why=why)


def test_what_a_server_learns_that_lies_about_the_means():
    """The sums of the rows that miss a column, which min_rows bounds; the pages say so."""
    rows, gone, t = WHOLE[:120].copy(), slice(20, 35), 1e3
    rows[gone, 1] = np.nan
    told = []
    for shift in (0.0, t):
        mean = np.full((1, 5), 30.0)
        mean[0, 1] += shift
        _, found = Site(PCA, rows).ask("filled", mean, [120.0, 1e4])
        told.append(Subspace.from_bytes(found["summary"].astype(np.uint8)))
    of_all, moved = ((s.components.T * s.singular_values**2) @ s.components for s in told)
    deviations = (moved - of_all)[1] / t
    others = [0, 2, 3, 4]
    expected = (rows[gone] - rows.mean(axis=0)).sum(axis=0)
    assert_allclose(deviations[others], expected[others], rtol=1e-9)


def test_what_a_server_learns_of_a_pair_that_one_row_alone_has():
    """The product of two deviations of that row, from honest means; the pages say so."""
    rows, alone = WHOLE[:120].copy(), 60
    rows[:alone, 0] = rows[alone + 1 :, 1] = np.nan
    mean = np.nanmean(rows, axis=0)
    site = Site(PCA, rows)
    means, _ = site.ask("entries")[1]["entries"]
    assert_allclose(means, mean)
    _, found = site.ask("filled", means[None], [120.0, 1e4])
    summary = Subspace.from_bytes(found["summary"].astype(np.uint8))
    shift = summary.mean - mean
    told = (summary.components.T * summary.singular_values**2) @ summary.components
    told += summary.n_samples * np.outer(shift, shift)
    assert_allclose(told[0, 1], np.prod((rows[alone] - mean)[:2]), rtol=1e-9)


def test_what_has_no_rounds_is_refused():
    with pytest.raises(ValueError, match="takes all rows of a site at once"):
        partial_fit_sites(grid_of(PCA, PARTS), PCA, wait=0)
    with pytest.raises(ValueError, match="n_components must be a number or a share"):
        fit_sites(grid_of(PCA, PARTS), FederatedPCA(missing=ConditionalFill()), wait=0)
