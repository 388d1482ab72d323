"""What estimators and carriers of one's own are made of, that have each other for free.

An estimator over a network has two methods. ``site_tasks()`` says what a site answers to each kind
of question, and ``fit_over(sites)`` asks by ``sites.sum(kind, shapes, *arguments)`` and fits. It
then works in one process (`SumsInProcess`), over Flower, by files and, where its tasks have bounds,
by secure sums over both. A carrier delivers messages, and knows no estimator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .._kernels.row_moments import SiteMoments
from .._validation.checks import check_rows
from ..communication import CommunicationLog
from ..communication._federation import Message as Size
from ..communication._federation import named
from ._apps import SiteApp, Wanted, fit_over
from ._messages import Carrier, Context, Letter, Message, fits
from ._questions import MOMENTS, Given, RefusedError, Task
from ._secure import SecureAggregation
from ._site_policy import SitePolicy
from ._sites import Shapes

__all__ = [
    "Carrier",
    "Context",
    "Given",
    "Letter",
    "Message",
    "RefusedError",
    "SecureAggregation",
    "SiteApp",
    "SitePolicy",
    "SumsInProcess",
    "Task",
    "Wanted",
    "fit_over",
]

# Share of a bound by which rounding may exceed it.
_ROUNDING = 1e-9


class SumsInProcess:
    """Clients of one process, of which a protocol sees sums only, as over a network.

    Parameters
    ----------
    tasks : dict of str to Task
        What a client does about each kind of question; all read "moments".
    X : {ndarray, sparse array} of shape (n, d)
    sample_weight : ndarray of shape (n,) or None
    shards : list of tuple
        Label and positions of the rows of each client.
    log : CommunicationLog, default=None
        Where the sums are recorded.
    """

    def __init__(
        self,
        tasks: Mapping[str, Task],
        X: Any,
        sample_weight: np.ndarray | None,
        shards: list[tuple[Any, Any]],
        log: CommunicationLog | None = None,
    ):
        for kind, task in tasks.items():
            if task.reads != MOMENTS:
                raise ValueError(f"tasks must read 'moments', {kind!r} reads {task.reads!r}.")
        self.tasks, self.dtype, self.columns = tasks, X.dtype, None
        self.log = CommunicationLog() if log is None else log
        self._moments = {
            label: named(_moments_of, label, X[at], sample_weight, at) for label, at in shards
        }

    def sum(self, kind: str, shapes: Shapes, *arguments: Any) -> dict[str, np.ndarray]:
        """Return the sums of what the clients answer, by name; as `Sites.sum`."""
        task, sent = self.tasks[kind], [np.asarray(a, dtype=np.float64) for a in arguments]
        totals: dict[str, Any] = {}
        for label, own in self._moments.items():
            for name, part in named(_answer, label, task, own, sent, shapes).items():
                totals[name] = totals.get(name, 0.0) + part
        size, down = (sum(map(np.size, arrays)) for arrays in (totals.values(), sent))
        up = [Size(size, 8 * size)] * len(self._moments)
        self.log.record(up, [Size(down, 8 * down)] * len(self._moments), summed=True)
        return totals


def _moments_of(label: Any, rows: Any, weight: np.ndarray | None, at: Any) -> SiteMoments:
    return SiteMoments.of(check_rows(rows), None if weight is None else weight[at])


def _answer(
    label: Any, task: Task, own: SiteMoments, sent: list[np.ndarray], shapes: Shapes
) -> dict[str, np.ndarray]:
    """What a client answers: arrays of these names and shapes, within the bound that is stated."""
    found = {
        name: np.asarray(part, dtype=np.float64)
        for name, part in task.work(str(label), own, *sent).items()
    }
    if found.keys() != shapes.keys() or not all(fits(shapes[n], found[n].shape) for n in found):
        got = {name: part.shape for name, part in found.items()}
        raise ValueError(f"an answer has arrays of shapes {got}, expected {dict(shapes)}.")
    if task.bound is None:
        return found
    norm, scatter = float(np.linalg.norm(own.mean)), float(own.column_scatter.sum())
    bounds = task.bound(own.n_samples, norm, scatter)
    for name, part in found.items():
        largest = float(np.abs(part).max())
        if not largest <= bounds[name] * (1 + _ROUNDING):
            raise ValueError(
                f"bound of {name!r} must be at least {largest:g}, what is sent, got {bounds[name]}."
            )
    return found
