"""What a mechanism finds privately before a release: the norm and the centre of rows."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.special

from .._validation.checks import check_number
from ._gaussian import _Bits
from ._rows import ClippedRows, row_norms

# ---------------------------------------- the exponential mechanism, drawn exactly

# Binary digits of the parameter of the mechanism behind the point, and what rounding takes off it.
_DIGITS_OF_ETA = 40
_LESS = 1 - 1e-12


def range_of(mu2: float) -> float:
    """Largest eta so that the exponential mechanism of range eta costs at most mu^2.

    Its privacy loss for two neighbours lies in an interval of length eta, [t - eta, t] (Durfee and
    Rogers 2019). So the trade-off function is convex with slopes from -e^t to -e^(t - eta), and at
    least that of two outcomes with these losses, p and q = the probabilities of the first, where
    logit p - logit q = eta. A broken line from (0, 1) to (1, 0) with one corner is above the convex
    curve of Gaussians of mu if its corner is: Phi^-1(p) - Phi^-1(q) <= mu. The difference is
    largest where p = 1 - q, as the slope of Phi^-1 over that of logit, p (1 - p) / phi(Phi^-1(p)),
    has its maximum at 1/2 and falls to both sides. So mu = 2 Phi^-1(p) with p = 1 / (1 + e^(-eta /
    2)) is enough, and mu^2 adds up with that of Gaussian releases (Dong, Roth and Su 2022).

    Examples
    --------
    >>> round(range_of(0.01), 6)  # mu = 0.1
    0.159595
    """
    x = math.sqrt(mu2) / 2
    return 2 * float(scipy.special.log_ndtr(x) - scipy.special.log_ndtr(-x)) * _LESS


def least_privately(losses: list[int], span: int, mu2: float, rng: np.random.Generator) -> int:
    """Position of a small loss, drawn with probability proportional to exp(-eta loss / span).

    ``span`` bounds the range of changes: for any two neighbours there is an interval of that length
    in which the changes of all losses lie. Losses are integers, eta a binary fraction, and draws
    are exact: a position at random is kept with probability exp(-eta (loss - least) / span), of
    which at least one is 1, and otherwise drawn again, some hundred times for as many losses.
    """
    least = min(losses)
    eta = range_of(mu2)
    if math.isinf(eta):
        return losses.index(least)
    numerator, denominator = math.floor(eta * 2.0**_DIGITS_OF_ETA), span << _DIGITS_OF_ETA
    bits = _Bits(rng)
    while True:
        position = bits.below(len(losses))
        if bits.exp((losses[position] - least) * numerator, denominator):
            return position


# ---------------------------------------- the norm

# Norms for each doubling.
_FINE = 8
# What a row adds to a sum is an integer of so many binary digits, so that sums are exact.
_DIGITS = 30
# Lengths for each doubling to which those of rows are rounded, times two.
_LENGTHS = 512
# In how many parts aims are counted.
_OF = 400
# n mu / sqrt(d) from which on T falls, the power by which it does, and the least T.
_MANY, _FALL, _LEAST_LEFT = 1000.0, 0.6, 0.02
# The noise on losses that is little enough, as rows over mu.
_ROWS = 320
# Doublings of R in which the weight of a longer row comes half of its way from 1 / 2 to 1.
_HALFWAY = 16


class Aim(NamedTuple):
    """What a search looks for, in parts of `_OF`: a mean weight, and the slope of losses above it.

    The slope below is what is left of 1. Norms that are far too large lose much: they drown the
    components in noise, and norms that are too small often do no harm.
    """

    mean: int
    slope: int


def signal_left(n: float, d: int, mu2: float, once: bool = True) -> float:
    """T of `PrivateNorm` for n rows of d columns, whose second moment is released for mu^2."""
    above_noise = n * math.sqrt(mu2 / d)
    T = 0.95 - 0.05 * math.log2(min(max(above_noise, 50.0), 200.0) / 25)
    return max(T * max(above_noise / _MANY, 1.0) ** -_FALL, _LEAST_LEFT) if once else T


def aim_for_moments(n: float, d: int, mu2: float, once: bool = True) -> Aim:
    """Aim for a second moment of n rows whose noise has a budget of mu^2; see `PrivateNorm`."""
    return Aim(round(_OF / 2 * signal_left(n, d, mu2, once)), _OF // 2)


class PrivacyBoundWarning(UserWarning):
    """A search ended at a bound that was given for it, so that the bound may be wrong."""


def bounds_of(bounds: Any) -> tuple[float, float]:
    """Least and largest length of a search, or an error."""
    try:
        least, largest = (float(bound) for bound in bounds)
    except (TypeError, ValueError):
        least = largest = math.nan
    if not 1e-60 <= least < largest <= 1e60:
        raise ValueError(
            "bounds must be two numbers between 1e-60 and 1e60, the second one larger, got "
            f"{bounds!r}."
        )
    return least, largest


@dataclass(frozen=True)
class _Search:
    """What is looked for between lengths of rows, for a share of the budget."""

    bounds: tuple[float, float] = (1e-3, 1e4)
    share: float = 0.05

    def __post_init__(self) -> None:
        bounds_of(self.bounds)
        check_number("share", self.share)
        if not 0 < self.share <= 0.45:
            raise ValueError(f"share must be above 0 and at most 0.45, got {self.share!r}.")


@dataclass(frozen=True)
class PrivateNorm(_Search):
    """A norm for clipping that is found privately: ``row_norm=`` of a mechanism.

    Nobody has to know how long the rows are. A share of the budget finds the norm by the
    exponential mechanism, a release of its own in the account and in a ledger.

    Parameters
    ----------
    bounds : tuple of float, default=(1e-3, 1e4)
        Between which norms the search looks, eight for each doubling. Public: to be chosen without
        a look at the rows, in their unit. A `PrivacyBoundWarning` tells if what was found is in the
        first or last doubling; it follows from the released norm and costs nothing.
    share : float, default=0.05
        Largest share of the budget (of mu^2) of each release for the search. What it does not need,
        as of many rows, is spent on the release.

    Notes
    -----
    Noise grows with R^2, and so does what a clipped row adds to the second moment. Over the noise a
    row y adds min(1, |y|^2 / R^2), and the mean T of that over all rows is the signal over that of
    the least R, which shortens every row to its direction. The search looks for T = 0.8: the
    largest norm with at most 1 / 0.8 of the noise that the shortest rows would have. A long tail
    of the norms hardly moves it, and of rows of about equal norms few are clipped, as shortening
    all of them may turn the components. With s = n mu / sqrt(d), for n rows, d columns and the mu
    of the release: where noise is much it matters more, and T rises to 0.9 where s falls from 200
    to 50. Of many rows what clipping turns matters more, which no number of rows makes smaller.
    `AnalyzeGauss` compares the norm with longer ones before its second release, and takes one of
    these where rows longer than the norm know other directions. Elsewhere T is 0.8 (1000 / s)^0.6
    for s beyond 1000, and at least 0.02. To tell norms apart of which every
    row is longer, the weight of a row is x^2 / 2 for x = |y| / R up to 1, and beyond that 1 / 2 + e
    / (2 e + 32) with e the doublings from R to |y|, rounded down; the mean is to be T / 2.

    **Sensitivity.** Neighbours differ by the replacement of one row, and the number n of rows is
    public. Norms are rounded down to one of 256 in a doubling, and weights to multiples of 2^-30;
    they grow with |y| for every R. So a replaced row moves their sums W of all R in the same
    direction, each by at most 1, and the loss of R, |W - T n / 2|, by -1 to 1: an interval of
    length 2. The exponential mechanism on the losses over that length has range eta: the privacy
    loss lies in an interval of that length (Durfee and Rogers 2019). It costs no more than Gaussian
    noise with mu = 2 Phi^-1(1 / (1 + e^(-eta / 2))), about 0.63 eta, as two outcomes are the worst
    case, and mu^2 adds up (Dong, Roth and Su 2022). Draws are exact: integers and rational
    probabilities, as in `DiscreteGaussian`.

    The share is (320 / (T n mu))^2, or ``share`` if that is less: then eta T n is about 510. Of
    rows of about equal norms, one twice too large has an exponent lower by 0.2 eta T n, about 100;
    a search needs some 10 for its nearly 200 norms. Of much fewer rows it may take any norm.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import AnalyzeGauss, FederatedPCA
    >>> X, y = load_digits(return_X_y=True)
    >>> private = AnalyzeGauss(4.0, 1e-5, row_norm="private", center="private")
    >>> pca = FederatedPCA(3, mechanism=private, n_clients=1, random_state=0).fit(X)
    >>> print("epsilon = {:.3f}, delta = {:g}".format(*pca.privacy_spent_))
    epsilon = 4.000, delta = 1e-05
    """

    def cost(self, n: float, d: int, mu2: float) -> float:
        """What the search costs.

        Parameters
        ----------
        n : float
            Number of rows.
        d : int
            Number of columns.
        mu2 : float
            Budget of the release, as mu^2.

        Returns
        -------
        mu2 : float
            At most ``share`` of the budget.
        """
        return cost_of_search(n, mu2, self.share, _ROWS / signal_left(n, d, mu2))

    def _rows_needed(self, mu2: float) -> float:
        """Rows of which a search seldom takes a far too large norm: 5 more in its exponent."""
        return 30 / range_of(self.share * mu2)

    def found(
        self, norms: np.ndarray, d: int, mu2: float, rng: np.random.Generator, once: bool = True
    ) -> tuple[float, float]:
        """The norm for some rows.

        Parameters
        ----------
        norms : ndarray of shape (n,)
            Norms of the rows about a point that is public or was released.
        d : int
            Number of columns.
        mu2 : float
            Budget of the release, of which the search takes its share; infinite: no noise.
        rng : Generator
            Random bits.
        once : bool, default=True
            Whether no longer norm is tried afterwards.

        Returns
        -------
        row_norm : float
            One of the norms between the bounds.
        mu2 : float
            What the search has cost.
        """
        n = len(norms)
        aim, cost = aim_for_moments(n, d, mu2, once), self.cost(n, d, mu2)
        return found_norm(norms, self.bounds, aim, cost, rng), cost


# Length of the interval in which losses change by a replaced row.
SPAN = _OF * _OF << _DIGITS


def norms_between(bounds: tuple[float, float]) -> np.ndarray:
    """Norms that a search chooses from: eight for each doubling, of six digits."""
    least, largest = bounds
    size = 1 + math.ceil(_FINE * math.log2(largest / least))
    return np.array([float(f"{norm:.6g}") for norm in np.geomspace(least, largest, size)])


def weights(of_rows: np.ndarray, norm: float) -> np.ndarray:
    """What rows add to the sum of a norm, times 2^30: integers that grow with the rows."""
    x, half = of_rows / norm, 2.0 ** (_DIGITS - 1)
    doublings = np.frexp(np.maximum(x, 1.0))[1] - 1.0
    beyond = half + half * doublings / (doublings + _HALFWAY)
    return np.floor(np.where(x > 1, beyond, half * np.minimum(x, 1.0) ** 2)).astype(np.int64)


def losses(of_rows: np.ndarray, norms: np.ndarray, aim: Aim) -> list[int]:
    """How far each norm is from the one looked for, as an integer; see `PrivateNorm`."""
    digits, exponents = np.frexp(of_rows)  # rounded down, so that few lengths stand for all rows
    lengths, counts = np.unique(
        np.ldexp(np.floor(digits * _LENGTHS), exponents) / _LENGTHS, return_counts=True
    )
    found = []
    for norm in norms:
        total = int(weights(lengths, norm) @ counts)
        above = _OF * total - (aim.mean * len(of_rows) << _DIGITS)
        found.append((aim.slope if above > 0 else aim.slope - _OF) * above)
    return found


def found_norm(
    of_rows: np.ndarray, bounds: tuple[float, float], aim: Aim, mu2: float, rng: np.random.Generator
) -> float:
    """A norm so that the mean weight of the rows is near an aim, found privately."""
    norms = norms_between(bounds)
    chosen = least_privately(losses(of_rows, norms, aim), SPAN, mu2, rng)
    near = min(_FINE, len(norms) // 4)
    if not near <= chosen < len(norms) - near:
        end, others = ("lower", "shorter") if chosen < near else ("upper", "longer")
        warnings.warn(
            f"A private search for a norm took {norms[chosen]:.3g}, near the {end} of its bounds "
            f"{bounds[0]:g} and {bounds[1]:g}; give others if rows may be {others}, or more rows.",
            PrivacyBoundWarning,
            stacklevel=2,
        )
    return float(norms[chosen])


def cost_of_search(n: float, mu2: float, share: float, rows: float) -> float:
    """mu^2 of a search: (rows / n)^2, at most a share of a budget."""
    return min(share * mu2, (rows / n) ** 2) if math.isfinite(mu2) else math.inf


# ---------------------------------------- the centre

N_ROUNDS = 8
# What the norms of the rounds are for.
OF_ROUND = Aim(80, 100)
# Largest share of a round for the search of its norm, and the noise that is little enough.
_NORM, _ROWS_OF_ROUND = 0.4, 200
# A step is the last one if it is shorter than this share of the norm, and than this many times the
# noise.
_LITTLE, _LIKE_NOISE = 0.15, 1.5
# Steps are taken if they are this many times sqrt(d) above d, in squares of the noise.
_ABOVE = 4


@dataclass(frozen=True)
class PrivateCenter(_Search):
    """A centre for clipping that is found privately: ``center=`` of a mechanism.

    Rows whose mean is far from the origin are long, and need much noise about the origin. A share
    of the budget finds a point near their mean, a release of its own in the account and a ledger.

    Parameters
    ----------
    bounds : tuple of float, default=(1e-3, 1e4)
        Between which lengths of rows the search looks, about the origin and about the points that
        it finds; see `PrivateNorm`. Public.
    share : float, default=0.4
        Largest share of the budget (of mu^2) of each release for the search, in eight rounds of
        0.05. What it does not need, as of many rows or of a mean near the origin, is spent on the
        release.

    Notes
    -----
    Up to eight rounds. A round finds a norm R for the rows about the point so far, first the
    origin, as `PrivateNorm` does but for T = 0.4, so that few rows are clipped. Then it moves the
    point by the mean of the rows, clipped to R about that point, with Gaussian noise. A replaced
    row moves the sum of clipped rows by at most 2 R, so that noise of standard deviation 2 R / mu
    on each feature costs mu^2. R and the point were released before, and adaptive composition adds
    mu^2 up. The noise of the mean has a standard deviation of 2 R / (n mu), and a mean of squared
    norm a^2 tells of a move only if a^2 is beyond (d + 4 sqrt(d)) times the square of that. Then it
    is shortened by the factor of James and Stein, 1 - d (2 R / (n mu))^2 / a^2; otherwise the point
    stays, and the rounds end. They also end with a step below 0.15 R that is not much longer than
    the noise, of which another round would have as much. So about a good point nothing is lost to
    noise, and from a far one each round comes nearer. Shortening is post-processing. What rounds
    that are left out would have cost is spent on the release: whatever was released before, all
    costs add up to its budget.

    Of the budget b of the release, as mu^2, a round takes (200 / n)^2 for its norm and b^(2/3)
    (d / n^2)^(1/3) for its mean, but at most 0.4 and 0.6 of an eighth of ``share``. With s = n mu /
    sqrt(d) as in `PrivateNorm`, from s = 50 on that comes near a mean that is a thousand times as
    far away as rows are from it.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import AnalyzeGauss, FederatedPCA, make_spiked, subspace_distance
    >>> X, V = make_spiked(20_000, 30, spikes=[9.0, 4.0], random_state=0)
    >>> private = AnalyzeGauss(1.0, 1e-5, row_norm="private", center="private")
    >>> pca = FederatedPCA(2, mechanism=private, n_clients=1, random_state=0).fit(X + 100)
    >>> subspace_distance(pca.components_, V) < 0.1
    True
    """

    share: float = 0.4

    def cost(self, n: float, d: int, mu2: float) -> float:
        """What the search costs at most, with all its rounds.

        Parameters
        ----------
        n : float
            Number of rows.
        d : int
            Number of columns.
        mu2 : float
            Budget of the release, as mu^2.

        Returns
        -------
        mu2 : float
            At most ``share`` of the budget.
        """
        return N_ROUNDS * (self._cost_of_norm(n, mu2) + self._cost_of_mean(n, d, mu2))

    def _cost_of_norm(self, n: float, mu2: float) -> float:
        return cost_of_search(n, mu2, _NORM * self.share / N_ROUNDS, _ROWS_OF_ROUND)

    def _rows_needed(self, mu2: float) -> float:
        """Rows of which the norm of a round is seldom far too large: 5 more in its exponent."""
        return 45 / range_of(_NORM * self.share / N_ROUNDS * mu2)

    def _cost_of_mean(self, n: float, d: int, mu2: float) -> float:
        enough = (d * mu2**2 / n**2) ** (1 / 3) if math.isfinite(mu2) else math.inf
        return min((1 - _NORM) * self.share / N_ROUNDS * mu2, enough)

    def found(
        self, X: Any, mechanism: Any, mu2: float, rng: np.random.Generator
    ) -> tuple[np.ndarray, float]:
        """A point near the mean of some rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Finite rows.
        mechanism : Mechanism
            Draws the noise on sums of rows.
        mu2 : float
            Budget of the release, of which the search takes its share; infinite: no noise.
        rng : Generator
            Random bits.

        Returns
        -------
        center : ndarray of shape (d,)
            The point.
        mu2 : float
            What the search has cost.
        """
        n, d = X.shape
        of_norm, of_mean = self._cost_of_norm(n, mu2), self._cost_of_mean(n, d, mu2)
        point, spent = np.zeros(d), 0.0
        for _ in range(N_ROUNDS):
            spent += of_norm + of_mean
            R = found_norm(row_norms(X, point), self.bounds, OF_ROUND, of_norm, rng)
            std = mechanism._sum_std(of_mean, d) * R
            total = mechanism._noisy(ClippedRows.of(X, point, R).sum(), std, rng)
            step = _step(total / n, std / n, R)
            point = point + step
            noise = math.sqrt(d) * std / n
            if float(np.linalg.norm(step)) <= min(_LITTLE * R, _LIKE_NOISE * noise):
                break
        return point, spent


def _step(mean: np.ndarray, std: float, R: float) -> np.ndarray:
    """A noisy mean of rows of norm R, shortened by what is noise; nothing if that may be all."""
    d, a = len(mean), float(np.linalg.norm(mean))
    if a**2 <= (d + _ABOVE * math.sqrt(d)) * std**2:
        return np.zeros(d)
    return mean * min(1 - d * std**2 / a**2, R / a)
