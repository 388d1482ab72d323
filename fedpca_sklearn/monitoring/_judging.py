"""What a fitted monitor says of rows."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from ._model import MonitorModel
from ._recent import ByScores, ByVariances, Limit

# Scores are finite, also of rows whose squares overflow.
_MOST_UNLIKE = 1e200


class JudgingMixin:
    """scikit-learn's methods of outlier detectors, and contributions, by a model and its limits."""

    @abstractmethod
    def _now(self) -> MonitorModel:
        """The model of all rows."""

    # How p-values are combined, and the limit of what is combined.
    _scale: ByScores | ByVariances
    _limit: Limit

    def _unlike(self, surprises: np.ndarray) -> np.ndarray:
        """Minus the logarithms of combined p-values."""
        return np.minimum(self._scale.combined(surprises), _MOST_UNLIKE)

    @property
    def offset_(self) -> float:
        """Least score of a row that is not an outlier."""
        self._now()
        return -self._limit.value

    def _limits(self, model: MonitorModel, size: np.ndarray) -> np.ndarray:
        """Limits of the three distances of rows with so many entries, (n, 3)."""
        return model.limits(self._scale.parts(self._limit.value), size)

    @abstractmethod
    def _checked(self, X: Any, reset: bool = False) -> Any:
        """Rows of floats, dense or CSR."""

    def statistics(self, X: Any) -> np.ndarray:
        """Squared prediction error and T2 of rows, over limits of theirs.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Rows with the columns of `fit`.

        Returns
        -------
        shares : ndarray of shape (n, 2)
            Q and T2 over ``q_limit_`` and ``t2_limit_``; of rows with missing entries over limits
            for so many entries. A row with a number above 1 is an outlier. So is one whose squared
            distance as a whole is too large, which is measured beside them.
        """
        model = self._now()
        distances, size = model.distances(self._checked(X))
        limits = self._limits(model, size)
        with np.errstate(invalid="ignore"):
            return np.where(np.isinf(limits), 0.0, distances / limits)[:, :2]

    def score_samples(self, X: Any) -> np.ndarray:
        """How unlike rows are by their least p-value: the less, the more unlike.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Rows with the columns of `fit`.

        Returns
        -------
        scores : ndarray of shape (n,)
            Logarithm of the p-value: 0 for the mean, below ``offset_`` for outliers.
        """
        model = self._now()
        return -self._unlike(model.surprises(*model.distances(self._checked(X))))

    def decision_function(self, X: Any) -> np.ndarray:
        """Score of rows less ``offset_``.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Rows with the columns of `fit`.

        Returns
        -------
        decisions : ndarray of shape (n,)
            Negative for outliers.
        """
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> np.ndarray:
        """Whether rows belong.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Rows with the columns of `fit`.

        Returns
        -------
        labels : ndarray of shape (n,)
            1, or -1 for outliers.
        """
        return np.where(self.score_samples(X) < self.offset_, -1, 1)

    def contributions(self, X: Any) -> np.ndarray:
        """By how much each entry makes its row unlike.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Rows with the columns of `fit`.

        Returns
        -------
        deviations : ndarray of shape (n, d)
            Entry less what the other entries of its row predict, in standard deviations of that
            prediction: standard normal for normal rows. Its square is what the squared distance of
            the row from the mean would lose without the entry (reconstruction-based contribution,
            Alcala and Qin 2009). NaN where the entry is missing. O(n d k^2).
        """
        model = self._now()
        return model.deviations(self._checked(X))
