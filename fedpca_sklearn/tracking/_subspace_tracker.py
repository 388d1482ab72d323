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
# Weight of the past where nothing of it is to count but its directions in what a batch lacks.
_TRACE = 1e-20
# A change: the residuals' largest eigenvalue against that of the last update, and against the
# largest eigenvalue of the rows, below which residuals are rounding errors.
_CHANGE = 2.0
_ROUNDING = 1e-16


class SubspaceTracker(MissingEntriesMixin, BlockTransformer):
    """Track the principal subspace of rows with missing entries, batch by batch (STMiss).

    Missing entries (NaN) of a batch are filled in by least squares from the rest of their row and
    the last subspace; the r leading singular vectors of the filled batch are the next. A batch
    suffices for a subspace, so changes are followed at once.

    Parameters
    ----------
    n_components : int, default=10
        r of [1]_.
    batch_size : int or "auto", default="auto"
        Rows after which the subspace is updated; alpha of [1]_. "auto": ``max(2 n_components,
        40)``.
    forgetting_factor : float in [0, 1], default=0.0
        The weight of earlier batches falls by ``forgetting_factor ** batch_size`` with each batch;
        rows of a batch count alike. 0: the subspace is that of the last batch alone, as in [1]_.
        Closer to 1, noise is averaged over more rows, and changes are followed more slowly.
    n_iter : int, default=1
        Times that a batch is filled in, each time by the subspace found last. 1 as in [1]_.
    fill : {"subspace", "zeros"}, default="subspace"
        "zeros": the baseline of [1]_, simple PCA of each batch with zeros filled in.
    init : "svd" or array-like of shape (k, n_features), default="svd"
        "svd": the first batch is filled with zeros. An array: rows that span the first subspace.
    detect_changes : bool, default=False
        After ``n_updates`` updates keep the subspace, until rows do not fit it any more (NORST
        [2]_). The time of the change is then recorded, and updates begin again, with that batch.
    n_updates : int, default=20
        K of [2]_. Only used with ``detect_changes``.
    change_threshold : float or "auto", default="auto"
        Largest eigenvalue of the residuals' second-moment matrix, in units of the rows squared,
        from which on a change is detected; omega_evals of [2]_. "auto": twice that of the last
        update.
    center : bool, default=False
        Subtract the mean of the filled rows that count. False: about the origin, as in [1]_.
    store_subspaces : bool, default=False
        Keep the basis after every batch in ``subspaces_``.

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
        Index of the first row of each batch in which a change was detected.
    subspaces_ : list of ndarray of shape (n_components_, n_features)
        Only with ``store_subspaces``; one for each full batch.

    See Also
    --------
    RobustSubspaceTracker : For outliers as well.
    GROUSE, PETRELS : Row by row.

    Notes
    -----
    Algorithm 1 of [1]_ (STMiss-NoDet). A row with h holes costs O(d k^2) time for its k x k system;
    the r-SVD of m rows O(d (m + k)^2). Memory O(d (m + k)).

    Rows whose entries do not determine their coordinates (fewer than k, or nearly so) do not count
    in the r-SVD. A batch of fewer rows, or of lower rank, replaces as many of the directions: the
    others stay. The rows at the end of a stream that do not fill a batch displace their share of
    the last one in what is shown. A feature that was never observed has no part in the subspace.

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
        "n_components": [Interval(Integral, 1, None, closed="left")],
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

    def __init__(
        self,
        n_components: int = 10,
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

    # ---------------------------------------------------------------- the stream

    def _block_rows(self, d: int, first: bool = True) -> int:
        return max(2 * self.n_components, 40) if self.batch_size == "auto" else self.batch_size

    def _start(self, d: int) -> _State:
        V = np.empty((0, d)) if isinstance(self.init, str) else self._given_basis(d)
        return _State(Subspace.empty(d, centered=self.center), np.zeros(d), V, self.n_updates)

    def _given_basis(self, d: int) -> np.ndarray:
        V = float_array("init", self.init, 2, np.float64)
        if V.shape[1] != d or len(V) > d:
            raise ValueError(f"init must have shape (k, {d}) with k <= {d}, got {V.shape}.")
        return _linalg.orthonormalised(V)

    def _begin_batch(self, stream: Any) -> None:
        if self.store_subspaces:
            self.subspaces_ = [] if stream is None else list(self.subspaces_)

    def _after_block(self, state: _State, full: bool) -> None:
        if self.store_subspaces and full:
            self.subspaces_.append(state.basis)

    def _absorb(self, state: _State, Y: np.ndarray) -> _State:
        if not state.summary.n_samples:
            state = self._first(state, Y)
        Y, state = self._without_outliers(Y, state)
        after = replace(state, n_rows=state.n_rows + len(Y))
        L, C, counts = self._filled(Y, state)
        if not counts.any():
            return after
        if self.detect_changes and len(state.basis):
            level = _residual_level(Y[counts] - state.mean, C[counts], state.basis)
            if not state.updates_left:
                if level <= self._threshold(state):
                    return after
                changes = (*state.change_points, state.n_rows)
                after = replace(after, change_points=changes, updates_left=self.n_updates)
            after = replace(after, updates_left=after.updates_left - 1, level=level)
        for i in range(self.n_iter):
            if i:
                L, _, counts = self._filled(Y, after)
            summary = self._next(state.summary, L, counts)
            V = summary.components
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
        C, gain = coordinates(Y - state.mean, V)
        return np.where(np.isnan(Y), C @ V + state.mean, Y), C, gain <= _MAX_GAIN

    def _next(self, before: Subspace, L: np.ndarray, counts: np.ndarray) -> Subspace:
        """The r-SVD of filled rows and of what still counts of the rows before."""
        m = int(counts.sum())
        fading = self.forgetting_factor**m
        share = 1 - m / self._block_rows(L.shape[1], not before.n_samples)
        before = before.decay(max(fading, share, _TRACE))
        return absorb_block(before, L[counts], max_keep=self.n_components)

    def _threshold(self, state: _State) -> float:
        if self.change_threshold != "auto":
            return self.change_threshold
        s, n = state.summary.singular_values, state.summary.n_samples
        return max(_CHANGE * state.level, _ROUNDING * float(s[0]) ** 2 / n if len(s) else 0.0)

    def _show(self, state: _State, n_rows: int, dtype: np.dtype) -> None:
        summary = state.summary
        if not summary.n_samples:
            summary = summary._replace(n_samples=float(n_rows))  # nothing observed yet
        summary = summary._replace(components=summary.components.astype(dtype))
        self._set_fitted(summary, self.n_components, n_rows)
        if self.detect_changes:
            self.change_points_ = np.array(state.change_points, dtype=np.int64)


@dataclass(frozen=True)
class _State:
    """What the batches left.

    ``summary`` is that of the filled rows that count, ``mean`` and ``basis`` fill the next batch,
    and ``level`` is the residuals' largest eigenvalue before the last update. With outliers:
    ``outliers`` masks those of the last batch, ``threshold`` is what they had to exceed, by column.
    """

    summary: Subspace
    mean: np.ndarray
    basis: np.ndarray
    updates_left: int
    level: float = 0.0
    n_rows: int = 0
    change_points: tuple[int, ...] = ()
    outliers: np.ndarray | None = None
    threshold: np.ndarray | None = None


def _residual_level(Z: np.ndarray, C: np.ndarray, V: np.ndarray) -> float:
    """Largest eigenvalue of the second-moment matrix of what a subspace does not explain."""
    R = Z - C @ V
    R[np.isnan(R)] = 0.0
    return float(_linalg.eigh_top(R @ R.T, 1)[0][0]) / len(R)
