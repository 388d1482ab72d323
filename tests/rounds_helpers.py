"""Data and oracles of several test files."""

import numpy as np
from helpers import sine
from hypothesis import settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn.decomposition import PCA

from fedpca_sklearn import FederatedPowerPCA, PerfectChannel

examples = settings(max_examples=30, derandomize=True, deadline=None, database=None)

seeds = st.integers(0, 2**31 - 1)

nan = np.nan

MARGIN = 5  # standard deviations

# rounds enough for the exact subspace, at the gaps of these tests
EXACT = {
    "power": {"n_rounds": 1000, "tol": 1e-11, "acceleration": None},
    "krylov": {"n_rounds": 200, "tol": 1e-11, "acceleration": "krylov"},
}


def rows(n=120, d=8, seed=0, mean=3.0):
    """Rows of which three directions stand out, turned at random."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    scale = np.concatenate([[9, 7, 5], np.linspace(1, 0.3, max(d - 3, 0))])[:d]
    return rng.standard_normal((n, d)) * scale @ Q + mean


def labels(n, k, seed=0):
    """Labels of n rows, each of k at least once where n allows; unequal shares."""
    rng = np.random.default_rng(seed)
    share = rng.dirichlet(np.full(k, 0.5))
    return rng.permutation(np.concatenate([np.arange(k), rng.choice(k, n, p=share)])[:n])


def exact(r=3, method="krylov", **options):
    return FederatedPowerPCA(r, **EXACT[method], random_state=0, **options)


def assert_same(model, other, tol=1e-8):
    """Two fitted models agree: subspace, variances and mean."""
    size = max(np.abs(other.mean_).max(), 1.0)
    largest = max(other.singular_values_[0], 1.0)
    assert sine(model.components_, other.components_) < tol
    assert_allclose(model.singular_values_, other.singular_values_, rtol=tol, atol=tol * largest)
    assert_allclose(model.mean_, other.mean_, rtol=0, atol=tol * size)
    assert_allclose(model.explained_variance_, other.explained_variance_, rtol=tol, atol=tol)
    assert_allclose(model.noise_variance_, other.noise_variance_, rtol=tol, atol=tol)


def assert_equals_pca(model, X, r=3, tol=1e-8):
    pca, (n, d) = PCA(r, svd_solver="full").fit(X), X.shape
    if n < d:  # of which scikit-learn takes the mean of n - r variances
        pca.noise_variance_ *= (n - r) / (d - r)
    assert_same(model, pca, tol)
    assert_allclose(
        model.explained_variance_ratio_, pca.explained_variance_ratio_, rtol=tol, atol=tol
    )
    assert model.n_components_ == pca.n_components_
    assert model.n_samples_ == model.n_samples_seen_ == len(X)


def about_origin(r, n_rounds, **options):
    """FedOA-PM as in theory: no mean, no early stop."""
    options = {"tol": 0.0, "acceleration": None, "n_clients": 1, **options}
    return FederatedPowerPCA(r, n_rounds=n_rounds, center=False, **options)


class Recorder(PerfectChannel):
    """A channel that keeps what passes it, in a list outside the estimator."""

    seen: list = []

    def receive(self, messages, rng):
        messages = [message.copy() for message in messages]
        Recorder.seen.append(messages)
        return super().receive(iter(messages), rng)


def record():
    """What passes a `Recorder` until the test ends."""
    Recorder.seen = []
    yield Recorder.seen
    Recorder.seen = []
