"""show: the components of a model, and what is known of their error."""

from __future__ import annotations

import argparse
import math
import os

import numpy as np

from .._validation.files import written
from ..federated import FederatedPCA
from ..plotting._displays import AS_IT_IS
from ..summary import Subspace
from ._report import (
    Report,
    adjusted_how,
    check_output,
    confounder_names,
    described,
    facts,
    printable,
    shares,
)
from ._row_files import needed
from ._summaries import load, model_in, stating_model

_PICTURES = ".png", ".pdf", ".svg"
# Components in the text, and in the picture.
_MOST_LISTED, _MOST_DRAWN = 10, 6
_NAME = 40


def show(options: argparse.Namespace) -> Report:
    """Compute the components from the summary, by the options that its file states."""
    if options.plot is not None:
        _check_picture(options)
    summary = load(options.file)
    fitted = model_in(options, options.file, summary)
    shown = _with_known_error(stating_model(fitted, fitted.subspace_), summary)
    names = _names_of(fitted, shown)
    if options.plot is not None:
        with written(options.plot) as path:
            _draw(options, path, fitted, names)
    found = {"file": options.file, **facts(shown)}
    found["model"] |= {
        "names": names,
        "loadings": fitted.components_,
        "explained_variance": fitted.explained_variance_,
        "explained_variance_ratio": fitted.explained_variance_ratio_,
        "explained_variance_interval": fitted.explained_variance_interval_,
    }
    return Report("\n".join(_lines(options, shown, fitted, names)), found)


def _check_picture(options: argparse.Namespace) -> None:
    """Raise if no picture can be drawn or written, before anything is computed."""
    if os.path.splitext(options.plot)[1].lower() not in _PICTURES:
        raise ValueError(f"--plot must end in one of {', '.join(_PICTURES)}, got {options.plot}.")
    check_output(options.plot, options.force, [options.file], "show")
    needed("matplotlib", "plot")


def _with_known_error(shown: Subspace, summary: Subspace) -> Subspace:
    """What is shown, with the bound that the file states where it is of as many components."""
    new, stated = shown.model, summary.model
    if new is None or stated is None or new.n_components != stated.n_components:
        return shown
    return shown._replace(model=new._replace(error_bound=min(new.error_bound, stated.error_bound)))


def _names_of(fitted: FederatedPCA, summary: Subspace) -> list[str]:
    """Names of the columns that components have, or their numbers from 1."""
    names = summary.feature_names or range(1, summary.n_features + 1)
    confounders = set(getattr(fitted, "confounders_", ()))
    return [str(name) for j, name in enumerate(names) if j not in confounders]


def _lines(
    options: argparse.Namespace, shown: Subspace, fitted: FederatedPCA, names: list[str]
) -> list[str]:
    """A summary, and under each component its largest loadings."""
    k, ratios = fitted.n_components_, fitted.explained_variance_ratio_
    how = adjusted_how(fitted.scale, confounder_names(shown))
    about = {
        "explained": shares(ratios),
        "model": f"{k} components" + (f", {how}" if how else ""),
        "error": _error_of(shown, fitted.subspace_error_bound_),
    }
    lines = [printable(options.file), described(shown, **about)]
    cumulative = np.cumsum(ratios)
    for i, v in enumerate(fitted.components_[:_MOST_LISTED]):
        lines.append(
            f"  component {i + 1}: variance {fitted.explained_variance_[i]:.6g}, share "
            f"{ratios[i]:.3f}, with those before {cumulative[i]:.3f}"
        )
        lines += [f"    {printable(names[j]):<24}{v[j]:>9.5f}" for j in _largest(v, options.top)]
        if options.top < len(v):
            lines.append(f"    and {len(v) - options.top} more columns")
    if k > _MOST_LISTED:
        lines.append(f"  and {k - _MOST_LISTED} more components")
    return lines


def _error_of(shown: Subspace, computed: float) -> str:
    """What is known of the angle to the components of all rows: computed, or as the file states."""
    if shown.privacy is not None:
        return "not known, as the summary has the noise of a mechanism"
    bound = math.inf if shown.model is None else shown.model.error_bound
    if bound >= 1:
        return "not known, as directions were cut; rounds of refine make it smaller"
    who = ", as the file states" if bound < computed else ""
    return f"at most {bound:.1e}, sine of the angle to the components of all rows{who}"


def _largest(v: np.ndarray, most: int) -> np.ndarray:
    """Positions of the largest loadings, the first one in front."""
    return np.argsort(-np.abs(v), kind="stable")[:most]


def _draw(options: argparse.Namespace, path: str, fitted: FederatedPCA, names: list[str]) -> None:
    """Bars of the largest loadings, a panel for each of the first components."""
    V, ratios = fitted.components_[:_MOST_DRAWN], fitted.explained_variance_ratio_
    n, rows = max(len(V), 1), min(options.top, len(names))
    longest = max(len(name[:_NAME]) for name in names)
    size = (2.4 + 0.1 * longest) * n, 1.2 + 0.25 * rows
    figure = needed("matplotlib.figure", "plot").Figure(figsize=size, layout="constrained")
    for i, (ax, v) in enumerate(
        zip(figure.subplots(1, n, sharex=True, squeeze=False)[0], V, strict=False)
    ):
        chosen, places = _largest(v, options.top), np.arange(rows)
        ax.barh(places, v[chosen])
        ax.set_yticks(places, [names[j][:_NAME] for j in chosen], **AS_IT_IS)
        ax.invert_yaxis()
        ax.axvline(0, color="grey", linewidth=0.8)
        ax.set(title=f"component {i + 1} ({100 * ratios[i]:.0f} %)", xlabel="loading")
    figure.savefig(path, format=os.path.splitext(options.plot)[1][1:].lower())
