"""Centring of a stream, each row by the mean of the rows before it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._kernels.sizes import slices_of
from ._fading import Fading

# Rows whose running means are computed at once where entries are missing or rows fade.
_ROWS_AT_ONCE = 32


@dataclass(frozen=True)
class Features:
    """Statistics of the features: weight of the rows seen, their mean, and sum of squares.

    ``weight`` is an array where entries may be missing: each feature then has its own. ``n_rows``
    is the weight of the rows, whatever is missing in them.
    """

    weight: float | np.ndarray
    mean: np.ndarray
    squares: np.ndarray
    n_rows: float

    @classmethod
    def empty(cls, d: int) -> Features:
        """Statistics before the first row."""
        return cls(0.0, np.zeros(d), np.zeros(d), 0.0)


def innovations(
    known: Features, Y: np.ndarray, center: bool = True, fading: Fading | None = None
) -> tuple[np.ndarray, Features]:
    """Rows less the mean of the rows before them, scaled so that they carry the exact scatter.

    With c the weight of the rows before row t, ``z_t = sqrt(c / (c + 1)) (y_t - mean_{t-1})``. The
    sum of ``z_t z_t^T`` is the scatter matrix of all rows about their mean (Welford 1962), however
    the stream is cut, and with rows that fade likewise: a tracker of uncentred rows that is fed
    with z tracks the principal directions. Missing entries (NaN) stay missing, and each feature
    counts its own rows.

    Parameters
    ----------
    known : Features
    Y : ndarray of shape (m, d), float64
    center : bool, default=True
        False: rows are returned as they are, about the origin.
    fading : Fading or None, default=None
        None: rows do not fade.

    Returns
    -------
    Z : ndarray of shape (m, d)
    known : Features
        After these rows.
    """
    seen = ~np.isnan(Y)
    fading = fading or Fading.by_rows(1.0, len(Y))
    if seen.all() and fading.factor == 1 and np.ndim(known.weight) == 0:
        return _plain(known, Y, center)
    Z = np.empty_like(Y)
    for rows in slices_of(len(Y), _ROWS_AT_ONCE):
        Z[rows], known = _fading(known, Y[rows], seen[rows], center, fading[rows])
    return Z, known


def has_weight(known: Features, Y: np.ndarray) -> np.ndarray | slice:
    """Rows except those whose observed features are all observed for the first time.

    A centred row of that kind is zero, whatever it held: it makes a mean and adds nothing to the
    scatter. Rows without any entry are left to the rules.

    Parameters
    ----------
    known : Features
        Before these rows.
    Y : ndarray of shape (m, d)

    Returns
    -------
    rows : slice or ndarray of bool of shape (m,)
    """
    if np.all(np.greater(known.weight, 0)):
        return slice(None)
    seen = ~np.isnan(Y)
    if seen.all():
        return slice(int(not np.any(known.weight)), None)
    before = np.cumsum(seen, axis=0) - seen
    old = before + known.weight > 0
    return (seen & old).any(axis=1) | ~seen.any(axis=1)


def _plain(known: Features, Y: np.ndarray, center: bool) -> tuple[np.ndarray, Features]:
    """Innovations without missing entries and forgetting, by one running sum."""
    m = len(Y)
    if not center:
        squares = known.squares + np.einsum("ij,ij->j", Y, Y)
        return Y, Features(known.weight + m, known.mean, squares, known.n_rows + m)
    origin = known.mean if known.weight else Y[0]
    D = Y - origin
    before = np.cumsum(D, axis=0)
    total = before[-1].copy()
    c = known.weight + np.arange(m, dtype=np.float64)[:, None]
    before -= D
    before /= np.maximum(c, 1)
    D -= before
    D *= np.sqrt(c / (c + 1))
    squares = known.squares + np.einsum("ij,ij->j", D, D)
    weight = known.weight + m
    return D, Features(weight, origin + total / weight, squares, known.n_rows + m)


def _fading(
    known: Features, Y: np.ndarray, seen: np.ndarray, center: bool, fading: Fading
) -> tuple[np.ndarray, Features]:
    f, ages, past = fading.factor, fading.ages, fading.past
    seen = seen.astype(np.float64)
    at_end = f**ages
    weight = known.weight * past + at_end @ seen
    mean = known.mean
    if not center:
        Z = Y
    else:
        there = seen > 0
        first = Y[there.argmax(axis=0), np.arange(Y.shape[1])]
        fresh = (np.broadcast_to(known.weight, mean.shape) == 0) & there.any(axis=0)
        origin = np.where(fresh, first, mean)
        D = np.where(there, Y - origin, 0.0)
        lower = np.tril(f ** np.maximum(ages[None, :] - ages[:, None], 0.0), -1)
        fade = f ** np.cumsum(fading.steps)[:, None]
        c = known.weight * fade + lower @ seen
        Z = Y - origin
        Z -= (lower @ D) / np.where(c > 0, c, 1)
        Z *= np.sqrt(c / (c + 1))
        mean = origin + (at_end @ D) / np.where(weight > 0, weight, 1)
    squares = known.squares * past + at_end @ np.where(seen > 0, Z, 0.0) ** 2
    n_rows = known.n_rows * past + float(at_end.sum())
    return Z, Features(weight, mean, squares, n_rows)
