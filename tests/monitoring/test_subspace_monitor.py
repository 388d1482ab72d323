"""SubspaceMonitor: what is flagged, by which entries, and what a stream learns.

Numpy on rows that StandardScaler scaled is the oracle of columns in unlike units.
"""

import copy

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from golden_cases import made
from helpers import random_basis, with_holes
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from scipy.signal import lfilter
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_outliers_train

from fedpca_sklearn import (
    AlternatingProjections,
    AnalyzeGauss,
    ControlChartDisplay,
    FederatedPCA,
    StreamingPCA,
    Subspace,
    SubspaceMonitor,
    SubspaceTracker,
)

D, K = 20, 3
BASIS = random_basis(np.random.default_rng(8), 2 * K, D)
UNITS = 10.0 ** np.linspace(-5, 6, D)


def rows(n, seed=0, basis=BASIS[:K], noise=1.0):
    rng = np.random.default_rng(seed)
    return 5 + rng.standard_normal((n, K)) * [9, 6, 4] @ basis + noise * rng.standard_normal((n, D))


def chi2(**options):
    return SubspaceMonitor(StreamingPCA(K, **options), limits="chi2")


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
    # T2 where all directions are kept
    X = rows(500)[:, :4]
    whole, Y = SubspaceMonitor(StreamingPCA()).fit(X), X - X.mean(axis=0)
    t2 = np.einsum("ij,ij->i", Y @ np.linalg.inv(np.cov(X.T)), Y)
    assert_allclose(whole.statistics(X)[:, 1] * whole.t2_limit_, t2, rtol=1e-8)
    assert_allclose(whole.statistics(X)[:, 0], 0, atol=1e-6)
    # where nothing is left out nothing is too far from it, however far it is
    assert_array_equal(whole.statistics([[1e200] * 4]), [[0, np.inf]])


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
    X, new = rng.standard_normal((2, 2000, D)) * np.r_[9, 6, 4, np.ones(D - K - 1), 0.02]
    new[::2, -1] += 0.2 * np.sign(new[::2, -1])
    monitor = SubspaceMonitor(StreamingPCA(K)).fit(X)
    odd = np.arange(2000) % 2 == 0
    assert roc_auc_score(odd, -monitor.score_samples(new)) > 0.97
    assert roc_auc_score(odd, monitor.statistics(new).max(axis=1)) < 0.55
    row, mean = monitor.estimator_.mean_ + 0.4 * np.eye(D)[-1], monitor.estimator_.mean_.copy()
    assert monitor.score_samples([row]) < monitor.offset_
    assert monitor.statistics([row]).max() < 1
    after = copy.deepcopy(monitor).partial_fit([row]).estimator_
    learnt = mean + 2001 * (after.mean_ - mean)  # moved until it is at the limit
    assert_allclose(monitor.score_samples([learnt]), monitor.offset_, rtol=1e-6)


def test_low_rank_constant_and_too_few_rows():
    X = np.random.default_rng(0).standard_normal((100, 2)) @ BASIS[:2] * 3 + 1e3
    for k in (2, 4):
        monitor = SubspaceMonitor(StreamingPCA(k)).fit(X)
        assert (monitor.predict(X) == 1).mean() > 0.9
        assert_array_equal(monitor.predict(X[:5] + 1e-3 * BASIS[4]), -1)
    constant = SubspaceMonitor(StreamingPCA(1)).fit(np.full((30, 4), 0.1))
    assert_array_equal(constant.predict([[0.1] * 4, [0.1, 0.1, 0.1, 0.2]]), [1, -1])
    few = SubspaceMonitor(StreamingPCA(K)).fit(rows(6))
    assert_array_equal(few.predict(1e6 * rows(5)), 1)
    assert few.q_limit_ == np.inf
    holes = SubspaceMonitor(SubspaceTracker(K)).fit(rows(6))
    assert_array_equal(holes.predict(with_holes(rows(5), 0.2)), 1)
    assert SubspaceMonitor(StreamingPCA(K)).partial_fit(rows(1)).predict(rows(1))[0] == 1


def test_the_limit_of_q_is_that_of_the_scores_where_the_model_has_no_noise():
    monitor, new = SubspaceMonitor(AlternatingProjections(K)).fit(rows(600)), rows(2000, seed=1)
    above = (monitor.statistics(new) > 1).any(axis=1)
    assert_array_equal(above, monitor.predict(new) == -1)
    assert 0.03 < above.mean() < 0.07


@pytest.mark.parametrize("exponent", [-400, 400])  # about 1e-120 and 1e120
def test_scores_do_not_depend_on_the_units(exponent):
    X, new = rows(200), with_holes(rows(50, seed=1), 0.2)
    monitor, other = (
        SubspaceMonitor(SubspaceTracker(K)).fit(X * unit) for unit in (1, 2.0**exponent)
    )
    assert_allclose(other.q_limit_, monitor.q_limit_ * 4.0**exponent, rtol=1e-9)
    for Y in (X, new):
        assert_allclose(other.score_samples(Y * 2.0**exponent), monitor.score_samples(Y), rtol=1e-6)


# ------------------------------------------------------------------------------ missing entries


def covariance(model):
    V = model.basis
    return (V.T * (model.variances - model.noise)) @ V + model.noise * np.eye(V.shape[1])


def test_missing_entries_by_the_marginal_distribution():
    model = SubspaceMonitor(SubspaceTracker(K)).fit(rows(1000))._model
    X = with_holes(rows(60, seed=1), 0.3)
    X[0, K:] = X[1, 2:] = X[2] = np.nan
    X[0, :K] = 9.0, 2.0, 7.0
    found, sizes = model.distances(X)
    assert_array_equal(sizes, (~np.isnan(X)).sum(axis=1))
    for x, (q, t2, distance) in zip(X, found, strict=True):
        there = ~np.isnan(x)
        y, A = (x - model.mean)[there], model.within.basis[:, there].T
        for law, value in (model.within, q / model.within.noise + t2), (model.whole, distance):
            want = y @ np.linalg.solve(covariance(law)[np.ix_(there, there)], y)
            assert_allclose(value, want, rtol=1e-8, atol=1e-12)
        # fitted exactly, where there are not more than K
        left = y - A @ np.linalg.lstsq(A, y, rcond=None)[0] if len(y) > K else 0 * y
        assert_allclose(q, left @ left, rtol=1e-8)
    whole = rows(9)
    assert_allclose(model.distances(whole)[0], model._of_seen(whole - model.mean))


def test_contributions_are_deviations_from_what_the_others_say():
    monitor = SubspaceMonitor(SubspaceTracker(K)).fit(rows(1000))
    X, S = with_holes(rows(20, seed=1), 0.2), covariance(monitor._model.within)
    for x, z in zip(X, monitor.contributions(X), strict=True):
        y = x - monitor._model.mean
        for j in range(D):
            others = np.flatnonzero(~np.isnan(x) & (np.arange(D) != j))
            weights = np.linalg.solve(S[np.ix_(others, others)], S[others, j])
            deviation = np.sqrt(S[j, j] - weights @ S[others, j])
            assert_allclose(z[j], (y[j] - weights @ y[others]) / deviation, rtol=1e-7)
    wrong, at = rows(500, seed=2), (np.arange(500), np.arange(500) % D)
    wrong[at] -= 10
    named = monitor.contributions(wrong)
    assert np.mean(np.abs(named).argmax(axis=1) == at[1]) > 0.95
    assert (named[at] < 0).mean() > 0.99
    assert abs(np.std(monitor.contributions(rows(2000, seed=3))) - 1) < 0.03


@pytest.mark.parametrize("share", [0.05, 0.6])
def test_false_alarms_of_rows_with_missing_entries(share):
    """Also by chi2, as the noise is that of what was observed: .4 of all were flagged by it.

    The quantile of 800 scores has a deviation of .0077, the share of 1,500 rows .0056; of two fits
    .02 are three deviations.
    """
    whole, found, chi2 = [], [], []
    for seed in (2, 3):
        X, new = rows(800, seed=seed), with_holes(rows(1500, seed=99), share)
        Y = with_holes(X, share)
        for rates, limits, fitted in (whole, {}, X), (found, {}, Y), (chi2, {"limits": "chi2"}, Y):
            monitor = SubspaceMonitor(SubspaceTracker(K), **limits).fit(fitted)
            rates.append(np.mean(monitor.predict(new) == -1))
    assert 0.03 <= np.mean(whole) <= 0.07
    assert 0.03 <= np.mean(found) <= 0.07
    assert 0.02 <= np.mean(chi2) <= (0.12 if share > 0.1 else 0.07)


@pytest.mark.filterwarnings("ignore:rows that differ from the others come together")
@pytest.mark.parametrize("order", ["each like the last", "sorted"])
def test_false_alarms_where_rows_resemble_their_neighbours(order):
    """A row is .8 of the last one and a part of its own; or there are four kinds in their order."""
    rates, n = [], 300 if order == "each like the last" else 1000
    for seed in range(8):
        X = rows(n + 1000, seed=seed)
        if order == "sorted":
            kinds = np.random.default_rng(seed).standard_normal((4, D)) * 3
            X += np.concatenate([np.repeat(kinds, 250, axis=0), np.tile(kinds, (250, 1))])
        else:
            X = lfilter([1], [1, -0.8], rows(n + 1050, seed=seed), axis=0)[50:]
        monitor = SubspaceMonitor(StreamingPCA(K)).fit(X[:n])
        rates.append(np.mean(monitor.predict(X[n:]) == -1))
    # nine rows that follow each other say as much as one: a quantile of 300 / 9, of eight fits
    assert 0.03 <= np.mean(rates) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 * 9 / 300 / 8)


@pytest.mark.filterwarnings("ignore:rows that differ from the others come together")
def test_a_fit_tells_how_much_numbers_of_flagged_rows_vary_in_a_series():
    """So that the first windows of a series give few false alarms: 120 of them."""
    alarms = 0
    for seed in range(12):
        X = lfilter([1], [1, -0.95], rows(2200, seed=seed), axis=0)[200:]
        monitor = SubspaceMonitor(StreamingPCA(K)).fit(X[:1000])
        for batch in np.split(X[1000:], 20):
            monitor.partial_fit(batch)
        alarms += len(monitor.drift_points_)
    assert alarms <= 2


def test_a_fit_says_where_rows_that_differ_come_together():
    """A tenth of the rows is three times as large, one in ten or all in a row: 600 rows, or few."""
    X, more = rows(600), np.where(np.arange(600)[:, None] % 10, 1.0, 3.0)
    SubspaceMonitor(StreamingPCA(K)).fit(X * more)
    with pytest.warns(UserWarning, match="its 600 rows say as much as [1-9]?[0-9] would"):
        SubspaceMonitor(StreamingPCA(K)).fit(X * np.sort(more, axis=0))


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
    before, named = monitor.score_samples(broken), monitor.contributions(broken)
    assert abs(named[0, 9]) > 5
    monitor.partial_fit(broken)  # nothing to learn
    (at,) = monitor.drift_points_
    assert_array_equal(monitor.recent_scores_[:at], before[:at])
    for row, seen in ((broken[0], 200), (new[0], 201)):
        assert monitor.partial_fit(row[None]).estimator_.n_samples_seen_ == seen
    sparse = SubspaceMonitor(StreamingPCA(K)).fit(sp.csr_array(holes))
    assert_allclose(sparse.score_samples(sp.csr_array(broken)), before, rtol=1e-6)
    assert_allclose(sparse.contributions(sp.csr_array(broken)), named, atol=1e-6)
    assert sparse.partial_fit(sp.csr_array(broken)).estimator_.n_samples_seen_ == 200


OVER = """
FederatedPCA(3)
PCA(3)
TruncatedSVD(3)
SubspaceTracker(3)
GROUSE(3, random_state=0)
FederatedPCA(3, mechanism=AnalyzeGauss(float("inf"), 1e-3, 60.0), random_state=0)
""".strip().splitlines()


@pytest.mark.parametrize(
    ("code", "dtype"), [*((code, np.float64) for code in OVER), (OVER[3], "f4")]
)
def test_over_any_estimator(code, dtype):
    X, Y = rows(800).astype(dtype), rows(400, seed=1).astype(dtype)
    Y[::4, 3] += 15
    monitor = SubspaceMonitor(made(code)).fit(X)
    assert roc_auc_score(np.arange(400) % 4 == 0, -monitor.score_samples(Y)) > 0.98
    for row, score in zip(Y[:3], monitor.score_samples(Y[:3]), strict=True):
        assert_allclose(monitor.score_samples(row[None]), score, rtol=1e-3)


# ------------------------------------------------------------------------------ unlike units


def by_hand(X, new):
    """Q and T2 by PCA of scaled rows, with the variances of new rows (Ledoit and Peche)."""
    scaler, n = StandardScaler().fit(X), len(X)
    _, s, V = np.linalg.svd(scaler.transform(X), full_matrices=False)
    values, variances = s**2 / (n - 1), []
    for i in range(K):
        reach = values[i] * (1 + 1j / np.sqrt(n - 1)) - values[K:]
        variances.append(values[i] / np.abs(1 + np.sum(values[K:] / reach) / (n - 1)) ** 2)
    Y = scaler.transform(new)
    Z = Y @ V[:K].T
    return np.column_stack([np.sum((Y - Z @ V[:K]) ** 2, axis=1), np.sum(Z**2 / variances, axis=1)])


@pytest.mark.parametrize("name", ["StreamingPCA", "FederatedPCA", "DistributedPCA"])
def test_statistics_are_those_of_scaled_rows(name):
    X, new = rows(400) * UNITS, rows(100, seed=1) * UNITS
    monitor = SubspaceMonitor(made(f"{name}(3, scale=True)"), limits="chi2").fit(X)
    found = monitor.statistics(new) * [monitor.q_limit_, monitor.t2_limit_]
    assert_allclose(found, by_hand(X, new), rtol=1e-7)
    scaler = StandardScaler().fit(X)
    other = SubspaceMonitor(made(f"{name}(3)"), limits="chi2").fit(scaler.transform(X))
    assert_allclose(monitor.q_limit_, other.q_limit_, rtol=1e-9)
    assert_allclose(monitor.t2_limit_, other.t2_limit_, rtol=1e-12)
    for Y in (new, with_holes(new, 0.2)):
        scaled = scaler.transform(Y)
        assert_allclose(monitor.statistics(Y), other.statistics(scaled), rtol=1e-7)
        assert_allclose(monitor.contributions(Y), other.contributions(scaled), atol=1e-7)
    new[7, 0] += 12 * X[:, 0].std()  # a fault of the sensor with the smallest units
    assert chi2().fit(X).predict(new)[7] == 1
    assert monitor.predict(new)[7] == -1
    assert np.abs(monitor.contributions(new)[7]).argmax() == 0


def test_summaries_sparse_rows_constant_columns_weights_and_float32_are_scaled():
    """Sites that do not know of the scaling resolve columns a millionfold apart, not 1e11."""
    mild = UNITS**-0.5
    X, new, w = rows(400) * mild, rows(50, seed=1) * mild, np.arange(400) % 3
    here = chi2(scale=True).fit(X)
    parts = [Subspace.from_rows(part) for part in np.split(X, 4)]
    there = SubspaceMonitor.from_estimator(FederatedPCA.from_subspaces(parts, K, scale=True))
    assert_allclose(there.statistics(new), here.statistics(new), rtol=1e-7)
    whole = Subspace.from_bytes(Subspace.from_rows(X).to_bytes())
    pca = StreamingPCA.from_subspace(whole, K, scale=True)
    assert_allclose(SubspaceMonitor.from_estimator(pca).q_limit_, here.q_limit_, rtol=1e-8)
    assert_allclose(here.statistics(sp.csr_array(new)), here.statistics(new), rtol=1e-6)
    weighted, repeated = chi2(scale=True), chi2(scale=True).fit(np.repeat(X, w, axis=0))
    assert_allclose(weighted.fit(X, sample_weight=w).q_limit_, repeated.q_limit_, rtol=1e-8)
    single = (rows(300) - 5).astype(np.float32)
    found, exact = (chi2(scale=True).fit(Y).statistics(Y) for Y in (single, single.astype(float)))
    assert_allclose(found, exact, rtol=1e-3, atol=1e-3)
    assert chi2(scale=True).fit(X[:2]).q_limit_ == np.inf
    X[:, 5] = 7.0
    monitor = SubspaceMonitor(StreamingPCA(K, scale=True)).fit(X)
    assert np.isfinite(monitor.statistics(X)).all()
    assert 0 < np.mean(monitor.predict(X) == -1) < 0.15


@pytest.mark.parametrize("unit", [2.0**40, 2.0 ** -np.arange(D)], ids=["one", "unlike"])
def test_scaled_rows_without_noise_have_the_limit_of_rounding_in_any_units(unit):
    X = rows(200, noise=0.0)
    here, there = (chi2(scale=True).fit(Y) for Y in (X, X * unit))
    assert 0 < here.q_limit_ < 1e-9
    assert_allclose(there.q_limit_, here.q_limit_, rtol=1e-9)


# ------------------------------------------------------------------------------ streams


@pytest.mark.parametrize("scale", [False, True])
def test_rows_are_scored_before_they_are_learnt_and_moved_to_the_limit(scale):
    units = UNITS if scale else 1.0
    monitor = chi2(scale=scale).partial_fit(rows(300) * units)
    assert np.isnan(monitor.recent_scores_).all()
    X, twin = rows(60, seed=1), clone(monitor.estimator_).fit(rows(300) * units)
    X[7] += 1e4 * BASIS[K]
    X = X * units
    given, moved, mean = X.copy(), X.copy(), twin.mean_
    before, shares = monitor.score_samples(X), monitor.statistics(X).max(axis=1)
    flagged = monitor.predict(X) == -1
    assert flagged[7]
    assert before.argmin() == shares.argmax()
    moved[flagged] = mean + (X[flagged] - mean) / np.sqrt(shares[flagged])[:, None]
    assert_allclose(monitor.statistics(moved[flagged]).max(axis=1), 1, rtol=1e-9)
    assert_allclose(monitor.score_samples(moved[flagged]), monitor.offset_, rtol=1e-9)
    one = chi2(scale=scale).partial_fit(rows(300) * units)
    for row, score in zip(X[:5], before, strict=False):  # one model for a few rows
        assert_allclose(one.partial_fit(row[None]).recent_scores_, score, rtol=1e-9)
    assert_array_equal(monitor.partial_fit(X).recent_scores_, before)
    assert_array_equal(X, given)
    assert monitor.estimator_.n_samples_seen_ == 360
    twin.partial_fit(moved)
    assert_allclose(monitor.estimator_.components_, twin.components_, atol=1e-9)
    if scale:
        assert_allclose(monitor.estimator_.scale_, twin.scale_, rtol=1e-9)
    assert_array_equal(monitor.predict(given[7:8]), -1)
    assert monitor.fit(X).recent_scores_.shape == (0,)  # those of another model are gone


@pytest.mark.parametrize("limits", ["chi2", "quantile"])
def test_false_alarms_of_a_stream_stay_what_they_are(limits):
    # moved rows make variances a little less; what they would do to each other must not add up
    monitor = SubspaceMonitor(StreamingPCA(K), limits=limits).partial_fit(rows(200))
    X, found = rows(12_000, seed=5), []
    for batch in np.split(X, 60):
        found.append(np.mean(monitor.score_samples(batch) < monitor.offset_))
        monitor.partial_fit(batch)
    assert 0.04 <= np.mean(found[20:]) <= 0.06


@pytest.mark.parametrize("changed", [{"drift_window": 20}, {"drift_level": 0.1}])
def test_a_drift_test_stays_the_one_that_has_begun(changed):
    monitor = chi2().fit(rows(300)).set_params(**changed)
    with pytest.raises(ValueError, match=r"drift_\w+=.* differs from .*; call fit to start again"):
        monitor.partial_fit(rows(30))
    assert monitor.estimator_.n_samples_seen_ == 300
    assert monitor.fit(rows(300)).partial_fit(rows(30)).estimator_.n_samples_seen_ == 330


CHANGES = {
    "three times": (1.0, lambda X, seed: 5 + 3 * (X[1500:] - 5)),
    "jump": (0.99, lambda X, seed: rows(2500, seed=seed, basis=BASIS[K:])),
    "mean": (0.99, lambda X, seed: X[1500:] + 8),
    "burst": (1.0, lambda X, seed: np.concatenate([X[1500:1600] + 8, X[1600:]])),
}


@pytest.mark.parametrize("change", CHANGES)
def test_one_change_is_one_alarm_and_then_the_rate_is_right(change):
    factor, changed = CHANGES[change]
    found = []
    for seed in range(2):
        X = rows(4000, seed=seed)
        X[1500:] = changed(X, seed)
        monitor, flagged = SubspaceMonitor(StreamingPCA(K, forgetting_factor=factor)), []
        for part in np.split(X, 80):
            monitor.partial_fit(part)
            flagged.append(monitor.recent_scores_ < monitor.offset_)
        flagged = np.concatenate(flagged)
        (point,) = monitor.drift_points_
        assert 1450 <= point <= 1500  # of the batch before, at most
        assert change != "jump" or monitor.drift_angle_ > 0.9
        found.append([np.mean(flagged[part]) for part in (np.s_[300:1500], np.s_[2000:])])
    assert (np.abs(np.mean(found, axis=0) - 0.05) < 0.02).all()


def test_one_change_is_one_alarm_in_large_calls():
    for seed in range(4):
        pca = StreamingPCA(K, forgetting_factor=0.999)
        monitor = SubspaceMonitor(pca).fit(rows(2000, seed=seed))
        usual, others = rows(1000, seed=seed + 50), rows(3000, seed=seed + 99, basis=BASIS[K:])
        for part in np.split(np.concatenate([usual, others]), 8):
            monitor.partial_fit(part)
            assert len(monitor.recent_scores_) == 500
        (point,) = monitor.drift_points_
        assert 1000 < point <= 1020


def test_rows_that_are_not_normal_are_no_drift_at_the_start():
    """Rows in any order, with heavy tails, in large batches; and a change of the second batch."""
    alarms = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        X = rng.standard_t(3, (2000, 33)) * np.append([5.0, 3.0, 2.0], np.ones(30))
        monitor = SubspaceMonitor(StreamingPCA(3))
        for rows in np.split(X, 4):
            monitor.partial_fit(rows)
        alarms += len(monitor.drift_points_)
    assert alarms <= 1
    X = rng.standard_normal((1000, 33)) * np.append([5.0, 3.0, 2.0], np.ones(30))
    monitor = SubspaceMonitor(StreamingPCA(3)).partial_fit(X[:500]).partial_fit(X[500:, ::-1])
    assert monitor.drift_points_[0] <= 40


def test_a_row_after_an_alarm_has_no_more_influence_than_one_before():
    """Until limits are new, rows are moved to the larger of the limit before and those since."""
    monitor = SubspaceMonitor(StreamingPCA(K)).fit(rows(300))
    for row in rows(25, seed=1) + 40 * BASIS[K]:
        monitor.partial_fit(row[None])
    (seen,) = monitor.drift_points_
    assert seen < 25
    size = np.linalg.norm(monitor.estimator_.components_ @ BASIS[K])
    assert monitor.q_limit_ < 1e5
    monitor.partial_fit(rows(1, seed=3) + 1e6 * BASIS[K])
    assert np.linalg.norm(monitor.estimator_.components_ @ BASIS[K]) < max(2 * size, 0.99)
    assert monitor.estimator_.explained_variance_[0] < 1e4


# ------------------------------------------------------------------------------ what is handed on


def test_times_clients_and_weights_reach_the_estimator():
    X, times = rows(600), np.datetime64("2026-01-01") + np.arange(600).astype("timedelta64[m]")
    pca = StreamingPCA(K, half_life="2h")
    monitor = SubspaceMonitor(pca).fit(X[:300], times=times[:300])
    assert 0.02 < np.mean(monitor.predict(rows(2000, seed=3)) == -1) < 0.09
    monitor.partial_fit(X[300:], times=times[300:])
    assert monitor.estimator_.subspace_.n_samples < 250  # they have faded
    sites = SubspaceMonitor(FederatedPCA(K)).fit(X[:90], clients=np.arange(90) % 3)
    assert sites.estimator_.clients_ == [0, 1, 2]
    assert sites.partial_fit(X[:20], clients=[3] * 20).estimator_.clients_ == [0, 1, 2, 3]
    w = np.arange(600) % 3
    weighted, repeated = chi2().fit(X, sample_weight=w), chi2().fit(np.repeat(X, w, axis=0))
    assert_allclose(weighted.q_limit_, repeated.q_limit_, rtol=1e-9)
    bare, beside = SubspaceMonitor(StreamingPCA(K)).fit(X), SubspaceMonitor(StreamingPCA(K)).fit(X)
    for some in np.split(rows(600, seed=1), 3):  # rows without weight say nothing of drift either
        bare.partial_fit(some)
        mixed = sp.csr_array(np.hstack([some, some + 99]).reshape(-1, D))
        beside.partial_fit(mixed, sample_weight=np.tile([1.0, 0.0], 200))
    assert_array_equal(beside.drift_points_, bare.drift_points_)
    assert_allclose(beside.offset_, bare.offset_)
    private = FederatedPCA(K, mechanism=AnalyzeGauss(1e6, 1e-3, 90.0), random_state=0)
    # a mechanism has no account of the fits that scores of rows held out would take
    limits = [SubspaceMonitor(private, **o).fit(X).q_limit_ for o in ({}, {"limits": "chi2"})]
    assert limits[0] == limits[1]
    for model, given, words in (
        (pca, {"times": None}, "half_life='2h' needs times"),
        (StreamingPCA(K), {"times": times}, "times were given, but half_life=None"),
        (PCA(K), {"times": times}, "times is given, but fit of the estimator PCA takes none"),
        (pca, {"times": times[:5]}, r"times must have shape \(600,\)"),
        (PCA(K), {"clients": w}, "clients is given, but fit of the estimator PCA"),
        (PCA(K), {"sample_weight": w}, "sample_weight is given, but fit of the estimator PCA"),
        (FederatedPCA(K), {"clients": [1, 2]}, r"clients must have shape \(600,\)"),
    ):
        with pytest.raises(ValueError, match=words):
            SubspaceMonitor(model).fit(X, **given)


def test_names_pipelines_and_frozen_estimators():
    X = pd.DataFrame(rows(600), columns=[f"sensor {i}" for i in range(D)])
    fitted = StreamingPCA(K).fit(X)
    there, here = SubspaceMonitor.from_estimator(fitted), SubspaceMonitor(StreamingPCA(K)).fit(X)
    for monitor in (there, here):
        monitor.partial_fit(X)
        with pytest.raises(ValueError, match="feature names"):
            monitor.predict(X.iloc[:, ::-1])
        with pytest.warns(UserWarning, match="does not have valid feature names"):
            monitor.predict(rows(600))
    pipe = make_pipeline(StandardScaler(), SubspaceMonitor(StreamingPCA(K))).fit(X)
    assert pipe.predict(X).min() == -1
    frozen = FrozenEstimator(StreamingPCA(K).fit(rows(600)))
    monitor = SubspaceMonitor(frozen, limits="quantile").fit(rows(500, seed=1))
    assert abs(np.mean(monitor.predict(rows(4000, seed=2)) == -1) - 0.05) < 0.03
    assert fitted.n_samples_seen_ == frozen.estimator.n_samples_seen_ == 600


def test_the_control_chart_shows_rows_limit_and_alarms():
    monitor, Y = SubspaceMonitor(StreamingPCA(K)).fit(rows(300)), rows(50, seed=1)
    Y[4] += 30 * BASIS[K]
    display = ControlChartDisplay.from_estimator(monitor, Y, name="line 3")
    assert_array_equal(display.line_.get_ydata(), -monitor.score_samples(Y))
    assert_array_equal(display.limit_line_.get_ydata(), -monitor.offset_)
    flagged = np.flatnonzero(monitor.predict(Y) == -1) + 1
    assert_array_equal(display.flagged_line_.get_xdata(), flagged)
    assert 5 in flagged
    assert display.ax_.get_legend().get_texts()[0].get_text() == "line 3"
    plt.close(display.figure_)


@pytest.mark.parametrize("limits", ["chi2", "quantile"])
def test_rows_are_infinitely_unlike_constant_ones_without_a_word(limits):
    monitor = SubspaceMonitor(StreamingPCA(1), limits=limits).fit(np.zeros((60, 2)))
    far = monitor.predict([[1e9, 0.0], [0.0, 0.0]])  # warnings are errors here
    monitor.partial_fit(np.full((3, 2), 1e-300)).predict(np.ones((2, 2)))
    assert far.tolist() == [-1, 1]
    X = np.random.default_rng(0).standard_normal((60, 2)) * 1e-156  # variances without an inverse
    found = SubspaceMonitor(StreamingPCA(1), limits=limits).fit(X).predict(X)
    assert np.mean(found == 1) > 0.9
