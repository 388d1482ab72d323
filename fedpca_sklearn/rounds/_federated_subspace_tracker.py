"""Subspace tracking across clients by rounds of sums: Fed-OA-RSTMiss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral
from typing import Any, Literal

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions

from .._base.callbacks import with_callbacks
from .._base.sources import is_stream
from .._dask import refuse_dask
from .._validation.intervals import InstanceOf, Interval
from ..communication import Channel, CommunicationLog
from ..communication._channel import check_channel
from ..communication._federation import log_fit
from ..federated._clients import label_order, labels_of, split_labels, without_column
from ..tracking._stmiss import State
from ..tracking._stmiss_tracker import without_times
from ._owners import Labels
from ._tracker_rounds import TrackerRounds

__all__ = ["FederatedSubspaceTracker"]


class FederatedSubspaceTracker(TrackerRounds):
    """Track the subspace of rows at several clients, with missing entries and outliers.

    Take it where rows arrive in batches at several clients (sites), have missing entries (NaN) or
    wrong entries, and the server may, or can, only receive sums of messages. Each client finds the
    wrong entries of its own rows and fills in the missing ones, as `RobustSubspaceTracker` does.
    The leading subspace of all filled rows then comes from rounds of a power method, as in
    `FederatedPowerPCA`, started from the last subspace.

    Parameters
    ----------
    n_components : int or None, default=None
        Dimension of the subspace. None: 10, or all features where there are fewer.
    batch_size : int or "auto", default="auto"
        Rows of all clients after which the subspace is updated. "auto": as in `SubspaceTracker`.
    n_rounds : int, default=10
        Rounds of the power method for a batch; L of [1]_.
    init_rounds : int, default=50
        Number of rounds of a start at random: in the first batch with ``init="svd"``, or before it
        with "altproj". With an array of n_components rows as ``init`` there are ``n_rounds`` in
        every batch.
    init : {"auto", "svd", "altproj"} or array-like of shape (k, n_features), default="auto"
        "auto": "altproj" if ``robust``, else "svd", as in [1]_ without outliers. "svd": the first
        batch is filled with zeros, outliers included. "altproj": each client takes the outliers out
        of its rows of the first batch by `AlternatingProjections`, and rounds find the subspace of
        what is left, from which the first batch starts. An array: rows that span the first
        subspace, the P_1 of [1]_.
    init_size : int or "auto", default="auto"
        Rows of all clients in the first batch with ``init="altproj"``. Outliers are found well if
        each client has five rows for each component. "auto": ``max(batch size, 5 n_components,
        100)``.
    robust : bool, default=True
        Search for outliers. False: missing entries only (Fed-OA-STMiss-NoDet).
    xi : float or "auto", default="auto"
        Norm of the part of a row that is neither in the last subspace nor sparse, as in
        `RobustSubspaceTracker`.
    support_threshold : float or "auto", default="auto"
        Entries of the sparse part above it are outliers. "auto": as in `RobustSubspaceTracker`,
        except that the deviation of a feature comes from a sum: the mean logarithm of its residuals
        at all clients. So in a feature where outliers begin there must be few of them.
    forgetting_factor : float in [0, 1] or "auto", default="auto"
        As in `SubspaceTracker`. The server adds what still counts of earlier batches to each sum:
        no message more. With "auto" a batch that may tell of a change has the rounds of the power
        method twice, once for the batch alone. 0: the last batch alone, as in [1]_.
    half_life : float or None, default=None
        As in `SubspaceTracker`: the number of later rows, of all clients, after which a row has
        half its weight.
    n_iter : int, default=1
        Times that a batch is filled in, each time by the subspace found last.
    fill : {"conditional", "subspace"}, default="conditional"
        What stands for missing entries and outliers, as in `SubspaceTracker`; "subspace" in [1]_.
    detect_changes : bool, default=False
        After ``n_updates`` updates keep the subspace, until rows do not fit it any more, as in
        `SubspaceTracker`. In every batch ``n_rounds`` rounds of 10 directions find the largest
        eigenvalue of the residuals' scatter; a resting subspace needs no others.
    n_updates : int, default=20
        Updates after the first batch and after each change. Only used with ``detect_changes``.
    change_threshold : float or "auto", default="auto"
        Largest eigenvalue of the residuals' second-moment matrix, in units of the rows squared,
        from which on a change is detected. "auto": twice that of the last update. Either is raised
        by what the channel's noise may add.
    center : bool, default=True
        Subtract the mean of the filled rows that count, which one more round for each batch finds.
        False: about the origin, as in [1]_.
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
    clients_ : list
        Labels of the clients seen so far, sorted.
    communication_ : CommunicationLog
        With K clients in a batch, d features and r components: K r d floats up and down
        in each round of the power method, K (r^2 + 2) up and K r d down in the last. With
        ``detect_changes`` as many rounds with 10 in place of r in all batches but the first. With
        ``center`` a round of K (d + 1) up and K d down for each batch, and one of K (2 d + 1) up
        and K d down before the first. With ``forgetting_factor="auto"`` or ``fill="conditional"`` a
        round of 14 K up and K r down for each batch: sums of squares of residuals and entries,
        which tell the noise, and ten zeros, which tell that of the channel. With ``robust`` and
        ``support_threshold="auto"`` one of K (2 d + 3) up and K d down for each batch, and another
        where the subspace fits otherwise than before: sums of logarithms of sizes.

    See Also
    --------
    FederatedPowerPCA : The rounds alone.
    RobustSubspaceTracker : All rows in one place.

    Notes
    -----
    This is Fed-OA-RSTMiss-NoDet, Algorithm 3 of [1]_, with Algorithm 4 at each client; its optional
    line 6, Algorithm 4 again with the new subspace, is `decompose` after `partial_fit`. A client
    without rows in a batch takes no part in it. The automatic thresholds of features are from sums
    over the clients, which may have one row each; with ten rows or more at a client features may be
    constant for the most, or have unlike units. A feature that shifts for good stays an outlier:
    there is no ``absorb_after``. What tells the first batch's outliers from its
    rows needs five rows for each component at a client to do it well. A client sends nothing for
    rows whose entries do not determine their coordinates. The numbers of rows, by which batches are
    cut and weighed, reach the server besides.

    With a perfect channel, rounds enough and ``robust=False`` it equals `SubspaceTracker` with the
    same parameters. With outliers the first mean of ``center`` is that of the clients' medians,
    weighted by how many entries they are of.

    Changes are looked for by Algorithm 2 with the residuals as data, from a random start, and by
    its top eigenvalue, which Lemma 4.2 of [1]_ is about. Without noise the 10 x 10 matrix that the
    server receives is symmetric: its asymmetry tells the standard deviation s of the noise,
    whatever the channel is, and (sqrt(20) + 10) s above the threshold there is a change. Noise
    alone exceeds that once in 3e7 looks; with fewer than ten features s is known less well. So a
    change shows at once where it adds an eigenvalue, ``batch_size`` times the variance of the rows,
    that is well above 22 s. With drop-outs each look sees the clients that are there, and some of
    the changes found are none.

    The rows at the end of a stream that do not fill a batch displace their share of the last one in
    what is shown, by as many rounds, and come again when the batch is full. With noise or
    drop-outs, which are fresh in every round, the result depends on how the stream is cut.

    Only sums decide on the subspace; where one client alone has rows in a batch, or is left in a
    round, the sum is its message, and where one row alone does not fit the subspace, the sums of
    ``detect_changes`` tell its residual, up to its sign. The estimator simulates all clients and
    holds what they hold: rows that wait and, for the user, masks and thresholds.

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
    >>> paper = {"center": False, "forgetting_factor": 0.0, "fill": "subspace", "random_state": 0}
    >>> for noise in 1e-3, 1e-6:
    ...     tracker = FederatedSubspaceTracker(5, channel=GaussianChannel(noise), **paper)
    ...     _ = tracker.fit(stream.X, clients=[i // 10 % 4 for i in range(1200)])
    ...     error = subspace_distance(tracker.components_, stream.subspace_at(0))
    ...     print(f"{error:.0e}")
    6e-04
    6e-07

    Changes are found through noise, and outliers in the first batch are overcome:

    >>> options = {"model": "piecewise", "outliers": 0.05, "random_state": 0}
    >>> stream = make_subspace_stream(1200, 200, 5, **options)
    >>> tracker = FederatedSubspaceTracker(
    ...     5, init="altproj", detect_changes=True, n_updates=5, channel=GaussianChannel(1e-3),
    ...     random_state=0,
    ... ).fit(stream.X, clients=[i % 2 for i in range(1200)])
    >>> stream.change_points, tracker.change_points_.tolist()
    ((600,), [580])
    """

    _parameter_constraints: dict = {
        **TrackerRounds._parameter_constraints,
        "init": [StrOptions({"auto", "altproj", "svd"}), "array-like"],
        "n_rounds": [Interval(Integral, 1, None, closed="left")],
        "init_rounds": [Interval(Integral, 1, None, closed="left")],
        "robust": ["boolean"],
        "channel": [InstanceOf(Channel), None],
        "n_clients": [Interval(Integral, 1, None, closed="left")],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
    }
    __metadata_request__fit = {"clients": True}
    __metadata_request__partial_fit = {"clients": True}

    # column of the labels, as given last; it is ignored in rows to transform
    _label_column: str | None = None

    def __init__(
        self,
        n_components: int | None = None,
        *,
        batch_size: int | Literal["auto"] = "auto",
        n_rounds: int = 10,
        init_rounds: int = 50,
        init: Any = "auto",
        init_size: int | Literal["auto"] = "auto",
        robust: bool = True,
        xi: float | Literal["auto"] = "auto",
        support_threshold: float | Literal["auto"] = "auto",
        forgetting_factor: float | Literal["auto"] = "auto",
        half_life: float | None = None,
        n_iter: int = 1,
        fill: str = "conditional",
        detect_changes: bool = False,
        n_updates: int = 20,
        change_threshold: float | Literal["auto"] = "auto",
        center: bool = True,
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
        self.init_size = init_size
        self.robust = robust
        self.xi = xi
        self.support_threshold = support_threshold
        self.forgetting_factor = forgetting_factor
        self.half_life = half_life
        self.n_iter = n_iter
        self.fill = fill
        self.detect_changes = detect_changes
        self.n_updates = n_updates
        self.change_threshold = change_threshold
        self.center = center
        self.channel = channel
        self.n_clients = n_clients
        self.n_jobs = n_jobs
        self.store_subspaces = store_subspaces
        self.random_state = random_state

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
