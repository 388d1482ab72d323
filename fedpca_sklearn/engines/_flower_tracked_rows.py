"""`FederatedSubspaceTracker` at a site: what it does about a batch of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from .._kernels.missing import fitted_numbers
from ..rounds import FederatedSubspaceTracker
from ..rounds._batch_sums import Misfits, observed_entries
from ..rounds._client import Client
from ..rounds._queries import Moments, TimesScatter, Variances
from ..summary import Subspace
from ..tracking._alternating_projections import without_sparse_part
from ..tracking._outliers import find_outliers
from ..tracking._past import misfits
from ..tracking._stmiss import Filled, State, fill, residuals
from ..tracking._stmiss_tracker import STMissTracker
from ._flower_estimators import refuse_channel, site_work
from ._flower_questions import RefusedError, Task, check_basis, check_mean

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
            given = 0 if isinstance(tracker.init, str) else len(tracker.init)
            check_basis(basis, d, max(tracker._rank(d), given))
        if (ridge < 0).any():
            raise RefusedError("a ridge must not be negative")
        return cls(mean, basis, ridge[1:] if ridge[0] else None)

    @property
    def state(self) -> State:
        """A tracker's state that fills rows so."""
        return State(Subspace.empty(len(self.mean)), self.mean, self.basis)


# -------------------------------------------------------------------- at a site


@dataclass(frozen=True)
class SiteBatch:
    """A batch of a site, with outliers as missing entries, filled by a model."""

    rows: np.ndarray
    model: Model
    filled: Filled
    threshold: np.ndarray

    @classmethod
    def of(
        cls,
        tracker: FederatedSubspaceTracker,
        X: Any,
        clean: Sequence[np.ndarray],
        model: Sequence[np.ndarray],
        min_rows: int,
    ) -> SiteBatch:
        """Check both models, and do a client's work on a batch."""
        Y, d = dense(X), X.shape[1]
        before = Model.asked(tracker, clean, d)
        by = Model.asked(tracker, model, d)
        threshold = np.zeros(d)
        if tracker.robust and len(before.basis):
            options = before.basis, tracker.xi, tracker.support_threshold
            mask, threshold = find_outliers(Y - before.mean, *options)
            Y = np.where(mask, np.nan, Y)
        filled = fill(Y, by.mean, by.basis, by.ridge)
        if filled.counts.sum() < min_rows:  # a sum of few rows would tell them
            filled = filled._replace(counts=np.zeros(len(Y), dtype=bool))
        return cls(Y, by, filled, threshold)

    @property
    def residuals(self) -> np.ndarray:
        """What the model does not explain of the rows that count."""
        return residuals(self.model.state, self.rows, self.filled)[self.filled.counts]

    @property
    def misfits(self) -> np.ndarray:
        """The numbers of `Misfit` for each row."""
        by = self.model
        k = fitted_numbers(~np.isnan(self.rows), by.basis, by.ridge)
        return misfits(residuals(by.state, self.rows, self.filled), self.rows - by.mean, k)


def dense(X: Any) -> np.ndarray:
    """Rows as the tracker takes them."""
    return np.asarray(X.toarray() if sp.issparse(X) else X, dtype=np.float64)


@site_work.register
def _(estimator: FederatedSubspaceTracker) -> dict[str, Task]:
    refuse_channel(estimator.channel)
    if estimator.robust and estimator.support_threshold == "auto":
        raise ValueError(
            "support_threshold must be a number over Flower, or robust=False: thresholds of all "
            'clients together take rounds that sites do not answer yet, got "auto".'
        )
    tracker, center = estimator, estimator.center
    updates = estimator.n_iter + 1
    rounds = max(estimator.n_rounds, estimator.init_rounds)

    def batch_rows(d):
        return STMissTracker._block_rows(tracker, d)

    def batch(site, X):
        return {"count": [float(X.shape[0])], "columns": [float(X.shape[1])]}

    def observed(site, X, *, min_rows):
        Y = dense(X)
        few = (~np.isnan(Y)).sum(axis=0) < min_rows  # a sum of few entries would tell them
        Y = np.where(few, np.nan, Y)
        robust = tracker.robust or tracker._by_altproj
        return {"message": Moments()(site, Client(site, observed_entries(Y, robust)))}

    def low_rank(site, X, V, mean):
        d = X.shape[1]
        check_mean(mean, d, center)
        check_basis(V, d, tracker._rank(d))
        rows = without_sparse_part(dense(X) - mean, len(V))
        return {"message": TimesScatter(V, np.zeros(d))(site, Client(site, rows))}

    def filled(site, X, c, c_ridge, m, m_ridge, *, min_rows):
        found = SiteBatch.of(tracker, X, [c, c_ridge], [m, m_ridge], min_rows)
        return {"count": [float(found.filled.counts.sum())], "threshold": found.threshold}

    def misfit(site, X, c, c_ridge, m, m_ridge, *, min_rows):
        found = SiteBatch.of(tracker, X, [c, c_ridge], [m, m_ridge], min_rows)
        return {"message": Misfits()(site, Client(site, found.misfits))}

    def moments(site, X, c, c_ridge, m, m_ridge, *, min_rows):
        found = SiteBatch.of(tracker, X, [c, c_ridge], [m, m_ridge], min_rows)
        return {"message": Moments()(site, Client(site, found.filled.rows[found.filled.counts]))}

    def sums(query, of_residuals):
        def work(site, X, c, c_ridge, m, m_ridge, V, mean, *, min_rows):
            d = X.shape[1]
            check_mean(mean, d, center and not of_residuals)
            check_basis(V, d, max(tracker._rank(d), min(10, d)))
            found = SiteBatch.of(tracker, X, [c, c_ridge], [m, m_ridge], min_rows)
            rows = found.filled.rows[found.filled.counts]
            client = Client(site, found.residuals if of_residuals else rows)
            return {"message": query(V, mean)(site, client)}

        return work

    task = partial(Task, batches=True, batch_rows=batch_rows, missing=True)
    same = partial(task, fixed=0)  # what finds outliers, in all questions about a batch
    return {
        "batch": task(batch, begins=True),
        "observed": task(observed),
        "low_rank": task(low_rank, estimator.init_rounds, fixed=1),
        "filled": same(filled, updates + 2),
        "misfits": same(misfit, updates + 2),
        "moments": same(moments, updates),
        "times_scatter": same(sums(TimesScatter, False), updates * rounds),
        "variances": same(sums(Variances, False), updates),
        "times_residuals": same(sums(TimesScatter, True), estimator.n_rounds),
        "residuals": same(sums(Variances, True)),
    }
