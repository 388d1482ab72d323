"""Clients of rounds of sums, what they are asked, and what they answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np
import scipy.linalg

from .._kernels import linalg
from .._kernels.row_moments import RowMoments, RowsAtHand
from .._kernels.too_large import too_large
from .._validation.checks import check_rows
from ._private_rounds import PrivateClient

# Share of the last basis in a local one, which stays where a client has no variance.
_KEPT = 1e-8
# Largest number in a message, so that those of very many clients can be added up.
LARGEST = 2.0**983


@dataclass(frozen=True)
class Client:
    """A client and its rows, whose answers are exact."""

    label: Any
    rows: Any
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
        """Where the noise of a round comes from: there is none."""


# A client, with noise or without.
AnyClient: TypeAlias = Client | PrivateClient


class Query(ABC):
    """A question to all clients, of whose answers only the sum is seen.

    Called with a client it is what `Federation.sum` maps. Its fields are sent to the clients.

    Attributes
    ----------
    kind : str
        Name of the question in messages over a network.
    shape : tuple
        Shape of the answer; None where it is not known to who asks.
    broadcast : ndarray or None
        What has to be sent anew to ask this, for the log.
    parts : dict of str to int or None
        How many numbers of the answer, one after the other, are of one kind and size: sums of rows,
        products, their number; None: all others.
    """

    kind: ClassVar[str]
    parts: ClassVar[Mapping[str, int | None]]

    def __call__(self, label: Any, client: Any, turn: int = 0) -> np.ndarray:
        """What the client answers in a round, with noise if it adds any."""
        rng = client.noise(turn)
        if rng is None:
            return self.answer(client.moments, client.weight)
        with np.errstate(over="ignore", invalid="ignore"):
            return _checked(self.private(client, rng))

    def answer(self, own: RowMoments, weight: np.ndarray | None = None) -> np.ndarray:
        """The answer of a client with these moments; the weights of its rows are for errors."""
        with np.errstate(over="ignore", invalid="ignore"):
            return _checked(self.local(own), weight)

    @property
    @abstractmethod
    def shape(self) -> tuple[int | None, ...]:
        """Shape of the answer."""

    @property
    def broadcast(self) -> np.ndarray | None:
        """What has to be sent anew to ask this: nothing."""
        return None

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
    shape = (None,)
    parts = {"sum": None, "count": 1}

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

    @property
    def broadcast(self) -> np.ndarray:
        """The basis; clients have the mean."""
        return self.V

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
    parts = {"products": None}

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the basis."""
        return self.V.shape

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
    parts = {"scatter": None, "count": 1}

    @property
    def shape(self) -> tuple[int, ...]:
        """That of a vector."""
        return (len(self.V) ** 2 + 2,)

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
    shape = (2,)
    parts = {"scatter": 1, "count": 1}

    @property
    def broadcast(self) -> np.ndarray:
        """Nothing that is counted: clients have the mean."""
        return np.empty(0)

    def local(self, own: RowMoments) -> np.ndarray:
        """Scatter and number."""
        return np.array([own.scatter_about(self.mean), own.n_samples])


def _checked(answer: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    """An answer of which very many can be added up, or an error."""
    if not np.abs(answer).max() <= LARGEST:
        raise too_large("sum of products", weight=weight)
    return answer


def _shortening(V: np.ndarray) -> np.ndarray:
    """A basis that is nearly orthonormal, divided so that no row's product with it is longer."""
    return V / max(1.0, float(np.linalg.norm(V, 2)))
