"""Rows whose norms are bounded: sums and products of what clipping leaves of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import scipy.sparse as sp

from .._kernels.sizes import row_slices

# Entries beyond are brought back to this size before all else, so that no difference overflows,
# and so that what shortens such a row to the least row_norm, 1e-60, is a float with all its digits.
_LARGEST = 1e240


def blocks_about(
    X: Any,
    center: np.ndarray | None,
    shape: np.ndarray | None = None,
    factors: np.ndarray | None = None,
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield dense rows about a centre, times a shape and a factor each, in float64, by blocks."""
    for at in row_slices(*X.shape):
        rows = X[at].toarray() if sp.issparse(X) else X[at]
        Y = np.clip(rows.astype(np.float64, copy=False), -_LARGEST, _LARGEST)
        if center is not None:
            Y -= np.clip(center, -_LARGEST, _LARGEST)
        Y = Y if shape is None else Y @ shape
        if factors is not None:
            Y *= factors[at, None]
        yield at, Y


def row_norms(X: Any, center: np.ndarray | None, shape: np.ndarray | None = None) -> np.ndarray:
    """Distances of rows to a centre, None for the origin, times a matrix (d, d) if there is one."""
    if sp.issparse(X) and center is None and shape is None:
        X = canonical(X)
        largest = abs(X).max(axis=1).toarray().ravel()
        X.data /= np.repeat(np.where(largest > 0, largest, 1), np.diff(X.indptr))
        return largest * np.sqrt(X.power(2).sum(axis=1))
    norms = np.empty(X.shape[0])
    for rows, Y in blocks_about(X, center, shape):
        largest = np.abs(Y).max(axis=1)
        Y /= np.where(largest > 0, largest, 1)[:, None]
        norms[rows] = largest * np.sqrt(np.einsum("ij,ij->i", Y, Y))
    return norms


def canonical(X: Any) -> sp.csr_array:
    """Copy of sparse rows in float64, each entry once."""
    X = sp.csr_array(X, dtype=np.float64, copy=True)
    X.sum_duplicates()
    np.clip(X.data, -_LARGEST, _LARGEST, out=X.data)
    return X


@dataclass(frozen=True, eq=False)
class ClippedRows:
    """Rows about a public centre, y = factor (x - center), shortened to a norm.

    With a ``shape``, a (d, d) matrix that is public too, y = factor (x - center) shape.

    Dense rows are not copied. Sparse rows about the origin are, shortened, and stay sparse; about
    another centre they are densified block by block.
    """

    X: Any
    center: np.ndarray | None
    factors: np.ndarray
    shape: np.ndarray | None = None

    @classmethod
    def of(
        cls, X: Any, center: np.ndarray | None, row_norm: float, shape: np.ndarray | None = None
    ) -> ClippedRows:
        """Clip finite rows."""
        factors = row_norm / np.maximum(row_norms(X, center, shape), row_norm)
        if sp.issparse(X) and center is None and shape is None:
            X = canonical(X)
            X.data *= np.repeat(factors, np.diff(X.indptr))
            factors = np.ones(len(factors))
        return cls(X, center, factors, shape)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.X.shape[0]

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return self.X.shape[1]

    def _blocks(self) -> Iterable[Any]:
        """The rows y: sparse ones about the origin at once, others dense, a block at a time."""
        if sp.issparse(self.X) and self.center is None and self.shape is None:
            return [self.X]
        blocks = blocks_about(self.X, self.center, self.shape, self.factors)
        return map(itemgetter(1), blocks)

    def sum(self) -> np.ndarray:
        """Sum of y."""
        return np.sum([Y.sum(axis=0) for Y in self._blocks()], axis=0)

    def products(self, columns: slice) -> np.ndarray:
        """Columns of the second moment, the sum of y y^T: O(n d b) for b of them."""
        d = self.X.shape[1]
        result = np.zeros((d, len(range(d)[columns])))
        for Y in self._blocks():
            found = Y.T @ Y[:, columns]
            result += found.toarray() if sp.issparse(found) else found
        return result

    def times_second_moment(self, V: np.ndarray) -> np.ndarray:
        """``V`` times the second moment: O(n d k), no d x d matrix."""
        return np.sum([(Y @ V.T).T @ Y for Y in self._blocks()], axis=0)

    def trace(self) -> float:
        """Trace of the second moment: the sum of the squared norms."""
        values = (Y.data if sp.issparse(Y) else Y for Y in self._blocks())
        return float(sum(np.square(of).sum() for of in values))
