"""`DistributedPCA` at sites: a site sends the triangular factor of its rows."""

from __future__ import annotations

import numpy as np

from .._validation.checks import check_at_most_features
from ..communication._federation import Message as Size
from ..federated import DistributedPCA
from ..federated._distributed_pca import factor_message
from ..summary._triangle import Triangle, triangle_of_rows
from ._estimators import (
    fit_estimator,
    know_columns,
    one_message,
    partial_fit_estimator,
    rows_sent,
    site_work,
    told,
)
from ._messages import Answer
from ._missing import fit_by_pairs, fit_missing_by_sums, missing_by_sums, pair_tasks
from ._questions import Task
from ._secure import SecureAggregation
from ._secure_fits import (
    fit_by_sums,
    mean_of_all,
    secure_work,
    triangle_about,
    work_of_second_moments,
)
from ._secure_sums import SecureSums
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

    return one_message("factor", factor, reads="summary")


@fit_estimator.register
@partial_fit_estimator.register
def _(estimator: DistributedPCA, sites: Sites, batch: int | None = None) -> DistributedPCA | None:
    if estimator.missing is not None:
        return fit_by_pairs(estimator, sites, batch)
    found = told(estimator, sites, "factor", _triangle, batch)
    if not found:
        return None
    parts = [part for part, _, _ in found.values()]
    d = len(parts[0].mean)
    check_at_most_features(estimator.n_components, d)
    log = sites.log if batch is None else estimator.communication_.copy()
    estimator._merge_step(found)
    estimator.communication_ = log  # all factors went to the server
    sizes = [factor_message(part.factor) for part in parts]
    log.record([Size(m.n_floats + d + 1, m.nbytes + 16 * d + 8) for m in sizes])
    return estimator


def _triangle(answer: Answer) -> _Found:
    (count,) = answer.array("count", (1,))
    answer.check_count(count)
    if count != count // 1 and "rows" not in answer.arrays:
        raise answer.refused(f"count={count}, expected a whole number of rows")
    there, n_rows = answer.n_rows(count)
    mean = answer.array("mean", (None,))
    d = len(mean)
    m = min(there, d)
    rest = answer.array("mean_rest", (d,))
    above = answer.array("factor", (m * d - m * (m - 1) // 2,))
    with np.errstate(over="ignore"):
        squares = float(above @ above) / count
        answer.check_squares(np.abs(mean) + np.abs(rest), squares)
    answer.agree("number of features", d)
    factor = np.zeros((m, d))
    factor[np.triu_indices(m, m=d)] = above
    return Triangle(factor, mean, rest, float(count), there), n_rows, answer.dtype


# -------------------------------------------------------------------- secure sums


@secure_work.register
def _(estimator: DistributedPCA, secure: SecureAggregation) -> dict[str, Task]:
    if estimator.missing is not None:
        return missing_by_sums(estimator, secure)
    return work_of_second_moments(estimator)


@fit_by_sums.register
def _(estimator: DistributedPCA, sums: SecureSums) -> DistributedPCA:
    if estimator.missing is not None:
        return fit_missing_by_sums(estimator, sums)
    summed = triangle_about(estimator, sums, *mean_of_all(estimator, sums))
    found = summed.triangle
    estimator._start()
    know_columns(estimator, sums.columns)
    estimator._merge_step({"all sites": (found, found.n_rows, sums.dtype)})
    summed.check(estimator)
    estimator.communication_ = sums.log
    return estimator
