"""Rows less their mean, some columns at a time, so that a large mean costs no digits."""

from __future__ import annotations

import numpy as np

from .sizes import row_slices

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
