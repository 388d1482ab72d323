"""Data and oracles of several test files."""

from dataclasses import dataclass

import numpy as np
import pytest
from helpers import random_basis, sine
from numpy.testing import assert_allclose

from fedpca_sklearn import Subspace

EPS = np.finfo(np.float64).eps

WEIGHTINGS = ["rows", "equal"]

each_weighting = pytest.mark.parametrize("weighting", WEIGHTINGS)


@dataclass
class Shard:
    """Rows with their mean and principal axes, as they were built."""

    rows: np.ndarray
    mean: np.ndarray
    axes: np.ndarray
    s: np.ndarray

    @property
    def n(self):
        return len(self.rows)

    def projection(self, p):
        return self.axes[:p].T @ self.axes[:p]

    def scatter_matrix(self, p=None):
        return (self.axes[:p].T * self.s[:p] ** 2) @ self.axes[:p]

    @property
    def subspace(self):
        return Subspace(self.axes, self.s, self.mean, self.n, self.s @ self.s)


def make_shard(rng, n, d, *, scale=1.0, mean=0.0, axes=None):
    """Rows whose singular values decay by 0.6; n - 1 directions at most, and no more than 12."""
    if axes is None:
        axes = random_basis(rng, min(n - 1, d, 12), d)
    r = len(axes)
    U = np.linalg.qr(np.c_[np.ones(n), rng.standard_normal((n, r))])[0][:, 1:]
    s = scale * np.sqrt(n) * 0.6 ** np.arange(r)
    mean = mean + np.zeros(d)
    return Shard(mean + (U * s) @ axes, mean, axes, s)


def make_shards(rng, sizes, d, far=1.0):
    """Shards of unlike scale, mean and axes."""
    return [
        make_shard(rng, n, d, scale=10 ** rng.uniform(-1, 1), mean=far * rng.standard_normal(d))
        for n in sizes
    ]


def alike_shards(rng, sizes, d, common=3):
    """Shards that share their first axes, up to a small rotation, and no other."""
    Q = np.linalg.qr(rng.standard_normal((d, common)))[0]
    shards = []
    for n in sizes:
        moved = np.c_[Q + 0.3 / np.sqrt(d) * rng.standard_normal(Q.shape), rng.random((d, 5))]
        shards.append(make_shard(rng, n, d, axes=np.linalg.qr(moved)[0].T))
    return shards


def pooled(shards):
    return np.concatenate([shard.rows for shard in shards])


def labels(shards):
    return np.repeat(np.arange(len(shards)), [shard.n for shard in shards])


def mean_of_projections(shards, p, weighting="equal", weights=None):
    """The explicit d x d mean."""
    shares = np.array([shard.n if weighting == "rows" else 1.0 for shard in shards])
    if weights is not None:
        shares = shares * weights
    return sum(a * shard.projection(p) for a, shard in zip(shares, shards, strict=True)) / sum(
        shares
    )


def scatter_of(X):
    """Scatter matrix about the mean, and the mean; relative to a row, exact for large means."""
    Z = X - X[0]
    offset = Z.mean(axis=0)
    Z = Z - offset
    return Z.T @ Z, X[0] + offset


def eigenpairs(M):
    values, vectors = np.linalg.eigh(M)
    return values[::-1], vectors[:, ::-1].T


def assert_orthonormal(V, atol=1e-9):
    V = V.astype(np.float64)
    assert_allclose(V @ V.T, np.eye(len(V)), atol=atol)


def assert_leads(V, M, k, tol=1e-9):
    """The rows of V span k leading eigenvectors of M, as far as M has so many.

    Where there is no gap, any basis that captures as much of M will do (Ky Fan).
    """
    values, vectors = eigenpairs(M)
    k = min(k, int(np.sum(values > 1e-9)))
    V = V[:k].astype(np.float64)
    assert len(V) == k
    assert np.trace(V @ M @ V.T) >= values[:k].sum() - tol
    gap = values[k - 1] - (values[k] if k < len(values) else 0) if k else 0
    if gap > 1e-3:
        assert sine(V, vectors[:k]) <= tol / gap


def assert_principal(pca, S, n, k=None, tol=1e-9):
    """The first k components are principal axes of the scatter matrix S within their span."""
    k = pca.n_components_ if k is None else k
    V = pca.components_[:k].astype(np.float64)
    along_them = V @ S @ V.T
    variances = np.diag(along_them) / (n - 1)
    size = max(np.trace(S) / (n - 1), 1e-300)
    assert_allclose(pca.explained_variance_[:k], variances, rtol=tol, atol=tol * size)
    assert_allclose(along_them, np.diag(np.diag(along_them)), atol=tol * size * (n - 1))
    assert np.all(np.diff(pca.explained_variance_) <= 0)
    assert_allclose(pca.singular_values_**2, pca.explained_variance_ * (n - 1), rtol=max(tol, EPS))


def assert_moments(pca, X, tol=1e-9):
    """Mean and total variance are those of all rows."""
    S, mean = scatter_of(np.asarray(X, dtype=np.float64))
    total = np.trace(S)
    assert_allclose(pca.mean_, mean, rtol=tol, atol=tol * np.sqrt(total / len(X)))
    assert_allclose(pca.subspace_.scatter, total, rtol=tol)
    k, d = pca.components_.shape
    if k < d:
        rest = total / (len(X) - 1) - pca.explained_variance_.sum()
        assert_allclose(pca.noise_variance_, rest / (d - k), rtol=tol, atol=tol * total / len(X))
    assert_allclose(
        pca.explained_variance_ratio_ * total,
        pca.explained_variance_ * (len(X) - 1),
        rtol=max(tol, 1e-12),
    )
    assert pca.n_samples_ == pca.n_samples_seen_ == len(X)


def same_subspace(a, b, tol=1e-9):
    return sine(a.components_, b.components_) <= tol
