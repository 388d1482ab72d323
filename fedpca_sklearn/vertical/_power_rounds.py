"""Left vectors by rounds of sums."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np

from .._kernels import linalg
from .._validation.intervals import InstanceOf, Interval
from ..communication import Channel
from ..rounds._power_method import power_method
from ._vertical_method import LeftVectors, VerticalMethod

__all__ = ["PowerRounds"]


class PowerRounds(VerticalMethod):
    """Rounds of a block Krylov method whose messages only add up; exact where rounds suffice.

    Parameters
    ----------
    n_rounds : int, default=200
        Rounds at most.
    tol : float, default=1e-10
        Stop when a round moves the subspace by less, by the sine of the largest angle.
    channel : Channel or None, default=None
        What the messages of the rounds pass, with a server. What components and their variances
        are made of in the end goes as plain numbers.

    See Also
    --------
    FederatedPowerPCA : The same for clients that hold rows.

    Notes
    -----
    The common vectors V, k x n, go down and each client's V X_i X_i^T up: p n k floats a round and
    direction with a server, 2 E m n k in m exchanges over the E edges of a topology.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.preprocessing import scale
    >>> from fedpca_sklearn import PowerRounds, VerticalFederatedPCA
    >>> X = scale(load_wine().data)
    >>> for tol in 1e-2, 1e-10:
    ...     method = PowerRounds(tol=tol)
    ...     pca = VerticalFederatedPCA(2, feature_groups=4, method=method, random_state=0).fit(X)
    ...     print(pca.n_iter_, pca.explained_variance_ratio_.round(6))
    5 [0.361988 0.192075]
    8 [0.361988 0.192075]
    """

    _parameter_constraints: dict = {
        "n_rounds": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "channel": [InstanceOf(Channel), None],
    }

    def __init__(self, n_rounds: int = 200, tol: float = 1e-10, channel: Any = None):
        self.n_rounds = n_rounds
        self.tol = tol
        self.channel = channel

    def left_vectors(self, federation, clients, rank, rounds=range) -> LeftVectors:
        """Take rounds of sums; see `VerticalMethod.left_vectors`."""
        n = clients[0].rows.shape[1]
        V = linalg.orthonormalised(federation.rng.standard_normal((rank, n)))
        found = power_method(
            federation,
            clients,
            np.zeros(n),
            V,
            self.n_rounds,
            self.tol,
            krylov=True,
            rounds=rounds,
        )
        if np.isnan(found.changes).all():
            raise ValueError("channel: no client took part in any round.")
        return LeftVectors(
            [found.basis] * len(clients), len(found.changes), federation.disagreement
        )
