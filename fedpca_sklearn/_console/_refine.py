"""refine: a query to the sites, and the summary that their answers make."""

from __future__ import annotations

import argparse
from typing import Any

from .._validation.files import written
from ..federated import FillAnswer
from ..summary import RefinementAnswer
from ._output import Report, add_output, check_output
from ._summaries import add_fill, add_model, load, model_in, stating_model
from ._texts import described, facts, printable


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("refine", help="ask sites about directions, or take their answers")
    parser.add_argument("file", metavar="FILE", help="the merged summary")
    parser.add_argument("answers", nargs="*", metavar="ANSWER", help="none: write the query")
    add_output(parser)
    add_model(parser)
    add_fill(parser, "answers are of rows that sites have filled in")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> Report:
    """Write the query, or with answers the refined summary."""
    check_output(options, [options.file, *options.answers])
    fitted = model_in(options, options.file, load(options.file))
    if not options.answers:
        query = fitted.refinement_query()
        with written(options.output) as path:
            query.save(path)
        text = f"{printable(options.output)}\n  asks about {query.n_components} directions"
        return Report(text, {"output": options.output, "directions": query.n_components})
    kind = FillAnswer if options.fill else RefinementAnswer
    fitted.refine_from([load(file, kind) for file in options.answers])
    summary = stating_model(fitted, fitted.subspace_)
    with written(options.output) as path:
        summary.save(path)
    bound, k = fitted.subspace_error_bound_, fitted.n_components_
    text = "\n".join(
        [
            printable(options.output),
            described(summary),
            f"  {'error':<11}at most {bound:.1e}, of {k}",
        ]
    )
    report = {"output": options.output, **facts(summary), "error_bound": bound}
    return Report(text, {**report, "of_components": k})
