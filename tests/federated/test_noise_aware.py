"""NoiseAwareMerge: weights by noise, against dense eigenproblems and known noise."""

import numpy as np
import pytest
from helpers import random_basis, sine
from numpy.testing import assert_allclose

from fedpca_sklearn import FederatedPCA, NoiseAwareMerge, Subspace, SubspaceMerge

SIZES, NOISE, SIGNAL = (60, 240, 150), (1.0, 16.0, 4.0), np.array([30.0, 16.0, 9.0])


def sites(seed=0, noise=NOISE, means=0.0, d=30):
    rng = np.random.default_rng(seed)
    V = random_basis(rng, 3, d)
    return [
        rng.standard_normal((n, 3)) * np.sqrt(SIGNAL) @ V
        + np.sqrt(v) * rng.standard_normal((n, d))
        + means * rng.standard_normal(d)
        for n, v in zip(SIZES, noise, strict=True)
    ], V


def weighted_pca(rows, v, rank=3):
    """Fixed point: component i leads, at place i, the scatter with weights 1 / (v (l_i + v))."""
    v, X = np.asarray(v), [x - x.mean(axis=0) for x in rows]
    each = [x.T @ x for x in X]
    V = np.linalg.svd(np.concatenate(X), full_matrices=False)[2][:rank]
    for _ in range(30):
        excess = sum(
            (np.diag(V @ S @ V.T) - len(x) * noise) / noise**2
            for S, x, noise in zip(each, X, v, strict=True)
        )
        lam = excess / sum(len(x) / noise**2 for x, noise in zip(X, v, strict=True))
        found = []
        for i in range(rank):
            S = sum(S / (noise * (lam[i] + noise)) for S, noise in zip(each, v, strict=True))
            found.append(np.linalg.eigh(S)[1][:, -1 - i])
        left, _, right = np.linalg.svd(np.array(found), full_matrices=False)
        V = left @ right
    return V


def test_components_are_those_of_the_weighted_scatter_and_noise_is_found():
    for seed in range(5):
        rows, true = sites(seed)
        merge = NoiseAwareMerge()
        merged = merge.merge([Subspace.from_rows(x) for x in rows], 3)
        # the relative deviation of a variance from n (d - 3) squares
        for found, v, n in zip(merge.noise_variances_.values(), NOISE, SIZES, strict=True):
            assert abs(found / v - 1) < 5 * np.sqrt(2 / (n * 27))
        # common means cost a site one row of its many: the oracle centres each
        expected = weighted_pca(rows, list(merge.noise_variances_.values()))
        assert sine(merged.components, expected) < 0.1 * sine(expected, true)
        plain = SubspaceMerge().merge([Subspace.from_rows(x) for x in rows], 3)
        assert sine(merged.components, true) < 0.8 * sine(plain.components, true)


def test_equal_noise_gives_the_plain_merge():
    for seed in range(10):
        rows, _ = sites(seed, noise=(4.0, 4.0, 4.0), means=3.0)
        parts = [Subspace.from_rows(x, 12) for x in rows]
        merge = NoiseAwareMerge()
        found, plain = merge.merge(parts, 3), SubspaceMerge().merge(parts, 3)
        assert len(set(merge.noise_variances_.values())) == 1
        assert sine(found.components, plain.components) < 1e-12


def test_count_mean_scatter_and_variances_are_those_of_all_rows():
    rows, _ = sites(means=5.0)
    X = np.concatenate(rows)
    found = NoiseAwareMerge().merge([Subspace.from_rows(x) for x in rows], 3)
    centred = X - X.mean(axis=0)
    assert found.n_samples == len(X)
    assert_allclose(found.mean, X.mean(axis=0), atol=1e-12)
    assert_allclose(found.scatter, np.sum(centred**2), rtol=1e-12)
    along = np.sum((centred @ found.components.T) ** 2, axis=0)
    assert_allclose(found.singular_values**2, along, rtol=1e-10)


@pytest.mark.parametrize("factor", [1e-100, 1e8, 1e100])
def test_neither_order_nor_units_matter(factor):
    rows, _ = sites(means=2.0)
    parts = [Subspace.from_rows(x) for x in rows]
    scaled = [Subspace.from_rows(factor * x) for x in reversed(rows)]
    merge, other = NoiseAwareMerge(), NoiseAwareMerge()
    a, b = merge.merge(parts, 3), other.merge(scaled, 3)
    assert sine(a.components, b.components) < 1e-9
    v, w = (np.array(list(m.noise_variances_.values())) for m in (merge, other))
    assert_allclose(w[::-1], v * factor**2, rtol=1e-9)


def test_the_estimator_shows_noise_by_label_and_forgets_it_with_the_strategy():
    rows, true = sites()
    X, labels = np.concatenate(rows), np.repeat(["a", "b", "c"], SIZES)
    merge = NoiseAwareMerge()
    pca = FederatedPCA(3, merge=merge).fit(X.astype(np.float32), clients=labels)
    assert list(pca.noise_variances_) == ["a", "b", "c"]
    assert pca.components_.dtype == np.float32
    assert not hasattr(merge, "noise_variances_")  # a clone has merged
    plain = FederatedPCA(3).fit(X.astype(np.float32), clients=labels)
    assert pca.communication_.floats_up == plain.communication_.floats_up
    # a site changes: louder rows of its own
    loud = np.random.default_rng(1).normal(scale=20, size=(60, 30))
    pca.partial_fit(loud, clients=["a"] * 60)
    assert pca.noise_variances_["a"] > 100
    assert pca.noise_variances_["b"] < 20
    from_files = FederatedPCA.from_subspaces([Subspace.from_rows(x) for x in rows], 3, merge=merge)
    assert list(from_files.noise_variances_) == [0, 1, 2]
    assert sine(from_files.components_, true) < 0.5
    assert not hasattr(pca.set_params(merge=None).fit(X, clients=labels), "noise_variances_")


def test_a_site_of_few_rows_claims_no_noise_of_zero():
    rows, true = sites()
    parts = [Subspace.from_rows(x) for x in rows]
    few = [Subspace.from_rows(np.random.default_rng(i).normal(size=(i, 30))) for i in (1, 2)]
    twice = Subspace.from_rows(np.ones((2, 30)))  # two rows without any scatter
    merge = NoiseAwareMerge()
    found = merge.merge([*parts, *few, twice, Subspace.empty(30)], 3)
    assert min(merge.noise_variances_.values()) > 0.1
    without = NoiseAwareMerge().merge(parts, 3)
    assert sine(found.components, true) < 1.2 * sine(without.components, true)


@pytest.mark.parametrize(
    "rows",
    [[np.ones((5, 4))], [np.eye(4)[:1]], [np.ones((3, 4)), np.zeros((1, 4))], [np.eye(4)] * 2],
)
@pytest.mark.parametrize("rank", [1, 3, 4])
def test_without_noise_it_is_the_plain_merge(rows, rank):
    parts = [Subspace.from_rows(x) for x in rows]
    found, plain = NoiseAwareMerge().merge(parts, rank), SubspaceMerge().merge(parts, rank)
    assert_allclose(found.singular_values, plain.singular_values, atol=1e-12)


@pytest.mark.parametrize("n_components", [None, 0.9])
def test_a_number_of_components_is_needed(n_components):
    rows, _ = sites()
    parts = [Subspace.from_rows(x) for x in rows]
    with pytest.raises(ValueError, match="must be an integer with NoiseAwareMerge"):
        NoiseAwareMerge().merge(parts, n_components)
    pca = FederatedPCA(n_components, merge=NoiseAwareMerge())
    with pytest.raises(ValueError, match="must be an integer with NoiseAwareMerge"):
        pca.fit(rows[0])
    with pytest.raises(TypeError, match="takes no arguments"):
        NoiseAwareMerge(fan_in=2)
