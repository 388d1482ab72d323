"""Rows of many kinds, of which nobody knows a bound: for `privacy_unknown`."""

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits

from benchmarks._tools import load


def spread(rng, n, variances, mean=0.0):
    """Normal rows with variances along random directions."""
    d = len(variances)
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return (rng.standard_normal((n, d)) * np.sqrt(variances)) @ basis + mean


def power_law(rng, n, d, alpha, mean=0.0):
    """Normal rows with standard deviations i^-alpha."""
    return spread(rng, n, np.arange(1.0, d + 1) ** (-2 * alpha), mean)


def spiked(rng, n, d, spikes, mean=0.0):
    """Normal rows with variance 1, and a few larger ones."""
    return spread(rng, n, np.r_[spikes, np.ones(d - len(spikes))], mean)


def heavy(rng, n, d, alpha, freedom):
    """Rows of a power law, each by a factor of its own: Student's t."""
    return power_law(rng, n, d, alpha) / np.sqrt(rng.chisquare(freedom, n) / freedom)[:, None]


def outliers(rng, n, d, share, factor):
    """Rows with two large variances, of which some are longer by a factor and know no direction."""
    X = spiked(rng, n, d, [20.0, 10.0])
    wild = rng.random(n) < share
    X[wild] = factor * rng.standard_normal((wild.sum(), d))
    return X


def counts(rng, n, d, rank, rate, size=None):
    """Counts with rates of low rank: Poisson's, or negative binomial ones of some size."""
    rates = rate * rng.gamma(0.5, size=(n, rank)) @ rng.gamma(0.5, size=(rank, d)) / rank
    if size is not None:
        rates = rng.gamma(size, rates / size)
    return rng.poisson(rates).astype(float)


def clusters(rng, n, d, number, distance):
    """Rows about some points."""
    points = distance * rng.standard_normal((number, d)) / np.sqrt(d)
    return points[rng.integers(number, size=n)] + rng.standard_normal((n, d)) / np.sqrt(d)


def sensors(rng, n, d):
    """Positive readings of one day and one weather, with a level far from zero."""
    hours = np.linspace(0, 2 * np.pi, d)
    shapes = np.stack([np.sin(hours), np.cos(hours), np.sin(2 * hours)])
    return 250 + (rng.standard_normal((n, 3)) * [8, 5, 3]) @ shapes + rng.standard_normal((n, d))


def two_kinds(rng, n, d):
    """Rows of two kinds with directions of their own, of which a third are longer, elsewhere."""
    longer = 3 * power_law(rng, n, d, 1.0, 2.0)
    return np.where(rng.random(n)[:, None] < 1 / 3, longer, power_law(rng, n, d, 1.0))


def again(rng, X, n):
    """Rows drawn again, with a tenth of the deviation of each column as noise; None of none."""
    if X is None:
        return None
    X = X[rng.integers(len(X), size=n)]
    return X + 0.1 * X.std(axis=0) * rng.standard_normal(X.shape)


def _file(name, columns=slice(None)):
    path = load(name)
    return None if path is None else np.load(path)["X"][:, columns].astype(float)


# name: number of components, rows
PROBLEMS = {
    "digits": (3, lambda rng: load_digits().data),
    "MNIST": (3, lambda rng: _file("mnist_test.npz")),
    "wine": (2, lambda rng: _file("wine_redwhite.npz")),
    "light": (3, lambda rng: _file("motes_light.npz")),
    "counts": (3, lambda rng: counts(rng, 20_000, 100, 5, 4.0)),
    "dispersed counts": (2, lambda rng: counts(rng, 30_000, 50, 4, 4.0, 0.5)),
    "flat power law": (5, lambda rng: power_law(rng, 60_000, 20, 0.5)),
    "power law": (3, lambda rng: power_law(rng, 20_000, 50, 1.0)),
    "wide power law": (3, lambda rng: power_law(rng, 60_000, 300, 1.0)),
    "steep power law": (2, lambda rng: power_law(rng, 5000, 200, 1.5)),
    "spikes": (2, lambda rng: spiked(rng, 10_000, 50, [30.0, 15.0])),
    "few rows": (1, lambda rng: spiked(rng, 500, 20, [60.0])),
    "spikes of 784": (2, lambda rng: spiked(rng, 20_000, 784, [600.0, 400.0])),
    "t, 3": (3, lambda rng: heavy(rng, 20_000, 50, 1.0, 3)),
    "t, 2": (2, lambda rng: heavy(rng, 60_000, 30, 1.0, 2.1)),
    "wild rows": (2, lambda rng: outliers(rng, 20_000, 40, 0.01, 4.0)),
    "far mean": (3, lambda rng: power_law(rng, 20_000, 50, 1.0, 20.0)),
    "very far mean": (2, lambda rng: spiked(rng, 50_000, 30, [20.0, 10.0], 300.0)),
    "sensors": (3, lambda rng: sensors(rng, 20_000, 96)),
    "clusters": (4, lambda rng: clusters(rng, 40_000, 100, 6, 3.0)),
}


# Problems that no default was chosen on.
HELD_OUT = {
    "cancer": (2, lambda rng: load_breast_cancer().data),
    "vehicle": (2, lambda rng: _file("vehicle.npz")),
    "power .7": (3, lambda rng: power_law(rng, 8000, 40, 0.7, 3.0)),
    "power 1.2": (2, lambda rng: power_law(rng, 3000, 120, 1.2)),
    "spike": (1, lambda rng: spiked(rng, 1500, 30, [40.0], 5.0)),
    "t 4": (2, lambda rng: heavy(rng, 12_000, 25, 1.0, 4)),
    "counts b": (2, lambda rng: counts(rng, 12_000, 60, 3, 10.0)),
    "wild b": (2, lambda rng: outliers(rng, 6000, 30, 0.03, 6.0)),
    "sensors b": (2, lambda rng: sensors(rng, 5000, 48)),
    "clusters b": (3, lambda rng: clusters(rng, 15_000, 50, 5, 4.0)),
}


# Many rows, most of them such that clipping turns their components.
MANY = {
    "many digits": (1, lambda rng: again(rng, load_digits().data, 90_000)),
    "many light": (2, lambda rng: again(rng, _file("motes_light.npz"), 150_000)),
    "many counts": (2, lambda rng: counts(rng, 200_000, 30, 4, 4.0, 0.5)),
    "many of two kinds": (2, lambda rng: two_kinds(rng, 150_000, 40)),
    "many of a power law": (3, lambda rng: power_law(rng, 200_000, 50, 1.0)),
}

# Few rows, with a mean that is 3 to 1000 times as far away as rows are from it.
FAR = {
    "near": (2, lambda rng: spiked(rng, 1000, 20, [60.0, 30.0], 7.0)),
    "far": (2, lambda rng: spiked(rng, 1000, 20, [60.0, 30.0], 23.0)),
    "farther": (2, lambda rng: spiked(rng, 1000, 20, [60.0, 30.0], 230.0)),
    "farthest": (2, lambda rng: spiked(rng, 1500, 20, [60.0, 30.0], 2300.0)),
    "far of a power law": (1, lambda rng: power_law(rng, 1000, 40, 1.5, 6.0)),
}


def rows_of(name):
    """Rows of a problem and the number of components, or None where its file cannot be had."""
    k, make = {**PROBLEMS, **HELD_OUT, **MANY, **FAR}[name]
    X = make(np.random.default_rng(list(name.encode())))
    return None if X is None else (X, k)
