"""Files of scores that are written batch by batch: csv, npy and parquet."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from io import BytesIO

import numpy as np

from ._row_files import needed

Write = Callable[[np.ndarray], object]


@contextmanager
def _csv(path: str, names: list[str]) -> Iterator[Write]:
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(names)
        yield lambda scores: writer.writerows(scores.tolist())


@contextmanager
def _npy(path: str, names: list[str]) -> Iterator[Write]:
    """The header is written again at the end, when the rows are counted."""
    n_rows = 0

    def write(scores: np.ndarray) -> None:
        nonlocal n_rows
        n_rows += len(scores)
        stream.write(np.ascontiguousarray(scores, np.float64).tobytes())

    with open(path, "wb") as stream:
        stream.write(_header(0, len(names)))
        yield write
        stream.seek(0)
        stream.write(_header(n_rows, len(names)))


def _header(n: int, k: int) -> bytes:
    """What a .npy file begins with: as many bytes for any number of rows."""
    buffer = BytesIO()
    about = {"descr": np.dtype(np.float64).str, "fortran_order": False, "shape": (n, k)}
    np.lib.format.write_array_header_1_0(buffer, about)
    return buffer.getvalue()


@contextmanager
def _parquet(path: str, names: list[str]) -> Iterator[Write]:
    arrow, parquet = needed("pyarrow", "parquet"), needed("pyarrow.parquet", "parquet")
    schema = arrow.schema([(name, arrow.float64()) for name in names])

    def write(scores: np.ndarray) -> None:
        columns = [arrow.array(column, arrow.float64()) for column in scores.T]
        writer.write_table(arrow.Table.from_arrays(columns, schema=schema))

    with parquet.ParquetWriter(path, schema) as writer:
        yield write


_FORMATS = {".csv": _csv, ".npy": _npy, ".parquet": _parquet, ".pq": _parquet}


def score_file(output: str) -> Callable[[str, list[str]], AbstractContextManager[Write]]:
    """Look up how a file of scores is written, by the end of its name.

    Parameters
    ----------
    output : str

    Returns
    -------
    opened : callable
        Of a path and the names of the columns: a context manager, whose value writes a batch.
    """
    kind = _FORMATS.get(os.path.splitext(output)[1].lower())
    if kind is None:
        known = ", ".join(_FORMATS)
        raise ValueError(f"{output}: the name of a file of scores must end in one of {known}.")
    return kind
