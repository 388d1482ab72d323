"""Summaries that keep all directions, and the triangle that is stored of one."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import scipy.linalg
from scipy.linalg.lapack import dpotrf

from .._kernels.threads import threads_for
from .._kernels.tolerances import RANK_EPS
from ._exact import Factor, ScatterMatrix

# A Subspace, whose own methods call this module
Summary: TypeAlias = Any
# Share by which the sums of squares of a column may differ that are added up in two ways.
_SAME_SQUARES = 1e-6
_TINY, _EPS = np.finfo(np.float64).tiny, np.finfo(np.float64).eps


def fits_columns(squares: np.ndarray, columns: np.ndarray | None) -> bool:
    """Whether sums of squares of a factor's columns are those that are known, if any are."""
    return columns is None or bool((np.abs(squares - columns) <= _SAME_SQUARES * columns).all())


def is_whole(summary: Summary) -> bool:
    """Whether a triangle stands for the summary: in float64, and all d directions are certain.

    Given directions are where none is a rounding error beside the largest.
    """
    d, held = summary.n_features, summary._leading
    if summary._dtype != np.float64 or summary.n_components < d:
        return False
    with np.errstate(over="ignore", under="ignore"):
        if isinstance(held, ScatterMatrix):
            squares = held.G.diagonal()
        else:
            rows = _rows_of(summary)
            squares = np.einsum("ij,ij->j", rows, rows)
    if held is None:
        s = summary.singular_values
        if not s[-1] > d * RANK_EPS * _EPS * s[0]:
            return False
    return bool(squares.min() > _TINY) and fits_columns(squares, summary.column_scatter)


def triangle_of(summary: Summary) -> np.ndarray:
    """Upper triangle R, with a positive diagonal, of the scatter matrix R^T R of all directions."""
    held, d = summary._leading, summary.n_features
    with threads_for(d**3):
        if isinstance(held, ScatterMatrix):
            L, failed = dpotrf(held.G, lower=1, clean=1)
            if not failed:
                return L.T
        rows = _rows_of(summary)
        below = np.tri(d, k=-1, dtype=bool)
        if len(rows) == d and (rows.diagonal() > 0).all() and not rows[below].any():
            return rows
        (R,) = scipy.linalg.qr(rows, mode="r", check_finite=False)
    R = R[:d]
    return np.where(R.diagonal() < 0, -1.0, 1.0)[:, None] * R


def _rows_of(summary: Summary) -> np.ndarray:
    """Rows with the scatter matrix of the directions."""
    held = summary._leading
    if isinstance(held, Factor):
        return held.rows
    return summary.singular_values[:, None] * summary.components
