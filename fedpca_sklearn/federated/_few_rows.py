"""Rows that come a few at a time: clients take them, and are merged when somebody reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .._base.adjusting import adjusts
from .._base.fitted import LEARNT, Learnt
from .._kernels.bounded import is_bounded_state
from ..communication._federation import log_fit
from ..summary import Subspace
from ._clients import StreamingClientsTransformer, label_order, shards_of
from ._filling import ConditionalFill
from ._local_fit import Estimators, Summarised
from ._merge import LastMerge, MergeStrategy

# Numbers of rows, with weights, that add up to a number whose products with variances are finite.
_USUAL_WEIGHTS = 1e-30, 1e30


class LaterMerge(NamedTuple):
    """Clients whose summaries are merged when an attribute of the merge is read.

    ``new``: what the next client does, if rows of clients need no check but that of their numbers.
    """

    strategy: MergeStrategy
    clients: dict[Any, Any]
    n_rows: int
    new: Summarised | None


def goes_on(pca: Any) -> bool:
    """Whether clients take more rows: not where rounds, or their estimators, need all at once."""
    can = pca.estimator is None or hasattr(pca.estimator, "partial_fit")
    return can and not isinstance(pca.missing, ConditionalFill)


def partial_fit(
    self: Any, X: Any, y: Any = None, clients: Any = None, sample_weight: Any = None
) -> Any:
    """Update the fit with more rows, of known or new clients.

    Parameters
    ----------
    X : {array-like, sparse matrix} of shape (n, d)
        The next rows, with the columns of the first call.
    y : Ignored
        Not used; there because scikit-learn's pipelines pass it.
    clients : array-like of shape (n,) or str, default=None
        Label of the client that owns each row, as in `fit`.
    sample_weight : array-like of shape (n,), default=None
        Weight of each row; None: 1. Integer weights equal repeated rows.

    Returns
    -------
    self : object
        Unchanged if an error is raised, but for what private clients have spent by then.
    """
    if sample_weight is None and _are_taken(self, X, clients):
        return self
    return StreamingClientsTransformer.partial_fit(self, X, y, clients, sample_weight)


def _are_taken(pca: Any, X: Any, clients: Any) -> bool:
    """Take rows of known clients, if nothing else has changed since the last call."""
    merge = pca._state_without_checks()
    if not isinstance(merge, LaterMerge) or merge.new is None or pca.n_refinements_:
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
            site = (before.estimator if before else merge.new).after(before, X[rows])
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
                "estimators_": Estimators(now),
                "_last_merge": LastMerge.of_clients(now),
                LEARNT: Learnt(merge._replace(clients=now, n_rows=n_rows)),
            }
        )
    log_fit(pca, len(after))
    return True


def merged_later(
    pca: Any, strategy: MergeStrategy, whole: Sequence[Subspace], n_rows: int, simple: bool
) -> LaterMerge | None:
    """The merge of all clients, to be made when somebody reads; None: it may be an error.

    Clients then send all that they know at once. ``simple``: no subclass does more with rows.
    """
    if not strategy._adds_up or pca._trust is not None or adjusts(pca):
        return None
    if isinstance(pca.n_components, str):
        return None
    least, most = _USUAL_WEIGHTS
    for summary in whole:
        if not least < summary.n_samples < most:
            return None
        if not is_bounded_state(summary.mean, summary.total_variance, summary._dtype):
            return None
    return LaterMerge(strategy, pca._clients, n_rows, _opened(pca) if simple else None)


def _opened(pca: Any) -> Summarised | None:
    """What the next client does, if clients keep sums and no parameter is an object."""
    if hasattr(pca, "feature_names_in_") or pca.n_jobs not in (None, 1):
        return None
    if pca.estimator is not None or pca.merge is not None:
        return None
    sites = list(pca._clients.values())
    known = {type(site.estimator) for site in sites} == {Summarised}
    return sites[-1].estimator if known else None
