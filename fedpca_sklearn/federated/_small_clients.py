"""Local work of many clients with a few rows each, at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .._base.batches import float_dtype
from .._kernels.sizes import SMALL_DIMENSION, slices_of
from .._kernels.small_blocks import SmallBlocks, summaries_of_blocks
from .._kernels.threads import threads_for
from .._validation.checks import check_at_most_features
from ..streaming import StreamingPCA
from ..summary import Subspace
from ..summary._directions import are_alike
from ._local_fit import Site

# Entries of the rows of a client up to which a call costs more than its arithmetic.
_FEW_ENTRIES = 2**13
# Entries of all rows that are worked on at once, so that they stay in cache.
_ENTRIES_AT_ONCE = 2**17

Shards = list[tuple[Any, Any]]


def small_sites(prototype: StreamingPCA, X: np.ndarray, shards: Shards) -> dict[Any, Site]:
    """Sites of the new clients with few dense rows, as `fit_site` makes them one by one.

    Left out is a client whose directions are not certain to the digits of `StreamingPCA`, or whose
    rows are not finite: `fit_site` finds them in another way, or says what is wrong.
    """
    sites: dict[Any, Site] = {}
    d = X.shape[1]
    most, kept = _rows_and_directions(prototype, d)
    by_size: dict[int, Shards] = {}
    for label, rows in shards:
        n = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        if 1 < n <= most:
            by_size.setdefault(n, []).append((label, rows))
    for n, alike in by_size.items():
        with threads_for(_ENTRIES_AT_ONCE):
            for some in slices_of(len(alike), max(1, _ENTRIES_AT_ONCE // (n * d))):
                sites.update(_sites(prototype, X, alike[some], kept))
    return sites


def is_plain(estimator: Any, X: np.ndarray) -> bool:
    """Whether rows have no other order, weight and units for it than for ``StreamingPCA(k)``."""
    if type(estimator) is not StreamingPCA:
        return False
    d = X.shape[1]
    names = ("n_components", "oversampling", "whiten", "scale", "partial_out")
    plain = StreamingPCA(**{name: getattr(estimator, name) for name in names})
    if estimator._asks() and (d > SMALL_DIMENSION or not _are_alike(X)):
        return False
    if estimator.get_params(deep=False) != plain.get_params(deep=False):
        return False
    try:
        estimator._check_parameters()
        check_at_most_features(estimator.n_components, d)
    except (TypeError, ValueError):  # a client says so
        return False
    return True


def _are_alike(X: np.ndarray) -> bool:
    """Whether columns are of like sizes, so that those of each client need no units."""
    with np.errstate(over="ignore", invalid="ignore"):
        return are_alike(X.std(axis=0, dtype=np.float64)[None])


def _rows_and_directions(prototype: StreamingPCA, d: int) -> tuple[int, int]:
    """Rows up to which a client is small, and directions that are kept of it."""
    kept, keep = prototype._sizes.kept(d)
    if keep is not None:
        return 0, 0
    most = min(d - 1, _FEW_ENTRIES // d, prototype._sizes.block(d))
    return most, d if kept is None else kept


def _sites(
    prototype: StreamingPCA, X: np.ndarray, shards: Shards, kept: int
) -> Iterator[tuple[Any, Site]]:
    blocks = np.stack([X[rows] for _, rows in shards]).astype(float_dtype(X), copy=False)
    found = summaries_of_blocks(blocks, kept)
    for i in np.flatnonzero(found.certain).tolist():
        n = blocks.shape[1]
        summary = _summary(found, i, n)
        yield shards[i][0], Site(prototype._fitted_later(summary, n), n, summary)


def _summary(found: SmallBlocks, i: int, n: int) -> Subspace:
    V, s, mean, squares, _ = (array[i] for array in found)
    return Subspace._trusted(
        V, s, mean, float(n), float(squares.sum()), True, column_scatter=squares
    )
