"""Update of a subspace summary with a block of rows: arrays in, arrays out.

Everything here works on a *stack*

    M = [ diag(s) V ;  sqrt(w) (Y - block mean) ;  mean correction ]

whose row space and singular values are those of all (weighted, centred) rows seen so far: ``V``
and ``s`` summarise the past, ``Y`` is a block of new rows, and the last row accounts for the
difference between the two means. The top right singular vectors of ``M`` are the next summary.

Three routes lead there. Gram: eigenvectors of the small side of ``M M^T`` or ``M^T M``; everything
large is a matrix product, but the condition number is squared, so the result carries a
certificate (orthonormality of the new basis, or the spread of the eigenvalues). QR: Householder
QR and an SVD of the triangle, backward stable, taken where the certificate fails. Krylov: for
large sparse blocks, where products with ``Y`` are cheap and the Gram matrix is not.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from ._linalg import (
    ORTHONORMALITY_TOL,
    block_krylov,
    eigh_top,
    flip_signs,
    is_orthonormal,
    numerical_rank,
    orthonormalised,
    top_right_singular,
)
from ._threads import single_blas_thread

# Dense work runs over column chunks of about this many entries, so that it stays in cache.
CHUNK_ENTRIES = 2**18
# Up to this many features all directions are kept, and sparse rows are few numbers anyway.
SMALL_DIMENSION = 256

OVERFLOW = "X holds values that are too large: the sum of their squares is not finite."

# Chooses how many directions to keep from the singular values and the scatter.
Keep = Callable[[np.ndarray, float], int]


def _count(s: np.ndarray, max_keep: int, keep: Keep | None, scatter: float) -> int:
    p = min(len(s), max_keep)
    return p if keep is None else max(0, min(p, keep(s, scatter)))


class Block(ABC):
    """What every kind of block has in common: past summary, new rows, weights, means.

    ``shift`` is a vector near the block's mean, the old mean where there is one; ``offset`` is the
    block's mean less it; ``scatter`` is what the block adds to the scatter, known after `reduce`.

    Parameters
    ----------
    V, s : ndarray of shape (k, d) and (k,)
        The past, already decayed.
    mean, n : ndarray of shape (d,), float
        Its mean and its effective count.
    Y : ndarray or CSR matrix of shape (m, d)
    w : ndarray of shape (m,) or None
        Squared weights of the rows.
    center : bool
    """

    def __init__(self, V, s, mean, n, Y, w, center):
        self.V, self.s, self.mean, self.n, self.Y, self.w = V, s, mean, n, Y, w
        self.center = center
        self.k, self.m, self.d = len(s), Y.shape[0], Y.shape[1]
        self.n_block = float(self.m) if w is None else float(w.sum())
        self.n_total = n + self.n_block
        self.root_w = None if w is None else np.sqrt(w)
        self.has_correction = center and n > 0
        self.n_rows = self.k + self.m + self.has_correction
        # n_a n_b / (n_a + n_b) ||mean_a - mean_b||^2, ordered so as not to overflow
        self.correction_scale = math.sqrt((n / self.n_total) * self.n_block)

    shift: np.ndarray
    offset: np.ndarray
    scatter: float

    @property
    def new_mean(self) -> np.ndarray:
        """Mean of all rows."""
        if not self.center:
            return self.mean
        return self.shift + (self.n_block / self.n_total if self.n else 1.0) * self.offset

    @abstractmethod
    def reduce(
        self,
        max_keep: int,
        keep: Keep | None = None,
        past_scatter: float = 0.0,
        solver: str = "auto",
        wanted: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return ``(V, s)`` of the updated summary and set ``scatter``.

        Parameters
        ----------
        max_keep : int
            Bound on the directions kept.
        keep : callable, default=None
            Chooses how many from the singular values and the scatter.
        past_scatter : float
        solver : {"auto", "gram", "qr"}
            Of dense blocks.
        wanted : int, default=None
            The first so many directions matter, the others are reserves. None: all matter.
        """


class DenseBlock(Block):
    """A dense block; columns are visited in chunks, so its centred copy is never whole."""

    def __init__(self, V, s, mean, n, Y, w, center):
        super().__init__(V, s, mean, n, Y, w, center)
        if not center:
            self.shift = np.zeros(self.d)
        else:
            self.shift = mean if n > 0 else Y[0].astype(np.float64)
        self.offset = np.zeros(self.d)
        self.scatter = 0.0

    def _fill(self, M: np.ndarray, cols: slice, first_visit: bool) -> np.ndarray:
        """Write the unscaled stack [V; sqrt(w)(Y - mean); correction] of some columns into M."""
        c = cols.stop - cols.start
        M = M[:, :c]
        M[: self.k] = self.V[:, cols]
        Z = M[self.k : self.k + self.m]
        if self.center:
            np.subtract(self.Y[:, cols], self.shift[cols], out=Z, casting="same_kind")
            if first_visit:
                if self.w is None:
                    self.offset[cols] = Z.mean(axis=0, dtype=np.float64)
                else:
                    self.offset[cols] = (self.w @ Z) / self.n_block
            Z -= self.offset[cols].astype(M.dtype)
        else:
            Z[...] = self.Y[:, cols]
        if self.root_w is not None:
            Z *= self.root_w[:, None].astype(M.dtype)
        if self.has_correction:
            M[-1] = self.correction_scale * self.offset[cols]
        return M

    def _chunks(self, n_columns: int) -> list[slice]:
        return [slice(a, min(a + n_columns, self.d)) for a in range(0, self.d, n_columns)]

    def reduce(self, max_keep, keep=None, past_scatter=0.0, solver="auto", wanted=None):
        """Return ``(V, s)``; see `Block.reduce`. ``wanted`` is ignored."""
        if solver == "qr":
            return self._by_qr(max_keep, keep, past_scatter)
        if self.n_rows >= self.d:
            return self._by_small_gram(max_keep, keep, past_scatter, solver)
        dtypes = [np.dtype(self.V.dtype)]
        if dtypes[0] == np.float32:
            dtypes.append(np.dtype(np.float64))
        for dtype in dtypes:
            last = solver == "gram" and dtype == dtypes[-1]
            result = self._by_gram(max_keep, keep, past_scatter, dtype, last)
            if result is not None:
                return result
        return self._by_qr(max_keep, keep, past_scatter)

    def _by_gram(self, max_keep, keep, past_scatter, dtype, forced):
        k, R = self.k, self.n_rows
        chunks = self._chunks(max(256, CHUNK_ENTRIES // R))
        M = np.empty((R, chunks[0].stop), dtype=dtype)
        G = np.zeros((R, R))
        for cols in chunks:
            part = self._fill(M, cols, True)
            new = part[k:]
            G[k:, k:] += new @ new.T
            if k:
                G[k:, :k] += new @ part[:k].T
        self.scatter = float(np.trace(G))
        if not math.isfinite(self.scatter):
            if dtype == np.float32:
                return None
            raise ValueError(OVERFLOW)
        G[k:, :k] *= self.s
        G[:k, k:] = G[k:, :k].T
        G[np.arange(k), np.arange(k)] = self.s**2
        lam, W = eigh_top(G, R if keep else max_keep)
        p = _count(np.sqrt(lam.clip(0)), max_keep, keep, past_scatter + self.scatter)
        p = min(p, R - self.center)  # centring takes one dimension
        tol = ORTHONORMALITY_TOL[self.V.dtype]
        floor = R * np.finfo(dtype).eps * max(lam[0], 0)
        if forced:
            p = min(p, int(np.sum(lam > floor)))
        elif p and lam[p - 1] <= floor:
            return None
        s = np.sqrt(lam[:p])
        W = W[:, :p] / s
        W[:k] *= self.s[:, None]
        W = np.ascontiguousarray(W.T, dtype=dtype)
        V = np.empty((p, self.d), dtype=dtype)
        for cols in chunks:
            part = M if len(chunks) == 1 else self._fill(M, cols, False)
            np.matmul(W, part, out=V[:, cols])
        if not is_orthonormal(V, tol):
            if not forced:
                return None
            V = orthonormalised(V)
        return flip_signs(V).astype(self.V.dtype, copy=False), s

    def _stack(self) -> np.ndarray:
        """The whole scaled stack in float64, its longer side contiguous as LAPACK's QR wants it."""
        order = "F" if self.n_rows >= self.d else "C"
        M = self._fill(np.empty((self.n_rows, self.d), order=order), slice(0, self.d), True)
        new = M[self.k :]
        self.scatter = float(np.einsum("ij,ij->", new, new))
        if not math.isfinite(self.scatter):
            raise ValueError(OVERFLOW)
        M[: self.k] *= self.s[:, None]
        return M

    def _by_small_gram(self, max_keep, keep, past_scatter, solver):
        M = self._stack()
        lam, W = np.linalg.eigh(M.T @ M)
        lam, W = lam[::-1], W[:, ::-1]
        s = np.sqrt(lam.clip(0))
        p = _count(s, max_keep, keep, past_scatter + self.scatter)
        # the relative error of an eigenvalue is about eps lam_1 / lam_i
        floor = 4 * np.finfo(np.float64).eps * s[0] ** 2
        if solver == "auto" and (p == 0 or lam[p - 1] <= floor / ORTHONORMALITY_TOL[M.dtype]):
            return self._finish_qr(M, max_keep, keep, past_scatter)
        p = min(p, int(np.sum(lam > self.d * floor)))
        V = np.ascontiguousarray(W[:, :p].T, dtype=self.V.dtype)
        return flip_signs(V), s[:p].copy()

    def _by_qr(self, max_keep, keep, past_scatter):
        return self._finish_qr(self._stack(), max_keep, keep, past_scatter)

    def _finish_qr(self, M, max_keep, keep, past_scatter):
        scatter = past_scatter + self.scatter
        V, s = top_right_singular(M, lambda s: _count(s, max_keep, keep, scatter))
        return flip_signs(V.astype(self.V.dtype, copy=False)), s


class SparseBlock(Block):
    """A CSR block; products only, centring is a rank-one correction, nothing is densified.

    Work inside the block is on its *active* columns, those with a stored entry. A column without an
    implicit zero is centred in its stored entries, which keeps the pattern; any other column has a
    variance of at least mean^2 / m, so that nothing cancels.
    """

    def __init__(self, V, s, mean, n, Y, w, center):
        super().__init__(V, s, mean, n, Y, w, center)
        if not Y.has_canonical_format:
            Y = Y.copy()
            Y.sum_duplicates()
        counts = np.bincount(Y.indices, minlength=self.d)
        self.active, indices = np.flatnonzero(counts), Y.indices
        if len(self.active) < self.d:
            number = np.empty(self.d, dtype=indices.dtype)
            number[self.active] = np.arange(len(self.active))
            indices, counts = number[indices], counts[self.active]
        full = counts == self.m
        data = Y.data.astype(np.float64, copy=w is not None or full.any())
        shape = (self.m, len(self.active))
        self.Y = Y = sp.csr_array((data, indices, Y.indptr), shape=shape)
        rows = np.ones(self.m) if w is None else w
        self.ones = rows if w is None else self.root_w
        root = None if w is None else np.repeat(self.root_w, np.diff(Y.indptr))
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
        square, of_mean = data @ data, self.n_block * (self.local_mean @ self.local_mean)
        if of_mean <= square / 2:
            self.scatter = float(square - of_mean)
        else:  # would cancel: deviations of what is stored, and of the implicit zeros
            deviations, stored = self.local_mean[indices], counts
            if w is not None:
                deviations *= root
                stored = np.bincount(indices, weights=root**2, minlength=len(self.active))
            np.subtract(data, deviations, out=deviations)
            elsewhere = (self.n_block - stored) @ self.local_mean**2
            self.scatter = float(deviations @ deviations + elsewhere)
        self.correction, self.correction_elsewhere = None, 0.0
        if self.has_correction:
            self.correction = self.correction_scale * self.offset
            self.correction_here = self.correction[self.active]
            total = float(self.correction @ self.correction)
            self.scatter += total
            self.correction_elsewhere = total - float(self.correction_here @ self.correction_here)
        if not math.isfinite(self.scatter):
            raise ValueError(OVERFLOW)

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

    def reduce(self, max_keep, keep=None, past_scatter=0.0, solver="auto", wanted=None):
        """Return ``(V, s)``; see `Block.reduce`. ``solver`` is ignored."""
        k, R, m = self.k, self.n_rows, self.m
        Vt = np.ascontiguousarray(self.V.T, dtype=np.float64)
        cross = self.new_rows_times(Vt) * self.s if k else np.zeros((R - k, 0))
        limit = min(R, self.d)
        p = min(max_keep, limit)
        if keep is None and R > 512 and 4 * p < limit:
            lam, W = self._by_krylov(cross, p, p if wanted is None else min(wanted, p))
        else:
            G = np.empty((R, R))
            G[:k, :k] = np.diag(self.s**2)
            G[k:, :k] = cross
            G[:k, k:] = cross.T
            G[k:, k:] = self._gram()
            lam, W = eigh_top(G, R if keep else p)
            p = _count(np.sqrt(lam.clip(0)), p, keep, past_scatter + self.scatter)
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
        if not is_orthonormal(V, ORTHONORMALITY_TOL[np.dtype(np.float64)]):
            V, s = self._refine(V, Vt)
        return flip_signs(V.astype(self.V.dtype, copy=False)), s

    def _gram(self) -> np.ndarray:
        """Gram matrix of the new rows."""
        Y, mu, one, m = self.Y, self.local_mean, self.ones, self.m
        G = np.empty((self.n_rows - self.k,) * 2)
        P = (Y @ Y.T).toarray()
        a = Y @ mu
        P -= np.outer(a, one)
        P -= np.outer(one, a - (mu @ mu) * one)
        G[:m, :m] = P
        if self.correction is not None:
            G[m, :m] = G[:m, m] = self.times(self.correction_here[:, None]).ravel()
            G[m, m] = self.correction @ self.correction
        return G

    def _by_krylov(self, cross: np.ndarray, p: int, wanted: int) -> tuple[np.ndarray, np.ndarray]:
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
            return block_krylov(apply, self.n_rows, p, wanted, tol=1e-2)

    def _refine(self, V: np.ndarray, Vt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Orthonormalise, and repeat Rayleigh-Ritz on the stack instead of its Gram matrix."""
        Q = scipy.linalg.qr(V.T, mode="economic", check_finite=False)[0]
        B = self.new_rows_times(Q)
        if self.k:
            B = np.concatenate([self.s[:, None] * (Vt.T @ Q), B])
        _, s, Wt = scipy.linalg.svd(B, full_matrices=False, check_finite=False)
        p = numerical_rank(s)
        return (Q @ Wt[:p].T).T, s[:p].copy()


def auto_oversampling(n_components: int) -> int:
    """Directions kept beyond the asked ones: one and a quarter times as many, at least 10."""
    return max(10, -(-5 * n_components // 4))


def auto_block_size(max_keep: int | None, n_features: int, sparse: bool) -> int:
    """Rows updated at once, near the flop optimum of the route that such a block takes.

    Dense: Gram and rotation cost d (4 k + b + 2 k^2 / b) a row, least at b = 1.4 k and flat to
    1.8 k. Small d: the d x d eigenproblem is spread over 8 d rows. Sparse: products cost the same
    however the rows are cut, so blocks are as large as the Krylov basis allows.
    """
    if n_features <= SMALL_DIMENSION:
        return max(64, 8 * n_features)
    if max_keep is None:
        return 512
    if sparse and 4 * max_keep < n_features:
        return 2**15
    return max(64, 7 * max_keep // 4)


def block_kind(Y, n_features: int) -> type[Block]:
    """Class that reduces a block: sparse rows stay sparse unless they are few numbers anyway."""
    return SparseBlock if sp.issparse(Y) and n_features > SMALL_DIMENSION else DenseBlock


def peak_bytes(
    k: int, block_size: int, n_features: int, itemsize: int, center: bool, solver: str
) -> int:
    """Peak memory of dense updates with k directions kept, see `StreamingPCA.memory_bytes`."""
    d, R = n_features, k + block_size + center
    bases = 2 * itemsize * k * d
    vectors, buffers = 8 * 6 * d, 2**17
    if d <= R:  # a stack in float64, its Gram matrix and eigenvectors
        return 8 * R * d + 8 * d * d + max(8 * d * d + bases // 2, bases) + vectors + buffers
    if solver == "qr":  # a stack in float64 that becomes Q, a basis in float64 beside those kept
        return 8 * R * d + 8 * 3 * R * R + 8 * k * d + bases * itemsize // 8 + vectors + buffers
    chunk = itemsize * R * min(d, max(256, CHUNK_ENTRIES // R))
    return bases + chunk + 8 * 2 * R * (R + k) + vectors
