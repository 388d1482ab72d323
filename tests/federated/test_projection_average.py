"""Averages of projections, over clients and over time, against explicit d x d matrices.

Most shards are built from known principal axes, so that the projection matrix of a client is known
without any decomposition: rows are ``mean + U diag(s) axes`` with orthonormal, centred columns U.
"""

import numpy as np
import pytest
from helpers import (
    assert_same_summary,
    floats_of,
    random_basis,
    sine,
    sine_of_orthonormal,
)
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from projection_helpers import (
    WEIGHTINGS,
    Shard,
    alike_shards,
    assert_leads,
    assert_moments,
    assert_orthonormal,
    assert_principal,
    each_weighting,
    eigenpairs,
    examples,
    labels,
    make_shard,
    make_shards,
    mean_of_projections,
    pooled,
    same_subspace,
    scatter_of,
    sizes_of_clients,
)

from fedpca_sklearn import (
    FederatedPCA,
    OnlineDistributedPCA,
    ProjectionAverage,
    StreamingPCA,
    Subspace,
    SubspaceMerge,
    excess_error,
    make_power_law,
)
from fedpca_sklearn.summary._projection_mean import ProjectionMean

# -------------------------------------------------------------------- oracles and data


def merged_scatter(shards, p):
    """Scatter matrix about the common mean of what the clients send with p directions each."""
    n = sum(shard.n for shard in shards)
    mean = sum(shard.n * shard.mean for shard in shards) / n
    between = sum(shard.n * np.outer(shard.mean - mean, shard.mean - mean) for shard in shards)
    return sum(shard.scatter_matrix(p) for shard in shards) + between


def rank_of(M):
    return int(np.sum(np.linalg.eigvalsh(M) > 1e-9))


# -------------------------------------------------------------------- average over clients


@examples
@given(
    sizes=sizes_of_clients,
    d=st.integers(2, 24),
    k=st.integers(1, 5),
    p=st.sampled_from([None, 1, 2, 4]),
    weighting=st.sampled_from(WEIGHTINGS),
    seed=st.integers(0, 2**20),
)
def test_components_lead_the_mean_of_the_projections(sizes, d, k, p, weighting, seed):
    shards = make_shards(np.random.default_rng(seed), sizes, d)
    k = min(k, d)
    model = FederatedPCA(k, merge=ProjectionAverage(p, weighting))
    pca = model.fit(pooled(shards), clients=labels(shards))
    M = mean_of_projections(shards, p or k, weighting)
    exist, n = min(k, rank_of(M)), sum(sizes)
    assert pca.components_.shape == (min(k, n), d)
    assert_orthonormal(pca.components_)
    assert_leads(pca.components_, M, k)
    if n > 1:
        assert_principal(pca, merged_scatter(shards, p or k), n, exist)
        assert_moments(pca, pooled(shards))
    assert_array_equal(pca.explained_variance_[exist:], 0)


@each_weighting
@pytest.mark.parametrize("p", [None, 2, 7])
@pytest.mark.parametrize("d", [12, 100, 256, 400])
def test_any_number_of_features_and_unequal_shards(d, p, weighting):
    rng = np.random.default_rng(3)
    shards = alike_shards(rng, [60, 9, 25, 40, 12], d)
    X, clients = pooled(shards), labels(shards)
    shuffle = rng.permutation(len(X))
    pca = FederatedPCA(3, merge=ProjectionAverage(p, weighting))
    pca.fit(X[shuffle], clients=clients[shuffle])
    M = mean_of_projections(shards, p or 3, weighting)
    assert_leads(pca.components_, M, 3)
    assert_principal(pca, merged_scatter(shards, p or 3), len(X))
    assert_moments(pca, X)
    assert_orthonormal(pca.components_)


def test_rows_and_equal_weights_differ_where_shards_do():
    rng = np.random.default_rng(4)
    a, b = random_basis(rng, 2, 10)
    shards = [
        make_shard(rng, 90, 10, axes=a[None]),
        *(make_shard(rng, 20, 10, axes=b[None]) for _ in range(3)),
    ]
    X, clients = pooled(shards), labels(shards)
    by_rows = FederatedPCA(1, merge=ProjectionAverage(weighting="rows")).fit(X, clients=clients)
    equal = FederatedPCA(1, merge=ProjectionAverage()).fit(X, clients=clients)
    assert sine(by_rows.components_, a[None]) <= 1e-9
    assert sine(equal.components_, b[None]) <= 1e-9


def honest_and(wrong):
    """Seven honest sites, and the components of all their rows; one more site may be anything."""
    X = make_power_law(8000, 50, alpha=1.0, random_state=0)
    sites = [Subspace.from_rows(X[i::8]) for i in range(1, 8)]
    return X, [*sites, wrong]


def noise_of_many_rows(n_samples):
    rng = np.random.default_rng(1)
    Q = np.linalg.qr(rng.standard_normal((50, 50)))[0]
    rows = rng.standard_normal((1000, 50)) * np.repeat([0.1, 10], [45, 5]) @ Q.T
    return Subspace.from_rows(rows)._replace(n_samples=n_samples)


@pytest.mark.parametrize("n_samples", [1e3, 1e9])
def test_a_site_that_claims_many_rows_does_not_decide(n_samples):
    X, sites = honest_and(noise_of_many_rows(n_samples))
    voted = FederatedPCA.from_subspaces(sites, 5, merge=ProjectionAverage())
    assert excess_error(X, voted.components_) < 1e-2
    by_rows = FederatedPCA.from_subspaces(sites, 5, merge=ProjectionAverage(weighting="rows"))
    assert (excess_error(X, by_rows.components_) > 0.5) == (n_samples == 1e9)


def test_votes_of_online_clients_do_not_depend_on_their_rows():
    X = make_power_law(4000, 50, alpha=1.0, random_state=0)
    rng = np.random.default_rng(1)
    Q = np.linalg.qr(rng.standard_normal((50, 50)))[0]
    noise = rng.standard_normal((20_000, 50)) * np.repeat([0.1, 10], [45, 5]) @ Q.T
    Z, clients = np.concatenate([X, noise]), np.repeat(np.arange(9), [500] * 8 + [20_000])
    assert excess_error(X, OnlineDistributedPCA(5).fit(Z, clients=clients).components_) < 2e-2
    by_rows = OnlineDistributedPCA(5, weighting="rows").fit(Z, clients=clients)
    assert excess_error(X, by_rows.components_) > 0.5


def test_a_wrong_mean_moves_scores_and_no_centring_guards_them():
    # what docs/promises.md says: only directions are guarded
    X = make_power_law(8000, 50, alpha=1.0, random_state=0)
    labels = np.arange(8000) % 8
    Z = X + np.where(labels == 0, 1e6, 0.0)[:, None]
    for center, moved in (True, True), (False, False):
        estimator = StreamingPCA(center=center)
        merged = FederatedPCA(5, estimator=estimator, merge=ProjectionAverage())
        honest = merged.fit(X, clients=labels).transform(X[1:2])
        scores = merged.fit(Z, clients=labels).transform(X[1:2])
        assert (np.linalg.norm(scores) > 1e4) == moved
        if not moved:
            assert_allclose(np.linalg.norm(scores), np.linalg.norm(honest), rtol=0.3)


def test_one_factor_of_a_site_is_cured_and_units_of_columns_are_not():
    X = make_power_law(8000, 50, alpha=1.0, random_state=0)
    half = np.arange(50) < 25
    for columns, cured in (np.ones(50), True), (half, False):
        sites = [
            Subspace.from_rows(X[i::8] * np.where(columns, 10.0 ** (i % 4), 1.0)) for i in range(8)
        ]
        pca = FederatedPCA.from_subspaces(sites, 5, merge=ProjectionAverage())
        assert (excess_error(X, pca.components_) < 1e-3) == cured


def test_clients_send_as_many_directions_as_asked_for():
    """Also where that is many more than the components, and there are many features."""
    rng = np.random.default_rng(5)
    d, p = 400, 30
    X = [rng.standard_normal((60, d)) * 0.97 ** np.arange(d) for _ in range(3)]
    pca = FederatedPCA(2, merge=ProjectionAverage(p), n_clients=3).fit(np.concatenate(X))
    assert pca.communication_.floats_up == 3 * floats_of(p, d)
    local = [np.linalg.svd(rows - rows.mean(axis=0))[2][:p] for rows in X]
    assert_leads(pca.components_, sum(V.T @ V for V in local) / 3, 2)


@each_weighting
def test_merge_averages_given_summaries(weighting):
    shards = make_shards(np.random.default_rng(6), [9, 30, 14], 15)
    sent = [shard.subspace for shard in shards]
    strategy = ProjectionAverage(3, weighting)
    before = [s.to_bytes() for s in sent]
    result = strategy.merge(sent, 2)
    assert isinstance(result, Subspace)
    assert result.n_components == 2
    assert_leads(result.components, mean_of_projections(shards, 3, weighting), 2)
    S = merged_scatter(shards, 3)
    C = result.components
    assert_allclose(C @ S @ C.T, np.diag(result.singular_values**2), atol=1e-9 * np.trace(S))
    assert_allclose(result.scatter, np.trace(merged_scatter(shards, None)), rtol=1e-12)
    assert [s.to_bytes() for s in sent] == before
    assert strategy.merge(sent).n_components == 3  # None: as many as are sent
    assert strategy.merge(sent, 3, between=1).to_bytes() == strategy.merge(sent, 3).to_bytes()
    assert ProjectionAverage(None, weighting).merge(sent).n_components == 12
    pca = FederatedPCA.from_subspaces(sent, 2, merge=strategy)
    assert_array_equal(pca.components_, C)


@each_weighting
def test_the_weight_of_a_summary_is_that_of_its_rows(weighting):
    shards = make_shards(np.random.default_rng(7), [9, 30, 14, 20], 15)
    weights = np.array([3.0, 0.5, 0.0, 1.0])
    parts = [s.subspace.decay(w * w) for s, w in zip(shards, weights, strict=True)]
    result = ProjectionAverage(3, weighting).merge(parts, 2)
    shares = weights**2 if weighting == "rows" else (weights > 0) * 1.0
    assert_leads(result.components, mean_of_projections(shards, 3, weighting, shares), 2)
    n = weights**2 @ [s.n for s in shards]
    mean = sum(w * w * s.n * s.mean for w, s in zip(weights, shards, strict=True)) / n
    assert_allclose(result.n_samples, n)
    assert_allclose(result.mean, mean, atol=1e-12)
    S = sum(
        w * w * (s.scatter_matrix(3) + s.n * np.outer(s.mean - mean, s.mean - mean))
        for w, s in zip(weights, shards, strict=True)
    )
    C = result.components
    assert_allclose(C @ S @ C.T, np.diag(result.singular_values**2), atol=1e-9 * np.trace(S))


@each_weighting
def test_clients_with_fewer_rows_send_what_they_have(weighting):
    shards = make_shards(np.random.default_rng(8), [2, 3, 1, 40, 4], 20)
    merge = ProjectionAverage(8, weighting)
    pca = FederatedPCA(3, merge=merge).fit(pooled(shards), clients=labels(shards))
    assert [len(s.axes) for s in shards] == [1, 2, 0, 12, 3]
    assert_leads(pca.components_, mean_of_projections(shards, 8, weighting), 3)
    assert_principal(pca, merged_scatter(shards, 8), 50)
    assert_moments(pca, pooled(shards))
    assert pca.communication_.floats_up == sum(floats_of(k, 20) for k in (1, 2, 0, 8, 3))


@pytest.mark.parametrize("d", [15, 400])
def test_one_client_gives_its_own_components(d):
    shard = make_shard(np.random.default_rng(9), 50, d, mean=3.0)
    pca = FederatedPCA(4, merge=ProjectionAverage(), n_clients=1).fit(shard.rows)
    assert sine(pca.components_, shard.axes[:4]) <= 1e-9
    assert_allclose(pca.singular_values_, shard.s[:4], rtol=1e-9)
    assert_moments(pca, shard.rows)


@each_weighting
@pytest.mark.parametrize("d", [15, 400])
def test_identical_clients_give_the_components_of_one(d, weighting):
    shard = make_shard(np.random.default_rng(10), 50, d, mean=3.0)
    X = np.concatenate([shard.rows] * 4)
    pca = FederatedPCA(4, merge=ProjectionAverage(weighting=weighting), n_clients=4).fit(X)
    assert sine(pca.components_, shard.axes[:4]) <= 1e-9
    assert_allclose(pca.singular_values_, 2 * shard.s[:4], rtol=1e-9)
    assert_moments(pca, X)


@each_weighting
def test_empty_summaries_change_nothing(weighting):
    shards = make_shards(np.random.default_rng(11), [20, 30], 9)
    strategy, empty = ProjectionAverage(3, weighting), Subspace.empty(9)
    a, b = (shard.subspace for shard in shards)
    want = strategy.merge([a, b], 2)
    for given_ in ([empty, a, b], [a, empty, empty, b], [a, b, empty]):
        assert strategy.merge(given_, 2).to_bytes() == want.to_bytes()


@each_weighting
@pytest.mark.parametrize("n_components", [2, None])
def test_only_empty_summaries_give_an_empty_one(weighting, n_components):
    shard = make_shard(np.random.default_rng(12), 20, 9)
    strategy = ProjectionAverage(3, weighting)
    for given_ in [
        [Subspace.empty(9)],
        [Subspace.empty(9)] * 3,
        [shard.subspace.decay(0.0)] * 2,
    ]:
        result = strategy.merge(given_, n_components)
        assert (result.n_components, result.n_features, result.n_samples) == (0, 9, 0)
        assert result.scatter == 0


def test_clients_of_one_row_each_have_no_directions():
    X = np.random.default_rng(13).standard_normal((6, 4)) + 2
    pca = FederatedPCA(2, merge=ProjectionAverage()).fit(X, clients=np.arange(6))
    assert_orthonormal(pca.components_)
    assert_array_equal(pca.explained_variance_, 0)
    assert_moments(pca, X)


def test_a_fraction_of_variance_is_refused():
    X = np.random.default_rng(14).standard_normal((30, 4))
    pca = FederatedPCA(0.9, merge=ProjectionAverage())
    with pytest.raises(ValueError, match=r"n_components=0\.9 must be an integer or None"):
        pca.fit(X)
    assert not hasattr(pca, "components_")
    with pytest.raises(ValueError, match=r"n_components=0\.5 must be an integer or None"):
        ProjectionAverage().merge([Subspace.from_rows(X)], 0.5)


@pytest.mark.parametrize(
    ("subspaces", "message"),
    [
        ([], "at least one"),
        (["a"], "must be Subspace"),
        ([Subspace.empty(3), Subspace.empty(4)], "4 features"),
    ],
)
def test_bad_summaries_are_refused_by_the_average(subspaces, message):
    with pytest.raises((ValueError, TypeError), match=message):
        ProjectionAverage().merge(subspaces, 1)


@pytest.mark.parametrize("d", [15, 400])
@pytest.mark.parametrize("factor", [1e6, 1e-6])
def test_scale_of_a_client_does_not_matter_for_the_directions(d, factor):
    rng = np.random.default_rng(17)
    shards = alike_shards(rng, [40, 30, 20], d)
    X, clients = pooled(shards), labels(shards)
    want = FederatedPCA(3, merge=ProjectionAverage(4)).fit(X, clients=clients)
    for client in range(3):
        Y = np.where((clients == client)[:, None], factor * X, X)
        pca = FederatedPCA(3, merge=ProjectionAverage(4)).fit(Y, clients=clients)
        assert same_subspace(pca, want)
        assert_moments(pca, Y)


def test_means_of_clients_do_not_matter_for_the_directions():
    rng = np.random.default_rng(18)
    shards = alike_shards(rng, [40, 30, 20], 15)
    X, clients = pooled(shards), labels(shards)
    want = FederatedPCA(3, merge=ProjectionAverage(4)).fit(X, clients=clients)
    Y = X + 100 * rng.standard_normal((3, 15))[clients]
    pca = FederatedPCA(3, merge=ProjectionAverage(4)).fit(Y, clients=clients)
    assert same_subspace(pca, want)
    assert_principal(pca, sum(s.scatter_matrix(4) for s in shards) + between(Y, clients), len(Y))


def between(X, clients):
    _, mean = scatter_of(X)
    shifts = np.array([X[clients == c].mean(axis=0) - mean for c in clients])
    return shifts.T @ shifts


@pytest.mark.parametrize("p", [None, 5])
@pytest.mark.parametrize("d", [15, 400])
def test_the_log_counts_what_is_sent(d, p):
    shards = make_shards(np.random.default_rng(19), [30, 20, 40], d)
    pca = FederatedPCA(3, merge=ProjectionAverage(p)).fit(pooled(shards), clients=labels(shards))
    log, k = pca.communication_, p or 3
    assert log.rounds == 1
    assert log.floats_up == 3 * floats_of(k, d)
    assert log.bytes_up == 3 * (8 * (floats_of(k, d) - 2) + 52)
    assert log.floats_down == log.bytes_down == 0
    assert log.table[0]["messages_up"] == 3
    assert log.floats_busiest == 3 * floats_of(k, d)


@each_weighting
def test_clients_that_did_not_change_send_nothing_again(weighting):
    rng = np.random.default_rng(20)
    shards = make_shards(rng, [30, 20, 40, 25], 15)
    pca = FederatedPCA(3, merge=ProjectionAverage(2, weighting))
    pca.fit(pooled(shards[:2]), clients=labels(shards[:2]))
    for i, n_messages in [(2, 1), (3, 1)]:
        pca.partial_fit(shards[i].rows, clients=[i] * shards[i].n)
        row = pca.communication_.table[-1]
        assert (row["messages_up"], row["floats_up"]) == (n_messages, floats_of(2, 15))
    assert_leads(pca.components_, mean_of_projections(shards, 2, weighting), 3)
    assert_principal(pca, merged_scatter(shards, 2), 115)
    assert_moments(pca, pooled(shards))
    # a client that goes on sends anew, and its projection is that of all its rows
    more = make_shard(rng, 35, 15, mean=-2.0)
    pca.partial_fit(more.rows, clients=[1] * 35)
    assert pca.communication_.table[-1]["floats_up"] == floats_of(2, 15)
    _, _, axes = np.linalg.svd(scatter_of(np.concatenate([shards[1].rows, more.rows]))[0])
    own = Shard(np.concatenate([shards[1].rows, more.rows]), None, axes, None)
    M = mean_of_projections([shards[0], own, *shards[2:]], 2, weighting)
    assert_leads(pca.components_, M, 3)


@pytest.mark.parametrize(
    ("before", "after", "p"),
    [
        ({"merge__projection_dim": 2}, {"merge__projection_dim": 5}, 5),
        ({"merge__projection_dim": 5}, {"merge__projection_dim": 2}, 2),
        ({"n_components": 1}, {"n_components": 3}, 3),
    ],
)
def test_a_changed_parameter_holds_for_all_clients(before, after, p):
    shards = alike_shards(np.random.default_rng(21), [30, 20, 40], 15)
    pca = FederatedPCA(3, estimator=StreamingPCA(), merge=ProjectionAverage())
    pca.set_params(**before).fit(pooled(shards[:2]), clients=labels(shards[:2]))
    pca.set_params(**after).partial_fit(shards[2].rows, clients=[2] * 40)
    assert pca.n_components_ == 3
    assert_leads(pca.components_, mean_of_projections(shards, p), 3)
    assert_principal(pca, merged_scatter(shards, p), 90)


@pytest.mark.parametrize("first", [ProjectionAverage(), None, SubspaceMerge(fan_in=2)])
@pytest.mark.parametrize("then", [ProjectionAverage(), None, SubspaceMerge(fan_in=2)])
def test_the_merge_strategy_may_change_between_calls(first, then):
    shards = alike_shards(np.random.default_rng(22), [30, 20, 40, 35], 15)
    pca = FederatedPCA(3, merge=first).fit(pooled(shards[:3]), clients=labels(shards[:3]))
    pca.set_params(merge=then).partial_fit(shards[3].rows, clients=[3] * 35)
    want = FederatedPCA(3, merge=then).fit(pooled(shards), clients=labels(shards))
    assert_same_summary(pca, want)


def test_more_clients_than_are_stacked_at_once():
    shards = alike_shards(np.random.default_rng(25), [9] * 300, 60)
    pca = FederatedPCA(3, merge=ProjectionAverage(4)).fit(pooled(shards), clients=labels(shards))
    assert_leads(pca.components_, mean_of_projections(shards, 4), 3)
    assert_principal(pca, merged_scatter(shards, 4), 2700)
    assert_moments(pca, pooled(shards))


def test_more_directions_than_are_stacked_at_once_of_many_features():
    """1,200 directions of 600 features: cut to 512 on the way, so within the bound of the cut."""
    rng = np.random.default_rng(26)
    d, p = 600, 8
    bases = np.linalg.qr(rng.standard_normal((150, d, p)))[0]
    common = random_basis(rng, 2, d)
    bases = [np.linalg.qr(np.c_[common.T, B])[0][:, :p].T for B in bases]
    sizes = rng.integers(1, 50, 150)
    parts = [
        Subspace(V, np.arange(p, 0, -1.0), np.zeros(d), n, 1e3)
        for n, V in zip(sizes, bases, strict=True)
    ]
    M = sum(n * V.T @ V for n, V in zip(sizes, bases, strict=True)) / sizes.sum()
    mean = ProjectionMean.empty(d).add(parts, sizes, 512)
    assert len(mean.values) == 512
    assert 0 < mean.dropped < 0.1
    cut = np.linalg.eigvalsh(M - (mean.vectors.T * mean.values) @ mean.vectors)
    assert cut[0] >= -1e-12
    assert cut[-1] <= mean.dropped + 1e-12
    result = ProjectionAverage(weighting="rows").merge(parts, p)
    assert_orthonormal(result.components)
    assert np.trace(result.components @ M @ result.components.T) >= (
        eigenpairs(M)[0][:p].sum() - p * mean.dropped
    )
    gap = 1 - eigenpairs(M)[0][2]
    assert sine_of_orthonormal(common, result.components) <= mean.dropped / gap


@pytest.mark.parametrize("d", [15, 400])
def test_single_precision_clients_are_averaged_in_double(d):
    shards = alike_shards(np.random.default_rng(27), [40, 30, 20], d)
    X = pooled(shards).astype(np.float32)
    pca = FederatedPCA(3, merge=ProjectionAverage(4)).fit(X, clients=labels(shards))
    assert pca.components_.dtype == pca.subspace_.components.dtype == np.float32
    assert_leads(pca.components_, mean_of_projections(shards, 4), 3, tol=1e-5)
    assert_principal(pca, merged_scatter(shards, 4), 90, tol=1e-5)
    assert_moments(pca, X, tol=1e-5)
    assert_orthonormal(pca.components_, atol=1e-6)


def test_summaries_about_the_origin_are_averaged():
    rng = np.random.default_rng(28)
    X = [rng.standard_normal((30, 8)) * 0.6 ** np.arange(8) + 1 for _ in range(3)]
    local = [np.linalg.svd(rows)[2][:2] for rows in X]
    parts = [Subspace.from_rows(rows, center=False) for rows in X]
    result = ProjectionAverage(2).merge(parts, 3)
    assert not result.centered
    assert_leads(result.components, sum(V.T @ V for V in local) / 3, 3)
    pooled_ = np.concatenate(X)
    assert_allclose(result.scatter, np.sum(pooled_**2), rtol=1e-12)
