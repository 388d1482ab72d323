"""Columns of summaries matched by name."""

from __future__ import annotations

from collections.abc import Sequence

from ..summary import Subspace
from ..summary._columns import select_columns
from ._rows import errors_of
from ._texts import listed


def aligned(
    summaries: Sequence[Subspace], files: Sequence[str]
) -> tuple[list[Subspace], list[str]]:
    """Summaries in the columns that all of them have, in the order of the first.

    Parameters
    ----------
    summaries : sequence of Subspace
    files : sequence of str
        Where they are from.

    Returns
    -------
    summaries : list of Subspace
    warnings : list of str
        A line for each file that lacks columns of others.
    """
    names = []
    for file, summary in zip(files, summaries, strict=True):
        if summary.feature_names is None:
            raise ValueError(f"{file}: it has no names of columns, which --align matches.")
        names.append(summary.feature_names)
    common = set(names[0]).intersection(*names[1:])
    if not common:
        raise ValueError(f"no column is in all of {listed(files)}.")
    order = [name for name in names[0] if name in common]
    found, warnings = [], []
    everywhere = dict.fromkeys(name for those in names for name in those)
    for file, summary, those in zip(files, summaries, names, strict=True):
        lacking = [name for name in everywhere if name not in set(those)]
        if lacking:
            warnings.append(f"{file} has no {listed(lacking)}: left out of all.")
        position = {name: j for j, name in enumerate(those)}
        columns = [position[name] for name in order]
        with errors_of(file):
            same = columns == list(range(len(those)))
            found.append(summary if same else select_columns(summary, columns))
    return found, warnings
