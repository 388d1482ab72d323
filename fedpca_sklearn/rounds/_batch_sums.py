"""What a tracker computes of a batch of rows at clients, by rounds of sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from .._kernels import linalg
from .._kernels.observed import coordinates
from .._kernels.row_moments import RowMoments
from .._kernels.tolerances import OUTLIER_DEVIATIONS
from ..communication import Federation
from ..summary import Subspace
from ..tracking import _outliers
from ..tracking._alternating_projections import robust_mean
from ..tracking._stmiss import Misfit
from ._power_method import awaited_sum, by_rayleigh_ritz, moments_by_sum, power_method
from ._queries import Client, Query, Variances

# Directions in which the largest eigenvalue of the residuals is looked for.
_PROBES = 10
# Standard deviations of the channel's noise below which a sum of residuals is not known.
_NOISE_IN_MISFIT = 4.0
# Standard deviations of the channel's noise, beyond what it adds on average, that are no change.
_NOISE_DEVIATIONS = 10.0
# Mean logarithm of the absolute value of a standard normal variable: -(log 2 + Euler's gamma) / 2.
_MEAN_LOG = -0.635
# Sizes that count, over a robust deviation: smaller ones are no quieter, and outliers no larger.
_LEAST_SIZE, _LARGEST_SIZE = 0.1, 100.0
# The least positive size.
_TINY = np.finfo(np.float64).tiny


def observed_entries(rows: np.ndarray, robust: bool) -> np.ndarray:
    """Observed entries of rows, or the medians in their place, beside where they are."""
    there = ~np.isnan(rows)
    typical = robust_mean(rows) if robust else np.nan_to_num(rows)
    return np.hstack([np.where(there, typical, 0.0), there])


def mean_by_counts(federation: Federation, clients: Sequence[Client], d: int) -> np.ndarray:
    """Mean of the entries of clients whose rows are `observed_entries`.

    Of each feature's observed entries, or of the clients' medians by their counts; NaN where none
    is observed. The server answers with the mean.
    """
    mean, n = moments_by_sum(federation, clients, np.empty(d))
    total, count = np.split(n * mean, 2)
    return np.where(count < 0.5, np.nan, total / np.maximum(count, 1.0))


class Misfits(Query):
    """Sum of the rows, which are what `Misfit` is made from, and ten zeros."""

    kind = "misfits"
    shapes = {"residual": (1,), "square": (1,), "rows": (2 + _PROBES,)}

    def local(self, own: RowMoments) -> np.ndarray:
        """Sums of squares, whose own squares may overflow."""
        return np.pad(own.deviation(np.zeros(4)), (0, _PROBES))


def misfit_by_sums(federation: Federation, clients: Sequence[Client], reply: np.ndarray) -> Misfit:
    """Sum of what clients' rows are misfit by, and what the channel's noise may hide.

    Ten zeros travel with the four numbers: what arrives in their place tells the noise. A residual
    below four of its standard deviations is not known.
    """
    sums, probes = np.split(awaited_sum(federation, clients, Misfits(), reply), [4])
    hidden = _NOISE_IN_MISFIT * float(np.sqrt(np.mean(probes**2)))
    residual, square, free, entries = sums.tolist()
    return Misfit.of(residual, square, free, entries, hidden)


def largest_eigenvalue(
    federation: Federation, clients: Sequence[Client], d: int, rng: Any, n_rounds: int
) -> tuple[float, float]:
    """Leading eigenvalue of the clients' scatter about the origin, and what noise may add to it.

    Algorithm 2 of Narayanamurthy et al. from a random start. The matrix of lines 10 to 13 would be
    symmetric but for the noise, whose size is read from that; it needs no knowledge of the channel.
    With noise of standard deviation s on q x q entries, the largest eigenvalue of its symmetric
    part is sqrt(2 q) s at most on average, and a function of the noise with Lipschitz constant s:
    it is x s above with probability exp(-x^2 / 2) at most. s^2 is estimated by an independent
    chi-squared variable, for q = 10 of 45 degrees of freedom. Integrated over it, the noise is
    above the margin in one look of 3e7 at most.
    """
    zero, start = np.zeros(d), linalg.random_basis(min(_PROBES, d), d, rng)
    U = power_method(federation, clients, zero, start, n_rounds).basis
    sums, q = awaited_sum(federation, clients, Variances(U, zero), U), len(U)
    inner, count = sums[:-2].reshape(q, q), float(sums[-1])
    scale = float(np.abs(inner).max()) or 1.0  # squares may vanish or overflow
    asymmetry = (inner - inner.T) / scale
    noise = scale * np.sqrt(np.sum(asymmetry**2) / 2 / max(q * (q - 1), 1))
    share = 1.0
    if federation.channel.loses_clients:
        n = sum(client.n_samples for client in clients)
        share = min(max(count / n, 1 / n), 1.0)
    value = max(float(np.linalg.eigvalsh((inner + inner.T) / 2)[-1]), 0.0)
    return value / share, noise * (np.sqrt(2 * q) + _NOISE_DEVIATIONS) / share


def r_svd_by_sums(
    federation: Federation,
    clients: Sequence[Client],
    before: Subspace,
    start: np.ndarray,
    n_rounds: int,
) -> Subspace:
    """Leading directions of the clients' rows and of what the server has of those before."""
    mean, scatter, own = before.mean, before.scatter, None
    if before.centered:
        # the server answers with the mean of all, d floats
        there, count = moments_by_sum(federation, clients, before.mean)
        shift = there - before.mean
        mean = before.mean + count / (before.n_samples + count) * shift
    if before.n_samples:
        correction = np.sqrt(before.n_samples) * (before.mean - mean)
        scatter += correction @ correction
        own = before.singular_values[:, None] * before.components
        own = np.concatenate([own, correction[None]])
    V = power_method(federation, clients, mean, start, n_rounds, own=own).basis
    past = before._replace(mean=mean, scatter=scatter)
    return by_rayleigh_ritz(federation, clients, past, V, own)


# -------------------------------------------------------------------- thresholds of outliers


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
            return _outliers.search_rows(Z, V, xi, self.columns).mask
        start = _outliers.start_of_support(Z, V, xi) if start is None else start
        return _outliers.support(Z, V, start, self.columns)[0]


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
    if columns is not None and n_rows >= _outliers.KNOWN_ROWS:
        found = scales(columns)
        if _outliers.fits(found.level):
            squares = found.entries * np.where(found.entries > 0, found.columns, 0.0) ** 2
            after = _outliers.blended(columns, squares, found.entries, found.every, found.level)
            return Limits(True, columns), after
    columns = _outliers.or_before(OUTLIER_DEVIATIONS * scales(None).columns, columns)
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
        start = _outliers.start_of_support(Z, V, xi) if start is None else start
        logs = _logarithms(Z, start @ V, np.ones(len(Z)))
        return Sizes(start, np.zeros(Z.shape, dtype=bool), logs)
    start, mask, level = _outliers.search_rows(Z, V, xi, columns)
    kept = np.where(mask, np.nan, Z)
    logs = _logarithms(kept, coordinates(kept, V)[0] @ V, level, columns)
    return Sizes(start, mask, logs)


def scales_by_sums(federation: Federation, clients: Sequence[Client], d: int) -> Scales:
    """From one round of clients whose rows are `Sizes.logs`; the server answers with thresholds."""
    mean, n = moments_by_sum(federation, clients, np.empty(d))
    total = n * mean
    sums, count = total[:d], np.maximum(total[d : 2 * d], 0.0)
    entries = float(count.sum())
    own = np.exp(sums / np.maximum(count, 1.0) - _MEAN_LOG)
    size = np.sqrt(max(float(total[-1]), 0.0) / max(entries, 1.0))
    every = _outliers.LEAST * size / OUTLIER_DEVIATIONS
    if entries >= 1:
        # of all entries, or the median column's where many are constant
        order = np.argsort(own)
        half = int(np.searchsorted(count[order].cumsum(), entries / 2))
        of_all = np.exp(sums.sum() / entries - _MEAN_LOG)
        every = max(every, float(of_all), float(own[order[min(half, d - 1)]]))
    own = np.where(count < _outliers.COLUMN_ROWS, every, np.maximum(own, every))
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
    with np.errstate(over="ignore"):  # what is not finite is refused when it is added up
        squares = np.where(seen, fit, 0.0) ** 2
        size = np.sqrt(np.mean(fit**2, axis=1))
        typical = np.sqrt(np.mean(size**2))
        last = [np.log(np.maximum(level, _TINY)), squares.sum(axis=1)]
    floor = _outliers.LEAST / OUTLIER_DEVIATIONS * np.where(size > 0, size, typical)
    deviation = np.maximum.outer(
        _outliers.deviations_of_rows(R), _outliers.deviations_of_columns(R)
    )
    deviation = np.maximum(deviation, floor[:, None])
    counted = seen & (deviation > 0)
    high = _LARGEST_SIZE * deviation
    if columns is not None:
        high = np.maximum(high, np.where(np.isfinite(columns), columns, np.inf))
    logs = np.log(np.clip(R, _LEAST_SIZE * deviation, high, where=counted, out=np.ones_like(R)))
    return np.column_stack([logs, counted, *last])
