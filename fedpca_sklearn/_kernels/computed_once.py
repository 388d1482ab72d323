"""Attributes that are computed when they are read first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class computed_once(Generic[T]):
    """`functools.cached_property` without the lock that all objects of a class share.

    Up to Python 3.11 eigenproblems of different objects would wait for each other. Threads that
    read the same object at once may compute it each; all see what was kept first.
    """

    def __init__(self, find: Callable[[Any], T]):
        self._find, self._name = find, find.__name__
        self.__doc__ = find.__doc__

    def __get__(self, obj: Any, kind: Any = None) -> T:
        if obj is None:
            return self  # type: ignore[return-value]
        return vars(obj).setdefault(self._name, self._find(obj))
