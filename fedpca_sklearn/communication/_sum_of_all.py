"""Sums in which no client is missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ._federation import Federation


def sum_of_all(
    federation: Federation,
    function: Callable,
    clients: Sequence[tuple],
    broadcast: np.ndarray | None = None,
) -> np.ndarray:
    """Sum of the messages of clients on a channel that drops none; see `Federation.sum`."""
    total = federation.sum(function, clients, broadcast)
    assert total is not None
    return total
