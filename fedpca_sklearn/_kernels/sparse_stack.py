"""Update of a subspace summary with a block of sparse rows, by products with them."""

from __future__ import annotations

import math

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from scipy.linalg.blas import dsyr
from sklearn.utils.extmath import safe_sparse_dot

from .linalg import block_krylov, eigh_top, flip_signs, numerical_rank, orthonormality_error
from .rows import entries_once
from .sizes import MAX_EXACT_DIMENSION, row_slices
from .stack import Block, DenseBlock, count_kept
from .threads import single_blas_thread
from .tolerances import ORTHONORMALITY_TOL
from .too_large import too_large

# Stored entries whose products with each other are formed at once.
_STORED_AT_ONCE = 2**19
# Products read long indices more slowly, and take as many bytes for them as for the entries.
_MOST_INT32 = np.iinfo(np.int32).max


class SparseBlock(Block):
    """A CSR block; products only, centring is a rank-one correction, nothing is densified.

    Work inside the block is on its *active* columns, those with a stored entry. A column without an
    implicit zero is centred in its stored entries, which keeps the pattern; any other column has a
    variance of at least mean^2 / m, so that nothing cancels.
    """

    def __init__(self, V, s, mean, n, Y, w, center, low=0.0):
        super().__init__(V, s, mean, n, Y, w, center, low)
        self.rows = Y = entries_once(Y)
        narrow = np.int32 if max(Y.nnz, *Y.shape) <= _MOST_INT32 else np.int64
        indices, indptr = (i.astype(narrow, copy=False) for i in (Y.indices, Y.indptr))
        counts = np.bincount(indices, minlength=self.d)
        self.active = np.flatnonzero(counts)
        if len(self.active) < self.d:
            number = np.empty(self.d, dtype=indices.dtype)
            number[self.active] = np.arange(len(self.active))
            indices, counts = number[indices], counts[self.active]
        full = counts == self.m
        data = Y.data.astype(np.float64, copy=w is not None or full.any())
        shape = (self.m, len(self.active))
        self.Y = Y = sp.csr_array((data, indices, indptr), shape=shape)
        rows = np.ones(self.m) if w is None else w
        root = None if self.root_w is None else np.repeat(self.root_w, np.diff(Y.indptr))
        self.ones: np.ndarray = rows if self.root_w is None else self.root_w
        self.local_mean = np.zeros(len(self.active))
        self.shift, self.offset = mean, np.zeros(self.d)
        if center:
            block_mean = Y.T @ rows / self.n_block
            self.local_mean = block_mean.copy()
            if full.any():
                at = full[indices]
                # two steps, because the first mean is only good to eps * |mean|
                data[at] -= block_mean[indices[at]]
                rest = Y.T @ rows / self.n_block
                block_mean[full] += rest[full]
                self.local_mean[full] = rest[full]
            self.offset[self.active] = block_mean
            self.offset -= mean
        if w is not None:
            data *= root
        self.column_scatter = np.zeros(self.d)
        self.column_scatter[self.active] = self._squares(data, indices, counts, root)
        self.correction, self.correction_elsewhere = None, 0.0
        if self.has_correction:
            self.correction = self.correction_scale * self.gap
            self.correction_here = self.correction[self.active]
            self.column_scatter += self.correction**2
            total = float(self.correction @ self.correction)
            self.correction_elsewhere = total - float(self.correction_here @ self.correction_here)
        if not math.isfinite(self.scatter):
            raise too_large("sum of squares", weight=w)

    def _squares(self, data, indices, counts, root) -> np.ndarray:
        """Sum of squares of each active column about its mean; ``data`` are stored entries."""
        n_active = len(self.active)
        squares = np.bincount(indices, weights=data**2, minlength=n_active).astype(np.float64)
        of_mean = self.n_block * self.local_mean**2
        cancels = of_mean > squares / 2
        squares -= of_mean
        if cancels.any():  # there: deviations of what is stored, and of the implicit zeros
            at = np.flatnonzero(cancels[indices])
            columns = indices[at]
            deviations, stored = self.local_mean[columns], counts
            if root is not None:
                deviations *= root[at]
                stored = np.bincount(columns, weights=root[at] ** 2, minlength=n_active)
            np.subtract(data[at], deviations, out=deviations)
            about = np.bincount(columns, weights=deviations**2, minlength=n_active)
            about += (self.n_block - stored) * self.local_mean**2
            squares[cancels] = about[cancels]
        return squares

    def times(self, B: np.ndarray) -> np.ndarray:
        """Centred block times a matrix with a row for each active column."""
        return self.Y @ B - np.outer(self.ones, self.local_mean @ B)

    def transposed_times(self, A: np.ndarray) -> np.ndarray:
        """Transpose of the centred block times an m x p matrix, a row for each active column."""
        P = self.Y.T @ A
        P -= np.outer(self.local_mean, self.ones @ A)
        return P

    def new_rows_times(self, B: np.ndarray) -> np.ndarray:
        """New rows (centred block and correction) times a d x p matrix."""
        P = self.times(B[self.active])
        if self.correction is None:
            return P
        return np.concatenate([P, (self.correction @ B)[None]])

    def reduce(self, max_rank, choose_rank=None, past_scatter=0.0, solver="auto", n_certain=None):
        """Return ``(V, s)``; see `DenseBlock.reduce`. ``solver`` is ignored."""
        k, R, m = self.k, self.n_rows, self.m
        if self.d <= R and max_rank == self.d <= MAX_EXACT_DIMENSION:
            return self._by_qr(max_rank, choose_rank, past_scatter)
        Vt = np.ascontiguousarray(self.V.T, dtype=np.float64)
        limit = min(R, self.d)
        p = min(max_rank, limit)
        first = p if n_certain is None else min(n_certain, p)
        many = choose_rank is None and R > 512 and 4 * p < limit
        if many and len(self.active) <= R:
            return self._by_krylov_of_columns(Vt, p, first)
        cross = self.new_rows_times(Vt) * self.s if k else np.zeros((R - k, 0))
        if many:
            lam, W = self._by_krylov(cross, p, first)
        else:
            G = np.empty((R, R))
            G[:k, :k] = np.diag(self.s**2)
            G[k:, :k] = cross
            G[:k, k:] = cross.T
            G[k:, k:] = self._gram()
            lam, W = eigh_top(G, R if choose_rank else p)
            p = count_kept(np.sqrt(lam.clip(0)), p, choose_rank, past_scatter + self.scatter)
        # what lies below is not resolved by a Gram matrix; a sparse block has no better route
        floor = R * np.finfo(np.float64).eps * max(lam[0], 0)
        p = min(p, int(np.sum(lam > floor)))
        s = np.sqrt(lam[:p])
        W = W[:, :p] / s
        new = self.transposed_times(np.ascontiguousarray(W[k : k + m]))
        if len(self.active) < self.d:
            here, new = new, np.zeros((self.d, p))
            new[self.active] = here
        if k:
            new += Vt @ (W[:k] * self.s[:, None])
        if self.correction is not None:
            new += np.outer(self.correction, W[-1])
        V = new.T
        if not orthonormality_error(V) <= ORTHONORMALITY_TOL[np.dtype(np.float64)]:
            V, s = self._refine(V, Vt)
        return flip_signs(V.astype(self.V.dtype, copy=False)), s

    def scatter_of_new(self, dtype):
        """See `DenseBlock.scatter_of_new`; always in float64."""
        G, mu = self._scatter_matrix(), self.local_mean
        if self.correction is not None:
            G = dsyr(1.0, self.correction, a=G, lower=1, overwrite_a=1)
        np.fill_diagonal(G, self.column_scatter)  # which lost nothing to the means
        lost = np.zeros(self.d)
        lost[self.active] = self.n_block * mu**2
        return G, lost

    def _scatter_matrix(self) -> np.ndarray:
        """Lower triangle of the scatter matrix of the block, in Fortran's order."""
        n_active, stored = len(self.active), max(1, -(-self.Y.nnz // self.m))
        G = np.zeros((n_active, n_active), order="F")
        for rows in row_slices(self.m, stored, _STORED_AT_ONCE):
            Y = self.Y[rows] if rows.stop - rows.start < self.m else self.Y
            G += safe_sparse_dot(Y.T.tocsr(), Y, dense_output=True)
        if n_active < self.d:
            few, G = G, np.zeros((self.d, self.d), order="F")
            G[np.ix_(self.active, self.active)] = few
        mean = np.zeros(self.d)
        mean[self.active] = self.local_mean
        return dsyr(-self.n_block, mean, a=G, lower=1, overwrite_a=1)

    def _by_qr(self, max_rank, choose_rank, past_scatter):
        """Householder's QR of the rows, some of which are made dense at a time."""
        fields = (self.V, self.s, self.mean, self.n, self.rows, self.w, self.center, self.low)
        return DenseBlock(*fields).reduce(max_rank, choose_rank, past_scatter, solver="qr")

    def _gram(self) -> np.ndarray:
        """Gram matrix of the new rows."""
        Y, mu, one, m = self.Y, self.local_mean, self.ones, self.m
        G = np.empty((self.n_rows - self.k,) * 2)
        P = safe_sparse_dot(Y, Y.T, dense_output=True)
        a = Y @ mu
        P -= np.outer(a, one)
        P -= np.outer(one, a - (mu @ mu) * one)
        G[:m, :m] = P
        if self.correction is not None:
            G[m, :m] = G[:m, m] = self.times(self.correction_here[:, None]).ravel()
            G[m, m] = self.correction @ self.correction
        return G

    def _by_krylov(
        self, cross: np.ndarray, p: int, n_certain: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Leading eigenpairs of the stack's Gram matrix, which is never formed."""
        k, m = self.k, self.m
        past = self.s[:, None] ** 2

        def apply(A):
            B = np.empty_like(A)
            B[:k] = past * A[:k] + cross.T @ A[k:]
            B[k:] = cross @ A[:k]
            T = self.transposed_times(np.ascontiguousarray(A[k : k + m]))
            if self.correction is not None:
                T += np.outer(self.correction_here, A[-1])
                B[-1] += self.correction_here @ T + self.correction_elsewhere * A[-1]
            B[k : k + m] += self.times(T)
            return B

        # Ritz pairs give an orthonormal basis at any tolerance; their energy converges as tol^2
        with single_blas_thread():  # sparse and thin products; BLAS threads would only spin
            return block_krylov(apply, self.n_rows, p, n_certain, tol=1e-2)

    def _by_krylov_of_columns(self, Vt: np.ndarray, p: int, n_certain: int):
        """Directions from products with the scatter matrix, where columns are fewer than rows."""
        past = self.s[:, None] ** 2

        def apply(B):
            T = np.zeros_like(B)
            T[self.active] = self.transposed_times(self.times(B[self.active]))
            if self.correction is not None:
                T += np.outer(self.correction, self.correction @ B)
            return T + Vt @ (past * (Vt.T @ B))

        with single_blas_thread():
            lam, W = block_krylov(apply, self.d, p, n_certain, tol=1e-3)
        floor = self.n_rows * np.finfo(np.float64).eps * max(lam[0], 0)
        p = min(p, int(np.sum(lam > floor)))
        V, s = W[:, :p].T, np.sqrt(lam[:p])
        if p and lam[p - 1] * ORTHONORMALITY_TOL[np.dtype(np.float64)] <= floor:
            V, s = self._refine(V, Vt)
        return flip_signs(np.ascontiguousarray(V, dtype=self.V.dtype)), s

    def _refine(self, V: np.ndarray, Vt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Orthonormalise, and repeat Rayleigh-Ritz on the stack instead of its Gram matrix."""
        Q = scipy.linalg.qr(V.T, mode="economic", check_finite=False)[0]
        B = self.new_rows_times(Q)
        if self.k:
            B = np.concatenate([self.s[:, None] * (Vt.T @ Q), B])
        _, s, Wt = scipy.linalg.svd(B, full_matrices=False, check_finite=False)
        p = numerical_rank(s)
        return (Q @ Wt[:p].T).T, s[:p].copy()
