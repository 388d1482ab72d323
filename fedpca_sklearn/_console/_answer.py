"""answer: what a site answers to the query of a refinement."""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from ..engines._site_holes import check_entries
from ..engines._site_policy import RefusedError
from ..federated import FillAnswer
from ..federated._conditional_fill import entries_of_client
from ..summary import RefinementAnswer
from ._output import Report, add_output, check_output
from ._owner import Answering, add_min_rows, add_rules, asked, enough, log_of, noted_in
from ._rows import Rows, add_rows
from ._study import answered, is_letter
from ._summaries import add_fill, add_site, checked_site, load
from ._texts import count, number, printable


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("answer", help="answer a query, or a question of a study")
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
    add_min_rows(parser)
    add_rules(parser)
    of_study = "of a question of a study: "
    parser.add_argument(
        "--state",
        help=of_study + "folder of what this site keeps of it (default: beside the log)",
        metavar="FOLDER",
    )
    parser.add_argument(
        "--ledger", help=of_study + "file of what noise has cost these rows", metavar="FILE"
    )
    parser.add_argument(
        "--estimator", help=of_study + "the only one that is answered for", metavar="ESTIMATOR"
    )
    parser.add_argument(
        "--mechanism",
        help=of_study + "the owner's, whose budget counts, with a ledger",
        metavar="MECHANISM",
    )
    parser.add_argument(
        "--secure",
        type=count,
        help=of_study + "refuse it unless it is of secure sums over at least N sites",
        metavar="N",
    )
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> Report:
    """Answer, if the owner's rules allow it."""
    check_output(options, [options.query, *options.rows, log_of(options)])
    checked_site(options)
    if is_letter(options.query):
        return answered(options)
    for name in ("state", "ledger", "secure", "estimator", "mechanism"):
        if getattr(options, name) is not None:
            raise ValueError(f"--{name} is of questions of a study, and {options.query} is none.")
    query = load(options.query)
    rows = Rows(options.rows, options, query.feature_names)
    if options.fill:
        return _filled(options, query, rows)
    if options.n_components is not None:
        raise ValueError("-n is of answers with --fill; a query says how many directions it has.")
    with asked(options, "products", query.to_bytes()) as answering:
        answer = _products(options, query, rows)
        answering.send(answer)
    k = len(answer.products)
    text = f"{printable(options.output)}\n  answers about {k} directions\n{noted_in(options)}"
    facts = {"directions": k, "rows": answer.n_samples, "log": log_of(options)}
    return Report(text, {"output": options.output, **facts})


def _products(options: argparse.Namespace, query: Any, rows: Rows) -> RefinementAnswer:
    """Answer with the rows of all batches together."""
    batches = iter(enough(rows, options))
    first = next(batches, None)
    if first is None:
        raise no_row(options)
    pairs = ((batch, None) for batch in chain([first], batches))
    return RefinementAnswer._from_batches(query, pairs, options.site)


def _filled(options: argparse.Namespace, query: Any, rows: Rows) -> Report:
    """Answer with a summary of the rows as they are filled in."""
    with asked(options, "filled", query.to_bytes()) as answering:
        answer = fill_answer(options, query, rows, answering)
    summary = answer.summary
    text = f"{printable(options.output)}\n  {summary.n_components} directions of filled rows"
    text += f"\n{noted_in(options)}"
    facts = {"directions": summary.n_components, "rows": summary.n_samples}
    more = {"missing": answer.missing, "log": log_of(options)}
    return Report(text, {"output": options.output, **facts, **more})


def fill_answer(
    options: argparse.Namespace, query: Any, rows: Rows, answering: Answering
) -> FillAnswer:
    """Write what a site says of rows that are filled in; without a query of their means."""
    batches = list(enough(rows, options))
    if not batches:
        raise no_row(options)
    _check_entries(options, batches)
    answer = FillAnswer.from_rows(query, batches, options.n_components, site=options.site)
    answer = replace(answer, summary=answer.summary._named(rows.names))
    answering.send(answer)
    return answer


def _check_entries(options: argparse.Namespace, batches: list[Any]) -> None:
    """Raise where sums of columns would tell entries of few rows."""
    there = np.sum([entries_of_client(None, batch, None)[1] for batch in batches], axis=0)
    try:
        check_entries(there, sum(batch.shape[0] for batch in batches), options.min_rows)
    except RefusedError as error:
        paths = ", ".join(map(printable, options.rows))
        raise RefusedError(f"{paths}: {error}; --min-rows is the owner's rule.") from None


def no_row(options: argparse.Namespace) -> ValueError:
    """Error for files without rows."""
    return ValueError(f"there is no row in {', '.join(options.rows)}.")
