"""Coordinates of rows with missing entries."""

from __future__ import annotations

import numpy as np

from .slices import row_slices
from .tolerances import UNDETERMINED


def coordinates(
    Z: np.ndarray, V: np.ndarray, cutoff: float = UNDETERMINED
) -> tuple[np.ndarray, np.ndarray]:
    """Least-squares coordinates of rows in an orthonormal basis, from the entries that are there.

    Where these entries do not determine the coordinates, those of least norm. Also returns by how
    much each row's coordinates amplify the variance of noise, 1 for whole rows. See
    `gram_inverses`.
    """
    gain = np.ones(len(Z))
    missing = np.isnan(Z)
    if not missing.any():
        return Z @ V.T, gain
    seen = ~missing
    C = np.where(seen, Z, 0.0) @ V.T
    holes = np.flatnonzero(~seen.all(axis=1))
    if len(holes) and len(V):
        inverse, gain[holes] = gram_inverses(seen[holes], V, cutoff)
        C[holes] = (inverse @ C[holes][:, :, None])[:, :, 0]
    return C, gain


def gram_inverses(
    seen: np.ndarray, V: np.ndarray, cutoff: float = UNDETERMINED
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
    """
    k, d = V.shape
    rows, cols = np.triu_indices(k)
    lost = np.zeros((len(seen), len(rows)))
    for features in row_slices(d, len(rows)):  # products of two entries of each
        part = V[:, features]
        gone = (~seen[:, features]).astype(np.float64)
        lost += gone @ (part[rows] * part[cols]).T
    G = np.empty((len(seen), k, k))
    G[:, rows, cols] = -lost
    G[:, cols, rows] = -lost
    G[:, np.arange(k), np.arange(k)] += 1
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
