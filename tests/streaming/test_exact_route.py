"""The dimension up to which a stream keeps all directions, and its ways there."""

import pickle
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import peak_bytes, sine_of_orthonormal
from numpy.testing import assert_allclose, assert_array_equal
from threadpoolctl import threadpool_limits

from fedpca_sklearn import StreamingPCA, Subspace, make_power_law, subspace_distance
from fedpca_sklearn.streaming import _blocks
from fedpca_sklearn.summary._updating import updated


def leading(X, r):
    """Leading right singular vectors and values of centred rows, by numpy's eigenproblem."""
    Z = X - X.mean(axis=0)
    lam, W = np.linalg.eigh(Z.T @ Z)
    return W[:, ::-1][:, :r].T, np.sqrt(lam[::-1][:r])


def counts(n, d, density, seed=0):
    """Sparse rows with a leading part: a few topics use their own columns more often."""
    rng = np.random.default_rng(seed)
    X = sp.random(n, d, density=density, random_state=rng, format="csr")
    scale = 1 + 9 * (rng.random(d) < 0.05)
    return sp.csr_array(X @ sp.diags(scale * np.linspace(2, 1, d)))


@pytest.mark.parametrize(("d", "r"), [(600, 10), (1000, 20)])
@pytest.mark.parametrize("cuts", [[], [300], [1, 900]])
def test_streams_are_exact_up_to_some_twenty_features_a_direction(d, r, cuts):
    X = make_power_law(1400, d, alpha=1.0, random_state=0) + 1
    pca = StreamingPCA(r)
    for rows in np.split(X, cuts):
        pca.partial_fit(rows)
    V, s = leading(X, r)
    assert sine_of_orthonormal(pca.components_, V) < 1e-10
    np.testing.assert_allclose(pca.singular_values_, s, rtol=1e-12)
    direct = Subspace.from_rows(X, r)
    assert sine_of_orthonormal(direct.components, V) < 1e-10


@threadpool_limits.wrap(1, user_api="blas")
def test_above_it_memory_stays_linear_in_the_features():
    assert StreamingPCA(10).memory_bytes(4000) < 20 * 8 * 4000 * 22
    assert StreamingPCA(20).memory_bytes(1001) < StreamingPCA(20).memory_bytes(1000)


@pytest.mark.parametrize("density", [0.03, 0.3])
@pytest.mark.parametrize("cuts", [[], [900]])
def test_sparse_streams_are_exact_as_well(density, cuts):
    X = counts(2000, 600, density)
    pca = StreamingPCA(10)
    for start, stop in zip([0, *cuts], [*cuts, 2000], strict=True):
        pca.partial_fit(X[start:stop])
    V, s = leading(X.toarray(), 10)
    assert sine_of_orthonormal(pca.components_, V) < 1e-10
    np.testing.assert_allclose(pca.singular_values_, s, rtol=1e-12)


def test_sparse_streams_take_less_than_four_scatter_matrices():
    X = counts(5000, 700, 0.03)
    pca = StreamingPCA(20).fit(X)
    assert peak_bytes(lambda: pca.fit(X)) < 4 * 8 * 700**2


@threadpool_limits.wrap(1, user_api="blas")
@pytest.mark.parametrize("density", [0.01, 0.2])  # by sparse products, and some made dense at once
def test_sparse_rows_of_few_features_are_never_dense_at_once(density):
    X = sp.random(40_000, 200, density=density, format="csr", random_state=0)
    StreamingPCA(3).fit(X[:500])  # imports and caches are not counted
    assert peak_bytes(lambda: StreamingPCA(3).fit(X)) < 4e6  # dense they are 64 MB


@pytest.mark.parametrize("weighted", [False, True])
def test_many_sparse_rows_of_some_columns_in_two_calls(weighted):
    """By a Krylov space of columns, with the directions and the other mean of the first call."""
    X = counts(3000, 900, 0.02)
    later = sp.diags(np.where(np.arange(900) < 40, 3.0, 1.0))
    X = sp.csr_array(sp.vstack([X[:1200], X[1200:] @ later]))
    w = np.random.default_rng(0).integers(1, 4, 3000) if weighted else np.ones(3000, int)
    pca = StreamingPCA(5)
    for rows in slice(0, 1200), slice(1200, 3000):
        pca.partial_fit(X[rows], sample_weight=w[rows] if weighted else None)
    whole = np.repeat(X.toarray(), w, axis=0)
    Z = whole - whole.mean(axis=0)
    s = np.linalg.svd(Z, compute_uv=False)
    kept, best = np.linalg.norm(Z @ pca.components_.T) ** 2, np.sum(s[:5] ** 2)
    assert_allclose(pca.mean_, whole.mean(axis=0), atol=1e-13)
    assert 0 <= (best - kept) / (np.sum(s**2) - best) < 1e-3
    # what is cut after the first call is missing from variances
    assert np.all(pca.singular_values_ <= s[:5] * (1 + 1e-12))
    assert np.all(pca.singular_values_ > s[:5] * 0.98)


def in_few_columns(kind, rng):
    """Sparse rows of few features, at the numerical limits."""
    X = (rng.random((300, 24)) < 0.08) * rng.standard_normal((300, 24))
    if kind == "mean":  # a column without zeros, far from the origin
        X[:, 3] = 1e8 + rng.standard_normal(300)
    elif kind == "often far":
        X[:, 3] = np.where(rng.random(300) < 0.5, 1e8 + rng.standard_normal(300), 0)
    elif kind == "units":
        X *= 10.0 ** rng.uniform(-6, 6, 24)
    elif kind == "one of each row":
        X = np.eye(24)[rng.integers(24, size=300)]
    elif kind == "constant":
        X[:, 0], X[:, 5] = 7, 0
    else:
        X *= kind
    return X


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("r", [3, None])
@pytest.mark.parametrize(
    "kind", ["mean", "often far", "units", "one of each row", "constant", 1e150, 1e-150]
)
def test_sparse_rows_of_few_features_are_exact_at_the_limits(kind, r, weighted):
    rng = np.random.default_rng(0)
    X = in_few_columns(kind, rng)
    w = rng.uniform(0.5, 3, 300) if weighted else np.ones(300)
    wide = X.astype(np.longdouble)  # whose mean keeps the digits of the rows
    Z = wide - (w @ wide) / w.sum()
    unit = float(np.abs(Z).max())
    Z = (np.sqrt(w)[:, None] * Z / unit).astype(np.float64)
    s = np.linalg.svd(Z, compute_uv=False)
    pca = StreamingPCA(r).fit(sp.csr_array(X), sample_weight=w if weighted else None)
    V, found = pca.components_, pca.singular_values_ / unit
    eps = 300 * np.finfo(float).eps * s[0]
    assert_allclose(found, s[: len(found)], atol=eps)
    assert_allclose(V @ V.T, np.eye(len(V)), atol=1e-12)
    assert_allclose(Z.T @ (Z @ V.T), V.T * found**2, atol=eps * s[0])


def test_long_indices_change_nothing():
    X = counts(2000, 600, 0.03)
    short, long = (X.copy() for _ in range(2))
    for matrix, dtype in ((short, np.int32), (long, np.int64)):
        matrix.indices, matrix.indptr = (i.astype(dtype) for i in (matrix.indices, matrix.indptr))
    found, same = (StreamingPCA(10).fit(matrix) for matrix in (short, long))
    assert_array_equal(found.components_, same.components_)
    assert long.indices.dtype == np.int64


def test_sparse_rows_of_a_tiny_rank_go_through_qr_some_at_a_time():
    rng = np.random.default_rng(0)
    topics = np.zeros((4, 600))
    topics[np.arange(4), :4] = np.diag([1, 1, 1e-5, 1e-7])
    X = (rng.random((3000, 4)) < 0.3) @ topics
    X[0, 500] = 1e-7
    pca = StreamingPCA(10).fit(sp.csr_array(X))
    Z = X - X.mean(axis=0)
    s = np.linalg.svd(Z[:, [0, 1, 2, 3, 500]], compute_uv=False)
    np.testing.assert_allclose(pca.singular_values_[:5], s, rtol=1e-6)
    assert pca.subspace_.n_components == 5


@pytest.mark.parametrize("weighted", [False, True])
def test_qr_of_more_rows_than_it_takes_at_once(weighted):
    rng = np.random.default_rng(0)
    n, d = 1000, 12
    U = np.linalg.qr(rng.standard_normal((n, d)))[0]
    X = (U * np.logspace(0, -9, d)) @ np.linalg.qr(rng.standard_normal((d, d)))[0] + 3
    w = rng.uniform(0.5, 2, n) if weighted else np.ones(n)
    found = updated(Subspace.empty(d), X, w if weighted else None)
    Z = np.sqrt(w)[:, None] * (X - w @ X / w.sum())
    s = np.linalg.svd(Z, compute_uv=False)
    # rows near 3 are rounded to 3 eps, and so is their mean
    np.testing.assert_allclose(found.singular_values, s, rtol=1e-6, atol=1e-13)
    np.testing.assert_allclose(found.column_scatter, np.square(Z).sum(axis=0), rtol=1e-10)


def test_more_rows_than_a_block_and_rows_of_other_types(monkeypatch):
    X = np.random.default_rng(0).integers(0, 255, (3000, 40), dtype=np.uint8)
    pca = StreamingPCA(5).fit(X)
    V, s = leading(X.astype(float), 5)
    np.testing.assert_allclose(pca.singular_values_, s, rtol=1e-12)
    assert sine_of_orthonormal(pca.components_, V) < 1e-8


@pytest.mark.parametrize(("d", "r"), [(64, 3), (320, 10), (900, 3)])
def test_the_order_of_entries_in_memory_changes_no_bit(d, r):
    X = make_power_law(1500, d, alpha=1.0, random_state=0) + 1.0
    C = StreamingPCA(r).fit(X)
    for same in (np.asfortranarray(X), np.repeat(X, 2, axis=1)[:, ::2], X[::-1].copy()[::-1]):
        other = StreamingPCA(r).fit(same)
        assert_array_equal(other.components_, C.components_)
        assert_array_equal(other.singular_values_, C.singular_values_)
        assert_array_equal(other.mean_, C.mean_)


@pytest.mark.parametrize("n", [900, 1850])
def test_cuts_at_multiples_of_a_block_size_change_no_bit(n):
    X = make_power_law(n, 500, alpha=1.0, random_state=0) + 1.0
    whole = StreamingPCA(4, block_size=100).fit(X)
    for cuts in ([100], [300, 800], range(100, n, 100)):
        pca = StreamingPCA(4, block_size=100)
        for rows in np.split(X, cuts):
            pca.partial_fit(rows)
        assert_array_equal(pca.components_, whole.components_)
        assert_array_equal(pca.singular_values_, whole.singular_values_)


@pytest.mark.parametrize(("d", "r"), [(5, 3), (300, 10)])
def test_a_mean_of_1e11_spreads_costs_no_more_than_its_rounding(d, r):
    rng = np.random.default_rng(0)
    X = 1e8 + 1e-3 * rng.standard_normal((900, d))
    of_mean = np.array([float(sum(map(Fraction, c)) / len(c) - 10**8) for c in X.T.tolist()])
    s = np.linalg.svd((X - 1e8) - of_mean, compute_uv=False)[:r]
    assert_allclose(StreamingPCA(r).fit(X).singular_values_, s, rtol=1e-10)
    cut = StreamingPCA(r)
    for rows in np.split(X, [400, 437, 801, 802]):
        cut.partial_fit(rows)
    assert_allclose(cut.singular_values_, s, rtol=1e11 * np.finfo(float).eps)


def test_small_batches_of_many_features_wait_for_each_other(monkeypatch):
    X = make_power_law(1000, 320, alpha=1.0, random_state=0)
    taken = []
    take = _blocks.take_buffer
    monkeypatch.setattr(
        _blocks, "take_buffer", lambda *args: taken.append(args[1].n) or take(*args)
    )
    few = StreamingPCA(10)
    for rows in np.split(X, 50):
        few.partial_fit(rows)
    assert len(taken) <= 3
    whole = StreamingPCA(10).fit(X)
    assert few.n_samples_seen_ == 1000
    assert subspace_distance(few.components_, whole.components_) < 1e-12
    assert_allclose(few.singular_values_, whole.singular_values_, rtol=1e-12)

    asked = StreamingPCA(10)
    for rows in np.split(X, 50):
        before = pickle.loads(pickle.dumps(asked.partial_fit(rows)))
        assert before.n_samples_seen_ == asked.n_samples_seen_  # read after every call
    assert_array_equal(asked.components_, few.components_)
    assert_array_equal(before.partial_fit(X).components_, few.partial_fit(X).components_)


def test_a_bad_batch_among_those_that_wait_changes_nothing():
    X = make_power_law(120, 320, alpha=1.0, random_state=0)
    model = StreamingPCA(10).partial_fit(X[:40]).partial_fit(X[40:80])
    bad = X[80:].copy()
    bad[3, 5] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        model.partial_fit(bad)
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(X[:40, :300])
    assert model.n_samples_seen_ == 80
    given = X[80:].copy()
    model.partial_fit(given)
    given[:] = 1e3  # the caller's array is not kept
    assert_array_equal(
        model.components_,
        StreamingPCA(10).partial_fit(X[:80]).partial_fit(X[80:]).components_,
    )
