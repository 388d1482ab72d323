"""Grammenos et al., Fig. 2 and Fig. 8: time by number of clients, and the order of the rows.

Fig. 2: Synth(alpha), 1,000 features, 128,000 to 512,000 rows, SAPCA from rank 10 with blocks of 50
rows at 1 to 32 clients, merged in a binary tree. (a) real: all clients and all merges one after the
other, on one core; (b) amortised: one client and the levels of the tree, as if every client had a
core. The paper's alphas are averaged at 128,000 rows; more rows are of alpha = 1. Rows are made
4,000 at a time, outside the time, and seconds are those of the processor.

Fig. 8: 20 permutations of 10,000 rows of 100 features, alpha = 1, ranks 5, 20, 50 and 75: mean
distance of the subspace from that of the offline SVD, and from the method's own without
permutation. The distance is that of the projectors over the largest there is, so at most 1. SAPCA
takes its rank, the others keep theirs.
"""

from collections import defaultdict
from itertools import pairwise
from time import process_time

import numpy as np

from benchmarks._sketch import SketchOfRows
from benchmarks._tools import picture, table
from fedpca_sklearn import (
    GROUSE,
    SPIRIT,
    ContributionBounds,
    FrequentDirections,
    StreamingPCA,
    StreamingPowerMethod,
    excess_error,
    make_power_law,
    merge_subspaces,
    subspace_distance,
)

RANK, BLOCK = 10, 50
FEATURES, CHUNK = 1000, 4000
ROWS = (128_000, 256_000, 384_000, 512_000)
NODES = (1, 2, 4, 8, 16, 32)
ALPHAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 2.0, 3.0, 4.0)
RANKS, PERMUTATIONS = (5, 20, 50, 75), 20


def sapca(rank=RANK):
    return StreamingPCA(
        rank, rank_rule=ContributionBounds(), block_size=BLOCK, oversampling=0, center=False
    )


# ---------------------------------------------------------------------------------- Fig. 2


def rotation(d):
    """A generic basis: the Q of a Gaussian matrix."""
    return np.linalg.qr(np.random.default_rng(0).standard_normal((d, d)))[0]


def clients_at_work(alpha, S, rows_in_all, nodes):
    """``{(rows in all, clients): [(seconds, summary) of each client]}``, in one pass over rows.

    A piece of rows goes to the client that owns it, for every number of rows and of clients.
    """
    scale = np.arange(1, len(S) + 1) ** (-alpha / 2)
    rng = np.random.default_rng(1)
    clients = defaultdict(dict)
    for start in range(0, max(rows_in_all), CHUNK):
        X = (rng.standard_normal((CHUNK, len(S))) * scale) @ S.T
        for n in rows_in_all:
            for m in nodes if start < n else ():
                owner = start * m // n
                model, seconds = clients[n, m].get(owner, (sapca(), 0.0))
                begin = process_time()
                model.partial_fit(X)
                clients[n, m][owner] = model, seconds + process_time() - begin
    return {
        key: [(seconds, model.subspace_) for model, seconds in owners.values()]
        for key, owners in clients.items()
    }


def times(found):
    """Real and amortised seconds of clients at work and of the merges up a binary tree."""
    seconds, parts = zip(*found, strict=True)
    merges, levels = [], 0
    while len(parts) > 1:
        levels += 1
        merged = []
        for pair in zip(parts[::2], parts[1::2], strict=True):
            begin = process_time()
            merged.append(merge_subspaces(list(pair), RANK))
            merges.append(process_time() - begin)
        parts = merged
    return {
        "real, one core": sum(seconds) + sum(merges),
        "amortised": np.mean(seconds) + levels * np.mean(merges or [0.0]),
        "a merge, ms": 1e3 * np.mean(merges) if merges else 0.0,
    }


def by_clients(quick):
    S = rotation(100 if quick else FEATURES)
    rows_in_all, nodes = (ROWS[:1], (1, 32)) if quick else (ROWS, NODES)
    found = clients_at_work(1.0, S, rows_in_all, nodes)
    rows = [{"rows": n, "clients": m} | times(found[n, m]) for n in rows_in_all for m in nodes]
    table("federated_paper_time", rows)
    claims_of_time(rows, rows_in_all, nodes)
    draw_times(rows)
    return S


def by_alphas(S, n=ROWS[0], nodes=(1, 8, 32)):
    """Means over the paper's alphas, and how far apart these are."""
    found = [clients_at_work(alpha, S, (n,), nodes) for alpha in ALPHAS]
    rows = []
    for m in nodes:
        some = [times(clients[n, m]) for clients in found]
        row = {"rows": n, "clients": m}
        for column in ("real, one core", "amortised"):
            seconds = [each[column] for each in some]
            row |= {column: np.mean(seconds), f"{column}, max / min": max(seconds) / min(seconds)}
        rows.append(row)
    print("\nThe mean over alpha =", *ALPHAS)
    table("federated_paper_alphas", rows)


def claims_of_time(rows, rows_in_all, nodes):
    seconds = {(row["rows"], row["clients"]): row for row in rows}
    most = max(nodes)
    for n in rows_in_all:
        first, last = seconds[n, 1], seconds[n, most]
        gain = first["amortised"] / last["amortised"]
        print(
            f"{n:,} rows: with {most} clients the amortised time is {gain:.1f} times shorter, "
            f"the real one on one core {last['real, one core'] / first['real, one core']:.2f} "
            "times as long."
        )
    falls = all(
        seconds[n, b]["amortised"] < seconds[n, a]["amortised"]
        for n in rows_in_all
        for a, b in pairwise(nodes)
    )
    print(f"The amortised time falls with every doubling of the clients: {falls}.")


def draw_times(rows):
    def draw(ax):
        for n in dict.fromkeys(row["rows"] for row in rows):
            some = [row for row in rows if row["rows"] == n]
            nodes = [row["clients"] for row in some]
            (line,) = ax.loglog(nodes, [r["amortised"] for r in some], "o-", label=f"{n:,} rows")
            ax.loglog(nodes, [r["real, one core"] for r in some], "s--", color=line.get_color())
        ax.set(xlabel="clients", ylabel="seconds", title="amortised, and dashed: real, on one core")
        ax.legend(fontsize=7)

    picture("federated_paper_time", draw)


# ---------------------------------------------------------------------------------- Fig. 8


def methods(rank, n_features):
    options = {"center": False, "init": "random", "random_state": 0}
    return {
        "SAPCA": sapca(rank),
        "SPCA": StreamingPCA(rank, block_size=BLOCK, oversampling=0, center=False),
        "PM": StreamingPowerMethod(rank, block_size=n_features, **options),
        "GROUSE": GROUSE(rank, step_size=2.0, **options),
        "FD": FrequentDirections(rank, center=False),
        "FD, 2 r rows": SketchOfRows(rank, halved=True),
        "SPIRIT": SPIRIT(rank, lower=0, upper=1, forgetting_factor=1.0, center=False),
    }


def distance(U, V):
    """Frobenius distance of the projectors, over the largest there is for these dimensions."""
    return subspace_distance(U, V, metric="projection") / np.sqrt(len(U) + len(V))


def permuted(X, permutations, ranks=RANKS, only=None):
    """One row for every rank and method."""
    offline = np.linalg.svd(X, full_matrices=False)[2]
    zero = np.zeros(X.shape[1])
    rows = []
    for rank in ranks:
        for name, model in methods(rank, X.shape[1]).items():
            if only and name not in only:
                continue
            own = model.fit(X).components_
            found = []
            for seed in range(permutations):
                order = np.random.default_rng(seed).permutation(len(X))
                found.append(model.fit(X[order]).components_)
            excess = [excess_error(X, V, zero) for V in [own, *found]]
            sizes = sorted({len(V) for V in found})
            rows.append(
                {
                    "rank": rank,
                    "method": name,
                    "final ranks": "-".join(map(str, sorted({sizes[0], sizes[-1]}))),
                    "to the SVD": np.mean([distance(V, offline[: len(V)]) for V in found]),
                    "to its own": np.mean([distance(V, own) for V in found]),
                    "excess error": np.mean(excess),
                    "spread of it": np.ptp(excess),
                }
            )
    return rows


def by_order(quick):
    X = make_power_law(2000 if quick else 10_000, 100, alpha=1.0, random_state=0)
    rows = permuted(X, 2 if quick else PERMUTATIONS, RANKS[:1] if quick else RANKS)
    table("federated_paper_order", rows)
    for rank in dict.fromkeys(row["rank"] for row in rows):
        here = [row for row in rows if row["rank"] == rank]
        for column in ("to its own", "to the SVD"):
            order = [row["method"] for row in sorted(here, key=lambda row: row[column])]
            print(f"rank {rank}, {column}, nearest first: {', '.join(order)}")
    worst = max(row["spread of it"] for row in rows if row["method"] == "SAPCA")
    print(f"SAPCA's error changes by at most {worst:.1e} of the best error with the order of rows.")


def main(quick=False):
    S = by_clients(quick)
    if not quick:
        by_alphas(S)
    print()
    by_order(quick)
