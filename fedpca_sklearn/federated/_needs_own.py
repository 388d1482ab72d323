"""Test of whether a site needs components of its own: Roy's largest root against all others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.linalg
from scipy.special import gammaincc

from .._kernels.sizes import EXACT_ORDER
from .._kernels.tolerances import EIGENVALUE_ROUNDING
from ..summary import Subspace
from ..summary._updating import was_truncated

# Level of the test for all sites together.
LEVEL = 0.05
# The Tracy-Widom law of order 1 as a shifted gamma distribution: shape, scale, shift (Chiani 2014).
_SHAPE, _SCALE, _SHIFT = 46.446, 0.186054, 9.84801


def p_values(parts: Sequence[Subspace], V: np.ndarray) -> np.ndarray:
    """P-value of each part: its scatter outside V is from the covariance of all others.

    The largest root of its scatter matrix in the metric of the others', for normal rows by
    Johnstone (2008), "Multivariate analysis and Jacobi ensembles". NaN where the others have no
    more rows than columns, a part too few, or where something was cut from one.
    """
    d, p = np.array([part.n_samples - 1 for part in parts]), np.full(len(parts), np.nan)
    n_features = parts[0].n_features
    if len(parts) < 2 or n_features > EXACT_ORDER or len(V) >= n_features:
        return p
    if any(map(was_truncated, parts)):
        return p
    outside = scipy.linalg.null_space(V)
    factors = [part.singular_values[:, None] * (part.components @ outside) for part in parts]
    total = sum(F.T @ F for F in factors)
    values, W = np.linalg.eigh(total)
    kept = values > EIGENVALUE_ROUNDING * values[-1]
    W = W[:, kept] / np.sqrt(values[kept])
    for i, F in enumerate(factors):
        others, size = float(d.sum() - d[i]), W.shape[1]
        if d[i] >= 1 and others > size > 0:
            share = scipy.linalg.svdvals(F @ W)[0] ** 2 if len(F) else 0.0
            p[i] = _beyond(min(share, 1.0), size, others, float(d[i]))
    return p


def _beyond(share: float, p: int, m: float, n: float) -> float:
    """Probability of a larger largest root of (A + B)^-1 B, A and B Wishart with m, n rows."""
    if share in (0.0, 1.0):
        return 1.0 - share
    angles = [2 * np.arcsin(np.sqrt((k - 0.5) / (m + n - 1))) for k in (min(p, n), max(p, n))]
    a, b = angles
    middle = 2 * np.log(np.tan((a + b) / 2))
    # roots one by one, as counts that are weights may have no square
    both, one, other = (np.cbrt(np.sqrt(m + n - 1) * np.sin(angle)) for angle in (a + b, a, b))
    spread = np.cbrt(16) / (both**2 * one * other)
    x = (np.log(share / (1 - share)) - middle) / spread
    return float(gammaincc(_SHAPE, max((x + _SHIFT) / _SCALE, 0.0)))


def significant(p: np.ndarray) -> np.ndarray:
    """Which p-values are significant together, by Holm (1979); NaN is not."""
    order = np.argsort(p)  # NaN last
    order = order[~np.isnan(p[order])]
    passed = p[order] <= LEVEL / np.arange(len(order), 0, -1)
    found = np.zeros(len(p), dtype=bool)
    found[order[np.cumprod(passed, dtype=bool)]] = True
    return found
