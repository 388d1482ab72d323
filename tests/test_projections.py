"""Averages of projections, over clients and over time, against explicit d x d matrices.

Most shards are built from known principal axes, so that the projection matrix of a client is known
without any decomposition: rows are ``mean + U diag(s) axes`` with orthonormal, centred columns U.
"""

import pickle
from dataclasses import dataclass

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
    sine_of_orthonormal,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.model_selection import GridSearchCV

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
from fedpca_sklearn._projections import ProjectionMean, along, centred_product

EPS = np.finfo(np.float64).eps
examples = settings(max_examples=50, derandomize=True, deadline=None, database=None)
WEIGHTINGS = ["rows", "equal"]
each_weighting = pytest.mark.parametrize("weighting", WEIGHTINGS)


# -------------------------------------------------------------------- oracles and data


@dataclass
class Shard:
    """Rows with their mean and principal axes, as they were built."""

    rows: np.ndarray
    mean: np.ndarray
    axes: np.ndarray
    s: np.ndarray

    @property
    def n(self):
        return len(self.rows)

    def projection(self, p):
        return self.axes[:p].T @ self.axes[:p]

    def scatter_matrix(self, p=None):
        return (self.axes[:p].T * self.s[:p] ** 2) @ self.axes[:p]

    @property
    def subspace(self):
        return Subspace(self.axes, self.s, self.mean, self.n, self.s @ self.s)


def make_shard(rng, n, d, *, scale=1.0, mean=0.0, axes=None):
    """Rows whose singular values decay by 0.6; n - 1 directions at most, and no more than 12."""
    if axes is None:
        axes = random_basis(rng, min(n - 1, d, 12), d)
    r = len(axes)
    U = np.linalg.qr(np.c_[np.ones(n), rng.standard_normal((n, r))])[0][:, 1:]
    s = scale * np.sqrt(n) * 0.6 ** np.arange(r)
    mean = mean + np.zeros(d)
    return Shard(mean + (U * s) @ axes, mean, axes, s)


def make_shards(rng, sizes, d, far=1.0):
    """Shards of unlike scale, mean and axes."""
    return [
        make_shard(rng, n, d, scale=10 ** rng.uniform(-1, 1), mean=far * rng.standard_normal(d))
        for n in sizes
    ]


def alike_shards(rng, sizes, d, common=3):
    """Shards that share their first axes, up to a small rotation, and no other."""
    Q = np.linalg.qr(rng.standard_normal((d, common)))[0]
    shards = []
    for n in sizes:
        moved = np.c_[Q + 0.3 / np.sqrt(d) * rng.standard_normal(Q.shape), rng.random((d, 5))]
        shards.append(make_shard(rng, n, d, axes=np.linalg.qr(moved)[0].T))
    return shards


def pooled(shards):
    return np.concatenate([shard.rows for shard in shards])


def labels(shards):
    return np.repeat(np.arange(len(shards)), [shard.n for shard in shards])


def mean_of_projections(shards, p, weighting="equal", weights=None):
    """The explicit d x d mean."""
    shares = np.array([shard.n if weighting == "rows" else 1.0 for shard in shards])
    if weights is not None:
        shares = shares * weights
    return sum(a * shard.projection(p) for a, shard in zip(shares, shards, strict=True)) / sum(
        shares
    )


def merged_scatter(shards, p):
    """Scatter matrix about the common mean of what the clients send with p directions each."""
    n = sum(shard.n for shard in shards)
    mean = sum(shard.n * shard.mean for shard in shards) / n
    between = sum(shard.n * np.outer(shard.mean - mean, shard.mean - mean) for shard in shards)
    return sum(shard.scatter_matrix(p) for shard in shards) + between


def scatter_of(X):
    """Scatter matrix about the mean, and the mean; relative to a row, exact for large means."""
    Z = X - X[0]
    offset = Z.mean(axis=0)
    Z = Z - offset
    return Z.T @ Z, X[0] + offset


def eigenpairs(M):
    values, vectors = np.linalg.eigh(M)
    return values[::-1], vectors[:, ::-1].T


def rank_of(M):
    return int(np.sum(np.linalg.eigvalsh(M) > 1e-9))


def assert_orthonormal(V, atol=1e-9):
    V = V.astype(np.float64)
    assert_allclose(V @ V.T, np.eye(len(V)), atol=atol)


def assert_leads(V, M, k, tol=1e-9):
    """The rows of V span k leading eigenvectors of M, as far as M has so many.

    Where there is no gap, any basis that captures as much of M will do (Ky Fan).
    """
    values, vectors = eigenpairs(M)
    k = min(k, int(np.sum(values > 1e-9)))
    V = V[:k].astype(np.float64)
    assert len(V) == k
    assert np.trace(V @ M @ V.T) >= values[:k].sum() - tol
    gap = values[k - 1] - (values[k] if k < len(values) else 0) if k else 0
    if gap > 1e-3:
        assert sine(V, vectors[:k]) <= tol / gap


def assert_principal(pca, S, n, k=None, tol=1e-9):
    """The first k components are principal axes of the scatter matrix S within their span."""
    k = pca.n_components_ if k is None else k
    V = pca.components_[:k].astype(np.float64)
    along_them = V @ S @ V.T
    variances = np.diag(along_them) / (n - 1)
    size = max(np.trace(S) / (n - 1), 1e-300)
    assert_allclose(pca.explained_variance_[:k], variances, rtol=tol, atol=tol * size)
    assert_allclose(along_them, np.diag(np.diag(along_them)), atol=tol * size * (n - 1))
    assert np.all(np.diff(pca.explained_variance_) <= 0)
    assert_allclose(pca.singular_values_**2, pca.explained_variance_ * (n - 1), rtol=max(tol, EPS))


def assert_moments(pca, X, tol=1e-9):
    """Mean and total variance are those of all rows."""
    S, mean = scatter_of(np.asarray(X, dtype=np.float64))
    total = np.trace(S)
    assert_allclose(pca.mean_, mean, rtol=tol, atol=tol * np.sqrt(total / len(X)))
    assert_allclose(pca.subspace_.scatter, total, rtol=tol)
    k, d = pca.components_.shape
    if k < d:
        rest = total / (len(X) - 1) - pca.explained_variance_.sum()
        assert_allclose(pca.noise_variance_, rest / (d - k), rtol=tol, atol=tol * total / len(X))
    assert_allclose(
        pca.explained_variance_ratio_ * total,
        pca.explained_variance_ * (len(X) - 1),
        rtol=max(tol, 1e-12),
    )
    assert pca.n_samples_ == pca.n_samples_seen_ == len(X)


def same_subspace(a, b, tol=1e-9):
    return sine(a.components_, b.components_) <= tol


def spiked(rng, n, Q, variances):
    """Rows of N(0, I + Q^T diag(variances) Q)."""
    return (
        rng.standard_normal((n, Q.shape[1]))
        + (rng.standard_normal((n, len(Q))) * np.sqrt(variances)) @ Q
    )


sizes_of_clients = st.lists(st.integers(1, 25), min_size=1, max_size=12)


# -------------------------------------------------------------------- means of projections


@examples
@given(
    calls=st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=6),
    max_keep=st.sampled_from([3, 8, 30]),
    seed=st.integers(0, 2**20),
)
def test_what_was_cut_off_is_positive_and_within_the_bound(calls, max_keep, seed):
    rng = np.random.default_rng(seed)
    d, mean, total, exact = 30, ProjectionMean.empty(30), 0.0, np.zeros((30, 30))
    for ranks in calls:
        bases = [random_basis(rng, r, d) for r in ranks]
        weights = rng.uniform(0.1, 5, len(ranks))
        parts = [Subspace(V, np.zeros(len(V)), np.zeros(d), 1, 0) for V in bases]
        mean = mean.add(parts, weights, max_keep)
        exact += sum((w * V.T @ V for w, V in zip(weights, bases, strict=True)), np.zeros((d, d)))
        total += weights.sum()
        assert_allclose(mean.weight, total)
        assert len(mean.vectors) == len(mean.values) <= max_keep
        assert_orthonormal(mean.vectors)
        assert np.all(np.diff(mean.values) <= 0)
        cut = exact / (total or 1) - (mean.vectors.T * mean.values) @ mean.vectors
        values = np.linalg.eigvalsh(cut)
        assert values[0] >= -1e-12
        assert values[-1] <= mean.dropped + 1e-12
        if max_keep == d:
            assert mean.dropped <= 1e-12


def test_directions_of_few_columns_are_averaged_as_all_others():
    rng = np.random.default_rng(0)
    d, mean, exact, parts = 60, ProjectionMean.empty(60), np.zeros((60, 60)), []
    for i in range(5):
        V = np.zeros((3, d))
        V[:, 10 * i : 10 * i + 15] = random_basis(rng, 3, len(V[0, 10 * i : 10 * i + 15]))
        parts.append(Subspace(V, np.zeros(3), np.zeros(d), 1, 0))
        exact += V.T @ V / 5
    for group in (parts[:1], parts[1:3], parts[3:]):
        mean = mean.add(group, [1.0] * len(group), d)
    assert_allclose((mean.vectors.T * mean.values) @ mean.vectors, exact, atol=1e-12)
    assert_array_equal(np.any(mean.vectors != 0, axis=0), np.diag(exact) > 0)


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_a_summary_along_directions_has_the_scatter_along_them(rows):
    rng = np.random.default_rng(1)
    total = Subspace.from_rows(rng.standard_normal((40, 9)), 0)
    V, factor = random_basis(rng, 4, 9), 0.1 * rng.standard_normal((rows, 4))
    part = along(total, V, factor)
    S = V.T @ (factor.T @ factor) @ V
    assert_orthonormal(part.components)
    assert sine(part.components, V) <= 1e-12
    C = part.components
    assert_allclose(C @ S @ C.T, np.diag(part.singular_values**2), atol=1e-12)
    assert np.all(np.diff(part.singular_values) <= 0)
    assert part.n_components == 4
    assert part.scatter == total.scatter
    assert part.n_samples == 40
    assert_array_equal(part.mean, total.mean)


@pytest.mark.parametrize("d", [5, 300])
def test_rows_are_centred_before_they_are_projected(d):
    rng = np.random.default_rng(2)
    X = rng.integers(-9, 9, (1500, d)) + 2.0**40  # so that all differences are exact
    mean, basis = np.full(d, 2.0**40 + 0.5), rng.standard_normal((d, 3))
    Z = centred_product(X, mean, basis)
    assert_allclose(Z, (X - 2.0**40 - 0.5) @ basis, rtol=1e-12, atol=1e-12)
    sparse = sp.csr_array(rng.integers(0, 2, (50, d)) * 1.0)
    Z = centred_product(sparse, np.full(d, 0.5), basis)
    assert_allclose(Z, (sparse.toarray() - 0.5) @ basis, atol=1e-12 * d)


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
def test_weights_multiply_singular_values_and_their_squares_the_rows(weighting):
    shards = make_shards(np.random.default_rng(7), [9, 30, 14, 20], 15)
    weights = np.array([3.0, 0.5, 0.0, 1.0])
    result = ProjectionAverage(3, weighting).merge([s.subspace for s in shards], 2, weights=weights)
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
    for given_, weights in [
        ([Subspace.empty(9)], None),
        ([Subspace.empty(9)] * 3, None),
        ([shard.subspace] * 2, [0, 0]),
    ]:
        result = strategy.merge(given_, n_components, weights=weights)
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
    ("parameters", "message"),
    [
        ({"projection_dim": 0}, "'projection_dim' parameter of ProjectionAverage.*Got 0"),
        ({"projection_dim": -3}, "'projection_dim'.*Got -3"),
        ({"projection_dim": 1.5}, r"'projection_dim'.*Got 1\.5"),
        ({"projection_dim": "all"}, "'projection_dim'.*Got 'all'"),
        ({"weighting": "variance"}, "'weighting' parameter of ProjectionAverage.*Got 'variance'"),
        ({"weighting": None}, "'weighting'.*Got None"),
    ],
)
def test_bad_parameters_of_the_average_are_named(parameters, message):
    strategy, X = ProjectionAverage(**parameters), np.random.default_rng(15).random((9, 4))
    for call in (
        lambda: FederatedPCA(2, merge=strategy).fit(X),
        lambda: strategy.merge([Subspace.from_rows(X)], 2),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize(
    ("subspaces", "weights", "message"),
    [
        ([], None, "at least one"),
        (["a"], None, "must be Subspace"),
        ([Subspace.empty(3), Subspace.empty(4)], None, "4 features"),
        ([Subspace.from_rows(np.eye(3))], [1, 2], "weights"),
        ([Subspace.from_rows(np.eye(3))], [-1], "weights"),
    ],
)
def test_bad_summaries_are_refused_by_the_average(subspaces, weights, message):
    with pytest.raises((ValueError, TypeError), match=message):
        ProjectionAverage().merge(subspaces, 1, weights=weights)


@pytest.mark.parametrize("d", [15, 400])
@each_weighting
def test_order_of_clients_does_not_matter(d, weighting):
    rng = np.random.default_rng(16)
    shards = alike_shards(rng, [60, 9, 25, 40, 12], d)
    X, clients = pooled(shards), labels(shards)
    model = FederatedPCA(3, merge=ProjectionAverage(4, weighting))
    want = clone(model).fit(X, clients=clients)
    for _ in range(3):
        assert_same_summary(clone(model).fit(X, clients=rng.permutation(5)[clients]), want)


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


@each_weighting
def test_weighted_rows_count_as_repeated_ones_in_the_average(weighting):
    rng = np.random.default_rng(23)
    shards = alike_shards(rng, [30, 20, 40], 15)
    X, clients = pooled(shards), labels(shards)
    weight = rng.integers(0, 4, len(X))
    model = FederatedPCA(3, merge=ProjectionAverage(4, weighting))
    pca = clone(model).fit(X, clients=clients, sample_weight=weight)
    repeated = np.repeat(X, weight, axis=0)
    assert_same_summary(pca, clone(model).fit(repeated, clients=np.repeat(clients, weight)))
    assert_moments(pca, repeated)


@pytest.mark.parametrize("d", [40, 400])
def test_sparse_clients_equal_dense_ones(d):
    rng = np.random.default_rng(24)
    X = sp.random(90, d, density=0.2, random_state=rng).toarray() * 0.8 ** np.arange(d)
    clients = rng.permutation(np.repeat(np.arange(4), [20, 30, 15, 25]))
    local = [np.linalg.svd(scatter_of(X[clients == c])[0])[2][:5] for c in range(4)]
    M = sum(n * V.T @ V for n, V in zip([20, 30, 15, 25], local, strict=True)) / 90
    model = FederatedPCA(3, merge=ProjectionAverage(5, "rows"))
    for container in (np.asarray, sp.csr_array, sp.csc_matrix):
        pca = clone(model).fit(container(X), clients=clients)
        assert_leads(pca.components_, M, 3)
        assert_moments(pca, X)


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


def local(rows):
    """Shard of any rows, by numpy."""
    Z = rows - rows.mean(axis=0)
    _, s, axes = np.linalg.svd(Z, full_matrices=False)
    return Shard(rows, rows.mean(axis=0), axes[: len(rows) - 1], s[: len(rows) - 1])


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


def test_projection_dim_above_the_features_is_refused():
    with pytest.raises(ValueError, match="projection_dim=7 must be at most n_features=6"):
        OnlineDistributedPCA(2, projection_dim=7).fit(np.eye(6))


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


def test_parallel_clients_give_the_same_steps():
    rng = np.random.default_rng(57)
    steps = [make_shards(rng, [20, 30, 9], 300) for _ in range(3)]
    one = in_steps(OnlineDistributedPCA(3, n_jobs=1), steps)
    two = in_steps(OnlineDistributedPCA(3, n_jobs=2), steps)
    assert_same_summary(two, one, 1e-12)
    assert_allclose(two.projection_values_, one.projection_values_, rtol=1e-12)
    assert two.communication_ == one.communication_
    assert two.clients_ == one.clients_


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


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_components": 0}, "'n_components' parameter of OnlineDistributedPCA.*Got 0"),
        ({"n_components": 0.9}, r"'n_components'.*Got 0\.9"),
        ({"n_components": 7}, "n_components=7.*n_features=6"),
        ({"projection_dim": 0}, "'projection_dim' parameter of OnlineDistributedPCA.*Got 0"),
        ({"projection_dim": 2.0}, r"'projection_dim'.*Got 2\.0"),
        ({"weighting": "median"}, "'weighting'.*Got 'median'"),
        ({"n_clients": 0}, "'n_clients'.*Got 0"),
        ({"n_jobs": "all"}, "'n_jobs'.*Got 'all'"),
    ],
)
def test_bad_parameters_of_the_online_average_are_named(parameters, message):
    X = np.random.default_rng(62).standard_normal((20, 6))
    pca = OnlineDistributedPCA(2).fit(X).set_params(**parameters)
    before = joblib.hash(vars(pca))
    for call in (pca.fit, pca.partial_fit):
        for data in (X, [X, X]):
            with pytest.raises(ValueError, match=message):
                call(data)
    assert joblib.hash(vars(pca)) == before


# -------------------------------------------------------------------- sparse blocks of few columns


def rows_of_few_columns(rng, n, d=2000, used=300, offset=0.0):
    """Dense rows that hold values in some columns only, with decaying singular values."""
    columns = np.sort(rng.choice(d, used, replace=False))
    X = np.zeros((n, d))
    values = rng.standard_normal((n, used)) * np.maximum(0.8 ** np.arange(used), 0.02)
    values *= rng.random((n, used)) < 0.5
    values[0, values.any(axis=0) == 0] = 0.1  # every column is used
    X[:, columns] = values + (values != 0) * offset
    return X, columns


def assert_summary_of(subspace, X, weight=None, k=8, center=True):
    """Moments, and leading directions, against numpy's SVD of the dense rows."""
    w = np.ones(len(X)) if weight is None else weight
    mean = w @ X / w.sum() if center else np.zeros(X.shape[1])
    _, s, V = np.linalg.svd(np.sqrt(w)[:, None] * (X - mean), full_matrices=False)
    assert_allclose(subspace.mean, mean, atol=1e-13)
    assert_allclose(subspace.n_samples, w.sum())
    assert_allclose(subspace.scatter, s @ s, rtol=1e-12)
    assert_orthonormal(subspace.components)
    assert_allclose(subspace.singular_values[:k], s[:k], rtol=1e-9)
    assert sine(subspace.components[:k], V[:k]) <= 1e-9
    rest = subspace.singular_values
    assert_allclose(rest, s[: len(rest)], atol=1e-6 * s[0])


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n", [20, 200, 450])
def test_rows_that_use_few_columns_equal_dense_rows(n, weighted, center):
    rng = np.random.default_rng(63)
    X, columns = rows_of_few_columns(rng, n)
    weight = rng.uniform(0, 2, n) if weighted else None
    if weighted:
        weight[::7] = 0
    Y = sp.csr_array(X)
    subspace = Subspace.from_rows(Y, center=center, sample_weight=weight)
    assert_summary_of(subspace, X, weight, center=center)
    assert subspace.centered == center
    dense = Subspace.from_rows(X, center=center, sample_weight=weight)
    assert_allclose(dense.scatter, subspace.scatter, rtol=1e-12)
    others = np.setdiff1d(np.arange(2000), columns)
    assert not subspace.components[:, others].any()
    assert not subspace.mean[others].any()
    assert_array_equal(Y.toarray(), X)
    assert Subspace.from_bytes(subspace.to_bytes()).n_features == 2000


def test_rows_without_any_weight_leave_a_wide_summary_empty():
    X, _ = rows_of_few_columns(np.random.default_rng(64), 30)
    subspace = Subspace.from_rows(sp.csr_array(X), sample_weight=np.zeros(30))
    assert (subspace.n_components, subspace.n_features, subspace.n_samples) == (0, 2000, 0)
    assert subspace.scatter == 0


@pytest.mark.parametrize("used", [200, 256, 257, 300, 1000, 1001])
def test_any_number_of_used_columns(used):
    X, _ = rows_of_few_columns(np.random.default_rng(65), 60, used=used)
    assert_summary_of(Subspace.from_rows(sp.csr_array(X)), X)
    part = Subspace.from_rows(sp.csr_array(X), 5)
    assert part.n_components == 5
    assert_summary_of(part, X, k=5)


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_columns_that_are_full_are_centred_exactly(offset):
    rng = np.random.default_rng(66)
    X, columns = rows_of_few_columns(rng, 50)
    X[:, columns[:20]] = rng.standard_normal((50, 20)) + offset
    subspace = Subspace.from_rows(sp.csr_array(X), 5)
    S, mean = scatter_of(X)
    assert_allclose(subspace.mean, mean, rtol=1e-14, atol=1e-13)
    assert_allclose(subspace.scatter, np.trace(S), rtol=1e-9)
    values, vectors = eigenpairs(S)
    assert_allclose(subspace.singular_values**2, values[:5], rtol=1e-8)
    assert sine(subspace.components, vectors[:5]) <= 1e-7


@pytest.mark.parametrize("weighted", [False, True])
def test_explicit_zeros_duplicates_and_unsorted_entries_mean_the_same(weighted):
    rng = np.random.default_rng(67)
    X, _ = rows_of_few_columns(rng, 80)
    Y = sp.csr_array(X)
    weight = rng.uniform(0.5, 2, 80) if weighted else None
    data, indices, indptr = [], [], [0]
    zeros = rng.choice(2000, 20, replace=False)
    for i in range(80):
        row = slice(Y.indptr[i], Y.indptr[i + 1])
        entries = [(j, v / 4) for j, v in zip(Y.indices[row], Y.data[row], strict=True)] * 2
        entries += [(j, v / 2) for j, v in zip(Y.indices[row], Y.data[row], strict=True)]
        entries += [(j, 0.0) for j in zeros]
        order = rng.permutation(len(entries))
        indices += [entries[j][0] for j in order]
        data += [entries[j][1] for j in order]
        indptr.append(len(data))
    messy = sp.csr_array((np.array(data), np.array(indices), np.array(indptr)), shape=X.shape)
    before = [array.copy() for array in (messy.data, messy.indices, messy.indptr)]
    subspace = Subspace.from_rows(messy, sample_weight=weight)
    assert_summary_of(subspace, X, weight)
    for array, old in zip((messy.data, messy.indices, messy.indptr), before, strict=True):
        assert_array_equal(array, old)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_stream_that_goes_on_in_other_columns_equals_dense_rows(weighted):
    rng = np.random.default_rng(68)
    batches = [rows_of_few_columns(rng, n)[0] for n in (60, 50, 1, 40)]
    weights = [rng.uniform(0.5, 2, len(b)) if weighted else None for b in batches]
    pca = StreamingPCA().fit(sp.csr_array(batches[0]), sample_weight=weights[0])
    for batch, weight in zip(batches[1:], weights[1:], strict=True):
        pca.partial_fit(sp.csr_array(batch), sample_weight=weight)
    X = np.concatenate(batches)
    assert_summary_of(pca.subspace_, X, np.concatenate(weights) if weighted else None)
    few = StreamingPCA(5, oversampling=200).fit(sp.csr_array(batches[0]))
    for batch in batches[1:]:
        few.partial_fit(sp.csr_array(batch))
    assert_summary_of(few.subspace_, X, k=5)


def test_forgetting_starts_in_the_first_block_of_few_columns():
    rng = np.random.default_rng(69)
    X, _ = rows_of_few_columns(rng, 60)
    subspace = Subspace.empty(2000).update(sp.csr_array(X), forgetting_factor=0.95)
    assert_summary_of(subspace, X, 0.95 ** np.arange(59.0, -1, -1))


@pytest.mark.parametrize("of_rows", [np.float32, np.float64])
@pytest.mark.parametrize("of_summary", [np.float32, np.float64])
def test_few_columns_give_the_dtype_that_dense_rows_give(of_rows, of_summary):
    X = rows_of_few_columns(np.random.default_rng(70), 40)[0].astype(of_rows)
    start = Subspace.empty(2000, dtype=of_summary)
    dense, sparse = start.update(X, 4), start.update(sp.csr_array(X), 4)
    assert sparse.components.dtype == dense.components.dtype
    assert_allclose(sparse.singular_values, dense.singular_values, rtol=1e-5)
    assert Subspace.from_rows(sp.csr_array(X), 4).components.dtype == of_rows
