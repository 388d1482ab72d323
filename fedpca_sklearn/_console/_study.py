"""ask, answer and next: a fit of any estimator by files."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from .._validation.files import written
from ..engines._letters import read_letter
from ..engines._parameters import constructed, construction_of, public_class
from ..engines.files import SecureAggregation, SitePolicy, SiteRows, Study
from ..engines.files import answer as answer_of_site
from ..federated import FederatedScaler
from ._output import Report, add_output, check_output
from ._owner import add_min_rows, add_rules, log_of, make_log
from ._rows import Rows, add_rows
from ._scale import moments_written
from ._summaries import add_site, checked_site, stating_model
from ._texts import count, described, names_in, printable
from ._texts import facts as facts_of


def add_ask(commands: Any) -> None:
    """Add the command that begins a study to the parser."""
    parser = commands.add_parser("ask", help="begin a fit of any estimator at sites, by files")
    parser.add_argument("folder", metavar="FOLDER", help="a new folder for questions and answers")
    parser.add_argument(
        "estimator", metavar="ESTIMATOR", help='in Python, as "FederatedPowerPCA(n_components=5)"'
    )
    parser.add_argument(
        "--sites", type=names_in, required=True, help="their names, with commas", metavar="NAMES"
    )
    parser.add_argument(
        "--min-sites", type=count, default=2, help="with fewer there is no fit (default: 2)"
    )
    parser.add_argument(
        "--secure",
        type=count,
        help="by secure sums of at least N sites, with four files of a site for the first sum and "
        "three for each other one",
        metavar="N",
    )
    parser.set_defaults(command=_ask)


def add_next(commands: Any) -> None:
    """Add the command that goes on with a study to the parser."""
    parser = commands.add_parser("next", help="go on with a fit by files, as far as answers go")
    parser.add_argument("folder", metavar="FOLDER", help="that of ask, with the answers")
    parser.add_argument("-o", "--output", help="the model (default: FOLDER/model.subspace)")
    parser.add_argument("--force", action="store_true", help="replace the output if it exists")
    parser.add_argument(
        "--without",
        type=names_in,
        default=(),
        help="sites whose answers are awaited no longer, with commas",
        metavar="NAMES",
    )
    parser.set_defaults(command=_next)


def _ask(options: argparse.Namespace) -> Report:
    estimator = constructed(options.estimator)
    secure = None if options.secure is None else SecureAggregation(threshold=options.secure)
    study = Study.begin(
        options.folder, estimator, options.sites, min_sites=options.min_sites, secure=secure
    )
    return _gone_on(options, study, study.next(), "")


def _next(options: argparse.Namespace) -> Report:
    folder = Path(options.folder)
    options.output = options.output or str(folder / "model.subspace")
    check_output(options, [str(folder / "study.json")])
    study = Study(folder)
    fitted = study.next()
    for site in options.without:
        study.without(site)
    if options.without:
        fitted = study.next()
    return _gone_on(options, study, fitted, options.output)


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
    with written(output) as path:
        summary.save(path)
    text = f"{printable(output)}\n{described(summary)}"
    return Report(text, {**facts, **facts_of(summary)})


# -------------------------------------------------------------------- a site


def add_answer(commands: Any) -> None:
    """Add the command of a site to the parser."""
    parser = commands.add_parser("answer", help="answer a question of ask and next")
    parser.add_argument("question", metavar="QUESTION")
    parser.add_argument("rows", nargs="+", metavar="ROWS", help="the same for all questions")
    add_output(parser)
    add_rows(parser)
    add_site(parser)
    parser.add_argument("--drop-missing", action="store_true", help="leave out rows with gaps")
    add_min_rows(parser)
    add_rules(parser)
    parser.add_argument(
        "--state",
        help="folder of what this site keeps of a study (default: beside the log)",
        metavar="FOLDER",
    )
    parser.add_argument("--ledger", help="file of what noise has cost these rows", metavar="FILE")
    parser.add_argument(
        "--estimator", help="the only one that is answered for", metavar="ESTIMATOR"
    )
    parser.add_argument(
        "--mechanism",
        help="the owner's, whose budget counts, with a ledger",
        metavar="MECHANISM",
    )
    parser.add_argument(
        "--secure",
        type=count,
        help="refuse a question unless it is of secure sums over at least N sites",
        metavar="N",
    )
    parser.set_defaults(command=_answer)


def _answer(options: argparse.Namespace) -> Report:
    """Answer a question of a study with the rows of files."""
    check_output(options, [options.question, *options.rows, log_of(options)])
    site = checked_site(options)
    letter, _ = read_letter(options.question)
    named = str(letter.about.get("site"))
    if site not in (None, named):
        raise ValueError(f"{options.question}: it is for site {named!r}, not {site!r}.")
    rows = Rows(options.rows, options, options.columns, keep_missing=not options.drop_missing)
    given = None if options.estimator is None else constructed(options.estimator)
    loaded = [SiteRows(batch, columns=rows.names) for batch in rows]
    if not loaded:
        raise ValueError(f"there is no row in {', '.join(options.rows)}.")
    make_log(options)
    policy = SitePolicy(
        estimators=_allowed(options.allow),
        min_rows=options.min_rows,
        max_rounds=options.max_rounds,
        log=log_of(options),
        mechanism=None if options.mechanism is None else constructed(options.mechanism),
        ledger=options.ledger,
    )
    state = options.state or f"{log_of(options)}.studies"
    secure = None if options.secure is None else SecureAggregation(threshold=options.secure)
    refusal = answer_of_site(
        options.question,
        options.output,
        loaded,
        state=state,
        estimator=given,
        policy=policy,
        secure=secure,
    )
    estimator = str(letter.about.get("estimator"))
    said = f"refuses: {refusal}" if refusal else f"answers a question of {letter.message.kind!r}"
    text = "\n".join(
        [
            printable(options.output),
            f"  {printable(said)}",
            f"  of a fit of {printable(estimator)}",
            f"  noted in {printable(log_of(options))}",
        ]
    )
    report = {"output": options.output, "refusal": refusal, "estimator": estimator}
    report |= {"site": named, "log": os.fspath(log_of(options))}
    return Report(text, report, 1 if refusal else 0)


def _allowed(names: Any) -> tuple[type, ...] | None:
    """Classes of estimators that the owner allows, by their names."""
    if names is None:
        return None
    for name in names:
        if public_class(name) is None:
            raise ValueError(f"--allow must name estimators of fedpca_sklearn, got {name!r}.")
    return tuple(map(public_class, names))
