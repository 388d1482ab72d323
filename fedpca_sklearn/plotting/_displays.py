"""Displays that are lines: over components, rows of a stream, rounds, and sites."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from .._validation.checks import check_integer
from ..evaluation import StreamEvaluation, evaluate_stream
from ..intervals import JackknifeIntervals
from ..metrics import subspace_distance

# Labels of axes whose ticks are whole numbers.
_COUNTS = ("component", "components", "round")
# Names that others chose, of sites and columns: dollars begin no formula, of which a wrong one ends
# the drawing.
AS_IT_IS: Any = {"parse_math": False}


def axes_of(ax: Any) -> Any:
    """These axes of matplotlib, or those of a new figure."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(layout="constrained")[1]


def named(estimator: Any, name: str | None) -> str:
    """Name in the legend: that of the class, unless another is given."""
    return type(estimator).__name__ if name is None else name


@dataclass(eq=False, repr=False)
class LineDisplay:
    """Base of the displays: a line through the `_points` of a subclass, with its labels."""

    _: KW_ONLY
    estimator_name: str | None = None

    _xlabel = _ylabel = ""
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
        ax = axes_of(ax)
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

    def _add_pooled(self, draw: Callable, floats: int | None) -> None:
        """Draw where the floats in the rows are, if they are known; it is named once."""
        self.pooled_line_, name = None, "the rows themselves"
        if floats:
            drawn = any(line.get_label() == name for line in self.ax_.lines)
            style = {"color": "grey", "linestyle": "--", "label": None if drawn else name}
            self.pooled_line_ = draw(floats, **style)


class FittedDisplay(LineDisplay):
    """Base of the displays of an attribute of a fitted estimator."""

    _attribute: str
    _needs: str  # what an estimator without the attribute is told

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, ax: Any = None, name: str | None = None, **kwargs: Any
    ) -> Any:
        """Draw a fitted estimator.

        Parameters
        ----------
        estimator : estimator
            Fitted, with what is shown.
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
        if not hasattr(estimator, cls._attribute):
            raise TypeError(f"estimator must {cls._needs}, got {type(estimator).__name__}.")
        made: Any = cls
        display = made(getattr(estimator, cls._attribute), estimator_name=named(estimator, name))
        return display.plot(ax=ax, **kwargs)


@dataclass(eq=False, repr=False)
class ScreeDisplay(LineDisplay):
    """Share of the variance by component, of all rows and of each client's own components.

    On demand also the share of the first components together, and how sure both are.

    Parameters
    ----------
    explained_variance_ratio : array-like of shape (n_components,)
        Share of the total variance along each component, of all rows.
    client_ratios : mapping, default=None
        Label of a client -> shares of the variance of its rows along its own components.
    estimator_name : str, default=None
        Name in the legend.
    cumulative : bool, default=False
        Whether a second line shows the share of the first components together.
    intervals : JackknifeIntervals, default=None
        Of as many components or fewer, drawn as a band about each line.

    Attributes
    ----------
    line_, ax_, figure_ : matplotlib artists
        After `plot`.
    client_lines_ : list of matplotlib lines
        In the order of ``client_ratios``.
    cumulative_line_ : matplotlib line or None
        None unless ``cumulative``.
    bands_ : list of matplotlib collections
        With ``intervals``: about ``line_``, and about ``cumulative_line_``.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import FederatedPCA, ScreeDisplay
    >>> X, y = load_digits(return_X_y=True)
    >>> display = ScreeDisplay.from_estimator(FederatedPCA(5).fit(X, clients=y))
    >>> display.line_.get_ydata().round(3), len(display.client_lines_)
    (array([0.149, 0.136, 0.118, 0.084, 0.058]), 10)
    """

    _xlabel = "component"
    _ylabel = "share of the variance"
    _marker = "o"

    explained_variance_ratio: Sequence[float]
    client_ratios: Mapping[Any, Sequence[float]] | None = None
    _: KW_ONLY
    cumulative: bool = False
    intervals: JackknifeIntervals | None = None

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        cumulative: bool = False,
        intervals: JackknifeIntervals | None = None,
        ax: Any = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Draw a fitted estimator.

        Parameters
        ----------
        estimator : estimator
            Fitted, with ``explained_variance_ratio_``, and ``estimators_`` where it has them.
        cumulative : bool, default=False
            Whether a second line shows the share of the first components together.
        intervals : JackknifeIntervals, default=None
            Drawn as a band about each line.
        ax : matplotlib axes, default=None
            None: a new figure.
        name : str, default=None
            Name in the legend; None: the class of the estimator.
        **kwargs : dict
            Passed to ``ax.plot`` for the line of all rows.

        Returns
        -------
        display : object
            The display, drawn.
        """
        check_is_fitted(estimator)
        models = getattr(estimator, "estimators_", {})
        display = cls(
            estimator.explained_variance_ratio_,
            {label: model.explained_variance_ratio_ for label, model in models.items()},
            cumulative=cumulative,
            intervals=intervals,
            estimator_name=named(estimator, name),
        )
        return display.plot(ax=ax, **kwargs)

    def _points(self):
        ratios = np.asarray(self.explained_variance_ratio)
        return np.arange(1, len(ratios) + 1), ratios

    def _add_to_line(self):
        (x, ratios), self.client_lines_ = self._points(), []
        for of_client in (self.client_ratios or {}).values():
            shown = np.asarray(of_client)[: len(ratios)]
            self.client_lines_ += self.ax_.plot(
                np.arange(1, len(shown) + 1), shown, color="grey", linewidth=0.8, zorder=1
            )
        if self.client_lines_:
            self.client_lines_[0].set_label("each client")
        self.cumulative_line_, self.bands_, sure = None, [], self.intervals
        if sure is not None:
            label = f"{sure.confidence:.0%} intervals"
            self._add_band(self.line_, sure.explained_variance_ratio_interval, label)
        if self.cumulative:
            style = {"linestyle": "--", "marker": self._marker, "color": self.line_.get_color()}
            (self.cumulative_line_,) = self.ax_.plot(
                x, np.cumsum(ratios), label="first components together", **style
            )
            if sure is not None:
                self._add_band(self.cumulative_line_, sure.cumulative_ratio_interval)

    def _add_band(self, line, ends, label=None):
        x = line.get_xdata()[: len(ends)]
        low, high = ends[: len(x)].T
        style = {"color": line.get_color(), "alpha": 0.25, "linewidth": 0, "label": label}
        self.bands_.append(self.ax_.fill_between(x, low, high, **style))


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


# -------------------------------------------------------------------- rounds and sites

# Evidence up to which the axis is linear, and logarithmic beyond the limit otherwise.
_LINEAR = 10.0


@dataclass(eq=False, repr=False)
class CommunicationDisplay(FittedDisplay):
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
    _attribute = "communication_"
    _needs = "be federated, with communication_"

    communication: Any

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
        self._add_pooled(self.ax_.axhline, self.communication.floats_pooled)


@dataclass(eq=False, repr=False)
class RefinementDisplay(LineDisplay):
    """Bound on the error of components over the floats sent, refinement by refinement.

    Parameters
    ----------
    floats : array-like of shape (n,)
        Floats sent up and down after 0, 1, ... refinements.
    bounds : array-like of shape (n,)
        The ``subspace_error_bound_`` of each; where it is inf nothing is drawn.
    errors : array-like of shape (n,), default=None
        The errors themselves, where they are known.
    estimator_name : str, default=None
        Name in the legend.
    floats_pooled : int, default=None
        Floats in the rows.

    Attributes
    ----------
    line_, ax_, figure_ : matplotlib artists
        After `plot`.
    error_line_, pooled_line_ : matplotlib line or None
        Of the errors, and at the floats in the rows.

    Examples
    --------
    >>> from fedpca_sklearn import FederatedPCA, RefinementDisplay, make_power_law
    >>> X = make_power_law(2000, 300, alpha=1.0, random_state=0)
    >>> pca = FederatedPCA(2, n_clients=10)
    >>> display = RefinementDisplay.from_estimator(pca, X, n_refinements=3)
    >>> [bound < 0.01 for bound in display.bounds]
    [False, False, True, True]
    """

    _xlabel = "floats sent so far"
    _ylabel = "sine of the largest angle"
    _marker = "o"

    floats: Sequence[float]
    bounds: Sequence[float]
    errors: Sequence[float] | None = None
    _: KW_ONLY
    floats_pooled: int | None = None

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        components: Any = None,
        *,
        clients: Any = None,
        n_refinements: int = 5,
        ax: Any = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Fit copies of an estimator with 0, 1, ... refinements, and draw.

        Parameters
        ----------
        estimator : FederatedPCA
            Not changed.
        X : {array-like, sparse matrix} of shape (n, d)
            Rows of all clients.
        components : array-like of shape (r, d), default=None
            Those of all rows at once, from which errors are measured.
        clients : array-like of shape (n,), default=None
            Label of the client that owns each row.
        n_refinements : int, default=5
            The most refinements.
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
        floats, bounds, errors = [], [], []
        for n in range(check_integer("n_refinements", n_refinements, 0) + 1):
            fitted = clone(estimator).set_params(n_refinements=n).fit(X, clients=clients)
            log = fitted.communication_
            floats.append(log.floats_up + log.floats_down)
            bounds.append(fitted.subspace_error_bound_)
            if components is not None:
                errors.append(subspace_distance(fitted.components_, components))
        name = f"{named(estimator, name)}, bound"
        known = {"floats_pooled": log.floats_pooled, "estimator_name": name}
        return cls(floats, bounds, errors or None, **known).plot(ax=ax, **kwargs)

    def _points(self):
        bounds = np.asarray(self.bounds, dtype=float)
        return np.asarray(self.floats), np.where(np.isfinite(bounds), bounds, np.nan)

    def _add_to_line(self):
        self.ax_.set(xscale="log", yscale="log")
        self._add_pooled(self.ax_.axvline, self.floats_pooled)
        self.error_line_ = None
        if self.errors is not None:
            (self.error_line_,) = self.ax_.plot(
                self.floats, self.errors, "o--", color=self.line_.get_color(), label="error"
            )


@dataclass(eq=False, repr=False)
class SuspectsDisplay(FittedDisplay):
    """What speaks against each site, in units of the limit; suspects with the reason.

    Parameters
    ----------
    evidence : mapping
        Label of a site -> `SiteEvidence`, as in ``evidence_`` after a `RobustMerge`.
    estimator_name : str, default=None
        Name in the legend.

    Attributes
    ----------
    line_, ax_, figure_ : matplotlib artists
        After `plot`.
    limit_line_ : matplotlib line
        At 1, the limit.
    texts_ : list of matplotlib texts
        What is wrong with each suspect.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import FederatedPCA, RobustMerge, SuspectsDisplay
    >>> X = np.random.default_rng(0).standard_normal((200, 5)) * [5, 4, 1, 1, 1]
    >>> X[:20] += 100  # the first of ten sites
    >>> pca = FederatedPCA(2, merge=RobustMerge(), n_clients=10).fit(X)
    >>> display = SuspectsDisplay.from_estimator(pca)
    >>> [text.get_text() for text in display.texts_]
    ['mean']
    """

    _xlabel = "site"
    _ylabel = "evidence / limit"
    _marker = "o"
    _attribute = "evidence_"
    _needs = "have evidence_, as FederatedPCA(merge=RobustMerge()) has"

    evidence: Mapping[Any, Any]

    def _points(self):
        return np.arange(len(self.evidence)), np.array([max(e) for e in self.evidence.values()])

    def _add_to_line(self):
        self.line_.set_linestyle("")
        if max((max(found) for found in self.evidence.values()), default=0.0) > _LINEAR:
            self.ax_.set_yscale("symlog", linthresh=1.0)
            self.ax_.yaxis.set_major_formatter("{x:g}")
        names = [str(label) for label in self.evidence]
        self.ax_.set_xticks(np.arange(len(names)), names, **AS_IT_IS)
        self.limit_line_ = self.ax_.axhline(1.0, color="grey", linestyle="--")
        self.ax_.set_ylim(bottom=0.0)
        self.texts_ = []
        for at, found in enumerate(self.evidence.values()):
            if max(found) > 1:
                reasons = [name for name, value in found._asdict().items() if value > 1]
                place = {"xytext": (6, -3), "textcoords": "offset points"}
                text = self.ax_.annotate(", ".join(reasons), (at, max(found)), **place)
                self.texts_.append(text)
