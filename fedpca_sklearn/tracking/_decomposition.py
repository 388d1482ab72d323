"""Rows as what a subspace explains, and outliers."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import scipy.sparse as sp

from .._base.missing_entries import MissingEntriesMixin
from .._kernels.missing import filled_in


class DecompositionMixin(MissingEntriesMixin):
    """`decompose` for estimators that find the outliers of new rows."""

    @abstractmethod
    def _outliers_removed(self, X: Any) -> np.ndarray:
        """Copy of rows with NaN at outliers, as at missing entries."""

    def decompose(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Separate rows into what the subspace explains and outliers.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Rows, with NaN where entries are missing.

        Returns
        -------
        low_rank : ndarray of shape (n, d)
            X without outliers: at outliers and missing entries the least-squares fit of the
            subspace to the rest of the row, elsewhere X itself, noise included.
        sparse : ndarray of shape (n, d)
            ``X - low_rank`` at outliers, else zero.
        """
        X = self._check_X(X)
        X = X.toarray() if sp.issparse(X) else X
        usable = self._outliers_removed(X)
        lost = np.isnan(usable)
        V, mean = self._float64_model()
        low_rank = filled_in(X, usable, lost, V, mean, self._ridge())
        sparse = np.where(lost & ~np.isnan(X), X - low_rank, 0.0).astype(X.dtype)
        return low_rank, sparse
