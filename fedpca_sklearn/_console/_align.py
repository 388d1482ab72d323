"""Columns of summaries matched by name."""

from __future__ import annotations

from collections.abc import Sequence

from ..summary import Subspace
from ..summary._scaling import select_columns
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
    places = []
    for file, summary in zip(files, summaries, strict=True):
        if summary.feature_names is None:
            raise ValueError(f"{file}: it has no names of columns, which --align matches.")
        places.append({name: j for j, name in enumerate(summary.feature_names)})
    order = [name for name in places[0] if all(name in place for place in places)]
    if not order:
        raise ValueError(f"no column is in all of {listed(files)}.")
    everywhere = dict.fromkeys(name for place in places for name in place)
    found, warnings = [], []
    for file, summary, place in zip(files, summaries, places, strict=True):
        lacking = [name for name in everywhere if name not in place]
        if lacking:
            warnings.append(f"{file} has no {listed(lacking)}: left out of all.")
        columns = [place[name] for name in order]
        with errors_of(file):
            same = columns == list(range(len(place)))
            found.append(summary if same else select_columns(summary, columns))
    return found, warnings
