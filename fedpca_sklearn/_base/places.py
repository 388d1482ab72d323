"""Estimators of rows in arrays of other libraries: results are where the rows are.

Inside a fit, and inside a method that reads, everything is numpy's; what is shown afterwards is in
the library and on the device of the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .._validation.arrays import PLACE, Place, in_numpy, place_of, refuse_other_places
from .._validation.containers import check_takes_arrays


def bring_home(state: dict[str, Any]) -> None:
    """Turn the fitted attributes of an estimator into numpy's, where they are not."""
    if state.get(PLACE) is not None:
        state.update({name: in_numpy(value) for name, value in state.items() if _is_fitted(name)})
        state[PLACE] = None  # unless the next rows say otherwise


def show(state: dict[str, Any]) -> None:
    """Turn the fitted attributes of an estimator into arrays like its rows."""
    place = state.get(PLACE)
    if place is not None:
        shown = {name: place.shown(value) for name, value in state.items() if _is_fitted(name)}
        state.update(shown)


def call_at_home(method: Callable, view: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Call a method that reads; its result is where its rows, or without any the fit's, are.

    Parameters
    ----------
    method : callable
        Of the view's class.
    view : estimator
        A copy that nobody else sees.
    args, kwargs
        Of the call. The first is X.
    """
    state = vars(view)
    X = args[0] if args else kwargs.get("X")
    if PLACE not in state and (X is None or type(X) is np.ndarray):
        return method(view, *args, **kwargs)
    fitted: Place | None = state.get(PLACE)
    bring_home(state)
    if X is None:
        place = fitted
    else:
        place = place_of(X)
        check_takes_arrays(view, place)
        if "components_" in state:
            who = f"{type(view).__name__}.{method.__name__}"
            refuse_other_places(fitted, place, who)
        if place is not None:
            args, kwargs = (
                (place.rows(X, view), *args[1:]),
                {k: v for k, v in kwargs.items() if k != "X"},
            )
    result = method(view, *args, **kwargs)
    return result if place is None else place.shown(result)


def show_in(place: Place | None, estimator: Any) -> None:
    """Turn the fitted attributes into arrays of another library, if there is one."""
    if place is not None:
        vars(estimator)[PLACE] = place
        show(vars(estimator))


def shown_like(estimator: Any, value: Any) -> Any:
    """A value of numpy where the fitted attributes of an estimator are."""
    place = vars(estimator).get(PLACE)
    return value if place is None else place.shown(value)


def _is_fitted(name: str) -> bool:
    return name.endswith("_") and not name.startswith("_")
