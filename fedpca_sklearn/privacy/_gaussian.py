"""The Gaussian mechanism, exactly: Balle and Wang (2018), in terms of mu = sensitivity / sigma.

Releases compose by adding mu^2, also where a later one depends on the results of earlier ones, so T
releases with sigma protect as one with sigma / sqrt(T) does.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import scipy.optimize
import scipy.special

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
    return scipy.optimize.brentq(
        lambda mu: max(log_delta(epsilon, mu), -1e300) - target, low, high, xtol=1e-300, rtol=_RTOL
    )


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
    return scipy.optimize.brentq(
        lambda epsilon: max(log_delta(epsilon, mu), -1e300) - target,
        0.0,
        high,
        xtol=1e-300,
        rtol=_RTOL,
    )
