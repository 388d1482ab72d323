"""Validated blocks of rows from arrays, streams, Dask arrays and arrays on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils import get_tags

from .._dask import chunks_in_order, is_dask
from .._kernels.device_rows import DeviceRows
from .._kernels.sizes import rows_within, slices_of
from .._validation.checks import check_finite
from .._validation.containers import validate_data
from .sources import is_stream, iter_batches

# Entries of a block that is converted to another dtype: 32 MB of float64.
_CONVERTED_ENTRIES = 2**22
# Bytes that are read at once, unless a row of chunks has more; of such a row at most so many.
_READ_AT_ONCE = 2**25
_MOST_AT_ONCE = 2**29


def is_on_disk(X: Any) -> bool:
    """Whether X is an array-like outside numpy that is to be read slice by slice (HDF5, zarr)."""
    return (
        not isinstance(X, (np.ndarray, DeviceRows))
        and not sp.issparse(X)
        and hasattr(X, "dtype")
        and hasattr(X, "__getitem__")
        and not any(hasattr(X, name) for name in ("columns", "__dlpack__"))
        and len(getattr(X, "shape", ())) == 2
    )


def validated_batches(
    estimator: Any, X: Any, reset: bool, block_size: Callable[[int], int] | None = None
) -> Iterator[Any]:
    """Yield 2-D batches of X, checked against the estimator, but not yet for finiteness or dtype.

    Arrays come whole, streams batch by batch, a dask.array chunk by chunk, and arrays on disk in
    `slices_on_disk` of whole blocks; ``block_size(d)`` is the number of rows of a block.
    """
    checks = {"accept_sparse": "csr", "dtype": "numeric", "ensure_all_finite": False}
    if is_stream(X) or is_dask(X):
        allow_nan = get_tags(estimator).input_tags.allow_nan
        batches = chunks_in_order(X, allow_nan) if is_dask(X) else iter_batches(X)
        none_yet = True
        for batch in batches:
            rows = validate_data(estimator, batch, reset=reset and none_yet, **checks)
            none_yet = False
            del batch
            yield rows
            del rows  # before the next batch is read
        if none_yet:
            raise ValueError("X is a stream without batches; at least one row is required.")
        return
    if is_on_disk(X):
        for rows in slices_on_disk(X, 1 if block_size is None else block_size(X.shape[1])):
            yield validate_data(estimator, rows, reset=reset, **checks)
            reset = False
    else:
        yield validate_data(estimator, X, reset=reset, **checks)


def put_back(first: list[Any], rest: Iterator[Any]) -> Iterator[Any]:
    """Yield the one item of a list, which is emptied, and then others; none is held meanwhile."""
    yield first.pop()
    yield from rest


def float_dtype(X: Any) -> np.dtype:
    """Dtype of the computation: float32 is kept, all else becomes float64."""
    return np.dtype(np.float32 if X.dtype == np.float32 else np.float64)


def cut(X: Any, weight: np.ndarray | None, slices: Iterable[slice], dtype: Any, finite: bool):
    """Yield ``(rows, weights)`` blocks of a validated batch in the wanted float dtype.

    Rows that are to be converted come in smaller blocks, as their copies take memory. ``finite``:
    whether to search them for entries that are not.
    """
    n, d = X.shape
    most = n if X.dtype == dtype else rows_within(d, _CONVERTED_ENTRIES, least=8 * d)
    for block in slices:
        for part in slices_of(block.stop - block.start, most):
            at = slice(block.start + part.start, block.start + part.stop)
            rows = X if at.stop - at.start == n else X[at]
            rows = rows.astype(dtype, copy=False)
            if finite:
                check_finite(rows)
            yield rows, None if weight is None else weight[at]


def count_rows(X: Any, weight: np.ndarray | None) -> int:
    """Number of rows that weighted rows stand for."""
    return X.shape[0] if weight is None else int(np.ceil(weight).sum())


# ------------------------------------------------------------------ arrays on disk


def slices_on_disk(X: Any, block: int) -> Iterator[np.ndarray]:
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
