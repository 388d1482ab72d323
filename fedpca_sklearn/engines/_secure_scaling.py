"""`FederatedScaler` by secure sums: of all sites together, the sums of whole columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._kernels.column_moments import ColumnMoments
from .._kernels.row_moments import SiteMoments
from ..federated import FederatedScaler
from ..rounds._power_method import moments_by_sum
from ._estimators import until_nobody_is_lost
from ._questions import MOMENTS, Task, check_mean
from ._scaling import with_moments
from ._secure_bounds import Bounds, Grids, Summed, grids_of_products
from ._secure_fits import SecureRounds, fit_by_sums, secure_work, tasks_of_moments
from ._secure_sums import SecureSums


def _squares(site: str, own: SiteMoments, mean: np.ndarray) -> dict[str, np.ndarray]:
    check_mean(mean, len(own.mean), True)
    rest = own.deviation(mean)
    return {
        "squares": own.column_scatter + rest**2 / own.n_samples,
        "rest": rest,
        "count": np.array([own.n_samples]),
    }


def _grids(bounds: Bounds) -> Grids:
    """Of each column its own, as those of products with unit vectors."""
    grids = grids_of_products(bounds)
    return {"squares": grids["scatter"], "rest": grids["rest"], "count": grids["count"]}


@secure_work.register
def _(estimator: FederatedScaler) -> dict[str, Task]:
    squares = Summed(_squares, fixed=0, mean=0, reads=MOMENTS, grids=_grids)
    return {**tasks_of_moments(by_column=True), "squares": squares}


@fit_by_sums.register
def _(estimator: FederatedScaler, sums: SecureSums) -> Any:
    def fit() -> FederatedScaler:
        sums.begin()
        mean, _ = moments_by_sum(SecureRounds(sums), [])
        shapes = {"squares": mean.shape, "rest": mean.shape, "count": (1,)}
        found = sums.sum("squares", shapes, mean)
        (n,), rest = found["count"], found["rest"]
        about = mean + rest / n
        squares = np.maximum(found["squares"] - rest**2 / n, 0.0)
        moments = ColumnMoments(np.full(mean.shape, n), about, rest / n - (about - mean), squares)
        estimator._start()
        estimator.communication_ = sums.log
        return with_moments(estimator, {"all sites": moments})

    return until_nobody_is_lost(fit)
