"""Units in which columns are alike, for secure sums of rows that are scaled or adjusted.

Each column has a grid of its own, so that small columns keep their digits in a sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base.adjusting import whole_model

# Largest exponent of a unit: squares of two and their inverses are finite.
_LARGEST = 250
# Sums of squares this much above their rounding errors tell deviations, to 1e-4.
_TOLD = 1e4


def units_of(squares: np.ndarray, least: np.ndarray, count: float) -> np.ndarray:
    """Powers of two near the deviations of columns with these sums of squares.

    Of a column that is too small beside its rounding errors to tell, what it can be at most.
    """
    deviations = np.sqrt(np.maximum(np.maximum(squares, least), np.finfo(float).tiny) / count)
    return np.ldexp(1.0, np.frexp(deviations)[1].clip(-_LARGEST + 1, _LARGEST - 1))


def least_squares_told(
    squares: np.ndarray, rest: np.ndarray, count: float, integers: np.ndarray
) -> np.ndarray:
    """What integers and floats may have rounded in sums of squares about the mean."""
    floats = np.finfo(float).eps * np.sqrt(count) * (np.abs(squares) + count * rest**2)
    return 2 * integers + 8 * floats


def without_variance(squares: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Columns that count as constant, or an error where it cannot be told how much they vary."""
    lost = squares <= least
    (doubtful,) = np.nonzero(~lost & (squares < _TOLD * least))
    if len(doubtful):
        raise ValueError(
            f"column {doubtful[0]} varies too little beside its mean for secure sums to tell how "
            "much: give SecureAggregation more bits, or centre the column."
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
    how, model = fitted._adjustment(), whole_model(fitted)
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
