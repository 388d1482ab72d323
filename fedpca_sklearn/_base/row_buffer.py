"""Buffer of rows that come a few at a time, until they are worth a step of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._kernels.bounded import is_bounded


class RowBuffer:
    """Immutable value of some rows, and of their times if they have some.

    Buffers that follow from each other share a list of blocks, of which each reads its own first
    ones, so that to append a few rows costs a copy of these only.

    Parameters
    ----------
    rows : ndarray of shape (n, d)
        Not copied.
    room : int
        Rows from which on the buffer is full.
    times : ndarray of datetime64, shape (n,), default=None
    """

    __slots__ = ("_blocks", "_n_blocks", "n", "room")

    def __init__(self, rows: np.ndarray, room: int, times: np.ndarray | None = None):
        self._blocks, self._n_blocks = [(rows, times)], 1
        self.n, self.room = len(rows), room

    def __reduce__(self):
        return RowBuffer, (self.rows, self.room, self.times)

    @property
    def rows(self) -> np.ndarray:
        """The rows; nobody writes to them."""
        rows, _ = zip(*self._blocks[: self._n_blocks], strict=True)
        return np.concatenate(rows)

    @property
    def dtype(self) -> np.dtype:
        """That of the rows, which are not put together for it."""
        return self._blocks[0][0].dtype

    @property
    def times(self) -> np.ndarray | None:
        """Their times."""
        _, times = zip(*self._blocks[: self._n_blocks], strict=True)
        return None if times[0] is None else np.concatenate(times)

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
        rows, known = self._blocks[0]
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
        blocks, at = self._blocks, self._n_blocks
        block = X.copy(), None if times is None else times.copy()
        if len(blocks) == at:
            blocks.append(block)
        if blocks[at] is not block:  # another buffer follows from this one
            blocks = [*blocks[:at], block]
        longer = object.__new__(RowBuffer)
        longer._blocks, longer._n_blocks = blocks, at + 1
        longer.n, longer.room = self.n + len(X), self.room
        return longer
