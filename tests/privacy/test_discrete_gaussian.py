"""Gaussian noise on a grid: its law, its sums, and what it costs beside another accountant."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from sklearn.base import clone

from fedpca_sklearn import AnalyzeGauss, FederatedPCA, FederatedPowerPCA, FedPowerNoise
from fedpca_sklearn.privacy import DiscreteGaussian, gaussian_cost
from fedpca_sklearn.privacy._discrete_gaussian import _SLACK, _samples
from fedpca_sklearn.privacy._gaussian import epsilon_of

pytestmark = pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning")
ROWS = np.random.default_rng(0).standard_normal((90, 5)) * [3, 2, 1, 1, 1]


def law(variance, width=12):
    """P(z) of the discrete Gaussian, by its definition, and its integers."""
    z = np.arange(-int(width * math.sqrt(variance)), int(width * math.sqrt(variance)) + 1)
    weights = np.exp(-(z**2) / (2 * variance))
    return z, weights / weights.sum()


def drawn(variance, size, seed=0):
    return np.array(list(_samples(variance, size, np.random.default_rng(seed))))


def test_samples_have_the_law_of_the_definition():
    z, expected = law(64)
    found = drawn(64, 4000)
    edges = np.arange(-24, 25, 2)
    counts = np.histogram(found, [-np.inf, *edges, np.inf])[0]
    sums = np.histogram(z, [-np.inf, *edges, np.inf], weights=expected)[0]
    assert stats.chisquare(counts, 4000 * sums).pvalue > 0.01


def test_samples_of_a_large_variance_are_normal():
    variance = 3 * 2**80 + 1
    found = drawn(variance, 2000) / math.sqrt(variance)
    assert stats.kstest(found, "norm").pvalue > 0.01


def test_a_sum_of_samples_has_the_law_of_their_variances():
    """Poisson's summation: to rounding at the least variance that is allowed."""
    _, p = law(64)
    total = np.convolve(np.convolve(p, p), p)
    z = np.arange(len(total)) - len(total) // 2
    expected = np.exp(-(z**2) / (2 * 3 * 64))
    expected /= expected.sum()
    here = np.abs(z) < 60
    np.testing.assert_allclose(total[here], expected[here], rtol=1e-12)


def test_a_random_rounding_of_normal_noise_is_the_discrete_gaussian():
    """The proof, where r is small enough for the factor 1 +- t to be seen."""
    r2, s2 = 0.25, 2.0
    t = 3 * math.exp(-2 * math.pi**2 * r2)
    z, expected = law(s2 + r2, 8)

    def rounded_to(y):
        def density(c):
            rho = np.exp(-((z - c) ** 2) / (2 * r2)).sum()
            rounded = math.exp(-((y - c) ** 2) / (2 * r2)) / rho
            return stats.norm.pdf(c, scale=math.sqrt(s2)) * rounded

        return quad(density, -9, 9, points=[y], limit=200)[0]

    ratios = [rounded_to(y) / expected[z == y][0] for y in range(5)]
    assert max(np.abs(np.log(ratios))) < 3 * t
    assert max(np.abs(np.log(ratios))) > t / 100  # it can be seen
    assert 9 * math.exp(-2 * math.pi**2 * _SLACK) * 1e12 < 1e-120


@pytest.mark.parametrize(("variance", "moved"), [(200, 3), (5000, 60), (5000, 200)])
def test_the_cost_beside_dp_accounting(variance, moved):
    """One number: their accountant of the discrete Gaussian finds no more, and little less."""
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    exact = pld.from_discrete_gaussian_mechanism(
        math.sqrt(variance), sensitivity=moved, value_discretization_interval=1e-4
    )
    ours = math.sqrt(moved**2 / (variance - 2 * _SLACK))
    for delta in (1e-3, 1e-6):
        theirs = exact.get_epsilon_for_delta(delta)
        stated = epsilon_of(ours, delta)
        assert theirs <= stated + 1e-4  # what theirs is rounded up to
        assert stated <= theirs / (1 - 2 * _SLACK / variance)


def test_the_cost_beside_renyi_accounting():
    """Many numbers: concentrated privacy of the same noise has a looser conversion."""
    dp_event = pytest.importorskip("dp_accounting.dp_event")
    rdp = pytest.importorskip("dp_accounting.rdp")
    mu2 = DiscreteGaussian(bits=20).cost(2.0, 8.0, 100)
    accountant = rdp.RdpAccountant()
    accountant.compose(dp_event.ZCDpEvent(mu2 / 2))
    theirs = accountant.get_epsilon(1e-5)
    assert 0.8 * theirs < epsilon_of(math.sqrt(mu2), 1e-5) < theirs


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


def test_a_grid_that_is_too_coarse_and_values_that_are_too_large():
    with pytest.raises(ValueError, match="too coarse for 1000000 numbers"):
        DiscreteGaussian(10).gaussian_part(0.1, 10**6)
    with pytest.raises(ValueError, match="take fewer bits"):
        DiscreteGaussian(30).noisy(np.array([1e9]), 1.0, np.random.default_rng(0))
    for bits in (9, 31, 20.0, None):
        with pytest.raises(ValueError, match="bits must be an integer from 10 to 30"):
            DiscreteGaussian(bits)
    assert DiscreteGaussian().cost(1.0, 0.0, 5) == math.inf
    assert DiscreteGaussian().gaussian_part(math.inf, 5) == math.inf


def test_messages_are_on_the_grid_and_their_sum_is_that_of_the_integers():
    noise, rng = DiscreteGaussian(12), np.random.default_rng(0)
    grid = noise.grid(3.0)
    messages = [noise.noisy(rng.standard_normal((4, 6)) * 1e4, 3.0, rng) for _ in range(5)]
    integers = [np.int64(message / grid) for message in messages]
    for message, steps in zip(messages, integers, strict=True):
        np.testing.assert_array_equal(message, steps * grid)
    masks = rng.integers(2**64, size=(4, 4, 6), dtype=np.uint64)
    masked = [m.view(np.uint64) for m in integers]
    for i, mask in enumerate(masks):  # masks that cancel modulo 2^64
        masked[i], masked[i + 1] = masked[i] + mask, masked[i + 1] - mask
    total = np.sum(masked, axis=0, dtype=np.uint64).view(np.int64)
    np.testing.assert_array_equal(total * grid, np.sum(messages, axis=0))


def test_noise_of_a_symmetric_matrix():
    """Size s on the diagonal and s / sqrt(2) off it, as Analyze Gauss has it."""
    noise, rng, s = DiscreteGaussian(), np.random.default_rng(0), 7.0
    found = np.array([noise.noisy_symmetric(np.eye(4), s, rng) for _ in range(200)]) - np.eye(4)
    np.testing.assert_array_equal(found, found.transpose(0, 2, 1))
    on, off = found[:, range(4), range(4)], found[:, *np.triu_indices(4, 1)]
    assert stats.kstest(on.ravel() / s, "norm").pvalue > 0.01
    assert stats.kstest(off.ravel() / s * math.sqrt(2), "norm").pvalue > 0.01


ESTIMATORS = [
    FederatedPCA(2, mechanism=AnalyzeGauss(2.0, 1e-5, 6.0), n_clients=3),
    FederatedPowerPCA(2, n_rounds=3, mechanism=FedPowerNoise(2.0, 1e-5, 6.0), n_clients=3),
]


@pytest.mark.parametrize("trust", ["client", "sum"])
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_estimators_with_noise_on_a_grid(estimator, trust):
    noisy = clone(estimator).set_params(mechanism__noise=DiscreteGaussian(), random_state=0)
    noisy.set_params(mechanism__trust=trust).fit(ROWS)
    epsilon, delta = noisy.privacy_spent_
    assert delta == 1e-5
    assert 2.0 * (1 - 1e-4) < epsilon <= 2.0 * (1 + 1e-9)
    plain = clone(noisy).set_params(mechanism__epsilon=math.inf).fit(ROWS)
    without = clone(plain).set_params(mechanism__noise=None).fit(ROWS)
    np.testing.assert_array_equal(plain.explained_variance_, without.explained_variance_)


def test_the_first_variance_has_the_same_distribution():
    mechanism = AnalyzeGauss(8.0, 1e-3, 6.0, trust="sum")
    fits = [
        [
            FederatedPCA(2, mechanism=m, n_clients=3, random_state=seed).fit(ROWS)
            for seed in range(start, start + 100)
        ]
        for m, start in (
            (mechanism, 0),
            (clone(mechanism).set_params(noise=DiscreteGaussian()), 1000),
        )
    ]
    samples = [[pca.explained_variance_[0] for pca in some] for some in fits]
    assert stats.ks_2samp(*samples).pvalue > 0.01
