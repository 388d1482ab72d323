"""What the clients of `FederatedPCA` send: summaries of their rows, also of a few at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from inspect import signature
from numbers import Integral
from typing import Any, Literal, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_random_state

from .._base.adjusting import adjusting_of, adjusts, with_confounders
from .._base.batches import float_dtype, is_bounded_state
from .._base.fitted import LEARNT, Learnt, has_callbacks
from .._kernels.routes import block_size
from .._kernels.sizes import SMALL_DIMENSION, auto_oversampling, row_slices, slices_of
from .._kernels.small_blocks import summaries_of_blocks
from .._kernels.threads import threads_for
from .._validation.checks import check_at_most_features, is_integer
from ..communication._federation import log_fit
from ..streaming import StreamingPCA
from ..streaming._sizes import Sizes
from ..summary import Subspace
from ..summary._directions import are_alike
from ..summary._merging import tighter_fraction
from ._clients import StreamingClientsTransformer, label_order, shards_of
from ._local_fit import Site, Summarised, fit_site, with_label_as_site
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
                "_last_merge": LastMerge.of_clients(now),
                LEARNT: Learnt(merge._replace(clients=now, n_rows=n_rows)),
            }
        )
    log_fit(pca, len(after))
    return True


def fit_together(sites: Iterable[Any]) -> bool:
    """Whether all summaries are made here of the same columns, so that they need no check."""
    return all(isinstance(of.estimator, Summarised) and not of.summary.sites for of in sites)


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


# Entries of the rows of a client up to which a call costs more than its arithmetic.
_FEW_ENTRIES = 2**13
# Entries of all rows that are worked on at once, so that they stay in cache.
_ENTRIES_AT_ONCE = 2**17

# Parameters on which depends what a summary holds, or what is shown of it.
_OF_SUMMARIES = {"n_components", "oversampling", "whiten", "scale", "partial_out"}

Shards = list[tuple[Any, Any]]


def take_summaries(pca: Any, X: Any, weight: Any, shards: Shards, method: str) -> list[Any]:
    """Let clients summarise their rows, and merge the summaries of all; labels of the clients."""
    seen, work = pca._clients, work_of_clients(pca, X, method, weight is not None)
    unseen = [shard for shard in shards if shard[0] not in seen]
    seeds = check_random_state(pca.random_state).randint(2**31 - 1, size=len(seen) + len(unseen))
    of_new = dict(zip([label for label, _ in unseen], seeds[len(seen) :], strict=True))
    small = {}
    at_once = weight is None and isinstance(X, np.ndarray) and not has_callbacks(pca)
    if unseen and at_once and isinstance(work, Summarised):
        small = small_sites(work, X, unseen)
    others = [shard for shard in shards if shard[0] not in small] if small else shards
    weights = [None if weight is None else weight[at] for _, at in others]
    calls = (
        (label, seen.get(label), work, of_new.get(label), X[at], w, method)
        for (label, at), w in zip(others, weights, strict=True)
    )
    found = dict(pca._map(fit_site, calls, others))
    if small:  # in the order in which they appear
        found = {label: small.get(label) or found[label] for label, _ in shards}
    if any(site.summary.sites for site in seen.values()):
        found = {label: with_label_as_site(label, site) for label, site in found.items()}
    pca._clients = {**seen, **found}
    pca._merge_all()
    return list(found)


def work_of_clients(pca: Any, X: Any, method: str, weighted: bool) -> Summarised | BaseEstimator:
    """What each client does with its rows: takes them into a summary, or fits an estimator."""
    estimator, d = pca.estimator, X.shape[1]
    if _takes_the_rank(estimator, pca.merge):
        estimator = clone(estimator).set_params(n_components=_rank_of_clients(pca, d))
    elif estimator is None:
        n_components = _rank_of_clients(pca, d)
        beyond: int | Literal["auto"] = "auto"
        if isinstance(n_components, Integral) and d > SMALL_DIMENSION:
            beyond = auto_oversampling(n_components)  # as are worth their bytes in a message
        scale, confounders = adjusting_of(pca, d)  # rows come without names
        estimator = StreamingPCA(
            n_components,
            oversampling=beyond,
            scale=scale,
            partial_out=list(confounders) or None,
        )
    name = type(estimator).__name__
    if weighted and "sample_weight" not in signature(getattr(estimator, method)).parameters:
        raise TypeError(f"sample_weight was given, but {name}.{method} does not take it.")
    plain = pca.estimator is None and pca.merge is None  # its parameters are right
    if not (plain or keeps_summaries(estimator, d)):
        return estimator
    asked = estimator.n_components
    wanted = int(asked) if is_integer(asked) and not adjusts(estimator) else None
    work = Summarised(clone(estimator) if estimator is pca.estimator else estimator, wanted)
    return work if need_no_units(work, X) else estimator


def _rank_of_clients(pca: Any, d: int) -> int | float | None:
    """Directions, or share of the variance, that clients look for."""
    n_components = pca._directions_needed()
    if isinstance(n_components, float):
        return tighter_fraction(n_components)
    if n_components is None:
        return None
    return min(n_components, d - with_confounders(pca, 0))


def _takes_the_rank(estimator: Any, merge: Any) -> bool:
    """Whether the rank that every node is cut to is that of the clients' blocks, too."""
    if not getattr(merge, "truncate", False) or not isinstance(estimator, StreamingPCA):
        return False
    return estimator.n_components is None and estimator.rank_rule is None


def small_sites(clients: Summarised, X: np.ndarray, shards: Shards) -> dict[Any, Site]:
    """Sites of the new clients with few dense rows, as `fit_site` makes them one by one.

    Left out is a client whose directions are not certain to the digits of `StreamingPCA`, or whose
    rows are not finite: `fit_site` finds them in another way, or says what is wrong.
    """
    sites: dict[Any, Site] = {}
    d = X.shape[1]
    most, kept = _rows_and_directions(clients, d)
    by_size: dict[int, Shards] = {}
    for label, rows in shards:
        n = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        if 1 < n <= most:
            by_size.setdefault(n, []).append((label, rows))
    for n, alike in by_size.items():
        with threads_for(_ENTRIES_AT_ONCE):
            for some in slices_of(len(alike), max(1, _ENTRIES_AT_ONCE // (n * d))):
                sites.update(_sites(clients, X, alike[some], kept))
    return sites


def keeps_summaries(estimator: Any, d: int) -> bool:
    """Whether a summary is all that clients of an estimator keep, in any order of their rows."""
    if type(estimator) is not StreamingPCA or isinstance(estimator.n_components, str):
        return False
    for name, parameter in signature(StreamingPCA).parameters.items():
        if name not in _OF_SUMMARIES and getattr(estimator, name) != parameter.default:
            return False
    try:
        estimator._check_parameters()
        check_at_most_features(estimator.n_components, d)
    except (TypeError, ValueError):  # a client says so
        return False
    return True


def need_no_units(clients: Summarised, X: Any) -> bool:
    """Whether the rows of no client need units for its columns, as those of all are alike."""
    if not adjusts(clients.prototype):
        return True
    max_keep, keep = Sizes(clients.prototype).kept(X.shape[1])
    if not isinstance(X, np.ndarray) or keep is not None or max_keep not in (None, X.shape[1]):
        return False
    squares = np.zeros(X.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        mean = X.mean(axis=0, dtype=np.float64)
        for at in row_slices(*X.shape):
            squares += np.square(X[at] - mean).sum(axis=0)
        return are_alike(np.sqrt(squares)[None])


def _rows_and_directions(clients: Summarised, d: int) -> tuple[int, int]:
    """Rows up to which a client is small, and directions that are kept of it."""
    kept, keep = Sizes(clients.prototype).kept(d)
    if keep is not None:
        return 0, 0
    at_once = block_size(kept, d, False, clients.prototype.partial_out is not None)
    return min(d - 1, _FEW_ENTRIES // d, at_once), d if kept is None else kept


def _sites(
    clients: Summarised, X: np.ndarray, shards: Shards, kept: int
) -> Iterator[tuple[Any, Site]]:
    blocks = np.stack([X[rows] for _, rows in shards]).astype(float_dtype(X), copy=False)
    V, s, means, squares, certain = summaries_of_blocks(blocks, kept)
    n, scatter = blocks.shape[1], squares.sum(axis=1).tolist()
    for i in np.flatnonzero(certain).tolist():
        moments = (V[i], s[i], means[i], float(n), scatter[i], True)
        summary = Subspace._trusted(*moments, column_scatter=squares[i])
        yield shards[i][0], Site(clients, n, summary)
