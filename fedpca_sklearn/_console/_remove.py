"""remove: a site leaves; the summary of the others."""

from __future__ import annotations

import argparse
from typing import Any

from ..federated._local_fit import labels_of_sites
from ..metrics import subspace_distance
from ._output import Report, add_output, check_output
from ._summaries import add_model, add_sites, model_of_sites, report_of, together
from ._texts import listed


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("remove", help="merge again without a site")
    parser.add_argument("site", metavar="SITE", help="name of the site that leaves")
    add_sites(parser)
    add_output(parser)
    add_model(parser)
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> Report:
    """Merge the files without the site's, and tell how far the components have moved."""
    check_output(options, options.files)
    summaries, warnings = together(options)
    own = [i for i, summary in enumerate(summaries) if summary.site == options.site]
    if not own:
        held = [f for f, s in zip(options.files, summaries, strict=True) if options.site in s.sites]
        why = (
            f"{held[0]} is merged; the files of its sites are needed"
            if held
            else f"they are of {listed(sorted({site for s in summaries for site in s.sites}))}"
        )
        raise ValueError(f"no file is of the site {options.site!r} alone: {why}.")
    fitted = model_of_sites(options, summaries)
    before = fitted.components_
    fitted.remove(labels_of_sites(summaries)[own[0]])
    report = report_of(options, fitted, warnings)
    k = min(len(before), len(fitted.components_))
    moved = subspace_distance(before[:k], fitted.components_[:k])
    report.text += f"\n  {'moved':<11}{moved:.2g}, of {k} components"
    report.facts |= {"moved": moved, "of_components": k}
    return report
