"""Commands of a site, and of a coordinator, with summaries of rows; each returns a report."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from typing import Any

from .._base.adjusting import confounders_of
from .._validation.files import written
from ..engines._parameters import constructed
from ..engines._site_log import audit
from ..federated import FederatedScaler
from ..federated._local_fit import labels_of_sites
from ..metrics import subspace_distance
from ..privacy import SecondMomentMechanism
from ..streaming import StreamingPCA
from ._report import Report, adjusted_how, check_output, described, facts, listed, printable
from ._rows import Rows
from ._score_files import score_file
from ._summaries import (
    checked_site,
    load,
    model_in,
    model_of,
    model_written,
    saved,
    stating_model,
    summaries_of_files,
    unlike_units,
)

_HEADER = ["column", "mean", "deviation"]
_SHOWN = 5

Options = argparse.Namespace


# ---------------------------------------------------------------------- rows


def fit(options: Options) -> Report:
    """Summary of the rows of a site, over which it goes once."""
    read = [*options.rows, *([options.like] if options.like else [])]
    check_output(options.output, options.force, read)
    site = checked_site(options)
    like = load(options.like) if options.like else None
    if like is not None and like.feature_names is None:
        raise ValueError(f"{options.like}: it has no names of columns, which --like takes.")
    rows = Rows(options.rows, options, None if like is None else like.feature_names)
    pca = StreamingPCA(options.n_components, scale=options.scale)
    for batch in rows:
        if options.partial_out and pca.partial_out is None:
            pca.partial_out = confounders_of(options.partial_out, batch.shape[1], rows.names)
        pca.partial_fit(batch)
    _check_enough(options, rows.n_read)
    summary = pca.subspace_._replace(feature_names=rows.names)
    if site is not None:
        summary = summary._replace(site=site)
    if options.scale or options.partial_out:
        summary = stating_model(pca, summary)
    warnings = [] if like is None else unlike_units([like, summary], [options.like, options.output])
    report = saved(options.output, summary, warnings)
    report.facts["left_out"] = rows.n_dropped
    if rows.n_dropped:
        report.text += f"\n  {'left out':<11}{rows.n_dropped} rows with gaps"
    return report


def _check_enough(options: Options, n: int) -> None:
    """Raise if there are no rows, or fewer than the owner allows."""
    paths = ", ".join(options.rows)
    if not n:
        raise ValueError(f"there is no row in {paths}.")
    if n < options.min_rows:
        raise ValueError(
            f"{paths}: {n} row{'s' if n > 1 else ''}, and --min-rows is {options.min_rows}, "
            f"as a summary of few rows tells much of each; --min-rows {n} allows it."
        )


def transform(options: Options) -> Report:
    """Scores of rows, over which it goes once."""
    check_output(options.output, options.force, [options.model, *options.rows])
    opened = score_file(options.output)
    pca = model_in(options, options.model, load(options.model))
    rows = Rows(options.rows, options, pca.subspace_.feature_names)
    pca.__dict__.pop("feature_names_in_", None)  # batches have the columns, and no names
    names = list(pca.get_feature_names_out())
    with written(options.output) as path, opened(path, names) as write:
        for batch in rows:
            write(pca.transform(batch))
    n, k = rows.n_read, pca.n_components_
    text = f"{printable(options.output)}\n  {'rows':<11}{n}\n  {'components':<11}{k}"
    if how := adjusted_how(pca.scale, pca.partial_out):
        text += f", {how}"
    found = {"scale": pca.scale, "partial_out": pca.partial_out or []}
    return Report(text, {"output": options.output, "rows": n, "components": k, **found})


# ---------------------------------------------------------------------- summaries


def inspect(options: Options) -> Report:
    """What is in summaries; their units are compared where they have the same columns."""
    summaries = [load(file) for file in options.files]
    pairs = list(zip(options.files, summaries, strict=True))
    text = "\n".join(f"{printable(file)}\n{described(summary)}" for file, summary in pairs)
    found = [{"file": file, **facts(summary)} for file, summary in pairs]
    return Report(text, {"summaries": found}, warnings=unlike_units(summaries, options.files))


def merge(options: Options) -> Report:
    """One summary of all sites, as `FederatedPCA.from_subspaces` makes it."""
    summaries, warnings = summaries_of_files(options, "merge")
    return model_written(options, model_of(options, summaries, options.files), warnings)


def remove(options: Options) -> Report:
    """Merge the files without the site's, and tell how far the components have moved."""
    summaries, warnings = summaries_of_files(options)
    own = [i for i, summary in enumerate(summaries) if summary.site == options.site]
    if not own:
        merged_files = [
            f for f, s in zip(options.files, summaries, strict=True) if options.site in s.sites
        ]
        why = (
            f"{merged_files[0]} is merged; the files of its sites are needed"
            if merged_files
            else f"they are of {listed(sorted({site for s in summaries for site in s.sites}))}"
        )
        raise ValueError(f"no file is of the site {options.site!r} alone: {why}.")
    fitted = model_of(options, summaries, options.files)
    before = fitted.components_
    fitted.remove(labels_of_sites(summaries)[own[0]])
    report = model_written(options, fitted, warnings)
    k = min(len(before), len(fitted.components_))
    moved = subspace_distance(before[:k], fitted.components_[:k])
    report.text += f"\n  {'moved':<11}{moved:.2g}, of {k} components"
    report.facts |= {"moved": moved, "of_components": k}
    return report


def scale(options: Options) -> Report:
    """Means and deviations of the rows of all sites, for another tool."""
    summaries, warnings = summaries_of_files(options)
    rows = float(sum(summary.n_samples for summary in summaries))
    scaler = FederatedScaler.from_subspaces(summaries)
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
    rows = [f"  rows {facts['rows']:.6g}"] if "rows" in facts else []
    text = "\n".join([output, *rows, title, *shown, *rest])
    found = {"names": names, "mean": means, "deviation": deviations}
    return Report(text, {**facts, **found}, warnings=list(warnings))


# ---------------------------------------------------------------------- privacy


def plan(options: Options) -> Report:
    """What half of epsilon, all of it, and twice as much are expected to give, without a row."""
    mechanism = constructed(options.mechanism)
    if not isinstance(mechanism, SecondMomentMechanism):
        raise ValueError(
            "MECHANISM must be one of FederatedPCA, such as AnalyzeGauss, got "
            f"{type(mechanism).__name__}."
        )
    n, d = options.rows, options.columns
    whole = mechanism.plan(n, d, options.components, spectrum=options.spectrum)
    lines = [f"{n} rows, {d} columns, delta {mechanism.delta:g}\n   epsilon  error  above noise"]
    plans = []
    for one in filter(None, (whole.half, whole, whole.twice)):
        above = one.n_components_above_noise
        lines.append(f"{one.epsilon:10.4g}  {one.error:5.3f}  {above:11.1f}")
        plans.append(
            {"epsilon": one.epsilon, "error": one.error, "n_components_above_noise": above}
        )
    return Report("\n".join(lines), {"plans": plans})


def audit_log(options: Options) -> Report:
    """What a site was asked and answered; a log that is not what was written is exit code 1."""
    text, whole = audit(options.log)
    lines = [line.strip() for line in text.splitlines()]
    report = {"log": options.log, "whole": whole, "lines": lines}
    return Report(f"{printable(options.log)}\n{text}", report, 0 if whole else 1)
