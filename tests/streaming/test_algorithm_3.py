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


def canonical(alpha, beta):
    return ContributionBounds(alpha, beta, growth="canonical")


WHITE = np.random.default_rng(0).standard_normal((300, 5))
CASES = {  # rows, of a block, alpha, beta, rank at first
    "grows": (make_power_law(1000, 60, alpha=0.01, random_state=0), 50, 0.01, 0.1, 1),
    "to and fro": (make_power_law(1000, 60, alpha=1.0, random_state=0), 50, 0.02, 0.04, 5),
    "shrinks": (make_power_law(1000, 60, alpha=2.0, random_state=0), 50, 0.06, 0.065, 14),
    "narrow": (make_power_law(1000, 60, alpha=1.0, random_state=0), 50, 0.08, 0.12, 3),
    # the paper has b >= r, and looks at the rank after the first block too
    "as many rows": (make_power_law(120, 40, alpha=2.0, random_state=1), 6, 0.1, 0.3, 6),
    "as many, few": (make_power_law(60, 40, alpha=2.0, random_state=1), 3, 0.3, 0.4, 3),
    # an axis is added, and taken back in the next block
    "two directions": (WHITE[:200, :2] @ WHITE[:2].repeat(2, axis=1), 20, 0.01, 0.1, 2),
    "all directions": (WHITE, 30, 0.0, 0.1, 4),
}


@pytest.mark.parametrize(("X", "b", "alpha", "beta", "start"), CASES.values(), ids=CASES)
def test_sapca_with_canonical_vectors_is_algorithm_3(X, b, alpha, beta, start):
    pca, ranks = paper(start, b, rank_rule=canonical(alpha, beta)), [start]
    for i, (rank, U, sigma) in enumerate(algorithm_3(X.T, start, b, alpha, beta)):
        pca.partial_fit(X[b * i : b * (i + 1)])
        ranks.append(rank)
        assert pca.n_components_ == pca.rank_history_[-1] == rank
        assert subspace_distance(pca.components_, U.T) < 1e-8
        assert_allclose(pca.singular_values_, sigma, rtol=1e-9, atol=1e-7 * sigma[0])
    assert len(set(ranks)) > 1
    if ranks[1] == start:
        return
    centred = paper(start, b, rank_rule=canonical(alpha, beta)).set_params(center=True).fit(X)
    assert len(centred.rank_history_) == len(ranks) - 1


def test_the_next_direction_of_a_block_is_found_sooner_than_from_a_canonical_vector():
    X = make_power_law(400, 60, alpha=1.0, random_state=0)
    errors = {}
    for growth in "next", "canonical":
        pca = paper(1, 50, rank_rule=ContributionBounds(0.0, 0.1, growth=growth)).fit(X)
        D = X - X @ pca.components_.T @ pca.components_
        errors[growth] = np.sum(D**2), pca.n_components_
    assert errors["next"][1] == errors["canonical"][1]
    assert errors["next"][0] < errors["canonical"][0]
    # rows that span no further direction let only canonical vectors grow
    two = CASES["two directions"][0]
    assert_array_equal(
        paper(2, 20, rank_rule=ContributionBounds()).fit(two).rank_history_, [2] * 10
    )
    axes = WHITE[:90, :3] @ np.eye(3, 5)  # an axis in the span is passed over
    V = paper(1, 30, rank_rule=canonical(0.0, 0.1)).fit(axes).components_
    assert_allclose(V @ V.T, np.eye(len(V)), atol=1e-12)


def test_a_summary_with_a_canonical_vector_can_be_sent_and_goes_on():
    X = make_power_law(400, 60, alpha=0.5, random_state=0)
    pca = paper(3, 50, rank_rule=canonical(0.0, 0.05)).fit(X[:200])
    assert pca.singular_values_[-1] == 0  # it has just grown
    sent = Subspace.from_bytes(pca.subspace_.to_bytes())
    options = {k: v for k, v in pca.get_params(deep=False).items() if k != "n_components"}
    other = StreamingPCA.from_subspace(sent, pca.n_components_, **options)
    assert_array_equal(other.partial_fit(X[200:]).components_, pca.partial_fit(X[200:]).components_)


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


def test_blocks_are_cut_within_batches_and_the_mean_fades_as_well():
    da = pytest.importorskip("dask.array")
    X = make_power_law(120, 6, alpha=1.0, random_state=0) + 3
    pca = StreamingPCA(3, block_size=20, forgetting_factor=0.5, forgetting="blocks")
    w = np.repeat(0.25 ** np.arange(5.0, -1, -1), 20)
    mean = w @ X / w.sum()
    want = np.linalg.svd(np.sqrt(w)[:, None] * (X - mean))[1][:3]
    for rows in X, da.from_array(X, chunks=(40, 6)), iter(np.split(X, 6)):
        pca.fit(rows)
        assert_allclose(pca.mean_, mean, rtol=1e-12)
        assert_allclose(pca.singular_values_, want, rtol=1e-10)
