"""Display of the scores of rows beside their limits. Drawing imports matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ._displays import _LineDisplay

__all__ = ["ControlChartDisplay"]


class ControlChartDisplay(_LineDisplay):
    """Rows over time, by how unlike they are, with the limit and those above it.

    Parameters
    ----------
    scores : array-like of shape (n,)
        `score_samples` of the rows, or ``recent_scores_``.
    offset : float
        Score below which rows are outliers.
    estimator_name : str, default=None
        Name in the legend.

    Attributes
    ----------
    line_, ax_, figure_ : matplotlib artists
        After `plot`.
    limit_line_, flagged_line_ : matplotlib lines
        The limit, and points at the rows above it.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import ControlChartDisplay, StreamingPCA, SubspaceMonitor
    >>> X = load_digits().data
    >>> monitor = SubspaceMonitor(StreamingPCA(20)).fit(X[:1000])
    >>> display = ControlChartDisplay.from_estimator(monitor, X[1000:])
    >>> len(display.line_.get_xdata()), len(display.flagged_line_.get_xdata())
    (797, 74)
    """

    _xlabel = "row"
    _ylabel = "minus log p-value"
    _marker = "."

    def __init__(self, scores: Sequence[float], offset: float, *, estimator_name: Any = None):
        self.scores = scores
        self.offset = offset
        self.estimator_name = estimator_name

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, *, ax: Any = None, name: str | None = None, **kwargs: Any
    ) -> Any:
        """Score rows by a fitted monitor and draw.

        Parameters
        ----------
        estimator : SubspaceMonitor
            Fitted, or another outlier detector with ``score_samples`` and ``offset_``.
        X : {array-like, sparse matrix} of shape (n, d)
            Rows, in their order.
        ax : matplotlib axes, default=None
            None: a new figure.
        name : str, default=None
            Name in the legend; None: the class of the estimator.
        **kwargs : dict
            Passed to ``ax.plot``.

        Returns
        -------
        display : object
        """
        check_is_fitted(estimator)
        name = type(estimator).__name__ if name is None else name
        display = cls(estimator.score_samples(X), estimator.offset_, estimator_name=name)
        return display.plot(ax=ax, **{"linewidth": 0.8, **kwargs})

    def _points(self):
        return np.arange(1, len(self.scores) + 1), -np.asarray(self.scores)

    def _add_to_line(self):
        rows, unlike = self._points()
        above = unlike > -self.offset
        self.limit_line_ = self.ax_.axhline(-self.offset, color="grey", linestyle="--")
        (self.flagged_line_,) = self.ax_.plot(
            rows[above], unlike[above], "o", color="C3", mfc="none"
        )
