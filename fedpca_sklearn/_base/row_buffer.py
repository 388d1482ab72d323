"""Buffer of rows that come a few at a time, until they are worth a step of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._kernels.bounded import is_bounded


class RowBuffer:
    """Immutable value of some rows, and of their times if they have some.

    Buffers that follow from each other share memory, of which each reads its own first rows, so
    that to append a few costs a copy of these only.

    Parameters
    ----------
    rows : ndarray of shape (n, d)
        Not copied.
    room : int
        Rows that the memory of the next buffer is made for.
    times : ndarray of datetime64, shape (n,), default=None
    """

    __slots__ = ("_memory", "n", "room")

    def __init__(self, rows: np.ndarray, room: int, times: np.ndarray | None = None):
        self._memory, self.n, self.room = _Memory(rows, times, len(rows)), len(rows), room

    def __reduce__(self):
        times = None if self.times is None else self.times.copy()
        return RowBuffer, (self.rows.copy(), self.room, times)

    @property
    def rows(self) -> np.ndarray:
        """The rows; nobody writes to them."""
        return self._memory.rows[: self.n]

    @property
    def times(self) -> np.ndarray | None:
        """Their times."""
        return None if self._memory.times is None else self._memory.times[: self.n]

    def takes(
        self,
        X: Any,
        times: Any,
        most: int,
        dtype: np.dtype | None = None,
        takes_nan: bool = False,
    ) -> bool:
        """Whether X is few rows like these, finite and of moderate size.

        Parameters
        ----------
        X : object
        times : object
        most : int
            Rows that may come at once.
        dtype : dtype or None
            That of the rows, if it is not that of the buffer.
        takes_nan : bool
            Whether entries may be missing.
        """
        rows, known = self._memory.rows, self._memory.times
        if type(X) is not np.ndarray or X.ndim != 2 or X.dtype != (dtype or rows.dtype):
            return False
        m = len(X)
        if not 0 < m <= most or X.shape[1] != rows.shape[1]:
            return False
        if known is None or type(times) is not np.ndarray:
            if times is not None or known is not None:
                return False
        elif times.dtype != known.dtype or times.shape != (m,) or np.isnat(times).any():
            return False
        return is_bounded(X[0] if m == 1 else X.ravel(), takes_nan)

    def with_rows(self, X: np.ndarray, times: np.ndarray | None = None) -> RowBuffer:
        """The buffer with copies of more rows after these, and their times if all have some."""
        memory, end = self._memory, self.n + len(X)
        # of two threads that write after the same rows one gets the memory
        if len(memory.rows) < end or not memory.ends.pop(self.n, False):
            memory = memory.copied(self.n, max(self.room, end))
        memory.rows[self.n : end] = X
        if memory.times is not None:
            memory.times[self.n : end] = times
        memory.ends[end] = True
        longer = object.__new__(RowBuffer)
        longer._memory, longer.n, longer.room = memory, end, self.room
        return longer


class _Memory:
    """Rows and times; ``ends`` has the number that is written, unless somebody writes now."""

    __slots__ = ("ends", "rows", "times")

    def __init__(self, rows: np.ndarray, times: np.ndarray | None, n: int):
        self.rows, self.times, self.ends = rows, times, {n: True}

    def copied(self, n: int, room: int) -> _Memory:
        """Memory for so many rows, with copies of the first n, after which somebody writes."""
        rows, times = np.empty((room, self.rows.shape[1]), self.rows.dtype), self.times
        rows[:n] = self.rows[:n]
        if times is not None:
            known, times = times, np.empty(room, times.dtype)
            times[:n] = known[:n]
        memory = _Memory(rows, times, n)
        memory.ends.clear()
        return memory
