"""Base class of the one-stream trackers, whose subclass is an update rule, and their state."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions

from .._base.block_transformer import BlockTransformer
from .._base.fitted import computed, with_callbacks
from .._kernels import linalg
from .._kernels.observed import coordinates
from .._kernels.tolerances import MAX_GAIN_IN_VARIANCES
from .._kernels.too_large import too_large
from .._validation.checks import Interval, float_array
from ..summary import Subspace
from ..summary._projection_mean import rayleigh_ritz
from ._forgetting import (
    CAME_WITHOUT_TIMES,
    NO_TIMES,
    Clock,
    Fading,
    Features,
    check_half_life,
    duration_of,
    evenly,
    factor_of,
    has_weight,
    innovations,
    times_of_rows,
)

# Share of the rows below which a feature has been missing for too long to tell its variance.
_FORGOTTEN = 1e-12
# Weight of the rows measured below which their variances are forgotten.
_NO_WEIGHT = 1e-200


@dataclass(frozen=True)
class Tracked:
    """State of a stream after its full blocks.

    ``rule_state`` is the rule's own, and ``begun`` whether it has seen a row that is not zero;
    ``factor.T @ factor`` the scatter matrix of rows of the weight ``measured`` within ``basis``.
    ``frame`` is what `_rows` needs besides ``known``, and ``noise`` the variance of an entry beyond
    the basis in recent rows, where it is needed. ``clock`` has the times of rows that have times.
    """

    rule_state: Any
    begun: bool
    basis: np.ndarray
    factor: np.ndarray
    measured: float
    known: Features
    frame: Any = None
    noise: float = math.nan
    clock: Clock = NO_TIMES

    def summary(
        self, V: np.ndarray, mean: np.ndarray, factor: np.ndarray, center: bool, dtype: np.dtype
    ) -> Subspace:
        """Summary of the rows, of which ``factor.T @ factor`` is the scatter matrix within V."""
        known = self.known
        n = known.n_rows
        # a feature that was missing at times counts as if it had always been there
        share = np.broadcast_to(known.weight, known.mean.shape) / n
        there = share > _FORGOTTEN
        scatter = float((known.squares[there] / share[there]).sum())
        factor = factor * np.sqrt(n / self.measured if self.measured > _NO_WEIGHT else 0.0)
        energy = float(np.einsum("ij,ij->", factor, factor))
        # coordinates of rows with holes are uncertain; their entries and their residuals are not
        k, d = len(V), len(mean)
        holes = not np.allclose(share, 1, rtol=1e-12, atol=0)
        noise = min(float(np.nan_to_num(self.noise)) * n, scatter / d) if holes else 0.0
        most = scatter - (d - k) * noise
        if energy > most:
            factor *= np.sqrt(most / energy)
        empty = np.zeros((0, len(mean)), dtype)
        total = Subspace._trusted(empty, np.zeros(0), mean, n, scatter, center)
        return rayleigh_ritz(total, V, factor)


def noise_beyond(before: Tracked, Z: np.ndarray, C: np.ndarray) -> float:
    """Variance of an entry of recent rows beyond a basis, in which new rows have coordinates C."""
    seen = ~np.isnan(Z)
    free = seen.sum(axis=1) - len(before.basis)
    some = free > 0
    if not some.any():
        return before.noise
    R = np.where(seen, Z - C @ before.basis, 0.0)[some]
    now = float(np.einsum("ij,ij->", R, R)) / int(free[some].sum())
    return now if math.isnan(before.noise) else min(now, (now + before.noise) / 2)


def _times_of_call(tracker: Any, times: Any, X: Any, stream: Any) -> tuple[np.ndarray, int] | None:
    """Times of the rows of a call, if the half-life is one, and the number of rows before it."""
    if times is None and tracker.half_life is None:
        return None
    found = times_of_rows(tracker.half_life, times, X)
    return None if found is None else (found, 0 if stream is None else stream.n_rows)


@with_callbacks
def fit(self: Any, X: Any, y: Any = None, times: Any = None) -> Any:
    """Fit from scratch.

    Parameters
    ----------
    X : {array-like, sparse matrix} of shape (n, d), or iterable of such batches
        Sparse rows are densified block by block.
    y : Ignored
        Not used; there because scikit-learn's pipelines pass it.
    times : array-like of shape (n,), default=None
        Time of each row, for a ``half_life`` that is a time: datetime64, or what numpy reads as
        such, in order. Not for iterables.

    Returns
    -------
    self : object
        The fitted estimator; unchanged if an error is raised.
    """
    return self._process(X, None, _times_of_call(self, times, X, None))


def partial_fit(self: Any, X: Any, y: Any = None, times: Any = None) -> Any:
    """Update the fit with more rows; the result does not depend on the batches.

    Parameters that give the state its shape, such as ``n_components``, cannot change
    between calls. Others, as a ``forgetting_factor``, are those of the call that fills a block,
    for all of its rows.

    Parameters
    ----------
    X : {array-like, sparse matrix} of shape (n, d), or iterable of such batches
        The next rows of the stream, with the columns of the first call.
    y : Ignored
        Not used; there because scikit-learn's pipelines pass it.
    times : array-like of shape (n,), default=None
        As in `fit`; none before the last one of the rows seen so far.

    Returns
    -------
    self : object
        Unchanged if an error is raised.
    """
    if times is None and self._buffered(X):
        return self
    return self._go_on(X, _times_of_call(self, times, X, self._stream))


# Rows that a tracker sees at once unless its rule needs another number.
_ROWS_AT_ONCE = 32
# Size up to which entries count as zeros: their squares lose digits.
_NOTHING = 1e-150


def rows_at_once(d: int, step: int = 1) -> int:
    """Rows of a block for rules that are matrix products: the steps that a core's cache holds."""
    return step * max(1, min(max(2**15 // d, 32), 128) // step)


class Tracker(BlockTransformer):
    """Base of the estimators that follow the principal subspace of one stream.

    A subclass has parameters ``n_components`` and ``center`` and writes the rule, three methods of
    a state of its choice, for centred rows, which come in blocks of the same number of rows however
    the stream is cut:

    - ``_begin(d, rng)`` returns the state before the first row of d features;
    - ``_updated(state, Z)`` returns the state after a block Z, float64 of shape (m, d), and changes
      neither;
    - ``_basis(state)`` returns the subspace now, an array of shape (k, d) with orthonormal rows: as
      a rule ``self._rank(d)`` of them, ``n_components`` or what stands for None; fewer, or none,
      until rows have come that span as many.

    A rule that moves a basis which must come from somewhere has a parameter ``init``, and
    ``_begin_at(V, Z)`` in the place of ``_begin``: the state at a basis V of shape (k, d). Z are
    the rows, without missing entries, that V was made from and that ``_updated`` will not see; it
    is empty, of shape (0, d), where V was drawn or given. With ``init="rows"`` the first block has
    2 k rows, and the basis is their SVD, once missing entries are filled in; it stays random where
    too few entries are there for that.

    It may write ``_rows_at_once(d)``, the number of rows of a block, 32 by default, and
    ``_show_state(state)``, which sets fitted attributes of its own. ``random_state`` and
    ``forgetting_factor``, by which rows fade in mean and variances, are None and 1.0 unless they
    are parameters; a text stands for a memory of the rule's own, and nothing fades. A parameter
    ``half_life``, in rows, takes its place. A rule that fades itself writes ``_faded(state, Z,
    fading)``, which knows how, in the place of ``_updated``.

    With ``center`` the rule does not see a row whose features are all observed for the first time:
    there is no mean to compare it with, so it is zero and has no weight in the scatter. The first
    block has one row more for it.

    This class validates, centres (see `innovations`), and measures what a rule does not estimate:
    variances, from the coordinates of the rows of each block in the basis before it, which turn
    along with the basis. Their sum is the energy that the components held when each row came.
    """

    _parameter_constraints: dict = {
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
        "center": ["boolean"],
    }
    _fixed = (*BlockTransformer._fixed, "center")
    last_time_: Any = computed(when="half_life")
    forgetting_factor: Any = 1.0
    half_life: Any = None
    init: Any  # of rules that begin at a basis
    random_state = None

    # ---------------------------------------------------------------- what a rule supplies

    def _begin(self, d: int, rng: np.random.RandomState) -> Any:
        """State of the rule before the first row; by default at the first basis.

        Parameters
        ----------
        d : int
            Number of features.
        rng : RandomState
            From ``random_state``; the only source of randomness.

        Returns
        -------
        state : object
            Whatever `_updated` and `_basis` take; pickled with the estimator.
        """
        V = first_basis(getattr(self, "init", "random"), self._rank(d), d, rng)
        return self._begin_at(V, np.empty((0, d)))

    def _begin_at(self, V: np.ndarray, Z: np.ndarray) -> Any:
        """State of the rule at a basis V, made from the centred rows Z, if there are any."""
        raise TypeError(
            f"{type(self).__name__} must write _begin, or _begin_at if it has a parameter init."
        )

    @abstractmethod
    def _updated(self, state: Any, Z: np.ndarray) -> Any:
        """State of the rule after a block; changes neither the state nor the block.

        Parameters
        ----------
        state : object
            What `_begin` or `_updated` returned.
        Z : ndarray of shape (m, d), float64
            Centred rows, at least one; with `MissingEntriesMixin` NaN where entries are missing.

        Returns
        -------
        state : object
            A new one.
        """

    @abstractmethod
    def _basis(self, state: Any) -> np.ndarray:
        """Basis of the subspace that the rule has found.

        Parameters
        ----------
        state : object
            What `_begin` or `_updated` returned.

        Returns
        -------
        V : ndarray of shape (k, d), float64
            Orthonormal rows, from which components are made by a rotation.
        """

    def _rows_at_once(self, d: int) -> int:
        """Rows of a block."""
        return _ROWS_AT_ONCE

    def _faded(self, state: Any, Z: np.ndarray, fading: Fading) -> Any:
        """The same as `_updated`, for rules that look at how rows fade."""
        return self._updated(state, Z)

    def _show_state(self, state: Any) -> None:
        """Set the fitted attributes that only this tracker has."""

    # ---------------------------------------------------------------- the stream

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.half_life is not None:
            check_half_life(self, "forgetting_factor")

    @property
    def _from_rows(self) -> bool:
        """Whether the first basis is the SVD of the first rows."""
        init = getattr(self, "init", None)
        return isinstance(init, str) and init == "rows"

    def _block_rows(self, d: int, first: bool = True) -> int:
        if first and self._from_rows:
            return 2 * self._rank(d) + self.center
        return self._rows_at_once(d) + bool(first and self.center)

    def _start(self, d: int) -> Tracked:
        state = self._begin(d, check_random_state(self.random_state))
        basis = self._basis(state)
        return Tracked(state, False, basis, np.zeros((len(basis),) * 2), 0.0, Features.empty(d))

    def _begin_batch(self, stream: Any, n: int, labels: tuple[np.ndarray, int] | None) -> Tracked:
        state = stream.state
        if labels is None:
            return replace(state, clock=NO_TIMES)
        if stream.n_rows and state.clock.newest is None:
            raise ValueError(CAME_WITHOUT_TIMES)
        times, n_before = labels
        start = stream.n_rows - n_before
        return replace(state, clock=state.clock.with_more(times[start : start + n]))

    def _fading(self, before: Tracked, m: int) -> Fading:
        """How the next m rows fade."""
        if len(before.clock.times):
            half_life: Any = duration_of(self.half_life)
            return Fading(0.5, before.clock.steps(m, half_life))
        factor = self.forgetting_factor if self.half_life is None else factor_of(self.half_life)
        return evenly(1.0 if isinstance(factor, str) else factor, m)

    def _next_state(self, before: Tracked, Y: np.ndarray) -> Tracked:
        try:
            fading = self._fading(before, len(Y))
            with np.errstate(over="ignore", invalid="ignore"):
                Z, known = innovations(before.known, Y, self.center, fading)
                if before.frame is not None:
                    before, Z = self._in_frame(before, Y, known)
            if not np.isfinite(known.squares.sum()):
                raise too_large("variance")
            sizes = np.abs(Z)
            if not sizes.min() >= _NOTHING:  # NaN where entries are missing
                Z = np.where(sizes < _NOTHING, 0.0, Z)
            shown, fading_shown = Z, fading
            if self.center and before.frame is None and not np.all(before.known.weight):
                seen = has_weight(before.known, Y)
                shown, fading_shown = Z[seen], fading[seen]
            state, begun, start = before.rule_state, before.begun, None
            with np.errstate(over="raise", invalid="raise", divide="raise"):
                if not begun and np.nan_to_num(shown).any():
                    begun = True
                    if self._from_rows:
                        start = start_from_rows(shown, before.basis)
                if start is not None:
                    state = self._begin_at(*start)
                elif len(shown):
                    state = self._faded(state, shown, fading_shown)
                V = self._basis(state)
            return replace(
                self._measured(before, Z, V, fading),
                rule_state=state,
                begun=begun,
                known=known,
                clock=before.clock.after(len(Y)) if len(before.clock.times) else before.clock,
            )
        except (FloatingPointError, np.linalg.LinAlgError) as error:
            raise ValueError(
                f"The basis is not finite after {before.known.n_rows:g} rows: a parameter of "
                f"{self!r} must be less extreme, or values in X less large."
            ) from error

    def _in_frame(
        self, before: Tracked, Y: np.ndarray, known: Features
    ) -> tuple[Tracked, np.ndarray]:
        """State in the frame of the rows so far, and rows as the rule takes them there."""
        raise NotImplementedError

    def _measured(self, before: Tracked, Z: np.ndarray, V: np.ndarray, fading: Fading) -> Tracked:
        """State with rows measured, which turn along to the next basis V.

        By the rotation between the two. Projection would lose energy of earlier rows with every
        small move of the basis. Rows whose coordinates are uncertain do not count.
        """
        new = before.measured == 0 or not before.begun
        # in the basis before, except for the first rows: a basis fits the rows it has just seen
        C, gain, _ = coordinates(Z, V if new else before.basis)
        past, ages = fading.to_end
        root = fading.factor ** (ages / 2)
        root[gain > MAX_GAIN_IN_VARIANCES] = 0.0
        rows, turn, noise = C * root[:, None], np.eye(len(V)), math.nan
        if not new:
            rows = np.concatenate([before.factor * past**0.5, rows])
            U, _, Vt = np.linalg.svd(before.basis @ V.T, full_matrices=False)
            turn = U @ Vt
            noise = noise_beyond(before, Z, C) if self._takes_missing else math.nan
        factor = np.linalg.qr(rows, mode="r") @ turn
        measured = before.measured * past + float(root @ root)
        return replace(before, basis=V, factor=factor, measured=measured, noise=noise)

    def _found(self, tracked: Tracked) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Basis and mean of the rows, and the factor of their scatter matrix in the basis."""
        return tracked.basis, tracked.known.mean, tracked.factor

    def _show(self, tracked: Tracked, n_rows: int, dtype: np.dtype) -> None:
        V, mean, factor = self._found(tracked)
        self._set_fitted(tracked.summary(V, mean, factor, self.center, dtype), len(V), n_rows)
        self._show_state(tracked.rule_state)
        if tracked.clock.last is not None:
            self.last_time_ = tracked.clock.last


# -------------------------------------------------------------------- the first basis

# Rounds in which missing entries of the first rows are filled in.
_FILLINGS = 20


# Constraints of the parameters of a tracker whose rule moves a basis.
START: dict = {
    "init": [StrOptions({"rows", "random"}), "array-like"],
    "random_state": ["random_state"],
}


def first_basis(init: Any, k: int, d: int, rng: np.random.RandomState) -> np.ndarray:
    """Basis of k rows before the first row of d features; with "rows" they turn it."""
    if isinstance(init, str):
        return linalg.random_basis(k, d, rng)
    V = float_array("init", init, 2, np.float64)
    if V.shape != (k, d):
        raise ValueError(f"init must have shape {(k, d)}, got {V.shape}.")
    return linalg.orthonormalised(V)


def start_from_rows(Z: np.ndarray, V: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Basis of the first rows, completed by V, and the rows, with missing entries filled in.

    None where fewer entries are there than rows of rank k have numbers: anything would fit them,
    and worse than nothing.
    """
    lost = np.isnan(Z)
    if lost.any():
        k = min(*Z.shape, len(V))
        if np.sum(~lost) < k * (sum(Z.shape) - k):
            return None
        Z = filled(Z, lost, len(V))
    return leading_directions(Z, V), Z


def filled(Z: np.ndarray, lost: np.ndarray, k: int) -> np.ndarray:
    """Rows whose missing entries are filled in by the rows' own approximation of rank k.

    They begin as zeros, the means of centred rows. In each of 20 rounds they become those of the
    approximation of rank k, in which singular values are lowered by the next one.
    """
    Y = np.where(lost, 0.0, Z)
    scale = float(np.abs(Y).max()) or 1.0  # squares may vanish or overflow
    Y /= scale
    for _ in range(_FILLINGS):
        squares, U = np.linalg.eigh(Y @ Y.T)
        s, U = np.sqrt(squares[::-1].clip(np.finfo(np.float64).tiny)), U[:, ::-1]
        lowered = (s - (s[k] if len(s) > k else 0.0))[:k] / s[:k]
        Y[lost] = ((U[:, :k] * lowered) @ (U[:, :k].T @ Y))[lost]
    return scale * Y


def leading_directions(Z: np.ndarray, V: np.ndarray) -> np.ndarray:
    """As many leading right singular vectors of rows as a basis has, completed by that basis.

    Parameters
    ----------
    Z : ndarray of shape (m, d)
        Not all zero.
    V : ndarray of shape (k, d)
        Orthonormal rows; the directions in which the rows have no variance are taken from it.
    """
    k = len(V)
    unit = np.abs(Z).max()
    found = linalg.top_right_singular(Z / unit, lambda s: min(k, linalg.numerical_rank(s)))[0]
    if len(found) == k:
        return found
    rest = V - (V @ found.T) @ found
    rest = np.linalg.svd(rest, full_matrices=False)[2][: k - len(found)]
    return linalg.orthonormalised(np.concatenate([found, rest]))
