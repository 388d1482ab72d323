"""Leading directions of stacked rows: methods of merges, and columns of like or of any sizes.

A method takes the pairs ``(V, s)`` of the summaries, the rows ``corrections`` for the differences
of their means, and the `Cut` that says how many directions to return.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import scipy.linalg
from scipy.linalg.lapack import dgejsv

from .._kernels import linalg
from .._kernels.linalg import flip_signs
from .._kernels.sizes import rank_for_fraction, rows_within, slices_of
from .._kernels.stack import DenseBlock
from .._kernels.tolerances import RANK_EPS

# Entries of the directions that are rotated at once: 32 MB.
_ENTRIES = 2**22


@dataclass(frozen=True)
class Cut:
    """Directions to return: at most a number of them, or those that explain a share of scatter."""

    max_rank: int
    fraction: float | None
    scatter: float

    def __call__(self, singular_values: np.ndarray, _: float = 0.0) -> int:
        """Number of directions, from all singular values."""
        if self.fraction is None:
            return min(self.max_rank, len(singular_values))
        return rank_for_fraction(singular_values, self.scatter, self.fraction)


def stack(parts: list, corrections: np.ndarray) -> np.ndarray:
    """All scaled directions, above the rows for the differences of the means."""
    M = np.empty((sum([len(s) for _, s in parts]) + len(corrections), corrections.shape[1]))
    at = 0
    for V, s in parts:
        np.multiply(s[:, None], V, out=M[at : at + len(s)])
        at += len(s)
    M[at:] = corrections
    return M


def _merge_svd(parts, corrections, cut):
    """Grammenos et al. (2019), Algorithm 4: SVD of the stacked, scaled bases."""
    M = stack(parts, corrections)
    _, s, Vt = scipy.linalg.svd(M, full_matrices=False, check_finite=False)
    p = min(cut(s), linalg.numerical_rank(s))
    return Vt[:p], s[:p]


def _merge_qr(parts, corrections, cut):
    """Grammenos et al. (2019), Algorithm 5: QR of the stack, then the SVD of its triangle."""
    M = stack(parts, corrections)
    return linalg.top_right_singular(M, lambda s: min(cut(s), linalg.numerical_rank(s)))


def _merge_gram(parts, corrections, cut, fallback=False):
    """Eigenvectors of the small side of the stack's Gram matrix, or else QR as ``fallback``."""
    M = stack(parts, corrections)
    d = M.shape[1]
    block = DenseBlock(np.zeros((0, d)), np.zeros(0), np.zeros(d), 0.0, M, None, False)
    choose_rank = None if cut.fraction is None else cut
    return block.reduce(cut.max_rank, choose_rank, solver="auto" if fallback else "gram")


def _merge_orthogonal(parts, corrections, cut):
    """Grammenos et al. (2019), Algorithm 2: rotate within span(V1, what V2 adds to it).

    Further summaries, up to d directions of them at once, are projected on the complement of the
    basis so far; a pivoted QR of the remainder leaves out what is dependent, so that the basis
    stays orthonormal for any ranks.
    """
    (V, s), rest = parts[0], stack(parts[1:], corrections)
    d = rest.shape[1]
    for at in slices_of(len(rest), min(d, rows_within(d, _ENTRIES))):
        B = rest[at]
        C = B @ V.T
        beyond = B - C @ V
        again = beyond @ V.T
        beyond -= again @ V
        C += again
        Q, R, order = scipy.linalg.qr(beyond.T, mode="economic", pivoting=True, check_finite=False)
        scale = np.finfo(np.float64).eps * RANK_EPS * np.linalg.norm(B)
        new = int(np.sum(np.abs(np.diag(R)) > scale))
        Q = Q[:, :new]
        if new:
            Q -= V.T @ (V @ Q)
            Q, T = scipy.linalg.qr(Q, mode="economic", check_finite=False)
            R = T @ R[:new]
        small = np.zeros((len(s) + len(B), len(s) + new))
        small[: len(s), : len(s)] = np.diag(s)
        small[len(s) :, : len(s)] = C
        small[len(s) + order, len(s) :] = R[:new].T
        _, s, Wt = np.linalg.svd(small, full_matrices=False)  # takes 1 x 0 as well
        p = linalg.numerical_rank(s)
        V, s = Wt[:p] @ np.concatenate([V, Q.T]), s[:p]
    p = cut(s)
    return V[:p], s[:p]


MERGE_METHODS: dict[str, Callable] = {
    "auto": partial(_merge_gram, fallback=True),
    "gram": _merge_gram,
    "qr": _merge_qr,
    "svd": _merge_svd,
    "orthogonal": _merge_orthogonal,
}


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


def are_equilibrated(rows: np.ndarray) -> bool:
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
    if are_equilibrated(rows):
        return leading(rows, None)
    sizes = np.abs(rows).max(axis=0)  # whose squares may vanish
    sizes[sizes == 0] = 1.0
    V, s = leading(rows / sizes, None)  # whose rank is not one of rounding errors
    rows = s[:, None] * V * sizes
    s, V, *_, failed = dgejsv(rows.T, joba=2, jobu=0, jobv=0, jobr=0, jobt=0, jobp=0)
    if failed:  # after 30 sweeps
        return leading(rows, None)
    order = np.argsort(-s, kind="stable")
    order = order[s[order] > 0]
    return flip_signs(np.array(V.T[order], order="C")), s[order]
