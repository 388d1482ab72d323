"""fit: the summary of the rows of a site."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from .._base.adjusting import confounders_of
from .._validation.files import written
from ..streaming import StreamingPCA
from ._output import Report, add_output, check_output
from ._owner import add_min_rows
from ._rows import Rows, add_rows
from ._summaries import (
    add_adjusting,
    add_site,
    checked_site,
    load,
    site_of,
    stating_model,
)
from ._texts import described, facts, number, printable
from ._units import unlike_units


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("fit", help="summarise the rows of a site")
    parser.add_argument("rows", nargs="+", metavar="ROWS", help=".csv, .npy, .parquet or .h5ad")
    add_output(parser)
    columns = add_rows(parser)
    columns.add_argument("--like", help="a summary, whose columns are taken", metavar="FILE")
    add_site(parser)
    parser.add_argument(
        "-n",
        "--n-components",
        type=number,
        help="components that are wanted, or a share of the variance: of many columns the file "
        "holds these directions and some more, of up to 256 columns all (default: all); merge "
        "FILE -n N cuts it",
        metavar="N",
    )
    add_adjusting(parser)
    add_min_rows(parser)
    parser.add_argument("--drop-missing", action="store_true", help="leave out rows with gaps")
    parser.set_defaults(command=run)


class _EnoughRows(Rows):
    """Batches of rows, and an error at their end if they are fewer than the owner allows."""

    def __init__(self, options: argparse.Namespace, names: Sequence[str] | None):
        super().__init__(options.rows, options, names)
        self._paths, self._least = ", ".join(options.rows), options.min_rows

    def __iter__(self) -> Iterator[Any]:
        n = 0
        for batch in super().__iter__():
            n += batch.shape[0]
            yield batch
        if 0 < n < self._least:
            raise ValueError(
                f"{self._paths}: {n} row{'s' if n > 1 else ''}, and --min-rows is {self._least}, "
                f"as a summary of few rows tells much of each; --min-rows {n} allows it."
            )


def run(options: argparse.Namespace) -> Report:
    """Go over the rows once."""
    check_output(options, [*options.rows, *([options.like] if options.like else [])])
    site = checked_site(options)
    like = load(options.like) if options.like else None
    if like is not None and like.feature_names is None:
        raise ValueError(f"{options.like}: it has no names of columns, which --like takes.")
    rows = _EnoughRows(options, None if like is None else like.feature_names)
    pca = StreamingPCA(options.n_components, scale=options.scale)
    for batch in rows:
        if options.partial_out and pca.partial_out is None:
            pca.partial_out = confounders_of(options.partial_out, batch.shape[1], rows.names)
        pca.partial_fit(batch)
    if not hasattr(pca, "components_"):
        raise ValueError(f"there is no row in {', '.join(options.rows)}.")
    summary = pca.subspace_._replace(feature_names=rows.names)
    if site is not None:
        summary = summary._replace(site=site)
    if options.scale or options.partial_out:
        summary = stating_model(pca, summary)
    with written(options.output) as path:
        summary.save(path)
    text = f"{printable(options.output)}\n{described(summary)}"
    if rows.n_dropped:
        text += f"\n  {'left out':<11}{rows.n_dropped} rows with gaps"
    report = {"output": options.output, **facts(summary), "left_out": rows.n_dropped}
    warnings = []
    if like is not None and rows.names is not None:
        who = [site_of(like, options.like), site_of(summary, options.output)]
        warnings = unlike_units([like, summary], who)
    return Report(text, report, warnings=warnings)
