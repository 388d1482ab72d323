"""`FederatedPowerPCA` and `FederatedHeteroscedasticPCA` at sites: rounds of sums, secure or not."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state

from .._kernels.row_moments import RowMoments
from .._validation.checks import check_at_most_features
from ..communication import Federation
from ..rounds import FederatedHeteroscedasticPCA, FederatedPowerPCA
from ..rounds._client import Client
from ..rounds._expected_scores import ExpectedScores, Weighted
from ..rounds._heteroscedastic_pca import ROUNDS
from ..rounds._power_method import moments_by_sum, power_method
from ..rounds._queries import Moments, Query, Scatter, TimesScatter, Variances
from ._estimators import (
    fit_estimator,
    refuse_channel,
    site_work,
    until_nobody_is_lost,
)
from ._messages import Answer
from ._private import (
    PrivateSums,
    Releases,
    private_rounds,
    private_sums_of_rounds,
    show_spent,
    shown,
    warn_of_noise,
)
from ._questions import ASKED, MOMENTS, RefusedError, Task, check_basis, check_mean
from ._secure import (
    Bounds,
    Grid,
    Grids,
    SecureAggregation,
    Summed,
    grids_of_products,
    grids_of_sums,
)
from ._secure_fits import (
    SecureRounds,
    fit_by_sums,
    query_of,
    secure_work,
    summed,
    tasks_of_moments,
)
from ._secure_sums import SecureSums
from ._site_policy import Site
from ._sites import SiteLostError, Sites, with_spent

# Record of the site's own state: the question that was answered last, and numbers before and after.
_KEPT = "fedpca_sklearn.kept"
# Powers of two by which a weight may exceed 1, and sums over the noise those of the rows: noise is
# 1e-8 at least, weights are its power -3/2; sums of products with W = (F' F + v I)^-1 are divided
# by v, of which |W F'| is at most the power -1/2, and logarithms of floats are below 2^10.
_WEIGHT, _LEFT, _RIGHT, _INVERSE, _LOG = 40, 40, 54, 27, 11


# -------------------------------------------------------------------- queries at a site


def of_query(making: Callable[..., Query], times: int = 1, fixed: int | None = None) -> Task:
    """A task that answers the query that ``making(site, d, *arguments)`` makes, checked."""

    @wraps(making)
    def work(site, own, *arguments):
        return {"message": making(site, len(own.mean), *arguments).answer(own)}

    return Task(work, times, fixed, reads=MOMENTS)


def _moments(site, d):
    return Moments()


def _check_steps(steps: Any, own: int) -> None:
    """Raise unless a question has the local steps of the site's estimator."""
    if np.shape(steps) or steps != own:
        raise RefusedError(f"local_steps must be {own}")


@site_work.register
def _(estimator: FederatedPowerPCA) -> dict[str, Task]:
    refuse_channel(estimator.channel)

    def check(d, V, mean):
        check_mean(mean, d, estimator.center)
        check_basis(V, d, min(estimator.n_components or d, d))

    def products(site, d, V, mean, local_steps):
        check(d, V, mean)
        _check_steps(local_steps, estimator.local_steps)
        return TimesScatter(V, mean, estimator.local_steps)

    def variances(site, d, V, mean):
        check(d, V, mean)
        return Variances(V, mean)

    if estimator.mechanism is not None:
        return private_rounds(estimator, products, variances)
    return {
        "moments": of_query(_moments),
        "times_scatter": of_query(products, estimator.n_rounds, fixed=1),
        "variances": of_query(variances, fixed=1),
    }


@secure_work.register
def _(estimator: FederatedPowerPCA, secure: SecureAggregation) -> dict[str, Task]:
    if estimator.mechanism is not None:
        return private_sums_of_rounds(estimator, secure)
    plain, steps = site_work(estimator), estimator.local_steps

    def grids(bounds):
        turned = {} if steps == 1 else {"products": Grid(bounds.rows + 1)}
        return {**grids_of_products(bounds), **turned}

    kinds = {kind: summed(plain[kind], grids) for kind in ("times_scatter", "variances")}
    return {**tasks_of_moments(), **kinds}


@site_work.register
def _(estimator: FederatedHeteroscedasticPCA) -> dict[str, Task]:
    refuse_channel(estimator.channel)
    center = estimator.center

    def rank(d):
        return min(estimator.n_components, d)

    def check(d, V, mean, most=1):
        check_mean(mean, d, center)
        check_basis(V, d, min(most * rank(d), d))

    def weighted(d, query, unit):
        _check_unit(unit)
        return Weighted(query, float(unit), center, rank(d) + 1)

    def scatter(site, d, mean):
        check_mean(mean, d, center)
        return Scatter(mean)

    def products(site, d, V, mean, steps):
        check(d, V, mean)
        _check_steps(steps, 1)
        return TimesScatter(V, mean)

    def variances(site, d, V, mean):
        check(d, V, mean, 2)  # the factors, and what a product adds to them
        return Variances(V, mean)

    def weighted_moments(site, d, unit):
        return weighted(d, Moments(), unit)

    def weighted_products(site, d, V, mean, steps, unit):
        return weighted(d, products(site, d, V, mean, steps), unit)

    def weighted_variances(site, d, V, mean, unit):
        check(d, V, mean)
        return weighted(d, Variances(V, mean), unit)

    def scores(site, d, F, mean, unit):
        check_mean(mean, d, center)
        _check_unit(unit)
        if F.ndim != 2 or F.shape[1] != d or not 0 < len(F) <= rank(d):
            raise RefusedError(f"factors must have shape (k, {d}) with k <= {rank(d)}")
        return ExpectedScores(F, mean, float(unit))

    return {
        "moments": of_query(_moments),
        "scatter": of_query(scatter),
        "weighted_moments": of_query(weighted_moments),
        "weighted_times_scatter": of_query(weighted_products, ROUNDS),
        "weighted_variances": of_query(weighted_variances),
        "scores": Task(keeping(scores, _message), estimator.n_rounds, reads=MOMENTS),
        "times_scatter": of_query(products),
        "variances": of_query(variances),
    }


def _check_unit(unit: np.ndarray) -> None:
    """Refuse what is no deviation of rows."""
    if unit.shape or not 1e-150 < unit < 1e150:
        raise RefusedError("the unit must be one number in (1e-150, 1e150)")


def _message(query: ExpectedScores, found: dict, own: RowMoments) -> dict[str, np.ndarray]:
    return {"message": query.message(found, own.n_samples)}


def keeping(making: Callable[..., ExpectedScores], sent: Callable) -> Callable:
    """Work that takes the noise that the site has kept of the round before, and keeps a new one.

    There is none at first. A question that comes again starts from what was kept before it.
    ``sent(query, sums, own)`` are the arrays that the site sends.
    """

    @wraps(making)
    def work(site, own, *arguments, who: Site):
        query, state = making(site, len(own.mean), *arguments), who.context.state
        asked, kept = state[ASKED], dict(state.get(_KEPT, {}))
        of = hashlib.sha256(b"".join(a.tobytes() for a in arguments)).hexdigest()
        before = 0.0  # of the first question of a fit
        if asked["scores"] > 1 and kept:  # a question before may have been refused
            before = kept["before" if kept["of"] == of else "now"]
        found, now = query.sums(own, before or None)
        state[_KEPT] = {"of": of, "before": before, "now": float(now)}
        return sent(query, found, own)

    return work


def _weighted(bounds: Bounds) -> Grids:
    grids = {**grids_of_products(bounds), **grids_of_sums(bounds)}
    return {name: grid.wider(_WEIGHT) for name, grid in grids.items()}


def _scores(bounds: Bounds) -> Grids:
    products, count = grids_of_products(bounds)["products"], Grid(bounds.rows)
    d = math.ceil(math.log2(bounds.n_features))
    return {
        "left": products.wider(_LEFT),
        "right": products.wider(_RIGHT),
        "covariance": count.wider(_INVERSE),
        "logs": count.wider(d + _LOG),
        "distances": products.wider(_INVERSE),
    }


@secure_work.register
def _(estimator: FederatedHeteroscedasticPCA, secure: SecureAggregation) -> dict[str, Task]:
    plain = site_work(estimator)
    scores = keeping(query_of(plain["scores"]), lambda query, found, own: found)
    products = grids_of_products
    return {
        **tasks_of_moments(),
        "scatter": summed(plain["scatter"], products, 0),
        "weighted_moments": summed(plain["weighted_moments"], _weighted, None),
        "weighted_times_scatter": summed(plain["weighted_times_scatter"], _weighted),
        "weighted_variances": summed(plain["weighted_variances"], _weighted),
        "scores": Summed(**{**vars(plain["scores"]), "work": scores}, grids=_scores, mean=1),
        "times_scatter": summed(plain["times_scatter"], products),
        "variances": summed(plain["variances"], products),
    }


# -------------------------------------------------------------------- rounds at the server


class SiteRounds(Federation):
    """Rounds of sums, whose messages come from sites."""

    def __init__(self, sites: Sites, private: bool = False):
        super().__init__(log=sites.log)
        self.sites, self.private = sites, private
        self.n_products = 0

    def map(self, query: Any, clients: Any) -> Iterator[np.ndarray]:
        """Yield the message of every site, where the query is asked."""
        read: Callable[[Answer], np.ndarray] = partial(self._read, query)
        if self.private:
            read = with_spent(self.sites, read)
        messages = self.sites.ask(query.kind, read, *query.arguments)
        if not isinstance(query, Moments) and len(messages) < len(clients):
            raise SiteLostError(getattr(query, "V", None), self.n_products)
        self.n_products += isinstance(query, TimesScatter)
        yield from messages.values()

    def _read(self, query: Query, answer: Answer) -> np.ndarray:
        """The message in a site's answer to a query, if it can be one."""
        if not isinstance(query, Moments | Variances):
            return answer.summand("message", query.shape)
        message = answer.array("message", query.shape)
        if len(message) < 2:
            raise answer.refused("no sum of rows")
        *numbers, count = message
        answer.check_count(count)
        if isinstance(query, Moments):
            answer.check_squares(np.divide(numbers, count), 0.0)
            answer.agree("number of features", len(numbers))
            return message
        *inner, scatter = numbers
        if scatter < 0 and not self.private:  # noise may be more than the rows
            raise answer.refused(f"scatter={scatter}, expected a sum of squares")
        with np.errstate(over="ignore"):
            squares = max(abs(scatter), float(np.abs(inner).sum())) / count
        answer.check_squares(0.0, squares, self.sites.dtype)
        return message


class _ScoreRounds(SecureRounds):
    """Rounds of secure sums, of which expected scores are made at the server."""

    n_rows = 0.0

    def total(self, query: Query) -> np.ndarray:
        """Sum of the answers of all sites to a query."""
        if not isinstance(query, ExpectedScores):
            total = super().total(query)
            self.n_rows = total[-1] if isinstance(query, Scatter) else self.n_rows
            return total
        k, d = query.F.shape
        found = self.parts(query)
        shaped = {"left": (k, d), "right": (k, k), "covariance": (k, k)}
        found |= {name: found[name].reshape(shape) for name, shape in shaped.items()}
        return query.message(found, self.n_rows)


def _begun(estimator: Any, rounds: Any) -> tuple[np.ndarray, int, list[Client]]:
    """Mean to subtract, number of rows, and the sites, of a fit that begins."""

    def clients() -> list[Client]:
        return [Client(site, None) for site in rounds.sites.names.values()]

    mean, count = moments_by_sum(rounds, clients())
    check_at_most_features(estimator.n_components, len(mean))
    estimator._start()
    estimator.communication_ = rounds.log
    return mean if estimator.center else np.zeros(len(mean)), max(1, round(count)), clients()


def power_by_rounds(
    estimator: FederatedPowerPCA, rounds: Any, start: np.ndarray | None = None, n_done: int = 0
) -> FederatedPowerPCA:
    """Fit by rounds that begin with a basis, None for a new one, after some others."""
    mean, n_rows, left = _begun(estimator, rounds)
    if start is None:
        rng = check_random_state(estimator.random_state)
        start = estimator._first_basis(len(mean), n_rows, rng)
    parameters = estimator._power_parameters()
    parameters["n_rounds"] -= n_done
    found = power_method(rounds, left, mean, start, **parameters)
    found = replace(found, changes=[np.nan] * n_done + found.changes)
    estimator._show(rounds, left, mean, found, n_rows, rounds.sites.dtype)
    return estimator


@fit_estimator.register
def _(estimator: FederatedPowerPCA, sites: Sites) -> FederatedPowerPCA:
    if estimator.mechanism is None:
        return power_by_rounds(estimator, SiteRounds(sites))
    start, n_done = None, 0

    def fit() -> FederatedPowerPCA:
        return power_by_rounds(clone(estimator), SiteRounds(sites, True), start, n_done)

    def go_on(lost: SiteLostError) -> None:  # what was spent is spent: the others go on
        nonlocal start, n_done
        start, n_done = lost.basis, n_done + lost.n_products

    fitted = until_nobody_is_lost(fit, go_on)
    show_spent(fitted, sites)
    d, mechanism = fitted.components_.shape[1], fitted.mechanism
    terms = mechanism.terms(np.empty((0, d)), mechanism.costs(d, fitted.n_rounds + 1))
    warn_of_noise(fitted._message_of_noise(terms, len(sites.names)))
    return fitted


@fit_by_sums.register
def _(estimator: FederatedPowerPCA, sums: SecureSums) -> FederatedPowerPCA:
    if estimator.mechanism is None:
        return power_by_rounds(estimator, SecureRounds(sums))
    releases = Releases(estimator.mechanism, sums.secure, estimator.n_rounds + 1)
    fitted = power_by_rounds(estimator, PrivateSums(sums, releases))
    terms = releases.terms(fitted.components_.shape[1])
    return shown(fitted, sums, fitted._message_of_noise(terms, len(sums.sites.names)))


def _by_expectation(
    estimator: FederatedHeteroscedasticPCA, rounds: Any
) -> FederatedHeteroscedasticPCA:
    """Fit by rounds of sums over sites."""
    mean, n_rows, clients = _begun(estimator, rounds)
    _, start = estimator._random_states()
    estimator._fit_rounds(rounds, rounds, clients, mean, n_rows, rounds.sites.dtype, start)
    estimator.noise_variances_ = {}  # they stay at the sites
    return estimator


@fit_estimator.register
def _(estimator: FederatedHeteroscedasticPCA, sites: Sites) -> FederatedHeteroscedasticPCA:
    return _by_expectation(estimator, SiteRounds(sites))


@fit_by_sums.register
def _(estimator: FederatedHeteroscedasticPCA, sums: SecureSums) -> FederatedHeteroscedasticPCA:
    return _by_expectation(estimator, _ScoreRounds(sums))
