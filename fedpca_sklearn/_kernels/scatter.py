"""Scatter matrices of dense rows, and of what else is stacked, in chunks that stay in cache.

Only the lower triangle is kept: the symmetric product of BLAS takes half the work of another one,
and rows are not copied where they need neither a shift nor weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.linalg.blas import dsyr, dsyrk, ssyrk

from .device_rows import DeviceRows, in_memory, scatter_and_sums
from .linalg import eigh_top, top_of_scatter
from .rows import sums_in_groups
from .sizes import (
    row_slices,
    rows_of_scatter,
    rows_within,
    slices_of,
    threads_of_scatter,
)
from .threads import in_shares, usable_threads

# Rows from which the mean is guessed, taken evenly.
_SAMPLE = 128
# Multiplications of rows that threads share.
_WORK_OF_THREADS = 2**26
# A sum of squares may lose three bits to the mean that is taken off afterwards.
LOST = 8.0


class RowScatter(NamedTuple):
    """Lower triangle of the scatter about the mean, the mean, and the energy that was taken off.

    That of each column.
    The mean is ``shift + offset``, in two parts so that a large one keeps its digits.
    """

    G: np.ndarray
    shift: np.ndarray
    offset: np.ndarray
    lost: np.ndarray


def row_scatter(
    Y: Any,
    root_w: np.ndarray | None,
    n: float,
    center: bool,
    dtype: np.dtype,
) -> RowScatter:
    """Scatter of rows with weights ``root_w**2``, whose sum is n, by products in ``dtype``.

    One pass about a guess of the mean from a few rows. Where the guess is too far off for a column,
    a second pass goes about the mean.
    """
    d = Y.shape[1]
    shift, none = np.zeros(d), np.zeros(d)
    if not center:
        return RowScatter(_products(Y, root_w, none, none, dtype)[0], shift, none, none)
    shift = guessed_mean(Y).astype(dtype).astype(np.float64)
    G, offset = _products(Y, root_w, shift, none, dtype)
    offset /= n
    G, lost = dsyr(-n, offset, a=G, lower=1, overwrite_a=1), n * offset**2  # about the mean
    squares = G.diagonal()
    # also where neither is finite, as a second pass says no more
    if np.any(n * offset**2 > LOST * squares):
        offset = of_few_digits(offset, np.sqrt(squares.clip(0) / n))
        offset = offset.astype(dtype).astype(np.float64)
        G, rest = _products(Y, root_w, shift, offset, dtype)
        rest /= n
        G, lost = dsyr(-n, rest, a=G, lower=1, overwrite_a=1), n * rest**2
        offset += rest
    return RowScatter(G, shift, offset, lost)


def mean_in_two_parts(Y: Any, w: np.ndarray | None, n: float) -> tuple[np.ndarray, np.ndarray]:
    """A point near the mean of weighted rows, and the way from it to the mean."""
    shift, offset = guessed_mean(Y), np.zeros(Y.shape[1])
    for _ in range(1 if w is None else 2):  # nearly all weight may be far from the first one
        shift, sums = shift + offset, np.zeros(len(shift))
        for rows in row_slices(*Y.shape):
            Z = dense(Y[rows]) - shift
            sums += Z.sum(axis=0) if w is None else w[rows] @ Z
        offset = sums / n
    return shift, offset


def dense(rows: Any) -> np.ndarray:
    """Rows of a dense or sparse matrix as an array, row by row in memory.

    BLAS copies others anyway, and sums over them in another order.
    """
    if type(rows) is not np.ndarray:
        rows = rows.toarray() if sp.issparse(rows) else in_memory(rows)
    return np.ascontiguousarray(rows)


def add_rows(G: np.ndarray, M: np.ndarray, scale: np.ndarray | None = None) -> np.ndarray:
    """Add ``(scale M)^T (scale M)`` to a lower triangle, a few rows at a time."""
    for rows in slices_of(len(M), rows_within(M.shape[1], least=64)):
        part = M[rows].astype(np.float64, copy=False)
        if scale is not None:
            part = part * scale[rows, None]
        G = dsyrk(1.0, part.T, beta=1.0, c=G, lower=1, overwrite_c=1)
    return G


def leading_directions(
    G: np.ndarray, max_rank: int, count: Callable[[np.ndarray], int], **certificate: Any
) -> tuple[np.ndarray, np.ndarray] | None:
    """Directions and singular values from a lower triangle, which is destroyed.

    Columns without scatter get no loading. See `top_of_scatter` for the other arguments, and for
    when there is no result.
    """
    d, used = len(G), np.flatnonzero(G.diagonal())
    if 0 < len(used) < d:
        G = np.asfortranarray(G[np.ix_(used, used)])
    found = top_of_scatter(*eigh_top(G, max_rank, True), count, **certificate)
    if found is None or len(G) == d:
        return found
    V, s = found
    wide = np.zeros((len(s), d))
    wide[:, used] = V
    return wide, s


def guessed_mean(Y: Any) -> np.ndarray:
    """Near the mean: exactly that of a constant column, and zero where that is as good."""
    some = dense(Y[:: -(-Y.shape[0] // _SAMPLE)])
    first = some[0].astype(np.float64)
    some = some - first
    to_mean = np.add.reduce(some) / len(some)
    mean = first + to_mean
    some -= to_mean
    variances = np.einsum("ij,ij->j", some, some) / len(some)
    squares = mean**2
    if np.all(squares <= variances) and LOST * squares.sum() <= variances.sum():
        return np.zeros(len(mean))
    return of_few_digits(mean, np.sqrt(variances))


def of_few_digits(point: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    """A point within an eighth of a deviation, of as few binary digits as that takes.

    Counts, and other multiples of a power of two, have differences from it of few digits too, so
    that float32 holds sums of their products exactly, up to deviations of 128 such units. From
    another point they are rounded alike in all rows with the same value, 15 to 50 eps of the
    largest eigenvalue in all. Where there is no deviation it is the point itself.
    """
    with np.errstate(all="ignore"):  # what is not finite is not taken
        unit = np.ldexp(1.0, np.frexp(deviations)[1] - 3)
        near = np.rint(point / unit) * unit
    return np.where((deviations > 0) & np.isfinite(near), near, point)


def _products(
    Y: Any,
    root_w: np.ndarray | None,
    shift: np.ndarray,
    offset: np.ndarray,
    dtype: np.dtype,
) -> tuple[np.ndarray, np.ndarray]:
    """Lower triangle of ``Z^T Z``, and the weighted sum of ``Y - shift - offset``, whose rows with
    the roots of their weights are Z.

    Threads of Python share the rows of not too many columns.
    """
    if isinstance(Y, DeviceRows):
        return scatter_and_sums(Y, root_w, shift + offset, dtype)
    n, d = Y.shape
    many = n * d * d >= _WORK_OF_THREADS
    n_threads = threads_of_scatter(n, d, usable_threads()) if many else 1
    how = {"Y": Y, "root_w": root_w, "shift": shift, "offset": offset, "dtype": dtype}
    find = partial(_products_of, **how, alone=n_threads == 1)
    if n_threads == 1:
        return find(share=slice(0, n))
    (G, sums), *others = in_shares(n, n_threads, find)
    for more, more_sums in others:
        G += more
        sums += more_sums
    return G, sums


def _products_of(
    share: slice,
    Y: Any,
    root_w: np.ndarray | None,
    shift: np.ndarray,
    offset: np.ndarray,
    dtype: np.dtype,
    alone: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """The same of a share of the rows, ``alone`` or beside other threads.

    scipy's BLAS keeps other threads of Python from running, numpy's does not.
    """
    n, d = share.stop - share.start, Y.shape[1]
    exact, kind = dtype == np.float64, np.result_type(Y, dtype)
    twice = bool(offset.any())
    as_it_is = not shift.any() and not twice and root_w is None and Y.dtype == dtype
    step = min(n, rows_of_scatter(d, dtype.itemsize, alone))
    space = None if as_it_is else np.empty((step, d), dtype)
    G, sums = np.zeros((d, d), order="F"), np.zeros(d)
    product = G if alone else np.empty((d, d), dtype)
    shift, offset = shift.astype(kind, copy=False), offset.astype(kind, copy=False)
    ones, unit = np.ones((step, 1), dtype), 1.0
    if root_w is not None:  # in which sums of tiny weights do not underflow
        unit = math.ldexp(1.0, math.frexp(float(root_w[share].max()))[1])
    with np.errstate(over="ignore", invalid="ignore"):  # sums are looked at in the end
        for part in slices_of(n, step):
            rows = slice(share.start + part.start, share.start + part.stop)
            Z: Any = Y[rows]
            if space is None or sp.issparse(Z):
                Z = dense(Z)
            weights = roots = ones[: part.stop - part.start]
            if root_w is not None:
                roots = root_w[rows, None].astype(dtype)
                weights = (root_w[rows, None] / unit).astype(dtype)
            if space is not None:
                Z = np.subtract(Z, shift, out=space[: len(weights)], casting="same_kind")
                if twice:
                    Z -= offset.astype(dtype, copy=False)
                if root_w is not None:
                    Z *= roots
            sums += unit * (weights.T @ Z if exact else sums_in_groups(weights, Z))[0]
            if not alone:
                G += np.matmul(Z.T, Z, out=product).T  # in the order of G
            elif dtype == np.float32:
                G += ssyrk(1.0, Z.T, lower=1)
            else:
                G = dsyrk(1.0, Z.T, beta=1.0, c=G, lower=1, overwrite_c=1)
        return G, sums
