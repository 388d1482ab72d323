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
from collections.abc import Iterable, Iterator
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp
from scipy.linalg.blas import dgemm

from .linalg import mirror, two_sum
from .rows import columns_about, scatter_product, sum_of_rows
from .scatter import row_scatter
from .sizes import row_slices
from .too_large import too_large

# Rows of a block at least: products of fewer rows cost more than their arithmetic.
_LEAST_ROWS = 256


def moments_of_pairs(X: Any, weight: np.ndarray | None) -> tuple[np.ndarray, ...]:
    """Counts, means beyond the origin, products about the means, and the origin.

    Parameters
    ----------
    X : {ndarray, CSR} of shape (n, d)
        Without infinity; NaN is a missing entry.
    weight : ndarray of shape (n,) or None

    Returns
    -------
    counts, means, products : ndarray of shape (d, d)
        As in `PairMoments`.
    origin : ndarray of shape (d,)
        The means of the columns, 0 of one without entries.
    """
    d = X.shape[1]
    origin, _ = means_of_columns(X, weight)
    # in Fortran's order, so that products are added in place
    counts, sums, products = np.zeros((3, d, d)).transpose(0, 2, 1)
    add = partial(dgemm, 1.0, beta=1.0, trans_b=1, overwrite_c=1)
    for rows, w in _blocks(X, weight):
        seen = ~np.isnan(rows)
        Z, there = np.where(seen, rows - origin, 0.0), seen.astype(np.float64)
        wZ, w_there = (Z, there) if w is None else (w[:, None] * Z, w[:, None] * there)
        counts = add(w_there.T, there.T, c=counts)
        sums = add(wZ.T, there.T, c=sums)
        products = add(wZ.T, Z.T, c=products)
    mirror(counts)  # other products are rounded in another way
    means = np.divide(sums, counts, out=sums, where=counts > 0)
    for at in row_slices(d, d):
        products[at] -= counts[at] * means[at] * means[:, at].T
    settle(products)
    return counts, means, products, origin


def settle(products: np.ndarray) -> None:
    """Take away, in place, what rounding leaves where there is no variation."""
    mirror(products)
    most = np.sqrt(np.maximum(np.diag(products), 0.0))
    for at in row_slices(len(products), len(products)):
        bound = most[at, None] * most
        np.clip(products[at], -bound, bound, out=products[at])


def means_of_columns(X: Any, weight: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Means of what is there, an entry and the mean of the differences to it, and its weight."""
    d = X.shape[1]
    first, known = np.zeros(d), np.zeros(d, dtype=bool)
    total, count = np.zeros(d), np.zeros(d)
    for rows, w in _blocks(X, weight):
        seen = ~np.isnan(rows)
        new = seen.any(axis=0) & ~known
        first[new] = rows[seen.argmax(axis=0)[new], new]
        known |= new
        there = seen.astype(np.float64) if w is None else w[:, None] * seen
        total += (there * np.where(seen, rows - first, 0.0)).sum(axis=0)
        count += there.sum(axis=0)
    return first + np.divide(total, count, out=np.zeros(d), where=known), count


def _blocks(X: Any, weight: np.ndarray | None) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Dense rows with weight, at least one at a time, and their weights."""
    for at in row_slices(X.shape[0], X.shape[1], least=_LEAST_ROWS):
        rows = X[at].toarray() if sp.issparse(X) else X[at]
        w = None if weight is None else weight[at]
        if w is not None and not w.all():
            rows, w = rows[w > 0], w[w > 0]
        if not len(rows):
            continue
        yield rows.astype(np.float64, copy=False), w


# Deviation over mean that rounding explains in a column of one value. Of 30,000 dense weighted rows
# of seven clients it left up to 14 eps.
_ROUNDING = 1024 * np.finfo(np.float64).eps


def is_rounding(deviation: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Whether columns deviate by no more than what rounding explains.

    The bound does not depend on a number of rows, which is not known from a sum of weights: their
    unit must not matter. That of scikit-learn's scalers is ``n_samples * eps``: smaller below 1,024
    rows, larger above.
    """
    return deviation <= _ROUNDING * np.abs(mean)


class ColumnMoments(NamedTuple):
    """Weight of the entries of each column, their mean, and their sum of squares about it.

    Arrays of shape (d,). A column without entries has the mean 0. ``rest`` is what rounding took
    off the mean: means of 1e8 that differ by 1 would else differ by eight digits only.
    """

    n_entries: np.ndarray
    mean: np.ndarray
    rest: np.ndarray
    squares: np.ndarray

    @property
    def n_floats(self) -> int:
        """Floats in a message: the counts are one where no entry is missing."""
        few = self.has_one_number
        return (1 if few else self.mean.size) + 3 * self.mean.size

    @property
    def nbytes(self) -> int:
        """Bytes in a message."""
        return 8 * self.n_floats

    def checked(self, weight: np.ndarray | None = None) -> ColumnMoments:
        """The same moments, or an error where they overflow, with the weights of the rows."""
        if not np.isfinite([self.mean, self.squares]).all():
            raise too_large("mean or variance", weight=weight)
        return self

    @property
    def has_one_number(self) -> bool:
        """Whether all columns have the same number of entries."""
        return bool((self.n_entries == self.n_entries[0]).all())

    @property
    def variance(self) -> np.ndarray:
        """Mean squares; NaN in a column without entries."""
        return self.squares / np.where(self.n_entries > 0, self.n_entries, np.nan)


def pooled_columns(parts: Iterable[ColumnMoments]) -> ColumnMoments:
    """Moments of all rows, by the pairwise formula of Chan, Golub and LeVeque (1983)."""
    parts = iter(parts)
    n, mean, rest, squares = next(parts)
    for part in parts:
        total = n + part.n_entries
        share = part.n_entries / np.where(total > 0, total, 1)
        difference = (part.mean - mean) + (part.rest - rest)
        mean, lost = two_sum(mean, share * difference)
        rest = rest + lost
        squares = squares + part.squares + n * share * difference**2
        n = total
    mean, rest = two_sum(mean, rest)
    return ColumnMoments(n, mean, rest, squares)


# Most columns of which a site keeps the scatter matrix, 33 MB.
MOST_COLUMNS = 2048
# Entries of a basis below it count as zero, and the noise of an answer, relative to its bound,
# where rows have more columns. Rounding is 2^-12 of it: some 2^24 answers would tell that.
_LEAST_ENTRY, _NOISE = 2.0**-60, 2.0**-40
# Noise that hides the rounding of a difference, relative to it: 2^-11 of it is rounding. And that
# of a sum with a mean, in units of its own rounding.
_OF_DIFFERENCES, _OF_SUMS = 2.0**-42, 8


class RowsAtHand:
    """Moments of rows in this process, computed from the rows when they are asked for."""

    def __init__(self, rows: Any, weight: np.ndarray | None = None):
        self.rows, self.weight = rows, weight
        if weight is not None:
            self.rows, self.weight = with_weight(rows, weight)

    @cached_property
    def n_samples(self) -> float:
        """Number or weight of the rows."""
        return float(self.rows.shape[0] if self.weight is None else self.weight.sum())

    @cached_property
    def total(self) -> np.ndarray:
        """Weighted sum of the rows, whose squares must not overflow."""
        if not np.isfinite(self.scatter_about(np.zeros(self.rows.shape[1]))):
            raise too_large("sum of products", weight=self.weight)
        return sum_of_rows(self.rows, self.weight)

    @cached_property
    def own_scatter(self) -> float:
        """Weighted sum of the squared distances of rows from their own mean."""
        return self.scatter_about(self.total / self.n_samples)

    def deviation(self, mean: np.ndarray) -> np.ndarray:
        """Weighted sum of the differences of rows from a mean."""
        return sum_of_rows(self.rows, self.weight) - self.n_samples * mean

    def scatter_about(self, mean: np.ndarray) -> float:
        """Weighted sum of the squared distances of rows from a mean, the same in many rounds."""
        about, found = vars(self).get("_last", (None, 0.0))
        if about is not mean:
            found = float(columns_about(self.rows, mean, self.weight).sum())
            vars(self)["_last"] = mean, found
        return found

    def products(self, mean: np.ndarray, V: np.ndarray) -> np.ndarray:
        """``V`` times the scatter matrix of the rows about a mean, in O(n d k) time."""
        return scatter_product(self.rows, mean, V, self.weight)


class SiteMoments:
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

    @property
    def own_scatter(self) -> float:
        """Sum of the squared distances of rows from their own mean."""
        return self.scatter_about(self.mean)

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


# What questions about first and second moments of rows are answered from.
RowMoments: TypeAlias = RowsAtHand | SiteMoments


class _HiddenScatter:
    """Scatter matrix of rows of many columns, of which products are told with noise."""

    def __init__(self, X: Any, weight: np.ndarray | None, n: float):
        self._X, self._weight = X, weight
        self.mean = sum_of_rows(X, weight) / n
        self._squares = columns_about(X, self.mean, weight)
        # sparse rows are centred after the product, which is rounded as they are
        about = np.zeros(X.shape[1]) if sp.issparse(X) else self.mean
        self._roots = np.sqrt(columns_about(X, about, weight))
        self._key = _digest_of_rows(X, weight)

    def diagonal(self) -> np.ndarray:
        """Diagonal of the scatter matrix."""
        return self._squares

    def times(self, V: np.ndarray) -> np.ndarray:
        """``V`` times the scatter matrix, with noise."""
        V = without_tiny(V)
        key = hashlib.sha256(self._key + repr(V.shape).encode() + V.tobytes()).digest()
        noise = _generator(key).standard_normal(V.shape)
        noise *= _NOISE * np.outer(np.abs(V) @ self._roots, self._roots)
        noise += scatter_product(self._X, self.mean, V, self._weight)
        return noise


class RoundingNoise:
    """Noise for rows that are treated one by one, by numbers of a server's choice.

    The difference of an entry from a mean far away, or a small coordinate added to a large one, is
    a threshold after rounding, and products with what exceeds one tell single rows. Noise above the
    rounding hides it. It is drawn by a key that depends on all rows and on the question, so that a
    question that is repeated has the same answer.

    Parameters
    ----------
    X : {ndarray, sparse array} of shape (n, d)
        All rows.
    *asked : ndarray
        What the server has sent.
    """

    def __init__(self, X: Any, *asked: np.ndarray):
        found = hashlib.sha256(_digest_of_rows(X, None))
        for array in asked:
            found.update(repr(array.shape).encode() + array.tobytes())
        self._rng = _generator(found.digest())

    def on(self, Z: np.ndarray) -> np.ndarray:
        """Differences of entries from a mean, with noise."""
        return Z + _OF_DIFFERENCES * np.abs(Z) * self._rng.standard_normal(Z.shape)

    def added(self, Z: np.ndarray, mean: np.ndarray, dtype: Any) -> np.ndarray:
        """Numbers about a mean and the mean, with noise above what a dtype rounds."""
        size = _OF_SUMS * np.finfo(dtype).eps * np.abs(Z + mean)
        return Z + size * self._rng.standard_normal(Z.shape) + mean


def without_tiny(V: np.ndarray) -> np.ndarray:
    """A basis whose entries below 2^-60 are zero: products with them would be rounded to steps."""
    return np.where(np.abs(V) < _LEAST_ENTRY, 0.0, V)


def _generator(key: bytes) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=np.frombuffer(key[:16], np.uint64)))


def with_weight(X: Any, weight: np.ndarray) -> tuple[Any, np.ndarray]:
    """Rows with weight, if there are any: others are as absent, whatever they hold."""
    there = weight > 0
    return (X, weight) if there.all() or not there.any() else (X[there], weight[there])


def _digest_of_rows(X: Any, weight: np.ndarray | None) -> bytes:
    """Digest of all entries, which nobody knows who does not know the rows."""
    found = hashlib.sha256(repr((X.shape, X.dtype.str)).encode())
    arrays = (X.data, X.indices, X.indptr) if sp.issparse(X) else (X,)
    for array in arrays if weight is None else (*arrays, weight):
        for part in row_slices(len(array), math.prod(array.shape[1:])):
            found.update(np.ascontiguousarray(array[part]).data)
    return found.digest()
