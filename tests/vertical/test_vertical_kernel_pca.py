"""VerticalFederatedKernelPCA.

The oracle is scikit-learn's KernelPCA with its dense solver, of all columns in one place.
"""

import numpy as np
import pytest
from helpers import arrays_in
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.decomposition import PCA, KernelPCA
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel
from sklearn.preprocessing import scale
from test_vertical_pca import holds_a_column

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


def assert_is_kernel_pca(pca, oracle, new=NEW, tol=1e-6, kernel_of_new=None):
    """Values, vectors and coordinates of rows are those of another fit."""
    assert_allclose(pca.eigenvalues_, oracle.eigenvalues_, rtol=tol)
    assert_equal_up_to_signs(pca.eigenvectors_, oracle.eigenvectors_, tol)
    want = oracle.transform(new if kernel_of_new is None else kernel_of_new)
    assert_equal_up_to_signs(pca.transform(new), want, tol)


# --------------------------------------------------------------------------------- exact kernels


@every_kernel
@pytest.mark.parametrize("gamma", [None, 0.03])
@pytest.mark.parametrize("groups", GROUPINGS.values(), ids=GROUPINGS)
def test_exact_equals_kernel_pca(kernel, gamma, groups):
    parameters = {"kernel": kernel, "gamma": gamma, "degree": 2, "coef0": 0.5}
    pca, oracle = vertical(feature_groups=groups, **parameters), central(**parameters)
    for rows in (NEW, TRAIN):
        assert_is_kernel_pca(pca, oracle, rows, 1e-8)
    assert pca.gamma_ == (1 / D if gamma is None else gamma)
    assert_allclose(clone(pca).fit_transform(TRAIN), pca.transform(TRAIN), atol=1e-10)


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
    found, want = (each.transform(NEW) for each in (pca, oracle))
    assert_allclose(found @ found.T, want @ want.T, atol=1e-10)


# ------------------------------------------------------------------------------------- landmarks


@pytest.mark.parametrize(
    ("kernel", "m"),
    # inner products span d dimensions; squares of them of 10 columns, (10 + 2) (10 + 1) / 2 = 66
    [*((kernel, m) for kernel in KERNELS for m in (N, N + 5)), ("linear", D), ("poly", 66)],
)
def test_landmarks_that_span_the_space_are_enough(kernel, m):
    columns, parameters = 10 if m == 66 else D, {"kernel": kernel, "degree": 2, "gamma": 0.05}
    X = TRAIN[:, :columns]
    pca = vertical(X, n_landmarks=m, feature_groups=3, **parameters)
    assert_is_kernel_pca(pca, central(X, **parameters), NEW[:, :columns])
    assert m >= N or len(np.unique(pca.landmarks_)) == m


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


@pytest.mark.parametrize("kernel", [*KERNELS, laplacian_kernel])
def test_one_client_is_kernel_pca(kernel):
    parameters, of_new = {"kernel": kernel, "gamma": 0.05}, None
    oracle = None if kernel is laplacian_kernel else central(**parameters)
    if kernel is laplacian_kernel:
        oracle = central(laplacian_kernel(TRAIN), kernel="precomputed")
        of_new = laplacian_kernel(NEW, TRAIN)
    n = 1000 if kernel == "linear" else 400
    for update in ["cumulative", "original"][: 1 + (kernel in ("rbf", laplacian_kernel))]:
        pca = vertical(feature_groups=1, aggregation=VFedPCA(n, update=update), **parameters)
        assert_is_kernel_pca(pca, oracle, kernel_of_new=of_new)


@pytest.mark.parametrize("kernel", ["linear", "rbf", "poly"])
@pytest.mark.parametrize("update", ["cumulative", "original"])
def test_no_component_is_invented(kernel, update):
    X = np.random.default_rng(0).standard_normal((20, 2))
    if kernel != "linear":  # as few different rows as there are patterns of bits
        X = (X > 0).astype(float)
    method = {"kernel": kernel, "aggregation": VFedPCA(update=update)}
    pca = vertical(X, 8, feature_groups=2, **method)
    U = pca.eigenvectors_[:, pca.eigenvalues_ > 0]
    # each column has two values (or is one direction): its centred kernel has rank one
    assert 1 <= U.shape[1] <= 2
    assert_allclose(U.T @ U, np.eye(U.shape[1]), atol=1e-10)


@pytest.mark.parametrize(("scale", "update"), [(1e-100, "cumulative"), (1e80, "original")])
def test_rows_of_any_scale(scale, update):
    X = np.random.default_rng(0).standard_normal((30, 4))
    options = {"kernel": "linear", "aggregation": VFedPCA(60, update=update)}
    plain, scaled = vertical(X, 2, **options), vertical(scale * X, 2, **options)
    assert_allclose(scaled.eigenvalues_ / scale**2, plain.eigenvalues_, rtol=1e-9)
    assert_allclose(scaled.transform(scale * X) / scale, plain.transform(X), rtol=1e-6, atol=1e-9)


# ------------------------------------------------------------------------------ without a server


TOPOLOGIES = [Complete(), "ring", Star(), Graph(np.eye(4, k=1) + np.eye(4, k=-1))]


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=["complete", "ring", "star", "path"])
@every_projection
def test_neighbours_find_what_a_server_finds(topology, projection):
    """Of `VFedPCA` by the paper's algorithm, in test_vfedpca_by_the_paper.py."""
    options = {"feature_groups": 4, "projection": projection}
    server, model = vertical(**options), vertical(**options, topology=topology)
    assert server.disagreement_ == 0
    assert model.disagreement_ < 1e-7
    assert_is_kernel_pca(model, server)


def test_neighbours_send_the_kernel_in_each_exchange():
    model = vertical(feature_groups=4, topology=Ring(tol=1e-3))
    coarse = vertical(feature_groups=4, topology=Ring(tol=1e-1))
    sizes = [row["floats_up"] for row in model.communication_.table]
    assert set(sizes) == {8 * N * N}
    assert len(sizes) > len(coarse.communication_.table)
    assert coarse.disagreement_ > model.disagreement_ > 0


# ------------------------------------------------------------------------- projection of features


def test_features_of_a_linear_kernel_are_those_of_pca_and_nothing_is_left_of_them():
    linear = vertical(kernel="linear", projection="features", feature_groups=4)
    assert_equal_up_to_signs(linear.components_.T, PCA(3).fit(TRAIN).components_.T)
    assert_equal_up_to_signs(linear.transform(NEW), PCA(3).fit(TRAIN).transform(NEW))
    linear.set_params(projection="samples").fit(TRAIN)
    assert not hasattr(linear, "components_")
    assert not hasattr(linear, "mean_")


# -------------------------------------------------------------------------------- what travels


@every_aggregation
@every_projection
def test_raw_columns_stay_with_their_clients(aggregation, projection):
    pca = vertical(feature_groups=4, aggregation=aggregation, projection=projection)
    clients = getattr(pca._scorer, "clients", [])
    server = list(arrays_in(vars(pca), {id(clients)}))
    assert len(server) >= 5
    assert not any(holds_a_column(array, TRAIN) for array in server)
    everywhere = any(holds_a_column(array, TRAIN) for array in arrays_in(vars(pca)))
    assert everywhere == (projection == "samples")  # the clients' own, for new rows
    if projection == "samples":
        for client in clients:
            assert client.rows.shape == (N, len(client.columns))


@pytest.mark.parametrize("kernel", ["rbf", "poly"])
def test_exact_server_sees_only_the_sum(kernel, monkeypatch):
    sent, receive = [], PerfectChannel.receive

    def spy(self, messages, rng):
        sent.append([np.array(message) for message in messages])
        total, count = receive(self, iter(sent[-1]), rng)
        assert_allclose(total, np.sum(sent[-1], axis=0), atol=1e-10)
        return total, count

    monkeypatch.setattr(PerfectChannel, "receive", spy)
    pca = vertical(kernel=kernel, feature_groups=4)
    ((*messages,),) = sent
    assert [message.shape for message in messages] == [(N, N)] * 4
    if kernel == "rbf":
        squares = ((TRAIN[:, None] - TRAIN[None]) ** 2).sum(axis=2)
        assert_allclose(np.sum(messages, axis=0), squares, atol=1e-10)
    for array in arrays_in(vars(pca)):
        assert not any(np.array_equal(array, message) for message in messages)


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
    pca = vertical(kernel=lambda X, Y: K, aggregation=VFedPCA())
    exact = exact_kernel_pca(K.copy(), 3)[::3]
    some = nystroem_kernel_pca(K[:, :9], np.arange(9), 3)[::3]
    for array in (*exact, *some, pca.eigenvalues_, pca.transform(TRAIN)):
        assert_array_equal(array, 0)


@pytest.mark.parametrize("kernel", ["rbf", "poly"])
@every_aggregation
def test_rows_whose_kernel_overflows_are_refused(kernel, aggregation):
    pca = VerticalFederatedKernelPCA(kernel=kernel, aggregation=aggregation, random_state=0)
    for wrong in (TRAIN * 1e200, np.full((5, 13), 1.7e308)):
        with pytest.raises(ValueError, match=r"too large|infin"):
            pca.fit(wrong)
    assert not hasattr(pca, "n_features_in_")
