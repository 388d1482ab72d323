"""VFedPCA: an average of the clients' own leading vectors, of Cheung, Jiang, Yu and Lou (2022)."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from ..communication import CommunicationLog
from ..communication._federation import Message
from ..communication._gossip import Gossip
from ..rounds._client import Client
from ._vertical_method import LeftVectors, VerticalMethod

__all__ = ["VFedPCA"]


class VFedPCA(VerticalMethod):
    """Rounds of an average of the clients' own leading left vectors; few floats, inexact.

    Parameters
    ----------
    local_iterations : int, default=20
        Power iterations at a client in a round; L of [1]_.
    n_rounds : int, default=3
        Rounds for each component; T of [1]_.
    warm_start : bool, default=True
        Local iterations start from the last common vector (Algorithm 3).
    weighting : {"eigenvalue", "equal"}, default="eigenvalue"
        Weight of a client's vector: its eigenvalue (eq. 13), or one (VFedAvgPCA).
    weight_scaling : bool, default=True
        With eigenvalue weights: those of the half of the clients with the larger ones are raised by
        the share 1 / p, the others lowered (eq. 15, Algorithm 4).

    See Also
    --------
    LeftVectorMerge, PowerRounds : Exact methods.

    Notes
    -----
    Local power iteration (eq. 5 and 6 of [1]_), weights (eq. 13), and after each round the update
    X_i <- X_i m m^T with m = X_i^T u / |X_i^T u| (eq. 14). That leaves each client with one
    direction, so from the second round on vectors hardly change: more rounds do not help. Signs are
    aligned before averaging, by the leading eigenvector of the products of the weighted vectors.

    [1]_ treats the leading vector; here the next ones follow by deflation, X_i <- X_i - u u^T X_i
    from the rows as they were. (Its "k + 1 to 2k" could also mean later eigenvectors of each
    client.)

    In gossip clients first pass on the largest eigenvalue that they have heard of and its vector,
    for the signs, until all have it; then weighted vectors are averaged over neighbours. With
    ``weight_scaling`` a client there compares its eigenvalue with the average, found the same way,
    as it does not know the order.

    p (n + 1) floats up and p n down a round and component with a server, p (p - 1) (n + 1) between
    all; by gossip in m exchanges over E edges, of a graph of diameter D, 2 E (D (n + 1) + m (n +
    1)), or 2 E (D (n + 1) + m n) without weight scaling.

    References
    ----------
    .. [1] Y. Cheung, J. Jiang, F. Yu, J. Lou, "Vertical federated principal component analysis and
       its kernel extension on feature-wise distributed data", 2022, arXiv:2203.01752.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.decomposition import PCA
    >>> from sklearn.preprocessing import scale
    >>> from fedpca_sklearn import VerticalFederatedPCA, VFedPCA, subspace_distance
    >>> X = scale(load_wine().data)
    >>> exact = PCA(1).fit(X).components_
    >>> for scaling in True, False:
    ...     method = VFedPCA(weight_scaling=scaling)
    ...     pca = VerticalFederatedPCA(1, feature_groups=4, method=method, random_state=0).fit(X)
    ...     print(round(subspace_distance(pca.components_, exact), 3))
    0.032
    0.072
    """

    _parameter_constraints: dict = {
        "local_iterations": [Interval(Integral, 1, None, closed="left")],
        "n_rounds": [Interval(Integral, 1, None, closed="left")],
        "warm_start": ["boolean"],
        "weighting": [StrOptions({"eigenvalue", "equal"})],
        "weight_scaling": ["boolean"],
    }

    def __init__(
        self,
        local_iterations: int = 20,
        n_rounds: int = 3,
        warm_start: bool = True,
        weighting: str = "eigenvalue",
        weight_scaling: bool = True,
    ):
        self.local_iterations = local_iterations
        self.n_rounds = n_rounds
        self.warm_start = warm_start
        self.weighting = weighting
        self.weight_scaling = weight_scaling

    def left_vectors(self, federation, clients, rank, rounds=range) -> LeftVectors:
        """Take vectors one after the other; see `VerticalMethod.left_vectors`."""
        n = clients[0].rows.shape[1]
        found: list[np.ndarray] = []
        n_iter = 0
        for turn in rounds(rank * self.n_rounds):
            if turn % self.n_rounds == 0:  # the next component
                if found:
                    clients = [deflated(c, u) for c, u in zip(clients, found[-1], strict=True)]
                start = unit(federation.rng.standard_normal(n))
                starts, current = np.tile(start, (len(clients), 1)), clients
                found.append(starts)
            calls = [
                (c.label, c.rows, b, self.local_iterations)
                for c, b in zip(current, starts, strict=True)
            ]
            values, vectors = zip(*federation.map(local_power, calls), strict=True)
            found[-1] = common = agree(
                np.array(values),
                np.array(vectors),
                self.weighting == "equal",
                self.weight_scaling,
                federation.log,
                federation.gossip,
            )
            current = [updated(c, u) for c, u in zip(current, common, strict=True)]
            if self.warm_start:
                starts = common
            n_iter += 1
        U = np.stack(found, axis=1)
        apart = np.linalg.norm(U[:, None] - U[None], axis=-1)
        return LeftVectors(U, n_iter, float(apart.max()))


# -------------------------------------------------------------------------------- at the clients


def local_power(
    label: int, rows: np.ndarray, a: np.ndarray, iterations: int
) -> tuple[float, np.ndarray]:
    """Leading eigenvalue and left vector of a client's columns, by power iteration (eq. 5, 6)."""
    for _ in range(iterations):
        a = unit((rows @ a) @ rows)
    return float(np.sum((rows @ a) ** 2)), a


def updated(client: Client, u: np.ndarray) -> Client:
    """The client after the update of its columns by the common vector (eq. 14)."""
    m = unit(client.rows @ u)
    return replace(client, rows=np.outer(m, m @ client.rows))


def deflated(client: Client, u: np.ndarray) -> Client:
    """The client without the direction of a common vector."""
    return replace(client, rows=client.rows - np.outer(client.rows @ u, u))


# ------------------------------------------------------------------------------ what they agree on


def agree(
    values: np.ndarray,
    vectors: np.ndarray,
    equal: bool,
    scaling: bool,
    log: CommunicationLog,
    gossip: Gossip | None = None,
) -> np.ndarray:
    """Weighted average of the clients' vectors, of unit length, as each has it.

    Parameters
    ----------
    values : ndarray of shape (p,)
    vectors : ndarray of shape (p, n)
    equal : bool
        Weights are one, not the eigenvalues (eq. 13).
    scaling : bool
        Larger eigenvalues are raised, the others lowered (eq. 15).
    log : CommunicationLog
    gossip : Gossip or None
        None: with a server.
    """
    p, n = vectors.shape
    scaling = scaling and not equal and p > 1
    # over the largest, which all know: only ratios count
    weights = np.ones(p) if equal else values / (values.max() or 1.0)
    size = n if equal else n + 1
    if gossip is None:
        log.record([Message(size, 8 * size)] * p, [Message(n, 8 * n)] * p)
    elif gossip.complete:
        gossip.record(log, size, 1)
    else:
        # each passes on the strongest eigenvalue and vector that it has heard of
        gossip.record(log, n + 1, gossip.diameter)
        signs = vectors @ vectors[np.argmax(values)]
        if scaling:
            gossip.record(log, 1, gossip.n_exchanges)
            weights = scaled(weights, weights > gossip.average(weights[:, None])[:, 0])
        gossip.record(log, n, gossip.n_exchanges)
        averaged = gossip.average(weights[:, None] * turned(vectors, signs))
        return np.array([unit(vector) for vector in averaged])
    weighted = weights[:, None] * vectors
    signs = np.linalg.eigh(weighted @ weighted.T)[1][:, -1]
    if scaling:
        weights = scaled(weights, larger_half(weights))
    return np.tile(unit(weights @ turned(vectors, signs)), (p, 1))


def turned(vectors: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Vectors, those with a negative sign the other way."""
    return np.where(signs < 0, -1.0, 1.0)[:, None] * vectors


def scaled(weights: np.ndarray, larger: np.ndarray) -> np.ndarray:
    """Weights raised where they are larger and lowered elsewhere, by the share 1 / p (eq. 15)."""
    p = len(weights)
    return weights * np.where(larger, 1 + 1 / p, 1 - 1 / p)


def larger_half(weights: np.ndarray) -> np.ndarray:
    """Mask of the half of the clients with the larger weights."""
    mask = np.zeros(len(weights), dtype=bool)
    mask[np.argsort(-weights, kind="stable")[: len(weights) // 2]] = True
    return mask


def unit(vector: np.ndarray) -> np.ndarray:
    """Vector of unit length, of zeros zeros."""
    largest = float(np.abs(vector).max(initial=0.0))
    if not largest:
        return vector
    vector = vector / largest  # squares might overflow
    return vector / np.linalg.norm(vector)
