"""Sums of the columns of a client, by scikit-learn's StandardScaler."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.preprocessing import StandardScaler

from .._kernels.column_moments import ColumnMoments


def moments_of(scaler: StandardScaler) -> ColumnMoments:
    """Moments of the rows that a scaler has seen, or an error where they overflow."""
    shape = (scaler.n_features_in_,)
    count = np.broadcast_to(scaler.n_samples_seen_, shape)
    mean, var = (
        np.zeros(shape) if values is None else np.where(count > 0, values, 0.0)
        for values in (scaler.mean_, scaler.var_)
    )
    squares = np.maximum(var, 0.0) * count  # rounding may leave less than nothing
    return ColumnMoments(count, mean, squares).checked()


def local_moments(label: Any, X: Any, weight: np.ndarray | None) -> ColumnMoments:
    """What a client sends: moments of its columns, without missing entries."""
    local = StandardScaler(with_mean=not sp.issparse(X))
    with np.errstate(all="ignore"):  # of what overflows, and of columns without entries
        return moments_of(local.fit(X.astype(np.float64, copy=False), sample_weight=weight))
