"""Rows that come one by one: they wait, and what a fit shows of them is made when it is read."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from .._kernels.tame import is_tame
from .._validation.arrays import PLACE
from .places import show
from .published_state import BEFORE, LATE, UnchangedOnErrorMixin

# Names of the columns are those of the rows that were validated, whatever waits.
_OF_COLUMNS = ("n_features_in_", "feature_names_in_")


# Where rows wait, and where `streaming` keeps those that were shown already.
ROWS_THAT_WAIT = "_rows_that_wait"
_WAITING = frozenset({LATE, ROWS_THAT_WAIT})


class Late:
    """Rows that an estimator has taken, and has not shown yet.

    Parameters
    ----------
    base : dict
        Attributes of the estimator as of the rows before.
    rows : ndarray of shape (n, d)
        Those that wait already, which are copied, of the dtype of those that are taken as they are.
    room : int
        Rows of a block. The last one is not taken here, as it fills the block.
    takes_nan : bool
        Whether entries may be missing.
    checked : bool
        Whether nothing else is to be checked of rows than their shape, dtype and entries.
    shown : bool, default=True
        Whether ``base`` has the fitted attributes with the rows that wait already.
    most : int, default=1
        Rows that may come at once.
    times : ndarray of datetime64, shape (n,), default=None
        Of the rows that wait, if rows come with times.
    """

    def __init__(
        self,
        base: dict[str, Any],
        rows: np.ndarray,
        room: int,
        dtype: np.dtype,
        takes_nan: bool,
        checked: bool,
        shown: bool = True,
        most: int = 1,
        times: np.ndarray | None = None,
    ):
        n = len(rows)
        self.base, self.n, self.dtype, self.room = base, n, dtype, room
        self.rows, self._times = (rows, times) if not n else self._with_room(rows, times)
        self.takes_nan = takes_nan
        self.most = most if checked else 0
        self.made = (n if shown else -1, base)

    def _with_room(
        self, rows: np.ndarray, times: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Memory for the rows of a block and their times, of which some are there."""
        space = np.empty((self.room, rows.shape[1]), rows.dtype)
        space[: len(rows)] = rows
        if times is None:
            return space, None
        space_of_times = np.empty(self.room, times.dtype)
        space_of_times[: len(rows)] = times
        return space, space_of_times

    @property
    def waiting(self) -> np.ndarray:
        """The rows that wait."""
        return self.rows[: self.n]

    @property
    def times(self) -> np.ndarray | None:
        """Their times."""
        return None if self._times is None else self._times[: self.n]

    def take(self, X: Any, times: Any = None) -> bool:
        """Keep a copy of a row, or of few, if they need no other check."""
        if type(X) is not np.ndarray or X.ndim != 2 or X.dtype != self.dtype:
            return False
        m, end = len(X), self.n + len(X)
        if not 0 < m <= self.most or X.shape[1] != self.rows.shape[1] or end >= self.room:
            return False
        if not self._fits(times, m) or not is_tame(X[0] if m == 1 else X.ravel(), self.takes_nan):
            return False
        if not self.n:
            none = None if self._times is None else self._times[:0]
            self.rows, self._times = self._with_room(self.rows[:0], none)
        self.rows[self.n : end] = X
        if self._times is not None:
            self._times[self.n : end] = times
        self.n = end
        return True

    def _fits(self, times: Any, m: int) -> bool:
        """Whether m times are as those before, or none where there were none."""
        if self._times is None or type(times) is not np.ndarray:
            return times is None and self._times is None
        alike = times.dtype == self._times.dtype and times.shape == (m,)
        return alike and not np.isnat(times).any()

    def copy(self) -> Late:
        """One that takes rows without this one."""
        other = copy(self)
        other.rows = self.rows.copy()
        other._times = None if self._times is None else self._times.copy()
        return other

    def attributes(self, kind: type) -> dict[str, Any]:
        """All attributes of an estimator of a class, with the rows that wait."""
        n, made = self.made
        if n != self.n:
            n = self.n
            view: Any = object.__new__(kind)
            view.__dict__ = dict(self.base)
            view._replay(self.rows[:n], self.times)
            made = vars(view)
            if PLACE in self.base:
                made[PLACE] = self.base[PLACE]
                show(made)
            self.made = n, made
        return made


class LateMixin(UnchangedOnErrorMixin):
    """Estimators whose rows may come one by one.

    A row in an array of the width and dtype of those before is kept, and nothing else is done: the
    fitted attributes leave the estimator's dictionary, and are made when one of them is read. An
    assignment, as of a parameter, comes after that, so that rows are taken by the parameters with
    which they came. A subclass writes ``_replay(rows)``.
    """

    @abstractmethod
    def _replay(self, rows: np.ndarray, times: np.ndarray | None = None) -> None:
        """Take rows that waited, and set the fitted attributes.

        Parameters
        ----------
        rows : ndarray of shape (n, d)
            Those of `Late`, which are not to be kept.
        times : ndarray of shape (n,), default=None
            Their times, if they came with some.
        """

    def _waits(self, X: Any, times: Any = None) -> bool:
        """Keep a row for later, or few, if they need no other check."""
        state = vars(self)
        late = state.get(LATE)
        if late is None or BEFORE in state or not late.take(X, times):
            return False
        if "n_samples_" in state:
            self._hide()
        return True

    def _hide(self) -> None:
        """Leave the fitted attributes to `__getattr__`."""
        state = {
            name: value
            for name, value in vars(self).items()
            if not name.endswith("_") or name in _OF_COLUMNS
        }
        object.__setattr__(self, "__dict__", state)

    @contextmanager
    def _taking_rows(self):
        """Undo what is done if an error is raised; nothing is late meanwhile."""
        with self._unchanged_on_error():
            late = vars(self).pop(LATE, None)
            yield
            if late is not None and LATE not in vars(self):
                for name, value in late.base.items():  # what somebody set, and no fit sets
                    vars(self).setdefault(name, value)

    def _twin(self) -> Any:
        """A copy that goes on without this one, and solves nothing."""
        twin = object.__new__(type(self))
        state = dict(vars(self))
        if LATE in state:
            state[LATE] = state[LATE].copy()
        twin.__dict__ = state
        return twin

    def _late(self) -> Late | None:
        """What other threads read while this one fits is late as well."""
        state = vars(self)
        return state.get(LATE) or state.get(BEFORE, (None, state))[1].get(LATE)

    def _settle(self, name: str) -> None:
        """Show all rows before an attribute is set."""
        late = vars(self).get(LATE)
        if late is not None:
            shown = {**vars(self), **late.attributes(type(self))}
            del shown[LATE]
            object.__setattr__(self, "__dict__", shown)

    def __setattr__(self, name: str, value: Any) -> None:
        if not _WAITING.isdisjoint(vars(self)):
            self._settle(name)
        super().__setattr__(name, value)

    if not TYPE_CHECKING:  # which would take every name for an attribute

        def __getattr__(self, name: str) -> Any:
            if name.endswith("_") and not name.startswith("_") and name not in _OF_COLUMNS:
                late = self._late()
                if late is not None:
                    attributes = late.attributes(type(self))
                    if name in attributes:
                        return attributes[name]
            return object.__getattribute__(self, name)  # the error

    def __dir__(self):
        late = self._late()
        return sorted({*super().__dir__(), *(late.attributes(type(self)) if late else ())})
