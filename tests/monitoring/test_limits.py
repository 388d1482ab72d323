"""Limits of Q and T2: textbook formulas, and the share of new normal rows that exceeds them.

False alarms are Monte-Carlo means over fits. A fit to n rows has a rate of its own, with a standard
deviation of about .5 % at n = 500, so the mean of 8 fits is off by .2 %; the limits themselves are
asymptotic, and 1 % is what they are to hold.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from sklearn.decomposition import PCA

from fedpca_sklearn import StreamingPCA, Subspace, SubspaceMonitor, merge_subspaces
from fedpca_sklearn.monitoring._limits import (
    completed_spectrum,
    limit_of_q,
    limit_of_t2,
    normal_power,
    surprise_of_q,
    surprise_of_t2,
    variances_of_new_rows,
)


def moments(variances):
    return np.array([np.sum(np.asarray(variances, float) ** power) for power in (1, 2, 3)])


# rows with these variances, after a rotation, which changes nothing: directions are axes
SPECTRA = {
    "spiked": lambda d: np.r_[30, 20, 12, 8, 6, np.ones(d - 5)],
    "power": lambda d: np.arange(1, d + 1) ** -1.0,
    "slow": lambda d: np.arange(1, d + 1) ** -0.5,
    "columns": lambda d: np.r_[50, 40, 30, np.linspace(3, 0.2, d - 3)],
}


def draw(rng, n, variances):
    return rng.standard_normal((n, len(variances))) * np.sqrt(variances) + 2


def test_the_limit_of_q_by_the_formula_of_jackson_and_mudholkar():
    t1, t2, t3 = moments(variances := [5, 3, 2, 1, 1, 0.5])
    h0 = 1 - 2 * t1 * t3 / (3 * t2**2)
    c = stats.norm.ppf(0.95)
    inner = c * np.sqrt(2 * t2 * h0**2) / t1 + 1 + t2 * h0 * (h0 - 1) / t1**2
    assert_allclose(
        limit_of_q(moments(variances), -np.log(0.05)), t1 * inner ** (1 / h0), rtol=1e-12
    )


@pytest.mark.parametrize("surprise", [0.2, 0.7, 3.0, 40.0, 599.0, 650.0, 1100.0])
def test_limits_are_those_of_their_surprise(surprise):
    for variances in (np.ones(17), 0.5 ** np.arange(9), [20, 10, 5, 1], [30.0]):
        m = moments(variances)
        assert_allclose(
            surprise_of_q(limit_of_q(m, surprise), normal_power(m)), surprise, rtol=1e-9
        )
    for k, n in ((1, 12), (3, 200), (40, 1e6)):
        t2 = limit_of_t2(k, n, surprise)
        assert_allclose(surprise_of_t2(t2, k, n), surprise, rtol=1e-6)
    assert_allclose(
        surprise_of_q(np.array(9.0), normal_power(moments(np.ones(4)))),
        -stats.chi2.logsf(9, 4),
        0.01,
    )
    found = surprise_of_t2(np.array([7.0, 1e9]), 1, 30.0)
    factor = (30**2 - 1) / (30 * 29)
    assert_allclose(found[0], -stats.f.logsf(7.0 / factor, 1, 29), rtol=1e-9)
    assert found[1] > found[0]


@pytest.mark.parametrize(
    "variances",
    [np.ones(50), np.ones(1), np.arange(4, 65) ** -1.0, np.r_[30, np.ones(99)], [20, 10, 5, 1]],
)
@pytest.mark.parametrize("level", [0.05, 0.0253])
def test_sums_of_squares_exceed_the_limit_of_q(variances, level):
    squares = np.random.default_rng(0).standard_normal((100_000, len(variances))) ** 2
    found = np.mean(squares @ variances > limit_of_q(moments(variances), -np.log(level)))
    assert 0.88 * level < found < 1.12 * level  # five deviations are .0034 and .0025


@pytest.mark.parametrize(("k", "n"), [(3, 20), (10, 60)])
def test_the_limit_of_t2_is_that_of_estimated_variances(k, n):
    rng, over = np.random.default_rng(0), []
    for _ in range(300):
        X, y = rng.standard_normal((n, k)), rng.standard_normal((200, k))
        y -= X.mean(axis=0)
        t2 = np.einsum("ij,ij->i", y @ np.linalg.inv(np.cov(X.T)), y)
        over.append(np.mean(t2 > limit_of_t2(k, n, -np.log(0.05))))
    assert 0.044 < np.mean(over) < 0.056


def test_new_rows_vary_less_along_what_was_fitted():
    rng = np.random.default_rng(0)
    truth = SPECTRA["spiked"](100)
    for k, tolerance in (3, 0.02), (12, 0.06):  # five of twelve are directions of the noise
        new, old, found = np.zeros(k), np.zeros(k), np.zeros(k)
        for _ in range(10):
            X = draw(rng, 300, truth)
            _, s, V = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
            new += V[:k] ** 2 @ truth
            old += s[:k] ** 2 / 299
            found += variances_of_new_rows(s**2 / 299, k, 299)
        assert abs(found.sum() / new.sum() - 1) < tolerance
        assert old.sum() / new.sum() - 1 > tolerance


@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize(("d", "k"), [(12, 4), (90, 3), (90, 7), (150, 5)])
@pytest.mark.parametrize("limits", ["chi2", "quantile"])
def test_false_alarms_of_new_rows(limits, spectrum, d, k):
    rng, variances, found = np.random.default_rng(d + k), SPECTRA[spectrum](d), []
    for _ in range(8):
        monitor = SubspaceMonitor(StreamingPCA(k), limits=limits).fit(draw(rng, 500, variances))
        found.append(np.mean(monitor.predict(draw(rng, 4000, variances)) == -1))
    assert 0.04 <= np.mean(found) <= 0.06


@pytest.mark.parametrize("spectrum", ["spiked", "power"])
def test_false_alarms_by_quantiles(spectrum):
    rng, variances, found = np.random.default_rng(1), SPECTRA[spectrum](40), []
    for _ in range(16):  # a quantile of 500 scores has a deviation of 1 %
        monitor = SubspaceMonitor(StreamingPCA(4), limits="quantile")
        X = draw(rng, 500, variances) * rng.gamma(3, size=(500, 1))  # far from normal
        Y = draw(rng, 4000, variances) * rng.gamma(3, size=(4000, 1))
        found.append(np.mean(monitor.fit(X).predict(Y) == -1))
    assert 0.04 <= np.mean(found) <= 0.06


def test_a_coordinator_has_the_limits_of_all_rows():
    rng, variances = np.random.default_rng(2), SPECTRA["slow"](60)
    X, Y = draw(rng, 900, variances), draw(rng, 4000, variances)
    parts = [Subspace.from_rows(X[i::3]) for i in range(3)]
    there = SubspaceMonitor.from_subspace(merge_subspaces(parts), 5)
    here = SubspaceMonitor(StreamingPCA(5), limits="chi2").fit(X)
    assert_allclose(there.q_limit_, here.q_limit_, rtol=1e-8)
    assert_allclose(there.t2_limit_, here.t2_limit_, rtol=1e-8)
    assert_allclose(there.score_samples(Y), here.score_samples(Y), rtol=1e-6)


@pytest.mark.parametrize("spectrum", ["slow", "power"])
def test_directions_that_are_kept_stand_for_those_that_are_not(spectrum):
    rng, variances = np.random.default_rng(3), SPECTRA[spectrum](200)
    X = draw(rng, 2000, variances)
    whole = Subspace.from_rows(X)
    limit = SubspaceMonitor.from_subspace(whole, 8).q_limit_
    some = SubspaceMonitor.from_subspace(whole.truncate(20), 8).q_limit_
    none = SubspaceMonitor.from_subspace(whole.truncate(8), 8).q_limit_
    assert none <= limit  # equal variances have the least squares
    assert_allclose(some, limit, rtol=0.02)
    spectrum = completed_spectrum(whole.truncate(20), 8)
    assert_allclose(spectrum.sum(), whole.total_variance, rtol=1e-9)
    assert (np.diff(spectrum) <= 1e-12).all()


def test_white_noise_needs_no_further_directions():
    rng, variances = np.random.default_rng(4), SPECTRA["spiked"](60)
    X = draw(rng, 5000, variances)
    theirs, ours = (SubspaceMonitor(pca, limits="chi2").fit(X) for pca in (PCA(5), StreamingPCA(5)))
    assert_allclose(theirs.q_limit_, ours.q_limit_, rtol=0.01)
    assert abs(np.mean(theirs.predict(draw(rng, 8000, variances)) == -1) - 0.05) < 0.01
