"""A few leading eigenpairs of scatter matrices, by the two routes to them and by ARPACK.

`eigh_top` tries ARPACK first, asks Cholesky's method whether a pair was missed, and takes LAPACK's
reduction to tridiagonal form where the space does not suffice. Scatter matrices of rows whose
variances follow a power law; alpha = 0 is white noise, for which the try may be lost. "sine" is
that of the largest angle to the directions that LAPACK finds. The least of several times.
"""

from functools import partial

import numpy as np
import scipy.linalg
import scipy.sparse.linalg

from benchmarks._tools import interleaved, table
from fedpca_sklearn import make_power_law
from fedpca_sklearn._kernels.linalg import eigh_top

# Order and number of pairs.
SHAPES = [(300, 5), (500, 15), (784, 50), (1_000, 20), (2_000, 20), (2_000, 100)]
ALPHAS = [2.0, 1.0, 0.5, 0.0]


def main(quick=False):
    rows = []
    for d, k in SHAPES[:2] if quick else SHAPES:
        for alpha in ALPHAS:
            X = make_power_law(4 * d, d, alpha=alpha, random_state=0)
            G = np.asfortranarray(X.T @ X)
            few = [d - k, d - 1]
            start = np.random.default_rng(0).standard_normal(d)
            calls = {
                "eigh_top": partial(eigh_top, G, k),
                "LAPACK": partial(scipy.linalg.eigh, G, subset_by_index=few, check_finite=False),
                "ARPACK": partial(scipy.sparse.linalg.eigsh, G, k, v0=start),
            }
            seconds, found = interleaved(calls, 2 if quick or d == 2_000 else 9)
            V, W = found["eigh_top"][1], found["LAPACK"][1]
            times = {f"{name}, ms": 1e3 * least for name, (_, least) in seconds.items()}
            ratio = seconds["eigh_top"][1] / seconds["LAPACK"][1]
            sine = float(np.linalg.norm(V - W @ (W.T @ V), 2))
            row = {"order": d, "pairs": k, "alpha": alpha, **times}
            rows.append(row | {"of LAPACK's": ratio, "sine": sine})
    table("eigenpairs", rows)
