"""Rows of AnnData's .h5ad files: the matrix X, and the names of the variables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import scipy.sparse as sp

from ._row_files import RowFile, needed

# What h5py raises where a file holds other things than it should.
_ERRORS = AttributeError, KeyError, OSError, RuntimeError, TypeError


@contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except _ERRORS as error:
        raise ValueError(f"{what}: {error}") from error


class H5adRows(RowFile):
    """Cells of a dense X, or of one that is stored as CSR; nothing else of the file is read."""

    def __init__(self, path: str):
        super().__init__(path)
        self._h5py = needed("h5py", "h5ad")
        with self._opened() as file, _reading("it is no .h5ad file"):
            X = self._own(file, "X")
            self._sparse = not isinstance(X, self._h5py.Dataset)
            shape = self._shape_of_sparse(X) if self._sparse else X.shape
            if len(shape) != 2 or any(part.dtype.kind not in "biuf" for part in self._parts(file)):
                raise ValueError(f"X must be a 2-D array of numbers, got shape {shape}.")
            self.n_rows, self.n_columns = map(int, shape)
            self.names = self._names(file)

    def _opened(self) -> Any:
        """The file, to be closed after use: an error's traceback would keep it open."""
        with _reading("it is no HDF5 file"):
            return self._h5py.File(self.path, "r")

    def _parts(self, file: Any) -> list[Any]:
        """The data sets that hold X."""
        X = self._own(file, "X")
        names = ("data", "indices", "indptr")
        return [self._own(X, name) for name in names] if self._sparse else [X]

    def _shape_of_sparse(self, X: Any) -> Sequence[int]:
        kind = X.attrs.get("encoding-type", X.attrs.get("h5sparse_format"))
        if kind not in ("csr_matrix", "csr"):
            raise ValueError(f"X must be dense or stored by rows (CSR), got {str(kind)[:40]!r}.")
        return tuple(X.attrs.get("shape", X.attrs.get("h5sparse_shape")))

    def _own(self, group: Any, name: str) -> Any:
        """A member of a group that is in this file, and not a link to another one."""
        link = group.get(name, getlink=True)
        if not isinstance(link, self._h5py.HardLink):
            raise ValueError(f"it must hold {name!r} itself, got {type(link).__name__}.")
        found = group[name]
        if isinstance(found, self._h5py.Dataset) and (found.is_virtual or found.external):
            raise ValueError(f"it must hold {name!r} itself, got a reference to another file.")
        return found

    def _names(self, file: Any) -> tuple[str, ...] | None:
        if "var" not in file:
            return None
        var = self._own(file, "var")
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
        with self._opened() as file:
            with _reading("it is no .h5ad file"):
                parts = self._parts(file)
            for start in range(0, self.n_rows, step):
                with _reading("X is damaged"):
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
        rows = sp.csr_array((_floats(data[first:last]), where, ends - first), shape=(n, d))
        rows.sum_duplicates()
        return rows


def _floats(values: np.ndarray) -> np.ndarray:
    """Values in single precision if they are, in double precision otherwise."""
    return values.astype(np.float32 if values.dtype == np.float32 else np.float64, copy=False)
