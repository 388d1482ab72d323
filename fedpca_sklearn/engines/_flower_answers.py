"""What a site does about a message: it is noted, checked, answered or refused, and noted again."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

from .._validation.texts import check_text
from ._flower_messages import array_record, sizes_of
from ._flower_questions import Question, RefusedError, Task, asked, nonce_of
from ._flower_rows import AskedRows, asked_rows
from ._flower_secure_site import Answering
from ._flwr import ConfigRecord, Context, Message, RecordDict
from ._site_policy import Exchange, SitePolicy
from ._site_privacy import Site

# The log of a site, which records errors in full.
_LOG = logging.getLogger("fedpca_sklearn")
# Any rows are fit for it.
_ANY_TASK = Task(lambda site, X: {})


def _told_beside(rows: AskedRows) -> dict[str, Any]:
    """What is told of rows beside an answer."""
    about: dict[str, Any] = {"dtype": rows.X.dtype.name}
    if rows.columns is not None:
        about["columns"] = rows.columns
    return about


def about_rows(load_rows: Callable, min_rows: int, context: Context) -> tuple[Any, dict[str, Any]]:
    """Rows of a site, if they are enough, and what is told of them beside an answer."""
    rows = asked_rows(load_rows(context), _ANY_TASK, Question([]))
    rows.check_enough(min_rows)
    return rows.X, _told_beside(rows)


def works(load_rows: Callable, min_rows: int, tasks: dict[str, Task]) -> dict[str, Answering]:
    """By kind of question, what counts it, checks it and works on the rows."""

    def work(kind: str, message: Message, context: Context, site: Site) -> tuple[dict, dict]:
        question = asked(message, context, tasks, kind)
        public = list(context.run_config.values())
        rows = asked_rows(load_rows(context), tasks[kind], question, public)
        rows.check_enough(min_rows)
        return rows.answer(tasks[kind], site, question.arguments), _told_beside(rows)

    return {kind: partial(work, kind) for kind in tasks}


def answering(
    name_of: Callable, policy: SitePolicy, estimator: Any, kind: str, answer: Answering
) -> Callable:
    """Handler of one kind of message at a site."""

    def reply(message: Message, context: Context) -> Message:
        config: dict[str, Any] = {"site": f"node {context.node_id}"}
        arrays = array_record({})
        exchange = Exchange(policy, kind, str(context.run_id), type(estimator).__name__)
        try:
            config["nonce"] = nonce_of(message)
            exchange.question(sizes_of(message.content.array_records.get("arguments", {})))
            site = str(name_of(context))
            check_text("site", site)
            config["site"] = site
            policy.check_estimator(estimator)
            asked = Site(site, context, exchange)
            made, about = answer(message, context, asked)
            found = array_record(made)
            exchange.answer({**sizes_of(found), **asked.privacy})
            config |= about | asked.privacy
            arrays = found
        except Exception as error:
            config["error"] = _told(error, kind, context.run_id)
            exchange.refusal(config["error"])
        content = RecordDict({"config": ConfigRecord(config), "arrays": arrays})
        return Message(content, reply_to=message)

    return reply


def _told(error: Exception, kind: str, run: int) -> str:
    """Text about an error for the server; the whole error goes to the log of the site."""
    if isinstance(error, RefusedError):
        _LOG.warning("Refused a question %r of run %s: %s", kind, run, error)
        return f"refused: {error}"
    reference = secrets.token_hex(4)
    _LOG.error("%s: question %r of run %s failed", reference, kind, run, exc_info=error)
    return f"{type(error).__name__}, {reference} in the log of the site"
