"""Alternating projections where many entries are exactly zero, which say nothing of the noise.

Judged by the rows before they were corrupted: what components leave of them, over what those of
principal component analysis of these rows leave.
"""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from fedpca_sklearn import (
    AlternatingProjections,
    RobustSubspaceTracker,
    make_power_law,
    make_subspace_stream,
    subspace_distance,
)

nan = np.nan


def noisy(n=1000, d=40, k=3, noise=0.3, seed=0):
    """Rows near a subspace through the origin."""
    rng = np.random.default_rng(seed)
    X = 3 * rng.standard_normal((n, k)) @ rng.standard_normal((k, d))
    return X + noise * rng.standard_normal((n, d))


def spikes(shape, share, seed=1, size=(20.0, 40.0)):
    """Sparse matrix of outliers of both signs."""
    rng = np.random.default_rng(seed)
    return (rng.random(shape) < share) * rng.choice([-1, 1], shape) * rng.uniform(*size, shape)


def bordered_digits():
    X = load_digits().data
    frames = np.zeros((len(X), 12, 12))
    frames[:, 2:10, 2:10] = X.reshape(-1, 8, 8)
    return frames.reshape(len(X), -1)


def counts(level=0.8, seed=0):
    rng = np.random.default_rng(seed)
    rates = rng.gamma(0.5, 1, (800, 4)) @ rng.gamma(0.3, 1, (4, 60))
    return rng.poisson(level * rates).astype(float)


def indicators(seed=0):
    """Columns of categories that depend on three factors."""
    rng = np.random.default_rng(seed)
    factors = rng.standard_normal((1000, 3))
    columns = []
    for n in (3, 4, 5, 6, 8):
        p = np.exp(2 * factors @ rng.standard_normal((3, n)))
        p = (p / p.sum(axis=1, keepdims=True)).cumsum(axis=1)
        columns.append((p > rng.random((1000, 1))).argmax(axis=1)[:, None] == np.arange(n))
    return np.hstack(columns).astype(float)


def heavy_tails(seed=0):
    rng = np.random.default_rng(seed)
    X = np.sinh(0.7 * rng.standard_normal((2000, 3)) @ rng.standard_normal((3, 8)))
    return StandardScaler().fit_transform(X + 0.3 * rng.standard_t(2.5, X.shape))


DATA = {
    "digits": (load_digits().data, 10),
    "digits with a border": (bordered_digits(), 10),
    "counts": (counts(), 4),
    "categories": (indicators(), 5),
    "categories and numbers": (np.c_[indicators(), noisy(1000, 8)], 5),
    "cancer": (StandardScaler().fit_transform(load_breast_cancer().data), 5),
    "wine": (StandardScaler().fit_transform(load_wine().data), 5),
    "heavy tails": (heavy_tails(), 3),
    "zero columns": (np.c_[noisy(), np.zeros((1000, 41))], 3),
    "zero rows": (np.r_[noisy(), np.zeros((1500, 40))], 3),
}


def principal(X, k, center):
    return PCA(k).fit(X).components_ if center else np.linalg.svd(X, full_matrices=False)[2][:k]


def left(X, V, center):
    """Squares of rows that components leave, about the mean or the origin."""
    Z = X - X.mean(axis=0) if center else X
    return np.sum((Z - Z @ V.T @ V) ** 2)


# ------------------------------------------------------------------------------ rows with zeros


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("kind", DATA)
def test_clean_rows_with_zeros_are_nearly_as_by_pca(kind, center):
    X, k = DATA[kind]
    model = AlternatingProjections(k, center=center).fit(X)
    best = left(X, principal(X, k, center), center)
    assert left(X, model.components_, center) <= 1.2 * best
    assert np.mean(model.sparse_ != 0) < 0.02
    assert np.mean(model.decompose(X)[1] != 0) < 0.02


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("kind", DATA)
def test_gross_outliers_in_rows_with_zeros_are_found(kind, center):
    X, k = DATA[kind]
    size = 10 * X.std(axis=0).max()
    off = spikes(X.shape, 0.05, size=(size, 2 * size))
    model = AlternatingProjections(k, center=center).fit(X + off)
    best = left(X, principal(X, k, center), center)
    assert left(X, model.components_, center) <= 1.2 * best
    assert left(X, principal(X + off, k, center), center) > 1.5 * best
    found = model.sparse_ != 0
    assert found[off != 0].all()
    assert found[off == 0].mean() < 0.02


@pytest.mark.parametrize("where", ["columns", "rows", "both"])
@pytest.mark.parametrize("many", [0.5, 2.0, 5.0])
def test_zeros_beside_the_data_change_nothing(where, many):
    X = noisy(600) + spikes((600, 40), 0.05)
    n, d = (
        (0 if where == "columns" else int(many * 600)),
        (0 if where == "rows" else int(many * 40)),
    )
    alone = AlternatingProjections(3, threshold_scale=0.03).fit(X)
    model = AlternatingProjections(3, threshold_scale=0.03).fit(np.pad(X, [(0, n), (0, d)]))
    assert_allclose(model.low_rank_, np.pad(alone.low_rank_, [(0, n), (0, d)]), atol=1e-10)
    assert_array_equal(model.sparse_ != 0, np.pad(alone.sparse_ != 0, [(0, n), (0, d)]))
    assert model.n_iter_ == alone.n_iter_
    more = noisy(600, seed=0)[:50] + spikes((50, 40), 0.05, seed=2)
    found = model.decompose(np.pad(more, [(0, 0), (0, d)]))[1]
    assert_array_equal(found[:, :40] != 0, alone.decompose(more)[1] != 0)


def test_constant_columns_are_as_columns_of_zeros():
    X = noisy() + spikes((1000, 40), 0.05)
    fixed = np.tile(np.linspace(-7, 7, 60), (1000, 1))
    model = AlternatingProjections(3, center=True).fit(np.c_[X, fixed])
    alone = AlternatingProjections(3, center=True).fit(X)
    assert_array_equal(model.sparse_ != 0, np.pad(alone.sparse_ != 0, [(0, 0), (0, 60)]))
    # the caller's own centring leaves rounding errors of them
    fixed = np.full((1000, 60), 0.1) * np.linspace(1, 7, 60)
    fixed -= fixed.mean(axis=0)
    assert np.count_nonzero(fixed) > 0.8 * fixed.size
    model = AlternatingProjections(3).fit(np.c_[X, fixed])
    alone = AlternatingProjections(3).fit(X)
    assert_array_equal(model.sparse_ != 0, np.pad(alone.sparse_ != 0, [(0, 0), (0, 60)]))


@pytest.mark.parametrize("kind", ["counts", "digits with a border"])
def test_sparse_matrices_are_as_dense_ones(kind):
    X, k = DATA[kind]
    sparse = AlternatingProjections(k).fit(sp.csr_matrix(X))
    assert_array_equal(sparse.low_rank_, AlternatingProjections(k).fit(X).low_rank_)


@pytest.mark.parametrize("scale", [1e-100, 1e100])
def test_counts_are_separated_in_their_units(scale):
    model, scaled = (AlternatingProjections(4).fit(s * counts()) for s in (1.0, scale))
    assert_allclose(scaled.low_rank_ / scale, model.low_rank_, atol=1e-9)


def test_missing_entries_are_no_zeros():
    X = np.c_[noisy(), np.zeros((1000, 60))]
    off = spikes(X.shape, 0.05)
    hidden = np.random.default_rng(2).random(X.shape) < 0.1
    model = AlternatingProjections(3).fit(np.where(hidden, nan, X + off))
    assert_array_equal(model.sparse_ != 0, (off != 0) & ~hidden)


# ------------------------------------------------------------------- low rank and sparse, exactly


@pytest.mark.parametrize("turned", [False, True], ids=["columns", "rows"])
@pytest.mark.parametrize(("zeros", "share"), [(0.5, 0.05), (0.5, 0.1), (0.8, 0.05)])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_outliers_beside_the_low_rank_part_are_found(turned, zeros, share, noise):
    rng = np.random.default_rng(4)
    L = rng.standard_normal((400, 3)) @ rng.standard_normal((3, 200))
    X = L + noise * rng.standard_normal(L.shape)
    empty = rng.random(200) < zeros
    L[:, empty], X[:, empty] = 0, 0
    S = spikes(X.shape, share, size=(8.0, 12.0))
    L, X, S = (M.T if turned else M for M in (L, X, S))
    model = AlternatingProjections(3).fit(X + S)
    assert_array_equal(model.sparse_ != 0, S != 0)
    # noise in the three directions, more where entries are lost
    bound = 1e-3 * np.linalg.norm(L) + 1.5 * noise * np.sqrt(3 * (400 + 200 * (1 - zeros)))
    assert np.linalg.norm(model.low_rank_ - L) <= bound


def test_blocks_are_of_low_rank():
    rng = np.random.default_rng(5)
    u, v = rng.uniform(0.5, 1.5, (100, 1)), rng.uniform(0.5, 1.5, (1, 50))
    L = np.kron(np.eye(4), u @ v)
    S = spikes(L.shape, 0.05, size=(8.0, 8.0))
    model = AlternatingProjections(4).fit(L + S)
    assert_array_equal(model.sparse_ != 0, S != 0)
    assert np.linalg.norm(model.low_rank_ - L) < 1e-3 * np.linalg.norm(L)


def film(noise, seed=0):
    """A scene whose left half is black, and an object that crosses it."""
    rng = np.random.default_rng(seed)
    scene = rng.uniform(50, 200, (20, 20))
    scene[:, :10] = 0
    mask = np.zeros((100, 20, 20), dtype=bool)
    for t in range(100):
        mask[t, 3 * t % 16 :, t // 5 % 16 :][:5, :5] = True
    X = scene + noise * rng.standard_normal(mask.shape) * (scene > 0)
    return np.where(mask, 250.0, X).reshape(100, -1), mask.reshape(100, -1)


@pytest.mark.parametrize(("noise", "center"), [(0.0, False), (2.0, False), (2.0, True)])
def test_an_object_before_a_scene_that_is_half_black_is_found(noise, center):
    X, mask = film(noise)
    assert_array_equal(AlternatingProjections(1, center=center).fit(X).sparse_ != 0, mask)


# -------------------------------------------------------------------- what cannot be told is told


def test_nothing_but_outliers_is_told():
    X, _ = film(0.0)
    with pytest.warns(UserWarning, match="Most entries are the median.*or set center=False"):
        AlternatingProjections(1, center=True).fit(X)


def test_few_counts_of_which_little_is_explained_are_told():
    X = counts(0.2)
    with pytest.warns(UserWarning, match="Most entries are 0, .* Raise n_components; PCA"):
        model = AlternatingProjections(4).fit(X)
    assert left(X, model.components_, False) <= 1.2 * left(X, principal(X, 4, False), False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AlternatingProjections(30).fit(X)


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.filterwarnings("ignore:Most entries are 0:UserWarning")
def test_rare_categories_are_not_all_outliers(k):
    kind = np.random.default_rng(0).permutation(np.repeat(np.arange(50), np.arange(1, 51)))
    X = np.eye(50)[kind]
    model = AlternatingProjections(k).fit(X)
    assert_array_equal(model.sparse_, 0)
    assert model.explained_variance_.min() > 0
    assert left(X, model.components_, False) <= 1.001 * left(X, principal(X, k, False), False)


# --------------------------------------------------------------------------------- the tracker's


def test_a_tracker_starts_from_rows_with_zeros():
    X = np.c_[noisy(), np.zeros((1000, 60))]
    off = spikes(X.shape, 0.05)
    tracker = RobustSubspaceTracker(3).fit(X + off)
    assert subspace_distance(tracker.components_, principal(X, 3, True)) < 0.05
    wrong = tracker.outlier_mask_[:, :40] != (off[:, :40] != 0)
    # a threshold of residuals: of 38,000 entries without a spike the largest noise may be above it
    assert wrong.mean() < 1e-4
    assert not wrong[off[:, :40] != 0].any()


@pytest.mark.parametrize("zeros", [0, 130, 500])
def test_columns_of_zeros_do_not_hide_a_majority_of_outliers(zeros):
    rng = np.random.default_rng(0)
    X = make_subspace_stream(200, 120, 5, delta=0, outliers=0, random_state=0).X.copy()
    hit = rng.random(X.shape) < 0.6
    X[hit] += rng.choice([-1, 1], hit.sum()) * rng.uniform(10, 25, hit.sum())
    with pytest.warns(UserWarning, match="half of the entries are outliers"):
        RobustSubspaceTracker(5).fit(np.c_[X, np.zeros((200, zeros))])


def test_columns_in_larger_units_than_most_are_warned_of():
    X = make_power_law(1000, 40, alpha=1.5, random_state=9) + 1
    AlternatingProjections(10).fit(X)
    X[:, 20:] /= 1000
    with pytest.warns(UserWarning, match=r"of \d+ of 40 features are outliers.*standardise"):
        AlternatingProjections(10).fit(X)
    AlternatingProjections(10, center=True).fit((X - X.mean(axis=0)) / X.std(axis=0))
