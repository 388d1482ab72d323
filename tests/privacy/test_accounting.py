"""What noise costs: epsilon, delta and mu of a release, and of many.

Oracles are numerical integrals over two densities, the published formulas written down again, and
dp-accounting's privacy-loss distributions and Renyi accountant.

How far neighbours move a message, the noise that hides it, and an attack with the best test.

Oracles are a search over neighbouring rows, the papers' formulas by Monte Carlo and random-matrix
theory. Statistical margins are five standard deviations of the quantity.
"""

import math
from itertools import pairwise, product

import numpy as np
import pytest
from helpers import peak_bytes
from numpy.testing import assert_allclose, assert_array_equal
from privacy_helpers import (
    GRID,
    MARGIN,
    ONE_ROUND,
    every_container,
    every_trust,
    hockey_stick,
    inf,
    model_of,
    mostly_noise,
    published_std,
    rows,
)
from scipy import optimize, stats
from sklearn.base import clone

from fedpca_sklearn import AnalyzeGauss, FedPowerNoise, ModSuLQ, StreamingModSuLQ
from fedpca_sklearn._kernels.rows import scatter_product
from fedpca_sklearn.communication import Federation
from fedpca_sklearn.privacy import DiscreteGaussian, gaussian_cost
from fedpca_sklearn.privacy._gaussian import _SLACK, _samples, epsilon_of, log_delta, mu_of
from fedpca_sklearn.privacy._private_searches import range_of
from fedpca_sklearn.privacy._rows import ClippedRows
from fedpca_sklearn.rounds._queries import PrivateClient, TimesScatter, Variances

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


@pytest.mark.parametrize("n_clients", [1, 8])
def test_who_adds_all_of_its_noise_is_charged_for_its_own_grid(n_clients):
    private = AnalyzeGauss(1.0, 1e-5, 8.0, noise=DiscreteGaussian(12))
    pca = model_of(private, n_clients=n_clients).fit(np.zeros((40, 30)))
    assert pca.privacy_spent_.epsilon == pytest.approx(1.0, rel=1e-4)  # the whole budget


# ------------------------------------------------------------------------------ noise


def expected_std(kind, d, epsilon, delta, row_norm):
    """Scale of the noise on the sum of outer products, for the whole budget."""
    needed = math.sqrt(2) * row_norm**2 / mu_of(epsilon, delta)
    if kind in (AnalyzeGauss, FedPowerNoise):
        return needed
    return max(needed, row_norm**2 * published_std(kind, d, 1, epsilon, delta))


@pytest.fixture
def arrived(monkeypatch):
    """Every sum that a server receives."""
    received, sum_ = [], Federation.sum

    def recording(self, *arguments, **options):
        received.append(sum_(self, *arguments, **options))
        return received[-1]

    monkeypatch.setattr(Federation, "sum", recording)
    return received


# ----------------------------------------------------------------------------------- sensitivity


def worst(distance, d, tries=8, seed=0):
    """Largest distance of neighbours, rows y and z in the unit ball, that a search finds."""
    rng = np.random.default_rng(seed)

    def negative(yz):
        return -distance(*(v / max(1.0, np.linalg.norm(v)) for v in (yz[:d], yz[d:])))

    starts = rng.standard_normal((tries, 2 * d))
    starts[: tries // 4, d:] *= 1e-3  # a row against nearly nothing
    starts[0] = np.eye(2 * d)[0] + np.eye(2 * d)[d + 1]  # two axes
    return max(-optimize.minimize(negative, start, method="BFGS").fun for start in starts)


def clipped(y):
    return ClippedRows.of(y[None], None, 1.0)


def moment(y):
    """Second moment of one row, as clients compute it."""
    return clipped(y).products(slice(0, len(y)))


def product_of(y, r):
    V = np.linalg.qr(np.random.default_rng(1).standard_normal((len(y), r)))[0].T
    return scatter_product(y[None], np.zeros(len(y)), V), V


def by_goe(D):
    """Distance over s of symmetric noise with s on the diagonal and s / sqrt(2) off it."""
    return math.sqrt(np.sum(np.diag(D) ** 2) + np.sum(np.triu(D, 1) ** 2) / 0.5)


def of_product(r):
    return lambda y, z: np.linalg.norm(product_of(y, r)[0] - product_of(z, r)[0])


def of_last_round(r):
    def distance(y, z):
        (a, V), (b, _) = product_of(y, r), product_of(z, r)
        return math.hypot(by_goe((a - b) @ V.T), y @ y - z @ z)  # the trace is free

    return distance


def moved_by(size):
    return lambda y, z: size(moment(y) - moment(z))


MOMENTS = {
    "gaussian orthogonal ensemble": by_goe,
    "upper triangle": lambda D: math.sqrt(np.sum(np.triu(D) ** 2)),
    "all entries": np.linalg.norm,
}


@pytest.mark.parametrize(
    ("distance", "d", "largest"),
    [
        *[(moved_by(size), 3, math.sqrt(2)) for size in MOMENTS.values()],
        *[(of(r), 4, math.sqrt(2)) for of, r in ((of_product, 2), (of_last_round, 3))],
        (lambda y, z: np.linalg.norm(clipped(y).sum() - clipped(z).sum()), 3, 2),
    ],
    ids=[*MOMENTS, "product", "last round", "sum"],
)
def test_neighbours_move_a_message_by_the_stated_distance(distance, d, largest):
    assert_allclose(worst(distance, d), largest, rtol=1e-6)


@pytest.mark.parametrize("noise", [None, DiscreteGaussian()])
def test_no_number_of_the_last_round_is_without_noise(noise):
    """Of two sums for one entry, (i, j) and (j, i), symmetric noise leaves what rounding tells.

    Rows of zeros give none, so that a difference would prove a row that is not zero.
    """
    mechanism = FedPowerNoise(1.0, 1e-5, 3.0, mean="fixed", noise=noise)
    rng = np.random.default_rng(0)
    X, V = rng.standard_normal((400, 6)), np.linalg.qr(rng.standard_normal((6, 4)))[0].T
    client = PrivateClient.of("a", X, mechanism, mechanism.terms(X, mechanism.costs(6, 3)), ())
    for seed in range(20):
        inner = Variances(V, np.zeros(6)).released(client, np.random.default_rng(seed))[:-1]
        assert_array_equal(inner.reshape(4, 4), inner.reshape(4, 4).T)


@pytest.mark.parametrize(("query", "moved"), [(TimesScatter, 1), (Variances, math.sqrt(2))])
def test_a_basis_within_the_tolerance_of_sites_moves_no_more(query, moved):
    """Sites take rows that are orthonormal to 1e-6; thirty of them stretch by 30e-6 / 2."""
    k = 30
    root = np.linalg.cholesky(np.eye(k) + 0.99e-6 * (np.ones((k, k)) - np.eye(k)))
    mechanism = FedPowerNoise(np.inf, 1e-5, 1.0, mean="fixed")
    terms = mechanism.terms(np.eye(k), mechanism.costs(k, 3))

    def released(row):
        client = PrivateClient.of("a", row, mechanism, terms, ())
        return query(root, np.zeros(k)).released(client, np.random.default_rng(0))

    found = released(np.linalg.svd(root)[2][:1]) - released(np.zeros((1, k)))
    assert np.linalg.norm(found) < moved * (1 + 1e-12)


@pytest.mark.parametrize("kind", [AnalyzeGauss, FedPowerNoise])
def test_an_attack_with_the_best_test_wins_what_is_promised_and_no_more(kind):
    """Neyman-Pearson on the releases themselves, of the worst neighbours."""
    epsilon, delta, n_times, d = 0.5, 0.1, 3_000, 2
    mechanism = kind(epsilon, delta, 3.0, mean_share=0.5)
    y, z = np.array([[3.0, 0.0]]), np.array([[0.0, 30.0]])  # the second is clipped to 3
    costs = mechanism.costs(d, 1)
    terms, rng = mechanism.terms(y, costs), np.random.default_rng(0)

    def release(row):
        here = ClippedRows.of(row, None, 3.0)
        if kind is AnalyzeGauss:
            noisy = mechanism.noisy_columns(here, slice(0, d), terms, rng)
            return noisy, mechanism.noisy_sum(here, terms, rng)
        M = here.products(slice(0, d))
        inner, _ = mechanism.noisy_variances(M, np.trace(M), terms, rng)
        return inner, mechanism.noisy_sum(here, terms, rng)

    def statistic(M, total):
        s, t = terms.product_std, terms.mean_std
        return (M[0, 0] - M[1, 1]) * 9 / s**2 + (total[0] - total[1]) * 3 / t**2

    here, there = (np.array([statistic(*release(x)) for _ in range(n_times)]) for x in (y, z))
    # the loss is symmetric about zero: mu^2 = 2 * 81 / s^2 + 2 * 9 / t^2, loss = the statistic
    mu2 = 162 / terms.product_std**2 + 18 / terms.mean_std**2
    # on orthogonal rows the sum has sqrt(2) R of its 2 R
    assert_allclose(mu2, costs.product + costs.mean / 2)
    at = epsilon_of(math.sqrt(mu2), delta)  # what these two rows give away
    assert at < epsilon
    won = np.mean(here > at) - math.exp(at) * np.mean(there > at)
    assert abs(won - delta) < MARGIN * math.sqrt((1 + math.exp(2 * at)) / 4 / n_times)


# ----------------------------------------------------------------------------------------- noise


def assert_variance(values, std):
    values = np.ravel(values)
    assert abs(np.mean(values**2) / std**2 - 1) < MARGIN * math.sqrt(2 / len(values))
    assert abs(values.mean()) < MARGIN * std / math.sqrt(len(values))


def assert_uncorrelated(a, b):
    a, b = np.ravel(a), np.ravel(b)
    size = min(len(a), len(b))
    assert abs(np.corrcoef(a[:size], b[:size])[0, 1]) < MARGIN / math.sqrt(size)


def assert_symmetric_noise(N, kind, std):
    """Every entry has noise, mirrored if the mechanism is symmetric, of the right variance."""
    d = N.shape[-1]
    above, below = (part[:, *np.triu_indices(d, 1)] for part in (N, N.transpose(0, 2, 1)))
    off = std / math.sqrt(2) if kind is AnalyzeGauss else std
    for values, size in ((N[:, range(d), range(d)], std), (above, off), (below, off)):
        assert_variance(values, size)
    assert np.allclose(above, below, rtol=1e-12) == (kind is not StreamingModSuLQ)
    if kind is StreamingModSuLQ:
        assert_uncorrelated(above, below)


@pytest.mark.parametrize(
    ("kind", "noise"), [*[(kind, None) for kind in ONE_ROUND], (AnalyzeGauss, DiscreteGaussian())]
)
@every_trust
@pytest.mark.parametrize("n_clients", [1, 4])
def test_noise_that_arrives_at_the_server(kind, noise, trust, n_clients, arrived):
    """Rows of zeros, so that messages are noise; with "sum" the sum has the right variance."""
    d, n, epsilon, delta, share, row_norm = 40, 8, 0.8, 1e-3, 0.3, 2.5
    X = np.zeros((n, d))
    mechanism = kind(epsilon, delta, row_norm, mean_share=share, trust=trust)
    mechanism.set_params(**{} if noise is None else {"noise": noise})
    std = expected_std(kind, d, epsilon, delta, row_norm) / math.sqrt(1 - share)
    moments, totals = [], []
    if trust == "sum":
        for seed in range(30):
            arrived.clear()
            model_of(mechanism, n_clients=n_clients, random_state=seed).fit(X)
            totals.append(arrived[0])
            moments.append(np.concatenate(arrived[1:], axis=1))
    else:  # what a single client sends, whatever the number of clients
        terms = mechanism.terms(X, mechanism.costs(d, 1), n_clients)
        here, rng = ClippedRows.of(X, None, row_norm), np.random.default_rng(0)
        for _ in range(30):
            totals.append(mechanism.noisy_sum(here, terms, rng))
            moments.append(mechanism.noisy_columns(here, slice(0, d), terms, rng))
    assert_symmetric_noise(np.stack(moments), kind, std)
    assert_variance(totals, 2 * row_norm / (mu_of(epsilon, delta) * math.sqrt(share)))


def test_a_mean_is_within_the_bound_of_the_centre():
    X, mechanism = np.zeros((2, 2)), AnalyzeGauss(2.0, 1e-3, 1.0)
    terms = mechanism.terms(X, mechanism.costs(2, 1))
    assert_allclose(terms.within(np.array([3.0, 4.0])), [0.6, 0.8])
    assert_array_equal(terms.within(np.array([0.3, 0.4])), [0.3, 0.4])
    for kind in ONE_ROUND:  # with noise that is far larger
        private = model_of(kind(0.1, 1e-3, 1.0, center=5.0, trust="sum"), 2)
        assert np.linalg.norm(private.fit(np.zeros((8, 3)) + 5).mean_ - 5) < 1 + 1e-12


@every_trust
@pytest.mark.parametrize("mean", ["private", "fixed"])
def test_noise_of_each_round_of_the_power_method(trust, mean, arrived):
    d, r, n_clients, n_rounds, row_norm = 400, 3, 4, 5, 2.0
    mechanism = FedPowerNoise(1.0, 1e-3, row_norm, mean=mean, mean_share=0.3, trust=trust)
    X = np.zeros((n_clients * 2, d))
    options = {"n_rounds": n_rounds, "acceleration": None, "tol": 0, "n_clients": n_clients}
    shift = model_of(mechanism, r, **options).fit(X).mean_
    mu, here = mu_of(1.0, 1e-3), 1 if trust == "sum" else n_clients
    share = 0.3 if mean == "private" else 0.0
    if mean == "private":
        assert_variance(arrived.pop(0)[:-1], 2 * row_norm / (mu * share**0.5) * here**0.5)
    std = math.sqrt(2) * row_norm**2 / mu * math.sqrt((n_rounds + 1) / (1 - share)) * here**0.5
    *products, last = arrived
    assert len(products) == n_rounds
    # less n (V m) m^T, known to all
    fresh = [p - (p @ shift[:, None]) * shift / (shift @ shift or 1) for p in products]
    for off in fresh:
        assert_variance(off, std * math.sqrt(1 - 1 / d if mean == "private" else 1))
    for a, b in pairwise(fresh):
        assert_uncorrelated(a, b)
    assert last[-1] == len(X)


@every_trust
def test_noise_of_the_last_round(trust):
    mechanism = FedPowerNoise(1.0, 1e-3, 2.0, mean="fixed", trust=trust)
    terms = mechanism.terms(np.zeros((4, 50)), mechanism.costs(50, 6), 4)
    rng = np.random.default_rng(0)
    noise = [mechanism.noisy_variances(np.zeros((30, 30)), 0.0, terms, rng) for _ in range(200)]
    std = math.sqrt(2) * 4 / mu_of(1.0, 1e-3) * math.sqrt(6 / (4 if trust == "sum" else 1))
    assert_symmetric_noise(np.stack([inner for inner, _ in noise]), AnalyzeGauss, std)
    assert_variance([trace for _, trace in noise], std)


@pytest.mark.parametrize("kind", ONE_ROUND)
def test_scatter_is_the_noisy_trace(kind):
    """Directions that are not kept stay in it, with noise of s on each diagonal entry."""
    d, row_norm, epsilon = 300, 20.0, 1e4
    X = rows(2000, d, mean=0.0)
    mechanism = kind(epsilon, 1e-3, row_norm, mean="fixed")
    found = model_of(mechanism, 2, n_clients=1).fit(X).subspace_
    exact = np.sum(X**2 * np.minimum(1, row_norm**2 / np.sum(X**2, axis=1))[:, None])
    std = expected_std(kind, d, epsilon, 1e-3, row_norm)
    assert float(found.singular_values @ found.singular_values) < 0.5 * exact
    assert abs(found.scatter - exact) < MARGIN * std * math.sqrt(d) < 0.1 * exact


@every_trust
@pytest.mark.parametrize("kind", [StreamingModSuLQ, FedPowerNoise])
@every_container
def test_no_matrix_of_all_pairs_of_features(kind, trust, container):
    d = 2000  # d x d would be 32 MB
    X = np.random.default_rng(0).standard_normal((30, d)) * (np.arange(d) % 50 == 0)
    options = {"n_rounds": 3} if kind is FedPowerNoise else {}
    model, X = model_of(kind(10.0, 1e-3, 30.0, trust=trust), 2, **options), container(X)
    assert peak_bytes(lambda: model.fit(X)) < 16e6
    if kind is StreamingModSuLQ and trust == "sum":
        assert model.communication_.rounds == 1 + -(-d // 64)


# ------------------------------------------------------------------------------- randomness


def test_noise_is_fresh_in_every_call_and_client(arrived):
    X = np.tile(rows(20), (2, 1))
    mechanism = AnalyzeGauss(1.0, 1e-3, 3.0, n_releases=2, trust="sum")
    model = model_of(mechanism, 2, n_clients=1)
    for _ in range(2):
        model.partial_fit(X, clients=["a"] * 40)
    # an integer seed does not repeat its noise
    assert np.abs(arrived[1] - arrived[3]).min() > 1e-6
    model = model_of(clone(mechanism).set_params(trust="client"), 2)
    model.fit(X, clients=["a"] * 20 + ["b"] * 20)  # the same rows twice
    a, b = (model._clients[label].summary for label in "ab")
    assert np.abs(a.mean - b.mean).min() > 1e-9
    assert abs(a.scatter - b.scatter) > 1e-9


@pytest.mark.parametrize(("kind", "n_messages"), [(AnalyzeGauss, 2), (StreamingModSuLQ, 1 + 5)])
def test_messages_of_a_call_have_noise_of_their_own(kind, n_messages, arrived):
    """The sum of rows and each block of 64 columns; a shared stream would correlate them."""
    model_of(kind(1.0, 1e-3, 2.0, trust="sum"), 2).fit(np.zeros((4, 300)))
    assert len(arrived) == n_messages
    for i, a in enumerate(arrived):
        for b in arrived[:i]:
            assert_uncorrelated(a, b)


@every_trust
@pytest.mark.parametrize("kind", [AnalyzeGauss, FedPowerNoise])
def test_without_a_seed_the_noise_does_not_follow_the_global_generator(kind, trust, monkeypatch):
    model = model_of(kind(1.0, 1e-5, 3.0, trust=trust), 2, random_state=None)
    means = []
    for _ in range(2):  # as two processes that were forked
        monkeypatch.setattr(np.random.mtrand, "_rand", np.random.RandomState(0))
        means.append(clone(model).fit(rows()).mean_)
    assert (means[0] != means[1]).all()


# ------------------------------------------------------------------------- noise on a grid


def law(variance, width=12):
    """P(z) of the discrete Gaussian, by its definition, and its integers."""
    z = np.arange(-int(width * math.sqrt(variance)), int(width * math.sqrt(variance)) + 1)
    weights = np.exp(-(z**2) / (2 * variance))
    return z, weights / weights.sum()


def drawn(variance, size):
    return np.array(list(_samples(variance, size, np.random.default_rng(0))))


def test_samples_have_the_law_of_the_definition():
    z, expected = law(64)
    bins = [-np.inf, *np.arange(-24, 25, 2), np.inf]
    counts = np.histogram(drawn(64, 4000), bins)[0]
    sums = np.histogram(z, bins, weights=expected)[0]
    assert stats.chisquare(counts, 4000 * sums).pvalue > 0.01
    large = 3 * 2**80 + 1
    assert stats.kstest(drawn(large, 2000) / math.sqrt(large), "norm").pvalue > 0.01


def test_messages_are_on_the_grid_and_their_sum_is_that_of_the_integers():
    noise, rng = DiscreteGaussian(12), np.random.default_rng(0)
    grid = noise.grid(3.0)
    assert 3.0 * 2.0**-13 < grid <= 3.0 * 2.0**-12  # as fine as the cost of a message has it
    messages = [noise.noisy(rng.standard_normal((4, 6)) * 1e4, 3.0, rng) for _ in range(5)]
    integers = [np.int64(message / grid) for message in messages]
    for message, steps in zip(messages, integers, strict=True):
        assert_array_equal(message, steps * grid)
    masks = rng.integers(2**64, size=(4, 4, 6), dtype=np.uint64)
    masked = [m.view(np.uint64) for m in integers]
    for i, mask in enumerate(masks):  # masks that cancel modulo 2^64
        masked[i], masked[i + 1] = masked[i] + mask, masked[i + 1] - mask
    total = np.sum(masked, axis=0, dtype=np.uint64).view(np.int64)
    assert_array_equal(total * grid, np.sum(messages, axis=0))
