"""Products of many rows with a few vectors.

In pieces that some kernels of BLAS need not copy: it packs both factors before it multiplies. With
a few vectors every number is multiplied a few times only, so that packing takes as long as the
product.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import numpy as np

from .sizes import ROWS_OF_GROUP, slices_of
from .threads import blas_architectures, usable_threads

Product: TypeAlias = Callable[[np.ndarray], np.ndarray]

# Kernels of OpenBLAS that multiply small matrices in place if neither is transposed, and the number
# of multiplications up to which a product is small.
_IN_PLACE = {"SkylakeX", "Cooperlake", "SapphireRapids"}
_SMALL = 10**6
# Columns of a piece; the most vectors, as with more its rows are too few; and the most columns, as
# sums of more pieces are rounded more often.
_COLUMNS, _VECTORS, _FEATURES = 200, 48, 2**15


def sums_in_groups(A: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """``A.T @ Z`` in float32 for few columns of A; those of some rows each are added in float64.

    Equal products, as of rows that repeat, are all rounded alike where they are added in float32.
    """
    whole = len(A) - len(A) % ROWS_OF_GROUP
    groups = [M[:whole].reshape(-1, ROWS_OF_GROUP, M.shape[1]) for M in (A, Z)]
    total = np.add.reduce(groups[0].swapaxes(1, 2) @ groups[1], axis=0, dtype=np.float64)
    if whole < len(A):
        total += A[whole:].T @ Z[whole:]
    return total


def product_with(vectors: np.ndarray, n_rows: int) -> Product:
    """Function that multiplies up to so many rows with the transpose of vectors, rows as well.

    In pieces where that pays, and where BLAS would not share the whole among threads.
    """
    k, d = vectors.shape
    small = n_rows * k * d <= _SMALL
    if small or k > _VECTORS or d > _FEATURES or not multiplies_in_place() or usable_threads() > 1:
        return lambda Z: Z @ vectors.T
    return in_pieces(vectors)


@cache
def multiplies_in_place() -> bool:
    """Whether BLAS multiplies small matrices without a copy."""
    return not blas_architectures().isdisjoint(_IN_PLACE)


def in_pieces(vectors: np.ndarray) -> Product:
    """The same with products that are small."""
    k, d = vectors.shape
    B = np.ascontiguousarray(vectors.T)
    width = min(_COLUMNS, d)
    n_pieces, n_rows = d // width, max(_SMALL // (width * k), 1)
    whole = n_pieces * width
    pieces = B[:whole].reshape(n_pieces, width, k)

    def product(Z: np.ndarray) -> np.ndarray:
        found = np.empty((len(Z), k), np.result_type(Z, B))
        for at in slices_of(len(Z), n_rows):
            some = Z[at]
            parts = some[:, :whole].reshape(len(some), n_pieces, width).swapaxes(0, 1) @ pieces
            np.add.reduce(parts, axis=0, out=found[at])
            if whole < d:
                found[at] += some[:, whole:] @ B[whole:]
        return found

    return product
