"""The Gaussian mechanism, exactly: Balle and Wang (2018), in terms of mu = sensitivity / sigma.

Releases compose by adding mu^2, also where a later one depends on the results of earlier ones, so T
releases with sigma protect as one with sigma / sqrt(T) does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from itertools import chain

import numpy as np
import scipy.optimize
import scipy.special

from .._validation.checks import check_integer

# Relative accuracy of the roots.
_RTOL = 1e-14


def log_delta(epsilon: float, mu: float) -> float:
    """Logarithm of the least delta at an epsilon.

    Theorem 8 of Balle and Wang: Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu).
    """
    first = scipy.special.log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + scipy.special.log_ndtr(-mu / 2 - epsilon / mu)
    share = -np.expm1(min(second - first, 0.0))
    return float(first + np.log(share)) if share > 0 else -math.inf


@lru_cache(maxsize=1024)
def mu_of(epsilon: float, delta: float) -> float:
    """Largest mu that is (epsilon, delta)-private; infinite for an infinite epsilon.

    Examples
    --------
    >>> round(1 / mu_of(1.0, 1e-5), 5)  # the least sigma for a sensitivity of 1
    3.73063
    >>> round(10**0.5 / mu_of(1.0, 1e-5), 5)  # in each of ten releases
    11.79729
    """
    if math.isinf(epsilon):
        return math.inf
    target = math.log(delta)
    low = high = 1.0
    while log_delta(epsilon, low) > target:
        low /= 2
    while log_delta(epsilon, high) < target:
        high *= 2
    return _root(partial(log_delta, epsilon), target, low, high)


@lru_cache(maxsize=1024)
def epsilon_of(mu: float, delta: float) -> float:
    """Least epsilon at a delta.

    Examples
    --------
    >>> round(epsilon_of(1 / 3.730632, 1e-5), 6)
    1.0
    """
    if math.isinf(mu):
        return math.inf
    target = math.log(delta)
    if mu == 0 or log_delta(0.0, mu) <= target:
        return 0.0
    high = 1.0
    while log_delta(high, mu) > target:
        high *= 2
    return _root(partial(log_delta, mu=mu), target, 0.0, high)


def _root(log: Callable[[float], float], target: float, low: float, high: float) -> float:
    """Where a logarithm, which may be -infinity elsewhere, has a value."""
    return scipy.optimize.brentq(
        lambda x: max(log(x), -1e300) - target, low, high, xtol=1e-300, rtol=_RTOL
    )


# r^2 of the proof below, in squared steps of the grid. It holds for variances of 8 r^2 or more, far
# below the least one of a grid.
_SLACK = 16
# Integers of at most so many steps are exact in float64, with room for the noise.
_EXACT = 2.0**52
# Words of random bits that are drawn at a time.
_WORDS = 1024


@dataclass(frozen=True)
class DiscreteGaussian:
    """Noise whose sum over clients survives integers: ``noise=`` of a mechanism.

    A message is rounded to a grid, a power of two far below the noise, and gets integer multiples
    of the grid as noise. Sums of such messages are exact, in floating point and in the integers of
    secure aggregation, where a masked number cannot carry normal noise. Nothing that was released
    depends on the gaps between floating-point numbers (Mironov, 2012).

    Parameters
    ----------
    bits : int, default=20
        The grid is the largest power of two up to 2^-bits of the standard deviation, from 10 to 30.

    Notes
    -----
    Samples are exact: Algorithms 1 to 3 of Canonne, Kamath and Steinke [1]_ by rational arithmetic,
    P(z) proportional to exp(-z^2 / (2 sigma^2)) for every integer z, sigma^2 an integer. Each takes
    some microseconds, so that a second moment of 1,000 features takes seconds.

    The cost is stated as that of Gaussian noise of slightly smaller variance. In steps of the grid,
    let G be normal of variance s^2 = sigma^2 - r^2, x an integer, and Y a random rounding of x + G:
    P(Y = y | c) = exp(-(y - c)^2 / (2 r^2)) / rho(c) at c = x + G. By Poisson's summation rho(c) is
    r sqrt(2 pi) (1 + 2 sum_k exp(-2 pi^2 r^2 k^2) cos(2 pi k c)), the same for all c to the factor
    1 +- t, t < 3 exp(-2 pi^2 r^2). So Y - x has the discrete Gaussian distribution of variance s^2
    + r^2 = sigma^2 to the factor exp(+-3 t), and is no easier to see through than x + G, of which
    it is post-processing. Also by Poisson's summation the sum of K samples is the discrete Gaussian
    of variance K sigma^2, to K such factors with r^2 <= sigma^2 / 2: tau of Kairouz, Liu and
    Steinke [2]_. With r^2 = 16 all factors of a message of 10^12 numbers together are
    exp(+-10^-120). Noise off the diagonal of a symmetric matrix has half of the variance, so that
    2 r^2 is taken off.

    Rounding moves a message of m numbers by at most sqrt(m) / 2 steps, and two neighbours by
    sqrt(m) more apart than they were. With sensitivity S, noise of size sigma in all and a grid g

        mu = (S + g sqrt(m)) / sqrt(sigma^2 - 2 r^2 g^2),

    which the size of the noise makes up for: at 20 bits by 0.1 % for 1,000 features, one client and
    mu = 1.

    References
    ----------
    .. [1] C. Canonne, G. Kamath, T. Steinke, "The discrete Gaussian for differential privacy",
       NeurIPS 2020.
    .. [2] P. Kairouz, Z. Liu, T. Steinke, "The distributed discrete Gaussian mechanism for
       federated learning with secure aggregation", ICML 2021.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import AnalyzeGauss, FederatedPCA
    >>> from fedpca_sklearn.privacy import DiscreteGaussian
    >>> X, y = load_digits(return_X_y=True)
    >>> private = AnalyzeGauss(
    ...     4.0, 1e-5, row_norm=50, center=[5.0] * 64, trust="sum", noise=DiscreteGaussian()
    ... )
    >>> pca = FederatedPCA(3, mechanism=private, random_state=0).fit(X)
    >>> print("epsilon = {:.3f}, delta = {:g}".format(*pca.privacy_spent_))
    epsilon = 4.000, delta = 1e-05
    """

    bits: int = 20

    def __post_init__(self) -> None:
        check_integer("bits", self.bits, 10, 30)

    def grid(self, std: float) -> float:
        """Distance of neighbouring values of a message.

        Parameters
        ----------
        std : float
            Standard deviation of the noise of one client.

        Returns
        -------
        grid : float
            A power of two.

        Examples
        --------
        >>> from fedpca_sklearn.privacy import DiscreteGaussian
        >>> DiscreteGaussian(bits=10).grid(5.0)
        0.00390625
        """
        return 2.0 ** (math.frexp(std)[1] - 1 - self.bits)

    def cost(self, sensitivity: float, std: float, n_entries: int, n_shares: int = 1) -> float:
        """Privacy cost of a message, as mu^2; see `gaussian_cost`.

        Parameters
        ----------
        sensitivity : float
            By how much a replaced row moves the message before it is rounded, at most, in the
            Euclidean norm; of a symmetric matrix in the Frobenius norm.
        std : float
            Standard deviation of the noise, in all; on the diagonal of a symmetric matrix.
        n_entries : int
            Numbers in the message.
        n_shares : int, default=1
            Clients whose noise adds up.

        Returns
        -------
        mu2 : float
            Infinite without noise.

        Examples
        --------
        >>> from fedpca_sklearn.privacy import DiscreteGaussian, gaussian_cost
        >>> round(DiscreteGaussian().cost(2.0, 8.0, 100), 6), gaussian_cost(2.0, 8.0)
        (0.062505, 0.0625)
        """
        if not std:
            return math.inf
        largest_grid = std / math.sqrt(n_shares) * 2.0**-self.bits
        moved = sensitivity + largest_grid * math.sqrt(n_entries)
        return moved**2 / (std**2 - 2 * _SLACK * largest_grid**2)

    def gaussian_part(self, mu2: float, n_entries: int) -> float:
        """Cost that normal noise may have, so that noise of its size on the grid costs ``mu2``.

        Parameters
        ----------
        mu2 : float
            What a message may cost, as mu^2.
        n_entries : int
            Numbers in it.

        Returns
        -------
        mu2 : float
            Slightly less.
        """
        if math.isinf(mu2):
            return mu2
        c = 2.0**-self.bits
        left = math.sqrt(mu2 * (1 - 2 * _SLACK * c**2)) - c * math.sqrt(n_entries)
        if left <= 0:
            raise ValueError(
                f"DiscreteGaussian(bits={self.bits}) is too coarse for {n_entries} numbers at this "
                "budget; take more bits."
            )
        return left**2

    def noisy(self, values: np.ndarray, std: float, rng: np.random.Generator) -> np.ndarray:
        """Values on the grid with independent noise.

        Parameters
        ----------
        values : ndarray
            Numbers of one client.
        std : float
            Standard deviation of its noise; 0 changes nothing.
        rng : Generator
            Random bits.

        Returns
        -------
        noisy : ndarray
            Multiples of ``grid(std)``.
        """
        if not std:
            return values
        steps = self._steps(values, std)
        steps += np.reshape(list(_samples(self._variance(std), steps.size, rng)), steps.shape)
        return self.grid(std) * steps

    def noisy_symmetric(
        self, values: np.ndarray, std: float, rng: np.random.Generator
    ) -> np.ndarray:
        """A symmetric matrix on the grid, with half of the variance off the diagonal.

        Parameters
        ----------
        values : ndarray of shape (m, m)
            Symmetric matrix of one client.
        std : float
            Standard deviation of its noise on the diagonal; 0 changes nothing.
        rng : Generator
            Random bits.

        Returns
        -------
        noisy : ndarray of shape (m, m)
            Symmetric; multiples of ``grid(std)``.
        """
        if not std:
            return values
        m, variance = len(values), self._variance(std)
        steps = np.triu(self._steps(values, std))
        steps[np.diag_indices(m)] += list(_samples(variance, m, rng))
        above = np.triu_indices(m, 1)
        steps[above] += list(_samples(-(-variance // 2), len(above[0]), rng))
        return self.grid(std) * (steps + np.triu(steps, 1).T)

    def _steps(self, values: np.ndarray, std: float) -> np.ndarray:
        steps = np.rint(values / self.grid(std))
        if not np.abs(steps).max(initial=0.0) < _EXACT:
            raise ValueError(
                f"DiscreteGaussian(bits={self.bits}) needs values below {_EXACT:.1e} steps of its "
                "grid; take fewer bits."
            )
        return steps

    def _variance(self, std: float) -> int:
        """Variance of a sample, in squared steps: at least that of the noise asked for."""
        return math.ceil(Fraction(std / self.grid(std)) ** 2)


# -------------------------------------------------------------------- samples


def _samples(variance: int, size: int, rng: np.random.Generator) -> Iterator[int]:
    """Independent integers z with P(z) proportional to exp(-z^2 / (2 variance)), exactly."""
    bits = _Bits(rng)
    t = math.isqrt(variance) + 1
    denominator = 2 * variance * t**2
    for _ in range(size):
        while True:
            z = bits.laplace(t)
            if bits.exp((abs(z) * t - variance) ** 2, denominator):
                break
        yield z


class _Bits:
    """Random decisions of exact probability, from the bits of a generator."""

    def __init__(self, rng: np.random.Generator):
        drawn = iter(lambda: rng.integers(2**64, size=_WORDS, dtype=np.uint64).tolist(), None)
        self._words: Iterator[int] = chain.from_iterable(drawn)

    def below(self, n: int) -> int:
        """An integer from 0 to n - 1."""
        size = (n - 1).bit_length()
        while True:
            word, left = 0, size
            while left > 0:
                word, left = word << 64 | next(self._words), left - 64
            word >>= -left
            if word < n:
                return word

    def exp(self, numerator: int, denominator: int) -> bool:
        """True with probability exp(-numerator / denominator): Algorithm 1."""
        whole, rest = divmod(numerator, denominator)
        return all(self._exp(1, 1) for _ in range(whole)) and self._exp(rest, denominator)

    def _exp(self, numerator: int, denominator: int) -> bool:
        k = 1
        while self.below(denominator * k) < numerator:
            k += 1
        return k % 2 == 1

    def laplace(self, t: int) -> int:
        """An integer z with P(z) proportional to exp(-|z| / t): Algorithm 2."""
        while True:
            u = self.below(t)
            if not self._exp(u, t):
                continue
            v = 0
            while self._exp(1, 1):
                v += 1
            z, negative = u + t * v, self.below(2)
            if z or not negative:  # zero once
                return -z if negative else z
