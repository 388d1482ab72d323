"""What a step of online distributed PCA works on: at a client, and in the mean of all steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from .._base.batches import count_rows
from .._kernels import linalg
from .._kernels.rows import centred_product
from .._kernels.sizes import EXACT_ORDER, auto_block_size, kept_directions
from .._validation.checks import check_rows
from ..summary import Subspace
from ..summary._along import along, factor_along
from ..summary._projection_mean import ProjectionMean
from ..summary._updating import updated


@dataclass(frozen=True)
class State:
    """State after all steps: mean of projections, and what is known of the scatter of the rows.

    ``total`` has their count, mean and whole scatter. With ``variances="measured"``
    ``moments.T @ moments`` is the scatter matrix of the rows, projected on ``mean.vectors``; else
    ``moments`` is None, and ``total`` has the directions of what was sent.
    """

    settings: dict[str, Any]
    mean: ProjectionMean
    moments: np.ndarray | None
    total: Subspace
    n_rows: int
    n_steps: int
    dtype: np.dtype

    @classmethod
    def empty(cls, d: int, dtype: np.dtype, settings: dict[str, Any]) -> State:
        """State before the first step."""
        total = Subspace.empty(d, centered=settings["center"], dtype=dtype)
        moments = np.zeros((0, 0)) if settings["variances"] == "measured" else None
        return cls(settings, ProjectionMean.empty(d), moments, total, 0, 0, dtype)

    def leading(self, n_components: int | None) -> Subspace:
        """Summary along the leading eigenvectors of the mean, turned to the principal axes."""
        return along(self.total.truncate(0), *self.mean.leading(n_components, self._factor_along))

    def _factor_along(self, V: np.ndarray) -> np.ndarray:
        """Factor of the scatter matrix along the first vectors of the mean."""
        return factor_along([self.total], V) if self.moments is None else self.moments[:, : len(V)]


def local_eigenspace(
    label: Any,
    X: Any,
    weight: Any,
    size: int | None,
    center: bool,
    columns: bool,
    dtype: np.dtype,
) -> tuple[Subspace, int]:
    """Local work of one client: the leading eigenspace of its rows, and their number.

    Rows or features up to `EXACT_ORDER` are one block, of which nothing is cut before the end.
    """
    X = check_rows(X, [dtype])
    n, d = X.shape
    max_keep = None if size is None else kept_directions(size, d)
    if max_keep is not None and d <= min(n, EXACT_ORDER):
        max_keep = d
    block_size = auto_block_size(max_keep, d, sp.issparse(X))
    if min(n, d) <= EXACT_ORDER:
        block_size = max(block_size, n)
    start = Subspace.empty(d, centered=center, dtype=X.dtype)
    space = updated(start, X, weight, max_keep=max_keep, block_size=block_size, wanted=size)
    space = space.truncate(size)
    if not columns:
        space = space._replace(column_scatter=None)
    return space, count_rows(X, weight)


def local_moments(
    label: Any, X: Any, weight: Any, mean: np.ndarray, basis: np.ndarray
) -> np.ndarray:
    """Second local work: triangular factor of the rows about their mean, in a basis."""
    Z = centred_product(X, mean, basis)
    if weight is not None:
        Z *= np.sqrt(weight)[:, None]
    return linalg.r_factor(Z)
