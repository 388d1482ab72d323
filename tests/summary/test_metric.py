"""Cuts of directions in the metric of the adjusted rows: against numpy on all rows."""

import numpy as np
import pytest

from fedpca_sklearn import FederatedPCA, StreamingPCA, excess_error, make_power_law

# Excess error above the exact dimension: rows a batch (None: ten sites), whether confounders are
# taken out, columns scaled, and the first fifth of the rows in other units. At most twice what a
# change of units at the beginning and the end of each call left.
ERRORS = [
    (40, False, True, False, 5.7e-6),
    (40, False, True, True, 8.3e-5),
    (40, True, True, False, 8.7e-6),
    (40, True, True, True, 1.7e-5),
    (40, True, False, False, 1.9e-5),
    (40, True, False, True, 1.0e-5),
    (200, False, True, False, 3.9e-6),
    (200, False, True, True, 1.1e-5),
    (200, True, True, False, 5.0e-6),
    (200, True, True, True, 1.2e-5),
    (200, True, False, False, 1.4e-5),
    (200, True, False, True, 7.5e-6),
    (1000, False, True, False, 3.2e-5),
    (1000, False, True, True, 3.3e-5),
    (1000, True, True, False, 1.5e-6),
    (1000, True, True, True, 2.5e-6),
    (1000, True, False, False, 5.3e-6),
    (1000, True, False, True, 1.7e-9),
    (None, False, True, False, 3.3e-6),
    (None, False, True, True, 3.2e-5),
    (None, True, True, False, 4.1e-6),
    (None, True, True, True, 2.4e-5),
    (None, True, False, False, 7.4e-6),
    (None, True, False, True, 6.4e-6),
]
CONFOUNDERS = [3, 77]


def rows_of(seed, in_other_units, n=2000, d=500):
    rng = np.random.default_rng(seed)
    X = make_power_law(n, d, alpha=1.0, random_state=seed) + 0.3
    X *= 10.0 ** rng.uniform(-2, 2, d)
    if in_other_units:
        X[: n // 5] *= 10.0 ** rng.uniform(-2, 2, d)
    return X


def adjusted_rows(X, confounders, scale):
    """Residuals of least squares by an orthonormal basis of the confounders, twice; scaled."""
    Z = X - X.mean(axis=0)
    if confounders is not None:
        Q = np.linalg.qr(Z[:, confounders] / Z[:, confounders].std(axis=0))[0]
        Z = np.delete(Z, confounders, axis=1)
        for _ in range(2):
            Z -= Q @ (Q.T @ Z)
    return Z / Z.std(axis=0) if scale else Z


@pytest.mark.parametrize(("batch", "regressed", "scale", "in_other_units", "error"), ERRORS)
def test_a_cut_is_that_of_the_adjusted_rows(batch, regressed, scale, in_other_units, error):
    found = []
    confounders = CONFOUNDERS if regressed else None
    options = {"scale": scale, "partial_out": confounders}
    for seed in range(3):
        X = rows_of(seed, in_other_units)
        if batch is None:
            pca = FederatedPCA(3, **options).fit(X, clients=np.arange(len(X)) // 200)
        else:
            pca = StreamingPCA(3, **options)
            for i in range(0, len(X), batch):
                pca.partial_fit(X[i : i + batch])
        assert len(pca.subspace_.components) < 500
        found.append(excess_error(adjusted_rows(X, confounders, scale), pca.components_))
    assert np.mean(found) < 2 * error
