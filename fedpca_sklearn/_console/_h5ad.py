"""Rows of AnnData's .h5ad files: the matrix X, and the names of the variables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import scipy.sparse as sp

from ._row_files import Limits, RowFile, in_floats, needed

# Bytes of a name of a column, at most.
_NAME = 2000


class H5adRows(RowFile):
    """Cells of a dense X, or of one that is stored as CSR; nothing else of the file is read."""

    def __init__(self, path: str, limits: Limits):
        super().__init__(path, limits)
        self._h5py = needed("h5py", "h5ad")
        with self._opened() as file:
            X = self._own(file, "X")
            self._sparse = not hasattr(X, "dtype")
            shape, n_bytes = self._csr(X) if self._sparse else (X.shape, 8 * math.prod(X.shape))
            names = "data", "indices", "indptr"
            parts = [self._own(X, name) for name in names] if self._sparse else [X]
            if len(shape) != 2 or parts[0].dtype.kind not in "biuf":
                raise ValueError(f"X must be a 2-D array of numbers, got shape {shape}.")
            self.n_rows, self.n_columns = shape
            self.check_columns()
            for part in parts:  # of which HDF5 has a whole chunk in memory
                n_bytes = max(n_bytes, math.prod(part.chunks or ()) * part.dtype.itemsize)
            self.check_bytes(n_bytes)
            self.names = self._names(file)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """The file, while whatever h5py raises where it is another one is an error of the file."""
        try:
            with self._h5py.File(self.path, "r") as file:
                yield file
        except (AttributeError, IndexError, KeyError, OSError, RuntimeError, TypeError) as error:
            raise ValueError(f"it is no .h5ad file, or damaged: {error}") from error

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
            got = str(found.dtype)[:40]
            raise ValueError(f"names of columns must be texts, got {got}.")
        return tuple(n.decode() if isinstance(n, bytes) else str(n) for n in found[()])

    def batches(self, columns: Sequence[int]) -> Iterator[Any]:
        """As in `RowFile`."""
        everything = list(columns) == list(range(self.n_columns))
        assert self.n_rows is not None
        step = self.at_once(self.n_columns)
        with self._opened() as file:
            for start in range(0, self.n_rows, step):
                rows = self._rows(file["X"], start, min(start + step, self.n_rows))
                yield rows if everything else rows[:, list(columns)]

    def _rows(self, X: Any, start: int, stop: int) -> Any:
        if not self._sparse:
            return in_floats(X[start:stop])
        ends = X["indptr"][start : stop + 1].astype(np.int64)
        n, d, (first, last) = stop - start, self.n_columns, ends[[0, -1]].tolist()
        if np.any(np.diff(ends) < 0) or not 0 <= first <= last <= first + n * d:
            raise ValueError("X is damaged: its rows have no beginnings.")
        entries, where = X["data"][first:last], X["indices"][first:last].astype(np.int64)
        if not len(entries) == len(where) == last - first:
            raise ValueError("X is damaged: its rows have other entries than there are.")
        if len(where) and not 0 <= where.min() <= where.max() < d:
            raise ValueError("X is damaged: an entry is in no column.")
        return sp.csr_array((in_floats(entries), where, ends - first), shape=(n, d))
