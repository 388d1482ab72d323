"""Dask: row chunks are summarised where they are, merged in a tree of delayed calls, transformed.

Tasks call pure functions, so that Dask can repeat them when a worker is lost. Only summaries are
merged, so that a worker holds a chunk or two and a few summaries. Functions import Dask when they
are called with Dask's input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn import config_context
from sklearn.base import clone
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.validation import validate_data

from ._kernels.threads import single_blas_thread
from ._validation.checks import check_finite, check_weight, number_or_none
from ._validation.containers import checked_array
from .summary import Subspace
from .summary._adjusted import Adjusting
from .summary._merging import tighter_fraction
from .summary._metric import merged

# Summaries merged by one task.
FAN_IN = 4
_NO_ROWS = "X must have at least one row of positive weight in its chunks, found none."
# A dense chunk is one block where it has this many times more rows than features, and not many
# times more features than directions kept: one d x d Gram matrix is then the faster way (20,000 x
# 500, k = 23: 1.6 times the product X.T @ X, and 2.8 times block by block).
_ROWS_PER_FEATURE, _FEATURES_PER_DIRECTION = 8, 30
# Fitted attributes that transform needs, and nothing else of a model goes to the workers.
_FOR_TRANSFORM = (
    *("components_", "mean_", "explained_variance_", "noise_variance_", "n_features_in_"),
    *("_entry_noise", "support_threshold_", "n_local_components_", "_adjustment"),
)


# ---------------------------------------------------------------------------- what is Dask's


def is_dask(X: Any) -> bool:
    """Whether X is a dask.array or a data frame of Dask's."""
    return type(X).__module__.startswith(("dask.array", "dask.dataframe", "dask_expr"))


def is_dask_frame(X: Any) -> bool:
    """Whether X is a data frame, or a column, of Dask's."""
    return type(X).__module__.startswith(("dask.dataframe", "dask_expr"))


# Module of the tasks of Dask.
DELAYED = "dask.delayed"


def refuse_dask(estimator: Any, X: Any) -> None:
    """Raise a TypeError for rows of Dask's, which the estimator would load as a whole."""
    if is_dask(X):
        kind = "Dask data frame" if is_dask_frame(X) else "dask.array"
        raise TypeError(
            f"X is a {kind}, which {type(estimator).__name__} does not take; StreamingPCA, "
            "FederatedPCA, DistributedPCA and TruncatedDistributedPCA do. X.compute() loads its "
            "rows, if they fit in memory."
        )


def as_dask_array(X: Any) -> Any:
    """Rows of a data frame as a dask.array, of which chunks have unknown sizes; others as is."""
    return X.to_dask_array() if is_dask_frame(X) else X


# ---------------------------------------------------------------------------- chunks


class RowChunks:
    """The rows of a dask.array or data frame as tasks, and their weights; nothing is computed.

    Column chunks are joined. If that makes chunks larger than Dask's ``array.chunk-size``, rows are
    cut anew.
    """

    def __init__(self, estimator: Any, X: Any, sample_weight: Any = None, *, reset: bool = True):
        frame, X = (X, as_dask_array(X)) if is_dask_frame(X) else (None, X)
        header = X if frame is None else frame._meta  # without rows, for the names
        _check_2d(X)
        if not X.shape[1] >= 1:  # NaN if unknown
            raise ValueError(
                f"X must have a known, positive number of columns, got {X.shape[1]}; "
                "X.compute_chunk_sizes() finds it."
            )
        from dask import delayed

        validate_data(estimator, header, reset=reset, skip_check_array=True)
        X = _whole_rows(X)
        self.shape, self.dtype = X.shape, X.dtype
        task = delayed(_of_width, pure=True)
        self.rows = [task(rows, X.shape[1]) for rows in _parts_of(X if frame is None else frame)]
        self.weights = _weights_of(X, sample_weight)

    def __getitem__(self, i: int) -> Any:
        return self.rows[i]

    def __len__(self) -> int:
        return len(self.rows)


def _parts_of(X: Any) -> list[Any]:
    """Row chunks; pandas frames of a Dask frame, as arrays would hold NA in dtype object."""
    return X.to_delayed() if is_dask_frame(X) else X.to_delayed().ravel().tolist()


def _check_2d(X: Any) -> None:
    if X.ndim != 2:
        raise ValueError(f"X must have 2 dimensions, got a dask.array of shape {X.shape}.")


def _of_width(rows: Any, d: int) -> Any:
    """A chunk, checked to have as many columns as its array states."""
    if rows.shape[1] != d:
        raise ValueError(f"X must have {d} columns in each chunk, one has {rows.shape[1]}.")
    return rows


def _whole_rows(X: Any) -> Any:
    if X.numblocks[1] == 1:
        return X
    from dask import config
    from dask.utils import parse_bytes

    joined = X.rechunk({1: -1})
    largest = max(X.chunks[0]) * X.shape[1] * X.dtype.itemsize
    if largest > parse_bytes(config.get("array.chunk-size")):  # not if it is unknown, NaN
        joined = X.rechunk({0: "auto", 1: -1})
    return joined


def _weights_of(X: Any, sample_weight: Any) -> list[Any] | None:
    """Weights for each row chunk of X."""
    if sample_weight is None:
        return None
    if is_dask_frame(sample_weight):  # of a nullable column an array has objects
        sample_weight = sample_weight.astype(np.float64).to_dask_array()
    known = not math.isnan(X.shape[0])
    if not is_dask(sample_weight):
        if not known:
            raise ValueError(
                "sample_weight must be a dask.array with the row chunks of X where X has chunks of "
                f"unknown size, got {type(sample_weight).__name__}."
            )
        weight = check_weight(sample_weight, X.shape[0])
        assert weight is not None  # as sample_weight is not
        return np.split(weight, np.cumsum(X.chunks[0])[:-1])
    if known and sample_weight.shape == X.shape[:1]:
        sample_weight = sample_weight.rechunk(X.chunks[:1])
    if sample_weight.numblocks != X.numblocks[:1] or sample_weight.ndim != 1:
        raise ValueError(
            f"sample_weight must have one value per row of X, shape {X.shape[:1]} in "
            f"{X.numblocks[0]} chunks, got shape {sample_weight.shape} in "
            f"{sample_weight.numblocks} chunks."
        )
    return _parts_of(sample_weight)


def chunks_in_order(X: Any, allow_nan: bool = False) -> Iterator[Any]:
    """Yield the row chunks that have rows one after the other, for what depends on the order.

    Those of a data frame are frames of pandas, with the names of the columns.
    """
    _check_2d(X)
    for number, chunk in enumerate(_parts_of(X if is_dask_frame(X) else _whole_rows(X))):
        (rows,) = _compute(chunk)
        if rows.shape[0]:
            with _of_chunk(number):
                check_finite(checked_array(rows, accept_sparse="csr", dtype="numeric"), allow_nan)
            yield rows
        del rows


@contextmanager
def _of_chunk(number: int) -> Iterator[None]:
    """Name the row chunk in an error about its values."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"Chunk {number}: {error}") from error


def _present(rows: Any, weight: Any) -> tuple[Any, np.ndarray | None, bool]:
    """Validated chunk and weights, and whether any row has weight."""
    weight = check_weight(weight, rows.shape[0])
    if not rows.shape[0] or (weight is not None and not weight.any()):
        return rows, weight, False
    rows = checked_array(rows, accept_sparse="csr", dtype="numeric")
    return rows, weight, True


# ---------------------------------------------------------------------------- tasks


def _compute(*values: Any) -> tuple:
    """Results of tasks, by the scheduler that the user has chosen."""
    import dask

    with single_blas_thread():  # of this process, where threads are the scheduler
        return dask.compute(*values)


def _tree(parts: list[Any], merge: Callable[[list], Any]) -> Any:
    """One task at the root of a tree of merges."""
    from dask import delayed

    task = delayed(merge, pure=True)
    while len(parts) > 1:
        groups = [parts[i : i + FAN_IN] for i in range(0, len(parts), FAN_IN)]
        parts = [task(group) if len(group) > 1 else group[0] for group in groups]
    return parts[0]


def run(function: Callable, calls: Iterable[tuple], merge: Callable | None = None) -> Any:
    """Results of a function for every client, a row chunk each, and the floats in its rows.

    Of the arguments of a call the first that is a task is the rows, the next one their weights. The
    result is None where a client has no rows. With ``merge``, a function of a list: results are
    pairs, of which the first parts are merged in a tree, and only the second ones returned with the
    one that is left.
    """
    from dask import delayed

    task = delayed(_at_chunk, pure=True, nout=3)
    parts = []
    for call in calls:
        at = [type(argument).__module__ for argument in call].index(DELAYED)
        parts.append(task(function, at, merge is not None, *call))
    tree = merge and _tree([body for body, _, _ in parts], partial(_merge_present, merge))
    results, merged = _compute([(result, size) for _, result, size in parts], tree)
    if all(result is None for result, _ in results):
        raise ValueError(_NO_ROWS)
    return results if merge is None else (results, merged)


def _at_chunk(function: Callable, at: int, pair: bool, *call: Any) -> tuple[Any, Any, int]:
    rows, weight, there = _present(*call[at : at + 2])
    if not there:
        return None, None, 0
    result = function(*call[:at], rows, weight, *call[at + 2 :])
    return (*(result if pair else (None, result)), int(rows.size))


def _merge_present(merge: Callable, parts: list) -> Any:
    parts = [part for part in parts if part is not None]
    return merge(parts) if parts else None


# ---------------------------------------------------------------------------- one stream


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


def _summarise_chunk(
    number: int, model: Any, between: int | float | None, empty: Subspace, rows: Any, weight: Any
) -> Part:
    n, d = rows.shape
    with _of_chunk(number):
        rows, weight, there = _present(rows, weight)
        if not there:
            return Part(empty, 0, n)
        if rows.dtype.kind == "f":
            rows = rows.astype(empty.components.dtype, copy=False)
        model, tall = clone(model), n >= _ROWS_PER_FEATURE * d and not sp.issparse(rows)
        many = isinstance(between, int) and d <= _FEATURES_PER_DIRECTION * between
        if many and tall and model.block_size == "auto":
            model.set_params(block_size=n)
        fitted = _ours(model, "fit")(model, rows, sample_weight=weight)
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


# ---------------------------------------------------------------------------- transform


def lazy_transform(estimator: Any, X: Any) -> Any:
    """Coordinates of the rows of a dask.array as one; of a data frame see `_transformed_frame`."""
    small, dtype = _for_workers(estimator, X)
    if is_dask_frame(X):
        return _transformed_frame(estimator, small, X, dtype)
    X = _whole_rows(X)
    chunks, meta = (X.chunks[0], (small._n_features_out,)), np.empty((0, 0), dtype)
    return X.map_blocks(_of_block, small, dtype, dtype=dtype, chunks=chunks, meta=meta)


def lazy_inverse(estimator: Any, X: Any) -> Any:
    """Rows that coordinates of Dask's stand for, as a dask.array."""
    small, dtype = _for_workers(estimator, X)
    X = _whole_rows(as_dask_array(X))
    chunks, meta = (X.chunks[0], small.mean_.shape), np.empty((0, 0), dtype)
    return X.map_blocks(_inverse_of_block, small, dtype, dtype=dtype, chunks=chunks, meta=meta)


def _inverse_of_block(Z: Any, estimator: Any, dtype: Any, block_id: Any = (0, 0)) -> np.ndarray:
    if not len(Z):
        return np.empty((0, len(estimator.mean_)), dtype)
    with _of_chunk(block_id[0]):
        return _ours(estimator, "inverse_transform")(estimator, Z)


def _for_workers(estimator: Any, X: Any) -> tuple[Any, np.dtype]:
    """The estimator without its summaries, and the dtype of what it makes of X."""
    kept = {*estimator.get_params(deep=False), *_FOR_TRANSFORM, "feature_names_in_"}
    small, of_rows = estimator._with_only(kept), as_dask_array(X).dtype
    floats = np.float32 if of_rows == np.float32 else np.float64
    return small, np.result_type(floats, small.components_.dtype)


def _of_block(rows: Any, estimator: Any, dtype: Any, block_id: Any = (0, 0)) -> np.ndarray:
    with _of_chunk(block_id[0]):
        return _coordinates(rows, estimator, dtype)


def _coordinates(rows: Any, estimator: Any, dtype: Any) -> np.ndarray:
    """Coordinates of the rows of a chunk, of which there may be none."""
    if not rows.shape[0]:
        return np.empty((0, estimator._n_features_out), dtype)
    with config_context(transform_output="default"):
        return _ours(estimator, "transform")(estimator, rows).astype(dtype, copy=False)


def _ours(estimator: Any, name: str) -> Callable:
    """The method that is mapped over chunks: a subclass that overrides it has called this one."""
    kinds = [k for k in type(estimator).__mro__ if k.__module__.partition(".")[0] == __package__]
    return next(getattr(kind, name) for kind in kinds if hasattr(kind, name))


def leave_as_it_is(estimator: Any) -> None:
    """Have ``set_output`` make nothing of what `transform` of this view of an estimator returns."""
    vars(estimator)["_sklearn_output_config"] = {"transform": "default"}


def _transformed_frame(estimator: Any, small: Any, X: Any, dtype: Any) -> Any:
    """Coordinates of the rows of a data frame: one of Dask's if pandas' are asked for.

    ``estimator`` is a view of the one that was called, and no frame is made of the result any more;
    ``small`` is what goes to the workers.
    """
    wanted = _get_output_config("transform", estimator)["dense"]
    if wanted not in ("default", "pandas"):
        raise ValueError(
            f"set_output(transform={wanted!r}) cannot be had of a Dask data frame, whose parts are "
            'frames of pandas; take "pandas" or "default".'
        )
    names = [str(name) for name in estimator.get_feature_names_out()]
    frame = X.map_partitions(_of_part, small, names, dtype, meta=dict.fromkeys(names, dtype))
    leave_as_it_is(estimator)
    return frame if wanted == "pandas" else frame.to_dask_array()


def _of_part(rows: Any, estimator: Any, names: list[str], dtype: Any) -> Any:
    Z = _coordinates(rows, estimator, dtype)
    return type(rows)(Z, index=rows.index, columns=names)
