"""Scaling does not depend on the unit of the sample weights."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from fedpca_sklearn import DistributedPCA, FederatedPCA, FederatedScaler, StreamingPCA

MODELS = [
    StreamingPCA(2, scale=True),
    StreamingPCA(2, scale=True, partial_out=[0]),
    StreamingPCA(2, scale=True, block_size=20),
    FederatedPCA(2, scale=True, n_clients=3),
    FederatedPCA(2, scale=True, partial_out=[0], n_clients=3),
    DistributedPCA(2, scale=True, n_clients=3),
    FederatedScaler(n_clients=3),
]


def columns():
    """Rows with a mean, a constant column and one that hardly varies; positive weights."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((90, 6)) * [6, 5, 4, 3, 2, 1e-9] + 3
    X[:, 4] = 1 / 3
    return X, rng.random(90) + 0.1


@pytest.mark.parametrize("unit", [1e-280, 1e-30, 1.0, 1e17, 1e30, 1e300])
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_the_unit_of_the_weights_does_not_matter(model, unit):
    X, weight = columns()
    share = weight / weight.sum()
    mean = share @ X
    deviation = np.sqrt(share @ np.square(X - mean))
    deviation[4] = 1.0
    first = 1 if getattr(model, "partial_out", None) else 0
    model.fit(X, sample_weight=unit * share)
    if first:  # the effect of the confounder is taken off first
        assert_array_equal(model.scale_[3], 1.0)
        alike = type(model)(**model.get_params()).fit(X, sample_weight=90 * share)
        assert_allclose(model.scale_, alike.scale_, rtol=1e-6)
        assert_allclose(np.abs(model.components_), np.abs(alike.components_), atol=1e-6)
        return
    # of values near 3 that vary by 1e-9, seven digits are left
    assert_allclose(model.scale_, deviation, rtol=1e-6)
    if hasattr(model, "components_"):
        Z = (X - mean) / deviation
        Z[:, 4] = 0.0
        V = np.linalg.svd(np.sqrt(share)[:, None] * Z, full_matrices=False)[2][:2]
        assert_allclose(model.components_ @ V.T @ V @ model.components_.T, np.eye(2), atol=1e-6)
