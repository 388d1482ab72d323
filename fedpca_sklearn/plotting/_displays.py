"""Displays: matplotlib pictures of fitted estimators and streams. Drawing imports matplotlib."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ..evaluation import StreamEvaluation, evaluate_stream

__all__ = [
    "CommunicationDisplay",
    "RankDisplay",
    "SubspaceErrorDisplay",
]

# Labels of axes whose ticks are whole numbers.
_COUNTS = ("component", "components", "round")


class _LineDisplay:
    """Base of the displays: a line through the `_points` of a subclass, with its labels."""

    estimator_name: str | None
    _xlabel: str
    _ylabel: str
    _drawstyle = "default"
    _marker = ""

    @abstractmethod
    def _points(self) -> tuple[np.ndarray, np.ndarray]:
        """Coordinates of the line."""

    def plot(self, ax: Any = None, *, name: str | None = None, **kwargs: Any) -> Any:
        """Draw the display.

        Parameters
        ----------
        ax : matplotlib axes, default=None
            None: a new figure.
        name : str, default=None
            Name in the legend; None: ``estimator_name``.
        **kwargs : dict
            Passed to ``ax.plot``.

        Returns
        -------
        display : object
            This object, with the artists as attributes.
        """
        import matplotlib.pyplot as plt

        if ax is None:
            _, ax = plt.subplots(layout="constrained")
        name = self.estimator_name if name is None else name
        style = {"label": name, "drawstyle": self._drawstyle, "marker": self._marker, **kwargs}
        (self.line_,) = ax.plot(*self._points(), **style)
        ax.set(xlabel=self._xlabel, ylabel=self._ylabel)
        for axis in (ax.xaxis, ax.yaxis):
            if axis.get_label_text() in _COUNTS and axis.get_scale() == "linear":
                axis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        self.ax_, self.figure_ = ax, ax.figure
        self._add_to_line()
        if name is not None:
            ax.legend()
        return self

    def _add_to_line(self) -> None:
        """Draw what a display has in addition to its line."""


class _StreamDisplay(_LineDisplay):
    """A line over the rows of a stream."""

    _xlabel = "rows"

    def __init__(self, evaluation: StreamEvaluation, *, estimator_name: str | None = None):
        self.evaluation = evaluation
        self.estimator_name = estimator_name

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
        name = type(estimator).__name__ if name is None else name
        return cls(evaluation, estimator_name=name).plot(ax=ax, **kwargs)


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


class _FittedDisplay(_LineDisplay):
    """Base of the displays of a fitted estimator, of which `_parts` returns their parameters."""

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, ax: Any = None, name: str | None = None, **kwargs: Any
    ) -> Any:
        """Draw a fitted estimator.

        Parameters
        ----------
        estimator : estimator
            Fitted, with what is shown: ``explained_variance_ratio_``, and ``estimators_`` where it
            has them, or ``communication_``.
        ax : matplotlib axes, default=None
            None: a new figure.
        name : str, default=None
            Name in the legend; None: the class of the estimator.
        **kwargs : dict
            Passed to ``ax.plot`` for the line of all rows.

        Returns
        -------
        display : object
        """
        check_is_fitted(estimator)
        name = type(estimator).__name__ if name is None else name
        return cls._of(estimator, name).plot(ax=ax, **kwargs)

    @classmethod
    @abstractmethod
    def _of(cls, estimator: Any, name: str) -> _FittedDisplay:
        """A display of what the estimator holds."""


class CommunicationDisplay(_FittedDisplay):
    """Floats sent over the rounds, up and down together, and the number of floats in the rows.

    Of more than 1,000 rounds the last ones are drawn; the line starts at the total before them.

    Parameters
    ----------
    communication : CommunicationLog
        What a fitted estimator holds as ``communication_``.
    estimator_name : str, default=None
        Name in the legend.

    Attributes
    ----------
    line_, ax_, figure_ : matplotlib artists
        After `plot`.
    pooled_line_ : matplotlib line or None
        At the number of floats in the rows, where it is known: not of summaries from elsewhere.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import CommunicationDisplay, FederatedPowerPCA
    >>> pca = FederatedPowerPCA(3, n_rounds=3, tol=0, random_state=0).fit(load_digits().data)
    >>> display = CommunicationDisplay.from_estimator(pca)
    >>> display.line_.get_ydata()
    array([ 130,  898, 1666, 2434, 2840])
    """

    _xlabel = "round"
    _ylabel = "floats sent so far"
    _drawstyle = "steps-post"
    _marker = "."

    def __init__(self, communication: Any, *, estimator_name: str | None = None):
        self.communication = communication
        self.estimator_name = estimator_name

    @classmethod
    def _of(cls, estimator, name):
        if not hasattr(estimator, "communication_"):
            raise TypeError(
                f"estimator must be federated, with communication_, got {type(estimator).__name__}."
            )
        return cls(estimator.communication_, estimator_name=name)

    def _points(self):
        log = self.communication
        floats = np.cumsum([row["floats_up"] + row["floats_down"] for row in log.table])
        before = log.floats_up + log.floats_down - (floats[-1] if len(floats) else 0)
        return np.arange(1, len(floats) + 1) + log.rounds - len(floats), before + floats

    def _add_to_line(self):
        self.ax_.set_yscale("log")
        rounds, floats = self.line_.get_data()
        if len(rounds) == 1:  # a step needs two points
            ends = rounds[0] - 0.5, rounds[0] + 0.5
            self.ax_.plot(ends, np.repeat(floats, 2), color=self.line_.get_color())
        self.pooled_line_ = None
        if self.communication.floats_pooled:
            name = "the rows themselves"
            drawn = any(line.get_label() == name for line in self.ax_.lines)
            label = None if drawn else name
            self.pooled_line_ = self.ax_.axhline(
                self.communication.floats_pooled, color="grey", linestyle="--", label=label
            )
