"""Rows that need no check but that of their size, and a buffer of a few of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._kernels.sizes import slices_of

# Squared norms of such rows, and variances of what was seen before.
_MOST = {np.dtype(np.float64): 1e200, np.dtype(np.float32): 1e30}
# Entries of a product for which BLAS takes one thread: several wait for each other where cores are
# busy, so that batches of 1,000 rows of 20 features took 20 times as long.
_MOST_OF_DOT = 2**13


def is_bounded(row: np.ndarray, takes_nan: bool = False) -> bool:
    """Whether a row of floats is finite and small, except for NaN where entries may be missing."""
    most = _MOST[row.dtype]
    with np.errstate(over="ignore"):
        if len(row) <= _MOST_OF_DOT:
            size = row.dot(row)
        else:
            parts = [row[at] for at in slices_of(len(row), _MOST_OF_DOT)]
            size = sum([part.dot(part) for part in parts])
    if size < most:  # not so if it is NaN
        return True
    return takes_nan and bool(np.isnan(size)) and is_bounded(row[~np.isnan(row)])


def is_bounded_state(mean: np.ndarray, variance: float, dtype: np.dtype) -> bool:
    """Whether no sum over what has been seen and over such rows can overflow."""
    most = _MOST[dtype]
    return bool(variance < most and np.abs(mean).max(initial=0.0) < most**0.5)


def are_bounded_rows(X: object, n_features: int) -> bool:
    """Whether something is rows of floats in an array of numpy, all of them finite and small."""
    return (
        type(X) is np.ndarray
        and X.ndim == 2
        and X.shape[1] == n_features
        and X.dtype in _MOST
        and (len(X) == 1 or (len(X) > 1 and X.flags.c_contiguous))
        and is_bounded(X.reshape(-1))
    )


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
