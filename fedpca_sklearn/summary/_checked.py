"""Fields of a summary that somebody gives, as arrays or as a file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import scipy.linalg
from scipy.linalg.lapack import dpotrf

from .._kernels import linalg
from .._kernels.threads import threads_for
from .._kernels.tolerances import RANK_EPS, VALID_BASIS_TOL
from .._validation.checks import float_array, nonnegative_float
from .._validation.feature_names import check_names
from ._codec import LAYOUTS, SUMMARY
from ._exact import Factor, ScatterMatrix
from ._provenance import check_model, check_privacy, check_sites


def checked_arrays(kind: int, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Finite arrays of the shapes that the layout of a kind lists, or a ValueError that names one.

    Those that are not given are left out. Sizes are those of the first array that has them.
    """
    found: dict[str, np.ndarray] = {}
    sizes: dict[str, int] = {}
    parts = {part.name: part.shape for part in LAYOUTS[kind].parts}
    for name in filter(parts.__contains__, given):
        if given[name] is None:
            continue
        axes = ["d", "d"] if parts[name] in ("upper", "lower") else parts[name].split()
        dtype = None if name == "components" else np.float64
        array = float_array(name, given[name], len(axes), dtype)
        for axis, size in zip(axes, array.shape, strict=True):
            sizes.setdefault(axis, size)
        expected = tuple(map(sizes.__getitem__, axes))
        if array.shape != expected:
            raise ValueError(f"{name} must have shape {expected}, got {array.shape}.")
        if "k" in axes and sizes["k"] > sizes["d"]:
            raise ValueError(f"{name} must have at most d={sizes['d']} rows, got {sizes['k']}.")
        if parts[name] == "lower" and not np.array_equal(array, array.T):
            raise ValueError(f"{name} must be symmetric.")
        found[name] = array
    return found


def checked_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a `Subspace`, of its own or of `decode`, or a ValueError that names one."""
    arrays = checked_arrays(SUMMARY, given)
    mean, columns = arrays["mean"], arrays.get("column_scatter")
    n_samples = nonnegative_float("n_samples", given["n_samples"])
    scatter = nonnegative_float("scatter", given["scatter"])
    if "triangle" in arrays:
        directions, energy = _checked_triangle(arrays["triangle"], columns)
    else:
        directions, energy = _checked_directions(arrays["components"], arrays["singular_values"])
    dtype = np.dtype(np.float64) if "triangle" in arrays else directions["components"].dtype
    if not math.isfinite(energy) or energy > scatter * (1 + VALID_BASIS_TOL[dtype]):
        raise ValueError(
            f"scatter={scatter!r} must be at least the sum of the squared singular values, "
            f"{energy!r}."
        )
    if n_samples == 0 and (energy > 0 or scatter > 0):
        raise ValueError("A summary of n_samples=0 must have no energy.")
    centered = bool(given["centered"])
    if not centered and np.any(mean):
        raise ValueError("mean must be zero in a summary with centered=False.")
    _check_columns(columns, scatter)
    site, sites = check_sites(given.get("site"), given.get("sites"))
    return {
        **directions,
        "mean": mean,
        "n_samples": n_samples,
        "scatter": scatter,
        "centered": centered,
        "feature_names": check_names(given.get("feature_names"), len(mean)),
        "site": site,
        "sites": sites,
        "column_scatter": columns,
        "privacy": check_privacy(given.get("privacy")),
        "model": check_model(given.get("model"), len(mean), centered),
    }


def _checked_directions(V: np.ndarray, s: np.ndarray) -> tuple[dict[str, Any], float]:
    """Orthonormal directions with their singular values, and their energy."""
    error = linalg.orthonormality_error(V)
    if not error <= VALID_BASIS_TOL[V.dtype]:  # NaN where products overflow
        raise ValueError(f"components must be orthonormal rows, they are off by {error:.1e}.")
    if np.any(s < 0) or np.any(np.diff(s) > 0):
        raise ValueError("singular_values must be non-negative and in decreasing order.")
    return {"components": V, "singular_values": s}, float(s @ s)


def _checked_triangle(R: np.ndarray, columns: np.ndarray | None) -> tuple[dict[str, Any], float]:
    """The factor that a triangle is, of which directions are found when read, and its energy."""
    if not (R.diagonal() > 0).all():
        raise ValueError("triangle must have a positive diagonal.")
    squares = np.einsum("ij,ij->j", R, R)
    if not fits_columns(squares, columns):
        raise ValueError("column_scatter must be the sums of squares of the triangle's columns.")
    R.flags.writeable = False
    leading = Factor(R, np.dtype(np.float64))
    return {"components": None, "singular_values": None, "_leading": leading}, float(squares.sum())


def _check_columns(columns: np.ndarray | None, scatter: float) -> None:
    """Raise unless sums of squares of columns, where they are known, add up to that of all."""
    if columns is None:
        return
    if np.any(columns < 0):
        raise ValueError(f"column_scatter must be non-negative, got {columns.min()!r}.")
    total = float(columns.sum())
    # an update rounds either once more: 1e8 updates are 1e8 eps apart, and d tiny numbers
    if not abs(total - scatter) <= 1e8 * _EPS * scatter + len(columns) * np.finfo(np.float64).tiny:
        raise ValueError(
            f"column_scatter must add up to scatter={scatter!r}, its sum is {total!r}."
        )


# Share by which the sums of squares of a column may differ that are added up in two ways.
_SAME_SQUARES = 1e-6
_TINY, _EPS = np.finfo(np.float64).tiny, np.finfo(np.float64).eps
# A Subspace, whose own methods call this module
Summary: TypeAlias = Any


def fits_columns(squares: np.ndarray, columns: np.ndarray | None) -> bool:
    """Whether sums of squares of a factor's columns are those that are known, if any are."""
    return columns is None or bool((np.abs(squares - columns) <= _SAME_SQUARES * columns).all())


def is_whole(summary: Summary) -> bool:
    """Whether a triangle stands for a summary of d directions: in float64, and all are certain.

    Given directions are where none is a rounding error beside the largest.
    """
    d, leading = len(summary.mean), summary._leading
    if (summary.components if leading is None else leading).dtype != np.float64:
        return False
    if isinstance(leading, ScatterMatrix):
        squares = leading.G.diagonal()
    else:
        rows = summary._rows
        with np.errstate(over="ignore", under="ignore"):
            squares = np.einsum("ij,ij->j", rows, rows)
    if leading is None:
        s = summary.singular_values
        if not s[-1] > d * RANK_EPS * _EPS * s[0]:
            return False
    return bool(squares.min() > _TINY) and fits_columns(squares, summary.column_scatter)


def triangle_of(summary: Summary) -> np.ndarray:
    """Upper triangle R, with a positive diagonal, of the scatter matrix R^T R of all directions."""
    leading, d = summary._leading, summary.n_features
    with threads_for(16 * d * d):
        if isinstance(leading, ScatterMatrix):
            L, failed = dpotrf(leading.G, lower=1, clean=1)
            if not failed:
                return L.T
        rows = summary._rows
        below = np.tri(d, k=-1, dtype=bool)
        if len(rows) == d and (rows.diagonal() > 0).all() and not rows[below].any():
            return rows
        (R,) = scipy.linalg.qr(rows, mode="r", check_finite=False)
    R = R[:d]
    return np.where(R.diagonal() < 0, -1.0, 1.0)[:, None] * R
