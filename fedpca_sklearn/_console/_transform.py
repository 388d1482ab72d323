"""transform: the scores of rows by a model, into a file."""

from __future__ import annotations

import argparse
from typing import Any

from .._validation.files import written
from ._output import Report, add_output, check_output
from ._rows import Rows, add_rows
from ._score_files import score_file
from ._summaries import add_model, load, model_in
from ._texts import adjusted_how, printable


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("transform", help="scores of rows, in their order")
    parser.add_argument("model", metavar="MODEL", help="a summary, of a site or merged")
    parser.add_argument("rows", nargs="+", metavar="ROWS", help=".csv, .npy, .parquet or .h5ad")
    add_output(parser)
    add_rows(parser)
    add_model(parser)
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> Report:
    """Go over the rows once."""
    check_output(options, [options.model, *options.rows])
    opened = score_file(options.output)
    pca = model_in(options, options.model, load(options.model))
    rows = Rows(options.rows, options, pca.subspace_.feature_names)
    pca.__dict__.pop("feature_names_in_", None)  # batches have the columns, and no names
    n = 0
    with (
        written(options.output) as path,
        opened(path, list(pca.get_feature_names_out())) as write,
    ):
        for batch in rows:
            write(pca.transform(batch))
            n += batch.shape[0]
    k = pca.n_components_
    text = f"{printable(options.output)}\n  {'rows':<11}{n}\n  {'components':<11}{k}"
    if how := adjusted_how(pca.scale, pca.partial_out):
        text += f", {how}"
    found = {"scale": pca.scale, "partial_out": pca.partial_out or []}
    return Report(text, {"output": options.output, "rows": n, "components": k, **found})
