"""Tarzanagh et al., Theorem 1: error by nodes m, steps T, shard, gap, effective rank and K.

Normal rows of d features, K variances of 1 + gap above ones, second moments about the origin. The
error is the paper's, Delta = ||U^T U - V^T V|| (Frobenius) to the true eigenspace, means of five
seeds; the mean is the first term of the norm that the theorem bounds. By symmetry the K leading
eigenvectors of the expected sum are the true ones, so Delta has no bias in it. Methods: ODPCA
(Algorithm 1), U* (Lemma 1, the mean of the same local projections), DPCA of m nodes with all their
rows, and the SVD of all rows.

Beside each row: r = trace / largest variance, the rate kappa sqrt(K r / (T m n)), and the two
conditions of the theorem. bias = ||Omega* - V V^T||, the distance of the expected projection of a
shard of n rows to the true one, from 100 shards.
"""

from functools import cache

import numpy as np

from benchmarks._tools import picture, table
from fedpca_sklearn import FederatedPCA, OnlineDistributedPCA, ProjectionAverage, StreamingPCA

METHODS = ("ODPCA", "U*", "DPCA", "all rows")
BASE = {"gap": 4.0, "m": 5, "T": 8, "n": 200, "d": 100, "K": 5}


def rows_of(rng, n, d, K, gap):
    X = rng.standard_normal((n, d))
    X[:, :K] *= np.sqrt(1 + gap)
    return X


def distance(V):
    """Delta between the span of orthonormal rows and that of as many first axes."""
    return float(np.sqrt(2 * np.sum(V[:, len(V) :] ** 2)))


def errors(gap, m, T, n, d, K, seed):
    X = rows_of(np.random.default_rng(seed), m * T * n, d, K, gap)

    def online(average):
        model = OnlineDistributedPCA(
            K, average=average, center=False, variances="sent", n_clients=m
        )
        return model.fit(np.split(X, T))

    local = StreamingPCA(K, center=False)
    dpca = FederatedPCA(K, estimator=local, merge=ProjectionAverage(), n_clients=m).fit(X)
    pooled = np.linalg.eigh(X.T @ X)[1][:, : -K - 1 : -1].T
    models = (online("steps"), online("shards"), dpca)
    return [distance(V) for V in (*(model.components_ for model in models), pooled)]


@cache
def bias(n, d, K, gap, shards=100):
    """Spectral distance of the expected local projection to the true one.

    The expectation is a on the true eigenspace and b across it, with K a + (d - K) b = K.
    """
    rng = np.random.default_rng(1000)
    outside = 0.0
    for _ in range(shards):
        X = rows_of(rng, n, d, K, gap)
        V = np.linalg.eigh(X.T @ X)[1][:, -K:] if n > d else np.linalg.svd(X)[2][:K].T
        outside += np.sum(V[K:] ** 2) / shards
    return max(outside / K, outside / (d - K))


def row_of(seeds, **changes):
    sizes = {**BASE, **changes}
    gap, m, T, n, d, K = sizes.values()
    found = np.mean([errors(**sizes, seed=seed) for seed in range(seeds)], axis=0)
    r, b = (K * (1 + gap) + d - K) / (1 + gap), bias(n, d, K, gap)
    rate = (1 + gap) / gap * np.sqrt(K * r / (T * m * n))
    conditions = {"r": r, "bias": b, "holds for": "yes" if n >= r and b < 1 / 4 else "no"}
    over = {"ODPCA / rate": found[0] / rate}
    return {**sizes, **conditions, "rate": rate, **dict(zip(METHODS, found, strict=True)), **over}


def slope(rows, x, y="ODPCA"):
    return np.polyfit(np.log([x(row) for row in rows]), np.log([row[y] for row in rows]), 1)[0]


def by_nodes_and_steps(quick, seeds):
    gaps = (4.0,) if quick else (1.0, 4.0)
    grid = [(m, T) for m in (1, 5, 20) for T in (1, 4, 10)]
    rows = [row_of(seeds, gap=gap, m=m, T=T) for gap in gaps for m, T in grid]
    table("online_distributed_steps", rows)
    for gap in gaps:
        some = [row for row in rows if row["gap"] == gap]
        print(
            f"gap {gap:g}, theorem applies: {some[0]['holds for']}. Error as (m T)^s, s = "
            + ", ".join(f"{slope(some, lambda r: r['m'] * r['T'], y):.2f} ({y})" for y in METHODS)
            + f"; ODPCA at most {max(r['ODPCA'] / r['all rows'] for r in some):.2f} times all rows."
        )
    return rows


def by_shard(quick, seeds):
    """16,000 rows of five nodes, cut to ever smaller shards."""
    gaps = (4.0,) if quick else (1.0, 4.0)
    cuts = (3200, 200, 20) if quick else (3200, 800, 200, 100, 50, 20)
    rows = [row_of(seeds, gap=gap, T=3200 // n, n=n) for gap in gaps for n in cuts]
    table("online_distributed_shards", rows)
    for gap in gaps:
        some = [row for row in rows if row["gap"] == gap]
        worse = max((row["n"] for row in some if row["ODPCA"] > 1.1 * row["DPCA"]), default=0)
        ratio = max(some, key=lambda row: row["ODPCA"] / row["U*"])
        print(
            f"gap {gap:g}: ODPCA is a tenth worse than DPCA for shards of {worse} rows and less; "
            f"at most {ratio['ODPCA'] / ratio['U*']:.2f} times U*, for shards of {ratio['n']}; "
            f"at least {min(row['ODPCA'] / row['U*'] for row in some):.2f} times."
        )


def by_each(quick, seeds):
    """One of n, d, K and the gap at a time; the theorem's exponents beside those found."""
    one = {
        "n": ((200, 400, 800), lambda row: row["n"], -1 / 2),
        "d": ((25, 50, 100), lambda row: row["r"], 1 / 2),
        "K": ((2, 5, 10), lambda row: row["K"] * row["r"], 1 / 2),
        "gap": ((4.0, 8.0, 16.0), lambda row: row["rate"], 1),
    }
    rows, lines = [], []
    for name, (values, x, stated) in one.items():
        some = [row_of(seeds, **{name: value}) for value in values[: 2 if quick else None]]
        some = [row for row in some if row["holds for"] == "yes"]
        rows += some
        label = {"d": "r", "K": "K r", "gap": "rate, by the gap"}.get(name, name)
        found, pooled = slope(some, x), slope(some, x, "all rows")
        lines.append(f"by {label}: {found:.2f} ({pooled:.2f} of all rows, {stated:g} in theory)")
    table("online_distributed_rate", rows)
    print("Exponents", *lines, sep="\n  ")
    over = [row["ODPCA / rate"] for row in rows]
    print(f"Error over the rate: {min(over):.2f} to {max(over):.2f} where the theorem applies.")


def main(quick=False):
    seeds = 2 if quick else 5
    rows = by_nodes_and_steps(quick, seeds)
    print()
    by_shard(quick, seeds)
    print()
    by_each(quick, seeds)

    def draw(ax):
        for gap, style in ((4.0, "-"), (1.0, "--")):
            for m, color in ((1, "C0"), (5, "C1"), (20, "C2")):
                some = [row for row in rows if row["gap"] == gap and row["m"] == m]
                steps = [row["T"] for row in some]
                label = f"m = {m}, gap {gap:g}"
                ax.loglog(steps, [r["ODPCA"] for r in some], "o" + style, color=color, label=label)
                ax.loglog(steps, [r["all rows"] for r in some], "k:", linewidth=0.8)
        ax.set(xlabel="time steps", ylabel="Delta", title="ODPCA; dotted: SVD of all rows")
        ax.legend(fontsize=7, ncols=2)

    picture("online_distributed_steps", draw)
