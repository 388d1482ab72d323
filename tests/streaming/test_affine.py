"""Trackers of rows with missing entries: the mean is a part of what they find."""

import numpy as np
import pytest
from helpers import sine
from numpy.testing import assert_allclose
from sklearn.base import clone

from fedpca_sklearn import (
    GROUSE,
    PETRELS,
    FederatedSubspaceTracker,
    RobustSubspaceTracker,
    SubspaceTracker,
)
from fedpca_sklearn.streaming._affine import Frame

TRACKERS = {
    "grouse": GROUSE(4, random_state=0),
    "grouse, greedy": GROUSE(4, step_size="greedy", random_state=0),
    "petrels": PETRELS(4, random_state=0),
    "petrels, fading": PETRELS(4, forgetting_factor=0.98, random_state=0),
    "batches": SubspaceTracker(4),
    "batches with outliers": RobustSubspaceTracker(4),
    "batches at clients": FederatedSubspaceTracker(4, n_clients=3, random_state=0),
}
BY_ROW = {name: model for name, model in TRACKERS.items() if "batches" not in name}


def each(models):
    return pytest.mark.parametrize("model", models.values(), ids=list(models))


def rows(n=2000, d=30, k=4, mean=0.0, noise=0.0, seed=0):
    """Rows of an affine subspace, and its directions and a point."""
    rng = np.random.default_rng(seed)
    V = np.linalg.qr(rng.standard_normal((d, k)))[0].T
    point = mean * rng.standard_normal(d)
    X = rng.standard_normal((n, k)) * np.linspace(2, 1, k) @ V + point
    return X + noise * rng.standard_normal((n, d)), V, point


def with_holes(X, share, seed=1):
    return np.where(np.random.default_rng(seed).random(X.shape) < share, np.nan, X)


def fitted(model, X):
    return clone(model).fit(X)


@each(TRACKERS)
@pytest.mark.parametrize("mean", [0.0, 1.0, 100.0])
def test_rows_of_an_affine_subspace_are_found_exactly(model, mean):
    X, V, point = rows(mean=mean)
    model = fitted(model, with_holes(X, 0.1))
    assert model.components_.shape == V.shape  # none is lost to the mean
    assert sine(model.components_, V) < 1e-8
    off = model.mean_ - point
    assert_allclose(off - off @ V.T @ V, 0, atol=1e-8 * max(mean, 1))
    assert_allclose(model.impute(with_holes(X, 0.3, seed=2)), X, atol=1e-7 * max(mean, 1))


@each(TRACKERS)
def test_a_mean_costs_nothing_in_noise(model):
    X, V, _ = rows(noise=0.1)
    far = fitted(model, with_holes(X + 50.0, 0.1))
    near = fitted(model, with_holes(X, 0.1))
    assert abs(sine(far.components_, V) - sine(near.components_, V)) < 1e-6
    assert_allclose(far.mean_ - 50.0, near.mean_, atol=1e-6)


@each(BY_ROW)
def test_the_mean_may_move(model):
    X, V, _ = rows(4000, mean=1.0)
    X[2000:] += 5.0 * V[0] + 3.0 * V[1]  # within the subspace
    model = fitted(model, with_holes(X, 0.1))
    assert sine(model.components_, V) < 1e-8


@each(BY_ROW)
def test_rows_that_do_not_differ_have_a_mean(model):
    X = np.where(np.arange(30) % 3 == 0, np.nan, np.full((50, 30), 7.0))
    model = fitted(model, X)
    assert_allclose(model.mean_, np.where(np.arange(30) % 3 == 0, 0.0, 7.0), atol=1e-12)
    assert_allclose(model.explained_variance_, 0, atol=1e-12)


def test_a_frame_moves_rows_to_those_of_another():
    rng = np.random.default_rng(0)
    Y = rng.standard_normal((20, 6)) + 3.0
    one, other = Frame(rng.standard_normal(6), 2.0), Frame(rng.standard_normal(6), 5.0)
    move = one.move_to(other, np.ones(6, dtype=bool))
    assert_allclose(move.of(one.rows(Y)), other.rows(Y), atol=1e-12)
    V = np.linalg.qr(rng.standard_normal((7, 3)))[0].T
    moved, R = move.of_basis(V)
    assert_allclose(moved @ moved.T, np.eye(3), atol=1e-12)
    a = rng.standard_normal((20, 3))
    assert_allclose(move.of(a @ V), a @ R.T @ moved, atol=1e-12)


def test_the_model_of_a_frame_is_the_affine_hull_and_the_scatter_about_the_mean():
    X, V, _ = rows(200, 6, 2, mean=1.0)
    frame = Frame(np.full(6, 0.5), 2.0)
    Z = frame.rows(X)
    B = np.linalg.svd(Z, full_matrices=False)[2][:3]
    W, point, factor = frame.model(B, Z @ B.T)
    assert sine(W, V) < 1e-10
    off = X.mean(axis=0) - point
    assert_allclose(off - off @ V.T @ V, 0, atol=1e-10)
    A = X - X.mean(axis=0)
    assert_allclose(W.T @ factor.T @ factor @ W, A.T @ A, atol=1e-9)
