"""The Gram matrix of few rows, where only the first directions are certain."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from fedpca_sklearn import StreamingPCA, make_power_law
from fedpca_sklearn._kernels import stack
from fedpca_sklearn.metrics import subspace_distance


@pytest.fixture
def by_qr(monkeypatch):
    """Stacks of which Householder's QR is made."""
    made, solve = [], stack.top_right_singular
    monkeypatch.setattr(stack, "top_right_singular", lambda *a: made.append(a) or solve(*a))
    return made


def svd(*batches):
    X = np.concatenate(batches).astype(np.float64)
    return np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[1:]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_directions_that_nobody_asks_for_need_no_qr(dtype, by_qr):
    X = make_power_law(700, 374, alpha=2.0, random_state=0).astype(dtype)
    first, second = X[:342], X[342:]
    pca = StreamingPCA(20).fit(first)
    assert not by_qr
    s, V = svd(first)
    eps = np.finfo(dtype).eps
    assert subspace_distance(pca.components_, V[:20]) < 1e3 * eps * (s[0] / s[19]) ** 2
    kept = pca.subspace_
    assert kept.n_components == 341
    assert_allclose(kept.components @ kept.components.T, np.eye(341), atol=8 * eps)
    assert_allclose(kept.singular_values[:20], s[:20], rtol=20 * eps)
    assert_allclose(kept.singular_values, s[:341], rtol=1e3 * eps * (s[0] / s[340]) ** 2)
    pca.partial_fit(second)
    s, V = svd(X)
    assert subspace_distance(pca.components_, V[:20]) < 1e3 * eps * (s[0] / s[19]) ** 2
    assert_allclose(pca.singular_values_, s[:20], rtol=40 * eps)


def test_directions_that_are_asked_for_are_certain_or_by_qr(by_qr):
    X = make_power_law(342, 374, alpha=4.5, random_state=0)
    s, V = svd(X)
    pca = StreamingPCA(60).fit(X)
    assert by_qr
    assert subspace_distance(pca.components_, V[:60]) < 1e-9
    assert_allclose(pca.singular_values_, s[:60], rtol=1e-10)
