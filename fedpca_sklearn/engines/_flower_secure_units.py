"""Units in which columns are alike, for secure sums of rows that are scaled or adjusted.

A sum of integers is right to a share of the largest number in it, and small columns would lose
their digits beside large ones. So sums of squares of the columns are asked for first. Powers of two
near the deviations go out with the next question, and the second moments are those of rows in these
units, in which each column has its digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._kernels.scatter import dense
from .._kernels.slices import row_slices
from ._flower_questions import RefusedError, Task, check_mean
from ._flower_secure_site import Bounds
from ._flower_secure_sums import SecureSums

# Largest exponent of a unit: squares of two and their inverses are finite.
_LARGEST = 250
# Sums of squares this much above their rounding errors tell deviations, to 1e-4.
_TOLD = 1e4
# A bound grows by this share, as a product rounds in another way than a sum of squares.
_ROUNDING = 2.0**-20


def work_of_squares() -> dict[str, Task]:
    """What a site adds up to the sums of squares of the columns about a mean."""

    def squares(site, X, mean):
        return {"squares": squares_about(X, mean)}

    def bound(site, X, mean):
        return {"squares": float(squares_about(X, mean).max())}

    return {"squares_bound": Bounds(bound, fixed=0), "squares": Task(squares, fixed=0)}


def squares_about(X: Any, mean: np.ndarray) -> np.ndarray:
    """Sum of squares of each column about a mean."""
    n, d = X.shape
    check_mean(mean, d, True)
    total = np.zeros(d)
    with np.errstate(over="ignore", invalid="ignore"):
        for rows in row_slices(n, d):
            Z = dense(X[rows]) - mean
            total += np.einsum("ij,ij->j", Z, Z)
    if not np.isfinite(total.sum()):
        raise RefusedError("values that are too large")
    return total


def bounds_in_units(X: Any, mean: np.ndarray, units: np.ndarray) -> dict[str, float]:
    """Bounds on products and sums of rows less a mean, in units."""
    check_units(units, X.shape[1])
    with np.errstate(over="ignore"):
        scatter = float(np.sum(squares_about(X, mean) / units**2)) * (1 + _ROUNDING)
    if not np.isfinite(scatter):
        raise RefusedError("values that are too large")
    return {"products": scatter, "rest": float(np.sqrt(X.shape[0] * scatter))}


def check_units(units: np.ndarray, d: int) -> None:
    """Raise unless a vector are units of d columns."""
    if units.shape != (d,):
        raise RefusedError(f"the units must have shape ({d},), got {units.shape}")
    mantissas, exponents = np.frexp(units)
    if (mantissas != 0.5).any() or np.abs(exponents - 1).max() > _LARGEST:
        raise RefusedError(f"the units must be powers of two from 2^-{_LARGEST} to 2^{_LARGEST}")


def units_by_sums(sums: SecureSums, mean: np.ndarray, count: float) -> np.ndarray:
    """Powers of two near the deviations of the columns of all rows.

    Of a column that is too small beside the others to tell, what it can be at most.
    """
    sums.bound("squares_bound", ("squares",), mean)
    squares = sums.sum("squares", {"squares": (len(mean),)}, mean)["squares"]
    least = max(sums.most_rounding("squares"), np.finfo(float).tiny)
    deviations = np.sqrt(np.maximum(squares, least) / count)
    return np.ldexp(1.0, np.frexp(deviations)[1].clip(-_LARGEST + 1, _LARGEST - 1))


def least_squares_told(
    squares: np.ndarray, rest: np.ndarray, count: float, sums: SecureSums
) -> np.ndarray:
    """What integers and floats may have rounded in sums of squares about the mean, in units."""
    integers = sums.most_rounding("products") + 2 * np.abs(rest) * sums.most_rounding("rest")
    floats = np.finfo(float).eps * np.sqrt(count) * (np.abs(squares) + count * rest**2)
    return 2 * integers + 8 * floats


def without_variance(squares: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Columns that count as constant, or an error where it cannot be told how much they vary."""
    lost = squares <= least
    (doubtful,) = np.nonzero(~lost & (squares < _TOLD * least))
    if len(doubtful):
        raise ValueError(
            f"column {doubtful[0]} varies too little beside the others for secure sums to tell how "
            "much: give SecureAggregation more bits, or the columns units that are less unlike."
        )
    return lost


def check_residuals(fitted: Any, factor: np.ndarray, units: np.ndarray, least: float) -> None:
    """Raise where confounders leave less of a column than its scale can be told from.

    Parameters
    ----------
    fitted : estimator
    factor : ndarray of shape (m, d)
        Whose scatter matrix is that of the rows.
    units : ndarray of shape (d,)
    least : float
        Error of a sum of squares of a column, in units.
    """
    how, model = fitted._how(), fitted._whole_model()
    if not (fitted.scale and len(how.confounders)):
        return
    own = units[how.others]
    effects = np.abs(how.effects * units[how.confounders][:, None] / own).sum(axis=0)
    left = model.column_scatter * (how.scale / own) ** 2
    there = factor[:, how.others].any(axis=0)
    (lost,) = np.nonzero(there & (left < _TOLD * least * (1 + effects) ** 2))
    if len(lost):
        raise ValueError(
            f"partial_out={fitted.partial_out!r} leaves less of column {how.others[lost[0]]} than "
            "secure sums can tell, for scale=True: leave the column out, or fit without scale or "
            "without secure sums."
        )
