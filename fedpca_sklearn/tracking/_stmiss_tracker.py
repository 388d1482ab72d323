"""Base class of the trackers by STMiss: batches filled by the last subspace, and their r-SVD."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import KW_ONLY, replace
from functools import wraps
from numbers import Real
from typing import Any, Literal

import numpy as np
from sklearn.utils._param_validation import StrOptions

from .._base.block_transformer import BlockTransformer
from .._base.fitted import LEARNT, computed
from .._base.missing_entries import impute, score
from .._kernels import linalg
from .._kernels.observed import noise_ridge
from .._kernels.too_large import check_squares, too_large
from .._validation.checks import AT_LEAST_ONE, InstanceOf, Interval, allowed, with_parameters
from ..streaming._forgetting import HALF_LIFE, check_half_life, duration_of, factor_of
from ..summary import Subspace
from ._outliers import OutlierSupport
from ._stmiss import (
    BETTER,
    FALL,
    LOSS_KEPT,
    ROUNDING_SHARE,
    WORSE,
    ChangeDetection,
    Filled,
    FirstSubspace,
    Misfit,
    State,
    TrackerPart,
    complete,
    fill,
    optimism,
    past_weight,
    r_svd,
    residuals,
    with_first_means,
)


def without_times(method: Callable) -> Callable:
    """Refuse ``times`` by name, which trackers of single rows take for a half-life in time."""

    @wraps(method)
    def checked(self: Any, *args: Any, **keywords: Any) -> Any:
        if "times" in keywords:
            raise TypeError(
                f"times cannot be given to {type(self).__name__}: half_life must be a number of "
                "rows, as all rows of a batch count the same whatever their times, got "
                f"half_life={self.half_life!r}."
            )
        return method(self, *args, **keywords)

    return checked


# A subspace has changed if less than this share of the rows of a fit counts, and a model that keeps
# the past loses more: by these shares of its loss, and, where entries were filled in, of the
# variance of an entry.
_COUNT, _LOSS, _VARIANCE = 0.75, 0.2, 0.07

# Constraints of the parameters of trackers that find outliers.
OUTLIERS: dict = {
    "init": [StrOptions({"auto", "altproj", "svd"}), "array-like", InstanceOf(FirstSubspace)],
    "support_threshold": [
        StrOptions({"auto"}),
        Interval(Real, 0, None, closed="left"),
        InstanceOf(OutlierSupport),
    ],
}


@with_parameters
class STMissTracker(BlockTransformer):
    """Base of the trackers that fill a batch by the last subspace and take its r-SVD.

    A subclass says what the first batch starts from, and which entries are outliers: it marks them
    in `_without_outliers`, which notes mask and threshold in the state, and they are missing then.
    Where rows are not in one place, it takes their sums otherwise.
    """

    n_components: int | None = allowed(AT_LEAST_ONE, None, default=None)
    _: KW_ONLY
    batch_size: int | Literal["auto"] = allowed(StrOptions({"auto"}), AT_LEAST_ONE, default="auto")
    init: Any = allowed(StrOptions({"svd"}), "array-like", default="svd")
    forgetting_factor: float | Literal["auto"] = allowed(
        StrOptions({"auto"}), Interval(Real, 0, 1, closed="both"), default="auto"
    )
    half_life: Any = allowed(*HALF_LIFE, default=None)
    n_iter: int = allowed(AT_LEAST_ONE, default=1)
    fill: str = allowed(StrOptions({"conditional", "subspace"}), default="conditional")
    detect_changes: bool | ChangeDetection = allowed(
        "boolean", InstanceOf(ChangeDetection), default=False
    )
    center: bool = allowed("boolean", default=True)
    store_subspaces: bool = allowed("boolean", default=False)

    _fixed = (*BlockTransformer._fixed, "batch_size", "center")
    _takes_missing = True
    change_points_ = computed(when="detect_changes")
    robust = False
    impute = impute
    score = score
    partial_fit = without_times(BlockTransformer.partial_fit)

    @without_times
    @wraps(BlockTransformer.fit)
    def fit(self, X: Any, y: Any = None) -> Any:
        BlockTransformer.fit(self, X, y)
        if self._has_followed_a_change():
            warnings.warn(
                "the subspace of the rows has changed: the components are those of the last rows, "
                f"and {self.subspace_.n_samples:.0f} of {self.n_samples_seen_} rows count. For "
                "components of all rows set forgetting_factor=1.0.",
                UserWarning,
                stacklevel=3,
            )
        state, d = self._stream.state, self.n_features_in_
        filled_in = self.fill == "conditional" and state.n_rows > self._block_rows(d, True)
        if filled_in and len(state.basis) < d and math.isnan(state.noise):
            warnings.warn(
                f"n_components={len(state.basis)} leaves too few entries to know the noise: no row "
                "has more entries than that, so that any values fit, and what is filled in, and "
                "variances, may be of any size. Ask for fewer components.",
                UserWarning,
                stacklevel=3,
            )
        return self

    def _has_followed_a_change(self) -> bool:
        """Whether few rows of a fit count, and a model of all of them would lose much more."""
        state, n_rows, d = self._stream.state, self.n_samples_seen_, self.n_features_in_
        counted, rival = state.summary.n_samples, state.rival
        if rival is None or not counted < _COUNT * n_rows:
            return False
        of_loss = min(n_rows, self._block_rows(d, False) / (1 - LOSS_KEPT))
        variances = of_loss * state.summary.scatter / (counted * d) if counted else math.inf
        least = 0.0 if state.whole else _VARIANCE * variances
        return rival.loss - state.loss > max(_LOSS * rival.loss, least)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        for part in self.detect_changes, self.init, getattr(self, "support_threshold", None):
            if isinstance(part, TrackerPart):
                part.validate()
        if self.half_life is None:
            return
        check_half_life(self, "forgetting_factor")
        if duration_of(self.half_life) is not None:
            raise ValueError(
                "half_life must be a number of rows, as all rows of a batch count the same "
                f"whatever their times, got {self.half_life!r}."
            )

    def _next_state(self, state: State, Y: np.ndarray) -> State:
        check_squares(Y)
        state, Y = self._cleaned(state, Y)
        # of a state that forgets and one that keeps the past, which has had less loss so far
        one, other = replace(state, rival=None), state.rival
        new = self._taken(one, Y)
        if other is None and new.weight == 1.0:
            return new
        if self.detect_changes or not self._forgets_by_itself:
            return replace(new, keeps=False)
        other = replace(one, keeps=True) if other is None else other
        found = state.outliers, state.threshold, state.outlying
        other = replace(other, outliers=found[0], threshold=found[1], outlying=found[2])
        rival = self._taken(other, Y)
        forgets, keeps = (rival, new) if new.keeps else (new, rival)
        counted = keeps.summary
        about_zero = counted.scatter + counted.n_samples * float(counted.mean @ counted.mean)
        if forgets.loss + ROUNDING_SHARE * about_zero < keeps.loss:  # not by rounding alone
            return replace(forgets, rival=keeps)
        return replace(keeps, rival=forgets)

    def _cleaned(self, state: State, Y: np.ndarray) -> tuple[State, np.ndarray]:
        """State that fills a batch, and its rows without outliers."""
        first = not state.summary.n_samples
        if self.center and (first or np.any(state.unseen)):
            state = with_first_means(state, self._means(state, Y))
        if first:
            state = self._first(state, Y)
        Y, state = self._without_outliers(state, Y)
        return state, Y

    def _taken(self, state: State, Y: np.ndarray) -> State:
        """Algorithm 1 for a batch without outliers; `_stmiss` has its lines."""
        filled, updates = self._fill(state, Y), True
        if self.detect_changes and len(state.basis) and filled.counts.any():
            state, updates = self._detect(state, Y, filled)
        first, measures = not len(state.basis), self.fill == "conditional"
        measures = measures or (self._forgets_by_itself and self.fill != "zeros")
        if measures and not first:
            state, past = self._remember(state, Y, filled)
        else:
            past = state
        new = state
        for i in range(self.n_iter if updates else 0):
            if i:
                filled = self._fill(new, Y)
            if not filled.counts.any():
                break
            summary = self._r_svd(past, filled, new.basis)
            new = self._with(summary, past, new)
        if measures and first and len(new.basis):
            misfit = self._misfit(new, Y, self._fill(new, Y))
            noise = optimism(len(Y), len(new.basis)) * misfit.noise
            # of a batch that was filled with the mean all was left
            noise = noise if math.isfinite(noise) else math.nan
            whole = misfit.entries > len(Y) * Y.shape[1] - 0.5
            new = replace(new, noise=noise, least=1.0, filling=1.0, whole=whole)
        return replace(new, n_rows=new.n_rows + len(Y), owners=new.owners[len(Y) :])

    def _with(self, summary: Subspace, past: State, last: State) -> State:
        """State with the summary of a filled batch and of what is past."""
        V = complete(summary.components, past.basis, self._rank(len(summary.mean)))
        return replace(last, summary=summary, mean=summary.mean, basis=V)

    def _weight_left(self, state: State, m: int, d: int) -> float:
        """Weight of earlier rows with m new ones, beyond what `_remember` forgets.

        It is ``forgetting_factor ** m``, 0 in the paper, or ``1 - m / batch size`` if that is more,
        as m rows replace that many of a batch.
        """
        factor = self.forgetting_factor if self.half_life is None else factor_of(self.half_life)
        if isinstance(factor, str):
            return 1.0
        return max(factor**m, 1 - m / self._block_rows(d, False))

    @property
    def _forgets_by_itself(self) -> bool:
        """Whether each batch says what counts of the past."""
        return self.half_life is None and self.forgetting_factor == "auto"

    def _remember(self, state: State, Y: np.ndarray, filled: Filled) -> tuple[State, State]:
        """State with what the batch says of noise, and the same with what counts of the past."""
        misfit = self._misfit(state, Y, filled)
        past = self._past(state, Y, filled, misfit)
        now, loss = misfit.noise, LOSS_KEPT * state.loss
        left = past.summary.n_samples * self._weight_left(state, len(Y), Y.shape[1])
        noise, m = state.noise, len(Y)
        if not math.isnan(now):
            noise = now if math.isnan(noise) else (left * noise + m * now) / (left + m)
            loss += m * now
        # no entry was filled in; a sum over a channel may be off
        whole = state.whole and misfit.entries > m * Y.shape[1] - 0.5
        past = replace(past, noise=noise, loss=loss, whole=whole)
        return replace(past, summary=state.summary), past

    def _past(self, state: State, Y: np.ndarray, filled: Filled, misfit: Misfit) -> State:
        """State with what counts of earlier batches; little after a change."""
        state = replace(state, weight=1.0)
        share, least = misfit.share, state.least
        whole = len(state.basis) == Y.shape[1]  # beyond all directions there is nothing to compare
        if not self._forgets_by_itself or state.keeps or whole or math.isnan(share):
            return state
        if math.isnan(least):
            return replace(state, least=share, filling=share)
        alone, filling = math.inf, state.filling
        if share > WORSE * least and filled.counts.any():  # it is worth while to compare
            alone = self._noise_alone(state, Y, filled)
        weight = past_weight(alone, misfit.noise, state.summary.n_samples, len(Y))
        if BETTER * alone < misfit.noise:  # it has changed
            filling = share
        else:  # rows were filled in with a basis of the misfit `filling`
            fall = min(misfit.least_share / filling, 1.0)
            weight *= fall if fall > FALL else 0.0
            filling = min(share, filling)
        summary = state.summary.decay(weight)
        least = min(share, least)
        return replace(state, summary=summary, least=least, filling=filling, weight=weight)

    def _noise_alone(self, state: State, Y: np.ndarray, filled: Filled) -> float:
        """What the subspace of a batch alone would leave of others like it."""
        nothing = replace(state, summary=state.summary.decay(0.0))
        summary = self._r_svd(nothing, filled, state.basis)
        alone = self._with(summary, nothing, state)
        misfit = self._misfit(alone, Y, self._fill(alone, Y, alone=True))
        return optimism(len(Y), len(alone.basis)) * misfit.noise

    # ---------------------------------------------------------------- what differs

    def _means(self, state: State, Y: np.ndarray) -> np.ndarray:
        """Mean of the entries of each column, NaN without any."""
        there = ~np.isnan(Y)
        count = there.sum(axis=0)
        return np.where(there, Y, 0.0).sum(axis=0) / np.where(count, count, np.nan)

    def _first(self, state: State, Y: np.ndarray) -> State:
        """State whose basis fills the first batch."""
        return state

    def _without_outliers(self, state: State, Y: np.ndarray) -> tuple[np.ndarray, State]:
        """Rows with outliers marked as missing, and the state with their positions."""
        return Y, state

    def _fill(self, state: State, Y: np.ndarray, alone: bool = False) -> Filled:
        """Rows with missing entries filled in; ``alone``: by the subspace of the batch alone."""
        V = state.basis[:0] if self.fill == "zeros" else state.basis
        return fill(Y, state.mean, V, self._ridge_of(state))

    def _ridge_of(self, state: State) -> np.ndarray | None:
        """Ridge of the coordinates of a batch; no ridge for the first."""
        summary, k = state.summary, len(state.basis)
        if self.fill != "conditional" or not (summary.n_samples and len(summary.components)):
            return None
        variances = np.zeros(k)
        known = summary.singular_values[:k] ** 2 / summary.n_samples
        variances[: len(known)] = known
        return noise_ridge(variances, state.noise, state.basis.shape[1])

    def _misfit(self, state: State, Y: np.ndarray, filled: Filled) -> Misfit:
        """What the basis does not explain of a batch that it has filled."""
        sums = self._misfits(state, Y, filled).sum(axis=0)
        if not np.isfinite(sums).all():
            raise too_large("sum of squares")
        return Misfit.of(*sums.tolist())

    def _misfits(self, state: State, Y: np.ndarray, filled: Filled) -> np.ndarray:
        """What `Misfit` is made from, for each row; zeros where k numbers fit any entries.

        Sums of squares of residuals and of entries about the mean, the number of entries less that
        of the coordinates that were fitted to them, and that of entries.
        """
        there, Z = ~np.isnan(Y), Y - state.mean
        R = np.where(there, Z - filled.coordinates @ state.basis, 0.0)
        k, seen = filled.numbers.clip(min=0), np.sum(there, axis=1)  # none, but for rounding
        with np.errstate(over="ignore"):
            squares = np.sum(R**2, axis=1), np.nansum(Z**2, axis=1)
        parts = np.stack([*squares, seen - k, seen], axis=1)
        parts[seen <= k] = 0.0
        return parts

    def _level(self, state: State, Y: np.ndarray, filled: Filled) -> tuple[float, float]:
        """Largest eigenvalue of the residuals' scatter, and by how much it may be too large."""
        R = residuals(state, Y, filled)[filled.counts]
        return float(linalg.eigh_top(R @ R.T, 1)[0][0]), 0.0

    def _r_svd(self, state: State, filled: Filled, V: np.ndarray) -> Subspace:
        """Summary of the filled rows that count, and of what still counts of those before.

        ``V`` is the basis that filled them.
        """
        L = filled.rows[filled.counts]
        past = state.summary.decay(self._weight_left(state, *L.shape))
        return r_svd(past, L, self._rank(L.shape[1]))

    def _detect(self, state: State, Y: np.ndarray, filled: Filled) -> tuple[State, bool]:
        """State with the changes found, and whether the batch is to change the subspace."""
        size = self._block_rows(Y.shape[1], False)
        scatter = np.array(self._level(state, Y, filled))
        level, margin = scatter / max(len(Y), size)
        changes = ChangeDetection._of(self.detect_changes)
        return changes._after(state, level, size, margin)

    # ---------------------------------------------------------------- the stream

    def _block_rows(self, d: int, first: bool = True) -> int:
        k = self._rank(d)
        size = max(2 * k, 40) if self.batch_size == "auto" else int(self.batch_size)
        return self._first_subspace._block_rows(size, k) if first and self._by_altproj else size

    @property
    def _first_subspace(self) -> FirstSubspace:
        """Where the tracker begins."""
        return FirstSubspace._of(self.init)

    @property
    def _by_altproj(self) -> bool:
        """Whether the first basis is that of the first batch without its outliers."""
        method = self._first_subspace.method
        return isinstance(method, str) and method in ("altproj", "auto" if self.robust else None)

    @property
    def _support(self: Any) -> OutlierSupport:
        """How outliers are found."""
        return OutlierSupport._of(self.support_threshold)

    def _start(self, d: int) -> State:
        nothing = Subspace.empty(d, centered=self.center)
        n_updates = ChangeDetection._of(self.detect_changes).n_updates
        V = self._first_subspace._basis(d)
        return State(nothing, np.zeros(d), V, updates_left=n_updates)

    def _begin_batch(self, stream: Any, n: int, labels: Any) -> State:
        if not stream.n_rows:
            self.__dict__.pop("subspaces_", None)
        if self.store_subspaces:
            self.subspaces_ = list(getattr(self, "subspaces_", []))
        self._masks: list[Any] = []  # of one block after the other
        return stream.state

    def _after_block(self, state: State, full: bool) -> None:
        if state.outliers is not None:
            self._masks = [*self._masks, state.outliers]
        if full and self.store_subspaces:
            self._store(state.basis)

    def _store(self, V: np.ndarray) -> None:
        """Keep the basis after a batch."""
        self.subspaces_.append(linalg.complete_basis(V, self._rank(V.shape[1])))

    def _show(self, state: State, n_rows: int, dtype: np.dtype) -> None:
        self._show_subspace(state, n_rows, dtype)
        if state.outliers is not None:
            new = n_rows - vars(self)[LEARNT].state.n_before  # rows of the last batch
            self.outlier_mask_ = np.concatenate(self._masks)[-new:]
            self.support_threshold_ = np.array(state.threshold)

    def _show_subspace(self, state: State, n_rows: int, dtype: np.dtype) -> None:
        """Set the fitted attributes that tell nothing of single rows."""
        summary = state.summary
        d = len(state.mean)
        k = self._rank(d)
        if not state.whole:  # what is filled in has no noise of its own
            within = float(np.square(summary.singular_values[:k]).sum())
            noise = (d - k) * state.noise * summary.n_samples
            summary = summary._replace(scatter=max(summary.scatter, within + noise))
        summary = summary._replace(components=summary.components.astype(dtype))
        self._set_fitted(summary, k, n_rows)
        k = self.n_components_
        self.components_ = linalg.complete_basis(state.basis[:k], k).astype(dtype)
        self._entry_noise = state.noise
        if self.detect_changes:
            self.change_points_ = np.array(state.change_points, dtype=np.int64)

    def _ridge(self) -> np.ndarray | None:
        if self.fill != "conditional":
            return None
        return noise_ridge(self.explained_variance_, self._entry_noise, self.n_features_in_)
