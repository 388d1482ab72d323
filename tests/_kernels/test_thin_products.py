"""Products with a few vectors in pieces, beside numpy's product of the whole."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from fedpca_sklearn import StreamingPCA, make_power_law
from fedpca_sklearn._kernels import thin_products
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
    ],
)
def test_pieces_are_for_few_vectors_of_many_rows(n, d, k, pays, possible, monkeypatch):
    seen = []
    monkeypatch.setattr(thin_products, "in_pieces", seen.append)
    monkeypatch.setattr(thin_products, "multiplies_in_place", lambda: possible)
    product_with(np.ones((k, d)), n)
    assert bool(seen) == (pays and possible)


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
