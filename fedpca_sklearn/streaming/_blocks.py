"""State of a `StreamingPCA`, the blocks of rows that it takes, and rows that wait for others."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from .._base.adjusting import adjusting_of, check_columns, warn_of_another_cut, warn_of_models
from .._base.batches import (
    RowBuffer,
    are_bounded_weights,
    as_one,
    count_rows,
    float_dtype,
    is_bounded,
    is_bounded_state,
    is_on_disk,
    validated_batches,
)
from .._base.fitted import has_callbacks, progress, show_in
from .._base.sources import is_stream
from .._dask import RowChunks, is_dask, summarise
from .._kernels.device_rows import DeviceRows
from .._kernels.sizes import COLUMNS_OF_THREADS, rows_within
from .._kernels.threads import threads_for
from .._kernels.too_large import TooLargeError
from .._validation.arrays import in_numpy
from .._validation.checks import (
    check_at_most_features,
    check_finite,
    check_integer,
    check_weight,
    number_or_none,
)
from ..summary import Subspace
from ..summary._merging import checked_with_namespace
from ..summary._metric import updated_by_block as updated_adjusted
from ..summary._updating import stays_sparse, updated_by_block
from ._forgetting import CAME_WITHOUT_TIMES, duration_of, times_of, times_of_rows, weights_left
from ._sizes import ROWS_AT_LEAST, Sizes, in_buffer, is_few, start_rank

# Blocks whose rank is remembered.
_RANKS_KEPT = 10_000
# Stored entries of sparse batches of an iterable that are one block: 3 MB.
_STORED_ENTRIES = 2**18
# Entries of a block that is converted to another dtype: 32 MB of float64.
_CONVERTED_ENTRIES = 2**22


@dataclass(frozen=True)
class State:
    """State of a stream after some rows: summary, number of rows, and ranks of a rule.

    ``ranks`` are those after each block, of the last ones, and ``rank`` the last one.
    """

    subspace: Subspace
    n_rows: int
    rank: int | None = None
    blocks_since_change: int = 0
    ranks: np.ndarray | None = None
    last_time: np.datetime64 | None = None


def empty_state(pca: Any, d: int, dtype: Any) -> State:
    """State before the first row of d features."""
    return State(Subspace.empty(d, centered=pca.center, dtype=dtype), 0)


def check_call(pca: Any, X: Any, sample_weight: Any, times: Any, state: State | None) -> Any:
    """Times of the rows of a call, if the half-life is a time; raise for a call that has no place.

    ``state`` is that before the rows; None in a first call.
    """
    if sample_weight is not None and is_stream(X):
        raise ValueError("sample_weight cannot be given when X is an iterable of batches.")
    if state is not None and state.subspace.centered != pca.center:
        raise ValueError(
            f"center={pca.center!r} differs from the rows seen before; call fit to start again."
        )
    if times is None and pca.half_life is None:
        return None
    times = times_of_rows(pca.half_life, times, X)
    if times is not None and state is not None and state.last_time is None:
        raise ValueError(CAME_WITHOUT_TIMES)
    return times


def take(pca: Any, X: Any, sample_weight: Any, times: Any, state: State | None) -> State:
    """The state after rows that were not checked so far.

    Parameters
    ----------
    pca : StreamingPCA
    X : {array-like, sparse matrix} of shape (n, d), or iterable of such batches
    sample_weight : array-like of shape (n,) or None
    times : ndarray of datetime64, shape (n,), or None
        By which rows get weights, and the rows before less weight.
    state : State or None
        Before the rows.

    Returns
    -------
    state : State
    """
    in_order = not is_dask(X) or pca.rank_rule is not None or pca.forgetting == "blocks"
    by = _take_rows if in_order else _merge_chunks
    if times is None or not len(times):  # rows that are none are refused there
        return by(pca, X, sample_weight, state)
    weight = check_weight(sample_weight, len(times))
    n_rows = count_rows(times, weight) + (0 if state is None else state.n_rows)
    state, newest, left = faded(pca, state, times)
    after = by(pca, X, left if weight is None else left * weight, state)
    return replace(after, n_rows=n_rows, last_time=newest)


def _take_rows(pca: Any, X: Any, sample_weight: Any, state: State | None) -> State:
    """The state after rows, in their order."""
    dtype = None if state is None else state.subspace._dtype
    blocks = validated_blocks(pca, X, sample_weight, dtype)
    first = [next(blocks)]
    rows, n_blocks = first[0][0], None
    (m, d), dtype = rows.shape, rows.dtype
    state = state or empty_state(pca, d, dtype)
    if pca.rank_rule is None:
        state = replace(state, rank=None, ranks=None)
    elif state.rank is None:
        state = replace(state, rank=min(start_rank(pca) or d, d))
    if has_callbacks(pca) and hasattr(X, "shape") and not is_stream(X) and not is_dask(X):
        sizes, device = Sizes(pca, d), isinstance(rows, DeviceRows)
        n_blocks = len(sizes.slices(X.shape[0], stays_sparse(rows, sizes.max_rank), device))
    del rows  # the list has it, until it is taken
    blocks = chain(map(list.pop, [first]), blocks)
    return after_blocks(pca, progress(pca, blocks, n_blocks, "blocks"), (m, d), state)


def take_buffer(pca: Any, buffer: RowBuffer, state: State | None) -> State:
    """The state after the rows of a buffer, as one batch."""
    rows, times, given = buffer.whole()
    (m, d), w, last = rows.shape, given, None
    if times is not None:
        state, last, left = faded(pca, state, times)
        w = left if given is None else left * given
    state = replace(state or empty_state(pca, d, rows.dtype), rank=None, ranks=None)
    state = after_blocks(pca, [(rows, w)], (m, d), state)
    if last is None:
        return state
    n_rows = state.n_rows - count_rows(rows, w) + count_rows(rows, given)
    return replace(state, n_rows=n_rows, last_time=last)


def blocks_of(pca: Any, rows: Any, weight: np.ndarray | None = None) -> list[tuple[Any, Any]]:
    """Blocks of rows that need no check, with their weights."""
    n, sizes = rows.shape[0], Sizes(pca, rows.shape[1])
    is_sparse = sp.issparse(rows) and stays_sparse(rows, sizes.max_rank)
    return [
        (rows if at.stop - at.start == n else rows[at], None if weight is None else weight[at])
        for at in sizes.slices(n, is_sparse, isinstance(rows, DeviceRows))
    ]


def _merge_chunks(pca: Any, X: Any, sample_weight: Any, state: State | None) -> State:
    """The state after a dask.array: its chunks' summaries are merged with what was before."""
    chunks = RowChunks(pca, X, sample_weight, reset=state is None)
    d = chunks.shape[1]
    check_at_most_features(pca.n_components, d)
    state = state or empty_state(pca, d, float_dtype(chunks))
    sizes = Sizes(pca, d)
    between = number_or_none(pca.n_components) if sizes.choose_rank else sizes.max_rank
    adjusting = adjusting_of(pca, d)
    return State(*summarise(pca, chunks, state.subspace, state.n_rows, between, adjusting))


def faded(pca: Any, state: State | None, times: np.ndarray) -> tuple[Any, np.datetime64, Any]:
    """A state with the weight left of it, the latest time, and the weights of rows."""
    before = None if state is None else state.last_time
    past, newest, weights = weights_left(before, times, duration_of(pca.half_life))
    if state is not None and before is not None:
        state = replace(state, subspace=state.subspace.decay(past))
    return state, newest, weights


def after_blocks(pca: Any, blocks: Any, shape: tuple[int, int], state: State) -> State:
    """The state after validated blocks with their weights, the first one of this shape."""
    (m, d), rule = shape, pca.rank_rule
    sizes = Sizes(pca, d)
    max_rank, choose_rank = sizes.kept(state.rank)
    at_once = (max_rank or d) + m
    # a chunk of a scatter matrix is as much work as 16 d rows; or threads of Python share it
    if at_once >= d:
        at_once = 16 * d if d > COLUMNS_OF_THREADS else 1
    ranks: deque[int | None] = deque([] if state.ranks is None else state.ranks, _RANKS_KEPT)
    asked = pca.n_components if isinstance(pca.n_components, Integral) else None
    by_passes = pca.block_size == "auto" and pca.svd_solver == "auto"
    options = {
        "forgetting_factor": pca._row_factor,
        "svd_solver": pca.svd_solver,
        "n_certain": asked,
        "passes": int(asked or 1) if by_passes else None,
    }
    update: Any = updated_by_block
    if pca.scale or pca.partial_out is not None:
        update = partial(updated_adjusted, adjusting=adjusting_of(pca, d))
    with threads_for(d * at_once):
        for rows, w in blocks:
            if rule is not None:
                max_rank, choose_rank = sizes.kept(state.rank)
                options["n_certain"] = state.rank + 1  # type: ignore[operator]
            past = state.subspace
            if pca.forgetting == "blocks":
                past = past.decay(pca.forgetting_factor**2)
            try:
                past = update(past, rows, w, max_rank=max_rank, choose_rank=choose_rank, **options)
            except TooLargeError:  # sums of rows that are not finite never are
                check_finite(rows)
                raise
            m = rows.shape[0] if w is None else count_rows(rows, w)
            state = replace(state, subspace=past, n_rows=state.n_rows + m)
            if rule is not None:
                state = _by_rule(pca, state)
                ranks.append(state.rank)
            del rows, w, past  # before the next batch is read
    return state if rule is None else replace(state, ranks=np.array(ranks, dtype=int))


def _by_rule(pca: Any, state: State) -> State:
    """The state after a block with the rank that the rule chooses."""
    rule, subspace = pca.rank_rule, state.subspace
    rank = rule.next_rank(state.rank, subspace, state.blocks_since_change, state.n_rows)
    if rank > state.rank:
        subspace = rule.grown(state.rank, subspace)
    return replace(
        state,
        subspace=subspace.truncate(Sizes(pca, subspace.n_features).kept(rank - 1)[0]),
        rank=rank,
        blocks_since_change=state.blocks_since_change + 1 if rank == state.rank else 0,
    )


# ------------------------------------------------------------------ validated rows


def validated_blocks(pca: Any, X: Any, sample_weight: Any, dtype: Any) -> Iterator[tuple[Any, Any]]:
    """Validated blocks of rows with their weights; of the first rows there is no dtype yet."""
    first, weight, seen, stream = dtype is None, None, 0, is_stream(X)
    batches = validated_batches(pca, X, first, lambda d: Sizes(pca, d).block())
    if stream and not pca._by_batch:
        batches = _gathered(pca, batches, dtype)
    for batch in batches:
        n, d = batch.shape
        if not seen:
            dtype = dtype or float_dtype(batch)
            check_at_most_features(pca.n_components, d)
            if sample_weight is not None:
                weight = check_weight(sample_weight, X.shape[0] if is_on_disk(X) else n)
        w = None if weight is None else weight[seen : seen + n]
        seen += n
        # NaN and infinity show in the column sums of plain rows
        plain = isinstance(batch, np.ndarray) and weight is None
        plain = plain and not pca.scale and pca.partial_out is None and pca._row_factor == 1
        # rows that are to be converted come in smaller blocks, as their copies take memory
        most = max(n, 1)
        if batch.dtype != dtype:
            most = rows_within(d, _CONVERTED_ENTRIES, least=8 * d)
        sizes, device = Sizes(pca, d), isinstance(batch, DeviceRows)
        is_sparse = sp.issparse(batch) and stays_sparse(batch, sizes.max_rank)
        for block in sizes.slices(n, is_sparse, device):
            for start in range(block.start, block.stop, most):
                at = slice(start, min(start + most, block.stop))
                rows = (batch if at.stop - start == n else batch[at]).astype(dtype, copy=False)
                if not plain:
                    check_finite(rows)
                yield rows, None if w is None else w[at]
                del rows
        del batch  # before the next one is read


def _gathered(pca: Any, batches: Iterator[Any], dtype: Any) -> Iterator[Any]:
    """Validated batches of a stream; few rows go to a buffer, as those of calls do.

    More sparse ones do, as nobody reads meanwhile, which stay sparse unless dense ones are before.
    """
    few: list[Any] = []
    n = 0
    for batch in batches:
        dtype = dtype or float_dtype(batch)
        if sp.issparse(batch) and few and not sp.issparse(few[0]) and is_few(pca, batch):
            batch = in_buffer(batch)
        (m, d), size, room = batch.shape, 1, 0
        if sp.issparse(batch):
            rows = Sizes(pca, d).block(sparse=True)
            size, room = max(batch.nnz, m * _STORED_ENTRIES // rows), _STORED_ENTRIES
        elif not isinstance(batch, DeviceRows) and is_few(pca, batch):
            size, room = m, Sizes(pca, d).buffer()
        waits = size < room
        if few and not (waits and sp.issparse(batch) == sp.issparse(few[0])):
            n = 0
            yield _emptied(few)
        if waits:
            few.append(batch.astype(dtype))  # the source may use its memory again
            n += size
        else:
            yield batch
        del batch  # before the next one is read
        if few and n >= room:
            n = 0
            yield _emptied(few)
    if few:
        yield _emptied(few)


def _emptied(few: list[Any]) -> Any:
    """The rows of a list, which is emptied."""
    rows = as_one(few)
    few.clear()
    return rows


# ------------------------------------------------------------------ rows that wait


class Stream(NamedTuple):
    """A state, and later rows in a buffer; so many at once need no check but for finiteness.

    Without a buffer, which `ready_for_few` makes, 1 stands for them.
    """

    state: Any
    buffer: Any = None
    unchecked: int = 0

    @property
    def is_full(self) -> bool:
        """Whether the buffer is to be taken into the state."""
        return self.buffer.n >= self.buffer.room

    def after(self, pca: Any) -> Any:
        """The state after the rows of the buffer."""
        state, buffer, _ = self
        return state if buffer is None or not buffer.n else take_buffer(pca, buffer, state)

    def with_rows(self, X: Any, times: Any, weight: Any = None) -> Stream | None:
        """The stream with few rows; None if they need another check than that of their numbers."""
        state, buffer, unchecked = self
        most = unchecked
        if not unchecked:
            return None
        if sp.issparse(X):
            most = max(unchecked, min(buffer.room, ROWS_AT_LEAST) - 1)
            X = in_buffer(X) if X.ndim == 2 and X.shape[0] <= most else X
        elif type(X) is np.ndarray and X.dtype.kind in "biu":
            few = X.shape[:1] <= (unchecked,) and buffer.first.dtype == np.float64
            X = X.astype(np.float64) if few else X
        if not buffer.takes(X, times, most, takes_sparse=True):
            return None
        if weight is not None and not are_bounded_weights(weight, X.shape[0]):
            return None
        return Stream(state, buffer.with_rows(X, times, weight), unchecked)


def stream_of(pca: Any, state: State | None, buffer: RowBuffer | None, room: int) -> Stream:
    """The stream of a state, and of rows in a buffer.

    ``room`` of an empty buffer, if rows like those before need no other check; else 0.
    """
    is_bounded = has_bounds(state)
    if state is not None and not (is_bounded and (room or state.n_rows)):
        pca._with_usual_weights(state.subspace, state.n_rows)  # the error
    if state is not None and room:
        buffer = _empty_buffer(state, room)
    if buffer is None:
        return Stream(state, None, int(is_bounded))
    unchecked = 0
    if is_bounded and (room or not (hasattr(pca, "feature_names_in_") or pca._by_batch)):
        unchecked = Sizes(pca, buffer.first.shape[1]).few(buffer.room) - 1
    return Stream(state, buffer, unchecked)


def _empty_buffer(state: State, room: int) -> RowBuffer:
    last = state.last_time
    times = None if last is None else np.empty(0, last.dtype)
    nothing = np.empty((0, len(state.subspace.mean)), state.subspace._dtype)
    return RowBuffer(nothing, room, times)


def ready_for_few(pca: Any, state: State) -> Stream:
    """The stream of a state with an empty buffer, if rows may wait."""
    if hasattr(pca, "feature_names_in_") or pca._by_batch:
        return Stream(state)
    sizes = Sizes(pca, len(state.subspace.mean))
    room = sizes.buffer()
    return Stream(state, _empty_buffer(state, room), sizes.few(room) - 1)


def with_few(pca: Any, stream: Stream, X: Any, sample_weight: Any, times: Any) -> Stream | None:
    """The stream with few rows, which are validated; None if they cannot wait for others."""
    state, buffer, _ = stream
    X = in_buffer(X) if sp.issparse(X) else X
    dtype = None if state is None else state.subspace._dtype
    dtype = dtype if buffer is None else buffer.first.dtype
    parts = list(validated_blocks(pca, X, sample_weight, dtype))
    rows, w = in_numpy(parts[0][0]), parts[0][1]
    entries = rows.data if sp.issparse(rows) else rows.ravel()
    check_columns(pca, rows.shape[1])
    room = Sizes(pca, rows.shape[1]).buffer()
    if buffer is not None and not buffer.is_of(rows, times):
        state, buffer = stream.after(pca), None
    if len(parts) > 1 or room == 1 or not is_bounded(entries) or not has_bounds(state):
        return None
    if w is not None and not are_bounded_weights(w, rows.shape[0]):
        return None
    for _ in progress(pca, [rows], 1, "blocks"):
        pass
    if buffer is None or not buffer.n:
        buffer = RowBuffer(rows[:0], room)
    return Stream(state, buffer.with_rows(rows, times, w))


def has_bounds(state: State | None) -> bool:
    """Whether no sum over what has been seen and over rows of moderate size can overflow."""
    if state is None:
        return True
    subspace = state.subspace
    return is_bounded_state(subspace.mean, subspace.total_variance, subspace._dtype)


def from_subspace(
    cls: Any,
    subspace: Subspace,
    n_components: int | float | str | None = None,
    *,
    n_samples_seen: int | None = None,
    last_time: Any = None,
    **parameters: Any,
) -> Any:
    """Build a fitted estimator that continues the stream of a summary.

    With the parameters of the estimator that the whole `subspace_` is from, `partial_fit` gives
    the numbers that this estimator would have given, up to rounding; of a pickled estimator
    they are the same bit by bit.

    Parameters
    ----------
    subspace : Subspace
        Of at least one row. Directions that were cut from it are lost: a warning tells if fewer
        are left than ``n_components``. Another one tells if its ``model`` has ``scale`` or
        ``partial_out`` and the estimator has not.
    n_components : int, float, "parallel", "held-out", "mle" or None, default=None
        With a ``rank_rule`` the rank to go on from: ``n_components_`` then.
    n_samples_seen : int, default=None
        Rows that the summary stands for. None: its ``n_samples``, rounded up, which is their
        number unless they were weighted or forgotten.
    last_time : numpy.datetime64, default=None
        ``last_time_`` of the stream, for a ``half_life`` that is a time.
    **parameters
        Of the estimator. Without ``center``, that of the summary.

    Returns
    -------
    pca : StreamingPCA

    Notes
    -----
    A summary knows neither ``rank_history_``, which starts anew, nor how many blocks ago a
    ``rank_rule`` changed the rank: its ``hold_off`` starts anew as well. Rows that wait for
    others are in it, so that it goes on as from the end of a batch. "auto" as ``block_size``
    depends on the first rank, so above 256 features give it as a number.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import StreamingPCA, Subspace
    >>> X = np.random.default_rng(0).standard_normal((100, 5))
    >>> pca = StreamingPCA(2).fit(X[:60])
    >>> message = pca.subspace_.to_bytes()
    >>> elsewhere = StreamingPCA.from_subspace(Subspace.from_bytes(message), 2)
    >>> goes_on, stays = elsewhere.partial_fit(X[60:]), pca.partial_fit(X[60:])
    >>> np.allclose(goes_on.components_, stays.components_, rtol=0, atol=1e-13)
    True
    """
    given = [subspace]
    (subspace,), namespace = checked_with_namespace(given)
    pca = cls(n_components, **{"center": subspace.centered, **parameters})
    pca._check_parameters()
    state = _state_of(pca, subspace, n_samples_seen, last_time)
    pca.n_features_in_ = subspace.n_features
    if subspace.feature_names is not None:
        pca.feature_names_in_ = np.array(subspace.feature_names, dtype=object)
    pca._keep(state)
    pca._warn_of_cut()
    warn_of_another_cut(pca)
    warn_of_models(pca, given)
    show_in(namespace, pca)
    return pca


def _state_of(pca: Any, subspace: Subspace, n_samples_seen: int | None, last_time: Any) -> State:
    """State of a stream that goes on from a summary."""
    if pca.center != subspace.centered:
        raise ValueError(
            f"center={pca.center!r} differs from the summary, which is about the "
            f"{'mean' if subspace.centered else 'origin'}."
        )
    check_at_most_features(pca.n_components, subspace.n_features)
    if not subspace.n_samples > 0:
        raise ValueError("subspace must hold at least one row, it has n_samples=0.")
    if n_samples_seen is None:
        n_samples_seen = max(math.ceil(subspace.n_samples), subspace.n_components)
    else:
        check_integer("n_samples_seen", n_samples_seen)
    rank = start_rank(pca)
    ranks = None if rank is None else np.zeros(0, dtype=int)
    last_time = None if last_time is None else times_of([last_time], 1)[0]
    return State(subspace, int(n_samples_seen), rank, ranks=ranks, last_time=last_time)
