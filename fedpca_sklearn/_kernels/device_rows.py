"""Rows on a device that numpy cannot read: their products are made there, sums of them come home.

What is of the size of a summary, its d x k directions and the small eigenproblems, is numpy's. Only
functions of the array API standard are called here; whatever is added up over rows is added up in
float64, where the device has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from .sizes import rows_within, slices_of

# An `ArrayNamespace` of `_validation.arrays`: ``array`` and ``numpy`` go to and fro.
AnyNamespace: TypeAlias = Any
# Entries that are worked on at once: 256 MB of float64.
_ENTRIES_AT_ONCE = 2**25
# Rows whose products are added up in float32.
_ROWS_OF_FLOAT32 = 2048


class DeviceRows:
    """Rows in an array on a device, with what numpy's rows have as well.

    Parameters
    ----------
    array : array of shape (n, d)
        Of real floating numbers.
    namespace : Place
        Its library and its device.
    """

    ndim = 2

    def __init__(self, array: Any, namespace: AnyNamespace):
        self.array, self.namespace = array, namespace
        self.shape: tuple[int, int] = (int(array.shape[0]), int(array.shape[1]))
        self.dtype = np.dtype(str(array.dtype).rpartition(".")[2])
        self.size = self.shape[0] * self.shape[1]

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, rows: Any) -> DeviceRows:
        """Rows of a slice, of positions, or of a mask."""
        if not isinstance(rows, slice):
            rows = np.asarray(rows)
            positions = np.flatnonzero(rows) if rows.dtype == bool else rows
            there = self.namespace.array(positions.astype(np.int64))
            return DeviceRows(self.namespace.xp.take(self.array, there, axis=0), self.namespace)
        return DeviceRows(self.array[slice(*rows.indices(len(self))), :], self.namespace)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        """For code that knows numpy's rows alone: a copy at home."""
        return self.in_numpy().astype(dtype or self.dtype, copy=False)

    def astype(self, dtype: Any, copy: bool = True) -> DeviceRows:
        """The same rows in another precision; never written to, so not copied in the same one."""
        if self.dtype == dtype:
            return self
        return DeviceRows(self._cast(self.array, np.dtype(dtype)), self.namespace)

    def in_numpy(self) -> np.ndarray:
        """A copy in the memory of the host."""
        return self.namespace.numpy(self.array)

    def __truediv__(self, row: np.ndarray) -> DeviceRows:
        return DeviceRows(self.array / self.namespace.array(row), self.namespace)

    def is_finite(self) -> bool:
        """Whether all entries are."""
        xp = self.namespace.xp
        return all(bool(xp.all(xp.isfinite(self.array[at, :]))) for at in self._slices())

    def _in_numpy(self) -> np.ndarray:
        return self.in_numpy()

    def _shown_in(self, namespace: AnyNamespace) -> Any:
        return self.array

    # ---------------------------------------------------------------- sums over rows

    def about(
        self, centre: np.ndarray, dtype: Any, root_w: np.ndarray | None = None
    ) -> Iterator[tuple[Any, Any]]:
        """Yield rows less a vector, times roots of weights, and these roots or None.

        In arrays of shape (q, m, d): what q groups of m rows give is to be added up in float64.
        """
        d, dtype, reshape = self.shape[1], np.dtype(dtype), self.namespace.xp.reshape
        vector = self.namespace.array(centre.astype(dtype)) if centre.any() else None
        weights = None if root_w is None else self.namespace.array(root_w.astype(dtype))
        for at in self._slices():
            for part, shape in _groups(at, d, dtype):
                Z, w = self._cast(self.array[part, :], dtype), None
                Z = Z if vector is None else Z - vector
                if weights is not None:
                    w = weights[part][:, None]
                    Z, w = Z * w, reshape(w, (*shape[:2], 1))
                yield reshape(Z, shape), w

    def added_up(self, term: Callable[[Any, Any], Any], *args: Any) -> np.ndarray:
        """Sum over the rows of what a function makes of groups of them, in float64.

        Parameters
        ----------
        term : callable
            ``term(Z, w)`` for what `about` yields returns an array with an entry for each group.
        *args
            Of `about`.
        """
        xp, total = self.namespace.xp, None
        for Z, w in self.about(*args):
            part = xp.sum(term(Z, w), axis=0, dtype=self.namespace.widest)
            total = part if total is None else total + part
        return self.namespace.numpy(total).astype(np.float64, copy=False)

    def _slices(self) -> Iterator[slice]:
        n, d = self.shape
        least = _ROWS_OF_FLOAT32
        return slices_of(n, rows_within(d, _ENTRIES_AT_ONCE, least) // least * least)

    def _cast(self, array: Any, dtype: np.dtype) -> Any:
        xp, namespace = self.namespace.xp, self.namespace
        there = namespace.widest if dtype == np.float64 else getattr(xp, dtype.name)
        return xp.astype(array, there, copy=False)


def in_memory(rows: Any) -> Any:
    """Rows as numpy's kernels take them: those of a device come home, others are as they are."""
    return rows.in_numpy() if isinstance(rows, DeviceRows) else rows


def _groups(at: slice, d: int, dtype: np.dtype) -> Iterator[tuple[slice, tuple[int, int, int]]]:
    """Slices of some rows and the shape in which they are groups, all of one number of rows."""
    m = at.stop - at.start
    if dtype != np.float32 or m <= _ROWS_OF_FLOAT32:
        yield at, (1, m, d)
        return
    q, rest = divmod(m, _ROWS_OF_FLOAT32)
    whole = slice(at.start, at.stop - rest)
    yield whole, (q, _ROWS_OF_FLOAT32, d)
    if rest:
        yield slice(whole.stop, at.stop), (1, rest, d)


# -------------------------------------------------------------------- products of rows


def scatter_and_sums(
    Y: DeviceRows, root_w: np.ndarray | None, centre: np.ndarray, dtype: Any
) -> tuple[np.ndarray, np.ndarray]:
    """``Z^T Z`` and the weighted sum of ``Y - centre``, whose rows times ``root_w`` are Z."""
    d, xp = Y.shape[1], Y.namespace.xp

    def both(Z: Any, w: Any) -> Any:
        sums = xp.sum(Z if w is None else Z * w, axis=1, keepdims=True)
        return xp.concat([xp.matrix_transpose(Z) @ Z, sums], axis=1)

    found = Y.added_up(both, centre, dtype, root_w)
    return np.asfortranarray(found[:d]), found[d]


def times_scatter(
    Y: DeviceRows, Q: np.ndarray, centre: np.ndarray, dtype: Any, root_w: np.ndarray | None = None
) -> np.ndarray:
    """``Z^T Z Q`` of rows Z about a point, times the roots of their weights."""
    xp, B = Y.namespace.xp, Y.namespace.array(Q.astype(dtype))
    return Y.added_up(lambda Z, _: xp.matrix_transpose(Z) @ (Z @ B), centre, dtype, root_w)


def sums_and_squares(
    Y: DeviceRows, centre: np.ndarray, dtype: Any, root_w: np.ndarray | None = None
) -> np.ndarray:
    """Weighted sum of ``Y - centre``, and that of its squares, of each column."""
    xp = Y.namespace.xp

    def both(Z: Any, w: Any) -> Any:
        sums = xp.sum(Z if w is None else Z * w, axis=1, dtype=Y.namespace.widest)
        return xp.stack([sums, xp.sum(Z * Z, axis=1, dtype=Y.namespace.widest)], axis=1)

    return Y.added_up(both, centre, dtype, root_w)


def coordinates(
    X: DeviceRows,
    V: np.ndarray,
    mean: np.ndarray,
    squared_norms: np.ndarray | None,
    scale: np.ndarray | None,
) -> DeviceRows:
    """``(X - mean) / scale @ V^T``, which stays there; squared norms of the same rows."""
    xp, namespace = X.namespace.xp, X.namespace
    dtype = np.result_type(X, V)
    Vt = namespace.array(np.ascontiguousarray(V.T, dtype=dtype))
    unit = None if scale is None else namespace.array(scale.astype(dtype))
    parts, at = [], 0
    for Z, _ in X.about(mean, dtype):
        Z = Z if unit is None else Z / unit
        parts.append(xp.reshape(Z @ Vt, (-1, V.shape[0])))
        if squared_norms is not None:
            found = namespace.numpy(
                xp.reshape(xp.sum(Z * Z, axis=2, dtype=namespace.widest), (-1,))
            )
            squared_norms[at : at + len(found)] = found
        at += parts[-1].shape[0]
    return DeviceRows(xp.concat(parts, axis=0), namespace)


def rows_of_coordinates(Z: DeviceRows, V: np.ndarray, mean: np.ndarray) -> DeviceRows:
    """``Z V + mean``, which stays there."""
    namespace, dtype = Z.namespace, np.result_type(Z, V)
    product = Z.astype(dtype).array @ namespace.array(V.astype(dtype))
    return DeviceRows(product + namespace.array(mean.astype(dtype)), namespace)


def r_factor_about(
    X: DeviceRows, centre: np.ndarray, rest: np.ndarray, root_w: np.ndarray | None, n_rows: int
) -> np.ndarray:
    """R factor of rows about ``centre + rest``, some rows at a time."""
    xp, namespace, R = X.namespace.xp, X.namespace, None
    beyond = namespace.array(rest)
    for at in slices_of(len(X), n_rows):
        w = None if root_w is None else root_w[at]
        for Z, roots in X[at].about(centre, np.float64, w):
            Z = Z - beyond if roots is None else Z - beyond * roots
            Z = xp.reshape(Z, (-1, X.shape[1]))
            R = xp.linalg.qr(Z if R is None else xp.concat([R, Z], axis=0), mode="reduced").R
    return np.asfortranarray(namespace.numpy(R))


class DeviceStack:
    """The stack ``[V; Z; correction]`` of a block on the device, for a Gram matrix and a rotation.

    Parameters
    ----------
    V : ndarray of shape (k, d)
        Directions of the past.
    Y : DeviceRows
    centre, rest : ndarray of shape (d,)
        The mean in two parts, which are subtracted one after the other.
    root_w : ndarray of shape (m,) or None
    correction : ndarray of shape (d,) or None
    dtype : dtype
    """

    def __init__(self, V, Y, centre, rest, root_w, correction, dtype):
        namespace = Y.namespace
        self.namespace, xp = namespace, namespace.xp
        beyond, new = namespace.array(rest.astype(dtype)), []
        for Z, roots in Y.about(centre, dtype, root_w):
            Z = Z - beyond if roots is None else Z - beyond * roots
            new.append(xp.reshape(Z, (-1, Y.shape[1])))
        if correction is not None:
            new.append(namespace.array(correction[None].astype(dtype)))
        self.k, self.old = len(V), namespace.array(V.astype(dtype))
        self.new = xp.concat(new, axis=0)

    def squares(self) -> np.ndarray:
        """Sum of squares in each column of what is new."""
        xp, new = self.namespace.xp, self.new
        return self.namespace.numpy(xp.sum(new * new, axis=0, dtype=self.namespace.widest))

    def gram(self) -> tuple[np.ndarray, np.ndarray]:
        """Products of the new rows with each other, and with those of the past."""
        new = self.namespace.numpy(self.new @ self.new.T)
        return new, self.namespace.numpy(self.new @ self.old.T)

    def turned(self, W: np.ndarray) -> np.ndarray:
        """``W M`` for the rotation of all rows of the stack."""
        old, new = (self.namespace.array(part.copy()) for part in (W[:, : self.k], W[:, self.k :]))
        return self.namespace.numpy(old @ self.old + new @ self.new)
