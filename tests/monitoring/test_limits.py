"""Limits of Q and T2: textbook formulas, and the share of new normal rows that exceeds them.

False alarms are Monte-Carlo means over fits. A fit to n rows has a rate of its own, with a standard
deviation of about .5 % at n = 500, so the mean of 8 fits is off by .2 %; the limits themselves are
asymptotic, and 1 % is what they are to hold.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from sklearn.decomposition import PCA

from fedpca_sklearn import StreamingPCA, Subspace, SubspaceMonitor
from fedpca_sklearn.monitoring._learning import ByScores, DriftTest, Limit, RecentScores, upper
from fedpca_sklearn.monitoring._model import (
    completed_spectrum,
    limit_of_q,
    limit_of_t2,
    moments_of_the_rest,
    normal_power,
    surprise_of_q,
    surprise_of_t2,
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
    t1, t2, t3 = m = moments([5, 3, 2, 1, 1, 0.5])
    h0 = 1 - 2 * t1 * t3 / (3 * t2**2)
    c = stats.norm.ppf(0.95)
    inner = c * np.sqrt(2 * t2 * h0**2) / t1 + 1 + t2 * h0 * (h0 - 1) / t1**2
    assert_allclose(limit_of_q(m, -np.log(0.05)), t1 * inner ** (1 / h0), rtol=1e-12)


@pytest.mark.parametrize("surprise", [0.2, 0.7, 3.0, 40.0, 599.0, 650.0, 1100.0])
def test_limits_are_those_of_their_surprise(surprise):
    spectra = [np.ones(17), 0.5 ** np.arange(9), [20, 10, 5, 1], [30.0]]
    # the last one has an exponent that is not positive
    of_all = np.stack([moments(variances) for variances in (*spectra, np.r_[10, 200 * [0.1]])])
    for m in (of_all, *of_all):
        found = surprise_of_q(limit_of_q(m, surprise), normal_power(m))
        assert_allclose(found, surprise, rtol=1e-9)
    for k, n in ((1, 12), (3, 200), (40, 1e6)):
        found = surprise_of_t2(limit_of_t2(k, n, surprise), k, n)
        assert_allclose(found, surprise, rtol=1e-6)
    of_chi2 = surprise_of_q(np.array(9.0), normal_power(moments(np.ones(4))))
    assert_allclose(of_chi2, -stats.chi2.logsf(9, 4), 0.01)
    near, far = surprise_of_t2(np.array([7.0, 1e9]), 1, 30.0)
    factor = (30**2 - 1) / (30 * 29)
    assert_allclose(near, -stats.f.logsf(7.0 / factor, 1, 29), rtol=1e-9)
    assert far > near


def test_the_squared_distance_of_new_rows_has_the_mean_of_the_f_law_of_tracy_young_and_mason():
    n, d = 25, 5
    X = draw(np.random.default_rng(0), n, np.arange(1.0, 6))
    model = SubspaceMonitor(StreamingPCA(2), limits="chi2").fit(X)._model
    mean = d * (n**2 - 1) / (n * (n - d)) * stats.f.mean(d, n - d)
    assert_allclose(model._moments(np.array([d]))[0, 1, 0], mean)


@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize(("d", "k"), [(12, 4), (90, 7)])
@pytest.mark.parametrize("limits", ["chi2", "quantile"])
def test_false_alarms_of_new_rows(limits, spectrum, d, k):
    rng, variances, found = np.random.default_rng(d + k), SPECTRA[spectrum](d), []
    for _ in range(8):
        monitor = SubspaceMonitor(StreamingPCA(k), limits=limits).fit(draw(rng, 500, variances))
        found.append(np.mean(monitor.predict(draw(rng, 4000, variances)) == -1))
    assert 0.04 <= np.mean(found) <= 0.06


@pytest.mark.parametrize("spectrum", ["slow", "power"])
def test_directions_that_are_kept_stand_for_those_that_are_not(spectrum):
    rng, variances = np.random.default_rng(3), SPECTRA[spectrum](200)
    whole = Subspace.from_rows(draw(rng, 2000, variances))
    limit, some, none = (
        SubspaceMonitor.from_subspace(kept, 8).q_limit_
        for kept in (whole, whole.truncate(20), whole.truncate(8))
    )
    assert none <= limit  # equal variances have the least squares
    assert_allclose(some, limit, rtol=0.02)
    spectrum = completed_spectrum(whole.truncate(20), 8)[0]
    assert_allclose(spectrum.sum(), whole.total_variance, rtol=1e-9)
    assert (np.diff(spectrum) <= 1e-12).all()
    for noise in 1.0, 1e-12:  # white noise needs no further directions, however little it is
        variances = np.r_[SPECTRA["spiked"](5), np.full(55, noise)]
        X, new = draw(rng, 5000, variances), draw(rng, 8000, variances)
        theirs, ours = (SubspaceMonitor(p, limits="chi2").fit(X) for p in (PCA(5), StreamingPCA(5)))
        assert_allclose(theirs.q_limit_, ours.q_limit_, rtol=0.01)
        for monitor in theirs, ours:
            assert abs(np.mean(monitor.predict(new) == -1) - 0.05) < 0.01


# ------------------------------------------------------------------------------ limits by scores


def test_the_drift_test_has_its_false_alarm_rate():
    rng, alarms = np.random.default_rng(0), 0
    for _ in range(1500):  # a limit from 300 rows exceeds its level or not
        rate = rng.beta(0.1 * 301, 0.9 * 301)
        test = DriftTest(50, 0.01).after(rng.random(50) < rate, 0.1, 300)
        alarms += len(test.points)
    assert 0.002 < alarms / 1500 < 0.01 + 3 * np.sqrt(0.01 / 1500)
    shifted = DriftTest(50, 0.01)
    for flag in np.arange(60) % 3 == 0:  # one by one, across the end of a window
        shifted = shifted.after(np.array([flag]), 0.1, 1e6)
    assert (len(shifted.points), shifted.n_total) == (1, 60)
    assert DriftTest(50, 0.01).after(np.arange(60) % 3 == 0, 0.1, 1e6).points == shifted.points


def test_p_values_by_scores_are_ranks():
    """Each of three numbers by its rank, T2 less so, whatever the distributions are."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((4000, 3)) ** [2, 4, 8]
    scale, new = ByScores.of(values), rng.standard_normal((20_000, 3)) ** [2, 4, 8]
    ranks = [np.mean(values[:, j, None] > new[:, j], 0) for j in range(3)]
    found = scale.combined(new)
    expected = np.max([-np.log(p + 1e-4) for p in ranks] - np.log([[1], [2], [1]]), axis=0)
    inside = expected < 1.6  # T2 counts half, so that its tail of a tenth begins here
    assert_allclose(found[inside], np.maximum(expected, 0)[inside], atol=0.03)
    assert np.mean(found > upper(scale.combined(values), 0.05)) == pytest.approx(0.05, abs=0.012)
    for height in (0.5, 2.0, 9.0, 40.0):  # in the middle and far in the tail
        for one in np.diag(scale.parts(height)):
            assert_allclose(scale.combined(one[None]), height, rtol=1e-9)
    assert_array_equal(scale.combined(np.zeros((2, 3))), 0)
    scores = RecentScores(50, 10, np.empty((0, 3)))
    for i in range(200):  # those of the last half
        scores = scores.extended(np.full((1, 3), i))
        assert len(scores.values) == min(i + 1, max(10, min(50, (i + 1) // 2)))
        assert scores.values[-1, 0] == i


def test_the_level_makes_up_for_what_is_flagged_too_rarely_and_too_often():
    assert upper(np.arange(1.0, 40), 0.1) == 36  # of 39, exceeded with probability 4 / 40
    assert upper(np.arange(9.0), 0.05) == np.inf
    limit = Limit(1.0, 0.05, 100)
    assert_allclose(limit.after(np.zeros(40, bool), 0.05).level, 0.05 + 40 * 0.005 * 0.05)
    at_once = limit.after(np.zeros(9000, bool), 0.05).level  # by one limit
    assert_allclose(at_once, 0.05 + 200 * 0.005 * 0.05)
    assert_allclose(limit.after(np.ones(10, bool), 0.05).level, 0.05 - 10 * 0.005 * 0.95)
    for _ in range(10):
        limit = limit.after(np.ones(50, bool), 0.05)
    assert limit.level == -1.0
    scores = np.arange(1.0, 101)
    assert Limit(1.0, 0.05, 100).by(scores).value == 96
    assert Limit(1.0, -0.3, 100).by(scores).value == 100  # what is beyond all is flagged


@pytest.mark.parametrize("together", [1, 5, 10])
def test_flagged_rows_that_come_together_are_no_drift(together):
    """Five percent of groups of rows: numbers of a window vary as many times as rows in a group."""
    rng, test = np.random.default_rng(0), DriftTest(100, 1e-3)
    usual = np.repeat(rng.random(50_000 // together) < 0.05, together)
    for flagged in np.split(usual, 500):
        test = test.after(flagged, 0.05, 4000)
    # one of 1,000 windows in the mean; before it is known how numbers vary, one more
    assert len(test.points) <= stats.poisson.isf(1e-3, 0.5) + 1
    changed = np.repeat(rng.random(500 // together) < 0.8, together)
    assert 0 < test.after(changed, 0.05, 4000).points[-1] - test.n_total <= 200


def test_squares_of_the_rest_have_no_bias_however_many_components_there_are():
    """Of 40 variances beside eight large ones, in the mean over fits to 25 rows."""
    rng, variances = np.random.default_rng(0), np.repeat([1e4, 3.0, 1.0], [8, 20, 20])
    found = []
    for _ in range(300):
        X = rng.standard_normal((25, 48)) * np.sqrt(variances)
        spectrum = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)[:24] ** 2 / 24
        first, second, _ = moments_of_the_rest(spectrum, spectrum[:8], 25, 40)
        found.append(second / first**2)
    assert_allclose(np.mean(found), (20 * 9 + 20) / (20 * 3 + 20) ** 2, rtol=0.05)


def test_windows_just_below_an_alarm_do_not_hide_a_change():
    """Whoever sends them raises the number of flagged rows that gives an alarm, to half at most."""
    test = DriftTest(100, 1e-3)
    for _ in range(60):
        window = np.zeros(100, bool)
        while not test.after(window, 0.05, 4000).points and not window.all():
            window[np.flatnonzero(~window)[0]] = True
        window[np.flatnonzero(window)[-1]] = False
        test = test.after(window, 0.05, 4000)
    assert not test.points
    change = np.random.default_rng(0).random(200) < 0.7
    assert len(test.after(change, 0.05, 4000).points) == 1
