"""Whether sites need components of their own: Roy's largest root, and what noise gains."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import scipy.linalg
from scipy.special import gammaincc

from .._kernels.sizes import EXACT_ORDER
from .._kernels.tolerances import EIGENVALUE_ROUNDING
from ..summary import Subspace, merge_subspaces
from ..summary._updating import was_truncated

# Level of the test for all sites together.
LEVEL = 0.05
# Factor of what noise gains in components of sites up to which these are taken for noise.
NOISE = 1.25
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


def warn_of_alike_sites(
    parts: Sequence[Subspace], V: np.ndarray, local: Sequence[np.ndarray], rank: int
) -> None:
    """Warn where components of sites gain no more than noise lets them, over ``rank`` shared ones.

    Of white noise in n rows of d columns the leading directions explain (1 + (d / n)^(1/2))^2 each
    (Marchenko and Pastur 1967), where new rows have 1.
    """
    whole = merge_subspaces(parts, rank).components
    d, n = V.shape[1] - len(V), np.array([part.n_samples for part in parts])
    own, alike = (
        sum(_left(part, basis) for part, basis in zip(parts, bases, strict=True))
        for bases in ([np.concatenate([V, W]) for W in local], [whole] * len(parts))
    )
    beyond = (1 + np.sqrt(d / n)) ** 2 - 1
    noise = float(n @ (beyond * list(map(len, local)))) / float(n.sum()) / max(d, 1)
    if len(parts) > 1 and 0 < alike < np.inf and 1 - own / alike < NOISE * noise:
        warnings.warn(
            f"the components of sites leave {own / alike:.2f} times the squared residuals of "
            f"{rank} shared ones in the rows of the fit, which noise explains: {rank} shared ones, "
            "of SubspaceMerge, are better for new rows.",
            UserWarning,
            stacklevel=2,
        )


def _left(part: Subspace, basis: np.ndarray) -> float:
    """Squares of the rows of a part, about their mean, beyond a basis."""
    rows = part.singular_values[:, None] * (part.components @ basis.T)
    return max(part.scatter - float(np.sum(rows**2)), 0.0)
