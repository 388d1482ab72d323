"""Subspace tracking from rows with missing entries: Narayanamurthy, Vaswani and Ramamoorthy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from .. import _linalg
from .._absorb import absorb_block
from .._checks import float_array
from .._missing import MissingEntriesMixin, coordinates
from ..streaming._block_transformer import BlockTransformer
from ..subspace import Subspace

__all__ = ["SubspaceTracker"]

# Amplification of noise from which on a row with holes is left out of the r-SVD.
_MAX_GAIN = 1e3
# Share of a direction of the last basis that a new one must lack for the rest to complete it.
_LACKING = 1e-6
# A change: the residuals' largest eigenvalue against that of the last update, and against the
# largest eigenvalue of the rows, below which residuals are rounding errors.
_CHANGE = 2.0
_ROUNDING = 1e-16
# Changes that are remembered.
_CHANGES_KEPT = 1000


class SubspaceTracker(MissingEntriesMixin, BlockTransformer):
    """Track the principal subspace of rows with missing entries, batch by batch (STMiss).

    Missing entries (NaN) of a batch are filled in by least squares from the rest of their row and
    the last subspace; the r leading singular vectors of the filled batch are the next. A batch
    suffices for a subspace, so changes are followed at once.

    Parameters
    ----------
    n_components : int or None, default=None
        None: 10, or all features where there are fewer.
        r of [1]_.
    batch_size : int or "auto", default="auto"
        Rows after which the subspace is updated; alpha of [1]_. "auto": ``max(2 n_components,
        40)``.
    forgetting_factor : float in [0, 1], default=0.0
        The weight of earlier batches falls by ``forgetting_factor ** batch_size`` with each batch,
        or less if not all its rows count; rows of a batch count alike. 0: the subspace is that of
        the last batch alone, as in [1]_. Closer to 1, noise is averaged over more rows, and changes
        are followed more slowly.
    n_iter : int, default=1
        Times that a batch is filled in, each time by the subspace found last. 1 as in [1]_.
    fill : {"subspace", "zeros"}, default="subspace"
        "zeros": the baseline of [1]_, simple PCA of each batch with zeros filled in.
    init : "svd" or array-like of shape (k, n_features), default="svd"
        "svd": the first batch is filled with zeros, or with the mean of each feature if ``center``.
        An array: rows that span the first subspace.
    detect_changes : bool, default=False
        After ``n_updates`` updates keep the subspace, until rows do not fit it any more (NORST
        [2]_). The time of the change is then recorded, and updates begin again, with that batch.
    n_updates : int, default=20
        K of [2]_, after the first batch. Only used with ``detect_changes``.
    change_threshold : float or "auto", default="auto"
        Largest eigenvalue of the residuals' second-moment matrix, in units of the rows squared,
        from which on a change is detected; omega_evals of [2]_. "auto": twice that of the last
        update, which is also looked for between updates.
    center : bool, default=False
        Subtract the mean of the filled rows that count. False: about the origin, as in [1]_.
    store_subspaces : bool, default=False
        Keep the basis after every batch in ``subspaces_``, which grows with the stream.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features)
        Orthonormal basis, along the principal axes of the filled rows that count.
    singular_values_, explained_variance_, explained_variance_ratio_, mean_, noise_variance_ :
        As in `StreamingPCA`, for the filled rows that count: with the default
        ``forgetting_factor`` those of the last batch. What is filled in has no noise.
    n_components_, n_samples_, n_samples_seen_, subspace_
        As in `StreamingPCA`; rows seen.
    change_points_ : ndarray of int
        Index of the first row of each batch in which a change was detected, of the last 1,000.
    subspaces_ : list of ndarray of shape (n_components, n_features), float64
        Only with ``store_subspaces``; one for each full batch.

    See Also
    --------
    RobustSubspaceTracker : For outliers as well.
    GROUSE, PETRELS : Row by row.

    Notes
    -----
    Algorithm 1 of [1]_ (STMiss-NoDet). A row with h holes costs O(d k^2) time for its k x k system;
    the r-SVD of m rows O(d (m + k)^2). Memory O(d (m + k)).

    Rows whose entries do not determine their coordinates do not count in the r-SVD. Where no row
    of a batch has such entries, as when a sensor dies that is a direction by itself, those with at
    least k entries count, with the smallest coordinates. A batch of fewer rows, or of lower rank,
    replaces as many of the directions; of the others the part that is still orthogonal stays, with
    no variance. The rows at the end of a stream that do not fill a batch displace their share of
    the last one in what is shown. A feature that was never observed has no part in any direction
    with variance. One that is first observed late takes some batches to find its mean, if
    ``center``.

    Differences from scikit-learn: NaN is accepted in `fit` and `transform`, and `score` is that of
    predicting hidden entries.

    References
    ----------
    .. [1] P. Narayanamurthy, N. Vaswani, A. Ramamoorthy, "Federated over-air subspace tracking from
       incomplete and corrupted data", IEEE Transactions on Signal Processing 2022.
    .. [2] P. Narayanamurthy, N. Vaswani, "Provable dynamic robust PCA or robust subspace tracking",
       IEEE Transactions on Information Theory 2019 (NORST).

    Examples
    --------
    >>> from fedpca_sklearn import SubspaceTracker, make_subspace_stream, subspace_distance
    >>> stream = make_subspace_stream(2000, 200, 5, model="piecewise", random_state=0)
    >>> round(float(stream.missing.mean()), 2), stream.change_points
    (0.1, (1000,))
    >>> tracker = SubspaceTracker(5, detect_changes=True).fit(stream.X)
    >>> tracker.change_points_
    array([1000])
    >>> subspace_distance(tracker.components_, stream.subspace_at(1999)) < 1e-10
    True
    """

    _parameter_constraints: dict = {
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
        "batch_size": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "forgetting_factor": [Interval(Real, 0, 1, closed="both")],
        "n_iter": [Interval(Integral, 1, None, closed="left")],
        "fill": [StrOptions({"subspace", "zeros"})],
        "init": [StrOptions({"svd"}), "array-like"],
        "detect_changes": ["boolean"],
        "n_updates": [Interval(Integral, 1, None, closed="left")],
        "change_threshold": [StrOptions({"auto"}), Interval(Real, 0, None, closed="left")],
        "center": ["boolean"],
        "store_subspaces": ["boolean"],
    }

    _fixed = (*BlockTransformer._fixed, "center", "batch_size")

    def __init__(
        self,
        n_components: int | None = None,
        *,
        batch_size: int | str = "auto",
        forgetting_factor: float = 0.0,
        n_iter: int = 1,
        fill: str = "subspace",
        init: Any = "svd",
        detect_changes: bool = False,
        n_updates: int = 20,
        change_threshold: float | str = "auto",
        center: bool = False,
        store_subspaces: bool = False,
    ):
        self.n_components = n_components
        self.batch_size = batch_size
        self.forgetting_factor = forgetting_factor
        self.n_iter = n_iter
        self.fill = fill
        self.init = init
        self.detect_changes = detect_changes
        self.n_updates = n_updates
        self.change_threshold = change_threshold
        self.center = center
        self.store_subspaces = store_subspaces

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.detect_changes and self.fill != "subspace":
            raise ValueError(f"detect_changes needs fill='subspace', got fill={self.fill!r}.")

    # ---------------------------------------------------------------- the stream

    def _block_rows(self, d: int, first: bool = True) -> int:
        return max(2 * self._rank(d), 40) if self.batch_size == "auto" else self.batch_size

    def _start(self, d: int) -> _State:
        V = np.empty((0, d)) if isinstance(self.init, str) else self._given_basis(d)
        return _State(Subspace.empty(d, centered=self.center), np.zeros(d), V, self.n_updates)

    def _given_basis(self, d: int) -> np.ndarray:
        V = float_array("init", self.init, 2, np.float64)
        if V.shape[1] != d or not 1 <= len(V) <= d:
            raise ValueError(f"init must have shape (k, {d}) with 1 <= k <= {d}, got {V.shape}.")
        return _linalg.orthonormalised(V)

    def _begin_batch(self, stream: Any, n: int) -> None:
        if stream is None:
            for name in ("subspaces_", "change_points_"):
                vars(self).pop(name, None)
        if self.store_subspaces:
            self.subspaces_ = list(getattr(self, "subspaces_", []))

    def _after_block(self, state: _State, full: bool) -> None:
        if self.store_subspaces and full:
            V = state.basis
            self.subspaces_.append(_linalg.complete_basis(V, self._rank(V.shape[1])))

    def _absorb(self, state: _State, Y: np.ndarray) -> _State:
        if not state.summary.n_samples:
            state = self._first(state, Y)
        Y, state = self._without_outliers(Y, state)
        after = replace(state, n_rows=state.n_rows + len(Y))
        L, C, counts = self._filled(Y, state)
        if not counts.any():
            return after
        if self.detect_changes and len(state.basis):
            size = self._block_rows(Y.shape[1], False)
            n = max(len(Y), size)
            level = _residual_square(Y[counts] - state.mean, C[counts], state.basis) / n
            if self._has_changed(state, level):
                changes = state.change_points
                if not changes or state.n_rows - changes[-1] > size:  # not the rest of the last one
                    changes = (*changes, state.n_rows)[-_CHANGES_KEPT:]
                after = replace(after, change_points=changes, updates_left=self.n_updates)
            elif not state.updates_left:
                return after
            after = replace(after, updates_left=after.updates_left - 1, level=level)
        for i in range(self.n_iter):
            if i:
                L, _, counts = self._filled(Y, after)
            if not counts.any():
                break
            summary = self._next(replace(state, basis=after.basis), L, counts)
            V = _completed(summary.components, state.basis, self._rank(Y.shape[1]))
            after = replace(after, summary=summary, mean=summary.mean, basis=V)
        return after

    def _first(self, state: _State, Y: np.ndarray) -> _State:
        """Mean and basis that fill the first batch."""
        if not self.center:
            return state
        there = ~np.isnan(Y)
        total = np.where(there, Y, 0.0).sum(axis=0)
        return replace(state, mean=total / np.maximum(there.sum(axis=0), 1))

    def _without_outliers(self, Y: np.ndarray, state: _State) -> tuple[np.ndarray, _State]:
        """Rows with outliers marked as missing, and a state that knows where they are."""
        return Y, state

    def _filled(self, Y: np.ndarray, state: _State) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows with missing entries filled in, their coordinates, and which rows are to count."""
        V = state.basis if self.fill == "subspace" else state.basis[:0]
        lost = np.isnan(Y)
        some = (~lost).sum(axis=1) >= max(len(V), 1)
        C, gain = coordinates(Y - state.mean, V)
        counts = some & (gain <= _MAX_GAIN)
        if not counts.any():
            C, _ = coordinates(Y - state.mean, V, 1 / _MAX_GAIN)
            counts = some
        return np.where(lost, C @ V + state.mean, Y), C, counts

    def _next(self, state: _State, L: np.ndarray, counts: np.ndarray) -> Subspace:
        """The r-SVD of filled rows and of what still counts of the rows before."""
        m = int(counts.sum())
        fading = self.forgetting_factor**m
        share = 1 - m / self._block_rows(L.shape[1], not state.summary.n_samples)
        before = state.summary.decay(max(fading, share, 0.0))
        return absorb_block(before, L[counts], max_keep=self._rank(L.shape[1]))

    def _has_changed(self, state: _State, level: float) -> bool:
        if self.change_threshold != "auto":
            return not state.updates_left and level > self.change_threshold
        s, n = state.summary.singular_values, state.summary.n_samples
        rounding = _ROUNDING * float(s[0]) ** 2 / n if len(s) else 0.0
        return state.level is not None and level > max(_CHANGE * state.level, rounding)

    def _show(self, state: _State, n_rows: int, dtype: np.dtype) -> None:
        summary = state.summary
        if not summary.n_samples:
            summary = summary._replace(n_samples=float(n_rows))  # nothing observed yet
        summary = summary._replace(components=summary.components.astype(dtype))
        self._set_fitted(summary, self._rank(len(state.mean)), n_rows)
        k = self.n_components_
        self.components_ = _linalg.complete_basis(state.basis[:k], k).astype(dtype)
        if self.detect_changes:
            self.change_points_ = np.array(state.change_points, dtype=np.int64)


@dataclass(frozen=True)
class _State:
    """What the batches left.

    ``summary`` is that of the filled rows that count, ``mean`` and ``basis`` fill the next batch,
    and ``level`` is the residuals' largest eigenvalue at the last update. With outliers:
    ``outliers`` masks those of the last batch, ``threshold`` is what they had to exceed, by column.
    """

    summary: Subspace
    mean: np.ndarray
    basis: np.ndarray
    updates_left: int
    level: float | None = None
    n_rows: int = 0
    change_points: tuple[int, ...] = ()
    outliers: np.ndarray | None = None
    threshold: np.ndarray | None = None


def _residual_square(Z: np.ndarray, C: np.ndarray, V: np.ndarray) -> float:
    """Square of the largest singular value of what a subspace does not explain."""
    R = Z - C @ V
    R[np.isnan(R)] = 0.0
    return float(_linalg.eigh_top(R @ R.T, 1)[0][0])


def _completed(V: np.ndarray, old: np.ndarray, n_components: int) -> np.ndarray:
    """Basis with the directions of an older one that it lacks most, if it has too few."""
    if len(V) >= n_components or not len(old):
        return V
    rest = old - (old @ V.T) @ V
    _, s, W = np.linalg.svd(rest, full_matrices=False)
    more = W[: min(n_components - len(V), int(np.sum(s > _LACKING)))]
    return _linalg.orthonormalised(np.concatenate([V, more]))
