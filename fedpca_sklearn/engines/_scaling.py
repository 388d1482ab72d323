"""`FederatedScaler` over a network: of each site, the sums of its columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from .._kernels.column_moments import ColumnMoments
from .._kernels.row_moments import SiteMoments
from ..federated import FederatedScaler
from ..federated._federated_scaler import local_moments
from ..rounds._power_method import moments_by_sum
from ._estimators import fit_estimator, one_message, partial_fit_estimator, site_work, told
from ._messages import Answer
from ._questions import MOMENTS, RefusedError, Task, check_mean
from ._secure import SecureAggregation, Summed
from ._secure_fits import SecureRounds, fit_by_sums, secure_work, tasks_of_moments
from ._secure_sums import SecureSums
from ._sites import Sites


@site_work.register
def _(estimator: FederatedScaler) -> dict[str, Task]:
    def moments(site, X, *, weight, min_rows):
        there = _n_entries(X if weight is None else X[weight > 0])
        if ((there > 0) & (there < min_rows)).any():  # their mean would tell them
            raise RefusedError(f"a column with fewer than min_rows={min_rows} entries")
        return {"moments": np.stack(local_moments(site, X, weight))}

    reads = "rows: each column has moments of the entries that are there"
    return one_message("moments", moments, reads=reads, missing=True)


@fit_estimator.register
@partial_fit_estimator.register
def _(estimator: FederatedScaler, sites: Sites, batch: int | None = None) -> FederatedScaler | None:
    found = told(estimator, sites, "moments", _moments_told, batch)
    return _with_moments(estimator, found) if found else None


def _with_moments(scaler: FederatedScaler, found: dict[str, ColumnMoments]) -> FederatedScaler:
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
    answer.check_squares(mean, of_rows, np.dtype(np.float64))
    return found


# -------------------------------------------------------------------- secure sums


def _squares(site: str, own: SiteMoments, mean: np.ndarray) -> dict[str, np.ndarray]:
    check_mean(mean, len(own.mean), True)
    rest = own.deviation(mean)
    return {
        "scatter": own.column_scatter + rest**2 / own.n_samples,
        "rest": rest,
        "count": np.array([own.n_samples]),
    }


@secure_work.register
def _(estimator: FederatedScaler, secure: SecureAggregation) -> dict[str, Task]:
    squares = Summed(_squares, fixed=0, mean=0, reads=MOMENTS)
    return {**tasks_of_moments(by_column=True), "squares": squares}


@fit_by_sums.register
def _(estimator: FederatedScaler, sums: SecureSums) -> FederatedScaler:
    mean, _ = moments_by_sum(SecureRounds(sums), [])
    shapes = {"scatter": mean.shape, "rest": mean.shape, "count": (1,)}
    found = sums.sum("squares", shapes, mean)
    (n,), rest = found["count"], found["rest"]
    about = mean + rest / n
    squares = np.maximum(found["scatter"] - rest**2 / n, 0.0)
    moments = ColumnMoments(np.full(mean.shape, n), about, rest / n - (about - mean), squares)
    estimator._start()
    estimator.communication_ = sums.log
    return _with_moments(estimator, {"all sites": moments})
