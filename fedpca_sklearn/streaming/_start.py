"""The first basis of a tracker: from the rows, at random, or given."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils._param_validation import StrOptions

from .._kernels import linalg
from .._validation.checks import float_array

# Rounds in which missing entries of the first rows are filled in.
_FILLINGS = 20


# Constraints of the parameters of a tracker whose rule moves a basis.
START: dict = {
    "init": [StrOptions({"rows", "random"}), "array-like"],
    "random_state": ["random_state"],
}


def first_basis(init: Any, k: int, d: int, rng: np.random.RandomState) -> np.ndarray:
    """Basis of k rows before the first row of d features; with "rows" they turn it."""
    if isinstance(init, str):
        return linalg.random_basis(k, d, rng)
    V = float_array("init", init, 2, np.float64)
    if V.shape != (k, d):
        raise ValueError(f"init must have shape {(k, d)}, got {V.shape}.")
    return linalg.orthonormalised(V)


def start_from_rows(Z: np.ndarray, V: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Basis of the first rows, completed by V, and the rows, with missing entries filled in.

    None where fewer entries are there than rows of rank k have numbers: anything would fit them,
    and worse than nothing.
    """
    lost = np.isnan(Z)
    if lost.any():
        if np.sum(~lost) < _numbers(len(Z), Z.shape[1], len(V)):
            return None
        Z = filled(Z, lost, len(V))
    return leading_directions(Z, V), Z


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
