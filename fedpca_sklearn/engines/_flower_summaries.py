"""Estimators of which a site sends one message: a summary, or the triangle of its rows."""

from __future__ import annotations

from zlib import crc32

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state

from .._validation.checks import check_at_most_features
from ..communication._federation import Message as Size
from ..federated import DistributedPCA, FederatedPCA
from ..federated._distributed_pca import factor_message
from ..federated._local_fit import fit_site
from ..summary import Subspace
from ..summary._triangle import Triangle, triangle_of_rows
from ._flower_estimators import (
    check_count,
    check_squares,
    fit_estimator,
    site_work,
)
from ._flower_messages import Answer
from ._flower_private import private_summaries, show_spent, warn_of_noise, with_spent
from ._flower_questions import Task
from ._flower_sites import Sites

# -------------------------------------------------------------------- summaries


@site_work.register
def _(estimator: FederatedPCA) -> dict[str, Task]:
    if estimator.mechanism is not None:
        return private_summaries(estimator)

    def summary(site, X):
        local = clone(estimator)
        prototype = local._prototype(X.shape[1], "fit", False)
        rng = check_random_state(local.random_state)
        seed = (rng.randint(2**31 - 1) + crc32(site.encode())) % (2**31 - 1)  # sites differ
        data = fit_site(site, None, prototype, seed, X, None, "fit").summary.to_bytes()
        return {"summary": np.frombuffer(data, np.uint8)}

    return {"summary": Task(summary)}


@fit_estimator.register
def _(estimator: FederatedPCA, sites: Sites) -> FederatedPCA:
    mechanism = estimator.mechanism
    read = _summary if mechanism is None else with_spent(sites, _private_summary)
    summaries = sites.ask("summary", read).items()
    named = [s._replace(site=site, feature_names=None) for site, s in summaries]
    fitted = FederatedPCA.from_subspaces(named, estimator.n_components, merge=estimator.merge)
    fitted.set_params(**estimator.get_params(deep=False))
    if mechanism is not None:
        show_spent(fitted, sites)
        d = fitted.components_.shape[1]
        costs = mechanism.costs(d, 1, 1 / mechanism.n_releases)
        warn_of_noise(fitted._message_of_noise(mechanism.terms(np.empty((0, d)), costs)))
    return fitted


def _private_summary(answer: Answer) -> Subspace:
    summary = _read_summary(answer)
    if summary.privacy is None:
        raise answer.refused("a summary that states nothing about its privacy")
    return summary


def _summary(answer: Answer) -> Subspace:
    return _read_summary(answer)._replace(privacy=None)


def _read_summary(answer: Answer) -> Subspace:
    data = answer.array("summary", (None,), "|u1")
    try:
        summary = Subspace.from_bytes(data)
    except ValueError as error:
        raise answer.refused(f"no valid summary: {error}") from None
    check_count(answer, summary.n_samples)
    squares = summary.scatter / summary.n_samples
    check_squares(answer, summary.mean, squares, summary.components.dtype)
    answer.agree("number of features", summary.n_features)
    answer.agree("centring", summary.centered)
    return summary


# -------------------------------------------------------------------- triangles


@site_work.register
def _(estimator: DistributedPCA) -> dict[str, Task]:
    def factor(site, X):
        t = triangle_of_rows(X)
        above = t.factor[np.triu_indices(len(t.factor), m=X.shape[1])]
        return {"factor": above, "mean": t.mean, "mean_rest": t.mean_rest, "count": [t.n_samples]}

    return {"factor": Task(factor)}


@fit_estimator.register
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
    check_count(answer, count)
    if count != count // 1:
        raise answer.refused(f"count={count}, expected a whole number of rows")
    mean = answer.array("mean", (None,))
    d = len(mean)
    m = int(min(count, d))
    rest = answer.array("mean_rest", (d,))
    above = answer.array("factor", (m * d - m * (m - 1) // 2,))
    with np.errstate(over="ignore"):
        squares = float(above @ above) / count
        check_squares(answer, np.abs(mean) + np.abs(rest), squares, answer.dtype)
    answer.agree("number of features", d)
    factor = np.zeros((m, d))
    factor[np.triu_indices(m, m=d)] = above
    return Triangle(factor, mean, rest, float(count), int(count)), int(count), answer.dtype
