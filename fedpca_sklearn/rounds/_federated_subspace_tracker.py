"""Subspace tracking across clients by rounds of sums: Fed-OA-RSTMiss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, replace
from itertools import count, islice, repeat, starmap
from numbers import Integral
from operator import attrgetter
from typing import Any

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import _num_samples

from .._base.fitted import computed, with_callbacks
from .._base.sources import is_stream
from .._dask import refuse_dask
from .._kernels import linalg
from .._validation.checks import AT_LEAST_ONE, InstanceOf, allowed, with_parameters
from ..communication import Channel, CommunicationLog, Federation
from ..communication._channel import check_channel
from ..communication._federation import log_fit
from ..federated._clients import label_order, labels_of, split_labels, without_column
from ..summary import Subspace
from ..tracking._alternating_projections import without_sparse_part
from ..tracking._outliers import (
    OutlierSupport,
    decompose,
    known_thresholds,
    outliers_of_tracker_removed,
)
from ..tracking._stmiss import Filled, Misfit, State, residuals
from ..tracking._stmiss_tracker import OUTLIERS, STMissTracker, without_times
from . import _batch_sums as sums
from ._power_method import power_method
from ._queries import Client


def shards_of(owners: np.ndarray) -> list[tuple[Any, np.ndarray]]:
    """Labels of the clients of a batch, and the positions of their rows."""
    labels = sorted(set(owners.tolist()), key=label_order)
    return [(label, np.flatnonzero(owners == label)) for label in labels]


@with_parameters
class FederatedSubspaceTracker(STMissTracker):
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
    init : {"auto", "svd", "altproj"}, array-like of shape (k, n_features) or FirstSubspace, \
            default="auto"
        "auto": "altproj" if ``robust``, else "svd". "svd": the first batch is filled with zeros,
        outliers included. "altproj": each client takes the outliers out of its rows of the first
        batch by `AlternatingProjections`, and rounds find the subspace of what is left. An array:
        rows that span the first subspace. `FirstSubspace` says of how many rows and rounds.
    forgetting_factor : float in [0, 1] or "auto", default="auto"
        As in `SubspaceTracker`, but for one model. No message more, except where a batch may tell
        of a change: then rounds for it alone.
    half_life : float or None, default=None
        Number of later rows, of all clients, after which a row has half its weight.
    n_iter, fill, detect_changes : optional
        As in `RobustSubspaceTracker`; noise of the channel raises the threshold of changes.
    center : bool, default=True
        Subtract the mean of the filled rows that count, which one more round for each batch finds.
    store_subspaces : bool, default=False
        Keep the basis after every batch in ``subspaces_``, which grows with the stream.
    n_rounds : int, default=10
        Rounds of the power method for a batch; L of [1]_.
    robust : bool, default=True
        Search for outliers. False: missing entries only (Fed-OA-STMiss-NoDet).
    support_threshold : float, "auto" or OutlierSupport, default="auto"
        As in `RobustSubspaceTracker`, but that with "auto" the deviation of a feature is from a sum
        of logarithms, which few outliers move little.
    channel : Channel or None, default=None
        The simulated network. None: `PerfectChannel`. A schedule of those who drop out has a
        column for each client of a batch, and begins with each batch.
    n_clients : int, default=2
        Without ``clients``, row i of the stream belongs to client ``i % n_clients``.
    n_jobs : int or None, default=None
        Clients at work at the same time; threads, unless ``joblib.parallel_config`` says otherwise.
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

    _: KW_ONLY
    init: Any = allowed(*OUTLIERS["init"], default="auto")
    n_rounds: int = allowed(AT_LEAST_ONE, default=10)
    robust: bool = allowed("boolean", default=True)
    support_threshold: Any = allowed(*OUTLIERS["support_threshold"], default="auto")
    channel: Any = allowed(InstanceOf(Channel), None, default=None)
    n_clients: int = allowed(AT_LEAST_ONE, default=2)
    n_jobs: int | None = allowed(Integral, None, default=None)
    random_state: Any = allowed("random_state", default=None)

    outlier_mask_ = computed()
    support_threshold_ = computed()
    decompose = decompose

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
    def _processing(self, X: Any, clients: Any, stream: Any) -> Iterator[tuple[Any, Iterator]]:
        """Rows of a call, and their labels one by one; all are taken, or nothing leaves a trace."""
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
            if clients is not None:
                yield X, iter(labels_of(clients, _num_samples(X)).tolist())
            else:  # each client in turn
                first = 0 if stream is None else stream.n_rows
                yield X, (i % self.n_clients for i in count(first))
        log_fit(self, len(self.clients_))

    def _check_X(self, X: Any) -> Any:
        return super()._check_X(without_column(X, self._label_column))

    def _check_parameters(self) -> None:
        super()._check_parameters()
        absorb_after = self._support.absorb_after
        if absorb_after not in (None, OutlierSupport().absorb_after):
            raise ValueError(
                f"absorb_after is not for {type(self).__name__}, whose server does not see where "
                f"outliers are: it must be left out or None, got {absorb_after}."
            )
        check_channel(self.channel)

    def _start(self, d: int) -> State:
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return replace(super()._start(d), seed=seed)

    def _begin_batch(self, stream: Any, n: int, labels: Iterator) -> State:
        state, new = super()._begin_batch(stream, n, labels), list(islice(labels, n))
        self.clients_ = sorted({*self.clients_, *new}, key=label_order)
        return replace(state, owners=np.array([*state.owners, *new], dtype=object))

    # ---------------------------------------------------------------- a batch by rounds of sums

    def _federation(self, state: State) -> Federation:
        """Rounds that the log counts; noise is fresh in every one, also where rows come again."""
        rng = np.random.RandomState([state.seed, self.communication_.rounds])
        return Federation(self.n_jobs, self.channel, rng, self.communication_)

    def _next_state(self, state: State, Y: np.ndarray) -> State:
        return self._taken(*self._cleaned(state, Y))

    def _means(self, state: State, Y: np.ndarray) -> np.ndarray:
        observed = self._rounds_about("observed", state, Y)
        return self._once("mean", lambda: sums.mean_by_counts(*observed, Y.shape[1]))

    def _first(self, state: State, Y: np.ndarray) -> State:
        if self._by_altproj:
            low_rank = self._rounds_about("low_rank", state, Y)
            start: Any = (
                np.zeros(Y.shape[1]),
                self._start_from(state, state.basis),
                self._first_rounds,
            )
            V = self._once("basis", lambda: power_method(*low_rank, *start).basis)
            state = replace(state, basis=V)
        return state

    def _once(self, what: str, make: Callable[[], Any]) -> Any:
        """What stays as it is where a batch begins anew, which one in this process does not."""
        return make()

    def _without_outliers(self, state: State, Y: np.ndarray) -> tuple[np.ndarray, State]:
        V, xi, d = state.basis, self._support.xi, Y.shape[1]
        mask, columns = np.zeros(Y.shape, dtype=bool), np.zeros(d)
        if not (self.robust and len(V)):
            return Y, replace(state, outliers=mask, threshold=columns)
        labels, at = zip(*shards_of(state.owners[: len(Y)]), strict=True)
        Z, local = [Y[own] - state.mean for own in at], Federation(self.n_jobs).map
        # what clients know from the last look at their sizes
        found: list[Any] = [None] * len(Z)
        starts = list(found)

        def scales(columns: np.ndarray | None) -> sums.Scales:
            calls = zip(labels, Z, repeat(V), repeat(xi), repeat(columns), starts, strict=False)
            found[:] = local(sums.sizes_of, calls)
            starts[:] = map(attrgetter("start"), found)
            clients = list(map(Client, labels, map(attrgetter("logs"), found)))
            return sums.scales_by_sums(self._federation(state), clients, d)

        limits, columns = self._limits(state, Y, scales)

        def outliers(label: Any, Z: np.ndarray, sizes: Any) -> np.ndarray:
            """Local work of one client: where its rows have outliers."""
            if limits is None:
                return self._support._outliers(Z, V)[0]
            if sizes is None:
                return limits.outliers(Z, V, xi)
            return sizes.mask if limits.searched else limits.outliers(Z, V, xi, sizes.start)

        for own, hit in zip(at, local(outliers, zip(labels, Z, found, strict=True)), strict=True):
            mask[own] = hit
        return np.where(mask, np.nan, Y), replace(state, outliers=mask, threshold=columns)

    def _limits(
        self, state: State, Y: Any, scales: Callable[..., sums.Scales]
    ) -> tuple[sums.Limits | None, np.ndarray]:
        """How outliers are found, and the thresholds of columns after them.

        ``scales`` as in `limits_by_sums`.
        """
        d, columns = Y.shape[1], known_thresholds(state.threshold)
        if self._support.threshold != "auto":
            return None, np.full(d, float(self._support.threshold))
        if columns is not None and len(Y) < self._block_rows(d, not state.summary.n_samples):
            return sums.Limits(True, columns), columns
        return sums.limits_by_sums(scales, columns, state.n_rows)

    def _rounds_about(
        self, what: str, state: State, Y: Any, filled: Any = None
    ) -> tuple[Federation, list[Client]]:
        """Rounds, and clients with rows of a batch, or with what is made of these.

        "observed" entries and their part of "low_rank"; of rows that a basis has filled those that
        count, "filled", and their "residuals"; the "misfits" of all.
        """
        rows = Y if filled is None else filled.rows
        if what == "residuals":
            rows = residuals(state, Y, filled)
        elif what == "misfits":
            rows = self._misfits(state, Y, filled)
        all_count = filled is None or what == "misfits"
        counts = np.ones(len(rows), dtype=bool) if all_count else filled.counts
        federation, shards = self._federation(state), shards_of(state.owners[: len(rows)])
        own = [(label, rows[at[counts[at]]]) for label, at in shards if counts[at].any()]

        def client(label: Any, rows: np.ndarray) -> Client:
            """Local work before the rounds."""
            if what == "observed":
                rows = sums.observed_entries(rows, self.robust or self._by_altproj)
            elif what == "low_rank":
                rows = without_sparse_part(rows - state.mean, self._rank(rows.shape[1]))[0]
            return Client(label, rows)

        done = starmap(Client, own) if filled is not None else federation.map(client, own)
        return federation, list(done)

    def _level(self, state: State, Y: np.ndarray, filled: Filled) -> tuple[float, float]:
        rng = np.random.RandomState([state.seed, state.n_rows % 2**32, 1])
        rounds, clients = self._rounds_about("residuals", state, Y, filled)
        return sums.largest_eigenvalue(rounds, clients, Y.shape[1], rng, self.n_rounds)

    def _r_svd(self, state: State, filled: Filled, V: np.ndarray) -> Subspace:
        """Algorithm 2 by rounds of sums, from the last subspace."""
        rounds, clients = self._rounds_about("filled", state, None, filled)
        d = V.shape[1]
        started = state.summary.n_samples or len(state.basis) >= self._rank(d)
        m = int(filled.counts.sum())
        before = state.summary.decay(self._weight_left(state, m, d))
        n_rounds = self.n_rounds if started else self._first_rounds
        return sums.r_svd_by_sums(rounds, clients, before, self._start_from(state, V), n_rounds)

    def _misfit(self, state: State, Y: np.ndarray, filled: Filled) -> Misfit:
        """By a round of sums; the server answers with the ridge."""
        rounds, clients = self._rounds_about("misfits", state, Y, filled)
        return sums.misfit_by_sums(rounds, clients, np.empty(len(state.basis)))

    def _start_from(self, state: State, V: np.ndarray) -> np.ndarray:
        """Basis that the rounds of a batch start from: one given, completed at random."""
        rank, d = self._rank(V.shape[1]), V.shape[1]
        random = np.random.RandomState([state.seed, state.n_rows % 2**32])
        return linalg.orthonormalised(np.concatenate([V, random.standard_normal((rank, d))])[:rank])

    @property
    def _first_rounds(self) -> int:
        """Rounds of a start at random."""
        return self._first_subspace.n_rounds

    def _outliers_removed(self, X: Any) -> np.ndarray:
        return outliers_of_tracker_removed(self, X) if self.robust else X

    _usable = _outliers_removed
