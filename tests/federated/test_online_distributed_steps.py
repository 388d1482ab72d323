"""ODPCA to the letter: averages of the projections of steps, about the origin, one message each.

The oracle is Algorithm 1 of Tarzanagh et al. with d x d matrices, written from its listing.
"""

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
from helpers import assert_same_summary, leading, peak_bytes, random_basis, sine
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from projection_helpers import (
    assert_orthonormal,
    each_weighting,
    eigenpairs,
    examples,
    same_subspace,
)
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from fedpca_sklearn import FederatedPCA, OnlineDistributedPCA, ProjectionAverage, StreamingPCA

# -------------------------------------------------------------------- oracle


def top(S, k):
    """The k leading eigenvectors of a symmetric matrix, as rows."""
    return eigenpairs(S)[1][:k]


def second_moments(X, center=False):
    X = X - X.mean(axis=0) if center else X
    return X.T @ X / len(X)


def mean_projection(spaces, weights=None):
    return np.average([V.T @ V for V in spaces], axis=0, weights=weights)


def mean_of_steps(steps, K, p=None, weighting="equal", center=False):
    """Sigma tilde of T; K + Z = p directions of a node, of which a step keeps K."""
    projections, weights = [], []
    for shards in steps:
        rows = [len(X) for X in shards]
        local = [top(second_moments(X, center), p or K) for X in shards]
        projections.append(top(mean_projection(local, rows if weighting == "rows" else None), K))
        weights.append(sum(rows) if weighting == "rows" else 1)
    return mean_projection(projections, weights)


def algorithm_1(steps, K, **options):
    return top(mean_of_steps(steps, K, **options), K)


def random_steps(rng, T, m, n, d, decay=0.9):
    """Normal shards in steps, with variances that fall and a common basis."""
    Q = random_basis(rng, d, d)
    scale = np.maximum(decay ** np.arange(d), 0.05)
    return [[(rng.standard_normal((n, d)) * scale) @ Q for _ in range(m)] for _ in range(T)]


def taken(pca, steps):
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


each_source = pytest.mark.parametrize("variances", ["measured", "sent"])


# -------------------------------------------------------------------- Algorithm 1


@each_source
@pytest.mark.parametrize(("n", "d"), [(8, 20), (90, 20), (40, 120), (25, 260), (100, 260)])
@pytest.mark.parametrize("p", [None, 6, 2])
def test_steps_about_the_origin_are_algorithm_1(n, d, p, variances):
    for seed in range(3 if d <= 20 else 1):
        steps = random_steps(np.random.default_rng(seed), 5, 4, n, d)
        pca = taken(literal(3, projection_dim=p, variances=variances), steps)
        M = mean_of_steps(steps, 3, p)
        assert sine(pca.components_, top(M, 3)) <= 1e-8
        assert_orthonormal(pca.components_)
        kept = pca.projection_values_
        assert_allclose(kept, eigenpairs(M)[0][: len(kept)], atol=1e-9)
        assert pca.projection_error_ == 0
        assert pca.n_steps_ == 5


@examples
@given(
    grouping=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    d=st.integers(4, 24),
    p=st.sampled_from([None, 2, 4]),
    center=st.booleans(),
    weighting=st.sampled_from(["equal", "rows"]),
    seed=st.integers(0, 2**20),
)
def test_any_steps_are_those_of_the_explicit_matrices(grouping, d, p, center, weighting, seed):
    rng = np.random.default_rng(seed)
    if p == 4:  # a single client that sends more than is kept has a tie, tested below
        grouping = [m + 1 for m in grouping]
    steps = [[rng.standard_normal((rng.integers(6, 20), d)) for _ in range(m)] for m in grouping]
    options = {"weighting": weighting, "center": center}
    pca = taken(literal(2, projection_dim=p, **options), steps)
    M = mean_of_steps(steps, 2, p, **options)
    values = eigenpairs(M)[0]
    kept = pca.projection_values_
    assert_allclose(kept, values[: len(kept)], atol=1e-7)
    gap = values[1] - values[2]
    if gap > 1e-3:
        assert sine(pca.components_, top(M, 2)) <= 1e-8 / gap


def test_regrouping_changes_steps_as_it_changes_the_explicit_matrices():
    for seed in range(2):
        rng = np.random.default_rng(seed)
        shards = [rng.standard_normal((12, 40)) for _ in range(24)]
        groupings = [[shards[i : i + m] for i in range(0, 24, m)] for m in (4, 12, 1, 24)]
        ours = [taken(literal(3), steps).components_ for steps in groupings]
        theirs = [algorithm_1(steps, 3) for steps in groupings]
        for V, W in zip(ours, theirs, strict=True):
            assert sine(V, W) <= 1e-8
        assert_allclose(sine(ours[0], ours[1]), sine(theirs[0], theirs[1]), atol=1e-8)
        assert sine(ours[0], ours[1]) > 0.1
        # Lemma 1's mean does not depend on the grouping
        means = [taken(literal(3, average="shards"), steps).components_ for steps in groupings]
        for V in means[1:]:
            assert sine(V, means[0]) <= 1e-8
        assert sine(ours[0], means[0]) > 0.1
        # one shard a step, or one step: no second mean, so both averages are the same
        assert sine(ours[2], means[0]) <= 1e-8
        assert sine(ours[3], means[0]) <= 1e-8


def test_one_step_is_dpca_and_one_shard_is_pca():
    rng = np.random.default_rng(0)
    (shards,) = random_steps(rng, 1, 5, 40, 30)
    X, clients = np.concatenate(shards), np.repeat(np.arange(5), 40)
    dpca = FederatedPCA(3, estimator=StreamingPCA(center=False), merge=ProjectionAverage())
    assert same_subspace(literal(3).fit(X, clients=clients), dpca.fit(X, clients=clients), 1e-8)
    alone = literal(3, n_clients=1).fit(X)
    assert sine(alone.components_, top(second_moments(X), 3)) <= 1e-8
    assert_allclose(alone.singular_values_, np.linalg.svd(X)[1][:3], rtol=1e-9)
    assert_array_equal(alone.mean_, 0)


def test_shards_minimise_the_mean_squared_distance_of_lemma_1():
    rng = np.random.default_rng(19)
    steps = random_steps(rng, 4, 3, 15, 12)
    local = [top(second_moments(X), 3) for shards in steps for X in shards]

    def H(U):
        return np.mean([np.sum((U.T @ U - V.T @ V) ** 2) for V in local])

    pca = taken(literal(3, average="shards"), steps)
    least = H(pca.components_)
    for _ in range(200):
        near = pca.components_ + rng.uniform(0, 0.3) * rng.standard_normal((3, 12))
        assert H(np.linalg.qr(near.T)[0].T) >= least
    assert H(taken(literal(3), steps).components_) > least
    assert_allclose(least, 2 * 3 - 2 * pca.projection_values_[:3].sum(), rtol=1e-9)


@each_weighting
def test_order_of_steps_and_of_clients_does_not_matter(weighting):
    rng = np.random.default_rng(1)
    steps = [[rng.standard_normal((n, 9)) for n in (12, 20, 15)] for _ in range(4)]
    want = taken(literal(2, weighting=weighting), steps)
    mixed = [[steps[i][j] for j in rng.permutation(3)] for i in rng.permutation(4)]
    assert_same_summary(taken(literal(2, weighting=weighting), mixed), want, 1e-8)


@pytest.mark.parametrize("d", [15, 400])
def test_the_scale_of_a_step_does_not_matter(d):
    steps = random_steps(np.random.default_rng(2), 4, 3, 20, d)
    scaled = [[10.0 ** (3 * t) * X for X in shards] for t, shards in enumerate(steps)]
    assert same_subspace(taken(literal(3), scaled), taken(literal(3), steps), 1e-8)


@pytest.mark.parametrize("d", [8, 300])
def test_ties_within_a_step_are_broken_by_variance(d):
    rng = np.random.default_rng(3)
    axes = random_basis(rng, 8, d)
    steps = [rng.standard_normal((200, 8)) * 0.5 ** np.arange(8) @ axes for _ in range(3)]
    pca = literal(2, projection_dim=5, n_clients=1).fit(steps)
    assert sine(pca.components_, mean_of_best(steps)) <= 1e-8


def mean_of_best(steps):
    return top(mean_projection([top(second_moments(X), 2) for X in steps]), 2)


def test_steps_of_all_directions_are_plain_pca():
    rng = np.random.default_rng(4)
    X = rng.standard_normal((120, 6)) * 0.7 ** np.arange(6)
    pca = OnlineDistributedPCA(average="steps", n_clients=4).fit([X[:60], X[60:]])
    assert pca.components_.shape == (6, 6)
    assert_allclose(pca.projection_values_, 1, rtol=1e-12)
    s = np.linalg.svd(X - X.mean(axis=0))[1]
    assert_allclose(pca.singular_values_, s, rtol=1e-9)


def test_the_shares_of_a_step_are_forgotten():
    """Two of three clients have e_1, then one of three: a step each, or two of six and four."""
    e = np.eye(4)
    rows = {i: np.outer([1.0, -1.0, 2.0], e[i]) for i in range(3)}
    steps = [[rows[0], rows[0], rows[1]], [rows[1], rows[1], rows[2]], [rows[2]]]
    pca = taken(literal(1), steps)
    assert_allclose(pca.projection_values_, 1 / 3, rtol=1e-12)
    shards = taken(literal(1, average="shards"), steps)
    assert_allclose(shards.projection_values_, [3 / 7, 2 / 7, 2 / 7], rtol=1e-12)
    by_rows = taken(literal(1, weighting="rows"), steps)
    assert_allclose(by_rows.projection_values_, [3 / 7, 3 / 7, 1 / 7], rtol=1e-12)


# -------------------------------------------------------------------- many features


def kept_matrix(pca):
    mean = pca._state.mean
    return (mean.vectors.T * mean.values) @ mean.vectors


def test_what_is_cut_from_the_mean_of_steps_keeps_its_bound():
    rng = np.random.default_rng(5)
    d, K = 260, 3
    steps = random_steps(rng, 14, 3, 30, d)
    pca = literal(K)
    for t in (1, 5, 6, 10, 14):
        taken(pca, steps[pca.n_steps_ if t > 1 else 0 : t])
        M = mean_of_steps(steps[:t], K)
        assert len(pca.projection_values_) <= 2 * K + 10
        cut = np.linalg.eigvalsh(M - kept_matrix(pca))
        assert cut[0] >= -1e-10
        assert cut[-1] <= pca.projection_error_ + 1e-10
        values = pca.projection_values_
        gap = values[K - 1] - (values[K] if len(values) > K else 0)
        assert sine(pca.components_, top(M, K)) <= pca.projection_error_ / gap + 1e-8
    assert pca.projection_error_ > 0


def test_the_bound_says_when_a_late_subspace_was_cut_off():
    """K = 1 keeps 12 directions: twelve come twice, then nothing but a new one, which is cut."""
    d = 300
    old, new = np.eye(d)[:12], np.eye(d)[20]
    pca, seen = literal(1), []
    for axis in [*old, *old, *[new] * 6]:
        step = np.outer([2.0, -2.0, 1.0], axis)
        pca.partial_fit(step)
        seen.append(np.outer(axis, axis))
        cut = np.linalg.eigvalsh(np.mean(seen, axis=0) - kept_matrix(pca))
        assert cut[0] >= -1e-12
        assert cut[-1] <= pca.projection_error_ + 1e-12
        if len(seen) == 25:  # .5 / 25 of it may be kept at a tie of 1 / 25 with 2 / 25
            assert pca.projection_error_ >= 1 / 25 - 1e-12
    assert pca.projection_values_[0] <= 6 / 30 + 1e-12


def test_a_step_of_more_than_1024_directions_keeps_its_bound():
    rng = np.random.default_rng(6)
    d, K, p, m = 600, 2, 30, 36
    common = random_basis(rng, K, d)
    step = []
    for _ in range(m):
        axes = np.concatenate([common, random_basis(rng, p - K, d)])
        step.append(rng.standard_normal((40, p)) * 0.9 ** np.arange(p) @ np.linalg.qr(axes.T)[0].T)
    pca = taken(literal(K, projection_dim=p), [step])
    M = mean_projection([leading(mean_of_shards(step, p), K)])
    e = pca.projection_error_
    assert 0 < e < 0.2
    assert np.linalg.norm(M - kept_matrix(pca), 2) <= e
    assert sine(pca.components_, top(M, K)) <= e / (pca.projection_values_[K - 1] - e)


def mean_of_shards(shards, p):
    return mean_projection([leading(X, p) for X in shards])


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize(("n", "d"), [(500, 300), (600, 300), (2000, 270), (600, 1100)])
def test_local_eigenspaces_of_up_to_1024_rows_or_features_are_exact(n, d, center):
    rng = np.random.default_rng(7)
    X = rng.standard_normal((n, d)) * np.arange(1, d + 1) ** -0.25
    pca = OnlineDistributedPCA(4, center=center, n_clients=1).fit(X)
    Z = X - X.mean(axis=0) if center else X
    assert sine(pca.components_, np.linalg.svd(Z, full_matrices=False)[2][:4]) <= 1e-8


def test_local_eigenspaces_of_many_sparse_rows_are_exact():
    X = sp.random(2000, 270, 0.05, "csr", random_state=7)
    pca = OnlineDistributedPCA(4, center=False, n_clients=1).fit(sp.csr_array(X))
    assert sine(pca.components_, np.linalg.svd(X.toarray(), full_matrices=False)[2][:4]) <= 1e-8


@each_source
@pytest.mark.parametrize("average", ["steps", "shards"])
def test_wide_sparse_steps_are_never_densified(average, variances):
    rng = np.random.default_rng(8)
    n, d, m = 1500, 50_000, 3
    words = np.sort(rng.choice(d, 60, replace=False))
    dense = [rng.poisson(0.5, (n, 60)) * 0.85 ** np.arange(60) for _ in range(2)]
    steps = []
    for X in dense:
        row, column = np.nonzero(X)
        steps.append(sp.csr_array((X[row, column], (row, words[column])), shape=(n, d)))
    pca = OnlineDistributedPCA(3, average=average, center=False, variances=variances, n_clients=m)
    assert peak_bytes(lambda: pca.fit(steps)) < 8 * n * d / 8
    pieces = [np.split(X, m) for X in dense]
    if average == "shards":
        pieces = [[X] for shards in pieces for X in shards]
    assert sine(pca.components_[:, words], algorithm_1(pieces, 3)) <= 1e-8
    assert_allclose(pca.subspace_.scatter, sum(np.sum(X**2) for X in dense), rtol=1e-9)


# -------------------------------------------------------------------- about the origin


@pytest.mark.parametrize("average", ["steps", "shards"])
@each_source
def test_moments_about_the_origin(average, variances):
    rng = np.random.default_rng(9)
    steps = [[rng.standard_normal((20, 7)) + 3 for _ in range(3)] for _ in range(4)]
    pca = OnlineDistributedPCA(2, average=average, center=False, variances=variances)
    taken(pca, steps)
    X = flat(steps)
    assert_array_equal(pca.mean_, 0)
    assert not pca.subspace_.centered
    assert_allclose(pca.subspace_.scatter, np.sum(X**2), rtol=1e-12)
    assert_allclose(pca.transform(X), X @ pca.components_.T, atol=1e-12)
    if variances == "measured":  # eight features: the basis spans all that was sent
        G = pca.components_ @ X.T
        assert_allclose(pca.singular_values_, np.linalg.norm(G, axis=1), rtol=0.05)


def test_a_single_row_has_a_direction_about_the_origin():
    row = np.array([[3.0, 4.0, 0.0]])
    pca = OnlineDistributedPCA(1, center=False).fit(row)
    assert_allclose(pca.components_, [[0.6, 0.8, 0]], atol=1e-12)
    assert_allclose(pca.singular_values_, 5, rtol=1e-12)
    assert OnlineDistributedPCA(2, center=False).fit(np.eye(6)[:5]).clients_ == [0, 1]
    assert OnlineDistributedPCA(2, center=True).fit(np.eye(6)[:5]).clients_ == [0]


# -------------------------------------------------------------------- one message


@pytest.mark.parametrize("average", ["steps", "shards"])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize(("n", "d", "K", "p"), [(60, 400, 3, 5), (30, 40, 2, None)])
def test_one_message_a_shard_and_step_and_nothing_down(n, d, K, p, center, average):
    rng = np.random.default_rng(10)
    m, k = 4, p or K
    pca = OnlineDistributedPCA(
        K, projection_dim=p, average=average, center=center, variances="sent", n_clients=m
    )
    floats = k * d + k + 2 + (d if center else 0)
    for step in range(1, 4):
        pca.partial_fit(rng.standard_normal((n * m, d)))
        log = pca.communication_
        assert log.rounds == step
        (row,) = log.table[-1:]
        assert (row["messages_up"], row["floats_up"]) == (m, m * floats)
        assert row["messages_down"] == row["floats_down"] == row["bytes_down"] == 0
        # each number in eight bytes, count and scatter among the 52 of the frame
        assert row["bytes_up"] == m * (8 * (floats - 2) + 52)


@pytest.mark.parametrize("average", ["steps", "shards"])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("d", [20, 260])
def test_variances_that_were_sent_are_bounds_on_those_of_the_rows(d, center, average):
    rng = np.random.default_rng(11)
    steps = [
        [X + rng.standard_normal(d) for X in shards] for shards in random_steps(rng, 6, 3, 30, d)
    ]
    K, p = 3, 4
    sent = OnlineDistributedPCA(
        K, projection_dim=p, average=average, center=center, variances="sent"
    )
    taken(sent, steps)
    measured = taken(clone(sent).set_params(variances="measured"), steps)
    assert same_subspace(sent, measured, 1e-8)
    assert_allclose(sent.mean_, measured.mean_, atol=1e-12)
    assert_allclose(sent.subspace_.scatter, measured.subspace_.scatter, rtol=1e-12)
    X = flat(steps)
    Z = X - X.mean(axis=0) if center else X
    V = sent.components_
    true = np.sum((Z @ V.T) ** 2, axis=0)
    ours = sent.singular_values_**2
    assert np.all(ours <= true * (1 + 1e-9))
    # A shard's scatter along any direction is at most that of what it sent and its next value.
    unsent = sum(
        np.linalg.svd(Y - Y.mean(axis=0) if center else Y)[1][p] ** 2
        for shards in steps
        for Y in shards
    )
    if d <= 256:  # nothing was cut from the merged summaries
        assert np.all(ours >= true - unsent * (1 + 1e-9))
    assert_allclose(sent.explained_variance_ratio_ * np.sum(Z**2), ours, rtol=1e-9)
    rest = (np.sum(Z**2) - ours.sum()) / (len(X) - 1) / (d - K)
    assert_allclose(sent.noise_variance_, rest, rtol=1e-9)


def test_variances_that_were_sent_are_exact_where_shards_send_all():
    rng = np.random.default_rng(12)
    axes = random_basis(rng, 3, 30)
    steps = [[rng.standard_normal((20, 3)) @ axes + 2 for _ in range(3)] for _ in range(4)]
    pca = taken(OnlineDistributedPCA(3, average="steps", variances="sent", projection_dim=4), steps)
    X = flat(steps)
    s = np.linalg.svd(X - X.mean(axis=0))[1][:3]
    assert_allclose(pca.singular_values_, s, rtol=1e-9)


def test_rows_between_whose_means_alone_are_known_have_no_direction():
    X = np.random.default_rng(13).standard_normal((6, 5))
    pca = OnlineDistributedPCA(2, average="steps", variances="sent").fit(X, clients=range(6))
    assert_array_equal(pca.explained_variance_, 0)
    assert_allclose(pca.subspace_.scatter, np.sum((X - X.mean(axis=0)) ** 2), rtol=1e-12)


def test_the_state_of_one_message_does_not_grow_with_the_steps():
    rng = np.random.default_rng(14)
    d, K = 400, 3
    pca = literal(K, n_clients=3)
    for _ in range(40):
        pca.partial_fit(rng.standard_normal((15, d)))
    assert len(pca._state.mean.vectors) == 2 * K + 10
    assert pca._state.total.n_components <= K + 10
    assert pca.n_steps_ == 40


@pytest.mark.parametrize("variances", ["measured", "sent"])
def test_weighted_rows_equal_repeated_ones_in_steps(variances):
    rng = np.random.default_rng(15)
    model = literal(2, variances=variances, n_clients=3)
    weighted, repeated = clone(model), clone(model)
    for _ in range(3):
        X, clients = rng.standard_normal((45, 8)), np.repeat(np.arange(3), 15)
        weight = rng.integers(0, 3, 45)
        weighted.partial_fit(X, clients=clients, sample_weight=weight)
        repeated.partial_fit(np.repeat(X, weight, axis=0), clients=np.repeat(clients, weight))
    assert_same_summary(weighted, repeated, 1e-8)


def test_single_precision_steps_of_one_message():
    steps = random_steps(np.random.default_rng(16), 4, 3, 30, 40)
    single = [[X.astype(np.float32) for X in shards] for shards in steps]
    pca = taken(literal(3), single)
    assert pca.components_.dtype == np.float32
    assert sine(pca.components_, algorithm_1(steps, 3)) <= 1e-4


# -------------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("average", "steps"),
        ("center", False),
        ("variances", "sent"),
        ("weighting", "rows"),
    ],
)
def test_what_holds_for_all_steps_cannot_change_between_them(name, value):
    X = np.random.default_rng(17).standard_normal((30, 5))
    pca = OnlineDistributedPCA(2).fit(X)
    old = getattr(pca, name)
    pca.set_params(**{name: value})
    before = joblib.hash(vars(pca))
    with pytest.raises(ValueError, match=f"{name}={value!r} differs from {old!r}.*call fit"):
        pca.partial_fit(X)
    assert joblib.hash(vars(pca)) == before
    assert pca.fit(X).partial_fit(X).n_steps_ == 2


def test_a_search_over_the_averages():
    rng = np.random.default_rng(18)
    X = rng.standard_normal((300, 3)) * [5, 4, 3] @ random_basis(rng, 3, 10)
    X += 0.3 * rng.standard_normal(X.shape)
    grid = {
        "n_components": [1, 3],
        "average": ["steps", "shards"],
        "center": [True, False],
        "variances": ["measured", "sent"],
        "weighting": ["equal", "rows"],
    }
    search = GridSearchCV(OnlineDistributedPCA(n_clients=4), grid, cv=3, error_score="raise")
    search.fit(X)
    assert search.best_params_["n_components"] == 3
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
