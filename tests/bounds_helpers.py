"""Batches within the assumptions of the guarantees for tracking, and their quantities.

P. Narayanamurthy, N. Vaswani, A. Ramamoorthy, "Federated over-air subspace tracking from incomplete
and corrupted data", 2022, sections II and III. The paper's columns are rows here.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from helpers import random_basis, sine


def waves(n, r, first=1):
    """Orthonormal rows whose columns all have the same length: Assumption 3.1 with mu = 1."""
    angles = 2 * np.pi * np.outer(np.arange(first, first + r // 2), np.arange(n)) / n
    return np.sqrt(2 / n) * np.concatenate([np.cos(angles), np.sin(angles)])


def swaying(n, r, n_batches, step):
    """Subspaces of batches, each at this sine to the one before, of nearly mu = 1."""
    P, Q = waves(n, r), waves(n, r, first=1 + r)
    half = np.arcsin(step) / 2
    return [np.cos(half) * P + (-1) ** j * np.sin(half) * Q for j in range(n_batches)]


def bounded(rng, shape, variances):
    """Independent, bounded, of mean zero: the coefficients of Assumption 3.2."""
    return rng.uniform(-1, 1, shape) * np.sqrt(3 * np.asarray(variances))


def batch_of(rng, P, alpha, *, variances=1.0, noise=0.0):
    """The rows l_t + v_t of a batch: v_t outside the span of P, in as many directions."""
    r, n = P.shape
    L = bounded(rng, (alpha, r), variances) @ P
    if noise:
        Q = random_basis(rng, r, n)
        Q = np.linalg.qr((Q - Q @ P.T @ P).T)[0].T
        L += bounded(rng, (alpha, r), noise**2) @ Q
    return L


def holes(rng, alpha, n, per_feature):
    """Mask in which each feature is missing so many times, spread evenly over the rows."""
    lost = np.zeros((alpha, n), dtype=bool)
    cell = np.arange(n * per_feature)
    lost[rng.permutation(alpha)[cell % alpha], cell // per_feature] = True
    return lost


def sparse_noise(rng, L, V, b, q, aligned):
    """w_i = I_M B_i l_i with norm(B_i P) = q, on as many disjoint supports as b allows.

    Aligned, all rows of a support have the same B_i: sums of l_i w_i^T then are as large as the
    inequality of Cauchy and Schwarz, by which the square root of b enters, lets them be.
    """
    alpha, n = L.shape
    W, groups, A = np.zeros_like(L), round(1 / b), L @ V.T
    for g in range(groups):
        support = np.arange(g, n, groups)
        u = rng.standard_normal(len(support))
        for i in range(g, alpha, groups):
            if not aligned:
                u = rng.standard_normal(len(support))
            W[i, support] = q * A[i, -1] * u / np.linalg.norm(u)
    return W


class Quantities(NamedTuple):
    """Of a batch: its subspace P_j, and what the guarantees ask of it."""

    P: np.ndarray
    mu: float
    f: float
    no_lev: float
    per_row: float
    per_feature: float


def quantities(L, lost, r):
    """P_j is the r-SVD of the batch (section II-B), lambdas are moments of the batch itself.

    ``per_row`` is the paper's max-miss-frac-col and ``per_feature`` its max-miss-frac-row
    (Definition 3.3); mu is that of Assumption 3.1, no-lev = sqrt(lambda_v+ / lambda-).
    """
    values, vectors = np.linalg.eigh(L.T @ L)
    values, P = np.maximum(values[::-1], 0.0), vectors[:, : -r - 1 : -1].T
    return Quantities(
        P,
        float((P**2).sum(axis=0).max()) * L.shape[1] / r,
        float(values[0] / values[r - 1]),
        float(np.sqrt(values[r] / values[r - 1])),
        float(lost.mean(axis=1).max()),
        float(lost.mean(axis=0).max()),
    )


def steps(batches):
    """Delta_j, the distances of subspaces of batches that follow each other."""
    return [sine(a.P, b.P) for a, b in pairwise(batches)]
