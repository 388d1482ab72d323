"""Attacks on every mechanism: what neighbouring rows give away, beside what is stated.

Two clients differ in one row, of the largest norm and clipped: along one axis or another, or
mirrored. Their messages, or the attributes of estimators fitted of them, are drawn many times. A
linear discriminant and its threshold are chosen on one half of the runs; on the other half
Clopper-Pearson intervals of the two error rates give a lower bound of epsilon at the stated delta,
which is too high with a probability of 1e-4. Above the stated epsilon a promise is broken. The same
attack has to catch five faults that are put into copies of the mechanisms, five in the searches for
a private norm and a private centre, and three in the sums of a private scaler. Searches and release
together are attacked with neighbours that differ in the largest row, in the centre, and in the
range of one column, the first of two releases among what is seen, and in an extreme shape.
"""

import math
import warnings
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from unittest import mock

import numpy as np
from scipy.special import betaincinv

from benchmarks._tools import table
from fedpca_sklearn import (
    AnalyzeGauss,
    FederatedPCA,
    FederatedPowerPCA,
    FedPowerNoise,
    ModSuLQ,
    PrivacyNoiseWarning,
    StreamingModSuLQ,
)
from fedpca_sklearn.federated import _private
from fedpca_sklearn.privacy import (
    PrivacyBoundWarning,
    PrivateCenter,
    PrivateNorm,
    ScalerNoise,
    _private_searches,
    _scores,
    _two_releases,
    private_scores,
)
from fedpca_sklearn.privacy._gaussian import epsilon_of
from fedpca_sklearn.privacy._ledger import Accounts
from fedpca_sklearn.privacy._mechanism import Costs, Terms
from fedpca_sklearn.privacy._rows import ClippedRows, row_norms
from fedpca_sklearn.privacy._two_releases import Shape
from fedpca_sklearn.rounds._queries import Moments, PrivateClient, TimesScatter, Variances

DELTA, R, D, N = 0.1, 2.0, 2, 4
CONFIDENCE = 1e-4  # that a lower bound is too high, for both rates together
# Rows of a client but one are at the origin, so that the neighbours are all that there is to see.
PAIRS = {"axes": ([20.0, 0.0], [0.0, 20.0]), "mirrored": ([20.0, 0.0], [-20.0, 0.0])}


# ------------------------------------------------------------------------------ the attack


def lower_bound(here, there, delta, confidence=CONFIDENCE):
    """Lower bound of epsilon by samples, one a row, of two neighbours."""
    half = len(here) // 2
    train, test = (here[:half], there[:half]), (here[half:], there[half:])
    scale = np.concatenate(train).std(axis=0)
    scale[scale == 0] = 1.0
    train, test = ([values / scale for values in pair] for pair in (train, test))
    change = train[0].mean(axis=0) - train[1].mean(axis=0)
    within = sum(np.atleast_2d(np.cov(values.T)) for values in train) / 2
    within[np.diag_indices_from(within)] += 1e-9  # entries without noise
    direction = np.linalg.solve(within, change)
    train, test = ([values @ direction for values in pair] for pair in (train, test))
    candidates = [
        (bound, sign, t)
        for sign in (1, -1)
        for t in np.quantile(np.concatenate(train), np.linspace(0.005, 0.995, 199))
        if (bound := _bound(*train[::sign], sign, t, delta, confidence)) > -math.inf
    ]
    if not candidates:
        return 0.0
    _, sign, t = max(candidates)
    return max(0.0, _bound(*test[::sign], sign, t, delta, confidence))


def _bound(likely, unlikely, sign, t, delta, confidence):
    """Lower bound by one event: beyond t, on the side of the first sample."""
    hits, false = (int(np.sum(sign * v > sign * t)) for v in (likely, unlikely))
    n, m = len(likely), len(unlikely)
    power = betaincinv(hits, n - hits + 1, confidence / 2) if hits else 0.0
    size = betaincinv(false + 1, m - false, 1 - confidence / 2) if false < m else 1.0
    return math.log((power - delta) / size) if power > delta else -math.inf


# ------------------------------------------------------------------------------ what is seen


def clients_of(row, n_clients):
    """Rows of each client; the first has the one in question."""
    X = np.zeros((n_clients, N, D))
    X[0, 0] = row
    return X


def stated(mechanism, n_clients, n_calls=1):
    """(epsilon, delta) that an account would show."""
    products = 2 if isinstance(mechanism, FedPowerNoise) else 1
    costs = mechanism.costs(D, products, 1 / mechanism.n_releases)
    return mechanism.spent(n_calls * mechanism.cost(costs, D, products, n_clients))


def messages(mechanism, row, n_clients, n_runs, seed, n_calls=1, comes_back=False):
    """Everything that the server receives, in each run: a row of numbers.

    The row in question is there in the first call, and in all of them if it comes back.
    """
    power = isinstance(mechanism, FedPowerNoise)
    rounds = _power_messages if power else _release_messages
    accounts = Accounts()
    plain = AnalyzeGauss(math.inf, DELTA, R)  # charges what no one refuses
    numbers = []
    for _ in range(n_calls):
        accounts.charge(accounts.check(range(n_clients), plain, 0.0), plain, 0.0)
        numbers.append(accounts.numbers(range(n_clients)))
    sent = [
        rounds(
            mechanism, clients_of(row if comes_back or not call else 0.0, n_clients), numbers[call]
        )
        for call in range(n_calls)
    ]
    return np.array([np.concatenate([call((seed, run)) for call in sent]) for run in range(n_runs)])


def _release_messages(mechanism, X, numbers):
    """Function of the seeds that returns the sum of the clients' messages of one release."""
    costs = mechanism.costs(D, 1, 1 / mechanism.n_releases)
    releases = [
        _private.Release(mechanism, mechanism.terms(rows, costs, len(X)), rows, (), None)
        for rows in X
    ]
    clipped, parts = (
        [release.terms.clipped(release.rows) for release in releases],
        releases[0].parts(),
    )

    def sent(seeds):
        turns = [replace(r, seeds=(*seeds, *k)) for r, k in zip(releases, numbers, strict=True)]
        return np.concatenate(
            [
                sum(r.message(rows, *part) for r, rows in zip(turns, clipped, strict=True)).ravel()
                for part in parts
            ]
        )

    return sent


def _power_messages(mechanism, X, numbers):
    """Alike for a round of products and the last, for the basis of a server that wants to know."""
    costs, V = mechanism.costs(D, 2), np.eye(D)
    terms = mechanism.terms(X[0], costs, len(X))
    mean = terms.origin(D)

    def sent(seeds):
        clients = [
            PrivateClient.of(i, rows, mechanism, terms, (*seeds, *k))
            for i, (rows, k) in enumerate(zip(X, numbers, strict=True))
        ]
        asked = [Moments(), TimesScatter(V, mean), Variances(V, mean)]
        return np.concatenate(
            [sum(q(c.label, c, turn) for c in clients).ravel() for turn, q in enumerate(asked)]
        )

    return sent


def fitted(mechanism, row, n_clients, n_runs, seed):
    """Fitted attributes of an estimator, in each run."""
    X = clients_of(row, n_clients).reshape(-1, D)
    labels = np.repeat(range(n_clients), N)
    if isinstance(mechanism, FedPowerNoise):
        model = FederatedPowerPCA(D, n_rounds=1, mechanism=mechanism)
    else:
        model = FederatedPCA(D, mechanism=mechanism)
    found = []
    for run in range(n_runs):
        model.set_params(random_state=(2 * run + seed) % 2**32).fit(X, clients=labels)
        V, variances = model.components_, model.explained_variance_
        pairs = np.triu_indices(D)
        found.append(
            [
                *model.mean_,
                *variances,
                *((V.T * variances) @ V)[pairs],
                *np.outer(V[0], V[0])[pairs],
                model.subspace_.scatter,
            ]
        )
    return np.array(found), model.privacy_spent_


# ------------------------------------------------------------------------------ the audit


def mechanisms():
    """Every mechanism, in both modes of trust, with a private and with a fixed mean."""
    for trust in ("client", "sum"):
        for mean in ("private", "fixed"):
            options = {"mean": mean, "mean_share": 0.5, "trust": trust}
            yield AnalyzeGauss(1.0, DELTA, R, **options)
            yield ModSuLQ(4.0, DELTA, R, **options)
            yield StreamingModSuLQ(10.0, DELTA, R, **options)
            yield FedPowerNoise(1.0, DELTA, R, **options)


def audited(mechanism, pair, n_messages, n_fits):
    """Rows of the table for one mechanism and one pair of neighbours."""
    n_clients = 2 if mechanism.trust == "sum" else 1
    label = {
        "mechanism": type(mechanism).__name__,
        "trust": mechanism.trust,
        "mean": mechanism.mean,
        "rows": pair,
    }
    epsilon, delta = stated(mechanism, n_clients)
    neighbours = list(enumerate(PAIRS[pair]))
    sides = [messages(mechanism, row, n_clients, n_messages, i) for i, row in neighbours]
    yield verdict({**label, "seen": "messages"}, epsilon, lower_bound(*sides, delta))
    if n_fits:
        sides = [fitted(mechanism, row, n_clients, n_fits, i) for i, row in neighbours]
        epsilon, delta = sides[0][1]
        bound = lower_bound(sides[0][0], sides[1][0], delta)
        yield verdict({**label, "seen": "attributes"}, epsilon, bound)


def verdict(label, epsilon, bound):
    says = "holds" if bound <= epsilon * (1 + 1e-9) else "BROKEN"
    return {**label, "stated": epsilon, "lower bound": bound, "verdict": says}


# ------------------------------------------------------------------------------ seeded faults


class MirroredMask(AnalyzeGauss):
    """Noise above the diagonal, and the rows themselves below it."""

    def _noise(self, shape, std, rng):
        return np.triu(super()._noise(shape, std, rng))

    def _noise_cost(self, std, n_features, n_shares):
        return super()._noise_cost(std, n_features, n_shares)


class SmallNoise(AnalyzeGauss):
    """Noise over sqrt(2)."""

    def _noise(self, shape, std, rng):
        return super()._noise(shape, std, rng) / math.sqrt(2)

    def _noise_cost(self, std, n_features, n_shares):
        return super()._noise_cost(std, n_features, n_shares)


@contextmanager
def loose_clipping():
    """Rows are shortened to twice the norm that the noise is made for."""
    of = ClippedRows.of
    with mock.patch.object(
        ClippedRows, "of", lambda X, c, r, *of_shape: of(X, c, 2 * r, *of_shape)
    ):
        yield


@contextmanager
def one_seed():
    """The number of the call does not enter the seed of the noise."""
    with mock.patch.object(
        Accounts, "numbers", lambda self, labels: [(label, 0) for label in labels]
    ):
        yield


@dataclass(frozen=True)
class Fault:
    """A defect: a mechanism that has it, or a context in which a right one has it."""

    name: str
    mechanism: object
    context: object = nullcontext
    n_calls: int = 1
    n_charged: int = 1  # calls that are on the account
    rows: tuple = PAIRS["axes"]


OPTIONS = {"epsilon": 1.0, "delta": DELTA, "row_norm": R, "mean": "fixed"}
FAULTS = [
    Fault("clipping off by 2", AnalyzeGauss(**OPTIONS), loose_clipping),
    # below the diagonal are the products of two features
    Fault("a mirrored mask", MirroredMask(**OPTIONS), rows=([20.0, 20.0], [20.0, -20.0])),
    Fault("noise / sqrt(2)", SmallNoise(**OPTIONS)),
    Fault("a forgotten release", AnalyzeGauss(**OPTIONS), n_calls=2),
    Fault("a reused seed", AnalyzeGauss(**OPTIONS, n_releases=2), one_seed, 2, 2),
]


def attacked(fault, n_messages):
    """Row of the table for one fault."""
    comes_back = fault.n_charged < fault.n_calls
    with fault.context():
        epsilon, delta = stated(fault.mechanism, 1, fault.n_charged)
        sides = [
            messages(fault.mechanism, row, 1, n_messages, i, fault.n_calls, comes_back)
            for i, row in enumerate(fault.rows)
        ]
    bound = lower_bound(*sides, delta)
    says = "caught" if bound > epsilon else "MISSED"
    return {"fault": fault.name, "stated": epsilon, "lower bound": bound, "verdict": says}


# ------------------------------------------------------------------------------ searches

# A search is two outcomes at worst, which are told apart best at a large delta.
DELTA_OF_NORM = 0.3
SEARCHES = {
    "norm": AnalyzeGauss(4.0, DELTA, PrivateNorm(share=0.45)),
    # one norm, so that the noise on the means is all that there is
    "centre": AnalyzeGauss(2.0, DELTA, R, center=PrivateCenter((R, 1.01 * R), share=0.45)),
    "norm of a second release": AnalyzeGauss(2.0, DELTA, "private"),
}


def rows_of_search(what, side):
    """Rows of which one is mirrored; or is nothing, or very long.

    Of 100 rows 38 are very long and 8 of length 1, so that norms below and above 1 have about equal
    losses, which the row in question moves in opposite directions.
    """
    if what == "centre":
        return clients_of(PAIRS["mirrored"][side], 1)[0]
    if what == "norm of a second release":  # long ones along the diagonal, the last one across it
        return np.r_[np.tile([1.0, 0], (200, 1)), np.full((5, 2), 1e3), [[1e3, 1e3 - 2e3 * side]]]
    X = np.zeros((100, 1))
    X[:38], X[38:46], X[-1] = 1e100, 1.0, 1e200 * side
    return X


def found_in(what, side, n_runs):
    """What a search releases, in each run, and mu^2 of it."""
    mechanism, X = SEARCHES[what], rows_of_search(what, side)
    n, d = X.shape
    if what == "norm of a second release":
        return compared(mechanism, X, [np.random.default_rng([side, run]) for run in range(n_runs)])
    mu2 = mechanism.costs(d, 1, 1.0, mechanism._searches_of(n, d)).searches
    rngs = (np.random.default_rng([side, run]) for run in range(n_runs))
    if what == "centre":
        search, budget = mechanism.searches["center"], mechanism.budget()
        with means_as_released() as means:
            for rng in rngs:
                search.found(X, mechanism, budget, rng)
        return np.reshape(means, (n_runs, -1)), mu2
    search = mechanism.searches["row_norm"]
    norms = _private_searches.norms_between(search.bounds)
    aim = _private_searches.aim_for_moments(n, d, mechanism.budget())
    of = _private_searches.losses(row_norms(X, None), norms, aim)
    cost = search.cost(n, d, mechanism.budget())
    found = [
        _private_searches.least_privately(of, _private_searches.SPAN, cost, rng) for rng in rngs
    ]
    return np.log(norms[found])[:, None], mu2


def compared(mechanism, X, rngs):
    """All numbers behind a longer norm, of which each run looks at three, and mu^2 of them."""
    shape = Shape(np.eye(D), np.ones(D), np.array([1e9, 0.0]), 1e-9)
    costs = Costs(75 / 4 * mechanism.budget(), None)  # four times 1 / 75 of it
    terms, seen, noisy = Terms(1.0, None, costs, shape=shape), [], AnalyzeGauss._noisy

    def kept(self, values, std, rng):
        seen.append(noisy(self, values, std, rng))
        return np.full(len(values), -1.0) if len(values) == 1 else seen[-1]  # nothing differs

    with mock.patch.object(AnalyzeGauss, "_noisy", kept):
        for rng in rngs:
            rows = terms.clipped(X)
            _, mu2 = _two_releases.norm_that_turns_little(rows, terms, mechanism, rng)
    return np.concatenate(seen).reshape(len(rngs), -1), mu2


@contextmanager
def means_as_released():
    """Noisy means of the rounds of a centre, before they are shortened; points hardly move."""
    means = []

    def kept(mean, std, R):
        means.append(mean)
        return np.full(len(mean), 1e-300)

    no_last = mock.patch.object(_private_searches, "_LITTLE", -1.0)  # so that no step is
    with no_last, mock.patch.object(_private_searches, "_step", kept):
        yield means


def search_audited(what, n_runs):
    """Stated epsilon of a search, and its lower bound."""
    (here, mu2), (there, _) = (found_in(what, side, n_runs) for side in (0, 1))
    delta = DELTA_OF_NORM if what == "norm" else DELTA
    return epsilon_of(math.sqrt(mu2), delta), lower_bound(here, there, delta)


def _patched(module, name, make):
    return lambda: mock.patch.object(module, name, make(getattr(module, name)))


def _free(costs):
    return lambda self, *arguments: costs(self, *arguments)._replace(searches=1e-12)


SEARCH_FAULTS = {
    "half of the noise on losses": (
        "norm",
        _patched(
            _private_searches,
            "least_privately",
            lambda draw: lambda of, span, mu2, rng: draw(of, span, 4 * mu2, rng),
        ),
    ),
    "weights without a bound": (
        "norm",
        _patched(
            _private_searches,
            "weights",
            lambda weights: lambda rows, norm: weights(rows, norm) * np.where(rows > 1e150, 4, 1),
        ),
    ),
    "a search that is not charged": ("norm", _patched(AnalyzeGauss, "costs", _free)),
    "means of rows as they are": (
        "centre",
        _patched(
            _private_searches.ClippedRows,
            "of",
            lambda of: staticmethod(lambda X, c, r: of(X, c, 9 * r)),
        ),
    ),
    "half of the noise on means": (
        "centre",
        _patched(AnalyzeGauss, "_sum_std", lambda std: lambda *of: std(*of) / 2),
    ),
    "a third of the noise on what differs": (
        "norm of a second release",
        _patched(AnalyzeGauss, "_sum_std", lambda std: lambda *of: std(*of) / 3),
    ),
}


# -------------------------------------------------------------- searches and release together

WHOLE = AnalyzeGauss(
    2.0, DELTA, PrivateNorm((1.0, 4.0), 0.3), center=PrivateCenter((1.0, 4.0), 0.3), mean_share=0.3
)
# The last of ten rows, in each of two neighbours.
WHOLE_PAIRS = {
    "the largest row": ([0.0, 0.0], [1e6, 1e6]),
    "the centre": ([30.0, 0.0], [-30.0, 0.0]),
    "a column's range": ([0.5, 0.5], [1e4, 0.5]),
    "two axes": ([20.0, 0.0], [0.0, 20.0]),
}


def whole(mechanism, row, n_runs, seed):
    """All that a client of ten rows releases, in each run: centre, norm, and noisy sums."""
    X = np.zeros((10, D))
    X[:5, 1], X[-1] = 0.5, row
    terms, found = mechanism.terms(X, mechanism.costs(D, 1)), []
    for run in range(n_runs):
        release = _private.Release(mechanism, terms, X, (seed, run), None).searched()
        rows, norm, shape = (
            release.terms.clipped(release.rows),
            release.terms.row_norm,
            release.terms.shape,
        )
        total, second = [release.message(rows, *part) for part in release.parts()]
        U = shape.directions
        first = (U * shape.values) @ U.T
        moments = [first.ravel(), shape.moment(second).ravel()]
        sums = [*release.terms.center, math.log(norm), *shape.mean(total) / norm]
        found.append([*sums, *np.concatenate(moments) / norm**2])
    return np.array(found)


def whole_audited(pair, n_runs, mechanism=WHOLE):
    """Stated epsilon of a private norm, centre and release, and its lower bound."""
    sides = [whole(mechanism, row, n_runs, side) for side, row in enumerate(WHOLE_PAIRS[pair])]
    return mechanism.epsilon, lower_bound(*sides, DELTA)


class SpentAgain(AnalyzeGauss):
    """What is left after the searches is spent 25 times: a fifth of the noise."""

    def searched(self, X, terms, rng):
        """Terms of a client, with the noise of too large a budget."""
        terms = super().searched(X, terms, rng)
        return replace(terms, costs=terms.costs._replace(product=25 * terms.costs.product))


class FirstForNothing(AnalyzeGauss):
    """The first release is made with a fifteenth of the noise, and not charged."""

    def _two_products(self, costs, n_features):
        first, second = super()._two_products(costs, n_features)
        return first._replace(product=225 * first.product), second


@contextmanager
def stretched(*_):
    """The second axis is stretched by 8, whatever the first release says."""

    def of(M, std):
        return Shape(np.eye(D), np.array([1.0, 8.0]), np.diag(M), std)

    with mock.patch.object(Shape, "of", of):
        yield


@contextmanager
def shortened_before():
    """Rows are shortened before they are stretched, and not afterwards."""

    def clipped(self, X):
        rows = ClippedRows.of(X, self.center, self.row_norm)
        return rows if self.shape is None else replace(rows, shape=self.shape.matrix)

    with stretched(), mock.patch.object(Terms, "clipped", clipped):
        yield


WHOLE_FAULTS = {
    "more than searches have left": ("a column's range", SpentAgain, nullcontext),
    "a first release for nothing": ("a column's range", FirstForNothing, nullcontext),
    "rows shortened before their shape": ("two axes", AnalyzeGauss, shortened_before),
}


def whole_attacked(name, n_runs):
    """Row of the table for a fault in the searches and releases together."""
    pair, kind, context = WHOLE_FAULTS[name]
    with context():
        epsilon, bound = whole_audited(pair, n_runs, kind(**WHOLE.get_params(deep=False)))
    says = "caught" if bound > epsilon else "MISSED"
    return {"fault": name, "stated": epsilon, "lower bound": bound, "verdict": says}


# ------------------------------------------------------------------------------ counts of scores

COUNTS = AnalyzeGauss(1.0, DELTA, R)
ROW_PAIRS = {"across the plane": ([-9.0, -9.0], [9.0, 9.0]), "far away": ([0.1, 0.1], [1e6, 0.1])}


def counts_seen(row, n_runs, side):
    """Noisy counts of ten rows, in each run; the last row is the one in question."""
    X = np.tile([[0.5, 0.5], [-0.5, 0.5]], (5, 1))
    pca = FederatedPCA(D, mechanism=COUNTS, n_clients=1, random_state=0).fit(X)
    X[-1] = row
    runs = np.arange(side * n_runs, (side + 1) * n_runs)
    found = [private_scores(pca, X, COUNTS, random_state=int(run)).counts for run in runs]
    return np.reshape(found, (n_runs, -1))


def counts_audited(pair, n_runs):
    """Stated epsilon of counts, and its lower bound."""
    sides = [counts_seen(row, n_runs, side) for side, row in enumerate(ROW_PAIRS[pair])]
    return COUNTS.epsilon, lower_bound(*sides, DELTA)


def _in_their_range(counted):
    def counts(scores, edges):
        low, high = scores.min(axis=0), scores.max(axis=0) + 1e-9
        edges = tuple(np.linspace(*ends, len(edges[0])) for ends in zip(low, high, strict=True))
        return counted(scores, edges)

    return counts


COUNT_FAULTS = {
    "counts move by 1": ("across the plane", _patched(_scores, "_SENSITIVITY", lambda _: 1.0)),
    "cells of the range of rows": ("far away", _patched(_scores, "counted", _in_their_range)),
}


def counts_attacked(name, n_runs):
    """Row of the table for a fault in counts of scores."""
    pair, fault = COUNT_FAULTS[name]
    with fault():
        epsilon, bound = counts_audited(pair, n_runs)
    says = "caught" if bound > epsilon else "MISSED"
    return {"fault": name, "stated": epsilon, "lower bound": bound, "verdict": says}


# ------------------------------------------------------------------------------ scales

SCALES = ScalerNoise(1.0, DELTA, bounds=(1.0, 4.0))
SCALE_PAIRS = {"mirrored": ([3.0, 3.0], [-3.0, -3.0]), "in other bins": ([2.0, 2.0], [-9.0, -9.0])}


def sums_for_scales(mechanism, row, rng):
    """All sums of a client of one row, about a point and with lengths of an attack."""
    X, given = np.array([row]), {"n_shares": 1, "rng": rng}
    for turn in range(3):
        yield mechanism._message("counts", X, turn, np.zeros(D), **given).ravel()
        yield mechanism._message("sums", X, turn, np.zeros(D), np.ones(D), **given)


def scales_seen(pair, side, n_runs):
    """Each sum along the line of two neighbours, in each run."""
    exact = ScalerNoise(math.inf, DELTA, bounds=SCALES.bounds)
    rows, rng = SCALE_PAIRS[pair], np.random.default_rng(side)
    here, there = (list(sums_for_scales(exact, row, rng)) for row in rows)
    lines = [a - b for a, b in zip(here, there, strict=True)]
    runs = (sums_for_scales(SCALES, rows[side], rng) for _ in range(n_runs))
    return np.array([[line @ of for line, of in zip(lines, sums, strict=True)] for sums in runs])


def scales_audited(pair, n_runs):
    """Stated epsilon of the sums of a private scaler, and its lower bound."""
    sides = [scales_seen(pair, side, n_runs) for side in (0, 1)]
    costs = [SCALES._cost_of(kind, turn, D, 1) for kind in ("counts", "sums") for turn in range(3)]
    return epsilon_of(math.sqrt(sum(costs)), DELTA), lower_bound(*sides, DELTA)


def _uncut(self, X, point, lengths):
    Y = X - point
    return np.concatenate([Y.sum(axis=0), np.square(Y).sum(axis=0)])


SCALE_FAULTS = {
    "half of the noise that is charged": _patched(
        ScalerNoise,
        "_noisy",
        lambda noisy: lambda self, values, std, rng: noisy(self, values, std / 2, rng),
    ),
    "entries that are not cut": _patched(ScalerNoise, "_cut_sums", lambda _: _uncut),
    "a round that is not charged": _patched(
        ScalerNoise,
        "_cost_of",
        lambda cost: lambda self, kind, turn, *of: cost(self, kind, turn, *of) * (turn < 2),
    ),
}


def scales_attacked(name, n_runs):
    """Row of the table for a fault in the sums of a private scaler."""
    with SCALE_FAULTS[name]():
        epsilon, bound = scales_audited("in other bins", n_runs)
    says = "caught" if bound > epsilon else "MISSED"
    return {"fault": name, "stated": epsilon, "lower bound": bound, "verdict": says}


def search_attacked(name, n_runs):
    """Row of the table for a fault in a search."""
    what, fault = SEARCH_FAULTS[name]
    with fault():
        epsilon, bound = search_audited(what, n_runs)
    says = "caught" if bound > epsilon else "MISSED"
    return {"fault": name, "stated": epsilon, "lower bound": bound, "verdict": says}


def main(quick=False):
    warnings.simplefilter("ignore", PrivacyNoiseWarning)  # there is nothing but two rows to find
    warnings.simplefilter("ignore", PrivacyBoundWarning)
    n_messages, n_fits = (2000, 100) if quick else (16_000, 500)
    rows = []
    for mechanism in mechanisms():
        for pair in PAIRS if mechanism.mean == "private" else ["axes"]:
            last = pair == "mirrored" or mechanism.mean == "fixed"  # the mean, if it is released
            rows += audited(mechanism, pair, n_messages, n_fits if last else 0)
    table("privacy_audit", rows)
    broken = [row for row in rows if row["verdict"] != "holds"]
    print(f"{len(rows)} attacks, {len(broken)} above what is stated.\n")
    rows = [attacked(fault, 8000 if quick else n_messages) for fault in FAULTS]
    table("privacy_audit_faults", rows)
    print(f"{sum(row['verdict'] == 'caught' for row in rows)} of {len(rows)} faults are caught.")
    n_runs = 4000 if quick else n_messages
    rows = [verdict({"search": what}, *search_audited(what, n_runs)) for what in SEARCHES]
    rows += [verdict({"search": f"all: {p}"}, *whole_audited(p, n_runs)) for p in WHOLE_PAIRS]
    with stretched():
        of_axes = whole_audited("two axes", n_runs)
    rows.append(verdict({"search": "all: two axes, one of them stretched"}, *of_axes))
    rows += [verdict({"search": f"counts: {p}"}, *counts_audited(p, n_runs)) for p in ROW_PAIRS]
    rows += [verdict({"search": f"scales: {p}"}, *scales_audited(p, n_runs)) for p in SCALE_PAIRS]
    table("privacy_audit_searches", rows)
    rows = [search_attacked(name, n_runs) for name in SEARCH_FAULTS]
    rows += [whole_attacked(name, n_runs) for name in WHOLE_FAULTS]
    rows += [counts_attacked(name, max(n_runs, 8000)) for name in COUNT_FAULTS]
    rows += [scales_attacked(name, n_runs) for name in SCALE_FAULTS]
    table("privacy_audit_search_faults", rows)
    print(f"{sum(row['verdict'] == 'caught' for row in rows)} of {len(rows)} faults are caught.")
