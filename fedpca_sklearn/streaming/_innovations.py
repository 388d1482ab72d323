"""Rows of a block of a stream: how they fade, and each less the mean of the rows before it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._kernels.sizes import slices_of

# The least share of the past that a rule keeps when a row comes, however long ago it was.
_LEAST = 1e-8


@dataclass(frozen=True)
class Fading:
    """Fading of the rows of a block.

    Attributes
    ----------
    factor : float
        On the weight of a row with each step.
    steps : ndarray of shape (m,)
        From the row before to each row: 1, or the half-lives between their times.
    """

    factor: float
    steps: np.ndarray

    @classmethod
    def by_rows(cls, factor: float, m: int) -> Fading:
        """Fading by a factor for each of m rows."""
        return cls(factor, np.ones(m))

    def __getitem__(self, rows: Any) -> Fading:
        return Fading(self.factor, self.steps[rows])

    @property
    def past(self) -> float:
        """What is left of rows before the block, at its end."""
        return float(self.factor ** self.steps.sum())

    @property
    def ages(self) -> np.ndarray:
        """Steps from each row to the end of the block."""
        at = np.cumsum(self.steps)
        return at[-1:] - at

    @property
    def factors(self) -> np.ndarray:
        """What each row leaves of the rows before it: of numbers that a rule divides by.

        After a long time 1e-8 is left, so that directions which later rows do not show stay.
        """
        return np.maximum(self.factor**self.steps, _LEAST)


@dataclass(frozen=True)
class Clock:
    """Time of the last row that was taken, and the times of those to come that are known by now."""

    last: np.datetime64 | None = None
    times: np.ndarray = field(default_factory=lambda: np.empty(0, "datetime64[s]"))

    @property
    def newest(self) -> np.datetime64 | None:
        """The latest time that is known."""
        return self.times[-1] if len(self.times) else self.last

    def with_more(self, times: np.ndarray) -> Clock:
        """Clock that knows the times of more rows, in their order."""
        newest = times[:1] if self.newest is None else np.array([self.newest])
        seen = np.concatenate([newest, times])
        back = np.flatnonzero(seen[1:] < seen[:-1])
        if len(back):
            raise ValueError(
                "times must not decrease, as a tracker takes rows in their order, got "
                f"{times[back[0]]} at row {back[0]}, after a later time."
            )
        return Clock(self.last, np.concatenate([self.times, times]))

    def steps(self, m: int, half_life: np.timedelta64) -> np.ndarray:
        """Half-lives between each of the next m rows and the row before it, 0 for the first one."""
        times = self.times[:m]
        before = times[:1] if self.last is None else np.array([self.last])
        return np.diff(np.concatenate([before, times])) / half_life

    def after(self, m: int) -> Clock:
        """Clock after m more rows."""
        if not len(self.times):
            return self
        rest = self.times[m:]  # of a large batch, unless little is left
        return Clock(self.times[m - 1], rest.copy() if len(rest) < m else rest)


NO_TIMES = Clock()


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
