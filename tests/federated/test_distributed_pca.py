"""DistributedPCA and its schedule against numpy on the pooled rows, with every float counted.

Errors of singular values are relative to the largest one. 1e-10 is far above the rounding of an
orthogonal factorisation and far below any error in the algebra.
"""

from types import SimpleNamespace

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
from helpers import (
    client_sizes,
    rows_of_decay,
    sine_of_orthonormal,
    unlike_sites,
)
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.decomposition import PCA
from triangle_helpers import (
    SHAPES,
    TOL,
    Oracle,
    assert_is_gram,
    centred,
    examples,
    levels_of,
    seeds,
    seven_sites,
)

from fedpca_sklearn import (
    CommunicationLog,
    DistributedPCA,
    FederatedPCA,
    TruncatedDistributedPCA,
    load_balanced_schedule,
    subspace_distance,
)
from fedpca_sklearn.summary._triangle import (
    Triangle,
    merge_factors,
    pooled,
    subspace_of,
    triangle_of_rows,
)


@pytest.fixture
def sites():
    return seven_sites()


# -------------------------------------------------------------------- oracles and data


def assert_is_pca_of(pca, X, k=None, weight=None, dtype=np.float64):
    """All fitted attributes against the oracle; in float32 only the results are rounded."""
    o = Oracle(X, weight)
    tol = TOL if dtype == np.float64 else 1e-5
    exist = min(o.n_rows, o.d)
    k = exist if k is None else min(k, exist)
    assert pca.n_components_ == k
    assert pca.n_samples_ == pca.n_samples_seen_ == o.n_rows
    assert pca.components_.shape == (k, o.d)
    assert pca.components_.dtype == pca.r_factor_.dtype == dtype
    V = pca.components_.astype(np.float64)
    assert_allclose(V @ V.T, np.eye(k), atol=tol)
    for r in o.gapped_ranks(k):
        assert sine_of_orthonormal(V[:r], o.components[:r]) <= tol
    assert_allclose(pca.singular_values_, o.s[:k], rtol=0, atol=tol * o.s[0])
    exact = pca.subspace_.singular_values
    assert_allclose(exact, o.s[: len(exact)], rtol=0, atol=TOL * o.s[0])
    dof = max(o.n - 1, o.n / 2)
    total = o.scatter / dof
    assert_allclose(pca.explained_variance_, o.s[:k] ** 2 / dof, rtol=0, atol=2 * tol * total)
    ratio = o.s[:k] ** 2 / o.scatter if o.scatter else np.zeros(k)
    assert_allclose(pca.explained_variance_ratio_, ratio, rtol=0, atol=2 * tol)
    rest = np.sum(o.s[k:] ** 2) / dof / max(o.d - k, 1)
    assert_allclose(pca.noise_variance_, rest, rtol=tol, atol=tol * total)
    rounding = 4 * np.finfo(dtype).eps
    assert_allclose(pca.mean_, o.mean, rtol=rounding, atol=rounding * np.sqrt(total))
    assert_allclose(pca.subspace_.scatter, o.scatter, rtol=TOL)
    assert pca.subspace_.n_samples == pytest.approx(o.n, rel=1e-12)
    assert_is_factor_of(pca.r_factor_, o.gram, tol)


def assert_is_factor_of(R, gram, tol=TOL):
    """Trapezoidal, non-negative on the diagonal, and every column as exact as its own size."""
    R = R.astype(np.float64)
    assert_array_equal(np.tril(R, -1), 0)
    assert np.all(np.diag(R) >= 0)
    assert_is_gram(R.T @ R, gram, tol)


def entries(m, d):
    """Numbers on and above the diagonal of an m x d trapezoid."""
    return sum(d - i for i in range(min(m, d)))


# -------------------------------------------------------------------- exactness


@examples
@given(
    sizes=client_sizes,
    d=st.integers(1, 24),
    where=st.sampled_from(["same", "unlike", "far"]),
    k=st.sampled_from([None, 1, 3]),
    seed=seeds,
)
def test_any_clients_give_pca_of_the_pooled_rows(sizes, d, where, k, seed):
    rng = np.random.default_rng(seed)
    X, clients = unlike_sites(rng, sizes, d)
    if where == "same":
        X = rows_of_decay(rng, len(X), d)
    elif where == "far":
        X += 1e8
    k = None if k is None else min(k, d)
    pca = DistributedPCA(k).fit(X, clients=clients)
    assert_is_pca_of(pca, X, k)
    assert pca.clients_ == list(range(len(sizes)))


@pytest.mark.parametrize("s", range(1, 41))
def test_any_number_of_clients_is_exact(s):
    rng = np.random.default_rng(s)
    X, clients = unlike_sites(rng, rng.integers(1, 20, s), 8)
    assert_is_pca_of(DistributedPCA(4).fit(X, clients=clients), X, 4)
    assert_is_pca_of(DistributedPCA(4, n_clients=s).fit(X), X, 4)


def with_badly_scaled_columns(rng, X):
    return X * 10.0 ** rng.integers(-8, 9, X.shape[1])


def of_low_rank(rng, X):
    return X[:, :3] @ rng.standard_normal((3, X.shape[1]))


def with_constant_columns(rng, X):
    X = X.copy()
    X[:, [0, 3]] = 7.0, 1e6 / 3
    return X


def with_repeated_rows(rng, X):
    return X[rng.integers(0, 4, len(X))]


def with_a_shallow_spectrum_far_away(rng, X):
    return 1e8 + 1e-3 * X


KINDS = [
    with_badly_scaled_columns,
    of_low_rank,
    with_constant_columns,
    with_repeated_rows,
    with_a_shallow_spectrum_far_away,
]


@pytest.mark.parametrize("k", [None, 2])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_difficult_rows_are_exact(kind, shape, k):
    rng = np.random.default_rng(1)
    sizes, d = SHAPES[shape]
    X, clients = unlike_sites(rng, sizes, d)
    X = kind(rng, X)
    assert_is_pca_of(DistributedPCA(k).fit(X, clients=clients), X, k)


@pytest.mark.parametrize("sizes", [[60, 500, 1, 320], [30, 5, 1, 12, 90], [310, 300]])
def test_many_features_are_exact(sizes):
    X, clients = unlike_sites(np.random.default_rng(2), sizes, 300)
    assert_is_pca_of(DistributedPCA(5).fit(X, clients=clients), X, 5)


def test_more_rows_than_a_block_are_exact():
    X, clients = unlike_sites(np.random.default_rng(3), [3500, 2, 1001, 1000], 5)
    assert_is_pca_of(DistributedPCA().fit(X + 1e8, clients=clients), X + 1e8)


@pytest.mark.parametrize("d", [6, 40])
@pytest.mark.parametrize("mean", [0, 1000])
def test_float32_rows_are_computed_in_float64(d, mean):
    X, clients = unlike_sites(np.random.default_rng(4), [40, 1, 70, 33], d)
    X = (X + mean).astype(np.float32)
    pca = DistributedPCA(3).fit(X, clients=clients)
    assert_is_pca_of(pca, X, 3, dtype=np.float32)
    _, mean = centred(X)
    assert_allclose(pca.subspace_.mean, mean, rtol=1e-14)
    assert_allclose(pca.singular_values_, Oracle(X).s[:3], rtol=2e-7)


@pytest.mark.parametrize("container", [sp.csr_array, sp.csc_array, sp.coo_array])
@pytest.mark.parametrize("d", [6, 120])
@pytest.mark.parametrize("weighted", [False, True])
def test_sparse_rows_are_exact(container, d, weighted):
    rng = np.random.default_rng(5)
    X, clients = unlike_sites(rng, [40, 1, 25, 33], d)
    X *= rng.random(X.shape) < 0.3
    weight = rng.integers(0, 3, len(X)) if weighted else None
    pca = DistributedPCA(3).fit(container(X), clients=clients, sample_weight=weight)
    assert_is_pca_of(pca, X, 3, weight)
    assert pca.communication_.floats_pooled == np.count_nonzero(X)


def test_identical_rows_give_zeros_not_nan():
    for value in (0.0, 3.0, 1e200):
        pca = DistributedPCA(2, n_clients=4).fit(np.full((12, 5), value))
        assert_array_equal(pca.singular_values_, 0)
        assert_array_equal(pca.explained_variance_ratio_, 0)
        assert_array_equal(pca.r_factor_, 0)
        assert pca.noise_variance_ == 0
        assert_allclose(pca.components_ @ pca.components_.T, np.eye(2), atol=1e-12)
        assert_allclose(pca.mean_, value, rtol=1e-15)


@pytest.mark.parametrize("value", [0.1, 1e6 / 3, 1e8 / 3])
@pytest.mark.parametrize("s", [1, 3])
def test_identical_rows_with_weights_give_zeros_not_rounding(value, s):
    weight = np.random.default_rng(0).uniform(0.1, 3, 60)
    pca = DistributedPCA(2, n_clients=s).fit(np.full((60, 3), value), sample_weight=weight)
    assert_array_equal(pca.explained_variance_ratio_, 0)
    assert_allclose(pca.singular_values_, 0, atol=1e-15 * value)


def test_sparse_rows_without_an_entry_are_zeros():
    pca = DistributedPCA(2, n_clients=3).fit(sp.csr_array((10, 4)))
    assert_array_equal(pca.singular_values_, 0)
    assert_array_equal(pca.mean_, 0)
    assert pca.communication_.floats_pooled == 0


@pytest.mark.parametrize("k", [1, 4, 9, None])
def test_fitted_attributes_equal_scikit_learns(sites, k):
    X, clients = sites
    want = PCA(k, svd_solver="full").fit(X)
    pca = DistributedPCA(k).fit(X, clients=clients)
    assert pca.n_components_ == want.n_components_
    assert pca.n_samples_ == want.n_samples_
    for name in ("singular_values_", "explained_variance_", "explained_variance_ratio_", "mean_"):
        assert_allclose(getattr(pca, name), getattr(want, name), rtol=1e-11, err_msg=name)
    assert_allclose(pca.noise_variance_, want.noise_variance_, rtol=1e-10)
    assert_allclose(pca.components_, want.components_, atol=1e-9)
    assert_allclose(pca.transform(X), want.transform(X), atol=1e-8)
    assert_allclose(pca.score(X), want.score(X), rtol=1e-9)


@pytest.mark.parametrize("fraction", [0.3, 0.9, 0.999])
def test_a_fraction_is_the_share_of_variance_to_explain(sites, fraction):
    X, clients = sites
    explained = np.cumsum(Oracle(X).s ** 2) / np.sum(Oracle(X).s ** 2)
    want = int(np.sum(explained <= fraction)) + 1
    assert DistributedPCA(fraction).fit(X, clients=clients).n_components_ == want


def test_more_components_than_rows_are_those_that_exist():
    X = rows_of_decay(np.random.default_rng(6), 4, 12)
    assert_is_pca_of(DistributedPCA(10, n_clients=3).fit(X), X, 4)
    assert_is_pca_of(DistributedPCA(n_clients=9).fit(X[:1]), X[:1], 1)


# -------------------------------------------------------------------- weights


@pytest.mark.parametrize("d", [6, 40])
@pytest.mark.parametrize("mean", [0, 1e8])
def test_fractional_weights_are_those_of_the_weighted_svd(d, mean):
    rng = np.random.default_rng(7)
    X, clients = unlike_sites(rng, [40, 1, 70, 33], d)
    weight = rng.uniform(0, 3, len(X)) * (rng.random(len(X)) < 0.8)
    weight[clients == 1] = 0.3
    pca = DistributedPCA(3).fit(X + mean, clients=clients, sample_weight=weight)
    assert_is_pca_of(pca, X + mean, 3, weight)


def test_a_step_without_any_weight_changes_no_result(sites):
    X, clients = sites
    pca = DistributedPCA(4).fit(X, clients=clients)
    pca.partial_fit(X[:30] + 100, clients=clients[:30], sample_weight=np.zeros(30))
    assert_is_pca_of(pca, X, 4)
    with pytest.raises(ValueError, match="sample_weight"):
        DistributedPCA(4).fit(X, clients=clients, sample_weight=np.zeros(len(X)))


def test_a_far_client_of_hardly_any_weight_does_no_harm():
    rng = np.random.default_rng(9)
    X, clients = rng.standard_normal((101, 3)), np.repeat([0, 1, 2], [1, 50, 50])
    X[0] += 1e8
    weight = np.where(clients == 0, 1e-18, 1.0)
    want = Oracle(X, weight).s[:3]
    for labels in (clients, -clients):
        pca = DistributedPCA().fit(X, clients=labels, sample_weight=weight)
        assert_allclose(pca.singular_values_, want, rtol=0, atol=TOL * want[0])


# -------------------------------------------------------------------- the triangle of all rows


@pytest.mark.parametrize("n", [1, 2, 5, 8, 9, 30])
@pytest.mark.parametrize("how", ["one client", "two clients", "a row each", "a row at a time"])
@pytest.mark.parametrize("constant", [0, 3])
def test_the_factor_has_as_many_rows_as_the_data_up_to_the_features(n, how, constant):
    X = rows_of_decay(np.random.default_rng(10), n, 8)
    X[:, :constant] = 2.0
    s = {"one client": 1, "two clients": 2}.get(how, n)
    pca = DistributedPCA(n_clients=s)
    for batch in np.split(X, n) if how == "a row at a time" else [X]:
        pca.partial_fit(batch)
    assert_is_factor_of(pca.r_factor_, Oracle(X).gram)
    assert pca.r_factor_.shape == (min(n, 8), 8)


def test_the_factor_does_not_depend_on_the_order(sites):
    X, clients = sites
    o = Oracle(X)
    want = np.linalg.qr(o.Z)[1]
    want *= np.where(np.diag(want) < 0, -1, 1)[:, None]
    rng = np.random.default_rng(11)
    for labels in (clients, rng.permutation(7)[clients], clients % 3, np.arange(len(X))):
        order = rng.permutation(len(X))
        pca = DistributedPCA(2).fit(X[order], clients=labels[order])
        assert pca.r_factor_.shape == (9, 9)
        assert_is_factor_of(pca.r_factor_, o.gram)
        assert_allclose(pca.r_factor_, want, atol=1e-10)


def test_the_factor_is_not_the_state(sites):
    X, clients = sites
    pca = DistributedPCA(3).fit(X[:100], clients=clients[:100])
    pca.r_factor_[:] = 0
    assert_is_pca_of(pca.partial_fit(X[100:], clients=clients[100:]), X, 3)


# -------------------------------------------------------------------- updating


@examples
@given(
    blocks=st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 5), st.integers(1, 9)),  # client, call, rows
        min_size=1,
        max_size=20,
    ),
    d=st.integers(2, 7),
    mean=st.sampled_from([0.0, 1e8]),
    data=st.data(),
    seed=seeds,
)
def test_blocks_in_any_order_at_any_time_give_fit(blocks, d, mean, data, seed):
    rng = np.random.default_rng(seed)
    client = np.repeat([b[0] for b in blocks], [b[2] for b in blocks])
    call = np.repeat([b[1] for b in blocks], [b[2] for b in blocks])
    X = rows_of_decay(rng, len(client), d) + mean + 5.0 * (client % 3 - 1)[:, None]
    calls = data.draw(st.permutations(sorted(set(call.tolist()))))
    pca = DistributedPCA(2)
    seen = np.zeros(len(X), dtype=bool)
    for time in calls:
        now = rng.permutation(np.flatnonzero(call == time))
        pca.partial_fit(X[now], clients=client[now])
        seen[now] = True
        assert_is_pca_of(pca, X[seen], 2)
    want = DistributedPCA(2).fit(X, clients=client)
    assert pca.clients_ == want.clients_ == np.unique(client).tolist()
    assert_allclose(pca.singular_values_, want.singular_values_, rtol=0, atol=TOL * len(X))
    if len(X) > d + 1:  # of full rank: the factor is unique
        assert_allclose(pca.r_factor_, want.r_factor_, atol=1e-7)
    assert pca.communication_.floats_pooled == X.size


def test_a_late_client_and_a_late_block_are_included(sites):
    X, clients = sites
    pca = DistributedPCA(4)
    late = (clients == 6) | ((clients == 2) & (np.arange(len(X)) < 90))
    for mask in (
        ~late & (clients < 3),
        ~late & (clients >= 3),
        late & (clients == 2),
        clients == 6,
    ):
        pca.partial_fit(X[mask], clients=clients[mask])
    assert_is_pca_of(pca, X, 4)


def test_a_row_at_a_time_is_exact(sites):
    X, clients = sites
    pca = DistributedPCA(4)
    for i in range(25):
        pca.partial_fit(X[i : i + 1], clients=clients[i : i + 1])
        assert_is_pca_of(pca, X[: i + 1], 4)


def test_many_steps_do_not_pile_up_rounding():
    rng = np.random.default_rng(12)
    X, clients = unlike_sites(rng, [500] * 6, 7)
    pca = DistributedPCA(3)
    for rows in np.array_split(np.arange(len(X)), 300):
        pca.partial_fit(X[rows] + 1e8, clients=clients[rows])
    assert_is_pca_of(pca, X + 1e8, 3)


def test_fit_starts_afresh(sites):
    X, clients = sites
    pca = DistributedPCA(4).fit(X + 3, clients=clients).partial_fit(X, clients=clients)
    pca.fit(X[:60], clients=clients[:60])
    want = DistributedPCA(4).fit(X[:60], clients=clients[:60])
    assert_is_pca_of(pca, X[:60], 4)
    assert pca.communication_ == want.communication_
    assert pca.communication_.floats_pooled == 60 * 9


# -------------------------------------------------------------------- parallel clients


def test_parallel_clients_give_the_same_result(sites):
    X, clients = sites
    models = []
    for n_jobs in (1, 2):
        model = DistributedPCA(4, n_jobs=n_jobs).fit(X, clients=clients)
        models.append(model.partial_fit(X[:50] + 1, clients=clients[:50]))
    with joblib.parallel_config(backend="loky", n_jobs=2):
        model = DistributedPCA(4).fit(X, clients=clients)
        models.append(model.partial_fit(X[:50] + 1, clients=clients[:50]))
    for other in models[1:]:
        for name in ("components_", "singular_values_", "mean_", "r_factor_"):
            assert_allclose(getattr(other, name), getattr(models[0], name), rtol=0, atol=1e-11)
        assert other.communication_ == models[0].communication_
        assert other.clients_ == models[0].clients_


# -------------------------------------------------------------------- communication


@pytest.mark.parametrize(
    ("s", "share"),
    [
        (1, 0.0002),
        (4, 0.0042),
        (8, 0.0067),
        (16, 0.0098),
        (32, 0.0143),
        (64, 0.0217),
        (128, 0.0347),
    ],
)
def test_communication_is_that_of_the_papers_table(s, share):
    X = np.random.default_rng(13).standard_normal((6000, 20))
    log = DistributedPCA(2, n_clients=s).fit(X).communication_
    assert log.floats_pooled == 120_000
    assert abs(log.floats_busiest / log.floats_pooled - share) <= 5e-5 + 1e-12


@pytest.mark.parametrize("p", [1, 4, 7])
@pytest.mark.parametrize("s", [*range(1, 18), 31, 32, 33])
def test_every_float_is_counted(s, p):
    X = np.random.default_rng(14).standard_normal((s * (p + 1), p))
    log = DistributedPCA(n_clients=s).fit(X).communication_
    triangle, means = p * (p + 1) // 2, s * (p + 1)
    assert log.rounds == levels_of(s) + 1
    assert log.floats_busiest == levels_of(s) * triangle + means
    assert log.floats_up == (s - 1) * triangle + means
    assert log.bytes_up == 8 * (s - 1) * triangle + s * (16 * p + 8)
    assert log.floats_down == log.bytes_down == 0
    assert sum(row["messages_up"] for row in log.table) == (s - 1) + s
    assert [row["floats_busiest"] for row in log.table] == [triangle] * levels_of(s) + [means]


@pytest.mark.parametrize("s", [2, 4, 8, 16, 32])
@pytest.mark.parametrize("p", [3, 8, 50])
def test_clients_with_one_row_send_trapezoids(s, p):
    X = np.random.default_rng(15).standard_normal((s, p))
    log = DistributedPCA(n_clients=s).fit(X).communication_
    sent = [entries(2**level, p) for level in range(levels_of(s))]
    assert [row["floats_busiest"] for row in log.table] == [*sent, s * (p + 1)]
    in_all = [s // 2 ** (level + 1) * floats for level, floats in enumerate(sent)]
    assert [row["floats_up"] for row in log.table] == [*in_all, s * (p + 1)]


@examples
@given(first=st.integers(1, 12), second=st.integers(1, 12), p=st.integers(1, 10), seed=seeds)
def test_a_client_with_few_rows_sends_few_floats(first, second, p, seed):
    X = np.random.default_rng(seed).standard_normal((first + second, p))
    log = DistributedPCA().fit(X, clients=[0] * first + [1] * second).communication_
    # nobody has merged yet: the first client receives
    assert log.table[0]["floats_up"] == entries(second, p) <= p * (p + 1) // 2
    assert log.floats_busiest == log.floats_up == log.table[0]["floats_up"] + 2 * (p + 1)


@pytest.mark.parametrize("s", [1, 2, 3, 4, 6, 8, 11])
def test_steps_communicate_as_the_schedule_says(s):
    K, p = 15, 4
    pca, rng = DistributedPCA(2, n_clients=s), np.random.default_rng(16)
    for step in range(K):
        before = getattr(pca, "communication_", CommunicationLog())
        rounds, table = before.rounds, list(before.table)
        pca.partial_fit(rng.standard_normal((s * p + 3, p)))
        assert before.rounds == rounds  # a log that was handed out stays as it was
        assert pca.communication_.table[:rounds] == table
        assert pca.communication_.floats_pooled == (step + 1) * (s * p + 3) * p
    messages = [m for phase in load_balanced_schedule(s, K) for m in phase.messages]
    updates = sum(m.level >= levels_of(s) for m in messages)
    log = pca.communication_
    assert log.rounds == K * (levels_of(s) + 1) + updates
    triangles, means = len(messages) * p * (p + 1) // 2, (s * K + updates) * (p + 1)
    assert log.floats_up == triangles + means
    busiest = (K * levels_of(s) + updates) * p * (p + 1) // 2 + means
    assert log.floats_busiest == busiest


def test_a_step_of_the_holder_alone_sends_its_mean_only():
    X = np.random.default_rng(17).standard_normal((40, 5))
    pca = DistributedPCA().fit(X[:10], clients=["a"] * 10)
    pca.partial_fit(X[10:], clients=["a"] * 30)
    assert pca.communication_.floats_up == 2 * 6
    pca.partial_fit(X[:30], clients=["b"] * 30)
    assert pca.communication_.floats_up == 3 * 6 + 15 + 6
    assert pca.communication_.rounds == 4


def message(n_floats):
    return SimpleNamespace(n_floats=n_floats, nbytes=8 * n_floats)


def test_the_busiest_receiver_counts_in_each_round():
    log = CommunicationLog()
    log.record([message(3), message(4), message(5)], receivers=["a", "b", "a"])
    log.record([message(3), message(4)])
    log.record(down=[message(7), message(2)])
    log.record([message(3)], [message(2)], receivers=["a"])
    assert [row["floats_busiest"] for row in log.table] == [8, 7, 7, 3]
    assert log.floats_busiest == 25
    with pytest.raises(ValueError, match="zip"):
        log.record([message(1)], receivers=["a", "b"])


def test_a_copy_of_a_log_goes_on_alone():
    log = CommunicationLog(floats_pooled=5)
    log.record([message(3)])
    copy = log.copy()
    assert copy == log
    assert copy.floats_pooled == 5
    copy.record([message(4)])
    copy.floats_pooled += 1
    assert (log.rounds, log.floats_up, log.floats_pooled) == (1, 3, 5)
    assert (copy.rounds, copy.floats_up, copy.floats_pooled) == (2, 7, 6)
    assert CommunicationLog(floats_pooled=1) == CommunicationLog()


def test_a_server_takes_the_floats_of_all_clients(sites):
    X, clients = sites
    for model in (FederatedPCA(2), TruncatedDistributedPCA(2)):
        log = model.fit(X, clients=clients).communication_
        assert log.floats_busiest == log.floats_up
        assert log.floats_pooled == X.size


# -------------------------------------------------------------------- errors

MODELS = [DistributedPCA(2), TruncatedDistributedPCA(2)]

models = pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)


@models
@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize(("bad", "word"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_an_error_names_the_client(sites, model, n_jobs, method, bad, word):
    X, clients = sites
    names = np.array([f"site {c}" for c in clients])
    X[np.flatnonzero(clients == 4)[2], 3] = bad
    model = type(model)(2, n_jobs=n_jobs)
    with pytest.raises(ValueError, match=f"(?s)Client 'site 4': .*{word}"):
        getattr(model, method)(X, clients=names)


@models
@pytest.mark.parametrize("size", [1e200, 1e308])
def test_squares_that_overflow_are_refused_with_the_name_of_the_client(sites, model, size):
    X, clients = sites
    mine = clients == 3
    X[mine] *= size / abs(X[mine]).max()
    with pytest.raises(ValueError, match=r"Client 3: .*too large"):
        type(model)(2).fit(X, clients=clients)


@pytest.mark.parametrize("size", [1e160, 1e200, 1e307])
def test_squares_that_overflow_are_refused_by_the_triangle(size):
    X = size * np.random.default_rng(28).standard_normal((30, 4))
    with pytest.raises(ValueError, match="too large"):
        subspace_of(triangle_of_rows(X))
    big = Triangle(np.triu(np.full((4, 4), size)), np.zeros(4), np.zeros(4), 30.0, 30)
    with pytest.raises(ValueError, match="too large"):
        subspace_of(big)
    with pytest.raises(ValueError, match="too large"):
        subspace_of(pooled(merge_factors(big.factor, big.factor), [big, big]))


def test_a_sum_that_overflows_is_refused():
    X = np.full((30, 4), 1.5e308)
    assert not triangle_of_rows(X).factor.any()  # identical rows are no sum
    X[::2] *= -1
    with pytest.raises(ValueError, match="too large"):
        triangle_of_rows(X)


@models
@pytest.mark.parametrize("size", [1e160, 1e200, 1.5e308])
def test_clients_too_far_apart_are_refused_without_a_warning(model, size):
    X = np.array([[size, 1.0], [-size, 2.0]])
    with pytest.raises(ValueError, match="too large"):
        type(model)(1).fit(X, clients=[0, 1])


@pytest.mark.parametrize("size", [1e-160, 1e-150, 1e150])
def test_extreme_units_are_no_harm(sites, size):
    X, clients = sites
    pca = DistributedPCA(3).fit(X * size, clients=clients)
    o = Oracle(X)
    assert_allclose(pca.singular_values_ / size, o.s[:3], rtol=1e-10)
    assert sine_of_orthonormal(pca.components_, o.components[:3]) <= TOL


@pytest.mark.parametrize("clients", [3, 8])
@pytest.mark.parametrize("alpha", [0.5, 1, 3, 6, 10])
def test_few_components_are_right_to_rounding(alpha, clients):
    # five of 300, which an eigenproblem of R R^T tells where their squares keep enough digits
    d, rng = 300, np.random.default_rng(0)
    s = np.arange(1.0, d + 1) ** -alpha
    U = rng.standard_normal((900, d))
    U = np.linalg.qr(U - U.mean(axis=0))[0]
    V = np.linalg.qr(rng.standard_normal((d, d)))[0]
    pca = DistributedPCA(5, n_clients=clients).fit((U * s) @ V)
    rounding = 10 * np.finfo(float).eps  # of the largest one, which is 1
    assert_allclose(pca.singular_values_, s[:5], rtol=rounding / s[4], atol=0)
    # Wedin's theorem: a direction turns by rounding beside the gap to those that are left out
    assert subspace_distance(pca.components_, V[:5]) < rounding / (s[4] - s[5])
