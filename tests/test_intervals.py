"""Intervals from summaries: against a jackknife of rows, and against the population."""

from contextlib import nullcontext

import numpy as np
import pytest
from helpers import peak_bytes
from numpy.testing import assert_allclose
from scipy import stats

from fedpca_sklearn import (
    Subspace,
    jackknife_intervals,
    make_spiked,
)
from fedpca_sklearn.intervals import (
    CERTAIN,
    deviations_of,
    deviations_of_unlike,
    freedom_of_unlike,
    sine_bound,
)

SPIKES = [9.0, 4.0]


def rows(seed=0, n=600, d=12, spikes=SPIKES):
    return make_spiked(n, d, spikes=spikes, random_state=seed)[0]


def summaries(parts):
    return [Subspace.from_rows(part) for part in parts]


def logs(X, k=2):
    """Of variances, and of their shares of what they leave."""
    values = np.linalg.eigvalsh(np.cov(X.T))[::-1]
    shares = np.concatenate([values[:k], np.cumsum(values)[:k]]) / values.sum()
    return np.concatenate([np.log(values[:k]), np.log(shares / (1 - shares))])


def by_the_book(parts):
    """Delete-m jackknife for unequal m (Busing et al. 1999), of the rows themselves."""
    X, g = np.concatenate(parts), len(parts)
    h = len(X) / np.array([len(part) for part in parts])[:, None]
    left = np.array([logs(np.concatenate(parts[:i] + parts[i + 1 :])) for i in range(g)])
    estimate = g * logs(X) - np.sum((1 - 1 / h) * left, axis=0)
    pseudo = h * logs(X) - (h - 1) * left
    variance = np.mean((pseudo - estimate) ** 2 / (h - 1), axis=0)
    half = stats.t.ppf(0.975, g - 1) * np.sqrt(variance)
    ends = np.stack([estimate - half, estimate + half], axis=1)
    return np.exp(ends[:2]), 1 / (1 + np.exp(-ends[2:4])), 1 / (1 + np.exp(-ends[4:]))


# ------------------------------------------------------------------------------ the jackknife


# of unlike parts the book's deviations are from an estimate, ours from the mean: 1 / n
@pytest.mark.parametrize(("cuts", "tol"), [(6, 1e-8), ([50, 150, 300, 500, 550], 0.01)])
def test_intervals_are_those_of_a_jackknife_of_the_rows(cuts, tol):
    parts = np.split(rows() + 100.0, cuts)
    found, expected = jackknife_intervals(summaries(parts), 2), by_the_book(parts)
    assert_allclose(found.explained_variance_interval, expected[0], rtol=tol)
    assert_allclose(found.explained_variance_ratio_interval, expected[1], rtol=tol)
    assert_allclose(found.cumulative_ratio_interval, expected[2], rtol=tol)
    middle = np.sqrt(np.prod(found.explained_variance_interval, axis=1))
    assert_allclose(found.explained_variance, middle)


def test_few_directions_of_many_features_are_worked_on_in_their_span():
    parts = np.split(rows(n=60, d=400, spikes=[300.0, 100.0]), 6)
    wide = jackknife_intervals(summaries(parts), 2)
    assert_allclose(wide.explained_variance_interval, by_the_book(parts)[0], rtol=1e-7)
    padded = np.concatenate([np.split(rows(), 6), np.zeros((6, 100, 500))], axis=2)
    found, expected = (jackknife_intervals(summaries(p), 2) for p in (padded, np.split(rows(), 6)))
    assert_allclose(found.subspace_sine_bound, expected.subspace_sine_bound, rtol=1e-6)


# ------------------------------------------------------------------------------ blocks of sites


def test_blocks_of_sites_do_not_count_how_unlike_sites_are():
    X = rows(n=2000)
    V = np.linalg.svd(X, full_matrices=False)[2]
    sites = [part + 2 * i * V[0] for i, part in enumerate(np.split(X, 5))]
    blocks = [summaries(np.split(site, 8)) for site in sites]
    fixed = jackknife_intervals(blocks, 2)
    with pytest.warns(UserWarning, match="as 5.0 sites of equal size"):
        sampled = jackknife_intervals(summaries(sites), 2)
    widths = [np.diff(i.explained_variance_interval)[0, 0] for i in (fixed, sampled)]
    assert widths[0] < 0.5 * widths[1]
    # within sites the mean of each moves the first variance: var(sum of 2 x z + z^2) / n
    spread = np.repeat(np.arange(5) - 2.0, 400) * 2
    z = (X @ V[0] + spread) ** 2
    within = np.mean([np.var(part) for part in np.split(z, 5)])
    assert_allclose(widths[0], 2 * 1.96 * np.sqrt(within / 2000), rtol=0.25)


def test_blocks_of_one_site_are_as_sites_are_and_blocks_may_name_their_site():
    parts = summaries(np.split(rows(), 6))
    pairs = [parts[:2], parts[2:4], parts[4:]]
    named = [[b._replace(site=n) for b in pair] for n, pair in zip("abc", pairs, strict=True)]
    for one, other, k in (([parts], parts, 2), (named, pairs, 1)):
        found, expected = (jackknife_intervals(blocks, k) for blocks in (one, other))
        assert_allclose(found.explained_variance, expected.explained_variance)
        assert_allclose(found.subspace_sine_bound, expected.subspace_sine_bound)
    for twice in ([named[0], named[0]], named[0]):
        with pytest.raises(ValueError, match="of site 'a', as is"):
            jackknife_intervals(twice, 1)
    with pytest.raises(ValueError, match="has 3 features"):
        jackknife_intervals([pairs[0], summaries(np.ones((2, 5, 3)))], 1)


# ------------------------------------------------------------------------------ the angle


def test_the_bound_is_the_quantile_of_the_largest_singular_value():
    rng = np.random.default_rng(0)
    deviations = rng.standard_normal((2000, 30, 1)) / 1e3
    square = np.sum(deviations**2) * stats.f.ppf(0.95, 30, 30 * 1999)  # of one direction
    # the 95 % point of 4,000 draws, and the number of dimensions from 2,000 vectors
    assert sine_bound(deviations, 1999, 0.95) ** 2 == pytest.approx(square / (1 + square), rel=0.03)
    scale = 0.01 * np.array([1.0, 0.7])
    draws = rng.standard_normal((4000, 20, 2)) * scale
    expected = np.quantile(np.linalg.norm(draws, 2, axis=(1, 2)), 0.95)
    known = rng.standard_normal((500, 20, 2)) * scale / np.sqrt(500)
    assert sine_bound(known, 499, 0.95) == pytest.approx(expected, rel=0.04)
    one = np.zeros((3, 18, 2))  # along one direction of one component, of three summaries
    one[:, 4, 1] = [1e-3, 2e-3, -3e-3]
    expected = np.sum(one**2) * stats.f.ppf(0.95, 1, 2)
    square = sine_bound(one, 2, 0.95) ** 2
    assert square / (1 - square) == pytest.approx(expected, rel=0.2)
    turned = known.transpose(0, 2, 1)
    assert sine_bound(turned, 499, 0.95) == pytest.approx(sine_bound(known, 499, 0.95), rel=1e-9)


def test_no_deviation_has_no_angle():
    assert sine_bound(np.zeros((5, 4, 2)), 4.0, 0.95) == 0
    along = np.arange(30.0)[:, None] * [1.0, 2.0, 2.0]  # on a line, whatever is left out
    with pytest.warns(UserWarning, match="as 5.0 sites of equal size"):
        assert jackknife_intervals(summaries(np.split(along, 5)), 1).subspace_sine_bound < 1e-7
    found = jackknife_intervals(summaries(np.split(rows(d=3), 6)), 3)  # all directions
    assert found.subspace_sine_bound == 0
    assert_allclose(found.cumulative_ratio_interval[-1], 1)
    constant = summaries(np.ones((2, 50, 12)))  # a site whose blocks are all alike
    found = jackknife_intervals([summaries(np.split(rows(), 2)), constant], 1)
    assert 0 < found.subspace_sine_bound < 1
    assert np.isfinite(found.explained_variance_interval).all()


def test_the_freedom_of_the_angle_is_that_of_the_site_whose_blocks_differ(monkeypatch):
    """Satterthwaite: (sum of s_i^2)^2 / sum of s_i^4 / f_i over sites, where one of two is zero."""
    found, alike = [], summaries([rows()[:60]] * 3)
    monkeypatch.setattr("fedpca_sklearn.intervals.sine_bound", lambda _, f, __: found.append(f))
    jackknife_intervals([summaries(np.split(rows(), 10)), alike], 1)
    assert found == pytest.approx([9])


# ------------------------------------------------------------------------------ the population


SIZES = np.geomspace(1000, 15, 10).astype(int)


def test_deviations_of_unlike_parts_are_unbiased():
    # E of the sum of squares is the variance of the mean by shares, for parts whose variance falls
    # with the rows, and is not less than nine tenths of it for parts of the same variance
    shares, equal = SIZES / SIZES.sum(), np.full(5, 0.2)
    D = deviations_of_unlike(np.eye(10), shares)
    assert np.sum(D**2 / shares) >= 1 - 1e-12
    assert np.sum(D**2) >= 0.9 * shares @ shares
    # variances of what is left beside the mean, over those of the parts: equal ones, or by rows
    A = np.eye(10) - shares
    left = [np.diag(A @ C @ A.T) / np.diag(C) for C in (np.eye(10), np.diag(1 / shares))]
    assert_allclose(D, (shares / np.sqrt(np.min(left, axis=0)))[:, None] * A)
    expected = deviations_of(np.eye(5), equal, np.zeros(5, dtype=int))
    assert_allclose(deviations_of_unlike(np.eye(5), equal), expected)
    assert_allclose(freedom_of_unlike(equal), 4)
    assert 1.5 < freedom_of_unlike(shares) < 2
    D = deviations_of_unlike(np.eye(len(shares)), shares)  # the form itself, m x m
    assert_allclose(freedom_of_unlike(shares), np.trace(D @ D.T) ** 2 / np.sum((D @ D.T) ** 2))


def test_many_summaries_take_no_matrix_of_all_pairs():
    X = np.random.default_rng(0).standard_normal((1800, 3))
    parts = [Subspace.from_rows(rows) for rows in np.split(X, 600)]
    assert peak_bytes(lambda: jackknife_intervals(parts, 2)) < 4 * 600 * 600


@pytest.mark.parametrize("more", [0.99, 1.01])
def test_means_of_sites_differ_by_a_test_of_chi_squared(more):
    """n times the squares of means over the variance within has m - 1 degrees of freedom."""
    rng, means = np.random.default_rng(0), np.arange(10.0) - 4.5
    Y = rng.standard_normal((40, 4)) * [5.0, 1.0, 1.0, 1.0]
    Y = np.linalg.qr(Y - Y.mean(axis=0))[0] * [9.0, 3.0, 2.0, 1.0]
    within = 10 * 9.0**2 / (400 - 10)
    t = np.sqrt(more * stats.chi2.ppf(CERTAIN, 9) * within / (40 * means @ means))
    parts = summaries([Y + t * m * np.eye(4)[0] for m in means])
    told = pytest.warns(UserWarning, match="the means of the 10 sites differ")
    with told if more > 1 else nullcontext():
        jackknife_intervals(parts, 1)
    jackknife_intervals(6 * parts, 1)  # of many sites nothing is said
