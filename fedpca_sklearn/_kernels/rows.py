"""Products of rows about a mean with a basis and with themselves, block by block."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

# Entries that are centred at once, and those that stay in a core's cache.
_ENTRIES_AT_ONCE = 2**18
_ENTRIES_IN_CACHE = 2**17


def centred_product(X: Any, mean: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """``(X - mean) @ basis`` in float64; dense rows are centred first, block by block."""
    if sp.issparse(X):
        Z = X @ basis
        Z -= mean @ basis
        return Z
    Z = np.empty((X.shape[0], basis.shape[1]))
    step = max(1, _ENTRIES_AT_ONCE // X.shape[1])
    for start in range(0, len(X), step):
        np.matmul(X[start : start + step] - mean, basis, out=Z[start : start + step])
    return Z


def scatter_product(
    X: Any, mean: np.ndarray, V: np.ndarray, weight: np.ndarray | None = None
) -> np.ndarray:
    """``V (X - mean)^T diag(weight) (X - mean)`` in float64, for V of shape (k, d).

    Two products with each block of rows; dense rows are centred first, so that a large mean does
    not cancel. O(n d k) time, O(d k) memory; sparse rows are not densified.
    """
    if sp.issparse(X):
        C = X @ V.T - mean @ V.T
        if weight is not None:
            C *= weight[:, None]
        return np.asarray((X.T @ C).T) - np.outer(C.sum(axis=0), mean)
    result = np.zeros(V.shape)
    n, d = X.shape
    step = min(n, max(64, _ENTRIES_IN_CACHE // d))
    Vt, space = np.ascontiguousarray(V.T), np.empty((step, d))
    for start in range(0, n, step):
        rows = X[start : start + step]
        Z = np.subtract(rows, mean, out=space[: len(rows)])
        C = Z @ Vt
        if weight is not None:
            C *= weight[start : start + step, None]
        result += C.T @ Z
    return result


def scatter_about(X: Any, mean: np.ndarray, weight: np.ndarray | None) -> float:
    """Weighted sum of the squared distances of rows to a mean."""
    n = X.shape[0]
    w = np.ones(n) if weight is None else weight
    if sp.issparse(X):
        squares = sp.csr_array(X, dtype=np.float64).power(2).sum(axis=1)
        return float(w @ squares - 2 * (w @ X) @ mean + w.sum() * (mean @ mean))
    step = max(1, 2**18 // X.shape[1])
    total = 0.0
    for start in range(0, n, step):
        Z = X[start : start + step] - mean
        total += float(w[start : start + step] @ np.einsum("ij,ij->i", Z, Z))
    return total
