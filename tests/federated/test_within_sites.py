"""SubspaceMerge(center="site") is the PCA of rows minus the mean of their site."""

import numpy as np
import pytest
from helpers import as_dense, client_sizes, rows_of_decay, unlike_sites
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.decomposition import PCA

from fedpca_sklearn import AnalyzeGauss, FederatedPCA, StreamingPCA, Subspace, SubspaceMerge

WITHIN = SubspaceMerge(center="site")


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
    scale = max(s[0], 1.0)
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


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(client_sizes, st.integers(0, 99), st.booleans(), st.sampled_from([None, 2, 3]))
def test_it_is_the_pca_of_rows_minus_their_sites_mean(sizes, seed, weighted, fan_in):
    rng = np.random.default_rng(seed)
    X, clients = unlike_sites(rng, sizes, 5)
    weight = rng.integers(0, 3, len(X)).astype(float) if weighted else None
    if weighted:
        weight[0] = 1.0
    merge = SubspaceMerge(center="site", fan_in=fan_in)
    pca = FederatedPCA(3, merge=merge).fit(X, clients=clients, sample_weight=weight)
    assert_is_pca_within(pca, X, clients, len(pca.components_), weight)


@pytest.fixture(scope="module")
def sites():
    return unlike_sites(np.random.default_rng(0), [40, 1, 70, 25], 8)


def test_what_sites_differ_by_is_left_out(sites):
    X, clients = sites
    within = FederatedPCA(3, merge=WITHIN).fit(X, clients=clients)
    between = FederatedPCA(3).fit(X, clients=clients)
    assert between.explained_variance_[0] > 20 * within.explained_variance_[0]  # +5 and -5 in each
    assert_is_pca_within(within, X, clients, 3)


def test_by_files_the_same_numbers(sites, tmp_path):
    X, clients = sites
    summaries = []
    for site in range(4):
        StreamingPCA().fit(X[clients == site]).subspace_.save(tmp_path / "s", site=f"site {site}")
        summaries.append(Subspace.load(tmp_path / "s"))
    pca = FederatedPCA.from_subspaces(summaries, 3, merge=WITHIN)
    assert_is_pca_within(pca, X, clients, 3)
    # regions merge first, and hand on what they have merged
    regions = [WITHIN.merge(part)._replace(site=None) for part in (summaries[:2], summaries[2:])]
    both = FederatedPCA.from_subspaces(regions, 3, merge=WITHIN)
    assert_is_pca_within(both, X, clients, 3)


def test_a_client_comes_again_and_leaves(sites):
    X, clients = sites
    pca = FederatedPCA(3, merge=WITHIN)
    order = np.random.default_rng(1).permutation(len(X))
    for part in np.array_split(order, 4):
        pca.partial_fit(X[part], clients=clients[part])
    assert_is_pca_within(pca, X, clients, 3)
    pca.remove(2)
    assert_is_pca_within(pca, X[clients != 2], clients[clients != 2], 3)


def test_rows_of_known_and_new_sites_are_mapped_alike(sites):
    X, clients = sites
    pca = FederatedPCA(3, merge=WITHIN).fit(X, clients=clients)
    new = rows_of_decay(np.random.default_rng(3), 9, 8) + 100
    want = (new - X.mean(axis=0)) @ pca.components_.T
    assert_allclose(pca.transform(new), want, atol=1e-9)
    at = clients == 2
    own = pca.transform(X[at]) - pca.transform(X[at].mean(axis=0)[None])
    assert_allclose(own, minus_site_means(X, clients)[at] @ pca.components_.T, atol=1e-9)


def test_means_far_from_zero_and_float32(sites):
    X, clients = sites
    far = FederatedPCA(3, merge=WITHIN).fit(X + 1e6, clients=clients)
    assert_is_pca_within(far, X + 1e6, clients, 3, tol=1e-9)
    single = FederatedPCA(3, merge=WITHIN).fit(X.astype(np.float32), clients=clients)
    assert single.components_.dtype == np.float32
    want = PCA(3).fit(minus_site_means(X, clients))
    assert_allclose(single.explained_variance_, want.explained_variance_, rtol=1e-5)


def test_sites_of_one_row_have_no_variance_within():
    X = np.arange(12.0).reshape(4, 3)
    pca = FederatedPCA(2, merge=WITHIN).fit(X, clients=[0, 1, 2, 3])
    assert_array_equal(pca.explained_variance_, [0, 0])
    assert_array_equal(pca.mean_, X.mean(axis=0))


def test_the_bound_holds_for_what_clients_cut():
    rng = np.random.default_rng(4)
    X = rows_of_decay(rng, 400, 300, decay=0.5, least=1e-4) + 3
    clients = np.arange(400) // 100
    X += clients[:, None]
    pca = FederatedPCA(2, merge=WITHIN).fit(X, clients=clients)
    V = np.linalg.svd(minus_site_means(X, clients), full_matrices=False)[2][:2]
    error = np.linalg.norm(V - V @ pca.components_.T @ pca.components_, 2)
    assert error <= pca.subspace_error_bound_ < 0.1


def test_what_does_not_fit_is_refused(sites):
    X, clients = sites
    pca = FederatedPCA(3, merge=WITHIN)
    with pytest.raises(ValueError, match="cannot be refined"):
        pca.fit(X, clients=clients).refine(X, clients=clients)
    with pytest.raises(ValueError, match="cannot be refined"):
        FederatedPCA(3, merge=WITHIN, n_refinements=1).fit(X, clients=clients)
    with pytest.raises(ValueError, match='center="site" needs summaries about their means'):
        FederatedPCA(3, merge=WITHIN, estimator=StreamingPCA(3, center=False)).fit(
            X, clients=clients
        )
    with pytest.raises(ValueError, match="center"):
        SubspaceMerge(center="column").merge([Subspace.from_rows(X)])
    hidden = AnalyzeGauss(1.0, 1e-3, 9.0, trust="sum")
    with pytest.raises(ValueError, match="trust='sum' hides the summaries of clients"):
        FederatedPCA(3, merge=WITHIN, mechanism=hidden).fit(X, clients=clients)
