"""Methods of clients that hold columns: how they agree on left vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from sklearn.base import BaseEstimator

from ..communication import Channel, Federation
from ..communication._channel import check_channel
from ..rounds._client import Client

__all__ = ["LeftVectors", "VerticalMethod"]


class LeftVectors(NamedTuple):
    """Left vectors that the clients agreed on, with the number of rounds.

    Parameters
    ----------
    vectors : sequence of ndarray of shape (k, n)
        Left vectors of the pooled, centred columns, as each client has them.
    n_iter : int
        Rounds in which vectors were exchanged.
    disagreement : float, default=0.0
        Largest distance between the vectors of two clients.
    own : bool, default=False
        Whether clients keep vectors of their own, which the estimator then publishes.
    """

    vectors: Sequence[np.ndarray] | np.ndarray
    n_iter: int
    disagreement: float = 0.0
    own: bool = False


class VerticalMethod(BaseEstimator, ABC):
    """Base of the methods of `VerticalFederatedPCA`: parameters in ``__init__``, one method.

    A subclass writes ``left_vectors(federation, clients, rank, rounds=range)``. It gets a
    `Federation`, the clients with their columns, the number of vectors, and a function for rounds.
    It returns `LeftVectors` with an array of shape (k, n) for each client, k at most ``rank``.

    Attributes
    ----------
    channel : Channel or None
        What the sums of the method pass, which the estimator hands to the federation. None:
        `PerfectChannel`. A method with a parameter of this name lets the user choose.
    """

    channel: Channel | None = None

    _parameter_constraints: dict = {}

    def validate(self) -> None:
        """Raise a ValueError that names a wrong parameter; estimators call it before they start."""
        self._validate_params()
        check_channel(self.channel)

    @abstractmethod
    def left_vectors(
        self,
        federation: Federation,
        clients: Sequence[Client],
        rank: int,
        rounds: Callable[[int], Iterable[int]] = range,
    ) -> LeftVectors:
        """Let the clients agree on left vectors of all their columns.

        Parameters
        ----------
        federation : Federation
            Maps functions over clients (``map``), adds up their messages (``sum``) and counts what
            is sent (``log``). ``rng`` is the estimator's random state, ``gossip`` averages between
            neighbours, or is None with a server.
        clients : list of Client
            ``label`` and ``rows``: the client's centred columns, as rows of shape (d_i, n).
        rank : int
            Vectors that are wanted.
        rounds : callable, default=range
            ``rounds(m)`` yields numbers of m rounds. Callbacks hear of them and may end them early.

        Returns
        -------
        found : LeftVectors
            Vectors need not be orthonormal, as a Rayleigh-Ritz step over all columns follows; zeros
            where no variance is left. Fewer than ``rank`` if the rounds ended early.
        """
