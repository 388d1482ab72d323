"""Merging: the summary of the parts must be the summary of the pooled rows, by any route."""

from functools import cache

import numpy as np
import pytest
from helpers import peak_bytes, random_basis, sine
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose
from summary_helpers import (
    EPS,
    METHODS,
    assert_orthonormal,
    assert_summarises,
    examples,
    make_rows,
    oracle,
    tables,
)

from fedpca_sklearn import (
    FederatedPCA,
    StreamingPCA,
    Subspace,
    SubspaceMerge,
    make_power_law,
    merge_subspaces,
)

each_method = pytest.mark.parametrize("method", METHODS)
any_method = st.sampled_from(METHODS)


# -------------------------------------------------------------------------- whole rows

CUTS = {
    "halves": lambda n: [n // 2],
    "sevenths": lambda n: [i * n // 7 for i in range(1, 7)],
    "one row and the rest": lambda n: [1],
    "very unequal": lambda n: [n - 25, n - 24, n - 5],
    "every row alone": lambda n: range(1, n),
    "empty summaries between": lambda n: [0, 10, 10, 20],
    "one part": lambda n: [],
}


@examples(40)
@given(
    tables(shapes=[(120, 25), (90, 300)], container="dense", unit=1),
    st.sampled_from([*CUTS]),
    any_method,
    st.sampled_from([None, 2, 3]),
    st.sampled_from([0, 5]),
    st.sampled_from([None, 0, 1]),
)
def test_merge_equals_svd_of_pooled_rows(rows, cuts, method, fan_in, apart, mixed):
    """Of sites whose means lie apart, in two precisions or one, in a tree or at once."""
    X, _, w, center, _, tol = rows
    cuts, w = CUTS[cuts](len(X)), np.ones(len(X)) if w is None else w
    parts, seen = [], []
    for i, (Y, v) in enumerate(zip(np.split(X, cuts), np.split(w, cuts), strict=True)):
        Y = (Y + apart * (-1) ** i).astype(X.dtype)
        start = Subspace.empty(
            X.shape[1], centered=center, dtype="f8" if mixed == i % 2 else X.dtype
        )
        parts.append(start.update(Y, sample_weight=v) if len(Y) else start)
        seen.append(Y)
    merged = SubspaceMerge(method, fan_in=fan_in).merge(parts)
    assert merged.components.dtype == np.result_type(*(part.components for part in parts))
    # a basis that becomes float64 is orthonormal as float64 is, and right as float32 is
    assert_summarises(merged, np.concatenate(seen), w, center=center, tol=tol)
    cut = merge_subspaces(parts, 4, method=method)
    if len(parts) < 9 and tol < 1e-3:  # all directions are stacked at once
        assert_allclose(cut.singular_values, merged.singular_values[:4], rtol=tol)
        assert_allclose(cut.scatter, merged.scatter, rtol=1e-12)


@each_method
def test_float32_basis_that_becomes_float64_is_valid_as_float64(method):
    basis = (random_basis(np.random.default_rng(0), 4, 9) * (1 + 1e-6)).astype(np.float32)
    coarse = Subspace(basis, [4.0, 3.0, 2.0, 1.0], np.zeros(9), 20, 40.0)
    for other in (Subspace.empty(9), Subspace.from_rows(make_rows(5, 9))):
        merged = merge_subspaces([coarse, other], method=method)
        assert merged.components.dtype == np.float64
        assert_orthonormal(merged.components)
        assert Subspace.from_bytes(merged.to_bytes()).to_bytes() == merged.to_bytes()


# -------------------------------------------------------------------------- the algebra


@st.composite
def site_summaries(draw):
    """Few rows of small integers: dependent, constant, equal, single, none; ranks are cut.

    Their means may lie apart by 10^8, their weights be near the ends of what floats can hold.
    """
    d, center = draw(st.integers(1, 6)), draw(st.booleans())
    apart = center * draw(st.sampled_from([0, 0, 1e4, 1e8]))
    unit = draw(st.sampled_from([1.0, 1.0, 1e-300, 1e-150, 1e150, 1e290]))
    parts = []
    for size in draw(st.lists(st.integers(0, 7), min_size=1, max_size=6)):
        rows = draw(hnp.arrays(np.float64, (size, d), elements=st.integers(-9, 9)))
        rows = rows * draw(st.sampled_from([1.0, 0.01, 100.0])) + apart * draw(st.integers(-1, 1))
        part = Subspace.empty(d, centered=center)
        if size:
            part = part.update(rows, sample_weight=np.full(size, unit))
        parts.append(part.truncate(draw(st.integers(0, d))))
    return parts, unit


def second_moment(subspace, unit):
    """Scatter matrix of the kept directions: the same for any basis of equal directions."""
    V = subspace.components.astype(np.float64)
    return (V.T * (subspace.singular_values / np.sqrt(unit)) ** 2) @ V


def pooled_moments(subspaces, unit):
    """What the summary of all rows must say, from the definition of variance in groups."""
    weights = [s.n_samples / unit for s in subspaces]
    n = sum(weights)
    mean = sum(w * s.mean for w, s in zip(weights, subspaces, strict=True)) / (n or 1)
    shifts = [s.mean - mean for s in subspaces]
    between = sum(w * np.outer(m, m) for w, m in zip(weights, shifts, strict=True))
    moment = sum(second_moment(s, unit) for s in subspaces) + between
    return n, mean, moment, sum(s.scatter / unit for s in subspaces) + np.trace(between)


def rounding_of(subspaces, n, scatter):
    """A mean is known to eps |mean|, and enters the scatter squared and times its distance."""
    size = max(np.abs(s.mean).max() for s in subspaces)
    return 1e-12 * scatter + n * (100 * EPS * size) ** 2 + 2 * EPS * size * np.sqrt(n * scatter)


def assert_is_pooled(merged, subspaces, unit=1.0):
    n, mean, moment, scatter = pooled_moments(subspaces, unit)
    size = max(np.abs(s.mean).max() for s in subspaces)
    assert_allclose(merged.n_samples / unit, n, rtol=1e-14)
    assert_allclose(merged.mean, mean, rtol=0, atol=100 * EPS * size)
    atol = rounding_of(subspaces, n, scatter)
    assert_allclose(merged.scatter / unit, scatter, rtol=0, atol=atol)
    assert_allclose(second_moment(merged, unit), moment, rtol=0, atol=atol)
    columns = None if merged.column_scatter is None else merged.column_scatter.sum() / unit
    assert columns is None or abs(columns - scatter) <= atol
    assert_orthonormal(merged.components)
    assert np.all(np.diff(merged.singular_values) <= 0)
    assert Subspace.from_bytes(merged.to_bytes()), "not valid as a message"


@examples(40)
@given(site_summaries(), any_method, st.randoms(use_true_random=False), st.data())
def test_merges_commute_and_associate_and_have_an_identity(drawn, method, random, data):
    parts, unit = drawn
    before = [part.to_bytes() for part in parts]

    def merge(some):
        return merge_subspaces(some, method=method)

    shuffled = random.sample(parts, len(parts))
    nothing = Subspace.empty(parts[0].n_features, centered=parts[0].centered)
    nodes = list(shuffled)
    while len(nodes) > 1:
        a = data.draw(st.integers(0, len(nodes) - 2))
        b = data.draw(st.integers(a + 2, len(nodes)))
        nodes[a:b] = [merge(nodes[a:b])]
    at = data.draw(st.integers(0, len(parts)))
    whole = merge(parts)
    for way in (whole, merge(shuffled), merge([*parts[:at], nothing, *parts[at:]]), nodes[0]):
        assert_is_pooled(way, parts, unit)
    for pair in ([nothing, parts[0]], [parts[0], nothing]):
        alone = merge(pair)
        assert (alone.to_bytes() == parts[0].to_bytes()) or alone.n_samples == 0
    twice = merge([whole, whole])
    assert_is_pooled(twice, [whole.decay(2.0)], unit)
    assert twice.n_components <= whole.n_components
    assert [part.to_bytes() for part in parts] == before
    removed = merge_subspaces([*parts, parts[0]], method=method, weights=[1] * len(parts) + [0])
    assert_is_pooled(removed, parts, unit)


@examples(40)
@given(site_summaries(), any_method, st.integers(0, 6))
def test_truncated_merge_keeps_the_best_and_all_energy_in_scatter(drawn, method, n_components):
    parts, unit = drawn
    merged = merge_subspaces(parts, n_components, method=method)
    n, _, moment, scatter = pooled_moments(parts, unit)
    assert merged.n_components <= n_components
    atol = rounding_of(parts, n, scatter)
    assert_allclose(merged.scatter / unit, scatter, rtol=0, atol=atol)
    best = np.sum(np.linalg.eigvalsh(moment)[::-1][:n_components])
    assert_orthonormal(merged.components)
    captured = np.einsum("ij,jk,ik->", merged.components, moment, merged.components)
    assert_allclose(captured, best, rtol=0, atol=10 * atol)
    squares = (merged.singular_values / np.sqrt(unit)) ** 2
    assert_allclose(np.sum(squares), best, rtol=0, atol=10 * atol)


# -------------------------------------------------------------------------- weights


def algorithm_2(U1, s1, U2, s2, weights, on_both):
    """Grammenos et al. (2019), Algorithm 2, where lambda_2 is printed on one of two blocks only."""
    lam1, lam2 = weights
    Z = U1.T @ U2
    _, Rp = np.linalg.qr(U2 - U1 @ Z)
    upper = Z * s2 * (lam2 if on_both else 1)
    X = np.block([[lam1 * np.diag(s1), upper], [np.zeros((len(s2), len(s1))), lam2 * Rp * s2]])
    return np.linalg.svd(X, compute_uv=False)


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
    assert_allclose(algorithm_2(*pairs, weights, on_both=True), want, rtol=1e-12)
    printed = algorithm_2(*pairs, weights, on_both=False)
    assert np.allclose(printed, want, rtol=1e-3) == (weights[1] == 1)


@each_method
def test_weights_are_decays_and_weighted_rows(method):
    X = make_rows(120, 20)
    cuts = np.split(np.arange(120), [50, 51, 90])
    parts = [Subspace.from_rows(X[rows]) for rows in cuts]
    for weights in np.array([[0.5, 2.0, 1.0, 0.9], [1.0, 0, 1.0, 1.0]]):
        given = weights.copy()
        merged = merge_subspaces(parts, method=method, weights=given)
        assert given.tolist() == weights.tolist()
        assert_summarises(merged, X, np.repeat(weights**2, [len(rows) for rows in cuts]))
        decayed = [part.decay(x**2) for part, x in zip(parts, weights, strict=True)]
        assert merge_subspaces(decayed, method=method).to_bytes() == merged.to_bytes()
    nothing = merge_subspaces(parts, method=method, weights=[0] * 4)
    assert (nothing.n_samples, nothing.scatter) == (0, 0)


# -------------------------------------------------------------------------- large stacks, trees

# Number of rows, features and sites: below and above the 256 features up to which clients keep
# all; more directions in all than features, and fewer; more than fit in one stack; a row a site.
STACKS = {
    "narrow, many directions": (4000, 20, 100),
    "one stack": (300, 200, 5),
    "wide": (700, 400, 12),
    "wide, more features than rows": (400, 900, 12),
    "wide, every row alone": (300, 320, 300),
}


@cache
def decaying(n, d, n_sites, seed=0):
    """Rows with variances like 1 / i, sites with other means, and numpy's SVD of all."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) / np.sqrt(np.arange(1, d + 1))
    for rows in np.array_split(X, n_sites):
        rows += 0.1 * rng.standard_normal(d) / np.sqrt(np.arange(1, d + 1))
    return X, *oracle(X)[3:]


@cache
def summarised(n, d, n_sites):
    X, s, Vt = decaying(n, d, n_sites)
    return [Subspace.from_rows(rows) for rows in np.array_split(X, n_sites)], s, Vt


def rank_of(s, n_components):
    """As many directions as explain more than a fraction, or as are asked for."""
    if n_components is None or n_components >= 1:
        return n_components or int(np.sum(s > 1e-12 * s[0]))
    return 1 + int(np.sum(np.cumsum(s**2) <= n_components * np.sum(s**2)))


def assert_is_pca(found, s, Vt, n_components, tol=1e-10):
    k = min(rank_of(s, n_components), int(np.sum(s > 1e-12 * s[0])))
    assert found.n_components >= k
    assert_allclose(found.singular_values[:k], s[:k], rtol=0, atol=tol * s[0])
    if k == len(s) or s[k - 1] ** 2 - s[k] ** 2 > 1e-3 * s[0] ** 2:
        assert sine(found.components[:k], Vt[:k]) <= tol


@pytest.mark.parametrize(("n_components", "fan_in"), [(5, None), (0.6, 2), (None, 7)])
@pytest.mark.parametrize("stack", STACKS)
def test_untruncated_summaries_merge_to_the_pca_of_all_rows(stack, n_components, fan_in):
    parts, s, Vt = summarised(*STACKS[stack])
    pca = FederatedPCA.from_subspaces(parts, n_components, merge=SubspaceMerge(fan_in=fan_in))
    assert_is_pca(pca.subspace_, s, Vt, n_components)
    if n_components is not None:
        assert pca.n_components_ == rank_of(s, n_components)


@each_method
@pytest.mark.parametrize(("n", "d"), [(3000, 8), (2500, 300)])
def test_spectra_of_any_spread_survive_more_rows_than_are_stacked(method, n, d):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d)) * np.geomspace(1, 1e-9, d)
    parts = [Subspace.from_rows(rows) for rows in np.array_split(X, n // 50)]
    found = merge_subspaces(parts, method=method)
    s = oracle(X)[3]
    known = d if method != "gram" else int(np.sum(s > 1e-4 * s[0]))
    assert_allclose(found.singular_values[:known], s[:known], rtol=0, atol=1e-12 * s[0])
    assert_orthonormal(found.components)


def test_leading_directions_of_a_stack_that_is_large_both_ways():
    """1,200 directions in 1,300 features; 12 of them have the same variance exactly."""
    k = 40
    spectrum = 1 / np.arange(1, 1201) ** 0.7
    spectrum[4:16] = spectrum[4]
    axes, parts = np.eye(1200, 1300), []
    for i in np.split(np.random.default_rng(0).permutation(1200), 60):
        i = np.sort(i)
        s = spectrum[i]
        parts.append(Subspace(axes[i], s, np.zeros(1300), 100.0, float(s @ s), centered=False))
    found = merge_subspaces(parts, k)
    assert_allclose(found.singular_values, spectrum[:k], rtol=1e-10)
    assert sine(found.components, axes[:k]) <= 1e-10


def test_a_merge_takes_no_more_than_its_input_again_nor_a_long_list_than_a_few():
    X = np.random.default_rng(0).standard_normal((2400, 2000)) / np.sqrt(np.arange(1, 2001))
    parts = [Subspace.from_rows(rows, 45) for rows in np.array_split(X, 24)]
    size = sum(part.components.nbytes for part in parts)
    assert peak_bytes(lambda: merge_subspaces(parts, 45)) < 3 * size
    X = np.random.default_rng(0).standard_normal((8000, 100))
    many = [Subspace.from_rows(X[i : i + 40]) for i in range(0, len(X), 40)]
    for method in ("auto", "qr"):
        peak = peak_bytes(lambda method=method: merge_subspaces(many, 5, method=method))
        assert peak < 4e6, f"the stack of all is {X.nbytes:.0f} bytes"


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
    assert_allclose(pca.singular_values_, fresh.singular_values, rtol=1e-12)
