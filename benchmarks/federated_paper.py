"""Grammenos et al., Fig. 2 and Fig. 8: time by number of clients, and the order of the rows.

Fig. 2: 1,000 features, rank 10, 1,600 rows in all or 200 rows a client, 1 to 32 clients in a binary
tree: real time here, and amortised, the time of one client and of the levels of the tree, as if all
clients worked at once. Sizes are scaled to two cores.

Fig. 8 and Lemma 2: five permutations of 10,000 rows of 100 features: mean and spread of the error,
over that of the best subspace, of StreamingPCA without extra directions, of SAPCA, and of
FederatedPCA with 8 clients.
"""

import time

import numpy as np

from benchmarks._tools import picture, table
from fedpca_sklearn import (
    ContributionBounds,
    FederatedPCA,
    StreamingPCA,
    SubspaceMerge,
    excess_error,
    make_power_law,
)


def fastest(call, repeats=3):
    """Least seconds of some calls, and the last result."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - start)
    return min(seconds), result


def by_clients(quick):
    merge = SubspaceMerge(fan_in=2)
    rows = []
    for kind in ("1,600 rows in all", "200 rows a client"):
        for s in (1, 4, 32) if quick else (1, 2, 4, 8, 16, 32):
            n = 1600 if kind.endswith("all") else 200 * s
            X = make_power_law(n, 1000, alpha=1.0, random_state=0)
            whole = FederatedPCA(10, n_clients=s, merge=merge)
            real, _ = fastest(lambda model=whole, X=X: model.fit(X))
            one, model = fastest(lambda X=X[: n // s]: StreamingPCA(10).fit(X))
            pair = [model.subspace_] * 2
            level, _ = fastest(lambda pair=pair: merge.merge(pair, 22))
            amortised = one + int(np.ceil(np.log2(s))) * level
            rows.append({"sizes": kind, "clients": s, "seconds": real, "amortised": amortised})
    table("federated_paper_time", rows)

    def draw(ax):
        for kind in ("1,600 rows in all", "200 rows a client"):
            some = [row for row in rows if row["sizes"] == kind]
            for column, style in (("seconds", "o-"), ("amortised", "s--")):
                ax.loglog(
                    [r["clients"] for r in some],
                    [r[column] for r in some],
                    style,
                    label=f"{kind}, {column}",
                )
        ax.set(xlabel="clients", ylabel="seconds", title="1,000 features, rank 10")
        ax.legend(fontsize=7)

    picture("federated_paper_time", draw)


def by_order(quick):
    rows = []
    X = make_power_law(2000 if quick else 10_000, 100, alpha=1.0, random_state=0)
    for rank in (5, 20, 50, 75):
        models = {
            "StreamingPCA, no extra directions": StreamingPCA(rank, oversampling=0, block_size=50),
            "SAPCA": StreamingPCA(
                rank, oversampling=0, block_size=50, rank_rule=ContributionBounds()
            ),
            "FederatedPCA": FederatedPCA(rank, n_clients=8),
        }
        for name, model in models.items():
            excess, ranks = [], set()
            for seed in range(5):
                order = np.random.default_rng(seed).permutation(len(X))
                V = model.fit(X[order]).components_
                excess.append(max(excess_error(X, V), 0.0))
                ranks.add(len(V))
            rows.append(
                {
                    "rank": rank,
                    "method": name,
                    "final ranks": "-".join(map(str, sorted({min(ranks), max(ranks)}))),
                    "mean excess": float(np.mean(excess)),
                    "spread (max - min)": float(np.ptp(excess)),
                }
            )
    table("federated_paper_order", rows)
    worst = max(row["spread (max - min)"] for row in rows if row["method"] == "SAPCA")
    print(f"SAPCA's error changes by at most {worst:.1e} of the best error with the order of rows.")


def main(quick=False):
    by_clients(quick)
    print()
    by_order(quick)
