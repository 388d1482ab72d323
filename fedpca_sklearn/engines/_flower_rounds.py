"""`FederatedPowerPCA` at sites: rounds of sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from ._flower_estimators import (
    check_count,
    check_squares,
    fit_estimator,
    refuse_mechanism,
    site_work,
)
from ._flower_messages import Answer
from ._flower_questions import RefusedError, Task, check_basis, check_mean
from ._flower_sites import Sites


@site_work.register
def _(estimator: FederatedPowerPCA) -> dict[str, Task]:
    if estimator.channel is not None:
        raise ValueError(
            f"channel must be None over a real network, got {estimator.channel!r}, a simulated one."
        )
    refuse_mechanism(estimator)
    steps, center = estimator.local_steps, estimator.center

    def check(X, V, mean):
        d = X.shape[1]
        check_mean(mean, d, center)
        check_basis(V, d, min(estimator.n_components or d, d))

    def moments(site, X):
        return {"message": Moments()(site, Client(site, X))}

    def times_scatter(site, X, V, mean, local_steps):
        check(X, V, mean)
        if local_steps.shape or local_steps != steps:
            raise RefusedError(f"local_steps must be {steps}")
        return {"message": TimesScatter(V, mean, steps)(site, Client(site, X))}

    def variances(site, X, V, mean):
        check(X, V, mean)
        return {"message": Variances(V, mean)(site, Client(site, X))}

    return {
        Moments.kind: Task(moments),
        TimesScatter.kind: Task(times_scatter, estimator.n_rounds, fixed=1),
        Variances.kind: Task(variances, fixed=1),
    }


class SiteLostError(Exception):
    """A site that took part in earlier rounds is left out."""


class _Rounds(Federation):
    """Rounds of sums, whose messages come from sites."""

    def __init__(self, sites: Sites):
        super().__init__(log=sites.log)
        self.sites = sites

    def map(self, query: Any, clients: Any) -> Iterator[np.ndarray]:
        """Yield the message of every site, where the query is asked."""
        read = partial(_read, query, self.sites)
        messages = self.sites.ask(query.kind, read, *vars(query).values())
        if not isinstance(query, Moments) and len(messages) < len(clients):
            raise SiteLostError
        yield from messages.values()


@singledispatch
def _read(query: Query, sites: Sites, answer: Answer) -> np.ndarray:
    """The message in a site's answer to a query, if it can be one."""
    raise TypeError(f"no answer to {type(query).__name__} can be read.")


@_read.register
def _(query: Moments, sites: Sites, answer: Answer) -> np.ndarray:
    message = answer.array("message", query.shape)
    if len(message) < 2:
        raise answer.refused("no sum of rows")
    *total, count = message
    check_count(answer, count)
    check_squares(answer, np.divide(total, count), 0.0, answer.dtype)
    answer.agree("number of features", len(total))
    return message


@_read.register
def _(query: TimesScatter, sites: Sites, answer: Answer) -> np.ndarray:
    message = answer.array("message", query.shape)
    if np.abs(message).max() > LARGEST:
        raise answer.refused("values that are too large: their sum would overflow")
    return message


@_read.register
def _(query: Variances, sites: Sites, answer: Answer) -> np.ndarray:
    message = answer.array("message", query.shape)
    *inner, scatter, count = message
    check_count(answer, count)
    if scatter < 0:
        raise answer.refused(f"scatter={scatter}, expected a sum of squares")
    with np.errstate(over="ignore"):
        squares = max(scatter, float(np.abs(inner).sum())) / count
    check_squares(answer, 0.0, squares, sites.dtype)
    return message


@fit_estimator.register
def _(estimator: FederatedPowerPCA, sites: Sites) -> FederatedPowerPCA:
    return until_nobody_is_lost(lambda: by_rounds(clone(estimator), sites, _Rounds(sites)))


def until_nobody_is_lost(fit: Callable[[], Any]) -> Any:
    """What a fit returns, begun again where a site that took part is lost."""
    while True:
        try:
            return fit()
        except SiteLostError:
            continue


def by_rounds(estimator: FederatedPowerPCA, sites: Sites, rounds: Federation) -> FederatedPowerPCA:
    """Fit by rounds of sums over the sites."""

    def clients():
        return [Client(site, None) for site in sites.names.values()]

    mean, count = moments_by_sum(rounds, clients())
    d, n_rows = len(mean), max(1, round(count))
    check_at_most_features(estimator.n_components, d)
    estimator._start()
    estimator.communication_ = sites.log
    start = estimator._first_basis(d, n_rows, check_random_state(estimator.random_state))
    mean = mean if estimator.center else np.zeros(d)
    left = clients()
    found = power_method(rounds, left, mean, start, **estimator._power_parameters())
    estimator._show(rounds, left, mean, found, n_rows, sites.dtype)
    return estimator
