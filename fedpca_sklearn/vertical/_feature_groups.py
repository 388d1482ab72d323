"""Columns that belong to different clients, and how the fits of them begin."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from .._dask import refuse_dask
from .._validation.checks import check_finite, is_integer
from .._validation.containers import validate_data
from ..communication import Channel, CommunicationLog, Federation
from ..communication._topology import federation_of


def started(
    estimator: Any, X: Any, channel: Channel | None = None
) -> tuple[np.ndarray, list[np.ndarray], Federation]:
    """Validated rows, each client's columns, and their federation with a new log."""
    refuse_dask(estimator, X)
    X = finite_rows(estimator, X)
    names = getattr(estimator, "feature_names_in_", None)
    groups = columns_of(estimator.feature_groups, X.shape[1], names)
    log = estimator.communication_ = CommunicationLog(floats_pooled=X.size)
    rng = check_random_state(estimator.random_state)
    topology, n_jobs = estimator.topology, estimator.n_jobs
    return X, groups, federation_of(topology, len(groups), n_jobs, rng, log, channel)


def finite_rows(estimator: Any, X: Any, reset: bool = True) -> np.ndarray:
    """Dense rows of finite floats."""
    checks = {"dtype": [np.float64, np.float32], "ensure_all_finite": False}
    X = validate_data(estimator, X, reset=reset, **checks)
    check_finite(X)
    return X


def columns_of(feature_groups: Any, n_features: int, names: Any = None) -> list[np.ndarray]:
    """Positions of the columns of each client: disjoint, and all of them.

    Parameters
    ----------
    feature_groups : int or list of array-like
        A number of contiguous groups, or the columns of each client, by position or by name.
    n_features : int
    names : array-like of str, default=None
        Names of the columns.
    """
    if is_integer(feature_groups):
        if not 1 <= feature_groups <= n_features:
            raise ValueError(
                f"feature_groups={feature_groups} must be between 1 and n_features={n_features}."
            )
        return np.array_split(np.arange(n_features), feature_groups)
    position = {} if names is None else {name: i for i, name in enumerate(names)}
    groups = [_positions(group, n_features, position) for group in feature_groups]
    count = np.bincount(np.concatenate([*groups, []]).astype(int), minlength=n_features)
    if not groups or (count != 1).any():
        wrong = int(np.flatnonzero(count != 1)[0]) if (count != 1).any() else 0
        raise ValueError(
            f"feature_groups must hold each column once, column {wrong} is held by {count[wrong]}."
        )
    return groups


def _positions(group: Any, n_features: int, position: dict) -> np.ndarray:
    found = []
    for column in np.atleast_1d(np.asarray(group, dtype=object)).tolist():
        i = position.get(column) if isinstance(column, str) else column
        if not is_integer(i) or not 0 <= i < n_features:
            named = "" if position else ", and the columns of X have no names"
            raise ValueError(
                f"feature_groups must hold names of columns or positions below {n_features} for "
                f"each client, got {column!r}{named}."
            )
        found.append(int(i))
    if not found:
        raise ValueError("feature_groups must not hold an empty group.")
    return np.array(found)
