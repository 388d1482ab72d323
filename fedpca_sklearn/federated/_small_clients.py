"""Local work of many clients with a few rows each, at once."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import signature
from typing import Any

import numpy as np

from .._base.batches import float_dtype
from .._kernels.routes import block_size
from .._kernels.sizes import row_slices, slices_of
from .._kernels.small_blocks import summaries_of_blocks
from .._kernels.threads import threads_for
from .._validation.checks import check_at_most_features
from ..streaming import StreamingPCA
from ..summary import Subspace
from ..summary._directions import are_alike
from ._local_fit import Site, Summarised

# Entries of the rows of a client up to which a call costs more than its arithmetic.
_FEW_ENTRIES = 2**13
# Entries of all rows that are worked on at once, so that they stay in cache.
_ENTRIES_AT_ONCE = 2**17

# Parameters on which depends what a summary holds, or what is shown of it.
_OF_SUMMARIES = {"n_components", "oversampling", "whiten", "scale", "partial_out"}

Shards = list[tuple[Any, Any]]


def small_sites(clients: Summarised, X: np.ndarray, shards: Shards) -> dict[Any, Site]:
    """Sites of the new clients with few dense rows, as `fit_site` makes them one by one.

    Left out is a client whose directions are not certain to the digits of `StreamingPCA`, or whose
    rows are not finite: `fit_site` finds them in another way, or says what is wrong.
    """
    sites: dict[Any, Site] = {}
    d = X.shape[1]
    most, kept = _rows_and_directions(clients, d)
    by_size: dict[int, Shards] = {}
    for label, rows in shards:
        n = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        if 1 < n <= most:
            by_size.setdefault(n, []).append((label, rows))
    for n, alike in by_size.items():
        with threads_for(_ENTRIES_AT_ONCE):
            for some in slices_of(len(alike), max(1, _ENTRIES_AT_ONCE // (n * d))):
                sites.update(_sites(clients, X, alike[some], kept))
    return sites


def keeps_summaries(estimator: Any, d: int) -> bool:
    """Whether a summary is all that clients of an estimator keep, in any order of their rows."""
    if type(estimator) is not StreamingPCA or isinstance(estimator.n_components, str):
        return False
    for name, parameter in signature(StreamingPCA).parameters.items():
        if name not in _OF_SUMMARIES and getattr(estimator, name) != parameter.default:
            return False
    try:
        estimator._check_parameters()
        check_at_most_features(estimator.n_components, d)
    except (TypeError, ValueError):  # a client says so
        return False
    return True


def need_no_units(clients: Summarised, X: Any) -> bool:
    """Whether the rows of no client need units for its columns, as those of all are alike."""
    if not clients.prototype._asks():
        return True
    max_keep, keep = clients.kept(X.shape[1])
    if not isinstance(X, np.ndarray) or keep is not None or max_keep not in (None, X.shape[1]):
        return False
    squares = np.zeros(X.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        mean = X.mean(axis=0, dtype=np.float64)
        for at in row_slices(*X.shape):
            squares += np.square(X[at] - mean).sum(axis=0)
        return are_alike(np.sqrt(squares)[None])


def _rows_and_directions(clients: Summarised, d: int) -> tuple[int, int]:
    """Rows up to which a client is small, and directions that are kept of it."""
    kept, keep = clients.kept(d)
    if keep is not None:
        return 0, 0
    at_once = block_size(kept, d, False, clients.prototype.partial_out is not None)
    return min(d - 1, _FEW_ENTRIES // d, at_once), d if kept is None else kept


def _sites(
    clients: Summarised, X: np.ndarray, shards: Shards, kept: int
) -> Iterator[tuple[Any, Site]]:
    blocks = np.stack([X[rows] for _, rows in shards]).astype(float_dtype(X), copy=False)
    V, s, means, squares, certain = summaries_of_blocks(blocks, kept)
    n, scatter = blocks.shape[1], squares.sum(axis=1).tolist()
    for i in np.flatnonzero(certain).tolist():
        moments = (V[i], s[i], means[i], float(n), scatter[i], True)
        summary = Subspace._trusted(*moments, column_scatter=squares[i])
        yield shards[i][0], Site(clients, n, summary)
