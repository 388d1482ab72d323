"""Blocks of rows of `StreamingPCA`: how they are taken into its state, one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from .._base.adjusting import AdjustingMixin
from .._base.batches import (
    count_rows,
    cut,
    float_dtype,
    is_on_disk,
    put_back,
    validated_batches,
)
from .._base.callbacks import CallbackSupportMixin, progress
from .._base.sources import is_stream
from .._base.transformer import SubspaceTransformer
from .._dask import RowChunks, is_dask, summarise
from .._kernels.device_rows import DeviceRows
from .._kernels.sizes import COLUMNS_OF_THREADS
from .._kernels.threads import threads_for
from .._validation.checks import (
    check_at_most_features,
    check_weight,
    finite_by_sums,
    is_integer,
    number_or_none,
)
from ..summary import Subspace
from ..summary._metric import updated_by_block
from ._half_life import newest_and_shares
from ._one_by_one import OneByOneMixin
from ._sizes import SizesMixin

# Blocks whose rank is remembered.
_RANKS_KEPT = 10_000


@dataclass(frozen=True)
class State:
    """State of a stream after its full blocks: summary, number of rows, and the rank."""

    subspace: Subspace
    n_rows: int
    rank: int | None
    blocks_since_change: int = 0
    last_time: np.datetime64 | None = None


def _kind_of(rows: Any) -> dict[str, bool]:
    """What the size of a block depends on, beside the number of features."""
    return {"sparse": sp.issparse(rows), "device": isinstance(rows, DeviceRows)}


class BlocksMixin(
    AdjustingMixin, SizesMixin, OneByOneMixin, CallbackSupportMixin, SubspaceTransformer
):
    """Take rows into the state of a stream, block by block."""

    rank_history_: np.ndarray

    def _take_blocks(self, X: Any, sample_weight: Any, state: State | None) -> State:
        """Go through rows in their order."""
        new = state is None
        blocks = self._blocks(X, sample_weight, self._dtype(state))
        first = [next(blocks)]
        rows = first[0][0]
        (m, d), dtype, kind = rows.shape, rows.dtype, _kind_of(rows)
        del rows  # the list has it
        if state is None:
            state = self._empty_state(d, dtype)
        if self.rank_rule is None:
            state = replace(state, rank=None)
        elif state.rank is None:
            state = replace(state, rank=min(self._start_rank(), d))
        ranks: deque[int | None] = deque(maxlen=_RANKS_KEPT)
        n_blocks = None
        if not is_stream(X) and not is_dask(X) and hasattr(X, "shape"):
            n_blocks = sum(1 for _ in self._block_slices(X.shape[0], d, **kind))
        kept = self._kept(d, state.rank)[0] or d
        at_once = kept + m
        # a chunk of a scatter matrix is as much work as 16 d rows; or threads of Python share it
        if at_once >= d:
            at_once = 16 * d if d > COLUMNS_OF_THREADS else 1
        adjusting = self._adjusting(d)
        with threads_for(d * at_once):
            for rows, w in progress(self, put_back(first, blocks), n_blocks, "blocks"):
                with finite_by_sums(rows):
                    past = state.subspace
                    if self.forgetting == "blocks":
                        past = past.decay(self.forgetting_factor**2)
                    options = self._update_options(state)
                    subspace = updated_by_block(past, rows, w, adjusting=adjusting, **options)
                state = self._next_state(state, subspace, count_rows(rows, w))
                ranks.append(state.rank)
                del rows, w  # before the next batch is read
        if self.rank_rule is not None:
            before = [] if new else getattr(self, "rank_history_", [])
            self.rank_history_ = np.concatenate([before, ranks])[-_RANKS_KEPT:].astype(int)
        return state

    def _merge_chunks(self, X: Any, sample_weight: Any, state: State | None) -> State:
        """Merge the summaries of the chunks of a dask.array, and what was before."""
        chunks = RowChunks(self, X, sample_weight, reset=state is None)
        d = chunks.shape[1]
        check_at_most_features(self.n_components, d)
        state = state or self._empty_state(d, float_dtype(chunks))
        max_keep, keep = self._kept(d, None)
        between = max_keep if keep is None else number_or_none(self.n_components)
        subspace, n_rows = summarise(self, chunks, state.subspace, state.n_rows, between)
        return State(subspace, n_rows, None)

    def _fade(self, take: Any, times: np.ndarray, X: Any, sample_weight: Any, state: Any) -> State:
        """Take rows with weights by their times, and the state before with a smaller weight."""
        weight = check_weight(sample_weight, len(times))
        n_rows = count_rows(times, weight)
        if state is not None:
            n_rows += state.n_rows
        state, newest, left = self._faded(state, times)
        after = take(X, left if weight is None else left * weight, state)
        return replace(after, n_rows=n_rows, last_time=newest)

    def _faded(self, state: State | None, times: np.ndarray) -> tuple[Any, np.datetime64, Any]:
        """A state with the weight left of it, the latest time, and the weights of rows."""
        before = None if state is None else state.last_time
        newest, left, past = newest_and_shares(self._half_life_in_time, times, before)
        if state is not None:
            state = replace(state, subspace=state.subspace.decay(past))
        return state, newest, left

    def _empty_state(self, d: int, dtype: Any) -> State:
        return State(Subspace.empty(d, centered=self.center, dtype=dtype), 0, None)

    def _take_rows(self, rows: np.ndarray, times: np.ndarray | None, state: State | None) -> State:
        d, w, last = rows.shape[1], None, None
        if times is not None:
            state, last, w = self._faded(state, times)
        state = replace(state or self._empty_state(d, rows.dtype), rank=None)
        options = {"adjusting": self._adjusting(d), **self._update_options(state)}
        with threads_for(d * ((self._kept(d, None)[0] or d) + len(rows))):
            subspace = updated_by_block(state.subspace, rows, w, **options)
        state = self._next_state(state, subspace, len(rows))
        return state if last is None else replace(state, last_time=last)

    @staticmethod
    def _dtype(state: State | None) -> Any:
        return None if state is None else state.subspace._dtype

    def _blocks(self, X: Any, sample_weight: Any, dtype: Any) -> Iterator[tuple[Any, Any]]:
        """Validated blocks of rows with their weights; of the first rows there is no dtype yet."""
        first, weight, seen = dtype is None, None, 0
        batches = validated_batches(self, X, first, lambda d: self._block_size(d, False))
        if is_stream(X) and not self._by_batch:
            batches = self._gathered(batches, dtype)
        for batch in batches:
            n, d = batch.shape
            if not seen:
                dtype = dtype or float_dtype(batch)
                check_at_most_features(self.n_components, d)
                weight = check_weight(sample_weight, X.shape[0] if is_on_disk(X) else n)
            w = None if weight is None else weight[seen : seen + n]
            seen += n
            slices = self._block_slices(n, d, **_kind_of(batch))
            blocks = cut(batch, w, slices, dtype, not self._shown_by_sums(X, batch, weight))
            del batch
            yield from blocks
            del blocks

    def _shown_by_sums(self, X: Any, batch: Any, weight: np.ndarray | None) -> bool:
        """Whether the sums of rows tell that entries are not finite, so that no pass is needed."""
        as_they_are = weight is None and self._row_factor == 1 and not self._asks()
        return as_they_are and isinstance(batch, np.ndarray) and not (is_stream(X) or is_dask(X))

    # ---------------------------------------------------------------- one block

    def _update_options(self, state: State) -> dict[str, Any]:
        """Options of `updated_by_block` for the rank of a state."""
        max_keep, keep = self._kept(state.subspace.n_features, state.rank)
        asked = self.n_components if is_integer(self.n_components) else None
        by_passes = self.block_size == "auto" and self.svd_solver == "auto"
        return {
            "max_keep": max_keep,
            "keep": keep,
            "forgetting_factor": self._row_factor,
            "svd_solver": self.svd_solver,
            "wanted": state.rank + 1 if state.rank else asked,
            "passes": int(asked or 1) if by_passes else None,
        }

    def _next_state(self, state: State, subspace: Subspace, n_new: int) -> State:
        """The state of an updated summary, of which the rule chooses the rank."""
        state = replace(state, subspace=subspace, n_rows=state.n_rows + n_new)
        if self.rank_rule is None:
            return state
        rank = self.rank_rule.next_rank(
            state.rank, subspace, state.blocks_since_change, state.n_rows
        )
        if rank > state.rank:
            subspace = self.rank_rule.grown(state.rank, subspace)
        return replace(
            state,
            subspace=subspace.truncate(self._kept(subspace.n_features, rank - 1)[0]),
            rank=rank,
            blocks_since_change=state.blocks_since_change + 1 if rank == state.rank else 0,
        )
