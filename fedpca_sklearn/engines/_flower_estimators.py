"""What each estimator does over Flower, by its class, and checks that several have in common."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np

from ._flower_messages import Answer
from ._flower_questions import Task
from ._flower_sites import Sites

# Largest mean square of a row, by dtype, and of the mean about which others then take theirs: what
# sites with fewer than 2^53 rows send can then be added up, and shown in the dtype.
_LARGEST_SQUARE = {"float32": 2.0**124, "float64": 2.0**924}
_MEAN_SHARE = 1 / 16


@singledispatch
def site_work(estimator: Any) -> dict[str, Task]:
    """What a site does about each kind of question, for the class of an estimator.

    ``@site_work.register`` adds a function for another class.

    Parameters
    ----------
    estimator : object
        As the site or the server was given it; an error where it cannot be fitted over Flower.

    Returns
    -------
    tasks : dict of str to Task
        By kind of question; the first kind begins a fit.
    """
    raise TypeError(
        "estimator must be FederatedPCA, DistributedPCA or FederatedPowerPCA, got "
        f"{type(estimator).__name__}."
    )


@singledispatch
def fit_estimator(estimator: Any, sites: Sites) -> Any:
    """Fit an estimator of the rows of all sites, at the server.

    ``@fit_estimator.register`` adds a function for another class.

    Parameters
    ----------
    estimator : object
        A clone of the one that `fit_sites` was given, with parameters that have been checked.
    sites : Sites
        ``sites.ask(kind, read, *arguments)`` sends arrays along with a question, and returns what
        ``read(answer)`` made of the answer of each site, by its name, sorted.

    Returns
    -------
    fitted : object
        An estimator with ``subspace_`` and PCA's fitted attributes.
    """


def check_count(answer: Answer, count: float) -> None:
    if not 1 <= count < 2**53:
        raise answer.refused(f"count={count}, expected a number of rows")


def are_too_large(mean: Any, squares: float, dtype: np.dtype) -> bool:
    """Whether values with such a mean and mean squares would overflow in those of all sites."""
    with np.errstate(over="ignore"):
        of_mean = float(np.square(mean).sum())
    largest = _LARGEST_SQUARE[dtype.name]
    return not (of_mean <= _MEAN_SHARE * largest and squares <= largest)


def check_squares(answer: Answer, mean: Any, squares: float, dtype: np.dtype) -> None:
    """Leave a site out whose values would overflow in those of all sites."""
    if are_too_large(mean, squares, dtype):
        with np.errstate(over="ignore"):
            largest = max(float(np.square(mean).sum()), squares)
        raise answer.refused(f"values that are too large: mean squares of {largest:.1e} per row")
