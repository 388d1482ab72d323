"""Rows of AnnData's .h5ad files: the matrix X, and the names of the variables."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import scipy.sparse as sp

from ._row_files import Limits, RowFile, needed

# What h5py raises where a file holds other things than it should.
_ERRORS = AttributeError, KeyError, OSError, RuntimeError, TypeError
# Bytes of a name, padded, that are read.
_NAME = 2000
# A process of its own reads attributes and names before they are read here: HDF5 never returns from
# some damaged heaps of texts, and nothing in the same process could end it. A few bytes can also
# stand for many long names, for which it gets 4 GiB of address space where that can be limited.
_SECONDS, _NAMES_AT_ONCE = 30, 1024
_OPENING = """
import sys, h5py
try:
    import resource
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    soft = 2**32 if hard == resource.RLIM_INFINITY else min(hard, 2**32)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
except (ImportError, OSError, ValueError):
    pass
path, most, step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def own(group, name):
    return group[name] if isinstance(group.get(name, getlink=True), h5py.HardLink) else None

def attempt(read, *arguments):
    try:
        return read(*arguments)
    except Exception:
        return None

def attribute(item, name):
    return (item.attrs.get_id(name).shape or ()) in ((), (1,), (2,)) and item.attrs[name]

with h5py.File(path, "r") as file:
    X, var = attempt(own, file, "X"), attempt(own, file, "var")
    for item in (X, var):
        for name in attempt(list, getattr(item, "attrs", ())) or ():
            attempt(attribute, item, name)
    if isinstance(X, h5py.Group):
        for name in ("data", "indices", "indptr"):
            attempt(own, X, name)
    if isinstance(var, h5py.Group):
        var = attempt(own, var, str(attempt(attribute, var, "_index") or "_index"))
    if isinstance(var, h5py.Dataset) and len(var.shape) == 1 and len(var) <= most:
        try:
            for start in range(0, len(var), step):
                var[start : start + step]
        except Exception as error:
            print(type(error).__name__, str(error)[:200])
            sys.exit(3)
"""


@contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except _ERRORS as error:
        raise ValueError(f"{what}: {error}") from error


class H5adRows(RowFile):
    """Cells of a dense X, or of one that is stored as CSR; nothing else of the file is read."""

    def __init__(self, path: str, limits: Limits):
        super().__init__(path, limits)
        self._h5py = needed("h5py", "h5ad")
        _check_opening(path, limits)
        with self._opened() as file, _reading("it is no .h5ad file"):
            X = self._own(file, "X")
            self._sparse = not isinstance(X, self._h5py.Dataset)
            shape = self._shape_of_sparse(X) if self._sparse else X.shape
            parts = self._parts(file)
            if len(shape) != 2 or any(part.dtype.kind not in "biuf" for part in parts):
                raise ValueError(f"X must be a 2-D array of numbers, got shape {shape}.")
            self.n_rows, self.n_columns = map(int, shape)
            self.check_columns()
            self.check_bytes(self._bytes_of_sparse(parts) if self._sparse else 8 * X.size)
            for part in parts:
                self._check_stored(part)
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

    def _shape_of_sparse(self, X: Any) -> tuple[int, ...]:
        kind = _attribute(X, "encoding-type", "h5sparse_format")
        if not isinstance(kind, str) or kind not in ("csr_matrix", "csr"):
            raise ValueError(f"X must be dense or stored by rows (CSR), got {str(kind)[:40]!r}.")
        shape = np.asarray(_attribute(X, "shape", "h5sparse_shape"))
        if shape.dtype.kind not in "iu" or shape.shape != (2,) or np.any(shape < 0):
            raise ValueError(
                "the shape of X must be two integers of at least 0, got "
                f"{str(shape.tolist())[:40]}."
            )
        return tuple(map(int, shape))

    def _bytes_of_sparse(self, parts: list[Any]) -> int:
        """Bytes of the entries, and four for each that is not stored."""
        data, indices, indptr = parts
        if not all(len(part.shape) == 1 for part in parts) or len(data) != len(indices):
            raise ValueError(
                "X must have an index for each of its entries, got data of shape "
                f"{data.shape} and indices of shape {indices.shape}."
            )
        if "f" in indices.dtype.kind + indptr.dtype.kind:
            raise ValueError("indices and indptr of X must be integers.")
        assert self.n_rows is not None
        if len(indptr) != self.n_rows + 1:
            raise ValueError(
                f"X announces {self.n_rows:,} rows, but indptr is of {len(indptr) - 1:,}."
            )
        return 16 * len(data) + 8 * self.n_rows + 4 * self.n_rows * self.n_columns

    def _check_stored(self, part: Any) -> None:
        """Raise for chunks that are unpacked to too much: HDF5 has a whole one in memory."""
        if part.chunks is not None:
            self.check_bytes(math.prod(part.chunks) * part.dtype.itemsize)
        stored = part.id.get_create_plist()
        filters = [stored.get_filter(i)[0] for i in range(stored.get_nfilters())]
        if len(set(filters)) < len(filters):
            raise ValueError(f"{part.name} is packed twice by the same filter.")

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
            kind = None if found is None else var.dtype["index"]
        else:
            index = str(_attribute(var, "_index") or "_index")
            found = self._own(var, index) if index in var else None
            kind = getattr(found, "dtype", None)
        if found is None:
            return None
        if len(found) != self.n_columns:
            raise ValueError(f"X has {self.n_columns} columns, but {len(found)} have names.")
        if kind is None:
            raise ValueError(f"names of columns must be texts, got {type(found).__name__}.")
        if kind.itemsize > _NAME or not (
            kind.kind in "iuSU" or self._h5py.check_string_dtype(kind)
        ):
            raise ValueError(f"names of columns must be texts, got {str(kind)[:40]}.")
        self._check_stored(var if isinstance(var, self._h5py.Dataset) else found)
        return tuple(self._texts(found))

    def _texts(self, found: Any) -> Iterator[str]:
        """The names, some at a time."""
        for start in range(0, len(found), _NAMES_AT_ONCE):
            for name in found[start : start + _NAMES_AT_ONCE]:
                text = name.decode() if isinstance(name, bytes) else str(name)
                if len(text) > _NAME:
                    raise ValueError(f"a name of a column has {len(text):,} characters.")
                yield text

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


def _check_opening(path: str, limits: Limits) -> None:
    """Raise for a file from which HDF5 never returns, or which ends the process."""
    numbers = str(limits.columns), str(_NAMES_AT_ONCE)
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _OPENING, os.path.abspath(path), *numbers],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"it is damaged: HDF5 does not open it in {_SECONDS} s.") from None
    if done.returncode == 3:
        why = done.stdout.decode(errors="replace").strip()
        raise ValueError(f"the names of its columns cannot be read: {why}.")
    if done.returncode not in (0, 1):
        raise ValueError("it is damaged: HDF5 fails to open it.")


def _attribute(item: Any, *names: str) -> Any:
    """The first of these attributes that is there; one value, or two."""
    for name in names:
        if name in item.attrs:
            if math.prod(item.attrs.get_id(name).shape or ()) > 2:
                raise ValueError(f"the attribute {name!r} must hold one value, or two.")
            return item.attrs[name]
    return None


def _floats(values: np.ndarray) -> np.ndarray:
    """Values in single precision if they are, in double precision otherwise."""
    return values.astype(np.float32 if values.dtype == np.float32 else np.float64, copy=False)
