"""The trackers of one stream against naive loops over the rows, written here from the papers.

The oracles are the algorithms as printed, one row at a time, and SVDs of all rows by numpy. Where
both compute the same numbers they differ by rounding errors, which the recursions amplify by their
condition: 1e-8 is far above that and far below any error in the algebra.
"""

import pickle
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import assert_finite_and_orthonormal, measured, peak_bytes, sine, with_holes
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from tracker_helpers import (
    centred_row_by_row,
    first_basis,
    past,
    pastd,
    petrels,
    planted,
    seen_by_the_rule,
    spirit,
)

from fedpca_sklearn import (
    GROUSE,
    PAST,
    PETRELS,
    SPIRIT,
    FrequentDirections,
    OjaPCA,
    StreamingPowerMethod,
    excess_error,
    make_power_law,
)
from fedpca_sklearn._base.missing_entries import MissingEntriesMixin
from fedpca_sklearn.streaming._innovations import Fading, Features, innovations
from fedpca_sklearn.streaming._tracker import Tracker

EPS = np.finfo(float).eps
examples = settings(max_examples=100, derandomize=True, deadline=None, database=None)

TRACKERS = {
    "frequent-directions": FrequentDirections(3, sketch_size=9),
    "power": StreamingPowerMethod(3, block_size=40, random_state=0),
    "oja": OjaPCA(3, random_state=0),
    "grouse": GROUSE(3, random_state=0),
    "past": PAST(3, forgetting_factor=1.0, random_state=0),
    "pastd": PAST(3, forgetting_factor=1.0, deflation=True, random_state=0),
    "spirit": SPIRIT(3, lower=0.3, upper=0.9999, forgetting_factor=1.0),
    "petrels": PETRELS(3, forgetting_factor=1.0, random_state=0),
}
CLASSES = dict.fromkeys(type(m) for m in TRACKERS.values())  # each once, in one order
FADING = {
    "past": PAST(3, forgetting_factor=0.9, random_state=0),
    "pastd": PAST(3, forgetting_factor=0.9, deflation=True, random_state=0),
    "spirit": SPIRIT(3, lower=0.3, upper=0.9999, forgetting_factor=0.9),
    "petrels": PETRELS(3, forgetting_factor=0.9, random_state=0),
}
MISSING = {
    "grouse": GROUSE(3, center=False, random_state=0),
    "grouse-step": GROUSE(3, step_size=0.01, center=False, random_state=0),
    "petrels": PETRELS(3, center=False, random_state=0),
}


def each(models):
    return pytest.mark.parametrize("model", [clone(m) for m in models.values()], ids=models.keys())


# ------------------------------------------------------------------------------ data and helpers


def stream(model, X, sizes=(5, 32, 1, 100, 33, 64)):
    """Feed rows in batches of changing sizes."""
    start = i = 0
    while start < len(X):
        model.partial_fit(X[start : start + sizes[i % len(sizes)]])
        start += sizes[i % len(sizes)]
        i += 1
    return model


def fading(n, f):
    """Weights of n rows, the last of which is new."""
    return f ** np.arange(n - 1, -1, -1, dtype=np.float64)


# ------------------------------------------------------------------------------------- centring


class Recorder(Tracker):
    """A rule that keeps the rows it sees, and shows an axis."""

    def __init__(self, n_components=1, *, center=True):
        self.n_components = n_components
        self.center = center

    def _begin(self, d, rng):
        return np.zeros((0, d))

    def _updated(self, state, Z):
        return np.concatenate([state, Z])

    def _basis(self, state):
        return np.eye(1, state.shape[1])

    def _show_state(self, state):
        self.rows_ = state


@pytest.mark.parametrize("center", [True, False])
def test_a_rule_sees_all_rows_but_a_first_one_without_weight(center):
    X, _ = planted(100, 6, noise=1.0, mean=3.0)
    assert_allclose(stream(Recorder(center=center), X).rows_, seen_by_the_rule(X, center))


class RecorderOfHoles(MissingEntriesMixin, Recorder):
    pass


def test_a_row_of_features_not_seen_before_has_no_weight():
    X = np.arange(24.0).reshape(6, 4) ** 2
    X[0, 2:] = X[1, :2] = X[3] = np.nan  # the second row is the first one of the other features
    seen = stream(RecorderOfHoles(), X).rows_
    assert len(seen) == 4
    assert_allclose(seen[0], [(X[2, j] - X[j // 2, j]) * np.sqrt(1 / 2) for j in range(4)])
    assert np.isnan(seen[1]).all()


class FirstRow(Tracker):
    """The simplest rule that is seeded by a row: the sum of all rows turned towards the first."""

    def __init__(self, n_components=1, *, center=True):
        self.n_components = n_components
        self.center = center

    def _begin(self, d, rng):
        return np.zeros(d)

    def _updated(self, state, Z):
        if not state.any():
            state = Z[0] / np.linalg.norm(Z[0])
        for z in Z:
            state = state + (z @ state) / (state @ state) ** 0.5 * z
        return state

    def _basis(self, state):
        return (state / np.linalg.norm(state))[None] if state.any() else np.eye(1, len(state))


@pytest.mark.parametrize("seed", range(5))
def test_a_rule_may_be_seeded_by_its_first_row(seed):
    X = make_power_law(10_000, 40, alpha=2.0, random_state=seed)
    assert excess_error(X, FirstRow().fit(X).components_) < 1e-3


@pytest.mark.parametrize(("rest", "counts"), [(0.2, True), (0.01, False)])
@pytest.mark.parametrize("model", [GROUSE(1, random_state=0), PETRELS(1, random_state=0)], ids=repr)
def test_rows_whose_holes_amplify_noise_more_than_tenfold_do_not_count_in_variances(
    model, rest, counts
):
    # noise of a coordinate is amplified by 1 / (square of the component in the entries seen)
    rng = np.random.default_rng(0)
    v = np.r_[np.sqrt(1 - rest), np.full(10, np.sqrt(rest / 10))]
    scores = 3 * rng.standard_normal(4000) * np.where(np.arange(4000) % 2, 10, 1)
    X = scores[:, None] * v
    X[1::2, 0] = np.nan  # every second row, of a hundred times the variance
    model = clone(model).set_params(center=False).fit(X)
    variance = model.explained_variance_[0]  # at most that of the entries seen, 98 and 13.4
    assert variance > 80 if counts else abs(variance - 9) < 5 * 9 * np.sqrt(2 / 2000)


def centred(X, cuts, center=True, f=1.0):
    """All rows of a stream that is cut at ``cuts``, as the trackers see them."""
    known, parts = Features.empty(X.shape[1]), []
    for rows in np.split(X, sorted(cuts)):
        if len(rows):
            Z, known = innovations(known, rows.copy(), center, Fading.by_rows(f, len(rows)))
            parts.append(Z)
    return np.concatenate(parts), known


cut_streams = {
    "seed": st.integers(0, 2**31),
    "n": st.integers(1, 90),
    "d": st.integers(1, 6),
    "cuts": st.lists(st.integers(0, 90), max_size=6),
    "mean": st.sampled_from([0.0, 1.0, 1e4, 1e8]),
    "f": st.sampled_from([1.0, 0.99, 0.9, 0.5]),
}


@examples
@given(**cut_streams)
def test_centred_rows_carry_the_exact_scatter(seed, n, d, cuts, mean, f):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * 10.0 ** rng.integers(-2, 3, d) + mean * rng.uniform(-1, 1, d)
    Z, known = centred(X, cuts, f=f)
    w = fading(n, f)
    D = X - X[0]
    D = D - w @ D / w.sum()
    S = (w[:, None] * D).T @ D
    # a running mean is rounded once a block, and enters every centred row
    rounding = n * EPS * (np.abs(X).max() + 1)
    tol = 1e-12 * np.trace(S) + 4 * rounding * np.sqrt(n * np.trace(S)) + n * rounding**2
    assert_allclose((w[:, None] * Z).T @ Z, S, rtol=0, atol=tol)
    assert_allclose(known.squares, np.diag(S), rtol=0, atol=tol)
    assert_allclose(known.mean, X[0] + w @ (X - X[0]) / w.sum(), rtol=0, atol=rounding)
    assert_allclose(known.weight, w.sum(), rtol=1e-12)
    assert_array_equal(Z[0], 0)


@examples
@given(**cut_streams, share=st.sampled_from([0.1, 0.5, 0.9]))
def test_each_feature_counts_its_own_entries(seed, n, d, cuts, mean, f, share):
    rng = np.random.default_rng(seed)
    whole = rng.standard_normal((n, d)) + mean * rng.uniform(-1, 1, d)
    X = with_holes(whole, share, seed)
    Z, known = centred(X, cuts, f=f)
    assert_array_equal(np.isnan(Z), np.isnan(X))
    w, rounding = fading(n, f), n * EPS * (np.abs(whole).max() + 1)
    squares = np.broadcast_to(known.squares, d)
    for j, weight in enumerate(np.broadcast_to(known.weight, d)):
        seen = ~np.isnan(X[:, j])
        x, v = X[seen, j], w[seen]
        assert_allclose(weight, v.sum(), rtol=1e-12)
        if not len(x):
            assert known.mean[j] == squares[j] == 0
            continue
        centre = x[0] + v @ (x - x[0]) / v.sum()
        scatter = v @ (x - centre) ** 2
        tol = 1e-12 * scatter + 4 * rounding * np.sqrt(n * scatter) + n * rounding**2
        assert_allclose(known.mean[j], centre, rtol=0, atol=rounding)
        assert_allclose(squares[j], scatter, rtol=0, atol=tol)
        assert_allclose(v @ Z[seen, j] ** 2, scatter, rtol=0, atol=tol)
        assert Z[seen, j][0] == 0
        if f == 1:
            assert_allclose(known.mean[j], np.nanmean(X[:, j]), rtol=1e-13, atol=rounding)
            if mean <= 1:
                assert_allclose(squares[j] / len(x), np.nanvar(X[:, j]), atol=1e-12)


@pytest.mark.parametrize("f", [1.0, 0.9])
def test_the_first_value_of_a_late_feature_is_its_mean(f):
    X = np.random.default_rng(0).standard_normal((100, 3))
    X[:70, 1] = np.nan
    X[70, 1] = 1e8
    X[71:, 1] = np.nan
    Z, known = centred(X, [10, 33, 64], f=f)
    assert Z[70, 1] == 0
    assert known.mean[1] == 1e8
    assert known.squares[1] == 0
    assert_allclose(known.weight[1], f**29, rtol=1e-12)


@pytest.mark.parametrize("f", [1.0, 0.9])
@pytest.mark.parametrize("share", [0.0, 0.4])
def test_rows_about_the_origin_stay_as_they_are(f, share):
    X = with_holes(np.random.default_rng(0).standard_normal((75, 4)) + 5, share)
    Z, known = centred(X, [1, 40], center=False, f=f)
    assert_array_equal(Z, X)
    assert_array_equal(known.mean, 0)
    assert_allclose(known.squares, fading(75, f) @ np.nan_to_num(X) ** 2, rtol=1e-12)
    weight = fading(75, f) @ ~np.isnan(X)
    assert_allclose(np.broadcast_to(known.weight, 4), weight, rtol=1e-12)


# -------------------------------------------------------------------------- Frequent Directions


def fast_frequent_directions(A, size):
    """Ghashami et al. 2016, section 3: an SVD whenever ``size`` rows have come."""
    B, lowered = np.zeros((0, A.shape[1])), 0.0
    for start in range(0, len(A), size):
        M = np.concatenate([B, A[start : start + size]])
        M = M[M.any(axis=1)]
        if len(M) <= size:
            B = M
            continue
        _, s, Vt = np.linalg.svd(M, full_matrices=False)
        low = s[size - 1] ** 2 if len(s) >= size else 0.0
        squares = np.maximum(s**2 - low, 0)
        B = (np.sqrt(squares)[:, None] * Vt)[squares > 0][:size]
        lowered += low
    return B, lowered


STREAMS = {
    "noise": lambda rng, n, d: rng.standard_normal((n, d)),
    "decay": lambda rng, n, d: rng.standard_normal((n, d)) * 0.5 ** np.arange(d),
    "axes in turn": lambda rng, n, d: np.eye(d)[np.arange(n) % d],
    "axes one after the other": lambda rng, n, d: np.eye(d)[np.arange(n) * d // n],
    "small, then large": lambda rng, n, d: np.logspace(-3, 3, n)[:, None] * rng.random((n, d)),
    "large, then small": lambda rng, n, d: np.logspace(3, -3, n)[:, None] * rng.random((n, d)),
    "one direction": lambda rng, n, d: rng.standard_normal((n, 1)) * rng.standard_normal(d),
    "zeros between": lambda rng, n, d: rng.standard_normal((n, d)) * (rng.random((n, 1)) < 0.3),
    "few integers": lambda rng, n, d: rng.integers(-1, 2, (n, d)).astype(float),
    "zeros": lambda rng, n, d: np.zeros((n, d)),
}


@settings(examples, max_examples=250)
@given(
    seed=st.integers(0, 2**31),
    kind=st.sampled_from(list(STREAMS)),
    n=st.integers(1, 80),
    d=st.integers(1, 12),
    size=st.integers(2, 10),
    k=st.integers(1, 10),
    cuts=st.lists(st.integers(0, 80), max_size=5),
    center=st.booleans(),
    robust=st.booleans(),
)
def test_the_guarantee_holds_for_every_stream(seed, kind, n, d, size, k, cuts, center, robust):
    X = STREAMS[kind](np.random.default_rng(seed), n, d) + (3.0 if center else 0.0)
    model = FrequentDirections(min(k, size - 1, d), sketch_size=size, center=center, robust=robust)
    for rows in np.split(X, sorted(cuts)):
        if len(rows):
            model.partial_fit(rows)
    A = X - X.mean(axis=0) if center else X
    s = np.concatenate([np.linalg.svd(A, compute_uv=False), np.zeros(size)])
    tol = 1e-12 * np.sum(s**2) + 1e-13
    bound = min(np.sum(s[i:] ** 2) / (size - i) for i in range(size))
    B = model.sketch_
    error = np.linalg.eigvalsh(A.T @ A - B.T @ B)
    assert error[0] >= -tol
    assert error[-1] <= model.shrinkage_ + tol
    assert model.shrinkage_ <= bound + tol
    assert len(B) <= size
    G = B @ B.T
    assert_allclose(G, np.diag(np.diag(G)), atol=tol)
    assert model.alpha_ == (model.shrinkage_ / 2 if robust else 0)
    if robust:
        assert np.abs(error - model.alpha_).max() <= bound / 2 + tol
    # as many components as there are rows at most
    assert len(model.components_) == min(k, size - 1, d, n)


@pytest.mark.parametrize("size", [2, 4, 10])
@pytest.mark.parametrize("center", [True, False])
def test_the_sketch_is_that_of_the_paper_at_any_time(size, center):
    X, _ = planted(75, 12, noise=1.0, mean=1.0)
    A = seen_by_the_rule(X, center)
    model = FrequentDirections(1, sketch_size=size, center=center)
    for n in range(1, 76):
        model.partial_fit(X[n - 1 : n])
        B, lowered = fast_frequent_directions(A[: n - center], size)
        scale = np.sum(A[:n] ** 2) + 1
        assert_allclose(model.sketch_.T @ model.sketch_, B.T @ B, atol=1e-11 * scale)
        assert_allclose(model.shrinkage_, lowered, atol=1e-11 * scale)


def test_reading_early_does_not_change_the_sketch():
    X, _ = planted(75, 12, noise=1.0)
    whole, watched = FrequentDirections(3).fit(X), FrequentDirections(3)
    for x in X:
        watched.partial_fit(x[None])
        assert watched.sketch_.shape[1] == 12
    assert_allclose(watched.sketch_.T @ watched.sketch_, whole.sketch_.T @ whole.sketch_, atol=1e-9)
    assert_allclose(watched.shrinkage_, whole.shrinkage_, rtol=1e-10)


def test_rows_that_wait_are_in_the_sketch():
    X, _ = planted(5, 12)
    model = FrequentDirections(3, sketch_size=20, center=False).fit(X)
    assert_allclose(model.sketch_.T @ model.sketch_, X.T @ X, atol=1e-12)
    assert model.shrinkage_ == 0


@pytest.mark.parametrize("rank", [1, 4, 7])
def test_rows_of_lower_rank_than_the_sketch_are_kept_exactly(rank):
    rng = np.random.default_rng(0)
    A = rng.standard_normal((500, rank)) @ rng.standard_normal((rank, 20))
    model = FrequentDirections(rank, sketch_size=8, center=False).fit(A)
    assert_allclose(model.sketch_.T @ model.sketch_, A.T @ A, atol=1e-12 * np.sum(A**2))
    assert model.shrinkage_ <= 1e-12 * np.sum(A**2)
    assert sine(model.components_, np.linalg.svd(A)[2][:rank]) < 1e-10


def test_a_sketch_size_of_none_is_twice_the_components():
    X, _ = planted(200, 20, noise=1.0)
    assert_array_equal(
        FrequentDirections(4).fit(X).sketch_, FrequentDirections(4, sketch_size=8).fit(X).sketch_
    )


@pytest.mark.parametrize("size", [3, 5])
def test_a_sketch_without_room_for_the_components_is_refused(size):
    X, _ = planted(50)
    with pytest.raises(ValueError, match=rf"sketch_size={size} .*n_components=5"):
        FrequentDirections(5, sketch_size=size).fit(X)


def motes_like():
    """Correlated sensors with a daily course, gains of their own, drifts and noise."""
    rng = np.random.default_rng(0)
    t = np.arange(3000)[:, None] / 288
    phase = rng.uniform(0, 0.5, 48)
    light = np.maximum(np.sin(2 * np.pi * (t - phase)), 0) * rng.uniform(100, 900, 48)
    lamps = (np.sin(2 * np.pi * t + 1) > 0.2) * rng.uniform(0, 300, 48)
    return light + lamps + rng.gamma(1.0, 20.0, (3000, 48))


@pytest.mark.parametrize("data", ["alike", "measured"])
def test_sketched_components_of_sensors_are_nearly_the_best(data):
    X = motes_like() if data == "alike" else measured("motes_light").astype(float)
    model = FrequentDirections(10).fit(X)
    A = X - X.mean(axis=0)
    _, s, U = np.linalg.svd(A, full_matrices=False)
    V, best = model.components_, np.sum(s[10:] ** 2)
    error = np.sum((A - A @ V.T @ V) ** 2)
    # The sketch shrinks the Gram matrix by D, and V is the best for what is left: the excess is at
    # most tr(U D U^T) - tr(V D V^T), small as D is nearly a multiple of the identity.
    D = A.T @ A - model.sketch_.T @ model.sketch_
    rounding = 1e-9 * np.sum(s**2)
    shrunk = np.linalg.eigvalsh(D)
    assert -rounding <= shrunk[0] <= shrunk[-1] <= model.shrinkage_ + rounding
    excess = np.sum((U[:10] @ D) * U[:10]) - np.sum((V @ D) * V)
    assert error <= best + excess + rounding
    assert excess <= 0.02 * best


# --------------------------------------------------------------------------------- power method


def power_method(X, Q, size):
    """Mitliagkas et al. 2013, Algorithm 1."""
    for start in range(0, len(X) - size + 1, size):
        S = np.zeros_like(Q)
        for x in X[start : start + size]:
            S += np.outer(Q @ x, x) / size
        Q = np.linalg.qr(S.T)[0].T
    return Q


@pytest.mark.parametrize("size", [5, 20, 32, 150, 256, 300, 700])
@pytest.mark.parametrize("center", [True, False])
def test_the_power_method_is_that_of_the_paper(size, center):
    X, _ = planted(730, noise=1.0, mean=2.0)
    model = stream(
        StreamingPowerMethod(3, block_size=size, center=center, init="random", random_state=4), X
    )
    Z = seen_by_the_rule(X, center)
    assert sine(model.components_, power_method(Z, first_basis(20, 3, 4), size)) < 1e-8
    assert model.n_steps_ == len(Z) // size


@pytest.mark.parametrize("size", [40, 300])
def test_an_unfinished_block_does_not_move_the_basis(size):
    X, _ = planted(2 * size + 1)
    model = StreamingPowerMethod(3, block_size=size, init="random", random_state=0)
    before = first_basis(20, 3)
    for i, x in enumerate(X):  # i rows of weight, as the first one has none
        if i % 37 in (0, 1, 36) or i % size in (0, size - 1):
            model.partial_fit(x[None])
            assert model.n_steps_ == i // size
            if i <= size:  # of the first block, the rows so far are shown
                if len(model.components_) == 3 and i > 4:
                    now = power_method(seen_by_the_rule(X[: i + 1], True), before, i)
                    assert sine(model.components_, now) < 1e-7
                if i == size:
                    before = model.components_
            elif i % size:
                assert sine(model.components_, before) < 1e-12
            else:
                assert sine(model.components_, before) > 1e-6
                before = model.components_
        else:
            model.partial_fit(x[None])


@pytest.mark.parametrize("size", [1, 2])
def test_a_block_of_fewer_rows_than_components_is_in_the_basis(size):
    X, _ = planted(40, noise=1.0)
    model = StreamingPowerMethod(3, block_size=size, center=False, random_state=0).fit(X)
    last, V = X[-size:], model.components_
    assert np.linalg.norm(last - last @ V.T @ V) < 1e-10 * np.linalg.norm(last)
    assert_finite_and_orthonormal(model)


def test_a_block_of_zeros_leaves_the_basis():
    X, _ = planted(100)
    model = StreamingPowerMethod(3, block_size=50, center=False, init="random", random_state=0).fit(
        X
    )
    before = model.components_
    model.partial_fit(np.zeros((100, 20)))
    assert model.n_steps_ == 4
    assert sine(model.components_, before) < 1e-12


def test_no_matrix_of_the_size_of_a_block_is_kept():
    d = 5000
    batches = [np.random.default_rng(i).standard_normal((100, d)) for i in range(6)]

    def peak(size):
        model = StreamingPowerMethod(5, block_size=size, random_state=0)
        return peak_bytes(lambda: model.fit(iter(batches)))

    auto = peak("auto")
    assert auto < d * d * 8 / 3
    assert peak(10**9) < 1.1 * auto


# -------------------------------------------------------------------------------------------- Oja


def oja(X, Q, size, c=None):
    """Mini-batch Oja; AdaOja (Henriksen and Ward 2019, section 4) without a rate."""
    sums = np.zeros(len(Q))
    for t, start in enumerate(range(0, len(X), size), 1):
        batch = X[start : start + size]
        gradient = np.zeros_like(Q)
        for x in batch:
            gradient += np.outer(Q @ x, x) / len(batch)
        sums += np.array([g @ g for g in gradient])
        if not sums.all():  # nothing but zeros so far
            continue
        eta = 1 / np.sqrt(sums) if c is None else np.full(len(Q), c / t)
        Q, R = np.linalg.qr((Q + eta[:, None] * gradient).T)
        Q = (Q * np.sign(np.diag(R))).T
    return Q


@pytest.mark.parametrize("rate", ["adaptive", 0.05, 2.0])
@pytest.mark.parametrize("size", [1, 7, 32, 300])
@pytest.mark.parametrize("center", [True, False])
def test_oja_is_the_loop_over_the_batches(rate, size, center):
    X, _ = planted(430, noise=1.0, mean=1.0)
    model = OjaPCA(
        3, learning_rate=rate, batch_size=size, center=center, init="random", random_state=2
    )
    stream(model, X)
    Z = seen_by_the_rule(X, center)
    Q = oja(Z, first_basis(20, 3, 2), size, None if rate == "adaptive" else rate)
    assert sine(model.components_, Q) < 1e-8


@pytest.mark.parametrize("scale", [1e-3, 1e3, 1e8])
def test_the_adaptive_step_does_not_depend_on_the_scale(scale):
    X, _ = planted(500, noise=1.0, mean=1.0)
    model = OjaPCA(3, random_state=0).fit(X)
    scaled = OjaPCA(3, random_state=0).fit(scale * X)
    assert_allclose(scaled.components_, model.components_, atol=1e-9)
    assert_allclose(scaled.singular_values_, scale * model.singular_values_, rtol=1e-9)


def test_oja_finds_the_subspace():
    X, V = planted(5000, mean=5.0)
    assert sine(OjaPCA(3, random_state=0).fit(X).components_, V) < 0.05
    assert sine(OjaPCA(3, learning_rate=0.3, random_state=0).fit(X).components_, V) < 0.05


# ----------------------------------------------------------------------------------------- GROUSE


def grouse(X, V, step="greedy"):
    """Balzano et al. 2010, Algorithm 1; the greedy angle of Balzano and Wright 2013."""
    U = V.T.copy()
    for x in X:
        there = ~np.isnan(x)
        if there.sum() <= U.shape[1]:
            continue
        w = np.linalg.pinv(U[there]) @ x[there]
        p, r = U @ w, np.zeros(len(U))
        r[there] = x[there] - U[there] @ w
        p_norm, r_norm = np.linalg.norm(p), np.linalg.norm(r)
        if r_norm < 1e-7 * np.linalg.norm(x[there]) or p_norm == 0:
            continue
        angle = np.arctan(r_norm / p_norm) if step == "greedy" else step * r_norm * p_norm
        turn = (np.cos(angle) - 1) * p / p_norm + np.sin(angle) * r / r_norm
        U = U + np.outer(turn, w / np.linalg.norm(w))
    return U.T


@pytest.mark.parametrize("step", ["greedy", 0.01, 0.3])
@pytest.mark.parametrize("noise", [0.01, 1.0])
def test_whole_rows_turn_the_basis_as_row_by_row(step, noise):
    X = planted(600, noise=noise, mean=1.0)[0] / 5  # norms near 1
    model = stream(GROUSE(3, step_size=step, center=False, init="random", random_state=1), X)
    assert sine(model.components_, grouse(X, first_basis(20, 3, 1), step)) < 1e-8


@pytest.mark.parametrize("step", ["greedy", 0.01])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.8])
def test_rows_with_holes_turn_the_basis_as_in_the_paper(step, share):
    X = with_holes(planted(400, noise=0.3)[0], share)
    X[100:200] = planted(100, noise=0.3, seed=5)[0]
    model = stream(GROUSE(3, step_size=step, center=False, init="random", random_state=1), X)
    assert sine(model.components_, grouse(X, first_basis(20, 3, 1), step)) < 1e-8


@each({"grouse": GROUSE(3, random_state=0), "petrels": PETRELS(3, random_state=0)})
@pytest.mark.parametrize("center", [True, False])
def test_a_subspace_is_recovered_from_a_third_of_the_entries(model, center):
    X, V = planted(3000, 60, noise=0.0, mean=10.0 if center else 0.0)
    model = clone(model).set_params(center=center).fit(with_holes(X, 0.7))
    # residuals below 1e-7 of a row count as none, and 30 % of the entries show 30 % of an error
    assert sine(model.components_, V) < 1e-6


def rows_without_news(V, k):
    rng = np.random.default_rng(3)
    fits = rng.standard_normal((40, k)) @ V
    few = np.full((40, V.shape[1]), np.nan)
    for row in few:
        row[rng.choice(len(row), k, replace=False)] = rng.standard_normal(k)
    return {
        "fit": fits,
        "fit, with holes": with_holes(fits, 0.3),
        "zeros": np.zeros((40, V.shape[1])),
        "zeros with holes": with_holes(np.zeros((40, V.shape[1])), 0.3),
        "no entries": np.full((40, V.shape[1]), np.nan),
        "few entries": few,
    }


@each(MISSING)
@pytest.mark.parametrize("kind", rows_without_news(np.eye(3, 20), 3))
@pytest.mark.parametrize("n", [1, 40])
def test_rows_without_news_leave_the_basis(model, kind, n):
    model = clone(model).fit(planted(320, noise=0.3)[0])
    before = model.components_
    model.partial_fit(rows_without_news(before, 3)[kind][:n])
    assert sine(model.components_, before) < 1e-9
    assert_finite_and_orthonormal(model)


@each(MISSING)
@pytest.mark.parametrize("kind", ["zeros", "zeros with holes", "no entries", "few entries"])
@pytest.mark.parametrize("center", [True, False])
def test_a_stream_may_start_without_news(model, kind, center):
    model = clone(model).set_params(center=center)
    model.fit(rows_without_news(np.eye(3, 20), 3)[kind])
    assert_finite_and_orthonormal(model)
    X, V = planted(1500, noise=0.01)
    model.partial_fit(X)
    assert_finite_and_orthonormal(model)
    assert sine(model.components_, V) < 0.2


@each(MISSING)
@pytest.mark.parametrize("center", [True, False])
def test_features_may_be_missing_from_all_rows(model, center):
    X, V = planted(1000, noise=0.01)
    X[:, [4, 11]] = np.nan
    model = clone(model).set_params(center=center).fit(X)
    assert_finite_and_orthonormal(model)
    assert_array_equal(model.mean_[[4, 11]], 0)
    there = np.setdiff1d(np.arange(20), [4, 11])
    assert sine(model.components_[:, there], V[:, there]) < 0.2
    assert np.isfinite(model.transform(X)).all()
    model.partial_fit(planted(1000, noise=0.01)[0])
    assert_finite_and_orthonormal(model)
    assert sine(model.components_, V) < 0.2


@each({**TRACKERS, **{f"{name} fading": m for name, m in FADING.items()}})
def test_the_basis_is_orthonormal_after_many_rows(model):
    X, _ = planted(10_000, 10)
    assert_finite_and_orthonormal(clone(model).fit(X))


@each(MISSING)
def test_the_basis_is_orthonormal_after_many_rows_with_holes(model):
    X, _ = planted(10_000, 10)
    assert_finite_and_orthonormal(clone(model).fit(with_holes(X, 0.3)))


# ------------------------------------------------------------------------------------------- PAST


@pytest.mark.parametrize("f", [1.0, 0.99, 0.9])
@pytest.mark.parametrize("deflation", [False, True])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("zeros", [0, 64])
def test_past_is_the_recursion_of_the_paper(f, deflation, center, zeros):
    X, _ = planted(500, noise=1.0, mean=1.0)
    if zeros:
        X = np.concatenate([np.zeros((zeros + center, 20)), X])  # whole blocks of zeros
    options = {"forgetting_factor": f, "deflation": deflation, "center": center}
    model = stream(PAST(3, **options, init="random", random_state=7), X)
    Z = seen_by_the_rule(X, center, f)[zeros:]
    power = np.mean(Z[:32] ** 2)
    W = (pastd if deflation else past)(Z, first_basis(20, 3, 7), f, power)
    assert sine(model.components_, W) < 1e-8


@each(
    {
        "past": PAST(3, random_state=0),
        "pastd": PAST(3, deflation=True, random_state=0),
        "petrels": PETRELS(3, random_state=0),
        "spirit": SPIRIT(3, lower=0.0, upper=1.0),
    }
)
def test_forgetting_follows_a_change(model):
    (X, _), (Y, V) = planted(1000, seed=0), planted(200, seed=1)
    rows = np.concatenate([X, Y])
    keeps, forgets = (clone(model).set_params(forgetting_factor=f).fit(rows) for f in (1.0, 0.95))
    assert sine(forgets.components_, V) < 0.2
    assert sine(keeps.components_, V) > 2 * sine(forgets.components_, V)


SILENCE = {
    "zeros": lambda X, n: np.zeros((n, X.shape[1])),
    "constant": lambda X, n: np.full((n, X.shape[1]), 3.0),
    "one direction": lambda X, n: np.outer(np.sin(np.arange(n)), X[0]),
}


@each({"past": FADING["past"], "pastd": FADING["pastd"]})
@pytest.mark.parametrize("kind", ["zeros", "constant"])
@pytest.mark.parametrize("center", [True, False])
def test_past_survives_20000_rows_without_news(model, kind, center):
    X, V = planted(100, 8)
    model = clone(model).set_params(center=center).fit(X)
    model.partial_fit(SILENCE[kind](X, 20_000))
    assert_finite_and_orthonormal(model)
    model.partial_fit(planted(300, 8)[0])
    assert_finite_and_orthonormal(model)
    assert sine(model.components_, V) < 0.3


@each(FADING)
@pytest.mark.parametrize("kind", SILENCE)
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_a_long_silence_gives_no_nan(model, kind, center, first):
    X, V = planted(200, 8)
    # rows fade by 2^-1200, below the smallest number
    model = clone(model).set_params(center=center, forgetting_factor=0.5)
    if not first:
        model.fit(X)
    model.partial_fit(SILENCE[kind](X, 1200))
    assert_finite_and_orthonormal(model)
    model.partial_fit(X)
    assert_finite_and_orthonormal(model)
    # rows that fade by half teach little more than the last few: the last row is in the basis
    last = X[-1] - model.mean_
    V = model.components_
    assert np.linalg.norm(last - last @ V.T @ V) < 0.5 * np.linalg.norm(last)


@each(
    {
        "past": PAST(3, forgetting_factor=0.99, random_state=0),
        "pastd": PAST(3, forgetting_factor=0.99, deflation=True, random_state=0),
        "petrels": PETRELS(3, forgetting_factor=0.98, random_state=0),
    }
)
@pytest.mark.parametrize(
    ("kind", "n", "center", "seed"),
    [
        ("zeros", 5000, True, 0),
        ("constant", 2000, True, 0),
        ("constant", 5000, False, 4),
        ("zeros", 2000, False, 1),
    ],
)
def test_the_subspace_is_found_again_after_a_silence(model, kind, n, center, seed):
    X, V = planted(100, 8, seed=seed)
    model = clone(model).set_params(center=center).fit(X)
    model.partial_fit(SILENCE[kind](X, n)).partial_fit(planted(2000, 8, seed=seed)[0])
    # by then, the silence weighs less than 0.99^2000 = 2e-9
    assert sine(model.components_, V) < 0.1


# ---------------------------------------------------------------------------------------- PETRELS


@pytest.mark.parametrize("f", [1.0, 0.98, 0.9])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
@pytest.mark.parametrize("delta", [1e-2, 1.0])
def test_petrels_solves_the_normal_equations_of_every_feature(f, share, delta):
    X = planted(350, 12, noise=0.3)[0]
    X[60:] = with_holes(X[60:], share)
    options = {"forgetting_factor": f, "regularization": delta, "center": False}
    model = stream(PETRELS(3, **options, init="random", random_state=3), X)
    U = petrels(X, first_basis(12, 3, 3), f, delta)[0]
    assert sine(model.components_, U.T) < 1e-7


@pytest.mark.parametrize("f", [1.0, 0.9])
def test_a_feature_ages_while_it_is_missing(f):
    X = with_holes(planted(320, 12, noise=0.3)[0], 0.3)
    X[100:180, 5] = np.nan
    X[200:220, 3:] = np.nan  # no more entries than components
    X[230:240] = np.nan
    model = PETRELS(3, forgetting_factor=f, center=False, init="random", random_state=3).fit(X)
    U, R, right = petrels(X, first_basis(12, 3, 3), f, 1e-2)
    rule = model._stream.state.rule_state
    T = rule.U.T @ U  # the loadings are kept orthonormal: other coordinates, the same model
    for j in range(12):
        want = T @ R[j] @ T.T
        assert_allclose(np.linalg.inv(rule.P[j]), want, rtol=1e-6, atol=1e-7 * np.abs(want).max())
        assert_allclose(want @ rule.U[j], T @ right[j], atol=1e-7 * np.abs(T @ right[j]).max())
    assert_allclose(rule.U @ T, U, atol=1e-7)
    assert sine(model.components_, U.T) < 1e-7


@pytest.mark.parametrize("f", [1.0, 0.9])
def test_whole_rows_and_rows_with_holes_go_the_same_way(f):
    X = planted(320, 12, noise=0.3)[0]
    block = PETRELS(3, forgetting_factor=f, center=False, init="random", random_state=0).fit(
        X[:288]
    )
    # from the first missing entry on, every feature has its own covariance
    X[288, 2] = np.nan
    rows = PETRELS(3, forgetting_factor=f, center=False, init="random", random_state=0).fit(X)
    U, *_ = petrels(X, first_basis(12, 3), f, 1e-2)
    assert block._stream.state.rule_state.P.shape == (3, 3)
    assert rows._stream.state.rule_state.P.shape == (12, 3, 3)
    assert sine(rows.components_, U.T) < 1e-8
    later = planted(320, 12, noise=0.3, seed=1)[0]
    rows.partial_fit(later)
    U, *_ = petrels(np.concatenate([X, later]), first_basis(12, 3), f, 1e-2)
    assert sine(rows.components_, U.T) < 1e-8


@pytest.mark.parametrize("silent", [1060, 1100, 3000])
@pytest.mark.parametrize("center", [True, False])
def test_a_feature_may_fall_silent_for_long(silent, center):
    X, V = planted(silent + 200, 8, noise=0.01)
    X[50 : 50 + silent, 2] = np.nan
    model = PETRELS(3, forgetting_factor=0.5, center=center, random_state=0).fit(X[: 50 + silent])
    assert_finite_and_orthonormal(model)
    assert np.isfinite(model.subspace_.total_variance)
    model.partial_fit(X[50 + silent :])
    assert_finite_and_orthonormal(model)
    if not center:
        assert sine(model.components_, V) < 0.2


@pytest.mark.parametrize("after", ["greedy", 0.02, "averaged"])
@pytest.mark.parametrize("before", ["averaged", "greedy", 0.1])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_another_step_size_holds_from_the_next_rows_on(before, after, share):
    if before == after:
        return
    X, _ = planted(400, 8, noise=0.3)
    X[np.random.default_rng(0).random(X.shape) < share] = np.nan
    given = {"center": False, "init": np.eye(3, 8)}
    model = GROUSE(3, step_size=before, **given).fit(X[:256])  # whole blocks
    given["init"] = model.components_
    expected = GROUSE(3, step_size=after, **given).fit(X[256:])
    model.set_params(step_size=after).partial_fit(X[256:])
    assert sine(model.components_, expected.components_) < 1e-8


# ----------------------------------------------------------------------------------------- SPIRIT


@pytest.mark.parametrize("f", [1.0, 0.96])
@pytest.mark.parametrize("hold_off", [0, 10, 25])
@pytest.mark.parametrize(("k", "lower", "upper"), [(1, 0.95, 0.98), (6, 0.8, 0.9), (3, 0.5, 0.99)])
@pytest.mark.parametrize("center", [True, False])
def test_spirit_is_the_loop_of_the_paper(f, hold_off, k, lower, upper, center):
    X, _ = planted(300, 12, noise=0.6, mean=1.0)
    rule = {"lower": lower, "upper": upper, "forgetting_factor": f, "hold_off": hold_off}
    model = stream(SPIRIT(k, **rule, center=center), X)
    W, history, ratio = spirit(seen_by_the_rule(X, center, f), k, **rule)
    assert model.n_components_ == len(model.components_) == history[-1]
    assert sine(model.components_, W) < 1e-8
    assert_allclose(model.energy_ratio_, ratio, rtol=1e-9)
    assert_array_equal(ranks_by_row(clone(model), X), history)


def ranks_by_row(model, X):
    """Number of components after each row that the rule has seen."""
    ranks, faded = [], model._faded

    def row_by_row(state, Z, fading):
        for i in range(len(Z)):
            state = faded(state, Z[i : i + 1], fading[i : i + 1])
            ranks.append(len(state.W))
        return state

    model._faded = row_by_row
    assert model.fit(X).n_components_ == ranks[-1]
    del model._faded
    return np.array(ranks)


@pytest.mark.parametrize("k", [1, 6])
@pytest.mark.parametrize("center", [True, False])
def test_the_rank_is_shown_after_every_row(k, center):
    X, _ = planted(300, 12, noise=0.6, mean=1.0)
    model = SPIRIT(k, lower=0.8, upper=0.9, center=center)
    history = [k] * center + list(ranks_by_row(model, X))  # the first row has no mean before it
    shown = [model.fit(X[:1]).n_components_]
    shown += [model.partial_fit(x[None]).n_components_ for x in X[1:]]
    assert_array_equal(shown, np.minimum(history, np.arange(1, 301)))


@pytest.mark.parametrize(("f", "k"), [(1.0, 3), (0.96, 1), (0.96, 3)])
def test_spirit_ends_at_the_planted_rank(f, k):
    rng = np.random.default_rng(0)
    V = np.linalg.qr(rng.standard_normal((20, 3)))[0].T
    # three directions hold 95 % of the energy, two of them 64 %
    X = rng.standard_normal((1500, 3)) @ V + 0.09 * rng.standard_normal((1500, 20))
    model = SPIRIT(k, lower=0.8, upper=0.99, forgetting_factor=f, center=False)
    ranks = ranks_by_row(model, X)[-200:]
    # a component that has just begun holds little, and one more may be added before it does
    assert ranks.min() >= 3
    assert ranks.max() <= 4
    assert 0.8 <= model.energy_ratio_ <= 0.99
    left = V - V @ model.components_.T @ model.components_
    assert np.linalg.norm(left, 2) < 0.3


@pytest.mark.parametrize("f", [1.0, 0.96])
def test_spirit_drops_a_component_that_is_not_needed(f):
    rng = np.random.default_rng(0)
    # three directions hold 91 % of the energy, two of them 61 %, four of them all of it
    X = rng.standard_normal((1500, 4)) * [1, 1, 1, 0.55]
    X = X @ np.linalg.qr(rng.standard_normal((4, 4)))[0]
    model = SPIRIT(4, lower=0.75, upper=0.98, forgetting_factor=f, center=False)
    ranks = ranks_by_row(model, X)[-500:]
    assert np.mean(ranks == 3) > 0.9
    assert ranks.max() == 3


def test_spirit_without_forgetting_ends_within_its_bounds():
    rng = np.random.default_rng(0)
    V = np.linalg.qr(rng.standard_normal((20, 3)))[0].T
    X = rng.standard_normal((1500, 3)) @ V + 0.09 * rng.standard_normal((1500, 20))
    model = SPIRIT(lower=0.8, upper=0.99, forgetting_factor=1.0, center=False).fit(X)
    # rows of the start, when too few components held too little, count for ever
    assert 3 <= model.n_components_ <= 6
    assert 0.8 <= model.energy_ratio_ <= 0.99


@pytest.mark.parametrize("hold_off", [0, 1, 10, 40])
def test_hold_off_separates_changes_of_the_rank(hold_off):
    X, _ = planted(500, 30, k=20, noise=1.0)
    history = ranks_by_row(SPIRIT(hold_off=hold_off, center=False), X)
    changes = np.flatnonzero(np.diff(history, prepend=1))
    assert np.abs(np.diff(history, prepend=1)).max() == 1
    # hold_off rows at least without a change before each change
    assert changes[0] >= hold_off
    assert np.diff(changes).min() == hold_off + 1


def test_the_rank_grows_on_a_flat_spectrum_without_forgetting():
    X = np.random.default_rng(0).standard_normal((1500, 20))
    history = ranks_by_row(SPIRIT(forgetting_factor=1.0, center=False), X)
    assert history[100] < history[-1]
    assert history[-1] >= 19
    assert history.max() <= 20


def test_all_components_are_kept_where_all_are_needed():
    X = np.random.default_rng(0).standard_normal((400, 4))
    model = SPIRIT(lower=0.9999, upper=0.99999, center=False)
    assert_array_equal(ranks_by_row(model, X)[-100:], 4)
    assert_finite_and_orthonormal(model)


@pytest.mark.parametrize("seed", range(20))
def test_an_upper_bound_of_one_drops_nothing(seed):
    # rounding may show components that hold everything as holding more
    X = np.random.default_rng(seed).standard_normal((50, 8))
    assert SPIRIT(8, lower=0.9999, upper=1.0).fit(X).n_components_ == 8


def test_components_of_spirit_are_not_dependent():
    # nearly repeated columns drive deflation into the same direction twice
    rng = np.random.default_rng(0)
    X = rng.standard_normal((800, 1)) + 1e-3 * rng.standard_normal((800, 15))
    model = SPIRIT(5, lower=0.9999999, upper=0.99999999, center=False).fit(X)
    assert np.linalg.cond(model.components_) < 1 + 1e-10


@pytest.mark.parametrize("hold_off", [0, 5, 10])
def test_components_of_spirit_do_not_grow_at_a_row_of_zeros(hold_off):
    # such a row has no axis, and no entries whose energy the new component could start from
    X = np.random.default_rng(0).standard_normal((60, 6))
    X[10:50:3] = 0
    growth = np.diff(ranks_by_row(SPIRIT(center=False, hold_off=hold_off), X), prepend=1)
    assert growth.max() == 1
    assert growth[~X.any(axis=1)].max() <= 0


@pytest.mark.parametrize(("lower", "upper"), [(0.98, 0.95), (0.9, 0.9)])
def test_energy_bounds_in_the_wrong_order_are_refused(lower, upper):
    with pytest.raises(ValueError, match=rf"lower < upper.*lower={lower}.*upper={upper}"):
        SPIRIT(lower=lower, upper=upper).fit(planted(50)[0])


@pytest.mark.parametrize("f", [1.0, 0.5])
def test_the_rank_stays_while_the_stream_is_silent(f):
    X, _ = planted(200, 8, noise=0.5)
    model = SPIRIT(lower=0.5, upper=0.99, forgetting_factor=f, center=False).fit(X)
    before = model.n_components_
    model.partial_fit(np.zeros((1500, 8)))
    assert model.n_components_ == before
    assert_finite_and_orthonormal(model)


@pytest.mark.parametrize("n_constant", [1, 50])
@pytest.mark.parametrize("center", [True, False])
def test_features_without_variance_change_no_rank(n_constant, center):
    X, _ = planted(400, 12, noise=0.6)
    wide = np.concatenate([np.zeros((400, n_constant)), X], axis=1)
    plain, model = SPIRIT(2, center=center).fit(X), SPIRIT(2, center=center).fit(wide)
    assert model.n_components_ == plain.n_components_
    assert np.abs(model.components_[:, :n_constant]).max() < 1e-14
    assert sine(model.components_[:, n_constant:], plain.components_) < 1e-10


def test_spirit_may_start_with_zeros():
    model = SPIRIT(2, center=False).fit(np.zeros((50, 8)))
    assert model.energy_ratio_ == 1
    assert model.n_components_ == 2
    X, V = planted(500, 8, k=2, noise=0.3)
    model = SPIRIT(2, lower=0.9, upper=0.9999, center=False).fit(np.zeros((50, 8))).partial_fit(X)
    assert_finite_and_orthonormal(model)
    assert sine(model.components_, V) < 0.3


# ------------------------------------------------------------------------- what all have in common


@each(TRACKERS)
def test_variances_are_those_of_all_rows(model):
    X, V = planted(4000, mean=5.0, noise=0.05)
    model = clone(model).fit(X)
    assert sine(model.components_, V) < 0.3
    variance = np.var((X - X.mean(axis=0)) @ model.components_.T, axis=0, ddof=1)
    assert_allclose(model.explained_variance_, variance, rtol=0.1)
    assert_allclose(model.singular_values_**2, model.explained_variance_ * 3999, rtol=1e-10)


@each({**TRACKERS, **{f"{name} fading": m for name, m in FADING.items()}})
@pytest.mark.parametrize("n", [2, 3, 31, 32, 150])
@pytest.mark.parametrize("center", [True, False])
def test_mean_and_total_variance_are_exact(model, n, center):
    X, _ = planted(n, mean=5.0)
    model = stream(clone(model).set_params(center=center), X)
    w = fading(n, getattr(model, "forgetting_factor", 1.0))
    mean = center * (w @ X) / w.sum()
    total = np.sum(w @ (X - mean) ** 2) / max(w.sum() - 1, w.sum() / 2)
    assert_allclose(model.mean_, mean, atol=1e-12)
    variance = model.explained_variance_
    k = len(variance)
    assert_allclose(variance.sum() + (20 - k) * model.noise_variance_, total, rtol=1e-10)
    assert_allclose(model.explained_variance_ratio_, variance / total, rtol=1e-10)
    assert_allclose(model.subspace_.total_variance, total, rtol=1e-10)
    assert model.n_samples_ == model.n_samples_seen_ == n


@each(
    {
        "grouse": GROUSE(3, random_state=0),
        "petrels": PETRELS(3, random_state=0),
        "petrels fading": PETRELS(3, forgetting_factor=0.98, random_state=0),
    }
)
@pytest.mark.parametrize("center", [True, False])
def test_features_with_holes_count_as_if_they_had_none(model, center):
    X = with_holes(planted(500, mean=2.0)[0], 0.5)
    model = stream(clone(model).set_params(center=center), X)
    w = fading(500, 0.98 if model.forgetting_factor == 0.98 else 1.0)
    seen = ~np.isnan(X)
    weight = w @ seen
    mean = center * (w @ np.where(seen, X, 0)) / weight
    squares = w @ np.where(seen, X - mean, 0) ** 2
    total = np.sum(squares / weight) * w.sum() / (w.sum() - 1)
    if center:  # within the affine subspace; across it, the errors of these means differ
        assert_allclose((model.mean_ - mean) @ model.components_.T, 0, atol=1e-11)
    else:
        assert_array_equal(model.mean_, 0)
    assert_allclose(model.subspace_.total_variance, total, rtol=1e-10)


@each(
    {
        "grouse": GROUSE(3, random_state=0),
        "petrels": PETRELS(3, forgetting_factor=1.0, random_state=0),
    }
)
@pytest.mark.parametrize("share", [0.2, 0.5])
def test_variances_do_not_depend_on_the_share_of_the_holes(model, share):
    X, V = planted(3000, 100, noise=0.01, mean=1.0)
    model = clone(model).fit(with_holes(X, share))
    assert sine(model.components_, V) < 0.1
    variance = np.var((X - X.mean(axis=0)) @ model.components_.T, axis=0, ddof=1)
    # 100 (1 - share) entries for 3 coordinates: least squares lose nearly nothing; the first rows
    # are measured in a basis that still turns
    assert_allclose(model.explained_variance_, variance, rtol=0.15)
    assert model.noise_variance_ > 0


@each(MISSING)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_coordinates_of_rows_with_holes_are_of_the_conditional_means(model, sparse, dtype):
    model = clone(model).set_params(center=True).fit(planted(400, mean=1.0)[0].astype(dtype))
    X = with_holes(planted(80, mean=1.0, seed=2)[0], 0.5).astype(dtype)
    X[:5] = planted(5, seed=3)[0]
    X[5, 2:] = X[6] = np.nan
    Z = model.transform(sp.csr_array(X) if sparse else X)
    V, mean = model.components_.astype(float), model.mean_.astype(float)
    assert Z.dtype == dtype
    # rows as normal vectors: V^T diag(variances - noise) V + noise I is their covariance
    noise = max(model._entry_noise, 1e-12)
    beyond = np.maximum(model.explained_variance_.astype(float) - noise, 0)
    S = (V.T * beyond) @ V + noise * np.eye(20)
    for x, z in zip(X.astype(float) - mean, Z, strict=True):
        there, lost = ~np.isnan(x), np.isnan(x)
        x[lost] = S[np.ix_(lost, there)] @ np.linalg.solve(S[np.ix_(there, there)], x[there])
        assert_allclose(z, V @ x, atol=1e-6 if dtype == np.float64 else 1e-3)
    assert_array_equal(Z[6], 0)


@each({name: m for name, m in TRACKERS.items() if name not in ("grouse", "petrels")})
@pytest.mark.parametrize("method", ["fit", "partial_fit", "transform"])
def test_other_trackers_refuse_missing_entries(model, method):
    X, _ = planted(100)
    model = clone(model).fit(X)
    X[50, 3] = np.nan
    with pytest.raises(ValueError, match="contains NaN"):
        getattr(model, method)(X)


@each(TRACKERS)
@pytest.mark.parametrize("method", ["fit", "partial_fit", "transform"])
def test_infinity_is_refused(model, method):
    X, _ = planted(100)
    model = clone(model).fit(X)
    X[50, 3] = np.inf
    with pytest.raises(ValueError, match="contains infinity"):
        getattr(model, method)(X)


@each(TRACKERS)
@pytest.mark.parametrize("form", [sp.csr_array, sp.csc_array, sp.coo_matrix])
def test_sparse_rows_are_the_dense_ones(model, form):
    X = planted(210)[0] * (np.random.default_rng(1).random((210, 20)) < 0.3)
    dense, sparse = clone(model).fit(X), clone(model)
    for rows in np.split(X, [10, 100]):
        sparse.partial_fit(form(rows))
    assert_allclose(sparse.components_, dense.components_, atol=1e-9)
    assert_allclose(sparse.singular_values_, dense.singular_values_, rtol=1e-9)


@each(MISSING)
def test_missing_entries_may_be_in_sparse_rows(model):
    X = planted(200)[0] * (np.random.default_rng(1).random((200, 20)) < 0.5)
    X = with_holes(X, 0.1)
    dense, sparse = clone(model).fit(X), clone(model).fit(sp.csr_array(X))
    assert_allclose(sparse.components_, dense.components_, atol=1e-12)


@each({**TRACKERS, "spirit": SPIRIT(lower=0.9999, upper=1.0)})
def test_more_components_than_features_are_refused(model):
    model = clone(model).set_params(n_components=9)
    with pytest.raises(ValueError, match="n_components=9 must be at most n_features=8"):
        model.fit(planted(50, 8)[0])
    assert not hasattr(model, "components_")
    assert model.set_params(n_components=8).fit(planted(50, 8)[0]).noise_variance_ == 0


@each({name: m for name, m in TRACKERS.items() if "random_state" in m.get_params()})
def test_a_random_state_fixes_the_result(model):
    X, _ = planted(60, noise=1.0)

    def components(seed):
        return clone(model).set_params(init="random", random_state=seed).fit(X).components_

    assert_array_equal(components(3), components(3))
    assert_array_equal(components(3), components(np.random.RandomState(3)))
    assert sine(components(3), components(4)) > 1e-6


@each(TRACKERS)
def test_single_precision_is_rounded_only_at_the_end(model):
    X = planted(300, mean=100.0)[0].astype(np.float32)
    single, double = clone(model).fit(X), clone(model).fit(X.astype(np.float64))
    assert single.components_.dtype == single.mean_.dtype == np.float32
    assert_allclose(single.components_, double.components_, atol=1e-6)
    assert_allclose(single.singular_values_, double.singular_values_, rtol=1e-6)


@each(TRACKERS)
def test_wide_rows_take_memory_for_a_few_bases_and_blocks(model):
    d = 5000
    X = np.random.default_rng(0).standard_normal((200, d))
    model, block = clone(model), 40
    peak = peak_bytes(lambda: stream(model, X))
    # the basis, the block, and a dozen copies and products of them
    assert peak < 12 * (3 + block) * d * 8


@each(MISSING)
def test_wide_rows_with_holes_take_memory_for_a_few_blocks(model):
    d, k = 5000, 3
    X = with_holes(np.random.default_rng(0).standard_normal((100, d)), 0.5)
    model = clone(model)
    peak = peak_bytes(lambda: stream(model, X))
    assert peak < 12 * (k + k**2 + 32) * d * 8


@each(TRACKERS)
@pytest.mark.parametrize("kind", ["list", "generator"])
def test_batches_may_come_from_an_iterable(model, kind):
    X, _ = planted(200)
    batches = np.split(X, [30, 31, 150])
    stream = batches if kind == "list" else (batch for batch in batches)
    model, whole = clone(model).fit(stream), clone(model).fit(X)
    assert_allclose(model.components_, whole.components_, atol=1e-10)
    assert model.n_samples_seen_ == 200
    with pytest.raises(ValueError, match="without batches"):
        model.fit(iter([]))


@each({**TRACKERS, **FADING})
@pytest.mark.parametrize("center", [True, False])
def test_zeros_give_a_basis_without_variance(model, center):
    model = clone(model).set_params(center=center).fit(np.zeros((50, 8)))
    assert_finite_and_orthonormal(model)
    assert_array_equal(model.explained_variance_, 0)
    assert model.noise_variance_ == 0


@each(TRACKERS)
def test_fewer_rows_than_components_show_as_many(model):
    X, _ = planted(2)
    model = clone(model).set_params(center=False).fit(X)
    assert model.n_components_ == len(model.components_) == 2
    assert_finite_and_orthonormal(model)
    model.partial_fit(planted(100)[0])
    assert model.n_components_ == 3


# ----------------------------------------------------------------------- what streams may do to it


def planted_twice(n_before, n_after):
    """Rows of one subspace and then of another."""
    return np.concatenate([planted(n_before, seed=0)[0], planted(n_after, seed=9)[0]])


@pytest.mark.parametrize(("init", "first"), [("rows", 7), ("random", 33)])
@pytest.mark.parametrize(
    "model",
    [GROUSE(3, random_state=0), PAST(3, forgetting_factor=0.99, random_state=0)],
    ids=["grouse", "past"],
)
def test_variances_are_the_energy_that_the_components_of_the_time_held(model, init, first):
    model = clone(model).set_params(init=init)
    X, f = planted_twice(320, 330), model.forgetting_factor
    if isinstance(model, GROUSE):  # its mean is a part of the subspace
        model.set_params(center=False)
        Z, first = X, first - 1
    else:
        Z = centred_row_by_row(X, f)
    weight = fading(650, f)
    held = 0.0
    bounds = [0, *range(first, 650, 32), 650]  # a first row that is centred has no weight
    for start, end in pairwise(bounds):  # the first block in its own basis
        rows = slice(start, end)
        V = clone(model).fit(X[: start or first]).components_
        held += weight[rows] @ np.sum((Z[rows] @ V.T) ** 2, axis=1)
    model.fit(X)
    assert_allclose(model.explained_variance_ratio_.sum(), held / (weight @ np.sum(Z**2, axis=1)))


@each({name: model for name, model in TRACKERS.items() if name != "spirit"})
def test_variances_of_noise_are_those_of_all_rows(model):
    X = np.random.default_rng(0).standard_normal((1000, 20))
    model.fit(X)
    A = X - X.mean(axis=0)
    true = np.mean((A @ model.components_.T) ** 2)
    # 1,000 k squares of unit variance, of components that move all the time: 5 sigma, and the
    # first of 32 blocks, whose components fit it
    assert abs(model.explained_variance_.mean() - true) < 5 * np.sqrt(2 / 3000) + 2 / 32


@pytest.mark.parametrize("n", [4, 20, 39])
@pytest.mark.parametrize("center", [True, False])
def test_fewer_rows_than_a_block_show_a_step_from_them(n, center):
    X, _ = planted(n, noise=1.0)
    model = StreamingPowerMethod(
        3, block_size=40, center=center, init="random", random_state=0
    ).fit(X)
    rows = seen_by_the_rule(X, center)
    assert model.n_steps_ == 0
    assert sine(model.components_, power_method(rows, first_basis(20, 3), len(rows))) < 1e-9


@pytest.mark.parametrize(
    "model",
    [
        PAST(3, forgetting_factor=0.99, center=False, random_state=0),
        PAST(3, forgetting_factor=0.99, center=False, deflation=True, random_state=0),
        PETRELS(3, forgetting_factor=0.98, center=False, random_state=0),
    ],
    ids=["past", "pastd", "petrels"],
)
def test_a_huge_start_does_not_freeze_a_tracker(model):
    X, V = planted(4500)
    loud = 1e8 * np.random.default_rng(3).standard_normal((32, 20))
    # after 3,700 rows of weight 0.99^t the first ones count as much as one row of now
    model.fit(np.concatenate([loud, X]))
    assert sine(model.components_, V) < 0.1


@pytest.mark.parametrize(
    "model",
    [
        PAST(3, forgetting_factor=0.99, center=False, random_state=0),
        PAST(3, forgetting_factor=0.99, center=False, deflation=True, random_state=0),
        PETRELS(3, forgetting_factor=0.98, center=False, random_state=0),
    ],
    ids=["past", "pastd", "petrels"],
)
def test_a_stream_that_falls_nearly_silent_is_followed(model):
    before, after = planted(500)[0], planted(6500, seed=9)
    model.fit(np.concatenate([before, 1e-12 * after[0]]))
    # 0.99^5,500 = 1e-24 is what the weight of the rows before has to fall by
    assert sine(model.components_, after[1]) < 0.1


def test_spirit_starts_components_at_the_scale_of_now():
    before, after = planted(500)[0], planted(2500, seed=9)
    model = SPIRIT(center=False).fit(np.concatenate([before, 1e-8 * after[0]]))
    # 0.96^900 = 1e-16: the rows before are forgotten, and three directions hold 0.99 of the rest
    assert 2 <= model.n_components_ <= 4
    left = model.components_ - model.components_ @ after[1].T @ after[1]
    assert np.linalg.norm(left[:2], 2) < 0.1


@each({**TRACKERS, **MISSING})
@pytest.mark.parametrize("scale", [1e-158, 1e-170, 1e-300])
def test_rows_whose_squares_vanish_are_zeros(model, scale):
    X, _ = planted(600)
    model.fit(scale * X)
    assert_finite_and_orthonormal(model)
    model.partial_fit(X)
    assert_finite_and_orthonormal(model)


@pytest.mark.parametrize(("f", "thousands"), [(0.98, 36), (0.9, 8)])
def test_petrels_survives_until_weights_are_zero_in_float64(f, thousands):
    X, V = planted(300)
    model = PETRELS(3, forgetting_factor=f, random_state=0).fit(X)
    assert f ** (1000 * thousands) < np.finfo(float).tiny
    for _ in range(thousands):
        model.partial_fit(np.full((1000, 20), np.nan))
    assert_finite_and_orthonormal(model)
    model.partial_fit(planted(300)[0])
    assert sine(model.components_, V) < 0.1


@pytest.mark.parametrize("scale", [1e-120, 1e120])
def test_the_adaptive_step_neither_vanishes_nor_overflows(scale):
    X, _ = planted(640)
    plain, model = (OjaPCA(3, center=False, random_state=0).fit(A) for A in (X, scale * X))
    assert sine(model.components_, plain.components_) < 1e-10


@each(TRACKERS)
def test_rows_whose_squares_overflow_are_refused(model):
    X, _ = planted(100)
    model.fit(X)
    before = model.components_
    with pytest.raises(ValueError, match=r"too large: their variance overflows float64"):
        model.partial_fit(1e200 * X)
    assert model.components_ is before
    model.partial_fit(X)


@pytest.mark.parametrize(
    ("model", "change"),
    [
        (OjaPCA(3), {"n_components": 4}),
        (OjaPCA(3), {"batch_size": 5}),
        (GROUSE(3), {"center": False}),
        (StreamingPowerMethod(3), {"block_size": 7}),
        (FrequentDirections(3), {"sketch_size": 9}),
        (PAST(3), {"deflation": True}),
    ],
)
def test_what_shapes_the_state_cannot_change_on_the_way(model, change):
    X, _ = planted(100)
    model = clone(model).fit(X).set_params(**change)
    ((name, value),) = change.items()
    with pytest.raises(ValueError, match=f"{name}={value!r} differs from"):
        model.partial_fit(X)
    assert model.n_samples_seen_ == 100
    model.fit(X).partial_fit(X)


@each({**TRACKERS, "spirit": SPIRIT(3, lower=0.0, upper=1.0)})
def test_the_state_does_not_grow_with_the_stream(model):
    X, _ = planted(5000)
    model.fit(X)
    # 40 rows for bases and moments, up to 127 rows that wait, of 20 numbers of 8 bytes
    assert len(pickle.dumps(model._stream)) < 8 * 20 * (40 + 127)
