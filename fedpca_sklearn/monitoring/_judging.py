"""What a fitted monitor says of rows."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from ._model import MonitorModel


class JudgingMixin:
    """scikit-learn's methods of outlier detectors, and contributions, by a model and an offset."""

    @property
    @abstractmethod
    def offset_(self) -> float:
        """Least score of a row that is not an outlier."""

    @abstractmethod
    def _now(self) -> MonitorModel:
        """The model of all rows."""

    @abstractmethod
    def _checked(self, X: Any, reset: bool = False) -> Any:
        """Rows of floats, dense or CSR."""

    def statistics(self, X: Any) -> np.ndarray:
        """Squared prediction error and T2 of rows, over their limits.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Rows with the columns of `fit`.

        Returns
        -------
        shares : ndarray of shape (n, 2)
            Q over its limit and T2 over its limit, by ``limits="chi2"``. Times ``q_limit_`` and
            ``t2_limit_``, over minus ``offset_``, they are Q and T2 of whole rows.
        """
        model = self._now()
        return model.shares(self._checked(X))

    def score_samples(self, X: Any) -> np.ndarray:
        """Minus the larger of Q and T2 over their limits: the less, the more unlike.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Rows with the columns of `fit`.

        Returns
        -------
        scores : ndarray of shape (n,)
            0 for the mean, below -1 above a limit.
        """
        return -self.statistics(X).max(axis=1)

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
