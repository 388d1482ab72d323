"""Summaries of scaled rows, and of what confounders leave, against scikit-learn on the rows."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import sine
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import StandardScaler

from fedpca_sklearn import (
    DistributedPCA,
    FederatedPCA,
    FederatedScaler,
    StreamingPCA,
    Subspace,
    excess_error,
    make_power_law,
)
from fedpca_sklearn.summary._adjusted import Adjusting, adjusted


def rows_of(seed=0, n=300, d=12, spread=6.0, mean=3.0):
    """Correlated columns with deviations from 10^-spread to 10^spread, about other means."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) @ (rng.standard_normal((d, d)) + 2 * np.eye(d)) + mean
    return X * 10.0 ** rng.permutation(np.linspace(-spread, spread, d))


def left_by(X, confounders, weight=None):
    """Residuals of least squares with an intercept, by scikit-learn."""
    if not confounders:
        return X
    C, Y = X[:, confounders], np.delete(X, confounders, axis=1)
    C, size = (C - C.mean(axis=0)) / C.std(axis=0), Y.std(axis=0)
    fit = LinearRegression().fit(C, Y / size, sample_weight=weight)
    return (Y / size - fit.predict(C)) * size


def assert_scaled(pca, Y, tol=1e-10):
    """Variances, components and deviations of the scaled rows."""
    expected = PCA(pca.n_components_, svd_solver="full").fit(StandardScaler().fit_transform(Y))
    assert_allclose(pca.explained_variance_, expected.explained_variance_, rtol=tol)
    assert sine(pca.components_, expected.components_) < tol
    assert_allclose(pca.scale_, Y.std(axis=0), rtol=tol)


# -------------------------------------------------------------------------- a summary, adjusted


def test_a_full_set_of_dummies_and_a_constant_confounder():
    X = rows_of(1, 60, 6, spread=0.0, mean=5.0)
    X[:, :3] = np.eye(3)[np.arange(60) % 3]  # add up to one
    X[:, 3] = 7.0
    model, how, along, _ = adjusted(Subspace.from_rows(X), Adjusting(False, (0, 1, 2, 3)))
    groups = np.stack([X[i::3, 4:] - X[i::3, 4:].mean(axis=0) for i in range(3)]).reshape(60, 2)
    assert_allclose(model.singular_values, np.linalg.svd(groups, compute_uv=False), rtol=1e-12)
    assert len(along) == 2
    assert_array_equal(how.effects[3], 0)
    rest = how.adjust(X - X.mean(axis=0))
    assert_allclose(np.stack([rest[i::3] for i in range(3)]).reshape(60, 2), groups)


# -------------------------------------------------------------------------- estimators


@pytest.mark.parametrize("kind", [StreamingPCA, FederatedPCA])
def test_float32_columns_whose_squares_vanish_are_scaled_as_well(kind):
    X = (rows_of(7, 200, 6, spread=0.0, mean=0.0) * [3, 2, 1, 1, 1, 1e-25]).astype(np.float32)
    assert_scaled(kind(2, scale=True).fit(X), X.astype(np.float64), tol=1e-5)


def test_sparse_columns_that_are_alike_are_cut_as_they_are():
    """Deviations between a quarter and a half have the same unit."""
    rng = np.random.default_rng(0)
    X = (rng.random((400, 300)) < 0.15) * 1.0
    X[:, 1:12] = np.where(rng.random((400, 11)) < 0.9, X[:, :1], X[:, 1:12])
    X[:, 13:18] = np.where(rng.random((400, 5)) < 0.9, X[:, 12:13], X[:, 13:18])
    pca = StreamingPCA(2, oversampling=10, scale=True).fit(sp.csr_array(X))
    assert len(pca.subspace_.components) < 300
    assert_allclose(pca.scale_, X.std(axis=0), rtol=1e-12)
    Z = StandardScaler().fit_transform(X)
    assert 0.25 < X.std(axis=0).min() < X.std(axis=0).max() < 0.5
    assert sine(pca.components_, np.linalg.svd(Z, full_matrices=False)[2][:2]) < 1e-3
    for rows in (sp.csr_array(1e200 * X), 1e200 * np.concatenate([X, X])):
        with pytest.raises(ValueError, match="their sum of squares overflows float64"):
            pca.fit(rows)


@pytest.fixture
def solved(monkeypatch):
    """Orders of the eigenproblems and decompositions that numpy and scipy are asked for."""
    import scipy.linalg

    orders = []

    def count(module, name):
        solve = getattr(module, name)
        monkeypatch.setattr(module, name, lambda A, **kw: orders.append(len(A)) or solve(A, **kw))

    for module, names in ((np.linalg, ("eigh", "svd")), (scipy.linalg, ("eigh", "svd", "qr"))):
        for name in names:
            count(module, name)
    return orders


def test_scatter_matrices_of_sites_are_added_up(solved):
    X = rows_of(1, 600, 60)
    pca = FederatedPCA(10, scale=True, n_clients=4).fit(X)
    assert len(pca.components_) == 10
    assert len(solved) == 5  # for what each site sends, and for the sum
    assert_scaled(pca, X)


@pytest.mark.parametrize("kind", [StreamingPCA, FederatedPCA, DistributedPCA])
def test_what_is_read_or_copied_in_between_changes_no_bit(kind):
    """And directions that are read later have the digits of each column."""
    X = rows_of(3, spread=8.0 if kind is StreamingPCA else 6.0)
    parts = {} if kind is StreamingPCA else {"clients": np.arange(150) % 3}
    pca, read = (kind(3, scale=True).fit(X[:150], **parts) for _ in range(2))
    assert read.subspace_.components.shape == (12, 12)
    copied = pickle.loads(pickle.dumps(pca))
    if kind is not DistributedPCA:
        again = pickle.loads(pickle.dumps(read))
        assert read.subspace_error_bound_ == again.subspace_error_bound_
    if kind is FederatedPCA:
        assert all(s.n_components == 12 for s in read.summaries_.values())
    for each in (pca, read, copied):
        each.partial_fit(X[150:], **parts)
        assert_array_equal(each.components_, pca.components_)
        assert_array_equal(each.subspace_.components, pca.subspace_.components)
    assert_scaled(pca, X)
    few = clone(pca).fit(X).subspace_.truncate(2)
    assert sine(few.components, np.linalg.svd(X - X.mean(axis=0))[2][:2]) < 1e-10
    summary, size, Y = pca.subspace_, X.std(axis=0), X - X.mean(axis=0)
    scatter = (summary.components.T * summary.singular_values**2) @ summary.components
    assert_allclose(scatter / np.outer(size, size), Y.T @ Y / np.outer(size, size), atol=1e-9)
    again = Subspace.from_bytes(summary.to_bytes())
    assert_scaled(FederatedPCA.from_subspaces([again], 3, scale=True), X)


def test_rows_that_follow_a_summary_that_was_cut():
    """Its sums of squares count, though its scatter matrix has not all of them."""
    X = rows_of(4, spread=1.0)
    cut = StreamingPCA(3).fit(X[:150]).subspace_.truncate(2)
    pca = StreamingPCA.from_subspace(cut, 2, scale=True).partial_fit(X[150:])
    assert_allclose(pca.scale_, X.std(axis=0))
    assert_allclose(pca.subspace_.column_scatter.sum(), pca.subspace_.scatter)
    assert pca.subspace_error_bound_ > 1e-3
    with pytest.warns(UserWarning, match="n_components=2 must be at most 1: .* keeps 2 of 12"):
        again = StreamingPCA.from_subspace(cut, 2, partial_out=[0])
    again.partial_fit(X[150:])
    assert_allclose(again.subspace_.column_scatter, 300 * X.var(axis=0))


@pytest.mark.parametrize("rest", [1e-3, 1e-7])
@pytest.mark.parametrize("kind", [StreamingPCA, FederatedPCA])
def test_columns_that_others_nearly_explain_keep_ten_digits(kind, rest):
    X = rows_of(5, spread=2.0)
    noise = np.random.default_rng(5).standard_normal(300)
    X[:, 1] = 2 * X[:, 0] + rest * X[:, 0].std() * noise
    pca = kind(scale=True).fit(X)  # of which the last variance is that of the noise
    Z = StandardScaler().fit_transform(X)
    Z[:, 1] -= Z[:, 0]  # which loses nothing that the rows have
    last = np.linalg.svd(Z - Z.mean(axis=0), compute_uv=False)[-1]
    assert 0.3 * last < pca.singular_values_[-1] < last
    left = kind(3, partial_out=[0], scale=True).fit(X)
    lost = np.finfo(float).eps / rest  # of the rows' own digits, which few steps lose again
    expected = left_by(X, [0]).std(axis=0)
    assert_allclose(left.scale_, expected, rtol=max(1e-10, 16 * lost))


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("n", [150, 1500])
def test_confounders_are_kept_whole_beside_a_cut(scale, n):
    """With fewer rows than columns in a block, and with more."""
    rng = np.random.default_rng(8)
    X = rng.standard_normal((n, 300)) * np.arange(1, 301.0) ** -0.5 * 40
    C = np.column_stack([rng.integers(0, 2, n), rng.normal(50, 10, n)])
    X += C @ rng.standard_normal((2, 300))
    X[:, [7, 200]] = C
    effects = LinearRegression().fit(C, np.delete(X, [7, 200], axis=1)).coef_.T
    options = {"partial_out": [7, 200], "scale": scale}
    site = StreamingPCA(4, oversampling=10, block_size=60 if n == 150 else "auto", **options)
    sites = FederatedPCA(4, estimator=clone(site), **options).fit(X, clients=np.arange(n) % 2)
    for pca in (site.fit(X), sites):
        assert len(pca.subspace_.components) < 300
        error = C.std(axis=0)[:, None] * (pca.confounder_effects_ - effects)
        assert np.abs(error).max() < 1e-10 * X.std(axis=0).min()


@pytest.mark.parametrize("unit", [1.0, 1e-300])
@pytest.mark.parametrize("fading", [1.0, 0.99])
@pytest.mark.parametrize("confounders", [None, [0, 30]])
def test_weights_where_directions_are_cut(confounders, fading, unit):
    """Rows without weight are as absent, whatever they hold, also where they are a whole block."""
    X = rows_of(9, 400, 300, spread=1.0)
    X[:, 1:5] += 9 * X[:, 1:5].std(axis=0) * X[:, :1] / X[:, 0].std()
    X[:, 10:20] += 9 * X[:, 10:20].std(axis=0) * X[:, 5:6] / X[:, 5].std()
    X[:50] = 1e20
    weight = np.where(np.arange(400) < 50, 0, 1 + np.arange(400) % 3)
    options = {
        "oversampling": 10,
        "scale": True,
        "partial_out": confounders,
        "forgetting_factor": fading,
    }
    pca = StreamingPCA(2, **options).fit(X, sample_weight=unit * weight)
    assert len(pca.subspace_.components) < 300
    w = (weight * fading ** np.arange(399, -1, -1.0))[50:]
    Z = np.sqrt(w)[:, None] * (X[50:] - w @ X[50:] / w.sum())
    if confounders is not None:
        Q = np.linalg.qr(Z[:, confounders])[0]
        Z = np.delete(Z, confounders, axis=1)
        Z -= Q @ (Q.T @ Z)
    deviation = np.sqrt(np.square(Z).sum(axis=0) / w.sum())
    assert_allclose(pca.scale_, deviation, rtol=1e-10)
    assert sine(pca.components_, np.linalg.svd(Z / deviation, full_matrices=False)[2][:2]) < 1e-10
    blocks = StreamingPCA(2, block_size=50, **options)
    absent = clone(blocks).fit(X, sample_weight=unit * weight)
    blocks.fit(X[50:], sample_weight=unit * weight[50:])
    assert sine(absent.components_, blocks.components_) < 1e-12
    X[:50] = X[50:100]
    many = StreamingPCA(2, block_size=600, **options).fit(np.tile(X, (3, 1)))  # cut in units
    again = pickle.loads(pickle.dumps(many)).partial_fit(X)
    assert_array_equal(again.components_, many.partial_fit(X).components_)


MODELS = [
    StreamingPCA(2, scale=True),
    StreamingPCA(2, scale=True, partial_out=[0]),
    StreamingPCA(2, scale=True, block_size=20),
    FederatedPCA(2, scale=True, n_clients=3),
    FederatedPCA(2, scale=True, partial_out=[0], n_clients=3),
    DistributedPCA(2, scale=True, n_clients=3),
    FederatedScaler(n_clients=3),
]


@pytest.mark.parametrize("unit", [1e-280, 1.0, 1e300])
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_the_unit_of_the_weights_does_not_matter(model, unit):
    """Nor a constant column, nor one that hardly varies."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((90, 6)) * [6, 5, 4, 3, 2, 1e-9] + 3
    X[:, 4] = 1 / 3
    weight = rng.random(90) + 0.1
    share = weight / weight.sum()
    mean = share @ X
    deviation = np.sqrt(share @ np.square(X - mean))
    deviation[4] = 1.0
    model = clone(model).fit(X, sample_weight=unit * share)
    if getattr(model, "partial_out", None):  # the effect of the confounder is taken off first
        assert_array_equal(model.scale_[3], 1.0)
        equilibrated = clone(model).fit(X, sample_weight=90 * share)
        assert_allclose(model.scale_, equilibrated.scale_, rtol=1e-6)
        assert_allclose(np.abs(model.components_), np.abs(equilibrated.components_), atol=1e-6)
        return
    # of values near 3 that vary by 1e-9, seven digits are left
    assert_allclose(model.scale_, deviation, rtol=1e-6)
    if hasattr(model, "components_"):
        Z = (X - mean) / deviation
        Z[:, 4] = 0.0
        V = np.linalg.svd(np.sqrt(share)[:, None] * Z, full_matrices=False)[2][:2]
        assert sine(model.components_, V) < 1e-6


# -------------------------------------------------------------------------- cuts in another metric

# Excess error above the exact dimension: rows a batch (None: ten sites), whether confounders are
# taken out, columns scaled, and the first fifth of the rows in other units. At most twice what a
# change of units at the beginning and the end of each call left.
ERRORS = [
    (200, True, True, True, 1.2e-5),
    (1000, False, True, True, 3.3e-5),
    (1000, True, False, True, 1.7e-9),
    (1000, True, True, False, 1.5e-6),
    (None, False, True, True, 3.2e-5),
    (None, True, False, False, 7.4e-6),
]
CONFOUNDERS = [3, 77]


def power_law(seed, in_other_units, n=2000, d=500):
    rng = np.random.default_rng(seed)
    X = make_power_law(n, d, alpha=1.0, random_state=seed) + 0.3
    X *= 10.0 ** rng.uniform(-2, 2, d)
    if in_other_units:
        X[: n // 5] *= 10.0 ** rng.uniform(-2, 2, d)
    return X


def adjusted_rows(X, confounders, scale):
    """Residuals of least squares by an orthonormal basis of the confounders, twice; scaled."""
    Z = X - X.mean(axis=0)
    if confounders is not None:
        Q = np.linalg.qr(Z[:, confounders] / Z[:, confounders].std(axis=0))[0]
        Z = np.delete(Z, confounders, axis=1)
        for _ in range(2):
            Z -= Q @ (Q.T @ Z)
    return Z / Z.std(axis=0) if scale else Z


@pytest.mark.parametrize(("batch", "regressed", "scale", "in_other_units", "error"), ERRORS)
def test_a_cut_is_that_of_the_adjusted_rows(batch, regressed, scale, in_other_units, error):
    found, confounders = [], CONFOUNDERS if regressed else None
    options = {"scale": scale, "partial_out": confounders}
    for seed in range(2):
        X = power_law(seed, in_other_units)
        if batch is None:
            pca = FederatedPCA(3, **options).fit(X, clients=np.arange(len(X)) // 200)
        else:
            pca = StreamingPCA(3, oversampling=10, **options)
            for i in range(0, len(X), batch):
                pca.partial_fit(X[i : i + batch])
        assert len(pca.subspace_.components) < 500
        found.append(excess_error(adjusted_rows(X, confounders, scale), pca.components_))
    assert np.mean(found) < 2 * error


@pytest.mark.parametrize("scale", [False, True])
def test_a_cut_of_sparse_rows_is_hardly_worse_than_of_dense_ones(scale):
    """Sparse rows are cut in units; of columns that are not scaled these leave them as they are."""
    X = power_law(0, False) * (np.random.default_rng(9).random((2000, 500)) < 0.05)
    error = []
    for rows in (X, sp.csr_array(X)):
        pca = StreamingPCA(3, oversampling=10, scale=scale, partial_out=CONFOUNDERS)
        for at in (slice(0, 1000), slice(1000, 2000)):
            pca.partial_fit(rows[at])
        error.append(excess_error(adjusted_rows(X, CONFOUNDERS, scale), pca.components_))
    assert error[1] < 4 * error[0] < 4e-3
