"""A federation without a server: averages by gossip, as clients exchange values with neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

from ._channel import Channel
from ._federation import CommunicationLog, Federation, Message
from ._topology import as_topology, distances, neighbours_of


def metropolis(A: np.ndarray) -> np.ndarray:
    """Doubly stochastic weights of an average over neighbours (Metropolis and Hastings)."""
    degree = A.sum(axis=1)
    W = np.where(A, 1.0 / (1.0 + np.maximum.outer(degree, degree)), 0.0)
    W[np.diag_indices(len(A))] = 1.0 - W.sum(axis=1)
    return W


class Gossip:
    """Averages at each client, by exchanges between neighbours.

    Chebyshev's iteration on the Metropolis weights W: with r the second largest absolute
    eigenvalue of W, differences between clients fall by 1 / T_m(1 / r) in m exchanges (T_m is
    Chebyshev's polynomial), which takes about sqrt((1 - r) / 2) times as many exchanges as W alone.
    The number of exchanges follows from the topology and ``tol``; no test of convergence is needed.

    Parameters
    ----------
    A : ndarray of shape (n, n), bool
        Neighbours; connected.
    tol : float
        Largest distance of a client from the average in the end, as a share of the clients' first
        differences (root of the sum of their squared distances from the average).
    """

    def __init__(self, A: np.ndarray, tol: float):
        n, eps = len(A), np.finfo(np.float64).eps
        weights = metropolis(A)
        absolute = np.sort(np.abs(np.linalg.eigvalsh(weights)))
        self.weights = sp.csr_array(weights)
        self.radius = float(absolute[-2]) if n > 1 else 0.0
        self.distances = distances(A)
        self.diameter = int(self.distances.max())
        self.complete = bool(A.sum() == n * (n - 1))
        self.receivers = np.nonzero(A)[1].tolist()
        share = min(max(tol, eps), 1.0)
        wanted = np.arccosh(1 / share) / np.arccosh(1 / max(self.radius, eps))
        self.n_exchanges = int(np.ceil(wanted)) if n > 1 else 0

    def average(self, values: np.ndarray) -> np.ndarray:
        """Average of the rows, one of each client, as each has it in the end."""
        if not self.n_exchanges:
            return values
        before, values, omega = values, self.weights @ values, 2.0
        for _ in range(self.n_exchanges - 1):
            omega = 1 / (1 - omega * self.radius**2 / 4)
            before, values = values, omega * (self.weights @ values) + (1 - omega) * before
        return values

    def relays(self) -> Iterator[tuple[list[int], list[int]]]:
        """Yield senders' numbers and receivers, step by step, until all have heard of all."""
        for step in range(1, self.diameter + 1):
            first, last = np.nonzero(self.distances == step)
            yield first.tolist(), last.tolist()

    def record(self, log: CommunicationLog, n_floats: int, n_exchanges: int) -> None:
        """Log exchanges in which each client sends to each of its neighbours."""
        messages = [Message(n_floats, 8 * n_floats)] * len(self.receivers)
        for _ in range(n_exchanges):
            log.record(messages, receivers=self.receivers)


class Peers(Federation):
    """Clients without a server: sums by gossip between neighbours.

    Later steps are computed once, from the sum as the first client has it; ``disagreement`` is the
    largest distance of another client's sum from it.

    Parameters
    ----------
    A : ndarray of shape (n, n), bool
    tol : float
        As in `Gossip`.
    n_jobs, rng, log
        As in `Federation`.
    """

    def __init__(self, A: np.ndarray, tol: float, n_jobs: Any, rng: Any, log: CommunicationLog):
        super().__init__(n_jobs, None, rng, log)
        self.gossip = Gossip(A, tol)

    def sum(self, function: Any, clients: Any, broadcast: Any = None) -> np.ndarray:
        """Sum that clients agree on; see `Federation.sum`."""
        messages = list(self.map(function, clients))
        values = self.gossip.average(len(messages) * np.stack([m.ravel() for m in messages]))
        self.gossip.record(self.log, messages[0].size, self.gossip.n_exchanges)
        shares = values / (np.abs(values).max() or 1.0)
        spread = np.linalg.norm(shares - shares[0], axis=1).max()
        self.disagreement = float(spread / (np.linalg.norm(shares, axis=1).max() or 1.0))
        self.n_rounds += 1
        return values[0].reshape(messages[0].shape)


def federation_of(
    topology: Any,
    n_clients: int,
    n_jobs: Any,
    rng: Any,
    log: CommunicationLog,
    channel: Channel | None = None,
) -> Federation:
    """`Federation` if the parameter ``topology`` stands for a server, otherwise `Peers`."""
    topology = as_topology(topology)
    if topology is None:
        return Federation(n_jobs, channel, rng, log)
    if channel is not None:
        raise ValueError(f"channel needs topology='server', got {topology!r}.")
    return Peers(neighbours_of(topology, n_clients), topology.tol, n_jobs, rng, log)
