"""Mechanisms at sites: the same distribution as in one process, and the account of the ledgers."""

import json
import os
import secrets

import numpy as np
import pytest
from scipy.stats import ks_2samp
from sklearn.base import clone

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")

from engines.test_flower import InProcessGrid

from fedpca_sklearn import (
    AnalyzeGauss,
    FederatedPCA,
    FederatedPowerPCA,
    FedPowerNoise,
    PrivacyBudgetError,
    PrivacyLedger,
    Subspace,
)
from fedpca_sklearn.engines.flower import SecureAggregation, SitePolicy, client_app, fit_sites
from fedpca_sklearn.privacy import DiscreteGaussian

pytestmark = pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning")
N_RUNS = 120
ROWS = np.random.default_rng(0).standard_normal((60, 3)) * [2.0, 1.0, 0.5] + 0.3
PARTS = {"east": ROWS[:40], "west": ROWS[40:]}
LABELS = np.repeat(list(PARTS), [40, 20])
SUMMARY = FederatedPCA(2, mechanism=AnalyzeGauss(8.0, 1e-3, 4.0))
ROUNDS = FederatedPowerPCA(
    2, n_rounds=1, tol=0.0, mechanism=FedPowerNoise(8.0, 1e-3, 4.0), init=np.eye(3)[:2]
)
STATISTICS = {
    "first variance": lambda pca: pca.explained_variance_[0],
    "loading": lambda pca: abs(pca.components_[0, 0]),
    "mean": lambda pca: pca.mean_[0],
}


@pytest.fixture
def known_noise(monkeypatch):
    """Noise from the operating system, the same in each run of the tests."""
    bits = np.random.default_rng(5).integers(2**63, size=4 * N_RUNS * 8).tolist()
    monkeypatch.setattr(secrets, "randbits", lambda k: bits.pop())


def over_flower(estimator, folder, n_runs=N_RUNS):
    for run in range(n_runs):
        policies = iter(SitePolicy(ledger=folder / f"{run}{site}") for site in PARTS)
        yield fit_sites(grid_with(estimator, policies), estimator, wait=0)


def grid_with(estimator, policies):
    def load(rows):
        return lambda context: rows

    apps = [client_app(load(rows), estimator, policy=next(policies)) for rows in PARTS.values()]
    return InProcessGrid(apps, list(PARTS))


def in_one_process(estimator, n_runs=N_RUNS):
    for run in range(n_runs):
        yield clone(estimator).set_params(random_state=run).fit(ROWS, clients=LABELS)


@pytest.mark.parametrize("estimator", [SUMMARY, ROUNDS], ids=lambda e: type(e).__name__)
def test_noise_over_flower_is_that_of_one_process(estimator, tmp_path, known_noise, monkeypatch):
    """Two samples of 120 fits each; a sample with about a third of the noise is told from them."""
    monkeypatch.setattr(os, "fsync", lambda file: None)  # the disk has no part in this
    there, here = list(over_flower(estimator, tmp_path)), list(in_one_process(estimator))
    other = list(in_one_process(clone(estimator).set_params(mechanism__epsilon=40.0), 100))
    for name, statistic in STATISTICS.items():
        samples = [[statistic(pca) for pca in fits] for fits in (there, here, other)]
        assert ks_2samp(*samples[:2]).pvalue > 1e-3, name  # six comparisons
        assert ks_2samp(samples[0], samples[2]).pvalue < 1e-3, name
    assert {tuple(np.round(pca.privacy_spent_, 9)) for pca in there} == {(8.0, 1e-3)}
    ledgers = [PrivacyLedger(file).spent(1e-3)["this site"] for file in tmp_path.iterdir()]
    assert max(ledgers) == there[0].privacy_spent_


# -------------------------------------------------------------------- files


def test_a_site_that_sends_files_keeps_its_account(tmp_path):
    """What the README's sites do, with a mechanism: no engine, the same ledger after a restart."""
    files = []
    for site, rows in PARTS.items():
        private = AnalyzeGauss(8.0, 1e-3, 4.0, ledger=PrivacyLedger(tmp_path / f"{site}.ledger"))
        fitted = FederatedPCA(2, mechanism=private).fit(rows, clients=[site] * len(rows))
        files.append(tmp_path / f"{site}.subspace")
        fitted.subspace_.save(files[-1], site=site)
    merged = FederatedPCA.from_subspaces([Subspace.load(file) for file in files], 2)
    assert merged.subspace_.privacy[:3] == pytest.approx((8.0, 1e-3, 4.0))
    again = AnalyzeGauss(8.0, 1e-3, 4.0, ledger=PrivacyLedger(tmp_path / "east.ledger"))
    with pytest.raises(PrivacyBudgetError, match="has no budget left in the ledger"):
        FederatedPCA(2, mechanism=again).fit(PARTS["east"], clients=["east"] * 40)


def test_a_merged_model_states_what_sites_promised(tmp_path):
    policies = iter(SitePolicy(ledger=tmp_path / site) for site in PARTS)
    fitted = fit_sites(grid_with(SUMMARY, policies), SUMMARY, wait=0)
    assert fitted.subspace_.privacy[:3] == pytest.approx((8.0, 1e-3, 4.0))
    assert fitted.subspace_.privacy.mechanism == "AnalyzeGauss"
    assert fitted.mechanism.ledger is None


def test_sites_find_norms_and_centres_of_their_own(tmp_path):
    """With so much budget that noise is small, beside one process: norms, mean, components."""
    private = AnalyzeGauss(1e4, 1e-3, "private", center="private")
    estimator = FederatedPCA("above_noise", mechanism=private)
    policies = iter(SitePolicy(ledger=tmp_path / site) for site in PARTS)
    fitted = fit_sites(grid_with(estimator, policies), estimator, wait=0)
    here = clone(estimator).set_params(random_state=0).fit(ROWS, clients=LABELS)
    norm = fitted.subspace_.privacy.row_norm
    assert norm / here.subspace_.privacy.row_norm == pytest.approx(1, rel=0.1)
    assert fitted.n_components_ == fitted.n_components_above_noise_
    assert fitted.mean_ == pytest.approx(here.mean_, abs=0.05)
    assert fitted.privacy_spent_.epsilon == pytest.approx(1e4, rel=1e-6)
    for site in PARTS:
        lines = [json.loads(line) for line in (tmp_path / site).read_text().splitlines()]
        assert [line.get("release") for line in lines] == ["center", "row_norm", None]


def test_secure_sums_have_one_norm_for_all():
    noise = {"trust": "client", "noise": DiscreteGaussian()}
    estimator = FederatedPCA(2, mechanism=AnalyzeGauss(1.0, 1e-3, "private", **noise))
    with pytest.raises(ValueError, match="row_norm must be known in advance"):
        client_app(
            lambda context: ROWS, estimator, secure=SecureAggregation(threshold=2, restarts=0)
        )
