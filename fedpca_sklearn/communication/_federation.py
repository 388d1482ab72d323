"""Map functions over clients, and count the messages."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, compress, filterfalse, islice, starmap
from operator import attrgetter, is_
from typing import Any

import numpy as np
from joblib import Parallel, delayed, effective_n_jobs
from joblib.parallel import get_active_backend
from sklearn import config_context, get_config

from .._dask import DELAYED, run
from .._kernels.threads import single_blas_thread
from ._channel import Channel, PerfectChannel

logger = logging.getLogger(__name__)


# Rounds of which a log keeps the rows of its table; totals are of all rounds.
ROUNDS_KEPT = 1000


def _total(name: str, doc: str) -> Any:
    """A property of the log: a sum over all rounds."""

    def total(log: CommunicationLog) -> int:
        return log.totals.get(name, 0)

    return property(total, doc=doc)


@dataclass
class CommunicationLog:
    """Sizes of the messages between clients and server: of the last rounds, and totals of all.

    Attributes
    ----------
    table : list of dict
        One entry for each of the last 1,000 rounds: ``messages_up``, ``floats_up``, ``bytes_up``,
        ``messages_down``, ``floats_down``, ``bytes_down``, ``floats_busiest``.
    floats_pooled : int
        Numbers in the rows seen: what sending them would have cost (non-zeros, if sparse).
    totals : dict
        Number of all ``rounds``, and the sums over them of what the table has.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import FederatedPCA
    >>> X, y = load_digits(return_X_y=True)
    >>> FederatedPCA(5).fit(X, clients=y).communication_
    CommunicationLog(rounds=1, floats_up=34710, floats_down=0, bytes_up=278040, bytes_down=0)
    """

    table: list[dict[str, int]] = field(default_factory=list)
    floats_pooled: int = field(default=0, compare=False)
    totals: dict[str, int] = field(default_factory=dict)

    def copy(self) -> CommunicationLog:
        """Return an independent copy of the log.

        Returns
        -------
        log : CommunicationLog
            The same rounds and totals; a round added to one log is not in the other.
        """
        return CommunicationLog(list(self.table), self.floats_pooled, dict(self.totals))

    def record(
        self,
        up: Iterable[Any] = (),
        down: Iterable[Any] = (),
        *,
        receivers: Sequence[Hashable] | None = None,
        summed: bool = False,
    ) -> None:
        """Add a round of messages, each with ``n_floats`` and ``nbytes``.

        Parameters
        ----------
        up, down : iterable of messages
            Messages towards the server, or towards ``receivers``, and messages back to the clients.
        receivers : sequence of hashable, default=None
            Who takes each message of ``up``; None: the server takes them all. Every message of
            ``down`` has a receiver of its own.
        summed : bool, default=False
            Messages of ``up`` add up on their way: a receiver takes one, not one after the other.
        """
        up, down = list(up), list(down)
        load: dict[Hashable, int] = {}
        size_of = attrgetter("n_floats")
        floats_up, floats_down = list(map(size_of, up)), list(map(size_of, down))
        for size, receiver in zip(floats_up, receivers or [None] * len(up), strict=True):
            before = load.get(receiver, 0)
            load[receiver] = max(before, size) if summed else before + size
        row: dict[str, int] = {}
        for way, sent, floats in ("up", up, floats_up), ("down", down, floats_down):
            row[f"messages_{way}"] = len(sent)
            row[f"floats_{way}"] = sum(floats)
            row[f"bytes_{way}"] = sum(map(attrgetter("nbytes"), sent))
        self._add({**row, "floats_busiest": max([*load.values(), *floats_down], default=0)})
        logger.debug(
            "round: %(messages_up)d messages with %(floats_up)d floats up, "
            "%(messages_down)d with %(floats_down)d down",
            self.table[-1],
        )

    def _add(self, row: dict[str, int]) -> None:
        self.table.append(row)
        del self.table[:-ROUNDS_KEPT]
        for name, value in {"rounds": 1, **row}.items():
            self.totals[name] = self.totals.get(name, 0) + value

    rounds = _total("rounds", "Number of rounds.")
    floats_up = _total("floats_up", "Floats sent towards the server.")
    floats_down = _total("floats_down", "Floats sent towards the clients.")
    bytes_up = _total("bytes_up", "Bytes sent towards the server.")
    bytes_down = _total("bytes_down", "Bytes sent towards the clients.")

    @property
    def floats_busiest(self) -> int:
        """Floats that the busiest receiver takes, summed over the rounds.

        Messages to different receivers travel at the same time, so this is the time of the rounds
        in floats: T_b of Bai, Chan and Luk (2005), and their T_a but for two floats of each client.
        Their T_e is ``floats_pooled``.
        """
        return self.totals.get("floats_busiest", 0)

    def __repr__(self) -> str:
        names = ("rounds", "floats_up", "floats_down", "bytes_up", "bytes_down")
        values = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        return f"CommunicationLog({values})"


def log_fit(estimator: Any, n_clients: int) -> None:
    """Log what a call of fit or partial_fit and all calls before it sent."""
    if not logger.isEnabledFor(logging.INFO):
        return
    sent = estimator.communication_
    logger.info(
        "%s: %d clients, %d rounds, %d floats up, %d down",
        *(type(estimator).__name__, n_clients, sent.rounds, sent.floats_up, sent.floats_down),
    )


@dataclass(frozen=True)
class Message:
    """Size of a message.

    Attributes
    ----------
    n_floats : int
        Numbers in it.
    nbytes : int
        Bytes that they take.
    """

    n_floats: int
    nbytes: int


def message_of(array: np.ndarray) -> Message:
    """Size of an array."""
    return Message(array.size, array.nbytes)


class Federation:
    """Maps a function over clients in parallel; an error names the client it came from.

    Threads by default, because BLAS releases the GIL; the user's ``parallel_config`` is respected.
    BLAS runs on one thread per worker.

    Parameters
    ----------
    n_jobs : int or None
        As in joblib.
    channel : Channel or None
        Channel for the messages of `sum`; None: `PerfectChannel`.
    rng : RandomState or None
        Random numbers of the channel.
    log : CommunicationLog or None
        Where `sum` records its rounds.

    Attributes
    ----------
    gossip : Gossip or None
        Averages between neighbours; None with a server.
    disagreement : float
        Largest distance between the last sums of two clients; 0 with a server.
    """

    gossip: Any = None
    disagreement: float = 0.0

    def __init__(
        self,
        n_jobs: int | None = None,
        channel: Channel | None = None,
        rng: np.random.RandomState | None = None,
        log: CommunicationLog | None = None,
    ):
        self.n_jobs = n_jobs
        self.channel = PerfectChannel() if channel is None else channel
        if rng is not None:
            self.rng = rng
        self.log = CommunicationLog() if log is None else log
        self.n_rounds = 0

    @cached_property
    def rng(self) -> np.random.RandomState:
        """Random numbers of the channel, made when one asks for them."""
        return np.random.RandomState(0)

    def sum(
        self, function: Callable, clients: Sequence[tuple], broadcast: np.ndarray | None = None
    ) -> Any:
        """Return what the server receives when all clients send at once.

        Messages of single clients are not returned: a server that calls this sees the sum only.

        Parameters
        ----------
        function : callable
            ``function(label, *arguments)`` computes the message of a client, an array.
        clients : sequence of tuple
            Label and further arguments of each call.
        broadcast : ndarray, default=None
            What the server sent to the clients before; for the log.

        Returns
        -------
        total : ndarray or None
            None if no client took part, as on a channel that drops some.
        """
        present = self.channel.present(len(clients), self.n_rounds, self.rng)
        self.n_rounds += 1
        taking_part = list(compress(clients, present))
        if len(taking_part) < len(clients):
            absent = [label for (label, *_), here in zip(clients, present, strict=True) if not here]
            logger.info("round %d: clients %s left out by the channel", self.n_rounds, absent)
        # of several row chunks of a client one sends a message
        messages = filterfalse(partial(is_, None), self.map(function, taking_part))
        total, n_sent = self.channel.receive(self.channel.taken(function, messages), self.rng)
        up = [] if total is None else [message_of(total)] * n_sent
        down = [] if broadcast is None else [message_of(broadcast)] * len(taking_part)
        self.log.record(up, down, summed=True)
        return total

    def map(self, function: Callable, clients: Iterable[tuple]) -> Iterator[Any]:
        """Iterate over ``function(label, *arguments)`` for every client, in order.

        Parameters
        ----------
        function : callable
            The work of a client. Of an exception a ValueError, TypeError, MemoryError or
            RuntimeError is made that names the client.
        clients : iterable of tuple
            Label and further arguments of each call.

        Returns
        -------
        results : iterator
            What ``function`` returned for each.
        """
        clients = iter(clients)
        first = tuple(islice(clients, 1))
        clients = chain(first, clients)
        if DELAYED in map(attrgetter("__module__"), map(type, chain(*first))):
            return self._where_rows_are(function, clients)
        if effective_n_jobs(self.n_jobs) == 1:
            return starmap(partial(named, function), clients)
        config = get_config()
        calls = (delayed(_configured)(config, function, *client) for client in clients)
        backend, _ = get_active_backend(prefer="threads")
        return_as = "generator" if backend.supports_return_generator else "list"
        parallel = Parallel(n_jobs=self.n_jobs, prefer="threads", return_as=return_as)
        return _on_single_threads(parallel, calls)

    def _where_rows_are(self, function: Callable, clients: Iterable[tuple]) -> Iterator[Any]:
        """Results of calls that Dask runs where it has the rows."""
        for result, n_floats in run(named, ((function, *call) for call in clients)):
            self.log.floats_pooled += n_floats
            yield result


def _configured(config: dict[str, Any], function: Callable, *client: Any) -> Any:
    """`named` with the configuration of scikit-learn that the caller has in its own thread."""
    with config_context(**config):
        return named(function, *client)


def _on_single_threads(parallel: Parallel, calls: Iterable) -> Iterator[Any]:
    with single_blas_thread():
        results = parallel(calls)
        try:
            for result in results:  # noqa: UP028 (yield from closes them itself, and they warn)
                yield result
        except GeneratorExit:  # who takes the results has failed, and joblib warns of the others
            if isinstance(results, Generator):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    results.close()
            raise


def clients_named(labels: Iterable[Any]) -> list[str]:
    """Names of the clients in error messages."""
    return [f"Client {label!r}" for label in labels]


def named(function: Callable, label: Any, *arguments: Any) -> Any:
    """Call for one client; an exception is made one that names it."""
    try:
        return function(label, *arguments)
    except Exception as error:
        # of the type where callers know it
        kinds = (kind for kind in (ValueError, TypeError, MemoryError) if isinstance(error, kind))
        raise next(kinds, RuntimeError)(f"Client {label!r}: {error}") from error
