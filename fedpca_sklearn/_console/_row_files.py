"""Files of rows and of scores, read and written batch by batch: csv, npy, parquet and h5ad.

Columns are chosen and matched by name.
"""

from __future__ import annotations

import csv
import math
import os
import re
from abc import ABC, abstractmethod
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, TextIO

import numpy as np
import scipy.sparse as sp

from .._base.sources import iter_batches, npy_header
from .._validation.containers import check_names, composed_names, listed
from ..engines._messages import shown
from ..summary._codec import check_regular

# Entries of a batch, at most, and rows.
ENTRIES, ROWS = 2**22, 2**16
# Bytes of rows that are read whatever the size of their file is.
_FREE = 2**26
# Characters of a line of csv, at most, and of the lines of a batch, which ends above that.
_LINE, _TEXT = 2**24, 2**26
# What stands for a value that is not there, and what for one that is.
_MISSING = {"", "na", "n/a", "nan", "null", "none"}
_NUMBER = re.compile(
    r"[+-]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?|inf(?:inity)?|nan)", re.ASCII | re.IGNORECASE
)
# What a file may announce, by default, before a row of it is read. Columns: a batch has a row at
# least, and 2^20 are more than the 935,000 sites of a methylation array. Bytes of the rows in
# double precision over bytes of the file, where an entry of a sparse matrix that is not stored
# counts four: counts of cells reach 100, texts of 1 word in 1,000 reach 300 to 1,000, and dummies
# in parquet 270 if one row in 100 has them, 750 if one in 1,000.
MAX_COLUMNS, MAX_RATIO = 2**20, 1000
# What pandas calls the index of a frame in parquet.
_INDEX = re.compile(r"__index_level_\d+__")
INDEX = "the index of a frame"


class RowFile(ABC):
    """Rows of a file; a subclass opens it and reads some of its columns.

    Parameters
    ----------
    path : str
    options : Namespace
        Those of how files are read.

    Attributes
    ----------
    names : tuple of str or None
        Of all columns, those that hold no numbers included.
    n_columns : int
    n_rows : int or None
        As the file states it, which may be wrong.
    not_numbers : dict
        Position of a column that holds no numbers -> what it holds, as far as the file says it.
    """

    names: Any = None
    n_columns: int
    n_rows: Any = None
    not_numbers: dict[int, str] = {}
    # what its library raises where it is another file
    _errors: tuple[type[Exception], ...] = ()

    def __init__(self, path: str, options: Namespace):
        self.path, self.options = path, options

    @contextmanager
    def _read(self) -> Iterator[None]:
        """Errors of the library inside are errors of the file."""
        try:
            yield
        except self._errors as error:
            kind = os.path.splitext(self.path)[1]
            raise ValueError(f"it is no {kind} file, or damaged: {error}") from error

    def check_size(self, n_bytes: int = 0) -> None:
        """Raise for too many columns, or for rows of too many bytes for the size of the file."""
        most, ratio = self.options.max_columns, self.options.max_ratio
        size = os.stat(self.path).st_size
        if self.n_columns > most:
            raise ValueError(
                f"it announces {self.n_columns:,} columns, at most {most:,} are read; "
                "--max-columns raises the limit."
            )
        if n_bytes > max(_FREE, ratio * size):
            raise ValueError(
                f"it announces {self.n_rows:,} rows of {self.n_columns:,} columns, which take "
                f"{n_bytes:.3g} bytes, {n_bytes / size:.3g} times the {size:,} bytes of the file; "
                f"at most {ratio:g} times are read; --max-ratio raises the limit."
            )

    @abstractmethod
    def batches(self, columns: Sequence[int]) -> Iterator[Any]:
        """Yield the rows in the given columns: float arrays or CSR; NaN where one is missing."""

    def at_once(self, n_columns: int) -> int:
        """Rows of a batch."""
        return max(1, min(ROWS, ENTRIES // max(n_columns, 1)))


class CsvRows(RowFile):
    """Text with a line of names, in which semicolons stand beside decimal commas by default."""

    def __init__(self, path: str, options: Namespace):
        super().__init__(path, options)
        usual = "\t" if path.lower().endswith(".tsv") else "," if options.decimal == "." else ";"
        self._separator, self._decimal = options.separator or usual, options.decimal
        with self._open() as stream:
            _, _, header = next(self._records(stream), (0, 0, []))
        self.names, self.n_columns = tuple(header), len(header)
        self.check_size()
        if all(self._number(name) is not None for name in header):
            got = "numbers" if header else "nothing"
            raise ValueError(f"the first line must hold the names of the columns, got {got}.")

    def _open(self) -> TextIO:
        return open(self.path, newline="", encoding="utf-8-sig")

    def _records(self, stream: TextIO) -> Iterator[tuple[int, int, list[str]]]:
        """Number of the last line, characters and cells of each row that is not empty."""
        length, most = 0, self.options.max_columns

        def lines() -> Iterator[str]:
            nonlocal length
            while line := stream.readline(_LINE):
                length += len(line)  # of all lines of a row
                if length >= _LINE:
                    raise ValueError(f"it has a line of {_LINE} characters or more.")
                if len(line) > most and (n := line.count(self._separator)) > most:
                    raise ValueError(
                        f"it has a line of {n:,} separators, at most {most:,} columns are read; "
                        "--max-columns raises the limit."
                    )
                yield line

        reader = csv.reader(lines(), delimiter=self._separator)
        try:
            for cells in reader:
                if cells:
                    yield reader.line_num, length, cells
                length = 0
        except csv.Error as error:
            raise ValueError(f"it is no csv: {error}.") from None

    def batches(self, columns: Sequence[int]) -> Iterator[Any]:
        """As in `RowFile`."""
        most = self.at_once(max(self.n_columns, 1024))  # cells take 60 bytes and more
        rows: list[tuple[int, int, list[str]]] = []
        text = 0
        with self._open() as stream:
            for row, (line, length, cells) in enumerate(self._records(stream)):
                if len(cells) != self.n_columns:
                    raise ValueError(
                        f"row {row} has {len(cells)} cells, expected {self.n_columns} as in the "
                        f"first line (line {line}; {_HOW})."
                    )
                if row:  # below the names
                    rows.append((row, line, cells))
                    text += length
                if len(rows) == most or text > _TEXT:
                    yield self._numbers(rows, columns)
                    rows, text = [], 0
        if rows:
            yield self._numbers(rows, columns)

    def _numbers(self, rows: list[tuple[int, int, list[str]]], columns: Sequence[int]) -> Any:
        chosen = [[cells[j] for j in columns] for *_, cells in rows]
        if self._decimal == ",":
            chosen = [list(map(_with_point, cells)) for cells in chosen]
        text = "".join(map("".join, chosen))
        if text.isascii() and "_" not in text:
            with suppress(ValueError):  # once more, cell by cell
                return np.array(chosen, dtype=np.float64)
        return np.array([[self._value(cells[j], j, *at) for j in columns] for *at, cells in rows])

    def _number(self, text: str) -> float | None:
        """The number that a text is, in ASCII digits without separators of thousands."""
        text = _with_point(text) if self._decimal == "," else text
        return float(text) if _NUMBER.fullmatch(text.strip()) else None

    def _value(self, cell: str, column: int, row: int, line: int) -> float:
        if cell.strip().lower() in _MISSING:
            return np.nan
        value = self._number(cell)
        if value is not None:
            return value
        raise ValueError(
            f"column {self.names[column][:40]!r} must hold numbers, got {cell[:40]!r} in row {row} "
            f"(line {line}; {_HOW}; --without leaves the column out)."
        )


_HOW = "--separator and --decimal say how numbers are written"


def _with_point(text: str) -> str:
    """A number with a decimal comma as one with a point, and one with a point as none."""
    return text.replace(".", "_").replace(",", ".")


class NpyRows(RowFile):
    """An array of numpy, which knows no names."""

    def __init__(self, path: str, options: Namespace):
        super().__init__(path, options)
        try:
            shape, fortran, dtype, offset = npy_header(path)
        except ValueError as error:
            raise ValueError(f"it {error}") from None
        self.n_rows, self.n_columns = shape
        self.check_size()
        self._rows = np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C")

    def batches(self, columns: Sequence[int]) -> Iterator[Any]:
        """As in `RowFile`."""
        step = self.at_once(self.n_columns)
        for start in range(0, len(self._rows), step):
            yield in_floats(self._rows[start : start + step][:, list(columns)])


class ParquetRows(RowFile):
    """A parquet file, of which one row group at a time is looked into."""

    def __init__(self, path: str, options: Namespace):
        super().__init__(path, options)
        pyarrow, parquet = needed("pyarrow", "parquet"), needed("pyarrow.parquet", "parquet")
        self._errors = (pyarrow.ArrowException, OSError)
        with self._read():
            self._file = parquet.ParquetFile(path)
        schema = self._file.schema_arrow
        self.n_rows, self.n_columns = self._file.metadata.num_rows, len(schema)
        kinds = pyarrow.types
        numbers = kinds.is_integer, kinds.is_floating, kinds.is_boolean, kinds.is_decimal
        self.names = tuple(schema.names)
        self.not_numbers = {
            j: INDEX if _INDEX.fullmatch(field.name) else str(field.type)
            for j, field in enumerate(schema)
            if _INDEX.fullmatch(field.name) or not any(kind(field.type) for kind in numbers)
        }
        self.check_size(8 * self.n_rows * max(1, self.n_columns - len(self.not_numbers)))
        self._single = all(kinds.is_float32(field.type) for field in schema)

    def batches(self, columns: Sequence[int]) -> Iterator[Any]:
        """As in `RowFile`."""
        names = [self.names[j] for j in columns]
        dtype = np.float32 if self._single else np.float64
        size = self.at_once(len(names))
        with self._read():
            for batch in iter_batches(self._file, batch_size=size, columns=names):
                rows = np.empty((batch.num_rows, len(names)), dtype)
                for j, column in enumerate(batch.columns):
                    numbers = column.cast("double", safe=False) if column.null_count else column
                    rows[:, j] = numbers.to_numpy(zero_copy_only=False)
                yield rows


def in_floats(values: np.ndarray) -> np.ndarray:
    """Values in single precision if they are, in double precision otherwise."""
    return values.astype(np.float32 if values.dtype == np.float32 else np.float64, copy=False)


def needed(module: str, extra: str) -> Any:
    """An optional module, or the error that says how it is installed."""
    try:
        return import_module(module)
    except ImportError:
        raise ImportError(
            f"{extra} files need {module}: pip install 'fedpca-sklearn[{extra}]'."
        ) from None


def by_its_end(path: str, formats: dict[str, Any], what: str) -> Any:
    """What a table of formats has for the end of a file's name."""
    found = formats.get(os.path.splitext(path)[1].lower())
    if found is None:
        known = ", ".join(formats)
        raise ValueError(f"{path}: the name of a file of {what} must end in one of {known}.")
    return found


Write = Callable[[np.ndarray], object]


@contextmanager
def _csv(path: str, names: list[str]) -> Iterator[Write]:
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(names)
        yield lambda scores: writer.writerows(scores.tolist())


@contextmanager
def _npy(path: str, names: list[str]) -> Iterator[Write]:
    """The header is written again at the end, when the rows are counted, in as many bytes."""
    dtype = np.dtype(np.float64)

    def begin(n_rows: int) -> None:
        about = {"descr": dtype.str, "fortran_order": False, "shape": (n_rows, len(names))}
        np.lib.format.write_array_header_1_0(stream, about)

    with open(path, "wb") as stream:
        begin(0)
        start = stream.tell()
        yield lambda scores: stream.write(np.ascontiguousarray(scores, dtype).tobytes())
        n_bytes = stream.tell() - start
        stream.seek(0)
        begin(n_bytes // (dtype.itemsize * len(names)))


@contextmanager
def _parquet(path: str, names: list[str]) -> Iterator[Write]:
    arrow, parquet = needed("pyarrow", "parquet"), needed("pyarrow.parquet", "parquet")
    schema = arrow.schema([(name, arrow.float64()) for name in names])
    with parquet.ParquetWriter(path, schema) as writer:
        yield lambda scores: writer.write_table(arrow.table(list(scores.T), schema=schema))


# Of a path and the names of the columns: a context manager, whose value writes a batch.
SCORES = {".csv": _csv, ".npy": _npy, ".parquet": _parquet, ".pq": _parquet}


# Bytes of a name of a column, at most.
_NAME = 2000


class H5adRows(RowFile):
    """Cells of a dense X, or of one that is stored as CSR; nothing else of the file is read."""

    _errors = (AttributeError, IndexError, KeyError, OSError, RuntimeError, TypeError)

    def __init__(self, path: str, options: Namespace):
        super().__init__(path, options)
        self._h5py = needed("h5py", "h5ad")
        with self._read(), self._h5py.File(path, "r") as file:
            X = self._own(file, "X")
            self._sparse = not hasattr(X, "dtype")
            shape, n_bytes = self._csr(X) if self._sparse else (X.shape, 8 * math.prod(X.shape))
            names = "data", "indices", "indptr"
            parts = [self._own(X, name) for name in names] if self._sparse else [X]
            if len(shape) != 2 or parts[0].dtype.kind not in "biuf":
                raise ValueError(f"X must be a 2-D array of numbers, got shape {shape}.")
            self.n_rows, self.n_columns = shape
            for part in parts:  # of which HDF5 has a whole chunk in memory
                n_bytes = max(n_bytes, math.prod(part.chunks or ()) * part.dtype.itemsize)
            self.check_size(n_bytes)
            self.names = self._names(file)

    def _own(self, group: Any, name: str) -> Any:
        """A member of a group that this file holds, and not another one on the machine."""
        found, link = group[name], group.get(name, getlink=True)
        of_others = getattr(found, "is_virtual", False) or getattr(found, "external", None)
        if of_others or not isinstance(link, self._h5py.HardLink):
            raise ValueError(f"it must hold {name!r} itself, got a link or reference elsewhere.")
        return found

    def _csr(self, X: Any) -> tuple[tuple[int, ...], int]:
        """Shape and bytes of a sparse X: of its entries, and four for each not stored."""
        kind = X.attrs["encoding-type"]
        if kind != "csr_matrix":
            raise ValueError(f"X must be dense or stored by rows (CSR), got {str(kind)[:40]!r}.")
        stated = np.asarray(X.attrs["shape"])
        n_rows, n_entries = len(X["indptr"]) - 1, len(X["data"])
        if stated.dtype.kind not in "iu" or stated.shape != (2,) or np.any(stated < 0):
            got = str(stated.tolist())[:40]
            raise ValueError(f"the shape of X must be two integers of at least 0, got {got}.")
        n, d = map(int, stated)
        if n != n_rows:
            raise ValueError(f"X announces {n:,} rows, but indptr is of {n_rows:,}.")
        return (n, d), 16 * n_entries + 8 * n + 4 * n * d

    def _names(self, file: Any) -> tuple[str, ...] | None:
        """Names of the variables, if there are any."""
        var = file.get("var")
        found = None if var is None else var.get(var.attrs.get("_index", "_index"))
        if found is None:
            return None
        if len(found) != self.n_columns:
            raise ValueError(f"X has {self.n_columns} columns, but {len(found)} have names.")
        texts = found.dtype.kind in "iuSU" or self._h5py.check_string_dtype(found.dtype)
        if not texts or found.dtype.itemsize > _NAME:
            raise ValueError(f"names of columns must be texts, got {str(found.dtype)[:40]}.")
        return tuple(n.decode() if isinstance(n, bytes) else str(n) for n in found[()])

    def batches(self, columns: Sequence[int]) -> Iterator[Any]:
        """As in `RowFile`."""
        everything = list(columns) == list(range(self.n_columns))
        step = self.at_once(self.n_columns)
        with self._read(), self._h5py.File(self.path, "r") as file:
            for start in range(0, self.n_rows, step):
                rows = self._rows(file["X"], start, min(start + step, self.n_rows))
                yield rows if everything else rows[:, list(columns)]

    def _rows(self, X: Any, start: int, stop: int) -> Any:
        if not self._sparse:
            return in_floats(X[start:stop])
        ends = X["indptr"][start : stop + 1].astype(np.int64)
        n, d, (first, last) = stop - start, self.n_columns, ends[[0, -1]].tolist()
        most = min(first + n * d, len(X["data"]), len(X["indices"]))
        if not 0 <= first <= last <= most:
            raise ValueError("X is damaged: its rows have no beginnings, or no ends.")
        entries, where = X["data"][first:last], X["indices"][first:last].astype(np.int64)
        rows = sp.csr_array((in_floats(entries), where, ends - first), shape=(n, d))
        rows.check_format()  # a ValueError where columns or ends are out of range
        return rows


# -------------------------------------------------------------------- rows of files

_FORMATS = {".csv": CsvRows, ".tsv": CsvRows, ".npy": NpyRows, ".parquet": ParquetRows}
_FORMATS |= {".pq": ParquetRows, ".h5ad": H5adRows}
_ABOUT_MISSING = (
    "; --drop-missing leaves such rows out, fedpca ask with missing=ConditionalFill() fills them in"
)


class Rows:
    """Batches of rows of one or more files, all in the same columns.

    Parameters
    ----------
    paths : sequence of str
    options : Namespace
        Those of how files are read. With ``drop_missing`` rows with a missing value are left out.
    names : sequence of str, default=None
        Columns that are asked for, in this order, where the files know names.
    keep_missing : bool, default=False
        Whether rows with a missing value are no error.

    Attributes
    ----------
    n_read, n_dropped : int
        Rows so far, and those that were left out.
    """

    def __init__(
        self,
        paths: Sequence[str],
        options: Namespace,
        names: Sequence[str] | None = None,
        *,
        keep_missing: bool = False,
    ):
        self._files = [_opened(path, options) for path in paths]
        self._drop_missing: bool | None = getattr(options, "drop_missing", None)
        self._keep_missing = keep_missing
        self.n_read = self.n_dropped = 0
        self._columns = []
        wanted = names if options.columns is None else options.columns
        for file in self._files:
            with errors_of(file.path):
                if file.names is None and (options.columns or options.without):
                    raise ValueError("it has no names of columns to choose by.")
                columns = _columns(file, wanted, options.without or ())
                self._columns.append(columns)
                if wanted is None and file.names is not None:
                    wanted = composed_names(file.names[j] for j in columns)
        first = self._files[0]
        with errors_of(first.path):
            known = None if first.names is None else wanted
            self.names = check_names(known, len(self._columns[0]))
        counts = [file.n_rows for file in self._files]
        self.n_rows = None if None in counts else sum(counts)

    def __iter__(self) -> Iterator[Any]:
        """Yield float arrays, or CSR, of finite values; missing ones where they are kept."""
        paths = ", ".join(shown(file.path) for file in self._files[:2])
        with _progress(paths, self.n_rows) as advance:
            for file, columns in zip(self._files, self._columns, strict=True):
                before = 0
                with errors_of(file.path):
                    for rows in file.batches(columns):
                        checked = self._checked(rows, before)
                        if checked.shape[0]:
                            self.n_read += checked.shape[0]
                            yield checked
                        before += rows.shape[0]
                        advance(rows.shape[0])
                    if file.n_rows not in (None, before):
                        raise ValueError(f"it announces {file.n_rows} rows, but holds {before}.")

    def _checked(self, rows: Any, before: int) -> Any:
        """The rows, without those that miss a value if that is asked for, or an error."""
        values = rows.data if sp.issparse(rows) else rows
        if np.isfinite(values).all() or (self._keep_missing and not np.isinf(values).any()):
            return rows
        of_rows = rows.toarray() if sp.issparse(rows) else rows
        missing = np.isnan(of_rows) & (not self._keep_missing)
        if self._drop_missing and not np.isinf(of_rows).any():
            kept = ~missing.any(axis=1)
            self.n_dropped += int((~kept).sum())
            return rows[np.flatnonzero(kept)]
        i, j = np.argwhere(missing | np.isinf(of_rows))[0]
        column = f"column {j + 1}" if self.names is None else f"column {self.names[j]!r}"
        if not missing[i, j]:
            raise ValueError(f"{column} is infinite in row {before + i + 1}.")
        hint = "" if self._drop_missing is None else _ABOUT_MISSING
        raise ValueError(f"{column} has no value in row {before + i + 1}{hint}.")


@contextmanager
def _progress(what: str, n_rows: int | None) -> Iterator[Callable[[int], object]]:
    """What to tell numbers of rows; it moves a bar on a terminal, if tqdm is there."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield lambda n: None
        return
    about: dict[str, Any] = {"desc": what, "unit": " rows", "unit_scale": True, "leave": False}
    with tqdm(total=n_rows, disable=None, **about) as bar:  # None: on a terminal only
        yield bar.update


@contextmanager
def errors_of(path: str) -> Iterator[None]:
    """Errors inside begin with the name of a file."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: it is no text in UTF-8.") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _opened(path: str, options: Namespace) -> RowFile:
    kind = by_its_end(path, _FORMATS, "rows")
    with errors_of(path):
        check_regular(path)
        return kind(path, options)


def _columns(file: RowFile, wanted: Sequence[str] | None, without: Sequence[str]) -> list[int]:
    """Positions of the columns to take: those that are asked for, or all but some."""
    if file.names is None:
        if not file.n_columns:
            raise ValueError("it has no columns.")
        if wanted is not None and len(wanted) != file.n_columns:
            raise ValueError(f"it has {file.n_columns} columns without names, not {len(wanted)}.")
        return list(range(file.n_columns))
    names = composed_names(file.names)
    position = {name: j for j, name in enumerate(names)}
    lacking = [name for name in (without if wanted is None else wanted) if name not in position]
    if lacking:
        raise ValueError(f"it has no column {listed(lacking)}; it has {listed(names)}.")
    columns = [position[name] for name in wanted or ()]
    if wanted is None:
        columns = [j for j, name in enumerate(names) if name not in without]
        columns = [j for j in columns if file.not_numbers.get(j) != INDEX]
    if not columns:
        raise ValueError("no column is left.")
    counts = Counter(names)
    twice = [names[j] for j in columns if counts[names[j]] > 1]
    if twice:
        raise ValueError(f"columns must differ in their names, got {twice[0]!r} twice.")
    unnamed = [j for j in columns if not names[j].strip()]
    if unnamed and wanted is None:
        raise ValueError(
            f"column {unnamed[0] + 1} has no name, as the index of a frame has in csv; choose the "
            "columns by --columns."
        )
    texts = [j for j in columns if j in file.not_numbers]
    if texts:
        raise ValueError(
            f"columns must hold numbers, but {listed(names[j] for j in texts)} "
            f"{'hold' if len(texts) > 1 else 'holds'} {file.not_numbers[texts[0]]}; --without "
            "leaves columns out."
        )
    return columns
