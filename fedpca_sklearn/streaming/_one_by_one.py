"""Rows of `StreamingPCA` that come one by one, or a few at a time, and are taken as one batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

from .._base.batches import float_dtype, is_on_disk
from .._base.callbacks import has_callbacks, progress
from .._base.late import ROWS_THAT_WAIT, Late, LateMixin
from .._base.published_state import BEFORE, LATE
from .._base.sources import is_stream
from .._dask import is_dask
from .._kernels.tame import is_tame, is_tame_state
from .._validation.arrays import in_numpy
from ..summary import Subspace

# Entries of the rows that wait: 2 MB of float64, or a square where a square is kept anyway.
_WAITING_ENTRIES = 2**18
# The same where rows are adjusted: 32 MB.
_ENTRIES_OF_UNITS = 2**22
# Rows for which the work of a block is hardly more than for one, and from which on nothing is
# gained by more of them.
_ROWS_AT_LEAST, _MOST_ROWS = 64, 1024


class OneByOneMixin(LateMixin):
    """Rows wait for each other, as those of trackers do, but the next batch ends their block.

    What is read meanwhile includes them. Whether it is read, and whether the estimator is copied,
    changes no later number: ``_state`` is that before them. An assignment takes them into it.
    """

    _state: Any

    @abstractmethod
    def _publish(self, state: Any) -> None:
        """Keep a state, and set the fitted attributes."""

    @abstractmethod
    def _keep(self, state: Any) -> None:
        """Keep a state; fitted attributes may wait until somebody reads one."""

    @abstractmethod
    def _take_rows(self, rows: np.ndarray, times: np.ndarray | None, state: Any) -> Any:
        """The state after some validated rows, at most a block, and their times, if any."""

    @abstractmethod
    def _block_size(self, n_features: int, sparse: bool) -> int:
        """Rows of a block."""

    @abstractmethod
    def _asks(self) -> bool:
        """Whether rows are adjusted."""

    @abstractmethod
    def _keeps_all(self, n_features: int) -> bool:
        """Whether all directions are kept, so that each update solves an eigenproblem."""

    def _replay(self, rows: np.ndarray, times: np.ndarray | None = None) -> None:
        state = getattr(self, "_state", None)
        if len(rows):
            after = self._take_rows(rows, times, state)
            self._publish(after)
            times = None if times is None else times.copy()
            self.__dict__.update({"_state": state, ROWS_THAT_WAIT: (rows.copy(), times, after)})
        else:
            self._publish(state)

    def _settle(self, name: str) -> None:
        super()._settle(name)
        if ROWS_THAT_WAIT in vars(self) and not name.startswith("_"):
            *_, self.__dict__["_state"] = vars(self).pop(ROWS_THAT_WAIT)

    def _waiting(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Rows that wait, in memory that later rows may use, and their times if they have some."""
        late, state = vars(self).get(LATE), vars(self)
        if late is not None:
            return (late.waiting, late.times) if late.n else None
        return state[ROWS_THAT_WAIT][:2] if ROWS_THAT_WAIT in state else None

    def _room(self, d: int) -> int:
        """Rows that wait for each other before they are taken."""
        least = _ROWS_AT_LEAST
        if self._keeps_all(d):  # a change of units makes an eigenproblem dearer
            least = max(d, min(4 * d, _ENTRIES_OF_UNITS // d)) if self._asks() else d
        return min(self._block_size(d, False), max(min(_MOST_ROWS, _WAITING_ENTRIES // d), least))

    def _may_wait(self, X: Any) -> bool:
        """Whether something is one row in memory, or few rows of a stream with a costly call."""
        if not hasattr(X, "__len__") or sp.issparse(X):
            return False
        if is_stream(X) or is_dask(X) or is_on_disk(X):
            return False
        shape = getattr(X, "shape", None)
        if shape == ():
            return False
        if len(X) == 1:
            return True
        d = shape[1] if shape is not None and len(shape) == 2 else 0
        return d > 0 and 0 < len(X) <= self._few(d)

    def _few(self, d: int) -> int:
        """The most rows of a batch that may wait for others."""
        return max(self._room(d) - 1, 1) if self._keeps_all(d) else 1

    def _gathered(self, batches: Iterator[Any], dtype: Any) -> Iterator[Any]:
        """Validated batches of a stream; few rows wait for others, as those of calls do."""
        few: list[np.ndarray] = []
        n = 0
        for batch in batches:
            dtype = dtype or float_dtype(batch)
            waits = isinstance(batch, np.ndarray) and self._may_wait(batch)
            if waits:
                few.append(batch.astype(dtype))  # the source may use its memory again
                n += len(batch)
            if few and not (waits and n < self._room(batch.shape[1])):
                n = 0
                yield _as_one(few)
            if not waits:
                yield batch
            del batch
        if few:
            yield _as_one(few)

    def _some_more(
        self,
        rows: Any,
        times: np.ndarray | None,
        state: Any,
        before: tuple[np.ndarray, np.ndarray | None] | None,
    ) -> tuple[np.ndarray, np.ndarray | None] | None:
        """The rows that wait with validated ones after them, or None if these cannot wait."""
        subspace, rows = None if state is None else state.subspace, in_numpy(rows)
        if (
            sp.issparse(rows)
            or self._room(rows.shape[1]) == 1
            or not is_tame(rows.ravel())
            or not (
                subspace is None
                or is_tame_state(subspace.mean, subspace.total_variance, rows.dtype)
            )
        ):
            return None
        for _ in progress(self, [rows], 1, "blocks"):
            pass
        if before is None:
            return rows, times
        both = zip(before, (rows, times), strict=True)
        rows, times = (None if b is None else np.concatenate([a, b]) for a, b in both)
        return rows, times

    def _flush(self) -> Subspace:
        """Take the rows that wait, and return the summary of all."""
        waiting, state = self._waiting(), getattr(self, "_state", None)
        if waiting is not None:
            with self._taking_rows():
                self._keep(self._take_rows(*waiting, state))
        return self._state.subspace._named(getattr(self, "feature_names_in_", None))

    def _let_wait(
        self,
        rows: np.ndarray,
        times: np.ndarray | None,
        base: dict[str, Any],
        most: int | None = None,
    ) -> None:
        """Show rows when they are read, and take few ones without other checks from now on.

        ``base`` has the attributes that were hidden before; ``most`` rows come at once, None: as
        many as may wait.
        """
        d = rows.shape[1]
        vars(self).pop(ROWS_THAT_WAIT, None)
        base = {**base, **vars(self)}
        base.pop(BEFORE, None)
        checked = "feature_names_in_" not in base and not has_callbacks(self)
        most = self._few(d) if most is None else most
        room = self._room(d)
        known = base, rows, room, rows.dtype, False, checked
        self.__dict__[LATE] = Late(*known, shown=False, most=most, times=times)
        self._hide()


def _as_one(few: list[np.ndarray]) -> np.ndarray:
    """The rows of some batches; the list is emptied."""
    rows = np.concatenate(few)
    few.clear()
    return rows
