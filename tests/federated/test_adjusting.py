"""PCA of scaled rows, and of what confounders leave, without pooling: against scikit-learn.

Summaries of scaled rows, and of what confounders leave, against scikit-learn on the rows.
"""

import pickle
from functools import partial

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from helpers import centred, sine
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedpca_sklearn import (
    DistributedPCA,
    FederatedPCA,
    LoadingsDisplay,
    NoiseAwareMerge,
    ProjectionAverage,
    RobustMerge,
    StreamingPCA,
    Subspace,
    SubspaceMerge,
    excess_error,
    make_power_law,
    merge_subspaces,
)

ESTIMATORS = [StreamingPCA, FederatedPCA, DistributedPCA]
each_kind = pytest.mark.parametrize("kind", ESTIMATORS)
D = 8


def unlike_columns(seed=0, n=300, d=12, spread=6.0, mean=3.0, constant=()):
    """Correlated columns with deviations from 10^-spread to 10^spread, about other means."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) @ (rng.standard_normal((d, d)) + 2 * np.eye(d)) + mean
    X[:, constant] = 5.0
    return X * 10.0 ** rng.permutation(np.linspace(-spread, spread, d))


rows_of = partial(unlike_columns, n=120, d=D, spread=0.0, mean=0.0, constant=[3])


def left_by(X, confounders, weight=None):
    """Weighted rows about their mean and outside the span of the confounders, by QR, twice."""
    Z = centred(X, weight)[0]
    if not confounders:
        return Z
    C, Z = Z[:, confounders], np.delete(Z, confounders, axis=1)
    Q = np.linalg.qr(C / np.linalg.norm(C, axis=0))[0]
    for _ in range(2):
        Z -= Q @ (Q.T @ Z)
    return Z


def pooled(Y, k=3, scale=True):
    return make_pipeline(StandardScaler(with_std=scale), PCA(k, svd_solver="full")).fit(Y)


def assert_pooled(pca, X, confounders=(), scale=True, tol=1e-10):
    Y = left_by(X, list(confounders))
    expected = pooled(Y, pca.n_components_, scale)
    if scale:
        assert_allclose(pca.scale_, expected[0].scale_, rtol=tol)
    for name in ("explained_variance_", "explained_variance_ratio_"):
        assert_allclose(getattr(pca, name), getattr(expected[-1], name), rtol=tol)
    assert sine(pca.components_, expected[-1].components_) < tol
    Z = expected.transform(Y)
    signs = np.sign(np.einsum("ij,ij->j", Z, pca.transform(X)))
    assert_allclose(pca.transform(X), Z * signs, atol=100 * tol)


# ------------------------------------------------------------------------------ exact summaries


@given(
    seed=st.integers(0, 99),
    labels=st.lists(st.integers(0, 4), min_size=12, max_size=40),
    spread=st.sampled_from([0.0, 2.0, 8.0]),
    mean=st.sampled_from([0.0, 1e5]),
    confounders=st.sampled_from([None, [1], [6, 0]]),
    kind=st.sampled_from(ESTIMATORS),
    weighted=st.booleans(),
    calls=st.integers(1, 5),
)
@settings(max_examples=40, deadline=None)
def test_any_clients_scales_and_means(
    seed, labels, spread, mean, confounders, kind, weighted, calls
):
    X, rng = rows_of(seed, n=len(labels), spread=spread, mean=mean), np.random.default_rng(seed)
    w = rng.integers(1, 4, len(X)) if weighted else np.ones(len(X), int)
    pca = kind(3, scale=True, partial_out=confounders)
    for at in np.array_split(np.arange(len(X)), calls):
        more = {} if kind is StreamingPCA else {"clients": np.array(labels)[at]}
        pca.partial_fit(X[at], sample_weight=w[at] if weighted else None, **more)
    rows = np.repeat(X, w, axis=0)
    assert_pooled(pca, rows, confounders or ())


@pytest.mark.parametrize("scale", [False, True])
def test_of_many_columns_each_has_a_noise_of_its_own_given_the_confounders(scale):
    rng, d = np.random.default_rng(0), 301
    X = 3 + rng.standard_normal((900, 6)) @ rng.standard_normal((6, d))
    X += rng.standard_normal(X.shape) * np.linspace(0.5, 2, d)
    pca = StreamingPCA(3, scale=scale, partial_out=[0]).fit(X)
    Y = left_by(X, [0])
    sizes = Y.std(axis=0) if scale else np.ones(d - 1)
    C = np.cov(Y / sizes, rowvar=False)
    lam, W = np.linalg.eigh(C)
    low = (W[:, -3:] * (lam[-3:] - lam[:-3].mean())) @ W[:, -3:].T
    normal = multivariate_normal(np.zeros(d - 1), low + np.diag(np.diag(C - low)))
    expected = normal.logpdf(Y / sizes) - np.log(sizes).sum()
    assert_allclose(pca.score_samples(X), expected, atol=1e-9)


@pytest.mark.parametrize("confounders", [None, [4, 1]])
@pytest.mark.parametrize("scale", [False, True])
def test_the_model_of_the_rows(scale, confounders):
    X = rows_of(6)[:, [0, 1, 2, 4, 5, 6, 7]] * [1, 50, 3, 20, 1, 0.1, 5]
    pca = FederatedPCA(3, scale=scale, partial_out=confounders).fit(X)
    Y, C = left_by(X, confounders), pca.get_covariance()
    normal = multivariate_normal(np.zeros(len(C)), C)
    assert_allclose(pca.score_samples(X), normal.logpdf(Y))
    assert_allclose(pca.get_precision() @ C, np.eye(len(C)), atol=1e-8)
    of_scaled = pooled(Y, scale=scale)
    if scale:  # a pipeline scores the scaled rows
        shift = np.log(pca.scale_).sum()
        assert_allclose(pca.score_samples(X), of_scaled.score_samples(Y) - shift)
    Z = pca.transform(X)
    back = pca.inverse_transform(Z)
    assert_allclose(pca.transform(back), Z, atol=1e-10)
    others = np.delete(np.arange(7), confounders or [])
    expected = of_scaled.inverse_transform(of_scaled.transform(Y))
    expected += X[:, others].mean(axis=0)
    if confounders:
        assert_allclose(back[:, confounders], np.tile(X[:, confounders].mean(0), (120, 1)))
        effects = LinearRegression().fit(X[:, confounders], X[:, others]).coef_.T
        assert_allclose(pca.confounder_effects_, effects)
        assert_array_equal(pca.confounders_, confounders)
    assert_allclose(back[:, others], expected)
    assert pca.n_features_in_ == len(pca.mean_) == 7
    assert pca.components_.shape == (3, len(others))
    whitened = StreamingPCA(3, whiten=True, scale=scale, partial_out=confounders).fit(X)
    Z = whitened.transform(X)
    assert_allclose(Z.var(axis=0, ddof=1), 1)
    assert_allclose(whitened.inverse_transform(Z), back, atol=1e-9)


def test_names_of_confounders_and_a_pipeline_of_scikit_learn():
    X = pd.DataFrame(rows_of(8, mean=3.0), columns=[f"c{i}" for i in range(D)])
    two_characters = X.rename(columns={"c6": "e\u0301"})  # é, as frames of macOS have it
    for kind in ESTIMATORS:
        by_name = kind(3, partial_out=["\xe9", "c1"], scale=True).fit(two_characters)
        assert_array_equal(by_name.confounders_, [6, 1])
        by_place = kind(3, partial_out=(-2, 1), scale=True).fit(X.to_numpy())
        assert_allclose(by_name.components_, by_place.components_, atol=1e-12)
    sites = [StreamingPCA(3).fit(X[:50]).subspace_, StreamingPCA(3).fit(X[50:]).subspace_]
    of_files = FederatedPCA.from_subspaces(sites, 3, partial_out="c1")
    assert_array_equal(of_files.confounders_, [1])
    assert list(of_files.get_feature_names_out()) == [f"federatedpca{i}" for i in range(3)]
    assert LoadingsDisplay.from_estimator(of_files).names == [f"c{i}" for i in range(D) if i != 1]
    with pytest.raises(ValueError, match="has no counterpart in scikit-learn"):
        of_files.to_sklearn()
    pca = FederatedPCA(3, scale=True).fit(X)
    exported, Z = pca.to_sklearn(), pca.transform(X)
    assert_allclose(exported.transform(X), Z, atol=1e-12)
    assert_allclose(exported.inverse_transform(Z), pca.inverse_transform(Z), atol=1e-12)
    assert_allclose(exported.score(X), make_pipeline(StandardScaler(), PCA(3)).fit(X).score(X))
    assert_allclose(exported[0].var_, StandardScaler().fit(X).var_, atol=1e-20)


@pytest.mark.parametrize("shift", [0.0, 3.0])
@pytest.mark.parametrize(
    "merge", [RobustMerge(), RobustMerge("median"), NoiseAwareMerge(), ProjectionAverage()]
)
def test_merges_that_judge_sites_judge_scaled_rows(merge, shift):
    """Of sites that differ, an average has directions with more of a column than all rows have."""
    X, clients = rows_of(16, spread=1.5, mean=3.0), np.arange(120) % 5
    X += shift * clients[:, None] * X.std(axis=0) * np.cos(np.arange(X.shape[1]))
    pca = FederatedPCA(2, scale=True, merge=merge).fit(X, clients=clients)
    of_scaled = FederatedPCA(2, merge=merge).fit(StandardScaler().fit_transform(X), clients=clients)
    assert sine(pca.components_, of_scaled.components_) < 1e-9
    assert_allclose(pca.explained_variance_, of_scaled.explained_variance_)
    assert_allclose(pca.scale_, StandardScaler().fit(X).scale_)


def test_columns_are_left_at_least_what_they_are_where_their_confounder_was_cut():
    X = rows_of(16, d=6, spread=0.0)
    parts = [Subspace.from_rows(X[:60]), Subspace.from_rows(X[60:]).truncate(3)]
    left = left_by(X, [0]).std(axis=0)
    for summaries in (parts, [merge_subspaces(parts)]):
        pca = FederatedPCA.from_subspaces(summaries, 2, scale=True, partial_out=[0])
        assert np.all(pca.scale_ >= left)
        assert pca.scale_.max() < 2 * left.max()


def test_a_merge_that_follows_another_one_is_asked_for_scaled_rows():
    class OfTheFirst(SubspaceMerge):
        def _merge(self, parts, *kept):
            return super()._merge(parts[:1], *kept)

    X, clients = rows_of(16), np.arange(120) % 5
    pca = FederatedPCA(2, scale=True, merge=OfTheFirst()).fit(X, clients=clients)
    assert_pooled(pca, X[clients == 0])


@pytest.mark.parametrize("merge", [SubspaceMerge(truncate=True), ProjectionAverage()])
def test_what_a_merge_cuts_of_another_librarys_summaries_is_scaled_before(merge):
    X, clients = rows_of(16, spread=1.5, mean=3.0), np.arange(120) % 5
    ours = FederatedPCA(2, scale=True, merge=merge).fit(X, clients=clients)
    theirs = clone(ours).set_params(estimator=PCA(svd_solver="full")).fit(X, clients=clients)
    assert_allclose(theirs.scale_, StandardScaler().fit(X).scale_)
    assert sine(theirs.components_, ours.components_) < 1e-9
    assert_allclose(theirs.explained_variance_, ours.explained_variance_)


def test_columns_that_come_late_and_rows_without_deviation():
    late = rows_of(19)
    late[:50, 1] = 2.0  # constant so far
    late[50:, 1] *= 1e9
    for size in (1, 10, 50):
        batches = [late[i : i + size] for i in range(0, 120, size)]
        assert_pooled(StreamingPCA(3, scale=True).fit(iter(batches)), late)
    pca = StreamingPCA(2, scale=True).fit(late[:1])
    assert_array_equal(pca.scale_, 1.0)
    assert_array_equal(pca.transform(late[:1]), 0.0)
    pca = FederatedPCA(scale=True, partial_out=[0]).fit(late[:2])
    assert_array_equal(pca.explained_variance_, 0.0)
    assert_array_equal(pca.refine(late[:2]).explained_variance_interval_, 0.0)
    pca = StreamingPCA(3, scale=True).fit(late)
    assert not hasattr(pca.set_params(scale=False).fit(late), "scale_")


@each_kind
def test_what_rounding_leaves_of_explained_columns_is_not_scaled_up(kind):
    """Times in seconds are a thousand and more deviations from zero, and so are their sums."""
    rng = np.random.default_rng(0)
    time, signal = rng.standard_normal(60), rng.standard_normal((60, 2)) * [1.0, 0.5]
    explained = np.outer(time, [1.0, 1.0, 3.0]) + np.array([1e6, 0.0, -1e6])
    X = np.column_stack([time + 1e6, explained, signal])
    pca = kind(2, scale=True, partial_out=[0]).fit(X)
    assert_array_equal(pca.scale_[:3], 1)
    expected = StandardScaler().fit_transform(left_by(X[:, [0, 4, 5]], [0]))
    assert_allclose(pca.singular_values_, np.linalg.svd(expected, compute_uv=False), rtol=1e-8)
    assert_allclose(pca.components_[:, :3], 0, atol=1e-7)


# ------------------------------------------------------------------------------ rows that are cut


@pytest.mark.parametrize("known", [False, True])
def test_products_of_rows_that_sites_have_cut(known):
    """Sites that know of no confounder cut it; the first round makes its effects exact."""
    rng = np.random.default_rng(17)
    X = make_power_law(300, 280, alpha=1.5, random_state=0) * 10.0 ** rng.uniform(-2, 2, 280)
    parts = np.split(X, 3)
    X[:, 7] += 0.1 * X[:, 8]
    X[:, 9] = 0.0  # is divided by nothing
    site = StreamingPCA(3, scale=True, oversampling=9, partial_out=[7] if known else None)
    sites = [site.fit(rows).subspace_ for rows in parts]
    pca = FederatedPCA.from_subspaces(sites, 3, scale=True, partial_out=[7])
    n_kept = pca.subspace_.n_components
    for _ in range(3):
        pca.refine(X, clients=np.repeat([0, 1, 2], 100))
        assert not known or pca.subspace_.n_components == n_kept
    Y = StandardScaler().fit_transform(left_by(X, [7]))
    s, V = np.linalg.svd(Y, full_matrices=False)[1:]
    assert sine(pca.components_, V[:3]) < min(1e-4, pca.subspace_error_bound_)
    low, high = pca.explained_variance_interval_.T
    slack = 1e-6 if known else 1e-12  # effects from what sites have kept, or from a round
    assert (low <= s[:3] ** 2 / 299 * (1 + slack)).all()
    assert (high >= s[:3] ** 2 / 299 * (1 - slack)).all()
    effects = LinearRegression().fit(X[:, [7]], np.delete(X, 7, axis=1)).coef_.T
    error = X[:, 7].std() * (pca.confounder_effects_ - effects)
    assert (np.abs(error) <= slack * np.delete(X, 7, axis=1).std(axis=0)).all()


@pytest.mark.parametrize(("size", "d"), [(1.0, 20), (1e2, 300), (1e4, 20), (1e4, 300)])
def test_the_bound_knows_the_rounding_of_what_confounders_explain(size, d):
    rng = np.random.default_rng(0)
    C = rng.standard_normal((900, 2))
    rest = rng.standard_normal((900, 4)) @ rng.standard_normal((4, d - 2))
    X = np.hstack([C, size * C @ rng.standard_normal((2, d - 2)) + rest])
    V = np.linalg.svd(left_by(X, [0, 1]), full_matrices=False)[2][:3]
    for model in (StreamingPCA(3, partial_out=[0, 1]), FederatedPCA(3, partial_out=[0, 1])):
        error = sine(model.fit(X).components_, V)
        assert error <= model.subspace_error_bound_ < 1e-4


# -------------------------------------------------------------------------- estimators


def test_a_full_set_of_dummies_and_a_constant_confounder():
    X = unlike_columns(1, 60, 6, spread=0.0, mean=5.0)
    X[:, :3] = np.eye(3)[np.arange(60) % 3]  # add up to one
    X[:, 3] = 7.0
    pca = FederatedPCA(2, partial_out=[0, 1, 2, 3], n_clients=2).fit(X)
    groups = np.concatenate([X[i::3, 4:] - X[i::3, 4:].mean(axis=0) for i in range(3)])
    assert_allclose(pca.singular_values_, np.linalg.svd(groups, compute_uv=False), rtol=1e-12)
    assert_array_equal(pca.confounder_effects_[3], 0)


@pytest.mark.parametrize("confounders", [[], [1]])
def test_columns_of_sparse_rows_without_any_entry_are_not_scaled_up(confounders):
    rng = np.random.default_rng(4)
    X = rng.standard_normal((40, 700)) * (rng.random((40, 700)) < 0.02) * np.linspace(3, 1, 700)
    deviation = left_by(X, confounders).std(axis=0)
    scale = np.where(deviation > 1e-12, deviation, 1)
    options = {"scale": True, "partial_out": confounders or None}
    streamed = StreamingPCA(3, **options).fit([sp.csr_array(part) for part in np.split(X, 4)])
    for pca in (streamed, FederatedPCA(3, **options).fit(sp.csr_array(X))):
        assert_allclose(pca.scale_, scale, rtol=1e-6)


@pytest.mark.parametrize("kind", [StreamingPCA, FederatedPCA])
def test_float32_columns_whose_squares_vanish_are_scaled_as_well(kind):
    X = (unlike_columns(7, 200, 6, spread=0.0, mean=0.0) * [3, 2, 1, 1, 1, 1e-25]).astype(
        np.float32
    )
    assert_pooled(kind(2, scale=True).fit(X), X.astype(np.float64), tol=1e-5)


@each_kind
def test_what_is_read_or_copied_in_between_changes_no_bit(kind):
    """And directions that are read later have the digits of each column."""
    X = unlike_columns(3, spread=8.0 if kind is StreamingPCA else 6.0)
    parts = {} if kind is StreamingPCA else {"clients": np.arange(150) % 3}
    pca, read = (kind(3, scale=True).fit(X[:150], **parts) for _ in range(2))
    assert read.subspace_.components.shape == (12, 12)
    for each in (pca, read, pickle.loads(pickle.dumps(read))):
        each.partial_fit(X[150:], **parts)
        assert_array_equal(each.components_, pca.components_)
    assert_pooled(pca, X)
    size, Y, summary = X.std(axis=0), X - X.mean(axis=0), pca.subspace_
    scatter = (summary.components.T * summary.singular_values**2) @ summary.components
    assert_allclose(scatter / np.outer(size, size), Y.T @ Y / np.outer(size, size), atol=1e-9)
    again = Subspace.from_bytes(summary.to_bytes())
    assert_pooled(FederatedPCA.from_subspaces([again], 3, scale=True), X)


@pytest.mark.parametrize("rest", [1e-3, 1e-7])
@pytest.mark.parametrize("kind", [StreamingPCA, FederatedPCA])
def test_columns_that_others_nearly_explain_keep_ten_digits(kind, rest):
    X = unlike_columns(5, spread=2.0)
    noise = np.random.default_rng(5).standard_normal(300)
    X[:, 1] = 2 * X[:, 0] + rest * X[:, 0].std() * noise
    pca = kind(scale=True).fit(X)  # of which the last variance is that of the noise
    Z = StandardScaler().fit_transform(X)
    Z[:, 1] -= Z[:, 0]  # which loses nothing that the rows have
    last = np.linalg.svd(Z - Z.mean(axis=0), compute_uv=False)[-1]
    assert 0.3 * last < pca.singular_values_[-1] < last
    left = kind(3, partial_out=[0], scale=True).fit(X)
    lost = np.finfo(float).eps / rest  # of the rows' own digits, which few steps lose again
    expected = left_by(X, [0]).std(axis=0)
    assert_allclose(left.scale_, expected, rtol=max(1e-10, 16 * lost))


@pytest.mark.parametrize("unit", [1.0, 1e-300])
@pytest.mark.parametrize("fading", [1.0, 0.99])
@pytest.mark.parametrize("confounders", [None, [0, 30]])
def test_weights_where_directions_are_cut(confounders, fading, unit):
    """Rows without weight are as absent, whatever they hold, also where they are a whole block."""
    X = unlike_columns(9, 400, 300, spread=1.0)
    X[:, 1:5] += 9 * X[:, 1:5].std(axis=0) * X[:, :1] / X[:, 0].std()
    X[:, 10:20] += 9 * X[:, 10:20].std(axis=0) * X[:, 5:6] / X[:, 5].std()
    X[:50] = 1e20
    weight = np.where(np.arange(400) < 50, 0, 1 + np.arange(400) % 3)
    pca = StreamingPCA(
        2, oversampling=10, scale=True, partial_out=confounders, forgetting_factor=fading
    )
    pca.fit(X, sample_weight=unit * weight)
    assert len(pca.subspace_.components) == 2 + 10 + len(confounders or [])
    w = (weight * fading ** np.arange(399, -1, -1.0))[50:]
    Z = left_by(X[50:], confounders, w)
    deviation = np.sqrt(np.square(Z).sum(axis=0) / w.sum())
    assert_allclose(pca.scale_, deviation, rtol=1e-10)
    V = np.linalg.svd(Z / deviation, full_matrices=False)[2][:2]
    assert sine(pca.components_, V) < 1e-10
    blocks = clone(pca).set_params(block_size=50)
    absent = clone(blocks).fit(X, sample_weight=unit * weight)
    blocks.fit(X[50:], sample_weight=unit * weight[50:])
    assert sine(absent.components_, blocks.components_) < 1e-12


# -------------------------------------------------------------------------- cuts in another metric

# Excess error above the exact dimension: rows a batch (None: ten sites), whether confounders are
# taken out, columns scaled, and the first fifth of the rows in other units. At most twice what a
# change of units at the beginning and the end of each call left.
ERRORS = [
    (200, True, True, True, 1.2e-5),
    (1000, False, True, True, 3.3e-5),
    (1000, True, False, True, 1.7e-9),
    (1000, True, True, False, 1.5e-6),
    (None, False, True, True, 3.2e-5),
    (None, True, False, False, 7.4e-6),
]
CONFOUNDERS = [3, 77]


def power_law(seed, in_other_units, n=2000, d=500):
    rng = np.random.default_rng(seed)
    X = make_power_law(n, d, alpha=1.0, random_state=seed) + 0.3
    X *= 10.0 ** rng.uniform(-2, 2, d)
    if in_other_units:
        X[: n // 5] *= 10.0 ** rng.uniform(-2, 2, d)
    return X


def test_the_unit_of_weights_does_not_matter_where_sites_cut_directions():
    X, weight = power_law(0, False, 300, 600), 1 + np.arange(300.0) % 2
    pca = FederatedPCA(2, scale=True, partial_out=CONFOUNDERS, n_clients=3)
    usual, light = (clone(pca).fit(X, sample_weight=u * weight) for u in (1.0, 1e-200))
    assert_allclose(light.singular_values_, 1e-100 * usual.singular_values_, rtol=1e-10)


def scaled(Z, scale):
    return Z / Z.std(axis=0) if scale else Z


@pytest.mark.parametrize(("batch", "regressed", "scale", "in_other_units", "error"), ERRORS)
def test_a_cut_is_that_of_the_adjusted_rows(batch, regressed, scale, in_other_units, error):
    found, confounders = [], CONFOUNDERS if regressed else None
    options = {"scale": scale, "partial_out": confounders}
    for seed in range(2):
        X = power_law(seed, in_other_units)
        if batch is None:
            pca = FederatedPCA(3, **options).fit(X, clients=np.arange(len(X)) // 200)
        else:
            pca = StreamingPCA(3, oversampling=10, **options)
            for i in range(0, len(X), batch):
                pca.partial_fit(X[i : i + batch])
        assert len(pca.subspace_.components) < 500
        found.append(excess_error(scaled(left_by(X, confounders), scale), pca.components_))
    assert np.mean(found) < 2 * error


def test_units_follow_columns_whose_large_values_are_forgotten():
    X = make_power_law(4000, 500, alpha=1.0, random_state=0)
    X[:800, ::2] *= 1e4
    pca = StreamingPCA(3, oversampling=10, scale=True, forgetting_factor=0.995)
    for batch in np.array_split(X, 4):
        pca.partial_fit(batch)
    weight = 0.995 ** np.arange(4000.0)[::-1]
    Z, size = centred(X, weight)[0], np.sqrt(weight.sum())
    assert excess_error(Z / np.linalg.norm(Z, axis=0) * size, pca.components_, 0.0) < 1e-3


@pytest.mark.parametrize("scale", [False, True])
def test_a_cut_of_sparse_rows_is_hardly_worse_than_of_dense_ones(scale):
    """Sparse rows are cut in units; of columns that are not scaled these leave them as they are."""
    X = power_law(0, False) * (np.random.default_rng(9).random((2000, 500)) < 0.05)
    error = []
    for rows in (X, sp.csr_array(X)):
        pca = StreamingPCA(3, oversampling=10, scale=scale, partial_out=CONFOUNDERS)
        for at in (slice(0, 1000), slice(1000, 2000)):
            pca.partial_fit(rows[at])
        error.append(excess_error(scaled(left_by(X, CONFOUNDERS), scale), pca.components_))
    assert error[1] < 4 * error[0] < 4e-3


@pytest.mark.parametrize(
    ("confounders", "merge"), [(None, None), ([4], None), (None, RobustMerge("median", 0))]
)
def test_a_site_that_states_too_little_of_a_column_does_not_outweigh_the_others(confounders, merge):
    """All of column 0, and stated of column 1: scaled, it was 1e9 times all other columns."""
    X, numbers = unlike_columns(4, spread=1.0), {"n_samples": 5.0, "scatter": 1e12}
    V, moved = np.eye(X.shape[1]), {"singular_values": np.array([1e6]), **numbers}
    lie = Subspace(V[:1], mean=X.mean(axis=0), column_scatter=1e12 * V[1], **moved)
    sites = [Subspace.from_rows(X[::2]), Subspace.from_rows(X[1::2])]
    how = {"scale": True, "partial_out": confounders, "merge": merge}
    pca = FederatedPCA.from_subspaces([*sites, Subspace.from_bytes(lie.to_bytes())], 3, **how)
    assert pca.explained_variance_.max() < len(V)
    assert pca.explained_variance_ratio_.sum() <= 1
    unknown = sites[1].truncate(2)._replace(column_scatter=None)
    with pytest.raises(ValueError, match=r"subspaces\[1\] was cut and has column_scatter=None"):
        FederatedPCA.from_subspaces([sites[0], unknown], 1, **how)


@pytest.mark.filterwarnings("ignore:scale=True. .* is missing in a summary:UserWarning")
def test_rows_that_follow_a_summary_that_was_cut():
    """Its sums of squares count, though its scatter matrix has not all of them."""
    X = unlike_columns(4, spread=1.0)
    cut = StreamingPCA(3).fit(X[:150]).subspace_.truncate(2)
    pca = StreamingPCA.from_subspace(cut, 2, scale=True).partial_fit(X[150:])
    assert_allclose(pca.scale_, StandardScaler().fit(X).scale_)
    assert_allclose(pca.subspace_.column_scatter.sum(), pca.subspace_.scatter)
    assert pca.subspace_error_bound_ > 1e-3
    with pytest.warns(UserWarning, match="n_components=2 must be at most 1: .* keeps 2 of 12"):
        again = StreamingPCA.from_subspace(cut, 2, partial_out=[0])
    again.partial_fit(X[150:])
    assert_allclose(again.subspace_.column_scatter, 300 * X.var(axis=0))


def test_a_merge_keeps_directions_for_confounders_as_well():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 16)) @ rng.standard_normal((16, 800))
    pca = FederatedPCA(3, partial_out=[0, 1, 2, 3]).fit(X, clients=np.arange(60) % 4)
    assert pca.subspace_error_bound_ < 1e-10


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("n", [150, 1500])
def test_confounders_are_kept_whole_beside_a_cut(scale, n):
    """With fewer rows than columns in a block, and with more."""
    rng = np.random.default_rng(8)
    X = rng.standard_normal((n, 300)) * np.arange(1, 301.0) ** -0.5 * 40
    C = np.column_stack([rng.integers(0, 2, n), rng.normal(50, 10, n)])
    X += C @ rng.standard_normal((2, 300))
    X[:, [7, 200]] = C
    effects = LinearRegression().fit(C, np.delete(X, [7, 200], axis=1)).coef_.T
    options = {"partial_out": [7, 200], "scale": scale}
    site = StreamingPCA(4, oversampling=10, block_size=60 if n == 150 else "auto", **options)
    sites = FederatedPCA(4, estimator=clone(site), **options).fit(X, clients=np.arange(n) % 2)
    for pca in (site.fit(X), sites):
        assert len(pca.subspace_.components) < 300
        error = C.std(axis=0)[:, None] * (pca.confounder_effects_ - effects)
        assert np.abs(error).max() < 1e-10 * X.std(axis=0).min()
