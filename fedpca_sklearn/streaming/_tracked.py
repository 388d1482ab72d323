"""State of a tracker's stream, with the variances that rules do not estimate."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._kernels import linalg
from .._kernels.tolerances import MAX_GAIN_IN_VARIANCES
from ..summary import Subspace
from ..summary._rayleigh_ritz import along
from ._fading import NO_TIMES, Clock, Fading
from ._innovations import Features

# Share of the rows below which a feature has been missing for too long to tell its variance.
_FORGOTTEN = 1e-12
# Weight of the rows measured below which their variances are forgotten.
_NO_WEIGHT = 1e-200


@dataclass(frozen=True)
class Tracked:
    """State of a stream after its full blocks.

    ``rule_state`` is the rule's own, and ``begun`` whether it has seen a row that is not zero;
    ``factor.T @ factor`` the scatter matrix of rows of the weight ``measured`` within ``basis``.
    ``frame`` is what `_rows` needs besides ``known``, and ``noise`` the variance of an entry beyond
    the basis in recent rows, where it is needed. ``clock`` has the times of rows that have times.
    """

    rule_state: Any
    begun: bool
    basis: np.ndarray
    factor: np.ndarray
    measured: float
    known: Features
    frame: Any = None
    noise: float = math.nan
    clock: Clock = NO_TIMES

    @property
    def is_new(self) -> bool:
        """Whether there is no basis yet in which rows have been measured."""
        return self.measured == 0 or not self.begun

    def with_coordinates(
        self, C: np.ndarray, gain: np.ndarray, V: np.ndarray, fading: Fading
    ) -> Tracked:
        """State with rows of coordinates C measured, which turn along to the next basis V.

        Rows of a large ``gain`` do not count, as their coordinates are uncertain.
        """
        root, past = fading.factor ** (fading.ages / 2), fading.past
        root[gain > MAX_GAIN_IN_VARIANCES] = 0.0
        C = C * root[:, None]
        if self.is_new:
            factor = linalg.r_factor(C)
        else:
            rows = np.concatenate([self.factor * past**0.5, C])
            factor = linalg.r_factor(rows) @ _turn(self.basis, V)
        measured = self.measured * past + float(root @ root)
        return replace(self, basis=V, factor=factor, measured=measured)

    def summary(
        self, V: np.ndarray, mean: np.ndarray, factor: np.ndarray, center: bool, dtype: np.dtype
    ) -> Subspace:
        """Summary of the rows, of which ``factor.T @ factor`` is the scatter matrix within V."""
        known = self.known
        n = known.n_rows
        # a feature that was missing at times counts as if it had always been there
        share = np.broadcast_to(known.weight, known.mean.shape) / n
        there = share > _FORGOTTEN
        scatter = float((known.squares[there] / share[there]).sum())
        factor = factor * np.sqrt(n / self.measured if self.measured > _NO_WEIGHT else 0.0)
        energy = float(np.einsum("ij,ij->", factor, factor))
        if energy > scatter:  # coordinates of rows with holes are uncertain, their entries are not
            factor *= np.sqrt(scatter / energy)
        empty = np.zeros((0, len(mean)), dtype)
        total = Subspace._trusted(empty, np.zeros(0), mean, n, scatter, center)
        return along(total, V, factor)


def _turn(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Coordinates in a basis to those in the next one, by the rotation between the two.

    Not by projection, which would lose energy of earlier rows with every small move of the basis.
    """
    U, _, Vt = np.linalg.svd(old @ new.T, full_matrices=False)
    return U @ Vt
