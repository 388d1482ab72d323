"""PCA of rows that belong to clients: local summaries, merged once."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from inspect import signature
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import validate_data

from .._callbacks import CallbackSupportMixin, progress, with_callbacks
from .._checks import check_at_most_features, check_weight
from ..base import SubspaceTransformer
from ..merging import check_subspaces, directions_between, tighter_fraction
from ..streaming import StreamingPCA
from ..subspace import Subspace
from ._federation import CommunicationLog, Federation
from ._merge import MergeStrategy, SubspaceMerge

__all__ = ["FederatedPCA"]


def _clients_can_partial_fit(self: FederatedPCA) -> bool:
    return self.estimator is None or hasattr(self.estimator, "partial_fit")


class FederatedPCA(CallbackSupportMixin, SubspaceTransformer):
    """Principal component analysis of rows that belong to several clients, in one round.

    Every client fits a sub-estimator on its own rows and sends the summary of it, a `Subspace`; the
    server merges the summaries. No row leaves its client. The result does not depend on the order
    of the clients; with at most 256 features and the default sub-estimator it is PCA of the pooled
    rows exactly, whatever the partition.

    Parameters
    ----------
    n_components : int, float or None, default=None
        As in `StreamingPCA`.
    estimator : estimator or None, default=None
        Fitted by each client: `StreamingPCA`, or any PCA-like estimator, such as scikit-learn's
        PCA, IncrementalPCA and TruncatedSVD. Its ``n_components`` bounds what a client sends and
        should exceed the one here. None: ``StreamingPCA(n_components)``, which keeps extra
        directions.
    merge : MergeStrategy or None, default=None
        None: ``SubspaceMerge()``, all at once. ``SubspaceMerge(fan_in=2)``: in a binary tree.
    n_clients : int, default=2
        Contiguous shards that stand in for clients where ``clients`` is not given.
    n_jobs : int or None, default=None
        Clients fitted at the same time; threads, unless ``joblib.parallel_config`` says otherwise.
    random_state : int, RandomState instance or None, default=None
        Seeds sub-estimators that have a ``random_state``, each client differently.

    Attributes
    ----------
    components_, mean_, singular_values_, explained_variance_, explained_variance_ratio_, \
            noise_variance_, n_components_, n_samples_, n_samples_seen_, subspace_
        As in `StreamingPCA`, for all rows of all clients.
    clients_ : list
        Labels of the clients seen so far, sorted.
    estimators_ : dict
        Label -> fitted sub-estimator.
    communication_ : CommunicationLog
        What was sent: per client k (d + 1) + d + 2 floats for k directions, once.

    See Also
    --------
    merge_subspaces : The merge by itself.

    Notes
    -----
    Federated PCA of Grammenos et al. (2020), section 3: SPCA or SAPCA at the clients, merged
    pairwise or in a tree (DASM), with the mean correction of Bai, Chan and Luk (2005). Clients
    work in time O(n_i d k); the server in O(s k^2 d) a level. Nothing is sent back.

    The labels ``clients`` are metadata of the rows, like the ``groups`` of a splitter: with
    metadata routing enabled they pass through Pipeline and GridSearchCV without further requests.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.decomposition import PCA
    >>> from fedpca_sklearn import FederatedPCA, subspace_distance
    >>> X, y = load_digits(return_X_y=True)
    >>> federated = FederatedPCA(5).fit(X, clients=y)  # ten clients with one digit each
    >>> pooled = PCA(5).fit(X)
    >>> federated.explained_variance_.round(3)
    array([179.007, 163.718, 141.788, 101.1  ,  69.513])
    >>> pooled.explained_variance_.round(3)
    array([179.007, 163.718, 141.788, 101.1  ,  69.513])
    >>> subspace_distance(federated.components_, pooled.components_) < 1e-12
    True

    Sites that cannot share rows fit by themselves, and send a file:

    >>> from fedpca_sklearn import StreamingPCA
    >>> sites = [StreamingPCA(5).fit(X[y == digit]).subspace_ for digit in range(10)]
    >>> FederatedPCA.from_subspaces(sites, 5).explained_variance_.round(3)
    array([179.007, 163.718, 141.788, 101.1  ,  69.513])
    """

    # `clients` travels through pipelines and searches without a request by the user
    __metadata_request__fit = {"clients": True}
    __metadata_request__partial_fit = {"clients": True}

    _parameter_constraints: dict = {
        "n_components": StreamingPCA._parameter_constraints["n_components"],
        "estimator": [HasMethods(["fit"]), None],
        "merge": [MergeStrategy, None],
        "n_clients": [Interval(Integral, 1, None, closed="left")],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        n_components: int | float | None = None,
        *,
        estimator: Any = None,
        merge: Any = None,
        n_clients: int = 2,
        n_jobs: int | None = None,
        random_state: Any = None,
    ):
        self.n_components = n_components
        self.estimator = estimator
        self.merge = merge
        self.n_clients = n_clients
        self.n_jobs = n_jobs
        self.random_state = random_state

    @with_callbacks
    def fit(
        self, X: Any, y: Any = None, clients: Any = None, sample_weight: Any = None
    ) -> FederatedPCA:
        """Fit all clients from scratch and merge.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
        y : Ignored
        clients : array-like of shape (n,), default=None
            Label of the client that owns each row, integers or strings. None: ``n_clients``
            contiguous shards.
        sample_weight : array-like of shape (n,), default=None
            Passed to the sub-estimators.

        Returns
        -------
        self : FederatedPCA
        """
        with self._unchanged_on_error():
            self._start()
            self._run(X, clients, sample_weight, "fit")
        return self

    @available_if(_clients_can_partial_fit)
    @with_callbacks
    def partial_fit(
        self, X: Any, y: Any = None, clients: Any = None, sample_weight: Any = None
    ) -> FederatedPCA:
        """Go on with more rows of any clients, old or new, and merge again.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
        y : Ignored
        clients : array-like of shape (n,), default=None
        sample_weight : array-like of shape (n,), default=None

        Returns
        -------
        self : FederatedPCA
            Unchanged if an error is raised.
        """
        with self._unchanged_on_error():
            if not hasattr(self, "_clients"):
                self._start()
            self.communication_ = CommunicationLog(list(self.communication_.table))
            self._run(X, clients, sample_weight, "partial_fit")
        return self

    @classmethod
    def from_subspaces(
        cls,
        subspaces: Sequence[Subspace],
        n_components: int | float | None = None,
        *,
        merge: Any = None,
    ) -> FederatedPCA:
        """Build a fitted estimator from summaries that were computed elsewhere.

        Parameters
        ----------
        subspaces : sequence of Subspace
            One per site, for instance read with `Subspace.load`.
        n_components : int, float or None, default=None
        merge : MergeStrategy or None, default=None

        Returns
        -------
        pca : FederatedPCA
            ``clients_`` are the positions in the list; a later ``partial_fit`` adds clients with
            other labels to these sites.
        """
        pca = cls(n_components, merge=merge)
        pca._validate_params()
        if merge is not None:
            merge.validate()
        subspaces = check_subspaces(subspaces)
        check_at_most_features(n_components, subspaces[0].n_features)
        if not any(s.n_samples > 0 for s in subspaces):
            raise ValueError("subspaces must hold at least one row, all have n_samples=0.")
        pca._start()
        pca._clients = {
            i: _Client(None, max(1, round(s.n_samples)) if s.n_samples > 0 else 0, s)
            for i, s in enumerate(subspaces)
        }
        pca._merge_all()
        pca.n_features_in_ = subspaces[0].n_features
        return pca

    def _start(self) -> None:
        """Forget all clients and what was sent."""
        vars(self).pop("_clients", None)
        self._sent: list[Subspace] = []
        self._memory: list[Any] = []
        self.communication_ = CommunicationLog()

    # ---------------------------------------------------------------- the round

    def _run(self, X: Any, clients: Any, sample_weight: Any, method: str) -> None:
        self._validate_params()
        if self.merge is not None:
            self.merge.validate()
        # in order of appearance, so that a tree keeps its shape when clients join
        seen: dict[Any, _Client] = getattr(self, "_clients", {})
        X = validate_data(
            self,
            X,
            accept_sparse="csr",
            dtype="numeric",
            ensure_all_finite=False,  # each client checks its own rows, so that errors name it
            reset=not hasattr(self, "_clients"),
        )
        check_at_most_features(self.n_components, X.shape[1])
        weight = check_weight(sample_weight, X.shape[0])
        shards = self._shards(X.shape[0], clients)
        if weight is not None and weight.any():  # a client without weight is as absent
            shards = [(label, rows) for label, rows in shards if weight[rows].any()]
        prototype = self._prototype(method, weight is not None)
        new = [label for label, _ in shards if label not in seen]
        seeds = check_random_state(self.random_state).randint(2**31 - 1, size=len(seen) + len(new))
        seeds = dict(zip(new, seeds[len(seen) :], strict=True))  # those before went to old clients
        calls = (
            (
                label,
                seen.get(label),
                prototype,
                seeds.get(label),
                X[rows],
                None if weight is None else weight[rows],
                method,
            )
            for label, rows in shards
        )
        results = Federation(self.n_jobs).map(_fit_client, calls)
        fitted = zip(progress(self, results, len(shards), "clients"), shards, strict=False)
        self._clients = {**seen, **{label: client for client, (label, _) in fitted}}
        self._merge_all()

    def _shards(self, n: int, clients: Any) -> list[tuple[Any, Any]]:
        """Sorted labels with the positions of their rows."""
        if clients is None:
            bounds = np.linspace(0, n, min(self.n_clients, n) + 1).astype(int)
            return [(i, slice(*bounds[i : i + 2])) for i in range(len(bounds) - 1)]
        labels = _check_labels(clients, n)
        values, codes = np.unique(labels, return_inverse=True)
        order = np.argsort(codes, kind="stable")
        parts = np.split(order, np.searchsorted(codes[order], np.arange(1, len(values))))
        return [(value.item(), rows) for value, rows in zip(values, parts, strict=True)]

    def _prototype(self, method: str, weighted: bool) -> BaseEstimator:
        estimator = self.estimator
        if estimator is None:
            n_components = self.n_components
            if isinstance(n_components, float):
                n_components = tighter_fraction(n_components)
            estimator = StreamingPCA(n_components)
        name = type(estimator).__name__
        if weighted and "sample_weight" not in signature(getattr(estimator, method)).parameters:
            raise TypeError(f"sample_weight was given, but {name}.{method} does not take it.")
        return estimator

    def _merge_all(self) -> None:
        """Merge what every client has sent and set the fitted attributes."""
        summaries = [client.summary for client in self._clients.values()]
        before = {id(summary) for summary in self._sent}
        sent = []

        def record(messages):
            # the receiver still holds a summary that has not changed since the last merge
            self.communication_.record(up=[m for m in messages if id(m) not in before])
            sent.extend(messages)

        strategy = SubspaceMerge() if self.merge is None else self.merge
        kept = directions_between(summaries, self.n_components)
        memory = list(self._memory)
        subspace = strategy.merge(summaries, kept, between=kept, record=record, memory=memory)
        self._sent, self._memory = sent, memory
        labels = sorted(self._clients, key=_label_order)
        estimators = {label: self._clients[label].estimator for label in labels}
        self.estimators_ = {label: e for label, e in estimators.items() if e is not None}
        self.clients_ = labels
        n_rows = sum(client.n_rows for client in self._clients.values())
        self._set_fitted(subspace, self.n_components, n_rows)


class _Client(NamedTuple):
    """What the simulation keeps of a client; a site known by its summary has no estimator."""

    estimator: Any
    n_rows: int
    summary: Subspace


def _fit_client(
    label: Any,
    before: _Client | None,
    prototype: BaseEstimator,
    seed: int | None,
    X: Any,
    weight: Any,
    method: str,
) -> _Client:
    """Local work of one client: fit its estimator, or a copy of it, and read off the summary."""
    n_rows, n_samples, scatter = 0, 0.0, 0.0
    if before is not None:
        if before.estimator is None:
            raise ValueError("it was given as a summary; use another label for further rows.")
        estimator, n_rows = deepcopy(before.estimator), before.n_rows
        n_samples, scatter = before.summary.n_samples, before.summary.scatter
    else:
        estimator = clone(prototype)
        if "random_state" in estimator.get_params(deep=False):
            estimator.set_params(random_state=int(seed))
    if weight is None:
        getattr(estimator, method)(X)
        n_rows, n_samples = n_rows + X.shape[0], n_samples + X.shape[0]
    else:
        getattr(estimator, method)(X, sample_weight=weight)
        n_rows, n_samples = n_rows + int(np.ceil(weight).sum()), n_samples + float(weight.sum())
    if isinstance(getattr(estimator, "subspace_", None), Subspace):
        return _Client(estimator, n_rows, estimator.subspace_)
    if hasattr(estimator, "mean_"):
        summary = Subspace.from_estimator(estimator, n_samples=n_samples)
    else:  # about the origin, as TruncatedSVD
        scatter += _sum_of_squares(X, weight)
        summary = Subspace.from_estimator(estimator, n_samples=n_samples, scatter=scatter)
    return _Client(estimator, n_rows, summary)


def _sum_of_squares(X: Any, weight: np.ndarray | None) -> float:
    if sp.issparse(X):
        of_rows = sp.csr_array(X, dtype=np.float64).power(2).sum(axis=1)
    else:
        of_rows = np.einsum("ij,ij->i", X, X, dtype=np.float64)
    return float(of_rows.sum() if weight is None else of_rows @ weight)


def _check_labels(clients: Any, n: int) -> np.ndarray:
    """Labels as an array of integers or of strings."""
    labels = clients if isinstance(clients, np.ndarray) else np.asarray(clients, dtype=object)
    if labels.ndim != 1 or len(labels) != n:
        raise ValueError(
            f"clients must have one label per row, shape ({n},), got shape {labels.shape}."
        )
    if labels.dtype.kind in "iubU":
        return labels
    values = labels.tolist()
    strings = [value for value in values if isinstance(value, str)]
    numbers = [value for value in values if _is_whole(value)]
    if len(strings) == n:
        return labels.astype(str)
    if len(numbers) == n:
        return labels.astype(np.int64)
    wrong = [value for value in values if not (isinstance(value, str) or _is_whole(value))]
    got = wrong[:1] or [strings[0], numbers[0]]
    raise ValueError(
        "clients must be all integers or all strings, without missing values, got "
        + " and ".join(map(repr, got))
        + "."
    )


def _is_whole(value: Any) -> bool:
    """Whether a label is a number that int64 holds."""
    return isinstance(value, (Real, np.bool_)) and value == value // 1 and -(2**63) <= value < 2**63


def _label_order(label: Any) -> tuple[bool, Any]:
    return isinstance(label, str), label
