"""The owner's rules for what a site answers by files: least rows, number of answers, a log."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .._validation.files import written
from .._version import VERSION
from ..engines._site_log import SiteLogError
from ..engines._site_policy import MIN_ROWS, Exchange, RefusedError, SitePolicy
from ._rows import Rows
from ._texts import count, names_in, printable

# Answers about the same rows: three times the rounds that a fit by a tolerance has at most.
_MAX_ROUNDS = 60
# What is answered by files: products with directions, summaries of filled rows, means of columns.
KINDS = ("products", "filled", "means")
_PIECE = 2**20


def add_min_rows(parser: argparse.ArgumentParser) -> None:
    """Option of commands that tell of rows."""
    parser.add_argument(
        "--min-rows",
        type=count,
        default=MIN_ROWS,
        help=f"refuse fewer rows, whose mean tells much of each (default: {MIN_ROWS})",
        metavar="N",
    )


def add_rules(parser: argparse.ArgumentParser) -> None:
    """Options of commands that answer questions of a server."""
    parser.add_argument(
        "--max-rounds",
        type=count,
        help="questions about these rows that are answered in all, the same one again not counted "
        f"(default: {_MAX_ROUNDS})",
        metavar="N",
    )
    parser.add_argument(
        "--allow",
        type=names_in,
        help=f"kinds of questions that are answered, with commas (default: {','.join(KINDS)})",
        metavar="KINDS",
    )
    parser.add_argument(
        "--log",
        help="file of all questions and answers, for fedpca audit (default: one for these rows in "
        "$XDG_STATE_HOME/fedpca, or ~/.local/state/fedpca)",
        metavar="FILE",
    )


def log_of(options: argparse.Namespace) -> str:
    """Path of the log: that of ``--log``, or one for the files of rows."""
    if options.log is not None:
        return options.log
    home = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(home):  # as the specification of these folders has it
        home = os.path.expanduser(os.path.join("~", ".local", "state"))
        if not os.path.isabs(home):
            raise ValueError(
                "nobody knows where the home folder is: --log FILE says where the log is."
            )
    places = "\n".join(os.path.realpath(path) for path in options.rows)
    digest = hashlib.sha256(os.fsencode(places)).hexdigest()[:16]
    return os.path.join(home, "fedpca", f"{digest}.log")


def noted_in(options: argparse.Namespace) -> str:
    """Line of a report that says where the log is."""
    return f"  noted in {printable(log_of(options))}"


def enough(rows: Rows, options: argparse.Namespace) -> Iterator[Any]:
    """Batches of rows, the first of which is there once they are known to be enough."""
    batches, first, n = iter(rows), [], 0
    for batch in batches:
        first.append(batch)
        n += batch.shape[0]
        if n >= options.min_rows:
            break
    if 0 < n < options.min_rows:
        paths = ", ".join(map(printable, options.rows))
        raise RefusedError(
            f"{paths}: {n} row{'s' * (n != 1)}, and --min-rows is {options.min_rows}, as an answer "
            "about few rows tells much of each."
        )
    while first:
        yield first.pop(0)
    yield from batches


def check_rules(options: argparse.Namespace) -> None:
    """Raise for rules of `add_rules` where no question is answered."""
    given = [name for name in ("max_rounds", "allow", "log") if getattr(options, name) is not None]
    if given and not options.fill:
        raise ValueError(f"--{given[0].replace('_', '-')} is of questions, here of --fill.")


class Answering:
    """One question, which is noted before anything is done about it, and what becomes of it."""

    def __init__(self, exchange: Exchange, options: argparse.Namespace):
        self._exchange, self._options = exchange, options

    def send(self, answer: Any) -> None:
        """Note an answer, and write it."""
        data = answer.to_bytes()
        sent = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        with _errors_of_log(self._options):
            self._exchange.answer(sent)
        with written(self._options.output) as path, open(path, "wb") as file:
            file.write(data)


@contextmanager
def asked(options: argparse.Namespace, kind: str, question: bytes) -> Iterator[Answering]:
    """Note and count a question, or refuse it by the owner's rules; what fails is noted, too.

    Parameters
    ----------
    options : Namespace
        Those of `add_rules`, `add_min_rows` and of rows.
    kind : str
        One of `KINDS`.
    question : bytes
        What was asked, of any length.
    """
    allowed, most = options.allow or KINDS, options.max_rounds or _MAX_ROUNDS
    unknown = [name for name in allowed if name not in KINDS]
    if unknown:
        raise ValueError(f"--allow must name some of {', '.join(KINDS)}, got {unknown[0]!r}.")
    again = _digest(options, kind, question)
    with _errors_of_log(options):
        make_log(options)
        policy = SitePolicy(min_rows=options.min_rows, max_rounds=most, log=log_of(options))
        exchange = Exchange(policy, kind, "files", "fedpca")
        exchange.what["asked"] = again
        digest = hashlib.sha256(question).hexdigest()
        try:
            exchange.question({"bytes": len(question), "sha256": digest})
        except RefusedError as error:
            if isinstance(error.__cause__, SiteLogError):
                raise error.__cause__ from None
            raise RefusedError(
                f"{error}: --max-rounds allows more, fedpca audit {log_of(options)} tells which"
            ) from None
    try:
        if kind not in allowed:
            names = " or ".join(allowed)
            raise RefusedError(f"--allow names questions of {names}, this one is of {kind}")
        yield Answering(exchange, options)
    except Exception as error:
        exchange.refusal(str(error) if isinstance(error, RefusedError) else type(error).__name__)
        raise


def make_log(options: argparse.Namespace) -> None:
    """Make the log, which nobody else reads, if there is none."""
    path = log_of(options)
    if options.log is None:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


@contextmanager
def _errors_of_log(options: argparse.Namespace) -> Iterator[None]:
    """Errors of the system inside name the log, and the option."""
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"the log {log_of(options)} cannot be written ({error.strerror}): nothing is answered "
            "without one, --log FILE says where it is."
        ) from error


def _digest(options: argparse.Namespace, kind: str, question: bytes) -> str:
    """What tells a question about some rows from every other one: the same has the same answer."""
    how = ("columns", "drop_missing", "n_components", "separator", "without")
    chosen = {name: getattr(options, name, None) for name in how}
    parts = hashlib.sha256(json.dumps([VERSION, kind, chosen]).encode())
    parts.update(hashlib.sha256(question).digest())
    for path in options.rows:
        parts.update(_hash_of_file(path))
    return parts.hexdigest()


def _hash_of_file(path: str) -> bytes:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            found.update(piece)
    return found.digest()
