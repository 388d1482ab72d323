"""Start and bounds of P in recursive least squares with forgetting."""

from __future__ import annotations

import numpy as np

# Largest ratio of P, the inverse covariance of the coordinates, to that of recent rows.
LIMIT = 1e8
# What is added to the covariance of the first rows' coordinates, relative to their mean square.
_RIDGE = 1e-4


def recent_power(power: float, Z: np.ndarray, forgetting_factor: float) -> float:
    """Peak mean square of the entries of recent rows; rows of zeros or NaN leave it unchanged.

    Parameters
    ----------
    power : float
        Before these rows, 0 at the start.
    Z : ndarray of shape (m, d)
        NaN where entries are missing.
    forgetting_factor : float
    """
    seen = ~np.isnan(Z)
    here = float(np.sum(Z**2, where=seen)) / max(int(seen.sum()), 1)
    return max(here, forgetting_factor ** len(Z) * power) if here > 0 else power


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
