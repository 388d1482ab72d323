"""Routes of a block: single vectors, passes, one scatter matrix or few rows; beside numpy's SVD."""

import threading
from functools import cache

import numpy as np
import pytest
from helpers import peak_bytes, sine
from numpy.testing import assert_allclose, assert_array_equal

from fedpca_sklearn import StreamingPCA, Subspace, excess_error, make_power_law, subspace_distance
from fedpca_sklearn._kernels import stack
from fedpca_sklearn._kernels.stack import DenseBlock
from fedpca_sklearn._kernels.subspace_passes import RowsOfPasses


@pytest.fixture
def taken(monkeypatch):
    """Names of the routes that blocks take, and whether they found the directions."""
    routes = []

    def watched(name):
        route = getattr(DenseBlock, name)

        def run(*args):
            found = route(*args)
            routes.append((name, found is not None))
            return found

        monkeypatch.setattr(DenseBlock, name, run)

    watched("by_passes")
    return routes


@cache
def rows_of(n, d, alpha=1.0, dtype="f8"):
    return make_power_law(n, d, alpha=alpha, random_state=0).astype(dtype)


def spectrum(X, w=None, center=True):
    """The weighted rows about their mean, their singular values and vectors, and the mean."""
    X = X.astype(np.float64)
    w = np.ones(len(X)) if w is None else w
    m = w @ X / w.sum() if center else np.zeros(X.shape[1])
    Z = np.sqrt(w)[:, None] * (X - m)
    if X.shape[1] < 1000:
        return Z, *np.linalg.svd(Z, full_matrices=False)[1:], m
    lam, V = np.linalg.eigh(Z.T @ Z)
    return Z, np.sqrt(np.maximum(lam[::-1], 0)), V.T[::-1], m


@cache
def values_of(n, d):
    return spectrum(rows_of(n, d))[1]


def assert_is_a_cut(pca, X, w=None, excess=1e-12, tol=1e-11):
    """The components are nearly the best, and nothing is claimed that is not there."""
    Z, best, W, m = spectrum(X, w, pca.center)
    k, r, kept = pca.subspace_.n_components, pca.n_components_, pca.subspace_
    V, s = kept.components.astype(float), kept.singular_values.astype(float)
    left = np.sum(best**2) - np.sum((Z @ V[:r].T) ** 2)
    assert left / np.sum(best[r:] ** 2) - 1 < excess
    assert_allclose(s[:r], np.linalg.norm(Z @ V[:r].T, axis=0), rtol=max(excess, 1e-13))
    if excess < 1e-10:
        # 450 roundings are left in the residual, over the gap behind the last direction; variances
        # are about 1, 1/2, 1/3, 1/4 here, and rounding is relative to the first
        assert subspace_distance(V[:r], W[:r]) < 1e-12
    assert_allclose(V @ V.T, np.eye(k), atol=1e-12)
    assert np.linalg.eigvalsh(Z.T @ Z - (V.T * s**2) @ V)[0] > -tol * best[0] ** 2
    # and what is kept beyond those wanted is most of what there is
    assert np.sum(s[r:] ** 2) > 0.7 * np.sum(best[r:k] ** 2)
    squares = np.sum(Z**2, axis=0)
    assert_allclose(kept.column_scatter, squares, rtol=1e-8, atol=1e-12 * best[0])
    assert_allclose(kept.scatter, np.sum(squares), rtol=1e-10)
    assert_allclose(kept.mean, m, rtol=1e-12, atol=1e-13)


# route, rows, columns, components, and the excess error above the best ones
SHAPES = [(None, 900, 400, 3, 1e-12), (None, 400, 400, 3, 1e-12), ("by_passes", 1700, 800, 5, 1e-4)]


@pytest.mark.parametrize(
    ("mean", "center", "weighted"), [(0, False, True), (0, True, False), (3, True, True)]
)
@pytest.mark.parametrize(("route", "n", "d", "r", "excess"), SHAPES)
def test_those_wanted_are_nearly_the_best_and_the_others_are_those_of_a_cut(
    route, n, d, r, excess, mean, center, weighted, taken
):
    X = rows_of(n, d) + mean
    w = np.random.default_rng(1).uniform(0.5, 2, n) if weighted else None
    pca = StreamingPCA(r, oversampling=10, center=center).fit(X, sample_weight=w)
    assert taken == [(route, True)] * bool(route)
    assert_is_a_cut(pca, X, w, excess)


@pytest.mark.parametrize(("route", "n", "d", "r", "excess"), SHAPES)
def test_the_past_counts_as_its_rows_do(route, n, d, r, excess, taken):
    X = rows_of(n, d)
    X = np.concatenate([X[:10], X + 0.3])
    pca = StreamingPCA.from_subspace(Subspace.from_rows(X[:10]), r, oversampling=10)
    pca.partial_fit(X[10:])
    assert taken == [(route, True)] * bool(route)
    assert_is_a_cut(pca, X, None, excess)


@pytest.mark.parametrize(
    ("scale", "dtype"), [(1e-160, "f8"), (1e150, "f8"), (1e-12, "f4"), (1e12, "f4")]
)
@pytest.mark.parametrize(("route", "n", "d", "r", "excess"), SHAPES[2:])
def test_units_change_nothing(route, n, d, r, excess, scale, dtype):
    """Where products would leave the range, other routes find the directions."""
    X = (rows_of(n, d) * scale).astype(dtype)
    pca, want = StreamingPCA(r, oversampling=10).fit(X), values_of(n, d)[:r]
    excess = max(excess, 1e-6 if dtype == "f4" else 1e-12) * (10 if scale < 1e-149 else 1)
    assert excess_error(rows_of(n, d), pca.components_.astype(float)) < excess
    assert_allclose(pca.singular_values_ / scale, want, rtol=max(excess, 1e-11))


KINDS = {
    "noise": lambda g, n, d: g.standard_normal((n, d)),
    "constant": lambda g, n, d: np.full((n, d), 3.0),
    "rank 6": lambda g, n, d: (
        (g.standard_normal((n, 6)) * ORDER[6:0:-1]) @ g.standard_normal((6, d))
    ),
    "nearly equal": lambda g, n, d: of_spectrum(
        g, n, d, np.r_[1, 1, 1 - 1e-9, 1 - 1e-9, g.uniform(0, 0.5, d - 4)]
    ),
    "steep": lambda g, n, d: of_spectrum(g, n, d, 10.0 ** -np.arange(d)),
    "one far above": lambda g, n, d: of_spectrum(g, n, d, np.r_[1e6, 1 / ORDER[1:d]]),
    "twins": lambda g, n, d: np.repeat(
        g.standard_normal((n, d // 2)) / ORDER[1 : d // 2 + 1], 2, axis=1
    ),
    "unlike units": lambda g, n, d: rows_of(n, d) * 10.0 ** g.uniform(-3, 3, d),
}
ORDER = np.arange(2000.0)


def of_spectrum(g, n, d, lam):
    lam = np.sort(lam)[::-1][: min(n, d)]
    left, right = (np.linalg.qr(g.standard_normal((m, len(lam))))[0] for m in (n, d))
    return left * np.sqrt(lam) @ right.T


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_the_rows_are_the_answer_is_right_and_claims_no_more(kind, dtype):
    """Both the route by vectors and what it is left to, whose certificates are others."""
    g = np.random.default_rng(dtype == "f4")
    n, d, r = int(g.integers(200, 400)), int(g.integers(257, 340)), int(g.integers(1, 7))
    X = KINDS[kind](g, n, d).astype(dtype)
    pca = StreamingPCA(r).fit(X)
    Z, s, _, _ = spectrum(X)
    V, t = (a.astype(float) for a in (pca.components_, pca.singular_values_))
    off = (1e-5 if dtype == "f4" else 1e-11) * s[0] ** 2 + 1e-300
    assert_allclose(t**2, s[: len(t)] ** 2, atol=off)
    assert np.sum(s[:r] ** 2) - np.sum((Z @ V.T) ** 2) < off
    kept = pca.subspace_.components.astype(float)
    beyond = Z.T @ Z - (kept.T * pca.subspace_.singular_values.astype(float) ** 2) @ kept
    assert np.linalg.eigvalsh(beyond)[0] > -off
    if kind == "rank 6" and dtype == "f8":
        assert pca.subspace_.n_components == 6


@pytest.mark.parametrize(("route", "n", "d", "r", "excess"), SHAPES[1:])
def test_a_mean_far_from_zero_costs_only_what_its_rounding_costs(route, n, d, r, excess):
    X = rows_of(n, d) + 1e8  # digits below 1.5e-8 are lost
    pca = StreamingPCA(r, oversampling=10).fit(X)
    assert excess_error(X - X.mean(axis=0), pca.components_) < max(excess, 1e-10)
    assert_allclose(pca.mean_, X.mean(axis=0), rtol=1e-14)


def test_few_directions_of_rows_are_left_to_updates_which_forget_once(taken):
    X = rows_of(4100, 1200).copy()
    X[:, 3:] = 0
    pca = StreamingPCA(5, oversampling=10).fit(X)
    assert taken == [("by_passes", False)]
    assert excess_error(X[:, :3], pca.components_[:3, :3]) < 1e-12
    assert_allclose(pca.singular_values_[3:], 0, atol=1e-8)
    forgets = {"oversampling": 10, "forgetting_factor": 0.999}
    models = [StreamingPCA(5, block_size=b, **forgets).fit(X) for b in ("auto", 100)]
    assert_allclose(*(m.singular_values_[:3] for m in models), rtol=1e-10)


def classes(sizes):
    """Rows of one-hot classes and their negatives, of mean zero: eigenvalues repeat."""
    rows = np.eye(300)[np.repeat(np.arange(len(sizes)), sizes)]
    return np.concatenate([rows, -rows])


@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [([62, 60, 60, 60], "f8"), ([62, 60, 60, *[1] * 40], "f4"), ([62, *[60] * 8], "f8")],
)
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


@pytest.mark.parametrize("n", [200, 400])  # a Gram matrix, and products with vectors
@pytest.mark.parametrize(("as_past", "far", "weight"), [(False, 1e5, 1e-12), (True, 3e6, 1e-14)])
def test_a_first_row_far_off_costs_no_digits_where_it_has_no_weight(n, as_past, far, weight):
    """Found from outside: float32 has none left beside a shift that is far off."""
    X = rows_of(n, 300, 0.7, "f4").copy()
    w = np.ones(n)
    X[0] += np.float32(far)
    w[0] = weight
    pca = StreamingPCA(3, oversampling=10)
    if as_past:
        pca.partial_fit(X[:1], sample_weight=w[:1]).partial_fit(X[1:])
    else:
        pca.fit(X, sample_weight=w)
    lam = spectrum(X, w)[1] ** 2
    assert_allclose(pca.subspace_.scatter, lam.sum(), rtol=1e-6)
    assert_allclose(pca.singular_values_.astype(float) ** 2, lam[:3], rtol=2e-5)


@pytest.mark.parametrize(
    ("n", "d", "r", "dtype", "megabytes"),
    [(4_000, 262, 1, "f4", 5.3), (1_000, 1_000, 1, "f8", 6.75), (377, 2_000, 5, "f4", 6.9)],
)
def test_weights_take_no_more_memory(n, d, r, dtype, megabytes):
    X, pca, w = rows_of(n, d, 1.0, dtype), StreamingPCA(r), np.full(n, 0.5)
    pca.fit(X, sample_weight=w)
    peak = peak_bytes(lambda: pca.fit(X, sample_weight=w))
    assert peak < 1.05e6 * megabytes + w.nbytes


# -------------------------------------------------------------------------- passes


def test_columns_that_are_directions_and_a_row_that_the_sample_does_not_show_are_found(taken):
    # columns after the last one kept are in no direction at all; it is found roughly
    Y = np.random.default_rng(0).standard_normal((4100, 1200)) / np.sqrt(np.arange(1, 1201))
    assert excess_error(Y, StreamingPCA(5, oversampling=10).fit(Y).components_) < 1e-4
    assert taken == [("by_passes", True)]
    Y[:, 7] = 0
    Y[1001] = 0
    Y[1001, 7] = 300  # more than the first direction has, in a column that nothing else uses
    pca = StreamingPCA(5, oversampling=10).fit(Y)
    assert abs(pca.components_[0, 7]) > 1 - 1e-6
    assert excess_error(Y, pca.components_) < 1e-4


@pytest.mark.parametrize("center", [True, False])
def test_threads_share_the_rows_of_passes(monkeypatch, center):
    X, seen = rows_of(4100, 1200) + 3, set()
    w = np.random.default_rng(1).uniform(0.5, 2, len(X))
    options = {"oversampling": 10, "center": center}
    alone = StreamingPCA(5, **options).fit(X, sample_weight=w)
    chunks = RowsOfPasses._chunks

    def seen_chunks(self, share):
        seen.add((threading.get_ident(), share.start))
        return chunks(self, share)

    monkeypatch.setattr(RowsOfPasses, "_chunks", seen_chunks)
    monkeypatch.setattr(stack, "usable_threads", lambda: 3)
    two = [StreamingPCA(5, **options).fit(X, sample_weight=w) for _ in range(2)]
    assert {start for _, start in seen} == {0, 1367, 2734}
    assert threading.get_ident() not in {thread for thread, _ in seen}
    assert_allclose(two[0].singular_values_, alone.singular_values_, rtol=1e-12)
    assert sine(two[0].components_, alone.components_) < 1e-10
    assert_array_equal(two[0].components_, two[1].components_)
    assert_array_equal(two[0].subspace_.column_scatter, two[1].subspace_.column_scatter)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("n", "d", "r", "alpha"), [(342, 374, 20, 2.0), (342, 374, 60, 4.5)])
def test_directions_of_few_rows_are_certain_or_by_qr(n, d, r, alpha, dtype):
    X, eps = rows_of(n, d, alpha).astype(dtype), np.finfo(dtype).eps
    pca = StreamingPCA(r).fit(X)
    _, s, V, _ = spectrum(X)
    assert_allclose(pca.singular_values_, s[:r], rtol=40 * eps * max(1, 1e-2 * s[0] / s[r]))
    if dtype == np.float64:
        assert subspace_distance(pca.components_, V[:r]) < 1e-9
    assert pca.subspace_.n_components == n - 1
