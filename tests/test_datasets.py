"""Synthetic rows and streams against their stated law, partitions against their stated shape.

Margins of counts and means are five standard deviations: 6e-7 of all seeds are out.
"""

import pickle
from itertools import pairwise
from math import inf, nan

import numpy as np
import pytest
import scipy.linalg
from helpers import leading
from numpy.testing import assert_allclose, assert_array_equal

from fedpca_sklearn import make_power_law, make_spiked, make_subspace_stream, partition_clients

METHODS = ["iid", "label", "dirichlet"]
MODELS = ["walk", "rotation", "piecewise"]
LABELS = np.repeat(np.arange(5), 20)


def small(n_samples=200, n_features=60, n_components=3, random_state=0, **options):
    return make_subspace_stream(
        n_samples, n_features, n_components, random_state=random_state, **options
    )


def in_binomial_margin(count, n, p):
    return np.all(np.abs(count - n * p) <= 5 * np.sqrt(n * p * (1 - p)))


SEEDED = """
make_power_law(20, 6, random_state=seed)
make_spiked(20, 6, random_state=seed)[0]
small(model="walk", random_state=seed).low_rank
small(model="rotation", random_state=seed).low_rank
small(model="piecewise", random_state=seed).low_rank
np.nan_to_num(small(outliers=0.1, noise_std=0.1, random_state=seed).X)
partition_clients(LABELS, 4, random_state=seed)
partition_clients(LABELS, 4, method="label", random_state=seed)
partition_clients(LABELS, 4, method="dirichlet", random_state=seed)
""".strip().splitlines()


@pytest.mark.parametrize("call", SEEDED)
def test_a_seed_decides_and_no_other_is_touched(call):
    def made(seed):
        return eval(call, {**globals(), "seed": seed})

    before = np.random.get_state()[1].copy()  # noqa: NPY002
    X = made(4)
    assert_array_equal(made(4), X)
    assert_array_equal(made(np.random.RandomState(4)), X)
    assert any(np.any(made(seed) != X) for seed in range(3))
    assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


# -------------------------------------------------------------------- power law and spikes


@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("d", [1, 2, 30])
def test_rows_of_a_power_law_are_independent_with_the_stated_covariance(alpha, d):
    n = 20_000
    X, S = make_power_law(n, d, alpha=alpha, random_state=0, return_components=d)
    assert X.shape == (n, d)
    assert_allclose(S @ S.T, np.eye(d), atol=1e-13)
    # Whitened by the stated law, rows are standard normal: all singular values lie within
    # sqrt(n) +- (sqrt(d) + t) but with probability 2 exp(-t^2 / 2), here 1e-4
    # (Davidson and Szarek 2001, theorem 2.13).
    Z = (X @ S.T) * np.arange(1, d + 1) ** (alpha / 2)
    s, t = np.linalg.svd(Z, compute_uv=False), np.sqrt(2 * np.log(2e4))
    assert np.sqrt(n) - np.sqrt(d) - t <= s[-1]
    assert s[0] <= np.sqrt(n) + np.sqrt(d) + t
    # n |mean|^2 is chi-squared with d degrees: Laurent and Massart (2000), probability 1e-4
    x = np.log(1e4)
    assert n * np.sum(Z.mean(axis=0) ** 2) <= d + 2 * np.sqrt(d * x) + 2 * x
    # each of d lagged correlations is within t / sqrt(n), union bound as above
    lagged = np.mean(Z[1:] * Z[:-1], axis=0)
    assert np.abs(lagged).max() <= 1.1 * np.sqrt(2 * np.log(2 * d * 1e4) / n)
    # other numbers of components, of the same rows
    assert_array_equal(make_power_law(n, d, alpha=alpha, random_state=0), X)
    first = make_power_law(n, d, alpha=alpha, random_state=0, return_components=d // 2)[1]
    assert_allclose(first, S[: d // 2], atol=1e-14)


@pytest.mark.parametrize("noise", [1.0, 4.0])
def test_spikes_are_found_as_random_matrix_theory_says(noise):
    """Paul 2007, Theorems 1 and 4: eigenvalues and angles of sample covariances, d / n = .1."""
    n, d, spikes = 4000, 400, np.array([20.0, 5.0, 1.0])
    X, V = make_spiked(n, d, spikes=noise * spikes, noise_variance=noise, random_state=0)
    assert_allclose(V @ V.T, np.eye(3), atol=1e-12)
    eigenvalues, W = scipy.linalg.eigh(X.T @ X / n, subset_by_index=[d - 4, d - 1])
    eigenvalues, W = eigenvalues[::-1], W.T[::-1]
    g = d / n
    # a sample variance is off by sqrt(2 / n) of itself: five times that
    values = noise * (1 + spikes) * (1 + g / spikes)
    assert_allclose(eigenvalues[:3], values, rtol=5 * np.sqrt(2 / n))
    cosines = (1 - g / spikes**2) / (1 + g / spikes)
    assert_allclose(np.sum(W[:3] * V, axis=1) ** 2, cosines, atol=5 / np.sqrt(n))
    assert eigenvalues[3] < 1.03 * noise * (1 + np.sqrt(g)) ** 2  # edge of the noise alone
    X, V = make_spiked(50, 8, spikes=[3.0], noise_variance=0.0, random_state=1)
    assert_allclose(X - X @ V.T @ V, 0, atol=1e-12)
    X, V = make_spiked(50, 8, spikes=[], random_state=1)
    assert (X.shape, V.shape) == ((50, 8), (0, 8))


# -------------------------------------------------------------------- partitions


def table_of(y, clients):
    """Rows of each client with each label."""
    return np.array([[np.sum((clients == c) & (y == v)) for v in set(y)] for c in set(clients)])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("n", "n_clients"), [(1, 1), (7, 7), (50, 1), (50, 49), (1000, 13)])
@pytest.mark.parametrize("concentration", [0.01, 0.5, 100.0])
def test_every_row_has_a_client_and_every_client_a_row(method, n, n_clients, concentration):
    y = np.random.default_rng(0).integers(0, 5, n)
    options = {"method": method, "concentration": concentration}
    for seed in range(5):
        clients = partition_clients(y, n_clients, **options, random_state=seed)
        counts = np.bincount(clients, minlength=n_clients)
        assert (clients.shape, clients.dtype.kind, len(counts)) == ((n,), "i", n_clients)
        assert counts.min() >= 1
        assert method == "dirichlet" or np.ptp(counts) <= 1


@pytest.mark.parametrize("labels", [np.arange(10), np.array(list("abcdefghij"))])
def test_clients_have_the_labels_of_all_or_one_or_two(labels):
    y = np.random.default_rng(1).permutation(np.repeat(labels, 60))
    for n_clients, most in ((10, 1), (13, 2)):
        table = table_of(y, partition_clients(y, n_clients, method="label", random_state=0))
        assert np.sum(table > 0, axis=1).max() == most
    clients = partition_clients(np.sort(y), 5, random_state=0)
    # hypergeometric: 120 of 600 rows, 12 expected per label, variance below 9
    assert np.abs(table_of(np.sort(y), clients) - 12).max() <= 5 * np.sqrt(9)
    assert np.any(np.diff(clients) < 0)  # shuffled, not contiguous


def test_dirichlet_clients_are_alike_or_unlike_by_concentration():
    y = np.repeat(np.arange(10), 200)
    skews, tables = [], {}
    for a in (0.05, 0.5, 5.0, 1e6):
        options = {"method": "dirichlet", "concentration": a}
        tables[a] = [
            table_of(y, partition_clients(y, 8, **options, random_state=s)) for s in range(5)
        ]
        skews.append(np.mean([(t.max(axis=1) / t.sum(axis=1)).mean() for t in tables[a]]))
    assert skews == sorted(skews, reverse=True)
    # At 1e6 a share is 1/8 with a standard deviation of 1/3000: 25 rows of each label, to rounding
    assert np.abs(np.subtract(tables[1e6], 25)).max() <= 2
    # At 0.05 the largest of 8 shares of a label has a mean above 0.8 (E sum p^2 = 1.05 / 1.4)
    assert np.mean(tables[0.05][0].max(axis=0) / 200) > 0.7


# -------------------------------------------------------------------- streams: entries


@pytest.mark.parametrize("missing", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("outliers", [0.0, 0.05, 1.0])
def test_entries_are_missing_and_outliers_with_their_shares(missing, outliers):
    stream = small(n_samples=500, missing=missing, outliers=outliers)
    N = 500 * 60
    assert stream.missing.dtype == stream.outliers.dtype == bool
    assert in_binomial_margin(stream.missing.sum(), N, missing)
    assert in_binomial_margin(stream.outliers.sum(), N, outliers)
    assert in_binomial_margin((stream.missing & stream.outliers).sum(), N, missing * outliers)
    for axis, n in ((0, 500), (1, 60)):
        assert in_binomial_margin(stream.missing.sum(axis=axis), n, missing)


@pytest.mark.parametrize("name", ["missing", "outliers"])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.35, 0.99, 1.0])
@pytest.mark.parametrize("d", [7, 60])
def test_an_object_moves_over_neighbouring_features(name, share, d):
    options = {"missing_pattern": "moving", "outlier_pattern": "moving", name: share}
    mask = small(n_features=d, **options)[name]
    length = round(share * d)
    assert_array_equal(mask.sum(axis=1), length)
    if 0 < length < d:  # one piece, around the end
        assert_array_equal(np.sum(mask & ~np.roll(mask, 1, axis=1), axis=1), 1)
    for t, (row, after) in enumerate(pairwise(mask), 1):
        assert_array_equal(after, np.roll(row, 0 if t % 5 else max(1, -(-length // 2))))
    assert length == 0 or mask.any(axis=0).all()
    if share == 0.35:  # from places of their own
        streams = [small(**{**options, "outliers": share}, random_state=i) for i in range(5)]
        assert len({tuple(stream.missing[0]) for stream in streams}) > 1
        assert any(np.any(s.missing[0] != s.outliers[0]) for s in streams) or name == "outliers"


@pytest.mark.parametrize("bounds", [(10.0, 25.0), (0.0, 1.0), (3.0, 3.0)])
def test_outliers_are_uniform_in_their_range_and_of_both_signs(bounds):
    stream = small(outliers=0.3, outlier_range=bounds)
    low, high = bounds
    assert_array_equal(stream.sparse[~stream.outliers], 0)
    size = np.abs(stream.sparse[stream.outliers])
    assert np.all((low <= size) & (size <= high))
    N = len(size)
    assert in_binomial_margin(np.sum(stream.sparse > 0), N, 0.5)
    assert abs(size.mean() - (low + high) / 2) <= 5 * (high - low) / np.sqrt(12 * N)
    assert np.any(stream.sparse[stream.missing] != 0)  # also where missing


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("pattern", ["bernoulli", "moving"])
def test_rows_are_what_they_are_made_of_and_can_be_pickled(model, pattern):
    stream = small(model=model, outliers=0.1, missing_pattern=pattern, outlier_pattern=pattern)
    assert_array_equal(np.isnan(stream.X), stream.missing)
    seen = ~stream.missing
    assert_array_equal(stream.X[seen], (stream.low_rank + stream.sparse)[seen])
    assert not np.isnan(stream.low_rank).any()
    assert stream.X.shape == stream.low_rank.shape == stream.sparse.shape == (200, 60)
    assert not np.shares_memory(stream.X, stream.low_rank)
    other = pickle.loads(pickle.dumps(stream))
    assert_array_equal(other.X, stream.X)
    assert_array_equal(other.subspace_at(7), stream.subspace_at(7))
    assert_array_equal(other.subspace_changes(40), stream.subspace_changes(40))


def test_noise_is_white():
    stream = small(n_samples=2000, noise_std=0.5, outliers=0.1)
    noise = (stream.X - stream.low_rank - stream.sparse)[~stream.missing]
    N = len(noise)
    assert abs(np.mean(noise**2) / 0.25 - 1) <= 5 * np.sqrt(2 / N)
    assert abs(noise.mean()) <= 5 * 0.5 / np.sqrt(N)
    whole = small(n_samples=2000, noise_std=0.5, missing=0.0)
    s = np.linalg.svd((whole.X - whole.low_rank) / 0.5, compute_uv=False)
    # Davidson and Szarek (2001), theorem 2.13: out of this with probability 2 exp(-t^2 / 2), 7e-6
    assert np.sqrt(2000) - np.sqrt(60) - 5 <= s[-1]
    assert s[0] <= np.sqrt(2000) + np.sqrt(60) + 5


# -------------------------------------------------------------------- streams: the subspace


@pytest.mark.parametrize("variances", [None, (4.0, 1.0, 0.0)])
@pytest.mark.parametrize("model", MODELS)
def test_coefficients_in_the_subspace_are_uniform_with_their_variances(variances, model):
    n = 300
    stream = small(n_samples=n, variances=variances, model=model)
    C = np.array([stream.low_rank[t] @ stream.subspace_at(t).T for t in range(n)])
    want = np.ones(3) if variances is None else np.array(variances)
    assert np.all(np.abs(C) <= np.sqrt(3 * want) + 1e-12)
    # the square of a uniform variable has the variance 4/5 of the square of its mean
    assert np.all(np.abs(np.mean(C**2, axis=0) - want) <= 5 * want * np.sqrt(0.8 / n) + 1e-12)
    assert np.all(np.abs(C.mean(axis=0)) <= 5 * np.sqrt(want / n) + 1e-12)
    # products of independent coefficients have the product of the variances
    assert abs(np.mean(C[:, 0] * C[:, 1])) <= 5 * np.sqrt(want[0] * want[1] / n)


CHANGES = (30, 31, 150)
PATHS = [
    *({"model": model, **more} for model in MODELS for more in ({}, {"delta": 0.1})),
    {"model": "piecewise", "change_points": CHANGES, "delta": 0.3},
]


@pytest.mark.parametrize("options", PATHS)
@pytest.mark.parametrize(("d", "k"), [(60, 3), (61, 3), (9, 9), (1, 1), (2, 1), (3, 2)])
def test_every_row_lies_in_its_subspace(options, d, k):
    stream = small(n_features=d, n_components=k, **options)
    for t in (0, 1, 29, 30, 99, 100, 199):
        V, x = stream.subspace_at(t), stream.low_rank[t]
        assert V.shape == (k, d)
        assert_allclose(V @ V.T, np.eye(k), atol=1e-13)
        assert_allclose(x @ V.T @ V, x, atol=1e-12)
    with pytest.raises(IndexError):
        stream.subspace_at(200)


def test_a_piecewise_constant_subspace_changes_at_its_points_only():
    stream = small(model="piecewise", change_points=CHANGES)
    V = [stream.subspace_at(t) for t in range(200)]
    assert_array_equal(1 + np.flatnonzero([np.any(a != b) for a, b in pairwise(V)]), CHANGES)
    turns = [V[t - 1] @ V[t].T for t in CHANGES]
    assert_allclose(turns, [turns[0]] * 3, atol=1e-12)
    for made, points in ((stream, CHANGES), (small(model="piecewise"), (100,)), (small(), ())):
        assert made.change_points == points
    for points in ([], [0, 199]):
        assert small(model="piecewise", change_points=points).change_points == tuple(points)


def test_changes_are_the_sines_between_leading_directions_of_full_batches():
    stream = small(delta=1e-3)
    for size in (10, 60, 200, 201):
        X = stream.low_rank
        P = [leading(X[t : t + size], 3) for t in range(0, 201 - size, size)]
        want = [np.linalg.norm(b - b @ a.T @ a, 2) for a, b in pairwise(P)]
        assert_allclose(stream.subspace_changes(size), want, rtol=1e-9)


def test_the_defaults_are_the_changes_that_the_paper_states():
    small_changes = make_subspace_stream(900, random_state=0).subspace_changes(60)
    assert abs(small_changes.mean() - 1e-2) < 1e-3
    assert small_changes.max() < 1.2e-2
    one_change = make_subspace_stream(model="piecewise", random_state=0).subspace_changes(60)
    assert one_change[24] > 0.999  # between batches 25 and 26, rows 1,500 and after
    assert np.delete(one_change, 24).max() < 1e-12


# -------------------------------------------------------------------- what is refused

# call | argument | wrong values
REFUSED = """
make_power_law() | n_samples, n_features | -1, 2.5, "3"
make_power_law(7, 3) | return_components | -1, 2.5, 4
make_power_law(7, 3) | alpha | "2", [1.0, 2.0], None, nan, -inf, True
make_spiked() | n_samples, n_features | 0, 2.5
make_spiked(7, 1) | spikes | [1.0, 1.0], [-1.0], [nan]
make_spiked(7) | noise_variance | -1.0,
partition_clients([0, 1]) | n_clients | 3, 0, 1.5
partition_clients(n_clients=1) | y | [], [[0, 1]], 3, [0, nan, 1]
partition_clients([0, 1], 2) | method | "random",
partition_clients([0, 1], 2, method="dirichlet") | concentration | 0, -1.0, nan, inf, "9"
partition_clients([0, 1], 2) | concentration | "nonsense",
small() | n_samples, n_features | 0, 2.5, None
small() | n_components | 0, "3", 61
small() | model | "jump", None, ["walk"]
small() | change_points | (3,),
small(model="piecewise") | change_points | 50, "ab", (2.7,), (100, 50), (-1,), (200,)
small(model="rotation") | delta | nan, inf, "fast", [1, 2], "1"
small() | variances | [1.0, 1.0], [1.0, nan, 1.0], [1.0, inf, 1.0], 2.0, [1.0, -1.0, 1.0], "ones"
small() | noise_std | -1.0, nan, inf
small() | missing | -0.1, 1.1, nan
small() | outliers | 2,
small() | missing, outliers | TypeError: "many", None
small() | missing_pattern, outlier_pattern | "block", None
small() | outlier_range | (5, 1), (-1, 1), (nan, 1), 5.0, (1,), (0, inf)
small() | outlier_range | TypeError: ("low", "high"),
small().subspace_changes() | batch_size | 0, 1.5, "60"
""".strip().splitlines()


@pytest.mark.parametrize("line", REFUSED)
def test_a_bad_argument_is_named(line):
    call, names, values = line.split(" | ")
    kind = TypeError if values.startswith("TypeError: ") else ValueError
    for name in names.split(", "):
        for value in eval(values.removeprefix("TypeError: "), {"nan": nan, "inf": inf}):
            wrong = f"{call[:-1]}{'' if call.endswith('()') else ', '}**wrong)"
            with pytest.raises(kind, match=rf"\b{name}\b.*"):
                eval(wrong, globals() | {"wrong": {name: value}})
