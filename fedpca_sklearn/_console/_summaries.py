"""Summaries of files, and the model that is made of them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

from .._validation.files import written
from .._validation.texts import check_text
from ..federated import ConditionalFill, FederatedPCA
from ..summary import Subspace
from ._align import aligned
from ._output import Report
from ._rows import errors_of
from ._texts import described, facts, listed, names_in, number, printable, shares
from ._units import unlike_units

# Which commands take a file that is no summary.
_TAKERS = {
    "an answer of filled rows": "merge --fill takes those of fit --fill, refine --fill others.",
    "an answer to a refinement": "refine takes it.",
}


def add_model(parser: argparse.ArgumentParser) -> None:
    """Options of commands that make a model of summaries."""
    parser.add_argument(
        "-n",
        "--n-components",
        type=number,
        help="components, a share of the variance, as 0.9, parallel, or mle (default: all)",
        metavar="N",
    )
    add_adjusting(parser)


def add_adjusting(parser: argparse.ArgumentParser) -> None:
    """Options that say how rows are adjusted before their PCA."""
    parser.add_argument("--scale", action="store_true", help="columns of one variance")
    parser.add_argument(
        "--partial-out",
        type=names_in,
        help="confounders, with commas, whose effects are taken out of the other columns",
        metavar="COLUMNS",
    )


def add_fill(parser: Any, text: str) -> None:
    """Option of commands for rows whose missing entries are filled in, in rounds."""
    parser.add_argument("--fill", action="store_true", help=text)


def add_site(parser: argparse.ArgumentParser) -> None:
    """Option of commands that write what is of one site."""
    parser.add_argument("--site", help="name of the site", metavar="NAME")


def checked_site(options: argparse.Namespace) -> str | None:
    """The site of `add_site`, or None if it is not given."""
    if options.site is None:
        return None
    site = check_text("--site", options.site)
    if not site.strip():
        raise ValueError(f"--site must be a name, got {options.site!r}.")
    return site


def add_sites(parser: argparse.ArgumentParser) -> None:
    """Options of commands that put the summaries of sites together."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="summaries of sites")
    parser.add_argument(
        "--align",
        action="store_true",
        help="match columns by name: any order; those that a site lacks are left out",
    )


def load(file: str, kind: Any = Subspace) -> Any:
    """Read a summary, or what else can be loaded; errors name the file, and who takes it."""
    with errors_of(file):
        try:
            return kind.load(file)
        except ValueError as error:
            takers = [who for what, who in _TAKERS.items() if f"it is {what}." in str(error)]
            if kind is not Subspace or not takers:
                raise
            raise ValueError(f"{error} {takers[0]}") from error


def site_of(summary: Subspace, file: str) -> str:
    """Name of the site in messages, or of the file."""
    return file if summary.site is None else repr(summary.site)


def together(options: argparse.Namespace) -> tuple[list[Subspace], list[str]]:
    """Summaries of the files of `add_sites`, and what is to be warned of."""
    summaries = [load(file) for file in options.files]
    warnings: list[str] = []
    if options.align:
        summaries, warnings = aligned(summaries, options.files)
    if len({(s.n_features, s.feature_names) for s in summaries}) == 1:
        who = [site_of(s, file) for s, file in zip(summaries, options.files, strict=True)]
        warnings += unlike_units(summaries, who)
    return summaries, warnings


def model_of(options: argparse.Namespace, summaries: Sequence[Subspace]) -> FederatedPCA:
    """Fitted estimator of summaries, by the options of `add_model`."""
    return FederatedPCA.from_subspaces(
        summaries,
        options.n_components,
        missing=ConditionalFill() if getattr(options, "fill", False) else None,
        scale=options.scale,
        partial_out=options.partial_out,
    )


def report_of(
    options: argparse.Namespace, fitted: FederatedPCA, warnings: Sequence[str] = ()
) -> Report:
    """Write the summary of a fit, and tell what is in it.

    Of columns as they are it is cut to the components. Scaled ones, and those without confounders,
    follow from the summary of the columns as they are, which is written whole.
    """
    adjusted = bool(options.scale or options.partial_out)
    summary = fitted.subspace_
    if not adjusted:
        summary = summary.truncate(fitted.n_components_)
    with written(options.output) as path:
        summary.save(path)
    found, model = {"output": options.output, **facts(summary)}, {}
    if adjusted:
        ratios = fitted.explained_variance_ratio_
        found["model"] = {
            "components": fitted.n_components_,
            "scale": options.scale,
            "partial_out": options.partial_out or [],
            "explained_variance_ratio": ratios,
        }
        how = ["scaled"] if options.scale else []
        if options.partial_out:
            how.append(f"without effects of {listed(options.partial_out)}")
        model["explained"] = shares(ratios)
        model["model"] = f"{fitted.n_components_} components, {', '.join(how)}"
    text = f"{printable(options.output)}\n{described(summary, **model)}"
    return Report(text, found, warnings=list(warnings))


def model_of_sites(options: argparse.Namespace, summaries: Sequence[Subspace]) -> FederatedPCA:
    """`model_of` with errors that tell the files, and how columns are matched."""
    try:
        return model_of(options, summaries)
    except ValueError as error:
        places = sorted({int(i) for i in re.findall(r"\bsubspaces\[(\d+)\]", str(error))})
        legend = "; ".join(f"subspaces[{i}] is {options.files[i]}" for i in places)
        named = {s.feature_names for s in summaries}
        hint = " --align matches columns by name." if len(named) > 1 and None not in named else ""
        raise ValueError(f"{error}{hint}{f' ({legend})' if legend else ''}") from error
