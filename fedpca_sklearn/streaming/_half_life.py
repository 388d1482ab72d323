"""Half-lives of rows, in rows and in time, and the weights of rows of some age."""

from __future__ import annotations

import datetime
import inspect
import re
import warnings
from contextlib import suppress
from numbers import Real
from typing import Any

import numpy as np

from .._base.sources import is_stream
from .._validation.checks import is_integer, is_real
from .._validation.intervals import Interval

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
    no_length = found is None or np.datetime_data(found)[0] in ("Y", "M", "generic")
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
    for name in others:
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
    n = X.shape[0] if hasattr(X, "shape") else len(X)
    if not is_integer(n):
        raise ValueError(
            "times need a known number of rows, which X, of Dask's, does not tell; "
            "X.to_dask_array(lengths=True) does."
        )
    return times_of(times, n)


def times_of(times: Any, n: int) -> np.ndarray:
    """Times of n rows as datetime64, of time zones in UTC."""
    found = np.asarray(times)
    if found.dtype.kind == "O":
        _refuse_periods(found)
    if found.dtype.kind in "OSU":
        with suppress(TypeError, ValueError), warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*timezone")  # numpy tells that it takes UTC
            found = np.asarray(times, dtype="datetime64[us]")
    if found.dtype.kind != "M":
        raise TypeError(f"times must be datetime64 or what numpy reads as such, got {found.dtype}.")
    if found.shape != (n,):
        raise ValueError(f"times must have one time per row, shape ({n},), got {found.shape}.")
    if np.isnat(found).any():
        raise ValueError(f"times must not be missing, got NaT at row {np.isnat(found).argmax()}.")
    return found


def _refuse_periods(times: np.ndarray) -> None:
    """Raise where numpy would read what has an hour as a date, as it does periods of pandas."""
    for time in times.ravel():
        if hasattr(time, "hour") and not isinstance(time, datetime.datetime):
            raise TypeError(
                "times must be datetime64 or what numpy reads as such, got "
                f"{type(time).__name__}: {time!r}."
            )


def newest_and_shares(
    half_life: np.timedelta64, times: np.ndarray, before: np.datetime64 | None
) -> tuple[np.datetime64, np.ndarray, float]:
    """Newest time so far, and the shares of weight left of rows of some times and of those before.

    ``before`` is the newest time of the rows before, None where there are none.
    """
    newest = times.max() if before is None else np.maximum(times.max(), before)
    past = 0.0 if before is None else float(shares_left(before, newest, half_life))
    return newest, shares_left(times, newest, half_life), past


def shares_left(times: Any, now: np.datetime64, half_life: np.timedelta64) -> Any:
    """Share of its weight that is left of a row of each time."""
    return np.exp2(-((now - times) / half_life))
