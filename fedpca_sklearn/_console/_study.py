"""ask, answer and next: a fit of any estimator by files."""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path
from typing import Any

from ..engines._messages import read_letter
from ..engines._parameters import constructed, construction_of, public_class
from ..engines.files import SecureAggregation, SitePolicy, SiteRows, Study
from ..engines.files import answer as answer_of_site
from ..federated import FederatedScaler
from ._commands import moments_written
from ._report import Report, check_output, printable
from ._rows import Rows
from ._summaries import checked_site, saved, stating_model


def ask(options: argparse.Namespace) -> Report:
    """Begin a fit of any estimator at sites."""
    estimator = constructed(options.estimator)
    sites, secure = options.sites, _secure(options)
    study = Study.begin(
        options.folder, estimator, sites, min_sites=options.min_sites, secure=secure
    )
    return _gone_on(options, study, study.next(), "")


def go_on(options: argparse.Namespace) -> Report:
    """Go on with a fit, as far as answers go."""
    folder = Path(options.folder)
    output = options.output or str(folder / "model.subspace")
    check_output(output, options.force, [str(folder / "study.json")])
    study = Study(folder)
    fitted = study.next()
    for site in options.without:
        study.without(site)
    if options.without:
        fitted = study.next()
    return _gone_on(options, study, fitted, output)


def _gone_on(options: argparse.Namespace, study: Study, fitted: Any, output: str) -> Report:
    """What is awaited, or the model that the answers make."""
    named = construction_of(study.estimator)
    if fitted is None:
        questions = [str(path.with_suffix(".question")) for path in study.awaited]
        awaited = [str(path) for path in study.awaited]
        lines = [
            f"  {printable(q)} -> {printable(a)}" for q, a in zip(questions, awaited, strict=True)
        ]
        text = "\n".join([f"{printable(named)} awaits answers", *lines])
        return Report(text, {"done": False, "questions": questions, "awaited": awaited})
    facts = {"done": True, "output": output, "missing": fitted.missing_sites_}
    if isinstance(fitted, FederatedScaler):
        return moments_written(fitted, output, facts)
    if not hasattr(fitted, "subspace_"):
        raise ValueError(
            f"no file holds a {type(fitted).__name__}; Study({options.folder!r}).next() of "
            "fedpca_sklearn.engines.files returns it in Python."
        )
    summary = fitted.subspace_
    if hasattr(fitted, "subspace_error_bound_"):
        summary = stating_model(fitted, summary)
    else:
        summary = summary.truncate(fitted.n_components_)
    report = saved(output, summary)
    report.facts |= facts
    return report


# -------------------------------------------------------------------- a site


def answer(options: argparse.Namespace) -> Report:
    """Answer a question of a study with the rows of files."""
    log, output = log_of(options), options.output
    check_output(output, options.force, [options.question, *options.rows, log])
    site = checked_site(options)
    letter, _ = read_letter(options.question)
    named, estimator = str(letter.about.get("site")), str(letter.about.get("estimator"))
    if site not in (None, named):
        raise ValueError(f"{options.question}: it is for site {named!r}, not {site!r}.")
    rows = Rows(options.rows, options, options.columns, keep_missing=not options.drop_missing)
    given = None if options.estimator is None else constructed(options.estimator)
    loaded = [SiteRows(batch, columns=rows.names) for batch in rows]
    if not loaded:
        raise ValueError(f"there is no row in {', '.join(options.rows)}.")
    _make_log(log, options.log is None)
    policy = SitePolicy(
        estimators=_allowed(options.allow),
        min_rows=options.min_rows,
        max_rounds=options.max_rounds,
        log=log,
        mechanism=None if options.mechanism is None else constructed(options.mechanism),
        ledger=options.ledger,
    )
    refusal = answer_of_site(
        options.question,
        output,
        loaded,
        state=options.state or f"{log}.studies",
        estimator=given,
        policy=policy,
        secure=_secure(options),
    )
    said = f"refuses: {refusal}" if refusal else f"answers a question of {letter.message.kind!r}"
    lines = [said, f"of a fit of {estimator}", f"noted in {log}"]
    text = "\n  ".join(map(printable, [output, *lines]))
    report = {"output": output, "refusal": refusal, "estimator": estimator}
    return Report(text, {**report, "site": named, "log": log}, 1 if refusal else 0)


def _secure(options: argparse.Namespace) -> SecureAggregation | None:
    return None if options.secure is None else SecureAggregation(threshold=options.secure)


def _allowed(names: Any) -> tuple[type, ...] | None:
    """Classes of estimators that the owner allows, by their names."""
    if names is None:
        return None
    for name in names:
        if public_class(name) is None:
            raise ValueError(f"--allow must name estimators of fedpca_sklearn, got {name!r}.")
    return tuple(map(public_class, names))


def log_of(options: argparse.Namespace) -> str:
    """Path of the log: that of ``--log``, or one for the files of rows."""
    if options.log is not None:
        return options.log
    home = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(home):  # as the specification of these folders has it
        home = os.path.expanduser(os.path.join("~", ".local", "state"))
        if not os.path.isabs(home):
            raise ValueError(
                "nobody knows where the home folder is: --log FILE says where the log is."
            )
    places = "\n".join(os.path.realpath(path) for path in options.rows)
    digest = hashlib.sha256(os.fsencode(places)).hexdigest()[:16]
    return os.path.join(home, "fedpca", f"{digest}.log")


def _make_log(path: str, with_folder: bool) -> None:
    """Make the log, which nobody else reads, if there is none."""
    try:
        if with_folder:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise ValueError(
            f"the log {path} cannot be written ({error.strerror}): nothing is answered without "
            "one, --log FILE says where it is."
        ) from error
