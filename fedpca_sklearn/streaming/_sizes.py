"""Directions that `StreamingPCA` keeps, rows that it takes at once, and the memory of both."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np

from .._kernels.sizes import (
    FEW_ROWS,
    MAX_EXACT_DIMENSION,
    SMALL_DIMENSION,
    auto_block_size,
    block_size,
    block_slices,
    bytes_of_passes,
    exact_dimension,
    kept_directions,
    peak_bytes,
    rank_for_fraction,
    slices_of,
)
from .._kernels.threads import usable_threads
from .._validation.checks import number_or_none

# Entries of the rows in a buffer: 2 MB of float64, or a square where a square is kept anyway.
_BUFFERED_ENTRIES = 2**18
# The same where a number of directions is cut: more rows make neither a block nor a read cheaper.
_ENTRIES_OF_CUT = 2**16
# The same where rows are adjusted: 32 MB.
_ENTRIES_OF_ADJUSTED = 2**22
# Rows for which the work of a block is hardly more than for one, and from which on nothing is
# gained by more of them.
ROWS_AT_LEAST, _MOST_ROWS = 64, 1024


@lru_cache(maxsize=512, typed=True)
def directions_kept(
    n_components: Any, oversampling: Any, n_confounders: int, n_features: int, rank: int | None
) -> tuple[int | None, Any]:
    """Bound on the directions kept after a block, and the function that chooses fewer.

    ``n_confounders`` confounders are kept whole; ``rank`` is that of a rule, or None.
    """
    beyond = None if oversampling == "auto" else int(oversampling)
    if rank is not None:  # one more than the rank, which may grow
        return kept_directions(min(rank + 1, n_features), n_features, beyond), None
    n_certain = number_or_none(n_components)
    if n_certain is None:
        return None, None
    if not isinstance(n_certain, float):
        n_certain += n_confounders
        if beyond is None and n_features <= exact_dimension(n_certain):
            return n_features, None
        return kept_directions(n_certain, n_features, beyond), None
    if beyond is None and n_features <= SMALL_DIMENSION:
        return n_features, None
    return None, partial(_kept_of_share, n_features, n_certain, beyond)


def _kept_of_share(
    n_features: int, fraction: float, beyond: int | None, s: np.ndarray, scatter: float
) -> int:
    return kept_directions(rank_for_fraction(s, scatter, fraction), n_features, beyond)


def start_rank(pca: Any) -> int | None:
    """Rank to start from, with a rule that changes it; None without one."""
    if pca.rank_rule is None:
        return None
    if isinstance(pca.n_components, float | str):
        raise ValueError(
            f"n_components={pca.n_components!r} must be an integer or None with a rank_rule."
        )
    return 1 if pca.n_components is None else int(pca.n_components)


class Sizes:
    """Sizes that depend on the parameters of a `StreamingPCA` and the number of features only.

    Parameters
    ----------
    pca : StreamingPCA
    n_features : int

    Attributes
    ----------
    max_rank, choose_rank : int or None, callable or None
        Bound on the directions kept after a block, and the function that chooses fewer.
    keeps_all : bool
        Whether all directions are kept, so that rows add up to a scatter matrix.
    in_equal_blocks : bool
        Whether all blocks but the last one of a batch have the same number of rows.
    """

    def __init__(self, pca: Any, n_features: int):
        n_confounders = 0 if pca.partial_out is None else int(np.size(pca.partial_out))
        self._pca, self._d = pca, n_features
        self._asked = pca.n_components, pca.oversampling, n_confounders, n_features
        self.max_rank, self.choose_rank = directions_kept(*self._asked, None)
        few = n_features <= MAX_EXACT_DIMENSION and self.choose_rank is None
        self.keeps_all = few and self.max_rank in (None, n_features)
        by_blocks = pca.forgetting == "blocks" and pca.forgetting_factor < 1
        self.in_equal_blocks = pca.block_size != "auto" or pca.rank_rule is not None or by_blocks

    def kept(self, rank: int | None) -> tuple[int | None, Any]:
        """``max_rank`` and ``choose_rank`` at the rank of a rule; None without one."""
        return directions_kept(*self._asked, rank)

    def block(self, sparse: bool = False) -> int:
        """Rows of a block, at most."""
        pca, d, rank = self._pca, self._d, start_rank(self._pca)
        if pca.block_size != "auto":
            return int(pca.block_size)
        max_rank, _ = self.kept(rank)
        if self.in_equal_blocks:  # once per block, so that blocks are small
            return auto_block_size(max_rank, d, sparse and rank is None)
        return block_size(max_rank, d, sparse, pca.partial_out is not None)

    def slices(self, n: int, sparse: bool, device: bool = False) -> list[slice]:
        """Slices of n rows, each a block."""
        if self.in_equal_blocks:
            return list(slices_of(n, self.block(sparse)))
        passes = self._pca.svd_solver == "auto"
        by_qr = self._pca.partial_out is not None  # of which nothing is to be cut
        return block_slices(n, self._d, self.max_rank, sparse, passes, device, by_qr)

    def buffer(self) -> int:
        """Rows that come a few at a time and are taken as one batch."""
        pca, d, least, entries = self._pca, self._d, ROWS_AT_LEAST, _BUFFERED_ENTRIES
        if not self.keeps_all:
            entries = entries if self.choose_rank else _ENTRIES_OF_CUT
        elif pca.scale or pca.partial_out is not None:  # may need an eigenproblem for each batch
            least = max(d, min(4 * d, _ENTRIES_OF_ADJUSTED // d))
        else:
            least = d
        return min(self.block(), max(min(_MOST_ROWS, entries // d), least))

    def few(self, room: int, sparse: bool = False) -> int:
        """Rows of a call from which on none goes to the buffer, which has ``room`` for some."""
        if self.keeps_all:
            return room
        most = ROWS_AT_LEAST if sparse else max(_BUFFERED_ENTRIES // self._d, 2)
        return min(room, ROWS_AT_LEAST, most)


def memory_bytes(self: Any, n_features: int, *, dtype: Any = np.float64) -> int:
    """Predict the peak memory of a fit on dense rows; the rows themselves are not counted.

    It is that of many rows, which may be shared by the threads of BLAS: some hundred take less.

    Parameters
    ----------
    n_features : int
        Number of columns of the rows.
    dtype : dtype, default=float64
        Of the rows.

    Returns
    -------
    n_bytes : int
        Two bases of k directions, one stack or a chunk of it, and small matrices; where all
        directions are kept, three d x d matrices, of at most 32 MB each, and in a stream of
        several blocks the basis before them as well. If fewer than d / 4 components are asked
        of more than 256 features, the first block takes two and leaves one, which is what is
        stated; the other directions, which the next block or a look at ``subspace_`` needs,
        take four, and a call with fewer rows than features up to five. A stack has up to 512
        new rows, or ``block_size`` of them. Rows of up to 2^20 entries, of which very few
        components are asked, are copied. Passes over more rows than that in one call take a
        sample of up to 16 MB and nine bases of .75 k vectors instead (or 1.2 ``n_components``,
        or 12, if that is more), two bases for the k directions before, and for each thread
        that BLAS may use now two of as many vectors and 2 MB. Up to 1,024 features each of
        these threads has two d x d matrices and a chunk of 1,024 rows, or of 4,096 in float32,
        but all have at most 128 MB of matrices. But for those four or five, a fit takes at most
        1.05 times this, the work space of LAPACK included, which not all releases of numpy and
        scipy show to tracemalloc.
        Only for an ``n_components`` that is a number (otherwise k depends on the data) or where
        all directions are kept. If ``svd_solver="auto"`` has to fall back to QR, the peak is
        that of ``svd_solver="qr"``.
        With ``scale`` two copies of a block come on top, with ``partial_out`` three, each of at
        most all rows of a call in float64.
        Not counted are rows that wait, of calls of `partial_fit` or batches with few rows: two
        copies of them, and of the rows of the call after which they are taken. As many wait as
        2 MB of float64 hold, at most 1,024, but at least ``n_features``, or with ``scale`` or
        ``partial_out`` four times that or as many as 32 MB hold, if these are fewer. Where a number
        of directions is cut as many wait as half a MB holds, but at least 64. Never more than
        ``block_size`` wait. Sparse batches of an iterable wait for 2^18 stored entries, 3 MB.
    """
    d = n_features
    sizes, rank = Sizes(self, d), start_rank(self)
    k, choose_rank = sizes.kept(rank)
    if k is None:
        if choose_rank is not None or d > exact_dimension(None):
            raise ValueError(
                f"n_components={self.n_components!r} must be an integer: the number of "
                "directions kept depends on the data."
            )
        k = d
    rows = [sizes.block()]
    if (
        not sizes.in_equal_blocks and k < d
    ):  # a stack of few rows takes more than a scatter matrix may
        rows.append(max(min(FEW_ROWS, d - k - 2), 1))
    itemsize = np.dtype(dtype).itemsize
    past = self.block_size != "auto"  # else all rows are one block where k = d
    asked = number_or_none(self.n_components)
    n_certain = k if asked is None or rank is not None else int(asked)
    options = (d, itemsize, self.center, self.svd_solver, past, n_certain)
    n_threads = usable_threads()
    peak = max(peak_bytes(k, b, *options, n_threads) for b in rows)
    if self.svd_solver != "auto" or sizes.in_equal_blocks:
        return peak
    return max(peak, bytes_of_passes(k, n_certain, d, itemsize, n_threads))
