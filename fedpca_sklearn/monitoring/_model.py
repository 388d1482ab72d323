"""How unlike rows are: limits of distances from a spectrum, p-values, and which entries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.optimize import brentq
from scipy.special import chdtrc, chdtri, fdtrc, fdtri, log_ndtr, ndtri_exp

from .._kernels.observed import SeenModel, coordinates, patterns_of
from .._kernels.rows import coordinates_and_norms
from .._kernels.tolerances import RANK_EPS
from ..summary import Subspace


def completed_spectrum(subspace: Subspace, k: int) -> tuple[np.ndarray, int]:
    """All eigenvalues of the covariance of a summary's rows, decreasing, and how many are known.

    Those that are not kept have a known sum. Where eigenvalues after the k-th are kept, the others
    fall geometrically from the last of them; otherwise they are equal, which is the least that
    their squares can be. At most n - 1 are not zero.
    """
    known = subspace.explained_variance
    total = subspace.total_variance
    rest = max(total - float(known.sum()), 0.0)
    m = int(min(subspace.n_features, max(subspace.n_samples - 1, 1))) - len(known)
    if m < 1 or rest <= RANK_EPS * np.finfo(float).eps * total:
        return known, len(known)
    start = known[-1] if len(known) > k else 0.0
    if not 0 < rest < start * m:
        return np.concatenate([known, np.full(m, rest / m)]), len(known)
    ratio = brentq(lambda q: _geometric(start, q, m).sum() - rest, 0.0, 1.0)
    return np.concatenate([known, _geometric(start, ratio, m)]), len(known)


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
    least = chdtri(k, p) / k  # there is more of F than of chi-square
    low, high = np.log(least), np.log(least) + 1.0
    while (beyond := fdtrc(k, m, np.exp(high)) > p).any():
        high = high + beyond
    for _ in range(60):
        middle = (low + high) / 2
        above = fdtrc(k, m, np.exp(middle)) > p
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.exp(high) * max(surprise / _MOST, 1.0)


# Degrees of freedom of the rest of the rows, below which nothing is said of new ones.
_LEAST_DEGREES = 3
# Most directions of the distance of whole rows, and least rows for each.
_MOST_DIRECTIONS, _ROWS_A_DIRECTION = 64, 5
# Surprise of what is outside the subspace where nothing has been, and is no rounding.
_FAR = 1e3
# Share of the variance from which on a direction counts in that distance.
_RESOLVED = 1e-10


@dataclass(frozen=True, eq=False)
class Directions:
    """Orthonormal directions, and what new normal rows do along them and outside.

    ``basis`` is (k, d), ``variances`` (k,) are those along it, ``moments`` of the rest, see
    `moments_of_the_rest`, in units of the variance ``unit``, so that their cubes are finite, and
    ``noise`` is its variance in a direction.
    """

    basis: np.ndarray
    variances: np.ndarray
    moments: np.ndarray
    unit: float
    noise: float

    @classmethod
    def of(
        cls, basis: np.ndarray, spectrum: np.ndarray, n: float, total: float, least: float
    ) -> Directions:
        """From all eigenvalues of n rows, of which the leading ones are along the directions.

        ``least`` is the share of the largest variance below which noise is not.
        """
        (k, d), noise = basis.shape, total / basis.shape[1]
        variances, moments = spectrum[:k], np.zeros(3)
        unit = float(np.ldexp(1.0, np.frexp(total)[1] - 1)) if total > 0 else 1.0
        if n - 1 - k >= _LEAST_DEGREES:
            variances = variances_of_new_rows(spectrum / unit, k, n - 1) * unit
            moments = moments_of_the_rest(spectrum / unit, variances / unit, n, max(d - k, 1))
            noise = moments[0] / max(d - k, 1) * unit
        least *= float(variances.max(initial=noise))
        noise = max(noise, least, np.finfo(float).tiny)
        return cls(basis.astype(np.float64), variances, moments, unit, noise)

    @property
    def seen(self) -> SeenModel:
        """The marginal distributions of some entries."""
        return SeenModel.of(self.basis, self.variances, self.noise)


@dataclass(frozen=True, eq=False)
class MonitorModel:
    """A subspace, and what new normal rows do along it and outside.

    Rows are about ``mean``, and divided by ``scale`` if there is one; all else is of such rows.
    ``within`` has the components, ``whole`` these and further ones that are known, by which the
    squared distance of whole rows from the mean is measured in units of their covariance.
    ``level`` is the false alarm rate of Q and of T2 alone, ``least_q`` what rounding leaves of Q.
    """

    mean: np.ndarray
    scale: np.ndarray | None
    within: Directions
    whole: Directions
    n_samples: float
    level: float
    least_q: float
    says: bool
    weights: np.ndarray

    @classmethod
    def of(
        cls,
        components: np.ndarray,
        subspace: Subspace,
        contamination: float,
        mean: np.ndarray,
        scale: np.ndarray | None = None,
    ) -> MonitorModel:
        """The model of the leading directions of a summary.

        Parameters
        ----------
        components : ndarray of shape (k, d)
            The directions, in the order of those of the summary.
        subspace : Subspace
            Of the rows as they are scaled, with more directions than k or as many; directions that
            it does not have are without variance.
        contamination : float
            Share of new rows that exceed a limit.
        mean : ndarray of shape (d,)
            Of the rows in their own units.
        scale : ndarray of shape (d,), default=None
            What columns are divided by; None: nothing.
        """
        d, n = subspace.n_features, subspace.n_samples
        spectrum, n_known = completed_spectrum(subspace, len(components))
        eps, total = RANK_EPS * np.finfo(components.dtype).eps, float(spectrum.sum())
        values = spectrum[:n_known]
        k = min(len(components), int(np.sum(values > eps * total)))
        known = int(np.sum(values > _RESOLVED * total))
        more = max(k, min(known, _MOST_DIRECTIONS, int(n / _ROWS_A_DIRECTION)))
        within = Directions.of(components[:k], spectrum, n, total, np.finfo(float).eps)
        basis = np.concatenate([components[:k], subspace.components[k:more]])
        whole = Directions.of(basis, spectrum, n, total, _RESOLVED)
        size = eps * (mean if scale is None else mean / scale)
        with np.errstate(over="ignore"):
            weights = np.zeros((len(whole.basis), 3))
            weights[:k, 0] = 1
            weights[:k, 1] = np.minimum(1 / within.variances, np.finfo(float).max)
            weights[:, 2] = np.minimum(1 / whole.variances, np.finfo(float).max)
            least_q = max(eps * total + float(size @ size), np.finfo(float).tiny)
        level = 1 - np.sqrt(1 - contamination) if 0 < k < d else contamination
        says = n - 1 - k >= _LEAST_DEGREES
        return cls(mean, scale, within, whole, n, level, least_q, says, weights)

    def distances(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Q, T2 and the squared distance of rows, of shape (n, 3), and how many entries they have.

        NaN is a missing entry. The distance is in units of the covariance of what is there.
        """
        n, d = X.shape
        norms, basis = np.empty(n), self.whole.basis
        Z = coordinates_and_norms(X, basis, self.mean, norms, self.scale)
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isnan(norms).any():
                Y = self._centred(X)
                return self._of_seen(Y), (~np.isnan(Y)).sum(axis=1)
            Z *= Z
            sums = Z @ self.weights
            sums[:, 0] = np.maximum(norms - sums[:, 0], 0.0)
            if len(basis) < d:
                outside = norms - Z.sum(axis=1)
                sums[:, 2] += np.maximum(outside - self.least_q, 0.0) / self.whole.noise
        sums[np.isinf(norms) | np.isnan(sums).any(axis=1)] = np.inf
        return sums, np.full(n, d)

    def _of_seen(self, Y: np.ndarray) -> np.ndarray:
        """The same for the entries of centred rows that are there.

        Their marginal distribution has a part along the basis and one outside, as that of whole
        rows: the residual of least squares, with as many dimensions as there are entries more than
        directions, and the coordinates of least squares, in units of their own covariance.
        """
        basis, k = self.within.basis, len(self.within.basis)
        seen, result = ~np.isnan(Y), np.empty((len(Y), 3))
        within, whole = self.within.seen, self.whole.seen
        for group in patterns_of(seen, len(self.whole.basis)):
            there, y = seen[group.rows], Y[group.rows]
            fitted = coordinates(y, basis)[0] @ basis
            y = np.where(there, y, 0.0)
            rest = np.where(there, y - fitted, 0.0)
            result[group.rows, 0] = np.einsum("ij,ij->i", rest, rest)
            for model, rows, column in ((within, fitted, 1), (whole, y, 2)):
                inverses = model.factors(group.seen)[0][group.of_row]
                c = model.posterior(y, there, inverses)
                gap = np.where(there, rows - c @ model.W, 0.0)
                squares = np.einsum("ij,ij->i", gap, gap) / model.noise
                result[group.rows, column] = squares + np.einsum("ij,ij->i", c, c)
        result[np.isnan(result)] = np.inf
        result[seen.sum(axis=1) <= k, 0] = 0.0  # what is fitted exactly leaves rounding errors
        return result

    @np.errstate(over="ignore")  # of rows that are infinitely unlike constant ones
    def surprises(self, distances: np.ndarray, size: np.ndarray) -> np.ndarray:
        """Minus the logarithms of the p-values of distances of new normal rows, shape (n, 3)."""
        result = np.zeros(distances.shape)
        if not self.says:
            return result
        d, k = len(self.mean), len(self.within.basis)
        if size.min(initial=d) == d:
            power = self._power_of_whole_rows
        else:
            at, back = np.unique(size, return_inverse=True)
            power, k = normal_power(self._moments(at)[back]), np.minimum(size, k)
        result[:, ::2] = surprise_of_q(distances[:, ::2] / (self.within.unit, 1.0), power)
        result[:, 1] = surprise_of_t2(distances[:, 1], k, self.n_samples)
        over = distances[:, 0] > self.least_q
        result[~over, 0] = 0.0
        if not self.within.moments[0] > 0:  # whatever is outside is unlike
            far = _FAR * distances[over, 0] / self.least_q
            result[over, 0] = far if len(self.within.basis) < d else 0.0
        return result

    @cached_property
    def _power_of_whole_rows(self) -> tuple[np.ndarray, ...]:
        return normal_power(self._moments(np.array([len(self.mean)]))[0])

    def limits(self, surprises: np.ndarray, size: np.ndarray) -> np.ndarray:
        """The distances of given surprises (3,), for rows with so many entries, (n, 3)."""
        result = np.full((len(size), 3), np.inf)
        if self.says:
            at, back = np.unique(size, return_inverse=True)
            of_q, of_whole = np.moveaxis(self._moments(at), 1, 0)
            q = limit_of_q(of_q, surprises[0]) * self.within.unit
            if not self.within.moments[0] > 0:
                q = np.full(len(at), surprises[0] / _FAR * self.least_q)
            k = len(self.within.basis)
            if k < len(self.mean):
                result[:, 0] = np.maximum(q, self.least_q)[back]
            result[:, 1] = limit_of_t2(np.minimum(at, k), self.n_samples, surprises[1])[back]
            result[:, 2] = limit_of_q(of_whole, surprises[2])[back]
        return result

    def _moments(self, size: np.ndarray) -> np.ndarray:
        """Moments of Q and of the squared distance of rows with so many entries, (n, 2, 3).

        Entries outside the directions take an equal share of their moments each. Distances by
        variances of few rows are larger.
        """
        n, d, power = self.n_samples, len(self.mean), np.arange(1, 4)
        k, more = len(self.within.basis), len(self.whole.basis)
        of_q = np.maximum(size - k, 0)[:, None] / max(d - k, 1) * self.within.moments
        rest = np.maximum(size - more, 0)[:, None] / max(d - more, 1) * self.whole.moments
        factor = (n**2 - 1) / (n * max(n - more - 2, 1.0))
        units = min(self.whole.unit / self.whole.noise, 1e90)  # or nothing is there
        explained = np.minimum(size, more)[:, None] * factor**power
        return np.stack([of_q, explained + rest * units**power], axis=1)

    def _centred(self, X: Any) -> np.ndarray:
        """Dense rows about the mean, and scaled."""
        Y = (X.toarray() if sp.issparse(X) else X) - self.mean
        return Y if self.scale is None else Y / self.scale

    def deviations(self, X: Any) -> np.ndarray:
        """By how much each entry is off what the others of its row predict, of shape (n, d)."""
        Y = self._centred(X)
        seen, result = ~np.isnan(Y), np.full(Y.shape, np.nan)
        model = self.within.seen
        for group in patterns_of(seen, len(self.within.basis)):
            there = seen[group.rows]
            y = np.where(there, Y[group.rows], 0.0)
            inverses, _ = model.factors(group.seen)
            c = model.posterior(y, there, inverses[group.of_row])
            # diagonal of the precision matrix by the Woodbury identity, times noise
            taken = np.square(inverses @ model.W).sum(axis=1) / model.noise
            diagonal = np.maximum(1 - taken, np.finfo(float).eps)[group.of_row]
            with np.errstate(over="ignore", invalid="ignore"):
                z = (y - c @ model.W) / np.sqrt(model.noise * diagonal)
            result[group.rows] = np.where(there, z, np.nan)
        return result
