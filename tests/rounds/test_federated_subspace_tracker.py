"""The tracker of rows at clients, by rounds of sums: means, changes and outliers.

Oracles are the trackers of all rows in one place, the literal Algorithm 3 and Lemma 4.2 of
Narayanamurthy et al. (2022), and the subspaces that rows were drawn from.
"""

from functools import cache
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from helpers import PAPER, leading, random_basis, sine
from numpy.testing import assert_allclose, assert_array_equal
from rounds_helpers import assert_same, labels, nan, rows
from sklearn.base import clone
from sklearn.decomposition import PCA

from fedpca_sklearn import (
    ChangeDetection,
    FederatedSubspaceTracker,
    FirstSubspace,
    GaussianChannel,
    OutlierSupport,
    PerfectChannel,
    RobustSubspaceTracker,
    SubspaceTracker,
    make_subspace_stream,
    reconstruction_error,
    subspace_distance,
)
from fedpca_sklearn._base import batches
from fedpca_sklearn.communication import Federation
from fedpca_sklearn.rounds._batch_sums import largest_eigenvalue, scales_by_sums
from fedpca_sklearn.rounds._queries import Client

# about the origin the mean is a direction of the three, which leaves a small gap behind it
ROUNDS = {"n_rounds": 140, "init_rounds": 140}


def stream(n=400, d=30, k=3, noise=0.01, holes=0.1, mean=0.0):
    """Rows of a subspace about a mean, with noise and holes, and a basis of it."""
    rng = np.random.default_rng(0)
    V = random_basis(rng, k, d)
    X = rng.standard_normal((n, k)) * np.linspace(4, 2, k) @ V + mean * rng.standard_normal(d)
    X += noise * rng.standard_normal((n, d))
    return np.where(rng.random((n, d)) < holes, nan, X), V


def tracker(k=3, init="auto", init_rounds=50, **options):
    if not isinstance(init, FirstSubspace):
        init = FirstSubspace(init, n_rounds=init_rounds)
    options = {**PAPER, "robust": False, "random_state": 0, "batch_size": 40, **options}
    return FederatedSubspaceTracker(k, init=init, **options)


def pooled(k=3, **options):
    return SubspaceTracker(k, **{**PAPER, "batch_size": 40, **options})


def column(model, name):
    return [row[name] for row in model.communication_.table]


# ------------------------------------------------------------- the tracker of all rows


@pytest.mark.parametrize(
    ("options", "n", "k", "mean"),
    [
        ({"n_iter": 3, "init": "given"}, 173, 8, 5.0),
        ({"center": True}, 160, 4, 5.0),
        ({"forgetting_factor": 0.98}, 173, 40, 5.0),
        ({"forgetting_factor": 0.99, "center": True, "n_iter": 2}, 173, 1, 5.0),
    ],
    ids=str,
)
def test_with_a_perfect_channel_it_is_the_tracker_of_all_rows(n, k, mean, options):
    X, V = stream(n, mean=mean)
    X[100:110, 2:] = nan  # two entries do not determine three coordinates
    options = {"store_subspaces": True, **options}
    if options.get("init") == "given":
        options["init"] = V + 0.1 * np.random.default_rng(1).standard_normal(V.shape)
    model = tracker(**ROUNDS, **options).fit(X, clients=labels(n, k))
    other = pooled(**options).fit(X)
    assert_same(model, other)
    assert model.n_samples_seen_ == other.n_samples_seen_
    assert_allclose(model.subspace_.n_samples, other.subspace_.n_samples, rtol=1e-12)
    assert_allclose(model.subspace_.scatter, other.subspace_.scatter, rtol=1e-9)
    for a, b in zip(model.subspaces_, other.subspaces_, strict=True):
        assert sine(a, b) < 1e-8
    signs = np.sign(np.sum(model.components_ * other.components_, axis=1))
    assert_allclose(model.transform(X[:50]), other.transform(X[:50]) * signs, atol=1e-7)
    assert_allclose(model.impute(X[:50]), other.impute(X[:50]), atol=1e-7)


@pytest.mark.parametrize(
    ("options", "k"),
    [
        ({"support_threshold": OutlierSupport(3.0, 0.5), "init": "given"}, 4),
        ({"center": True, "init": "altproj", "forgetting_factor": 0.95}, 1),
        ({"init": FirstSubspace("altproj", 120, 200)}, 1),
    ],
    ids=str,
)
def test_a_robust_tracker_is_that_of_all_rows(options, k):
    made = make_subspace_stream(400, 60, 3, delta=0, outliers=0.05, random_state=0)
    mean = 10 * np.random.default_rng(0).standard_normal(60) * options.get("center", 0)
    X, options = made.X + mean, {"batch_size": 50, **options}
    given = options["init"] == "given"
    if given:
        options["init"] = made.subspace_at(0)
    model = tracker(**ROUNDS, **options, robust=True).fit(X, clients=labels(400, k))
    other = RobustSubspaceTracker(3, **{**PAPER, **options}).fit(X)
    assert_same(model, other, 1e-6)
    assert_array_equal(model.outlier_mask_, other.outlier_mask_)
    if given:
        assert_allclose(model.support_threshold_, other.support_threshold_)
        for a, b in zip(model.decompose(X[:40]), other.decompose(X[:40]), strict=True):
            assert_allclose(a, b, atol=1e-6)
        assert_allclose(model.score(X[:40]), other.score(X[:40]), rtol=1e-5)


def test_a_client_without_rows_in_a_batch_takes_no_part():
    X, _ = stream(120)
    codes = np.array([0] * 20 + [1] * 20 + [1] * 40 + [2] * 20 + [0] * 20)
    model = tracker(n_rounds=20, init_rounds=200).fit(X, clients=codes)
    assert model.clients_ == [0, 1, 2]
    assert column(model, "messages_up") == [2] * 201 + [1] * 21 + [2] * 21
    assert_same(model, pooled().fit(X))


class OnDisk:
    """An array whose slices are read when they are asked for."""

    def __init__(self, rows):
        self.rows, self.asked = rows, []
        self.shape, self.dtype, self.ndim = rows.shape, rows.dtype, 2

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, key):
        self.asked.append(len(self.rows[key]))
        return self.rows[key]


def test_labels_for_an_array_on_disk(monkeypatch):
    """Each row is read once, and no more at a time than a batch has."""
    monkeypatch.setattr(batches, "_READ_AT_ONCE", 2**15)
    X = np.zeros((80, 2**7), dtype=np.float32)
    X[:, :6] = rows(80, 6, mean=0.0)
    data, model = OnDisk(X), tracker(2, n_rounds=25, init_rounds=25)
    model.fit(data, clients=np.repeat([0, 1, 2], [20, 20, 40]))
    assert sum(data.asked) == 80
    assert max(data.asked) <= 40
    # two clients have rows in the first batch and one in the second; a round more for variances
    assert column(model, "messages_up") == 26 * [2] + 26 * [1]
    # the last batch decides; a round leaves (30 / 40)^2 of the error, and the result is rounded
    _, s, V = np.linalg.svd(X[40:, :6].astype(np.float64), full_matrices=False)
    assert sine(model.components_[:, :6], V[:2]) < 10 * np.finfo(np.float32).eps
    assert_allclose(model.singular_values_, s[:2], rtol=1e-6)


def test_a_column_holds_the_labels():
    X, site = pd.DataFrame(rows(80, 6), columns=[*"uvwxyz"]), [*"ab"] * 40
    named = tracker(2).fit(X.assign(site=site), clients="site")
    assert named.clients_ == ["a", "b"]
    assert_same(named, tracker(2).fit(X, clients=site), 1e-12)
    numbers = X.assign(site=X["u"])
    assert len(named.fit(numbers, clients=site).transform(numbers)) == 80


def test_neither_who_deals_the_rows_nor_jobs_matter():
    """Rows without labels are dealt round robin over the whole stream."""
    X, V = stream(90)
    codes, options = np.arange(90) % 3, {"n_rounds": 3, "init_rounds": 5, "store_subspaces": True}
    channel = {"channel": PerfectChannel(), "n_clients": 3}
    model = tracker(init=V, robust=True, batch_size=30, **channel, **options)
    whole, parts = clone(model).fit(X, clients=codes), clone(model)
    for part in np.split(np.arange(90), [1, 7, 45, 46]):
        parts.partial_fit(X[part], clients=codes[part])
    streamed = clone(model).fit(iter(np.split(X, [10, 40, 41])))
    two_jobs = clone(model).set_params(n_jobs=2).fit(X)
    assert two_jobs.communication_ == whole.communication_
    for other in (parts, streamed, two_jobs):
        assert_same(other, whole, 1e-9)
        assert_allclose(other.subspaces_, whole.subspaces_, atol=1e-9)
        assert other.clients_ == whole.clients_
        assert other.n_samples_seen_ == whole.n_samples_seen_
    model.set_params(channel=PerfectChannel(np.ones((1, 3))))
    with pytest.raises(ValueError, match="channel: no client took part"):
        model.fit(X)


# ------------------------------------------------------------------- clients and batches


class Received(GaussianChannel):
    """A noisy channel that keeps what arrives."""

    sums: list = []

    def receive(self, messages, rng):
        total, count = super().receive(messages, rng)
        Received.sums.append(total.copy())
        return total, count


def test_noise_is_fresh_where_rows_that_waited_come_again():
    X, V = stream(61)
    Received.sums = []
    model = tracker(init=V, batch_size=50, n_clients=1, n_rounds=2, channel=Received(100.0))
    model.partial_fit(X[:60]).partial_fit(X[60:])
    for a, b in combinations([total for total in Received.sums if total.ndim == 2], 2):
        assert np.std(a - b) > 100  # sqrt(2) 100 without the signal, 0 with the same noise


# ------------------------------------------------------------------------------------- changes


@cache
def moving(n=2400, d=100, k=3, change=1500, seed=0, **options):
    changes = [] if change is None else [change]
    options = {"model": "piecewise", "change_points": changes, **options}
    return make_subspace_stream(n, d, k, random_state=seed, **options)


def watching(k=3, size=60, noise=0.0, n_updates=10, threshold="auto", **options):
    options = {"channel": GaussianChannel(noise) if noise else None, **options}
    changes = ChangeDetection(n_updates, threshold)
    return tracker(k, batch_size=size, detect_changes=changes, **options)


@pytest.mark.parametrize(
    ("made", "size", "changes"),
    [
        # residuals in 8 dimensions scatter so much that some of the changes found are none
        ((1000, 8, 2, 710, 0, 0.1), 20, ChangeDetection(10)),
        ((1500, 40, 3, 1000, 0, 0.05), 60, ChangeDetection(5, 0.1)),
    ],
)
def test_with_a_perfect_channel_changes_are_those_of_the_tracker_of_all_rows(made, size, changes):
    n, d, k, change, seed, noise_std = made
    X = moving(n, d, k, change, seed, noise_std=noise_std).X
    options = {"batch_size": size, "detect_changes": changes}
    other = pooled(k, **options).fit(X)
    model = tracker(k, n_rounds=30, **options).fit(X)
    assert_array_equal(model.change_points_, other.change_points_)
    assert_same(model, other, 1e-6)


@pytest.mark.parametrize(("noise", "noise_std"), [(1e-2, 0.0), (0.1, 0.05)])
def test_a_change_is_found_in_its_batch_and_no_other(noise, noise_std):
    # Ten batches are updated and four watched; then comes the change, or none, and ten updates
    # more. A batch has 60 rows of variance 1 in each of three directions: after the change the
    # residuals have eigenvalues near 60 and none of the others. Lemma 4.2 has an accuracy of
    # 5 sqrt(d) noise / 60, at most .08 here, below the factor of two that is a change.
    for seed, change in enumerate((None, 870)):
        made = moving(1500, change=change, seed=seed, noise_std=noise_std)
        model = watching(noise=noise).fit(made.X, clients=np.arange(1500) % 4)
        assert_array_equal(model.change_points_, [] if change is None else [840])


@pytest.mark.parametrize(("scale", "mean"), [(1e-140, 0.0), (1e140, 0.0), (1.0, 100.0)])
def test_changes_do_not_depend_on_units_nor_on_the_mean(scale, mean):
    # the asymmetry of the sums is rounding, of which squares overflow for rows of 1e85
    made = moving(900, 40, 3, change=780, noise_std=0.05)
    model = watching(n_updates=5, center=mean != 0).fit(scale * (made.X + mean))
    assert_array_equal(model.change_points_, [780])


def test_a_row_that_alone_does_not_fit_tells_the_server_its_residual(monkeypatch):
    # as docs/promises.md says
    received, summed = [], Federation.sum

    def seen(self, query, calls, *rest):
        received.append((query, summed(self, query, calls, *rest)))
        return received[-1][1]

    rng = np.random.default_rng(0)
    P = random_basis(rng, 3, 30)
    X = rng.standard_normal((160, 3)) @ P
    secret = X[130] = rng.standard_normal(30)
    model = watching(3, 40, n_updates=1, threshold=1e9).fit(X[:120])
    monkeypatch.setattr(Federation, "sum", seen)
    model.partial_fit(X[120:])
    query, total = received[-1]
    U = query.V
    values, Y = np.linalg.eigh(total[:-2].reshape(len(U), len(U)))
    guess = np.sqrt(values[-1]) * Y[:, -1] @ U
    residual = secret - (secret @ P.T) @ P
    assert min(np.abs(guess - residual).max(), np.abs(guess + residual).max()) < 1e-6


@pytest.mark.parametrize("noise", [0.0, 1e-3, 1.0, 30.0])
@pytest.mark.parametrize("scale", [0.0, np.arange(1, 41) ** -2.0], ids=["nothing", "decay"])
def test_the_eigenvalue_and_its_margin_are_those_of_lemma_4_2(noise, scale):
    n, d, r, m = 60, 40, 10, 15
    Z = 5 * np.random.default_rng(0).standard_normal((n, d)) * scale
    sigma = np.append(np.linalg.svd(Z, compute_uv=False) ** 2, 0)
    eps = 5 * np.sqrt(d) * noise / sigma[r - 1] if sigma[r - 1] else np.inf
    for seed in range(m):
        state = np.random.RandomState(seed)
        federation = Federation(channel=GaussianChannel(noise), rng=state)
        clients = [Client(i, Z[i::3]) for i in range(3)]
        value, margin = largest_eigenvalue(federation, clients, d, state, 20)
        # noise alone is above its margin in one look of 3e7
        assert value - margin <= sigma[0] * (1 + 1e-12)
        if eps < 1 / 3:  # what the lemma assumes
            low = (1 - 4 * eps**2) * sigma[0] - eps**2 * sigma[r] - eps * sigma[r - 1]
            assert low * (1 - 1e-9) <= value <= (1 + eps) * sigma[0] * (1 + 1e-9)
    # and the margin is that of the noise, whose size is read from 45 differences: its relative
    # deviation is 1 / sqrt(90)
    want = noise * (np.sqrt(20) + 10)
    assert abs(margin - want) <= 5 / np.sqrt(90) * want + 1e-9 * sigma[0]


def test_the_margin_is_by_the_asymmetry_of_what_arrives():
    """Entries with noise of deviation s differ from their mirror images by sqrt(2) s."""
    rng = np.random.default_rng(0)
    S = np.triu(rng.standard_normal((10, 10)), 1)
    S -= S.T

    class Skewed(PerfectChannel):
        def receive(self, messages, rng):
            total, count = super().receive(messages, rng)
            return total + (np.append(S, [0, 0]) if total.shape == (102,) else 0), count

    state, clients = np.random.RandomState(0), [Client(0, rng.standard_normal((20, 12)))]
    federation = Federation(channel=Skewed(), rng=state)
    _, margin = largest_eigenvalue(federation, clients, 12, state, 20)
    s = np.sqrt(np.sum((S - S.T) ** 2) / 90 / 2)
    assert_allclose(margin, s * (np.sqrt(20) + 10), rtol=1e-9)


def test_the_eigenvalue_of_clients_that_take_part_stands_for_that_of_all():
    """Three clients have the same rows, and one is never there."""
    Z, state = np.random.default_rng(0).standard_normal((20, 12)), np.random.RandomState(0)
    federation = Federation(channel=PerfectChannel([[0, 0, 1]]), rng=state)
    value, _ = largest_eigenvalue(
        federation, [Client(i, Z) for i in range(3)], Z.shape[1], state, 20
    )
    assert_allclose(value, 3 * np.linalg.norm(Z, 2) ** 2, rtol=1e-6)


# ---------------------------------------------------------------------- Algorithms 3 and 4


def filled(y, M, P):
    """Line 6 of Algorithm 3, with d x d matrices: entries M of a row by least squares."""
    Psi, y = np.eye(len(y)) - P @ P.T, np.nan_to_num(y)
    y[M] -= np.linalg.pinv(Psi[:, M]) @ (Psi @ y)
    return y


def algorithm_3(X, P, L, alpha):
    """Fed-OA-RSTMiss-NoDet without outliers and noise: all sums are exact."""
    for Y in np.split(X, len(X) // alpha):
        Z = np.array([filled(y, np.flatnonzero(np.isnan(y)), P) for y in Y]).T
        for _ in range(L):  # FedOA-PM from the last estimate, for every batch
            P = np.linalg.qr(Z @ Z.T @ P)[0]
        yield P.T


def test_with_a_given_start_every_batch_has_the_rounds_of_algorithm_3():
    X, L = stream(160)[0], 2
    start = leading(np.nan_to_num(X[:40]), 3)
    model = tracker(init=start, n_rounds=L, store_subspaces=True).fit(X)
    for V, W in zip(model.subspaces_, algorithm_3(X, start.T, L, 40), strict=True):
        assert sine(V, W) < 1e-8
    assert model.communication_.rounds == 4 * (L + 1)
    # a start of fewer rows than components is random but for them
    few = clone(model).set_params(init=FirstSubspace(start[:2], n_rounds=7)).fit(X)
    assert few.communication_.rounds == 7 + 1 + 3 * (L + 1)


def test_decompose_after_an_update_is_line_6_of_algorithm_3():
    # no noise and a start within 1e-3: the support is found exactly (Lemma 4.6), and what is left
    # of Algorithm 4 is its line 7
    made = make_subspace_stream(240, 100, 3, delta=0, outliers=0.1, random_state=0)
    start = made.subspace_at(0) + 1e-3 * np.random.default_rng(0).standard_normal((3, 100))
    options = {"support_threshold": OutlierSupport(5.0, 10 / 15), "n_rounds": 3, "batch_size": 60}
    model = tracker(init=start, robust=True, **options)
    for Y, hit in zip(np.split(made.X, 4), np.split(made.outliers & ~made.missing, 4), strict=True):
        low_rank, sparse = model.partial_fit(Y, clients=np.arange(60) % 4).decompose(Y)
        assert_array_equal(sparse != 0, hit)
        for y, outliers, got in zip(Y, hit, low_rank, strict=True):
            M = np.flatnonzero(np.isnan(y) | outliers)
            assert_allclose(got, filled(y, M, model.components_.T), atol=1e-8)


# ------------------------------------- clean rows whose columns are unlike each other


def robust(X, **options):
    """Over clients; of all rows in one place it is tests/tracking/test_robust_tracking.py."""
    return FederatedSubspaceTracker(3, n_clients=4, random_state=0, **options).fit(X)


def clean(n, d):
    rng = np.random.default_rng(0)
    X = 3 * rng.standard_normal((n, 3)) @ rng.standard_normal((3, d))
    return X + 0.3 * rng.standard_normal((n, d))


def test_no_scale_of_a_column_by_sums_is_below_that_of_all():
    """A column that hardly varies would have outliers that are rounding errors."""
    sizes = np.abs(np.random.default_rng(0).standard_normal((60, 4))) * [1.0, 2.0, 3.0, 1e-3]
    logs = np.column_stack([np.log(sizes), np.ones((60, 4)), np.zeros(60), np.ones(60)])
    found = scales_by_sums(Federation(), [Client(0, logs[:20]), Client(1, logs[20:])], 4)
    assert found.columns[3] == found.every < found.columns[1] < found.columns[2]


def test_constant_columns_say_nothing_about_the_others():
    X = clean(600, 40)
    X[:, :24] = 7.0
    model, best = robust(X), PCA(3).fit(X)
    error, least = (reconstruction_error(X, m.components_, m.mean_) for m in (model, best))
    assert error < 1.4 * least
    assert model.outlier_mask_.mean() < 0.1


def test_outliers_are_found_after_a_change_over_a_channel():
    options = {"model": "piecewise", "outliers": 0.05, "noise_std": 0.02, "random_state": 0}
    made = make_subspace_stream(1200, 100, 4, **options)
    channel = GaussianChannel(1e-3, dropout=0.1)
    model = FederatedSubspaceTracker(4, n_clients=8, channel=channel, random_state=0).fit(made.X)
    wrong = model.outlier_mask_ != (made.outliers & ~made.missing)
    assert max(np.mean(wrong[200:600]), np.mean(wrong[-200:])) < 1e-3
    assert subspace_distance(model.components_, made.subspace_at(1199)) < 0.1
