"""Base class of the estimators that take a stream in blocks, whatever its batches are."""

from __future__ import annotations

from abc import abstractmethod
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from .._kernels.threads import threads_for
from .._validation.arrays import in_numpy
from .._validation.checks import DEFAULT_RANK, check_at_most_features, check_finite
from .batches import RowBuffer, float_dtype, is_bounded_state, validated_batches
from .fitted import LEARNT, CallbackSupportMixin, Learnt, computed, progress, with_callbacks
from .sources import is_stream
from .transformer import SubspaceTransformer


class Stream(NamedTuple):
    """State of a stream after its full blocks, and the rows that do not fill a block yet.

    Attributes
    ----------
    fixed : dict
        Parameters that give the state its shape.
    state : object
    buffer : RowBuffer
        In float64.
    n_rows : int
        Number of all rows, those in the buffer as well.
    dtype : dtype
        float32 or float64, of the rows that came first.
    n_before : int
        Number of rows before the last batch.
    opened : bool, default=False
        Whether finite rows of that dtype need no other check.
    """

    fixed: dict[str, Any]
    state: Any
    buffer: RowBuffer
    n_rows: int
    dtype: np.dtype
    n_before: int
    opened: bool = False


class BlockTransformer(CallbackSupportMixin, SubspaceTransformer):
    """Base of the estimators whose state changes block by block.

    The blocks of a stream do not depend on the batches in which it comes. Rows that do not fill a
    block are kept in a buffer; the fitted attributes are those of a copy of the state that has
    taken them. Of rows that come a few at a time they are computed when one of them is read, if all
    that `_show` sets are `computed`. A subclass has a parameter ``n_components`` and a state of its
    choice, for which it writes four methods:

    - ``_block_rows(d, first=True)`` returns the number of rows of the first block, or of a later
      one, an integer of at least 1;
    - ``_start(d)`` returns the state before the first row of d features;
    - ``_next_state(state, Y)`` returns the state after a block Y, float64 of shape (m, d), and
      changes neither; rows that do not fill a block come as one with fewer;
    - ``_show(state, n_rows, dtype)`` sets the fitted attributes.

    It extends ``_fixed``, the names of the parameters that give the state its shape and cannot
    change between two calls of `partial_fit`. With `MissingEntriesMixin` before this class, Y may
    have NaN.
    """

    _fixed: tuple[str, ...] = ("n_components",)
    # variance of an entry beyond the components, of estimators of missing entries that know it
    _entry_noise: Any = computed()

    @with_callbacks
    def fit(self, X: Any, y: Any = None) -> Any:
        """Fit from scratch.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d), or iterable of such batches
            Sparse rows are densified block by block.
        y : Ignored
            Not used; there because scikit-learn's pipelines pass it.

        Returns
        -------
        self : object
            The fitted estimator; unchanged if an error is raised.
        """
        return self._process(X, None)

    def partial_fit(self, X: Any, y: Any = None) -> Any:
        """Update the fit with more rows; the result does not depend on the batches.

        Parameters that give the state its shape, such as ``n_components``, cannot change
        between calls. Others, as a ``forgetting_factor``, are those of the call that fills a block,
        for all of its rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d), or iterable of such batches
            The next rows of the stream, with the columns of the first call.
        y : Ignored
            Not used; there because scikit-learn's pipelines pass it.

        Returns
        -------
        self : object
            Unchanged if an error is raised.
        """
        return self if self._buffered(X) else self._go_on(X)

    # a `Stream`; None before a fit
    _stream = property(SubspaceTransformer._last_state)

    def _buffered(self, X: Any) -> bool:
        """Take a few rows into the buffer, if they do not fill it and need no other check."""
        stream = self._state_without_checks()
        if stream is None or not stream.opened:
            return False
        buffer, takes_nan = stream.buffer, self._takes_missing
        if not buffer.takes(X, None, buffer.room - buffer.n - 1, stream.dtype, takes_nan):
            return False
        n, buffer = stream.n_rows, buffer.with_rows(X)
        after = stream._replace(buffer=buffer, n_rows=n + len(X), n_before=n)
        self.__dict__[LEARNT] = Learnt(after)
        return True

    @with_callbacks
    def _go_on(self, X: Any, labels: Any = None) -> Any:
        return self._process(X, self._stream, labels)

    def _settle(self) -> None:
        stream = vars(self)[LEARNT].state
        self.__dict__[LEARNT] = Learnt(stream._replace(opened=False), self._values())

    def _compute(self, stream: Stream) -> dict[str, Any]:
        return self._shown(stream)[0]

    def _shown(self, stream: Stream) -> tuple[dict[str, Any], bool]:
        """Set the fitted attributes; return the computed ones, and whether these are all."""
        self.__dict__[LEARNT] = Learnt(stream, {})
        state, rows = stream.state, stream.buffer.rows
        d = rows.shape[1]
        with threads_for(d * (stream.buffer.room + self._rank(d))):
            if len(rows):
                state = self._next_state(state, rows)
                self._after_block(state, full=False)
            before = dict(vars(self))
            self._show(state, stream.n_rows, stream.dtype)
        after = dict(vars(self))
        values = after.pop(LEARNT).values
        return values, all(map(is_, map(before.get, after), after.values()))

    @abstractmethod
    def _block_rows(self, d: int, first: bool = True) -> int:
        """Rows of a block.

        Parameters
        ----------
        d : int
            Number of features.
        first : bool, default=True
            Whether the first block of the stream is meant, or a later one.

        Returns
        -------
        n_rows : int
            At least 1, and the same in all calls with the same parameters.
        """

    @abstractmethod
    def _start(self, d: int) -> Any:
        """State before the first row.

        Parameters
        ----------
        d : int
            Number of features.

        Returns
        -------
        state : object
            Whatever `_next_state` and `_show` take; pickled with the estimator.
        """

    @abstractmethod
    def _next_state(self, state: Any, Y: np.ndarray) -> Any:
        """State after a block of rows; changes neither the state nor the block.

        Parameters
        ----------
        state : object
            What `_start` or `_next_state` returned.
        Y : ndarray of shape (m, d), float64
            A full block, or the rows that wait for one, at least one.

        Returns
        -------
        state : object
            A new one.
        """

    @abstractmethod
    def _show(self, state: Any, n_rows: int, dtype: np.dtype) -> None:
        """Set the fitted attributes, by `_set_fitted` and others of the class.

        Parameters
        ----------
        state : object
            State after all rows; those that wait are in it.
        n_rows : int
            Number of all rows.
        dtype : dtype
            float32 or float64, that of the rows; the components should have it.
        """

    def _rank(self, d: int) -> int:
        """Components that are wanted of d features; with None 10, or all where there are fewer."""
        return min(DEFAULT_RANK, d) if self.n_components is None else int(self.n_components)

    def _check_parameters(self) -> None:
        """Raise an error that names a wrong parameter."""
        self._validate_params()

    def _begin_batch(self, stream: Stream, n: int, labels: Any) -> Any:
        """State before a batch of n rows; ``labels`` are what else the call says of its rows."""
        return stream.state

    def _after_block(self, state: Any, full: bool) -> None:
        """Called after each full block, and with ``full=False`` after the rest of a call."""

    def _process(self, X: Any, stream: Stream | None, labels: Any = None) -> Any:
        self._check_parameters()
        fixed = {name: getattr(self, name) for name in self._fixed}
        for name, value in fixed.items():
            if stream is not None and not np.array_equal(value, stream.fixed[name]):
                raise ValueError(
                    f"{name}={value!r} differs from {stream.fixed[name]!r} for the rows seen "
                    "before; call fit to start again."
                )
        with self._unchanged_on_error():
            batches = validated_batches(self, X, stream is None)
            n_batches = None if is_stream(X) else 1
            for batch in progress(self, batches, n_batches, "batches"):
                n, d = batch.shape
                if stream is None:
                    check_at_most_features(self.n_components, d)
                    nothing, dtype = RowBuffer(np.empty((0, d)), 1), float_dtype(batch)
                    stream = Stream(fixed, self._start(d), nothing, 0, dtype, 0)
                stream = self._with_batch(stream, batch, self._begin_batch(stream, n, labels))
                del batch  # before the next one is read
            assert stream is not None  # a stream without batches has been refused
            values, complete = self._shown(stream)
            subspace, opened = values["subspace_"], False
            if complete and labels is None and not hasattr(self, "feature_names_in_"):
                variance = subspace.total_variance
                opened = is_bounded_state(subspace.mean, variance, stream.dtype)
            self.__dict__[LEARNT] = Learnt(stream._replace(opened=opened), values)
        return self

    def _with_batch(self, stream: Stream, batch: Any, state: Any) -> Stream:
        """The stream after the rows of its buffer and those of a batch, block by block."""
        (n, d), waiting, at = batch.shape, stream.buffer.rows, 0
        later = self._block_rows(d, False)
        size = later if stream.n_rows > len(waiting) else self._block_rows(d)
        with threads_for(d * (size + self._rank(d))):
            while True:
                rows = batch[at : at + size - len(waiting)]
                at += rows.shape[0]
                if type(rows) is not np.ndarray:
                    rows = rows.toarray() if sp.issparse(rows) else in_numpy(rows)
                rows = rows.astype(np.float64, order="C")
                check_finite(rows, allow_nan=self._takes_missing)
                waiting = np.concatenate([waiting, rows]) if len(waiting) else rows
                if len(waiting) < size:
                    break
                state = self._next_state(state, waiting)
                self._after_block(state, full=True)
                waiting, size = waiting[:0], later
        buffer, n_before = RowBuffer(waiting, size), stream.n_rows
        return stream._replace(state=state, buffer=buffer, n_rows=n_before + n, n_before=n_before)
