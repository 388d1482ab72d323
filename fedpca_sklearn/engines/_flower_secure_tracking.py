"""`FederatedSubspaceTracker` by secure sums: batches at sites, of which the server sees sums."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np

from ..communication._fixed_point import exponent_of
from ..rounds import FederatedSubspaceTracker
from ..rounds._queries import Query
from ..tracking._alternating_projections import without_sparse_part
from ..tracking._stmiss_tracker import STMissTracker
from ._flower_estimators import fit_batches, site_work
from ._flower_questions import Task, check_mean
from ._flower_secure_fits import fit_by_sums, scatter_bound, secure_work
from ._flower_secure_site import Bounds, Open
from ._flower_secure_sums import SecureSums
from ._flower_tracked_rows import SiteBatch, dense
from ._flower_tracking import BatchAtSites, BatchRounds, TrackerOfSites, with_batch

# Numbers of rows and entries, whose scale is public: a site has no more of them in a batch.
ROWS = "rows"
# Which question finds the scales for the numbers of a kind, and of which of them.
BOUNDS = {
    "observed": ("observed_bound", ("total",)),
    "low_rank": ("low_rank_bound", ("products",)),
    "sizes": ("sizes_bound", ("logs", "squares")),
    "misfits": ("misfits_bound", ("residual", "square")),
    "moments": ("moments_bound", ("total",)),
    **dict.fromkeys(("times_scatter", "variances"), ("scatter_bound", ("products", "scatter"))),
    **dict.fromkeys(("times_residuals", "residuals"), ("residuals_bound", ("products", "scatter"))),
}


def names_in(kind: str, d: int, n: int) -> np.ndarray:
    """Of each of n numbers in the answer to a question, what it is: one name has one scale."""
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


# -------------------------------------------------------------------- at a site


@secure_work.register
def _(estimator: FederatedSubspaceTracker) -> dict[str, Task]:
    plain, tracker = site_work(estimator), estimator

    def low_rank(site, X, mean):
        d = X.shape[1]
        check_mean(mean, d, tracker.center)
        rows = without_sparse_part(dense(X) - mean, tracker._rank(d))
        return {"products": scatter_bound(rows, np.zeros(d))}

    def scatter(site, X, c, m, m_ridge, limits, mean, *, min_rows):
        check_mean(mean, X.shape[1], tracker.center)
        found = SiteBatch.of(tracker, X, [c, limits], [m, m_ridge], min_rows)
        bound = scatter_bound(found.filled.rows[found.filled.counts], mean)
        return {"products": bound, "scatter": bound}

    def residuals(site, X, c, m, m_ridge, limits, *, min_rows):
        found = SiteBatch.of(tracker, X, [c, limits], [m, m_ridge], min_rows)
        bound = scatter_bound(found.residuals, np.zeros(X.shape[1]))
        return {"products": bound, "scatter": bound}

    def bounds(kind, work):
        return Bounds(**{**vars(plain[kind]), "work": work})

    tasks: dict[str, Task] = {
        "batch": Open(**vars(plain["batch"])),
        "low_rank_bound": replace(bounds("low_rank", low_rank), times=1, fixed=None),
        "scatter_bound": bounds("variances", scatter),
        "residuals_bound": bounds("residuals", residuals),
    }
    for kind in ("observed", "sizes", "misfits", "moments"):
        bound, names = BOUNDS[kind]
        tasks[bound] = bounds(kind, _named(kind, plain[kind], names))
    for kind in (*BOUNDS, "filled"):
        tasks[kind] = replace(plain[kind], work=_named(kind, plain[kind]))
    return tasks


def _named(kind: str, task: Task, wanted: Sequence[str] | None = None) -> Any:
    """Work of a task whose message is cut into parts of one scale each, or some of them."""

    @wraps(task.work)
    def work(site, X, *arguments, **named):
        (message,) = task.work(site, X, *arguments, **named).values()
        message = np.ravel(message)
        names = names_in(kind, X.shape[1], len(message))
        parts = dict.fromkeys(names.tolist()) if wanted is None else wanted
        return {name: message[names == name] for name in parts}

    return work


# -------------------------------------------------------------------- the server


class _SecureRounds(BatchRounds):
    """Rounds of secure sums about a batch."""

    def __init__(self, tracker: TrackerOfSums, *arguments: Any):
        super().__init__(tracker.sites, *arguments)
        self.sums, self.known = tracker.sums, tracker.known

    def sum(
        self, function: Any, clients: Sequence[tuple], broadcast: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the sum of the answers of all sites to a query."""
        query: Query = function
        self.n_rounds += 1
        kind, arguments = self.asked(query)
        self._agree(kind, arguments)
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

    def _agree(self, kind: str, arguments: tuple[np.ndarray, ...]) -> None:
        """Agree on the scales of a kind, once for the same rows about the same mean."""
        bound, names = BOUNDS[kind]
        of = arguments
        if kind in ("times_residuals", "residuals"):  # neither basis nor mean, which is zero
            of = arguments[:-2]
        elif bound in ("scatter_bound", "low_rank_bound"):  # no basis
            of = (*arguments[:-2], arguments[-1])
        key = bound, *(array.tobytes() for array in of)
        if key not in self.known:
            self.sums.bound(bound, names, self.batch.number, *of)
            self.known[key] = {name: self.sums.exponents[name] for name in names}
        self.sums.exponents |= self.known[key]


class TrackerOfSums(TrackerOfSites):
    """The server's tracker, which learns sums over the sites only.

    Attributes
    ----------
    sums : SecureSums
    known : dict
        Exponents by the question that has found them, of one batch.
    n_ended : int
        Sites that have no more rows.
    """

    sums: SecureSums
    known: dict
    n_ended: int

    def begin(self, batch: int) -> dict[str, tuple[int, int]]:
        """Rows and columns of the sites that have a batch; empty where they are too few."""
        counts = super().begin(batch)
        if len(counts) < self.sites.min_sites:
            self._tell_too_few(batch, len(counts))
            return {}
        d = next(iter(counts.values()))[1]
        n = STMissTracker._block_rows(self, d)  # whatever a site says
        self.n_ended += len(self.sites.names) - len(counts)
        self.sites.keep(counts)
        self.largest = (len(counts) + self.n_ended) * n
        self.sums.begin(counts)
        self.known, scale = {}, self.sums.secure.scale
        self.sums.exponents[ROWS] = exponent_of(float(n * d) if scale is None else scale)
        return dict.fromkeys(counts, (n, d))

    def _tell_too_few(self, batch: int, n: int) -> None:
        """Raise or warn where too few sites have rows for a batch, but some have."""
        limit = f"{self.sites.limit}={self.sites.min_sites}"
        if n and not batch:
            raise RuntimeError(f"Too few sites: {n} have rows for a batch, but {limit}.")
        if n:
            warnings.warn(
                f"Rows from batch {batch} on are left out: {n} sites have them, but {limit}.",
                UserWarning,
                stacklevel=2,
            )

    def _sums(
        self, batch: BatchAtSites, kinds: dict[str, str], models: tuple[np.ndarray, ...] = ()
    ) -> _SecureRounds:
        return _SecureRounds(self, batch, self.communication_, kinds, models)

    def _counting(self, batch: BatchAtSites, arrays: tuple[np.ndarray, ...]) -> int:
        (count,) = self._sums(batch, {}).total("filled", 1, arrays)
        return round(min(max(float(count), 0.0), len(batch)))  # whatever a site sends


@fit_by_sums.register
def _(estimator: FederatedSubspaceTracker, sums: SecureSums) -> FederatedSubspaceTracker:
    tracker = TrackerOfSums(**estimator.get_params(deep=False))
    tracker.sites, tracker.sums, tracker.n_ended = sums.sites, sums, 0
    fitted = fit_batches(estimator, lambda estimator, batch: with_batch(estimator, tracker, batch))
    fitted.communication_ = sums.sites.log
    return fitted
