"""Data and oracles of several test files."""

import math

import numpy as np
from helpers import (
    as_dense,
    unlike_sites,
)
from hypothesis import settings
from hypothesis import strategies as st

TOL = 1e-10

examples = settings(max_examples=100, derandomize=True, deadline=None, database=None)

seeds = st.integers(0, 2**20)


def centred(X, weight=None):
    """Weighted rows about their mean, and the mean; relative to a row first, in long double."""
    X = as_dense(X).astype(np.longdouble)
    w = np.ones(len(X)) if weight is None else np.asarray(weight, dtype=np.float64)
    D = X - X[0]
    offset = (w @ D) / w.sum(dtype=np.longdouble)
    Z = np.sqrt(w.astype(np.longdouble))[:, None] * (D - offset)
    return Z.astype(np.float64), (X[0] + offset).astype(np.float64)


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


def levels_of(s):
    return math.ceil(math.log2(s))


def seven_sites():
    """Seven unlike clients of 1 to 70 rows."""
    return unlike_sites(np.random.default_rng(0), [40, 1, 70, 33, 50, 2, 64], 9)


SHAPES = {"tall": ([40, 1, 70, 33], 6), "one row each": ([1] * 30, 6), "wide": ([5, 1, 3, 8], 40)}
