"""Leading directions of many dense rows from a few passes over them, by a block Krylov space.

The space starts from the leading directions of a sample of the rows and of what is known of the
past. Each pass multiplies it by the scatter matrix, which is never formed; a pass over half as many
products ends with Rayleigh and Ritz. Centring is a rank-one term of the products.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg

from .linalg import flip_signs
from .scatter import guessed_mean
from .sizes import rows_of_passes, rows_of_product, vectors_of_passes
from .slices import slices_of

# Passes in which a space of vectors is multiplied by the scatter matrix.
PASSES = 2
# Vectors at random among those of the start, for rows that the sample does not show.
_AT_RANDOM = 2
# A sum of squares may lose three bits to the mean that is taken off afterwards.
_LOST = 8.0


class RowsOfPasses:
    """Rows about a shift, whose products with vectors are added up some rows at a time.

    Parameters
    ----------
    Y : ndarray of shape (n, d)
    root_w : ndarray of shape (n,) or None
        Roots of the weights, whose sum is ``n``.
    n : float
    center : bool
    dtype : dtype
        Of the products; they are added up in float64.
    """

    def __init__(self, Y: np.ndarray, root_w: np.ndarray | None, n: float, center: bool, dtype):
        self.Y, self.root_w, self.n, self.center, self.dtype = Y, root_w, n, center, dtype
        d = Y.shape[1]
        self.shift = guessed_mean(Y) if center else np.zeros(d)
        self.offset, self.squares = np.zeros(d), np.zeros(d)

    def moments(self) -> None:
        """Set the offset of the mean from the shift, and sums of squares about the mean."""
        for _ in range(2):
            sums, squares = np.zeros(len(self.shift)), np.zeros(len(self.shift))
            for Z, weights in self._chunks():
                sums += weights @ Z
                squares += np.einsum("ij,ij->j", Z, Z)
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
        T, B = np.zeros(Q.shape), Q.astype(self.dtype, copy=False)
        for Z, _ in self._chunks():
            T += Z.T @ (Z @ B)
        T -= np.outer(self.n * self.offset, self.offset @ Q)
        return T

    def gram(self, Q: np.ndarray) -> np.ndarray:
        """Scatter matrix about the mean in the coordinates of vectors, in float64."""
        H, B = np.zeros((Q.shape[1],) * 2), Q.astype(self.dtype, copy=False)
        for Z, _ in self._chunks():
            P = Z @ B
            H += P.T @ P
        a = self.offset @ Q
        return H - self.n * np.outer(a, a)

    def sample_below(self, past: np.ndarray, n_rows: int, unit: float) -> np.ndarray:
        """Other rows, and below them some of these about their mean, in a unit: float32.

        They are taken evenly, and are as heavy as all of them.
        """
        step = max(1, len(self.Y) // n_rows)
        mean = self.shift + self.offset
        S = np.empty((len(past) - (-len(self.Y) // step), len(mean)), np.float32)
        np.divide(past, unit, out=S[: len(past)], casting="same_kind")
        for i, row in enumerate(self.Y[::step]):
            weight = 1.0 if self.root_w is None else self.root_w[i * step]
            S[len(past) + i] = (row - mean) * (weight * np.sqrt(step) / unit)
        return S

    def _chunks(self):
        """Rows less the shift, times the roots of their weights, and those roots."""
        n, d = self.Y.shape
        step = min(n, rows_of_product(d))
        moved = bool(self.shift.any())
        as_it_is = not moved and self.root_w is None and self.Y.dtype == self.dtype
        space = None if as_it_is else np.empty((step, d), self.dtype)
        shift = self.shift.astype(np.result_type(self.Y, self.dtype), copy=False)
        ones = np.ones(step, self.dtype)
        for rows in slices_of(n, step):
            Z: Any = self.Y[rows]
            weights = ones[: len(Z)]
            if space is not None:
                Z = np.subtract(Z, shift, out=space[: len(Z)], casting="same_kind")
                if self.root_w is not None:
                    weights = self.root_w[rows].astype(self.dtype, copy=False)
                    Z *= weights[:, None]
            yield Z, weights


def leading_by_passes(
    rows: RowsOfPasses, past: np.ndarray, max_keep: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Directions and singular values of rows and of scaled directions of the past below them.

    None where the least of them is within rounding errors of the largest, and where what is left
    of a column shows a direction that no pass has found.
    """
    d = past.shape[1]
    Q = _start(rows, past, max_keep)
    basis, products = np.empty((d, 0)), np.empty((d, 0))
    for _ in range(PASSES):
        T = rows.scatter_times(Q) + past.T @ (past @ Q)
        basis, products = np.hstack([basis, Q]), np.hstack([products, T])
        Q = _orthonormal_to(basis, T)
    H = np.empty((basis.shape[1] + Q.shape[1],) * 2)
    m = basis.shape[1]
    H[:m, :m] = basis.T @ products
    H[m:, :m] = Q.T @ products
    P = past @ Q
    H[m:, m:] = rows.gram(Q) + P.T @ P
    lam, W = np.linalg.eigh(H)  # of the lower triangle
    lam, W = lam[::-1][:max_keep], W[:, ::-1][:, :max_keep]
    floor = 4 * len(H) * np.finfo(rows.dtype).eps * lam[0]
    if not lam[-1] > floor:
        return None
    V = (np.hstack([basis, Q]) @ W).T
    columns = rows.squares + np.einsum("ij,ij->j", past, past)
    if np.any(columns - lam @ V**2 > lam[-1] + floor):
        return None
    return flip_signs(np.ascontiguousarray(V)), np.sqrt(lam)


def _start(rows: RowsOfPasses, past: np.ndarray, max_keep: int) -> np.ndarray:
    """Leading directions of a sample and of the past, roughly: passes make them better."""
    largest = max(rows.squares.max(), np.einsum("ij,ij->j", past, past).max(initial=0))
    unit = np.sqrt(largest) or 1.0
    S = rows.sample_below(past, rows_of_passes(max_keep), unit)
    G = (S @ S.T).T  # in the order in which it may be overwritten
    few = (len(G) - vectors_of_passes(max_keep) + _AT_RANDOM, len(G) - 1)
    options = {"driver": "evr", "overwrite_a": True, "check_finite": False}
    W = scipy.linalg.eigh(G, subset_by_index=few, **options)[1]
    others = np.random.default_rng(0).standard_normal((past.shape[1], _AT_RANDOM))
    return _orthonormal(np.hstack([(S.T @ W).astype(np.float64), others]))


def _orthonormal(M: np.ndarray) -> np.ndarray:
    return scipy.linalg.qr(M, mode="economic", overwrite_a=True, check_finite=False)[0]


def _orthonormal_to(basis: np.ndarray, M: np.ndarray) -> np.ndarray:
    """Orthonormal vectors of the span of columns, orthogonal to those of a basis."""
    for _ in range(2):  # twice is enough
        M = _orthonormal(M - basis @ (basis.T @ M))
    return M
