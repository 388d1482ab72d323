"""VerticalFederatedPCA; topologies and groups of columns are in test_vertical_topology.py.

Oracles are scikit-learn's PCA of all columns in one place, a naive reading of Cheung et al. (2022)
with n x n matrices and loops, and numpy's variances of projected rows.
"""

import numpy as np
import pytest
import rounds_helpers
from helpers import sine
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from rounds_helpers import assert_same, examples, seeds
from sklearn.base import clone
from sklearn.decomposition import PCA

from fedpca_sklearn import (
    FadingChannel,
    GaussianChannel,
    LeftVectorMerge,
    LeftVectors,
    PerfectChannel,
    PowerRounds,
    Ring,
    VerticalFederatedPCA,
    VerticalMethod,
    VFedPCA,
)

every_method = pytest.mark.parametrize("method", ["vfedpca", "merge", "power"])


# ------------------------------------------------------------------------------ data and helpers


def rows(n=60, d=8, seed=0, mean=3.0):
    """Half as many as those of rounds."""
    return rounds_helpers.rows(n, d, seed, mean)


def alike(n=50, d=12, seed=0):
    """Columns that all lean on the same two vectors, so that clients nearly agree."""
    rng = np.random.default_rng(seed)
    loads = np.stack([rng.uniform(2, 4, d), rng.choice([-1, 1], d)])
    return rng.standard_normal((n, 2)) @ loads + 0.3 * rng.standard_normal((n, d))


METHODS = {"vfedpca": VFedPCA, "merge": LeftVectorMerge, "power": PowerRounds}
OPTIONS = {name for method in METHODS.values() for name in method().get_params(deep=False)}


def vertical(r=3, method="vfedpca", **options):
    """An estimator; options of methods go to the method, as far as they are its own."""
    kind = METHODS.get(method, lambda: method) if isinstance(method, str) else lambda: method
    own = kind().get_params(deep=False).keys() & options.keys()
    made = kind(**{name: options[name] for name in own}) if own else method
    rest = {name: value for name, value in options.items() if name not in OPTIONS}
    return VerticalFederatedPCA(r, **{"method": made, "random_state": 0, **rest})


def leading(X, r=1):
    return PCA(r, svd_solver="full").fit(X)


def assert_equals_pca(model, X, r=3, tol=1e-8):
    """With the coordinates of rows, and rows from coordinates."""
    rounds_helpers.assert_equals_pca(model, X, r, tol)
    pca = leading(X, r)
    Z, want = model.transform(X), pca.transform(X)
    signs = np.sign(np.sum(model.components_ * pca.components_, axis=1))
    size = max(np.abs(want).max(), np.abs(X).max())
    assert_allclose(Z * signs, want, rtol=0, atol=10 * tol * size)
    back = pca.inverse_transform(want)
    assert_allclose(model.inverse_transform(Z), back, rtol=0, atol=10 * tol * size)


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


def holds_a_column(array, X):
    """Whether rows or columns of an array are a column of X, up to shift and scale."""
    vectors = [v for A in (np.atleast_2d(array), np.atleast_2d(array).T) for v in A]
    vectors = np.array([v for v in vectors if v.shape == (len(X),) and np.ptp(v) > 0])
    if not len(vectors):
        return False
    return bool((np.abs(np.corrcoef(vectors, X.T)[: len(vectors), len(vectors) :]) > 0.9999).any())


# --------------------------------------------------------------------------------- exact methods


@examples
@given(
    seed=seeds,
    n=st.integers(8, 40),
    d=st.integers(4, 12),
    p=st.integers(1, 4),
    r=st.integers(1, 3),
    method=st.sampled_from(["merge", "power"]),
    topology=st.sampled_from([None, "complete", "ring", "star"]),
    options=st.fixed_dictionaries({"n_jobs": st.sampled_from([None, 2]), "center": st.booleans()}),
)
def test_exact_methods_are_pca_of_any_rows_groups_and_topology(
    seed, n, d, p, r, method, topology, options
):
    X, rng = rows(n, d, seed), np.random.default_rng(seed)
    cuts = np.sort(rng.choice(np.arange(1, d), p - 1, replace=False))
    groups = np.split(rng.permutation(d), cuts)
    model = vertical(r, method, feature_groups=groups, topology=topology, **options).fit(X)
    if options["center"]:
        assert_equals_pca(model, X, r, tol=1e-7)
        assert_valid(model, X)
    else:
        s, V = np.linalg.svd(X)[1:]
        assert sine(model.components_, V[:r]) < 1e-7
        assert_allclose(model.singular_values_, s[:r], rtol=1e-7)
        assert_allclose(model.transform(X), X @ model.components_.T)
        assert_array_equal(model.mean_, 0)
    for columns, want in zip(model.feature_groups_, groups, strict=True):
        assert_array_equal(columns, want)
    assert model.disagreement_ <= 1e-8 * (topology is not None)
    assert model.communication_.floats_pooled == X.size


# rows, and how many components are asked for: more than the rank or the rows for some
DATA = {
    "mean 1e6": (rows(mean=1e6), 2),
    "rank 2": (rows(d=2) @ np.random.default_rng(1).standard_normal((2, 8)), 5),
    "duplicate rows": (np.repeat(rows(20), 3, axis=0), 2),
    "duplicate columns": (np.tile(rows(d=4), 2), 2),
    "constant columns": (np.where(np.arange(8) % 3 == 0, 5.0, rows()), 2),
    "constant group": (np.where(np.arange(8) >= 4, -2.0, rows()), 2),
    "fewer rows than columns": (rows(5, 12), 2),
    "integers": (np.random.default_rng(0).integers(0, 9, (30, 8)) * np.arange(8), 2),
    "fortran": (np.asfortranarray(rows()), 2),
    "large": (rows() * 1e100, 2),
    "small": (rows(mean=0) * 1e-60, 2),
    "more than rows": (rows(4, 9), 6),
    "one row": (rows(1), 3),
    "constant": (np.ones((5, 8)), 3),
    "unlike variances": (rows(40, 4, mean=0) @ rows(4, 4, 1, 0) * [1, 1, 1e-6, 5e-7], 4),
}


@every_method
@pytest.mark.parametrize("name", DATA)
def test_difficult_columns_have_valid_components_which_exact_methods_share_with_pca(method, name):
    """By numpy's SVD; components without variance complete a basis."""
    X, r = DATA[name][0].astype(float), min(DATA[name][1], len(DATA[name][0]))
    mean = X.mean(axis=0)
    size = np.abs(X - mean).max() or 1.0
    Z, dof = (X - mean) / size, max(len(X) - 1, 1)
    s, V = np.linalg.svd(Z, full_matrices=False)[1:]
    rank = np.linalg.matrix_rank(Z)
    for topology in "server", "complete", "ring":
        model = vertical(DATA[name][1], method, feature_groups=3, topology=topology).fit(X)
        assert model.components_.shape == (model.n_components_, X.shape[1]) == (r, X.shape[1])
        assert_allclose(model.components_ @ model.components_.T, np.eye(r), atol=1e-10)
        want = np.sum((Z @ model.components_.T) ** 2, axis=0) / dof
        assert_allclose(model.explained_variance_ / size**2, want, rtol=1e-9, atol=1e-12)
        assert_allclose(model.mean_, mean, rtol=1e-12, atol=1e-12 * size)
        left = (np.sum(s**2) / dof - want.sum()) / max(X.shape[1] - r, 1)
        assert_allclose(model.noise_variance_ / size**2, left, atol=1e-8)
        if r >= rank:
            assert_allclose(model.singular_values_[rank:] / size, 0, atol=1e-6)
            back = model.inverse_transform(model.transform(X))
            assert_allclose((back - mean) / size, Z, atol=1e-6)
        if method != "vfedpca" and rank:
            some = slice(min(r, rank))
            assert_allclose(model.singular_values_[some] / size, s[some], atol=1e-8 * s[0])
            assert sine(model.components_[some], V[some]) < 1e-8


# ----------------------------------------------------------------------------------- scikit-learn


def test_means_of_columns_in_float32_are_summed_in_float64():
    X = (np.random.default_rng(0).standard_normal((3000, 3)) + 1000).astype(np.float32)
    pca = VerticalFederatedPCA(1, feature_groups=2, method="merge").fit(X)
    assert_array_equal(pca.mean_, X.mean(axis=0, dtype=np.float64).astype(np.float32))


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


@pytest.mark.parametrize("what", ["more", "nan"])
def test_vectors_of_ones_own_that_are_more_or_none(what):
    """Of more vectors than are wanted the best directions are kept, NaN is an error."""

    class Given(VerticalMethod):
        def left_vectors(self, federation, clients, rank, rounds=range):
            U = np.linalg.svd(np.concatenate([c.rows for c in clients]), full_matrices=False)[2]
            return LeftVectors([np.nan * U[:rank] if what == "nan" else U[: rank + 3]] * 3, 1)

    X = alike()
    model = vertical(2, feature_groups=3).set_params(method=Given())
    if what == "nan":
        with pytest.raises(ValueError, match="must not contain infs or NaNs"):
            model.fit(X)
    else:
        exact = PCA(2, svd_solver="full").fit(X)
        assert model.fit(X).components_.shape == exact.components_.shape
        assert sine(model.components_, exact.components_) < 1e-9


def power_over(channel):
    return {"method": "power", "channel": channel, "n_rounds": 3}


INEXACT = {
    "few directions": {"method": "merge", "local_components": 1},
    "few rounds": {"method": "power", "n_rounds": 1},
    "noise": power_over(GaussianChannel(50.0)),
    "few iterations": {"method": "vfedpca", "local_iterations": 1, "n_rounds": 1},
    "neighbours": {"method": "vfedpca", "topology": Ring(), "exchange": "neighbours"},
    "gossip": {"method": "power", "topology": Ring(tol=0.1), "tol": 0.1},
    "fading": power_over(FadingChannel(1.0, max_power=5, max_delay=3)),
    "pilots": power_over(FadingChannel(1e-3, pilot_std=0.1, max_power=20, max_delay=3, padding=1)),
    "dropout": power_over(GaussianChannel(1.0, dropout=0.3)),
    "schedule": power_over(PerfectChannel(dropout=[[0, 1, 0, 1], [1, 0, 0, 0], [1, 1, 1, 1]])),
}


@pytest.mark.parametrize("name", INEXACT)
def test_variances_of_inexact_results_are_those_along_the_components(name):
    X = rows()
    model = vertical(feature_groups=4, **INEXACT[name]).fit(X)
    assert sine(model.components_, leading(X, 3).components_) > 1e-3
    assert_valid(model, X)
