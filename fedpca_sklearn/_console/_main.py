"""The parser of the command line, and its exit codes."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence

from .._version import VERSION
from . import _audit, _fit, _inspect, _merge, _plan, _remove, _scale, _show, _study, _transform
from ._texts import one_line

_ABOUT = """PCA of rows at several sites, by files. A site: fit ROWS -o FILE. The coordinator: merge
FILE... -o FILE, remove a site, scale for means and deviations. More digits, missing entries and
any other estimator take rounds: the coordinator asks, sites answer, next goes on. Anybody:
inspect, show the components, transform MODEL ROWS -o SCORES, and plan a budget of privacy. Exit
codes: 0, 1 after an error or for a log that is not whole, 2 for a command that is none."""
_COMMANDS = (
    *(module.add for module in (_fit, _inspect, _merge, _scale, _remove)),
    *(_study.add_ask, _study.add_answer, _study.add_next),
    *(module.add for module in (_show, _transform, _plan, _audit)),
)


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
    for add in _COMMANDS:
        add(commands)
    for added in commands.choices.values():
        added.add_argument("--json", action="store_true", help="print JSON")
    return parser
