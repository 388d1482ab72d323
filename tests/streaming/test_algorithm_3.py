"""SPCA and SAPCA against Algorithm 3 of Grammenos et al. (2019), line by line, with d x d bases.

The oracle keeps the letters and the shapes of the paper: columns are samples.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from fedpca_sklearn import (
    ContributionBounds,
    StreamingPCA,
    Subspace,
    make_power_law,
    subspace_distance,
)


def svd(M, r):
    U, s, _ = np.linalg.svd(M, full_matrices=False)
    return U[:, :r], s[:r]


def algorithm_3(Y, r, b, alpha=0.0, beta=1.0, lam=1.0):
    """Yield the rank, U and sigma after each block; lambda acts on the past as in eq. 1.

    The canonical vector e_r is made orthonormal to U, the next one if it is in the span.
    """
    d, U = len(Y), None
    for start in range(0, Y.shape[1], b):
        block = Y[:, start : start + b]
        if U is None:
            U, sigma = svd(block, r)
        else:
            Z = U.T @ block
            Q, R = np.linalg.qr(block - U @ Z)
            zeros = np.zeros((len(R), r))
            X = np.block([[lam * np.diag(sigma), Z], [zeros, R]])
            Up, sigma = svd(X, r)
            U = np.hstack([U, Q]) @ Up
        if sigma[-1] > beta * sigma.sum() and r < d:
            r += 1
            axis, e = r - 1, np.zeros(d)
            while np.linalg.norm(e) < 1e-4:
                e = np.eye(d)[axis] - U @ U[axis]
                axis = (axis + 1) % d
            e -= U @ (U.T @ e)
            U = np.column_stack([U, e / np.linalg.norm(e)])
            sigma = np.append(sigma, 0.0)
        elif sigma[-1] < alpha * sigma.sum() and r > 1:
            r -= 1
            U, sigma = U[:, :r], sigma[:r]
        yield r, U, sigma


def paper(r, b, **options):
    return StreamingPCA(r, block_size=b, oversampling=0, center=False, **options)


def assert_summary(pca, U, sigma):
    assert pca.n_components_ == U.shape[1]
    assert subspace_distance(pca.components_, U.T) < 1e-8
    assert_allclose(pca.singular_values_, sigma, rtol=1e-9, atol=1e-7 * sigma[0])


CASES = [(0.01, 0.1, 1), (0.02, 0.04, 5), (0.06, 0.065, 14), (0.08, 0.12, 3)]


@pytest.mark.parametrize(("alpha", "beta", "start"), CASES)
@pytest.mark.parametrize("power", [0.01, 1.0, 2.0])
def test_sapca_with_canonical_vectors_is_algorithm_3(alpha, beta, start, power):
    X = make_power_law(1000, 60, alpha=power, random_state=0)
    rule = ContributionBounds(alpha, beta, growth="canonical")
    pca = paper(start, 50, rank_rule=rule)
    for i, (rank, U, sigma) in enumerate(algorithm_3(X.T, start, 50, alpha, beta)):
        pca.partial_fit(X[50 * i : 50 * (i + 1)])
        assert pca.rank_history_[-1] == rank
        assert_summary(pca, U, sigma)
    assert len({start, *pca.rank_history_}) > 1


@pytest.mark.parametrize(("alpha", "beta", "start"), [(0.1, 0.3, 6), (0.01, 0.1, 2), (0.3, 0.4, 3)])
def test_the_first_block_may_have_as_many_rows_as_the_rank(alpha, beta, start):
    """The paper has b >= r, and looks at the rank after the first block too."""
    X = make_power_law(20 * start, 40, alpha=2.0, random_state=1)
    rule = ContributionBounds(alpha, beta, growth="canonical")
    pca = paper(start, start, rank_rule=rule).fit(X)
    ranks = [r for r, *_ in algorithm_3(X.T, start, start, alpha, beta)]
    assert ranks[0] != start
    assert_array_equal(pca.rank_history_, ranks)
    shrinks = paper(start, start, rank_rule=ContributionBounds(alpha, beta)).fit(X[:start])
    assert shrinks.n_components_ == min(start, ranks[0])  # there is no further direction to add
    centred = pca.set_params(center=True).fit(X)
    assert centred.rank_history_[0] == start  # whose rows span one direction less


def test_the_next_direction_of_a_block_is_found_sooner_than_from_a_canonical_vector():
    X = make_power_law(400, 60, alpha=1.0, random_state=0)
    errors = {}
    for growth in "next", "canonical":
        pca = paper(1, 50, rank_rule=ContributionBounds(0.0, 0.1, growth=growth)).fit(X)
        D = X - X @ pca.components_.T @ pca.components_
        errors[growth] = np.sum(D**2), pca.n_components_
    assert errors["next"][1] == errors["canonical"][1]
    assert errors["next"][0] < errors["canonical"][0]


def test_rows_that_span_no_further_direction_let_only_canonical_vectors_grow():
    """Two directions: Algorithm 3 adds an axis and takes it back in the next block."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 2)) @ rng.standard_normal((2, 8))
    ranks = {
        growth: paper(2, 20, rank_rule=ContributionBounds(growth=growth)).fit(X).rank_history_
        for growth in ("next", "canonical")
    }
    assert_array_equal(ranks["next"], [2] * 10)
    assert_array_equal(ranks["canonical"], [3, 2] * 5)
    assert_array_equal(ranks["canonical"], [r for r, *_ in algorithm_3(X.T, 2, 20, 0.01, 0.1)])


def test_an_axis_in_the_span_is_passed_over_and_the_rank_ends_at_the_number_of_features():
    X = np.random.default_rng(0).standard_normal((90, 3)) @ np.eye(3, 5)  # e_1 to e_3
    pca = paper(1, 30, rank_rule=ContributionBounds(0.0, 0.1, growth="canonical")).fit(X)
    assert_allclose(pca.components_ @ pca.components_.T, np.eye(len(pca.components_)), atol=1e-12)
    white = np.random.default_rng(0).standard_normal((300, 5))
    rule = ContributionBounds(0.0, 0.1, growth="canonical")
    full = paper(4, 30, rank_rule=rule).fit(white)
    assert_array_equal(full.rank_history_, [5] * 10)


def test_a_summary_with_a_canonical_vector_can_be_sent_and_goes_on():
    X = make_power_law(400, 60, alpha=0.5, random_state=0)
    pca = paper(3, 50, rank_rule=ContributionBounds(0.0, 0.05, growth="canonical"))
    pca.fit(X[:200])
    assert pca.singular_values_[-1] == 0  # it has just grown
    sent = Subspace.from_bytes(pca.subspace_.to_bytes())
    options = {k: v for k, v in pca.get_params(deep=False).items() if k != "n_components"}
    other = StreamingPCA.from_subspace(sent, pca.n_components_, **options)
    assert_array_equal(other.partial_fit(X[200:]).components_, pca.partial_fit(X[200:]).components_)


# ---------------------------------------------------------------------------------- forgetting


@pytest.mark.parametrize("lam", [0.7, 0.9, 1.0])
@pytest.mark.parametrize("d", [40, 300])
def test_forgetting_by_blocks_is_lambda_of_equation_1(lam, d):
    X = make_power_law(1000, d, alpha=1.0, random_state=0)
    pca = paper(10, 50, forgetting_factor=lam, forgetting="blocks")
    for i, (_, U, sigma) in enumerate(algorithm_3(X.T, 10, 50, lam=lam)):
        pca.partial_fit(X[50 * i : 50 * (i + 1)])
        assert subspace_distance(pca.components_, U.T) < 1e-10
        assert_allclose(pca.singular_values_, sigma, rtol=1e-10)
    weights = np.repeat(lam ** np.arange(38.0, -1, -2), 50)
    assert_allclose(pca.subspace_.n_samples, weights.sum(), rtol=1e-12)
    assert_allclose(pca.subspace_.scatter, weights @ np.sum(X**2, axis=1), rtol=1e-12)
    assert pca.n_samples_seen_ == 1000


def test_forgetting_by_rows_is_not_lambda_of_any_block():
    """The same weight for the past, but the rows of the last block fade as well."""
    X = make_power_law(1000, 300, alpha=1.0, random_state=0)
    *_, (_, _, sigma) = algorithm_3(X.T, 10, 50, lam=0.7)
    rows = paper(10, 50, forgetting_factor=0.7 ** (2 / 50)).fit(X)
    assert rows.singular_values_[0] < 0.9 * sigma[0]


def test_blocks_are_cut_within_batches_and_the_mean_fades_as_well():
    X = make_power_law(120, 6, alpha=1.0, random_state=0) + 3
    options = {"block_size": 20, "forgetting_factor": 0.5, "forgetting": "blocks"}
    cut = StreamingPCA(3, **options).fit(X)
    parts = StreamingPCA(3, **options)
    for start in range(0, 120, 20):
        parts.partial_fit(X[start : start + 20])
    assert_array_equal(cut.components_, parts.components_)
    w = np.repeat(0.25 ** np.arange(5.0, -1, -1), 20)
    mean = w @ X / w.sum()
    assert_allclose(cut.mean_, mean, rtol=1e-12)
    want = np.linalg.svd(np.sqrt(w)[:, None] * (X - mean))[1][:3]
    assert_allclose(cut.singular_values_, want, rtol=1e-10)


def test_chunks_of_dask_are_blocks_in_their_order():
    da = pytest.importorskip("dask.array")
    X = make_power_law(200, 12, alpha=1.0, random_state=0)
    pca = StreamingPCA(3, block_size=20, forgetting_factor=0.5, forgetting="blocks")
    here = pca.fit(X).singular_values_
    there = pca.fit(da.from_array(X, chunks=(40, 12))).singular_values_
    assert_allclose(there, here, rtol=1e-12)
