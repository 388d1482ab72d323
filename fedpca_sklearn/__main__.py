"""Summaries in files: python -m fedpca_sklearn COMMAND.

inspect FILE...: tell what is in them. merge FILE... -o FILE: one summary of all sites. refine FILE
-o QUERY: directions that sites are asked about. answer QUERY ROWS -o ANSWER: at a site, with its
rows in a .npy file. refine FILE ANSWER... -o FILE: the refined summary. audit LOG: what a site was
asked and answered.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ._version import VERSION
from .engines._site_audit import audit
from .federated import FederatedPCA
from .summary import RefinementAnswer, Subspace


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    arguments : sequence of str, default=None
        None: those of the command line.

    Returns
    -------
    code : int
        0, or 1 after an error, which is printed, and where a log is not what was written.
    """
    parser = argparse.ArgumentParser("python -m fedpca_sklearn", description=__doc__)
    parser.add_argument("--version", action="version", version=VERSION)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    inspect = commands.add_parser("inspect", help="tell what is in summaries")
    inspect.add_argument("files", nargs="+", metavar="FILE")
    inspect.set_defaults(command=_inspect)
    merge = commands.add_parser("merge", help="merge the summaries of sites")
    merge.add_argument("files", nargs="+", metavar="FILE")
    merge.add_argument("-o", "--output", required=True, metavar="FILE")
    merge.add_argument(
        "-n",
        "--n-components",
        type=_number,
        help="components to keep, or a share of the variance, as 0.9 (default: all)",
        metavar="N",
    )
    merge.set_defaults(command=_merge)
    audited = commands.add_parser("audit", help="tell what a site was asked and answered")
    audited.add_argument("log", metavar="LOG")
    audited.set_defaults(command=_audit)
    refine = commands.add_parser("refine", help="ask sites about directions, or take their answers")
    refine.add_argument("file", metavar="FILE", help="the merged summary")
    refine.add_argument("answers", nargs="*", metavar="ANSWER", help="none: write the query")
    refine.add_argument("-o", "--output", required=True, metavar="FILE")
    refine.add_argument("-n", "--n-components", type=_number, help="components shown", metavar="N")
    refine.set_defaults(command=_refine)
    answer = commands.add_parser("answer", help="answer a query with the rows of a site")
    answer.add_argument("query", metavar="QUERY")
    answer.add_argument("rows", metavar="ROWS", help="a .npy file")
    answer.add_argument("-o", "--output", required=True, metavar="FILE")
    answer.add_argument("--site", help="name of the site", metavar="NAME")
    answer.set_defaults(command=_answer)
    options = parser.parse_args(arguments)
    try:
        return options.command(options)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _number(text: str) -> int | float:
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def _load(file: str, kind: Any = Subspace) -> Any:
    try:
        return kind.load(file)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def _inspect(options: argparse.Namespace) -> int:
    for file in options.files:
        print(file)
        print(_described(_load(file)))
    return 0


def _merge(options: argparse.Namespace) -> int:
    _check_output(options.output, options.files, "merge")
    sites = [_load(file) for file in options.files]
    for i, file in enumerate(options.files):
        print(f"subspaces[{i}]: {file}")
    fitted = FederatedPCA.from_subspaces(sites, options.n_components)
    merged = fitted.subspace_.truncate(fitted.n_components_)
    merged.save(options.output)
    print(options.output)
    print(_described(merged))
    return 0


def _audit(options: argparse.Namespace) -> int:
    text, whole = audit(options.log)
    print(options.log)
    print(text)
    return 0 if whole else 1


def _refine(options: argparse.Namespace) -> int:
    _check_output(options.output, [options.file, *options.answers])
    fitted = FederatedPCA.from_subspaces([_load(options.file)], options.n_components)
    if not options.answers:
        query = fitted.refinement_query()
        query.save(options.output)
        print(f"{options.output}\n  asks about {query.n_components} directions")
        return 0
    fitted.refine_from([_load(file, RefinementAnswer) for file in options.answers])
    fitted.subspace_.save(options.output)
    print(options.output)
    print(_described(fitted.subspace_))
    print(f"  {'error':<11}at most {fitted.subspace_error_bound_:.1e}, of {fitted.n_components_}")
    return 0


def _answer(options: argparse.Namespace) -> int:
    _check_output(options.output, [options.query, options.rows])
    rows = np.load(options.rows, mmap_mode="r", allow_pickle=False)
    answer = RefinementAnswer.from_rows(_load(options.query), rows, site=options.site)
    answer.save(options.output)
    print(f"{options.output}\n  answers about {len(answer.products)} directions")
    return 0


def _check_output(output: str, files: Sequence[str], command: str = "read") -> None:
    """Raise if a file would be written over one that is read."""
    for file in files:
        if os.path.exists(file) and os.path.exists(output) and os.path.samefile(file, output):
            raise ValueError(f"{output} is one of the files to {command}.")


def _described(subspace: Subspace) -> str:
    ratios = subspace.explained_variance_ratio[:5]
    of_all = subspace.site is not None or not subspace.sites
    lines = {
        "site" if of_all else "sites": _shown(subspace.sites) or "-",
        "rows": f"{subspace.n_samples:.6g}",
        "features": str(subspace.n_features),
        "components": f"{subspace.n_components}, {subspace.components.dtype}",
        "about": "the mean" if subspace.centered else "the origin",
        "explained": " ".join(f"{r:.3f}" for r in ratios) + (" ..." if len(ratios) == 5 else ""),
    }
    if subspace.feature_names is not None:
        lines["names"] = _shown(subspace.feature_names)
    if subspace.privacy is not None:
        epsilon, delta, row_norm, mechanism, trust = subspace.privacy
        bound = "the data's" if row_norm is None else f"{row_norm:g}"
        lines["privacy"] = (
            f"epsilon {epsilon:.6g}, delta {delta:g}, rows up to {bound}, {_printable(mechanism)}, "
            f"trust: {_printable(trust)}"
        )
    return "\n".join(f"  {name:<11}{value}" for name, value in lines.items())


def _shown(names: tuple[str, ...]) -> str:
    return ", ".join(map(_printable, names[:5])) + (" ..." if len(names) > 5 else "")


def _printable(text: str) -> str:
    """Text of an untrusted file; escaped if it has characters that a terminal would not print."""
    return text if text.isprintable() else ascii(text)


if __name__ == "__main__":
    sys.exit(main())
