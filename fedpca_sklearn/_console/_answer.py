"""answer: what a site answers to the query of a refinement."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import reduce
from typing import Any

from .._validation.files import written
from ..summary import RefinementAnswer
from ._output import Report, add_output, check_output
from ._rows import Rows, add_rows
from ._summaries import load
from ._texts import printable


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("answer", help="answer a query with the rows of a site")
    parser.add_argument("query", metavar="QUERY")
    parser.add_argument("rows", nargs="+", metavar="ROWS", help="the files of fit")
    add_output(parser)
    add_rows(parser)
    parser.add_argument("--site", help="name of the site", metavar="NAME")
    parser.add_argument("--drop-missing", action="store_true", help="as in fit")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> Report:
    """Add the answers of the batches up."""
    check_output(options, [options.query, *options.rows])
    query = load(options.query)
    rows = Rows(options.rows, options, query.feature_names)
    parts = (RefinementAnswer.from_rows(query, batch, site=options.site) for batch in rows)
    first = next(parts, None)
    if first is None:
        raise ValueError(f"there is no row in {', '.join(options.rows)}.")
    answer = reduce(_of_both, parts, first)
    with written(options.output) as path:
        answer.save(path)
    k = len(answer.products)
    text = f"{printable(options.output)}\n  answers about {k} directions"
    return Report(text, {"output": options.output, "directions": k, "rows": answer.n_samples})


def _of_both(one: RefinementAnswer, other: RefinementAnswer) -> RefinementAnswer:
    """Answer of the rows of both."""
    return replace(
        one,
        products=one.products + other.products,
        deviation=one.deviation + other.deviation,
        scatter=one.scatter + other.scatter,
        n_samples=one.n_samples + other.n_samples,
    )
