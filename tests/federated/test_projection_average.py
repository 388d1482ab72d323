"""Averages of projections, over clients and over time, against explicit d x d matrices.

The oracle of an average over steps is Algorithm 1 of Tarzanagh et al. (ODPCA), from its listing.
"""

from itertools import pairwise, product

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
from helpers import assert_same_summary, floats_of, peak_bytes, random_basis, sine
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from projection_helpers import (
    WEIGHTINGS,
    alike_shards,
    assert_leads,
    assert_moments,
    assert_orthonormal,
    assert_principal,
    each_weighting,
    eigenpairs,
    labels,
    make_shards,
    mean_of_projections,
    pooled,
    same_subspace,
)
from sklearn.base import clone

from fedpca_sklearn import (
    FederatedPCA,
    OnlineDistributedPCA,
    ProjectionAverage,
    StreamingPCA,
    Subspace,
    SubspaceMerge,
    excess_error,
    make_power_law,
)

AVERAGES = ["steps", "shards"]
each_average = pytest.mark.parametrize("average", AVERAGES)
drawn = settings(max_examples=60, derandomize=True, deadline=None, database=None)


# -------------------------------------------------------------------- the explicit matrices


def basis(X, p, center):
    """The p leading right singular vectors that exist."""
    _, s, V = np.linalg.svd(X - X.mean(axis=0) * center, full_matrices=False)
    return V[: min(p, int(np.sum(s > 1e-9 * max(s[0], 1e-9))))]


def mean_projection(spaces, weights):
    return sum(w * V.T @ V for w, V in zip(weights, spaces, strict=True)) / np.sum(weights)


def mean_of(steps, K, p=None, weighting="equal", center=False, average="steps"):
    """The mean over shards, or Sigma tilde of T: of the K leading directions of each step."""
    rows = [np.array([len(X) for X in shards]) ** (weighting == "rows") for shards in steps]
    local = [[basis(X, p or K, center) for X in shards] for shards in steps]
    if average == "shards":
        return mean_projection([V for of_step in local for V in of_step], np.concatenate(rows))
    means = [mean_projection(spaces, w) for spaces, w in zip(local, rows, strict=True)]
    weights = [w.sum() for w in rows] if weighting == "rows" else np.ones(len(steps))
    pairs = [eigenpairs(M) for M in means]
    return mean_projection([V[values > 1e-9][:K] for values, V in pairs], weights)


def taken(pca, steps):
    """Take the shards of one step after the other."""
    for shards in steps:
        clients = np.repeat(np.arange(len(shards)), [len(X) for X in shards])
        pca.partial_fit(np.concatenate(shards), clients=clients)
    return pca


def flat(steps):
    return np.concatenate([X for shards in steps for X in shards])


def literal(K, **parameters):
    """The estimator that is Algorithm 1."""
    return OnlineDistributedPCA(
        K, average="steps", center=False, weighting="equal", variances="sent"
    ).set_params(**parameters)


def random_steps(rng, T, m, n, d, decay=0.9):
    """Normal shards in steps, with variances that fall and a common basis."""
    Q = random_basis(rng, d, d)
    scale = np.maximum(decay ** np.arange(d), 0.05)
    return [[(rng.standard_normal((n, d)) * scale) @ Q for _ in range(m)] for _ in range(T)]


def spiked(rng, n, Q, variances):
    """Rows of N(0, I + Q^T diag(variances) Q)."""
    rows = rng.standard_normal((n, len(Q))) * np.sqrt(variances) @ Q
    return rng.standard_normal((n, Q.shape[1])) + rows


def assert_averages(pca, M, K, tol=1e-9):
    """Components lead the matrix, whose eigenvalues are known up to what was cut."""
    e, values, kept = pca.projection_error_, eigenpairs(M)[0], pca.projection_values_
    assert_orthonormal(pca.components_)
    r = len(kept)
    assert np.all((values[:r] - kept >= -1e-8) & (values[:r] - kept <= e + 1e-8))  # Weyl
    assert np.all(values[r:] <= e + 1e-8)
    gap = kept[K - 1] - (kept[K] if r > K else 0) if r >= K else 0.0
    if e == 0:
        assert_leads(pca.components_, M, K, tol)
    elif gap > e:
        assert sine(pca.components_, eigenpairs(M)[1][:K]) <= e / gap + tol


# -------------------------------------------------------------------- over clients


def merged_scatter(shards, p):
    """Scatter matrix about the common mean of what the clients send with p directions each."""
    n = sum(shard.n for shard in shards)
    mean = sum(shard.n * shard.mean for shard in shards) / n
    between = sum(shard.n * np.outer(shard.mean - mean, shard.mean - mean) for shard in shards)
    return sum(shard.scatter_matrix(p) for shard in shards) + between


FIVE = [60, 9, 25, 40, 12]


@each_weighting
@pytest.mark.parametrize(
    ("d", "p", "sizes"),
    [
        *((d, p, FIVE) for d, p in ((20, None), (100, 2), (256, 7), (400, None), (400, 7))),
        (60, 4, [9] * 300),  # more than are stacked at once
    ],
)
def test_any_number_of_features_and_the_floats_that_are_sent(d, p, sizes, weighting):
    shards = alike_shards(np.random.default_rng(3), sizes, d)
    pca = FederatedPCA(3, merge=ProjectionAverage(p, weighting))
    pca.fit(pooled(shards), clients=labels(shards))
    assert_leads(pca.components_, mean_of_projections(shards, p or 3, weighting), 3)
    assert_orthonormal(pca.components_)
    assert_principal(pca, merged_scatter(shards, p or 3), sum(sizes))
    assert_moments(pca, pooled(shards))
    log, floats = pca.communication_, [floats_of(min(p or 3, len(s.axes)), d) for s in shards]
    assert (log.rounds, log.table[0]["messages_up"]) == (1, len(sizes))
    assert log.floats_up == log.floats_busiest == sum(floats)
    assert log.bytes_up == sum(8 * (n - 2) + 52 for n in floats)
    assert log.floats_down == log.bytes_down == 0


@each_weighting
def test_given_summaries_count_by_their_weight(weighting):
    shards = make_shards(np.random.default_rng(7), [9, 30, 14, 20], 15)
    w = np.array([3.0, 0.5, 0.0, 1.0]) ** 2
    parts = [s.subspace.decay(a) for s, a in zip(shards, w, strict=True)]
    strategy = ProjectionAverage(3, weighting)
    result = strategy.merge([Subspace.empty(15), *parts], 2)
    shares = w if weighting == "rows" else (w > 0) * 1.0
    assert_leads(result.components, mean_of_projections(shards, 3, weighting, shares), 2)
    weighted = SubspaceMerge().merge([part.truncate(3) for part in parts])
    assert_allclose(result.n_samples, weighted.n_samples)
    assert_allclose(result.mean, weighted.mean, atol=1e-12)
    S = (weighted.components.T * weighted.singular_values**2) @ weighted.components
    C = result.components
    assert_allclose(C @ S @ C.T, np.diag(result.singular_values**2), atol=1e-9 * np.trace(S))
    assert strategy.merge(parts).n_components == 3  # None: as many as are sent
    assert strategy.merge(parts, 3, between=1).to_bytes() == strategy.merge(parts, 3).to_bytes()
    assert ProjectionAverage(None, weighting).merge(parts).n_components == 12
    nothing = strategy.merge([part.decay(0.0) for part in parts], 2)
    assert (nothing.n_components, nothing.n_samples, nothing.scatter) == (0, 0, 0)


MERGES = [ProjectionAverage(2), ProjectionAverage(5), None, SubspaceMerge(fan_in=2)]


@pytest.mark.parametrize(("first", "then"), pairwise([*MERGES, MERGES[0]]))
def test_the_merge_strategy_may_change_between_calls(first, then):
    shards = alike_shards(np.random.default_rng(22), [30, 20, 40, 35], 15)
    pca = FederatedPCA(3, merge=first).fit(pooled(shards[:3]), clients=labels(shards[:3]))
    pca.set_params(merge=then).partial_fit(shards[3].rows, clients=[3] * 35)
    want = FederatedPCA(3, merge=then).fit(pooled(shards), clients=labels(shards))
    assert_same_summary(pca, want)


# -------------------------------------------------------------------- votes and attacks


def noise(rng, n):
    """Rows of five large directions that nobody else has."""
    Q = np.linalg.qr(rng.standard_normal((50, 50)))[0]
    return rng.standard_normal((n, 50)) * np.repeat([0.1, 10], [45, 5]) @ Q.T


@pytest.mark.parametrize("n_samples", [1e3, 1e9])
def test_a_site_that_claims_many_rows_does_not_decide(n_samples):
    X = make_power_law(8000, 50, alpha=1.0, random_state=0)
    liar = Subspace.from_rows(noise(np.random.default_rng(1), 1000))._replace(n_samples=n_samples)
    sites = [*(Subspace.from_rows(X[i::8]) for i in range(1, 8)), liar]
    voted = FederatedPCA.from_subspaces(sites, 5, merge=ProjectionAverage())
    assert excess_error(X, voted.components_) < 1e-2
    by_rows = FederatedPCA.from_subspaces(sites, 5, merge=ProjectionAverage(weighting="rows"))
    assert (excess_error(X, by_rows.components_) > 0.5) == (n_samples == 1e9)


def test_a_wrong_mean_moves_scores_and_no_centring_guards_them():
    # what docs/promises.md says: only directions are guarded
    X = make_power_law(8000, 50, alpha=1.0, random_state=0)
    clients = np.arange(8000) % 8
    Z = X + np.where(clients == 0, 1e6, 0.0)[:, None]
    for center in (True, False):
        merged = FederatedPCA(5, estimator=StreamingPCA(center=center), merge=ProjectionAverage())
        honest = merged.fit(X, clients=clients).transform(X[1:2])
        scores = merged.fit(Z, clients=clients).transform(X[1:2])
        assert (np.linalg.norm(scores) > 1e4) == center
        if not center:
            assert_allclose(np.linalg.norm(scores), np.linalg.norm(honest), rtol=0.3)


# -------------------------------------------------------------------- over time


@settings(drawn, max_examples=60)
@given(
    grouping=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    d=st.integers(4, 20),
    p=st.sampled_from([None, 1, 2, 4]),
    average=st.sampled_from(AVERAGES),
    center=st.booleans(),
    weighting=st.sampled_from(WEIGHTINGS),
    variances=st.sampled_from(["measured", "sent"]),
    weighted=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_any_steps_are_those_of_the_explicit_matrices(
    grouping, d, p, average, center, weighting, variances, weighted, seed
):
    rng = np.random.default_rng(seed)
    if average == "steps" and p == 4:  # two clients of four directions have few in common, or a tie
        grouping, d = [m + 1 for m in grouping], d + 3
    # rows from one on, where the rank of a step is not cut
    least = 6 if average == "steps" else 1
    sizes = [rng.integers(least, 20, m) for m in grouping]
    steps = [[rng.standard_normal((n, d)) + 3 for n in of_step] for of_step in sizes]
    how = {"weighting": weighting, "center": center, "average": average}
    pca = OnlineDistributedPCA(2, projection_dim=p, variances=variances, **how)
    rows = []
    for shards in steps:
        clients, X = np.repeat(np.arange(len(shards)), list(map(len, shards))), flat([shards])
        weight = rng.integers(1, 3, len(X)) if weighted else np.ones(len(X), int)
        pca.partial_fit(X, clients=clients, sample_weight=weight if weighted else None)
        mine = [clients == c for c in range(len(shards))]
        rows.append([np.repeat(X[at], weight[at], axis=0) for at in mine])
    M, X = mean_of(rows, 2, p, **how), flat(rows)
    # ties of a step's cut are steeper than rounding where its gap is small
    assert_averages(pca, M, 2, tol=1e-9 if average == "shards" else 1e-6)
    assert (pca.projection_error_, pca.n_steps_) == (0, len(steps))
    assert pca.clients_ == list(range(max(grouping)))
    Z = X - X.mean(axis=0) * center
    assert_allclose(pca.mean_, X.mean(axis=0) * center, atol=1e-12)
    assert_allclose(pca.subspace_.scatter, np.sum(Z**2), rtol=1e-9, atol=1e-12)
    assert pca.n_samples_ == len(X)
    assert pca.subspace_.centered == center
    if len(steps) == 1:  # the average over clients
        if variances == "measured" and len(X) > 1:
            exist = min(2, int(np.sum(eigenpairs(M)[0] > 1e-9)))
            assert_principal(pca, Z.T @ Z, len(X), exist)
        merge = ProjectionAverage(p, weighting)
        other = FederatedPCA(2, estimator=StreamingPCA(center=center), merge=merge)
        other.fit(X, clients=np.repeat(np.arange(len(rows[0])), list(map(len, rows[0]))))
        assert_leads(other.components_, M, 2, 1e-8)


@pytest.mark.parametrize(("n", "d", "p"), [(40, 120, 6), (25, 260, 2), (100, 260, None)])
def test_steps_about_the_origin_are_algorithm_1(n, d, p):
    steps = random_steps(np.random.default_rng(0), 4, 3, n, d)
    pca = taken(literal(3, projection_dim=p), steps)
    assert_averages(pca, mean_of(steps, 3, p), 3, tol=1e-8)
    assert pca.projection_error_ == 0


@each_average
@pytest.mark.parametrize("d", [15, 400])
def test_neither_units_nor_a_far_mean_of_shards_matter(d, average):
    rng = np.random.default_rng(2)
    steps = [[s.rows for s in alike_shards(rng, [40, 30], d)] for _ in range(3)]
    scaled = [[10.0 ** (3 * t - 3 * i) * X for i, X in enumerate(s)] for t, s in enumerate(steps)]
    far = [[X + 1e8 for X in shards] for shards in steps]
    want, found, far = (
        taken(OnlineDistributedPCA(3, average=average, projection_dim=4), of)
        for of in (steps, scaled, far)
    )
    assert same_subspace(found, want, 1e-8)
    assert_allclose(found.projection_values_, want.projection_values_, atol=1e-9)
    # entries are rounded to 1e8 eps = 2e-8, relative to local gaps of about 0.1
    assert same_subspace(far, want, 1e-5)
    assert_allclose(far.explained_variance_, want.explained_variance_, rtol=1e-5)
    assert_allclose(far.mean_ - 1e8, want.mean_, atol=1e-6)


@pytest.mark.parametrize(("n_clients", "p", "d"), [(1, 3, 300), (2, 5, 8), (1, 8, 8), (2, 8, 300)])
def test_ties_of_the_mean_are_broken_by_variance(d, p, n_clients):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 8)) * 0.5 ** np.arange(8) @ random_basis(rng, 8, d)
    X = np.concatenate([X] * n_clients)
    expected = np.linalg.svd(X - X.mean(axis=0))[2][:2]
    for model in (
        OnlineDistributedPCA(2, projection_dim=p, n_clients=n_clients),
        OnlineDistributedPCA(2, projection_dim=p, n_clients=n_clients, average="steps"),
        FederatedPCA(2, merge=ProjectionAverage(projection_dim=p), n_clients=n_clients),
    ):
        model.fit(X)
        assert sine(model.components_, expected) <= 1e-8
        variances, total = np.var(X @ expected.T, axis=0, ddof=1), X.var(axis=0, ddof=1).sum()
        assert_allclose(model.explained_variance_, variances, rtol=1e-8)
        assert_allclose(model.explained_variance_ratio_, variances / total, rtol=1e-8)


# -------------------------------------------------------------------- many features


@pytest.mark.parametrize(("average", "p", "d"), [("shards", 5, 300), ("steps", None, 260)])
def test_what_is_cut_from_the_mean_keeps_its_bound(average, p, d):
    rng, K = np.random.default_rng(32), 3
    Q, pca, seen = random_basis(rng, K, d), OnlineDistributedPCA(K, projection_dim=p), []
    pca.set_params(average=average)
    for _ in range(6 if average == "shards" else 9):
        seen.append([spiked(rng, 60, Q, [90, 60, 40]) for _ in range(4)])
        taken(pca, seen[-1:])
        assert_averages(pca, mean_of(seen, K, p, center=True, average=average), K)
        assert len(pca.projection_values_) <= 2 * K + 10
    assert 0 < pca.projection_error_ < 0.5 * np.diff(-pca.projection_values_)[K - 1]
    assert_moments(pca, flat(seen))


def test_a_step_of_more_than_1024_directions_keeps_its_bound():
    rng, d, K, p = np.random.default_rng(6), 600, 2, 30
    common, step = random_basis(rng, K, d), []
    for _ in range(36):
        axes = np.concatenate([common, random_basis(rng, p - K, d)])
        step.append(rng.standard_normal((40, p)) * 0.9 ** np.arange(p) @ np.linalg.qr(axes.T)[0].T)
    pca = taken(literal(K, projection_dim=p), [step])
    assert 0 < pca.projection_error_ < 0.2
    assert_averages(pca, mean_of([step], K, p), K)
    by_rows = taken(literal(K, projection_dim=p, weighting="rows"), [step])  # of equal shards
    assert_allclose(by_rows.projection_error_, pca.projection_error_)


def test_the_bound_says_when_a_late_subspace_was_cut_off():
    """K = 1 keeps 12 directions: twelve come twice, then nothing but a new one, which is cut."""
    d = 300
    old, new = np.eye(d)[:12], np.eye(d)[20]
    pca, seen = literal(1), []
    for axis in [*old, *old, *[new] * 6]:
        pca.partial_fit(np.outer([2.0, -2.0, 1.0], axis))
        seen.append(np.outer(axis, axis))
        assert_averages(pca, np.mean(seen, axis=0), 1)
        if len(seen) == 25:  # .5 / 25 of it may be kept at a tie of 1 / 25 with 2 / 25
            assert pca.projection_error_ >= 1 / 25 - 1e-12
    assert pca.projection_values_[0] <= 6 / 30 + 1e-12


@pytest.mark.parametrize(
    ("n", "d", "center"), [(600, 300, False), (2000, 270, True), (600, 1100, True)]
)
def test_local_eigenspaces_of_up_to_1024_rows_or_features_are_exact(n, d, center):
    rng = np.random.default_rng(7)
    X = rng.standard_normal((n, d)) * np.arange(1, d + 1) ** -0.25
    X[:, 1::2] *= n != 2000  # half of it is zero, and sparse
    pca = OnlineDistributedPCA(4, center=center, n_clients=1)
    pca.fit(sp.csr_array(X) if n == 2000 else X)
    Z = X - X.mean(axis=0) * center
    assert sine(pca.components_, eigenpairs(Z.T @ Z)[1][:4]) <= 1e-8


@pytest.mark.parametrize(
    ("average", "variances", "center"), [("steps", "sent", True), ("shards", "measured", False)]
)
def test_wide_sparse_steps_are_never_densified(average, variances, center):
    rng = np.random.default_rng(8)
    n, d, m = 1500, 50_000, 3
    words = np.sort(rng.choice(d, 60, replace=False))
    dense = [rng.poisson(0.5, (n, 60)) * 0.85 ** np.arange(60) for _ in range(2)]
    steps = []
    for X in dense:
        row, column = np.nonzero(X)
        steps.append(sp.csr_array((X[row, column], (row, words[column])), shape=(n, d)))
    pca = OnlineDistributedPCA(3, average=average, center=center, variances=variances, n_clients=m)
    assert peak_bytes(lambda: pca.fit(steps)) < 8 * n * d / 8
    M = mean_of([np.split(X, m) for X in dense], 3, center=center, average=average)
    assert sine(pca.components_[:, words], eigenpairs(M)[1][:3]) <= 1e-8
    X = np.concatenate(dense)
    assert_allclose(pca.subspace_.scatter, np.sum((X - X.mean(axis=0) * center) ** 2), rtol=1e-9)
    assert_allclose(pca.mean_[words], X.mean(axis=0) * center, atol=1e-12)


# -------------------------------------------------------------------- variances


@each_average
@pytest.mark.parametrize(("d", "center"), [(20, True), (20, False), (260, True)])
def test_variances_that_were_sent_are_bounds_on_those_of_the_rows(d, center, average):
    rng, p = np.random.default_rng(11), 4
    steps = [[X + rng.standard_normal(d) for X in Y] for Y in random_steps(rng, 6, 3, 30, d)]
    how = {"projection_dim": p, "average": average, "center": center, "variances": "sent"}
    sent, X = taken(OnlineDistributedPCA(3, **how), steps), flat(steps)
    Z = X - X.mean(axis=0) * center
    true, ours = np.sum((Z @ sent.components_.T) ** 2, axis=0), sent.singular_values_**2
    assert np.all(ours <= true * (1 + 1e-9))
    # A shard's scatter along any direction is at most that of what it sent and its next value.
    parts = (Y - Y.mean(axis=0) * center for shards in steps for Y in shards)
    unsent = sum(np.linalg.svd(Y)[1][p] ** 2 for Y in parts)
    if d <= 256:  # nothing was cut from the merged summaries
        assert np.all(ours >= true - unsent * (1 + 1e-9))
    assert_allclose(sent.explained_variance_ratio_ * np.sum(Z**2), ours, rtol=1e-9)
    rest = (np.sum(Z**2) - ours.sum()) / (len(X) - 1) / (d - 3)
    assert_allclose(sent.noise_variance_, rest, rtol=1e-9)


# -------------------------------------------------------------------- few rows


def test_short_steps_make_fewer_shards_and_are_learnt_from():
    axes, pca = random_basis(np.random.default_rng(42), 2, 6), OnlineDistributedPCA(2, n_clients=5)
    for step in np.random.default_rng(0).standard_normal((19, 3, 2)):
        assert pca.partial_fit(step @ axes).clients_ == [0]
    assert sine(pca.components_, axes) <= 1e-12
    assert pca.partial_fit(np.eye(8, 6)).clients_ == [0, 1]


@pytest.mark.parametrize("d", [4, 400])
def test_a_row_has_a_direction_about_the_origin_alone(d):
    row, V = np.arange(d)[None] / 1.0, np.arange(d) / np.linalg.norm(np.arange(d))
    pca = OnlineDistributedPCA(1, center=False).fit(row)
    assert_allclose(pca.components_, V[None], atol=1e-12)
    pca = OnlineDistributedPCA(2).fit(row)
    assert_array_equal(pca.explained_variance_, [0.0])
    assert_allclose(pca.mean_, row[0])
    assert (pca.n_steps_, len(pca.projection_values_)) == (1, 0)
    sent = OnlineDistributedPCA(2, average="steps", variances="sent")
    for model in (pca, sent):
        model.partial_fit(np.eye(d)[:3], clients=range(3))  # of means alone nothing is known
        assert_array_equal(model.explained_variance_, 0)
    assert_allclose(sent.subspace_.scatter, 2, rtol=1e-12)


# -------------------------------------------------------------------- streams, and what is sent


X20 = np.random.default_rng(49).standard_normal((20, 4))
HOLE = np.where(np.arange(20)[:, None] == 19, np.nan, X20)
BAD_STREAMS = [
    (lambda: [X20, X20], {"clients": np.ones(20, int)}, "clients cannot be given when X is an it"),
    (lambda: iter([X20]), {"sample_weight": np.ones(20)}, "sample_weight cannot be given when X"),
    (lambda: iter([]), {}, "without time steps"),
    (lambda: (step for step in []), {}, "without time steps"),
    (lambda: iter([X20, HOLE, X20]), {}, "Client 1.*NaN"),
    (lambda: iter([X20, X20[:, :3]]), {}, "features"),
    (lambda: iter([X20, X20[:0]]), {}, "0 sample"),
]


@pytest.mark.parametrize(("stream", "more", "words"), BAD_STREAMS)
def test_a_bad_stream_undoes_all_its_steps(stream, more, words):
    new = OnlineDistributedPCA(2, n_clients=2)
    for pca, method in product((new, clone(new).fit(X20)), ("fit", "partial_fit")):
        before, names = joblib.hash(vars(pca)), list(vars(pca))
        with pytest.raises(ValueError, match=words):
            getattr(pca, method)(stream(), **more)
        assert (joblib.hash(vars(pca)), list(vars(pca))) == (before, names)


def test_a_stream_is_a_step_for_each_matrix():
    rng = np.random.default_rng(47)
    steps = [rng.standard_normal((n, 8)) for n in (30, 20, 41)]
    by_hand = OnlineDistributedPCA(2, n_clients=3)
    for step in steps:
        by_hand.partial_fit(step)
    for kind in (tuple, iter, lambda steps: map(sp.csr_array, steps)):
        streamed = OnlineDistributedPCA(2, n_clients=3).fit(kind(steps))
        for name in ("components_", "singular_values_", "mean_", "projection_values_"):
            assert_allclose(getattr(streamed, name), getattr(by_hand, name), atol=1e-12)
        assert streamed.n_steps_ == by_hand.n_steps_ == 3
        # partial_fit goes on, fit starts afresh
        assert streamed.partial_fit(kind(steps[:2])).n_steps_ == 5
        assert streamed.fit(kind(steps[:2])).n_steps_ == 2
        assert streamed.communication_.rounds == 4


@pytest.mark.parametrize(("n", "d", "K", "p"), [(60, 400, 3, 5), (9, 400, 3, None), (30, 40, 2, 4)])
def test_a_step_takes_two_rounds(n, d, K, p):
    rng = np.random.default_rng(52)
    pca, m, k = OnlineDistributedPCA(K, projection_dim=p, n_clients=4), 4, p or K
    for step in range(1, 4):
        log = pca.partial_fit(rng.standard_normal((n * m, d))).communication_
        assert log.rounds == 2 * step
        up, down = log.table[-2:]
        assert (up["messages_up"], up["floats_up"]) == (m, m * floats_of(k, d))
        assert up["messages_down"] == up["floats_down"] == 0
        kept = min(step * m * k, 2 * K + 10 if d > 256 else d)
        assert len(pca.projection_values_) == kept
        assert (down["messages_down"], down["floats_down"]) == (m, m * kept * d)
        assert down["bytes_down"] == 8 * m * kept * d
        # what the variances need: a triangle of at most kept rows
        assert (down["messages_up"], down["floats_up"]) == (m, m * min(n, kept) * kept)
    assert log.floats_pooled == 3 * n * m * d


def test_scatter_of_columns_is_known_where_rounding_adds_to_all_directions():
    """In 20 of 50 draws the sum of squares along all directions was above that of the rows."""
    for X in np.random.default_rng(0).standard_normal((20, 300, 3)):
        pca = FederatedPCA(3, merge=ProjectionAverage()).fit(X, clients=np.arange(300) % 3)
        assert_allclose(pca.subspace_.column_scatter, 300 * X.var(axis=0), rtol=1e-12)
