"""Two releases of a second moment, the second in the shape of the first: bounds, cost, and gain."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from privacy_helpers import model_of, mostly_noise, near_bounds

from fedpca_sklearn import AnalyzeGauss, subspace_distance
from fedpca_sklearn.privacy import DiscreteGaussian
from fedpca_sklearn.privacy._private_searches import FIRST, Shape, n_above, variances_along
from fedpca_sklearn.privacy._rows import ClippedRows

pytestmark = [mostly_noise, near_bounds]
D = 40


class Once(AnalyzeGauss):
    """The same noise in one release."""

    _TWICE = False


def rng(seed=0):
    return np.random.default_rng(seed)


def noise(d, std, seed):
    """Symmetric noise of a standard deviation off the diagonal, and sqrt(2) of that on it."""
    G = rng(seed).standard_normal((d, d))
    return std * (G + G.T) / math.sqrt(2)


def power_law(n, d, alpha):
    basis = np.linalg.qr(rng(1).standard_normal((d, d)))[0]
    return (rng(2).standard_normal((n, d)) * np.arange(1.0, d + 1) ** -alpha) @ basis


def a_shape(d=D, std=1e-3):
    C = np.cov(power_law(500, d, 1.0).T) * 500
    return Shape.of(C, std), C


# ------------------------------------------------------------------------------ what is estimated


@pytest.mark.parametrize("std", [0.05, 1.0])
def test_variances_along_noisy_eigenvectors_are_those_of_the_matrix_without_noise(std):
    variances = np.r_[60.0, 30.0, 8.0, np.linspace(4, 0, 57)]
    found, right = [], []
    for seed in range(30):
        values, U = np.linalg.eigh(np.diag(variances) + noise(60, std, seed))
        values, U = values[::-1], U[:, ::-1]
        found.append(variances_along(values, std))
        right.append((U**2).T @ variances)
        assert np.all(np.diff(found[-1]) <= 0)
        assert found[-1].min() >= std / 2
    found, right = np.mean(found, axis=0), np.mean(right, axis=0)
    assert_allclose(found[:2], right[:2], rtol=0.05)
    assert_allclose(found[2:].mean(), right[2:].mean(), rtol=0.15)
    assert np.abs(found - np.maximum(right, std / 2)).max() < 0.05 * 60


def test_noise_alone_has_no_shape():
    scales = Shape.of(noise(D, 1.0, 3), 1.0).scales
    assert scales.max() / scales.min() < 1.6
    scales = a_shape()[0].scales
    assert scales.max() / scales.min() > 3


# ------------------------------------------------------------------------------ bounds and cost


@pytest.mark.parametrize("center", [None, "point"])
def test_rows_in_a_shape_are_no_longer_than_the_norm_whatever_they_are(center):
    shape, _ = a_shape()
    point = None if center is None else rng(5).standard_normal(D)
    R, one, other = 0.7, np.zeros(D), np.zeros(D)
    one[0], other[-1] = 1e200, -1e-3
    along = shape.directions[:, [0, -1]].T * 1e6  # the directions that scales differ most in
    rows = np.vstack([one, other, along, power_law(6, D, 0.1)])
    products = [
        ClippedRows.of(row[None], point, R, shape.matrix).products(slice(0, D)) for row in rows
    ]
    for M in products:
        assert np.trace(M) <= R**2 * (1 + 1e-12)
        for N in products:
            assert np.linalg.norm(M - N) <= math.sqrt(2) * R**2 * (1 + 1e-12)
    assert_allclose(np.trace(products[0]), R**2)


@pytest.mark.parametrize("exact", [None, DiscreteGaussian()])
def test_two_releases_cost_as_much_as_one(exact):
    mechanism = AnalyzeGauss(1.0, 1e-5, "private", center="private", noise=exact)
    costs = mechanism.costs(D, 1)
    first, second = mechanism._two_products(costs, D)
    of_both = sum(mechanism._noise_cost(of.product_std, D, 1) for of in (first, second))
    of_one = mechanism._noise_cost(costs.product_std, D, 1)
    if exact is None:
        assert_allclose(of_both, of_one, rtol=1e-12)
        assert_allclose(first.product, FIRST * costs.product, rtol=1e-12)
    else:  # rounding is paid for twice
        assert 0.99 * of_one < of_both <= of_one


def test_a_class_with_noise_of_its_own_is_released_once():
    class Another(AnalyzeGauss):
        def _noise_cost(self, std, n_features, n_shares):
            return 2 * super()._noise_cost(std, n_features, n_shares)

    X = power_law(2000, 10, 1.0)
    for kind, twice in ((AnalyzeGauss, True), (Another, False), (Once, False)):
        mechanism = kind(1.0, 1e-5, "private")
        terms = mechanism.searched(X, mechanism.terms(X, mechanism.costs(10, 1)), rng())
        assert (terms.shape is not None) == twice
        assert terms.row_norm == mechanism.searched(X, terms, rng()).row_norm


# ------------------------------------------------------------------------------ what it gives


def test_a_moment_in_a_shape_is_that_of_the_rows():
    shape, C = a_shape()
    X = power_law(300, D, 1.0)
    rows = ClippedRows.of(X, None, 1e6, shape.matrix)
    assert_allclose(shape.moment(rows.products(slice(0, D))), X.T @ X, atol=1e-9)
    assert_allclose(shape.mean(rows.sum()), X.sum(axis=0), atol=1e-9)
    # both releases right: so is their mean
    M = shape.matrix.T @ C @ shape.matrix
    assert_allclose(shape.moment(shape.combined(M, 1e-3)), C, atol=1e-9 * np.trace(C))


def test_releases_are_weighted_by_their_noise():
    """Without scales: inverse variances, by hand."""
    shape = Shape(np.eye(3), np.ones(3), np.array([9.0, 6.0, 3.0]), 2.0)
    M = np.diag([12.0, 3.0, 3.0])
    expected = (np.diag([9.0, 6.0, 3.0]) / 4 + M / 1) / (1 / 4 + 1)
    assert_allclose(shape.combined(M, 1.0), expected)
    # of an even spectrum the noise of the second release, with its weight, is what varies
    even = Shape(np.eye(3), np.ones(3), np.full(3, 3.0), 2.0)
    assert_allclose(even.noise(1.0), 1 / (1 / 4 + 1), rtol=1e-3)


def test_the_edge_is_that_of_noise_beside_what_was_found():
    """Largest eigenvalue of both releases' noise, in directions that the first cannot tell."""
    shape, _ = a_shape(std=2.0)
    above, turn = n_above(shape.values, shape.std), np.outer(shape.scales, shape.scales)
    weights = 1 / (1 + (turn * shape.std) ** 2)
    edges = []
    for seed in range(20):
        N, first = noise(D, 1.0, [seed, 0]), noise(D, shape.std, [seed, 1]) * turn
        both = (N + weights * (first - N)) / turn
        edges.append(np.linalg.eigvalsh(both[above:, above:])[-1])
    expected = 2 * shape.noise(1.0) * math.sqrt(D - above)
    assert 0.8 < np.mean(edges) / expected < 1.05


@pytest.mark.parametrize(("alpha", "gain"), [(1.5, 0.7), (0.3, 1.15)])
def test_steep_spectra_need_less_noise(alpha, gain):
    """Beside the same norm in one release: less where variances differ, hardly more elsewhere."""
    X = power_law(5000, 60, alpha)
    V = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[2][:2]

    def error(kind, run):
        model = model_of(kind(1.0, 1e-5, "private"), 2, n_clients=1, random_state=run)
        return subspace_distance(model.fit(X).components_, V)

    twice, once = (np.mean([error(kind, run) for run in range(6)]) for kind in (AnalyzeGauss, Once))
    assert twice < gain * once


def test_of_noise_alone_seldom_a_component_is_above_it():
    X = rng(7).standard_normal((1000, 30))
    model = model_of(AnalyzeGauss(0.5, 1e-5, "private"), 2, n_clients=1)
    above = [
        model.set_params(random_state=run).fit(X).n_components_above_noise_ for run in range(40)
    ]
    assert sum(n > 0 for n in above) <= 6
