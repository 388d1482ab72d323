"""The norm that rows are shortened to, found privately."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .._validation.checks import check_number
from ._exponential import least_privately, range_of
from ._rows import row_norms

__all__ = ["PrivacyBoundWarning", "PrivateNorm"]

# Norms for each doubling.
_FINE = 8
# What a row adds to a sum is an integer of so many binary digits, so that sums are exact.
_DIGITS = 30
# In how many parts aims are counted.
_OF = 40
# The noise on losses that is little enough, as rows over mu.
_ROWS = 400
# Doublings of R in which the weight of a longer row comes half of its way from 1 / 2 to 1.
_HALFWAY = 16


class Aim(NamedTuple):
    """What a search looks for, in fortieths: a mean weight, and the slope of losses above it.

    The slope below is what is left of 1. Norms that are far too large lose much: they drown the
    components in noise, and norms that are too small often do no harm.
    """

    mean: int
    slope: int


def aim_for_moments(n: float, mu2: float) -> Aim:
    """Aim for a second moment of n rows whose noise has a budget of mu^2; see `PrivateNorm`."""
    T = 1 - min(0.3, max(0.1, math.sqrt(n * mu2) / 800))
    return Aim(round(_OF / 2 * T), _OF // 2)


class PrivacyBoundWarning(UserWarning):
    """A search ended at a bound that was given for it, so that the bound may be wrong."""


@dataclass(frozen=True)
class PrivateNorm:
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
    the least R, which shortens every row to its direction. The search looks for T = 0.9: the
    largest norm with at most 1 / 0.9 of the noise that the shortest rows would have. A long tail
    of the norms hardly moves it, and of rows of about equal norms few are clipped. Where noise is
    little, what shortening does to the components matters more, and fewer rows are to be clipped: T
    = 1 - sqrt(n) mu / 800 between 0.7 and 0.9, rounded to 0.05, for n rows and the mu of the
    release. To tell norms apart of which every row is longer, the weight of a row is x^2 / 2 for x
    = |y| / R up to 1, and beyond that 1 / 2 + e / (2 e + 32) with e the doublings from R to |y|,
    rounded down; the mean is to be T / 2.

    **Sensitivity.** Neighbours differ by the replacement of one row, and the number n of rows is
    public. Weights are rounded down to multiples of 2^-30, and they grow with |y| for every R. So a
    replaced row moves their sums W of all R in the same direction, each by at most 1. With D = 40 W
    - 20 T n, the loss of R is 20 |D|. A replaced row changes every loss by -800 to 800: an interval
    of length 1600. The exponential mechanism on the losses over that length has range eta: the
    privacy loss lies in an interval of that length (Durfee and Rogers 2019). It costs no more than
    Gaussian noise with mu = 2 Phi^-1(1 / (1 + e^(-eta / 2))), about 0.63 eta, as two outcomes are
    the worst case, and mu^2 adds up (Dong, Roth and Su 2022). Draws are exact: integers and
    rational probabilities, as in `DiscreteGaussian`.

    The share is (400 / (n mu))^2, or ``share`` if that is less: then eta n is about 640. Of
    rows of about equal norms, one twice too large has an exponent lower by 0.17 eta n, about 100; a
    search needs some 10 for its nearly 200 norms. Of much fewer rows it may take any norm.

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

    bounds: tuple[float, float] = (1e-3, 1e4)
    share: float = 0.05

    def __post_init__(self) -> None:
        check_bounds(self.bounds)
        check_share(self.share)

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
        return cost_of_search(n, mu2, self.share, _ROWS)

    def _rows_needed(self, mu2: float) -> float:
        """Rows of which a search seldom takes a far too large norm: 5 more in its exponent."""
        return 30 / range_of(self.share * mu2)

    def found(
        self, X: Any, center: np.ndarray | None, mu2: float, rng: np.random.Generator
    ) -> tuple[float, float]:
        """The norm for some rows about a point that is public or was released.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Finite rows.
        center : ndarray of shape (d,) or None
            The point; None: the origin.
        mu2 : float
            Budget of the release, of which the search takes its share; infinite: no noise.
        rng : Generator
            Random bits.

        Returns
        -------
        row_norm : float
            One of the norms between the bounds.
        mu2 : float
            What the search has cost.
        """
        n, d = X.shape
        aim, cost = aim_for_moments(n, mu2), self.cost(n, d, mu2)
        return found_norm(row_norms(X, center), self.bounds, aim, cost, rng), cost


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
    found = []
    for norm in norms:
        above = _OF * int(weights(of_rows, norm).sum()) - (aim.mean * len(of_rows) << _DIGITS)
        found.append((aim.slope if above > 0 else aim.slope - _OF) * above)
    return found


def found_norm(
    of_rows: np.ndarray,
    bounds: tuple[float, float],
    aim: Aim,
    mu2: float,
    rng: np.random.Generator,
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


def check_bounds(bounds: Any) -> None:
    """Raise unless these are two positive numbers, the second one larger."""
    try:
        least, largest = (float(bound) for bound in bounds)
    except (TypeError, ValueError):
        least = largest = math.nan
    if not 1e-60 <= least < largest <= 1e60:
        raise ValueError(
            "bounds must be two numbers between 1e-60 and 1e60, the second one larger, got "
            f"{bounds!r}."
        )


def check_share(share: Any) -> None:
    """Raise unless this is a share of the budget that leaves some of it."""
    check_number("share", share)
    if not 0 < share <= 0.45:
        raise ValueError(f"share must be above 0 and at most 0.45, got {share!r}.")
