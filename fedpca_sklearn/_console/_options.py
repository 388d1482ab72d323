"""Options of the commands, each stated once."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from typing import Any, NamedTuple

from ..engines._site_policy import MIN_ROWS
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
        "holds these directions and some more, of up to 256 columns all (default: all); merge "
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
