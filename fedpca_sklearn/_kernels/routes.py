"""The choice between one scatter matrix of many rows and updates with a few of them, by cost.

Both lead to k directions. One scatter matrix is exact within the rows; the update leaves the cut
of every block behind, and takes O(d k) memory. Costs are nanoseconds on one core of an AMD EPYC
with OpenBLAS, from 20,000 x 100 to 10,000 x 2,000; only their ratios matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from .sizes import (
    FEW_ROWS,
    MAX_EXACT_DIMENSION,
    auto_block_size,
    passes_fit,
    rows_of_scatter_block,
    rows_of_update,
    slices_of,
)

# Symmetric product, for each row and pair of columns: 57 GFlop/s.
_SYRK = 0.0175
# Product with directions, for each entry and direction: 50 GFlop/s.
_GEMM = 0.04
# Gram matrix, cross products and rotation of an update, as products with so many times k vectors.
_PRODUCTS_OF_UPDATE = 7
# All eigenpairs of order m: m^3 and m^2. A few of them: m^3.
_EIGH, _EIGH_SQUARE, _EIGH_FEW = 0.1, 35.0, 0.04
# What a block costs beside its numbers.
_BLOCK = 3e5
# Rows in memory of one scatter matrix are so many times those that are read at once from a disk.
_AT_ONCE = 4
# Time of an update by Householder's QR over that by a Gram matrix.
_BY_QR = 3.0


@lru_cache(maxsize=512)
def scatter_pays(n: int, d: int, k: int | None, by_qr: bool = False) -> bool:
    """Whether one d x d scatter matrix of n dense rows costs less than updates of k directions.

    Never above the bound on its memory, 32 MB, nor where rows are no more than columns. ``by_qr``:
    whether updates need Householder's QR, as columns of which nothing is to be cut make them.
    """
    if k is None or d > min(MAX_EXACT_DIMENSION, n):
        return False
    dearer = _BY_QR if by_qr else 1.0
    return d * (n * d * _SYRK + d * d * _EIGH_FEW) < dearer * n * cost_of_update(d, k)


def passes_pay(n: int, d: int, k: int | None) -> bool:
    """Whether k directions of n dense rows come from a few passes over them.

    They take 3 k products with a row instead of 7 k, and one small eigenproblem of all rows.
    """
    return k is not None and passes_fit(n, d, k) and not scatter_pays(n, d, k)


def cost_of_update(d: int, k: int) -> float:
    """Nanoseconds that an update takes for each row."""
    b = rows_of_update(k)
    order = k + b + 1
    small = order**2 * (order * _EIGH + _EIGH_SQUARE) + _BLOCK
    return d * k * _PRODUCTS_OF_UPDATE * _GEMM + small / b


@lru_cache(maxsize=512)
def block_size(max_rank: int | None, n_features: int, sparse: bool, by_qr: bool = False) -> int:
    """Rows of the largest blocks of a stream: those of one scatter matrix where it pays at all."""
    large = rows_of_scatter_block(n_features)
    if not sparse and scatter_pays(large, n_features, max_rank, by_qr):
        return large
    return auto_block_size(max_rank, n_features, sparse)


def block_slices(
    n: int,
    n_features: int,
    max_rank: int | None,
    sparse: bool,
    passes: bool = True,
    device: bool = False,
    by_qr: bool = False,
) -> Iterator[slice]:
    """Slices of n rows into blocks; the rest of the largest ones goes by updates if it is small.

    Few rows are one block, so that nothing is cut before the end of a call: one eigenproblem of
    their number takes at most about twice the time of updates with a few rows each.

    ``passes``: whether they may go over blocks; then all rows are one, as none is copied.
    ``device``: rows on one have a single scatter matrix where they have any, as its eigenproblem is
    solved at home. ``by_qr``: as in `scatter_pays`.
    """
    if n <= FEW_ROWS:
        yield slice(0, n)
        return
    one = max_rank in (None, n_features) or scatter_pays(n, n_features, max_rank, by_qr)
    if device and one and n_features <= min(n, MAX_EXACT_DIMENSION):
        yield slice(0, n)
        return
    passes = passes and not sparse and passes_pay(n, n_features, max_rank) and not (one and by_qr)
    usual = auto_block_size(max_rank, n_features, sparse)
    size = n if passes else block_size(max_rank, n_features, sparse, by_qr)
    if not sparse and size == rows_of_scatter_block(n_features):
        size *= _AT_ONCE  # they are in memory, and each block has an eigenproblem
    for at in slices_of(n, size):
        m = at.stop - at.start
        large = passes or (not sparse and scatter_pays(m, n_features, max_rank, by_qr))
        for part in slices_of(m, m if large else usual):
            yield slice(at.start + part.start, at.start + part.stop)
