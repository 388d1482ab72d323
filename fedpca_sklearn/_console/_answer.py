"""answer: what a site answers to the query of a refinement."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import reduce
from typing import Any

from .._validation.files import written
from ..federated import FillAnswer
from ..summary import RefinementAnswer
from ._output import Report, add_output, check_output
from ._rows import Rows, add_rows
from ._summaries import add_fill, add_site, checked_site, load
from ._texts import number, printable


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("answer", help="answer a query with the rows of a site")
    parser.add_argument("query", metavar="QUERY")
    parser.add_argument("rows", nargs="+", metavar="ROWS", help="the files of fit")
    add_output(parser)
    add_rows(parser)
    add_site(parser)
    gaps = parser.add_mutually_exclusive_group()
    gaps.add_argument("--drop-missing", action="store_true", help="as in fit")
    add_fill(gaps, "fill gaps in by the query, and send a summary of the rows")
    parser.add_argument(
        "-n",
        "--n-components",
        type=number,
        help="with --fill: components that are wanted, as in fit (default: all)",
        metavar="N",
    )
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> Report:
    """Add the answers of the batches up."""
    check_output(options, [options.query, *options.rows])
    checked_site(options)
    query = load(options.query)
    rows = Rows(options.rows, options, query.feature_names)
    if options.fill:
        return _filled(options, query, rows)
    if options.n_components is not None:
        raise ValueError("-n is of answers with --fill; a query says how many directions it has.")
    parts = (RefinementAnswer.from_rows(query, batch, site=options.site) for batch in rows)
    first = next(parts, None)
    if first is None:
        raise no_row(options)
    answer = reduce(_of_both, parts, first)
    with written(options.output) as path:
        answer.save(path)
    k = len(answer.products)
    text = f"{printable(options.output)}\n  answers about {k} directions"
    return Report(text, {"output": options.output, "directions": k, "rows": answer.n_samples})


def _filled(options: argparse.Namespace, query: Any, rows: Rows) -> Report:
    """Answer with a summary of the rows as they are filled in."""
    answer = fill_answer(options, query, rows)
    summary = answer.summary
    text = f"{printable(options.output)}\n  {summary.n_components} directions of filled rows"
    facts = {"directions": summary.n_components, "rows": summary.n_samples}
    return Report(text, {"output": options.output, **facts, "missing": answer.missing})


def fill_answer(options: argparse.Namespace, query: Any, rows: Rows) -> FillAnswer:
    """Write what a site says of rows that are filled in; without a query of their means."""
    batches = list(rows)
    if not batches:
        raise no_row(options)
    answer = FillAnswer.from_rows(query, batches, options.n_components, site=options.site)
    answer = replace(answer, summary=answer.summary._named(rows.names))
    with written(options.output) as path:
        answer.save(path)
    return answer


def no_row(options: argparse.Namespace) -> ValueError:
    """Error for files without rows."""
    return ValueError(f"there is no row in {', '.join(options.rows)}.")


def _of_both(one: RefinementAnswer, other: RefinementAnswer) -> RefinementAnswer:
    """Answer of the rows of both."""
    return replace(
        one,
        products=one.products + other.products,
        deviation=one.deviation + other.deviation,
        scatter=one.scatter + other.scatter,
        n_samples=one.n_samples + other.n_samples,
    )
