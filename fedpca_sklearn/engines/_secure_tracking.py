"""`FederatedSubspaceTracker` by secure sums: batches at sites, of which the server sees sums."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any

import numpy as np

from ..rounds import FederatedSubspaceTracker
from ..rounds._queries import Query
from ..tracking._stmiss_tracker import STMissTracker
from ._estimators import are_too_large, fit_batches, site_work
from ._messages import Answer
from ._questions import RefusedError, Task
from ._secure_bounds import BOUNDS, Bounds, Grid, Grids, Summed
from ._secure_fits import fit_by_sums, secure_work
from ._secure_site import Open
from ._secure_sums import SecureSums, bounds_in
from ._tracked_rows import dense
from ._tracking import BatchAtSites, BatchRounds, TrackerOfSites, count_in, with_batch

# Numbers of rows and entries.
ROWS = "rows"
# What the logarithm of a float can be, and powers of two by which rows that a model has filled may
# exceed the entries that were observed.
_LOG, _FILLED = 10, 20


def names_in(kind: str, d: int, n: int) -> np.ndarray:
    """Of each of n numbers in the answer to a question, what it is: one name has one grid."""
    parts = {
        "observed": [("total", d), (ROWS, d + 1)],
        "sizes": [("logs", d), (ROWS, d), ("logs", 1), ("squares", 1), (ROWS, 1)],
        "misfits": [("residual", 1), ("square", 1), (ROWS, n - 2)],
        "moments": [("total", d), (ROWS, 1)],
        "filled": [(ROWS, n)],
        "variances": [("scatter", n - 1), (ROWS, 1)],
        "residuals": [("scatter", n - 1), (ROWS, 1)],
    }
    return np.concatenate([[name] * m for name, m in parts.get(kind, [("products", n)])])


def grids_of_batch(bounds: Bounds) -> Grids:
    """Grids of the sums over a batch, from the bounds of its observed entries."""
    rows = bounds.rows + int(np.ceil(np.log2(bounds.n_features)))
    observed = np.maximum(bounds.scatter, bounds.about_mean)
    squares = Grid(observed + 2 * _FILLED, np.maximum(bounds.scatter, observed - 2 * _FILLED))
    return {
        ROWS: Grid(rows),
        "logs": Grid(rows + _LOG),
        "total": Grid((rows + observed) // 2 + 1 + _FILLED, (rows + bounds.scatter) // 2),
        **dict.fromkeys(("products", "scatter", "squares", "residual", "square"), squares),
    }


def bounds_of_entries(Y: np.ndarray, n_rows: int) -> Bounds:
    """Bounds of the observed entries of rows, of which there are at most so many."""
    count = np.maximum((~np.isnan(Y)).sum(axis=0), 1)
    mean = np.nansum(Y, axis=0) / count
    scatter = np.nansum((Y - mean) ** 2)
    if are_too_large(mean, scatter / n_rows, Y.dtype):
        raise RefusedError("values that are too large")
    return Bounds.of_numbers(n_rows, Y.shape[1], np.linalg.norm(mean), scatter)


# -------------------------------------------------------------------- at a site


@secure_work.register
def _(estimator: FederatedSubspaceTracker) -> dict[str, Task]:
    plain, tracker = site_work(estimator), estimator

    def batch(site, X):
        size = STMissTracker._block_rows(tracker, X.shape[1], False)
        return {**plain["batch"].work(site, X), BOUNDS: bounds_of_entries(dense(X), size).vector}

    tasks: dict[str, Task] = {"batch": Open(**{**vars(plain["batch"]), "work": batch})}
    for kind, task in plain.items():
        if kind != "batch":
            more = {**vars(task), "work": _named(kind, task)}
            tasks[kind] = Summed(**more, grids=grids_of_batch)
    return tasks


def _named(kind: str, task: Task) -> Any:
    """Work of a task whose message is cut into parts of one grid each."""

    @wraps(task.work)
    def work(site, X, *arguments, **named):
        (message,) = task.work(site, X, *arguments, **named).values()
        message = np.ravel(message)
        names = names_in(kind, X.shape[1], len(message))
        return {name: message[names == name] for name in dict.fromkeys(names.tolist())}

    return work


# -------------------------------------------------------------------- the server


class _SecureRounds(BatchRounds):
    """Rounds of secure sums about a batch."""

    def __init__(self, tracker: TrackerOfSums, *arguments: Any):
        super().__init__(tracker.sites, *arguments)
        self.sums = tracker.sums

    def sum(
        self, function: Any, clients: Sequence[tuple], broadcast: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the sum of the answers of all sites to a query."""
        query: Query = function
        self.n_rounds += 1
        kind, arguments = self.asked(query)
        total = self.total(kind, self.length(query), arguments)
        return total.reshape([-1 if n is None else n for n in query.shape])

    def total(self, kind: str, n: int, arguments: Sequence[np.ndarray]) -> np.ndarray:
        """One secure sum of n numbers."""
        names = names_in(kind, self.batch.shape[1], n)
        shapes = {name: (int(np.sum(names == name)),) for name in dict.fromkeys(names.tolist())}
        found, total = self.sums.sum(kind, shapes, self.batch.number, *arguments), np.empty(n)
        for name, part in found.items():
            total[names == name] = part
        return total


class TrackerOfSums(TrackerOfSites):
    """The server's tracker, which learns sums over the sites only.

    Attributes
    ----------
    sums : SecureSums
    """

    sums: SecureSums

    def begin(self, batch: int) -> dict[str, tuple[int, int]]:
        """Rows and columns of the sites that have a batch; empty where they are too few."""
        counts: dict[str, tuple[int, int]] = self.sums.begin_batch("batch", batch, _counted)
        self.n_fills, self.alone = 0, False
        if not counts:
            return {}
        d = next(iter(counts.values()))[1]
        n = STMissTracker._block_rows(self, d, False)  # whatever a site says
        self.largest = (len(counts) + self.sums.n_ended) * n
        return dict.fromkeys(counts, (n, d))

    def _sums(
        self, batch: BatchAtSites, kinds: dict[str, str], models: tuple[np.ndarray, ...] = ()
    ) -> _SecureRounds:
        return _SecureRounds(self, batch, self.communication_, kinds, models)

    def _counting(self, batch: BatchAtSites, arrays: tuple[np.ndarray, ...]) -> int:
        (count,) = self._sums(batch, {}).total("filled", 1, arrays)
        return round(min(max(float(count), 0.0), len(batch)))  # whatever a site sends


def _counted(answer: Answer) -> tuple[tuple[int, int], Bounds]:
    """Rows of a site's batch and their columns, and what bounds their entries."""
    return count_in(answer), bounds_in(answer)


@fit_by_sums.register
def _(estimator: FederatedSubspaceTracker, sums: SecureSums) -> FederatedSubspaceTracker:
    tracker = TrackerOfSums(**estimator.get_params(deep=False))
    tracker.sites, tracker.sums = sums.sites, sums
    fitted = fit_batches(estimator, lambda estimator, batch: with_batch(estimator, tracker, batch))
    fitted.communication_ = sums.sites.log
    return fitted
