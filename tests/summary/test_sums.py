"""Scatter matrices that are added up: what they tell, when they are certain, when they are read.

Triangular factors of rows and their merge; means of projection matrices in factored form.
"""

import pickle

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from helpers import peak_bytes, svd_of
from numpy.testing import assert_allclose, assert_array_equal
from threadpoolctl import threadpool_limits

from fedpca_sklearn import (
    FederatedPCA,
    StreamingPCA,
    Subspace,
    make_power_law,
    merge_subspaces,
    subspace_distance,
)
from fedpca_sklearn.summary import _exact
from fedpca_sklearn.summary._directions import all_directions
from fedpca_sklearn.summary._triangle import triangle_of_rows
from fedpca_sklearn.summary._updating import updated_by_block


def by_batches(model, X, n):
    for part in np.array_split(X, n):
        model.partial_fit(part)
    return model


@pytest.fixture
def asked(monkeypatch):
    """Numbers of directions that are asked of eigenproblems of sums."""
    counts, solve = [], _exact.eigh_top

    def counted(G, count, **options):
        counts.append(count)
        return solve(G, count, **options)

    monkeypatch.setattr(_exact, "eigh_top", counted)
    return counts


# -------------------------------------------------------------------------- what a sum is sure of


@pytest.mark.parametrize("far", [0.0, 1e4, 1e8, 1e10])
@pytest.mark.parametrize("n_batches", [1200, 40, 2])
def test_a_mean_far_from_zero_costs_no_digit(n_batches, far):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1200, 20)) * np.linspace(1, 3, 20) + far
    s = svd_of(X)[1][:5]
    parts = [Subspace.from_rows(part) for part in np.array_split(X, 40)]
    for found in (
        by_batches(StreamingPCA(5), X, n_batches).singular_values_,
        merge_subspaces(parts, 5).singular_values,
        FederatedPCA(5, n_clients=40).fit(X).singular_values_,
    ):
        assert_allclose(found, s, rtol=1e-13)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.0])
def test_many_batches_have_few_eigenproblems(asked, alpha):
    X = make_power_law(9000, 30, alpha=alpha, random_state=0)
    StreamingPCA(3).fit(iter(np.array_split(X, 300)))
    assert len(asked) <= 4
    model = by_batches(StreamingPCA(3), X, 60)
    _, s, V = svd_of(X)
    assert len(asked) <= 8
    assert_allclose(model.singular_values_, s[:3], rtol=1e-13)
    assert subspace_distance(model.components_, V[:3]) < 1e-12 / min(1 - s[3] / s[2], 1)


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
    model = by_batches(StreamingPCA(n_components), X, 20)
    s = svd_of(X)[1]
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
    error = (V.T * s**2) @ V - sums + held.n_samples * np.outer(held.mean, held.mean)
    known = held._leading.certainty
    shown_in = 4 * np.finfo(np.float32).eps * s[0] ** 2  # as directions have that dtype
    assert np.linalg.norm(error, 2) <= known.rounding + shown_in
    assert known.least < known.known


@pytest.mark.parametrize("forgetting_factor", [0.9, 0.99, 0.999])
def test_a_stream_that_forgets_is_certain_of_what_it_shows(forgetting_factor):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((4000, 30)) * np.arange(1, 31) ** -1.0
    X[2000:, :3] *= 1e-4  # large variances fade, and small ones lead
    model, past = StreamingPCA(3, forgetting_factor=forgetting_factor), 0
    for i, part in enumerate(np.array_split(X, 80)):
        model.partial_fit(part)
        past += len(part)
        if i % 4 == 3:
            w = forgetting_factor ** np.arange(past - 1, -1, -1.0)
            assert_allclose(model.singular_values_, svd_of(X[:past], w)[1][:3], rtol=1e-9)


@pytest.mark.parametrize("weight", [1.0, 0.25, 1e-6])
def test_known_eigenvalues_are_there(weight):
    X = make_power_law(300, 20, alpha=1.0, random_state=0)
    known = StreamingPCA(3).fit(X)._state.subspace.decay(weight)._leading.certainty
    lam = svd_of(X)[1] ** 2 * weight
    assert known.n_known >= 3
    assert known.least < known.known <= lam[known.n_known - 1] * (1 + 1e-12)
    assert known.rounding < 1e-13 * lam[0]
    assert known.least < 1e-4 * lam[0]


def test_roundings_of_parts_add_up():
    X = make_power_law(900, 20, alpha=1.0, random_state=0)
    parts = [StreamingPCA(3).fit(rows).subspace_ for rows in np.split(X, 3)]
    merged = merge_subspaces([s.decay(4.0) for s in parts])._leading.certainty
    assert merged.rounding >= 4 * sum(s._leading.certainty.rounding for s in parts)
    assert merged.least >= 4 * sum(s._leading.certainty.least for s in parts)
    assert merge_subspaces(parts, 3)._leading is None  # directions were cut


def test_directions_of_few_rows_fade_as_their_weights():
    X = np.random.default_rng(0).standard_normal((5, 8))
    faded = Subspace.from_rows(X).decay(0.25)
    _, s, V = svd_of(X, np.full(5, 0.25))
    assert_allclose(faded.singular_values, s[:4], rtol=1e-13)
    assert subspace_distance(faded.components, V[:4]) < 1e-13


def test_squares_of_float32_rows_are_added_up_in_float64():
    # 100 additions in float32 would err by a few times 1e-7 in a column; fewer directions are kept
    # than there are rows, so that products are in float32
    X = np.random.default_rng(0).standard_normal((100, 900)).astype(np.float32) + 3
    scatter = ((X - X.mean(axis=0, dtype=np.float64)) ** 2).sum(axis=0)
    assert_allclose(Subspace.from_rows(X, 3).column_scatter, scatter, rtol=2e-7)


def test_a_sum_has_the_precision_of_its_least_part():
    rows = np.random.default_rng(0).standard_normal((2000, 20)).astype(np.float32)
    summary = updated_by_block(Subspace.empty(20, dtype=np.float32), rows, n_certain=2)
    later = rows + 1e3 * rows[:, :1]  # the second direction is lost in float32
    for part in summary, updated_by_block(summary, later, n_certain=2):
        assert part._leading.precision == np.float32


# -------------------------------------------------------- directions that are found when read

N, D, R = 700, 400, 10


@pytest.fixture(scope="module")
def X():
    return make_power_law(N, D, alpha=1.0, random_state=0) + 1.0


def test_a_fit_finds_the_wanted_directions_only(X, asked):
    pca = StreamingPCA(R).fit(X)
    pca.transform(X)
    pca.score(X)
    assert asked == [R]
    Subspace.from_rows(X, R)
    assert asked == [R, R]
    assert len(pca.subspace_.components) == D
    assert pca._state.subspace.singular_values is pca.subspace_.singular_values
    assert asked == [R, R, D]
    for n_certain in (D // 4, None):  # many are found at once
        assert len(StreamingPCA(n_certain).fit(X).components_) == (n_certain or D)
    assert asked == [R, R, D, D, D]


def of_rank(n, d, rank):
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, rank)) @ rng.standard_normal((rank, d))


def steep(n, d, k):
    """Rows in float32 of which the last wanted variance is 1e-6 of the first."""
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    X = (rng.standard_normal((n, d)) * 10.0 ** (-3 * np.arange(d) / k)) @ Q
    return X.astype(np.float32)


WITHOUT_QR = {
    "float32": lambda: (StreamingPCA(30), steep(400, 60, 30), {}),
    "reserves without variance": lambda: (StreamingPCA(10), of_rank(200, 1200, 12), {}),
    "sites that keep all directions": lambda: (
        FederatedPCA(2),
        make_power_law(4000, 40, alpha=4.0, random_state=0),
        {"clients": np.arange(4000) % 4},
    ),
    "scaled sites that repeat a column": lambda: (
        FederatedPCA(2, scale=True),
        make_power_law(4000, 40, alpha=0.5, random_state=0)[:, [0, *range(40)]],
        {"clients": np.arange(4000) % 4},
    ),
}


@pytest.mark.parametrize("kind", WITHOUT_QR)
def test_what_sums_are_certain_of_takes_no_qr(kind, monkeypatch):
    """No directions but the wanted ones are small beside the others."""
    model, X, labels = WITHOUT_QR[kind]()
    calls, qr = [], scipy.linalg.qr
    monkeypatch.setattr("scipy.linalg.qr", lambda *a, **k: calls.append(a) or qr(*a, **k))
    k, V = model.n_components, model.fit(X, **labels).components_
    assert not calls
    Y = X.astype(np.float64)
    Y = (Y - Y.mean(axis=0)) / (Y.std(axis=0) if getattr(model, "scale", False) else 1.0)
    s, W = svd_of(Y)[1:]
    assert_allclose(model.singular_values_, s[:k], rtol=1e-6 if kind == "float32" else 1e-9)
    assert subspace_distance(V.astype(np.float64), W[:k]) < (1e-6 if kind == "float32" else 1e-9)


def test_what_a_sum_leaves_uncertain_is_found_at_once_by_qr(X, asked):
    """Without an eigenproblem of all directions, whose certificate would be the same."""
    steep = X @ np.diag(10.0 ** -np.linspace(0, 12, D))
    assert_allclose(StreamingPCA(60).fit(steep).singular_values_, svd_of(steep)[1][:60], rtol=1e-9)
    assert asked == [60]


def test_columns_whose_squares_vanish_bring_no_rounding_error_into_the_others():
    rng = np.random.default_rng(0)
    for _ in range(50):
        k, units = rng.integers(2, 9), 10.0 ** rng.uniform(-300, -20, rng.integers(9, 30))
        rows = rng.standard_normal((k, len(units))) * units
        largest = all_directions(rows)[1][0]
        assert_allclose(np.linalg.norm(rows / units.max(), 2) * units.max(), largest, rtol=1e-12)


@pytest.mark.parametrize("kind", ["dense", "sparse", "float32", "unused columns", "large", "tiny"])
def test_all_directions_are_those_of_the_scatter_matrix(X, kind):
    Y, like, unit = X, X, {"large": 1e150, "tiny": 1e-140}.get(kind, 1.0)
    if kind == "sparse":
        Y = sp.csr_array(X * (np.random.default_rng(0).random(X.shape) < 0.05))
        like = Y.toarray()
    elif kind == "float32":
        Y = like = X.astype(np.float32)
    elif kind == "unused columns":
        Y = like = X * (np.arange(D) % 5 > 0)
    pca = StreamingPCA(R).fit(Y * unit)
    V, s = pca.subspace_.components, pca.subspace_.singular_values
    assert_array_equal(V[:R], pca.components_)
    assert_array_equal(s[:R].astype(V.dtype), pca.singular_values_)
    Z = like.astype(np.float64) - like.mean(axis=0, dtype=np.float64)
    exact = np.linalg.svd(Z, compute_uv=False)
    rounding = 1e-6 if kind == "float32" else 1e-13
    # products in float32 lose what is small
    assert_allclose(s / unit, exact[: len(s)], rtol=0, atol=exact[0] * np.sqrt(rounding / 100))
    assert_allclose(s[:R] / unit, exact[:R], rtol=rounding)
    assert_allclose(V @ V.T, np.eye(len(V)), atol=10 * rounding)
    assert_allclose((V.T * (s / unit) ** 2) @ V, Z.T @ Z, atol=exact[0] ** 2 * rounding)
    assert not V.flags.writeable


def test_what_is_read_or_copied_in_between_changes_no_later_bit(X):
    quiet, read, copied = (StreamingPCA(R).fit(X) for _ in range(3))
    assert read.subspace_.n_components == D
    copied = pickle.loads(pickle.dumps(copied))
    again = StreamingPCA.from_subspace(Subspace.from_bytes(copied.subspace_.to_bytes()), R)
    for part in np.array_split(X[:500] * 2, 5):
        for model in (quiet, read, copied, again):
            model.partial_fit(part)
        read.transform(X[:2])
        assert read.subspace_.n_components == D
    for model in (read, copied):
        assert_array_equal(model.components_, quiet.components_)
        assert_array_equal(model.subspace_.singular_values, quiet.subspace_.singular_values)
    assert_allclose(again.components_, quiet.components_, rtol=0, atol=1e-12)


def test_summaries_with_directions_to_come_are_summaries(X):
    def fresh():
        return StreamingPCA(R).fit(X).subspace_

    whole = fresh()
    V, s = whole.components, whole.singular_values
    assert "n_components=400" in repr(fresh())
    for n in (3, R + 5, D):
        cut = fresh().truncate(n)
        assert_array_equal(cut.components, V[:n])
        assert_array_equal(cut.singular_values, s[:n])
    half = fresh().decay(0.25)
    assert_array_equal(half.singular_values, s / 2)
    assert_array_equal(half.components, V)
    assert merge_subspaces([fresh(), fresh()], 5).n_samples == 2 * N
    assert pickle.loads(pickle.dumps(fresh()._replace(site="a"))).n_components == D
    with pytest.raises(AttributeError, match="nothing"):
        fresh().nothing  # noqa: B018


def test_the_other_directions_take_six_matrices(X):
    square, pca = 8 * D**2, StreamingPCA(R)
    with threadpool_limits(1, user_api="blas"):  # each has matrices of its own
        assert peak_bytes(lambda: pca.fit(X)) < 3 * square
    # numpy's copy, its result, and LAPACK's workspace of two, which numpy counts from 2.5 on
    assert peak_bytes(lambda: pca.subspace_.components) < 6.1 * square


@pytest.mark.parametrize("scale", [1e-157, 1e-162, 1e145])
def test_rows_whose_squares_nearly_vanish_have_the_others_too(X, scale):
    model = StreamingPCA(R).fit(X * scale)
    assert_allclose(model.subspace_.components @ model.subspace_.components.T, np.eye(D), atol=1e-9)
    model.partial_fit(X[:5] * scale)
    assert model.n_samples_seen_ == N + 5
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.components_, model.components_)


# ---------------------------------------------------------------- triangles, means of projections


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_are_not_copied_as_a_whole(dtype, weighted):
    X = np.random.default_rng(29).standard_normal((100_000, 8)).astype(dtype)
    w = np.full(len(X), 2.0) if weighted else None
    triangle_of_rows(X[:10], w if w is None else w[:10])
    assert peak_bytes(lambda: triangle_of_rows(X, w)) < 10 * 1000 * 8 * 8  # a few blocks


# -------------------------------------------------------------------------- means of projections
