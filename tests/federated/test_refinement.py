"""Rounds of products after the merge of FederatedPCA, beside numpy's PCA of all rows.

The scenario `refine` has 1,000 random problems; a share of them is here.
"""

import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from fedpca_sklearn import (
    AnalyzeGauss,
    FederatedPCA,
    OjaPCA,
    ProjectionAverage,
    StreamingPCA,
    Subspace,
    SubspaceMerge,
    make_spiked,
    subspace_distance,
)
from fedpca_sklearn._kernels.row_moments import RowsAtHand
from fedpca_sklearn.summary._refinement import Refinement, _rng_of, products_of

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import refine as scenario  # noqa: E402

D, RANK = 300, 3


@pytest.fixture(scope="module")
def X():
    return make_spiked(1500, D, spikes=(9, 7, 5), random_state=0)[0] + 10.0


@pytest.fixture(scope="module")
def sites(X):
    return np.arange(len(X)) // 100


def best(X, weight=None):
    """PCA's components by numpy."""
    Z = X - np.average(X, axis=0, weights=weight)
    S = Z.T @ (Z if weight is None else weight[:, None] * Z)
    return np.linalg.eigh(S)[1][:, ::-1][:, :RANK].T


def distances(model, X, weight=None):
    return subspace_distance(model.components_, best(X, weight)), model.subspace_error_bound_


# ------------------------------------------------------------------------------ how near


def test_random_problems_are_never_further_off_than_their_bound():
    rows = scenario.tightness(scenario.certain(15, seed=1))
    for row in rows:
        assert row["below the error"] == row["variances outside"] == 0, row
    assert rows[-1]["refinements"] == 5
    assert rows[-1]["within 10 times"] >= 0.9


# ------------------------------------------------------------------------------ whichever way

WAYS = {
    "a tree": {"merge": SubspaceMerge(fan_in=2)},
    "a truncated tree": {"merge": SubspaceMerge("qr", fan_in=3, truncate=True)},
    "an average": {"merge": ProjectionAverage()},
    "another estimator": {"estimator": PCA(5)},
    "sparse rows": {},
    "single precision": {},
    "weights": {},
    "rows of no known client": {},
}


@pytest.mark.parametrize("way", WAYS)
def test_rounds_lead_to_the_components_of_all_rows_whichever_way(X, sites, way):
    rows, weight = X, 1.0 + np.arange(len(X)) % 3 if way == "weights" else None
    if way == "sparse rows":
        rows = sp.csr_array(np.where(X > 11, X, 0.0))
    rows = X.astype(np.float32) if way == "single precision" else rows
    model = FederatedPCA(RANK, **WAYS[way]).fit(rows, clients=sites, sample_weight=weight)
    before = model.subspace_
    if way == "rows of no known client":
        order = np.random.default_rng(0).permutation(len(X))
        model.refine(rows[order], n_rounds=8)
    else:
        model.refine(rows, sites, weight, n_rounds=8)
    dense = rows.toarray() if sp.issparse(rows) else rows.astype(float)
    error, bound = distances(model, dense, weight)
    assert error <= bound
    assert error < 1e-4
    assert way in ("an average", "a truncated tree", "another estimator") or bound < 1e-3
    V, after = model.subspace_.components, model.subspace_
    assert_allclose(V @ V.T, np.eye(len(V)), atol=1e-6 if V.dtype == np.float32 else 1e-12)
    assert model.components_.dtype == rows.dtype
    for name in ("mean", "n_samples", "scatter", "column_scatter"):
        assert_array_equal(getattr(after, name), getattr(before, name))
    Z = dense - np.average(dense, axis=0, weights=weight)
    w = np.ones(len(Z)) if weight is None else weight
    want = np.linalg.eigvalsh((w[:, None] * Z).T @ Z)[::-1][:RANK] / (w.sum() - 1)
    assert_allclose(model.explained_variance_, want, rtol=1e-4)
    low, high = model.explained_variance_interval_.T
    assert np.all((low <= want * (1 + 1e-6)) & (want * (1 - 1e-6) <= high))


def test_row_chunks_of_dask_are_clients(X):
    da = pytest.importorskip("dask.array")
    chunks = da.from_array(X, chunks=(500, -1))
    here = FederatedPCA(RANK, n_refinements=2).fit(X, clients=np.arange(len(X)) // 500)
    there = FederatedPCA(RANK, n_refinements=2).fit(chunks)
    for model in (here, there):
        assert subspace_distance(model.components_, best(X)) < 0.01
    assert there.communication_.floats_pooled == X.size
    empty = da.from_array(X, chunks=((500, 0, 1000), -1))
    again = FederatedPCA(RANK).fit(empty).refine(empty, n_rounds=2)
    assert subspace_distance(again.components_, best(X)) < 0.01


def test_rows_of_all_calls_are_refined_together(X, sites):
    model = FederatedPCA(RANK, n_refinements=1)
    for part in (slice(0, 500), slice(500, None)):
        model.partial_fit(X[part], clients=sites[part])
    assert model.n_refinements_ == 0  # there are not all rows
    with pytest.raises(ValueError, match="weight of 1500, got rows of weight 1000"):
        model.refine(X[500:], clients=sites[500:])
    model.refine(X, clients=sites, n_rounds=6)
    assert model.communication_.floats_pooled == X.size  # nobody would send them twice
    error, bound = distances(model, X)
    assert error <= bound < 1e-4
    model.partial_fit(X[:10], clients=sites[:10])
    assert model.n_refinements_ == 0
    assert model.subspace_error_bound_ > bound


# ------------------------------------------------------------------------------ until it is good


def test_rounds_go_on_until_the_bound_is_small(X, sites):
    model = FederatedPCA(RANK, tol=1e-3).fit(X, clients=sites)
    error, bound = distances(model, X)
    assert error <= bound <= 1e-3
    fewer = FederatedPCA(RANK, n_refinements=model.n_refinements_ - 1, tol=1e-3)
    with pytest.warns(ConvergenceWarning, match="above tol=0.001; raise n_refinements"):
        fewer.fit(X, clients=sites)
    assert fewer.n_refinements_ == model.n_refinements_ - 1
    exact = FederatedPCA(RANK, tol=1e-8).fit(X[:, :40], clients=sites)
    assert exact.n_refinements_ == 0
    assert exact.subspace_error_bound_ < 1e-9
    rows = X[:, :5] * (np.arange(5) < 4)  # all directions span all, also where one has no variance
    assert FederatedPCA(5).fit(rows).refine(rows).subspace_error_bound_ < 1e-14


def test_nothing_is_known_where_no_cut_bounds_the_rows(X, sites):
    Y = X[:, :40]
    exact = FederatedPCA(RANK).fit(Y, clients=sites)
    assert exact.subspace_error_bound_ < 1e-9
    for options in ({"merge": ProjectionAverage()}, {"mechanism": AnalyzeGauss(1.0, 1e-5, 99.0)}):
        model = FederatedPCA(RANK, random_state=0, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the noise
            model.fit(Y, clients=sites)
        assert model.subspace_error_bound_ == np.inf
        assert_array_equal(model.explained_variance_interval_, [[0, np.inf]] * RANK)
    # a tracker's directions are those of no decomposition, and a file may not know its scatter
    tracked = FederatedPCA(RANK, estimator=OjaPCA(RANK, random_state=0)).fit(Y, clients=sites)
    assert tracked.subspace_error_bound_ == np.inf
    blind = Subspace.from_estimator(TruncatedSVD(RANK).fit(Y), n_samples=len(Y))
    assert blind.scatter == pytest.approx(np.sum(blind.singular_values**2))
    assert FederatedPCA.from_subspaces([blind], RANK).subspace_error_bound_ == np.inf
    assert StreamingPCA.from_subspace(blind, RANK).subspace_error_bound_ == np.inf
    with pytest.raises(NotFittedError):
        _ = FederatedPCA().subspace_error_bound_
    assert not hasattr(FederatedPCA(), "explained_variance_interval_")


def test_more_components_than_rows_have_directions_are_refined_without_a_bound(X, sites):
    line = np.outer(X[:, 0], X[0])
    model = FederatedPCA(10, n_refinements=1).fit(line, clients=sites)
    assert model.subspace_error_bound_ == np.inf
    want = [[line.var(axis=0, ddof=1).sum()] * 2] + [[0, 0]] * 9
    assert_allclose(model.explained_variance_interval_, want, atol=1e-12 * want[0][0])


@pytest.mark.parametrize("estimator", [FederatedPCA, StreamingPCA])
def test_equal_rows_are_refined_to_what_they_are(estimator):
    for value in (0.0, 3.0, 1e100):
        model = estimator(RANK).fit(np.full((400, D), value))
        V = model.refine(np.full((400, D), value), n_rounds=2).components_
        assert_allclose(V @ V.T, np.eye(RANK), atol=1e-12)
        assert_array_equal(model.singular_values_, 0.0)
        assert_allclose(model.mean_, value, rtol=1e-15)


# ------------------------------------------------------------------------------ sums of liars


@pytest.mark.parametrize("at", [1, -5])
@pytest.mark.parametrize("size", [1e20, 1e150, 1e300, 1.7e308])
def test_numbers_that_no_rows_have_are_named(X, at, size):
    """The attack: products or a sum of rows whose squares overflow, where LAPACK fails."""
    refinement = Refinement(StreamingPCA(RANK).fit(X).subspace_)
    answer = products_of(RowsAtHand(X), refinement.rows.mean, refinement.block)
    for sign in (1, -1):
        hostile = answer.copy()
        hostile[at], hostile[at - 4] = sign * size, -sign * size
        with pytest.raises(ValueError, match="X must hold the rows of the fit"):
            refinement.add(hostile)
    assert refinement.n_rounds == 0


def test_products_of_a_matrix_with_negative_eigenvalues_are_named(X):
    """The attack: a product that hardly has the direction it is of, which would be multiplied."""
    refinement = Refinement(StreamingPCA(RANK).fit(X).subspace_)
    block, scatter = refinement.block, refinement.rows.scatter
    answer = products_of(RowsAtHand(X), refinement.rows.mean, block)
    products = answer[: block.size].reshape(block.shape)  # a view
    products[1:] -= np.outer(products[1:] @ block[0], block[0])
    beyond = np.linalg.svd(block)[2][-1]
    products[0] = scatter * (1e-6 * block[0] + 0.5 * beyond)
    refinement.add(answer)
    with pytest.raises(ValueError, match="products exceed the sum of squares"):
        refinement.summary()


def test_products_of_which_no_eigenvalues_are_found_are_named():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((120, 5)) * np.arange(1, 6) + np.arange(120)[:, None] % 3
    refinement = Refinement(Subspace.from_rows(rows, 2))
    answer = products_of(RowsAtHand(rows), refinement.rows.mean, refinement.block)
    for _ in range(300):
        hostile = answer.copy()
        for at in rng.integers(refinement.block.size, size=3):
            hostile[at] = rng.choice([-1, 1]) * 10.0 ** rng.uniform(10, 308)
        with pytest.raises(ValueError, match="products exceed the sum of squares"):
            refinement.add(hostile)


def test_products_may_exceed_the_scatter_by_what_messages_are_rounded_by():
    """Rows of one direction: the norm of its product is their scatter, if nothing is rounded."""
    rows = np.outer(np.arange(-5.0, 6.0), 1e-4 * np.arange(1.0, 7.0))
    summary = Subspace.from_rows(rows, 1)
    step, scatter = 0.01 * summary.scatter, summary.scatter
    for off, more, taken in ((0.0, 0.0, True), (0.0, step, False), (step, step, True)):
        refinement = Refinement(summary, off)
        answer = products_of(RowsAtHand(rows), summary.mean, refinement.block)
        products = answer[: refinement.block.size]  # a view
        assert np.linalg.norm(products) == pytest.approx(scatter)
        products += more * np.sign(products)
        with nullcontext() if taken else pytest.raises(ValueError, match="products exceed the sum"):
            refinement.add(answer)


def test_vectors_at_random_depend_on_the_summary_and_not_on_its_rounding():
    a, b = (Subspace.from_rows(np.random.default_rng(i).standard_normal((50, 9))) for i in (0, 1))
    near = a._replace(components=a.components + 1e-9)
    drawn = [_rng_of(summary).standard_normal(3) for summary in (a, near, b)]
    assert_array_equal(drawn[0], drawn[1])
    assert np.abs(drawn[0] - drawn[2]).max() > 0.1
