"""VerticalFederatedPCA; topologies and groups of columns are in test_vertical_topology.py.

Oracles are scikit-learn's PCA of all columns in one place, a naive reading of Cheung et al. (2022)
with n x n matrices and loops, and numpy's variances of projected rows.
"""

import numpy as np
import pandas as pd
import pytest
from helpers import measured
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale

from fedpca_sklearn import (
    Complete,
    FadingChannel,
    GaussianChannel,
    Graph,
    LeftVectorMerge,
    LeftVectors,
    PerfectChannel,
    PowerRounds,
    Ring,
    Star,
    VerticalFederatedPCA,
    VerticalMethod,
    VFedPCA,
)
from fedpca_sklearn.communication import Federation
from fedpca_sklearn.vertical._vfedpca import Agreement

examples = settings(max_examples=30, derandomize=True, deadline=None, database=None)
seeds = st.integers(0, 2**31 - 1)
every_method = pytest.mark.parametrize("method", ["vfedpca", "merge", "power"])
every_exact = pytest.mark.parametrize("method", ["merge", "power"])
UNEQUAL = [[7, 0], [3], [1, 6, 2, 5], [4]]


# ------------------------------------------------------------------------------ data and helpers


def rows(n=60, d=8, seed=0, mean=3.0):
    """Rows of which three directions stand out, turned at random."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    size = np.concatenate([[9, 7, 5], np.linspace(1, 0.3, max(d - 3, 0))])[:d]
    return rng.standard_normal((n, d)) * size @ Q + mean


def alike(n=50, d=12, seed=0):
    """Columns that all lean on the same two vectors, so that clients nearly agree."""
    rng = np.random.default_rng(seed)
    loads = np.stack([rng.uniform(2, 4, d), rng.choice([-1, 1], d)])
    return rng.standard_normal((n, 2)) @ loads + 0.3 * rng.standard_normal((n, d))


METHODS = {"vfedpca": VFedPCA, "merge": LeftVectorMerge, "power": PowerRounds}
OPTIONS = {name for method in METHODS.values() for name in method().get_params(deep=False)}


def vertical(r=3, method="vfedpca", **options):
    """An estimator; options of methods go to the method, as far as they are its own."""
    own = METHODS[method]().get_params(deep=False).keys() & options.keys()
    made = METHODS[method](**{name: options[name] for name in own}) if own else method
    rest = {name: value for name, value in options.items() if name not in OPTIONS}
    return VerticalFederatedPCA(r, **{"method": made, "random_state": 0, **rest})


def leading(X, r=1):
    return PCA(r, svd_solver="full").fit(X)


def sine(A, B):
    """Sine of the largest angle between the spans of two sets of as many rows."""
    A, B = (np.linalg.qr(np.asarray(M, np.float64).T)[0].T for M in (A, B))
    assert A.shape == B.shape
    return np.linalg.norm(A - A @ B.T @ B, 2)


def noise_of(model):
    """Variance left for each dimension; PCA shares it among min(n, d) - k (docs/differences.md)."""
    if not isinstance(model, PCA):
        return model.noise_variance_
    k, d = model.components_.shape
    return model.noise_variance_ * (min(model.n_samples_, d) - k) / max(d - k, 1)


def assert_same(model, other, tol=1e-8):
    """Two fitted models agree: subspace, variances and mean."""
    size = max(np.abs(other.mean_).max(), 1.0)
    largest = max(other.singular_values_[0], 1.0)
    assert sine(model.components_, other.components_) < tol
    assert_allclose(model.singular_values_, other.singular_values_, rtol=tol, atol=tol * largest)
    assert_allclose(model.mean_, other.mean_, rtol=0, atol=tol * size)
    for name in "explained_variance_", "explained_variance_ratio_":
        assert_allclose(getattr(model, name), getattr(other, name), rtol=tol, atol=tol)
    assert_allclose(model.noise_variance_, noise_of(other), rtol=tol, atol=tol)


def assert_equals_pca(model, X, r=3, tol=1e-8):
    pca = leading(X, r)
    assert_same(model, pca, tol)
    Z, want = model.transform(X), pca.transform(X)
    signs = np.sign(np.sum(model.components_ * pca.components_, axis=1))
    size = max(np.abs(want).max(), np.abs(X).max())
    assert_allclose(Z * signs, want, rtol=0, atol=10 * tol * size)
    back = pca.inverse_transform(want)
    assert_allclose(model.inverse_transform(Z), back, rtol=0, atol=10 * tol * size)
    assert model.n_components_ == pca.n_components_
    assert model.n_samples_ == model.n_samples_seen_ == len(X)


def assert_valid(model, X, tol=1e-10):
    """Orthonormal components, parts of the clients, and variances of the scores."""
    V = model.components_
    assert_allclose(V @ V.T, np.eye(len(V)), atol=tol)
    assert_array_equal(np.sort(np.concatenate(model.feature_groups_)), np.arange(X.shape[1]))
    for part, columns in zip(model.client_components_, model.feature_groups_, strict=True):
        assert_array_equal(part, V[:, columns])
    scores = (X - X.mean(axis=0)) @ V.T
    want = np.var(scores, axis=0, ddof=1)
    assert_allclose(model.explained_variance_, want, rtol=1e-9, atol=1e-9 * want[0])
    inner = scores.T @ scores
    assert_allclose(inner - np.diag(np.diag(inner)), 0, atol=1e-9 * inner[0, 0])
    total = np.var(X, axis=0, ddof=1).sum()
    assert_allclose(model.explained_variance_ratio_, want / total, rtol=1e-9, atol=1e-12)
    rest = (total - want.sum()) / max(X.shape[1] - len(V), 1)
    assert_allclose(model.noise_variance_, rest, atol=1e-9 * total)


def unit(v):
    return v / np.linalg.norm(v)


def paper(X, groups, r, iterations, n_rounds, seed=0, scaling=True, equal=False):
    """Components of Cheung et al. by loops over n x n matrices, and the variances along them."""
    Z = X - X.mean(axis=0)
    p, n = len(groups), len(X)
    rng = np.random.RandomState(seed)
    owned = [Z[:, g].copy() for g in groups]
    found = []
    for _ in range(r):
        data = [M.copy() for M in owned]
        starts = [unit(rng.standard_normal(n))] * p
        for _ in range(n_rounds):
            values, vectors = [], []
            for M, a in zip(data, starts, strict=True):
                A = M @ M.T
                for _ in range(iterations):
                    a = unit(A @ a)
                values.append(a @ A @ a)
                vectors.append(a)
            weights = np.ones(p) / p if equal else np.array(values) / sum(values)
            weighted = np.transpose([w * a for w, a in zip(weights, vectors, strict=True)])
            first = np.linalg.svd(weighted)[2][0]
            if scaling:
                larger = set(np.argsort(weights)[-(p // 2) :])
                weights = [w * (1 + (1 if i in larger else -1) / p) for i, w in enumerate(weights)]
            terms = zip(weights, np.sign(first), vectors, strict=True)
            u = unit(sum(w * s * a for w, s, a in terms))
            for i, M in enumerate(data):
                m = unit(M.T @ u)
                data[i] = M @ m[:, None] @ m[None]
            starts = [u] * p
        owned = [M - u[:, None] @ u[None] @ M for M in owned]
        found.append(u)
    Q = np.linalg.qr(Z.T @ np.transpose(found))[0]
    values, Y = np.linalg.eigh(Q.T @ Z.T @ Z @ Q)
    return (Q @ Y[:, ::-1]).T, values[::-1] / (n - 1)


# --------------------------------------------------------------------------------- exact methods


@every_exact
@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
def test_exact_methods_equal_pca(method, p):
    X = rows()
    model = vertical(method=method, feature_groups=p).fit(X)
    assert_equals_pca(model, X)
    assert_valid(model, X)
    assert len(model.client_components_) == p
    assert model.disagreement_ == 0


@every_exact
@pytest.mark.parametrize("load", [load_wine, load_breast_cancer, load_digits])
def test_exact_methods_equal_pca_of_real_columns(method, load):
    X = scale(load().data)
    assert_equals_pca(vertical(5, method, feature_groups=4).fit(X), X, 5, tol=1e-8)


@examples
@given(
    seed=seeds,
    n=st.integers(8, 40),
    d=st.integers(4, 12),
    p=st.integers(1, 4),
    r=st.integers(1, 3),
    method=st.sampled_from(["merge", "power"]),
)
def test_exact_methods_equal_pca_of_any_rows_and_groups(seed, n, d, p, r, method):
    X = rows(n, d, seed)
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.choice(np.arange(1, d), p - 1, replace=False))
    groups = np.split(rng.permutation(d), cuts)
    assert_equals_pca(vertical(r, method, feature_groups=groups).fit(X), X, r, tol=1e-7)


DATA = {
    "mean 1e6": rows(mean=1e6),
    "rank 2": rows(d=2) @ np.random.default_rng(1).standard_normal((2, 8)),
    "duplicate rows": np.repeat(rows(20), 3, axis=0),
    "duplicate columns": np.tile(rows(d=4), 2),
    "constant columns": np.where(np.arange(8) % 3 == 0, 5.0, rows()),
    "constant group": np.where(np.arange(8) >= 4, -2.0, rows()),
    "fewer rows than columns": rows(5, 12),
    "integers": np.random.default_rng(0).integers(0, 9, (30, 8)) * np.arange(8),
    "fortran": np.asfortranarray(rows()),
    "large": rows() * 1e100,
    "small": rows(mean=0) * 1e-60,
}


@every_exact
@pytest.mark.parametrize("name", DATA)
def test_exact_methods_equal_pca_of_difficult_rows(method, name):
    X = DATA[name].astype(float)
    model = vertical(2, method, feature_groups=3).fit(X)
    size = np.abs(X - X.mean(axis=0)).max()
    pca, tol = leading(X, 2), 1e-8
    assert sine(model.components_, pca.components_) < tol
    assert_allclose(model.singular_values_ / size, pca.singular_values_ / size, atol=tol)
    assert_allclose(model.explained_variance_ratio_, pca.explained_variance_ratio_, atol=tol)
    assert_allclose(model.noise_variance_ / size**2, noise_of(pca) / size**2, atol=tol)
    assert_allclose(model.mean_, pca.mean_, rtol=1e-12, atol=1e-12 * size)


@every_method
@pytest.mark.parametrize("name", DATA)
def test_any_columns_give_valid_components(method, name):
    X = DATA[name].astype(float)
    size = np.abs(X - X.mean(axis=0)).max()
    for topology in "server", "complete", "ring":
        model = vertical(2, method, feature_groups=4, topology=topology).fit(X)
        want = np.var((X - X.mean(axis=0)) @ model.components_.T / size, axis=0, ddof=1)
        assert_allclose(model.components_ @ model.components_.T, np.eye(2), atol=1e-10)
        assert_allclose(model.explained_variance_ / size**2, want, rtol=1e-9, atol=1e-12)


@every_method
def test_more_components_than_the_rank(method):
    X = DATA["rank 2"]
    model = vertical(5, method).fit(X)
    pca = leading(X, 5)
    V = model.components_
    assert_allclose(V @ V.T, np.eye(5), atol=1e-10)
    assert_allclose(model.singular_values_[2:], 0, atol=1e-6)
    assert sine(V[:2], pca.components_[:2]) < (1 if method == "vfedpca" else 1e-8)
    assert_allclose(model.explained_variance_.sum(), pca.explained_variance_.sum(), rtol=1e-8)
    assert_allclose(model.inverse_transform(model.transform(X)), X, atol=1e-6)


@every_method
def test_more_components_than_rows(method):
    X = rows(4, 9)
    model = vertical(6, method).fit(X)
    assert model.n_components_ == 4
    assert model.components_.shape == (4, 9)
    assert_allclose(model.components_ @ model.components_.T, np.eye(4), atol=1e-10)


@every_method
@pytest.mark.parametrize("X", [rows(1), np.ones((5, 8))], ids=["one row", "constant"])
def test_rows_without_variance(method, X):
    model = vertical(method=method, feature_groups=3).fit(X)
    r = min(3, len(X))
    assert_allclose(model.components_ @ model.components_.T, np.eye(r), atol=1e-12)
    assert_array_equal(model.explained_variance_, np.zeros(r))
    assert_array_equal(model.explained_variance_ratio_, np.zeros(r))
    assert model.noise_variance_ == 0
    assert_array_equal(model.inverse_transform(model.transform(X)), X)


@every_exact
def test_float32(method):
    X = rows().astype(np.float32)
    model = vertical(method=method).fit(X)
    for name in "components_", "mean_", "singular_values_", "explained_variance_":
        assert getattr(model, name).dtype == np.float32
    assert all(part.dtype == np.float32 for part in model.client_components_)
    assert_equals_pca(model, X.astype(float), tol=1e-5)


@every_method
@pytest.mark.parametrize("weighting", ["eigenvalue", "equal"])
def test_order_of_groups_does_not_matter(method, weighting):
    X = rows()
    one = vertical(method=method, weighting=weighting, feature_groups=UNEQUAL).fit(X)
    for order in [3, 1, 0, 2], [3, 2, 1, 0]:
        two = clone(one).set_params(feature_groups=[UNEQUAL[i] for i in order]).fit(X)
        assert_same(two, one, 1e-9)
        assert two.communication_.floats_up == one.communication_.floats_up


@every_method
def test_order_and_signs_of_columns_do_not_matter(method):
    X = rows()
    order = np.random.default_rng(1).permutation(8)
    signs = np.array([1, -1, 1, 1, -1, -1, 1, -1])
    one = vertical(method=method, feature_groups=UNEQUAL).fit(X)
    place = np.argsort(order)
    two = vertical(method=method, feature_groups=[place[g] for g in UNEQUAL])
    two.fit(X[:, order] * signs)
    assert sine(two.components_ * signs, one.components_[:, order]) < 1e-9
    assert_allclose(two.singular_values_, one.singular_values_, rtol=1e-9)


@every_exact
def test_components_are_orthonormal_where_variances_differ_much(method):
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    X = rng.standard_normal((40, 4)) * [1, 1, 1e-6, 5e-7] @ Q
    model = vertical(4, method).fit(X)
    V = model.components_
    assert_allclose(V @ V.T, np.eye(4), atol=1e-10)
    scores = (X - X.mean(axis=0)) @ V.T
    assert_allclose(model.explained_variance_, np.var(scores, axis=0, ddof=1), rtol=1e-8)


def test_fewer_local_components_are_worse_by_no_more_than_is_left_out():
    X = rows(80, 12)
    Z, exact = X - X.mean(axis=0), leading(X, 3)
    groups = np.array_split(np.arange(12), 3)
    gap = exact.singular_values_[-1] ** 2 - np.linalg.svd(Z, compute_uv=False)[3] ** 2
    kept, errors = [], []
    for m in range(1, 5):
        model = vertical(method="merge", feature_groups=3, local_components=m).fit(X)
        left_out = sum((np.linalg.svd(Z[:, g], compute_uv=False)[m:] ** 2).sum() for g in groups)
        kept.append(np.var(model.transform(X), axis=0).sum())
        errors.append(sine(model.components_, exact.components_))
        # Davis-Kahan for the left vectors; by the rows they then lose no more than the same share
        want = np.var(exact.transform(X), axis=0).sum()
        assert want - kept[-1] <= 2 * left_out / len(X) + 1e-9
        assert errors[-1] <= 2 * left_out / gap + 1e-9
        assert model.communication_.table[0]["floats_up"] == 3 * m * 81
        assert_valid(model, X)
    assert np.all(np.diff(kept) >= -1e-9)
    assert np.all(np.diff(errors) <= 1e-9)
    assert errors[0] > 1e-4 > 1e-9 > errors[-1]


# ---------------------------------------------------------------------------------- channels


def test_error_is_proportional_to_the_noise_of_the_channel():
    X, errors = rows(), []
    for noise in 1e-4, 1e-2, 1.0:  # the same noise, of other size
        model = vertical(2, "power", n_rounds=8, tol=0.0, channel=GaussianChannel(noise)).fit(X)
        errors.append(sine(model.components_, leading(X, 2).components_))
    assert_allclose(np.diff(np.log10(errors)), 2, atol=0.1)
    s = leading(X, 3).singular_values_
    # rounds have noise of norm sqrt(n) + sqrt(2) or so; three of that over the gap (Lemma 4.1)
    assert errors[-1] < 3 * (np.sqrt(60) + np.sqrt(2)) / (s[1] ** 2 - s[2] ** 2)


@pytest.mark.parametrize(
    "channel",
    [
        FadingChannel(1e-3, max_power=5, max_delay=3),
        FadingChannel(1e-3, pilot_std=0.1, max_power=20, max_delay=3, padding=1),
        GaussianChannel(1e-3, dropout=0.3),
        PerfectChannel(dropout=[[0, 1, 0], [1, 0, 0], [1, 1, 1]]),
    ],
    ids=["fading", "pilots", "dropout", "schedule"],
)
def test_channels_that_lose_messages_give_a_valid_result(channel):
    X = alike()
    model = vertical(2, "power", feature_groups=3, channel=channel, n_rounds=15).fit(X)
    assert_valid(model, X)
    assert sine(model.components_[:1], leading(X).components_) < 0.2
    assert model.n_iter_ <= 15
    up = [row["messages_up"] for row in model.communication_.table[: model.n_iter_]]
    assert min(up) < 3


@pytest.mark.parametrize(
    "options",
    [
        {"method": "merge", "local_components": 1},
        {"method": "power", "n_rounds": 1},
        {"method": "power", "channel": GaussianChannel(50.0), "n_rounds": 10},
        {"method": "vfedpca", "local_iterations": 1, "n_rounds": 1},
        {"method": "vfedpca", "topology": Ring(), "exchange": "neighbours"},
        {"method": "power", "topology": Ring(tol=0.1), "tol": 0.1},
    ],
    ids=["few directions", "few rounds", "noise", "few iterations", "neighbours", "gossip"],
)
def test_variances_of_inexact_results_are_those_along_the_components(options):
    X = rows()
    model = vertical(feature_groups=4, **options).fit(X)
    assert sine(model.components_, leading(X, 3).components_) > 1e-3
    assert_valid(model, X)


@pytest.mark.parametrize("topology", ["complete", Ring(), np.ones((2, 2))], ids=str)
def test_channel_needs_a_server(topology):
    with pytest.raises(ValueError, match="channel needs topology='server'"):
        vertical(method="power", channel=GaussianChannel(), topology=topology).fit(rows())


@every_method
def test_an_option_that_a_method_does_not_know_cannot_be_given(method):
    other = OPTIONS - METHODS[method]().get_params().keys()
    assert other
    for name in other:
        with pytest.raises(TypeError, match=name):
            METHODS[method](**{name: 1})
        with pytest.raises(TypeError, match=name):
            VerticalFederatedPCA(1, method=method, **{name: 1})
        with pytest.raises(ValueError, match=name):
            VerticalFederatedPCA(1, method=METHODS[method]()).set_params(**{f"method__{name}": 1})


@every_method
@pytest.mark.parametrize("topology", [None, "complete", "ring", "star"])
def test_strings_stand_for_objects_with_their_defaults(method, topology):
    objects = {None: "server", "complete": Complete(), "ring": Ring(), "star": Star()}
    by_name = vertical(2, method, feature_groups=4, topology=topology).fit(rows())
    model = vertical(2, method, feature_groups=4)
    model.set_params(method=METHODS[method](), topology=objects[topology]).fit(rows())
    assert_array_equal(model.components_, by_name.components_)
    assert model.communication_ == by_name.communication_
    A = np.array([[0, 1, 0, 1], [1, 0, 1, 0]] * 2)
    if topology == "ring":
        model.set_params(topology=Graph(A)).fit(rows())
        assert_array_equal(model.components_, by_name.components_)


def test_a_wrong_channel_is_named():
    with pytest.raises(ValueError, match="noise_std"):
        vertical(method="power", channel=GaussianChannel(-1.0)).fit(rows())
    with pytest.raises(ValueError, match="channel: no client took part"):
        vertical(method="power", channel=PerfectChannel(dropout=[[1, 1]])).fit(rows())


# ------------------------------------------------------------------------------------- "vfedpca"

PRINTED = {"weighting": "eigenvalue", "update": "cumulative"}


@pytest.mark.parametrize("r", [1, 2, 3])
@pytest.mark.parametrize("n_rounds", [1, 2, 3])
@pytest.mark.parametrize("iterations", [1, 3, 20])
@pytest.mark.parametrize("scaling", [True, False])
def test_vfedpca_is_the_papers_algorithm(r, n_rounds, iterations, scaling):
    X = alike()
    groups = [[0, 5, 3], [1, 2], [4, 11, 10, 9], [6, 7, 8]]
    want, variances = paper(X, groups, r, iterations, n_rounds, scaling=scaling)
    options = {"local_iterations": iterations, "n_rounds": n_rounds, "weight_scaling": scaling}
    model = vertical(r, feature_groups=groups, **PRINTED, **options).fit(X)
    assert_allclose(np.abs(np.sum(model.components_ * want, axis=1)), np.ones(r), atol=1e-8)
    assert_allclose(model.explained_variance_, variances, rtol=1e-8)
    assert model.n_iter_ == r * n_rounds
    assert_valid(model, X)


@examples
@given(seed=seeds, n=st.integers(8, 30), p=st.integers(2, 4), equal=st.booleans())
def test_vfedpca_is_the_papers_algorithm_for_any_rows(seed, n, p, equal):
    X = alike(n, 12, seed)
    groups = np.array_split(np.random.default_rng(seed).permutation(12), p)
    want, _ = paper(X, groups, 2, 50, 2, scaling=not equal, equal=equal)
    options = {"weight_scaling": not equal, "local_iterations": 50, "n_rounds": 2}
    options |= PRINTED | {"weighting": "equal" if equal else "eigenvalue"}
    model = vertical(2, feature_groups=groups, **options).fit(X)
    assert sine(model.components_[:1], want[:1]) < 1e-6


def agreed(values, vectors, federation=None, *, weighting="eigenvalue", scaling=False, near=False):
    """What clients make of known eigenvalues and vectors, as an array (p, n)."""
    agreement = Agreement(weighting, scaling, near)
    weights = agreement.weights(np.array(values, float), np.ones(len(values)))
    return np.array(agreement.common(federation or Federation(), weights, np.array(vectors)))


def test_the_average_of_vectors_that_are_known():
    e, f = np.eye(2)
    # 3/4 and 1/4 (eq. 13), times 3/2 and 1/2 (eq. 15)
    found = agreed([3, 1], [e, f], scaling=True)
    assert_allclose(np.abs(found), np.tile(unit([9.0, 1.0]), (2, 1)))
    assert_allclose(np.abs(agreed([3, 1], [e, f])[0]), unit([3.0, 1.0]))
    equal = agreed([3, 1], [e, f], weighting="equal", scaling=True)
    assert_allclose(np.abs(equal[0]), unit([1.0, 1.0]))
    assert_allclose(np.abs(agreed([3, 1], [e, -e])[0]), e)
    # two alike but for the sign, and both at right angles to the strongest, must not cancel
    assert_allclose(np.abs(agreed([3, 2.5, 2.5], [e, f, -f])[0]), unit([3.0, 5.0]))
    for found in agreed(np.zeros(3), np.zeros((3, 2)), scaling=True):
        assert_array_equal(found, 0)


@pytest.mark.parametrize("scaling", [True, False])
@pytest.mark.parametrize("topology", ["server", "complete", "ring", "star"])
def test_one_client_gives_the_exact_components(scaling, topology):
    X = rows()
    options = {"local_iterations": 300, "weight_scaling": scaling, "topology": topology}
    assert_equals_pca(vertical(feature_groups=1, **options).fit(X), X)


def gain(X, p, **options):
    """Error of "vfedpca" over the mean of those of the clients by themselves."""
    Z, exact = X - X.mean(axis=0), leading(X).components_
    groups = np.array_split(np.arange(X.shape[1]), p)
    alone = [
        sine((Z.T @ np.linalg.svd(Z[:, g], full_matrices=False)[0][:, 0])[None], exact)
        for g in groups
    ]
    model = vertical(1, feature_groups=p, **options).fit(X)
    return sine(model.components_, exact) / np.mean(alone)


@pytest.mark.parametrize("p", [2, 3, 4, 8])
@pytest.mark.parametrize("load", [load_wine, load_breast_cancer])
def test_vfedpca_is_better_than_isolated_clients(load, p):
    assert gain(scale(load().data), p, local_iterations=100) < 0.65


@pytest.mark.parametrize("p", [3, 5, 10])
@pytest.mark.parametrize("name", ["college", "vehicle", "sonar"])
def test_vfedpca_is_better_than_isolated_clients_on_the_papers_data(name, p):
    X = measured(name).astype(float)
    assert gain(X if name == "sonar" else scale(X), p) < 0.8
    assert gain(X if name == "sonar" else scale(X), p, **PRINTED, weight_scaling=True) < 0.8


@pytest.mark.parametrize("p", [3, 8])
def test_vfedpca_of_digits_standardised_or_not(p):
    X, printed = load_digits().data, {"local_iterations": 100, "weight_scaling": True, **PRINTED}
    assert gain(scale(X), p, **printed) < 0.7
    # as it stands: clients disagree, and the average is worse
    assert gain(X, p, **printed) > 1
    assert gain(scale(X), p) < 0.7
    assert gain(X, p) < 1


def test_equal_weights_differ_where_clients_do():
    Z = alike(d=4)
    options = {"feature_groups": 3, "local_iterations": 200, "weight_scaling": False}
    by_value, equal = vertical(2, **options), vertical(2, weighting="equal", **options)
    X = np.concatenate([Z, Z, Z], axis=1)
    assert_same(equal.fit(X), by_value.fit(X), 1e-9)
    assert_equals_pca(equal, X, 2)
    X = alike() * np.repeat([1, 5, 1], 4)
    assert sine(equal.fit(X).components_, by_value.fit(X).components_) > 1e-3


@pytest.mark.parametrize("iterations", [1, 2, 20])
def test_warm_start_changes_nothing(iterations):
    # after a round a client's columns have rank one, so one iteration is enough from anywhere
    X = rows()
    options = {"feature_groups": 3, "local_iterations": iterations, "n_rounds": 4}
    warm, cold = (vertical(2, warm_start=w, **options).fit(X) for w in (True, False))
    assert_same(warm, cold, 1e-9)


def test_rounds_after_the_second_change_nothing():
    X = rows()
    options = {"feature_groups": 3, "weight_scaling": True, **PRINTED}
    two, three, ten = (vertical(2, n_rounds=t, **options).fit(X) for t in (2, 3, 10))
    assert_same(three, ten, 1e-9)
    assert sine(two.components_, three.components_) < 0.2


def test_more_local_iterations_come_to_rest():
    X = rows()
    limit = vertical(1, feature_groups=3, local_iterations=2000).fit(X).components_
    few = [vertical(1, feature_groups=3, local_iterations=i).fit(X) for i in (1, 10, 100)]
    errors = [sine(model.components_, limit) for model in few]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-6


@every_method
def test_random_state_does_not_matter_in_the_end(method):
    X = rows()
    options = {"feature_groups": 3, "local_iterations": 2000}
    models = [vertical(2, method, **options, random_state=i).fit(X) for i in range(3)]
    for model in models[1:]:
        assert_same(model, models[0], 1e-8)


@every_method
def test_jobs_do_not_matter(method):
    X = rows()
    one = vertical(method=method, feature_groups=3).fit(X)
    assert_same(vertical(method=method, feature_groups=3, n_jobs=2).fit(X), one, 1e-12)


@pytest.mark.parametrize("r", range(1, 9))
@pytest.mark.parametrize("p", [2, 5])
def test_vfedpca_gives_valid_components_of_any_number(r, p):
    X = rows()
    model = vertical(r, feature_groups=p).fit(X)
    assert model.components_.shape == (r, 8)
    assert_valid(model, X)
    assert np.all(model.explained_variance_ <= leading(X, r).explained_variance_ * (1 + 1e-9))


def test_a_method_of_ones_own():
    class Strongest(VerticalMethod):
        """The left vectors of the client with the most variance."""

        def __init__(self, label=None):
            self.label = label

        def left_vectors(self, federation, clients, rank, rounds=range):
            best = max(clients, key=lambda c: np.sum(c.rows**2)) if self.label is None else None
            best = best or clients[self.label]
            U = np.linalg.svd(best.rows, full_matrices=False)[2][:rank]
            return LeftVectors([U] * len(clients), 1)

    X = alike() * np.repeat([1, 5, 1], 4)
    model = vertical(2, feature_groups=3).set_params(method=Strongest()).fit(X)
    assert_valid(model, X)
    chosen = clone(model).set_params(method__label=1).fit(X)
    assert_same(chosen, model, 1e-12)
    assert sine(model.set_params(method__label=0).fit(X).components_, chosen.components_) > 1e-4


# ----------------------------------------------------------------------------------- scikit-learn


def test_grid_search_in_a_pipeline():
    X = alike(60)
    pipeline = make_pipeline(StandardScaler(), vertical(feature_groups=3))
    grid = {
        "verticalfederatedpca__n_components": [1, 2, 3],
        "verticalfederatedpca__method": ["vfedpca", "merge", PowerRounds()],
        "verticalfederatedpca__topology": [None, "ring", Star()],
    }
    search = GridSearchCV(pipeline, grid, cv=3, error_score="raise").fit(X)
    assert search.best_params_["verticalfederatedpca__n_components"] == 2
    pipeline.set_params(verticalfederatedpca__method=PowerRounds(channel=PerfectChannel()))
    grid = {
        "verticalfederatedpca__method__n_rounds": [1, 5],
        "verticalfederatedpca__method__channel": [None, GaussianChannel(1e-6)],
    }
    GridSearchCV(pipeline, grid, cv=3, error_score="raise").fit(X)
    nested = vertical(method="power", channel=GaussianChannel())
    nested.set_params(method__channel__noise_std=0.5)
    assert nested.method.channel.noise_std == 0.5


@every_method
def test_a_classifier_finds_the_components_it_needs(method):
    X, y = load_wine(return_X_y=True)
    pipeline = make_pipeline(
        StandardScaler(), vertical(method=method), LogisticRegression(max_iter=2000)
    )
    grid = {"verticalfederatedpca__n_components": [1, 3]}
    search = GridSearchCV(pipeline, grid, cv=3).fit(X, y)
    assert search.best_params_["verticalfederatedpca__n_components"] == 3
    assert search.best_score_ > 0.9


@every_method
def test_pandas_out(method):
    X = pd.DataFrame(rows(), columns=list("abcdefgh"))
    model = vertical(2, method).set_output(transform="pandas").fit(X)
    Z = model.transform(X)
    assert list(Z.columns) == ["verticalfederatedpca0", "verticalfederatedpca1"]
    assert_array_equal(Z.index, X.index)
    with pytest.raises(ValueError, match="feature names"):
        model.transform(X[list("hgfedcba")])


@every_method
def test_refit_forgets(method):
    X = rows()
    model = vertical(method=method, feature_groups=3).fit(rows(30, 5, seed=1))
    log = model.communication_
    model.fit(X)
    fresh = clone(model).fit(X)
    assert_same(model, fresh, 1e-15)
    assert model.communication_ == fresh.communication_
    assert model.communication_ is not log
    assert model.n_features_in_ == 8
    assert model.n_iter_ == fresh.n_iter_
