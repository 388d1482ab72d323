"""Base class of the one-stream trackers; a subclass is an update rule."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from .._base.block_transformer import BlockTransformer
from .._base.fitted import computed
from .._kernels.missing import coordinates
from .._kernels.too_large import too_large
from .._validation.intervals import Interval
from ._fading import NO_TIMES, Fading
from ._half_life import CAME_WITHOUT_TIMES, check_half_life, duration_of, factor_of
from ._innovations import Features, has_weight, innovations
from ._start import first_basis, start_from_rows
from ._times import Times
from ._tracked import Tracked

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

    def _begin_batch(self, stream: Any, n: int, labels: Times | None) -> Tracked:
        state = stream.state
        if labels is None:
            return replace(state, clock=NO_TIMES)
        if stream.n_rows and state.clock.newest is None:
            raise ValueError(CAME_WITHOUT_TIMES)
        start = stream.n_rows - labels.n_before
        return replace(state, clock=state.clock.with_more(labels.times[start : start + n]))

    def _fading(self, before: Tracked, m: int) -> Fading:
        """How the next m rows fade."""
        if len(before.clock.times):
            half_life: Any = duration_of(self.half_life)
            return Fading(0.5, before.clock.steps(m, half_life))
        factor = self.forgetting_factor if self.half_life is None else factor_of(self.half_life)
        return Fading.by_rows(1.0 if isinstance(factor, str) else factor, m)

    def _rule(self, before: Tracked, Z: np.ndarray, fading: Fading) -> tuple[Any, bool]:
        """State of the rule after centred rows, and whether it has begun."""
        state, begun = before.rule_state, before.begun
        if not len(Z):
            return state, begun
        if not begun and np.nan_to_num(Z).any():
            begun = True
            if self._from_rows:
                start = start_from_rows(Z, self._basis(state))
                if start is not None:
                    return self._begin_at(*start), begun
        return self._faded(state, Z, fading), begun

    def _next_state(self, before: Tracked, Y: np.ndarray) -> Tracked:
        try:
            return self._after(before, Y)
        except (FloatingPointError, np.linalg.LinAlgError) as error:
            raise ValueError(
                f"The basis is not finite after {before.known.n_rows:g} rows: a parameter of "
                f"{self!r} must be less extreme, or values in X less large."
            ) from error

    def _after(self, before: Tracked, Y: np.ndarray) -> Tracked:
        """State after a block."""
        fading = self._fading(before, len(Y))
        with np.errstate(over="ignore", invalid="ignore"):
            before, Z, known = self._rows(before, Y, fading)
        if not np.isfinite(known.squares.sum()):
            raise too_large("variance")
        sizes = np.abs(Z)
        if not sizes.min() >= _NOTHING:  # NaN where entries are missing
            Z = np.where(sizes < _NOTHING, 0.0, Z)
        seen = has_weight(before.known, Y) if self._hides_first else slice(None)
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            state, begun = self._rule(before, Z[seen], fading[seen])
            V = self._basis(state)
        # in the basis before, except for the first rows: a basis fits the rows it has just seen
        C, gain = coordinates(Z, V if before.is_new else before.basis)
        return replace(
            before.with_coordinates(C, gain, V, fading),
            rule_state=state,
            begun=begun,
            known=known,
            noise=self._noise(before, Z, C),
            clock=before.clock.after(len(Y)),
        )

    def _rows(
        self, before: Tracked, Y: np.ndarray, fading: Fading
    ) -> tuple[Tracked, np.ndarray, Features]:
        """State before a block, rows as the rule takes them, and the statistics after them."""
        return before, *innovations(before.known, Y, self.center, fading)

    @property
    def _hides_first(self) -> bool:
        """Whether the rule does not see rows that there is no mean to compare with."""
        return self.center

    def _noise(self, before: Tracked, Z: np.ndarray, C: np.ndarray) -> float:
        """Variance of an entry beyond the basis before, in which rows have coordinates C."""
        return math.nan

    def _found(self, tracked: Tracked) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Basis and mean of the rows, and the factor of their scatter matrix in the basis."""
        return tracked.basis, tracked.known.mean, tracked.factor

    def _show(self, tracked: Tracked, n_rows: int, dtype: np.dtype) -> None:
        V, mean, factor = self._found(tracked)
        self._set_fitted(tracked.summary(V, mean, factor, self.center, dtype), len(V), n_rows)
        self._show_state(tracked.rule_state)
        if tracked.clock.last is not None:
            self.last_time_ = tracked.clock.last
