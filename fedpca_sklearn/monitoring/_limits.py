"""Limits of squared prediction error and Hotelling's T2 for new rows, from a spectrum alone.

A fit is closer to its own rows than to new ones: it leaves less of them, and what it says of the
variance along its directions is too much where these follow the rows' noise. So variances and
moments here are those that new normal rows have, estimated from the eigenvalues of the old ones.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq
from scipy.special import fdtri, ndtri
from scipy.stats import chi2

from ..summary import Subspace


def completed_spectrum(subspace: Subspace, k: int) -> np.ndarray:
    """All eigenvalues of the covariance of a summary's rows, decreasing.

    Those that are not kept have a known sum. Where eigenvalues after the k-th are kept, the others
    fall geometrically from the last of them; otherwise they are equal, which is the least that
    their squares can be. At most n - 1 are not zero.
    """
    known = subspace.explained_variance
    rest = max(subspace.total_variance - float(known.sum()), 0.0)
    m = int(min(subspace.n_features, max(subspace.n_samples - 1, 1))) - len(known)
    if m < 1 or rest <= 1e-12 * subspace.total_variance:
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
    rest, step = spectrum[k:], 1 + 1j / np.sqrt(degrees)
    pulls = [np.sum(rest / (value * step - rest)) / degrees for value in spectrum[:k]]
    return spectrum[:k] / np.abs(1 + np.array(pulls, dtype=complex)) ** 2


def moments_of_the_rest(
    spectrum: np.ndarray, variances: np.ndarray, n: float, n_rest: int
) -> np.ndarray:
    """Sums of the eigenvalues, their squares and cubes, of new rows outside k directions.

    The sum is the total variance less what is along the directions, times 1 + 1 / n for the mean.
    The ratios to its square and cube are those of estimates without bias from old normal rows
    (Fisher, Sun and Gallagher 2010), of n - 1 - k degrees of freedom.
    """
    k = len(variances)
    first, second, third = (float(np.sum(spectrum[k:] ** power)) for power in (1, 2, 3))
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


def limit_of_q(moments: np.ndarray, level: float) -> float:
    """What a sum of squares of independent normal variables exceeds with probability ``level``.

    Parameters
    ----------
    moments : ndarray of shape (3,)
        Sums of their variances, of the squares and of the cubes of the variances.
    level : float
        In (0, 1).

    Returns
    -------
    limit : float
        Jackson and Mudholkar (1979). Where one variance outweighs the others so far that their
        exponent h0 is not positive, Pearson's chi-square with three moments (Imhof 1961), as sums
        exceed theirs too rarely there.
    """
    first, second, third = moments
    if not first > 0:
        return 0.0
    h = 1 - 2 * first * third / (3 * second**2)
    if h <= 0:
        degrees = second**3 / third**2
        return float(first + third / second * (chi2.isf(level, degrees) - degrees))
    base = 1 - ndtri(level) * h * np.sqrt(2 * second) / first + second * h * (h - 1) / first**2
    return float(first * base ** (1 / h))


def limit_of_t2(k: int, n: float, level: float) -> float:
    """What T2 of a new row exceeds with probability ``level``, by the F distribution.

    k (n^2 - 1) / (n (n - k)) times the quantile of F with k and n - k degrees of freedom, for k
    variances that are estimated from n rows with their mean (Tracy, Young and Mason 1992).
    """
    return float(k * (n**2 - 1) / (n * (n - k)) * fdtri(k, n - k, 1 - level))
