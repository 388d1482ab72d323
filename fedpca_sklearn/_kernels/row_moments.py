"""Moments of rows about a mean: from the rows at hand, or from those of a site, which a peer asks.

A peer that chooses a number which is subtracted from single rows, or multiplied with them, reads
rows: rounding makes a threshold of the number, and two answers differ by the rows between two
thresholds. So a site answers from the number n, the mean and the scatter matrix S of its rows about
their own mean, which are computed once, before it is asked. What another mean m adds follows from
n and the difference of the means,

    sum of w_i (x_i - m) (x_i - m)^T = S + n (mean - m) (mean - m)^T.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from .rows import scatter_about, scatter_product, sum_of_rows
from .scatter import row_scatter
from .sizes import row_slices
from .too_large import too_large

# Most columns of which a site keeps the scatter matrix, 33 MB.
MOST_COLUMNS = 2048
# Entries of a basis below it count as zero, and the noise of an answer, relative to its bound,
# where rows have more columns. Rounding is 2^-12 of it: some 2^24 answers would tell that.
_LEAST_ENTRY, _NOISE = 2.0**-60, 2.0**-40


class RowMoments(ABC):
    """What questions about first and second moments of rows are answered from."""

    n_samples: float

    @property
    @abstractmethod
    def total(self) -> np.ndarray:
        """Weighted sum of the rows, of shape (d,)."""

    @cached_property
    def own_scatter(self) -> float:
        """Weighted sum of the squared distances of rows from their own mean."""
        return self.scatter_about(self.total / self.n_samples)

    @abstractmethod
    def deviation(self, mean: np.ndarray) -> np.ndarray:
        """Weighted sum of the differences of rows from a mean."""

    @abstractmethod
    def scatter_about(self, mean: np.ndarray) -> float:
        """Weighted sum of the squared distances of rows from a mean."""

    @abstractmethod
    def products(self, mean: np.ndarray, V: np.ndarray) -> np.ndarray:
        """``V`` of shape (k, d) times the scatter matrix of the rows about a mean."""


class RowsAtHand(RowMoments):
    """Moments of rows in this process, computed from the rows when they are asked for."""

    def __init__(self, X: Any, weight: np.ndarray | None = None):
        self.X, self.weight = X, weight
        if weight is not None:
            self.X, self.weight = with_weight(X, weight)

    @cached_property
    def n_samples(self) -> float:  # type: ignore[override]
        """Number or weight of the rows."""
        return float(self.X.shape[0] if self.weight is None else self.weight.sum())

    @cached_property
    def total(self) -> np.ndarray:
        """Weighted sum of the rows, whose squares must not overflow."""
        if not np.isfinite(self.scatter_about(np.zeros(self.X.shape[1]))):
            raise too_large("sum of products", weight=self.weight)
        return sum_of_rows(self.X, self.weight)

    def deviation(self, mean: np.ndarray) -> np.ndarray:
        """Weighted sum of the differences of rows from a mean."""
        return sum_of_rows(self.X, self.weight) - self.n_samples * mean

    def scatter_about(self, mean: np.ndarray) -> float:
        """Weighted sum of the squared distances of rows from a mean."""
        return scatter_about(self.X, mean, self.weight)

    def products(self, mean: np.ndarray, V: np.ndarray) -> np.ndarray:
        """``V`` times the scatter matrix of the rows about a mean, in O(n d k) time."""
        return scatter_product(self.X, mean, V, self.weight)


class SiteMoments(RowMoments):
    """Number, mean and scatter matrix of the rows of a site, about their own mean.

    Up to `MOST_COLUMNS` columns nothing else is kept. With more, products of the rows about their
    own mean are computed for each question, and sent with noise that hides their rounding: of the
    standard deviation 2^-40 of the bound of each entry, drawn by a key that depends on all rows and
    on the question, so that a question that is repeated has the same answer.

    Attributes
    ----------
    n_samples : float
        Number or weight of the rows.
    mean : ndarray of shape (d,)
        Mean of the rows.
    column_scatter : ndarray of shape (d,)
        Diagonal of the scatter matrix.
    dtype : dtype
        That of the rows.
    """

    def __init__(
        self,
        n_samples: float,
        shift: np.ndarray,
        offset: np.ndarray,
        scatter: np.ndarray | _HiddenScatter,
        dtype: Any = np.float64,
    ):
        self.n_samples, self.dtype = n_samples, np.dtype(dtype)
        self._shift, self._offset = shift, offset  # the mean in two parts keeps its digits
        self.mean = shift + offset
        self._scatter = scatter
        self.column_scatter = np.maximum(scatter.diagonal(), 0.0)

    @classmethod
    def of(cls, X: Any, weight: np.ndarray | None = None) -> SiteMoments:
        """Moments of rows; O(n d^2) time and O(d^2) memory up to `MOST_COLUMNS` columns."""
        if weight is not None:
            X, weight = with_weight(X, weight)
        n = float(X.shape[0] if weight is None else weight.sum())
        root_w = None if weight is None else np.sqrt(weight)
        with np.errstate(over="ignore", invalid="ignore"):
            if X.shape[1] > MOST_COLUMNS:
                hidden = _HiddenScatter(X, weight, n)
                found = cls(n, hidden.mean, np.zeros(X.shape[1]), hidden, X.dtype)
            else:
                G, shift, offset, _ = row_scatter(X, root_w, n, True, np.dtype(np.float64))
                S = np.tril(G) + np.tril(G, -1).T
                found = cls(n, shift, offset, np.ascontiguousarray(S), X.dtype)
            size = found.scatter_about(np.zeros(X.shape[1]))
        if not math.isfinite(size):
            raise too_large("sum of products", weight=weight)
        return found

    @property
    def total(self) -> np.ndarray:
        """Sum of the rows."""
        return self.n_samples * self.mean

    def deviation(self, mean: np.ndarray) -> np.ndarray:
        """Sum of the differences of rows from a mean."""
        return self.n_samples * self._gap(mean)

    def scatter_about(self, mean: np.ndarray) -> float:
        """Sum of the squared distances of rows from a mean."""
        gap = self._gap(mean)
        return float(self.column_scatter.sum() + self.n_samples * (gap @ gap))

    def products(self, mean: np.ndarray, V: np.ndarray) -> np.ndarray:
        """``V`` times the scatter matrix of the rows about a mean, in O(d^2 k) time."""
        gap = self._gap(mean)
        own = V @ self._scatter if isinstance(self._scatter, np.ndarray) else self._scatter.times(V)
        return own + self.n_samples * np.outer(V @ gap, gap)

    def matrix_about(self, mean: np.ndarray) -> np.ndarray:
        """The scatter matrix about a mean, of shape (d, d)."""
        gap = self._gap(mean)
        if not isinstance(self._scatter, np.ndarray):
            raise TypeError(f"a scatter matrix has at most {MOST_COLUMNS} columns")
        return self._scatter + self.n_samples * np.outer(gap, gap)

    def _gap(self, mean: np.ndarray) -> np.ndarray:
        return (self._shift - mean) + self._offset


class _HiddenScatter:
    """Scatter matrix of rows of many columns, of which products are told with noise."""

    def __init__(self, X: Any, weight: np.ndarray | None, n: float):
        self._X, self._weight = X, weight
        self.mean = sum_of_rows(X, weight) / n
        self._squares = _column_scatter(X, self.mean, weight)
        # sparse rows are centred after the product, which is rounded as they are
        about = np.zeros(X.shape[1]) if sp.issparse(X) else self.mean
        self._roots = np.sqrt(_column_scatter(X, about, weight))
        self._key = _digest_of_rows(X, weight)

    def diagonal(self) -> np.ndarray:
        """Diagonal of the scatter matrix."""
        return self._squares

    def times(self, V: np.ndarray) -> np.ndarray:
        """``V`` times the scatter matrix, with noise."""
        V = np.where(np.abs(V) < _LEAST_ENTRY, 0.0, V)
        key = hashlib.sha256(self._key + repr(V.shape).encode() + V.tobytes()).digest()
        rng = np.random.Generator(np.random.Philox(key=np.frombuffer(key[:16], np.uint64)))
        noise = rng.standard_normal(V.shape)
        noise *= _NOISE * np.outer(np.abs(V) @ self._roots, self._roots)
        noise += scatter_product(self._X, self.mean, V, self._weight)
        return noise


def with_weight(X: Any, weight: np.ndarray) -> tuple[Any, np.ndarray]:
    """Rows with weight, if there are any: others are as absent, whatever they hold."""
    there = weight > 0
    return (X, weight) if there.all() or not there.any() else (X[there], weight[there])


def _column_scatter(X: Any, mean: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Weighted sum of the squared differences from the mean, by column."""
    w = np.ones(X.shape[0]) if weight is None else weight
    if sp.issparse(X):
        X = sp.csr_array(X, dtype=np.float64)
        squares = np.asarray(w @ X.power(2)).ravel() - w.sum() * mean**2
        return np.maximum(squares, 0.0)
    squares = np.zeros(X.shape[1])
    for rows in row_slices(*X.shape):
        Z = X[rows] - mean
        squares += w[rows] @ (Z * Z)
    return squares


def _digest_of_rows(X: Any, weight: np.ndarray | None) -> bytes:
    """Digest of all entries, which nobody knows who does not know the rows."""
    found = hashlib.sha256(repr((X.shape, X.dtype.str)).encode())
    arrays = (X.data, X.indices, X.indptr) if sp.issparse(X) else (X,)
    for array in arrays if weight is None else (*arrays, weight):
        for part in row_slices(len(array), math.prod(array.shape[1:])):
            found.update(np.ascontiguousarray(array[part]).data)
    return found.digest()
