"""Trackers whose rule forgets: by a factor for each row, or with the time between rows."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from .._base.callbacks import with_callbacks
from .._base.fitted import computed
from ._fading import Clock, Fading
from ._half_life import (
    CAME_WITHOUT_TIMES,
    HALF_LIFE,
    check_half_life,
    duration_of,
    times_of_rows,
)
from ._tracker import Tracker, _Tracked


class _Times(NamedTuple):
    """Times of the rows of a call, and the number of rows before it."""

    times: np.ndarray
    n_before: int


class FadingTracker(Tracker):
    """Base of the trackers whose rule forgets.

    A subclass has parameters ``forgetting_factor`` and ``half_life``, and writes `_faded` in the
    place of `_updated`. With a half-life that is a time each row has a factor of its own.
    """

    # `times` travels through pipelines and searches without a request by the user
    __metadata_request__fit = {"times": True}
    __metadata_request__partial_fit = {"times": True}

    _parameter_constraints: dict = {**Tracker._parameter_constraints, "half_life": HALF_LIFE}
    last_time_: Any = computed(when="half_life")

    @abstractmethod
    def _faded(self, state: Any, Z: np.ndarray, fading: Fading) -> Any:
        """State of the rule after a block; changes neither the state nor the block.

        Parameters
        ----------
        state : object
            What `_begin` or `_faded` returned.
        Z : ndarray of shape (m, d), float64
            Centred rows, as for `_updated`.
        fading : Fading
            By how much they fade.

        Returns
        -------
        state : object
            A new one.
        """

    def _updated(self, state: Any, Z: np.ndarray) -> Any:
        return self._faded(state, Z, Fading.by_rows(self._row_factor, len(Z)))

    @with_callbacks
    def fit(self, X: Any, y: Any = None, times: Any = None) -> Any:
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
        return self._process(X, None, self._times(times, X, None))

    def partial_fit(self, X: Any, y: Any = None, times: Any = None) -> Any:
        """Update the fit with more rows; the result does not depend on the batches.

        Parameters that give the state its shape, such as ``n_components``, cannot change
        between calls.

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
        return self._go_on(X, self._times(times, X, self._stream))

    def _times(self, times: Any, X: Any, stream: Any) -> _Times | None:
        """Times of the rows of a call, if the half-life is one."""
        found = times_of_rows(self.half_life, times, X)
        return None if found is None else _Times(found, 0 if stream is None else stream.n_rows)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_half_life(self, "forgetting_factor")

    def _begin_batch(self, stream: Any, n: int, labels: _Times | None) -> _Tracked:
        state = stream.state
        if labels is None:
            return replace(state, clock=Clock())
        if stream.n_rows and state.clock.newest is None:
            raise ValueError(CAME_WITHOUT_TIMES)
        start = stream.n_rows - labels.n_before
        return replace(state, clock=state.clock.with_more(labels.times[start : start + n]))

    def _fading(self, before: _Tracked, m: int) -> Fading:
        duration = duration_of(self.half_life)
        if duration is None:
            return super()._fading(before, m)
        return Fading(0.5, before.clock.steps(m, duration))

    def _show(self, tracked: _Tracked, n_rows: int, dtype: np.dtype) -> None:
        super()._show(tracked, n_rows, dtype)
        if tracked.clock.last is not None:
            self.last_time_ = tracked.clock.last
