"""What clients have spent of their budgets, in memory and in a file that processes share.

A charge is never taken back. The file has a line of JSON for each release, with a hash of itself
and of all lines before it; it has one writer at a time.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import unicodedata
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import FileIO
from typing import Any, NamedTuple
from weakref import WeakSet

from .._validation.containers import check_text
from ._gaussian import epsilon_of

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
    import msvcrt

# Bytes of a line at most, so that a file without line ends is not read whole.
LONGEST = 2**16
# What stands between the content of a line and its chain.
_MARK = b', "chain": '
# Open files with a lock. A forked process closes its copies of them, which would keep the locks.
_open: WeakSet[FileIO] = WeakSet()
if fcntl is not None:
    os.register_at_fork(after_in_child=lambda: list(map(FileIO.close, list(_open))))
# Byte that stands for the whole file on Windows, where a locked byte cannot be read.
_FAR = 2**40


def chain_of(line: bytes, before: str) -> str:
    """Chain of a line, which is written at its end: SHA-256 of the chain before and of the rest."""
    rest = line.rpartition(_MARK)[0]
    return hashlib.sha256(before.encode() + rest).hexdigest()


def chained(entry: dict[str, Any], before: str) -> bytes:
    """Line of a file that follows on a chain, "" for the first."""
    rest = json.dumps(entry)[:-1].encode() + _MARK
    return rest + f'"{chain_of(rest, before)}"}}\n'.encode()


def followed(
    stream: Any, known: Any, after: Callable[..., Any], error: Callable[[str], Exception]
) -> Any:
    """What is known after the whole lines that a stream goes on with.

    ``known`` has the ``chain`` and ``n_lines`` of those before, and ``after(known, line, entry)``
    is the same with one more. ``error(text)`` is raised where a line is not what was written.
    """
    while (line := stream.readline(LONGEST)).endswith(b"\n"):
        try:
            entry = json.loads(line)
            if entry["chain"] != chain_of(line, known.chain):
                raise ValueError("it does not continue the lines before")
            known = after(known, line, entry)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as why:
            text = f"is not what was written from line {known.n_lines + 1} on: {why}"
            raise error(text) from None
    if len(line) == LONGEST:
        raise error(f"has a line {known.n_lines + 1} without an end")
    return known


def append_flushed(file: FileIO, data: bytes, size: int, path: str) -> None:
    """Add lines at the end of a file of a size, on the disk, or take back what was written."""
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(file.fileno(), view) :]
        os.fsync(file)
        if not size:
            sync_folder(path)
    except BaseException:
        file.truncate(size)
        raise


def locked(path: str) -> FileIO:
    """Open a file to read and append, made if it is not there, with its lock until it is closed.

    Each call opens the file anew, so that its lock excludes other threads as well. A file ends its
    own block at once, where an interrupted generator keeps the lock as long as the traceback.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
    file = FileIO(descriptor, "r+")
    _open.add(file)
    _lock(descriptor)
    return file


def _lock(descriptor: int) -> None:
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return
    while True:
        os.lseek(descriptor, _FAR, os.SEEK_SET)
        with suppress(OSError):  # after ten tries, one a second
            return msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)


def sync_folder(path: str) -> None:
    """Flush the entry of a new file in its folder to disk, where folders can be opened."""
    try:
        descriptor = os.open(os.path.dirname(path), os.O_RDONLY)
    except OSError:  # Windows
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Relative excess over a budget that is rounding.
ROUNDING = 1e-9


class PrivacyBudgetError(ValueError):
    """A release would cost more than what is left of the stated budget."""


class PrivacySpent(NamedTuple("_Spent", [("epsilon", float), ("delta", float)])):
    """Privacy cost of releases, by exact composition: (epsilon, delta).

    Attributes
    ----------
    epsilon, delta : float
    account : str
        Which releases are counted: those "of this fit alone", those in a ledger, of which it is the
        path, or those in "the ledgers of the sites", as they state them. Without a ledger nothing
        adds up several fits, copies and estimators.

    Examples
    --------
    >>> from fedpca_sklearn.privacy import PrivacySpent
    >>> PrivacySpent(1.0, 1e-5)
    PrivacySpent(epsilon=1.0, delta=1e-05, account='of this fit alone')
    """

    account = "of this fit alone"

    def counted_in(self, account: str) -> PrivacySpent:
        """The same cost as one of another account.

        Parameters
        ----------
        account : str
            Where the cost is counted, for the text of the result.

        Returns
        -------
        spent : PrivacySpent
            Equal to this one but for ``account``.
        """
        spent = PrivacySpent(*self)
        spent.account = account
        return spent

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, account={self.account!r})"


def account_name(label: Any) -> str:
    """Name of a client's account: 1, "1" and " 1" have the same, in composed Unicode (NFC)."""
    if isinstance(label, str):
        return unicodedata.normalize("NFC", label).strip()
    return str(int(label))


def exceeds(mu2: float, budget: float) -> bool:
    """Whether mu^2 is above a budget by more than rounding."""
    return mu2 > budget * (1 + ROUNDING)


class Account(NamedTuple):
    """What one client has spent: releases, as shares of the budget, and mu^2.

    ``own`` is mu^2 without what a ledger counts of other fits.
    """

    label: Any
    share: float = 0.0
    mu2: float = 0.0
    own: float = 0.0


@dataclass
class Accounts:
    """Accounts of the clients of one estimator, by name, changed in place."""

    of: dict[str, Account] = field(default_factory=dict)
    n_calls: int = 0
    delta: float = 0.0
    where: str = PrivacySpent.account

    def names(self, labels: Iterable[Any]) -> dict[str, Any]:
        """Names of the accounts of some clients; an error if a client is written in two ways."""
        known = {name: account.label for name, account in self.of.items()}
        found: dict[str, Any] = {}
        for label in labels:
            first = next(iter(known.values()), label)
            name = check_text("clients", account_name(label))
            same = known.setdefault(name, label)
            if isinstance(first, str) != isinstance(label, str):
                raise ValueError(
                    "clients must be of one kind over all calls with a mechanism, integers or "
                    f"strings, because each has one account, got {first!r} and {label!r}."
                )
            if same != label:
                raise ValueError(
                    "clients must be written in one way over all calls with a mechanism, because "
                    f"each has one account, got {same!r} and {label!r}."
                )
            found[name] = label
        return found

    def check(self, labels: Iterable[Any], mechanism: Any, mu2: float) -> dict[str, Account]:
        """Accounts after one more release of some clients, or a `PrivacyBudgetError`.

        An infinite cost is not refused: it is shown, and nothing lowers it any more.
        """
        after, share = {}, 1 / mechanism.n_releases
        budget = mechanism.budget()
        for name, label in self.names(labels).items():
            before = self.of.get(name, Account(label))
            total = before.mu2 + mu2
            used_up = before.share + share > 1 + ROUNDING
            too_much = math.isfinite(total) and exceeds(total, budget)
            if not math.isinf(budget) and (used_up or too_much):
                raise PrivacyBudgetError(
                    f"Client {label!r} has no budget left for one more release: {before.share:.0%} "
                    f"of epsilon={mechanism.epsilon:g}, delta={mechanism.delta:g} is spent, and "
                    f"with n_releases={mechanism.n_releases} each takes {share:.0%}."
                )
            after[name] = Account(label, before.share + share, total, before.own + mu2)
        if mechanism.ledger is not None:
            mechanism.ledger._check(after, mechanism, mu2)
        return after

    def charge(self, after: dict[str, Account], mechanism: Any, mu2: float) -> None:
        """Charge one more release of some clients, in a ledger too, or change nothing.

        ``after`` are their accounts as `check` returns them. With a ledger, what an account holds
        is at least what the ledger does.
        """
        self.where = PrivacySpent.account
        if mechanism.ledger is not None:
            totals = mechanism.ledger._charge(after, mechanism, mu2)
            after = {
                name: account._replace(mu2=max(account.mu2, totals[name]))
                for name, account in after.items()
            }
            self.where = str(mechanism.ledger.path)
        self.of.update(after)
        self.n_calls += 1
        self.delta = float(mechanism.delta)

    def numbers(self, labels: Iterable[Any]) -> list[tuple[int, int]]:
        """Numbers of clients and of the last call; no other noise from a seed has both."""
        position = {name: i for i, name in enumerate(self.of)}
        return [(position[account_name(label)], self.n_calls - 1) for label in labels]

    def mu2(self, label: Any = None) -> float:
        """mu^2 that a client has spent; None: the one that has spent most."""
        if label is not None:
            return self.of[account_name(label)].mu2
        return max(account.mu2 for account in self.of.values())

    def add(self, other: Accounts) -> None:
        """Charge what other calls of the same estimator have cost."""
        for name, account in other.of.items():
            before = self.of.get(name, Account(account.label))
            share, own = before.share + account.share, before.own + account.own
            mu2 = max(before.mu2 + account.own, account.mu2)  # a ledger has counted both
            self.of[name] = Account(before.label, share, mu2, own)
        self.n_calls += other.n_calls

    def after_error(self, before: Accounts | None) -> Accounts:
        """Accounts after a call that failed: what it has charged stays charged."""
        if before is None or before is self:
            return self
        before.add(self)
        return before

    def spent(self) -> PrivacySpent:
        """(epsilon, delta) of the client that has spent most."""
        spent = PrivacySpent(epsilon_of(math.sqrt(self.mu2()), self.delta), self.delta)
        return spent.counted_in(self.where)


class _Known(NamedTuple):
    """What was read of a ledger: end position, last line and its chain, and totals."""

    size: int = 0
    last: bytes = b""
    chain: str = ""
    n_lines: int = 0
    totals: dict[str, float] = {}


class PrivacyLedger:
    """Accounts of clients in a file, for estimators, copies, processes and restarts together.

    Given to mechanisms as ``ledger=``. Before a client computes a message, a line is added to the
    file and flushed to the disk; a release that does not fit into the mechanism's own budget,
    together with all lines of its client, is refused with `PrivacyBudgetError`. No line is taken
    back. Clones, deep copies and pickles of a ledger are the same ledger: that of its path.

    Parameters
    ----------
    path : str or path-like
        The file, which the first release makes. On a local disk: network file systems without
        locks cannot keep two writers apart.

    Notes
    -----
    Costs add up in mu^2, exactly (see `AnalyzeGauss`), and the sum over all lines of a client may
    not exceed mu^2 of the epsilon and delta of the mechanism that asks. Clients are told apart by
    the text of their labels, without spaces around it and in composed Unicode (NFC): 1, "1" and
    " 1" are one client. Rows without labels belong to clients 0, 1, ... in every fit.

    A line is JSON: label, mu2, time, mechanism, epsilon, delta, share (of ``n_releases``), release
    ("row_norm" or "center", where that is found privately), id, and chain, the SHA-256 of the line
    and of the chain before it. Every call reads what was added since
    the last one, and a ledger that is new to a process reads the file once. Refused with a
    ValueError: a line that does not continue the chain, and a file that has become shorter than
    this object, or the pickle that it came from, has seen it.

    Where a crash has cut a line off, the ledger refuses every release until that part of a line is
    deleted by hand. That is safe as long as the disk keeps what it has flushed: the noise is drawn
    afterwards.

    Not detected: a file that was shortened, replaced or made anew, unless an object that has read
    more of it asks; and a chain that was computed anew. Whoever may write the file is trusted.

    Examples
    --------
    >>> import os, tempfile
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import AnalyzeGauss, FederatedPCA, PrivacyBudgetError, PrivacyLedger
    >>> X, y = load_digits(return_X_y=True)
    >>> folder = tempfile.TemporaryDirectory()
    >>> ledger = PrivacyLedger(os.path.join(folder.name, "ledger.jsonl"))
    >>> private = AnalyzeGauss(4.0, 1e-5, row_norm=50, center=[5.0] * 64, ledger=ledger)
    >>> pca = FederatedPCA(3, mechanism=private, n_clients=1).fit(X)
    >>> print("epsilon = {:.3f}, delta = {:g}".format(*ledger.spent(1e-5)["0"]))
    epsilon = 4.000, delta = 1e-05
    >>> try:
    ...     pca.fit(X)  # without a ledger, a new account
    ... except PrivacyBudgetError as error:
    ...     print(str(error)[:33])
    Client 0 has no budget left in th
    >>> folder.cleanup()
    """

    def __init__(self, path: str | os.PathLike):
        self.path = os.path.realpath(os.fspath(path))
        self._known = _Known()
        self._unread: tuple[int, bytes] | None = None  # of a pickle: how far the file was

    def __repr__(self) -> str:
        return f"PrivacyLedger({self.path!r})"

    def __deepcopy__(self, memo: Any) -> PrivacyLedger:
        return self

    def __getstate__(self) -> dict[str, Any]:
        seen = (self._known.size, self._known.last) if self._known.size else self._unread
        return {"path": self.path, "seen": seen}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.path, self._unread = state["path"], state["seen"]
        self._known = _Known()

    def spent(self, delta: float) -> dict[str, PrivacySpent]:
        """What each client has spent, by the name of its account.

        Parameters
        ----------
        delta : float
            At which epsilon is stated, between 0 and 1.

        Returns
        -------
        spent : dict of str to PrivacySpent
            (epsilon, delta) of all releases that the file holds of a client.
        """
        if not 0 < delta < 1:
            raise ValueError(f"delta must be between 0 and 1, got {delta!r}.")
        if not (os.path.exists(self.path) or self._known.size or self._unread):
            return {}
        with locked(self.path) as file:
            totals = self._read(file).totals
        return {
            name: PrivacySpent(epsilon_of(math.sqrt(mu2), delta), delta).counted_in(self.path)
            for name, mu2 in totals.items()
        }

    def _total(self, name: str) -> float:
        """mu^2 of all releases that the file holds of a client."""
        with locked(self.path) as file:
            return self._read(file).totals.get(name, 0.0)

    def _check(self, accounts: dict[str, Account], mechanism: Any, mu2: float) -> None:
        """Raise a `PrivacyBudgetError` if one more release of some clients does not fit."""
        with locked(self.path) as file:
            self._refuse(self._read(file), accounts, mechanism, mu2)

    def _charge(
        self, accounts: dict[str, Account], mechanism: Any, mu2: float, owner: Any = None
    ) -> dict[str, float]:
        """Write one more release of some clients to disk; return what each has spent then.

        ``owner`` is a mechanism with the budget that counts, None: that of the mechanism.
        """
        with locked(self.path) as file:
            known = self._read(file)
            self._refuse(known, accounts, owner or mechanism, mu2)
            known, lines = known._replace(totals=dict(known.totals)), []
            for name in accounts:
                for release, cost in mechanism.itemised(mu2):
                    lines.append(_line(known, name, mechanism, cost, release))
                    known = _after(known, lines[-1], name, cost)
            append_flushed(file, b"".join(lines), self._known.size, self.path)
            self._known = known
        return known.totals

    def _refuse(
        self, known: _Known, accounts: dict[str, Account], mechanism: Any, mu2: float
    ) -> None:
        budget = mechanism.budget()
        for name, account in accounts.items():
            before = known.totals.get(name, 0.0)
            if exceeds(before + mu2, budget):
                spent = epsilon_of(math.sqrt(before), mechanism.delta)
                raise PrivacyBudgetError(
                    f"Client {account.label!r} has no budget left in the ledger {self.path}: "
                    f"epsilon={spent:g} is spent at delta={mechanism.delta:g}, and one more "
                    f"release does not fit into epsilon={mechanism.epsilon:g}."
                )

    # ---------------------------------------------------------------- the file

    def _read(self, file: FileIO) -> _Known:
        """Read what was added, check it, and stand at the end of the file."""
        if not os.path.samestat(os.fstat(file.fileno()), os.stat(self.path)):
            raise self._error("was replaced while it was opened")
        known, size = self._known, os.fstat(file.fileno()).st_size
        seen, last = self._unread or (known.size, known.last)
        if size < seen:
            raise self._error(f"has {size} bytes and had {seen} when it was last read")
        with open(file.fileno(), "rb", closefd=False) as stream:
            stream.seek(seen - len(last))
            if stream.read(len(last)) != last:
                raise self._error(f"was changed before byte {seen} since it was last read")
            stream.seek(known.size)
            known = known._replace(totals=dict(known.totals))
            known = followed(stream, known, _with_entry, self._error)
            stream.seek(known.size)
            cut = stream.read(size - known.size)
        if cut:  # by a crash, before anything was released
            raise self._error(
                f"ends in a line that is cut off, of which {cut[:60]!r} is left; delete what is "
                f"beyond byte {known.size}"
            )
        file.seek(known.size)
        self._known, self._unread = known, None
        return known

    def _error(self, what: str) -> ValueError:
        return ValueError(f"The ledger {self.path} {what}: no release is charged to it.")


def _after(known: _Known, line: bytes, name: str, mu2: float) -> _Known:
    """What is known after one more line, which is added to the totals."""
    known.totals[name] = known.totals.get(name, 0.0) + mu2
    size, number = known.size + len(line), known.n_lines + 1
    return _Known(size, line, chain_of(line, known.chain), number, known.totals)


def _line(known: _Known, name: str, mechanism: Any, mu2: float, release: str | None) -> bytes:
    """A line of the file."""
    entry = {
        "label": name,
        "mu2": "inf" if math.isinf(mu2) else mu2,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "mechanism": type(mechanism).__name__,
        "epsilon": "inf" if math.isinf(mechanism.epsilon) else float(mechanism.epsilon),
        "delta": float(mechanism.delta),
        "share": 1 / mechanism.n_releases,
    }
    if release is not None:
        entry["release"] = release
    return chained({**entry, "id": known.n_lines + 1}, known.chain)


def _with_entry(known: _Known, line: bytes, entry: Any) -> _Known:
    """What is known after one more line that continues the chain."""
    name, mu2 = entry["label"], float(entry["mu2"])
    if account_name(name) != name:
        raise ValueError(f"label must be a text without spaces around it, got {name!r}")
    if not mu2 >= 0:
        raise ValueError(f"mu2 must be at least 0, got {mu2!r}")
    return _after(known, line, name, mu2)
