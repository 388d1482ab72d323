"""Subspace tracking across clients by rounds of sums: Fed-OA-RSTMiss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral
from typing import Any, Literal

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval

from .._base.batches import is_stream
from .._base.callbacks import with_callbacks
from .._dask import refuse_dask
from .._kernels import linalg
from ..communication import Channel, CommunicationLog, Federation
from ..communication._federation import log_fit
from ..federated._clients import label_order, labels_of
from ..federated._label_column import LabelColumnMixin
from ..summary import Subspace
from ..tracking._outlier_tracker import OutlierTracker
from ..tracking._sparse_recovery import find_outliers
from ..tracking._stmiss import Filled, State
from ._client import Client
from ._power_method import by_rayleigh_ritz, power_method

__all__ = ["FederatedSubspaceTracker"]


class FederatedSubspaceTracker(LabelColumnMixin, OutlierTracker):
    """Track the subspace of rows at several clients, with missing entries and outliers.

    Rows of a batch belong to clients. Each client finds the outliers of its rows and fills missing
    entries in, as in `RobustSubspaceTracker`; the leading subspace of all filled rows comes from
    rounds of a power method whose messages only add up, started from the last subspace
    (Fed-OA-RSTMiss-NoDet).

    Parameters
    ----------
    n_components : int or None, default=None
        Dimension of the subspace. None: 10, or all features where there are fewer.
    batch_size : int or "auto", default="auto"
        Rows of all clients after which the subspace is updated. "auto": as in `SubspaceTracker`.
    n_rounds : int, default=10
        Rounds of the power method for a batch; L of [1]_.
    init_rounds : int, default=50
        Rounds for the first batch, which starts at random without a given ``init``.
    init : "svd" or array-like of shape (k, n_features), default="svd"
        "svd": the first batch is filled with zeros, outliers included. An array: rows that span the
        first subspace, for instance of an `AlternatingProjections` at one client; needed where the
        first batch has outliers.
    robust : bool, default=True
        Search for outliers. False: missing entries only (Fed-OA-STMiss-NoDet).
    xi : float or "auto", default="auto"
        Norm of the part of a row that is neither in the last subspace nor sparse, as in
        `RobustSubspaceTracker`.
    support_threshold : float or "auto", default="auto"
        Entries of the sparse part above it are outliers, as in `RobustSubspaceTracker`.
    n_iter : int, default=1
        Times that a batch is filled in, each time by the subspace found last.
    channel : Channel or None, default=None
        What the messages pass. None: `PerfectChannel`. A schedule of those who drop out has a
        column for each client of a batch, and begins with each batch.
    n_clients : int, default=2
        Without ``clients``, row i of the stream belongs to client ``i % n_clients``.
    n_jobs : int or None, default=None
        Clients at work at the same time; threads, unless ``joblib.parallel_config`` says otherwise.
    store_subspaces : bool, default=False
        Keep the basis after every batch in ``subspaces_``, which grows with the stream.
    random_state : int, RandomState instance or None, default=None
        Seed of the first basis and of the channel.

    Attributes
    ----------
    components_, singular_values_, explained_variance_, explained_variance_ratio_, mean_, \
            noise_variance_, n_components_, n_samples_, n_samples_seen_, subspace_, outlier_mask_, \
            support_threshold_, subspaces_ :
        As in `RobustSubspaceTracker`; thresholds are the largest of all clients.
    clients_ : list
        Labels of the clients seen so far, sorted.
    communication_ : CommunicationLog
        With K clients in a batch, d features and r components: K r d floats up and down
        in each round of the power method, K (r^2 + 2) up and K r d down in the last.

    See Also
    --------
    FederatedPowerPCA : The rounds alone.
    RobustSubspaceTracker : All rows in one place.

    Notes
    -----
    Algorithm 3 of [1]_ with Algorithm 4 at each client. About the origin, and of the last batch
    alone. A client without rows in a batch takes no part in it. The automatic thresholds of a
    client are from its own rows, so that a client with few rows in a batch sees outliers less
    clearly than `RobustSubspaceTracker` does with all of them. A client sends nothing for rows
    whose entries do not determine their coordinates.

    The rows at the end of a stream that do not fill a batch are used for what is shown, by as many
    rounds, and again when the batch is full. With noise or drop-outs, which are fresh in every
    round, the result depends on how the stream is cut.

    Only sums decide on the subspace; where one client alone has rows in a batch, or is left in a
    round, the sum is its message. The estimator simulates all clients and holds what they hold:
    rows that wait and, for the user, masks and thresholds.

    References
    ----------
    .. [1] P. Narayanamurthy, N. Vaswani, A. Ramamoorthy, "Federated over-air subspace tracking from
       incomplete and corrupted data", IEEE Transactions on Signal Processing 2022.

    Examples
    --------
    >>> from fedpca_sklearn import (
    ...     FederatedSubspaceTracker, GaussianChannel, make_subspace_stream, subspace_distance
    ... )
    >>> stream = make_subspace_stream(1200, 200, 5, delta=0, random_state=0)
    >>> for noise in 1e-3, 1e-6:
    ...     tracker = FederatedSubspaceTracker(5, channel=GaussianChannel(noise), random_state=0)
    ...     _ = tracker.fit(stream.X, clients=[i // 10 % 4 for i in range(1200)])
    ...     error = subspace_distance(tracker.components_, stream.subspace_at(0))
    ...     print(f"{error:.0e}")
    5e-04
    5e-07
    """

    _parameter_constraints: dict = {
        **OutlierTracker._parameter_constraints,
        "n_rounds": [Interval(Integral, 1, None, closed="left")],
        "init_rounds": [Interval(Integral, 1, None, closed="left")],
        "robust": ["boolean"],
        "channel": [Channel, None],
        "n_clients": [Interval(Integral, 1, None, closed="left")],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
    }
    __metadata_request__fit = {"clients": True}
    __metadata_request__partial_fit = {"clients": True}

    def __init__(
        self,
        n_components: int | None = None,
        *,
        batch_size: int | Literal["auto"] = "auto",
        n_rounds: int = 10,
        init_rounds: int = 50,
        init: Any = "svd",
        robust: bool = True,
        xi: float | Literal["auto"] = "auto",
        support_threshold: float | Literal["auto"] = "auto",
        n_iter: int = 1,
        channel: Any = None,
        n_clients: int = 2,
        n_jobs: int | None = None,
        store_subspaces: bool = False,
        random_state: Any = None,
    ):
        self.n_components = n_components
        self.batch_size = batch_size
        self.n_rounds = n_rounds
        self.init_rounds = init_rounds
        self.init = init
        self.robust = robust
        self.xi = xi
        self.support_threshold = support_threshold
        self.n_iter = n_iter
        self.channel = channel
        self.n_clients = n_clients
        self.n_jobs = n_jobs
        self.store_subspaces = store_subspaces
        self.random_state = random_state

    @with_callbacks
    def fit(self, X: Any, y: Any = None, clients: Any = None) -> Any:
        """Fit from scratch.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d), or iterable of such batches
            Sparse rows are densified block by block.
        y : Ignored
            Not used; there because scikit-learn's pipelines pass it.
        clients : array-like of shape (n,) or str, default=None
            Label of the client that owns each row, integers or strings, or the name of the column
            of X, a data frame, that holds them; not for an iterable.

        Returns
        -------
        self : object
            The fitted estimator; unchanged if an error is raised.
        """
        with self._processing(X, clients, None) as (X, labels):
            return self._process(X, None, labels)

    @with_callbacks
    def partial_fit(self, X: Any, y: Any = None, clients: Any = None) -> Any:
        """Update the fit with more rows; the result does not depend on the batches.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d), or iterable of such batches
            The next rows of the stream, with the columns of the first call.
        y : Ignored
            Not used; there because scikit-learn's pipelines pass it.
        clients : array-like of shape (n,) or str, default=None
            Label of the client that owns each row, as in `fit`.

        Returns
        -------
        self : object
            Unchanged if an error is raised.
        """
        stream = getattr(self, "_stream", None)
        with self._processing(X, clients, stream) as (X, labels):
            return self._process(X, stream, labels)

    @contextmanager
    def _processing(self, X: Any, clients: Any, stream: Any) -> Iterator[tuple[Any, _Labels]]:
        """Rows of a call and their labels; it takes all of them or leaves no trace."""
        refuse_dask(self, X)
        if is_stream(X) and clients is not None:
            raise ValueError("clients cannot be given when X is an iterable of batches.")
        with self._unchanged_on_error():
            if stream is None:
                self._label_column = None
                self.clients_: list[Any] = []
                self.communication_ = CommunicationLog()
            else:
                self.communication_ = self.communication_.copy()
            X, clients = self._split_labels(X, clients)
            labels = _Labels(None if clients is None else labels_of(clients), self.n_clients)
            yield X, labels
            labels.check_used()
        log_fit(self, len(self.clients_))

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.channel is not None:
            self.channel.validate()

    def _start(self, d: int) -> State:
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return replace(super()._start(d), seed=seed)

    def _begin_batch(self, stream: Any, n: int, labels: _Labels) -> State:
        state = super()._begin_batch(stream, n, labels)
        new = labels.take(stream.n_rows, n)
        self.clients_ = sorted({*self.clients_, *new.tolist()}, key=label_order)
        return replace(state, owners=np.concatenate([state.owners, new]))

    # ---------------------------------------------------------------- what the clients do

    def _without_outliers(
        self, state: State, Y: np.ndarray, owners: np.ndarray
    ) -> tuple[np.ndarray, State]:
        mask, threshold = np.zeros(Y.shape, dtype=bool), np.zeros(Y.shape[1])
        if self.robust and len(state.basis):
            shards = _shards(owners)
            options = state.basis, self.xi, self.support_threshold
            calls = ((label, Y[rows], *options) for label, rows in shards)
            found = Federation(self.n_jobs).map(_outliers_of, calls)
            for (_, rows), (hit, least) in zip(shards, found, strict=True):
                mask[rows] = hit
                threshold = np.maximum(threshold, least)
            Y = np.where(mask, np.nan, Y)
        return Y, replace(state, outliers=mask, threshold=threshold)

    def _r_svd(self, state: State, filled: Filled, V: np.ndarray, owners: np.ndarray) -> Subspace:
        """Algorithm 2 by rounds of sums, which the log counts, from the last subspace."""
        L, counts, d = filled.rows, filled.counts, V.shape[1]
        clients = [
            Client(label, L[rows[counts[rows]]])
            for label, rows in _shards(owners)
            if counts[rows].any()
        ]
        # noise is fresh in every round ever made, also where rows that waited come again
        rng = np.random.RandomState([state.seed, self.communication_.rounds])
        federation = Federation(self.n_jobs, self.channel, rng, self.communication_)
        rank = self._rank(d)
        random = np.random.RandomState([state.seed, state.n_rows % 2**32])
        start = np.concatenate([V, random.standard_normal((rank, d))])[:rank]
        rounds = self.n_rounds if state.summary.n_samples else self.init_rounds
        first = linalg.orthonormalised(start)
        found = power_method(federation, clients, np.zeros(d), first, rounds)
        return by_rayleigh_ritz(federation, clients, Subspace.empty(d, centered=False), found.basis)

    def _usable(self, X: Any) -> np.ndarray:
        return super()._usable(X) if self.robust else X


class _Labels:
    """Labels of the rows of a call, taken batch by batch: given, or each client in turn."""

    def __init__(self, given: np.ndarray | None, n_clients: int):
        self.given, self.n_clients, self.n_taken = given, n_clients, 0

    def take(self, start: int, n: int) -> np.ndarray:
        """Labels of the next n rows, of which the first is row ``start`` of the stream."""
        if self.given is None:
            return ((start + np.arange(n)) % self.n_clients).astype(object)
        new = self.given[self.n_taken :][:n]
        if len(new) != n:
            raise ValueError(f"clients must have one label per row, {n - len(new)} are missing.")
        self.n_taken += n
        return new

    def check_used(self) -> None:
        """Raise unless every label had its row."""
        if self.given is not None and self.n_taken < len(self.given):
            n, more = len(self.given), len(self.given) - self.n_taken
            raise ValueError(
                f"clients must have one label per row, {n} labels are {more} too many."
            )


def _shards(owners: np.ndarray) -> list[tuple[Any, np.ndarray]]:
    """Labels of the clients of a batch, and the positions of their rows."""
    labels = sorted(set(owners.tolist()), key=label_order)
    return [(label, np.flatnonzero(owners == label)) for label in labels]


def _outliers_of(label: Any, Z: np.ndarray, *options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Local work of one client: where its rows have outliers."""
    return find_outliers(Z, *options)
