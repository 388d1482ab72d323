"""One BLAS thread for small blocks, beside all of them, on an idle machine and on a busy one."""

import multiprocessing
from os import cpu_count

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks._tools import interleaved, table
from fedpca_sklearn import StreamingPCA
from fedpca_sklearn._kernels import threads

SHAPES = [(20_000, 64), (20_000, 300), (10_000, 2000), (200, 20_000)]


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
        seconds, _ = interleaved(calls, repeats)
        rows.append({"rows x features": "{:,} x {:,}".format(*shape)})
        rows[-1] |= {name: least for name, (_, least) in seconds.items()}
        rows[-1]["ratio"] = rows[-1]["all threads"] / rows[-1]["one for small blocks"]
    threads._SMALL = usual
    return rows


def main(quick=False):
    cores, rows = cpu_count() or 1, []
    others = [multiprocessing.Process(target=spin, daemon=True) for _ in range(cores)]
    with threadpool_limits(cores, user_api="blas"):
        rows += [{"machine": "idle", **row} for row in measured(2 if quick else 5)]
        for other in others:
            other.start()
        try:
            rows += [{"machine": "busy", **row} for row in measured(1 if quick else 3)]
        finally:
            for other in others:
                other.kill()
    print(f"{cores} cores; busy: as many other processes that never wait.")
    table("blas_threads", rows)
