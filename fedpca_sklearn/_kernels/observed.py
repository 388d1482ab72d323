"""The entries of rows that are there, under a normal distribution of few directions plus noise.

Rows with the same pattern of missing entries share one k x k factorisation, and the factorisations
of many patterns are one batch. n rows of p patterns cost O(n d k + p k^2 (d + k)) and one sort.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from .missing import lost_grams
from .sizes import row_slices


@dataclass(frozen=True)
class Patterns:
    """Some rows, and the patterns of their entries.

    ``rows`` are their positions, ``seen`` (p, d) the patterns, ``of_row`` the pattern of each row.
    """

    rows: np.ndarray
    seen: np.ndarray
    of_row: np.ndarray


def patterns_of(seen: np.ndarray, k: int) -> Iterator[Patterns]:
    """Yield all rows in groups, those of equal patterns one after the other.

    Parameters
    ----------
    seen : ndarray of shape (n, d), bool
        Which entries are there.
    k : int
        Size of the matrix of each pattern; with d it says how many rows are a group.
    """
    n, d = seen.shape
    _, number = np.unique(np.packbits(seen, axis=1), axis=0, return_inverse=True)
    number = number.reshape(n)  # numpy 2.0 returns a column
    order = np.argsort(number, kind="stable")
    for at in row_slices(n, max(d, k * k)):
        rows = order[at]
        of_row = np.cumsum(np.diff(number[rows], prepend=number[rows[0]]) > 0)
        first = np.searchsorted(of_row, np.arange(of_row[-1] + 1))
        yield Patterns(rows, seen[rows[first]], of_row)


def rows_of_patterns(X: Any) -> np.ndarray:
    """Number of rows of each pattern of missing entries, NaN, that occurs in X.

    Parameters
    ----------
    X : ndarray or CSR array of shape (n, d)
    """
    if not sp.issparse(X):
        missing = np.packbits(np.isnan(X), axis=1)
        return np.unique(missing, axis=0, return_counts=True)[1]
    at = [X.indices[a:b][np.isnan(X.data[a:b])] for a, b in pairwise(X.indptr)]
    return np.array([*Counter(np.sort(columns).tobytes() for columns in at).values()])


@dataclass(frozen=True)
class SeenModel:
    """Covariance W^T W + noise I about zero, with W of shape (k, d) and noise > 0."""

    W: np.ndarray
    noise: float

    @classmethod
    def of(cls, basis: np.ndarray, variance: np.ndarray, noise: float) -> SeenModel:
        """The model with these variances along an orthonormal basis, and noise elsewhere.

        Where there is no elsewhere, the least variance counts as noise.
        """
        if len(basis) == basis.shape[1]:
            noise = float(variance.min())
        beyond = np.sqrt(np.maximum(variance - noise, 0.0))
        return cls(beyond[:, None] * basis.astype(np.float64), noise)

    def factors(self, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inverse Cholesky factors of ``I + W_o W_o^T / noise``, and log-determinants.

        Parameters
        ----------
        seen : ndarray of shape (p, d), bool
            Patterns; W_o are the columns of W where one is True.

        Returns
        -------
        inverses : ndarray of shape (p, k, k)
        log_determinants : ndarray of shape (p,)
        """
        W = self.W / np.sqrt(self.noise)
        L = np.linalg.cholesky(np.eye(len(W)) + lost_grams(~seen, W))
        return np.linalg.inv(L), 2 * np.log(np.einsum("pii->pi", L)).sum(axis=1)

    def posterior(self, Y: np.ndarray, seen: np.ndarray, inverses: np.ndarray) -> np.ndarray:
        """Mean of the standard normal c of rows ``c W + noise`` of which some entries are known.

        Parameters
        ----------
        Y : ndarray of shape (m, d)
            Rows, zero where an entry is missing.
        seen : ndarray of shape (m, d), bool
        inverses : ndarray of shape (m, k, k)
            Of the patterns of the rows, see `factors`.

        Returns
        -------
        c : ndarray of shape (m, k)
            With the rows' residuals ``r = Y - c W`` of what is there, ``|r|^2 / noise + |c|^2`` is
            the squared distance of the entries from zero in units of their covariance.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            b = (Y @ self.W.T / self.noise)[:, :, None]
            return (inverses.transpose(0, 2, 1) @ (inverses @ b))[:, :, 0]

    def log_density(self, Y: np.ndarray) -> np.ndarray:
        """Logarithm of the density of the entries that are there.

        Parameters
        ----------
        Y : ndarray of shape (n, d)
            Rows about zero; NaN is a missing entry.

        Returns
        -------
        log_density : ndarray of shape (n,)
            Of a row without entries 0.
        """
        seen, result = ~np.isnan(Y), np.empty(len(Y))
        for group in patterns_of(seen, len(self.W)):
            there = seen[group.rows]
            y = np.where(there, Y[group.rows], 0.0)
            inverses, log_determinants = self.factors(group.seen)
            c = self.posterior(y, there, inverses[group.of_row])
            # minus infinity where the model has no variance, and of rows whose squares overflow
            with np.errstate(over="ignore", invalid="ignore"):
                rest = np.where(there, y - c @ self.W, 0.0)
                squares = np.einsum("ij,ij->i", rest, rest) / self.noise
                squares += np.einsum("ij,ij->i", c, c)
            squares[np.isnan(squares)] = np.inf
            size = there.sum(axis=1) * np.log(2 * np.pi * self.noise)
            result[group.rows] = -0.5 * (size + log_determinants[group.of_row] + squares)
        return result
