"""Progress through scikit-learn's callbacks, where the installed release has them (>= 1.9)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks

    _SUPPORTED = True
except ImportError:  # scikit-learn < 1.9
    _SUPPORTED = False

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Stands in for scikit-learn's mixin: there are no callbacks to set."""

    def with_callbacks(method):
        """Stand in for scikit-learn's decorator: return the method as it is."""
        return method


__all__ = [
    "CALLBACKS",
    "CallbackSupportMixin",
    "callback_state",
    "has_callbacks",
    "progress",
    "rounds_of",
    "with_callbacks",
]


# Where scikit-learn keeps those of an estimator.
CALLBACKS = "_skl_callbacks"


def has_callbacks(estimator: Any) -> bool:
    """Whether somebody wants to know how a fit goes on."""
    return _SUPPORTED and bool(getattr(estimator, CALLBACKS, None))


def callback_state(estimator: Any) -> dict[str, Any]:
    """Attributes in which scikit-learn keeps the callbacks of an estimator and of a running fit."""
    return {k: v for k, v in vars(estimator).items() if k.startswith(("_callback", "_skl"))}


# A fit reports at most this many tasks: progress bars take time quadratic in their number.
MAX_TASKS = 100


def progress(estimator: Any, items: Iterable, n_items: int | None, name: str) -> Iterator:
    """Yield the items, and report every few of them to the estimator's callbacks as a task.

    A callback that asks to stop ends the iteration early. ``n_items=None``: not known in advance;
    tasks then take more and more items.
    """
    if not has_callbacks(estimator):
        yield from items
        return
    per_task = 1 if n_items is None else -(-n_items // MAX_TASKS)
    n_tasks = None if n_items is None else -(-n_items // per_task)
    context = estimator._init_callback_context(max_subtasks=n_tasks)
    context.call_on_fit_task_begin(estimator=estimator)
    task, n_begun, in_task = None, 0, 0
    try:
        for item in items:
            if task is not None and in_task == per_task:
                stop = task.call_on_fit_task_end(estimator=estimator)
                task = None
                if stop:
                    break
                if n_items is None and n_begun % 8 == 0:
                    per_task *= 2
            if task is None:
                task = context.subcontext(task_name=name)
                task.call_on_fit_task_begin(estimator=estimator)
                n_begun, in_task = n_begun + 1, 0
            in_task += 1
            yield item
    except GeneratorExit:  # no more items are wanted; after an error the fit is over already
        if vars(estimator).get("_callback_fit_ctx") is not context:
            raise
    if task is not None:
        task.call_on_fit_task_end(estimator=estimator)
    context.call_on_fit_task_end(estimator=estimator)


def rounds_of(estimator: Any, n_rounds: int) -> Iterator[int]:
    """Yield the numbers of rounds, each a task of the estimator's callbacks."""
    return progress(estimator, range(n_rounds), n_rounds, "rounds")
