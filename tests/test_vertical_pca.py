"""VerticalFederatedPCA, its topologies and its groups of columns, against PCA of all columns."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse.csgraph import shortest_path
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import scale

from fedpca_sklearn import GaussianChannel, VerticalFederatedPCA, subspace_distance
from fedpca_sklearn.federated._channel import PerfectChannel
from fedpca_sklearn.federated._feature_groups import columns_of
from fedpca_sklearn.federated._topology import adjacency, distances, gossip, metropolis

PATH = np.eye(4, k=1) + np.eye(4, k=-1)


def rows(n=60, d=12, seed=0, mean=3.0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)) * np.linspace(3, 1, d) @ rng.standard_normal((d, d)) + mean


def assert_equals_pca(model, X, k, tol=1e-8):
    pca = PCA(k, svd_solver="full").fit(X)
    assert subspace_distance(model.components_, pca.components_) < tol
    assert_allclose(model.singular_values_, pca.singular_values_, rtol=tol)
    assert_allclose(model.explained_variance_, pca.explained_variance_, rtol=tol)
    assert_allclose(model.explained_variance_ratio_, pca.explained_variance_ratio_, rtol=tol)
    if len(X) > X.shape[1]:  # scikit-learn counts the rows there
        assert_allclose(model.noise_variance_, pca.noise_variance_, rtol=1e-6)
    assert_allclose(model.mean_, pca.mean_)
    assert_allclose(np.abs(model.transform(X)), np.abs(pca.transform(X)), atol=1e-6)


@pytest.mark.parametrize("method", ["merge", "power"])
@pytest.mark.parametrize("groups", [1, 2, 5, 12, [[0, 5], [1, 2, 3, 4, 11], [6, 10, 9, 8, 7]]])
@pytest.mark.parametrize("shape", [(60, 12), (8, 12)], ids=str)
@pytest.mark.parametrize("mean", [0.0, 1e6])
def test_exact_methods_equal_pca_of_all_columns(method, groups, shape, mean):
    X = rows(*shape, mean=mean)
    model = VerticalFederatedPCA(3, feature_groups=groups, method=method, random_state=0).fit(X)
    assert_equals_pca(model, X, 3)
    assert_array_equal(np.sort(np.concatenate(model.feature_groups_)), np.arange(12))
    for part, columns in zip(model.client_components_, model.feature_groups_, strict=True):
        assert_array_equal(part, model.components_[:, columns])


@pytest.mark.parametrize("method", ["merge", "power"])
@pytest.mark.parametrize("topology", ["complete", "ring", "star", PATH])
def test_exact_methods_need_no_server(method, topology):
    X = rows()
    model = VerticalFederatedPCA(
        2, feature_groups=4, method=method, topology=topology, random_state=0
    ).fit(X)
    assert_equals_pca(model, X, 2)
    assert model.disagreement_ <= 1e-10


@pytest.mark.parametrize("method", ["merge", "power", "vfedpca"])
def test_low_rank_columns_and_constant_ones(method):
    X = rows(40, 6)
    X = np.concatenate([X, X[:, :3], np.ones((40, 2))], axis=1)
    model = VerticalFederatedPCA(8, feature_groups=3, method=method, random_state=0).fit(X)
    assert_allclose(model.components_ @ model.components_.T, np.eye(8), atol=1e-9)
    assert np.isfinite(model.explained_variance_).all()
    if method != "vfedpca":
        pca = PCA(8, svd_solver="full").fit(X)
        assert_allclose(model.singular_values_[:6], pca.singular_values_[:6], rtol=1e-8)


@pytest.mark.parametrize("method", ["merge", "power", "vfedpca"])
def test_single_precision_and_single_rows(method):
    model = VerticalFederatedPCA(2, feature_groups=3, method=method, random_state=0)
    X = rows().astype(np.float32)
    assert model.fit(X).components_.dtype == np.float32
    assert model.transform(X).dtype == np.float32
    model.fit(X[:1])
    assert_array_equal(model.explained_variance_, 0)
    model.fit(np.ones((5, 12)))
    assert_array_equal(model.explained_variance_ratio_, 0)


def test_fewer_local_directions_lose_little():
    X = rows(100, 30)
    truth = PCA(2).fit(X).components_
    errors = []
    for size in (2, 4, 6, None):
        model = VerticalFederatedPCA(2, feature_groups=3, method="merge", local_components=size)
        errors.append(subspace_distance(model.fit(X).components_, truth))
    assert errors[-1] < 1e-10
    assert max(errors[1:3]) < errors[0] < 0.2


def test_noise_of_a_channel_shows_in_proportion():
    X = rows()
    truth = PCA(2).fit(X).components_
    errors = []
    for noise in (1e-6, 1e-4, 1e-2):
        model = VerticalFederatedPCA(2, method="power", n_rounds=8, tol=0, random_state=0)
        model.set_params(channel=GaussianChannel(noise)).fit(X)
        errors.append(subspace_distance(model.components_, truth))
    assert_allclose(np.diff(np.log10(errors)), 2, atol=0.1)


class Recorder(PerfectChannel):
    """Keeps what passes."""

    seen = []

    def receive(self, messages, rng):
        messages = list(messages)
        Recorder.seen += [np.array(m) for m in messages]
        return super().receive(messages, rng)


def test_no_column_is_in_a_message():
    X = rows()
    Recorder.seen.clear()
    model = VerticalFederatedPCA(2, feature_groups=3, method="power", channel=Recorder())
    model.set_params(random_state=0).fit(X)
    Z = X - X.mean(axis=0)
    assert Recorder.seen
    for message in Recorder.seen:
        for column in [*X.T, *Z.T]:
            size = np.linalg.norm(message.reshape(-1, len(column)), axis=1) * np.linalg.norm(column)
            assert np.all(np.abs(message.reshape(-1, len(column)) @ column) < (1 - 1e-6) * size)


# ------------------------------------------------------------------------------ the paper's method


def naive(X, groups, k, starts, iterations, rounds, scaling):
    """VFedPCA with n x n matrices, and a Rayleigh-Ritz step at the end."""
    Z = X - X.mean(axis=0)
    parts = [Z[:, g] for g in groups]
    p, U = len(parts), []
    for start in starts[:k]:
        current, b = parts, start / np.linalg.norm(start)
        for _ in range(rounds):
            values, vectors = [], []
            for C in current:
                A, a = C @ C.T, b
                for _ in range(iterations):
                    a = A @ a / np.linalg.norm(A @ a)
                values.append(a @ A @ a)
                vectors.append(a)
            w = np.array(values) / sum(values)
            scaled = w[:, None] * vectors
            sign = np.where(np.linalg.eigh(scaled @ scaled.T)[1][:, -1] < 0, -1, 1)
            if scaling:
                large = np.argsort(-w)[: p // 2]
                w = w * np.where(np.isin(np.arange(p), large), 1 + 1 / p, 1 - 1 / p)
            u = (w * sign) @ vectors
            b = u / np.linalg.norm(u)
            current = [C @ np.outer(C.T @ b, C.T @ b) / (b @ C @ C.T @ b) for C in current]
        U.append(b)
        parts = [C - np.outer(b, b @ C) for C in parts]
    U = np.array(U)
    values, Y = np.linalg.eigh(U @ Z @ Z.T @ U.T)
    return (Y / np.sqrt(values)).T[::-1] @ U @ Z


@pytest.mark.parametrize("scaling", [True, False])
@pytest.mark.parametrize(("k", "rounds", "p"), [(1, 1, 3), (1, 3, 4), (3, 2, 3), (2, 3, 5)])
def test_vfedpca_equals_the_paper_with_loops(scaling, k, rounds, p):
    X = rows(30, 12)
    model = VerticalFederatedPCA(
        k,
        feature_groups=p,
        n_rounds=rounds,
        local_iterations=15,
        weight_scaling=scaling,
        random_state=0,
    ).fit(X)
    starts = np.random.RandomState(0).standard_normal((k, 30))
    V = naive(X, np.array_split(np.arange(12), p), k, starts, 15, rounds, scaling)
    assert subspace_distance(model.components_, np.linalg.qr(V.T)[0].T) < 1e-8


def test_one_client_finds_the_leading_component():
    X = rows()
    model = VerticalFederatedPCA(1, feature_groups=1, local_iterations=500, random_state=0).fit(X)
    assert_equals_pca(model, X, 1)


@pytest.mark.parametrize("load", [load_wine, load_breast_cancer, load_digits])
@pytest.mark.parametrize("p", [3, 5, 10])
def test_vfedpca_beats_the_clients_by_themselves(load, p):
    X = scale(load().data)
    truth = PCA(1, svd_solver="full").fit(X).components_
    alone = []
    for columns in np.array_split(np.arange(X.shape[1]), p):
        v = np.linalg.svd(X[:, columns], full_matrices=False)[0][:, 0] @ X
        alone.append(subspace_distance(v[None] / np.linalg.norm(v), truth))
    model = VerticalFederatedPCA(1, feature_groups=p, local_iterations=100, random_state=0).fit(X)
    assert subspace_distance(model.components_, truth) < np.mean(alone)


def test_variances_are_those_of_the_scores():
    X = rows()
    model = VerticalFederatedPCA(3, feature_groups=4, random_state=0).fit(X)
    assert_allclose(model.components_ @ model.components_.T, np.eye(3), atol=1e-12)
    assert_allclose(model.explained_variance_, np.var(model.transform(X), axis=0, ddof=1))
    assert_allclose(
        model.explained_variance_ratio_, model.explained_variance_ / X.var(axis=0, ddof=1).sum()
    )


@pytest.mark.parametrize("topology", ["complete", "ring", "star", PATH])
def test_neighbours_agree_with_the_server(topology):
    X = rows(40, 8)
    options = {"feature_groups": 4, "weight_scaling": False, "random_state": 0, "n_rounds": 2}
    server = VerticalFederatedPCA(1, **options).fit(X)
    peers = VerticalFederatedPCA(1, topology=topology, **options).fit(X)
    assert peers.disagreement_ < 1e-8
    assert subspace_distance(peers.components_, server.components_) < 1e-8


# ---------------------------------------------------------------------------- topologies, columns


@pytest.mark.parametrize("name", ["complete", "ring", "star"])
@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_gossip_ends_in_the_average(name, n):
    A = adjacency(name, n)
    W = metropolis(A)
    assert_allclose(W.sum(axis=0), 1)
    assert_allclose(W, W.T)
    values = np.random.default_rng(0).standard_normal((n, 5))
    agreed, _ = gossip(values, A, 1e-12, 10_000)
    assert_allclose(agreed, np.broadcast_to(values.mean(axis=0), (n, 5)), atol=1e-10)
    assert_array_equal(distances(A), shortest_path(A.astype(float), unweighted=True))


@pytest.mark.parametrize(
    "topology", ["mesh", np.ones((3, 3)), np.zeros((4, 4)), np.triu(np.ones((4, 4))), 2 * PATH]
)
def test_impossible_topologies_are_refused(topology):
    with pytest.raises(ValueError, match="topology must be"):
        VerticalFederatedPCA(1, feature_groups=4, topology=topology).fit(rows())


def test_graphs_of_networkx_are_taken():
    networkx = pytest.importorskip("networkx")
    A = adjacency(networkx.path_graph(4), 4)
    assert_array_equal(A, PATH.astype(bool))


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (13, "feature_groups=13 must be between 1 and n_features=12"),
        ([[0, 1], list(range(3, 12))], "column 2 is held by 0"),
        ([[0, 1, 2], list(range(2, 12))], "column 2 is held by 2"),
        ([list(range(12)), []], "empty group"),
        ([list(range(11)), ["heart"]], "'heart'"),
        ([list(range(11)), [12]], "12"),
        ([list(range(11)), [-1]], "-1"),
        ([], "column 0 is held by 0"),
    ],
)
def test_columns_must_have_one_owner(groups, message):
    with pytest.raises(ValueError, match=message):
        VerticalFederatedPCA(1, feature_groups=groups).fit(rows())


def test_columns_by_name():
    frame = load_wine(as_frame=True).data
    names = list(frame.columns)
    groups = [names[::2], names[1::2]]
    model = VerticalFederatedPCA(2, feature_groups=groups, method="merge").fit(frame)
    truth = PCA(2, svd_solver="full").fit(frame).components_
    assert subspace_distance(model.components_, truth) < 1e-8
    assert_array_equal(model.feature_groups_[0], np.arange(0, 13, 2))
    assert_array_equal(columns_of(groups, 13, names)[1], np.arange(1, 13, 2))
    assert model.set_output(transform="pandas").transform(frame).shape == (178, 2)


def test_a_search_over_components_and_methods():
    X, y = load_wine(return_X_y=True)
    pipe = make_pipeline(VerticalFederatedPCA(random_state=0), LogisticRegression(max_iter=2000))
    grid = {
        "verticalfederatedpca__n_components": [1, 3],
        "verticalfederatedpca__method": ["merge", "vfedpca"],
    }
    search = GridSearchCV(pipe, grid, cv=3).fit(scale(X), y)
    assert search.best_params_["verticalfederatedpca__n_components"] == 3
    assert search.best_score_ > 0.9


# ------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize("k", [1, 3])
def test_floats_are_as_said(k):
    X, n, p = rows(), 60, 4
    end = p * (k * k + 1)
    options = {"feature_groups": p, "random_state": 0}
    log = VerticalFederatedPCA(k, n_rounds=2, **options).fit(X).communication_
    assert log.floats_up == 2 * k * p * (n + 1) + end + p * n * k
    assert log.floats_down == 2 * k * p * n + p * k * k
    log = VerticalFederatedPCA(k, n_rounds=2, topology="complete", **options).fit(X).communication_
    assert log.floats_up == 2 * k * p * (p - 1) * (n + 1) + end + p * n * k
    model = VerticalFederatedPCA(k, method="power", n_rounds=4, tol=0, **options).fit(X)
    assert model.communication_.floats_up == 4 * p * n * k + end
    log = VerticalFederatedPCA(k, method="merge", **options).fit(X).communication_
    assert log.floats_up == 12 * (n + 1) + end
    star = VerticalFederatedPCA(k, method="merge", topology="star", **options).fit(X)
    assert star.communication_.floats_up == 12 * (n + 1) * (p - 1) + end


def test_a_channel_needs_a_server():
    with pytest.raises(ValueError, match="channel needs topology='server'"):
        VerticalFederatedPCA(topology="ring", channel=GaussianChannel()).fit(rows())
