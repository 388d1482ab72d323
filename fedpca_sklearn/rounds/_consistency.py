"""Whether a client's answer can come from rows with the summary that it sent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..summary import Subspace
from ._queries import TimesScatter, Variances

# Rounding that is allowed: a share of the scatter, above what rows in float32 need, and so many
# roundings of a mean.
_SHARE, _ROUNDINGS = 1e-3, 8.0


def typical_variance(parts: Sequence[Subspace], mean: np.ndarray) -> float:
    """Median of the variances of the rows of clients about a mean; those without rows have none."""
    variances = [_scatter(part, mean) / part.n_samples for part in parts if part.n_samples > 0]
    return float(np.median(variances)) if variances else 0.0


def contradicts(
    part: Subspace, query: TimesScatter | Variances, answer: np.ndarray, typical: float
) -> bool:
    """Whether no rows with the summary ``part`` have the answer.

    What is below a thousandth of as many rows of the ``typical`` variance is not looked at.
    """
    V, n, shift = query.V, part.n_samples, part.mean - query.mean
    scatter = _scatter(part, query.mean)
    rounding = _ROUNDINGS * float(np.finfo(part.components.dtype).eps * np.linalg.norm(part.mean))
    slack = n * max(_SHARE * max(scatter / max(n, 1.0), typical), rounding**2)
    cut = max(part.scatter - float(part.singular_values @ part.singular_values), 0.0)
    said = (part.components @ V.T).T * part.singular_values**2 @ part.components
    said += n * np.outer(V @ shift, shift)
    unit = slack or 1.0  # squares of what is huge would overflow
    cut, slack = cut / unit, slack / unit
    with np.errstate(over="ignore", invalid="ignore"):  # as liars can make it
        if isinstance(query, Variances):
            inner, told = answer[:-2].reshape(len(V), len(V)), answer[-2:]
            agree = abs(told[0] - scatter) / unit <= slack and abs(told[1] - n) <= _SHARE * n
            return not (agree and _is_part_of((inner - said @ V.T) / unit, cut, slack))
        rest = (answer - said) / unit
        within = rest @ V.T
        most = cut * max(float(np.trace(within)), 0.0) + len(V) * slack * (cut + slack)
        return not (np.sum(rest**2) <= most and _is_part_of(within, cut, slack))


def _scatter(part: Subspace, mean: np.ndarray) -> float:
    """Scatter about a mean that need not be the part's own."""
    return part.scatter + part.n_samples * float(np.sum((part.mean - mean) ** 2))


def _is_part_of(within: np.ndarray, trace: float, slack: float) -> bool:
    """Whether V R V' is what it is, for an R without negative eigenvalues of a trace."""
    if not (np.isfinite(within).all() and (np.abs(within - within.T) <= slack).all()):
        return False
    values = np.linalg.eigvalsh((within + within.T) / 2)
    return bool(values[0] >= -slack and values.sum() <= trace + len(values) * slack)
