"""`FederatedHeteroscedasticPCA` at sites: what a site keeps, what it refuses, and who lies."""

import os

import numpy as np
import pytest
from sklearn.base import clone

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")

from engines.test_flower import LABELS, PARTS, X, run
from engines.test_hostile_server import MEAN, ROWS, Site, V, assert_refused
from engines.test_hostile_sites import arrays, spoiling

from fedpca_sklearn import FederatedHeteroscedasticPCA

PCA = FederatedHeteroscedasticPCA(3, n_rounds=3, random_state=0)
F = 2.0 * V


def scores(site, factors=F):
    _, sent = site.ask("scores", factors, MEAN, 1.5)
    return sent["message"]


def test_the_noise_of_a_round_follows_from_the_round_before():
    site, other = Site(PCA), Site(PCA)
    assert site.answers("moments")
    assert other.answers("moments")
    first, second = scores(site), scores(site, 1.1 * F)
    np.testing.assert_array_equal(scores(other), first)
    np.testing.assert_array_equal(scores(other), first)  # a question that came twice
    np.testing.assert_array_equal(scores(other, 1.1 * F), second)
    assert np.abs(second - scores(Site(PCA), 1.1 * F)).max() > 1e-6  # which has kept nothing


def test_a_fit_that_begins_again_keeps_nothing():
    site = Site(PCA)
    assert site.answers("moments")
    first = scores(site)
    scores(site, 1.1 * F)
    assert site.answers("moments")
    np.testing.assert_array_equal(scores(site), first)


UNIT = "the unit must be one number"
REFUSED = {
    "unit of zero": ("weighted_moments", (0.0,), UNIT),
    "two units": ("weighted_moments", ([1.0, 2.0],), UNIT),
    "negative unit": ("weighted_times_scatter", (V, MEAN, 1, -1.0), UNIT),
    "huge unit": ("scores", (F, MEAN, 1e200), UNIT),
    "two steps": ("weighted_times_scatter", (V, MEAN, 2, 1.0), "local_steps must be 1"),
    "no basis": ("weighted_variances", (F, MEAN, 1.0), "orthonormal"),
    "too many directions": ("times_scatter", (np.eye(8), MEAN, 1), "k <= 3"),
    "too many factors": ("scores", (np.eye(8), MEAN, 1.0), "k <= 3"),
    "a mean for each row": ("scores", (F, ROWS, 1.0), "the mean must have shape"),
    "another mean": ("scatter", (MEAN[:3],), "the mean must have shape"),
}


@pytest.mark.parametrize("what", list(REFUSED))
def test_questions_that_no_honest_server_asks(what):
    kind, arguments, why = REFUSED[what]
    assert_refused(Site(PCA), kind, *arguments, why=why)


def test_more_rounds_than_a_fit_has():
    site = Site(PCA)
    for _ in range(3):
        scores(site)
    assert_refused(site, "scores", F, MEAN, 1.5, why="more than 3 questions of the kind 'scores'")


@pytest.mark.parametrize("kind", ["moments", "scatter", "weighted_moments", "scores", "variances"])
def test_a_site_that_is_lost_in_any_round(kind):
    """The others begin again, and are fitted as if it had never been there."""
    honest = LABELS != "west"
    pca = FederatedHeteroscedasticPCA(2, random_state=0)
    with pytest.warns(UserWarning, match="Fitted without site .*'west'"):
        found = run(pca, spoil=spoiling(arrays(message=[np.inf]), kind=kind))
    expected = clone(pca).fit(X[honest], clients=LABELS[honest])
    for name in ("factors_", "factor_mean_", "mean_", "log_likelihoods_"):
        there, here = getattr(found, name), getattr(expected, name)
        np.testing.assert_allclose(there, here, rtol=0, atol=1e-9 * np.abs(here).max())


def test_sums_that_would_overflow():
    pca = FederatedHeteroscedasticPCA(2, random_state=0)
    n = 2 * (64 + 2) + 1

    def spoil():
        return spoiling(arrays(message=np.full(n, 1e300)), kind="scores")

    reason = "values that are too large: their sum would overflow"
    with pytest.warns(UserWarning, match=reason):
        run(pca, PARTS, spoil=spoil())
