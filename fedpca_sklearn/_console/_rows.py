"""Rows of files in columns that are chosen and matched by name, checked batch by batch."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import scipy.sparse as sp

from .._validation.containers import check_names, composed_names
from ..summary._codec import check_regular
from ._report import listed, printable
from ._row_files import INDEX, CsvRows, H5adRows, NpyRows, ParquetRows, RowFile, by_its_end

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
        options: argparse.Namespace,
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
        paths = ", ".join(printable(file.path) for file in self._files[:2])
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


def _opened(path: str, options: argparse.Namespace) -> RowFile:
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
