"""Recursive least squares with forgetting: start and bounds of P, and a memory that grows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

# Rows over which residuals are averaged, and below which falling residuals forget nothing.
_WINDOW = 20
# Shares of a row's energy up to which a residual is a rounding error.
_ROUNDING = 1e-28


@dataclass(frozen=True)
class Memory:
    """Rows that count, and the residuals of recent rows with holes, now and at their least.

    Coordinates of whole rows are the same in every basis up to a linear map, so that a whole row
    takes no weight from those before. Coordinates of rows with holes are as wrong as the basis of
    their time. With n rows before it, one of which a share s is there multiplies their weights by
    (n / (n + 1))^(1 / s): weights grow with the rows, and noise averages out over about half of
    them.

    Where residuals fall below all before, the rows before came with a worse basis: n falls by as
    much. In noise they do not fall, and the memory grows; without noise they fall with each row,
    and the memory stays short until nothing is left to learn.

    ``patient``: while residuals do not fall, what is missing takes the weight, and the power is
    (1 - s) / s: for least squares of all rows that count, from a basis that some rows have shown.
    One that was drawn may be so far off that residuals stay until it is forgotten.
    """

    rows: float = 0.0
    residual: float = math.nan
    least: float = math.nan
    patient: bool = False

    def after(self, residual: float, share: float = 1.0) -> tuple[float, Memory]:
        """Factor for the weights of the rows before a row, and the memory with it.

        Parameters
        ----------
        residual : float
            Mean square of what the basis leaves of the row, over that of the row.
        share : float, default=1.0
            Of the row's entries that are there.
        """
        if share == 1:
            return 1.0, replace(self, rows=self.rows + 1)
        now, least, n = max(residual, _ROUNDING), self.least, self.rows
        if math.isnan(least):
            least = now
        else:
            now = self.residual + (now - self.residual) / _WINDOW
        counted = 1 - share if self.patient else 1.0
        if now < least:
            n = max(n * now / least, min(n, _WINDOW))
            least, counted = now, 1.0
        factor = (n / (n + 1)) ** (counted / share) if n else 1.0
        return factor, replace(self, rows=n + 1, residual=now, least=least)


EMPTY = Memory()


def relative_residual(residual: float, square: float, n_seen: int, k: int) -> float:
    """Mean square of a residual over that of its row.

    Parameters
    ----------
    residual, square : float
        Sums of squares over the entries that are there, of the residual and of the row; ``square``
        is above 0.
    n_seen, k : int
        Number of these entries, and of the coordinates that were fitted to them.
    """
    return residual / square * n_seen / max(n_seen - k, 1)


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
