"""Update of a subspace summary with a block of rows.

Everything here works on a *stack*

    M = [ diag(s) V ;  sqrt(w) (Y - block mean) ;  mean correction ]

whose row space and singular values are those of all (weighted, centred) rows seen so far: ``V``
and ``s`` summarise the past, ``Y`` is a block of new rows, and the last row accounts for the
difference between the two means. The top right singular vectors of ``M`` are the next summary.

Four routes lead there. Gram: eigenvectors of the small side of ``M M^T`` or ``M^T M``; everything
large is a matrix product, but the condition number is squared, so the result carries a
certificate (orthonormality of the new basis, or the spread of the eigenvalues). QR: Householder
QR and an SVD of the triangle, backward stable, taken where the certificate fails. Passes: for
thousands of dense rows in memory, a block Krylov space of the rows (`subspace_passes`).
Krylov: for large sparse blocks, where products with ``Y`` are cheap and the Gram matrix is not
(`_sparse_update`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from scipy.linalg.blas import dsyr

from .device_rows import DeviceStack, sums_and_squares
from .linalg import (
    eigh_top,
    flip_signs,
    least_certain,
    numerical_rank,
    orthonormalised,
    orthonormality_error,
    top_right_singular,
    triangle,
)
from .rows import Centring
from .scatter import add_rows, dense, leading_directions, mean_in_two_parts, row_scatter
from .sizes import columns_at_once, rows_of_qr, slices_of
from .subspace_passes import DeviceRowsOfPasses, RowsOfPasses, leading_by_passes
from .threads import computed_once, single_blas_thread, usable_threads
from .tolerances import ORTHONORMALITY_TOL
from .too_large import too_large

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
# Rows of a sample for each of its eigenvalues, and further ones; and how many times as many
# multiplications as theirs all rows take.
_ROWS_FOR_EACH, _ROWS_AND_MORE, _SHARE_OF_SAMPLE = 4, 32, 256
# Eigenvalues of a sample from which on they are taken to go on as a power law.
_FEWEST = 4


def precisions(Y: Any, dtype: np.dtype, count: int, s: np.ndarray) -> list[np.dtype]:
    """Those in which the scatter matrix of rows may be made for so many directions.

    In float32 unless that would most likely be in vain, by what the singular values of the past or
    else some of the rows say of the eigenvalues that must be certain. Nothing is known of these
    where ``count`` is zero, or the past has fewer.
    """
    if dtype == _FLOAT64:
        return [_FLOAT64]
    known, lam = count, s**2
    if count and not len(s):
        m = _rows_of_sample(Y.shape, _ROWS_FOR_EACH * count + _ROWS_AND_MORE)
        known = min(count, (m - _ROWS_AND_MORE) // _ROWS_FOR_EACH)
        if known >= min(count, _FEWEST):
            lam = _eigenvalues_of_sample(Y, m)
    if not 0 < known <= len(lam):
        return [_FLOAT32, _FLOAT64]
    least = lam[known - 1]
    if least > 0 and known < count:
        fall = math.log2(lam[known // 2 - 1] / least)
        least *= (known / count) ** fall
    certain = least > least_certain(lam[0], dtype=_FLOAT32)
    return [_FLOAT32, _FLOAT64] if certain else [_FLOAT64]


def _rows_of_sample(shape: tuple[int, int], most: int) -> int:
    """The most rows of a sample which do not take long beside the scatter of all rows."""
    n, d = shape
    m = int((n * d * d / _SHARE_OF_SAMPLE) ** (1 / 3))
    return min(n, most, m if m < d else most)


def _eigenvalues_of_sample(Y: Any, m: int) -> np.ndarray:
    """Those of the scatter of about so many rows, decreasing; none where it is not finite."""
    some = dense(Y[:: Y.shape[0] // m]).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # of which others tell
        some -= some.mean(axis=0)  # exactly zero of few float32 that do not vary
        G = some.T @ some if len(some) > some.shape[1] else some @ some.T
    return np.linalg.eigvalsh(G)[::-1] if np.isfinite(G.trace()) else np.empty(0)


# Rows of passes for which a thread of their own pays.
_ROWS_OF_THREAD = 1024
# Share of a block's weight below which a past has hardly any.
_LITTLE = 0.01
# Chooses how many directions to keep from the singular values and the scatter.
RankChoice = Callable[[np.ndarray, float], int]
Found: TypeAlias = tuple[np.ndarray, np.ndarray]


def squares_of_columns(Y: np.ndarray) -> np.ndarray:
    """Sum of the squares in each column, added up in float64."""
    return np.einsum("ij,ij->j", Y, Y, dtype=np.float64)


def count_kept(s: np.ndarray, max_rank: int, choose_rank: RankChoice | None, scatter: float) -> int:
    p = min(len(s), max_rank)
    return p if choose_rank is None else min(p, choose_rank(s, scatter))


class Block:
    """Base of the blocks: past summary, new rows, weights and means.

    ``shift`` is a vector near the block's mean, the old mean where there is one; ``offset`` is the
    block's mean less it; ``column_scatter`` is what the block adds to the scatter of each column,
    known after `reduce`.

    Parameters
    ----------
    V, s : ndarray of shape (k, d) and (k,)
        Summary of the past, after forgetting.
    mean, n : ndarray of shape (d,), float
        Its mean and its effective count.
    Y : ndarray or CSR matrix of shape (m, d)
    w : ndarray of shape (m,) or None
        Squared weights of the rows.
    center : bool
    low : ndarray of shape (d,) or 0
        What the old mean is more than ``mean``, of digits below those of a float.
    """

    def __init__(self, V, s, mean, n, Y, w, center, low=0.0):
        self.V, self.s, self.mean, self.n, self.Y, self.w = V, s, mean, n, Y, w
        self.center, self.low = center, low
        self.k, self.m, self.d = len(s), Y.shape[0], Y.shape[1]
        self.n_block = float(self.m) if w is None else float(w.sum())
        self.n_total = n + self.n_block
        self.root_w: np.ndarray | None = None if w is None else np.sqrt(w)
        self.has_correction = center and n > 0
        self.n_rows = self.k + self.m + self.has_correction
        # n_a n_b / (n_a + n_b) ||mean_a - mean_b||^2, ordered so as not to overflow
        self.correction_scale = math.sqrt((n / self.n_total) * self.n_block)

    shift: np.ndarray
    offset: np.ndarray
    column_scatter: np.ndarray

    @property
    def scatter(self) -> float:
        """What the block adds to the scatter."""
        return float(self.column_scatter.sum())

    @property
    def gap(self) -> np.ndarray:
        """The block's mean less the old one."""
        return self.offset - self.low

    @property
    def new_mean(self) -> tuple[np.ndarray, np.ndarray | float]:
        """Mean of all rows, and what it is more than that, of digits below those of a float."""
        if not self.center:  # without a second array of zeros
            return self.mean, 0.0
        rest = self.low + (self.n_block / self.n_total) * (self.offset - self.low)
        mean = self.shift + rest
        return mean, (self.shift - mean) + rest

    def _leading(
        self,
        G: np.ndarray,
        max_rank: int,
        choose_rank: RankChoice | None,
        past_scatter: float,
        **certificate: Any,
    ) -> Found | None:
        """Directions of what was before and of a block's scatter matrix, which is destroyed.

        None where the certificate of `leading_directions` fails.
        """
        if self.k:
            G = add_rows(G, self.V, self.s)
        scatter = past_scatter + self.scatter
        found = leading_directions(
            G,
            self.d if choose_rank else max_rank,
            lambda s: count_kept(s, max_rank, choose_rank, scatter),
            **certificate,
        )
        if found is None:
            return None
        V, s = found
        return flip_signs(np.ascontiguousarray(V, dtype=self.V.dtype)), s


class DenseBlock(Block):
    """A dense block; columns are visited in chunks, so its centred copy is never whole.

    Sparse rows are made dense some at a time, where they are at least as many as columns.
    """

    def __init__(self, V, s, mean, n, Y, w, center, low=0.0):
        super().__init__(V, s, mean, n, Y, w, center, low)
        if not center:
            self.shift = np.zeros(self.d)
        else:
            self.shift = mean if n > 0 else dense(Y[:1])[0].astype(np.float64)
        self.offset = np.zeros(self.d)
        self.column_scatter = np.zeros(self.d)

    @computed_once
    def _centring(self) -> Centring:
        # a past of hardly any weight does not show in the scatter how far off its mean is
        unseen = self.w is not None or 0 < self.n < _LITTLE * self.n_block
        return Centring(self.shift, self.w, self.n_block, unseen)

    _passes = RowsOfPasses

    def _fill(self, M: np.ndarray, cols: slice, first_visit: bool) -> np.ndarray:
        """Write the unscaled stack [V; sqrt(w)(Y - mean); correction] of some columns into M."""
        c = cols.stop - cols.start
        M = M[:, :c]
        M[: self.k] = self.V[:, cols]
        Z = M[self.k : self.k + self.m]
        if self.center:
            if first_visit:
                self.offset[cols] = self._centring.find(self.Y, cols, self.shift, Z)
            else:
                self._centring.write(self.Y, cols, Z)
        else:
            Z[...] = self.Y[:, cols]
        if self.root_w is not None:
            Z *= self.root_w[:, None].astype(M.dtype)
        if self.has_correction:
            M[-1] = self.correction_scale * self.gap[cols]
        return M

    def _chunks(self, n_columns: int) -> list[slice]:
        return list(slices_of(self.d, n_columns))

    def reduce(
        self,
        max_rank: int,
        choose_rank: RankChoice | None = None,
        past_scatter: float = 0.0,
        solver: str = "auto",
        n_certain: int | None = None,
    ) -> Found:
        """Return ``(V, s)`` of the updated summary and set ``column_scatter``.

        Parameters
        ----------
        max_rank : int
            Bound on the directions kept.
        choose_rank : callable, default=None
            Chooses how many from the singular values and the scatter.
        past_scatter : float
        solver : {"auto", "gram", "qr"}
        n_certain : int, default=None
            The first so many directions matter, the others are reserves. None: all matter.
        """
        count = min(n_certain or max_rank, max_rank, self.d)
        if self.n_rows < self.d or choose_rank is not None:  # unknown is how many matter
            count = 0
        tried = precisions(self.Y, self.V.dtype, count, self.s) if solver != "qr" else []
        for dtype in tried:
            forced = solver == "gram" and dtype == np.float64
            if self.n_rows >= self.d:
                result = self._by_scatter(
                    max_rank, choose_rank, past_scatter, dtype, forced, n_certain
                )
            else:
                result = self._by_gram(
                    max_rank, choose_rank, past_scatter, dtype, forced, n_certain
                )
            if result is not None:
                return result
        return self._by_qr(max_rank, choose_rank, past_scatter)

    def _by_gram(self, max_rank, choose_rank, past_scatter, dtype, forced, n_certain):
        k, R = self.k, self.n_rows
        G, turned = self._gram(dtype)
        squares = float(self.scatter) + float(G.trace())
        if not math.isfinite(squares):  # products in float32 overflow earlier
            if dtype == np.float32:
                return None
            raise too_large("sum of squares", weight=self.w)
        G[k:, :k] *= self.s
        G[:k, k:] = G[k:, :k].T
        G[np.arange(k), np.arange(k)] = self.s**2
        lam, W = eigh_top(G, R if choose_rank else max_rank)
        p = count_kept(np.sqrt(lam.clip(0)), max_rank, choose_rank, past_scatter + self.scatter)
        p = min(p, R - self.center)  # centring takes one dimension
        tol = ORTHONORMALITY_TOL[self.V.dtype]
        floor = R * np.finfo(dtype).eps * max(lam[0], 0)
        above = min(p, int(np.sum(lam > floor)))
        reserves = dtype == np.float64 and n_certain is not None and above >= n_certain
        if above < p and not (forced or reserves):
            return None
        p = above
        s = np.sqrt(lam[:p])
        W = W[:, :p] / s
        W[:k] *= self.s[:, None]
        V = turned(np.ascontiguousarray(W.T, dtype=dtype))
        if not orthonormality_error(V) <= tol:
            # the first may be certain, and the others hold a little of them, which is taken off
            if not forced and (n_certain is None or not orthonormality_error(V[:n_certain]) <= tol):
                return None
            V = orthonormalised(V)
        return flip_signs(V).astype(self.V.dtype, copy=False), s

    def _gram(self, dtype: np.dtype) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
        """Products of the rows of the unscaled stack, but for those of V, and how to turn it."""
        k, R = self.k, self.n_rows
        chunks = self._chunks(columns_at_once(R, dtype.itemsize))
        M = np.empty((R, chunks[0].stop), dtype=dtype)
        G = np.zeros((R, R))
        for cols in chunks:
            part = self._fill(M, cols, True)
            new = part[k:]
            G[k:, k:] += new @ new.T
            if k:
                G[k:, :k] += new @ part[:k].T
            self.column_scatter[cols] = squares_of_columns(new)

        def turned(W: np.ndarray) -> np.ndarray:
            V = np.empty((len(W), self.d), dtype=dtype)
            for cols in chunks:
                part = M if len(chunks) == 1 else self._fill(M, cols, False)
                np.matmul(W, part, out=V[:, cols])
            return V

        return G, turned

    def by_passes(self, max_rank, n_certain=1):
        """Return ``(V, s)`` from a few passes over many rows, None where that is not certain.

        Where BLAS has several threads, Python has as many, and BLAS one in each.
        """
        n_threads = max(min(usable_threads(), self.m // _ROWS_OF_THREAD), 1)
        kind = (self.n_block, self.center, self.V.dtype)
        rows = self._passes(self.Y, self.root_w, *kind, n_threads=n_threads)
        with single_blas_thread():
            rows.moments()
            self._centre(rows.shift, rows.offset)
            self.column_scatter = rows.squares
            past = self.V * self.s[:, None]
            if self.has_correction:
                correction = self.correction_scale * self.gap
                self.column_scatter = self.column_scatter + correction**2
                past = np.concatenate([past, correction[None]])
            if not math.isfinite(self.scatter):
                return None
            found = leading_by_passes(rows, past, max_rank, n_certain)
        return None if found is None else (found[0].astype(self.V.dtype, copy=False), found[1])

    def stack(self) -> np.ndarray:
        """The whole scaled stack, whose longer side is contiguous, as LAPACK's QR wants it."""
        n, d = self.n_rows, self.d
        M = self._fill(np.empty((n, d), order="F" if n >= d else "C"), slice(0, d), True)
        self.column_scatter = squares_of_columns(M[self.k :])
        if not math.isfinite(self.scatter):
            raise too_large("sum of squares", weight=self.w)
        M[: self.k] *= self.s[:, None]
        return M

    def few_rows(self) -> np.ndarray:
        """The stack of fewer rows than columns, of which centring takes one.

        Householder's reflection of the roots of the weights to the first axis turns rows about
        their mean so that the first one is zero. The last one of the stack takes its place.
        """
        M = self.stack()
        if not self.center:
            return M
        roots = np.ones(self.m) if self.root_w is None else self.root_w
        roots = roots / np.linalg.norm(roots)
        first, others = M[self.k], M[self.k + 1 : self.k + self.m]
        others -= np.outer(roots[1:] / (1 + roots[0]), first)
        M[self.k] = M[-1]
        return M[:-1]

    def _by_scatter(self, max_rank, choose_rank, past_scatter, dtype, forced, n_certain):
        """Eigenvectors of the d x d scatter matrix of the stack, for which no row is copied."""
        found = self.scatter_of_new(dtype)
        if found is None:
            if dtype == np.float32:
                return None
            raise too_large("sum of squares", weight=self.w)
        G, lost = found
        # underflow may take off as much as the roundings of another energy
        gone = self.m * self.d * float(np.finfo(dtype).tiny)
        certificate = {"forced": forced, "n_certain": n_certain, "lost": max(lost.sum(), gone)}
        return self._leading(G, max_rank, choose_rank, past_scatter, dtype=dtype, **certificate)

    def scatter_of_new(self, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray] | None:
        """Lower triangle of the scatter of all but V, and the energy lost by column.

        None where it is not finite. Products are in ``dtype``.
        """
        rows = row_scatter(self.Y, self.root_w, self.n_block, self.center, dtype)
        self._centre(rows.shift, rows.offset)
        G = rows.G
        self.column_scatter = G.diagonal().clip(0)
        if self.has_correction:
            correction = self.correction_scale * self.gap
            self.column_scatter += correction**2
            G = dsyr(1.0, correction, a=G, lower=1, overwrite_a=1)
        return (G, rows.lost) if math.isfinite(G.trace()) else None

    def _centre(self, shift: np.ndarray, offset: np.ndarray) -> None:
        """Set the block's mean, which is the sum of the two."""
        if self.n > 0 and self.center:
            self.offset = (shift - self.shift) + offset
        else:
            self.shift, self.offset = shift, offset

    def _by_qr(self, max_rank, choose_rank, past_scatter):
        whole = self.n_rows <= rows_of_qr(self.d, self.k) and not sp.issparse(self.Y)
        M = self.stack() if whole else self._triangle()
        scatter = past_scatter + self.scatter

        def count(s: np.ndarray) -> int:
            return min(count_kept(s, max_rank, choose_rank, scatter), numerical_rank(s))

        V, s = top_right_singular(M, count)
        return flip_signs(V.astype(self.V.dtype, copy=False)), s

    def _triangle(self) -> np.ndarray:
        """R factor of the stack, some rows at a time."""
        if self.center:
            self._centre(*mean_in_two_parts(self.Y, self.w, self.n_block))
        self.column_scatter = np.zeros(self.d)
        R = triangle(np.zeros((0, self.d)), self.V * self.s[:, None])
        for rows in slices_of(self.m, rows_of_qr(self.d, self.k)):
            Z = np.subtract(dense(self.Y[rows]), self.shift, dtype=np.float64)
            Z -= self.offset
            if self.root_w is not None:
                Z *= self.root_w[rows, None]
            self.column_scatter += squares_of_columns(Z)
            R = triangle(R, Z)
        if self.has_correction:
            correction = self.correction_scale * self.gap
            self.column_scatter += correction**2
            R = triangle(R, correction[None])
        if not math.isfinite(self.scatter):
            raise too_large("sum of squares", weight=self.w)
        return R


class DeviceBlock(DenseBlock):
    """A dense block on a device, where its products are made; the rest is done at home."""

    _passes = DeviceRowsOfPasses

    def _gram(self, dtype):
        k, centre, rest = self.k, np.zeros(self.d), np.zeros(self.d)
        if self.center:
            # what is subtracted first
            centre = self.shift.astype(dtype).astype(np.float64)
            sums, _ = sums_and_squares(self.Y, centre, dtype, self.root_w)
            rest = sums / self.n_block
            self.offset = (centre - self.shift) + rest
        correction = self.correction_scale * self.gap if self.has_correction else None
        stack = DeviceStack(self.V, self.Y, centre, rest, self.root_w, correction, dtype)
        self.column_scatter = stack.squares()
        G = np.zeros((self.n_rows, self.n_rows))
        G[k:, k:], G[k:, :k] = stack.gram()
        return G, stack.turned

    def _by_qr(self, max_rank, choose_rank, past_scatter):
        self.Y = self.Y.in_numpy()
        return super()._by_qr(max_rank, choose_rank, past_scatter)
