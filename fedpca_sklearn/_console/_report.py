"""What a command tells: text, or the same as JSON; and whether it may write its file."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..summary import Subspace

# Characters of a message, and of a name in it, that are shown.
_PAGE, _NAME = 4000, 80


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
        print(json.dumps(plain(whole), allow_nan=False) if as_json else self.text)
        return self.code


def check_output(output: str, force: bool, files: Sequence[str], verb: str = "read") -> None:
    """Raise if a file would be written over one that is read, over any other, or into no folder.

    Parameters
    ----------
    output : str
        What is written.
    force : bool
        Whether it may replace a file.
    files : sequence of str
        What the command reads.
    verb : str
        What the command does with them.
    """
    for file in files:
        if os.path.exists(file) and os.path.exists(output) and os.path.samefile(file, output):
            raise ValueError(f"{output} is one of the files to {verb}.")
    if not os.path.lexists(output):
        folder = os.path.dirname(output)
        if folder and not os.path.isdir(folder):
            raise ValueError(f"{output} cannot be written: there is no folder {folder}.")
        return
    if os.path.exists(output) and not os.path.isfile(output):
        raise ValueError(f"{output} is there and no regular file.")
    if not force:
        raise ValueError(f"{output} exists; --force replaces it.")


def printable(text: str) -> str:
    """Text of an untrusted file; escaped if it has characters that a terminal would not print."""
    return text if text.isprintable() else ascii(text)


def one_line(message: object) -> str:
    """A message in one line of a page at most, without what a terminal would obey."""
    text = " ".join(str(message)[:_PAGE].split())
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def listed(names: Iterable[str], most: int = 5) -> str:
    """The first names, quoted, and how many more there are."""
    names = list(names)
    shown = ", ".join(repr(name[:_NAME]) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


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
    return " ".join(f"{r:.3f}" for r in ratios[:5]) + (" ..." if len(ratios) >= 5 else "")


def described(subspace: Subspace, **other: str) -> str:
    """What is told of a summary, in lines; other lines, or others of the same name."""
    of_all = subspace.site is not None or not subspace.sites
    lines = {
        "site" if of_all else "sites": _shown(subspace.sites) or "-",
        "rows": f"{subspace.n_samples:.6g}",
        "features": str(subspace.n_features),
        "components": f"{subspace.n_components}, {subspace.components.dtype}",
        "about": "the mean" if subspace.centered else "the origin",
        "explained": shares(subspace.explained_variance_ratio),
    }
    if subspace.feature_names is not None:
        lines["names"] = _shown(subspace.feature_names)
    if subspace.privacy is not None:
        epsilon, delta, row_norm, mechanism, trust = subspace.privacy
        bound = "the data's" if row_norm is None else f"{row_norm:g}"
        lines["privacy"] = (
            f"epsilon {epsilon:.6g}, delta {delta:g}, rows up to {bound}, {printable(mechanism)}, "
            f"trust: {printable(trust)}"
        )
    model = subspace.model
    if model is not None and model.adjusts:
        how = adjusted_how(model.scale, confounder_names(subspace))
        lines["model"] = f"{model.n_components} components, {how}"
    lines |= other
    return "\n".join(f"  {name:<11}{value}" for name, value in lines.items())


def _shown(names: tuple[str, ...]) -> str:
    return ", ".join(map(printable, names[:5])) + (" ..." if len(names) > 5 else "")
