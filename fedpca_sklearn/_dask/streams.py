"""One stream of row chunks, summarised in a tree of delayed merges."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import scipy.sparse as sp
from sklearn.base import clone

from .._validation.checks import number_or_none
from ..summary import Subspace
from ..summary._adjusted import Adjusting
from ..summary._merging import tighter_fraction
from ..summary._metric import merged
from .chunks import _NO_ROWS, RowChunks, _compute, _of_chunk, _present, _tree

# A dense chunk is one block where it has this many times more rows than features, and not many
# times more features than directions kept: one d x d Gram matrix is then the faster way (20,000 x
# 500, k = 23: 1.6 times the product X.T @ X, and 2.8 times block by block).
_ROWS_PER_FEATURE, _FEATURES_PER_DIRECTION = 8, 30


class Part(NamedTuple):
    """Summary of part of a stream, the number of rows it stands for, and of all rows read."""

    subspace: Subspace
    n_rows: int
    n_passed: int


def summarise(
    pca: Any,
    chunks: RowChunks,
    before: Subspace,
    n_before: int,
    between: int | float | None,
    adjusting: Adjusting,
) -> tuple[Subspace, int]:
    """Summary of the earlier rows and all chunks, and the number of rows they stand for.

    Each chunk is a stream of its own. A merge applies the forgetting: the earlier part loses weight
    with every row of the later part, so that the result does not depend on the grouping.
    ``between`` is the number (or the share) of directions to keep, ``adjusting`` what is asked for.
    """
    from dask import delayed

    model = clone(pca).set_params(
        n_components=number_or_none(pca.n_components),
        scale=adjusting.scale,
        partial_out=list(adjusting.confounders) or None,  # rows without names
    )
    if pca._row_factor == 1:  # of a half-life in time the weights tell
        model.set_params(half_life=None)
    if isinstance(between, float):
        model.set_params(n_components=tighter_fraction(between))
        between = tighter_fraction(between)
    empty = before.decay(0.0)
    task = delayed(_summarise_chunk, pure=True)
    weights = chunks.weights or [None] * len(chunks)
    leaves = [
        task(number, model, between, empty, *pair)
        for number, pair in enumerate(zip(chunks.rows, weights, strict=True))
    ]
    merge = partial(_merge_stream, pca._row_factor, between, adjusting)
    (new,) = _compute(_tree(leaves, merge))
    if not new.n_passed:
        raise ValueError(_NO_ROWS)
    whole = merge([Part(before, n_before, 0), new])
    return whole.subspace, whole.n_rows


def _summarise_chunk(number: int, *work: Any) -> Part:
    with _of_chunk(number):
        return _summary_of_rows(*work)


def _summary_of_rows(
    model: Any, between: int | float | None, empty: Subspace, rows: Any, weight: Any
) -> Part:
    n, d = rows.shape
    rows, weight, there = _present(rows, weight)
    if not there:
        return Part(empty, 0, n)
    if rows.dtype.kind == "f":
        rows = rows.astype(empty.components.dtype, copy=False)
    model = clone(model)
    many = isinstance(between, int) and d <= _FEATURES_PER_DIRECTION * between
    if many and model.block_size == "auto" and n >= _ROWS_PER_FEATURE * d and not sp.issparse(rows):
        model.set_params(block_size=n)
    fitted = model.fit(rows, sample_weight=weight)
    return Part(fitted.subspace_, fitted.n_samples_seen_, n)


def _merge_stream(
    forgetting_factor: float, between: int | float | None, adjusting: Adjusting, parts: list
) -> Part:
    faded, n_later = [], 0
    for part in reversed(parts):
        faded.append(part.subspace.decay(float(forgetting_factor) ** n_later))
        n_later += part.n_passed
    subspace = merged(faded[::-1], between, adjusting)
    return Part(subspace, sum(part.n_rows for part in parts), n_later)
