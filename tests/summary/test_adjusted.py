"""Summaries of scaled rows, and of what confounders leave, against scikit-learn on the rows."""

import numpy as np
import pytest
from helpers import sine
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import StandardScaler

from fedpca_sklearn import Subspace, merge_subspaces
from fedpca_sklearn.summary._adjusted import Adjusting, adjusted
from fedpca_sklearn.summary._directions import all_directions
from fedpca_sklearn.summary._scaling import rescaled

D = 6


def rows_of(seed, n, spread=0.0, mean=0.0):
    """Correlated columns with deviations from 10^-spread to 10^spread."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, D)) @ (rng.standard_normal((D, D)) + 2 * np.eye(D)) + mean
    return X * 10.0 ** rng.permutation(np.linspace(-spread, spread, D))


def left_by(X, confounders, weight=None):
    """Residuals of least squares with an intercept, by scikit-learn."""
    C, Y = X[:, confounders], np.delete(X, confounders, axis=1)
    C = (C - C.mean(axis=0)) / C.std(axis=0)
    return Y - LinearRegression().fit(C, Y, sample_weight=weight).predict(C)


@given(
    seed=st.integers(0, 99),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    weighted=st.booleans(),
    confounders=st.sampled_from([(), (2,), (0, 5)]),
    scale=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_any_split_and_weights(seed, sizes, weighted, confounders, scale):
    n = sum(sizes) + 12
    X = rows_of(seed, n, spread=1.5, mean=10.0)
    w = np.random.default_rng(seed).integers(1, 4, n) if weighted else np.ones(n, dtype=int)
    at = np.cumsum(sizes)
    parts = [
        Subspace.from_rows(x, sample_weight=v)
        for x, v in zip(np.split(X, at), np.split(w, at), strict=True)
    ]
    model, how, *_ = adjusted(merge_subspaces(parts), Adjusting(scale, confounders))
    Y = np.repeat(X, w, axis=0)
    Y = left_by(Y, list(confounders)) if confounders else Y
    scaler = StandardScaler(with_std=scale).fit(Y)
    np.testing.assert_allclose(how.scale, scaler.scale_ if scale else 1.0, rtol=1e-10)
    Y = scaler.transform(Y)
    s, V = np.linalg.svd(Y, full_matrices=False)[1:]
    np.testing.assert_allclose(model.singular_values, s, rtol=1e-10, atol=1e-10 * s[0])
    np.testing.assert_allclose(model.scatter, (Y**2).sum(), rtol=1e-10)
    np.testing.assert_allclose(model.column_scatter, (Y**2).sum(axis=0), rtol=1e-10)
    scatter = (model.components.T * model.singular_values**2) @ model.components
    np.testing.assert_allclose(scatter, (V.T * s**2) @ V, atol=1e-10 * s[0] ** 2)
    X = np.repeat(X, w, axis=0)
    np.testing.assert_allclose(
        how.adjust(X - X.mean(axis=0)), Y - Y.mean(axis=0), atol=1e-10 * s[0]
    )


def test_columns_keep_their_digits_over_sixteen_orders_of_size():
    X = rows_of(0, 40)
    X -= X.mean(axis=0)
    factors = 10.0 ** np.array([-8, 8, -3, 0, 5, -6])
    whole = Subspace.from_rows(X)
    graded = rescaled(whole, factors)
    assert np.abs(graded.components @ graded.components.T - np.eye(D)).max() < 1e-14
    assert (np.diff(graded.singular_values) <= 0).all()
    scatter = (graded.components.T * graded.singular_values**2) @ graded.components
    np.testing.assert_allclose(scatter / np.outer(factors, factors), X.T @ X, atol=1e-12 * 40)
    back = rescaled(Subspace.from_bytes(graded.to_bytes()), 1 / factors)
    np.testing.assert_allclose(back.singular_values, whole.singular_values, rtol=1e-13)
    assert sine(back.components[:2], whole.components[:2]) < 1e-12


def test_directions_of_nothing_and_of_one_row():
    V, s = all_directions(np.zeros((2, 3)))
    assert V.shape == (0, 3)
    assert s.shape == (0,)
    V, s = all_directions(np.array([[1e-9, 0.0, 1e9]]))
    np.testing.assert_allclose(V, [[1e-18, 0.0, 1.0]], rtol=1e-15)
    np.testing.assert_allclose(s, [1e9], rtol=1e-15)


def test_a_full_set_of_dummies_and_a_constant_confounder():
    X = rows_of(1, 60, mean=5.0)
    X[:, :3] = np.eye(3)[np.arange(60) % 3]  # add up to one
    X[:, 3] = 7.0
    model, how, along, _ = adjusted(Subspace.from_rows(X), Adjusting(False, (0, 1, 2, 3)))
    groups = np.stack([X[i::3, 4:] - X[i::3, 4:].mean(axis=0) for i in range(3)]).reshape(60, 2)
    np.testing.assert_allclose(
        model.singular_values, np.linalg.svd(groups, compute_uv=False), rtol=1e-12
    )
    assert len(along) == 2
    np.testing.assert_array_equal(how.effects[3], 0)
    rest = how.adjust(X - X.mean(axis=0))
    np.testing.assert_allclose(np.stack([rest[i::3] for i in range(3)]).reshape(60, 2), groups)


def test_a_column_that_confounders_explain_is_constant():
    X = rows_of(2, 50)
    X[:, 1] = 3 * X[:, 0] - 2 * X[:, 5] + 1
    model, how, *_ = adjusted(Subspace.from_rows(X), Adjusting(True, (0, 5)))
    assert how.scale[0] == 1.0
    assert model.column_scatter[0] == 0.0
    np.testing.assert_allclose(model.column_scatter[1:], 50)
    np.testing.assert_array_equal(model.components[:, 0], 0.0)


@pytest.mark.parametrize("confounders", [(), (0, 4)])
def test_what_was_cut_is_never_exceeded(confounders):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((80, 12)) @ rng.standard_normal((12, 12))
    cut = Subspace.from_rows(X).truncate(5)
    model, how, *_ = adjusted(cut, Adjusting(True, confounders))
    Y = left_by(X, list(confounders)) if confounders else X - X.mean(axis=0)
    Y = Y / how.scale
    A = (model.components.T * model.singular_values**2) @ model.components
    assert np.linalg.eigvalsh(Y.T @ Y - A).min() > -1e-10 * np.trace(A)
    assert (model.column_scatter >= (Y**2).sum(axis=0) * (1 - 1e-10)).all()
    assert len(model.components) == 5 - len(confounders)


def test_sums_of_squares_that_are_not_known():
    X = rows_of(4, 30)
    known = Subspace.from_estimator(PCA(D).fit(X))  # all directions tell them
    model = adjusted(known, Adjusting(True)).model
    Y = StandardScaler().fit_transform(X)
    np.testing.assert_allclose(model.singular_values, np.linalg.svd(Y, compute_uv=False))
    cut = Subspace.from_estimator(PCA(2).fit(X))
    with pytest.raises(ValueError, match="column_scatter=None"):
        adjusted(cut, Adjusting(True))
    with pytest.raises(ValueError, match="center=True"):
        adjusted(Subspace.from_rows(X, center=False), Adjusting(True))


def test_tiny_weights_and_float32():
    X = rows_of(5, 40, spread=1.0)
    tiny = Subspace.from_rows(X, sample_weight=np.full(40, 1e-300))
    Y = StandardScaler().fit_transform(X)
    s = np.linalg.svd(Y, compute_uv=False)
    model = adjusted(tiny, Adjusting(True)).model
    np.testing.assert_allclose(model.singular_values, s * 1e-150, rtol=1e-10)
    single = adjusted(Subspace.from_rows(X.astype(np.float32)), Adjusting(True)).model
    assert single.components.dtype == np.float32
    np.testing.assert_allclose(single.singular_values, s, rtol=1e-5)
