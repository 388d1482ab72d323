"""Scatter matrices of rows: what numpy's products of centred rows in float64 say."""

import threading

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import noted_precisions
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_digits

from fedpca_sklearn import StreamingPCA, make_power_law
from fedpca_sklearn._kernels import scatter
from fedpca_sklearn._kernels.scatter import add_rows, of_few_digits, row_scatter
from fedpca_sklearn._kernels.sizes import threads_of_scatter
from fedpca_sklearn.metrics import subspace_distance

F8, F4 = np.dtype("f8"), np.dtype("f4")


def drawn(n, d, mean, dtype=F8):
    rng = np.random.default_rng(0)
    return (rng.standard_normal((n, d)) * np.linspace(3, 1, d) + mean).astype(dtype)


def oracle(X, w, center):
    X = np.asarray(X.toarray() if sp.issparse(X) else X, dtype=np.float64)
    mean = w @ X / w.sum() if center else np.zeros(X.shape[1])
    Z = np.sqrt(w)[:, None] * (X - mean)
    return Z.T @ Z, mean


@pytest.mark.parametrize("convert", [np.array, np.asfortranarray, sp.csr_array])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("mean", [0, 2, 1e6])
@pytest.mark.parametrize(("n", "d"), [(1, 5), (7, 5), (300, 40), (3000, 60)])
def test_the_scatter_is_that_of_numpy(n, d, mean, center, weighted, convert):
    X = drawn(n, d, mean)
    w = np.random.default_rng(1).uniform(0.1, 2, n) if weighted else np.ones(n)
    found = row_scatter(convert(X), np.sqrt(w) if weighted else None, w.sum(), center, F8)
    want, m = oracle(X, w, center)
    size = max(np.abs(want).max(), n)
    # the mean is rounded to eps times its size, in each of n products with deviations
    atol = 1e-13 * size if center or not mean else 1e-13 * n * mean**2
    assert_allclose(np.tril(found.G), np.tril(want), atol=max(atol, 4e-16 * mean * n))
    assert_allclose(found.shift + found.offset, m, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("mean", [0, 1000])
def test_products_in_float32_have_five_digits_and_a_mean_of_float64(mean):
    X = drawn(5000, 30, mean, F4)
    found = row_scatter(X, None, len(X), True, F4)
    want, m = oracle(X, np.ones(len(X)), True)
    assert_allclose(np.tril(found.G), np.tril(want), atol=1e-6 * np.abs(want).max())
    assert_allclose(found.shift + found.offset, m, rtol=0, atol=1e-6)


@given(st.floats(-1e300, 1e300), st.floats(0, 1e160), st.integers(-(2**40), 2**40))
def test_a_point_of_few_digits_is_near_and_exact_for_counts(point, deviation, count):
    near = float(of_few_digits(np.array([point]), np.array([deviation]))[0])
    assert abs(near - point) <= deviation / 8
    whole = float(of_few_digits(np.array([point]), np.array([16.0]))[0])
    assert whole == np.rint(whole)
    if abs(point) < 2**40:
        assert float(count) - whole == count - int(whole)


def quantised(kind):
    rng = np.random.default_rng(0)
    return {
        "digits": load_digits().data,
        "counts": rng.poisson(3, (20_000, 50)),
        "large counts": np.rint(rng.normal(400, 60, (20_000, 50))),
        "larger counts": np.rint(rng.normal(2000, 300, (20_000, 50))),
        "categories": np.eye(8)[rng.integers(8, size=5000)],
        "pixels": rng.normal(100, 60, (20_000, 64)).clip(0, 255).round() / 255,
        "tenths of a degree": rng.normal(36, 1, (5000, 20)).round(1),
    }[kind].astype(F4)


@pytest.mark.parametrize(
    ("kind", "eps"),
    [
        ("digits", 0),
        ("counts", 0),
        ("categories", 0),
        ("large counts", 1),
        ("larger counts", 32),
        ("pixels", 16),
        ("tenths of a degree", 16),
    ],
)
def test_roundings_of_float32_that_are_alike_in_many_rows_do_not_add_up(kind, eps):
    """About the mean itself they were 4 to 50 eps of the largest eigenvalue."""
    X = quantised(kind)
    found = row_scatter(X, None, len(X), True, F4)
    want, _ = oracle(X, np.ones(len(X)), True)
    E = np.tril(found.G) - np.tril(want)
    off, largest = (np.linalg.norm(G, 2) for G in (E + np.tril(E, -1).T, want))
    assert off <= (eps * np.finfo(F4).eps + 1e-13) * largest


@pytest.fixture
def products_in(monkeypatch):
    return noted_precisions(monkeypatch)


def spread(n, alpha):
    """Rows whose tenth variance is 10^-alpha of the first; float32 is certain down to .012."""
    return make_power_law(n, 70, alpha=alpha, random_state=0).astype(F4)


@pytest.mark.parametrize("batches", [1, 4])
@pytest.mark.parametrize(
    ("alpha", "precision"), [(1.0, (F4, False)), (3.0, (F4, True)), (4.0, (F8, False))]
)
def test_products_in_float32_are_not_made_in_vain(alpha, precision, batches, products_in):
    X = spread(20_000 * batches, alpha)
    model = StreamingPCA(10)
    for batch in np.split(X, batches):
        model.partial_fit(batch)
    assert products_in == [precision] * batches
    G, _ = oracle(X, np.ones(len(X)), True)
    V = np.linalg.eigh(G)[1][:, :-11:-1].T
    assert subspace_distance(model.components_, V) < 1e-4


def test_rows_that_do_not_look_like_the_sample_are_as_certain(products_in):
    steep, flat = spread(20_000, 3.0), spread(20_000, 0.5)
    step = len(flat) // (4 * 10 + 32)
    steep_sample, flat_sample = flat.copy(), steep.copy()
    steep_sample[::step], flat_sample[::step] = steep[::step], flat[::step]
    for X, precisions in (
        (steep_sample, [(F4, True)]),
        (flat_sample, [(F4, False), (F8, False)]),
    ):
        products_in.clear()
        model = StreamingPCA(10).fit(X)
        assert products_in == precisions
        G, _ = oracle(X, np.ones(len(X)), True)
        lam, V = np.linalg.eigh(G)
        assert_allclose(model.explained_variance_, lam[:-11:-1] / (len(X) - 1), rtol=1e-5)
        assert subspace_distance(model.components_, V[:, :-11:-1].T) < 1e-4


def test_a_mean_that_no_sampled_row_shows_is_found_in_a_second_pass():
    X = np.zeros((1280, 3))
    X[:, 0] = np.arange(1280) % 10 != 0  # every tenth row is sampled
    X[:, 0] *= 1e8
    X[:, 1] = np.where(X[:, 0] > 0, 1e8 + np.arange(1280) % 7, 0)
    found = row_scatter(X, None, len(X), True, F8)
    want = oracle(X, np.ones(len(X)), True)[0]
    assert_allclose(np.tril(found.G), np.tril(want), rtol=1e-12)
    assert found.lost.sum() <= want[0, 0]


def test_a_constant_column_has_no_scatter():
    X = drawn(500, 6, 5)
    X[:, 2], X[:, 4] = 0.1, 1e8
    G = row_scatter(X, None, len(X), True, F8).G
    assert np.all(G[2:5:2] == 0)
    assert np.all(np.tril(G)[:, 2:5:2] == 0)


def test_scaled_rows_are_added_to_a_lower_triangle():
    M, s = drawn(70, 9, 0), np.linspace(1, 2, 70)
    G = add_rows(np.asfortranarray(np.eye(9)), M, s)
    assert_allclose(np.tril(G), np.tril(np.eye(9) + (s[:, None] * M).T @ (s[:, None] * M)))


@pytest.mark.parametrize("convert", [np.array, np.asfortranarray, sp.csr_array])
@pytest.mark.parametrize("dtype", [F8, F4])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("mean", [0, 2, 1e6])
@pytest.mark.parametrize("d", [20, 250])
def test_threads_share_the_rows(d, mean, weighted, dtype, convert, monkeypatch):
    X, seen = convert(drawn(4097, d, mean, dtype)), set()
    n = X.shape[0]
    root_w = np.random.default_rng(1).uniform(0.3, 1.4, n) if weighted else None
    w = np.ones(n) if root_w is None else root_w**2
    total = float(w.sum())
    want, m = oracle(X, w, True)
    find = scatter._products_of

    def seen_find(share, *args, **kwargs):
        seen.add((threading.get_ident(), share.start))
        return find(share, *args, **kwargs)

    monkeypatch.setattr(scatter, "_products_of", seen_find)
    monkeypatch.setattr(scatter, "usable_threads", lambda: 3)
    monkeypatch.setattr(scatter, "_WORK_OF_THREADS", 0)
    found = row_scatter(X, root_w, total, True, dtype)
    assert {start for _, start in seen} == {0, 1366, 2732}
    assert threading.get_ident() not in {thread for thread, _ in seen}
    rounding = 1e-13 if dtype == F8 else 1e-6
    atol = max(rounding * np.abs(want).max(), 4e-16 * mean * n)
    assert_allclose(np.tril(found.G), np.tril(want), atol=atol)
    assert_allclose(found.shift + found.offset, m, rtol=1e-13, atol=rounding)
    again = row_scatter(X, root_w, total, True, dtype)
    assert_array_equal(again.G, found.G)
    assert_array_equal(again.offset, found.offset)


def test_a_thread_has_rows_enough_and_all_together_not_too_much_memory():
    assert threads_of_scatter(1000, 100, 8) == 1
    assert threads_of_scatter(1024, 100, 8) == 2
    assert threads_of_scatter(10**6, 100, 8) == 8
    assert threads_of_scatter(10**6, 1024, 64) == 8
    assert threads_of_scatter(10**6, 1025, 64) == 1
    assert threads_of_scatter(10**6, 100, 1) == 1


def test_what_is_not_finite_is_said_by_no_thread(monkeypatch, recwarn):
    X = drawn(4097, 20, 0)
    X[5, 3], X[4000, 7], X[9, 1] = np.inf, np.nan, 1e300
    monkeypatch.setattr(scatter, "usable_threads", lambda: 2)
    monkeypatch.setattr(scatter, "_WORK_OF_THREADS", 0)
    row_scatter(X, None, len(X), False, F8)
    assert not recwarn.list
