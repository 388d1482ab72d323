"""Dask: 400,000 x 500 in 20 chunks on two processes, beside what Dask users have.

The floor is a tree of delayed Gram matrices written by hand. Needs the extra: fedpca-sklearn[dask].
"""

import numpy as np

from benchmarks._tools import interleaved, left_out, table
from fedpca_sklearn import DistributedPCA, FederatedPCA, StreamingPCA

RANK = 10


def make_rows(block_info=None):
    """Rows of a chunk: variances like 1 / i, and a mean."""
    n, d = block_info[None]["chunk-shape"]
    rng = np.random.default_rng(block_info[None]["chunk-location"][0])
    return rng.standard_normal((n, d)) * np.arange(1, d + 1) ** -0.5 + 1


def moments(rows):
    """Count, sum and Gram matrix."""
    return len(rows), rows.sum(axis=0), rows.T @ rows


def add(parts):
    """Sum of moments."""
    return tuple(sum(values) for values in zip(*parts, strict=True))


def gram_tree(X):
    """PCA as one would write it by hand."""
    from dask import delayed

    parts = [delayed(moments, pure=True)(chunk) for chunk in X.to_delayed().ravel()]
    while len(parts) > 1:
        groups = [parts[i : i + 4] for i in range(0, len(parts), 4)]
        parts = [delayed(add, pure=True)(group) for group in groups]
    n, total, gram = parts[0].compute()
    mean = total / n
    return np.linalg.eigh(gram - n * np.outer(mean, mean))[1][:, ::-1][:, :RANK].T


def main(quick=False):
    try:
        import dask
        import dask.array as da
        from distributed import Client, LocalCluster
    except ImportError as error:
        left_out(error.name, "which is not installed")
        return
    n, d = (500 if quick else 20_000), 500
    chunks = ((n,) * 20, (d,))
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        X = da.map_blocks(make_rows, chunks=chunks, dtype=float, meta=np.empty((0, 0)))
        X = X.persist()
        client.gather(client.compute(X.sum()))
        mean = X.mean(axis=0)

        def components(*usv):
            return dask.compute(usv[-1])[0][:RANK]

        calls = {
            "delayed Gram tree": lambda: gram_tree(X),
            "StreamingPCA": lambda: StreamingPCA(RANK).fit(X).components_,
            "FederatedPCA": lambda: FederatedPCA(RANK).fit(X).components_,
            "DistributedPCA": lambda: DistributedPCA(RANK).fit(X).components_,
            "da.linalg.svd (tsqr)": lambda: components(*da.linalg.svd(X - mean)),
            "da.linalg.svd_compressed": lambda: components(
                *da.linalg.svd_compressed(X - mean, RANK, seed=0)
            ),
            "da.linalg.svd_compressed, 2 iterations": lambda: components(
                *da.linalg.svd_compressed(X - mean, RANK, n_power_iter=2, seed=0)
            ),
        }
        try:
            from dask_ml.decomposition import IncrementalPCA as OfDaskML
        except ImportError as error:
            left_out(error.name, "which is not installed")
        else:
            calls["dask-ml IncrementalPCA"] = lambda: (
                OfDaskML(RANK, batch_size=n).fit(X).components_
            )
        seconds, found = interleaved(calls, repeats=1 if quick else 3)
        floor, ours = seconds["delayed Gram tree"][0], seconds["StreamingPCA"][0]
        _, _, gram = dask.compute(moments_of(X - mean))[0]
        values = np.linalg.eigvalsh(gram)[::-1]
    best = values.sum() - values[:RANK].sum()

    def excess(V):
        return float((np.trace(gram) - np.einsum("ij,ij->", V @ gram, V)) / best - 1)

    table(
        "dask_scaling",
        [
            {
                "": name,
                "seconds": median,
                "times Gram tree": median / floor,
                "times StreamingPCA": median / ours,
                "excess error": excess(found[name]),
            }
            for name, (median, _) in seconds.items()
        ],
    )


def moments_of(X):
    """Task of the moments of all chunks."""
    from dask import delayed

    return delayed(add)([delayed(moments)(chunk) for chunk in X.to_delayed().ravel()])
