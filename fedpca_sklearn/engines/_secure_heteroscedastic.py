"""`FederatedHeteroscedasticPCA` by secure sums: no noise of a site, and no weight, leaves it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from ..rounds import FederatedHeteroscedasticPCA
from ..rounds._expected_scores import ExpectedScores
from ..rounds._queries import Moments, Scatter, TimesScatter, Variances
from ._estimators import site_work, until_nobody_is_lost
from ._heteroscedastic import KeepingTask, by_rounds
from ._questions import Task
from ._secure_bounds import Bounds, Grid, Grids, Summed, grids_of_products, grids_of_sums
from ._secure_fits import SecureRounds, fit_by_sums, secure_work, summed, tasks_of_moments
from ._secure_sums import SecureSums

# Powers of two by which a weight may exceed 1, and sums over the noise those of the rows: noise is
# 1e-8 at least, weights are its power -3/2; sums of products with W = (F' F + v I)^-1 are divided
# by v, of which |W F'| is at most the power -1/2, and logarithms of floats are below 2^10.
_WEIGHT, _LEFT, _RIGHT, _INVERSE, _LOG = 40, 40, 54, 27, 11


@dataclass(frozen=True)
class _KeepingSum(KeepingTask, Summed):
    """Work that keeps a number, and whose arrays are added up."""


def _weighted(bounds: Bounds) -> Grids:
    grids = {**grids_of_products(bounds), **grids_of_sums(bounds)}
    return {name: _larger(grid, _WEIGHT) for name, grid in grids.items()}


def _larger(grid: Grid, more: int) -> Grid:
    return Grid(grid.exponent + more, grid.exponent if grid.size is None else grid.size)


def _scores(bounds: Bounds) -> Grids:
    products, count = grids_of_products(bounds)["products"], Grid(bounds.rows)
    d = math.ceil(math.log2(bounds.n_features))
    return {
        "left": _larger(products, _LEFT),
        "right": _larger(products, _RIGHT),
        "covariance": _larger(count, _INVERSE),
        "logs": _larger(count, d + _LOG),
        "distances": _larger(products, _INVERSE),
    }


@secure_work.register
def _(estimator: FederatedHeteroscedasticPCA) -> dict[str, Task]:
    plain = site_work(estimator)

    def scores(site, own, F, mean, unit, *, kept):
        _, v = plain["scores"].work(site, own, F, mean, unit, kept=kept)
        return ExpectedScores(F, mean, float(unit)).sums(own, kept)[0], v

    return {
        **tasks_of_moments(),
        "scatter": summed(plain["scatter"], Scatter, grids_of_products, 0),
        "weighted_moments": summed(plain["weighted_moments"], Moments, _weighted, None),
        "weighted_times_scatter": summed(plain["weighted_times_scatter"], TimesScatter, _weighted),
        "weighted_variances": summed(plain["weighted_variances"], Variances, _weighted),
        "scores": _KeepingSum(**{**vars(plain["scores"]), "work": scores}, grids=_scores, mean=1),
        "times_scatter": summed(plain["times_scatter"], TimesScatter, grids_of_products),
        "variances": summed(plain["variances"], Variances, grids_of_products),
    }


class _ScoreRounds(SecureRounds):
    """Rounds of secure sums, of which expected scores are made at the server."""

    n_rows = 0.0

    def sum(
        self, function: Any, clients: Sequence[tuple], broadcast: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the sum of the answers of all sites to a query."""
        if not isinstance(function, ExpectedScores):
            total = super().sum(function, clients, broadcast)
            self.n_rows = total[-1] if isinstance(function, Scatter) else self.n_rows
            return total
        k, d = function.F.shape
        found = self.parts(function)
        shaped = {"left": (k, d), "right": (k, k), "covariance": (k, k)}
        found |= {name: found[name].reshape(shape) for name, shape in shaped.items()}
        return function.message(found, self.n_rows)


@fit_by_sums.register
def _(estimator: FederatedHeteroscedasticPCA, sums: SecureSums) -> FederatedHeteroscedasticPCA:
    def fit() -> FederatedHeteroscedasticPCA:
        sums.begin()
        return by_rounds(clone(estimator), sums.sites, _ScoreRounds(sums))

    return until_nobody_is_lost(fit)
