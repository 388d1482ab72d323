"""A second pass of StreamingPCA over its rows, beside numpy's PCA of all rows."""

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import NotFittedError

from fedpca_sklearn import (
    ContributionBounds,
    NpyRows,
    StreamingPCA,
    excess_error,
    make_power_law,
    subspace_distance,
)

N, D, RANK = 2000, 600, 5


@pytest.fixture(scope="module")
def X():
    return make_power_law(N, D, alpha=1.0, random_state=0) + 3.0


def in_batches(X, size=250, **options):
    model = StreamingPCA(RANK, **options)
    for i in range(0, X.shape[0], size):
        model.partial_fit(X[i : i + size])
    return model


def best(X):
    values, vectors = np.linalg.eigh(np.cov(X.T))
    return vectors[:, ::-1][:, :RANK].T, values[::-1][:RANK]


def excess(model, X):
    return excess_error(X, model.components_, model.mean_)


@pytest.fixture(scope="module")
def refined(X):
    return in_batches(X).refine(X)


def test_a_pass_brings_a_tenth_of_the_excess_and_the_bound_holds(X, refined):
    model = in_batches(X)
    assert excess(refined, X) < excess(model, X) / 10
    V, values = best(X)
    for n in (1, 3):
        model.refine(X, n_rounds=n)
        low, high = model.explained_variance_interval_.T
        assert subspace_distance(model.components_, V) <= model.subspace_error_bound_
        assert np.all((low <= values) & (values <= high))
    assert model.subspace_error_bound_ < 1e-4


def ways(X, tmp_path):
    np.save(tmp_path / "rows.npy", X)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    return {
        "other batches": [X[:7], X[7:1500], X[1500:]],
        "an iterator": iter([X[1000:], X[:1000]]),
        "a memory map": mapped,
        "a file": NpyRows(tmp_path / "rows.npy"),
        "sparse": sp.csr_array(X),
    }


def test_rows_may_come_in_any_way(X, refined, tmp_path):
    for way, rows in ways(X, tmp_path).items():
        model = in_batches(X).refine(rows)
        assert subspace_distance(model.components_, refined.components_) < 1e-10, way
        assert_allclose(model.singular_values_, refined.singular_values_, rtol=1e-10)


def test_chunks_of_dask_are_multiplied_where_they_are(X, refined):
    da = pytest.importorskip("dask.array")
    model = in_batches(X).refine(da.from_array(X, chunks=(700, 200)))
    assert subspace_distance(model.components_, refined.components_) < 1e-10
    weight = np.random.default_rng(0).uniform(0, 2, N)
    here, there = (StreamingPCA(RANK, oversampling=5).fit(X, sample_weight=weight) for _ in "ab")
    there.refine(da.from_array(X, chunks=(500, -1)), da.from_array(weight, chunks=500))
    here.refine(X, weight)
    assert subspace_distance(here.components_, there.components_) < 1e-10


def test_weights_are_repeated_rows(X):
    weight = 1.0 + np.arange(N) % 2
    options = {"oversampling": 5, "block_size": 100}
    model = StreamingPCA(RANK, **options).fit(X, sample_weight=weight)
    twice = np.repeat(X, weight.astype(int), axis=0)
    with pytest.raises(ValueError, match="weight of 3000, got rows of weight 2000"):
        model.refine(X)
    model.refine(X, weight, n_rounds=6)
    assert subspace_distance(model.components_, best(twice)[0]) <= model.subspace_error_bound_ < 0.1


@pytest.mark.parametrize("options", [{"center": False}, {"rank_rule": ContributionBounds()}])
def test_any_summary_is_refined(X, options):
    model = in_batches(X, **options)
    before, rank = excess(model, X), model.n_components_
    model.refine(X)
    assert model.n_components_ == rank
    if not options.get("center", True):
        true = np.linalg.svd(X, full_matrices=False)[2][:RANK]
        assert subspace_distance(model.components_, true) <= model.subspace_error_bound_
    else:
        assert excess(model, X) < before
        model.partial_fit(X[:100])


def test_float32_stays_float32(X):
    Y = X.astype(np.float32)
    model = in_batches(Y).refine(Y, n_rounds=4)
    assert model.components_.dtype == model.subspace_.components.dtype == np.float32
    error = subspace_distance(model.components_, best(Y.astype(float))[0])
    assert error <= model.subspace_error_bound_ < 1e-3


def test_rows_that_wait_are_taken_first(X):
    model = in_batches(X)
    for row in X[:3]:
        model.partial_fit(row[None])
    rows = np.concatenate([X, X[:3]])
    error = excess(copy.deepcopy(model), rows)
    assert excess(model.refine(rows), rows) < error / 5
    assert model.n_samples_seen_ == N + 3
    again = pickle.loads(pickle.dumps(model))
    assert again.subspace_error_bound_ == model.subspace_error_bound_


def test_a_stream_goes_on_from_there(X, refined):
    model = copy.deepcopy(refined)
    bound = model.subspace_error_bound_
    model.partial_fit(X[:50])
    assert model.n_samples_seen_ == N + 50
    assert model.subspace_error_bound_ >= bound
    with pytest.raises(ValueError, match="weight of 2050"):
        model.refine(X)
    rows = np.concatenate([X, X[:50]])
    assert excess(model.refine(rows), rows) < 1e-5


def test_one_row_and_constant_rows():
    one = StreamingPCA(2).fit([[1.0, 2.0, 3.0]]).refine([[1.0, 2.0, 3.0]])
    assert_array_equal(one.explained_variance_, [0.0])
    assert one.subspace_error_bound_ == np.inf
    same = np.full((5, 4), 1e8)
    assert StreamingPCA().fit(same).refine(same).subspace_error_bound_ in (0.0, np.inf)


def test_what_was_cut_bounds_the_error():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 4)) @ rng.standard_normal((4, 300)) * 10
    X += 1e-3 * rng.standard_normal((400, 300))
    model = StreamingPCA(4, oversampling=2, block_size=50).fit(X)
    error = subspace_distance(model.components_, np.linalg.eigh(np.cov(X.T))[1][:, -4:].T)
    assert 0 < error <= model.subspace_error_bound_ < 1e-4
    exact = StreamingPCA(4).fit(X[:, :50])
    error = subspace_distance(exact.components_, np.linalg.eigh(np.cov(X[:, :50].T))[1][:, -4:].T)
    assert error <= exact.subspace_error_bound_ < 1e-12


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n", [600, 4100])
def test_directions_of_a_few_passes_are_those_of_a_cut(n, dtype):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 3)) @ rng.standard_normal((3, 400)) * 10
    X = (X + 1e-3 * rng.standard_normal((n, 400))).astype(dtype)
    _, values, V = np.linalg.svd(X - X.mean(axis=0, dtype=float), full_matrices=False)
    model = StreamingPCA(3, oversampling=10).fit(X)
    error = subspace_distance(model.components_, V[:3])
    assert 0 < error <= model.subspace_error_bound_ < 1e-3
    low, high = model.explained_variance_interval_.T * (n - 1)
    assert np.all((low <= values[:3] ** 2) & (values[:3] ** 2 <= high))
    assert model.refine(X).subspace_error_bound_ < 1e-3
    if dtype == np.float64:
        assert model.subspace_error_bound_ < 1e-6


@settings(max_examples=25, deadline=None)
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
    w = np.ones(n) if weight is None else weight
    Z = np.sqrt(w)[:, None] * (X - np.average(X.astype(float), axis=0, weights=w))
    _, s, V = np.linalg.svd(Z, full_matrices=False)
    model = StreamingPCA(r)
    if draw(st.booleans()):
        model.fit(X, sample_weight=weight)
    else:
        for part in (slice(0, n // 3), slice(n // 3, n)):
            model.partial_fit(X[part], sample_weight=None if weight is None else weight[part])
    error = subspace_distance(model.components_, V[:r])
    assert error <= model.subspace_error_bound_
    low, high = model.explained_variance_interval_.T * (w.sum() - 1)
    assert np.all((low <= s[:r] ** 2) & (s[:r] ** 2 <= high))


def test_what_cannot_be_refined_is_named_and_changes_nothing(X, refined):
    model = copy.deepcopy(refined)
    before = dict(vars(model))
    for rows, message in {
        "another mean": (X + 1e-3, "whose mean is another"),
        "an iterator": (iter([X]), "must be 1 where X is an iterator"),
    }.values():
        with pytest.raises(ValueError, match=message):
            model.refine(rows, n_rounds=2)
    with pytest.raises(ValueError, match="n_rounds must be an integer of at least 1, got 0"):
        model.refine(X, n_rounds=0)
    with pytest.raises(ValueError, match="sample_weight cannot be given"):
        model.refine([X], np.ones(N))
    assert vars(model) == before
    faded = StreamingPCA(2, forgetting_factor=0.9).fit(X[:50])
    with pytest.raises(ValueError, match="must be 1 to refine: rows that have faded"):
        faded.refine(X[:50])
    with pytest.raises(NotFittedError):
        StreamingPCA().refine(X)
