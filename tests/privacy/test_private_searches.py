"""A private norm and a private centre: sensitivity, exact draws, cost, and what they find.

Two releases of a second moment, the second in the shape of the first: bounds, cost, and gain.
"""

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from privacy_helpers import MARGIN, ONE_ROUND, inf, model_of, mostly_noise, near_bounds
from scipy.stats import special_ortho_group
from sklearn.base import clone

from fedpca_sklearn import (
    AnalyzeGauss,
    FederatedPCA,
    PrivacyBudgetError,
    PrivacyLedger,
    PrivacyNoiseWarning,
    make_spiked,
    subspace_distance,
)
from fedpca_sklearn.privacy import DiscreteGaussian, PrivacyBoundWarning, PrivateCenter, PrivateNorm
from fedpca_sklearn.privacy._mechanism import Costs, Terms
from fedpca_sklearn.privacy._private_searches import (
    OF_ROUND,
    SPAN,
    Aim,
    _step,
    aim_for_moments,
    found_norm,
    least_privately,
    losses,
    norms_between,
    range_of,
    weights,
)
from fedpca_sklearn.privacy._rows import ClippedRows
from fedpca_sklearn.privacy._two_releases import FIRST, Shape, norm_that_turns_little

pytestmark = [mostly_noise, near_bounds]
FOR_MOMENTS = aim_for_moments(10_000, 10, 0.01)
AIMS = [FOR_MOMENTS, aim_for_moments(100, 10, 0.01), OF_ROUND, Aim(170, 300)]
every_aim = pytest.mark.parametrize("aim", AIMS)
BOUNDS = (1e-3, 1e4)


def searching(epsilon=1.0, row_norm="private", center="private", **options):
    return AnalyzeGauss(epsilon, 1e-5, row_norm, center=center, **options)


def rng(seed=0):
    return np.random.default_rng(seed)


def spiked_rows(n=20_000, d=20, mean=0.0):
    X, V = make_spiked(n, d, spikes=[16.0, 9.0], random_state=0)
    return X + mean, V


# ------------------------------------------------------------------------------ the draw


def test_draws_have_the_probabilities_of_the_exponential_mechanism():
    of, mu2, n_runs = [0, 7, 3, 100], 1.3, 8000
    expected = np.exp(-range_of(mu2) * np.array(of) / 10)
    expected /= expected.sum()
    bits = rng()
    drawn = np.bincount([least_privately(of, 10, mu2, bits) for _ in range(n_runs)], minlength=4)
    margin = MARGIN * np.sqrt(n_runs * expected * (1 - expected)) + 1
    assert np.all(np.abs(drawn - n_runs * expected) < margin)
    assert least_privately([5, 2, 9, 2], 10, inf, rng()) == 1  # the least, without noise


# ------------------------------------------------------------------------------ sensitivity


@every_aim
def test_changes_of_losses_lie_in_the_stated_interval(aim):
    """Every kind of neighbour: the largest row, the least, one of the middle; any other instead."""
    norms, random = norms_between(BOUNDS), rng(1)
    for n in [1, 2, 30] * 2:
        of_rows = 10.0 ** random.uniform(-4, 5, n)
        before = losses(of_rows, norms, aim)
        for at in (np.argmax(of_rows), np.argmin(of_rows), 0):
            for instead in (0.0, 10.0 ** random.uniform(-4, 5), 1e30):
                other = of_rows.copy()
                other[at] = instead
                after = losses(other, norms, aim)
                change = [b - a for a, b in zip(before, after, strict=True)]
                assert max(*change, 0) - min(*change, 0) <= SPAN


@every_aim
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


@every_aim
def test_losses_are_sums_over_rows_by_hand(aim):
    of_rows, norms = np.array([0.5, 2.0, 7.0, 0.0, 100.0, 2.0, 1.003]), np.array([1.0, 4.0])
    rounded = [*of_rows[:-1].tolist(), 1.0]  # down to one of 256 lengths in a doubling
    for norm, found in zip(norms, losses(of_rows, norms, aim), strict=True):
        W = sum(weight_by_hand(r / norm) for r in rounded)
        D = 400 * W - aim.mean * len(of_rows) * 2**30
        assert found == (aim.slope * D if D > 0 else (aim.slope - 400) * D)


# ------------------------------------------------------------------------------ what is found


def test_the_norm_leaves_the_stated_share_of_the_signal():
    of_rows = rng().pareto(2.0, 10_000) + 1
    for aim in AIMS:
        R = found_norm(of_rows, BOUNDS, aim, 0.01, rng(1))
        # eight norms to a doubling: within two of the aim
        means = [weights(of_rows, R * f).mean() / 2**30 for f in (2**0.25, 2**-0.25)]
        assert means[0] <= aim.mean / 400 <= means[1]
    R = found_norm(of_rows, BOUNDS, FOR_MOMENTS, inf, rng())
    assert 0.75 < np.minimum(1, (of_rows / R) ** 2).mean() < 0.85
    # n mu / sqrt(d) of 1, 100, 200, 1000, 32 times that, and beyond all bounds
    for n, T in [(20, 0.9), (2000, 0.85), (4000, 0.8), (20_000, 0.8), (640_000, 0.1), (inf, 0.02)]:
        assert aim_for_moments(n, 4, 0.01).mean / 200 == T


def test_what_clipping_turns_vanishes_with_the_number_of_rows():
    """A third of the rows are longer, elsewhere, and know other directions than the others do."""
    random, spectrum, errors = rng(3), 1 / np.arange(1, 21), []
    for n in (20_000, 160_000):
        short, long = (
            random.standard_normal((n, 20)) * spectrum @ special_ortho_group.rvs(20, random_state=i)
            for i in (0, 1)
        )
        X = np.where(random.random(n)[:, None] < 1 / 3, 3 * long + 1, short)
        V = np.linalg.svd(np.cov(X.T))[2][:2]
        found = FederatedPCA(2, mechanism=searching(), n_clients=1, random_state=0).fit(X)
        errors.append(subspace_distance(found.components_, V))
    assert errors[0] < 0.03, errors
    assert errors[1] < 0.005, errors


@pytest.mark.parametrize("kind", ONE_ROUND)
def test_without_noise_components_are_those_of_rows_clipped_to_what_was_found(kind):
    X = spiked_rows(400, 6, mean=[30.0, 0, 0, 0, 0, 0])[0]
    mechanism = kind(inf, 1e-5, "private", center="private")
    model = model_of(mechanism, 2, n_clients=1).fit(X)
    terms = mechanism.searched(X, mechanism.terms(X, mechanism.costs(6, 1)), rng())
    assert np.linalg.norm(terms.center - X.mean(axis=0)) < 0.2
    Y = X - terms.center
    Y *= np.minimum(1, terms.row_norm / np.linalg.norm(Y, axis=1))[:, None]
    s, V = np.linalg.svd(Y - Y.mean(axis=0), full_matrices=False)[1:]
    assert subspace_distance(model.components_, V[:2]) < 1e-9
    assert_allclose(model.explained_variance_, s[:2] ** 2 / 399)
    assert model.subspace_.privacy.row_norm == terms.row_norm


@pytest.mark.parametrize("center", [None, "private"])
def test_sparse_rows_are_searched_as_dense_ones(center):
    X = rng().poisson(0.3, (500, 12)).astype(float)
    model = model_of(searching(center=center), 2, n_clients=1, random_state=3)
    dense, sparse = (clone(model).fit(rows).components_ for rows in (X, sp.csr_array(X)))
    assert_allclose(dense, sparse, atol=1e-9)


# ------------------------------------------------------------------------------ accounts


@pytest.mark.parametrize("noise", [None, DiscreteGaussian()])
def test_batches_share_the_budget(noise):
    X, mechanism = spiked_rows(600, 5)[0], searching(n_releases=2, noise=noise)
    model = model_of(mechanism, 2, n_clients=1).partial_fit(X[:300])
    half = mechanism.spent(mechanism.budget() / 2).epsilon
    assert_allclose(model.privacy_spent_.epsilon, half, rtol=1e-6)
    assert_allclose(model.partial_fit(X[300:]).privacy_spent_.epsilon, 1.0, rtol=1e-6)
    with pytest.raises(PrivacyBudgetError):
        model.partial_fit(X[:300])


def test_searches_are_lines_of_their_own_in_a_ledger(tmp_path):
    ledger, X = PrivacyLedger(tmp_path / "ledger.jsonl"), spiked_rows(400, 5)[0]
    shares = PrivateNorm(share=0.05), PrivateCenter(share=0.45)  # at most
    mechanism = searching(1.0, *shares, n_releases=2, ledger=ledger)
    model = FederatedPCA(2, mechanism=mechanism, n_clients=2).fit(X).partial_fit(X)
    lines = [json.loads(line) for line in Path(ledger.path).read_text().splitlines()]
    assert [line["label"] for line in lines] == [*"000111"] * 2
    assert [line.get("release") for line in lines] == ["center", "row_norm", None] * 4
    half = mechanism.budget() / 2
    assert_allclose([line["mu2"] / half for line in lines], [0.45, 0.05, 0.5] * 4)
    again = PrivacyLedger(ledger.path)  # reads the chain
    for spent in (model.privacy_spent_, again.spent(1e-5)["1"]):
        assert_allclose(spent.epsilon, 1.0, rtol=1e-9)
    with pytest.raises(PrivacyBudgetError):
        clone(model).fit(X)


def test_of_many_rows_searches_take_less_and_the_release_takes_the_rest():
    mechanism = searching(n_releases=2)
    budget = mechanism.budget() / 2
    for n in (10, 10_000, 10**6):
        costs = mechanism.costs(7, 1, 0.5, mechanism._searches_of(n, 7))
        # by hand: at most 0.05, and eight rounds of at most 0.02 and 0.03
        T = 0.9 if n == 10 else 0.8 * min(1, (1000 / (n * math.sqrt(budget / 7))) ** 0.6)
        norm = min(0.05 * budget, (320 / (T * n)) ** 2)
        of_round = min(0.02 * budget, (200 / n) ** 2)
        mean = min(0.03 * budget, (7 * budget**2 / n**2) ** (1 / 3))
        assert_allclose(costs.searches, norm + 8 * (of_round + mean), rtol=1e-12)
        assert_allclose(mechanism.cost(costs, 7), budget, rtol=1e-12)
        assert_allclose(costs.mean / (costs.mean + costs.product), 0.08)
    assert costs.searches < 0.01 * budget
    assert mechanism.costs(7, 1, 0.5).searches == pytest.approx(0.45 * budget)


@pytest.mark.parametrize("n_releases", [1, 4])
def test_a_release_has_the_noise_of_what_its_searches_left(n_releases):
    X, mechanism = spiked_rows(20_000, 6)[0], searching(n_releases=n_releases)
    budget = mechanism.budget() / n_releases
    first = mechanism.terms(X, mechanism.costs(6, 1, 1 / n_releases))
    terms = mechanism.searched(X, first, rng())
    costs = terms.costs
    searches = mechanism._searches_of(20_000, 6)  # of which one round found nothing to move
    of_norm = PrivateNorm().cost(20_000, 6, budget)
    assert_allclose(costs.searches - of_norm, (searches - of_norm) / 8, rtol=1e-12)
    # of the first release, with noise of std off the diagonal, 2 R^4 / (2 std^2)
    of_first = (terms.row_norm**2 / terms.shape.std) ** 2
    compared = 4 * of_first / 100  # normal rows are like those of the next three norms
    assert terms.shape.counts
    assert_allclose(mechanism.cost(costs, 6) + of_first + 4 * compared, budget, rtol=1e-12)
    assert_allclose(of_first, (of_first + costs.product + 4 * compared) / 4, rtol=1e-12)
    assert of_first + costs.product > 1.1 * first.costs.product


def compared(X, monkeypatch, released=None):
    """What noise is added to where norms are compared, in units of what a row may move it by."""
    mechanism, seen = AnalyzeGauss(1.0, 1e-5, "private"), []
    shape = Shape(np.eye(4), np.ones(4), np.array([1e9, 1e9, 1.0, 1.0]), 1e-9)
    terms = Terms(1.0, None, Costs(1.0, None), shape=shape)

    def kept(self, values, std, _):
        seen.append(np.array(values))
        sums = values if released is None else released
        return sums if len(values) > 1 else np.array([inf if len(seen) % 2 else -inf])

    with monkeypatch.context() as patch:
        patch.setattr(AnalyzeGauss, "_noisy", kept)
        norm_that_turns_little(terms.clipped(X), terms, mechanism, rng())
    return seen


@pytest.mark.parametrize("length", [0.5, 1.3, 4.0, 1e9])
def test_a_row_moves_what_is_compared_by_its_bound_at_most(length, monkeypatch):
    random, most = rng(8), 0.0
    for _ in range(20):
        X = random.standard_normal((30, 4)) * random.uniform(0.1, 30, (30, 1))
        X[-1] *= length / np.linalg.norm(X[-1])
        other = X.copy()
        other[-1, 0] *= -1
        other[-1] *= 10.0 ** random.integers(-2, 3)
        sums = compared(X, monkeypatch)[0] * random.uniform(0.1, 3, 13)  # with any noise
        here, there = (compared(Y, monkeypatch, sums) for Y in (X, other))
        assert np.linalg.norm(here[0] - there[0]) <= 1
        assert len(here) == len(there) > 6
        most = max(most, *(abs(a - b).max() for a, b in zip(here[1:], there[1:], strict=True)))
    assert 0.1 < most <= 1.0


def test_the_bound_of_what_is_compared_is_nearly_reached(monkeypatch):
    X = np.repeat(np.eye(4)[[2]], 300, axis=0)
    X[-2:] = 100, 100, 0, 0
    other = X.copy()
    other[-1, 0] *= -1
    here = compared(X, monkeypatch)
    there = compared(other, monkeypatch, released=here[0])
    moved = max(abs(a - b).max() for a, b in zip(here[1:], there[1:], strict=True))
    assert 0.97 < moved <= 1.0


@pytest.mark.parametrize(("turns", "longer"), [(False, 0), (True, 3)])
def test_a_norm_is_left_where_longer_rows_know_other_directions(turns, longer):
    """Rows of two lengths: with the same directions, and with others for the longer ones."""
    random, n = rng(4), 20_000
    X = random.standard_normal((n, 8)) * [4, 3, 2, 1, 1, 1, 1, 1]
    X[: n // 3] *= 4
    if turns:
        X[: n // 3] @= special_ortho_group.rvs(8, random_state=0)
    mechanism = AnalyzeGauss(2.0, 1e-5, "private")
    terms = mechanism.searched(X, mechanism.terms(X, mechanism.costs(8, 1)), rng())
    once = found_norm(np.linalg.norm(X, axis=1), BOUNDS, FOR_MOMENTS, inf, rng())
    assert terms.shape.counts == (not turns)
    assert longer - 0.5 <= 2 * math.log2(terms.row_norm / once) <= 2 * longer + 0.5


def test_a_norm_stays_where_a_longer_one_has_more_noise_than_it_mends():
    """Rows of two lengths, whose first two components differ by 0.2 radians, in 600 columns."""
    random, n, turn = (
        rng(4),
        8_000,
        np.array([[np.cos(0.2), np.sin(0.2)], [-np.sin(0.2), np.cos(0.2)]]),
    )
    X = random.standard_normal((n, 600)) * [30, 20, 15, *[1] * 597]
    X[: n // 3] *= 4
    X[: n // 3, :2] @= turn
    mechanism = AnalyzeGauss(4.0, 1e-5, "private")
    terms = mechanism.searched(X, mechanism.terms(X, mechanism.costs(600, 1)), rng())
    assert terms.shape.counts


def test_the_noise_on_the_mean_of_a_round_is_what_it_pays_for(monkeypatch):
    """2 R over the mu of its share: standard deviation of the noise that is drawn."""
    mechanism, asked = searching(), []
    monkeypatch.setattr(AnalyzeGauss, "_noisy", lambda self, v, std, _: (asked.append(std), v)[1])
    X = np.zeros((5000, 3))
    X[:, 0] = 8.0
    PrivateCenter(share=0.32).found(X, mechanism, mechanism.budget(), rng())
    R = found_norm(np.full(5000, 8.0), BOUNDS, OF_ROUND, inf, rng())
    mu = (3 * mechanism.budget() ** 2 / 5000**2) ** (1 / 6)  # less than .6 of an eighth of 0.32
    assert 2 ** (-1 / 2) < asked[0] / (2 * R / mu) < 2 ** (1 / 2)
    assert np.abs(asked[0] * mu / 2 / norms_between(BOUNDS) - 1).min() < 1e-9  # one of the norms


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


@pytest.mark.parametrize(("far", "n_rounds"), [(0, 1), (2, 3), (30, 4), (1000, 5)])
def test_rounds_end_with_a_small_step_and_come_near_a_mean_from_afar(far, n_rounds):
    X, mechanism = rng().standard_normal((2000, 16)), searching(4.0)
    X += far  # rows have norms of 4 about a mean of norm 4 far
    search, budget = PrivateCenter(), mechanism.budget()
    point, spent = search.found(X, mechanism, budget, rng(1))
    of_round = search._cost_of_norm(2000, budget) + search._cost_of_mean(2000, 16, budget)
    assert 1 <= spent / of_round < n_rounds + 0.5
    assert np.linalg.norm(point - far) < 1


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_searches_of_as_many_rows_as_are_asked_for_find_no_far_too_large_norm(epsilon):
    budget, norm, center = searching(epsilon).budget(), PrivateNorm(), PrivateCenter()
    few, fewer = (math.ceil(search._rows_needed(budget)) for search in (norm, center))
    for n, aim, cost in (
        (few, FOR_MOMENTS, norm.cost(few, 1, budget)),
        (fewer, OF_ROUND, center._cost_of_norm(fewer, budget)),
    ):
        of_rows = rng().uniform(0.5, 1.5, n)
        found = [found_norm(of_rows, norm.bounds, aim, cost, rng([1, run])) for run in range(100)]
        assert np.mean(np.array(found) > 8) < 0.05


# ------------------------------------------------------------------------------ warnings


@pytest.mark.parametrize(
    ("bounds", "n", "kind", "words"),
    [
        ((1e-3, 1.0), 20_000, PrivacyBoundWarning, "near the upper of its bounds"),
        ((5.0, 1e4), 20_000, PrivacyBoundWarning, "near the lower of its bounds"),
        ((1e4, 1e8), 2000, PrivacyNoiseWarning, "cannot be told from"),
    ],
)
def test_bounds_that_do_not_fit_the_rows_are_told(bounds, n, kind, words):
    mechanism = searching(2.0, PrivateNorm(bounds), None)
    with pytest.warns(kind, match=words):
        model_of(mechanism, 2, n_clients=1).fit(spiked_rows(n, 5)[0])


# ------------------------------------------------------------------------------ shapes

D = 40


class Once(AnalyzeGauss):
    """The same noise in one release."""

    _TWICE = False


def noise(d, std, seed):
    """Symmetric noise of a standard deviation off the diagonal, and sqrt(2) of that on it."""
    G = rng(seed).standard_normal((d, d))
    return std * (G + G.T) / math.sqrt(2)


def power_law(n, d, alpha):
    basis = np.linalg.qr(rng(1).standard_normal((d, d)))[0]
    return (rng(2).standard_normal((n, d)) * np.arange(1.0, d + 1) ** -alpha) @ basis


def a_shape(d=D, std=1e-3):
    C = np.cov(power_law(500, d, 1.0).T) * 500
    return Shape.of(C, std), C


# ------------------------------------------------------------------------------ what is estimated


# ------------------------------------------------------------------------------ bounds and cost


@pytest.mark.parametrize("center", [None, "point"])
def test_rows_in_a_shape_are_no_longer_than_the_norm_whatever_they_are(center):
    shape, _ = a_shape()
    point = None if center is None else rng(5).standard_normal(D)
    R, one, other = 0.7, np.zeros(D), np.zeros(D)
    one[0], other[-1] = 1e200, -1e-3
    along = shape.directions[:, [0, -1]].T * 1e6  # the directions that scales differ most in
    rows = np.vstack([one, other, along, power_law(6, D, 0.1)])
    products = [
        ClippedRows.of(row[None], point, R, shape.matrix).products(slice(0, D)) for row in rows
    ]
    for M in products:
        assert np.trace(M) <= R**2 * (1 + 1e-12)
        for N in products:
            assert np.linalg.norm(M - N) <= math.sqrt(2) * R**2 * (1 + 1e-12)
    assert_allclose(np.trace(products[0]), R**2)


@pytest.mark.parametrize("exact", [None, DiscreteGaussian()])
def test_two_releases_cost_as_much_as_one(exact):
    mechanism = AnalyzeGauss(1.0, 1e-5, "private", center="private", noise=exact)
    costs = mechanism.costs(D, 1)
    first, second = mechanism._two_products(costs, D)
    of_both = sum(mechanism._noise_cost(of.product_std, D, 1) for of in (first, second))
    of_one = mechanism._noise_cost(costs.product_std, D, 1)
    if exact is None:
        assert_allclose(of_both, of_one, rtol=1e-12)
        assert_allclose(first.product, FIRST * costs.product, rtol=1e-12)
    else:  # rounding is paid for twice
        assert 0.99 * of_one < of_both <= of_one


def test_a_class_with_noise_of_its_own_is_released_once():
    class Another(AnalyzeGauss):
        def _noise_cost(self, std, n_features, n_shares):
            return 2 * super()._noise_cost(std, n_features, n_shares)

    X = power_law(2000, 10, 1.0)
    for kind, twice in ((AnalyzeGauss, True), (Another, False), (Once, False)):
        mechanism = kind(1.0, 1e-5, "private")
        terms = mechanism.searched(X, mechanism.terms(X, mechanism.costs(10, 1)), rng())
        assert (terms.shape is not None) == twice
        assert terms.row_norm == mechanism.searched(X, terms, rng()).row_norm


# ------------------------------------------------------------------------------ what it gives


def test_a_moment_in_a_shape_is_that_of_the_rows():
    shape, C = a_shape()
    X = power_law(300, D, 1.0)
    rows = ClippedRows.of(X, None, 1e6, shape.matrix)
    assert_allclose(shape.moment(rows.products(slice(0, D))), X.T @ X, atol=1e-9)
    assert_allclose(shape.mean(rows.sum()), X.sum(axis=0), atol=1e-9)
    # both releases right: so is their mean
    M = shape.matrix.T @ C @ shape.matrix
    assert_allclose(shape.moment(shape.combined(M, 1e-3)), C, atol=1e-9 * np.trace(C))


def test_the_mean_of_a_fit_by_two_releases_is_that_of_the_rows():
    """But for the fifth of the squares that is cut: it comes back from the shape of the first."""
    mean = rng(9).standard_normal(20)
    X = power_law(5000, 20, 1.0) + 0.3 * mean
    found = model_of(AnalyzeGauss(8.0, 1e-5, "private"), 3, n_clients=1).fit(X).mean_
    assert np.linalg.norm(found - X.mean(axis=0)) < 0.25 * np.linalg.norm(X.mean(axis=0))


def test_releases_are_weighted_by_their_noise():
    """Without scales: inverse variances, by hand."""
    shape = Shape(np.eye(3), np.ones(3), np.array([9.0, 6.0, 3.0]), 2.0)
    M = np.diag([12.0, 3.0, 3.0])
    expected = (np.diag([9.0, 6.0, 3.0]) / 4 + M / 1) / (1 / 4 + 1)
    assert_allclose(shape.combined(M, 1.0), expected)
    # of an even spectrum the noise of the second release, with its weight, is what varies
    even = Shape(np.eye(3), np.ones(3), np.full(3, 3.0), 2.0)
    assert_allclose(even.noise(1.0), 1 / (1 / 4 + 1), rtol=1e-3)
    # of another norm than the second one's the first does not count
    alone = Shape(np.eye(3), np.ones(3), np.full(3, 3.0), 2.0, counts=False)
    assert_array_equal(alone.combined(M, 1.0), M)
    assert_allclose(alone.noise(1.0), 1.0, rtol=1e-3)


def test_of_noise_alone_seldom_a_component_is_above_it():
    X = rng(7).standard_normal((1000, 30))
    model = model_of(AnalyzeGauss(0.5, 1e-5, "private"), 2, n_clients=1)
    above = [
        model.set_params(random_state=run).fit(X).n_components_above_noise_ for run in range(40)
    ]
    assert sum(n > 0 for n in above) <= 6


def test_of_even_rows_two_releases_are_as_one_of_the_norm_that_is_stated():
    """Its noise is that of the searched norm: nothing is gained where no direction stands out."""
    X, mechanism = rng().standard_normal((3000, 30)), AnalyzeGauss(1.0, 1e-5, "private")
    terms = mechanism.searched(X, mechanism.terms(X, mechanism.costs(30, 1)), rng())
    assert abs(mechanism.norm_of_noise(terms, *X.shape) / terms.row_norm - 1) < 0.05


def test_the_noise_of_the_client_with_the_longest_rows_is_no_component():
    X = rng().standard_normal((800, 20)) * np.repeat([30.0, 1.0], 400)[:, None]
    model = model_of(AnalyzeGauss(0.5, 1e-5, "private"), 2, n_clients=2).fit(X)
    assert model.n_components_above_noise_ == 0


def test_each_client_has_its_own():
    X = spiked_rows(4000, 10, mean=50.0)[0]
    X[:2000] *= 10.0
    model = model_of(searching(2.0), 2, n_clients=2).fit(X)
    long, short = (model.summaries_[label].privacy.row_norm for label in (0, 1))
    assert 5 < long / short < 20
    assert model.subspace_.privacy.row_norm == long
    assert_allclose(model.privacy_spent_.epsilon, 2.0, rtol=1e-9)
