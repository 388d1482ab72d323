"""What `MergeStrategy.merge` does for a strategy that writes `_merge` alone."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.decomposition import PCA

from fedpca_sklearn import (
    AnalyzeGauss,
    FederatedPCA,
    MergeStrategy,
    ProjectionAverage,
    StreamingPCA,
    Subspace,
    SubspaceMerge,
    make_power_law,
    merge_subspaces,
    subspace_distance,
)

CALLS = []


class Plain(MergeStrategy):
    """The merge of the library, and a list of what it was asked for."""

    def _merge(self, parts, n_components, kept):
        CALLS.append((parts, n_components, kept))
        return merge_subspaces(parts, n_components)


class PlainTree(Plain):
    """The same, in a tree."""

    def __init__(self, fan_in=2):
        self.fan_in = fan_in


class ByHalves(MergeStrategy):
    """Merges in two steps of its own."""

    def directions_kept(self, subspaces, n_components):
        return 4 * n_components

    def _merge(self, parts, n_components, kept):
        halves = [parts[::2], parts[1::2] or parts[:1]]
        return merge_subspaces([merge_subspaces(half, kept) for half in halves], n_components)


@pytest.fixture(autouse=True)
def no_calls():
    CALLS.clear()


def sites(n=7, d=300, k=6, dtype=np.float64):
    X = make_power_law(700, d, alpha=1.0, random_state=0).astype(dtype)
    return X, [Subspace.from_rows(rows, k) for rows in np.array_split(X, n)]


@pytest.mark.parametrize("strategy", [Plain(), PlainTree(2), PlainTree(3)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_parts_hold_rows_in_double_precision(strategy, dtype):
    _, parts = sites(dtype=dtype)
    empty = Subspace.empty(300, dtype=dtype)
    given_ = [empty, *parts[:3], empty, empty, *parts[3:]]
    result = strategy.merge(given_, 4, between=5)
    assert CALLS
    for given, _, _ in CALLS:
        assert given
        assert all(part.n_samples > 0 for part in given)
        assert {part.components.dtype for part in given} == {np.dtype(np.float64)}
    assert result.components.dtype == dtype
    assert_allclose(result.n_samples, 700)
    want = SubspaceMerge(fan_in=strategy.fan_in).merge(given_, 4, between=5)
    assert result.to_bytes() == want.to_bytes()


@pytest.mark.parametrize("strategy", [Plain(), PlainTree(), ProjectionAverage()])
def test_summaries_without_rows_are_merged_without_the_strategy(strategy):
    names = [f"column {i}" for i in range(9)]
    empty = Subspace.empty(9, dtype=np.float32)
    result = strategy.merge([empty, empty._named(names), empty], 2)
    assert not CALLS
    assert (result.n_components, result.n_features, result.n_samples) == (0, 9, 0)
    assert result.components.dtype == np.float32
    assert list(result.feature_names) == names


@pytest.mark.parametrize("strategy", [Plain(), PlainTree(), SubspaceMerge(), ProjectionAverage()])
def test_the_result_has_the_names_of_the_columns(strategy):
    _, parts = sites(d=9)
    names = [f"column {i}" for i in range(9)]
    parts[2] = parts[2]._named(names)
    assert list(strategy.merge(parts, 2).feature_names) == names


@pytest.mark.parametrize("fan_in", [2, 3, 5])
def test_a_fan_in_makes_a_tree_of_any_strategy(fan_in):
    X = make_power_law(700, 300, alpha=1.0, random_state=0)
    local = StreamingPCA(6, oversampling=2)
    models = [
        FederatedPCA(2, estimator=local, merge=merge, n_clients=11).fit(X)
        for merge in (PlainTree(fan_in), SubspaceMerge(fan_in=fan_in))
    ]
    ours, theirs = (model.communication_ for model in models)
    columns = "rounds", "messages_up"
    assert [ours.totals[c] for c in columns] == [theirs.totals[c] for c in columns]
    CALLS.clear()
    models[0].partial_fit(X[:50], clients=[3] * 50)
    depth = models[0].communication_.rounds - ours.rounds
    assert len(CALLS) <= depth, "only the path of the client that changed"


def test_nodes_are_made_anew_where_the_strategy_is_another():
    """The Gram matrix loses the singular values below 1e-7 of the largest, QR does not."""
    X = np.random.default_rng(0).standard_normal((400, 8)) * np.geomspace(1, 1e-10, 8)
    model = FederatedPCA(merge=SubspaceMerge("gram", fan_in=2), n_clients=8).fit(X)
    model.set_params(merge__method="qr").partial_fit(X[:50], clients=[0] * 50)
    rows = np.concatenate([X, X[:50]])
    s = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)
    assert_allclose(model.singular_values_, s, rtol=1e-4)


def test_what_is_kept_is_what_the_strategy_says_or_the_caller():
    _, parts = sites()
    strategy = PlainTree(fan_in=4)
    strategy.merge(parts, 2, between=5)
    assert [(n, kept) for _, n, kept in CALLS] == [(5, 5), (5, 5), (2, 5)]
    CALLS.clear()
    strategy.merge(parts, 2)
    assert [(n, kept) for _, n, kept in CALLS] == [(2, 2), (2, 2), (2, 2)]


def test_a_strategy_may_merge_in_steps_of_its_own():
    X, parts = sites(k=None)
    found = ByHalves().merge(parts, 5)
    assert found.n_components == 5
    want = PCA(5, svd_solver="full").fit(X)
    assert subspace_distance(found.components[:1], want.components_[:1]) < 0.05
    assert FederatedPCA.from_subspaces(parts, 5, merge=ByHalves()).subspace_.n_components == 20


@pytest.mark.parametrize("strategy", [Plain(), PlainTree(), ByHalves()])
def test_the_site_that_is_too_large_is_named(strategy):
    _, parts = sites(d=4, k=2)
    parts[4] = parts[4]._replace(mean=np.full(4, 1e160))
    with pytest.raises(ValueError, match=r"^subspaces\[4\]: .*too large to merge"):
        strategy.merge(parts, 1)
    with pytest.raises(ValueError, match=r"^Client 4: .*too large to merge"):
        FederatedPCA.from_subspaces(parts, 1, merge=strategy)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (([],), "at least one Subspace"),
        ((["a"],), r"got str as subspaces\[0\]"),
        (([Subspace.empty(3), Subspace.empty(4)],), r"subspaces\[1\] has 4 features"),
        (([Subspace.empty(3)], -1), "n_components must be .*got -1"),
    ],
)
def test_bad_arguments_do_not_reach_the_strategy(arguments, match):
    with pytest.raises((ValueError, TypeError), match=match):
        Plain().merge(*arguments)
    assert not CALLS


@pytest.mark.parametrize("between", [-1, 1.5, "all"])
def test_a_bad_between_is_named(between):
    _, parts = sites(d=4, k=2)
    with pytest.raises(ValueError, match=rf"between must be .*got {between!r}"):
        PlainTree().merge(parts, 1, between=between)


def test_a_share_is_refused_by_the_average_before_anything_is_spent():
    mechanism = AnalyzeGauss(1.0, 1e-5, 1.0, n_releases=2)
    model = FederatedPCA(0.9, merge=ProjectionAverage(3), mechanism=mechanism, random_state=0)
    X = np.random.default_rng(0).standard_normal((40, 5))
    with pytest.raises(ValueError, match=r"n_components=0\.9 must be an integer or None"):
        model.partial_fit(X)
    assert not hasattr(model, "privacy_spent_")
