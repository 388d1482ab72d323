"""Batches of rows from what holds more than one: files, queries, loaders, iterables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np

from .._validation.checks import check_integer
from .._validation.containers import check_same_names, is_by_name, library_and_class, listed

__all__ = ["NpyRows", "iter_batches"]

_ROWS = 4096


def _lazy_frame(X: Any, n: int, columns: list[str] | None) -> Any:
    return (X if columns is None else X.select(columns)).collect_batches(chunk_size=n)


def _relation(X: Any, n: int, columns: list[str] | None) -> Any:
    chosen = X if columns is None else X.select(*columns)
    read = getattr(chosen, "to_arrow_reader", None) or chosen.fetch_record_batch
    return read(n)


def _data_set(X: Any, n: int, columns: list[str] | None) -> Any:
    return (X if columns is None else X.select_columns(columns)).with_format("arrow").iter(n)


def _dataset(X: Any, n: int, columns: list[str] | None) -> Any:
    # Arrow would read 16 batches of 4 files ahead, and of parquet whole files
    options: dict[str, Any] = {"batch_readahead": 0, "fragment_readahead": 0, "use_threads": False}
    if getattr(getattr(X, "format", None), "default_extname", None) == "parquet":
        from pyarrow.dataset import ParquetFragmentScanOptions

        options["fragment_scan_options"] = ParquetFragmentScanOptions(pre_buffer=False)
    return X.to_batches(batch_size=n, columns=columns, **options)


def _parquet(X: Any, n: int, columns: list[str] | None) -> Any:
    for group in range(X.num_row_groups):  # Arrow would buffer all groups that it is asked for
        yield from X.iter_batches(n, [group], columns, use_threads=False)


# Library and class of what has not read its rows, and how it reads batches of about n of them.
_READERS: dict[tuple[str, str], Callable[[Any, int, list[str] | None], Any]] = {
    ("polars", "LazyFrame"): _lazy_frame,
    ("duckdb", "DuckDBPyRelation"): _relation,
    ("pyarrow", "Dataset"): _dataset,
    ("pyarrow", "Scanner"): lambda X, n, c: X.to_batches(),
    ("pyarrow", "ParquetFile"): _parquet,
    ("datasets", "Dataset"): _data_set,
    ("datasets", "IterableDataset"): _data_set,
    ("torch", "DataLoader"): lambda X, n, c: iter(X),
}


def _reader(X: Any) -> Callable | None:
    return next((_READERS[name] for name in library_and_class(X) if name in _READERS), None)


def is_stream(X: Any) -> bool:
    """Whether X holds batches of rows: a reader of them, a list of 2-D arrays, or an iterable."""
    if isinstance(X, np.ndarray):
        return False
    if hasattr(X, "__next__") or _reader(X) is not None:
        return True
    array_like = ("shape", "__array__", "__dataframe__")
    if not hasattr(X, "__iter__") or any(hasattr(X, name) for name in array_like):
        return False
    if hasattr(X, "__len__") and hasattr(X, "__getitem__"):  # of batches, or of rows
        return _begins_with_a_batch(X)
    return not isinstance(X, Set)


def _begins_with_a_batch(X: Any) -> bool:
    """Whether the first item of a list, or of what can be read like one, is an array of rows."""
    if isinstance(X, Mapping):
        return False
    try:
        return len(getattr(_without_targets(X[0]), "shape", ())) == 2
    except (LookupError, TypeError, ValueError):
        return False


def iter_batches(
    X: Any, *, batch_size: int | None = None, columns: str | Sequence[str] | None = None
) -> Iterator[Any]:
    """Batches of rows of a file, a query, a data loader or an iterable, one at a time.

    Estimators of streams go through it in ``fit`` and ``partial_fit``. Call it to choose columns,
    or to transform what does not fit in memory, as in the second example.

    Parameters
    ----------
    X : object
        Of these:

        - ``pyarrow.dataset.Dataset``, ``Scanner``, ``pyarrow.parquet.ParquetFile``, a record batch
          reader;
        - ``polars.LazyFrame``, read by its streaming engine; a relation of duckdb;
        - ``torch.utils.data.DataLoader``; a data set of Hugging Face ``datasets``;
        - an iterable, or a list, of batches: whatever estimators take as rows. Also one of known
          length, as loaders have.

    batch_size : int, default=None
        Rows of a batch, at most, where X lets it be chosen; None: 4,096. Loaders and iterables have
        their own. duckdb counts in vectors of 2,048 rows.
    columns : str or sequence of str, default=None
        Columns to take, in this order; a str is the one entry that holds whole rows, such as an
        embedding. None: all. Where X can, it reads no others.

    Returns
    -------
    batches : iterator of {array-like, sparse matrix} of shape (n, n_features)
        Of a batch that is a tuple, the first entry, as loaders give (rows, targets). A dict of
        columns becomes one array, a dict of numbers one row, and all dicts must have the same names
        in one order. Frames and tables stay what they are, with their names.

    Raises
    ------
    TypeError
        If X holds no batches of rows, a batch is a dict whose columns cannot be told, or
        ``columns`` are no names.

    Notes
    -----
    One batch is in memory at a time, besides what X itself reads ahead: of a parquet file a few row
    groups. So it is with coordinates, in ``map(pca.transform, iter_batches(X))``.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import StreamingPCA, iter_batches
    >>> X, y = load_digits(return_X_y=True)
    >>> loader = [(X[:900], y[:900]), (X[900:], y[900:])]
    >>> pca = StreamingPCA(3).fit(iter_batches(iter(loader)))
    >>> [pca.transform(batch).shape for batch in iter_batches(iter(loader))]
    [(900, 3), (897, 3)]
    """
    if batch_size is not None:
        check_integer("batch_size", batch_size)
    if columns is not None and not hasattr(columns, "__iter__"):
        raise TypeError(f"columns must be a name or a sequence of names, got {columns!r}.")
    names = [columns] if isinstance(columns, str) else columns and list(columns)
    reader = _reader(X)
    if reader is None and not is_stream(X):
        raise TypeError(f"X must hold batches of rows, got {type(X).__name__}.")
    batches = X if reader is None else reader(X, int(batch_size or _ROWS), names)
    return _each(batches, columns)


def _each(batches: Any, columns: str | Sequence[str] | None) -> Iterator[Any]:
    """Rows of each batch, of which none is held while the next one is read."""
    names = None
    for batch in batches:
        batch = _without_targets(batch)
        if columns is None and is_by_name(batch):
            names = names or tuple(batch)
            check_same_names(names, tuple(batch), "A batch that is a dict")
        rows = _rows(batch, columns)
        del batch
        yield rows
        del rows


def _without_targets(batch: Any) -> Any:
    """The first entry of a batch that is a tuple, as loaders give (rows, targets)."""
    if not isinstance(batch, (list, tuple)):
        return batch
    rows, last = batch[0], batch[-1]
    if is_by_name(rows) and is_by_name(last) and not any(map(np.ndim, rows.values())):
        return batch if rows.keys() == last.keys() else rows  # rows, or one and its targets
    return rows if len(getattr(rows, "shape", ())) > 1 or is_by_name(rows) else batch


def _rows(batch: Any, columns: str | Sequence[str] | None) -> Any:
    """The rows of a batch; of its columns those that are asked for."""
    if is_by_name(batch):
        return _of_entries(batch, columns)
    if columns is None:
        return batch
    if not hasattr(batch, "columns"):
        raise TypeError(f"columns can be chosen by name only, got {type(batch).__name__}.")
    if isinstance(columns, str):
        column = batch[columns]
        arrow = hasattr(column, "to_pylist")
        return np.stack(list(column.to_numpy(zero_copy_only=False) if arrow else column))
    return batch.select(list(columns)) if hasattr(batch, "select") else batch[list(columns)]


def _of_entries(batch: Mapping[str, Any], columns: str | Sequence[str] | None) -> Any:
    """Rows of a dict: one entry that holds whole rows, columns, or the numbers of one row."""
    for name in [columns] if isinstance(columns, str) else columns or ():
        if name not in batch:
            there = listed(map(str, batch))
            raise ValueError(f"columns must be in each batch, got {name!r}; one has {there}.")
    if isinstance(columns, str):
        return batch[columns]
    entries = {name: np.atleast_1d(batch[name]) for name in (columns or batch)}
    if columns is None and any(
        entry.ndim != 1 or entry.dtype.kind in "OSU" for entry in entries.values()
    ):
        shapes = {name: entry.shape for name, entry in entries.items()}
        raise TypeError(
            "columns must name what is the rows in a batch that is a dict, unless all entries are "
            f"columns of numbers; got entries of shapes {shapes}."
        )
    return np.column_stack(list(entries.values()))


# ------------------------------------------------------------------ files of numpy


class NpyRows:
    """Rows of a ``.npy`` file that are read when they are sliced; the file is never mapped whole.

    For `StreamingPCA.fit` and the trackers; a slice ``[a:b]`` is an array, which any method takes.
    ``np.load(file, mmap_mode="r")`` does the same where address space is free: a memory map counts
    with its full size under ``ulimit -v``, whatever is resident.

    Parameters
    ----------
    file : path
        Of a 2-D array of numbers in C order.

    Attributes
    ----------
    shape : tuple of int
    dtype : dtype

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from fedpca_sklearn import NpyRows, StreamingPCA
    >>> X = np.random.default_rng(0).standard_normal((100, 4)) * [4, 3, 2, 1]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(os.path.join(folder, "X.npy"), X)
    ...     rows = NpyRows(os.path.join(folder, "X.npy"))
    ...     pca = StreamingPCA(2).fit(rows)
    >>> rows.shape, pca.singular_values_.round(3)
    ((100, 4), array([37.774, 26.097]))
    >>> np.linalg.svd(X - X.mean(axis=0), compute_uv=False)[:2].round(3)
    array([37.774, 26.097])
    """

    ndim = 2

    def __init__(self, file: str | os.PathLike):
        self.file = os.path.abspath(file)
        try:
            self.shape, fortran, self.dtype, self._offset = npy_header(file)
        except ValueError as error:
            raise ValueError(f"file={os.fspath(file)!r} {error}") from None
        if fortran:
            raise ValueError(
                f"file={os.fspath(file)!r} must hold a 2-D array of numbers in C order, got shape "
                f"{self.shape} and dtype {self.dtype} in Fortran order."
            )

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        if not isinstance(rows, slice):
            raise TypeError(f"rows must be a slice, got {rows!r}.")
        start, stop, step = rows.indices(self.shape[0])
        if step < 0:
            raise ValueError(f"rows must be a slice with a positive step, got {rows!r}.")
        d, n = self.shape[1], max(0, stop - start)
        offset = self._offset + start * d * self.dtype.itemsize
        read = np.fromfile(self.file, self.dtype, count=n * d, offset=offset)
        if len(read) < n * d:
            raise ValueError(f"file={self.file!r} is shorter than its header says.")
        return read.reshape(n, d)[::step]


def npy_header(file: str | os.PathLike) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Shape, whether columns come first, dtype and offset of the rows of a ``.npy`` file.

    Raises a ValueError, whose text goes on after the name of the file, unless it holds them.
    """
    with open(file, "rb") as stream:
        try:
            version = np.lib.format.read_magic(stream)
        except ValueError as error:
            raise ValueError(f"is not a .npy file: {error}") from None
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"has the unknown version {version}.")
        read = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
        try:
            shape, fortran, dtype = read(stream)
        except Exception as error:  # of the parser of Python's literals, too
            why = str(error).split(" To allow", 1)[0].split("\n", 1)[0]  # without allow_pickle
            raise ValueError(f"has a damaged header: {why}") from None
        offset = stream.tell()
        n_bytes = os.fstat(stream.fileno()).st_size - offset
    if len(shape) != 2 or dtype.kind not in "biuf":
        raise ValueError(f"must hold a 2-D array of numbers, got shape {shape} and dtype {dtype}.")
    n, d = map(int, shape)
    if min(n, d) < 0 or n * d * dtype.itemsize > n_bytes:
        raise ValueError(
            f"announces {n} rows of {d} columns of {dtype.itemsize} bytes, but holds {n_bytes} "
            "bytes."
        )
    return (n, d), fortran, dtype, offset
