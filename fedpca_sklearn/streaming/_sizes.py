"""Directions that `StreamingPCA` keeps, rows that it takes at once, and the memory of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np

from .._kernels.routes import block_size, block_slices, rows_of_vectors
from .._kernels.sizes import (
    FEW_ROWS,
    MAX_EXACT_DIMENSION,
    SMALL_DIMENSION,
    auto_block_size,
    bytes_of_passes,
    bytes_of_vectors,
    exact_dimension,
    kept_directions,
    peak_bytes,
    rank_for_fraction,
    slices_of,
)
from .._kernels.threads import usable_threads
from .._validation.checks import number_or_none
from ._half_life import duration_of, forgetting_of


@lru_cache(maxsize=512, typed=True)
def directions_kept(
    n_components: Any, oversampling: Any, beside: int, n_features: int, rank: int | None
) -> tuple[int | None, Any]:
    """Bound on the directions kept after a block, and the function that chooses fewer.

    ``beside`` confounders are kept whole; ``rank`` is that of a rule, or None.
    """
    beyond = None if oversampling == "auto" else int(oversampling)
    if rank is not None:  # one more than the rank, which may grow
        return kept_directions(min(rank + 1, n_features), n_features, beyond), None
    wanted = number_or_none(n_components)
    if wanted is None:
        return None, None
    if not isinstance(wanted, float):
        wanted += beside
        if beyond is None and n_features <= exact_dimension(wanted):
            return n_features, None
        return kept_directions(wanted, n_features, beyond), None
    if beyond is None and n_features <= SMALL_DIMENSION:
        return n_features, None
    return None, partial(_kept_of_share, n_features, wanted, beyond)


def _kept_of_share(
    n_features: int, fraction: float, beyond: int | None, s: np.ndarray, scatter: float
) -> int:
    return kept_directions(rank_for_fraction(s, scatter, fraction), n_features, beyond)


class SizesMixin:
    """Sizes that depend on the parameters and the number of features only."""

    n_components: int | float | str | None
    oversampling: int | Literal["auto"]
    block_size: int | Literal["auto"]
    rank_rule: Any
    center: bool
    svd_solver: str
    forgetting: str
    forgetting_factor: float
    partial_out: Any
    _asks: Callable[[], bool]
    half_life: Any

    @property
    def _half_life_in_time(self) -> Any:
        """The half-life as a time; None if it is not one."""
        return duration_of(self.half_life)

    @property
    def _row_factor(self) -> float:
        """Factor on the weight of a row with each later row."""
        return forgetting_of(self) if self.forgetting == "rows" else 1.0

    def _start_rank(self) -> int:
        if isinstance(self.n_components, float | str):
            raise ValueError(
                f"n_components={self.n_components!r} must be an integer or None with a rank_rule."
            )
        return 1 if self.n_components is None else int(self.n_components)

    def _kept(self, n_features: int, rank: int | None) -> tuple[int | None, Any]:
        """Bound on the directions kept after a block, and the function that chooses fewer."""
        beside = 0 if self.partial_out is None else int(np.size(self.partial_out))
        return directions_kept(self.n_components, self.oversampling, beside, n_features, rank)

    def _block_size(self, n_features: int, sparse: bool) -> int:
        if self.block_size != "auto":
            return int(self.block_size)
        rank = None if self.rank_rule is None else self._start_rank()
        max_keep, _ = self._kept(n_features, rank)
        if rank is not None or self._blocks_forget:  # once per block, so that blocks are small
            return auto_block_size(max_keep, n_features, sparse and rank is None)
        return block_size(max_keep, n_features, sparse, self.partial_out is not None)

    @property
    def _blocks_forget(self) -> bool:
        return self.forgetting == "blocks" and self.forgetting_factor < 1

    @property
    def _by_batch(self) -> bool:
        """Whether a batch means something, so that none waits for another; "mle" may refuse it."""
        return (
            self.rank_rule is not None or self.forgetting == "blocks" or self.n_components == "mle"
        )

    def _keeps_all(self, n_features: int) -> bool:
        """Whether all directions are kept, so that each update solves an eigenproblem."""
        max_keep, keep = self._kept(n_features, None)
        return n_features <= MAX_EXACT_DIMENSION and keep is None and max_keep in (None, n_features)

    def _block_slices(
        self, n: int, n_features: int, sparse: bool, device: bool = False
    ) -> Iterator[slice]:
        """Slices of n rows, each a block."""
        if self.block_size != "auto" or self.rank_rule is not None or self._blocks_forget:
            return slices_of(n, self._block_size(n_features, sparse))
        max_keep = self._kept(n_features, None)[0]
        passes = self.svd_solver == "auto"
        by_qr = self.partial_out is not None  # of which nothing is to be cut
        return block_slices(n, n_features, max_keep, sparse, passes, device, by_qr)

    def memory_bytes(self, n_features: int, *, dtype: Any = np.float64) -> int:
        """Predict the peak memory of a fit on dense rows; the rows themselves are not counted.

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
            most all rows of a call in float64, and 32 MB at most of small batches that wait.
        """
        d = n_features
        rank = None if self.rank_rule is None else self._start_rank()
        k, keep = self._kept(d, rank)
        if k is None:
            if keep is not None or d > exact_dimension(None):
                raise ValueError(
                    f"n_components={self.n_components!r} must be an integer: the number of "
                    "directions kept depends on the data."
                )
            k = d
        sizes = [self._block_size(d, False)]
        by_block = self.block_size != "auto" or rank is not None or self._blocks_forget
        if not by_block and k < d:  # a stack of few rows takes more than a scatter matrix may
            sizes.append(max(min(FEW_ROWS, d - k - 2), 1))
        itemsize = np.dtype(dtype).itemsize
        past = self.block_size != "auto"  # else all rows are one block where k = d
        asked = number_or_none(self.n_components)
        wanted = k if asked is None or rank is not None else int(asked)
        options = (d, itemsize, self.center, self.svd_solver, past, wanted)
        n_threads = usable_threads()
        peak = max(peak_bytes(k, b, *options, n_threads) for b in sizes)
        if self.svd_solver != "auto" or by_block:
            return peak
        peak = max(peak, bytes_of_passes(k, wanted, d, itemsize, n_threads))
        n = rows_of_vectors(d, k, wanted)
        return max(peak, bytes_of_vectors(n, k, wanted, d, itemsize))
