"""Clients of rounds of sums, what they are asked and answer, in private as well."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.linalg

from .._kernels import linalg
from .._kernels.row_moments import RowMoments, RowsAtHand, with_weight
from .._kernels.too_large import too_large
from .._validation.checks import check_rows
from ..federated._private import charged
from ..privacy import FedPowerNoise
from ..privacy._above_noise import edge, noise_message, spike_of_mean
from ..privacy._mechanism import Terms
from ..privacy._rows import ClippedRows


@dataclass(frozen=True)
class PrivateClient:
    """A client of the power method whose rows are clipped and whose messages carry noise.

    It centres its products by the mean of all clients and by its own noisy sum, which were
    released before: post-processing.
    """

    label: Any
    rows: Any
    mechanism: FedPowerNoise
    terms: Terms
    seeds: tuple[int, ...]
    total: np.ndarray  # the sum of the clipped rows, with noise

    @classmethod
    def of(
        cls, label: Any, rows: Any, mechanism: FedPowerNoise, terms: Terms, seeds: tuple[int, ...]
    ) -> PrivateClient:
        """Check and clip a client's rows, and draw the noise of their sum."""
        rows = ClippedRows.of(check_rows(rows), terms.center, terms.row_norm)
        total = np.zeros(rows.n_features)
        if terms.costs.mean is not None:
            total = mechanism.noisy_sum(rows, terms, np.random.default_rng([*seeds, 0]))
        return cls(label, rows, mechanism, terms, seeds, total)

    @property
    def n_samples(self) -> float:
        """Number of rows, which is public."""
        return float(self.rows.n_rows)

    @property
    def origin(self) -> np.ndarray:
        """The public centre."""
        return self.terms.origin(len(self.total))

    def moments(self) -> np.ndarray:
        """The noisy sum of the rows, which is the same whenever it is sent, and their number."""
        return np.append(self.total + self.n_samples * self.origin, self.n_samples)

    def about(self, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """From the centre to a mean, and the noisy sum of the clipped rows about that mean."""
        shift = mean - self.origin
        return shift, self.total - self.n_samples * shift


def check_private(pca: Any, mechanism: FedPowerNoise) -> None:
    """Raise where parameters of an estimator and its mechanism exclude each other."""
    mechanism.validate()
    mechanism.refuse_searches("rounds of products have one norm and centre for all")
    if pca.channel is not None and pca.channel.compares_clients:
        hides = "trust='sum' hides" if mechanism.trust == "sum" else "mechanism adds noise to"
        raise ValueError(
            f"{hides} the messages of clients, which channel={pca.channel!r} compares."
        )
    if pca.local_steps > 1:
        raise ValueError(
            "mechanism needs local_steps=1, because what a client makes orthonormal has no "
            f"bounded sensitivity, got {pca.local_steps}."
        )
    if not pca.center and (mechanism.mean != "fixed" or mechanism.center is not None):
        raise ValueError(
            f"center=False needs a mechanism with mean='fixed' and center=None, got {mechanism!r}."
        )
    if mechanism.trust == "sum" and pca.channel is not None and pca.channel.loses_clients:
        raise ValueError(
            "trust='sum' needs a channel that loses no client, with the noise that protects "
            f"the others, got {pca.channel!r}."
        )


def terms_of(pca: Any, X: Any, weight: Any, shards: list[tuple[Any, Any]]) -> Terms:
    """Bounds and noise of private clients, which are charged for all rounds."""
    mechanism, d, n_products = pca.mechanism, X.shape[1], pca.n_rounds + 1
    costs = mechanism.costs(d, n_products)
    mu2 = mechanism.cost(costs, d, n_products, len(shards))
    return charged(pca, X, weight, shards, mu2, costs)[1]


def message_of_noise(pca: Any, terms: Terms, n_clients: int) -> str | None:
    """Text of a warning if the last round found no more than in random directions."""
    rank, d = pca.components_.shape
    sources = math.sqrt(n_clients)
    size = pca.mechanism._OFF_DIAGONAL * terms.product_std * sources
    spike = 0.0
    if terms.costs.mean is not None:
        distance = float(np.linalg.norm(pca.subspace_.mean - terms.origin(d)))
        spike = spike_of_mean(distance, terms.mean_std * sources, d)  # that rounds converge to
    largest = float(pca.subspace_.singular_values.max(initial=0.0)) ** 2
    found = largest - pca.subspace_.scatter / d if rank < d else largest
    return noise_message(found, edge(size, rank, spike), rank)


# Share of the last basis in a local one, which stays where a client has no variance.
_KEPT = 1e-8
# Largest number in a message, so that those of very many clients can be added up.
LARGEST = 2.0**983


@dataclass(frozen=True, eq=False)
class Client(RowsAtHand):
    """A client and its rows, all of which have weight, whose answers are exact."""

    label: Any
    rows: Any
    weight: np.ndarray | None = None

    @classmethod
    def with_rows(cls, label: Any, rows: Any, weight: Any) -> Client:
        """A client with finite rows; an error names it."""
        rows = check_rows(rows)
        if weight is not None:
            rows, weight = with_weight(rows, weight)
        return cls(label, rows, weight)


# Shapes of arrays by name; None is the number of columns.
Shapes: TypeAlias = Mapping[str, tuple[int | None, ...]]
# A client, with noise or without.
AnyClient: TypeAlias = Client | PrivateClient


class Query(ABC):
    """A question to all clients, of whose answers only the sum is seen.

    Called with a client it is what `Federation.sum` maps. Its fields are sent to the clients.

    Attributes
    ----------
    kind : str
        Name of the question in messages over a network.
    shapes : dict of str to tuple
        Parts of the answer, one after the other, each of numbers of one kind and size: sums of
        rows, products, their number. Each is an array in messages over a network. None stands for
        the number of columns, which who asks may not know.
    """

    kind: str

    def __call__(self, label: Any, client: PrivateClient | RowMoments, turn: int = 0) -> np.ndarray:
        """What a client answers in a round, with noise if it adds any."""
        with np.errstate(over="ignore", invalid="ignore"):
            if isinstance(client, PrivateClient):
                rng = np.random.default_rng([*client.seeds, turn + 1])
                return _checked(self.private(client, rng))
            found = self.local(client)
            if not np.abs(found).max() <= LARGEST:
                raise too_large("sum of products", weight=getattr(client, "weight", None))
        return found

    @property
    @abstractmethod
    def shapes(self) -> Shapes:
        """Shapes of the parts of the answer."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What is sent with the question."""
        return tuple(vars(self).values())

    @abstractmethod
    def local(self, own: RowMoments) -> np.ndarray:
        """The answer of a client, from the number, mean and scatter matrix of its rows."""

    def private(self, client: PrivateClient, rng: np.random.Generator) -> np.ndarray:
        """The answer of a client that adds noise, where there is one."""
        raise NotImplementedError


@dataclass(frozen=True)
class Moments(Query):
    """Sum and number of the rows."""

    kind = "moments"
    shapes = {"sum": (None,), "count": (1,)}

    def local(self, own: RowMoments) -> np.ndarray:
        """Sum and number of rows."""
        return np.append(own.total, own.n_samples)

    def private(self, client: PrivateClient, rng: np.random.Generator) -> np.ndarray:
        """The client's noisy sum, the same release whenever it is sent, and the number of rows."""
        return client.moments()


@dataclass(frozen=True)
class OfBasis(Query):
    """A question about the scatter matrix about a mean, along a basis."""

    V: np.ndarray
    mean: np.ndarray

    def private(self, client: PrivateClient, rng: np.random.Generator) -> np.ndarray:
        """The same of the second moment, with noise, about the mean of all."""
        return self.about_mean(client, self.released(client, rng))

    @abstractmethod
    def released(self, client: PrivateClient, rng: np.random.Generator) -> np.ndarray:
        """The answer of the second moment about the public centre, with noise."""

    @abstractmethod
    def about_mean(self, client: PrivateClient, released: np.ndarray) -> np.ndarray:
        """What was released, about the mean of all."""


@dataclass(frozen=True)
class TimesScatter(OfBasis):
    """A basis times the scatter matrix about a mean; after local steps a turned basis."""

    steps: int = 1

    kind = "times_scatter"

    @property
    def shapes(self) -> Shapes:
        """Products with each row of the basis."""
        return {"products": self.V.shape}

    def local(self, own: RowMoments) -> np.ndarray:
        """The product, or the basis after local steps, turned to the common one."""
        if self.steps == 1:
            return own.products(self.mean, self.V)
        B = self.V
        for _ in range(self.steps):
            W = _checked(own.products(self.mean, B))
            W /= float(np.abs(W).max()) or 1.0
            W += (_KEPT * float(np.linalg.norm(W)) or 1.0) * B
            B = linalg.orthonormalised(W)
        U, _, Q = scipy.linalg.svd(self.V @ B.T)
        return own.n_samples * (U @ Q @ B)

    def released(self, client: PrivateClient, rng: np.random.Generator) -> np.ndarray:
        """The product with the second moment about the public centre, with noise."""
        product = client.rows.times_second_moment(_shortening(self.V))
        return client.mechanism.noisy_product(product, client.terms, rng)

    def about_mean(self, client: PrivateClient, released: np.ndarray) -> np.ndarray:
        """What was released, about the mean of all."""
        shift, total = client.about(self.mean)
        return released - np.outer(self.V @ client.total, shift) - np.outer(self.V @ shift, total)


@dataclass(frozen=True)
class Variances(OfBasis):
    """Scatter matrix about a mean within a basis, the whole scatter, and the number of rows."""

    kind = "variances"

    @property
    def shapes(self) -> Shapes:
        """The matrix within the basis and the whole scatter, and the number."""
        return {"scatter": (len(self.V) ** 2 + 1,), "count": (1,)}

    def local(self, own: RowMoments) -> np.ndarray:
        """Matrix, scatter and number, one after the other."""
        inner = own.products(self.mean, self.V) @ self.V.T
        return np.append(inner.ravel(), [own.scatter_about(self.mean), own.n_samples])

    def released(self, client: PrivateClient, rng: np.random.Generator) -> np.ndarray:
        """The second moment about the public centre within the basis and its trace, with noise."""
        V = _shortening(self.V)
        inner, trace = client.rows.times_second_moment(V) @ V.T, client.rows.trace()
        inner = np.triu(inner) + np.triu(inner, 1).T  # what two roundings differ by has no noise
        inner, trace = client.mechanism.noisy_variances(inner, trace, client.terms, rng)
        return np.append(inner.ravel(), trace)

    def about_mean(self, client: PrivateClient, released: np.ndarray) -> np.ndarray:
        """What was released, about the mean of all, and the number of rows."""
        V = self.V
        inner, trace = released[:-1].reshape(len(V), len(V)), released[-1]
        shift, total = client.about(self.mean)
        coordinates = V @ shift
        inner = inner - np.outer(V @ client.total, coordinates) - np.outer(coordinates, V @ total)
        trace -= shift @ (client.total + total)
        return np.append(inner.ravel(), [trace, client.n_samples])


@dataclass(frozen=True)
class Scatter(Query):
    """Scatter about a mean, and the number of rows."""

    mean: np.ndarray

    kind = "scatter"
    shapes = {"scatter": (1,), "count": (1,)}

    def local(self, own: RowMoments) -> np.ndarray:
        """Scatter and number."""
        return np.array([own.scatter_about(self.mean), own.n_samples])


def parted(shapes: Shapes, answer: np.ndarray) -> dict[str, np.ndarray]:
    """Parts of an answer by name: the first has what is left of the others."""
    sizes: list[Any] = [n for (n, *_) in shapes.values()][:0:-1]
    ends = len(answer) - np.cumsum(sizes, dtype=np.intp)[::-1]
    return dict(zip(shapes, np.split(answer, ends), strict=True))


def _checked(answer: np.ndarray) -> np.ndarray:
    """An answer of which very many can be added up, or an error."""
    if not np.abs(answer).max() <= LARGEST:
        raise too_large("sum of products")
    return answer


def _shortening(V: np.ndarray) -> np.ndarray:
    """A basis that is nearly orthonormal, divided so that no row's product with it is longer."""
    return V / max(1.0, float(np.linalg.norm(V, 2)))
