"""Tracking from missing entries and outliers: Narayanamurthy, Vaswani, Ramamoorthy."""

from __future__ import annotations

import warnings
from dataclasses import KW_ONLY, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from .._base.fitted import computed
from .._kernels import linalg
from .._kernels.observed import coordinates
from .._kernels.tolerances import MAX_GAIN_IN_SVD
from .._validation.checks import allowed, with_parameters
from ._alternating_projections import robust_mean, without_sparse_part
from ._outliers import (
    KNOWN_ROWS,
    LEAST,
    MEDIAN,
    QUARTILE,
    OutlierSupport,
    decompose,
    deviations,
    fits,
    fits_worse,
    is_as_before,
    known_thresholds,
    mostly_outliers,
    or_before,
    outliers_of_tracker_removed,
    remembered,
    search_batch,
    search_first,
    search_rows,
    start_of_support,
)
from ._stmiss import ALTPROJ_ROWS, State
from ._stmiss_tracker import OUTLIERS, STMissTracker

# Rows from which on a batch is judged.
_ROWS = 10
# Share of entries up to which a support is empty, and from which on others are missed.
_EMPTY = 1e-4
_MISSED = 1e-3
# Share of outliers that is little beside half of the entries.
_FEW = 0.01
# Share of a batch's squares about the mean that is much, and how many times as large as that of
# noise the largest singular value, squared, of what is left then is.
_MUCH = 0.05
_STRUCTURE = 2.0
# Deviations from which on an entry of the first rows is an outlier, by AltProj and of few factors:
# fewer than of other rows, as a noisy entry that is left out costs little, and a faint outlier that
# is not spoils the subspace. How often factors are fitted to the others, and the most of them.
_START, _TRIMMED, _FITS, _FACTORS = 4.0, 2.0, 4, 6
# A factor more lowers the columns' deviations by as much. Factors are enough where they leave at
# most so many times what the low-rank part by AltProj does, and of no more columns twice the
# deviation or half of it. A column with more outliers has none. No column has a larger leverage: it
# would fit itself. Of a pixel it is at most .04 in the films of the tests.
_LOWER, _HARDLY_LESS, _UNLIKE, _ALL, _LEVERAGE = 0.95, 1.2, 0.2, 0.7, 0.1
# Warn where so many features have outliers in more than a third of the first rows, if these are so
# many that outliers anywhere do not come to this by chance.
_NEAR_HALF, _FEATURES, _FIRST_ROWS = 1 / 3, 0.02, 50
# Share of the squares about the origin of half of the columns from which on the subspace says
# nothing of the rows.
_MOST = 0.75
# Fourth moment over the second squared below which values are in two heaps: 3 of normal ones, 2 of
# outliers in 3 of 5 entries.
_HEAPS = 2.5


def warn_of_support(
    mask: np.ndarray,
    Z: np.ndarray,
    V: np.ndarray,
    mean: np.ndarray,
    threshold: float | Literal["auto"],
) -> None:
    """Warn of a batch whose support is empty or almost full, though it should not be."""
    seen = ~np.isnan(Z)
    if len(Z) < _ROWS or not seen.any():
        return
    share = mask.sum() / seen.sum()
    if threshold == "auto":
        _warn_of_rest(mask, Z, V, mean, share)
    elif share <= _EMPTY:
        missed = search_batch(Z, V, coordinates(Z, V)[0])[0].sum() / seen.sum()
        if missed > _MISSED:
            _warn(
                f"No entry of a batch is above support_threshold={threshold}, though some are far "
                'above what is left of the others: lower support_threshold, or leave it at "auto".'
            )
    if share > 0.5:
        _warn_of_full(mask, Z, V, threshold)


def _warn_of_rest(
    mask: np.ndarray, Z: np.ndarray, V: np.ndarray, mean: np.ndarray, share: float
) -> None:
    unit = -np.frexp(np.nanmax(np.abs(Z)))[1]  # fourth powers may overflow or vanish
    Z, mean = np.ldexp(Z, unit), np.ldexp(mean, unit)
    kept = np.where(mask, np.nan, Z)
    C, *_ = coordinates(kept, V)
    R = kept - C @ V
    if share <= _FEW and _two_heaps(R, kept + mean):
        _warn(
            f"n_components={len(V)} explains little of what is no outlier in a batch: it is too "
            "small, or about half of the entries are outliers or more, which only "
            "support_threshold can tell apart."
        )
    elif share <= _EMPTY and _much_structure(R, kept) and _lacks(kept, C @ V, len(V)):
        _warn(
            f"No entry of a batch is an outlier, though n_components={len(V)} leaves a part of it "
            "that is no noise: thresholds follow what is left. Raise n_components, or set "
            "support_threshold."
        )


def _two_heaps(R: np.ndarray, X: np.ndarray) -> bool:
    """Whether most of most columns is left, and values near zero are rarer than in noise.

    Columns of zeros say nothing.
    """
    left, total = np.nansum(R**2, axis=0), np.nansum(X**2, axis=0)
    some = total > 0
    if not some.any() or np.median(left[some] / total[some]) <= _MOST:
        return False
    R, left = R[:, some], left[some]
    n = np.maximum((~np.isnan(R)).sum(axis=0), 1)
    fourth = n * np.nansum(R**4, axis=0) / np.where(left > 0, left, 1.0) ** 2
    return bool(np.median(fourth) < _HEAPS)


def _lacks(Z: np.ndarray, fit: np.ndarray, k: int) -> bool:
    """Whether k directions of a batch's own leave more of it than noise."""
    Z = np.where(np.isnan(Z), fit, Z)
    _, W = linalg.eigh_top(Z @ Z.T, k)
    W = W[:, :k]
    rest = Z - W @ (W.T @ Z)
    return _much_structure(rest, Z)


def _much_structure(R: np.ndarray, Z: np.ndarray) -> bool:
    """Whether what is left of rows is much, with a direction of more variance than noise has."""
    if not np.nansum(R**2) > _MUCH * np.nansum(Z**2):
        return False
    R = np.nan_to_num(R)
    size = np.sqrt(np.einsum("ij,ij->j", R, R) / len(R))
    R = R / np.where(size > 0, size, 1.0)
    m, d = np.count_nonzero(R.any(axis=1)), np.count_nonzero(size)
    largest = np.linalg.norm(R @ R.T if len(R) <= R.shape[1] else R.T @ R, 2)
    return bool(largest > _STRUCTURE * (np.sqrt(m) + np.sqrt(d)) ** 2)


def _warn_of_full(
    mask: np.ndarray,
    Z: np.ndarray,
    V: np.ndarray,
    threshold: float | Literal["auto"],
) -> None:
    before, after = (coordinates(rows, V).gain for rows in (Z, np.where(mask, np.nan, Z)))
    lost = np.mean((before <= MAX_GAIN_IN_SVD) & (after > MAX_GAIN_IN_SVD))
    if lost > 0.5:
        change = "set" if threshold == "auto" else "raise"
        _warn(
            "Almost all entries of a batch are outliers, so that what is left of most rows does "
            f"not determine their coordinates: {change} support_threshold (now {threshold!r}), or "
            "raise n_components."
        )


def _warn_near_half(mask: np.ndarray, Z: np.ndarray) -> None:
    """Warn of first rows in which several features are outlying nearly as often as not."""
    rows = np.maximum((~np.isnan(Z)).sum(axis=0), 1)
    share = np.mean(mask.sum(axis=0) > _NEAR_HALF * rows)
    if len(Z) >= _FIRST_ROWS and share > _FEATURES:
        _warn(
            f"More than a third of the first {len(Z)} rows are outliers in {share:.0%} of the "
            "features: near a half it cannot be told which entries are the outliers, as of an "
            "object that stays where it is in a film. Fit rows without them first."
        )


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=2)


@with_parameters
class RobustSubspaceTracker(STMissTracker):
    """Track the principal subspace of rows with missing entries and sparse outliers (RST-miss).

    Outliers of a batch are the sparse part of what the last subspace does not explain. They are
    then treated as missing. All else is as in `SubspaceTracker`.

    Parameters
    ----------
    n_components : int or None, default=None
        Dimension of the subspace, r of [1]_. None: 10, or all features where there are fewer.
    batch_size : int or "auto", default="auto"
        As in `SubspaceTracker`.
    init : {"altproj", "svd"}, array-like of shape (k, n_features) or FirstSubspace, \
            default="altproj"
        First subspace: by `AlternatingProjections` of the first rows, by an r-SVD of the first
        batch with zeros for missing entries, outliers included, or given by rows that span it.
        `FirstSubspace` says of how many rows.
    forgetting_factor : float in [0, 1] or "auto", default="auto"
        As in `SubspaceTracker`: with "auto" the past counts unless the next rows say otherwise. 0:
        the subspace is that of the last batch alone, as in [1]_.
    half_life : float or None, default=None
        As in `SubspaceTracker`: the number of later rows after which a row has half its weight.
    n_iter : int, default=1
        Times that a batch is filled in, each time by the subspace found last.
    fill : {"conditional", "subspace"}, default="conditional"
        What stands for missing entries and outliers, as in `SubspaceTracker`; "subspace" in [1]_.
    detect_changes : bool or ChangeDetection, default=False
        After some updates keep the subspace, until rows do not fit it any more. True:
        `ChangeDetection` with its defaults.
    center : bool, default=True
        Subtract the mean of the filled rows that count; at first the median of each feature's
        observed entries. False: about the origin, as in [1]_.
    store_subspaces : bool, default=False
        Keep the basis after every batch in ``subspaces_``, which grows with the stream.
    support_threshold : float, "auto" or OutlierSupport, default="auto"
        Entries of the sparse part above are outliers. "auto": it follows what the subspace leaves
        of column and row, see Notes. `OutlierSupport` has all that says what an outlier is.

    Attributes
    ----------
    components_, singular_values_, explained_variance_, explained_variance_ratio_, mean_, \
            noise_variance_, n_components_, n_samples_, n_samples_seen_, subspace_, \
            change_points_, subspaces_ :
        As in `SubspaceTracker`.
    outlier_mask_ : ndarray of shape (n_samples, n_features), bool
        Outliers among the rows given last: to `fit` or `partial_fit`, or as the last batch of an
        iterable, or the last part of an array on disk.
    support_threshold_ : ndarray of shape (n_features,)
        What entries of each feature have to exceed in rows to come, six standard deviations;
        infinity for those without an entry so far.

    Warns
    -----
    UserWarning
        As by `SubspaceTracker`; of a batch without outliers, though what the subspace leaves of it
        is no noise, and of one with so many that what is left of its rows does not determine their
        coordinates; of a first batch in which more than a third of the rows are outliers in some of
        the features, as an object makes that stays where it is in a film.

    See Also
    --------
    AlternatingProjections : Robust PCA of rows that are all there.
    projected_sparse_recovery : The sparse part of rows near a known subspace.

    Notes
    -----
    RST-miss-NoDet of [1]_: per batch Algorithm 4's modified compressed sensing for all rows at once
    (`projected_sparse_recovery`), support by threshold, then least squares on what is not in it,
    and the r-SVD. With ``support_threshold="auto"`` support and least squares alternate until they
    agree. Time O(d k) a row and iteration, some 20 iterations, beyond `SubspaceTracker`; rows that
    wait for a full batch are searched whenever a result is read. Memory O(d (m + k)), and a byte
    for each entry given for ``outlier_mask_``.

    What is left of a column in the rows so far says what an outlier is, so that an object may stay
    where it is. Where what is left of most rows is more than three times as large as it was, or
    less than a third, the subspace has changed: then the batch alone gives the standard deviation
    of each column, by the median, and outliers must be a minority of a column. So it is as long as
    fewer than 100 rows are known. A column has at least the standard deviation of all. Outliers
    must leave most of a row, and not lie near the subspace. Nothing is learnt from a column of a
    batch that is outliers for the most. With batches of less than ten rows features have no
    thresholds of their own, and errors of the subspace may pass for outliers. Where up to six
    factors leave noise of a first batch that is about the same in most features, as of frames of a
    scene that is still, changes in brightness or waves, those that lower the deviations of the
    features tell the outliers, which may then stay in a feature for nearly half of the rows, unless
    the leverage of a feature is above .1. Such factors are about the origin: a constant added to a
    feature changes which entries are left out.

    `transform`, `impute`, `decompose` and `score` leave outliers out, each row by itself, by the
    thresholds ``support_threshold_``.

    References
    ----------
    .. [1] P. Narayanamurthy, N. Vaswani, A. Ramamoorthy, "Federated over-air subspace tracking from
       incomplete and corrupted data", IEEE Transactions on Signal Processing 2022.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import RobustSubspaceTracker, make_subspace_stream, subspace_distance
    >>> stream = make_subspace_stream(600, 200, 5, delta=0, outliers=0.1, random_state=0)
    >>> tracker = RobustSubspaceTracker(5).fit(stream.X)
    >>> subspace_distance(tracker.components_, stream.subspace_at(599)) < 1e-8
    True
    >>> bool(np.array_equal(tracker.outlier_mask_, stream.outliers & ~stream.missing))
    True
    >>> low_rank, sparse = tracker.decompose(stream.X)
    >>> bool(np.allclose(low_rank, stream.low_rank))
    True
    """

    _: KW_ONLY
    init: Any = allowed(*OUTLIERS["init"], default="altproj")
    support_threshold: Any = allowed(*OUTLIERS["support_threshold"], default="auto")

    robust = True
    outlier_mask_ = computed()
    support_threshold_ = computed()
    decompose = decompose
    _outliers_removed = _usable = outliers_of_tracker_removed

    def _means(self, state: State, Y: np.ndarray) -> np.ndarray:
        return np.where(np.isnan(Y).all(axis=0), np.nan, robust_mean(Y))

    def _first(self, state: State, Y: np.ndarray) -> State:
        if len(state.basis) or not self._by_altproj:
            return state
        k = self._rank(Y.shape[1])
        low_rank = without_sparse_part(Y - state.mean, k, _START)[0]
        if self._support.threshold == "auto":
            enough = _HARDLY_LESS * _noise(Y - state.mean - low_rank)
            if found := factors_and_outliers(Y, enough):
                fit, outliers = found
                if self.center:
                    state = replace(state, mean=fit.mean(axis=0))
                low_rank = np.where(outliers | np.isnan(Y), fit, Y) - state.mean
                state = replace(state, outliers=outliers)
        return replace(state, basis=linalg.top_of_rows(low_rank, k)[0])

    def _without_outliers(self, state: State, Y: np.ndarray) -> tuple[np.ndarray, State]:
        d = Y.shape[1]
        if not len(state.basis):
            mask, threshold = np.zeros(Y.shape, dtype=bool), np.zeros(d)
            return Y, replace(state, outliers=mask, threshold=threshold)
        full = len(Y) >= self._block_rows(d, not state.summary.n_samples)
        Z, before, support = Y - state.mean, known_thresholds(state.threshold), self._support
        mask, threshold = self._find(state, Z, support, before, full)
        threshold = or_before(threshold, before)
        mostly, outlying = mostly_outliers(mask, Z), state.outlying
        outlying = np.zeros(d) if outlying is None else outlying
        absorbed = outlying >= (support.absorb_after or np.inf)
        mask[:, absorbed] = False
        outlying = np.where(mostly, outlying + len(Z), 0.0)
        left_out = mask | (mostly & ~absorbed)
        if state.outliers is not None and not state.n_rows:
            left_out |= state.outliers & mask.any(axis=0)  # faint parts of an object
        Y = np.where(left_out, np.nan, Y)
        return Y, replace(state, outliers=mask, threshold=threshold, outlying=outlying)

    def _find(
        self,
        state: State,
        Z: np.ndarray,
        support: OutlierSupport,
        columns: np.ndarray | None,
        full: bool,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Outliers of a batch or of rows that wait, and the thresholds of columns after them."""
        V = state.basis
        if support.threshold != "auto":
            mask, columns = support._outliers(Z, V)
        elif columns is None:
            if state.outliers is not None and not state.n_rows:  # of few factors
                mask, columns = search_first(Z, V, state.outliers)
            else:
                start = start_of_support(Z, V, support.xi)
                mask, columns = search_batch(Z, V, start, self._by_altproj and not state.n_rows)
            if full:
                _warn_near_half(mask, Z)
        else:
            found = search_rows(Z, V, support.xi, columns)
            if not full:
                return found.mask, columns
            if state.n_rows < KNOWN_ROWS:
                return search_batch(Z, V, found.start)
            level, mask = float(np.median(found.level)), found.mask  # of most rows
            if not fits(level):
                return self._search_by_itself(Z, V, found.start, level)
            columns = remembered(columns, Z, V, mask | mostly_outliers(mask, Z), level)
            if not is_as_before(level):  # the subspace is still being found
                return mask, columns
        if full:
            warn_of_support(mask, Z, V, state.mean, support.threshold)
        return mask, columns

    def _search_by_itself(
        self, Z: np.ndarray, V: np.ndarray, start: np.ndarray, level: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Outliers of a batch that the subspace fits much better or worse than those before.

        If worse, AltProj finds another subspace of rows enough, as in the first batch; the one that
        leaves less tells the outliers.
        """
        mask, columns = search_batch(Z, V, start)
        if fits_worse(level) and len(Z) >= ALTPROJ_ROWS * len(V):
            Z = Z - robust_mean(Z)
            W, _ = linalg.top_of_rows(without_sparse_part(Z, len(V), _START)[0], len(V))
            anew = search_batch(Z, W, start_of_support(Z, W, self._support.xi))
            if np.median(anew[1]) < np.median(columns):
                return anew
        return mask, columns


class Factors(NamedTuple):
    """Orthonormal factors of rows, their fit, what it leaves, and robust deviations of that."""

    basis: np.ndarray
    fit: np.ndarray
    rest: np.ndarray
    noise: float
    of_columns: np.ndarray

    @classmethod
    def of(cls, Y: np.ndarray, basis: np.ndarray, fit: np.ndarray) -> Factors:
        """Fitted to the entries that are near a first ``fit``, and then near the last one."""
        rest = Y - fit
        for _ in range(_FITS):
            kept = np.where(_outliers(rest, _noise(rest)), np.nan, Y)
            by_rows, _ = np.linalg.qr(coordinates(kept, basis)[0])
            basis = np.linalg.qr(coordinates(kept.T, by_rows.T)[0])[0].T
            fit = coordinates(kept, basis)[0] @ basis
            rest = Y - fit
        return cls(basis, fit, rest, _noise(rest), deviations(rest, QUARTILE, axis=0))

    def hardly_lower(self, before: Factors) -> bool:
        """Whether the geometric mean of the columns' deviations is hardly lower than ``before``.

        ``before`` has a factor less, which noise alone would lower a little, too. Columns without
        a deviation do not count.
        """
        n, d = self.rest.shape
        noise_alone = (np.sqrt(n) + np.sqrt(d)) ** 2 / (n * d)  # share of its leading direction
        some = (self.of_columns > 0) & (before.of_columns > 0)
        ratio = np.log(self.of_columns[some] / before.of_columns[some])
        return not some.any() or np.mean(ratio) > np.log(_LOWER) + np.log1p(-noise_alone) / 2


def factors_and_outliers(Y: np.ndarray, enough: float) -> tuple[np.ndarray, np.ndarray] | None:
    """Low-rank part of rows by as many factors as lower the columns' deviations, and outliers.

    An object that stays for nearly half of the rows in some of the columns is like a factor to
    least squares, but not to quantiles of a column's entries. The first factor has each row's
    number and each column's by a weighted median of ratios, which least absolute deviations demand;
    a further one is the leading direction of what is left, cut at few deviations. All are then
    fitted to the other entries. There may be more of them than components are wanted. None where
    they leave more than ``enough``, or not about the same in all columns, or nothing; nor where a
    column has much leverage, as one that varies more than others: entries that are left out of the
    fit of a column's own direction are no outliers.
    """
    n, d = Y.shape
    v = robust_mean(Y)
    c = _multiples(Y, v)
    v = _multiples(Y.T, c)
    size = float(np.linalg.norm(v))
    if not size > 0:
        return None
    found = Factors.of(Y, v[None] / size, np.outer(c, v))
    while len(found.basis) < min(_FACTORS, n // 10, d // 10) and found.noise > 0:
        bound = _TRIMMED * found.noise
        near = found.fit + np.clip(np.nan_to_num(found.rest), -bound, bound)
        basis, _ = linalg.top_of_rows(near, len(found.basis) + 1)
        more = Factors.of(Y, basis, near @ basis.T @ basis)
        if more.hardly_lower(found):
            break
        found = more
    noise = found.noise
    unlike = (found.of_columns > 2 * noise) | (found.of_columns < noise / 2)
    negligible = noise <= LEAST * np.sqrt(np.mean(found.fit**2))
    leverage = np.einsum("ij,ij->j", found.basis, found.basis).max()
    if negligible or noise > enough or unlike.mean() > _UNLIKE or leverage > _LEVERAGE:
        return None
    return found.fit, _outliers(found.rest, noise)


def _noise(rest: np.ndarray) -> float:
    return float(deviations(rest.ravel(), MEDIAN, 0))


def _outliers(rest: np.ndarray, noise: float) -> np.ndarray:
    found = np.abs(rest) > _TRIMMED * noise
    found[:, found.sum(axis=0) > _ALL * (~np.isnan(rest)).sum(axis=0)] = False
    return found


def _multiples(Y: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The multiple of a row that each row is, by least absolute deviations of what is there."""
    ratios = np.divide(Y, v, out=np.zeros(Y.shape), where=v != 0)
    weights = np.where(np.isnan(ratios), 0.0, np.abs(v))
    order = np.argsort(ratios, axis=1)
    below = np.take_along_axis(weights, order, axis=1).cumsum(axis=1)
    at = np.argmax(below >= below[:, -1:] / 2, axis=1)
    return np.nan_to_num(np.take_along_axis(ratios, order, axis=1)[np.arange(len(Y)), at])
