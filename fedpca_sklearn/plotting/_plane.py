"""Displays in the plane of two components, of rows, columns, and private rows with noise."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from ..privacy import Mechanism, ScoreCounts, private_scores
from ..privacy._scores import two_components
from ..summary._adjusted import deviations
from ._displays import AS_IT_IS, axes_of

# Length of an arrow with its name, over that of the arrow.
_ROOM = 1.1


def _axis_names(estimator: Any, components: Sequence[int]) -> list[str]:
    shares = estimator.explained_variance_ratio_
    return [f"component {i + 1} ({100 * shares[i]:.0f} %)" for i in components]


def _names_of(estimator: Any) -> list[str]:
    names = getattr(estimator, "feature_names_in_", range(estimator.n_features_in_))
    shown = np.delete(np.asarray(names, dtype=object), getattr(estimator, "confounders_", []))
    return [str(name) for name in shown]


def _correlations(estimator: Any, components: Sequence[int]) -> np.ndarray:
    """Correlation of each column with the scores; 0 for constant columns."""
    V, variances = estimator.components_, estimator.explained_variance_
    summary = estimator._model_summary() if hasattr(estimator, "_model_summary") else None
    if summary is None or summary.column_scatter is None:
        noise = estimator.noise_variance_
        of_all = np.sqrt(noise + (variances - noise).clip(0) @ V**2)
    else:
        n, dof = summary.n_samples, summary.degrees_of_freedom
        of_all = deviations(summary.column_scatter, summary.mean, n) * np.sqrt(n / dof)
    shown = (np.sqrt(variances)[:, None] * V)[components]
    return np.divide(shown, of_all, out=np.zeros(shown.shape), where=of_all > 0).T


def _arrows(ax: Any, names: Sequence[str], ends: np.ndarray, width: float) -> list[Any]:
    """Draw arrows from the origin; the texts at their ends are the result."""
    style = {"angles": "xy", "scale_units": "xy", "scale": 1, "width": width}
    ax.quiver(*np.zeros((2, len(ends))), *ends.T, **style)
    return [ax.annotate(name, end, **AS_IT_IS) for name, end in zip(names, ends, strict=True)]


@dataclass(eq=False, repr=False)
class ScoresDisplay:
    """Rows in the plane of two components, coloured by label.

    Parameters
    ----------
    scores : array-like of shape (n, 2)
        Coordinates of the rows.
    labels : array-like of shape (n,), default=None
        A colour and an entry in the legend for each.
    axis_names : sequence of str, default=("component 1", "component 2")
        Labels of the axes.

    Attributes
    ----------
    ax_, figure_ : matplotlib artists
        After `plot`.
    collections_ : list of matplotlib collections
        Points, one collection for each label.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from fedpca_sklearn import FederatedPCA, ScoresDisplay
    >>> X, y = load_iris(return_X_y=True)
    >>> pca = FederatedPCA(2).fit(X, clients=y)
    >>> display = ScoresDisplay.from_estimator(pca, X, labels=y)
    >>> display.ax_.get_xlabel()
    'component 1 (92 %)'
    """

    scores: Any
    _: KW_ONLY
    labels: Any = None
    axis_names: Sequence[str] = ("component 1", "component 2")

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        *,
        labels: Any = None,
        components: Sequence[int] = (0, 1),
        ax: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Draw the rows of X, and in a biplot the columns of the estimator.

        Parameters
        ----------
        estimator : estimator
            Fitted, with ``components_``; for a biplot with ``noise_variance_``, too.
        X : {array-like, sparse matrix} of shape (n, d)
            Rows.
        labels : array-like of shape (n,), default=None
            For instance the site or the class of each row.
        components : sequence of two int, default=(0, 1)
            Which components, from 0.
        ax : matplotlib axes, default=None
            None: a new figure.
        **kwargs : dict
            Passed to ``ax.scatter``.

        Returns
        -------
        display : object
            The display, drawn.
        """
        at = two_components(estimator, components)
        scores = np.asarray(estimator.transform(X))[:, at]
        of_columns = cls._of_columns(estimator, at)
        display = cls(scores, *of_columns, labels=labels, axis_names=_axis_names(estimator, at))
        return display.plot(ax, **kwargs)

    @classmethod
    def _of_columns(cls, estimator: Any, at: list[int]) -> tuple:
        """What is drawn beside the rows."""
        return ()

    def plot(self, ax: Any = None, **kwargs: Any) -> Any:
        """Draw the display.

        Parameters
        ----------
        ax : matplotlib axes, default=None
            None: a new figure.
        **kwargs : dict
            Passed to ``ax.scatter``.

        Returns
        -------
        display : object
            This object, with the artists as attributes.
        """
        Z = np.asarray(self.scores)
        labels = np.zeros(len(Z)) if self.labels is None else np.asarray(self.labels)
        if labels.shape != (len(Z),):
            raise ValueError(f"labels must have shape ({len(Z)},), got {labels.shape}.")
        ax = axes_of(ax)
        try:
            values, of_row = np.unique(labels, return_inverse=True)
        except TypeError:  # None among texts, say
            values, of_row = np.unique(labels.astype(str), return_inverse=True)
        style = {"s": 12, "alpha": 0.7, **kwargs}
        self.collections_ = [
            # a legend leaves out what begins with an underscore
            ax.scatter(*Z[of_row == i].T, label=re.sub("^_", " _", str(label)), **style)
            for i, label in enumerate(values)
        ]
        ax.set(xlabel=self.axis_names[0], ylabel=self.axis_names[1])
        if self.labels is not None:
            for text in ax.legend().get_texts():
                text.set(**AS_IT_IS)
        self.ax_, self.figure_ = ax, ax.figure
        self._add_columns()
        return self

    def _add_columns(self) -> None:
        """Draw what is to be seen beside the rows."""


@dataclass(eq=False, repr=False)
class LoadingsDisplay:
    """Which columns two components are made of: the correlation circle, or bars.

    Parameters
    ----------
    correlations : array-like of shape (d, 2)
        Of each column with the scores.
    names : sequence of str
        Names of the columns.
    axis_names : sequence of str, default=("component 1", "component 2")
        Labels of the axes.

    Attributes
    ----------
    ax_, figure_ : matplotlib artists
        After `plot`.
    texts_ : list of matplotlib texts
        Names of columns in the circle.

    Notes
    -----
    The square of a column's distance from the centre of the circle is the share of its variance
    that both components explain. Of trackers and of scikit-learn's PCA, which know no variance of a
    column, it is the share of that in their model, `get_covariance`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from fedpca_sklearn import FederatedPCA, LoadingsDisplay
    >>> data = load_iris(as_frame=True)
    >>> pca = FederatedPCA(2).fit(data.data, clients=data.target)
    >>> display = LoadingsDisplay.from_estimator(pca)
    >>> display.correlations[2].round(2)  # petal length
    array([ 1.  , -0.05])
    """

    correlations: Any
    names: Sequence[str]
    _: KW_ONLY
    axis_names: Sequence[str] = ("component 1", "component 2")

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        components: Sequence[int] = (0, 1),
        kind: str = "circle",
        ax: Any = None,
    ) -> LoadingsDisplay:
        """Draw the columns of a fitted estimator.

        Parameters
        ----------
        estimator : estimator
            Fitted, with ``components_`` and ``noise_variance_``.
        components : sequence of two int, default=(0, 1)
            Which components, from 0.
        kind : {"circle", "bars"}, default="circle"
            What to draw.
        ax : matplotlib axes, default=None
            None: a new figure.

        Returns
        -------
        display : LoadingsDisplay
            The display, drawn.
        """
        at = two_components(estimator, components)
        names = _axis_names(estimator, at)
        display = cls(_correlations(estimator, at), _names_of(estimator), axis_names=names)
        return display.plot(ax, kind=kind)

    def plot(self, ax: Any = None, *, kind: str = "circle") -> LoadingsDisplay:
        """Draw the display.

        Parameters
        ----------
        ax : matplotlib axes, default=None
            None: a new figure.
        kind : {"circle", "bars"}, default="circle"
            What to draw.

        Returns
        -------
        display : LoadingsDisplay
            This object, with the artists as attributes.
        """
        if kind not in ("circle", "bars"):
            raise ValueError(f"kind must be 'circle' or 'bars', got {kind!r}.")
        ax, R = axes_of(ax), np.asarray(self.correlations)
        self.ax_, self.figure_, self.texts_ = ax, ax.figure, []
        if kind == "bars":
            at = np.arange(len(R))
            for i, (name, shift) in enumerate(zip(self.axis_names, (-0.2, 0.2), strict=True)):
                ax.bar(at + shift, R[:, i], 0.4, label=name)
            ax.set_xticks(at, self.names, rotation=90, **AS_IT_IS)
            ax.set(ylabel="correlation", ylim=(-1, 1))
            ax.legend()
            return self
        turn = np.linspace(0, 2 * np.pi, 200)
        ax.plot(np.cos(turn), np.sin(turn), color="grey")
        self.texts_ = _arrows(ax, self.names, R, 0.004)
        ax.set(xlabel=self.axis_names[0], ylabel=self.axis_names[1], aspect="equal")
        return self


@dataclass(eq=False, repr=False)
class BiplotDisplay(ScoresDisplay):
    """Rows in the plane of two components, and columns as arrows from its origin.

    Parameters
    ----------
    scores : array-like of shape (n, 2)
        Coordinates of the rows.
    correlations : array-like of shape (d, 2)
        Of each column with the scores.
    names : sequence of str
        Names of the columns.
    labels : array-like of shape (n,), default=None
        A colour and an entry in the legend for each.
    axis_names : sequence of str, default=("component 1", "component 2")
        Labels of the axes.

    Attributes
    ----------
    ax_, figure_ : matplotlib artists
        After `plot`.
    collections_ : list of matplotlib collections
        Points, one collection for each label.
    texts_ : list of matplotlib texts
        Names of columns.

    Notes
    -----
    Arrows are correlations, drawn to the size of the cloud of rows.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.preprocessing import scale
    >>> from fedpca_sklearn import BiplotDisplay, FederatedPCA
    >>> X, y = load_wine(return_X_y=True)
    >>> pca = FederatedPCA(2).fit(scale(X), clients=y)
    >>> display = BiplotDisplay.from_estimator(pca, scale(X), labels=y)
    >>> len(display.texts_)
    13
    """

    correlations: Any
    names: Sequence[str]

    @classmethod
    def _of_columns(cls, estimator, at):
        return _correlations(estimator, at), _names_of(estimator)

    def _add_columns(self):
        arrows = np.asarray(self.correlations) * np.abs(np.asarray(self.scores)).max(axis=0)
        self.texts_ = _arrows(self.ax_, self.names, arrows, 0.003)
        self.ax_.update_datalim(_ROOM * arrows)  # which arrows do not do by themselves
        self.ax_.autoscale_view()


@dataclass(eq=False, repr=False)
class PrivateScoresDisplay:
    """How many rows are where in the plane of two components, by differential privacy.

    What `ScoresDisplay` shows of single rows nobody may see; noisy counts may be shown.

    Parameters
    ----------
    counts : ScoreCounts
        As `privacy.private_scores` returns them.
    axis_names : sequence of str, default=("component 1", "component 2")
        Labels of the axes.

    Attributes
    ----------
    ax_, figure_ : matplotlib artists
        After `plot`.
    mesh_ : matplotlib collection
        Cells; those below the noise are empty.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import AnalyzeGauss, FederatedPCA, PrivateScoresDisplay
    >>> X, y = load_digits(return_X_y=True)
    >>> private = AnalyzeGauss(4.0, 1e-5, row_norm=50, center=[5.0] * 64)
    >>> pca = FederatedPCA(2, mechanism=private, n_clients=1, random_state=0).fit(X)
    >>> display = PrivateScoresDisplay.from_estimator(pca, X, AnalyzeGauss(1.0, 1e-5, row_norm=1))
    >>> display.counts.counts.shape
    (10, 10)
    """

    counts: ScoreCounts
    _: KW_ONLY
    axis_names: Sequence[str] = ("component 1", "component 2")

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        mechanism: Mechanism,
        *,
        components: Sequence[int] = (0, 1),
        client: Any = 0,
        random_state: Any = None,
        ax: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Count the rows of X, which costs the budget of the mechanism, and draw the counts.

        Parameters
        ----------
        estimator : estimator
            Fitted with a mechanism.
        X : {array-like, sparse matrix} of shape (n, d)
            Rows of one client.
        mechanism : Mechanism
            Epsilon, delta and the ledger of the counts.
        components : sequence of two int, default=(0, 1)
            Which components, from 0.
        client : int or str, default=0
            Whose rows they are, in a ledger.
        random_state : int, RandomState or None, default=None
            Of the noise; in tests only.
        ax : matplotlib axes, default=None
            None: a new figure.
        **kwargs : dict
            Passed to ``ax.pcolormesh``.

        Returns
        -------
        display : object
            The display, drawn.
        """
        at = two_components(estimator, components)
        asked = {"components": at, "client": client, "random_state": random_state}
        counts = private_scores(estimator, X, mechanism, **asked)
        return cls(counts, axis_names=_axis_names(estimator, at)).plot(ax, **kwargs)

    def plot(self, ax: Any = None, **kwargs: Any) -> Any:
        """Draw the display.

        Parameters
        ----------
        ax : matplotlib axes, default=None
            None: a new figure.
        **kwargs : dict
            Passed to ``ax.pcolormesh``.

        Returns
        -------
        display : object
            This object, with the artists as attributes.
        """
        ax, of = axes_of(ax), self.counts
        shown = np.ma.masked_less(of.counts.T, of.std)
        self.mesh_ = ax.pcolormesh(*of.edges, shown, **kwargs)
        ax.set(xlabel=self.axis_names[0], ylabel=self.axis_names[1])
        self.ax_, self.figure_ = ax, ax.figure
        self.figure_.colorbar(self.mesh_, ax=ax, label=f"rows, +- {of.std:.0f}")
        return self
