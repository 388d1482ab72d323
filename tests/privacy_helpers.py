"""Rows, mechanisms and their oracles, which several files of tests/privacy share."""

import math
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp

from fedpca_sklearn import (
    AnalyzeGauss,
    FederatedPCA,
    FederatedPowerPCA,
    FedPowerNoise,
    ModSuLQ,
    StreamingModSuLQ,
)

inf, nan = math.inf, math.nan
MARGIN = 5  # standard deviations
ONE_ROUND = [AnalyzeGauss, ModSuLQ, StreamingModSuLQ]
EVERY = [*ONE_ROUND, FedPowerNoise]
every_mechanism = pytest.mark.parametrize("kind", EVERY)
every_trust = pytest.mark.parametrize("trust", ["client", "sum"])
every_container = pytest.mark.parametrize("container", [np.asarray, sp.csr_array])
GRID = [(e, d) for e in (0.01, 0.1, 1.0, 4.0, 30.0) for d in (1e-10, 1e-5, 0.05, 0.5)]
# small data: what is released is mostly noise
mostly_noise = pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning")
near_bounds = pytest.mark.filterwarnings("ignore::fedpca_sklearn.privacy.PrivacyBoundWarning")


def rows(n=60, d=6, mean=0.5, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)) * np.linspace(2, 0.5, d) + mean * np.arange(d)


def clipped_by_hand(X, row_norm, center=None):
    """Rows about the centre, the long ones shortened, with a loop."""
    Y = np.array(X, dtype=float) - (0 if center is None else np.asarray(center))
    for y in Y:
        length = math.sqrt(sum(v * v for v in y))
        if length > row_norm:
            y *= row_norm / length
    return Y


def model_of(mechanism, k=3, **options):
    options = {"mechanism": mechanism, "random_state": 0, **options}
    if isinstance(mechanism, FedPowerNoise):
        rounds = {"n_rounds": 60, "acceleration": "krylov", "tol": 1e-13}
        return FederatedPowerPCA(k, **{**rounds, **options})
    return FederatedPCA(k, **options)


def hockey_stick(epsilon, mu):
    """Logarithm of the delta of p = N(mu, 1) against q = N(0, 1): the integral of p - e^eps q.

    At a distance x beyond where the privacy loss log(p / q) is epsilon, the loss is epsilon + mu x.
    """
    start = epsilon / mu - mu / 2
    nodes, weights = np.polynomial.legendre.leggauss(40)
    # the density over that at the point where it is largest, so that nothing underflows
    top = max(start, 0.0)
    parts = []
    for a, b in pairwise(np.concatenate([[0], np.geomspace(1e-4, 100, 60)])):
        x = (a + b) / 2 + (b - a) / 2 * nodes
        density = np.exp((top**2 - (start + x) ** 2) / 2)
        parts.append((b - a) / 2 * weights @ (density * -np.expm1(-mu * x)))
    return math.log(sum(parts)) - top**2 / 2 - math.log(2 * math.pi) / 2


def published_std(kind, d, n, epsilon, delta):
    """Noise on M / n for rows of norm 1, as the papers write it."""
    if kind is ModSuLQ:
        root = math.sqrt(2 * math.log((d**2 + d) / (delta * 2 * math.sqrt(2 * math.pi))))
        return (d + 1) / (n * epsilon) * root + 1 / (n * math.sqrt(epsilon))
    root = math.sqrt(2 * math.log(d**2 / (delta * math.sqrt(2 * math.pi))))
    return 4 * d / (epsilon * n) * root + math.sqrt(2) / (n * math.sqrt(epsilon))
