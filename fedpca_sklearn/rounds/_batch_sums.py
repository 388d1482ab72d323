"""What a tracker computes of a batch of rows at clients, by rounds of sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._kernels import linalg
from .._kernels.row_moments import RowMoments
from ..communication import Federation
from ..summary import Subspace
from ..tracking._alternating_projections import robust_mean, without_sparse_part
from ..tracking._past import Misfit
from ._power_method import awaited_sum, by_rayleigh_ritz, moments_by_sum, power_method
from ._queries import Client, Query, Variances

# Directions in which the largest eigenvalue of the residuals is looked for.
_PROBES = 10
# Standard deviations of the channel's noise below which a sum of residuals is not known.
_NOISE_IN_MISFIT = 4.0
# Standard deviations of the channel's noise, beyond what it adds on average, that are no change.
_NOISE_DEVIATIONS = 10.0


def mean_of_observed(federation: Federation, clients: Sequence[Client], robust: bool) -> np.ndarray:
    """Mean of each feature's observed entries, or of the clients' medians by their counts.

    The server answers with the mean.
    """
    observed = [Client(c.label, observed_entries(c.rows, robust)) for c in clients]
    return mean_by_counts(federation, observed, clients[0].rows.shape[1])


def observed_entries(rows: np.ndarray, robust: bool) -> np.ndarray:
    """Observed entries of rows, or the medians in their place, beside where they are."""
    there = ~np.isnan(rows)
    typical = robust_mean(rows) if robust else np.nan_to_num(rows)
    return np.hstack([np.where(there, typical, 0.0), there])


def mean_by_counts(federation: Federation, clients: Sequence[Client], d: int) -> np.ndarray:
    """Mean of the entries of clients whose rows are `observed_entries`."""
    mean, n = moments_by_sum(federation, clients, np.empty(d))
    total, count = np.split(n * mean, 2)
    return total / np.maximum(count, 1.0)


class Misfits(Query):
    """Sum of the rows, which are `misfits`, and ten zeros."""

    kind = "misfits"
    shape = (4 + _PROBES,)

    def local(self, own: RowMoments) -> np.ndarray:
        """Sums of squares, whose own squares may overflow."""
        return np.pad(own.deviation(np.zeros(4)), (0, _PROBES))


def misfit_by_sums(federation: Federation, clients: Sequence[Client], reply: np.ndarray) -> Misfit:
    """Sum of the clients' `misfits`, and what the channel's noise may hide.

    Ten zeros travel with the four numbers: what arrives in their place tells the noise. A residual
    below four of its standard deviations is not known.
    """
    sums, probes = np.split(awaited_sum(federation, clients, Misfits(), reply), [4])
    hidden = _NOISE_IN_MISFIT * float(np.sqrt(np.mean(probes**2)))
    residual, square, free, entries = sums.tolist()
    return Misfit.of(residual, square, free, entries, hidden)


def start_without_outliers(
    federation: Federation, clients: Sequence[Client], start: np.ndarray, n_rounds: int
) -> np.ndarray:
    """Basis of the low-rank parts that AltProj finds at each client, by the power method."""
    calls = ((client.label, client.rows, len(start)) for client in clients)
    parts = list(federation.map(_low_rank_client, calls))
    return power_method(federation, parts, np.zeros(start.shape[1]), start, n_rounds).basis


def _low_rank_client(label: Any, rows: np.ndarray, rank: int) -> Client:
    """Local work of one client."""
    return Client(label, without_sparse_part(rows, rank))


def largest_eigenvalue(
    federation: Federation, clients: Sequence[Client], rng: np.random.RandomState, n_rounds: int
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
    d = clients[0].rows.shape[1]
    zero, start = np.zeros(d), linalg.random_basis(min(_PROBES, d), d, rng)
    U = power_method(federation, clients, zero, start, n_rounds).basis
    sums, q = awaited_sum(federation, clients, Variances(U, zero)), len(U)
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
    past, own = before, None
    if before.centered:
        # the server answers with the mean of all, d floats
        there, count = moments_by_sum(federation, clients, before.mean)
        shift = there - before.mean
        past = before._replace(mean=before.mean + count / (before.n_samples + count) * shift)
    if before.n_samples:
        correction = np.sqrt(before.n_samples) * (before.mean - past.mean)
        past = past._replace(scatter=before.scatter + correction @ correction)
        own = before.singular_values[:, None] * before.components
        own = np.concatenate([own, correction[None]])
    V = power_method(federation, clients, past.mean, start, n_rounds, own=own).basis
    return by_rayleigh_ritz(federation, clients, past, V, own)
