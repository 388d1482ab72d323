"""make_subspace_stream: what rows are made of, and how the subspace moves."""

import pickle
from itertools import pairwise
from math import inf, nan

import numpy as np
import pytest
import scipy.linalg
from helpers import leading
from numpy.testing import assert_allclose, assert_array_equal

from fedpca_sklearn import make_subspace_stream

SMALL = {"n_samples": 200, "n_features": 60, "n_components": 3, "random_state": 0}


def small(**options):
    return make_subspace_stream(**{**SMALL, **options})


def in_binomial_margin(count, n, p):
    """Within five standard deviations: 6e-7 of all seeds are out."""
    return abs(count - n * p) <= 5 * np.sqrt(n * p * (1 - p))


@pytest.mark.parametrize("missing", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("outliers", [0.0, 0.05, 1.0])
def test_entries_are_missing_and_outliers_with_their_shares(missing, outliers):
    stream = small(n_samples=500, missing=missing, outliers=outliers)
    N = 500 * 60
    assert stream.missing.dtype == stream.outliers.dtype == bool
    assert in_binomial_margin(stream.missing.sum(), N, missing)
    assert in_binomial_margin(stream.outliers.sum(), N, outliers)
    assert in_binomial_margin((stream.missing & stream.outliers).sum(), N, missing * outliers)
    for axis, n in ((0, 500), (1, 60)):
        for count in stream.missing.sum(axis=axis):
            assert in_binomial_margin(count, n, missing)


@pytest.mark.parametrize("name", ["missing", "outliers"])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.35, 0.99, 1.0])
@pytest.mark.parametrize("d", [7, 60])
def test_an_object_moves_over_neighbouring_features(name, share, d):
    pattern = {"missing": "missing_pattern", "outliers": "outlier_pattern"}[name]
    mask = small(n_features=d, **{name: share, pattern: "moving"})[name]
    length = round(share * d)
    assert_array_equal(mask.sum(axis=1), length)
    for t, row in enumerate(mask):
        if 0 < length < d:
            assert np.sum(row & ~np.roll(row, 1)) == 1  # one piece, around the end
        step = 0 if (t + 1) % 5 else max(1, -(-length // 2))
        if t + 1 < len(mask):
            assert_array_equal(mask[t + 1], np.roll(row, step))
    if length > 0:
        assert mask.any(axis=0).all()


def test_objects_are_not_at_the_same_place():
    options = {"missing_pattern": "moving", "outlier_pattern": "moving", "outliers": 0.1}
    starts = {tuple(small(**options, random_state=i).missing[0]) for i in range(10)}
    assert len(starts) > 1
    assert any(
        np.any(s.missing[0] != s.outliers[0])
        for s in (small(**options, random_state=i) for i in range(5))
    )


@pytest.mark.parametrize("bounds", [(10.0, 25.0), (0.0, 1.0), (3.0, 3.0)])
def test_outliers_are_uniform_in_their_range_and_of_both_signs(bounds):
    stream = small(outliers=0.3, outlier_range=bounds)
    low, high = bounds
    assert_array_equal(stream.sparse[~stream.outliers], 0)
    size = np.abs(stream.sparse[stream.outliers])
    assert np.all((low <= size) & (size <= high))
    N = len(size)
    assert in_binomial_margin(np.sum(stream.sparse > 0), N, 0.5)
    assert abs(size.mean() - (low + high) / 2) <= 5 * (high - low) / np.sqrt(12 * N)
    assert np.any(stream.sparse[stream.missing] != 0)  # also where missing


@pytest.mark.parametrize("model", ["walk", "rotation", "piecewise"])
@pytest.mark.parametrize("pattern", ["bernoulli", "moving"])
def test_rows_are_what_they_are_made_of(model, pattern):
    stream = small(model=model, outliers=0.1, missing_pattern=pattern, outlier_pattern=pattern)
    assert_array_equal(np.isnan(stream.X), stream.missing)
    seen = ~stream.missing
    assert_array_equal(stream.X[seen], (stream.low_rank + stream.sparse)[seen])
    assert not np.isnan(stream.low_rank).any()
    assert stream.X.shape == stream.low_rank.shape == stream.sparse.shape == (200, 60)
    assert not np.shares_memory(stream.X, stream.low_rank)


def test_noise_is_white():
    stream = small(n_samples=2000, noise_std=0.5, missing=0.1, outliers=0.1)
    noise = (stream.X - stream.low_rank - stream.sparse)[~stream.missing]
    N = len(noise)
    assert abs(np.mean(noise**2) / 0.25 - 1) <= 5 * np.sqrt(2 / N)
    assert abs(noise.mean()) <= 5 * 0.5 / np.sqrt(N)
    whole = small(n_samples=2000, noise_std=0.5, missing=0.0)
    s = np.linalg.svd((whole.X - whole.low_rank) / 0.5, compute_uv=False)
    # Davidson and Szarek (2001), theorem 2.13: out of this with probability 2 exp(-t^2 / 2), 7e-6
    assert np.sqrt(2000) - np.sqrt(60) - 5 <= s[-1]
    assert s[0] <= np.sqrt(2000) + np.sqrt(60) + 5


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"delta": 0.1},
        {"model": "rotation"},
        {"model": "rotation", "delta": 0.1},
        {"model": "piecewise"},
        {"model": "piecewise", "change_points": (1, 50, 199), "delta": 0.3},
    ],
)
@pytest.mark.parametrize(("d", "k"), [(60, 3), (61, 3), (9, 9), (1, 1), (2, 1), (3, 2)])
def test_every_row_lies_in_its_subspace(options, d, k):
    stream = small(n_features=d, n_components=k, **options)
    for t in (0, 1, 49, 50, 99, 100, 199):
        V = stream.subspace_at(t)
        assert V.shape == (k, d)
        assert_allclose(V @ V.T, np.eye(k), atol=1e-13)
        x = stream.low_rank[t]
        assert_allclose(x @ V.T @ V, x, atol=1e-12)
    with pytest.raises(IndexError):
        stream.subspace_at(200)


@pytest.mark.parametrize("variances", [None, (4.0, 1.0, 0.0)])
@pytest.mark.parametrize("model", ["walk", "rotation", "piecewise"])
def test_coefficients_are_uniform_with_their_variances(variances, model):
    n = 1000
    stream = small(n_samples=n, variances=variances, model=model)
    C = np.array([stream.low_rank[t] @ stream.subspace_at(t).T for t in range(n)])
    want = np.ones(3) if variances is None else np.array(variances)
    assert np.all(np.abs(C) <= np.sqrt(3 * want) + 1e-12)
    # the square of a uniform variable has the variance 4/5 of the square of its mean
    assert np.all(np.abs(np.mean(C**2, axis=0) - want) <= 5 * want * np.sqrt(0.8 / n) + 1e-12)
    assert np.all(np.abs(C.mean(axis=0)) <= 5 * np.sqrt(want / n) + 1e-12)
    # products of independent coefficients have the product of the variances
    cross = np.mean(C[:, 0] * C[:, 1])
    assert abs(cross) <= 5 * np.sqrt(want[0] * want[1] / n)


@pytest.mark.parametrize("d", [60, 61])
@pytest.mark.parametrize("delta", [1e-3, 0.05])
def test_the_subspace_rotates_evenly(d, delta):
    options = {"n_features": d, "model": "rotation"}
    stream = small(**options, delta=delta)
    for h in (1, 7, 90):
        turns = [stream.subspace_at(t) @ stream.subspace_at(t + h).T for t in (0, 1, 50, 109)]
        for turn in turns:  # V exp(h delta B) V^T
            assert_allclose(turn, turns[0], atol=1e-12)
        cosines = [np.linalg.svd(T, compute_uv=False) for T in turns]
        assert_allclose(cosines, np.tile(cosines[0], (4, 1)), atol=1e-12)
        assert cosines[0][-1] < 1 - 1e-9
    # the same rotation in twice the steps of half the size
    half = small(**options, delta=delta / 2)
    assert_allclose(half.subspace_at(100), stream.subspace_at(50), atol=1e-12)
    back = small(**options, delta=-delta)
    assert_allclose(back.subspace_at(0), stream.subspace_at(0), atol=1e-14)
    ahead, behind = (s.subspace_at(20) @ s.subspace_at(0).T for s in (stream, back))
    assert_allclose(ahead, behind.T, atol=1e-12)


@pytest.mark.parametrize("model", ["walk", "rotation", "piecewise"])
def test_directions_turn_as_fast_as_stated(model):
    d, k, delta = 2000, 20, 1e-4
    stream = make_subspace_stream(2, d, k, model=model, delta=delta, random_state=0)
    step = stream.subspace_at(1) - stream.subspace_at(0)
    # |B v|^2 is d / 2 on average. The square of an eigenvalue has the variance (d / 2)^2 and the
    # second moment twice that (semicircle); it counts by the mean of k exponential variables:
    # relative variance (1 + 2 / k) over d / 2 pairs.
    rate = np.sum(step**2) / k / delta**2
    assert abs(rate / (d / 2) - 1) <= 5 * np.sqrt((1 + 2 / k) / (d / 2))
    assert stream.change_points == ((1,) if model == "piecewise" else ())


def test_the_defaults_of_delta_are_those_stated():
    assert_array_equal(small().X, small(model="walk").X)
    for model, delta in (("walk", 4e-5), ("rotation", 1e-4), ("piecewise", 100.0)):
        assert_array_equal(small(model=model).X, small(model=model, delta=delta).X)
        assert not np.array_equal(small(model=model).X, small(model=model, delta=2 * delta).X)
    for model in ("walk", "rotation", "piecewise"):
        still = small(model=model, delta=0.0)
        assert_array_equal(still.subspace_at(199), still.subspace_at(0))


def test_a_piecewise_constant_subspace_changes_at_its_points_only():
    changes = (30, 31, 150)
    stream = small(model="piecewise", change_points=changes)
    assert stream.change_points == changes
    V = [stream.subspace_at(t) for t in range(200)]
    moved = [np.any(a != b) for a, b in pairwise(V)]
    assert_array_equal(1 + np.flatnonzero(moved), changes)
    turns = [V[t - 1] @ V[t].T for t in changes]
    for turn in turns:
        assert_allclose(turn, turns[0], atol=1e-12)
    assert small(model="piecewise").change_points == (100,)
    assert small(model="piecewise", change_points=[]).change_points == ()


def test_a_seed_decides_the_stream():
    options = {"outliers": 0.1, "noise_std": 0.1}
    stream = small(**options)
    assert_array_equal(small(**options).X, stream.X)
    assert_array_equal(small(**options, random_state=np.random.RandomState(0)).X, stream.X)
    assert not np.array_equal(small(**options, random_state=1).low_rank, stream.low_rank)
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    small()
    assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


@pytest.mark.parametrize("model", ["walk", "rotation", "piecewise"])
def test_a_stream_can_be_pickled(model):
    stream = small(model=model)
    other = pickle.loads(pickle.dumps(stream))
    assert_array_equal(other.X, stream.X)
    assert_array_equal(other.subspace_at(7), stream.subspace_at(7))
    assert_array_equal(other.subspace_changes(40), stream.subspace_changes(40))


def steps_of(stream, n, delta):
    """B_1 ... B_n of a walk whose basis is of all directions: P_t P_(t-1)^T = exp(-delta B_t)."""
    P = [stream.subspace_at(t).T for t in range(n + 1)]
    return [-scipy.linalg.logm(b @ a.T) / delta for a, b in pairwise(P)]


@pytest.mark.parametrize("d", [11, 12])
def test_a_walk_is_the_product_of_exponentials(d):
    slow, fast = (small(n_features=d, n_components=d, delta=delta) for delta in (0.05, 0.3))
    assert_allclose(slow.subspace_at(0), fast.subspace_at(0), atol=1e-14)
    for t, B in enumerate(steps_of(fast, 150, 0.3), 1):
        assert_allclose(B, -B.T, atol=1e-12)
        P = slow.subspace_at(t - 1).T
        assert_allclose(slow.subspace_at(t).T, scipy.linalg.expm(-0.05 * B) @ P, atol=1e-12)


def test_the_rotations_of_a_walk_are_drawn_anew_with_the_entries_of_a_gaussian_matrix():
    d = 40
    B = np.array(steps_of(small(n_features=d, n_components=d, delta=0.02), 199, 0.02))
    entries = B[:, *np.triu_indices(d, 1)]
    # The mean square of the d / 2 speeds is d / 2, which is that of d (d - 1) entries of variance
    # 1 / 2 but for d / (d - 1); its relative variance is 1 / (d / 2) (semicircle).
    assert abs(np.mean(entries**2) / 0.5 - d / (d - 1)) < 5 * np.sqrt(2 / d)
    # each entry over 199 draws, and products of one draw and the next, have no mean
    assert np.abs(entries.mean(axis=0)).max() < 6 * np.sqrt(0.5 / 199)
    sizes = np.linalg.norm(entries, axis=1)
    cosines = np.sum(entries[1:] * entries[:-1], axis=1) / (sizes[1:] * sizes[:-1])
    assert np.abs(cosines).max() < 6 / np.sqrt(entries.shape[1])


def gaussian_walk(n, d, k, delta, rng):
    """Rows of P_t = exp(-delta B_t) P_(t-1) for (G - G^T) / 2, with d x d matrices."""
    P, rows = np.linalg.qr(rng.standard_normal((d, k)))[0], []
    for _ in range(n):
        rows.append(P @ rng.uniform(-1, 1, k))
        G = rng.standard_normal((d, d))
        P = scipy.linalg.expm(-delta * (G - G.T) / 2) @ P
    return np.array(rows)


def changes_of(rows, k, size):
    """Delta_j by its definition: sines between r-SVDs of consecutive batches."""
    P = [leading(Y, k) for Y in np.split(rows, len(rows) // size)]
    return np.array([np.linalg.norm((np.eye(len(a.T)) - a.T @ a) @ b.T, 2) for a, b in pairwise(P)])


def test_a_walk_changes_from_batch_to_batch_as_one_of_gaussian_matrices():
    n, d, k, delta, size = 400, 80, 4, 1e-3, 10
    want = changes_of(gaussian_walk(n, d, k, delta, np.random.default_rng(0)), k, size)
    stream = make_subspace_stream(n, d, k, delta=delta, random_state=0)
    got = stream.subspace_changes(size)
    assert_allclose(got, changes_of(stream.low_rank, k, size), rtol=1e-9)
    error = np.sqrt((want.var() + got.var()) / len(want))
    assert abs(got.mean() - want.mean()) < 5 * error
    assert error < 0.1 * want.mean()  # so that this says something


def test_the_defaults_are_the_changes_that_the_paper_states():
    small_changes = make_subspace_stream(random_state=0).subspace_changes(60)
    assert abs(small_changes.mean() - 1e-2) < 1e-3
    assert small_changes.max() < 1.2e-2
    one_change = make_subspace_stream(model="piecewise", random_state=0).subspace_changes(60)
    assert one_change[24] > 0.999  # between batches 25 and 26, rows 1,500 and after
    assert np.delete(one_change, 24).max() < 1e-12


def test_changes_are_of_full_batches():
    stream = small()
    assert len(stream.subspace_changes(60)) == 2
    assert len(stream.subspace_changes(200)) == len(stream.subspace_changes(201)) == 0
    for bad in (0, 1.5, "60"):
        with pytest.raises(ValueError, match="batch_size must be an integer of at least 1"):
            stream.subspace_changes(bad)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_samples", 0),
        ("n_samples", 2.5),
        ("n_features", -1),
        ("n_features", None),
        ("n_components", 0),
        ("n_components", "3"),
        ("n_components", 61),
        ("model", "jump"),
        ("model", None),
        ("change_points", (3,)),
        ("variances", [1.0, 1.0]),
        ("variances", [1.0, nan, 1.0]),
        ("variances", [1.0, inf, 1.0]),
        ("variances", 2.0),
        ("missing", -0.1),
        ("missing", 1.1),
        ("missing", nan),
        ("outliers", 2),
        ("missing_pattern", "block"),
        ("outlier_pattern", None),
        ("outlier_range", (5.0, 1.0)),
        ("outlier_range", (-1.0, 1.0)),
        ("outlier_range", (nan, 1.0)),
    ],
)
def test_a_bad_argument_is_named(name, value):
    with pytest.raises(ValueError, match=name):
        small(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("delta", nan),
        ("delta", inf),
        ("delta", "fast"),
        ("noise_std", -1.0),
        ("noise_std", nan),
        ("noise_std", inf),
        ("variances", [1.0, -1.0, 1.0]),
        ("variances", "ones"),
        ("missing", "many"),
        ("missing", None),
        ("outliers", "few"),
        ("outlier_range", 5.0),
        ("outlier_range", (1.0,)),
        ("outlier_range", (0.0, inf)),
        ("outlier_range", ("low", "high")),
        ("delta", [1, 2]),
        ("delta", "1"),
        ("model", ["walk"]),
        ("change_points", 50),
        ("change_points", "ab"),
        ("change_points", (2.7,)),
        ("change_points", (100, 50)),
        ("change_points", (-5,)),
        ("change_points", (500,)),
    ],
)
def test_any_bad_argument_is_named(name, value):
    model = "piecewise" if name == "change_points" else "rotation"
    with pytest.raises((ValueError, TypeError), match=name):
        small(**{"model": model, name: value})
