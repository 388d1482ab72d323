"""Products of rows with a few vectors, about a mean, in blocks and pieces; slices; rotations."""

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from helpers import peak_bytes
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from rounds_helpers import examples, seeds
from sklearn.base import clone
from sklearn.decomposition import PCA

from fedpca_sklearn import FederatedPowerPCA, StreamingPCA, make_power_law
from fedpca_sklearn._kernels import row_moments, rows
from fedpca_sklearn._kernels.rows import (
    columns_about,
    coordinates_and_norms,
    in_pieces,
    scatter_product,
)
from fedpca_sklearn.datasets import RandomWalk, SteadyRotation, random_rotation

KINDS = [np.asarray, np.asfortranarray, sp.csr_array, sp.csr_matrix, sp.csc_array]


@examples
@given(
    seed=seeds,
    n=st.integers(1, 30),
    d=st.integers(1, 9),
    k=st.integers(0, 4),
    weighted=st.booleans(),
    scaled=st.booleans(),
    far=st.sampled_from([0, 1, 2**30]),
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from([np.float64, np.float32, np.int64]),
)
def test_products_are_those_of_the_rows_about_the_mean(
    seed, n, d, k, weighted, scaled, far, kind, dtype
):
    """Of integers near a mean far away, too, whose differences are exact."""
    rng = np.random.default_rng(seed)
    X = rng.integers(-4, 5, (n, d)) * (rng.random((n, d)) < 0.6)
    far = far if dtype != np.float32 else far % 2**20
    mean, V = far + rng.integers(-4, 5, d) / 2, rng.integers(-4, 5, (k, d)) / 4
    w = rng.random(n) if weighted else None
    Z, rows_far = X + far - mean, kind((X + far).astype(dtype))
    want = V @ Z.T @ np.diag(np.ones(n) if w is None else w) @ Z
    got = scatter_product(rows_far, mean, V, w)
    assert type(got) is np.ndarray
    assert got.dtype == np.float64
    assert_allclose(got, want, atol=1e-11 * max(1, np.abs(want).max(initial=0)))
    found = rows.centred_product(rows_far, mean, V.T)
    assert_allclose(found, Z @ V.T, atol=1e-9 * max(1, far / 2**20))
    squares = np.sum(Z**2) if w is None else w @ (Z**2).sum(axis=1)
    assert_allclose(columns_about(rows_far, mean, w).sum(), squares, rtol=1e-9)
    if dtype == np.float64 and far < 2**20:
        scale, norms = rng.uniform(1, 2, d) if scaled else None, np.empty(n)
        Z = Z / scale if scaled else Z
        found = coordinates_and_norms(rows_far, V, mean, norms, scale)
        assert_allclose(found, Z @ V.T, atol=1e-9)
        assert_allclose(norms, (Z**2).sum(axis=1), rtol=1e-9, atol=1e-12)
        assert_allclose(coordinates_and_norms(rows_far, V, mean, None, scale), found, atol=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
def test_scatter_product_goes_through_large_rows_in_blocks(weighted):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1500, 400))  # more than two blocks of 2^18 entries
    w = rng.random(1500) if weighted else None
    mean, V = X.mean(axis=0), rng.standard_normal((2, 400))
    Z = X - mean
    want = (V @ Z.T if w is None else V @ Z.T * w) @ Z
    assert_allclose(scatter_product(X, mean, V, w), want, rtol=1e-10, atol=1e-8)
    # a block and its products, not a centred copy of the rows
    assert peak_bytes(lambda: scatter_product(X, mean, V, w)) < 0.7 * X.nbytes


@pytest.mark.parametrize("kind", ["times", "full at first", "full after", "full", "stored twice"])
def test_sparse_rows_are_centred_whatever_a_few_of_them_tell(kind):
    """Counts, and a column without zeros, as of seconds since 1970."""
    rng = np.random.default_rng(0)
    X = rng.poisson(0.5, (300, 6)).astype(np.float64)
    at = {"full at first": slice(0, 100), "full after": slice(40, None)}.get(kind, slice(None))
    X[:, 4] = 0
    X[at, 4] = (1.7e9 if kind == "times" else 1e3) + rng.integers(0, 1_000, 300)[at]
    sparse = sp.csr_array(X)
    if kind == "stored twice":  # in halves
        parts = (np.repeat(a, 2) for a in (sparse.data / 2, sparse.indices))
        sparse = sp.csr_array((*parts, 2 * sparse.indptr), X.shape)
        assert sparse.nnz > np.count_nonzero(X)
    mean, V = X.mean(axis=0), np.linalg.qr(rng.standard_normal((6, 2)))[0].T
    before = sparse.data.copy()
    for container in (sparse, *([] if kind == "stored twice" else [sp.csc_array(X)])):
        for scale in (None, np.arange(1.0, 7.0)):
            Z, norms = (X - mean) / (1.0 if scale is None else scale), np.empty(300)
            found = coordinates_and_norms(container, V, mean, norms, scale)
            assert_allclose(found, Z @ V.T, atol=1e-6 if kind == "times" else 1e-9)
            assert_allclose(norms, (Z**2).sum(axis=1), rtol=1e-9)
        assert_allclose(columns_about(container, mean, None), np.sum((X - mean) ** 2, axis=0))
    assert_array_equal(sparse.data, before)
    if kind != "times":
        return
    pca = StreamingPCA(2).fit(X)
    expected = PCA(2, svd_solver="full").fit(X).score_samples(X)
    assert_allclose(pca.score_samples(sparse), expected, rtol=1e-6)
    power = FederatedPowerPCA(2, random_state=0)
    noise = [clone(power).fit(table).noise_variance_ for table in (sparse, X)]
    assert_allclose(*noise, rtol=1e-4)  # products round to 1.7e9 eps of 290
    scaled = StreamingPCA(2, scale=True).fit(sparse.astype(np.float32))
    assert scaled.transform(sparse.astype(np.float32)).dtype == np.float32


# -------------------------------------------------------------------------- pieces


@examples
@given(
    n=st.integers(0, 700),
    d=st.integers(1, 1001),
    k=st.integers(1, 60),
    dtype=st.sampled_from([np.float32, np.float64]),
    order=st.sampled_from("CF"),
)
def test_pieces_are_the_product(n, d, k, dtype, order):
    g = np.random.default_rng(n + d)
    Z = np.asarray(g.standard_normal((n, d)), dtype, order=order)
    V = g.standard_normal((k, d)).astype(dtype)
    found = in_pieces(V)(Z)
    assert found.dtype == dtype
    # each number is a sum of d products, in whatever order
    bound = 2 * d * np.finfo(dtype).eps * (np.abs(Z) @ np.abs(V.T))
    assert np.all(np.abs(found - Z.astype(float) @ V.T.astype(float)) <= bound)
    Z, V = np.rint(3 * Z), np.rint(3 * V)  # whole numbers are exact
    assert_array_equal(in_pieces(V)(Z), Z.astype(int) @ V.T.astype(int))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("n", [0, 1_100, 1_101, 3_000])
def test_threads_share_the_rows_of_a_large_call(n, dtype, monkeypatch):
    g = np.random.default_rng(0)
    X, V = g.standard_normal((n, 2_000)).astype(dtype) + 2, g.standard_normal((7, 2_000))
    V, mean, scale = V.astype(dtype), np.full(2_000, 2, dtype), g.uniform(1, 2, 2_000).astype(dtype)
    seen, find, found = [], rows.in_shares, []
    monkeypatch.setattr(rows, "in_shares", lambda *a: seen.append(a[:2]) or find(*a))
    for n_threads, possible in ((1, False), (3, True)):
        monkeypatch.setattr(rows, "usable_threads", lambda m=n_threads: m)
        monkeypatch.setattr(rows, "multiplies_in_place", lambda p=possible: p)
        norms = np.empty(n)
        found.append((coordinates_and_norms(X, V, mean, norms, scale), norms))
    if n:
        assert seen == [(n, 1), (n, min(3, n * 2_000 // 2**20))]
    want = ((X.astype(float) - mean) / scale) @ V.T.astype(float)
    atol = 2_000 * np.finfo(dtype).eps * np.abs(want).max(initial=0)
    for Z, norms in found:
        assert_array_equal(norms, found[0][1])
        assert_allclose(Z, want, atol=atol)


@pytest.mark.parametrize("mean", [0, 0.1, 10, 1e4])
@pytest.mark.parametrize(("order", "dtype"), [("C", "f4"), ("F", "f8"), ("F", "f4")])
def test_a_mean_that_is_taken_off_after_the_product_costs_no_digit(mean, order, dtype):
    X = make_power_law(1_000, 400, random_state=0).astype(dtype)
    X = np.asarray(X + np.array(mean, dtype), order=order)
    m, V = X.mean(axis=0, dtype=float), np.linalg.qr(np.eye(400, 5) + 0.1)[0].T.astype(dtype)
    exact = (X.astype(float) - m) @ V.T.astype(float)
    Z = coordinates_and_norms(X, V, m.astype(dtype))
    assert Z.dtype == dtype
    eps = np.finfo(dtype).eps
    # the mean is rounded, and sums of 400 products
    rounding = eps * (np.abs(m) @ np.abs(V.T.astype(float))).max() + 40 * eps * np.abs(exact).max()
    assert_allclose(Z, exact, atol=rounding)


# -------------------------------------------------------------------------- slices, rotations


def generator(angles, signs):
    """The skew-symmetric B of a frame (columns), whose exp(-B) turns pairs by the angles."""
    d = signs.shape[-1]
    frame = random_rotation(np.eye(d), signs).T
    J = np.zeros((d, d))
    for j, angle in enumerate(angles):
        J[2 * j, 2 * j + 1], J[2 * j + 1, 2 * j] = angle, -angle
    return frame @ J @ frame.T


@pytest.mark.parametrize("d", [2, 9, 30])
@pytest.mark.parametrize("size", [1e-3, 0.3, 100])
def test_paths_are_those_of_matrix_exponentials(d, size):
    n, k, rng = 30, 2, np.random.default_rng(d)
    start, C = np.linalg.qr(rng.standard_normal((d, k)))[0].T, rng.standard_normal((n, k))
    angles, times = size * rng.random(d // 2), np.sort(rng.random(n))
    signs = rng.choice([-1.0, 1.0], (2, n, d))
    steady = SteadyRotation(start, times, angles, signs[:, 0])
    walk = RandomWalk(start, angles, signs)
    made = steady.rows(C), walk.rows(C)
    first = P = random_rotation(start, signs[:, 0]).T
    B = generator(angles, signs[:, 0])
    for t in range(n):
        turned = scipy.linalg.expm(-times[t] * B) @ first
        P = scipy.linalg.expm(-generator(angles, signs[:, t])) @ P if t else P
        for path, rows_made, want in zip((steady, walk), made, (turned, P), strict=True):
            assert_allclose(path.subspace_at(t).T, want, atol=1e-12 * max(size, 1))
            assert_allclose(rows_made[t], want @ C[t], atol=4e-12 * max(size, 1))


def test_noise_hides_products_with_a_vector_whose_entries_cancel(monkeypatch):
    """It has 2^-40 of what an entry can be at most, the sum of absolute values."""
    monkeypatch.setattr(row_moments, "MOST_COLUMNS", 2)
    half = np.random.default_rng(0).choice([-1.0, 1.0], (4, 500))
    X, v = np.concatenate([half, -half]), np.zeros((1, 500))
    v[0, :2] = 1, -1
    for given_rows in (X, sp.csr_array(X)):
        site = row_moments.SiteMoments.of(given_rows)
        noise = site.products(np.zeros(500), v) - v @ X.T @ X  # of integers, without rounding
        assert_allclose(noise.std(), 2.0**-40 * 2 * len(X), rtol=0.2)
        assert_allclose(site.column_scatter, len(X))
        with pytest.raises(TypeError, match="at most 2 columns"):
            site.matrix_about(site.mean)


@pytest.mark.parametrize("most_columns", [2048, 2])
@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("held", [1e20, 1e200])
def test_moments_take_rows_without_weight_for_absent(held, kind, most_columns, monkeypatch):
    """Whatever they hold: the point that rows are taken about must not come from them."""
    monkeypatch.setattr(row_moments, "MOST_COLUMNS", most_columns)
    rng = np.random.default_rng(0)
    X, w = rng.standard_normal((300, 5)) + 7, np.arange(300) % 3.0
    Z, V = X - np.average(X, axis=0, weights=w), rng.standard_normal((2, 5))
    scatter = (Z.T * w) @ Z
    X[w == 0] = held
    for moments in (row_moments.SiteMoments.of(kind(X), w), row_moments.RowsAtHand(kind(X), w)):
        mean = moments.total / moments.n_samples
        assert_allclose(mean, np.average(X[w > 0], axis=0, weights=w[w > 0]), rtol=1e-12)
        assert_allclose(moments.own_scatter, np.trace(scatter), rtol=1e-10)
        assert_allclose(moments.products(mean, V), V @ scatter, rtol=1e-8, atol=1e-8)
