"""Table 1 of Bai, Chan and Luk: floats and errors of DistributedPCA and the truncated baseline.

6,000 rows of 20 features, a plane with noise of deviation 0.2, on s = 1..128 clients, ten runs.
T_a, T_b and T_e are the floats of TruncatedDistributedPCA, of DistributedPCA and of all rows; d_a
and d_b the distance (sine) of their leading planes from the true one, d_ba between the two; k_a and
k_b the components that explain 80 % of what each knows. Clients send what explains sqrt(0.8) of
theirs.

T_be is a formula, and equals the paper's to all printed digits (there is no s = 2 there). The other
columns depend on the generator, here X = Z W^T + 0.2 E, with Z and E standard normal and W
orthonormal.
"""

import numpy as np

from benchmarks._tools import picture, table
from fedpca_sklearn import DistributedPCA, TruncatedDistributedPCA, subspace_distance

PAPER = {1: 0.0002, 4: 0.0042, 8: 0.0067, 16: 0.0098, 32: 0.0143, 64: 0.0217, 128: 0.0347}
N, P, D, SIGMA = 6000, 20, 2, 0.2


def one_run(s, seed):
    rng = np.random.default_rng(seed)
    W = np.linalg.qr(rng.standard_normal((P, D)))[0]
    X = rng.standard_normal((N, D)) @ W.T + SIGMA * rng.standard_normal((N, P))
    exact = DistributedPCA(n_clients=s).fit(X)
    cut = TruncatedDistributedPCA(n_clients=s, local_threshold=np.sqrt(0.8)).fit(X)
    planes = exact.components_[:D], cut.components_[:D]
    log_b, log_a = exact.communication_, cut.communication_
    return {
        "T_ae": log_a.floats_busiest / log_a.floats_pooled,
        "T_be": log_b.floats_busiest / log_b.floats_pooled,
        "d_a": subspace_distance(planes[1], W.T),
        "d_b": subspace_distance(planes[0], W.T),
        "d_ba": subspace_distance(*planes),
        "k_a": count(cut),
        "k_b": count(exact),
    }


def count(pca):
    """Components that explain 80 % of the variance that the estimator knows."""
    return 1 + int(np.searchsorted(np.cumsum(pca.explained_variance_ratio_), 0.8))


def measured(quick=False):
    """One row for each number of clients: means of the runs, with deviations."""
    rows = []
    for s in 2 ** np.arange(8):
        runs = [one_run(int(s), seed) for seed in range(2 if quick else 10)]
        row = {"s": int(s), "T_be, paper": PAPER.get(int(s), "")}
        for name in runs[0]:
            values = [run[name] for run in runs]
            if name == "T_be":  # the same in every run; summed as a mean of ten is
                row[name] = f"{sum(values) / len(values):.4f}"
            else:
                row[name] = f"{np.mean(values):.4f} ({np.std(values, ddof=1):.4f})"
        rows.append(row)
    return rows


def main(quick=False):
    rows = measured(quick)
    table("distributed_table", rows)

    def draw(ax):
        for name, label in (("T_ae", "truncated (Qu et al.)"), ("T_be", "exact (Bai et al.)")):
            ax.loglog(
                [r["s"] for r in rows], [float(r[name].split()[0]) for r in rows], label=label
            )
        ax.loglog(list(PAPER), list(PAPER.values()), "kx", label="the paper's T_be")
        ax.set(xlabel="clients", ylabel="floats / floats of all rows", title="6,000 x 20")
        ax.legend()

    picture("distributed_table", draw)
