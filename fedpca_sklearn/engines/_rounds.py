"""`FederatedPowerPCA` at sites: rounds of sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial, singledispatch
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state

from .._validation.checks import check_at_most_features
from ..communication import Federation
from ..rounds import FederatedPowerPCA
from ..rounds._client import Client
from ..rounds._power_method import moments_by_sum, power_method
from ..rounds._queries import LARGEST, Moments, Query, TimesScatter, Variances
from ._estimators import (
    check_count,
    check_squares,
    fit_estimator,
    refuse_channel,
    site_work,
    until_nobody_is_lost,
)
from ._messages import Answer
from ._private import private_rounds, show_spent, warn_of_noise, with_spent
from ._questions import MOMENTS, RefusedError, Task, check_basis, check_mean
from ._sites import SiteLostError, Sites


@site_work.register
def _(estimator: FederatedPowerPCA) -> dict[str, Task]:
    refuse_channel(estimator.channel)
    steps, center = estimator.local_steps, estimator.center

    def check(d, V, mean, local_steps=None):
        check_mean(mean, d, center)
        check_basis(V, d, min(estimator.n_components or d, d))
        if local_steps is not None and (local_steps.shape or local_steps != steps):
            raise RefusedError(f"local_steps must be {steps}")

    if estimator.mechanism is not None:
        return private_rounds(estimator, check)

    def moments(site, own):
        return {"message": Moments().answer(own)}

    def times_scatter(site, own, V, mean, local_steps):
        check(len(own.mean), V, mean, local_steps)
        return {"message": TimesScatter(V, mean, steps).answer(own)}

    def variances(site, own, V, mean):
        check(len(own.mean), V, mean)
        return {"message": Variances(V, mean).answer(own)}

    return {
        Moments.kind: Task(moments, reads=MOMENTS),
        TimesScatter.kind: Task(times_scatter, estimator.n_rounds, fixed=1, reads=MOMENTS),
        Variances.kind: Task(variances, fixed=1, reads=MOMENTS),
    }


class SiteRounds(Federation):
    """Rounds of sums, whose messages come from sites."""

    def __init__(self, sites: Sites, private: bool = False):
        super().__init__(log=sites.log)
        self.sites, self.private = sites, private
        self.n_products = 0

    def map(self, query: Any, clients: Any) -> Iterator[np.ndarray]:
        """Yield the message of every site, where the query is asked."""
        read: Callable[[Answer], np.ndarray] = partial(_read, query, self)
        if self.private:
            read = with_spent(self.sites, read)
        messages = self.sites.ask(query.kind, read, *query.arguments)
        if not isinstance(query, Moments) and len(messages) < len(clients):
            raise SiteLostError(getattr(query, "V", None), self.n_products)
        self.n_products += isinstance(query, TimesScatter)
        yield from messages.values()


@singledispatch
def _read(query: Query, rounds: SiteRounds, answer: Answer) -> np.ndarray:
    """The message in a site's answer to a query, if it can be one."""
    message = answer.array("message", query.shape)
    if np.abs(message).max() > LARGEST:
        raise answer.refused("values that are too large: their sum would overflow")
    return message


@_read.register
def _(query: Moments, rounds: SiteRounds, answer: Answer) -> np.ndarray:
    message = answer.array("message", query.shape)
    if len(message) < 2:
        raise answer.refused("no sum of rows")
    *total, count = message
    check_count(answer, count)
    check_squares(answer, np.divide(total, count), 0.0, answer.dtype)
    answer.agree("number of features", len(total))
    return message


@_read.register
def _(query: Variances, rounds: SiteRounds, answer: Answer) -> np.ndarray:
    message = answer.array("message", query.shape)
    *inner, scatter, count = message
    check_count(answer, count)
    if scatter < 0 and not rounds.private:  # noise may be more than the rows
        raise answer.refused(f"scatter={scatter}, expected a sum of squares")
    with np.errstate(over="ignore"):
        squares = max(abs(scatter), float(np.abs(inner).sum())) / count
    check_squares(answer, 0.0, squares, rounds.sites.dtype)
    return message


@fit_estimator.register
def _(estimator: FederatedPowerPCA, sites: Sites) -> FederatedPowerPCA:
    private, start, n_done = estimator.mechanism is not None, None, 0

    def fit() -> FederatedPowerPCA:
        return by_rounds(clone(estimator), sites, SiteRounds(sites, private), start, n_done)

    def go_on(lost: SiteLostError) -> None:  # what was spent is spent: the others go on
        nonlocal start, n_done
        start, n_done = lost.basis, n_done + lost.n_products

    if not private:
        return until_nobody_is_lost(fit)
    fitted = until_nobody_is_lost(fit, go_on)
    show_spent(fitted, sites)
    warn_of_noise(_message_of_noise(fitted, len(sites.names)))
    return fitted


def _message_of_noise(fitted: FederatedPowerPCA, n_sites: int) -> str | None:
    d = fitted.components_.shape[1]
    terms = fitted.mechanism.terms(np.empty((0, d)), fitted.mechanism.costs(d, fitted.n_rounds + 1))
    return fitted._message_of_noise(terms, n_sites)


def by_rounds(
    estimator: FederatedPowerPCA,
    sites: Sites,
    rounds: Federation,
    start: np.ndarray | None = None,
    n_done: int = 0,
) -> FederatedPowerPCA:
    """Fit by rounds that begin with a basis, None for a new one, after some others."""

    def clients():
        return [Client(site, None) for site in sites.names.values()]

    mean, count = moments_by_sum(rounds, clients())
    d, n_rows = len(mean), max(1, round(count))
    check_at_most_features(estimator.n_components, d)
    estimator._start()
    estimator.communication_ = sites.log
    if start is None:
        start = estimator._first_basis(d, n_rows, check_random_state(estimator.random_state))
    mean = mean if estimator.center else np.zeros(d)
    left = clients()
    parameters = estimator._power_parameters()
    parameters["n_rounds"] -= n_done
    found = power_method(rounds, left, mean, start, **parameters)
    found = replace(found, changes=[np.nan] * n_done + found.changes)
    estimator._show(rounds, left, mean, found, n_rows, sites.dtype)
    return estimator
