"""Strategies that leave sites out, or weigh them, say where a plain merge fits better."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from fedpca_sklearn import (
    FederatedHeteroscedasticPCA,
    FederatedPCA,
    FederatedPowerPCA,
    NoiseAwareMerge,
    PersonalizedPCA,
    RobustMerge,
    RobustSum,
    Subspace,
)
from fedpca_sklearn.federated._lack_of_fit import residual, share_held


def rows_of_kinds(kinds, n=200, d=20, noise=0.5, seed=0):
    """Sites near a common plane, some of which use one more direction; labels of the rows."""
    rng = np.random.default_rng(seed)
    V = np.linalg.qr(rng.standard_normal((d, 4)))[0].T
    X, sites = [], np.repeat(np.arange(len(kinds)), n)
    for own in kinds:
        Z = rng.standard_normal((n, 2)) * [4, 3] @ V[:2]
        X.append(Z + own * rng.standard_normal((n, 1)) * V[2] + noise * rng.standard_normal((n, d)))
    return np.concatenate(X), sites


def test_the_residual_is_that_of_the_rows():
    X, sites = rows_of_kinds([0, 3, 3])
    parts = [Subspace.from_rows(X[sites == i]) for i in range(3)]
    model = Subspace.from_rows(X[:300], 2)
    Z = X - model.mean
    expected = np.sum((Z - Z @ model.components.T @ model.components) ** 2)
    assert_allclose(residual(parts, model.truncate(2)), expected)


def test_noise_is_told_from_sites_that_see_different_things():
    # what a loud site has of its own beyond the two common directions is taken for noise
    X, sites = rows_of_kinds([0, 0, 0, 6])
    X[sites < 3] *= 0.5
    with pytest.warns(UserWarning, match="do not differ by their noise alone"):
        FederatedPCA(2, merge=NoiseAwareMerge()).fit(X, clients=sites)
    rng = np.random.default_rng(0)
    X, sites = rows_of_kinds([0, 0, 0, 0])
    X[sites == 3] += 2 * rng.standard_normal(X[sites == 3].shape)  # by noise alone: no warning
    FederatedPCA(2, merge=NoiseAwareMerge()).fit(X, clients=sites)
    FederatedHeteroscedasticPCA(2, random_state=0).fit(X, clients=sites)


def test_suspects_that_a_plain_merge_fits_are_named_as_perhaps_honest():
    # two sites of twelve have a third direction, for which three components have room
    X, sites = rows_of_kinds([0] * 10 + [5, 5])
    by_rounds = FederatedPowerPCA(3, channel=RobustSum(), random_state=0)
    for model in FederatedPCA(3, merge=RobustMerge()), by_rounds:
        with pytest.warns(UserWarning, match="2 of 12 sites .* SubspaceMerge is better"):
            model.fit(X, clients=sites)
        assert sorted(model.suspects_) == [10, 11]
    # with room for two and more of it they turn the components of the others
    X, sites = rows_of_kinds([0] * 10 + [10, 10])
    pca = FederatedPCA(2, merge=RobustMerge()).fit(X, clients=sites)
    assert sorted(pca.suspects_) == [10, 11]


def test_half_of_the_sites_are_no_minority():
    rng = np.random.default_rng(3)
    A, B = (rng.standard_normal((5, 40)) * np.array([[5, 4, 3, 2, 1.5]]).T for _ in range(2))
    sites, scores = np.repeat(np.arange(20), 150), rng.standard_normal((3000, 5))
    X = np.where(sites[:, None] < 10, scores @ A, scores @ B)
    X += 0.3 * rng.standard_normal(X.shape)
    with pytest.warns(UserWarning, match="10 of 20 sites are suspects"):
        FederatedPCA(5, merge=RobustMerge()).fit(X, clients=sites)
    with pytest.warns(UserWarning, match="do not differ by their noise alone"):
        FederatedHeteroscedasticPCA(5, tol=1e-2, random_state=0).fit(X, clients=sites)


def test_alike_sites_need_no_components_of_their_own():
    X, sites = rows_of_kinds([0] * 8)
    with pytest.warns(UserWarning, match="of 4 shared ones .* better for new rows"):
        PersonalizedPCA(2, 2).fit(X, clients=sites)
    rng = np.random.default_rng(1)
    for site in range(8):  # one of its own for each
        own = np.outer(rng.standard_normal(200), rng.standard_normal(20))
        X[sites == site] += own
    PersonalizedPCA(2, 1).fit(X, clients=sites)


def test_what_clients_cut_is_estimated_and_refined():
    # a direction that is the last at each of many sites is among the first of all
    rng = np.random.default_rng(0)
    X, sites = rng.standard_normal((2000, 400)), np.repeat(np.arange(10), 200)
    for site in range(10):
        X[sites == site, 20 + 14 * site : 34 + 14 * site] *= 3.0  # its own
    X[:, :5] *= 2.5  # of all
    s = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)[:5] ** 2

    def held(pca):
        return np.sum(((X - X.mean(axis=0)) @ pca.components_.T) ** 2) / s.sum()

    with pytest.warns(UserWarning, match="clients have cut directions that others have") as caught:
        pca = FederatedPCA(5).fit(X, clients=sites)
    assert held(pca) < 0.99
    assert "n_refinements=2" in str(caught[0].message)
    refined = FederatedPCA(5, n_refinements=2).fit(X, clients=sites)
    assert held(refined) > 0.999


def test_alike_sites_have_cut_nothing_that_is_needed():
    X, sites = np.random.default_rng(0).standard_normal((2000, 400)), np.arange(2000) % 4
    X[:, :3] *= 6
    pca = FederatedPCA(3).fit(X, clients=sites)
    parts = list(pca.summaries_.values())
    assert share_held(parts, pca.subspace_, 3) > 0.999
