"""Whether components leave more of the rows than they should: other merges, and what was cut."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Sequence

import numpy as np

from .._kernels.sizes import slices_of
from ..summary import Subspace, merge_subspaces
from ..summary._updating import lacks_directions

# Factor of the squared residuals of another merge from which components fit worse; and the same
# where weights by noise keep components from fitting noise, which alone may be a tenth.
MORE, MORE_BY_NOISE = 1.1, 1.25
# Factor of the squared residuals of the others up to which suspects do them little harm.
HARMLESS = 1.2
# Factor of those of all rows from which suspects are broken.
BROKEN = 3.0
# Share of the variance, of what as many components could hold, below which clients cut too much.
HELD = 0.998
# Entries of directions of sites that are multiplied at once.
_ENTRIES = 2**18
# Evidence, in units of the limit, beyond which a suspect is broken and not unlike.
FAR = 6.0


def residual(parts: Sequence[Subspace], model: Subspace) -> float:
    """Squares of the rows of summaries, about the mean of a model, beyond its components.

    Of what a part cut, each direction is taken to have the mean.
    """
    V, left = model.components, float(scatter_outside(parts, model.components).sum())
    for part in parts:
        off = part.mean - model.mean
        left += part.n_samples * float(off @ off - np.sum((V @ off) ** 2))
    return left


def scatter_outside(parts: Sequence[Subspace], V: np.ndarray) -> np.ndarray:
    """Scatter beyond directions; what a part cut is the same in all directions that it lacks."""
    left = []
    for part, cut in zip(parts, cut_scatters(parts), strict=True):
        squares = np.sum((part.components @ V.T) ** 2, axis=1)
        inside = part.singular_values**2 @ squares + cut * (len(V) - squares.sum())
        left.append(part.scatter - inside)
    return np.maximum(left, 0.0)


def cut_scatters(parts: Sequence[Subspace]) -> np.ndarray:
    """Scatter in each direction that a part did not keep."""
    lacking = np.array([part.n_features - part.n_components for part in parts])
    cut = [part.scatter - float(part.singular_values @ part.singular_values) for part in parts]
    return np.where(lacking > 0, np.maximum(cut, 0.0) / np.maximum(lacking, 1), 0.0)


def times_as_much(parts: Sequence[Subspace], model: Subspace, other: Subspace) -> float:
    """The residual beyond a model over that beyond another; NaN where neither is a number."""
    ours, theirs = residual(parts, model), residual(parts, other)
    return ours / theirs if 0 < theirs < np.inf and 0 < ours < np.inf else math.nan


def warn_of_suspects(
    parts: Sequence[Subspace],
    trusted: Sequence[Subspace],
    found: Subspace,
    suspects: Collection[Sequence[float]],
) -> None:
    """Warn of suspects that may be honest.

    They are half of the sites; or not far beyond the limits, by the evidence of each, and a plain
    merge loses less in the rows of the others than it gains in those of all.
    """
    plain = merge_subspaces(parts, found.n_components)
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


def warn_of_weights(lost: float) -> None:
    """Warn of weights by noise that leave many times the squares of a plain merge: ``lost``."""
    if lost > MORE_BY_NOISE:
        warnings.warn(
            f"sites do not differ by their noise alone: the components leave {lost:.2f} times the "
            "squared residuals of SubspaceMerge in the rows of all sites. If sites see different "
            "things, SubspaceMerge is better.",
            UserWarning,
            stacklevel=2,
        )


def _cut(part: Subspace, squares: np.ndarray) -> float:
    """Variance in each direction that a part cut: the least that it kept, or all that it cut."""
    if not len(squares) or not lacks_directions(part):
        return 0.0
    return min(float(squares[-1]), max(part.scatter - float(squares.sum()), 0.0))


def share_explained(parts: Sequence[Subspace], merged: Subspace, rank: int) -> float:
    """Estimate of the variance along components, as a share of that along the best as many.

    In each direction that a part cut it is taken to have the least variance that it kept, or all
    that it cut if that is less. The best are looked for among the directions that the merge kept.
    """
    K = merged.components.astype(np.float64)
    S = np.zeros((len(K), len(K)))
    at_once = max(_ENTRIES // max(max(part.components.size for part in parts), 1), 1)
    for some in slices_of(len(parts), at_once):
        spectra = [part.singular_values**2 for part in parts[some]]
        cut = np.array(
            [_cut(part, squares) for part, squares in zip(parts[some], spectra, strict=True)]
        )
        A = np.concatenate([part.components for part in parts[some]]) @ K.T
        A *= np.sqrt(np.concatenate(spectra) - np.repeat(cut, list(map(len, spectra))))[:, None]
        off = np.array([part.mean - merged.mean for part in parts[some]]) @ K.T
        off *= np.sqrt([[part.n_samples] for part in parts[some]])
        S += A.T @ A + off.T @ off + cut.sum() * np.eye(len(K))
    best = float(np.linalg.eigvalsh(S)[::-1][:rank].sum())
    return float(np.trace(S[:rank, :rank])) / best if 0 < best < np.inf else 1.0


def warn_of_cuts(parts: Sequence[Subspace], merged: Subspace, rank: int) -> None:
    """Warn where clients cut directions that the components of all need."""
    if (explained := share_explained(parts, merged, rank)) < HELD:
        shown = merged.truncate(rank)
        there = merged.scatter - residual(parts, shown)
        counted = float(np.square(shown.singular_values).sum()) / there if there > 0 else 1.0
        warnings.warn(
            "clients have cut directions that others have: the components hold some "
            f"{explained:.1%} of the variance that {rank} components could, of which "
            f"explained_variance_ counts at most some {min(counted, 1.0):.0%}. n_refinements=2, or "
            "the method refine, brings them closer.",
            UserWarning,
            stacklevel=4,
        )
