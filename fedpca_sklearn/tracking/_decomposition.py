"""How outliers are found, and rows as what a subspace explains and outliers."""

from __future__ import annotations

from numbers import Real
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from sklearn.utils._param_validation import StrOptions

from .._base.missing_entries import fill_in
from .._kernels.sizes import slices_of
from .._validation.intervals import AT_LEAST_ONE, Interval
from .._validation.parameters import allowed, with_parameters
from ._outliers import search_batch, search_rows, sparse_part, start_of_support
from ._stmiss import TrackerPart

# Rows that are searched for outliers at once, outside `fit`.
ROWS_AT_ONCE = 64
_AUTO_OR_SIZE = StrOptions({"auto"}), Interval(Real, 0, None, closed="left")


@with_parameters
class OutlierSupport(TrackerPart):
    """Which entries of a row are outliers, for the parameter ``support_threshold`` of a tracker.

    Entries of the sparse part of what the last subspace does not explain, above a threshold
    (RST-miss [1]_). A threshold alone stands for an object with the other parameters' defaults.
    They are searched as ``support_threshold__xi``.

    Parameters
    ----------
    threshold : float or "auto", default="auto"
        Entries of the sparse part above are outliers; omega_supp of [1]_, which takes s_min / 2 for
        outliers of at least s_min. "auto": six standard deviations of what the subspace left of the
        column in some 200 rows, and six robust ones of what is left of the row, whichever is more;
        lower, down to three, in rows with many more entries between than normal noise has.
    xi : float or "auto", default="auto"
        Norm of the part of a row that is neither in the last subspace nor sparse; [1]_ takes s_min
        / 15. "auto": from the lower decile of what the subspace does not explain, for each row.
    absorb_after : int or None, default=1000
        Rows after which a feature that is an outlier in most of them is learnt, as the subspace has
        changed there. None: never. `FederatedSubspaceTracker`, whose server sees no positions,
        never does, and refuses another number.

    See Also
    --------
    RobustSubspaceTracker, FederatedSubspaceTracker : Use it.
    projected_sparse_recovery : The sparse part.

    References
    ----------
    .. [1] P. Narayanamurthy, N. Vaswani, A. Ramamoorthy, "Federated over-air subspace tracking from
       incomplete and corrupted data", IEEE Transactions on Signal Processing 2022.

    Examples
    --------
    >>> from fedpca_sklearn import OutlierSupport, RobustSubspaceTracker, make_subspace_stream
    >>> stream = make_subspace_stream(600, 200, 5, delta=0, outliers=0.1, random_state=0)
    >>> support = OutlierSupport(threshold=5.0, xi=10 / 15)  # outliers of at least 10
    >>> tracker = RobustSubspaceTracker(5, support_threshold=support).fit(stream.X)
    >>> bool((tracker.outlier_mask_ == (stream.outliers & ~stream.missing)).all())
    True
    """

    threshold: float | Literal["auto"] = allowed(*_AUTO_OR_SIZE, default="auto")
    xi: float | Literal["auto"] = allowed(*_AUTO_OR_SIZE, default="auto")
    absorb_after: int | None = allowed(AT_LEAST_ONE, None, default=1000)

    def _outliers(
        self, Z: np.ndarray, V: np.ndarray, columns: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where rows about the mean have outliers, and what entries of each column had to exceed.

        RST-miss without its last step, the debiasing. With ``columns``, thresholds from rows
        before, each row stands for itself.
        """
        if self.threshold != "auto":
            mask = np.abs(sparse_part(Z, V, self.xi)) > self.threshold
            return mask, np.full(Z.shape[1], float(self.threshold))
        if columns is not None:
            return search_rows(Z, V, self.xi, columns).mask, columns
        return search_batch(Z, V, start_of_support(Z, V, self.xi))


def decompose(self: Any, X: Any) -> tuple[np.ndarray, np.ndarray]:
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
    low_rank = fill_in(self, X, usable, lost)
    sparse = np.where(lost & ~np.isnan(X), X - low_rank, 0.0).astype(X.dtype)
    return low_rank, sparse


def outliers_removed(tracker: Any, X: Any) -> np.ndarray:
    """Copy of rows with NaN at outliers, by the thresholds after the rows of the fit."""
    U = X.toarray() if sp.issparse(X) else X.copy()
    V, mean = tracker._float64_model()
    support, columns = tracker._support, known_thresholds(tracker.support_threshold_)
    with np.errstate(over="ignore", invalid="ignore"):  # of values near the largest float
        for at in slices_of(len(U), ROWS_AT_ONCE):
            U[at][support._outliers(U[at] - mean, V, columns)[0]] = np.nan
    return U


def known_thresholds(threshold: np.ndarray | None) -> np.ndarray | None:
    """Thresholds of the columns, None if no batch was searched yet."""
    return None if threshold is None or not threshold.any() else threshold
