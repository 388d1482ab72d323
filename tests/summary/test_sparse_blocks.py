"""Summaries of sparse rows that use few columns."""

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import (
    sine,
)
from numpy.testing import assert_allclose, assert_array_equal
from projection_helpers import assert_orthonormal, eigenpairs, scatter_of
from sklearn.base import clone

from fedpca_sklearn import (
    StreamingPCA,
    Subspace,
)


def rows_of_few_columns(rng, n, d=2000, used=300, offset=0.0):
    """Dense rows that hold values in some columns only, with decaying singular values."""
    columns = np.sort(rng.choice(d, used, replace=False))
    X = np.zeros((n, d))
    values = rng.standard_normal((n, used)) * np.maximum(0.8 ** np.arange(used), 0.02)
    values *= rng.random((n, used)) < 0.5
    values[0, values.any(axis=0) == 0] = 0.1  # every column is used
    X[:, columns] = values + (values != 0) * offset
    return X, columns


def assert_summary_of(subspace, X, weight=None, k=8, center=True):
    """Moments, and leading directions, against numpy's SVD of the dense rows."""
    w = np.ones(len(X)) if weight is None else weight
    mean = w @ X / w.sum() if center else np.zeros(X.shape[1])
    _, s, V = np.linalg.svd(np.sqrt(w)[:, None] * (X - mean), full_matrices=False)
    assert_allclose(subspace.mean, mean, atol=1e-13)
    assert_allclose(subspace.n_samples, w.sum())
    assert_allclose(subspace.scatter, s @ s, rtol=1e-12)
    assert_orthonormal(subspace.components)
    assert_allclose(subspace.singular_values[:k], s[:k], rtol=1e-9)
    assert sine(subspace.components[:k], V[:k]) <= 1e-9
    rest = subspace.singular_values
    assert_allclose(rest, s[: len(rest)], atol=1e-6 * s[0])


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n", [20, 200, 450])
def test_rows_that_use_few_columns_equal_dense_rows(n, weighted, center):
    rng = np.random.default_rng(63)
    X, columns = rows_of_few_columns(rng, n)
    weight = rng.uniform(0, 2, n) if weighted else None
    if weighted:
        weight[::7] = 0
    Y = sp.csr_array(X)
    subspace = Subspace.from_rows(Y, center=center, sample_weight=weight)
    assert_summary_of(subspace, X, weight, center=center)
    assert subspace.centered == center
    dense = Subspace.from_rows(X, center=center, sample_weight=weight)
    assert_allclose(dense.scatter, subspace.scatter, rtol=1e-12)
    others = np.setdiff1d(np.arange(2000), columns)
    assert not subspace.components[:, others].any()
    assert not subspace.mean[others].any()
    assert_array_equal(Y.toarray(), X)
    assert Subspace.from_bytes(subspace.to_bytes()).n_features == 2000


def test_rows_without_any_weight_leave_a_wide_summary_empty():
    X, _ = rows_of_few_columns(np.random.default_rng(64), 30)
    subspace = Subspace.from_rows(sp.csr_array(X), sample_weight=np.zeros(30))
    assert (subspace.n_components, subspace.n_features, subspace.n_samples) == (0, 2000, 0)
    assert subspace.scatter == 0


@pytest.mark.parametrize("used", [200, 256, 257, 300, 1000, 1001])
def test_any_number_of_used_columns(used):
    X, _ = rows_of_few_columns(np.random.default_rng(65), 60, used=used)
    assert_summary_of(Subspace.from_rows(sp.csr_array(X)), X)
    part = Subspace.from_rows(sp.csr_array(X), 5)
    assert part.n_components == 5
    assert_summary_of(part, X, k=5)


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_columns_that_are_full_are_centred_exactly(offset):
    rng = np.random.default_rng(66)
    X, columns = rows_of_few_columns(rng, 50)
    X[:, columns[:20]] = rng.standard_normal((50, 20)) + offset
    subspace = Subspace.from_rows(sp.csr_array(X), 5)
    S, mean = scatter_of(X)
    assert_allclose(subspace.mean, mean, rtol=1e-14, atol=1e-13)
    assert_allclose(subspace.scatter, np.trace(S), rtol=1e-9)
    values, vectors = eigenpairs(S)
    assert_allclose(subspace.singular_values**2, values[:5], rtol=1e-8)
    assert sine(subspace.components, vectors[:5]) <= 1e-7


@pytest.mark.parametrize("weighted", [False, True])
def test_explicit_zeros_duplicates_and_unsorted_entries_mean_the_same(weighted):
    rng = np.random.default_rng(67)
    X, _ = rows_of_few_columns(rng, 80)
    Y = sp.csr_array(X)
    weight = rng.uniform(0.5, 2, 80) if weighted else None
    data, indices, indptr = [], [], [0]
    zeros = rng.choice(2000, 20, replace=False)
    for i in range(80):
        row = slice(Y.indptr[i], Y.indptr[i + 1])
        entries = [(j, v / 4) for j, v in zip(Y.indices[row], Y.data[row], strict=True)] * 2
        entries += [(j, v / 2) for j, v in zip(Y.indices[row], Y.data[row], strict=True)]
        entries += [(j, 0.0) for j in zeros]
        order = rng.permutation(len(entries))
        indices += [entries[j][0] for j in order]
        data += [entries[j][1] for j in order]
        indptr.append(len(data))
    messy = sp.csr_array((np.array(data), np.array(indices), np.array(indptr)), shape=X.shape)
    before = [array.copy() for array in (messy.data, messy.indices, messy.indptr)]
    subspace = Subspace.from_rows(messy, sample_weight=weight)
    assert_summary_of(subspace, X, weight)
    for array, old in zip((messy.data, messy.indices, messy.indptr), before, strict=True):
        assert_array_equal(array, old)


@pytest.mark.parametrize("model", [StreamingPCA(2, scale=True), StreamingPCA(2, partial_out=0)])
def test_entries_stored_twice_are_left_as_they_are(model):
    """joblib hands large rows to its workers as read-only memory maps."""
    X = sp.random(30, 300, density=0.1, random_state=0, format="csr")
    twice = sp.csr_array((np.repeat(X.data / 2, 2), np.repeat(X.indices, 2), X.indptr * 2), X.shape)
    before = [array.copy() for array in (twice.data, twice.indices, twice.indptr)]
    for array in (twice.data, twice.indices, twice.indptr):
        array.flags.writeable = False
    variances = clone(model).fit(twice).explained_variance_
    for array, old in zip((twice.data, twice.indices, twice.indptr), before, strict=True):
        assert_array_equal(array, old)
    assert_allclose(variances, clone(model).fit(X).explained_variance_, rtol=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_stream_that_goes_on_in_other_columns_equals_dense_rows(weighted):
    rng = np.random.default_rng(68)
    batches = [rows_of_few_columns(rng, n)[0] for n in (60, 50, 1, 40)]
    weights = [rng.uniform(0.5, 2, len(b)) if weighted else None for b in batches]
    pca = StreamingPCA().fit(sp.csr_array(batches[0]), sample_weight=weights[0])
    for batch, weight in zip(batches[1:], weights[1:], strict=True):
        pca.partial_fit(sp.csr_array(batch), sample_weight=weight)
    X = np.concatenate(batches)
    assert_summary_of(pca.subspace_, X, np.concatenate(weights) if weighted else None)
    few = StreamingPCA(5, oversampling=200).fit(sp.csr_array(batches[0]))
    for batch in batches[1:]:
        few.partial_fit(sp.csr_array(batch))
    assert_summary_of(few.subspace_, X, k=5)


def test_forgetting_starts_in_the_first_block_of_few_columns():
    rng = np.random.default_rng(69)
    X, _ = rows_of_few_columns(rng, 60)
    subspace = Subspace.empty(2000).update(sp.csr_array(X), forgetting_factor=0.95)
    assert_summary_of(subspace, X, 0.95 ** np.arange(59.0, -1, -1))


@pytest.mark.parametrize("of_rows", [np.float32, np.float64])
@pytest.mark.parametrize("of_summary", [np.float32, np.float64])
def test_few_columns_give_the_dtype_that_dense_rows_give(of_rows, of_summary):
    X = rows_of_few_columns(np.random.default_rng(70), 40)[0].astype(of_rows)
    start = Subspace.empty(2000, dtype=of_summary)
    dense, sparse = start.update(X, 4), start.update(sp.csr_array(X), 4)
    assert sparse.components.dtype == dense.components.dtype
    assert_allclose(sparse.singular_values, dense.singular_values, rtol=1e-5)
    assert Subspace.from_rows(sp.csr_array(X), 4).components.dtype == of_rows
