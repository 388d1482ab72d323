"""Thresholds of outliers for rows at clients, of which the server sees sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from .._kernels.missing import coordinates
from .._kernels.tolerances import OUTLIER_DEVIATIONS
from .._kernels.too_large import too_large
from ..communication import Federation
from ..tracking._outliers import (
    COLUMN_ROWS,
    KNOWN_ROWS,
    LEAST,
    blended,
    deviations_of_columns,
    deviations_of_rows,
    fits,
    or_before,
    search_rows,
    start_of_support,
    support,
)
from ._power_method import moments_by_sum
from ._queries import Client

# Mean logarithm of the absolute value of a standard normal variable: -(log 2 + Euler's gamma) / 2.
_MEAN_LOG = -0.635
# Sizes that count, over a robust deviation: smaller ones are no quieter, and outliers no larger.
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
        Standard deviations, at least that of all; the same for columns with under ten entries, and
        infinity for those with none.
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


class Limits(NamedTuple):
    """How outliers are found in all rows of a batch.

    Attributes
    ----------
    searched : bool
        Each row by itself, by thresholds of batches before; else by those that the subspace left in
        the batch.
    columns : ndarray of shape (d,)
        Thresholds of the columns.
    """

    searched: bool
    columns: np.ndarray

    def outliers(
        self, Z: np.ndarray, V: np.ndarray, xi: float | Literal["auto"], start: Any = None
    ) -> np.ndarray:
        """Where rows about the mean have outliers; ``start`` as `Sizes` has it, if it is known."""
        if self.searched:
            return search_rows(Z, V, xi, self.columns).mask
        start = start_of_support(Z, V, xi) if start is None else start
        return support(Z, V, start, self.columns)[0]


class Sizes(NamedTuple):
    """Local work of a client before thresholds are known.

    Attributes
    ----------
    start : ndarray of shape (m, k)
        Coordinates without the sparse part.
    mask : ndarray of shape (m, d), bool
        Outliers, each row by itself, by thresholds of batches before; none without them.
    logs : ndarray of shape (m, 2 d + 2)
        Rows to add up.
    """

    start: np.ndarray
    mask: np.ndarray
    logs: np.ndarray


def find_by_sums(
    federation: Callable[[], Federation],
    shards: Sequence[Shard],
    V: np.ndarray,
    xi: float | Literal["auto"],
    columns: np.ndarray | None,
    n_rows: int,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Outliers of each shard, and the thresholds of the columns after the batch.

    Parameters
    ----------
    federation : callable
        Makes the federation of a round.
    shards : sequence of Shard
    V : ndarray of shape (k, d)
    xi : float or "auto"
    columns, n_rows
        As in `limits_by_sums`.
    """
    local = federation().map
    found: list[Sizes] = []

    def scales(columns: np.ndarray | None) -> Scales:
        starts: list[Any] = [s.start for s in found] or [None] * len(shards)
        calls = ((s.label, s.Z, V, xi, columns, C) for s, C in zip(shards, starts, strict=True))
        found[:] = local(sizes_of, calls)
        clients = [Client(s.label, f.logs) for s, f in zip(shards, found, strict=True)]
        return scales_by_sums(federation(), clients, V.shape[1])

    limits, after = limits_by_sums(scales, columns, n_rows)
    if limits.searched:
        return [sizes.mask for sizes in found], after
    calls = ((s.label, s.Z, V, xi, limits, f.start) for s, f in zip(shards, found, strict=True))
    return list(local(_outliers, calls)), after


def limits_by_sums(
    scales: Callable[[np.ndarray | None], Scales], columns: np.ndarray | None, n_rows: int
) -> tuple[Limits, np.ndarray]:
    """How outliers of a batch are found, and the thresholds of the columns after it.

    As `RobustSubspaceTracker` finds them, but that a column's standard deviation comes from the
    mean logarithm of the sizes of its residuals, which outliers move little and which adds up.

    Parameters
    ----------
    scales : callable
        ``scales(columns)`` are those of the residuals without the outliers by some thresholds; of
        None those of all residuals.
    columns : ndarray of shape (d,) or None
        Thresholds of the columns from batches before, if any.
    n_rows : int
        Rows before.
    """
    if columns is not None and n_rows >= KNOWN_ROWS:
        found = scales(columns)
        if fits(found.level):
            squares = found.entries * np.where(found.entries > 0, found.columns, 0.0) ** 2
            after = blended(columns, squares, found.entries, found.every, found.level)
            return Limits(True, columns), after
    columns = or_before(OUTLIER_DEVIATIONS * scales(None).columns, columns)
    return Limits(False, columns), columns


def sizes_of(
    label: Any,
    Z: np.ndarray,
    V: np.ndarray,
    xi: float | Literal["auto"],
    columns: np.ndarray | None = None,
    start: np.ndarray | None = None,
) -> Sizes:
    """Local work of one client: coordinates, and rows of logarithms to add up."""
    if columns is None:
        start = start_of_support(Z, V, xi) if start is None else start
        logs = _logarithms(Z, start @ V, np.ones(len(Z)))
        return Sizes(start, np.zeros(Z.shape, dtype=bool), logs)
    start, mask, level = search_rows(Z, V, xi, columns)
    kept = np.where(mask, np.nan, Z)
    logs = _logarithms(kept, coordinates(kept, V)[0] @ V, level, columns)
    return Sizes(start, mask, logs)


def _outliers(
    label: Any, Z: np.ndarray, V: np.ndarray, xi: Any, limits: Limits, start: np.ndarray
) -> np.ndarray:
    """Local work of one client: outliers by new thresholds."""
    return limits.outliers(Z, V, xi, start)


def scales_by_sums(federation: Federation, clients: Sequence[Client], d: int) -> Scales:
    """From one round of clients whose rows are `Sizes.logs`; the server answers with thresholds."""
    mean, n = moments_by_sum(federation, clients, np.empty(d))
    total = n * mean
    sums, count = total[:d], np.maximum(total[d : 2 * d], 0.0)
    entries = float(count.sum())
    own = np.exp(sums / np.maximum(count, 1.0) - _MEAN_LOG)
    size = np.sqrt(max(float(total[-1]), 0.0) / max(entries, 1.0))
    every = LEAST * size / OUTLIER_DEVIATIONS
    if entries >= 1:
        # of all entries, or the median column's where many are constant
        order = np.argsort(own)
        half = int(np.searchsorted(count[order].cumsum(), entries / 2))
        of_all = np.exp(sums.sum() / entries - _MEAN_LOG)
        every = max(every, float(of_all), float(own[order[min(half, d - 1)]]))
    own = np.where(count < COLUMN_ROWS, every, np.maximum(own, every))
    return Scales(np.where(count < 0.5, np.inf, own), every, count, float(np.exp(mean[2 * d])))


def _logarithms(
    Z: np.ndarray, fit: np.ndarray, level: np.ndarray, columns: np.ndarray | None = None
) -> np.ndarray:
    """Rows to add up: logarithms of sizes, entries that are there, of the level, squares of fits.

    Sizes below a tenth of a robust deviation count as that, and outliers as a hundred, or as the
    threshold of their column. The deviation is the row's, or that of the column at this client: a
    row has none where a tenth of its columns are constant, and columns may have unlike units. Rows
    of which none is known are left out.
    """
    R = np.abs(Z - fit)
    seen = ~np.isnan(R)
    with np.errstate(over="ignore"):
        size = np.sqrt(np.mean(fit**2, axis=1))
        typical = np.sqrt(np.mean(size**2))
    if not np.isfinite(typical):
        raise too_large("sum of squares")
    floor = LEAST / OUTLIER_DEVIATIONS * np.where(size > 0, size, typical)
    deviation = np.maximum.outer(deviations_of_rows(R), deviations_of_columns(R))
    deviation = np.maximum(deviation, floor[:, None])
    counted = seen & (deviation > 0)
    high = _LARGEST_SIZE * deviation
    if columns is not None:
        high = np.maximum(high, np.where(np.isfinite(columns), columns, np.inf))
    logs = np.log(np.clip(R, _LEAST_SIZE * deviation, high, where=counted, out=np.ones_like(R)))
    squares = np.where(seen, fit, 0.0) ** 2
    last = [np.log(np.maximum(level, _TINY)), squares.sum(axis=1)]
    return np.column_stack([logs, counted, *last])
