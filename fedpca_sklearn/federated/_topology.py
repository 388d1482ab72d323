"""Who exchanges messages with whom where there is no server, and agreement by gossip."""

from __future__ import annotations

from typing import Any

import numpy as np

NAMES = ("server", "complete", "ring", "star")


def adjacency(topology: Any, n: int) -> np.ndarray | None:
    """Symmetric bool matrix of neighbours, None for a server.

    Parameters
    ----------
    topology : {"server", "complete", "ring", "star"}, array-like of shape (n, n), or graph
        A graph of networkx is taken by its nodes in their order.
    n : int
        Clients.
    """
    if isinstance(topology, str):
        if topology not in NAMES:
            raise ValueError(f"topology must be an array or one of {NAMES}, got {topology!r}.")
        if topology == "server":
            return None
        A = np.zeros((n, n), dtype=bool)
        if topology == "complete":
            A[:] = True
        elif topology == "star":
            A[0] = A[:, 0] = True
        else:
            i = np.arange(n)
            A[i, (i + 1) % n] = A[(i + 1) % n, i] = True
        A[np.diag_indices(n)] = False
        return A
    if hasattr(topology, "nodes") and hasattr(topology, "edges"):
        position = {node: i for i, node in enumerate(topology.nodes)}
        A = np.zeros((len(position), len(position)))
        for a, b in topology.edges:
            A[position[a], position[b]] = A[position[b], position[a]] = 1
    else:
        A = np.asarray(topology, dtype=np.float64)
    if A.shape != (n, n) or not np.isin(A, (0, 1)).all() or (A != A.T).any():
        raise ValueError(
            f"topology must be a symmetric array of 0 and 1 of shape ({n}, {n}), one row for each "
            f"client, got shape {A.shape}."
        )
    A = A.astype(bool)
    A[np.diag_indices(n)] = False
    if len(distances(A)) and not np.isfinite(distances(A)).all():
        raise ValueError("topology must be connected: some clients cannot reach others.")
    return A


def distances(A: np.ndarray) -> np.ndarray:
    """Number of steps between any two clients, infinity where there is no path."""
    n = len(A)
    steps = np.where(np.eye(n, dtype=bool), 0.0, np.inf)
    reached, step = np.eye(n, dtype=bool), 0
    while True:
        further = (reached @ A) & ~reached
        if not further.any():
            return steps
        step += 1
        steps[further] = step
        reached |= further


def metropolis(A: np.ndarray) -> np.ndarray:
    """Doubly stochastic weights of an average over neighbours (Metropolis and Hastings)."""
    degree = A.sum(axis=1)
    W = np.where(A, 1.0 / (1.0 + np.maximum.outer(degree, degree)), 0.0)
    W[np.diag_indices(len(A))] = 1.0 - W.sum(axis=1)
    return W


def gossip(values: np.ndarray, A: np.ndarray, tol: float, max_rounds: int) -> tuple[Any, int]:
    """Average of the clients' vectors at each client, by exchanges between neighbours.

    Parameters
    ----------
    values : ndarray of shape (n, m)
        A vector for each client.
    A : ndarray of shape (n, n), bool
    tol : float
        Stop when no client is farther from the first one than this share of the largest norm.
    max_rounds : int

    Returns
    -------
    values : ndarray of shape (n, m)
        What each client has in the end.
    n_rounds : int
    """
    W = metropolis(A)
    for n_rounds in range(max_rounds):
        spread = np.linalg.norm(values - values[0], axis=1).max()
        if spread <= tol * np.linalg.norm(values, axis=1).max():
            return values, n_rounds
        values = W @ values
    return values, max_rounds
