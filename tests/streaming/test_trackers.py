"""What holds for every tracker of one stream, beside the rules of the papers (test_recursions.py).

Oracles are numpy's SVD and moments of all rows. Limits on errors are those of statistics: with
noise of deviation s, n rows of which all count and directions of deviation a, a basis is off by
about s sqrt(d / n) / a, and k directions explain (1 + k / n) times the least error.
"""

from itertools import pairwise, product

import numpy as np
import pytest
from golden_cases import made
from helpers import assert_finite_and_orthonormal, leading, naming, peak_bytes, sine, with_holes
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal
from sklearn.base import clone
from tracker_helpers import centred_row_by_row, fading, fed, planted, trackers

from fedpca_sklearn import GROUSE, PETRELS

centred = pytest.mark.parametrize("center", [True, False])


def factor(model):
    """What a row leaves of the weight of all before it."""
    value = getattr(model, "forgetting_factor", 1.0)
    return 1.0 if isinstance(value, str) else value


def each(*codes):
    return pytest.mark.parametrize("model", [*map(made, codes)], ids=codes)


# ------------------------------------------------------------------------------ moments


@trackers()
@pytest.mark.parametrize(("n", "far"), [(2, 1e4), (31, 5.0), (32, 1e4), (150, 5.0)])
@centred
def test_mean_and_total_variance_are_exact(model, n, far, center):
    X = planted(n, mean=far)[0]
    # a running mean is rounded once a block, and enters every centred row
    tol = 1e-10 + 1e-13 * far * center
    model = fed(clone(model).set_params(center=center), X)
    w = fading(n, factor(model))
    mean = center * (w @ X) / w.sum()
    total = np.sum(w @ (X - mean) ** 2) / max(w.sum() - 1, w.sum() / 2)
    variance = model.explained_variance_
    left = (20 - len(variance)) * model.noise_variance_
    assert_allclose(model.mean_, mean, atol=1e-12 * far)
    assert_allclose(variance.sum() + left, total, rtol=tol)
    assert_allclose(model.explained_variance_ratio_, variance / total, rtol=tol)
    assert_allclose(model.subspace_.total_variance, total, rtol=tol)
    assert_allclose(model.subspace_.n_samples, w.sum(), rtol=1e-12)
    assert model.n_samples_ == model.n_samples_seen_ == n


@trackers("holes")
@centred
def test_features_with_holes_count_as_if_they_had_none(model, center):
    X = with_holes(planted(500, mean=2.0)[0], 0.5)
    model = fed(clone(model).set_params(center=center), X)
    w, seen = fading(500, factor(model)), ~np.isnan(X)
    weight = w @ seen
    mean = center * (w @ np.where(seen, X, 0)) / weight
    squares = w @ np.where(seen, X - mean, 0) ** 2
    total = np.sum(squares / weight) * w.sum() / (w.sum() - 1)
    if center:  # within the affine subspace; across it, the errors of these means differ
        assert_allclose((model.mean_ - mean) @ model.components_.T, 0, atol=1e-11)
    else:
        assert_array_equal(model.mean_, 0)
    assert_allclose(model.subspace_.total_variance, total, rtol=1e-10)


# ------------------------------------------------------------------------------ unlike streams


def silence(kind, n):
    return {
        "zeros": np.zeros((n, 20)),
        "constant": np.full((n, 20), 3.0),
        "one direction": np.outer(np.sin(np.arange(n)), planted(1)[0]),
        "vanishing squares": 1e-170 * planted(n)[0],
        "repeated": np.repeat(planted(n // 3 + 1)[0], 3, axis=0)[:n],
        "no entries": np.full((n, 20), np.nan),
        "holes of zeros": with_holes(np.zeros((n, 20)), 0.3),
        "few entries": np.where(np.arange(20) < 3, planted(n)[0], np.nan),
    }[kind]


KINDS = ["zeros", "constant", "one direction", "vanishing squares", "repeated"]
HOLES = ["no entries", "holes of zeros", "few entries"]


@trackers()
def test_a_stream_may_start_without_news(model):
    kinds = KINDS + HOLES * isinstance(model, GROUSE | PETRELS)
    for i, kind in enumerate([*kinds, "zeros", "repeated", "vanishing squares"]):
        with naming(kind):
            center = i % 2 > 0
            assert_starts_with(clone(model).set_params(center=center), kind, [1, 9, 50][i % 3])


def assert_starts_with(model, kind, n):
    first = silence(kind, n)
    assert_finite_and_orthonormal(model.fit(first))
    if not hasattr(model, "lower"):  # whose rank changes
        assert len(model.components_) == model.n_components_ == min(3, n)
    if kind in ("zeros", "no entries"):
        assert_array_equal(model.explained_variance_, 0)
        assert model.noise_variance_ == 0
    X, V = planted(400, noise=0.01)
    assert_finite_and_orthonormal(model.partial_fit(X))
    if not hasattr(model, "lower") and (not np.nansum(first**2) or factor(model) < 1):
        assert sine(model.components_, V) < 0.2


@trackers("forgets")
@pytest.mark.parametrize("kind", [*KINDS[:3], "no entries"])
@pytest.mark.parametrize(("f", "center"), [(0.5, True), (0.8, False)])
def test_a_long_silence_is_survived(model, kind, f, center):
    if kind in HOLES and not isinstance(model, PETRELS):
        return
    X, V = planted(200)
    model = clone(model).set_params(center=center, forgetting_factor=f).fit(X)
    n = int(-1200 * np.log(2) / np.log(f))
    model.partial_fit(silence(kind, n))  # rows fade by 2^-1200, below the smallest number
    assert_finite_and_orthonormal(model)
    model.partial_fit(planted(600)[0])
    assert_finite_and_orthonormal(model)
    if f == 0.8 and not hasattr(model, "lower"):  # whose rank changes
        assert sine(model.components_, V) < 0.3


@trackers()
def test_wide_rows_take_memory_for_a_few_bases_and_blocks(model):
    d, k = 3000, 3
    X = np.random.default_rng(0).standard_normal((100, d))
    whole, model = clone(model), clone(model)
    # the basis, the block, and a dozen copies and products of them
    assert peak_bytes(lambda: fed(whole, X)) < 12 * (k + 40) * d * 8
    if isinstance(model, GROUSE | PETRELS):
        X = with_holes(X, 0.5)
        assert peak_bytes(lambda: fed(model, X)) < 12 * (k + k**2 + 32) * d * 8


# ------------------------------------------------------------------------------ first bases


@trackers("starts")
@centred
def test_the_first_rows_show_their_svd(model, center):
    for n in (1, 2, 4, 6):
        X = planted(n + center, noise=0.3)[0]
        model = clone(model).set_params(center=center).fit(X)
        if factor(model) == 1:  # fading weighs the rows
            k = min(3, n)
            assert sine(model.components_[:k], leading(X - center * X.mean(axis=0), k)) < 1e-10
        assert_finite_and_orthonormal(model)


# ------------------------------------------------------------------------------ missing entries


AFFINE = """GROUSE(4, random_state=0)
GROUSE(4, step_size="greedy", random_state=0)
PETRELS(4, random_state=0)
PETRELS(4, forgetting_factor=0.98, random_state=0)
SubspaceTracker(4)
RobustSubspaceTracker(4)
FederatedSubspaceTracker(4, n_clients=3, random_state=0)
FederatedSubspaceTracker(4, n_clients=3, robust=False, n_rounds=4, init=FirstSubspace(n_rounds=10),\
 random_state=0)
""".strip().splitlines()


@each(*AFFINE)
def test_rows_of_an_affine_subspace_are_found_exactly(model):
    mean = 100.0
    X, V = planted(1600, 30, 4, noise=0.0, mean=mean)
    point = X.mean(axis=0)
    model = clone(model).fit(with_holes(X, 0.1))
    assert model.components_.shape == V.shape  # none is lost to the mean
    assert sine(model.components_, V) < 1e-8
    off = model.mean_ - point
    assert_allclose(off - off @ V.T @ V, 0, atol=1e-8 * max(mean, 1))
    assert_allclose(model.impute(with_holes(X, 0.3, seed=2)), X, atol=1e-7 * max(mean, 1))
    if hasattr(model, "_entry_noise") and type(model) in (GROUSE, PETRELS):
        X[800:] += 5.0 * V[0] + 3.0 * V[1]  # the mean moves within the subspace
        assert sine(clone(model).fit(with_holes(X, 0.1)).components_, V) < 1e-8


@each(*AFFINE[:4])
def test_a_mean_that_is_seen_late_turns_no_component(model):
    X, late = with_holes(planted(400, noise=0.1)[0], 0.1), np.arange(20) == 4
    X[:200, late] = np.nan
    here, there = (clone(model).fit(X + mean * late) for mean in (0, 1000))
    assert sine(here.components_, there.components_) < 1e-8
    assert_allclose(there.mean_ - here.mean_, 1000 * late, atol=1e-8)


@trackers("holes")
def test_rows_without_news_leave_the_basis(model):
    model = clone(model).set_params(center=False).fit(planted(320, noise=0.3)[0])
    before = model.components_
    for kind, n in product(["fit", *HOLES, "zeros"], (1, 40)):
        fits = with_holes(np.random.default_rng(3).standard_normal((n, 3)) @ before, 0.3)
        model.partial_fit(fits if kind == "fit" else silence(kind, n))
        with naming((kind, n)):
            assert sine(model.components_, before) < 1e-9
            assert_finite_and_orthonormal(model)


@trackers("holes")
@centred
def test_features_may_be_missing_from_all_rows(model, center):
    X, V = planted(1000, noise=0.01)
    Y, there = X.copy(), np.setdiff1d(np.arange(20), [4, 11])
    Y[:, [4, 11]] = np.nan
    model = clone(model).set_params(center=center).fit(Y)
    assert_finite_and_orthonormal(model, model.transform(Y))
    assert_array_equal(model.mean_[[4, 11]], 0)
    assert sine(model.components_[:, there], V[:, there]) < 0.2
    assert_finite_and_orthonormal(model.partial_fit(X))
    assert sine(model.components_, V) < 0.2
    same = np.where(np.arange(20) % 3 == 0, np.nan, np.full((50, 20), 7.0))
    model = clone(model).set_params(center=True).fit(same)  # rows that do not differ
    assert_allclose(model.mean_, np.nan_to_num(same[0]), atol=1e-12)
    assert_allclose(model.explained_variance_, 0, atol=1e-12)


@each("GROUSE(3, center=False, random_state=0)", "PAST(3, forgetting_factor=0.99, random_state=0)")
@pytest.mark.parametrize(("init", "first"), [("rows", 7), ("random", 33)])
def test_variances_are_the_energy_that_the_components_of_the_time_held(model, init, first):
    model, f = clone(model).set_params(init=init), factor(model)
    X = np.concatenate([planted(320)[0], planted(330, seed=9)[0]])
    Z, first = (centred_row_by_row(X, f), first) if model.center else (X, first - 1)
    weight, held = fading(650, f), 0.0
    for start, end in pairwise([0, *range(first, 650, 32), 650]):
        part, before = slice(start, end), start or first  # the first block in its own basis
        V = clone(model).fit(X[:before]).components_
        held += weight[part] @ np.sum((Z[part] @ V.T) ** 2, axis=1)
    model.fit(X)
    assert_allclose(model.explained_variance_ratio_.sum(), held / (weight @ np.sum(Z**2, axis=1)))


@trackers("starts")
def test_a_start_is_of_given_rows_whatever_the_seed_or_of_a_given_basis(model):
    X = planted(40, noise=0.3)[0]
    a, b = (clone(model).set_params(random_state=s).fit(X) for s in (1, 2))
    assert sine(a.components_, b.components_) < 1e-7
    later = clone(model).set_params(center=False)
    later.partial_fit(np.zeros((40, 20))).partial_fit(X[:6])  # zeros leave the start to others
    assert sine(later.components_, leading(X[:6], 3)) < 1e-7
    V = leading(planted(200, seed=1)[0], 3)
    init = np.random.default_rng(0).standard_normal((3, 3)) @ V
    given, before = clone(model).set_params(init=init, center=False), 1e-9 * V
    assert sine(given.fit(before).components_, V) < 1e-6


@each("GROUSE(1, center=False, random_state=0)", "PETRELS(1, center=False, random_state=0)")
@pytest.mark.parametrize(("rest", "counts"), [(0.2, True), (0.01, False)])
def test_rows_whose_holes_amplify_noise_tenfold_do_not_count_in_variances(model, rest, counts):
    # noise of a coordinate is amplified by 1 / (square of the component in the entries seen)
    rng = np.random.default_rng(0)
    v = np.r_[np.sqrt(1 - rest), np.full(10, np.sqrt(rest / 10))]
    scores = 3 * rng.standard_normal(4000) * np.where(np.arange(4000) % 2, 10, 1)
    X = scores[:, None] * v
    X[1::2, 0] = np.nan  # every second row, of a hundred times the variance
    variance = clone(model).fit(X).explained_variance_[0]  # of the entries seen 98 and 13.4 at most
    assert variance > 80 if counts else abs(variance - 9) < 5 * 9 * np.sqrt(2 / 2000)


@each("GROUSE(3, random_state=0)", "PETRELS(3, random_state=0)")
@pytest.mark.parametrize("seed", range(4))
def test_new_rows_are_about_as_likely_as_under_the_density_that_rows_with_holes_are_from(
    model, seed
):
    rng = np.random.default_rng(seed)
    A = 3 * rng.standard_normal((3, 6))
    X, new = (rng.standard_normal((n, 3)) @ A + rng.standard_normal((n, 6)) for n in (400, 500))
    model.fit(with_holes(X, 0.15))
    truth = multivariate_normal(np.zeros(6), A.T @ A + np.eye(6)).logpdf(new).mean()
    assert model.score_samples(new).mean() > truth - 2


@pytest.mark.parametrize(
    ("before", "after"), [("averaged", "greedy"), ("greedy", 0.02), (0.1, "averaged")]
)
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_another_step_size_holds_from_the_next_rows_on(before, after, share):
    X, given = with_holes(planted(400, 8, noise=0.3)[0], share), {"center": False}
    model = GROUSE(3, step_size=before, init=np.eye(3, 8), **given).fit(X[:256])  # whole blocks
    other = GROUSE(3, step_size=after, init=model.components_, **given).fit(X[256:])
    model.set_params(step_size=after).partial_fit(X[256:])
    assert sine(model.components_, other.components_) < 1e-8


@pytest.mark.parametrize("step_size", ["averaged", "greedy", 0.1])
@pytest.mark.parametrize("missing", [[], [0, 7]])
def test_rows_orthogonal_to_the_subspace_or_within_it_turn_nothing(step_size, missing):
    X = np.zeros((9, 8))
    X[::2, 3:7] = 1, 2, 0, 3
    X[1::2, 1:3] = 1, 2
    X[:, missing] = np.nan
    model = GROUSE(2, step_size=step_size, center=False, init=np.eye(2, 8, 1)).fit(X)
    assert sine(model.components_, np.eye(2, 8, 1)) < 1e-8


LOUD = {
    "change": (planted(700)[0], planted(300, seed=9), 0.95),
    "silence": (np.full((700, 20), 3.0), planted(600, seed=9), 0.97),
    "loud rows": (1e8 * np.random.default_rng(3).standard_normal((32, 20)), planted(1600), 0.97),
    "nearly silent": (1e12 * planted(200)[0], planted(2200, seed=9), 0.97),
}


@trackers("forgets")
def test_what_comes_before_is_forgotten(model):
    for kind, (before, (after, V), f) in LOUD.items():  # until its weight is that of one row
        model = clone(model).set_params(forgetting_factor=f, center=False)
        if hasattr(model, "lower"):
            model.set_params(lower=0.0, upper=1.0)  # keeps three components
        with naming(kind):
            assert sine(model.fit(np.concatenate([before, after])).components_, V) < 0.2
