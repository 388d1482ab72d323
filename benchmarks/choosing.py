"""Exact, merged or averaged: error, floats and time by features and unlikeness of the sites.

16,000 rows at eight sites, a power law of variances (alpha = 1), ten components. "alike": rows at
random; "sorted": by their first coordinate; "own": every site has two strong directions of its
own; "units": every site measures in units of its own, 1 to 1,000; "broken": one site sends noise
of a hundred times the scale. The error is the excess over the best subspace: of all rows for the
first three, of the rows before the damage for the last two.
"""

import numpy as np

from benchmarks._tools import interleaved, table
from fedpca_sklearn import (
    DistributedPCA,
    FederatedPCA,
    NoiseAwareMerge,
    ProjectionAverage,
    RobustMerge,
    StreamingPCA,
    TruncatedDistributedPCA,
    make_power_law,
    reconstruction_error,
)

K, SITES = 10, 8
METHODS = {
    "DistributedPCA": lambda: DistributedPCA(K),
    "FederatedPCA": lambda: FederatedPCA(K),
    "FederatedPCA, 25 directions": lambda: FederatedPCA(
        K, estimator=StreamingPCA(K, oversampling=15)
    ),
    "TruncatedDistributedPCA": lambda: TruncatedDistributedPCA(K),
    "ProjectionAverage": lambda: FederatedPCA(K, merge=ProjectionAverage()),
    "ProjectionAverage(20)": lambda: FederatedPCA(K, merge=ProjectionAverage(20)),
    "NoiseAwareMerge": lambda: FederatedPCA(K, merge=NoiseAwareMerge()),
    "RobustMerge": lambda: FederatedPCA(K, merge=RobustMerge()),
}


def scenarios(n, d):
    """Yield name, rows, labels, and the rows that tell the truth."""
    rng = np.random.default_rng(0)
    X = make_power_law(n, d, alpha=1.0, random_state=0)
    site = np.arange(n) * SITES // n
    yield "alike", X, site, X
    by_first = X[np.argsort(X @ np.linalg.svd(X[:2000], full_matrices=False)[2][0])]
    yield "sorted", by_first, site, by_first
    own = np.linalg.qr(rng.standard_normal((d, 2 * SITES)))[0].T.reshape(SITES, 2, d)
    strength = 2 * np.linalg.norm(X) / np.sqrt(n * 10)
    Y = X + strength * np.einsum("ij,ijk->ik", rng.standard_normal((n, 2)), own[site])
    yield "own", Y, site, Y
    yield "units", X * (10.0 ** np.linspace(0, 3, SITES))[site, None], site, X
    Y = X.copy()
    broken = site == SITES - 1
    Y[broken] = 100 * X.std() * rng.standard_normal(Y[broken].shape)
    yield "broken", Y, site, X


def with_features(d, n):
    """One row for each kind of sites and method."""
    rows = []
    for name, X, site, truth in scenarios(n, d):
        calls = {m: lambda X=X, s=site, m=m: METHODS[m]().fit(X, clients=s) for m in METHODS}
        seconds, models = interleaved(calls, repeats=1)
        least = reconstruction_error(truth, DistributedPCA(K).fit(truth).components_)
        rows += [
            {
                "features": d,
                "sites": name,
                "method": method,
                "floats a site": models[method].communication_.floats_up // SITES,
                "seconds": seconds[method][0],
                "excess": max(
                    reconstruction_error(truth, models[method].components_) / least - 1, 0.0
                ),
            }
            for method in METHODS
        ]
    return rows


def main(quick=False):
    rows = []
    for d in (50, 300) if quick else (50, 200, 500, 1000):
        rows += with_features(d, 4_000 if quick else 16_000)
    table("choosing", rows)
