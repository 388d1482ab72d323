"""Topologies: who exchanges messages with whom where there is no server, and their averages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from numbers import Real
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import shortest_path
from sklearn.base import BaseEstimator

from .._validation.checks import Interval, allowed, with_parameters
from ._channel import Channel
from ._federation import CommunicationLog, Federation, Message


@with_parameters
class Topology(BaseEstimator, ABC):
    """Base of the topologies: who exchanges messages with whom where there is no server.

    A subclass writes ``neighbours(n)``, which returns a symmetric array of shape (n, n) of 0 and 1
    or bool. All have a parameter ``tol``.

    Parameters
    ----------
    tol : float, default=1e-10
        Gossip between neighbours ends when at most this share of the clients' first differences
        is left.
    """

    tol: float = allowed(Interval(Real, 0, None, closed="left"), default=1e-10)

    def validate(self) -> None:
        """Raise a ValueError that names a wrong parameter; estimators call it before they start."""
        self._validate_params()

    @abstractmethod
    def neighbours(self, n: int) -> np.ndarray:
        """Return who exchanges messages with whom.

        Parameters
        ----------
        n : int
            Number of clients.

        Returns
        -------
        A : ndarray of shape (n, n)
            Symmetric, 0 and 1 or bool: whether two clients are neighbours. The diagonal does not
            matter. Estimators check that the shape is right and that every client can be reached.
        """


class Complete(Topology):
    """Every client exchanges messages with every other one.

    Parameters
    ----------
    tol : float, default=1e-10
        As in `Topology`; a single exchange suffices.

    Examples
    --------
    >>> from fedpca_sklearn import Complete
    >>> Complete().neighbours(3).astype(int)
    array([[0, 1, 1],
           [1, 0, 1],
           [1, 1, 0]])
    """

    def neighbours(self, n: int) -> np.ndarray:
        """All pairs; see `Topology.neighbours`."""
        return ~np.eye(n, dtype=bool)


class Ring(Topology):
    """Every client exchanges messages with the one before and the one after it.

    Parameters
    ----------
    tol : float, default=1e-10
        As in `Topology`.

    Examples
    --------
    >>> from fedpca_sklearn import Ring
    >>> Ring().neighbours(4).astype(int)
    array([[0, 1, 0, 1],
           [1, 0, 1, 0],
           [0, 1, 0, 1],
           [1, 0, 1, 0]])
    """

    def neighbours(self, n: int) -> np.ndarray:
        """Pairs of successive numbers, and the last with the first; see `Topology.neighbours`."""
        A, i = np.zeros((n, n), dtype=bool), np.arange(n)
        A[i, (i + 1) % n] = A[(i + 1) % n, i] = True
        return A & ~np.eye(n, dtype=bool)


class Star(Topology):
    """The first client exchanges messages with all others, and they with it alone.

    Parameters
    ----------
    tol : float, default=1e-10
        As in `Topology`.

    Examples
    --------
    >>> from fedpca_sklearn import Star
    >>> Star().neighbours(3).astype(int)
    array([[0, 1, 1],
           [1, 0, 0],
           [1, 0, 0]])
    """

    def neighbours(self, n: int) -> np.ndarray:
        """The first with every other; see `Topology.neighbours`."""
        A = np.zeros((n, n), dtype=bool)
        A[0] = A[:, 0] = True
        return A & ~np.eye(n, dtype=bool)


class Graph(Topology):
    """The neighbours are given by an array or a graph.

    Parameters
    ----------
    adjacency : array-like or sparse array of shape (n, n), or graph
        Symmetric, of 0 and 1, a row for each client. A graph of networkx is taken by its nodes in
        their order; parallel edges count once, directed ones must go both ways. Every client must
        be able to reach every other.
    tol : float, default=1e-10
        As in `Topology`.

    Examples
    --------
    A path of three clients:

    >>> from fedpca_sklearn import Graph
    >>> Graph([[0, 1, 0], [1, 0, 1], [0, 1, 0]]).neighbours(3).astype(int)
    array([[0, 1, 0],
           [1, 0, 1],
           [0, 1, 0]])
    """

    def __init__(self, adjacency: Any, tol: float = 1e-10):
        super().__init__(tol)
        self.adjacency = adjacency

    def neighbours(self, n: int) -> np.ndarray:
        """As given; see `Topology.neighbours`."""
        try:
            return _as_array(self.adjacency)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{_expected(n)}, got {self.adjacency!r}.") from error


def distances(A: np.ndarray) -> np.ndarray:
    """Number of steps between any two clients, infinity where there is no path."""
    return shortest_path(A.astype(np.float64), directed=False, unweighted=True)


NAMED = {"complete": Complete, "ring": Ring, "star": Star}


def as_topology(topology: Any) -> Topology | None:
    """Validated object that a parameter stands for; None: a server.

    Parameters
    ----------
    topology : Topology, None, {"server", "complete", "ring", "star"}, array-like or graph
    """
    if topology is None or (isinstance(topology, str) and topology == "server"):
        return None
    if isinstance(topology, str):
        if topology not in NAMED:
            names = ["server", *NAMED]
            raise ValueError(
                f"topology must be a Topology, an array or one of {names}, got {topology!r}."
            )
        return NAMED[topology]()
    if not isinstance(topology, Topology):
        return Graph(topology)
    topology.validate()
    return topology


def neighbours_of(topology: Topology, n: int) -> np.ndarray:
    """Symmetric bool matrix of the neighbours of n clients in a topology, checked."""
    A = np.asarray(topology.neighbours(n))
    if A.shape != (n, n):
        raise ValueError(f"{_expected(n)}, got shape {A.shape}.")
    if not np.isin(A, (0, 1)).all() or (A != A.T).any():
        raise ValueError(f"{_expected(n)}, got {topology!r}.")
    A = A.astype(bool)
    A[np.diag_indices(n)] = False
    if not np.isfinite(distances(A)).all():
        raise ValueError("topology must be connected: some clients cannot reach others.")
    return A


def _expected(n: int) -> str:
    return (
        f"topology must be a symmetric array of 0 and 1 of shape ({n}, {n}), a row for each client"
    )


def _as_array(adjacency: Any) -> np.ndarray:
    if not (hasattr(adjacency, "nodes") and hasattr(adjacency, "edges")):
        dense = adjacency.toarray() if sp.issparse(adjacency) else adjacency
        return np.asarray(dense, np.float64)
    position = {node: i for i, node in enumerate(adjacency.nodes)}
    A = np.zeros((len(position), len(position)))
    for a, b, *_ in adjacency.edges:
        A[position[a], position[b]] = 1
    directed = getattr(adjacency, "is_directed", bool)()
    return A if directed else np.maximum(A, A.T)


# -------------------------------------------------------------------- without a server


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
        for step in range(1, int(self.distances.max()) + 1):
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
