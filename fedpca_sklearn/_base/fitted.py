"""Fitted state: one value that a fit replaces, attributes that follow from it when read.

Progress of a fit goes through scikit-learn's callbacks, where the installed release has them (>=
1.9).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from itertools import islice
from operator import is_
from threading import get_ident
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from .._kernels.threads import TINY_ROWS, leave_later_blocks, running_blocks, threads_for
from .._validation.arrays import (
    NAMESPACE,
    ArrayNamespace,
    in_numpy,
    namespace_by,
    namespace_of,
    refuse_other_namespaces,
)
from .._validation.containers import check_takes_arrays

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


# Where an estimator keeps what it has learnt, see `Learnt`.
LEARNT = "_learnt"
# Where it keeps, while it is fitted, by which thread, and what it was before.
BEFORE = "_before_fit"
# Where scikit-learn keeps the callbacks of an estimator.
CALLBACKS = "_skl_callbacks"
# A fit reports at most this many tasks: progress bars take time quadratic in their number.
MAX_TASKS = 100
# A warning that is given when a fit has succeeded: as an error it then loses no result.
WARNING = "_warning"
# Methods that read the fitted state. Each works on a view of it, taken once.
_READERS = (
    *("transform", "inverse_transform", "score_samples", "score"),
    *("get_covariance", "get_precision", "impute", "decompose"),
)


class Learnt:
    """State of an estimator after some rows, and the fitted attributes that follow from it.

    Parameters
    ----------
    state : object, default=None
        What ``_compute`` of the estimator finds the attributes from; it is not changed.
    given : dict, default=None
        Attributes by name, in numpy; None: they are computed when one of them is read.
    """

    __slots__ = ("_given", "model", "shown", "state", "values")

    def __init__(self, state: Any = None, given: dict[str, Any] | None = None):
        self.state, self._given, self.values = state, given, given
        self.model: Any = None  # of the likelihood, once somebody has asked for one
        self.shown: dict[tuple[ArrayNamespace, str], Any] = {}

    def __reduce__(self):
        return Learnt, (self.state, self._given)

    def shown_in(self, namespace: ArrayNamespace, name: str) -> Any:
        """An attribute as an array of another library."""
        if (namespace, name) not in self.shown:
            self.shown[namespace, name] = namespace.shown((self.values or {})[name])
        return self.shown[namespace, name]


class computed:
    """Fitted attribute that is computed with the others of `Learnt` when one of them is read.

    Parameters
    ----------
    in_state : bool, default=False
        Whether it looks like the state of a stream, which is elsewhere, so that users cannot set
        it.
    when : str, default=None
        Parameter without which, as None or False, a fit has no such attribute.
    """

    def __init__(self, in_state: bool = False, when: str | None = None):
        self._in_state, self.when = in_state, when

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, estimator: Any, kind: Any = None) -> Any:
        if estimator is None:
            return self
        state = estimator.__dict__
        fitting = state.get(BEFORE)  # then all is in numpy
        here = state.get(NAMESPACE) is None if fitting is None else fitting[0] == get_ident()
        if here and LEARNT in state:
            values = state[LEARNT].values
            values = estimator._values() if values is None else values
            if self._name in values:
                return values[self._name]
        return estimator._read(self._name)

    def __set__(self, estimator: Any, value: Any) -> None:
        if self._in_state:
            raise AttributeError(
                f"{self._name} tells what a fit found, and no method would read another value; "
                "StreamingPCA.from_subspace and FederatedPCA.from_subspaces start from summaries."
            )
        if BEFORE not in estimator.__dict__:  # a user's: the others may not have been read yet
            estimator._values()
            value = in_numpy(value)
        estimator._set_values({self._name: value})


# Parameters of estimators that were valid; not kept by these, as a refused call changes nothing.
_VALID: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()


@cache
def _parameters_of(kind: Any) -> list[str]:
    return kind._get_param_names()


class FittedState:
    """Estimators whose calls succeed as a whole or change nothing, whatever other threads do.

    A call works within `_unchanged_on_error`: on an error all attributes are restored, and until
    its end readers in other threads see the fit before. Attributes that are `computed` follow from
    one object, `Learnt`, that a call replaces.
    """

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)  # `set_output` first, so that its names fit its columns
        for name in _READERS:
            if callable(vars(cls).get(name)):
                setattr(cls, name, of_one_state(vars(cls)[name]))

    def _validate_params(self) -> None:
        """As scikit-learn's, once for the same objects; it takes a quarter of a small call."""
        kind: Any = type(self)
        values, known = list(map(vars(self).get, _parameters_of(kind))), _VALID.get(self)
        if known is None or not all(map(is_, values, known)):
            super()._validate_params()  # type: ignore[misc]
            _VALID[self] = values

    # ---------------------------------------------------------------- computed attributes

    def _compute(self, state: Any) -> dict[str, Any]:
        """Fitted attributes of a state; called on a copy of the estimator."""
        raise NotImplementedError

    def _last_state(self) -> Any:
        """State after the last call; None before a fit."""
        learnt = vars(self).get(LEARNT)
        return None if learnt is None else learnt.state

    def _state_without_checks(self) -> Any:
        """The same, or None where a call is under way, heard of, or in another library."""
        state = self.__dict__
        if LEARNT not in state or BEFORE in state or state.get(NAMESPACE) or state.get(CALLBACKS):
            return None
        return state[LEARNT].state

    def _visible(self) -> dict[str, Any]:
        """Attributes as this thread may see them: those before the fit of another one."""
        state = vars(self)
        fitting = state.get(BEFORE)
        return state if fitting is None or fitting[0] == get_ident() else fitting[1]

    def _values(self) -> dict[str, Any]:
        """All computed attributes, in numpy; none before a fit."""
        state = self._visible()
        learnt = state.get(LEARNT)
        if learnt is None:
            return {}
        if learnt.values is None:
            with np.errstate(over="ignore"):  # variances of float32 rows of large weight are inf
                learnt.values = _copy_with(self, as_numpy(state))._compute(learnt.state)
        return learnt.values

    def _read(self, name: str) -> Any:
        """A computed attribute, in the library and on the device of the rows."""
        values = self._values()
        if name not in values:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        state = vars(self) if BEFORE not in vars(self) else self._visible()
        # within a fit all is in numpy
        namespace = None if BEFORE in state else state.get(NAMESPACE)
        return values[name] if namespace is None else state[LEARNT].shown_in(namespace, name)

    def _set_values(self, values: dict[str, Any]) -> None:
        """Replace some of the computed attributes, those of the same state."""
        learnt = vars(self).get(LEARNT) or Learnt()
        vars(self)[LEARNT] = Learnt(learnt.state, {**(learnt.values or {}), **values})

    def __sklearn_is_fitted__(self) -> bool:
        return LEARNT in self._visible() or any(map(_is_fitted, self._visible()))

    def __dir__(self):
        """Names of the attributes, of which none is computed."""
        state, kind = self._visible(), type(self)
        names, learnt = object.__dir__(self), state.get(LEARNT)

        def is_there(name: str) -> bool:
            own = getattr(kind, name, None)
            if name in state or not isinstance(own, (property, computed)):
                return hasattr(self, name)
            if not _is_fitted(name) or learnt is None:
                return not _is_fitted(name)
            if learnt.values is not None and isinstance(own, computed):
                return name in learnt.values
            parameter = getattr(own, "when", None)
            value = parameter is None or getattr(self, parameter)
            return value is not None and value is not False

        return [name for name in names if is_there(name)]

    def _html_repr(self) -> str:
        """Display of scikit-learn, with what needs no computing."""
        known = self._in_numpy()
        learnt = vars(known).get(LEARNT)
        if learnt is not None:
            vars(known)[LEARNT] = Learnt(None, learnt.values or {})
        return super(FittedState, known)._html_repr()  # type: ignore[misc]

    def _get_fitted_attr_html(self, doc_link: str = "") -> Any:
        """Table of the attributes in that display."""
        state = as_numpy(self._visible())
        learnt = state.pop(LEARNT, None)
        known = SimpleNamespace(**{**((learnt and learnt.values) or {}), **state})
        table = super()._get_fitted_attr_html.__func__(known, doc_link)  # type: ignore[misc]
        table.estimator_class = type(self)
        return table

    def _with_only(self, names: Collection[str]) -> Any:
        """A copy with some of its attributes only."""
        values = {name: value for name, value in self._values().items() if name in names}
        known = {name: value for name, value in vars(self).items() if name in names}
        return _copy_with(self, {**known, LEARNT: Learnt(None, values)} if values else known)

    # ---------------------------------------------------------------- one fitted state

    def _published(self) -> Any:
        """A view of the state now, or of that before the fit in which another thread is."""
        return _copy_with(self, dict(self._visible()))

    def _in_numpy(self) -> Any:
        """The same with all arrays in numpy."""
        return _copy_with(self, as_numpy(self._visible()))

    def __getstate__(self):
        return super(FittedState, self._published()).__getstate__()

    def __sklearn_array_api_convert__(self, converter: Callable) -> Any:
        """A copy whose fitted arrays are where a function puts them, for `move_estimator_to`."""
        moved = self._in_numpy()
        show_in(namespace_by(converter), moved)
        return moved

    @contextmanager
    def _unchanged_on_error(self):
        """Undo every attribute assignment if the block raises; a nested block is a part of it.

        Attributes with a method ``after_error(before)`` are set to its result instead, as spent
        budgets are. While one thread is in a block, the block of another one is refused.
        """
        before, blocks, warning = dict(vars(self)), running_blocks(), None
        own = holder = get_ident(), before
        try:
            holder = vars(self).setdefault(BEFORE, own)  # at once: of two threads one has it
            outermost = holder is own
            if holder[0] != own[0]:
                raise RuntimeError(
                    f"{type(self).__name__} is being fitted in another thread: wait for its end, "
                    "or fit a clone."
                )
            if outermost and before.get(NAMESPACE) is not None:
                vars(self).update(as_numpy(before))
                vars(self)[NAMESPACE] = None  # unless the next rows say otherwise
            yield
            if outermost:
                if vars(self).get(NAMESPACE) is not None:
                    show_in(vars(self)[NAMESPACE], self)
                warning = vars(self).pop(WARNING, None)
                del vars(self)[BEFORE]  # last: an interruption before it is undone as well
        except BaseException:
            if holder[0] == own[0]:
                kept = {
                    name: value.after_error(before.get(name))
                    for name, value in vars(self).items()
                    if hasattr(type(value), "after_error")
                }
                # and what scikit-learn keeps of callbacks and of a running fit
                heard = {k: v for k, v in vars(self).items() if k.startswith(("_callback", "_skl"))}
                self.__dict__ = {**before, **heard, **kept}
            leave_later_blocks(blocks)
            raise
        if warning is not None:
            warnings.warn(warning, stacklevel=2)

    # ---------------------------------------------------------------- scikit-learn

    def set_params(self, **params: Any) -> Any:
        """Set parameters, those of strategies and estimators within by ``merge__fan_in``.

        Parameters
        ----------
        **params : dict
            Values by name.

        Returns
        -------
        self : object
            The estimator.

        Raises
        ------
        ValueError
            For a name that is none, and for a parameter of what is no object with parameters.
        """
        for name in params:
            owner, nested, _ = name.partition("__")
            value = params.get(owner, getattr(self, owner, self))
            if nested and not hasattr(value, "set_params"):
                raise ValueError(
                    f"{name} needs an object as {owner}, which is {value!r}; set {owner} to one "
                    "that has this parameter."
                )
        return super().set_params(**params)  # type: ignore[misc]


def _copy_with(estimator: Any, attributes: dict[str, Any]) -> Any:
    """An object of the same class with other attributes, of which no fit is under way."""
    copy = object.__new__(type(estimator))
    attributes.pop(BEFORE, None)
    vars(copy).update(attributes)
    return copy


def _is_fitted(name: str) -> bool:
    return name.endswith("_") and not name.startswith("_")


def as_numpy(state: dict[str, Any]) -> dict[str, Any]:
    """The attributes of an estimator with those that a fit has set in numpy."""
    state = dict(state)
    if state.pop(NAMESPACE, None) is not None:
        state.update({name: in_numpy(value) for name, value in state.items() if _is_fitted(name)})
    return state


def show_in(namespace: ArrayNamespace | None, estimator: Any) -> None:
    """Turn the fitted attributes into arrays of another library, if there is one."""
    if namespace is not None:
        state = vars(estimator)
        state.update({n: namespace.shown(value) for n, value in state.items() if _is_fitted(n)})
        state[NAMESPACE] = namespace


def shown_like(estimator: Any, value: Any) -> Any:
    """A value of numpy where the fitted attributes of an estimator are."""
    namespace = vars(estimator).get(NAMESPACE)
    return value if namespace is None else namespace.shown(value)


def of_one_state(method: Callable) -> Callable:
    """A method that reads a view of the fitted state, taken once."""

    @wraps(method)
    def on_view(self, *args, **kwargs):
        view = self._published()
        d, X = vars(view).get("n_features_in_", 0), args[0] if args else None
        rows = 16 * d if X is None else len(X) if isinstance(X, np.ndarray) and X.ndim else 0
        blocks = running_blocks()
        try:
            # one BLAS thread for an array of rows, or a matrix of the columns, of some entries
            with threads_for(d * rows, TINY_ROWS):
                return _called(method, view, args, kwargs)
        except BaseException:
            leave_later_blocks(blocks)
            raise

    return on_view


def _called(method: Callable, view: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Result of a method that reads, where its rows, or without any the fit's, are.

    ``view`` is a copy that nobody else sees; the first argument of the call is X.
    """
    state = vars(view)
    X = args[0] if args else kwargs.get("X")
    if NAMESPACE not in state and (X is None or type(X) is np.ndarray):
        return method(view, *args, **kwargs)
    fitted: ArrayNamespace | None = state.get(NAMESPACE)
    view.__dict__ = as_numpy(state)
    if X is None:
        namespace = fitted
    else:
        namespace = namespace_of(X)
        check_takes_arrays(view, namespace)
        if view.__sklearn_is_fitted__():
            refuse_other_namespaces(fitted, namespace, f"{type(view).__name__}.{method.__name__}")
        if namespace is not None:
            args = (namespace.rows(X, view), *args[1:])
            kwargs = {k: v for k, v in kwargs.items() if k != "X"}
    result = method(view, *args, **kwargs)
    return result if namespace is None else namespace.shown(result)


# ---------------------------------------------------------------- progress


def has_callbacks(estimator: Any) -> bool:
    """Whether somebody wants to know how a fit goes on."""
    return _SUPPORTED and bool(getattr(estimator, CALLBACKS, None))


def progress(estimator: Any, items: Iterable, n_items: int | None, name: str) -> Iterator:
    """Iterate over items, and report every few of them to the estimator's callbacks as a task.

    A callback that asks to stop ends the iteration early. ``n_items=None``: not known in advance;
    tasks then take more and more items.
    """
    return _reported(estimator, items, n_items, name) if has_callbacks(estimator) else iter(items)


def _reported(estimator: Any, items: Iterable, n_items: int | None, name: str) -> Iterator:
    per_task = 1 if n_items is None else -(-n_items // MAX_TASKS)
    n_tasks = None if n_items is None else -(-n_items // per_task)
    context = estimator._init_callback_context(max_subtasks=n_tasks)
    context.call_on_fit_task_begin(estimator=estimator)
    items, task = iter(items), None
    try:
        for n_begun, item in enumerate(items, 1):
            task = context.subcontext(task_name=name)
            task.call_on_fit_task_begin(estimator=estimator)
            yield item
            yield from islice(items, per_task - 1)
            ended, task = task, None
            if ended.call_on_fit_task_end(estimator=estimator):  # to stop is asked for
                break
            if n_items is None and n_begun % 8 == 0:
                per_task *= 2
    except GeneratorExit:  # no more items are wanted; after an error the fit is over already
        if vars(estimator).get("_callback_fit_ctx") is not context:
            raise
    if task is not None:
        task.call_on_fit_task_end(estimator=estimator)
    context.call_on_fit_task_end(estimator=estimator)


def rounds_of(estimator: Any, n_rounds: int) -> Iterator[int]:
    """Yield the numbers of rounds, each a task of the estimator's callbacks."""
    return progress(estimator, range(n_rounds), n_rounds, "rounds")
