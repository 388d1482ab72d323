"""Directions that `StreamingPCA` keeps, and rows that it takes at once."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from .._base.batches import is_on_disk
from .._base.sources import is_stream
from .._dask import is_dask
from .._kernels.sizes import (
    MAX_EXACT_DIMENSION,
    SMALL_DIMENSION,
    auto_block_size,
    block_size,
    block_slices,
    exact_dimension,
    kept_directions,
    rank_for_fraction,
    rows_of_update,
    slices_of,
)
from .._validation.checks import is_integer, number_or_none

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
            if max_rank in (None, d):
                asked = pca.n_components if rank is None else rank
                return rows_of_update(int(asked) if is_integer(asked) else None)
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


def is_few(pca: Any, X: Any) -> bool:
    """Whether something is so few rows in memory that they go to a buffer."""
    if sp.issparse(X):
        return X.ndim == 2 and all(X.shape) and X.shape[0] < _few(pca, X.shape[1], sparse=True)
    if not hasattr(X, "__len__"):
        return False
    if is_stream(X) or is_dask(X) or is_on_disk(X):
        return False
    shape = getattr(X, "shape", None)
    if shape is None or len(shape) != 2:
        return shape != () and len(X) == 1
    return shape[1] > 0 and 0 < len(X) < _few(pca, shape[1])


def _few(pca: Any, d: int, sparse: bool = False) -> int:
    """Rows of a call from which on none goes to a buffer."""
    sizes = Sizes(pca, d)
    return sizes.few(sizes.buffer(), sparse)


def in_buffer(X: Any) -> Any:
    """Few sparse rows as they wait: of few columns in a dense copy, whose products cost less."""
    return X.toarray() if X.shape[1] <= SMALL_DIMENSION else sp.csr_array(X)
