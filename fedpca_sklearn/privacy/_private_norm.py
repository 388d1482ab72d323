"""The norm that rows are shortened to, found privately."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .._validation.checks import check_number
from ._exponential import least_privately
from ._rows import row_norms

__all__ = ["PrivacyBoundWarning", "PrivateNorm"]

# Norms for each doubling.
_FINE = 8
# What a row adds to a sum is an integer of so many binary digits, so that sums are exact.
_DIGITS = 30
# In how many parts aims are counted.
_OF = 40
# Doublings of R in which the weight of a longer row comes half of its way from 1 / 2 to 1.
_HALFWAY = 16


class Aim(NamedTuple):
    """What a search looks for, in fortieths: a mean weight, and the slope of losses above it.

    The slope below is what is left of 1. With equal losses far above and far below, few rows are
    enough for a search.
    """

    mean: int
    slope: int


FOR_MOMENTS = Aim(17, 30)


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
    share : float, default=0.04
        Share of the budget (of mu^2) of each release that the search costs.

    Notes
    -----
    Noise grows with R^2, and so does what a clipped row adds to the second moment. Over the noise a
    row y adds min(1, |y|^2 / R^2), and the mean T of that over all rows is the signal over that of
    the least R, which shortens every row to its direction. The search looks for T = 0.85: the
    largest norm with at most 1 / 0.85 of the noise that the shortest rows would have. A long tail
    of the norms hardly moves it, and of rows of about equal norms few are clipped. To tell norms
    apart of which every row is longer, the weight of a row is x^2 / 2 for x = |y| / R up to 1, and
    beyond that 1 / 2 + e / (2 e + 32) with e the doublings from R to |y|, rounded down; the mean is
    to be 0.425.

    **Sensitivity.** Neighbours differ by the replacement of one row, and the number n of rows is
    public. Weights are rounded down to multiples of 2^-30, and they grow with |y| for every R. So a
    replaced row moves their sums W of all R in the same direction, each by at most 1. With D = 40 W
    - 17 n, the loss of R is 30 D where D is positive and -10 D where it is not. A row that becomes
    longer changes every loss by -400 to 1200, one that becomes shorter by -1200 to 400: an interval
    of length 1600. The exponential mechanism on the losses over that length has range eta: the
    privacy loss lies in an interval of that length (Durfee and Rogers 2019). It costs no more than
    Gaussian noise with mu = 2 Phi^-1(1 / (1 + e^(-eta / 2))), about 0.63 eta, as two outcomes are
    the worst case, and mu^2 adds up (Dong, Roth and Su 2022). Draws are exact: integers and
    rational probabilities, as in `DiscreteGaussian`.

    The search finds the norm to some per cent of 100 / eta rows or more, where eta is about 0.085
    at epsilon = 1 and delta = 1e-5. Of much fewer rows it may take any norm.

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
    share: float = 0.04

    def __post_init__(self) -> None:
        check_bounds(self.bounds)
        check_share(self.share)

    def found(
        self, X: Any, center: np.ndarray | None, mu2: float, rng: np.random.Generator
    ) -> float:
        """The norm for some rows about a point that is public or was released.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Finite rows.
        center : ndarray of shape (d,) or None
            The point; None: the origin.
        mu2 : float
            What the search may cost, as mu^2; infinite: the best norm, without noise.
        rng : Generator
            Random bits.

        Returns
        -------
        row_norm : float
            One of the norms between the bounds.
        """
        return found_norm(row_norms(X, center), self.bounds, FOR_MOMENTS, mu2, rng)


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
