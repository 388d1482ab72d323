"""`DistributedPCA` at sites: a site sends the triangular factor of its rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._validation.checks import check_at_most_features
from ..communication import CommunicationLog
from ..communication._federation import Message as Size
from ..federated import DistributedPCA
from ..federated._distributed_pca import factor_message
from ..summary._triangle import Triangle, triangle_of_rows
from ._estimators import (
    check_count,
    check_squares,
    fit_estimator,
    know_columns,
    partial_fit_estimator,
    rows_sent,
    rows_told,
    site_work,
)
from ._messages import Answer
from ._pairs import fit_by_pairs, pair_tasks, partial_fit_by_pairs
from ._questions import Task
from ._sites import Sites

# The factor of a site, its number of rows and their dtype.
_Found = tuple[Triangle, int, np.dtype]


@site_work.register
def _(estimator: DistributedPCA) -> dict[str, Task]:
    if estimator.missing is not None:
        return pair_tasks(estimator.missing)

    def factor(site, X, *, weight):
        t = triangle_of_rows(X, weight)
        above = t.factor[np.triu_indices(len(t.factor), m=X.shape[1])]
        sent = {"factor": above, "mean": t.mean, "mean_rest": t.mean_rest, "count": [t.n_samples]}
        return sent | rows_sent(X, weight)

    return {
        "factor": Task(factor, reads="summary"),
        "factor_of_batch": Task(factor, reads="summary", begins=True, batches=True),
    }


@fit_estimator.register
def _(estimator: DistributedPCA, sites: Sites) -> DistributedPCA:
    if estimator.missing is not None:
        return fit_by_pairs(estimator, sites)
    found = sites.ask("factor", _triangle)
    estimator._start()
    know_columns(estimator, sites.columns)
    return _with_triangles(estimator, found, sites.log)


@partial_fit_estimator.register
def _(estimator: DistributedPCA, sites: Sites, batch: int) -> DistributedPCA | None:
    if estimator.missing is not None:
        return partial_fit_by_pairs(estimator, sites, batch)
    if not hasattr(estimator, "components_"):
        estimator._start()
    found = sites.ask_batch("factor_of_batch", _triangle, batch)
    if not found:
        return None
    estimator._add_clients(list(found))
    know_columns(estimator, sites.columns)
    return _with_triangles(estimator, found, estimator.communication_.copy())


def _with_triangles(estimator: Any, found: dict[str, _Found], log: CommunicationLog) -> Any:
    """Estimator that has merged the factors of sites, all of which went to the server."""
    parts = [part for part, _, _ in found.values()]
    d = len(parts[0].mean)
    check_at_most_features(estimator.n_components, d)
    estimator._merge_step(found)
    estimator.communication_ = log
    sizes = [factor_message(part.factor) for part in parts]
    log.record([Size(m.n_floats + d + 1, m.nbytes + 16 * d + 8) for m in sizes])
    return estimator


def _triangle(answer: Answer) -> _Found:
    (count,) = answer.array("count", (1,))
    check_count(answer, count)
    if count != count // 1 and "rows" not in answer.arrays:
        raise answer.refused(f"count={count}, expected a whole number of rows")
    there, n_rows = rows_told(answer, count)
    mean = answer.array("mean", (None,))
    d = len(mean)
    m = min(there, d)
    rest = answer.array("mean_rest", (d,))
    above = answer.array("factor", (m * d - m * (m - 1) // 2,))
    with np.errstate(over="ignore"):
        squares = float(above @ above) / count
        check_squares(answer, np.abs(mean) + np.abs(rest), squares, answer.dtype)
    answer.agree("number of features", d)
    factor = np.zeros((m, d))
    factor[np.triu_indices(m, m=d)] = above
    return Triangle(factor, mean, rest, float(count), there), n_rows, answer.dtype
