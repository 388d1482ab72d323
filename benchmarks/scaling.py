"""Growth of time and memory with n and d, and the memory stated in advance.

Exponents are least-squares slopes of log(seconds) against log(size): 1 is linear.
"""

import numpy as np

from benchmarks._tools import interleaved, peak_bytes, picture, table
from fedpca_sklearn import StreamingPCA


def exponent(sizes, seconds):
    """Slope in log-log coordinates."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def main(quick=False):
    rng = np.random.default_rng(0)
    pool = rng.standard_normal((2_000 if quick else 16_000, 1_000))
    rows = []
    sizes = [len(pool) // 2**i for i in (3, 2, 1, 0)]
    seconds, _ = interleaved({n: (lambda n=n: StreamingPCA(20).fit(pool[:n])) for n in sizes})
    for n, (_, fastest) in seconds.items():
        rows.append({"grows": "n", "n": n, "d": 1000, "seconds": fastest})
    in_n = exponent(sizes, [fastest for _, fastest in seconds.values()])

    widths = [2_000, 4_000, 8_000] if quick else [2_000, 4_000, 8_000, 16_000, 32_000]
    wide = rng.standard_normal((600, widths[-1]))
    inputs = {d: np.ascontiguousarray(wide[:, :d]) for d in widths}
    calls = {d: (lambda X=X: StreamingPCA(20).fit(X)) for d, X in inputs.items()}
    seconds, _ = interleaved(calls)
    for d, (_, fastest) in seconds.items():
        rows.append({"grows": "d", "n": 600, "d": d, "seconds": fastest})
    in_d = exponent(widths, [fastest for _, fastest in seconds.values()])
    table("scaling", rows)
    print(f"time grows as n^{in_n:.2f} and d^{in_d:.2f}")

    def draw(ax):
        for name, label in (("n", f"n^{in_n:.2f} at d = 1,000"), ("d", f"d^{in_d:.2f} at n = 600")):
            part = [r for r in rows if r["grows"] == name]
            ax.loglog([r[name] for r in part], [r["seconds"] for r in part], "o-", label=label)
        ax.set(xlabel="n or d", ylabel="seconds", title="StreamingPCA(20)")
        ax.legend()

    picture("scaling", draw)

    print("\nmemory")
    cases = [(64, 20, 4_000), (500, 20, 4_000), (2_000, 20, 2_000), (20_000, 20, 500)]
    if not quick:
        cases.append((100_000, 30, 300))
    memory = []
    for d, r, n in cases:
        X = rng.standard_normal((n, d))
        for oversampling in ("auto", 0):
            pca = StreamingPCA(r, oversampling=oversampling)
            peak = peak_bytes(lambda pca=pca, X=X: pca.fit(X))
            stated = pca.memory_bytes(d)
            memory.append(
                {
                    "d": d,
                    "r": r,
                    "oversampling": oversampling,
                    "input MB": X.nbytes / 1e6,
                    "peak MB": peak / 1e6,
                    "stated MB": stated / 1e6,
                    "stated / peak": stated / peak,
                    "peak / (8 d k)": peak / (8 * d * pca.subspace_.n_components),
                }
            )
    table("memory", memory)
