"""What the clients of `FederatedPCA` send: summaries of their rows."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import signature
from numbers import Integral
from typing import Any, Literal

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_random_state

from .._base.adjusting import adjusting_of, adjusts, with_confounders
from .._base.batches import float_dtype
from .._base.callbacks import has_callbacks
from .._kernels.routes import block_size
from .._kernels.sizes import SMALL_DIMENSION, auto_oversampling, row_slices, slices_of
from .._kernels.small_blocks import summaries_of_blocks
from .._kernels.threads import threads_for
from .._validation.checks import check_at_most_features, is_integer
from ..streaming import StreamingPCA
from ..summary import Subspace
from ..summary._directions import are_alike
from ..summary._merging import tighter_fraction
from ._local_fit import Site, Summarised, fit_site, with_label_as_site

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
    max_keep, keep = clients.kept(X.shape[1])
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
    kept, keep = clients.kept(d)
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
