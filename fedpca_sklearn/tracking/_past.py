"""How much of the batches before a batch counts."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

# A batch that fits worse than the best one by this factor, in squares, may tell of a change.
_WORSE = 2.0
# Where a batch fits better than all before by this factor, in squares, these were filled too badly.
_FALL = 0.1
# A subspace of the batch alone that fits better by this factor, in squares, tells of one.
_BETTER = 2.0
# Factor by which the losses of earlier batches count less with each batch.
LOSS_KEPT = 0.98
# The least positive number.
_TINY = np.finfo(np.float64).tiny
# Shares of a row's energy up to which a residual is a rounding error.
_ROUNDING = 1e-28


class Misfit(NamedTuple):
    """What a subspace does not explain of the entries of a batch.

    Attributes
    ----------
    noise : float
        Variance of an entry beyond the subspace.
    share : float
        The noise over the mean square of an entry.
    least_share : float
        What the share may be where the residual is hidden.
    """

    noise: float
    share: float
    least_share: float

    @classmethod
    def of(
        cls, residual: float, square: float, free: float, entries: float, hidden: float = 0.0
    ) -> Misfit:
        """From sums of `misfits`; residuals below ``hidden`` are not known."""
        noise = max(residual, hidden) / free if free > 0 else math.nan
        share = max(noise * entries / square, _ROUNDING) if square > 0 else math.nan
        known = min(max(residual, 0.0) / max(hidden, residual, _TINY), 1.0)
        return cls(noise, share, share * known)


def misfits(R: np.ndarray, Z: np.ndarray, k: np.ndarray) -> np.ndarray:
    """What `Misfit` is made from, for each row; zeros where k numbers fit any entries.

    Sums of squares of residuals and of entries about the mean, the number of entries less that of
    the coordinates that were fitted to them, and that of entries.
    """
    seen = np.sum(~np.isnan(Z), axis=1)
    with np.errstate(over="ignore"):
        squares = np.sum(R**2, axis=1), np.nansum(Z**2, axis=1)
    parts = np.stack([*squares, seen - k, seen], axis=1)
    parts[seen <= k] = 0.0
    return parts


def averaged(before: float, n: float, now: float, m: int) -> float:
    """Noise of m rows and of the n before them; NaN is not known."""
    if math.isnan(now) or math.isnan(before):
        return before if math.isnan(now) else now
    return (n * before + m * now) / (n + m)


def weight_of_past(share: float, least: float) -> float:
    """Weight of rows that were filled in with a basis of the misfit ``least``."""
    fall = min(share / least, 1.0)
    return fall if fall > _FALL else 0.0


def may_have_changed(share: float, least: float) -> bool:
    """Whether it is worth while to compare with a subspace of the batch alone."""
    return share > _WORSE * least


def has_changed(alone: float, past: float) -> bool:
    """Whether the subspace of a batch alone fits others clearly better, by both noises."""
    return _BETTER * alone < past


def past_weight(alone: float, past: float, n: float, m: int) -> float:
    """Weight of the n rows of the past beside a batch of m rows whose own subspace is tried.

    ``alone`` is the noise that the batch's subspace leaves of others like it, ``past`` what that of
    the past leaves. Two estimates are best weighed by the inverse of their errors: that of the
    batch is its noise, that of the past what it leaves beyond. And rows of two noises are by the
    inverse of these. The lesser of both counts.
    """
    if not alone < past:
        return 1.0
    return min(alone / past, alone / (past - alone) * m / n if n else 1.0)


def optimism(m: int, k: int) -> float:
    """Noise of other rows beyond the subspace of dimension k that fits m rows best, over theirs."""
    return (m + k) / (m - k) if m > k else math.inf
