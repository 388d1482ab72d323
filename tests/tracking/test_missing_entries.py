"""Rows with missing entries at a fitted model: coordinates, imputation, score and likelihood.

The oracles are least squares and conditional means of a normal distribution, row by row, and
scipy's normal density with the rows and columns of `get_covariance` of the entries that are there.
"""

import re

import numpy as np
import pytest
import scipy.sparse as sp
from golden_cases import made
from helpers import assert_finite_and_orthonormal, naming, random_basis, with_holes
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal

from fedpca_sklearn import RobustSubspaceTracker, SubspaceTracker
from fedpca_sklearn._kernels.observed import GaussianModel, coordinates, noise_ridge

EPS, nan, inf = np.finfo(float).eps, np.nan, np.inf
CODES = """
SubspaceTracker(3, forgetting_factor=0.0, fill="subspace", center=False)
SubspaceTracker(3)
GROUSE(3, random_state=0)
PETRELS(3, random_state=0)
FederatedSubspaceTracker(3, random_state=0)
RobustSubspaceTracker(3)
""".strip().splitlines()
each = pytest.mark.parametrize("code", CODES[:5])
in_turn = [(code, (np.float64, np.float32)[i % 2]) for i, code in enumerate(CODES)]


def planted(n, d=20, noise=0.3, seed=0, mean=2.0, dtype=np.float64):
    V = random_basis(np.random.default_rng(9), 3, d)
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 3)) * [4, 3, 2] @ V + noise * rng.standard_normal((n, d)) + mean
    return X.astype(dtype)


def predicted(z, model):
    """Coordinates of a centred row by which the model predicts what is missing in it.

    By least squares, or with the variances and the noise of the model as a normal prior.
    """
    V, noise = model.components_.astype(float), getattr(model, "_entry_noise", 0.0)
    there = ~np.isnan(z)
    if model.get_params().get("fill") == "subspace" or not noise > 0:
        return np.linalg.lstsq(V[:, there].T, z[there], rcond=1e-5)[0]
    prior = np.maximum(model.explained_variance_.astype(float) - noise, 1e-12 * noise)
    A = np.concatenate([V[:, there].T / np.sqrt(noise), np.diag(prior**-0.5)])
    b = np.concatenate([z[there] / np.sqrt(noise), np.zeros(len(V))])
    return np.linalg.lstsq(A, b, rcond=None)[0]


@pytest.mark.parametrize(
    "code", ["SubspaceTracker()", "GROUSE(random_state=0)", "PETRELS(random_state=0)"]
)
@pytest.mark.parametrize("d", [4, 9])
def test_as_many_components_as_columns_fill_in_as_one_less_does(code, d):
    """By default, where there are at most ten columns: missing entries had the mean."""
    X = planted(300, d=d, noise=0.3)
    holes = with_holes(X, 0.2)
    lost = np.isnan(holes)
    means, filled = np.broadcast_to(np.nanmean(holes, axis=0), X.shape), []
    for model in made(code), made(code).set_params(n_components=d - 1):
        filled.append(np.linalg.norm((model.fit(holes).impute(holes) - X)[lost]))
    assert filled[0] < 0.7 * np.linalg.norm((means - X)[lost])
    assert filled[0] < 1.2 * filled[1]


@pytest.mark.parametrize(
    "code",
    [
        "SubspaceTracker(3)",
        "SubspaceTracker(3, batch_size=2000, n_iter=20)",  # one batch
        "RobustSubspaceTracker(3)",
        "FederatedSubspaceTracker(3, robust=False, random_state=0)",
        "FederatedSubspaceTracker(3, channel=GaussianChannel(1e-3), random_state=0)",
    ],
)
@pytest.mark.parametrize("share", [0.1, 0.3])
def test_the_noise_is_that_of_observed_entries(code, share):
    """What is filled in has none of its own: .65 of it were left with .3 of the entries missing."""
    X = planted(2000, d=20, noise=0.3)
    model = made(code).fit(with_holes(X, share))
    assert_allclose(model.noise_variance_, 0.3**2, rtol=0.06)
    assert_allclose(np.trace(model.get_covariance()), np.trace(np.cov(X.T)), rtol=0.1)


@pytest.mark.parametrize("code", CODES[1:])
def test_a_column_that_is_observed_late_has_its_mean_wherever_that_is(code):
    """A far one was a component of its own, of the largest variance."""
    X = with_holes(planted(600), 0.1)
    X[:300, 4] = nan
    shift = 1000.0 * (np.arange(20) == 4)
    near, far = made(code).fit(X), made(code).fit(X + shift)
    assert_allclose(far.mean_, near.mean_ + shift, rtol=0, atol=1e-8)
    assert_allclose(far.get_covariance(), near.get_covariance(), atol=1e-8)


def test_a_first_batch_of_which_no_row_counts_leaves_no_mean():
    """Two entries of each row do not determine three coordinates in a basis that is given."""
    X, few = with_holes(planted(200), 0.2), np.full((40, 20), nan)
    few[np.arange(40), np.arange(40) % 20] = few[np.arange(40), np.arange(1, 41) % 20] = 1e3
    tracker = SubspaceTracker(3, init=random_basis(np.random.default_rng(9), 3, 20), batch_size=40)
    plain = SubspaceTracker(**tracker.get_params()).fit(X)
    found = tracker.fit(np.concatenate([few, X]))
    assert_allclose(found.mean_, plain.mean_, rtol=0, atol=1e-10)
    assert_allclose(found.components_, plain.components_, rtol=0, atol=1e-10)


@pytest.mark.parametrize("fill", ["conditional", "subspace"])
def test_batches_without_any_entry_say_nothing(fill):
    """Of noise neither: by rounding they had less than no coordinates, and a noise of zero."""
    X = with_holes(planted(600), 0.2)
    empty = np.full((400, 20), nan)
    plain = SubspaceTracker(3, fill=fill).fit(X)
    found = SubspaceTracker(3, fill=fill).fit(np.concatenate([X[:200], empty, X[200:]]))
    assert_allclose(found.components_, plain.components_, atol=1e-12)
    assert_allclose(found.get_covariance(), plain.get_covariance(), atol=1e-12)


# ------------------------------------------------------------------------------ coordinates


def test_a_ridge_gives_conditional_means_and_the_trace_of_the_fit():
    V, (variances, noise) = random_basis(np.random.default_rng(0), 3, 12), ([5.0, 2.0, 0.7], 0.4)
    S = (V.T * (np.array(variances) - noise)) @ V + noise * np.eye(12)
    Z = with_holes(np.random.default_rng(1).standard_normal((30, 12)), 0.5)
    Z[0] = nan
    ridge = noise_ridge(np.array(variances), noise, 12)
    seen = ~np.isnan(Z)
    fit = coordinates(Z, V, ridge=ridge)
    for z, c, there in zip(Z, fit.values, seen, strict=True):
        want = S[np.ix_(~there, there)] @ np.linalg.solve(S[np.ix_(there, there)], z[there])
        assert_allclose((c @ V)[~there], want, atol=1e-10)
    traces = [
        np.trace(A @ np.linalg.solve(A.T @ A + np.diag(ridge), A.T))
        for A in (V[:, there].T for there in seen)
    ]
    assert_allclose(fit.numbers, traces, atol=1e-12)
    assert_array_equal(coordinates(Z, V).numbers, 3)
    square, all_variances = random_basis(np.random.default_rng(2), 12, 12), np.geomspace(5, 0.4, 12)
    S = (square.T * all_variances) @ square  # without a rest the least variance is noise
    fit = coordinates(Z, square, ridge=noise_ridge(all_variances, nan, 12))
    z, there = Z[5], seen[5]
    want = S[np.ix_(~there, there)] @ np.linalg.solve(S[np.ix_(there, there)], z[there])
    assert_allclose((fit.values[5] @ square)[~there], want, atol=1e-10)
    assert noise_ridge(np.ones(3), 0.0, 12) is noise_ridge(np.ones(3), nan, 12) is None
    assert_allclose(noise_ridge(np.array([3.0, 1.0, 0.5]), 1.0, 12), [0.5, 1e12, 1e12])


# ------------------------------------------------------------------------------ imputation


@pytest.mark.parametrize(("code", "dtype"), [(CODES[1], np.float64), *in_turn[:5]])
def test_transform_and_impute_are_by_what_is_predicted(code, dtype):
    model = made(code).set_params(center=True).fit(planted(300, dtype=dtype))
    Y = with_holes(planted(100, noise=0.5, seed=3), 0.5).astype(dtype)
    Y[0, 0], Y[5], Y[7, 2:] = -0.0, nan, nan  # two entries for three coordinates
    before, seen = Y.copy(), ~np.isnan(Y)
    V, mean = model.components_.astype(float), model.mean_.astype(float)
    C = np.array([predicted(y.astype(float) - mean, model) for y in Y])
    want = np.where(seen, Y, C @ V + mean)
    full, Z = model.impute(Y), model.transform(Y)
    assert Z.dtype == full.dtype == dtype
    if dtype == np.float64:  # least squares of few entries amplify the rounding of single precision
        assert_allclose(full, want, atol=1e-7)
        assert_allclose(Z, (want - mean) @ V.T, atol=1e-7)
        assert_allclose(model.transform(Y[:1]), Z[:1], atol=1e-12)
    assert full[seen].tobytes() == Y[seen].tobytes()  # what is there is kept bit for bit
    assert_array_equal(full[5], model.mean_)
    assert_array_equal(Y, before)
    assert not np.shares_memory(model.impute(full), full)
    for form in (sp.csr_array, sp.coo_matrix):
        assert_array_equal(model.impute(form(Y)), full)
        assert_allclose(model.transform(form(Y)), Z, atol=1e-12)
        assert_allclose(model.score(form(Y)), model.score(Y), rtol=1e-6)


# ------------------------------------------------------------------------------ score


def naive_score(model, X, weight):
    """Every entry is predicted from its row without a fifth of the entries, itself among them."""
    V, mean = model.components_.astype(float), model.mean_.astype(float)
    fold, error = np.random.default_rng(0).integers(5, size=X.shape), 0.0
    shown = np.ma.masked_invalid(X.astype(float))
    means = np.ma.average(shown, axis=0, weights=weight)
    total = np.ma.sum(weight[:, None] * (shown - means) ** 2)
    for i, z in enumerate(X - mean):
        for part in range(5):
            hidden = (fold[i] == part) & ~np.isnan(z)
            c = predicted(np.where(fold[i] == part, nan, z), model)
            error += weight[i] * np.sum((z - c @ V)[hidden] ** 2)
    return 1 - error / total


@each
@pytest.mark.parametrize(("n", "share"), [(3, 0.3), (64, 0.0), (90, 0.3)])
def test_the_score_is_that_of_predicting_hidden_entries(code, share, n):
    model, X = made(code).fit(planted(300)), with_holes(planted(n, seed=1), share)
    assert_allclose(model.score(X), naive_score(model, X, np.ones(n)), rtol=1e-8)
    weight = np.random.default_rng(1).uniform(0.5, 2, n)
    weight[n // 2 : n // 2 + 1] = 0
    found = model.score(X, sample_weight=weight)
    assert_allclose(found, naive_score(model, X, weight), rtol=1e-8, atol=1e-8)
    assert_allclose(model.score(X, sample_weight=np.full(n, 7.0)), model.score(X), rtol=1e-12)
    assert model.score(X) == model.score(X)


# ------------------------------------------------------------------------------ likelihood


def marginal(model, X):
    """Log-density of the entries that are there, row by row."""
    S, mean = model.get_covariance().astype(float), model.mean_.astype(float)
    result = np.zeros(len(X))
    for i, x in enumerate(X.astype(float)):
        there = np.flatnonzero(~np.isnan(x))
        if len(there):
            density = multivariate_normal(mean[there], S[np.ix_(there, there)])
            result[i] = density.logpdf(x[there])
    return result


@pytest.mark.filterwarnings("ignore:No entry of a batch is an outlier:UserWarning")
@pytest.mark.parametrize("d", [12, 300])  # one variance of the noise, one for each column
@pytest.mark.parametrize(("code", "dtype"), in_turn[1:])
def test_the_likelihood_is_the_marginal_one_of_what_is_there(code, d, dtype):
    model = made(code).fit(with_holes(planted(400, d, 0.5), 0.05, seed=1).astype(dtype))
    X = with_holes(planted(30, d, 0.5, seed=2), 0.3).astype(dtype)
    X[:5] = planted(5, d, 0.5, seed=3)
    X[5, 1:] = X[6, 2:] = X[7] = nan  # fewer entries than components, and none
    X[9:12, 4:] = nan  # equal patterns
    found, expected = model.score_samples(X), marginal(model, X)
    assert found.shape == (30,)
    assert found[7] == 0
    # 1e-7 is what its eigenvalues leave of noise that is a millionth of the signal
    assert_allclose(found, expected, rtol=1e-7 if dtype == np.float64 else 1e-3)
    assert_allclose(model.score_samples(sp.csr_array(X)), found, rtol=1e-9)
    assert_allclose(model.score_samples(X[8:9]), found[8:9], rtol=1e-12)
    assert_array_equal(model.score_samples(X[:5]), found[:5])  # whole rows as ever


@pytest.mark.parametrize("noise", [1e-2, 1e-8, 1e-12])
def test_little_noise_does_not_cancel(noise):
    # covariance [[1 + v, 1 - v], [1 - v, 1 + v]] of the first two columns; the third has v alone
    V, v = np.array([[1, 1, 0]]) / np.sqrt(2), noise
    model = GaussianModel(V, np.array([2 + v]), v)
    x = np.array([[3.0, nan, nan], [nan, nan, 2 * np.sqrt(v)], [1, 1, nan]])
    expected = [
        -0.5 * (np.log(2 * np.pi * (1 + v)) + 9 / (1 + v)),
        -0.5 * (np.log(2 * np.pi * v) + 4),
        -0.5 * (2 * np.log(2 * np.pi) + np.log((2 + v) * v) + 2 / (2 + v)),
    ]
    assert_allclose(model.log_density_of_seen(x), expected, rtol=1e-7)


# ------------------------------------------------------------------------------ edges


def edges():
    X, rng = with_holes(planted(120, noise=0.1), 0.2), np.random.default_rng(1)
    whole, order = planted(120), rng.permuted(np.tile(np.arange(20), (120, 1)), axis=1)
    few = np.where(order < np.arange(120)[:, None] % 3, whole, nan)
    some, columns, late, loud, shifted = (A.copy() for A in (X, X, X, whole, whole))
    some[::3] = columns[:, [2, 7]] = late[:40, [2, 7]] = nan
    loud[:, 2] += 50 * rng.standard_normal(120)
    shifted[:, 2] += 50
    return {
        "no entries": np.full((90, 20), nan),
        "no entries at first": np.concatenate([np.full((60, 20), nan), X]),
        "no entries at last": np.concatenate([X, np.full((90, 20), nan)]),
        "rows without entries": some,
        "fewer entries than components": few,
        "few entries at last": np.concatenate([X, few]),
        "columns that are never there": columns,
        "columns that come late": late,
        "one row": X[:1],
        "two rows": X[:2],
        "one whole row": whole[:1],
        "constant": np.ones((90, 20)),
        "constant, with holes": with_holes(np.full((90, 20), 7.0), 0.3),
        "constant at last": np.concatenate([X, np.ones((200, 20))]),
        "zeros": np.zeros((90, 20)),
        "zeros, with holes": with_holes(np.zeros((90, 20)), 0.3),
        "zeros between": whole * (rng.random((120, 1)) < 0.4),
        "duplicates": np.repeat(X[:4], 30, axis=0),
        "one entry": np.where(np.arange(20) == 4, 1.0, nan)[None],
        "rank one": np.outer(np.arange(90.0), np.ones(20)),
        "a persistent outlier": loud,
        "a constant outlier": shifted,
        "noise": rng.standard_normal((120, 20)),
        "one spike": np.outer(np.arange(90) == 51, np.eye(20)[0]),
        "outliers only": rng.standard_normal((100, 20)) * (rng.random((100, 20)) < 0.1),
        "far": X + 1e8,
        "huge": 1e100 * X,
        "tiny": 1e-100 * X,
    }


EDGES = edges()
VARIANTS = """
SubspaceTracker(3, forgetting_factor=0.0, fill="subspace", center=False)
SubspaceTracker(3, forgetting_factor=0.95)
SubspaceTracker(3, detect_changes=ChangeDetection(2), batch_size=7)
SubspaceTracker(3, batch_size=1)
SubspaceTracker(3, init=np.eye(3, 20), detect_changes=True)
RobustSubspaceTracker(3)
RobustSubspaceTracker(3, init=np.eye(3, 20), forgetting_factor=0.0, center=False)
RobustSubspaceTracker(3, support_threshold=OutlierSupport(0.0, 0.0))
RobustSubspaceTracker(3, detect_changes=ChangeDetection(2))
RobustSubspaceTracker(20, forgetting_factor=0.98, n_iter=2)
RobustSubspaceTracker(3, batch_size=1, init=FirstSubspace(n_rows=1))
AlternatingProjections(3)
AlternatingProjections(3, center=True)
AlternatingProjections(20)
""".strip().splitlines()
PLAIN = ("SubspaceTracker(3, forgetting_factor=0.95)", "RobustSubspaceTracker(3)")
PLAIN += ("AlternatingProjections(3)",)


@pytest.mark.filterwarnings("ignore::UserWarning")  # test_robust_tracking.py has them
@pytest.mark.parametrize("code", VARIANTS)
def test_edges_give_finite_numbers_and_an_orthonormal_basis(code):
    """The plain ones meet every edge, each of the others a seventh of them."""
    for j, kind in enumerate(EDGES):
        if code in PLAIN or VARIANTS.index(code) % 7 == j % 7:
            with naming(kind):
                assert_survives(code, kind)


def assert_survives(code, kind):
    # a step for each row or two takes as long as a batch
    X, model = EDGES[kind][:: 3 if re.search(r"batch_size=[12]\b", code) else 1], made(code)
    model.fit(X)
    seen, some = ~np.isnan(X), X[::5]
    assert_finite_and_orthonormal(model)
    for Y in (some, with_holes(planted(10), 0.5)):
        full = model.impute(Y)
        assert_finite_and_orthonormal(model, model.transform(Y), full)
        assert_array_equal(full[~np.isnan(Y)], Y[~np.isnan(Y)])
        assert not hasattr(model, "score") or model.score(Y) <= 1 or "Alternating" in code
    assert model.n_samples_seen_ == len(X)
    if hasattr(model, "decompose"):
        full, sparse = model.decompose(some)
        assert_finite_and_orthonormal(model, full, sparse)
        assert_array_equal(sparse[~seen[::5]], 0)
    if hasattr(model, "outlier_mask_"):
        assert model.outlier_mask_.shape == X.shape
        assert not model.outlier_mask_[~seen].any()
        # rows that are fitted exactly tell nothing of a column that the last of them lack
        known = seen[-1:] if kind.startswith("constant") else seen
        assert np.isfinite(model.support_threshold_[known.any(axis=0)]).all()
    if hasattr(model, "low_rank_"):
        assert_finite_and_orthonormal(model, model.low_rank_, model.sparse_, model.error_)
        assert_array_equal(model.sparse_[~seen], 0)
        size = np.linalg.norm((X - model.mean_)[seen])
        left = (X - model.low_rank_ - model.sparse_)[seen]
        assert np.linalg.norm(left) <= 1.0001 * model.error_ * size + 1e-12
    elif not kind.startswith(("huge", "far")):
        assert len(model.components_) == model.n_components_ <= min(model.n_components, len(X))
        assert_finite_and_orthonormal(model.partial_fit(planted(50)))


@settings(max_examples=10, derandomize=True, deadline=None, database=None)
@given(
    parts=st.lists(st.tuples(st.sampled_from(sorted(EDGES)), st.integers(1, 60)), max_size=5),
    code=st.sampled_from(VARIANTS[:5]),
)
def test_edges_in_any_order_give_finite_numbers(parts, code):
    model = made(code)
    for kind, n in [*parts, ("two rows", 2)]:
        model.partial_fit(EDGES[kind][:n])
        rows = EDGES["few entries at last"]
        assert_finite_and_orthonormal(model, model.transform(rows), model.impute(rows))


@pytest.mark.parametrize("tracker", [SubspaceTracker, RobustSubspaceTracker])
def test_it_is_told_where_rows_have_no_more_entries_than_components(tracker):
    """Two of four entries of each row: with two components any values of the others fit."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 4)) @ np.diag([3.0, 2.0, 1.0, 0.5]) @ random_basis(rng, 4, 4)
    X[np.arange(200)[:, None], (np.arange(200)[:, None] + [0, 1]) % 4] = np.nan
    with pytest.warns(UserWarning, match="n_components=2 leaves too few entries to know the noise"):
        tracker(2).fit(X)
    tracker(1).fit(X)
