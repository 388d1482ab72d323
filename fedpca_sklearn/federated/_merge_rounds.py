"""The rounds of a merge: what is sent in each, and what is taken over from the last merge."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from ..summary import Subspace
from ..summary._merging import merged_rows
from ..summary._updating import was_truncated

if TYPE_CHECKING:
    from ._merge import MergeStrategy

# Summaries, the number of directions asked for, and what was made of them.
Entry = tuple[tuple[Subspace, ...], "int | float | None", Subspace]


class Made:
    """What a merge makes on the way to its result: messages that were cut, nodes of a tree.

    Parameters
    ----------
    before : iterable of Entry
        The ``entries`` of the last merge; what was made of the same objects is not made again.

    Attributes
    ----------
    entries : list of Entry
        What this merge made or took over.
    """

    def __init__(self, before: Iterable[Entry] = ()):
        self._before = {(sources, size): made for sources, size, made in before}
        self.entries: list[Entry] = []

    def of(
        self,
        sources: tuple[Subspace, ...],
        size: int | float | None,
        make: Callable[[], Subspace],
    ) -> Subspace:
        """Return what the last merge made of the same, or else what ``make`` returns."""
        made = self._before.get((sources, size))
        if made is None:
            made = make()
        self.entries.append((sources, size, made))
        return made


def merge_in_rounds(
    strategy: MergeStrategy,
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
    nodes = [
        _message(subspace, strategy.directions_sent(n_components), made) for subspace in subspaces
    ]
    fan_in = strategy.fan_in
    while fan_in is not None and len(nodes) > fan_in:
        groups = [nodes[i : i + fan_in] for i in range(0, len(nodes), fan_in)]
        # a node alone in its group waits for the next level
        sent = [(node, i) for i, group in enumerate(groups) if len(group) > 1 for node in group]
        if record is not None:
            record(*map(list, zip(*sent, strict=True)))
        nodes = [_inner_node(strategy, group, kept, made) for group in groups]
    if record is not None:
        record(nodes)
    return _node(strategy, nodes, n_components, kept)


def _message(subspace: Subspace, size: int | None, made: Made) -> Subspace:
    """What a client sends: its summary, or the leading directions of it."""
    if size is None or size >= subspace.n_components:
        return subspace
    return made.of((subspace,), size, partial(subspace.truncate, size))


def _inner_node(
    strategy: MergeStrategy, group: list[Subspace], kept: int | float | None, made: Made
) -> Subspace:
    """The merge of a group, from which nothing is cut if nothing was cut from its parts."""
    if len(group) == 1:
        return group[0]
    size = kept if any(map(was_truncated, group)) else None
    return made.of(tuple(group), kept, partial(_node, strategy, group, size, kept))


def _node(
    strategy: MergeStrategy,
    group: list[Subspace],
    n_components: int | float | None,
    kept: int | float | None,
) -> Subspace:
    return merged_rows(group, lambda parts: strategy._merge(parts, n_components, kept))
