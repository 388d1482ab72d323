"""Excess reconstruction error after one pass: power laws, light sensors, 32 unlike clients.

Then what merging cut summaries by groups costs beside one SVD of all their directions.
"""

import numpy as np
from sklearn.decomposition import IncrementalPCA

from benchmarks._tools import load, picture, table
from fedpca_sklearn import (
    FederatedPCA,
    StreamingPCA,
    SubspaceMerge,
    excess_error,
    make_power_law,
    merge_subspaces,
    subspace_distance,
)

ALPHAS = (0.01, 0.1, 0.5, 1.0, 2.0, 3.0)


def unlike_clients(X, n_clients=32):
    """Rows sorted along the first principal direction and cut: means and spreads differ wildly."""
    direction = np.linalg.svd(X[:1000] - X[:1000].mean(axis=0), full_matrices=False)[2][0]
    return np.argsort(np.argsort(X @ direction)) * n_clients // len(X)


def _tree_of_twenty(X, clients):
    """Excess error of a binary tree that keeps only n_components extra directions everywhere."""
    nodes = [
        StreamingPCA(20, oversampling=20).fit(X[clients == c]).subspace_ for c in np.unique(clients)
    ]
    while len(nodes) > 1:
        nodes = [merge_subspaces(nodes[i : i + 2]).truncate(40) for i in range(0, len(nodes), 2)]
    return excess_error(X, nodes[0].components[:20])


def power_laws(quick=False):
    """One row for each alpha and seed."""
    rows = []
    for alpha in (1.0,) if quick else ALPHAS:
        for seed in range(1 if quick else 3):
            X = make_power_law(10_000, 500, alpha=alpha, random_state=seed)
            clients = unlike_clients(X)
            tree = SubspaceMerge(fan_in=2)

            def error(estimator, X=X, **kwargs):
                return excess_error(X, estimator.fit(X, **kwargs).components_)

            rows.append(
                {
                    "alpha": alpha,
                    "seed": seed,
                    # by blocks, as a stream in small batches; all rows in one call are exact
                    "StreamingPCA": error(StreamingPCA(20, oversampling=25, block_size=78)),
                    "oversampling=20": error(StreamingPCA(20, oversampling=20, block_size=70)),
                    "oversampling=0": error(StreamingPCA(20, oversampling=0, block_size=64)),
                    "32 clients": error(FederatedPCA(20), clients=clients),
                    "32 clients, tree": error(FederatedPCA(20, merge=tree), clients=clients),
                    "32, tree, 20": _tree_of_twenty(X, clients),
                    "Incremental(64)": error(IncrementalPCA(20, batch_size=64)),
                    "Incremental": error(IncrementalPCA(20)),
                }
            )
    return rows


def by_groups(alpha):
    """Sine between one merge, in groups, and the SVD of the 45 directions of each of 60 sites."""
    X = make_power_law(12_000, 3_000, alpha=alpha, random_state=0)
    parts = [StreamingPCA(20, oversampling=25).fit(X[i::60]).subspace_ for i in range(60)]
    means = np.stack([part.mean for part in parts])
    stack = [part.singular_values[:, None] * part.components for part in parts]
    stack.append(np.sqrt(len(X) / 60) * (means - means.mean(axis=0)))
    one = np.linalg.svd(np.concatenate(stack), full_matrices=False)[2][:20]
    return subspace_distance(merge_subspaces(parts, 20).components, one)


def main(quick=False):
    rows = power_laws(quick)
    table("accuracy", rows)
    if not quick:
        print("\n60 x 45 directions of 3,000 features: sine between a merge by groups and one SVD")
        rows_of_groups = [{"alpha": alpha, "sine": by_groups(alpha)} for alpha in (1.0, 0.5)]
        table("accuracy_groups", rows_of_groups)

    def draw(ax):
        for name in list(rows[0])[2:]:
            ax.loglog(
                [r["alpha"] for r in rows], [max(r[name], 1e-9) for r in rows], "o", label=name
            )
        ax.set(xlabel="alpha", ylabel="excess error", title="10,000 x 500, rank 20")
        ax.legend(fontsize=7)

    picture("accuracy", draw)

    path = load("motes_light.npz")
    if path is not None:
        X = np.load(path)["X"].astype(np.float64)
        r = 10
        models = {
            "StreamingPCA, blocks of 50": StreamingPCA(r, block_size=50),
            "the same, oversampling=10": StreamingPCA(r, block_size=50, oversampling=10),
            "the same, oversampling=0": StreamingPCA(r, block_size=50, oversampling=0),
            "IncrementalPCA, blocks of 50": IncrementalPCA(r, batch_size=50),
        }
        print("\nmotes_light, rank 10")
        table(
            "accuracy_motes",
            [
                {"estimator": name, "excess error": excess_error(X, m.fit(X).components_)}
                for name, m in models.items()
            ],
        )
