"""Forgetting: half-lives, rows of a block that fade, and least squares that forget."""

from __future__ import annotations

import datetime
import inspect
import math
import re
import warnings
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from numbers import Real
from typing import Any

import numpy as np
from sklearn.utils.validation import _num_samples

from .._base.sources import is_stream
from .._kernels.sizes import slices_of
from .._validation.checks import Interval, is_integer, is_real

# What the parameter may be.
HALF_LIFE = [
    datetime.timedelta,
    np.timedelta64,
    str,
    Interval(Real, 0.01, None, closed="left"),
    None,
]

CAME_WITHOUT_TIMES = "The rows seen before came without times; call fit to start again."
# Units of time by the names that pandas gives them, and numpy's names.
_UNITS = {"W": "W", "D": "D", "h": "h", "min": "m", "s": "s", "ms": "ms", "us": "us", "ns": "ns"}
_TEXT = re.compile(rf"([0-9]+) ?({'|'.join(_UNITS)})")


def duration_of(half_life: Any) -> np.timedelta64 | None:
    """Half-life as a time, or None where it is not a time but a number of rows, or None."""
    found = half_life
    if isinstance(half_life, str):
        match = _TEXT.fullmatch(half_life)
        unit: Any = match and _UNITS[match[2]]
        found = np.timedelta64(int(match[1]), unit) if match else None
    elif isinstance(half_life, datetime.timedelta):  # of pandas, too
        found = np.timedelta64(half_life)
    elif not isinstance(half_life, np.timedelta64):
        return None
    # a month, or a number without a unit, is no length of time
    no_length = found is None or np.datetime_data(found)[0] not in _UNITS.values()
    if no_length or found.astype(np.int64) <= 0:  # NaT is the smallest of all
        raise ValueError(
            "half_life must be a positive number of rows, or a positive time: a numpy.timedelta64 "
            f"or a whole number and one of {', '.join(_UNITS)}, such as '1h', got {half_life!r}."
        )
    return found


def factor_of(half_life: Any) -> float:
    """Factor on the weight of a row with each later row; 1 where the half-life is a time."""
    rows = is_real(half_life) and not isinstance(half_life, np.timedelta64)
    return 0.5 ** (1 / float(half_life)) if rows else 1.0


def check_half_life(estimator: Any, *others: str) -> None:
    """Raise unless the half-life is one, and nothing but the half-life says how rows fade.

    ``others`` are the parameters that say it otherwise, unless they are as by default.
    """
    half_life = estimator.half_life
    parameters = inspect.signature(type(estimator)).parameters
    for name in filter(parameters.__contains__, others):  # a tracker of one's own may lack them
        value, plain = getattr(estimator, name), parameters[name].default
        if value != plain:
            raise ValueError(
                f"{name} must be {plain!r} with a half_life, which says how rows fade, got "
                f"{value!r} and half_life={half_life!r}."
            )


def times_of_rows(half_life: Any, times: Any, X: Any) -> np.ndarray | None:
    """Times of the rows of a call, if the half-life is a time; None if it is not, and none came."""
    if duration_of(half_life) is None:
        if times is None:
            return None
        raise ValueError(
            f"times were given, but half_life={half_life!r} is not a time, as '1h' is."
        )
    if is_stream(X):
        raise ValueError(
            f"half_life={half_life!r} needs times, which cannot be given when X is an iterable of "
            "batches: call partial_fit with each batch and its times."
        )
    if times is None:
        raise ValueError(
            f"half_life={half_life!r} needs times, one for each row, got None. Estimators that fit "
            "this one do not hand them on: give a number of rows there."
        )
    n = X.shape[0] if getattr(X, "shape", ()) else _num_samples(X)
    if not is_integer(n):
        raise ValueError(
            "times need a known number of rows, which X, of Dask's, does not tell; "
            "X.to_dask_array(lengths=True) does."
        )
    return times_of(times, n)


def times_of(times: Any, n: int) -> np.ndarray:
    """Times of n rows as datetime64, of time zones in UTC."""
    missing = np.datetime64("NaT", "s")
    found = times.filled(missing) if np.ma.is_masked(times) else np.asarray(times)
    if found.dtype.kind == "O":
        _refuse_periods(found)
    if found.dtype.kind in "OSU":
        with suppress(TypeError, ValueError), warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*timezone")  # numpy tells that it takes UTC
            found = np.asarray(found, dtype="datetime64[us]")
    if found.dtype.kind != "M":
        raise TypeError(f"times must be datetime64 or what numpy reads as such, got {found.dtype}.")
    if found.shape != (n,):
        raise ValueError(f"times must have one time per row, shape ({n},), got {found.shape}.")
    if np.isnat(found).any():
        raise ValueError(f"times must not be missing, got NaT at row {np.isnat(found).argmax()}.")
    return found.astype("M8[D]") if np.datetime_data(found.dtype)[0] in "YM" else found


def in_one_unit(*times: np.ndarray) -> list[np.ndarray]:
    """Times in the finest of their units, or in microseconds where it ends before they do."""
    with suppress(OverflowError):  # of newer releases of numpy; others wrap around
        found = [part.astype(np.result_type(*times)) for part in times]
        pairs = zip(found, times, strict=True)
        if all((new.astype(old.dtype) == old).all() for new, old in pairs):
            return found
    return [part.astype("M8[us]") for part in times]


def _refuse_periods(times: np.ndarray) -> None:
    """Raise where numpy would read what has an hour as a date, as it does periods of pandas."""
    for time in times.ravel():
        if hasattr(time, "hour") and not isinstance(time, datetime.datetime):
            raise TypeError(
                "times must be datetime64 or what numpy reads as such, got "
                f"{type(time).__name__}: {time!r}."
            )


def weights_left(before: Any, times: np.ndarray, half_life: Any) -> tuple[float, Any, np.ndarray]:
    """Decay of the past, whose last time is ``before``; the latest time; decay of each row."""
    last, times = in_one_unit(times[:0] if before is None else np.array([before]), times)
    seen = np.concatenate([last, times])
    newest = seen.max()
    left = np.exp2(-((newest - seen) / half_life))
    return float(left[0]), newest, left[len(last) :]


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

    def __getitem__(self, rows: Any) -> Fading:
        return Fading(self.factor, self.steps[rows])

    @cached_property
    def to_end(self) -> tuple[float, np.ndarray]:
        """What is left of rows before the block at its end, and the steps from each row to it."""
        at = np.cumsum(self.steps)
        return float(self.factor ** self.steps.sum()), at[-1:] - at

    @cached_property
    def factors(self) -> np.ndarray:
        """What each row leaves of the rows before it: of numbers that a rule divides by.

        After a long time 1e-8 is left, so that directions which later rows do not show stay.
        """
        return np.maximum(self.factor**self.steps, _LEAST)


@lru_cache(maxsize=64)
def evenly(factor: float, m: int) -> Fading:
    """Fading of m rows by one factor each, which is the same for all blocks of a stream."""
    return Fading(factor, np.broadcast_to(1.0, m))


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
        last = times[:0] if self.last is None else np.array([self.last])
        last, known, times = in_one_unit(last, self.times, times)
        seen = np.concatenate([times[:1], last, known, times])[-len(times) - 1 :]
        back = np.flatnonzero(seen[1:] < seen[:-1])
        if len(back):
            raise ValueError(
                "times must not decrease, as a tracker takes rows in their order, got "
                f"{times[back[0]]} at row {back[0]}, after a later time."
            )
        return Clock(last[0] if len(last) else None, np.concatenate([known, times]))

    def steps(self, m: int, half_life: np.timedelta64) -> np.ndarray:
        """Half-lives between each of the next m rows and the row before it, 0 for the first one."""
        times = self.times[:m]
        before = times[:1] if self.last is None else np.array([self.last])
        return np.diff(np.concatenate([before, times])) / half_life

    def after(self, m: int) -> Clock:
        """Clock after m more rows."""
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
    known: Features, Y: np.ndarray, center: bool, fading: Fading
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
    center : bool
        False: rows are returned as they are, about the origin.
    fading : Fading

    Returns
    -------
    Z : ndarray of shape (m, d)
    known : Features
        After these rows.
    """
    seen, m = ~np.isnan(Y), len(Y)
    if seen.all() and fading.factor == 1 and np.ndim(known.weight) == 0:
        return _plain(known, Y, center)
    if m <= _ROWS_AT_ONCE:
        return _fading(known, Y, seen, center, fading)
    Z = np.empty_like(Y)
    for rows in slices_of(m, _ROWS_AT_ONCE):
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
    f, (past, ages) = fading.factor, fading.to_end
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


# Rows over which residuals are averaged, and below which falling residuals forget nothing.
_WINDOW = 20
# Shares of a row's energy up to which a residual is a rounding error.
_ROUNDING = 1e-28


@dataclass(frozen=True)
class Memory:
    """Rows that count, and the residuals of recent rows with holes, now and at their least.

    Coordinates of whole rows are the same in every basis up to a linear map, so that a whole row
    takes no weight from those before. Coordinates of rows with holes are as wrong as the basis of
    their time. With n rows before it, one of which a share s is there multiplies their weights by
    (n / (n + 1))^(1 / s): weights grow with the rows, and noise averages out over about half of
    them.

    Where residuals fall below all before, the rows before came with a worse basis: n falls by as
    much. In noise they do not fall, and the memory grows; without noise they fall with each row,
    and the memory stays short until nothing is left to learn.

    ``patient``: while residuals do not fall, what is missing takes the weight, and the power is
    (1 - s) / s: for least squares of all rows that count, from a basis that some rows have shown.
    One that was drawn may be so far off that residuals stay until it is forgotten.
    """

    rows: float = 0.0
    residual: float = math.nan
    least: float = math.nan
    patient: bool = False

    def after(
        self, residual: float, square: float, n_seen: int, n: int, k: int
    ) -> tuple[float, Memory]:
        """Factor for the weights of the rows before a row, and the memory with it.

        Parameters
        ----------
        residual, square : float
            Sums of squares over the entries that are there, of what the basis leaves of the row
            and of the row; ``square`` is above 0.
        n_seen, n : int
            Number of these entries, and of all.
        k : int
            Number of the coordinates that were fitted to them.
        """
        share, least, rows = n_seen / n, self.least, self.rows
        if share == 1:
            return 1.0, replace(self, rows=rows + 1)
        now = max(residual / square * n_seen / max(n_seen - k, 1), _ROUNDING)
        if math.isnan(least):
            least = now
        else:
            now = self.residual + (now - self.residual) / _WINDOW
        counted = 1 - share if self.patient else 1.0
        if now < least:
            rows = max(rows * now / least, min(rows, _WINDOW))
            least, counted = now, 1.0
        factor = (rows / (rows + 1)) ** (counted / share) if rows else 1.0
        return factor, Memory(rows + 1, now, least, self.patient)

    def with_whole_rows(self, m: int) -> Memory:
        """Memory with m rows without holes, which take no weight from those before them."""
        return replace(self, rows=self.rows + m)


EMPTY = Memory()


# Largest ratio of P, the inverse covariance of the coordinates, to that of recent rows.
LIMIT = 1e8
# What is added to the covariance of the first rows' coordinates, relative to their mean square.
_RIDGE = 1e-4
# Factors below this let P grow by more than 1e4 within a block of 32 rows.
_FAST = 0.75


def recent_power(power: float, Z: np.ndarray, past: float) -> float:
    """Peak mean square of the entries of recent rows; rows of zeros or NaN leave it unchanged.

    Parameters
    ----------
    power : float
        Before these rows, 0 at the start.
    Z : ndarray of shape (m, d)
        NaN where entries are missing.
    past : float
        What these rows leave of it.
    """
    seen = ~np.isnan(Z)
    here = float(np.sum(Z**2, where=seen)) / max(int(seen.sum()), 1)
    return max(here, past * power) if here > 0 else power


def inverse_covariance(C: np.ndarray, power: float) -> np.ndarray:
    """P after the rows that a basis was made from.

    Parameters
    ----------
    C : ndarray of shape (m, k)
        Coordinates of the rows.
    power : float
        Mean square of the rows' entries, above 0.
    """
    return np.linalg.inv(C.T @ C + _RIDGE * power * np.eye(C.shape[1]))


def age(P: np.ndarray, f: float, most: float) -> None:
    """Let P grow in place as rows lose weight by the factor f < 1, or the P of each feature.

    Where it grows fast it is bounded at once, else at the end of the block.
    """
    P /= f
    if f < _FAST:
        bound(P, most)


def bound(P: np.ndarray, most: float) -> None:
    """Add 1 / ``most`` to what P is the inverse of, in place, where that has all but faded.

    P may be one or one for each feature. Rounding errors that large rows leave of it may be
    negative: their size is what P is known to.
    """
    large = np.abs(P).max(axis=(-2, -1)) > most
    p, E = np.linalg.eigh(P[large])
    p = np.abs(p)
    P[large] = (E * (most * (p / (p + most)))[..., None, :]) @ np.swapaxes(E, -1, -2)
