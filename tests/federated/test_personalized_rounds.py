"""Rounds of PersonalizedPCA: towards what summaries that were not cut give."""

import copy

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import random_basis, sine
from numpy.testing import assert_allclose

from fedpca_sklearn import PersonalizedPCA, StreamingPCA

SIZES = (60, 50, 70, 40)
SITES = np.repeat(["a", "b", "c", "d"], SIZES)
D = 300


def rows(seed=0, noise=0.5):
    """Rows of four sites, two shared components and two of each, means of their own."""
    rng = np.random.default_rng(seed)
    U, made = random_basis(rng, 2, D), []
    for n in SIZES:
        V = rng.standard_normal((2, D))
        V = np.linalg.qr((V - V @ U.T @ U).T)[0].T
        X = rng.standard_normal((n, 4)) * [5, 4, 4.5, 3.5] @ np.concatenate([U, V])
        made.append(X + noise * rng.standard_normal((n, D)) + 3 * rng.standard_normal(D))
    return np.concatenate(made)


def about_means(X, weight=None):
    parts = {}
    for label in np.unique(SITES):
        Y = X[label == SITES]
        w = np.ones(len(Y)) if weight is None else weight[label == SITES]
        parts[label] = np.sqrt(w)[:, None] * (Y - w @ Y / w.sum())
    return parts


def best(X, V, local, weight=None):
    """The exact alternation from given components, by singular vectors."""
    parts = about_means(X, weight)
    change = 1.0
    while change > 1e-9:
        before, rest = V, [Y - Y @ local[c].T @ local[c] for c, Y in parts.items()]
        V = np.linalg.svd(np.concatenate(rest), full_matrices=False)[2][: len(V)]
        for c, Y in parts.items():
            local[c] = np.linalg.svd(Y - Y @ V.T @ V, full_matrices=False)[2][: len(local[c])]
        change = sine(V, before)
    return V, local


def objective(X, pca):
    kept = [
        np.sum((Y @ np.concatenate([pca.components_, pca.local_components_[c]]).T) ** 2)
        for c, Y in about_means(X).items()
    ]
    return sum(kept)


def cut(**parameters):
    """Sites that send two directions of the four that are there."""
    return PersonalizedPCA(2, 2, estimator=StreamingPCA(4, oversampling=0), **parameters)


def test_rounds_lead_from_cut_summaries_to_the_best_components():
    X = rows(noise=1.5)
    pca = cut().fit(X, clients=SITES)
    V, local = best(X, pca.components_, dict(pca.local_components_))
    start = sine(pca.components_, V)
    assert start > 0.01
    kept = [objective(X, pca)]
    for _ in range(6):
        pca.refine(X, clients=SITES)
        kept.append(objective(X, pca))
    assert np.all(np.diff(kept) > -1e-12 * kept[0])
    pca.refine(X, clients=SITES, n_rounds=40)
    assert sine(pca.components_, V) < 1e-6
    assert pca.n_refinements_ == 46
    for c, W in local.items():
        assert sine(pca.local_components_[c], W) < 1e-5
        assert_allclose(pca.local_components_[c] @ pca.components_.T, 0, atol=1e-12)
    # variances are those of all rows about their mean, as numpy has them
    Z = (X - X.mean(axis=0)) @ pca.components_.T
    assert_allclose(pca.explained_variance_, np.var(Z, axis=0, ddof=1), rtol=1e-9)
    assert_allclose(pca.mean_, X.mean(axis=0), atol=1e-10)


def test_rounds_are_sums_and_tell_nobodys_own_components():
    X = rows()
    pca = cut().fit(X, clients=SITES)
    before = pca.communication_
    pca.refine(X, clients=SITES, n_rounds=3)
    up = pca.communication_.floats_up - before.floats_up
    # of four sites and two shared components: their products, and a matrix of order four
    assert up == 4 * (3 * (2 * D + 16) + 4)
    assert before.floats_up == cut().fit(X, clients=SITES).communication_.floats_up


def test_sparse_rows_weights_and_floats_of_four_bytes():
    X = np.where(np.random.default_rng(1).uniform(size=(220, D)) < 0.8, rows(), 0)
    dense = cut().fit(X, clients=SITES)
    sparse = copy.deepcopy(dense).refine(sp.csr_array(X), clients=SITES, n_rounds=4)
    dense.refine(X, clients=SITES, n_rounds=4)
    assert sine(dense.components_, sparse.components_) < 1e-9
    dense.refine(X, clients=SITES, n_rounds=36)
    single = cut().fit(X.astype(np.float32), clients=SITES)
    single.refine(X.astype(np.float32), clients=SITES, n_rounds=40)
    assert single.components_.dtype == np.float32
    assert sine(single.components_.astype(float), dense.components_) < 1e-3
    X = rows()
    weight = np.random.default_rng(2).integers(1, 4, len(X)).astype(float)
    again, labels = np.repeat(X, weight.astype(int), axis=0), np.repeat(SITES, weight.astype(int))
    weighted = cut().fit(X, clients=SITES, sample_weight=weight)
    weighted.refine(X, clients=SITES, sample_weight=weight, n_rounds=40)
    V, _ = best(X, weighted.components_, dict(weighted.local_components_), weight)
    assert sine(weighted.components_, V) < 1e-6
    repeated = cut().fit(again, clients=labels).refine(again, clients=labels, n_rounds=40)
    assert sine(weighted.components_, repeated.components_) < 1e-6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X, c: (X[:-1], c[:-1]), "Client 'd'.*weight"),
        (lambda X, c: (X + 1, c), "mean"),
        (lambda X, c: (X[c != "b"], c[c != "b"]), "b"),
        (lambda X, c: (X, np.where(c == "b", "new", c)), "new"),
        (lambda X, c: (X, c[::-1]), "Client 'a'"),
    ],
)
def test_other_rows_are_refused(change, message):
    X = rows()
    pca = cut().fit(X, clients=SITES)
    before = vars(pca).copy()
    with pytest.raises(ValueError, match=message):
        pca.refine(*change(X, SITES))
    assert vars(pca).keys() == before.keys()
    assert all(vars(pca)[name] is value for name, value in before.items())


def test_sites_that_came_later_are_left_and_a_second_fit_starts_anew():
    X = rows()
    pca = cut().fit(X[SITES != "d"], clients=SITES[SITES != "d"])
    pca.adapt(X[SITES == "d"], SITES[SITES == "d"])
    pca.refine(X[SITES != "d"], clients=SITES[SITES != "d"])
    assert sorted(pca.local_components_) == ["a", "b", "c"]
    pca.partial_fit(X[SITES == "d"], clients=SITES[SITES == "d"])
    assert pca.n_refinements_ == 0


def test_rows_without_noise_or_without_variance():
    X = np.full((220, D), 3.0)
    flat = cut().fit(X, clients=SITES)
    V = flat.components_.copy()
    flat.refine(X, clients=SITES, n_rounds=2)
    assert_allclose(flat.components_, V)
    X = rows(noise=0)
    pca = cut().fit(X, clients=SITES)
    V = pca.components_.copy()
    pca.refine(X, clients=SITES)
    assert sine(pca.components_, V) < 1e-7
