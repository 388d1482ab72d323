"""What displays share: axes, a line with its labels, and an attribute of a fitted estimator."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

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
