"""VerticalFederatedKernelPCA.

The oracle is scikit-learn's KernelPCA with its dense solver, of all columns in one place.
"""

import pickle
from dataclasses import fields, is_dataclass

import joblib
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.decomposition import PCA, KernelPCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import laplacian_kernel, polynomial_kernel, rbf_kernel
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedpca_sklearn import (
    Complete,
    Graph,
    PerfectChannel,
    Ring,
    Star,
    VerticalFederatedKernelPCA,
    VFedPCA,
)
from fedpca_sklearn.vertical._vertical_kernels import exact_kernel_pca, nystroem_kernel_pca

WINE = scale(load_wine().data)
TRAIN, NEW = WINE[::2], WINE[1::2]
N, D = TRAIN.shape
KERNELS = ["rbf", "sigmoid", "poly", "linear"]
GROUPINGS = {
    "one": 1,
    "remainder": 4,
    "each its own": D,
    "scattered": [list(range(0, D, 3)), list(range(2, D, 3)), list(range(1, D, 3))],
    "reversed": [np.arange(D)[:4:-1], np.arange(5)],
}
every_kernel = pytest.mark.parametrize("kernel", KERNELS)
every_aggregation = pytest.mark.parametrize(
    "aggregation", ["exact", VFedPCA()], ids=["exact", "vfed"]
)
every_projection = pytest.mark.parametrize("projection", ["samples", "features"])


def central(X=TRAIN, k=3, **parameters):
    return KernelPCA(k, **{"kernel": "rbf", "eigen_solver": "dense", **parameters}).fit(X)


def vertical(X=TRAIN, k=3, **parameters):
    return VerticalFederatedKernelPCA(k, **{"random_state": 0, **parameters}).fit(X)


def assert_equal_up_to_signs(A, B, atol=1e-8):
    signs = np.sign(np.sum(A * B, axis=0))
    assert_allclose(A * signs, B, rtol=0, atol=atol)


# --------------------------------------------------------------------------------- exact kernels


@every_kernel
@pytest.mark.parametrize("gamma", [None, 0.03])
@pytest.mark.parametrize("groups", GROUPINGS.values(), ids=GROUPINGS)
def test_exact_equals_kernel_pca(kernel, gamma, groups):
    parameters = {"kernel": kernel, "gamma": gamma, "degree": 2, "coef0": 0.5}
    pca, oracle = vertical(feature_groups=groups, **parameters), central(**parameters)
    assert_allclose(pca.eigenvalues_, oracle.eigenvalues_, rtol=1e-10)
    assert_equal_up_to_signs(pca.eigenvectors_, oracle.eigenvectors_)
    assert_equal_up_to_signs(pca.transform(NEW), oracle.transform(NEW))
    assert_equal_up_to_signs(pca.transform(TRAIN), oracle.fit_transform(TRAIN))
    assert pca.gamma_ == (1 / D if gamma is None else gamma)
    scores = clone(pca).fit_transform(TRAIN)
    assert_allclose(scores, pca.transform(TRAIN), atol=1e-10)


@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_a_large_mean_costs_no_digits(kernel):
    shifted = np.round(TRAIN * 2**10) / 2**10  # so that the sum is exact
    assert_allclose(
        vertical(shifted + 2.0**30, kernel=kernel, gamma=0.1).eigenvalues_,
        central(shifted, kernel=kernel, gamma=0.1).eigenvalues_,
        rtol=1e-10,
    )


def test_all_components_of_a_kernel():
    pca, oracle = vertical(k=N, gamma=0.1), central(k=N, gamma=0.1)
    assert_allclose(pca.eigenvalues_, oracle.eigenvalues_, atol=1e-10)
    assert pca.eigenvalues_[-1] == 0  # a centred kernel is singular
    assert_allclose(
        pca.transform(NEW) @ pca.transform(NEW).T,
        oracle.transform(NEW) @ oracle.transform(NEW).T,
        atol=1e-10,
    )


@every_aggregation
@every_projection
def test_order_of_groups_and_of_columns_does_not_matter(aggregation, projection):
    groups = [[0, 5, 7, 9], [1, 2, 12], [3, 4, 6, 8, 10, 11]]
    parameters = {"aggregation": aggregation, "projection": projection}
    one = vertical(feature_groups=groups, **parameters)
    other = vertical(feature_groups=[g[::-1] for g in groups[::-1]], **parameters)
    assert_allclose(one.transform(NEW), other.transform(NEW), atol=1e-10)
    order = np.random.RandomState(0).permutation(D)
    moved = [[int(np.flatnonzero(order == c)[0]) for c in g] for g in groups]
    third = vertical(TRAIN[:, order], feature_groups=moved, **parameters)
    assert_allclose(one.transform(NEW), third.transform(NEW[:, order]), atol=1e-10)


@every_aggregation
def test_threads_give_the_same(aggregation):
    one = vertical(aggregation=aggregation, feature_groups=4)
    with joblib.parallel_config(backend="threading"):
        two = vertical(aggregation=aggregation, feature_groups=4, n_jobs=2)
    assert_allclose(one.transform(NEW), two.transform(NEW), atol=1e-12)


# ------------------------------------------------------------------------------------- landmarks


@every_kernel
def test_as_many_landmarks_as_rows_is_exact(kernel):
    for m in N, N + 5:
        pca = vertical(kernel=kernel, gamma=0.05, feature_groups=3, n_landmarks=m)
        oracle = central(kernel=kernel, gamma=0.05)
        assert_allclose(pca.eigenvalues_, oracle.eigenvalues_, rtol=1e-6)
        assert_equal_up_to_signs(pca.transform(NEW), oracle.transform(NEW), 1e-6)


@pytest.mark.parametrize(("name", "kernel"), [("rbf", rbf_kernel), ("poly", polynomial_kernel)])
def test_nystroem_of_all_rows_is_kernel_pca(name, kernel):
    order = np.random.RandomState(0).permutation(N)
    values, U, offset, turn = nystroem_kernel_pca(kernel(TRAIN, TRAIN[order]), order, 3)
    oracle = central(kernel=name)
    assert_allclose(values, oracle.eigenvalues_, rtol=1e-8)
    assert_equal_up_to_signs(U, oracle.eigenvectors_)
    scores = (kernel(NEW, TRAIN[order]) - offset) @ turn
    assert_equal_up_to_signs(scores, oracle.transform(NEW))


@pytest.mark.parametrize(("kernel", "m"), [("linear", D), ("poly", 66)])
def test_landmarks_that_span_the_space_are_enough(kernel, m):
    # inner products span d dimensions; squares of them of 10 columns, (10 + 2) (10 + 1) / 2 = 66
    X, Z = (TRAIN, NEW) if kernel == "linear" else (TRAIN[:, :10], NEW[:, :10])
    parameters = {"kernel": kernel, "degree": 2}
    pca = vertical(X, n_landmarks=m, feature_groups=3, **parameters)
    oracle = central(X, **parameters)
    assert_allclose(pca.eigenvalues_, oracle.eigenvalues_, rtol=1e-6)
    assert_equal_up_to_signs(pca.eigenvectors_, oracle.eigenvectors_, 1e-6)
    assert_equal_up_to_signs(pca.transform(Z), oracle.transform(Z), 1e-6)
    assert len(np.unique(pca.landmarks_)) == m


def test_landmarks_approximate_a_smooth_kernel():
    oracle, H = central(k=2, gamma=0.02), np.eye(N) - 1 / N
    K = rbf_kernel(TRAIN, gamma=0.02)
    for m in 20, 60:
        pca = vertical(k=2, gamma=0.02, n_landmarks=m, feature_groups=4)
        C, W = K[:, pca.landmarks_], K[np.ix_(pca.landmarks_, pca.landmarks_)]
        near = C @ np.linalg.solve(W, C.T)
        values = np.linalg.eigvalsh(H @ near @ H)[::-1][:2]
        assert_allclose(pca.eigenvalues_, values, rtol=1e-9)
        # K - C W^+ C^T >= 0, and Weyl
        short = oracle.eigenvalues_ - pca.eigenvalues_
        assert (short >= -1e-9 * oracle.eigenvalues_).all()
        assert (short <= np.linalg.norm(H @ (K - near) @ H, 2)).all()
        assert_allclose(pca.fit_transform(TRAIN), pca.transform(TRAIN), atol=1e-9)
        assert pca.communication_.floats_up == 4 * N * m
    assert not np.array_equal(
        vertical(n_landmarks=20).landmarks_, vertical(n_landmarks=20, random_state=1).landmarks_
    )


# ------------------------------------------------------------------- clients' own eigenvectors


@every_kernel
@pytest.mark.parametrize("update", ["cumulative", "original"])
def test_one_client_is_kernel_pca(kernel, update):
    parameters = {"kernel": kernel, "gamma": 0.05}
    pca = vertical(feature_groups=1, aggregation=VFedPCA(1000, update=update), **parameters)
    oracle = central(**parameters)
    assert_allclose(pca.eigenvalues_, oracle.eigenvalues_, rtol=1e-6)
    assert_equal_up_to_signs(pca.eigenvectors_, oracle.eigenvectors_, 1e-6)
    assert_equal_up_to_signs(pca.transform(NEW), oracle.transform(NEW), 1e-6)


@pytest.mark.parametrize(
    ("kernel", "of_rows"), [("rbf", rbf_kernel), (laplacian_kernel, laplacian_kernel)]
)
@pytest.mark.parametrize("p", [3, 6, D])  # with 6 and more, the rule for signs matters
def test_one_period_by_its_equations(p, kernel, of_rows):
    groups = np.array_split(np.arange(D), p)
    method = VFedPCA(3000, n_rounds=1, weighting="eigenvalue")
    pca = vertical(k=2, feature_groups=p, kernel=kernel, aggregation=method)
    H = np.eye(N) - 1 / N
    local = [H @ of_rows(TRAIN[:, g], gamma=1 / len(g)) @ H for g in groups]
    U, values, weights = [], [], []
    deflated = local
    for _ in range(2):
        pairs = [np.linalg.eigh(K) for K in deflated]
        eta = np.array([w[-1] for w, _ in pairs])
        A = np.array([V[:, -1] for _, V in pairs])
        w = eta / eta.sum()
        A *= np.sign(np.linalg.svd(w * A.T)[2][0])[:, None]
        u = w @ A
        u /= np.linalg.norm(u)
        P = np.eye(N) - np.outer(u, u)
        deflated = [P @ K @ P for K in deflated]
        U.append(u)
        weights.append(w)
        values.append(sum(wi * (u @ K @ u) for wi, K in zip(w, local, strict=True)))
    assert_equal_up_to_signs(pca.eigenvectors_, np.array(U).T, 1e-7)
    assert_allclose(pca.eigenvalues_, values, rtol=1e-7)
    scores = np.zeros((len(NEW), 2))
    for j, (u, w, value) in enumerate(zip(U, weights, values, strict=True)):
        for g, wi in zip(groups, w, strict=True):
            K = of_rows(TRAIN[:, g], gamma=1 / len(g))
            k = of_rows(NEW[:, g], TRAIN[:, g], gamma=1 / len(g))
            centred = k - k.mean(axis=1)[:, None] - K.mean(axis=0) + K.mean()
            scores[:, j] += wi * centred @ u / np.sqrt(value)
    assert_equal_up_to_signs(pca.transform(NEW), scores, 1e-7)
    assert_allclose(pca.gamma_, [1 / len(g) for g in groups])


@pytest.mark.parametrize(("kernel", "n_columns"), [("linear", 2), ("rbf", 4), ("poly", 4)])
@pytest.mark.parametrize("update", ["cumulative", "original"])
def test_no_component_is_invented(kernel, n_columns, update):
    X = np.random.default_rng(0).standard_normal((20, n_columns))
    if kernel != "linear":  # as few different rows as there are patterns of bits
        X = (X[:, :2] > 0).astype(float)
    groups = [[0], [1]] if X.shape[1] == 2 else 2
    method = VFedPCA(update=update)
    pca = VerticalFederatedKernelPCA(
        8, feature_groups=groups, kernel=kernel, aggregation=method, random_state=0
    ).fit(X)
    U = pca.eigenvectors_[:, pca.eigenvalues_ > 0]
    # each column has two values (or is one direction): its centred kernel has rank one
    assert 1 <= U.shape[1] <= 2
    assert_allclose(U.T @ U, np.eye(U.shape[1]), atol=1e-10)


@pytest.mark.parametrize("scale", [1e-100, 1e26, 1e80])
@pytest.mark.parametrize("update", ["cumulative", "original"])
def test_rows_of_any_scale(scale, update):
    X = np.random.default_rng(0).standard_normal((30, 4))
    model = VerticalFederatedKernelPCA(
        2, kernel="linear", aggregation=VFedPCA(200, update=update), random_state=0
    )
    plain, scaled = clone(model).fit(X), clone(model).fit(scale * X)
    assert_allclose(scaled.eigenvalues_ / scale**2, plain.eigenvalues_, rtol=1e-9)
    assert_allclose(scaled.transform(scale * X) / scale, plain.transform(X), rtol=1e-6, atol=1e-9)


def test_a_common_vector_beats_the_clients():
    """The claim of Cheung et al.: the error after communication is lower than without."""
    truth = central(k=1).eigenvectors_[:, 0]
    alone = [
        abs(truth @ vertical(TRAIN[:, g], 1, feature_groups=1).eigenvectors_[:, 0])
        for g in np.array_split(np.arange(D), 4)
    ]
    together = vertical(k=1, feature_groups=4, aggregation=VFedPCA()).eigenvectors_[:, 0]
    assert abs(truth @ together) > max(alone) + 0.05


def test_callable_kernel():
    K, to_new = laplacian_kernel(TRAIN), laplacian_kernel(NEW, TRAIN)
    pca = vertical(kernel=laplacian_kernel, aggregation=VFedPCA(1000), feature_groups=1)
    oracle = central(K, kernel="precomputed")
    assert_allclose(pca.eigenvalues_, oracle.eigenvalues_, rtol=1e-6)
    assert_equal_up_to_signs(pca.transform(NEW), oracle.transform(to_new), 1e-6)
    given = vertical(
        kernel=lambda X, Y: rbf_kernel(X, Y, gamma=0.1), aggregation=VFedPCA(), feature_groups=3
    )
    named = vertical(kernel="rbf", gamma=0.1, aggregation=VFedPCA(), feature_groups=3)
    assert_allclose(named.transform(NEW), given.transform(NEW), atol=1e-10)


# ------------------------------------------------------------------------------ without a server


TOPOLOGIES = [Complete(), "ring", Star(), Graph(np.eye(4, k=1) + np.eye(4, k=-1))]


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=["complete", "ring", "star", "path"])
@every_aggregation
@every_projection
def test_neighbours_find_what_a_server_finds(topology, aggregation, projection):
    options = {"feature_groups": 4, "aggregation": aggregation, "projection": projection}
    server, model = vertical(**options), vertical(**options, topology=topology)
    assert server.disagreement_ == 0
    assert model.disagreement_ < 1e-7
    assert_allclose(model.eigenvalues_, server.eigenvalues_, rtol=1e-6)
    assert_equal_up_to_signs(model.eigenvectors_, server.eigenvectors_, 1e-6)
    assert_equal_up_to_signs(model.transform(NEW), server.transform(NEW), 1e-6)


def test_neighbours_send_the_kernel_in_each_exchange():
    model = vertical(feature_groups=4, topology=Ring(tol=1e-3))
    coarse = vertical(feature_groups=4, topology=Ring(tol=1e-1))
    sizes = [row["floats_up"] for row in model.communication_.table]
    assert set(sizes) == {8 * N * N}
    assert len(sizes) > len(coarse.communication_.table)
    assert coarse.disagreement_ > model.disagreement_ > 0


@every_aggregation
def test_a_wrong_topology_is_named(aggregation):
    for wrong in "mesh", np.zeros((3, 3)), Ring(tol=-1.0):
        with pytest.raises(ValueError, match=r"topology must be|tol"):
            vertical(feature_groups=3, aggregation=aggregation, topology=wrong)


# ------------------------------------------------------------------------- projection of features


@pytest.mark.parametrize("groups", [1, 4])
def test_linear_kernel_on_features_is_pca(groups):
    pca = vertical(kernel="linear", projection="features", feature_groups=groups)
    oracle = PCA(3).fit(TRAIN)
    assert_equal_up_to_signs(pca.components_.T, oracle.components_.T)
    assert_equal_up_to_signs(pca.transform(NEW), oracle.transform(NEW))


@every_aggregation
def test_features_are_combined_by_the_eigenvectors(aggregation):
    pca = vertical(aggregation=aggregation, projection="features", feature_groups=4)
    mean = TRAIN.mean(axis=0)
    Z = pca.eigenvectors_.T @ (TRAIN - mean)
    assert_allclose(pca.components_, Z / np.linalg.norm(Z, axis=1)[:, None], atol=1e-10)
    assert_allclose(pca.transform(NEW), (NEW - mean) @ pca.components_.T, atol=1e-10)
    assert_allclose(pca.fit_transform(TRAIN), pca.transform(TRAIN), atol=1e-12)


def test_nothing_is_left_of_another_projection():
    pca = vertical(projection="features")
    pca.set_params(projection="samples").fit(TRAIN)
    assert not hasattr(pca, "components_")
    assert not hasattr(pca, "mean_")


# -------------------------------------------------------------------------------- what travels


@every_projection
@pytest.mark.parametrize("p", [1, 3, D])
def test_floats_sent(p, projection):
    k, features = 2, projection == "features"
    log = vertical(k=k, feature_groups=p, projection=projection).communication_
    assert log.floats_up == p * N * N + features * p * k
    assert log.floats_down == features * p * N * k
    assert log.rounds == 1 + features
    assert log.floats_busiest == N * N + features * max(k, N * k)  # messages add up on their way
    assert log.floats_pooled == N * D
    options = {"aggregation": VFedPCA(n_rounds=2), "projection": projection}
    log = vertical(k=k, feature_groups=p, **options).communication_
    assert log.floats_up == p * 2 * k * (N + 1) + p * k + features * p * k
    assert log.floats_down == p * 2 * k * N
    assert log.rounds == 2 * k + 1 + features
    assert log.bytes_up == 8 * log.floats_up


def arrays_in(value, hidden=()):
    """All arrays that can be reached from a value, but by fields of some names."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from arrays_in(inner, hidden)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from arrays_in(inner, hidden)
    elif is_dataclass(value):
        names = [f.name for f in fields(value) if f.name not in hidden]
        yield from arrays_in([getattr(value, name) for name in names], hidden)


def holds_a_column(array, X):
    """Whether rows or columns of an array are a column of X, up to shift and scale."""
    vectors = [v for A in (np.atleast_2d(array), np.atleast_2d(array).T) for v in A]
    vectors = np.array([v for v in vectors if v.shape == (len(X),) and np.ptp(v) > 0])
    if not len(vectors):
        return False
    return bool((np.abs(np.corrcoef(vectors, X.T)[: len(vectors), len(vectors) :]) > 0.9999).any())


@every_aggregation
@every_projection
def test_raw_columns_stay_with_their_clients(aggregation, projection):
    pca = vertical(feature_groups=4, aggregation=aggregation, projection=projection)
    server = list(arrays_in(vars(pca), hidden=("clients",)))
    assert len(server) >= 5
    assert not any(holds_a_column(array, TRAIN) for array in server)
    everywhere = any(holds_a_column(array, TRAIN) for array in arrays_in(vars(pca)))
    assert everywhere == (projection == "samples")  # the clients' own, for new rows
    if projection == "samples":
        for client in pca._scorer.clients:
            assert client.rows.shape == (N, len(client.columns))


@pytest.mark.parametrize("kernel", ["rbf", "poly"])
def test_exact_server_sees_only_the_sum(kernel, monkeypatch):
    received, sent = [], []
    receive = PerfectChannel.receive

    def spy(self, messages, rng):
        messages = list(messages)
        sent.extend(np.array(message) for message in messages)
        total, count = receive(self, messages, rng)
        received.append(total.copy())
        return total, count

    monkeypatch.setattr(PerfectChannel, "receive", spy)
    pca = vertical(kernel=kernel, feature_groups=4)
    assert len(received) == 1
    assert [message.shape for message in sent] == [(N, N)] * 4
    assert_allclose(received[0], np.sum(sent, axis=0), atol=1e-10)
    if kernel == "rbf":
        assert_allclose(received[0], ((TRAIN[:, None] - TRAIN[None]) ** 2).sum(axis=2), atol=1e-10)
    for array in arrays_in(vars(pca)):
        assert not any(np.array_equal(array, message) for message in sent)


# ------------------------------------------------------------------------------- scikit-learn


CHECKED = [
    VerticalFederatedKernelPCA(2, feature_groups=1),
    VerticalFederatedKernelPCA(
        1, feature_groups=1, kernel="linear", aggregation=VFedPCA(), projection="features"
    ),
    VerticalFederatedKernelPCA(2, n_landmarks=5, random_state=0),
    VerticalFederatedKernelPCA(1, aggregation=VFedPCA(), random_state=0),
]


@parametrize_with_checks(CHECKED)  # none is expected to fail
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@every_aggregation
def test_grid_search_in_a_pipeline(aggregation):
    X, y = load_wine(return_X_y=True)
    pca = VerticalFederatedKernelPCA(feature_groups=3, aggregation=aggregation, random_state=0)
    pipeline = make_pipeline(StandardScaler(), pca, LogisticRegression())
    grid = {"n_components": [1, 3], "kernel": ["rbf", "poly"], "gamma": [None, 0.02]}
    grid = {f"verticalfederatedkernelpca__{name}": values for name, values in grid.items()}
    search = GridSearchCV(pipeline, grid, cv=3, error_score="raise").fit(X, y)
    assert search.best_score_ > 0.9
    assert search.best_params_["verticalfederatedkernelpca__n_components"] == 3


def test_pandas_names_are_groups():
    names = load_wine().feature_names
    frame = pd.DataFrame(TRAIN, columns=names)
    groups = [names[:2], names[5:], names[2:5]]
    pca = vertical(frame, feature_groups=groups)
    assert_array_equal(pca.feature_names_in_, names)
    assert_array_equal(pca.feature_groups_[1], np.arange(5, D))
    by_position = vertical(feature_groups=pca.feature_groups_)
    new = pd.DataFrame(NEW, columns=names)
    assert_allclose(pca.transform(new), by_position.transform(NEW))
    out = pca.set_output(transform="pandas").transform(new)
    assert list(out.columns) == [f"verticalfederatedkernelpca{i}" for i in range(3)]
    assert_array_equal(out.columns, pca.get_feature_names_out())
    assert_array_equal(pca.fit_transform(frame).columns, out.columns)


@every_aggregation
@every_projection
def test_float32(aggregation, projection):
    options = {"aggregation": aggregation, "projection": projection}
    single = vertical(TRAIN.astype(np.float32), **options)
    assert single.transform(NEW.astype(np.float32)).dtype == np.float32
    assert single.fit_transform(TRAIN.astype(np.float32)).dtype == np.float32
    assert single.eigenvectors_.dtype == single.eigenvalues_.dtype == np.float32
    assert_allclose(single.transform(NEW), vertical(**options).transform(NEW), atol=1e-4)


@every_aggregation
def test_pickle_and_clone(aggregation):
    pca = vertical(aggregation=aggregation)
    before = TRAIN.copy()
    again = pickle.loads(pickle.dumps(pca))
    assert_array_equal(pca.transform(NEW), again.transform(NEW))
    assert_array_equal(pca.transform(NEW), clone(pca).fit(TRAIN).transform(NEW))
    assert_array_equal(TRAIN, before)


# ------------------------------------------------------------------------------- edge inputs


EDGES = {
    "one row": TRAIN[:1],
    "two rows": TRAIN[:2],
    "constant": np.full((6, 4), 5.3),
    "constant columns": np.column_stack([TRAIN[:9, :3], np.full((9, 2), 1e3)]),
    "duplicate rows": np.repeat(TRAIN[:3], 4, axis=0),
    "many constant rows": np.full((83, 3), 0.1),
    "zeros": np.zeros((5, 3)),
    "small": 1e-150 * TRAIN[:8],
}


@pytest.mark.parametrize("X", EDGES.values(), ids=EDGES)
@every_kernel
@pytest.mark.parametrize(
    ("aggregation", "landmarks"),
    # from the third period on there is nothing that the second did not do
    [("exact", None), ("exact", 3), (VFedPCA(n_rounds=3), None)],
    ids=["exact", "landmarks", "vfed"],
)
@every_projection
def test_edges_are_defined(X, kernel, aggregation, projection, landmarks):
    options = {"kernel": kernel, "aggregation": aggregation, "projection": projection}
    for groups in 1, X.shape[1]:
        pca = VerticalFederatedKernelPCA(
            20, feature_groups=groups, n_landmarks=landmarks, random_state=0, **options
        )
        scores = pca.fit_transform(X)
        rank = min(20, len(X), landmarks or len(X))
        assert pca.n_components_ == rank
        assert scores.shape == (len(X), rank)
        for array in arrays_in(vars(pca)):
            assert np.isfinite(array).all()
        # a poly kernel of 6e16, of the constant columns, has rounding errors of about 10
        atol = max(1e-6, 1e-5 * np.abs(scores).max())
        assert_allclose(scores, pca.transform(X), atol=atol)
        if len(np.unique(X, axis=0)) == 1:
            assert_array_equal(pca.eigenvalues_, 0)
            assert_allclose(scores, 0)


def test_rounding_errors_of_a_kernel_are_no_components():
    noise = np.random.RandomState(0).choice([-1.0, 0.0, 1.0], (N, N))
    K = 1e6 + np.spacing(1e6) * np.sign(noise + noise.T)
    values, _, _, turn = exact_kernel_pca(K.copy(), 3)
    assert_array_equal(values, 0)
    assert_array_equal(turn, 0)
    values, _, _, turn = nystroem_kernel_pca(K[:, :9], np.arange(9), 3)
    assert_array_equal(values, 0)
    assert_array_equal(turn, 0)
    pca = vertical(kernel=lambda X, Y: K, aggregation=VFedPCA())
    assert_array_equal(pca.eigenvalues_, 0)
    assert_array_equal(pca.transform(TRAIN), 0)


def test_duplicate_rows_have_the_same_score():
    pca = vertical(np.repeat(TRAIN, 2, axis=0), feature_groups=3)
    scores = pca.transform(np.repeat(TRAIN, 2, axis=0))
    assert_allclose(scores[::2], scores[1::2], atol=1e-12)


@pytest.mark.parametrize("kernel", ["rbf", "linear", "poly"])
@every_aggregation
def test_bad_rows(kernel, aggregation):
    pca = VerticalFederatedKernelPCA(kernel=kernel, aggregation=aggregation, random_state=0)
    with pytest.raises(ValueError, match=r"too large|infin"):
        pca.fit(TRAIN * 1e200)
    with pytest.raises(ValueError, match=r"too large|infin"):
        pca.fit(np.full((5, 13), 1.7e308))
    assert not hasattr(pca, "n_features_in_")
    with pytest.raises(ValueError, match="NaN"):
        pca.fit(np.where(TRAIN > 2, np.nan, TRAIN))
    with pytest.raises(ValueError, match="expecting 13 features"):
        pca.fit(TRAIN).transform(NEW[:, :4])
