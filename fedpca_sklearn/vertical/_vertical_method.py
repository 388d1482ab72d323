"""Clients that hold columns, and methods for them: base class, one merge, and rounds of sums."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from .._dask import refuse_dask
from .._kernels import linalg
from .._kernels.sizes import EXACT_ORDER
from .._validation.checks import check_finite, is_integer
from .._validation.containers import validate_data
from .._validation.intervals import AT_LEAST_ONE, InstanceOf, Interval, allowed, with_parameters
from ..communication import Channel, CommunicationLog, Federation
from ..communication._channel import check_channel
from ..communication._federation import Message, message_of
from ..communication._topology import federation_of
from ..rounds._power_method import power_method
from ..rounds._queries import Client
from ..summary import Subspace, merge_subspaces
from ..summary._updating import updated


class LeftVectors(NamedTuple):
    """Left vectors that the clients agreed on, with the number of rounds.

    Parameters
    ----------
    vectors : sequence of ndarray of shape (k, n)
        Left vectors of the pooled, centred columns, as each client has them.
    n_iter : int
        Rounds in which vectors were exchanged.
    disagreement : float, default=0.0
        Largest distance between the vectors of two clients.
    own : bool, default=False
        Whether clients keep vectors of their own, which the estimator then publishes.
    """

    vectors: Sequence[np.ndarray] | np.ndarray
    n_iter: int
    disagreement: float = 0.0
    own: bool = False


class VerticalMethod(BaseEstimator, ABC):
    """Base of the methods of `VerticalFederatedPCA`: parameters in ``__init__``, one method.

    A subclass writes ``left_vectors(federation, clients, rank, rounds=range)``. It gets a
    `Federation`, the clients with their columns, the number of vectors, and a function for rounds.
    It returns `LeftVectors` with an array of shape (k, n) for each client, k at most ``rank``.

    Attributes
    ----------
    channel : Channel or None
        What the sums of the method pass, which the estimator hands to the federation. None:
        `PerfectChannel`. A method with a parameter of this name lets the user choose.
    """

    channel: Channel | None = None

    _parameter_constraints: ClassVar[dict] = {}

    def validate(self) -> None:
        """Raise a ValueError that names a wrong parameter; estimators call it before they start."""
        self._validate_params()
        check_channel(self.channel)

    @abstractmethod
    def left_vectors(
        self,
        federation: Federation,
        clients: Sequence[Client],
        rank: int,
        rounds: Callable[[int], Iterable[int]] = range,
    ) -> LeftVectors:
        """Let the clients agree on left vectors of all their columns.

        Parameters
        ----------
        federation : Federation
            Maps functions over clients (``map``), adds up their messages (``sum``) and counts what
            is sent (``log``). ``rng`` is the estimator's random state, ``gossip`` averages between
            neighbours, or is None with a server.
        clients : list of Client
            ``label`` and ``rows``: the client's centred columns, as rows of shape (d_i, n).
        rank : int
            Vectors that are wanted.
        rounds : callable, default=range
            ``rounds(m)`` yields numbers of m rounds. Callbacks hear of them and may end them early.

        Returns
        -------
        found : LeftVectors
            Vectors need not be orthonormal, as a Rayleigh-Ritz step over all columns follows; zeros
            where no variance is left. Fewer than ``rank`` if the rounds ended early.
        """


@with_parameters
class LeftVectorMerge(VerticalMethod):
    """Clients send their left singular vectors and values once, which are merged.

    Parameters
    ----------
    local_components : int or None, default=None
        Directions that a client sends. None: all, and the result is exact.

    See Also
    --------
    merge_subspaces : The merge of clients that hold rows.

    Notes
    -----
    (n + 1) k_i floats up for each client and p n k down with a server; without one (n + 1) k_i to
    every other client, passed on between neighbours.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.decomposition import PCA
    >>> from sklearn.preprocessing import scale
    >>> from fedpca_sklearn import LeftVectorMerge, VerticalFederatedPCA, subspace_distance
    >>> X = scale(load_wine().data)
    >>> exact = PCA(2).fit(X).components_
    >>> for local_components in 1, 2, None:
    ...     method = LeftVectorMerge(local_components)
    ...     pca = VerticalFederatedPCA(2, feature_groups=4, method=method).fit(X)
    ...     print(round(subspace_distance(pca.components_, exact), 4))
    0.8888
    0.0383
    0.0
    """

    local_components: int | None = allowed(AT_LEAST_ONE, None, default=None)

    def left_vectors(self, federation, clients, rank, rounds=range) -> LeftVectors:
        """Merge once; see `VerticalMethod.left_vectors`."""
        calls = [(c.label, c.rows, self.local_components) for c in clients]
        for _ in rounds(1):
            factors = list(federation.map(left_factor, calls))
        merged = merge_subspaces(factors, rank).components
        floats = [f.components.size + f.n_components for f in factors]
        sent = [Message(m, 8 * m) for m in floats]
        if federation.gossip is None:
            federation.log.record(sent, [message_of(merged)] * len(clients))
        else:
            pass_on(federation, sent)
        vectors = np.zeros((rank, clients[0].rows.shape[1]))
        vectors[: len(merged)] = merged
        return LeftVectors([vectors] * len(clients), 1)


def pass_on(federation: Federation, messages: list[Message]) -> None:
    """Log messages of the clients that are passed on between neighbours until all have them."""
    for senders, receivers in federation.gossip.relays():
        federation.log.record([messages[i] for i in senders], receivers=receivers)


def left_factor(label: int, rows: np.ndarray, size: int | None) -> Subspace:
    """Left singular vectors and values of a client's columns."""
    start = Subspace.empty(rows.shape[1], centered=False)
    at_once = max(rows.shape) if min(rows.shape) <= EXACT_ORDER else None
    return updated(start, rows, max_rank=size, block_size=at_once)


@with_parameters
class PowerRounds(VerticalMethod):
    """Rounds of a block Krylov method whose messages only add up; exact where rounds suffice.

    Parameters
    ----------
    n_rounds : int, default=200
        Rounds at most.
    tol : float, default=1e-10
        Stop when a round moves the subspace by less, by the sine of the largest angle.
    channel : Channel or None, default=None
        What the messages of the rounds pass, with a server. What components and their variances
        are made of in the end goes as plain numbers.

    See Also
    --------
    FederatedPowerPCA : The same for clients that hold rows.

    Notes
    -----
    The common vectors V, k x n, go down and each client's V X_i X_i^T up: p n k floats a round and
    direction with a server, 2 E m n k in m exchanges over the E edges of a topology.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.preprocessing import scale
    >>> from fedpca_sklearn import PowerRounds, VerticalFederatedPCA
    >>> X = scale(load_wine().data)
    >>> for tol in 1e-2, 1e-10:
    ...     method = PowerRounds(tol=tol)
    ...     pca = VerticalFederatedPCA(2, feature_groups=4, method=method, random_state=0).fit(X)
    ...     print(pca.n_iter_, pca.explained_variance_ratio_.round(6))
    5 [0.361988 0.192075]
    8 [0.361988 0.192075]
    """

    n_rounds: int = allowed(AT_LEAST_ONE, default=200)
    tol: float = allowed(Interval(Real, 0, None, closed="left"), default=1e-10)
    channel: Any = allowed(InstanceOf(Channel), None, default=None)

    def left_vectors(self, federation, clients, rank, rounds=range) -> LeftVectors:
        """Take rounds of sums; see `VerticalMethod.left_vectors`."""
        n = clients[0].rows.shape[1]
        V = linalg.orthonormalised(federation.rng.standard_normal((rank, n)))
        found = power_method(
            federation, clients, np.zeros(n), V, self.n_rounds, self.tol, krylov=True, rounds=rounds
        )
        if np.isnan(found.changes).all():
            raise ValueError("channel: no client took part in any round.")
        return LeftVectors(
            [found.basis] * len(clients), len(found.changes), federation.disagreement
        )


# -------------------------------------------------------------------- columns of clients


def started(
    estimator: Any, X: Any, channel: Channel | None = None
) -> tuple[np.ndarray, list[np.ndarray], Federation]:
    """Validated rows, each client's columns, and their federation with a new log."""
    refuse_dask(estimator, X)
    X = finite_rows(estimator, X)
    names = getattr(estimator, "feature_names_in_", None)
    groups = columns_of(estimator.feature_groups, X.shape[1], names)
    log = estimator.communication_ = CommunicationLog(floats_pooled=X.size)
    rng = check_random_state(estimator.random_state)
    topology, n_jobs = estimator.topology, estimator.n_jobs
    return X, groups, federation_of(topology, len(groups), n_jobs, rng, log, channel)


def finite_rows(estimator: Any, X: Any, reset: bool = True) -> np.ndarray:
    """Dense rows of finite floats."""
    checks = {"dtype": [np.float64, np.float32], "ensure_all_finite": False}
    X = validate_data(estimator, X, reset=reset, **checks)
    check_finite(X)
    return X


def columns_of(feature_groups: Any, n_features: int, names: Any = None) -> list[np.ndarray]:
    """Positions of the columns of each client: disjoint, and all of them.

    Parameters
    ----------
    feature_groups : int or list of array-like
        A number of contiguous groups, or the columns of each client, by position or by name.
    n_features : int
    names : array-like of str, default=None
        Names of the columns.
    """
    if is_integer(feature_groups):
        if not 1 <= feature_groups <= n_features:
            raise ValueError(
                f"feature_groups={feature_groups} must be between 1 and n_features={n_features}."
            )
        return np.array_split(np.arange(n_features), feature_groups)
    position = {} if names is None else {name: i for i, name in enumerate(names)}
    groups = [_positions(group, n_features, position) for group in feature_groups]
    count = np.bincount(np.concatenate([*groups, []]).astype(int), minlength=n_features)
    for wrong in np.flatnonzero(count != 1):
        raise ValueError(
            f"feature_groups must hold each column once, column {wrong} is held by {count[wrong]}."
        )
    return groups


def _positions(group: Any, n_features: int, position: dict) -> np.ndarray:
    found = []
    for column in np.atleast_1d(np.asarray(group, dtype=object)).tolist():
        i = position.get(column) if isinstance(column, str) else column
        if not is_integer(i) or not 0 <= i < n_features:
            named = "" if position else ", and the columns of X have no names"
            raise ValueError(
                f"feature_groups must hold names of columns or positions below {n_features} for "
                f"each client, got {column!r}{named}."
            )
        found.append(int(i))
    if not found:
        raise ValueError("feature_groups must not hold an empty group.")
    return np.array(found)
