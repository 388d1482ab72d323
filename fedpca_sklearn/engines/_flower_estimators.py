"""Messages of each estimator over Flower: the work of a site, and the fit of the server."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, singledispatch
from typing import Any
from zlib import crc32

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state

from .._validation.checks import check_at_most_features
from ..communication import Federation
from ..communication._federation import Message as Size
from ..federated import DistributedPCA, FederatedPCA
from ..federated._distributed_pca import factor_message
from ..federated._local_fit import fit_site
from ..rounds import FederatedPowerPCA
from ..rounds._client import Client
from ..rounds._power_method import moments_by_sum, power_method
from ..rounds._queries import LARGEST, Moments, Query, TimesScatter, Variances
from ..summary import Subspace
from ..summary._triangle import Triangle, triangle_of_rows
from ._flower_messages import Answer
from ._flower_questions import RefusedError, Task, check_basis, check_mean
from ._flower_sites import Sites

# Largest mean square of a row, by dtype, and of the mean about which others then take theirs: what
# sites with fewer than 2^53 rows send can then be added up, and shown in the dtype.
_LARGEST_SQUARE = {"float32": 2.0**124, "float64": 2.0**924}
_MEAN_SHARE = 1 / 16


@singledispatch
def _site_work(estimator: Any) -> dict[str, Task]:
    """What a site does about each kind of question, for the class of an estimator.

    ``@site_work.register`` adds a function for another class.

    Parameters
    ----------
    estimator : object
        As the site or the server was given it; an error where it cannot be fitted over Flower.

    Returns
    -------
    tasks : dict of str to Task
        By kind of question; the first kind begins a fit.
    """
    raise TypeError(
        "estimator must be FederatedPCA, DistributedPCA or FederatedPowerPCA, got "
        f"{type(estimator).__name__}."
    )


@singledispatch
def _fit(estimator: Any, sites: Sites) -> Any:
    """Fit an estimator of the rows of all sites, at the server.

    ``@fit_estimator.register`` adds a function for another class.

    Parameters
    ----------
    estimator : object
        A clone of the one that `fit_sites` was given, with parameters that have been checked.
    sites : Sites
        ``sites.ask(kind, read, *arguments)`` sends arrays along with a question, and returns what
        ``read(answer)`` made of the answer of each site, by its name, sorted.

    Returns
    -------
    fitted : object
        An estimator with ``subspace_`` and PCA's fitted attributes.
    """


def _refuse_mechanism(estimator: Any) -> None:
    """Raise: a site, which is started for each message, keeps no account of what it has spent."""
    if estimator.mechanism is not None:
        raise ValueError(
            "mechanism must be None over Flower, where a site does not remember what it has spent "
            f"of its budget, got {estimator.mechanism!r}. Send private summaries as files instead."
        )


def _check_count(answer: Answer, count: float) -> None:
    if not 1 <= count < 2**53:
        raise answer.refused(f"count={count}, expected a number of rows")


def _check_squares(answer: Answer, mean: Any, squares: float, dtype: np.dtype) -> None:
    """Leave a site out whose values would overflow in those of all sites."""
    with np.errstate(over="ignore"):
        of_mean = float(np.square(mean).sum())
    largest = _LARGEST_SQUARE[dtype.name]
    if not (of_mean <= _MEAN_SHARE * largest and squares <= largest):
        raise answer.refused(
            f"values that are too large: mean squares of {max(of_mean, squares):.1e} per row"
        )


# -------------------------------------------------------------------- summaries


@_site_work.register
def _(estimator: FederatedPCA) -> dict[str, Task]:
    _refuse_mechanism(estimator)

    def summary(site, X):
        local = clone(estimator)
        prototype = local._prototype(X.shape[1], "fit", False)
        rng = check_random_state(local.random_state)
        seed = (rng.randint(2**31 - 1) + crc32(site.encode())) % (2**31 - 1)  # sites differ
        data = fit_site(site, None, prototype, seed, X, None, "fit").summary.to_bytes()
        return {"summary": np.frombuffer(data, np.uint8)}

    return {"summary": Task(summary)}


@_fit.register
def _(estimator: FederatedPCA, sites: Sites) -> FederatedPCA:
    summaries = sites.ask("summary", _summary).items()
    named = [s._replace(site=site, feature_names=None, privacy=None) for site, s in summaries]
    fitted = FederatedPCA.from_subspaces(named, estimator.n_components, merge=estimator.merge)
    return fitted.set_params(**estimator.get_params(deep=False))


def _summary(answer: Answer) -> Subspace:
    data = answer.array("summary", (None,), "|u1")
    try:
        summary = Subspace.from_bytes(data)
    except ValueError as error:
        raise answer.refused(f"no valid summary: {error}") from None
    _check_count(answer, summary.n_samples)
    squares = summary.scatter / summary.n_samples
    _check_squares(answer, summary.mean, squares, summary.components.dtype)
    answer.agree("number of features", summary.n_features)
    answer.agree("centring", summary.centered)
    return summary


# -------------------------------------------------------------------- triangles


@_site_work.register
def _(estimator: DistributedPCA) -> dict[str, Task]:
    def factor(site, X):
        t = triangle_of_rows(X)
        above = t.factor[np.triu_indices(len(t.factor), m=X.shape[1])]
        return {"factor": above, "mean": t.mean, "mean_rest": t.mean_rest, "count": [t.n_samples]}

    return {"factor": Task(factor)}


@_fit.register
def _(estimator: DistributedPCA, sites: Sites) -> DistributedPCA:
    found = sites.ask("factor", _triangle)
    parts = [part for part, _, _ in found.values()]
    d = len(parts[0].mean)
    check_at_most_features(estimator.n_components, d)
    estimator._start()
    estimator._merge_step(found)
    estimator.communication_ = sites.log
    sizes = [factor_message(part.factor) for part in parts]
    sites.log.record([Size(m.n_floats + d + 1, m.nbytes + 16 * d + 8) for m in sizes])
    return estimator


def _triangle(answer: Answer) -> tuple[Triangle, int, np.dtype]:
    (count,) = answer.array("count", (1,))
    _check_count(answer, count)
    if count != count // 1:
        raise answer.refused(f"count={count}, expected a whole number of rows")
    mean = answer.array("mean", (None,))
    d = len(mean)
    m = int(min(count, d))
    rest = answer.array("mean_rest", (d,))
    above = answer.array("factor", (m * d - m * (m - 1) // 2,))
    with np.errstate(over="ignore"):
        squares = float(above @ above) / count
        _check_squares(answer, np.abs(mean) + np.abs(rest), squares, answer.dtype)
    answer.agree("number of features", d)
    factor = np.zeros((m, d))
    factor[np.triu_indices(m, m=d)] = above
    return Triangle(factor, mean, rest, float(count), int(count)), int(count), answer.dtype


# -------------------------------------------------------------------- rounds


@_site_work.register
def _(estimator: FederatedPowerPCA) -> dict[str, Task]:
    if estimator.channel is not None:
        raise ValueError(
            f"channel must be None over a real network, got {estimator.channel!r}, a simulated one."
        )
    _refuse_mechanism(estimator)
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
    _check_count(answer, count)
    _check_squares(answer, np.divide(total, count), 0.0, answer.dtype)
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
    _check_count(answer, count)
    if scatter < 0:
        raise answer.refused(f"scatter={scatter}, expected a sum of squares")
    with np.errstate(over="ignore"):
        squares = max(scatter, float(np.abs(inner).sum())) / count
    _check_squares(answer, 0.0, squares, sites.dtype)
    return message


@_fit.register
def _(estimator: FederatedPowerPCA, sites: Sites) -> FederatedPowerPCA:
    while True:
        try:
            return _by_rounds(clone(estimator), sites)
        except SiteLostError:
            continue


def _by_rounds(estimator: FederatedPowerPCA, sites: Sites) -> FederatedPowerPCA:
    rounds = _Rounds(sites)

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
