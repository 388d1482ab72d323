"""A client of the power method whose messages are private."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .._validation.checks import check_rows
from ..privacy import (
    FedPowerNoise,
)
from ..privacy._mechanism import Terms
from ..privacy._rows import ClippedRows
from ._power_method import AnyClient


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

    def message(self, kind: str, turn: int, *arguments: Any) -> np.ndarray:
        """What the client sends in a round, with the noise of that round."""
        rng = np.random.default_rng([*self.seeds, turn + 1])
        return getattr(self, kind)(*arguments, rng)

    def moments(self, rng: np.random.Generator) -> np.ndarray:
        """Sum and number of the rows; the same release whenever it is sent."""
        return np.append(self.total + self.n_samples * self.origin, self.n_samples)

    def times_scatter(
        self, V: np.ndarray, mean: np.ndarray, local_steps: int, rng: np.random.Generator
    ) -> np.ndarray:
        """The basis times the second moment, with noise, about the mean of all."""
        product = self.rows.times_second_moment(V)
        product = self.mechanism.noisy_product(product, self.terms, rng)
        shift = mean - self.origin
        along, total = V @ shift, self.total - self.n_samples * shift
        return product - np.outer(V @ self.total, shift) - np.outer(along, total)

    def variances(self, V: np.ndarray, mean: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Second moment within a basis and its trace, alike, and the number of rows."""
        inner, trace = self.rows.times_second_moment(V) @ V.T, self.rows.trace()
        inner, trace = self.mechanism.noisy_variances(inner, trace, self.terms, rng)
        shift = mean - self.origin
        along, total = V @ shift, self.total - self.n_samples * shift
        inner = inner - np.outer(V @ self.total, along) - np.outer(along, V @ total)
        return np.append(inner.ravel(), [trace - shift @ (self.total + total), self.n_samples])
