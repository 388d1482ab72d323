"""Products of centred rows with a basis and with each other, block by block."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp

from .device_rows import DeviceRows, coordinates, sums_and_squares, times_scatter
from .sizes import ROWS_OF_GROUP, row_slices, rows_within, slices_of
from .threads import TINY_ROWS, blas_architectures, in_shares, threads_for, usable_threads

Product: TypeAlias = Callable[[np.ndarray], np.ndarray]

# Kernels of OpenBLAS that multiply small matrices in place if neither is transposed, and the number
# of multiplications up to which a product is small.
_IN_PLACE = {"SkylakeX", "Cooperlake", "SapphireRapids"}
_SMALL = 10**6
# Columns of a piece; the most vectors, as with more its rows are too few; and the most columns, as
# sums of more pieces are rounded more often.
_COLUMNS, _VECTORS, _FEATURES = 200, 48, 2**15


def sums_in_groups(A: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """``A.T @ Z`` in float32 for few columns of A; those of some rows each are added in float64.

    Equal products, as of rows that repeat, are all rounded alike where they are added in float32.
    """
    whole = len(A) - len(A) % ROWS_OF_GROUP
    groups = [M[:whole].reshape(-1, ROWS_OF_GROUP, M.shape[1]) for M in (A, Z)]
    total = np.add.reduce(groups[0].swapaxes(1, 2) @ groups[1], axis=0, dtype=np.float64)
    if whole < len(A):
        total += A[whole:].T @ Z[whole:]
    return total


def product_with(vectors: np.ndarray, n_rows: int) -> Product:
    """Function that multiplies up to so many rows with the transpose of vectors, rows as well.

    In pieces where that pays, and where BLAS would not share the whole among threads.
    """
    k, d = vectors.shape
    small = n_rows * k * d <= _SMALL
    if small or k > _VECTORS or d > _FEATURES or not multiplies_in_place() or usable_threads() > 1:
        return vectors.T.__rmatmul__  # of Z: Z @ vectors.T
    return in_pieces(vectors)


@cache
def multiplies_in_place() -> bool:
    """Whether BLAS multiplies small matrices without a copy."""
    return not blas_architectures().isdisjoint(_IN_PLACE)


def in_pieces(vectors: np.ndarray) -> Product:
    """The same with products that are small."""
    k, d = vectors.shape
    B = np.ascontiguousarray(vectors.T)
    width = min(_COLUMNS, d)
    n_pieces, n_rows = d // width, max(_SMALL // (width * k), 1)
    whole = n_pieces * width
    pieces = B[:whole].reshape(n_pieces, width, k)

    def product(Z: np.ndarray) -> np.ndarray:
        found = np.empty((len(Z), k), np.result_type(Z, B))
        for at in slices_of(len(Z), n_rows):
            some = Z[at]
            parts = some[:, :whole].reshape(len(some), n_pieces, width).swapaxes(0, 1) @ pieces
            np.add.reduce(parts, axis=0, out=found[at])
            if whole < d:
                found[at] += some[:, whole:] @ B[whole:]
        return found

    return product


# Entries of which a mean is taken at once; and the share of a column's variance that the square of
# the way to its mean may be, which costs five of its binary digits.
_ENTRIES, _FAR = 2**15, 2.0**10


class Centring:
    """What is taken off rows: a point near their mean, and then the way from there to the mean.

    Parameters
    ----------
    point : ndarray of shape (d,)
        Where it is looked for.
    weights : ndarray of shape (m,) or None
        Of the rows.
    total : float
        Their sum.
    unseen : bool
        Whether a mean far from the point, beside which deviations are small, may be without weight
        in the scatter. Then rows are centred anew.
    """

    def __init__(self, point: np.ndarray, weights: np.ndarray | None, total: float, unseen: bool):
        self._weights, self._total, self._unseen = weights, total, unseen
        self._near, self._rest = point.copy(), np.zeros(len(point))

    def find(self, Y: np.ndarray, cols: slice, point: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Write the columns of centred rows, and return the way from the point to their mean."""
        self._near[cols] = point[cols]
        self._once(Y, cols, out)
        if self._unseen and np.any(self._rest[cols] ** 2 > _FAR * self._mean_of(out, 2)):
            self._near[cols] += self._rest[cols]
            self._once(Y, cols, out)
        return (self._near[cols] - point[cols]) + self._rest[cols]

    def write(self, Y: np.ndarray, cols: slice, out: np.ndarray) -> None:
        """Write columns whose mean has been found."""
        np.subtract(Y[:, cols], self._near[cols], out=out, casting="same_kind")
        out -= self._rest[cols].astype(out.dtype)

    def _once(self, Y: np.ndarray, cols: slice, out: np.ndarray) -> None:
        np.subtract(Y[:, cols], self._near[cols], out=out, casting="same_kind")
        self._rest[cols] = self._mean_of(out)
        out -= self._rest[cols].astype(out.dtype)

    def _mean_of(self, Z: np.ndarray, power: int = 1) -> np.ndarray:
        """Weighted mean of some columns, or of their squares, some rows at a time in float64."""
        w = self._weights
        if w is None and power == 1:
            return np.asarray(Z.mean(axis=0, dtype=np.float64))
        total = np.zeros(Z.shape[1])
        for rows in row_slices(len(Z), Z.shape[1], _ENTRIES):
            part = Z[rows] if power == 1 else Z[rows] ** power
            total += part.sum(axis=0, dtype=np.float64) if w is None else w[rows] @ part
        return total / self._total


# Entries of rows that are read twice, beside the rows themselves.
_ENTRIES_IN_CACHE = 2**17
# Rows of which is told whether the mean is large, and whether columns may be without a zero.
_SOME = 32
# Least entries of rows of a thread.
_ENTRIES_OF_THREAD = 2**20


def entries_once(X: Any) -> Any:
    """Sparse rows whose entries are sums of those stored twice, in order; a copy where need be."""
    if sp.issparse(X) and not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    return X


def centred_where_full(X: Any, mean: np.ndarray) -> tuple[Any, np.ndarray]:
    """Sparse rows less the mean in columns without an implicit zero, and the mean of the others.

    So that nothing cancels: any other column has squares of at least its mean's times n. Entries
    that are stored twice may be so afterwards. Most often a few rows tell that no column is full.
    """
    X = sp.csr_array(X)
    n, d = X.shape
    some = min(n, _SOME)
    if not np.any(np.bincount(X.indices[: X.indptr[some]], minlength=d) >= some):
        return X, mean
    X = entries_once(X)
    full = np.bincount(X.indices, minlength=d) == n
    if not full.any():
        return X, mean
    data = X.data - np.where(full, mean, 0.0)[X.indices]
    return sp.csr_array((data, X.indices, X.indptr), X.shape), np.where(full, 0.0, mean)


def centred_product(X: Any, mean: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """``(X - mean) @ basis`` in float64; dense rows are centred first, block by block."""
    if sp.issparse(X):
        Z = np.asarray(X @ basis, dtype=np.float64)  # also of rows of long doubles
        Z -= mean @ basis
        return Z
    Z = np.empty((X.shape[0], basis.shape[1]))
    for rows in row_slices(*X.shape):
        np.matmul(X[rows] - mean, basis, out=Z[rows])
    return Z


def coordinates_and_norms(
    X: Any,
    V: np.ndarray,
    mean: np.ndarray,
    squared_norms: np.ndarray | None = None,
    scale: np.ndarray | None = None,
) -> Any:
    """``(X - mean) / scale @ V.T`` in the dtype of X and V; squared norms of the same rows."""
    if isinstance(X, DeviceRows):
        return coordinates(X, V, mean, squared_norms, scale)
    dtype = np.result_type(X, V)
    if sp.issparse(X):  # centred after the product, hence in float64
        X, mean = centred_where_full(X, mean.astype(np.float64))
        if scale is not None:
            mean, unit = mean / scale, 1 / scale
            X = sp.csr_array((X.data * unit[X.indices], X.indices, X.indptr), X.shape)
        Vt = np.ascontiguousarray(V.T, dtype=np.float64)
        Z = X @ Vt
        Z -= mean @ Vt
        if squared_norms is not None:
            X = entries_once(X)
            stored = sp.csr_array((X.data - mean[X.indices], X.indices, X.indptr), X.shape)
            there = sp.csr_array((mean[X.indices] ** 2, X.indices, X.indptr), X.shape)
            squared_norms[:] = stored.power(2).sum(axis=1) + (mean @ mean - there.sum(axis=1))
        return Z.astype(dtype, copy=False)
    with threads_for(X.size, TINY_ROWS):
        return _of_dense(X, V, mean, squared_norms, scale)


def _of_dense(
    X: np.ndarray,
    V: np.ndarray,
    mean: np.ndarray,
    squared_norms: np.ndarray | None,
    scale: np.ndarray | None,
) -> np.ndarray:
    """The same of dense rows, of many by threads that share them."""
    n, d = X.shape
    dtype, n_threads = np.result_type(X, V), n * d // _ENTRIES_OF_THREAD
    n_threads = min(n_threads, usable_threads()) if n_threads > 1 else 1
    if squared_norms is None and scale is None and _mean_may_wait(X, V, mean):
        by_rows = X.flags.c_contiguous  # BLAS takes others as they are, but not in pieces

        def times(at: slice) -> np.ndarray:
            return product_with(V, at.stop - at.start)(X[at]) if by_rows else X[at] @ V.T

        parts = in_shares(n, n_threads, times)
        Z = parts[0] if len(parts) == 1 else np.concatenate(parts)
        Z -= (V.astype(np.float64) @ mean).astype(dtype)
        return Z
    step, Z = rows_within(d, least=len(V)), np.empty((n, len(V)), dtype)

    def fill(share: slice) -> None:
        m = share.stop - share.start
        product = product_with(V, min(m, step))
        space = np.empty((min(m, step), d), np.result_type(X, mean))
        for at in slices_of(m, step):
            rows = slice(share.start + at.start, share.start + at.stop)
            # before the product: exact where the mean is large
            centred = np.subtract(X[rows], mean, out=space[: at.stop - at.start])
            if scale is not None:
                centred = centred / scale
            Z[rows] = product(centred)
            if squared_norms is not None:
                squared_norms[rows] = np.einsum("ij,ij->i", centred, centred, dtype=np.float64)

    in_shares(n, n_threads, fill)
    return Z


def _mean_may_wait(X: np.ndarray, V: np.ndarray, mean: np.ndarray) -> bool:
    """Whether coordinates lose no digit if the mean is taken off after the product.

    As it is no larger than the deviations of rows, of which some are looked at. That costs as much
    as it saves where there are few entries, and rows are not to be copied for the product.
    """
    n, d = X.shape
    if n * d < _ENTRIES_IN_CACHE or X.dtype != V.dtype or not X.flags.forc:
        return False
    some = X[:: -(-n // _SOME)] - mean
    squares = float(np.median(np.einsum("ij,ij->i", some, some)))
    return float(mean @ mean) <= squares < np.inf


def scatter_product(
    X: Any, mean: np.ndarray, V: np.ndarray, weight: np.ndarray | None = None
) -> np.ndarray:
    """``V (X - mean)^T diag(weight) (X - mean)`` in float64, for V of shape (k, d).

    Two products with each block of rows; dense rows are centred first, so that a large mean does
    not cancel. O(n d k) time, O(d k) memory; sparse rows are not densified.
    """
    if isinstance(X, DeviceRows):
        root_w = None if weight is None else np.sqrt(weight)
        return times_scatter(X, V.T, mean, np.float64, root_w).T
    if sp.issparse(X):
        C = X @ V.T - mean @ V.T
        if weight is not None:
            C *= weight[:, None]
        return np.asarray((X.T @ C).T) - np.outer(C.sum(axis=0), mean)
    result = np.zeros(V.shape)
    n, d = X.shape
    step = min(max(n, 1), max(64, _ENTRIES_IN_CACHE // d))  # there may be no row
    product, space = product_with(V, step), np.empty((step, d))
    for start in range(0, n, step):
        rows = slice(start, min(start + step, n))
        Z = np.subtract(X[rows], mean, out=space[: rows.stop - start])
        C = product(Z)
        if weight is not None:
            C *= weight[rows, None]
        result += C.T @ Z
    return result


def columns_about(X: Any, mean: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Weighted sum of the squared differences from a mean, of each column."""
    if isinstance(X, DeviceRows):
        root_w = None if weight is None else np.sqrt(weight)
        return sums_and_squares(X, mean, np.float64, root_w)[1]
    w = np.ones(X.shape[0]) if weight is None else weight
    if sp.issparse(X):
        X, mean = centred_where_full(X, mean)
        squares = sp.csr_array(entries_once(X), dtype=np.float64).power(2)
        found = w @ squares - 2 * (w @ X) * mean + w.sum() * mean**2
        return np.asarray(found).clip(0)
    total = np.zeros(X.shape[1])
    for rows in row_slices(*X.shape):
        Z = X[rows] - mean
        total += w[rows] @ np.square(Z, out=Z)
    return total


def sum_of_rows(X: Any, weight: np.ndarray | None) -> np.ndarray:
    """Weighted sum of rows, in float64."""
    if isinstance(X, DeviceRows):
        root_w = None if weight is None else np.sqrt(weight)
        return sums_and_squares(X, np.zeros(X.shape[1]), np.float64, root_w)[0]
    total = X.sum(axis=0, dtype=np.float64) if weight is None else weight @ X
    return np.asarray(total).ravel()
