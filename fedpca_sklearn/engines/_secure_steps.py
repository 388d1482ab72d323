"""`OnlineDistributedPCA` by secure sums: of each step the sums of projections and of moments."""

from __future__ import annotations

from functools import partial

import numpy as np

from .._kernels import linalg
from .._kernels.row_moments import SiteMoments
from .._kernels.tolerances import GRAM_ROUNDING
from .._validation.checks import check_at_most_features
from ..federated import OnlineDistributedPCA
from ..rounds._queries import Moments
from ..summary import Subspace
from ..summary._projection_mean import ProjectionMean
from ._estimators import fit_batches, site_work
from ._messages import Answer
from ._questions import MOMENTS, RefusedError, Task, check_basis, check_mean
from ._secure_bounds import BOUNDS, Bounds, Grid, Grids, Summed, grids_of_products, grids_of_sums
from ._secure_fits import MAX_FEATURES, fit_by_sums, secure_work, symmetric
from ._secure_site import Open
from ._secure_sums import SecureSums, bounds_in
from ._sites import SiteLostError

# Eigenvalues of a mean of projections that are taken for zero.
_LEAST = 1e-12


@secure_work.register
def _(estimator: OnlineDistributedPCA) -> dict[str, Task]:
    site_work(estimator)  # refuses what cannot be fitted over a network
    center = estimator.center
    if estimator.variances != "measured":
        raise ValueError(
            'variances must be "measured" with secure sums: summaries that sites have cut do not '
            f"add up, got {estimator.variances!r}."
        )

    def bounds(site, own):
        if len(own.mean) > MAX_FEATURES:
            raise RefusedError(f"projections are summed of up to {MAX_FEATURES} features")
        return {BOUNDS: Bounds.of(own, np.dtype(own.dtype)).vector}

    def totals(site, own):
        *total, count = Moments().answer(own)
        return {"sum": np.array(total), "count": np.array([count])}

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
        scatter = grids_of_products(bounds)["scatter"]
        return {"projection": share, "share": share, "scatter": scatter}

    summed = partial(Summed, reads=MOMENTS, batches=True)
    return {
        "bounds": Open(bounds, reads=MOMENTS, batches=True, begins=True),
        "totals": summed(totals, grids=grids_of_sums),
        "space": summed(space, mean=1, grids=grids_of_space),
        "moments": summed(moments, mean=2, grids=grids_of_products),
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
        self.rows = Subspace._trusted(
            rows,
            np.zeros(len(rows)),
            self.mean,
            float(n),
            float(columns.sum()),
            estimator.center,
            column_scatter=columns,
        )

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


def _of_batch(answer: Answer) -> tuple[None, Bounds]:
    return None, bounds_in(answer)


def _with_batch(
    sums: SecureSums, estimator: OnlineDistributedPCA, batch: int
) -> OnlineDistributedPCA | None:
    """The estimator with a batch; None where too few sites have one."""
    if not hasattr(estimator, "components_"):
        estimator._start()
    while True:
        there = sums.begin_batch("bounds", batch, _of_batch)
        if not there:
            return None
        d = next(iter(sums.announced.values())).n_features
        check_at_most_features(estimator.n_components, d)
        try:
            step = _Step(estimator, sums, batch, d)
            n = max(1, round(step.rows.n_samples))
            found = {"all sites": (step.rows, n)}
            estimator._take_step(found, sums.dtype, step.measure, step.average)
        except SiteLostError:
            continue
        estimator._add_clients(list(there))
        return estimator


@fit_by_sums.register
def _(estimator: OnlineDistributedPCA, sums: SecureSums) -> OnlineDistributedPCA:
    fitted = fit_batches(estimator, partial(_with_batch, sums))
    fitted.communication_ = sums.log
    return fitted
