"""What the clients of `FederatedPCA` do with the rows of a call: summaries, to be merged."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from numbers import Integral
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from .._base.adjusting import (
    adjusting_of,
    adjusts,
    check_columns,
    warn_of_another_cut,
    warn_of_models,
    with_confounders,
)
from .._base.batches import float_dtype, is_bounded_state
from .._base.fitted import has_callbacks, show_in
from .._kernels import sizes
from .._kernels.linalg import two_sum
from .._kernels.scatter import dense
from .._kernels.threads import threads_for
from .._kernels.tolerances import ORTHONORMALITY_TOL
from .._validation.arrays import NAMESPACE
from .._validation.checks import check_at_most_features, check_rows, is_integer
from .._validation.containers import composed
from ..streaming import StreamingPCA
from ..streaming._blocks import State, after_blocks, blocks_of
from ..streaming._sizes import Sizes
from ..summary import Subspace
from ..summary._adjusted import scatter_of_columns
from ..summary._directions import are_equilibrated
from ..summary._exact import scatter_of_blocks
from ..summary._merging import checked_with_namespace, names_of_parts, tighter_fraction
from . import _local_fit as local
from ._clients import label_order, rows_of
from ._merge import MergeStrategy


def summaries_of_blocks(blocks: np.ndarray, most: int) -> tuple[np.ndarray, ...]:
    """Directions of c blocks of n rows, by the Gram matrices of their centred rows.

    As by the first block of a stream (`stack.DenseBlock`), with the same certificates: the spread
    of the eigenvalues, and the orthonormality of the directions. Blocks with entries that are not
    finite are not certain either.

    Parameters
    ----------
    blocks : ndarray of shape (c, n, d), float64
        Of at least two rows and more columns.
    most : int
        Bound on the directions kept, at least 1.

    Returns
    -------
    components, singular_values : ndarray
        ``min(most, n - 1)`` directions of each block, as centring takes one.
    means, lows, column_scatter : ndarray of shape (c, d)
        A mean is the sum of the first two.
    certain : ndarray of shape (c,), bool
        Where it is not true, nothing holds.
    """
    n, dtype = blocks.shape[1], blocks.dtype
    with np.errstate(all="ignore"):
        Z, means, lows = _about_their_means(blocks)
        column_scatter = np.einsum("cij,cij->cj", Z, Z)
        G = Z @ Z.transpose(0, 2, 1)
        certain = np.isfinite(column_scatter.sum(axis=1)) & np.isfinite(G).all(axis=(1, 2))
        G[~certain] = 0.0
        lam, U = np.linalg.eigh(G)
        lam, U = lam[:, :0:-1][:, :most], U[:, :, :0:-1][:, :, :most]
        certain &= lam[:, -1] > n * np.finfo(dtype).eps * lam[:, 0]
        s = np.sqrt(lam)
        W = np.ascontiguousarray((U / s[:, None]).transpose(0, 2, 1))
        V = W @ Z
        errors = np.abs(V @ V.transpose(0, 2, 1) - np.eye(V.shape[1])).max(axis=(1, 2))
        certain &= errors <= ORTHONORMALITY_TOL[dtype]
    negative = -V.min(axis=2) > V.max(axis=2)
    np.negative(V, out=V, where=negative[:, :, None])
    return V, s, means, lows, column_scatter, certain


def _about_their_means(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows of each block about their mean, and the means in two parts."""
    shift = blocks[:, 0]
    Z = blocks - shift[:, None]
    offset = Z.mean(axis=1)
    Z -= offset[:, None]
    return Z, *two_sum(shift, offset)


# Numbers of rows, with weights, that add up to a number whose products with variances are finite.
_USUAL_WEIGHTS = 1e-30, 1e30
# Entries of the rows of a client up to which a call costs more than its arithmetic.
_FEW_ENTRIES = 2**13
# Entries of all rows that are worked on at once, so that they stay in cache.
_ENTRIES_AT_ONCE = 2**17

# Parameters on which depends what a summary holds, or what is shown of it.
_OF_SUMMARIES = {"n_components", "oversampling", "whiten", "scale", "partial_out"}

Shards = list[tuple[Any, Any]]


@dataclass(frozen=True)
class Summarised:
    """Clients of which nothing is kept but a summary, from which `StreamingPCA` can go on.

    ``prototype`` is not fitted: it says how many directions are sent, ``max_rank`` or as many as
    ``choose_rank`` returns, of which the first ``n_certain`` will be read. ``knows_all``: a stream
    of as many components keeps all directions. ``waits``: the merge is made when it is read, and
    few rows of a call may be buffered until then.
    """

    prototype: StreamingPCA
    max_rank: int | None
    choose_rank: Any
    n_certain: int | None
    knows_all: bool
    waits: bool

    @property
    def stream(self) -> StreamingPCA:
        """As what clients go on: all directions are known to it that they send."""
        n_components, beyond = self.prototype.n_components, self.prototype.oversampling
        if adjusts(self.prototype):
            return self.prototype
        if self.knows_all and self.n_certain is not None and beyond != "auto":
            return _stream(self.n_certain + int(beyond), "auto")
        return _stream(n_components, beyond)

    def start(self, X: Any) -> local.Site:
        """A client before its first rows."""
        return local.Site(self, 0, _no_rows(X.shape[1], X.dtype))

    def sent(self, state: State) -> local.Site:
        """A client with the directions that it sends."""
        return local.Site(self, state.n_rows, state.subspace._part(self.max_rank))

    def work(self, before: Any, X: Any, weight: Any = None) -> local.Site:
        """Local work of one client: its summary with more rows, which have been checked."""
        past, n_rows = _no_rows(X.shape[1], X.dtype), 0
        if before is not None and before.n_rows:
            if not before.summary.centered:
                self.fitted(before)  # which says that it is not
            # rows come without the names of the columns
            past, n_rows = before.summary._replace(feature_names=None), before.n_rows
            X = X.astype(past._dtype, copy=False)
        with np.errstate(all="ignore"):
            blocks = blocks_of(self.prototype, X, weight)
            shape, state = blocks[0][0].shape, State(past, n_rows)
            state = after_blocks(self.prototype, blocks, shape, state)
        return local.Site(self, state.n_rows, state.subspace)

    def fitted(self, site: local.Site | local.WaitingSite) -> StreamingPCA:
        """The estimator that the client of a summary has fitted."""
        summary = site.summary._replace(feature_names=None)
        parameters = self.prototype.get_params(deep=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of rows that span fewer directions
            return StreamingPCA.from_subspace(summary, n_samples_seen=site.n_rows, **parameters)


@lru_cache(maxsize=16, typed=True)
def _stream(n_components: Any, oversampling: Any) -> StreamingPCA:
    """A stream that is not fitted."""
    return StreamingPCA(n_components, oversampling=oversampling)


@lru_cache(maxsize=4)
def _no_rows(d: int, dtype: np.dtype) -> Subspace:
    """Summary that clients begin with."""
    return Subspace.empty(d, dtype=dtype)


def fitted_estimators(sites: Mapping[Any, local.Site]) -> dict[Any, Any]:
    """Label -> fitted sub-estimator, of a client that keeps a summary one that goes on from it."""
    found = {label: sites[label].estimator for label in sorted(sites, key=label_order)}
    return {
        label: estimator.fitted(sites[label]) if isinstance(estimator, Summarised) else estimator
        for label, estimator in found.items()
        if estimator is not None
    }


def fit_site(
    label: Any,
    before: local.Site | local.WaitingSite | None,
    prototype: Summarised | BaseEstimator,
    seed: int | None,
    X: Any,
    weight: Any,
    method: str,
) -> local.Site | local.WaitingSite:
    """Local work of one client: its summary, or a fit of its estimator, or a copy of it."""
    known: Any = None if before is None else before.estimator
    if isinstance(prototype, Summarised):
        if known is None or isinstance(known, Summarised):
            work, after = known or prototype, None
            goes_on = before is None or (known is not None and before.n_rows)
            if weight is None and method == "partial_fit" and goes_on:
                after = local.after_few(work, before, X, prototype.waits)
            return after or work.work(before, check_rows(X), weight)
        prototype = prototype.prototype
    if before is not None and isinstance(known, Summarised):
        before = local.Site(known.fitted(before), before.n_rows, before.summary)
    return local.fit_estimator(before, prototype, seed, X, weight, method)  # type: ignore[arg-type]


def take_summaries(pca: Any, X: Any, weight: Any, shards: Shards, method: str) -> list[Any]:
    """Let clients summarise their rows, and merge the summaries of all; labels of the clients."""
    seen, work = pca._clients, work_of_clients(pca, X, method, weight is not None)
    unseen = [shard for shard in shards if shard[0] not in seen]
    seeds = check_random_state(pca.random_state).randint(2**31 - 1, size=len(seen) + len(unseen))
    of_new = dict(zip([label for label, _ in unseen], seeds[len(seen) :], strict=True))
    small = {}
    in_memory = isinstance(X, np.ndarray) or sp.issparse(X)
    at_once = weight is None and in_memory and not has_callbacks(pca)
    if unseen and at_once and isinstance(work, Summarised):
        small = small_sites(work, X, unseen)
    others = [shard for shard in shards if shard[0] not in small] if small else shards
    calls = (
        (label, seen.get(label), work, of_new.get(label), rows, w, method)
        for label, rows, w in rows_of(X, weight, others)
    )
    found = dict(pca._map(fit_site, calls, others))
    if small:  # in the order in which they appear
        found = {label: small.get(label) or found[label] for label, _ in shards}
    if any(site.summary.sites for site in seen.values()):
        found = {label: local.with_label_as_site(label, site) for label, site in found.items()}
    pca._clients = {**seen, **found}
    pca._merge_all()
    return list(found)


def work_of_clients(pca: Any, X: Any, method: str, weighted: bool) -> Summarised | BaseEstimator:
    """What each client does with its rows: takes them into a summary, or fits an estimator."""
    estimator, d = pca.estimator, X.shape[1]
    asks = isinstance(estimator, StreamingPCA) and getattr(pca.merge, "truncate", False)
    if asks and estimator.n_components is None and estimator.rank_rule is None:
        # the rank that every node is cut to is that of the clients' blocks, too
        estimator = clone(estimator).set_params(n_components=_rank_of_clients(pca, d))
    elif estimator is None:
        n_components = _rank_of_clients(pca, d)
        beyond: int | Literal["auto"] = "auto"
        if isinstance(n_components, Integral) and d > sizes.SMALL_DIMENSION:
            beyond = sizes.auto_oversampling(n_components)  # as are worth their bytes in a message
        scale, confounders, _ = adjusting_of(pca, d)  # rows come without names
        estimator = StreamingPCA(
            n_components, oversampling=beyond, scale=scale, partial_out=list(confounders) or None
        )
    name = type(estimator).__name__
    if weighted and "sample_weight" not in signature(getattr(estimator, method)).parameters:
        raise TypeError(f"sample_weight was given, but {name}.{method} does not take it.")
    plain = pca.estimator is None and pca.merge is None  # its parameters are right
    if not (plain or keeps_summaries(estimator, d)):
        return estimator
    estimator = clone(estimator) if estimator is pca.estimator else estimator
    asked = estimator.n_components
    n_certain = int(asked) if is_integer(asked) and not adjusts(estimator) else None
    knows_all = d <= sizes.exact_dimension(n_certain)
    waits = method == "partial_fit" and _merge_is_deferred(pca, pca.merge)
    of_blocks = Sizes(estimator, d)
    kept = of_blocks.max_rank, of_blocks.choose_rank
    return Summarised(estimator, *kept, n_certain, knows_all, waits)


def _rank_of_clients(pca: Any, d: int) -> int | float | None:
    """Directions, or share of the variance, that clients look for."""
    n_components = pca._directions_needed()
    if isinstance(n_components, float):
        return tighter_fraction(n_components)
    if n_components is None:
        return None
    return min(n_components, d - with_confounders(pca, 0))


def small_sites(clients: Summarised, X: np.ndarray, shards: Shards) -> dict[Any, local.Site]:
    """Sites of the new clients with few rows, as `fit_site` makes them one by one.

    Sparse rows are copied into dense blocks.

    Left out is a client whose directions are not certain to the digits of `StreamingPCA`, or whose
    rows are not finite: `fit_site` finds them in another way, or says what is wrong.
    """
    sites: dict[Any, local.Site] = {}
    d, kept = X.shape[1], clients.max_rank
    if clients.choose_rank is not None or (adjusts(clients.prototype) and kept not in (None, d)):
        return sites
    at_once = sizes.block_size(kept, d, False, clients.prototype.partial_out is not None)
    most, kept = min(_FEW_ENTRIES // d, at_once), d if kept is None else kept
    if kept < d:
        most = min(most, d - 1)
    by_size: dict[int, Shards] = {}
    for label, rows in shards:
        n = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        if 1 < n <= most:
            by_size.setdefault(n, []).append((label, rows))
    for n, of_size in by_size.items():
        with threads_for(_ENTRIES_AT_ONCE):
            for some in sizes.slices_of(len(of_size), max(1, _ENTRIES_AT_ONCE // (n * d))):
                sites.update(_sites(clients, X, of_size[some], kept))
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


def _sites(
    clients: Summarised, X: np.ndarray, shards: Shards, kept: int
) -> Iterator[tuple[Any, local.Site]]:
    blocks = np.stack([dense(X[rows]) for _, rows in shards]).astype(np.float64, copy=False)
    dtype = float_dtype(X)
    n, d = blocks.shape[1:]
    if n >= d:
        with np.errstate(all="ignore"):
            Z, means, lows = _about_their_means(blocks)
            found = scatter_of_blocks(Z, clients.n_certain or d, dtype)
        for i, matrix in found.items():
            squares = matrix.G.diagonal().copy()
            moments = (None, None, means[i], float(n), float(squares.sum()), True)
            known = {"column_scatter": squares, "_mean_low": lows[i]}
            summary = Subspace._trusted(*moments, **known, _leading=matrix)
            yield shards[i][0], local.Site(clients, n, summary)
        return
    V, s, means, lows, squares, certain = summaries_of_blocks(blocks, kept)
    if adjusts(clients.prototype):
        certain &= [are_equilibrated(size[None]) for size in np.sqrt(squares)]
    V, scatter = V.astype(dtype, copy=False), squares.sum(axis=1).tolist()
    for i in np.flatnonzero(certain).tolist():
        moments = (V[i], s[i], means[i], float(n), scatter[i], True)
        summary = Subspace._trusted(*moments, column_scatter=squares[i], _mean_low=lows[i])
        yield shards[i][0], local.Site(clients, n, summary)


def deferred_merge(
    pca: Any, strategy: MergeStrategy, whole: Sequence[Subspace], n_rows: int, simple: bool
) -> local.DeferredMerge | None:
    """The merge of all clients, to be made when somebody reads; None: it may be an error.

    Clients then send all that they know at once. ``simple``: their summaries are made here, and no
    subclass does more with rows.
    """
    if pca._trust is not None or not _merge_is_deferred(pca, strategy):
        return None
    if adjusts(pca):
        if not simple:  # others may lack what is adjusted
            return None
        check_columns(pca, whole[0].n_features)
    least, most = _USUAL_WEIGHTS
    for summary in whole:
        usual = least < summary.n_samples < most
        if not (usual and is_bounded_state(summary.mean, summary.total_variance, summary._dtype)):
            return None
    return local.DeferredMerge(strategy, pca._clients, n_rows, _opened(pca) if simple else None)


def _merge_is_deferred(pca: Any, merge: MergeStrategy | None) -> bool:
    """Whether the merge adds up what all clients send at once, by no rule that may refuse it."""
    adds_up = merge is None or merge._adds_up
    return adds_up and not isinstance(pca.n_components, str)


def _opened(pca: Any) -> Summarised | None:
    """What the next client does, if clients keep sums and no parameter is an object."""
    plain = pca.estimator is None and pca.merge is None and pca.n_jobs in (None, 1)
    if hasattr(pca, "feature_names_in_") or not plain:
        return None
    return next(reversed(pca._clients.values())).estimator


def summaries(self: Any) -> dict[Any, Subspace]:
    """What each client has sent last, by its label."""
    check_is_fitted(self)
    if self._trust == "sum":
        raise AttributeError("With trust='sum' only the sum of all clients is known.")
    return {label: self._clients[label].summary for label in self.clients_}


def estimators(self: Any) -> dict[Any, Any]:
    """The fitted sub-estimator of each client, by its label; made when they are read."""
    check_is_fitted(self)
    of, made = vars(self).get("_estimators", (None, {}))
    if of is not self._clients:
        made = fitted_estimators(self._clients)
        self._estimators = self._clients, made
    return made


def from_subspaces(
    cls: Any,
    subspaces: Sequence[Subspace],
    n_components: int | float | str | None = None,
    *,
    merge: Any = None,
    scale: bool = False,
    partial_out: Any = None,
) -> Any:
    """Build a fitted estimator from summaries that were computed elsewhere.

    Where summaries know their ``sites``, two with a site in common are refused, and a warning
    tells if only some know them.

    Parameters
    ----------
    subspaces : sequence of Subspace
        One per site, for instance read with `Subspace.load`.
    n_components : int, float, "parallel", "held-out", "mle" or None, default=None
        Number of components, or in (0, 1) the share of the variance that they explain, or the
        rule that counts them; None: all that the merged summaries hold. If directions were cut,
        a larger number than that is an error.
    merge : MergeStrategy or None, default=None
        Strategy that makes one summary of all; None: ``SubspaceMerge()``.
    scale : bool, default=False
        As in `FederatedPCA`. Sites need not know, unless they cut directions: the summaries are
        those of the rows. A warning tells if more than 5 % of the variance of scaled columns is
        missing in them, and ten times the share that is missing of the columns as they are.
    partial_out : str, int or sequence of these, default=None
        As in `FederatedPCA`. A warning tells if 5 % of a confounder's variance was cut, and another
        one if the summaries' ``model`` has this, or ``scale``, and the new one has not.

    Returns
    -------
    pca : FederatedPCA
        ``clients_`` are the sites, if all summaries know theirs, or else the positions in the
        list. A later ``partial_fit`` adds clients with other labels, and goes on with more rows
        of these, as `StreamingPCA.from_subspace` does.

    Examples
    --------
    Sites that cannot share rows fit by themselves, and send a file:

    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import FederatedPCA, StreamingPCA
    >>> X, y = load_digits(return_X_y=True)
    >>> sites = [StreamingPCA(5).fit(X[y == digit]).subspace_ for digit in range(10)]
    >>> FederatedPCA.from_subspaces(sites, 5).explained_variance_.round(3)
    array([179.007, 163.718, 141.788, 101.1  ,  69.513])
    """
    pca = fitted_on(cls(n_components, merge=merge, scale=scale, partial_out=partial_out), subspaces)
    warn_of_models(pca, subspaces)
    return pca


def fitted_on(pca: Any, subspaces: Sequence[Subspace]) -> Any:
    """The estimator, fitted on summaries."""
    pca._check_parameters()
    subspaces, namespace = checked_with_namespace(subspaces)
    check_at_most_features(pca.n_components, subspaces[0].n_features)
    local.check_any_rows(subspaces)
    if adjusts(pca):
        for who, summary in zip(names_of_parts(subspaces), subspaces, strict=True):
            scatter_of_columns(summary, who)
    pca._start()
    pca._clients = {
        label: local.Site(None, local.rows_of_summary(s), s)
        for label, s in zip(local.labels_of_sites(subspaces), subspaces, strict=True)
    }
    pca._merge_all()
    beyond = pca._beyond_the_summary()
    if beyond is not None:
        raise ValueError(beyond)
    pca.clients_ = sorted(pca._clients, key=label_order)
    pca.n_features_in_ = subspaces[0].n_features
    if pca.subspace_.feature_names is not None:
        pca.feature_names_in_ = np.array(pca.subspace_.feature_names, dtype=object)
    warn_of_another_cut(pca)
    show_in(namespace, pca)
    return pca


def remove(self: Any, label: Any) -> Any:
    """Take a client out: the fit is then that of the others, as if it had never come.

    Parameters
    ----------
    label : object
        One of ``clients_``.

    Returns
    -------
    self : FederatedPCA
        Unchanged if an error is raised. What a mechanism has charged stays charged.

    Raises
    ------
    ValueError
        For an unknown label, for the last client, and with ``trust="sum"``, where only the sum
        of all is known.

    Notes
    -----
    The others' summaries are merged anew, so that nothing of the client is left, not even a
    rounding error, nor a refinement. In a tree the merges on its path are made again.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import FederatedPCA
    >>> X, y = load_digits(return_X_y=True)
    >>> pca = FederatedPCA(5).fit(X, clients=y).remove(3)
    >>> others = FederatedPCA(5).fit(X[y != 3], clients=y[y != 3])
    >>> bool((pca.explained_variance_ == others.explained_variance_).all())
    True
    """
    check_is_fitted(self)
    if self._trust == "sum":
        raise ValueError("trust='sum' knows the sum of all clients only; none can be removed.")
    label = composed(label) if isinstance(label, str) else label
    if label not in self._clients:
        raise ValueError(f"label must be one of clients_, {self.clients_}, got {label!r}.")
    others = {known: site for known, site in self._clients.items() if known != label}
    if not any(site.n_rows for site in others.values()):
        raise ValueError(f"label={label!r} is the last client; nothing would be left.")
    namespace = vars(self).get(NAMESPACE)
    with self._unchanged_on_error():
        self.communication_ = self.communication_.copy()
        self._clients = others
        if self.missing is None:
            self._merge_all()
        else:
            self.missing._merge_others(self)
        self.clients_ = [known for known in self.clients_ if known in others]
        if namespace is not None:
            self.__dict__[NAMESPACE] = namespace
    if self.missing is None:
        self._warn_of_cut()
    return self
