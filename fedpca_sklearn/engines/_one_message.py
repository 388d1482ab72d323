"""`DistributedPCA` and `FederatedScaler` at sites, each of which sends one message.

It is the triangular factor of its rows, or the sums of its columns.
"""

from __future__ import annotations

import numpy as np

from .._kernels.row_moments import ColumnMoments, means_of_columns
from .._validation.checks import check_at_most_features
from ..communication._federation import Message as Size
from ..federated import DistributedPCA, FederatedScaler
from ..federated._distributed_pca import factor_message
from ..federated._federated_scaler import local_moments
from ..rounds._power_method import moments_by_sum
from ..summary._triangle import Triangle, triangle_of_rows
from ._estimators import (
    fit_estimator,
    know_columns,
    one_message,
    partial_fit_estimator,
    received,
    rows_sent,
    site_work,
)
from ._messages import Answer
from ._missing import fit_missing, missing_by_sums, pair_tasks
from ._private import fit_private_scales, private_scales
from ._questions import MOMENTS, RefusedError, Task, are_few, check_mean
from ._secure import SecureAggregation, grids_of_sums
from ._secure_fits import (
    Rounds,
    mean_of_all,
    secure_work,
    tasks_of_moments,
    triangle_about,
    work_of_second_moments,
)
from ._sites import SecureSums, Sites

# -------------------------------------------------------------------- DistributedPCA

# The factor of a site, its number of rows and their dtype.
_Found = tuple[Triangle, int, np.dtype]


@site_work.register
def _(estimator: DistributedPCA) -> dict[str, Task]:
    if estimator.missing is not None:
        return pair_tasks()

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
        return fit_missing(estimator, sites, batch)
    if isinstance(sites, SecureSums):
        sums = triangle_about(estimator, sites, *mean_of_all(estimator, sites))
        estimator._start()
        know_columns(estimator, sites.columns)
        estimator._merge_step({"all sites": (sums.triangle, sums.triangle.n_rows, sites.dtype)})
        sums.check(estimator)
        return estimator
    found = received(estimator, sites, "factor", _triangle, batch)
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


@secure_work.register
def _(estimator: DistributedPCA, secure: SecureAggregation) -> dict[str, Task]:
    if estimator.missing is not None:
        return missing_by_sums(estimator, secure)
    return work_of_second_moments(estimator)


# -------------------------------------------------------------------- FederatedScaler


@site_work.register
def _(estimator: FederatedScaler) -> dict[str, Task]:
    if estimator.mechanism is not None:
        return private_scales(estimator.mechanism)

    def moments(site, X, *, weight, min_rows):
        with np.errstate(over="ignore", invalid="ignore"):
            _, there = means_of_columns(X if weight is None else X[weight > 0], None)
        if are_few(min_rows, there):  # their mean would tell them
            raise RefusedError(f"a column with fewer than min_rows={min_rows} entries")
        return {"moments": np.stack(local_moments(site, X, weight))}

    reads = "rows: each column has moments of the entries that are there"
    return one_message("moments", moments, reads=reads, missing=True)


@fit_estimator.register
@partial_fit_estimator.register
def _(estimator: FederatedScaler, sites: Sites, batch: int | None = None) -> FederatedScaler | None:
    if estimator.mechanism is not None and batch is None:
        return fit_private_scales(estimator, sites)
    if estimator.mechanism is not None:
        raise ValueError(
            "mechanism must be None for batches: sums with noise are of all rows at once, got "
            f"{estimator.mechanism!r}."
        )
    if isinstance(sites, SecureSums):
        found = {"all sites": _moments_of_sums(sites)}
        estimator._start()
    elif not (found := received(estimator, sites, "moments", _moments_received, batch)):
        return None
    estimator.n_features_in_ = sites.n_features
    estimator._show(list(found), found.values())
    estimator.communication_.record(found.values())
    return estimator


def _moments_received(answer: Answer) -> ColumnMoments:
    """Moments in an answer, checked to be of some rows."""
    count, mean, rest, squares = found = ColumnMoments(*answer.array("moments", (4, None)))
    answer.agree("number of features", len(mean))
    there = count > 0
    if not ((count >= 0) & (count < 2**53) & (squares >= 0)).all():
        raise answer.refused("counts or sums of squares that no rows have")
    if any(values[~there].any() for values in (mean, rest, squares)) or not there.any():
        raise answer.refused("moments of columns without entries")
    if (np.abs(rest) > np.sqrt(squares) + np.abs(mean)).any():
        raise answer.refused("means whose rests are larger than rounding leaves")
    of_rows = float((squares / np.where(there, count, 1)).sum())
    answer.check_squares(mean, of_rows, np.dtype(np.float64))
    return found


@secure_work.register
def _(estimator: FederatedScaler, secure: SecureAggregation) -> dict[str, Task]:
    if estimator.mechanism is not None:
        return private_scales(estimator.mechanism, secure)

    def squares(site, own, mean):
        check_mean(mean, len(own.mean), True)
        rest, n = own.deviation(mean), own.n_samples
        return {"scatter": own.column_scatter + rest**2 / n, "rest": rest, "count": np.array([n])}

    task = Task(squares, fixed=0, reads=MOMENTS, grids=grids_of_sums)
    return {**tasks_of_moments(by_column=True), "squares": task}


def _moments_of_sums(sums: SecureSums) -> ColumnMoments:
    mean, _ = moments_by_sum(Rounds(sums), [])
    shapes = {"scatter": mean.shape, "rest": mean.shape, "count": (1,)}
    found = sums.sum("squares", shapes, mean)
    (n,), rest = found["count"], found["rest"]
    about = mean + rest / n
    squares = np.maximum(found["scatter"] - rest**2 / n, 0.0)
    return ColumnMoments(np.full(mean.shape, n), about, rest / n - (about - mean), squares)
