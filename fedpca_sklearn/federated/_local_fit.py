"""Clients of `FederatedPCA` that fit an estimator, or whose rows come a few at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, clone

from .._base.batches import count_rows, is_bounded
from .._base.fitted import LEARNT, Learnt
from .._kernels.device_rows import in_memory
from .._kernels.rows import entries_once
from .._kernels.threads import computed_once
from .._kernels.too_large import TooLargeError
from .._validation.containers import check_text
from ..communication._federation import Message, log_fit
from ..streaming import StreamingPCA
from ..streaming._blocks import State, Stream, after_blocks, blocks_of, has_bounds, stream_of
from ..streaming._sizes import Sizes
from ..summary import Subspace
from ..summary._exact import ScatterMatrix
from ._clients import StreamingClientsTransformer, label_order, shards_of
from ._merge import LastMerge, MergeStrategy

# Values whose fourth powers, as solvers may form them, are still finite.
_LARGE = 1e70


class Site(NamedTuple):
    """State of a client in the simulation.

    ``estimator`` is fitted to its rows; or `Summarised`, where the summary is the whole state; or
    None, of a client that came as a summary.
    """

    estimator: Any
    n_rows: int
    summary: Any

    @property
    def message(self) -> Message:
        """Size of the summary."""
        return Message(*self.summary._size())


def fit_estimator(
    before: Site | None,
    prototype: BaseEstimator,
    seed: int | None,
    X: Any,
    weight: Any,
    method: str,
) -> Site:
    """Local work of a client: a fit of its estimator, or of a copy of what it has fitted."""
    estimator: Any
    n_samples, scatter = float(X.shape[0] if weight is None else weight.sum()), 0.0
    n_rows = count_rows(X, weight)
    if before is None:
        estimator = clone(prototype)
        known = estimator.get_params(deep=False)
        if seed is not None and "random_state" in known:
            estimator.set_params(random_state=int(seed))
        if known.get("copy") is False:  # the rows are the caller's
            estimator.set_params(copy=True)
    else:
        estimator, n_rows = _going_on(before, prototype), n_rows + before.n_rows
        n_samples, scatter = n_samples + before.summary.n_samples, before.summary.scatter
    if not isinstance(estimator, StreamingPCA):
        X = entries_once(in_memory(X))  # others square entries as they are stored
        if before is None:
            _check_columns_have_entries(X)
    options = {} if weight is None else {"sample_weight": weight}
    with np.errstate(all="ignore"), _named_if_too_large(X, estimator):
        getattr(estimator, method)(X, **options)
        if isinstance(estimator, StreamingPCA):
            return Site(estimator, n_rows, estimator._flush())
        known = {"n_samples": n_samples}
        if not hasattr(estimator, "mean_"):  # about the origin, as TruncatedSVD
            known["scatter"] = scatter + _sum_of_squares(X, weight)
        return Site(estimator, n_rows, Subspace.from_estimator(estimator, **known))


@contextmanager
def _named_if_too_large(X: Any, estimator: BaseEstimator) -> Iterator[None]:
    """Say that values are too large where another library's estimator fails on large values."""
    try:
        yield
    except (ValueError, np.linalg.LinAlgError) as error:
        values = X.data if sp.issparse(X) else X
        if isinstance(error, TooLargeError) or isinstance(estimator, StreamingPCA):
            raise
        largest = float(np.nanmax(np.abs(values), initial=0.0))
        if not _LARGE < largest < np.inf:
            raise
        name = type(estimator).__name__
        message = f"X holds values that are too large for {name}, up to {largest:.1e}."
        raise TooLargeError(message) from error


def _check_columns_have_entries(X: Any) -> None:
    """Raise for a column without entries, of which a tracker's summary says that it is zero."""
    if sp.issparse(X):
        lost = np.bincount(X.indices[np.isnan(X.data)], minlength=X.shape[1]) == X.shape[0]
    else:
        lost = np.isnan(X).all(axis=0)
    if lost.any():
        raise ValueError(
            f"column {lost.argmax()} has no entries, and a summary would tell that it is constant. "
            "missing=AvailablePairs() and missing=ConditionalFill() take such rows."
        )


def _going_on(before: Site, prototype: Any) -> BaseEstimator:
    """Copy of a site's estimator, or an estimator that continues from the site's summary."""
    if before.estimator is not None:
        return deepcopy(before.estimator)
    if not before.n_rows:
        return clone(prototype)
    if not hasattr(prototype, "from_subspace"):
        raise ValueError(
            f"it was given as a summary, from which {type(prototype).__name__} cannot go on, "
            "unlike StreamingPCA; use another label for further rows."
        )
    summary = before.summary._replace(feature_names=None)  # rows come without names
    parameters = clone(prototype).get_params(deep=False)
    return prototype.from_subspace(summary, n_samples_seen=before.n_rows, **parameters)


def with_label_as_site(label: Any, site: Site) -> Site:
    """Site whose summary has the client's label as name, so that no later merge counts it twice."""
    if not isinstance(label, str):
        return site
    named = site.summary._replace(site=check_text("site", label))
    return site._replace(summary=named)


def _sum_of_squares(X: Any, weight: np.ndarray | None) -> float:
    if sp.issparse(X):
        of_rows = sp.csr_array(X, dtype=np.float64).power(2).sum(axis=1)
    else:
        of_rows = np.einsum("ij,ij->i", X, X, dtype=np.float64)
    return float(of_rows.sum() if weight is None else of_rows @ weight)


def labels_of_sites(subspaces: Sequence[Any]) -> list[Any]:
    """Sites, or positions where one is not known."""
    sites = [s.site for s in subspaces]
    return list(range(len(sites))) if None in sites else sites


def check_any_rows(subspaces: Sequence[Subspace]) -> None:
    """Raise if no summary has a row."""
    if not any(s.n_samples > 0 for s in subspaces):
        raise ValueError("subspaces must hold at least one row, all have n_samples=0.")


def rows_of_summary(part: Any) -> int:
    """Rows that moments or a summary stand for, as a whole number.

    Rows that fade, or of small weights, are no fewer than the directions that they have.
    """
    n = round(part.n_samples)
    if n < part.n_features and isinstance(part, Subspace) and part.privacy is None:
        n = max(n, part.n_components)
    return max(1, n) if part.n_samples > 0 else 0


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


def goes_on(pca: Any) -> bool:
    """Whether clients take more rows: not where rounds, or their estimators, need all at once."""
    can = pca.estimator is None or hasattr(pca.estimator, "partial_fit")
    return can and getattr(pca.missing, "_goes_on", True)


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
    X = X.astype(np.float64) if X.dtype.kind in "biu" else X
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
                "_last_merge": LastMerge(clients=now),
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
        return _site_of, (self.estimator, self.whole, self.buffer.room)


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
    if site is None or type(X) is not np.ndarray or X.dtype != site.buffer.first.dtype:
        return None
    longer = site.stream.with_rows(X, None)
    if longer is not None and not longer.is_full:
        used = site.used
        if not used.all():
            one = site.before.subspace.mean if site.before.n_rows else longer.buffer.rows[0]
            used = used | (one != X).any(axis=0)
        return WaitingSite(work, longer, site.k, used)
    if longer is not None:
        state = longer.after(work.stream)
    elif is_bounded(X.ravel()):
        blocks = blocks_of(work.stream, X)
        state = after_blocks(work.stream, blocks, blocks[0][0].shape, site.whole)
    else:
        return None
    return _site_of(work, state, site.buffer.room, site.k)


def _site_of(work: Any, state: State, room: int, k: int = 0) -> Site | WaitingSite:
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
    sizes = Sizes(work.stream, d)
    least = d if sizes.keeps_all else sizes.few(sizes.buffer())
    return min(sizes.block(), max(_WAITING_ENTRIES // d, least))


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
