"""Expectation step of probabilistic PCA with a noise of each client's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from .._kernels.row_moments import RowMoments
from .._kernels.too_large import too_large
from ..communication import Federation
from ._queries import Client, Query

# Power of a client's total variance that its rows are divided by at the start: weights of the form
# 1 / (v (lambda + v)) lie between the powers 1 and 2.
_POWER = 1.5
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
class ExpectedScores(Query):
    """Question to a client: sums of its rows and expected scores, with its own noise.

    Rows y have the mean ``mean`` and are ``unit`` (F' z + noise), with ``F`` of shape (k, d). The
    client first takes one step for its noise, which it keeps. One with no more rows than there are
    factors and a mean has the noise 1.
    """

    F: np.ndarray
    mean: np.ndarray
    unit: float

    kind = "scores"

    @property
    def shape(self) -> tuple[int, ...]:
        """That of a vector."""
        k, d = self.F.shape
        return (k * (d + k) + 1,)

    @property
    def broadcast(self) -> np.ndarray:
        """The factors; clients have the mean."""
        return self.F

    @property
    def parts(self) -> dict[str, int | None]:  # type: ignore[override]
        """Numbers in each of the `sums`."""
        k, d = self.F.shape
        return {"left": k * d, "right": k * k, "covariance": k * k, "logs": 1, "distances": 1}

    def keeping(
        self, label: Any, client: Client, turn: int, v: float | None
    ) -> tuple[np.ndarray, float]:
        """Message, and the noise variance that stays with the client."""
        found, v = self.sums(client.moments, v, client.weight)
        return self.message(found, client.n_samples), v

    def sums(
        self, own: RowMoments, v: float | None, weight: np.ndarray | None = None
    ) -> tuple[dict[str, np.ndarray], float]:
        """What is summed, in the units of the rows, and the noise; weights are for errors."""
        (k, d), n, squared = self.F.shape, own.n_samples, self.unit**2
        with np.errstate(over="ignore", invalid="ignore"):
            P, scatter = own.products(self.mean, self.F), own.scatter_about(self.mean)
        if not np.isfinite(P).all():
            raise too_large("sum of products", weight=weight)
        G, B = self.F @ self.F.T, P @ self.F.T
        v = max(self._noise(G, B / squared, scatter / squared, n, v), SMALLEST)
        W = scipy.linalg.inv(G + v * np.eye(k))
        log_det = (d - k) * np.log(v) - np.linalg.slogdet(W)[1]
        found = {
            "left": W @ P / v,
            "right": W @ B @ W / v,
            "covariance": n * W,
            "logs": np.array([n * log_det]),
            "distances": np.array([(scatter - float(np.sum(W * B))) / v]),
        }
        return found, v

    def message(self, sums: Mapping[str, np.ndarray], n: float) -> np.ndarray:
        """Both sums over the scores, and the log-likelihood, of n rows."""
        d, squared = len(self.mean), self.unit**2
        likelihood = (
            n * d * np.log(2 * np.pi * squared) + sums["logs"] + sums["distances"] / squared
        )
        left, right = sums["left"] / squared, sums["right"] / squared + sums["covariance"]
        return np.concatenate([left.ravel(), right.ravel(), -likelihood / 2])

    def local(self, own: RowMoments) -> np.ndarray:
        """The message of a client that has kept nothing."""
        return self.message(self.sums(own, None)[0], own.n_samples)

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

    What is mapped has a function ``keeping`` of the client and of what it has kept, None at first,
    which returns the message and what it keeps now, in ``kept`` by label. Messages go further.
    """

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.kept: dict[Any, Any] = {}

    def map(self, function: Any, clients: Iterable[tuple]) -> Iterator[np.ndarray]:
        """Messages of the clients, in order; see `Federation.map`."""
        calls = [(*call, self.kept.get(call[0])) for call in clients]
        results = super().map(function.keeping, calls)
        for (label, *_), (message, own) in zip(calls, results, strict=True):
            self.kept[label] = own
            yield message


@dataclass(frozen=True)
class Weighted(Query):
    """Another question, about rows that count less, the larger their variance in a unit.

    Of no more rows than ``few`` the variance is not known, and is 1.
    """

    query: Query
    unit: float
    center: bool
    few: int

    @property
    def kind(self) -> str:  # type: ignore[override]
        """That of the question, marked."""
        return f"weighted_{self.query.kind}"

    @property
    def shape(self) -> tuple[int | None, ...]:
        """That of the question."""
        return self.query.shape

    @property
    def parts(self) -> Mapping[str, int | None]:  # type: ignore[override]
        """Those of the question."""
        return self.query.parts

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Those of the question, and the unit."""
        return (*self.query.arguments, self.unit)

    def local(self, own: RowMoments) -> np.ndarray:
        """The answer times the weight, as what is asked for are sums over rows."""
        n, total, variance = own.n_samples, own.total, 1.0
        if n > self.few:
            scatter = own.own_scatter
            if not self.center:
                scatter += float(total @ total) / n
            variance = max(scatter / n / len(total) / self.unit**2, SMALLEST)
        return variance**-_POWER * self.query.local(own)


class WeightedSums(Federation):
    """Sums of another federation, over rows whose weight is that of `Weighted` questions."""

    def __init__(self, federation: Federation, unit: float, center: bool, few: int):
        super().__init__(channel=federation.channel, log=federation.log)
        self.federation, self.weight = federation, (unit, center, few)

    def sum(
        self, function: Any, clients: Sequence[tuple], broadcast: np.ndarray | None = None
    ) -> np.ndarray | None:
        """The sum of the weighted answers."""
        return self.federation.sum(Weighted(function, *self.weight), clients, broadcast)
