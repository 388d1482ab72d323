"""DistributedPCA and its schedule against numpy on the pooled rows, with every float counted.

Rows that come at any time are in test_federated_pca.py. Errors of singular values are relative to
the largest one. 1e-10 is far above the rounding of an orthogonal factorisation and far below any
error in the algebra. Below: its truncated baseline.
"""

import numpy as np
import pytest
from client_helpers import rows_of_clients
from helpers import centred, sine_of_orthonormal, unlike_sites
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from triangle_helpers import (
    SHAPES,
    TOL,
    Oracle,
    assert_is_pca_of,
    examples,
    levels_of,
)

from fedpca_sklearn import (
    CommunicationLog,
    DistributedPCA,
    TruncatedDistributedPCA,
    load_balanced_schedule,
    subspace_distance,
)

# -------------------------------------------------------------------- exactness


KINDS = {
    "badly scaled columns": lambda rng, X: X * 10.0 ** rng.integers(-8, 9, X.shape[1]),
    "low rank": lambda rng, X: X[:, :3] @ rng.standard_normal((3, X.shape[1])),
    "constant columns": lambda rng, X: np.where(np.arange(X.shape[1]) % 3, X, 1e6 / 3),
    "repeated rows": lambda rng, X: X[rng.integers(0, 4, len(X))],
    "a shallow spectrum far away": lambda rng, X: 1e8 + 1e-3 * X,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_difficult_rows_are_exact(kind, shape):
    rng = np.random.default_rng(1)
    sizes, d = SHAPES[shape]
    X, clients = unlike_sites(rng, sizes, d)
    X = KINDS[kind](rng, X)
    for k in (None, 2):
        assert_is_pca_of(DistributedPCA(k).fit(X, clients=clients), X, k)


def test_more_rows_than_a_block_about_a_far_mean_are_exact():
    X, clients = unlike_sites(np.random.default_rng(2), [3500, 2, 1001, 1000], 5)
    assert_is_pca_of(DistributedPCA(5).fit(X + 1e8, clients=clients), X + 1e8, 5)


def test_a_far_client_of_hardly_any_weight_does_no_harm():
    rng = np.random.default_rng(9)
    X, clients = rng.standard_normal((101, 3)), np.repeat([0, 1, 2], [1, 50, 50])
    X[0] += 1e8
    weight = np.where(clients == 0, 1e-18, 1.0)
    want = Oracle(X, weight).s[:3]
    for labels in (clients, -clients):
        pca = DistributedPCA().fit(X, clients=labels, sample_weight=weight)
        assert_allclose(pca.singular_values_, want, rtol=0, atol=TOL * want[0])


def test_rows_without_weight_are_no_rows_of_the_factor():
    X, weight = np.random.default_rng(0).standard_normal((8, 9)), np.tile([0.0, 1.0], 4)
    X[::4], X[2::4] = 1.7e308, -1.7e308  # whose difference is infinite
    R = DistributedPCA(2).fit(X, sample_weight=weight).r_factor_
    assert R.shape == (4, 9)
    assert_allclose(R.T @ R, 3 * np.cov(X[1::2].T), atol=1e-12)


@pytest.mark.parametrize(("alpha", "clients"), [(0.5, 3), (1, 8), (3, 3), (6, 8), (10, 3)])
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


# -------------------------------------------------------------------- communication


@pytest.mark.parametrize(
    ("s", "share"),
    [(1, 0.0002), (4, 0.0042), (8, 0.0067), (16, 0.0098), (32, 0.0143), (64, 0.0217)],
)
def test_communication_is_that_of_the_papers_table(s, share):
    X = np.random.default_rng(13).standard_normal((6000, 20))
    log = DistributedPCA(2, n_clients=s).fit(X).communication_
    assert log.floats_pooled == 120_000
    assert abs(log.floats_busiest / log.floats_pooled - share) <= 5e-5 + 1e-12


@pytest.mark.parametrize("p", [1, 7])
@pytest.mark.parametrize("s", [1, 2, 3, 4, 5, 17, 32, 33])
def test_any_number_of_clients_is_exact_and_every_float_is_counted(s, p):
    X = np.random.default_rng(14).standard_normal((s * (p + 1), p))
    pca = DistributedPCA(n_clients=s).fit(X)
    assert_is_pca_of(pca, X)
    log, triangle, means = pca.communication_, p * (p + 1) // 2, s * (p + 1)
    assert [row["floats_busiest"] for row in log.table] == [triangle] * levels_of(s) + [means]
    assert log.floats_up == (s - 1) * triangle + means
    assert log.bytes_up == 8 * (s - 1) * triangle + s * (16 * p + 8)
    assert log.floats_down == log.bytes_down == 0
    assert log.totals["messages_up"] == (s - 1) + s


@pytest.mark.parametrize(("s", "p"), [(2, 3), (32, 8), (16, 50)])
def test_clients_with_one_row_send_trapezoids(s, p):
    X = np.random.default_rng(15).standard_normal((s, p))
    log = DistributedPCA(n_clients=s).fit(X).communication_
    rows = [min(2**level, p) for level in range(levels_of(s))]
    sent = [m * p - m * (m - 1) // 2 for m in rows]
    assert [row["floats_busiest"] for row in log.table] == [*sent, s * (p + 1)]
    in_all = [s // 2 ** (level + 1) * floats for level, floats in enumerate(sent)]
    assert [row["floats_up"] for row in log.table] == [*in_all, s * (p + 1)]


def test_of_a_step_and_all_rows_before_the_factor_that_moves_is_logged():
    X, pca = np.random.default_rng(0).standard_normal((24, 5)), DistributedPCA(2)
    for rows, client in zip(np.split(X, [20, 22]), "abb", strict=True):
        pca.partial_fit(rows, clients=[client] * len(rows))
    # two rows to "a", and then all 22 to "b", with a mean each
    sent = [row["floats_up"] for row in pca.communication_.table]
    assert sent == [6, 6, 9 + 6, 6, 15 + 6]


@pytest.mark.parametrize("s", [1, 3, 8])
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


# -------------------------------------------------------------------- the truncated baseline


class TruncatedOracle:
    """The covariance of what clients send, assembled and decomposed."""

    def __init__(self, X, clients, threshold, weight=None):
        w = np.ones(len(X)) if weight is None else np.asarray(weight, dtype=np.float64)
        _, self.mean = centred(X, w)
        self.n, self.n_rows, self.d = w.sum(), int(np.ceil(w).sum()), X.shape[1]
        self.gram, self.ranks = np.zeros((self.d, self.d)), {}
        for label in np.unique(clients).tolist():
            mine = clients == label
            o = Oracle(X[mine], w[mine])
            shares = np.cumsum(o.s**2) / o.scatter if o.scatter else np.zeros(1)
            k = int(np.sum(shares <= threshold)) + 1 if o.scatter else 0
            k = min(k, int(np.sum(o.s > 1e-12 * o.s[0])))
            cut = o.s[:k, None] * o.components[:k]
            gap = o.mean - self.mean
            self.gram += cut.T @ cut + o.n * np.outer(gap, gap)
            self.ranks[label] = k
        lam, V = np.linalg.eigh(self.gram)
        self.lam, self.components = np.maximum(lam[::-1], 0), V[:, ::-1].T


def assert_is_truncated(pca, X, clients, threshold, k=None, weight=None):
    o = TruncatedOracle(X, clients, threshold, weight)
    k = min(o.n_rows, o.d) if k is None else min(k, o.n_rows)
    dof, total = max(o.n - 1, o.n / 2), o.lam.sum()
    assert pca.local_components_ == o.ranks
    if isinstance(k, float):
        with np.errstate(invalid="ignore", divide="ignore"):  # of one row
            k = int(np.sum(np.cumsum(o.lam) / total <= k)) + 1
    assert pca.n_components_ == k
    assert pca.n_samples_ == o.n_rows
    atol = TOL * total
    assert_allclose(pca.singular_values_**2, o.lam[:k], rtol=0, atol=atol)
    assert_allclose(pca.explained_variance_ratio_ * total, o.lam[:k], rtol=0, atol=atol)
    noise = o.lam[k:].sum() / dof / max(o.d - k, 1)
    assert_allclose(pca.noise_variance_, noise, rtol=0, atol=atol)
    assert_allclose(pca.mean_, o.mean, rtol=1e-13, atol=1e-12)
    assert_allclose(pca.subspace_.scatter, total, rtol=TOL)
    s = np.sqrt(np.append(o.lam, 0))
    for r in np.flatnonzero((s[:-1] - s[1:])[:k] > 1e-2 * s[0]) + 1:
        assert sine_of_orthonormal(pca.components_[:r], o.components[:r]) <= 1e-9


@examples
@given(
    rows_of_clients(st.integers(2, 12), ["fractions"], [0.0]),
    st.sampled_from([0.2, 0.5, 0.9, 0.99, 1, 1.0]),
    st.sampled_from([None, 1, 2, 0.4, 0.8]),
    st.booleans(),
)
def test_truncated_clients_give_the_assembled_covariance(drawn, threshold, k, constant):
    X, clients, d, floats, messages = drawn.X, drawn.clients, drawn.X.shape[1], 0, 0
    X[(clients == 0) & constant] = 3.0  # sends its mean only
    pca = TruncatedDistributedPCA(k, local_threshold=threshold)
    for rows, options, seen, weight in drawn.calls():
        pca.partial_fit(rows, **options)
        assert_is_truncated(pca, X[seen], clients[seen], threshold, k, weight)
        ranks = [pca.local_components_[c] for c in set(options["clients"].tolist())]
        directions = (m * (d + 1) if m < d else d * (d + 1) // 2 for m in ranks)  # a triangle
        floats, messages = floats + sum(directions) + len(ranks) * (d + 1), messages + len(ranks)
        assert pca.communication_.floats_up == pca.communication_.floats_busiest == floats
    log = pca.communication_
    assert (log.rounds, log.totals["messages_up"]) == (len(set(drawn.call.tolist())), messages)
    assert log.floats_pooled == X.size
    assert pca.clients_ == sorted(set(clients.tolist()))
