"""Effects, scales and directions of adjusted rows, from rows and from a scatter matrix."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._kernels.column_moments import is_rounding
from .._kernels.linalg import flip_signs, rounding_of_scatter
from .._kernels.scatter import leading_directions
from .._kernels.threads import threads_for
from .._kernels.tolerances import ORTHONORMALITY_TOL
from ._directions import leading
from ._exact import ScatterMatrix
from ._partial_out import what_is_left

# Share of the square of a column that rounding explains.
_ROUNDING = 1e-11


class Columns(NamedTuple):
    """Columns of rows that are adjusted.

    Attributes
    ----------
    confounders, others : ndarray of int
    constant : ndarray of bool, shape (d,)
        Which of all columns have nothing but rounding errors.
    scatter : ndarray of shape (d,)
        Sums of squares of all about the mean.
    mean : ndarray of shape (d,)
    n_samples : float
    """

    confounders: np.ndarray
    others: np.ndarray
    constant: np.ndarray
    scatter: np.ndarray
    mean: np.ndarray
    n_samples: float

    def scale_of(self, scatter: np.ndarray, effects: np.ndarray) -> np.ndarray:
        """Deviations of the others, whose sums of squares are left by the confounders' effects.

        1 where only rounding errors are left of the numbers that were subtracted.
        """
        deviation, sizes = np.sqrt(scatter / self.n_samples), np.abs(self.mean)
        subtracted = sizes[self.others] + sizes[self.confounders] @ np.abs(effects)
        nothing = self.constant[self.others] | is_rounding(deviation, subtracted)
        return np.where(nothing, 1.0, deviation)


class Parts(NamedTuple):
    """What is found of adjusted rows.

    Attributes
    ----------
    effects, along, is_cut
        See `Left`; ``along`` has the columns of the rows.
    scatter : ndarray of shape (o,)
        Sums of squares of the others before they are scaled.
    scale : ndarray of shape (o,)
    V, s : ndarray of shape (k, o) and (k,)
        Leading directions of the adjusted rows, and singular values.
    """

    effects: np.ndarray
    along: np.ndarray
    is_cut: bool
    scatter: np.ndarray
    scale: np.ndarray
    V: np.ndarray
    s: np.ndarray


def parts_of_rows(
    rows: np.ndarray, columns: Columns, scaled: bool, most: int | None, dtype: np.dtype
) -> Parts:
    """Adjust at most d rows, which are destroyed; see `what_is_left`.

    ``most`` directions are found (None: all); ``scaled``: whether columns are.
    """
    c, o, constant, scatter = columns[:4]
    rows[:, c[constant[c]]] = 0  # rounding errors, which explain nothing
    effects, along = np.zeros((len(c), len(o))), np.zeros((0, len(scatter)))
    is_cut, of_others = False, scatter[o]
    if len(c):
        left = what_is_left(rows[:, c], rows[:, o], scatter[c], of_others, dtype)
        effects, rows, of_others, is_cut = left.effects, left.rows, left.scatter, left.is_cut
        along = _in_place(left.along, columns)
    scale = np.ones(len(o))
    if scaled:
        scale = columns.scale_of(of_others, effects)
        rows /= scale
    return Parts(effects, along, is_cut, of_others, scale, *leading(rows, most))


def parts_of_scatter(
    held: ScatterMatrix, columns: Columns, scaled: bool, most: int | None
) -> Parts | None:
    """The same from the scatter matrix of all rows; None where it is not certain to ten digits.

    An entry of a scatter matrix is right to eps of the roots of its two squares on the diagonal,
    whatever the sizes of the others: with the columns divided by their sizes all of it is right to
    eps. What is left of a column is certain where confounders leave a share of 1e-5 of its square.
    None as well where confounders were cut from rows before, whose effects the scatter hides.
    """
    with threads_for(16 * len(held.G) ** 2):
        return _certain(held, columns, scaled, most)


def _certain(held: ScatterMatrix, columns: Columns, scaled: bool, most: int | None) -> Parts | None:
    c, o, constant = columns[:3]
    cut = columns.scatter - held.G.diagonal()
    cut[cut <= _ROUNDING * columns.scatter] = 0.0  # of rows before, whose directions were cut
    if cut[c].any():
        return None
    d, size = len(held.G), held.sizes
    effects, along = np.zeros((len(c), len(o))), np.zeros((0, d))
    S, least = held.G, rounding_of_scatter(1.0, dtype=held.precision)
    least /= ORTHONORMALITY_TOL[held.precision]
    if len(c):
        C = np.tril(held.scaled(size))
        C += np.tril(C, -1).T
        varying = ~constant[c]
        v = c[varying]
        lam, W = np.linalg.eigh(C[np.ix_(v, v)])
        if not len(v) or lam[0] <= least * lam[-1]:
            return None
        root = np.sqrt(lam)
        half = (W / root).T @ C[np.ix_(v, o)]
        S = C[np.ix_(o, o)] - half.T @ half
        left = S.diagonal()
        if np.any((left <= least) & ~constant[o]):
            return None
        effects[varying] = (W / root) @ half * size[o] / size[v, None]
        along = np.zeros((len(v), d))
        along[:, v], along[:, o] = root[:, None] * W.T * size[v], half * size[o]
        S = S * size[o] * size[o, None]
    of_others = S.diagonal().clip(0) + cut[o]
    scale = columns.scale_of(of_others, effects) if scaled else np.ones(len(o))
    lost = float(np.sum(held.lost[o] / scale**2))
    found = leading_directions(
        np.divide(S / scale, scale[:, None], order="F"),
        len(o) if most is None else min(most, len(o)),
        len if most is None else lambda s: min(most, len(s)),
        lost=lost,
        dtype=held.precision,
    )
    if found is None:
        return None
    V, s = found
    return Parts(effects, along, False, of_others, scale, flip_signs(np.array(V, order="C")), s)


def _in_place(along: np.ndarray, columns: Columns) -> np.ndarray:
    """Rows of the confounders and of the others after them, as rows of all columns."""
    result = np.zeros((len(along), len(columns.scatter)))
    result[:, np.concatenate([columns.confounders, columns.others])] = along
    return result
