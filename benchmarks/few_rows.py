"""Few rows of many features: one block, small ones, and the solvers of scikit-learn's PCA.

`StreamingPCA` takes up to 512 rows as one block, and more of them in a few passes.

"variances": how far the worst explained variance is below that of the exact solver, as a share.
"""

import numpy as np
from sklearn.decomposition import PCA

from benchmarks._tools import interleaved, picture, table
from fedpca_sklearn import StreamingPCA, excess_error, make_power_law

SHAPES = ((100, 1_000, 10), (200, 600, 3), (300, 20_000, 10), (500, 2_000, 3), (500, 2_000, 20))
MORE = ((500, 10_000, 50), (1_000, 2_000, 3), (1_000, 2_000, 20), (1_000, 10_000, 10))
LONGER = ((2_000, 3_000, 10), (3_000, 5_000, 20))


def small_blocks(n_components):
    """Rows of a block that updates the directions kept of many features."""
    return max(64, 7 * (n_components + max(10, -(-5 * n_components // 4))) // 4)


def main(quick=False):
    rows = []
    for n, d, r in SHAPES[:2] if quick else SHAPES + MORE + LONGER:
        X = make_power_law(n, d, alpha=0.5, random_state=0)
        models = {
            "StreamingPCA": StreamingPCA(r),
            "small blocks": StreamingPCA(r, block_size=small_blocks(r)),
            "one block": StreamingPCA(r, block_size=n),
            "PCA('randomized')": PCA(r, svd_solver="randomized", random_state=0),
            "PCA('arpack')": PCA(r, svd_solver="arpack", random_state=0),
            "PCA('full')": PCA(r, svd_solver="full"),
        }
        calls = {name: (lambda m=m, X=X: m.fit(X)) for name, m in models.items()}
        seconds, fitted = interleaved(calls, repeats=3)
        exact = fitted["PCA('full')"].explained_variance_
        for name, model in fitted.items():
            off = np.max(1 - model.explained_variance_ / exact)
            rows.append(
                {
                    "rows": f"{n} x {d}, {r}",
                    "estimator": name,
                    "ms": 1e3 * seconds[name][0],
                    "of small blocks": seconds[name][0] / seconds["small blocks"][0],
                    "excess error": excess_error(X, model.components_, model.mean_),
                    "variances": max(off, 0.0),
                }
            )
    table("few_rows", rows)

    def draw(ax):
        for name in dict.fromkeys(row["estimator"] for row in rows):
            own = [row for row in rows if row["estimator"] == name]
            errors = [max(row["excess error"], 1e-12) for row in own]
            ax.loglog([row["ms"] for row in own], errors, "o", label=name)
        ax.set(xlabel="ms", ylabel="excess error", title="rows of alpha = 0.5")
        ax.legend(fontsize=7)

    picture("few_rows", draw)
