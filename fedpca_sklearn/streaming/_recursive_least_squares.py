"""Start and bounds of P in recursive least squares with forgetting."""

from __future__ import annotations

import numpy as np

# Largest ratio of P, the inverse covariance of the coordinates, to that of recent rows.
LIMIT = 1e8
# What is added to the covariance of the first rows' coordinates, relative to their mean square.
_RIDGE = 1e-4
# Factors below this let P grow by more than 1e4 within a block of 32 rows.
_FAST = 0.75


def recent_power(power: float, Z: np.ndarray, past: float) -> float:
    """Peak mean square of the entries of recent rows; rows of zeros or NaN leave it unchanged.

    Parameters
    ----------
    power : float
        Before these rows, 0 at the start.
    Z : ndarray of shape (m, d)
        NaN where entries are missing.
    past : float
        What these rows leave of it.
    """
    seen = ~np.isnan(Z)
    here = float(np.sum(Z**2, where=seen)) / max(int(seen.sum()), 1)
    return max(here, past * power) if here > 0 else power


def inverse_covariance(C: np.ndarray, power: float) -> np.ndarray:
    """P after the rows that a basis was made from.

    Parameters
    ----------
    C : ndarray of shape (m, k)
        Coordinates of the rows.
    power : float
        Mean square of the rows' entries, above 0.
    """
    return np.linalg.inv(C.T @ C + _RIDGE * power * np.eye(C.shape[1]))


def age(P: np.ndarray, f: float, most: float) -> None:
    """Let P grow in place as rows lose weight by the factor f, or the P of each feature.

    Where it grows fast it is bounded at once, else at the end of the block.
    """
    if f < 1:
        P /= f
    if f < _FAST:
        bound(P, most)


def bound(P: np.ndarray, most: float) -> None:
    """Add 1 / ``most`` to what P is the inverse of, in place, where that has all but faded.

    P may be one or one for each feature. Rounding errors that large rows leave of it may be
    negative: their size is what P is known to.
    """
    large = np.abs(P).max(axis=(-2, -1)) > most
    if large.any():
        p, E = np.linalg.eigh(P[large])
        p = np.abs(p)
        P[large] = (E * (most * (p / (p + most)))[..., None, :]) @ np.swapaxes(E, -1, -2)
