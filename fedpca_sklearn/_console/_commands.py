"""Commands of a site, of a coordinator and of a study, with summaries of rows; and `show`."""

from __future__ import annotations

import argparse
import csv
import hashlib
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from .._base.adjusting import confounders_of
from .._validation.containers import listed
from .._validation.files import written
from ..engines._messages import read_letter, shown
from ..engines._parameters import constructed, construction_of, public_class
from ..engines._site_policy import audit
from ..engines.files import SecureAggregation, SitePolicy, SiteRows, Study
from ..engines.files import answer as answer_of_site
from ..federated import FederatedPCA, FederatedScaler
from ..federated._local_fit import labels_of_sites
from ..metrics import subspace_distance
from ..plotting._displays import AS_IT_IS
from ..privacy import SecondMomentMechanism
from ..streaming import StreamingPCA
from ..summary import Subspace
from . import _summaries as models
from ._row_files import SCORES, Rows, by_its_end, needed
from ._summaries import Report, check_output, described, facts

_HEADER = ["column", "mean", "deviation"]
_SHOWN = 5

Options = argparse.Namespace


# ---------------------------------------------------------------------- rows


def fit(options: Options) -> Report:
    """Summary of the rows of a site, over which it goes once."""
    check_output(options.output, options.force, [*options.rows, *filter(None, [options.like])])
    site = models.checked_site(options)
    like = models.load(options.like) if options.like else None
    names = like.feature_names if like else None
    if like and not names:
        raise ValueError(f"{options.like}: it has no names of columns, which --like takes.")
    rows = Rows(options.rows, options, names)
    pca = StreamingPCA(options.n_components, scale=options.scale)
    for batch in rows:
        if options.partial_out and pca.partial_out is None:
            pca.partial_out = confounders_of(options.partial_out, batch.shape[1], rows.names)
        pca.partial_fit(batch)
    n, paths = rows.n_read, ", ".join(options.rows)
    if not n:
        raise ValueError(f"there is no row in {paths}.")
    if n < options.min_rows:
        raise ValueError(
            f"{paths}: {n} row{'s' if n > 1 else ''}, and --min-rows is {options.min_rows}, "
            f"as a summary of few rows tells much of each; --min-rows {n} allows it."
        )
    summary = pca.subspace_._replace(feature_names=rows.names, site=site)
    if options.scale or options.partial_out:
        summary = models.stating_model(pca, summary)
    warnings = models.unlike_units([like, summary], [options.like, options.output]) if like else []
    report = models.saved(options, options.output, summary, warnings)
    report.facts["left_out"] = rows.n_dropped
    if rows.n_dropped:
        report.text += f"\n  {'left out':<11}{rows.n_dropped} rows with gaps"
    return report


def transform(options: Options) -> Report:
    """Scores of rows, over which it goes once."""
    check_output(options.output, options.force, [options.model, *options.rows])
    opened = by_its_end(options.output, SCORES, "scores")
    pca = models.model_in(options, options.model, models.load(options.model))
    rows = Rows(options.rows, options, pca.subspace_.feature_names)
    pca.__dict__.pop("feature_names_in_", None)  # batches have the columns, and no names
    names = list(pca.get_feature_names_out())
    with written(options.output) as path, opened(path, names) as write:
        for batch in rows:
            write(pca.transform(batch))
        check_output(options.output, options.force, ())  # another command may have written it
    n, k = rows.n_read, pca.n_components_
    text = f"{shown(options.output)}\n  {'rows':<11}{n}\n  {'components':<11}{k}"
    if how := models.adjusted_how(pca.scale, pca.partial_out):
        text += f", {how}"
    found = {"scale": pca.scale, "partial_out": pca.partial_out or []}
    return Report(text, {"output": options.output, "rows": n, "components": k, **found})


# ---------------------------------------------------------------------- summaries


def inspect(options: Options) -> Report:
    """What is in summaries; their units are compared where they have the same columns."""
    summaries = [models.load(file) for file in options.files]
    pairs = list(zip(options.files, summaries, strict=True))
    text = "\n".join(f"{shown(file)}\n{described(summary)}" for file, summary in pairs)
    found = [{"file": file, **facts(summary)} for file, summary in pairs]
    warnings = models.unlike_units(summaries, options.files)
    return Report(text, {"summaries": found}, warnings=warnings)


def merge(options: Options) -> Report:
    """One summary of all sites, as `FederatedPCA.from_subspaces` makes it."""
    summaries, warnings = models.summaries_of_files(options)
    fitted = models.model_of(options, summaries, options.files)
    return models.model_written(options, fitted, warnings)


def remove(options: Options) -> Report:
    """Merge the files without the site's, and tell how far the components have moved."""
    summaries, warnings = models.summaries_of_files(options)
    own = [i for i, summary in enumerate(summaries) if summary.site == options.site]
    if not own:
        others = listed(sorted({site for summary in summaries for site in summary.sites}))
        raise ValueError(f"no file is of the site {options.site!r} alone: they are of {others}.")
    fitted = models.model_of(options, summaries, options.files)
    before = fitted.components_
    fitted.remove(labels_of_sites(summaries)[own[0]])
    report = models.model_written(options, fitted, warnings)
    k = min(len(before), len(fitted.components_))
    moved = subspace_distance(before[:k], fitted.components_[:k])
    report.text += f"\n  {'moved':<11}{moved:.2g}, of {k} components"
    report.facts |= {"moved": moved, "of_components": k}
    return report


def scale(options: Options) -> Report:
    """Means and deviations of the rows of all sites, for another tool."""
    summaries, warnings = models.summaries_of_files(options)
    rows = float(sum(summary.n_samples for summary in summaries))
    facts = {"output": options.output, "rows": rows}
    scaler = FederatedScaler.from_subspaces(summaries)
    return moments_written(scaler, options.output, facts, warnings)


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
    first = [f"  {name:<20} {m:>12.6g} {s:>12.6g}" for name, m, s in lines[:_SHOWN]]
    more = len(lines) - _SHOWN
    rest = [f"  and {more} more columns"] if more > 0 else []
    title = f"  {'column':<20} {'mean':>12} {'deviation':>12}"
    rows = [f"  rows {facts['rows']:.6g}"] if "rows" in facts else []
    text = "\n".join([output, *rows, title, *first, *rest])
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
    title = f"{n} rows, {d} columns, delta {mechanism.delta:g}\n   epsilon  error  above noise"
    plans = [
        {name: getattr(one, name) for name in ("epsilon", "error", "n_components_above_noise")}
        for one in filter(None, (whole.half, whole, whole.twice))
    ]
    lines = ("{:10.4g}  {:5.3f}  {:11.1f}".format(*one.values()) for one in plans)
    return Report("\n".join([title, *lines]), {"plans": plans})


def audit_log(options: Options) -> Report:
    """What a site was asked and answered; a log that is not what was written is exit code 1."""
    text, whole = audit(options.log)
    lines = [line.strip() for line in text.splitlines()]
    report = {"log": options.log, "whole": whole, "lines": lines}
    return Report(f"{shown(options.log)}\n{text}", report, 0 if whole else 1)


_PICTURES = ".png", ".pdf", ".svg"
# Components in the text, and in the picture.
_MOST_LISTED, _MOST_DRAWN = 10, 6
_NAME = 40


def show(options: Options) -> Report:
    """Compute the components from the summary, by the options that its file states."""
    if options.plot is not None:  # before anything is computed
        if os.path.splitext(options.plot)[1].lower() not in _PICTURES:
            ends = ", ".join(_PICTURES)
            raise ValueError(f"--plot must end in one of {ends}, got {options.plot}.")
        check_output(options.plot, options.force, [options.model])
        needed("matplotlib", "plot")
    summary = models.load(options.model)
    fitted = models.model_in(options, options.model, summary)
    model: Any = models.stating_model(fitted, fitted.subspace_).model
    if summary.model is not None and summary.model.n_components == model.n_components:
        # the file's is that of before a cut
        bound = min(model.error_bound, summary.model.error_bound)
        model = model._replace(error_bound=bound)
    stated = fitted.subspace_._replace(model=model)
    names = _names_of(fitted, stated)
    if options.plot is not None:
        with written(options.plot) as path:
            _draw(options, path, fitted, names)
    found = {"file": options.model, **facts(stated)}
    of_variance = ("explained_variance" + what for what in ("", "_ratio", "_interval"))
    found["model"] |= {"names": names, "loadings": fitted.components_}
    found["model"] |= {name: getattr(fitted, f"{name}_") for name in of_variance}
    return Report("\n".join(_lines(options, stated, fitted, names)), found)


def _names_of(fitted: FederatedPCA, summary: Subspace) -> list[str]:
    """Names of the columns that components have, or their numbers from 1."""
    names = summary.feature_names or range(1, summary.n_features + 1)
    confounders = set(getattr(fitted, "confounders_", ()))
    return [str(name) for j, name in enumerate(names) if j not in confounders]


def _lines(options: Options, stated: Subspace, fitted: FederatedPCA, names: list[str]) -> list[str]:
    """A summary, and under each component its largest loadings."""
    k, ratios = fitted.n_components_, fitted.explained_variance_ratio_
    how = models.adjusted_how(fitted.scale, models.confounder_names(stated))
    about = {
        "explained": models.shares(ratios),
        "model": f"{k} components" + (f", {how}" if how else ""),
        "error": _error_of(stated, fitted.subspace_error_bound_),
    }
    lines = [shown(options.model), described(stated, **about)]
    cumulative = np.cumsum(ratios)
    for i, v in enumerate(fitted.components_[:_MOST_LISTED]):
        lines.append(
            f"  component {i + 1}: variance {fitted.explained_variance_[i]:.6g}, share "
            f"{ratios[i]:.3f}, with those before {cumulative[i]:.3f}"
        )
        lines += [f"    {names[j]:<24}{v[j]:>9.5f}" for j in _largest(v, options.top)]
        if options.top < len(v):
            lines.append(f"    and {len(v) - options.top} more columns")
    if k > _MOST_LISTED:
        lines.append(f"  and {k - _MOST_LISTED} more components")
    return lines


def _error_of(stated: Subspace, computed: float) -> str:
    """What is known of the angle to the components of all rows: computed, or as the file states."""
    if stated.privacy is not None:
        return "not known, as the summary has the noise of a mechanism"
    bound = math.inf if stated.model is None else stated.model.error_bound
    if bound >= 1:
        return "not known, as directions were cut; rounds of refine make it smaller"
    who = ", as the file states" if bound < computed else ""
    return f"at most {bound:.1e}, sine of the angle to the components of all rows{who}"


def _largest(v: np.ndarray, most: int) -> np.ndarray:
    """Positions of the largest loadings, the first one in front."""
    return np.argsort(-np.abs(v), kind="stable")[:most]


def _draw(options: Options, path: str, fitted: FederatedPCA, names: list[str]) -> None:
    """Bars of the largest loadings, a panel for each of the first components."""
    V, ratios = fitted.components_[:_MOST_DRAWN], fitted.explained_variance_ratio_
    n, rows = max(len(V), 1), min(options.top, len(names))
    longest = max(len(name[:_NAME]) for name in names)
    size = (2.4 + 0.1 * longest) * n, 1.2 + 0.25 * rows
    figure = needed("matplotlib.figure", "plot").Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, n, sharex=True, squeeze=False)[0]
    for i, (ax, v) in enumerate(zip(panels, V, strict=False)):
        chosen, places = _largest(v, options.top), np.arange(rows)
        ax.barh(places, v[chosen])
        ax.set_yticks(places, [names[j][:_NAME] for j in chosen], **AS_IT_IS)
        ax.invert_yaxis()
        ax.axvline(0, color="grey", linewidth=0.8)
        ax.set(title=f"component {i + 1} ({100 * ratios[i]:.0f} %)", xlabel="loading")
    figure.savefig(path, format=os.path.splitext(options.plot)[1][1:].lower())


def ask(options: Options) -> Report:
    """Begin a fit of any estimator at sites."""
    estimator = constructed(options.estimator)
    sites, least, secure = options.sites, options.min_sites, _secure(options)
    try:
        study = Study.begin(options.folder, estimator, sites, min_sites=least, secure=secure)
    except TypeError as error:  # of an estimator that sites do not know
        raise ValueError(str(error)) from error
    return _gone_on(options, study, study.next(), "")


def go_on(options: Options) -> Report:
    """Go on with a fit, as far as answers go."""
    folder = Path(options.folder)
    output = options.output or str(folder / "model.subspace")
    letters = folder.glob("[0-9]*.*.[aqw]*")  # answers, questions, and who is gone on without
    check_output(output, options.force, [str(folder / "study.json"), *map(str, letters)])
    study = Study(folder)
    fitted = study.next()
    if options.without:
        study.without(*options.without)
        fitted = study.next()
    return _gone_on(options, study, fitted, output)


def _gone_on(options: Options, study: Study, fitted: Any, output: str) -> Report:
    """What is awaited, or the model that the answers make."""
    if fitted is None:
        questions = [str(path.with_suffix(".question")) for path in study.awaited]
        awaited = [str(path) for path in study.awaited]
        pairs = zip(map(shown, questions), map(shown, awaited), strict=True)
        title = f"{shown(construction_of(study.estimator))} awaits answers"
        text = "\n".join([title, *(f"  {q} -> {a}" for q, a in pairs)])
        return Report(text, {"done": False, "questions": questions, "awaited": awaited})
    facts = {"done": True, "output": output, "missing": fitted.missing_sites_}
    if isinstance(fitted, FederatedScaler):
        return moments_written(fitted, output, facts)
    if not hasattr(fitted, "subspace_"):
        raise ValueError(
            f"no file holds a {type(fitted).__name__}; Study({options.folder!r}).next() of "
            "fedpca_sklearn.engines.files returns it in Python."
        )
    summary, ratios = fitted.subspace_, None
    if hasattr(fitted, "subspace_error_bound_"):
        summary, ratios = models.stating_model(fitted, summary), fitted.explained_variance_ratio_
    else:
        summary = summary.truncate(fitted.n_components_)
    report = models.saved(options, output, summary, ratios=ratios)
    report.facts |= facts
    return report


# -------------------------------------------------------------------- a site


def answer(options: Options) -> Report:
    """Answer a question of a study with the rows of files."""
    log, output = log_of(options), options.output
    state, secure = options.state or f"{log}.studies", _secure(options)
    read = [options.question, *options.rows, log, f"{log}.head", *filter(None, [options.ledger])]
    check_output(output, options.force, [*read, *map(str, Path(state).glob("*"))])
    site = models.checked_site(options)
    letter, _ = read_letter(options.question)
    named, estimator = str(letter.about.get("site")), str(letter.about.get("estimator"))
    if site not in (None, named):
        raise ValueError(f"{options.question}: it is for site {named!r}, not {site!r}.")
    rows = Rows(options.rows, options, keep_missing=not options.drop_missing)
    given = None if options.estimator is None else constructed(options.estimator)
    if not (batches := list(rows)):
        raise ValueError(f"there is no row in {', '.join(options.rows)}.")
    # one array: if chunks were batches, all rows minus those of a batch might be a single row
    sparse = any(map(sp.issparse, batches))
    X = sp.vstack(batches, format="csr") if sparse else np.vstack(batches)
    loaded = SiteRows(X, columns=rows.names)
    for name in options.allow or ():
        if public_class(name) is None:
            raise ValueError(f"--allow must name estimators of fedpca_sklearn, got {name!r}.")
    if options.log is None:
        os.makedirs(os.path.dirname(log), mode=0o700, exist_ok=True)
    os.close(os.open(log, os.O_RDWR | os.O_CREAT, 0o600))  # which nobody else reads
    allowed = None if options.allow is None else tuple(map(public_class, options.allow))
    owner = None if options.mechanism is None else constructed(options.mechanism)
    rules = {name: getattr(options, name) for name in ("min_rows", "max_rounds", "ledger")}
    policy = SitePolicy(estimators=allowed, mechanism=owner, log=log, **rules)
    refusal = answer_of_site(
        options.question, output, loaded, state=state, estimator=given, policy=policy, secure=secure
    )
    said = f"refuses: {refusal}" if refusal else f"answers a question of {letter.message.kind!r}"
    lines = [said, f"of a fit of {estimator}", f"noted in {log}"]
    text = "\n  ".join(map(shown, [output, *lines]))
    report = {"output": output, "refusal": refusal, "estimator": estimator}
    return Report(text, {**report, "site": named, "log": log}, 1 if refusal else 0)


def _secure(options: Options) -> SecureAggregation | None:
    return None if options.secure is None else SecureAggregation(threshold=options.secure)


def log_of(options: Options) -> str:
    """Path of the log: that of ``--log``, or one for the files of rows."""
    if options.log is not None:
        return options.log
    homes = os.environ.get("XDG_STATE_HOME", ""), os.path.expanduser("~/.local/state")
    home = next(filter(os.path.isabs, homes), None)  # as the specification of these folders has it
    if home is None:
        raise ValueError("nobody knows where the home folder is: --log FILE says where the log is.")
    places = "\n".join(os.path.realpath(path) for path in options.rows)
    digest = hashlib.sha256(os.fsencode(places)).hexdigest()[:16]
    return os.path.join(home, "fedpca", f"{digest}.log")
