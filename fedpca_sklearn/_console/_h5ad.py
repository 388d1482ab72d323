"""Rows of AnnData's .h5ad files: the matrix X, and the names of the variables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import scipy.sparse as sp

from ._row_files import Limits, RowFile, needed

# How long the process that reads what a file announces may take.
_SECONDS = 30
_HEADER = os.path.join(os.path.dirname(__file__), "_h5ad_header.py")


class H5adRows(RowFile):
    """Cells of a dense X, or of one that is stored as CSR; nothing else of the file is read."""

    def __init__(self, path: str, limits: Limits):
        super().__init__(path, limits)
        self._h5py = needed("h5py", "h5ad")
        header = _header_of(path, limits)
        self._sparse, (self.n_rows, self.n_columns) = header["sparse"], header["shape"]
        self.check_columns()
        for n_bytes in header["bytes"]:
            self.check_bytes(n_bytes)
        self.names = None if header["names"] is None else tuple(header["names"])

    def batches(self, columns: Sequence[int]) -> Iterator[Any]:
        """As in `RowFile`."""
        everything = list(columns) == list(range(self.n_columns))
        assert self.n_rows is not None
        step = self.at_once(self.n_columns)
        with self._h5py.File(self.path, "r") as file:
            X = file["X"]
            parts = [X[name] for name in ("data", "indices", "indptr")] if self._sparse else [X]
            for start in range(0, self.n_rows, step):
                with _reading():
                    rows = self._rows(parts, start, min(start + step, self.n_rows))
                yield rows if everything else rows[:, list(columns)]

    def _rows(self, parts: list[Any], start: int, stop: int) -> Any:
        if not self._sparse:
            return _floats(parts[0][start:stop])
        data, indices, indptr = parts
        ends = indptr[start : stop + 1].astype(np.int64)
        n, d = stop - start, self.n_columns
        if len(ends) != n + 1 or np.any(np.diff(ends) < 0) or ends[0] < 0:
            raise ValueError("X is damaged: its rows have no beginnings.")
        first, last = map(int, ends[[0, -1]])
        if last > min(len(data), len(indices)) or last - first > n * d:
            raise ValueError("X is damaged: its rows have other entries than there are.")
        where = indices[first:last].astype(np.int64)
        if len(where) and not 0 <= where.min() <= where.max() < d:
            raise ValueError("X is damaged: an entry is in no column.")
        return sp.csr_array((_floats(data[first:last]), where, ends - first), shape=(n, d))


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except (AttributeError, KeyError, OSError, RuntimeError, TypeError) as error:
        raise ValueError(f"X is damaged: {error}") from error


def _header_of(path: str, limits: Limits) -> dict[str, Any]:
    """What a file announces; raise where it is not to be read, or where HDF5 does not get there."""
    program = [sys.executable, "-P", _HEADER, os.path.abspath(path), str(limits.columns)]
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    nothing = subprocess.DEVNULL
    try:
        done = subprocess.run(
            program, stdin=nothing, capture_output=True, timeout=_SECONDS, check=False, env=env
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"it is damaged: HDF5 does not open it in {_SECONDS} s.") from None
    if done.returncode:
        raise ValueError("it is damaged: HDF5 fails to open it.")
    header = json.loads(done.stdout)
    if "error" in header:
        raise ValueError(header["error"])
    return header


def _floats(values: np.ndarray) -> np.ndarray:
    """Values in single precision if they are, in double precision otherwise."""
    return values.astype(np.float32 if values.dtype == np.float32 else np.float64, copy=False)
