"""Directions of rows whose columns are of like sizes, and of any sizes."""

from __future__ import annotations

import numpy as np
import scipy.linalg
from scipy.linalg.lapack import dgejsv

from .._kernels.linalg import eigh_top, flip_signs, numerical_rank, top_right_singular
from ._merge_methods import MERGE_METHODS, Cut

# Ratio of the columns' sizes up to which an SVD leaves each column ten digits and more.
ALIKE = 2.0**10
# Share of the largest eigenvalue of a scatter matrix above which its eigenvectors are right to some
# thousand roundings.
_TO_ROUNDING = 1e-3
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
    s, V, _, work, _, failed = dgejsv(rows.T, joba=2, jobu=0, jobv=0, jobr=0, jobt=0, jobp=0)
    if failed:  # after 30 sweeps
        return leading(rows, None)
    order = np.argsort(-s, kind="stable")
    order = order[s[order] > 0]
    return flip_signs(np.array(V.T[order], order="C")), s[order] * (work[0] / work[1])


def right_singular(R: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Right singular vectors of at most d rows, and singular values that are no rounding errors."""
    if len(R) == R.shape[1]:
        _, s, V = scipy.linalg.svd(R, check_finite=False)
    elif len(R):
        V, s = top_right_singular(R.copy(), len)
    else:
        V, s = R, np.empty(0)
    rank = numerical_rank(s)
    return flip_signs(np.array(V[:rank], order="C")), s[:rank]


def leading_of_factor(R: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The first right singular vectors and values of at most d rows, from those of R R^T.

    None where the square loses digits of them. The values are those of R on the vectors.
    """
    largest = np.abs(R).max()
    if not 1e-100 < largest < 1e100:
        return None
    lam, U = eigh_top(R @ R.T, count)
    if not lam[-1] > _TO_ROUNDING * lam[0]:
        return None
    Q = np.linalg.qr(R.T @ U)[0]
    _, s, W = scipy.linalg.svd(R @ Q, full_matrices=False, check_finite=False)
    return flip_signs(np.array(W @ Q.T, order="C")), s
