"""Products in float32 of rows less their parts along a few directions."""

import numpy as np
import pytest
from helpers import noted_precisions
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from fedpca_sklearn import StreamingPCA, make_power_law
from fedpca_sklearn._kernels.deflation import largest_left
from fedpca_sklearn._kernels.precision import precisions
from fedpca_sklearn._kernels.scatter import row_scatter
from fedpca_sklearn.metrics import subspace_distance

F8, F4 = np.dtype("f8"), np.dtype("f4")


def oracle(X, w=None):
    """Scatter about the mean, and the mean, in float64."""
    X = X.astype(np.float64)
    w = np.ones(len(X)) if w is None else w
    mean = w @ X / w.sum()
    Z = np.sqrt(w)[:, None] * (X - mean)
    return Z.T @ Z, mean


def off(found, want):
    """Norm of the difference from a lower triangle."""
    E = np.tril(found) - np.tril(want)
    return np.linalg.norm(E + np.tril(E, -1).T, 2)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 300),
    d=st.integers(2, 40),
    q=st.integers(1, 8),
    far=st.sampled_from([0, 3, 1e3]),
    kind=st.sampled_from(["random", "repeated", "zero", "long"]),
    weighted=st.booleans(),
    dtype=st.sampled_from([F4, F8]),
    seed=st.integers(0, 2**31),
)
def test_whatever_the_directions_are_the_scatter_is_that_of_numpy(
    n, d, q, far, kind, weighted, dtype, seed
):
    rng = np.random.default_rng(seed)
    X = (rng.standard_normal((n, d)) * np.linspace(3, 1, d) + far).astype(F4)
    w = rng.uniform(0.1, 2, n) if weighted else None
    U = np.linalg.qr(rng.standard_normal((d, min(q, d))))[0].T
    U = {"random": U, "repeated": U[[0, 0]], "zero": 0 * U, "long": 3 * U}[kind]
    total = n if w is None else w.sum()
    found = row_scatter(X, None if w is None else np.sqrt(w), total, True, dtype, U)
    want, mean = oracle(X, w)
    # parts three times as long come twice: rows of up to 18 times the size
    eps = np.finfo(dtype).eps * {"repeated": 4, "long": 400}.get(kind, 1)
    least = n * far**2 * np.finfo(F8).eps * 8
    assert off(found.G, want) <= 16 * eps * np.trace(want) + least
    # rows are at most some 15 from their mean, of which 64 are added up in their precision; the
    # oracle adds up n
    atol = 15 * 64 * np.finfo(dtype).eps + n * far * np.finfo(F8).eps
    assert_allclose(found.shift + found.offset, mean, rtol=0, atol=atol)


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize(("d", "r", "alpha"), [(70, 20, 2.0), (300, 10, 2.5), (900, 50, 2.0)])
def test_small_variances_beside_large_ones_keep_their_digits(d, r, alpha, n_threads, monkeypatch):
    """Of float32 alone the directions would be off by eps times the ratio of variances."""
    monkeypatch.setattr("fedpca_sklearn._kernels.scatter.usable_threads", lambda: n_threads)
    n = 8_000 if d > 100 else 20_000
    X = make_power_law(n, d, alpha=alpha, random_state=0).astype(F4) + F4.type(5)
    G, _ = oracle(X)
    lam, V = (found[..., ::-1] for found in np.linalg.eigh(G))
    made = noted_precisions(monkeypatch)
    pca = StreamingPCA(r).fit(X)
    assert made == [(F4, True)]
    gap = (lam[r - 1] - lam[r]) / lam[r - 1]
    assert subspace_distance(pca.components_, V[:, :r].T) < 1e-5 / gap
    assert_allclose(pca.singular_values_**2, lam[:r], rtol=1e-6)


def test_what_is_left_is_at_most_what_the_leading_pairs_say():
    X = make_power_law(2_000, 80, alpha=1.5, random_state=0)
    G, _ = oracle(X)
    lam, W = (found[..., ::-1] for found in np.linalg.eigh(G))
    for rows in (X[:30], X[::50], X):
        U = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)[2][:4]
        P = np.eye(80) - U.T @ U
        left = np.linalg.norm(P @ G @ P, 2)
        for count in (5, 10, 20):
            bound = largest_left(lam[:count], W[:, :count], U)
            assert left <= bound * (1 + 1e-12)
            assert bound <= left + lam[count - 1] * (1 + 1e-12)


@pytest.mark.parametrize("sampled", [True, False])
def test_rows_with_a_direction_of_their_own_are_as_certain(sampled, monkeypatch):
    """An attack: one row in two hundred is far off where no row of the sample is."""
    X = make_power_law(20_000, 100, alpha=2.5, random_state=0)
    far = np.arange(100, len(X), 200)
    X[far] += 1e2 * np.random.default_rng(0).standard_normal((len(far), 1)) * np.eye(100)[70]
    if sampled:  # in another order the sample shows some of them
        X = X[np.random.default_rng(1).permutation(len(X))]
    X = X.astype(F4)
    made = noted_precisions(monkeypatch)
    pca = StreamingPCA(12).fit(X)
    assert made[-1] == (F8, False)
    G, _ = oracle(X)
    lam, V = (found[..., ::-1] for found in np.linalg.eigh(G))
    assert_allclose(pca.singular_values_**2, lam[:12], rtol=1e-6)
    assert subspace_distance(pca.components_, V[:, :12].T) < 1e-5


def test_columns_that_do_not_vary_have_no_loading_and_small_ones_keep_their_scatter(monkeypatch):
    X = make_power_law(20_000, 70, alpha=2.5, random_state=0)
    X[:, 3], X[:, 30], X[:, 31] = 0.1, 1e8, 7
    X[:, 50] *= 1e-6
    X = X.astype(F4)
    made = noted_precisions(monkeypatch)
    pca = StreamingPCA(12).fit(X)
    assert made == [(F4, True)]
    assert np.all(pca.components_[:, [3, 30, 31]] == 0)
    assert np.all(pca.subspace_.components[:, [3, 30, 31]] == 0)
    G, _ = oracle(X)
    scatter = np.diagonal(G)
    assert_allclose(pca.subspace_.column_scatter, scatter, rtol=1e-5, atol=1e-30)


def kinds(n_kinds, d, alpha, n, seed):
    """Rows of a few kinds, sorted, as of a table of groups."""
    rng = np.random.default_rng(seed)
    kinds = rng.standard_normal((n_kinds, d)) * np.arange(1, d + 1.0) ** -alpha
    shares = rng.dirichlet(np.full(n_kinds, 3.0))
    return kinds[np.sort(rng.choice(n_kinds, n, p=shares))].astype(F4) + F4.type(0.5)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("d", "r", "alpha"), [(6, 4, 1.6), (9, 6, 1.5), (80, 9, 1.4)])
def test_rows_that_repeat_one_after_the_other_lose_no_more(d, r, alpha, seed):
    """Found from outside: sums in float32 rounded equal rows alike, up to 1e-3 of a direction."""
    X = kinds(r + 1, d, alpha, 30_000, seed)
    G, mean = oracle(X)
    lam, V = (found[..., ::-1] for found in np.linalg.eigh(G))
    pca = StreamingPCA(r).fit(X)
    gap = (lam[r - 1] - lam[r]) / lam[r - 1]
    assert subspace_distance(pca.components_, V[:, :r].T) < 2e-5 / gap
    assert_allclose(pca.singular_values_**2, lam[:r], rtol=5e-5)
    assert np.all(np.abs(pca.subspace_.mean - mean) < 1e-5 * np.sqrt(np.diagonal(G) / len(X)))


def test_small_columns_keep_scatter_and_mean_whatever_the_sample_shows(monkeypatch):
    """Found from outside: of columns 1e-6 as large they were differences of larger numbers."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30_000, 80)) * np.repeat([1.0, 0.03, 1e-6], [4, 16, 60])
    X[:, 20:] += 1e-6
    step = len(X) // (4 * 12 + 32)
    sampled = np.arange(len(X)) % step == 0
    X[sampled, 20:] *= 1e4  # so that the first directions have loadings there
    X[np.ix_(~sampled, range(4))] *= 2
    X = X.astype(F4)
    made = noted_precisions(monkeypatch)
    pca = StreamingPCA(12).fit(X)
    assert made[0] == (F4, True)
    G, mean = oracle(X)
    deviations = np.sqrt(np.diagonal(G) / len(X))
    assert_allclose(pca.subspace_.column_scatter, np.diagonal(G), rtol=1e-5)
    assert np.all(np.abs(pca.subspace_.mean - mean) < 1e-5 * deviations)


@pytest.mark.parametrize("alpha", [0.3, 2.2])
def test_tiny_weights_of_large_rows_do_not_move_the_mean(alpha):
    """Found from outside: in float32 their products with rows vanished, in sums only."""
    X = (make_power_law(20_000, 40, alpha=alpha, random_state=0) + 3).astype(F4) * F4.type(1e15)
    w = np.full(len(X), 1e-66)
    pca = StreamingPCA(8).fit(X, sample_weight=w)
    G, mean = oracle(X.astype(np.float64) / 1e15)
    off = np.abs(pca.subspace_.mean / 1e15 - mean)
    assert np.all(off < 1e-5 * np.sqrt(np.diagonal(G) / len(X)))
    lam, V = (found[..., ::-1] for found in np.linalg.eigh(G))
    assert subspace_distance(pca.components_, V[:, :8].T) < 1e-5 * lam[7] / (lam[7] - lam[8])


def test_a_stream_takes_off_what_it_knows_of(monkeypatch):
    X = make_power_law(100_000, 100, alpha=2.0, random_state=0).astype(F4)
    made = noted_precisions(monkeypatch)
    pca = StreamingPCA(15)
    for batch in np.split(X, 4):
        pca.partial_fit(batch)
    assert made == [(F4, True)] * 4
    lam, V = (found[..., ::-1] for found in np.linalg.eigh(oracle(X)[0]))
    assert subspace_distance(pca.components_, V[:, :15].T) < 1e-5
    assert_allclose(pca.singular_values_**2, lam[:15], rtol=1e-6)


def tries(X, count, V=None, s=()):
    """Precisions and numbers of directions that are apart."""
    V = np.zeros((0, X.shape[1]), F4) if V is None else V
    found = precisions(X, F4, count, V, np.asarray(s, dtype=float))
    return [(p.dtype, 0 if p.apart is None else len(p.apart)) for p in found]


def test_how_many_directions_are_taken_off():
    plain, exact = (F4, 0), (F8, 0)
    X = make_power_law(50_000, 70, alpha=1.0, random_state=0).astype(F4)
    V = np.eye(70, dtype=F4)[:12]
    assert tries(X, 10) == [plain, exact]
    assert tries(X, 0) == [plain, exact]  # nothing is known of how many matter
    # singular values of the past; float32 is certain down to .11 of the largest
    assert tries(X, 12, V, [50] * 2 + [1] * 10) == [(F4, 4), exact]
    assert tries(X, 12, V, [50] * 8 + [1] * 4) == [(F4, 8), exact]
    assert tries(X, 12, V, [50] * 9 + [1] * 3) == [exact]  # too many are large
    assert tries(X, 12, V, [50] * 4 + [1] * 7 + [0.5]) == [exact]  # too small by far
    assert tries(X, 3, V[:3], [50, 1, 1]) == [exact]  # too few to take some off
    assert precisions(X, F8, 10, V, np.ones(12)) == [(F8, None)]


@pytest.mark.parametrize(
    ("alpha", "found"), [(0.5, (F4, 0)), (1.5, (F4, 4)), (2.5, (F8, 0)), (4.0, (F8, 0))]
)
def test_a_sample_that_takes_too_long_is_replaced_by_fewer_rows(alpha, found):
    X = make_power_law(8_000, 300, alpha=alpha, random_state=0).astype(F4)
    assert tries(X, 60)[0] == found
    assert tries(X, 60)[-1] == (F8, 0)
    assert tries(X[:300], 60) == [(F4, 0), (F8, 0)]  # even that would take too long


def test_of_few_columns_none_are_taken_off():
    """Products in float64 take as long."""
    X = make_power_law(50_000, 63, alpha=2.5, random_state=0).astype(F4)
    assert tries(X, 12) == [(F8, 0)]
