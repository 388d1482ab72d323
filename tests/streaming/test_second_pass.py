"""A second pass of StreamingPCA over its rows, beside numpy's PCA of all rows."""

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import svd_of
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from fedpca_sklearn import NpyRows, StreamingPCA, excess_error, make_power_law, subspace_distance

N, D, RANK = 1500, 600, 5


@pytest.fixture(scope="module")
def X():
    return make_power_law(N, D, alpha=1.0, random_state=0) + 3.0


def in_batches(X, size=250, **options):
    model = StreamingPCA(RANK, **options)
    for i in range(0, X.shape[0], size):
        model.partial_fit(X[i : i + size])
    return model


def assert_bounded(model, X, r, most=np.inf, weight=None, center=True):
    """What the model says of its errors holds, and is at most so much."""
    _, s, V = svd_of(X, weight, center)
    error = subspace_distance(model.components_, V[:r])
    assert error <= model.subspace_error_bound_ <= most
    low, high = model.explained_variance_interval_.T * (model.subspace_.n_samples - 1)
    assert np.all((low <= s[:r] ** 2) & (s[:r] ** 2 <= high))
    return error


def excess(model, X):
    return excess_error(X, model.components_, model.mean_)


@pytest.fixture(scope="module")
def refined(X):
    return in_batches(X).refine(X)


def test_a_pass_brings_a_tenth_of_the_excess_and_the_bound_holds(X, refined):
    model = in_batches(X)
    assert excess(refined, X) < excess(model, X) / 10
    model.refine(X)
    assert_bounded(model, X, RANK)
    assert_bounded(model.refine(X, n_rounds=3), X, RANK, 1e-4)


def test_rows_may_come_in_any_way(X, refined, tmp_path):
    da = pytest.importorskip("dask.array")
    np.save(tmp_path / "rows.npy", X)
    for rows in (
        [X[:7], X[7:1300], X[1300:]],
        iter([X[1000:], X[:1000]]),
        np.load(tmp_path / "rows.npy", mmap_mode="r"),
        NpyRows(tmp_path / "rows.npy"),
        sp.csr_array(X),
        da.from_array(X, chunks=(700, 200)),
    ):
        model = in_batches(X).refine(rows)
        assert subspace_distance(model.components_, refined.components_) < 1e-10
        assert_allclose(model.singular_values_, refined.singular_values_, rtol=1e-10)


def test_weights_are_repeated_rows_also_of_dask(X):
    da = pytest.importorskip("dask.array")
    weight = 1.0 + np.arange(N) % 2
    model, there = (
        StreamingPCA(RANK, oversampling=5, block_size=100).fit(X, sample_weight=weight)
        for _ in "ab"
    )
    with pytest.raises(ValueError, match="weight of 2250, got rows of weight 1500"):
        model.refine(X)
    there.refine(da.from_array(X, chunks=(500, -1)), da.from_array(weight, chunks=500))
    model.refine(X, weight)
    assert subspace_distance(model.components_, there.components_) < 1e-10
    model.refine(X, weight, n_rounds=5)
    assert_bounded(model, X, RANK, 0.1, weight=weight)


def test_rows_that_wait_are_taken_first_and_the_stream_goes_on(X):
    model = in_batches(X)
    for row in X[:3]:
        model.partial_fit(row[None])
    rows = np.concatenate([X, X[:3]])
    error = excess(copy.deepcopy(model), rows)
    assert excess(model.refine(rows), rows) < error / 5
    bound = model.subspace_error_bound_
    assert pickle.loads(pickle.dumps(model)).subspace_error_bound_ == bound
    model.partial_fit(X[:50])
    assert model.n_samples_seen_ == N + 53
    assert model.subspace_error_bound_ >= bound
    with pytest.raises(ValueError, match="weight of 1553"):
        model.refine(X)
    rows = np.concatenate([rows, X[:50]])
    assert excess(model.refine(rows), rows) < 1e-5


def test_one_row_and_constant_rows():
    one = StreamingPCA(2).fit([[1.0, 2.0, 3.0]]).refine([[1.0, 2.0, 3.0]])
    assert_array_equal(one.explained_variance_, [0.0])
    assert one.subspace_error_bound_ == np.inf
    same = np.full((5, 4), 1e8)
    assert StreamingPCA().fit(same).refine(same).subspace_error_bound_ in (0.0, np.inf)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("n", "options"), [(400, {"block_size": 50}), (600, {}), (4100, {})])
def test_what_was_cut_bounds_the_error(n, options, dtype):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 3)) @ rng.standard_normal((3, 400)) * 10
    X = (X + 1e-3 * rng.standard_normal((n, 400))).astype(dtype)
    model = StreamingPCA(3, oversampling=10, **options).fit(X)
    assert assert_bounded(model, X, 3, 1e-3) > 0
    assert model.refine(X).subspace_error_bound_ < (1e-6 if dtype == np.float64 else 1e-3)
    assert_bounded(StreamingPCA(3).fit(X[:, :50].astype(float)), X[:, :50], 3, 1e-9)


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_the_bound_of_a_few_passes_is_never_below_the_error(data):
    draw = data.draw
    n, d, r = draw(st.integers(513, 1500)), draw(st.integers(260, 500)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    sizes = rng.uniform(0.5, 3, draw(st.integers(r, 12)))
    latent = rng.standard_normal((n, len(sizes))) * sizes
    if draw(st.booleans()):  # a direction that rows of a sample may not show
        latent[:: draw(st.integers(2, 5)), 0] = 0
    if draw(st.booleans()):  # the first rows are the smallest
        latent = latent[np.argsort(np.linalg.norm(latent, axis=1))]
    X = latent @ rng.standard_normal((len(sizes), d))
    X += draw(st.sampled_from([1e-6, 1e-3, 1e-2, 0.1])) * rng.standard_normal((n, d))
    X = (X + draw(st.sampled_from([0, 3, 1e4]))).astype(draw(st.sampled_from(["f8", "f4"])))
    weight = rng.integers(1, 4, n).astype(float) if draw(st.booleans()) else None
    model = StreamingPCA(r)
    for part in np.split(np.arange(n), [n // 3] * draw(st.booleans())):
        model.partial_fit(X[part], sample_weight=None if weight is None else weight[part])
    assert_bounded(model, X, r, weight=weight)
