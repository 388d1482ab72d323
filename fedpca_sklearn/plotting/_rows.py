"""Displays over the rows of a stream: rank, error, and how unlike rows are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ..evaluation import StreamEvaluation, evaluate_stream
from ._displays import LineDisplay, named


@dataclass(eq=False, repr=False)
class _StreamDisplay(LineDisplay):
    """A line over the rows of a stream."""

    _xlabel = "rows"

    evaluation: StreamEvaluation

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        X_full: Any = None,
        *,
        batch_size: int = 50,
        n_checkpoints: int = 20,
        ax: Any = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Stream rows through a copy of an estimator and draw.

        Parameters
        ----------
        estimator : estimator
            With ``partial_fit`` and ``components_``; not changed.
        X : {array-like, sparse matrix} of shape (n, d)
            Rows of the stream, in their order.
        X_full : array-like of shape (n, d), default=None
            Rows without missing entries and outliers, from which errors are measured; None: X.
        batch_size, n_checkpoints : int
            As in `evaluate_stream`.
        ax : matplotlib axes, default=None
            None: a new figure.
        name : str, default=None
            Name in the legend; None: the class of the estimator.
        **kwargs : dict
            Passed to ``ax.plot``.

        Returns
        -------
        display : object
            The display, drawn.
        """
        evaluation = evaluate_stream(
            estimator, X, X_full, batch_size=batch_size, n_checkpoints=n_checkpoints
        )
        return cls(evaluation, estimator_name=named(estimator, name)).plot(ax=ax, **kwargs)


class RankDisplay(_StreamDisplay):
    """Number of components over the rows of a stream.

    Parameters
    ----------
    evaluation : StreamEvaluation
        From `evaluate_stream`.
    estimator_name : str, default=None
        Name in the legend.

    Attributes
    ----------
    line_, ax_, figure_ : matplotlib artists
        After `plot`.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import SPIRIT, RankDisplay
    >>> display = RankDisplay.from_estimator(SPIRIT(), load_digits().data)
    >>> display.ax_.get_ylabel()
    'components'
    """

    _ylabel = "components"
    _drawstyle = "steps-post"

    def _points(self):
        return self.evaluation.n_samples, self.evaluation.ranks


class SubspaceErrorDisplay(_StreamDisplay):
    """Error over the rows of a stream, relative to the best subspace of the same rank so far.

    Parameters
    ----------
    evaluation : StreamEvaluation
        From `evaluate_stream`.
    estimator_name : str, default=None
        Name in the legend.

    Attributes
    ----------
    line_, ax_, figure_ : matplotlib artists
        After `plot`.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import OjaPCA, SubspaceErrorDisplay
    >>> X = load_digits().data
    >>> display = SubspaceErrorDisplay.from_estimator(OjaPCA(5, random_state=0), X)
    >>> display.ax_.get_ylabel()
    'error / best error'
    """

    _ylabel = "error / best error"

    def _points(self):
        return self.evaluation.n_samples, 1 + self.evaluation.excess


@dataclass(eq=False, repr=False)
class ControlChartDisplay(LineDisplay):
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
    (797, 71)
    """

    _xlabel = "row"
    _ylabel = "minus log p-value"
    _marker = "."

    scores: Sequence[float]
    offset: float

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
        scores, name = estimator.score_samples(X), named(estimator, name)
        display = cls(scores, estimator.offset_, estimator_name=name)
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
