"""Refinement of a summary of adjusted rows by products with the rows as they are."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from .._kernels import linalg
from .._kernels.certificates import Certificate
from ._adjusted import Adjusted, Adjusting, Adjustment, adjusted
from ._refinement import Refinement, certificate_of_summary
from ._scaling import scatter_of_columns, with_directions
from ._subspace import Subspace


class AdjustedRefinement(Refinement):
    """Rounds of products for the summary of adjusted rows.

    Sites multiply the scatter matrix of their rows, as they are, with orthonormal directions that
    span those of the adjusted rows in the columns of the rows; scales and effects are those of the
    summary before. Where it has cut confounders, the first round asks about their columns as well,
    so that effects are those of all rows from then on, and the rounds begin again.

    Parameters
    ----------
    summary : Subspace
        Of the rows.
    adjusting : Adjusting
    """

    def __init__(self, summary: Subspace, adjusting: Adjusting):
        self._adjusting, self._rounds_before = adjusting, 0
        found = adjusted(summary, adjusting)
        self._begin(summary, _with_confounders(found, summary) if found.is_cut else found)

    def _begin(self, summary: Subspace, found: Adjusted) -> None:
        super().__init__(found.model)
        self.rows, self._adjusted = summary, found
        if found.is_cut:
            self.n_start = 0  # a cut of what comes out would cut confounders again
        self._asked: tuple[int, np.ndarray, np.ndarray] | None = None

    @property
    def n_rounds(self) -> int:
        """Products so far."""
        return self._rounds_before + self._space.n_products

    @property
    def block(self) -> np.ndarray:
        """Directions whose products are wanted, of the rows as they are; none without variance."""
        if not self.before.scatter or not len(super().block):
            return np.empty((0, self.rows.n_features))
        return self._question()[0]

    def _question(self) -> tuple[np.ndarray, np.ndarray]:
        """Orthonormal rows W and L, of which L W are the directions in the columns of the rows."""
        if self._asked is None or self._asked[0] != self.n_rounds:
            loadings = self._adjusted.adjustment.loadings(super().block)
            Q, R = scipy.linalg.qr(loadings.T, mode="economic")
            self._asked = self.n_rounds, np.ascontiguousarray(Q.T), R.T
        return self._asked[1:]

    def _products(self, products: np.ndarray) -> np.ndarray:
        return self._adjusted.adjustment.adjust(self._question()[1] @ products)

    def add(self, answer: np.ndarray | None) -> None:
        """Take the sum of `products_of` all rows with the block, or raise for other rows."""
        super().add(answer)
        if self._adjusted.is_cut:
            summary, self._rounds_before = self.summary(), self.n_rounds
            found = adjusted(summary, self._adjusting)
            self._begin(summary, found._replace(is_cut=False))

    def summary(self) -> Subspace:
        """The summary of the rows, of which that of the adjusted rows is refined."""
        if not self._space.n_products:
            return self.rows
        return self._adjusted.undone(super().summary(), self.rows)

    def certificate(self, rank: int) -> Certificate:
        """What is certain about the first directions of the summary, a number of them."""
        if not self._space.n_products:
            return certificate_of_summary(self.before, rank)
        return super().certificate(rank)


def _with_confounders(found: Adjusted, summary: Subspace) -> Adjusted:
    """Directions of adjusted rows and confounders, in columns divided by their deviations only."""
    d = summary.n_features
    scatter = scatter_of_columns(summary)
    scale = np.sqrt(scatter / summary.n_samples)
    scale[scale == 0] = 1.0
    how = found.adjustment
    start = np.concatenate(
        [np.eye(d)[how.confounders], how.loadings(found.model.components) * scale]
    )
    V = linalg.orthonormalised(start)
    joint = with_directions(summary, V, np.zeros(len(V)), np.zeros(d), scatter / scale**2)
    none = np.zeros(0, dtype=int)
    only_scaled = Adjustment(none, np.arange(d), np.zeros((0, d)), scale)
    return Adjusted(joint, only_scaled, np.zeros((0, d)), is_cut=True)
