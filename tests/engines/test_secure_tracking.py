"""`FederatedSubspaceTracker` by secure sums: equal to one process, and no site's numbers."""

import os
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import arrays_in
from sklearn.base import clone

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")

from flwr.app import Array
from test_flower import grid_of
from test_flower_tracking import (
    BLOCKS,
    LABELS,
    PARTS,
    SIZE,
    STREAM,
    TRACKERS,
    in_one_process,
)
from test_hostile_sites import arrays, changed, spoiling
from test_secure import Totals, killed
from test_secure_server import Server

from fedpca_sklearn import FixedPointChannel, subspace_distance
from fedpca_sklearn.engines import _secure_sums
from fedpca_sklearn.engines.flower import SecureAggregation, fit_sites

SECURE = SecureAggregation(threshold=2)
SHORT = {"n_rounds": 1, "init_rounds": 2}
EVERYTHING = clone(TRACKERS[-1]).set_params(detect_changes=True, n_updates=2, **SHORT)
PLAIN = clone(TRACKERS[0]).set_params(**SHORT)


def secure_fit(estimator, parts=PARTS, spoil=None, secure=SECURE):
    grid = grid_of(estimator, parts, spoil, secure=secure)
    return fit_sites(grid, estimator, wait=0, secure=secure)


def assert_near(fitted, expected, tol=1e-6):
    assert subspace_distance(fitted.components_, expected.components_) < tol
    np.testing.assert_allclose(fitted.explained_variance_, expected.explained_variance_, rtol=tol)
    np.testing.assert_allclose(fitted.mean_, expected.mean_, atol=tol)
    np.testing.assert_allclose(fitted.noise_variance_, expected.noise_variance_, rtol=tol)
    assert fitted.n_samples_ == expected.n_samples_
    assert fitted.clients_ == expected.clients_


@pytest.fixture(scope="module")
def fit():
    """Outliers, holes and changes by secure sums, and all that the server had."""
    kept, received = [], []
    with pytest.MonkeyPatch.context() as patch:
        begin = _secure_sums.SecureSums.__init__

        def init(self, *arguments):
            kept.append(self)
            begin(self, *arguments)

        patch.setattr(_secure_sums.SecureSums, "__init__", init)
        totals = Totals(patch)

        def note(site, message, reply):
            for record in reply.content.array_records.values():
                received.extend(array.numpy() for array in record.values())
            return reply

        fitted = secure_fit(EVERYTHING, spoil=note)
    held = [*received, *arrays_in(vars(kept[0])), *arrays_in(vars(fitted))]
    held += [total for _, total in totals.sums]
    return SimpleNamespace(fitted=fitted, totals=totals, held=held)


def test_secure_sums_give_what_clients_in_one_process_give(fit):
    here = in_one_process(EVERYTHING).set_params(channel=FixedPointChannel())
    expected = here.fit(STREAM.X, clients=LABELS)
    assert_near(fit.fitted, expected)
    np.testing.assert_allclose(
        fit.fitted.support_threshold_, expected.support_threshold_, rtol=1e-6
    )
    np.testing.assert_array_equal(fit.fitted.change_points_, expected.change_points_)


def test_the_server_has_the_sums_bit_by_bit_and_no_numbers_of_a_site(fit):
    """Of two batches: what the sites would have sent, and what arrived in their place."""
    held = (np.ravel(a) for a in fit.held if a.dtype.itemsize == 8 and a.dtype.kind in "fiu")
    words = {w for a in held for w in a.astype(a.dtype).view(np.uint64).tolist()}
    for i, (parts, total) in enumerate(fit.totals.sums):
        integers = [np.concatenate([words for _, words in part]) for part in parts]
        assert np.add.reduce(integers).tolist() == total.tolist(), i
        for part in parts:
            for numbers, own in part:
                # numbers of rows are whole, as those of other things are
                told = numbers[numbers != np.rint(numbers)]
                assert not {*told.view(np.uint64).tolist()} & words, i
                assert not {*own[np.abs(own.view(np.int64)) > 2**20].tolist()} & words, i
    assert len(fit.totals.sums) > 20


def test_a_site_that_is_lost_in_a_batch():
    parts = {site: rows[: 2 * SIZE] for site, rows in PARTS.items()}
    with pytest.warns(UserWarning, match="Fitted without site 'west'"):
        fitted = secure_fit(PLAIN, parts, killed("west", "times_scatter", 3), SECURE)
    grid = grid_of(PLAIN, parts, killed("west", "times_scatter", 3))
    with pytest.warns(UserWarning, match="Fitted without site 'west'"):
        expected = fit_sites(grid, PLAIN, wait=0)
    assert_near(fitted, expected)
    assert fitted.n_samples_ == 5 * SIZE


def test_sites_whose_rows_end():
    parts = PARTS | {"north": BLOCKS[1]}
    fitted = secure_fit(PLAIN, parts, secure=SECURE)
    assert_near(fitted, fit_sites(grid_of(PLAIN, parts), PLAIN, wait=0))
    assert fitted.n_samples_ == 7 * SIZE
    # a batch of fewer sites than a sum has at least is left out
    three = SecureAggregation(threshold=3)
    with pytest.warns(UserWarning, match="Rows from batch 1 on are left out: 2 sites have them"):
        assert secure_fit(PLAIN, parts, secure=three).n_samples_ == 3 * SIZE


def test_a_batch_of_too_few_sites():
    def over(site, message, reply):
        there = site == "east" or message.metadata.message_type != "query.batch"
        arrays = reply.content.array_records["arrays"]
        if not there:
            arrays["over"] = arrays.pop("count")
            del arrays["columns"], arrays["bounds"]
        return reply

    with pytest.raises(RuntimeError, match="Too few sites: 1 have rows for a batch, but min_sites"):
        secure_fit(PLAIN, spoil=over)


def test_a_site_does_not_say_how_large_batches_are():
    parts = {site: rows[:SIZE] for site, rows in PARTS.items()}
    spoil = spoiling(arrays(count=[1e9]), "east", "batch")
    with pytest.warns(UserWarning, match="site 'east' .sent no array 'columns'"):  # at the end
        fitted = secure_fit(PLAIN, parts, spoil, SECURE)
    assert_near(fitted, secure_fit(PLAIN, parts, secure=SECURE))


def test_a_site_does_not_say_that_more_rows_count_than_there_are():
    """The server would have made an array of as many."""
    parts = {site: rows[:SIZE] for site, rows in PARTS.items()}

    def change(message, reply):
        numbers = reply.content.array_records["arrays"]["masked"].numpy().copy()
        numbers[:1] += np.uint64(2**62)
        return changed(reply, message, arrays_with={"masked": Array(numbers)})

    fitted = secure_fit(PLAIN, parts, spoiling(change, "east", "filled"), SECURE)
    assert_near(fitted, secure_fit(PLAIN, parts, secure=SECURE))


# -------------------------------------------------------------------- a hostile server


def test_a_batch_is_begun_again_as_often_as_the_owner_says():
    rows = np.concatenate(BLOCKS[:6])
    secure = SecureAggregation(threshold=2, restarts=0)
    server = Server(2, secure, PLAIN, rows)
    assert server.tell(0, "batch", 0)[1]["count"] == SIZE
    server.refused(0, "batch", 0, why="a fit begins again at most 0 times")
    assert server.tell(0, "batch", 1)[1]["count"] == SIZE
    server.refused(0, "batch", 0, why="batch 0 is out of turn")


def test_sums_about_a_batch_that_is_not_there():
    server = Server(2, SECURE, PLAIN, np.concatenate(BLOCKS[:2]))
    assert set(server.tell(0, "batch", 1)[1]) == {"over"}
    server.tell(1, "batch", 1)
    server.bounds = [b""] * 2  # none was announced
    server.keys(begin=False)
    server.refused(0, "secure_shares", **server.lists(), why="the bounds of this site must be")


def test_no_number_leaves_without_a_mask():
    server = Server(2, SECURE, PLAIN, np.concatenate(BLOCKS[:2]))
    server.tell(0, "batch", 0)
    for kind in ("observed", "filled", "misfits", "moments"):
        told, arrays = server.tell(0, kind, 0)
        assert not arrays
        assert "refused" in told["error"]
