"""Subspace: what it says about rows must be what numpy's SVD of all those rows says.

Merging: the summary of the parts must be the summary of the pooled rows, by any route.
"""

import copy
import dataclasses
import pickle
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import peak_bytes, random_basis, sine
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal
from sklearn.decomposition import PCA, IncrementalPCA, TruncatedSVD
from summary_helpers import (
    EPS,
    FIELDS,
    METHODS,
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
    SubspaceMerge,
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


def test_names_of_sparse_columns_of_which_few_are_used_are_kept():
    names = [f"c{i}" for i in range(1000)]
    X = sp.csr_array(np.eye(300, 1000, 5) + np.eye(300, 1000, 50))
    first = Subspace.empty(1000)._named(names)._replace(site="here")
    summary = first.update(X, 2)
    assert (summary.feature_names, summary.sites) == (tuple(names), ("here",))


def test_rows_too_light_for_a_float_are_forgotten():
    subspace = Subspace.from_rows(1e3 * np.random.default_rng(0).standard_normal((5, 4)))
    subspace = subspace._named(list("abcd"))
    assert subspace.n_samples * 1e-300 * 1e-25 == 0 < subspace.scatter * 1e-300 * 1e-25
    for weight in (1e-18, 1e-21, 1e-23, 1e-25):
        light = subspace.decay(1e-300).decay(weight)
        assert Subspace.from_bytes(light.to_bytes()).to_bytes() == light.to_bytes()
        assert light.feature_names == subspace.feature_names
        s = subspace.singular_values * np.sqrt(weight) * 1e-150
        assert_allclose(light.singular_values, s if light.n_samples else s[:0], rtol=1e-12)
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
    X = make_rows(150, 900, density=0.02)  # of which rows stay sparse where directions are cut
    X[:, ::300] = 1e6 + np.random.default_rng(0).standard_normal((150, 3))
    found = Subspace.from_rows(sp.csr_array(X), 3, sample_weight=w).column_scatter
    assert_allclose(found, column_squares(X, w), rtol=1e-8, atol=1e-9)


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
    assert peak <= 6 * 8 * d * (k + 15)  # the dense rows are 24 times the basis kept
    centre = np.eye(600) - 1 / 600
    squares = np.linalg.eigvalsh(centre @ (X @ X.T).toarray() @ centre)[::-1]
    assert_allclose(found[0].column_scatter.sum(), squares.sum(), rtol=1e-12)
    # Lanczos stops at 1e-2: without gaps a value may err by that, downwards; energy by its square
    assert np.all(found[0].singular_values <= np.sqrt(squares[:k]) * (1 + 1e-12))
    error = squares.sum() - np.sum((centre @ (X @ found[0].components.T)) ** 2)
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
    """Halves, quarters and explicit zeros, unsorted, in place of each entry."""
    parts = Y.tocoo()
    row, column, values = (np.tile(a, 4) for a in (parts.row, parts.col, parts.data))
    values *= np.repeat([0.25, 0.25, 0.5, 0.0], Y.nnz)
    order = np.argsort(row + 0.9 * rng.random(len(row)))
    indptr = np.searchsorted(row[order], np.arange(Y.shape[0] + 1))
    return sp.csr_array((values[order], column[order], indptr), Y.shape)


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


# -------------------------------------------------------------------------- degenerate rows


@dense_and_sparse
@pytest.mark.parametrize("d", [20, 300])
def test_duplicate_rows_and_constant_columns_add_no_direction(d, convert):
    X = np.repeat(make_rows(5, d), 40, axis=0)
    X[:, 3], X[:, 4] = 0.1, 0
    subspace = Subspace.from_rows(convert(X))
    assert subspace.n_components == 4
    assert_summarises(subspace, X)
    assert np.abs(in_chunks(convert(X), [1, 33]).components[:4, 3:5]).max() <= 1e-10


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("n", [60, 400])
def test_directions_are_counted_before_they_are_known(n, scale):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 80)) * np.logspace(-2, 2, 80)
    X[:, :5] = np.eye(5)[rng.integers(0, 5, n)]
    X[:, 7] = X[:, 6] / 3
    if scale:  # between the bounds of what rounding may be
        X[:, 9] = X[:, 8] + 1.2e-6 * X[:, 8].std() * rng.standard_normal(n)
    rank = np.linalg.matrix_rank((X - X.mean(axis=0)) / X.std(axis=0))
    subspace = StreamingPCA(3, scale=scale).fit(X).subspace_
    assert subspace.n_components == rank == len(Subspace.from_bytes(subspace.to_bytes()).components)


def test_directions_as_small_as_roundings_are_counted_as_they_are_found():
    s = np.append(1.0, np.sqrt(40 * 4 * EPS * np.linspace(0.9, 1.3, 39)))
    for seed in range(20):
        X = make_rows(200, 40, seed=seed)
        U, _, Vt = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
        subspace = StreamingPCA(1).fit((U * s) @ Vt).subspace_
        assert subspace.nbytes == len(subspace.to_bytes())


def test_singular_values_that_are_equal_do_not_rise_by_rounding():
    for seed in range(10):
        X = make_rows(400, 150, seed=seed)
        U, _, Vt = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
        assert np.diff(StreamingPCA(3).fit(U @ Vt).subspace_.singular_values).max() <= 0


@pytest.mark.parametrize("scale", [False, True])
def test_the_last_wanted_direction_of_sums_is_right_however_small(scale):
    rng = np.random.default_rng(0)
    Q, R = (np.linalg.qr(rng.standard_normal((m, 70)))[0] for m in (600, 70))
    for last in (1e-3, 1e-5, 1e-7, 1e-8):
        s = np.array([*np.linspace(1, 0.1, 9), last, *np.full(60, last / 100)])
        X = (Q - Q.mean(axis=0)) * s @ R.T
        pca = StreamingPCA(10, scale=scale)
        for rows in np.split(X, 3):
            pca.partial_fit(rows)
        Z = X / X.std(axis=0) if scale else X
        V = np.linalg.svd(Z - Z.mean(axis=0), full_matrices=False)[2][:10]
        assert subspace_distance(pca.components_, V) < 1e-14 / last


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
    told, subspace = Subspace(V, s, mean, 5, 6.0), Subspace.from_rows(X[:30])
    before = told.to_bytes(), subspace.to_bytes()
    V[:], s[:], mean[:] = 7, 7, 7
    made = [subspace.update(X[30:], 3), subspace.decay(0.5), subspace.truncate(2)]
    twins = pickle.loads(pickle.dumps(subspace)), copy.deepcopy(subspace)
    assert (told.to_bytes(), subspace.to_bytes()) == before
    assert twins[0].to_bytes() == twins[1].to_bytes() == before[1]
    for piece in (told, *made, *twins):
        with pytest.raises(dataclasses.FrozenInstanceError):
            piece.n_samples = 3.0
        for name in ("components", "singular_values", "mean"):
            with pytest.raises(ValueError, match="read-only"):
                getattr(piece, name)[...] = 0


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
    svd.components_, svd.singular_values_ = svd.components_[::-1], svd.singular_values_[::-1]
    turned = Subspace.from_estimator(svd, n_samples=120, scatter=np.sum(X**2))
    assert turned.to_bytes() == subspace.to_bytes()  # as its randomized solver may have them
    least = Subspace.from_estimator(svd, n_samples=120)
    assert_allclose(least.scatter, np.sum(oracle(X, center=False)[3][:4] ** 2))
    svd.singular_values_ = svd.singular_values_[:-1]
    with pytest.raises(ValueError, match="singular_values must have shape"):
        Subspace.from_estimator(svd, n_samples=120)


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


# ------------------------------------------------------------------------------ merges

each_method = pytest.mark.parametrize("method", METHODS)
any_method = st.sampled_from(METHODS)


# -------------------------------------------------------------------------- whole rows

CUTS = {
    "halves": lambda n: [n // 2],
    "sevenths": lambda n: [i * n // 7 for i in range(1, 7)],
    "one row and the rest": lambda n: [1],
    "very unequal": lambda n: [n - 25, n - 24, n - 5],
    "every row alone": lambda n: range(1, n),
    "empty summaries between": lambda n: [0, 10, 10, 20],
    "one part": lambda n: [],
}


@examples(40)
@given(
    tables(shapes=[(120, 25), (90, 300)], container="dense", unit=1),
    st.sampled_from([*CUTS]),
    any_method,
    st.sampled_from([None, 2, 3]),
    st.sampled_from([0, 5]),
    st.sampled_from([None, 0, 1]),
)
def test_merge_equals_svd_of_pooled_rows(rows, cuts, method, fan_in, apart, mixed):
    """Of sites whose means lie apart, in two precisions or one, in a tree or at once."""
    X, _, w, center, _, tol = rows
    cuts, w = CUTS[cuts](len(X)), np.ones(len(X)) if w is None else w
    parts, seen = [], []
    for i, (Y, v) in enumerate(zip(np.split(X, cuts), np.split(w, cuts), strict=True)):
        Y = (Y + apart * (-1) ** i).astype(X.dtype)
        start = Subspace.empty(
            X.shape[1], centered=center, dtype="f8" if mixed == i % 2 else X.dtype
        )
        parts.append(start.update(Y, sample_weight=v) if len(Y) else start)
        seen.append(Y)
    merged = SubspaceMerge(method, fan_in=fan_in).merge(parts)
    assert merged.components.dtype == np.result_type(*(part.components for part in parts))
    # a basis that becomes float64 is orthonormal as float64 is, and right as float32 is
    assert_summarises(merged, np.concatenate(seen), w, center=center, tol=tol)
    cut = merge_subspaces(parts, 4, method=method)
    if len(parts) < 9 and tol < 1e-3:  # all directions are stacked at once
        assert_allclose(cut.singular_values, merged.singular_values[:4], rtol=tol)
        assert_allclose(cut.scatter, merged.scatter, rtol=1e-12)


@each_method
def test_float32_basis_that_becomes_float64_is_valid_as_float64(method):
    basis = (random_basis(np.random.default_rng(0), 4, 9) * (1 + 1e-6)).astype(np.float32)
    coarse = Subspace(basis, [4.0, 3.0, 2.0, 1.0], np.zeros(9), 20, 40.0)
    for other in (Subspace.empty(9), Subspace.from_rows(make_rows(5, 9))):
        merged = merge_subspaces([coarse, other], method=method)
        assert merged.components.dtype == np.float64
        assert_orthonormal(merged.components)
        assert Subspace.from_bytes(merged.to_bytes()).to_bytes() == merged.to_bytes()


# -------------------------------------------------------------------------- the algebra


@st.composite
def site_summaries(draw):
    """Few rows of small integers: dependent, constant, equal, single, none; ranks are cut.

    Their means may lie apart by 10^8, their weights be near the ends of what floats can hold.
    """
    d, center = draw(st.integers(1, 6)), draw(st.booleans())
    apart = center * draw(st.sampled_from([0, 0, 1e4, 1e8]))
    unit = draw(st.sampled_from([1.0, 1.0, 1e-300, 1e-150, 1e150, 1e290]))
    parts = []
    for size in draw(st.lists(st.integers(0, 7), min_size=1, max_size=6)):
        rows = draw(hnp.arrays(np.float64, (size, d), elements=st.integers(-9, 9)))
        rows = rows * draw(st.sampled_from([1.0, 0.01, 100.0])) + apart * draw(st.integers(-1, 1))
        part = Subspace.empty(d, centered=center)
        if size:
            part = part.update(rows, sample_weight=np.full(size, unit))
        parts.append(part.truncate(draw(st.integers(0, d))))
    return parts, unit


def second_moment(subspace, unit):
    """Scatter matrix of the kept directions: the same for any basis of equal directions."""
    V = subspace.components.astype(np.float64)
    return (V.T * (subspace.singular_values / np.sqrt(unit)) ** 2) @ V


def pooled_moments(subspaces, unit):
    """What the summary of all rows must say, from the definition of variance in groups."""
    weights = [s.n_samples / unit for s in subspaces]
    n = sum(weights)
    mean = sum(w * s.mean for w, s in zip(weights, subspaces, strict=True)) / (n or 1)
    shifts = [s.mean - mean for s in subspaces]
    between = sum(w * np.outer(m, m) for w, m in zip(weights, shifts, strict=True))
    moment = sum(second_moment(s, unit) for s in subspaces) + between
    return n, mean, moment, sum(s.scatter / unit for s in subspaces) + np.trace(between)


def rounding_of(subspaces, n, scatter):
    """A mean is known to eps |mean|, and enters the scatter squared and times its distance."""
    size = max(np.abs(s.mean).max() for s in subspaces)
    return 1e-12 * scatter + n * (100 * EPS * size) ** 2 + 2 * EPS * size * np.sqrt(n * scatter)


def assert_is_pooled(merged, subspaces, unit=1.0):
    n, mean, moment, scatter = pooled_moments(subspaces, unit)
    size = max(np.abs(s.mean).max() for s in subspaces)
    assert_allclose(merged.n_samples / unit, n, rtol=1e-14)
    assert_allclose(merged.mean, mean, rtol=0, atol=100 * EPS * size)
    atol = rounding_of(subspaces, n, scatter)
    assert_allclose(merged.scatter / unit, scatter, rtol=0, atol=atol)
    assert_allclose(second_moment(merged, unit), moment, rtol=0, atol=atol)
    columns = None if merged.column_scatter is None else merged.column_scatter.sum() / unit
    assert columns is None or abs(columns - scatter) <= atol
    assert_orthonormal(merged.components)
    assert np.all(np.diff(merged.singular_values) <= 0)
    assert Subspace.from_bytes(merged.to_bytes()), "not valid as a message"


@examples(40)
@given(site_summaries(), any_method, st.randoms(use_true_random=False), st.data())
def test_merges_commute_and_associate_and_have_an_identity(drawn, method, random, data):
    parts, unit = drawn
    before = [part.to_bytes() for part in parts]

    def merge(some):
        return merge_subspaces(some, method=method)

    shuffled = random.sample(parts, len(parts))
    nothing = Subspace.empty(parts[0].n_features, centered=parts[0].centered)
    nodes = list(shuffled)
    while len(nodes) > 1:
        a = data.draw(st.integers(0, len(nodes) - 2))
        b = data.draw(st.integers(a + 2, len(nodes)))
        nodes[a:b] = [merge(nodes[a:b])]
    at = data.draw(st.integers(0, len(parts)))
    whole = merge(parts)
    for way in (whole, merge(shuffled), merge([*parts[:at], nothing, *parts[at:]]), nodes[0]):
        assert_is_pooled(way, parts, unit)
    for pair in ([nothing, parts[0]], [parts[0], nothing]):
        alone = merge(pair)
        assert (alone.to_bytes() == parts[0].to_bytes()) or alone.n_samples == 0
    twice = merge([whole, whole])
    assert_is_pooled(twice, [whole.decay(2.0)], unit)
    assert twice.n_components <= whole.n_components
    assert [part.to_bytes() for part in parts] == before
    removed = merge_subspaces([*parts, parts[0]], method=method, weights=[1] * len(parts) + [0])
    assert_is_pooled(removed, parts, unit)
    # cut, it keeps the best directions, and the energy of all
    few = merge_subspaces(parts, k := data.draw(st.integers(0, 6)), method=method)
    n, _, moment, scatter = pooled_moments(parts, unit)
    atol = rounding_of(parts, n, scatter)
    assert few.n_components <= k
    assert_allclose(few.scatter / unit, scatter, rtol=0, atol=atol)
    best = np.sum(np.linalg.eigvalsh(moment)[::-1][:k])
    captured = np.einsum("ij,jk,ik->", few.components, moment, few.components)
    squares = np.sum(few.singular_values**2 / unit)
    assert_allclose([captured, squares], best, rtol=0, atol=10 * atol)


# -------------------------------------------------------------------------- weights


def algorithm_2(U1, s1, U2, s2, weights, on_both):
    """Grammenos et al. (2019), Algorithm 2, where lambda_2 is printed on one of two blocks only."""
    lam1, lam2 = weights
    Z = U1.T @ U2
    _, Rp = np.linalg.qr(U2 - U1 @ Z)
    upper = Z * s2 * (lam2 if on_both else 1)
    X = np.block([[lam1 * np.diag(s1), upper], [np.zeros((len(s2), len(s1))), lam2 * Rp * s2]])
    return np.linalg.svd(X, compute_uv=False)


@pytest.mark.parametrize("weights", [(0.7, 1.0), (1.0, 2.0), (0.7, 1.5)])
def test_weights_are_those_of_algorithm_4_which_algorithm_2_as_printed_misses(weights):
    rng = np.random.default_rng(0)
    parts = [Subspace.from_rows(rng.standard_normal((9, 20)), 4, center=False) for _ in range(2)]
    pairs = [x for part in parts for x in (part.components.T, part.singular_values)]
    stacked = [w * U * s for w, U, s in zip(weights, pairs[::2], pairs[1::2], strict=True)]
    want = np.linalg.svd(np.hstack(stacked), compute_uv=False)[:8]  # Algorithm 4
    for method in ("svd", "qr", "orthogonal"):
        merged = merge_subspaces(parts, method=method, weights=weights)
        assert_allclose(merged.singular_values, want, rtol=1e-12)
    assert_allclose(algorithm_2(*pairs, weights, on_both=True), want, rtol=1e-12)
    printed = algorithm_2(*pairs, weights, on_both=False)
    assert np.allclose(printed, want, rtol=1e-3) == (weights[1] == 1)


@each_method
def test_weights_are_decays_and_weighted_rows(method):
    X = make_rows(120, 20)
    cuts = np.split(np.arange(120), [50, 51, 90])
    parts = [Subspace.from_rows(X[rows]) for rows in cuts]
    for weights in np.array([[0.5, 2.0, 1.0, 0.9], [1.0, 0, 1.0, 1.0]]):
        given = weights.copy()
        merged = merge_subspaces(parts, method=method, weights=given)
        assert given.tolist() == weights.tolist()
        assert_summarises(merged, X, np.repeat(weights**2, [len(rows) for rows in cuts]))
        decayed = [part.decay(x**2) for part, x in zip(parts, weights, strict=True)]
        assert merge_subspaces(decayed, method=method).to_bytes() == merged.to_bytes()
    nothing = merge_subspaces(parts, method=method, weights=[0] * 4)
    assert (nothing.n_samples, nothing.scatter) == (0, 0)


# -------------------------------------------------------------------------- large stacks, trees

# Number of rows, features and sites: below and above the 256 features up to which clients keep
# all; more directions in all than features, and fewer; more than fit in one stack; a row a site.
STACKS = {
    "narrow, many directions": (4000, 20, 100),
    "one stack": (300, 200, 5),
    "wide": (700, 400, 12),
    "wide, more features than rows": (400, 900, 12),
    "wide, every row alone": (300, 320, 300),
}


@cache
def summarised(n, d, n_sites):
    """Summaries of sites with other means and variances like 1 / i; numpy's SVD of all rows."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d)) / np.sqrt(np.arange(1, d + 1))
    for rows in np.array_split(X, n_sites):
        rows += 0.1 * rng.standard_normal(d) / np.sqrt(np.arange(1, d + 1))
    return [Subspace.from_rows(rows) for rows in np.array_split(X, n_sites)], *oracle(X)[3:]


@pytest.mark.parametrize(("n_components", "fan_in"), [(5, None), (0.6, 2), (None, 7)])
@pytest.mark.parametrize("stack", STACKS)
def test_untruncated_summaries_merge_to_the_pca_of_all_rows(stack, n_components, fan_in):
    parts, s, Vt = summarised(*STACKS[stack])
    pca = FederatedPCA.from_subspaces(parts, n_components, merge=SubspaceMerge(fan_in=fan_in))
    found, k = pca.subspace_, int(np.sum(s > 1e-12 * s[0]))
    if n_components is not None:  # as many as are asked for, or as explain more than the share
        share = 1 + int(np.sum(np.cumsum(s**2) <= n_components * np.sum(s**2)))
        k = share if n_components < 1 else n_components
        assert pca.n_components_ == k
    assert_allclose(found.singular_values[:k], s[:k], rtol=0, atol=1e-10 * s[0])
    if k == len(s) or s[k - 1] ** 2 - s[k] ** 2 > 1e-3 * s[0] ** 2:
        assert sine(found.components[:k], Vt[:k]) <= 1e-10


@each_method
@pytest.mark.parametrize(("n", "d"), [(3000, 8), (2500, 300)])
def test_spectra_of_any_spread_survive_more_rows_than_are_stacked(method, n, d):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d)) * np.geomspace(1, 1e-9, d)
    parts = [Subspace.from_rows(rows) for rows in np.array_split(X, n // 50)]
    found = merge_subspaces(parts, method=method)
    s = oracle(X)[3]
    known = d if method != "gram" else int(np.sum(s > 1e-4 * s[0]))
    assert_allclose(found.singular_values[:known], s[:known], rtol=0, atol=1e-12 * s[0])
    assert_orthonormal(found.components)


def test_a_merge_takes_no_more_than_its_input_again_nor_a_long_list_than_a_few():
    X = np.random.default_rng(0).standard_normal((2400, 2000)) / np.sqrt(np.arange(1, 2001))
    parts = [Subspace.from_rows(rows, 45) for rows in np.array_split(X, 24)]
    size = sum(part.components.nbytes for part in parts)
    assert peak_bytes(lambda: merge_subspaces(parts, 45)) < 3 * size
    X = np.random.default_rng(0).standard_normal((8000, 100))
    many = [Subspace.from_rows(X[i : i + 40]) for i in range(0, len(X), 40)]
    for method in ("auto", "qr"):
        peak = peak_bytes(lambda method=method: merge_subspaces(many, 5, method=method))
        assert peak < 4e6, f"the stack of all is {X.nbytes:.0f} bytes"


def test_a_new_client_does_not_make_its_tree_forget_what_a_node_kept():
    """A node of few directions is made anew where a wider client asks for more."""
    X = make_power_law(3000, 400, alpha=1.0, random_state=0)
    clients = np.repeat(np.arange(10), 300)
    narrow, wide = StreamingPCA(5, oversampling=5), StreamingPCA(100, oversampling=0)
    merge = SubspaceMerge(fan_in=2)
    pca = FederatedPCA(5, estimator=narrow, merge=merge).fit(X, clients=clients)
    more = make_power_law(500, 400, alpha=1.0, random_state=1)
    pca.set_params(estimator=wide).partial_fit(more, clients=[10] * 500)
    fresh = merge.merge([site.summary for site in pca._clients.values()], 5)
    assert_allclose(pca.singular_values_, fresh.singular_values, rtol=1e-12)


@pytest.mark.parametrize(("n", "d", "n_components"), [(30, 20, None), (30, 300, 5), (700, 300, 5)])
@dense_and_sparse
@pytest.mark.parametrize("kind", ["constant", "zero", "one row"])
def test_rows_without_variance_give_zeros_not_nan(kind, convert, n, d, n_components):
    row = np.random.default_rng(0).standard_normal(d) + 0.1
    X = np.tile(row * (kind != "zero"), (1 if kind == "one row" else n, 1))
    subspace = Subspace.from_rows(convert(X), n_components)
    rounding = 100 * EPS * np.abs(X).max()
    assert_allclose(subspace.mean, X[0], rtol=0, atol=rounding)
    assert subspace.scatter <= len(X) * d * rounding**2
    assert_orthonormal(subspace.components)
    assert np.isfinite([*subspace.explained_variance_ratio, subspace.total_variance]).all()
    more = make_rows(50, d)  # and it can be continued
    everything = np.concatenate([X, more])
    assert_summarises(Subspace.from_rows(convert(X)).update(convert(more)), everything)
