"""Synthetic streams against their stated law, and partitions against their stated shape."""

import re

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from fedpca_sklearn import make_power_law, make_spiked, partition_clients

METHODS = ["iid", "label", "dirichlet"]


# -------------------------------------------------------------------- power law


@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("d", [1, 2, 30])
def test_covariance_is_the_stated_one(alpha, d):
    n = 20_000
    X, S = make_power_law(n, d, alpha=alpha, random_state=0, return_components=d)
    assert X.shape == (n, d)
    assert_allclose(S @ S.T, np.eye(d), atol=1e-13)
    # Whitened by the stated law, rows are standard normal: all singular values lie within
    # sqrt(n) +- (sqrt(d) + t) but with probability 2 exp(-t^2 / 2), here 1e-4
    # (Davidson and Szarek 2001, theorem 2.13).
    whitened = (X @ S.T) * np.arange(1, d + 1) ** (alpha / 2)
    s = np.linalg.svd(whitened, compute_uv=False)
    t = np.sqrt(2 * np.log(2e4))
    assert np.sqrt(n) - np.sqrt(d) - t <= s[-1]
    assert s[0] <= np.sqrt(n) + np.sqrt(d) + t


def test_rows_have_zero_mean_and_are_independent():
    n, d = 20_000, 10
    X, S = make_power_law(n, d, alpha=1.0, random_state=1, return_components=d)
    Z = (X @ S.T) * np.sqrt(np.arange(1, d + 1))
    # n |mean|^2 is chi-squared with d degrees: Laurent and Massart (2000), probability 1e-4
    x = np.log(1e4)
    assert n * np.sum(Z.mean(axis=0) ** 2) <= d + 2 * np.sqrt(d * x) + 2 * x
    # each of d lagged correlations is within t / sqrt(n), union bound as above
    lagged = np.mean(Z[1:] * Z[:-1], axis=0)
    assert np.abs(lagged).max() <= 1.1 * np.sqrt(2 * np.log(2 * d * 1e4) / n)


def test_directions_are_spread_over_the_features():
    # S is a random rotation, not a permutation of the axes
    _, S = make_power_law(2, 200, random_state=2, return_components=5)
    # fourth powers of a random unit vector sum to 3 / (d + 2), up to sqrt(96 / d^3); an axis's to 1
    assert np.all(np.abs(np.sum(S**4, axis=1) - 3 / 202) < 5 * np.sqrt(96 / 200**3))


def test_asking_for_components_does_not_change_the_rows():
    X = make_power_law(50, 8, random_state=3)
    again, S = make_power_law(50, 8, random_state=3, return_components=3)
    assert_array_equal(again, X)
    assert S.shape == (3, 8)
    assert_allclose(S @ S.T, np.eye(3), atol=1e-14)
    all_of_them = make_power_law(50, 8, random_state=3, return_components=8)[1]
    assert_allclose(S, all_of_them[:3], atol=1e-14)


@pytest.mark.parametrize("make", [lambda seed: seed, np.random.RandomState])
def test_the_seed_decides(make):
    X = make_power_law(20, 6, random_state=make(4))
    assert_array_equal(make_power_law(20, 6, random_state=make(4)), X)
    assert not np.allclose(make_power_law(20, 6, random_state=make(5)), X)
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    make_power_law(20, 6, random_state=0)
    assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


@pytest.mark.parametrize("value", [-1, 2.5, "3"])
@pytest.mark.parametrize("name", ["n_samples", "n_features", "return_components"])
def test_bad_sizes_are_named(name, value):
    with pytest.raises((ValueError, TypeError), match=f"{name}.*{value}"):
        make_power_law(**{"n_samples": 4, "n_features": 3, name: value})


@pytest.mark.parametrize("alpha", ["2", [1.0, 2.0], None, np.nan, -np.inf, True])
def test_a_bad_decay_is_named(alpha):
    with pytest.raises(
        ValueError, match=re.escape(f"alpha must be a finite number, got {alpha!r}")
    ):
        make_power_law(5, 3, alpha=alpha)


def test_more_directions_than_features_are_refused():
    with pytest.raises(ValueError, match=r"return_components.*4"):
        make_power_law(5, 3, return_components=4)


# -------------------------------------------------------------------- partitions


def skew(y, clients):
    """Mean share of a client's rows that have its most frequent label."""
    table = np.array([[np.sum((clients == c) & (y == v)) for v in set(y)] for c in set(clients)])
    return float(np.mean(table.max(axis=1) / table.sum(axis=1)))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("n", "n_clients"), [(1, 1), (7, 7), (50, 1), (50, 49), (1000, 13)])
@pytest.mark.parametrize("concentration", [0.01, 0.5, 100.0])
def test_every_row_has_a_client_and_every_client_a_row(method, n, n_clients, concentration):
    y = np.random.default_rng(0).integers(0, 5, n)
    for seed in range(5):
        clients = partition_clients(
            y, n_clients, method=method, concentration=concentration, random_state=seed
        )
        assert clients.shape == (n,)
        assert clients.dtype.kind == "i"
        counts = np.bincount(clients, minlength=n_clients)
        assert len(counts) == n_clients
        assert counts.min() >= 1
        if method != "dirichlet":
            assert counts.max() - counts.min() <= 1


def test_iid_clients_have_the_labels_of_all():
    y = np.repeat(np.arange(4), 500)
    clients = partition_clients(y, 5, method="iid", random_state=0)
    for c in range(5):
        # hypergeometric: 400 of 2000 rows, 100 expected per label, variance below 75
        assert np.abs(np.bincount(y[clients == c], minlength=4) - 100).max() <= 5 * np.sqrt(75)
    assert np.any(np.diff(clients) < 0)  # shuffled, not contiguous


@pytest.mark.parametrize("labels", [np.arange(10), np.array(list("abcdefghij"))])
def test_label_clients_see_one_or_two_labels(labels):
    y = np.random.default_rng(1).permutation(np.repeat(labels, 60))
    clients = partition_clients(y, 10, method="label", random_state=0)
    assert skew(y, clients) == 1.0
    clients = partition_clients(y, 13, method="label", random_state=0)
    assert max(len(set(y[clients == c])) for c in range(13)) == 2


def test_dirichlet_clients_are_alike_or_unlike_by_concentration():
    y = np.repeat(np.arange(10), 200)
    skews = [
        np.mean(
            [
                skew(
                    y, partition_clients(y, 8, method="dirichlet", concentration=a, random_state=s)
                )
                for s in range(5)
            ]
        )
        for a in (0.05, 0.5, 5.0, 1e6)
    ]
    assert skews == sorted(skews, reverse=True)
    # At 1e6 a share is 1/8 with a standard deviation of 1/3000: 25 rows of each label, to rounding
    clients = partition_clients(y, 8, method="dirichlet", concentration=1e6, random_state=0)
    table = np.array([np.bincount(y[clients == c], minlength=10) for c in range(8)])
    assert np.abs(table - 25).max() <= 2
    # At 0.05 the largest of 8 shares of a label has a mean above 0.8 (E sum p^2 = 1.05 / 1.4)
    clients = partition_clients(y, 8, method="dirichlet", concentration=0.05, random_state=0)
    table = np.array([np.bincount(y[clients == c], minlength=10) for c in range(8)])
    assert np.mean(table.max(axis=0) / 200) > 0.7


def test_a_tiny_concentration_gives_each_label_a_client_of_its_own_choice():
    y = np.repeat(np.arange(60), 20)
    clients = partition_clients(y, 10, method="dirichlet", concentration=1e-4, random_state=0)
    owner = np.array([np.bincount(clients[y == v], minlength=10).argmax() for v in range(60)])
    share = [np.mean(clients[y == v] == owner[v]) for v in range(60)]
    assert np.mean(share) > 0.95
    # uniform choice: a client owns Binomial(60, 0.1) labels, over 20 with probability below 1e-6
    assert np.bincount(owner).max() <= 20


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_decides_the_partition(method):
    y = np.repeat(np.arange(5), 20)
    clients = partition_clients(y, 4, method=method, random_state=6)
    assert_array_equal(partition_clients(y, 4, method=method, random_state=6), clients)
    generator = np.random.RandomState(6)
    assert_array_equal(partition_clients(y, 4, method=method, random_state=generator), clients)
    others = [partition_clients(y, 4, method=method, random_state=seed) for seed in range(3)]
    assert any(np.any(other != clients) for other in others)


@pytest.mark.parametrize(
    ("y", "n_clients", "options", "message"),
    [
        ([0, 1], 3, {}, "n_clients must be an integer from 1 to 2, got 3"),
        ([0, 1], 0, {}, "n_clients .*got 0"),
        ([0, 1], 1.5, {}, r"n_clients .*got 1\.5"),
        ([], 1, {}, "y must hold at least one label"),
        ([[0, 1]], 1, {}, r"y must be 1-D, got shape \(1, 2\)"),
        (3, 1, {}, r"y must be 1-D, got shape \(\)"),
        ([0, 1], 2, {"method": "random"}, "method must be one of .*'random'"),
        ([0, 1], 2, {"method": "dirichlet", "concentration": 0}, "concentration .*got 0"),
        ([0, 1], 2, {"method": "dirichlet", "concentration": -1.0}, r"concentration .*got -1\.0"),
        ([0, 1], 2, {"method": "dirichlet", "concentration": np.nan}, "concentration .*got nan"),
        ([0, 1], 2, {"method": "dirichlet", "concentration": np.inf}, "concentration .*got inf"),
        ([0, 1], 2, {"method": "dirichlet", "concentration": "9"}, "concentration .*got '9'"),
        ([0, 1], 2, {"concentration": "nonsense"}, "concentration .*got 'nonsense'"),
        ([0, np.nan, 1], 2, {"method": "dirichlet"}, "y .*(?i:nan)"),
    ],
)
def test_bad_partitions_are_refused(y, n_clients, options, message):
    with pytest.raises(ValueError, match=message):
        partition_clients(y, n_clients, **options, random_state=0)


# ------------------------------------------------------------------------------------- spikes


@pytest.mark.parametrize("noise", [1.0, 4.0])
def test_spikes_are_found_as_random_matrix_theory_says(noise):
    """Paul 2007, Theorems 1 and 4: eigenvalues and angles of sample covariances, d / n = .1."""
    n, d, spikes = 8000, 800, np.array([20.0, 5.0, 1.0])
    X, V = make_spiked(n, d, spikes=noise * spikes, noise_variance=noise, random_state=0)
    assert_allclose(V @ V.T, np.eye(3), atol=1e-12)
    eigenvalues, W = np.linalg.eigh(X.T @ X / n)
    eigenvalues, W = eigenvalues[::-1], W.T[::-1]
    g = d / n
    values = noise * (1 + spikes) * (1 + g / spikes)
    # a sample variance is off by sqrt(2 / n) of itself: five times that
    assert_allclose(eigenvalues[:3], values, rtol=5 * np.sqrt(2 / n))
    cosines = (1 - g / spikes**2) / (1 + g / spikes)
    assert_allclose(np.sum(W[:3] * V, axis=1) ** 2, cosines, atol=5 / np.sqrt(n))
    edge = noise * (1 + np.sqrt(g)) ** 2  # of the noise alone
    assert eigenvalues[3] < 1.03 * edge


def test_no_noise_and_no_spikes_are_possible():
    X, V = make_spiked(50, 8, spikes=[3.0], noise_variance=0.0, random_state=1)
    assert_allclose(X - X @ V.T @ V, 0, atol=1e-12)
    X, V = make_spiked(50, 8, spikes=[], random_state=1)
    assert X.shape == (50, 8)
    assert V.shape == (0, 8)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"n_samples": 0}, "n_samples"),
        ({"n_features": 2.5}, "n_features"),
        ({"spikes": [1.0, -1.0]}, "spikes"),
        ({"n_features": 1, "spikes": [1.0, 1.0]}, "spikes"),
        ({"spikes": [np.nan]}, "spikes"),
        ({"noise_variance": -1.0}, "noise_variance"),
    ],
)
def test_bad_spikes_are_named(options, name):
    with pytest.raises(ValueError, match=name):
        make_spiked(**options)
