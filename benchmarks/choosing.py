"""Exact, merged or averaged: error, floats and time by features and unlikeness of the sites.

16,000 rows at eight sites, a power law of variances (alpha = 1), ten components. "alike": rows at
random; "sorted": by their first coordinate; "own": every site has two strong directions of its
own; "units": every site measures in units of its own, 1 to 1,000; "broken": one site sends noise
of a hundred times the scale. The error is the excess over the best subspace: of all rows for the
first three, of the rows before the damage for the last two. Then averages of projections, five
components of 8,000 x 50: a vote for each row or each site, where sites have unlike numbers of rows,
where one is noise and claims 1e9 rows, where each measures half of the columns in other units, and
where one has a wrong mean.
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
    Subspace,
    SubspaceMerge,
    TruncatedDistributedPCA,
    excess_error,
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


def votes(n=8_000, d=50, k=5):
    """Excess error of averaged projections, by what a vote is of, and of the merge."""
    X, rng = make_power_law(n, d, alpha=1.0, random_state=0), np.random.default_rng(1)
    equal = np.arange(n) * SITES // n
    merges = {
        "rows": ProjectionAverage(weighting="rows"),
        "equal": ProjectionAverage(),
        "merged": SubspaceMerge(),
    }

    def row(sites, summaries):
        models = {m: FederatedPCA.from_subspaces(summaries, k, merge=merges[m]) for m in merges}
        errors = {m: excess_error(X, model.components_) for m, model in models.items()}
        return {"sites": sites, **errors}, models

    def summaries_of(Z, site=equal):
        return [Subspace.from_rows(Z[site == s]) for s in range(SITES)]

    rows = []
    for ratio in (1, 3, 30, 200):  # of the largest site to the smallest
        share = ratio ** np.linspace(0, 1, SITES)
        ends = np.rint(np.cumsum(share / share.sum())[:-1] * n)
        site = np.searchsorted(ends, np.arange(n), side="right")
        rows.append(row(f"smallest of {np.bincount(site).min()} rows", summaries_of(X, site))[0])
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    noise = rng.standard_normal((1_000, d)) * np.repeat([0.1, 10], [d - 5, 5]) @ Q.T
    liar = Subspace.from_rows(noise)._replace(n_samples=1e9)
    rows.append(row("one of noise claims 1e9 rows", [*summaries_of(X)[1:], liar])[0])
    units = (10.0 ** np.linspace(0, 3, SITES))[equal, None]
    scaled = np.where(np.arange(d) < d // 2, X * units, X)
    rows.append(row("half of the columns in a site's units", summaries_of(scaled))[0])
    models = row("one of a wrong mean", summaries_of(X + 1e6 * (equal == 0)[:, None]))[1]
    return rows, np.linalg.norm(models["equal"].transform(X), axis=1).min()


def main(quick=False):
    rows = []
    for d in (50, 300) if quick else (50, 200, 500, 1000):
        rows += with_features(d, 4_000 if quick else 16_000)
    table("choosing", rows)
    print("\nAverages of projections, 8,000 x 50, five components")
    rows, moved = votes()
    table("choosing_votes", rows)
    print(f"a mean of 1e6 at one of eight sites moves every score by {moved:.2g}")
