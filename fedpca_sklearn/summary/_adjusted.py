"""Summaries of rows that were adjusted: confounders taken out, columns scaled."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ._adjusted_parts import Columns, Parts, parts_of_rows, parts_of_scatter
from ._directions import all_directions
from ._exact import Factor, ScatterMatrix
from ._scaling import deviations, rows_of, scatter_of_columns, with_directions
from ._subspace import Subspace
from ._updating import held_by_block, unit_of


class Adjusting(NamedTuple):
    """What is done with rows before their PCA.

    Attributes
    ----------
    scale : bool
        Whether columns are divided by their deviations.
    confounders : tuple of int
        Columns whose linear effects are taken out of the others, before that.
    """

    scale: bool = False
    confounders: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return self.scale or bool(self.confounders)


@dataclass(frozen=True, eq=False)
class Adjustment:
    """How rows x about their mean become y = (x[others] - x[confounders] @ effects) / scale.

    Attributes
    ----------
    confounders, others : ndarray of int
        Columns.
    effects : ndarray of shape (c, o)
        What one unit of each confounder adds to each of the others.
    scale : ndarray of shape (o,)
    """

    confounders: np.ndarray
    others: np.ndarray
    effects: np.ndarray
    scale: np.ndarray

    def loadings(self, V: np.ndarray) -> np.ndarray:
        """Rows T, of which ``T @ x`` is ``V @ y``."""
        scaled = V / self.scale
        result = np.empty((len(V), len(self.confounders) + len(self.others)))
        result[:, self.others] = scaled
        result[:, self.confounders] = -(scaled @ self.effects.T)
        return result

    def adjust(self, rows: np.ndarray) -> np.ndarray:
        """The rows y of rows x about their mean."""
        return (rows[:, self.others] - rows[:, self.confounders] @ self.effects) / self.scale

    def back(self, rows: np.ndarray) -> np.ndarray:
        """Rows x of rows y, with confounders at their mean."""
        result = np.zeros((len(rows), len(self.confounders) + len(self.others)))
        result[:, self.others] = rows * self.scale
        return result


class Adjusted(NamedTuple):
    """A summary of adjusted rows about their mean, which is zero, and how they were adjusted.

    Attributes
    ----------
    model : Subspace
    adjustment : Adjustment
    along : ndarray of shape (r, d)
        Rows of the summary that the confounders explain.
    is_cut : bool
        Whether the summary has cut confounders, so that their effects are not those of all rows.
    """

    model: Subspace
    adjustment: Adjustment
    along: np.ndarray
    is_cut: bool = False

    def undone(self, model: Subspace, before: Subspace) -> Subspace:
        """A summary of the rows themselves, whose adjusted summary has a model's directions."""
        rows = self.adjustment.back(rows_of(model))
        V, s = all_directions(np.concatenate([self.along, rows]))
        return with_directions(before, V, s, before.mean, before.column_scatter)


def is_certain(summary: Subspace, adjusting: Adjusting, most: int | None) -> bool:
    """Whether the scatter matrix that a summary holds tells so many adjusted directions."""
    return _of_scatter(summary, _columns(summary, adjusting), adjusting, most) is not None


def certain_by_block(
    summary: Subspace, rows: Any, weight: np.ndarray | None, adjusting: Adjusting, most: int | None
) -> Subspace | None:
    """Update a summary with a block whose scatter matrix is held, if that `is_certain`."""
    for precision in {summary._dtype: None, np.dtype(np.float64): None}:
        held = held_by_block(summary, rows, weight, precision)
        if held is not None and is_certain(held, adjusting, most):
            return held
    return None


def cut_beside(summary: Subspace, adjusting: Adjusting, most: int) -> Subspace:
    """Keep the confounders whole, and so many leading directions of the rows that are adjusted.

    Rows that the summary holds are destroyed.
    """
    found = adjusted(summary, adjusting, most, destroy=True)
    return found.undone(found.model, summary)


def adjusted(
    summary: Subspace, adjusting: Adjusting, most: int | None = None, destroy: bool = False
) -> Adjusted:
    """Take confounders out and scale the columns of what is left: a summary of one.

    Exact where nothing was cut from the summary. Else its directions never exceed the scatter
    matrix of the adjusted rows, as those of the summary do not that of the rows.

    Parameters
    ----------
    summary : Subspace
        With at least one row, about the mean.
    adjusting : Adjusting
    most : int, default=None
        Directions to find; None: all.
    destroy : bool
        Whether rows that the summary holds may be overwritten, so that they need no copy.

    Raises
    ------
    ValueError
        If the sums of squares of the columns are not known, or the summary is about the origin.
    """
    unit = unit_of(summary.n_samples)
    if unit < 1:
        found = adjusted(summary.decay(1 / unit), adjusting, most, destroy)
        return found._replace(model=found.model.decay(unit), along=found.along * unit**0.5)
    if not summary.centered:
        raise ValueError("scale=True and partial_out need rows about their mean, center=True.")
    columns = _columns(summary, adjusting)
    parts = _of_scatter(summary, columns, adjusting, most)
    if parts is None:
        held = summary._leading if destroy else None
        rows = held.rows if isinstance(held, Factor) else rows_of(summary)
        parts = parts_of_rows(rows, columns, adjusting.scale, most, summary._dtype)
    names, others = summary.feature_names, columns.others
    zero, scatter = np.zeros(len(others)), parts.scatter / parts.scale**2
    model = with_directions(summary, parts.V, parts.s, zero, scatter)._replace(
        feature_names=None if names is None else tuple(names[i] for i in others)
    )
    how = Adjustment(columns.confounders, others, parts.effects, parts.scale)
    return Adjusted(model, how, parts.along, parts.is_cut)


def _columns(summary: Subspace, adjusting: Adjusting) -> Columns:
    n, scatter = summary.n_samples, scatter_of_columns(summary)
    confounders = np.array(adjusting.confounders, dtype=int)
    others = np.delete(np.arange(summary.n_features), confounders)
    constant = deviations(scatter, summary.mean, n) == 0
    return Columns(confounders, others, constant, scatter, summary.mean, n)


def _of_scatter(
    summary: Subspace, columns: Columns, adjusting: Adjusting, most: int | None
) -> Parts | None:
    """What the scatter matrix that a summary holds tells, if there is one and it is certain."""
    held = summary._leading
    if not isinstance(held, ScatterMatrix):
        return None
    find = partial(parts_of_scatter, held, columns, adjusting.scale, most)
    return held.once((adjusting, most), find)
