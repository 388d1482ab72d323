"""Growth of time with rows n, features d and clients s, and the memory stated in advance.

Exponents are least-squares slopes of log(seconds) against log(size), with their standard errors: 1
is linear. Twenty components (five for clients, each of 20 x 50); fastest of some fits, in turn.
"""

import numpy as np

from benchmarks._tools import interleaved, peak_bytes, picture, table
from fedpca_sklearn import DistributedPCA, FederatedPCA, StreamingPCA, SubspaceMerge

# the extra directions of more than 1,000 features, for all sizes
STREAMS = {
    "StreamingPCA": StreamingPCA(20, oversampling=25),
    "FederatedPCA": FederatedPCA(20, n_clients=8),
}
EXACT = {"DistributedPCA": DistributedPCA(20, n_clients=8)}
CLIENTS = {
    "FederatedPCA": FederatedPCA(5),
    "FederatedPCA, tree of 2": FederatedPCA(5, merge=SubspaceMerge(fan_in=2)),
    "DistributedPCA": DistributedPCA(5),
}


def exponent(sizes, seconds):
    """Slope in log-log coordinates and its standard error."""
    x, y = np.log(sizes), np.log(seconds)
    x = x - x.mean()
    slope = float(x @ y / (x @ x))
    rest = y - y.mean() - slope * x
    return slope, float(np.sqrt(rest @ rest / (len(x) - 2) / (x @ x)))


def grown(axis, models, inputs, fixed, repeats):
    """Seconds of each model on inputs by size, and one row for each exponent."""
    calls = {
        (name, size): lambda model=model, options=options: model.fit(**options)
        for size, options in inputs.items()
        for name, model in models.items()
    }
    seconds, _ = interleaved(calls, repeats)
    rows, exponents = [], []
    for name in models:
        fastest = [seconds[name, size][1] for size in inputs]
        rows += [
            {"estimator": name, "grows": axis, "fixed": fixed, "size": size, "seconds": time}
            for size, time in zip(inputs, fastest, strict=True)
        ]
        slope, error = exponent(list(inputs), fastest)
        sizes = f"{min(inputs):,} to {max(inputs):,}"
        exponents.append(
            {
                "estimator": name,
                "grows": axis,
                "sizes": sizes,
                "fixed": fixed,
                "exponent": f"{slope:.2f}",
                "standard error": f"{error:.2f}",
            }
        )
    return rows, exponents


def doubling(first, last):
    return [first * 2**i for i in range(int(np.log2(last / first)) + 1)]


def growth(quick):
    """All seconds and all exponents."""
    rng = np.random.default_rng(0)
    repeats, less = (2, 4) if quick else (5, 1)
    rows, exponents = [], []

    def add(axis, models, sizes, fixed, make):
        inputs = {size: make(size) for size in sizes}
        for all_lines, lines in zip(
            (rows, exponents), grown(axis, models, inputs, fixed, repeats), strict=True
        ):
            all_lines += lines

    pool = rng.standard_normal((64_000 // less, 1000))
    narrow = rng.standard_normal((64_000 // less, 200))
    ns = doubling(8_000 // less, 64_000 // less)
    add("n", STREAMS, ns, "d = 1,000", lambda n: {"X": pool[:n]})
    ns = doubling(8_000 // less, 64_000 // less)
    add("n", EXACT, ns, "d = 200", lambda n: {"X": narrow[:n]})
    wide = rng.standard_normal((600, 32_000 // less))
    ds = doubling(2_000, 32_000 // less)
    add("d", STREAMS, ds, "n = 600", lambda d: {"X": np.ascontiguousarray(wide[:, :d])})
    ds = doubling(100, 800 // (less // 2 or 1))
    add("d", EXACT, ds, f"n = {8_000 // less:,}", lambda d: {"X": pool[: 8_000 // less, :d].copy()})
    small = rng.standard_normal((20 * 2048, 50))
    owners = np.arange(len(small)) // 20
    add(
        "clients",
        CLIENTS,
        doubling(128 // less**2, 2048 // less**2),
        "20 x 50 each",
        lambda s: {"X": small[: 20 * s], "clients": owners[: 20 * s]},
    )
    return rows, exponents


def time(quick):
    rows, exponents = growth(quick)
    table("scaling", rows)
    print()
    table("scaling_exponents", exponents)

    def draw(ax):
        for line in exponents:
            part = [r for r in rows if all(r[c] == line[c] for c in ("estimator", "grows"))]
            ax.loglog(
                [r["size"] for r in part],
                [r["seconds"] for r in part],
                {"n": "o-", "d": "s--", "clients": "^:"}[line["grows"]],
                label=f"{line['estimator']}: {line['grows']}^{line['exponent']}",
            )
        ax.set(xlabel="rows, features or clients", ylabel="seconds")
        ax.legend(fontsize=6, ncols=2)

    picture("scaling", draw)


def memory(quick):
    rng = np.random.default_rng(0)
    cases = [(64, 20, 4_000), (500, 20, 4_000), (2_000, 20, 2_000), (20_000, 20, 500)]
    if not quick:
        cases.append((100_000, 30, 300))
    rows = []
    for d, r, n in cases:
        X = rng.standard_normal((n, d))
        for oversampling in ("auto", 0):
            pca = StreamingPCA(r, oversampling=oversampling)
            peak = peak_bytes(lambda pca=pca, X=X: pca.fit(X))
            rows.append(
                {
                    "d": d,
                    "r": r,
                    "oversampling": oversampling,
                    "input MB": X.nbytes / 1e6,
                    "peak MB": peak / 1e6,
                    "peak / (8 d k)": peak / (8 * d * pca.subspace_.n_components),
                }
            )
    table("memory", rows)


def main(quick=False):
    time(quick)
    print("\nmemory")
    memory(quick)
