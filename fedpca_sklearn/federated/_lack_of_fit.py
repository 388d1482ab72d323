"""Whether components by another merge leave more of the rows than those of a plain one."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Sequence

import numpy as np

from ..summary import Subspace

# Factor of the squared residuals of another merge from which components fit worse; and the same
# where weights by noise keep components from fitting noise, which alone may be a tenth.
MORE, MORE_BY_NOISE = 1.1, 1.25
# Factor of the squared residuals of the others up to which suspects do them little harm.
HARMLESS = 1.2
# Factor of those of all rows from which suspects are broken.
BROKEN = 3.0
# Evidence, in units of the limit, beyond which a suspect is broken and not unlike.
FAR = 6.0


def residual(parts: Sequence[Subspace], model: Subspace) -> float:
    """Squares of the rows of summaries, about the mean of a model, beyond its components.

    Of what a part cut, each direction is taken to have the mean.
    """
    V, left = model.components, 0.0
    for part in parts:
        A = part.components @ V.T
        off = part.mean - model.mean
        lacking = part.n_features - part.n_components
        cut = max(part.scatter - float(part.singular_values @ part.singular_values), 0.0)
        inside = float(part.singular_values**2 @ np.sum(A**2, axis=1))
        if lacking:
            inside += cut / lacking * (len(V) - float(np.sum(A**2)))
        left += max(part.scatter - inside, 0.0)
        left += part.n_samples * float(off @ off - np.sum((V @ off) ** 2))
    return left


def times_as_much(parts: Sequence[Subspace], model: Subspace, other: Subspace) -> float:
    """The residual beyond a model over that beyond another; NaN where neither is a number."""
    ours, theirs = residual(parts, model), residual(parts, other)
    return ours / theirs if 0 < theirs < np.inf and 0 < ours < np.inf else math.nan


def warn_of_suspects(
    parts: Sequence[Subspace],
    trusted: Sequence[Subspace],
    found: Subspace,
    plain: Subspace,
    suspects: Collection[Sequence[float]],
) -> None:
    """Warn of suspects that may be honest.

    They are half of the sites; or not far beyond the limits, by the evidence of each, and a plain
    merge loses less in the rows of the others than it gains in those of all.
    """
    lost, gained = times_as_much(parts, found, plain), times_as_much(trusted, plain, found)
    n, strongest = len(suspects), max(map(max, suspects))
    harmless = lost < BROKEN and gained < min(lost, HARMLESS) and strongest < FAR
    if lost > MORE and (harmless or 2 * n >= len(parts)):
        warnings.warn(
            f"{n} of {len(parts)} sites {'is a suspect' if n == 1 else 'are suspects'} and left "
            f"out: the components leave {lost:.2f} times the squared residuals of SubspaceMerge in "
            f"the rows of all sites, and SubspaceMerge {gained:.2f} times theirs in the rows of "
            "the others. If the suspects are honest, SubspaceMerge is better.",
            UserWarning,
            stacklevel=2,
        )


def warn_of_weights(parts: Sequence[Subspace], found: Subspace, plain: Subspace) -> None:
    """Warn where weights by noise leave clearly more of all rows than a plain merge."""
    lost = times_as_much(parts, found, plain)
    if lost > MORE_BY_NOISE:
        warnings.warn(
            f"sites do not differ by their noise alone: the components leave {lost:.2f} times the "
            "squared residuals of SubspaceMerge in the rows of all sites. If sites see different "
            "things, SubspaceMerge is better.",
            UserWarning,
            stacklevel=2,
        )
