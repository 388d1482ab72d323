"""Rows that come a few at a time: a buffer behind the state of `StreamingPCA`, and its checks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._base.adjusting import check_columns
from .._base.callbacks import progress
from .._base.row_buffer import RowBuffer
from .._kernels.bounded import is_bounded, is_bounded_state
from .._validation.arrays import in_numpy
from ._blocks import State, take_buffer, validated_blocks


class Stream(NamedTuple):
    """A state, and later rows in a buffer; so many at once need no check but for finiteness."""

    state: State | None
    buffer: RowBuffer | None = None
    unchecked: int = 0

    @property
    def is_full(self) -> bool:
        """Whether the buffer is to be taken into the state."""
        return self.buffer is not None and self.buffer.n >= self.buffer.room

    def after(self, pca: Any) -> Any:
        """The state after the rows of the buffer."""
        state, buffer, _ = self
        return state if buffer is None or not buffer.n else take_buffer(pca, buffer, state)

    def with_rows(self, X: Any, times: Any) -> Stream | None:
        """The stream with few rows; None if they need another check than that of their numbers."""
        state, buffer, unchecked = self
        if not unchecked or buffer is None:
            return None
        if not buffer.takes(X, times, unchecked):
            return None
        return Stream(state, buffer.with_rows(X, times), unchecked)


def stream_of(pca: Any, state: State | None, buffer: RowBuffer | None, room: int) -> Stream:
    """The stream of a state, and of rows in a buffer.

    ``room`` of the buffer, if rows like those before need no other check; else 0.
    """
    sizes, is_bounded = pca._sizes, _is_bounded(state)
    if state is not None:
        if not (room and is_bounded):
            pca._with_usual_weights(state.subspace, state.n_rows)
        buffer = buffer or empty_buffer(pca, state, room)
    assert buffer is not None
    unchecked = 0
    if is_bounded and (room or not (hasattr(pca, "feature_names_in_") or sizes.by_batch)):
        unchecked = sizes.few(buffer.rows.shape[1], buffer.room) - 1
    return Stream(state, buffer, unchecked)


def empty_buffer(pca: Any, state: State, room: int = 0) -> RowBuffer:
    """A buffer behind a state."""
    d, last = state.subspace.n_features, state.last_time
    times = None if last is None else np.empty(0, last.dtype)
    nothing = np.empty((0, d), state.subspace._dtype)
    return RowBuffer(nothing, room or pca._sizes.buffer(d), times)


def with_few(pca: Any, stream: Stream, X: Any, times: np.ndarray | None) -> Stream | None:
    """The stream with few rows, which are validated; None if they cannot wait for others."""
    state, buffer, _ = stream
    parts = list(validated_blocks(pca, X, None, None if buffer is None else buffer.rows.dtype))
    rows = in_numpy(parts[0][0])
    check_columns(pca, rows.shape[1])
    room = pca._sizes.buffer(rows.shape[1])
    if len(parts) > 1 or room == 1 or not is_bounded(rows.ravel()) or not _is_bounded(state):
        return None
    for _ in progress(pca, [rows], 1, "blocks"):
        pass
    if buffer is None or not buffer.n:
        return Stream(state, RowBuffer(rows.copy(), room, times))
    if times is None:
        return Stream(state, buffer.with_rows(rows))
    both = np.concatenate([buffer.times, times])  # of whichever unit
    return Stream(state, RowBuffer(np.concatenate([buffer.rows, rows]), room, both))


def _is_bounded(state: State | None) -> bool:
    """Whether no sum over what has been seen and over rows of moderate size can overflow."""
    if state is None:
        return True
    subspace = state.subspace
    return is_bounded_state(subspace.mean, subspace.total_variance, subspace._dtype)
