"""What `MergeStrategy.merge` does for a strategy of `_merge` alone; and merges within sites.

The tree of Grammenos et al. (2019), Algorithm 1, against a recursion with numpy's SVD.

Columns are samples in the oracle, as in the paper.
"""

import numpy as np
import pytest
from client_helpers import rows_of_clients
from helpers import as_dense, unlike_sites
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn.decomposition import PCA

from fedpca_sklearn import (
    AnalyzeGauss,
    ConditionalFill,
    ContributionBounds,
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


class Wrong(MergeStrategy):
    """A strategy that returns what is no summary of the columns."""

    def __init__(self, found=None):
        self.found = found

    def _merge(self, parts, n_components, kept):
        return self.found


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


class FirstOnly(MergeStrategy):
    """The first summary, built anew, in the place of all."""

    def _merge(self, parts, n_components, kept):
        s = parts[0]
        whole = Subspace(s.components, s.singular_values, s.mean, s.n_samples, s.scatter)
        return whole.truncate(n_components)


@pytest.fixture(autouse=True)
def no_calls():
    CALLS.clear()


def summaries(n=7, d=300, k=6, dtype=np.float64):
    X = make_power_law(700, d, alpha=1.0, random_state=0).astype(dtype)
    return X, [Subspace.from_rows(rows, k) for rows in np.array_split(X, n)]


@pytest.mark.parametrize("strategy", [Plain(), PlainTree(2), PlainTree(3)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_parts_hold_rows_in_double_precision(strategy, dtype):
    _, parts = summaries(dtype=dtype)
    empty = Subspace.empty(300, dtype=dtype)
    given_ = [empty, *parts[:3], empty, empty, *parts[3:]]
    result = strategy.merge(given_, 4, between=5)
    held = [part for of_call, _, _ in CALLS for part in of_call]
    assert all(of_call for of_call, _, _ in CALLS)
    assert all(part.n_samples > 0 for part in held)
    assert {part.components.dtype for part in held} == {np.dtype(np.float64)}
    want = SubspaceMerge(fan_in=strategy.fan_in).merge(given_, 4, between=5)
    assert result.to_bytes() == want.to_bytes()


@pytest.mark.parametrize("strategy", [Plain(), PlainTree(), SubspaceMerge(), ProjectionAverage()])
def test_the_result_has_the_names_of_the_columns_also_without_rows(strategy):
    _, parts = summaries(d=9)
    names, empty = [f"column {i}" for i in range(9)], Subspace.empty(9, dtype=np.float32)
    for some in (parts, [empty] * 3):
        CALLS.clear()
        result = strategy.merge([some[0], some[1]._named(names), some[2]], 2)
        assert list(result.feature_names) == names
    assert not CALLS
    assert (result.n_components, result.n_features, result.n_samples) == (0, 9, 0)
    assert result.components.dtype == np.float32


class Weighted(MergeStrategy):
    """Rows of each summary by a public number, which its size stands for; and what it has seen."""

    def __init__(self, weights, fan_in=None):
        self.weights, self.fan_in = weights, fan_in

    def _merge(self, parts, n_components, kept):
        self.sizes_ = {i: part.n_samples for i, part in enumerate(parts)}
        self.n_iter_ = 1
        known = [p.decay(self.weights[round(p.n_samples)]) for p in parts]
        return merge_subspaces(known, n_components)


@pytest.mark.parametrize("fan_in", [None, 2])
def test_all_of_a_parameter_tells_merges_apart_and_findings_have_labels(fan_in):
    X, owners = make_power_law(1000, 5, random_state=0), np.repeat([*"abcd"], [190, 210, 290, 310])
    before, after = np.ones(2000), np.ones(2000)
    after[210] = 1 + 1e-9
    after[290] = 3.0  # amid so many numbers that numpy writes "..." for them
    pca = FederatedPCA(2, merge=Weighted(before, fan_in)).partial_fit(X[:-10], clients=owners[:-10])
    pca.set_params(merge=Weighted(after, fan_in)).partial_fit(X[-10:], clients=owners[-10:])
    assert_allclose(pca.subspace_.n_samples, 1000 + 2 * 290 + 210e-9, rtol=1e-14)
    if fan_in is None:
        assert pca.sizes_ == dict(zip("abcd", [190, 210, 290, 310], strict=True))
        assert pca.n_iter_ == 1
    else:  # the nodes of the last merge are no clients
        assert not hasattr(pca, "sizes_")


@pytest.mark.parametrize("strategy", [Plain(), PlainTree(), FirstOnly(), SubspaceMerge()])
def test_the_result_has_the_sites_of_all_and_states_the_weakest_privacy(strategy):
    _, parts = summaries(n=3, d=9)
    stated = [(float(i + 1), 1e-5 / (i + 1), 2.0, "AnalyzeGauss", "client") for i in range(3)]
    whose = [p._replace(site=f"s{i}", privacy=stated[i]) for i, p in enumerate(parts)]
    result = strategy.merge(whose, 2)
    assert result.sites == ("s0", "s1", "s2")
    assert result.privacy == (3.0, 1e-5, 2.0, "AnalyzeGauss", "client")
    with pytest.raises(ValueError, match="rows would be counted twice"):
        merge_subspaces([result, whose[1]])
    assert strategy.merge([whose[0], parts[1]._replace(site="s1")], 2).privacy is None


@pytest.mark.parametrize(
    "alike",
    [
        {"n_refinements": 1},
        {"missing": ConditionalFill()},
        {"mechanism": AnalyzeGauss(1.0, 1e-5, 1.0, trust="sum")},
    ],
)
def test_what_makes_sites_alike_is_refused_unless_a_strategy_says_that_it_takes_all(alike):
    X = make_power_law(60, 5, alpha=1.0, random_state=0)
    with pytest.raises(ValueError, match=r"merge=FirstOnly\(\)|FirstOnly\(\) compares"):
        FederatedPCA(2, merge=FirstOnly(), **alike).fit(X)


def test_what_is_kept_is_what_the_strategy_says_or_the_caller():
    _, parts = summaries()
    PlainTree(fan_in=4).merge(parts, 2, between=5)
    PlainTree(fan_in=4).merge(parts, 2)
    kept = [(n, kept) for _, n, kept in CALLS]
    assert kept == [(5, 5), (5, 5), (2, 5), (2, 2), (2, 2), (2, 2)]
    X, parts = summaries(k=None)
    found = ByHalves().merge(parts, 5)
    assert found.n_components == 5
    want = PCA(5, svd_solver="full").fit(X)
    assert subspace_distance(found.components[:1], want.components_[:1]) < 0.05
    assert FederatedPCA.from_subspaces(parts, 5, merge=ByHalves()).subspace_.n_components == 20


E, X3 = Subspace.empty(3), Subspace.from_rows(np.eye(3))
BAD = [
    (ValueError, ([],), {}, "at least one Subspace"),
    (TypeError, (["a"],), {}, r"got str as subspaces\[0\]"),
    (ValueError, ([E, Subspace.empty(4)],), {}, r"subspaces\[1\] has 4 features.* 3"),
    (ValueError, ([E, Subspace.empty(3, centered=False)],), {}, "all centred or all not"),
    (ValueError, ([E], -1), {}, "n_components must be .*got -1"),
    (ValueError, ([X3], 1), {"between": 1.5}, "between must be .*got 1.5"),
]


@pytest.mark.parametrize("strategy", [PlainTree(), ProjectionAverage()])
def test_bad_arguments_do_not_reach_the_strategy(strategy):
    for kind, arguments, more, words in BAD:
        with pytest.raises(kind, match=words):
            strategy.merge(*arguments, **more)
    assert not CALLS


# -------------------------------------------------------------------- within sites


def minus_site_means(X, clients, weight=None):
    """Rows minus the (weighted) mean of those with the same label."""
    X = as_dense(X)
    weight = np.ones(len(X)) if weight is None else weight
    out = np.empty_like(X)
    for label in set(clients.tolist()):
        at = clients == label
        mean = weight[at] @ X[at] / weight[at].sum() if weight[at].any() else 0.0
        out[at] = X[at] - mean
    return out


def assert_is_pca_within(pca, X, clients, k, weight=None, tol=1e-10):
    rows = minus_site_means(X, clients, weight)
    weight = np.ones(len(rows)) if weight is None else weight
    _, s, V = np.linalg.svd(np.sqrt(weight)[:, None] * rows, full_matrices=False)
    scale, s = max(s[0], 1.0), np.append(s, np.zeros(k + 1))  # of rows that a weight repeats
    assert_allclose(pca.singular_values_[: len(s)], s[:k], atol=tol * scale)
    gap = s[: k + 1] > 1e-6 * scale
    gap = gap[:-1].all() and (len(s) <= k or s[k - 1] - s[k] > 1e-3 * scale)
    if gap and s[k - 1] > 1e-6 * scale:
        angle = np.linalg.norm(pca.components_ - pca.components_ @ V[:k].T @ V[:k], 2)
        assert angle < 1e-9
    assert_allclose(pca.mean_, weight @ as_dense(X) / weight.sum(), rtol=1e-9, atol=1e-9)
    assert_allclose(pca.subspace_.scatter, (s**2).sum(), rtol=1e-9, atol=tol * scale**2)
    columns = weight @ rows**2
    assert_allclose(pca.subspace_.column_scatter, columns, rtol=1e-9, atol=tol * scale**2)


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(rows_of_clients(5, ["none", "zeros"], [0.0, 1e6]), st.sampled_from([None, 2, 3]))
def test_it_is_the_pca_of_rows_minus_their_sites_mean(drawn, fan_in):
    X, clients = drawn.X, drawn.clients
    weight = np.ones(len(X)) if drawn.weight is None else drawn.weight
    pca = FederatedPCA(3, merge=SubspaceMerge(center="site", fan_in=fan_in))
    for rows, options, *_ in drawn.calls():
        pca.partial_fit(rows, **options)
    tol = 1e-9 if drawn.mean else 1e-10
    assert_is_pca_within(pca, X, clients, len(pca.components_), weight, tol)
    left = clients != pca.clients_[0]
    if weight[left].sum() > 3:
        pca.remove(pca.clients_[0])
        k = len(pca.components_)
        assert_is_pca_within(pca, X[left], clients[left], k, weight[left], tol)


def test_digits_of_means_below_those_of_a_float_are_no_scatter_within_sites():
    X, merge = np.random.default_rng(0).integers(-9, 10, (60, 4)), SubspaceMerge(center="site")
    near, far = (
        merge.merge([Subspace.from_rows(part) for part in np.split(X + mean, 3)])
        for mean in (0.0, 2.0**50)
    )
    assert_allclose(far.singular_values, near.singular_values, rtol=1e-9)


@pytest.fixture(scope="module")
def sites():
    return unlike_sites(np.random.default_rng(0), [40, 1, 70, 25], 8)


# -------------------------------------------------------------------------- the tree of the paper

RANK = 5


def svd(M, r):
    U, s, _ = np.linalg.svd(M, full_matrices=False)
    return U[:, :r], s[:r]


def merge(parts, r, lam=1.0):
    """Eq. 1, with lambda on all that came before each part."""
    last = len(parts) - 1
    return svd(np.hstack([lam ** (last - i) * U * s for i, (U, s) in enumerate(parts)]), r)


def tree(nodes, r, fan_in=2, lam=1.0):
    """Consecutive nodes become one, cut to r, until one is left."""
    while len(nodes) > 1:
        groups = [nodes[i : i + fan_in] for i in range(0, len(nodes), fan_in)]
        nodes = [merge(group, r, lam) if len(group) > 1 else group[0] for group in groups]
    return nodes[0]


def spca(Y, r, b):
    """SPCA, Algorithm 3 without its rule for the rank: SVD_r of the estimate and the next block."""
    U, s = np.zeros((len(Y), 0)), np.zeros(0)
    for start in range(0, Y.shape[1], b):
        U, s = svd(np.hstack([U * s, Y[:, start : start + b]]), r)
    return U, s


def clients(n, d=400, rows=60):
    X = make_power_law(n * rows, d, alpha=0.5, random_state=0)
    return X, np.repeat(np.arange(n), rows), [part.T for part in np.split(X, n)]


def assert_same(subspace, U, s):
    assert_allclose(subspace.singular_values, s, rtol=1e-12)
    assert subspace_distance(subspace.components, U.T) < 1e-12


@pytest.mark.parametrize("lam", [1.0, 0.7])
@pytest.mark.parametrize(("n", "fan_in"), [(8, 2), (7, 2), (3, 2), (9, 3), (10, 4), (4, None)])
def test_a_tree_that_truncates_is_the_recursion(n, fan_in, lam):
    X, owners, parts = clients(n)
    U, s = tree([svd(part, RANK) for part in parts], RANK, fan_in or n, lam)
    strategy = SubspaceMerge("svd", fan_in=fan_in, truncate=True, forgetting_factor=lam)
    summaries = [Subspace.from_rows(part.T, center=False) for part in parts]
    assert_same(strategy.merge(summaries, RANK), U, s)
    local = StreamingPCA(RANK, oversampling=0, center=False, block_size=60)
    pca = FederatedPCA(RANK, estimator=local, merge=strategy).fit(X, clients=owners)
    assert_same(pca.subspace_, U, s)
    assert pca.subspace_.n_components == RANK
    if fan_in is None:  # the last client counts in full
        assert_allclose(pca.subspace_.n_samples, 60 * np.sum(lam ** (2.0 * np.arange(n))))
        assert pca.n_samples_seen_ == 240


@pytest.mark.parametrize("inner", [RANK, None])
@pytest.mark.parametrize("d", [40, 400])
def test_clients_that_learn_in_blocks_are_algorithm_1(inner, d):
    """`n_components=None` inside is the outer one: every estimate of Algorithm 1 has r columns."""
    X, owners, parts = clients(8, d)
    U, s = tree([spca(part, RANK, 20) for part in parts], RANK)
    local = StreamingPCA(inner, oversampling=0, block_size=20, center=False)
    merge = SubspaceMerge(fan_in=2, truncate=True)
    pca = FederatedPCA(RANK, estimator=local, merge=merge)
    assert_same(pca.fit(X, clients=owners).subspace_, U, s)
    assert local.n_components is inner
    assert {model.n_components for model in pca.estimators_.values()} == {RANK}
    model = FederatedPCA(RANK, estimator=local, merge=merge)
    for i in range(8):
        for rows in np.split(parts[i].T, 3):  # blocks of a client that come one by one
            model.partial_fit(rows, clients=np.full(20, i))
    assert_same(model.subspace_, U, s)


def test_nothing_is_cut_where_no_rank_is_wanted():
    X, owners, _ = clients(4, d=40)
    local, merge = StreamingPCA(center=False), SubspaceMerge(fan_in=2, truncate=True)
    pca = FederatedPCA(estimator=local, merge=merge).fit(X, clients=owners)
    assert_allclose(pca.singular_values_, np.linalg.svd(X, compute_uv=False), rtol=1e-12)


def test_clients_whose_rank_has_grown_send_what_every_node_keeps():
    """SAPCA at the clients of Algorithm 1: ranks differ, and the text does not say who cuts."""
    X, owners, _ = clients(5)
    rule = ContributionBounds(0.05, 0.15, growth="canonical")
    local = StreamingPCA(RANK, rank_rule=rule, oversampling=0, center=False, block_size=20)
    strategy = SubspaceMerge("svd", fan_in=2, truncate=True)
    pca = FederatedPCA(RANK, estimator=local, merge=strategy).fit(X, clients=owners)
    sent = [pca.estimators_[i] for i in range(5)]
    assert min(model.n_components_ for model in sent) > RANK
    found = [(model.components_.T, model.singular_values_) for model in sent]
    assert_same(pca.subspace_, *tree([(U[:, :RANK], s[:RANK]) for U, s in found], RANK))
    assert (tree(found, RANK)[1] > pca.singular_values_).all()


@pytest.mark.parametrize("fan_in", [2, 3, 5])
def test_a_fan_in_makes_a_tree_of_any_strategy(fan_in):
    X = make_power_law(700, 300, alpha=1.0, random_state=0)
    local = StreamingPCA(6, oversampling=2)
    models = [
        FederatedPCA(2, estimator=local, merge=merge, n_clients=11).fit(X)
        for merge in (PlainTree(fan_in), SubspaceMerge(fan_in=fan_in))
    ]
    ours, theirs = (model.communication_ for model in models)
    for name in ("rounds", "messages_up"):
        assert ours.totals[name] == theirs.totals[name]
    CALLS.clear()
    models[0].partial_fit(X[:50], clients=[3] * 50)
    depth = models[0].communication_.rounds - ours.rounds
    assert len(CALLS) <= depth, "only the path of the client that changed"


@pytest.mark.parametrize(("found", "got"), [(None, "None"), (Subspace.empty(3), "Subspace")])
def test_a_merge_that_is_no_summary_of_the_columns_is_refused(found, got):
    X = np.random.default_rng(0).standard_normal((40, 4))
    with pytest.raises(TypeError, match=rf"Wrong must return a Subspace of 4 columns, got {got}"):
        FederatedPCA(2, merge=Wrong(found), n_clients=2).fit(X)
