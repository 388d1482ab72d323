"""The likelihood of rows with missing entries is the marginal one of what is there.

The oracle is scipy's normal density with the rows and columns of `get_covariance` of the entries
that are there; 1e-7 is what its eigenvalues leave of noise that is a millionth of the signal.
"""

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import with_holes
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal
from sklearn.base import clone

from fedpca_sklearn import (
    GROUSE,
    PETRELS,
    FederatedSubspaceTracker,
    RobustSubspaceTracker,
    SubspaceTracker,
)
from fedpca_sklearn._kernels.gaussian_model import GaussianModel

MODELS = [
    GROUSE(3, random_state=0),
    PETRELS(3, random_state=0),
    SubspaceTracker(3),
    RobustSubspaceTracker(3),
    FederatedSubspaceTracker(3, random_state=0),
]
each = pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)


def rows(n, d=12, seed=0):
    rng = np.random.default_rng(seed)
    basis = np.random.default_rng(9).standard_normal((3, d))
    return 7 + rng.standard_normal((n, 3)) * [5, 3, 2] @ basis + 0.5 * rng.standard_normal((n, d))


def marginal(model, X):
    """Log-density of the entries that are there, row by row."""
    S, mean = model.get_covariance().astype(float), model.mean_.astype(float)
    result = np.zeros(len(X))
    for i, x in enumerate(X.astype(float)):
        there = np.flatnonzero(~np.isnan(x))
        if len(there):
            density = multivariate_normal(mean[there], S[np.ix_(there, there)])
            result[i] = density.logpdf(x[there])
    return result


@each
@pytest.mark.parametrize("d", [12, 300])  # one variance of the noise, one for each column
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_likelihood_of_what_is_there(model, d, dtype):
    model = clone(model).fit(with_holes(rows(400, d), 0.05, seed=1).astype(dtype))
    X = with_holes(rows(30, d, seed=2), 0.3).astype(dtype)
    X[:5] = rows(5, d, seed=3)
    X[5, 1:] = X[6, 2:] = X[7] = np.nan  # fewer entries than components, and none
    X[9:12, 4:] = np.nan  # equal patterns
    found, expected = model.score_samples(X), marginal(model, X)
    assert found.shape == (30,)
    assert found[7] == 0
    assert_allclose(found, expected, rtol=1e-7 if dtype == np.float64 else 1e-3)
    assert_allclose(model.score_samples(sp.csr_array(X)), found, rtol=1e-9)
    assert_allclose(model.score_samples(X[8:9]), found[8:9], rtol=1e-12)
    assert_array_equal(model.score_samples(X[:5]), found[:5])  # whole rows as ever


def test_all_directions_need_no_noise():
    X = rows(300, 6) + np.random.default_rng(5).standard_normal((300, 6))
    model = SubspaceTracker(6).fit(X)
    assert model.noise_variance_ == 0
    Y = with_holes(X[:40], 0.4)
    assert_allclose(model.score_samples(Y), marginal(model, Y), rtol=1e-9)


@pytest.mark.parametrize("noise", [1e-2, 1e-8, 1e-12])
def test_little_noise_does_not_cancel(noise):
    # covariance [[1 + v, 1 - v], [1 - v, 1 + v]] of the first two columns; the third has v alone
    V, v = np.array([[1, 1, 0]]) / np.sqrt(2), noise
    model = GaussianModel(V, np.array([2 + v]), v)
    x = np.array([[3.0, np.nan, np.nan], [np.nan, np.nan, 2 * np.sqrt(v)], [1, 1, np.nan]])
    expected = [
        -0.5 * (np.log(2 * np.pi * (1 + v)) + 9 / (1 + v)),
        -0.5 * (np.log(2 * np.pi * v) + 4),
        -0.5 * (2 * np.log(2 * np.pi) + np.log((2 + v) * v) + 2 / (2 + v)),
    ]
    assert_allclose(model.log_density_of_seen(x), expected, rtol=1e-7)


def test_rows_of_the_same_pattern_cost_one_factorisation(monkeypatch):
    calls, cholesky = [], np.linalg.cholesky
    monkeypatch.setattr(np.linalg, "cholesky", lambda A: calls.append(len(A)) or cholesky(A))
    X = rows(500)
    X[::2, 3] = X[1::2, 5] = np.nan
    SubspaceTracker(3).fit(rows(200)).score_samples(X)
    assert sum(calls) == 2
