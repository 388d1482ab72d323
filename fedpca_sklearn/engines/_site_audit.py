"""What an auditor reads in the log of a site: days, kinds of questions, refusals, and the chain."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ._site_log import SiteLog, SiteLogError

# Characters of a reason that are shown, up to a reference to another log, which no two have alike.
_SHOWN = 160


@dataclass
class _Summary:
    """Numbers of lines by day and event, by kind and event, reasons, bytes, and what was spent."""

    days: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    kinds: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    reasons: Counter[str] = field(default_factory=Counter)
    n_bytes: int = 0
    spent: tuple[float, float] | None = None

    def add(self, line: dict[str, Any]) -> None:
        """Take one line in."""
        event = line["event"]
        # one that was refused before it was read has no line of its own
        events = [event] if event != "refusal" or "of" in line else ["question", event]
        kind = f"{_printable(line.get('estimator', '?'))}, {_printable(line.get('kind', '?'))}"
        self.days[line["time"][:10]].update(events)
        self.kinds[kind].update(events)
        if event == "refusal":
            self.reasons[_printable(line.get("why", "?"))] += 1
        if event == "answer":
            self.n_bytes += int(line.get("bytes", 0))
        if "epsilon" in line:
            self.spent = float(line["epsilon"]), float(line["delta"])

    def lines(self) -> Iterator[str]:
        """Text, a line at a time."""
        for title, counts in (*self.days.items(), *sorted(self.kinds.items())):
            yield (
                f"  {title}  {counts['question']} questions, {counts['answer']} answered, "
                f"{counts['refusal']} refused"
            )
        for reason, n in self.reasons.most_common():
            yield f"  {n} x {reason}"
        yield f"  {self.n_bytes} bytes sent"
        if self.spent is not None:
            yield "  spent in all: epsilon {:.6g}, delta {:g}".format(*self.spent)


def audit(path: str | os.PathLike) -> tuple[str, bool]:
    """Text about the log of a site, and whether the log is what was written.

    Parameters
    ----------
    path : str or path-like
        The file; the one beside it that ends in ``.head`` is read too. Nothing is changed.

    Returns
    -------
    text : str
        By day, by kind of question, reasons of refusals, bytes, privacy spent, and the chain; of
        the lines up to the first that is not what was written.
    whole : bool
        Whether all lines are there as they were written.
    """
    found, n_lines = _Summary(), 0
    log = SiteLog(path)

    def seen(line: dict[str, Any]) -> None:
        nonlocal n_lines
        found.add(line)
        n_lines += 1

    try:
        log.read(seen)
        verdict, whole = f"{n_lines} lines, the chain is whole", True
    except SiteLogError as error:
        verdict, whole = f"NOT WHOLE after {n_lines} lines: {_printable(str(error))}", False
    return "\n".join([*found.lines(), f"  {verdict}"]), whole


def _printable(text: Any) -> str:
    text = str(text).split(" in the log of the site")[0][:_SHOWN]
    return text if text.isprintable() else ascii(text)
