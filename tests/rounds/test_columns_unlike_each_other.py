"""Clean rows whose columns are constant, silent, rare or in unlike units, beside plain PCA."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from fedpca_sklearn import (
    FederatedSubspaceTracker,
    RobustSubspaceTracker,
    reconstruction_error,
    subspace_distance,
)

TRACKERS = {
    "all rows": RobustSubspaceTracker,
    "clients": lambda k: FederatedSubspaceTracker(k, n_clients=4, random_state=0),
    "one client": lambda k: FederatedSubspaceTracker(k, n_clients=1, random_state=0),
}
every_tracker = pytest.mark.parametrize("tracker", TRACKERS)


def low_rank(n, d, seed=0):
    rng = np.random.default_rng(seed)
    return 3 * rng.standard_normal((n, 3)) @ rng.standard_normal((3, d)) + 0.3 * (
        rng.standard_normal((n, d))
    )


def worse_than_pca(model, X, k):
    """Error of reconstruction over that of scikit-learn's PCA of all rows."""
    best = PCA(k).fit(X)
    errors = (reconstruction_error(X, m.components_, m.mean_) for m in (model, best))
    return next(errors) / next(errors)


@every_tracker
@pytest.mark.parametrize(("n_constant", "worse"), [(6, 1.02), (12, 1.02), (16, 1.02), (24, 1.4)])
def test_constant_columns_say_nothing_about_the_others(tracker, n_constant, worse):
    X = low_rank(1000, 40)
    X[:, :n_constant] = 7.0
    model = TRACKERS[tracker](3).fit(X)
    assert worse_than_pca(model, X, 3) < worse
    assert model.outlier_mask_.mean() < 0.1


@every_tracker
def test_counts_that_are_mostly_zero_are_no_outliers(tracker):
    rng = np.random.default_rng(0)
    X = np.where(rng.random((1000, 40)) < 0.7, 0, rng.exponential(1, (1000, 40)))
    model = TRACKERS[tracker](4).fit(X)
    assert worse_than_pca(model, X, 4) < 1.1
    assert model.outlier_mask_.mean() < 0.06


@every_tracker
@pytest.mark.parametrize("unit", [1e-2, 1e-4])
@pytest.mark.parametrize("n_small", [6, 20])
def test_columns_in_small_units_say_nothing_about_the_others(tracker, n_small, unit):
    X = low_rank(1000, 40)
    X[:, :n_small] *= unit
    model = TRACKERS[tracker](3).fit(X)
    assert worse_than_pca(model, X, 3) < 1.2
    assert model.outlier_mask_.mean() < 0.06


@every_tracker
def test_rare_pixels_of_clean_digits_are_hardly_outliers(tracker):
    X = load_digits().data
    model = TRACKERS[tracker](10).fit(X)
    assert worse_than_pca(model, X, 10) < 1.15
    assert model.outlier_mask_.mean() < 0.06


@every_tracker
@pytest.mark.filterwarnings("ignore:No entry of a batch is an outlier")  # one of both kinds
@pytest.mark.parametrize("n_silent", [1, 99, 150, 300])
def test_a_stream_may_begin_with_rows_of_zeros(tracker, n_silent):
    X = low_rank(2000, 12) + 5
    model = TRACKERS[tracker](3).fit(np.r_[np.zeros((n_silent, 12)), X])
    assert worse_than_pca(model, X, 3) < 1.02


@every_tracker
@pytest.mark.parametrize("n_late", [100, 300])
def test_a_feature_that_comes_late_is_learnt(tracker, n_late):
    X = low_rank(3000, 15) + 5
    Y = X.copy()
    Y[:n_late, 3] = np.nan
    model = TRACKERS[tracker](3).fit(Y)
    assert not model.outlier_mask_[-500:, 3].any()
    assert model.mean_[3] == pytest.approx(X[:, 3].mean(), abs=0.5)
    assert subspace_distance(model.components_, PCA(3).fit(X).components_) < 0.1
    assert np.isfinite(model.support_threshold_).all()


@every_tracker
def test_a_feature_without_entries_has_no_threshold_yet(tracker):
    X = low_rank(400, 15)
    X[:, 3] = np.nan
    threshold = TRACKERS[tracker](3).fit(X).support_threshold_
    assert np.flatnonzero(np.isinf(threshold)).tolist() == [3]
