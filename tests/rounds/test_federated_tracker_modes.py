"""The tracker of rows at clients: mean, forgetting, changes and a start among outliers."""

from functools import cache

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from helpers import PAPER, leading, sine
from numpy.testing import assert_allclose, assert_array_equal
from rounds_helpers import assert_same, labels, nan
from sklearn.base import clone

from fedpca_sklearn import (
    FederatedSubspaceTracker,
    GaussianChannel,
    PerfectChannel,
    RobustSubspaceTracker,
    SubspaceTracker,
    make_subspace_stream,
    subspace_distance,
)
from fedpca_sklearn.communication import Federation
from fedpca_sklearn.rounds._batch_sums import largest_eigenvalue
from fedpca_sklearn.rounds._client import Client

# about the origin the mean is a direction of the three, which leaves a small gap behind it
ROUNDS = {"n_rounds": 200, "init_rounds": 200}


def stream(n=400, d=30, k=3, seed=0, mean=5.0):
    """Rows about a mean, with noise and holes."""
    rng = np.random.default_rng(seed)
    V = np.linalg.qr(rng.standard_normal((d, k)))[0].T
    X = rng.standard_normal((n, k)) * np.linspace(4, 2, k) @ V + mean * rng.standard_normal(d)
    X += 0.01 * rng.standard_normal((n, d))
    return np.where(rng.random((n, d)) < 0.1, nan, X)


# ------------------------------------------------------------------------- mean and forgetting


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"center": True},
        {"forgetting_factor": 0.98},
        {"forgetting_factor": 1.0, "center": True},
        {"forgetting_factor": 0.99, "center": True, "n_iter": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize(("n", "k"), [(413, 1), (400, 4), (413, 4)])
def test_with_a_perfect_channel_it_is_the_tracker_of_all_rows(k, options, n):
    X = stream(n)
    options = {"batch_size": 40, "store_subspaces": True, **options}
    model = FederatedSubspaceTracker(
        3, robust=False, random_state=0, **{**PAPER, **ROUNDS, **options}
    )
    model.fit(X, clients=labels(n, k))
    pooled = SubspaceTracker(3, **{**PAPER, **options}).fit(X)
    assert_same(model, pooled)
    assert_allclose(model.subspace_.n_samples, pooled.subspace_.n_samples, rtol=1e-12)
    assert_allclose(model.subspace_.scatter, pooled.subspace_.scatter, rtol=1e-9)
    for a, b in zip(model.subspaces_, pooled.subspaces_, strict=True):
        assert sine(a, b) < 1e-8
    assert_allclose(model.impute(X[:50]), pooled.impute(X[:50]), atol=1e-7)


def test_rows_that_do_not_count_displace_no_others():
    X = stream()
    X[100:130, 2:] = nan  # two entries do not determine three coordinates
    options = {"batch_size": 40, "center": True, "forgetting_factor": 0.9}
    model = FederatedSubspaceTracker(
        3, robust=False, random_state=0, **{**PAPER, **ROUNDS, **options}
    )
    assert_same(model.fit(X[:160]), SubspaceTracker(3, **{**PAPER, **options}).fit(X[:160]))


def test_a_robust_tracker_with_a_mean_at_one_client_is_that_of_all_rows():
    made = make_subspace_stream(400, 60, 3, delta=0, outliers=0.05, random_state=0)
    X = made.X + 10 * np.random.default_rng(0).standard_normal(60)
    options = {"center": True, "init": "altproj", "forgetting_factor": 0.95, "batch_size": 50}
    model = FederatedSubspaceTracker(
        3, random_state=0, n_clients=1, **{**PAPER, **ROUNDS, **options}
    ).fit(X)
    pooled = RobustSubspaceTracker(3, **{**PAPER, **options}).fit(X)
    assert_same(model, pooled, 1e-6)
    assert_array_equal(model.outlier_mask_, pooled.outlier_mask_)


def test_the_first_mean_is_of_the_medians_of_clients_where_there_are_outliers():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((100, 4)) + 7
    X[rng.random(X.shape) < 0.1] = nan
    X[rng.random(X.shape) < 0.05] = 1e4
    owners = np.arange(100) % 2
    counts = np.array([(~np.isnan(X[owners == i])).sum(axis=0) for i in (0, 1)])
    medians = np.array([np.nanmedian(X[owners == i], axis=0) for i in (0, 1)])
    want = (counts * medians).sum(axis=0) / counts.sum(axis=0)
    model = FederatedSubspaceTracker(
        2,
        center=True,
        batch_size=100,
        init="altproj",
        n_rounds=1,
        forgetting_factor=0.0,
        fill="subspace",
    )
    seen = []
    model._without_outliers = lambda state, Y: (seen.append(state.mean), 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.fit(X, clients=owners)
    assert_allclose(seen[0], want, rtol=1e-12)


def test_what_a_mean_costs_is_as_said():
    X, d, r, k = stream(120), 30, 3, 4
    model = FederatedSubspaceTracker(
        r,
        robust=False,
        center=True,
        batch_size=40,
        n_rounds=6,
        init_rounds=9,
        random_state=0,
        forgetting_factor=0.0,
        fill="subspace",
    ).fit(X, clients=np.arange(120) % k)
    up, down = [k * (2 * d + 1)], [k * d]
    for rounds in (9, 6, 6):
        up += [k * (d + 1)] + [k * r * d] * rounds + [k * (r**2 + 2)]
        down += [k * d] + [k * r * d] * (rounds + 1)
    log = model.communication_
    assert [row["floats_up"] for row in log.table] == up
    assert [row["floats_down"] for row in log.table] == down


def test_forgetting_costs_nothing():
    X, model = stream(120), FederatedSubspaceTracker(3, robust=False, batch_size=40, **PAPER)
    plain = clone(model).fit(X).communication_
    assert clone(model).set_params(forgetting_factor=0.99).fit(X).communication_ == plain


# ------------------------------------------------------------------------------------- changes


@cache
def moving(n=2400, d=100, k=3, change=1500, seed=0, **options):
    changes = [] if change is None else [change]
    options = {"model": "piecewise", "change_points": changes, **options}
    return make_subspace_stream(n, d, k, random_state=seed, **options)


def watching(k=3, size=60, noise=0.0, **options):
    channel = GaussianChannel(noise) if noise else None
    options = {"n_updates": 10, "robust": False, "random_state": 0, **options}
    return FederatedSubspaceTracker(
        k, batch_size=size, detect_changes=True, channel=channel, **{**PAPER, **options}
    )


@pytest.mark.parametrize("noise", [0.0, 1e-6, 1e-2, 0.1])
@pytest.mark.parametrize("noise_std", [0.0, 0.05])
def test_a_change_is_found_in_its_batch_and_no_other(noise, noise_std):
    # Ten batches are updated and four watched; then comes the change, or none, and ten updates
    # more. A batch has 60 rows of variance 1 in each of three directions: after the change the
    # residuals have eigenvalues near 60 and none of the others. Lemma 4.2 has an accuracy of
    # 5 sqrt(d) noise / 60, at most .08 here, below the factor of two that is a change.
    for seed, change in enumerate((None, 840, 870)):
        made = moving(1500, change=change, seed=seed, noise_std=noise_std)
        model = watching(noise=noise).fit(made.X, clients=np.arange(1500) % 4)
        assert_array_equal(model.change_points_, [] if change is None else [840])
        if change and not noise_std and noise < 0.1:
            assert sine(model.components_, made.subspace_at(1499)) < max(noise, 1e-6)


def test_where_noise_is_as_large_as_the_rows_none_is_made_up():
    for seed in range(4):
        still = moving(2400, 20, 2, change=None, seed=seed)
        model = watching(2, noise=1.0)
        assert_array_equal(model.fit(still.X).change_points_, [])
        # The residuals' eigenvalues after the change are near 60. A threshold is twice what noise
        # alone makes of an eigenvalue, sqrt(20) at most on average, and 10 deviations more: 23.
        made = moving(2400, 20, 2, change=1020, seed=seed)
        found = model.fit(made.X).change_points_
        assert len(found) == 1
        assert 1020 <= found[0] <= 1080  # at once or in the next batch


@pytest.mark.parametrize("seed", range(4))
def test_with_a_perfect_channel_changes_are_those_of_the_tracker_of_all_rows(seed):
    # residuals in 8 dimensions scatter so much that some of the changes found are none
    made = moving(1500, 8, 2, change=1010, seed=seed, noise_std=0.1)
    pooled = SubspaceTracker(2, batch_size=20, detect_changes=True, n_updates=10, **PAPER).fit(
        made.X
    )
    model = watching(2, 20, n_rounds=30).fit(made.X)
    assert_array_equal(model.change_points_, pooled.change_points_)
    assert_same(model, pooled, 1e-6)


@pytest.mark.parametrize("scale", [1e-140, 1e140])
def test_changes_do_not_depend_on_units(scale):
    # the asymmetry of the sums is rounding, of which squares overflow for rows of 1e85
    made = moving(900, 40, 3, change=780, noise_std=0.05)
    assert_array_equal(watching(n_updates=5).fit(scale * made.X).change_points_, [780])


def test_a_given_threshold_is_that_of_the_tracker_of_all_rows():
    made = moving(1500, 40, 3, change=1000, noise_std=0.05)
    for threshold in (0.0, 0.1, 1e6):
        options = {"n_updates": 5, "change_threshold": threshold}
        pooled = SubspaceTracker(3, batch_size=60, detect_changes=True, **{**PAPER, **options}).fit(
            made.X
        )
        model = watching(n_rounds=30, **options).fit(made.X)
        assert_array_equal(model.change_points_, pooled.change_points_)


def test_a_slow_walk_is_no_abrupt_change():
    made = make_subspace_stream(1800, 200, 5, random_state=0)
    model = watching(5, 60, noise=1e-3).fit(made.X)
    assert len(model.change_points_) <= 2
    assert sine(model.components_, made.subspace_at(1799)) < 0.05


def test_changes_are_found_though_clients_drop_out():
    made = moving(seed=1)
    model = watching().set_params(channel=PerfectChannel(dropout=0.3))
    assert_array_equal(model.fit(made.X, clients=np.arange(2400) % 5).change_points_, [1500])


def test_a_row_that_alone_does_not_fit_tells_the_server_its_residual(monkeypatch):
    # as docs/promises.md says
    received, summed = [], Federation.sum

    def seen(self, query, calls, *rest):
        total = summed(self, query, calls, *rest)
        received.append((query, total))
        return total

    rng = np.random.default_rng(0)
    P = np.linalg.qr(rng.standard_normal((30, 3)))[0].T
    X = rng.standard_normal((160, 3)) @ P
    secret = X[130] = rng.standard_normal(30)
    model = watching(3, 40, n_updates=1, change_threshold=1e9).fit(X[:120])
    monkeypatch.setattr(Federation, "sum", seen)
    model.partial_fit(X[120:])
    query, total = received[-1]
    U = query.V
    values, Y = np.linalg.eigh(total[:-2].reshape(len(U), len(U)))
    guess = np.sqrt(values[-1]) * Y[:, -1] @ U
    residual = secret - (secret @ P.T) @ P
    assert min(np.abs(guess - residual).max(), np.abs(guess + residual).max()) < 1e-6


def test_between_updates_the_basis_rests_and_only_looks_are_sent():
    d, r, k, L = 100, 3, 4, 6
    made = moving(1200, change=900)
    model = watching(n_updates=4, n_rounds=L, store_subspaces=True)
    log = model.fit(made.X, clients=np.arange(1200) % k).communication_
    moved = [np.any(a != b) for a, b in zip(model.subspaces_, model.subspaces_[1:], strict=False)]
    # batch 15 holds row 900; the first batch has no residuals to look at
    assert_array_equal(1 + np.flatnonzero(moved), [1, 2, 3, 4, 15, 16, 17, 18])
    look, update = [k * 10 * d] * L + [k * (10**2 + 2)], [k * r * d] * L + [k * (r**2 + 2)]
    up = [k * r * d] * 50 + [k * (r**2 + 2)]
    for batch in range(1, 20):
        up += look + (update if batch in (1, 2, 3, 4, 15, 16, 17, 18) else [])
    assert [row["floats_up"] for row in log.table] == up


def test_the_margin_holds_though_the_noise_is_estimated():
    q, edge, t = 10, np.sqrt(20), 10
    dof = q * (q - 1) // 2

    def above(x):  # density of the estimate, and the bound given it
        excess = max(np.sqrt(x / dof) * (edge + t) - edge, 0)
        return scipy.stats.chi2.pdf(x, dof) * np.exp(-(excess**2) / 2)

    assert scipy.integrate.quad(above, 0, 240, limit=500, points=[5, 45])[0] < 1 / 3e7


@pytest.mark.parametrize("noise", [0.0, 1e-3, 1.0, 30.0])
def test_the_eigenvalue_and_its_margin_are_those_of_lemma_4_2(noise):
    rng = np.random.default_rng(0)
    n, d, r, m = 60, 40, 10, 100
    for scale in (0.0, np.arange(1, d + 1) ** -2.0):
        Z = 5 * rng.standard_normal((n, d)) * scale
        sigma = np.append(np.linalg.svd(Z, compute_uv=False) ** 2, 0)
        over = below = 0
        for seed in range(m):
            state = np.random.RandomState(seed)
            federation = Federation(channel=GaussianChannel(noise), rng=state)
            clients = [Client(i, Z[i::3]) for i in range(3)]
            value, margin = largest_eigenvalue(federation, clients, state, 20)
            over += value - margin > sigma[0] * (1 + 1e-12)
            eps = 5 * np.sqrt(d) * noise / sigma[r - 1] if sigma[r - 1] else np.inf
            if eps < 1 / 3:  # what the lemma assumes
                low = (1 - 4 * eps**2) * sigma[0] - eps**2 * sigma[r] - eps * sigma[r - 1]
                below += not low * (1 - 1e-9) <= value <= (1 + eps) * sigma[0] * (1 + 1e-9)
        # noise alone is above its margin in one look of 3e7
        assert (over, below) == (0, 0)
        # and the margin is that of the noise, whose size is read from 45 differences: its relative
        # deviation is 1 / sqrt(90)
        want = noise * (np.sqrt(20) + 10)
        assert abs(margin - want) <= 5 / np.sqrt(90) * want + 1e-9 * sigma[0]


# ----------------------------------------------------------------------- outliers in batch one


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("share", [0.05, 0.1])
def test_among_outliers_altproj_is_the_better_start(k, share):
    for seed in range(2):
        made = make_subspace_stream(400, 150, 5, delta=0, outliers=share, random_state=seed)
        V, errors = made.subspace_at(0), {}
        for init in ("svd", "altproj"):
            model = FederatedSubspaceTracker(
                5, init=init, batch_size=60, store_subspaces=True, **PAPER
            )
            model.set_params(random_state=0).fit(made.X, clients=np.arange(400) % k)
            errors[init] = [sine(basis, V) for basis in (model.subspaces_[0], model.components_)]
        assert errors["svd"][0] > 0.9  # outliers of up to 25 beside rows of variance 1
        # 100 or 25 rows a client: five for each component are enough to tell outliers
        assert errors["altproj"][0] < 0.02
        assert errors["altproj"][1] < min(1e-4, errors["svd"][1])


def test_of_few_rows_a_client_tells_outliers_less_well():
    made = make_subspace_stream(100, 150, 5, delta=0, outliers=0.1, random_state=0)
    errors = {}
    for k in (1, 4, 16):
        model = FederatedSubspaceTracker(5, init="altproj", random_state=0, **PAPER)
        model.fit(made.X, clients=np.arange(100) % k)
        errors[k] = sine(model.components_, made.subspace_at(0))
    # six rows and five components leave nothing to tell them by; still better than no search
    assert errors[1] < errors[4] < errors[16] < 0.2


def test_the_start_by_altproj_is_that_of_all_rows_for_one_client():
    made = make_subspace_stream(500, 100, 4, delta=0, outliers=0.1, random_state=0)
    options = {"init": "altproj", "batch_size": 50, "init_size": 120}
    model = FederatedSubspaceTracker(
        4, n_clients=1, random_state=0, **{**PAPER, **ROUNDS, **options}
    )
    pooled = RobustSubspaceTracker(4, **{**PAPER, **options})
    assert_same(model.fit(made.X), pooled.fit(made.X), 1e-7)
    assert_array_equal(model.outlier_mask_, pooled.outlier_mask_)


def test_the_start_by_altproj_costs_as_many_rounds_as_a_random_one():
    X, d, r, k = stream(200, mean=0), 30, 3, 4
    model = FederatedSubspaceTracker(
        r,
        init="altproj",
        init_size=80,
        batch_size=40,
        n_rounds=6,
        init_rounds=9,
        random_state=0,
        **PAPER,
    ).fit(X, clients=np.arange(200) % k)
    up, outliers = [k * r * d] * 9, k * (2 * d + 3)
    for _ in range(4):
        up += [outliers] + [k * r * d] * 6 + [k * (r**2 + 2)]
    assert [row["floats_up"] for row in model.communication_.table] == up
    # thresholds that are given need no round
    given = clone(model).set_params(support_threshold=1.0).fit(X, clients=np.arange(200) % k)
    assert given.communication_.rounds == len(up) - up.count(outliers)


@pytest.mark.parametrize("k", [2, 40])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_outliers_are_found_however_few_rows_a_client_has(k, noise):
    # 40 clients have one row each in a batch
    made = make_subspace_stream(
        800, 100, 4, delta=0, outliers=0.05, noise_std=noise, random_state=0
    )
    model = FederatedSubspaceTracker(4, n_clients=k, random_state=0).fit(made.X)
    pooled = RobustSubspaceTracker(4).fit(made.X)
    V, true = made.subspace_at(0), made.outliers & ~made.missing
    assert np.mean((model.outlier_mask_ != true)[200:]) < 1e-4
    error, least = (subspace_distance(m.components_, V) for m in (model, pooled))
    assert error < 1.2 * least + 1e-10


def test_outliers_are_found_after_a_change_over_a_channel():
    options = {"model": "piecewise", "outliers": 0.05, "noise_std": 0.02, "random_state": 0}
    made = make_subspace_stream(1200, 100, 4, **options)
    channel = GaussianChannel(1e-3, dropout=0.1)
    model = FederatedSubspaceTracker(4, n_clients=8, channel=channel, random_state=0).fit(made.X)
    wrong = model.outlier_mask_ != (made.outliers & ~made.missing)
    assert np.mean(wrong[200:600]) < 1e-3
    assert np.mean(wrong[-200:]) < 1e-3
    assert subspace_distance(model.components_, made.subspace_at(1199)) < 0.1


# ---------------------------------------------------------------------------- rounds of batch one


def algorithm_3(X, P, L, alpha):
    """Fed-OA-RSTMiss-NoDet without outliers and noise, with d x d matrices: all sums are exact."""
    for Y in np.split(X, len(X) // alpha):
        Psi, rows = np.eye(X.shape[1]) - P @ P.T, []
        for y in Y:
            M = np.flatnonzero(np.isnan(y))
            y = np.nan_to_num(y)
            y[M] -= np.linalg.pinv(Psi[:, M]) @ (Psi @ y)
            rows.append(y)
        Z = np.array(rows).T
        for _ in range(L):  # FedOA-PM from the last estimate, for every batch
            P = np.linalg.qr(Z @ Z.T @ P)[0]
        yield P.T


def test_with_a_given_start_every_batch_has_the_rounds_of_algorithm_3():
    X, L = stream(160, mean=0), 2
    start = leading(np.nan_to_num(X[:40]), 3)
    model = FederatedSubspaceTracker(
        3, init=start, batch_size=40, n_rounds=L, robust=False, store_subspaces=True, **PAPER
    ).fit(X)
    for V, W in zip(model.subspaces_, algorithm_3(X, start.T, L, 40), strict=True):
        assert sine(V, W) < 1e-8
    assert model.communication_.rounds == 4 * (L + 1)
    # a start of fewer rows than components is random but for them
    few = clone(model).set_params(init=start[:2], init_rounds=7).fit(X)
    assert few.communication_.rounds == 7 + 1 + 3 * (L + 1)


def test_decompose_after_an_update_is_line_6_of_algorithm_3():
    # no noise and a start within 1e-3: the support is found exactly (Lemma 4.6), and what is left
    # of Algorithm 4 is its line 7
    made = make_subspace_stream(240, 100, 3, delta=0, outliers=0.1, random_state=0)
    start = made.subspace_at(0) + 1e-3 * np.random.default_rng(0).standard_normal((3, 100))
    model = FederatedSubspaceTracker(
        3, init=start, batch_size=60, xi=10 / 15, support_threshold=5.0, n_rounds=3, **PAPER
    )
    for Y, hit in zip(np.split(made.X, 4), np.split(made.outliers & ~made.missing, 4), strict=True):
        low_rank, sparse = model.partial_fit(Y, clients=np.arange(60) % 4).decompose(Y)
        P = model.components_.T
        Psi = np.eye(100) - P @ P.T
        for y, outliers, got, s in zip(Y, hit, low_rank, sparse, strict=True):
            M = np.flatnonzero(np.isnan(y) | outliers)
            z = np.nan_to_num(y)
            z[M] -= np.linalg.pinv(Psi[:, M]) @ (Psi @ z)
            assert_allclose(got, z, atol=1e-8)
            assert_array_equal(s != 0, outliers)


@pytest.mark.parametrize(
    ("mean", "robust"), [(0.0, False), (1.0, False), (100.0, False), (100.0, True)]
)
def test_rows_of_low_rank_about_any_mean_are_found_to_rounding(mean, robust):
    """The mean of filled rows lies in their affine hull; one of observed entries would not."""
    rng = np.random.default_rng(0)
    L = rng.standard_normal((700, 2)) @ rng.standard_normal((2, 12)) + mean * (1 + rng.random(12))
    X = np.where(rng.random(L.shape) < 0.1, nan, L)
    tracker = FederatedSubspaceTracker(
        2, robust=robust, n_rounds=4, init_rounds=10, random_state=0
    ).fit(X, clients=labels(700, 3))
    truth = np.linalg.svd(L - L.mean(axis=0), full_matrices=False)[2][:2]
    assert sine(tracker.components_, truth) < 1e-8
    assert np.abs(tracker.impute(X) - L).max() < 1e-8
