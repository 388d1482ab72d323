"""PCA of scaled rows, and of what confounders leave, without pooling: against scikit-learn."""

import copy
import io
import pickle

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from helpers import fitted_attributes, sine
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedpca_sklearn import (
    DistributedPCA,
    FederatedPCA,
    LoadingsDisplay,
    NoiseAwareMerge,
    PersonalizedPCA,
    ProjectionAverage,
    RobustMerge,
    StreamingPCA,
    Subspace,
    SubspaceMerge,
    SubspaceMonitor,
    evaluate_stream,
    excess_error,
    make_power_law,
)
from fedpca_sklearn.privacy import AnalyzeGauss

ESTIMATORS = [StreamingPCA, FederatedPCA, DistributedPCA]
each_kind = pytest.mark.parametrize("kind", ESTIMATORS)
D = 8


def rows_of(seed=0, n=120, spread=0.0, mean=0.0):
    """Correlated columns with deviations from 10^-spread to 10^spread, one of them constant."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, D)) @ (rng.standard_normal((D, D)) + 2 * np.eye(D)) + mean
    X[:, 3] = 5.0
    return X * 10.0 ** rng.permutation(np.linspace(-spread, spread, D))


def left_by(X, confounders):
    """Residuals of least squares with an intercept, by scikit-learn; X itself for none."""
    if not confounders:
        return X
    C, Y = X[:, confounders], np.delete(X, confounders, axis=1)
    size = C.std(axis=0)
    C = (C - C.mean(axis=0)) / np.where(size > 0, size, 1)
    return Y - LinearRegression().fit(C, Y).predict(C)


def pooled(Y, k=3, scale=True):
    return make_pipeline(StandardScaler(with_std=scale), PCA(k, svd_solver="full")).fit(Y)


def assert_pooled(pca, X, confounders=(), scale=True, tol=1e-10):
    Y = left_by(X, list(confounders))
    expected = pooled(Y, pca.n_components_, scale)
    for name in ("explained_variance_", "explained_variance_ratio_"):
        assert_allclose(getattr(pca, name), getattr(expected[-1], name), rtol=tol)
    assert sine(pca.components_, expected[-1].components_) < tol
    Z = expected.transform(Y)
    signs = np.sign(np.einsum("ij,ij->j", Z, pca.transform(X)))
    assert_allclose(pca.transform(X), Z * signs, atol=100 * tol)


def fitted(kind, X, clients, **parameters):
    pca = kind(3, **parameters)
    return pca.fit(X) if kind is StreamingPCA else pca.fit(X, clients=clients)


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
@settings(max_examples=60, deadline=None)
def test_any_clients_scales_and_means(
    seed, labels, spread, mean, confounders, kind, weighted, calls
):
    X, rng = rows_of(seed, len(labels), spread, mean), np.random.default_rng(seed)
    w = rng.integers(1, 4, len(X)) if weighted else np.ones(len(X), int)
    pca = kind(3, scale=True, partial_out=confounders)
    for at in np.array_split(np.arange(len(X)), calls):
        more = {} if kind is StreamingPCA else {"clients": np.array(labels)[at]}
        pca.partial_fit(X[at], sample_weight=w[at] if weighted else None, **more)
    rows = np.repeat(X, w, axis=0)
    assert_pooled(pca, rows, confounders or ())
    scaler = StandardScaler().fit(left_by(rows, confounders))
    assert_allclose(pca.scale_, scaler.scale_, rtol=1e-10)


def test_scales_fade_with_the_rows():
    X = rows_of(2, 40, spread=3.0)
    fading = StreamingPCA(3, scale=True, forgetting_factor=0.9).fit(X)
    expected = StandardScaler().fit(X, sample_weight=0.9 ** np.arange(39, -1, -1))
    assert_allclose(fading.scale_, expected.scale_, rtol=1e-10)


def test_files_a_tree_many_small_clients_and_a_site_that_leaves():
    X, clients = rows_of(3, spread=8.0), np.arange(120) % 5
    files = []
    for i in range(5):
        file = io.BytesIO()
        StreamingPCA(3, scale=True).fit(X[clients == i]).subspace_.save(file, site=f"s{i}")
        files.append(file.getvalue())
    sites = [Subspace.from_bytes(file) for file in files]
    assert_pooled(FederatedPCA.from_subspaces(sites, 3, scale=True), X)
    tree = FederatedPCA(3, scale=True, merge=SubspaceMerge(fan_in=2)).fit(X, clients=clients)
    assert_pooled(tree, X)
    assert_pooled(tree.remove(2), X[clients != 2])
    known = rows_of(3, spread=1.0)  # sites need not know what is done with their summaries
    raw = [StreamingPCA(3).fit(known[clients == i]).subspace_ for i in range(5)]
    assert_pooled(FederatedPCA.from_subspaces(raw, 3, scale=True, partial_out=0), known, [0])
    small = FederatedPCA(3, scale=True, partial_out=[0]).fit(known, clients=np.arange(120) // 2)
    assert_pooled(small, known, [0])


def test_a_summary_goes_on_and_a_log_counts_what_is_sent_once():
    X, clients = rows_of(4, spread=5.0), np.repeat([0, 1, 2], 40)
    first = StreamingPCA(3, scale=True).fit(X[:60])
    sent = Subspace.from_bytes(first.subspace_.to_bytes())
    again = StreamingPCA.from_subspace(sent, 3, scale=True).partial_fit(X[60:])
    expected = first.partial_fit(X[60:]).components_
    assert_allclose(again.components_, expected, rtol=0, atol=1e-12)
    assert_pooled(again, X)
    pca = FederatedPCA(3, scale=True).fit(X, clients=clients)
    sent = pca.communication_.floats_up
    assert sent == sum(summary.n_floats for summary in pca.summaries_.values())
    pca.partial_fit(X[:40], clients=clients[:40])
    assert pca.communication_.floats_up - sent == pca.summaries_[0].n_floats


@each_kind
def test_sparse_rows_single_precision_and_chunks_of_dask(kind):
    rng, clients = np.random.default_rng(5), np.arange(200) % 3
    X = sp.random(200, D, density=0.4, format="csr", random_state=0)
    X = X @ sp.diags(10.0 ** rng.uniform(-3, 3, D)).tocsr()
    dense = X.toarray()
    pca = fitted(kind, X, clients, scale=np.True_, partial_out=[1])
    assert_pooled(pca, dense, [1])
    assert_allclose(pca.transform(X), pca.transform(dense), atol=1e-12)
    assert_allclose(pca.score_samples(X), pca.score_samples(dense), rtol=1e-12)
    single = fitted(kind, dense.astype(np.float32), clients, scale=True)
    assert single.components_.dtype == np.float32
    assert single.transform(dense.astype(np.float32)).dtype == np.float32
    assert_pooled(single, dense, tol=1e-4)
    da, rows = pytest.importorskip("dask.array"), rows_of(15, spread=8.0)
    chunks = da.from_array(rows, chunks=(50, D))
    pca = kind(3, scale=True, partial_out=[2]).fit(chunks)
    assert_pooled(pca, rows, [2])
    assert_allclose(pca.transform(chunks).compute(), pca.transform(rows), atol=1e-12)


@pytest.mark.parametrize("confounders", [None, [4, 1]])
@pytest.mark.parametrize("scale", [False, True])
def test_the_model_of_the_rows(scale, confounders):
    X = rows_of(6)[:, [0, 1, 2, 4, 5, 6, 7]] * [1, 50, 3, 20, 1, 0.1, 5]
    pca = FederatedPCA(3, scale=scale, partial_out=confounders).fit(X)
    Y, C = left_by(X, confounders), pca.get_covariance()
    normal = multivariate_normal(np.zeros(len(C)), C)
    assert_allclose(pca.score_samples(X), normal.logpdf(Y - Y.mean(axis=0)))
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
    if confounders:
        expected += X[:, others].mean(axis=0)
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
    for kind in ESTIMATORS:
        by_name = kind(3, partial_out=["c6", "c1"], scale=True).fit(X)
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
    pca, scaler = FederatedPCA(3, scale=True).fit(X), StandardScaler().fit(X)
    exported, Z = pca.to_sklearn(), pca.transform(X)
    assert_allclose(exported.transform(X), Z, atol=1e-12)
    assert_allclose(exported.inverse_transform(Z), pca.inverse_transform(Z), atol=1e-12)
    assert_allclose(exported.score(X), make_pipeline(StandardScaler(), PCA(3)).fit(X).score(X))
    assert_allclose(exported[0].var_, scaler.var_, atol=1e-20)


@pytest.mark.parametrize("merge", [RobustMerge(), NoiseAwareMerge(), ProjectionAverage()])
def test_merges_that_judge_sites_judge_scaled_rows(merge):
    X, clients = rows_of(16, spread=1.5, mean=3.0), np.arange(120) % 5
    pca = FederatedPCA(2, scale=True, merge=merge).fit(X, clients=clients)
    of_scaled = FederatedPCA(2, merge=merge).fit(StandardScaler().fit_transform(X), clients=clients)
    assert sine(pca.components_, of_scaled.components_) < 1e-9
    assert_allclose(pca.explained_variance_, of_scaled.explained_variance_)
    with pytest.raises(ValueError, match="merge must be None or SubspaceMerge with partial_out"):
        FederatedPCA(2, partial_out=[0], merge=merge).fit(X, clients=clients)


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
    bound = pca.subspace_error_bound_
    assert pca.set_params(scale=False).subspace_error_bound_ == bound  # of what was fitted
    assert not hasattr(pca.fit(late), "scale_")


@each_kind
@pytest.mark.parametrize("mean", [0.0, 1e6])
def test_what_rounding_leaves_of_explained_columns_is_not_scaled_up(kind, mean):
    """Times in seconds are a thousand and more deviations from zero, and so are their sums."""
    rng = np.random.default_rng(0)
    time, signal = rng.standard_normal(60), rng.standard_normal((60, 2)) * [1.0, 0.5]
    explained = np.outer(time, [1.0, 1.0, 3.0]) + np.array([mean, 0.0, -mean])
    X = np.column_stack([time + mean, explained, signal])
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
    site = StreamingPCA(3, scale=True, oversampling=9, partial_out=[7] if known else None)
    sites = [site.fit(rows).subspace_ for rows in parts]
    pca = FederatedPCA.from_subspaces(sites, 3, scale=True, partial_out=[7])
    for _ in range(3):
        pca.refine(X, clients=np.repeat([0, 1, 2], 100))
    Y = StandardScaler().fit_transform(left_by(X, [7]))
    s, V = np.linalg.svd(Y, full_matrices=False)[1:]
    assert sine(pca.components_, V[:3]) < min(1e-4, pca.subspace_error_bound_)
    low, high = pca.explained_variance_interval_.T
    slack = 1e-6 if known else 1e-12  # effects from what sites have kept, or from a round
    assert (low <= s[:3] ** 2 / 299 * (1 + slack)).all()
    assert (high >= s[:3] ** 2 / 299 * (1 - slack)).all()
    effects = LinearRegression().fit(X[:, [7]], np.delete(X, 7, axis=1)).coef_.T
    error = X[:, 7].std() * (pca.confounder_effects_ - effects) / np.delete(X, 7, axis=1).std(0)
    assert np.abs(error).max() < slack


def test_a_share_of_the_variance():
    X = make_power_law(150, 260, alpha=1.0, random_state=0) * 10.0 ** np.linspace(-3, 3, 260)

    def wanted(Y):
        ratios = PCA().fit(StandardScaler().fit_transform(Y)).explained_variance_ratio_
        return int(np.searchsorted(np.cumsum(ratios), 0.7)) + 1

    for kind in ESTIMATORS:
        pca = kind(0.7, scale=True).fit(X)
        assert abs(pca.n_components_ - wanted(X)) <= (kind is not DistributedPCA)
    pca = DistributedPCA(0.7, scale=True, partial_out=2).fit(X)
    assert pca.n_components_ == wanted(left_by(X, [2]))
    for kind in ESTIMATORS[:2]:
        with pytest.raises(ValueError, match=r"n_components=0.7 must be an integer or None"):
            kind(0.7, partial_out=2).fit(X)
    assert StreamingPCA(0.7, partial_out=2).fit(X[:, :9]).n_components_ >= 1


def test_two_thousand_columns_after_the_second_round():
    """Rounds lead to the components of scaled rows, though sites cut those of their own rows."""
    rng = np.random.default_rng(13)
    X = make_power_law(400, 2000, alpha=1.5, random_state=0)
    X = (X + 5) * 10.0 ** rng.uniform(-2, 2, 2000)
    Y = StandardScaler().fit_transform(X)
    lam, U = np.linalg.eigh(Y @ Y.T)
    V = (U[:, :-6:-1].T @ Y) / np.sqrt(lam[:-6:-1])[:, None]
    pca = FederatedPCA(5, scale=True, n_clients=4).fit(X)
    assert_allclose(pca.scale_, X.std(axis=0), rtol=1e-10)
    assert excess_error(Y, pca.components_) < 1e-3
    lower, upper = pca.explained_variance_interval_.T
    assert (lower <= lam[:-6:-1] / 399).all()
    assert (upper >= lam[:-6:-1] / 399).all()
    assert pca.subspace_error_bound_ >= sine(pca.components_, V)
    assert excess_error(Y, pca.refine(X).components_) < 1e-6
    pca.refine(X, n_rounds=3)
    assert_allclose(pca.explained_variance_, lam[:-6:-1] / 399, rtol=1e-6)
    assert sine(pca.components_, V) <= pca.subspace_error_bound_ < 1e-2


@pytest.mark.parametrize("scale", [False, True])
def test_confounders_of_rows_that_are_cut(scale):
    """Directions of confounders are not cut, so that their effects are right without a round."""
    rng = np.random.default_rng(14)
    X = 30 * make_power_law(300, 400, alpha=1.0, random_state=0)
    C = np.column_stack([rng.integers(0, 2, 300), rng.normal(50, 10, 300)])
    X += C @ rng.standard_normal((2, 400))
    X[:, :2] = C
    Y = StandardScaler(with_std=scale).fit_transform(left_by(X, [0, 1]))
    V = np.linalg.svd(Y, full_matrices=False)[2][:4]
    effects = LinearRegression().fit(C, X[:, 2:]).coef_.T
    for kind, cut in [(StreamingPCA, {"oversampling": 10}), (FederatedPCA, {"n_clients": 3})]:
        found = kind(4, scale=scale, partial_out=[0, 1], **cut).fit(X)
        error = C.std(axis=0)[:, None] * (found.confounder_effects_ - effects)
        assert np.abs(error / X[:, 2:].std(axis=0)).max() < 1e-6
        found.refine(X, n_rounds=4)
        assert excess_error(Y, found.components_) < 1e-9
        assert sine(found.components_, V) < 1e-4


@pytest.mark.parametrize("d", [20, 300])
@pytest.mark.parametrize("size", [1.0, 1e2, 1e4])
def test_the_bound_knows_the_rounding_of_what_confounders_explain(size, d):
    rng = np.random.default_rng(0)
    C = rng.standard_normal((900, 2))
    rest = rng.standard_normal((900, 4)) @ rng.standard_normal((4, d - 2))
    X = np.hstack([C, size * C @ rng.standard_normal((2, d - 2)) + rest])
    Q = np.linalg.qr(X[:, :2] - X[:, :2].mean(axis=0))[0]
    left = X[:, 2:] - X[:, 2:].mean(axis=0)
    for _ in range(3):
        left -= Q @ (Q.T @ left)
    V = np.linalg.svd(left, full_matrices=False)[2][:3]
    for model in (StreamingPCA(3, partial_out=[0, 1]), FederatedPCA(3, partial_out=[0, 1])):
        error = sine(model.fit(X).components_, V)
        assert error <= model.subspace_error_bound_ < 1e-4


@pytest.mark.parametrize("confounders", [None, [4, 1]])
@pytest.mark.parametrize("spread", [0.0, 8.0])
@pytest.mark.parametrize("scale", [True, False])
def test_few_rows_of_many_columns_are_cut_as_what_they_become(scale, confounders, spread):
    rng = np.random.default_rng(0)
    size = 10.0 ** rng.permutation(np.linspace(-spread, spread, 300))
    X = (make_power_law(120, 300, alpha=1.0, random_state=0) + 0.1) * size
    w = rng.integers(0, 4, 120)
    alone = StreamingPCA(3, scale=scale, partial_out=confounders).fit(X, sample_weight=w)
    assert_pooled(alone, np.repeat(X, w, axis=0), confounders or (), scale)
    together = FederatedPCA(3, scale=scale, partial_out=confounders)
    assert_pooled(together.fit(X, clients=np.arange(120) // 9), X, confounders or (), scale)


# ------------------------------------------------------------------------------ what is refused


@each_kind
@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"partial_out": [0, 9]}, "from 0 to 7, got 9"),
        ({"partial_out": ["age"]}, "'age' must be a column; the columns have no names"),
        ({"partial_out": [1, 1]}, "none twice"),
        ({"partial_out": []}, "at least one column"),
        ({"partial_out": list(range(8))}, "leave one of 8"),
        ({"partial_out": [0.5]}, "names or positions"),
        ({"partial_out": False}, "names or positions .* got False"),
        ({"partial_out": [True] + 7 * [False]}, "names or positions .* got True"),
        ({"partial_out": np.arange(8) == 2}, "names or positions .* got (np.)?False"),
        ({"partial_out": list(range(6))}, "n_components=3 must be at most 2"),
        ({"scale": "yes"}, "scale"),
    ],
)
def test_wrong_parameters_leave_no_trace(kind, wrong, why):
    X = rows_of(10)
    pca = kind(3, scale=True).fit(X)
    before, twin = pickle.dumps(fitted_attributes(pca)), copy.deepcopy(pca)
    with pytest.raises(ValueError, match=why):
        pca.set_params(**wrong).partial_fit(X)
    pca.set_params(scale=True, partial_out=None)
    assert pickle.dumps(fitted_attributes(pca)) == before
    goes_on = pca.partial_fit(X).explained_variance_
    assert_allclose(goes_on, twin.partial_fit(X).explained_variance_, rtol=1e-12)


MECHANISM = AnalyzeGauss(epsilon=1.0, delta=1e-5, row_norm=1.0)
ORIGIN = Subspace.from_rows(rows_of(11), center=False)
REFUSED = [
    (lambda X: StreamingPCA(3, scale=True, center=False).fit(X), "center"),
    (lambda X: StreamingPCA(3, scale=True, rank_rule=object()).fit(X), "rank_rule"),
    (lambda X: StreamingPCA(3, scale=True).fit(X * 1e200), "too large"),
    (lambda X: FederatedPCA(3, scale=True, mechanism=MECHANISM).fit(X), "mechanism must be None"),
    (lambda X: FederatedPCA(2, scale=True, estimator=PCA(2)).fit(X), "column_scatter=None"),
    (lambda X: SubspaceMonitor(StreamingPCA(2, partial_out=[0])).fit(X), "partial_out=None"),
    (lambda X: evaluate_stream(StreamingPCA(2, partial_out=[0]), X), "scale=False and partial_out"),
    (lambda X: FederatedPCA.from_subspaces([ORIGIN], scale=True), "center=True"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED)
def test_what_cannot_be_adjusted_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call(rows_of(11))
    assert "scale" not in PersonalizedPCA().get_params()
    whole = FederatedPCA(2, scale=True, estimator=PCA()).fit(rows_of(11))
    assert_pooled(whole, rows_of(11))
