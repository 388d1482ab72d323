"""Displays of rounds and sites: what was sent, what for, and what speaks against a site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from ..metrics import subspace_distance
from ._displays import AS_IT_IS, FittedDisplay, LineDisplay, named

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
        self.pooled_line_ = None
        if self.communication.floats_pooled:
            name = "the rows themselves"
            drawn = any(line.get_label() == name for line in self.ax_.lines)
            label = None if drawn else name
            self.pooled_line_ = self.ax_.axhline(
                self.communication.floats_pooled, color="grey", linestyle="--", label=label
            )


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
        for n in range(n_refinements + 1):
            fitted = clone(estimator).set_params(n_refinements=n).fit(X, clients=clients)
            log = fitted.communication_
            floats.append(log.floats_up + log.floats_down)
            bounds.append(fitted.subspace_error_bound_)
            if components is not None:
                errors.append(subspace_distance(fitted.components_, components))
        name = f"{named(estimator, name)}, bound"
        display = cls(floats, bounds, errors or None, estimator_name=name)
        display.floats_pooled = log.floats_pooled
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
