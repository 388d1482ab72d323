"""PersonalizedPCA: shared and own components, against the model, the objective and simulation.

Below: its rounds, towards what summaries that were not cut give.
"""

import copy

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from helpers import random_basis, sine
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import clone, config_context
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from fedpca_sklearn import PersonalizedPCA, StreamingPCA, Subspace
from fedpca_sklearn.federated._shared_and_local import _beyond, p_values, significant

SIZES = (80, 60, 100, 40)
SITES = np.repeat(["a", "b", "c", "d"], SIZES)
WIDE = 300


def model(seed=0, noise=0.0, d=12, r=2, q=2, mean=10.0):
    """Rows of four sites with means of their own, the shared components, and the local ones."""
    rng = np.random.default_rng(seed)
    U, rows, local = random_basis(rng, r, d), [], []
    for n in SIZES:
        V = rng.standard_normal((q, d))
        local.append(np.linalg.qr((V - V @ U.T @ U).T)[0].T)
        Z = rng.standard_normal((n, r + q)) * [3, 2, 2.5, 1.5]
        X = Z @ np.concatenate([U, local[-1]]) + noise * rng.standard_normal((n, d))
        rows.append(X + mean * rng.standard_normal(d))
    return np.concatenate(rows), U, local


def about_means(X, weight=None):
    weight = np.ones(len(X)) if weight is None else weight
    parts = {}
    for label in np.unique(SITES):
        Y, w = X[label == SITES], weight[label == SITES]
        parts[label] = np.sqrt(w)[:, None] * (Y - w @ Y / w.sum())
    return parts


def objective(X, shared, local):
    """Sum of squares within the components, about the means of the sites."""
    parts = about_means(X).items()
    return sum(np.sum((Y @ np.concatenate([shared, local[c]]).T) ** 2) for c, Y in parts)


def test_without_noise_the_model_is_found():
    X, U, local = model()
    pca = PersonalizedPCA(2, 2).fit(X, clients=SITES)
    assert sine(pca.components_, U) < 1e-6
    for V, label in zip(local, "abcd", strict=True):
        assert sine(pca.local_components_[label], V) < 1e-6
        assert_allclose(pca.site_means_[label], X[label == SITES].mean(axis=0))
    more = PersonalizedPCA(2, 5).fit(X, clients=SITES)  # than any site has
    assert [len(V) for V in more.local_components_.values()] == [2] * 4
    Z = pca.transform(X, clients=SITES)
    assert Z.shape == (280, 4)
    far = clone(pca).fit(X + 1e8, clients=SITES)
    B = np.concatenate([far.components_, far.local_components_["a"]])
    first = (X[:9] + 1e8 - far.site_means_["a"]) @ B.T
    assert_allclose(far.transform(X[:9] + 1e8, clients=SITES[:9]), first, atol=1e-12)
    assert_allclose(pca.inverse_transform(Z, clients=SITES), X, atol=1e-5)
    assert_array_equal(pca.fit_transform(X, clients=SITES), pca.transform(X, clients=SITES))


def test_no_step_away_from_what_is_found_is_better():
    X, U, _ = model(1, noise=0.7)
    pca = PersonalizedPCA(2, 2).fit(X, clients=SITES)
    V, local = pca.components_, pca.local_components_
    for W in local.values():
        assert_allclose(W @ V.T, 0, atol=1e-12)
        assert_allclose(W @ W.T, np.eye(2), atol=1e-12)
    best, rng = objective(X, V, local), np.random.default_rng(0)
    for size in (1e-3, 1e-2, 0.1):
        for _ in range(10):
            moved = np.linalg.qr((V + size * rng.standard_normal(V.shape)).T)[0].T
            own = {}
            for label in "abcd":
                Y = X[label == SITES] - X[label == SITES].mean(axis=0)
                own[label] = np.linalg.svd(Y - Y @ moved.T @ moved)[2][:2]
            assert objective(X, moved, own) < best
    assert sine(V, U) < 0.3


def test_one_site_is_its_own_components_and_sites_alike_share_all():
    X, _, _ = model(noise=0.3)
    pca = PersonalizedPCA(2, 2, n_clients=1).fit(X)
    leading = np.linalg.svd(X - X.mean(axis=0))[2][:4]
    found = np.concatenate([pca.components_, pca.local_components_[0]])
    assert sine(found, leading) < 1e-6
    assert np.isnan(pca.local_pvalues_[0])
    assert not pca.needs_local_[0]


def test_ranks_that_differ_and_sites_of_few_rows():
    X, U, _ = model()
    few = np.concatenate([X, X[:1], X[:3] + 1, np.ones((4, 12))])
    labels = np.concatenate([SITES, ["one"], ["three"] * 3, ["flat"] * 4])
    pca = PersonalizedPCA(2, 2).fit(few, clients=labels)
    assert [len(pca.local_components_[k]) for k in ("one", "flat", "a")] == [0, 0, 2]
    assert sine(pca.components_, U) < 0.05
    Z = pca.transform(few, clients=labels)
    assert_array_equal(Z[280, 2:], 0)
    assert PersonalizedPCA(2, 30).fit(X, clients=SITES).n_local_components_ == 10
    assert PersonalizedPCA(12, 3).fit_transform(X, clients=SITES).shape == (280, 12)


def test_rows_of_no_site_have_shared_coordinates_only():
    X, _, _ = model(noise=0.1)
    pca = PersonalizedPCA(2, 3).fit(X, clients=SITES)
    Z = pca.transform(X)
    assert_allclose(Z[:, :2], (X - X.mean(axis=0)) @ pca.components_.T, atol=1e-9)
    assert_array_equal(Z[:, 2:], 0)
    assert_allclose(pca.inverse_transform(Z), Z[:, :2] @ pca.components_ + pca.mean_)
    assert list(pca.get_feature_names_out()) == [f"personalizedpca{i}" for i in range(5)]
    with pytest.raises(ValueError, match="must be sites of the fit, got 'x'; `adapt` takes new"):
        pca.transform(X[:2], clients=["a", "x"])


def test_a_new_site_is_fitted_to_what_is_shared():
    X, U, _ = model(noise=0.05)
    pca = PersonalizedPCA(2, 2).fit(X, clients=SITES)
    rng = np.random.default_rng(5)
    V = rng.standard_normal((2, 12))
    V = np.linalg.qr((V - V @ U.T @ U).T)[0].T
    new = rng.standard_normal((50, 4)) @ np.concatenate([U, V]) + 7
    shared = pca.components_.copy()
    pca.adapt(new, clients=["new"] * 50)
    assert_array_equal(pca.components_, shared)
    assert sine(pca.local_components_["new"], V) < 0.1
    Z = pca.transform(new, clients=["new"] * 50)
    assert np.abs(pca.inverse_transform(Z, clients=["new"] * 50) - new).max() < 0.3
    before = dict(pca.local_components_)
    with pytest.raises(ValueError, match="must be new sites, 'a' is known already"):
        pca.adapt(X[:2], clients=["A", "a"])
    assert pca.local_components_.keys() == before.keys()
    pca.partial_fit(new, clients=["new"] * 50)
    assert pca.clients_ == ["a", "b", "c", "d", "new"]
    assert sine(pca.components_, U) < 0.1


def test_calls_chunks_and_a_pipeline_give_the_same():
    X, _, _ = model(noise=0.3)
    pca, stream = PersonalizedPCA(2, 2).fit(X, clients=SITES), PersonalizedPCA(2, 2)
    for batch in np.array_split(np.random.default_rng(0).permutation(280), 3):
        stream.partial_fit(X[batch], clients=SITES[batch])
    assert sine(stream.components_, pca.components_) < 1e-6
    with config_context(enable_metadata_routing=True):
        pipe = make_pipeline(FunctionTransformer(), PersonalizedPCA(2, 2))
        assert_allclose(pipe.fit_transform(X, clients=SITES), pca.transform(X, SITES), atol=1e-9)
    chunks = pytest.importorskip("dask.array").from_array(X, chunks=(SIZES, (12,)))
    lazy = PersonalizedPCA(2, 2).fit(chunks)
    assert lazy.clients_ == [0, 1, 2, 3]
    # up to where the rounds end
    assert_allclose(lazy.local_components_[1], pca.local_components_["b"], atol=1e-8)
    atol = 1e-8 * np.linalg.norm(X, axis=1).max()
    assert_allclose(lazy.transform(chunks).compute(), pca.transform(X), atol=atol)
    with pytest.raises(ValueError, match="clients cannot be given when X is a dask"):
        lazy.transform(chunks, clients=SITES)


def test_the_largest_root_has_the_law_that_is_stated():
    rng, p = np.random.default_rng(0), []
    for _ in range(400):
        A, B = rng.standard_normal((120, 8)), rng.standard_normal((30, 8))
        root = scipy.linalg.eigh(B.T @ B, A.T @ A + B.T @ B, eigvals_only=True)[-1]
        p.append(_beyond(root, 8, 120, 30))
    for level in (0.05, 0.2, 0.5):
        # four standard deviations of a share of 400
        assert abs(np.mean(np.array(p) < level) - level) < 4 * np.sqrt(level * (1 - level) / 400)


def test_who_needs_components_of_its_own_is_told():
    rng, found = np.random.default_rng(0), []
    scales = np.concatenate([[5.0, 4.0], np.ones(8)])
    for _ in range(40):
        rows = [rng.standard_normal((60, 10)) * scales for _ in range(6)]
        parts = [Subspace.from_rows(X) for X in rows]
        found.append(significant(p_values(parts, np.eye(2, 10))).any())
    assert np.mean(found) < 0.05 + 4 * np.sqrt(0.05 * 0.95 / 40)
    rows[3][:, 5] *= 3
    parts = [Subspace.from_rows(X) for X in rows]
    assert list(significant(p_values(parts, np.eye(2, 10)))) == [False] * 3 + [True] + [False] * 2
    cut = [part.truncate(8) for part in parts]
    assert np.isnan(p_values(cut, np.eye(2, 10))).all()
    # Holm: the first is compared with a fifth of the level, and after a failure nobody passes
    p = np.array([np.nan, 0.009, 0.011, 0.04, 0.02, 0.5])
    assert list(significant(p)) == [False, True, True, False, False, False]
    assert not significant(np.array([0.02, 0.03, 0.04])).any()
    assert significant(np.array([0.03, 0.02])).all()


# -------------------------------------------------------------------- rounds


def wide(seed=0, noise=0.2):
    return model(seed, noise, WIDE, mean=1.5)[0]


def best(X, V, local, weight=None):
    """The exact alternation from given components, by singular vectors."""
    parts, change = about_means(X, weight), 1.0
    while change > 1e-9:
        before, rest = V, [Y - Y @ local[c].T @ local[c] for c, Y in parts.items()]
        V = np.linalg.svd(np.concatenate(rest), full_matrices=False)[2][: len(V)]
        for c, Y in parts.items():
            local[c] = np.linalg.svd(Y - Y @ V.T @ V, full_matrices=False)[2][: len(local[c])]
        change = sine(V, before)
    return V, local


def cut(**parameters):
    """Sites that send two directions of the four that are there."""
    return PersonalizedPCA(2, 2, estimator=StreamingPCA(4, oversampling=0), **parameters)


def test_rounds_lead_from_cut_summaries_to_the_best_components():
    X = wide(noise=0.6)
    pca = cut().fit(X, clients=SITES)
    V, local = best(X, pca.components_, dict(pca.local_components_))
    assert sine(pca.components_, V) > 0.01
    kept, floats = [0.0], pca.communication_.floats_up
    for _ in range(6):
        pca.refine(X, clients=SITES)
        kept.append(objective(X, pca.components_, pca.local_components_))
    log = pca.communication_
    assert np.all(np.diff(kept) > -1e-12 * kept[-1])
    pca.refine(X, clients=SITES, n_rounds=40)
    # of four sites and two shared components: their products, and a matrix of order four
    assert log.floats_up - floats == 4 * 6 * (2 * WIDE + 16 + 4)  # more rounds have another log
    assert pca.communication_.floats_pooled == X.size  # nobody would send them twice
    assert sine(pca.components_, V) < 1e-6
    assert pca.n_refinements_ == 46
    for c, W in local.items():
        assert sine(pca.local_components_[c], W) < 1e-5
        assert_allclose(pca.local_components_[c] @ pca.components_.T, 0, atol=1e-12)
    # variances are those of all rows about their mean, as numpy has them
    Z = (X - X.mean(axis=0)) @ pca.components_.T
    assert_allclose(pca.explained_variance_, np.var(Z, axis=0, ddof=1), rtol=1e-9)


@pytest.mark.parametrize(("d", "r"), [(6, 3), (7, 5)])
def test_directions_that_are_rounding_errors_are_in_no_components(d, r):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        X = 3 * rng.standard_normal((280, 1)) * rng.standard_normal((4, d)).repeat(SIZES, axis=0)
        X += rng.standard_normal((280, d)) * 0.5 ** np.arange(d)
        pca, kept = PersonalizedPCA(r, 1).fit(X, clients=SITES), []
        for _ in range(3):
            kept.append(objective(X, pca.components_, pca.local_components_))
            pca.refine(X, clients=SITES)
        assert_allclose(pca.components_ @ pca.components_.T, np.eye(r), atol=1e-12)
        assert np.all(np.diff(kept) > -1e-13 * kept[-1])


def ritz(S, V, beside):
    """Leading directions of S in the span of V and V S, outside others."""
    out = np.eye(len(S)) - beside.T @ beside
    B = np.linalg.qr((np.concatenate([V, V @ S]) @ out).T)[0].T
    return np.linalg.eigh(B @ S @ B.T)[1][:, : -len(V) - 1 : -1].T @ B


def test_a_round_improves_those_of_sites_then_the_shared_ones_and_at_the_end_those_of_sites():
    X = wide(noise=0.6)
    pca = cut().fit(X, clients=SITES)
    V, local = pca.components_, dict(pca.local_components_)
    pca.refine(X, clients=SITES)
    scatters = {c: Y.T @ Y for c, Y in about_means(X).items()}
    local = {c: ritz(S, local[c], V) for c, S in scatters.items()}
    out = {c: np.eye(WIDE) - W.T @ W for c, W in local.items()}
    V = ritz(sum(out[c] @ S @ out[c] for c, S in scatters.items()), V, np.zeros((0, WIDE)))
    assert sine(pca.components_, V) < 1e-9
    for c, S in scatters.items():
        W = np.linalg.qr((local[c] - local[c] @ V.T @ V).T)[0].T
        assert sine(pca.local_components_[c], ritz(S, W, V)) < 1e-9


def test_rounds_of_sparse_weighted_and_single_precision_rows():
    X = np.where(np.random.default_rng(1).uniform(size=(280, WIDE)) < 0.8, wide(), 0)
    dense = cut().fit(X, clients=SITES)
    sparse = copy.deepcopy(dense).refine(sp.csr_array(X), clients=SITES, n_rounds=4)
    dense.refine(X, clients=SITES, n_rounds=4)
    assert sine(dense.components_, sparse.components_) < 1e-9
    dense.refine(X, clients=SITES, n_rounds=36)
    single = cut().fit(X.astype(np.float32), clients=SITES)
    single.refine(X.astype(np.float32), clients=SITES, n_rounds=40)
    assert single.components_.dtype == np.float32
    assert sine(single.components_.astype(float), dense.components_) < 1e-3
    X, weight = wide(), np.random.default_rng(2).integers(1, 4, 280).astype(float)
    weighted = cut().fit(X, clients=SITES, sample_weight=weight)
    weighted.refine(X, clients=SITES, sample_weight=weight, n_rounds=40)
    V, _ = best(X, weighted.components_, dict(weighted.local_components_), weight)
    assert sine(weighted.components_, V) < 1e-6


def test_sites_that_came_later_are_left_and_rows_without_variance_or_noise_change_nothing():
    X, old = wide(), SITES != "d"
    pca = cut().fit(X[old], clients=SITES[old])
    pca.adapt(X[~old], SITES[~old]).refine(X[old], clients=SITES[old])
    for name in ("local_components_", "site_means_", "local_pvalues_", "needs_local_"):
        assert sorted(getattr(pca, name)) == ["a", "b", "c"]
    pca.partial_fit(X[~old], clients=SITES[~old])
    assert pca.n_refinements_ == 0
    for rows, tol in [(np.full((280, WIDE), 3.0), 1e-12), (wide(noise=0), 1e-7)]:
        pca = cut().fit(rows, clients=SITES)
        V = pca.components_.copy()
        assert sine(pca.refine(rows, clients=SITES, n_rounds=2).components_, V) < tol


def test_other_rows_are_refused_also_where_one_mean_alone_is_another():
    X = wide()
    pca, a = cut().fit(X, clients=SITES), SITES == "a"
    D, moved = X[a] - X[a].mean(axis=0), X.copy()
    last = D[:, -1].std() * (0.5 + np.sqrt(0.75) * D[:, -1] / D[:, -1].std())  # squares as before
    moved[a, -1] = X[a, -1].mean() + last
    with pytest.raises(ValueError, match="whose mean is another"):
        pca.refine(moved, clients=SITES)
