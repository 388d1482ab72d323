"""What nobody cut is merged exactly: every route to the PCA of the pooled rows, by numpy's SVD."""

from functools import cache

import numpy as np
import pytest
from helpers import measured, peak_bytes, sine
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from fedpca_sklearn import (
    FederatedPCA,
    LeftVectorMerge,
    StreamingPCA,
    Subspace,
    SubspaceMerge,
    VerticalFederatedPCA,
    make_power_law,
    merge_subspaces,
)

METHODS = ["auto", "gram", "qr", "svd", "orthogonal"]

# Number of rows, features and sites: below and above the 256 features up to which clients keep
# all; more directions in all than features, and fewer; more than fit in one stack; a row a site.
SHAPES = {
    "narrow, many directions": (4000, 20, 100),
    "one stack": (300, 200, 5),
    "wide, one site more than the stack of old held": (1200, 640, 20),
    "wide, more features than rows": (700, 1500, 12),
    "wide, every row alone": (560, 600, 560),
}


def decaying(n, d, n_sites, seed=0):
    """Rows with variances like 1 / i, and sites that differ in their means."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) / np.sqrt(np.arange(1, d + 1))
    parts = np.array_split(np.arange(n), n_sites)
    for rows in parts:
        X[rows] += 0.1 * rng.standard_normal(d) / np.sqrt(np.arange(1, d + 1))
    return X, parts


def oracle(X):
    """Singular values and vectors of the pooled rows about their mean."""
    return np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[1:]


def rank_of(s, n_components):
    """As many directions as explain more than a fraction, or as are asked for."""
    if n_components is None or n_components >= 1:
        return n_components or int(np.sum(s > 1e-12 * s[0]))
    return 1 + int(np.sum(np.cumsum(s**2) <= n_components * np.sum(s**2)))


def assert_is_pca(found, s, Vt, n_components, tol=1e-10):
    k = rank_of(s, n_components)
    V, values = found.components[:k], found.singular_values[:k]
    assert found.n_components >= k
    np.testing.assert_allclose(values, s[:k], rtol=0, atol=tol * s[0])
    if k < len(s) and s[k] > 1e-9 * s[0]:
        assert sine(V, Vt[:k]) <= tol


@cache
def summarised(n, d, n_sites):
    """Summaries of the sites, and the singular values and vectors of their rows together."""
    X, parts = decaying(n, d, n_sites)
    return [Subspace.from_rows(X[rows]) for rows in parts], *oracle(X)


@pytest.fixture(params=SHAPES)
def pooled(request):
    return summarised(*SHAPES[request.param])


@pytest.mark.parametrize("n_components", [5, 0.6, None])
@pytest.mark.parametrize("fan_in", [None, 2, 7])
def test_untruncated_summaries_merge_to_the_pca_of_all_rows(pooled, n_components, fan_in):
    parts, s, Vt = pooled
    merge = SubspaceMerge(fan_in=fan_in)
    if fan_in is None:
        assert_is_pca(merge.merge(parts, n_components), s, Vt, n_components)
        assert_is_pca(merge_subspaces(parts, n_components), s, Vt, n_components)
    pca = FederatedPCA.from_subspaces(parts, n_components, merge=merge)
    assert_is_pca(pca.subspace_, s, Vt, n_components)
    if n_components is not None:
        assert pca.n_components_ == rank_of(s, n_components)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("n_components", "fan_in"), [(5, None), (0.6, None), (5, 4), (0.6, 4)])
def test_every_method_is_exact(method, n_components, fan_in):
    """More directions than features and than one stack holds, for every method alike."""
    subspaces, s, Vt = summarised(1600, 300, 40)
    found = SubspaceMerge(method, fan_in=fan_in).merge(subspaces, n_components)
    assert_is_pca(found, s, Vt, n_components)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("n", "d"), [(3000, 8), (2500, 300)])
def test_spectra_of_any_spread_survive_more_rows_than_are_stacked(method, n, d):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d)) * np.geomspace(1, 1e-9, d)
    parts = [Subspace.from_rows(rows) for rows in np.array_split(X, n // 50)]
    found = merge_subspaces(parts, method=method)
    s, _ = oracle(X)
    known = d if method != "gram" else int(np.sum(s > 1e-4 * s[0]))
    np.testing.assert_allclose(found.singular_values[:known], s[:known], rtol=0, atol=1e-12 * s[0])
    V = found.components
    np.testing.assert_allclose(V @ V.T, np.eye(len(V)), atol=1e-9)


@settings(max_examples=25, derandomize=True, deadline=None, database=None)
@given(st.data())
def test_cuts_of_rows_trees_and_methods_do_not_matter(data):
    d = data.draw(st.sampled_from([12, 257, 400]))
    sizes = data.draw(st.lists(st.integers(1, 60), min_size=2, max_size=25))
    method = data.draw(st.sampled_from(METHODS))
    fan_in = data.draw(st.sampled_from([None, 2, 3, 8]))
    n_components = data.draw(st.sampled_from([1, 4, 0.5, 0.99]))
    X, _ = decaying(sum(sizes), d, 3, seed=data.draw(st.integers(0, 99)))
    parts = [Subspace.from_rows(rows) for rows in np.split(X, np.cumsum(sizes)[:-1])]
    found = SubspaceMerge(method, fan_in=fan_in).merge(parts, n_components)
    s, Vt = oracle(X)
    k = min(rank_of(s, n_components), len(X) - 1)
    gap = (s[k - 1] ** 2 - s[k] ** 2) / s[0] ** 2 if k < len(s) else 1.0
    np.testing.assert_allclose(found.singular_values[:k], s[:k], rtol=0, atol=1e-10 * s[0])
    if gap > 1e-3:
        assert sine(found.components[:k], Vt[:k]) <= 1e-10


@pytest.mark.parametrize("fan_in", [None, 2])
@pytest.mark.parametrize("n_clients", [2, 20])
def test_a_fraction_chooses_what_it_would_of_all_rows(fan_in, n_clients):
    X = make_power_law(4000, 100, alpha=1.0, random_state=0)
    for fraction in (0.5, 0.9, 0.99):
        want = PCA(fraction, svd_solver="full").fit(X)
        merge = SubspaceMerge(fan_in=fan_in)
        pca = FederatedPCA(fraction, n_clients=n_clients, merge=merge).fit(X)
        assert pca.n_components_ == want.n_components_
        assert sine(pca.components_, want.components_) <= 1e-10


def test_a_fraction_of_flat_spectra_is_exact_as_well():
    X = np.random.default_rng(0).standard_normal((4000, 100))
    want = PCA(0.9, svd_solver="full").fit(X)
    pca = FederatedPCA(0.9, n_clients=20).fit(X)
    assert pca.n_components_ == want.n_components_
    assert sine(pca.components_, want.components_) <= 1e-10


@pytest.mark.parametrize("local", [None, 40])
@pytest.mark.parametrize("p", [2, 10, 64])
def test_columns_of_many_clients_are_merged_exactly(p, local):
    X = make_power_law(400, 640, alpha=1.0, random_state=0)
    pca = VerticalFederatedPCA(5, feature_groups=p, method=LeftVectorMerge(local)).fit(X)
    if local is None:
        assert sine(pca.components_, oracle(X)[1][:5]) <= 1e-10
        return
    Z = (X - X.mean(axis=0)).T  # the span of the leading left vectors of what clients send
    sent = [np.linalg.svd(part, full_matrices=False) for part in np.array_split(Z, p)]
    stack = np.concatenate([s[:local, None] * V[:local] for _, s, V in sent])
    U = np.linalg.svd(stack, full_matrices=False)[2][:5]
    assert sine(pca.components_, U @ Z.T) <= 1e-9


@pytest.mark.parametrize("fan_in", [None, 4])
def test_summaries_that_were_cut_are_merged_exactly_for_what_they_hold(fan_in):
    """The stack of what is there, mean corrections included, whatever its size."""
    X, rows = decaying(3000, 700, 30)
    parts = [Subspace.from_rows(X[i], 30) for i in rows]
    mean = X.mean(axis=0)
    stack = [s.singular_values[:, None] * s.components for s in parts]
    stack += [np.sqrt(s.n_samples) * (s.mean - mean)[None] for s in parts]
    s, Vt = np.linalg.svd(np.concatenate(stack), full_matrices=False)[1:]
    found = SubspaceMerge(fan_in=fan_in).merge(parts, 10)
    # an inner node of a tree is a client's summary with extra directions, and cut as such
    tol = 1e-10 if fan_in is None else 0.05
    np.testing.assert_allclose(found.singular_values, s[:10], rtol=tol)
    assert sine(found.components, Vt[:10]) <= tol


@pytest.mark.parametrize("k", [3, 40])
def test_leading_directions_of_a_stack_that_is_large_both_ways(k):
    """1,200 directions in 1,300 features; 12 of them have the same variance exactly."""
    rng = np.random.default_rng(0)
    spectrum = 1 / np.arange(1, 1201) ** 0.7
    spectrum[4:16] = spectrum[4]
    order = rng.permutation(1200)
    axes = np.eye(1200, 1300)
    parts = []
    for i in np.split(order, 60):
        i = np.sort(i)
        s = spectrum[i]
        parts.append(Subspace(axes[i], s, np.zeros(1300), 100.0, float(s @ s), centered=False))
    found = merge_subspaces(parts, k)
    np.testing.assert_allclose(found.singular_values, spectrum[:k], rtol=1e-10)
    assert sine(found.components, axes[:k]) <= 1e-10


def test_digits_of_unlike_clients():
    X, y = load_digits(return_X_y=True)
    s, Vt = oracle(X)
    sites = [Subspace.from_rows(X[y == digit]) for digit in range(10)]
    for n_components in (5, 0.9, None):
        for pca in (
            FederatedPCA(n_components).fit(X, clients=y),
            FederatedPCA.from_subspaces(sites, n_components, merge=SubspaceMerge(fan_in=2)),
            FederatedPCA(n_components, n_clients=150).fit(X),
        ):
            assert_is_pca(pca.subspace_, s, Vt, n_components)


def test_images_by_columns_and_by_rows():
    X = measured("mnist_test")[:1500].astype(np.float64)
    s, Vt = oracle(X)
    pca = VerticalFederatedPCA(5, feature_groups=14, method="merge").fit(X)
    assert sine(pca.components_, Vt[:5]) <= 1e-10
    parts = [Subspace.from_rows(rows) for rows in np.array_split(X, 20)]
    for fan_in in (None, 2):
        found = SubspaceMerge(fan_in=fan_in).merge(parts, 5)
        assert_is_pca(found, s, Vt, 5)


def test_a_long_list_is_merged_in_the_memory_of_a_few():
    X = np.random.default_rng(0).standard_normal((40_000, 30))
    parts = [Subspace.from_rows(X[i : i + 20]) for i in range(0, len(X), 20)]
    for method in ("auto", "qr"):
        peak = peak_bytes(lambda method=method: merge_subspaces(parts, 5, method=method))
        assert peak < 4e6, f"the stack of all is {X.nbytes:.0f} bytes"


def test_a_merge_takes_no_more_than_its_input_again():
    X, sites = decaying(2400, 2000, 24)
    parts = [Subspace.from_rows(X[rows], 45) for rows in sites]
    size = sum(part.components.nbytes for part in parts)
    assert peak_bytes(lambda: merge_subspaces(parts, 45)) < 3 * size


def test_a_new_client_does_not_make_its_tree_forget_what_a_node_kept():
    """A node of few directions is made anew where a wider client asks for more."""
    X = make_power_law(3000, 400, alpha=1.0, random_state=0)
    clients = np.repeat(np.arange(10), 300)
    narrow, wide = StreamingPCA(5, oversampling=5), StreamingPCA(100, oversampling=0)
    merge = SubspaceMerge(fan_in=2)
    pca = FederatedPCA(5, estimator=narrow, merge=merge).fit(X, clients=clients)
    more = make_power_law(500, 400, alpha=1.0, random_state=1)
    pca.set_params(estimator=wide).partial_fit(more, clients=[10] * 500)
    fresh = merge.merge([site.summary for site in pca._clients.values()], 5)
    np.testing.assert_allclose(pca.singular_values_, fresh.singular_values, rtol=1e-12)
