"""RobustMerge: sites that are wrong are left out and named, honest ones are merged as before."""

import numpy as np
import pytest
from helpers import random_basis, sine
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_digits

from fedpca_sklearn import (
    AnalyzeGauss,
    FederatedPCA,
    NoiseAwareMerge,
    RobustMerge,
    SiteEvidence,
    Subspace,
    SubspaceMerge,
    SuspectsDisplay,
)

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


def test_without_liars_it_is_the_plain_merge():
    for seed in range(5):
        parts, merge = summaries(honest(seed)), RobustMerge()
        found, plain = merge.merge(parts, RANK), SubspaceMerge().merge(parts, RANK)
        assert merge.suspects_ == {}
        assert_array_equal(found.components, plain.components)
        assert_array_equal(found.singular_values, plain.singular_values)


def test_unlike_sites_are_no_liars():
    X, y = load_digits(return_X_y=True)
    for k in (2, 5, 10):
        pca = FederatedPCA(k, merge=RobustMerge()).fit(X, clients=y)
        assert pca.suspects_ == {}
        assert_allclose(pca.components_, FederatedPCA(k).fit(X, clients=y).components_, atol=1e-9)


def test_the_estimator_names_clients():
    rows = honest(dtype=np.float32)
    rows[4] = 100 * rows[4]
    X, labels = np.concatenate(rows), np.repeat([f"site {i:02d}" for i in range(SITES)], 60)
    pca = FederatedPCA(RANK, merge=RobustMerge()).fit(X, clients=labels)
    assert list(pca.suspects_) == ["site 04"]
    assert set(pca.evidence_) == set(labels)
    assert all(isinstance(e, SiteEvidence) for e in pca.evidence_.values())
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


def test_large_sites_count_what_they_have_unless_others_have_far_less():
    sizes = [60, 60, 60, 60, 60, 120, 240, 480]
    parts = [Subspace.from_rows(honest(i, n=n)[0]) for i, n in enumerate(sizes)]
    merge = RobustMerge()
    assert merge.merge(parts, RANK).n_samples == sum(sizes)
    claim = parts[0].decay(11)
    merge.merge([*parts[:5], claim], RANK)
    assert list(merge.suspects_) == [5]
    assert merge.merge([*parts[:5], claim], RANK).n_samples == 6 * 60


@pytest.mark.parametrize("factor", [1e-100, 1e100])
def test_units_and_order_do_not_matter(factor):
    parts = attacked("rotated", {0, 5})
    order = np.random.default_rng(0).permutation(SITES)
    scaled = [
        Subspace(s.components, factor * s.singular_values, factor * s.mean, s.n_samples,
                 factor**2 * s.scatter)
        for s in (parts[i] for i in order)
    ]  # fmt: skip
    merge, other = RobustMerge(), RobustMerge()
    a, b = merge.merge(parts, RANK), other.merge(scaled, RANK)
    assert sine(a.components, b.components) < 1e-9
    assert {int(order[i]) for i in other.suspects_} == {0, 5} == set(merge.suspects_)


def test_at_most_as_many_are_left_out_as_may_be_bad():
    parts = attacked("rotated", {0, 2, 3})
    for max_bad, n in ((0, 11), (1, 10), (3, 8), (5, 8)):
        assert RobustMerge(max_bad=max_bad).merge(parts, RANK).n_samples == 60 * n
    with pytest.raises(ValueError, match="max_bad=6 must be fewer than half of the sites, of wh"):
        RobustMerge(max_bad=6).merge(parts, RANK)
    with pytest.raises(ValueError, match="must be an integer with RobustMerge"):
        FederatedPCA(0.9, merge=RobustMerge()).fit(honest()[0])
    with pytest.raises(TypeError, match="fan_in"):
        RobustMerge(fan_in=2)


@pytest.mark.parametrize("merge", [RobustMerge(), NoiseAwareMerge()], ids=str)
def test_sums_that_hide_sites_refuse_what_compares_them(merge):
    X, before = np.concatenate(honest()), dict(vars(merge))
    hidden = AnalyzeGauss(1.0, 1e-3, row_norm=700.0, trust="sum")
    with pytest.raises(ValueError, match=r"trust='sum' hides the summaries.*Merge\(\) compares"):
        FederatedPCA(2, merge=merge, mechanism=hidden).fit(X)
    assert vars(merge) == before
    seen = AnalyzeGauss(float("inf"), 1e-3, row_norm=1e9)
    assert len(FederatedPCA(2, merge=merge, mechanism=seen, n_clients=5).fit(X).components_) == 2


def test_the_display_shows_every_site_and_marks_suspects():
    rows = honest()
    rows[4] = 100 * rows[4]  # and its mean
    labels = np.repeat(np.arange(SITES), 60)
    pca = FederatedPCA(RANK, merge=RobustMerge()).fit(np.concatenate(rows), clients=labels)
    display = SuspectsDisplay.from_estimator(pca)
    assert_array_equal(display.line_.get_ydata(), [max(e) for e in pca.evidence_.values()])
    assert [t.get_text() for t in display.ax_.get_xticklabels()] == [str(i) for i in range(SITES)]
    assert [t.get_text() for t in display.texts_] == ["variance, mean"]
    with pytest.raises(TypeError, match="must have evidence_"):
        SuspectsDisplay.from_estimator(FederatedPCA(2).fit(rows[0]))


def test_directions_that_summaries_have_cut_make_no_honest_site_a_suspect():
    X = np.random.default_rng(0).standard_normal((8000, 300))
    X[:, :3] *= np.sqrt(1.5)
    pca = FederatedPCA(3, merge=RobustMerge(), n_clients=10).fit(X)
    assert pca.suspects_ == {}


def test_all_directions_explain_all_and_tell_nothing():
    X = np.random.default_rng(0).standard_normal((600, 5)) * [3, 2, 1, 1, 0.5]
    pca = FederatedPCA(5, merge=RobustMerge(), n_clients=10).fit(X)
    assert pca.suspects_ == {}
    assert max(abs(one.directions) for one in pca.evidence_.values()) < 1e-6
