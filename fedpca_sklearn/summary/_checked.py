"""Fields of a summary that somebody gives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._kernels import linalg
from .._kernels.tolerances import VALID_BASIS_TOL
from .._validation.checks import float_array, nonnegative_float
from .._validation.feature_names import check_names
from ._origin import check_model, check_privacy, check_sites

_EPS = np.finfo(np.float64).eps


def checked_fields(summary: Any) -> tuple[Any, ...]:
    """Fields of a `Subspace` in their order, or a ValueError that names one."""
    components = float_array("components", summary.components, 2)
    singular_values = float_array("singular_values", summary.singular_values, 1, np.float64)
    mean = float_array("mean", summary.mean, 1, np.float64)
    k, d = components.shape
    if k > d:
        raise ValueError(f"components must have at most d={d} rows, got {k}.")
    if len(singular_values) != k:
        raise ValueError(
            f"singular_values must have one value for each of the {k} components, "
            f"got {len(singular_values)}."
        )
    if len(mean) != d:
        raise ValueError(f"mean must have d={d} values, got {len(mean)}.")
    error = linalg.orthonormality_error(components)
    if not error <= VALID_BASIS_TOL[components.dtype]:  # NaN where products overflow
        raise ValueError(f"components must be orthonormal rows, they are off by {error:.1e}.")
    if np.any(singular_values < 0) or np.any(np.diff(singular_values) > 0):
        raise ValueError("singular_values must be non-negative and in decreasing order.")
    n_samples = nonnegative_float("n_samples", summary.n_samples)
    scatter = nonnegative_float("scatter", summary.scatter)
    energy = float(singular_values @ singular_values)
    if not math.isfinite(energy) or energy > scatter * (1 + VALID_BASIS_TOL[components.dtype]):
        raise ValueError(
            f"scatter={scatter!r} must be at least the sum of the squared singular values, "
            f"{energy!r}."
        )
    if n_samples == 0 and (energy > 0 or scatter > 0):
        raise ValueError("A summary of n_samples=0 must have no energy.")
    if not summary.centered and np.any(mean):
        raise ValueError("mean must be zero in a summary with centered=False.")
    columns = _checked_columns(summary.column_scatter, d, scatter)
    site, sites = check_sites(summary.site, summary.sites)
    return (
        components,
        singular_values,
        mean,
        n_samples,
        scatter,
        bool(summary.centered),
        check_names(summary.feature_names, d),
        site,
        sites,
        columns,
        check_privacy(summary.privacy),
        check_model(summary.model, d, bool(summary.centered)),
    )


def _checked_columns(given: Any, d: int, scatter: float) -> np.ndarray | None:
    if given is None:
        return None
    columns = float_array("column_scatter", given, 1, np.float64)
    if len(columns) != d:
        raise ValueError(f"column_scatter must have d={d} values, got {len(columns)}.")
    if np.any(columns < 0):
        raise ValueError(f"column_scatter must be non-negative, got {columns.min()!r}.")
    total = float(columns.sum())
    # an update rounds either once more: 1e8 updates are 1e8 eps apart, and d tiny numbers
    if not abs(total - scatter) <= 1e8 * _EPS * scatter + d * np.finfo(np.float64).tiny:
        raise ValueError(
            f"column_scatter must add up to scatter={scatter!r}, its sum is {total!r}."
        )
    return columns
