"""`OnlineDistributedPCA` by secure sums, beside the same fits of one process."""

import os

import numpy as np
import pytest
from sklearn.base import clone

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")

from engines.test_flower import InProcessGrid
from engines.test_hostile_server import MEAN, ROWS, Site, V

from fedpca_sklearn import OnlineDistributedPCA, make_power_law, subspace_distance
from fedpca_sklearn.engines.flower import SecureAggregation, SiteRows, client_app, fit_sites

SECURE = SecureAggregation(threshold=2)
X = make_power_law(600, 12, alpha=1.0, random_state=0) + np.arange(12)
SITES = {"east": X[:150], "north": X[150:300], "west": X[300:]}


def over_sites(estimator, parts, spoil=None):
    apps = [client_app(lambda _, p=part: p, estimator, secure=SECURE) for part in parts.values()]
    return fit_sites(InProcessGrid(apps, list(parts), spoil), estimator, wait=0, secure=SECURE)


def assert_same(found, expected, tol=1e-9):
    for name in ("components_", "explained_variance_", "mean_", "projection_values_"):
        a, b = getattr(found, name), getattr(expected, name)
        np.testing.assert_allclose(a, b, rtol=0, atol=tol * max(np.abs(b).max(), 1), err_msg=name)
    assert found.n_samples_ == expected.n_samples_
    assert found.n_steps_ == expected.n_steps_


@pytest.mark.parametrize(
    "options",
    [{}, {"weighting": "rows"}, {"average": "steps"}, {"center": False}, {"projection_dim": 5}],
    ids=str,
)
def test_steps_of_the_sites_are_those_of_one_process(options):
    """Three batches of each site; the mean of projections by numpy, and the same estimator here."""
    pca = OnlineDistributedPCA(3, **options)
    parts = {site: np.array_split(rows, 3) for site, rows in SITES.items()}
    found, here = over_sites(pca, parts), clone(pca)
    for step in zip(*parts.values(), strict=True):
        labels = np.repeat(list(parts), [len(rows) for rows in step])
        here.partial_fit(np.concatenate(step), clients=labels)
    assert_same(found, here)
    assert found.clients_ == list(SITES)
    if not options:
        P = np.zeros((12, 12))
        for batches in parts.values():
            for rows in batches:
                U = np.linalg.svd(rows - rows.mean(axis=0))[2][:3]
                P += U.T @ U / 9
        leading = np.linalg.eigh(P)[1][:, -3:].T
        assert subspace_distance(found.components_, leading) < 1e-9


def test_weights():
    weight = np.random.default_rng(0).integers(1, 4, len(X)).astype(float)
    pca = OnlineDistributedPCA(3, weighting="rows")
    ends = np.cumsum([len(rows) for rows in SITES.values()])[:-1]
    parts = {
        site: SiteRows(rows, sample_weight=w)
        for (site, rows), w in zip(SITES.items(), np.split(weight, ends), strict=True)
    }
    labels = np.repeat(list(SITES), [len(rows) for rows in SITES.values()])
    assert_same(over_sites(pca, parts), clone(pca).fit(X, clients=labels, sample_weight=weight))


def test_a_site_whose_rows_end():
    parts = {site: np.array_split(rows, 2) for site, rows in SITES.items()}
    del parts["east"][1]
    found, here = over_sites(OnlineDistributedPCA(3), parts), OnlineDistributedPCA(3)
    for at, sites in enumerate([list(parts), ["north", "west"]]):
        rows = [parts[site][at] for site in sites]
        here.partial_fit(np.concatenate(rows), clients=np.repeat(sites, list(map(len, rows))))
    assert_same(found, here)


@pytest.mark.parametrize("kind", ["totals", "space", "moments"])
def test_a_site_that_is_lost_in_a_step(kind):
    def spoil(site, message, reply):
        lost = site == "west" and message.metadata.message_type == f"query.{kind}"
        return None if lost else reply

    with pytest.warns(UserWarning, match="Fitted without site"):
        found = over_sites(OnlineDistributedPCA(3), SITES, spoil)
    here = OnlineDistributedPCA(3).fit(X[:300], clients=np.repeat(["east", "north"], 150))
    assert_same(found, here)


def test_cut_summaries_do_not_add_up():
    with pytest.raises(ValueError, match='variances must be "measured" with secure sums'):
        client_app(lambda _: X, OnlineDistributedPCA(3, variances="sent"), secure=SECURE)


REFUSED = {
    "another mean": ("space", (0, MEAN[:3]), "the mean must have shape"),
    "a mean for each row": ("space", (0, ROWS), "the mean must have shape"),
    "no basis": ("moments", (0, 2 * V, MEAN), "orthonormal"),
    "half a batch": ("totals", (0.5,), "the number of a batch must be a whole number"),
}


@pytest.mark.parametrize("what", list(REFUSED))
def test_questions_that_no_honest_server_asks(what):
    kind, arguments, why = REFUSED[what]
    site = Site(OnlineDistributedPCA(3), secure=SECURE)
    _, arrays = site.ask("bounds", 0)
    assert set(arrays) == {"bounds"}
    config, arrays = site.ask(kind, *arguments)
    assert not arrays
    assert why in config["error"]
