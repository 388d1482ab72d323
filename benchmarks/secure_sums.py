"""Seconds and bytes of rounds over Flower, with and without secure sums.

A round of `FederatedPowerPCA(10)` is a fifth of what a fit of seven rounds costs beyond one of two;
`FederatedPCA(10)` is a whole fit. Sites of 60 rows and the server work in turn in one process, so
that seconds are those of all sites together; what the network takes comes on top, for each
exchange. The last table is what rounding to integers costs: the sine of the largest angle to PCA
of all rows, in one process, by the bits that are kept.
"""

from itertools import product
from time import process_time

import numpy as np
from sklearn.base import clone
from sklearn.decomposition import PCA

from benchmarks._tools import left_out, table
from fedpca_sklearn import (
    FederatedPCA,
    FederatedPowerPCA,
    FixedPointChannel,
    make_power_law,
    subspace_distance,
)

ROWS = 60
# Sites and features.
SHAPES = (3, 100), (3, 1000), (10, 100), (10, 1000), (64, 100)
ESTIMATORS = (FederatedPowerPCA(10, tol=0, acceleration=None, random_state=0), FederatedPCA(10))


def fitted(estimator, parts, secure):
    """Exchanges, seconds, bytes up and bytes down of a fit."""
    from benchmarks._grid import CountingGrid
    from fedpca_sklearn.engines.flower import client_app, fit_sites

    apps = [client_app(lambda _, rows=rows: rows, estimator, secure=secure) for rows in parts]
    grid, start = CountingGrid(apps), process_time()
    fit_sites(grid, estimator, n_sites=len(parts), wait=0, secure=secure)
    return np.array([grid.exchanges, process_time() - start, grid.bytes_up, grid.bytes_down])


def cost(estimator, parts, secure):
    """What a round costs, or a fit of one round."""
    if not isinstance(estimator, FederatedPowerPCA):
        return fitted(estimator, parts, secure)
    few, many = (clone(estimator).set_params(n_rounds=n) for n in (2, 7))
    return (fitted(many, parts, secure) - fitted(few, parts, secure)) / 5


def costs(shapes):
    """Rows of the table of costs."""
    from fedpca_sklearn.engines.flower import SecureAggregation

    rows = []
    for estimator, (n_sites, d) in product(ESTIMATORS, shapes):
        X = make_power_law(ROWS * n_sites, d, alpha=1.0, random_state=0)
        for secure in (None, SecureAggregation(threshold=2)):
            exchanges, seconds, up, down = cost(estimator, np.split(X, n_sites), secure)
            rows.append(
                {
                    "estimator": type(estimator).__name__,
                    "sites": n_sites,
                    "features": d,
                    "secure": "no" if secure is None else "yes",
                    "exchanges": round(exchanges),
                    "seconds": seconds,
                    "kB up a site": up / n_sites / 1e3,
                    "kB down a site": down / n_sites / 1e3,
                }
            )
    return rows


def rounding():
    """Rows of the table of errors."""
    X = make_power_law(3000, 100, alpha=1.0, random_state=0)
    exact, rows = PCA(10, svd_solver="full").fit(X), []
    for bits in (22, 30, 40, 50, None):
        channel = None if bits is None else FixedPointChannel(bits)
        pca = FederatedPowerPCA(10, tol=1e-9, channel=channel, n_clients=10, random_state=0).fit(X)
        rows.append(
            {
                "bits": "float64" if bits is None else bits,
                "rounds": pca.n_iter_,
                "stopped by": pca.stop_reason_,
                "error": subspace_distance(pca.components_, exact.components_),
            }
        )
    return rows


def main(quick=False):
    try:
        import flwr  # noqa: F401
    except ImportError:
        left_out("Flower", "which is not installed")
    else:
        table("secure_sums", costs(SHAPES[:1] if quick else SHAPES))
    table("secure_sums_rounding", rounding())
