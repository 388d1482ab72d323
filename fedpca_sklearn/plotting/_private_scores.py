"""A display of rows that are private: counts in cells, with noise. Drawing imports matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from ..privacy import Mechanism, ScoreCounts, private_scores
from ._displays import axes_of
from ._plane import _axis_names

__all__ = ["PrivateScoresDisplay"]


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
        counts = private_scores(
            estimator,
            X,
            mechanism,
            components=components,
            client=client,
            random_state=random_state,
        )
        return cls(counts, axis_names=_axis_names(estimator, components)).plot(ax, **kwargs)

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
