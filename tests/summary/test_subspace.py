"""Subspace: what it says about rows must be what numpy's SVD of all those rows says."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import peak_bytes, random_basis
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal
from sklearn.decomposition import PCA, IncrementalPCA, TruncatedSVD
from summary_helpers import (
    EPS,
    FIELDS,
    TOL,
    arrays_of,
    assert_mean,
    assert_orthonormal,
    assert_summarises,
    column_squares,
    examples,
    fields_of,
    in_chunks,
    make_rows,
    oracle,
    tables,
)

from fedpca_sklearn import (
    FederatedPCA,
    StreamingPCA,
    Subspace,
    make_power_law,
    merge_subspaces,
    subspace_distance,
)
from fedpca_sklearn.summary._updating import updated

each_solver = pytest.mark.parametrize("solver", ["auto", "gram", "qr"])
dense_and_sparse = pytest.mark.parametrize("convert", [np.asarray, sp.csr_array])


# -------------------------------------------------------------------------- exactness


@examples(50)
@given(
    tables(),
    st.sampled_from([[10**6], [7, 30], [1, 40, 2, 90]]),
    st.sampled_from(["update", "fit", "auto", "gram", "qr"]),
    st.booleans(),
)
def test_updates_in_any_chunks_equal_svd_of_all_rows(rows, sizes, way, forgets):
    """Through `update`, `from_rows` or an estimator of blocks, with weights that fade or not."""
    X, table, w, center, unit, tol = rows
    way = "fit" if unit > 1 and X.dtype == "f4" else way  # estimators show variances in float32
    n, d = X.shape
    factor = 0.05 ** (1 / n) if forgets else 1.0
    if way == "fit" and not forgets:
        found = Subspace.from_rows(table, center=center, sample_weight=w)
    elif way in ("update", "fit"):
        start = Subspace.empty(d, centered=center, dtype=X.dtype)
        found = in_chunks(table, sizes, start, sample_weight=w, forgetting_factor=factor)
    else:
        blocks = {"svd_solver": way, "block_size": min(n, sizes[-1])}
        model = StreamingPCA(None, center=center, forgetting_factor=factor, **blocks)
        model.fit(table, sample_weight=w)
        found = model.subspace_
    fading = factor ** np.arange(n)[::-1]
    weight = fading if w is None else w * fading
    assert found.components.dtype == X.dtype
    assert_summarises(found, X, weight, center=center, tol=tol)
    squares = column_squares(X, weight, center)
    assert_allclose(found.column_scatter, squares, rtol=tol, atol=tol * squares.max())
    for array in (found.components, found.singular_values, found.mean):
        assert not any(np.shares_memory(array, given) for given in arrays_of(table))
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


@examples(12)
@given(tables(shapes=[(300, 40), (30, 200), (700, 300), (60, 3000)], dtype="f8", far=0))
def test_scatter_of_each_column_is_that_of_numpy(rows):
    """However few directions are kept, and so are count, mean and scatter."""
    X, table, w, center, *_ = rows
    n, d = X.shape
    fading = 0.99 ** np.arange(n)[::-1]
    for factor, weight in ((1.0, w), (0.99, fading if w is None else w * fading)):
        start = Subspace.empty(d, centered=center)
        options = {"sample_weight": w, "forgetting_factor": factor, "n_components": 3}
        found = in_chunks(table, [n // 2, 7], start, **options)
        count, mean, scatter, _, _ = oracle(X, weight, center)
        assert found.n_components == 3
        assert_orthonormal(found.components)
        assert_allclose(found.column_scatter, column_squares(X, weight, center), rtol=1e-11)
        assert_allclose([found.n_samples, found.scatter], [count, scatter], rtol=1e-11)
        assert_allclose(found.column_scatter.sum(), found.scatter, rtol=1e-12)
        assert_mean(found, X, weight, mean)
    parts = [
        Subspace.from_rows(table[at], 3, center=center, sample_weight=None if w is None else w[at])
        for at in (slice(9), slice(9, n))
    ]
    merged = merge_subspaces(parts, 2)
    assert_allclose(merged.column_scatter, column_squares(X, w, center), rtol=1e-11)
    assert_array_equal(merged.decay(0.5).column_scatter, merged.column_scatter / 2)
    unknown = merge_subspaces([parts[0], parts[1]._replace(column_scatter=None)])
    assert unknown.column_scatter is None


def test_float32_rows_continue_a_float64_summary_and_the_reverse_as_do_lists_and_integers():
    X = np.random.default_rng(0).integers(-9, 9, (100, 6)).astype(np.float32)
    for first, second in (("f8", "f4"), ("f4", "f8"), ("f8", "i8")):
        subspace = Subspace.from_rows(X[:60].astype(first)).update(X[60:].astype(second))
        assert subspace.components.dtype == first
        assert_summarises(subspace, X, tol=TOL[np.dtype(first)])
    assert_summarises(Subspace.from_rows(X.astype(int).tolist()), X)


def test_rows_too_light_for_a_float_are_forgotten():
    subspace = Subspace.from_rows(1e3 * np.random.default_rng(0).standard_normal((3, 4)))
    subspace = subspace._named(list("abcd"))
    assert subspace.n_samples * 1e-300 * 1e-25 == 0 < subspace.scatter * 1e-300 * 1e-25
    for weight in (1e-18, 1e-21, 1e-23, 1e-25):
        light = subspace.decay(1e-300).decay(weight)
        assert Subspace.from_bytes(light.to_bytes()).to_bytes() == light.to_bytes()
        assert light.feature_names == subspace.feature_names
        assert (light.n_samples == 0) == (len(light.components) == 0) == (weight < 1e-23)


# -------------------------------------------------------------------------- truncation


@dense_and_sparse
@pytest.mark.parametrize(("n", "d"), [(3000, 30), (90, 256), (60, 300)])
def test_truncation_is_exact_while_all_directions_are_kept_between(convert, n, d):
    # 60 rows by 300 features: one block, so nothing was cut before the end
    X = make_rows(n, d, cond=100)
    whole = Subspace.from_rows(convert(X))
    for cut in (Subspace.from_rows(convert(X), 3), whole.truncate(3)):
        assert_summarises(cut, X, n_components=3)
    assert whole.truncate(300) is whole
    none = whole.truncate(0)
    assert none.components.shape == (0, d)
    assert (none.scatter, none.n_samples) == (whole.scatter, whole.n_samples)


def test_derived_variances_are_those_of_numpy():
    X = make_rows(100, 20)
    subspace = Subspace.from_rows(X, 3)
    _, _, scatter, s, _ = oracle(X)
    assert_allclose(subspace.explained_variance, s[:3] ** 2 / 99, rtol=1e-10)
    assert_allclose(subspace.explained_variance_ratio, s[:3] ** 2 / scatter, rtol=1e-10)
    assert_allclose(subspace.total_variance, X.var(axis=0, ddof=1).sum(), rtol=1e-12)
    for few, n in ((Subspace.empty(3), 0), (Subspace.from_rows([[1.0, 2, 3]]), 1)):
        assert (few.n_samples, few.total_variance, few.scatter) == (n, 0, 0)
        assert not few.explained_variance.any()
        assert not few.explained_variance_ratio.any()
        assert f"n_samples={n}" in repr(few)


# -------------------------------------------------------------------------- hard sparse rows


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n_components", [None, 5])
def test_sparse_rows_with_mean_1000_beside_an_empty_row(dtype, n_components):
    """No column is fully stored, and all directions but one live below that of the mean."""
    n = 600
    X = make_rows(n, 300) + 1000
    X[17] = 0
    X = X.astype(dtype)
    _, mean, scatter, s, _ = oracle(X)
    subspace = Subspace.from_rows(sp.csr_array(X), n_components)
    k = subspace.n_components
    # backward stable in the working precision, or Lanczos' 1e-2 squared
    atol = 10 * np.finfo(dtype).eps * s[0]
    # of Gram type in float64: s_i^2 is known to n eps s_0^2
    atol = np.maximum(atol, n * EPS * s[0] ** 2 / s[:k]) + (1e-4 * s[:k] if n_components else 0)
    assert np.all(np.abs(subspace.singular_values - s[:k]) <= atol)
    assert_allclose(subspace.mean, mean, rtol=10 * np.finfo(dtype).eps)
    # sum of squares less n |mean|^2 loses a factor of n, so that it must be summed in float64
    assert_allclose(subspace.scatter, scatter, rtol=10 * n * EPS)


@pytest.mark.parametrize("weighted", [False, True])
def test_sparse_columns_fully_stored_with_mean_1e6(weighted):
    X = make_rows(150, 300, density=0.3)
    X[:, ::50] = 1e6 + np.random.default_rng(0).standard_normal((150, 6))
    X[:, 7] = 3.0
    w = np.random.default_rng(1).uniform(0.5, 2, 150) if weighted else None
    for table in (X, sp.csr_array(X)):
        subspace = in_chunks(table, [100, 1], sample_weight=w)
        assert_summarises(subspace, X, w, tol=100 * EPS * 1e6)
        found, expected = subspace.column_scatter, column_squares(X, w)
        assert 0 <= found[7] <= 1e-20
        assert_allclose(np.delete(found, 7), np.delete(expected, 7), rtol=1e-8)
    single = X.astype(np.float32)
    found = in_chunks(single, [100, 50]).column_scatter[1:7]
    assert_allclose(found, column_squares(single)[1:7], rtol=1e-6)


def test_sparse_columns_that_nearly_agree_keep_ten_digits_of_what_they_differ_in():
    """One row of 10,000 has no entry: products less those of the means lose four digits."""
    rng = np.random.default_rng(0)
    X = np.zeros((10_000, 40))
    X[:, :2] = 1e4
    X[:, 1] += rng.standard_normal(10_000)
    X[17, :2] = 0
    X[:, 5] = np.where(rng.random(10_000) < 0.05, 3 * rng.standard_normal(10_000), 0)
    subspace = Subspace.from_rows(sp.csr_array(X), 2)
    _, _, _, s, Vt = oracle(X)  # 14,142 and twice about 70, 5 apart
    assert_allclose(subspace.singular_values, s[:2], rtol=1e-10)
    assert subspace_distance(subspace.components, Vt[:2]) < 1e-10


def sparse_rows(n, d, rank=5, noise=5.0):
    """About 10 % stored: each row is one of rank + 1 sparse patterns, and 1 % of noise."""
    rng = np.random.default_rng(0)
    words = np.argsort(rng.random((rank + 1, d)), axis=1)[:, : d // 10]
    topic = rng.integers(rank + 1, size=n)
    X = np.where(rng.random((n, d)) < 0.01, noise * rng.random((n, d)), 0.0)
    np.add.at(X, (np.arange(n)[:, None], words[topic]), rank + 2.0 - topic[:, None])
    return X


@pytest.mark.parametrize(
    ("block_size", "weighted", "by_topic", "d"),
    # more columns than rows of a block, and fewer; the last with other means
    [(10_000, False, False, 600), (700, True, False, 400), (700, True, True, 1000)],
)
def test_sparse_lanczos_route_finds_the_leading_subspace(block_size, weighted, by_topic, d):
    # at least 700 rows a block, 5 + 10 directions: R > 512 and 4 * 15 < min(R, d)
    X = sparse_rows(1400, d, noise=0.1)
    if by_topic:
        X = X[np.argsort(X.max(axis=1))]
        X[700:, : d // 5] = 0  # columns that only the first block has
    w = np.random.default_rng(1).uniform(0.5, 2, len(X)) if weighted else None
    start = Subspace.empty(d)
    kept = updated(start, sp.csr_array(X), w, max_rank=15, block_size=block_size)
    subspace = kept.truncate(5)
    _, mean, scatter, s, Vt = oracle(X, w)
    assert_orthonormal(kept.components)
    assert_allclose(subspace.mean, mean, atol=1e-14)
    assert_allclose(subspace.scatter, scatter, rtol=1e-12)
    # energy converges as the square of Lanczos' tolerance of 1e-2, directions as itself
    assert_allclose(subspace.singular_values, s[:5], rtol=1e-4)
    assert subspace_distance(subspace.components, Vt[:5]) <= 1e-2
    error = scatter - np.sum(((s[:, None] * Vt) @ subspace.components.T) ** 2)
    assert error / np.sum(s[5:] ** 2) - 1 <= 1e-4


def test_sparse_rows_with_many_features_are_never_densified():
    d, k = 20_000, 10
    X = sp.csr_array(sp.random(600, d, density=1e-3, format="csr", random_state=0))
    found = []
    peak = peak_bytes(lambda: found.append(Subspace.from_rows(X, k)))
    (subspace,), kept = found, 8 * d * (k + 15)  # the dense rows are 24 times the basis kept
    assert peak <= 6 * kept
    assert_orthonormal(subspace.components)
    centre = np.eye(600) - 1 / 600
    squares = np.linalg.eigvalsh(centre @ (X @ X.T).toarray() @ centre)[::-1]
    assert_allclose(subspace.scatter, squares.sum(), rtol=1e-12)
    assert_allclose(subspace.mean, X.mean(axis=0), rtol=1e-12)
    expected = X.power(2).sum(axis=0) - 600 * X.mean(axis=0) ** 2
    assert_allclose(subspace.column_scatter, expected, rtol=1e-10, atol=1e-14)
    # Lanczos stops at 1e-2: without gaps a value may err by that, downwards; energy by its square
    best = np.sqrt(squares[:k])
    assert np.all(subspace.singular_values <= best * (1 + 1e-12))
    assert np.all(subspace.singular_values >= best * (1 - 1e-2))
    error = squares.sum() - np.sum((centre @ (X @ subspace.components.T)) ** 2)
    assert error / squares[k:].sum() - 1 <= 1e-4


def rows_of_few_columns(rng, n, used=300):
    """Sparse rows that hold values in some of 2,000 columns only, with a decaying spectrum."""
    values = rng.standard_normal((n, used)) * np.maximum(0.8 ** np.arange(used), 0.02)
    values *= rng.random((n, used)) < 0.5
    values[0, values.any(axis=0) == 0] = 0.1  # every column is used
    X = np.zeros((n, 2000))
    X[:, np.sort(rng.choice(2000, used, replace=False))] = values
    return X


def with_entries_in_parts(Y, rng):
    """Halves, quarters and explicit zeros in any order in place of each entry."""
    index, values = np.repeat(Y.indices, 3), (Y.data[:, None] * [0.25, 0.25, 0.5]).ravel()
    parts = [
        (index[a:b], values[a:b]) for a, b in zip(3 * Y.indptr, 3 * Y.indptr[1:], strict=False)
    ]
    mixed = [(np.append(i, [3, 5]), np.append(v, [0.0, 0.0])) for i, v in parts]
    orders = [rng.permutation(len(i)) for i, _ in mixed]
    data, indices = (
        np.concatenate([part[k][order] for part, order in zip(mixed, orders, strict=True)])
        for k in (1, 0)
    )
    indptr = np.cumsum([0, *(len(i) for i, _ in mixed)])
    return sp.csr_array((data, indices, indptr), Y.shape)


FEW_COLUMNS = [(20, 300), (60, 200), (60, 257), (200, 300), (60, 1001)]  # rows, columns in use


@examples(10)
@given(
    st.lists(st.sampled_from(FEW_COLUMNS), min_size=1, max_size=3),
    *[st.booleans()] * 4,
    st.integers(0, 99),
)
def test_rows_that_use_few_columns_equal_dense_rows(sizes, weighted, center, forgets, messy, seed):
    """In any batches, other columns in each; entries may be stored twice, unsorted, or be zero."""
    rng = np.random.default_rng(seed)
    found, factor = Subspace.empty(2000, centered=center), 0.99 if forgets else 1.0
    batches, weights = [], []
    for n, used in sizes:
        X = rows_of_few_columns(rng, n, used)
        w = rng.uniform(0, 2, n) * (rng.random(n) < 0.8) if weighted else np.ones(n)
        Y = with_entries_in_parts(sp.csr_array(X), rng) if messy else sp.csr_array(X)
        before = [array.copy() for array in arrays_of(Y)]
        for array in arrays_of(Y):
            array.flags.writeable = False
        options = {"sample_weight": w if weighted else None, "forgetting_factor": factor}
        found = found.update(Y, **options)
        for array, old in zip(arrays_of(Y), before, strict=True):
            assert_array_equal(array, old)
        batches.append(X)
        weights = [old * factor**n for old in weights] + [w * factor ** np.arange(n)[::-1]]
    X, w = np.concatenate(batches), np.concatenate(weights)
    _, mean, scatter, s, V = oracle(X, w, center)
    assert_allclose(found.mean, mean, atol=1e-13)
    assert_allclose([found.n_samples, found.scatter], [w.sum(), scatter], rtol=1e-12)
    assert_orthonormal(found.components)
    assert_allclose(found.singular_values[:8], s[:8], rtol=1e-9)
    assert subspace_distance(found.components[:8], V[:8]) <= 1e-9
    assert_allclose(found.singular_values, s[: found.n_components], atol=1e-6 * s[0])
    unused = ~X.any(axis=0)
    assert not found.mean[unused].any()
    if len(sizes) == 1:
        assert not found.components[:, unused].any()
    assert Subspace.from_bytes(found.to_bytes()).n_features == 2000


@pytest.mark.parametrize("model", [{"scale": True}, {"partial_out": 0}])
def test_entries_stored_twice_are_left_as_they_are_by_scaled_fits(model):
    """joblib hands large rows to its workers as read-only memory maps."""
    X = sp.random(30, 300, density=0.1, random_state=0, format="csr")
    twice = with_entries_in_parts(X, np.random.default_rng(0))
    for array in arrays_of(twice):
        array.flags.writeable = False
    found, want = (StreamingPCA(2, **model).fit(rows).explained_variance_ for rows in (twice, X))
    assert_allclose(found, want, rtol=1e-9)


# -------------------------------------------------------------------------- degenerate rows


@pytest.mark.parametrize(("n", "d", "n_components"), [(30, 20, None), (30, 300, 5), (700, 300, 5)])
@dense_and_sparse
@pytest.mark.parametrize("kind", ["constant", "zero", "one row"])
def test_rows_without_variance_give_zeros_not_nan(kind, convert, n, d, n_components):
    row = np.random.default_rng(0).standard_normal(d) + 0.1
    X = np.tile(row * (kind != "zero"), (1 if kind == "one row" else n, 1))
    subspace = Subspace.from_rows(convert(X), n_components)
    assert subspace.n_samples == len(X)
    rounding = 100 * EPS * np.abs(X).max()
    assert_allclose(subspace.mean, X[0], rtol=0, atol=rounding)
    assert subspace.scatter <= len(X) * d * rounding**2
    assert_orthonormal(subspace.components)
    assert np.isfinite(subspace.explained_variance_ratio).all()
    assert np.isfinite([*subspace.explained_variance, subspace.total_variance]).all()
    assert Subspace.from_bytes(subspace.to_bytes()).n_samples == len(X)
    more = make_rows(50, d)  # and it can be continued
    everything = np.concatenate([X, more])
    assert_summarises(Subspace.from_rows(convert(X)).update(convert(more)), everything)


@dense_and_sparse
@pytest.mark.parametrize("d", [20, 300])
def test_duplicate_rows_and_constant_columns_add_no_direction(d, convert):
    X = np.repeat(make_rows(5, d), 40, axis=0)
    X[:, 3], X[:, 4] = 0.1, 0
    subspace = Subspace.from_rows(convert(X))
    assert subspace.n_components == 4
    assert_summarises(subspace, X)
    assert np.abs(in_chunks(convert(X), [1, 33]).components[:4, 3:5]).max() <= 1e-10


@each_solver
def test_blocks_of_more_rows_than_columns_of_which_few_directions_are_kept(solver):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 5)) @ rng.standard_normal((5, 30)) + 7
    subspace = Subspace.empty(30)
    for part in np.array_split(X, 4):
        subspace = updated(subspace, part, max_rank=5, svd_solver=solver)
    assert_summarises(subspace, X)


@each_solver
@pytest.mark.parametrize(("n", "d"), [(60, 12), (20, 300)])
@pytest.mark.parametrize("block_size", [7, 1000])
def test_huge_condition_numbers_are_resolved_by_qr(solver, n, d, block_size):
    X = make_rows(n, d, cond=1e11, mean=0)
    _, _, scatter, s, Vt = oracle(X)
    subspace = updated(Subspace.empty(d), X, svd_solver=solver, block_size=block_size)
    assert_orthonormal(subspace.components)
    assert_allclose(subspace.scatter, scatter, rtol=1e-12)
    # a Gram matrix knows nothing below 1e-8 of the largest; down to 1e-4, squared, it has 8 digits
    r = int(np.sum(s > 1e-4 * s[0])) if solver == "gram" else min(n - 1, d)
    backward = 100 * EPS * s[0] * (1e4 if solver == "gram" else 1)
    assert_allclose(subspace.singular_values[:r], s[:r], rtol=0, atol=backward)
    for cut in range(1, r):
        distance = subspace_distance(subspace.components[:cut], Vt[:cut])
        assert distance <= backward / (s[cut - 1] - s[cut])


# -------------------------------------------------------------------------- a value


def test_a_summary_is_an_immutable_value():
    X = make_rows(60, 300)
    V, s, mean = np.eye(2, 3), np.array([2.0, 1.0]), np.zeros(3)
    told = Subspace(V, s, mean, 5, 6.0)
    before = told.to_bytes()
    V[:], s[:], mean[:] = 7, 7, 7
    assert told.to_bytes() == before
    subspace = Subspace.from_rows(X[:30])
    before = subspace.to_bytes()
    made = [subspace.update(X[30:], 3), subspace.decay(0.5), subspace.truncate(2)]
    twins = pickle.loads(pickle.dumps(subspace)), copy.deepcopy(subspace)
    assert subspace.to_bytes() == twins[0].to_bytes() == twins[1].to_bytes() == before
    for piece in (told, subspace, *made, *twins):
        with pytest.raises(dataclasses.FrozenInstanceError):
            piece.n_samples = 3.0
        for name in ("components", "singular_values", "mean"):
            with pytest.raises(ValueError, match="read-only"):
                getattr(piece, name)[...] = 0


def test_huge_counts_do_not_overflow():
    rng = np.random.default_rng(0)
    V, s = random_basis(rng, 3, 6), np.array([3e6, 2e6, 1e6])
    huge, row = Subspace(V, s, np.zeros(6), np.int64(10**12), s @ s), rng.standard_normal((1, 6))
    after = huge.update(row, sample_weight=[1e12])
    # stack of the summary's rows and the mean correction, with n1 n2 / (n1 + n2) = 5e11
    stack = np.concatenate([s[:, None] * V, np.sqrt(5e11) * row])
    expected, Vt = np.linalg.svd(stack, full_matrices=False)[1:]
    assert after.n_samples == 2e12
    assert_allclose(after.singular_values, expected, rtol=1e-10)
    assert subspace_distance(after.components, Vt) <= 1e-10
    assert_allclose(after.scatter, np.sum(stack**2), rtol=1e-12)
    assert_allclose(after.mean, row[0] / 2, rtol=1e-12)


# -------------------------------------------------------------------------- other estimators


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("make", [PCA, IncrementalPCA, StreamingPCA])
def test_fitted_pca_is_read_as_a_summary(make, dtype):
    X = make_rows(120, 10, dtype=dtype)
    tol = TOL[np.dtype(dtype)]
    whole = Subspace.from_estimator(make(10).fit(X))
    assert_summarises(whole, X, tol=tol)
    cut = Subspace.from_estimator(make(3).fit(X))
    # the scatter is recovered from the ratios, although seven directions are gone
    assert_allclose(cut.scatter, oracle(X)[2], rtol=tol)
    assert cut.n_samples == 120
    more = make_rows(40, 10, seed=1, dtype=dtype)
    assert_summarises(whole.update(more), np.concatenate([X, more]), tol=2e-3)


def test_truncated_svd_needs_the_count_and_is_about_the_origin():
    X = make_rows(120, 10, mean=2.0)
    svd = TruncatedSVD(4, algorithm="arpack", random_state=0).fit(X)
    with pytest.raises(ValueError, match=r"TruncatedSVD .*n_samples"):
        Subspace.from_estimator(svd)
    subspace = Subspace.from_estimator(svd, n_samples=120, scatter=np.sum(X**2))
    assert_summarises(subspace, X, center=False, n_components=4)
    least = Subspace.from_estimator(svd, n_samples=120)
    assert_allclose(least.scatter, np.sum(oracle(X, center=False)[3][:4] ** 2))


# -------------------------------------------------------------------------- models of all columns


def units(n=2000, d=400):
    """Power-law rows in columns of different units."""
    rng = np.random.default_rng(0)
    return make_power_law(n, d, alpha=1.0, random_state=0) * rng.lognormal(0, 1, d)


@dense_and_sparse
def test_covariance_above_256_features_has_the_exact_diagonal(convert):
    X = units(3000)
    X, later = X[:2000], X[2000:]
    pca = StreamingPCA(10).fit(convert(X))
    covariance = pca.get_covariance()
    assert_allclose(np.diag(covariance), X.var(axis=0, ddof=1), rtol=1e-10)
    assert_allclose(pca.get_precision() @ covariance, np.eye(400), atol=1e-9)
    density = multivariate_normal(pca.mean_, covariance).logpdf(later[:50])
    assert_allclose(pca.score_samples(convert(later[:50])), density, rtol=1e-9)
    shards = FederatedPCA(10, n_clients=7).fit(convert(X))
    assert_allclose(np.diag(shards.get_covariance()), np.diag(covariance), rtol=1e-10)
    # residuals of columns are likelier than one for all
    assert pca.score(later) > PCA(10).fit(X).score(later)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_column_without_variance_is_not_impossible_in_the_next_row(dtype):
    X = units().astype(dtype)
    X[:, 5] = 0
    pca = StreamingPCA(10).fit(X)
    assert pca.get_covariance()[5, 5] == 0
    assert pca.get_covariance().dtype == dtype
    row = X[:1].copy()
    row[0, 5] = np.sqrt(pca.noise_variance_)
    before, after = pca.score_samples(np.concatenate([X[:1], row]))
    assert_allclose(before - after, 0.5, rtol=1e-3)


# -------------------------------------------------------------------------- errors

GOOD = Subspace(np.eye(2, 4), [2.0, 1.0], np.zeros(4), 9, 6.0)
# V V^T holds inf - inf = NaN: a comparison with a tolerance must not let it pass
OVERFLOWING = np.random.default_rng(0).choice([1e200, -1e200], size=(16, 1024))
ALL_WIDE = {"singular_values": np.zeros(16), "mean": np.zeros(1024), "scatter": 0.0}
# wrong fields, words of the error, and whether a file can hold them, which is refused as well
WRONG_FIELDS = [
    ({"components": np.eye(5, 4)}, r"components .*at most d=4 rows, got 5", False),
    ({"components": np.ones(4)}, r"components .*2-D.*\(4,\)", False),
    ({"components": np.zeros((2, 0))}, r"components .*non-empty", False),
    ({"components": np.eye(2, 4) * 1j}, r"components .*complex", False),
    ({"components": np.eye(2, 4) * 1.01}, r"components .*orthonormal", True),
    ({"components": np.ones((2, 4)) / 2}, r"components .*orthonormal", True),
    ({"components": np.zeros((2, 4))}, r"components .*orthonormal", True),
    ({"components": OVERFLOWING, **ALL_WIDE}, r"components .*orthonormal", True),
    ({"components": np.full((2, 4), np.nan)}, r"components .*finite", True),
    ({"singular_values": [1.0]}, r"singular_values must have shape \(2,\), got \(1,\)", False),
    ({"singular_values": [1.0, 2.0]}, r"singular_values .*decreasing", True),
    ({"singular_values": [2.0, -1.0]}, r"singular_values .*non-negative", True),
    ({"singular_values": [np.inf, 1.0]}, r"singular_values .*finite", True),
    ({"singular_values": [1e200, 1e200], "scatter": 1e308}, "scatter", True),
    ({"mean": np.zeros(3)}, r"mean must have shape \(4,\), got \(3,\)", False),
    ({"mean": [0, 0, 0, np.inf]}, r"mean .*finite", True),
    ({"mean": np.ones(4), "centered": False}, r"mean .*zero .*centered=False", False),
    ({"n_samples": -1}, r"n_samples .*non-negative, got -1", True),
    ({"n_samples": np.nan}, r"n_samples .*finite", True),
    ({"n_samples": 0}, r"n_samples=0", True),
    ({"scatter": 4.9}, r"scatter=4.9 .*5.0", True),
    ({"scatter": np.inf}, r"scatter .*finite", True),
    *(
        ({"column_scatter": columns}, "column_scatter", False)
        for columns in ([-1.0, 2, 5, 0], [1.0, 2, 2, 0], [np.nan, 1, 1, 0], [6.0])
    ),
]


@pytest.mark.parametrize(("changes", "match", "in_a_file"), WRONG_FIELDS)
def test_fields_that_do_not_fit_together_are_refused(changes, match, in_a_file, old_file):
    fields = fields_of(GOOD, **changes)
    with np.errstate(all="ignore"), pytest.raises(ValueError, match=match):
        Subspace(**fields)
    assert Subspace(**fields_of(GOOD)).to_bytes() == GOOD._replace(column_scatter=None).to_bytes()
    if in_a_file:
        with pytest.raises(ValueError, match=match.split()[0]):
            Subspace.from_bytes(old_file(*(np.asarray(fields[name]) for name in FIELDS)))
