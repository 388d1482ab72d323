"""The warning that a release is noise: it comes where nothing is left, and only there.

The oracle is the overlap of the first component with that of the rows without noise.
"""

import warnings

import numpy as np
import pytest

from fedpca_sklearn import (
    AnalyzeGauss,
    FederatedPCA,
    FederatedPowerPCA,
    FedPowerNoise,
    ModSuLQ,
    PrivacyNoiseWarning,
    StreamingModSuLQ,
)
from fedpca_sklearn.privacy._noise_warning import edge, edge_of_sum


def power_law(n, d, alpha, seed=0):
    """Rows of norm 1 at most, and the first principal direction."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    X = (rng.standard_normal((n, d)) * np.arange(1.0, d + 1) ** -alpha) @ basis
    return X / np.linalg.norm(X, axis=1).max(), basis[0]


def model_of(mechanism, seed=0, **options):
    if isinstance(mechanism, FedPowerNoise):
        return FederatedPowerPCA(3, n_rounds=3, mechanism=mechanism, random_state=seed, **options)
    return FederatedPCA(3, mechanism=mechanism, random_state=seed, **options)


def warned(model, X):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X)
    assert {w.category for w in caught} <= {PrivacyNoiseWarning}
    return bool(caught)


EVERY = [AnalyzeGauss, ModSuLQ, StreamingModSuLQ, FedPowerNoise]


@pytest.mark.parametrize("trust", ["client", "sum"])
@pytest.mark.parametrize("n_clients", [1, 5])
@pytest.mark.parametrize("kind", EVERY)
def test_225_rows_of_31_columns_at_epsilon_1_are_noise(kind, n_clients, trust):
    X, first = power_law(225, 31, 0.1)
    hits = []
    for seed in range(4):
        model = model_of(kind(1.0, 1e-5, 1.0, trust=trust), seed, n_clients=n_clients)
        hits.append(warned(model, X))
        assert abs(model.components_[0] @ first) < 0.75
    assert np.mean(hits) >= 0.75


@pytest.mark.parametrize("trust", ["client", "sum"])
@pytest.mark.parametrize("n_clients", [1, 5])
@pytest.mark.parametrize("kind", [AnalyzeGauss, FedPowerNoise])
@pytest.mark.parametrize("mean", ["private", "fixed"])
def test_useful_releases_do_not_warn(kind, n_clients, trust, mean):
    X, first = power_law(5000, 20, 1.0)
    for seed in range(3):
        model = model_of(kind(4.0, 1e-5, 1.0, trust=trust, mean=mean), seed, n_clients=n_clients)
        assert not warned(model, X)
        assert abs(model.components_[0] @ first) > 0.9


@pytest.mark.parametrize("kind", EVERY)
def test_no_noise_and_no_rows_to_speak_of(kind):
    assert not warned(model_of(kind(float("inf"), 1e-5, 1.0)), power_law(30, 8, 0.0)[0])
    assert warned(model_of(kind(1.0, 1e-5, 1.0, mean="fixed"), n_clients=1), np.zeros((30, 8)))


@pytest.mark.parametrize("kind", [AnalyzeGauss, FedPowerNoise])
def test_the_warning_names_the_ratio_and_loses_no_result(kind):
    X, _ = power_law(225, 31, 0.3)
    model = model_of(kind(0.3, 1e-5, 1.0))
    with pytest.raises(PrivacyNoiseWarning, match=r"signal-to-noise ratio, .* is (0\.\d+|1\.?0?)"):
        model.fit(X)  # pytest turns warnings into errors
    assert model.components_.shape == (3, 31)
    assert abs(model.privacy_spent_.epsilon - 0.3) < 1e-9


def test_edges_are_those_of_simulated_noise():
    rng = np.random.default_rng(0)
    d, ratios = 60, {}
    for n_matrices in (1, 3, 12):
        total, spectra = np.zeros((d, d)), []
        for _ in range(n_matrices):
            G = rng.standard_normal((d, d))
            values, V = np.linalg.eigh((G + G.T) / np.sqrt(2))  # entries of 1 off the diagonal
            values = np.maximum(values, 0)
            total += (V * values) @ V.T
            spectra.append(values)
        largest = np.linalg.eigvalsh(total)[-1]
        ratios[n_matrices] = largest / edge_of_sum(edge(1.0, d), spectra, d)
    assert all(0.8 < ratio < 1 + d ** (-2 / 3) / 2 for ratio in ratios.values())
    u = np.eye(d)[0] * 30
    G = rng.standard_normal((d, d))
    spiked = np.linalg.eigvalsh((G + G.T) / np.sqrt(2) + np.outer(u, u) / 30)[-1]
    assert abs(spiked / edge(1.0, d, 30.0) - 1) < 0.1
    assert edge(0.0, 5) == 0.0
