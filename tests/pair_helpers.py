"""Rows with missing entries at sites, and the covariance of available pairs by its definition."""

import numpy as np
from helpers import rows_of_decay


def covariance_of_pairs(X, weight=None):
    """Entry (i, j) is the covariance of columns i and j over the rows that have both.

    As pandas' ``DataFrame.cov``; integer weights repeat rows. NaN where no two rows have both.
    """
    X = np.asarray(X, np.float64)
    X = X if weight is None else np.repeat(X, weight, axis=0)
    d = X.shape[1]
    C = np.full((d, d), np.nan)
    for i in range(d):
        for j in range(d):
            both = X[~np.isnan(X[:, i]) & ~np.isnan(X[:, j])]
            if len(both) > 1:
                a, b = (both[:, c] - both[0, c] for c in (i, j))
                C[i, j] = (a - a.mean()) @ (b - b.mean()) / (len(both) - 1)
    return C


def nearest_model(C):
    """Eigenpairs of the nearest matrix without negative eigenvalues, largest first."""
    values, vectors = np.linalg.eigh(C)
    return np.maximum(values[::-1], 0.0), vectors[:, ::-1].T


def rows_with_holes(seed, n, d, share=0.15, mean=0.0, scale=1.0):
    """Rows of unlike variances with a share of their entries missing, and at least one there."""
    rng = np.random.default_rng(seed)
    X = scale * rows_of_decay(rng, n, d, decay=0.7) + mean * (1 + rng.random(d))
    holes = rng.random(X.shape) < share
    holes[np.arange(n), rng.integers(d, size=n)] = False
    return np.where(holes, np.nan, X)
