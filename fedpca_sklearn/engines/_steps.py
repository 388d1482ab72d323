"""`OnlineDistributedPCA` at sites: a step is a batch of each, by messages or by secure sums."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from .._kernels import linalg
from .._kernels.row_moments import SiteMoments
from .._kernels.tolerances import GRAM_ROUNDING
from .._validation.checks import check_at_most_features
from ..communication import CommunicationLog
from ..federated import OnlineDistributedPCA
from ..federated._online_distributed_pca import local_eigenspace
from ..summary import Subspace
from ..summary._projection_mean import ProjectionMean
from ._estimators import partial_fit_estimator, rows_sent, site_work, summary_received, value_sent
from ._messages import Answer
from ._questions import MOMENTS, Task, check_basis, check_mean
from ._secure import Bounds, Grid, Grids, SecureAggregation, grids_of_sums
from ._secure_fits import check_needed, secure_work, sum_and_count, symmetric, task_of_bounds
from ._sites import SecureSums, Sites

# Eigenvalues of a mean of projections that are taken for zero.
_LEAST = 1e-12


@site_work.register
def _(estimator: OnlineDistributedPCA) -> dict[str, Task]:
    size, center, measured = estimator._size, estimator.center, estimator.variances == "measured"

    def space(site, X, *, weight):
        found, _ = local_eigenspace(site, X, weight, size, center, measured, X.dtype)
        return value_sent("summary", found) | rows_sent(X, weight)

    def moments(site, own, basis):
        d = len(own.mean)
        check_basis(basis, d, estimator._eigenpairs_kept(d))
        products = own.products(own.mean if center else np.zeros(d), basis)
        values, V = np.linalg.eigh(products @ basis.T)
        return {"factor": np.sqrt(values.clip(0))[:, None] * V.T}

    tasks = {"space": Task(space, begins=True, batches=True, reads="summary")}
    return tasks | ({"moments": Task(moments, batches=True, reads=MOMENTS)} if measured else {})


@partial_fit_estimator.register
def _(estimator: OnlineDistributedPCA, sites: Sites, batch: int) -> OnlineDistributedPCA | None:
    if not hasattr(estimator, "components_"):
        estimator._start()
    sites.expect(centring=estimator.center)
    of_spaces = partial(_take_spaces, log=estimator.communication_)
    take: Any = _take_sums if isinstance(sites, SecureSums) else of_spaces
    there = sites.until_nobody_is_lost(lambda: take(estimator, sites, batch))
    if not there:
        return None
    estimator._add_clients(there)
    return estimator


def _take_spaces(
    estimator: OnlineDistributedPCA, sites: Sites, batch: int, log: CommunicationLog
) -> list[str]:
    """Take the eigenspaces of a batch; the sites that have one."""
    found = sites.ask_batch("space", partial(_space, estimator), batch)
    if found:
        check_at_most_features(estimator.n_components, sites.n_features)
        estimator.communication_ = log.copy()
        measure = partial(_measured, sites, batch, found)
        estimator._take_step(found, sites.dtype, measure)
    return list(found)


def _space(estimator: OnlineDistributedPCA, answer: Answer) -> tuple[Subspace, int]:
    """Eigenspace of a site's batch, and number of rows."""
    space = summary_received(answer)
    size = estimator._size
    if size is not None and space.n_components > size:
        raise answer.refused(f"{space.n_components} directions, expected at most {size}")
    return space, answer.n_rows(space.n_samples)[1]


def _measured(
    sites: Sites, batch: int, found: dict[str, tuple[Subspace, int]], basis: np.ndarray
) -> list[np.ndarray]:
    """Factors of the rows of the sites that sent an eigenspace; an error if one is lost."""

    def read(answer: Answer) -> np.ndarray:
        factor = answer.array("factor", (None, basis.shape[1]))
        if len(factor) > basis.shape[1]:
            raise answer.refused(f"a factor of {len(factor)} rows, expected {basis.shape[1]}")
        with np.errstate(over="ignore"):
            answer.check_squares(0.0, float(np.square(factor).sum()))
        return factor

    factors = sites.ask_batch("moments", read, batch, basis.T, there=found)
    return [factors[site] for site in found]


# -------------------------------------------------------------------- secure sums


@secure_work.register
def _(estimator: OnlineDistributedPCA, secure: SecureAggregation) -> dict[str, Task]:
    center = estimator.center
    why = ": summaries that sites have cut do not add up"
    check_needed(estimator, "variances", "measured", why)

    def space(site, own, mean):
        d = len(own.mean)
        check_mean(mean, d, center)
        V = leading(own, estimator._size or d, center)
        share = own.n_samples if estimator.weighting == "rows" else 1.0
        gap = own.deviation(mean) / own.n_samples
        return {
            "projection": share * (V.T @ V)[np.triu_indices(d)],
            "share": np.array([share]),
            "scatter": own.column_scatter + own.n_samples * gap**2,
        }

    def moments(site, own, basis, mean):
        d = len(own.mean)
        check_mean(mean, d, center)
        check_basis(basis, d, estimator._eigenpairs_kept(d))
        products = own.products(mean, basis) @ basis.T
        return {"products": products[np.triu_indices(len(basis))]}

    def grids_of_space(bounds: Bounds) -> Grids:
        share = Grid(bounds.rows if estimator.weighting == "rows" else 0)
        return {**grids_of_sums(bounds), "projection": share, "share": share}

    summed = partial(Task, reads=MOMENTS, batches=True, grids=grids_of_sums)
    return {
        "bounds": task_of_bounds(few=True, batches=True, begins=True),
        "totals": summed(sum_and_count),
        "space": summed(space, grids=grids_of_space),
        "moments": summed(moments),
    }


def leading(own: SiteMoments, size: int, center: bool) -> np.ndarray:
    """Leading directions of rows about their own mean, or about zero."""
    d = len(own.mean)
    values, V = linalg.eigh_top(own.matrix_about(own.mean if center else np.zeros(d)), size)
    kept = values[:size] > GRAM_ROUNDING * max(values[0], np.finfo(float).tiny)
    return np.ascontiguousarray(V[:, :size].T[kept])


# -------------------------------------------------------------------- the server


class _Step:
    """The sums of one batch of the sites."""

    def __init__(self, estimator: OnlineDistributedPCA, sums: SecureSums, batch: int, d: int):
        self.estimator, self.sums, self.batch = estimator, sums, batch
        total = sums.sum("totals", {"sum": (d,), "count": (1,)}, batch)
        (n,), self.mean = total["count"], np.zeros(d)
        if estimator.center:
            self.mean = total["sum"] / n
        shapes = {"projection": (d * (d + 1) // 2,), "share": (1,), "scatter": (d,)}
        found = sums.sum("space", shapes, batch, self.mean)
        (self.share,) = found["share"]
        values, V = np.linalg.eigh(symmetric(found["projection"], d) / self.share)
        there = values > _LEAST
        rows = np.sqrt(values[there])[::-1, None] * V.T[there][::-1]
        columns = np.maximum(found["scatter"], 0.0)
        sizes, known = np.zeros(len(rows)), (self.mean, float(n), float(columns.sum()))
        self.rows = Subspace._trusted(rows, sizes, *known, estimator.center, column_scatter=columns)

    def average(self, mean: ProjectionMean, spaces: list[Subspace]) -> ProjectionMean:
        """The mean of projections with those of the sites, whose own mean has these rows."""
        estimator, rows, share = self.estimator, self.rows, float(self.share)
        if estimator.average == "steps":
            k = estimator.n_components or estimator._size
            V = linalg.orthonormalised(rows.components[:k])
            rows = rows._replace(components=V, singular_values=np.zeros(len(V)))
            share = rows.n_samples if estimator.weighting == "rows" else 1.0
        return mean.add([rows], [share], estimator._eigenpairs_kept(rows.n_features))

    def measure(self, basis: np.ndarray) -> list[np.ndarray]:
        """Factor of the rows of all sites about their mean, in a basis."""
        m = basis.shape[1]
        shapes = {"products": (m * (m + 1) // 2,)}
        found = self.sums.sum("moments", shapes, self.batch, basis.T, self.mean)
        values, U = np.linalg.eigh(symmetric(found["products"], m))
        return [np.sqrt(values.clip(0))[:, None] * U.T]


def _take_sums(estimator: OnlineDistributedPCA, sums: SecureSums, batch: int) -> list[str]:
    """Take sums over a batch; the sites that have one, if they are enough."""
    there = sums.begin_batch("bounds", batch)
    if there:
        check_at_most_features(estimator.n_components, sums.n_features)
        step = _Step(estimator, sums, batch, sums.n_features)
        found = {"all sites": (step.rows, max(1, round(step.rows.n_samples)))}
        estimator._take_step(found, sums.dtype, step.measure, step.average)
    return there
