"""What other threads and failed calls see of an estimator: one whole fitted state."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import contextmanager
from functools import wraps
from typing import Any

from .._kernels.threads import blocks_of_this_thread, leave_later_blocks
from .._validation.arrays import place_by
from .callbacks import callback_state
from .doc_link import DocLinkMixin
from .nested import NestedParametersMixin
from .places import bring_home, call_at_home, show, show_in

# Where an estimator keeps, while it is fitted, by which thread, and what it was before.
BEFORE = "_before_fit"
# Where it keeps rows whose fitted attributes are made when they are read, see `late`.
LATE = "_late_rows"
# Methods that read the fitted state. Each works on a view of it, taken once.
_READERS = (
    "transform",
    "inverse_transform",
    "score_samples",
    "score",
    "get_covariance",
    "get_precision",
    "impute",
    "decompose",
)


class PublishedStateMixin:
    """Methods that read see one fitted state, whatever a fit in another thread does meanwhile."""

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)  # `set_output` first, so that its names fit its columns
        for name in _READERS:
            if callable(vars(cls).get(name)):
                setattr(cls, name, _of_one_state(vars(cls)[name]))

    def __sklearn_array_api_convert__(self, converter: Callable) -> Any:
        """A copy whose fitted arrays are where a function puts them, for `move_estimator_to`."""
        moved = self._published()
        bring_home(vars(moved))
        show_in(place_by(converter), moved)
        return moved

    def _published(self) -> Any:
        """A view of the state now, or of that before the fit in which another thread is."""
        state = dict(vars(self))  # at once: no assignment comes in between
        fitting, before = state.pop(BEFORE, (None, state))
        if fitting != threading.get_ident():
            state = dict(before)
        late = state.pop(LATE, None)
        view = object.__new__(type(self))
        view.__dict__ = state if late is None else {**state, **late.attributes(type(self))}
        return view


def _of_one_state(method: Callable) -> Callable:
    @wraps(method)
    def on_view(self, *args, **kwargs):
        return call_at_home(method, self._published(), args, kwargs)

    return on_view


class UnchangedOnErrorMixin(NestedParametersMixin, DocLinkMixin, PublishedStateMixin):
    """What fails leaves no trace on the estimator; other threads see the end of a fit only."""

    @contextmanager
    def _unchanged_on_error(self):
        """Undo every attribute assignment if the block raises; a nested block is a part of it.

        While one thread is in a block, the block of another one is refused.
        """
        before, blocks = dict(vars(self)), blocks_of_this_thread()
        own = held = threading.get_ident(), before
        try:
            held = vars(self).setdefault(BEFORE, own)  # at once: of two threads one has it
            outermost = held is own
            if held[0] != own[0]:
                raise RuntimeError(
                    f"{type(self).__name__} is being fitted in another thread: wait for its end, "
                    "or fit a clone."
                )
            if outermost:
                bring_home(vars(self))
            yield
            if outermost:
                show(vars(self))
                del vars(self)[BEFORE]  # last: an interruption before it is undone as well
        except BaseException:
            if held[0] == own[0]:
                self.__dict__ = {**before, **callback_state(self)}
            leave_later_blocks(blocks)
            raise

    def __getstate__(self):
        return super(UnchangedOnErrorMixin, self._published()).__getstate__()
