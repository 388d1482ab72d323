"""Rows, batches and clients that other scenarios do not draw, each over what should cost as much.

What is slow is often slow on one kind of rows only: columns that are directions themselves, low
rank, units, batches, sites. The seed draws the rows (``--seed``). Times are of the processor, the
least of two rounds in which both take turns; "two threads" is of the clock.
"""

from concurrent.futures import ThreadPoolExecutor
from time import perf_counter, process_time

import numpy as np
import scipy.sparse as sp
from sklearn.decomposition import PCA
from sklearn.preprocessing import OneHotEncoder

from benchmarks._tools import interleaved, table
from fedpca_sklearn import DistributedPCA, FederatedPCA, StreamingPCA, Subspace

START = np.datetime64("2026-01-01")


def falling(rng, n, d, rotated=True):
    """Rows of n x d whose variances fall as 1 / i."""
    X = rng.standard_normal((n, d)) / np.sqrt(np.arange(1, d + 1))
    return X @ np.linalg.qr(rng.standard_normal((d, d)))[0] if rotated else X


def in_batches(X, size, read=False, **parameters):
    """The components of a stream of X."""
    model = StreamingPCA(10, **parameters)
    for i in range(0, X.shape[0], size):
        part = slice(i, i + size)
        times = START + np.arange(X.shape[0])[part].astype("timedelta64[s]")
        model.partial_fit(X[part], times=times if model.half_life else None)
        if read:
            _ = model.components_
    return model.components_


def fit(X, **parameters):
    return StreamingPCA(10, **parameters).fit(X).components_


def batches(rng, small):
    """Streams over one call."""
    for d, sizes in ((600, (3000, 1000, 300)), (200, (1000, 100, 30))):
        X = falling(rng, 600 if small else 6000, d // 10 if small else d)
        for size in sizes:
            name = f"{X.shape[0]:,} x {X.shape[1]} in batches of {size:,}"
            yield name, "one fit", lambda X=X, b=size: in_batches(X, b), lambda X=X: fit(X)
        name += ", read after each"
        yield (
            name,
            "one fit",
            lambda X=X, b=size: in_batches(X, b, read=True),
            lambda X=X: fit(X),
        )
    yield (
        f"the same in batches of {size}, half-life in time",
        "without",
        lambda: in_batches(X, size, half_life="1h"),
        lambda: in_batches(X, size),
    )
    S = sp.random(1000 if small else 10_000, 2000, 0.01, format="csr", rng=rng)
    name, third = f"sparse {S.shape[0]:,} x 2,000 in three", S.shape[0] // 3 + 1
    yield name, "one fit", lambda: in_batches(S, third), lambda: fit(S)
    Y = falling(rng, 600 if small else 6000, 50 if small else 500)
    unlike = Y * 10 ** rng.uniform(-3, 3, Y.shape[1])
    parts = [slice(i, i + 300) for i in range(0, len(Y), 300)]
    yield (
        f"{len(Y):,} x {Y.shape[1]} in unlike units, scaled, iterable",
        "in like units",
        lambda: fit((unlike[p] for p in parts), scale=True),
        lambda: fit((Y[p] for p in parts), scale=True),
    )


def kinds_of_rows(rng, small):
    """Kinds of rows over scikit-learn's fastest solver."""
    n, d = (500, 100) if small else (10_000, 2000)
    kinds = {
        "columns are directions": falling(rng, n, d, rotated=False),
        "rotated": falling(rng, n, d),
        "sorted": np.sort(falling(rng, n // 2, d // 5), axis=0),
        "integers": rng.poisson(3, (n // 2, d // 5)).astype(float),
        "one-hot": OneHotEncoder(sparse_output=False).fit_transform(
            rng.integers(0, 20, (n // 2, d // 100))
        ),
        "duplicated columns": np.tile(falling(rng, n // 2, d // 10), 2),
        "rank 30": rng.standard_normal((n // 10, 30)) @ rng.standard_normal((30, 2 * d)),
        "rank 12": rng.standard_normal((n // 5, 12)) @ rng.standard_normal((12, d + d // 2)),
        "rank 5 of ten": rng.standard_normal((n // 5, 5)) @ rng.standard_normal((5, d + d // 2)),
        "float32, variances to 1e-6": (
            falling(rng, n // 2, d // 5)
            * np.r_[10 ** np.linspace(0, -2.5, 10), [1e-3] * (d // 5 - 10)]
        ).astype(np.float32),
    }
    for kind, X in kinds.items():
        name = f"{X.shape[0]:,} x {X.shape[1]:,}, {kind}"
        yield name, "scikit-learn's fastest", lambda X=X: fit(X), fastest(X)


def fastest(X):
    """The faster of two solvers, by their first run."""
    solvers = [
        PCA(10, svd_solver=name, random_state=0) for name in ("covariance_eigh", "randomized")
    ]
    seconds = []
    for solver in solvers:
        start = process_time()
        solver.fit(X)
        seconds.append(process_time() - start)
    return lambda: solvers[int(np.argmin(seconds))].fit(X).components_


def sites(rng, small):
    """Clients over the same work without them."""
    X = falling(rng, 300 if small else 3000, 200 if small else 2000)
    yield (
        f"DistributedPCA, {len(X):,} x {X.shape[1]:,}, 8 clients",
        "PCA by covariance",
        lambda: DistributedPCA(10, n_clients=8).fit(X).components_,
        lambda: PCA(10, svd_solver="covariance_eigh").fit(X).components_,
    )
    Y = falling(rng, 400 if small else 20_000, 20 if small else 200)
    steep = falling(rng, len(Y), Y.shape[1], rotated=False) * np.logspace(0, -3, Y.shape[1])
    labels = rng.integers(2 if small else 20, size=len(Y))
    yield (
        f"FederatedPCA, {len(Y):,} x {Y.shape[1]}, 20 sites, variances to 1e-8",
        "one fit",
        lambda: FederatedPCA(1).fit(steep, clients=labels).components_,
        lambda: StreamingPCA(1).fit(steep).components_,
    )
    twice = np.tile(Y[:, : Y.shape[1] // 2], 2)
    yield (
        "the same, scaled, columns twice",
        "one fit",
        lambda: FederatedPCA(5, scale=True).fit(twice, clients=labels).components_,
        lambda: StreamingPCA(5, scale=True).fit(twice).components_,
    )
    Y = falling(rng, 4000 if small else 80_000, 50 if small else 500)
    parts = np.array_split(Y, 10)
    yield (
        f"FederatedPCA, {len(Y):,} x {Y.shape[1]}, 10 clients",
        "the clients' fits",
        lambda: FederatedPCA(10, n_clients=10).fit(Y).components_,
        lambda: [StreamingPCA(10).fit(part).components_ for part in parts],
    )


def clients_alone(rng, small):
    """Microseconds a client."""
    for c, n in ((10_000, 20), (60_000, 5)):
        c = c // 100 if small else c
        X, clients = rng.standard_normal((c * n, 50)), np.repeat(np.arange(c), n)
        start = process_time()
        FederatedPCA(5).fit(X, clients=clients)
        yield {"clients": c, "rows": f"{n} x 50", "us each": 1e6 * (process_time() - start) / c}


def two_threads(rng, small):
    """Seconds of reading twelve summaries on one thread and on two."""
    d, seconds = 64 if small else 400, []
    for n_threads in (1, 2):
        streams = [StreamingPCA(10).fit(rng.standard_normal((3 * d, d))) for _ in range(12)]
        summaries = [Subspace.from_bytes(s.subspace_.to_bytes()) for s in streams]
        summaries = [s.update(rng.standard_normal((3 * d, d))) for s in summaries]
        with ThreadPoolExecutor(n_threads) as pool:
            list(pool.map(abs, range(n_threads)))
            start = perf_counter()
            list(pool.map(lambda s: s.components, summaries))
            seconds.append(perf_counter() - start)
    return seconds[1] / seconds[0]


def main(quick=False, seed=0):
    rng, rows = np.random.default_rng(seed), []
    for group in (batches, kinds_of_rows, sites):
        for name, other, ours, theirs in group(rng, quick):
            seconds, _ = interleaved({"ours": ours, "other": theirs}, 2, clock=process_time)
            ratio = seconds["ours"][1] / seconds["other"][1]
            rows.append(
                {"rows": name, "ms": 1e3 * seconds["ours"][1], "over": other, "ratio": ratio}
            )
    print(f"seed {seed}")
    table("cliffs", rows)
    print()
    table("cliffs_clients", list(clients_alone(rng, quick)))
    print(f"\ndirections of twelve summaries, two threads over one: {two_threads(rng, quick):.2f}")
