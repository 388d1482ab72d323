"""Outliers of rows near a known subspace: sparse recovery, thresholds, and supports."""

from __future__ import annotations

from numbers import Real
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp
import scipy.special
from sklearn.utils import check_array
from sklearn.utils._param_validation import StrOptions

from .._base.missing_entries import fill_in
from .._kernels import linalg
from .._kernels.observed import coordinates, gram_inverses
from .._kernels.sizes import slices_of
from .._kernels.tolerances import GIVEN_BASIS_TOL, OUTLIER_DEVIATIONS
from .._validation.arrays import in_numpy
from .._validation.checks import (
    AT_LEAST_ONE,
    Interval,
    allowed,
    check_integer,
    float_array,
    with_parameters,
)
from ._stmiss import TrackerPart

# Iterations between two looks at the relative duality gap.
_BETWEEN = 10
# Over-relaxation of the Douglas-Rachford iteration.
_RELAXATION = 1.6
# A projected row below this share of the row is a rounding error.
_ROUNDING = 1e-12


def projected_sparse_recovery(
    X: Any,
    components: Any,
    xi: Any = 0.0,
    *,
    tol: float = 1e-3,
    max_iter: int = 1000,
) -> tuple[np.ndarray, np.ndarray]:
    """Sparse part of rows that lie near a subspace but for outliers and missing entries.

    Solves, for each row y, the problem of modified compressed sensing

        min ||s||_1 over the entries that are there,  subject to  ||Psi (y - s)|| <= xi,

    with Psi the projection on the orthogonal complement of the subspace, and s free where entries
    are missing.

    Parameters
    ----------
    X : array-like of shape (n, d)
        Rows about the mean, NaN where missing.
    components : array-like of shape (k, d)
        Orthonormal basis of the subspace.
    xi : float or array-like of shape (n,), default=0.0
        Norm of what is neither in the subspace nor sparse.
    tol : float, default=1e-3
        A row is finished when its duality gap is at most so much of its objective, and then does
        not depend on the others.
    max_iter : int, default=1000
        Iterations after which a row is returned as it is.

    Returns
    -------
    sparse : ndarray of shape (n, d)
        Feasible; zero where X is missing.
    gap : ndarray of shape (n,)
        The minimum is at least ``1 - gap`` times the objective; above ``tol`` where ``max_iter``
        was reached.

    Notes
    -----
    Algorithm 4, line 5 of [1]_. Missing entries are eliminated: minimising over them leaves the
    projection on the complement of the basis restricted to the entries that are there, which costs
    a k x k system a row, once. The rest is Douglas-Rachford splitting for all rows together:
    soft-thresholding, and the projection on the constraint, in closed form because Psi is a
    projection. An iteration is four products with the basis, O(n d k). Any p with Psi p = p, zero
    where entries are missing, and no entry above 1 bounds the minimum from below by
    ``<p, y> - xi ||p||``; the iteration's own dual variable, projected and scaled, gives the gap.

    References
    ----------
    .. [1] P. Narayanamurthy, N. Vaswani, A. Ramamoorthy, "Federated over-air subspace tracking from
       incomplete and corrupted data", IEEE Transactions on Signal Processing 2022.
    .. [2] N. Vaswani, W. Lu, "Modified-CS: modifying compressive sensing for problems with
       partially known support", IEEE Transactions on Signal Processing 2010.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import make_subspace_stream, projected_sparse_recovery
    >>> stream = make_subspace_stream(50, 300, 5, delta=0, outliers=0.1, random_state=0)
    >>> V = stream.subspace_at(0)
    >>> sparse, gap = projected_sparse_recovery(stream.X, V, tol=1e-6)
    >>> bool(np.allclose(sparse, np.where(stream.missing, 0, stream.sparse), atol=1e-3))
    True
    >>> bool(gap.max() <= 1e-6)
    True
    """
    X = check_array(in_numpy(X), dtype=np.float64, ensure_all_finite="allow-nan", input_name="X")
    V = float_array("components", components, 2, np.float64)
    if V.shape[1] != X.shape[1]:
        raise ValueError(f"components must have {X.shape[1]} columns as X, got shape {V.shape}.")
    if not linalg.orthonormality_error(V) <= GIVEN_BASIS_TOL:
        raise ValueError("components must be orthonormal rows.")
    if np.asarray(xi).dtype.kind not in "iuf":
        raise ValueError(f"xi must be numbers, got {xi!r}.")
    xi = np.asarray(xi, dtype=np.float64)
    if xi.shape not in ((), (len(X),)) or not np.all(xi >= 0):
        raise ValueError(f"xi must be non-negative, a number or one for each row, got {xi!r}.")
    if not (isinstance(tol, Real) and tol > 0):
        raise ValueError(f"tol must be a positive number, got {tol!r}.")
    check_integer("max_iter", max_iter)
    return recover(X, V, np.broadcast_to(xi, len(X)), tol, max_iter)


def recover(
    Z: np.ndarray, V: np.ndarray, xi: Any, tol: float, max_iter: int
) -> tuple[np.ndarray, np.ndarray]:
    """Core of `projected_sparse_recovery`; ``xi`` may be a function of the projected rows.

    They are NaN where rows are.
    """
    seen = ~np.isnan(Z)
    fits = Fits.to(seen, V)
    Z = np.where(seen, Z, 0.0)
    sparse, gaps = np.zeros_like(Z), np.zeros(len(Z))
    Y = Z - fits.nearest(Z)
    xi = xi(np.where(seen, Y, np.nan)) if callable(xi) else xi
    active = np.flatnonzero(
        np.linalg.norm(Y, axis=1) > np.maximum(xi, _ROUNDING * np.linalg.norm(Z, axis=1))
    )
    if not len(active):
        return sparse, gaps
    fits, Y, xi = fits.of_rows(active), Y[active], xi[active, None]
    gaps[active] = np.inf
    # of the size of noise, which the largest entry of a row with outliers is not
    step = np.abs(Y).mean(axis=1, keepdims=True)
    U = Y.copy()
    for i in range(1, max_iter + 1):
        clipped = np.clip(U, -step, step)
        S = U - clipped
        feasible = fits.nearest(S - clipped, Y, xi)
        if i % _BETWEEN == 0 or i == max_iter:
            p = clipped / step
            p -= fits.nearest(p)
            p /= np.maximum(1.0, np.abs(p).max(axis=1, keepdims=True))
            lower = np.einsum("ij,ij->i", p, Y) - xi[:, 0] * np.linalg.norm(p, axis=1)
            best = fits.nearest(S, Y, xi)
            upper = np.abs(best).sum(axis=1)
            sparse[active] = best
            # a row of zeros is within xi but for rounding, and nothing is sparser
            share = np.divide(lower, upper, out=np.ones_like(upper), where=upper > 0)
            gaps[active] = np.maximum(1.0 - share, 0.0)
            more = gaps[active] > tol
            if not more.any():
                break
            fits, active, Y, xi = fits.of_rows(more), active[more], Y[more], xi[more]
            step, U, S, feasible = step[more], U[more], S[more], feasible[more]
        feasible -= S
        feasible *= _RELAXATION
        U += feasible
    return sparse, gaps


class Fits(NamedTuple):
    """How a basis is fitted to rows that are zero where entries are missing."""

    V: np.ndarray
    mask: np.ndarray | None = None
    inverse: np.ndarray | None = None

    @classmethod
    def to(cls, seen: np.ndarray, V: np.ndarray) -> Fits:
        """Of rows with these entries."""
        if seen.all() or not len(V):
            return cls(V)
        return cls(V, seen.astype(np.float64), gram_inverses(seen, V)[0])

    def of_rows(self, which: np.ndarray) -> Fits:
        """Those of some of the rows."""
        if self.mask is None or self.inverse is None:
            return self
        return Fits(self.V, self.mask[which], self.inverse[which])

    def nearest(
        self, S: np.ndarray, Y: np.ndarray | None = None, xi: np.ndarray | None = None
    ) -> np.ndarray:
        """The rows nearest to S that lie within xi of Y, but for the subspace; or in it."""
        C = S @ self.V.T
        if self.inverse is not None:
            C = (self.inverse @ C[:, :, None])[:, :, 0]
        R = C @ self.V
        if self.mask is not None:
            R *= self.mask
        if Y is None or xi is None:
            return R
        R += Y
        R -= S
        norms = np.sqrt(np.einsum("ij,ij->i", R, R))[:, None]
        R *= np.maximum(1.0 - xi / np.maximum(norms, np.finfo(np.float64).tiny), 0.0)
        R += S
        return R


# The automatic xi over the norm of white noise that would have the projected rows' decile.
_XI = 0.3
# Relative duality gap for finding supports, and iterations for it.
_GAP = 1e-3
_ITERATIONS = 500
# The least automatic threshold, over the fit's root mean square: residuals below are rounding
# errors. And how often it is computed.
LEAST = 1e-6
_ROUNDS = 5
# Quantiles of absolute values that standard deviations are taken from.
MEDIAN, QUARTILE, _DECILE = 0.5, 0.25, 0.1
# Entries of a row that its deviation is taken from at least, or half of them.
_ENTRIES = 10
# Entries from which on a column has a standard deviation of its own; and by how much that from the
# median exceeds the one from the quartile where half of a column is outliers.
COLUMN_ROWS = 10
_COLUMN_RATIO = 3.0
# Rows whose residuals make up what is known of a column's, beside those of a batch.
_REMEMBERED = 200
# Rows from which on columns are known: as many as the first batch has at least.
KNOWN_ROWS = 100
# Residuals that are so many times as large as before, or as small, are of another subspace.
_FIT = 3.0
# Residuals that are so many times as large as before are of rows that are less noisy.
_FALL = 0.7
# Deviations down to which a row's thresholds may fall, and what for: entries between that are so
# many times as many as of normal noise, and so many more; fewer by one for each so many entries
# above, down to so few.
_LOWEST = 3.0
_STEPS = 12
_EXCESS = 3.0
_MORE, _CERTAIN, _FEW = 8.0, 8.0, 4.0


class Search(NamedTuple):
    """What was found in rows, each by itself.

    Attributes
    ----------
    start : ndarray of shape (m, k)
        Coordinates by the sparse recovery, which the support starts from.
    mask : ndarray of shape (m, d), bool
        Outliers.
    level : ndarray of shape (m,)
        Robust standard deviation of what is left of a row, each entry over that of its column.
    """

    start: np.ndarray
    mask: np.ndarray
    level: np.ndarray


def start_of_support(Z: np.ndarray, V: np.ndarray, xi: float | Literal["auto"]) -> np.ndarray:
    """Coordinates of rows without the sparse part."""
    return coordinates(Z - sparse_part(Z, V, xi), V)[0]


def sparse_part(Z: np.ndarray, V: np.ndarray, xi: float | Literal["auto"]) -> np.ndarray:
    """Modified compressed sensing of rows about the mean."""
    bounds = _bounds if xi == "auto" else np.full(len(Z), float(xi))
    return recover(Z, V, bounds, _GAP, _ITERATIONS)[0]


def _bounds(projected: np.ndarray) -> np.ndarray:
    """The automatic xi of each row: from the lower decile, which outliers raise only a little."""
    entries = np.sum(~np.isnan(projected), axis=1)
    return _XI * deviations_of_rows(projected) * np.sqrt(entries)


def search_rows(
    Z: np.ndarray, V: np.ndarray, xi: float | Literal["auto"], columns: np.ndarray
) -> Search:
    """Outliers by thresholds of the columns that are known, each row by itself."""
    start = start_of_support(Z, V, xi)
    mask, R, _ = support(Z, V, start, columns, lower=True)
    known = np.where(np.isinf(columns), np.nan, columns)
    with np.errstate(over="ignore"):
        scaled = np.where(mask, np.nan, R) / np.where(known == 0, 1.0, known) * OUTLIER_DEVIATIONS
    return Search(start, mask, deviations_of_rows(scaled))


def search_batch(
    Z: np.ndarray, V: np.ndarray, start: np.ndarray, lower: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Outliers by the batch alone, and the thresholds of its columns.

    What a subspace that is not known exactly fails to explain is large in all of a column or of a
    row, an outlier is not; it may be in up to half of a column and most of a row.
    """
    mask, _, columns = support(Z, V, start, lower=lower)
    return mask, columns


def search_first(
    Z: np.ndarray, V: np.ndarray, outliers: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Outliers of the first batch, and the thresholds of its columns, by the other entries.

    What an object that stays for nearly half of the rows leaves of its columns says nothing of
    noise.
    """
    kept = np.where(outliers, np.nan, Z)
    C, *_ = coordinates(kept, V)
    fit = C @ V
    columns = thresholds_of_columns(kept - fit, kept - fit, fit)
    mask, *_ = support(Z, V, C, columns, lower=True)
    return mask, columns


def thresholds_of_columns(
    kept: np.ndarray, R: np.ndarray, fit: np.ndarray, factor: float = 1.0
) -> np.ndarray:
    """Six robust standard deviations of each column, but at least of all entries that are kept.

    Infinity for columns without entries, of which nothing is known. ``factor``: of the deviation of
    all, where kept entries are the larger ones.
    """
    there = (~np.isnan(R)).any(axis=0)
    least = np.maximum(OUTLIER_DEVIATIONS * deviations_of_columns(R), _floor(kept, fit, factor))
    return np.where(there, least, np.inf)


def remembered(
    columns: np.ndarray, Z: np.ndarray, V: np.ndarray, mask: np.ndarray, level: float
) -> np.ndarray:
    """Thresholds of columns after a batch.

    Of entries that are no outliers, those beyond three robust deviations cut there, as some may be
    outliers that were missed; a column that is all outliers keeps its own.
    """
    kept = np.where(mask, np.nan, Z)
    C, *_ = coordinates(kept, V)
    fit = C @ V
    kept -= fit
    every = _floor(kept, fit) / OUTLIER_DEVIATIONS
    n = (~np.isnan(kept)).sum(axis=0)
    bound = _FIT * np.maximum(deviations(kept, MEDIAN, axis=0), every)
    squares = np.nansum(np.minimum(np.abs(kept), bound) ** 2, axis=0)
    return blended(columns, squares, n, every, level)


def blended(
    columns: np.ndarray, squares: np.ndarray, n: np.ndarray, every: float, level: float
) -> np.ndarray:
    """Thresholds of columns, six standard deviations of some 200 rows, after new rows.

    Where most rows are much less noisy than before, as the subspace is known better, all fall at
    once.

    Parameters
    ----------
    columns : ndarray of shape (d,)
        Before; infinity where there was no entry so far.
    squares, n : ndarray of shape (d,)
        Sums of squares of the residuals of new rows, and their numbers.
    every : float
        Standard deviation of all of them, which is the least.
    level : float
        That of most rows, over what it was.
    """
    new, n = np.isinf(columns), np.maximum(n, 0.0)
    before = (np.where(new, 0.0, columns) / OUTLIER_DEVIATIONS) ** 2
    if level < _FALL:
        before *= level**2
    weight = np.where(new, 0.0, _REMEMBERED)
    with np.errstate(invalid="ignore"):  # neither before nor now
        after = np.sqrt((weight * before + squares) / (weight + n))
    return OUTLIER_DEVIATIONS * np.where(new & (n == 0), np.inf, np.maximum(after, every))


def or_before(columns: np.ndarray, before: np.ndarray | None) -> np.ndarray:
    """Thresholds of columns, those before where a batch had no entries."""
    return columns if before is None else np.where(np.isinf(columns), before, columns)


def mostly_outliers(mask: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """Columns that are outliers for the most, of which nothing is learnt.

    The rest of such a column is what an object leaves below the thresholds.
    """
    return mask.sum(axis=0) > 0.5 * (~np.isnan(Z)).sum(axis=0)


def fits(level: float) -> bool:
    """Whether what is left of most rows is as large as it was."""
    return level >= 1 / _FIT and not fits_worse(level)


def is_as_before(level: float) -> bool:
    """Whether what is left of most rows is neither clearly more nor less than it was."""
    return _FALL <= level <= 1 / _FALL


def fits_worse(level: float) -> bool:
    """Whether what is left of most rows is much more than it was."""
    return level > _FIT


def _floor(kept: np.ndarray, fit: np.ndarray, factor: float = 1.0) -> float:
    """Six robust standard deviations of all entries, or what exceeds rounding errors."""
    size = np.sqrt(np.einsum("ij,ij->", fit, fit) / fit.size)
    every = factor * float(deviations(kept.ravel(), MEDIAN, 0))
    return max(OUTLIER_DEVIATIONS * every, LEAST * size)


def support(
    Z: np.ndarray,
    V: np.ndarray,
    C: np.ndarray,
    known: np.ndarray | None = None,
    lower: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Entries above the thresholds of column and row, residuals of a fit to the others, and those.

    Support and least squares alternate until they agree. Thresholds of the columns are the
    ``known`` ones, or by the rows themselves. ``lower``: with `lowered` thresholds, as only normal
    noise is left.
    """
    mask = np.zeros(Z.shape, dtype=bool)
    for _ in range(_ROUNDS):
        fit = C @ V
        R = Z - fit
        kept = np.where(mask, np.nan, R)
        rows = OUTLIER_DEVIATIONS * deviations_of_rows(kept)
        columns = thresholds_of_columns(kept, R, fit) if known is None else known
        limits = np.maximum.outer(rows, columns)
        if lower:
            limits *= lowered(np.abs(R), limits)[:, None]
        before, mask = mask, np.abs(R) > limits
        if np.array_equal(before, mask):
            break
        C, *_ = coordinates(np.where(mask, np.nan, Z), V)
    return mask, R, columns


def lowered(size: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Factor of the thresholds of each row, 1 but where lower ones find what is no noise.

    Of noise one entry in 5e8 is above six deviations; where an object is faint, a good part of it
    is below. A row's thresholds fall to where what they let in exceeds three times that of normal
    noise by most, and by eight entries, or by as few as four where many are above. Rows that are
    much less noisy than the thresholds keep them.
    """
    z = np.divide(size, limits, out=np.full(size.shape, np.nan), where=limits > 0)
    z *= OUTLIER_DEVIATIONS
    bounds = np.linspace(OUTLIER_DEVIATIONS, _LOWEST, _STEPS + 1)
    tails = 2 * scipy.special.ndtr(-bounds)
    rows, columns = np.nonzero((z <= OUTLIER_DEVIATIONS) & (z > _LOWEST))
    step = (OUTLIER_DEVIATIONS - z[rows, columns]) * _STEPS / (OUTLIER_DEVIATIONS - _LOWEST)
    bins = rows * _STEPS + np.minimum(step.astype(int), _STEPS - 1)
    found = np.bincount(bins, minlength=len(z) * _STEPS).reshape(-1, _STEPS).cumsum(axis=1)
    seen = (~np.isnan(z)).sum(axis=1)
    gain = found - _EXCESS * np.multiply.outer(seen, tails[1:] - tails[0])
    certain = (z > OUTLIER_DEVIATIONS).sum(axis=1)
    gain -= np.maximum(_MORE - certain / _CERTAIN, _FEW)[:, None]
    best = gain.argmax(axis=1)
    noise = deviations_of_rows(np.where(z > OUTLIER_DEVIATIONS, np.nan, z))
    falls = (np.take_along_axis(gain, best[:, None], 1)[:, 0] > 0) & (noise >= 1 / _FIT)
    return np.where(falls, bounds[1 + best], OUTLIER_DEVIATIONS) / OUTLIER_DEVIATIONS


def deviations_of_columns(R: np.ndarray) -> np.ndarray:
    """Standard deviation of each column by its median, or by its quartile; 0 of under ten entries.

    By the quartile where half of the column may be outliers.
    """
    own = deviations(R, MEDIAN, axis=0)
    low = deviations(R, QUARTILE, axis=0)
    own = np.where(own > _COLUMN_RATIO * low, low, own)
    return np.where((~np.isnan(R)).sum(axis=0) < COLUMN_ROWS, 0.0, own)


def deviations_of_rows(R: np.ndarray) -> np.ndarray:
    """Standard deviation of each row by its decile, or by ten entries where a tenth is fewer."""
    count = (~np.isnan(R)).sum(axis=1, keepdims=True)
    return deviations(R, np.clip(_ENTRIES / np.maximum(count, 1), _DECILE, MEDIAN), axis=1)


def deviations(R: np.ndarray, share: float | np.ndarray, axis: int) -> np.ndarray:
    """Standard deviation along an axis by a quantile of absolute values, 0 of no entries.

    The median is the more efficient, the decile good for up to four fifths of outliers.
    """
    size = np.sort(np.abs(R), axis=axis)  # NaN last
    count = (~np.isnan(R)).sum(axis=axis, keepdims=True)
    quantile = np.take_along_axis(size, (share * count).astype(int), axis)
    quantile = np.where(count > 0, quantile, 0.0) / scipy.special.ndtri((1 + share) / 2)
    return quantile.squeeze(axis)


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


def outliers_removed(
    model: Any, X: Any, support: OutlierSupport, columns: np.ndarray | None
) -> np.ndarray:
    """Copy of rows with NaN at outliers, by the thresholds of columns after the rows of the fit."""
    U = X.toarray() if sp.issparse(X) else X.copy()
    V, mean = model._float64_model()
    with np.errstate(over="ignore", invalid="ignore"):  # of values near the largest float
        for at in slices_of(len(U), ROWS_AT_ONCE):
            U[at][support._outliers(U[at] - mean, V, columns)[0]] = np.nan
    return U


def outliers_of_tracker_removed(self: Any, X: Any) -> np.ndarray:
    """The same for a tracker, which says what an outlier is."""
    return outliers_removed(self, X, self._support, known_thresholds(self.support_threshold_))


def known_thresholds(threshold: np.ndarray | None) -> np.ndarray | None:
    """Thresholds of the columns, None if no batch was searched yet."""
    return None if threshold is None or not threshold.any() else threshold
