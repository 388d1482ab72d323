"""The commands, their options, each stated once, and their exit codes."""

from __future__ import annotations

import argparse
import csv
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..engines._site_policy import MIN_ROWS
from ..summary._provenance import VERSION
from . import _commands
from ._commands import show
from ._report import Report, one_line
from ._row_files import Limits

# Questions about the same rows: ten fits of a hundred rounds.
MAX_ROUNDS = 1000
_LIMITS = Limits()


class Option(NamedTuple):
    """What `add_argument` is called with; of those that exclude each other one may be given."""

    names: list[str]
    how: dict[str, Any]
    exclusive: bool = False


def option(
    names: str, value: str | None, text: str | None, *, exclusive: bool = False, **how: Any
) -> Option:
    """An option by its names, how its value is called, and what is said of it."""
    return Option(names.split(), {"metavar": value, "help": text, **how}, exclusive)


def flag(name: str, text: str) -> Option:
    """An option that is given or not."""
    return Option([name], {"action": "store_true", "help": text})


def names_in(text: str) -> list[str]:
    """Names with commas between them; one that has a comma stands in double quotes."""
    return next(csv.reader([text]))


def number(text: str) -> int | float | str:
    """An integer, a share such as 0.9, or the name of a rule, which the estimator knows."""
    if text[:1].isalpha() and text.replace("-", "").isalpha():
        return text
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def _at_least_one(kind: type) -> Callable[[str], Any]:
    def parsed(text: str) -> Any:
        if not (value := kind(text)) >= 1:
            raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
        return value

    parsed.__name__ = kind.__name__  # which argparse names for a text that is none
    return parsed


_count = _at_least_one(int)


def _separator(text: str) -> str:
    text = {"tab": "\t", r"\t": "\t"}.get(text, text)
    if len(text) != 1 or text in '"\r\n':
        raise ValueError("a separator is one character, or the word tab")
    return text


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def _components(text: str) -> Option:
    return option("-n --n-components", "N", text, type=number)


# ---------------------------------------------------------------------- of several commands

_ROWS = option("rows", "ROWS", ".csv, .npy, .parquet or .h5ad", nargs="+")
_FORCE = flag("--force", "replace the output if it exists")
_OUTPUT = (option("-o --output", "FILE", "what is written", required=True), _FORCE)
# How files of rows are read.
_READING = (
    option("--columns", None, "those to take, with commas", type=names_in, exclusive=True),
    option("--without", "COLUMNS", "those to leave out", type=names_in, exclusive=True),
    option(
        "--separator",
        "C",
        "of csv (default: a comma, with --decimal , a semicolon; of tsv a tab)",
        type=_separator,
    ),
    option("--decimal", None, "sign before decimals in csv", choices=[".", ","], default="."),
    option(
        "--max-columns",
        "N",
        f"most columns of a file (default: {_LIMITS.columns:,})",
        type=_count,
        default=_LIMITS.columns,
    ),
    option(
        "--max-ratio",
        "R",
        "most bytes of the rows in double precision for each byte of a file (default: "
        f"{_LIMITS.ratio:,.0f}; 64 MiB are always read)",
        type=_at_least_one(float),
        default=_LIMITS.ratio,
    ),
)
_DROP_MISSING = flag("--drop-missing", "leave out rows with gaps")
_SITE = option("--site", "NAME", "name of the site")
_LEAST_ROWS = f"refuse fewer rows, whose mean tells much of each (default: {MIN_ROWS})"
_MIN_ROWS = option("--min-rows", "N", _LEAST_ROWS, type=_count, default=MIN_ROWS)
# How rows are adjusted before their PCA.
_ADJUSTING = (
    flag("--scale", "columns of one variance"),
    option(
        "--partial-out",
        "COLUMNS",
        "confounders, with commas, whose effects are taken out of the other columns",
        type=names_in,
    ),
)
_MODEL = (
    _components(
        "components, a share of variance, as 0.9, parallel, held-out, or mle (default: all)"
    ),
    *_ADJUSTING,
)
_SUMMARIES = (
    option("files", "FILE", "summaries of sites", nargs="+"),
    flag("--align", "match columns by name: any order; those that a site lacks are left out"),
)

# ---------------------------------------------------------------------- of each command

FIT = (
    _ROWS,
    *_OUTPUT,
    *_READING,
    option("--like", "FILE", "a summary, whose columns are taken", exclusive=True),
    _SITE,
    _components(
        "components that are wanted, or a share of the variance: of many columns the file "
        "holds these directions and some more, of up to 500 columns all (default: all); merge "
        "FILE -n N cuts it"
    ),
    *_ADJUSTING,
    _MIN_ROWS,
    _DROP_MISSING,
)
INSPECT = (option("files", "FILE", None, nargs="+"),)
MERGE = (*_SUMMARIES, *_OUTPUT, *_MODEL)
SCALE = (*_SUMMARIES, *_OUTPUT)
REMOVE = (option("site", "SITE", "name of the site that leaves"), *MERGE)
SHOW = (
    option("file", "FILE", "a summary, of a site or merged"),
    *_MODEL,
    option(
        "--top",
        "N",
        "loadings of a component to show, the largest first (default: 10; --json has all)",
        type=_count,
        default=10,
    ),
    option("--plot", "PICTURE", "draw them: .png, .pdf or .svg"),
    flag("--force", "replace the picture if it exists"),
)
TRANSFORM = (
    option("model", "MODEL", "a summary, of a site or merged"),
    _ROWS,
    *_OUTPUT,
    *_READING,
    *_MODEL,
)
PLAN = (
    option(
        "mechanism", "MECHANISM", "in Python, as \"AnalyzeGauss(1.0, 1e-5, row_norm='private')\""
    ),
    option("--rows", "N", "of a site", type=_count, required=True),
    option("--columns", "N", None, type=_count, required=True),
    option("-n --components", "N", "default: 2", type=_count, default=2),
    option(
        "--spectrum",
        "NUMBERS",
        "variances that are believed, with commas (default: 1, 1/4, 1/9, ...)",
        type=_numbers,
    ),
)
ASK = (
    option("folder", "FOLDER", "a new folder for questions and answers"),
    option("estimator", "ESTIMATOR", 'in Python, as "FederatedPowerPCA(n_components=5)"'),
    option("--sites", "NAMES", "their names, with commas", type=names_in, required=True),
    option("--min-sites", None, "with fewer there is no fit (default: 2)", type=_count, default=2),
    option(
        "--secure",
        "N",
        "by secure sums of at least N sites, with four files of a site for the first sum and "
        "three for each other one",
        type=_count,
    ),
)
NEXT = (
    option("folder", "FOLDER", "that of ask, with the answers"),
    option("-o --output", None, "the model (default: FOLDER/model.subspace)"),
    _FORCE,
    option(
        "--without",
        "NAMES",
        "sites whose answers are awaited no longer, with commas",
        type=names_in,
        default=(),
    ),
)
ANSWER = (
    option("question", "QUESTION", None),
    option("rows", "ROWS", "the same for all questions", nargs="+"),
    *_OUTPUT,
    *_READING,
    _SITE,
    _DROP_MISSING,
    _MIN_ROWS,
    option(
        "--max-rounds",
        "N",
        "questions about these rows that are answered in all, the same one again not counted "
        f"(default: {MAX_ROUNDS})",
        type=_count,
        default=MAX_ROUNDS,
    ),
    option(
        "--allow",
        "NAMES",
        "estimators that may be fitted, by name, with commas (default: all)",
        type=names_in,
    ),
    option(
        "--log",
        "FILE",
        "file of all questions and answers, for fedpca audit (default: one for these rows in "
        "$XDG_STATE_HOME/fedpca, or ~/.local/state/fedpca)",
    ),
    option(
        "--state", "FOLDER", "folder of what this site keeps of a study (default: beside the log)"
    ),
    option("--ledger", "FILE", "file of what noise has cost these rows"),
    option("--estimator", "ESTIMATOR", "the only one that is answered for"),
    option("--mechanism", "MECHANISM", "the owner's, whose budget counts, with a ledger"),
    option(
        "--secure",
        "N",
        "refuse a question unless it is of secure sums over at least N sites",
        type=_count,
    ),
)
AUDIT = (option("log", "LOG", None),)


_ABOUT = """PCA of rows at several sites, by files. A site: fit ROWS -o FILE. The coordinator: merge
FILE... -o FILE, remove a site, scale for means and deviations. More digits, missing entries and
any other estimator take rounds: the coordinator asks, sites answer, next goes on. Anybody:
inspect, show the components, transform MODEL ROWS -o SCORES, and plan a budget of privacy. Exit
codes: 0, 1 after an error or for a log that is not whole, 2 for a command that is none."""
# What is run, the options that it takes, and what is said of it.
_COMMANDS: dict[str, tuple[Callable[[Any], Report], tuple[Option, ...], str]] = {
    "fit": (_commands.fit, FIT, "summarise the rows of a site"),
    "inspect": (_commands.inspect, INSPECT, "tell what is in summaries"),
    "merge": (_commands.merge, MERGE, "merge the summaries of sites"),
    "scale": (_commands.scale, SCALE, "means and deviations of columns, as csv"),
    "remove": (_commands.remove, REMOVE, "merge again without a site"),
    "ask": (_commands.ask, ASK, "begin a fit of any estimator at sites, by files"),
    "answer": (_commands.answer, ANSWER, "answer a question of ask and next"),
    "next": (_commands.go_on, NEXT, "go on with a fit by files, as far as answers go"),
    "show": (show, SHOW, "loadings, variances and error of components"),
    "transform": (_commands.transform, TRANSFORM, "scores of rows, in their order"),
    "plan": (_commands.plan, PLAN, "tell what a budget of privacy gives, without a row"),
    "audit": (_commands.audit_log, AUDIT, "tell what a site was asked and answered"),
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
