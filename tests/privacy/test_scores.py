"""Noisy counts of rows in the plane of two components."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from privacy_helpers import inf, mostly_noise

from fedpca_sklearn import (
    AnalyzeGauss,
    FederatedPCA,
    PrivacyBudgetError,
    PrivacyLedger,
    PrivateScoresDisplay,
    make_spiked,
)
from fedpca_sklearn.privacy import DiscreteGaussian, private_scores
from fedpca_sklearn.privacy._gaussian import mu_of
from fedpca_sklearn.privacy._scores import counted

pytestmark = mostly_noise
X = make_spiked(4000, 6, spikes=[16.0, 9.0, 4.0], random_state=0)[0]
PRIVATE = AnalyzeGauss(20.0, 1e-5, 10.0)
MODEL = FederatedPCA(3, mechanism=PRIVATE, n_clients=1, random_state=0).fit(X)


def counts_of(epsilon=1.0, rows=X, **options):
    mechanism = AnalyzeGauss(epsilon, 1e-5, 1.0, ledger=options.pop("ledger", None))
    return private_scores(MODEL, rows, mechanism, **{"random_state": 0, **options})


def test_without_noise_counts_are_those_of_numpy_with_far_rows_in_the_last_cells():
    found = counts_of(inf, components=(1, 0))
    Z = MODEL.transform(X)[:, [1, 0]]
    inside = [
        np.clip(z, e[0], np.nextafter(e[-1], 0)) for z, e in zip(Z.T, found.edges, strict=True)
    ]
    assert_array_equal(found.counts, np.histogram2d(*inside, bins=found.edges)[0])
    assert_allclose(found.edges[0][-1], 3 * np.sqrt(MODEL.explained_variance_[1]))
    assert found.counts.shape == (40, 40)


@pytest.mark.parametrize("row", [[1e300, -1e300], [np.inf, np.nan], [0.0, 0.0]])
def test_a_replaced_row_moves_two_counts_by_one_whatever_it_is(row):
    edges = np.linspace(-1, 1, 6), np.linspace(-2, 2, 6)
    scores = np.random.default_rng(0).standard_normal((50, 2))
    other = scores.copy()
    other[7] = row
    change = counted(scores, edges) - counted(other, edges)
    assert np.abs(change).sum() in (0, 2)
    assert np.linalg.norm(change) <= np.sqrt(2)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_noise_costs_no_more_than_the_budget_and_nearly_as_much(epsilon):
    found = counts_of(epsilon)
    cost = DiscreteGaussian().cost(np.sqrt(2), found.std, found.counts.size)
    mu2 = mu_of(epsilon, 1e-5) ** 2
    assert 0.99 * mu2 < cost <= mu2 * (1 + 1e-12)
    assert_allclose(found.spent.epsilon, epsilon, rtol=1e-9)


def test_noise_has_the_stated_size_and_lies_on_a_grid():
    exact = counts_of(inf)
    noisy = [counts_of(rows=X, random_state=run) for run in range(30)]
    small = len(noisy[0].edges[0]) - 1
    right = counted(MODEL.transform(X)[:, :2], noisy[0].edges)
    noise = np.array([one.counts - right for one in noisy])
    assert_allclose(noise.std(), noisy[0].std, rtol=4 / np.sqrt(2 * noise.size))
    steps = noise / DiscreteGaussian().grid(noisy[0].std)
    assert_array_equal(steps, np.round(steps))
    assert 2 <= small <= 40
    assert len(X) / small**2 >= 3 * noisy[0].std  # even counts are above the noise
    assert exact.std == 0


def test_components_without_noise_are_refused_whatever_the_parameter_is():
    for mechanism in (None, PRIVATE):
        plain = FederatedPCA(3, n_clients=2).fit(X).set_params(mechanism=mechanism)
        with pytest.raises(ValueError, match="got one that has no privacy_spent_"):
            private_scores(plain, X, PRIVATE)


def test_counts_are_a_line_in_the_ledger_of_their_client(tmp_path):
    ledger = PrivacyLedger(tmp_path / "ledger.jsonl")
    assert_allclose(counts_of(ledger=ledger, client="a").spent.epsilon, 1.0, rtol=1e-9)
    with pytest.raises(PrivacyBudgetError):
        counts_of(ledger=ledger, client="a")
    counts_of(ledger=ledger, client="b")
    assert set(ledger.spent(1e-5)) == {"a", "b"}


def test_the_display_shows_what_is_above_the_noise():
    display = PrivateScoresDisplay.from_estimator(
        MODEL, X, AnalyzeGauss(1.0, 1e-5, 1.0), components=iter((0, 2)), random_state=0
    )
    counts, std = display.counts.counts, display.counts.std
    # matplotlib before 3.8 gives the cells of a mesh one after the other
    assert_array_equal(display.mesh_.get_array().mask.reshape(counts.T.shape).T, counts < std)
    assert display.ax_.get_ylabel().startswith("component 3 (")
    plt.close(display.figure_)
