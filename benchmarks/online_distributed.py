"""Tarzanagh et al., Fig. 1 and 2: ODPCA beside DPCA on 20 Newsgroups and MNIST.

(m, T) = (5, 10), K = 10, by the projection dimension K + Z, means of five replications, in each of
which rows go to other nodes and steps. All second moments are about the origin. "ODPCA" is
Algorithm 1 of the paper, "U* (Lemma 1)" the mean of the same local eigenspaces that it stands for,
both with one message a node and step; "DPCA" is Fan's, of five nodes with all their rows. The
baseline has all eigenvectors of each node, with the eigenvalues.

The error is ||X - X V^T V|| of the rank-10 approximation, over the baseline's. The k-means cost is
that of ten clusters of the projected rows, about the clusters' means in all features, over that of
Lloyd's algorithm on the full data: by coresets of 1,000 points of five nodes, as in the paper, and
by Lloyd's algorithm on all projected rows.

Seconds are of the processor, on one thread, nodes one after the other. The last rows repeat ODPCA
and DPCA with a local solver whose cost grows faster than the number of rows (the full SVD of dense
rows, n x n Gram matrices of sparse ones).
"""

from time import process_time

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from scipy.sparse.linalg import svds
from sklearn.base import BaseEstimator
from sklearn.cluster import KMeans

from benchmarks._coresets import distributed_k_means
from benchmarks._tools import load, picture, table
from benchmarks.sparse_text import text_matrix
from fedpca_sklearn import FederatedPCA, OnlineDistributedPCA, ProjectionAverage, StreamingPCA

K, NODES, STEPS, CORESET = 10, 5, 10, 1000
ODPCA, SHARDS, DPCA = "ODPCA", "U* (Lemma 1)", "DPCA"


class SuperlinearPCA(BaseEstimator):
    """Local eigenvectors about the origin, in time that grows faster than the number of rows."""

    def __init__(self, n_components=10):
        self.n_components = n_components

    def fit(self, X, y=None):
        """Fit all rows."""
        k, self.n_samples_ = self.n_components, X.shape[0]
        if sp.issparse(X):
            G, last = (X @ X.T).toarray(), X.shape[0] - 1
            lam, W = scipy.linalg.eigh(G, subset_by_index=(last + 1 - k, last))
            self.singular_values_ = np.sqrt(lam[::-1])
            self.components_ = (X.T @ (W[:, ::-1] / self.singular_values_)).T
        else:
            _, s, V = scipy.linalg.svd(X, full_matrices=False)
            self.singular_values_, self.components_ = s[:k], V[:k]
        return self


def pieces(X, number):
    """Contiguous pieces of rows, the first ones larger where they do not go evenly."""
    sizes = np.full(number, X.shape[0] // number) + (np.arange(number) < X.shape[0] % number)
    ends = np.cumsum(sizes)
    return [X[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def averaged(X, size, local):
    merge = ProjectionAverage(size)
    return FederatedPCA(K, estimator=local, merge=merge, n_clients=NODES).fit(X)


def online(X, size, average):
    model = OnlineDistributedPCA(
        K,
        projection_dim=size,
        average=average,
        center=False,
        variances="sent",
        n_clients=NODES,
    )
    return model.fit(pieces(X, STEPS))


def superlinear_steps(X):
    """Algorithm 1 with another local solver: DPCA of each step, and their mean."""
    steps = [averaged(rows, K, SuperlinearPCA(K)).subspace_ for rows in pieces(X, STEPS)]
    return FederatedPCA.from_subspaces(steps, K, merge=ProjectionAverage(K))


def baseline(X):
    """Leading vectors of the sum of all nodes' eigenpairs, and the seconds that it takes.

    Of sparse rows the eigenpairs of the first node are timed, by its Gram matrix, and are not kept:
    with those of all nodes, their sum is the second moments of all rows.
    """
    start = process_time()
    if sp.issparse(X):
        scipy.linalg.eigh((X[: X.shape[0] // NODES] @ X[: X.shape[0] // NODES].T).toarray())
        local = NODES * (process_time() - start)
        start = process_time()
        V = svds(X, k=K, random_state=0)[2]
        return V, local + process_time() - start
    total = np.zeros((X.shape[1], X.shape[1]))
    for rows in pieces(X, NODES):
        lam, V = scipy.linalg.eigh(rows.T @ rows)
        total += (V * lam) @ V.T
    apart = np.abs(V @ V.T - np.eye(len(V))).max()
    print(f"All eigenvectors of a node without eigenvalues: the identity, to {apart:.0e}.")
    return scipy.linalg.eigh(total)[1][:, : -K - 1 : -1].T, process_time() - start


def squares(X):
    return float((X.multiply(X) if sp.issparse(X) else X * X).sum())


def error(X, V, total):
    return np.sqrt(total - squares(X @ V.T))


def cost(X, labels, total):
    """Sum of squared distances of all rows from the means of their clusters."""
    member = sp.csr_array((np.ones(len(labels)), (labels, np.arange(len(labels)))))
    sums = member @ X
    sums = sums.toarray() if sp.issparse(sums) else sums
    sizes = np.maximum(np.asarray(member.sum(axis=1)), 1)
    return float(total - (np.einsum("ij,ij->i", sums, sums) / sizes).sum())


def clustered(X, V, total, seed):
    """Costs and seconds of k-means of the projected rows: by coresets, and by Lloyd."""
    start = process_time()
    Z = X @ V.T
    by_coreset = distributed_k_means(pieces(Z, NODES), K, CORESET, seed).predict(Z)
    seconds = process_time() - start
    by_lloyd = KMeans(K, n_init=3, random_state=seed).fit(Z).labels_
    return cost(X, by_coreset, total), seconds, cost(X, by_lloyd, total)


def replication(X, sizes, total, seed):
    """One row for each method and projection dimension."""
    rows = []
    for size in sizes:
        calls = {
            ODPCA: lambda size=size: online(X, size, "steps"),
            SHARDS: lambda size=size: online(X, size, "shards"),
            DPCA: lambda size=size: averaged(X, size, StreamingPCA(size, center=False)),
        }
        if size == K and seed == 0:
            calls["ODPCA, superlinear"] = lambda: superlinear_steps(X)
            calls["DPCA, superlinear"] = lambda: averaged(X, K, SuperlinearPCA(K))
        for name, call in calls.items():
            start = process_time()
            model = call()
            seconds = process_time() - start
            by_coreset, k_means_seconds, by_lloyd = clustered(X, model.components_, total, seed)
            rows.append(
                {
                    "estimator": name,
                    "K + Z": size,
                    "seconds": seconds,
                    "error": error(X, model.components_, total),
                    "cost, coreset": by_coreset,
                    "cost, Lloyd": by_lloyd,
                    "with k-means": seconds + k_means_seconds,
                    "floats up": model.communication_.floats_up,
                }
            )
    return rows


def means(rows, error_of_baseline, cost_of_lloyd):
    """Rows of the replications as means, in units of the baseline, of Lloyd and of DPCA's time."""
    found = {}
    for row in rows:
        found.setdefault((row["estimator"], row["K + Z"]), []).append(row)
    peers = {
        key: np.mean([[r["seconds"], r["with k-means"]] for r in found[key]], axis=0)
        for key in found
    }
    result = []
    for (name, size), some in found.items():
        peer = peers["DPCA, superlinear" if "superlinear" in name else DPCA, size]
        mean = {
            key: float(np.mean([r[key] for r in some])) for key in some[0] if key != "estimator"
        }
        result.append(
            {
                "estimator": name,
                "K + Z": size,
                "seconds": mean["seconds"],
                "speed-up": peer[0] / mean["seconds"],
                "error ratio": mean["error"] / error_of_baseline,
                "cost, coreset": mean["cost, coreset"] / cost_of_lloyd,
                "cost, Lloyd": mean["cost, Lloyd"] / cost_of_lloyd,
                "with k-means": mean["with k-means"],
                "speed-up, k-means": peer[1] / mean["with k-means"],
                "floats up": "" if "superlinear" in name else int(mean["floats up"]),
            }
        )
    return result


def claims(rows, features):
    """Print a line for each claim of the paper."""
    by = {(row["estimator"], row["K + Z"]): row for row in rows}
    sizes = [row["K + Z"] for row in rows if row["estimator"] == DPCA]

    def values(column, name=ODPCA):
        return np.array([by[name, size][column] for size in sizes])

    def beyond(column, name=ODPCA):
        return span(values(column, name) - values(column, DPCA))

    faster, full = values("speed-up"), by["ODPCA, superlinear", K]["speed-up"]
    print(f"Claim 1, Fig. 1, 2 to 5 times as fast as DPCA: {verdict(faster.min() >= 2)},")
    print(
        f"  {span(faster)} times; with a superlinear local solver {verdict(full >= 2)}, {full:.3g}."
    )
    print("Claim 2, Fig. 1, comparable error: error ratio of ODPCA less that of DPCA")
    print(f"  {beyond('error ratio')}; of U* less that of DPCA {beyond('error ratio', SHARDS)}.")
    print("Claim 3, Fig. 2, k-means about as good: cost of ODPCA less that of DPCA")
    print(f"  {beyond('cost, coreset')} by coresets, {beyond('cost, Lloyd')} by Lloyd.")
    print(
        "Claim 4, Fig. 2, much faster with k-means: "
        + span(values("speed-up, k-means"))
        + " times."
    )
    floats = {name: by[name, K]["floats up"] / (NODES * K * features) for name in (ODPCA, DPCA)}
    print(
        f"Claim 5, 1 / T of DPCA's messages: {verdict(floats[ODPCA] < floats[DPCA])}; in units of"
    )
    print(
        f"  m K d floats a step sends {floats[ODPCA] / STEPS:.3g}, all steps {floats[ODPCA]:.3g}, "
        f"DPCA {floats[DPCA]:.3g}."
    )


def span(values):
    return f"{values.min():.3g} to {values.max():.3g}"


def verdict(holds):
    return "holds" if holds else "does not hold"


def on_data(name, X, quick):
    print(f"\n{name}: {X.shape[0]} x {X.shape[1]}")
    sizes, replications = ((10,), 1) if quick else ((5, 8, 10, 12, 20), 5)
    total = squares(X)
    best, seconds = baseline(X)
    print(f"baseline, all eigenvectors of each node: {seconds:.3g} s")
    start = process_time()
    lloyd = cost(X, KMeans(K, n_init=1 if quick else 3, random_state=0).fit(X).labels_, total)
    print(f"Lloyd on the full data: {process_time() - start:.3g} s")
    found = []
    for seed in range(replications):
        order = np.random.default_rng(seed).permutation(X.shape[0])
        found += replication(X[order], sizes, total, seed)
    rows = means(found, error(X, best, total), lloyd)
    table(f"online_distributed_{name}", rows)
    claims(rows, X.shape[1])

    def draw(ax):
        for kind in (ODPCA, SHARDS, DPCA):
            some = [r for r in rows if r["estimator"] == kind]
            ax.plot(
                [r["K + Z"] for r in some],
                [r["error ratio"] - 1 for r in some],
                "o-",
                label=kind,
            )
        ax.set(xlabel="projection dimension", ylabel="error ratio - 1", yscale="log", title=name)
        ax.legend()

    picture(f"online_distributed_{name}", draw)


def main(quick=False):
    path = load("mnist_test.npz")
    if path is not None:
        on_data("mnist", np.load(path)["X"][: 2000 if quick else None].astype(np.float64), quick)
    path = None if quick else load("newsgroups20_counts.npz")
    if path is not None:
        on_data("newsgroups", text_matrix(path), quick)
