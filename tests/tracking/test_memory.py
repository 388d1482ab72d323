"""What counts of the past by default, and what is filled in where there is noise."""

import math

import numpy as np
import pytest
from golden_cases import made
from helpers import sine, with_holes
from numpy.testing import assert_allclose
from sklearn.base import clone

from fedpca_sklearn import (
    FederatedSubspaceTracker,
    GaussianChannel,
    RobustSubspaceTracker,
    SubspaceTracker,
)
from fedpca_sklearn.tracking._stmiss import optimism

CODES = [
    "SubspaceTracker(5)",
    "RobustSubspaceTracker(5)",
    "FederatedSubspaceTracker(5, robust=False, random_state=0)",
]
each = pytest.mark.parametrize("model", [*map(made, CODES)], ids=CODES)


def rows(n, d=40, k=5, noise=0.0, seed=0, mean=1.0):
    rng = np.random.default_rng(seed)
    V = np.linalg.qr(rng.standard_normal((d, k)))[0].T
    X = rng.standard_normal((n, k)) * np.linspace(3, 1.5, k) @ V + mean * rng.standard_normal(d)
    return X + noise * rng.standard_normal((n, d)), V


@each
def test_noise_averages_out_while_the_subspace_stays(model):
    X, V = rows(1000, noise=0.3)
    X = with_holes(X, 0.1)
    found = clone(model).fit(X).components_
    last = clone(model).set_params(forgetting_factor=0.0).fit(X).components_
    # 25 batches against one: the error falls with the root of their number, by 5
    assert sine(found, V) < sine(last, V) / 3


def test_the_noise_is_that_of_rows_that_fade():
    """The last batch of 40 has three times the noise; before it comes the past fades."""
    X = rows(240, d=80)[0] * 10
    std = np.repeat([1.0, 3.0], [200, 40])
    X += std[:, None] * np.random.default_rng(1).standard_normal(X.shape)
    weight = 0.98 ** (40 * np.arange(6)[::-1]).repeat(40)
    expected = weight @ std**2 / weight.sum()
    # 40 rows of 75 free entries: a relative deviation of sqrt(2 / 3000)
    found = SubspaceTracker(5, forgetting_factor=0.98).fit(X)._entry_noise
    assert found == pytest.approx(expected, rel=5 * np.sqrt(2 / 3000))


def test_a_fit_warns_where_its_components_are_not_those_of_all_rows():
    before, after = rows(600, noise=0.3)[0], rows(800, noise=0.3, seed=9)[0]
    X = np.concatenate([before, after])
    for part in (X, with_holes(X, 0.1)):
        with pytest.warns(UserWarning, match=r"of 1400 rows count\. .* forgetting_factor=1\.0"):
            SubspaceTracker(5).fit(part)
    SubspaceTracker(5, forgetting_factor=1.0).fit(X)
    # three quarters of the rows count, and more
    SubspaceTracker(5).fit(np.concatenate([rows(90)[0], rows(810, seed=9)[0]]))
    SubspaceTracker(5).partial_fit(X)
    SubspaceTracker(5).fit(X[np.random.default_rng(0).permutation(1400)])
    # without noise the first rows, filled in as well as was possible then, are forgotten
    SubspaceTracker(5).fit(with_holes(rows(1600, mean=100.0)[0], 0.1))


@pytest.mark.parametrize("noise", [0.0, 1e-3, 0.03])
def test_a_fit_does_not_take_the_holes_of_its_first_rows_for_a_change(noise):
    rng = np.random.default_rng(2)
    V = np.linalg.qr(rng.standard_normal((30, 3)))[0].T
    X = rng.standard_normal((600, 3)) * [3, 2, 1] @ V + noise * rng.standard_normal((600, 30))
    X[rng.random(X.shape) < 0.4] = np.nan
    assert SubspaceTracker(3).fit(X).subspace_.n_samples < 400


def test_a_change_of_little_variance_is_told_where_no_entry_is_filled_in():
    """Rows of one large direction, and small ones that change: models of all lose twice as much."""
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.standard_normal((12, 5)))[0].T
    X = rng.standard_normal((800, 3)) @ (axes[:3] * [[300], [2], [2]])
    X[400:] += rng.standard_normal((400, 2)) @ axes[3:] * 2 - X[400:] @ axes[1:3].T @ axes[1:3]
    X += 0.1 * rng.standard_normal(X.shape)
    with pytest.warns(UserWarning, match="the subspace of the rows has changed"):
        SubspaceTracker(3).fit(X)
    SubspaceTracker(3).fit(rng.permutation(X[:400]))  # warnings are errors in these tests


# in noise a robust tracker takes what changes for outliers at first
@pytest.mark.filterwarnings("ignore:the subspace of the rows has changed")
@pytest.mark.parametrize(
    ("code", "noise"),
    [(code, v) for code in CODES for v in (0.0, 0.3) if v == 0 or "Rob" not in code],
)
def test_a_change_is_followed_and_forgotten_after_one_batch(code, noise):
    model = made(code)
    before, after, V = rows(600, noise=noise)[0], *rows(800, noise=noise, seed=9)
    X = with_holes(np.concatenate([before, after]), 0.1)
    found, alone = (clone(model).fit(part).components_ for part in (X, X[600:]))
    assert sine(found, V) < 1e-6 + 2 * sine(alone, V)
    if isinstance(model, SubspaceTracker):
        model = clone(model).fit(np.concatenate([before, after[:80]]))
        # 80 rows show the weakest direction, of deviation 1.5 and 40 entries, up to this
        assert sine(model.components_, V) < 1e-6 + 2 * noise * np.sqrt(40 / 80) / 1.5


@pytest.mark.filterwarnings("ignore:the subspace of the rows has changed")
@pytest.mark.parametrize("noise", [(0.1, 0.1), (0.0, 0.3), (0.05, 0.5)])
def test_a_noisy_change_is_followed_among_outliers(noise):
    # 1 in 20 entries is an outlier; after half of the rows another subspace and another noise
    rng, (before, _), (after, V) = (
        np.random.default_rng(100),
        rows(800, noise=noise[0]),
        rows(800, noise=noise[1], seed=9),
    )
    X = np.concatenate([before, after])
    hit = rng.random(X.shape) < 0.05
    X = with_holes(X + hit * rng.choice([-1, 1], X.shape) * rng.uniform(8, 15, X.shape), 0.1)
    hit &= ~np.isnan(X)
    model = RobustSubspaceTracker(5).fit(X[:1000]).partial_fit(X[1000:])
    found, hit = model.outlier_mask_, hit[1000:]
    assert 2 * np.sum(found & hit) > 0.98 * (found.sum() + hit.sum())
    # the last 200 rows show the weakest direction, of deviation 1.5 and 40 entries, up to this
    assert sine(model.components_, V) < 2 * noise[1] * np.sqrt(40 / 200) / 1.5


def days(n, period, seed, d=30, k=12):
    """Sensors that see nothing at night, of more directions by day than are tracked."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((k, d)) * np.geomspace(5, 0.5, k)[:, None]
    Z = rng.standard_normal((n, k))
    for i in range(1, n):
        Z[i] = 0.95 * Z[i - 1] + 0.3 * Z[i]
    light = np.maximum(np.sin(2 * np.pi * np.arange(n) / period), 0)[:, None]
    return (Z + 1) * light ** np.linspace(1, 4, k) @ A + 0.05 * rng.standard_normal((n, d))


def losses(model, X, size=40):
    """Squared residuals of each batch by the model before it, and of all rows by the last one."""

    def loss(Y):
        Z = Y - model.mean_
        return np.sum((Z - Z @ model.components_.T @ model.components_) ** 2)

    ahead = 0.0
    for at in range(0, len(X), size):
        if at >= 3 * size:
            ahead += loss(X[at : at + size])
        model.partial_fit(X[at : at + size])
    return ahead, loss(X)


@pytest.mark.parametrize(("period", "seed"), [(200, 0), (400, 1)])
def test_what_comes_back_is_not_forgotten(period, seed):
    X = days(3000, period, seed)
    model = SubspaceTracker(5)
    ahead, after = losses(model, X)
    kept, _ = losses(SubspaceTracker(5, forgetting_factor=1.0), X)
    best = np.sum(np.linalg.svd(X - X.mean(axis=0), compute_uv=False)[5:] ** 2)
    assert ahead < 1.25 * kept
    assert after < 1.25 * best
    assert model._stream.state.rival is not None
    model.set_params(forgetting_factor=0.9).partial_fit(X[:200])  # ends the comparison
    assert model._stream.state.rival is None
    assert not model._stream.state.keeps


def test_noise_of_the_channel_is_no_change():
    X, V = rows(1600)
    options = {"robust": False, "random_state": 0, "channel": GaussianChannel(1e-3)}
    model = FederatedSubspaceTracker(5, **options).fit(with_holes(X, 0.1))
    # 40 batches: a first one of 50 rounds, the others of n_rounds, and one more for variances; a
    # mean and a misfit for each, and the first mean. Few are tried alone, for as many rounds again
    once = 50 + 39 * 10 + 40 + 2 * 40 + 1
    assert model.communication_.rounds <= once + 10 * 13
    assert sine(model.components_, V) < 1e-2


def test_the_noise_of_other_rows_beyond_a_fitted_subspace():
    # m rows of noise fitted by their mean and k directions, and as many new rows
    rng, (m, d, k) = np.random.default_rng(0), (40, 200, 5)
    V = np.linalg.qr(rng.standard_normal((d, k)))[0].T
    inside, outside = [], []
    for _ in range(20):
        X, Y = 30 * rng.standard_normal((2, m, k)) @ V + rng.standard_normal((2, m, d))
        W = np.linalg.svd(X, full_matrices=False)[2][:k]
        inside.append(np.mean((X - X @ W.T @ W) ** 2) * d / (d - k))
        outside.append(np.mean((Y - Y @ W.T @ W) ** 2) * d / (d - k))
    assert_allclose(optimism(m, k) * np.mean(inside), np.mean(outside), rtol=0.03)
    assert optimism(5, 5) == math.inf
