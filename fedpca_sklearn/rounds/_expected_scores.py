"""Expectation step of probabilistic PCA with a noise of each client's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from .._kernels.rows import scatter_about, scatter_product
from .._kernels.too_large import too_large
from ..communication import Federation
from ._client import Client

# Smallest variance of noise in a unit of all rows: more weight than of its inverse changes nothing.
SMALLEST = 1e-8


class Sums(NamedTuple):
    """Sums over clients: of rows by scores and of scores, over the noise; and log-likelihood."""

    left: np.ndarray
    right: np.ndarray
    log_likelihood: float

    @classmethod
    def of(cls, message: np.ndarray, k: int) -> Sums:
        """Read a sum of messages."""
        d = (len(message) - 1) // k - k
        parts = np.split(message, [k * d, k * (k + d)])
        return cls(parts[0].reshape(k, d), parts[1].reshape(k, k), float(message[-1]))

    def factors(self) -> np.ndarray:
        """Factors that maximise the expected likelihood."""
        return np.linalg.solve((self.right + self.right.T) / 2, self.left)


@dataclass(frozen=True)
class ExpectedScores:
    """Question to a client: sums of its rows and expected scores, with its own noise.

    Rows y have the mean ``mean`` and are ``unit`` (F' z + noise), with ``F`` of shape (k, d). The
    client first takes one step for its noise, which it keeps. One with no more rows than there are
    factors and a mean has the noise 1.
    """

    F: np.ndarray
    mean: np.ndarray
    unit: float

    def __call__(self, label: Any, client: Client, v: float | None) -> tuple[np.ndarray, float]:
        """Message, and the noise variance that stays with the client."""
        (k, d), n, squared = self.F.shape, client.n_samples, self.unit**2
        with np.errstate(over="ignore", invalid="ignore"):
            P = scatter_product(client.rows, self.mean, self.F, client.weight) / squared
            scatter = scatter_about(client.rows, self.mean, client.weight) / squared
        if not np.isfinite(P).all():
            raise too_large("sum of products", weight=client.weight)
        G, B = self.F @ self.F.T, P @ self.F.T
        v = max(self._noise(G, B, scatter, n, v), SMALLEST)
        W = scipy.linalg.inv(G + v * np.eye(k))
        log_det = (d - k) * np.log(v) - np.linalg.slogdet(W)[1]
        distances = (scatter - float(np.sum(W * B))) / v
        likelihood = n * (d * np.log(2 * np.pi * squared) + log_det) + distances
        left, right = W @ P / v, W @ B @ W / v + n * W
        return np.concatenate([left.ravel(), right.ravel(), [-likelihood / 2]]), v

    def _noise(
        self, G: np.ndarray, B: np.ndarray, scatter: float, n: float, v: float | None
    ) -> float:
        """One step for the noise; without one before, what the factors' directions leave."""
        k, d = self.F.shape
        if n <= k + 1:
            return 1.0
        if v is None:
            return (scatter - float(np.sum(np.linalg.pinv(G) * B))) / n / max(d - k, 1)
        W = scipy.linalg.inv(G + v * np.eye(k))
        scores = W @ B @ W + n * v * W
        return (scatter - 2 * float(np.sum(W * B)) + float(np.sum(G * scores))) / (n * d)


class KeepingFederation(Federation):
    """A federation whose clients keep something of their own from round to round.

    What is mapped is called with the client and what it has kept, None at first, and returns the
    message and what it keeps now, in ``kept`` by label. Messages alone go further.
    """

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.kept: dict[Any, Any] = {}

    def map(self, function: Callable, clients: Iterable[tuple]) -> Iterator[np.ndarray]:
        """Messages of the clients, in order; see `Federation.map`."""
        calls = [(label, client, self.kept.get(label)) for label, client in clients]
        results = super().map(function, calls)
        for (label, *_), (message, own) in zip(calls, results, strict=True):
            self.kept[label] = own
            yield message
