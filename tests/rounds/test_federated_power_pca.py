"""Channels, sums over clients, FederatedPowerPCA and FederatedSubspaceTracker.

Oracles are scikit-learn's PCA and eigenvectors by numpy of all rows in one place, and the theory of
the noisy power method, derived where it is used. Statistical margins are five standard deviations
of the quantity, so that a correct program passes whatever the seeds.
"""

from itertools import pairwise
from types import SimpleNamespace

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
from helpers import arrays_in, leading, random_basis, sine
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from rounds_helpers import (
    EXACT,
    MARGIN,
    Recorder,
    about_origin,
    assert_equals_pca,
    assert_same,
    exact,
    examples,
    labels,
    nan,
    record,
    rows,
    seeds,
)
from sklearn.base import clone
from sklearn.datasets import load_digits, make_low_rank_matrix
from sklearn.decomposition import PCA, TruncatedSVD

from fedpca_sklearn import (
    CommunicationLog,
    DistributedPCA,
    FadingChannel,
    FederatedPCA,
    FederatedPowerPCA,
    FederatedSubspaceTracker,
    FedPowerNoise,
    GaussianChannel,
    PerfectChannel,
    VerticalFederatedPCA,
    make_power_law,
)
from fedpca_sklearn.communication import Federation
from fedpca_sklearn.rounds._client import Client
from fedpca_sklearn.rounds._queries import TimesScatter


@pytest.fixture
def recorded():
    yield from record()


every_method = pytest.mark.parametrize("method", EXACT)


# ------------------------------------------------------------------------------ data and helpers


def squares(A, B):
    """Sum of the squared sines of all angles between two spans."""
    A, B = (np.linalg.qr(np.asarray(M, np.float64).T)[0].T for M in (A, B))
    return np.sum((A - A @ B.T @ B) ** 2)


def diagonal(values):
    """Rows whose scatter matrix about the origin has these on its diagonal."""
    return np.diag(np.sqrt(np.asarray(values, dtype=float)))


def leaning(d, r, tangent, seed=0):
    """A basis at this tangent of every angle to the first r coordinate axes."""
    rng = np.random.default_rng(seed)
    W = random_basis(rng, r, d - r)
    return np.concatenate([np.eye(r), tangent * W], axis=1)


# ------------------------------------------------------------------------------------ perfect sums


@every_method
@pytest.mark.parametrize("k", range(1, 11))
def test_it_equals_pca_of_all_rows(method, k):
    X = rows()
    model = exact(method=method).fit(X, clients=labels(120, k))
    assert_equals_pca(model, X)
    assert_allclose(np.abs(model.components_ @ leading(X - X.mean(0), 3).T), np.eye(3), atol=1e-7)
    assert len(model.clients_) == k
    assert model.stop_reason_ == "tol"


@examples
@given(
    seed=seeds,
    n=st.integers(12, 60),
    d=st.integers(4, 12),
    k=st.integers(1, 10),
    r=st.integers(1, 3),
)
def test_it_equals_pca_of_any_rows(seed, n, d, k, r):
    X = rows(n, d, seed)
    assert_equals_pca(exact(r).fit(X, clients=labels(n, k, seed)), X, r, tol=1e-7)


@every_method
def test_every_row_may_be_a_client(method):
    X = rows(30)
    assert_equals_pca(exact(method=method).fit(X, clients=np.arange(30)), X)


@every_method
def test_contiguous_shards_stand_in_for_clients(method):
    X = rows()
    model = exact(method=method, n_clients=7).fit(X)
    assert_equals_pca(model, X)
    assert model.clients_ == list(range(7))


@pytest.mark.parametrize(
    ("of", "want"),
    [
        (lambda i: int(i), [0, 1, 2]),
        (lambda i: f"c{i}", ["c0", "c1", "c2"]),
        (lambda i: np.int8(2 - i), [0, 1, 2]),
        (lambda i: bool(i), [False, True]),
        (lambda i: "né"[: i + 1] if i < 2 else "北", ["n", "né", "北"]),
    ],
)
def test_labels_of_any_type(of, want):
    X, codes = rows(), labels(120, 3)
    model = exact().fit(X, clients=[of(i) for i in codes])
    assert model.clients_ == want
    assert_equals_pca(model, X)


@every_method
@pytest.mark.parametrize("kind", [sp.csr_array, sp.csc_matrix, sp.coo_array])
def test_sparse_rows_are_not_densified(method, kind, monkeypatch):
    X = rows() * (np.random.default_rng(0).random((120, 8)) < 0.5)
    S = kind(X)

    def refuse(*_, **__):
        raise AssertionError("densified")

    for owner in (sp.csr_array, sp.csr_matrix, sp.csc_array, sp.csc_matrix, sp.coo_array):
        for name in ("toarray", "todense", "__array__"):
            monkeypatch.setattr(owner, name, refuse, raising=False)
    model = exact(method=method).fit(S, clients=labels(120, 4))
    monkeypatch.undo()
    assert_equals_pca(model, X, tol=1e-7)  # the gap of these rows is smaller


@every_method
@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("center", [True, False])
def test_weights_equal_repeated_rows(method, kind, center):
    X, codes = rows(60), labels(60, 4)
    w = np.random.default_rng(0).integers(0, 4, 60)
    model = exact(method=method, center=center)
    weighted = clone(model).fit(kind(X), clients=codes, sample_weight=w)
    repeated = clone(model).fit(np.repeat(X, w, axis=0), clients=np.repeat(codes, w))
    assert_same(weighted, repeated)
    assert weighted.n_samples_seen_ == w.sum()
    scaled = clone(model).fit(X, clients=codes, sample_weight=w / 2)
    assert sine(scaled.components_, repeated.components_) < 1e-8
    assert_allclose(scaled.singular_values_ * np.sqrt(2), repeated.singular_values_, rtol=1e-8)


@every_method
def test_about_the_origin_it_equals_truncated_svd(method):
    X = rows(mean=1.0)
    model = exact(method=method, center=False).fit(X, clients=labels(120, 5))
    svd = TruncatedSVD(3, algorithm="arpack", random_state=0).fit(X)
    assert sine(model.components_, svd.components_) < 1e-8
    assert sine(model.components_, leading(X, 3)) < 1e-8
    assert_allclose(model.singular_values_, svd.singular_values_, rtol=1e-9)
    assert_array_equal(model.mean_, np.zeros(8))
    assert model.communication_.rounds == model.n_iter_ + 1


@every_method
def test_a_large_mean_does_no_harm(method):
    X = rows()
    far = X + 1e8
    model = exact(method=method).fit(far, clients=labels(120, 4))
    # the rows themselves are rounded by 1e-8, of some 1e2 in all
    assert_equals_pca(model, far, tol=1e-7)
    assert sine(model.components_, leading(X - X.mean(axis=0), 3)) < 1e-7


@every_method
@pytest.mark.parametrize("r", [2, 4, None])
def test_rows_of_low_rank(method, r):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 2)) * [3, 1] @ rng.standard_normal((2, 7)) + 1
    model = FederatedPowerPCA(r, **EXACT[method] | {"n_rounds": 60}, random_state=0)
    model.fit(X, clients=labels(40, 3))
    pca = PCA(r, svd_solver="full").fit(X)
    assert model.n_components_ == pca.n_components_
    assert sine(model.components_[:2], pca.components_[:2]) < 1e-8
    assert_allclose(model.singular_values_, pca.singular_values_, rtol=1e-8, atol=1e-6)
    V = model.components_
    assert_allclose(V @ V.T, np.eye(len(V)), atol=1e-10)


@pytest.mark.parametrize("shape", [(40, 5), (5, 5), (4, 9), (2, 9), (1, 3)], ids=str)
@every_method
def test_all_components(method, shape):
    X = rows(*shape)
    model = FederatedPowerPCA(None, **EXACT[method] | {"n_rounds": 50}, random_state=0).fit(X)
    Z = X - X.mean(axis=0)
    rank = min(shape[0] - 1, shape[1])
    assert model.n_components_ == min(shape)
    s = np.zeros(min(shape))
    s[:] = np.linalg.svd(Z, compute_uv=False)
    assert_allclose(model.singular_values_, s, rtol=1e-9, atol=1e-6)
    if rank:
        assert sine(model.components_[:rank], leading(Z, rank)) < 1e-8
    assert np.isfinite(model.noise_variance_)


@pytest.mark.parametrize("method", ["power", "krylov"])
def test_more_components_than_rows_are_as_many_as_rows(method):
    X = rows(4, 9)
    model = FederatedPowerPCA(6, **EXACT[method] | {"n_rounds": 50}, random_state=0).fit(X)
    assert model.n_components_ == 4
    assert sine(model.components_[:3], leading(X - X.mean(axis=0), 3)) < 1e-8


def test_krylov_of_rows_whose_rank_is_not_a_multiple_of_the_components():
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((10, 10)))[0]
    X = diagonal([5, 4, 3, 2, 0, 0, 0, 0, 0, 0]) @ Q
    for seed in range(20):
        model = exact(center=False).set_params(random_state=seed).fit(X)
        V = model.components_
        assert_allclose(V @ V.T, np.eye(3), atol=1e-10)
        assert_allclose(model.singular_values_**2, [5, 4, 3], rtol=1e-9)
        assert sine(V, Q[:3]) < 1e-8


@every_method
@pytest.mark.parametrize("value", [0.0, 7.5, 1e8])
def test_constant_rows(method, value):
    model = exact(2, method=method).fit(np.full((10, 4), value))
    assert_allclose(model.mean_, value, rtol=1e-14)
    assert_allclose(model.singular_values_, 0, atol=1e-6)
    V = model.components_
    assert V.shape == (2, 4)
    assert_allclose(V @ V.T, np.eye(2), atol=1e-10)
    assert model.noise_variance_ == pytest.approx(0, abs=1e-12)


@every_method
def test_one_feature(method):
    X = np.random.default_rng(0).standard_normal((20, 1)) + 4
    model = exact(1, method=method).fit(X, clients=labels(20, 3))
    assert_allclose(model.components_, [[1.0]])
    assert_allclose(model.mean_, X.mean(axis=0), rtol=1e-12)
    assert_allclose(model.explained_variance_, X.var(ddof=1), rtol=1e-12)


def test_only_columns_that_differ_have_a_part():
    X = rows(60, 6)
    X[:, 2] = 5.0
    model = exact().fit(X)
    assert_allclose(model.components_[:, 2], 0, atol=1e-10)


@pytest.mark.parametrize("local_steps", [1, 3])
def test_jobs_do_not_matter(local_steps):
    X, codes = rows(), labels(120, 5)
    model = FederatedPowerPCA(
        3, n_rounds=10, tol=0, local_steps=local_steps, channel=GaussianChannel(0.1), random_state=3
    )
    one = clone(model).fit(X, clients=codes)
    two = clone(model).set_params(n_jobs=2).fit(X, clients=codes)
    assert_same(two, one, 1e-11)
    assert_allclose(two.changes_, one.changes_, rtol=1e-7)


def test_clients_in_other_processes():
    X, codes = rows(40), labels(40, 3)
    channel = GaussianChannel(0.1)
    model = FederatedPowerPCA(2, n_rounds=4, channel=channel, random_state=0)
    here = clone(model).fit(X, clients=codes)
    with joblib.parallel_config(backend="loky", n_jobs=2):
        there = clone(model).fit(X, clients=codes)
    assert_same(there, here, 1e-11)
    assert there.communication_ == here.communication_


# -------------------------------------------------------------------------------------- rounds


def test_an_exact_start_stops_at_once():
    X = rows()
    init = leading(X - X.mean(axis=0), 3)
    turned = np.random.default_rng(0).standard_normal((3, 3)) @ init  # only the span matters
    for start in (init, turned, turned.tolist()):
        for method in EXACT:
            model = exact(method=method, init=start).fit(X)
            assert model.n_iter_ == 1
            assert_equals_pca(model, X)


def test_the_start_is_not_written():
    init = np.random.default_rng(0).standard_normal((3, 8))
    before = init.copy()
    FederatedPowerPCA(3, init=init).fit(rows())
    assert_array_equal(init, before)


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
    if reason == "n_rounds":
        assert model.n_iter_ == options["n_rounds"]


def test_changes_are_how_far_a_multiplication_moved():
    X, V = rows(mean=0.0), leaning(8, 3, 1.0)
    model = about_origin(3, 5, init=V).fit(X)
    moved = [V]
    for _ in range(5):
        moved.append(moved[-1] @ X.T @ X / 1e3)
    want = [sine(a, b) for a, b in pairwise(moved)]
    assert_allclose(model.changes_, want, rtol=1e-6)
    assert sine(model.components_, moved[-1]) < 1e-9


@pytest.mark.parametrize("tol", [1e-3, 1e-6, 1e-9])
@every_method
def test_tol_bounds_the_error_through_the_gap(tol, method):
    # A V differs from V by (1 - lambda_{r+1} / lambda_r) of the error at least
    X = diagonal([4, 3, 2, 1, 0.5, 0.25])
    model = FederatedPowerPCA(
        3, **EXACT[method] | {"tol": tol}, init=leaning(6, 3, 1.0), center=False
    )
    model.fit(X)
    assert sine(model.components_, np.eye(6)[:3]) <= 1.1 * tol / (1 - 1 / 2)


@pytest.mark.parametrize("seed", range(3))
def test_krylov_takes_fewer_rounds(seed):
    X = np.random.default_rng(seed).standard_normal((200, 40)) * np.linspace(2, 1, 40)
    V = leading(X - X.mean(axis=0), 3)
    rounds, errors = [], []
    for method in EXACT:
        options = EXACT[method] | {"tol": 1e-6, "n_rounds": 3000}
        model = FederatedPowerPCA(3, **options, random_state=seed).fit(X)
        assert model.stop_reason_ == "tol"
        rounds.append(model.n_iter_)
        errors.append(sine(model.components_, V))
    assert rounds[1] < rounds[0] / 2
    assert errors[1] < max(10 * errors[0], 1e-6)


QUIET = {"noise": GaussianChannel(1e-9), "losses": PerfectChannel(dropout=0.5)}


@pytest.mark.parametrize("kind", ["plain", "whole", "noise", "losses", "local", "private"])
def test_the_space_of_all_rounds_is_kept_where_sums_are_of_one_matrix(kind):
    X = rows()
    options = {"channel": QUIET.get(kind), "local_steps": 1 + (kind == "local")}
    if kind == "whole":
        options["channel"] = PerfectChannel()
    if kind == "private":
        options["mechanism"] = FedPowerNoise(np.inf, 1e-5, row_norm=30.0, mean="fixed")
    options |= {"n_rounds": 6, "tol": 0, "n_clients": 4, "random_state": 0}
    by_default = FederatedPowerPCA(3, **options).fit(X)
    chosen = "krylov" if kind in ("plain", "whole") else None
    named = FederatedPowerPCA(3, acceleration=chosen, **options).fit(X)
    assert_array_equal(by_default.components_, named.components_)


@pytest.mark.parametrize("k", [2, 10])
@pytest.mark.parametrize("data", ["digits", "power law", "low rank"])
def test_the_default_tolerance_leaves_what_it_says(data, k):
    X = {
        "digits": lambda: load_digits().data,
        "power law": lambda: make_power_law(150, 600, alpha=1.0, random_state=3),
        "low rank": lambda: make_low_rank_matrix(150, 600, effective_rank=20, random_state=3),
    }[data]()
    model = FederatedPowerPCA(k, n_clients=5, random_state=1).fit(X)
    assert model.stop_reason_ == "tol"
    A = X - X.mean(axis=0)
    _, s, Vt = np.linalg.svd(A, full_matrices=False)
    # Davis and Kahan: the residual is at most tol lambda_1 / cos, here of vectors near the last one
    off = 1e-6 * s[0] ** 2 / (s[k - 1] ** 2 - s[k] ** 2)
    assert sine(model.components_, Vt[:k]) <= off
    # what the components hold is least at most by the square of that, times the spread of lambda
    held = np.sum(model.singular_values_**2) / np.sum(s[:k] ** 2)
    assert 1 - k * off**2 <= held + 1e-12 <= 1 + 2e-12


def test_krylov_space_is_restarted():
    d, r = 400, 2
    values = np.concatenate([[1.2, 1.1], np.linspace(1.08, 0, d - 2)])
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((d, d)))[0]
    X = np.sqrt(values)[:, None] * Q
    model = exact(r, center=False).fit(X)
    assert 32 < model.n_iter_ < 100  # a space of more than 64 directions
    assert model.stop_reason_ == "tol"
    assert sine(model.components_, Q[:r]) < 1e-9
    assert_allclose(model.singular_values_, np.sqrt(values[:r]), rtol=1e-10)


def test_krylov_error_falls_with_the_rounds_up_to_the_restart():
    X = np.random.default_rng(0).standard_normal((300, 60)) * np.linspace(2, 1, 60)
    V = leading(X, 2)
    models = [about_origin(2, t, acceleration="krylov", random_state=0) for t in range(1, 25)]
    errors = np.array([squares(m.fit(X).components_, V) for m in models])
    assert errors[-1] < 1e-4 * errors[0]
    assert np.all(errors[1:] < 1.5 * errors[:-1])


# ------------------------------------------------------------------------------- rates and noise


@pytest.mark.parametrize("ratio", [1.2, 1.5, 2.0, 5.0])
@pytest.mark.parametrize("eps", [1e-2, 1e-6])
def test_rounds_that_an_accuracy_takes(ratio, eps):
    # the tangent falls by lambda_r / lambda_{r+1} a round, exactly so where the others are equal
    X = diagonal([ratio, ratio] + [1.0] * 5)
    rounds = int(np.ceil(np.log(2.0 / eps) / np.log(ratio)))
    start = leaning(7, 2, 2.0)
    errors = [
        sine(about_origin(2, t, init=start).fit(X).components_, np.eye(7)[:2])
        for t in (rounds - 1, rounds)
    ]
    assert errors[1] <= eps < 1.01 * errors[0]
    assert_allclose(errors[1] / np.sqrt(1 - errors[1] ** 2), 2.0 * ratio**-rounds, rtol=1e-6)


SPECTRUM = np.array([4.0, 3.5, 3.0, *np.linspace(1.5, 0.1, 17)])


def noisy_errors(noise, n, measure=sine, rounds=40, **options):
    """Errors of noisy fits, long past the transient, where the ratio is 2 at least."""
    X, want = diagonal(SPECTRUM), np.eye(20)[:3]
    fits = (
        about_origin(3, rounds, channel=GaussianChannel(noise), random_state=s, **options).fit(X)
        for s in range(n)
    )
    return np.array([measure(model.components_, want) for model in fits])


def predicted_square(noise):
    """Mean of the sum of squared sines at the floor.

    In the axes of the eigenvectors the basis is [I C]; a round makes of c_ji the number
    (lambda_i c_ji + w) / lambda_j, w of standard deviation s, to first order in C. At rest its
    variance is s^2 / (lambda_j^2 - lambda_i^2).
    """
    a, b = SPECTRUM[:3, None], SPECTRUM[None, 3:]
    return noise**2 * np.sum(1 / (a**2 - b**2))


def test_floor_of_the_error_is_that_of_the_noisy_power_method():
    noise, n = 1e-4, 60
    errors = noisy_errors(noise, n, squares)
    a, b = SPECTRUM[:3, None], SPECTRUM[None, 3:]
    shares = (noise**2 / (a**2 - b**2)).ravel()  # independent: variance 2 share^2 each
    margin = MARGIN * np.sqrt(2 * np.sum(shares**2) / n)
    assert abs(errors.mean() - predicted_square(noise)) < margin + 1e-2 * predicted_square(noise)
    # by the largest angle
    floor = noise * np.sqrt(np.sum(1 / (SPECTRUM[2] ** 2 - SPECTRUM[3:] ** 2)))
    largest = np.median(noisy_errors(noise, 20))
    assert floor / 3 < largest < 3 * floor
    # what the docstring calls about: an upper bound, not far off
    about = noise * np.sqrt(20) / (SPECTRUM[2] - SPECTRUM[3])
    assert about / 5 < largest < about


def test_error_is_proportional_to_the_noise():
    errors = [noisy_errors(noise, 5) for noise in (1e-6, 1e-5, 1e-4, 1e-3)]
    for small, large in pairwise(errors):  # the same seeds: the same noise
        assert_allclose(large, 10 * small, rtol=0.02)


def test_noise_is_fresh_in_each_round():
    # with the same noise in each round the basis would come to rest
    X = diagonal(SPECTRUM)
    model = about_origin(3, 60, channel=GaussianChannel(1e-3), random_state=0).fit(X)
    assert model.changes_[30:].min() > 1e-4
    assert model.stop_reason_ == "n_rounds"
    channel, rng = GaussianChannel(1.0), np.random.RandomState(0)
    received = [channel.receive([np.zeros(50)], rng)[0] for _ in range(200)]
    products = np.array(received[1:]) * received[:-1]
    assert abs(products.mean()) < MARGIN / np.sqrt(products.size)


@pytest.mark.parametrize("channel", [GaussianChannel, FadingChannel])
@pytest.mark.parametrize("k", [1, 4])
def test_noise_on_sums_has_the_given_size(channel, k):
    n, std = 40_000, 0.3
    messages = [np.full((n // 2, 2), i) for i in range(1, k + 1)]
    options = {} if channel is GaussianChannel else {"max_power": 1e9}
    got, n_sent = channel(std, **options).receive(iter(messages), np.random.RandomState(0))
    assert n_sent == k
    noise = got - sum(messages)
    assert abs(noise.mean()) < MARGIN * std / np.sqrt(n)
    assert abs(noise.std() / std - 1) < MARGIN / np.sqrt(2 * n)
    assert channel(0.0, **options).receive(messages, np.random.RandomState(0))[0].sum() == np.sum(
        messages
    )


def test_krylov_is_not_worse_at_equal_noise():
    for noise in (1e-3, 1e-2):
        plain = noisy_errors(noise, 15, rounds=20)
        krylov = noisy_errors(noise, 15, rounds=20, acceleration="krylov")
        assert np.median(krylov) < 1.1 * np.median(plain)


@pytest.mark.parametrize("noise", [1e-4, 1e-2, 0.1])
def test_largest_eigenvalue_errs_by_the_square_of_the_sine_and_by_the_noise(noise):
    # V A V^T + N, made symmetric: Rayleigh-Ritz loses at most lambda_1 sin^2, Weyl adds the norm of
    # the symmetric part of N: a Lipschitz function, of mean s sqrt(2 r) at most
    X, r = diagonal(SPECTRUM), 3
    for seed in range(10):
        model = about_origin(r, 20, channel=GaussianChannel(noise), random_state=seed).fit(X)
        error = sine(model.components_, np.eye(20)[:r])
        found = model.singular_values_[0] ** 2
        bound = SPECTRUM[0] * error**2 + noise * (np.sqrt(2 * r) + MARGIN + 1)
        assert abs(found - SPECTRUM[0]) <= bound


def test_largest_eigenvalue_without_noise_errs_by_the_square():
    X = diagonal(SPECTRUM)
    for rounds in (1, 3, 6):
        model = about_origin(3, rounds, init=leaning(20, 3, 1.0)).fit(X)
        error = sine(model.components_, np.eye(20)[:3])
        short = SPECTRUM[0] - model.singular_values_[0] ** 2
        assert -1e-12 <= short <= SPECTRUM[0] * error**2


def test_mean_and_noise_variance_arrive_with_noise():
    X, noise = rows(), 0.5
    model = FederatedPowerPCA(3, channel=GaussianChannel(noise), random_state=0).fit(X)
    # the sum and the number of rows are both off, by a few noise / n
    off = np.abs(model.mean_ - X.mean(axis=0))
    assert 0 < off.max() < (MARGIN + 1) * noise / 120 * (1 + np.abs(X.mean(axis=0)).max())
    # What is left beside the components is a difference of the scatter and of r noisy diagonal
    # entries. It grows by the scatter of the mean's error and by what the subspace misses, and the
    # number of rows by which it is divided is noisy, too.
    pca = PCA(3, svd_solver="full").fit(X)
    missed = pca.singular_values_[0] ** 2 * squares(model.components_, pca.components_)
    left = MARGIN * noise * np.sqrt(1 + 3) + 120 * off @ off + missed
    error = left / (5 * 119) + pca.noise_variance_ * MARGIN * noise / 119
    assert 0 < abs(model.noise_variance_ - pca.noise_variance_) < error


# ------------------------------------------------------------------------------------- structure


def test_a_sum_is_all_that_a_server_gets():
    log, calls = CommunicationLog(), [(i, np.full(3, 10.0**i)) for i in range(3)]
    federation = Federation(channel=PerfectChannel(), log=log)
    total = federation.sum(lambda label, x: x, calls, broadcast=np.zeros((2, 5)))
    assert_array_equal(total, [111.0] * 3)
    assert not any(np.shares_memory(total, x) for _, x in calls)
    assert not list(arrays_in(vars(federation) | {"rng": None}))
    assert log.table == [
        {
            "messages_up": 3,
            "floats_up": 9,
            "bytes_up": 72,
            "messages_down": 3,
            "floats_down": 30,
            "bytes_down": 240,
            "floats_busiest": 10,
        }
    ]
    federation.sum(lambda label, x: x, calls)
    assert log.table[1]["floats_busiest"] == 3  # summed: once
    assert log.table[1]["messages_down"] == 0
    assert federation.sum(lambda label, x: x, []) is None
    assert log.table[2]["messages_up"] == 0


def test_a_sum_of_messages_that_may_be_written_by_nobody():
    x = np.ones(3)
    x.flags.writeable = False
    assert_array_equal(Federation().sum(lambda label: x, [("a",), ("b",)]), [2.0] * 3)
    assert_array_equal(x, 1.0)


def test_errors_in_sums_name_the_client():
    def fail(label):
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match="Client 'b': no such thing"):
        Federation().sum(fail, [("b",)])


@pytest.mark.parametrize("summed", [False, True])
def test_summed_messages_are_received_once(summed):
    log = CommunicationLog()
    up = [SimpleNamespace(n_floats=n, nbytes=8 * n) for n in (5, 5, 5)]
    log.record(up=up, summed=summed)
    assert log.table[0]["floats_up"] == 15
    assert log.floats_busiest == (5 if summed else 15)
    log.record(up=up, receivers=["a", "b", "a"], summed=summed)
    assert log.table[1]["floats_busiest"] == (5 if summed else 10)
    log.record(up=up, down=[SimpleNamespace(n_floats=7, nbytes=56)], summed=summed)
    assert log.table[2]["floats_busiest"] == (7 if summed else 15)
    log.record(summed=summed)
    assert log.table[3]["floats_busiest"] == 0


def assert_holds_none_of(model, messages):
    found = [a for v in vars(model).values() for a in arrays_in(v)]
    assert found
    for array in found:
        for message in messages:
            part = array.ravel() if array.dtype.kind in "iufb" else np.empty(0)
            if part.size >= message.size > 1:
                windows = np.lib.stride_tricks.sliding_window_view(part, message.size)
                assert not np.any(np.all(np.isclose(windows, message.ravel()), axis=1))


@pytest.mark.parametrize(
    "options", [{}, {"acceleration": "krylov"}, {"local_steps": 2}], ids=["power", "krylov", "loc"]
)
def test_a_fitted_estimator_holds_no_message_of_a_client(options, recorded):
    X, codes = rows(d=25), np.arange(120) % 3
    model = FederatedPowerPCA(3, n_rounds=5, tol=0, channel=Recorder(), random_state=0, **options)
    model.fit(X, clients=codes)
    assert len(recorded) == 7  # a channel that records is the only place where they are seen
    messages = [m for round_ in recorded for m in round_]
    assert len(messages) == 3 * 7
    moments = [X[codes == i].sum(axis=0) for i in range(3)]
    assert_allclose([m[:-1] for m in recorded[0]], moments)
    means = [X[codes == i].mean(axis=0) for i in range(3)]
    products = [m.T for m in messages if m.ndim == 2]
    assert_holds_none_of(model, [*messages, *moments, *means, *products, *X])


def test_a_fitted_tracker_holds_no_message_of_a_client(recorded):
    X, codes = rows(80, mean=0.0), np.arange(80) % 3
    papers = {"center": False, "forgetting_factor": 0.0, "fill": "subspace"}
    options = {"n_rounds": 3, "channel": Recorder(), "random_state": 0}
    FederatedSubspaceTracker(3, **papers, **options).fit(X, clients=codes)
    assert len(recorded) == 50 + 1 + 3 + 1
    model = FederatedSubspaceTracker(3, **options).fit(X, clients=codes)
    messages = [m for round_ in recorded for m in round_]
    assert_holds_none_of(model, [*messages, *[m.T for m in messages if m.ndim == 2]])


@pytest.mark.parametrize("bad", [nan, np.inf])
@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_bad_rows_name_their_client(bad, kind, n_jobs):
    X = rows(30)
    X[17, 2] = bad
    codes = np.array(["a", "north", "z"])[np.arange(30) % 3]  # row 17 is of "z"
    model = FederatedPowerPCA(2, n_jobs=n_jobs)
    with pytest.raises(ValueError, match=r"Client 'z': .*(NaN|infinity)"):
        model.fit(kind(X), clients=codes)
    assert not hasattr(model, "components_")


@pytest.mark.parametrize("options", [{}, {"acceleration": "krylov"}, {"local_steps": 3}])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_communication_is_as_said(options, k):
    d, r = 30, 3
    model = FederatedPowerPCA(r, n_rounds=6, tol=0, **options)
    model.fit(rows(d=d), clients=labels(120, k))
    log = model.communication_
    up = [k * (d + 1), *[k * r * d] * 6, k * (r**2 + 2)]
    down = [0, *[k * r * d] * 6, k * r * d]
    assert [row["floats_up"] for row in log.table] == up
    assert [row["floats_down"] for row in log.table] == down
    assert [row["bytes_up"] for row in log.table] == [8 * n for n in up]
    assert [row["bytes_down"] for row in log.table] == [8 * n for n in down]
    assert [row["messages_up"] for row in log.table] == [k] * 8
    assert [row["floats_busiest"] for row in log.table] == [d + 1, *[r * d] * 7]
    assert (log.floats_up, log.floats_down) == (sum(up), sum(down))
    assert log.floats_busiest == d + 1 + 7 * r * d
    assert log.floats_pooled == 120 * d
    assert model.n_iter_ == 6


def test_krylov_blocks_may_be_smaller_in_the_end():
    model = FederatedPowerPCA(3, tol=0, acceleration="krylov").fit(rows())  # 3 + 3 + 2 of 8
    assert model.stop_reason_ == "exhausted"
    assert [row["floats_up"] for row in model.communication_.table] == [18, 48, 48, 32, 22]
    assert [row["floats_down"] for row in model.communication_.table] == [0, 48, 48, 32, 48]


def test_those_who_drop_out_send_and_receive_nothing():
    schedule = np.array([[0, 0, 1], [1, 1, 0], [0, 0, 0]])
    model = FederatedPowerPCA(2, n_rounds=7, tol=0, channel=PerfectChannel(schedule))
    table = model.fit(rows(), clients=labels(120, 3)).communication_.table
    here = [(3 - schedule.sum(axis=1))[t % 3] for t in range(9)]
    assert [row["messages_up"] for row in table] == here
    assert [row["floats_up"] for row in table[1:-1]] == [16 * n for n in here[1:-1]]
    assert [row["floats_down"] for row in table[1:]] == [16 * n for n in here[1:]]


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
    own, zero = Client("a", X).moments, np.zeros(6)
    got = TimesScatter(V, zero, steps).local(own)
    assert_allclose(got, local_oracle(X, V, steps), atol=1e-7 * 20)
    assert_allclose(got @ got.T / 400, np.eye(r), atol=1e-10)
    # whatever basis of the common subspace, and whatever signs
    R = np.linalg.qr(rng.standard_normal((r, r)))[0]
    assert_allclose(TimesScatter(R @ V, zero, steps).local(own), R @ got, atol=1e-7 * 20)
    assert_allclose(TimesScatter(-V, zero, steps).local(own), -got, atol=1e-8 * 20)
    # no rotation of the local basis is closer to the common one
    closest = np.linalg.norm(got / 20 - V)
    for _ in range(5):
        S = np.linalg.qr(rng.standard_normal((r, r)))[0]
        assert closest <= np.linalg.norm(S @ got / 20 - V) + 1e-12


def test_a_local_step_is_a_power_where_clients_are_the_same():
    X = np.concatenate([rows(40, mean=0.0)] * 3)
    codes = np.repeat(range(3), 40)
    start = leaning(8, 3, 1.0)
    for p in (2, 3):
        local = about_origin(3, 2, local_steps=p, init=start).fit(X, clients=codes)
        plain = about_origin(3, 2 * p, init=start).fit(X, clients=codes)
        assert sine(local.components_, plain.components_) < 1e-10


def rounds_to(accuracy, X, codes, V, **options):
    for n in range(1, 60):
        model = about_origin(3, n, init=leaning(X.shape[1], 3, 1.0), **options)
        if sine(model.fit(X, clients=codes).components_, V) < accuracy:
            return n
    return np.inf


def test_local_steps_save_rounds_where_clients_are_alike():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((8000, 8)) * [2, 1.9, 1.8, *[1.4] * 5]
    codes, V = np.arange(8000) % 4, leading(X, 3)
    one, four = (rounds_to(0.05, X, codes, V, local_steps=p) for p in (1, 4))
    assert four <= one / 3


def test_local_steps_are_biased_where_clients_are_not():
    rng = np.random.default_rng(0)
    parts = [
        rng.standard_normal((50, 8)) * rng.permutation([3, 3, 2, 2, 1, 1, 1, 1]) for _ in range(4)
    ]
    X, codes = np.concatenate(parts), np.repeat(range(4), 50)
    V = leading(X, 3)
    error = {}
    for p in (1, 2, 4):
        model = FederatedPowerPCA(3, n_rounds=3000, center=False, local_steps=p, random_state=0)
        error[p] = sine(model.fit(X, clients=codes).components_, V)
    assert error[1] < 1e-5
    assert min(error[2], error[4]) > 0.01


def test_local_steps_with_one_client_are_exact():
    X = rows()
    for p in (1, 2, 5):
        assert_equals_pca(exact(method="power", local_steps=p, n_clients=1).fit(X), X)


def test_a_client_without_variance_has_no_say_in_local_steps():
    X = np.concatenate([rows(60, mean=0.0), np.zeros((60, 8))])
    model = FederatedPowerPCA(3, local_steps=2, center=False, n_rounds=200, random_state=0)
    model.fit(X, clients=np.repeat([0, 1], 60))
    assert sine(model.components_, leading(X, 3)) < 1e-6


def test_products_lose_what_is_below_rounding_and_other_ways_keep_it():
    X = np.random.default_rng(0).standard_normal((500, 6)) * [1e9, 1, 1, 1, 1, 1]
    sites = np.arange(500) % 5
    want = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)[:3] ** 2 / 499
    assert_allclose(FederatedPCA(3).fit(X, clients=sites).explained_variance_, want, rtol=1e-8)
    assert_allclose(DistributedPCA(3).fit(X, clients=sites).explained_variance_, want, rtol=1e-8)
    for model in (FederatedPowerPCA(3, random_state=0), VerticalFederatedPCA(3)):
        found = model.fit(X).explained_variance_
        assert_allclose(found, [want[0], 0, 0], rtol=1e-8)
