"""Display of what speaks against sites that may lie. Drawing imports matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ._displays import _FittedDisplay
from ._names import AS_IT_IS

__all__ = ["SuspectsDisplay"]

# Evidence up to which the axis is linear, and logarithmic beyond the limit otherwise.
_LINEAR = 10.0


class SuspectsDisplay(_FittedDisplay):
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
    _drawstyle = "default"
    _marker = "o"

    def __init__(self, evidence: Mapping[Any, Any], *, estimator_name: str | None = None):
        self.evidence = evidence
        self.estimator_name = estimator_name

    @classmethod
    def _of(cls, estimator, name):
        if not hasattr(estimator, "evidence_"):
            raise TypeError(
                "estimator must have evidence_, as FederatedPCA(merge=RobustMerge()) has, got "
                f"{type(estimator).__name__}."
            )
        return cls(estimator.evidence_, estimator_name=name)

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
