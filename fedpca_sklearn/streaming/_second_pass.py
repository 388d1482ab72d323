"""Products of another pass over the rows of a stream."""

from __future__ import annotations

from typing import Any

from .._base.sources import is_stream
from .._dask import RowChunks, is_dask
from .._kernels.row_moments import RowsAtHand
from .._kernels.threads import threads_for
from .._validation.checks import finite_by_sums
from ..communication import Federation
from ..summary._refinement import Refinement, local_products, products_of
from ._blocks import validated_blocks


def check_readable(pca: Any, X: Any, n_rounds: int) -> None:
    """Raise where rows cannot be taken again, or not so often."""
    for name, kept in (("forgetting_factor", 1), ("half_life", None)):
        value = getattr(pca, name)
        if value != kept:
            raise ValueError(
                f"{name}={value!r} must be {kept} to refine: rows that have faded cannot be "
                "taken again."
            )
    if n_rounds > 1 and is_stream(X) and hasattr(X, "__next__"):
        raise ValueError(f"n_rounds={n_rounds} must be 1 where X is an iterator, read once.")


def products(pca: Any, X: Any, sample_weight: Any, refinement: Refinement) -> Any:
    """`products_of` all rows with the next block of a refinement."""
    mean, V = refinement.rows.mean, refinement.block
    if is_dask(X):
        chunks = RowChunks(pca, X, sample_weight, reset=False)
        weights = chunks.weights or [None] * len(chunks)
        calls = [(i, chunks[i], weights[i], mean, V) for i in range(len(chunks))]
        return Federation().sum(local_products, calls, V)
    total: Any = 0.0
    for rows, weight in validated_blocks(pca, X, sample_weight, refinement.before._dtype):
        with finite_by_sums(rows), threads_for(rows.shape[1] * (len(V) + rows.shape[0])):
            total = total + products_of(RowsAtHand(rows, weight), mean, V, weight)
    return total
