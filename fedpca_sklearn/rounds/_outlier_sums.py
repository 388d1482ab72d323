"""Thresholds of outliers for rows at clients, of which the server sees sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from .._kernels.missing import coordinates
from .._kernels.tolerances import OUTLIER_DEVIATIONS
from .._kernels.too_large import too_large
from ..communication import Federation
from ..communication._federation import named
from ..tracking._outliers import (
    COLUMN_ROWS,
    KNOWN_ROWS,
    LEAST,
    Search,
    blended,
    deviations_of_rows,
    fits,
    search_rows,
    start_of_support,
    support_of_rows,
)
from ._client import Client
from ._power_method import moments_by_sum

# Mean logarithm of the absolute value of a standard normal variable: -(log 2 + Euler's gamma) / 2.
_MEAN_LOG = -0.635
# Sizes that count, over a row's robust deviation: fewer are no quieter, and outliers no larger.
_LEAST_SIZE, _LARGEST_SIZE = 0.1, 100.0
# The least positive size.
_TINY = np.finfo(np.float64).tiny


class Shard(NamedTuple):
    """Rows of a client about the mean, and their positions in the batch."""

    label: Any
    at: np.ndarray
    Z: np.ndarray


class Scales(NamedTuple):
    """What sums of logarithms tell of residuals.

    Attributes
    ----------
    columns : ndarray of shape (d,)
        Standard deviations, at least that of all; the same for columns with under ten entries.
    every : float
        Standard deviation of all entries, or what exceeds rounding errors.
    entries : ndarray of shape (d,)
        Of each column.
    level : float
        Of the rows, as in `Search`.
    """

    columns: np.ndarray
    every: float
    entries: np.ndarray
    level: float


def find_by_sums(
    federation: Callable[[], Federation],
    shards: Sequence[Shard],
    V: np.ndarray,
    xi: float | Literal["auto"],
    columns: np.ndarray | None,
    n_rows: int,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Outliers of each shard, and the thresholds of the columns after the batch.

    As `RobustSubspaceTracker` finds them, but that a column's standard deviation comes from the
    mean logarithm of the sizes of its residuals, which outliers move little and which adds up.

    Parameters
    ----------
    federation : callable
        Makes the federation of a round.
    shards : sequence of Shard
    V : ndarray of shape (k, d)
    xi : float or "auto"
    columns : ndarray of shape (d,) or None
        Thresholds of the columns from batches before, if any.
    n_rows : int
        Rows before.
    """
    local = federation().map
    if columns is None or n_rows < KNOWN_ROWS:
        starts = list(local(_start, ((shard.label, shard.Z, V, xi) for shard in shards)))
    else:
        calls = ((shard.label, shard.Z, V, xi, columns) for shard in shards)
        found = list(local(_search, calls))
        masked = [np.where(s.mask, np.nan, shard.Z) for s, shard in zip(found, shards, strict=True)]
        refit = [coordinates(Z, V)[0] for Z in masked]
        scales = _scales(federation(), shards, masked, refit, V, [s.level for s in found])
        if fits(scales.level):
            squares = scales.entries * scales.columns**2
            after = blended(columns, squares, scales.entries, scales.every, scales.level)
            return [s.mask for s in found], after
        starts = [s.start for s in found]
    rows = [shard.Z for shard in shards]
    scales = _scales(federation(), shards, rows, starts, V)
    columns = OUTLIER_DEVIATIONS * scales.columns
    calls = ((shard.label, shard.Z, V, C, columns) for shard, C in zip(shards, starts, strict=True))
    return list(local(_support, calls)), columns


def _start(label: Any, Z: np.ndarray, *options: Any) -> np.ndarray:
    """Local work of one client: coordinates without the sparse part."""
    return start_of_support(Z, *options)


def _search(label: Any, Z: np.ndarray, *options: Any) -> Search:
    """Local work of one client whose thresholds are known."""
    return search_rows(Z, *options)


def _support(
    label: Any, Z: np.ndarray, V: np.ndarray, C: np.ndarray, columns: np.ndarray
) -> np.ndarray:
    """Local work of one client: outliers by new thresholds."""
    return support_of_rows(Z, V, C, columns)


def _scales(
    federation: Federation,
    shards: Sequence[Shard],
    rows: Sequence[np.ndarray],
    coordinates: Sequence[np.ndarray],
    V: np.ndarray,
    levels: Sequence[np.ndarray] | None = None,
) -> Scales:
    """From one round; the server answers with the thresholds."""
    clients = []
    for i, shard in enumerate(shards):
        level = np.ones(len(shard.Z)) if levels is None else levels[i]
        logs = named(_logarithms, shard.label, rows[i], coordinates[i] @ V, level)
        clients.append(Client(shard.label, logs))
    d = V.shape[1]
    mean, n = moments_by_sum(federation, clients, np.empty(d))
    total = n * mean
    sums, count = total[:d], np.maximum(total[d : 2 * d], 0.0)
    entries = max(float(count.sum()), 1.0)
    every = float(np.exp(sums.sum() / entries - _MEAN_LOG))
    size = np.sqrt(max(float(total[-1]), 0.0) / entries)
    every = max(every, LEAST * size / OUTLIER_DEVIATIONS)
    own = np.exp(sums / np.maximum(count, 1.0) - _MEAN_LOG)
    own = np.where(count < COLUMN_ROWS, every, np.maximum(own, every))
    return Scales(own, every, count, float(np.exp(mean[2 * d])))


def _logarithms(label: Any, Z: np.ndarray, fit: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Rows to add up: logarithms of sizes, entries that are there, of the level, squares of fits.

    Sizes below a tenth of the row's robust deviation count as that, and outliers as a hundred.
    """
    R = np.abs(Z - fit)
    seen = ~np.isnan(R)
    with np.errstate(over="ignore"):
        size = np.sqrt(np.mean(fit**2, axis=1))
    if not np.isfinite(size).all():
        raise too_large("sum of squares")
    deviation = np.maximum(deviations_of_rows(R), LEAST / OUTLIER_DEVIATIONS * size)[:, None]
    low = np.maximum(_LEAST_SIZE * deviation, _TINY)
    logs = np.log(np.clip(np.where(seen, R, 1.0), low, np.maximum(_LARGEST_SIZE * deviation, low)))
    squares = np.where(seen, fit, 0.0) ** 2
    last = [np.log(np.maximum(level, _TINY)), squares.sum(axis=1)]
    return np.column_stack([np.where(seen, logs, 0.0), seen, *last])
