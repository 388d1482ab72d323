"""The guarantees for rounds of sums as the paper prints them, on data within their conditions.

P. Narayanamurthy, N. Vaswani, A. Ramamoorthy, "Federated over-air subspace tracking from incomplete
and corrupted data", 2022, section IV: Lemmas 4.1, 4.2, 4.6, 4.7, Theorem 4.4, Remark 4.5, footnote
4. L is given up to a constant: 1 here, or 2 where 1 is not enough. Where a statement does not hold
as printed, a test shows it.
"""

from math import ceil, log, sqrt

import numpy as np
import pytest
from bounds_helpers import batch_of, bounded, quantities, sparse_noise, steps, swaying, waves
from helpers import PAPER, sine, sine_of_orthonormal
from rounds_helpers import about_origin

from fedpca_sklearn import (
    FederatedSubspaceTracker,
    FirstSubspace,
    GaussianChannel,
    OutlierSupport,
    projected_sparse_recovery,
)

# ------------------------------------------------------------------------------- the paper's text


def noise_of_lemma_4_1(eps, n, values, r):
    """sigma_c < eps sigma_r / (5 sqrt(n)), sigma the eigenvalues of the scatter matrix."""
    return eps * values[r - 1] / (5 * sqrt(n))


def rounds_of_lemma_4_1(eps, n, r, ratio, eps_0=None):
    """L from a random start with the constant 1, or from one at the distance eps_0 with 2."""
    constant, start = (1, n * r / eps) if eps_0 is None else (2, 1 / (eps * sqrt(1 - eps_0**2)))
    return ceil(constant * log(start) / log(1 / ratio))


def theorem_4_4(t, eps_init, change, no_lev):
    """First line of the bound, for t > 1."""
    tail = change * sum(0.3**i for i in range(1, t))
    return max(0.3 ** (t - 1) * eps_init + tail, no_lev)


# ------------------------------------------------------------------------------- Lemmas 4.1 and 4.2


def spectrum(n, r, ratio, tail):
    """Eigenvalues from 3 to 1, and n - r more, from ``ratio`` down or all equal to it."""
    rest = np.full(n - r, ratio) if tail == "flat" else np.linspace(ratio, 0, n - r)
    return np.concatenate([np.linspace(3, 1, r), rest])


def start_at(distance, n, r):
    """A basis at this sine of every angle to the first r coordinate axes."""
    eye = np.eye(n)
    return sqrt(1 - distance**2) * eye[:r] + distance * eye[r : 2 * r]


def over_the_air(values, r, n_rounds, noise, seed, start=None):
    """FedOA-PM: its error, and its largest eigenvalue."""
    options = {"channel": GaussianChannel(noise), "init": start, "random_state": seed}
    model = about_origin(r, n_rounds, **options).fit(np.diag(np.sqrt(values)))
    return sine(model.components_, np.eye(len(values))[:r]), model.singular_values_[0] ** 2


def test_lemma_4_1_fails_as_printed_where_all_eigenvalues_are_near():
    # allowed: R < .99. At rest the noise leaves sigma_c / sqrt(sigma_r^2 - sigma_i^2) along each of
    # the n - r other directions: sqrt(n - r) times that is more than eps, from any start, however
    # long. The condition on the noise lacks the gap, which Hardt and Price (2014) have in theirs.
    n, r, eps, ratio = 60, 8, 1e-2, 0.985
    values = np.concatenate([np.ones(r), np.full(n - r, ratio)])
    noise = 0.999 * noise_of_lemma_4_1(eps, n, values, r)
    at_rest = noise * sqrt(n - r) / sqrt(1 - ratio**2)
    assert at_rest > eps
    start = start_at(0.1, n, r)
    for n_rounds in (rounds_of_lemma_4_1(eps, n, r, ratio, 0.1), 400):
        errors = [over_the_air(values, r, n_rounds, noise, seed, start)[0] for seed in range(2)]
        assert min(errors) > eps
    # with the gap in place of sigma_r
    less = noise * (1 - ratio)
    n_rounds = rounds_of_lemma_4_1(eps, n, r, ratio, 0.1)
    assert over_the_air(values, r, n_rounds, less, 0, start)[0] <= eps


def test_footnote_4_twice_as_many_directions_make_a_random_start_reliable():
    # from r directions each in ten may fail, from 2 r one in 10^r
    n, r, eps, ratio = 40, 2, 1e-2, 0.5
    values = spectrum(n, r, ratio, "flat")
    noise = 0.999 * noise_of_lemma_4_1(eps, n, values, r)
    n_rounds = rounds_of_lemma_4_1(eps, n, r, ratio)
    errors = {r: [], 2 * r: []}
    for seed in range(60):
        for k in errors:
            pca = about_origin(k, n_rounds, channel=GaussianChannel(noise), random_state=seed)
            pca.fit(np.diag(np.sqrt(values)))
            errors[k].append(sine_of_orthonormal(np.eye(n)[:r], pca.components_))
    failed = {k: sum(np.array(e) > eps) for k, e in errors.items()}
    assert failed[2 * r] == 0 < failed[r] <= 0.1 * 60


# ------------------------------------------------------------------------------- Lemma 4.7


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("eps_init", [0.1, 0.9])
@pytest.mark.parametrize(("b", "q", "noise"), [(0.01, 0.1, 0.0), (0.0025, 0.5, 0.1)])
def test_lemma_4_7_bounds_rounds_on_rows_with_sparse_data_dependent_noise(
    b, q, noise, eps_init, aligned
):
    n, r, alpha = round(1 / b), 2, 400
    rng, V = np.random.default_rng(0), waves(n, r)
    L = bounded(rng, (alpha, r), 1.0) @ V
    Z = L + sparse_noise(rng, L, V, b, q, aligned)
    Z += batch_of(rng, V, alpha, variances=0.0, noise=noise)
    f, least = moments(L, r)
    eps = (7 * sqrt(b) * q * f + noise**2 / least) / 0.4 * 1.001
    assert eps < 1
    sigma_c = eps * least / (10 * sqrt(n))  # against Z Z^T / alpha
    n_rounds = ceil(log(1 / (eps * sqrt(1 - eps_init**2))))
    options = {"channel": GaussianChannel(alpha * sigma_c), "n_clients": 4, "random_state": 0}
    pca = about_origin(r, n_rounds, init=leaning_from(V, eps_init, rng), **options).fit(Z)
    assert sine(pca.components_, V) <= eps


def moments(L, r):
    """f and lambda- of a batch."""
    s = np.linalg.svd(L, compute_uv=False)[:r] ** 2 / len(L)
    return s[0] / s[-1], s[-1]


def norms(rows):
    return np.linalg.norm(rows, axis=1)


def leaning_from(V, distance, rng):
    """A basis at this sine of every angle to V."""
    W = rng.standard_normal(V.shape)
    W = np.linalg.qr((W - W @ V.T @ V).T)[0].T
    return sqrt(1 - distance**2) * V + distance * W


# ------------------------------------------------------------------------------- Lemma 4.6


@pytest.mark.parametrize("r", [2, 8])
@pytest.mark.parametrize("eps_init", [0.02, 0.5])
@pytest.mark.parametrize("change", [0.0, 0.01])
def test_lemma_4_6_has_one_factor_of_three_tenths_too_many(r, eps_init, change):
    # Psi is of P^_(t-1), whose error Theorem 4.4 bounds by .3^(t-2) eps_init and more; here at
    # t = 2, without noise, |a|^2 <= mu r lambda+ with mu = 3
    n, alpha = 200, 400
    rng, V = np.random.default_rng(0), waves(n, r)
    start = leaning_from(V, eps_init, rng)
    now = leaning_from(V, change, rng)
    L = bounded(rng, (alpha, r), 1.0) @ now
    left = norms(L - L @ start.T @ start)
    assert left.max() <= (eps_init + 1.5 * change) * sqrt(3 * r)
    if not change:
        assert np.median(left) > (0.3 * eps_init + 2.5 * change) * sqrt(3 * r)


def test_lemma_4_6_bounds_the_sparse_part_off_the_missing_entries():
    # in print norm(s_cs - s) <= 7 xi; what s_cs has in a missing entry estimates -l, not s
    n, r, s_min = 200, 2, 0.05
    rng, V = np.random.default_rng(0), waves(n, r)
    start = leaning_from(V, 1e-3, rng)
    L = bounded(rng, (20, r), 1.0) @ V
    lost, hit = np.zeros((2, *L.shape), dtype=bool)
    for gone, wrong in zip(lost, hit, strict=True):
        at = rng.permutation(n)
        gone[at[:4]], wrong[at[4:6]] = True, True
    S, xi = np.where(hit, s_min, 0.0), s_min / 15
    assert norms(L - L @ start.T @ start).max() <= xi
    X = np.where(lost, np.nan, L + S)
    found, _ = projected_sparse_recovery(X, start, xi, tol=1e-6)
    assert norms(found - S).max() <= 7 * xi  # zeros where entries are missing
    Psi = np.eye(n) - start.T @ start
    full = found.copy()  # with the minimiser's missing entries, which are free
    for row, gone, complete in zip(full, lost, L + S, strict=True):
        y = np.where(gone, 0.0, complete)
        row[gone] = np.linalg.lstsq(Psi[:, gone], Psi @ (y - row), rcond=None)[0]
    assert np.median(norms(full - S)) > 7 * xi
    assert norms(full - np.where(lost, -L, S)).max() <= 7 * xi


@pytest.mark.parametrize(("share", "found"), [(0.9, True), (1 / 15, False)])
def test_lemma_4_6_needs_the_constant_of_item_6_for_the_modelling_error_too(share, found):
    # item 6 has sqrt(r_v lambda_v+) <= s_min without a constant, the proof s_min / 15. The error is
    # in one direction here, nearly an axis, and is taken for an outlier where there is none.
    n, r, s_min = 200, 2, 1.0
    rng, V = np.random.default_rng(0), waves(n, r)
    axis = np.eye(n)[0] - V[:, 0] @ V
    off = share * s_min * np.outer(rng.choice([-1, 1], 50), axis / np.linalg.norm(axis))
    L = bounded(rng, (50, r), 25 * s_min**2) @ V
    assert sqrt(np.mean(norms(off) ** 2)) / 5 <= 0.2  # no-lev
    sparse, _ = projected_sparse_recovery(L + off, V, s_min / 15, tol=1e-6)
    support = np.abs(sparse) > s_min / 2
    np.testing.assert_array_equal(support[:, 0], found)
    assert not support[:, 1:].any()


# ------------------------------------------------------------------------------- Theorem 4.4


def over_bound(n, r, alpha, *, missing, outliers, noise, step, eps_init, n_batches=5, s_min=10.0):
    """Error over the bound of Theorem 4.4, batch by batch, within items 5 and 6.

    What is given at t = 1 is near the first subspace; the batches are those of t = 2, 3, ...
    With ``eps_init=None`` nothing is given and the first batch, of t = 1, has no outliers: Remark
    4.5, by which eps_init is 0.01 * 0.3.
    """
    given = eps_init is not None
    eps_init = eps_init if given else 0.01 * 0.3
    rng = np.random.default_rng(0)
    bases = swaying(n, r, n_batches, step)
    rows = [batch_of(rng, P, alpha, noise=noise) for P in bases]
    lost = [rng.random((alpha, n)) < missing for _ in bases]
    hit = [(rng.random((alpha, n)) < outliers) & ~gone for gone in lost]
    hit[0] &= given
    sparse = [where * rng.uniform(s_min, 2 * s_min, (alpha, n)) for where in hit]
    batches = [quantities(L, gone, r) for L, gone in zip(rows, lost, strict=True)]
    no_lev, change = max(batch.no_lev for batch in batches), max(steps(batches))
    most, least = (pick(moments(L, r)[1] for L in rows) for pick in (max, min))
    assert no_lev <= 0.2
    assert 0.3 * eps_init + 0.5 * change <= 0.28
    assert sqrt(r * most) * (0.3 * eps_init + 0.5 * change) + sqrt(r * least) * no_lev <= s_min
    n_rounds = ceil(log(1 / no_lev))
    start = FirstSubspace(
        leaning_from(batches[0].P, eps_init, rng) if given else "svd",
        n_rounds=n_rounds if given else ceil(log(n / no_lev)),
    )
    support = OutlierSupport(s_min / 2, s_min / 15)
    found = {"init": start, "support_threshold": support, "robust": outliers > 0}
    channel = GaussianChannel(alpha * no_lev * least / (10 * sqrt(n)))
    options = {**PAPER, **found, "batch_size": alpha, "n_rounds": n_rounds}
    model = FederatedSubspaceTracker(r, n_clients=4, channel=channel, random_state=0, **options)
    errors = []
    for L, gone, where, S, batch in zip(rows, lost, hit, sparse, batches, strict=True):
        model.partial_fit(np.where(gone, np.nan, L + S))
        errors.append(sine(model.components_, batch.P))
        if outliers:  # Lemma 4.6: the support is found exactly
            np.testing.assert_array_equal(model.outlier_mask_, where)
        if 0 < outliers <= 0.01:  # the rows, line 6 of Algorithm 3; 1.2 is for few entries of a row
            low_rank = L @ batch.P.T @ batch.P
            found = model.decompose(np.where(gone, np.nan, L + S))[0]
            size, off, error = (norms(part) for part in (low_rank, L - low_rank, found - low_rank))
            assert np.all(error <= 1.2 * errors[-1] * size + off)
    times = range(2 if given else 1, len(errors) + 2)
    bounds = [theorem_4_4(t, eps_init, change, no_lev) for t in times]
    return np.divide(errors, bounds[: len(errors)])[0 if given else 1 :]


@pytest.mark.parametrize(
    ("n", "r", "alpha", "missing", "outliers", "noise", "step", "eps_init", "holds"),
    [
        (200, 2, 400, 0.002, 0.002, 0.01, 0.0, 0.5, True),
        (200, 4, 400, 0.05, 0.05, 0.02, 0.1, 0.3, True),
        (200, 2, 400, 0.01, 0.01, 0.1, 0.1, 0.7, True),
        # Remark 4.5 starts by the r-SVD of a batch without outliers
        (200, 2, 1000, 0.002, 0.002, 0.003, 0.05, None, True),
        # and eps_init = 0.01 * 0.3: with as many missing as Theorem 4.4 was found to hold for, the
        # second error is above .3 eps_init, by less than ten times. no-lev does not hide it here.
        (200, 2, 400, 0.1, 0.0, 1e-4, 0.0, None, False),
        # the experiments: two rows a component, a tenth missing: the factor is .4, not .3
        (1000, 30, 60, 0.1, 0.0, 1e-3, 0.0, 0.5, False),
    ],
)
def test_theorem_4_4_bounds_the_error_of_every_batch_or_of_few_missing_entries(
    n, r, alpha, missing, outliers, noise, step, eps_init, holds
):
    conditions = {"missing": missing, "outliers": outliers, "noise": noise, "step": step}
    n_batches = 3 if n == 1000 else 5
    ratio = over_bound(n, r, alpha, **conditions, eps_init=eps_init, n_batches=n_batches)
    assert (ratio.max() <= 1) == holds
    assert ratio.max() < 10


def test_theorem_4_4_bounds_the_rows_of_the_second_estimate_and_not_of_the_first():
    # printed with l^ and P^_t; l^ of line 4 is by P^_(t-1), that of line 6 by P^_t
    n, r, alpha = 200, 2, 400
    rng, V = np.random.default_rng(0), waves(n, r)
    rows = [batch_of(rng, V, alpha, noise=1e-4) for _ in range(2)]
    lost = [rng.random((alpha, n)) < 0.01 for _ in rows]
    first, second = (np.where(gone, np.nan, L) for L, gone in zip(rows, lost, strict=True))
    batch = quantities(rows[1], lost[1], r)
    n_rounds = ceil(log(1 / batch.no_lev))
    options = {**PAPER, "batch_size": alpha, "n_rounds": n_rounds, "robust": False}
    model = FederatedSubspaceTracker(r, init=leaning_from(V, 0.5, rng), random_state=0, **options)
    model.partial_fit(first)
    low_rank = rows[1] @ batch.P.T @ batch.P
    off = norms(rows[1] - low_rank)
    by_the_last = norms(model.impute(second) - low_rank)
    by_the_new = norms(model.partial_fit(second).impute(second) - low_rank)
    bound = 1.2 * sine(model.components_, batch.P) * norms(low_rank) + off
    assert np.mean(by_the_last > bound) > 0.1
    assert np.all(by_the_new <= bound)
