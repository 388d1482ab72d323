"""Clients of rounds: their rows, and where their noise comes from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .._kernels.row_moments import RowMoments, RowsAtHand
from .._validation.checks import check_rows


@dataclass(frozen=True)
class AnyClient(ABC):
    """A client and its rows."""

    label: Any
    rows: Any

    @property
    @abstractmethod
    def n_samples(self) -> float:
        """Number or weight of the rows."""

    @abstractmethod
    def noise(self, turn: int) -> np.random.Generator | None:
        """Where the noise of a round comes from; None: the client adds no noise."""


@dataclass(frozen=True)
class Client(AnyClient):
    """A client whose answers are exact."""

    weight: np.ndarray | None = None

    @classmethod
    def with_rows(cls, label: Any, rows: Any, weight: Any) -> Client:
        """A client with finite rows; an error names it."""
        return cls(label, check_rows(rows), weight)

    @cached_property
    def moments(self) -> RowMoments:
        """What questions about moments of the rows are answered from."""
        return RowsAtHand(self.rows, self.weight)

    @property
    def n_samples(self) -> float:
        """Weight of the rows."""
        return self.moments.n_samples

    def noise(self, turn: int) -> None:
        """There is none."""
        return None
