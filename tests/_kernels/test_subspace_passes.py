"""Directions of many rows from a few passes over them, beside numpy's SVD of all rows."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.decomposition import IncrementalPCA
from threadpoolctl import threadpool_limits

from fedpca_sklearn import StreamingPCA, Subspace, excess_error, make_power_law
from fedpca_sklearn._kernels import stack
from fedpca_sklearn._kernels.routes import passes_pay, scatter_pays
from fedpca_sklearn._kernels.sizes import rows_of_passes, step_of_passes
from fedpca_sklearn._kernels.stack import DenseBlock
from fedpca_sklearn._kernels.subspace_passes import RowsOfPasses
from fedpca_sklearn._kernels.threads import single_blas_thread, threads_for, usable_threads
from fedpca_sklearn.summary._updating import updated

N, D, K = 4100, 1200, 15


@cache
def rows():
    return make_power_law(N, D, alpha=1.0, random_state=0)


@pytest.fixture(scope="module")
def X():
    return rows()


def by_passes(Y, w=None, center=True, past=None):
    """Block and its directions, of which there is None if they are not certain."""
    fields = past or (np.zeros((0, D), Y.dtype), np.zeros(0), np.zeros(D), 0.0)
    block = DenseBlock(*fields, Y, w, center)
    with np.errstate(over="ignore", invalid="ignore"):
        return block, block.by_passes(K)


@pytest.mark.parametrize(("d", "k"), [(400, 15), (4000, 23), (16_000, 45), (4000, 300)])
@pytest.mark.parametrize("n", [600, 1201, 1799, 2047, 2559, 3071, 10_001])
def test_the_sample_is_not_larger_than_stated(n, d, k):
    size = -(-n // step_of_passes(n, d, k))
    assert size <= rows_of_passes(np.inf, d, k)
    assert size >= 4 / 3 * k or n < 2 * rows_of_passes(n, d, k)


@pytest.mark.parametrize(
    ("n", "d", "k", "pays"),
    [
        (10_000, 2_000, 45, True),
        (600, 2_000, 45, True),
        (10_000, 16_000, 45, True),  # a smaller sample
        (512, 2_000, 45, False),  # one block
        (600, 4_000, 200, False),  # the sample is no small share
        (10_000, 400, 15, False),  # one scatter matrix costs less
        (10_000, 17_000, 45, False),  # the sample takes more than 16 MB of float32
        (10_000, 1_500, None, False),
    ],
)
def test_passes_are_for_many_rows_of_many_columns(n, d, k, pays):
    assert passes_pay(n, d, k) == pays
    assert not (pays and scatter_pays(n, d, k))


@cache
def weighed(center, weighted):
    """Weights and the mean, the rows about it, their scatter matrix and its eigenvalues."""
    X = rows()
    weight = np.random.default_rng(1).uniform(0.5, 2, N) if weighted else np.ones(N)
    m = weight @ X / weight.sum() if center else np.zeros(D)
    Z = np.sqrt(weight)[:, None] * (X - m)
    return weight, m, Z, Z.T @ Z, np.linalg.eigvalsh(Z.T @ Z)[::-1]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("mean", "center"), [(0, False), (0, True), (3, True), (1e6, True)])
def test_five_components_of_fifteen_are_nearly_the_best(X, mean, center, weighted):
    weight, m, Z, S, best = weighed(center, weighted)
    block, (V, s) = by_passes(X + mean, weight if weighted else None, center)
    left = np.sum(Z**2) - np.sum((Z @ V[:5].T) ** 2)
    assert left / np.sum(best[5:]) - 1 < 1e-4
    assert_allclose(V @ V.T, np.eye(K), atol=1e-12)
    assert_allclose(s[:5], np.linalg.norm(Z @ V[:5].T, axis=0), rtol=1e-4)
    beyond = S - (V.T * s**2) @ V  # of a cut: nothing is claimed that is not there
    assert np.linalg.eigvalsh(beyond)[0] > -1e-11 * s[0] ** 2  # rows at 1e6 are rounded to 1e-10
    assert_allclose(block.column_scatter, np.sum(Z**2, axis=0), rtol=1e-8)
    if center:
        assert_allclose(block.new_mean[0], m + mean, rtol=1e-14, atol=1e-14)


def test_the_past_counts_as_its_rows_do(X):
    first, second = X[:200], X[200:] + 0.3
    past = updated(Subspace.empty(D), first)
    fields = (past.components, past.singular_values, past.mean, past.n_samples)
    Y = np.concatenate([second, second])[:N]
    block, (V, _) = by_passes(Y, past=fields)
    rows = np.concatenate([first, Y])
    Z = rows - rows.mean(axis=0)
    best = np.linalg.eigvalsh(Z.T @ Z)[::-1]
    left = np.sum(Z**2) - np.sum((Z @ V[:5].T) ** 2)
    assert left / np.sum(best[5:]) - 1 < 1e-4
    assert_allclose(block.new_mean[0], rows.mean(axis=0), rtol=1e-12, atol=1e-14)
    assert_allclose(past.scatter + block.scatter, np.sum(Z**2), rtol=1e-10)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_columns_that_are_directions_themselves_are_found_by_passes(seed):
    # those after the last one kept are in no direction at all; it is found roughly
    Y = np.random.default_rng(seed).standard_normal((N, D)) / np.sqrt(np.arange(1, D + 1))
    _, found = by_passes(Y)
    assert found is not None
    assert excess_error(Y, found[0][:5]) < 1e-4


def test_a_row_that_the_sample_does_not_show_is_found(X):
    Y = X.copy()
    Y[:, 7] = 0
    Y[1001] = 0
    Y[1001, 7] = 300  # more than the first direction has, in a column that nothing else uses
    pca = StreamingPCA(5, oversampling=10).fit(Y)
    assert abs(pca.components_[0, 7]) > 1 - 1e-6
    assert excess_error(Y, pca.components_) < 1e-4


@pytest.mark.parametrize("oversampling", [0, 2])
@pytest.mark.parametrize("r", [1, 3, 10, 20])
@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_without_oversampling_passes_are_better_than_small_blocks(alpha, r, oversampling):
    Y = power_law(alpha)
    kept = r + oversampling
    assert passes_pay(*Y.shape, kept)
    passes = StreamingPCA(r, oversampling=oversampling).fit(Y).components_
    blocks = IncrementalPCA(kept, batch_size=max(64, 2 * kept)).fit(Y).components_[:r]
    assert np.linalg.norm(Y @ passes.T) > np.linalg.norm(Y @ blocks.T)


@cache
def power_law(alpha):
    Y = make_power_law(2000, 1000, alpha=alpha, random_state=0)
    return Y - Y.mean(axis=0)


def test_few_directions_of_rows_are_left_to_updates(X):
    Y = X @ np.eye(D)[:, :3] @ np.eye(D)[:3]
    assert by_passes(Y)[1] is None
    pca = StreamingPCA(5, oversampling=10).fit(Y)
    assert excess_error(X[:, :3], pca.components_[:3, :3]) < 1e-12
    assert_allclose(pca.singular_values_[3:], 0, atol=1e-8)


@pytest.mark.parametrize("scale", [1e-160, 1e-150, 1e150])
def test_scales_change_nothing(X, scale):
    want = StreamingPCA(5, oversampling=10).fit(X)
    found = StreamingPCA(5, oversampling=10).fit(X * scale)
    assert excess_error(X, found.components_) < 1e-3
    assert_allclose(found.singular_values_ / scale, want.singular_values_, rtol=1e-4)


def test_rows_of_float32_go_through_products_of_float32(X):
    Y = X.astype(np.float32)
    V, s = by_passes(Y)[1]
    assert V.dtype == np.float32
    assert_allclose(s[:5], by_passes(X)[1][1][:5], rtol=1e-6)
    assert excess_error(X, V[:5].astype(np.float64)) < 1e-4


def test_what_is_forgotten_is_forgotten_once(X):
    weak = X @ np.eye(D)[:, :3] @ np.eye(D)[:3]  # which goes by updates
    models = [
        StreamingPCA(5, oversampling=10, forgetting_factor=0.999, block_size=b).fit(weak)
        for b in ("auto", 100)
    ]
    assert_allclose(*(m.singular_values_[:3] for m in models), rtol=1e-10)


def test_blocks_that_forget_stay_small():
    pca = StreamingPCA(20, forgetting="blocks", forgetting_factor=0.9)
    assert pca._sizes.block(2000, False) < 100


@pytest.mark.parametrize("center", [True, False])
def test_threads_share_the_rows(X, monkeypatch, center):
    w, seen = np.random.default_rng(1).uniform(0.5, 2, N), set()
    _, (V, s) = by_passes(X + 3, w, center)
    chunks = RowsOfPasses._chunks

    def seen_chunks(self, share):
        seen.add((threading.get_ident(), share.start))
        return chunks(self, share)

    monkeypatch.setattr(RowsOfPasses, "_chunks", seen_chunks)
    monkeypatch.setattr(stack, "usable_threads", lambda: 3)
    block, found = by_passes(X + 3, w, center)
    assert {start for _, start in seen} == {0, 1367, 2734}
    assert threading.get_ident() not in {thread for thread, _ in seen}
    assert_allclose(found[1], s, atol=1e-13 * s[0])
    assert_allclose(np.abs(np.sum(found[0] * V, axis=1)), 1, rtol=1e-10)
    again, same = by_passes(X + 3, w, center)
    assert_array_equal(same[0], found[0])
    assert_array_equal(again.column_scatter, block.column_scatter)


def test_clients_in_parallel_have_one_thread_each():
    with threadpool_limits(2, user_api="blas"):
        assert usable_threads() == 2
        with single_blas_thread():
            assert usable_threads() == 1


def test_small_products_leave_threads_to_python_but_not_beside_another_thread():
    with threadpool_limits(2, user_api="blas"), threads_for(1), ThreadPoolExecutor(1) as pool:
        assert usable_threads() == 2
        assert pool.submit(usable_threads).result() == 1
