"""Fits that find the wanted directions, and the others when somebody reads them."""

import pickle
import threading

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import peak_bytes
from numpy.testing import assert_allclose, assert_array_equal
from threadpoolctl import threadpool_limits

from fedpca_sklearn import StreamingPCA, Subspace, make_power_law, merge_subspaces
from fedpca_sklearn._kernels import linalg, precision, scatter
from fedpca_sklearn.summary import _exact

N, D, R = 700, 400, 10


@pytest.fixture(scope="module")
def X():
    return make_power_law(N, D, alpha=1.0, random_state=0) + 1.0


@pytest.fixture
def orders(monkeypatch):
    """Numbers of directions that are asked of eigenproblems of this many features."""
    asked, solve = [], linalg.eigh_top

    def counted(G, max_keep, overwrite=False):
        asked.append(max_keep)
        return solve(G, max_keep, overwrite)

    monkeypatch.setattr(_exact, "eigh_top", counted)
    return asked


def spectrum(X):
    """Singular values of centred rows and their scatter matrix, by numpy."""
    Z = X.astype(np.float64) - X.mean(axis=0, dtype=np.float64)
    return np.linalg.svd(Z, compute_uv=False), Z.T @ Z


def test_a_fit_finds_the_wanted_directions_only(X, orders):
    pca = StreamingPCA(R).fit(X)
    pca.transform(X)
    pca.score(X)
    assert orders == [R]
    Subspace.from_rows(X, R)
    assert orders == [R, R]
    assert len(pca.subspace_.components) == D
    assert pca._state.subspace.singular_values is pca.subspace_.singular_values
    assert orders == [R, R, D]


def test_what_float32_leaves_uncertain_is_found_in_float64_at_once(X, orders, monkeypatch):
    """Without an eigenproblem of all directions, whose certificate would be the same."""
    solved = []
    monkeypatch.setattr(scatter, "eigh_top", lambda *a, **k: solved.append(a))
    monkeypatch.setattr(precision, "_sample_of", lambda *a: None)  # it would have said so
    steep = make_power_law(N, D, alpha=2.5, random_state=0).astype(np.float32)
    pca = StreamingPCA(R).fit(steep)
    assert orders == [R, R]
    assert not solved
    assert_allclose(pca.singular_values_, spectrum(steep)[0][:R], rtol=1e-6)


@pytest.mark.parametrize("kind", ["dense", "sparse", "float32", "unused columns", "large", "tiny"])
def test_all_directions_are_those_of_the_scatter_matrix(X, kind):
    Y, like, unit = X, X, {"large": 1e150, "tiny": 1e-140}.get(kind, 1.0)
    if kind == "sparse":
        Y = sp.csr_array(X * (np.random.default_rng(0).random(X.shape) < 0.05))
        like = Y.toarray()
    elif kind == "float32":
        Y = like = X.astype(np.float32)
    elif kind == "unused columns":
        Y = like = X * (np.arange(D) % 5 > 0)
    pca = StreamingPCA(R).fit(Y * unit)
    V, s = pca.subspace_.components, pca.subspace_.singular_values
    assert_array_equal(V[:R], pca.components_)
    assert_array_equal(s[:R].astype(V.dtype), pca.singular_values_)
    exact, G = spectrum(like)
    rounding = 1e-6 if kind == "float32" else 1e-13
    # products in float32 lose what is small
    assert_allclose(s / unit, exact[: len(s)], rtol=0, atol=exact[0] * np.sqrt(rounding / 100))
    assert_allclose(s[:R] / unit, exact[:R], rtol=rounding)
    assert_allclose(V @ V.T, np.eye(len(V)), atol=10 * rounding)
    assert_allclose((V.T * (s / unit) ** 2) @ V, G, atol=exact[0] ** 2 * rounding)
    assert not V.flags.writeable


@pytest.mark.parametrize("copies", [3, 40])
def test_equal_variances_at_the_cut(copies):
    signs = np.kron(np.eye(D // 4), np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1]]).T)
    width = signs.shape[1]
    scale = np.ones(width)
    scale[R - 2 : R - 2 + copies] = 0.5
    scale[R - 2 + copies :] = 0.25
    rows = np.concatenate([signs * scale, -signs * scale])
    pca = StreamingPCA(R).fit(rows)
    V, s = pca.subspace_.components, pca.subspace_.singular_values
    assert_allclose(V @ V.T, np.eye(len(V)), atol=1e-13)
    assert_allclose((V.T * s**2) @ V, rows.T @ rows, atol=1e-12 * s[0] ** 2)
    assert np.all(np.diff(s) <= 0)
    assert_array_equal(V[:R], pca.components_)


def test_whether_all_directions_are_read_changes_no_later_bit(X):
    quiet, read, copied = (StreamingPCA(R).fit(X) for _ in range(3))
    assert read.subspace_.n_components == D
    copied = pickle.loads(pickle.dumps(copied))
    again = StreamingPCA.from_subspace(Subspace.from_bytes(copied.subspace_.to_bytes()), R)
    for model in (quiet, read, copied, again):
        model.partial_fit(X[:500] * 2)
    for model in (read, copied):
        assert_array_equal(model.components_, quiet.components_)
        assert_array_equal(model.subspace_.singular_values, quiet.subspace_.singular_values)
    assert_allclose(again.components_, quiet.components_, rtol=0, atol=1e-12)


def test_summaries_with_directions_to_come_are_summaries(X):
    def fresh():
        return StreamingPCA(R).fit(X).subspace_

    whole = fresh()
    V, s = whole.components, whole.singular_values
    assert fresh().n_features == D
    assert "n_components=400" in repr(fresh())
    for n in (3, R, R + 5):
        cut = fresh().truncate(n)
        assert_array_equal(cut.components, V[:n])
        assert_array_equal(cut.singular_values, s[:n])
        assert cut.scatter == whole.scatter
    assert fresh().truncate(D).n_components == D
    half = fresh().decay(0.25)
    assert_array_equal(half.singular_values, s / 2)
    assert_array_equal(half.components, V)
    named = fresh()._replace(site="a")
    assert named.sites == ("a",)
    assert named.n_components == D
    assert merge_subspaces([fresh(), fresh()], 5).n_samples == 2 * N
    assert pickle.loads(pickle.dumps(fresh())).n_components == D
    with pytest.raises(AttributeError, match="nothing"):
        fresh().nothing  # noqa: B018


def test_threads_that_read_at_once_find_the_same(X):
    summary, found = StreamingPCA(R).fit(X).subspace_, []
    readers = [threading.Thread(target=lambda: found.append(summary.components)) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert len(found) == 4
    for V in found:
        assert_array_equal(V, found[0])


@pytest.mark.parametrize("wanted", [D // 4, None])
def test_many_directions_are_found_at_once(X, orders, wanted):
    StreamingPCA(wanted).fit(X)
    assert orders == [D]


def test_uncertain_directions_go_through_qr(X, orders):
    Y = X @ np.diag(10.0 ** -np.linspace(0, 12, D))
    pca = StreamingPCA(60).fit(Y)
    assert orders == [60]
    Z = Y - Y.mean(axis=0)
    s = np.linalg.svd(Z, compute_uv=False)
    assert_allclose(pca.singular_values_, s[:60], rtol=1e-9)


def test_the_other_directions_take_six_matrices(X):
    square, pca = 8 * D**2, StreamingPCA(R)
    with threadpool_limits(1, user_api="blas"):  # each has matrices of its own
        assert peak_bytes(lambda: pca.fit(X)) < 1.05 * pca.memory_bytes(D) < 3 * square
    # numpy's copy, its result, and LAPACK's workspace of two, which numpy counts from 2.5 on
    assert peak_bytes(lambda: pca.subspace_.components) < 6.1 * square


@pytest.mark.parametrize("scale", [1e-157, 1e-162, 1e145])
def test_rows_whose_squares_nearly_vanish_have_the_others_too(X, scale):
    model = StreamingPCA(R).fit(X * scale)
    assert_allclose(model.subspace_.components @ model.subspace_.components.T, np.eye(D), atol=1e-9)
    model.partial_fit(X[:5] * scale)
    assert model.n_samples_seen_ == N + 5
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.components_, model.components_)
