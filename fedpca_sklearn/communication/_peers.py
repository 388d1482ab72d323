"""A federation without a server."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._channel import Channel
from ._federation import CommunicationLog, Federation
from ._gossip import Gossip
from ._topology import as_topology, neighbours_of


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
