"""What each estimator does over a network, by its class, and checks that several have in common."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import singledispatch
from itertools import count
from typing import Any

import numpy as np

from .._base.batches import count_rows
from .._base.certified import name_columns
from .._validation.feature_names import check_names
from ..summary import Subspace
from ._messages import Answer
from ._questions import Task
from ._sites import SecureSums, Sites


@singledispatch
def site_work(estimator: Any) -> dict[str, Task]:
    """What a site does about each kind of question, for the class of an estimator.

    ``@site_work.register`` adds a function for another class; of others it is what their method
    ``site_tasks()`` returns.

    Parameters
    ----------
    estimator : object
        As the site or the server was given it; an error where it cannot be fitted over a network.

    Returns
    -------
    tasks : dict of str to Task
        By kind of question; the first kind begins a fit.
    """
    tasks = getattr(estimator, "site_tasks", None)
    if tasks is None:
        raise _unknown(site_work, estimator)
    return tasks()


@singledispatch
def fit_estimator(estimator: Any, sites: Sites) -> Any:
    """Fit an estimator of the rows of all sites, at the server.

    ``@fit_estimator.register`` adds a function for another class; of others the method
    ``fit_over(sites)`` is called, or `partial_fit_estimator` with one batch after the other.

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
        An estimator with ``subspace_`` and PCA's fitted attributes, or `FederatedScaler`.
    """
    if not hasattr(estimator, "fit_over"):
        for batch in count():
            found = partial_fit_estimator(estimator, sites, batch)
            if found is None and not batch:
                raise NoBatchError("No site has any batch.")
            if found is None:
                return estimator
            estimator, estimator.n_batches_ = found, batch + 1
    estimator.fit_over(sites)
    estimator.communication_ = sites.log
    return estimator


@singledispatch
def partial_fit_estimator(estimator: Any, sites: Sites, batch: int) -> Any:
    """Take one batch of the rows of each site into an estimator, at the server.

    ``@partial_fit_estimator.register`` adds a function for another class.

    Parameters
    ----------
    estimator : object
        What `partial_fit_sites` was given, fitted or not; a copy, which may be changed.
    sites : Sites
        ``sites.ask_batch(kind, read, batch, *arguments)`` asks about a batch, and returns what
        ``read(answer)`` made of the answer of each site that has one.
    batch : int
        Number of the batch, from 0 on.

    Returns
    -------
    fitted : object or None
        The estimator with the batch, and with the sites that had one in its ``clients_``; None
        where no site has one.
    """
    raise _unknown(partial_fit_estimator, estimator)


class NoBatchError(RuntimeError):
    """No site has a batch of the number that was asked for: their streams have ended."""


def know_columns(estimator: Any, columns: Sequence[str] | None) -> None:
    """Let an estimator without rows know what the columns are called, if they have names."""
    if columns is not None:
        estimator.feature_names_in_ = np.array(columns, dtype=object)


def note_sites(fitted: Any, sites: Sites) -> None:
    """Note on an estimator who is missing, and what the columns are called; warn if anybody is."""
    fitted.missing_sites_ = dict(sites.missing)
    if isinstance(sites, SecureSums):
        fitted.communication_ = sites.log
    if getattr(fitted, "mean_", None) is not None:
        fitted.n_features_in_ = len(fitted.mean_)
    names = check_names(sites.columns, fitted.n_features_in_)
    if names is not None:
        fitted.feature_names_in_ = np.array(names, dtype=object)
        if hasattr(fitted, "subspace_"):
            name_columns(fitted, names)
    if sites.missing:
        warnings.warn(f"Fitted without {sites.left_out()}.", UserWarning, stacklevel=4)


def _unknown(registered: Any, estimator: Any) -> TypeError:
    """Error that names the classes for which functions are registered."""
    names = sorted(kind.__name__ for kind in registered.registry if kind is not object)
    return TypeError(
        f"estimator must be one of {', '.join(names)}, got {type(estimator).__name__}."
    )


def check_parameters(estimator: Any) -> None:
    """Raise an error that names a wrong parameter."""
    getattr(estimator, "_check_parameters", estimator._validate_params)()


def refuse_channel(channel: Any) -> None:
    """Raise unless messages pass no simulated channel."""
    if channel is not None:
        raise ValueError(
            f"channel must be None over a real network, got {channel!r}, a simulated one."
        )


def rows_sent(X: Any, weight: np.ndarray | None) -> dict[str, Any]:
    """What a site tells of the number of weighted rows: with a weight, and that they stand for."""
    if weight is None:
        return {}
    return {"rows": np.array([np.count_nonzero(weight), count_rows(X, weight)], dtype=np.float64)}


def one_message(kind: str, work: Callable, **task: Any) -> dict[str, Task]:
    """What a site does that sends one message, about all of its rows or about a batch of them."""
    about_all, of_batch = Task(work, **task), Task(work, begins=True, batches=True, **task)
    return {kind: about_all, f"{kind}_of_batch": of_batch}


def received(
    estimator: Any, sites: Sites, kind: str, read: Callable[[Answer], Any], batch: int | None
) -> dict[str, Any]:
    """What sites send in one message, to an estimator that begins, or goes on with a batch.

    None may have a batch.
    """
    if batch is None or not hasattr(estimator, "n_features_in_"):
        estimator._start()
    if batch is None:
        found = sites.ask(kind, read)
    else:
        found = sites.ask_batch(f"{kind}_of_batch", read, batch)
        if found and hasattr(estimator, "_add_clients"):
            estimator._add_clients(list(found))
    know_columns(estimator, sites.columns)
    return found


def value_sent(name: str, value: Any) -> dict[str, np.ndarray]:
    """A summary, or moments, as a site sends it."""
    return {name: np.frombuffer(value.to_bytes(), np.uint8)}


def value_received(answer: Answer, name: str, read: Callable[[np.ndarray], Any], what: str) -> Any:
    """The same as the server reads it."""
    data = answer.array(name, (None,), "|u1")
    try:
        found = read(data)
    except ValueError as error:
        raise answer.refused(f"no valid {what}: {error}") from None
    answer.check_count(found.n_samples)
    return found


def valid_summary(answer: Answer, private: bool = False) -> Subspace:
    """The summary in an answer, without names; what it states about privacy counts if asked for."""
    summary = value_received(answer, "summary", Subspace.from_bytes, "summary")
    squares = summary.scatter / summary.n_samples
    answer.check_squares(summary.mean, squares, summary.components.dtype)
    if private and summary.privacy is None:
        raise answer.refused("a summary that states nothing about its privacy")
    privacy = summary.privacy if private else None
    return summary._replace(site=None, feature_names=None, privacy=privacy)


def summary_received(answer: Answer, private: bool = False) -> Subspace:
    """The summary of a site's rows in an answer, which must fit those of the others."""
    summary = valid_summary(answer, private)
    answer.agree("number of features", summary.n_features)
    answer.agree("centring", summary.centered)
    return summary


def summary_and_rows(answer: Answer) -> tuple[Subspace, int]:
    """The same, and the number of rows that it stands for."""
    summary = summary_received(answer)
    return summary, answer.n_rows(summary.n_samples)[1]
