"""DistributedPCA on 8 clients of 50,000 x 200 beside pooled PCA(svd_solver="full")."""

import numpy as np
from sklearn.decomposition import PCA

from benchmarks._tools import interleaved, table
from fedpca_sklearn import DistributedPCA, FederatedPCA, subspace_distance


def main(quick=False):
    n = 10_000 if quick else 50_000
    rng = np.random.default_rng(0)
    X = rng.standard_normal((8 * n, 200)) * np.arange(1, 201) ** -0.5
    calls = {
        'pooled PCA(svd_solver="full")': lambda: PCA(10, svd_solver="full").fit(X),
        'pooled PCA(svd_solver="covariance_eigh")': lambda: PCA(
            10, svd_solver="covariance_eigh"
        ).fit(X),
        "DistributedPCA(n_jobs=1)": lambda: DistributedPCA(10, n_clients=8).fit(X),
        "DistributedPCA(n_jobs=2)": lambda: DistributedPCA(10, n_clients=8, n_jobs=2).fit(X),
        "FederatedPCA(n_jobs=2)": lambda: FederatedPCA(10, n_clients=8, n_jobs=2).fit(X),
    }
    seconds, models = interleaved(calls, repeats=1 if quick else 3)
    reference, ours = (
        models['pooled PCA(svd_solver="full")'],
        seconds["DistributedPCA(n_jobs=2)"][0],
    )
    table(
        "distributed_speed",
        [
            {
                "estimator": name,
                "seconds": median,
                "over DistributedPCA(n_jobs=2)": median / ours,
                "distance from full": subspace_distance(
                    models[name].components_, reference.components_
                ),
            }
            for name, (median, _) in seconds.items()
        ],
    )
