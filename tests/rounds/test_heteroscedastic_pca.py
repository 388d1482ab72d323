"""FederatedHeteroscedasticPCA: expectation maximisation, against the formulas of HePPCAT."""

import warnings

import numpy as np
import pytest
from helpers import random_basis, sine
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal
from sklearn.exceptions import ConvergenceWarning

from fedpca_sklearn import FederatedHeteroscedasticPCA, FederatedPCA, PerfectChannel
from fedpca_sklearn._kernels.row_moments import RowsAtHand
from fedpca_sklearn.rounds import _heteroscedastic_pca
from fedpca_sklearn.rounds._queries import Moments

SIZES, NOISE, SIGNAL, D = (60, 150, 90), (1.0, 16.0, 4.0), np.array([30.0, 16.0, 9.0]), 20


def sites(seed=0, noise=NOISE, mean=5.0):
    rng = np.random.default_rng(seed)
    V = random_basis(rng, 3, D)
    rows = [
        mean
        + rng.standard_normal((n, 3)) * np.sqrt(SIGNAL) @ V
        + np.sqrt(v) * rng.standard_normal((n, D))
        for n, v in zip(SIZES, noise, strict=True)
    ]
    return np.concatenate(rows), np.repeat(["a", "b", "c"], SIZES), V


def fitted(n_rounds, X, labels, tol=0.0, **parameters):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        pca = FederatedHeteroscedasticPCA(
            3, n_rounds=n_rounds, tol=tol, random_state=0, **parameters
        )
        return pca.fit(X, clients=labels)


def em_step(groups, F, v):
    """HePPCAT, one step for F with all v, then one for each v with the new F, by groups of rows.

    Hong, Gilman, Balzano and Fessler (2021), section IV: rows y = F z + noise, z ~ N(0, I).
    """
    k = F.shape[1]
    left, right = np.zeros_like(F), np.zeros((k, k))
    for Y, noise in zip(groups, v, strict=True):
        M = np.linalg.inv(F.T @ F + noise * np.eye(k))
        Z = Y @ F @ M  # expected scores
        left += Y.T @ Z / noise
        right += Z.T @ Z / noise + len(Y) * M
    F = left @ np.linalg.inv(right)
    new = []
    for Y, noise in zip(groups, v, strict=True):
        M = np.linalg.inv(F.T @ F + noise * np.eye(k))
        Z = Y @ F @ M
        inside = np.trace(F.T @ F @ M) * noise * len(Y)
        new.append((np.sum((Y - Z @ F.T) ** 2) + inside) / (len(Y) * D))
    return F, np.array(new)


def test_each_round_is_the_paper_s_step_on_pooled_rows_and_the_likelihood_never_falls():
    X, labels, _ = sites()
    before = fitted(1, X, labels)
    groups = [X[labels == s] - before.factor_mean_ for s in "abc"]
    for m in range(2, 6):
        after = fitted(m, X, labels)
        F, v = em_step(groups, before.factors_.T, list(before.noise_variances_.values()))
        assert_allclose(after.factors_.T @ after.factors_, F @ F.T, rtol=1e-10, atol=1e-10)
        assert_allclose(list(after.noise_variances_.values()), v, rtol=1e-10)
        before = after
    likelihood = fitted(60, X, labels).log_likelihoods_
    assert len(likelihood) == 60
    assert np.all(np.diff(likelihood) > -1e-9 * abs(likelihood[-1]))


def test_the_likelihood_is_that_of_normal_rows():
    X, labels, _ = sites()
    pca = fitted(4, X, labels)
    S = pca.factors_.T @ pca.factors_
    expected = sum(
        multivariate_normal(pca.factor_mean_, S + v * np.eye(D)).logpdf(X[labels == s]).sum()
        for s, v in pca.noise_variances_.items()
    )
    assert_allclose(pca.log_likelihoods_[-1], expected, rtol=1e-12)


def test_one_group_is_probabilistic_pca():
    X, _, _ = sites()
    pca = FederatedHeteroscedasticPCA(3, n_clients=1, tol=1e-9, random_state=0).fit(X)
    values, vectors = np.linalg.eigh(np.cov(X.T, bias=True))
    left_out = values[:-3].mean()  # Tipping and Bishop (1999): noise, and factors in closed form
    assert_allclose(pca.noise_variances_[0], left_out, rtol=1e-8)
    U = vectors[:, -3:]
    S = U * (values[-3:] - left_out) @ U.T
    assert_allclose(pca.factors_.T @ pca.factors_, S, atol=1e-6 * S.max())


def test_rounds_are_sums_of_few_floats():
    X, labels, _ = sites()
    a = FederatedHeteroscedasticPCA(3, random_state=0).fit(X, clients=labels)
    *rounds, product, last = a.communication_.table[-2 - a.n_iter_ :]
    assert {row["floats_up"] for row in rounds} == {3 * (3 * D + 9 + 1)}
    assert {row["floats_down"] for row in rounds} == {3 * 3 * D}
    assert (product["floats_up"], last["floats_up"]) == (3 * 3 * D, 3 * (6 * 6 + 2))


def test_a_site_with_few_rows_has_the_noise_of_all_and_a_lost_one_keeps_its_own():
    X, labels, V = sites()
    few = np.concatenate([X, 5 + 3 * np.random.default_rng(1).standard_normal((4, D))])
    pca = fitted(50, few, np.r_[labels, ["few"] * 4])
    assert pca.noise_variances_["few"] == pytest.approx(few.var(axis=0).mean(), rel=1e-9)
    assert sine(pca.components_, V) < 0.5
    equal = np.concatenate([X, np.tile(X[0], (30, 1))])  # they vary by nothing, and know nothing
    usual, more = fitted(50, X, labels), fitted(50, equal, np.r_[labels, ["equal"] * 30])
    assert sine(more.components_, V) < 1.5 * sine(usual.components_, V)
    light = FederatedHeteroscedasticPCA(3, tol=1.0, random_state=0)
    light.fit(X, clients=labels, sample_weight=np.full(len(X), 1e-200))  # of no row in all
    assert_allclose([*light.noise_variances_.values()], X.var(axis=0).mean(), rtol=1e-9)
    lost = fitted(50, X, labels, channel=PerfectChannel(dropout=0.3))
    assert sine(lost.components_, V) < 0.5


@pytest.mark.parametrize(
    "X", [np.ones((20, 4)), np.eye(4)[[0, 1] * 10], np.zeros((3, 4)), np.arange(8.0).reshape(2, 4)]
)
def test_rows_without_noise_have_the_components_of_all(X):
    pca = fitted(5, X, None)
    plain = FederatedPCA(3).fit(X)
    assert_allclose(pca.singular_values_, plain.singular_values_, atol=1e-7)
    assert np.isfinite(pca.log_likelihoods_).all()


def test_a_round_without_any_site_changes_nothing():
    X, labels, _ = sites()
    schedule = np.zeros((1000, 3), dtype=bool)
    schedule[-1] = True  # never reached
    plain = fitted(50, X, labels, channel=PerfectChannel(dropout=schedule))
    schedule[plain.communication_.rounds - 2 - plain.n_iter_ // 2] = True
    pca = fitted(51, X, labels, channel=PerfectChannel(dropout=schedule))
    assert_array_equal(pca.log_likelihoods_, plain.log_likelihoods_)
    assert_array_equal(pca.components_, plain.components_)
    assert pca.communication_.rounds == plain.communication_.rounds + 1


def test_sites_that_come_late_to_the_rounds_of_the_start_count_as_all_others():
    X, labels, _ = sites()
    schedule = np.zeros((100, 3), dtype=bool)
    plain = fitted(1, X, labels, channel=PerfectChannel(dropout=schedule))
    schedule[3:13, [0, 2]] = True
    late = fitted(1, X, labels, channel=PerfectChannel(dropout=schedule))
    assert sine(late.components_, plain.components_) < 0.01


def test_too_few_rounds_are_told():
    X, labels, _ = sites()
    with pytest.warns(ConvergenceWarning, match=r"n_rounds=2 .* changed by .* tol=0\.0001"):
        FederatedHeteroscedasticPCA(3, n_rounds=2, random_state=0).fit(X, clients=labels)


@pytest.mark.parametrize("center", [True, False])
def test_rows_count_less_by_their_squares_about_the_mean_or_about_the_origin(center):
    X = np.random.default_rng(0).normal([3, 0, 5, 0], size=(50, 4))
    variance = np.mean((X - X.mean(axis=0) * center) ** 2) / 2.0**2
    found = _heteroscedastic_pca.Weighted(Moments(), 2.0, center, few=3).local(RowsAtHand(X))
    assert_allclose(found, variance**-_heteroscedastic_pca._POWER * np.append(X.sum(axis=0), 50))
    few = _heteroscedastic_pca.Weighted(Moments(), 2.0, center, few=50).local(RowsAtHand(X))
    assert_allclose(few, np.append(X.sum(axis=0), 50))  # with the noise of all
