"""SubspaceMonitor of columns in unlike units: beside numpy on rows that StandardScaler scaled."""

import copy
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import with_holes
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.preprocessing import StandardScaler

from fedpca_sklearn import (
    DistributedPCA,
    FederatedPCA,
    StreamingPCA,
    Subspace,
    SubspaceMonitor,
)

D, K = 12, 3
# limits by formulas, which are compared with those by hand
chi2_monitor = partial(SubspaceMonitor, limits="chi2")
UNITS = 10.0 ** np.arange(-5, 7)


def rows(n, seed=0):
    """Sensors in unlike units, means far from zero."""
    rng = np.random.default_rng(seed)
    mixing = np.random.default_rng(99).standard_normal((K, D))
    X = rng.standard_normal((n, K)) * [4, 3, 2] @ mixing + rng.standard_normal((n, D))
    return (X + 300.0) * UNITS


def by_hand(X, new, k=K):
    """Q and T2 by PCA of scaled rows, with the variances of new rows (Ledoit and Peche)."""
    scaler, n = StandardScaler().fit(X), len(X)
    _, s, V = np.linalg.svd(scaler.transform(X), full_matrices=False)
    values = s**2 / (n - 1)
    variances = []
    for i in range(k):
        reach = values[i] * (1 + 1j / np.sqrt(n - 1)) - values[k:]
        variances.append(values[i] / np.abs(1 + np.sum(values[k:] / reach) / (n - 1)) ** 2)
    Y = scaler.transform(new)
    Z = Y @ V[:k].T
    return np.sum((Y - Z @ V[:k]) ** 2, axis=1), np.sum(Z**2 / variances, axis=1)


@pytest.mark.parametrize(
    "estimator",
    [
        StreamingPCA(K, scale=True),
        FederatedPCA(K, scale=True),
        DistributedPCA(K, scale=True),
    ],
    ids=lambda e: type(e).__name__,
)
def test_statistics_are_those_of_scaled_rows(estimator):
    X, new = rows(400), rows(100, seed=1)
    monitor = chi2_monitor(estimator).fit(X)
    q, t2 = by_hand(X, new)
    found = monitor.statistics(new) * [monitor.q_limit_, monitor.t2_limit_]
    assert_allclose(found, np.column_stack([q, t2]), rtol=1e-8)
    scaler = StandardScaler().fit(X)
    other = chi2_monitor(clone(estimator).set_params(scale=False)).fit(scaler.transform(X))
    assert_allclose(monitor.q_limit_, other.q_limit_, rtol=1e-9)
    assert_allclose(monitor.t2_limit_, other.t2_limit_, rtol=1e-12)
    scaled = scaler.transform(new)
    assert_allclose(monitor.contributions(new), other.contributions(scaled), atol=1e-8)
    assert abs(np.mean(monitor.predict(rows(4000, seed=2)) == -1) - 0.05) < 0.025


def test_a_fault_of_a_sensor_with_small_units():
    X, new = rows(400), rows(60, seed=1)
    new[7, 0] += 12 * X[:, 0].std()
    raw = chi2_monitor(StreamingPCA(K)).fit(X)
    assert raw.predict(new)[7] == 1  # 1e11 times smaller than the largest column
    monitor = chi2_monitor(StreamingPCA(K, scale=True)).fit(X)
    assert monitor.predict(new)[7] == -1
    assert np.abs(monitor.contributions(new)[7]).argmax() == 0


def test_summaries_at_a_coordinator_and_sparse_rows():
    """Sites that do not know of the scaling resolve columns a millionfold apart, not 1e11."""
    mild = UNITS**-0.5
    X, new = rows(400) * mild, rows(50, seed=1) * mild
    here = chi2_monitor(StreamingPCA(K, scale=True)).fit(X)
    parts = [Subspace.from_rows(part) for part in np.split(X, 4)]
    there = SubspaceMonitor.from_estimator(FederatedPCA.from_subspaces(parts, K, scale=True))
    assert_allclose(there.statistics(new), here.statistics(new), rtol=1e-7)
    whole = Subspace.load(saved(Subspace.from_rows(X)))
    pca = StreamingPCA.from_subspace(whole, K, scale=True)
    assert_allclose(SubspaceMonitor.from_estimator(pca).q_limit_, here.q_limit_, rtol=1e-8)
    assert_allclose(here.statistics(sp.csr_array(new)), here.statistics(new), rtol=1e-6)


def saved(summary):
    import io

    file = io.BytesIO()
    summary.save(file)
    file.seek(0)
    return file


def test_rows_are_scored_by_the_scales_before_they_are_learnt():
    X, new = rows(300), rows(100, seed=1)
    new[:, 4] = (new[:, 4] - new[:, 4].mean()) * 9 + new[:, 4].mean()
    monitor = chi2_monitor(StreamingPCA(K, scale=True)).partial_fit(X)
    before = monitor.score_samples(new)
    largest = max(by_hand(X, new)[0])
    shares = monitor.statistics(new)
    assert_allclose(shares[:, 0].max(), largest / monitor.q_limit_, rtol=1e-7)
    assert before.argmin() == shares.max(axis=1).argmax()
    scales = monitor.estimator_.scale_
    assert_array_equal(monitor.partial_fit(new).recent_scores_, before)
    assert monitor.estimator_.scale_[4] > 1.1 * scales[4]  # flagged rows are moved, then learnt
    one = chi2_monitor(StreamingPCA(K, scale=True)).partial_fit(X)
    for row, score in zip(new[:5], before, strict=False):  # one model for a few rows
        assert_allclose(one.partial_fit(row[None]).recent_scores_, score, rtol=1e-9)


def test_a_row_above_the_limit_is_moved_to_it():
    monitor, X = chi2_monitor(StreamingPCA(K, scale=True)).partial_fit(rows(300)), rows(20, 1)
    X[3] += 50 * UNITS
    shares = monitor.statistics(X).max(axis=1)
    before = copy.copy(monitor)
    monitor.partial_fit(X)
    twin = StreamingPCA(K, scale=True).fit(rows(300))
    mean = twin.mean_
    flagged = shares > 1
    assert flagged[3]
    X[flagged] = mean + (X[flagged] - mean) / np.sqrt(shares[flagged])[:, None]
    assert_allclose(before.statistics(X[flagged]).max(axis=1), 1, rtol=1e-9)
    assert_allclose(monitor.estimator_.scale_, twin.partial_fit(X).scale_, rtol=1e-9)


def test_missing_entries_are_scaled_as_the_others_are():
    """No estimator is fitted to both today; rows with holes are scored."""
    X, new = rows(400), with_holes(rows(40, seed=1), 0.2)
    scaler = StandardScaler().fit(X)
    monitor = SubspaceMonitor(StreamingPCA(K, scale=True)).fit(X)
    other = SubspaceMonitor.from_estimator(StreamingPCA(K).fit(scaler.transform(X)))
    there = SubspaceMonitor.from_estimator(monitor.estimator_)
    scaled = scaler.transform(new)
    assert_allclose(there.statistics(new), other.statistics(scaled), rtol=1e-7)
    assert_allclose(monitor.contributions(new), other.contributions(scaled), atol=1e-8)


def test_constant_columns_quantiles_weights_and_float32():
    X = rows(300)
    X[:, 5] = 7.0
    monitor = SubspaceMonitor(StreamingPCA(K, scale=True)).fit(X)
    assert np.isfinite(monitor.statistics(X)).all()
    assert 0 < np.mean(monitor.predict(X) == -1) < 0.15
    w = np.arange(300) % 3
    weighted = chi2_monitor(StreamingPCA(K, scale=True)).fit(rows(300), sample_weight=w)
    repeated = chi2_monitor(StreamingPCA(K, scale=True)).fit(np.repeat(rows(300), w, axis=0))
    assert_allclose(weighted.q_limit_, repeated.q_limit_, rtol=1e-8)
    few = chi2_monitor(StreamingPCA(K, scale=True)).fit(rows(2))
    assert few.q_limit_ == np.inf
    centred = (rows(300) / UNITS - 300).astype(np.float32) * UNITS.astype(np.float32)
    single = chi2_monitor(StreamingPCA(K, scale=True)).fit(centred)
    double = chi2_monitor(StreamingPCA(K, scale=True)).fit(centred.astype(float))
    assert_allclose(single.statistics(centred), double.statistics(centred), rtol=1e-3, atol=1e-3)


def test_confounders_are_refused():
    with pytest.raises(ValueError, match=r"partial_out=None.*give the monitor rows"):
        chi2_monitor(StreamingPCA(2, partial_out=[0], scale=True)).fit(rows(50))
    fitted = StreamingPCA(2, partial_out=[0]).fit(rows(50))
    with pytest.raises(ValueError, match=r"partial_out=None"):
        SubspaceMonitor.from_estimator(fitted)
