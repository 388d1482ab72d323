"""Strategies that leave sites out or weigh them, against plain merges and known noise.

RobustMerge names sites that are wrong and merges the honest ones as before; NoiseAwareMerge weighs
them by their noise; both say where a plain merge fits better.
"""

import re

import numpy as np
import pytest
from helpers import random_basis, sine
from numpy.testing import assert_allclose, assert_array_equal
from scipy import optimize, stats
from sklearn.datasets import load_digits

from fedpca_sklearn import (
    FederatedHeteroscedasticPCA,
    FederatedPCA,
    FederatedPowerPCA,
    NoiseAwareMerge,
    PersonalizedPCA,
    RobustMerge,
    RobustSum,
    Subspace,
    SubspaceMerge,
)
from fedpca_sklearn.federated import _shared_and_local
from fedpca_sklearn.federated._lack_of_fit import share_explained
from fedpca_sklearn.federated._weighted_merges import _one_noise, median_weights

# -------------------------------------------------------------------- RobustMerge

RANK, SITES = 4, 11


def honest(seed=0, d=30, n=60, dtype=np.float64):
    """Rows of eleven sites with one distribution, mean far from zero."""
    rng = np.random.default_rng(seed)
    scales = np.concatenate([[9.0, 7.0, 5.0, 4.0], np.ones(d - 4)])
    basis = random_basis(np.random.default_rng(99), d, d)
    X = (rng.standard_normal((SITES * n, d)) * scales) @ basis + 100
    return np.split(X.astype(dtype), SITES)


def summaries(rows):
    return [Subspace.from_rows(X) for X in rows]


ATTACKS = {
    "scaled": lambda X, rng: 100 * X,
    "rotated": lambda X, rng: (X - 100) @ random_basis(rng, 30, 30) + 100,
    "sign-flipped": lambda X, rng: -X,
    "colluding": lambda X, rng: (X - 100) @ random_basis(np.random.default_rng(7), 30, 30) + 100,
    "mean": lambda X, rng: X + 1e6,
}


def attacked(kind, liars, seed=0):
    rows, rng = honest(seed), np.random.default_rng(50 + seed)
    if kind == "rows":
        return [s.decay(1e9 / 60) if i in liars else s for i, s in enumerate(summaries(rows))]
    return summaries([ATTACKS[kind](X, rng) if i in liars else X for i, X in enumerate(rows)])


@pytest.mark.parametrize("kind", [*ATTACKS, "rows"])
@pytest.mark.parametrize("liars", [{3}, {0, 2, 3, 7, 10}])
@pytest.mark.parametrize("method", ["filter", "median"])
def test_liars_are_named_and_the_others_merged(kind, liars, method):
    merge = RobustMerge(method)
    found = merge.merge(attacked(kind, liars), RANK)
    assert set(merge.suspects_) == liars
    trusted = [s for i, s in enumerate(summaries(honest())) if i not in liars or kind == "rows"]
    expected = SubspaceMerge().merge(trusted, RANK)
    assert_allclose(found.mean, expected.mean, rtol=1e-12)
    assert_allclose(found.n_samples, expected.n_samples)
    assert_allclose(found.scatter, expected.scatter, rtol=1e-9)
    # an honest site alone is off by .25
    assert sine(found.components, expected.components) < (1e-9 if method == "filter" else 0.1)
    reason = {"scaled": "variance", "mean": "mean", "sign-flipped": "mean", "rows": "rows"}
    for evidence in merge.suspects_.values():
        assert getattr(evidence, reason.get(kind, "directions")) > 1


def test_units_towards_the_projections_add_up_to_zero_at_their_geometric_median():
    bases = [random_basis(np.random.default_rng(i), 2, 6) for i in range(7)]
    projections = np.stack([V.T @ V for V in bases])
    off = projections - np.tensordot(median_weights(bases), projections, 1)
    units = off / np.linalg.norm(off, axis=(1, 2), keepdims=True)
    assert_allclose(units.sum(axis=0), 0, atol=1e-6)


def test_a_claim_counts_as_many_rows_as_those_have_who_stay():
    rows, rng = honest(), np.random.default_rng(0)
    parts = summaries([X[:40] for X in rows[:4]] + rows[4:8])
    parts[4] = parts[4].decay(1e9 / 60)
    parts += summaries([ATTACKS["rotated"](X, rng) for X in rows[8:]])
    merge = RobustMerge()
    found = merge.merge(parts, RANK)
    assert set(merge.suspects_) == {4, 8, 9, 10}
    assert found.n_samples == pytest.approx(4 * 40 + 3 * 60 + (40 + 60) / 2)


def test_without_liars_it_is_the_plain_merge():
    for seed in range(3):
        parts, merge = summaries(honest(seed)), RobustMerge()
        found, plain = merge.merge(parts, RANK), SubspaceMerge().merge(parts, RANK)
        assert merge.suspects_ == {}
        assert_array_equal(found.components, plain.components)
        assert_array_equal(found.singular_values, plain.singular_values)
    X, y = load_digits(return_X_y=True)  # unlike sites are no liars
    for k in (2, 5, 10):
        pca = FederatedPCA(k, merge=RobustMerge()).fit(X, clients=y)
        assert pca.suspects_ == {}
        assert_allclose(pca.components_, FederatedPCA(k).fit(X, clients=y).components_, atol=1e-9)


def test_a_few_rows_or_a_single_one_are_no_lie():
    few = [X[:m] for X, m in zip(honest(1), (1, 2, 3, 5, 8), strict=False)]
    merge = RobustMerge()
    merge.merge([*summaries(honest()), *summaries(few)], RANK)
    assert merge.suspects_ == {}
    for rows in ([np.eye(4)[:1]], [np.eye(4), -np.eye(4)], [np.ones((3, 4))] * 5):
        merge = RobustMerge()
        found = merge.merge(summaries(rows), 2)
        assert merge.suspects_ == {}
        assert found.n_samples == sum(map(len, rows))


def test_a_summary_that_no_rows_have_blinds_nobody():
    """Energies that underflow, scatter of one row, a far mean of no row: each is named or nothing.

    Beside each stands a site with 100 times the deviations about another mean, which has to be
    found all the same.
    """
    parts, axes, there = summaries(honest()), np.eye(30), np.full(30, 100.0)
    liar = Subspace.from_rows(1e4 + 100 * honest(5)[0][:, ::-1])
    expected = SubspaceMerge().merge(parts, RANK)
    for odd, named in (
        (Subspace(axes[:1], [5e-324], there, 60, 0.0), True),
        (Subspace(axes[:1], [1e5], there, 1, 1e10), True),
        (Subspace(axes[:1], [1e5], there, 1e-3, 1e10), True),
        (Subspace(axes[:0], [], there, 1, 1e10), True),
        (Subspace(axes[:0], [], 1e9 * there, 1e-300, 0.0), True),
        (Subspace(axes[:0], [], 1e150 * there, 600, 0.0), True),
        (Subspace(axes[:0], [], there, 1e-300, 0.0), False),
        (Subspace(axes[:0], [], there, 5e-324, 0.0), False),
    ):
        merge = RobustMerge()
        found = merge.merge([*parts, odd, liar], RANK)
        assert set(merge.suspects_) == ({SITES, SITES + 1} if named else {SITES + 1})
        assert_allclose(found.mean, expected.mean, rtol=1e-12)
        assert_allclose(found.scatter, expected.scatter, rtol=1e-9)
        assert sine(found.components, expected.components) < 1e-9


def test_at_most_as_many_are_left_out_as_may_be_bad():
    parts = attacked("rotated", {0, 2, 3})
    for max_bad, n in ((0, 11), (1, 10), (3, 8), (5, 8)):
        assert RobustMerge(max_bad=max_bad).merge(parts, RANK).n_samples == 60 * n


def test_directions_that_summaries_have_cut_and_all_of_them_make_no_honest_site_a_suspect():
    X = np.random.default_rng(0).standard_normal((8000, 300))
    X[:, :3] *= np.sqrt(1.5)
    assert FederatedPCA(3, merge=RobustMerge(), n_clients=10).fit(X).suspects_ == {}
    X = np.random.default_rng(0).standard_normal((600, 5)) * [3, 2, 1, 1, 0.5]
    pca = FederatedPCA(5, merge=RobustMerge(), n_clients=10).fit(X)
    assert pca.suspects_ == {}
    assert max(abs(one.directions) for one in pca.evidence_.values()) < 1e-6
    sites = np.repeat(np.arange(5), [80, 160, 230, 2, 128])  # of which one has one direction
    for rows in X, np.hstack([X, np.full((600, 1), 3.0)]):
        assert FederatedPCA(5, merge=RobustMerge()).fit(rows, clients=sites).suspects_ == {}


@pytest.mark.parametrize(("d", "k"), [(4, 3), (10, 5), (30, 10)])
@pytest.mark.parametrize("lie", [False, True])
def test_a_site_of_fewer_rows_than_components_accuses_nobody(d, k, lie):
    for seed in range(9):
        sites = np.repeat(np.arange(5), [40, 120, 60, 2, 80])
        X = np.random.default_rng(seed).standard_normal((302, d)) * np.geomspace(4, 1, d)
        X[sites == 1] = X[sites == 1, :: -1 if lie else 1]
        suspects = FederatedPCA(k, merge=RobustMerge()).fit(X, clients=sites).suspects_
        assert list(suspects) == [1] * lie


def test_the_estimator_names_clients():
    rows = honest(dtype=np.float32)
    rows[4] = 100 * rows[4]
    X, labels = np.concatenate(rows), np.repeat([f"site {i:02d}" for i in range(SITES)], 60)
    pca = FederatedPCA(RANK, merge=RobustMerge()).fit(X, clients=labels)
    assert list(pca.suspects_) == ["site 04"]
    assert set(pca.evidence_) == set(labels)
    assert pca.components_.dtype == np.float32
    # who sends right rows afterwards is still wrong; a wrong one who joins is named too
    joined = -honest(3, n=20)[0]
    pca.partial_fit(joined, clients=["late"] * len(joined))
    assert set(pca.suspects_) == {"site 04", "late"}
    parts = [Subspace.from_rows(x)._replace(site=f"s{i}") for i, x in enumerate(rows)]
    from_files = FederatedPCA.from_subspaces([*parts, Subspace.empty(30)._replace(site="none")], 4)
    assert not hasattr(from_files, "suspects_")
    with_strategy = FederatedPCA.from_subspaces(parts, RANK, merge=RobustMerge())
    assert list(with_strategy.suspects_) == ["s4"]


# -------------------------------------------------------------------- NoiseAwareMerge

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
    off = []
    for seed in range(3):
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
        # without means of their own: the components are among the leading ones of two weights
        centred = [x - x.mean(axis=0) for x in rows]
        merged = merge.merge([Subspace.from_rows(x) for x in centred], 3)
        expected = weighted_pca(centred, list(merge.noise_variances_.values()))
        off.append(sine(merged.components, expected))
    assert np.mean(off) < 0.0018


def test_equal_noise_and_none_give_the_plain_merge():
    for seed in range(3):
        rows, _ = sites(seed, noise=(4.0, 4.0, 4.0), means=3.0)
        parts, merge = [Subspace.from_rows(x, 12) for x in rows], NoiseAwareMerge()
        found, plain = merge.merge(parts, 3), SubspaceMerge().merge(parts, 3)
        assert len(set(merge.noise_variances_.values())) == 1
        assert sine(found.components, plain.components) < 1e-12
    eye, one = np.eye(4), np.ones((3, 4))
    for rows in [[one], [eye[:1]], [one, 0 * eye[:1]], [eye] * 2]:
        parts = [Subspace.from_rows(x) for x in rows]
        for rank in (1, 3, 4):
            found, plain = NoiseAwareMerge().merge(parts, rank), SubspaceMerge().merge(parts, rank)
            assert_allclose(found.singular_values, plain.singular_values, atol=1e-12)


def test_what_a_site_has_cut_is_noise_in_all_directions_that_it_lacks():
    """One site has all directions, or the leading one of a spectrum that is flat beyond."""
    eye, of_others, none = np.eye(10), np.r_[20.0, np.full(9, 9.0)], np.zeros(10)
    known = Subspace(eye, np.sqrt(200 * np.r_[30.0, np.ones(9)]), none, 200, 200 * 39)
    whole = Subspace(eye[::-1], np.sqrt(100 * of_others), none, 100, 100 * of_others.sum())
    found = []
    for other in (whole, whole.truncate(1)):
        merge = NoiseAwareMerge()
        assert sine(merge.merge([known, other], 1).components, eye[:1]) < 1e-7
        found.append([*merge.noise_variances_.values()])
    assert_allclose(found[1], found[0], rtol=1e-12)
    assert found[0] == pytest.approx([1, (of_others.sum() - 9) / 9], rel=0.02)


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


def test_the_estimator_shows_noise_by_label_and_forgets_it_with_the_strategy():
    rows, _ = sites()
    X, labels = np.concatenate(rows), np.repeat(["a", "b", "c"], SIZES)
    merge = NoiseAwareMerge()
    pca = FederatedPCA(3, merge=merge).fit(X.astype(np.float32), clients=labels)
    assert list(pca.noise_variances_) == ["a", "b", "c"]
    assert pca.components_.dtype == np.float32
    assert not hasattr(merge, "noise_variances_")  # a clone has merged
    # a site changes: louder rows of its own
    loud = np.random.default_rng(1).normal(scale=20, size=(60, 30))
    pca.partial_fit(loud, clients=["a"] * 60)
    assert pca.noise_variances_["a"] > 100
    assert pca.noise_variances_["b"] < 20
    from_files = FederatedPCA.from_subspaces([Subspace.from_rows(x) for x in rows], 3, merge=merge)
    assert list(from_files.noise_variances_) == [0, 1, 2]
    assert not hasattr(pca.set_params(merge=None).fit(X, clients=labels), "noise_variances_")


# -------------------------------------------------------------------- lack of fit


def rows_of_kinds(kinds, n=200, d=20, noise=0.5, seed=0):
    """Sites near a common plane, some of which use one more direction; labels of the rows."""
    rng = np.random.default_rng(seed)
    V = np.linalg.qr(rng.standard_normal((d, 4)))[0].T
    X, sites = [], np.repeat(np.arange(len(kinds)), n)
    for own in kinds:
        Z = rng.standard_normal((n, 2)) * [4, 3] @ V[:2]
        X.append(Z + own * rng.standard_normal((n, 1)) * V[2] + noise * rng.standard_normal((n, d)))
    return np.concatenate(X), sites


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


@pytest.mark.filterwarnings("error::UserWarning")  # which other tests ignore
def test_alike_sites_need_no_components_of_their_own(monkeypatch):
    """Noise gains at most what Marchenko and Pastur's edge allows, and more than half of that."""
    X, sites = rows_of_kinds([0] * 8)
    with monkeypatch.context() as patch:
        patch.setattr(_shared_and_local, "NOISE", 0.5)
        PersonalizedPCA(2, 2).fit(X, clients=sites)
        patch.setattr(_shared_and_local, "NOISE", 1.0)
        with pytest.warns(UserWarning, match="better for new rows"):
            PersonalizedPCA(2, 2).fit(X, clients=sites)
    with pytest.warns(UserWarning, match="of 4 shared ones .* better for new rows"):
        PersonalizedPCA(2, 2).fit(X, clients=sites)
    rng = np.random.default_rng(1)
    for site in range(8):  # one of its own for each
        own = np.outer(rng.standard_normal(200), rng.standard_normal(20))
        X[sites == site] += own
    PersonalizedPCA(2, 1).fit(X, clients=sites)


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


def test_sites_have_one_noise_where_bartletts_test_does_not_reject_it():
    rng = np.random.default_rng(0)
    samples = [z / z.std(ddof=1) for z in map(rng.standard_normal, (4, 5, 7))]

    def sample(t):
        return [*samples[:2], t * samples[2]]

    limit = optimize.brentq(lambda t: stats.bartlett(*sample(t)).pvalue - 0.01, 1, 100)
    for t, one in ((0.999 * limit, True), (1.001 * limit, False)):
        rest = np.array([np.sum((z - z.mean()) ** 2) for z in sample(t)])
        assert _one_noise(rest, np.array([3.0, 4.0, 6.0])) == one


@pytest.mark.filterwarnings("error::UserWarning")
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
    assert counted(pca, X) < float(re.search(r"at most some (\d+)%", str(caught[0].message))[1])
    refined = FederatedPCA(5, n_refinements=2).fit(X, clients=sites)
    assert held(refined) > 0.999
    X, sites = np.random.default_rng(0).standard_normal((2000, 400)), np.arange(2000) % 4
    X[:, :3] *= 6  # of all: nothing was cut that is needed, and nobody is warned
    FederatedPCA(3).fit(X, clients=sites)


def counted(pca, X):
    """How much of the variance along components the stated variances are, in percent."""
    along = np.sum(((X - X.mean(axis=0)) @ pca.components_.T) ** 2) / (len(X) - 1)
    return 100 * pca.explained_variance_.sum() / along


def test_of_equal_variances_the_warning_says_how_much_is_stated():
    X = np.random.default_rng(0).standard_normal((5000, 300))
    with pytest.warns(UserWarning, match="at most some") as caught:
        pca = FederatedPCA(2, n_clients=10).fit(X)
    stated = float(re.search(r"at most some (\d+)%", str(caught[0].message))[1])
    assert abs(counted(pca, X) - stated) < 2
    assert stated < 60


@pytest.mark.parametrize(("off", "third"), [(0.0, 9.5), (2.0, 9.5 + 10 * 2**2)])
def test_a_direction_that_was_cut_holds_no_more_than_all_that_was_cut(off, third):
    first = Subspace(np.eye(2, 3), [4.0, 2.0], np.zeros(3), 10, 20.5)  # cut .5, the last kept is 4
    second = Subspace(np.eye(3)[[2, 0]], [3.0, 1.0], [0, 0, off], 10, 10.0)
    merged = Subspace(np.eye(3), [5.0, 4.0, 1.0], np.zeros(3), 20, 42.0)
    # 17, 4 and 9.5 along the axes, and what means add
    assert_allclose(share_explained([first, second], merged, 2), (17 + 4) / (17 + third))
