"""The owner's rules for a site: what is answered, how often, at what cost, and what is noted.

Its log has every question and what became of it, which an auditor can check.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from io import BytesIO, FileIO
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone

from .._validation.checks import check_integer
from ..privacy import Mechanism, PrivacyBudgetError, PrivacyLedger
from ..privacy import _ledger as ledgers
from ..privacy._gaussian import epsilon_of
from ..privacy._mechanism import seeds_of
from ._messages import Array, Context, digest_of_arrays, shown, sizes_of, write_bytes

# Rows without which nothing is answered, where the owner names no number.
MIN_ROWS = 10


class RefusedError(ValueError):
    """A question that a site does not answer; the text is sent, and tells nothing about rows."""


class SitePolicy:
    """Rules of the owner of a site, which no server changes: what is not allowed is refused.

    Given to `client_app`. What a site has answered and spent is in two files of its own, so that a
    site that is started anew, and a server that starts run after run, begin where they were.

    Parameters
    ----------
    estimators : class, collection of classes, or None, default=None
        Estimators that may be fitted, exactly these and no subclasses. None: all.
    min_rows : int, default=10
        With fewer rows the site answers nothing: a summary of one or two rows gives them away.
    min_rows_of_pattern : int or None, default=None
        Rows that must have each pattern of missing entries that occurs, the one without any
        included, for an answer about rows that a model of the server fills in: those of
        ``missing=ConditionalFill()`` and of `FederatedSubspaceTracker`, whose outliers are missing
        entries, too. Two models tell the sums over the rows of a pattern. If there are too few, the
        question is refused: what is left out of one answer but not of another is told by their
        difference. None: no rule, as patterns of entries that are missing at random are mostly
        those of one row.
    max_rounds : int or None, default=None
        Questions in all, those that are refused included, in whatever runs and for whatever
        estimators: a round of `FederatedPowerPCA` is a question, and so is each of the two others
        of a fit. A secure sum is three, and the first of a run five. Needs ``log``.
    max_queries_per_day : int or None, default=None
        Questions of a day (UTC), those that are refused included. A clock that is set back begins
        no new day: until the latest day of the log is over, all count for it. Needs ``log``.
    mechanism : Mechanism, sequence of Mechanism, or None, default=None
        The owner's budget: the estimator must have a mechanism of the class and the ``trust`` of
        one of these, and all releases together cost at most its ``epsilon`` and ``delta``, whatever
        the estimator's says. Needs ``ledger``.
    ledger : PrivacyLedger, str, path-like or None, default=None
        Account of this site alone, in place of the ledger of the estimator's mechanism. A line is
        on the disk before noise is drawn.
    log : str, path-like or None, default=None
        File of all questions and answers, for ``fedpca audit LOG``. A question is
        noted before the site works, an answer before it is sent; where that fails, nothing is
        answered.

    See Also
    --------
    client_app : The app of a site.

    Notes
    -----
    A line of the log is JSON: its number and time, event ("question", "answer" or "refusal"), run,
    kind of question, estimator; shapes, bytes and SHA-256 of the arrays that came and went, with
    secure sums of the masked numbers; "of", the line of the question; why it was refused; with a
    mechanism mu2, epsilon and delta of all releases so far; and "chain", the SHA-256 of the line
    and of the chain before. A file with ``.head`` at the end of its name has the number of lines. A
    log that is not whole, a log that has become shorter, and a ledger that holds less than the log
    says was spent refuse everything. Whoever may write all these files is trusted.

    Several processes of one site may share the files. They lie on a local disk. A process reads the
    whole log at its first question, and what was added at the next ones.

    Examples
    --------
    >>> from fedpca_sklearn import AnalyzeGauss, FederatedPCA
    >>> from fedpca_sklearn.engines.flower import SitePolicy
    >>> SitePolicy(estimators=FederatedPCA, min_rows=100).min_rows
    100
    >>> owner = AnalyzeGauss(epsilon=1.0, delta=1e-5, row_norm=50)
    >>> policy = SitePolicy(
    ...     mechanism=owner, ledger="site.ledger", log="site.log", max_queries_per_day=20
    ... )
    """

    def __init__(
        self,
        *,
        estimators: type | Collection[type] | None = None,
        min_rows: int = MIN_ROWS,
        min_rows_of_pattern: int | None = None,
        max_rounds: int | None = None,
        max_queries_per_day: int | None = None,
        mechanism: Mechanism | Sequence[Mechanism] | None = None,
        ledger: PrivacyLedger | str | os.PathLike | None = None,
        log: str | os.PathLike | None = None,
    ):
        self.estimators = _several("estimators", estimators, type, "class")
        self.min_rows = check_integer("min_rows", min_rows)
        self.min_rows_of_pattern = min_rows_of_pattern
        self.max_rounds, self.max_queries_per_day = max_rounds, max_queries_per_day
        for name in ("min_rows_of_pattern", "max_rounds", "max_queries_per_day"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name))
        self.mechanism = _several("mechanism", mechanism, Mechanism, "mechanism")
        for owner in self.mechanism or ():
            owner.validate()
        self.ledger = PrivacyLedger(ledger) if isinstance(ledger, str | os.PathLike) else ledger
        self.log = None if log is None else SiteLog(log)
        needs = {"max_rounds": "log", "max_queries_per_day": "log", "mechanism": "ledger"}
        for name, needed in needs.items():
            if getattr(self, name) is not None and getattr(self, needed) is None:
                raise ValueError(f"{name} needs a {needed}, which is kept between runs, got None.")

    def owner_of(self, mechanism: Mechanism | None) -> Mechanism | None:
        """The owner's mechanism that an estimator's has to be like; None: there are no rules.

        Parameters
        ----------
        mechanism : Mechanism or None
            That of the estimator.

        Returns
        -------
        owner : Mechanism or None
            With the budget that counts.

        Raises
        ------
        RefusedError
            If the owner asks for another one.
        """
        if self.mechanism is None:
            return None
        asked = None if mechanism is None else (type(mechanism), mechanism.trust)
        for owner in self.mechanism:
            if (type(owner), owner.trust) == asked:
                return owner
        names = " or ".join(f"{type(o).__name__} with trust={o.trust!r}" for o in self.mechanism)
        got = "none" if mechanism is None else f"{type(mechanism).__name__}, {mechanism.trust!r}"
        raise RefusedError(f"the mechanism must be {names}, got {got}")

    def check_estimator(self, estimator: Any) -> None:
        """Raise a RefusedError if the owner does not allow an estimator.

        Parameters
        ----------
        estimator : object
            As the app was given it.
        """
        allowed = self.estimators
        if allowed is not None and type(estimator) not in allowed:
            names = ", ".join(kind.__name__ for kind in allowed)
            raise RefusedError(f"the estimator must be {names}, got {type(estimator).__name__}")
        self.owner_of(getattr(estimator, "mechanism", None))

    def _check_counts(self, tally: Tally) -> None:
        """Raise if one more question would be one too many."""
        most = self.max_queries_per_day
        if most is not None and tally.asked_today >= most:
            raise RefusedError(f"more than max_queries_per_day={most} questions today")
        if self.max_rounds is not None and tally.rounds >= self.max_rounds:
            raise RefusedError(f"more than max_rounds={self.max_rounds} rounds, in all runs")


def _several(name: str, value: Any, kind: type, what: str) -> tuple | None:
    """One or more objects of a kind as a tuple, or None."""
    if value is None:
        return None
    found = (value,) if isinstance(value, kind) else tuple(value)
    if not found or not all(isinstance(one, kind) for one in found):
        raise ValueError(f"{name} must be a {what} or several, got {value!r}.")
    return found


# Name of the one account of a ledger: a site that calls itself something else has spent the same.
ACCOUNT = "this site"
# Record of the site's own state: what was released in a run, after a digest of what it depends on.
_RELEASED = "fedpca_sklearn.released"


@dataclass
class Site:
    """Who is asked a question, what its log has of it, and what it has released.

    Attributes
    ----------
    name : str
        Name of the site.
    context : Context
        Of the site, whose state lasts for a run.
    policy : SitePolicy
    what : dict
        What each line of the log has about the question.
    privacy : dict
        mu2, epsilon and delta of all releases of the site so far; empty without a mechanism.
    """

    name: str
    context: Context
    policy: SitePolicy
    what: dict[str, Any]
    privacy: dict[str, float] = field(default_factory=dict)

    def note(self, event: str, arrays: Mapping[str, Array] | None = None, **more: Any) -> None:
        """Note a question before anything is done about it, an answer before it is sent.

        Refused if there is a log that cannot be gone on with, or if it is one question too many.
        """
        if (log := self.policy.log) is None:
            return
        content = {"kind": shown(self.what["kind"])} | ({} if arrays is None else sizes_of(arrays))
        check = self.policy._check_counts if event == "question" else None
        try:
            line = log.write({**self.what, "event": event, **content, **more}, check)
        except SiteLogError as error:
            raise RefusedError("the log of the site is not what was written") from error
        self.what.setdefault("of", line)

    def release(
        self, kind: str, mechanism: Mechanism, mu2: float, make: Callable, *arguments: np.ndarray
    ) -> np.ndarray:
        """Charge and compute an array with noise; the last one of a kind comes again for nothing.

        Parameters
        ----------
        kind : str
            What is released.
        mechanism : Mechanism
            With a ledger.
        mu2 : float
            What it costs.
        make : callable
            ``make(rng)`` computes it, with noise of a generator that nobody else can know.
        *arguments : ndarray
            What it depends on besides the rows. In one run the same ones have the same release.

        Returns
        -------
        released : ndarray
            As ``make`` returned it, for this or for an earlier question of the run.

        Raises
        ------
        RefusedError
            If it does not fit into the owner's budget.
        """
        state = self.context.state
        released = dict(state.get(_RELEASED, {}))
        stamp = digest_of_arrays(arguments, str(self.context.run_id).encode()).encode()
        if not released.get(kind, b"").startswith(stamp):
            self._charge(mechanism, mu2)
            np.save(made := BytesIO(), make(np.random.default_rng(seeds_of(None))))
            released[kind] = stamp + made.getvalue()
            state[_RELEASED] = released
        return np.load(BytesIO(released[kind][len(stamp) :]), allow_pickle=False)

    def state_spent(self, mechanism: Mechanism) -> None:
        """Take from the ledger what all releases have cost so far."""
        mu2, delta = mechanism.ledger._total(ACCOUNT), float(mechanism.delta)
        epsilon = epsilon_of(math.sqrt(mu2), delta)
        self.privacy = {"mu2": mu2, "epsilon": epsilon, "delta": delta}

    def _charge(self, mechanism: Mechanism, mu2: float) -> None:
        """Write a release to the ledger, on the disk when this returns."""
        owner, ledger = self.policy.owner_of(mechanism), mechanism.ledger
        spent = 0.0 if self.policy.log is None else self.policy.log.tally.mu2
        if spent and ledger._total(ACCOUNT) < spent * (1 - ledgers.ROUNDING):
            raise RefusedError("the ledger of the site holds less than its log says was spent")
        try:
            ledger._charge({ACCOUNT: ledgers.Account(ACCOUNT)}, mechanism, mu2, owner)
        except PrivacyBudgetError as error:
            budget = owner or mechanism
            raise RefusedError(
                "no budget is left for one more release: the owner's is "
                f"epsilon={budget.epsilon:g}, delta={budget.delta:g}"
            ) from error


def with_ledger(estimator: Any, policy: SitePolicy, secure: Any = None) -> Any:
    """The estimator as a site runs it: its mechanism has the ledger of the site.

    Raises
    ------
    ValueError
        If a mechanism has no ledger, or leaves its noise to others.
    """
    mechanism = getattr(estimator, "mechanism", None)
    if mechanism is None:
        return estimator
    check_trust(mechanism, secure)
    ledger = mechanism.ledger if policy.ledger is None else policy.ledger
    if ledger is None:
        raise ValueError(
            "mechanism needs a ledger at a site, which remembers what it has spent: "
            f"SitePolicy(ledger=...) or the mechanism's own, got {mechanism!r}."
        )
    return clone(estimator).set_params(mechanism=clone(mechanism).set_params(ledger=ledger))


def check_trust(mechanism: Mechanism, secure: Any = None) -> None:
    """Raise if a site's share of the noise would be all that protects its message.

    ``secure`` is what secure sums agree on, None without them.
    """
    if secure is None and mechanism.trust == "sum":
        raise ValueError(
            "trust='sum' over a network needs secure sums: here the server sees the message of "
            f"each site, which has a part of the noise only, got {mechanism!r}."
        )
    if secure is None:
        return
    mechanism.refuse_searches("secure sums have one norm and centre for all sites")
    if mechanism.noise is None:
        raise ValueError(
            "a mechanism over secure sums needs noise that survives integers: "
            f"noise=DiscreteGaussian(), got {mechanism!r}."
        )
    if mechanism.trust == "sum" and secure.restarts:
        raise ValueError(
            "trust='sum' needs SecureAggregation(restarts=0): two sums with and without a site "
            f"tell its message with its part of the noise only, got restarts={secure.restarts}."
        )


# -------------------------------------------------------------------- the log of a site

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
        day = entry["time"][:10]
        if date.fromisoformat(day).isoformat() != day:
            raise ValueError(f"it has no date, got {day!r}")
        asked = "of" not in entry  # a question, or one that was refused before it was read
        size, n_lines = self.size + len(line), self.n_lines + 1
        counts = self.asked_on(day) + asked, self.rounds + asked
        mu2 = max(self.mu2, float(entry.get("mu2", 0.0)))
        return Tally(size, entry["chain"], n_lines, max(day, self.day), *counts, mu2)

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
        self.tally = Tally()

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
        with ledgers.locked(self.path) as file:
            tally = self._whole(file)
            if check is not None:
                check(tally._replace(asked_today=tally.asked_on(now[:10])))
            entry = {"line": tally.n_lines + 1, "time": now, **entry}
            line = ledgers.chained(entry, tally.chain)
            if len(line) > ledgers.LONGEST:
                raise SiteLogError(f"a line of {len(line)} bytes is too long for a log")
            ledgers.append_flushed(file, line, tally.size, self.path)
            self.tally = tally.after(line, json.loads(line))
            self._write_head()
        return entry["line"]

    def read(self, after: Callable[..., Tally] = Tally.after) -> Tally:
        """Check the whole log, a line at a time; nothing is changed.

        Parameters
        ----------
        after : callable
            As `Tally.after`, of each line that continues the chain.

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
            tally = self._read(file, Tally(), after)
            rest = os.fstat(file.fileno()).st_size - tally.size
        if rest:
            raise self._error(f"ends in {rest} bytes of a line that is cut off")
        self._check_head(tally)
        return tally

    def _whole(self, file: FileIO) -> Tally:
        """What the log holds, checked, without what a crash left of a line that was not written."""
        if not (os.fstat(file.fileno()).st_size or os.path.exists(self._head)):
            self._write_head()
        with open(file.fileno(), "rb", closefd=False) as stream:
            tally = self._read(stream, self.tally)
        self._check_head(tally)
        file.truncate(tally.size)  # no answer went out on what is not whole
        file.seek(0, os.SEEK_END)
        self.tally = tally
        return tally

    def _read(self, stream: Any, tally: Tally, after: Callable[..., Tally] = Tally.after) -> Tally:
        """Go on with the lines after a tally."""
        if os.fstat(stream.fileno()).st_size < tally.size:
            raise self._error(f"is shorter than the {tally.size} bytes that it had")
        stream.seek(tally.size)
        return ledgers.followed(stream, tally, after, self._error)

    # ---------------------------------------------------------------- the head

    @property
    def _head(self) -> str:
        return self.path + _HEAD

    def _write_head(self) -> None:
        write_bytes(self._head, f"{self.tally.n_lines} {self.tally.chain}\n".encode())
        ledgers.sync_folder(self._head)

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
    reasons, spent, n_bytes, tally = Counter[str](), list[str](), 0, Tally()

    def after(before: Tally, written: bytes, line: dict[str, Any]) -> Tally:
        nonlocal n_bytes, tally
        now, event = before.after(written, line), line["event"]
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
        tally = now
        return now

    try:
        SiteLog(path).read(after)
        verdict, whole = f"{tally.n_lines} lines, the chain is whole", True
    except SiteLogError as error:
        verdict, whole = f"NOT WHOLE after {tally.n_lines} lines: {_printable(str(error))}", False
    counted = (
        f"{title}  {n['question']} questions, {n['answer']} answered, {n['refusal']} refused"
        for title, n in (*days.items(), *sorted(kinds.items()))
    )
    why = (f"{n} x {reason}" for reason, n in reasons.most_common())
    lines = *counted, *why, f"{n_bytes} bytes sent", *spent, verdict
    return "\n".join(f"  {line}" for line in lines), whole


def _printable(text: Any) -> str:
    return shown(str(text).split(" in the log of the site")[0], _SHOWN)
