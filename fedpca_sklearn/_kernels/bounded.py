"""Numbers so small that no sum of their squares can overflow."""

from __future__ import annotations

import numpy as np

# Squared norms of such rows, and variances of what was seen before.
_MOST = {np.dtype(np.float64): 1e200, np.dtype(np.float32): 1e30}


def is_bounded(row: np.ndarray, takes_nan: bool = False) -> bool:
    """Whether a row of floats is finite and small, except for NaN where entries may be missing."""
    most = _MOST[row.dtype]
    with np.errstate(over="ignore"):
        size = row.dot(row)
    if size < most:  # not so if it is NaN
        return True
    return takes_nan and bool(np.isnan(size)) and is_bounded(row[~np.isnan(row)])


def is_bounded_state(mean: np.ndarray, variance: float, dtype: np.dtype) -> bool:
    """Whether no sum over what has been seen and over such rows can overflow."""
    most = _MOST[dtype]
    return bool(variance < most and np.abs(mean).max(initial=0.0) < most**0.5)


def are_bounded_rows(X: object, n_features: int) -> bool:
    """Whether something is rows of floats in an array of numpy, all of them finite and small."""
    return (
        type(X) is np.ndarray
        and X.ndim == 2
        and X.shape[1] == n_features
        and X.dtype in _MOST
        and (len(X) == 1 or (len(X) > 1 and X.flags.c_contiguous))
        and is_bounded(X.reshape(-1))
    )
