"""Whose the rows of a stream are."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..federated._clients import label_order


class Labels:
    """Labels of the rows of a call, taken batch by batch: given, or each client in turn."""

    def __init__(self, given: np.ndarray | None, n_clients: int):
        self.given, self.n_clients, self.n_taken = given, n_clients, 0

    def take(self, start: int, n: int) -> np.ndarray:
        """Labels of the next n rows, of which the first is row ``start`` of the stream."""
        if self.given is None:
            return ((start + np.arange(n)) % self.n_clients).astype(object)
        new = self.given[self.n_taken :][:n]
        if len(new) != n:
            raise ValueError(f"clients must have one label per row, {n - len(new)} are missing.")
        self.n_taken += n
        return new

    def check_used(self) -> None:
        """Raise unless every label had its row."""
        if self.given is not None and self.n_taken < len(self.given):
            n, more = len(self.given), len(self.given) - self.n_taken
            raise ValueError(
                f"clients must have one label per row, {n} labels are {more} too many."
            )


def shards_of(owners: np.ndarray) -> list[tuple[Any, np.ndarray]]:
    """Labels of the clients of a batch, and the positions of their rows."""
    labels = sorted(set(owners.tolist()), key=label_order)
    return [(label, np.flatnonzero(owners == label)) for label in labels]
