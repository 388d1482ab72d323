"""What noise costs: epsilon, delta and mu of a release, and of many.

Oracles are numerical integrals over two densities, the published formulas written down again, and
dp-accounting's privacy-loss distributions and Renyi accountant.
"""

import math
from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose
from privacy_helpers import (
    GRID,
    ONE_ROUND,
    hockey_stick,
    inf,
    model_of,
    mostly_noise,
    published_std,
    rows,
)
from scipy import stats

from fedpca_sklearn import AnalyzeGauss, ModSuLQ, StreamingModSuLQ
from fedpca_sklearn.privacy import DiscreteGaussian, PrivateCenter, PrivateNorm, gaussian_cost
from fedpca_sklearn.privacy._gaussian import _SLACK, epsilon_of, log_delta, mu_of
from fedpca_sklearn.privacy._private_searches import N_ROUNDS, range_of

pytestmark = mostly_noise


def accountant(name):
    return pytest.importorskip(f"dp_accounting.{name}")


def test_delta_is_the_hockey_stick_divergence():
    for case in product([0.01, 0.3, 1, 5, 20, 100], [0.1, 0.5, 1.0, 3.0, 10.0]):
        expected = hockey_stick(*case)
        assert_allclose(log_delta(*case), expected, rtol=1e-9, atol=1e-9, err_msg=case)


def test_calibration_meets_the_budget_from_below_and_above():
    for epsilon, delta in GRID:
        mu = mu_of(epsilon, delta)
        assert hockey_stick(epsilon, mu * (1 - 1e-6)) < math.log(delta)
        assert hockey_stick(epsilon, mu * (1 + 1e-6)) > math.log(delta)
        assert_allclose(epsilon_of(mu, delta), epsilon, rtol=1e-9)
    for delta in (1e-100, 1e-12, 0.5, 0.999):  # of the smallest epsilon
        mu = mu_of(1e-6, delta)
        assert_allclose(epsilon_of(mu, delta), 1e-6, rtol=1e-3)
        assert_allclose(math.exp(hockey_stick(1e-6, mu)), delta, rtol=1e-3)


def test_limits():
    assert mu_of(inf, 1e-5) == epsilon_of(inf, 1e-5) == inf
    assert epsilon_of(0.0, 1e-5) == 0.0
    assert epsilon_of(0.01, 0.1) == 0.0  # total variation 2 Phi(mu / 2) - 1 is below delta
    mu = [mu_of(10.0**k, 1e-6) for k in range(-6, 7)]
    assert np.all(np.diff(mu) > 0)
    assert_allclose(mu[-1] / math.sqrt(2e6), 1, rtol=0.01)  # mu^2 / 2 is the mean of the loss


@pytest.mark.parametrize(
    ("epsilon", "delta", "times"), [(*GRID[i], (1, 101)[i // 3 % 2]) for i in range(0, 20, 3)]
)
def test_a_pld_accountant_agrees(epsilon, delta, times):
    pld = accountant("pld.privacy_loss_distribution")
    mu = mu_of(epsilon, delta) / math.sqrt(times)
    step = min(1e-3, epsilon / (100 + 4 * times))  # the error of a step counts so many times
    one = pld.from_gaussian_mechanism(
        1 / mu, value_discretization_interval=step, use_connect_dots=True
    )
    # discretised privacy losses are pessimistic, by less than 1 % here
    found = one.self_compose(times).get_epsilon_for_delta(delta)
    assert epsilon * (1 - 1e-6) <= found <= epsilon * 1.01


# ------------------------------------------------------------------------------ mechanisms


@pytest.mark.parametrize("kind", ONE_ROUND)
@pytest.mark.parametrize("d", [1, 5, 784])
def test_noise_is_the_published_one_and_never_less_than_is_needed(kind, d):
    """Of the last budget the published one is too small: the logarithm is negative."""
    for epsilon, delta in [*GRID, (1000.0, 0.45)]:
        mechanism = kind(epsilon, delta, 3.0, mean="fixed")
        costs = mechanism.costs(d, 1)
        std = mechanism.terms(np.zeros((7, d)), costs).product_std
        least = math.sqrt(2) * 9 / mu_of(epsilon, delta)
        assert std >= least * (1 - 1e-12)
        assert mechanism.spent(costs.product).epsilon <= epsilon * (1 + 1e-9)
        logarithm = (d**2 + d) / 2 if kind is ModSuLQ else d**2
        if kind is AnalyzeGauss or (kind, epsilon, d) == (ModSuLQ, 1000.0, 1):
            assert_allclose(std, least)
        elif logarithm / (delta * math.sqrt(2 * math.pi)) >= 1:
            assert_allclose(std, max(7 * 9 * published_std(kind, d, 7, epsilon, delta), least))


@pytest.mark.parametrize("kind", [ModSuLQ, StreamingModSuLQ])
def test_published_noise_spends_what_it_really_costs(kind):
    model = model_of(kind(1.0, 1e-5, 3.0, mean_share=0.25), 2).fit(rows())
    mu2 = 0.75 * 2 / published_std(kind, 6, 1, 1.0, 1e-5) ** 2 + 0.25 * mu_of(1.0, 1e-5) ** 2
    assert_allclose(model.privacy_spent_, (epsilon_of(math.sqrt(mu2), 1e-5), 1e-5), rtol=1e-9)


# ------------------------------------------------------------------------------ searches


@pytest.mark.parametrize("mu2", [1e-8, 1e-3, 0.1, 1.0, 10.0, 300.0])
def test_the_range_of_a_cost_is_that_of_the_hardest_two_outcomes(mu2):
    """Delta at every epsilon, by hand, against that of Gaussians of the stated mu.

    Of two outcomes with losses t and t - eta, p = q e^t and 1 - p = (1 - q) e^(t - eta).
    """
    eta, mu = range_of(mu2), math.sqrt(mu2)
    assert_allclose(2 * stats.norm.isf(1 / (1 + math.exp(eta / 2))), mu, rtol=1e-8)
    for t in eta * np.array([0.01, 0.2, 0.5, 0.8, 0.99]):
        q = math.expm1(eta - t) / (math.exp(eta) - 1)
        p = q * math.exp(t)
        for epsilon in np.linspace(0, eta, 41):
            e = math.exp(epsilon)
            delta = max(p - e * q, 0) + max(1 - p - e * (1 - q), 0)
            assert delta <= math.exp(log_delta(epsilon, mu)) + 1e-12
    assert math.isinf(range_of(inf))


def test_a_pld_accountant_finds_no_more_in_a_search_with_a_gaussian_release():
    pld = accountant("pld.privacy_loss_distribution")
    epsilon, delta, share = 1.0, 1e-5, 0.16
    mu2 = mu_of(epsilon, delta) ** 2
    # randomised response with e^(eta / 2): the two outcomes of the worst case
    keep, step = 1 / (1 + math.exp(range_of(share * mu2) / 2)), 1e-5
    search = pld.from_randomized_response(2 * keep, 2, value_discretization_interval=step)
    release = pld.from_gaussian_mechanism(
        1 / math.sqrt((1 - share) * mu2), value_discretization_interval=step
    )
    both = search.compose(release).get_epsilon_for_delta(delta)
    assert 0.9 * epsilon < both <= epsilon * (1 + 1e-4)


@pytest.mark.parametrize("n_rounds", range(1, N_ROUNDS + 1))
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-5), (1.0, 1e-6), (4.0, 1e-3)])
def test_all_releases_of_a_fit_compose_to_what_an_accountant_says(epsilon, delta, n_rounds):
    """Every norm, mean and the product as Gaussians, composed by sigma: delta to 1e-12."""
    losses = accountant("pld.privacy_loss_mechanism")
    private = AnalyzeGauss(epsilon, delta, "private", center="private")
    budget, (n, d) = private.budget(), (5000, 30)
    center, norm = PrivateCenter(), PrivateNorm().cost(n, d, budget)
    of_round = [center._cost_of_norm(n, budget), center._cost_of_mean(n, d, budget)]
    costs = private.costs(d, 1, 1.0, n_rounds * sum(of_round) + norm)
    mu = math.sqrt(math.fsum([*of_round * n_rounds, norm, costs.product, costs.mean]))
    stated = private.spent(private.cost(costs, d)).epsilon
    for at in (stated, epsilon / 2, 2 * epsilon):
        expected = losses.GaussianPrivacyLoss(1 / mu).get_delta_for_epsilon(at)
        assert_allclose(math.exp(log_delta(at, mu)), expected, rtol=1e-12)
        if at == stated:
            assert_allclose(expected, delta, rtol=1e-11)


# ------------------------------------------------------------------------------ noise on a grid


@pytest.mark.parametrize(("variance", "moved"), [(200, 3), (5000, 60), (5000, 200)])
def test_the_cost_of_a_grid_beside_dp_accounting(variance, moved):
    """One number: their accountant of the discrete Gaussian finds no more, and little less."""
    exact = accountant("pld.privacy_loss_distribution").from_discrete_gaussian_mechanism(
        math.sqrt(variance), sensitivity=moved, value_discretization_interval=1e-4
    )
    for delta in (1e-3, 1e-6):
        theirs = exact.get_epsilon_for_delta(delta)
        stated = epsilon_of(math.sqrt(moved**2 / (variance - 2 * _SLACK)), delta)
        # 1e-4: what theirs is rounded up to
        assert theirs - 1e-4 <= stated <= theirs / (1 - 2 * _SLACK / variance)


def test_the_cost_of_a_grid_beside_renyi_accounting():
    """Many numbers: concentrated privacy of the same noise has a looser conversion."""
    mu2 = DiscreteGaussian(bits=20).cost(2.0, 8.0, 100)
    theirs = accountant("rdp").RdpAccountant()
    theirs.compose(accountant("dp_event").ZCDpEvent(mu2 / 2))
    assert 0.8 < epsilon_of(math.sqrt(mu2), 1e-5) / theirs.get_epsilon(1e-5) < 1


@pytest.mark.parametrize("n_shares", [1, 7])
@pytest.mark.parametrize("bits", [10, 20, 30])
def test_the_noise_makes_up_for_what_the_grid_costs(bits, n_shares):
    noise, budget, entries = DiscreteGaussian(bits), 0.3, 900
    part = noise.gaussian_part(budget, entries)
    std = 2.0 / math.sqrt(part)
    assert gaussian_cost(2.0, std) < budget
    found = noise.cost(2.0, std, entries, n_shares)
    assert found <= budget * (1 + 1e-12)
    assert found == pytest.approx(budget, rel=1e-12) if n_shares == 1 else found > part
    assert part > budget * (1 - 150 * 2.0**-bits)
    assert noise.cost(1.0, 0.0, 5) == noise.gaussian_part(inf, 5) == inf
