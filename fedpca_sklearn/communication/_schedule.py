"""Schedules of binary merge trees over time, with the load balanced over the clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import TypeVar

__all__ = ["Message", "Phase", "Task", "load_balanced_schedule"]

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
        At most one for a client.
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


def load_balanced_schedule(n_clients: int, n_steps: int) -> list[Phase]:
    """Schedule of `DistributedPCA` when all clients get new rows at every time step.

    In a phase a client does one thing: the R factor of its new rows, or the factor of two factors.
    The steps overlap: while the tree of one step shrinks towards its root, the clients that are
    free are at the next steps. Of two partners in a tree the one that merged less so far receives,
    so that all merge equally often, up to about log2(n_clients) times, however many the steps.

    Parameters
    ----------
    n_clients, n_steps : int
        At least 1.

    Returns
    -------
    phases : list of Phase
        The phases in their order; each has tasks of different clients, and the messages after them.

    Notes
    -----
    Section 5 of Bai, Chan and Luk (2005) balances the load in the same spirit for a number of
    clients that is a power of two. A step costs every client one factor of rows and, in the mean,
    one of two triangles; K steps take about 2 K phases instead of K (2 + log2(n_clients)).

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
    """
    for name, value in (("n_clients", n_clients), ("n_steps", n_steps)):
        if not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name} must be a positive integer, got {value!r}.")
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
