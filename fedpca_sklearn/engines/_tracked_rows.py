"""`FederatedSubspaceTracker` at a site: what it does about a batch of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .._kernels.missing import fitted_numbers
from .._kernels.row_moments import RowMoments, RowsAtHand, SiteMoments
from .._kernels.too_large import check_squares
from ..rounds import FederatedSubspaceTracker
from ..rounds._batch_sums import Limits, Misfits, observed_entries, sizes_of
from ..rounds._queries import Moments, TimesScatter, Variances
from ..summary import Subspace
from ..tracking._alternating_projections import without_sparse_part
from ..tracking._past import misfits
from ..tracking._stmiss import Filled, State, fill, residuals
from ..tracking._stmiss_tracker import STMissTracker
from ._estimators import refuse_channel, site_work
from ._questions import Given, RefusedError, Task, check_basis, check_mean, check_patterns
from ._rows import dense

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
ASKED_BEFORE = BEFORE._replace(of=lambda c, limits: _of_batches_before(limits))


def _of_batches_before(limits: np.ndarray) -> list[np.ndarray]:
    return [limits] if (limits.ravel()[:1] == 1).any() else []


# -------------------------------------------------------------------- models that travel


@dataclass(frozen=True)
class Model:
    """What fills rows: their mean, a basis of k directions, and a ridge of k numbers or none.

    It travels as two arrays: the mean above the basis, and whether there is a ridge before it.
    """

    mean: np.ndarray
    basis: np.ndarray
    ridge: np.ndarray | None = None

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """As it is sent."""
        ridge = np.zeros(len(self.basis)) if self.ridge is None else self.ridge
        return np.vstack([self.mean, self.basis]), np.append(self.ridge is not None, ridge)

    @classmethod
    def asked(cls, tracker: FederatedSubspaceTracker, sent: Sequence[np.ndarray], d: int) -> Model:
        """As a server sent it, checked."""
        rows, ridge = sent
        if rows.ndim != 2 or not len(rows) or ridge.shape != (len(rows),):
            raise RefusedError("a model must be a mean, a basis and a ridge")
        mean, basis = rows[0], rows[1:]
        check_mean(mean, d, tracker.center)
        if len(basis):
            given = tracker._first_subspace._basis(d)
            check_basis(basis, d, max(tracker._rank(d), len(given)))
        if (ridge < 0).any():
            raise RefusedError("a ridge must not be negative")
        return cls(mean, basis, ridge[1:] if ridge[0] else None)

    @property
    def state(self) -> State:
        """A tracker's state that fills rows so."""
        return State(Subspace.empty(len(self.mean)), self.mean, self.basis)


@dataclass(frozen=True)
class Cleaning:
    """How a batch is rid of outliers: by a model without a ridge, and thresholds of columns.

    It travels as two arrays: the mean above the basis, and thresholds after a number that says how
    they are used: 0 not at all, 1 for each row by itself, 2 for the batch. -1 is no threshold.
    """

    model: Model
    limits: Limits | None = None

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """As it is sent."""
        rows, limits = self.model.arrays[0], self.limits
        if limits is None:
            return rows, np.zeros(1 + rows.shape[1])
        columns = np.where(np.isinf(limits.columns), -1.0, limits.columns)
        return rows, np.append(1 if limits.searched else 2, columns)

    @classmethod
    def asked(
        cls, tracker: FederatedSubspaceTracker, sent: Sequence[np.ndarray], d: int
    ) -> Cleaning:
        """As a server sent it, checked."""
        rows, limits = sent
        model = Model.asked(tracker, [rows, np.zeros(rows.shape[:1])], d)
        below = (limits < 0) & (limits != -1)
        if limits.shape != (1 + d,) or limits[0] not in (0, 1, 2) or below.any():
            raise RefusedError(f"thresholds must be 0, 1 or 2 and {d} numbers of at least 0, or -1")
        known = limits[0] > 0
        if known and not (finds_thresholds(tracker) and len(model.basis)):
            raise RefusedError("thresholds must be those of the site's own estimator")
        columns = np.where(limits[1:] == -1, np.inf, limits[1:])
        return cls(model, Limits(limits[0] == 1, columns) if known else None)

    def outliers(self, tracker: FederatedSubspaceTracker, Y: np.ndarray) -> np.ndarray:
        """Where rows have outliers."""
        V, Z, support = self.model.basis, Y - self.model.mean, tracker._support
        if not tracker.robust or not len(V):
            return np.zeros(Y.shape, dtype=bool)
        if self.limits is not None:
            return self.limits.outliers(Z, V, support.xi)
        if support.threshold == "auto":
            raise RefusedError("thresholds are needed")
        return support._outliers(Z, V)[0]


def finds_thresholds(tracker: FederatedSubspaceTracker) -> bool:
    """Whether thresholds of outliers come from sums over all clients."""
    return tracker.robust and tracker._support.threshold == "auto"


# -------------------------------------------------------------------- at a site


def filled_rows(
    tracker: Any, X: Any, sent: tuple, min_rows: int, of_pattern: int | None
) -> tuple[np.ndarray, Model, Filled]:
    """A batch of a site with outliers as missing entries, and how a model fills it.

    Both models are checked as they were sent.
    """
    Y, d = dense(X), X.shape[1]
    check_squares(Y)
    c, m, m_ridge, limits = sent
    before, by = Cleaning.asked(tracker, [c, limits], d), Model.asked(tracker, [m, m_ridge], d)
    Y = np.where(before.outliers(tracker, Y), np.nan, Y)
    check_patterns(Y, of_pattern)
    filled = fill(Y, by.mean, by.basis, by.ridge)
    if filled.counts.sum() < min_rows:  # a sum of few rows would tell them
        filled = filled._replace(counts=np.zeros(len(Y), dtype=bool))
    return Y, by, filled


def moments_of(rows: np.ndarray) -> RowMoments:
    """Moments of rows that a model has filled, about their own mean; there may be none."""
    return SiteMoments.of(rows) if len(rows) else RowsAtHand(rows)


@site_work.register
def _(estimator: FederatedSubspaceTracker) -> dict[str, Task]:
    refuse_channel(estimator.channel)
    tracker, center = estimator, estimator.center
    updates = estimator.n_iter + 1
    rounds = max(estimator.n_rounds, estimator._first_rounds)

    def batch_rows(d):
        return STMissTracker._block_rows(tracker, d, False)

    def batch(site, X):
        return {"count": [float(X.shape[0])], "columns": [float(X.shape[1])]}

    def about_filled(answer):
        """Work that answers about rows that models have cleaned and filled."""

        def work(site, X, c, m, m_ridge, limits, *, min_rows, min_rows_of_pattern=None):
            sent = c, m, m_ridge, limits
            return answer(*filled_rows(tracker, X, sent, min_rows, min_rows_of_pattern))

        return work

    def added(query, rows):
        return {"message": query.answer(RowsAtHand(rows))}

    def count(Y, by, filled):
        return {"count": [float(filled.counts.sum())]}

    def moments(Y, by, filled):
        return added(Moments(), filled.rows[filled.counts])

    def misfit(Y, by, filled):
        left = residuals(by.state, Y, filled)
        known = fitted_numbers(~np.isnan(Y), by.basis, by.ridge)
        return added(Misfits(), misfits(left, Y - by.mean, known))

    def observed(site, X, *, min_rows, min_rows_of_pattern=None):
        check_patterns(X, min_rows_of_pattern)
        Y = dense(X)
        few = (~np.isnan(Y)).sum(axis=0) < min_rows  # a sum of few entries would tell them
        Y = np.where(few, np.nan, Y)
        robust = tracker.robust or tracker._by_altproj
        return added(Moments(), observed_entries(Y, robust))

    # ``about`` is a mean of the first batch, to which bounds of a later one do not apply
    def low_rank(site, X, V, about, *, min_rows_of_pattern=None):
        d = X.shape[1]
        check_patterns(X, min_rows_of_pattern)
        check_mean(about, d, center)
        check_basis(V, d, tracker._rank(d))
        rows = without_sparse_part(dense(X) - about, tracker._rank(d))  # not what V has
        return {"message": TimesScatter(V, np.zeros(d)).answer(moments_of(rows))}

    def sizes(site, X, c, limits, *, min_rows, min_rows_of_pattern=None):
        by = Cleaning.asked(tracker, [c, limits], X.shape[1])
        if not (finds_thresholds(tracker) and len(by.model.basis)):
            raise RefusedError("the estimator finds no thresholds")
        Z, columns = dense(X) - by.model.mean, None if by.limits is None else by.limits.columns
        few = (~np.isnan(Z)).sum(axis=0) < min_rows  # a sum of few sizes would tell them
        _, mask, logs = sizes_of(site, Z, by.model.basis, tracker._support.xi, columns)
        check_patterns(np.where(mask, np.nan, Z), min_rows_of_pattern)
        logs[:, : 2 * len(few)][:, np.tile(few, 2)] = 0.0
        return added(Moments(), logs)

    def sums(query, of_residuals):
        def work(site, X, c, m, m_ridge, limits, V, about, *, min_rows, min_rows_of_pattern=None):
            d = X.shape[1]
            check_mean(about, d, center and not of_residuals)
            check_basis(V, d, max(tracker._rank(d), min(10, d)))
            sent = c, m, m_ridge, limits
            Y, by, filled = filled_rows(tracker, X, sent, min_rows, min_rows_of_pattern)
            rows = residuals(by.state, Y, filled) if of_residuals else filled.rows
            return {"message": query(V, about).answer(moments_of(rows[filled.counts]))}

        return work

    task = partial(Task, batches=True, batch_rows=batch_rows, missing=True)
    models = Given("models that fill rows", lambda c, m, ridge, *_: [m, ridge], updates)
    same = partial(task, reads=FILLED, given=(BY_MODEL, BY_LIMITS, BEFORE, models))
    return {
        "batch": task(batch, reads="summary", begins=True),
        "observed": task(observed, reads=OBSERVED),
        "low_rank": task(low_rank, estimator._first_rounds, reads=LOW_RANK, given=(FIRST_MEAN,)),
        "sizes": task(sizes, 2, reads=SIZES, given=(BY_MODEL, ASKED_BEFORE)),
        "filled": same(about_filled(count), updates + 2),
        "misfits": same(about_filled(misfit), updates + 2),
        "moments": same(about_filled(moments), updates),
        "times_scatter": same(sums(TimesScatter, False), updates * rounds),
        "variances": same(sums(Variances, False), updates),
        "times_residuals": same(sums(TimesScatter, True), estimator.n_rounds),
        "residuals": same(sums(Variances, True)),
    }
