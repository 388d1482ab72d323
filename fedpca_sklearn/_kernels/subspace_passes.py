"""Leading directions of many dense rows from a few passes over them, by a block Krylov space.

The space starts from the leading directions of a sample of the rows and of what is known of the
past. Each pass multiplies it by the scatter matrix, which is never formed; Nystroem's approximation
from all products never exceeds the scatter matrix, so that the directions are those of a cut.
Centring is a rank-one term of the products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp

from . import linalg
from .device_rows import in_memory, sums_and_squares, times_scatter
from .linalg import flip_signs, orthonormal_columns, orthonormalised
from .rows import product_with
from .scatter import guessed_mean
from .sizes import rows_of_product, rows_within, slices_of, step_of_passes, vectors_of_passes
from .threads import in_shares
from .tolerances import GRAM_ROUNDING

# A product below this share of the largest adds nothing to the space.
_EXHAUSTED = 1e-13


def nystrom_factor(basis: np.ndarray, products: np.ndarray, off: float = 0.0) -> np.ndarray:
    """Rows F, of which ``F.T @ F`` is Nystroem's approximation.

    Parameters
    ----------
    basis, products : ndarray of shape (m, d)
        Orthonormal rows, and the same times the scatter matrix.
    off : float
        How far the products may be off by more than rounding errors.
    """
    H = basis @ products.T
    values, Y = np.linalg.eigh((H + H.T) / 2)
    least = GRAM_ROUNDING * max(float(values.max(initial=0.0)), np.finfo(float).tiny)
    known = values > max(least, off)
    return (Y[:, known] / np.sqrt(values[known])).T @ products


def nystrom(
    basis: np.ndarray, products: np.ndarray, off: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Directions of the approximation, and singular values: the roots of its eigenvalues."""
    F = nystrom_factor(basis, products, off)
    if not len(F):
        return F, np.zeros(0)
    lam, W = np.linalg.eigh(F @ F.T)
    found = linalg.top_of_scatter(lam[::-1], W[:, ::-1], len)
    if found is not None:
        W, s = found
        return (W / s[:, None]) @ F, s
    _, s, V = np.linalg.svd(F, full_matrices=False)
    return V, s


class ProductSpace:
    """A block Krylov space: directions, and their products with a scatter matrix.

    Parameters
    ----------
    start : ndarray of shape (k, d)
        Rows that span the first block; those before are kept as they are if they are orthonormal.

    Attributes
    ----------
    basis, products : ndarray of shape (m, d)
        All blocks so far.
    block : ndarray of shape (b, d)
        Orthonormal rows of the next block, whose product is wanted; none where the space is whole.
    n_products : int
        Number of blocks so far.
    """

    def __init__(self, start: np.ndarray):
        self.basis = self.products = np.empty((0, start.shape[1]))
        self.block = linalg.orthonormalised(start)
        self.n_products = 0

    def add(self, products: np.ndarray) -> None:
        """Take the product of the block, and find the next block."""
        self.basis = np.concatenate([self.basis, self.block])
        self.products = np.concatenate([self.products, products])
        self.n_products += 1
        rest = _orthogonal_to(self.basis, products)
        _, sizes, rows = np.linalg.svd(rest, full_matrices=False)
        largest = np.abs(self.products).max(initial=0.0)
        room = self.basis.shape[1] - len(self.basis)
        rows = rows[: min(room, int(np.sum(sizes > _EXHAUSTED * largest)))]
        self.block = linalg.orthonormalised(_orthogonal_to(self.basis, rows)) if len(rows) else rows


def _orthogonal_to(basis: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Rows less their part along a basis."""
    for _ in range(2):  # twice is enough
        rows = rows - (rows @ basis.T) @ basis
    return rows


Term: TypeAlias = Callable[[np.ndarray, np.ndarray], np.ndarray]

# Passes in which a space of vectors is multiplied by the scatter matrix.
PASSES = 2
# Entries of the sample that are in float64 at once.
_ENTRIES_OF_PART = 2**15
# Vectors at random among those of the start, for rows that the sample does not show.
_AT_RANDOM = 2
# A sum of squares may lose three bits to the mean that is taken off afterwards.
_LOST = 8.0


class RowsOfPasses:
    """Rows about a shift, whose products with vectors are added up some rows at a time.

    Parameters
    ----------
    Y : ndarray or CSR matrix of shape (n, d)
        Sparse rows are made dense some at a time, in each pass.
    root_w : ndarray of shape (n,) or None
        Roots of the weights, whose sum is ``n``.
    n : float
    center : bool
    dtype : dtype
        Of the products; they are added up in float64.
    n_threads : int, default=1
        Of Python, each of which goes over a share of the rows: the products with few vectors are
        too thin for the threads of BLAS.
    """

    def __init__(
        self,
        Y: np.ndarray,
        root_w: np.ndarray | None,
        n: float,
        center: bool,
        dtype: Any,
        n_threads: int = 1,
    ):
        self.Y, self.root_w, self.n, self.center = Y, root_w, n, center
        self.dtype = np.dtype(dtype)
        self.n_threads = n_threads
        d = Y.shape[1]
        self.shift = guessed_mean(Y) if center else np.zeros(d)
        self.offset, self.squares = np.zeros(d), np.zeros(d)

    def moments(self) -> None:
        """Set the offset of the mean from the shift, and sums of squares about the mean."""
        for _ in range(2):
            sums, squares = self._sums_and_squares()
            if not self.center:
                self.squares = squares
                return
            self.offset = sums / self.n
            lost = self.n * self.offset**2
            self.squares = (squares - lost).clip(0)
            if not np.any(lost > _LOST * self.squares):
                return
            self.shift, self.offset = self.shift + self.offset, np.zeros_like(sums)

    def scatter_times(self, Q: np.ndarray) -> np.ndarray:
        """Scatter matrix about the mean, times vectors, in float64."""
        B = Q.astype(self.dtype, copy=False)
        T = self._times_scatter(B)
        T -= np.outer(self.n * self.offset, self.offset @ Q)
        return T

    def sample_below(self, past: np.ndarray, step: int, unit: float) -> np.ndarray:
        """Other rows, and below them one in ``step`` of these about their mean, in a unit: float32.

        They are as heavy as all of them.
        """
        mean, some, n_past = self.shift + self.offset, _in_rows(self.Y[::step]), len(past)
        S = np.empty((n_past + len(some), len(mean)), np.float32)
        np.divide(past, unit, out=S[:n_past], casting="same_kind")
        weights = np.ones(len(some)) if self.root_w is None else self.root_w[::step]
        scale = (weights * (np.sqrt(step) / unit))[:, None]
        for at in slices_of(len(some), rows_within(len(mean), _ENTRIES_OF_PART)):
            np.multiply(some[at] - mean, scale[at], out=S[n_past:][at], casting="same_kind")
        return S

    def _sums_and_squares(self) -> np.ndarray:
        return self._added_up((2, len(self.shift)), _moments)

    def _times_scatter(self, B: np.ndarray) -> np.ndarray:
        times = product_with(np.ascontiguousarray(B.T), self.Y.shape[0])
        return self._added_up(B.T.shape, lambda Z, _: times(Z).T @ Z).T

    def _added_up(self, shape: tuple[int, int], term: Term) -> np.ndarray:
        """Sum of what a function makes of some rows and of their weights' roots, over all rows."""

        def of_share(share: slice) -> np.ndarray:
            total = np.zeros(shape)
            with np.errstate(over="ignore", invalid="ignore"):  # sums are looked at in the end
                for Z, weights in self._chunks(share):
                    total += term(Z, weights)
            return total

        first, *others = in_shares(self.Y.shape[0], self.n_threads, of_share)
        return sum(others, start=first)

    def _chunks(self, share: slice) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Rows less the shift, times the roots of their weights, and those roots."""
        n, d = share.stop - share.start, self.Y.shape[1]
        step = min(n, rows_of_product(d, self.dtype.itemsize))
        moved = bool(self.shift.any())
        as_it_is = not moved and self.root_w is None and self.Y.dtype == self.dtype
        space = None if as_it_is else np.empty((step, d), self.dtype)
        shift = self.shift.astype(np.result_type(self.Y, self.dtype), copy=False)
        ones = np.ones(step, self.dtype)
        for part in slices_of(n, step):
            rows = slice(share.start + part.start, share.start + part.stop)
            Z: Any = _in_rows(self.Y[rows])
            weights = ones[: len(Z)]
            if space is not None:
                Z = np.subtract(Z, shift, out=space[: len(Z)], casting="same_kind")
                if self.root_w is not None:
                    weights = self.root_w[rows].astype(self.dtype, copy=False)
                    Z *= weights[:, None]
            yield Z, weights


class DeviceRowsOfPasses(RowsOfPasses):
    """The same where the rows are on a device."""

    Y: Any

    def _sums_and_squares(self) -> np.ndarray:
        return sums_and_squares(self.Y, self.shift, self.dtype, self.root_w)

    def _times_scatter(self, B: np.ndarray) -> np.ndarray:
        return times_scatter(self.Y, B, self.shift, self.dtype, self.root_w)


def _in_rows(rows: Any) -> Any:
    """Rows as an array in memory; dense ones there as they are."""
    return rows.toarray() if sp.issparse(rows) else in_memory(rows)


def _moments(Z: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.stack([weights @ Z, np.einsum("ij,ij->j", Z, Z)])


def leading_by_passes(
    rows: RowsOfPasses, past: np.ndarray, max_rank: int, n_certain: int = 1
) -> tuple[np.ndarray, np.ndarray] | None:
    """Directions and singular values of rows and of scaled directions of the past below them.

    The first ``n_certain`` of the ``max_rank`` directions are to be close to the best.

    None where the least of them is within rounding errors of the largest, or of numbers so small
    that their products underflow.
    """
    d = past.shape[1]
    Q = _start(rows, past, max_rank, vectors_of_passes(max_rank, n_certain))
    basis, products = np.empty((d, 0)), np.empty((d, 0))
    for turn in range(PASSES):
        if turn:
            Q = _orthonormal_to(basis, products)
        T = rows.scatter_times(Q) + past.T @ (past @ Q)
        basis, products = np.hstack([basis, Q]), np.hstack([products, T])
    off = 4 * basis.shape[1] * np.finfo(rows.dtype).eps * np.linalg.norm(basis.T @ products, 2)
    # products that are too small for all their digits lose so much, of any sign
    least = float(np.finfo(rows.dtype).tiny) * float(np.finfo(rows.dtype).eps)
    off += least * np.sqrt(rows.Y.shape[0] * basis.size)
    V, s = (found[:max_rank] for found in nystrom(basis.T, products.T, off))
    if len(s) < max_rank:
        return None
    return flip_signs(np.ascontiguousarray(V)), s


def _start(rows: RowsOfPasses, past: np.ndarray, max_rank: int, b: int) -> np.ndarray:
    """About b leading directions of a sample and of the past, which passes make better."""
    largest = max(rows.squares.max(), np.einsum("ij,ij->j", past, past).max(initial=0))
    unit = np.sqrt(largest) or 1.0
    step = step_of_passes(rows.Y.shape[0], past.shape[1], max_rank)
    S = rows.sample_below(past, step, unit)
    W = linalg.eigh_top(S @ S.T, b - _AT_RANDOM)[1][:, : b - _AT_RANDOM]
    others = np.random.default_rng(0).standard_normal((past.shape[1], _AT_RANDOM))
    return orthonormal_columns(np.hstack([(S.T @ W).astype(np.float64), others]))


def _orthonormal_to(basis: np.ndarray, M: np.ndarray) -> np.ndarray:
    """Orthonormal vectors of the span of columns, orthogonal to those of a basis."""
    M = orthonormal_columns(M - basis @ (basis.T @ M))
    return orthonormalised((M - basis @ (basis.T @ M)).T).T  # twice is enough
