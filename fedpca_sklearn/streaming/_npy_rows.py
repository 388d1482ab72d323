"""Rows of a .npy file, read slice by slice."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

__all__ = ["NpyRows"]


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
        held = os.fstat(stream.fileno()).st_size - offset
    if len(shape) != 2 or dtype.kind not in "biuf":
        raise ValueError(f"must hold a 2-D array of numbers, got shape {shape} and dtype {dtype}.")
    n, d = map(int, shape)
    if min(n, d) < 0 or n * d * dtype.itemsize > held:
        raise ValueError(
            f"announces {n} rows of {d} columns of {dtype.itemsize} bytes, but holds {held} bytes."
        )
    return (n, d), fortran, dtype, offset
