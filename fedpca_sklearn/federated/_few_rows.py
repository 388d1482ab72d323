"""Rows of clients of `FederatedPCA` that come a few at a time, and wait for others."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._base.batches import is_bounded
from .._base.fitted import LEARNT, Learnt
from .._kernels.threads import computed_once
from ..communication._federation import Message, log_fit
from ..streaming._blocks import State, Stream, after_rows, has_bounds, stream_of
from ..summary import Subspace
from ..summary._exact import ScatterMatrix
from ._clients import StreamingClientsTransformer, label_order, shards_of
from ._local_fit import Site
from ._merge import LastMerge, MergeStrategy

# Entries of the rows that wait at a client: 512 kB, or a square where a stream would keep one.
_WAITING_ENTRIES = 2**16


class DeferredMerge(NamedTuple):
    """Clients whose summaries are merged when an attribute of the merge is read.

    ``new``: what the next client does (`Summarised`), if rows of clients need no check but that of
    their numbers.
    """

    strategy: MergeStrategy
    clients: dict[Any, Any]
    n_rows: int
    new: Any


def partial_fit(
    self: Any, X: Any, y: Any = None, clients: Any = None, sample_weight: Any = None
) -> Any:
    """See `StreamingClientsTransformer.partial_fit`, whose text is this one's."""
    if sample_weight is None and _are_taken(self, X, clients):
        return self
    return StreamingClientsTransformer.partial_fit(self, X, y, clients, sample_weight)


partial_fit.__doc__ = StreamingClientsTransformer.partial_fit.__doc__


def _are_taken(pca: Any, X: Any, clients: Any) -> bool:
    """Take rows of known clients, if nothing else has changed since the last call."""
    merge = pca._state_without_checks()
    if not isinstance(merge, DeferredMerge) or merge.new is None or pca.n_refinements_:
        return False
    if type(X) is not np.ndarray or X.ndim != 2 or not len(X) or isinstance(clients, str):
        return False
    if X.shape[1] != pca.n_features_in_ or X.dtype not in (np.float64, np.float32):
        return False
    with pca._unchanged_on_error():
        seen: dict[Any, Any] = pca._clients
        after: dict[Any, Any] = {}
        shards = shards_of(len(X), clients, pca.n_clients)
        for label, rows in shards:
            before = seen.get(label)
            if before is None and len(shards) > 1:  # many are summarised at once
                return False
            site = after_few(before.estimator if before else merge.new, before, X[rows])
            if site is None:
                return False
            after[label] = site
        log, now = pca.communication_.copy(), {**seen, **after}
        log.record(site.message for site in after.values())
        log.floats_pooled += X.size
        same, n_rows = len(now) == len(seen), merge.n_rows + len(X)
        pca.__dict__.update(
            {
                "_clients": now,
                "clients_": pca.clients_ if same else sorted(now, key=label_order),
                "communication_": log,
                "_last_merge": LastMerge.of_clients(now),
                LEARNT: Learnt(merge._replace(clients=now, n_rows=n_rows)),
            }
        )
    log_fit(pca, len(after))
    return True


class WaitingSite:
    """State of a client with rows in a buffer, as `Site`; its summary is computed when read.

    What is read changes no later number: more rows follow those in the buffer, after those before,
    of which a scatter matrix is kept where a stream would keep one. Copies and pickles have no
    rows, but the summary.

    Parameters
    ----------
    estimator : Summarised
    stream : Stream
        As which the client goes on, with all directions where a scatter matrix has them.
    k : int
        Number of directions that are sent of the rows before those in the buffer.
    used : ndarray of shape (d,)
        Columns that are not constant.
    """

    def __init__(self, estimator: Any, stream: Stream, k: int, used: np.ndarray):
        self.estimator, self.stream, self.k, self.used = estimator, stream, k, used
        self.before, self.buffer, _ = stream
        self.n_rows = self.before.n_rows + self.buffer.n

    @computed_once
    def whole(self) -> State:
        """The state with the rows of the buffer."""
        return self.stream.after(self.estimator.stream)

    @computed_once
    def settled(self) -> Site:
        """The client with its rows in the summary, which is as large as what is sent."""
        return self.estimator.sent(self.whole)

    @property
    def summary(self) -> Subspace:
        """Summary of all rows."""
        return self.settled.summary

    @property
    def message(self) -> Message:
        """Size of the summary, to which each row in the buffer adds a direction if one can come.

        None comes any more where many rows before span fewer than there are columns.
        """
        known, k, n = self.before.subspace, self.k, self.buffer.n
        if n and self.before.n_rows <= 2 * known.n_features:
            k = max(k, min(k + n, self.n_rows - 1, _most(self.estimator, self.used)))
        return Message(*known._size_with(k))

    def _replace(self, **changes: Any) -> Site:
        return self.settled._replace(**changes)

    def __reduce__(self):
        return _going_on, (self.estimator, self.whole, self.buffer.room)


def after_few(
    work: Any, site: Site | WaitingSite | None, X: Any, waits: bool = True
) -> Site | WaitingSite | None:
    """A client after more rows, of which few wait for others; None where more is to be checked.

    Taken are rows of moderate size, in an array, after such rows, or of a new client. ``work`` is
    `Summarised`.
    """
    if not isinstance(site, WaitingSite):
        site = site or work.start(X)
        room = _room(work, X.shape[1]) if waits else 1
        site = _waiting(work, State(site.summary, site.n_rows), room)
    if site is None or type(X) is not np.ndarray or X.dtype != site.buffer.dtype:
        return None
    longer = site.stream.with_rows(X, None)
    if longer is not None and not longer.is_full:
        used = site.used
        if not used.all():
            one = site.before.subspace.mean if site.before.n_rows else longer.buffer.rows[0]
            used = used | (one != X).any(axis=0)
        return WaitingSite(work, longer, site.k, used)
    if longer is None and not is_bounded(X.ravel()):
        return None
    state = after_rows(work.stream, X, site.whole) if longer is None else longer.after(work.stream)
    return _going_on(work, state, site.buffer.room, site.k)


def _going_on(work: Any, state: State, room: int, k: int = 0) -> Site | WaitingSite:
    return _waiting(work, state, room, k) or work.sent(state)


def _waiting(work: Any, state: State, room: int, k: int = 0) -> WaitingSite | None:
    """A client whose rows may wait; None where sums of moderate rows may overflow.

    Of k directions that it had before none is lost.
    """
    summary = state.subspace
    if summary.column_scatter is None or not has_bounds(state):
        return None
    used = summary.column_scatter > 0
    k = k if k and k == _most(work, used) else _directions(work, summary, used)
    return WaitingSite(work, stream_of(work.stream, state, None, room), k, used)


def _room(work: Any, d: int) -> int:
    """Rows from which on a client takes them."""
    sizes = work.stream._sizes
    least = d if sizes.keeps_all(d) else sizes.few(d)
    return min(sizes.block(d), max(_WAITING_ENTRIES // d, least))


def _most(work: Any, used: np.ndarray) -> int:
    """Directions that a summary may have of columns of which these are not constant."""
    kept = len(used) if work.max_rank is None else work.max_rank
    return min(kept, int(np.count_nonzero(used)))


def _directions(work: Any, summary: Subspace, used: np.ndarray) -> int:
    """Directions that are sent of a summary."""
    most, leading = _most(work, used), summary._leading
    if isinstance(leading, ScatterMatrix) and leading.certainty.n_known >= most:
        return most  # as so many eigenvalues are certain
    return min(most, summary.n_components)
