"""Columns of a summary: sums of squares, deviations, units, and some of them only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._kernels.linalg import flip_signs, numerical_rank
from .._kernels.row_moments import is_rounding
from ._exact import Scaled
from ._subspace import Subspace
from ._updating import lacks_directions, was_truncated


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
    rows = summary._rows
    return np.einsum("ij,ij->j", rows, rows)


def deviations(scatter: np.ndarray, mean: np.ndarray, n_samples: float) -> np.ndarray:
    """Of columns with such sums of squares; zero where rounding explains them."""
    deviation = np.sqrt(scatter / n_samples)
    return np.where(is_rounding(deviation, mean), 0.0, deviation)


def shares_cut(summary: Subspace) -> tuple[float, np.ndarray]:
    """Shares of the scatter that the directions lack: of all columns, and of each one."""
    columns, explained = scatter_of_columns(summary), np.square(summary._rows).sum(axis=0)
    varies = deviations(columns, summary.mean, summary.n_samples) > 0
    lost = np.zeros(len(columns))
    lost[varies] = (1 - explained[varies] / columns[varies]).clip(0, 1)
    return max(1 - float(explained.sum()) / summary.scatter, 0.0), lost


def rescaled(summary: Subspace, factors: np.ndarray) -> Subspace:
    """The summary of the same rows with each column multiplied by a factor.

    What was cut stays cut. Directions are those in the units in which they were found, until
    somebody reads those of the new ones.
    """
    columns, leading = summary.column_scatter, summary._leading
    if leading is None:
        leading = Scaled(summary.components, summary.singular_values, np.ones(len(factors)))
    leading = leading.scaled(factors)
    columns = None if columns is None else columns * factors**2
    scatter = leading.energy if columns is None else float(columns.sum())
    low, mean = summary._mean_low * factors, summary.mean * factors
    moments = {"mean": mean, "_mean_low": low, "scatter": scatter, "column_scatter": columns}
    if isinstance(leading, Scaled) and (leading.units == 1).all():
        return summary._replace(components=leading.V, singular_values=leading.s, **moments)
    return summary._replace(_leading=leading, **moments)


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


def select_columns(subspace: Subspace, columns: Sequence[int]) -> Subspace:
    """Summary of the same rows in other columns.

    Parameters
    ----------
    subspace : Subspace
    columns : sequence of int
        Positions of the columns to keep, each once, in the order of the result.

    Returns
    -------
    selected : Subspace
        Exact where nothing was cut; else the scatter of the columns is exact, and the directions
        are below it as they were before.

    Raises
    ------
    ValueError
        If directions were cut and the scatter of single columns is not known.
    """
    chosen = np.asarray(columns)
    names = subspace.feature_names
    of_columns = subspace.column_scatter
    kept = {
        "mean": subspace.mean[chosen],
        "column_scatter": None if of_columns is None else of_columns[chosen],
        "feature_names": None if names is None else tuple(names[j] for j in columns),
    }
    parts = subspace.components[:, chosen]
    if len(chosen) == subspace.n_features:
        return subspace._replace(components=flip_signs(np.array(parts)), **kept)
    if of_columns is None and was_truncated(subspace):
        raise ValueError("it lacks the scatter of its columns, so that none can be left out.")
    scaled = subspace.singular_values[:, None] * parts.astype(np.float64)
    _, s, V = np.linalg.svd(scaled, full_matrices=False)
    rank = numerical_rank(s)
    s, V = s[:rank], flip_signs(V[:rank]).astype(parts.dtype, copy=False)
    energy = float(s @ s)
    scatter = energy if of_columns is None else max(energy, float(of_columns[chosen].sum()))
    return subspace._replace(components=V, singular_values=s, scatter=scatter, **kept)
