"""Summaries whose arrays are those of another library, on the device of the rows."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from .._validation.arrays import Place
from ._subspace import Subspace

# What is not that of the summary in numpy, shown elsewhere.
_OWN = {"_home", "_place", "_shown_in", "_in_numpy", "update"}


class NamespaceSubspace(Subspace):
    """A summary in another library: what it shows are arrays there, what it computes is numpy's.

    It keeps a summary in numpy, whose directions may not be known yet. Attributes and methods are
    those of this one, and what they return is shown in the other library.
    """

    if TYPE_CHECKING:
        _home: Subspace
        _place: Place

    def __init__(self, home: Subspace, place: Place):
        vars(self).update(_home=home, _place=place)

    def _shown_in(self, place: Place) -> Subspace:
        return self._home._shown_in(place)

    def _in_numpy(self) -> Subspace:
        return self._home

    @wraps(Subspace.update)
    def update(self, *args, **kwargs):
        """Return the summary of the rows seen before and of new ones, where these are."""
        return self._home.update(*args, **kwargs)

    def __getattribute__(self, name: str) -> Any:
        if name in _OWN or name.startswith("__"):
            return object.__getattribute__(self, name)
        known = vars(self)
        if name not in known:
            value, shown = getattr(known["_home"], name), known["_place"].shown
            if not callable(value):
                return known.setdefault(name, shown(value))
            return wraps(value)(lambda *args, **kwargs: shown(value(*args, **kwargs)))
        return known[name]

    def __repr__(self):
        return repr(self._home)

    def __getstate__(self):
        return {"_home": self._home, "_place": self._place}

    def __setstate__(self, state):
        vars(self).update(state)


Subspace._in_namespace = NamespaceSubspace  # how numpy's are shown, which know no subclass
