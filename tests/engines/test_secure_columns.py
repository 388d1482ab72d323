"""`VerticalFederatedPCA` by secure sums: what adds up is masked, keys and parts are not."""

import os

import numpy as np
import pytest
from sklearn.base import clone

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")
pytest.importorskip("pandas")

from flwr.app import Array
from test_flower import grid_of
from test_flower_columns import COLUMNS, EXACT, JOINED, OWNERS, in_one_process, order_of_keys
from test_hostile_server import Site, assert_refused
from test_secure import killed

from fedpca_sklearn import VerticalFederatedPCA, subspace_distance
from fedpca_sklearn.engines.flower import SecureAggregation, client_app, fit_sites

POWER = EXACT[0]
SECURE = SecureAggregation(threshold=2)
OPEN = {"keys", "columns_bound", "parts"}


def secure_fit(estimator, spoil=None, secure=SECURE):
    grid = grid_of(estimator, OWNERS, spoil, secure=secure)
    return fit_sites(grid, clone(estimator), wait=0, secure=secure)


def test_secure_sums_give_what_clients_in_one_process_give():
    came = []

    def note(site, message, reply):
        kind = message.metadata.message_type.removeprefix("query.")
        arrays = {name: a.numpy() for name, a in reply.content.array_records["arrays"].items()}
        came.append((site, kind, arrays))
        return reply

    fitted = secure_fit(POWER, note)
    rows = JOINED.to_numpy()[order_of_keys()]
    expected = in_one_process(POWER).fit(rows)
    np.testing.assert_allclose(fitted.components_, expected.components_, atol=1e-8)
    np.testing.assert_allclose(fitted.singular_values_, expected.singular_values_, rtol=1e-8)
    np.testing.assert_allclose(fitted.noise_variance_, expected.noise_variance_, rtol=1e-8)
    np.testing.assert_allclose(fitted.mean_, expected.mean_, atol=1e-12)
    assert fitted.n_iter_ == expected.n_iter_
    assert fitted.n_rows_left_out_ == {"bank": 10, "clinic": 10, "shop": 10}
    assert fitted.feature_names_in_.tolist() == JOINED.columns.tolist()
    # what arrives from a site is masked but for its keys, its mean, and its part of the components
    for site, kind, arrays in came:
        if kind not in OPEN:
            assert all(name == "masked" and a.dtype == np.uint64 for name, a in arrays.items())
        if kind == "parts":
            assert set(arrays) == {"part", "mean"}
            part = fitted.components_[:, COLUMNS[site]] * fitted.singular_values_[:, None]
            assert subspace_distance(*map(spanned, (arrays["part"], part))) < 1e-6


def spanned(part):
    """Orthonormal basis of the rows of a part."""
    _, s, V = np.linalg.svd(part, full_matrices=False)
    return V[s > 1e-9 * s[0]]


@pytest.mark.parametrize(("kind", "nth"), [("times_columns", 1), ("times_columns", 3)])
def test_a_site_that_is_lost(kind, nth):
    with pytest.warns(UserWarning, match="Fitted without site 'shop'"):
        fitted = secure_fit(POWER, killed("shop", kind, nth), SECURE)
    assert fitted.clients_ == ["bank", "clinic"]
    assert fitted.components_.shape == (4, 13)


@pytest.mark.parametrize("method", ["merge", "vfedpca"])
def test_vectors_do_not_add_up(method):
    estimator = VerticalFederatedPCA(2, method=method)
    with pytest.raises(ValueError, match=r"method must be .power. with secure sums"):
        client_app(lambda context: OWNERS["bank"], estimator, secure=SECURE)


# -------------------------------------------------------------------- a hostile server


def test_products_of_one_site_do_not_leave_it():
    """Asked without the steps of a sum; and a site's scores and scatter come in no other answer."""
    site = Site(POWER, OWNERS["bank"], secure=SECURE)
    keys = Array(site.ask("keys")[1]["keys"])
    U = np.linalg.qr(np.random.default_rng(0).standard_normal((110, 4)))[0].T.copy()
    for kind, arguments in {"times_columns": (keys, U), "scatter": (keys,)}.items():
        assert_refused(site, kind, *arguments, why="this site takes part in secure sums only")
    assert set(site.ask("parts", keys, U)[1]) == {"part", "mean"}
    assert_refused(site, "keys", why="a run does not begin again after 'parts'")
    assert_refused(Site(POWER, OWNERS["bank"], secure=SECURE), "parts", keys, U, why="keys")


def test_a_fit_of_columns_begins_again_as_often_as_the_owner_says():
    once = SecureAggregation(threshold=2, restarts=0)
    site = Site(POWER, OWNERS["bank"], secure=once)
    assert site.answers("keys")
    assert_refused(site, "keys", why="a fit begins again at most 0 times")
