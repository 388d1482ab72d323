"""Summaries of files, the model that is made of them, and what is told of them as text or JSON."""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._base.adjusting import confounders_of
from .._validation.containers import check_text, listed
from ..engines._messages import shown
from ..federated import FederatedPCA
from ..federated._summaries import fitted_on
from ..summary import Subspace
from ..summary._adjusted import select_columns
from ..summary._provenance import StatedModel
from ._row_files import errors_of

# Characters of a message that are shown.
_PAGE = 4000
# Nearer to a hundredfold than to tenfold.
_APART = 10**1.5
# The deviation of five normal rows is so much too small in two columns of a million.
_FEWEST = 5
# Of the mean: what rounding leaves of the deviation of a constant column is less.
_CONSTANT = 1e-6
_SHOWN = 5


@dataclass
class Report:
    """What a command tells: text, or the same as JSON, and its exit code."""

    text: str
    facts: dict[str, Any]
    code: int = 0
    warnings: list[str] = field(default_factory=list)

    def show(self, as_json: bool) -> int:
        """Print it; the exit code is the result."""
        for warning in self.warnings:
            print(f"warning: {one_line(warning)}", file=sys.stderr)
        whole = {**self.facts, "warnings": self.warnings}
        text = json.dumps(plain(whole), allow_nan=False) if as_json else self.text
        if isinstance(sys.stdout, io.TextIOWrapper):  # which may have no letter for a name
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            print(text, flush=True)
        except OSError as error:
            # what is left in the buffer would fail again at the exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if not isinstance(error, BrokenPipeError):  # a reader like `head` has seen enough
                raise
        return self.code


def check_output(output: str, force: bool, files: Sequence[str]) -> None:
    """Raise if a file would be written over one that is read, over any other, or into no folder.

    Parameters
    ----------
    output : str
        What is written.
    force : bool
        Whether it may replace a file.
    files : sequence of str
        What the command reads.
    """
    for file in files:
        there = os.path.exists(file) and os.path.exists(output)
        same = os.path.samefile if there else _of_one_path
        if same(file, output):
            raise ValueError(f"{output} is one of the files to read.")
    if not os.path.lexists(output):
        folder = os.path.dirname(output)
        if folder and not os.path.isdir(folder):
            raise ValueError(f"{output} cannot be written: there is no folder {folder}.")
        return
    if os.path.exists(output) and not os.path.isfile(output):
        raise ValueError(f"{output} is there and no regular file.")
    if not force:
        raise ValueError(f"{output} exists; --force replaces it.")


def _of_one_path(file: str, other: str) -> bool:
    """Whether two files that are not both there would be one."""
    return os.path.realpath(file) == os.path.realpath(other)


def one_line(message: object) -> str:
    """A message in one line of a page at most, without what a terminal would obey."""
    return shown(" ".join(str(message).split()), _PAGE)


def plain(value: Any) -> Any:
    """A value as JSON has it: no infinity, no array."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def facts(subspace: Subspace) -> dict[str, Any]:
    """What is told of a summary with ``--json``."""
    model: Any = subspace.model
    if model is not None:
        model = {**model._asdict(), "partial_out": confounder_names(subspace)}
        model["components"] = model.pop("n_components")
    return {
        "site": subspace.site,
        "sites": subspace.sites,
        "rows": subspace.n_samples,
        "features": subspace.n_features,
        "components": subspace.n_components,
        "dtype": str(subspace.components.dtype),
        "about": "the mean" if subspace.centered else "the origin",
        "explained_variance": subspace.explained_variance,
        "explained_variance_ratio": subspace.explained_variance_ratio,
        "names": subspace.feature_names,
        "privacy": None if subspace.privacy is None else subspace.privacy._asdict(),
        "model": model,
    }


def confounder_names(subspace: Subspace) -> list[Any]:
    """Names of the confounders of a file's model, or positions where columns have no names."""
    positions = () if subspace.model is None else subspace.model.partial_out
    names = subspace.feature_names
    return list(positions if names is None else map(names.__getitem__, positions))


def adjusted_how(scale: bool, partial_out: Iterable[Any] | None) -> str:
    """How the columns of a model differ from those of its summary; nothing if they do not."""
    how = ["scaled"] if scale else []
    if partial_out:
        how.append(f"without effects of {listed(map(str, partial_out))}")
    return ", ".join(how)


def shares(ratios: Any) -> str:
    """The first explained variance ratios."""
    return " ".join(f"{r:.3f}" for r in ratios[:5]) + (" ..." if len(ratios) > 5 else "")


def described(subspace: Subspace, **other: str) -> str:
    """What is told of a summary, in lines; other lines, or others of the same name."""
    of_all = subspace.site is not None or not subspace.sites
    lines = {
        "site" if of_all else "sites": _first(subspace.sites) or "-",
        "rows": f"{subspace.n_samples:.6g}",
        "features": str(subspace.n_features),
        "components": f"{subspace.n_components}, {subspace.components.dtype}",
        "about": "the mean" if subspace.centered else "the origin",
        "explained": shares(subspace.explained_variance_ratio),
    }
    if subspace.feature_names is not None:
        lines["names"] = _first(subspace.feature_names)
    if subspace.privacy is not None:
        epsilon, delta, row_norm, mechanism, trust = subspace.privacy
        bound = "the data's" if row_norm is None else f"{row_norm:g}"
        lines["privacy"] = (
            f"epsilon {epsilon:.6g}, delta {delta:g}, rows up to {bound}, {mechanism}, "
            f"trust: {trust}"
        )
    model = subspace.model
    if model is not None and model.adjusts:
        how = adjusted_how(model.scale, confounder_names(subspace))
        lines["model"] = f"{model.n_components} components, {how}"
    lines |= other
    return "\n".join(f"  {name:<11}{value}" for name, value in lines.items())


def _first(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")


# ---------------------------------------------------------------------- files


def checked_site(options: argparse.Namespace) -> str | None:
    """The site of ``--site``, or None if it is not given."""
    if options.site is None:
        return None
    site = check_text("--site", options.site)
    if not site.strip():
        raise ValueError(f"--site must be a name, got {options.site!r}.")
    return site


def load(file: str) -> Subspace:
    """Read a summary; errors name the file."""
    with errors_of(file):
        return Subspace.load(file)


def summaries_of_files(options: argparse.Namespace) -> tuple[list[Subspace], list[str]]:
    """Summaries of files, from which another file is made, and what is to be warned of."""
    check_output(options.output, options.force, options.files)
    summaries = [load(file) for file in options.files]
    warnings = _options_left_out(options, summaries) if "partial_out" in options else []
    if options.align:
        summaries, of_columns = aligned(summaries, options.files)
        warnings += of_columns
    return summaries, warnings + unlike_units(summaries, options.files)


def _options_left_out(options: argparse.Namespace, summaries: Sequence[Subspace]) -> list[str]:
    """A warning where files are of models with options that the new model is without."""
    lost, files = [], []
    for file, summary in zip(options.files, summaries, strict=True):
        names = map(str, confounder_names(summary))
        left_out = [f"--partial-out {n}" for n in names if n not in (options.partial_out or [])]
        if summary.model is not None and summary.model.scale and not options.scale:
            left_out.insert(0, "--scale")
        lost += left_out
        files += [file] * bool(left_out)
    if not files:
        return []
    return [
        f"{listed(files)}: made with {listed(dict.fromkeys(lost))}, which no merge takes over from "
        "its files; name what the new model shall have."
    ]


# ---------------------------------------------------------------------- columns of sites


def aligned(
    summaries: Sequence[Subspace], files: Sequence[str]
) -> tuple[list[Subspace], list[str]]:
    """Summaries in the columns that all of them have, in the order of the first.

    Parameters
    ----------
    summaries : sequence of Subspace
    files : sequence of str
        Where they are from.

    Returns
    -------
    summaries : list of Subspace
    warnings : list of str
        A line for each file that lacks columns of others.
    """
    places = []
    for file, summary in zip(files, summaries, strict=True):
        if summary.feature_names is None:
            raise ValueError(f"{file}: it has no names of columns, which --align matches.")
        places.append({name: j for j, name in enumerate(summary.feature_names)})
    order = [name for name in places[0] if all(name in place for place in places)]
    if not order:
        raise ValueError(f"no column is in all of {listed(files)}.")
    everywhere = dict.fromkeys(name for place in places for name in place)
    found, warnings = [], []
    for file, summary, place in zip(files, summaries, places, strict=True):
        lacking = [name for name in everywhere if name not in place]
        if lacking:
            warnings.append(f"{file} has no {listed(lacking)}: left out of all.")
        columns = [place[name] for name in order]
        with errors_of(file):
            same = columns == list(range(len(place)))
            found.append(summary if same else select_columns(summary, columns))
    return found, warnings


def unlike_units(summaries: Sequence[Subspace], files: Sequence[str]) -> list[str]:
    """Warnings about columns whose means or deviations at sites are a hundredfold apart.

    A mean is compared with the larger of the other's mean and deviation, so that means near zero
    are not judged. A column that is constant at a site says nothing about its unit there, unless
    by its value.

    Parameters
    ----------
    summaries : sequence of Subspace
        Those of unlike columns are not compared.
    files : sequence of str
        Where they are from.

    Returns
    -------
    warnings : list of str
        A line for each of the first columns, and one for how many more there are.
    """
    compared = [i for i, s in enumerate(summaries) if s.n_samples >= _FEWEST]
    if len(compared) < 2 or len({(s.n_features, s.feature_names) for s in summaries}) > 1:
        return []
    who = [files[i] if summaries[i].site is None else repr(summaries[i].site) for i in compared]
    names = summaries[0].feature_names or range(1, summaries[0].n_features + 1)
    means = np.abs([summaries[i].mean for i in compared])
    deviations = np.array([_deviations(summaries[i]) for i in compared])
    sizes = np.maximum(means, deviations)
    deviations[deviations <= _CONSTANT * means] = 0
    found: dict[int, str] = {}
    for what, values, others in (("deviation", deviations, deviations), ("mean", means, sizes)):
        least = np.where(others > 0, others, np.inf).argmin(axis=0)
        most = values.argmax(axis=0)
        columns = np.arange(len(names))
        high, low = values[most, columns], others[least, columns]
        for j in np.flatnonzero((low > 0) & (high >= _APART * low)):
            found.setdefault(
                int(j),
                f"column {names[j]!r}: the {what} of {who[most[j]]} is "
                f"{high[j]:.3g}, of {who[least[j]]} {values[least[j], j]:.3g}; are the "
                "units the same?",
            )
    lines = [found[j] for j in sorted(found)]
    more = len(lines) - _SHOWN
    return lines[:_SHOWN] + ([f"and {more} more columns like these."] if more > 0 else [])


def _deviations(summary: Subspace) -> np.ndarray:
    """Standard deviation of each column; of what was kept, where that of all is not known."""
    scatter = summary.column_scatter
    if scatter is None:
        scatter = (summary.singular_values**2) @ summary.components.astype(np.float64) ** 2
    return np.sqrt(np.maximum(scatter, 0.0) / summary.degrees_of_freedom)


# ---------------------------------------------------------------------- models


def model_of(
    options: argparse.Namespace, summaries: Sequence[Subspace], files: Sequence[str]
) -> FederatedPCA:
    """Fitted estimator of summaries of files, by the options; errors tell the files."""
    try:
        adjusted = {"scale": options.scale, "partial_out": options.partial_out}
        return fitted_on(FederatedPCA(options.n_components, **adjusted), summaries)
    except ValueError as error:
        places = sorted({int(i) for i in re.findall(r"\bsubspaces\[(\d+)\]", str(error))})
        legend = "; ".join(f"subspaces[{i}] is {files[i]}" for i in places)
        named = {s.feature_names for s in summaries}
        hint = " --align matches columns by name." if len(named) > 1 and None not in named else ""
        raise ValueError(f"{error}{hint}{f' ({legend})' if legend else ''}") from error


def model_in(options: argparse.Namespace, file: str, summary: Subspace) -> FederatedPCA:
    """Fitted estimator of a file's summary by the model that it states, or else by the options.

    Options that the file states need not be given; others than these are an error, but for fewer
    components.
    """
    stated, asked = summary.model, options.n_components
    if stated is None:
        return model_of(options, [summary], [file])
    names, wanted = confounder_names(summary) or None, options.partial_out
    if wanted and set(stated.partial_out) == set(
        confounders_of(wanted, summary.n_features, summary.feature_names)
    ):
        wanted = None
    n_components = (stated.n_components or None) if asked is None else asked
    of_file = argparse.Namespace(n_components=n_components, scale=stated.scale, partial_out=names)
    fitted = model_of(of_file, [summary], [file])
    for what, other, own in (
        ("scale", options.scale or stated.scale, stated.scale),
        ("partial_out", wanted or names, names),
        ("n_components", max(fitted.n_components_, stated.n_components), stated.n_components),
    ):
        if other != own:
            raise ValueError(
                f"{what}={other} is asked for, and the model in {file} has {what}={own}: leave the "
                "option out, or make another model by merge."
            )
    return fitted


def stating_model(fitted: Any, summary: Subspace) -> Subspace:
    """A summary for a file, which says by which model its components are computed."""
    confounders = tuple(int(column) for column in getattr(fitted, "confounders_", ()))
    # the bound is on what cuts do, and knows nothing of noise
    bound = math.inf if summary.privacy is not None else fitted.subspace_error_bound_
    stated = StatedModel(int(fitted.n_components_), bool(fitted.scale), confounders, bound)
    return summary._replace(model=stated)


def model_written(
    options: argparse.Namespace, fitted: FederatedPCA, warnings: Sequence[str] = ()
) -> Report:
    """Write the summary of a fit, and tell what is in it.

    Of columns as they are it is cut to the components. Scaled ones, and those without confounders,
    follow from the summary of the columns as they are, which is written whole.
    """
    summary = fitted.subspace_
    if not (options.scale or options.partial_out):
        stated = stating_model(fitted, summary.truncate(fitted.n_components_))
        return saved(options, options.output, stated, warnings)
    ratios = fitted.explained_variance_ratio_
    return saved(options, options.output, stating_model(fitted, summary), warnings, ratios)


def saved(
    options: argparse.Namespace,
    output: str,
    summary: Subspace,
    warnings: Sequence[str] = (),
    ratios: Any = None,
) -> Report:
    """Write a summary, and tell what is in it, with the shares of its model if they are given."""
    check_output(output, options.force, ())  # another command may have written it meanwhile
    summary.save(output)
    lines, found = {}, {"output": output, **facts(summary)}
    if ratios is not None:
        lines["explained"] = shares(ratios)
        found["model"]["explained_variance_ratio"] = ratios
    text = f"{shown(output)}\n{described(summary, **lines)}"
    return Report(text, found, warnings=list(warnings))
