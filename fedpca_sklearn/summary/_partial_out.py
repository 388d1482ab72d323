"""What a linear model on some columns leaves of the others: a Schur complement."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Share of its deviation up to which a confounder, or a column, is explained by confounders: what is
# left are rounding errors. The first is a singular value of confounders of unit length, over the
# largest one; a full set of dummy variables has one of about 1e-15.
_DEPENDENT = {np.dtype(np.float64): 1e-8, np.dtype(np.float32): 1e-4}
_EXPLAINED = {np.dtype(np.float64): 1e-11, np.dtype(np.float32): 1e-5}


class Left(NamedTuple):
    """What confounders leave of the other columns.

    Attributes
    ----------
    effects : ndarray of shape (c, o)
        What one unit of each confounder adds to each of the others, of least norm for confounders
        in units of their deviations.
    along : ndarray of shape (r, c + o)
        Rows of the confounders and of what they explain.
    rows : ndarray of shape (m, o)
        Rows whose scatter matrix is the Schur complement of that of the summary.
    scatter : ndarray of shape (o,)
        Sum of squares that is left of each column: of ``rows``, and at most as much as confounders
        leave of what the summary has cut.
    is_cut : bool
        Whether the summary has cut more than rounding errors from a confounder.
    """

    effects: np.ndarray
    along: np.ndarray
    rows: np.ndarray
    scatter: np.ndarray
    is_cut: bool


def what_is_left(
    confounders: np.ndarray,
    others: np.ndarray,
    scatter_of_confounders: np.ndarray,
    scatter_of_others: np.ndarray,
    dtype: np.dtype,
) -> Left:
    """Take the effects of confounders out of the rows of a summary.

    With the rows C and O, of C = U s W^T the directions above the tolerance, O - U U^T O is what is
    left: no matrix is squared or inverted, and confounders may depend on each other. The summary
    never exceeds the rows' scatter matrix S = R^T R + E, of which E has a known diagonal; the Schur
    complement of the sum is between that of R^T R and the same with (sqrt(E_jj) + sum_c |B_cj|
    sqrt(E_cc))^2 added to the diagonal, by the triangle inequality in the norm of E.

    Parameters
    ----------
    confounders, others : ndarray of shape (k, c) and (k, o)
        Columns of R; ``others`` become the rows that are left.
    scatter_of_confounders, scatter_of_others : ndarray of shape (c,) and (o,)
        Sums of squares of the columns, of all rows.
    dtype : dtype
        In which the directions were stored.
    """
    C, O = confounders, others  # noqa: E741
    squares_C, squares_O = (np.einsum("ij,ij->j", M, M) for M in (C, O))
    size = np.sqrt(squares_C)
    size[size == 0] = 1.0
    U, s, Wt = np.linalg.svd(C / size, full_matrices=False)
    r = int(np.sum(s > _DEPENDENT[dtype] * s.max(initial=0.0)))
    U, W = U[:, :r], Wt[:r].T
    fitted = U.T @ O
    rows = O
    rows -= U @ fitted
    again = U.T @ rows  # twice is enough
    rows -= U @ again
    fitted += again
    effects = (W / s[:r]) @ fitted / size[:, None]
    squares = np.einsum("ij,ij->j", rows, rows)
    nothing = squares <= _EXPLAINED[dtype] ** 2 * squares_O
    rows[:, nothing] = 0
    squares[nothing] = 0
    cut_C, cut_O = (
        np.sqrt(np.where(rest > _EXPLAINED[dtype] * total, rest, 0))
        for rest, total in (
            (scatter_of_confounders - squares_C, scatter_of_confounders),
            (scatter_of_others - squares_O, scatter_of_others),
        )
    )
    scatter = squares + (cut_O + cut_C @ np.abs(effects)) ** 2
    along = np.concatenate([(s[:r, None] * W.T) * size, fitted], axis=1)
    return Left(effects, along, rows, scatter, bool(cut_C.any()))
