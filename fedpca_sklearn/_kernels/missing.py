"""Coordinates of rows with missing entries."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from .sizes import row_slices, slices_of
from .tolerances import UNDETERMINED

# A direction without variance beyond the noise: what is filled in has no part in it.
_NO_VARIANCE = 1e12
# Rows whose coordinates are computed at once.
ROWS_AT_ONCE = 64


def noise_ridge(variances: np.ndarray, noise: float) -> np.ndarray | None:
    """Ridge of the coordinates of rows with these variances, from entries with noise.

    sigma^2 / (lambda_i - sigma^2), by which the coordinates of `coordinates` are the conditional
    means in probabilistic PCA (Tipping and Bishop 1999). None without noise: least squares.

    Parameters
    ----------
    variances : ndarray of shape (k,)
        Of the rows along the basis, noise included.
    noise : float
        Variance of the noise of an entry.
    """
    if not noise > 0:
        return None
    beyond = variances.astype(np.float64) - noise
    least = noise / _NO_VARIANCE or np.finfo(np.float64).smallest_subnormal
    return np.minimum(noise / np.maximum(beyond, least), _NO_VARIANCE)


def has_holes(X: Any) -> bool:
    """Whether dense or sparse rows lack entries."""
    return bool(np.isnan(X.data if sp.issparse(X) else X).any())


def coordinates(
    Z: np.ndarray,
    V: np.ndarray,
    cutoff: float = UNDETERMINED,
    ridge: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates of rows in an orthonormal basis, from the entries that are there.

    By least squares, or for rows with missing entries with a ridge for each coordinate. Where the
    entries do not determine the coordinates, those of least norm. Also returns by how much each
    row's coordinates amplify the variance of noise, 1 for whole rows. See `gram_inverses`.
    """
    gain = np.ones(len(Z))
    missing = np.isnan(Z)
    if not missing.any():
        return Z @ V.T, gain
    seen = ~missing
    holes = np.flatnonzero(~seen.all(axis=1))
    with np.errstate(over="ignore", invalid="ignore"):
        C = np.where(seen, Z, 0.0) @ V.T
        if len(holes) and len(V):
            inverse, gain[holes] = gram_inverses(seen[holes], V, cutoff, ridge)
            C[holes] = (inverse @ C[holes][:, :, None])[:, :, 0]
    return C, gain


def coordinates_of_rows(
    X: Any, V: np.ndarray, mean: np.ndarray, ridge: np.ndarray | None, dtype: Any
) -> np.ndarray:
    """The same of dense or sparse rows that are not centred, some at a time.

    With a ridge those of a row with missing entries are of what is filled in.
    """
    Z = np.empty((X.shape[0], len(V)), dtype=dtype)
    for at in slices_of(X.shape[0], ROWS_AT_ONCE):
        rows = (X[at].toarray() if sp.issparse(X) else X[at]) - mean
        C, _ = coordinates(rows, V, ridge=ridge)
        Z[at] = C if ridge is None else np.where(np.isnan(rows), C @ V, rows) @ V.T
    return Z


def filled_in(
    X: np.ndarray,
    usable: np.ndarray,
    lost: np.ndarray,
    V: np.ndarray,
    mean: np.ndarray,
    ridge: np.ndarray | None,
) -> np.ndarray:
    """Copy of rows in which lost entries are replaced by the fit to the usable ones."""
    X = X.copy()
    for rows in slices_of(len(X), ROWS_AT_ONCE):
        if lost[rows].any():
            C, _ = coordinates(usable[rows] - mean, V, ridge=ridge)
            X[rows][lost[rows]] = (C @ V + mean)[lost[rows]]
    return X


def gram_inverses(
    seen: np.ndarray,
    V: np.ndarray,
    cutoff: float = UNDETERMINED,
    ridge: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Inverse of ``A^T A`` for each row, with A the part of ``V.T`` at the entries that are there.

    Eigenvalues of ``A^T A``, which are at most 1, are left out up to ``cutoff``. Also returns the
    largest entry of each inverse, infinity where eigenvalues were left out. O(d k^2) time a row,
    all rows at once.

    Parameters
    ----------
    seen : ndarray of shape (m, d), bool
    V : ndarray of shape (k, d), k > 0
        Orthonormal rows.
    cutoff : float
    ridge : ndarray of shape (k,) or None
        Added to the diagonal of ``A^T A``.
    """
    k = len(V)
    G = -lost_grams(seen, V)
    G[:, np.arange(k), np.arange(k)] += 1 if ridge is None else 1 + ridge
    try:
        inverse = np.linalg.inv(G)
        gain = np.abs(inverse).max(axis=(1, 2))
        doubtful = ~(gain < 1 / (k * cutoff))
    except np.linalg.LinAlgError:
        inverse, gain, doubtful = np.empty_like(G), np.empty(len(G)), np.ones(len(G), dtype=bool)
    if doubtful.any():
        values, U = np.linalg.eigh(G[doubtful])
        dropped = values <= cutoff
        values[dropped] = np.inf
        inverse[doubtful] = (U / values[:, None, :]) @ U.transpose(0, 2, 1)
        largest = np.abs(inverse[doubtful]).max(axis=(1, 2))
        gain[doubtful] = np.where(dropped.any(axis=1), np.inf, largest)
    return inverse, gain


def lost_grams(seen: np.ndarray, V: np.ndarray) -> np.ndarray:
    """``I - A^T A`` for each row: the Gram matrix of the basis at the entries that are missing."""
    k, d = V.shape
    rows, cols = np.triu_indices(k)
    lost = np.zeros((len(seen), len(rows)))
    for features in row_slices(d, len(rows)):  # products of two entries of each
        part = V[:, features]
        gone = (~seen[:, features]).astype(np.float64)
        lost += gone @ (part[rows] * part[cols]).T
    G = np.empty((len(seen), k, k))
    G[:, rows, cols] = lost
    G[:, cols, rows] = lost
    return G


def fitted_numbers(seen: np.ndarray, V: np.ndarray, ridge: np.ndarray | None) -> np.ndarray:
    """Number of coordinates that are fitted to each row; those with a ridge count in part.

    The trace of ``A (A^T A + ridge)^{-1} A^T``.
    """
    k = len(V)
    numbers = np.full(len(seen), float(k))
    if ridge is not None and k:
        inverse, _ = gram_inverses(seen, V, ridge=ridge)
        numbers -= np.einsum("ijj,j->i", inverse, ridge)
    return numbers
