"""merge: one summary of all sites."""

from __future__ import annotations

import argparse
from typing import Any

from ._output import Report, add_output, check_output
from ._summaries import add_model, add_sites, model_of_sites, report_of, together


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("merge", help="merge the summaries of sites")
    add_sites(parser)
    add_output(parser)
    add_model(parser)
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> Report:
    """Merge them, as FederatedPCA.from_subspaces does."""
    check_output(options, options.files, "merge")
    summaries, warnings = together(options)
    return report_of(options, model_of_sites(options, summaries), warnings)
