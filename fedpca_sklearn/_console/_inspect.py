"""inspect: what is in summaries."""

from __future__ import annotations

import argparse
from typing import Any

from ._output import Report
from ._summaries import load, site_of
from ._texts import described, facts, printable
from ._units import unlike_units


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("inspect", help="tell what is in summaries")
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> Report:
    """Read the files, and compare their units where they have the same columns."""
    summaries = [load(file) for file in options.files]
    pairs = list(zip(options.files, summaries, strict=True))
    text = "\n".join(f"{printable(file)}\n{described(summary)}" for file, summary in pairs)
    alike = len({(s.n_features, s.feature_names) for s in summaries}) == 1
    who = [site_of(summary, file) for file, summary in pairs]
    warnings = unlike_units(summaries, who) if alike else []
    found = [{"file": file, **facts(summary)} for file, summary in pairs]
    return Report(text, {"summaries": found}, warnings=warnings)
