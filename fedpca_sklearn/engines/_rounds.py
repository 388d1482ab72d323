"""`FederatedPowerPCA` and `FederatedHeteroscedasticPCA` at sites: rounds of sums, secure or not."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from ..rounds import FederatedHeteroscedasticPCA, FederatedPowerPCA
from ..rounds._heteroscedastic_pca import ROUNDS, SMALLEST, ExpectedScores, Weighted
from ..rounds._power_method import moments_by_sum, power_method
from ..rounds._queries import Moments, Scatter, TimesScatter, Variances, message_of_noise, parted
from . import _estimators as shared
from ._estimators import Secure, Tasks, fit_estimator, of_query, site_work
from ._messages import Answer, SiteLostError, digest_of_arrays
from ._private import Releases, private_rounds, shown
from ._questions import RUN, Task
from ._secure import Bounds, Grid, Grids, grids_of_sums
from ._sites import Shapes, Sites

# Record of the site's own state: the question that was answered last, and numbers before and after.
_KEPT = "fedpca_sklearn.kept"
# Powers of two by which a weight may exceed 1, and sums over the noise those of the rows: noise is
# 1e-8 at least, weights are its power -3/2; sums of products with W = (F' F + v I)^-1 are divided
# by v, of which |W F'| is at most the power -1/2, and logarithms of floats are below 2^10.
_WEIGHT, _LEFT, _RIGHT, _INVERSE, _LOG = 40, 40, 54, 27, 11
# Share by which rounding may take scores beyond what rows can have.
_ROUNDED = 1e-6


# -------------------------------------------------------------------- queries at a site


@site_work.register
def _(estimator: FederatedPowerPCA, secure: Secure = None) -> Tasks:
    if estimator.mechanism is not None:
        return private_rounds(estimator, secure)

    def rank(d):
        return estimator.n_components or d

    steps = estimator.local_steps
    of: Any = partial(of_query, center=estimator.center, rank=rank, steps=steps)
    # of bases that are added up, after local steps
    turned = grids_of_sums if steps == 1 else lambda b: {"products": Grid(b.rows + 1)}
    return {
        "moments": of(Moments),
        "times_scatter": of(TimesScatter, estimator.n_rounds, fixed=1, grids=turned),
        "variances": of(Variances, fixed=1),
    }


@site_work.register
def _(estimator: FederatedHeteroscedasticPCA, secure: Secure = None) -> Tasks:
    def rank(d):
        return estimator.n_components

    of: Any = partial(of_query, center=estimator.center, rank=rank)
    weighted = {
        f"weighted_{query.kind}": of(query, times, weighted=True, grids=_weighted)
        for query, times in ((Moments, 1), (TimesScatter, ROUNDS), (Variances, 1))
    }
    return {
        "moments": of(Moments),
        "scatter": of(Scatter),
        **weighted,
        "scores": scores(estimator, secure and _scores),
        "times_scatter": of(TimesScatter),
        # the factors, and what a product adds to them
        "variances": of(Variances, rank=lambda d: 2 * rank(d)),
    }


def scores(estimator: FederatedHeteroscedasticPCA, grids: Any = None) -> Task:
    """Work that takes the noise that the site has kept of the round before, and keeps a new one.

    There is none at first. A question that comes again starts from what was kept before it. With
    grids what is sent are sums.
    """

    def answer(query, own, who):
        state = who.context.state
        kept = dict(state.get(_KEPT, {}))
        of = digest_of_arrays(map(np.asarray, query.arguments))
        before = 0.0  # of the first question of a fit
        if state[RUN]["asked scores"] > 1 and kept:  # a question before may have been refused
            before = kept["before" if kept["of"] == of else "now"]
        found, now = query.sums(own, before or None)
        state[_KEPT] = {"of": of, "before": before, "now": float(now)}
        return found if grids else {"message": query.message(found, own.n_samples)}

    how: Any = {"center": estimator.center, "rank": lambda d: estimator.n_components}
    return of_query(ExpectedScores, estimator.n_rounds, answer=answer, grids=grids, **how)


def _weighted(bounds: Bounds) -> Grids:
    return {name: grid.wider(_WEIGHT) for name, grid in grids_of_sums(bounds).items()}


def _scores(bounds: Bounds) -> Grids:
    products, count = grids_of_sums(bounds)["products"], Grid(bounds.rows)
    d = math.ceil(math.log2(bounds.n_features))
    by = {"left": _LEFT, "right": _RIGHT, "distances": _INVERSE}
    grids = {name: products.wider(more) for name, more in by.items()}
    return {**grids, "covariance": count.wider(_INVERSE), "logs": count.wider(d + _LOG)}


# -------------------------------------------------------------------- rounds at the server


class SiteRounds(shared.Rounds):
    """Rounds of sums, whose messages come from sites, or which are secure."""

    n_rows = 0.0

    def __init__(self, sites: Sites):
        super().__init__(sites)
        # number of rows, scatter and the mean that it is about, of sites whose answers are seen
        self.of_sites: dict[str, tuple[float, float, np.ndarray]] = {}
        self.means: dict[str, np.ndarray] = {}

    def sum(self, function: Any, clients: Any, broadcast: np.ndarray | None = None) -> np.ndarray:
        """Return the sum of the answers; of expected scores what it makes is made here."""
        total = super().sum(function, clients, broadcast)
        if isinstance(function, Scatter):
            self.n_rows = total[-1]
        if isinstance(function, ExpectedScores) and self.sites.secure:
            return function.message(parted(function.shapes_of_sums, total), self.n_rows)
        return total

    def asked(self, query: Any) -> tuple[str, Shapes, tuple[Any, ...]]:
        """See `Rounds.asked`; sites make the message of expected scores unless sums are secure."""
        kind, shapes, arguments = super().asked(query)
        if isinstance(query, ExpectedScores) and self.sites.secure:
            shapes = query.shapes_of_sums
        return kind, shapes, arguments

    def check(self, query: Any, answer: Answer, *parts: np.ndarray) -> None:
        """Raise unless the parts are moments, variances or scores that rows can have."""
        if isinstance(query, ExpectedScores):
            return self._check_scores(query, answer, *parts)
        of = query.query if isinstance(query, Weighted) else query
        if not isinstance(of, Moments | Variances | Scatter):
            return
        numbers, (count,) = parts
        if of is query:
            answer.check_count(count)
        elif not 0 < count < 2.0 ** (53 + _WEIGHT):
            raise answer.refused(f"count={count}, expected a weight of rows")
        if isinstance(of, Scatter):
            self.of_sites[answer.site] = count, numbers[0], of.mean
        if isinstance(of, Moments):
            with np.errstate(over="ignore"):
                mean = np.divide(numbers, count)
            answer.check_squares(mean, 0.0)
            own = self.means.setdefault(answer.site, mean)  # all rows of a site have one weight
            if of is not query and np.abs(mean - own).max() > _ROUNDED * np.abs(own).max():
                raise answer.refused("weighted rows with another mean than its rows have")
            answer.agree("number of features", len(numbers))
            return
        *inner, scatter = numbers
        if scatter < 0:
            raise answer.refused(f"scatter={scatter}, expected a sum of squares")
        with np.errstate(over="ignore"):
            squares = max(abs(scatter), float(np.abs(inner).sum())) / count
        answer.check_squares(0.0, squares, self.sites.dtype)

    def _check_scores(self, query: ExpectedScores, answer: Answer, message: np.ndarray) -> None:
        """Raise unless a message is one of rows with the scatter that the site has sent.

        The scores of a row y in the unit are |y| / sqrt(4 v) at most, where v is its noise, and
        both sums are divided by v. Others would lead to factors that no site takes.
        """
        n, scatter, mean = self.of_sites[answer.site]
        left, right = np.split(message[:-1], [query.F.size])
        k = len(query.F)
        gap = math.sqrt(n) * float(np.linalg.norm(query.mean - mean))
        squares = ((math.sqrt(scatter) + gap) / query.unit) ** 2
        inner, size = right.reshape(k, k), float(right[:: k + 1].sum())
        with np.errstate(over="ignore", invalid="ignore"):
            within = (
                0 < size <= (1 + _ROUNDED) * (n * k + squares / SMALLEST / 4) / SMALLEST
                and np.linalg.eigvalsh((inner + inner.T) / 2)[0] >= -_ROUNDED * size
                and left @ left <= (1 + _ROUNDED) * size * squares / SMALLEST
            )
        if not within:
            raise answer.refused("scores of other rows than those of its scatter")


class PrivateRounds(SiteRounds):
    """Rounds of sums of what sites release about the public centre, of which the mean is taken."""

    n_products = 0
    basis: np.ndarray | None = None  # that was asked about last

    def __init__(self, sites: Sites, releases: Releases):
        super().__init__(sites)
        self.releases = releases

    def sum(self, function: Any, clients: Any, broadcast: np.ndarray | None = None) -> np.ndarray:
        """Return the sum of the answers of all sites to a query."""
        if isinstance(function, Moments):
            *released, count = super().sum(function, clients, broadcast)
            self.all = self.releases.all_sites(np.array(released), count)
            return self.all.moments()
        self.basis = V = function.V
        shape = (len(V) ** 2 + 1,) if isinstance(function, Variances) else V.shape
        asked = {"kind": function.kind, "arguments": (V,), "shapes": {"products": shape}}
        total = super().sum(SimpleNamespace(**asked), clients, broadcast)
        self.n_products += isinstance(function, TimesScatter)
        return function.about_mean(self.all, total)

    def check(self, query: Any, answer: Answer, *parts: np.ndarray) -> None:
        """See `SiteRounds.check`; numbers of rows are public, here of all."""
        super().check(query, answer, *parts)
        if query.kind == Variances.kind:
            squares = float(np.abs(parts[0]).sum()) / self.all.n_samples
            answer.check_squares(0.0, squares, self.sites.dtype)


def _begun(estimator: Any, rounds: Any) -> tuple[np.ndarray, int]:
    """Mean to subtract, and number of rows, of a fit that begins."""
    mean, count = moments_by_sum(rounds, [])
    return mean if estimator.center else np.zeros(len(mean)), max(1, round(count))


def power_by_rounds(
    estimator: FederatedPowerPCA, rounds: Any, start: np.ndarray | None = None, n_done: int = 0
) -> FederatedPowerPCA:
    """Fit by rounds that begin with a basis, None for a new one, after some others."""
    mean, n_rows = _begun(estimator, rounds)
    if start is None:
        rng = check_random_state(estimator.random_state)
        start = estimator._first_basis(len(mean), n_rows, rng)
    parameters = estimator._power_parameters()
    parameters["n_rounds"] -= n_done
    found = power_method(rounds, [], mean, start, **parameters)
    found = replace(found, changes=[np.nan] * n_done + found.changes)
    estimator._show(rounds, [], mean, found, n_rows, rounds.sites.dtype)
    return estimator


@fit_estimator.register
def _(estimator: FederatedPowerPCA, sites: Sites) -> FederatedPowerPCA:
    if estimator.mechanism is None:
        return power_by_rounds(estimator, SiteRounds(sites))
    releases = Releases(estimator.mechanism, estimator.n_rounds + 1, sites.secure)
    start, n_done, fitted = None, 0, None
    while fitted is None:
        rounds = PrivateRounds(sites, releases)
        try:
            fitted = power_by_rounds(estimator, rounds, start, n_done)
        except SiteLostError:
            if sites.secure:
                raise
            start, n_done = rounds.basis, n_done + rounds.n_products  # what was spent is spent
            sites.begin()
    terms = releases.terms(fitted.components_.shape[1])
    return shown(fitted, sites, message_of_noise(fitted, terms, len(sites.names)))


@fit_estimator.register
def _(estimator: FederatedHeteroscedasticPCA, sites: Sites) -> FederatedHeteroscedasticPCA:
    rounds = SiteRounds(sites)
    mean, n_rows = _begun(estimator, rounds)
    _, start = estimator._random_states()
    estimator._fit_rounds(rounds, rounds, [], mean, n_rows, sites.dtype, start)
    estimator.noise_variances_ = {}  # they stay at the sites
    return estimator
