"""Display of the error over refinements, and of its bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import clone

from ..metrics import subspace_distance
from ._displays import _LineDisplay

__all__ = ["RefinementDisplay"]


class RefinementDisplay(_LineDisplay):
    """Bound on the error of components over the floats sent, refinement by refinement.

    Parameters
    ----------
    floats : array-like of shape (n,)
        Floats sent up and down after 0, 1, ... refinements.
    bounds : array-like of shape (n,)
        The ``subspace_error_bound_`` of each; where it is inf nothing is drawn.
    errors : array-like of shape (n,), default=None
        The errors themselves, where they are known.
    floats_pooled : int, default=None
        Floats in the rows.
    estimator_name : str, default=None
        Name in the legend.

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

    def __init__(
        self,
        floats: Sequence[float],
        bounds: Sequence[float],
        errors: Sequence[float] | None = None,
        *,
        floats_pooled: int | None = None,
        estimator_name: str | None = None,
    ):
        self.floats, self.bounds, self.errors = floats, bounds, errors
        self.floats_pooled, self.estimator_name = floats_pooled, estimator_name

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
        for n in range(n_refinements + 1):
            fitted = clone(estimator).set_params(n_refinements=n).fit(X, clients=clients)
            log = fitted.communication_
            floats.append(log.floats_up + log.floats_down)
            bounds.append(fitted.subspace_error_bound_)
            if components is not None:
                errors.append(subspace_distance(fitted.components_, components))
        name = type(estimator).__name__ if name is None else name
        display = cls(
            floats,
            bounds,
            errors or None,
            floats_pooled=log.floats_pooled,
            estimator_name=f"{name}, bound",
        )
        return display.plot(ax=ax, **kwargs)

    def _points(self):
        bounds = np.asarray(self.bounds, dtype=float)
        return np.asarray(self.floats), np.where(np.isfinite(bounds), bounds, np.nan)

    def _add_to_line(self):
        self.ax_.set(xscale="log", yscale="log")
        self.error_line_ = self.pooled_line_ = None
        if self.errors is not None:
            (self.error_line_,) = self.ax_.plot(
                self.floats, self.errors, "o--", color=self.line_.get_color(), label="error"
            )
        if self.floats_pooled:
            self.pooled_line_ = self.ax_.axvline(
                self.floats_pooled, color="grey", linestyle=":", label="the rows themselves"
            )
