"""Data and oracles of several test files."""

import math

import numpy as np
from helpers import centred, sine_of_orthonormal, unlike_sites
from hypothesis import settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

TOL = 1e-10
EPS = np.finfo(np.float64).eps

examples = settings(max_examples=60, derandomize=True, deadline=None, database=None)

seeds = st.integers(0, 2**20)


class Oracle:
    """PCA of weighted rows, all in one place, by numpy's SVD."""

    def __init__(self, X, weight=None):
        self.Z, self.mean = centred(X, weight)
        _, s, self.components = np.linalg.svd(self.Z, full_matrices=False)
        self.d = self.Z.shape[1]
        self.s = np.concatenate([s, np.zeros(self.d + 1)])[: self.d + 1]
        self.gram = self.Z.T @ self.Z
        self.scatter = float(np.sum(self.Z * self.Z))
        w = np.ones(len(self.Z)) if weight is None else np.asarray(weight, dtype=np.float64)
        self.n, self.n_rows = float(w.sum()), int(np.ceil(w).sum())

    def gapped_ranks(self, k, gap=1e-2):
        """Ranks up to k where a gap in the spectrum defines a subspace."""
        wide = (self.s[:-1] - self.s[1:])[:k] > gap * max(self.s[0], 1e-300)
        return np.flatnonzero(wide) + 1


def assert_is_gram(got, want, tol=TOL):
    size = np.sqrt(np.diag(want))
    assert np.all(abs(got - want) <= tol * np.outer(size, size) + 1e-28 * np.max(want, initial=1))


def assert_is_factor_of(R, gram):
    """Trapezoidal, non-negative on the diagonal, and every column as exact as its own size."""
    assert_array_equal(np.tril(R, -1), 0)
    assert np.all(np.diag(R) >= 0)
    assert_is_gram(R.T @ R, gram)


def assert_is_pca_of(pca, X, k=None, weight=None, *, size=0.0):
    """All fitted attributes of an exact estimator of clients against the oracle.

    ``size``: magnitude of the mean where that dominates. Each mean on the way to the server is
    rounded to eps * size, which perturbs the stack of all centred rows by that much in every entry;
    at most ten such roundings add up. Weyl: singular values move by no more than the norm of the
    perturbation; Wedin: the subspace by the norm over the gap. Where only rounding is left, a Gram
    matrix gives its root, and a triangle the values themselves, to 1e-10 of the largest.
    """
    o, by_qr = Oracle(X, weight), hasattr(pca, "r_factor_")
    tol, moved = (TOL, 0.0) if by_qr else (1e-9, 10 * EPS * size * np.sqrt(o.n * o.d))
    exist = min(o.n_rows, o.d)
    k = exist if k is None else min(k, exist)
    V, s = pca.components_, pca.singular_values_
    assert V.shape == (pca.n_components_, o.d) == (k, o.d)
    assert pca.n_samples_ == pca.n_samples_seen_ == o.n_rows
    assert_allclose(V @ V.T, np.eye(k), atol=tol)
    for r in o.gapped_ranks(k) if by_qr else o.gapped_ranks(k, 1e-3)[-1:]:
        off = sine_of_orthonormal(V[:r], o.components[:r])
        assert off <= tol + moved / (o.s[r - 1] - o.s[r])
    strong = o.s[:k] > 1e-3 * o.s[0]
    assert_allclose(s[strong], o.s[:k][strong], rtol=tol * (not by_qr), atol=moved + TOL * o.s[0])
    weak = TOL if by_qr else np.sqrt(o.d * EPS)
    assert np.all(abs(s - o.s[:k])[~strong] <= weak * o.s[0] + moved)
    dof, more = max(o.n - 1, o.n / 2), 2 * moved * np.sqrt(o.scatter) + moved**2
    total = o.scatter / dof
    assert_allclose(pca.explained_variance_, s**2 / dof, rtol=tol)
    assert_allclose(pca.explained_variance_ratio_ * o.scatter, s**2, rtol=tol, atol=more)
    rest = np.sum(o.s[k:] ** 2) / dof / max(o.d - k, 1)
    assert_allclose(pca.noise_variance_, rest, rtol=tol, atol=tol * total + more / dof)
    rounding = 4 * EPS if by_qr else tol
    atol = rounding * np.sqrt(total) + 10 * EPS * size * (not by_qr)
    assert_allclose(pca.mean_, o.mean, rtol=rounding, atol=atol)
    assert_allclose(pca.subspace_.scatter, o.scatter, rtol=tol, atol=more)
    assert_allclose(pca.subspace_.n_samples, o.n, rtol=1e-12)
    if by_qr:
        exact = pca.subspace_.singular_values
        assert_allclose(exact, o.s[: len(exact)], rtol=0, atol=TOL * o.s[0])
        assert_is_factor_of(pca.r_factor_, o.gram)
        assert len(pca.r_factor_) == min(
            X.shape[0] if weight is None else np.count_nonzero(weight), o.d
        )


def levels_of(s):
    return math.ceil(math.log2(s))


def seven_sites():
    """Seven unlike clients of 1 to 70 rows."""
    return unlike_sites(np.random.default_rng(0), [40, 1, 70, 33, 50, 2, 64], 9)


SHAPES = {"tall": ([40, 1, 70, 33], 6), "one row each": ([1] * 30, 6), "wide": ([5, 1, 3, 8], 40)}
