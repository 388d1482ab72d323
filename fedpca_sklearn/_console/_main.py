"""The commands, and their exit codes."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from .._version import VERSION
from . import _commands, _study
from . import _options as of
from ._report import Report, one_line
from ._show import show

_ABOUT = """PCA of rows at several sites, by files. A site: fit ROWS -o FILE. The coordinator: merge
FILE... -o FILE, remove a site, scale for means and deviations. More digits, missing entries and
any other estimator take rounds: the coordinator asks, sites answer, next goes on. Anybody:
inspect, show the components, transform MODEL ROWS -o SCORES, and plan a budget of privacy. Exit
codes: 0, 1 after an error or for a log that is not whole, 2 for a command that is none."""
# What is run, the options that it takes, and what is said of it.
_COMMANDS: dict[str, tuple[Callable[[Any], Report], tuple[of.Option, ...], str]] = {
    "fit": (_commands.fit, of.FIT, "summarise the rows of a site"),
    "inspect": (_commands.inspect, of.INSPECT, "tell what is in summaries"),
    "merge": (_commands.merge, of.MERGE, "merge the summaries of sites"),
    "scale": (_commands.scale, of.SCALE, "means and deviations of columns, as csv"),
    "remove": (_commands.remove, of.REMOVE, "merge again without a site"),
    "ask": (_study.ask, of.ASK, "begin a fit of any estimator at sites, by files"),
    "answer": (_study.answer, of.ANSWER, "answer a question of ask and next"),
    "next": (_study.go_on, of.NEXT, "go on with a fit by files, as far as answers go"),
    "show": (show, of.SHOW, "loadings, variances and error of components"),
    "transform": (_commands.transform, of.TRANSFORM, "scores of rows, in their order"),
    "plan": (_commands.plan, of.PLAN, "tell what a budget of privacy gives, without a row"),
    "audit": (_commands.audit_log, of.AUDIT, "tell what a site was asked and answered"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    arguments : sequence of str, default=None
        None: those of the command line.

    Returns
    -------
    code : int
        0, or 1 after an error, which is printed in one line, and where a log is not what was
        written. A command line that cannot be read exits with 2.
    """
    options = _parser().parse_args(arguments)
    try:
        with warnings.catch_warnings(record=True) as caught:
            report = options.command(options)
        report.warnings += dict.fromkeys(str(warning.message) for warning in caught)
        return report.show(options.json)
    except (OSError, ValueError, ImportError, MemoryError) as error:
        print(f"error: {one_line(error) or type(error).__name__}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("fedpca", description=_ABOUT)
    parser.add_argument("--version", action="version", version=VERSION)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (run, options, text) in _COMMANDS.items():
        command = commands.add_parser(name, help=text)
        command.set_defaults(command=run)
        some = any(option.exclusive for option in options)
        columns = command.add_mutually_exclusive_group() if some else command
        for option in options:
            (columns if option.exclusive else command).add_argument(*option.names, **option.how)
        command.add_argument("--json", action="store_true", help="print JSON")
    return parser
