"""What a site does about a message: it is noted, checked, answered or refused, and noted again."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from .._validation.texts import check_text
from ._messages import arrays_of, sizes_of
from ._parameters import check_same_estimator
from ._questions import RefusedError, Task, asked, nonce_of
from ._records import Array, Context, Message
from ._rows import KeptMoments, asked_rows
from ._site_policy import Exchange, SitePolicy
from ._site_privacy import Site

# What a site does with the numbers of a task before anything leaves it:
# ``seal(message, context, numbers)`` returns the arrays that are sent, and what else is told.
Seal = Callable[[Message, Context, dict[str, Any]], tuple[dict[str, Any], dict[str, Any]]]
# The log of a site, which records errors in full.
_LOG = logging.getLogger("fedpca_sklearn")


def answering(
    load_rows: Callable,
    name_of: Callable,
    policy: SitePolicy,
    estimator: Any,
    tasks: dict[str, Task],
    kind: str,
    kept: KeptMoments,
    parameters: Mapping[str, str],
    seal: Seal | None = None,
) -> Callable[[Message, Context], Message]:
    """Handler of one kind of message at a site.

    ``parameters`` are the `parameters_of` the estimator.
    With ``seal`` the numbers of the task stay at the site, and what it makes of them is sent.
    """

    def reply(message: Message, context: Context) -> Message:
        config: dict[str, Any] = {"site": f"node {context.node_id}"}
        arrays: dict[str, Array] = {}
        exchange = Exchange(policy, kind, str(context.run_id), type(estimator).__name__)
        try:
            config["nonce"] = nonce_of(message)
            exchange.question(sizes_of(message.arrays))
            site = str(name_of(context.given))
            check_text("site", site)
            config["site"] = site
            policy.check_estimator(estimator)
            check_same_estimator(message, estimator, seal is not None, parameters)
            if kind not in tasks:
                raise RefusedError(f"the estimator has no question of the kind {kind!r}")
            who = Site(site, context, exchange)
            question = asked(message, context, tasks, kind)
            public = list(context.run_config.values())
            rows = asked_rows(load_rows(context.given), tasks[kind], question, public)
            rows.check_enough(policy.min_rows)
            moments = partial(kept.of, context, question.batch)
            found = rows.answer(tasks[kind], who, question.arguments, policy.min_rows, moments)
            beside: dict[str, Any] = {"dtype": rows.X.dtype.name}
            if rows.columns is not None:
                beside["columns"] = rows.columns
            if seal is not None:
                found, sealed = seal(message, context, found)
                beside |= sealed
            sent = arrays_of(found)
            exchange.answer({**sizes_of(sent), **who.privacy})
            config |= {**beside, **who.privacy}
            arrays = sent
        except Exception as error:
            config["error"] = _told(error, kind, context.run_id)
            exchange.refusal(config["error"])
        return Message(kind, config, arrays)

    return reply


def _told(error: Exception, kind: str, run: int) -> str:
    """Text about an error for the server; the whole error goes to the log of the site."""
    if isinstance(error, RefusedError):
        _LOG.warning("Refused a question %r of run %s: %s", kind, run, error)
        return f"refused: {error}"
    reference = secrets.token_hex(4)
    _LOG.error("%s: question %r of run %s failed", reference, kind, run, exc_info=error)
    return f"{type(error).__name__}, {reference} in the log of the site"
