"""Averages of projections over clients and time."""

import pickle

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
from helpers import (
    assert_same_summary,
    floats_of,
    peak_bytes,
    random_basis,
    sine,
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
    local,
    make_shard,
    make_shards,
    mean_of_projections,
    pooled,
    same_subspace,
    scatter_of,
    sizes_of_clients,
)
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.model_selection import GridSearchCV

from fedpca_sklearn import (
    FederatedPCA,
    OnlineDistributedPCA,
    ProjectionAverage,
    excess_error,
)

# -------------------------------------------------------------------- oracles and data


def spiked(rng, n, Q, variances):
    """Rows of N(0, I + Q^T diag(variances) Q)."""
    return (
        rng.standard_normal((n, Q.shape[1]))
        + (rng.standard_normal((n, len(Q))) * np.sqrt(variances)) @ Q
    )


# -------------------------------------------------------------------- average over time


def in_steps(pca, steps):
    """Take lists of shards, one list for each step."""
    for step in steps:
        pca.partial_fit(pooled(step), clients=labels(step))
    return pca


def flat(steps):
    return [shard for step in steps for shard in step]


@each_weighting
@pytest.mark.parametrize("p", [None, 1, 6])
@pytest.mark.parametrize("d", [20, 100, 256])
def test_equal_shards_and_steps_give_the_mean_of_all_projections(d, p, weighting):
    rng = np.random.default_rng(29)
    steps = [alike_shards(rng, [20] * 4, d) for _ in range(3)]
    steps += [make_shards(rng, [20] * 4, d)]
    pca = OnlineDistributedPCA(3, projection_dim=p, weighting=weighting, n_clients=4)
    for step in steps:
        pca.partial_fit(pooled(step))
    M = mean_of_projections(flat(steps), p or 3)
    values = eigenpairs(M)[0]
    assert_leads(pca.components_, M, 3)
    assert_orthonormal(pca.components_)
    kept = pca.projection_values_
    assert_allclose(kept, values[: len(kept)], atol=1e-12)
    assert np.all(values[len(kept) :] <= 1e-11)
    assert np.all((kept > 0) & (kept <= 1 + 1e-12))
    assert pca.n_steps_ == 4
    assert pca.clients_ == [0, 1, 2, 3]
    assert_moments(pca, pooled(flat(steps)))


@pytest.mark.parametrize("d", [20, 256])
def test_nothing_is_cut_up_to_256_features(d):
    rng = np.random.default_rng(30)
    pca = OnlineDistributedPCA(2, projection_dim=4, n_clients=4)
    for _ in range(8):
        pca.partial_fit(rng.standard_normal((60, d)))
        assert pca.projection_error_ == 0


@examples
@given(
    sizes=sizes_of_clients,
    d=st.integers(2, 20),
    p=st.sampled_from([None, 1, 4]),
    weighting=st.sampled_from(WEIGHTINGS),
    seed=st.integers(0, 2**20),
)
def test_order_and_grouping_into_steps_do_not_matter(sizes, d, p, weighting, seed):
    rng = np.random.default_rng(seed)
    shards = make_shards(rng, sizes, d)
    k = min(2, d)
    p = p and min(p, d)
    M = mean_of_projections(shards, p or k, weighting)
    values = eigenpairs(M)[0]
    for _ in range(2):
        order = rng.permutation(len(shards))
        cuts = np.sort(rng.choice(len(shards) + 1, rng.integers(0, 4)))
        steps = [[shards[i] for i in group] for group in np.split(order, cuts) if len(group)]
        pca = OnlineDistributedPCA(k, projection_dim=p, weighting=weighting)
        in_steps(pca, steps)
        assert pca.n_steps_ == len(steps)
        assert_leads(pca.components_, M, k)
        assert_orthonormal(pca.components_)
        kept = pca.projection_values_
        assert_allclose(kept, values[: len(kept)], atol=1e-11)
        assert np.all(values[len(kept) :] <= 1e-11)
        if sum(sizes) > 1:
            assert_moments(pca, pooled(flat(steps)))


@each_weighting
@pytest.mark.parametrize("d", [15, 300])
def test_unequal_shards_are_weighted_by_rows_unless_told(d, weighting):
    rng = np.random.default_rng(31)
    a, b = random_basis(rng, 2, d)
    steps = [
        [make_shard(rng, 50, d, axes=a[None]), make_shard(rng, 5, d, axes=b[None])],
        [make_shard(rng, 7, d, axes=b[None]), make_shard(rng, 9, d, axes=b[None])],
    ]
    pca = in_steps(OnlineDistributedPCA(1, weighting=weighting), steps)
    shares = [50 / 71, 21 / 71] if weighting == "rows" else [3 / 4, 1 / 4]
    assert sine(pca.components_, (a if weighting == "rows" else b)[None]) <= 1e-9 / 0.4
    assert_allclose(pca.projection_values_.sum(), 1, rtol=1e-12)
    assert_leads(pca.components_, mean_of_projections(flat(steps), 1, weighting), 1)
    overlap = abs(a @ b)
    assert overlap <= 1e-12
    assert_allclose(pca.projection_values_, sorted(shares)[::-1], rtol=1e-9)


@pytest.mark.parametrize("p", [3, 5])
def test_compression_keeps_its_bounds(p):
    """d = 400: 16 eigenpairs are kept of 24 shards with p directions each."""
    rng = np.random.default_rng(32)
    K, d = 3, 400
    Q = random_basis(rng, K, d)
    steps = [[local(spiked(rng, 60, Q, [90, 60, 40])) for _ in range(4)] for _ in range(6)]
    pca, seen = OnlineDistributedPCA(K, projection_dim=p), []
    for step in steps:
        in_steps(pca, [step])
        seen += step
        M = mean_of_projections(seen, p)
        mean = pca._state.mean
        assert len(mean.values) <= 2 * K + 10
        assert_array_equal(pca.projection_values_, mean.values)
        cut = np.linalg.eigvalsh(M - (mean.vectors.T * mean.values) @ mean.vectors)
        assert cut[0] >= -1e-12
        assert cut[-1] <= pca.projection_error_ + 1e-12
        values = pca.projection_values_
        bound = pca.projection_error_ / (values[K - 1] - values[K])
        assert bound < 0.5  # or nothing would be said
        assert sine(pca.components_, eigenpairs(M)[1][:K]) <= bound + 1e-9
    assert pca.projection_error_ > 0
    assert pca.n_steps_ == 6
    assert_moments(pca, pooled(flat(steps)))


@each_weighting
@pytest.mark.parametrize("p", [None, 2, 6])
@pytest.mark.parametrize("d", [15, 400])
def test_a_single_fit_equals_the_average_over_clients(d, p, weighting):
    shards = alike_shards(np.random.default_rng(33), [60, 9, 25, 40, 12], d)
    X, clients = pooled(shards), labels(shards)
    online = OnlineDistributedPCA(3, projection_dim=p, weighting=weighting)
    online.fit(X, clients=clients)
    federated = FederatedPCA(3, merge=ProjectionAverage(p, weighting)).fit(X, clients=clients)
    assert same_subspace(online, federated)
    assert_allclose(online.mean_, federated.mean_, atol=1e-12)
    assert_allclose(online.subspace_.scatter, federated.subspace_.scatter, rtol=1e-12)
    assert_leads(online.components_, mean_of_projections(shards, p or 3, weighting), 3)


@pytest.mark.parametrize("d", [15, 400])
@pytest.mark.parametrize("p", [2, 5])
def test_variances_of_one_step_are_those_of_the_pooled_rows(d, p):
    rng = np.random.default_rng(34)
    shards = alike_shards(rng, [60, 9, 25, 40], d)
    for i, shard in enumerate(shards):  # means that differ along the components and elsewhere
        shift = 3 * rng.standard_normal(3) @ shards[0].axes[:3] + rng.standard_normal(d)
        shards[i] = Shard(shard.rows + shift, shard.mean + shift, shard.axes, shard.s)
    X = pooled(shards)
    pca = OnlineDistributedPCA(3, projection_dim=p).fit(X, clients=labels(shards))
    assert_principal(pca, scatter_of(X)[0], len(X))
    assert_moments(pca, X)


def test_variances_are_exact_once_the_basis_spans_all_features():
    rng = np.random.default_rng(35)
    steps = [make_shards(rng, [20] * 5, 12, far=3.0) for _ in range(6)]
    pca = in_steps(OnlineDistributedPCA(3, projection_dim=4), steps)
    assert len(pca.projection_values_) == 12
    assert_principal(pca, scatter_of(pooled(flat(steps)))[0], 600)


@pytest.mark.parametrize("d", [100, 400])
def test_variances_are_a_little_too_low_while_the_basis_moves(d):
    rng = np.random.default_rng(36)
    Q = random_basis(rng, 3, d)
    steps = [spiked(rng, 200, Q, [90, 60, 40]) + 1 for _ in range(10)]
    pca = OnlineDistributedPCA(3)
    for step in steps:
        pca.partial_fit(step)
    X = np.concatenate(steps)
    S = scatter_of(X)[0]
    V = pca.components_
    true = np.diag(V @ S @ V.T) / (len(X) - 1)
    assert np.all(pca.explained_variance_ <= true * (1 + 1e-12))
    # One step of 200 rows turns an axis of variance v + 1 by sin^2 = d (v + 1) / (200 v^2), and t
    # steps by a t-th of it. As the basis goes from t to t + 1 steps, the rows so far lose the share
    # 1 / t - 1 / (t + 1) of that at most; the rows of step j lose 1 / j in all, if never measured
    # outside of the three axes.
    v = np.array([90, 60, 40])
    lost = d * (v + 1) / (200 * v**2) * np.mean(1 / np.arange(1, 11))
    assert np.all(pca.explained_variance_ >= (1 - lost) * true)
    assert_moments(pca, X)


@pytest.mark.parametrize("d", [12, 400])
def test_moments_are_exact_after_any_steps(d):
    rng = np.random.default_rng(37)
    steps = [make_shards(rng, rng.integers(1, 20, 3), d, far=10.0) for _ in range(6)]
    pca, seen = OnlineDistributedPCA(2), []
    for step in steps:
        in_steps(pca, [step])
        seen.append(pooled(step))
        assert_moments(pca, np.concatenate(seen))
    assert pca.n_steps_ == 6


@pytest.mark.parametrize("d", [12, 400])
def test_a_large_mean_does_not_hurt(d):
    rng = np.random.default_rng(38)
    steps = [alike_shards(rng, [40, 30], d) for _ in range(3)]
    plain = in_steps(OnlineDistributedPCA(3, projection_dim=4), steps)
    far = OnlineDistributedPCA(3, projection_dim=4)
    for step in steps:
        far.partial_fit(pooled(step) + 1e8, clients=labels(step))
    # entries are rounded to 1e8 eps = 2e-8, relative to local gaps of about 0.1
    assert same_subspace(far, plain, 1e-5)
    assert_allclose(far.explained_variance_, plain.explained_variance_, rtol=1e-5)
    assert_allclose(far.mean_ - 1e8, plain.mean_, atol=1e-6)
    assert_allclose(far.subspace_.scatter, plain.subspace_.scatter, rtol=1e-6)
    if d <= 256:
        assert_leads(far.components_, mean_of_projections(flat(steps), 4), 3, tol=1e-6)


def test_all_components_are_kept_of_few_features():
    rng = np.random.default_rng(39)
    X = rng.standard_normal((100, 6)) * 0.7 ** np.arange(6)
    pca = OnlineDistributedPCA(n_clients=4)
    for step in (X[:60], X[60:]):
        pca.partial_fit(step)
    assert pca.components_.shape == (6, 6)
    assert_allclose(pca.projection_values_, 1, rtol=1e-12)
    # all of the space: plain PCA
    assert_principal(pca, scatter_of(X)[0], 100)
    pooled_ = PCA(svd_solver="full").fit(X)
    assert_allclose(pca.explained_variance_, pooled_.explained_variance_, rtol=1e-9)
    assert_allclose(pca.get_covariance(), pooled_.get_covariance(), atol=1e-9)


@pytest.mark.parametrize("p", [1, 2, 3, 7])
@pytest.mark.parametrize("d", [15, 400])
def test_local_eigenspaces_may_be_smaller_or_larger_than_the_result(d, p):
    rng = np.random.default_rng(40)
    shards = make_shards(rng, [20] * 5, d)
    pca = OnlineDistributedPCA(3, projection_dim=p).fit(pooled(shards), clients=labels(shards))
    M = mean_of_projections(shards, p)
    mean = pca._state.mean
    if d > 256 and 5 * p > 16:
        assert pca.projection_error_ > 0
        cut = np.linalg.eigvalsh(M - (mean.vectors.T * mean.values) @ mean.vectors)
        assert cut[0] >= -1e-12
        assert cut[-1] <= pca.projection_error_ + 1e-12
    assert_leads(pca.components_, M, 3)  # the first cut comes after the eigenvectors
    assert_allclose(pca.projection_values_[:3], eigenpairs(M)[0][:3], rtol=1e-9)
    assert pca.components_.shape == (3, d)


@pytest.mark.parametrize("d", [4, 400])
def test_one_row_is_a_step(d):
    rng = np.random.default_rng(41)
    row = rng.standard_normal((1, d))
    pca = OnlineDistributedPCA(2).fit(row)
    assert pca.components_.shape == (1, d)
    assert_array_equal(pca.explained_variance_, 0)
    assert_allclose(pca.mean_, row[0])
    assert pca.clients_ == [0]
    assert pca.n_steps_ == 1
    assert len(pca.projection_values_) == 0
    shards = alike_shards(rng, [20, 30], d)
    pca.partial_fit(pooled(shards), clients=labels(shards))
    assert_moments(pca, np.concatenate([row, pooled(shards)]))
    nothing = Shard(row, row[0], np.zeros((0, d)), np.zeros(0))
    assert_leads(pca.components_, mean_of_projections([nothing, *shards], 2), 2)
    assert pca.projection_values_[0] <= 50 / 51 + 1e-12


@pytest.mark.parametrize("d", [6, 300])
def test_clients_with_one_row_in_a_step_have_no_direction(d):
    rng = np.random.default_rng(42)
    X = rng.standard_normal((12, d))
    pca = OnlineDistributedPCA(2)
    seen = 0
    for n in (3, 4, 5):
        pca.partial_fit(X[seen : seen + n], clients=range(n))
        seen += n
        assert_moments(pca, X[:seen])
        assert_orthonormal(pca.components_)
    assert_array_equal(pca.explained_variance_, 0)  # no client has two rows
    assert pca.clients_ == [0, 1, 2, 3, 4]
    assert pca.n_steps_ == 3


def test_short_steps_make_fewer_shards_and_are_learnt_from():
    rng = np.random.default_rng(42)
    axes = random_basis(rng, 2, 6)
    X = rng.standard_normal((60, 2)) @ axes
    pca = OnlineDistributedPCA(2, n_clients=5)
    for n in range(3, 60, 3):
        pca.partial_fit(X[n - 3 : n])
        assert pca.clients_ == [0]
    assert sine(pca.components_, axes) <= 1e-12
    pca.partial_fit(X[:8])
    assert pca.clients_ == [0, 1]


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize("dim", [3, 5, 8])
@pytest.mark.parametrize("d", [8, 300])
def test_ties_of_the_mean_are_broken_by_variance(d, dim, clients):
    rng = np.random.default_rng(0)
    axes = random_basis(rng, 8, d)
    X = rng.standard_normal((200, 8)) * 0.5 ** np.arange(8) @ axes
    X = np.concatenate([X] * clients)
    expected = np.linalg.svd(X - X.mean(axis=0))[2][:2]
    models = [
        OnlineDistributedPCA(2, projection_dim=dim, n_clients=clients),
        FederatedPCA(2, merge=ProjectionAverage(projection_dim=dim), n_clients=clients),
    ]
    for model in models:
        model.fit(X)
        assert sine(model.components_, expected) <= 1e-8
        ratio = X.var(axis=0).sum() * (len(X) - 0) / (len(X) - 1)
        variances = np.var(X @ expected.T, axis=0, ddof=1)
        assert_allclose(model.explained_variance_, variances, rtol=1e-8)
        assert_allclose(model.explained_variance_ratio_, variances / ratio, rtol=1e-8)


def test_constant_rows_have_no_direction_but_a_share():
    rng = np.random.default_rng(43)
    pca = OnlineDistributedPCA(2, weighting="rows", n_clients=2).fit(np.full((10, 5), 3.0))
    assert_array_equal(pca.explained_variance_ratio_, 0)
    assert pca.noise_variance_ == 0
    assert_orthonormal(pca.components_)
    shard = make_shard(rng, 30, 5)
    pca.partial_fit(shard.rows, clients=[7] * 30)
    assert sine(pca.components_, shard.axes[:2]) <= 1e-9
    assert_allclose(pca.projection_values_, 30 / 40, rtol=1e-9)
    pca.partial_fit(np.zeros((20, 5)), clients=[0] * 20)
    assert sine(pca.components_, shard.axes[:2]) <= 1e-9
    assert_allclose(pca.projection_values_, 30 / 60, rtol=1e-9)
    assert_moments(pca, np.concatenate([np.full((10, 5), 3.0), shard.rows, np.zeros((20, 5))]))


@each_weighting
@pytest.mark.parametrize("d", [15, 400])
@pytest.mark.parametrize("container", [np.asarray, sp.csr_array])
def test_weighted_rows_equal_repeated_ones(d, weighting, container):
    rng = np.random.default_rng(44)
    model = OnlineDistributedPCA(2, projection_dim=3, weighting=weighting)
    weighted, repeated, rows = clone(model), clone(model), []
    for _ in range(3):
        shards = alike_shards(rng, [20, 12, 15, 9], d)
        X, clients = pooled(shards), labels(shards)
        weight = rng.integers(0, 3, len(X)) * (clients < 3)  # the last is as absent
        weighted.partial_fit(container(X), clients=clients, sample_weight=weight)
        repeated.partial_fit(np.repeat(X, weight, axis=0), clients=np.repeat(clients, weight))
        rows.append(np.repeat(X, weight, axis=0))
    assert_same_summary(weighted, repeated, 1e-8)
    assert_allclose(weighted.projection_values_, repeated.projection_values_, atol=1e-9)
    assert_moments(weighted, np.concatenate(rows))
    assert weighted.clients_ == [0, 1, 2]
    assert weighted.communication_.table[0] == repeated.communication_.table[0]


def test_fractional_weights_are_shares_of_the_mean():
    rng = np.random.default_rng(45)
    shards = make_shards(rng, [20, 30], 8)
    X, clients = pooled(shards), labels(shards)
    weight = np.where(clients == 0, 0.5, 0.1)
    pca = OnlineDistributedPCA(2, weighting="rows").fit(X, clients=clients, sample_weight=weight)
    M = mean_of_projections(shards, 2, "rows", weights=np.array([0.5, 0.1]))
    assert_leads(pca.components_, M, 2)
    mean = weight @ X / weight.sum()
    S = (weight[:, None] * (X - mean)).T @ (X - mean)
    V = pca.components_
    assert_allclose(np.diag(V @ S @ V.T) / (weight.sum() - 1), pca.explained_variance_, rtol=1e-9)
    assert_allclose(pca.mean_, mean, atol=1e-12)


def test_a_step_without_weight_changes_nothing():
    rng = np.random.default_rng(46)
    X = rng.standard_normal((40, 6))
    pca = OnlineDistributedPCA(2).fit(X)
    twin = OnlineDistributedPCA(2).fit(X)
    pca.partial_fit(X + 9, sample_weight=np.zeros(40))
    assert_same_summary(pca, twin, 1e-12)
    assert pca.n_samples_ == 40
    with pytest.raises(ValueError, match="sample_weight"):
        OnlineDistributedPCA(2).fit(X, sample_weight=np.zeros(40))


# -------------------------------------------------------------------- iterables of steps

KINDS_OF_STREAM = {
    "list": list,
    "tuple": tuple,
    "iterator": iter,
    "generator": lambda steps: (step for step in steps),
    "map": lambda steps: map(np.asarray, steps),
}


@pytest.mark.parametrize("kind", KINDS_OF_STREAM)
@pytest.mark.parametrize("d", [8, 400])
def test_a_stream_is_a_step_for_each_matrix(kind, d):
    rng = np.random.default_rng(47)
    steps = [rng.standard_normal((n, d)) for n in (30, 20, 41)]
    model = OnlineDistributedPCA(2, n_clients=3)
    by_hand, streamed = clone(model), clone(model).fit(KINDS_OF_STREAM[kind](steps))
    for step in steps:
        by_hand.partial_fit(step)
    for name in ("components_", "singular_values_", "mean_", "projection_values_"):
        assert_array_equal(getattr(streamed, name), getattr(by_hand, name))
    assert streamed.n_steps_ == by_hand.n_steps_ == 3
    assert streamed.communication_ == by_hand.communication_
    assert streamed.projection_error_ == by_hand.projection_error_
    assert_moments(streamed, np.concatenate(steps))
    # partial_fit goes on, fit starts afresh
    streamed.partial_fit(KINDS_OF_STREAM[kind](steps[:2]))
    assert streamed.n_steps_ == 5
    assert streamed.fit(KINDS_OF_STREAM[kind](steps[:2])).n_steps_ == 2
    assert streamed.communication_.rounds == 4


def test_a_stream_of_sparse_matrices():
    rng = np.random.default_rng(48)
    steps = [sp.random(40, 30, density=0.3, random_state=rng, format="csr") for _ in range(3)]
    dense = OnlineDistributedPCA(2).fit([step.toarray() for step in steps])
    assert_same_summary(OnlineDistributedPCA(2).fit(steps), dense)


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize("name", ["clients", "sample_weight"])
def test_labels_and_weights_of_a_stream_are_refused(method, name):
    X = np.random.default_rng(49).standard_normal((20, 4))
    pca = OnlineDistributedPCA(2).fit(X)
    before = joblib.hash(vars(pca))
    for stream in ([X, X], iter([X, X])):
        with pytest.raises(ValueError, match=f"{name} cannot be given when X is an iterable"):
            getattr(pca, method)(stream, **{name: np.ones(20, dtype=int)})
        assert joblib.hash(vars(pca)) == before


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize("fitted", [False, True])
def test_an_empty_stream_is_refused_without_a_trace(method, fitted):
    X = np.random.default_rng(50).standard_normal((20, 4))
    pca = OnlineDistributedPCA(2)
    if fitted:
        pca.fit(X)
    before, names = joblib.hash(vars(pca)), list(vars(pca))
    for stream in (iter([]), (step for step in [])):
        with pytest.raises(ValueError, match="without time steps"):
            getattr(pca, method)(stream)
        assert joblib.hash(vars(pca)) == before
        assert list(vars(pca)) == names


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_a_bad_step_undoes_those_before_it(method):
    X = np.random.default_rng(51).standard_normal((20, 4))
    pca = OnlineDistributedPCA(2, n_clients=2).fit(X)
    before = joblib.hash(vars(pca))
    wrong = X.copy()
    wrong[-1, 0] = np.nan
    for bad, message in [(wrong, "Client 1.*NaN"), (X[:, :3], "features"), (X[:0], "0 sample")]:
        with pytest.raises(ValueError, match=message):
            getattr(pca, method)(iter([X, bad, X]))
        assert joblib.hash(vars(pca)) == before


# -------------------------------------------------------------------- what it sends and holds


@pytest.mark.parametrize(("n", "d", "K", "p"), [(60, 400, 3, 5), (9, 400, 3, None), (30, 40, 2, 4)])
def test_a_step_takes_two_rounds(n, d, K, p):
    rng = np.random.default_rng(52)
    pca, m, k = OnlineDistributedPCA(K, projection_dim=p, n_clients=4), 4, p or K
    for step in range(1, 4):
        pca.partial_fit(rng.standard_normal((n * m, d)))
        log = pca.communication_
        assert log.rounds == 2 * step
        up, down = log.table[-2:]
        assert (up["messages_up"], up["floats_up"]) == (m, m * floats_of(k, d))
        assert up["messages_down"] == up["floats_down"] == 0
        kept = min(step * m * k, 2 * K + 10 if d > 256 else d)
        assert len(pca.projection_values_) == kept
        assert (down["messages_down"], down["floats_down"]) == (m, m * kept * d)
        assert down["bytes_down"] == 8 * m * kept * d
        # what the variances need: a triangle of at most kept rows
        assert (down["messages_up"], down["floats_up"]) == (m, m * min(n, kept) * kept)
    assert log.floats_pooled == 3 * n * m * d


def test_the_state_does_not_grow_with_the_steps():
    rng = np.random.default_rng(53)
    d, K = 400, 3
    pca = OnlineDistributedPCA(K, n_clients=3)
    size = {}
    for step in range(1, 61):
        pca.partial_fit(rng.standard_normal((15, d)))
        size[step] = len(pickle.dumps(pca))
    assert len(pca.projection_values_) == 2 * K + 10
    basis = 8 * (2 * K + 10) * d
    assert size[60] <= 3 * basis
    # the log grows by two rounds a step, by less than the rows of it
    assert size[60] - size[10] <= 50 * 400
    assert pca.n_steps_ == 60


def test_wide_sparse_rows_are_never_densified():
    rng = np.random.default_rng(54)
    d, n, m, used = 100_000, 2000, 5, 40
    words = rng.choice(d, m * used, replace=False).reshape(m, used)
    words[1:, :10] = words[0, :10]  # some that all have
    steps = []
    for _ in range(2):
        parts = []
        for i in range(m):
            values = rng.poisson(1.0, (n // m, used)) * 0.85 ** np.arange(used)
            row, column = np.nonzero(values)
            triplets = (values[row, column], (row, words[i, column]))
            parts.append(sp.csr_array(triplets, shape=(n // m, d)))
        steps.append(sp.csr_array(sp.vstack(parts)))
    pca = OnlineDistributedPCA(3, projection_dim=4, n_clients=m)
    assert peak_bytes(lambda: pca.fit(steps)) < 8 * n * d / 8
    columns = np.unique(words)
    dense = [step[:, columns].toarray() for step in steps]
    shards = [local(rows) for step in dense for rows in np.split(step, m)]
    M = mean_of_projections(shards, 4)
    V = pca.components_[:, columns]
    values = pca.projection_values_
    bound = pca.projection_error_ / (values[2] - values[3])
    assert bound < 0.5
    assert sine(V, eigenpairs(M)[1][:3]) <= bound + 1e-9
    others = np.ones(d, dtype=bool)
    others[columns] = False
    assert not pca.components_[:, others].any()
    assert not pca.mean_[others].any()
    assert_allclose(pca.mean_[columns], np.concatenate(dense).mean(axis=0), atol=1e-12)
    S = scatter_of(np.concatenate(dense))[0]
    assert_allclose(pca.subspace_.scatter, np.trace(S), rtol=1e-9)
    one = OnlineDistributedPCA(3, projection_dim=4, n_clients=m).fit(steps[0])
    S = scatter_of(dense[0])[0]
    V = one.components_[:, columns]
    assert_leads(V, mean_of_projections(shards[:m], 4), 3)
    assert_allclose(np.diag(V @ S @ V.T) / (n - 1), one.explained_variance_, rtol=1e-9)


@pytest.mark.parametrize("d", [40, 400])
def test_sparse_steps_equal_dense_ones(d):
    rng = np.random.default_rng(55)
    steps = []
    for _ in range(3):
        X = sp.random(90, d, density=0.2, random_state=rng).toarray() * 0.8 ** np.arange(d)
        X[:, 0] += 5  # a column without an implicit zero
        steps.append(X)
    model = OnlineDistributedPCA(2, projection_dim=3, n_clients=3)
    dense = clone(model).fit(steps)
    for container in (sp.csr_array, sp.csc_matrix):
        sparse = clone(model).fit([container(X) for X in steps])
        assert_same_summary(sparse, dense)
        assert_allclose(sparse.projection_values_, dense.projection_values_, atol=1e-9)
        assert_allclose(sparse.projection_error_, dense.projection_error_, atol=1e-9)
    assert_moments(dense, np.concatenate(steps))


@pytest.mark.parametrize("d", [15, 400])
def test_single_precision_steps(d):
    rng = np.random.default_rng(56)
    steps = [alike_shards(rng, [40, 30], d) for _ in range(2)]
    pca = OnlineDistributedPCA(3)
    for step in steps:
        pca.partial_fit(pooled(step).astype(np.float32), clients=labels(step))
    assert pca.components_.dtype == pca.subspace_.components.dtype == np.float32
    assert_leads(pca.components_, mean_of_projections(flat(steps), 3), 3, tol=1e-5)
    assert_moments(pca, pooled(flat(steps)).astype(np.float32), tol=1e-5)
    assert_orthonormal(pca.components_, atol=1e-6)


# -------------------------------------------------------------------- what it is good for


@pytest.mark.parametrize("d", [15, 400])
def test_scale_of_a_shard_does_not_matter_for_the_directions_of_steps(d):
    rng = np.random.default_rng(58)
    steps = [alike_shards(rng, [40, 30], d) for _ in range(3)]
    want = in_steps(OnlineDistributedPCA(3), steps)
    pca = OnlineDistributedPCA(3)
    for i, step in enumerate(steps):
        factor = np.array([10.0 ** (3 * i), 1e-3])[labels(step)]
        pca.partial_fit(pooled(step) * factor[:, None], clients=labels(step))
    assert same_subspace(pca, want, 1e-8)
    assert_allclose(pca.projection_values_, want.projection_values_, atol=1e-9)


@pytest.mark.parametrize("d", [12, 300])
def test_a_rotation_of_the_features_rotates_the_components(d):
    rng = np.random.default_rng(59)
    Q = random_basis(rng, d, d)
    steps = [alike_shards(rng, [40, 30], d) for _ in range(2)]
    plain = in_steps(OnlineDistributedPCA(3), steps)
    rotated = OnlineDistributedPCA(3)
    for step in steps:
        rotated.partial_fit(pooled(step) @ Q, clients=labels(step))
    assert sine(rotated.components_, plain.components_ @ Q) <= 1e-9
    assert_allclose(rotated.explained_variance_, plain.explained_variance_, rtol=1e-9)
    assert_allclose(rotated.projection_values_, plain.projection_values_, atol=1e-9)


def test_more_steps_come_closer_to_the_truth_as_pooled_rows_do():
    """Spiked covariance: the distributed rate is that of the pooled rows (Fan et al. 2019)."""
    d, K, m, n = 50, 3, 5, 40
    steps_seen = (1, 4, 16)
    errors = {t: [] for t in steps_seen}
    pooled_errors = {t: [] for t in steps_seen}
    for seed in range(5):
        rng = np.random.default_rng(seed)
        Q = random_basis(rng, K, d)
        pca, X = OnlineDistributedPCA(K, n_clients=m), np.zeros((0, d))
        for t in range(1, 17):
            step = spiked(rng, m * n, Q, [40, 25, 15])
            X = np.concatenate([X, step])
            pca.partial_fit(step)
            if t in steps_seen:
                best = eigenpairs(scatter_of(X)[0])[1][:K]
                errors[t].append(sine(pca.components_, Q))
                pooled_errors[t].append(sine(best, Q))
    error = [np.mean(errors[t]) for t in steps_seen]
    for e, t in zip(error, steps_seen, strict=True):
        assert e <= 1.5 * np.mean(pooled_errors[t])
    # four times the rows: half the error
    assert error[1] <= 0.7 * error[0]
    assert error[2] <= 0.7 * error[1]


@pytest.mark.parametrize("d", [100, 400])
def test_the_excess_error_of_power_law_rows_falls_with_the_steps(d):
    rng = np.random.default_rng(60)
    scale = np.arange(1, d + 1) ** -0.5
    Q = random_basis(rng, d, d)
    steps = [(rng.standard_normal((500, d)) * scale) @ Q for _ in range(12)]
    X = np.concatenate(steps)
    pca, excess = OnlineDistributedPCA(5, projection_dim=8), {}
    for t, step in enumerate(steps, 1):
        pca.partial_fit(step)
        excess[t] = excess_error(X, pca.components_) if t in (1, 4, 12) else None
    assert excess[12] < excess[4] < excess[1]
    assert excess[12] <= 0.01


@pytest.mark.parametrize("n", [1000, 3000])
def test_a_client_of_many_rows_loses_almost_nothing(n):
    """More rows of many features than are updated at once: reserves are cut in between."""
    rng = np.random.default_rng(63)
    X = (rng.standard_normal((n, 400)) * np.arange(1, 401) ** -0.5) @ random_basis(rng, 400, 400)
    for pca in OnlineDistributedPCA(5), FederatedPCA(5, merge=ProjectionAverage()):
        pca.set_params(n_clients=1).fit(X)
        assert excess_error(X, pca.components_) <= 1e-4
        assert_moments(pca, X)


def test_a_search_over_both_dimensions_finds_the_rank():
    rng = np.random.default_rng(61)
    X = spiked(rng, 600, random_basis(rng, 3, 12), [30, 20, 10])
    grid = {"n_components": [1, 2, 3, 5], "projection_dim": [None, 2, 4]}
    search = GridSearchCV(OnlineDistributedPCA(n_clients=4), grid, cv=3, error_score="raise")
    search.fit(X)
    assert search.best_params_["n_components"] == 3
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    merge = FederatedPCA(3, merge=ProjectionAverage(), n_clients=4)
    grid = {"n_components": [1, 2, 3, 5], "merge__projection_dim": [None, 2, 4]}
    search = GridSearchCV(merge, grid, cv=3, error_score="raise").fit(X)
    assert search.best_params_["n_components"] == 3
