"""What `VFedPCA` needs to know of a client: products with a symmetric matrix."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any

import numpy as np

from ..rounds._client import Client

Product = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Operator(ABC):
    """A symmetric matrix, n x n, that a client has: X_i X_i^T, or a kernel of its columns.

    Parameters
    ----------
    label : hashable
        The client's.
    n_columns : int
        Columns of the client; f_i of Cheung et al.
    """

    label: Any
    n_columns: int

    @abstractmethod
    def product(self) -> tuple[Product, float]:
        """Multiplication of a vector, and the largest eigenvalue that may be rounding errors.

        A client calls it once in a round; a large matrix lives as long as the function.
        """

    @abstractmethod
    def deflated(self, u: np.ndarray) -> Operator:
        """The client without the direction of a vector of unit length."""

    def updated(self, u: np.ndarray) -> Operator:
        """The client after the update of its data by a common vector (eq. 14).

        For X <- X m m^T with m the direction of X^T u, X X^T becomes A u u^T A / u^T A u with A =
        X X^T. That needs A alone, so it is the update of a kernel's features too.
        """
        times, floor = self.product()
        image = times(u)
        size = float(u @ image)
        scale = 1 / np.sqrt(abs(size)) if abs(size) > floor else 0.0
        return RankOne(self.label, self.n_columns, image * scale, np.sign(size), floor)


@dataclass(frozen=True)
class Columns(Operator):
    """X_i X_i^T of the columns of a client, as rows of shape (f_i, n)."""

    rows: np.ndarray

    def product(self) -> tuple[Product, float]:
        """Two products with the columns; see `Operator.product`."""
        rows = self.rows
        return lambda a: (rows @ a) @ rows, 0.0

    def deflated(self, u: np.ndarray) -> Columns:
        """X_i - u u^T X_i; see `Operator.deflated`."""
        return replace(self, rows=self.rows - np.outer(self.rows @ u, u))


@singledispatch
def operator_of(client: Client) -> Operator:
    """The matrix of a client that holds columns; a function for each class of clients."""
    return Columns(client.label, len(client.rows), client.rows)


@dataclass(frozen=True)
class RankOne(Operator):
    """A vector's outer product with itself, or the negative of it."""

    vector: np.ndarray
    sign: float
    floor: float

    def product(self) -> tuple[Product, float]:
        """Along the vector; see `Operator.product`."""
        return lambda a: self.sign * (self.vector @ a) * self.vector, self.floor

    def deflated(self, u: np.ndarray) -> RankOne:
        """The vector without a direction; see `Operator.deflated`."""
        return replace(self, vector=self.vector - u * (u @ self.vector))


def local_power(operator: Operator, a: np.ndarray, iterations: int) -> tuple[float, np.ndarray]:
    """Leading eigenvalue and vector of a client's matrix, by power iteration (eq. 5, 6).

    Leading by size: the eigenvalue is negative where an indefinite matrix has it so. Zeros where
    there are rounding errors only.
    """
    times, floor = operator.product()
    for _ in range(iterations):
        a = unit(times(a))
    value = float(a @ times(a))
    return (value, a) if abs(value) > floor else (0.0, np.zeros_like(a))


def unit(vector: np.ndarray) -> np.ndarray:
    """Vector of unit length, of zeros zeros."""
    largest = float(np.abs(vector).max(initial=0.0))
    if not largest:
        return vector
    vector = vector / largest  # squares might overflow
    return vector / np.linalg.norm(vector)
