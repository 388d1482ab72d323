"""StreamingPCA against numpy's SVD of all rows, and against the habits of scikit-learn's PCA.

Tolerances: a backward stable update is off by a few eps times the largest singular value, and a
direction by that divided by its gap. The data of `rows` has leading gaps of at least a hundredth of
the largest value, so that 1e-9 leaves room for thousands of updates.

SPCA and SAPCA against Algorithm 3 of Grammenos et al. (2019), line by line, with d x d bases.

The oracle keeps the letters and the shapes of the paper: columns are samples.

Streams that go on from a summary, and summaries that nothing would read.
"""

import re
from itertools import pairwise

import joblib
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from golden_cases import made
from helpers import fitted_attributes, peak_bytes, random_basis, sine_of_orthonormal, svd_of
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA

from fedpca_sklearn import (
    ContributionBounds,
    EnergyBounds,
    RankRule,
    StreamingPCA,
    Subspace,
    make_power_law,
    make_spiked,
    subspace_distance,
)

IRIS = load_iris().data
FORMS = {"dense": np.array, "csr": sp.csr_array, "csc": sp.csc_matrix, "coo": sp.coo_array}


def rows(n, d, seed=0, mean=3.0):
    """Rows with a decaying spectrum in a random basis, away from the origin."""
    rng = np.random.default_rng(seed)
    scale = np.maximum(10 * 0.8 ** np.arange(d), 0.1)
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return rng.standard_normal((n, d)) * scale @ basis + mean * rng.standard_normal(d)


def assert_is_pca_of(pca, X, k, weight=None, center=True, tol=1e-9):
    """All fitted attributes are those of the SVD of the (weighted) rows."""
    mean, s, V = svd_of(X, weight, center)
    n, d = (len(X) if weight is None else weight.sum()), X.shape[1]
    variance, total = s**2 / (n - 1), (s**2).sum() / (n - 1)
    assert pca.n_components_ == len(pca.components_) == len(pca.singular_values_) == k
    assert_allclose(pca.mean_, mean, atol=tol * np.abs(X).max())
    assert_allclose(pca.singular_values_, s[:k], atol=tol * s[0])
    assert_allclose(pca.components_, V[:k], atol=tol)
    assert_allclose(pca.explained_variance_, variance[:k], atol=tol * total)
    assert_allclose(pca.explained_variance_ratio_, variance[:k] / total, atol=tol)
    assert_allclose(pca.noise_variance_, variance[k:].sum() / max(d - k, 1), atol=tol * total)


def stream(pca, batches):
    for batch in batches:
        pca.partial_fit(batch)
    return pca


def every(b, X):
    return [X[i : i + b] for i in range(0, len(X), b)]


# ------------------------------------------------------------------------------ any cutting


CUTS = [  # rows, features, and where a batch begins
    (90, 60, range(91)),
    (200, 7, range(201)),
    (330, 256, [0, 1, 2, 17, 300, 329, 330]),
    (60, 400, [0, 25, 50, 60]),
    (9, 300, range(10)),
]


@pytest.mark.parametrize("solver", ["auto", "gram", "qr"])
@pytest.mark.parametrize(
    ("n", "d", "bounds"), CUTS, ids=lambda v: str(np.size(v)) if np.ndim(v) else str(v)
)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("center", [True, False])
def test_any_cutting_and_weights_give_the_svd_of_all_rows(
    n, d, bounds, solver, form, weighted, center
):
    rng, X = np.random.default_rng(1), rows(n, d)
    X = X if form == "dense" else X * (rng.random(X.shape) < 0.3)
    weight = rng.integers(1, 4, n) if weighted else np.ones(n, int)
    weight[1:2] = not weighted  # a row without weight
    pca = StreamingPCA(5, svd_solver=solver, center=center, oversampling=200 if d > 256 else "auto")
    for a, b in pairwise(bounds):
        if weight[a:b].any():
            given = {"sample_weight": weight[a:b]} if weighted else {}
            pca.partial_fit(FORMS[form](X[a:b]), **given)
    repeated = np.repeat(X, weight, axis=0)
    assert_is_pca_of(pca, repeated, 5, center=center)
    assert pca.n_samples_seen_ == len(repeated)
    # nothing was truncated: all singular values, not only the shown ones
    s, kept = svd_of(repeated, center=center)[1], pca.subspace_.singular_values
    assert_allclose(kept, s[: len(kept)], atol=1e-9 * s[0])
    assert np.abs(s[len(kept) :]).max(initial=0) < 1e-6 * s[0]


def test_parameters_may_change_between_batches_or_are_refused():
    X = rows(90, 20)
    pca = StreamingPCA(5).partial_fit(X[:30])
    assert_is_pca_of(pca.set_params(n_components=2).partial_fit(X[30:60]), X[:60], 2)
    assert_is_pca_of(pca.set_params(n_components=9).partial_fit(X[60:]), X, 9)
    pca.set_params(rank_rule=EnergyBounds(0.5, 0.6)).partial_fit(X)
    assert len(pca.rank_history_) > 0
    pca.set_params(rank_rule=None).partial_fit(X)
    assert not hasattr(pca, "rank_history_")
    with pytest.raises(ValueError, match="center=False differs"):
        pca.set_params(center=False).partial_fit(X)


# ------------------------------------------------------------------------------ scikit-learn's PCA


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("n_components", [1, 2, 4, None, 0.95])
def test_agrees_with_pca_of_all_rows(n_components, whiten):
    ours = StreamingPCA(n_components, whiten=whiten).fit(IRIS)
    theirs = PCA(n_components, whiten=whiten, svd_solver="full").fit(IRIS)
    names = "components_ mean_ singular_values_ explained_variance_ explained_variance_ratio_"
    for name in [*names.split(), "noise_variance_", "n_components_", "n_samples_"]:
        assert_allclose(getattr(ours, name), getattr(theirs, name), atol=1e-12, err_msg=name)
    Z = ours.transform(IRIS)
    assert_allclose(Z, theirs.transform(IRIS), atol=1e-11)
    assert_allclose(ours.inverse_transform(Z), theirs.inverse_transform(Z), atol=1e-12)
    # whitening is about coordinates; the covariance of the rows does not depend on it
    theirs.set_params(whiten=False)
    assert_allclose(ours.get_covariance(), theirs.get_covariance(), atol=1e-12)
    assert_allclose(ours.get_precision(), theirs.get_precision(), rtol=1e-9)
    assert_allclose(ours.score_samples(IRIS), theirs.score_samples(IRIS), rtol=1e-10)
    assert_allclose(ours.score(IRIS), theirs.score(IRIS), rtol=1e-12)
    weight = np.arange(150) % 3
    repeated = theirs.score(np.repeat(IRIS, weight, axis=0))
    assert_allclose(ours.score(IRIS, sample_weight=weight), repeated, rtol=1e-12)


def test_noise_variance_counts_truncated_directions_and_is_zero_where_all_are_kept():
    X = np.random.default_rng(0).standard_normal((600, 400)) * np.r_[30.0, np.ones(399)]
    for pca in StreamingPCA(3).fit(X), stream(StreamingPCA(3), every(3, X)):
        left = X.var(axis=0, ddof=1).sum() - pca.explained_variance_.sum()
        assert_allclose(pca.noise_variance_, left / 397, rtol=1e-9)
    for n, d in [(100, 3), (3, 100), (12, 300), (1, 4)]:
        whole = StreamingPCA(min(n, d)).fit(rows(n, d))
        assert whole.noise_variance_ == 0
        assert np.isfinite(whole.score(rows(n, d)))
        assert StreamingPCA().fit(rows(n, d)).n_components_ == min(n, d)


@pytest.mark.parametrize(
    ("X", "fraction", "expected"),
    [(IRIS, 0.95, 2), (IRIS, 0.01, 1), (np.random.RandomState(0).rand(5, 20), 0.5, 2)],
)
def test_a_fraction_keeps_the_fewest_components_that_explain_more(X, fraction, expected):
    pca = StreamingPCA(fraction).fit(X)
    assert (pca.n_components_, pca.n_components) == (expected, fraction)
    # four rows along each axis: mean zero, singular values 4, 2, 2, 2, 2, and no rounding at all
    axes = np.diag([2.0, 1, 1, 1, 1])
    X = np.concatenate([axes, -axes, axes, -axes])
    for reached, fraction in enumerate([0.5, 0.625, 0.75, 0.875], start=1):
        assert StreamingPCA(fraction).fit(X).n_components_ == reached + 1
        assert StreamingPCA(np.nextafter(fraction, 0)).fit(X).n_components_ == reached


def test_a_fraction_is_reached_by_a_wide_stream():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 8)) * np.linspace(3, 1, 8) @ random_basis(rng, 8, 400) * 10
    X += rng.standard_normal((3000, 400))
    mean, s, V = svd_of(X)
    for pca in StreamingPCA(0.9).fit(X), stream(StreamingPCA(0.9), every(77, X)):
        captured = np.square((X - mean) @ pca.components_.T).sum() / (s @ s)
        best = 1 + np.searchsorted(np.cumsum(s**2), 0.9 * (s @ s), side="right")
        assert captured >= 0.9
        assert_allclose(pca.explained_variance_ratio_.sum(), captured, rtol=1e-4)
        assert best <= pca.n_components_ <= best * 1.05  # one pass costs little rank
        assert sine_of_orthonormal(V[:8], pca.components_) < 0.05


# ------------------------------------------------------------------------------ rank adaptation


def exact_blocks(singular_values, d, n_blocks, b=64, seed=0):
    """Blocks with mean zero, the same right singular vectors and these singular values."""
    rng = np.random.default_rng(seed)
    k = len(singular_values)
    V = random_basis(rng, k, d)
    for _ in range(n_blocks):
        U = rng.standard_normal((b, k))
        yield np.linalg.qr(U - U.mean(axis=0))[0] * singular_values @ V


HARMONIC = 1 / np.arange(1, 25)  # E_r = (1 / r) / H_r: .0551 at 7, .0680 at 6; .0301 at 11, .0269


class Greedy(RankRule):
    def __init__(self, direction=1, hold_off=0):
        self.direction = direction
        self.hold_off = hold_off

    def step(self, rank, subspace):
        return self.direction


SHARES, NEXT = ContributionBounds(lower=0.03, upper=0.06), ContributionBounds(0.0, 0.06, hold_off=4)
ENERGY = EnergyBounds(lower=0.9, upper=0.95)  # 5 components suffice, 8 are not too many
RANKS = [  # start, rule, singular values of blocks, and the ranks after these
    (None, SHARES, HARMONIC, [2, 3, 4, 5, 6] + 5 * [7]),
    (20, SHARES, HARMONIC, [*range(19, 10, -1), 11]),
    (1, NEXT, HARMONIC, np.repeat([1, 2, 3], [4, 5, 1])),
    (1, ENERGY, HARMONIC, [2, 3, 4, 5, 5]),
    (10, EnergyBounds(), [5.0, 4.0, 3.0], [9, 8, 7, 6, 5, 4, 3, 3]),
    (10, ContributionBounds(), [5.0, 4.0, 3.0], [9, 8, 7, 6, 5, 4, 3, 3]),
    (None, Greedy(), [5.0, 3.0, 2.0], [2, 3, 3, 3]),  # into directions with energy only
    (5, Greedy(-1), [5.0, 3.0, 2.0], [4, 3, 2, 1, 1]),
    (9, Greedy(-4), np.arange(9, 0, -1.0), [5, 1, 1]),
]


@pytest.mark.parametrize("d", [40, 400])
@pytest.mark.parametrize(("start", "rule", "values", "ranks"), RANKS, ids=str)
def test_the_rank_follows_its_rule_from_block_to_block(start, rule, values, ranks, d):
    blocks, k = list(exact_blocks(np.asarray(values), d, len(ranks))), ranks[-1]
    pca = stream(StreamingPCA(start, rank_rule=rule), blocks)
    assert_array_equal(pca.rank_history_, ranks)
    assert pca.n_components_ == len(pca.components_) == k
    assert_allclose(pca.singular_values_, np.sqrt(len(ranks)) * np.asarray(values)[:k], rtol=1e-9)
    by_rows = StreamingPCA(start, rank_rule=rule, block_size=64).fit(np.concatenate(blocks))
    assert_array_equal(by_rows.rank_history_, ranks)


@pytest.mark.parametrize(("n", "center"), [(5, True), (6, True), (5, False), (4, False)])
def test_the_rank_stays_until_as_many_rows_have_come_as_its_directions_need(n, center):
    """Five directions: of five rows, or of six about their mean, which span one less."""
    pca = StreamingPCA(5, rank_rule=Greedy(-1), block_size=n, center=center).fit(rows(n, 8))
    assert pca.rank_history_[0] == (4 if n >= 5 + center else 5)


def test_the_rank_is_bounded_by_features_and_short_memory_and_steps_are_whole_numbers():
    full = StreamingPCA(2, rank_rule=Greedy(), block_size=30).fit(rows(600, 6))
    assert_array_equal(full.rank_history_, [3, 4, 5] + [6] * 17)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((600, 2)) @ rng.standard_normal((2, 20))
    pca = StreamingPCA(15, rank_rule=ENERGY, forgetting_factor=0.9, block_size=20).fit(X)
    assert pca.n_components_ <= 2  # two directions hold everything, whatever is forgotten
    with pytest.raises(TypeError, match=r"Greedy.step must return an integer, got 0.5"):
        StreamingPCA(2, rank_rule=Greedy(0.5)).fit(rows(600, 6))


# ------------------------------------------------------------------------------ edges, refusals


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("d", [5, 300])
def test_a_single_row_and_a_constant_column_are_no_surprises(dtype, d):
    X = rows(60, d).astype(dtype)
    for constant in (X[:1], np.full((9, d), 1e6, dtype)):  # nothing is divided by its deviation
        pca = StreamingPCA(2, whiten=True).fit(constant)
        assert_array_equal(pca.transform(X), 0)
        assert_array_equal(pca.explained_variance_ratio_, 0)
    pca = StreamingPCA(2).partial_fit(X[:1])
    likelihood = pca.score_samples(X[:5])  # any warning is an error here
    assert likelihood[0] > likelihood[1:].max()
    assert not np.isnan(pca.get_precision()).any()
    X[:, 2] = 7.7
    Z = (pca := StreamingPCA(5, whiten=True).fit(X)).transform(X)
    if dtype == "f8":
        assert_array_equal(pca.score_samples(np.full((1, d), 1e200)), -np.inf)
    assert_allclose(pca.components_[:4, 2], 0, atol=1e-12 if dtype == "f8" else 1e-5)
    assert_allclose(Z[:, :4].std(axis=0, ddof=1), 1, rtol=1e-9 if dtype == "f8" else 1e-3)


GOOD = rows(20, 6)
HOLE = np.where(np.arange(120).reshape(20, 6) == 77, np.nan, GOOD)


def broken():
    yield GOOD
    raise OSError("disk on fire")


BAD = [  # rows, a weight, the methods that refuse them, and words of the error
    (HOLE, None, "fit partial_fit transform score_samples", "X contains NaN. SubspaceTracker"),
    (lambda: iter([]), None, "fit partial_fit", "at least one row"),
    (GOOD, np.ones(3), "fit partial_fit score", "(3,)"),
    (GOOD, -np.ones(20), "score", "Negative values in"),
    (GOOD, np.zeros(20), "fit score", "sample_weight must have a positive sum"),
    ([GOOD], np.ones(20), "fit partial_fit", "sample_weight"),
    (lambda: iter([GOOD, GOOD, HOLE]), None, "fit partial_fit", "NaN"),
    (lambda: iter([GOOD, GOOD[:, :4]]), None, "fit partial_fit", "4 features"),
    (lambda: iter([GOOD, None]), None, "fit partial_fit", "2D"),
    (broken, None, "fit partial_fit", "disk on fire"),
    (GOOD, None, "inverse_transform", "X must have shape (n_samples, "),
    (lambda: iter([GOOD]), None, "transform score_samples", "must be rows in one array here, got"),
]


@pytest.mark.parametrize(("X", "weight", "methods", "words"), BAD, ids=range(len(BAD)))
def test_bad_data_is_explained_and_leaves_no_trace(X, weight, methods, words):
    rule = StreamingPCA(2, rank_rule=ContributionBounds(), block_size=4)
    for pca in StreamingPCA(2), StreamingPCA(2, block_size=4).fit(GOOD), rule.fit(GOOD):
        for method in methods.split():
            if hasattr(pca, "components_") or method == "fit":
                before = joblib.hash(vars(pca))
                given = {} if weight is None else {"sample_weight": weight}
                with pytest.raises((ValueError, TypeError, OSError), match=re.escape(words)):
                    getattr(pca, method)(X() if callable(X) else X, **given)
                assert joblib.hash(vars(pca)) == before


# ------------------------------------------------------------------------------ Algorithm 3


def svd(M, r):
    U, s, _ = np.linalg.svd(M, full_matrices=False)
    return U[:, :r], s[:r]


def algorithm_3(Y, r, b, alpha=0.0, beta=1.0, lam=1.0):
    """Yield the rank, U and sigma after each block; lambda acts on the past as in eq. 1.

    The canonical vector e_r is made orthonormal to U, the next one if it is in the span.
    """
    d, U = len(Y), None
    for start in range(0, Y.shape[1], b):
        block = Y[:, start : start + b]
        if U is None:
            U, sigma = svd(block, r)
        else:
            Z = U.T @ block
            Q, R = np.linalg.qr(block - U @ Z)
            zeros = np.zeros((len(R), r))
            X = np.block([[lam * np.diag(sigma), Z], [zeros, R]])
            Up, sigma = svd(X, r)
            U = np.hstack([U, Q]) @ Up
        if sigma[-1] > beta * sigma.sum() and r < d:
            r += 1
            axis, e = r - 1, np.zeros(d)
            while np.linalg.norm(e) < 1e-4:
                e = np.eye(d)[axis] - U @ U[axis]
                axis = (axis + 1) % d
            e -= U @ (U.T @ e)
            U = np.column_stack([U, e / np.linalg.norm(e)])
            sigma = np.append(sigma, 0.0)
        elif sigma[-1] < alpha * sigma.sum() and r > 1:
            r -= 1
            U, sigma = U[:, :r], sigma[:r]
        yield r, U, sigma


def paper(r, b, **options):
    return StreamingPCA(r, block_size=b, oversampling=0, center=False, **options)


def canonical(alpha, beta):
    return ContributionBounds(alpha, beta, growth="canonical")


WHITE = np.random.default_rng(0).standard_normal((300, 5))
CASES = {  # rows, of a block, alpha, beta, rank at first
    "grows": (make_power_law(1000, 60, alpha=0.01, random_state=0), 50, 0.01, 0.1, 1),
    "to and fro": (make_power_law(1000, 60, alpha=1.0, random_state=0), 50, 0.02, 0.04, 5),
    "narrow": (make_power_law(1000, 60, alpha=1.0, random_state=0), 50, 0.08, 0.12, 3),
    # the paper has b >= r, and looks at the rank after the first block too
    "as many rows": (make_power_law(120, 40, alpha=2.0, random_state=1), 6, 0.1, 0.3, 6),
    # an axis is added, and taken back in the next block
    "two directions": (WHITE[:200, :2] @ WHITE[:2].repeat(2, axis=1), 20, 0.01, 0.1, 2),
    "all directions": (WHITE, 30, 0.0, 0.1, 4),
}


@pytest.mark.parametrize(("X", "b", "alpha", "beta", "start"), CASES.values(), ids=CASES)
def test_sapca_with_canonical_vectors_is_algorithm_3(X, b, alpha, beta, start):
    pca, ranks = paper(start, b, rank_rule=canonical(alpha, beta)), [start]
    for i, (rank, U, sigma) in enumerate(algorithm_3(X.T, start, b, alpha, beta)):
        pca.partial_fit(X[b * i : b * (i + 1)])
        ranks.append(rank)
        assert pca.n_components_ == pca.rank_history_[-1] == rank
        assert subspace_distance(pca.components_, U.T) < 1e-8
        assert_allclose(pca.singular_values_, sigma, rtol=1e-9, atol=1e-7 * sigma[0])
    assert len(set(ranks)) > 1
    if ranks[1] == start:
        return
    centred = paper(start, b, rank_rule=canonical(alpha, beta)).set_params(center=True).fit(X)
    assert len(centred.rank_history_) == len(ranks) - 1


@pytest.mark.parametrize("lam", [0.7, 0.9, 1.0])
@pytest.mark.parametrize("d", [40, 300])
def test_forgetting_by_blocks_is_lambda_of_equation_1(lam, d):
    X = make_power_law(1000, d, alpha=1.0, random_state=0)
    pca = paper(10, 50, forgetting_factor=lam, forgetting="blocks")
    for i, (_, U, sigma) in enumerate(algorithm_3(X.T, 10, 50, lam=lam)):
        pca.partial_fit(X[50 * i : 50 * (i + 1)])
        assert subspace_distance(pca.components_, U.T) < 1e-10
        assert_allclose(pca.singular_values_, sigma, rtol=1e-10)
    weights = np.repeat(lam ** np.arange(38.0, -1, -2), 50)
    assert_allclose(pca.subspace_.n_samples, weights.sum(), rtol=1e-12)
    assert_allclose(pca.subspace_.scatter, weights @ np.sum(X**2, axis=1), rtol=1e-12)
    assert pca.n_samples_seen_ == 1000


def test_blocks_are_cut_within_batches_and_the_mean_fades_as_well():
    da = pytest.importorskip("dask.array")
    X = make_power_law(120, 6, alpha=1.0, random_state=0) + 3
    pca = StreamingPCA(3, block_size=20, forgetting_factor=0.5, forgetting="blocks")
    w = np.repeat(0.25 ** np.arange(5.0, -1, -1), 20)
    mean = w @ X / w.sum()
    want = np.linalg.svd(np.sqrt(w)[:, None] * (X - mean))[1][:3]
    for rows in X, da.from_array(X, chunks=(40, 6)), iter(np.split(X, 6)):
        pca.fit(rows)
        assert_allclose(pca.mean_, mean, rtol=1e-12)
        assert_allclose(pca.singular_values_, want, rtol=1e-10)


# ---------------------------------------------------------------- going on from a summary

GOING_ON = """
StreamingPCA()
StreamingPCA(5)
StreamingPCA(5, svd_solver="qr", whiten=True)
StreamingPCA(5, forgetting_factor=0.99)
StreamingPCA(5, forgetting_factor=0.9, forgetting="blocks")
StreamingPCA(5, oversampling=3, block_size=50)
StreamingPCA(rank_rule=ContributionBounds(0.02, 0.1), block_size=64)
StreamingPCA(rank_rule=ContributionBounds(0.02, 0.1, growth="canonical"), block_size=64)
""".strip().splitlines()


def rows_to_go_on(n, d, dtype=np.float64):
    X = np.random.default_rng(0).standard_normal((n, d)) / np.sqrt(1 + np.arange(d)) + 5
    return X.astype(dtype)


@pytest.mark.parametrize("d", [20, 300])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("code", GOING_ON)
def test_it_goes_on_from_a_summary_as_the_original(code, dtype, d):
    X = pd.DataFrame(rows_to_go_on(1200, d, dtype)).add_prefix("x")
    stays = made(code).partial_fit(X[:700])
    params, adapts = stays.get_params(deep=False), stays.rank_rule is not None
    wanted = params.pop("n_components")
    summary, seen = Subspace.from_bytes(stays.subspace_.to_bytes()), stays.n_samples_seen_
    goes_on = StreamingPCA.from_subspace(
        summary, stays.n_components_ if adapts else wanted, n_samples_seen=seen, **params
    )
    names = set(fitted_attributes(stays)) - {"rank_history_", "subspace_", "feature_names_in_"}
    assert {"components_", "mean_", "noise_variance_", "n_samples_seen_"} < names
    tol = 1e-12 if dtype == np.float64 else 1e-5
    for start, stop in (700, 701), (701, 1100), (1100, 1200):
        for name in names:
            found, expected = (np.asarray(getattr(m, name), float) for m in (goes_on, stays))
            largest = np.abs(expected).max()
            assert_allclose(found, expected, rtol=tol, atol=tol * largest, err_msg=name)
        assert_allclose(goes_on.subspace_.n_samples, stays.subspace_.n_samples, rtol=1e-12)
        for model in (goes_on, stays):
            model.partial_fit(X[start:stop])
    assert list(goes_on.feature_names_in_) == list(X.columns)
    if adapts:
        history = goes_on.rank_history_
        assert_array_equal(history, stays.rank_history_[-len(history) :])


def test_what_a_summary_knows_is_the_default_when_going_on_from_it():
    summary = Subspace.from_rows(rows(60, 8), center=False)
    pca = StreamingPCA.from_subspace(summary, 3)
    assert (pca.n_samples_seen_, pca.n_samples_, pca.n_features_in_) == (60, 60, 8)
    assert not pca.center
    half = StreamingPCA.from_subspace(summary.decay(0.001), 3)
    assert half.n_samples_seen_ == 8  # as many rows as directions, at the least
    assert half.n_components_ == 3


@pytest.mark.parametrize(
    "code",
    ["StreamingPCA(2)", "OjaPCA(2, random_state=0)", "SubspaceTracker(2)", "FederatedPCA(2)"],
)
def test_a_summary_that_would_not_be_read_cannot_be_assigned(code):
    X, model = rows_to_go_on(60, 8), made(code)
    with pytest.raises(AttributeError, match=r"subspace_.*StreamingPCA\.from_subspace"):
        model.subspace_ = Subspace.from_rows(X)
    Z = model.fit(X).transform(X)
    for name in ("n_samples_", "n_samples_seen_"):
        with pytest.raises(AttributeError, match=name):
            setattr(model, name, getattr(model, name))
    model.components_ = -model.components_  # is what transform reads
    assert_array_equal(model.transform(X), -Z)
    V = model.components_
    model.fit(X).mean_ = np.zeros(8)  # before any other is read
    assert_allclose(model.transform(X), -X @ V.T, atol=1e-10)


def test_the_likelihood_of_sparse_rows_with_entries_in_two_parts():
    X = sp.random(60, 6, 0.2, format="csr", random_state=0)
    parts = np.repeat(X.data / 2, 2), np.repeat(X.indices, 2), 2 * X.indptr
    pca = StreamingPCA(2).fit(X)
    found = pca.score_samples(sp.csr_array(parts, X.shape))
    assert_allclose(found, pca.score_samples(X.toarray()))


@pytest.mark.parametrize("seed", [1, 2])
def test_the_likelihood_of_large_columns_that_are_explained_is_that_of_float64(seed):
    X = make_power_law(900, 700, alpha=1.0, random_state=seed)
    X[:, :4] *= [5e3, 1e4, 2e3, 1e3]
    single, double = (StreamingPCA(4).fit(X.astype(d)).score(X.astype(d)) for d in ("f4", "f8"))
    assert_allclose(single, double, rtol=1e-6)


def test_the_likelihood_of_rows_whose_noise_is_lost_in_float32_is_that_of_eps_of_noise():
    X, _ = make_spiked(600, 20, spikes=(3e8, 1e8, 1e8), random_state=0)
    single, double = (StreamingPCA(3).fit(X.astype(d)) for d in ("f4", "f8"))
    assert single.noise_variance_ == 0
    eps = np.finfo("f4").eps * single.explained_variance_[0] / double.noise_variance_
    assert -20 / 2 * np.log(eps) < single.score(X.astype("f4")) - double.score(X) < 0


def test_the_likelihood_is_normal_also_where_the_noise_is_above_a_variance():
    pca = StreamingPCA(2).fit(IRIS)
    pca.noise_variance_ = 2 * pca.explained_variance_[1]
    normal = multivariate_normal(pca.mean_, pca.get_covariance())
    assert_allclose(pca.score_samples(IRIS), normal.logpdf(IRIS), rtol=1e-10)


def test_a_likelihood_of_few_rows_finds_the_model_once(monkeypatch):
    """Its decomposition took 300 times as long as one row."""
    X = make_power_law(400, 300, alpha=1.0, random_state=0)
    pca = StreamingPCA(20).fit(X)
    first = pca.score_samples(X[:5])
    svd = np.linalg.svd
    monkeypatch.setattr(np.linalg, "svd", None)
    assert_array_equal(pca.score_samples(X[:5]), first)
    monkeypatch.setattr(np.linalg, "svd", svd)
    pca.noise_variance_ = 2 * pca.noise_variance_  # another model
    pca.explained_variance_ = 2 * pca.explained_variance_
    assert not np.allclose(pca.score_samples(X[:5]), first, rtol=1e-3)


@pytest.mark.parametrize("r", [1, 20])
def test_rows_that_are_columns_in_memory_are_not_copied(r):
    """As those of a data frame are: their products took 9 times as long as those of others."""
    X = np.asfortranarray(make_power_law(2000, 400, alpha=1.0, random_state=0))
    pca = StreamingPCA(r).fit(X)
    assert_allclose(pca.transform(X), (X - pca.mean_) @ pca.components_.T, atol=1e-12)
    assert peak_bytes(lambda: pca.transform(X)) < X.nbytes / 8 + 3 * 8 * r * len(X)


def test_scaled_rows_come_back_without_large_copies():
    X = make_power_law(4000, 400, alpha=1.0, random_state=0).astype(np.float32)
    pca = StreamingPCA(5, scale=True).fit(X)
    Z = pca.transform(X)
    back = (Z @ pca.components_) * pca.scale_ + pca.mean_
    assert_array_equal(pca.inverse_transform(Z), back.astype(np.float32))
    assert peak_bytes(lambda: pca.inverse_transform(Z)) < 3 * X.nbytes


def test_what_is_done_once_a_block_is_done_in_small_blocks():
    """A rank rule and forgetting by blocks, where all directions are kept and rows add up."""
    X, _ = make_spiked(3000, 20, spikes=[40, 20, 10], random_state=0)
    pca = StreamingPCA(rank_rule=EnergyBounds()).fit(X)
    energy = np.linalg.svd(X - X.mean(axis=0), compute_uv=False) ** 2
    enough = np.searchsorted(np.cumsum(energy) / energy.sum(), 0.95) + 1
    assert abs(pca.n_components_ - enough) <= 1
    assert len(pca.rank_history_) == np.ceil(3000 / 64)
    pca = StreamingPCA(3, forgetting="blocks", forgetting_factor=0.5).fit(np.r_[100 * X, X])
    assert_allclose(pca.explained_variance_, energy[:3] / 3000, rtol=0.5)
