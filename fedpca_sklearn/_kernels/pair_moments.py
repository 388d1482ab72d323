"""Moments of pairs of columns over the rows that have both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.linalg.blas import dgemm

from .linalg import mirror
from .sizes import row_slices

# Rows of a block at least: products of fewer rows cost more than their arithmetic.
_LEAST_ROWS = 256


def moments_of_pairs(X: Any, weight: np.ndarray | None) -> tuple[np.ndarray, ...]:
    """Counts, means beyond the origin, products about the means, and the origin.

    Parameters
    ----------
    X : {ndarray, CSR} of shape (n, d)
        Without infinity; NaN is a missing entry.
    weight : ndarray of shape (n,) or None

    Returns
    -------
    counts, means, products : ndarray of shape (d, d)
        As in `PairMoments`.
    origin : ndarray of shape (d,)
        The means of the columns, 0 of one without entries.
    """
    d = X.shape[1]
    origin, _ = means_of_columns(X, weight)
    counts, sums, products = (np.zeros((d, d), order="F") for _ in range(3))
    for rows, w in _blocks(X, weight):
        seen = ~np.isnan(rows)
        Z, there = np.where(seen, rows - origin, 0.0), seen.astype(np.float64)
        wZ, w_there = (Z, there) if w is None else (w[:, None] * Z, w[:, None] * there)
        counts = _with_product(counts, w_there, there)
        sums = _with_product(sums, wZ, there)
        products = _with_product(products, wZ, Z)
    mirror(counts)  # other products are rounded in another way
    means = np.divide(sums, counts, out=sums, where=counts > 0)
    for at in row_slices(d, d):
        products[at] -= counts[at] * means[at] * means[:, at].T
    settle(products)
    return counts, means, products, origin


def settle(products: np.ndarray) -> None:
    """Take away, in place, what rounding leaves where there is no variation."""
    mirror(products)
    most = np.sqrt(np.maximum(np.diag(products), 0.0))
    for at in row_slices(len(products), len(products)):
        bound = most[at, None] * most
        np.clip(products[at], -bound, bound, out=products[at])


def means_of_columns(X: Any, weight: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Means of what is there, an entry and the mean of the differences to it, and its weight."""
    d = X.shape[1]
    first, known = np.zeros(d), np.zeros(d, dtype=bool)
    total, count = np.zeros(d), np.zeros(d)
    for rows, w in _blocks(X, weight):
        seen = ~np.isnan(rows)
        new = seen.any(axis=0) & ~known
        first[new] = rows[seen.argmax(axis=0)[new], new]
        known |= new
        there = seen.astype(np.float64) if w is None else w[:, None] * seen
        total += (there * np.where(seen, rows - first, 0.0)).sum(axis=0)
        count += there.sum(axis=0)
    return first + np.divide(total, count, out=np.zeros(d), where=known), count


def _blocks(X: Any, weight: np.ndarray | None) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Dense rows with weight, at least one at a time, and their weights."""
    for at in row_slices(X.shape[0], X.shape[1], least=_LEAST_ROWS):
        rows = X[at].toarray() if sp.issparse(X) else X[at]
        w = None if weight is None else weight[at]
        if w is not None and not w.all():
            rows, w = rows[w > 0], w[w > 0]
        if not len(rows):
            continue
        yield rows.astype(np.float64, copy=False), w


def _with_product(total: np.ndarray, A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """``total + A.T @ B`` in the memory of the total, which is in Fortran's order."""
    return dgemm(1.0, A.T, B.T, beta=1.0, c=total, trans_b=1, overwrite_c=1)
