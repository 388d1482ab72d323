"""Rows with missing entries (NaN): coordinates from what is there, imputation, a score."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import check_is_fitted

from ._checks import check_weight
from ._containers import validate_data
from .base import PublishedStateMixin

# Rows whose coordinates are computed at once.
_ROWS_AT_ONCE = 64
# Products of entries of the basis that are held at once.
_PRODUCTS_AT_ONCE = 2**18
# Eigenvalues of ``A^T A`` up to which a row's entries count as too few for all its coordinates.
_UNDETERMINED = 1e-10
# Parts of the observed entries that `score` hides in turn.
_FOLDS = 5


def _has_holes(X: Any) -> bool:
    return bool(np.isnan(X.data if sp.issparse(X) else X).any())


class MissingEntriesMixin(PublishedStateMixin):
    """Transform, imputation and score of estimators for rows with missing entries."""

    def _check_X(self, X: Any) -> Any:
        check_is_fitted(self, "components_")
        return validate_data(
            self,
            X,
            accept_sparse="csr",
            dtype=[np.float64, np.float32],
            ensure_all_finite="allow-nan",
            reset=False,
        )

    def _usable(self, X: np.ndarray) -> np.ndarray:
        """Rows with NaN for all entries that are not to be used, not only for missing ones."""
        return X

    def _coordinates(self, X, V, squared_norms=None, scale=None):
        if squared_norms is not None and _has_holes(X):
            raise ValueError("X has missing entries: the likelihood needs whole rows.")
        return super()._coordinates(X, V, squared_norms, scale)

    def _project(self, X: Any) -> np.ndarray:
        X = self._usable(X)
        if not _has_holes(X):
            return super()._project(X)
        X = X.toarray() if sp.issparse(X) else X
        V, mean = self._float64_model()
        Z = np.empty((len(X), len(V)), dtype=np.result_type(X, self.components_))
        for start in range(0, len(X), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            Z[rows] = coordinates(X[rows] - mean, V)[0]
        return Z

    def _float64_model(self) -> tuple[np.ndarray, np.ndarray]:
        return self.components_.astype(np.float64), self.mean_.astype(np.float64)

    def _fill_in(self, X: np.ndarray, usable: np.ndarray, lost: np.ndarray) -> np.ndarray:
        """Copy of rows with the fit to what is usable where entries are lost."""
        X = X.copy()
        V, mean = self._float64_model()
        for start in range(0, len(X), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            if lost[rows].any():
                C, _ = coordinates(usable[rows] - mean, V)
                X[rows][lost[rows]] = (C @ V + mean)[lost[rows]]
        return X

    def impute(self, X: Any) -> np.ndarray:
        """Fill missing entries in from the others of their row and the subspace.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        X_full : ndarray of shape (n, d)
            Equal to X where X is not NaN. A row without any entry becomes the mean.
        """
        X = self._check_X(X)
        X = X.toarray() if sp.issparse(X) else X
        return self._fill_in(X, self._usable(X), np.isnan(X))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Share of the variation of hidden entries that the other entries of their row explain.

        Every observed entry is hidden once, with a fifth of all, and predicted from the rest and
        the subspace: 1 is perfect, 0 is as good as the means of the features in X, as in R^2,
        whatever the model's mean is. Unlike the likelihood it needs no whole rows.

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : Ignored
        sample_weight : array-like of shape (n,), default=None

        Returns
        -------
        score : float
            0 for rows without variation. Cost O(n d k^2). Which entries are hidden together depends
            on the shape of X only.
        """
        X = self._check_X(X)
        weight = check_weight(sample_weight, X.shape[0])
        if weight is not None and not weight.any():
            raise ValueError("sample_weight must have a positive sum, got zero weights only.")
        X = self._usable(X)
        V, mean = self._float64_model()
        rng = np.random.default_rng(0)
        error, sums, origin = 0.0, np.zeros((3, X.shape[1])), None
        for start in range(0, X.shape[0], _ROWS_AT_ONCE):
            rows = X[start : start + _ROWS_AT_ONCE]
            rows = rows.toarray() if sp.issparse(rows) else rows
            seen = ~np.isnan(rows)
            if origin is None:  # a feature's first entry, so that constant ones vary by nothing
                origin = rows[seen.argmax(axis=0), np.arange(rows.shape[1])].astype(np.float64)
                origin[~seen.any(axis=0)] = 0.0
            Z = rows - mean
            fold = rng.integers(_FOLDS, size=Z.shape)
            missed = np.zeros_like(Z)
            for i in range(_FOLDS):
                hidden = fold == i
                C, _ = coordinates(np.where(hidden, np.nan, Z), V)
                missed[hidden] = (Z - C @ V)[hidden]
            w = 1.0 if weight is None else weight[start : start + _ROWS_AT_ONCE, None]
            error += float(np.nansum(w * missed**2))
            D = np.where(seen, rows - origin, 0.0)
            sums += [(w * part).sum(axis=0) for part in (seen, D, D**2)]
        count, first, second = sums
        variation = second - first**2 / np.where(count > 0, count, 1.0)
        total = float(np.maximum(variation, 0.0).sum())
        return 1.0 - error / total if total > 0 else 0.0

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def coordinates(
    Z: np.ndarray, V: np.ndarray, cutoff: float = _UNDETERMINED
) -> tuple[np.ndarray, np.ndarray]:
    """Least-squares coordinates of rows in an orthonormal basis, from the entries that are there.

    The smallest ones where these entries do not determine them. Also returns by how much each row's
    coordinates amplify the variance of noise, 1 for whole rows. See `gram_inverses`.
    """
    gain = np.ones(len(Z))
    missing = np.isnan(Z)
    if not missing.any():
        return Z @ V.T, gain
    seen = ~missing
    C = np.where(seen, Z, 0.0) @ V.T
    holes = np.flatnonzero(~seen.all(axis=1)) if len(V) else []
    if len(holes):
        inverse, gain[holes] = gram_inverses(seen[holes], V, cutoff)
        C[holes] = (inverse @ C[holes][:, :, None])[:, :, 0]
    return C, gain


def gram_inverses(
    seen: np.ndarray, V: np.ndarray, cutoff: float = _UNDETERMINED
) -> tuple[np.ndarray, np.ndarray]:
    """Inverse of ``A^T A`` for each row, with A the part of ``V.T`` at the entries that are there.

    Without the eigenvalues up to ``cutoff``, of which the largest possible is 1. O(d k^2) time a
    row, all rows at once. Also returns its largest entry, infinity where there are such.

    Parameters
    ----------
    seen : ndarray of shape (m, d), bool
    V : ndarray of shape (k, d), k > 0
        Orthonormal rows.
    """
    k, d = V.shape
    rows, cols = np.triu_indices(k)
    lost = np.zeros((len(seen), len(rows)))
    step = max(1, _PRODUCTS_AT_ONCE // len(rows))
    for start in range(0, d, step):
        part = V[:, start : start + step]
        gone = (~seen[:, start : start + step]).astype(np.float64)
        lost += gone @ (part[rows] * part[cols]).T
    G = np.empty((len(seen), k, k))
    G[:, rows, cols] = -lost
    G[:, cols, rows] = -lost
    G[:, np.arange(k), np.arange(k)] += 1
    try:
        inverse = np.linalg.inv(G)
        gain = np.abs(inverse).max(axis=(1, 2))
        doubtful = ~(gain < 1 / (k * cutoff))
    except np.linalg.LinAlgError:
        inverse, gain, doubtful = np.empty_like(G), np.empty(len(G)), np.ones(len(G), dtype=bool)
    if doubtful.any():
        values, U = np.linalg.eigh(G[doubtful])
        dropped = values <= cutoff
        values[dropped] = np.inf
        inverse[doubtful] = (U / values[:, None, :]) @ U.transpose(0, 2, 1)
        largest = np.abs(inverse[doubtful]).max(axis=(1, 2))
        gain[doubtful] = np.where(dropped.any(axis=1), np.inf, largest)
    return inverse, gain
