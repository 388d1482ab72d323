"""`fit` and `partial_fit` of the trackers whose rows fade, with ``times`` of the rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._base.callbacks import with_callbacks
from ._half_life import times_of_rows


class Times(NamedTuple):
    """Times of the rows of a call, and the number of rows before it."""

    times: np.ndarray
    n_before: int


def _times_of_call(tracker: Any, times: Any, X: Any, stream: Any) -> Times | None:
    """Times of the rows of a call, if the half-life is one."""
    if times is None and tracker.half_life is None:
        return None
    found = times_of_rows(tracker.half_life, times, X)
    return None if found is None else Times(found, 0 if stream is None else stream.n_rows)


@with_callbacks
def fit(self: Any, X: Any, y: Any = None, times: Any = None) -> Any:
    """Fit from scratch.

    Parameters
    ----------
    X : {array-like, sparse matrix} of shape (n, d), or iterable of such batches
        Sparse rows are densified block by block.
    y : Ignored
        Not used; there because scikit-learn's pipelines pass it.
    times : array-like of shape (n,), default=None
        Time of each row, for a ``half_life`` that is a time: datetime64, or what numpy reads as
        such, in order. Not for iterables.

    Returns
    -------
    self : object
        The fitted estimator; unchanged if an error is raised.
    """
    return self._process(X, None, _times_of_call(self, times, X, None))


def partial_fit(self: Any, X: Any, y: Any = None, times: Any = None) -> Any:
    """Update the fit with more rows; the result does not depend on the batches.

    Parameters that give the state its shape, such as ``n_components``, cannot change
    between calls.

    Parameters
    ----------
    X : {array-like, sparse matrix} of shape (n, d), or iterable of such batches
        The next rows of the stream, with the columns of the first call.
    y : Ignored
        Not used; there because scikit-learn's pipelines pass it.
    times : array-like of shape (n,), default=None
        As in `fit`; none before the last one of the rows seen so far.

    Returns
    -------
    self : object
        Unchanged if an error is raised.
    """
    if times is None and self._buffered(X):
        return self
    return self._go_on(X, _times_of_call(self, times, X, self._stream))
