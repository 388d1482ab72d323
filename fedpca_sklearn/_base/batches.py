"""Rows that arrive: checked batches of them from any source, and a buffer of a few."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.utils import get_tags

from .._dask import chunks_in_order, is_dask
from .._kernels.device_rows import DeviceRows
from .._kernels.sizes import rows_within, slices_of
from .._validation.checks import check_integer
from .._validation.containers import validate_data
from .sources import is_stream, iter_batches

# Bytes that are read at once, unless a row of chunks has more; of such a row at most so many.
_READ_AT_ONCE = 2**25
_MOST_AT_ONCE = 2**29
# Entries of a batch on a device: 256 MB of float32.
_ENTRIES_ON_DEVICE = 2**26
# Squared norms of rows that need no check but that of their size, and variances of what was seen
# before.
_MOST = {np.dtype(np.float64): 1e200, np.dtype(np.float32): 1e30}
# Largest weights of rows that need no other check.
_WEIGHTS = 1e-30, 1e30
# Entries of a product for which BLAS takes one thread: several wait for each other where cores are
# busy, so that batches of 1,000 rows of 20 features took 20 times as long.
_MOST_OF_DOT = 2**13


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
    batches: Iterable[Any] = [X]
    if is_dask(X):
        batches = chunks_in_order(X, get_tags(estimator).input_tags.allow_nan)
    elif is_stream(X):
        batches = iter_batches(X)
    elif is_on_disk(X):
        batches = slices_on_disk(X, 1 if block_size is None else block_size(X.shape[1]))
    none_yet = True
    for batch in batches:
        rows = validate_data(estimator, batch, reset=reset and none_yet, **checks)
        none_yet = False
        del batch
        yield rows
        del rows  # before the next batch is read
    if none_yet:
        raise ValueError("X is a stream without batches; at least one row is required.")


def float_dtype(X: Any) -> np.dtype:
    """Dtype of the computation: float32 is kept, all else becomes float64."""
    return np.dtype(np.float32 if X.dtype == np.float32 else np.float64)


def count_rows(X: Any, weight: np.ndarray | None) -> int:
    """Number of rows that weighted rows stand for."""
    return X.shape[0] if weight is None else int(np.ceil(weight).sum())


# ------------------------------------------------------------------ arrays on disk


def slices_on_disk(X: Any, block: int) -> Iterator[np.ndarray]:
    """Yield the rows of a 2-D array on disk, in slices of whole blocks; the rest comes last.

    Chunks are compressed as a whole, so what is read at once are whole rows of chunks: as many as
    32 MB hold, or one. Only rows of chunks above 512 MB are read in parts. Without chunks about 32
    MB are read, or one block. One slice is in memory at a time.
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
            waiting = rows[whole:].copy() if whole else rows
        del rows  # before the next slice is read
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


# ------------------------------------------------------------------ batches on a device


class Rows(BaseEstimator):
    """Compares the columns of batches; errors about them name it."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.array_api_support = tags.input_tags.allow_nan = True
        return tags


def on_device(
    X: Any, xp: Any, device: Any = None, *, batch_size: int | None = None
) -> Iterator[Any]:
    """Batches of rows on a device, of rows in the memory of the host, on disk or in a stream.

    For a fit on a device of rows that are not there: ``StreamingPCA(r).fit(on_device(X, torch,
    "cuda"))`` sends the rows, and adds up their products there.

    Parameters
    ----------
    X : array-like of shape (n, d), or what holds batches of rows
        Dense rows as `StreamingPCA` takes them: an array, a memory map, an array on disk, a data
        frame, a tensor of the host, what `iter_batches` reads, or an iterable of such.
    xp : module
        The library, with ``asarray`` of the array API standard: torch, cupy, jax.numpy.
    device : str or device, default=None
        One of that library, such as "cuda"; None: its default.
    batch_size : int, default=None
        Rows of a batch, at most; None: as many as have 2^26 entries, 256 MB of float32. What
        comes in smaller batches is not put together.

    Returns
    -------
    batches : iterator of arrays of shape (m, d)
        On the device, in their order and in their dtype.

    Raises
    ------
    TypeError
        If the rows are sparse, or ``xp`` is no such library.
    ValueError
        If columns, or their names, differ from batch to batch.

    See Also
    --------
    iter_batches : Batches that stay where they are.

    Notes
    -----
    At most two batches are on the device: one that is worked on, and of torch the next one, which
    is copied meanwhile in a stream of its own, where torch has streams for the device. A copy of
    rows in pinned memory (``tensor.pin_memory()``) does not hold up the host; that of others
    does. Names of columns are compared, and then lost, as arrays have none.

    Results are where the batches are, with scikit-learn's ``array_api_dispatch``.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import StreamingPCA, on_device
    >>> X = np.random.default_rng(0).standard_normal((1000, 5)) * [5, 4, 3, 2, 1]
    >>> batches = on_device(X, np, batch_size=400)  # xp=torch, device="cuda"
    >>> StreamingPCA(2).fit(batches).explained_variance_.round(2)
    array([25.56, 16.12])
    """
    if not hasattr(xp, "asarray") or not hasattr(xp, "empty"):
        raise TypeError(f"xp must be a library of arrays such as torch or cupy, got {xp!r}.")
    if batch_size is not None:
        check_integer("batch_size", batch_size)
    there = {} if device is None else {"device": device}
    parts, like = _parts(X, batch_size), xp.empty((0,), **there)
    if type(like).__module__ == "torch":
        import torch

        if hasattr(getattr(torch, like.device.type, None), "Stream"):
            return _one_ahead(parts, torch, like.device)
    return (xp.asarray(rows, **there) for rows in parts)


def _parts(X: Any, batch_size: int | None) -> Iterator[np.ndarray]:
    """Rows in the memory of the host, so many at a time."""

    def size(d: int) -> int:
        return batch_size or rows_within(d, _ENTRIES_ON_DEVICE)

    for batch in validated_batches(Rows(), X, True, size):
        if sp.issparse(batch):
            raise TypeError("Sparse rows cannot be sent to a device: X.toarray() is dense.")
        for at in slices_of(batch.shape[0], size(batch.shape[1])):
            rows = np.asarray(batch[at])
            yield rows if rows.flags.writeable else rows.copy()  # torch takes no others
            del rows
        del batch  # before the next one is read


def _one_ahead(parts: Iterator[np.ndarray], torch: Any, device: Any) -> Iterator[Any]:
    """Tensors, of which the next one is on its way while one is worked on."""
    streams, ahead = getattr(torch, device.type), None
    copies = streams.Stream(device)
    for rows in parts:
        host = torch.asarray(rows)
        there = torch.empty(host.shape, dtype=host.dtype, device=device)
        copies.wait_stream(streams.current_stream(device))  # which may still read that memory
        with streams.stream(copies):
            there.copy_(host, non_blocking=True)
        if ahead is not None:
            yield ahead
        ahead = there
        streams.synchronize(device)  # before rows are written to the memory of these
    if ahead is not None:
        yield ahead


# ------------------------------------------------------------------ few rows


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


def are_bounded_weights(weight: Any, n: int) -> bool:
    """Whether these are weights of n rows, not all zero, that change no size of sums by much."""
    if type(weight) is not np.ndarray or weight.dtype != np.float64 or weight.shape != (n,):
        return False
    least, most = _WEIGHTS
    return bool(weight.min() >= 0 and least < weight.max() < most)


def as_one(parts: Sequence[Any]) -> Any:
    """The rows of some arrays, or of some CSR arrays, in one."""
    if not sp.issparse(parts[0]):
        return np.concatenate(parts)
    return sp.csr_array(sp.vstack(parts, format="csr"))  # older releases stack to a matrix


class RowBuffer:
    """Immutable value of some rows, and of their times and weights if they have some.

    Buffers that follow from each other share a list of blocks, of which each reads its own first
    ones, so that to append a few rows costs a copy of these only.

    Parameters
    ----------
    rows : {ndarray, csr_array} of shape (n, d)
        Not copied.
    room : int
        Rows from which on the buffer is full.
    times : ndarray of datetime64, shape (n,), default=None
    weight : ndarray of shape (n,), default=None
    """

    __slots__ = ("_blocks", "_n_blocks", "is_weighted", "n", "room")

    def __init__(self, rows: np.ndarray, room: int, times: Any = None, weight: Any = None):
        self._blocks, self._n_blocks = [(rows, times, weight)], 1
        self.n, self.room, self.is_weighted = rows.shape[0], room, weight is not None

    def __reduce__(self):
        rows, times, weight = self.whole()
        return RowBuffer, (rows, self.room, times, weight)

    @property
    def rows(self) -> np.ndarray:
        """The rows, where these are dense; nobody writes to them."""
        rows, _, _ = zip(*self._blocks[: self._n_blocks], strict=True)
        return np.concatenate(rows)

    @property
    def first(self) -> Any:
        """Some of the rows, of the kind, dtype and columns of all, or none of them."""
        return self._blocks[0][0]

    def is_of(self, rows: Any, times: Any) -> bool:
        """Whether rows are of the same kind, dense or sparse, and their times of the same unit."""
        first, known, _ = self._blocks[0]
        return type(rows) is type(first) and (
            known is None or getattr(times, "dtype", 0) == known.dtype
        )

    def whole(self) -> tuple[Any, np.ndarray | None, np.ndarray | None]:
        """The rows, their times and their weights; None instead of weights that are all 1."""
        rows, times, weight = zip(*self._blocks[: self._n_blocks], strict=True)
        w = None
        if self.is_weighted:
            parts = zip(rows, weight, strict=True)
            w = np.concatenate([np.ones(X.shape[0]) if w is None else w for X, w in parts])
        return as_one(rows), None if times[0] is None else np.concatenate(times), w

    def takes(
        self,
        X: Any,
        times: Any,
        most: int,
        dtype: np.dtype | None = None,
        takes_nan: bool = False,
        takes_sparse: bool = False,
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
        takes_sparse : bool
            Whether CSR arrays may be the first rows; else, and later, all are as those before.
        """
        rows, known, _ = self._blocks[0]
        sparse = type(X) is sp.csr_array
        if type(X) is not type(rows) and not (sparse and takes_sparse and not self.n):
            return False
        if X.ndim != 2 or X.dtype != (dtype or rows.dtype):
            return False
        m = X.shape[0]
        if not 0 < m <= most or X.shape[1] != rows.shape[1]:
            return False
        if known is None or type(times) is not np.ndarray:
            if times is not None or known is not None:
                return False
        elif times.dtype != known.dtype or times.shape != (m,) or np.isnat(times).any():
            return False
        return is_bounded(X.data if sparse else X[0] if m == 1 else X.ravel(), takes_nan)

    def with_rows(self, X: Any, times: Any = None, weight: Any = None) -> RowBuffer:
        """The buffer with copies of more rows after these, and their times if all have some."""
        blocks, at = (self._blocks, self._n_blocks) if self.n else ([], 0)
        weight = None if weight is None else weight.copy()
        block = X.copy(), None if times is None else times.copy(), weight
        if len(blocks) == at:
            blocks.append(block)
        if blocks[at] is not block:  # another buffer follows from this one
            blocks = [*blocks[:at], block]
        longer = object.__new__(RowBuffer)
        longer._blocks, longer._n_blocks = blocks, at + 1
        longer.n, longer.room = self.n + X.shape[0], self.room
        longer.is_weighted = self.is_weighted or weight is not None
        return longer
