"""Products with a few vectors in pieces, beside numpy's product of the whole."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from fedpca_sklearn import StreamingPCA, make_power_law
from fedpca_sklearn._kernels import rows, thin_products
from fedpca_sklearn._kernels.thin_products import in_pieces, product_with


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(0, 700),
    d=st.integers(1, 900),
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


def test_whole_numbers_are_exact():
    g = np.random.default_rng(0)
    Z, V = (g.integers(-9, 10, (m, 1_001)).astype(np.float32) for m in (300, 20))
    assert_array_equal(in_pieces(V)(Z), Z.astype(int) @ V.T.astype(int))


@pytest.mark.parametrize("possible", [True, False])
@pytest.mark.parametrize(
    ("n", "d", "k", "pays"),
    [
        (10_000, 2_000, 36, True),
        (10_000, 2_000, 49, False),  # 48.8 ms in pieces beside 48.3, of 784 features
        (100, 1_000, 10, False),  # small as it is
        (101, 1_000, 10, True),
        (101, 40_000, 10, False),  # sums of many pieces are rounded more often
    ],
)
def test_pieces_are_for_few_vectors_of_many_rows(n, d, k, pays, possible, monkeypatch):
    seen = []
    monkeypatch.setattr(thin_products, "in_pieces", seen.append)
    monkeypatch.setattr(thin_products, "multiplies_in_place", lambda: possible)
    for n_threads in (2, 1):  # of BLAS, which share the whole
        monkeypatch.setattr(thin_products, "usable_threads", lambda m=n_threads: m)
        product_with(np.ones((k, d)), n)
        assert bool(seen) == (pays and possible and n_threads == 1)


@pytest.mark.parametrize(
    ("names", "in_place"), [({"Haswell", ""}, False), ({"SkylakeX"}, True), (set(), False)]
)
def test_kernels_are_known_by_their_names(names, in_place, monkeypatch):
    monkeypatch.setattr(thin_products, "blas_architectures", lambda: names)
    thin_products.multiplies_in_place.cache_clear()
    try:
        assert thin_products.multiplies_in_place() == in_place
    finally:
        thin_products.multiplies_in_place.cache_clear()


@pytest.mark.parametrize("possible", [True, False])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_coordinates_are_those_of_the_whole_product(dtype, possible, monkeypatch):
    monkeypatch.setattr(thin_products, "multiplies_in_place", lambda: possible)
    X = make_power_law(2_000, 700, random_state=0).astype(dtype) + 3
    pca = StreamingPCA(5).fit(X)
    want = (X.astype(float) - pca.mean_) @ pca.components_.T.astype(float)
    assert_allclose(pca.transform(X), want, atol=700 * np.finfo(dtype).eps * np.abs(want).max())


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("n", [1_100, 1_101, 3_000])
def test_threads_share_the_rows_of_a_large_call(n, dtype, monkeypatch):
    g = np.random.default_rng(0)
    X, V = g.standard_normal((n, 2_000)).astype(dtype) + 2, g.standard_normal((7, 2_000))
    V, mean, scale = V.astype(dtype), X.mean(axis=0), g.uniform(1, 2, 2_000).astype(dtype)
    seen, find = [], rows.in_shares
    monkeypatch.setattr(rows, "in_shares", lambda *a: seen.append(a[:2]) or find(*a))
    found = []
    for n_threads in (1, 3):
        monkeypatch.setattr(rows, "usable_threads", lambda m=n_threads: m)
        norms = np.empty(n)
        found.append((rows.coordinates_and_norms(X, V, mean, norms, scale), norms))
    assert seen == [(n, 1), (n, min(3, n * 2_000 // 2**20))]
    (Z, norms), (Z_of_threads, norms_of_threads) = found
    assert_array_equal(norms, norms_of_threads)
    want = ((X.astype(float) - mean) / scale) @ V.T.astype(float)
    for have in (Z, Z_of_threads):
        assert_allclose(have, want, atol=2_000 * np.finfo(dtype).eps * np.abs(want).max())


def test_no_rows_have_no_coordinates():
    found = rows.coordinates_and_norms(np.empty((0, 300)), np.eye(2, 300), np.zeros(300))
    assert found.shape == (0, 2)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("mean", [0, 0.1, 1, 10, 1e4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_mean_that_is_taken_off_after_the_product_costs_no_digit(mean, order, dtype):
    X = make_power_law(1_000, 400, random_state=0).astype(dtype)
    X = np.asarray(X + np.array(mean, dtype), order=order)
    m, V = X.mean(axis=0, dtype=float), np.linalg.qr(np.eye(400, 5) + 0.1)[0].T.astype(dtype)
    exact = (X.astype(float) - m) @ V.T.astype(float)
    Z = rows.coordinates_and_norms(X, V, m.astype(dtype))
    assert Z.dtype == dtype
    eps = np.finfo(dtype).eps
    # the mean is rounded, and sums of 400 products
    rounding = eps * (np.abs(m) @ np.abs(V.T.astype(float))).max() + 40 * eps * np.abs(exact).max()
    assert_allclose(Z, exact, atol=rounding)
