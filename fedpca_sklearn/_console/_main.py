"""The commands, their options, each stated once, and their exit codes."""

from __future__ import annotations

import argparse
import csv
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from ..engines._site_policy import MIN_ROWS
from ..summary._provenance import VERSION
from . import _commands
from ._row_files import MAX_COLUMNS, MAX_RATIO
from ._summaries import Report, one_line

# Questions about the same rows: ten fits of a hundred rounds.
MAX_ROUNDS = 1000


Option = tuple[list[str], dict[str, Any]]


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


def _separator(text: str) -> str:
    text = {"tab": "\t", r"\t": "\t"}.get(text, text)
    if len(text) != 1 or text in '"\r\n':
        raise ValueError("a separator is one character, or the word tab")
    return text


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


# How a value is read, by what it is called; others are texts.
_KINDS: dict[str | None, Callable[[str], Any]] = {
    "N": _at_least_one(int),
    "RATIO": _at_least_one(float),
    "SIGN": _separator,
    "NAME,...": names_in,
    "COLUMN,...": names_in,
    "NUMBERS": _numbers,
}


def option(names: str, value: str | None, text: str | None, **how: Any) -> Option:
    """An option by its names, what its value is called, and what is said of it."""
    if "default" in how:
        text = f"{text} (default: %(default)s)"
    return names.split(), {"metavar": value, "type": _KINDS.get(value), "help": text, **how}


def flag(name: str, text: str) -> Option:
    """An option that is given or not."""
    return [name], {"action": "store_true", "help": text}


def _components(text: str) -> Option:
    return option("-n --n-components", "N", f"{text} (default: all)", type=number)


# ---------------------------------------------------------------------- of several commands

_ROWS = option("rows", "ROWS", ".csv, .npy, .parquet or .h5ad", nargs="+")
_FORCE = flag("--force", "replace the output if it exists")
_OUTPUT = (option("-o --output", "FILE", "what is written", required=True), _FORCE)
# Of which one may be given.
_COLUMNS = [
    option("--columns", "COLUMN,...", "those to take"),
    option("--without", "COLUMN,...", "those to leave out"),
]
# How files of rows are read.
_READING = (
    option("--separator", "SIGN", "default: a comma, of tsv a tab, with --decimal , a semicolon"),
    option("--decimal", None, "sign before decimals in csv", choices=[".", ","], default="."),
    option("--max-columns", "N", "most columns of a file", default=MAX_COLUMNS),
    option("--max-ratio", "RATIO", "most bytes of all rows over the file's", default=MAX_RATIO),
)
_DROP_MISSING = flag("--drop-missing", "leave out rows with gaps")
_SITE = option("--site", "NAME", "name of the site")
_MIN_ROWS = option(
    "--min-rows", "N", "refuse fewer rows, whose mean tells much of each", default=MIN_ROWS
)
# How rows are adjusted before their PCA.
_ADJUSTING = (
    flag("--scale", "columns of one variance"),
    option("--partial-out", "COLUMN,...", "confounders, whose effects are taken out of the others"),
)
_MODEL = (_components("number, share of variance as 0.9, parallel, held-out, or mle"), *_ADJUSTING)
_SUMMARIES = (
    option("files", "FILE", "summaries of sites", nargs="+"),
    flag("--align", "match columns by name: any order; those that a site lacks are left out"),
)
_MERGED = option("model", "MODEL", "a summary, of a site or merged")

# ---------------------------------------------------------------------- of each command

FIT = (
    _ROWS,
    *_OUTPUT,
    [*_COLUMNS, option("--like", "FILE", "a summary, whose columns are taken")],
    *_READING,
    _SITE,
    _components("number or share of variance: the file has more, of up to 500 columns all"),
    *_ADJUSTING,
    _MIN_ROWS,
    _DROP_MISSING,
)
INSPECT = (option("files", "FILE", None, nargs="+"),)
MERGE = (*_SUMMARIES, *_OUTPUT, *_MODEL)
REMOVE = (option("site", "SITE", "name of the site that leaves"), *MERGE)
SHOW = (
    _MERGED,
    *_MODEL,
    option("--top", "N", "largest loadings of a component to show; --json has all", default=10),
    option("--plot", "PICTURE", "draw them: .png, .pdf or .svg"),
    _FORCE,
)
TRANSFORM = (_MERGED, _ROWS, *_OUTPUT, _COLUMNS, *_READING, *_MODEL)
PLAN = (
    option("mechanism", "MECHANISM", 'in Python, as "AnalyzeGauss(1.0, 1e-5, row_norm=9.0)"'),
    option("--rows", "N", "of a site", required=True),
    option("--columns", "N", None, required=True),
    option("-n --components", "N", "number of components", default=2),
    option("--spectrum", "NUMBERS", "variances that are believed (default: 1, 1/4, 1/9, ...)"),
)
ASK = (
    option("folder", "FOLDER", "a new folder for questions and answers"),
    option("estimator", "ESTIMATOR", 'in Python, as "FederatedPowerPCA(n_components=5)"'),
    option("--sites", "NAME,...", "their names", required=True),
    option("--min-sites", "N", "with fewer there is no fit", default=2),
    option("--secure", "N", "by secure sums of at least N sites, in more files"),
)
NEXT = (
    option("folder", "FOLDER", "that of ask, with the answers"),
    option("-o --output", "FILE", "the model (default: FOLDER/model.subspace)"),
    _FORCE,
    option("--without", "NAME,...", "sites whose answers are awaited no longer"),
)
ANSWER = (
    option("question", "QUESTION", None),
    option("rows", "ROWS", "the same for all questions", nargs="+"),
    *_OUTPUT,
    _COLUMNS,
    *_READING,
    _SITE,
    _DROP_MISSING,
    _MIN_ROWS,
    option("--max-rounds", "N", "most questions about these rows, in all", default=MAX_ROUNDS),
    option("--allow", "NAME,...", "estimators that may be fitted (default: all)"),
    option("--log", "FILE", "of questions and answers (default: below ~/.local/state/fedpca)"),
    option("--state", "FOLDER", "what this site keeps of a study (default: beside the log)"),
    option("--ledger", "FILE", "what noise has cost these rows"),
    option("--estimator", "ESTIMATOR", "the only one that is answered for"),
    option("--mechanism", "MECHANISM", "the owner's, whose budget counts, with a ledger"),
    option("--secure", "N", "refuse a question unless it is of secure sums of at least N sites"),
)
AUDIT = (option("log", "LOG", None),)


_ABOUT = """PCA of rows at several sites, by files. A site: fit ROWS -o FILE. The coordinator: merge
FILE... -o FILE, remove a site, scale for means and deviations. More digits, missing entries and
any other estimator take rounds: the coordinator asks, sites answer, next goes on. Anybody:
inspect, show the components, transform MODEL ROWS -o SCORES, and plan a budget of privacy. Exit
codes: 0, 1 after an error or for a log that is not whole, 2 for a command that is none."""
# What is run, the options that it takes, and what is said of it.
_COMMANDS: dict[str, tuple[Callable[[Any], Report], tuple[Option | list[Option], ...], str]] = {
    "fit": (_commands.fit, FIT, "summarise the rows of a site"),
    "inspect": (_commands.inspect, INSPECT, "tell what is in summaries"),
    "merge": (_commands.merge, MERGE, "merge the summaries of sites"),
    "scale": (_commands.scale, (*_SUMMARIES, *_OUTPUT), "means and deviations, as csv"),
    "remove": (_commands.remove, REMOVE, "merge again without a site"),
    "ask": (_commands.ask, ASK, "begin a fit of any estimator at sites, by files"),
    "answer": (_commands.answer, ANSWER, "answer a question of ask and next"),
    "next": (_commands.go_on, NEXT, "go on with a fit by files, as far as answers go"),
    "show": (_commands.show, SHOW, "loadings, variances and error of components"),
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
    parser = argparse.ArgumentParser("fedpca", description=_ABOUT)
    parser.add_argument("--version", action="version", version=VERSION)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (run, taken, text) in _COMMANDS.items():
        command = commands.add_parser(name, help=text)
        command.set_defaults(command=run)
        for some in taken:
            of_these = command.add_mutually_exclusive_group() if isinstance(some, list) else command
            for names, how in some if isinstance(some, list) else [some]:
                of_these.add_argument(*names, **how)
        command.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    try:
        with warnings.catch_warnings(record=True) as caught:
            report = options.command(options)
        report.warnings += dict.fromkeys(str(warning.message) for warning in caught)
        return report.show(options.json)
    except (OSError, ValueError, ImportError, MemoryError, RuntimeError) as error:
        print(f"error: {one_line(error) or type(error).__name__}", file=sys.stderr)
        return 1
