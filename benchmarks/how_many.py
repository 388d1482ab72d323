"""How many components sites count, beside the pooled rows.

Rows of d = 50 features, n = 2,000 at ten sites of unlike sizes and means, "normal" or "skewed"
(exponential along each direction), or a "series", each row .8 of the last one and a part of its
own. The share of repetitions in which the number of `FederatedPCA`
from the sites' summaries is that of pooled rows: for "parallel" that of Horn's analysis by 99
permutations of the columns, which needs the rows, and for "mle" scikit-learn's; then the share in
which it is the number of directions that were put in, and the mean number by "held-out".
"""

import numpy as np
from scipy.signal import lfilter
from sklearn.decomposition import PCA

from benchmarks._tools import table
from fedpca_sklearn import FederatedPCA, Subspace, parallel_analysis

D, N, SITES = 50, 2000, 10
SPIKES = {"strong": (20.0, 10.0, 5.0), "mild": (6.0, 4.0, 3.0), "none": ()}


def drawn(rng, spikes, kind, n=N, d=D):
    """Rows and the orthonormal rows V that their variances 1 + spikes, then 1, are along."""
    V = np.linalg.qr(rng.standard_normal((d, d)))[0].T
    Z = rng.exponential(size=(n, d)) - 1 if kind == "skewed" else rng.standard_normal((n, d))
    if kind == "series":
        Z = 0.6 * lfilter([1], [1, -0.8], Z, axis=0)
    Z[:, : len(spikes)] *= np.sqrt(1 + np.array(spikes))
    return Z @ V, V


def ranks(repetitions):
    """A row for each kind of rows and rule."""
    rows = []
    for kind in ("normal", "skewed", "series"):
        for name, spikes in SPIKES.items():
            rng = np.random.default_rng(0)
            found = np.array([counted(rng, spikes, kind) for _ in range(repetitions)])
            parallel, whole, permuted, mle, pooled, held_out = found.T
            rows.append(
                {
                    "rows": kind,
                    "spikes": name,
                    "parallel: as of all rows": np.mean(parallel == whole),
                    "as permuted": np.mean(parallel == permuted),
                    "as put in": np.mean(parallel == max(len(spikes), 1)),
                    "mle: as scikit-learn's": np.mean(mle == pooled),
                    "mle as put in": np.mean(mle == len(spikes)),
                    "mle": np.mean(mle),
                    "held-out": np.mean(held_out),
                }
            )
    return rows


def counted(rng, spikes, kind):
    """Numbers of components by the sites' summaries and by the rows."""
    X, _ = drawn(rng, spikes, kind)
    site = np.sort(rng.integers(0, SITES, N) ** 2 // SITES)
    sites = [Subspace.from_rows(X[site == i]) for i in np.unique(site)]
    return (
        FederatedPCA.from_subspaces(sites, "parallel").n_components_,
        max(1, parallel_analysis(Subspace.from_rows(X)).n_components),
        max(1, by_permutations(rng, X)),
        FederatedPCA.from_subspaces(sites, "mle").n_components_,
        PCA("mle").fit(X).n_components_,
        FederatedPCA.from_subspaces(sites, "held-out").n_components_,
    )


def by_permutations(rng, X, n_draws=99, level=0.05):
    """Components whose variances exceed those of permuted columns (Buja and Eyuboglu 1992)."""
    at = round((1 - level) * (n_draws + 1)) - 1
    draws = [variances(rng.permuted(X, axis=0)) for _ in range(n_draws)]
    return int(np.argmin(np.append(variances(X) > np.sort(draws, axis=0)[at], False)))


def variances(X):
    return np.linalg.eigvalsh(np.cov(X.T))[::-1]


def main(quick=False):
    table("how_many", ranks(10 if quick else 100))
