"""Directions of a summary that are made when somebody reads them, and what they are made of."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg.lapack import dpotrf

from .._kernels.linalg import flip_signs, rounding_of_scatter
from .._kernels.scatter import add_rows, leading_directions
from .._kernels.threads import threads_for
from ._directions import ALIKE, all_directions


class HeldRows:
    """Directions of rows in which each column has its digits, such as a triangular factor.

    Parameters
    ----------
    rows : ndarray of shape (m, d)
        Whose scatter matrix is that of the summary.
    dtype : dtype
        Of the directions.
    """

    first = None
    _STORED: tuple[str, ...] = ("_rows", "dtype")

    def __init__(self, rows: np.ndarray, dtype: np.dtype):
        self._rows, self.dtype = rows, np.dtype(dtype)

    @property
    def rows(self) -> np.ndarray:
        """Rows with the scatter matrix, at most d; nobody writes to them."""
        return self._rows

    @property
    def energy(self) -> float:
        """Sum of the squared singular values."""
        return float(np.einsum("ij,ij->", self._rows, self._rows))

    @property
    def components(self) -> np.ndarray:
        """All directions."""
        return self._made[0]

    @property
    def singular_values(self) -> np.ndarray:
        """All singular values."""
        return self._made[1]

    @cached_property
    def _made(self) -> tuple[np.ndarray, np.ndarray]:
        V, s = self._directions()
        V = V.astype(self.dtype, copy=False)
        V.flags.writeable = s.flags.writeable = False
        return V, s

    def _directions(self) -> tuple[np.ndarray, np.ndarray]:
        with threads_for(16 * self.rows.size):
            return all_directions(self.rows)

    def __getstate__(self):
        return {name: getattr(self, name) for name in self._STORED}


class HeldScatter(HeldRows):
    """Directions of a scatter matrix, of which each entry is right beside its two columns.

    That is more than its eigenvectors know of columns that are small beside others.

    Parameters
    ----------
    G : ndarray of shape (d, d), in Fortran's order
        Of which the lower triangle is read.
    lost : ndarray of shape (d,)
        Energy of each column that was in it and was taken off again.
    precision : dtype
        Of the products.
    dtype : dtype
        Of the directions.
    """

    _STORED = ("G", "lost", "precision", "dtype")

    def __init__(self, G: np.ndarray, lost: np.ndarray, precision: np.dtype, dtype: np.dtype):
        self.G, self.lost = G, lost
        self.precision, self.dtype = np.dtype(precision), np.dtype(dtype)
        self._once: tuple[Hashable, Any] | None = None

    def __setstate__(self, state):
        vars(self).update(state, _once=None)

    def once(self, how: Hashable, find: Callable[[], Any]) -> Any:
        """What was found last, if in the same way, or else what ``find`` returns."""
        last = self._once
        if last is None or last[0] != how:
            last = self._once = how, find()
        return last[1]

    @cached_property
    def sizes(self) -> np.ndarray:
        """Roots of the diagonal; 1 where it is zero."""
        squares = self.G.diagonal()
        return np.sqrt(np.where(squares > 0, squares, 1.0))

    def scaled(self, scale: np.ndarray) -> np.ndarray:
        """Lower triangle of the scatter matrix of columns divided by a scale."""
        return np.divide(self.G / scale, scale[:, None], order="F")

    def certificate(self, scale: np.ndarray) -> dict[str, Any]:
        """Arguments of `top_of_scatter` for columns divided by a scale."""
        return {"lost": float(np.sum(self.lost / scale**2)), "dtype": self.precision}

    @cached_property
    def _found(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Directions and singular values, and units of the columns unless they are the rows'."""
        d, sizes = len(self.G), self.sizes
        none = np.empty((0, d)), np.empty(0)
        with threads_for(16 * d * d):
            if sizes.max() <= ALIKE * sizes.min():
                one = np.ones(d)
                found = leading_directions(self.scaled(one), d, len, **self.certificate(one))
                if found is not None:
                    return flip_signs(np.array(found[0], order="C")), found[1], None
            known = self.certificate(sizes)
            V, s = leading_directions(self.scaled(sizes), d, len, forced=True, **known) or none
        return V, s, sizes

    @property
    def energy(self) -> float:
        """See `HeldRows`."""
        return float(self.G.trace())

    @cached_property
    def n_components(self) -> int:
        """Number of directions: of all columns if Cholesky's method finds no small eigenvalue."""
        used = np.flatnonzero(self.G.diagonal() > 0)
        C, m = self.scaled(self.sizes)[np.ix_(used, used)], len(used)
        known = self.certificate(self.sizes)
        C[np.diag_indices(m)] -= m * rounding_of_scatter(m, **known)
        if m and not dpotrf(C, lower=1)[1]:
            return m
        return len(self._found[1])

    @property
    def rows(self) -> np.ndarray:
        """See `HeldRows`."""
        V, s, units = self._found
        rows = s[:, None] * V
        return rows if units is None else rows * units

    def _directions(self) -> tuple[np.ndarray, np.ndarray]:
        V, s, units = self._found
        return (V, s) if units is None else super()._directions()


def added(parts: Sequence[HeldScatter], more: np.ndarray, dtype: np.dtype) -> HeldScatter:
    """The scatter matrix of the rows of several and of some more rows."""
    G = add_rows(np.array(parts[0].G, order="F"), more)
    lost = parts[0].lost
    for part in parts[1:]:
        G += part.G
        lost = lost + part.lost
    least = min((part.precision for part in parts), key=lambda precision: precision.itemsize)
    return HeldScatter(G, lost, least, dtype)
