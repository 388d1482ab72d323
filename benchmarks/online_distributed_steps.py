"""Tarzanagh et al.: error by clients m and time steps T, by the gap, and by the size of a shard.

Normal rows of d = 200 features, K = 5 variances of 1 + gap above ones; sine of the largest angle to
the true eigenspace, medians of five seeds, of ODPCA, of DPCA of the same m clients with all their
rows, and of the SVD of all rows. First shards of 200 rows for each client and step, so that more
clients or steps mean more rows; then 16,000 rows in all, cut to ever smaller shards.
"""

import numpy as np
from sklearn.decomposition import PCA

from benchmarks._tools import picture, table
from fedpca_sklearn import (
    FederatedPCA,
    OnlineDistributedPCA,
    ProjectionAverage,
    StreamingPCA,
    subspace_distance,
)

D, K = 200, 5
METHODS = ("ODPCA", "DPCA", "all rows")


def errors(m, steps, shard, gap, seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((m * steps * shard, D))
    X[:, :K] *= np.sqrt(1 + gap)
    truth = np.eye(K, D)
    online = OnlineDistributedPCA(K, n_clients=m)
    for rows in np.split(X, steps):
        online.partial_fit(rows)
    averaged = FederatedPCA(
        K, estimator=StreamingPCA(K, oversampling=0), merge=ProjectionAverage(K), n_clients=m
    )
    models = (online, averaged.fit(X), PCA(K, svd_solver="covariance_eigh").fit(X))
    return [subspace_distance(model.components_, truth) for model in models]


def row_of(m, steps, shard, gap, seeds):
    found = np.median([errors(m, steps, shard, gap, seed) for seed in range(seeds)], axis=0)
    sizes = {"gap": gap, "m": m, "T": steps, "shard": shard, "rows": m * steps * shard}
    return {**sizes, **dict(zip(METHODS, found.tolist(), strict=True))}


def main(quick=False):
    seeds, gaps = (2, (4.0,)) if quick else (5, (1.0, 4.0))
    grid = [(m, steps) for m in (1, 5, 20) for steps in (1, 4, 10)]
    rows = [row_of(m, steps, 200, gap, seeds) for gap in gaps for m, steps in grid]
    table("online_distributed_steps", rows)
    for gap in gaps:
        some = [row for row in rows if row["gap"] == gap]
        slope = np.polyfit(
            np.log([row["rows"] for row in some]), np.log([row["ODPCA"] for row in some]), 1
        )[0]
        worst = max(row["ODPCA"] / row["all rows"] for row in some)
        print(
            f"gap {gap:g}: the error falls as (m T)^{slope:.2f} and is at most {worst:.2f} times "
            "that of all rows."
        )
    print()
    cuts = [row_of(5, 3200 // shard, shard, 4.0, seeds) for shard in (3200, 800, 200, 100, 50, 20)]
    table("online_distributed_shards", cuts)
    worse = max((row["shard"] for row in cuts if row["ODPCA"] > 1.1 * row["DPCA"]), default=0)
    print(f"ODPCA is more than a tenth worse than DPCA for shards of {worse} rows and less.")

    def draw(ax):
        for gap, style in zip(gaps[::-1], ("-", "--"), strict=False):
            for m, color in ((1, "C0"), (5, "C1"), (20, "C2")):
                some = [row for row in rows if row["gap"] == gap and row["m"] == m]
                steps = [row["T"] for row in some]
                label = f"m = {m}, gap {gap:g}"
                ax.loglog(steps, [r["ODPCA"] for r in some], "o" + style, color=color, label=label)
                ax.loglog(steps, [r["all rows"] for r in some], "k:", linewidth=0.8)
        ax.set(xlabel="time steps", ylabel="error", title="ODPCA; dotted: SVD of all rows")
        ax.legend(fontsize=7, ncols=2)

    picture("online_distributed_steps", draw)
