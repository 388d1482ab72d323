"""Very few directions of some hundred rows or columns, from products with single vectors."""

import numpy as np
import pytest
from helpers import peak_bytes
from numpy.testing import assert_allclose
from scipy.stats import ortho_group

from fedpca_sklearn import StreamingPCA, excess_error, make_power_law, subspace_distance
from fedpca_sklearn._kernels import lanczos, precision
from fedpca_sklearn._kernels.lanczos import leading_by_lanczos
from fedpca_sklearn._kernels.routes import passes_pay, rows_of_vectors, vectors_pay
from fedpca_sklearn._kernels.stack import DenseBlock

D, R, K = 400, 3, 13
SHAPES = [(900, D), (D, D), (250, D)]
# 450 roundings are left in the residual, over the gap behind the last direction; variances are
# about 1, 1/2, 1/3, 1/4 here, and rounding is relative to the first.
SINE = 1e-12


@pytest.fixture(params=SHAPES, ids=str)
def X(request):
    return make_power_law(*request.param, alpha=1.0, random_state=0)


def by_vectors(Y, w=None, center=True, past=None, wanted=R):
    """Block and its directions, of which there is None if they are not certain."""
    d = Y.shape[1]
    fields = past or (np.zeros((0, d), Y.dtype), np.zeros(0), np.zeros(d), 0.0)
    block = DenseBlock(*fields, Y, w, center)
    return block, block.by_vectors(K, wanted)


def check(block, found, Z, sine=SINE):
    """Beside numpy's SVD of the centred and weighted rows."""
    V, s = found
    _, best, W = np.linalg.svd(Z, full_matrices=False)
    assert V.shape == (K, Z.shape[1])
    assert_allclose(V @ V.T, np.eye(K), atol=1e-12)
    assert subspace_distance(V[:R], W[:R]) < sine
    assert_allclose(s[:R], best[:R], rtol=1e-13)
    assert_allclose(block.column_scatter, np.sum(Z**2, axis=0), rtol=1e-12, atol=1e-12 * best[0])
    beyond = Z.T @ Z - (V.T * s**2) @ V  # of a cut: nothing is claimed that is not there
    assert np.linalg.eigvalsh(beyond)[0] > -1e-12 * best[0] ** 2
    # and what is kept beyond those wanted is most of what there is
    assert np.sum(s[R:] ** 2) > 0.8 * np.sum(best[R:K] ** 2)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("center", [False, True])
def test_those_wanted_are_exact_and_the_others_are_those_of_a_cut(X, center, weighted):
    n = len(X)
    w = np.random.default_rng(1).uniform(0.5, 2, n) if weighted else np.ones(n)
    mean = w @ X / w.sum() if center else 0
    block, found = by_vectors(X, w if weighted else None, center)
    check(block, found, np.sqrt(w)[:, None] * (X - mean))


def test_the_past_counts_as_its_rows_do(X):
    first, second = X[:40], X[40:] + 0.3
    past = StreamingPCA(None).fit(first).subspace_
    fields = (past.components, past.singular_values, past.mean, past.n_samples)
    block, found = by_vectors(second, past=fields)
    rows = np.concatenate([first, second])
    Z = rows - rows.mean(axis=0)
    assert subspace_distance(found[0][:R], np.linalg.svd(Z)[2][:R]) < SINE
    assert_allclose(past.scatter + block.scatter, np.sum(Z**2), rtol=1e-12)
    assert_allclose(block.new_mean[0], rows.mean(axis=0), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("scale", [1e-90, 1e90])
def test_units_change_nothing(X, scale):
    _, (V, s) = by_vectors(X)
    _, (W, t) = by_vectors(X * scale)
    assert subspace_distance(V[:R], W[:R]) < SINE
    assert_allclose(t[:R], s[:R] * scale, rtol=1e-13)


@pytest.mark.parametrize("scale", [1e-150, 1e150])
def test_where_products_would_leave_the_range_others_find_them(X, scale):
    assert by_vectors(X * scale)[1] is None
    pca = StreamingPCA(R).fit(X * scale)
    assert excess_error(X, pca.components_) < 1e-12


def test_a_mean_far_from_zero_costs_only_what_its_rounding_costs(X):
    Y = X + 1e8  # digits below 1.5e-8 are lost
    block, found = by_vectors(Y)
    Z = Y - Y.mean(axis=0)
    assert subspace_distance(found[0][:R], np.linalg.svd(Z)[2][:R]) < 1e-8
    assert_allclose(block.new_mean[0], Y.mean(axis=0), rtol=1e-14)


def test_rows_of_float32_go_through_products_of_float32(X):
    Y = X.astype(np.float32)
    V, s = by_vectors(Y)[1]
    assert V.dtype == np.float32
    want = by_vectors(Y.astype(float))[1]
    assert_allclose(s[:R], want[1][:R], rtol=1e-6)
    assert subspace_distance(V[:R].astype(float), want[0][:R]) < 1e-5


@pytest.mark.parametrize("alpha", [3.0, 4.0, 5.0])
@pytest.mark.parametrize("n", [2_000, 600])
def test_small_variances_of_float32_are_found_where_residuals_in_float64_say_so(n, alpha):
    """A scatter matrix in float32 would not do: they are 0.8 % to 0.03 % of the largest."""
    Y = make_power_law(n, 500, alpha=alpha, random_state=0).astype(np.float32)
    V, s = by_vectors(Y, wanted=5)[1]
    Z = Y.astype(float) - Y.mean(axis=0, dtype=float)
    best, W = np.linalg.svd(Z, full_matrices=False)[1:]
    assert best[4] ** 2 < 0.01 * best[0] ** 2
    assert_allclose(s[:5], best[:5], rtol=1e-5)
    assert np.all(np.diff(s) <= 0)
    # each direction by itself
    sines = np.linalg.norm(V[:5] - (V[:5] * W[:5]).sum(axis=1)[:, None] * W[:5], axis=1)
    assert sines.max() < 1e-5
    assert_allclose(V @ V.T, np.eye(K), atol=1e-5)


def test_what_residuals_in_float64_refuse_is_left_to_others(monkeypatch):
    Y = make_power_law(2_000, 500, alpha=3.0, random_state=0).astype(np.float32)
    assert by_vectors(Y, wanted=5)[1] is not None
    steeper = make_power_law(2_000, 500, alpha=7.0, random_state=0).astype(np.float32)
    assert by_vectors(steeper, wanted=5)[1] is None  # roundings hide what is to be kept beyond
    monkeypatch.setitem(precision.ORTHONORMALITY_TOL, np.dtype("f4"), 1e-9)
    assert by_vectors(Y, wanted=5)[1] is None


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_float32_of_large_and_small_units_is_left_to_others(X, scale):
    Y = (X * scale).astype(np.float32)
    assert by_vectors(Y)[1] is None
    assert excess_error(X, StreamingPCA(R).fit(Y).components_.astype(float)) < 1e-6


def test_what_overflows_is_an_error(X):
    with (
        np.errstate(over="ignore", invalid="ignore"),
        pytest.raises(ValueError, match="sum of squares"),
    ):
        by_vectors(X * 1e170)


@pytest.mark.parametrize("kind", ["noise", "constant", "one direction", "fewer than wanted"])
def test_what_is_not_certain_is_left_to_the_other_routes(kind):
    g = np.random.default_rng(0)
    Y = g.standard_normal((600, D))
    if kind == "constant":
        Y[:] = 3.0
    elif kind == "one direction":
        Y = Y[:, :1] * g.standard_normal(D)
    elif kind == "fewer than wanted":
        Y = Y[:, :2] @ g.standard_normal((2, D))
    assert by_vectors(Y)[1] is None
    pca = StreamingPCA(R).fit(Y)
    Z = Y - Y.mean(axis=0)
    best = np.linalg.svd(Z, compute_uv=False)[:R]
    assert_allclose(pca.singular_values_, best, rtol=1e-10, atol=1e-6 * (best[0] or 1))
    assert_allclose(np.linalg.norm(Z @ pca.components_.T, axis=0), best, atol=1e-6 * (best[0] or 1))


def test_rows_of_a_lower_rank_are_known_whole():
    g = np.random.default_rng(0)
    Y = g.standard_normal((600, 6)) * np.arange(6, 0, -1) @ g.standard_normal((6, D))
    Z = Y - Y.mean(axis=0)
    pca = StreamingPCA(R).fit(Y)
    assert subspace_distance(pca.components_, np.linalg.svd(Z)[2][:R]) < SINE
    assert pca.subspace_.n_components == 6
    assert_allclose(pca.subspace_.scatter, np.sum(Z**2), rtol=1e-12)


def test_noise_is_given_up_after_a_few_products():
    A = np.random.default_rng(0).standard_normal((600, D))
    calls = []

    def apply(q):
        calls.append(q)
        return (A @ q) @ A

    assert leading_by_lanczos(apply, np.einsum("ij,ij->j", A, A), R, K - R) is None
    assert len(calls) <= 11


E = ortho_group.rvs(300, random_state=0)


@pytest.mark.parametrize("eigenvalue", [0.45, 0.9, 1.0, 5.0])
def test_a_direction_hidden_from_the_first_vector_is_not_missed(eigenvalue):
    start = np.random.default_rng(0).standard_normal(300)
    u = E[:, 0] - (E[:, 0] @ start) / (start @ start) * start
    u /= np.linalg.norm(u)
    across = np.eye(300) - np.outer(u, u)
    A = across @ (E / np.arange(1, 301)) @ E.T @ across + eigenvalue * np.outer(u, u)
    found = leading_by_lanczos(lambda q: A @ q, A.diagonal(), 5, 10)
    assert found is None or np.linalg.norm(found[1][:5] @ u) > 1 - 1e-12


@pytest.mark.parametrize("reserves", [1, 10, 15])
def test_pairs_in_reserve_are_nystroems(reserves, monkeypatch):
    lam = 1 / np.arange(1.0, 301)
    A = (E * lam) @ E.T
    spaces = []

    class Kept(lanczos._Space):
        def __init__(self, *args):
            super().__init__(*args)
            spaces.append(self)

    monkeypatch.setattr(lanczos, "_Space", Kept)
    found, V = leading_by_lanczos(lambda q: A @ q, A.diagonal(), 5, reserves)
    Q = spaces[0].basis[: spaces[0].n].T
    assert len(found) == len(V) == min(5 + reserves, Q.shape[1])
    assert_allclose(found[:5], lam[:5], rtol=1e-13)
    B = A @ Q  # as textbooks have it
    want, W = np.linalg.eigh(B @ np.linalg.solve(Q.T @ B, B.T))
    p = len(found)
    assert_allclose(found, want[: -p - 1 : -1], rtol=1e-10)
    cut = (W[:, -p:] * want[-p:]) @ W[:, -p:].T
    assert_allclose((V.T * found) @ V, cut, atol=1e-12)


@pytest.mark.parametrize(
    ("n", "d", "k", "wanted", "pays"),
    [
        # one core, variances as 1 / i: 11 ms beside 15, 3.1 beside 6.6, 10.8 beside 9.9, and 6.4
        # beside 2.2 at i^-.5
        (2_000, 500, 15, 5, True),
        (500, 500, 12, 2, True),
        (3_000, 300, 15, 5, False),
        (100, 1_000, 15, 5, False),
        (2_100, 500, 15, 5, False),  # more than 8 MB
        (500, 500, 15, 15, False),  # all are wanted
        (500, 500, 500, 5, False),  # all are kept
        (500, 500, 15, None, False),
        (900, 1_100, 12, 2, True),  # 8.6 beside 10.0 by passes
        (900, 1_100, 15, 5, False),  # 12.4 beside 10.1
    ],
)
def test_the_choice_is_that_of_the_stopwatch(n, d, k, wanted, pays):
    assert vectors_pay(n, d, k, wanted) == pays
    if wanted is not None:
        assert not pays or n <= rows_of_vectors(d, k, wanted)
    assert (n * d < 2**20 and d > n) == passes_pay(n, d, k) or n < 513


def test_a_fit_takes_the_route(monkeypatch):
    taken = []
    route = DenseBlock.by_vectors
    monkeypatch.setattr(DenseBlock, "by_vectors", lambda *a: taken.append(a[1:]) or route(*a))
    X = make_power_law(600, 500, alpha=1.0, random_state=0)
    StreamingPCA(2).fit(X)
    assert taken == [(12, 2)]
    for other in (
        StreamingPCA(2, block_size=600),
        StreamingPCA(2, svd_solver="gram"),
        StreamingPCA(2, svd_solver="qr"),
        StreamingPCA(2, oversampling=0),
        StreamingPCA(0.5),
    ):
        other.fit(X)
    assert len(taken) == 1


def spectrum(kind, g, r0):
    return {
        "three values": lambda: g.choice([1.0, 2.0, 1e-3], r0),
        "nearly equal": lambda: np.r_[1, 1, 1 - 1e-9, 1 - 1e-9, g.uniform(0, 0.5, r0 - 4)],
        "a few equal above": lambda: np.r_[np.full(3, 5.0), np.ones(r0 - 3)],
        "steep": lambda: 10.0 ** -np.arange(r0),
        "power law": lambda: np.arange(1, r0 + 1.0) ** -g.uniform(0.2, 3),
        "few": lambda: np.r_[g.uniform(0.9, 1, 4), np.zeros(r0 - 4)],
        "one far above": lambda: np.r_[1e6, 1 / np.arange(1.0, r0)],
    }[kind]()


KINDS = ["three values", "nearly equal", "a few equal above", "steep", "power law", "few"]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("kind", [*KINDS, "one far above", "blocks", "twins", "unlike units"])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_the_rows_are_the_answer_is_right_and_claims_no_more(kind, seed, dtype):
    """Both the route and what it is left to, whose certificates are others."""
    g = np.random.default_rng(seed)
    n, d, r = int(g.integers(200, 512)), int(g.integers(257, 500)), int(g.integers(1, 7))
    r0 = min(n, d)
    if kind == "blocks":  # each of one direction: the space ends after five vectors
        X = np.zeros((n, d))
        for i in range(5):
            at = slice(i * (n // 5), (i + 1) * (n // 5)), slice(i * (d // 5), (i + 1) * (d // 5))
            X[at] = (i + 1) * g.standard_normal((n // 5, 1))
    elif kind == "twins":
        X = np.repeat(g.standard_normal((n, d // 2)) / np.arange(1, d // 2 + 1), 2, axis=1)
    elif kind == "unlike units":
        X = make_power_law(n, d, random_state=seed) * 10.0 ** g.uniform(-3, 3, d)
    else:
        lam = np.sort(spectrum(kind, g, r0))[::-1]
        left, right = (np.linalg.qr(g.standard_normal((m, r0)))[0] for m in (n, d))
        X = left * np.sqrt(lam) @ right.T
    X = X.astype(dtype)
    pca = StreamingPCA(r).fit(X)
    Z = X.astype(float) - X.astype(float).mean(axis=0)
    s = np.linalg.svd(Z, compute_uv=False)[:r]
    V, t = (a.astype(float) for a in (pca.components_, pca.singular_values_))
    off = (1e-5 if dtype == "f4" else 1e-11) * s[0] ** 2
    assert_allclose(t**2, s[: len(t)] ** 2, atol=off)
    assert np.sum(s**2) - np.sum((Z @ V.T) ** 2) < off
    kept = pca.subspace_.components.astype(float)
    beyond = Z.T @ Z - (kept.T * pca.subspace_.singular_values.astype(float) ** 2) @ kept
    assert np.linalg.eigvalsh(beyond)[0] > -off


def classes(sizes):
    """Rows of one-hot classes and their negatives, of mean zero: eigenvalues repeat."""
    rows = np.eye(300)[np.repeat(np.arange(len(sizes)), sizes)]
    return np.concatenate([rows, -rows])


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("sizes", [[62, 60, 60, 60], [62, 60, 60, *[1] * 40], [62, *[60] * 8]])
def test_no_direction_in_reserve_is_lost_because_its_eigenvalue_repeats(sizes, dtype):
    """Found from outside: a space of one vector has one of them; class 1 leads in the end."""
    first, second = classes(sizes).astype(dtype), classes([0, 50]).astype(dtype)
    pca = StreamingPCA(1).fit(first)
    s = np.sort(pca.subspace_.singular_values**2)[::-1]
    p = min(len(sizes), 11)
    assert_allclose(s[:p], 2.0 * np.array(sizes[:p]), rtol=1e-5)
    pca.partial_fit(second)
    assert_allclose(pca.singular_values_**2, 220, rtol=1e-5)
    assert abs(pca.components_[0, 1]) > 1 - 1e-3


@pytest.mark.parametrize("sizes", [[62, *[30] * 20, *[1] * 40]])
def test_what_is_lost_is_at_most_twice_what_is_kept(sizes):
    Y = classes(sizes)
    kept = StreamingPCA(1).fit(Y).subspace_
    beyond = Y.T @ Y - (kept.components.T * kept.singular_values**2) @ kept.components
    assert np.linalg.eigvalsh(beyond)[-1] <= 2 * kept.singular_values[-1] ** 2


def test_more_in_reserve_than_the_space_has_vectors_is_left_to_the_other_routes():
    assert not vectors_pay(500, 500, 60, 5)
    X = make_power_law(600, 400, alpha=1.0, random_state=0)
    assert StreamingPCA(2, oversampling=50).fit(X).subspace_.n_components == 52


@pytest.mark.parametrize("n", [200, 400])  # a Gram matrix, and products with vectors
@pytest.mark.parametrize("as_past", [False, True])
@pytest.mark.parametrize(("far", "weight"), [(1e5, 1e-12), (3e6, 1e-14)])
def test_a_first_row_far_off_costs_no_digits_where_it_has_no_weight(n, as_past, far, weight):
    """Found from outside: float32 has none left beside a shift that is far off."""
    X = make_power_law(n, 300, alpha=0.7, random_state=0).astype(np.float32)
    w = np.ones(n)
    X[0] += np.float32(far)
    w[0] = weight
    pca = StreamingPCA(3, oversampling=10)
    if as_past:
        pca.partial_fit(X[:1], sample_weight=w[:1]).partial_fit(X[1:])
    else:
        pca.fit(X, sample_weight=w)
    Z = X.astype(float)
    Z = np.sqrt(w)[:, None] * (Z - w @ Z / w.sum())
    lam = np.linalg.eigvalsh(Z.T @ Z)[::-1]
    assert_allclose(pca.subspace_.scatter, lam.sum(), rtol=1e-6)
    assert_allclose(pca.singular_values_.astype(float) ** 2, lam[:3], rtol=2e-5)


@pytest.mark.parametrize("weight", [1e-300, 1e-80, 1e70, 1e77, 1e80, 1e300])
def test_weights_beyond_the_range_of_float32_are_no_error(weight):
    X = make_power_law(400, 300, alpha=1.0, random_state=0).astype(np.float32)
    want = StreamingPCA(1).fit(X).explained_variance_ratio_
    with np.errstate(over="ignore"):  # singular values are shown in float32
        found = StreamingPCA(1).fit(X, sample_weight=np.full(400, weight))
    assert_allclose(found.explained_variance_ratio_, want, rtol=1e-5)


@pytest.mark.parametrize(("n", "d", "r"), [(4_000, 262, 1), (1_000, 1_000, 1), (377, 2_000, 5)])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_weights_take_no_more_memory(n, d, r, dtype):
    X = make_power_law(n, d, random_state=0).astype(dtype)
    pca, w = StreamingPCA(r), np.full(n, 0.5)
    pca.fit(X, sample_weight=w)
    peak = peak_bytes(lambda: pca.fit(X, sample_weight=w))
    assert peak < 1.05 * pca.memory_bytes(d, dtype=X.dtype) + w.nbytes
