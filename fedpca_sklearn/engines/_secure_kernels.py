"""`VerticalFederatedKernelPCA` by secure sums: squared distances or inner products of all columns.

A kernel is a function of a sum over the columns, so that its parts add up. The keys of rows are no
sum, they are intersected.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import clone

from ..vertical import VerticalFederatedKernelPCA
from ._estimators import are_too_large, site_work, until_nobody_is_lost
from ._kernels import client_of, fit_kernels
from ._matching import KEYS, OF_ROWS
from ._questions import RefusedError, Task
from ._secure_bounds import BOUNDS, Bounds, Grid, Summed
from ._secure_columns import SecureColumnRounds
from ._secure_fits import fit_by_sums, secure_work
from ._secure_site import Open
from ._secure_sums import SecureSums


@secure_work.register
def _(estimator: VerticalFederatedKernelPCA) -> dict[str, Task]:
    needed = {"aggregation": "exact", "projection": "samples"}
    why = {
        "aggregation": "the vectors of the sites' own kernels do not add up",
        "projection": "a combination of columns is the sites' parts side by side, which is no sum",
    }
    for name, value in needed.items():
        if (got := getattr(estimator, name)) != value:
            raise ValueError(
                f'{name} must be "{value}" with secure sums: {why[name]}, got {got!r}.'
            )
    if callable(estimator.kernel):
        raise ValueError(
            "kernel must be a name with secure sums: the numbers of a function have no bound, got "
            f"{estimator.kernel!r}."
        )
    plain = site_work(estimator)

    def bounds(site, X):
        rows = client_of(estimator, X, np.arange(len(X)), X.shape[1]).rows
        scatter = float(np.square(rows).sum())
        if are_too_large(0.0, scatter / len(X), X.dtype):
            raise RefusedError("values that are too large")
        return {BOUNDS: Bounds.of_numbers(len(X), len(X), scatter=scatter).vector}

    def kernel_part(site, X, landmarks):
        return {"part": plain["kernel_part"].work(site, X, landmarks)["part"]}

    def grids(bounds):
        # |x - y|^2 <= 2 |x|^2 + 2 |y|^2, both of which are in the scatter
        return {"part": Grid(int(bounds.scatter[0]) + 1)}

    summed = partial(Summed, reads=OF_ROWS, matched=True, grids=grids)
    return {
        "keys": Open(plain["keys"].work, reads=KEYS),
        "columns_bound": Open(bounds, reads=OF_ROWS, matched=True),
        "kernel_part": summed(kernel_part),
    }


class _SecureKernelRounds(SecureColumnRounds):
    """One secure sum of what a kernel is a function of."""

    def sum(
        self, function: Any, clients: Sequence[tuple], broadcast: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the sum over the columns of all sites."""
        self.n_rounds += 1
        keys, m = self.matched.keys, self.landmarks
        shapes = {"part": (len(keys), len(m))}
        return self.sums.sum("kernel_part", shapes, keys, m)["part"]


@fit_by_sums.register
def _(estimator: VerticalFederatedKernelPCA, sums: SecureSums) -> VerticalFederatedKernelPCA:
    rounds_of = partial(_SecureKernelRounds, sums)
    return until_nobody_is_lost(lambda: fit_kernels(clone(estimator), sums.sites, rounds_of))
