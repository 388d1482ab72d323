"""merge: one summary of all sites."""

from __future__ import annotations

import argparse
from typing import Any

from ..federated import FederatedPCA, FillAnswer
from ._output import Report, add_output, check_output
from ._summaries import add_fill, add_model, add_sites, load, model_of_sites, report_of, together


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("merge", help="merge the summaries of sites")
    add_sites(parser)
    add_output(parser)
    add_model(parser)
    add_fill(parser, "the files are of fit --fill")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> Report:
    """Merge them, as FederatedPCA.from_subspaces does."""
    check_output(options, options.files, "merge")
    if options.fill:
        return _of_means(options)
    summaries, warnings = together(options)
    return report_of(options, model_of_sites(options, summaries), warnings)


def _of_means(options: argparse.Namespace) -> Report:
    """The means of all sites, about which refine --fill begins."""
    if options.align or options.scale or options.partial_out:
        raise ValueError("--fill goes without --align, --scale and --partial-out.")
    answers = [load(file, FillAnswer) for file in options.files]
    return report_of(options, FederatedPCA.from_fills(answers, options.n_components))
