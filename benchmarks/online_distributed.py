"""ODPCA beside DPCA on 20 Newsgroups and MNIST: time, rank-10 error and k-means.

ODPCA has 5 clients and 10 time steps, DPCA (Fan et al.) 5 clients with all their rows; K = 10. The
error is that of the rank-10 approximation over the best one's; the k-means cost that of 10 clusters
found in the projections, on the full data, over that of Lloyd's algorithm on the full data.

The last rows repeat both with a local solver whose cost grows faster than the number of rows (the
full SVD of dense rows, the eigenvectors of the n x n Gram matrix of sparse ones), which is where
splitting the rows over time pays; the library's own local solvers cost O(n).
"""

import time
from itertools import pairwise

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA, TruncatedSVD

from benchmarks._tools import interleaved, load, peak_bytes, picture, table
from benchmarks.sparse_text import text_matrix
from fedpca_sklearn import (
    FederatedPCA,
    OnlineDistributedPCA,
    ProjectionAverage,
    StreamingPCA,
    excess_error,
)

K, CLIENTS, STEPS = 10, 5, 10


class GramPCA(BaseEstimator):
    """Local PCA of sparse rows by the eigenvectors of their centred n x n Gram matrix."""

    def __init__(self, n_components=10):
        self.n_components = n_components

    def fit(self, X, y=None):
        """Fit all rows."""
        n, q = X.shape[0], self.n_components
        G = (X @ X.T).toarray()
        G -= G.mean(axis=0)
        G -= G.mean(axis=1, keepdims=True)
        lam, W = scipy.linalg.eigh(G)
        lam, W = lam[: -q - 1 : -1], W[:, : -q - 1 : -1]
        W -= W.mean(axis=0)
        self.components_ = (X.T @ (W / np.sqrt(lam))).T
        self.singular_values_, self.mean_, self.n_samples_ = np.sqrt(lam), X.mean(axis=0), n
        return self


def averaged(X, size, n_clients, local):
    merge = ProjectionAverage(size)
    return FederatedPCA(K, estimator=local, merge=merge, n_clients=n_clients).fit(X)


def online(X, size):
    bounds = np.linspace(0, X.shape[0], STEPS + 1).astype(int)
    model = OnlineDistributedPCA(K, projection_dim=size, n_clients=CLIENTS)
    for start, stop in pairwise(bounds):
        model.partial_fit(X[start:stop])
    return model


def calls_on(X, quick):
    calls = {}
    for size in (10,) if quick else (5, 10, 15, 20):
        local = StreamingPCA(size, oversampling=0)
        calls["ODPCA", size] = lambda size=size: online(X, size)
        calls["DPCA", size] = lambda size=size, e=local: averaged(X, size, CLIENTS, e)
    solver = GramPCA if sp.issparse(X) else lambda size: PCA(size, svd_solver="full")
    calls["DPCA, superlinear", K] = lambda: averaged(X, K, CLIENTS, solver(K))
    calls["ODPCA, superlinear", K] = lambda: averaged(X, K, CLIENTS * STEPS, solver(K))
    calls["pooled TruncatedSVD", K] = lambda: TruncatedSVD(K, random_state=0).fit(X)
    calls["pooled StreamingPCA", K] = lambda: StreamingPCA(K).fit(X)
    return calls


def cost(X, labels):
    """Sum of squared distances of all rows from the means of their clusters."""
    member = sp.csr_array((np.ones(len(labels)), (labels, np.arange(len(labels)))))
    sums = member @ X
    sums = sums.toarray() if sp.issparse(sums) else sums
    sizes = np.maximum(np.asarray(member.sum(axis=1)), 1)
    squares = X.multiply(X).sum() if sp.issparse(X) else np.einsum("ij,ij->", X, X)
    return float(squares - (np.einsum("ij,ij->i", sums, sums) / sizes).sum())


def k_means(X):
    return KMeans(K, n_init=3, random_state=0).fit(X).labels_


def on_data(name, X, quick):
    print(f"\n{name}: {X.shape[0]} x {X.shape[1]}")
    calls = calls_on(X, quick)
    seconds, models = interleaved(calls, repeats=1 if quick else 3)
    best = StreamingPCA(K, block_size=X.shape[0], oversampling=60).fit(X)
    floor = excess_error(X, best.components_)
    start = time.perf_counter()
    lloyd = cost(X, k_means(X))
    print(f"Lloyd on the full data: {time.perf_counter() - start:.1f} s")
    print(f"excess error of the reference: {floor:.0e}")
    rows = []
    for key, (median, _) in seconds.items():
        V = models[key].components_
        peer = ("DPCA, superlinear" if "superlinear" in key[0] else "DPCA", key[1])
        rows.append(
            {
                "estimator": key[0],
                "local dimension": key[1],
                "seconds": median,
                "DPCA's time over it": seconds[peer][0] / median if peer in seconds else "",
                "error ratio": float(np.sqrt(1 + excess_error(X, V))),
                "k-means cost": cost(X, k_means(X @ V.T)) / lloyd,
                "peak MB": peak_bytes(calls[key]) / 1e6,
            }
        )
    table(f"online_distributed_{name}", rows)

    def draw(ax):
        for kind in ("ODPCA", "DPCA"):
            some = [r for r in rows if r["estimator"] == kind]
            ax.plot(
                [r["local dimension"] for r in some],
                [r["error ratio"] - 1 for r in some],
                "o-",
                label=kind,
            )
        ax.set(xlabel="local dimension", ylabel="error ratio - 1", yscale="log", title=name)
        ax.legend()

    picture(f"online_distributed_{name}", draw)


def main(quick=False):
    path = load("mnist_test.npz")
    if path is not None:
        on_data("mnist", np.load(path)["X"][: 2000 if quick else None].astype(np.float64), quick)
    path = None if quick else load("newsgroups20_counts.npz")
    if path is not None:
        on_data("newsgroups", text_matrix(path), quick)
