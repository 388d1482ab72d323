"""Summaries of rows that were adjusted: confounders taken out, columns scaled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ._partial_out import what_is_left
from ._scaling import (
    all_directions,
    deviations,
    leading,
    rows_of,
    scatter_of_columns,
    with_directions,
)
from ._subspace import Subspace
from ._updating import unit_of


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


def adjusted(summary: Subspace, adjusting: Adjusting, most: int | None = None) -> Adjusted:
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

    Raises
    ------
    ValueError
        If the sums of squares of the columns are not known, or the summary is about the origin.
    """
    unit = unit_of(summary.n_samples)
    if unit < 1:
        found = adjusted(summary.decay(1 / unit), adjusting, most)
        return found._replace(model=found.model.decay(unit), along=found.along * unit**0.5)
    if not summary.centered:
        raise ValueError("scale=True and partial_out need rows about their mean, center=True.")
    d, n = summary.n_features, summary.n_samples
    confounders = np.array(adjusting.confounders, dtype=int)
    others = np.delete(np.arange(d), confounders)
    rows, scatter = rows_of(summary), scatter_of_columns(summary)
    constant = deviations(scatter, summary.mean, n) == 0
    rows[:, confounders[constant[confounders]]] = 0  # rounding errors, which explain nothing
    effects, along = np.zeros((len(confounders), len(others))), np.zeros((0, d))
    is_cut = False
    if len(confounders):
        left = what_is_left(
            *(rows[:, confounders], rows[:, others]),
            *(scatter[confounders], scatter[others]),
            summary._dtype,
        )
        effects, rows, scatter, is_cut = left.effects, left.rows, left.scatter, left.is_cut
        along = np.zeros((len(left.along), d))
        along[:, np.concatenate([confounders, others])] = left.along
    scale = np.ones(len(others))
    if adjusting.scale:
        scale[:] = np.where(constant[others] | (scatter == 0), 1.0, np.sqrt(scatter / n))
        rows = rows / scale
    V, s = leading(rows, most)
    names = summary.feature_names
    model = with_directions(summary, V, s, np.zeros(len(others)), scatter / scale**2)._replace(
        feature_names=None if names is None else tuple(names[i] for i in others)
    )
    return Adjusted(model, Adjustment(confounders, others, effects, scale), along, is_cut)
