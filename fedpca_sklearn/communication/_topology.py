"""Who sends to whom: topologies, averages between neighbours, and schedules of a merge tree."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import shortest_path

from .._validation.checks import Interval, Strategy, allowed, check_integer, with_parameters
from ._federation import CommunicationLog, Federation
from ._federation import Message as Size


@with_parameters
class Topology(Strategy):
    """Base of the topologies: who exchanges messages with whom where there is no server.

    A subclass writes ``neighbours(n)``, which returns a symmetric array of shape (n, n) of 0 and 1
    or bool. All have a parameter ``tol``.

    Parameters
    ----------
    tol : float, default=1e-10
        Gossip between neighbours ends when at most this share of the clients' first differences
        is left.
    """

    tol: float = allowed(Interval(Real, 0, None, closed="left"), default=1e-10)

    @abstractmethod
    def neighbours(self, n: int) -> np.ndarray:
        """Return who exchanges messages with whom.

        Parameters
        ----------
        n : int
            Number of clients.

        Returns
        -------
        A : ndarray of shape (n, n)
            Symmetric, 0 and 1 or bool: whether two clients are neighbours. The diagonal does not
            matter. Estimators check that the shape is right and that every client can be reached.
        """


class Complete(Topology):
    """Every client exchanges messages with every other one.

    Parameters
    ----------
    tol : float, default=1e-10
        As in `Topology`; a single exchange suffices.

    Examples
    --------
    >>> from fedpca_sklearn import Complete
    >>> Complete().neighbours(3).astype(int)
    array([[0, 1, 1],
           [1, 0, 1],
           [1, 1, 0]])
    """

    def neighbours(self, n: int) -> np.ndarray:
        """All pairs; see `Topology.neighbours`."""
        return ~np.eye(n, dtype=bool)


class Ring(Topology):
    """Every client exchanges messages with the one before and the one after it.

    Parameters
    ----------
    tol : float, default=1e-10
        As in `Topology`.

    Examples
    --------
    >>> from fedpca_sklearn import Ring
    >>> Ring().neighbours(4).astype(int)
    array([[0, 1, 0, 1],
           [1, 0, 1, 0],
           [0, 1, 0, 1],
           [1, 0, 1, 0]])
    """

    def neighbours(self, n: int) -> np.ndarray:
        """Pairs of successive numbers, and the last with the first; see `Topology.neighbours`."""
        A, i = np.zeros((n, n), dtype=bool), np.arange(n)
        A[i, (i + 1) % n] = A[(i + 1) % n, i] = True
        return A & ~np.eye(n, dtype=bool)


class Star(Topology):
    """The first client exchanges messages with all others, and they with it alone.

    Parameters
    ----------
    tol : float, default=1e-10
        As in `Topology`.

    Examples
    --------
    >>> from fedpca_sklearn import Star
    >>> Star().neighbours(3).astype(int)
    array([[0, 1, 1],
           [1, 0, 0],
           [1, 0, 0]])
    """

    def neighbours(self, n: int) -> np.ndarray:
        """The first with every other; see `Topology.neighbours`."""
        A = np.zeros((n, n), dtype=bool)
        A[0] = A[:, 0] = True
        return A & ~np.eye(n, dtype=bool)


class Graph(Topology):
    """The neighbours are given by an array or a graph.

    Parameters
    ----------
    adjacency : array-like or sparse array of shape (n, n), or graph
        Symmetric, of 0 and 1, a row for each client. A graph of networkx is taken by its nodes in
        their order; parallel edges count once, directed ones must go both ways. Every client must
        be able to reach every other.
    tol : float, default=1e-10
        As in `Topology`.

    Examples
    --------
    A path of three clients:

    >>> from fedpca_sklearn import Graph
    >>> Graph([[0, 1, 0], [1, 0, 1], [0, 1, 0]]).neighbours(3).astype(int)
    array([[0, 1, 0],
           [1, 0, 1],
           [0, 1, 0]])
    """

    def __init__(self, adjacency: Any, tol: float = 1e-10):
        super().__init__(tol)
        self.adjacency = adjacency

    def neighbours(self, n: int) -> np.ndarray:
        """As given; see `Topology.neighbours`."""
        try:
            return _as_array(self.adjacency)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{_expected(n)}, got {self.adjacency!r}.") from error


def distances(A: np.ndarray) -> np.ndarray:
    """Number of steps between any two clients, infinity where there is no path."""
    return shortest_path(A.astype(np.float64), directed=False, unweighted=True)


NAMED: dict[str, Any] = {"server": lambda: None, "complete": Complete, "ring": Ring, "star": Star}


def as_topology(topology: Any) -> Topology | None:
    """Validated object that a parameter stands for; None: a server.

    Parameters
    ----------
    topology : Topology, None, {"server", "complete", "ring", "star"}, array-like or graph
    """
    if isinstance(topology, str):
        if topology not in NAMED:
            raise ValueError(
                f"topology must be a Topology, an array or one of {[*NAMED]}, got {topology!r}."
            )
        topology = NAMED[topology]()
    if topology is None:
        return None
    topology = topology if isinstance(topology, Topology) else Graph(topology)
    topology.validate()
    return topology


def neighbours_of(topology: Topology, n: int) -> np.ndarray:
    """Symmetric bool matrix of the neighbours of n clients in a topology, checked."""
    A = np.asarray(topology.neighbours(n))
    if A.shape != (n, n) or not np.isin(A, (0, 1)).all() or (A != A.T).any():
        raise ValueError(f"{_expected(n)}, got shape {A.shape} of {topology!r}.")
    A = A.astype(bool)
    A[np.diag_indices(n)] = False
    if not np.isfinite(distances(A)).all():
        raise ValueError("topology must be connected: some clients cannot reach others.")
    return A


def _expected(n: int) -> str:
    return (
        f"topology must be a symmetric array of 0 and 1 of shape ({n}, {n}), a row for each client"
    )


def _as_array(adjacency: Any) -> np.ndarray:
    if hasattr(adjacency, "nodes") and hasattr(adjacency, "edges"):
        from networkx import to_numpy_array  # which whoever has its graphs has

        return to_numpy_array(adjacency, weight=None) > 0
    return np.asarray(adjacency.toarray() if sp.issparse(adjacency) else adjacency, np.float64)


# -------------------------------------------------------------------- without a server


def metropolis(A: np.ndarray) -> np.ndarray:
    """Doubly stochastic weights of an average over neighbours (Metropolis and Hastings)."""
    degree = A.sum(axis=1)
    W = np.where(A, 1.0 / (1.0 + np.maximum.outer(degree, degree)), 0.0)
    W[np.diag_indices(len(A))] = 1.0 - W.sum(axis=1)
    return W


class Gossip:
    """Averages at each client, by exchanges between neighbours.

    Chebyshev's iteration on the Metropolis weights W: with r the second largest absolute
    eigenvalue of W, differences between clients fall by 1 / T_m(1 / r) in m exchanges (T_m is
    Chebyshev's polynomial), which takes about sqrt((1 - r) / 2) times as many exchanges as W alone.
    The number of exchanges follows from the topology and ``tol``; no test of convergence is needed.

    Parameters
    ----------
    A : ndarray of shape (n, n), bool
        Neighbours; connected.
    tol : float
        Largest distance of a client from the average in the end, as a share of the clients' first
        differences (root of the sum of their squared distances from the average).
    """

    def __init__(self, A: np.ndarray, tol: float):
        n, eps = len(A), np.finfo(np.float64).eps
        weights = metropolis(A)
        absolute = np.sort(np.abs(np.linalg.eigvalsh(weights)))
        self.weights = sp.csr_array(weights)
        self.radius = float(absolute[-2]) if n > 1 else 0.0
        self.distances = distances(A)
        self.complete = bool(A.sum() == n * (n - 1))
        self.receivers = np.nonzero(A)[1].tolist()
        share = min(max(tol, eps), 1.0)
        wanted = np.arccosh(1 / share) / np.arccosh(1 / max(self.radius, eps))
        self.n_exchanges = int(np.ceil(wanted)) if n > 1 else 0

    def average(self, values: np.ndarray) -> np.ndarray:
        """Average of the rows, one of each client, as each has it in the end."""
        if not self.n_exchanges:
            return values
        before, values, omega = values, self.weights @ values, 2.0
        for _ in range(self.n_exchanges - 1):
            omega = 1 / (1 - omega * self.radius**2 / 4)
            before, values = values, omega * (self.weights @ values) + (1 - omega) * before
        return values

    def relays(self) -> Iterator[tuple[list[int], list[int]]]:
        """Yield senders' numbers and receivers, step by step, until all have heard of all."""
        for step in range(1, int(self.distances.max()) + 1):
            first, last = np.nonzero(self.distances == step)
            yield first.tolist(), last.tolist()

    def record(self, log: CommunicationLog, n_floats: int, n_exchanges: int) -> None:
        """Log exchanges in which each client sends to each of its neighbours."""
        messages = [Size(n_floats, 8 * n_floats)] * len(self.receivers)
        for _ in range(n_exchanges):
            log.record(messages, receivers=self.receivers)


class Peers(Federation):
    """Clients without a server: sums by gossip between neighbours.

    Later steps are computed once, from the sum as the first client has it; ``disagreement`` is the
    largest distance of another client's sum from it.

    Parameters
    ----------
    A : ndarray of shape (n, n), bool
    tol : float
        As in `Gossip`.
    n_jobs, rng, log
        As in `Federation`.
    """

    def __init__(self, A: np.ndarray, tol: float, n_jobs: Any, rng: Any, log: CommunicationLog):
        super().__init__(n_jobs, None, rng, log)
        self.gossip = Gossip(A, tol)

    def sum(self, function: Any, clients: Any, broadcast: Any = None) -> np.ndarray:
        """Sum that clients agree on; see `Federation.sum`."""
        messages = list(self.map(function, clients))
        values = self.gossip.average(len(messages) * np.stack([m.ravel() for m in messages]))
        self.gossip.record(self.log, messages[0].size, self.gossip.n_exchanges)
        shares = values / (np.abs(values).max() or 1.0)
        spread = np.linalg.norm(shares - shares[0], axis=1).max()
        self.disagreement = float(spread / (np.linalg.norm(shares, axis=1).max() or 1.0))
        self.n_rounds += 1
        return values[0].reshape(messages[0].shape)


def federation_of(
    topology: Any, n_clients: int, n_jobs: Any, rng: Any, log: CommunicationLog, channel: Any
) -> Federation:
    """`Federation` if the parameter ``topology`` stands for a server, otherwise `Peers`."""
    topology = as_topology(topology)
    if topology is None:
        return Federation(n_jobs, channel, rng, log)
    if channel is not None:
        raise ValueError(f"channel needs topology='server', got {topology!r}.")
    return Peers(neighbours_of(topology, n_clients), topology.tol, n_jobs, rng, log)


_Client = TypeVar("_Client", bound=Hashable)


@dataclass(frozen=True)
class Task:
    """What a client computes in a phase.

    Attributes
    ----------
    client : int
    kind : {"qr", "merge", "update"}
        The R factor of new rows; of two factors of a time step; of a step and all steps before.
    step : int
    level : int
        Level of the tree, 0 for "qr".
    """

    client: int
    kind: str
    step: int
    level: int


@dataclass(frozen=True)
class Message:
    """A factor that is sent at the end of a phase, as soon as it is computed."""

    sender: int
    receiver: int
    step: int
    level: int


@dataclass
class Phase:
    """Tasks and messages that are done at the same time.

    Attributes
    ----------
    tasks : list of Task
        At most one for a client; of ``layout="intervals"`` at most one of each kind, to be done in
        their order.
    messages : list of Message
    """

    tasks: list[Task] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)


def merge_levels(
    clients: Sequence[_Client], load: Counter[_Client]
) -> tuple[list[list[tuple[_Client, _Client]]], _Client]:
    """Levels of a binary tree over the clients, as pairs ``(sender, receiver)``, and the root.

    Of two partners, the one with the smaller ``load`` (merges so far) receives; ``load`` is
    updated. A client without a partner waits for the next level.
    """
    levels, nodes = [], list(clients)
    while len(nodes) > 1:
        level = []
        for first, second in zip(nodes[::2], nodes[1::2], strict=False):
            receiver = first if load[first] <= load[second] else second
            level.append((second if receiver == first else first, receiver))
            load[receiver] += 1
        nodes = [receiver for _, receiver in level] + nodes[len(nodes) // 2 * 2 :]
        levels.append(level)
    return levels, nodes[0]


def update_pair(holder: _Client, root: _Client, load: Counter[_Client]) -> tuple[_Client, _Client]:
    """Sender and receiver of the update of all earlier rows by a step: the less loaded receives."""
    receiver = holder if load[holder] <= load[root] else root
    load[receiver] += 1
    return (root if receiver == holder else holder), receiver


def load_balanced_schedule(n_clients: int, n_steps: int, *, layout: str = "phases") -> list[Phase]:
    """Schedule of `DistributedPCA` when all clients get new rows at every time step.

    In a phase a client does one thing: the R factor of its new rows, or the factor of two factors.
    The steps overlap: while the tree of one step shrinks towards its root, the clients that are
    free are at the next steps. Of two partners in a tree the one that merged less so far receives,
    so that all merge equally often, up to about log2(n_clients) times, however many the steps.

    Parameters
    ----------
    n_clients, n_steps : int
        At least 1.
    layout : {"phases", "intervals"}, default="phases"
        "phases": as above, for any number of clients. "intervals": that of [1]_, for a power of
        two. A phase is an interval between two times at which new rows are taken: every client
        factors its rows, and merges two factors of an earlier step where a tree needs it.

    Returns
    -------
    phases : list of Phase
        The phases in their order; each has tasks of different clients, and the messages after them.

    Notes
    -----
    "phases": a step costs every client one factor of rows and, in the mean, one of two triangles; K
    steps take about 2 K phases instead of K (2 + log2(n_clients)).

    "intervals": K steps of s = 2^l clients take K + l intervals. In the level j of a tree half of
    those that hold its factors receive those of the others; for step 0, and in the first level of
    step 1, client i + s / 2^j sends to client i. The root of a step takes the triangle of all
    steps before from the root of the step before, and updates it in the same interval. The text of
    [1]_, section 5, says for s = 8 that the factors of step 0 go to clients 0 to 3, those of step 1
    to 2 to 5, and that steps 0, 1 and 2 end at 0, 4 and 6; its figure shows no more than a few
    steps. What follows is a rule that agrees: a client merges once in an interval, deep levels
    choose first and take the holders that merged least, and the first level takes the clients that
    come, in a circle, after those of the second level of the step before. So all merge equally
    often here, too.

    References
    ----------
    .. [1] Z.-J. Bai, R. Chan, F. Luk, "Principal component analysis for distributed data sets with
       updating", APPT 2005.

    Examples
    --------
    >>> from fedpca_sklearn import load_balanced_schedule
    >>> for i, phase in enumerate(load_balanced_schedule(4, 1)):
    ...     print(i, [(t.client, t.kind) for t in phase.tasks])
    ...     print("  sends", [(m.sender, m.receiver) for m in phase.messages])
    0 [(0, 'qr'), (1, 'qr'), (2, 'qr'), (3, 'qr')]
      sends [(1, 0), (3, 2)]
    1 [(0, 'merge'), (2, 'merge')]
      sends [(2, 0)]
    2 [(0, 'merge')]
      sends []
    >>> len(load_balanced_schedule(64, 100))
    209
    >>> len(load_balanced_schedule(64, 100, layout="intervals"))
    106
    >>> second = load_balanced_schedule(8, 3, layout="intervals")[1]
    >>> [(m.step, m.sender, m.receiver) for m in second.messages if m.level == 0]
    [(1, 0, 4), (1, 1, 5), (1, 6, 2), (1, 7, 3)]
    """
    n_clients = check_integer("n_clients", n_clients)
    n_steps = check_integer("n_steps", n_steps)
    if layout not in ("phases", "intervals"):
        raise ValueError(f"layout must be one of 'phases', 'intervals', got {layout!r}.")
    pairs_of = None
    if layout == "intervals":
        if n_clients & (n_clients - 1):
            raise ValueError(
                f"n_clients must be a power of two with layout='intervals', got {n_clients!r}."
            )
        pairs_of = _interval_pairs(n_clients, n_steps)
    inputs = _plan(n_clients, n_steps, pairs_of)
    sends = {
        given: Message(given.client, task.client, given.step, given.level)
        for task, needed in inputs.items()
        for given in needed
        if given.client != task.client
    }
    times = _in_phases(inputs, n_clients) if pairs_of is None else _in_intervals(inputs)
    return [Phase(tasks, [sends[task] for task in tasks if task in sends]) for tasks in times]


def _plan(n_clients, n_steps, pairs_of):
    """Tasks in the order of steps, and the tasks whose factors each takes.

    ``pairs_of`` is that of `_interval_pairs`; None: of two partners the less loaded receives.
    """
    inputs: dict[Task, set[Task]] = {}
    load: Counter[int] = Counter()
    whole: Task | None = None
    for step in range(n_steps):
        last = [Task(client, "qr", step, 0) for client in range(n_clients)]
        inputs |= {task: set() for task in last}
        if pairs_of is None:
            levels, root = merge_levels(range(n_clients), load)
        else:
            levels = [pairs_of[step, level] for level in range(1, n_clients.bit_length())]
            root = levels[-1][0][1] if levels else 0
        for level, pairs in enumerate(levels, 1):
            for sender, receiver in pairs:
                task = Task(receiver, "merge", step, level)
                inputs[task], last[receiver] = {last[receiver], last[sender]}, task
        before, whole = whole, last[root]
        if before is not None:
            holder = update_pair(before.client, root, load)[1] if pairs_of is None else root
            whole = Task(holder, "update", step, len(levels) + 1)
            inputs[whole] = {before, last[root]}
    return inputs


def _in_phases(inputs, n_clients):
    """Tasks of each phase, in which a client does the first of its tasks that is ready."""
    todo = [[task for task in inputs if task.client == client] for client in range(n_clients)]
    done: set[Task] = set()
    while any(todo):
        found = (next((t for t in tasks if inputs[t] <= done), None) for tasks in todo)
        ready = [task for task in found if task is not None]
        for task in ready:
            todo[task.client].remove(task)
        done.update(ready)
        yield ready


def _in_intervals(inputs):
    """Tasks of each interval between two times: Bai, Chan and Luk (2005), section 5.

    In interval t the rows of step t are factored, and the trees of steps t - 1, t - 2, ... merge at
    their levels 1, 2, ... An update is in the interval of the last level.
    """
    found: dict[int, list[Task]] = {}
    for kind in ("qr", "merge", "update"):
        for task in inputs:
            if task.kind == kind:
                at = task.step + task.level - (kind == "update")
                found.setdefault(at, []).append(task)
    return [found[at] for at in sorted(found)]


def _interval_pairs(n_clients, n_steps):
    """``{(step, level): pairs (sender, receiver)}`` of the trees of a schedule in intervals."""
    depth = n_clients.bit_length() - 1
    load: Counter[int] = Counter()
    holders: dict[int, list[int]] = {}
    pairs = {}
    first = 0  # of the first level
    for interval in range(1, n_steps + depth):
        busy: set[int] = set()
        for level in range(depth, 0, -1):
            step = interval - level
            if not 0 <= step < n_steps:
                continue
            nodes = holders.get(step, [*range(first, n_clients), *range(first)])
            free = [client for client in nodes if client not in busy]
            if level > 1:
                free.sort(key=load.__getitem__)
            chosen = set(free[: len(nodes) // 2])
            receivers = [client for client in nodes if client in chosen]
            senders = [client for client in nodes if client not in chosen]
            pairs[step, level] = list(zip(senders, receivers, strict=True))
            holders[step] = receivers
            busy |= chosen
            load.update(receivers)
            if level == depth and step:  # the update
                load.update(receivers)
            if level == min(2, depth):
                first = (receivers[-1] + 1) % n_clients
    return pairs
