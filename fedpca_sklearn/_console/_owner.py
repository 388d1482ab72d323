"""The owner's rules for what a site answers by files: least rows, number of answers, a log."""

from __future__ import annotations

import argparse
import hashlib
import os

from ..engines._site_policy import MIN_ROWS
from ._texts import count, names_in

# Questions about the same rows: ten fits of a hundred rounds.
MAX_ROUNDS = 1000


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
        default=MAX_ROUNDS,
        help="questions about these rows that are answered in all, the same one again not counted "
        f"(default: {MAX_ROUNDS})",
        metavar="N",
    )
    parser.add_argument(
        "--allow",
        type=names_in,
        help="estimators that may be fitted, by name, with commas (default: all)",
        metavar="NAMES",
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


def make_log(options: argparse.Namespace) -> None:
    """Make the log, which nobody else reads, if there is none."""
    path = log_of(options)
    try:
        if options.log is None:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise ValueError(
            f"the log {path} cannot be written ({error.strerror}): nothing is answered without "
            "one, --log FILE says where it is."
        ) from error
