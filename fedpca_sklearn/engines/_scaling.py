"""`FederatedScaler` over a network: of each site, the sums of its columns."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from .._kernels.column_moments import ColumnMoments
from ..federated import FederatedScaler
from ..federated._federated_scaler import local_moments
from ._estimators import (
    check_squares,
    fit_estimator,
    partial_fit_estimator,
    site_work,
)
from ._messages import Answer
from ._questions import RefusedError, Task
from ._sites import Sites


@site_work.register
def _(estimator: FederatedScaler) -> dict[str, Task]:
    def moments(site, X, *, weight, min_rows):
        there = _n_entries(X if weight is None else X[weight > 0])
        if ((there > 0) & (there < min_rows)).any():  # their mean would tell them
            raise RefusedError(f"a column with fewer than min_rows={min_rows} entries")
        return {"moments": np.stack(local_moments(site, X, weight))}

    reads = "rows: each column has moments of the entries that are there"
    task = partial(Task, moments, reads=reads, missing=True)
    return {"moments": task(), "moments_of_batch": task(begins=True, batches=True)}


@fit_estimator.register
def _(estimator: FederatedScaler, sites: Sites) -> FederatedScaler:
    estimator._start()
    return with_moments(estimator, sites.ask("moments", _moments_told))


@partial_fit_estimator.register
def _(estimator: FederatedScaler, sites: Sites, batch: int) -> FederatedScaler | None:
    if not hasattr(estimator, "communication_"):
        estimator._start()
    found = sites.ask_batch("moments_of_batch", _moments_told, batch)
    return with_moments(estimator, found) if found else None


def with_moments(scaler: FederatedScaler, found: dict[str, ColumnMoments]) -> FederatedScaler:
    """Scaler that has taken in what sites sent."""
    scaler.n_features_in_ = len(next(iter(found.values())).mean)
    scaler._show(list(found), found.values())
    scaler.communication_.record(found.values())
    return scaler


def _n_entries(X: Any) -> np.ndarray:
    """Entries of each column that are not missing."""
    missing = (
        sp.csr_array((np.isnan(X.data), X.indices, X.indptr), X.shape)
        if sp.issparse(X)
        else np.isnan(X)
    )
    return X.shape[0] - np.asarray(missing.sum(axis=0)).ravel()


def _moments_told(answer: Answer) -> ColumnMoments:
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
    check_squares(answer, mean, of_rows, np.dtype(np.float64))
    return found
