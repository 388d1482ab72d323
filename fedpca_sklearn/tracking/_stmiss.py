"""The steps of STMiss as functions of arrays and one state: fill, r-SVD, complete.

Algorithm 1 (STMiss-NoDet) of Narayanamurthy, Vaswani and Ramamoorthy, "Federated over-air subspace
tracking from incomplete and corrupted data", 2022. The paper's columns are rows here: Y_j is a
batch, P_j has the rows of ``basis``, alpha is the rows of a batch and M_t the entries that are NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from .._kernels import linalg
from .._kernels.missing import coordinates
from .._kernels.tolerances import MAX_GAIN_IN_SVD
from ..summary import Subspace
from ..summary._updating import updated_by_block

# Sine of the angle between a direction of the last basis and the new one from which on what the new
# one lacks completes it. Of directions that it has, rounding leaves some eps.
_LACKING = 1e-6


@dataclass(frozen=True)
class State:
    """State after the batches so far.

    Attributes
    ----------
    summary : Subspace
        Of the filled rows that count.
    mean : ndarray of shape (d,)
    basis : ndarray of shape (k, d)
        P_{j-1}. With the mean it fills the next batch.
    n_rows : int
        Rows taken, j - 1 batches of them.
    updates_left, level, change_points
        Of `ChangeDetection`: updates before the subspace is kept, the residuals' largest eigenvalue
        at the last one, and the first row of each batch with a change.
    outliers, threshold : ndarray or None
        Mask of the last batch, and what an entry of each column has to exceed.
    held : ndarray of shape (d,) or None
        Rows for which each column has been outliers for the most.
    owners : ndarray of shape (m,)
        Labels of the rows to come that are known by now, where rows have owners.
    seed : int
        Of what is drawn for a batch.
    noise : float
        Variance of an entry beyond the subspace in recent batches; NaN if not known.
    least : float
        The least share of the entries' squares that the basis left of a batch.
    filling : float
        The same since the last change: of the basis that filled the rows that count.
    weight : float
        Factor by which the past counts beside the last batch, beyond the forgetting factor.
    loss : float
        Squared residuals of batches beyond the basis before each, of which recent ones count more.
    keeps : bool
        Whether all batches count.
    rival : State or None
        The state with the other answer to ``keeps``, once the two differ.
    """

    summary: Subspace
    mean: np.ndarray
    basis: np.ndarray
    n_rows: int = 0
    updates_left: int = 1
    level: float | None = None
    change_points: tuple[int, ...] = ()
    outliers: np.ndarray | None = None
    threshold: np.ndarray | None = None
    held: np.ndarray | None = None
    owners: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=object))
    seed: int = 0
    noise: float = math.nan
    least: float = math.nan
    filling: float = math.nan
    weight: float = 1.0
    loss: float = 0.0
    keeps: bool = False
    rival: State | None = None

    def after(self, n: int) -> State:
        """State of which n more rows are taken: j <- j + 1."""
        return replace(self, n_rows=self.n_rows + n, owners=self.owners[n:])


class Filled(NamedTuple):
    """A filled batch: L_j, its coordinates in the last basis, which rows count, and the ridge."""

    rows: np.ndarray
    coordinates: np.ndarray
    counts: np.ndarray
    ridge: np.ndarray | None = None


def fill(Y: np.ndarray, mean: np.ndarray, V: np.ndarray, ridge: np.ndarray | None = None) -> Filled:
    """Projected least squares: Algorithm 1, lines 4 to 8.

    The paper's ``l_t = y_t - I_M (Psi_M)^+ (Psi y_t)`` is the fit of the basis to the entries of a
    row that are there, at those that are not. Rows whose entries do not determine their coordinates
    do not count; where no row has such entries, those with at least k entries do, with the smallest
    coordinates. Without a basis rows are filled with the mean. With a ridge (see `noise_ridge`)
    coordinates are conditional means, which every row has.
    """
    lost = np.isnan(Y)
    some = (~lost).sum(axis=1) >= max(len(V), 1)
    C, gain = coordinates(Y - mean, V, ridge=ridge)
    counts = some & (gain <= MAX_GAIN_IN_SVD)
    if not counts.any():
        C, _ = coordinates(Y - mean, V, 1 / MAX_GAIN_IN_SVD, ridge)
        counts = some
    return Filled(np.where(lost, C @ V + mean, Y), C, counts, ridge)


def r_svd(
    rows: np.ndarray, r: int, before: Subspace, batch_size: int, forgetting_factor: float
) -> Subspace:
    """The r leading directions of filled rows: Algorithm 1, lines 9 to 11."""
    return updated_by_block(
        faded(before, len(rows), batch_size, forgetting_factor), rows, max_keep=r
    )


def faded(before: Subspace, m: int, batch_size: int, forgetting_factor: float) -> Subspace:
    """What still counts of earlier rows, with m new ones."""
    return before.decay(weight_left(m, batch_size, forgetting_factor))


def weight_left(m: int, batch_size: int, forgetting_factor: float) -> float:
    """Weight of earlier rows, with m new ones.

    It is ``forgetting_factor ** m``, 0 in the paper, or ``1 - m / batch_size`` if that is more, as
    m rows replace that many of a batch.
    """
    return max(forgetting_factor**m, 1 - m / batch_size, 0.0)


def complete(V: np.ndarray, old: np.ndarray, r: int) -> np.ndarray:
    """The next basis, P_j; if it has under r rows, with the last one's directions it lacks most."""
    if len(V) >= r or not len(old):
        return V
    rest = old - (old @ V.T) @ V
    _, s, W = np.linalg.svd(rest, full_matrices=False)
    more = W[: min(r - len(V), int(np.sum(s > _LACKING)))]
    return linalg.orthonormalised(np.concatenate([V, more]))


def residuals(state: State, Y: np.ndarray, filled: Filled) -> np.ndarray:
    """What the last subspace does not explain of each row, zero where an entry is missing."""
    return np.nan_to_num(Y - state.mean - filled.coordinates @ state.basis, nan=0.0)


def largest_square(R: np.ndarray) -> float:
    """Square of the largest singular value."""
    return float(linalg.eigh_top(R @ R.T, 1)[0][0])
