"""The first basis of a tracker: from the rows, at random, or given."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from sklearn.utils._param_validation import StrOptions

from .._kernels import linalg
from .._validation.checks import float_array
from ._fading import Fading
from ._tracker import Tracker

# Rounds in which missing entries of the first rows are filled in.
_FILLINGS = 20


class StartedTracker(Tracker):
    """Base of the trackers whose rule moves a basis that must come from somewhere.

    A subclass has parameters ``init`` and ``random_state`` and writes `_updated`, `_basis` and, in
    the place of `_begin`, `_begin_at`: the state of the rule at a basis V of shape (k, d)
    with orthonormal rows. Z are the rows, without missing entries, that the basis was made from and
    that `_updated` will not see; it is empty, of shape (0, d), where V was drawn or given.

    With ``init="rows"`` the first block has 2 k rows, and the basis is their SVD, once missing
    entries are filled in. Where fewer entries are there than rows of rank k have numbers, anything
    would fit them, and worse than nothing: the basis stays random.
    """

    _parameter_constraints: dict = {
        **Tracker._parameter_constraints,
        "init": [StrOptions({"rows", "random"}), "array-like"],
        "random_state": ["random_state"],
    }
    _fixed = (*Tracker._fixed, "init")
    init: Any

    @abstractmethod
    def _begin_at(self, V: np.ndarray, Z: np.ndarray) -> Any:
        """State of the rule at a basis.

        Parameters
        ----------
        V : ndarray of shape (k, d), float64
            Orthonormal rows.
        Z : ndarray of shape (m, d), float64
            Centred rows that V was made from, if any.

        Returns
        -------
        state : object
            Whatever `_updated` and `_basis` take.
        """

    def _from_rows(self) -> bool:
        return isinstance(self.init, str) and self.init == "rows"

    def _block_rows(self, d: int, first: bool = True) -> int:
        if first and self._from_rows():
            return 2 * self._rank(d) + self.center
        return super()._block_rows(d, first)

    def _begin(self, d: int, rng: np.random.RandomState) -> Any:
        return self._begin_at(self._first_basis(d, rng), np.empty((0, d)))

    def _first_basis(self, d: int, rng: np.random.RandomState) -> np.ndarray:
        if isinstance(self.init, str):  # "rows" turn it when they come
            return linalg.random_basis(self._rank(d), d, rng)
        return self._given_basis(d)

    def _given_basis(self, d: int) -> np.ndarray:
        V = float_array("init", self.init, 2, np.float64)
        shape = self._rank(d), d
        if V.shape != shape:
            raise ValueError(f"init must have shape {shape}, got {V.shape}.")
        return linalg.orthonormalised(V)

    def _first_rows(self, state: Any, Z: np.ndarray, fading: Fading) -> Any:
        if not self._from_rows():
            return self._faded(state, Z, fading)
        V = self._basis(state)
        lost = np.isnan(Z)
        if lost.any():
            if np.sum(~lost) < _numbers(len(Z), Z.shape[1], len(V)):
                return self._faded(state, Z, fading)
            Z = filled(Z, lost, len(V))
        return self._begin_at(leading_directions(Z, V), Z)


def _numbers(m: int, d: int, k: int) -> int:
    """Numbers that a matrix of shape (m, d) and rank k is made of."""
    k = min(m, d, k)
    return k * (m + d - k)


def filled(Z: np.ndarray, lost: np.ndarray, k: int) -> np.ndarray:
    """Rows whose missing entries are filled in by the rows' own approximation of rank k.

    They begin as zeros, the means of centred rows. In each of 20 rounds they become those of the
    approximation of rank k, in which singular values are lowered by the next one.
    """
    Y = np.where(lost, 0.0, Z)
    scale = float(np.abs(Y).max()) or 1.0  # squares may vanish or overflow
    Y /= scale
    for _ in range(_FILLINGS):
        squares, U = linalg.eigh_top(Y @ Y.T, len(Y))
        s = np.sqrt(squares.clip(np.finfo(np.float64).tiny))
        lowered = (s - (s[k] if len(s) > k else 0.0))[:k] / s[:k]
        Y[lost] = ((U[:, :k] * lowered) @ (U[:, :k].T @ Y))[lost]
    return scale * Y


def leading_directions(Z: np.ndarray, V: np.ndarray) -> np.ndarray:
    """As many leading right singular vectors of rows as a basis has, completed by that basis.

    Parameters
    ----------
    Z : ndarray of shape (m, d)
        Not all zero.
    V : ndarray of shape (k, d)
        Orthonormal rows; the directions in which the rows have no variance are taken from it.
    """
    k = len(V)
    found = linalg.top_right_singular(Z / np.abs(Z).max(), lambda s: k)[0]
    if len(found) == k:
        return found
    rest = V - (V @ found.T) @ found
    rest = np.linalg.svd(rest, full_matrices=False)[2][: k - len(found)]
    return linalg.orthonormalised(np.concatenate([found, rest]))
