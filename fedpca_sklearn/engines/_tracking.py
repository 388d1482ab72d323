"""`FederatedSubspaceTracker` over a network: a site's batch, and the server's rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from .._base.batches import RowBuffer
from .._base.block_transformer import Stream
from .._base.fitted import LEARNT, Learnt
from .._kernels.observed import NO_VARIANCE
from .._kernels.row_moments import (
    RoundingNoise,
    RowMoments,
    RowsAtHand,
    SiteMoments,
    without_tiny,
)
from .._kernels.too_large import check_squares
from ..communication import CommunicationLog, Federation
from ..rounds import FederatedSubspaceTracker
from ..rounds import _batch_sums as sums
from ..rounds._queries import Client, Moments, Query, TimesScatter, Variances, parted
from ..summary import Subspace
from ..tracking._alternating_projections import without_sparse_part
from ..tracking._stmiss import Filled, State, fill, residuals
from ..tracking._stmiss_tracker import STMissTracker
from ._estimators import Rounds, Secure, Tasks, partial_fit_estimator, site_work
from ._messages import Answer
from ._questions import Given, RefusedError, Task, check_basis, check_mean, check_patterns, dense
from ._secure import Bounds, Grid, Grids, announced
from ._sites import Shapes, Sites

# Name of the sums that are numbers of rows and entries.
_ROWS = "rows"
# Arguments of questions about filled rows: two models, and what belongs to them.
_MODELS = ("cleaned_by", "model", "ridge", "limits")
# Kinds of questions about a batch by those of the queries, where they differ.
_KINDS = {
    "observed": {"moments": "observed"},
    "low_rank": {"times_scatter": "low_rank"},
    "residuals": {"times_scatter": "times_residuals", "variances": "residuals"},
}
# Why questions read rows.
OBSERVED = "rows: each column has a mean or a median of the entries that are there"
LOW_RANK = "rows: the outliers of the first batch are taken out by all of its rows together"
SIZES = "rows: the sizes of their residuals say which are outliers"
FILLED = "rows: outliers and holes are filled by a model of all sites"

# What the server keeps to in all beginnings of a batch. Two means, or two sets of thresholds, that
# differ by one row's outlier would tell that row by the difference of two answers.
FIRST_MEAN = Given("mean of the first batch", lambda *arguments: arguments[-1:])
BY_MODEL = Given("model by which outliers are found", lambda c, *_: [c])
BY_LIMITS = Given("set of thresholds", lambda c, m, ridge, limits, *_: [limits])
BEFORE = Given("set of thresholds of the batches before", lambda *a: _of_batches_before(a[3]))
ASKED_BEFORE = BEFORE._replace(of=lambda c, limits: [limits] if limits.any() else [])


def _of_batches_before(limits: np.ndarray) -> list[np.ndarray]:
    return [limits] if (limits.ravel()[:1] == 1).any() else []


# -------------------------------------------------------------------- models that travel


def rows_of(state: State) -> np.ndarray:
    """The mean above the basis of a state, as both are sent."""
    return np.vstack([state.mean, state.basis])


def ridge_sent(ridge: np.ndarray | None, k: int) -> np.ndarray:
    """A ridge of k numbers as it is sent: after 1, or zeros where there is none."""
    return np.zeros(1 + k) if ridge is None else np.append(1, ridge)


def limits_sent(limits: sums.Limits | None, d: int) -> np.ndarray:
    """Thresholds of d columns as they are sent, after a number that says how they are used.

    0 not at all, 1 for each row by itself, 2 for the batch. -1 is no threshold.
    """
    if limits is None:
        return np.zeros(1 + d)
    columns = np.where(np.isinf(limits.columns), -1.0, limits.columns)
    return np.append(1 if limits.searched else 2, columns)


def state_asked(tracker: FederatedSubspaceTracker, rows: np.ndarray, d: int) -> State:
    """A tracker's state with the mean and basis that a server sent, checked."""
    if rows.ndim != 2 or not len(rows):
        raise RefusedError("a model must be a mean above a basis, with a ridge")
    mean, basis = rows[0], rows[1:]
    check_mean(mean, d, tracker.center)
    if len(basis):
        check_basis(basis, d, max(tracker._rank(d), len(tracker._first_subspace._basis(d))))
    return State(Subspace.empty(d), mean, without_tiny(basis))


def ridge_asked(ridge: np.ndarray, k: int) -> np.ndarray | None:
    """A ridge as a server sent it, checked."""
    if ridge.shape != (1 + k,):
        raise RefusedError(f"a model must be a mean above a basis, with a ridge of {k} numbers")
    if (ridge < 0).any() or (ridge > NO_VARIANCE).any():
        raise RefusedError(f"a ridge must not be negative, or above {NO_VARIANCE:g}")
    return ridge[1:] if ridge[0] else None


def limits_asked(
    tracker: FederatedSubspaceTracker, limits: np.ndarray, basis: np.ndarray
) -> sums.Limits | None:
    """Thresholds as a server sent them with a basis, checked."""
    d, below = basis.shape[1], (limits < 0) & (limits != -1)
    if limits.shape != (1 + d,) or limits[0] not in (0, 1, 2) or below.any():
        raise RefusedError(f"thresholds must be 0, 1 or 2 and {d} numbers of at least 0, or -1")
    if not limits[0]:
        return None
    if not (finds_thresholds(tracker) and len(basis)):
        raise RefusedError("thresholds must be those of the site's own estimator")
    return sums.Limits(limits[0] == 1, np.where(limits[1:] == -1, np.inf, limits[1:]))


def without_outliers(
    tracker: FederatedSubspaceTracker, Y: np.ndarray, by: State, limits: sums.Limits | None
) -> np.ndarray:
    """Rows whose outliers, about a model, are missing."""
    V, Z, support = by.basis, Y - by.mean, tracker._support
    if not tracker.robust or not len(V):
        return Y
    if limits is None and support.threshold == "auto":
        raise RefusedError("thresholds are needed")
    mask = support._outliers(Z, V)[0] if limits is None else limits.outliers(Z, V, support.xi)
    return np.where(mask, np.nan, Y)


def finds_thresholds(tracker: FederatedSubspaceTracker) -> bool:
    """Whether thresholds of outliers come from sums over all clients."""
    return tracker.robust and tracker._support.threshold == "auto"


# -------------------------------------------------------------------- at a site


def _shapes_of(kind: str, d: int, query: Any) -> Shapes:
    """Shapes of the parts of an answer: one name has one grid of secure sums."""
    one = dict.fromkeys(("level", "squares", "count"), (1,))
    parts: dict[str, Shapes] = {
        "observed": {"total": (d,), _ROWS: (d + 1,)},
        "sizes": {"logs": (d,), _ROWS: (d,), **one},
        "moments": {"sum": (d,), "count": (1,)},
    }
    return parts.get(kind, query.shapes)


def filled_rows(
    tracker: Any, X: Any, sent: tuple, min_rows: int, of_pattern: int | None
) -> tuple[np.ndarray, State, Filled]:
    """A batch of a site about the mean of a model, which fills it, that model, and what it fills.

    Outliers are missing entries. Both models are checked as they were sent.
    """
    Y, d = dense(X), X.shape[1]
    check_squares(Y)
    c, m, m_ridge, limits = sent
    before, by = state_asked(tracker, c, d), state_asked(tracker, m, d)
    ridge = ridge_asked(m_ridge, len(by.basis))
    Y = without_outliers(tracker, Y, before, limits_asked(tracker, limits, before.basis))
    check_patterns(Y, of_pattern)
    noise, zero = RoundingNoise(X, *sent), np.zeros(d)
    Z = noise.on(Y - by.mean)
    filled = fill(Z, zero, by.basis, ridge)
    lost = np.isnan(Y)
    filled = filled._replace(rows=np.where(lost, noise.added(filled.rows, by.mean, Y.dtype), Y))
    if filled.counts.sum() < min_rows:  # a sum of few rows would tell them
        filled = filled._replace(counts=np.zeros(len(Y), dtype=bool))
    return Z, replace(by, mean=zero), filled


def moments_of(rows: np.ndarray) -> RowMoments:
    """Moments of rows that a model has filled, about their own mean; there may be none."""
    return SiteMoments.of(rows) if len(rows) else RowsAtHand(rows)


@site_work.register
def _(tracker: FederatedSubspaceTracker, secure: Secure = None) -> Tasks:
    updates, rounds = tracker.n_iter + 1, max(tracker.n_rounds, tracker._first_rounds)

    def batch_rows(d):
        return STMissTracker._block_rows(tracker, d, False)

    def batch(site, X):
        Y, d = dense(X), X.shape[1]
        mean = np.nansum(Y, axis=0) / np.maximum((~np.isnan(Y)).sum(axis=0), 1)
        scatter = np.nansum((Y - mean) ** 2)
        return announced(batch_rows(d), d, np.linalg.norm(mean), scatter, Y.dtype)

    def added(site, rows, kind, d):
        return parted(_shapes_of(kind, d, Moments), Moments()(site, RowsAtHand(rows)))

    def observed(site, X, *, min_rows, min_rows_of_pattern=None):
        check_patterns(X, min_rows_of_pattern)
        Y = dense(X)
        few = (~np.isnan(Y)).sum(axis=0) < min_rows  # a sum of few entries would tell them
        Y = np.where(few, np.nan, Y)
        robust = tracker.robust or tracker._by_altproj
        return added(site, sums.observed_entries(Y, robust), "observed", Y.shape[1])

    # ``about`` is a mean of the first batch, to which bounds of a later one do not apply
    def low_rank(site, X, V, about, *, min_rows_of_pattern=None):
        d = X.shape[1]
        check_patterns(X, min_rows_of_pattern)
        rows = without_sparse_part(dense(X) - about, tracker._rank(d))[0]  # not what V has
        return {"products": TimesScatter(V, np.zeros(d))(site, moments_of(rows))}

    def sizes(site, X, c, limits, *, min_rows, min_rows_of_pattern=None):
        by = state_asked(tracker, c, X.shape[1])
        known = limits_asked(tracker, limits, by.basis)
        if not (finds_thresholds(tracker) and len(by.basis)):
            raise RefusedError("the estimator finds no thresholds")
        Z, columns = dense(X) - by.mean, known and known.columns
        few = (~np.isnan(Z)).sum(axis=0) < min_rows  # a sum of few sizes would tell them
        _, mask, logs = sums.sizes_of(site, Z, by.basis, tracker._support.xi, columns)
        check_patterns(np.where(mask, np.nan, Z), min_rows_of_pattern)
        logs[:, : 2 * len(few)][:, np.tile(few, 2)] = 0.0
        return added(site, logs, "sizes", len(few))

    def filled(times, query=None, of_residuals=False):
        """Task about rows that models have cleaned and filled; their number without a query."""

        def work(site, X, *sent, min_rows, min_rows_of_pattern=None):
            asked = sent[4:]
            Z, by, found = filled_rows(tracker, X, sent[:4], min_rows, min_rows_of_pattern)
            rows = residuals(by, Z, found) if of_residuals else found.rows
            if query is None:
                return {"count": [float(found.counts.sum())]}
            of = query(*asked)
            own = tracker._misfits(by, Z, found) if query is sums.Misfits else rows[found.counts]
            return parted(of.shapes, of(site, moments_of(own) if asked else RowsAtHand(own)))

        more = ("V", "about") if query in (TimesScatter, Variances) else ()
        center = tracker.center and not of_residuals
        return same(work, times, arguments=(*_MODELS, *more), center=center)

    first = partial(Task, batches=True, batch_rows=batch_rows, missing=True)
    task = partial(first, grids=_grids_of_batch)
    models = Given("models that fill rows", lambda c, m, ridge, *_: [m, ridge], updates)
    given = BY_MODEL, BY_LIMITS, BEFORE, models
    same = partial(task, reads=FILLED, given=given, rank=lambda d: max(tracker._rank(d), 10))
    of_low_rank: Any = {"rank": tracker._rank, "center": tracker.center, "given": (FIRST_MEAN,)}
    return {
        "batch": first(batch, reads="summary", begins=True),
        "observed": task(observed, reads=OBSERVED),
        "low_rank": task(low_rank, tracker._first_rounds, reads=LOW_RANK, **of_low_rank),
        "sizes": task(sizes, 2, reads=SIZES, given=(BY_MODEL, ASKED_BEFORE)),
        "filled": filled(updates + 2),
        "misfits": filled(updates + 2, sums.Misfits),
        "moments": filled(updates, Moments),
        "times_scatter": filled(updates * rounds, TimesScatter),
        "variances": filled(updates, Variances),
        "times_residuals": filled(tracker.n_rounds, TimesScatter, True),
        "residuals": filled(1, Variances, True),
    }


# What the logarithm of a float can be, and powers of two by which rows that a model has filled may
# exceed the entries that were observed.
_LOG, _FILLED = 10, 20


@dataclass(frozen=True)
class BatchAtSites:
    """A batch of rows that stay at the sites, which find outliers in it by a model.

    Attributes
    ----------
    n_rows : int
        Of each site.
    sites : list of str
        That have it.
    shape : tuple
        All rows, and their columns.
    clean : tuple of ndarray
        Mean above basis, and thresholds, by which outliers are found, and become missing entries.
    models : tuple of ndarray
        What questions about its rows begin with, once they are filled.
    counts : ndarray of bool
        As many, all true, as filled rows that count.
    """

    n_rows: int
    sites: list[str]
    shape: tuple[int, int]
    clean: Any = ()
    models: tuple[np.ndarray, ...] = ()
    counts: Any = None

    def __len__(self) -> int:
        return self.shape[0]


class BatchRounds(Rounds):
    """Rounds of sums about rows that are at the sites.

    Parameters
    ----------
    tracker : TrackerOfSites
    batch : BatchAtSites
    kinds : dict of str to str
        Kind of question by that of the query, where they differ.
    models : tuple of ndarray
        What a question begins with.
    """

    def __init__(self, tracker: Any, batch: BatchAtSites, kinds: dict, models: tuple = ()):
        super().__init__(tracker.sites, tracker.communication_)
        self.batch, self.kinds, self.models = batch, kinds, models

    def asked(self, query: Query) -> tuple[str, Shapes, tuple[Any, ...]]:
        """See `Rounds.asked`; what is sent are models, and fields."""
        kind, d = self.kinds.get(query.kind, query.kind), self.batch.shape[1]
        shapes = _shapes_of(kind, d, query)
        if kind == "low_rank":
            return kind, shapes, (*query.arguments[:1], *self.models)
        return kind, shapes, (*self.models, *query.arguments[:2])  # a basis and a mean

    def check(self, query: Query, answer: Answer, *parts: np.ndarray) -> None:
        """Leave a site out that counts more rows than its batch has, or whose sums overflow."""
        if isinstance(query, sums.Misfits):
            _check_misfits(self.batch.n_rows * self.batch.shape[1], answer, *parts)
        if isinstance(query, Moments | Variances):
            _check_share(self.batch.n_rows, answer, *parts)
        if isinstance(query, Moments):
            mean = parts[0] / max(float(parts[-1][-1]), 1.0)
            answer.check_squares(mean, 0.0, np.dtype(np.float64))


def _check_share(n: int, answer: Answer, *parts: np.ndarray) -> None:
    """Leave a site out that counts more rows, at the end of its answer, than its batch has."""
    count = parts[-1][-1]
    if not 0 <= count <= n or count != count // 1:
        raise answer.refused(f"count={count}, expected at most {n} rows")


def _check_misfits(
    most: int, answer: Answer, residual: np.ndarray, square: np.ndarray, rows: np.ndarray
) -> None:
    """Leave a site out whose sums are of no entries, at most so many."""
    free, entries, *zeros = rows
    rounding = 1e-9 * most  # of coordinates that are fitted in part
    within = -rounding <= free <= entries + rounding and 0 <= entries <= most
    if not within or any(zeros) or min(residual[0], square[0]) < 0:
        raise answer.refused("misfits that no entries have")
    answer.check_squares(0.0, max(residual[0], square[0]), np.dtype(np.float64))


class TrackerOfSites(FederatedSubspaceTracker):
    """The server's tracker: it goes from state to state as in one process, and rows stay at sites.

    Its ``sites``, ``given`` and ``largest``, rows of a whole batch of all sites, are set before it
    is used.
    """

    sites: Sites
    given: dict[Any, Any]
    largest: int
    # times that rows were filled since the batch began, but by the batch alone
    n_fills: int

    def begin(self, batch: int) -> BatchAtSites | None:
        """A batch, of which each site has as many rows as fill it; None where nobody has."""
        self.n_fills = 0
        if not (there := [*self.sites.begin_batch("batch", batch)]):
            return None
        n = STMissTracker._block_rows(self, d := self.sites.n_features, False)
        self.largest = (len(self.sites.names) + self.sites.n_ended) * n
        return BatchAtSites(n, there, (n * len(there), d))

    def _block_rows(self, d: int, first: bool = True) -> int:
        return self.largest

    def _once(self, what: Any, make: Callable[[], Any]) -> Any:
        """What sites are given about a batch stays where it begins anew without one of them."""
        if what not in self.given:
            self.given[what] = make()
        return self.given[what]

    def _without_outliers(self, state: State, Y: Any) -> tuple[Any, State]:
        rows, d, none = rows_of(state), Y.shape[1], np.zeros((0, Y.shape[1]))

        def scales(columns: np.ndarray | None) -> sums.Scales:
            known = limits_sent(None if columns is None else sums.Limits(True, columns), d)
            rounds = BatchRounds(self, Y, {"moments": "sizes"}, (rows, known))
            return sums.scales_by_sums(rounds, [], d)

        limits, after = None, np.zeros(d)
        if self.robust and len(state.basis):
            limits, after = self._once("limits", lambda: self._limits(state, Y, scales))
        clean = replace(Y, clean=(rows, limits_sent(limits, d)))
        return clean, replace(state, outliers=none, threshold=after)

    def _fill(self, state: State, Y: Any, alone: bool = False) -> Any:
        self.n_fills += not alone
        new = rows_of(state), ridge_sent(self._ridge_of(state), len(state.basis))
        model = self.given.setdefault("alone" if alone else self.n_fills, new)
        (rows, limits), check = Y.clean, partial(_check_share, Y.n_rows)
        models = rows, *model, limits
        (count,) = self.sites.added("filled", {"count": (1,)}, models, check)["count"]
        n = round(min(max(float(count), 0.0), len(Y)))  # whatever a site sends
        return replace(Y, models=models, counts=np.ones(n, dtype=bool))

    def _rounds_about(
        self, what: str, state: State, Y: Any, filled: Any = None
    ) -> tuple[Federation, list[Client]]:
        batch = Y if filled is None else filled
        models = (state.mean,) if what == "low_rank" else batch.models
        return BatchRounds(self, batch, _KINDS.get(what, {}), models), []  # who are asked is known


@partial_fit_estimator.register
def _(
    estimator: FederatedSubspaceTracker, sites: Sites, batch: int
) -> FederatedSubspaceTracker | None:
    names = FederatedSubspaceTracker._get_param_names()  # a subclass may have others
    tracker = TrackerOfSites(**{name: getattr(estimator, name) for name in names})
    tracker.sites, tracker.given = sites, {}
    known = getattr(estimator, "_stream", None)
    if known is None:
        estimator.clients_, estimator.communication_ = [], CommunicationLog()

    def take() -> tuple[Stream, list[str]] | None:
        if (Y := tracker.begin(batch)) is None:
            return None
        tracker.communication_ = estimator.communication_.copy()
        fixed = {name: getattr(estimator, name) for name in estimator._fixed}
        none = RowBuffer(np.empty((0, d := sites.n_features)), 1)
        before = known or Stream(fixed, tracker._start(d), none, 0, sites.dtype, 0)
        state, n = tracker._next_state(before.state, Y), before.n_rows  # type: ignore[arg-type]
        return before._replace(state=state, buffer=none, n_rows=n + len(Y), n_before=n), Y.sites

    if (taken := sites.until_nobody_is_lost(take)) is None:
        return None
    stream, there = taken
    state = stream.state
    estimator.communication_ = tracker.communication_
    estimator.clients_ = sorted({*estimator.clients_, *there})
    estimator.__dict__[LEARNT] = Learnt(stream, {})
    if estimator.store_subspaces:
        estimator.subspaces_ = list(getattr(estimator, "subspaces_", []))
        estimator._store(state.basis)
    estimator._show_subspace(state, stream.n_rows, stream.dtype)
    estimator.support_threshold_ = np.array(state.threshold)
    return estimator


# -------------------------------------------------------------------- secure sums


def _grids_of_batch(bounds: Bounds) -> Grids:
    """Grids of the sums over a batch, from the bounds of its observed entries."""
    rows = bounds.rows + int(np.ceil(np.log2(bounds.n_features)))
    observed = np.maximum(bounds.scatter, bounds.about_mean)
    squares = Grid(observed + 2 * _FILLED, np.maximum(bounds.scatter, observed - 2 * _FILLED))
    total = Grid((rows + observed) // 2 + 1 + _FILLED, (rows + bounds.scatter) // 2)
    return {
        **dict.fromkeys((_ROWS, "count"), Grid(rows)),
        **dict.fromkeys(("logs", "level"), Grid(rows + _LOG)),
        **dict.fromkeys(("total", "sum"), total),
        **dict.fromkeys(("products", "scatter", "squares", "residual", "square"), squares),
    }
