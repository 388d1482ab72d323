"""One BLAS thread for small blocks, beside all of them, on an idle machine and on a busy one.

Large fits and projections with one thread and with two, beside scikit-learn's (its fastest solver)
and products of the same rows. Then single calls on a busy machine, with two threads and with one.
"""

import multiprocessing
from functools import partial
from os import cpu_count
from statistics import median
from time import perf_counter, sleep

import numpy as np
from sklearn.decomposition import PCA
from threadpoolctl import ThreadpoolController, threadpool_limits

from benchmarks._tools import table
from fedpca_sklearn import (
    DistributedPCA,
    FederatedPCA,
    StreamingPCA,
    SubspaceMonitor,
    make_power_law,
    parallel_analysis,
)
from fedpca_sklearn._kernels import threads

SHAPES = [(20_000, 64), (20_000, 300), (10_000, 2000), (200, 20_000)]
# Rows, features, components and scikit-learn's fastest solver.
LARGE = [
    (100_000, 100, 10, "covariance_eigh"),
    (50_000, 256, 20, "covariance_eigh"),
    (20_000, 784, 50, "covariance_eigh"),
    (10_000, 2_000, 20, "randomized"),
]


def spin():
    """Keep a core busy."""
    while True:
        sum(range(10_000))


def measured(repeats):
    """A row for each shape: seconds with all threads, and with one where blocks are small."""

    def fit(X, small):
        threads._SMALL = small
        StreamingPCA(10).fit(X)

    usual, rows = threads._SMALL, []
    for shape in SHAPES:
        X = np.random.default_rng(0).standard_normal(shape)
        calls = {
            "all threads": lambda X=X: fit(X, 0),
            "one for small blocks": lambda X=X: fit(X, usual),
        }
        rows.append({"rows x features": "{:,} x {:,}".format(*shape)} | _least(calls, repeats))
        rows[-1]["ratio"] = rows[-1]["all threads"] / rows[-1]["one for small blocks"]
    threads._SMALL = usual
    return rows


def fits_with_threads(quick):
    """A row for each large shape: seconds of the wall clock with one thread and with two."""
    rows = []
    for n, d, r, peer in LARGE:
        X = make_power_law(n // 10 if quick else n, d, alpha=1.0, random_state=0)
        V = np.random.default_rng(0).standard_normal((d, r))
        some = X[:1_000]  # what transform costs does not depend on them
        ours, theirs = StreamingPCA(r).fit(some), PCA(r, svd_solver="randomized").fit(some)
        work = {
            "StreamingPCA": lambda X=X, r=r: StreamingPCA(r).fit(X),
            peer: lambda X=X, r=r, peer=peer: PCA(r, svd_solver=peer, random_state=0).fit(X),
            "StreamingPCA.transform": lambda X=X, pca=ours: pca.transform(X),
            "PCA.transform": lambda X=X, pca=theirs: pca.transform(X),
            "X @ V.T": lambda X=X, V=V: X @ V,
            "X.T @ X": lambda X=X: X.T @ X,
        }
        calls = {
            (name, n_threads): partial(_limited, n_threads, call)
            for name, call in work.items()
            for n_threads in (1, 2)
        }
        seconds = _least(calls, 2 if quick else 7)
        for name in work:
            one, two = (seconds[name, n_threads] for n_threads in (1, 2))
            shape = f"{len(X):,} x {d:,}, {r}"
            row = {"rows": shape, "work": name, "1 thread": one, "2 threads": two}
            rows.append(row | {"ratio": one / two})
    return rows


def calls_of(d):
    """Calls that take a thousand rows of d features, or their model."""
    X, sites = make_power_law(1_000, d, alpha=1.0, random_state=0), np.repeat(range(4), 250)
    pca, peer = StreamingPCA(5).fit(X), PCA(5).fit(X)
    Z, monitor, federated = pca.transform(X), SubspaceMonitor(pca).fit(X), FederatedPCA(5)
    federated.fit(X, clients=sites)
    return {
        "fit": lambda: StreamingPCA(5).fit(X).components_,
        "partial_fit": lambda: StreamingPCA(5).partial_fit(X).partial_fit(X).components_,
        "transform": lambda: pca.transform(X),
        "inverse_transform": lambda: pca.inverse_transform(Z),
        "score_samples": lambda: pca.score_samples(X),
        "get_covariance": lambda: pca.get_covariance(),
        "to_bytes": lambda: pca.subspace_.to_bytes(),
        "parallel_analysis": lambda: parallel_analysis(pca.subspace_, n_draws=19),
        "SubspaceMonitor.score_samples": lambda: monitor.score_samples(X),
        "FederatedPCA.partial_fit": lambda: federated.partial_fit(X, clients=sites).components_,
        "DistributedPCA.fit": lambda: DistributedPCA(5).fit(X, clients=sites),
        "PCA.fit": lambda: PCA(5).fit(X),
        "PCA.transform": lambda: peer.transform(X),
        "PCA.get_covariance": lambda: peer.get_covariance(),
    }


def on_busy_cores(quick):
    """A row for each call: median of the wall clock with one thread, and times that with two."""
    rows, blas = [], ThreadpoolController()
    for d in (20, 64, 200)[:: 2 if quick else 1]:
        for name, call in calls_of(d).items():
            seconds = {1: [], 2: []}
            for _ in range(3 if quick else 25):
                for n_threads, found in seconds.items():
                    with blas.limit(limits=n_threads, user_api="blas"):
                        start = perf_counter()
                        call()
                        found.append(perf_counter() - start)
            one, two = median(seconds[1]), median(seconds[2])
            row = {"features": d, "call": name, "1 thread": one, "2 threads": two}
            rows.append(row | {"ratio": two / one})
    return rows


def _limited(n_threads, call):
    with threadpool_limits(n_threads, user_api="blas"):
        return call()


def _least(calls, repeats):
    """Least seconds of each call, in turn, once threads of BLAS no longer wait for more work.

    They spin for a while after they have worked, which takes cores from others.
    """
    seconds = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            sleep(0.1)
            start = perf_counter()
            call()
            seconds[name].append(perf_counter() - start)
    return {name: min(found) for name, found in seconds.items()}


def main(quick=False):
    print("Fits with one thread and with two:")
    table("blas_threads_fits", fits_with_threads(quick))
    print()
    cores, rows = cpu_count() or 1, []
    others = [multiprocessing.Process(target=spin, daemon=True) for _ in range(cores)]
    with threadpool_limits(cores, user_api="blas"):
        rows += [{"machine": "idle", **row} for row in measured(2 if quick else 5)]
        for other in others:
            other.start()
        try:
            rows += [{"machine": "busy", **row} for row in measured(1 if quick else 3)]
            calls = on_busy_cores(quick)
        finally:
            for other in others:
                other.kill()
    print(f"{cores} cores; busy: as many other processes that never wait.")
    table("blas_threads", rows)
    print("\nCalls on the busy machine:")
    table("blas_threads_calls", calls)
