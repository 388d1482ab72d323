"""What estimators and carriers of one's own are made of, that have each other for free.

An estimator over a network has two methods. ``site_tasks()`` says what a site answers to each kind
of question, and ``fit_over(sites)`` asks by ``sites.sum(kind, shapes, *arguments)`` and fits. It
then works in one process (`SumsInProcess`), over Flower, by files and, where its tasks have bounds,
by secure sums over both. A carrier delivers messages, and knows no estimator.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone

from .._kernels.row_moments import SiteMoments
from .._validation.checks import check_integer, check_rows, nonnegative_float
from .._validation.containers import check_text
from ..communication import CommunicationLog
from ..communication._federation import Message as Size
from ..communication._federation import named
from . import _columns, _federated, _rounds, _tracking  # noqa: F401
from . import _estimators as shared
from ._messages import Array, Carrier, Context, Letter, Message, arrays_of, fits, shown
from ._parameters import check_same_estimator, stated
from ._questions import MOMENTS, RUN, AskedRows, Given, RefusedError, Task, asked, asked_rows
from ._secure import SecureAggregation
from ._site_policy import Site, SitePolicy, check_trust, with_ledger
from ._sites import SecureSums, Shapes, Sites, check_open

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

# The log of a site, which records errors in full.
_LOG = logging.getLogger("fedpca_sklearn")
# Moments that a site keeps, so that those of the rows of a run are computed once.
_KEPT = 4

# -------------------------------------------------------------------- a site


class SiteApp:
    """A site that answers questions about one estimator; the parameters are of `client_app`."""

    def __init__(
        self,
        load_rows: Callable,
        estimator: Any,
        name_of: Callable[[Any], str],
        policy: SitePolicy,
        secure: shared.Secure = None,
    ):
        shared.check_parameters(estimator)
        self._estimator = estimator = with_ledger(estimator, policy, secure)
        self._tasks = shared.secure_tasks(estimator, secure)
        self._load_rows, self._name_of, self._policy = load_rows, name_of, policy
        self._kept, self._stated, self._site = dict[Any, AskedRows](), stated(estimator), ""
        self._mechanism = getattr(estimator, "mechanism", None)
        self._sums: Any = None
        self._steps = dict[str, Callable]()
        self._restarts = None if secure is None else secure.restarts
        if secure is not None:
            from ._secure_sum import SiteSums  # whose keys need an optional dependency

            self._sums = SiteSums(secure, self._tasks)
            self._steps = self._sums.steps

    def __getstate__(self) -> dict[str, Any]:
        return {name: kept for name, kept in vars(self).items() if name != "_lock"}

    def reply(self, message: Message, context: Context) -> Message:
        """What the site replies to a question, which is noted, checked, and answered.

        Questions that come at once, on several threads, are answered one after the other: what is
        answered once is not answered twice.
        """
        with vars(self).setdefault("_lock", threading.Lock()):
            kind, sent = message.kind, dict[str, Array]()
            config: dict[str, Any] = {"site": f"node {context.node_id}"}
            what = {
                "run": str(context.run_id),
                "kind": kind,
                "estimator": self._stated["estimator"],
            }
            who = Site(config["site"], context, self._policy, what)
            try:
                nonce = message.config.get("nonce")
                if not isinstance(nonce, str) or not 0 < len(nonce) <= 64:
                    raise RefusedError("a question needs a nonce of 1 to 64 characters")
                config["nonce"] = nonce  # which its answer has to repeat
                noted = self._policy.log is not None
                if noted:
                    who.note("question", message.arrays)
                who.name = str(self._name_of(context.given))
                if who.name != self._site:  # the same as before is as good as before
                    check_text("site", who.name)
                config["site"] = self._site = who.name
                found, more = self._answer(message, who)
                if self._mechanism is not None:
                    who.state_spent(self._mechanism)
                sent = arrays_of(found) if found else {}
                if noted:
                    who.note("answer", sent, **who.privacy)
                config |= {**more, **who.privacy}
            except Exception as error:
                sent = {}
                config["error"] = _error_text(error, shown(kind), context.run_id)
                with suppress(RefusedError, OSError):  # the log may be what is wrong
                    who.note("refusal", why=config["error"])
            return Message(kind, config, sent)

    def _answer(self, message: Message, who: Site) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arrays of an answer, and what else is told."""
        estimator, policy, kind, context = self._estimator, self._policy, message.kind, who.context
        if policy.estimators is not None or policy.mechanism is not None:
            policy.check_estimator(estimator)
        if not self._stated.items() <= message.config.items() or message.config["protocol"] is True:
            check_same_estimator(message, estimator, self._stated, self._sums is not None)
        found, sealed = dict[str, Any](), dict[str, Any]()
        if kind in self._steps:
            sealed = self._steps[kind](message, context)
        elif kind in self._tasks:
            arguments, *of = asked(message, context, self._tasks, self._restarts)
            rows = self._rows(self._tasks[kind], context, *of)
            found = rows.answer(self._tasks[kind], who, arguments)
            context.state[RUN] |= {"dtype": rows.X.dtype.name, "columns": rows.columns or []}
            if self._sums is not None:
                found = self._sums.sent(message, context, found)
        else:
            how = f"{'without' if self._sums is None else 'with'} secure sums"  # at this site
            raise RefusedError(f"the estimator has no question of the kind {shown(kind)!r} {how}")
        run = context.state[RUN]
        columns = {"columns": run["columns"]} if run["columns"] else {}
        return found, {"dtype": run["dtype"], **columns, **sealed}

    def _rows(self, task: Task, context: Context, batch: Any, keys: Any) -> AskedRows:
        """Rows that a question is about, or their moments: the same in all beginnings of a run.

        A server that asks again whether rows have changed learns of no row that has.
        """
        key = context.node_id, context.run_id, batch
        if task.reads == MOMENTS and key in self._kept:
            return self._kept[key]
        public = list(context.run_config.values())
        rows = asked_rows(self._load_rows(context.given), task, batch, keys, public)
        rows.check_enough(self._policy.min_rows)
        if task.reads == MOMENTS:
            rows = replace(rows, X=SiteMoments.of(rows.X, rows.weight), weight=None)
            self._kept = dict([*self._kept.items(), (key, rows)][-_KEPT:])
        return rows


def _error_text(error: Exception, kind: str, run: int) -> str:
    """Text about an error for the server; the whole error goes to the log of the site."""
    if isinstance(error, RefusedError):
        _LOG.warning("Refused a question %r of run %s: %s", kind, run, error)
        return f"refused: {error}"
    reference = secrets.token_hex(4)
    _LOG.error("%s: question %r of run %s failed", reference, kind, run, exc_info=error)
    return f"{type(error).__name__}, {reference} in the log of the site"


# -------------------------------------------------------------------- the server


def checked_tasks(estimator: Any, secure: shared.Secure) -> shared.Tasks:
    """What sites do for an estimator, or an error if its parameters are not right for them."""
    shared.check_parameters(estimator)
    if getattr(estimator, "mechanism", None) is not None:
        check_trust(estimator.mechanism, secure)
    return shared.secure_tasks(estimator, secure)


@dataclass(frozen=True)
class Wanted:
    """How many sites are wanted, and how long they are waited for: as in `fit_sites`."""

    min_sites: int = 2
    n_sites: int | None = None
    wait: float = 60.0
    timeout: float = 600.0

    def sites(self, carrier: Carrier, estimator: Any, secure: shared.Secure = None) -> Sites:
        """Sites to ask, once all parameters are known to be right."""
        tasks = checked_tasks(estimator, secure)
        n_sites = self.min_sites if self.n_sites is None else self.n_sites
        check_integer("min_sites", self.min_sites)
        check_integer("n_sites", n_sites)
        wait = nonnegative_float("wait", self.wait)
        timeout = nonnegative_float("timeout", self.timeout)
        if not timeout:
            raise ValueError(f"timeout must be positive, got {timeout!r}.")
        end = time.monotonic() + wait
        enough = n_sites if secure is None else max(n_sites, secure.threshold)
        while len(nodes := carrier.nodes()) < enough and time.monotonic() < end:
            time.sleep(min(1.0, wait))
        given = nodes, carrier, self.min_sites, timeout, estimator
        return Sites(*given) if secure is None else SecureSums(secure, tasks, *given)


def fit_over(carrier: Carrier, estimator: Any, wanted: Wanted, secure: shared.Secure = None) -> Any:
    """Fit an estimator to the rows of all sites that a carrier reaches, as `fit_sites` does."""
    sites = wanted.sites(carrier, estimator, secure)
    fitted = sites.until_nobody_is_lost(
        lambda: shared.fit_estimator(shared.started(clone(estimator)), sites)
    )
    if not hasattr(fitted, "n_batches_"):  # those of batches are noted one by one
        fitted.clients_ = list(sites.names.values())
    shared.note_sites(fitted, sites)
    return fitted


def partial_fit_over(carrier: Carrier, estimator: Any, batch: int | None, wanted: Wanted) -> Any:
    """Update an estimator with the next batch of all sites, as `partial_fit_sites` does."""
    kept = deepcopy(estimator)
    fitted_before = hasattr(kept, "n_features_in_")
    number = getattr(kept, "n_batches_", None if fitted_before else 0) if batch is None else batch
    if number is None:
        raise ValueError(
            "batch must be given: the estimator was fitted in another way, and does not know how "
            "many batches of the sites it has."
        )
    check_integer("batch", number, 0)
    if (mechanism := getattr(kept, "mechanism", None)) is not None:  # of which no batch has a cost
        raise ValueError(
            f"mechanism must be None for batches over a network, got {mechanism!r}; fit_sites "
            "takes all rows of a site at once."
        )
    sites = wanted.sites(carrier, kept)
    if not fitted_before:
        shared.started(kept)
    else:
        names = getattr(kept, "feature_names_in_", None)
        columns = None if names is None else tuple(names.tolist())
        sites.know({"number of features": kept.n_features_in_, "columns": columns})
    fitted = shared.partial_fit_estimator(kept, sites, int(number))
    if fitted is None:
        raise shared.NoBatchError(f"No site has batch {number}.")
    fitted.n_batches_ = int(number) + 1
    shared.note_sites(fitted, sites)
    return fitted


# -------------------------------------------------------------------- in one process

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
        self.tasks, self.columns = tasks, None
        self.log = CommunicationLog() if log is None else log
        self._moments = {
            label: named(_moments_of, label, X[at], sample_weight, at) for label, at in shards
        }
        self.dtype = np.result_type(*(own.dtype for own in self._moments.values()))

    def sum(self, kind: str, shapes: Shapes, *arguments: Any) -> dict[str, np.ndarray]:
        """Return the sums of what the clients answer, by name; as `Sites.sum`."""
        check_open(shapes)
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
    if bounds.keys() != found.keys():
        raise ValueError(f"bound must be of {sorted(found)}, what is sent, got {sorted(bounds)}.")
    for name, part in found.items():
        largest = float(np.abs(part).max())
        if not largest <= bounds[name] * (1 + _ROUNDING):
            raise ValueError(
                f"bound of {name!r} must be at least {largest:g}, what is sent, got {bounds[name]}."
            )
    return found
