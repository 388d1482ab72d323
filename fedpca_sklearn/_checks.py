"""Validation shared by the summary, the merge and the estimators."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils import check_array
from sklearn.utils.validation import _check_sample_weight


def float_array(name: str, value: Any, ndim: int, dtype: Any = None) -> np.ndarray:
    """Own, finite, C-contiguous float array."""
    array = np.array(value, dtype=dtype, order="C")
    if dtype is None and array.dtype not in (np.float32, np.float64):
        if array.dtype.kind not in "iufb":
            raise ValueError(f"{name} must be real numbers, got dtype {array.dtype}.")
        array = array.astype(np.float64)
    if array.ndim != ndim or (ndim == 2 and array.shape[1] == 0):
        raise ValueError(f"{name} must be a non-empty {ndim}-D array, got shape {array.shape}.")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity.")
    return array


def finite_float(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, got {value!r}.") from None
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{name} must be finite and non-negative, got {value!r}.")
    return number


def check_rows(X: Any) -> np.ndarray | sp.csr_array:
    return check_array(X, accept_sparse="csr", dtype=[np.float64, np.float32], input_name="X")


def check_forgetting_factor(value: Any) -> None:
    """Raise unless ``0 < value <= 1``."""
    if not 0 < value <= 1:
        raise ValueError(f"forgetting_factor must be in (0, 1], got {value!r}.")


def check_weight(sample_weight: Any, X: Any) -> np.ndarray | None:
    """Validated float64 weights, or None if there are none."""
    if sample_weight is None:
        return None
    return _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
