"""`OnlineDistributedPCA` at sites: a step is a batch of each."""

from __future__ import annotations

from functools import partial

import numpy as np

from .._validation.checks import check_at_most_features
from ..federated import OnlineDistributedPCA
from ..federated._online_distributed_pca import local_eigenspace
from ..summary import Subspace
from ._estimators import (
    check_squares,
    fit_batches,
    fit_estimator,
    partial_fit_estimator,
    rows_sent,
    rows_told,
    site_work,
)
from ._messages import Answer
from ._questions import MOMENTS, Task, check_basis
from ._sites import SiteLostError, Sites
from ._summaries import summary_sent, summary_told


@site_work.register
def _(estimator: OnlineDistributedPCA) -> dict[str, Task]:
    size, center, measured = estimator._size, estimator.center, estimator.variances == "measured"

    def space(site, X, *, weight):
        found, _ = local_eigenspace(site, X, weight, size, center, measured, X.dtype)
        return summary_sent(found) | rows_sent(X, weight)

    def moments(site, own, basis):
        d = len(own.mean)
        check_basis(basis, d, estimator._eigenpairs_kept(d))
        products = own.products(own.mean if center else np.zeros(d), basis)
        values, V = np.linalg.eigh(products @ basis.T)
        return {"factor": np.sqrt(values.clip(0))[:, None] * V.T}

    tasks = {"space": Task(space, begins=True, batches=True, reads="summary")}
    return tasks | ({"moments": Task(moments, batches=True, reads=MOMENTS)} if measured else {})


@fit_estimator.register
def _(estimator: OnlineDistributedPCA, sites: Sites) -> OnlineDistributedPCA:
    return fit_batches(
        estimator, lambda estimator, batch: partial_fit_estimator(estimator, sites, batch)
    )


@partial_fit_estimator.register
def _(estimator: OnlineDistributedPCA, sites: Sites, batch: int) -> OnlineDistributedPCA | None:
    sites.expect(centring=estimator.center)
    if not hasattr(estimator, "components_"):
        estimator._start()
    log = estimator.communication_
    while True:
        found = sites.ask_batch("space", partial(_space, estimator), batch)
        if not found:
            return None
        estimator.communication_ = log.copy()
        check_at_most_features(estimator.n_components, next(iter(found.values()))[0].n_features)
        try:
            measure = partial(_measured, sites, batch, found)
            estimator._take_step(found, sites.dtype, measure)
        except SiteLostError:
            continue
        estimator._add_clients(list(found))
        return estimator


def _space(estimator: OnlineDistributedPCA, answer: Answer) -> tuple[Subspace, int]:
    """Eigenspace of a site's batch, and number of rows."""
    space = summary_told(answer)
    size = estimator._size
    if size is not None and space.n_components > size:
        raise answer.refused(f"{space.n_components} directions, expected at most {size}")
    return space, rows_told(answer, space.n_samples)[1]


def _measured(
    sites: Sites, batch: int, found: dict[str, tuple[Subspace, int]], basis: np.ndarray
) -> list[np.ndarray]:
    """Factors of the rows of the sites that sent an eigenspace; an error if one is lost."""

    def read(answer: Answer) -> np.ndarray:
        factor = answer.array("factor", (None, basis.shape[1]))
        if len(factor) > basis.shape[1]:
            raise answer.refused(f"a factor of {len(factor)} rows, expected {basis.shape[1]}")
        with np.errstate(over="ignore"):
            check_squares(answer, 0.0, float(np.square(factor).sum()), answer.dtype)
        return factor

    factors = sites.ask_batch("moments", read, batch, basis.T, there=found)
    if factors.keys() < found.keys():
        raise SiteLostError
    return [factors[site] for site in found]
