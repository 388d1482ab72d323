"""Components above the noise of a release: how many are named, rightly and wrongly."""

import math

import numpy as np
import pytest

from fedpca_sklearn import AnalyzeGauss, FederatedPCA, PrivacyNoiseWarning, make_spiked
from fedpca_sklearn.privacy._noise_warning import edge, fluctuating
from fedpca_sklearn.privacy._rows import ClippedRows

pytestmark = pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning")
DRAWS = 200


class OfScatter:
    """Rows of which only the second moment is known, and a sum of zero."""

    def __init__(self, scatter):
        self._scatter = scatter

    def products(self, columns):
        return self._scatter[:, columns].copy()

    def sum(self):
        return np.zeros(len(self._scatter))


def counted(variances, rng, monkeypatch, n_clients=1, n=1000, row_norm=1.0):
    """Share of the true span in each component, and the number above noise.

    ``variances`` are those of the second moment in units of sigma sqrt(d), at which the first
    eigenvalue leaves the noise.
    """
    d = len(variances)
    mechanism = AnalyzeGauss(1.0, 1e-5, row_norm)
    terms = mechanism.terms(np.empty((0, d)), mechanism.costs(d, 1))
    unit = terms.product_std * math.sqrt(d / 2)
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    scatter = (basis * np.asarray(variances) * unit) @ basis.T
    monkeypatch.setattr(ClippedRows, "of", lambda *_: _with_rows(OfScatter(scatter), n))
    model = FederatedPCA(
        mechanism=mechanism, n_clients=n_clients, random_state=int(rng.integers(2**31))
    ).fit(np.zeros((n_clients * n, d)))
    k = int(np.sum(np.asarray(variances) > np.median(variances) * (1 + 1e-9)))
    return np.linalg.norm(model.components_ @ basis[:, :k], axis=1), k, model


def _with_rows(rows, n):
    rows.n_rows = n
    return rows


def rates(make, draws, monkeypatch, seed=0, n_clients=1):
    """Shares of draws that name a false component, and of true components that are named."""
    rng = np.random.default_rng(seed)
    false = named = true = 0
    for _ in range(draws):
        cosines, k, model = counted(make(rng), rng, monkeypatch, n_clients)
        above = model.n_components_above_noise_
        false += bool(np.any(cosines[:above] < 0.3))
        is_true = cosines[:k] > 0.7
        true += int(is_true.sum())
        named += int(is_true[:above].sum())
    return false / draws, named / true if true else 1.0


def spikes(d, most, level=0.0):
    """Function that draws up to three variances, weak and strong ones, over equal others."""

    def make(rng):
        k = int(rng.integers(1, 4))
        strengths = np.sort(rng.uniform(0.3, most, k))[::-1]
        return np.r_[strengths, np.zeros(d - k)] + level

    return make


@pytest.mark.parametrize("d", [20, 50, 200])
@pytest.mark.parametrize("level", [0.0, 5.0])
def test_few_false_components_are_named_and_most_true_ones(d, level, monkeypatch):
    false, found = rates(spikes(d, 10.0, level), DRAWS, monkeypatch)
    assert false <= 0.05
    assert found >= 0.9


@pytest.mark.parametrize("d", [20, 100])
@pytest.mark.parametrize("n_clients", [1, 4])
def test_of_noise_alone_nothing_is_named(d, n_clients, monkeypatch):
    rng, named = np.random.default_rng(1), 0
    for _ in range(DRAWS):
        model = counted(np.zeros(d), rng, monkeypatch, n_clients)[2]
        named += model.n_components_above_noise_ > 0
    # one in twenty, and three standard deviations of so many draws
    assert named / DRAWS <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / DRAWS)


@pytest.mark.parametrize("n_clients", [2, 8])
@pytest.mark.parametrize("level", [0.0, 1.5, 5.0])
def test_components_of_clients_with_noise_each(n_clients, level, monkeypatch):
    """The bound of a sum of releases is up to a quarter too large, so that fewer are named."""
    false, found = rates(spikes(50, 10.0, level), 60, monkeypatch, n_clients=n_clients)
    assert false <= 0.05
    assert found >= 0.85


def test_the_edge_is_that_of_symmetric_noise():
    """Wigner's semicircle ends at 2 sigma sqrt(d), and its largest eigenvalue exceeds the bound
    in one of twenty draws, of which 400 have a standard deviation of .011.
    """
    rng, d, beyond = np.random.default_rng(0), 40, 0
    for _ in range(400):
        G = rng.standard_normal((d, d))
        G = (G + G.T) / math.sqrt(2)
        beyond += np.linalg.eigvalsh(G)[-1] > fluctuating(edge(1.0, d), d)
    assert abs(beyond / 400 - 0.05) < 0.035


def spiked(n=20_000, d=60):
    return make_spiked(n, d, spikes=[30.0, 20.0], random_state=0)[0]


def test_as_many_components_as_are_above_noise():
    X = spiked()
    private = AnalyzeGauss(1.0, 1e-5, row_norm=12.0)
    model = FederatedPCA("above_noise", mechanism=private, n_clients=1, random_state=0).fit(X)
    assert model.n_components_ == model.n_components_above_noise_ == 2
    assert model.components_.shape == (2, 60)
    asked = FederatedPCA(2, mechanism=private, n_clients=1, random_state=0).fit(X)
    np.testing.assert_allclose(model.components_, asked.components_)
    model.set_params(mechanism=AnalyzeGauss(1e-3, 1e-5, row_norm=12.0)).fit(X)
    assert (model.n_components_above_noise_, model.n_components_) == (0, 1)


def test_a_warning_names_the_components_beyond():
    private = AnalyzeGauss(1.0, 1e-5, row_norm=12.0)
    model = FederatedPCA(5, mechanism=private, n_clients=1, random_state=0)
    with pytest.warns(PrivacyNoiseWarning, match="Components 3 to 5 of 5 cannot be told"):
        model.fit(spiked())


@pytest.mark.filterwarnings("error::fedpca_sklearn.PrivacyNoiseWarning")
def test_no_warning_where_all_are_above_or_all_are_asked_for():
    for n_components in (2, None, "above_noise"):
        private = AnalyzeGauss(1.0, 1e-5, row_norm=12.0)
        FederatedPCA(n_components, mechanism=private, n_clients=1, random_state=0).fit(spiked())


@pytest.mark.parametrize("trust", ["client", "sum"])
def test_batches_and_clients(trust):
    X = spiked()
    private = AnalyzeGauss(1.5, 1e-5, row_norm=12.0, n_releases=2, trust=trust)
    model = FederatedPCA("above_noise", mechanism=private, n_clients=2, random_state=0)
    model.partial_fit(X[:10_000]).partial_fit(X[10_000:])
    assert model.n_components_above_noise_ == model.n_components_ == 2


def test_without_noise_all_directions_are_above_it():
    private = AnalyzeGauss(math.inf, 1e-5, row_norm=12.0)
    model = FederatedPCA(mechanism=private).fit(spiked(500, 8))
    assert model.n_components_above_noise_ == 8


def test_the_rule_needs_a_mechanism():
    with pytest.raises(ValueError, match="needs a mechanism, whose noise it is"):
        FederatedPCA("above_noise").fit(spiked(100, 8))
