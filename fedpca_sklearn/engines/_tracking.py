"""`FederatedSubspaceTracker` over a network: the server's rounds about a batch of each site."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .._base.block_transformer import Stream
from .._base.fitted import LEARNT, Learnt
from .._base.row_buffer import RowBuffer
from .._validation.checks import check_at_most_features
from ..communication import CommunicationLog, Federation
from ..rounds import FederatedSubspaceTracker
from ..rounds._batch_sums import (
    largest_eigenvalue,
    mean_by_counts,
    misfit_by_sums,
    r_svd_by_sums,
)
from ..rounds._client import Client
from ..rounds._outlier_sums import Limits, Scales, limits_by_sums, scales_by_sums
from ..rounds._power_method import power_method
from ..rounds._queries import LARGEST, Moments, Query, Variances
from ..summary import Subspace
from ..tracking._decomposition import known_thresholds
from ..tracking._past import Misfit
from ..tracking._stmiss import State, faded
from ._estimators import (
    check_count,
    fit_batches,
    fit_estimator,
    partial_fit_estimator,
)
from ._messages import Answer
from ._sites import SiteLostError, Sites
from ._tracked_rows import Cleaning, Model, finds_thresholds


@dataclass(frozen=True)
class BatchAtSites:
    """A batch of rows that stay at the sites, which find outliers in it by a model.

    Attributes
    ----------
    number : int
        Of the batch.
    counts : dict of str to int
        Rows of each site that has it.
    shape : tuple
        All rows, and their columns.
    clean : Cleaning
        By which outliers are found, and become missing entries.
    """

    number: int
    counts: dict[str, int]
    shape: tuple[int, int]
    clean: Cleaning

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def clients(self) -> list[Client]:
        """Sites that have rows, of which the server knows the number."""
        d = self.shape[1]
        rows = self.counts.items()
        return [Client(site, np.broadcast_to(0.0, (n, d))) for site, n in rows]


@dataclass(frozen=True)
class FilledAtSites:
    """Filled rows that stay at the sites; of those that count the server knows how many."""

    batch: BatchAtSites
    model: Model
    n_counting: int

    @property
    def counts(self) -> np.ndarray:
        """As many rows as count."""
        return np.ones(self.n_counting, dtype=bool)

    @property
    def models(self) -> tuple[np.ndarray, ...]:
        """What a question about the rows begins with."""
        return arrays_of(self.batch.clean, self.model)


@dataclass
class GivenToSites:
    """What sites were given about a batch, which stays where it begins anew without one of them.

    Attributes
    ----------
    mean, basis : ndarray or None
        By which the first batch is filled.
    clean : tuple of Cleaning and ndarray, or None
        How outliers are found, and the thresholds after the batch.
    models : dict
        What fills rows, by the number of the time, or "alone" for that of the batch by itself.
    """

    mean: np.ndarray | None = None
    basis: np.ndarray | None = None
    clean: tuple[Cleaning, np.ndarray] | None = None
    models: dict[int | str, Model] = field(default_factory=dict)


class BatchRounds(Federation):
    """Rounds of sums about rows that are at the sites.

    Parameters
    ----------
    sites : Sites
    batch : BatchAtSites
    log : CommunicationLog
    kinds : dict of str to str
        Kind of question by that of the query, where they differ.
    models : tuple of ndarray
        What a question begins with.
    """

    def __init__(
        self,
        sites: Sites,
        batch: BatchAtSites,
        log: CommunicationLog,
        kinds: dict[str, str] | None = None,
        models: tuple[np.ndarray, ...] = (),
    ):
        super().__init__(log=log)
        self.sites, self.batch, self.kinds, self.models = sites, batch, kinds or {}, models

    def map(self, function: Any, clients: Any) -> Iterator[np.ndarray]:
        """Yield the message of every site that has the batch, where the query is asked."""
        query: Query = function
        kind, arguments = self.asked(query)
        yield from ask_of_batch(self.sites, self.batch, kind, self._read(query), *arguments)

    def asked(self, query: Query) -> tuple[str, tuple[np.ndarray, ...]]:
        """Kind and arguments of the question for a query."""
        fields = (value for name, value in vars(query).items() if name != "steps")
        return self.kinds.get(query.kind, query.kind), (*self.models, *fields)

    def length(self, query: Query) -> int:
        """Numbers in the answer."""
        d, kind = self.batch.shape[1], self.kinds.get(query.kind)
        columns = {"observed": 2 * d, "sizes": 2 * d + 2}.get(kind or "", d)
        return math.prod(columns + 1 if n is None else n for n in query.shape)

    def _read(self, query: Query) -> Any:
        def read(answer: Answer) -> np.ndarray:
            message = answer.array("message", query.shape)
            if np.abs(message).max() > LARGEST:
                raise answer.refused("values that are too large: their sum would overflow")
            if isinstance(query, (Moments, Variances)):
                _check_share(answer, message[-1], self.batch.counts.get(answer.site, 0))
            if isinstance(query, Moments) and len(message) != self.length(query):
                raise answer.refused(f"a sum of {len(message) - 1} columns")
            return message

        return read


def ask_of_batch(
    sites: Sites, batch: BatchAtSites, kind: str, read: Any, *arguments: Any
) -> list[Any]:
    """What the sites that have a batch answer about it; an error if one is lost."""
    found = sites.ask_batch(kind, read, batch.number, *arguments, there=batch.counts)
    if found.keys() < batch.counts.keys():
        raise SiteLostError
    return [found[site] for site in batch.counts]


def arrays_of(clean: Cleaning, model: Model) -> tuple[np.ndarray, ...]:
    """What a question about filled rows begins with: how they are cleaned, and filled."""
    rows, limits = clean.arrays
    return rows, *model.arrays, limits


def _check_share(answer: Answer, count: float, n: int) -> None:
    """Leave a site out that counts more rows than its batch has."""
    if not 0 <= count <= n or count != count // 1:
        raise answer.refused(f"count={count}, expected at most {n} rows")


class TrackerOfSites(FederatedSubspaceTracker):
    """The server's tracker: it goes from state to state as in one process, and rows stay at sites.

    Its ``sites``, ``given`` and ``largest``, rows of a whole batch of all sites, are set before it
    is used.
    """

    sites: Sites
    given: GivenToSites
    largest: int
    # times that rows were filled since the batch began, and whether by the batch alone
    n_fills: int
    alone: bool

    def begin(self, batch: int) -> dict[str, tuple[int, int]]:
        """Rows and columns that each site has of a batch, by its name; empty where it ends."""
        counts = self.sites.ask_batch("batch", count_in, batch)
        self.largest = len(self.sites.names) * max((n for n, _ in counts.values()), default=0)
        self.n_fills, self.alone = 0, False
        return counts

    def _sums(
        self, batch: BatchAtSites, kinds: dict[str, str], models: tuple[np.ndarray, ...] = ()
    ) -> Federation:
        """Rounds of sums about a batch, as `BatchRounds` takes them."""
        return BatchRounds(self.sites, batch, self.communication_, kinds, models)

    def _counting(self, batch: BatchAtSites, arrays: tuple[np.ndarray, ...]) -> int:
        """Rows that count where all are filled so."""

        def read(answer: Answer) -> int:
            (count,) = answer.array("count", (1,))
            _check_share(answer, count, batch.counts.get(answer.site, 0))
            return int(count)

        return sum(ask_of_batch(self.sites, batch, "filled", read, *arrays))

    def _block_rows(self, d: int, first: bool = True) -> int:
        return self.largest

    def _rounds(self, filled: FilledAtSites, **kinds: str) -> Federation:
        return self._sums(filled.batch, kinds, filled.models)

    def _first(self, state: State, Y: Any) -> State:
        d, given = Y.shape[1], self.given
        if self.center:
            if given.mean is None:
                rounds = self._sums(Y, {"moments": "observed"})
                given.mean = mean_by_counts(rounds, Y.clients, d)
            state = replace(state, mean=given.mean)
        if self._by_altproj:
            if given.basis is None:
                rounds = self._sums(Y, {"times_scatter": "low_rank"})
                start = self._start_from(state, state.basis)
                found = power_method(rounds, Y.clients, state.mean, start, self.init_rounds)
                given.basis = found.basis
            state = replace(state, basis=given.basis)
        return state

    def _without_outliers(self, state: State, Y: Any) -> tuple[Any, State]:
        d, model = Y.shape[1], Model(state.mean, state.basis)
        if self.given.clean is None:
            limits, after = None, np.zeros(d)
            if self.robust and len(state.basis):
                limits, after = self._limits(state, Y, model)
            self.given.clean = Cleaning(model, limits), after
        clean, after = self.given.clean
        state = replace(state, outliers=np.zeros((0, d)), threshold=after)
        return replace(Y, clean=clean), state

    def _limits(self, state: State, Y: Any, model: Model) -> tuple[Limits | None, np.ndarray]:
        """How outliers are found, and the thresholds of columns after them."""
        d = Y.shape[1]
        if not finds_thresholds(self):
            return None, np.full(d, float(self.support_threshold))
        columns = known_thresholds(state.threshold)
        if columns is not None and len(Y) < self.largest:
            return Limits(True, columns), columns

        def scales(columns: np.ndarray | None) -> Scales:
            by = Cleaning(model, None if columns is None else Limits(True, columns))
            rounds = self._sums(Y, {"moments": "sizes"}, by.arrays)
            return scales_by_sums(rounds, Y.clients, d)

        return limits_by_sums(scales, columns, state.n_rows)

    def _fill(self, state: State, Y: Any) -> Any:
        self.n_fills += not self.alone
        time: int | str = "alone" if self.alone else self.n_fills
        new = Model(state.mean, state.basis, self._ridge_of(state))
        model = self.given.models.setdefault(time, new)
        return FilledAtSites(Y, model, self._counting(Y, arrays_of(Y.clean, model)))

    def _noise_alone(self, state: State, Y: Any, filled: Any) -> float:
        self.alone = True
        noise = super()._noise_alone(state, Y, filled)
        self.alone = False
        return noise

    def _level(self, state: State, Y: Any, filled: Any) -> tuple[float, float]:
        rng = np.random.RandomState([state.seed, state.n_rows % 2**32, 1])
        rounds = self._rounds(filled, times_scatter="times_residuals", variances="residuals")
        return largest_eigenvalue(rounds, Y.clients, rng, self.n_rounds)

    def _r_svd(self, state: State, filled: Any, V: np.ndarray) -> Subspace:
        d, clients = V.shape[1], filled.batch.clients
        started = state.summary.n_samples or len(state.basis) >= self._rank(d)
        before = faded(state.summary, filled.n_counting, self.largest, self._factor)
        n_rounds = self.n_rounds if started else self.init_rounds
        start = self._start_from(state, V)
        return r_svd_by_sums(self._rounds(filled), clients, before, start, n_rounds)

    def _misfit(self, state: State, Y: Any, filled: Any) -> Misfit:
        reply = np.empty(len(state.basis))
        return misfit_by_sums(self._rounds(filled), Y.clients, reply)


@fit_estimator.register
def _(estimator: FederatedSubspaceTracker, sites: Sites) -> FederatedSubspaceTracker:
    return fit_batches(
        estimator, lambda estimator, batch: partial_fit_estimator(estimator, sites, batch)
    )


@partial_fit_estimator.register
def _(
    estimator: FederatedSubspaceTracker, sites: Sites, batch: int
) -> FederatedSubspaceTracker | None:
    tracker = TrackerOfSites(**estimator.get_params(deep=False))
    tracker.sites = sites
    return with_batch(estimator, tracker, batch)


def with_batch(
    estimator: FederatedSubspaceTracker, tracker: TrackerOfSites, batch: int
) -> FederatedSubspaceTracker | None:
    """The estimator with a batch, which the tracker takes; None where no site has one."""
    stream = getattr(estimator, "_stream", None)
    if stream is None:
        estimator.clients_, estimator.communication_ = [], CommunicationLog()
    tracker.given = GivenToSites()
    while True:
        counts = tracker.begin(batch)
        if not counts:
            return None
        d = next(iter(counts.values()))[1]
        check_at_most_features(estimator.n_components, d)
        rows = {site: n for site, (n, _) in counts.items()}
        tracker.communication_ = estimator.communication_.copy()
        state = tracker._start(d) if stream is None else stream.state
        n = sum(rows.values())
        Y: Any = BatchAtSites(batch, rows, (n, d), Cleaning(Model(np.zeros(d), np.zeros((0, d)))))
        try:
            state = tracker._next_state(state, Y)
        except SiteLostError:
            continue
        break
    estimator.communication_ = tracker.communication_
    estimator.clients_ = sorted({*estimator.clients_, *rows})
    n_rows = n + (0 if stream is None else stream.n_rows)
    fixed = {name: getattr(estimator, name) for name in estimator._fixed}
    dtype = tracker.sites.dtype if stream is None else stream.dtype
    stream = Stream(fixed, state, RowBuffer(np.empty((0, d)), 1), n_rows, dtype, n_rows - n)
    estimator.__dict__[LEARNT] = Learnt(stream, {})
    if estimator.store_subspaces:
        estimator.subspaces_ = list(getattr(estimator, "subspaces_", []))
    estimator._store(state.basis)
    estimator._show_subspace(state, n_rows, dtype)
    estimator.support_threshold_ = np.array(state.threshold)
    return estimator


def count_in(answer: Answer) -> tuple[int, int]:
    """Rows of a site's batch, and their columns."""
    (count,), (d,) = answer.array("count", (1,)), answer.array("columns", (1,))
    for number in (count, d):
        check_count(answer, number)
        if number != number // 1:
            raise answer.refused(f"count={number}, expected a whole number")
    answer.agree("number of features", int(d))
    return int(count), int(d)
