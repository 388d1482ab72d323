"""Scatter matrices of rows: what numpy's products of centred rows in float64 say.

Products of rows with a few vectors, about a mean, in blocks and pieces; slices; rotations.
"""

import threading
from unittest.mock import patch

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from helpers import as_dense, noted_precisions
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from rounds_helpers import examples, seeds
from sklearn.datasets import load_digits

from fedpca_sklearn import StreamingPCA, make_power_law
from fedpca_sklearn._kernels import row_moments, rows, scatter
from fedpca_sklearn._kernels.rows import (
    columns_about,
    coordinates_and_norms,
    in_pieces,
    scatter_product,
)
from fedpca_sklearn._kernels.scatter import row_scatter
from fedpca_sklearn._kernels.sizes import rows_of_scatter
from fedpca_sklearn.datasets import RandomWalk, SteadyRotation, random_rotation
from fedpca_sklearn.metrics import subspace_distance

F8, F4 = np.dtype("f8"), np.dtype("f4")
# precision of products, and whether a few directions are taken off the rows first
PLAIN, EXACT = F4, F8


def oracle(X, w=None, center=True):
    """Scatter, about the mean or the origin, and the mean, in float64."""
    X = as_dense(X)
    w = np.ones(len(X)) if w is None else w
    mean = w @ X / w.sum() if center else np.zeros(X.shape[1])
    Z = np.sqrt(w)[:, None] * (X - mean)
    return Z.T @ Z, mean


def off(found, want):
    """Norm of the difference from a lower triangle."""
    E = np.tril(found) - np.tril(want)
    return np.abs(np.linalg.eigvalsh(E)).max()


def assert_leads(pca, X, r, w=None, angle=1e-5, rtol=1e-6):
    """Components up to an angle of this over their relative gap, variances, scatter and means."""
    G, mean = oracle(X, w)
    lam, V = (found[..., ::-1] for found in np.linalg.eigh(G))
    gap = (lam[r - 1] - lam[r]) / lam[r - 1]
    assert subspace_distance(pca.components_, V[:, :r].T) < angle / gap
    assert_allclose(pca.singular_values_**2, lam[:r], rtol=rtol)
    rows = len(X) if w is None else w.sum()
    off = np.abs(pca.subspace_.mean - mean)
    assert np.all(off < 1e-5 * np.sqrt(np.diagonal(G) / rows) + 1e-14 * np.abs(mean))
    return G


@pytest.fixture
def made(monkeypatch):
    return noted_precisions(monkeypatch)


def power_law(n, d, alpha, seed=0):
    return make_power_law(n, d, alpha=alpha, random_state=seed).astype(F4)


# -------------------------------------------------------------------------- the matrix


@settings(max_examples=60, deadline=None)
@given(
    n=st.sampled_from([1, 7, 64, 300, 4097]),
    d=st.one_of(*[st.integers(2, 40)] * 4, st.just(1100)),
    far=st.sampled_from([0, 3, 1e3, 1e6]),
    weighted=st.booleans(),
    center=st.booleans(),
    dtype=st.sampled_from([F4, F8]),
    convert=st.sampled_from([np.array, np.asfortranarray, sp.csr_array]),
    n_threads=st.sampled_from([1, 3]),
    seed=st.integers(0, 2**31),
)
def test_the_scatter_is_that_of_numpy(n, d, far, weighted, center, dtype, convert, n_threads, seed):
    rng, eps, n = np.random.default_rng(seed), np.finfo(dtype).eps, min(n, 64) if d > 40 else n
    far = far if center and (dtype == F8 or far < 1e6) else 0
    X = (rng.standard_normal((n, d)) * np.linspace(3, 1, d) + far).astype(dtype)
    w = rng.uniform(0.1, 2, n) if weighted else None
    total = float(n if w is None else w.sum())
    args = convert(X), None if w is None else np.sqrt(w), total, center, dtype
    with patch.multiple(scatter, usable_threads=lambda: n_threads, _WORK_OF_THREADS=0):
        found, again = row_scatter(*args), row_scatter(*args)
    want, mean = oracle(X, w, center)
    # the mean is rounded to eps times its size, in each of n products with deviations
    least = n * far**2 * np.finfo(F8).eps * 8 if dtype == F4 else 4e-16 * far * n
    assert off(found.G, want) <= 16 * eps * max(np.trace(want), n) + least
    # rows are at most some 15 from their mean, of which 64 are added up in their precision; the
    # oracle adds up n
    rtol, atol = (1e-14, 1e-13) if dtype == F8 else (n * np.finfo(F8).eps, 15 * 64 * eps)
    assert_allclose(found.shift + found.offset, mean, rtol=rtol, atol=atol)
    assert_array_equal(again.G, found.G)
    assert_array_equal(again.offset, found.offset)


@pytest.mark.parametrize("d", [3, 40, 150])
def test_chunks_of_rows_are_whole_though_the_last_one_is_not_full(d):
    """Integers, of which sums of products are exact."""
    n = 2 * rows_of_scatter(d, 8) + 7
    X = np.random.default_rng(d).integers(-3, 4, (n, d)).astype(F8)
    assert_array_equal(np.tril(row_scatter(X, None, n, False, F8).G), np.tril(X.T @ X))


RNG = np.random.default_rng(0)
QUANTISED = {
    "digits": (load_digits().data, 0),
    "categories": (np.eye(8)[RNG.integers(8, size=5000)], 0),
    "larger counts": (np.rint(RNG.normal(2000, 300, (20_000, 50))), 32),
    "pixels": (RNG.normal(100, 60, (20_000, 64)).clip(0, 255).round() / 255, 16),
    "tenths of a degree": (RNG.normal(36, 1, (5000, 20)).round(1), 16),
}


@pytest.mark.parametrize("kind", QUANTISED)
def test_roundings_of_float32_that_are_alike_in_many_rows_do_not_add_up(kind):
    """About the mean itself they were 4 to 50 eps of the largest eigenvalue."""
    X, eps = QUANTISED[kind][0].astype(F4), QUANTISED[kind][1]
    found, want = row_scatter(X, None, len(X), True, F4), oracle(X)[0]
    assert off(found.G, want) <= (eps * np.finfo(F4).eps + 1e-13) * np.linalg.norm(want, 2)


def test_a_mean_that_no_sampled_row_shows_is_found_in_a_second_pass():
    X = np.zeros((1280, 3))
    X[:, 0] = np.arange(1280) % 10 != 0  # every tenth row is sampled
    X[:, 0] *= 1e8
    X[:, 1] = np.where(X[:, 0] > 0, 1e8 + np.arange(1280) % 7, 0)
    found, want = row_scatter(X, None, len(X), True, F8), oracle(X)[0]
    assert_allclose(np.tril(found.G), np.tril(want), rtol=1e-12)
    assert found.lost.sum() <= want[0, 0]
    X = np.random.default_rng(0).standard_normal((500, 6))
    X[:, 2], X[:, 4] = 0.1, 1e8  # constant columns have no scatter
    G = np.tril(row_scatter(X, None, len(X), True, F8).G)
    assert not G[2:5:2].any()
    assert not G[:, 2:5:2].any()


def test_threads_share_the_rows(monkeypatch, recwarn):
    seen, find = set(), scatter._products_of

    def seen_find(share, *args, **kwargs):
        seen.add((threading.get_ident(), share.start))
        return find(share, *args, **kwargs)

    monkeypatch.setattr(scatter, "_products_of", seen_find)
    monkeypatch.setattr(scatter, "usable_threads", lambda: 3)
    monkeypatch.setattr(scatter, "_WORK_OF_THREADS", 0)
    X = np.random.default_rng(0).standard_normal((4097, 20))
    X[5, 3], X[4000, 7], X[9, 1] = np.inf, np.nan, 1e30  # which no thread complains of
    row_scatter(X, None, len(X), False, F8)
    assert {start for _, start in seen} == {0, 1366, 2732}
    assert threading.get_ident() not in {thread for thread, _ in seen}
    assert not recwarn.list


# -------------------------------------------------------------------------- precisions


@pytest.mark.parametrize(
    ("n", "d", "r", "alpha", "precision", "n_threads"),
    [
        (20_000, 70, 10, 1.0, PLAIN, 2),
        (20_000, 70, 10, 3.0, EXACT, 2),
        (20_000, 70, 10, 4.0, EXACT, 1),
        (20_000, 70, 20, 2.0, EXACT, 2),
        (8_000, 300, 10, 2.5, EXACT, 1),
    ],
)
def test_small_variances_beside_large_ones_keep_their_digits(
    n, d, r, alpha, precision, n_threads, made, monkeypatch
):
    """Of float32 alone the directions would be off by eps times the ratio of variances."""
    monkeypatch.setattr(scatter, "usable_threads", lambda: n_threads)
    X = power_law(n, d, alpha) + F4.type(5)
    angle = 1e-4 if precision == PLAIN else 1e-5
    assert_leads(StreamingPCA(r).fit(X), X, r, angle=angle, rtol=1e-5)
    assert made == [precision]
    if alpha == 3.0:
        made.clear()
        X, pca = power_law(4 * n, d, alpha), StreamingPCA(r)
        for batch in np.split(X, 4):
            pca.partial_fit(batch)
        assert_leads(pca, X, r, angle=angle, rtol=1e-5)
        assert made == [precision] * 4


def test_rows_that_do_not_look_like_the_sample_are_as_certain(made):
    steep, flat = power_law(20_000, 70, 3.0), power_law(20_000, 70, 0.5)
    step = len(flat) // (4 * 10 + 32)
    steep_sample, flat_sample = flat.copy(), steep.copy()
    steep_sample[::step], flat_sample[::step] = steep[::step], flat[::step]
    for X, routes in ((steep_sample, [EXACT]), (flat_sample, [PLAIN, EXACT])):
        made.clear()
        assert_leads(StreamingPCA(10).fit(X), X, 10, angle=1e-4, rtol=1e-5)
        assert made == routes


@pytest.mark.parametrize("sampled", [True, False])
def test_rows_with_a_direction_of_their_own_are_as_certain(sampled, made):
    """An attack: one row in two hundred is far off where no row of the sample is."""
    X = make_power_law(20_000, 100, alpha=2.5, random_state=0)
    far = np.arange(100, len(X), 200)
    X[far] += 1e2 * np.random.default_rng(0).standard_normal((len(far), 1)) * np.eye(100)[70]
    if sampled:  # in another order the sample shows some of them
        X = X[np.random.default_rng(1).permutation(len(X))]
    X = X.astype(F4)
    assert_leads(StreamingPCA(12).fit(X), X, 12)
    assert made[-1] == EXACT


@pytest.mark.parametrize("oversampling", ["auto", 10])  # all directions are kept, and 22
def test_columns_that_do_not_vary_have_no_loading_and_small_ones_keep_their_scatter(
    oversampling, made
):
    X = make_power_law(20_000, 70, alpha=2.5, random_state=0)
    X[:, 3], X[:, 30], X[:, 31] = 0.1, 1e8, 7
    X[:, 50] *= 1e-6
    X = X.astype(F4)
    pca = StreamingPCA(12, oversampling=oversampling).fit(X)
    assert made == [EXACT]
    assert_leads(pca, X, 12, rtol=1e-4, angle=1e-3)
    assert not pca.components_[:, [3, 30, 31]].any()
    assert not pca.subspace_.components[:, [3, 30, 31]].any()
    squares = np.diagonal(oracle(X)[0])
    assert_allclose(pca.subspace_.column_scatter, squares, rtol=1e-5, atol=1e-30)


def test_small_columns_keep_scatter_and_mean_whatever_the_sample_shows(made):
    """Found from outside: of columns 1e-6 as large they were differences of larger numbers."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30_000, 80)) * np.repeat([1.0, 0.03, 1e-6], [4, 16, 60])
    X[:, 20:] += 1e-6
    sampled = np.arange(len(X)) % (len(X) // (4 * 12 + 32)) == 0
    X[sampled, 20:] *= 1e4  # so that the first directions have loadings there
    X[np.ix_(~sampled, range(4))] *= 2
    X = X.astype(F4)
    pca = StreamingPCA(12).fit(X)
    assert made[0] == EXACT
    G = assert_leads(pca, X, 12, rtol=1e-4, angle=1e-3)
    assert_allclose(pca.subspace_.column_scatter, np.diagonal(G), rtol=1e-5)


@pytest.mark.parametrize("alpha", [0.3, 2.2])
def test_tiny_weights_of_large_rows_do_not_move_the_mean(alpha):
    """Found from outside: in float32 their products with rows vanished, in sums only."""
    X = (power_law(20_000, 40, alpha) + 3) * F4.type(1e15)
    w = np.full(len(X), 1e-66)
    assert_leads(StreamingPCA(8).fit(X, sample_weight=w), X, 8, w, rtol=1e-4)


# -------------------------------------------------------------------- products with a few vectors

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
    """Of whole numbers, which are exact."""
    g = np.random.default_rng(n + d)
    Z = np.asarray(g.integers(-9, 10, (n, d)), dtype, order=order)
    V = g.integers(-9, 10, (k, d)).astype(dtype)
    found = in_pieces(V)(Z)
    assert found.dtype == dtype
    assert_array_equal(found, Z.astype(int) @ V.T.astype(int))


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
    halved = coordinates_and_norms(X, V, m.astype(dtype), scale=np.full(400, 2.0))
    assert_allclose(halved, exact / 2, atol=rounding)


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
