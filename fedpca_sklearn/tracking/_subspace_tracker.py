"""Subspace tracking from rows with missing entries: Narayanamurthy, Vaswani and Ramamoorthy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
from sklearn.utils._param_validation import StrOptions

from ._stmiss import Filled, State, fill
from ._stmiss_tracker import STMissTracker

__all__ = ["SubspaceTracker"]


class SubspaceTracker(STMissTracker):
    """Track the principal subspace of rows with missing entries, batch by batch (STMiss).

    Take it where rows have missing entries (NaN), and arrive in batches or are all at hand.
    `impute` fills the missing entries in. For each batch, the tracker fills them in from the rest
    of their row and the last subspace. The next subspace is that of all filled batches, or of those
    that still fit, if that has predicted the next rows better so far.

    Parameters
    ----------
    n_components : int or None, default=None
        Dimension of the subspace, r of [1]_. None: 10, or all features where there are fewer.
    batch_size : int or "auto", default="auto"
        Rows after which the subspace is updated; alpha of [1]_. "auto": ``max(2 n_components,
        40)``.
    forgetting_factor : float in [0, 1] or "auto", default="auto"
        "auto": all batches count, unless a model that forgets predicts the next rows better, see
        Notes. A float: the weight of earlier batches falls by
        ``forgetting_factor ** batch_size`` with each batch, or less if not all its rows count; rows
        of a batch count alike. 0: the subspace is that of the last batch alone, as in [1]_; 1: all
        count alike, for one model of all rows of a stream that comes back to where it was.
    half_life : float or None, default=None
        The number of later rows after which a row has half its weight: a factor of ``0.5 ** (1 /
        half_life)``, in the place of ``forgetting_factor``, which must be "auto" then. No time, as
        in `StreamingPCA`: rows of a batch count alike, whatever their times.
    n_iter : int, default=1
        Times that a batch is filled in, each time by the subspace found last. 1 as in [1]_.
    fill : {"conditional", "subspace", "zeros"}, default="conditional"
        What stands for a missing entry. "conditional": its mean given the rest of its row, the
        variances along the subspace and the noise of an entry, as in probabilistic PCA [3]_; where
        nothing is left beyond the subspace, the same as "subspace": by least squares, as in [1]_,
        which amplify noise where few entries are there. "zeros": the baseline of [1]_, simple PCA
        of each batch with zeros filled in.
    init : "svd" or array-like of shape (k, n_features), default="svd"
        "svd": the first batch is filled with zeros, or with the mean of each feature if ``center``.
        An array: rows that span the first subspace.
    detect_changes : bool, default=False
        After ``n_updates`` updates keep the subspace, until rows do not fit it any more, much as
        NORST [2]_ does; with ``forgetting_factor="auto"`` the past is forgotten at once then. The
        time of the change is recorded, and updates begin again with that batch; in NORST with the
        next.
    n_updates : int, default=20
        K of [2]_, after the first batch. Only used with ``detect_changes``.
    change_threshold : float or "auto", default="auto"
        Largest eigenvalue of the residuals' second-moment matrix, in units of the rows squared,
        from which on a change is detected; omega_evals of [2]_. "auto": twice that of the last
        update, which is also looked for between updates.
    center : bool, default=True
        Subtract the mean of the filled rows that count. False: about the origin, as in [1]_.
    store_subspaces : bool, default=False
        Keep the basis after every batch in ``subspaces_``, which grows with the stream.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features)
        Orthonormal basis, along the principal axes of the filled rows that count.
    singular_values_, explained_variance_, explained_variance_ratio_, mean_, noise_variance_ :
        As in `StreamingPCA`, for the filled rows that count. What is filled in has no noise.
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
    With ``forgetting_factor="auto"`` there are two models, once they differ, and the attributes are
    those of the one with the lesser loss: the squared residuals of each batch beyond the subspace
    before it, summed with a factor of 0.98 for each later batch. In one all rows count alike. The
    other forgets: let a be the noise that the subspace of a batch alone would leave in other rows,
    and b > a what is left with the past. After a batch whose squared residuals are more than twice
    those of the best before it, the past counts as a / (b - a) batches, and its rows as a / b at
    most. Batches that were filled in with a worse basis count less. So a change shows one batch
    later, and a stream that comes back to where it was is not forgotten. Time and memory double.

    With ``forgetting_factor=0, fill="subspace", center=False`` this is Algorithm 1 of [1]_
    (STMiss-NoDet).
    For a full batch Y after full batches, ``impute(Y)`` before ``partial_fit(Y)`` is its first
    estimate (line 7), and after it the optional, better second one of lines 12 to 14, by the
    subspace of the batch itself.

    A row with h holes costs O(d k^2) time for its k x k system; the r-SVD of m rows O(d (m + k)^2).
    Memory O(d (m + k)).

    Rows whose entries do not determine their coordinates, or hardly (an entry of the inverse of
    their k x k system is above 1,000), do not count in the r-SVD; in [1]_ the latter do. Where no
    row of a batch counts so, as when a sensor dies that is a direction by itself, those with at
    least k entries do, with the smallest coordinates. A batch of fewer rows, or of lower rank,
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
    .. [2] P. Narayanamurthy, V. Daneshpajooh, N. Vaswani, "Provable subspace tracking from missing
       data and matrix completion", IEEE Transactions on Signal Processing 2019 (NORST).
    .. [3] M. E. Tipping, C. M. Bishop, "Probabilistic principal component analysis", Journal of the
       Royal Statistical Society B 1999.

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
        **STMissTracker._parameter_constraints,
        "fill": [StrOptions({"conditional", "subspace", "zeros"})],
    }

    def __init__(
        self,
        n_components: int | None = None,
        *,
        batch_size: int | Literal["auto"] = "auto",
        forgetting_factor: float | Literal["auto"] = "auto",
        half_life: float | None = None,
        n_iter: int = 1,
        fill: str = "conditional",
        init: Any = "svd",
        detect_changes: bool = False,
        n_updates: int = 20,
        change_threshold: float | Literal["auto"] = "auto",
        center: bool = True,
        store_subspaces: bool = False,
    ):
        self.n_components = n_components
        self.batch_size = batch_size
        self.forgetting_factor = forgetting_factor
        self.half_life = half_life
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
        if self.detect_changes and self.fill == "zeros":
            raise ValueError(
                "detect_changes needs fill='conditional' or fill='subspace', got fill='zeros'."
            )

    @property
    def _measures(self) -> bool:
        return self.fill != "zeros" and super()._measures

    def _first(self, state: State, Y: np.ndarray, owners: np.ndarray) -> State:
        if not self.center:
            return state
        there = ~np.isnan(Y)
        total = np.where(there, Y, 0.0).sum(axis=0)
        return replace(state, mean=total / np.maximum(there.sum(axis=0), 1))

    def _fill(self, state: State, Y: np.ndarray) -> Filled:
        if self.fill == "zeros":
            return fill(Y, state.mean, state.basis[:0])
        return super()._fill(state, Y)
