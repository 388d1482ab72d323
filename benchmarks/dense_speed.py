"""Dense streaming at (n, d, r) = (10,000, 2,000, 20) beside scikit-learn and a bare product.

The floor is X @ V.T with 20 vectors: reading the data once. "of floor" is the time as a multiple of
it; "speed" how many times faster than IncrementalPCA.
"""

import numpy as np
from sklearn.decomposition import PCA, IncrementalPCA

from benchmarks._tools import interleaved, picture, table
from fedpca_sklearn import FederatedPCA, StreamingPCA, excess_error, make_power_law


def main(quick=False):
    n, d, r = (3_000, 1_000, 20) if quick else (10_000, 2_000, 20)
    X = make_power_law(n, d, alpha=1.0, random_state=0)
    V = np.random.default_rng(0).standard_normal((r, d))
    peers = {
        "StreamingPCA": StreamingPCA(r),
        "StreamingPCA(svd_solver='qr')": StreamingPCA(r, svd_solver="qr"),
        "FederatedPCA, 8 clients": FederatedPCA(r, n_clients=8),
        "IncrementalPCA(batch_size=64)": IncrementalPCA(r, batch_size=64),
        "IncrementalPCA(batch_size=256)": IncrementalPCA(r, batch_size=256),
        "PCA('randomized')": PCA(r, svd_solver="randomized", random_state=0),
        "PCA('covariance_eigh')": PCA(r, svd_solver="covariance_eigh"),
    }
    calls = {name: (lambda e=e: e.fit(X)) for name, e in peers.items()}
    seconds, models = interleaved({"X @ V.T (floor)": lambda: X @ V.T, **calls})
    floor = seconds["X @ V.T (floor)"][0]
    reference = seconds["IncrementalPCA(batch_size=64)"][0]
    rows = [
        {
            "estimator": name,
            "seconds": median,
            "fastest": fastest,
            "of floor": median / floor,
            "speed": reference / median,
            "excess error": excess_error(X, models[name].components_) if name in peers else "",
        }
        for name, (median, fastest) in seconds.items()
    ]
    table("dense_speed", rows)

    def draw(ax):
        for row in rows[1:]:
            ax.loglog(row["seconds"], max(row["excess error"], 1e-9), "o", label=row["estimator"])
        ax.axvline(floor, color="0.7", label="floor")
        ax.set(xlabel="seconds", ylabel="excess error", title=f"{n} x {d}, rank {r}")
        ax.legend(fontsize=7)

    picture("dense_speed", draw)
