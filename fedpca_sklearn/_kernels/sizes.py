"""Directions kept, rows of a block, slices, memory; one scatter matrix or updates, by cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain

import numpy as np

# Entries of a temporary array: 2 MB of float64, which stay in the cache of most cores.
ENTRIES_AT_ONCE = 2**18

# Up to this many features all directions are kept.
SMALL_DIMENSION = 256

# Up to this many features a stream may keep all directions: a d x d matrix of 32 MB.
MAX_EXACT_DIMENSION = 2048

# Sparse rows of which only the scatter matrix is formed; they are in memory anyway.
_SPARSE_ROWS = 2**20

# Up to this many features a stream keeps all directions, however few components are asked for.
_EXACT_IN_ANY_CASE = 500

# Entries of a block of which only the scatter matrix is formed. It is not copied; read from disk,
# it takes 128 MB, or 10 d rows (320 MB at 2,000 features).
_SCATTER_ENTRIES = 2**24

# Share of stored entries from which sparse rows have their scatter matrix formed as dense ones.
DENSE_SHARE = 0.12

# Columns up to which a chunk of rows of a scatter matrix has so many entries, 512 kB of float64;
# and the rows of one of more columns. Powers of two take a tenth longer in some kernels of BLAS.
_NARROW = 128
_CHUNK_ENTRIES = 2**16
_ROWS_OF_CHUNK = 192
# Rows of a chunk in float32.
_ROWS_OF_FLOAT32 = 4096

# Columns up to which threads of Python share the rows of a scatter matrix. Those of BLAS gain as
# much beyond, and little or nothing below.
COLUMNS_OF_THREADS = 1024
# Rows of a chunk of a thread, least rows of a thread, and entries of the matrices of all threads.
_ROWS_OF_THREAD, _LEAST_ROWS_OF_THREAD, _ENTRIES_OF_THREADS = 1024, 512, 2**24

# Rows from which passes over many rows start, and entries of such a sample: 16 MB of float32.
_LEAST_SAMPLE, _SAMPLE = 256, 512
_ENTRIES_OF_SAMPLE = 2**22

# Rows of a call that are one block, however many features they have.
FEW_ROWS = 512

# Order up to which all eigenpairs of a matrix take hardly longer than a few.
SMALL_EIGENPROBLEM = 256

# Rows whose products with few vectors are added up in float32.
ROWS_OF_GROUP = 64


# Up to this many rows, or columns, of a stack its leading directions are found all at once.
EXACT_ORDER = 1024


def auto_oversampling(n_components: int) -> int:
    """Directions kept beyond the k requested ones: 1.25 k, at least 10."""
    return max(10, -(-5 * n_components // 4))


def exact_dimension(n_components: int | None) -> int:
    """Features up to which a stream keeps all directions, which makes it exact.

    A row costs d^2 operations in the symmetric product of a scatter matrix. An update of k
    directions, k = 2.25 n_components, costs 9 k d at half the speed, and a small eigenproblem for
    every 1.75 k rows: as much at about d = 20 k. Up to 500 features batches of 1,000 rows take
    .7 to .9 of the time of updates, and those of 30 rows .1 to .6. None: all directions are wanted.
    """
    if n_components is None:
        return MAX_EXACT_DIMENSION
    return min(max(40 * n_components + 200, _EXACT_IN_ANY_CASE), MAX_EXACT_DIMENSION)


def auto_block_size(max_rank: int | None, n_features: int, sparse: bool) -> int:
    """Rows updated at once, near the flop optimum of the route that such a block takes.

    Dense: Gram and rotation cost d (4 k + b + 2 k^2 / b) a row, least at b = 1.4 k and flat to
    1.8 k. Where all directions are kept, one d x d eigenproblem serves as many rows as there are.
    Sparse: products cost the same however the rows are cut, so blocks are as large as the Krylov
    basis allows.
    """
    all_kept = max_rank == n_features or (max_rank is None and n_features <= MAX_EXACT_DIMENSION)
    if all_kept:
        return _SPARSE_ROWS if sparse else rows_of_scatter_block(n_features)
    small = n_features <= SMALL_DIMENSION
    if sparse and max_rank is not None and (small or 4 * max_rank < n_features):
        return 2**15
    return rows_of_update(max_rank)


def rows_of_update(max_rank: int | None) -> int:
    """Rows of a block that updates so many directions."""
    return 512 if max_rank is None else max(64, 7 * max_rank // 4)


def rows_of_scatter_block(n_features: int) -> int:
    """Rows of which one scatter matrix is formed."""
    return rows_within(n_features, _SCATTER_ENTRIES, least=10 * n_features)


def rows_of_passes(n_rows: float, n_features: int, max_rank: int) -> int:
    """Rows of the sample from which passes over many rows start: a quarter of few."""
    most = min(n_rows / 4, _ENTRIES_OF_SAMPLE / n_features, _SAMPLE)
    return max(2 * max_rank, int(max(most, _LEAST_SAMPLE)))


def step_of_passes(n_rows: int, n_features: int, max_rank: int) -> int:
    """One in so many rows is in that sample, which is not larger than that of any more rows."""
    most = rows_of_passes(math.inf, n_features, max_rank)
    return max(n_rows // rows_of_passes(n_rows, n_features, max_rank), -(-n_rows // most))


def rows_of_product(n_features: int, itemsize: int) -> int:
    """Rows that a pass multiplies twice, so that they stay in cache."""
    return rows_within(n_features, ENTRIES_AT_ONCE * 8 // itemsize, least=128)


def vectors_of_passes(max_rank: int, n_certain: int) -> int:
    """Vectors that a pass multiplies, a multiple of four.

    The space has twice as many, 1.5 for each direction kept. Without directions in reserve that
    would be too few for those wanted: they have 2.4 each, and 24 at least.
    """
    return 4 * -(-max(15 * max_rank, 24 * n_certain, 240) // 80)


def passes_fit(n: float, d: int, max_rank: int) -> bool:
    """Whether the sample and the vectors are a small share of the rows."""
    rows = rows_of_passes(n, d, max_rank)
    many = n > FEW_ROWS and n >= 2 * rows
    return many and d >= 8 * max_rank and rows * d <= _ENTRIES_OF_SAMPLE


def rows_of_scatter(n_features: int, itemsize: int, alone: bool = True) -> int:
    """Rows whose product is added to a scatter matrix at once.

    They stay in cache, unless several threads add whole products to their own matrices. Products of
    float32 are added up in float64 after some more of them.
    """
    narrow = n_features <= _NARROW
    of_chunk = _ROWS_OF_CHUNK if alone else _ROWS_OF_THREAD
    rows = max(1, _CHUNK_ENTRIES // max(n_features, 1)) if narrow else of_chunk
    return rows if itemsize == 8 else max(rows, _ROWS_OF_FLOAT32)


def threads_of_scatter(n_rows: float, n_features: int, usable: int) -> int:
    """Threads of Python that share the rows of a scatter matrix, each with two of its own."""
    if n_features > COLUMNS_OF_THREADS:
        return 1
    most = _ENTRIES_OF_THREADS // (2 * n_features**2)
    return int(max(min(usable, most, n_rows // _LEAST_ROWS_OF_THREAD), 1))


def rows_of_qr(n_features: int, k: int) -> int:
    """Rows that Householder's QR takes at once beside a d x d triangle, k of them from before."""
    return max(64, 2 * n_features, k + 2)


def columns_at_once(n_rows: int, itemsize: int) -> int:
    """Columns of a dense stack of rows that are worked on at once, so that they stay in cache."""
    return rows_within(n_rows, ENTRIES_AT_ONCE * 8 // itemsize, least=256)


def few_of_all(k: int, order: int) -> bool:
    """Whether k eigenpairs take much less time than all."""
    return order > SMALL_EIGENPROBLEM and k < order // 4


def very_few_of_all(k: int, order: int) -> bool:
    """Whether a Krylov space of one vector takes less time for k eigenpairs than LAPACK."""
    return order > SMALL_EIGENPROBLEM and 15 * k <= order


def kept_directions(n_components: int, n_features: int, oversampling: int | None = None) -> int:
    """Directions kept internally: all while d is small, else with oversampling."""
    if oversampling is None:
        if n_features <= SMALL_DIMENSION:
            return n_features
        oversampling = auto_oversampling(n_components)
    return min(n_components + oversampling, n_features)


def rank_for_fraction(singular_values: np.ndarray, scatter: float, fraction: float) -> int:
    """Smallest number of directions that explain more than a fraction of the scatter."""
    largest = singular_values.max(initial=0.0) or 1.0  # squares of tiny values vanish
    explained = np.cumsum((singular_values / largest) ** 2)
    n_certain = fraction * (scatter / largest / largest)
    return min(int(np.searchsorted(explained, n_certain, side="right")) + 1, len(singular_values))


def rows_within(n_columns: int, entries: int = ENTRIES_AT_ONCE, least: int = 1) -> int:
    """Return how many rows have at most so many entries, though not fewer than ``least``."""
    return max(least, entries // max(n_columns, 1))


def slices_of(n: int, size: int) -> Iterator[slice]:
    """Consecutive slices of n things, ``size`` each; the last one may be shorter."""
    starts = range(0, n, int(size))  # numpy's narrow integers overflow
    return map(slice, starts, chain(starts[1:], [n]))


def row_slices(
    n_rows: int, n_columns: int, entries: int = ENTRIES_AT_ONCE, least: int = 1
) -> Iterator[slice]:
    """Consecutive slices of rows, each as large as `rows_within` says."""
    starts = range(0, n_rows, max(least, entries // max(n_columns, 1)))
    return map(slice, starts, chain(starts[1:], [n_rows]))


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
) -> list[slice]:
    """Slices of n rows into blocks; the rest of the largest ones goes by updates if it is small.

    Few rows are one block, so that nothing is cut before the end of a call: one eigenproblem of
    their number takes at most about twice the time of updates with a few rows each.

    ``passes``: whether they may go over blocks; then all rows are one, as none is copied.
    ``device``: rows on one have a single scatter matrix where they have any, as its eigenproblem is
    solved at home. ``by_qr``: as in `scatter_pays`.
    """
    if n <= FEW_ROWS:
        return [slice(0, n)]
    one = max_rank in (None, n_features) or scatter_pays(n, n_features, max_rank, by_qr)
    if device and one and n_features <= min(n, MAX_EXACT_DIMENSION):
        return [slice(0, n)]
    passes = passes and not sparse and passes_pay(n, n_features, max_rank) and not (one and by_qr)
    usual = auto_block_size(max_rank, n_features, sparse)
    size = n if passes else block_size(max_rank, n_features, sparse, by_qr)
    if not sparse and size == rows_of_scatter_block(n_features):
        size *= _AT_ONCE  # they are in memory, and each block has an eigenproblem
    blocks: list[slice] = []
    for at in slices_of(n, size):
        m = at.stop - at.start
        large = passes or (not sparse and scatter_pays(m, n_features, max_rank, by_qr))
        starts = range(at.start, at.stop, m if large else usual)
        blocks += map(slice, starts, [*starts[1:], at.stop])
    return blocks
