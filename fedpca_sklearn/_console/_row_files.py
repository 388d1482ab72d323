"""Files of rows that are read batch by batch: what all formats share, csv, npy and parquet."""

from __future__ import annotations

import csv
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import islice
from typing import Any, TextIO

import numpy as np

from .._base.sources import iter_batches

# Entries of a batch, at most, and rows.
ENTRIES, ROWS = 2**22, 4096
# Characters of a line of csv, at most, and what stands for a value that is not there.
_LINE = 2**24
_MISSING = {"", "na", "n/a", "nan", "null", "none"}
# What pandas calls the index of a frame in parquet.
_INDEX = re.compile(r"__index_level_\d+__")


class RowFile(ABC):
    """Rows of a file; a subclass opens it and reads some of its columns.

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

    names: tuple[str, ...] | None = None
    n_columns: int
    n_rows: int | None = None
    not_numbers: dict[int, str] = {}

    def __init__(self, path: str):
        self.path = path

    @abstractmethod
    def batches(self, columns: Sequence[int]) -> Iterator[Any]:
        """Yield the rows in the given columns: float arrays or CSR; NaN where one is missing."""

    def at_once(self, n_columns: int) -> int:
        """Rows of a batch."""
        return max(1, min(ROWS, ENTRIES // max(n_columns, 1)))


class CsvRows(RowFile):
    """Text with a line of names; the separator is a comma unless another one is given."""

    def __init__(self, path: str, separator: str = ","):
        super().__init__(path)
        self._separator = separator
        with self._open() as stream:
            header = next(self._cells(stream), [])
        if not header:
            raise ValueError("the first line must hold the names of the columns, it is empty.")
        if all(map(_is_number, header)):
            raise ValueError("the first line must hold the names of the columns, got numbers.")
        self.names, self.n_columns = tuple(header), len(header)

    def _open(self) -> TextIO:
        return open(self.path, newline="", encoding="utf-8-sig")

    def _cells(self, stream: TextIO) -> Iterator[list[str]]:
        try:
            yield from filter(None, csv.reader(_lines(stream), delimiter=self._separator))
        except csv.Error as error:
            raise ValueError(f"it is no csv: {error}.") from None

    def batches(self, columns: Sequence[int]) -> Iterator[Any]:
        """As in `RowFile`."""
        everything = list(columns) == list(range(self.n_columns))
        with self._open() as stream:
            lines, before = self._cells(stream), 0
            next(lines)
            while rows := list(islice(lines, self.at_once(self.n_columns))):
                for i, row in enumerate(rows):
                    if len(row) != self.n_columns:
                        raise ValueError(
                            f"row {before + i + 1} has {len(row)} cells, expected {self.n_columns}."
                        )
                chosen = rows if everything else [[row[j] for j in columns] for row in rows]
                try:
                    yield np.array(chosen, dtype=np.float64)
                except ValueError:  # once more, cell by cell
                    yield np.array(
                        [
                            [self._value(row[j], j, before + i + 1) for j in columns]
                            for i, row in enumerate(rows)
                        ]
                    )
                before += len(rows)

    def _value(self, cell: str, column: int, row: int) -> float:
        if cell.strip().lower() in _MISSING:
            return np.nan
        try:
            return float(cell)
        except ValueError:
            assert self.names is not None
            hint = f" (one column, if {self._separator!r} separates them; see --separator)"
            raise ValueError(
                f"column {self.names[column][:40]!r} must hold numbers, got {cell[:40]!r} in row "
                f"{row}{hint if self.n_columns == 1 else ''}."
            ) from None


def _lines(stream: TextIO) -> Iterator[str]:
    while line := stream.readline(_LINE):
        if len(line) == _LINE:
            raise ValueError(f"it has a line of {_LINE} characters or more.")
        yield line


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class NpyRows(RowFile):
    """An array of numpy, which knows no names."""

    def __init__(self, path: str):
        super().__init__(path)
        try:
            with np.errstate(over="raise"):  # a shape of more entries than can be counted
                rows = np.lib.format.open_memmap(path, mode="r")
        except Exception as error:  # of the parser of Python's literals, too
            raise ValueError(f"it is no .npy file: {error}") from None
        if rows.ndim != 2 or rows.dtype.kind not in "biuf":
            raise ValueError(
                f"it must hold a 2-D array of numbers, got shape {rows.shape} of {rows.dtype}."
            )
        self._rows = rows
        self.n_rows, self.n_columns = rows.shape

    def batches(self, columns: Sequence[int]) -> Iterator[Any]:
        """As in `RowFile`."""
        dtype = np.float32 if self._rows.dtype == np.float32 else np.float64
        step = self.at_once(self.n_columns)
        for start in range(0, len(self._rows), step):
            yield self._rows[start : start + step][:, list(columns)].astype(dtype, copy=False)


class ParquetRows(RowFile):
    """A parquet file, of which one row group at a time is looked into."""

    def __init__(self, path: str):
        super().__init__(path)
        pyarrow, parquet = needed("pyarrow", "parquet"), needed("pyarrow.parquet", "parquet")
        self._errors = (pyarrow.ArrowException, OSError)
        try:
            self._file = parquet.ParquetFile(path)
        except self._errors as error:
            raise ValueError(f"it is no parquet file: {error}") from None
        schema = self._file.schema_arrow
        kinds = pyarrow.types
        numbers = kinds.is_integer, kinds.is_floating, kinds.is_boolean, kinds.is_decimal
        self.names, self.n_columns = tuple(schema.names), len(schema.names)
        self.n_rows = self._file.metadata.num_rows
        self.not_numbers = {
            j: "the index of a frame" if _INDEX.fullmatch(field.name) else str(field.type)
            for j, field in enumerate(schema)
            if _INDEX.fullmatch(field.name) or not any(kind(field.type) for kind in numbers)
        }
        self._single = all(kinds.is_float32(field.type) for field in schema)

    def batches(self, columns: Sequence[int]) -> Iterator[Any]:
        """As in `RowFile`."""
        assert self.names is not None
        names = [self.names[j] for j in columns]
        dtype = np.float32 if self._single else np.float64
        size = self.at_once(len(names))
        try:
            for batch in iter_batches(self._file, batch_size=size, columns=names):
                rows = np.empty((batch.num_rows, len(names)), dtype)
                for j, column in enumerate(batch.columns):
                    numbers = (
                        column if column.null_count == 0 else column.cast("double", safe=False)
                    )
                    rows[:, j] = numbers.to_numpy(zero_copy_only=False)
                yield rows
        except self._errors as error:
            raise ValueError(f"it is damaged: {error}") from None


def needed(module: str, extra: str) -> Any:
    """An optional module, or the error that says how it is installed."""
    try:
        return import_module(module)
    except ImportError:
        raise ImportError(
            f"{extra} files need {module}: pip install 'fedpca-sklearn[{extra}]'."
        ) from None
