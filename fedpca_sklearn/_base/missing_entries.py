"""What estimators of rows with missing entries share: imputation, and a score of hidden entries."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from .._kernels.observed import ROWS_AT_ONCE, coordinates, filled_in
from .._kernels.sizes import slices_of
from .._kernels.too_large import check_squares
from .._validation.checks import check_weight
from .transformer import SubspaceTransformer

# Parts of the observed entries that `score` hides in turn.
_FOLDS = 5


def fill_in(model: Any, X: np.ndarray, usable: np.ndarray, lost: np.ndarray) -> np.ndarray:
    """Copy of rows in which lost entries are replaced by the fit to the usable ones."""
    V, mean = model._float64_model()
    return filled_in(X, usable, lost, V, mean, model._ridge())


def impute(self: Any, X: Any) -> np.ndarray:
    """Fill missing entries in from the others of their row and the subspace.

    Parameters
    ----------
    X : array-like of shape (n, d)
        Rows with the columns of `fit`; NaN is a missing entry.

    Returns
    -------
    X_full : ndarray of shape (n, d)
        Equal to X where X is not NaN. A row without any entry becomes the mean, which is 0 in a
        column that had no entry so far.
    """
    X = self._check_X(X)
    X = X.toarray() if sp.issparse(X) else X
    return fill_in(self, X, self._usable(X), np.isnan(X))


def score(self: Any, X: Any, y: Any = None, sample_weight: Any = None) -> float:
    """Share of the variation of hidden entries that the other entries of their row explain.

    Every observed entry is hidden once, with a fifth of all, and predicted from the rest and
    the subspace: 1 is perfect, 0 is as good as the means of the features in X, as in R^2,
    whatever the model's mean is. It is no likelihood: ``score_samples(X).mean()`` is one.

    Parameters
    ----------
    X : array-like of shape (n, d)
        Rows with the columns of `fit`; NaN is a missing entry.
    y : Ignored
        Not used; there because scikit-learn's pipelines pass it.
    sample_weight : array-like of shape (n,), default=None
        Weight of each row in the sums over entries; None: 1.

    Returns
    -------
    score : float
        0 for rows without variation. Cost O(n d k^2). Which entries are hidden together depends
        on the shape of X only.
    """
    X = self._check_X(X)
    weight = check_weight(sample_weight, X.shape[0], positive=True)
    check_squares(X)
    X = self._usable(X)
    V, mean = self._float64_model()
    ridge = self._ridge()
    rng = np.random.default_rng(0)
    error, sums, origin = 0.0, np.zeros((3, X.shape[1])), None
    for at in slices_of(X.shape[0], ROWS_AT_ONCE):
        rows = X[at]
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
            C, *_ = coordinates(np.where(hidden, np.nan, Z), V, ridge=ridge)
            missed[hidden] = (Z - C @ V)[hidden]
        w = 1.0 if weight is None else weight[at, None]
        error += float(np.nansum(w * missed**2))
        D = np.where(seen, rows - origin, 0.0)
        sums += [(w * part).sum(axis=0) for part in (seen, D, D**2)]
    count, first, second = sums
    variation = second - first**2 / np.where(count > 0, count, 1.0)
    total = float(np.maximum(variation, 0.0).sum())
    return 1.0 - error / total if total > 0 else 0.0


class MissingEntriesMixin(SubspaceTransformer):
    """Transform, imputation and score of estimators for rows with missing entries.

    It stands before `SubspaceTransformer`, `BlockTransformer` or `Tracker` in the list of bases,
    and lets NaN through to the methods of the subclass, which must reckon with it. A subclass
    writes nothing for it but its own `fit`, unless some entries of X that are there are not to be
    used: then ``_usable(X)`` returns a copy of X, of shape (n, d), with NaN for these as well.
    """

    _takes_missing = True

    impute = impute
    score = score
