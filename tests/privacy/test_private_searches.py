"""A private norm and a private centre: sensitivity, exact draws, cost, and what they find."""

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from sklearn.base import clone

from fedpca_sklearn import (
    AnalyzeGauss,
    FederatedPCA,
    FederatedPowerPCA,
    FedPowerNoise,
    ModSuLQ,
    PrivacyBudgetError,
    PrivacyLedger,
    PrivacyNoiseWarning,
    StreamingModSuLQ,
    make_spiked,
    subspace_distance,
)
from fedpca_sklearn.privacy import (
    DiscreteGaussian,
    PrivacyBoundWarning,
    PrivateCenter,
    PrivateNorm,
)
from fedpca_sklearn.privacy._exponential import least_privately, range_of
from fedpca_sklearn.privacy._gaussian import log_delta, mu_of
from fedpca_sklearn.privacy._private_center import N_ROUNDS, OF_ROUND, _step
from fedpca_sklearn.privacy._private_norm import (
    SPAN,
    Aim,
    aim_for_moments,
    found_norm,
    losses,
    norms_between,
    weights,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning"),
    pytest.mark.filterwarnings("ignore::fedpca_sklearn.privacy.PrivacyBoundWarning"),
]
FOR_MOMENTS = aim_for_moments(10_000, 0.01)
AIMS = [FOR_MOMENTS, aim_for_moments(10**6, 1.0), OF_ROUND, Aim(17, 30)]
MARGIN = 5  # standard deviations
BOUNDS = (1e-3, 1e4)


def cost_of_range(eta):
    """mu^2 of the Gaussians of two outcomes with losses eta / 2 and -eta / 2."""
    return (2 * stats.norm.isf(1 / (1 + math.exp(eta / 2)))) ** 2


def rng(seed=0):
    return np.random.default_rng(seed)


def spiked_rows(n=20_000, d=20, mean=0.0, seed=0):
    X, V = make_spiked(n, d, spikes=[16.0, 9.0], random_state=seed)
    return X + mean, V


# ------------------------------------------------------------------------------ the draw


def test_draws_have_the_probabilities_of_the_exponential_mechanism():
    of, mu2, n_runs = [0, 7, 3, 100], 1.3, 20_000
    eta = range_of(mu2)
    expected = np.exp(-eta * np.array(of) / 10)
    expected /= expected.sum()
    bits = rng()
    drawn = np.bincount([least_privately(of, 10, mu2, bits) for _ in range(n_runs)], minlength=4)
    assert_array_equal(
        np.abs(drawn - n_runs * expected)
        < MARGIN * np.sqrt(n_runs * expected * (1 - expected)) + 1,
        True,
    )


def test_without_noise_the_least_loss_is_taken():
    assert least_privately([5, 2, 9, 2], 10, math.inf, rng()) == 1


@pytest.mark.parametrize("mu2", [1e-8, 1e-3, 0.1, 1.0, 10.0, 300.0])
def test_the_range_of_a_cost_and_back(mu2):
    assert_allclose(cost_of_range(range_of(mu2)), mu2, rtol=1e-9)
    assert math.isinf(range_of(math.inf))


def two_outcomes(eta, t):
    """Probabilities of the first of two outcomes, with losses t and t - eta."""
    # p = q e^t and 1 - p = (1 - q) e^(t - eta)
    q = (1 - math.exp(t - eta)) / (math.exp(t) - math.exp(t - eta))
    return q * math.exp(t), q


@pytest.mark.parametrize("eta", [0.01, 0.1, 1.0, 5.0])
@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.8, 0.99])
def test_no_two_outcomes_of_that_range_are_easier_to_tell_apart_than_gaussians(eta, share):
    """Delta at every epsilon, by hand, against that of Gaussians of the stated mu."""
    p, q = two_outcomes(eta, share * eta)
    mu = math.sqrt(cost_of_range(eta))
    for epsilon in np.linspace(0, eta, 41):
        delta = max(p - math.exp(epsilon) * q, 0) + max((1 - p) - math.exp(epsilon) * (1 - q), 0)
        assert delta <= math.exp(log_delta(epsilon, mu)) + 1e-12
    if share == 0.5:  # and the bound is reached where the two lines meet
        assert_allclose(stats.norm.ppf(p) - stats.norm.ppf(q), mu, rtol=1e-9)


def test_pld_accountant_finds_no_more_in_a_search_with_a_gaussian_release():
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    epsilon, delta, share = 1.0, 1e-5, 0.16
    mu2 = mu_of(epsilon, delta) ** 2
    # randomised response with e^(eta / 2): the two outcomes of the worst case
    eta = range_of(share * mu2)
    keep = 1 / (1 + math.exp(eta / 2))
    search = pld.from_randomized_response(2 * keep, 2, value_discretization_interval=1e-5)
    release = pld.from_gaussian_mechanism(
        1 / math.sqrt((1 - share) * mu2), value_discretization_interval=1e-5
    )
    both = search.compose(release).get_epsilon_for_delta(delta)
    assert 0.9 * epsilon < both <= epsilon * (1 + 1e-4)


@pytest.mark.parametrize("n_rounds", range(1, N_ROUNDS + 1))
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-5), (1.0, 1e-6), (4.0, 1e-3)])
def test_all_releases_of_a_fit_compose_to_what_an_accountant_says(epsilon, delta, n_rounds):
    """Every norm, mean and the product as Gaussians, composed by sigma: delta to 1e-12."""
    losses = pytest.importorskip("dp_accounting.pld.privacy_loss_mechanism")
    private = AnalyzeGauss(epsilon, delta, "private", center="private")
    budget, (n, d) = private.budget(), (5000, 30)
    center, norm = PrivateCenter(), PrivateNorm().cost(n, d, budget)
    of_round = [center._cost_of_norm(n, budget), center._cost_of_mean(n, d, budget)]
    costs = private.costs(d, 1, 1.0, n_rounds * sum(of_round) + norm)
    parts = [*of_round * n_rounds, norm, costs.product, costs.mean]
    mu = math.sqrt(math.fsum(parts))
    stated = private.spent(private.cost(costs, d))
    for at in (stated.epsilon, epsilon / 2, 2 * epsilon):
        expected = losses.GaussianPrivacyLoss(1 / mu).get_delta_for_epsilon(at)
        assert_allclose(math.exp(log_delta(at, mu)), expected, rtol=1e-12)
        if at == stated.epsilon:
            assert_allclose(expected, delta, rtol=1e-11)


# ------------------------------------------------------------------------------ sensitivity


@pytest.mark.parametrize("aim", AIMS)
def test_changes_of_losses_lie_in_the_stated_interval(aim):
    """Every kind of neighbour: the largest row, the least, one of the middle; any other instead."""
    norms, random = norms_between(BOUNDS), rng(1)
    for n in (1, 2, 30):
        for _ in range(40):
            of_rows = 10.0 ** random.uniform(-4, 5, n)
            before = losses(of_rows, norms, aim)
            for at in (np.argmax(of_rows), np.argmin(of_rows), 0):
                for instead in (0.0, 10.0 ** random.uniform(-4, 5), 1e30):
                    other = of_rows.copy()
                    other[at] = instead
                    after = losses(other, norms, aim)
                    change = [b - a for a, b in zip(before, after, strict=True)]
                    assert max(*change, 0) - min(*change, 0) <= SPAN


@pytest.mark.parametrize("aim", AIMS)
def test_the_interval_is_nearly_reached(aim):
    """A row of weight 0 that becomes one of weight nearly 1, where D is below 0 or above."""
    norms, longest = norms_between(BOUNDS), 1e250
    long, short = np.full(100, longest), np.zeros(100)
    one_less, one_more = long.copy(), short.copy()
    one_less[0], one_more[0] = 0.0, longest
    fell = losses(one_less, norms, aim)[0] - losses(long, norms, aim)[0]
    rose = losses(one_more, norms, aim)[0] - losses(short, norms, aim)[0]
    assert fell < 0 > rose
    assert 0.95 * SPAN < -fell - rose <= SPAN


def weight_by_hand(x):
    """Half of x^2 up to 1; beyond, half and e / (2 e + 32) for e whole doublings."""
    if x <= 1:
        return math.floor(Fraction(x) ** 2 * 2**29)
    e = math.floor(math.log2(x))
    return 2**29 + math.floor(Fraction(e, e + 16) * 2**29)


def test_losses_are_sums_over_rows_by_hand():
    of_rows, norms = np.array([0.5, 2.0, 7.0, 0.0, 100.0]), np.array([1.0, 4.0])
    for aim in AIMS:
        for norm, found in zip(norms, losses(of_rows, norms, aim), strict=True):
            W = sum(weight_by_hand(r / norm) for r in of_rows.tolist())
            D = 40 * W - aim.mean * len(of_rows) * 2**30
            assert found == (aim.slope * D if D > 0 else (aim.slope - 40) * D)


def test_weights_grow_with_the_rows():
    of_rows = np.sort(np.r_[0.0, 10.0 ** rng().uniform(-8, 250, 2000), np.nextafter(2.0, [0, 3])])
    for norm in (1e-3, 1.0, 1.7, 1e4):
        found = weights(of_rows, norm)
        assert np.all(np.diff(found) >= 0)
        assert found.min() >= 0
        assert found.max() <= 2**30


def test_the_norms_are_eight_to_a_doubling_between_the_bounds():
    norms = norms_between((0.5, 32.0))
    assert (norms[0], norms[-1], len(norms)) == (0.5, 32.0, 49)
    assert_allclose(norms[1:] / norms[:-1], 2 ** (1 / 8), rtol=2e-5)  # of six digits


# ------------------------------------------------------------------------------ what is found


def test_the_norm_leaves_the_stated_share_of_the_signal():
    of_rows = rng().pareto(2.0, 10_000) + 1
    for aim in AIMS:
        R = found_norm(of_rows, BOUNDS, aim, 0.01, rng(1))
        # eight norms to a doubling: within two of the aim
        means = [weights(of_rows, R * f).mean() / 2**30 for f in (2**0.25, 2**-0.25)]
        assert means[0] <= aim.mean / 40 <= means[1]
    R = found_norm(of_rows, BOUNDS, FOR_MOMENTS, math.inf, rng())
    assert 0.85 < np.minimum(1, (of_rows / R) ** 2).mean() < 0.95


def test_less_is_shortened_where_noise_is_little():
    for n, mu2, T in [(500, 0.01, 0.9), (14_400, 1.0, 0.85), (10**6, 1.0, 0.7), (9, math.inf, 0.7)]:
        assert aim_for_moments(n, mu2).mean / 20 == T  # 1 - sqrt(n) mu / 800


@pytest.mark.parametrize("kind", [AnalyzeGauss, ModSuLQ, StreamingModSuLQ])
def test_without_noise_components_are_those_of_rows_clipped_to_what_was_found(kind):
    X = spiked_rows(400, 6, mean=[30.0, 0, 0, 0, 0, 0])[0]
    model = FederatedPCA(
        2, mechanism=kind(math.inf, 1e-5, "private", center="private"), n_clients=1
    ).fit(X)
    mechanism = model.mechanism
    terms = mechanism.searched(X, mechanism.terms(X, mechanism.costs(6, 1)), rng())
    assert np.linalg.norm(terms.center - X.mean(axis=0)) < 0.2
    Y = X - terms.center
    Y *= np.minimum(1, terms.row_norm / np.linalg.norm(Y, axis=1))[:, None]
    s, V = np.linalg.svd(Y - Y.mean(axis=0), full_matrices=False)[1:]
    assert subspace_distance(model.components_, V[:2]) < 1e-9
    assert_allclose(model.explained_variance_, s[:2] ** 2 / 399)
    assert model.subspace_.privacy.row_norm == terms.row_norm


def test_far_rows_of_which_nothing_is_known():
    X, V = spiked_rows(mean=100.0)
    mechanism = AnalyzeGauss(1.0, 1e-5, "private", center="private")
    model = FederatedPCA(2, mechanism=mechanism, n_clients=1, random_state=0).fit(X)
    assert subspace_distance(model.components_, V) < 0.05
    assert_allclose(model.mean_, X.mean(axis=0), atol=0.5)
    about_zero = AnalyzeGauss(1.0, 1e-5, "private")
    model.set_params(mechanism=about_zero).fit(X)
    assert subspace_distance(model.components_, V) > 0.3


def test_each_client_has_its_own():
    X = spiked_rows(4000, 10, mean=50.0)[0]
    X[:2000] *= 10.0
    private = AnalyzeGauss(2.0, 1e-5, "private", center="private")
    model = FederatedPCA(2, mechanism=private, n_clients=2, random_state=0).fit(X)
    long, short = (model.summaries_[label].privacy.row_norm for label in (0, 1))
    assert 5 < long / short < 20
    assert model.subspace_.privacy.row_norm == long
    assert_allclose(model.privacy_spent_.epsilon, 2.0, rtol=1e-9)


def test_sparse_rows_are_searched_as_dense_ones():
    X = rng().poisson(0.3, (500, 12)).astype(float)
    for center in (None, "private"):
        models = [
            FederatedPCA(
                2,
                mechanism=AnalyzeGauss(1.0, 1e-5, "private", center=center),
                n_clients=1,
                random_state=3,
            ).fit(rows)
            for rows in (X, sp.csr_array(X))
        ]
        assert_allclose(models[0].components_, models[1].components_, atol=1e-9)


@pytest.mark.parametrize("noise", [None, DiscreteGaussian()])
def test_batches_share_the_budget(noise):
    X = spiked_rows(600, 5)[0]
    private = AnalyzeGauss(1.0, 1e-5, "private", center="private", n_releases=2, noise=noise)
    model = FederatedPCA(2, mechanism=private, n_clients=1, random_state=0)
    model.partial_fit(X[:300])
    half = model.privacy_spent_.epsilon
    model.partial_fit(X[300:])
    assert_allclose(half, private.spent(private.budget() / 2).epsilon, rtol=1e-6)
    assert_allclose(model.privacy_spent_.epsilon, 1.0, rtol=1e-6)
    with pytest.raises(PrivacyBudgetError):
        model.partial_fit(X[:300])


# ------------------------------------------------------------------------------ accounts


def test_searches_are_lines_of_their_own_in_a_ledger(tmp_path):
    ledger = PrivacyLedger(tmp_path / "ledger.jsonl")
    private = AnalyzeGauss(
        1.0,
        1e-5,
        PrivateNorm(share=0.05),
        center=PrivateCenter(share=0.25),
        ledger=ledger,
    )
    model = FederatedPCA(2, mechanism=private, n_clients=2).fit(spiked_rows(400, 5)[0])
    lines = [json.loads(line) for line in Path(ledger.path).read_text().splitlines()]
    mu2 = mu_of(1.0, 1e-5) ** 2
    assert [line["label"] for line in lines] == ["0"] * 3 + ["1"] * 3
    assert [line.get("release") for line in lines] == ["center", "row_norm", None] * 2
    assert_allclose([line["mu2"] / mu2 for line in lines], [0.25, 0.05, 0.7] * 2)
    assert_allclose(model.privacy_spent_.epsilon, 1.0, rtol=1e-9)
    again = PrivacyLedger(ledger.path)  # reads the chain
    assert_allclose(again.spent(1e-5)["1"].epsilon, 1.0, rtol=1e-9)
    with pytest.raises(PrivacyBudgetError):
        clone(model).fit(spiked_rows(400, 5)[0])


def test_of_many_rows_searches_take_less_and_the_release_takes_the_rest():
    private = AnalyzeGauss(1.0, 1e-5, "private", center="private", n_releases=2)
    budget = private.budget() / 2
    for n in (10, 10_000, 10**6):
        costs = private.costs(7, 1, 0.5, private._searches_of(n, 7))
        # by hand: at most 0.05, and three rounds of at most 0.02 and 0.03
        norm = min(0.05 * budget, (400 / n) ** 2)
        of_round = min(0.02 * budget, (200 / n) ** 2)
        mean = min(0.03 * budget, (7 * budget**2 / n**2) ** (1 / 3))
        assert_allclose(costs.searches, norm + 3 * (of_round + mean), rtol=1e-12)
        assert_allclose(private.cost(costs, 7), budget, rtol=1e-12)
        assert_allclose(costs.mean / (costs.mean + costs.product), 0.08)
    assert costs.searches < 0.01 * budget
    assert private.costs(7, 1, 0.5).searches == pytest.approx(0.2 * budget)


def test_a_release_has_the_noise_of_what_its_searches_left():
    X, private = spiked_rows(20_000, 6)[0], AnalyzeGauss(1.0, 1e-5, "private", center="private")
    first = private.terms(X, private.costs(6, 1))
    terms = private.searched(X, first, rng())
    searches = private._searches_of(20_000, 6)  # of which one round found nothing to move
    assert terms.costs.searches < searches
    of_norm = PrivateNorm().cost(20_000, 6, private.budget())
    assert_allclose(terms.costs.searches - of_norm, (searches - of_norm) / 3, rtol=1e-12)
    assert_allclose(private.cost(terms.costs, 6), private.budget(), rtol=1e-12)
    assert terms.costs.product > 1.1 * first.costs.product


@pytest.mark.parametrize("shares", [(0.04, 0.12), (0.45, 0.45)])
def test_all_parts_cost_the_budget(shares):
    private = AnalyzeGauss(
        1.0, 1e-5, PrivateNorm(share=shares[0]), center=PrivateCenter(share=shares[1])
    )
    costs = private.costs(7, 1)
    assert_allclose(private.cost(costs, 7), private.budget(), rtol=1e-12)
    assert_allclose(costs.searches, sum(shares) * private.budget(), rtol=1e-12)
    assert_allclose(costs.product + costs.mean, (1 - sum(shares)) * private.budget(), rtol=1e-12)


def test_the_noise_on_the_mean_of_a_round_is_what_it_pays_for(monkeypatch):
    """2 R over the mu of its share: standard deviation of the noise that is drawn."""
    private = AnalyzeGauss(1.0, 1e-5, "private", center="private")
    asked = []

    def recorded(self, values, std, generator):
        asked.append(std)
        return values

    monkeypatch.setattr(AnalyzeGauss, "_noisy", recorded)
    X = np.zeros((5000, 3))
    X[:, 0] = 8.0
    PrivateCenter(share=0.12).found(X, private, private.budget(), rng())
    R = found_norm(np.full(5000, 8.0), BOUNDS, OF_ROUND, math.inf, rng())
    mu = (3 * private.budget() ** 2 / 5000**2) ** (1 / 6)  # less than a fifth of 0.12
    assert 2 ** (-1 / 2) < asked[0] / (2 * R / mu) < 2 ** (1 / 2)
    norms = norms_between(BOUNDS)
    of_norms = asked[0] * mu / 2 / norms
    assert np.abs(of_norms - 1).min() < 1e-9  # one of the norms


def test_a_step_is_taken_where_it_is_more_than_noise_and_shortened_by_that():
    """James and Stein by hand: the factor 1 - d s^2 / |m|^2 of a noisy mean m."""
    d, std, R = 9, 0.5, 10.0
    mean = np.zeros(d)
    mean[0] = math.sqrt((d + 4 * 3) * std**2)
    assert_array_equal(_step(mean, std, R), np.zeros(d))
    mean[0] *= 1.001
    assert_allclose(_step(mean, std, R), mean * (1 - d * std**2 / mean[0] ** 2), rtol=1e-12)
    mean[0] = 100.0
    assert_allclose(_step(mean, std, R)[0], R)
    assert_array_equal(_step(np.zeros(d), 0.0, R), np.zeros(d))


def test_about_the_origin_few_rows_keep_the_origin():
    X = spiked_rows(500, 20)[0]
    private = AnalyzeGauss(0.5, 1e-5, "private", center="private")
    budget = private.budget()
    points = [PrivateCenter().found(X, private, budget, rng(i))[0] for i in range(20)]
    assert sum(not point.any() for point in points) >= 18  # noise of chi2 with 20 degrees, 3 times


# ------------------------------------------------------------------------------ warnings, errors


@pytest.mark.parametrize(("bounds", "end"), [((1e-3, 1.0), "upper"), ((5.0, 1e4), "lower")])
def test_a_search_that_ends_near_a_bound_warns(bounds, end):
    X = spiked_rows(20_000, 5)[0]
    model = FederatedPCA(2, mechanism=AnalyzeGauss(2.0, 1e-5, PrivateNorm(bounds)), n_clients=1)
    with pytest.warns(PrivacyBoundWarning, match=f"near the {end} of its bounds"):
        model.fit(X)


def test_rows_far_below_the_bounds_drown_in_noise_and_a_warning_says_so():
    X = spiked_rows(2000, 5)[0]
    private = AnalyzeGauss(1.0, 1e-5, PrivateNorm((1e4, 1e8)))
    with pytest.warns(PrivacyNoiseWarning, match="cannot be told from its noise"):
        FederatedPCA(2, mechanism=private, n_clients=1).fit(X)


@pytest.mark.parametrize("bounds", [(1.0,), (2.0, 1.0), (0.0, 1.0), (1.0, math.inf), "ab", 3])
@pytest.mark.parametrize("kind", [PrivateNorm, PrivateCenter])
def test_bounds_that_are_none(kind, bounds):
    with pytest.raises(ValueError, match="bounds must be two numbers"):
        kind(bounds)


@pytest.mark.parametrize("share", [0.0, 0.5, -1.0, math.nan])
@pytest.mark.parametrize("kind", [PrivateNorm, PrivateCenter])
def test_shares_that_are_none(kind, share):
    with pytest.raises(ValueError, match="share must be"):
        kind(share=share)


@pytest.mark.parametrize(
    "options", [{"row_norm": "private"}, {"row_norm": 2.0, "center": "private"}]
)
def test_one_norm_for_all_must_be_known(options):
    X = spiked_rows(100, 5)[0]
    name = "center" if "center" in options else "row_norm"
    with pytest.raises(ValueError, match=f"{name} must be known in advance"):
        FederatedPCA(2, mechanism=AnalyzeGauss(1.0, 1e-5, trust="sum", **options)).fit(X)
    with pytest.raises(ValueError, match=f"{name} must be known in advance"):
        FederatedPowerPCA(2, mechanism=FedPowerNoise(1.0, 1e-5, **options)).fit(X)


def test_other_texts_are_refused():
    with pytest.raises(ValueError, match="row_norm"):
        AnalyzeGauss(1.0, 1e-5, "secret").validate()
    with pytest.raises(ValueError, match="center"):
        AnalyzeGauss(1.0, 1e-5, 1.0, center="secret").validate()
