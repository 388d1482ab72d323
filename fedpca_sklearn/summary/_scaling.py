"""Columns of a summary in other units, such as those of their deviations."""

from __future__ import annotations

import numpy as np
from scipy.linalg.lapack import dgejsv

from .._kernels.linalg import flip_signs
from ._merge_methods import MERGE_METHODS, Cut
from ._subspace import Subspace
from ._updating import lacks_directions

# Ratio of the columns' sizes up to which an SVD leaves each column ten digits and more.
ALIKE = 2.0**10
# Rows of which all singular values are found, without a square, in the time of a small block.
_FEW = 256


def scatter_of_columns(summary: Subspace) -> np.ndarray:
    """Sum of squares of each column about the mean, or raise where it is not known."""
    if summary.column_scatter is not None:
        return summary.column_scatter
    if lacks_directions(summary):
        raise ValueError(
            "The sums of squares of the columns are not known, which scale=True, partial_out and "
            "parallel analysis need: a summary was cut and has column_scatter=None, as those of "
            "other libraries' estimators. Summaries of StreamingPCA know them."
        )
    rows = rows_of(summary)
    return np.einsum("ij,ij->j", rows, rows)


def rows_of(summary: Subspace) -> np.ndarray:
    """Rows R, at most d, with the scatter matrix R^T R of the summary's directions."""
    return summary.singular_values[:, None] * summary.components.astype(np.float64)


def deviations(scatter: np.ndarray, mean: np.ndarray, n_samples: float) -> np.ndarray:
    """Of columns with such sums of squares; zero where StandardScaler takes them for constant."""
    eps, variance = np.finfo(np.float64).eps, scatter / n_samples
    constant = variance <= n_samples * eps * variance + (n_samples * mean * eps) ** 2
    return np.where(constant, 0.0, np.sqrt(variance))


def leading(rows: np.ndarray, most: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Leading directions and singular values of rows whose columns are of like sizes."""
    d = rows.shape[1]
    if not rows.any():
        return np.empty((0, d)), np.empty(0)
    cut = Cut(d if most is None else min(most, d), None, 0.0)
    method = "qr" if min(rows.shape) <= _FEW else "auto"
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


def rescaled(summary: Subspace, factors: np.ndarray) -> Subspace:
    """The summary of the same rows with each column multiplied by a factor.

    What was cut stays cut. Cost O(k^2 d).
    """
    V, s = all_directions(rows_of(summary) * factors)
    return with_directions(summary, V, s, summary.mean * factors, scatter_times(summary, factors))


def scatter_times(summary: Subspace, factors: np.ndarray) -> np.ndarray | None:
    """Sums of squares of the columns, if they are known, in other units."""
    columns = summary.column_scatter
    return None if columns is None else columns * factors**2


def with_directions(
    summary: Subspace,
    V: np.ndarray,
    s: np.ndarray,
    mean: np.ndarray,
    columns: np.ndarray | None,
) -> Subspace:
    """A summary of as many rows with other directions, in the same dtype."""
    energy = float(s @ s)
    return summary._replace(
        components=V.astype(summary._dtype, copy=False),
        singular_values=s,
        mean=mean,
        scatter=energy if columns is None else max(float(columns.sum()), energy),
        column_scatter=columns,
    )
