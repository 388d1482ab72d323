"""The truncated baseline of the exact method."""

import numpy as np
import pytest
from helpers import (
    sine_of_orthonormal,
    unlike_sites,
)
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from triangle_helpers import SHAPES, TOL, Oracle, centred, examples, seeds, seven_sites

from fedpca_sklearn import (
    TruncatedDistributedPCA,
)


@pytest.fixture
def sites():
    return seven_sites()


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
    k = min(o.n_rows, o.d) if k is None else k
    dof, total = max(o.n - 1, o.n / 2), o.lam.sum()
    assert pca.local_components_ == o.ranks
    assert pca.n_components_ == k
    assert pca.n_samples_ == o.n_rows
    atol = TOL * total
    assert_allclose(pca.singular_values_**2, o.lam[:k], rtol=0, atol=atol)
    assert_allclose(pca.explained_variance_, o.lam[:k] / dof, rtol=0, atol=atol / dof)
    assert_allclose(pca.explained_variance_ratio_, o.lam[:k] / total, rtol=0, atol=TOL)
    noise = o.lam[k:].sum() / dof / max(o.d - k, 1)
    assert_allclose(pca.noise_variance_, noise, rtol=0, atol=atol)
    assert_allclose(pca.mean_, o.mean, rtol=1e-13, atol=1e-12)
    assert_allclose(pca.subspace_.scatter, total, rtol=TOL)
    s = np.sqrt(np.append(o.lam, 0))
    for r in np.flatnonzero((s[:-1] - s[1:])[:k] > 1e-2 * s[0]) + 1:
        assert sine_of_orthonormal(pca.components_[:r], o.components[:r]) <= 1e-9


@examples
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=15),
    d=st.integers(2, 12),
    threshold=st.sampled_from([0.2, 0.5, 0.9, 0.99]),
    k=st.sampled_from([None, 1, 2]),
    weighted=st.booleans(),
    seed=seeds,
)
def test_truncated_clients_give_the_assembled_covariance(sizes, d, threshold, k, weighted, seed):
    rng = np.random.default_rng(seed)
    X, clients = unlike_sites(rng, [*sizes, 4], d)
    weight = rng.uniform(0.2, 3, len(X)) if weighted else None
    pca = TruncatedDistributedPCA(k, local_threshold=threshold)
    pca.fit(X, clients=clients, sample_weight=weight)
    assert_is_truncated(pca, X, clients, threshold, k, weight)
    log, ranks = pca.communication_, pca.local_components_.values()
    directions = (m * (d + 1) if m < d else d * (d + 1) // 2 for m in ranks)  # all: a triangle
    assert log.floats_up == log.floats_busiest == sum(directions) + len(ranks) * (d + 1)
    assert log.table[0]["messages_up"] == len(sizes) + 1
    assert log.rounds == 1


@pytest.mark.parametrize("whole", [1, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_local_threshold_of_one_gives_pca_of_the_pooled_rows(shape, whole):
    sizes, d = SHAPES[shape]
    X, clients = unlike_sites(np.random.default_rng(20), sizes, d)
    pca = TruncatedDistributedPCA(3, local_threshold=whole).fit(X, clients=clients)
    o = Oracle(X)
    assert_allclose(pca.singular_values_, o.s[:3], rtol=0, atol=TOL * o.s[0])
    for r in o.gapped_ranks(3):
        assert sine_of_orthonormal(pca.components_[:r], o.components[:r]) <= TOL
    rest = np.sum(o.s[3:] ** 2) / (len(X) - 1) / (d - 3)
    assert_allclose(pca.noise_variance_, rest, rtol=0, atol=TOL * o.scatter)
    assert_allclose(pca.mean_, o.mean, atol=1e-13)


def test_truncation_loses_what_the_exact_method_keeps(sites):
    X, clients = sites
    loose = TruncatedDistributedPCA(4, local_threshold=0.3).fit(X, clients=clients)
    tight = TruncatedDistributedPCA(4, local_threshold=0.9).fit(X, clients=clients)
    want = Oracle(X).s[:4]
    assert np.all(loose.singular_values_ <= tight.singular_values_ + 1e-9)
    assert np.all(tight.singular_values_ <= want + 1e-9)
    assert loose.singular_values_[-1] < 0.99 * want[-1]
    assert loose.communication_.floats_up < tight.communication_.floats_up


def test_a_truncated_client_goes_on_with_all_its_rows(sites):
    X, clients = sites
    pca = TruncatedDistributedPCA(3, local_threshold=0.6)
    seen, floats = np.zeros(len(X), dtype=bool), 0
    order = np.random.default_rng(21).permutation(len(X))
    for rows in np.array_split(order, 9):
        pca.partial_fit(X[rows], clients=clients[rows])
        seen[rows] = True
        assert_is_truncated(pca, X[seen], clients[seen], 0.6, 3)
        floats += sum((pca.local_components_[c] + 1) * 10 for c in set(clients[rows].tolist()))
        assert pca.communication_.floats_up == floats
    assert pca.communication_.rounds == 9
    assert pca.communication_.floats_pooled == X.size
    assert pca.clients_ == list(range(7))


@pytest.mark.parametrize("fraction", [0.4, 0.8, 0.99])
def test_a_float_is_the_global_threshold(sites, fraction):
    X, clients = sites
    lam = TruncatedOracle(X, clients, 0.7).lam
    want = int(np.sum(np.cumsum(lam) / lam.sum() <= fraction)) + 1
    pca = TruncatedDistributedPCA(fraction, local_threshold=0.7).fit(X, clients=clients)
    assert_is_truncated(pca, X, clients, 0.7, want)


def test_a_constant_client_sends_its_mean_only():
    X = np.random.default_rng(22).standard_normal((30, 4))
    X[:10] = X[0]
    clients = np.repeat([0, 1], [10, 20])
    pca = TruncatedDistributedPCA(2, local_threshold=0.5).fit(X, clients=clients)
    assert pca.local_components_[0] == 0
    assert pca.communication_.floats_up == 5 * (2 + pca.local_components_[1])
    assert_is_truncated(pca, X, clients, 0.5, 2)
