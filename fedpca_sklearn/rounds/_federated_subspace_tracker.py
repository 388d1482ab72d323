"""Subspace tracking across clients by rounds of sums: Fed-OA-RSTMiss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, replace
from numbers import Integral
from typing import Any, Literal

import numpy as np
from sklearn.utils import check_random_state

from .._base.callbacks import with_callbacks
from .._base.sources import is_stream
from .._dask import refuse_dask
from .._validation.intervals import AT_LEAST_ONE, InstanceOf
from .._validation.parameters import allowed, with_parameters
from ..communication import Channel, CommunicationLog
from ..communication._channel import check_channel
from ..communication._federation import log_fit
from ..federated._clients import label_order, labels_of, split_labels, without_column
from ..tracking._stmiss import ChangeDetection, State
from ..tracking._stmiss_tracker import without_times
from ._owners import Labels
from ._tracker_rounds import TrackerRounds

__all__ = ["FederatedSubspaceTracker"]


@with_parameters
class FederatedSubspaceTracker(TrackerRounds):
    """Track the subspace of rows at several clients, with missing entries and outliers.

    The server receives sums of messages only. Each client finds the wrong entries of its own rows
    and fills in the missing ones (NaN); the leading subspace of all filled rows of a batch comes
    from rounds of a power method, started from the last subspace.

    Parameters
    ----------
    n_components : int or None, default=None
        As in `RobustSubspaceTracker`.
    batch_size : int or "auto", default="auto"
        Rows of all clients after which the subspace is updated. "auto": as in `SubspaceTracker`.
    n_rounds : int, default=10
        Rounds of the power method for a batch; L of [1]_.
    init : {"auto", "svd", "altproj"}, array-like of shape (k, n_features) or FirstSubspace, \
            default="auto"
        "auto": "altproj" if ``robust``, else "svd". "svd": the first batch is filled with zeros,
        outliers included. "altproj": each client takes the outliers out of its rows of the first
        batch by `AlternatingProjections`, and rounds find the subspace of what is left. An array:
        rows that span the first subspace. `FirstSubspace` says of how many rows and rounds.
    robust : bool, default=True
        Search for outliers. False: missing entries only (Fed-OA-STMiss-NoDet).
    support_threshold : float, "auto" or OutlierSupport, default="auto"
        As in `RobustSubspaceTracker`, but that with "auto" the deviation of a feature is from a sum
        of logarithms, which few outliers move little.
    forgetting_factor : float in [0, 1] or "auto", default="auto"
        As in `SubspaceTracker`, but for one model. No message more, except where a batch may tell
        of a change: then rounds for it alone.
    half_life : float or None, default=None
        Number of later rows, of all clients, after which a row has half its weight.
    n_iter, fill, detect_changes : optional
        As in `RobustSubspaceTracker`; noise of the channel raises the threshold of changes.
    center : bool, default=True
        Subtract the mean of the filled rows that count, which one more round for each batch finds.
    channel : Channel or None, default=None
        The simulated network. None: `PerfectChannel`. A schedule of those who drop out has a
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
            support_threshold_, change_points_, subspaces_ :
        As in `RobustSubspaceTracker`; all clients have the same thresholds.
    clients_, communication_ : list, CommunicationLog
        Labels of the clients seen so far, sorted, and what they sent.

    Notes
    -----
    Fed-OA-RSTMiss-NoDet, Algorithm 3 of [1]_, with Algorithm 4 at each client; costs, changes, and
    what sums tell, are on the page "Rounds of sums" of the guide.

    References
    ----------
    .. [1] P. Narayanamurthy et al., "Federated over-air subspace tracking from incomplete and
       corrupted data", IEEE Transactions on Signal Processing 2022.

    Examples
    --------
    >>> from fedpca_sklearn import ChangeDetection, FederatedSubspaceTracker, make_subspace_stream
    >>> stream = make_subspace_stream(1200, 200, 5, model="piecewise", random_state=0)
    >>> changes = ChangeDetection(n_updates=5)
    >>> tracker = FederatedSubspaceTracker(5, detect_changes=changes, random_state=0)
    >>> tracker.fit(stream.X, clients=[i % 2 for i in range(1200)]).change_points_
    array([580])
    """

    __metadata_request__fit = {"clients": True}
    __metadata_request__partial_fit = {"clients": True}

    # column of the labels, as given last; it is ignored in rows to transform
    _label_column = None

    n_components: int | None = None
    _: KW_ONLY
    batch_size: int | Literal["auto"] = "auto"
    n_rounds: int = allowed(AT_LEAST_ONE, default=10)
    init: Any = "auto"
    robust: bool = allowed("boolean", default=True)
    support_threshold: Any = "auto"
    forgetting_factor: float | Literal["auto"] = "auto"
    half_life: float | None = None
    n_iter: int = 1
    fill: str = "conditional"
    detect_changes: bool | ChangeDetection = False
    center: bool = True
    channel: Any = allowed(InstanceOf(Channel), None, default=None)
    n_clients: int = allowed(AT_LEAST_ONE, default=2)
    n_jobs: int | None = allowed(Integral, None, default=None)
    store_subspaces: bool = False
    random_state: Any = allowed("random_state", default=None)

    @without_times
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

    @without_times
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
    def _processing(self, X: Any, clients: Any, stream: Any) -> Iterator[tuple[Any, Labels]]:
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
            X, clients, self._label_column = split_labels(X, clients, self._label_column)
            labels = Labels(None if clients is None else labels_of(clients), self.n_clients)
            yield X, labels
            labels.check_used()
        log_fit(self, len(self.clients_))

    def _check_X(self, X: Any) -> Any:
        return super()._check_X(without_column(X, self._label_column))

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_channel(self.channel)

    def _start(self, d: int) -> State:
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return replace(super()._start(d), seed=seed)

    def _begin_batch(self, stream: Any, n: int, labels: Labels) -> State:
        state = super()._begin_batch(stream, n, labels)
        new = labels.take(stream.n_rows, n)
        self.clients_ = sorted({*self.clients_, *new.tolist()}, key=label_order)
        return replace(state, owners=np.concatenate([state.owners, new]))
