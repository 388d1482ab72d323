"""Log of a site: every question and what became of it, which an auditor can check."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

from ..privacy._chained_lines import (
    LONGEST,
    append_flushed,
    chained,
    followed,
    locked,
    sync_folder,
)
from ._messages import write_bytes

# Name of the file beside a log that says how far the log went.
_HEAD = ".head"


class SiteLogError(ValueError):
    """A log is not what was written."""


class Tally(NamedTuple):
    """What a site has to know of its log.

    Attributes
    ----------
    size, chain : int, str
        Bytes of the whole lines, and the hash in the last.
    n_lines : int
        Number of lines.
    day : str
        Latest date of a line, in UTC. A clock that is set back begins no new day.
    asked_today : int
        Questions since that day began, whatever became of them.
    rounds : int
        Questions, also those that were refused.
    mu2 : float
        Largest account of privacy that an answer stated.
    """

    size: int = 0
    chain: str = ""
    n_lines: int = 0
    day: str = ""
    asked_today: int = 0
    rounds: int = 0
    mu2: float = 0.0

    def after(self, line: bytes, entry: dict[str, Any]) -> Tally:
        """The tally with one more line."""
        day, event = entry["time"][:10], entry["event"]
        if date.fromisoformat(day).isoformat() != day:
            raise ValueError(f"it has no date, got {day!r}")
        asked = event == "question" or (event == "refusal" and "of" not in entry)
        return Tally(
            self.size + len(line),
            entry["chain"],
            self.n_lines + 1,
            max(day, self.day),
            self.asked_on(day) + asked,
            self.rounds + asked,
            max(self.mu2, float(entry.get("mu2", 0.0))),
        )

    def asked_on(self, day: str) -> int:
        """Questions that count for a day."""
        return 0 if day > self.day else self.asked_today


class SiteLog:
    """Append-only lines of JSON, each with a hash of itself and of all lines before it.

    A second file, with ``.head`` at the end of its name, says how far the log went, so that lines
    that are cut off at the end are missed. Several processes may write to one log.

    Parameters
    ----------
    path : str or path-like
        The file, on a local disk; the first line makes it.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = os.path.realpath(os.fspath(path))
        self._tally = Tally()

    @property
    def mu2(self) -> float:
        """Largest account of privacy that an answer stated, as far as the log was read."""
        return self._tally.mu2

    def write(self, entry: dict[str, Any], check: Callable[[Tally], None] | None = None) -> int:
        """Add a line, on the disk when this returns, and return its number.

        Parameters
        ----------
        entry : dict
            With "event".
        check : callable or None
            ``check(tally)`` sees what the log holds before the line, which nobody else adds to
            meanwhile, and may raise.

        Raises
        ------
        SiteLogError
            If the log is not what was written.
        """
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        with locked(self.path) as file:
            tally = self._whole(file)
            if check is not None:
                check(tally._replace(asked_today=tally.asked_on(now[:10])))
            entry = {"line": tally.n_lines + 1, "time": now, **entry}
            line = chained(entry, tally.chain)
            if len(line) > LONGEST:
                raise SiteLogError(f"a line of {len(line)} bytes is too long for a log")
            append_flushed(file, line, tally.size, self.path)
            self._tally = tally.after(line, json.loads(line))
            self._write_head()
        return entry["line"]

    def read(self, seen: Callable[[dict[str, Any]], None] | None = None) -> Tally:
        """Check the whole log, a line at a time; nothing is changed.

        Parameters
        ----------
        seen : callable or None
            Called with each line that continues the chain.

        Returns
        -------
        tally : Tally
            What all lines come to.

        Raises
        ------
        SiteLogError
            Where the lines stop to be what was written.
        """
        with open(self.path, "rb") as file:
            tally = self._read(file, Tally(), seen)
            rest = os.fstat(file.fileno()).st_size - tally.size
        if rest:
            raise self._error(f"ends in {rest} bytes of a line that is cut off")
        self._check_head(tally)
        return tally

    def _whole(self, file: int) -> Tally:
        """What the log holds, checked, without what a crash left of a line that was not written."""
        if not self._tally.size and not os.fstat(file).st_size and not os.path.exists(self._head):
            self._write_head()
        with os.fdopen(os.dup(file), "rb") as stream:
            tally = self._read(stream, self._tally)
        self._check_head(tally)
        os.ftruncate(file, tally.size)  # no answer went out on what is not whole
        os.lseek(file, 0, os.SEEK_END)
        self._tally = tally
        return tally

    def _read(
        self, stream: Any, tally: Tally, seen: Callable[[dict[str, Any]], None] | None = None
    ) -> Tally:
        """Go on with the lines after a tally."""
        if os.fstat(stream.fileno()).st_size < tally.size:
            raise self._error(f"is shorter than the {tally.size} bytes that it had")
        stream.seek(tally.size)

        def after(tally: Tally, line: bytes, entry: dict[str, Any]) -> Tally:
            tally = tally.after(line, entry)
            if seen is not None:
                seen(entry)
            return tally

        return followed(stream, tally, after, self._error)

    # ---------------------------------------------------------------- the head

    @property
    def _head(self) -> str:
        return self.path + _HEAD

    def _write_head(self) -> None:
        write_bytes(self._head, f"{self._tally.n_lines} {self._tally.chain}\n".encode())
        sync_folder(self._head)

    def _check_head(self, tally: Tally) -> None:
        """Raise if the log ends before the line at which its head says that it went on."""
        try:
            with open(self._head, encoding="ascii") as file:
                n_lines, _, chain = file.read(200).strip().partition(" ")
            known = int(n_lines), chain
        except (OSError, ValueError):
            raise self._error(f"has no file {os.path.basename(self._head)} beside it") from None
        # a crash between the two files leaves the head one line behind
        if known[0] > tally.n_lines:
            raise self._error(f"has {tally.n_lines} lines and had {known[0]}: lines are cut off")
        if known[0] == tally.n_lines and known[1] != tally.chain:
            raise self._error(f"has another line {known[0]} than was written")

    def _error(self, what: str) -> SiteLogError:
        return SiteLogError(f"The log {self.path} {what}.")


# Characters of a reason that are shown, up to a reference to another log, which no two have alike.
_SHOWN = 160


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
    days: dict[str, Counter[str]] = defaultdict(Counter)
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    reasons, spent, n_lines, n_bytes = Counter[str](), list[str](), 0, 0

    def seen(line: dict[str, Any]) -> None:
        nonlocal n_lines, n_bytes
        event = line["event"]
        # one that was refused before it was read has no line of its own
        events = [event] if event != "refusal" or "of" in line else ["question", event]
        kind = f"{_printable(line.get('estimator', '?'))}, {_printable(line.get('kind', '?'))}"
        days[line["time"][:10]].update(events)
        kinds[kind].update(events)
        if event == "refusal":
            reasons[_printable(line.get("why", "?"))] += 1
        if event == "answer":
            n_bytes += int(line.get("bytes", 0))
        if "epsilon" in line:
            epsilon, delta = float(line["epsilon"]), float(line["delta"])
            spent[:] = [f"spent in all: epsilon {epsilon:.6g}, delta {delta:g}"]
        n_lines += 1

    try:
        SiteLog(path).read(seen)
        verdict, whole = f"{n_lines} lines, the chain is whole", True
    except SiteLogError as error:
        verdict, whole = f"NOT WHOLE after {n_lines} lines: {_printable(str(error))}", False
    counted = (
        f"{title}  {n['question']} questions, {n['answer']} answered, {n['refusal']} refused"
        for title, n in (*days.items(), *sorted(kinds.items()))
    )
    why = (f"{n} x {reason}" for reason, n in reasons.most_common())
    lines = *counted, *why, f"{n_bytes} bytes sent", *spent, verdict
    return "\n".join(f"  {line}" for line in lines), whole


def _printable(text: Any) -> str:
    text = str(text).split(" in the log of the site")[0][:_SHOWN]
    return text if text.isprintable() else ascii(text)
