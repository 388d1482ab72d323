"""100,000 small clients on one machine, merged flat and in trees: time, bytes, memory, error.

Every client has 20 rows of 50 features: variances like 1 / i, and a mean and a direction of its
own. Five components. "10 directions a client" is StreamingPCA(5, oversampling=5) there; else
clients send all that their rows span. MB are what is sent, and what the busiest receiver of each
round takes, summed over the rounds. Peak memory beyond the rows is traced in fits of its own, as
tracing is slow; seconds are those of the processor, of one fit.

A second table is of 1,000 clients of other shapes: microseconds a client, beside those of a
StreamingPCA for each, and of sums of products by hand, dense ones in float64.
"""

from time import process_time

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.decomposition import PCA

from benchmarks._tools import interleaved, peak_bytes, picture, table
from fedpca_sklearn import (
    DistributedPCA,
    FederatedPCA,
    StreamingPCA,
    SubspaceMerge,
    excess_error,
    make_power_law,
)

RANK, ROWS, D = 5, 20, 50
FEW = StreamingPCA(RANK, oversampling=5)
METHODS = {
    "FederatedPCA, flat": FederatedPCA(RANK),
    "tree of 32": FederatedPCA(RANK, merge=SubspaceMerge(fan_in=32)),
    "tree of 2": FederatedPCA(RANK, merge=SubspaceMerge(fan_in=2)),
    "10 directions a client, flat": FederatedPCA(RANK, estimator=FEW),
    "10 directions a client, tree of 32": FederatedPCA(
        RANK, estimator=FEW, merge=SubspaceMerge(fan_in=32)
    ),
    "DistributedPCA": DistributedPCA(RANK),
}
# Rows of a client, features, dtype, share of stored entries
SHAPES = [
    (20, 50, "f8", 1),
    (60, 20, "f8", 1),
    (100, 10, "f8", 1),
    (300, 25, "f8", 1),
    (70, 90, "f8", 1),
    (90, 70, "f4", 1),
    (70, 75, "f4", 1),
    (200, 60, "f8", 1),
    (8, 92, "f8", 0.1),
    (50, 30, "f8", 0.1),
    (10, 700, "f8", 0.02),
]


def unlike(n_clients):
    """Rows and labels of clients with means and directions of their own."""
    X = np.empty((n_clients * ROWS, D))
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((D, D)))[0]
    spread = np.arange(1, D + 1)[:, None] ** -0.5 * basis
    for start in range(0, n_clients, 1000):
        rng = np.random.default_rng([1, start])
        shape = min(1000, n_clients - start), ROWS, D
        own = rng.standard_normal((2, shape[0], 1, D)) / np.sqrt(D)
        rows = rng.standard_normal(shape) @ spread + own[0]
        rows += 2 * rng.standard_normal((*shape[:2], 1)) * own[1]
        X[start * ROWS : (start + 1000) * ROWS] = rows.reshape(-1, D)
    return X, np.repeat(np.arange(n_clients), ROWS)


def fitted(pca, X, **options):
    """What is found and sent; the summaries of all clients are not kept."""
    pca = clone(pca).fit(X, **options)
    return pca.components_, getattr(pca, "communication_", None)


def measured(n_clients, memory=True):
    """One row for each method, and for PCA of the pooled rows."""
    X, clients = unlike(n_clients)
    calls = {m: lambda pca=pca: fitted(pca, X, clients=clients) for m, pca in METHODS.items()}
    calls["pooled PCA"] = lambda: fitted(PCA(RANK, svd_solver="covariance_eigh"), X)
    rows = []
    for method, call in calls.items():
        start = process_time()
        components, log = call()
        time = process_time() - start
        row = {
            "clients": n_clients,
            "method": method,
            "seconds": time,
            "us a client": 1e6 * time / n_clients,
            "rounds": log.rounds if log else 1,
            "MB": log.bytes_up / 1e6 if log else X.nbytes / 1e6,
            "MB, busiest": 8 * log.floats_busiest / 1e6 if log else X.nbytes / 1e6,
            "excess": max(excess_error(X, components), 0.0),
        }
        if memory:
            row["peak kB a client"] = peak_bytes(calls[method]) / n_clients / 1e3
        rows.append(row)
    return rows


def by_hand(X, clients):
    """Components of sums of products, a loop over the clients."""
    n, d = X.shape
    S, means = np.zeros((d, d)), np.empty((clients[-1] + 1, d))
    m = n // len(means)
    for i in range(len(means)):
        Z = X[i * m : (i + 1) * m]
        means[i] = Z.mean(axis=0)
        Z = Z - means[i]
        S += Z.T @ Z
    means -= means.mean(axis=0)
    return np.linalg.eigh(S + m * means.T @ means)[1][:, : -RANK - 1 : -1].T


def of_shape(m, d, dtype, stored, n_clients=1000):
    """Microseconds a client of one shape."""
    X = make_power_law(n_clients * m, d, alpha=1.0, random_state=0).astype(dtype)
    if stored < 1:
        X[np.random.default_rng(0).random(X.shape) >= stored] = 0
    clients, dense = np.repeat(np.arange(n_clients), m), X.astype(np.float64)
    X = sp.csr_array(X) if stored < 1 else X
    parts = [X[i * m : (i + 1) * m] for i in range(n_clients)]
    calls = {
        "FederatedPCA": lambda: FederatedPCA(RANK).fit(X, clients=clients).components_,
        "StreamingPCA each": lambda: [StreamingPCA(RANK).fit(Z).components_ for Z in parts],
        "by hand": lambda: by_hand(dense, clients),
    }
    seconds = interleaved(calls, 3, process_time)[0]
    kind = f"{m} x {d}, {dtype}" + (stored < 1) * f", {stored:g} stored"
    return {"client": kind, **{name: 1e6 * s[1] / n_clients for name, s in seconds.items()}}


def main(quick=False):
    sizes = (100, 400) if quick else (1000, 10_000, 100_000)
    rows = [row for n_clients in sizes for row in measured(n_clients, memory=False)]
    table("many_clients", rows)
    print()
    columns = ("clients", "method", "peak kB a client")
    traced = [{c: row[c] for c in columns} for row in measured(100 if quick else 10_000)]
    table("many_clients_memory", traced)
    print()
    table("many_clients_shapes", [of_shape(*s, 20 if quick else 1000) for s in SHAPES])

    def draw(ax):
        for method in METHODS:
            seconds = [row["seconds"] for row in rows if row["method"] == method]
            ax.loglog(sizes, seconds, "o-", label=method)
        ax.set(xlabel="clients of 20 x 50", ylabel="seconds", title="One machine, one thread")
        ax.legend(fontsize=7)

    picture("many_clients", draw)
