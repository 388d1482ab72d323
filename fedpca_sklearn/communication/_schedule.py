"""Schedules of binary merge trees over time, with the load balanced over the clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from .._validation.checks import check_integer

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
    [(1, 6, 2), (1, 7, 3), (1, 0, 4), (1, 1, 5)]
    """
    n_clients = check_integer("n_clients", n_clients)
    n_steps = check_integer("n_steps", n_steps)
    if layout not in ("phases", "intervals"):
        raise ValueError(f"layout must be one of 'phases', 'intervals', got {layout!r}.")
    if layout == "phases":
        return _in_phases(n_clients, n_steps)
    if n_clients & (n_clients - 1):
        raise ValueError(
            f"n_clients must be a power of two with layout='intervals', got {n_clients!r}."
        )
    return _in_intervals(n_clients, n_steps)


def _in_phases(n_clients, n_steps):
    """Phases in which a client does the first of its tasks that is ready."""
    todo, waits_for, sends = _plan(n_clients, n_steps)
    phases: list[Phase] = []
    done: set[Task] = set()
    while any(todo):
        phase = Phase()
        for tasks in todo:
            ready = (i for i, task in enumerate(tasks) if waits_for[task] <= done)
            i = next(ready, None)
            if i is not None:
                phase.tasks.append(tasks.pop(i))
        done.update(phase.tasks)
        phase.messages = [sends[task] for task in phase.tasks if task in sends]
        phases.append(phase)
    return phases


def _plan(n_clients, n_steps):
    """Tasks of each client in the order of steps, what each waits for, and what it sends."""
    todo: list[list[Task]] = [[] for _ in range(n_clients)]
    waits_for: dict[Task, set[Task]] = {}
    sends: dict[Task, Message] = {}
    load: Counter[int] = Counter()
    whole: Task | None = None

    def add(task: Task, *inputs: Task) -> Task:
        todo[task.client].append(task)
        waits_for[task] = set(inputs)
        for given in inputs:
            if given.client != task.client:
                sends[given] = Message(given.client, task.client, given.step, given.level)
        return task

    for step in range(n_steps):
        last = [add(Task(client, "qr", step, 0)) for client in range(n_clients)]
        levels, root = merge_levels(range(n_clients), load)
        for level, pairs in enumerate(levels, 1):
            for sender, receiver in pairs:
                task = Task(receiver, "merge", step, level)
                last[receiver] = add(task, last[receiver], last[sender])
        if whole is None:
            whole = last[root]
        else:
            _, holder = update_pair(whole.client, root, load)
            whole = add(Task(holder, "update", step, len(levels) + 1), whole, last[root])
    return todo, waits_for, sends


def _in_intervals(n_clients, n_steps):
    """One phase for each interval between two times: Bai, Chan and Luk (2005), section 5.

    In interval t the rows of step t are factored, and the trees of steps t - 1, t - 2, ... merge at
    their levels 1, 2, ...
    """
    depth = n_clients.bit_length() - 1
    phases = [Phase() for _ in range(n_steps + depth)]
    for step in range(n_steps):
        phases[step].tasks += [Task(client, "qr", step, 0) for client in range(n_clients)]
    pairs_of = _interval_pairs(n_clients, n_steps)
    for (step, level), pairs in sorted(pairs_of.items()):
        for sender, receiver in pairs:
            phases[step + level - 1].messages.append(Message(sender, receiver, step, level - 1))
            phases[step + level].tasks.append(Task(receiver, "merge", step, level))
    roots = [pairs_of[step, depth][0][1] if depth else 0 for step in range(n_steps)]
    for step in range(1, n_steps):
        sender, root = roots[step - 1 : step + 1]
        if sender != root:  # after its update, or for step 0 its tree
            level = depth + (step > 1)
            phases[step + depth - 1].messages.append(Message(sender, root, step - 1, level))
        phases[step + depth].tasks.append(Task(root, "update", step, depth + 1))
    return phases


def _interval_pairs(n_clients, n_steps):
    """``{(step, level): pairs (sender, receiver)}`` of the trees of `_in_intervals`."""
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
