"""What each estimator does over a network, by its class, and what several have in common.

Moments by secure sums, of which most fits are made, and rounds of queries are here; what is an
estimator's own is registered in the file of its room.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, singledispatch
from inspect import signature
from itertools import count
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from .._base.adjusting import adjusts, name_columns, untruncated_model
from .._base.batches import count_rows
from .._kernels.linalg import r_factor
from .._kernels.row_moments import SiteMoments
from .._kernels.tolerances import GRAM_ROUNDING
from .._validation.containers import check_names
from ..communication import CommunicationLog, Federation
from ..communication._topology import as_topology
from ..federated import FederatedScaler
from ..federated._clients import ClientsTransformer
from ..rounds._heteroscedastic_pca import Weighted
from ..rounds._power_method import moments_by_sum
from ..rounds._queries import Moments, parted
from ..summary import Subspace
from ..summary._adjusted import scatter_of_columns
from ..summary._triangle import Triangle
from ._messages import Answer
from ._questions import MOMENTS, RefusedError, Task
from ._secure import SecureAggregation, announced, grids_of_second_moments, grids_of_sums
from ._site_policy import Site
from ._sites import SecureSums, Shapes, Sites

# What sites do by kind of question, and what secure sums are agreed on, if there are such.
Tasks: TypeAlias = dict[str, Task]
Secure: TypeAlias = SecureAggregation | None


@singledispatch
def site_work(estimator: Any, secure: Secure = None) -> Tasks:
    """What a site does about each kind of question, for the class of an estimator.

    ``@site_work.register`` adds a function for another class; of others it is what their method
    ``site_tasks()`` returns.

    Parameters
    ----------
    estimator : object
        As the site or the server was given it; an error where it cannot be fitted over a network.
    secure : SecureAggregation or None, default=None
        By secure sums; functions without this parameter are of estimators that have none.

    Returns
    -------
    tasks : dict of str to Task
        By kind of question; the first kind begins a fit. By secure sums tasks that announce
        `Bounds`, and those without ``grids``, are answered openly.
    """
    tasks: Tasks = getattr(estimator, "site_tasks", dict)()
    if secure is None and not hasattr(estimator, "site_tasks"):
        raise _unknown(site_work, estimator)
    if secure is None:
        return tasks
    if not tasks or any(task.bound is None for task in tasks.values()):
        raise _unsummed(estimator)
    return {kind: replace(task, begins=False) for kind, task in tasks.items()}


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


def started(estimator: Any) -> Any:
    """An estimator that has seen no rows of clients."""
    if isinstance(estimator, ClientsTransformer | FederatedScaler):
        estimator._start()
    return estimator


class NoBatchError(RuntimeError):
    """No site has a batch of the number that was asked for: their streams have ended."""


def know_columns(estimator: Any, columns: Sequence[str] | None) -> None:
    """Let an estimator without rows know what the columns are called, if they have names."""
    if columns is not None:
        estimator.feature_names_in_ = np.array(columns, dtype=object)


def note_sites(fitted: Any, sites: Sites) -> None:
    """Note on an estimator who is missing, what the columns are called, and what rounds sent.

    A warning if anybody is missing.
    """
    fitted.missing_sites_ = dict(sites.missing)
    if sites.log.rounds:
        fitted.communication_ = sites.log
    if getattr(fitted, "mean_", None) is not None:
        fitted.n_features_in_ = len(fitted.mean_)
    names = check_names(sites.columns, fitted.n_features_in_)
    know_columns(fitted, names)
    if names is not None and hasattr(fitted, "subspace_"):
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
    if not hasattr(estimator, "get_params"):
        raise ValueError(f"estimator must be one, got {estimator!r:.80}.")
    getattr(estimator, "_check_parameters", estimator._validate_params)()


def _refuse_simulated(estimator: Any) -> None:
    """Raise unless messages go to a server, through no simulated channel."""
    given = estimator.get_params()
    for name in ("channel", "method__channel"):
        if (channel := given.get(name)) is not None:
            raise ValueError(
                f"channel must be None over a real network, got {channel!r}, a simulated one."
            )
    topology = given.get("topology")
    if topology is not None and as_topology(topology) is not None:
        raise ValueError(f"topology must be 'server' over a network, got {topology!r}.")


def rows_sent(X: Any, weight: np.ndarray | None) -> dict[str, Any]:
    """What a site tells of the number of weighted rows: with a weight, and that they stand for."""
    if weight is None:
        return {}
    return {"rows": np.array([np.count_nonzero(weight), count_rows(X, weight)], dtype=np.float64)}


def one_message(kind: str, work: Callable, **task: Any) -> Tasks:
    """What a site does that sends one message, about all of its rows or about a batch of them."""
    about_all, of_batch = Task(work, **task), Task(work, begins=True, batches=True, **task)
    return {kind: about_all, f"{kind}_of_batch": of_batch}


def received(
    estimator: Any, sites: Sites, kind: str, read: Callable[[Answer], Any], batch: int | None
) -> dict[str, Any]:
    """What sites send in one message, to an estimator that begins, or goes on with a batch.

    None may have a batch.
    """
    if batch is None:
        found = sites.ask(kind, read)
    else:
        found = sites.ask_batch(f"{kind}_of_batch", read, batch)
        if found and hasattr(estimator, "_add_clients"):
            estimator._add_clients(list(found))
    know_columns(estimator, sites.columns)
    return found


def value_sent(name: str, value: Any, X: Any = None, weight: Any = None) -> dict[str, np.ndarray]:
    """A summary, or moments, as a site sends it, with the number of rows that have weights."""
    return {name: np.frombuffer(value.to_bytes(), np.uint8)} | rows_sent(X, weight)


def value_received(answer: Answer, name: str, read: Callable[[np.ndarray], Any], what: str) -> Any:
    """The same as the server reads it."""
    data = answer.array(name, (None,), "|u1")
    try:
        found = read(data)
    except ValueError as error:
        raise answer.refused(f"no valid {what}: {error}") from None
    answer.check_count(found.n_samples)
    return found


def summary_received(answer: Answer, private: bool = False) -> Subspace:
    """The summary in an answer, without names, which must fit those of the others.

    What it states about privacy counts if asked for.
    """
    summary = value_received(answer, "summary", Subspace.from_bytes, "summary")
    squares = summary.scatter / summary.n_samples
    answer.check_squares(summary.mean, squares, summary.components.dtype)
    if private and summary.privacy is None:
        raise answer.refused("a summary that states nothing about its privacy")
    answer.agree("number of features", summary.n_features)
    answer.agree("centring", summary.centered)
    privacy = summary.privacy if private else None
    return summary._replace(site=None, feature_names=None, privacy=privacy)


def summary_and_rows(answer: Answer, estimator: Any = None) -> tuple[Subspace, int]:
    """The same with all that an estimator needs, and the number of rows that it stands for."""
    summary = summary_received(answer)
    if estimator is not None and (adjusts(estimator) or estimator.n_components == "parallel"):
        scatter_of_columns(summary, "its summary")
    return summary, answer.n_rows(summary.n_samples)[1]


# -------------------------------------------------------------------- secure sums

# Most features of which second moments are summed: a message of 16 MB.
MAX_FEATURES = 2000
# Largest exponent of a unit: squares of two and their inverses are finite.
_LARGEST = 250
# Sums of squares this much above their rounding errors tell deviations, to 1e-4.
_TOLD = 1e4


def _unsummed(estimator: Any) -> TypeError:
    """Error that names the estimators that have secure sums."""
    return TypeError(
        "secure sums need FederatedPCA, DistributedPCA, OnlineDistributedPCA, "
        "FederatedPowerPCA, FederatedHeteroscedasticPCA, FederatedScaler, "
        "FederatedSubspaceTracker, VerticalFederatedPCA, VerticalFederatedKernelPCA, or tasks "
        f"that have a bound each, got {type(estimator).__name__}."
    )


def check_needed(estimator: Any, name: str, wanted: str | None, why: str) -> None:
    """Raise unless a parameter is what secure sums need."""
    if (got := getattr(estimator, name)) != wanted:
        needed = wanted if wanted is None else f'"{wanted}"'
        raise ValueError(f"{name} must be {needed} with secure sums{why}, got {got!r}.")


def secure_tasks(estimator: Any, secure: Secure) -> Tasks:
    """What a site does by kind of question, with secure sums or without."""
    how, name = site_work.dispatch(type(estimator)), type(estimator).__name__
    ours = how is not site_work.dispatch(object) and str(how.__module__).startswith(__package__)
    if ours and hasattr(estimator, "site_tasks"):
        raise TypeError(f"{name} has site_tasks and is asked as its base: site_work.register it.")
    if not ours and getattr(estimator, "mechanism", None) is not None:
        raise ValueError(f"mechanism must be None: tasks of {name} would draw no noise of it.")
    if secure is not None:
        from . import _secure_sum  # noqa: F401  an optional dependency

        if "secure" not in signature(how).parameters:
            raise _unsummed(estimator)
    tasks = site_work(estimator) if secure is None else site_work(estimator, secure)
    _refuse_simulated(estimator)
    openly = ours and {"bounds", "batch", "columns_bound"} & tasks.keys()  # which announce bounds
    return tasks if secure is None or openly else {"bounds": OF_BOUNDS, **tasks}


# -------------------------------------------------------------------- queries at a site

# Largest number of factors, which are in a unit of the rows. With larger ones products with single
# rows of many columns may overflow where those with the scatter do not, and an error tells it.
_LARGEST_FACTOR = 2.0**400


def answered(query: Any, own: SiteMoments, who: Site) -> dict[str, np.ndarray]:
    """What a site sends in answer to a query."""
    return parted(query.shapes, query(None, own))


def of_query(
    query: Any,
    times: int = 1,
    *,
    center: bool = True,
    rank: Callable[[int], int] = int,
    steps: int = 1,
    weighted: bool = False,
    answer: Callable = answered,
    **task: Any,
) -> Task:
    """A task that makes queries of a class of what a server has sent, checked by its names.

    They are a basis ``V`` or factors ``F`` of at most ``rank(d)`` directions, a mean, a unit, and
    the local steps of the site's own estimator. ``weighted`` queries have a unit after these.
    """
    names = [*query.__dataclass_fields__, *["unit"] * weighted]

    def work(site, own, *sent, who=None):
        given: dict[str, Any] = dict(zip(names, sent, strict=True))
        d = len(own.mean)
        most = min(rank(d), d)
        if "steps" in given:
            if given["steps"].shape or given["steps"] != steps:
                raise RefusedError(f"local_steps must be {steps}")
            given["steps"] = steps
        if "unit" in given:
            if given["unit"].shape or not 1e-150 < given["unit"] < 1e150:
                raise RefusedError("the unit must be one number in (1e-150, 1e150)")
            given["unit"] = float(given["unit"])
        if "F" in given:
            F = given["F"]
            if F.ndim != 2 or F.shape[1] != d or not 0 < len(F) <= most:
                raise RefusedError(f"factors must have shape (k, {d}) with k <= {most}")
            if np.abs(F).max() > _LARGEST_FACTOR:
                raise RefusedError(f"factors must be numbers up to {_LARGEST_FACTOR:.1e}")
        if not weighted:
            return answer(query(**given), own, who)
        unit = given.pop("unit")
        return answer(Weighted(query(**given), unit, center, most + 1), own, who)

    task = {"grids": grids_of_sums, "arguments": names, "center": center, "rank": rank, **task}
    return Task(work, times, reads=MOMENTS, **task)


# -------------------------------------------------------------------- first and second moments


def task_of_bounds(by_column: bool = False, **task: Any) -> Task:
    """What begins a fit: the bounds of a site."""

    def bounds(site, own):
        mean, scatter = own.mean, own.column_scatter
        if not by_column:
            mean, scatter = np.linalg.norm(mean), scatter.sum()
        return announced(own.n_samples, len(own.mean), mean, scatter, np.dtype(own.dtype))

    return Task(bounds, reads=MOMENTS, **task)


OF_BOUNDS = task_of_bounds()


def tasks_of_moments(by_column: bool = False) -> Tasks:
    """Bounds of a site, and the sum and number of its rows."""
    return {"bounds": task_of_bounds(by_column), Moments.kind: of_query(Moments)}


def check_few_features(d: int) -> None:
    """Raise where a message would be too large."""
    if d > MAX_FEATURES:
        raise RefusedError(f"second moments are summed of up to {MAX_FEATURES} features, not {d}")


def _second_moments(site: str, own: SiteMoments, mean: np.ndarray) -> dict[str, np.ndarray]:
    check_few_features(len(mean))
    return {
        "products": own.matrix_about(mean)[np.triu_indices(len(mean))],
        "rest": own.deviation(mean),
        "count": np.array([own.n_samples]),
    }


def work_of_second_moments(estimator: Any) -> Tasks:
    """What a site adds up to the second moments of all rows."""
    second = Task(_second_moments, fixed=0, reads=MOMENTS, grids=grids_of_second_moments)
    return {**tasks_of_moments(adjusts(estimator)), "second_moments": second}


def mean_of_all(sums: SecureSums) -> tuple[np.ndarray, float]:
    """Mean and number of the rows of all sites."""
    return moments_by_sum(Rounds(sums), [])


def symmetric(above: np.ndarray, d: int) -> np.ndarray:
    """Matrix of shape (d, d) with this upper triangle."""
    found = np.zeros((d, d))
    found[np.triu_indices(d)] = above
    return found + np.triu(found, 1).T


class SummedTriangle(NamedTuple):
    """Factor of the rows of all sites, and units in which columns that are adjusted are alike.

    In these units its scatter matrix may be ``off`` by so much, in the spectral norm, by integers
    and small values, and its diagonal by ``off_diagonal``.
    """

    triangle: Triangle
    units: np.ndarray
    off: float
    off_diagonal: float

    def check(self, fitted: Any) -> None:
        """Raise where confounders leave less of a column than sums tell of its scale."""
        if not (fitted.scale and len(fitted._adjustment().confounders)):
            return
        how, model, units = fitted._adjustment(), untruncated_model(fitted), self.units
        own = units[how.others]
        effects = np.abs(how.effects * units[how.confounders][:, None] / own).sum(axis=0)
        left = model.column_scatter * (how.scale / own) ** 2
        there = self.triangle.factor[:, how.others].any(axis=0)
        (lost,) = np.nonzero(there & (left < _TOLD * self.off_diagonal * (1 + effects) ** 2))
        if len(lost):
            raise ValueError(
                f"partial_out={fitted.partial_out!r} leaves less of column {how.others[lost[0]]} "
                "than secure sums can tell, for scale=True: leave the column out, or fit without "
                "scale or without secure sums."
            )


def triangle_about(
    estimator: Any, sums: SecureSums, mean: np.ndarray, count: float, *asked: Any
) -> SummedTriangle:
    """Factor of the rows of all sites, from the sums of second moments about a mean.

    They are asked for by another kind of question and its arguments, where these are given.
    """
    d, n_rows = len(mean), max(1, round(count))
    if d > MAX_FEATURES:
        raise ValueError(
            f"secure sums of second moments take up to {MAX_FEATURES} features, got {d}. Rounds of "
            "products, of FederatedPowerPCA or n_refinements, take any number, of columns as they "
            "are or divided by the scales that FederatedScaler finds."
        )
    shapes = {"products": (d * (d + 1) // 2,), "rest": (d,), "count": (1,)}
    kind, *arguments = asked or ("second_moments", mean)
    found = sums.sum(kind, shapes, *arguments)
    rest, above = found["rest"] / count, np.triu_indices(d)
    scatter, steps = np.zeros((d, d)), np.zeros((d, d))
    scatter[above] = found["products"] - count * np.outer(rest, rest)[above]
    steps[above] = sums.most_rounding("products")
    steps[above] += 2 * (np.abs(rest) * sums.most_rounding("rest"))[above[0]]
    squares, eps = scatter.diagonal().copy(), np.finfo(float).eps
    # what integers and floats may have rounded in sums of squares about the mean
    floats = eps * np.sqrt(count) * (np.abs(squares) + count * rest**2)
    least = 2 * steps.diagonal() + 8 * floats
    units, lost = np.ones(d), np.zeros(d, dtype=bool)
    if adjusts(estimator):
        units, lost = units_of(squares, least, count), without_variance(squares, least)
    for matrix in scatter, steps:
        matrix /= np.outer(units, units)
        matrix[lost], matrix[:, lost] = 0.0, 0.0
    least = least / units**2
    values, V = np.linalg.eigh(scatter, UPLO="U")
    rounding = max(GRAM_ROUNDING * values[-1], float(np.sqrt(d) * steps.max()))
    values = np.where(values > rounding, values, 0.0)[-n_rows:]
    factor = r_factor(np.sqrt(values)[:, None] * V.T[-n_rows:])
    off = float(d * steps.max()) + rounding
    factor[:, lost] = 0.0
    factor = factor * units
    about = mean + rest
    rest -= about - mean  # what the sum has rounded
    triangle = Triangle(factor, about, rest, count, n_rows)
    return SummedTriangle(triangle, units, off, float(least.max()))


# -------------------------------------------------------------------- units
#
# Powers of two in which columns are alike, for sums of rows that are scaled or adjusted: each
# column has a grid of its own, so that small columns keep their digits.


def units_of(squares: np.ndarray, least: np.ndarray, count: float) -> np.ndarray:
    """Powers of two near the deviations of columns with these sums of squares.

    Of a column that is too small beside its rounding errors to tell, what it can be at most.
    """
    deviations = np.sqrt(np.maximum(np.maximum(squares, least), np.finfo(float).tiny) / count)
    return np.ldexp(1.0, np.frexp(deviations)[1].clip(-_LARGEST + 1, _LARGEST - 1))


def without_variance(squares: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Columns that count as constant, or an error where it cannot be told how much they vary."""
    lost = squares <= least
    (doubtful,) = np.nonzero(~lost & (squares < _TOLD * least))
    if len(doubtful):
        raise ValueError(
            f"column {doubtful[0]} varies too little beside its mean for secure sums to tell how "
            "much: give SecureAggregation more bits, or centre the column."
        )
    return lost


# -------------------------------------------------------------------- rounds of queries


class Rounds(Federation):
    """Rounds of sums over sites, secure or not."""

    def __init__(self, sites: Sites, log: CommunicationLog | None = None):
        super().__init__(log=sites.log if log is None else log)
        self.sites: Any = sites

    def sum(self, function: Any, clients: Any, broadcast: np.ndarray | None = None) -> np.ndarray:
        """Return the sum of the answers of all sites to a query."""
        kind, shapes, arguments = self.asked(function)
        check = partial(self.check, function)
        found = self.sites.added(kind, shapes, arguments, check, self.log, broadcast)
        return np.concatenate([*found.values()])

    def asked(self, query: Any) -> tuple[str, Shapes, tuple[Any, ...]]:
        """Kind of the question for a query, shapes of the answers, and what is sent."""
        d = self.sites.n_features
        shapes = {n: (d,) if shape == (None,) else shape for n, shape in query.shapes.items()}
        return query.kind, shapes, query.arguments

    def check(self, query: Any, answer: Answer, *parts: np.ndarray) -> None:
        """Raise where the parts of a site's answer are of no rows."""
