"""Rows as what a subspace explains, and outliers."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from .._base.missing_entries import fill_in
from .._kernels.sizes import slices_of
from ._outliers import find_outliers

# Rows that are searched for outliers at once, outside `fit`.
ROWS_AT_ONCE = 64


def decompose(self: Any, X: Any) -> tuple[np.ndarray, np.ndarray]:
    """Separate rows into what the subspace explains and outliers.

    Parameters
    ----------
    X : array-like of shape (n, d)
        Rows, with NaN where entries are missing.

    Returns
    -------
    low_rank : ndarray of shape (n, d)
        X without outliers: at outliers and missing entries the least-squares fit of the
        subspace to the rest of the row, elsewhere X itself, noise included.
    sparse : ndarray of shape (n, d)
        ``X - low_rank`` at outliers, else zero.
    """
    X = self._check_X(X)
    X = X.toarray() if sp.issparse(X) else X
    usable = self._outliers_removed(X)
    lost = np.isnan(usable)
    low_rank = fill_in(self, X, usable, lost)
    sparse = np.where(lost & ~np.isnan(X), X - low_rank, 0.0).astype(X.dtype)
    return low_rank, sparse


def outliers_removed(tracker: Any, X: Any) -> np.ndarray:
    """Copy of rows with NaN at outliers, by the thresholds after the rows of the fit."""
    U = X.toarray() if sp.issparse(X) else X.copy()
    V, mean = tracker._float64_model()
    least = known_thresholds(tracker.support_threshold_)
    with np.errstate(over="ignore", invalid="ignore"):  # of values near the largest float
        for at in slices_of(len(U), ROWS_AT_ONCE):
            mask, _ = find_outliers(U[at] - mean, V, tracker.xi, tracker.support_threshold, least)
            U[at][mask] = np.nan
    return U


def known_thresholds(threshold: np.ndarray | None) -> np.ndarray | None:
    """Thresholds of the columns, None if no batch was searched yet."""
    return None if threshold is None or not threshold.any() else threshold
