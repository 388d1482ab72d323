"""Many batches on a device under one summary: their scatter matrix is added up there.

One eigenproblem serves all of them, at the end. Rows are not kept, so each batch is taken only if
the directions that are wanted stay certain with it: eigenvalues of the sum are bounded by a product
with a few vectors, and the tolerances are those of an eigenproblem after each batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .device_rows import DeviceRows, scatter_and_sums_there
from .leading_first import LeadingFirst, first_pay, leading_first
from .linalg import flip_signs, orthonormalised, random_basis, rounding_of_scatter
from .scatter import LOST, guessed_mean, leading_directions, rounded
from .tolerances import ORTHONORMALITY_TOL

_FLOAT64 = np.dtype(np.float64)
# Vectors for each direction that is wanted, and products with them until that is given up.
_OVERSAMPLING, _PRODUCTS = 2, 4
# A mean that is off by so many roundings of its own is not off.
_ROUNDINGS = 4 * np.finfo(np.float64).eps
# Sum of squares up to which some of them may have been too small for a float.
_LEAST = 2.0**-900


class DeviceSums:
    """Scatter matrix, about one point, of a summary and of batches that come after it.

    Parameters
    ----------
    V, s : ndarray of shape (k, d) and (k,)
        Directions of the past and their singular values.
    mean, n : ndarray of shape (d,), float
        Its mean and its count.
    Y : DeviceRows
        The first batch, which is not taken yet. Its device has float64.
    center : bool
    wanted : int
        Directions that must be certain.
    """

    def __init__(self, V, s, mean, n, Y, center, wanted):
        d = Y.shape[1]
        self.place, self.center, self.wanted = Y.place, center, wanted
        self.shown_in = self._dtype = V.dtype
        self.shift = np.zeros(d)
        if center:
            self.shift = rounded(mean if n > 0 else guessed_mean(Y), V.dtype)
        past = V * s[:, None]
        G, sums = past.T @ past, n * (mean - self.shift)
        self._squares = G.diagonal().copy()
        if center and n > 0:
            G += np.outer(sums, sums / n)
        self._G, self._sums = self.place.array(G), self.place.array(sums)
        self.n_total, self._n_new = n, 0
        vectors = random_basis(min(_OVERSAMPLING * wanted, d), d, np.random.RandomState(0))
        self._Q = vectors  # of which products with the scatter matrix make better ones
        self._least = 0.0  # at least the wanted eigenvalue, which more rows make no smaller

    def take(self, Y: DeviceRows) -> bool:
        """Add rows if all that is wanted stays certain; else nothing is changed."""
        if not self.place.same(Y.place):
            return False
        with np.errstate(over="ignore", invalid="ignore"):  # then nothing is certain
            if self._added(Y):
                return True
            if self._dtype == _FLOAT64 or self._n_new:
                return False
            self._dtype = _FLOAT64
            return self._added(Y)

    def directions(self) -> tuple[np.ndarray, np.ndarray] | LeadingFirst:
        """All directions with their singular values, or the first ones now."""
        C, offset = self._about_mean(self._G, self._sums, self.n_total)
        G = np.asfortranarray(self.place.numpy(C))
        certificate: dict[str, Any] = {
            "forced": True,  # as each batch was certain
            "wanted": self.wanted,
            "lost": self.n_total * float(offset @ offset),
            "dtype": self._dtype,
        }
        self.new_mean = self.shift + offset
        self.column_scatter = (G.diagonal() - self._squares).clip(0)
        self.scatter = float(self.column_scatter.sum())
        if first_pay(G, self.wanted):
            found = leading_first(G, shown_in=self.shown_in, **certificate)
            if found is not None:
                return found
        pairs = leading_directions(G, len(G), len, **certificate)
        assert pairs is not None  # as they are forced
        return flip_signs(np.ascontiguousarray(pairs[0], dtype=self.shown_in)), pairs[1]

    def _added(self, Y: DeviceRows) -> bool:
        d, m = Y.shape[1], len(Y)
        new = scatter_and_sums_there(Y, None, self.shift, self._dtype)
        G, sums, n = self._G + new[:d, :], self._sums + new[d, :], self.n_total + m
        if not self._is_certain(G, sums, n):
            return False
        self._G, self._sums, self.n_total = G, sums, n
        self._n_new += m
        return True

    def _about_mean(self, G: Any, sums: Any, n: float) -> tuple[Any, np.ndarray]:
        """Scatter matrix about the mean, and the way to the mean from the point before."""
        if not self.center:
            return G, np.zeros(len(self.shift))
        return G - sums[:, None] * (sums / n)[None, :], self.place.numpy(sums) / n

    def _is_certain(self, G: Any, sums: Any, n: float) -> bool:
        """Whether the mean is near enough, and the directions would pass `top_of_scatter`."""
        xp, place = self.place.xp, self.place
        C, offset = self._about_mean(G, sums, n)
        squares = float(xp.sum(C * C))
        if not _LEAST < squares < np.inf:
            return False
        off = np.abs(offset) > _ROUNDINGS * np.abs(self.shift)
        if np.any(off & (n * offset**2 > LOST * place.numpy(xp.linalg.diagonal(C)))):
            return False
        lost = n * float(offset @ offset)
        if self._is_enough(np.sqrt(squares), self._least, lost):
            return True
        for _ in range(_PRODUCTS):
            P = place.numpy(C @ place.array(np.ascontiguousarray(self._Q.T)))
            most, least = eigenvalue_bounds(self._Q, P, squares, self.wanted)
            if self._is_enough(most, least, lost):
                self._least = least
                return True
            self._Q = orthonormalised(P.T)
        return False

    def _is_enough(self, most: float, least: float, lost: float) -> bool:
        floor = rounding_of_scatter(most, lost, self._dtype)
        return least > floor / ORTHONORMALITY_TOL[self._dtype]


def eigenvalue_bounds(
    Q: np.ndarray, P: np.ndarray, squares: float, wanted: int
) -> tuple[float, float]:
    """At most the largest, and at least the wanted-th eigenvalue of a matrix that has none below 0.

    Parameters
    ----------
    Q : ndarray of shape (m, d)
        Orthonormal rows, at least as many as are wanted.
    P : ndarray of shape (d, m)
        The matrix times them.
    squares : float
        Sum of the squares of its entries.
    wanted : int

    Returns
    -------
    most, least : float
        By Cauchy's interlacing the eigenvalues of ``Q P`` are no larger than the matrix's. Of the
        blocks within Q, across, and beyond it the Frobenius norms are known; a matrix has no larger
        norm than that of the norms of its blocks.
    """
    within = Q @ P
    ritz = np.linalg.eigvalsh((within + within.T) / 2)[::-1]
    inside = float(ritz @ ritz)
    across = max(float(np.sum(P**2)) - inside, 0.0)
    beyond = np.sqrt(max(squares - inside - 2 * across, 0.0))
    gap = (ritz[0] - beyond) / 2
    return float((ritz[0] + beyond) / 2 + np.sqrt(gap**2 + across)), float(ritz[wanted - 1])
