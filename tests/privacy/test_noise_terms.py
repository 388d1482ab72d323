"""Terms of the noise that components are compared with, and what a fit makes of them.

They are read from the ratio that its warning names, and from how many true components it names.
"""

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from fedpca_sklearn import (
    AnalyzeGauss,
    FederatedPCA,
    FederatedScaler,
    ModSuLQ,
    StreamingModSuLQ,
    Subspace,
)
from fedpca_sklearn.federated._private import _spikes_of_means, show_above_noise
from fedpca_sklearn.privacy import PrivateCenter, ScalerNoise
from fedpca_sklearn.privacy._above_noise import spike_of_mean, without_noise_of_mean
from fedpca_sklearn.privacy._gaussian import mu_of
from fedpca_sklearn.privacy._mechanism import Costs, Terms
from fedpca_sklearn.privacy._rows import ClippedRows

D = 20


def symmetric(rng):
    """Noise with entries of deviation 1 off the diagonal."""
    G = rng.standard_normal((D, D))
    return (G + G.T) / math.sqrt(2)


# ------------------------------------------------------------------ each term


@pytest.mark.parametrize("along", [False, True])
def test_a_row_along_a_mean_has_no_more_noise_than_others_or_has_a_component(along):
    """The mean has ten times the noise; a product with it is kept where rows vary along it."""
    n, u, v = 5000, 8 * np.eye(D)[0], np.eye(D)[1]
    C = 1e5 * np.outer(u / 8 + v, u / 8 + v) * along + 300 * np.outer(v, v)
    before, found, errors = [], [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        mean = u + 10 / (8 * n) * rng.standard_normal(D)
        M = C + n * np.outer(u, u) + symmetric(rng)
        moment, moved = without_noise_of_mean(M, mean, n, 1.0, 10 / (8 * n))
        assert_allclose(moment + n * np.outer(moved, moved), M, atol=1e-8)  # nothing of M is lost
        before.append(np.linalg.norm((M - n * np.outer(mean, mean) - C)[0, 2:]))
        found.append(np.linalg.norm((moment - C)[0, 2:]))
        errors.append(np.abs(moment - C)[:2, :2].max())
    assert np.mean(before) > 9 * math.sqrt(D - 2)
    # a row that is kept has up to sqrt(3) times the noise, and that of the eigenvector within
    assert np.mean(found) < (3 if along else 1.5) * math.sqrt(D - 2)
    assert not along or max(errors) < 100


@pytest.mark.parametrize("level", [1.0, 500.0])
def test_a_private_centre_is_as_far_from_the_mean_as_is_stated_at_most(level):
    """Far from the origin each round comes nearer, and the last one is not the end."""
    mechanism, n = AnalyzeGauss(1.0, 1e-5, row_norm=5.0, center="private"), [5000, 2500]
    X = np.random.default_rng(0).standard_normal((n[0], D)) + level
    sites = [Subspace.empty(D)._replace(mean=np.full(D, level), n_samples=rows) for rows in n]
    pca = SimpleNamespace(mean_=np.full(D, level), mechanism=mechanism)
    terms = Terms(5.0, None, Costs(1.0, 1.0))
    stated = _spikes_of_means(pca, terms, sites, 1 / spike_of_mean(1.0, 1.0, D), 1)
    for rows, distance in zip(n, stated, strict=True):
        found = []
        for seed in range(8):
            rng = np.random.default_rng(seed)
            point, _ = PrivateCenter().found(X[:rows], mechanism, mechanism.budget(), rng)
            found.append(np.linalg.norm(ClippedRows.of(X[:rows], point, 5.0).sum()) / rows)
        assert distance > max(found)
        assert distance / np.median(found) < 2.9


@pytest.mark.parametrize(("trust", "sources", "few"), [("client", 3, 180), ("sum", 1, 104)])
def test_variances_below_three_deviations_of_all_noise_are_raised_to_these(trust, sources, few):
    """Few entries are 1.5, and are cut to 2, of which lengths there are 1, 1.4, 2, 2.8 and 4."""
    X = np.zeros((4000, 3))
    X[:few] = np.where(np.arange(few) % 2, 1.5, -1.5)[:, None]
    rows = np.random.default_rng(0).permutation(X)
    mechanism = ScalerNoise(1.0, 1e-5, trust=trust, bounds=(1.0, 4.0))
    scaler = FederatedScaler(mechanism=mechanism, n_clients=3, random_state=0).fit(rows)
    # half of the last round's .7 of the budget is for sums that 3 columns move by 2 sqrt(3)
    std = 2 * math.sqrt(3) / (mu_of(1.0, 1e-5) * math.sqrt(0.7 / 2)) * math.sqrt(sources)
    assert few / 4000 * 1.5**2 < 2**2 * 3 * std / 4000
    known = scaler.var_ > 0  # where counts tell entries from noise
    assert_allclose(scaler.var_[known].min(), 2**2 * 3 * std / 4000)


# ------------------------------------------------------------------ what a fit makes of them


def ratio_named(mechanism, summaries, terms, n_sources=1, n_calls=1):
    """The largest eigenvalue over that of noise, of two digits."""
    pca = FederatedPCA.from_subspaces(summaries, 1)
    pca.set_params(mechanism=mechanism)
    message = show_above_noise(pca, terms, n_sources, n_calls)
    return float(re.search(r"noise alone, is ([\d.e-]+)\.", message)[1])


def summary_of(square, mean, n, rank=1):
    s = np.full(rank, math.sqrt(square))
    return Subspace(np.eye(D)[:rank], s, mean, n, float(s @ s))


@pytest.mark.parametrize(
    ("kind", "off_diagonal"),
    [(AnalyzeGauss, math.sqrt(0.5)), (ModSuLQ, 1.0), (StreamingModSuLQ, 1.0)],
)
@pytest.mark.parametrize("n_sources", [1, 4])
@pytest.mark.parametrize("far", [0.0, 3.0])
def test_a_warning_names_the_ratio_to_the_edge_of_the_releases_noise(
    kind, off_diagonal, n_sources, far
):
    """Deviations are sqrt(2 / cost) R^2 of the second moment and 2 R / sqrt(cost) of the sum."""
    R, n, costs = 5.0, 1000, Costs(0.02, 0.01)
    w = off_diagonal * math.sqrt(2 / 0.02) * R**2 * math.sqrt(D * n_sources)
    t = 2 * R / math.sqrt(0.01) * math.sqrt(n_sources)
    x = far * t * (math.sqrt(D) + 2.3)
    taken_off = kind is not StreamingModSuLQ  # where the mean is far beyond its noise
    expected = 2 * w if taken_off or x < w else x + w**2 / x
    mean = np.zeros(D)
    mean[1] = math.sqrt(far**2 + D * (t / n) ** 2)  # with its noise
    mechanism = kind(1.0, 1e-5, R)
    for share in (0.15, 0.6):
        named = ratio_named(
            mechanism, [summary_of(share * expected, mean, n)], Terms(R, None, costs), n_sources
        )
        assert_allclose(named, share, atol=0.006)


def test_a_warning_counts_what_adds_up_along_a_mean_of_many():
    """Half of each spike x is left along the mean, and noise beside it."""
    R, n, costs = 5.0, 10**9, Costs(0.02, 0.01)
    w = math.sqrt(2 / 0.02) * R**2 * math.sqrt(D)
    x = 3 * 2 * R / math.sqrt(0.01) * (math.sqrt(D) + 2.3)
    b, r = 4 / (3 * math.pi) * w, math.hypot(w, x) / 2
    more = 10 * (math.hypot(b, x / 2) - b)
    expected = 10 * b + more + 10 * r**2 / more
    summaries = [summary_of(0.05 * expected, 3 * np.eye(D)[1], n)] * 10
    named = ratio_named(StreamingModSuLQ(1.0, 1e-5, R), summaries, Terms(R, None, costs))
    assert_allclose(named, 0.5, atol=0.006)


@pytest.mark.parametrize("n_calls", [1, 2])
def test_a_warning_counts_the_noise_between_means(n_calls):
    """Of equal eigenvalues v of two releases 2 v are found, v more than one of them has."""
    n, R, cost = 500, 1e3, 0.01
    t = 2 * R / math.sqrt(cost)
    of_means = (t * (math.sqrt(D) + 1)) ** 2 / n
    v, m = 0.7 * of_means, np.zeros(D)
    summaries = [summary_of(v, m, n, D)] * 2 if n_calls == 1 else [summary_of(2 * v, m, 2 * n, D)]
    mechanism, terms = AnalyzeGauss(1.0, 1e-5, R), Terms(R, None, Costs(1e20, cost))
    named = ratio_named(mechanism, summaries, terms, n_calls=n_calls)
    assert_allclose(named, 2 * v / (v + of_means), atol=0.006)


def released(mechanism, rng, n_rows, means, variances):
    """Releases of clients with such rows, and a basis of the directions in which all vary.

    ``variances`` are those of the second moment in units of sigma sqrt(d), at which the first
    eigenvalue leaves the noise.
    """
    d = len(variances)
    terms = mechanism.terms(np.empty((0, d)), mechanism.costs(d, 1))
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    scatter = (basis * variances * terms.product_std * math.sqrt(d / 2)) @ basis.T
    summaries, total = [], np.zeros((d, d))
    middle = n_rows @ means / n_rows.sum()
    for n, mean in zip(n_rows, means, strict=True):
        C = scatter * n / n_rows.mean()
        total += C + n * np.outer(mean - middle, mean - middle)
        M = C + n * np.outer(mean, mean)
        M += mechanism._noise((d, d), terms.product_std, rng)
        noisy = n * mean + terms.mean_std * rng.standard_normal(d)
        summaries.append(mechanism.summary(iter([M]), noisy, n, terms, None, np.float64))
    values, V = np.linalg.eigh(total)
    return summaries, terms, V[:, values > values[0] + 1e-6 * values[-1]]


def above_of(n_rows, distance, options, draws=200):
    """Fits that name a false component, true ones named, and those that no false one is before."""
    false = named = true = 0
    n_rows, share, d = np.array(n_rows), options.get("share"), options.get("d", D)
    mechanism = options.get("kind", AnalyzeGauss)(1.0, 1e-5, 10.0, mean_share=share)
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        variances = np.full(d, options.get("level", 0.0))
        if options.get("varies", True):
            k = int(rng.integers(1, 4))
            variances[:k] += rng.uniform(0.3, 10.0, k)
        means = rng.standard_normal((len(n_rows), d))
        if not options.get("unlike"):
            means[:] = means[0]
        means *= distance / np.linalg.norm(means, axis=1, keepdims=True)
        summaries, terms, basis = released(mechanism, rng, n_rows, means, variances)
        model = FederatedPCA.from_subspaces(summaries).set_params(mechanism=mechanism)
        show_above_noise(model, terms, 1)
        above = model.n_components_above_noise_
        cosines = np.linalg.norm(model.components_ @ basis, axis=1)
        false += bool(np.any(cosines[:above] < 0.3))
        first = int(np.argmax(np.r_[cosines < 0.3, True]))
        true += int(np.sum(cosines[:first] > 0.7))
        named += int(np.sum(cosines[: min(above, first)] > 0.7))
    return false / draws, named, true


@pytest.mark.parametrize(
    ("n_rows", "distance", "options", "least"),
    [
        ([5000] * 4, 8, {}, 0.9),
        pytest.param([5000] * 10, 8, {"unlike": True}, 0.9, marks=pytest.mark.slow),
        pytest.param([5000] * 10, 3, {}, 0.9, marks=pytest.mark.slow),
        pytest.param([5000] * 4, 8, {"level": 2.0}, 0.9, marks=pytest.mark.slow),
        ([5000] * 4, 0.01, {"level": 3.0}, 0.93),
        pytest.param([300] * 8, 8, {}, 0.9, marks=pytest.mark.slow),
        ([5000, 100], 8, {}, 0.75),
        pytest.param([5000] * 4, 8, {"share": 0.02}, 0.9, marks=pytest.mark.slow),
        ([5000], 8, {"share": 0.02}, 0.9),
        ([5000], 0.01, {"d": 50}, 0.9),
        pytest.param([5000], 0.01, {"d": 50, "level": 5.0}, 0.9, marks=pytest.mark.slow),
        pytest.param([5000] * 8, 0.01, {"d": 50, "level": 1.5}, 0.85, marks=pytest.mark.slow),
        ([5000], 0.01, {"d": 60, "varies": False}, 0),
        pytest.param([5000] * 10, 8, {"varies": False}, 0, marks=pytest.mark.slow),
        ([100] * 8, 0.01, {"varies": False}, 0),
        ([5000] * 4, 8, {"kind": StreamingModSuLQ}, 0.9),  # singular values are never negative
        ([5000] * 3 + [100], 8, {"varies": False}, 0),
    ],
)
def test_of_clients_about_far_means_few_false_components_are_named_and_most_true_ones(
    n_rows, distance, options, least
):
    false, named, true = above_of(n_rows, distance, options)
    assert false <= 0.05
    assert named >= least * true
    assert true > 300 or not least
