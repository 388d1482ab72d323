"""Robust PCA by alternating projections: Netrapalli, Niranjan, Sanghavi, Anandkumar and Jain."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import KW_ONLY
from numbers import Real
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp
import scipy.special
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import StrOptions

from .._base.fitted import CallbackSupportMixin, progress, with_callbacks
from .._base.missing_entries import MissingEntriesMixin
from .._dask import refuse_dask
from .._kernels import linalg
from .._kernels.threads import TINY_CALL, threads_for
from .._kernels.tolerances import OUTLIER_DEVIATIONS
from .._kernels.too_large import check_squares
from .._validation.checks import (
    AT_LEAST_ONE,
    DEFAULT_RANK,
    Interval,
    allowed,
    check_at_most_features,
    check_finite,
    with_parameters,
)
from .._validation.containers import validate_data
from ..summary import Subspace
from ._outliers import (
    COLUMN_ROWS,
    MEDIAN,
    OutlierSupport,
    decompose,
    deviations,
    outliers_removed,
    thresholds_of_columns,
)

# Share of its error that an iteration leaves when only noise is left.
_RESTING = 0.99
# Error that is to be reached before a tracker starts from the result.
_INIT_TOL = 1e-4
_INIT_ITER = 1000
# Entries up to this share of the median of the largest column are rounding errors of zero.
_ROUNDING = 1e-12
# Share of zeros up to which they count as other entries: the median falls by at most an eighth.
# Every second column about its median has one.
_FEW_ZEROS = 0.1
# Share of squares in neither part from which on components explain little, and share of entries
# that are not zero below which the others may be outliers.
_MUCH = 0.5
_MOSTLY_ZERO = 0.5
# Share of columns from which on it is told that they are outliers for the most: objects in films
# that linger are in fewer. And share of the entries of one column, if these are not zero: an object
# lingers in fewer, at most .63 in the films of `bench films`.
_MANY_COLUMNS = 0.1
_TWICE = 2 / 3


@with_parameters
class AlternatingProjections(CallbackSupportMixin, MissingEntriesMixin):
    """Robust PCA: rows as a low-rank matrix plus sparse outliers (AltProj).

    Alternates between the best matrix of rank k for the rows less the outliers, and the outliers,
    which are the entries farther from that matrix than a threshold. k goes from 1 to
    ``n_components``, and the threshold falls with the remaining singular values.

    Parameters
    ----------
    n_components : int or None, default=None
        Rank of the low-rank part. None: 10, or all features where there are fewer.
    threshold_scale : float or "auto", default="auto"
        beta of [1]_: entries further from the low-rank part than beta times a singular value are
        outliers. "auto": 1 / sqrt(max(n_samples, n_features)). Larger for low-rank parts with
        large entries, smaller for many small outliers.
    tol : float, default=1e-4
        Stop when what is neither is below this share of the data, in Frobenius norm.
    max_iter : int, default=1000
        Projections on low rank in all.
    center : bool, default=False
        Subtract the median of each feature's observed entries. False: about the origin, as in [1]_.

    Attributes
    ----------
    low_rank_, sparse_ : ndarray of shape (n_samples, n_features)
        Low-rank and sparse part; where entries are missing (NaN) the sparse part is zero.
    components_, singular_values_, explained_variance_, explained_variance_ratio_, mean_, \
            noise_variance_, n_components_, n_samples_, n_samples_seen_, subspace_
        As in `StreamingPCA`, of the low-rank part about ``mean_``.
    n_iter_ : int
        Projections on low rank.
    error_ : float
        Share of the data, in Frobenius norm, that is neither.

    See Also
    --------
    RobustSubspaceTracker : For streams; starts from this.

    Notes
    -----
    Algorithm 1 of [1]_, with thresholds beta (sigma_{k+1} + 2^-t sigma_k), but never below six
    robust standard deviations of what is left, so that noise is in neither part, and with a first
    one of at most as many of the data, so that large outliers do not hide smaller ones. A stage k
    ends when the second term is below half of the first, as it cannot gain more. A missing entry is
    treated as an outlier at a known place. `decompose` searches new rows for outliers, each by
    itself, with thresholds of six robust standard deviations of what was left of each feature
    here; `transform` and `score` do not.

    Where more than a tenth of the entries are zero (about ``mean_``, up to rounding), noise is
    estimated from the others, so that constant features, empty rows and the zeros of sparse
    matrices do not hide it: zeros within rows and columns of data are taken as its smallest values,
    those beside them not at all. Outliers have to be a clear minority of the entries that are not
    zero. Where most are zero and little of the others is explained, whether these are data or
    outliers cannot be told; `fit` takes them for data and warns. There is one size of noise for all
    features: those in much larger units than half of the others are outliers altogether, of which
    `fit` warns.

    Time O(n d min(n, d)) an iteration, by the smaller Gram matrix; memory O(n d).

    References
    ----------
    .. [1] P. Netrapalli, U. N. Niranjan, S. Sanghavi, A. Anandkumar, P. Jain, "Non-convex robust
       PCA", NeurIPS 2014.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import AlternatingProjections, make_subspace_stream
    >>> stream = make_subspace_stream(200, 300, 5, delta=0, outliers=0.1, random_state=0)
    >>> robust = AlternatingProjections(5).fit(stream.X)
    >>> missed = robust.low_rank_ - stream.low_rank
    >>> bool(np.linalg.norm(missed) < 5e-3 * np.linalg.norm(stream.low_rank))
    True
    >>> bool(np.array_equal(robust.sparse_ != 0, stream.outliers & ~stream.missing))
    True
    """

    n_components: int | None = allowed(AT_LEAST_ONE, None, default=None)
    _: KW_ONLY
    threshold_scale: float | Literal["auto"] = allowed(
        StrOptions({"auto"}), Interval(Real, 0, None, closed="neither"), default="auto"
    )
    tol: float = allowed(Interval(Real, 0, None, closed="left"), default=1e-4)
    max_iter: int = allowed(AT_LEAST_ONE, default=1000)
    center: bool = allowed("boolean", default=False)

    @with_callbacks
    def fit(self, X: Any, y: Any = None) -> AlternatingProjections:
        """Separate rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Sparse rows are densified, as the low-rank part is dense.
        y : Ignored
            Not used; there because scikit-learn's pipelines pass it.

        Returns
        -------
        self : object
            The fitted estimator; unchanged if an error is raised.
        """
        self._validate_params()
        with self._unchanged_on_error():
            refuse_dask(self, X)
            X = validate_data(
                self,
                X,
                accept_sparse="csr",
                dtype=[np.float64, np.float32],
                ensure_all_finite=False,
            )
            check_finite(X, allow_nan=True)
            X = X.toarray() if sp.issparse(X) else X
            check_at_most_features(self.n_components, X.shape[1])
            rank = self.n_components
            rank = min(DEFAULT_RANK, X.shape[1]) if rank is None else int(rank)
            check_squares(X)
            mean = robust_mean(X) if self.center else np.zeros(X.shape[1])
            beta = None if self.threshold_scale == "auto" else self.threshold_scale
            with threads_for(max(X.size, 16 * min(X.shape) ** 2), TINY_CALL):
                iterations = progress(self, range(self.max_iter), None, "iterations")
                found = alternating_projections(X - mean, rank, beta, self.tol, iterations)
                V, s = linalg.top_of_rows(found.low_rank, rank)
            L, S, self.n_iter_, self.error_, varying = found
            if self.n_iter_ >= self.max_iter and self.error_ > self.tol:
                warnings.warn(
                    f"max_iter={self.max_iter} iterations leave error_={self.error_:.1e}",
                    ConvergenceWarning,
                    stacklevel=2,
                )
            else:
                self._warn_of_parts(found)
            columns = np.einsum("ij,ij->j", L, L)
            moments = mean, float(len(X)), float(columns.sum()), self.center
            low_rank = Subspace._trusted(V.astype(X.dtype), s, *moments, column_scatter=columns)
            self._set_fitted(low_rank, rank, len(X))
            self.low_rank_ = (L + mean).astype(X.dtype)
            self.sparse_ = S.astype(X.dtype)
            rest = X - mean - L
            kept = np.where((S != 0) | ~varying.mask, np.nan, rest)
            self._thresholds = thresholds_of_columns(kept, rest, L, varying.factor)
        return self

    def _warn_of_parts(self, found: Separation) -> None:
        hits = np.count_nonzero(found.sparse, axis=0) > 0.5 * len(found.sparse)
        many = hits.mean() > _MANY_COLUMNS and hits.sum() > 1
        share = np.count_nonzero((found.sparse != 0) & found.varying.mask, axis=0)
        if len(found.sparse) >= COLUMN_ROWS and (many or share.max() > _TWICE * len(found.sparse)):
            warnings.warn(
                f"Most entries of {hits.sum()} of {len(hits)} features are outliers: if these are "
                "the features in larger units, standardise them before.",
                UserWarning,
                stacklevel=3,
            )
            return
        if found.varying.share < _MOSTLY_ZERO and found.error**2 > _MUCH:
            centre = "the median of their feature" if self.center else "0"
            change = ", or set center=False" if self.center else ""
            warnings.warn(
                f"Most entries are {centre}, and neither n_components={self.n_components} nor "
                "outliers explain half of what is left: if the other entries are outliers, they "
                f"cannot be told from noise. Raise n_components{change}; PCA needs no noise level.",
                UserWarning,
                stacklevel=3,
            )

    decompose = decompose

    def _outliers_removed(self, X: Any) -> np.ndarray:
        """Copy of rows with NaN at outliers, as at missing entries."""
        return outliers_removed(self, X, OutlierSupport(), self._thresholds)


def robust_mean(X: np.ndarray) -> np.ndarray:
    """Median of each feature's observed entries, 0 for a feature without any."""
    some = ~np.isnan(X).all(axis=0)
    mean = np.zeros(X.shape[1])
    mean[some] = np.nanmedian(X[:, some], axis=0)
    return mean


def without_sparse_part(
    Z: np.ndarray, rank: int, deviations: float = OUTLIER_DEVIATIONS
) -> tuple[np.ndarray, np.ndarray]:
    """Low-rank part of the rows that a tracker starts with, and the sparse part.

    An entry is in the sparse part from so many ``deviations`` on.
    """
    turns = range(_INIT_ITER)
    return alternating_projections(Z, rank, None, _INIT_TOL, turns, deviations)[:2]


class Varying(NamedTuple):
    """Entries that tell how large noise is: those that are not zero.

    Zeros of a sparse matrix, of constant columns or of empty rows are exact, and say nothing of the
    noise of the others.

    Attributes
    ----------
    mask : ndarray of shape (n, d), bool
    share : float
        Typical share of them in the rows or columns in which they are.
    """

    mask: np.ndarray
    share: float

    @property
    def factor(self) -> float:
        """Normal deviation by the median of these entries, over that if none were zero.

        Zeros among them are the smallest absolute values, so that the median is a higher quantile.
        """
        upper = scipy.special.ndtri(1.0 - 0.25 * self.share)
        return float(scipy.special.ndtri(0.75) / upper)

    def noise(self, rest: np.ndarray) -> float:
        """Standard deviation of normal noise, by the median of what is left of them."""
        values = rest[self.mask]
        if not values.size:
            return 0.0
        return self.factor / scipy.special.ndtri(0.75) * float(np.median(np.abs(values)))


def varying_entries(Z: np.ndarray, seen: np.ndarray) -> Varying:
    """Entries of rows, zero where nothing is seen, that are more than rounding errors.

    Rows and columns that are almost empty, as few entries in them are not zero, count little for
    the shares of columns and rows.
    """
    size = deviations(np.where(seen, Z, np.nan), MEDIAN, axis=0).max(initial=0.0)
    mask = seen & (np.abs(Z) > _ROUNDING * size)
    if not mask.any() or mask.sum() >= (1.0 - _FEW_ZEROS) * seen.sum():
        return Varying(seen, 1.0)
    some, there = mask.astype(np.float64), seen.astype(np.float64)
    rows = some.sum(axis=1) / np.maximum(there.sum(axis=1), 1.0)
    columns = some.sum(axis=0) / np.maximum(there.sum(axis=0), 1.0)
    in_rows, in_columns = some @ columns, rows @ some
    in_rows = np.divide(in_rows, there @ columns, out=in_rows, where=in_rows > 0)
    in_columns = np.divide(in_columns, rows @ there, out=in_columns, where=in_columns > 0)
    share = float(np.maximum.outer(in_rows, in_columns)[mask].mean())
    return Varying(mask, share)


class Separation(NamedTuple):
    """Low-rank part, sparse part, iterations, error, and entries that tell the noise."""

    low_rank: np.ndarray
    sparse: np.ndarray
    n_iter: int
    error: float
    varying: Varying


def alternating_projections(
    Z: np.ndarray,
    rank: int,
    beta: float | None,
    tol: float,
    iterations: Iterable[int],
    deviations: float = OUTLIER_DEVIATIONS,
) -> Separation:
    """Core of `AlternatingProjections`."""
    n, d = Z.shape
    seen = ~np.isnan(Z)
    Z = np.where(seen, Z, 0.0).astype(np.float64)
    beta = 1.0 / np.sqrt(max(n, d)) if beta is None else beta
    check_squares(Z)
    norm = float(np.linalg.norm(Z)) or 1.0
    L = np.zeros_like(Z)
    varying = varying_entries(Z, seen)
    first = min(beta * _low_rank(Z, 1)[1][0], deviations * varying.noise(Z))
    S = np.where(np.abs(Z) > first, Z, 0.0)
    error, iteration = np.inf, 0
    turns = iter(iterations)
    for k in range(1, min(rank, n, d) + 1):
        last = k == min(rank, n, d)
        share = 1.0
        for _ in turns:
            iteration += 1
            L, s = _low_rank(np.where(seen, Z - S, L), k)
            rest = Z - L
            rest[~seen] = 0.0
            falling, noise = beta * (s[k] + share * s[k - 1]), deviations * varying.noise(rest)
            S = np.where(np.abs(rest) > max(falling, noise), rest, 0.0)
            before, error = error, float(np.linalg.norm(rest - S)) / norm
            share /= 2
            resting = falling <= noise and error >= _RESTING * before
            if s[0] == 0 and error > tol:  # all entries were outliers at first
                continue
            if share * s[k - 1] <= 1e-12 * s[0]:
                break
            if error <= tol or resting if last else 2 * share * s[k - 1] <= s[k] / 2:
                break
    return Separation(L, S, iteration, error, varying)


def _low_rank(M: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Best matrix of rank k, and its singular values with the next one."""
    tall = len(M) > M.shape[1]
    M = M.T if tall else M
    values, W = linalg.eigh_top(M @ M.T, k + 1)
    s = np.sqrt(np.maximum(values[: k + 1], 0.0))
    W = W[:, :k]
    L = W @ (W.T @ M)
    return L.T if tall else L, np.append(s, np.zeros(k + 1 - len(s)))
