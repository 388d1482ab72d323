"""SubspaceMonitor: what is flagged, by which entries, and what a stream learns."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from helpers import random_basis, with_holes
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from sklearn.base import clone
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_outliers_train

from fedpca_sklearn import (
    GROUSE,
    AnalyzeGauss,
    ControlChartDisplay,
    DistributedPCA,
    FederatedPCA,
    StreamingPCA,
    Subspace,
    SubspaceMonitor,
    SubspaceTracker,
    VerticalFederatedKernelPCA,
)
from fedpca_sklearn.monitoring._recent import ByScores, DriftTest, Limit, RecentScores, upper

D, K = 20, 3
BASIS = random_basis(np.random.default_rng(8), 2 * K, D)


def rows(n, seed=0, basis=BASIS[:K], noise=1.0):
    rng = np.random.default_rng(seed)
    return 5 + rng.standard_normal((n, K)) * [9, 6, 4] @ basis + noise * rng.standard_normal((n, D))


class OfNewRows(SubspaceMonitor):
    """scikit-learn does not count outliers among the rows of fit where this attribute is."""

    novelty = True


@pytest.mark.parametrize("limits", ["chi2", "quantile"])
def test_scikit_learns_conventions_but_the_count(limits):
    check_outliers_train("OfNewRows", OfNewRows(StreamingPCA(1), contamination=0.1, limits=limits))
    X, monitor = rows(300), SubspaceMonitor(StreamingPCA(K), limits=limits)
    assert_array_equal(monitor.fit_predict(X), monitor.fit(X).predict(X))
    assert (monitor.predict(X) == -1).mean() < 0.06  # they were fitted


# ------------------------------------------------------------------------------ what is flagged


def test_either_statistic_flags():
    monitor, mean = SubspaceMonitor(StreamingPCA(K)).fit(rows(1000)), np.full(D, 5.0)
    along, across = mean + 60 * BASIS[0], mean + 12 * BASIS[K]
    assert_array_equal(monitor.predict([mean, along, across]), [1, -1, -1])
    q, t2 = monitor.statistics([mean, along, across]).T
    assert q[2] > 1 > t2[2]
    assert t2[1] > 1 > q[1]
    assert (monitor.score_samples([along, across]) < monitor.offset_).all()
    # Q itself, by its definition
    X = rows(20, seed=1)
    Y, V = X - monitor.estimator_.mean_, monitor.estimator_.components_
    squares = ((Y - Y @ V.T @ V) ** 2).sum(axis=1)
    assert_allclose(monitor.statistics(X)[:, 0] * monitor.q_limit_, squares, rtol=1e-9)


def test_the_score_is_the_least_p_value_of_three():
    """By hand: chi-square laws of a model with many rows, at the level of either statistic."""
    X, new = rows(40_000), rows(300, seed=1)
    pca = StreamingPCA(K).fit(X)
    monitor = SubspaceMonitor.from_estimator(pca)  # no scores yet
    Y, V = new - pca.mean_, pca.components_
    values = np.linalg.eigvalsh(np.cov(X.T))[::-1]
    q, t2 = ((Y - Y @ V.T @ V) ** 2).sum(axis=1), ((Y @ V.T) ** 2 / values[:K]).sum(axis=1)
    p = stats.chi2.logsf(q / values[K:].mean(), D - K), stats.chi2.logsf(t2, K)
    limit = np.log(1 - np.sqrt(0.95))
    expected = np.minimum(p[0], p[1] * np.minimum(p[1] / limit, 1) ** 2)  # T2 less below its limit
    assert_allclose(monitor.score_samples(new), expected, rtol=0.04, atol=0.03)
    assert_allclose(monitor.offset_, limit)


def test_a_row_far_in_a_direction_of_little_variance_is_found():
    """Neither Q nor T2 shows it, as it does not show among the other directions outside."""
    rng = np.random.default_rng(0)
    deviations = np.r_[9, 6, 4, np.ones(D - K - 1), 0.02]
    X, new = rng.standard_normal((2, 2000, D)) * deviations
    new[::2, -1] += 0.2 * np.sign(new[::2, -1])
    monitor = SubspaceMonitor(StreamingPCA(K)).fit(X)
    odd = np.arange(2000) % 2 == 0
    assert roc_auc_score(odd, -monitor.score_samples(new)) > 0.97
    assert roc_auc_score(odd, monitor.statistics(new).max(axis=1)) < 0.55


@pytest.mark.parametrize(
    "estimator",
    [
        StreamingPCA(K),
        FederatedPCA(K),
        DistributedPCA(K),
        PCA(K),
        TruncatedSVD(K),
        SubspaceTracker(K),
        GROUSE(K, random_state=0),
        FederatedPCA(K, mechanism=AnalyzeGauss(float("inf"), 1e-3, 60.0), random_state=0),
    ],
    ids=lambda e: type(e).__name__,
)
@pytest.mark.parametrize("form", [np.asarray, np.float32])
def test_over_any_estimator(estimator, form):
    X, Y = form(rows(800)), form(rows(400, seed=1))
    Y[::4, 3] += 15
    monitor = SubspaceMonitor(estimator).fit(X)
    assert roc_auc_score(np.arange(400) % 4 == 0, -monitor.score_samples(Y)) > 0.98
    for row, score in zip(Y[:3], monitor.score_samples(Y[:3]), strict=True):
        assert_allclose(monitor.score_samples(row[None]), score, rtol=1e-3)


def test_sparse_rows():
    X = rows(400, noise=0.5) * (np.random.default_rng(1).random((400, D)) < 0.3)
    dense, sparse = SubspaceMonitor(StreamingPCA(K)), SubspaceMonitor(StreamingPCA(K))
    for batch in np.split(X, 4):
        batch[5] *= 30
        dense.partial_fit(batch)
        sparse.partial_fit(sp.csr_array(batch))
    assert_allclose(sparse.q_limit_, dense.q_limit_, rtol=1e-9)
    assert_allclose(sparse.score_samples(sp.csr_array(X)), dense.score_samples(X), rtol=1e-8)
    assert_allclose(sparse.contributions(sp.csr_array(X)), dense.contributions(X), atol=1e-8)


@pytest.mark.parametrize("k", [2, 4])
def test_rows_of_low_rank(k):
    X = np.random.default_rng(0).standard_normal((100, 2)) @ BASIS[:2] * 3 + 1e3
    monitor = SubspaceMonitor(StreamingPCA(k)).fit(X)
    assert (monitor.predict(X) == 1).mean() > 0.9
    assert_array_equal(monitor.predict(X[:5] + 1e-3 * BASIS[4]), -1)
    constant = SubspaceMonitor(StreamingPCA(1)).fit(np.full((30, 4), 0.1))
    assert_array_equal(constant.predict([[0.1] * 4, [0.1, 0.1, 0.1, 0.2]]), [1, -1])


@pytest.mark.parametrize("exponent", [-400, -170, 160, 400])  # about 1e-120 to 1e120
def test_scores_do_not_depend_on_the_units(exponent):
    X, new = rows(200), with_holes(rows(50, seed=1), 0.2)
    monitor = SubspaceMonitor(SubspaceTracker(K)).fit(X)
    other = SubspaceMonitor(SubspaceTracker(K)).fit(X * 2.0**exponent)
    assert_allclose(other.q_limit_, monitor.q_limit_ * 4.0**exponent, rtol=1e-9)
    for Y in (X, new):
        assert_allclose(other.score_samples(Y * 2.0**exponent), monitor.score_samples(Y), rtol=1e-6)


def test_all_directions_leave_t2_alone():
    X = rows(500)[:, :4]
    monitor = SubspaceMonitor(StreamingPCA()).fit(X)
    Y = X - X.mean(axis=0)
    t2 = np.einsum("ij,ij->i", Y @ np.linalg.inv(np.cov(X.T)), Y)
    assert_allclose(monitor.statistics(X)[:, 1] * monitor.t2_limit_, t2, rtol=1e-8)
    assert_allclose(monitor.statistics(X)[:, 0], 0, atol=1e-6)


def test_too_few_rows_say_nothing():
    monitor = SubspaceMonitor(StreamingPCA(K)).fit(rows(6))
    assert_array_equal(monitor.predict(1e6 * rows(5)), 1)
    assert monitor.q_limit_ == np.inf
    holes = SubspaceMonitor(SubspaceTracker(K)).fit(rows(6))
    assert_array_equal(holes.predict(with_holes(rows(5), 0.2)), 1)


# ------------------------------------------------------------------------------ missing entries


def covariance(directions):
    V, model = directions.basis, directions
    return (V.T * (model.variances - model.noise)) @ V + model.noise * np.eye(V.shape[1])


def test_missing_entries_by_the_marginal_distribution():
    monitor = SubspaceMonitor(SubspaceTracker(K)).fit(rows(1000))
    X, model = with_holes(rows(60, seed=1), 0.3), monitor._model
    X[0, K:] = X[1, 2:] = X[2] = np.nan
    found, sizes = model.distances(X)
    within, S, whole = model.within, covariance(model.within), covariance(model.whole)
    assert_array_equal(sizes, (~np.isnan(X)).sum(axis=1))
    for x, (q, t2, distance), size in zip(X, found, sizes, strict=True):
        there = ~np.isnan(x)
        y, both = (x - model.mean)[there], np.ix_(there, there)
        of_both = y @ np.linalg.solve(S[both], y) if size else 0.0
        assert_allclose(q / within.noise + t2, of_both, rtol=1e-8, atol=1e-12)
        in_all = y @ np.linalg.solve(whole[both], y) if size else 0.0
        assert_allclose(distance, in_all, rtol=1e-8, atol=1e-12)
        if size > K:
            A = within.basis[:, there].T
            left = y - A @ np.linalg.lstsq(A, y, rcond=None)[0]
            assert_allclose(q, left @ left, rtol=1e-8)
    whole = rows(9)
    assert_allclose(model.distances(whole)[0], model._of_seen(whole - model.mean))


@pytest.mark.parametrize("share", [0.05, 0.4])
def test_false_alarms_of_rows_with_missing_entries(share):
    found = []
    for seed in range(6):
        monitor = SubspaceMonitor(SubspaceTracker(K)).fit(rows(1000, seed=seed))
        found.append(np.mean(monitor.predict(with_holes(rows(2000, seed=99), share)) == -1))
    assert 0.04 <= np.mean(found) <= 0.06


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6])
def test_false_alarms_of_an_estimator_that_was_fitted_to_rows_with_holes(share):
    """Its variances are too small; limits are by scores, so that the rate is right all the same."""
    found, chi2 = [], []
    for seed in range(4):
        X = with_holes(rows(600, seed=seed), share)
        new = with_holes(rows(1000, seed=99), share)
        found.append(np.mean(SubspaceMonitor(SubspaceTracker(K)).fit(X).predict(new) == -1))
        by_variances = SubspaceMonitor(SubspaceTracker(K), limits="chi2").fit(X)
        chi2.append(np.mean(by_variances.predict(new) == -1))
    assert 0.03 <= np.mean(found) <= 0.07
    assert np.mean(chi2) > np.mean(found) + (0.1 if share > 0.1 else -0.02)


def test_rows_with_holes_are_scored_and_whole_ones_learnt_where_nan_is_not_taken():
    X, new = rows(300), rows(400, seed=1)
    broken = new.copy()
    broken[:, 4] = np.nan
    broken[::4, 9] += 12
    holes = np.where(np.arange(300)[:, None] % 3 == 0, np.where(np.arange(D) == 2, np.nan, X), X)
    monitor = SubspaceMonitor(StreamingPCA(K)).fit(holes)
    whole = holes[~np.isnan(holes).any(axis=1)]
    assert_allclose(monitor.estimator_.components_, StreamingPCA(K).fit(whole).components_)
    odd = np.arange(400) % 4 == 0
    assert roc_auc_score(odd, -monitor.score_samples(broken)) > 0.99
    assert 0.02 < np.mean(monitor.predict(broken[~odd]) == -1) < 0.09
    assert np.abs(monitor.contributions(broken[:1]))[0, 9] > 5
    before = monitor.score_samples(broken)
    monitor.partial_fit(broken)  # nothing to learn
    assert_array_equal(monitor.recent_scores_, before)
    assert monitor.estimator_.n_samples_seen_ == 200
    for row in (broken[0], new[0]):
        monitor.partial_fit(row[None])
    assert monitor.estimator_.n_samples_seen_ == 201
    sparse = SubspaceMonitor(StreamingPCA(K)).fit(sp.csr_array(holes))
    assert_allclose(sparse.score_samples(sp.csr_array(broken)), before, rtol=1e-6)
    assert sparse.partial_fit(sp.csr_array(broken)).estimator_.n_samples_seen_ == 200


def test_contributions_are_deviations_from_what_the_others_say():
    monitor = SubspaceMonitor(SubspaceTracker(K)).fit(rows(1000))
    X, S = with_holes(rows(20, seed=1), 0.2), covariance(monitor._model.within)
    found = monitor.contributions(X)
    for x, z in zip(X, found, strict=True):
        y = x - monitor._model.mean
        for j in range(D):
            others = np.flatnonzero(~np.isnan(x) & (np.arange(D) != j))
            weights = np.linalg.solve(S[np.ix_(others, others)], S[others, j])
            deviation = np.sqrt(S[j, j] - weights @ S[others, j])
            assert_allclose(z[j], (y[j] - weights @ y[others]) / deviation, rtol=1e-7)
    wrong = rows(500, seed=2)
    wrong[np.arange(500), np.arange(500) % D] -= 10
    named = monitor.contributions(wrong)
    assert np.mean(np.abs(named).argmax(axis=1) == np.arange(500) % D) > 0.95
    assert (named[np.arange(500), np.arange(500) % D] < 0).mean() > 0.99
    assert abs(np.std(monitor.contributions(rows(2000, seed=3))) - 1) < 0.03


# ------------------------------------------------------------------------------ streams


def test_rows_are_scored_before_they_are_learnt():
    monitor = SubspaceMonitor(StreamingPCA(K)).partial_fit(rows(300))
    assert np.isnan(monitor.recent_scores_).all()
    X = rows(100, seed=1)
    X[7] += 40 * BASIS[K]
    before = monitor.score_samples(X)
    assert_array_equal(monitor.partial_fit(X).recent_scores_, before)
    assert monitor.estimator_.n_samples_seen_ == 400


def test_a_row_above_the_limit_is_learnt_as_one_at_the_limit():
    monitor, X = SubspaceMonitor(StreamingPCA(K)).partial_fit(rows(300)), rows(60, seed=1)
    X[7] += 1e4 * BASIS[K]
    given, twin = X.copy(), clone(monitor.estimator_).fit(rows(300))
    moved, mean = X.copy(), twin.mean_
    flagged, shares = monitor.predict(X) == -1, monitor.statistics(X).max(axis=1)
    assert flagged[7]
    moved[flagged] = mean + (X[flagged] - mean) / np.sqrt(shares[flagged])[:, None]
    assert_allclose(monitor.score_samples(moved[flagged]), monitor.offset_, rtol=1e-9)
    monitor.partial_fit(X)
    assert_array_equal(X, given)
    assert_allclose(monitor.estimator_.components_, twin.partial_fit(moved).components_, atol=1e-9)
    assert_array_equal(monitor.predict(given[7:8]), -1)


@pytest.mark.parametrize("limits", ["chi2", "quantile"])
def test_false_alarms_of_a_stream_stay_what_they_are(limits):
    # moved rows make variances a little less; what they would do to each other must not add up
    monitor = SubspaceMonitor(StreamingPCA(K), limits=limits).partial_fit(rows(200))
    X, found = rows(12_000, seed=5), []
    for batch in np.split(X, 60):
        found.append(np.mean(monitor.score_samples(batch) < monitor.offset_))
        monitor.partial_fit(batch)
    assert 0.04 <= np.mean(found[20:]) <= 0.06


def test_one_row_at_a_time():
    monitor, by_batch = (
        SubspaceMonitor(StreamingPCA(K), limits="chi2").partial_fit(rows(200)) for _ in "ab"
    )
    read = SubspaceMonitor(StreamingPCA(K), limits="chi2").partial_fit(rows(200))
    for row in rows(120, seed=1):
        monitor.partial_fit(row[None])
        scores = monitor.recent_scores_
        assert_array_equal(read.partial_fit(row[None]).recent_scores_, scores)
        assert read.q_limit_ > 0  # who looks changes nothing
    by_batch.partial_fit(rows(120, seed=1))
    assert monitor.estimator_.n_samples_seen_ == 320
    assert_allclose(monitor.q_limit_, by_batch.q_limit_, rtol=0.02)
    assert SubspaceMonitor(StreamingPCA(K)).partial_fit(rows(1)).predict(rows(1))[0] == 1


def test_a_jump_gives_an_alarm_and_is_learnt():
    factor = 0.5 ** (1 / 150)
    monitor = SubspaceMonitor(StreamingPCA(K, forgetting_factor=factor))
    after, found = rows(1500, seed=2, basis=BASIS[K:]), []
    for batch in np.split(np.concatenate([rows(1500), after]), 150):
        if hasattr(monitor, "estimator_"):
            found.append(np.mean(monitor.predict(batch) == -1))
        monitor.partial_fit(batch)
    assert np.mean(found[:74]) < 0.1
    assert found[74] > 0.8  # the others are judged among themselves
    assert 0.02 < np.mean(found[-100:]) < 0.08
    points = monitor.drift_points_
    assert len(points) == 1
    assert 1490 <= points[0] <= 1510
    assert monitor.drift_angle_ > 0.9


@pytest.mark.parametrize("factor", [1.0, 0.99])
@pytest.mark.parametrize("change", ["three times", "mean", "burst"])
def test_one_change_is_one_alarm_and_then_the_rate_is_right(factor, change):
    found = []
    for seed in range(3):
        X = rows(4000, seed=seed)
        if change == "three times":
            X[1500:] = 5 + 3 * (X[1500:] - 5)
        else:
            X[1500 : 4000 if change == "mean" else 1600] += 8
        monitor, flagged = SubspaceMonitor(StreamingPCA(K, forgetting_factor=factor)), []
        for part in np.split(X, 200):
            monitor.partial_fit(part)
            flagged.append(monitor.recent_scores_ < monitor.offset_)
        flagged = np.concatenate(flagged)
        assert 1500 <= monitor.drift_points_[0] + 20 <= 1520
        assert len(monitor.drift_points_) == 1
        found.append([np.mean(flagged[300:1500]), np.mean(flagged[2000:2500])])
        found[-1].append(np.mean(flagged[2500:]))
    assert (np.mean(found, axis=0) > 0.03).all()
    assert (np.mean(found, axis=0) < 0.07).all()


def test_a_row_after_an_alarm_has_no_more_influence_than_one_before():
    """Until limits are new, rows are moved to the larger of the limit before and those since."""
    monitor = SubspaceMonitor(StreamingPCA(K)).fit(rows(300))
    burst = rows(25, seed=1)
    burst += 40 * BASIS[K]
    for row in burst:
        monitor.partial_fit(row[None])
    assert len(monitor.drift_points_) == 1
    seen = monitor.drift_points_[0]
    size = np.linalg.norm(monitor.estimator_.components_ @ BASIS[K])
    limit = monitor.q_limit_
    huge = rows(1, seed=3) + 1e6 * BASIS[K]
    monitor.partial_fit(huge)
    assert seen < 25
    assert np.linalg.norm(monitor.estimator_.components_ @ BASIS[K]) < max(2 * size, 0.99)
    assert limit < 1e5
    assert monitor.estimator_.explained_variance_[0] < 1e4


def test_times_reach_the_estimator():
    X, times = rows(600), np.datetime64("2026-01-01") + np.arange(600).astype("timedelta64[m]")
    monitor = SubspaceMonitor(StreamingPCA(K, half_life="2h")).fit(X[:300], times=times[:300])
    assert 0.02 < np.mean(monitor.predict(rows(2000, seed=3)) == -1) < 0.09
    monitor.partial_fit(X[300:], times=times[300:])
    twin = StreamingPCA(K, half_life="2h").fit(X[:300], times=times[:300])
    assert_allclose(
        monitor.estimator_.mean_, twin.partial_fit(X[300:], times=times[300:]).mean_, 0.1
    )
    assert monitor.estimator_.subspace_.n_samples < 250  # they have faded
    for model, given, words in (
        (StreamingPCA(K, half_life="2h"), None, "half_life='2h' needs times"),
        (StreamingPCA(K), times, "times were given, but half_life=None"),
        (PCA(K), times, "times is given, but fit of the estimator PCA takes none"),
        (StreamingPCA(K, half_life="2h"), times[:5], r"times must have shape \(600,\)"),
    ):
        with pytest.raises(ValueError, match=words):
            SubspaceMonitor(model).fit(X, times=given)


def test_a_mechanism_has_limits_from_variances():
    """It has no account of the fits that scores of rows held out would take."""
    private = FederatedPCA(K, mechanism=AnalyzeGauss(1e6, 1e-3, 90.0), random_state=0)
    monitor = SubspaceMonitor(private).fit(rows(600))
    assert monitor.q_limit_ == SubspaceMonitor(private, limits="chi2").fit(rows(600)).q_limit_


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
    assert len(shifted.points) == 1
    assert shifted.n_total == 60


def test_the_quantile_of_few_scores():
    scores = np.arange(1.0, 40)
    assert upper(scores, 0.1) == 36  # of 39, the next one exceeds it with probability 4 / 40
    assert upper(np.arange(9.0), 0.05) == np.inf


def test_p_values_by_scores_are_ranks():
    """Each of three numbers by its rank, T2 less so, whatever the distributions are."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((4000, 3)) ** [2, 4, 8]
    scale, new = ByScores.of(values), rng.standard_normal((20_000, 3)) ** [2, 4, 8]
    found, ranks = (
        scale.combined(new),
        [np.mean(values[:, j, None] > new[:, j], 0) for j in range(3)],
    )
    expected = np.max([-np.log(p + 1e-4) for p in ranks] - np.log([[1], [2], [1]]), axis=0)
    inside = expected < 1.6  # T2 counts half, so that its tail of a tenth begins here
    assert_allclose(found[inside], np.maximum(expected, 0)[inside], atol=0.03)
    assert np.mean(found > upper(scale.combined(values), 0.05)) == pytest.approx(0.05, abs=0.012)
    for height in (0.5, 2.0, 9.0, 40.0):  # in the middle and far in the tail
        parts = scale.parts(height)
        for j in range(3):
            one = np.where(np.arange(3) == j, parts, 0.0)[None]
            assert_allclose(scale.combined(one), height, rtol=1e-9)
    assert_array_equal(scale.combined(np.zeros((2, 3))), 0)


def test_recent_scores_are_those_of_the_last_half():
    scores = RecentScores(50, 10, np.empty((0, 3)))
    for i in range(200):
        scores = scores.extended(np.full((1, 3), i))
        assert len(scores.values) == min(i + 1, max(10, min(50, (i + 1) // 2)))
        assert scores.values[-1, 0] == i


def test_the_level_makes_up_for_what_is_flagged_too_rarely_and_too_often():
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


# ------------------------------------------------------------------------------ what is handed on


def test_clients_and_weights_reach_the_estimator():
    X, sites = rows(90), np.arange(90) % 3
    monitor = SubspaceMonitor(FederatedPCA(K)).fit(X, clients=sites)
    assert monitor.estimator_.clients_ == [0, 1, 2]
    monitor.partial_fit(rows(20, seed=1), clients=[3] * 20)
    assert monitor.estimator_.clients_ == [0, 1, 2, 3]
    w = np.arange(90) % 3
    weighted = SubspaceMonitor(StreamingPCA(K), limits="chi2").fit(X, sample_weight=w)
    repeated = SubspaceMonitor(StreamingPCA(K), limits="chi2").fit(np.repeat(X, w, axis=0))
    assert_allclose(weighted.q_limit_, repeated.q_limit_, rtol=1e-9)
    for name in ("clients", "sample_weight"):
        with pytest.raises(ValueError, match=f"{name} is given, but fit of the estimator PCA"):
            SubspaceMonitor(PCA(K)).fit(X, **{name: np.ones(90)})
    with pytest.raises(ValueError, match=r"clients must have shape \(90,\)"):
        SubspaceMonitor(FederatedPCA(K)).fit(X, clients=[1, 2])


def test_names_of_columns_are_kept_and_compared():
    X = pd.DataFrame(rows(100), columns=[f"sensor {i}" for i in range(D)])
    fitted = StreamingPCA(K).fit(X)
    for monitor in (
        SubspaceMonitor.from_estimator(fitted),
        SubspaceMonitor(StreamingPCA(K)).fit(X),
    ):
        monitor.partial_fit(X)
        with pytest.raises(ValueError, match="feature names"):
            monitor.predict(X.iloc[:, ::-1])
    assert list(fitted.feature_names_in_) == list(X.columns)
    assert fitted.n_samples_seen_ == 100


def test_a_pipeline_and_a_frozen_estimator():
    X = rows(600)
    pipe = make_pipeline(StandardScaler(), SubspaceMonitor(StreamingPCA(K))).fit(X)
    assert pipe.predict(X).min() == -1
    fitted = StreamingPCA(K).fit(X)
    frozen = SubspaceMonitor(FrozenEstimator(fitted), limits="quantile").fit(rows(500, seed=1))
    assert abs(np.mean(frozen.predict(rows(4000, seed=2)) == -1) - 0.05) < 0.03
    assert fitted.n_samples_seen_ == 600


def test_errors_name_what_is_wrong():
    X = rows(60)
    with pytest.raises(NotFittedError):
        SubspaceMonitor(StreamingPCA(K)).predict(X)
    with pytest.raises(NotFittedError):
        SubspaceMonitor.from_estimator(StreamingPCA(K))
    with pytest.raises(AttributeError):
        _ = SubspaceMonitor(PCA(K)).partial_fit
    lost = np.where(np.arange(D) == 4, np.nan, X)
    for method in ("fit", "partial_fit"):
        with pytest.raises(ValueError, match=r"rows without NaN for StreamingPCA.*got none"):
            getattr(SubspaceMonitor(StreamingPCA(K)), method)(lost)
    with pytest.raises(TypeError, match="StandardScaler has no components_"):
        SubspaceMonitor(StandardScaler()).fit(X)
    with pytest.raises(TypeError, match="has no components_"):
        SubspaceMonitor(VerticalFederatedKernelPCA(1, feature_groups=1, random_state=0)).fit(X)
    empty = Subspace.empty(D)
    with pytest.raises(ValueError, match="at least one row"):
        SubspaceMonitor.from_subspace(empty, K)
    monitor = SubspaceMonitor(StreamingPCA(K)).fit(X)
    before = monitor.q_limit_
    with pytest.raises(ValueError, match="infinity"):
        monitor.partial_fit(np.full((3, D), np.inf))
    assert monitor.q_limit_ == before
    state = dict(vars(monitor))
    with pytest.raises(ValueError, match="n_components=3 must be at most n_features=2"):
        monitor.fit(X[:, :2])
    assert vars(monitor) == state


def test_the_control_chart_shows_rows_limit_and_alarms():
    import matplotlib as mpl

    mpl.use("agg")
    monitor, X = SubspaceMonitor(StreamingPCA(K)).fit(rows(300)), rows(50, seed=1)
    X[4] += 30 * BASIS[K]
    display = ControlChartDisplay.from_estimator(monitor, X, name="line 3")
    assert_array_equal(display.line_.get_ydata(), -monitor.score_samples(X))
    assert_array_equal(display.limit_line_.get_ydata(), -monitor.offset_)
    flagged = np.flatnonzero(monitor.predict(X) == -1) + 1
    assert_array_equal(display.flagged_line_.get_xdata(), flagged)
    assert 5 in flagged
    assert display.ax_.get_legend().get_texts()[0].get_text() == "line 3"
    mpl.pyplot.close("all")
