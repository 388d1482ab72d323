"""VerticalFederatedKernelPCA.

The oracle is scikit-learn's KernelPCA with its dense solver, of all columns in one place.

VFedPCA against Algorithms 2 to 5 of Cheung et al. (2022), written with n x n matrices and loops.

The paper does not say with which signs eq. 13 adds eigenvectors; the rule here is the library's, by
singular vectors. Of kernels, eq. 14 updates the local data X_i, of which the kernel is made anew
("..._columns"), or by another reading the factor Phi of K = Phi Phi^T.
"""

from functools import partial

import numpy as np
import pytest
from helpers import arrays_in, peak_bytes
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from rounds_helpers import examples, seeds
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.decomposition import KernelPCA
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel
from sklearn.preprocessing import scale
from test_vertical_pca import holds_a_column

from fedpca_sklearn import (
    Complete,
    PerfectChannel,
    Ring,
    Star,
    VerticalFederatedKernelPCA,
    VerticalFederatedPCA,
    VFedPCA,
)
from fedpca_sklearn.communication import Federation
from fedpca_sklearn.communication._topology import Peers
from fedpca_sklearn.rounds._queries import Client
from fedpca_sklearn.vertical._vertical_kernels import exact_kernel_pca, nystroem_kernel_pca
from fedpca_sklearn.vertical._vfedpca import Columns, local_power

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
        assert pca.n_components_ == len(pca.get_feature_names_out()) == rank
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


# --------------------------------------------------------------------------- VFedPCA by its paper

WEIGHTINGS = ["eigenvalue", "eigenvalue_per_column", "equal", "projection"]
OF_PAPER = {"server": None, "complete": Complete(), "ring": Ring(), "star": Star()}
every_topology = pytest.mark.parametrize("topology", OF_PAPER)
every_weighting = pytest.mark.parametrize("weighting", WEIGHTINGS)
UPDATES = ["cumulative", "original"]
every_update = pytest.mark.parametrize(
    "update", [*UPDATES, "cumulative_columns", "original_columns"]
)
GROUPS = [[0, 3], [1, 2, 4, 5, 6], [7], [8, 9, 10], [11, 12]]


# -------------------------------------------------------------------------------- the paper's text


def unit(v):
    return v / np.linalg.norm(v) if v.any() else v


def heard_of(topology, exchange, p):
    """Clients whose vectors each client merges: Algorithm 5 for direct neighbours."""
    if exchange == "consensus" or OF_PAPER[topology] is None:
        return [list(range(p))] * p
    A = OF_PAPER[topology].neighbours(p)
    return [[j for j in range(p) if A[i, j] or i == j] for i in range(p)]


def signs_of(W, heard):
    """Signs for the columns of W: from its singular vector, or from products of neighbours."""
    G = W.T @ W
    for i, some in enumerate(heard):
        G[i, [j for j in range(len(heard)) if j not in some]] = 0
    return np.where(np.linalg.eigh(G)[1][:, -1] < 0, -1.0, 1.0)


def eq15(w, half):
    """Eq. 15 with eta the mean of weights that add up to one."""
    order, eta = np.argsort(-w, kind="stable"), np.mean(w)
    out = w.copy()
    for place, i in enumerate(order):
        out[i] *= 1 + eta if place < half(len(w) / 2) else 1 - eta
    return out


def products(X):
    return X @ X.T


def algorithms(
    factors,
    start,
    T,
    L,
    heard,
    *,
    weighting,
    scaling,
    update,
    warm=True,
    sizes=None,
    matrix=products,
    left=None,
):
    """Common vectors of each client after T periods, and the last weights.

    ``factors``: X_i of shape (n, f_i), with A_i = ``matrix(X_i)``. ``start``: one for all, or one
    each. ``left``: projections of the clients, on what is left after earlier components.
    """
    p, n = len(factors), np.shape(start)[-1]
    starts = np.broadcast_to(start, (p, n))
    data = [X.copy() for X in factors]
    left = [np.eye(n)] * p if left is None else left
    U = None
    for _ in range(T):
        alpha, a = np.zeros(p), np.zeros((n, p))
        for i, X in enumerate(data):
            A, v = left[i] @ matrix(X) @ left[i].T, starts[i]
            v = unit(U[:, i] if warm and U is not None else v)
            for _ in range(L):
                v = unit(A @ v)  # eq. 5
            alpha[i], a[:, i] = (A @ v) @ v, v  # eq. 6
        if weighting == "eigenvalue_per_column":
            alpha = alpha / sizes
        w = np.ones(p) / p if weighting == "equal" else alpha / alpha.sum()
        s = signs_of(a * w, heard)
        U = np.zeros((n, p))
        for i, some in enumerate(heard):
            v = w[some] / w[some].sum()
            if scaling and weighting != "equal":
                v = eq15(v, {True: np.floor, "ceil": np.ceil}[scaling])
            total = sum(v[k] * s[j] * a[:, j] for k, j in enumerate(some))  # eq. 13
            if weighting == "projection":
                P = sum(v[k] * np.outer(a[:, j], a[:, j]) for k, j in enumerate(some))
                u = np.linalg.eigh(P)[1][:, -1]
                total = u * (-1 if u @ total < 0 else 1)
            U[:, i] = unit(total)
        for i in range(p):  # eq. 14
            X = data[i] if update.startswith("cumulative") else factors[i]
            M = (X.T @ left[i].T @ U[:, i])[:, None]
            norm = np.linalg.norm(M @ M.T, 2)
            data[i] = X @ (M @ M.T) / norm if norm else 0 * X
    full = all(len(some) == p for some in heard)
    return U if full else U * signs_of(U, heard), w


def same(A, B, atol=1e-7):
    """Two sets of columns are the same up to one sign for all."""
    sign = np.sign(np.sum(A * B))
    assert_allclose(sign * A, B, rtol=0, atol=atol)


def rows(n=20, seed=0, center=True):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2)) @ rng.uniform(0.5, 2, (2, 13)) + rng.standard_normal((n, 13))
    return X - X.mean(axis=0) if center else X + 1


def start_of(n, seed=0):
    return unit(np.random.RandomState(seed).standard_normal(n))


# ---------------------------------------------------------------------------------- every mode


def factor(K):
    """Phi with K = Phi Phi^T."""
    values, V = np.linalg.eigh(K)
    return V * np.sqrt(np.maximum(values, 0))


def centred(K):
    H = np.eye(len(K)) - 1 / len(K)
    return H @ K @ H


def of_columns(X):
    return centred(rbf_kernel(X, gamma=0.1))


@every_weighting
@every_update
@every_topology
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize(
    ("exchange", "scaling", "T", "projection"),
    [
        ("consensus", False, 1, "samples"),
        ("neighbours", True, 3, "features"),
        ("neighbours", "ceil", 3, "samples"),
    ],
)
def test_every_mode_is_the_papers_algorithm_of_kernels(
    weighting, update, topology, center, exchange, scaling, T, projection
):
    X, new, gamma = rows(center=False), rows(8, 1, center=False), 0.1
    kernels = [rbf_kernel(X[:, g], gamma=gamma) for g in GROUPS]
    kernels = [centred(K) for K in kernels] if center else kernels
    sizes = [len(g) for g in GROUPS]
    heard = heard_of(topology, exchange, 5)
    options = {"weighting": weighting, "update": update}
    factors, matrix = [factor(K) for K in kernels], products
    if update.endswith("_columns"):
        factors = [X[:, g] for g in GROUPS]
        matrix = of_columns if center else partial(rbf_kernel, gamma=gamma)
    method = VFedPCA(25, T, weight_scaling=scaling, exchange=exchange, **options)
    options |= {"scaling": scaling, "sizes": sizes, "matrix": matrix}
    U, w = algorithms(factors, start_of(20), T, 25, heard, **options)
    given = {"gamma": gamma, "center": center, "topology": OF_PAPER[topology]}
    given |= {"projection": projection, "aggregation": method, "n_jobs": 2 if T == 3 else None}
    model = VerticalFederatedKernelPCA(1, feature_groups=GROUPS, random_state=0, **given).fit(X)
    own = getattr(model, "client_vectors_", [model.eigenvectors_] * 5)
    same(np.concatenate(own, axis=1), U)
    assert_allclose(model.client_weights_[:, 0], w / w.max(), atol=1e-7)
    energies = [u @ K @ u for u, K in zip(U.T, kernels, strict=True)]
    assert_allclose(model.eigenvalues_, w @ energies / w.sum(), rtol=1e-7)
    scores = model.transform(X)[:, 0]
    assert_allclose(model.fit_transform(X)[:, 0], scores, atol=1e-10)
    if projection == "samples":
        for rows_ in (X, new):
            each = []
            for g, wi, u in zip(GROUPS, w, U.T, strict=True):
                K, k = (rbf_kernel(Y[:, g], X[:, g], gamma=gamma) for Y in (X, rows_))
                if center:
                    k = k - k.mean(axis=1)[:, None] - K.mean(axis=0) + K.mean()
                each.append(wi * k @ u)
            want = sum(each) / w.sum() / np.sqrt(model.eigenvalues_[0])
            same(model.transform(rows_)[:, 0], want)
    else:  # Z = U^T X, rows then projected on it
        Z = X - X.mean(axis=0) * center
        part = np.empty(13)
        for g, u in zip(GROUPS, U.T, strict=True):
            part[g] = Z[:, g].T @ u
        same(model.components_[0], unit(part))
        same(scores, Z @ unit(part))


@every_update
@every_weighting
@pytest.mark.parametrize(
    ("exchange", "scaling", "warm"),
    [("consensus", False, True), ("consensus", True, False), ("neighbours", "ceil", True)],
)
@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_later_components_are_those_of_what_is_left(
    update, weighting, exchange, scaling, warm, kernel
):
    X, heard = rows(), heard_of("ring", exchange, 5)
    factors, more = [X[:, g] for g in GROUPS], {}
    if kernel == "rbf" and update.endswith("_columns"):
        more["matrix"] = of_columns
    elif kernel == "rbf":
        factors = [factor(of_columns(F)) for F in factors]
    left = [np.eye(20)] * 5
    starts = np.random.RandomState(0)
    options = {"weighting": weighting, "update": update}
    method = VFedPCA(15, 3, exchange=exchange, weight_scaling=scaling, warm_start=warm, **options)
    shared = {"feature_groups": GROUPS, "topology": Ring(), "random_state": 0}
    if kernel == "rbf":
        model = VerticalFederatedKernelPCA(3, gamma=0.1, aggregation=method, **shared).fit(X)
        found = getattr(model, "client_vectors_", [model.eigenvectors_] * 5)
    else:
        clients = [Client(i, np.ascontiguousarray(X[:, g].T)) for i, g in enumerate(GROUPS)]
        peers = Peers(Ring().neighbours(5), 1e-10, None, np.random.RandomState(0), None)
        found = [U.T for U in method.left_vectors(peers, clients, 3).vectors]
    for j in range(3):
        start, sizes = unit(starts.standard_normal(20)), [len(g) for g in GROUPS]
        more |= {"scaling": scaling, "warm": warm, "sizes": sizes, "left": left}
        U, _ = algorithms(factors, start, 3, 15, heard, **options, **more)
        same(np.transpose([V[:, j] for V in found]), U)
        left = [(np.eye(20) - np.outer(u, u)) @ P for P, u in zip(left, U.T, strict=True)]


@every_update
@pytest.mark.parametrize("center", [True, False])
def test_an_indefinite_kernel(update, center):
    """Eq. 14 as an update of K: K u u^T K / u^T K u, or of columns that are far from zero.

    Clients with a negative eigenvalue, of the kernel or of its update, have no weight.
    """
    X, by_columns = rows(30, 4), update.endswith("_columns")
    X, gamma, c = (X + 2, 0.01, 0.3) if by_columns else (X, 0.1, -0.5)

    def of(F):
        K = np.tanh(gamma * F @ F.T + c)
        return centred(K) if center else K

    first = [X[:, g] if by_columns else of(X[:, g]) for g in GROUPS]
    now, u = first, start_of(30)
    for _ in range(3):
        alpha, a = [], []
        for F in now:
            K, v = of(F) if by_columns else F, u
            for _ in range(40):
                v = unit(K @ v)
            alpha.append(max(v @ K @ v, 0))
            a.append(v)
        w = np.array(alpha) / max(alpha)
        u = unit((signs_of(np.transpose(a) * w, [range(5)] * 5) * w) @ a)
        before = now if update.startswith("cumulative") else first
        images = [F.T @ u for F in before]
        sizes = [M @ M if by_columns else u @ M for M in images]
        left = [F @ M if by_columns else M for F, M in zip(before, images, strict=True)]
        now = [np.outer(L, M) / s for L, M, s in zip(left, images, sizes, strict=True)]
    method = VFedPCA(40, 3, weighting="eigenvalue", update=update)
    options = {"kernel": "sigmoid", "gamma": gamma, "coef0": c, "center": center}
    model = VerticalFederatedKernelPCA(
        1, feature_groups=GROUPS, aggregation=method, random_state=0, **options
    ).fit(X)
    same(model.eigenvectors_[:, 0], u, 1e-6)
    assert_allclose(model.client_weights_[:, 0], w, atol=1e-6)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
@pytest.mark.parametrize(
    "aggregation",
    [
        "exact",
        *(VFedPCA(n_rounds=3, update=f"{way}_columns") for way in ("cumulative", "original")),
    ],
)
def test_updates_of_columns_far_from_zero_lose_no_digits(kernel, aggregation):
    options = {"kernel": kernel, "gamma": 0.01, "aggregation": aggregation, "random_state": 0}
    X = np.rint(5 * rows(50, 3))  # as exact with 2^40 more
    here, there = (VerticalFederatedKernelPCA(2, **options).fit(Y) for Y in (X, X + 2.0**40))
    assert_allclose(there.eigenvalues_, here.eigenvalues_, rtol=1e-9)


# ----------------------------------------------------------------------------------- properties


@examples
@given(seed=seeds, p=st.integers(1, 6))
def test_a_period_of_projections_never_lowers_the_variance(seed, p):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((12, 15)) * rng.uniform(0, 3, 15)
    X -= X.mean(axis=0)
    variances = []
    for n_rounds in range(1, 5):
        method = VFedPCA(1, n_rounds)
        model = VerticalFederatedPCA(1, feature_groups=p, method=method, random_state=seed % 100)
        u = unit(X @ model.fit(X).components_[0])
        # of X X^T along u itself, not of what a Rayleigh-Ritz step makes of it
        found = method.left_vectors(*federation_and_clients(X, p, seed % 100), 1).vectors[0][0]
        variances.append(np.sum((found @ X) ** 2))
        assert np.sum((u @ X) ** 2) >= variances[-1] * (1 - 1e-9)
    assert np.all(np.diff(variances) >= -1e-9 * variances[-1])


def federation_and_clients(X, p, seed):
    groups = np.array_split(np.arange(X.shape[1]), p)
    clients = [Client(i, np.ascontiguousarray(X[:, g].T)) for i, g in enumerate(groups)]
    return Federation(rng=np.random.RandomState(seed)), clients


@examples
@given(seed=seeds, steps=st.integers(1, 30), d=st.integers(2, 12))
def test_local_power_keeps_the_bound_of_theorem_1(seed, steps, d):
    """Appendix A: sin^2 of the angle to the leading vector, and the error of the eigenvalue.

    Eq. 22 ends in tan where its middle line has tan^2, and eq. 24 alike; tan^2 is what follows.
    """
    rng = np.random.default_rng(seed)
    n = 15
    X = rng.standard_normal((n, d)) * rng.uniform(0.1, 3, d)
    values, V = np.linalg.eigh(X @ X.T)
    a = unit(rng.standard_normal(n))
    cos = abs(a @ V[:, -1])
    tan2, ratio = (1 - cos**2) / cos**2, values[-2] / values[-1]
    value, found = local_power(Columns(0, d, X.T), a, steps)
    sin2 = np.sum((found - V[:, -1] * (V[:, -1] @ found)) ** 2)
    bound = tan2 * ratio ** (2 * steps)
    assert sin2 <= bound * (1 + 1e-6) + 1e-14
    largest = max(values[-1] - values[0], 0)
    assert abs(value - values[-1]) <= largest * bound * (1 + 1e-6) + 1e-12 * values[-1]


@pytest.mark.parametrize("update", UPDATES)
def test_columns_need_no_n_by_n_products(update):
    X = np.random.default_rng(0).standard_normal((3000, 40))
    model = VerticalFederatedPCA(1, feature_groups=4, method=VFedPCA(update=update))
    assert peak_bytes(lambda: model.fit(X)) < 3000 * 3000 * 8 / 4


# ----------------------------------------------------------------------------- gamma and centring


@pytest.mark.parametrize("kernel", ["rbf", "sigmoid", "poly", "linear"])
def test_eq_9_as_printed_has_the_kernel_itself(kernel):
    X, new = rows(center=False), rows(8, 1, center=False)
    model = VerticalFederatedKernelPCA(2, kernel=kernel, gamma=0.02, center=False).fit(X)
    K = {
        "rbf": lambda A, B: np.exp(-0.02 * ((A[:, None] - B) ** 2).sum(axis=-1)),
        "sigmoid": lambda A, B: np.tanh(0.02 * A @ B.T + 1),
        "poly": lambda A, B: (0.02 * A @ B.T + 1) ** 3,
        "linear": lambda A, B: A @ B.T,
    }[kernel]
    values, V = np.linalg.eigh(K(X, X))
    assert_allclose(model.eigenvalues_, values[::-1][:2], rtol=1e-9)
    for j in range(2):
        v = V[:, -1 - j]
        same(model.eigenvectors_[:, j], v, 1e-8)
        same(model.transform(new)[:, j], K(new, X) @ v / np.sqrt(values[-1 - j]), 1e-7)
    if kernel == "linear":  # 15 rows span the 13 columns
        some = clone(model).set_params(n_landmarks=15, random_state=0).fit(X)
        assert_allclose(some.eigenvalues_, values[::-1][:2], rtol=1e-6)
        found, want = (np.abs(each.transform(X)) for each in (some, model))
        assert_allclose(found, want, atol=1e-6)


def test_a_kernel_or_a_client_without_a_positive_eigenvalue_is_named_or_left_out():
    X = np.random.default_rng(0).standard_normal((5, 40))
    for coef0 in (0.0, 1.0):  # not centred the kernel of the latter has a positive trace
        options = {"kernel": "sigmoid", "coef0": coef0, "gamma": -0.001}
        assert np.linalg.eigvalsh(centred(np.tanh(-0.001 * X @ X.T + coef0)))[-1] < 1e-12
        with pytest.warns(UserWarning, match=rf"coef0={coef0} .* no eigenvalue is positive"):
            model = VerticalFederatedKernelPCA(1, **options).fit(X)
        assert_array_equal(model.eigenvalues_, 0)
    X = np.random.default_rng(0).standard_normal((30, 12)) * np.repeat([1.0, 0.02], 6)
    model = VerticalFederatedKernelPCA(
        1,
        kernel=lambda A, B: np.tanh(A @ B.T if A.std() > 0.1 else -A @ B.T),
        aggregation=VFedPCA(100, 1, weighting="equal"),
        random_state=0,
    ).fit(X)
    assert_array_equal(model.client_weights_[:, 0], [1, 0])


@pytest.mark.parametrize("kernel", ["rbf", "poly", "sigmoid", "linear", rbf_kernel])
def test_gamma_of_clients_and_below_zero_for_sigmoid_alone(kernel):
    X, options = rows(), {"kernel": kernel, "feature_groups": GROUPS, "random_state": 0}
    model = VerticalFederatedKernelPCA(1, aggregation=VFedPCA(), **options)
    if kernel in ("rbf", "poly", "sigmoid"):
        own = [1 / len(g) for g in GROUPS]
        assert_allclose(model.fit(X).gamma_, own if kernel == "rbf" else np.full(5, 1 / 13))
        assert_allclose(model.set_params(gamma=0.3).fit(X).gamma_, np.full(5, 0.3))
        exact = clone(model).set_params(aggregation="exact", gamma=None)
        assert exact.fit(X).gamma_ == 1 / 13
    if kernel != "sigmoid":
        with pytest.raises(ValueError, match=r"gamma=-0.5 below zero needs kernel='sigmoid'"):
            model.set_params(gamma=-0.5).fit(X)


def test_the_sign_of_gamma_in_eq_12():
    X = np.random.default_rng(0).standard_normal((40, 24))
    options = {"kernel": "sigmoid", "feature_groups": 4, "random_state": 0}
    options |= {"gamma": -0.01, "coef0": 0.5, "aggregation": VFedPCA()}
    agreed = VerticalFederatedKernelPCA(1, center=False, **options).fit(X)
    assert (agreed.client_weights_ > 0).all()
    # centred it is nearly negative: no client has a weight
    for aggregation in VFedPCA(), "paper":
        with pytest.warns(UserWarning, match="no client's leading eigenvalue is positive"):
            none = agreed.set_params(center=True, aggregation=aggregation).fit(X)
        assert_array_equal(none.client_weights_, 0)
        assert_array_equal(none.transform(X), 0)
