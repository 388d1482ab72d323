"""The steps of STMiss as functions of arrays and one state: begin, fill, detect, r-SVD, complete.

Algorithm 1 (STMiss-NoDet) of Narayanamurthy, Vaswani and Ramamoorthy, "Federated over-air subspace
tracking from incomplete and corrupted data", 2022. The paper's columns are rows here: Y_j is a
batch, P_j has the rows of ``basis``, alpha is the rows of a batch and M_t the entries that are NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from sklearn.utils._param_validation import StrOptions

from .._kernels import linalg
from .._kernels.observed import coordinates
from .._kernels.tolerances import MAX_GAIN_IN_SVD
from .._kernels.too_large import too_large
from .._validation.checks import (
    AT_LEAST_ONE,
    Interval,
    Strategy,
    allowed,
    float_array,
    with_parameters,
)
from ..summary import Subspace

# A batch that fits worse than the best one by this factor, in squares, may tell of a change.
WORSE = 2.0
# Where a batch fits better than all before by this factor, in squares, these were filled too badly.
FALL = 0.1
# A subspace of the batch alone that fits better by this factor, in squares, tells of one.
BETTER = 2.0
# Factor by which the losses of earlier batches count less with each batch.
LOSS_KEPT = 0.98
# The least positive number.
_TINY = np.finfo(np.float64).tiny
# Shares of a row's energy up to which a residual is a rounding error.
ROUNDING_SHARE = 1e-28


class Misfit(NamedTuple):
    """What a subspace does not explain of the entries of a batch.

    Attributes
    ----------
    noise : float
        Variance of an entry beyond the subspace.
    share : float
        The noise over the mean square of an entry.
    least_share : float
        What the share may be where the residual is hidden.
    entries : float
        Number of entries.
    """

    noise: float
    share: float
    least_share: float
    entries: float

    @classmethod
    def of(
        cls, residual: float, square: float, free: float, entries: float, hidden: float = 0.0
    ) -> Misfit:
        """From sums of what rows are misfit by; residuals below ``hidden`` are not known."""
        noise = max(residual, hidden) / free if free > 0 else math.nan
        share = max(noise * entries / square, ROUNDING_SHARE) if square > 0 else math.nan
        known = min(max(residual, 0.0) / max(hidden, residual, _TINY), 1.0)
        return cls(noise, share, share * known, entries)


def past_weight(alone: float, past: float, n: float, m: int) -> float:
    """Weight of the n rows of the past beside a batch of m rows whose own subspace is tried.

    ``alone`` is the noise that the batch's subspace leaves of others like it, ``past`` what that of
    the past leaves. Two estimates are best weighed by the inverse of their errors: that of the
    batch is its noise, that of the past what it leaves beyond. And rows of two noises are by the
    inverse of these. The lesser of both counts.
    """
    if not alone < past:
        return 1.0
    return min(alone / past, alone / (past - alone) * m / n if n else 1.0)


def optimism(m: int, k: int) -> float:
    """Noise of other rows beyond the subspace of dimension k that fits m rows best, over theirs."""
    return (m + k) / (m - k) if m > k else math.inf


# Sine of the angle between a direction of the last basis and the new one from which on what the new
# one lacks completes it. Of directions that it has, rounding leaves some eps.
_LACKING = 1e-6
# Rows for each component from which on AltProj tells outliers well, and those of a first batch, at
# least.
ALTPROJ_ROWS = 5
_LEAST_FIRST = 100
# A change: the residuals' largest eigenvalue against that of the last update, and against the
# largest eigenvalue of the rows, below which residuals are rounding errors.
_CHANGE = 2.0
_ROUNDING = 1e-16
# Changes that are remembered.
_CHANGES_KEPT = 1000


@dataclass(frozen=True)
class State:
    """State after the batches so far.

    Attributes
    ----------
    summary : Subspace
        Of the filled rows that count.
    mean : ndarray of shape (d,)
    basis : ndarray of shape (k, d)
        P_{j-1}. With the mean it fills the next batch.
    unseen : ndarray of shape (d,), bool
        Columns without an entry so far.
    n_rows : int
        Rows taken, j - 1 batches of them.
    updates_left, level, change_points
        Of `ChangeDetection`: updates before the subspace is kept, the residuals' largest eigenvalue
        at the last one, and the first row of each batch with a change.
    outliers, threshold : ndarray or None
        Mask of the last batch, and what an entry of each column has to exceed.
    outlying : ndarray of shape (d,) or None
        Rows for which each column has been outliers for the most.
    owners : ndarray of shape (m,)
        Labels of the rows to come that are known by now, where rows have owners.
    seed : int
        Of what is drawn for a batch.
    noise : float
        Variance of an entry beyond the subspace in recent batches; NaN if not known.
    least : float
        The least share of the entries' squares that the basis left of a batch.
    filling : float
        The same since the last change: of the basis that filled the rows that count.
    weight : float
        Factor by which the past counts beside the last batch, beyond the forgetting factor.
    loss : float
        Squared residuals of batches beyond the basis before each, of which recent ones count more.
    keeps : bool
        Whether all batches count.
    whole : bool
        Whether no entry of a batch was filled in.
    rival : State or None
        The state with the other answer to ``keeps``, once the two differ.
    """

    summary: Subspace
    mean: np.ndarray
    basis: np.ndarray
    unseen: Any = True
    n_rows: int = 0
    updates_left: int = 1
    level: float | None = None
    change_points: tuple[int, ...] = ()
    outliers: np.ndarray | None = None
    threshold: np.ndarray | None = None
    outlying: np.ndarray | None = None
    owners: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=object))
    seed: int = 0
    noise: float = math.nan
    least: float = math.nan
    filling: float = math.nan
    weight: float = 1.0
    loss: float = 0.0
    keeps: bool = False
    whole: bool = True
    rival: State | None = None


def with_first_means(state: State, means: np.ndarray) -> State:
    """State where unseen columns have the mean of a batch, from which missing entries are filled.

    NaN where the batch has no entry either.
    """
    began, seen = state.summary.n_samples > 0, ~np.isnan(means)
    new = seen & state.unseen if began else seen
    mean = np.where(new, means, state.mean)
    summary = state.summary._replace(mean=mean) if began and new.any() else state.summary
    rival = None if state.rival is None else with_first_means(state.rival, means)
    return replace(state, summary=summary, mean=mean, unseen=state.unseen & ~seen, rival=rival)


class Filled(NamedTuple):
    """A filled batch, L_j.

    Attributes
    ----------
    rows : ndarray of shape (m, d)
    coordinates : ndarray of shape (m, k)
        In the last basis.
    counts : ndarray of shape (m,), bool
        Which rows count.
    numbers : ndarray of shape (m,)
        Coordinates that were fitted to each row, see `Fit`.
    """

    rows: np.ndarray
    coordinates: np.ndarray
    counts: np.ndarray
    numbers: np.ndarray


def fill(Y: np.ndarray, mean: np.ndarray, V: np.ndarray, ridge: np.ndarray | None = None) -> Filled:
    """Projected least squares: Algorithm 1, lines 4 to 8.

    The paper's ``l_t = y_t - I_M (Psi_M)^+ (Psi y_t)`` is the fit of the basis to the entries of a
    row that are there, at those that are not. Rows whose entries do not determine their coordinates
    do not count; where no row has such entries, those with at least k entries do, with the smallest
    coordinates. Without a basis rows are filled with the mean. With a ridge (see `noise_ridge`)
    coordinates are conditional means, which every row has.
    """
    lost = np.isnan(Y)
    some = (~lost).sum(axis=1) >= max(len(V), 1)
    C, gain, numbers = coordinates(Y - mean, V, ridge=ridge)
    counts = some & (gain <= MAX_GAIN_IN_SVD)
    if not counts.any():
        C, _, numbers = coordinates(Y - mean, V, 1 / MAX_GAIN_IN_SVD, ridge)
        counts = some
    return Filled(np.where(lost, C @ V + mean, Y), C, counts, numbers)


def r_svd(past: Subspace, L: np.ndarray, rank: int) -> Subspace:
    """Summary of what is left of the past and of filled rows, cut to a rank."""
    n, total = past.n_samples, past.n_samples + len(L)
    mean, low, Z = past.mean, 0.0, L
    if past.centered:
        shift = past.mean if n else L[0]
        Z = L - shift
        offset = Z.mean(axis=0)
        Z -= offset
        gap = offset - past._mean_low
        if n:
            Z = np.concatenate([Z, math.sqrt(n / total * len(L)) * gap[None]])
        # what the mean is more than a float holds is kept
        rest = past._mean_low + len(L) / total * gap
        mean = shift + rest
        low = (shift - mean) + rest
    columns = np.einsum("ij,ij->j", Z, Z)
    if not math.isfinite(columns.sum()):
        raise too_large("sum of squares")
    M = np.concatenate([past.singular_values[:, None] * past.components, Z])
    V, s = linalg.top_of_rows(M, rank)
    return past._replace(
        components=V,
        singular_values=s,
        mean=mean,
        _mean_low=low,
        n_samples=total,
        scatter=past.scatter + float(columns.sum()),
        column_scatter=past.column_scatter + columns,
    )


def complete(V: np.ndarray, old: np.ndarray, r: int) -> np.ndarray:
    """The next basis, P_j; if it has under r rows, with the last one's directions it lacks most."""
    if len(V) >= r or not len(old):
        return V
    rest = old - (old @ V.T) @ V
    _, s, W = np.linalg.svd(rest, full_matrices=False)
    more = W[: min(r - len(V), int(np.sum(s > _LACKING)))]
    return linalg.orthonormalised(np.concatenate([V, more]))


class TrackerPart(Strategy):
    """An object that says how a tracker does one thing, for one of its parameters."""

    @classmethod
    def _of(cls, given: Any) -> Self:
        """The object that a value of the parameter stands for; a bool for its defaults."""
        if isinstance(given, cls):
            return given
        return cls() if isinstance(given, bool | np.bool_) else cls(given)


@with_parameters
class FirstSubspace(TrackerPart):
    """Where a tracker begins, for the parameter ``init`` of `RobustSubspaceTracker` and others.

    A method alone stands for an object with the other parameters' defaults. They are searched as
    ``init__n_rows``.

    Parameters
    ----------
    method : {"auto", "altproj", "svd"} or array-like of shape (k, n_features), default="auto"
        "altproj": `AlternatingProjections` of the first ``n_rows`` rows; each client's own in
        `FederatedSubspaceTracker`, where rounds find the subspace of what is left. "svd": an r-SVD
        of the first batch with zeros for missing entries, outliers included. An array: rows that
        span the subspace. "auto": "altproj" if outliers are searched for, else "svd".
    n_rows : int or "auto", default="auto"
        Rows of the first batch, of all clients, with "altproj"; each client needs five for each
        component. "auto": ``max(batch size, 5 n_components, 100)``.
    n_rounds : int, default=50
        Rounds of `FederatedSubspaceTracker` from a start at random: in the first batch with "svd",
        or before it with "altproj". Trackers of one process have no rounds.

    See Also
    --------
    RobustSubspaceTracker, FederatedSubspaceTracker : Use it.

    Examples
    --------
    >>> from fedpca_sklearn import FirstSubspace, RobustSubspaceTracker, make_subspace_stream
    >>> stream = make_subspace_stream(600, 200, 5, delta=0, outliers=0.1, random_state=0)
    >>> RobustSubspaceTracker(5, init=FirstSubspace(n_rows=300)).fit(stream.X).n_components_
    5
    """

    method: Any = allowed(StrOptions({"auto", "altproj", "svd"}), "array-like", default="auto")
    n_rows: int | Literal["auto"] = allowed(
        StrOptions({"auto"}), Interval(Integral, 1, None, closed="left"), default="auto"
    )
    n_rounds: int = allowed(AT_LEAST_ONE, default=50)

    def _block_rows(self, size: int, k: int) -> int:
        """Rows of a first batch by AltProj, where others have some size."""
        return max(size, ALTPROJ_ROWS * k, _LEAST_FIRST) if self.n_rows == "auto" else self.n_rows

    def _basis(self, d: int) -> np.ndarray:
        """The basis that is given, if it is."""
        if isinstance(self.method, str):
            return np.empty((0, d))
        V = float_array("init", self.method, 2, np.float64)
        if V.shape[1] != d or not 1 <= len(V) <= d:
            raise ValueError(f"init must have shape (k, {d}) with 1 <= k <= {d}, got {V.shape}.")
        return linalg.orthonormalised(V)


@with_parameters
class ChangeDetection(TrackerPart):
    """Detection of changes of the subspace, for the parameter ``detect_changes`` of a tracker.

    After some updates the subspace is kept, until rows do not fit it any more, much as NORST [1]_
    does. Parameters are searched as ``detect_changes__n_updates``.

    Parameters
    ----------
    n_updates : int, default=20
        Updates after the first batch and after each change; K of [1]_.
    threshold : float or "auto", default="auto"
        Largest eigenvalue of the residuals' second-moment matrix, in units of the rows squared,
        from which on a change is detected; omega_evals of [1]_. "auto": twice that of the last
        update, which is also looked for between updates; rows with heavy tails exceed it by chance.

    See Also
    --------
    SubspaceTracker, RobustSubspaceTracker, FederatedSubspaceTracker : Use it.

    References
    ----------
    .. [1] P. Narayanamurthy et al., "Provable subspace tracking from missing data and matrix
       completion", IEEE Transactions on Signal Processing 2019 (NORST).

    Examples
    --------
    >>> from fedpca_sklearn import ChangeDetection, SubspaceTracker, make_subspace_stream
    >>> stream = make_subspace_stream(2000, 200, 5, model="piecewise", random_state=0)
    >>> changes = ChangeDetection(n_updates=10)
    >>> SubspaceTracker(5, detect_changes=changes).fit(stream.X).change_points_
    array([1000])
    """

    n_updates: int = allowed(AT_LEAST_ONE, default=20)
    # of squares of rows, which may be as large as 1e100
    threshold: float | Literal["auto"] = allowed(
        StrOptions({"auto"}), Interval(Real, 0, 1e200, closed="both"), default="auto"
    )

    def _after(
        self, state: State, level: float, batch_size: int, margin: float = 0.0
    ) -> tuple[State, bool]:
        """Look for a change: the next state, and whether to update.

        ``level`` is the largest eigenvalue of the residuals' second-moment matrix, which may be too
        large by ``margin``.
        """
        noted = state
        if self._has_changed(state, level - margin):
            changes = state.change_points
            if not changes or state.n_rows - changes[-1] > batch_size:  # not the rest of the last
                changes = (*changes, state.n_rows)[-_CHANGES_KEPT:]
            noted = replace(state, change_points=changes, updates_left=self.n_updates)
        elif not state.updates_left:
            return state, False
        return replace(noted, updates_left=noted.updates_left - 1, level=level), True

    def _has_changed(self, state: State, level: float) -> bool:
        if not isinstance(self.threshold, str):
            return not state.updates_left and level > self.threshold
        s, n = state.summary.singular_values, state.summary.n_samples
        rounding = _ROUNDING * float(s[0]) ** 2 / n if len(s) else 0.0
        return state.level is not None and level > max(_CHANGE * state.level, rounding)


def residuals(state: State, Y: np.ndarray, filled: Filled) -> np.ndarray:
    """What the last subspace does not explain of each row, zero where an entry is missing."""
    return np.nan_to_num(Y - state.mean - filled.coordinates @ state.basis, nan=0.0)
