"""Owners of columns over Flower, a server that tries to rob them, and a hostile owner."""

import logging
import os
import re

import numpy as np
import pytest

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")

from flwr.app import Array, Context, RecordDict
from test_flower import grid_of
from test_hostile_server import Site, assert_refused
from test_hostile_sites import HUGE, arrays, as_bytes, sending, spoiling

from fedpca_sklearn import (
    PowerRounds,
    Subspace,
    VerticalFederatedKernelPCA,
    VerticalFederatedPCA,
    VFedPCA,
)
from fedpca_sklearn.engines.flower import SiteRows, fit_sites

RNG = np.random.default_rng(3)
ROWS = RNG.standard_normal((40, 5)) * np.arange(1, 6) + 3
CENTRED = ROWS - ROWS.mean(axis=0)
SALT = b"0123456789abcdef of the owners"
OWN = SiteRows(ROWS, keys=range(40), salt=SALT)
POWER = VerticalFederatedPCA(3, method=PowerRounds(n_rounds=4), random_state=0)
MERGE = VerticalFederatedPCA(3, method="merge")
AGREED = VerticalFederatedPCA(2, method=VFedPCA(n_rounds=2), random_state=0)
KERNEL = VerticalFederatedKernelPCA(3, kernel="linear", n_landmarks=12)
KERNELS = VerticalFederatedKernelPCA(2, aggregation=VFedPCA(n_rounds=2), projection="features")
V = np.linalg.qr(RNG.standard_normal((40, 3)))[0].T.copy()


def asked(estimator=POWER, rows=OWN, **options):
    """A site, and the keys it has sent, in the order of its rows as the server uses them."""
    site = Site(estimator, rows, **options)
    _, found = site.ask("keys")
    return site, Array(found["keys"])


def order_of_rows():
    """Rows of the site in the order of its hashed keys."""
    site, keys = asked(MERGE)
    summary = Subspace.from_bytes(site.ask("left_vectors", keys)[1]["summary"])
    F = summary.singular_values[:, None] * summary.components
    G = CENTRED @ CENTRED.T
    at = [int(np.argmin(np.abs(np.diag(G) - value))) for value in np.square(F).sum(axis=0)]
    np.testing.assert_allclose(F.T @ F, G[np.ix_(at, at)], atol=1e-9)
    return at


# -------------------------------------------------------------------- a single row


def test_a_server_does_not_read_out_a_row_by_a_unit_vector():
    """The product of a unit vector with the columns is a row of them."""
    e = np.eye(40)
    for U in (
        e[:1],
        e[:3],
        np.array([e[0] + e[1], e[0] - e[1]]) / np.sqrt(2),
        (0.8 * e[:1] + 0.6 * e[1:2]),
    ):
        site, keys = asked()
        why = "a row has more than half of its length in the span of the vectors"
        assert_refused(site, "parts", keys, U, why=why)
    site, keys = asked()
    assert site.answers("parts", keys, V)


def test_no_two_questions_of_a_run_add_up_to_a_row():
    """Two vectors that are each of many rows, and whose sum is of one."""
    e, w = np.eye(40)[0], np.r_[0, np.ones(39)] / np.sqrt(39)
    site, keys = asked()
    assert site.answers("parts", keys, 0.6 * e[None] + 0.8 * w)
    more = "more than 1 questions of the kind 'parts'"
    assert_refused(site, "parts", keys, 0.6 * e[None] - 0.8 * w, why=more)
    assert_refused(site, "keys", why="a run does not begin again after 'parts'")


def test_a_server_does_not_choose_other_rows_within_a_fit():
    """Of two lists of keys that differ by one, the means would tell a row."""
    site, keys = asked()
    some = Array(keys.numpy()[1:])
    assert site.answers("times_columns", keys, V)
    W = np.linalg.qr(RNG.standard_normal((39, 3)))[0].T.copy()
    for kind in ("times_columns", "parts"):
        assert_refused(site, kind, some, W, why="a run has one list of keys in all its")


def test_few_rows_in_common_are_refused():
    site, keys = asked()
    few = Array(keys.numpy()[:9])
    W = np.linalg.qr(RNG.standard_normal((9, 2)))[0].T.copy()
    assert_refused(site, "times_columns", few, W, why="fewer than min_rows=10 rows")
    assert_refused(Site(POWER, SiteRows(ROWS[:9], keys=range(9), salt=SALT)), "keys", why="fewer")


# What docs/promises.md says is not protected from, so that it is said no longer than it is true.


def test_within_the_rules_a_server_learns_the_inner_products_of_rows():
    """Products with as many directions as a site has columns tell G = X X^T."""
    at = order_of_rows()
    site, keys = asked()
    W = np.linalg.qr(RNG.standard_normal((40, 6)))[0].T.copy()
    images = [site.ask("times_columns", keys, part)[1]["message"] for part in (W[:3], W[3:])]
    WG = np.concatenate(images)
    G = WG.T @ np.linalg.pinv(WG @ W.T, rcond=1e-10) @ WG
    np.testing.assert_allclose(G, (CENTRED @ CENTRED.T)[np.ix_(at, at)], atol=1e-7)


def test_two_runs_with_keys_that_differ_by_one_tell_a_row():
    at = order_of_rows()
    means = []
    for run, n in ((1, 40), (2, 39)):
        site, keys = asked(run=run)
        U = np.linalg.qr(RNG.standard_normal((n, 3)))[0].T.copy()
        means.append(site.ask("parts", Array(keys.numpy()[:n]), U)[1]["mean"])
    np.testing.assert_allclose(40 * means[0] - 39 * means[1], ROWS[at[-1]], atol=1e-10)


def test_as_many_components_as_columns_tell_the_columns():
    at = order_of_rows()
    site, keys = asked(VerticalFederatedPCA(5, method="merge"))
    summary = Subspace.from_bytes(site.ask("left_vectors", keys)[1]["summary"])
    part = site.ask("parts", keys, summary.components)[1]["part"]
    np.testing.assert_allclose(summary.components.T @ part, CENTRED[at], atol=1e-9)


# -------------------------------------------------------------------- arguments


def changed_keys(keys, what):
    k = keys.numpy()
    return Array(
        {
            "unsorted": k[::-1].copy(),
            "twice": np.repeat(k[:20], 2, axis=0),
            "of others": np.sort(RNG.integers(0, 256, (40, 32)).astype(np.uint8), axis=0),
            "short": k[:, :16].copy(),
            "in a row": k.ravel(),
        }[what]
    )


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("unsorted", "common keys must be sorted and differ"),
        ("twice", "common keys must be sorted and differ"),
        ("of others", "common keys must be"),
        ("short", "keys must have shape (n, 32), got (40, 16)"),
        ("in a row", "keys must have shape (n, 32), got (1280,)"),
    ],
)
def test_keys_that_are_none(what, why):
    site, keys = asked()
    assert_refused(site, "times_columns", changed_keys(keys, what), V, why=why)


def test_vectors_that_are_none():
    for U, why in (
        (V * 2, "orthonormal rows"),
        (V + 1e-5, "orthonormal rows"),
        (np.concatenate([V, V[:1]]), "k <= 3"),
        (V[:, :39], "shape (k, 40)"),
        (V[0], "got (40,)"),
        (V * np.nan, "argument 1 is NaN"),
    ):
        for kind in ("times_columns", "parts"):
            site, keys = asked()
            assert_refused(site, kind, keys, U, why=why)
    assert_refused(*asked()[:1], "times_columns", V, V, why="argument 0 is")
    site, keys = asked(AGREED)
    none, u = np.zeros((1, 40)), V[0]
    for arguments, why in (
        ((none, none, 2 * u), "length 1"),
        ((none, np.zeros((4, 40)), u), "m <= 2"),
        ((np.zeros((3, 40)), none, u), "m <= 2"),
        ((none, none[:, :39], u), "shape (m, 40)"),
    ):
        assert_refused(site, "period", keys, *arguments, why=why)
    assert_refused(site, "period", keys, none, none, u, why="more than 4 questions")


def test_landmarks_and_numbers_of_columns_that_are_none():
    for landmarks in (np.arange(13), np.zeros(12), np.arange(12) + 0.5, np.arange(12) + 30, 3.0):
        site, keys = asked(KERNEL)
        assert_refused(site, "kernel_part", keys, landmarks, why="landmarks must be 12 different")
    site, keys = asked(KERNELS)
    for number in (4.0, 1e300, [5.0]):
        arguments = np.zeros((1, 40)), np.zeros((1, 40)), V[0], number
        assert_refused(site, "period", keys, *arguments, why="the number of all columns must be")
        site, keys = asked(KERNELS)


def test_rounds_are_counted():
    site, keys = asked()
    for _ in range(4):
        assert site.answers("times_columns", keys, V)
    assert_refused(site, "times_columns", keys, V, why="more than 4 questions")


# -------------------------------------------------------------------- keys and salts


def test_keys_and_salts_of_a_site(caplog):
    caplog.set_level(logging.WARNING, "fedpca_sklearn")
    names = [f"Ann Smith {i}" for i in range(40)]
    for changes, why in (
        (
            {"keys": [*names[:-1], names[0]]},
            "refused: keys must differ, and some come more",
        ),
        ({"keys": [*range(39), "38"]}, "refused: keys must differ"),
        ({"keys": [*names[:-1], None]}, "ValueError"),
        ({"keys": [*range(39), np.nan]}, "ValueError"),
        ({"keys": [*range(39), 1.5]}, "ValueError"),
        ({"keys": names[:-1]}, "ValueError"),
        ({"keys": None}, "refused: rows without keys cannot be matched"),
        ({"salt": None}, "refused: the salt of the keys must have 16 bytes at least"),
        ({"salt": "short"}, "refused: the salt of the keys must have 16 bytes at least"),
        ({"X": np.c_[ROWS[:, :1], np.full(40, np.nan)]}, "ValueError"),
    ):
        site = Site(POWER, SiteRows(**({"X": ROWS, "keys": names, "salt": SALT} | changes)))
        config, found = site.ask("keys")
        assert found == {}
        assert config["error"].startswith(why)
        assert "Ann" not in repr(config)
    assert "Ann" not in caplog.text


def test_a_salt_from_the_server_is_refused():
    site = Site(POWER, OWN)
    for salt in (SALT, SALT.decode()):
        site.context = Context(1, 5, {"site": "north"}, RecordDict(), {"salt": salt, "n": [3]})
        assert_refused(site, "keys", why="the salt of the keys comes from the server")


def test_hashed_keys_tell_nothing_without_the_salt():
    first, other = (
        {row.tobytes() for row in Site(POWER, rows).ask("keys")[1]["keys"]}
        for rows in (OWN, SiteRows(ROWS, keys=range(40), salt=SALT[::-1]))
    )
    assert not first & other
    texts = Site(POWER, SiteRows(ROWS, keys=[str(i) for i in range(40)], salt=SALT.decode()))
    assert {row.tobytes() for row in texts.ask("keys")[1]["keys"]} == first


def test_keys_where_nobody_takes_them():
    from fedpca_sklearn import DistributedPCA

    assert_refused(Site(DistributedPCA(2), OWN), "factor", why="the estimator takes no keys")
    weighted = SiteRows(ROWS, np.ones(40), keys=range(40), salt=SALT)
    assert_refused(Site(POWER, weighted), "keys", why="the estimator takes no sample_weight")


# -------------------------------------------------------------------- owners that disturb others

WIDE = {"east": ROWS[:, :2], "north": ROWS[:, 2:] + 1, "west": RNG.standard_normal((40, 3))}
OWNERS = {site: SiteRows(rows, keys=range(40), salt=SALT) for site, rows in WIDE.items()}
LEFT = Subspace.from_rows(RNG.standard_normal((50, 39)), 5, center=False).to_bytes()
TWICE = np.zeros((40, 32), dtype=np.uint8)

ATTACKS = {
    "keys of another length": (POWER, "keys", arrays(keys=TWICE[:, :31].copy()), "shape"),
    "one key twice": (POWER, "keys", arrays(keys=TWICE), "one key twice"),
    "another salt": (POWER, "keys", arrays(salt=np.zeros(8, np.uint8)), "its salt is 0000"),
    "very many columns": (POWER, "keys", arrays(columns=[1e15]), "columns=1e.15"),
    "half a column": (POWER, "keys", arrays(columns=[2.5]), "columns=2.5"),
    "other names": (POWER, "keys", sending(columns=["a", "b"]), "columns=3"),
    "a product of NaN": (POWER, "times_columns", arrays(message=np.full((3, 40), np.nan)), "NaN"),
    "a wide product": (POWER, "times_columns", arrays(message=np.ones((3, 41))), "shape"),
    "a large product": (POWER, "times_columns", arrays(message=np.full((3, 40), 1e300)), "large"),
    "a giant": (POWER, "times_columns", arrays(message=HUGE), "announces"),
    "left vectors of others": (MERGE, "left_vectors", arrays(summary=as_bytes(LEFT)), "another s"),
    "parts of other columns": (MERGE, "parts", arrays(part=np.ones((3, 2))), "shape"),
    "parts that overflow": (MERGE, "parts", arrays(scores=np.full((3, 40), 1e200)), "too large"),
    "a negative scatter": (MERGE, "parts", arrays(scatter=[-1.0]), "expected a sum of squares"),
    "a long vector": (AGREED, "period", arrays(vector=np.full(40, 1e200)), "a vector of length"),
    "a large value": (AGREED, "period", arrays(value=[1e300]), "values that are too large"),
    "a kernel of others": (KERNEL, "kernel_part", arrays(part=np.ones((40, 40))), "shape"),
    "energies of others": (KERNELS, "energies", arrays(energies=np.ones(3)), "shape"),
}


@pytest.mark.parametrize("attack", list(ATTACKS))
def test_what_an_owner_sends_leaves_it_out(attack):
    estimator, kind, change, reason = ATTACKS[attack]
    grid = grid_of(estimator, OWNERS, spoiling(change, kind=kind))
    once = kind == "parts"  # the others do not begin again
    if once:
        with pytest.raises(RuntimeError, match=f"Left out: site 'west' .*{reason}") as caught:
            fit_sites(grid, estimator, wait=0)
        assert "a run does not begin again after 'parts'" in str(caught.value)
        return
    with pytest.warns(UserWarning, match="Fitted without site") as caught:
        fitted = fit_sites(grid, estimator, wait=0)
    assert re.search(reason, str(caught[0].message))
    assert fitted.clients_ == ["east", "north"]
    assert fitted.n_features_in_ == 5
    rest = {site: OWNERS[site] for site in ("east", "north")}
    expected = fit_sites(grid_of(estimator, rest), estimator, wait=0)
    name = "eigenvalues_" if hasattr(fitted, "eigenvalues_") else "singular_values_"
    if estimator.random_state == 0 or estimator is MERGE:
        np.testing.assert_allclose(getattr(fitted, name), getattr(expected, name), rtol=1e-6)


def test_no_row_in_common():
    other = SiteRows(WIDE["west"], keys=range(100, 140), salt=SALT)
    with pytest.raises(RuntimeError, match="No key of a row is at all sites, east, north, west"):
        fit_sites(grid_of(POWER, OWNERS | {"west": other}), POWER, wait=0)


def test_parameters_of_owners():
    for estimator, error, match in (
        (
            POWER.__class__(2, topology="ring"),
            ValueError,
            "topology must be 'server' over a network",
        ),
        (KERNEL.__class__(2, topology="star"), ValueError, "topology must be 'server'"),
        (KERNEL.__class__(2, kernel=np.dot), ValueError, "needs aggregation=VFedPCA"),
    ):
        with pytest.raises(error, match=match):
            fit_sites(grid_of(POWER, {}), estimator, wait=0)
    many = POWER.__class__(9, method="power")
    with pytest.raises(ValueError, match="n_components=9"):
        fit_sites(grid_of(many, OWNERS), many, wait=0)
