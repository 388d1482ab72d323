"""The leading directions of a scatter matrix now, and the others when somebody asks for them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.linalg.blas import dsyrk

from .linalg import (
    eigh_top,
    flip_signs,
    largest_rounded,
    rounding_of_scatter,
    top_of_scatter,
)
from .sizes import few_of_all
from .threads import threads_for

_FLOAT64 = np.dtype(np.float64)


class LeadingFirst:
    """Directions of a scatter matrix whose first few take a third of the time of all.

    Parameters
    ----------
    G : ndarray of shape (m, m), in Fortran's order
        Scatter matrix, of which the lower triangle is read. It is kept until all are known.
    V, s : ndarray of shape (r, m) and (r,)
        Its first directions and singular values, in float64.
    floor : float
        Eigenvalues up to this are rounding errors.
    columns : ndarray of shape (m,)
        Those of ``n_features`` that the matrix is of; the others get no loading.
    n_features : int
    dtype : dtype
        Of the directions.
    """

    def __init__(self, G, V, s, floor, columns, n_features, dtype):
        self._G, self._V = G, V
        self._floor, self._columns = floor, columns
        self._n_features, self.dtype = n_features, dtype
        self._all: Any = None
        self.first = self._shown(V), s

    @property
    def components(self) -> np.ndarray:
        """All directions, of which the first are those known before, bit by bit."""
        return self._made()[0]

    @property
    def singular_values(self) -> np.ndarray:
        """All singular values."""
        return self._made()[1]

    def _made(self) -> tuple[np.ndarray, np.ndarray]:
        G = self._G  # which another thread may drop meanwhile
        if G is not None:
            (V, s), (rest, more) = self.first, self._rest(G)
            both = np.concatenate([V, self._shown(rest)]), np.concatenate([s, more])
            for array in both:
                array.flags.writeable = False
            self._all, self._G = both, None
        return self._all

    def _rest(self, G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The other directions: those of the matrix with the first ones raised above all."""
        r, m = self._V.shape
        _, s = self.first
        unit = 2.0 ** min(-math.frexp(s[0] ** 2)[1], 1000)
        with threads_for(16 * m * m):
            raised = dsyrk(1.0, self._V.T, beta=1.0, c=G * unit, lower=1)
            lam, W = eigh_top(raised, m, overwrite=True)
        lam, W = lam[r:] / unit, W[:, r:]
        p = int(np.sum(lam > self._floor))
        return W[:, :p].T, np.sqrt(lam[:p]).clip(max=s[-1])

    def _shown(self, V: np.ndarray) -> np.ndarray:
        wide = V
        if V.shape[1] < self._n_features:
            wide = np.zeros((len(V), self._n_features))
            wide[:, self._columns] = V
        return flip_signs(np.array(wide, dtype=self.dtype, order="C"))


def first_pay(G: np.ndarray, wanted: int | None) -> bool:
    """Whether the first ``wanted`` directions of a lower triangle take less time than all."""
    return wanted is not None and few_of_all(wanted, int(np.count_nonzero(G.diagonal())))


def leading_first(
    G: np.ndarray,
    wanted: int,
    shown_in: np.dtype,
    forced: bool = False,
    lost: float = 0.0,
    dtype: np.dtype = _FLOAT64,
    apart: np.ndarray | None = None,
) -> LeadingFirst | None:
    """The first ``wanted`` directions of a lower triangle, which is kept.

    None where they are not certain; see `top_of_scatter` for the others.
    """
    d, columns = len(G), np.flatnonzero(G.diagonal())
    m = len(columns)
    if m < d:
        G = np.asfortranarray(G[np.ix_(columns, columns)])
        apart = None if apart is None else apart[:, columns]
    lam, W = eigh_top(G, wanted)
    found = top_of_scatter(lam, W, len, forced, wanted, lost, dtype, apart)
    if found is None or len(found[1]) < wanted:
        return None
    floor = m * rounding_of_scatter(largest_rounded(lam, W, dtype, apart), lost, dtype)
    return LeadingFirst(G, *found, floor, columns, d, shown_in)
