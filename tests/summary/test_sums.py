"""Scatter matrices that are added up: what they tell, and when they are certain of it."""

from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from fedpca_sklearn import (
    FederatedPCA,
    StreamingPCA,
    Subspace,
    make_power_law,
    merge_subspaces,
    subspace_distance,
)
from fedpca_sklearn.summary import _exact

examples = settings(max_examples=40, deadline=None)


def spectrum(X, weight=None):
    """Directions and singular values of rows about their mean, by numpy in extended precision."""
    w = np.ones(len(X)) if weight is None else np.asarray(weight)
    Z = X.astype(np.longdouble) - X[0]
    Z -= (w @ Z) / w.sum()
    _, s, V = np.linalg.svd((np.sqrt(w)[:, None] * Z).astype(np.float64), full_matrices=False)
    return V, s


WAYS = {
    "one row a call": lambda parts: [row[None] for part in parts for row in part],
    "batches": list,
    "two batches": lambda parts: [np.concatenate(parts[:7]), np.concatenate(parts[7:])],
}


@pytest.mark.parametrize("far", [0.0, 1e4, 1e8, 1e10])
@pytest.mark.parametrize("way", WAYS)
def test_a_mean_far_from_zero_costs_no_digit(way, far):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1200, 20)) * np.linspace(1, 3, 20) + far
    parts = np.array_split(X, 40)
    model, _, s = StreamingPCA(5), *spectrum(X)
    for part in WAYS[way](parts):
        model.partial_fit(part)
    assert_allclose(model.singular_values_, s[:5], rtol=1e-13)
    merged = merge_subspaces([Subspace.from_rows(part) for part in parts], 5)
    assert_allclose(merged.singular_values, s[:5], rtol=1e-13)
    sites = FederatedPCA(5, n_clients=40).fit(X)
    assert_allclose(sites.singular_values_, s[:5], rtol=1e-13)


def summaries(draw):
    """Some summaries of like spectra, whose means lie apart and whose weights may be extreme."""
    d, rng = 6, np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    apart = 10.0 ** draw(st.integers(0, 8))
    weight = 10.0 ** draw(st.sampled_from([-300, -150, 0, 150, 290]))
    parts = []
    for _ in range(draw(st.integers(2, 5))):
        n = draw(st.sampled_from([1, 3, 30]))
        X = rng.standard_normal((n, d)) * np.arange(1, d + 1) + apart * rng.standard_normal(d)
        parts.append((X, weight * rng.uniform(0.5, 2, n)))
    return parts


def scatter(summary, unit):
    s = summary.singular_values / np.sqrt(unit)
    return (summary.components.T * s**2) @ summary.components


@examples
@given(data=st.data())
def test_merges_commute_and_associate_and_have_an_identity(data):
    parts = summaries(data.draw)
    unit = max(w.max() for _, w in parts)
    found = [Subspace.from_rows(X, sample_weight=w) for X, w in parts]
    empty = Subspace.empty(6)
    order = data.draw(st.permutations(range(len(found))))
    ways = [
        merge_subspaces(found),
        merge_subspaces([found[i] for i in order]),
        merge_subspaces([empty, *found, empty]),
        reduce(lambda a, b: merge_subspaces([a, b]), found),
        reduce(lambda a, b: merge_subspaces([b, a]), [found[i] for i in order]),
    ]
    V, s = spectrum(*(np.concatenate(some) for some in zip(*parts, strict=True)))
    s = s / np.sqrt(unit)
    expected = (V.T * s**2) @ V
    for way in ways:
        assert_allclose(way.singular_values[0] / np.sqrt(unit), s[0], rtol=1e-13)
        assert_allclose(scatter(way, unit), expected, rtol=0, atol=1e-13 * s[0] ** 2)
        assert_allclose(way.n_samples, sum(w.sum() for _, w in parts), rtol=1e-14)


def eigenproblems(monkeypatch):
    solved, solve = [], _exact.eigh_top

    def counted(G, count, **options):
        solved.append(count)
        return solve(G, count, **options)

    monkeypatch.setattr(_exact, "eigh_top", counted)
    return solved


@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.0])
def test_many_batches_have_few_eigenproblems(monkeypatch, alpha):
    solved = eigenproblems(monkeypatch)
    X = make_power_law(9000, 30, alpha=alpha, random_state=0)
    model = StreamingPCA(3).fit(iter(np.array_split(X, 300)))
    assert len(solved) <= 4
    model = StreamingPCA(3)
    for part in np.array_split(X, 60):
        model.partial_fit(part)
    V, s = spectrum(X)
    assert len(solved) <= 8
    assert_allclose(model.singular_values_, s[:3], rtol=1e-13)
    assert subspace_distance(model.components_, V[:3]) < 1e-12 / min(1 - s[3] / s[2], 1)


def test_reads_change_no_later_bit_and_neither_do_copies():
    X = make_power_law(3000, 40, alpha=1.0, random_state=0)
    quiet, nosy = StreamingPCA(3), StreamingPCA(3)
    for part in np.array_split(X, 30):
        quiet.partial_fit(part)
        nosy.partial_fit(part).transform(X[:2])
        assert nosy.subspace_.n_components == min(40, nosy.n_samples_ - 1)
    assert_array_equal(nosy.components_, quiet.components_)
    assert_array_equal(nosy.subspace_.singular_values, quiet.subspace_.singular_values)


HARD = {
    "steep": lambda X: X * 10.0 ** -np.linspace(0, 12, 30),
    "a bad batch late": lambda X: np.concatenate([X[:-100], 1e7 * X[-100:, :1] * np.ones(30)]),
    "a bad batch early": lambda X: np.concatenate([1e7 * X[:100, :1] * np.ones(30), X[100:]]),
    "low rank": lambda X: X[:, :4] @ X[:4],
    "a column twice": lambda X: np.concatenate([X, X[:, :1]], axis=1),
    "fading": lambda X: X * 0.99 ** np.arange(len(X))[:, None],
}


@pytest.mark.parametrize("n_components", [3, None])
@pytest.mark.parametrize("kind", HARD)
def test_where_a_sum_is_not_certain_directions_are_kept(kind, n_components):
    X = HARD[kind](np.random.default_rng(0).standard_normal((2000, 30)))
    model = StreamingPCA(n_components)
    for part in np.array_split(X, 20):
        model.partial_fit(part)
    _, s = spectrum(X)
    r = model.n_components_
    # of what a decomposition of all rows resolves
    assert_allclose(model.singular_values_, s[:r], rtol=1e-9, atol=1e-14 * s[0])
    shown = model.components_
    assert_allclose(shown @ shown.T, np.eye(r), atol=1e-10)


def test_roundings_of_float32_add_up():
    """Each batch has another leading direction, and few rows that differ, so that none cancel."""
    rng = np.random.default_rng(0)
    d, sums = 60, np.zeros((60, 60))
    model = StreamingPCA(30)
    for i in range(60):
        some = rng.standard_normal((4, d)) * 0.3
        some[:, i] += np.array([3, -3, 3.1, -3.1])
        batch = np.repeat(some, 256, axis=0).astype(np.float32)
        model.partial_fit(batch)
        sums += batch.T.astype(np.float64) @ batch.astype(np.float64)
    held = model._state.subspace
    V, s = held.components.astype(np.float64), held.singular_values
    error = np.linalg.norm(
        (V.T * s**2) @ V - sums + held.n_samples * np.outer(held.mean, held.mean), 2
    )
    known = held._leading.certainty
    shown_in = 4 * np.finfo(np.float32).eps * s[0] ** 2  # as directions have that dtype
    assert error <= known.rounding + shown_in
    assert known.least < known.known


@pytest.mark.parametrize("forgetting_factor", [0.9, 0.99, 0.999])
def test_a_stream_that_forgets_is_certain_of_what_it_shows(forgetting_factor):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((4000, 30)) * np.arange(1, 31) ** -1.0
    X[2000:, :3] *= 1e-4  # large variances fade, and small ones lead
    model, past = StreamingPCA(3, forgetting_factor=forgetting_factor), 0
    for part in np.array_split(X, 80):
        model.partial_fit(part)
        past += len(part)
        w = forgetting_factor ** np.arange(past - 1, -1, -1.0)
        _, s = spectrum(X[:past], w)
        assert_allclose(model.singular_values_, s[:3], rtol=1e-9)


def of(X, weight=1.0):
    """The scatter matrix that a summary of rows holds."""
    return StreamingPCA(3).fit(X)._state.subspace.decay(weight)._leading


@pytest.mark.parametrize("weight", [1.0, 0.25, 1e-6])
def test_known_eigenvalues_are_there(weight):
    X = make_power_law(300, 20, alpha=1.0, random_state=0)
    held = of(X, weight)
    lam = spectrum(X)[1] ** 2 * weight
    known = held.certainty
    assert_allclose(known.known, lam[known.count - 1], rtol=1e-12)
    assert known.rounding < 1e-13 * lam[0]
    assert known.least < 1e-4 * lam[0]


def test_roundings_of_parts_add_up():
    X = make_power_law(900, 20, alpha=1.0, random_state=0)
    parts = [StreamingPCA(3).fit(rows).subspace_ for rows in np.split(X, 3)]
    whole = merge_subspaces(parts, 3)._leading
    merged = merge_subspaces([s.decay(4.0) for s in parts])._leading.certainty
    assert merged.rounding >= 4 * sum(s._leading.certainty.rounding for s in parts)
    assert merged.least >= 4 * sum(s._leading.certainty.least for s in parts)
    assert whole is None  # directions were cut


def test_directions_of_few_rows_fade_as_their_weights():
    X = np.random.default_rng(0).standard_normal((5, 8))
    faded = Subspace.from_rows(X).decay(0.25)
    V, s = spectrum(X, np.full(5, 0.25))
    assert_allclose(faded.singular_values, s[:4], rtol=1e-13)
    assert subspace_distance(faded.components, V[:4]) < 1e-13


def test_squares_of_float32_rows_are_added_up_in_float64():
    # 100 rows of 300 columns: 100 additions in float32 would err by a few times 1e-7 in a column
    X = np.random.default_rng(0).standard_normal((100, 300)).astype(np.float32) + 3
    scatter = ((X - X.mean(axis=0, dtype=np.float64)) ** 2).sum(axis=0)
    assert_allclose(Subspace.from_rows(X).column_scatter, scatter, rtol=2e-7)
