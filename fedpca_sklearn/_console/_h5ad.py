"""Rows of AnnData's .h5ad files: the matrix X, and the names of the variables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from ._row_files import RowFile, needed


class H5adRows(RowFile):
    """Cells of a dense X, or of one that is stored as CSR; nothing else of the file is read."""

    def __init__(self, path: str):
        super().__init__(path)
        self._h5py = needed("h5py", "h5ad")
        try:
            self._file = self._h5py.File(path, "r")
        except OSError as error:
            raise ValueError(f"it is no HDF5 file: {error}") from None
        self._X = self._own(self._file, "X")
        kind = self._X.attrs.get("encoding-type", self._X.attrs.get("h5sparse_format", "array"))
        self._sparse = not isinstance(self._X, self._h5py.Dataset)
        if self._sparse and kind not in ("csr_matrix", "csr"):
            raise ValueError(f"X must be dense or stored by rows (CSR), got {str(kind)[:40]!r}.")
        shape = self._X.attrs.get("shape", self._X.attrs.get("h5sparse_shape"))
        shape = tuple(map(int, shape)) if self._sparse else self._X.shape
        if self._sparse:
            self._parts = [self._own(self._X, name) for name in ("data", "indices", "indptr")]
        else:
            self._parts = [self._X]
        if len(shape) != 2 or any(part.dtype.kind not in "biuf" for part in self._parts):
            raise ValueError(f"X must be a 2-D array of numbers, got shape {shape}.")
        self.n_rows, self.n_columns = shape
        self.names = self._names()

    def _own(self, group: Any, name: str) -> Any:
        """A member of a group that is in this file, and not a link to another one."""
        link = group.get(name, getlink=True)
        if not isinstance(link, self._h5py.HardLink):
            raise ValueError(f"it must hold {name!r} itself, got {type(link).__name__}.")
        found = group[name]
        if isinstance(found, self._h5py.Dataset) and (found.is_virtual or found.external):
            raise ValueError(f"it must hold {name!r} itself, got a reference to another file.")
        return found

    def _names(self) -> tuple[str, ...] | None:
        if "var" not in self._file:
            return None
        var = self._own(self._file, "var")
        if isinstance(var, self._h5py.Dataset):  # of AnnData before 0.7
            found = var.fields("index") if "index" in (var.dtype.names or ()) else None
        else:
            index = str(var.attrs.get("_index", "_index"))
            found = self._own(var, index) if index in var else None
        if found is None:
            return None
        if len(found) != self.n_columns:
            raise ValueError(f"X has {self.n_columns} columns, but {len(found)} have names.")
        return tuple(n.decode() if isinstance(n, bytes) else str(n) for n in found[:])

    def batches(self, columns: Sequence[int]) -> Iterator[Any]:
        """As in `RowFile`."""
        everything = list(columns) == list(range(self.n_columns))
        assert self.n_rows is not None
        step = self.at_once(self.n_columns)
        for start in range(0, self.n_rows, step):
            rows = self._rows(start, min(start + step, self.n_rows))
            yield rows if everything else rows[:, list(columns)]

    def _rows(self, start: int, stop: int) -> Any:
        if not self._sparse:
            rows = self._X[start:stop]
            return rows.astype(np.float32 if rows.dtype == np.float32 else np.float64, copy=False)
        data, indices, indptr = self._parts
        ends = indptr[start : stop + 1].astype(np.int64)
        shape = (stop - start, self.n_columns)
        if len(ends) != shape[0] + 1 or np.any(np.diff(ends) < 0) or ends[-1] > len(data):
            raise ValueError("X is damaged: its rows do not fit to its entries.")
        if ends[0] < 0 or ends[-1] - ends[0] > shape[0] * shape[1]:
            raise ValueError("X is damaged: it has more entries than a matrix of its shape.")
        part = slice(int(ends[0]), int(ends[-1]))
        values = data[part]
        values = values.astype(np.float32 if values.dtype == np.float32 else np.float64)
        where = indices[part].astype(np.int64)
        if len(where) and not (where.min() >= 0 and where.max() < self.n_columns):
            raise ValueError("X is damaged: an entry is in no column.")
        rows = sp.csr_array((values, where, ends - ends[0]), shape=shape)
        rows.sum_duplicates()
        return rows
