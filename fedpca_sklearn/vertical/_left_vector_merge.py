"""Left vectors by one merge of those of the clients."""

from __future__ import annotations

from numbers import Integral

import numpy as np

from .._kernels.sizes import EXACT_ORDER
from .._validation.intervals import Interval
from ..communication._federation import Message, message_of
from ..summary import Subspace, merge_subspaces
from ..summary._updating import updated
from ._vertical_method import LeftVectors, VerticalMethod

__all__ = ["LeftVectorMerge"]


class LeftVectorMerge(VerticalMethod):
    """Clients send their left singular vectors and values once, which are merged.

    Parameters
    ----------
    local_components : int or None, default=None
        Directions that a client sends. None: all, and the result is exact.

    See Also
    --------
    merge_subspaces : The merge of clients that hold rows.

    Notes
    -----
    (n + 1) k_i floats up for each client and p n k down with a server; without one (n + 1) k_i to
    every other client, passed on between neighbours.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.decomposition import PCA
    >>> from sklearn.preprocessing import scale
    >>> from fedpca_sklearn import LeftVectorMerge, VerticalFederatedPCA, subspace_distance
    >>> X = scale(load_wine().data)
    >>> exact = PCA(2).fit(X).components_
    >>> for local_components in 1, 2, None:
    ...     method = LeftVectorMerge(local_components)
    ...     pca = VerticalFederatedPCA(2, feature_groups=4, method=method).fit(X)
    ...     print(round(subspace_distance(pca.components_, exact), 4))
    0.8888
    0.0383
    0.0
    """

    _parameter_constraints: dict = {
        "local_components": [Interval(Integral, 1, None, closed="left"), None],
    }

    def __init__(self, local_components: int | None = None):
        self.local_components = local_components

    def left_vectors(self, federation, clients, rank, rounds=range) -> LeftVectors:
        """Merge once; see `VerticalMethod.left_vectors`."""
        calls = [(c.label, c.rows, self.local_components) for c in clients]
        for _ in rounds(1):
            factors = list(federation.map(left_factor, calls))
        merged = merge_subspaces(factors, rank).components
        floats = [f.components.size + f.n_components for f in factors]
        sent = [Message(m, 8 * m) for m in floats]
        if federation.gossip is None:
            federation.log.record(sent, [message_of(merged)] * len(clients))
        else:
            for senders, receivers in federation.gossip.relays():
                federation.log.record([sent[i] for i in senders], receivers=receivers)
        vectors = np.zeros((rank, clients[0].rows.shape[1]))
        vectors[: len(merged)] = merged
        return LeftVectors([vectors] * len(clients), 1)


def left_factor(label: int, rows: np.ndarray, size: int | None) -> Subspace:
    """Left singular vectors and values of a client's columns."""
    start = Subspace.empty(rows.shape[1], centered=False)
    at_once = max(rows.shape) if min(rows.shape) <= EXACT_ORDER else None
    return updated(start, rows, max_keep=size, block_size=at_once)
