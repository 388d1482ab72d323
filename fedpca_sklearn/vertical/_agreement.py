"""What clients make of each other's leading vectors: weights, signs and averages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..communication import Federation
from ..communication._federation import Message
from ._operators import unit


@dataclass(frozen=True)
class Agreement:
    """How clients weight and exchange vectors; see `VFedPCA`.

    Parameters
    ----------
    weighting : str
    weight_scaling : bool or "ceil"
    neighbours_only : bool
    """

    weighting: str
    weight_scaling: bool | str
    neighbours_only: bool

    def weights(self, values: np.ndarray, n_columns: np.ndarray) -> np.ndarray:
        """Weights of the clients, over the largest, as only ratios count (eq. 13).

        A client whose leading eigenvalue is not positive has none.
        """
        if self.weighting == "equal":
            return np.where(values > 0, 1.0, 0.0)
        weights = np.maximum(values, 0.0)
        weights = weights / (weights.max() or 1.0)
        if self.weighting == "eigenvalue_per_column":
            weights = weights / n_columns
            weights = weights / (weights.max() or 1.0)
        return weights

    def common(
        self, federation: Federation, weights: np.ndarray, vectors: np.ndarray
    ) -> list[np.ndarray]:
        """Average of the vectors that a client has heard of, of unit length, as each has it.

        Parameters
        ----------
        federation : Federation
        weights : ndarray of shape (p,)
        vectors : ndarray of shape (p, n)

        Returns
        -------
        common : list of ndarray of shape (n,)
            The same array for all clients that have heard of all.
        """
        heard = self._exchange(federation, vectors)
        signs = common_signs(weights, vectors, heard)
        if heard.all():
            return [self._average(weights, vectors, signs)] * len(vectors)
        return [self._average(weights[h], vectors[h], signs[h]) for h in heard]

    def aligned(self, federation: Federation, vectors: list[np.ndarray]) -> list[np.ndarray]:
        """Clients' own vectors, (k, n) each, with signs by a last exchange between neighbours."""
        heard = self._heard(federation, len(vectors))
        if heard.all():
            return vectors
        self._send_to_neighbours(federation, heard, vectors[0].size, len(vectors[0]))
        V = np.array(vectors)
        for j in range(V.shape[1]):
            V[:, j] *= common_signs(np.ones(len(V)), V[:, j], heard)[:, None]
        return list(V)

    def _heard(self, federation: Federation, p: int) -> np.ndarray:
        """Which clients' vectors each client gets, as a mask."""
        if self.neighbours_only and federation.gossip is not None:
            return federation.gossip.distances <= 1
        return np.ones((p, p), dtype=bool)

    def _exchange(self, federation: Federation, vectors: np.ndarray) -> np.ndarray:
        """Log what is sent; which clients' vectors each client has then, as a mask."""
        p, n = vectors.shape
        heard, gossip = self._heard(federation, p), federation.gossip
        size = n if self.weighting == "equal" else n + 1
        sent = [Message(size, 8 * size)] * p
        if gossip is None:
            federation.log.record(sent, [Message(n, 8 * n)] * p)
        elif heard.all():
            for senders, receivers in gossip.relays():
                federation.log.record([sent[i] for i in senders], receivers=receivers)
        else:
            self._send_to_neighbours(federation, heard, size, 1)
        return heard

    @staticmethod
    def _send_to_neighbours(federation: Federation, heard: np.ndarray, size: int, k: int) -> None:
        """Log vectors, once to neighbours, and then their k products with those, to all."""
        federation.gossip.record(federation.log, size, 1)
        known = [Message(m, 8 * m) for m in k * (heard.sum(axis=1) - 1)]
        for senders, receivers in federation.gossip.relays():
            federation.log.record([known[i] for i in senders], receivers=receivers)

    def _average(self, weights: np.ndarray, vectors: np.ndarray, signs: np.ndarray) -> np.ndarray:
        if self.weight_scaling and self.weighting != "equal" and len(weights) > 1:
            weights = scaled(weights, larger_half(weights, self.weight_scaling == "ceil"))
        turned = signs[:, None] * vectors
        average = weights @ turned
        if self.weighting != "projection":
            return unit(average)
        rooted = np.sqrt(weights)[:, None] * turned
        u = unit(leading(rooted @ rooted.T) @ rooted)
        return -u if u @ average < 0 else u


def common_signs(weights: np.ndarray, vectors: np.ndarray, heard: np.ndarray) -> np.ndarray:
    """Signs of the clients' vectors, 1 or -1, as eigenvectors have none of their own.

    Those of the leading eigenvector of the products of the weighted vectors, of all pairs of
    clients that have heard of each other: of all signs about those that make the sum longest.
    """
    weighted = weights[:, None] * vectors
    return np.where(leading(np.where(heard, weighted @ weighted.T, 0.0)) < 0, -1.0, 1.0)


def leading(G: np.ndarray) -> np.ndarray:
    """Eigenvector of the largest eigenvalue of a symmetric matrix."""
    return np.linalg.eigh(G)[1][:, -1]


def scaled(weights: np.ndarray, larger: np.ndarray) -> np.ndarray:
    """Weights raised where they are larger and lowered elsewhere, by the share 1 / p (eq. 15)."""
    p = len(weights)
    return weights * np.where(larger, 1 + 1 / p, 1 - 1 / p)


def larger_half(weights: np.ndarray, ceil: bool = False) -> np.ndarray:
    """Mask of the half of the clients with the larger weights; of an odd number, the smaller half.

    Parameters
    ----------
    weights : ndarray of shape (p,)
    ceil : bool, default=False
        The larger half instead, as eq. 15 has it.
    """
    p = len(weights)
    mask = np.zeros(p, dtype=bool)
    mask[np.argsort(-weights, kind="stable")[: -(-p // 2) if ceil else p // 2]] = True
    return mask
