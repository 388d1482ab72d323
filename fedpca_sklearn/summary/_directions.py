"""Directions of rows whose columns are of like sizes, and of any sizes."""

from __future__ import annotations

import numpy as np
from scipy.linalg.lapack import dgejsv

from .._kernels.linalg import flip_signs
from ._merge_methods import MERGE_METHODS, Cut

# Ratio of the columns' sizes up to which an SVD leaves each column ten digits and more.
ALIKE = 2.0**10
# Rows of which all singular values are found, without a square, in the time of a small block.
_FEW = 256


def leading(rows: np.ndarray, most: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Leading directions and singular values of rows whose columns are of like sizes."""
    d = rows.shape[1]
    if not rows.any():
        return np.empty((0, d)), np.empty(0)
    cut = Cut(d if most is None else min(most, d), None, 0.0)
    method = "qr" if most is None and min(rows.shape) <= _FEW else "auto"
    V, s = MERGE_METHODS[method]([(rows, np.ones(len(rows)))], rows[:0], cut)
    return flip_signs(np.array(V, order="C")), np.array(s)


def are_alike(rows: np.ndarray) -> bool:
    """Whether no column is so much larger than another that a decomposition hides that one."""
    sizes = np.sqrt(np.einsum("ij,ij->j", rows, rows))
    sizes = sizes[sizes > 0]
    return not len(sizes) or bool(sizes.max() <= ALIKE * sizes.min())


def all_directions(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All directions of at most d rows, in which each column keeps its digits.

    A singular value decomposition is right to eps of the largest column, and nothing would be left
    of one 1e16 times smaller. Jacobi's method has no such floor where rows are a well-conditioned
    matrix between two diagonal ones (Drmac and Veselic, 2008, LAPACK's dgejsv).
    """
    rows = rows[rows.any(axis=1)]
    if are_alike(rows):
        return leading(rows, None)
    sizes = np.sqrt(np.einsum("ij,ij->j", rows, rows))
    sizes[sizes == 0] = 1.0
    V, s = leading(rows / sizes, None)  # whose rank is not one of rounding errors
    rows = s[:, None] * V * sizes
    s, V, _, work, _, failed = dgejsv(rows.T, joba=2, jobu=0, jobv=0, jobr=0, jobt=0, jobp=0)
    if failed:  # after 30 sweeps
        return leading(rows, None)
    order = np.argsort(-s, kind="stable")
    order = order[s[order] > 0]
    return flip_signs(np.array(V.T[order], order="C")), s[order] * (work[0] / work[1])
