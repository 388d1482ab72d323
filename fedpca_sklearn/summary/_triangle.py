"""Triangular factors of rows, exact under merging: Bai, Chan and Luk (2005)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg

from .._kernels.device_rows import DeviceRows, r_factor_about, sums_and_squares
from .._kernels.linalg import right_singular, triangle, two_sum
from .._kernels.scatter import dense
from .._kernels.sizes import few_of_all, slices_of
from .._kernels.too_large import too_large
from ._exact import Factor
from ._subspace import Subspace


@dataclass(frozen=True, eq=False)
class Triangle:
    """Exact summary of rows: their mean, and the R factor of the rows about their mean.

    The mean is an unevaluated sum of two floats per feature. What the second one adds, the rounding
    of the first, is what keeps the differences of the means of two clients exact to the last digit
    where the rows are far from the origin.
    """

    factor: np.ndarray
    """Upper trapezoidal, of shape (min(n, d), d), float64."""
    mean: np.ndarray
    mean_rest: np.ndarray
    n_samples: float
    n_rows: int

    @property
    def scatter(self) -> float:
        """Sum of squares about the mean."""
        return float(np.einsum("ij,ij->", self.factor, self.factor))


def triangle_of_rows(X: Any, weight: np.ndarray | None = None) -> Triangle:
    """Factor of rows about their mean, in blocks; no row is copied more than a block at a time.

    Cost O(n d^2), memory O(d^2) beyond the rows.

    Parameters
    ----------
    X : {ndarray, CSR, DeviceRows} of shape (n, d)
        Finite floats. A sparse matrix is densified block by block.
    weight : ndarray of shape (n,), default=None
        Rows without weight count for nothing.
    """
    if weight is not None and not weight.all():
        X, weight = X[weight > 0], weight[weight > 0]
    n, d = X.shape
    factor, mean, rest = np.empty((0, d)), np.zeros(d), np.zeros(d)
    if not n:
        return Triangle(factor, mean, rest, 0.0, 0)
    n_samples = float(n if weight is None else weight.sum())
    at_once = max(1000, 3 * d)
    blocks, on_device = list(slices_of(n, at_once)), isinstance(X, DeviceRows)
    root_w = np.sqrt(weight) if on_device and weight is not None else None

    once = dense(X) if len(blocks) == 1 and not on_device else None  # one block is densified once
    mean = (dense(X[:1]) if once is None else once)[0].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(2):  # identical rows leave exactly nothing
            total = np.zeros(d)
            if on_device:
                total, blocks = sums_and_squares(X, mean, np.float64, root_w)[0], []
            for at in blocks:
                rows = dense(X[at]) if once is None else once
                rows = np.subtract(rows, mean, dtype=np.float64)
                total += rows.sum(axis=0) if weight is None else weight[at] @ rows
            mean, rest = two_sum(mean, total / n_samples)
        if on_device:
            factor = r_factor_about(X, mean, rest, root_w, at_once)
        for at in blocks:
            rows = dense(X[at]) if once is None else once
            rows = np.subtract(rows, mean, dtype=np.float64)
            rows -= rest
            if weight is not None:
                rows *= np.sqrt(weight[at])[:, None]
            factor = triangle(factor, rows)
        scatter = float(np.einsum("ij,ij->", factor, factor))
    if not math.isfinite(scatter):
        raise too_large("sum of squares", weight=weight)
    return Triangle(factor, mean, rest, n_samples, n)


# R factor of two stacked R factors
merge_factors = partial(triangle, trapezoidal=True)


def pooled(factor: np.ndarray, parts: Sequence[Triangle]) -> Triangle:
    """Factor of all rows about the mean of all (Algorithm 1, eq. 8; with a state: eq. 22).

    Parameters
    ----------
    factor : ndarray of shape (m, d)
        Merged factor of the parts.
    parts : sequence of Triangle
        Of which the means and counts are used.
    """
    parts = [part for part in parts if part.n_samples > 0] or parts[:1]
    if len(parts) == 1:
        return replace(parts[0], factor=factor)
    n = np.array([part.n_samples for part in parts])
    n_samples = float(n.sum())
    n_rows = sum([part.n_rows for part in parts])
    origin = parts[int(np.argmax(n))].mean
    with np.errstate(over="ignore", invalid="ignore"):
        means = np.stack([(part.mean - origin) + part.mean_rest for part in parts])
        shift = (n / n_samples) @ means
        mean, rest = two_sum(origin, shift)
        means -= shift
        means *= np.sqrt(n)[:, None]
        scatter = float(np.einsum("ij,ij->", means, means))
    if not math.isfinite(scatter):
        raise too_large("sum of squares")
    factor = triangle(factor, means)
    if len(factor) > n_rows:  # fewer rows than features: the means add none to the rank
        R, order = scipy.linalg.qr(factor, mode="r", pivoting=True, check_finite=False)
        factor = np.empty((n_rows, len(order)), order="F")
        factor[:, order] = R[:n_rows]
        factor = triangle(factor[:0], factor)
    return Triangle(factor, mean, rest, n_samples, n_rows)


def subspace_of(
    triangle: Triangle, dtype: Any = np.float64, *, n_certain: int | None = None
) -> Subspace:
    """Summary with the scatter matrix R^T R of a factor R.

    ``n_certain`` is the number of leading components that will be read. If these are few, or 0, the
    factor is stored and components are computed when read; 0: only functions of the factor will be,
    such as scaled components. None: all components are computed now.
    """
    R = triangle.factor
    with np.errstate(over="ignore"):
        columns = np.einsum("ij,ij->j", R, R)
        scatter = float(columns.sum())
    if not math.isfinite(scatter):
        raise too_large("sum of squares")
    V, s, leading = None, None, None
    if n_certain is None or (n_certain and not few_of_all(n_certain, len(R))):
        V, s = right_singular(R)
        V, scatter = V.astype(dtype, copy=False), max(scatter, float(s @ s))
    else:
        leading = Factor(R, dtype, n_certain)
    known = triangle.mean, triangle.n_samples, scatter, True
    return Subspace._trusted(V, s, *known, column_scatter=columns, _leading=leading)
