"""SubspaceMonitor: what is flagged, by which entries, and what a stream learns."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from helpers import random_basis, with_holes
from numpy.testing import assert_allclose, assert_array_equal
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
from fedpca_sklearn.monitoring._recent import DriftTest, RecentScores

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
    assert_allclose(monitor.score_samples([along, across]), [-t2[1], -q[2]])
    # Q itself, by its definition
    X = rows(20, seed=1)
    Y, V = X - monitor.estimator_.mean_, monitor.estimator_.components_
    squares = ((Y - Y @ V.T @ V) ** 2).sum(axis=1)
    assert_allclose(monitor.statistics(X)[:, 0] * monitor.q_limit_, squares, rtol=1e-9)


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


def covariance(model):
    V = model.basis
    return (V.T * (model.variances - model.noise)) @ V + model.noise * np.eye(V.shape[1])


def test_missing_entries_by_the_marginal_distribution():
    monitor = SubspaceMonitor(SubspaceTracker(K)).fit(rows(1000))
    X, model = with_holes(rows(60, seed=1), 0.3), monitor._model
    X[0, K:] = X[1, 2:] = X[2] = np.nan
    q, t2 = monitor.statistics(X).T
    S = covariance(model)
    for i, x in enumerate(X):
        there = ~np.isnan(x)
        y, size = (x - model.mean)[there], there.sum()
        squares = q[i] * model._q_limits(np.array([size]))[0] if size > K else 0.0
        t = t2[i] * model.t2_limits[min(size, K)] if size else 0.0
        whole = y @ np.linalg.solve(S[np.ix_(there, there)], y) if size else 0.0
        assert_allclose(squares / model.noise + t, whole, rtol=1e-8, atol=1e-12)
        if size > K:
            A = model.basis[:, there].T
            left = y - A @ np.linalg.lstsq(A, y, rcond=None)[0]
            assert_allclose(squares, left @ left, rtol=1e-8)
    assert_allclose(
        monitor.statistics(rows(9)), monitor._model._shares_of_seen(rows(9) - model.mean)
    )


@pytest.mark.parametrize("share", [0.05, 0.4])
def test_false_alarms_of_rows_with_missing_entries(share):
    found = []
    for seed in range(6):
        monitor = SubspaceMonitor(SubspaceTracker(K)).fit(rows(1000, seed=seed))
        found.append(np.mean(monitor.predict(with_holes(rows(2000, seed=99), share)) == -1))
    assert 0.04 <= np.mean(found) <= 0.06


def test_contributions_are_deviations_from_what_the_others_say():
    monitor = SubspaceMonitor(SubspaceTracker(K)).fit(rows(1000))
    X, S = with_holes(rows(20, seed=1), 0.2), covariance(monitor._model)
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
    flagged = monitor.score_samples(X) < -1
    factors = np.sqrt(-1 / monitor.score_samples(X)[flagged])[:, None]
    moved[flagged] = mean + factors * (X[flagged] - mean)
    assert_allclose(monitor.score_samples(moved[flagged]), -1, rtol=1e-9)
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
    monitor, by_batch = (SubspaceMonitor(StreamingPCA(K)).partial_fit(rows(200)) for _ in "ab")
    read = SubspaceMonitor(StreamingPCA(K)).partial_fit(rows(200))
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
    assert np.mean(found[74:77]) > 0.8
    assert np.mean(found[-40:]) < 0.15
    points = monitor.drift_points_
    assert not len(points[points < 1480])
    assert 1480 <= points[0] <= 1520
    assert monitor.drift_angle_ > 0.9


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
    scores = RecentScores(50).extended(np.arange(1.0, 40))
    assert scores.limit(0.1) == 36  # of 39, the next one exceeds it with probability 4 / 40
    assert RecentScores(50).extended(np.arange(9.0)).limit(0.05) == np.inf
    assert_array_equal(scores.extended(np.arange(100.0, 130)).values[:2], [20, 21])


# ------------------------------------------------------------------------------ what is handed on


def test_clients_and_weights_reach_the_estimator():
    X, sites = rows(90), np.arange(90) % 3
    monitor = SubspaceMonitor(FederatedPCA(K)).fit(X, clients=sites)
    assert monitor.estimator_.clients_ == [0, 1, 2]
    monitor.partial_fit(rows(20, seed=1), clients=[3] * 20)
    assert monitor.estimator_.clients_ == [0, 1, 2, 3]
    w = np.arange(90) % 3
    weighted = SubspaceMonitor(StreamingPCA(K)).fit(X, sample_weight=w)
    repeated = SubspaceMonitor(StreamingPCA(K)).fit(np.repeat(X, w, axis=0))
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
    with pytest.raises(
        ValueError, match=r"contains NaN. SubspaceTracker, .* take rows with missing"
    ):
        SubspaceMonitor(StreamingPCA(K)).fit(X).predict(with_holes(X, 0.1))
    with pytest.raises(TypeError, match="StandardScaler has no components_"):
        SubspaceMonitor(StandardScaler()).fit(X)
    with pytest.raises(TypeError, match="has no components_"):
        SubspaceMonitor(VerticalFederatedKernelPCA(1, feature_groups=1, random_state=0)).fit(X)
    private = FederatedPCA(K, mechanism=AnalyzeGauss(1.0, 1e-3, 9.0))
    with pytest.raises(ValueError, match="mechanism has no account"):
        SubspaceMonitor(private, limits="quantile").fit(rows(600))
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
    assert_array_equal(display.limit_line_.get_ydata(), 1)
    flagged = np.flatnonzero(monitor.predict(X) == -1) + 1
    assert_array_equal(display.flagged_line_.get_xdata(), flagged)
    assert 5 in flagged
    assert display.ax_.get_legend().get_texts()[0].get_text() == "line 3"
    mpl.pyplot.close("all")
