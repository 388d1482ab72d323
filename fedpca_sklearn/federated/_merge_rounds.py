"""The rounds of a merge: what is sent in each, and what is taken over from the last merge."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Any, TypeAlias

from ..summary import Subspace
from ..summary._merging import merged_rows
from ..summary._updating import was_truncated

# A MergeStrategy, whose `merge` calls this module
Strategy: TypeAlias = Any
# Summaries, how another was made of them, and that one.
Entry = tuple[tuple[Subspace, ...], Hashable, Subspace]


class Made:
    """What a merge makes on the way to its result: messages that were cut, nodes of a tree.

    Parameters
    ----------
    before : iterable of Entry
        The ``entries`` of the last merge; what was made of the same objects in the same way is not
        made again.

    Attributes
    ----------
    entries : list of Entry
        What this merge made or took over.
    """

    def __init__(self, before: Iterable[Entry] = ()):
        self._before = {(sources, how): made for sources, how, made in before}
        self.entries: list[Entry] = []

    def of(
        self, sources: tuple[Subspace, ...], how: Hashable, make: Callable[[], Subspace]
    ) -> Subspace:
        """Return what the last merge made of the same, or else what ``make`` returns."""
        made = self._before.get((sources, how))
        if made is None:
            made = make()
        self.entries.append((sources, how, made))
        return made


class NewMessages:
    """Messages of a merge, of which those that the last one has sent are not sent again.

    Parameters
    ----------
    log : CommunicationLog
    before : iterable of Subspace
        What the last merge has sent.
    sources : iterable of (Subspace, Subspace), default=()
        Summaries, and what was sent in the place of each.

    Attributes
    ----------
    sent : list of Subspace
    """

    def __init__(
        self,
        log: Any,
        before: Iterable[Subspace],
        sources: Iterable[tuple[Subspace, Subspace]] = (),
    ):
        self._log, self._before = log, {id(summary) for summary in before}
        self._sources = {id(summary): source for summary, source in sources}
        self.sent: list[Subspace] = []

    def record(self, messages: list[Subspace], receivers: list | None = None) -> None:
        """Log a round."""
        messages = [self._sources.get(id(message), message) for message in messages]
        # the receiver still holds a summary that has not changed since the last merge
        new = [i for i, message in enumerate(messages) if id(message) not in self._before]
        receivers = receivers and [receivers[i] for i in new]
        self._log.record([messages[i] for i in new], receivers=receivers)
        self.sent.extend(messages)


def merge_in_rounds(
    strategy: Strategy,
    subspaces: list[Subspace],
    n_components: int | float | None,
    kept: int | float | None,
    *,
    record: Callable[..., None] | None = None,
    made: Made | None = None,
) -> Subspace:
    """Let clients send their summaries, and merge them with a strategy level by level.

    Parameters
    ----------
    strategy : MergeStrategy
    subspaces : list of Subspace
        Checked; one of each client, of which those without rows take part in the rounds only.
    n_components, record
        As in `MergeStrategy.merge`.
    kept : int, float or None
        Directions that an inner node of a tree keeps of summaries that were cut before; None: all.
    made : Made, default=None
        What the last merge made, and where to keep what this one makes.

    Returns
    -------
    subspace : Subspace
    """
    made = Made() if made is None else made
    most, fan_in = strategy.directions_sent(n_components), strategy.fan_in
    nodes = [_message(subspace, most, made) for subspace in subspaces]
    how = (type(strategy).__module__, type(strategy).__qualname__, str(strategy.get_params()), kept)
    while fan_in is not None and len(nodes) > fan_in:
        groups = [nodes[i : i + fan_in] for i in range(0, len(nodes), fan_in)]
        # a node alone in its group waits for the next level
        sent = [(node, i) for i, group in enumerate(groups) if len(group) > 1 for node in group]
        if record is not None:
            record(*map(list, zip(*sent, strict=True)))
        nodes = [_inner_node(strategy, group, kept, how, made) for group in groups]
    if record is not None:
        record(nodes)
    return _node(strategy, nodes, n_components, kept)


def findings_by_label(strategy: Strategy, clients: dict[Any, Any]) -> dict[str, dict]:
    """What a strategy found of the sites in its last merge, by attribute and label."""
    labels = [label for label, site in clients.items() if site.summary.n_samples > 0]
    return {
        name: {labels[position]: value for position, value in found.items()}
        for name, found in vars(strategy).items()
        if name.endswith("_")
    }


def _message(subspace: Subspace, most: int | None, made: Made) -> Subspace:
    """What a client sends: its summary, or the leading directions of it."""
    if most is None or most >= subspace.n_components:
        return subspace
    return made.of((subspace,), most, partial(subspace.truncate, most))


def _inner_node(
    strategy: Strategy,
    group: list[Subspace],
    kept: int | float | None,
    how: Hashable,
    made: Made,
) -> Subspace:
    """The merge of a group, from which nothing is cut if nothing was cut from its parts."""
    if len(group) == 1:
        return group[0]
    size = kept if any(map(was_truncated, group)) else None
    return made.of(tuple(group), how, partial(_node, strategy, group, size, kept))


def _node(
    strategy: Strategy,
    group: list[Subspace],
    n_components: int | float | None,
    kept: int | float | None,
) -> Subspace:
    return merged_rows(group, lambda parts: strategy._merge(parts, n_components, kept))
