"""Arrays on disk (HDF5, zarr), read once along their chunks."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral
from typing import Any

import numpy as np

from .._kernels.sizes import slices_of

# Bytes that are read at once, unless a row of chunks has more; of such a row at most so many.
_READ_AT_ONCE = 2**25
_MOST_AT_ONCE = 2**29


def slices(X: Any, block: int) -> Iterator[np.ndarray]:
    """Yield the rows of a 2-D array on disk, in slices of whole blocks; the rest comes last.

    Chunks are compressed as a whole, so what is read at once are whole rows of chunks: as many as
    32 MB hold, or one. Only rows of chunks above 512 MB are read in parts. Without chunks about 32
    MB are read, or one block.
    """
    n = X.shape[0]
    if n == 0:
        raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required.")
    waiting = None  # rows that do not fill a block
    for at in slices_of(n, _rows_at_once(X, block)):
        rows = np.asarray(X[at])
        if waiting is not None:
            fill = block - len(waiting)
            waiting, rows = np.concatenate([waiting, rows[:fill]]), rows[fill:]
            if len(waiting) == block:
                yield waiting
                waiting = None
        whole = len(rows) - len(rows) % block
        if whole:
            yield rows[:whole]
        if whole < len(rows):
            waiting = rows[whole:].copy()
    if waiting is not None:
        yield waiting


def _rows_at_once(X: Any, block: int) -> int:
    d = max(X.shape[1], 1)
    chunks = getattr(X, "chunks", None)
    if not (isinstance(chunks, tuple) and chunks and isinstance(chunks[0], Integral)):
        return block * max(1, _READ_AT_ONCE // (8 * d * block))
    of_a_row = d * np.dtype(X.dtype).itemsize
    rows = max(int(chunks[0]), 1)
    if rows * of_a_row > _MOST_AT_ONCE:
        return max(1, _MOST_AT_ONCE // of_a_row)
    return rows * max(1, _READ_AT_ONCE // (of_a_row * rows))
