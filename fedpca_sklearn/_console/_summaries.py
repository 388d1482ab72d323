"""Summaries of files, and the model that is made of them."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from typing import Any

from .._base.adjusting import confounders_of
from .._validation.files import written
from .._validation.texts import check_text
from ..federated import FederatedPCA
from ..summary import Subspace
from ..summary._provenance import StatedModel
from ._align import aligned
from ._output import Report
from ._rows import errors_of
from ._texts import (
    confounder_names,
    described,
    facts,
    listed,
    names_in,
    number,
    printable,
    shares,
)
from ._units import unlike_units

_OTHER_MODEL = "leave the option out, or make another model by merge."


def add_model(parser: argparse.ArgumentParser) -> None:
    """Options of commands that make a model of summaries."""
    parser.add_argument(
        "-n",
        "--n-components",
        type=number,
        help="components, a share of variance, as 0.9, parallel, held-out, or mle (default: all)",
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


def load(file: str) -> Subspace:
    """Read a summary; errors name the file."""
    with errors_of(file):
        return Subspace.load(file)


def site_of(summary: Subspace, file: str) -> str:
    """Name of the site in messages, or of the file."""
    return file if summary.site is None else repr(summary.site)


def together(options: argparse.Namespace) -> tuple[list[Subspace], list[str]]:
    """Summaries of the files of `add_sites`, and what is to be warned of."""
    summaries = [load(file) for file in options.files]
    warnings = _options_left_out(options, summaries) if "partial_out" in options else []
    if options.align:
        summaries, of_columns = aligned(summaries, options.files)
        warnings += of_columns
    if len({(s.n_features, s.feature_names) for s in summaries}) == 1:
        who = [site_of(s, file) for s, file in zip(summaries, options.files, strict=True)]
        warnings += unlike_units(summaries, who)
    return summaries, warnings


def _options_left_out(options: argparse.Namespace, summaries: Sequence[Subspace]) -> list[str]:
    """A warning where files are of models with options that the new model is without."""
    lost: dict[str, None] = {}
    files = []
    for file, summary in zip(options.files, summaries, strict=True):
        names = map(str, confounder_names(summary))
        left_out = [f"--partial-out {n}" for n in names if n not in (options.partial_out or [])]
        if summary.model is not None and summary.model.scale and not options.scale:
            left_out.insert(0, "--scale")
        lost |= dict.fromkeys(left_out)
        files += [file] if left_out else []
    if not files:
        return []
    return [
        f"{listed(files)}: made with {listed(lost)}, which no merge takes over from its files; "
        "name what the new model shall have."
    ]


def model_of(options: argparse.Namespace, summaries: Sequence[Subspace]) -> FederatedPCA:
    """Fitted estimator of summaries, by the options of `add_model`."""
    return FederatedPCA.from_subspaces(
        summaries,
        options.n_components,
        scale=options.scale,
        partial_out=options.partial_out,
    )


def model_in(options: argparse.Namespace, file: str, summary: Subspace) -> FederatedPCA:
    """Fitted estimator of a file's summary by the model that it states, or else by the options.

    Options that the file states need not be given; others than these are an error, but for fewer
    components.
    """
    stated = summary.model
    if stated is None:
        return model_of(options, [summary])
    _check_same_model(options, file, summary)
    asked = options.n_components
    given = {
        "n_components": (stated.n_components or None) if asked is None else asked,
        "scale": stated.scale,
        "partial_out": confounder_names(summary) or None,
    }
    fitted = model_of(argparse.Namespace(**{**vars(options), **given}), [summary])
    if fitted.n_components_ > stated.n_components:
        raise ValueError(
            f"-n {asked} asks for {fitted.n_components_} components, and the model in {file} has "
            f"{stated.n_components}: {_OTHER_MODEL}"
        )
    return fitted


def _check_same_model(options: argparse.Namespace, file: str, summary: Subspace) -> None:
    """Raise where options say another thing than the model of a file."""
    stated: Any = summary.model
    if options.scale and not stated.scale:
        raise ValueError(
            f"--scale asks for scale=True, and the model in {file} has scale=False: {_OTHER_MODEL}"
        )
    if not options.partial_out:
        return
    asked = confounders_of(options.partial_out, summary.n_features, summary.feature_names)
    if set(asked) != set(stated.partial_out):
        raise ValueError(
            f"--partial-out asks for partial_out={options.partial_out}, and the model in {file} "
            f"has partial_out={confounder_names(summary) or None}: {_OTHER_MODEL}"
        )


def stating_model(fitted: Any, summary: Subspace) -> Subspace:
    """A summary for a file, which says by which model its components are computed."""
    confounders = tuple(int(column) for column in getattr(fitted, "confounders_", ()))
    # the bound is on what cuts do, and knows nothing of noise
    bound = math.inf if summary.privacy is not None else fitted.subspace_error_bound_
    stated = StatedModel(int(fitted.n_components_), bool(fitted.scale), confounders, bound)
    return summary._replace(model=stated)


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
    summary = stating_model(fitted, summary)
    with written(options.output) as path:
        summary.save(path)
    found, model = {"output": options.output, **facts(summary)}, {}
    if adjusted:
        ratios = fitted.explained_variance_ratio_
        found["model"]["explained_variance_ratio"] = ratios
        model["explained"] = shares(ratios)
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
