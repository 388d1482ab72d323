"""Topologies: who exchanges messages with whom where there is no server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from numbers import Real
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import shortest_path
from sklearn.base import BaseEstimator

from .._validation.intervals import Interval
from .._validation.parameters import allowed, with_parameters

__all__ = ["Complete", "Graph", "Ring", "Star", "Topology"]


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
