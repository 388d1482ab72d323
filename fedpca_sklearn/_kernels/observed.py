"""Observed entries of rows: coordinates, and a normal model of few directions plus noise.

Rows with the same pattern of missing entries share one k x k factorisation, and the factorisations
of many patterns are one batch. n rows of p patterns cost O(n d k + p k^2 (d + k)) and one sort.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from .sizes import ENTRIES_AT_ONCE, row_slices, slices_of
from .tolerances import UNDETERMINED

# A direction without variance beyond the noise: what is filled in has no part in it.
NO_VARIANCE = 1e12
# Rows whose coordinates are computed at once.
ROWS_AT_ONCE = 64


def noise_ridge(variances: np.ndarray, noise: float, d: int) -> np.ndarray | None:
    """Ridge of the coordinates of rows with these variances, from entries with noise.

    sigma^2 / (lambda_i - sigma^2), by which the coordinates of `coordinates` are the conditional
    means in probabilistic PCA (Tipping and Bishop 1999). None without noise: least squares. With d
    directions the least variance is the noise, which leaves the covariance as it is.

    Parameters
    ----------
    variances : ndarray of shape (k,)
        Of the rows along the basis, noise included.
    noise : float
        Variance of the noise of an entry.
    d : int
        Number of columns.
    """
    noise = float(variances[-1]) if len(variances) == d else noise
    if not noise > 0:
        return None
    beyond = variances.astype(np.float64) - noise
    least = noise / NO_VARIANCE or np.finfo(np.float64).smallest_subnormal
    return np.minimum(noise / np.maximum(beyond, least), NO_VARIANCE)


def has_holes(X: Any) -> bool:
    """Whether dense or sparse rows lack entries."""
    return bool(np.isnan(X.data if sp.issparse(X) else X).any())


class Fit(NamedTuple):
    """Coordinates of rows in an orthonormal basis, from the entries that are there.

    Attributes
    ----------
    values : ndarray of shape (m, k)
    gain : ndarray of shape (m,)
        By how much each row's coordinates amplify the variance of noise, 1 for whole rows.
    numbers : ndarray of shape (m,)
        Coordinates that are fitted to each row; those with a ridge count in part, by the trace of
        ``A (A^T A + ridge)^{-1} A^T``.
    """

    values: np.ndarray
    gain: np.ndarray
    numbers: np.ndarray


def coordinates(
    Z: np.ndarray,
    V: np.ndarray,
    cutoff: float = UNDETERMINED,
    ridge: np.ndarray | None = None,
) -> Fit:
    """Coordinates by least squares, or for rows with missing entries with a ridge for each.

    Where the entries do not determine the coordinates, those of least norm. See `gram_inverses`.
    """
    gain = np.ones(len(Z))
    lost = 0.0 if ridge is None else float((ridge / (1 + ridge)).sum())
    numbers = np.full(len(Z), len(V) - lost)
    missing = np.isnan(Z)
    if not missing.any():
        return Fit(Z @ V.T, gain, numbers)
    seen = ~missing
    holes = np.flatnonzero(~seen.all(axis=1))
    with np.errstate(over="ignore", invalid="ignore"):
        C = np.where(seen, Z, 0.0) @ V.T
        if len(holes) and len(V):
            inverse, gain[holes] = gram_inverses(seen[holes], V, cutoff, ridge)
            C[holes] = (inverse @ C[holes][:, :, None])[:, :, 0]
            if ridge is not None:
                numbers[holes] = len(V) - np.einsum("ijj,j->i", inverse, ridge)
    return Fit(C, gain, numbers)


def coordinates_of_rows(
    X: Any, V: np.ndarray, mean: np.ndarray, ridge: np.ndarray | None, dtype: Any
) -> np.ndarray:
    """The same of dense or sparse rows that are not centred, some at a time.

    With a ridge those of a row with missing entries are of what is filled in.
    """
    Z = np.empty((X.shape[0], len(V)), dtype=dtype)
    for at in slices_of(X.shape[0], ROWS_AT_ONCE):
        rows = (X[at].toarray() if sp.issparse(X) else X[at]) - mean
        C, *_ = coordinates(rows, V, ridge=ridge)
        Z[at] = C if ridge is None else np.where(np.isnan(rows), C @ V, rows) @ V.T
    return Z


def filled_in(
    X: np.ndarray,
    usable: np.ndarray,
    lost: np.ndarray,
    V: np.ndarray,
    mean: np.ndarray,
    ridge: np.ndarray | None,
) -> np.ndarray:
    """Copy of rows in which lost entries are replaced by the fit to the usable ones."""
    X = X.copy()
    for rows in slices_of(len(X), ROWS_AT_ONCE):
        if lost[rows].any():
            C, *_ = coordinates(usable[rows] - mean, V, ridge=ridge)
            X[rows][lost[rows]] = (C @ V + mean)[lost[rows]]
    return X


def gram_inverses(
    seen: np.ndarray,
    V: np.ndarray,
    cutoff: float = UNDETERMINED,
    ridge: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Inverse of ``A^T A`` for each row, with A the part of ``V.T`` at the entries that are there.

    Eigenvalues of ``A^T A``, which are at most 1, are left out up to ``cutoff``. Also returns the
    largest entry of each inverse, infinity where eigenvalues were left out. O(d k^2) time a row,
    all rows at once.

    Parameters
    ----------
    seen : ndarray of shape (m, d), bool
    V : ndarray of shape (k, d), k > 0
        Orthonormal rows.
    cutoff : float
    ridge : ndarray of shape (k,) or None
        Added to the diagonal of ``A^T A``.
    """
    k = len(V)
    G = -lost_grams(seen, V)
    G[:, np.arange(k), np.arange(k)] += 1 if ridge is None else 1 + ridge
    try:
        inverse = np.linalg.inv(G)
        gain = np.abs(inverse).max(axis=(1, 2))
        doubtful = ~(gain < 1 / (k * cutoff))
    except np.linalg.LinAlgError:
        inverse, gain, doubtful = np.empty_like(G), np.empty(len(G)), np.ones(len(G), dtype=bool)
    if doubtful.any():
        values, U = np.linalg.eigh(G[doubtful])
        dropped = values <= cutoff
        values[dropped] = np.inf
        inverse[doubtful] = (U / values[:, None, :]) @ U.transpose(0, 2, 1)
        largest = np.abs(inverse[doubtful]).max(axis=(1, 2))
        gain[doubtful] = np.where(dropped.any(axis=1), np.inf, largest)
    return inverse, gain


def lost_grams(seen: np.ndarray, V: np.ndarray) -> np.ndarray:
    """``I - A^T A`` for each row: the Gram matrix of the basis at the entries that are missing."""
    k, d = V.shape
    if 0 < 4 * len(seen) <= k:  # in less time than the products of two entries take
        parts = [V[:, np.flatnonzero(~row)].astype(np.float64, copy=False) for row in seen]
        return np.stack([part @ part.T for part in parts])
    rows, cols = np.triu_indices(k)
    lost = np.zeros((len(seen), len(rows)))
    step = max(1, ENTRIES_AT_ONCE // max(len(rows), 1))
    for start in range(0, d, step):  # products of two entries of each
        features = slice(start, start + step)
        part = V[:, features]
        gone = (~seen[:, features]).astype(np.float64)
        lost += gone @ (part[rows] * part[cols]).T
    G = np.empty((len(seen), k, k))
    G[:, rows, cols] = lost
    G[:, cols, rows] = lost
    return G


@dataclass(frozen=True)
class GaussianModel:
    """Covariance S (V^T diag(variance) V + noise (I - V^T V)) S with S = diag(scale), about zero.

    Parameters
    ----------
    basis : ndarray of shape (k, d)
        V: orthonormal rows.
    variance : ndarray of shape (k,)
        Variance along each row of V.
    noise : float
        Variance in each direction orthogonal to V.
    scale : ndarray of shape (d,), default=None
        None: ones.
    """

    basis: np.ndarray
    variance: np.ndarray
    noise: float
    scale: np.ndarray | None = None

    @classmethod
    def per_column(cls, V: np.ndarray, variance: np.ndarray, residual: np.ndarray) -> GaussianModel:
        """The model with covariance V^T diag(variance) V + diag(residual).

        In columns divided by the roots of their residuals the noise is one in all directions.

        Parameters
        ----------
        V : ndarray of shape (k, d)
        variance : ndarray of shape (k,)
        residual : ndarray of shape (d,)
            Positive.

        Returns
        -------
        model : GaussianModel
        """
        scale = np.sqrt(residual)
        _, s, basis = np.linalg.svd(np.sqrt(variance)[:, None] * V / scale, full_matrices=False)
        return cls(basis, 1 + s**2, 1.0, scale)

    def log_density(self, Z: np.ndarray, squared_norms: np.ndarray) -> np.ndarray:
        """Logarithm of the density at rows.

        Parameters
        ----------
        Z : ndarray of shape (n, k)
            Coordinates in the basis of the rows divided by the scale.
        squared_norms : ndarray of shape (n,)
            Of the same rows.

        Returns
        -------
        log_density : ndarray of shape (n,)
        """
        rank, d = self.basis.shape
        # minus infinity where the model has no variance at all, and of rows whose squares overflow
        with np.errstate(over="ignore", invalid="ignore"):
            Z = Z**2
            result = d * np.log(2 * np.pi) + np.log(self.variance).sum() + Z @ (1 / self.variance)
            if rank < d:
                rest = np.maximum(squared_norms - Z.sum(axis=1), 0)
                rest[np.isinf(squared_norms)] = np.inf
                result += (d - rank) * np.log(self.noise) + rest / self.noise
        if self.scale is not None:
            result += 2 * np.log(self.scale).sum()
        return -0.5 * result

    def log_density_of_seen(self, Y: np.ndarray) -> np.ndarray:
        """Logarithm of the marginal density of the entries that are there.

        Parameters
        ----------
        Y : ndarray of shape (n, d)
            Rows about zero; NaN is a missing entry.

        Returns
        -------
        log_density : ndarray of shape (n,)
            Of a row without entries 0. Cost: see `observed`.
        """
        model = SeenModel.of(self.basis, self.variance, self.noise)
        if self.scale is None:
            return model.log_density(Y)
        return model.log_density(Y / self.scale) - ~np.isnan(Y) @ np.log(self.scale)

    def precision(self) -> np.ndarray:
        """Inverse of the covariance, of shape (d, d)."""
        V, variance, noise = self.basis, self.variance, self.noise
        if V.shape[0] == V.shape[1]:
            precision = (V.T / variance) @ V
        else:
            precision = (V.T * (1 / variance - 1 / noise)) @ V
            precision[np.diag_indices_from(precision)] += 1 / noise
        if self.scale is not None:
            precision /= self.scale
            precision /= self.scale[:, None]
        return precision


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
