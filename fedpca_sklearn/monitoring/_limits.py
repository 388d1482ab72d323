"""Limits of squared prediction error and Hotelling's T2 for new rows, from a spectrum alone.

A fit is closer to its own rows than to new ones: it leaves less of them, and what it says of the
variance along its directions is too much where these follow the rows' noise. So variances and
moments here are those that new normal rows have, estimated from the eigenvalues of the old ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaincinv, chdtrc, chdtri, fdtrc, fdtri, log_ndtr, ndtri_exp

from ..summary import Subspace


def completed_spectrum(subspace: Subspace, k: int) -> np.ndarray:
    """All eigenvalues of the covariance of a summary's rows, decreasing.

    Those that are not kept have a known sum. Where eigenvalues after the k-th are kept, the others
    fall geometrically from the last of them; otherwise they are equal, which is the least that
    their squares can be. At most n - 1 are not zero.
    """
    known = subspace.explained_variance
    total = subspace.total_variance
    rest = max(total - float(known.sum()), 0.0)
    m = int(min(subspace.n_features, max(subspace.n_samples - 1, 1))) - len(known)
    if m < 1 or rest <= 1e-12 * total:
        return known
    start = known[-1] if len(known) > k else 0.0
    if not 0 < rest < start * m:
        return np.concatenate([known, np.full(m, rest / m)])
    ratio = brentq(lambda q: _geometric(start, q, m).sum() - rest, 0.0, 1.0)
    return np.concatenate([known, _geometric(start, ratio, m)])


def _geometric(start: float, ratio: float, m: int) -> np.ndarray:
    return start * ratio ** np.arange(1, m + 1)


def variances_of_new_rows(spectrum: np.ndarray, k: int, degrees: float) -> np.ndarray:
    """Variance of new rows along each of the k leading directions of the old rows.

    Ledoit and Péché (2011), with the eigenvalues that are there for their distribution,
    and an imaginary part of one over the root of the degrees of freedom. Eigenvalues among the k
    are left out: what these directions take from each other stays in their span.
    """
    values, rest, step = spectrum[:k], spectrum[k:], 1 + 1j / np.sqrt(degrees)
    pulls = np.sum(rest / (values[:, None] * step - rest), axis=1) / degrees
    return values / np.abs(1 + pulls) ** 2


def moments_of_the_rest(
    spectrum: np.ndarray, variances: np.ndarray, n: float, n_rest: int
) -> np.ndarray:
    """Sums of the eigenvalues, their squares and cubes, of new rows outside k directions.

    The sum is the total variance less what is along the directions, times 1 + 1 / n for the mean.
    The ratios to its square and cube are those of estimates without bias from old normal rows
    (Fisher, Sun and Gallagher 2010), of n - 1 - k degrees of freedom.
    """
    k = len(variances)
    first, second, third = np.sum(spectrum[k:] ** np.arange(1.0, 4.0)[:, None], axis=1)
    new = max(float(spectrum.sum() - variances.sum()), 0.0) * (1 + 1 / n)
    if not first > 0 or not new > 0:
        return np.zeros(3)
    m = n - 1 - k
    squares = m**2 / ((m - 1) * (m + 2)) * (second - first**2 / m)
    cubes = m**4 / ((m - 1) * (m - 2) * (m + 2) * (m + 4))
    cubes *= third - 3 * first * second / m + 2 * first**3 / m**2
    squares = np.clip(squares, first**2 / n_rest, second)
    cubes = np.clip(cubes, squares**2 / first, squares**1.5)
    return np.array([new, squares * (new / first) ** 2, cubes * (new / first) ** 3])


def normal_power(moments: np.ndarray) -> tuple[np.ndarray, ...]:
    """What `surprise_of_q` needs of a sum of squares of independent normal variables.

    Parameters
    ----------
    moments : ndarray of shape (..., 3)
        Sums of their variances, of the squares and of the cubes of the variances.

    Returns
    -------
    first, second, third : ndarray
        The moments.
    h : ndarray
        Exponent h0 of Jackson and Mudholkar, by which the power of the sum is nearly normal.
    middle, spread : ndarray
        Mean and deviation of the power of the sum over its mean.
    """
    first, second, third = np.moveaxis(np.asarray(moments, dtype=float), -1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        h = 1 - 2 * first * third / (3 * second**2)
        middle = 1 + second * h * (h - 1) / first**2
        return first, second, third, h, middle, h * np.sqrt(2 * second) / first


def surprise_of_q(q: Any, power: tuple[np.ndarray, ...]) -> np.ndarray:
    """Minus the logarithm of the probability that a sum of squares exceeds q.

    Parameters
    ----------
    q : ndarray
    power : tuple of ndarray
        From `normal_power`, of a shape that goes with that of q.

    Returns
    -------
    surprise : ndarray of the shape of q
        By Jackson and Mudholkar (1979). Where one variance outweighs the others so far that their
        exponent h0 is not positive, by Pearson's chi-square with three moments (Imhof 1961), as
        sums exceed their limits too rarely there. 0 without variance.
    """
    first, second, third, h, middle, spread = power
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        found = -log_ndtr((middle - (q / first) ** h) / spread)
        if not (h > 0).all():
            degrees = second**3 / third**2
            x = np.maximum((q - first) * second / third + degrees, 0.0)
            beyond = _surprise(chdtrc(degrees, x), x, lambda: _quantile_of_chi2(degrees, _MOST))
            found = np.where(h > 0, found, np.where(first > 0, beyond, 0.0))
    return found


def limit_of_q(moments: np.ndarray, surprise: float) -> np.ndarray:
    """The q of this surprise, see `surprise_of_q`; 0 without variance."""
    first, second, third, h, middle, spread = normal_power(moments)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        base = middle - ndtri_exp(-surprise) * spread
        found = first * np.maximum(base, 0.0) ** (1 / h)
        if not (h > 0).all():
            degrees = second**3 / third**2
            x = _quantile_of_chi2(degrees, surprise)
            found = np.where(h > 0, found, first + third / second * (x - degrees))
    return np.where(first > 0, np.maximum(found, 0.0), 0.0)


def surprise_of_t2(t2: Any, k: Any, n: float) -> np.ndarray:
    """Minus the logarithm of the probability that T2 of a new row exceeds this, by the F law.

    T2 in k dimensions is k (n^2 - 1) / (n (n - k)) times F with k and n - k degrees of freedom, for
    variances that are estimated from n rows with their mean (Tracy, Young and Mason 1992).
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        x = t2 * (n * (n - k) / (n**2 - 1)) / k
        found = _surprise(fdtrc(k, n - k, x), x, lambda: _quantile_of_f(k, n - k, _MOST))
        return np.where(np.greater(k, 0), found, 0.0)


def limit_of_t2(k: Any, n: float, surprise: float) -> np.ndarray:
    """The T2 of this surprise in k dimensions, see `surprise_of_t2`."""
    k = np.asarray(k, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        x = _quantile_of_f(k, n - k, surprise)
        return np.where(k > 0, k * (n**2 - 1) / (n * (n - k)) * x, np.inf)


# Surprise from which on it grows with the statistic, as probabilities underflow.
_MOST = 600.0


def _surprise(p: np.ndarray, x: np.ndarray, last: Callable[[], np.ndarray]) -> np.ndarray:
    """Minus log p; where p underflows it goes on from ``last()``, the x where it is the most."""
    tiny = p < np.exp(-_MOST)
    if not tiny.any():
        return -np.log(p)
    found = -np.log(np.where(tiny, 1.0, p))
    return np.where(tiny, _MOST * np.maximum(x / last(), 1.0), found)


def _quantile_of_chi2(degrees: np.ndarray, surprise: float) -> np.ndarray:
    return chdtri(degrees, np.exp(-min(surprise, _MOST))) * max(surprise / _MOST, 1.0)


def _quantile_of_f(k: np.ndarray, m: Any, surprise: float) -> np.ndarray:
    p = np.exp(-min(surprise, _MOST))
    if p > 1e-9:
        return fdtri(k, m, 1 - p)
    x = m * (1 / betaincinv(m / 2, k / 2, p) - 1) / k
    # of many rows old releases of scipy have no such inverse; there is more of F than of chi-square
    if not np.allclose(fdtrc(k, m, x), p, rtol=1e-6, atol=0):
        least = chdtri(k, p) / k
        low, high = np.log(least), np.log(least) + 1.0
        while (beyond := fdtrc(k, m, np.exp(high)) > p).any():
            high = high + beyond
        for _ in range(60):
            middle = (low + high) / 2
            above = fdtrc(k, m, np.exp(middle)) > p
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        x = np.exp(high)
    return x * max(surprise / _MOST, 1.0)
