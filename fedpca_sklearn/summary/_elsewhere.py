"""Summaries whose arrays are those of another library, on the device of the rows."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from .._validation.arrays import Place
from ._subspace import Subspace

# Fields that are arrays, and are made here when they are read.
_ARRAYS = {"components", "singular_values", "mean"}


class SubspaceElsewhere(Subspace):
    """A summary in another library: what it shows are arrays there, what it computes is numpy's.

    It is made of a summary in numpy, whose directions may not be known yet, and keeps it.
    """

    if TYPE_CHECKING:
        _home: Subspace
        _place: Place

    @classmethod
    def of(cls, home: Subspace, place: Place) -> SubspaceElsewhere:
        """Show a summary of numpy in another library."""
        self = object.__new__(cls)
        fields = {name: value for name, value in vars(home).items() if name not in _ARRAYS}
        fields["column_scatter"] = place.shown(home.column_scatter)
        vars(self).update(fields, _home=home, _place=place)
        return self

    def _shown_in(self, place: Place) -> Subspace:
        return self._home._shown_in(place)

    def _in_numpy(self) -> Subspace:
        return self._home

    @wraps(Subspace.update)
    def update(self, *args, **kwargs):
        """Return the summary of the rows seen before and of new ones, where these are."""
        return self._home.update(*args, **kwargs)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name not in _ARRAYS:
                return object.__getattribute__(self, name)  # the error
            vars(self)[name] = array = self._place.array(getattr(self._home, name))
            return array

    def __getstate__(self):
        return {"_home": self._home, "_place": self._place}

    def __setstate__(self, state):
        vars(self).update(vars(self.of(**{key[1:]: value for key, value in state.items()})))


def _at_home(name: str) -> Any:
    """The method or property of numpy's summary; its result is where this one is."""
    there: Any = getattr(Subspace, name)
    read: Any = there.fget if isinstance(there, property) else there

    @wraps(read)
    def call(self, *args, **kwargs):
        return self._place.shown(read(self._home, *args, **kwargs))

    return property(call) if isinstance(there, property) else call


for _name in (
    *("decay", "truncate", "to_bytes", "save", "_replace", "_named", "_part"),
    *("n_components", "n_features", "n_floats", "nbytes", "_dtype", "__repr__"),
    *("explained_variance", "explained_variance_ratio"),
):
    setattr(SubspaceElsewhere, _name, _at_home(_name))

Subspace._elsewhere = SubspaceElsewhere.of  # how numpy's are shown, which know no subclass
