"""A client of the power method whose messages are private."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .._validation.checks import check_rows
from ..privacy import FedPowerNoise
from ..privacy._mechanism import Terms
from ..privacy._rows import ClippedRows
from ._client import AnyClient


@dataclass(frozen=True)
class PrivateClient(AnyClient):
    """A client of the power method whose rows are clipped and whose messages carry noise.

    It centres its products by the mean of all clients and by its own noisy sum, which were
    released before: post-processing.
    """

    mechanism: FedPowerNoise
    terms: Terms
    seeds: tuple[int, ...]
    total: np.ndarray  # the sum of the clipped rows, with noise

    @classmethod
    def of(
        cls, label: Any, rows: Any, mechanism: FedPowerNoise, terms: Terms, seeds: tuple[int, ...]
    ) -> PrivateClient:
        """Check and clip a client's rows."""
        rows = ClippedRows.of(check_rows(rows), terms.center, terms.row_norm)
        return cls.released(label, rows, mechanism, terms, seeds)

    @classmethod
    def released(
        cls,
        label: Any,
        rows: ClippedRows,
        mechanism: FedPowerNoise,
        terms: Terms,
        seeds: tuple[int, ...],
    ) -> PrivateClient:
        """A client of clipped rows, which has drawn the noise of their sum."""
        total = np.zeros(rows.X.shape[1])
        if terms.costs.mean is not None:
            total = mechanism.noisy_sum(rows.sum(), terms, np.random.default_rng([*seeds, 0]))
        return cls(label, rows, mechanism, terms, seeds, total)

    @property
    def n_samples(self) -> float:
        """Number of rows, which is public."""
        return float(self.rows.n_rows)

    @property
    def origin(self) -> np.ndarray:
        """The public centre."""
        return self.terms.origin(len(self.total))

    def noise(self, turn: int) -> np.random.Generator:
        """Where the noise of a round comes from; that of the sum has been drawn before."""
        return np.random.default_rng([*self.seeds, turn + 1])

    def moments(self) -> np.ndarray:
        """The noisy sum of the rows, which is the same whenever it is sent, and their number."""
        return np.append(self.total + self.n_samples * self.origin, self.n_samples)

    def about(self, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """From the centre to a mean, and the noisy sum of the clipped rows about that mean."""
        shift = mean - self.origin
        return shift, self.total - self.n_samples * shift
