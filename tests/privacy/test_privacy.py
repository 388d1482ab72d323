"""Mechanisms of differential privacy, their accounting, and what they leave behind.

Oracles are numerical integrals over two normal densities, the published formulas written down
again, numpy's SVD of rows clipped by hand, random-matrix theory, and an attack with the best test
there is. Statistical margins are five standard deviations of the quantity.
"""

import math
import pickle
import warnings
from functools import partial
from itertools import pairwise

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
from helpers import peak_bytes
from numpy.testing import assert_allclose, assert_array_equal
from scipy import optimize
from sklearn import config_context
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedpca_sklearn import (
    AnalyzeGauss,
    FadingChannel,
    FederatedPCA,
    FederatedPowerPCA,
    FedPowerNoise,
    GaussianChannel,
    ModSuLQ,
    PerfectChannel,
    PrivacyBudgetError,
    PrivacyLeakWarning,
    ProjectionAverage,
    StreamingModSuLQ,
    StreamingPCA,
    SubspaceMerge,
    subspace_distance,
)
from fedpca_sklearn._kernels.rows import scatter_product
from fedpca_sklearn.communication import Federation
from fedpca_sklearn.privacy import DiscreteGaussian
from fedpca_sklearn.privacy._gaussian import epsilon_of, log_delta, mu_of
from fedpca_sklearn.privacy._rows import ClippedRows
from fedpca_sklearn.rounds._private_client import PrivateClient
from fedpca_sklearn.rounds._queries import Query, TimesScatter, Variances

# small data: what is released is mostly noise
pytestmark = pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning")
inf, nan = math.inf, math.nan
MARGIN = 5  # standard deviations
ONE_ROUND = [AnalyzeGauss, ModSuLQ, StreamingModSuLQ]
every_mechanism = pytest.mark.parametrize("kind", ONE_ROUND)
every_trust = pytest.mark.parametrize("trust", ["client", "sum"])
GRID = [
    (epsilon, delta)
    for epsilon in (0.01, 0.1, 1.0, 4.0, 30.0)
    for delta in (1e-10, 1e-5, 0.05, 0.5)
]
every_budget = pytest.mark.parametrize(("epsilon", "delta"), GRID)


# ------------------------------------------------------------------------------ data and helpers


def rows(n=60, d=6, mean=0.5, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)) * np.linspace(2, 0.5, d) + mean * np.arange(d)


def clipped_by_hand(X, row_norm, center=None):
    """Rows about the centre, the long ones shortened, with a loop."""
    Y = np.array(X, dtype=float) - (0 if center is None else np.asarray(center))
    for y in Y:
        length = math.sqrt(sum(v * v for v in y))
        if length > row_norm:
            y *= row_norm / length
    return Y


def pca_by_hand(X, row_norm, center, mean, k):
    """Mean, leading right singular vectors and variances of clipped rows."""
    Y = clipped_by_hand(X, row_norm, center)
    shift = Y.mean(axis=0) if mean == "private" else np.zeros(X.shape[1])
    _, s, V = np.linalg.svd(Y - shift, full_matrices=False)
    return (0 if center is None else np.asarray(center)) + shift, V[:k], s[:k] ** 2 / (len(X) - 1)


def model_of(mechanism, k=3, **options):
    if isinstance(mechanism, FedPowerNoise):
        options = {"n_rounds": 60, "acceleration": "krylov", "tol": 1e-13, **options}
        return FederatedPowerPCA(k, mechanism=mechanism, random_state=0, **options)
    return FederatedPCA(k, mechanism=mechanism, random_state=0, **options)


def published_std(kind, d, n, epsilon, delta):
    """Noise on M / n for rows of norm 1, as the papers write it."""
    if kind is ModSuLQ:
        root = math.sqrt(2 * math.log((d**2 + d) / (delta * 2 * math.sqrt(2 * math.pi))))
        return (d + 1) / (n * epsilon) * root + 1 / (n * math.sqrt(epsilon))
    root = math.sqrt(2 * math.log(d**2 / (delta * math.sqrt(2 * math.pi))))
    return 4 * d / (epsilon * n) * root + math.sqrt(2) / (n * math.sqrt(epsilon))


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


# ------------------------------------------------------------------------------------ accounting


def hockey_stick(epsilon, mu):
    """Logarithm of the delta of p = N(mu, 1) against q = N(0, 1): the integral of p - e^eps q.

    At a distance x beyond where the privacy loss log(p / q) is epsilon, the loss is epsilon + mu x.
    """
    start = epsilon / mu - mu / 2
    nodes, weights = np.polynomial.legendre.leggauss(40)
    # the density over that at the point where it is largest, so that nothing underflows
    top = max(start, 0.0)
    logs = []
    for a, b in pairwise(np.concatenate([[0], np.geomspace(1e-4, 100, 60)])):
        x = (a + b) / 2 + (b - a) / 2 * nodes
        density = np.exp((top**2 - (start + x) ** 2) / 2)
        logs.append((b - a) / 2 * weights @ (density * -np.expm1(-mu * x)))
    return math.log(sum(logs)) - top**2 / 2 - math.log(2 * math.pi) / 2


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1, 5, 20, 100])
@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 3.0, 10.0])
def test_delta_is_the_hockey_stick_divergence(epsilon, mu):
    assert_allclose(log_delta(epsilon, mu), hockey_stick(epsilon, mu), rtol=1e-9, atol=1e-9)


def test_known_digits():
    assert round(1 / mu_of(1, 1e-5), 5) == 3.73063
    assert round(math.sqrt(10) / mu_of(1, 1e-5), 5) == 11.79729


@every_budget
def test_calibration_meets_the_budget_from_below_and_above(epsilon, delta):
    mu = mu_of(epsilon, delta)
    assert hockey_stick(epsilon, mu * (1 - 1e-6)) < math.log(delta)
    assert hockey_stick(epsilon, mu * (1 + 1e-6)) > math.log(delta)
    assert_allclose(epsilon_of(mu, delta), epsilon, rtol=1e-9)


def test_limits():
    assert mu_of(inf, 1e-5) == inf
    assert epsilon_of(inf, 1e-5) == inf
    assert epsilon_of(0.0, 1e-5) == 0.0
    assert epsilon_of(0.01, 0.1) == 0.0  # total variation 2 Phi(mu / 2) - 1 is below delta
    mu = [mu_of(10.0**k, 1e-6) for k in range(-6, 7)]
    assert np.all(np.diff(mu) > 0)
    assert_allclose(mu[-1] / math.sqrt(2e6), 1, rtol=0.01)  # mu^2 / 2 is the mean of the loss


@every_budget
@pytest.mark.parametrize("times", [1, 10, 101])
def test_pld_accountant_agrees(epsilon, delta, times):
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    mu = mu_of(epsilon, delta) / math.sqrt(times)
    step = min(1e-3, epsilon / (100 + 4 * times))  # the error of a step counts so many times
    one = pld.from_gaussian_mechanism(
        1 / mu, value_discretization_interval=step, use_connect_dots=True
    )
    many = one.self_compose(times)
    # discretised privacy losses are pessimistic, by less than 1 % here
    assert epsilon * (1 - 1e-6) <= many.get_epsilon_for_delta(delta) <= epsilon * 1.01


# ----------------------------------------------------------------------------------- sensitivity


def worst(distance, d, tries=40, seed=0):
    """Largest distance of neighbours, rows y and z in the unit ball, that a search finds."""
    rng = np.random.default_rng(seed)

    def negative(yz):
        y, z = (v / max(1.0, np.linalg.norm(v)) for v in (yz[:d], yz[d:]))
        return -distance(y, z)

    starts = rng.standard_normal((tries, 2 * d))
    starts[: tries // 4, d:] *= 1e-3  # a row against nearly nothing
    starts[0] = np.eye(2 * d)[0] + np.eye(2 * d)[d + 1]  # two axes
    return max(-optimize.minimize(negative, start, method="BFGS").fun for start in starts)


def moment(y):
    """Second moment of one row, as clients compute it."""
    return ClippedRows.of(y[None], None, 1.0).products(slice(0, len(y)))


def by_goe(D):
    """Distance over s of symmetric noise with s on the diagonal and s / sqrt(2) off it."""
    return math.sqrt(np.sum(np.diag(D) ** 2) + np.sum(np.triu(D, 1) ** 2) / 0.5)


def by_triangle(D):
    return math.sqrt(np.sum(np.triu(D) ** 2))


DISTANCES = {
    "gaussian orthogonal ensemble": lambda y, z: by_goe(moment(y) - moment(z)),
    "upper triangle": lambda y, z: by_triangle(moment(y) - moment(z)),
    "all entries": lambda y, z: np.linalg.norm(moment(y) - moment(z)),
}


@pytest.mark.parametrize("name", DISTANCES)
@pytest.mark.parametrize("d", [2, 4])
def test_sensitivity_of_second_moments(name, d):
    assert_allclose(worst(DISTANCES[name], d), math.sqrt(2), rtol=1e-6)


@pytest.mark.parametrize("r", [2, 3])
def test_sensitivity_of_a_product_and_of_the_last_round(r):
    d = 4
    V = np.linalg.qr(np.random.default_rng(1).standard_normal((d, r)))[0].T
    origin = np.zeros(d)

    def product(y):
        return scatter_product(y[None], origin, V)

    def last(y, z):
        inner = by_goe((product(y) - product(z)) @ V.T)
        return math.hypot(inner, y @ y - z @ z)

    of_product = worst(lambda y, z: np.linalg.norm(product(y) - product(z)), d)
    assert_allclose(of_product, math.sqrt(2), rtol=1e-6)
    assert_allclose(worst(last, d), math.sqrt(2), rtol=1e-6)  # the trace is free


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


@pytest.mark.parametrize("query", [TimesScatter, Variances])
def test_a_basis_within_the_tolerance_of_sites_moves_no_more(query):
    """Sites take rows that are orthonormal to 1e-6; thirty of them stretch by 30e-6 / 2."""
    k = 30
    root = np.linalg.cholesky(np.eye(k) + 0.99e-6 * (np.ones((k, k)) - np.eye(k)))
    mechanism = FedPowerNoise(np.inf, 1e-5, 1.0, mean="fixed")
    terms = mechanism.terms(np.eye(k), mechanism.costs(k, 3))
    worst_row = np.linalg.svd(root)[2][:1]

    def released(row):
        client = PrivateClient.of("a", row, mechanism, terms, ())
        return query(root, np.zeros(k)).released(client, np.random.default_rng(0))

    moved = released(worst_row) - released(np.zeros((1, k)))
    assert np.linalg.norm(moved) < math.sqrt(2 if query is Variances else 1) * (1 + 1e-12)


def test_sensitivity_of_the_sum():
    def distance(y, z):
        return np.linalg.norm(
            ClippedRows.of(y[None], None, 1.0).sum() - ClippedRows.of(z[None], None, 1.0).sum()
        )

    assert_allclose(worst(distance, 3), 2, rtol=1e-6)


@pytest.mark.parametrize("kind", [AnalyzeGauss, FedPowerNoise])
def test_an_attack_with_the_best_test_wins_what_is_promised_and_no_more(kind):
    """Neyman-Pearson on the releases themselves, of the worst neighbours."""
    epsilon, delta, n_times, d = 0.5, 0.1, 20_000, 2
    mechanism = kind(epsilon, delta, 3.0, mean_share=0.5)
    y, z = np.array([[3.0, 0.0]]), np.array([[0.0, 30.0]])  # the second is clipped to 3
    costs = mechanism.costs(d, 1)
    terms = mechanism.terms(y, costs)
    rng = np.random.default_rng(0)

    def release(row):
        clipped = ClippedRows.of(row, None, 3.0)
        M = clipped.products(slice(0, d))
        if kind is AnalyzeGauss:
            noisy = mechanism.noisy_columns(clipped, slice(0, d), terms, rng)
            return noisy, mechanism.noisy_sum(clipped, terms, rng)
        inner, _ = mechanism.noisy_variances(M, np.trace(M), terms, rng)
        return inner, mechanism.noisy_sum(clipped.sum(), terms, rng)

    def statistic(M, total):
        s, t = terms.product_std, terms.mean_std
        return (M[0, 0] - M[1, 1]) * 9 / s**2 + (total[0] - total[1]) * 3 / t**2

    here, there = ([statistic(*release(row)) for _ in range(n_times)] for row in (y, z))
    # the loss is symmetric about zero: mu^2 = 2 * 81 / s^2 + 2 * 9 / t^2, loss = the statistic
    mu2 = 162 / terms.product_std**2 + 18 / terms.mean_std**2
    # on orthogonal rows the sum has sqrt(2) R of its 2 R
    assert_allclose(mu2, costs.product + costs.mean / 2)
    at = epsilon_of(math.sqrt(mu2), delta)  # what these two rows give away
    assert at < epsilon
    won = np.mean(np.array(here) > at) - math.exp(at) * np.mean(np.array(there) > at)
    margin = MARGIN * math.sqrt((1 + math.exp(2 * at)) / 4 / n_times)
    assert abs(won - delta) < margin


# ----------------------------------------------------------------------------------------- noise


def assert_variance(values, std, what):
    values = np.ravel(values)
    margin = MARGIN * math.sqrt(2 / len(values))
    assert abs(np.mean(values**2) / std**2 - 1) < margin, what
    assert abs(values.mean()) < MARGIN * std / math.sqrt(len(values)), what


def assert_symmetric_noise(N, kind, std):
    """Every entry has noise, mirrored if the mechanism is symmetric, of the right variance."""
    d = N.shape[-1]
    upper, lower = np.triu_indices(d, 1), np.tril_indices(d, -1)
    off = std / math.sqrt(2) if kind is AnalyzeGauss else std
    diagonal = N[:, range(d), range(d)]
    assert_variance(diagonal, std, "diagonal")
    assert_variance(N[:, upper[0], upper[1]], off, "above the diagonal")
    assert_variance(N[:, lower[0], lower[1]], off, "below the diagonal")
    mirrored = np.allclose(N, N.transpose(0, 2, 1), rtol=1e-12)
    assert mirrored == (kind is not StreamingModSuLQ)
    if not mirrored:
        size = d * (d - 1) // 2 * len(N)
        corr = np.corrcoef(
            N[:, upper[0], upper[1]].ravel(), N.transpose(0, 2, 1)[:, upper[0], upper[1]].ravel()
        )[0, 1]
        assert abs(corr) < MARGIN / math.sqrt(size)


@every_mechanism
@every_trust
@pytest.mark.parametrize("n_clients", [1, 4])
def test_noise_that_arrives_at_the_server(kind, trust, n_clients, arrived):
    """Rows of zeros, so that messages are noise; with "sum" the sum has the right variance."""
    d, n, epsilon, delta, share, row_norm = 40, 8, 0.8, 1e-3, 0.3, 2.5
    X = np.zeros((n, d))
    mechanism = kind(epsilon, delta, row_norm, mean_share=share, trust=trust)
    std = expected_std(kind, d, epsilon, delta, row_norm) / math.sqrt(1 - share)
    of_sum = 2 * row_norm / (mu_of(epsilon, delta) * math.sqrt(share))
    moments, totals = [], []
    if trust == "sum":
        for seed in range(30):
            arrived.clear()
            model = FederatedPCA(mechanism=mechanism, n_clients=n_clients, random_state=seed)
            model.fit(X)
            totals.append(arrived[0])
            moments.append(np.concatenate(arrived[1:], axis=1))
    else:  # what a single client sends, whatever the number of clients
        terms = mechanism.terms(X, mechanism.costs(d, 1), n_clients)
        here, rng = ClippedRows.of(X, None, row_norm), np.random.default_rng(0)
        for _ in range(30):
            totals.append(mechanism.noisy_sum(here, terms, rng))
            moments.append(mechanism.noisy_columns(here, slice(0, d), terms, rng))
    assert_symmetric_noise(np.stack(moments), kind, std)
    assert_variance(totals, of_sum, "sum of rows")


@every_mechanism
def test_a_client_in_a_sum_adds_a_share_of_the_variance(kind):
    mechanism = kind(1.0, 1e-3, 2.0, trust="sum")
    X = np.zeros((5, 100))
    costs = mechanism.costs(100, 1)
    whole, quarter = mechanism.terms(X, costs, 1), mechanism.terms(X, costs, 4)
    rng = np.random.default_rng(0)
    here = ClippedRows.of(X, None, 2.0)
    ratio = (
        mechanism.noisy_columns(here, slice(0, 100), quarter, rng).var()
        / mechanism.noisy_columns(here, slice(0, 100), whole, rng).var()
    )
    assert abs(4 * ratio - 1) < MARGIN * math.sqrt(2 * 2 / 5000)


@every_trust
@pytest.mark.parametrize("mean", ["private", "fixed"])
def test_noise_of_each_round_of_the_power_method(trust, mean, arrived):
    d, r, n_clients, n_rounds, row_norm = 400, 3, 4, 5, 2.0
    mechanism = FedPowerNoise(1.0, 1e-3, row_norm, mean=mean, mean_share=0.3, trust=trust)
    X = np.zeros((n_clients * 2, d))
    model = FederatedPowerPCA(
        r, n_rounds=n_rounds, mechanism=mechanism, n_clients=n_clients, tol=0, random_state=0
    ).fit(X)
    mu, here = mu_of(1.0, 1e-3), 1 if trust == "sum" else n_clients
    share = 0.3 if mean == "private" else 0.0
    if mean == "private":
        moments = arrived.pop(0)
        assert_variance(moments[:-1], 2 * row_norm / (mu * share**0.5) * here**0.5, "sum")
    std = math.sqrt(2) * row_norm**2 / mu * math.sqrt((n_rounds + 1) / (1 - share)) * here**0.5
    shift = model.mean_
    *products, last = arrived
    assert len(products) == n_rounds
    fresh = []
    for product in products:  # less n (V m) m^T, known to all
        off = product - (product @ shift[:, None]) * shift / (shift @ shift or 1)
        assert_variance(off, std * math.sqrt(1 - 1 / d if mean == "private" else 1), "product")
        fresh.append(off)
    for a, b in pairwise(fresh):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < MARGIN / math.sqrt(r * d)
    assert last[-1] == len(X)


@every_trust
def test_noise_of_the_last_round(trust):
    mechanism = FedPowerNoise(1.0, 1e-3, 2.0, mean="fixed", trust=trust)
    terms = mechanism.terms(np.zeros((4, 50)), mechanism.costs(50, 6), 4)
    rng = np.random.default_rng(0)
    noise = [mechanism.noisy_variances(np.zeros((30, 30)), 0.0, terms, rng) for _ in range(200)]
    std = math.sqrt(2) * 4 / mu_of(1.0, 1e-3) * math.sqrt(6 / (4 if trust == "sum" else 1))
    assert_symmetric_noise(np.stack([inner for inner, _ in noise]), AnalyzeGauss, std)
    assert_variance([trace for _, trace in noise], std, "trace")


@every_mechanism
def test_largest_variance_of_nothing_is_the_edge_of_the_noise(kind):
    """From fit to fitted attributes: Wigner's and Marchenko's edges, 2 sqrt(d) std."""
    d, row_norm = 200, 3.0
    mechanism = kind(1.0, 1e-3, row_norm, mean="fixed")
    model = FederatedPCA(1, mechanism=mechanism, n_clients=1, random_state=0)
    model.fit(np.zeros((10, d)))
    std = expected_std(kind, d, 1.0, 1e-3, row_norm)
    edge = 2 * math.sqrt(d) * std / (math.sqrt(2) if kind is AnalyzeGauss else 1)
    # Tracy-Widom: mean -1.2 to -1.8, deviation 1.3 in units of d^(-2/3) / 2 to d^(-2/3)
    assert abs(model.singular_values_[0] ** 2 / edge - 1) < 8 * d ** (-2 / 3)


def test_mean_has_the_stated_variance():
    d, n, share = 2000, 50, 0.4
    mechanism = AnalyzeGauss(2.0, 1e-3, 1.0, mean_share=share)
    # n is large enough that the mean stays within row_norm of the centre
    std = 2 / (mu_of(2.0, 1e-3) * math.sqrt(share))
    terms = mechanism.terms(np.zeros((n, d)), mechanism.costs(d, 1))
    total = mechanism.noisy_sum(
        ClippedRows.of(np.zeros((n, d)), None, 1.0), terms, np.random.default_rng(0)
    )
    assert_variance(total, std, "sum")
    assert np.linalg.norm(terms.within(total)) <= 1 + 1e-12
    small = np.array([0.3, 0.4])
    assert_array_equal(terms.within(small), small)


@every_budget
@pytest.mark.parametrize("kind", [ModSuLQ, StreamingModSuLQ])
@pytest.mark.parametrize("d", [1, 5, 784])
def test_published_noise_is_a_standard_deviation_and_never_less_than_is_needed(
    kind, d, epsilon, delta
):
    mechanism = kind(epsilon, delta, 3.0, mean="fixed")
    costs = mechanism.costs(d, 1)
    std = mechanism.terms(np.zeros((7, d)), costs).product_std
    least = math.sqrt(2) * 9 / mu_of(epsilon, delta)
    assert std >= least * (1 - 1e-12)
    logarithm = (d**2 + d) / 2 if kind is ModSuLQ else d**2
    if logarithm / (delta * math.sqrt(2 * math.pi)) >= 1:
        published = 7 * 9 * published_std(kind, d, 7, epsilon, delta)
        assert_allclose(std, max(published, least))
    spent = mechanism.spent(costs.product)
    assert spent.epsilon <= epsilon * (1 + 1e-9)


def test_published_noise_that_is_too_small_is_raised():
    """One feature and a delta near one half, where the logarithm is negative."""
    epsilon, delta = 1000.0, 0.45
    least = math.sqrt(2) / mu_of(epsilon, delta)
    assert 1 / math.sqrt(epsilon) < least * (1 - 1e-3)
    mechanism = ModSuLQ(epsilon, delta, 1.0, mean="fixed")
    assert_allclose(mechanism.terms(np.zeros((2, 1)), mechanism.costs(1, 1)).product_std, least)


@pytest.mark.parametrize("d", [2, 20, 784])
@every_budget
def test_analyze_gauss_has_the_least_noise(d, epsilon, delta):
    std = [expected_std(kind, d, epsilon, delta, 1.0) for kind in ONE_ROUND]
    assert std[0] <= std[1] * (1 + 1e-12)
    assert std[0] <= std[2] * (1 + 1e-12)


# ------------------------------------------------------------------- without noise; clipped rows


@pytest.mark.parametrize("kind", [*ONE_ROUND, FedPowerNoise])
@every_trust
@pytest.mark.parametrize("mean", ["private", "fixed"])
@pytest.mark.parametrize("center", [None, np.linspace(-1, 2, 6)], ids=["origin", "center"])
@pytest.mark.parametrize("container", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("n_clients", [1, 3])
def test_no_noise_is_pca_of_the_clipped_rows(kind, trust, mean, center, container, n_clients):
    X = rows()
    X[np.abs(X) < 0.3] = 0
    row_norm = float(np.median(np.linalg.norm(X - (0 if center is None else center), axis=1)))
    mechanism = kind(inf, 1e-5, row_norm, center=center, mean=mean, trust=trust)
    model = model_of(mechanism, n_clients=n_clients).fit(container(X))
    shift, V, variances = pca_by_hand(X, row_norm, center, mean, 3)
    assert_allclose(model.mean_, shift, atol=1e-12)
    assert_allclose(model.explained_variance_, variances, rtol=1e-10)
    assert_allclose(np.abs(np.sum(model.components_ * V, axis=1)), 1, rtol=0, atol=1e-10)
    total = np.sum(
        (clipped_by_hand(X, row_norm, center) - (shift - (0 if center is None else center))) ** 2
    )
    assert_allclose(model.subspace_.scatter, total, rtol=1e-10)
    assert model.privacy_spent_ == (inf, 1e-5)


@pytest.mark.parametrize("merge", [SubspaceMerge(fan_in=2), ProjectionAverage(4)])
def test_merge_strategies_take_private_summaries(merge):
    X, mechanism = rows(), AnalyzeGauss(inf, 1e-5, 1e3)
    model = FederatedPCA(2, merge=merge, mechanism=mechanism, n_clients=4).fit(X)
    plain = FederatedPCA(2, merge=merge, n_clients=4).fit(X)
    assert_allclose(model.explained_variance_, plain.explained_variance_, rtol=1e-8)
    assert subspace_distance(model.components_, plain.components_) < 1e-7
    # clients without a mechanism also tell the scatter of their columns
    sent = sum(row["messages_up"] for row in plain.communication_.table)
    floats = plain.communication_.floats_up - sent * X.shape[1]
    assert model.communication_.floats_up == floats


@every_mechanism
@every_trust
@pytest.mark.parametrize("n_components", [None, 2, 0.9])
def test_calls_add_up(kind, trust, n_components):
    X, labels = rows(90), np.arange(90) % 3
    mechanism = kind(inf, 1e-5, 2.0, trust=trust, n_releases=3)
    whole = FederatedPCA(n_components, mechanism=mechanism).fit(X, clients=labels)
    parts = FederatedPCA(n_components, mechanism=mechanism)
    for start in (0, 30, 60):
        parts.partial_fit(X[start : start + 30], clients=labels[start : start + 30])
    assert_allclose(parts.mean_, whole.mean_, atol=1e-12)
    assert_allclose(parts.explained_variance_, whole.explained_variance_, rtol=1e-9)
    assert parts.n_samples_ == 90
    assert parts.clients_ == [0, 1, 2]


@pytest.mark.parametrize("kind", [AnalyzeGauss, StreamingModSuLQ])
def test_many_features(kind):
    """More than are kept: rows of rank 6 are found among 400 features."""
    X = rows(80, 6) @ np.linalg.qr(np.random.default_rng(1).standard_normal((400, 6)))[0].T
    mechanism = kind(inf, 1e-5, 4.0)
    for options in ({}, {"n_clients": 1}):
        model = FederatedPCA(3, mechanism=mechanism, **options).fit(X)
        _, V, variances = pca_by_hand(X, 4.0, None, "private", 3)
        assert_allclose(model.explained_variance_, variances, rtol=1e-8)
        assert subspace_distance(model.components_, V) < 1e-7


@pytest.mark.parametrize("kind", [*ONE_ROUND, FedPowerNoise])
def test_a_long_row_counts_as_one_of_the_bound(kind):
    X, far = rows(), np.linspace(1, 2, 6)
    center = np.full(6, 0.5)
    results = []
    for length in (5.0, 1e8):
        Y = X.copy()
        Y[7] = center + length * far / np.linalg.norm(far)
        model = model_of(kind(inf, 1e-5, 5.0, center=center)).fit(Y)
        results.append([model.mean_, model.explained_variance_, model.components_])
    for one, other in zip(*results, strict=True):
        assert_allclose(one, other, atol=1e-7)


@pytest.mark.parametrize("kind", ONE_ROUND)
def test_dtypes_and_the_input_stay(kind):
    X = rows().astype(np.float32)
    before = X.copy()
    X.flags.writeable = False
    model = FederatedPCA(2, mechanism=kind(1.0, 0.1, 3.0), random_state=0).fit(X)
    assert model.components_.dtype == model.mean_.dtype == np.float32
    assert model.transform(X).dtype == np.float32
    assert_array_equal(X, before)
    S = sp.csr_array(X.astype(float))
    data = S.data.copy()
    model.fit(S)
    assert_array_equal(S.data, data)


@every_mechanism
def test_scatter_is_the_noisy_trace_or_what_the_components_have(kind):
    X = rows(500, 30)
    mechanism = kind(50.0, 1e-3, 8.0, mean="fixed")
    model = FederatedPCA(2, mechanism=mechanism, n_clients=1, random_state=0).fit(X)
    assert 0 <= model.explained_variance_ratio_.sum() <= 1
    assert np.all(model.explained_variance_ >= 0)
    energy = float(model.subspace_.singular_values @ model.subspace_.singular_values)
    assert model.subspace_.scatter >= energy * (1 - 1e-12)
    assert_allclose(model.components_ @ model.components_.T, np.eye(2), atol=1e-10)


@every_mechanism
def test_scatter_of_many_features_is_the_noisy_trace(kind):
    """Directions that are not kept stay in it, with noise of s on each diagonal entry."""
    d, row_norm, epsilon = 300, 20.0, 1e4
    X = rows(2000, d, mean=0.0)
    mechanism = kind(epsilon, 1e-3, row_norm, mean="fixed")
    found = FederatedPCA(2, mechanism=mechanism, n_clients=1, random_state=0).fit(X).subspace_
    exact = np.sum(clipped_by_hand(X, row_norm) ** 2)
    std = expected_std(kind, d, epsilon, 1e-3, row_norm)
    assert float(found.singular_values @ found.singular_values) < 0.5 * exact
    assert abs(found.scatter - exact) < MARGIN * std * math.sqrt(d) < 0.1 * exact


# ---------------------------------------------------------------------------- memory, randomness


@every_trust
@pytest.mark.parametrize("kind", [StreamingModSuLQ, FedPowerNoise])
@pytest.mark.parametrize("container", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
def test_no_matrix_of_all_pairs_of_features(kind, trust, container):
    d = 3000  # d x d would be 72 MB
    X = np.random.default_rng(0).standard_normal((30, d)) * (np.arange(d) % 50 == 0)
    mechanism = kind(10.0, 1e-3, 30.0, trust=trust)
    model = model_of(mechanism, 2, **({"n_rounds": 3} if kind is FedPowerNoise else {}))
    X = container(X)
    assert peak_bytes(lambda: model.fit(X)) < 24e6
    if kind is StreamingModSuLQ and trust == "sum":
        assert model.communication_.rounds == 1 + -(-d // 64)


def test_noise_is_fresh_in_every_call_client_and_part(arrived):
    X = np.tile(rows(20), (2, 1))
    mechanism = AnalyzeGauss(1.0, 1e-3, 3.0, n_releases=2, trust="sum")
    model = FederatedPCA(2, mechanism=mechanism, n_clients=1, random_state=0)
    for _ in range(2):
        model.partial_fit(X, clients=["a"] * 40)
    first, second = arrived[1], arrived[3]
    assert np.abs(first - second).min() > 1e-6  # an integer seed does not repeat its noise
    arrived.clear()
    model = FederatedPCA(2, mechanism=clone(mechanism).set_params(trust="client"), random_state=0)
    model.fit(X, clients=["a"] * 20 + ["b"] * 20)  # the same rows twice
    a, b = (model._clients[label].summary for label in "ab")
    assert np.abs(a.mean - b.mean).min() > 1e-9
    assert abs(a.scatter - b.scatter) > 1e-9


@pytest.mark.parametrize("kind", [AnalyzeGauss, StreamingModSuLQ])
def test_messages_of_a_call_have_noise_of_their_own(kind, arrived):
    """The sum of rows and each block of columns; a shared stream would correlate them."""
    d = 300  # in blocks of 64 columns, if in blocks
    model = FederatedPCA(2, mechanism=kind(1.0, 1e-3, 2.0, trust="sum"), random_state=0)
    model.fit(np.zeros((4, d)))
    assert len(arrived) == (2 if kind is AnalyzeGauss else 1 + 5)
    for i, a in enumerate(arrived):
        for b in arrived[:i]:
            size = min(a.size, b.size)
            corr = np.corrcoef(a.ravel()[:size], b.ravel()[:size])[0, 1]
            assert abs(corr) < MARGIN / math.sqrt(size)


def test_the_same_seed_in_two_fits_gives_a_row_away(arrived):
    """Why docs/privacy.md says that a seed is for tests: the noise cancels."""
    X, row_norm = rows(), 3.0
    Y = X.copy()
    Y[7] = 1.0
    mechanism = AnalyzeGauss(0.1, 1e-6, row_norm, mean="fixed", trust="sum")
    for rows_ in (X, Y):
        FederatedPCA(2, mechanism=mechanism, random_state=0).fit(rows_)
    old, new = clipped_by_hand(X, row_norm)[7], clipped_by_hand(Y, row_norm)[7]
    assert_allclose(arrived[0] - arrived[1], np.outer(old, old) - np.outer(new, new), atol=1e-9)


@pytest.mark.parametrize("kind", [*ONE_ROUND, FedPowerNoise])
@every_trust
def test_results_repeat_with_the_seed_on_threads_and_processes(kind, trust):
    X = rows()
    mechanism = kind(1.0, 1e-3, 3.0, trust=trust)
    options = {"n_rounds": 4, "acceleration": None} if kind is FedPowerNoise else {}
    model = model_of(mechanism, 2, n_clients=3, **options)
    here = clone(model).fit(X)
    threads = clone(model).set_params(n_jobs=2).fit(X)
    with joblib.parallel_config(backend="loky", n_jobs=2):
        processes = clone(model).fit(X)
    other = clone(model).set_params(random_state=1).fit(X)
    for same in (threads, processes):
        assert_allclose(same.components_, here.components_, atol=1e-12)
        assert_allclose(same.mean_, here.mean_, atol=1e-12)
    assert np.abs(other.mean_ - here.mean_).min() > 1e-9
    random = clone(model).set_params(random_state=None)
    assert np.abs(clone(random).fit(X).mean_ - random.fit(X).mean_).min() > 1e-12


# ---------------------------------------------------------------------------------------- budget


def composed(mechanism, share):
    return epsilon_of(mu_of(mechanism.epsilon, mechanism.delta) * math.sqrt(share), mechanism.delta)


@every_trust
def test_spent_after_each_call_and_refusal_before_data_are_touched(trust):
    X, labels = rows(60), np.repeat(["a", "b"], 30)
    mechanism = AnalyzeGauss(1.0, 1e-5, 3.0, n_releases=3, trust=trust)
    model = FederatedPCA(2, mechanism=mechanism, random_state=0)
    model.partial_fit(X, clients=labels)
    assert_allclose(model.privacy_spent_, (composed(mechanism, 1 / 3), 1e-5), rtol=1e-9)
    model.partial_fit(X[:30], clients=labels[:30])
    assert_allclose(model.privacy_spent_, (composed(mechanism, 2 / 3), 1e-5), rtol=1e-9)
    model.partial_fit(X[30:], clients=labels[30:])  # b draws level: the maximum stays
    assert_allclose(model.privacy_spent_, (composed(mechanism, 2 / 3), 1e-5), rtol=1e-9)
    model.partial_fit(X[:30], clients=labels[:30])
    assert_allclose(model.privacy_spent_, (1.0, 1e-5), rtol=1e-9)
    before = pickle.dumps(model)
    with pytest.raises(PrivacyBudgetError, match=r"Client 'a' has no budget left.*n_releases=3"):
        model.partial_fit(np.full((60, 6), nan), clients=labels)  # rows are not looked at
    assert pickle.dumps(model) == before
    model.partial_fit(X[30:], clients=labels[30:])
    model.partial_fit(X[30:], clients=["c"] * 30)
    assert_allclose(model.privacy_spent_, (1.0, 1e-5), rtol=1e-9)
    model.fit(X, clients=labels)  # from scratch
    assert_allclose(model.privacy_spent_.epsilon, composed(mechanism, 1 / 3), rtol=1e-9)
    assert issubclass(PrivacyBudgetError, ValueError)


def test_one_release_is_the_default():
    model = FederatedPCA(2, mechanism=AnalyzeGauss(1.0, 1e-5, 3.0), random_state=0).fit(rows())
    with pytest.raises(PrivacyBudgetError):
        model.partial_fit(rows())


@pytest.mark.parametrize("kind", [ModSuLQ, StreamingModSuLQ])
def test_published_noise_spends_what_it_really_costs(kind):
    mechanism = kind(1.0, 1e-5, 3.0, mean_share=0.25)
    model = FederatedPCA(2, mechanism=mechanism, random_state=0).fit(rows())
    mu2 = 0.75 * 2 / published_std(kind, 6, 1, 1.0, 1e-5) ** 2 + 0.25 * mu_of(1.0, 1e-5) ** 2
    assert_allclose(model.privacy_spent_, (epsilon_of(math.sqrt(mu2), 1e-5), 1e-5), rtol=1e-9)


@pytest.mark.parametrize("mean", ["private", "fixed"])
def test_all_rounds_are_spent_whenever_a_fit_stops(mean):
    mechanism = FedPowerNoise(2.0, 1e-4, 3.0, mean=mean, mean_share=0.3)
    model = FederatedPowerPCA(2, n_rounds=7, mechanism=mechanism, random_state=0, tol=0)
    absent = np.zeros((1, 2), dtype=bool)
    lossy = PerfectChannel(dropout=np.concatenate([absent, ~absent, absent, absent]))
    for options in ({}, {"tol": 1.0}, {"channel": lossy}):
        fitted = clone(model).set_params(**options).fit(rows())
        assert_allclose(fitted.privacy_spent_, (2.0, 1e-4), rtol=1e-9)


def test_a_smaller_budget_on_the_way_is_kept():
    model = FederatedPCA(2, mechanism=AnalyzeGauss(4.0, 1e-5, 1.0, n_releases=2)).partial_fit(
        rows()
    )
    spent = model.privacy_spent_
    model.set_params(mechanism__epsilon=1.0)
    with pytest.raises(PrivacyBudgetError, match="no budget left"):
        model.partial_fit(rows())
    assert model.privacy_spent_ == spent


@pytest.mark.parametrize("model", [FederatedPCA(2), FederatedPowerPCA(2, n_rounds=2)], ids=repr)
def test_a_bound_from_the_data_promises_nothing(model):
    kind = AnalyzeGauss if isinstance(model, FederatedPCA) else FedPowerNoise
    model = clone(model).set_params(mechanism=kind(1.0, 1e-5, "data"))
    with pytest.warns(PrivacyLeakWarning):
        model.fit(rows())
    assert model.privacy_spent_ == (inf, 1e-5)


def test_accounts_are_not_shared_by_clones_copies_and_searches():
    X = rows(80)
    mechanism = AnalyzeGauss(1.0, 1e-3, 4.0)
    before = dict(vars(mechanism))
    model = FederatedPCA(2, mechanism=mechanism, random_state=0).fit(X)
    assert vars(mechanism) == before
    fresh = clone(model)
    assert not hasattr(fresh, "privacy_spent_")
    fresh.partial_fit(X)
    restored = pickle.loads(pickle.dumps(model))
    assert restored.privacy_spent_ == model.privacy_spent_
    for spent in (model, restored, fresh):
        with pytest.raises(PrivacyBudgetError):
            spent.partial_fit(X)
    search = GridSearchCV(FederatedPCA(2, mechanism=mechanism), {"mechanism__epsilon": [0.5, 2.0]})
    search.fit(X)
    epsilon = search.best_params_["mechanism__epsilon"]
    assert_allclose(search.best_estimator_.privacy_spent_, (epsilon, 1e-3), rtol=1e-9)
    assert vars(mechanism) == before
    assert mechanism.epsilon == 1.0
    assert not hasattr(model.set_params(mechanism=None).fit(X), "privacy_spent_")


def test_pipeline_with_labels():
    X, labels = rows(60), np.repeat([0, 1, 2], 20)
    mechanism = AnalyzeGauss(5.0, 1e-3, 4.0)
    with config_context(enable_metadata_routing=True):
        pipe = make_pipeline(StandardScaler(), FederatedPCA(2, mechanism=mechanism))
        pipe.fit(X, clients=labels)
    assert pipe[-1].clients_ == [0, 1, 2]
    assert_allclose(pipe[-1].privacy_spent_, (5.0, 1e-3), rtol=1e-9)
    assert pipe.transform(X).shape == (60, 2)


# ----------------------------------------------------------------------------------------- leaks


def numbers_in(value, path, seen):
    """All arrays and floats that can be reached from an object, with where they are."""
    if id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "fiu":
            yield path, value.astype(float)
        else:
            for i, item in enumerate(value.ravel().tolist()):
                yield from numbers_in(item, f"{path}[{i}]", seen)
    elif isinstance(value, (bool, str, bytes, type(None))):
        return
    elif isinstance(value, (int, float, np.number)):
        yield path, np.array([float(value)])
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from numbers_in(item, f"{path}[{key!r}]", seen)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for i, item in enumerate(value):
            yield from numbers_in(item, f"{path}[{i}]", seen)
    elif sp.issparse(value):
        yield path, value.toarray()
    else:
        fields = {*getattr(value, "__dataclass_fields__", {}), *getattr(value, "__dict__", {})}
        slots = [name for kind in type(value).__mro__ for name in vars(kind).get("__slots__", ())]
        for name in {*fields, *filter(partial(hasattr, value), slots)}:
            yield from numbers_in(getattr(value, name), f"{path}.{name}", seen)


def secrets_of(X, labels, row_norm, center):
    """Statistics of raw and of clipped rows, of each client and of all, as vectors and numbers."""
    groups = [X, *(X[labels == label] for label in np.unique(labels))]
    for group in groups:
        clipped = clipped_by_hand(group, row_norm, center)
        for Y in (group, clipped, clipped + center):
            for shift in (0.0, Y.mean(axis=0)):
                _, s, V = np.linalg.svd(Y - shift, full_matrices=False)
                M = (Y - shift).T @ (Y - shift)
                yield from (s, s**2, s**2 / (len(Y) - 1), s**2 / len(Y))
                yield from (*V, *-V, *M, *(M / len(Y)), *(M / (len(Y) - 1)))
                yield from np.array([np.trace(M), np.trace(M) / (len(Y) - 1)])[:, None]
            yield from (Y.mean(axis=0), Y.sum(axis=0), *Y)


def assert_holds_no_secret(found, secrets):
    tables = {size: [s for s in secrets if s.size == size] for size in {s.size for s in secrets}}
    for path, array in found:
        for size, table in tables.items():
            for flat in (array.ravel(), array.T.ravel()):
                if flat.size < size:
                    continue
                windows = np.lib.stride_tricks.sliding_window_view(flat, size)[:, None]
                close = np.abs(windows - table) <= 1e-6 * np.abs(table)
                assert not np.any(np.all(close, axis=2)), path


MODELS = {
    **{
        f"{kind.__name__}-{trust}": (
            FederatedPCA(2, mechanism=kind(200.0, 1e-3, 4.0, trust=trust, n_releases=2)),
            2,
        )
        for kind in ONE_ROUND
        for trust in ("client", "sum")
    },
    **{
        f"power-{trust}-{acceleration}": (
            FederatedPowerPCA(
                2,
                n_rounds=4,
                acceleration=acceleration,
                mechanism=FedPowerNoise(500.0, 1e-3, 4.0, trust=trust),
            ),
            1,
        )
        for trust in ("client", "sum")
        for acceleration in (None, "krylov")
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_nothing_unperturbed_survives(name):
    """Every number that can be reached from the fitted estimator, at little noise."""
    model, n_calls = MODELS[name]
    X, labels, center = rows(40, 5), np.arange(40) % 3, np.array([0.1, 0.2, 0.3, 0.4, 0.7])
    model = clone(model).set_params(random_state=0, mechanism__center=center)
    for _ in range(n_calls):
        (model.partial_fit if n_calls > 1 else model.fit)(X, clients=labels)
    attributes = {k: v for k, v in vars(model).items() if k not in model.get_params(deep=False)}
    found = list(numbers_in(attributes, "model", {}))
    paths = {path for path, _ in found}
    if n_calls > 1:
        assert any("_clients" in path and "components" in path for path in paths)
    assert any("communication_" in path for path in paths)
    secrets = list(secrets_of(X, labels, 4.0, center))
    assert_holds_no_secret(found, secrets)
    # the walk does find what is there: the same without noise
    clear = clone(model).set_params(mechanism__epsilon=inf).fit(X, clients=labels)
    with pytest.raises(AssertionError):
        assert_holds_no_secret(numbers_in(vars(clear), "model", {}), secrets)


def test_nothing_unperturbed_is_sent(monkeypatch):
    """Every message that a client hands over, in both trust modes."""
    X, labels, center = rows(40, 5), np.arange(40) % 3, np.full(5, 0.3)
    messages, map_ = [], Federation.map

    def recording(self, function, clients):
        for message in map_(self, function, clients):
            if isinstance(function, Query) or function.__name__ in ("_message", "private_summary"):
                messages.append(message)
            yield message

    monkeypatch.setattr(Federation, "map", recording)
    for model, _ in MODELS.values():
        model = clone(model).set_params(random_state=0, mechanism__center=center)
        messages.clear()
        model.fit(X, clients=labels)
        assert len(messages) >= 3
        found = list(numbers_in(messages, "messages", {}))
        assert_holds_no_secret(found, list(secrets_of(X, labels, 4.0, center)))


# ---------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": nan}, "epsilon"),
        ({"epsilon": "1"}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"row_norm": 0.0}, "row_norm"),
        ({"row_norm": inf}, "row_norm"),
        ({"row_norm": "max"}, "row_norm"),
        ({"row_norm": None}, "row_norm"),
        ({"mean": "public"}, "mean"),
        ({"mean_share": 1.0}, "mean_share"),
        ({"trust": "server"}, "trust"),
        ({"center": np.zeros(3)}, r"center must have shape \(6,\), got \(3,\)"),
        ({"center": [nan] * 6}, "center must be finite"),
        ({"center": nan}, "center must be finite"),
        ({"center": "mean"}, "center"),
        ({"center": np.zeros((2, 3))}, "center"),
    ],
)
@pytest.mark.parametrize("kind", [AnalyzeGauss, FedPowerNoise])
def test_parameters_are_checked(kind, options, name):
    mechanism = kind(**{"epsilon": 1.0, "delta": 0.1, "row_norm": 2.0, **options})
    with pytest.raises((ValueError, TypeError), match=name):
        model_of(mechanism).fit(rows())


@every_mechanism
@pytest.mark.parametrize("n_releases", [0, -1, 1.5])
def test_the_number_of_releases_is_checked(kind, n_releases):
    with pytest.raises(ValueError, match="n_releases"):
        model_of(kind(1.0, 0.1, 2.0, n_releases=n_releases)).fit(rows())


@pytest.mark.parametrize("kind", [*ONE_ROUND, FedPowerNoise])
def test_a_number_is_the_centre_of_all_features(kind):
    X = rows()
    number, array = (
        model_of(kind(1.0, 0.1, 2.0, center=center)).set_params(random_state=0).fit(X)
        for center in (0.5, np.full(6, 0.5))
    )
    assert number.mechanism.center == 0.5
    assert_array_equal(number.components_, array.components_)
    assert_array_equal(number.mean_, array.mean_)


def test_row_norm_is_required():
    for kind in [*ONE_ROUND, FedPowerNoise]:
        with pytest.raises(TypeError, match="row_norm"):
            kind(1.0, 0.1)


@pytest.mark.parametrize("kind", [*ONE_ROUND, FedPowerNoise])
def test_a_bound_from_the_data_warns_and_clips_nothing(kind):
    X = rows()
    mechanism = kind(inf, 1e-3, "data", center=np.ones(6))
    with pytest.warns(PrivacyLeakWarning, match="largest norm"):
        model = model_of(mechanism).fit(X)
    assert_allclose(model.mean_, X.mean(axis=0))
    assert mechanism.row_norm == "data"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model_of(mechanism.set_params(row_norm=5.0)).fit(X)


def test_what_cannot_be_private_is_refused():
    X, mechanism = rows(), AnalyzeGauss(1.0, 0.1, 2.0)
    with pytest.raises(ValueError, match="estimator must be None with a mechanism"):
        FederatedPCA(2, estimator=StreamingPCA(2), mechanism=mechanism).fit(X)
    with pytest.raises(ValueError, match="sample_weight must be None with a mechanism"):
        FederatedPCA(2, mechanism=mechanism).fit(X, sample_weight=np.ones(60))
    power = FedPowerNoise(1.0, 0.1, 2.0)
    with pytest.raises(ValueError, match="sample_weight must be None with a mechanism"):
        FederatedPowerPCA(2, mechanism=power).fit(X, sample_weight=np.ones(60))
    with pytest.raises(ValueError, match=r"local_steps=1.*got 2"):
        FederatedPowerPCA(2, local_steps=2, mechanism=power).fit(X)
    fixed = FedPowerNoise(1.0, 0.1, 2.0, mean="fixed", center=np.ones(6))
    for centred in power, fixed:
        with pytest.raises(ValueError, match="center=False needs"):
            FederatedPowerPCA(2, center=False, mechanism=centred).fit(X)
    for channel in (
        FadingChannel(),
        GaussianChannel(dropout=0.1),
        PerfectChannel(dropout=[[1, 0]]),
    ):
        with pytest.raises(ValueError, match="trust='sum' needs a channel that loses no client"):
            FederatedPowerPCA(
                2, channel=channel, mechanism=clone(power).set_params(trust="sum")
            ).fit(X)
    with pytest.raises(ValueError, match="mechanism"):
        FederatedPCA(2, mechanism=power).fit(X)
    with pytest.raises(ValueError, match="mechanism"):
        FederatedPowerPCA(2, mechanism=mechanism).fit(X)


def test_a_mechanism_cannot_come_go_or_change_its_trust_between_calls():
    X = rows()
    private = AnalyzeGauss(1.0, 0.1, 2.0, n_releases=5)
    models = [None, private, clone(private).set_params(trust="sum")]
    for first in models:
        for second in models:
            model = FederatedPCA(2, mechanism=first, random_state=0).fit(X)
            model.set_params(mechanism=second)
            if first is second:
                model.partial_fit(X)
                continue
            with pytest.raises(ValueError, match="mechanism must not change"):
                model.partial_fit(X)


@pytest.mark.parametrize("bad", [nan, inf])
@pytest.mark.parametrize("kind", [*ONE_ROUND, FedPowerNoise])
@every_trust
def test_bad_rows_name_their_client_and_cost_nothing(kind, trust, bad):
    X, labels = rows(), np.repeat(["a", "b"], 30)
    model = model_of(kind(1.0, 0.1, 2.0, trust=trust)).fit(X, clients=labels)
    before = pickle.dumps(model)
    Y = X.copy()
    Y[40, 2] = bad
    with pytest.raises(ValueError, match=r"Client 'b'.*(NaN|infinity)"):
        model.fit(Y, clients=labels)
    assert pickle.dumps(model) == before


# --------------------------------------------------------------------------------- power method


@pytest.mark.parametrize("center", [True, False])
def test_the_power_method_about_the_origin(center):
    X = rows(mean=0.0)
    mechanism = FedPowerNoise(inf, 0.1, 1e3, mean="fixed")
    model = model_of(mechanism, 2, center=center).fit(X)
    V = np.linalg.svd(X, full_matrices=False)[2][:2]
    assert subspace_distance(model.components_, V) < 1e-7
    assert_array_equal(model.mean_, 0)
    assert model.subspace_.centered == center


CHANNELS = {
    "absent clients": PerfectChannel(dropout=np.random.default_rng(0).random((7, 5)) < 0.4),
    "noise": GaussianChannel(1e-3),
}


@pytest.mark.parametrize("name", CHANNELS)
@pytest.mark.parametrize("center", [None, [-3.0] * 6])
def test_channels_compose_with_a_mechanism(name, center):
    """What arrives is that of clients without a mechanism, whoever takes part in a round."""
    X = rows(300, mean=1.0)
    options = {"n_rounds": 25, "n_clients": 5, "channel": CHANNELS[name], "init": np.eye(6)[:2]}
    plain = FederatedPowerPCA(2, random_state=0, **options).fit(X)
    mechanism = FedPowerNoise(inf, 0.1, 1e3, center=center)
    model = FederatedPowerPCA(2, mechanism=mechanism, random_state=0, **options).fit(X)
    # noise of 1e-3 on sums of 300 rows and products of some hundreds
    tolerance = 1e-10 if name == "absent clients" else 1e-4
    assert_allclose(model.mean_, plain.mean_, atol=tolerance)
    assert subspace_distance(model.components_, plain.components_) < tolerance
    assert_allclose(model.singular_values_, plain.singular_values_, rtol=tolerance)


# ------------------------------------------------------------------- what is hard to clip, or tells


def with_duplicates(dtype):
    """Sparse rows with two stored values for an entry, which add up."""
    data, indices, indptr = [1000, -999.5, 3, 1], [0, 0, 1, 2], [0, 2, 4]
    return sp.csr_array((np.array(data, dtype), indices, indptr), shape=(2, 3))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("center", [None, [0.0, 1.0, 0.0]])
def test_entries_that_are_stored_twice_are_clipped_as_their_sum(dtype, center):
    X = with_duplicates(dtype)
    Y = clipped_by_hand(X.toarray(), 1.0, center)
    clipped = ClippedRows.of(X, None if center is None else np.array(center), 1.0)
    assert_allclose(clipped.sum(), Y.sum(axis=0), rtol=1e-12)
    assert_allclose(clipped.products(slice(0, 3)), Y.T @ Y, rtol=1e-12, atol=1e-15)
    assert_array_equal(X.data, with_duplicates(dtype).data)
    assert len(X.indices) == 4


@pytest.mark.parametrize("size", [1e100, 1e160, 1e300, 1.7e308])
@pytest.mark.parametrize("container", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
def test_a_huge_row_counts_as_a_row_of_the_bound(size, container):
    X = rows(40) / 100
    X[3] = [size, -size, 0, 0, 0, 0]
    exact = np.delete(X, 3, axis=0)
    exact = exact.T @ exact
    exact[:2, :2] += [[0.5, -0.5], [-0.5, 0.5]]
    clipped = ClippedRows.of(container(X), None, 1.0)
    V = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 2)))[0].T
    assert_allclose(clipped.products(slice(0, 6)), exact, rtol=1e-12, atol=1e-15)
    assert_allclose(clipped.times_second_moment(V), V @ exact, rtol=1e-12, atol=1e-15)
    assert_allclose(clipped.trace(), np.trace(exact), rtol=1e-12)
    mechanism = FedPowerNoise(1.0, 1e-5, 1.0)
    model = FederatedPowerPCA(2, n_rounds=3, mechanism=mechanism).fit(container(X))
    assert np.isfinite(model.noise_variance_)
    assert np.isfinite(model.components_).all()


@pytest.mark.parametrize("container", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("center", [None, np.full(3, 1e-24)], ids=["origin", "centre"])
@pytest.mark.parametrize("row_norm", [1e-60, 1e-23, 1e-18, 1e-11])
def test_no_row_counts_for_more_than_the_bound_however_much_it_is_shortened(
    row_norm, center, container
):
    """The attack: a factor below the normal floats has few digits, and shortens by too little."""
    for size in (1e240, 1e300, 1.1e300, 1.7e308):
        for row in ([size, -size / 3, size / 7], [size, 0.0, 0.0], [size / 2, size, 0.3]):
            clipped = ClippedRows.of(container([row]), center, row_norm)
            assert_allclose(np.linalg.norm(clipped.sum() / row_norm), 1, rtol=1e-12)


def test_a_far_centre_costs_no_digits_of_sparse_rows():
    X = np.full((4, 3), 1e8)
    X[0, 0] += 100
    clipped = ClippedRows.of(sp.csr_array(X), np.full(3, 1e8), 1e6)
    assert clipped.trace() == 100**2


@pytest.mark.parametrize(
    "model",
    [
        FederatedPCA(2, mechanism=AnalyzeGauss(1.0, 1e-5, 1.0)),
        FederatedPowerPCA(2, n_rounds=2, mechanism=FedPowerNoise(1.0, 1e-5, 1.0)),
    ],
    ids=repr,
)
def test_the_number_of_non_zeros_is_not_told(model):
    X = sp.random(40, 5, 0.5, "csr", random_state=0)
    fitted = clone(model).fit(X)
    assert fitted.communication_.floats_pooled == 200


@pytest.mark.parametrize("trust", ["client", "sum"])
def test_without_a_seed_the_noise_does_not_follow_the_global_generator(trust, monkeypatch):
    X = rows()
    for model in (
        FederatedPCA(2, mechanism=AnalyzeGauss(1.0, 1e-5, 3.0, trust=trust)),
        FederatedPowerPCA(2, n_rounds=2, mechanism=FedPowerNoise(1.0, 1e-5, 3.0, trust=trust)),
    ):
        means = []
        for _ in range(2):  # as two processes that were forked
            monkeypatch.setattr(np.random.mtrand, "_rand", np.random.RandomState(0))
            means.append(clone(model).fit(X).mean_)
        assert (means[0] != means[1]).all()


@pytest.mark.parametrize(
    "parameters", [{"epsilon": 1e-7}, {"row_norm": 1e-170}, {"row_norm": 1e160}], ids=str
)
def test_numbers_beyond_what_is_computed_exactly_are_refused(parameters):
    mechanism = AnalyzeGauss(**{"epsilon": 1.0, "delta": 1e-5, "row_norm": 1.0, **parameters})
    with pytest.raises(ValueError, match=next(iter(parameters))):
        FederatedPCA(2, mechanism=mechanism).fit(rows())


@pytest.mark.parametrize("delta", [1e-100, 1e-12, 0.5, 0.999])
def test_the_smallest_epsilon_is_exact_enough(delta):
    mu = mu_of(1e-6, delta)
    assert_allclose(epsilon_of(mu, delta), 1e-6, rtol=1e-3)
    # delta = E[(1 - e^(eps - L))^+] for a loss L of mean mu^2 / 2 and standard deviation mu
    z = np.linspace(-40, 40, 2_000_001)
    loss = mu * mu / 2 + mu * z
    found = np.sum(np.exp(-z * z / 2) * np.maximum(-np.expm1(1e-6 - loss), 0)) * (z[1] - z[0])
    assert_allclose(found / math.sqrt(2 * math.pi), delta, rtol=1e-3)
