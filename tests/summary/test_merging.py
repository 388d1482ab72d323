"""Merging: the summary of the parts must be the summary of the pooled rows."""

from functools import cache

import numpy as np
import pytest
from helpers import random_basis
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose
from sklearn.decomposition import PCA, IncrementalPCA
from test_subspace import EPS, assert_orthonormal, assert_summarises, make_rows, oracle

from fedpca_sklearn import (
    StreamingPCA,
    Subspace,
    SubspaceMerge,
    make_power_law,
    merge_subspaces,
    subspace_distance,
)

METHODS = ["auto", "gram", "qr", "svd", "orthogonal"]
each_method = pytest.mark.parametrize("method", METHODS)

PARTITIONS = {
    "halves": lambda n: np.split(np.arange(n), 2),
    "contiguous": lambda n: np.array_split(np.arange(n), 7),
    "interleaved": lambda n: [np.arange(n)[i::5] for i in range(5)],
    "one row and the rest": lambda n: [np.arange(1), np.arange(1, n)],
    "very unequal": lambda n: np.split(np.arange(n), [n - 30, n - 29, n - 5]),
    "every row alone": lambda n: np.split(np.arange(n), n),
    "empty summaries between": lambda n: np.split(np.arange(n), [0, 50, 50, 80, n]),
    "one part": lambda n: [np.arange(n)],
}


def summarise(X, **kwargs):
    if len(X) == 0:
        return Subspace.empty(X.shape[1], centered=kwargs.get("center", True), dtype=X.dtype)
    return Subspace.from_rows(X, **kwargs)


def second_moment(subspace):
    """Scatter matrix of the kept directions: the same for any basis of equal directions."""
    V = subspace.components.astype(np.float64)
    return (V.T * subspace.singular_values**2) @ V


def pooled_moments(subspaces):
    """What the summary of all rows must say, from the definition of variance in groups."""
    n = sum(s.n_samples for s in subspaces)
    mean = sum(s.n_samples * s.mean for s in subspaces) / (n or 1)
    shifts = [s.mean - mean for s in subspaces]
    between = sum(s.n_samples * np.outer(m, m) for s, m in zip(subspaces, shifts, strict=True))
    moment = sum(second_moment(s) for s in subspaces) + between
    return n, mean, moment, sum(s.scatter for s in subspaces) + np.trace(between)


def assert_is_pooled(merged, subspaces):
    n, mean, moment, scatter = pooled_moments(subspaces)
    size = max(np.abs(s.mean).max() for s in subspaces)
    np.testing.assert_allclose(merged.n_samples, n, rtol=1e-14)
    np.testing.assert_allclose(merged.mean, mean, rtol=0, atol=100 * EPS * size)
    # a mean is known to eps |mean|, and enters the scatter squared and times its distance
    atol = 1e-12 * scatter + n * (100 * EPS * size) ** 2
    np.testing.assert_allclose(merged.scatter, scatter, rtol=0, atol=atol)
    np.testing.assert_allclose(second_moment(merged), moment, rtol=0, atol=atol)
    assert_orthonormal(merged.components)
    assert np.all(np.diff(merged.singular_values) <= 0)
    assert Subspace.from_bytes(merged.to_bytes()), "not valid as a message"


# -------------------------------------------------------------------------- exactness


@each_method
@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("d", [25, 300])
@pytest.mark.parametrize("center", [True, False])
def test_merge_equals_svd_of_pooled_rows(method, partition, d, center):
    X = make_rows(140, d)
    parts = [summarise(X[rows], center=center) for rows in PARTITIONS[partition](140)]
    assert_summarises(merge_subspaces(parts, method=method), X, center=center)


@each_method
@pytest.mark.parametrize("sizes", [(60, 60), (1, 119), (100, 19, 1)])
def test_sites_at_plus_and_minus_5(method, sizes):
    X = make_rows(120, 30)
    ends = np.cumsum(sizes)[:-1]
    for i, rows in enumerate(np.split(np.arange(120), ends)):
        X[rows] += 5 * (-1) ** i
    parts = [Subspace.from_rows(rows) for rows in np.split(X, ends)]
    merged = merge_subspaces(parts, method=method)
    assert_summarises(merged, X)
    np.testing.assert_allclose(merged.total_variance, X.var(axis=0, ddof=1).sum(), rtol=1e-12)


@each_method
def test_sites_with_mean_1e8_and_deviation_1(method):
    X = make_rows(120, 30) + 1e8
    parts = [Subspace.from_rows(rows) for rows in np.array_split(X, 6)]
    # the means of the sites are rounded to eps 1e8
    assert_summarises(merge_subspaces(parts, method=method), X, tol=100 * EPS * 1e8)


@each_method
@pytest.mark.parametrize("d", [20, 300])
def test_sites_of_unequal_rank_in_different_directions(method, d):
    """Nothing may be lost by keeping only as many directions as the widest site has."""
    rng = np.random.default_rng(0)
    ranks, sites = (1, 4, 2, 0, 6), []
    for i, rank in enumerate(ranks):
        basis = random_basis(rng, max(rank, 1), d)
        rows = rng.standard_normal((30, max(rank, 1))) * (rank > 0)
        sites.append(rows @ basis + 0.3 * i)
    parts = [Subspace.from_rows(site) for site in sites]
    assert [part.n_components for part in parts] == list(ranks)
    merged = merge_subspaces(parts, method=method)
    # all shifts lie on one line, which is the fourteenth direction
    assert merged.n_components == 14
    assert_summarises(merged, np.concatenate(sites))


@each_method
@pytest.mark.parametrize(("n", "d", "size"), [(900, 20, 1), (900, 300, 15)])
def test_more_summaries_than_are_stacked_at_once(method, n, d, size):
    X, parts = many_summaries(n, d, size)
    assert_summarises(merge_subspaces(parts, method=method), X)


@cache
def many_summaries(n, d, size):
    X = make_rows(n, d)
    return X, [Subspace.from_rows(X[i : i + size]) for i in range(0, n, size)]


@each_method
def test_summaries_read_off_other_estimators_merge_exactly(method):
    X = make_rows(150, 10)
    fitted = [
        PCA().fit(X[:50]),
        IncrementalPCA(10).fit(X[50:90]),
        StreamingPCA(10).fit(X[90:]),
    ]
    parts = [Subspace.from_estimator(estimator) for estimator in fitted]
    assert_summarises(merge_subspaces(parts, method=method), X)


@each_method
@pytest.mark.parametrize("dtypes", [(np.float32, np.float64), (np.float32, np.float32)])
def test_float32_beside_float64(method, dtypes):
    X = make_rows(100, 30, dtype=np.float32)
    halves = zip((X[:40], X[40:]), dtypes, strict=True)
    parts = [Subspace.from_rows(rows.astype(dtype)) for rows, dtype in halves]
    for order in (parts, parts[::-1]):
        merged = merge_subspaces(order, method=method)
        assert merged.components.dtype == np.result_type(*dtypes)
        # a basis that becomes float64 is orthonormal as float64 is, and right as float32 is
        assert_summarises(merged, X, tol=2e-3)


@each_method
def test_float32_basis_that_becomes_float64_is_valid_as_float64(method):
    basis = (random_basis(np.random.default_rng(0), 4, 9) * (1 + 1e-6)).astype(np.float32)
    coarse = Subspace(basis, [4.0, 3.0, 2.0, 1.0], np.zeros(9), 20, 40.0)
    for other in (Subspace.empty(9), Subspace.from_rows(make_rows(5, 9))):
        merged = merge_subspaces([coarse, other], method=method)
        assert merged.components.dtype == np.float64
        assert_orthonormal(merged.components)
        assert Subspace.from_bytes(merged.to_bytes()).to_bytes() == merged.to_bytes()


@each_method
def test_huge_counts_do_not_overflow(method):
    rng = np.random.default_rng(0)
    parts = []
    for n in (np.int32(2 * 10**9), np.int64(10**12), 1e12):
        V = random_basis(rng, 2, 6)
        parts.append(Subspace(V, [2e6, 1e6], rng.standard_normal(6), n, 5e12))
    assert_is_pooled(merge_subspaces(parts, method=method), parts)


@each_method
def test_rows_without_variance_merge_without_nan(method):
    same = [Subspace.from_rows(np.full((n, 4), 0.1)) for n in (3, 1, 5)]
    merged = merge_subspaces(same, method=method)
    assert merged.n_samples == 9
    assert merged.scatter <= 1e-30
    assert np.isfinite(merged.explained_variance_ratio).all()
    two_points = merge_subspaces([same[0], Subspace.from_rows(np.full((1, 4), 1.1))], method=method)
    assert two_points.n_components == 1
    np.testing.assert_allclose(two_points.singular_values, [np.sqrt(3 / 4 * 4)], rtol=1e-12)
    np.testing.assert_allclose(two_points.components, np.full((1, 4), 0.5), rtol=1e-12)


@each_method
def test_signs_do_not_depend_on_order_or_grouping(method):
    X = make_rows(120, 20)
    parts = [Subspace.from_rows(rows) for rows in np.array_split(X, 4)]
    one = merge_subspaces(parts, method=method)
    other = merge_subspaces([merge_subspaces(parts[:0:-1], method=method), parts[0]], method=method)
    np.testing.assert_allclose(one.components, other.components, atol=1e-9)


@each_method
def test_arguments_are_neither_written_nor_aliased(method):
    X = make_rows(60, 20)
    parts = [Subspace.from_rows(X[:25]), Subspace.from_rows(X[25:])]
    before, weights = [part.to_bytes() for part in parts], np.array([1.0, 2.0])
    merged = merge_subspaces(parts, 3, method=method, weights=weights)
    assert [part.to_bytes() for part in parts] == before
    assert weights.tolist() == [1, 2]
    for name in ("components", "singular_values", "mean"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(merged, name)[...] = 0


# -------------------------------------------------------------------------- the algebra


@st.composite
def site_summaries(draw, min_sites=1):
    """Summaries of few rows of small integers: dependent, constant, equal, single, none at all."""
    d = draw(st.integers(1, 6))
    center = draw(st.booleans())
    sizes = draw(st.lists(st.integers(0, 7), min_size=min_sites, max_size=6))
    parts = []
    for size in sizes:
        rows = draw(hnp.arrays(np.float64, (size, d), elements=st.integers(-9, 9)))
        part = summarise(rows * draw(st.sampled_from([1.0, 0.01, 100.0])), center=center)
        parts.append(part.truncate(draw(st.integers(0, d))))  # unequal ranks
    return parts


checked = settings(max_examples=60, deadline=None, derandomize=True, database=None)
any_method = st.sampled_from(METHODS)


@checked
@given(site_summaries(), any_method, st.randoms(use_true_random=False))
def test_order_does_not_matter(parts, method, random):
    assert_is_pooled(merge_subspaces(parts, method=method), parts)
    shuffled = random.sample(parts, len(parts))
    assert_is_pooled(merge_subspaces(shuffled, method=method), parts)


@checked
@given(site_summaries(min_sites=2), any_method, st.data())
def test_grouping_does_not_matter(parts, method, data):
    nodes = list(parts)
    while len(nodes) > 1:
        a = data.draw(st.integers(0, len(nodes) - 2))
        b = data.draw(st.integers(a + 2, len(nodes)))
        nodes[a:b] = [merge_subspaces(nodes[a:b], method=method)]
    assert_is_pooled(nodes[0], parts)


@checked
@given(site_summaries(), any_method, st.integers(0, 6))
def test_empty_summary_is_the_identity(parts, method, position):
    nothing = Subspace.empty(parts[0].n_features, centered=parts[0].centered)
    with_nothing = [*parts[:position], nothing, *parts[position:]]
    assert_is_pooled(merge_subspaces(with_nothing, method=method), parts)
    for pair in ([nothing, parts[0]], [parts[0], nothing]):
        alone = merge_subspaces(pair, method=method)
        if parts[0].n_samples > 0:
            assert alone.to_bytes() == parts[0].to_bytes()
        else:
            assert alone.n_samples == 0


@checked
@given(site_summaries(), any_method)
def test_merge_with_itself_doubles_the_weights(parts, method):
    part = merge_subspaces(parts, method=method)
    twice = merge_subspaces([part, part], method=method)
    assert_is_pooled(twice, [part.decay(2.0)])
    assert twice.n_components <= part.n_components


@checked
@given(site_summaries(), any_method, st.integers(0, 6))
def test_truncated_merge_keeps_the_best_and_all_energy_in_scatter(parts, method, n_components):
    merged = merge_subspaces(parts, n_components, method=method)
    n, _, moment, scatter = pooled_moments(parts)
    assert merged.n_components <= n_components
    atol = 1e-12 * scatter + n * (100 * EPS * max(np.abs(s.mean).max() for s in parts)) ** 2
    np.testing.assert_allclose(merged.scatter, scatter, rtol=0, atol=atol)
    best = np.sum(np.linalg.eigvalsh(moment)[::-1][:n_components])
    assert_orthonormal(merged.components)
    captured = np.einsum("ij,jk,ik->", merged.components, moment, merged.components)
    np.testing.assert_allclose(captured, best, rtol=0, atol=10 * atol)
    np.testing.assert_allclose(np.sum(merged.singular_values**2), best, rtol=0, atol=10 * atol)


# -------------------------------------------------------------------------- orthonormality


def bases(k1, k2, d, kind):
    rng = np.random.default_rng(k1 + 7 * k2)
    Q = random_basis(rng, d, d)
    V1, V2 = Q[:k1], random_basis(rng, k2, d)
    if kind == "dependent":  # a rotation of what both can share
        shared = min(k1, k2)
        V2 = V2.copy()
        V2[:shared] = np.linalg.qr(rng.standard_normal((shared, shared)))[0] @ V1[:shared]
        V2 = np.linalg.qr(V2.T)[0].T
    elif kind == "nearly dependent":
        shared = min(k1, k2)
        V2[:shared] = V1[:shared]
        V2 = np.linalg.qr(V2.T + 1e-9 * rng.standard_normal((d, k2)))[0].T
    return V1, V2


@each_method
@pytest.mark.parametrize("kind", ["random", "dependent", "nearly dependent"])
@pytest.mark.parametrize(("k1", "k2"), [(1, 1), (3, 8), (8, 3), (7, 7), (12, 12), (0, 5), (5, 0)])
def test_basis_stays_orthonormal_for_any_ranks(method, kind, k1, k2):
    d = 12  # 7 + 7 > d and 12 + 12 > d
    parts = [
        Subspace(V, np.geomspace(3, 1, len(V)), np.full(d, shift), 20, 9.0 * d)
        for V, shift in zip(bases(k1, k2, d, kind), (1.0, -1.0), strict=True)
    ]
    merged = merge_subspaces(parts, method=method)
    assert_is_pooled(merged, parts)
    moment = pooled_moments(parts)[2]
    lam, Q = np.linalg.eigh(moment)
    k = merged.n_components
    assert np.all(lam[: d - k] <= 1e-12 * lam[-1])
    if k < d and lam[d - k] > 1e-6 * lam[-1]:  # what is nearly dependent is decided by rounding
        assert subspace_distance(merged.components, Q[:, d - k :].T) <= 1e-9


@each_method
def test_identical_subspaces_add_no_direction(method):
    part = Subspace.from_rows(make_rows(40, 30)).truncate(8)
    merged = merge_subspaces([part] * 5, method=method)
    assert merged.n_components == 8
    assert_is_pooled(merged, [part] * 5)
    assert subspace_distance(merged.components, part.components) <= 1e-9


@each_method
def test_basis_is_orthonormal_after_many_merges(method):
    X = make_rows(400, 30)
    merged = Subspace.empty(30)
    for row in X:
        merged = merge_subspaces([merged, Subspace.from_rows(row[None])], method=method)
    assert_summarises(merged, X)


@each_method
def test_singular_values_down_to_1e11_are_kept_orthonormal(method):
    X = make_rows(60, 12, cond=1e11, mean=0)
    parts = [Subspace.from_rows(rows) for rows in np.array_split(X, 3)]
    merged = merge_subspaces(parts, method=method)
    _, _, scatter, s, Vt = oracle(X)
    assert_orthonormal(merged.components)
    np.testing.assert_allclose(merged.scatter, scatter, rtol=1e-12)
    if method == "gram":  # resolves nothing below 1e-7 of the largest
        known = int(np.sum(s > 1e-4 * s[0]))
        errors = np.full(known, 100 * EPS * s[0] * 1e4)
    else:
        known = 12
        errors = np.full(known, 100 * EPS * s[0])
    assert np.all(np.abs(merged.singular_values[:known] - s[:known]) <= errors)
    for r in range(1, known):
        gap = (s[r - 1] - s[r]) / errors[0]
        assert subspace_distance(merged.components[:r], Vt[:r]) <= max(1 / gap, 100 * EPS)


# -------------------------------------------------------------------------- weights, truncation


def algorithm_2(U1, s1, U2, s2, weights, on_both):
    """Grammenos et al. (2019), Algorithm 2, where lambda_2 is printed on one of two blocks only."""
    lam1, lam2 = weights
    Z = U1.T @ U2
    Up, Rp = np.linalg.qr(U2 - U1 @ Z)
    upper = Z * s2 * (lam2 if on_both else 1)
    X = np.block([[lam1 * np.diag(s1), upper], [np.zeros((len(s2), len(s1))), lam2 * Rp * s2]])
    UR, s, _ = np.linalg.svd(X)
    return np.hstack([U1, Up]) @ UR, s


@pytest.mark.parametrize("weights", [(0.7, 1.0), (1.0, 2.0), (0.7, 1.5)])
def test_weights_are_those_of_algorithm_4_which_algorithm_2_as_printed_misses(weights):
    rng = np.random.default_rng(0)
    parts = [Subspace.from_rows(rng.standard_normal((9, 20)), 4, center=False) for _ in range(2)]
    pairs = [x for part in parts for x in (part.components.T, part.singular_values)]
    stacked = [w * U * s for w, U, s in zip(weights, pairs[::2], pairs[1::2], strict=True)]
    want = np.linalg.svd(np.hstack(stacked), compute_uv=False)[:8]  # Algorithm 4
    for method in ("svd", "qr", "orthogonal"):
        merged = merge_subspaces(parts, method=method, weights=weights)
        assert_allclose(merged.singular_values, want, rtol=1e-12)
    assert_allclose(algorithm_2(*pairs, weights, on_both=True)[1], want, rtol=1e-12)
    printed = algorithm_2(*pairs, weights, on_both=False)[1]
    assert np.allclose(printed, want, rtol=1e-3) == (weights[1] == 1)


@each_method
def test_weights_are_decays_and_weighted_rows(method):
    X = make_rows(120, 20)
    cuts = np.split(np.arange(120), [50, 51, 90])
    parts = [Subspace.from_rows(X[rows]) for rows in cuts]
    weights = np.array([0.5, 2.0, 1.0, 0.9])
    merged = merge_subspaces(parts, method=method, weights=weights)
    w = np.concatenate([np.full(len(rows), x**2) for rows, x in zip(cuts, weights, strict=True)])
    assert_summarises(merged, X, w)
    decayed = [part.decay(x**2) for part, x in zip(parts, weights, strict=True)]
    assert merge_subspaces(decayed, method=method).to_bytes() == merged.to_bytes()


@each_method
def test_weight_zero_removes_a_summary(method):
    X = make_rows(120, 20)
    parts = [Subspace.from_rows(rows) for rows in np.split(X, [50, 70])]
    merged = merge_subspaces(parts, method=method, weights=[1, 0, 1])
    assert_summarises(merged, np.delete(X, slice(50, 70), axis=0))
    nothing = merge_subspaces(parts, method=method, weights=[0, 0, 0])
    assert (nothing.n_samples, nothing.scatter) == (0, 0)


@each_method
@pytest.mark.parametrize("d", [25, 300])
def test_truncated_merge_is_the_best_subspace_of_all_rows(method, d):
    X = make_rows(140, d, cond=100)
    parts = [Subspace.from_rows(rows) for rows in np.array_split(X, 7)]
    merged = merge_subspaces(parts, 4, method=method)
    # 7 x 20 directions are stacked at once, so that the cut comes at the end
    assert_summarises(merged, X, n_components=4)


@each_method
@pytest.mark.parametrize("fraction", [0.3, 0.9, 0.99, 0.99999])
def test_fraction_keeps_as_many_directions_as_explain_it(method, fraction):
    X = make_rows(200, 25, cond=30)
    _, _, scatter, s, _ = oracle(X)
    expected = 1 + int(np.sum(np.cumsum(s**2) <= fraction * scatter))
    parts = [Subspace.from_rows(rows) for rows in np.array_split(X, 5)]
    for merge in (
        lambda: merge_subspaces(parts, fraction, method=method),
        lambda: SubspaceMerge(method, fan_in=2).merge(parts, fraction),
    ):
        merged = merge()
        assert merged.n_components == expected
        assert merged.explained_variance_ratio.sum() > fraction
        np.testing.assert_allclose(merged.scatter, scatter, rtol=1e-12)


# -------------------------------------------------------------------------- trees


@pytest.mark.parametrize("fan_in", [None, 2, 3, 5])
@pytest.mark.parametrize("n_sites", range(1, 18))
def test_tree_of_any_shape_equals_pooled_rows(fan_in, n_sites):
    X = make_rows(100, 20)
    for i, rows in enumerate(np.array_split(np.arange(100), n_sites)):
        X[rows] += 0.3 * i
    parts = [Subspace.from_rows(rows) for rows in np.array_split(X, n_sites)]
    rounds = []
    merged = SubspaceMerge(fan_in=fan_in).merge(
        parts, record=lambda sent, to=None: rounds.append(sent)
    )
    assert_summarises(merged, X)

    fan = fan_in or n_sites
    levels = next(i for i in range(1, 9) if max(fan, 2) ** i >= n_sites)
    assert len(rounds) == levels
    sent = [id(message) for messages in rounds for message in messages]
    assert len(sent) == len(set(sent))
    assert {id(part) for part in parts} <= set(sent), "every site sends its summary once"
    if fan_in is None:
        assert len(sent) == n_sites
    elif fan_in == 2 and n_sites > 1:  # n - 1 merges of two
        assert len(sent) == 2 * (n_sites - 1)
    for messages in rounds[1:]:
        assert len(messages) <= -(-n_sites // fan)


@each_method
@pytest.mark.parametrize("fan_in", [None, 2, 3])
def test_tree_takes_every_method_and_weighted_parts(method, fan_in):
    X = make_rows(110, 20)
    cuts = np.array_split(np.arange(110), 11)
    weights = np.linspace(0.5, 1.5, 11)
    weights[3] = 0
    parts = [Subspace.from_rows(X[rows]) for rows in cuts]
    parts = [part.decay(x**2) for part, x in zip(parts, weights, strict=True)]
    merged = SubspaceMerge(method, fan_in=fan_in).merge(parts)
    w = np.concatenate([np.full(len(rows), x**2) for rows, x in zip(cuts, weights, strict=True)])
    assert_summarises(merged, X, w)


@pytest.fixture(scope="module")
def unlike_clients():
    """32 clients that share out the range of the first component: each has its own mean."""
    X, first = make_power_law(10_000, 500, alpha=1.0, random_state=0, return_components=1)
    X = X[np.argsort(X @ first[0])]
    parts = [StreamingPCA(20).fit(rows).subspace_ for rows in np.array_split(X, 32)]
    Z = X - X.mean(axis=0)
    lam, Q = np.linalg.eigh(Z.T @ Z)
    return Z, lam, Q, parts


@pytest.mark.parametrize("fan_in", [None, 2])
def test_truncated_merge_of_unlike_clients_is_near_the_best_subspace(unlike_clients, fan_in):
    Z, lam, Q, parts = unlike_clients
    merged = SubspaceMerge(fan_in=fan_in).merge(parts, 20)
    assert merged.n_components == 20
    assert_orthonormal(merged.components)
    np.testing.assert_allclose(merged.scatter, np.sum(Z**2), rtol=1e-12)
    np.testing.assert_allclose(merged.n_samples, len(Z))
    error = np.sum(Z**2) - np.sum((Z @ merged.components.T) ** 2)
    assert error / lam[:-20].sum() - 1 <= 1e-4
    # leading directions have wide gaps, and keep most digits of an excess of 1e-4
    assert subspace_distance(merged.components[:3], Q[:, :-4:-1].T) <= 1e-2


# -------------------------------------------------------------------------- errors


def parts_of(*shapes, **kwargs):
    return [Subspace.from_rows(make_rows(*shape), **kwargs) for shape in shapes]


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"subspaces": []}, r"subspaces must .*at least one Subspace, got none"),
        ({"subspaces": Subspace.empty(3)}, r"a sequence of Subspace objects, got one Subspace"),
        ({"subspaces": [np.eye(3)]}, r"subspaces must be Subspace objects, got ndarray"),
        ({"subspaces": parts_of((9, 4), (9, 5))}, r"subspaces\[1\] has 5 features.* 4"),
        (
            {"subspaces": parts_of((9, 4)) + parts_of((9, 4), center=False)},
            r"all centred or all not",
        ),
        ({"method": "svdd"}, r"'?method'? .*must be .*'gram'.*[gG]ot 'svdd'"),
        ({"method": ["svd"]}, r"'?method'? .*must be .*'gram'.*[gG]ot \['svd'\]"),
        ({"n_components": -1}, r"n_components must be .*got -1"),
        ({"n_components": 1.5}, r"n_components must be .*got 1\.5"),
        ({"n_components": 0.0}, r"n_components must be .*got 0\.0"),
        ({"n_components": np.nan}, r"n_components must be .*got nan"),
        ({"n_components": "mle"}, r"n_components must be .*got 'mle'"),
        ({"subspaces": 3}, r"subspaces must be a sequence of Subspace objects, got one int"),
    ],
)
@pytest.mark.parametrize("strategy", [None, SubspaceMerge(), SubspaceMerge(fan_in=2)])
def test_bad_arguments_are_named_with_value_and_expectation(strategy, kwargs, match):
    kwargs = {"subspaces": parts_of((9, 4), (9, 4))} | kwargs
    if strategy is None:
        merge = merge_subspaces
    else:
        kwargs = dict(kwargs)
        strategy = SubspaceMerge(kwargs.pop("method", "auto"), fan_in=strategy.fan_in)
        merge = strategy.merge
    with pytest.raises((ValueError, TypeError), match=match):
        merge(**kwargs)


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        ([1.0], r"weights must .*2 subspaces, got 1"),
        ([1.0, 1.0, 1.0], r"weights must .*2 subspaces, got 3"),
        ([1.0, -1.0], r"weights must be non-negative"),
        ([1.0, np.nan], r"weights must be finite"),
        (1.0, r"weights must .*1-D"),
        (["one", 2], r"weights must be real numbers, got \['one', 2\]"),
        ({"a": 1}, r"weights must be real numbers, got \{'a': 1\}"),
    ],
)
def test_bad_weights_are_named(weights, match):
    with pytest.raises(ValueError, match=match):
        merge_subspaces(parts_of((9, 4), (9, 4)), weights=weights)


@pytest.mark.parametrize("weights", [[1.0] * 4, [1.0] * 6, [1.0]])
def test_wrong_number_of_weights_is_refused(weights):
    parts = parts_of(*[(9, 4)] * 5)
    with pytest.raises(ValueError, match=rf"weights must .*5 subspaces, got {len(weights)}"):
        merge_subspaces(parts, weights=weights)


@pytest.mark.parametrize("fan_in", [1, 0, -2, 2.5, "2"])
def test_bad_fan_in_is_named(fan_in):
    parts = parts_of(*[(9, 4)] * 5)
    with pytest.raises((ValueError, TypeError), match=rf"'fan_in' .*must be .*Got {fan_in!r}"):
        SubspaceMerge(fan_in=fan_in).merge(parts)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "fields",
    [
        {"mean": [1e308, 0, 0]},
        {"singular_values": [1e154], "scatter": 1e308},
        {"n_samples": 1e308},
    ],
)
def test_summaries_too_large_to_merge_are_refused_by_every_method(method, fields):
    valid = {
        "components": np.eye(3)[:1],
        "singular_values": [1.0],
        "mean": np.zeros(3),
        "n_samples": 5.0,
        "scatter": 1.0,
    }
    first = Subspace(**(valid | fields))
    second = Subspace(**(valid | fields | {"mean": -np.asarray(fields.get("mean", np.zeros(3)))}))
    with pytest.raises(ValueError, match="too large to merge"):
        merge_subspaces([first, second], method=method)


def test_decay_that_would_overflow_is_refused():
    subspace = Subspace(np.eye(3)[:1], [1.0], np.zeros(3), 1e300, 1.0)
    with pytest.raises(ValueError, match=r"weight=10000000000.0 is too large"):
        subspace.decay(1e10)
