"""Sums of the columns of a client: by scikit-learn's StandardScaler, or from a summary."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.preprocessing import StandardScaler

from .._kernels.column_moments import ColumnMoments
from .._kernels.rows import entries_once
from ..summary import Subspace
from ..summary._merging import names_of_parts


def moments_of(scaler: StandardScaler, rest: Any = 0.0) -> ColumnMoments:
    """Moments of the rows that a scaler has seen, or an error where they overflow."""
    shape = (scaler.n_features_in_,)
    n_entries = np.broadcast_to(scaler.n_samples_seen_, shape)
    mean, var = (
        np.zeros(shape) if values is None else np.where(n_entries > 0, values, 0.0)
        for values in (scaler.mean_, scaler.var_)
    )
    squares = np.maximum(var, 0.0) * n_entries  # rounding may leave less than nothing
    return ColumnMoments(n_entries, mean, np.broadcast_to(rest, shape), squares).checked()


def local_moments(label: Any, X: Any, weight: np.ndarray | None) -> ColumnMoments:
    """What a client sends: moments of its columns, without missing entries."""
    X = entries_once(X.astype(np.float64, copy=False))
    local = StandardScaler(with_mean=not sp.issparse(X))
    unit, given = 1.0, weight
    if weight is not None:  # which scikit-learn squares; a power of two changes no digit
        unit = np.ldexp(1.0, np.frexp(weight.max(initial=0.0))[1] - 1)
        weight = weight / unit
    with np.errstate(all="ignore"):  # of what overflows, and of columns without entries
        moments = moments_of(local.fit(X, sample_weight=weight))
    if sp.issparse(X):  # a column of zeros and large entries varies by as much as its mean
        return in_units(moments, unit).checked(given)
    apart = X - moments.mean
    apart[np.isnan(apart)] = 0.0
    total = apart.sum(axis=0) if weight is None else weight @ apart
    rest = total / np.where(moments.n_entries > 0, moments.n_entries, 1)
    return in_units(moments._replace(rest=rest), unit).checked(given)


def in_units(moments: ColumnMoments, unit: float) -> ColumnMoments:
    """Moments of rows whose weights were divided by a unit."""
    with np.errstate(over="ignore"):
        n_entries, squares = moments.n_entries * unit, moments.squares * unit
    return moments._replace(n_entries=n_entries, squares=squares)


def moments_of_summaries(subspaces: list[Subspace]) -> list[ColumnMoments]:
    """Moments in each summary, or an error where the scatter of the columns is not known."""
    parts = []
    for who, s in zip(names_of_parts(subspaces), subspaces, strict=True):
        if s.column_scatter is None or not s.centered:
            raise ValueError(
                f"{who} must be about its mean and know its column_scatter, got "
                f"centered={s.centered} and column_scatter={s.column_scatter}."
            )
        n_entries, rest = np.full(s.n_features, s.n_samples), np.zeros(s.n_features)
        parts.append(ColumnMoments(n_entries, s.mean, rest, s.column_scatter))
    return parts
