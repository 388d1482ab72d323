"""scale: means and deviations of the rows of all sites, for another tool."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from typing import Any

from .._validation.files import written
from ..federated import FederatedScaler
from ._output import Report, add_output, check_output
from ._summaries import add_sites, together
from ._texts import printable

_HEADER = ["column", "mean", "deviation"]
_SHOWN = 5


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("scale", help="means and deviations of columns, as csv")
    add_sites(parser)
    add_output(parser)
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> Report:
    """Pool the moments of the columns, as FederatedScaler.from_subspaces does."""
    check_output(options, options.files)
    summaries, warnings = together(options)
    scaler = FederatedScaler.from_subspaces(summaries)
    rows = float(sum(summary.n_samples for summary in summaries))
    return moments_written(
        scaler, options.output, {"output": options.output, "rows": rows}, warnings
    )


def moments_written(
    scaler: FederatedScaler, output: str, facts: dict[str, Any], warnings: Sequence[str] = ()
) -> Report:
    """Write means and deviations as csv, and tell the first ones."""
    names = getattr(scaler, "feature_names_in_", range(1, scaler.n_features_in_ + 1))
    names = [str(name) for name in names]
    means, deviations = scaler.mean_.tolist(), scaler.scale_.tolist()
    lines = list(zip(names, means, deviations, strict=True))
    with written(output) as path, open(path, "w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, lineterminator="\n").writerows([_HEADER, *lines])
    shown = [f"  {printable(name):<20} {m:>12.6g} {s:>12.6g}" for name, m, s in lines[:_SHOWN]]
    more = len(lines) - _SHOWN
    rest = [f"  and {more} more columns"] if more > 0 else []
    title = f"  {'column':<20} {'mean':>12} {'deviation':>12}"
    told = [f"  rows {facts['rows']:.6g}"] if "rows" in facts else []
    text = "\n".join([output, *told, title, *shown, *rest])
    found = {"names": names, "mean": means, "deviation": deviations}
    return Report(text, {**facts, **found}, warnings=list(warnings))
