"""FederatedPowerPCA: what it finds, in how many rounds, through which sums, and local steps.

Oracles are scikit-learn's PCA and eigenvectors by numpy of all rows in one place, and the theory of
the noisy power method, derived where it is used. Statistical margins are five standard deviations
of the quantity, so that a correct program passes whatever the seeds.

FederatedPowerPCA against FedOA-PM as printed: Algorithm 2 of Narayanamurthy et al. (2022).

The oracle has the paper's columns, a loop over the nodes and numpy's QR. A channel adds the same
W_l to the sums of both, so that they are compared number by number and not in law. In the library a
share of 1e-10 of the last basis stays in each round, which the largest eigenvalue over the r-th can
enlarge; 1e-7 is far above that.
"""

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import PAPER, arrays_in, leading, random_basis, sine
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from rounds_helpers import (
    EXACT,
    MARGIN,
    Recorder,
    about_origin,
    assert_equals_pca,
    exact,
    examples,
    labels,
    record,
    rows,
    seeds,
)
from sklearn.base import clone

from fedpca_sklearn import (
    CommunicationLog,
    FadingChannel,
    FederatedPowerPCA,
    FederatedSubspaceTracker,
    FedPowerNoise,
    GaussianChannel,
    PerfectChannel,
)
from fedpca_sklearn.communication import Federation
from fedpca_sklearn.rounds._queries import Client, TimesScatter


@pytest.fixture
def recorded():
    yield from record()


every_method = pytest.mark.parametrize("method", EXACT)


def diagonal(values):
    """Rows whose scatter matrix about the origin has these on its diagonal."""
    return np.diag(np.sqrt(np.asarray(values, dtype=float)))


def leaning(d, r, tangent, seed=0):
    """A basis at this tangent of every angle to the first r coordinate axes."""
    W = random_basis(np.random.default_rng(seed), r, d - r)
    return np.concatenate([np.eye(r), tangent * W], axis=1)


# ------------------------------------------------------------------------------------ perfect sums


def low_rank():
    rng = np.random.default_rng(0)
    return rng.standard_normal((40, 2)) * [3, 1] @ rng.standard_normal((2, 7)) + 1


ROWS = {  # rows, components, clients
    "one client": (rows(), 3, 1),
    "ten clients": (rows(), 3, 10),
    "a client for each row": (rows(30), 3, 30),
    "a large mean": (rows() + 1e8, 3, 4),
    "as many components as the rank": (low_rank(), 2, 3),
    "more components than the rank": (low_rank(), 4, 3),
    "all components": (rows(40, 5), None, 2),
    "as many rows as columns": (rows(5, 5), None, 2),
    "fewer rows than columns": (rows(4, 9), 6, 2),
    "one row": (rows(1, 3), None, 1),
    "zeros": (np.zeros((10, 4)), 2, 2),
    "constant rows": (np.full((10, 4), 7.5), 2, 2),
    "constant rows that are large": (np.full((10, 4), 1e8), 2, 2),
    "a constant column": (rows(60, 6) * [1, 1, 0, 1, 1, 1] + 5, 3, 2),
    "one feature": (rows(20, 1), 1, 3),
}


@every_method
@pytest.mark.parametrize(
    ("of", "center"),
    [(of, center) for of in ROWS for center in (True, False) if center or "large" not in of],
)
def test_it_equals_pca_of_all_rows(method, of, center):
    X, r, k = ROWS[of]
    n, d = X.shape
    options = {**EXACT[method], "n_rounds": 1000 if method == "power" else 200, "center": center}
    model = FederatedPowerPCA(r, random_state=0, **options).fit(X, clients=labels(n, k))
    mean = X.mean(axis=0) if center else np.zeros(d)
    _, s, W = np.linalg.svd(X - mean, full_matrices=False)
    V, k = model.components_, min(n, d, r or d)
    # the rows themselves are rounded by 1e-8 where their mean is large
    tol, size = (1e-8, max(s[0], 1.0)) if np.abs(X).max() < 1e6 else (1e-7, max(s[0], 10.0))
    rank = np.sum(s[:k] > 1e-9 * np.linalg.norm(X))
    assert V.shape == (model.n_components_, d) == (k, d)
    assert_allclose(V @ V.T, np.eye(k), atol=1e-10)
    if rank:
        assert sine(V[:rank], W[:rank]) < tol
        assert_allclose(np.abs(V[:rank] @ W[:rank].T), np.eye(rank), atol=1e-6)
    # a root of what rounding leaves of zero
    assert_allclose(model.singular_values_, s[:k], rtol=tol, atol=1e-7 * size)
    assert_allclose(model.mean_, mean, rtol=1e-12, atol=1e-12)
    left = np.sum(s[k:] ** 2) / max(d - k, 1) / max(n - 1, 1)
    assert_allclose(model.noise_variance_, left, rtol=1e-6, atol=1e-12 * size**2)
    assert model.n_samples_ == model.n_samples_seen_ == n


def test_sparse_rows_are_not_densified(monkeypatch):
    X = rows() * (np.random.default_rng(0).random((120, 8)) < 0.5)
    S = sp.coo_array(X)

    def refuse(*_, **__):
        raise AssertionError("densified")

    with monkeypatch.context() as patch:
        for owner in (sp.csr_array, sp.csr_matrix, sp.csc_array, sp.csc_matrix, sp.coo_array):
            for name in ("toarray", "todense", "__array__"):
                patch.setattr(owner, name, refuse, raising=False)
        model = exact().fit(S, clients=labels(120, 4))
    assert_equals_pca(model, X, tol=1e-7)  # the gap of these rows is smaller


def test_krylov_of_rows_whose_rank_is_not_a_multiple_of_the_components():
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((10, 10)))[0]
    X = diagonal([5, 4, 3, 2, 0, 0, 0, 0, 0, 0]) @ Q
    for seed in range(20):
        model = exact(center=False).set_params(random_state=seed).fit(X)
        assert_allclose(model.singular_values_**2, [5, 4, 3], rtol=1e-9)
        assert sine(model.components_, Q[:3]) < 1e-8


def test_a_client_without_variance_has_no_say_in_local_steps():
    X = np.concatenate([rows(60, mean=0.0), np.zeros((60, 8))])
    model = FederatedPowerPCA(3, local_steps=2, center=False, n_rounds=200, random_state=0)
    model.fit(X, clients=np.repeat([0, 1], 60))
    assert sine(model.components_, leading(X, 3)) < 1e-6


@every_method
def test_an_exact_start_stops_at_once_and_is_not_written(method):
    X = rows()
    init = leading(X - X.mean(axis=0), 3)
    turned = np.random.default_rng(0).standard_normal((3, 3)) @ init  # only the span matters
    before = turned.copy()
    for start in (init, turned, turned.tolist()):
        model = exact(method=method, init=start).fit(X)
        assert model.n_iter_ == 1
        assert_equals_pca(model, X)
    assert_array_equal(turned, before)


# -------------------------------------------------------------------------------------- rounds


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"n_rounds": 1000, "tol": 1e-6, "acceleration": None}, "tol"),
        ({"n_rounds": 3, "acceleration": None}, "n_rounds"),
        ({"n_rounds": 2, "acceleration": "krylov"}, "n_rounds"),
        ({"n_rounds": 100, "tol": 1e-6, "acceleration": "krylov"}, "tol"),
        ({"n_rounds": 100, "tol": 0.0, "acceleration": "krylov"}, "exhausted"),
    ],
)
def test_why_it_stopped(options, reason):
    model = FederatedPowerPCA(3, random_state=0, **options).fit(rows())
    assert model.stop_reason_ == reason
    assert model.changes_.shape == (model.n_iter_,)
    assert model.n_iter_ <= options["n_rounds"]
    tol = options.get("tol", 1e-6)
    assert np.all(model.changes_[:-1] > tol)
    assert (model.changes_[-1] <= tol) == (reason == "tol")
    assert (model.n_iter_ == options["n_rounds"]) == (reason == "n_rounds")


def test_changes_are_how_far_a_multiplication_moved():
    X, V = rows(mean=0.0), leaning(8, 3, 1.0)
    model = about_origin(3, 5, init=V).fit(X)
    moved = [V]
    for _ in range(5):
        moved.append(moved[-1] @ X.T @ X / 1e3)
    assert_allclose(model.changes_, [sine(a, b) for a, b in pairwise(moved)], rtol=1e-6)
    assert sine(model.components_, moved[-1]) < 1e-9


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({}, "krylov"),
        ({"channel": PerfectChannel()}, "krylov"),
        ({"channel": GaussianChannel(1e-9)}, None),
        ({"channel": PerfectChannel(dropout=0.5)}, None),
        ({"local_steps": 2}, None),
        ({"mechanism": FedPowerNoise(np.inf, 1e-5, row_norm=30.0, mean="fixed")}, None),
    ],
    ids=str,
)
def test_the_space_of_all_rounds_is_kept_where_sums_are_of_one_matrix(options, chosen):
    options = {"n_rounds": 6, "tol": 0, "n_clients": 4, "random_state": 0, **options}
    by_default = FederatedPowerPCA(3, **options).fit(rows())
    named = FederatedPowerPCA(3, acceleration=chosen, **options).fit(rows())
    assert_array_equal(by_default.components_, named.components_)


@pytest.mark.parametrize("tol", [1e-3, 1e-6, 1e-9])
@every_method
def test_tol_bounds_the_error_through_the_gap(tol, method):
    # A V differs from V by (1 - lambda_{r+1} / lambda_r) of the error at least
    X, options = diagonal([4, 3, 2, 1, 0.5, 0.25]), EXACT[method] | {"tol": tol}
    model = FederatedPowerPCA(3, **options, init=leaning(6, 3, 1.0), center=False).fit(X)
    assert sine(model.components_, np.eye(6)[:3]) <= 1.1 * tol / (1 - 1 / 2)


def test_krylov_space_is_restarted():
    d, r = 400, 2
    values = np.concatenate([[1.2, 1.1], np.linspace(1.08, 0, d - 2)])
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((d, d)))[0]
    model = exact(r, center=False).fit(np.sqrt(values)[:, None] * Q)
    assert 32 < model.n_iter_ < 100  # a space of more than 64 directions
    assert model.stop_reason_ == "tol"
    assert sine(model.components_, Q[:r]) < 1e-9
    assert_allclose(model.singular_values_, np.sqrt(values[:r]), rtol=1e-10)


@pytest.mark.parametrize("channel", [GaussianChannel, FadingChannel])
@pytest.mark.parametrize("k", [1, 4])
def test_noise_on_sums_has_the_given_size_and_is_fresh(channel, k):
    n, std, rng = 40_000, 0.3, np.random.RandomState(0)
    messages = [np.full((n // 2, 2), i) for i in range(1, k + 1)]
    options = {} if channel is GaussianChannel else {"max_power": 1e9}
    noises = []
    for _ in range(2):
        got, n_sent = channel(std, **options).receive(iter(messages), rng)
        assert n_sent == k
        noises.append(got - sum(messages))
        assert abs(noises[-1].mean()) < MARGIN * std / np.sqrt(n)
        assert abs(noises[-1].std() / std - 1) < MARGIN / np.sqrt(2 * n)
    assert abs(np.mean(noises[0] * noises[1])) < MARGIN * std**2 / np.sqrt(n)
    assert_array_equal(channel(0.0, **options).receive(messages, rng)[0], sum(messages))


# ------------------------------------------------------------------------------------- structure


def test_a_sum_is_all_that_a_server_gets():
    log, calls = CommunicationLog(), [(i, np.full(3, 10.0**i)) for i in range(3)]
    for _, x in calls:
        x.flags.writeable = False
    federation = Federation(channel=PerfectChannel(), log=log)
    total = federation.sum(lambda label, x: x, calls, broadcast=np.zeros((2, 5)))
    assert_array_equal(total, [111.0] * 3)
    assert not any(np.shares_memory(total, x) for _, x in calls)
    assert not list(arrays_in(vars(federation) | {"rng": None}))
    federation.sum(lambda label, x: x, calls)
    assert federation.sum(lambda label, x: x, []) is None
    told = [(n["messages_up"], n["floats_up"], n["bytes_up"]) for n in log.table]
    assert told == [(3, 9, 72), (3, 9, 72), (0, 0, 0)]
    told = [(n["messages_down"], n["floats_down"], n["bytes_down"]) for n in log.table]
    assert told == [(3, 30, 240), (0, 0, 0), (0, 0, 0)]
    assert [n["floats_busiest"] for n in log.table][:2] == [10, 3]  # summed: once


def assert_holds_none_of(model, messages):
    found = [a for v in vars(model).values() for a in arrays_in(v)]
    assert found
    for array in found:
        for message in messages:
            part = array.ravel() if array.dtype.kind in "iufb" else np.empty(0)
            if part.size >= message.size > 1:
                windows = np.lib.stride_tricks.sliding_window_view(part, message.size)
                assert not np.any(np.all(np.isclose(windows, message.ravel()), axis=1))


POWER = FederatedPowerPCA(3, n_rounds=5, tol=0)
TRACKER = FederatedSubspaceTracker(3, n_rounds=3)


@pytest.mark.parametrize(
    ("model", "options", "n_sums"),
    [
        (POWER, {}, 7),
        (POWER, {"acceleration": "krylov"}, 7),
        (POWER, {"local_steps": 2}, 7),
        (TRACKER, PAPER, 50 + 1 + 2 * (3 + 1)),
        (TRACKER, {}, None),
    ],
    ids=str,
)
def test_a_fitted_estimator_holds_no_message_of_a_client(model, options, n_sums, recorded):
    """A channel that records is the only place where they are seen."""
    X, codes = rows(d=25), np.arange(120) % 3
    model = clone(model).set_params(channel=Recorder(), random_state=0, **options)
    model.fit(X, clients=codes)
    assert n_sums in (None, len(recorded))
    messages = [m for round_ in recorded for m in round_]
    messages += [m.T for m in messages if m.ndim == 2]
    if isinstance(model, FederatedPowerPCA):
        moments = [X[codes == i].sum(axis=0) for i in range(3)]
        assert_allclose([m[:-1] for m in recorded[0]], moments)
        messages += [*moments, *[X[codes == i].mean(axis=0) for i in range(3)], *X]
    assert_holds_none_of(model, messages)


def column(log, name):
    return [row[name] for row in log.table]


# ----------------------------------------------------------------------------------- local steps


def local_oracle(rows_, V, steps):
    """Basis after some multiplications, turned to the first one; times the number of rows."""
    W = V
    for _ in range(steps):
        W = np.linalg.qr((W @ rows_.T @ rows_).T)[0].T
    U, _, Q = np.linalg.svd(V @ W.T)
    return len(rows_) * U @ Q @ W


@examples
@given(seed=seeds, steps=st.integers(2, 4), r=st.integers(1, 3))
def test_local_bases_are_turned_to_the_common_one(seed, steps, r):
    rng = np.random.default_rng(seed)
    X = rows(20, 6, seed, mean=0.0)
    V = random_basis(rng, r, 6)
    own, zero = Client("a", X), np.zeros(6)
    got = TimesScatter(V, zero, steps).local(own)
    # each step keeps 1e-8 of the last basis, for directions without variance
    assert_allclose(got, local_oracle(X, V, steps), atol=1e-6 * 20)
    assert_allclose(got @ got.T / 400, np.eye(r), atol=1e-10)
    # whatever basis of the common subspace, and whatever signs
    R = np.linalg.qr(rng.standard_normal((r, r)))[0]
    assert_allclose(TimesScatter(R @ V, zero, steps).local(own), R @ got, atol=1e-7 * 20)
    # no rotation of the local basis is closer to the common one
    closest = np.linalg.norm(got / 20 - V)
    for _ in range(5):
        S = np.linalg.qr(rng.standard_normal((r, r)))[0]
        assert closest <= np.linalg.norm(S @ got / 20 - V) + 1e-12


# ------------------------------------------------------------------------------ Algorithm 2


def fedoa_pm(nodes, U, noise):
    """Lines 3 to 13: Z_k is n x d_k, U_0 is n x r, and noise has W_1 to W_L; W_{L+1} is zero.

    The text leaves the signs of a QR decomposition open; here R has a positive diagonal.
    """
    for W in noise:
        Q, R = np.linalg.qr(sum(Z @ (Z.T @ U) for Z in nodes) + W)
        U = Q * np.sign(np.diag(R))
    return U, np.linalg.eigvalsh(sum(U.T @ Z @ Z.T @ U for Z in nodes))[-1]


class GivenNoise(PerfectChannel):
    """Adds the next W_l of a list, which is outside of the estimator, to a sum of its shape."""

    to_come: list = []

    def receive(self, messages, rng):
        total, count = super().receive(messages, rng)
        if self.to_come and total.shape == self.to_come[0].T.shape:
            total = total + self.to_come.pop(0).T
        return total, count


@pytest.mark.parametrize("size", [0.0, 0.3])
@pytest.mark.parametrize(
    ("n", "rows", "r", "n_rounds"),
    [
        (10, [5, 7], 2, 1),
        (20, [30], 3, 10),  # one node
        (8, [1, 1, 1, 40], 4, 3),
        (15, [20, 0, 9], 3, 8),  # a node without rows
        (12, [4, 4], 6, 5),  # nodes with fewer rows than directions
        (6, [9, 2], 6, 2),  # all directions
    ],
)
def test_rounds_are_those_of_algorithm_2(n, rows, r, n_rounds, size):
    rng = np.random.default_rng(n)
    nodes = [rng.standard_normal((n, m)) / np.arange(1, n + 1)[:, None] ** 0.7 for m in rows]
    start = random_basis(rng, r, n)
    noise = [size * rng.standard_normal((n, r)) for _ in range(n_rounds)]
    GivenNoise.to_come = list(noise)
    model = FederatedPowerPCA(
        r,
        n_rounds=n_rounds,
        acceleration=None,
        tol=0,
        center=False,
        channel=GivenNoise(),
        init=start,
    ).fit(np.hstack(nodes).T, clients=np.repeat(np.arange(len(rows)), rows))
    U, largest = fedoa_pm(nodes, start.T, noise)
    assert not GivenNoise.to_come
    assert sine(model.components_, U.T) < 1e-7
    assert_allclose(model.singular_values_[0] ** 2, largest, rtol=1e-9)
    senders = np.count_nonzero(rows)
    assert model.communication_.floats_up == senders * (n_rounds * n * r + r * r + 2)
