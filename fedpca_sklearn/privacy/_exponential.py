"""The exponential mechanism on integers, drawn exactly, in terms of mu as Gaussian noise is."""

from __future__ import annotations

import math

import numpy as np
import scipy.special

from ._discrete_gaussian import _Bits

# Binary digits of the parameter of the mechanism behind the point, and what rounding takes off it.
_DIGITS = 40
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
    if math.isinf(x):
        return math.inf
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
    numerator, denominator = math.floor(eta * 2.0**_DIGITS), span << _DIGITS
    bits = _Bits(rng)
    while True:
        position = bits.below(len(losses))
        if bits.exp((losses[position] - least) * numerator, denominator):
            return position
