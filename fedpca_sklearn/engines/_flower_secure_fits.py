"""Fits by secure sums: what a site adds up for each estimator, and how the server goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import singledispatch, wraps
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone

from .._kernels.linalg import r_factor
from .._kernels.rows import scatter_about
from .._kernels.scatter import dense
from .._kernels.slices import row_slices
from .._kernels.tolerances import GRAM_ROUNDING
from .._validation.checks import check_at_most_features
from ..communication import Federation
from ..federated import DistributedPCA
from ..rounds import FederatedPowerPCA
from ..rounds._client import Client
from ..rounds._power_method import moments_by_sum
from ..rounds._queries import Moments, Query, TimesScatter, Variances
from ..summary._triangle import Triangle
from ._flower_estimators import are_too_large, know_columns, site_work, until_nobody_is_lost
from ._flower_questions import RefusedError, Task, check_mean
from ._flower_rounds import by_rounds
from ._flower_secure import SecureAggregation
from ._flower_secure_private import fit_private_by_sums, private_secure_tasks
from ._flower_secure_site import Bounds, protocol_tasks
from ._flower_secure_sums import SecureSums
from ._flower_secure_units import (
    bounds_in_units,
    check_residuals,
    check_units,
    least_squares_told,
    units_by_sums,
    without_variance,
    work_of_squares,
)
from ._flower_sites import Sites

# Most features of which second moments are summed: a message of 16 MB.
MAX_FEATURES = 2000
# A bound grows by this share of what is added up, as a product rounds in another way than it does.
_ROUNDING = 2.0**-20


@singledispatch
def secure_work(estimator: Any) -> dict[str, Task]:
    """What a site adds up to the sums of a fit, by kind of question; `site_work` for secure sums.

    Works return arrays by name, each with a scale of its own, that a `Bounds` of that name finds.
    """
    raise TypeError(
        "secure sums need FederatedPCA, DistributedPCA, FederatedPowerPCA, "
        f"FederatedSubspaceTracker or VerticalFederatedPCA, got {type(estimator).__name__}."
    )


def secure_tasks(estimator: Any, secure: SecureAggregation) -> dict[str, Task]:
    """`secure_work` and the protocol's own tasks, without bounds where the scale is public."""
    private = getattr(estimator, "mechanism", None) is not None
    tasks = private_secure_tasks(estimator, secure) if private else secure_work(estimator)
    tasks |= protocol_tasks(tasks)
    if secure.scale is None:
        return tasks
    return {kind: task for kind, task in tasks.items() if not isinstance(task, Bounds)}


def fit_securely(estimator: Any, sites: Sites, secure: SecureAggregation) -> Any:
    """Fit an estimator of the rows at sites by secure sums."""
    private = getattr(estimator, "mechanism", None) is not None
    fit = fit_private_by_sums if private else fit_by_sums
    return fit(estimator, SecureSums(sites, secure))


@singledispatch
def fit_by_sums(estimator: Any, sums: SecureSums) -> Any:
    """Fit an estimator by secure sums, at the server; `fit_estimator` for secure sums."""


# -------------------------------------------------------------------- first and second moments


def _moments(site: str, X: Any) -> dict[str, np.ndarray]:
    *total, count = Moments()(site, Client(site, X))
    if are_too_large(np.divide(total, count), 0.0, X.dtype):
        raise RefusedError("values that are too large")
    return {"sum": np.array(total), "count": np.array([count])}


def scatter_bound(X: Any, mean: np.ndarray) -> float:
    """Bound on the scatter about a mean and on products with it, with what they round."""
    if not X.shape[0]:
        return 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        scatter = total = max(scatter_about(X, mean, None), 0.0)
        if sp.issparse(X):  # not centred, so that squares of the mean are rounded as well
            total += scatter_about(X, 0 * mean, None) + X.shape[0] * float(mean @ mean)
    if are_too_large(0.0, scatter / X.shape[0], X.dtype):
        raise RefusedError("values that are too large")
    return scatter + _ROUNDING * total


def _second_moments(site: str, X: Any, mean: np.ndarray) -> dict[str, np.ndarray]:
    return _in_units(site, X, mean, np.ones(X.shape[1]))


def _in_units(site: str, X: Any, mean: np.ndarray, units: np.ndarray) -> dict[str, np.ndarray]:
    """Products and sums of rows less a mean, in units, and their number."""
    _check_features(X, mean)
    n, d = X.shape
    check_units(units, d)
    products, rest = np.zeros((d, d)), np.zeros(d)
    for rows in row_slices(n, d, least=d):
        Z = (dense(X[rows]) - mean) / units
        products += Z.T @ Z
        rest += Z.sum(axis=0)
    return {"products": products[np.triu_indices(d)], "rest": rest, "count": np.array([float(n)])}


def _bounds_of_second_moments(site: str, X: Any, mean: np.ndarray) -> dict[str, float]:
    check_mean(mean, X.shape[1], True)
    scatter = scatter_bound(X, mean)
    return {"products": scatter, "rest": float(np.sqrt(X.shape[0] * scatter))}


def _bounds_in_units(site: str, X: Any, mean: np.ndarray, units: np.ndarray) -> dict[str, float]:
    return bounds_in_units(X, mean, units)


def _check_features(X: Any, mean: np.ndarray) -> None:
    d = X.shape[1]
    if d > MAX_FEATURES:
        raise RefusedError(f"second moments are summed of up to {MAX_FEATURES} features, not {d}")
    check_mean(mean, d, True)


def work_of_second_moments(estimator: Any) -> dict[str, Task]:
    """What a site adds up to the second moments of all rows."""
    site_work(estimator)  # refuses what cannot be fitted over Flower
    begin = {"moments_bound": Bounds(_moments), "moments": Task(_moments)}
    if estimator._asks():
        return {
            **begin,
            **work_of_squares(),
            "scatter_bound": Bounds(_bounds_in_units, fixed=(0, 1)),
            "second_moments": Task(_in_units, fixed=(0, 1)),
        }
    return {
        **begin,
        "scatter_bound": Bounds(_bounds_of_second_moments, fixed=0),
        "second_moments": Task(_second_moments, fixed=0),
    }


@secure_work.register
def _(estimator: DistributedPCA) -> dict[str, Task]:
    return work_of_second_moments(estimator)


def mean_of_all(estimator: Any, sums: SecureSums) -> tuple[np.ndarray, float]:
    """Begin a fit: mean and number of the rows of all sites."""
    sums.begin()
    mean, count = moments_by_sum(SecureRounds(sums), [])
    check_at_most_features(estimator.n_components, len(mean))
    return mean, count


def are_too_many(mean: np.ndarray) -> bool:
    """Whether rows with such a mean have more features than second moments are summed of."""
    return len(mean) > MAX_FEATURES


class SummedTriangle(NamedTuple):
    """Factor of the rows of all sites, and units in which columns are alike; None: their own.

    In these units its scatter matrix may be ``off`` by so much, in the spectral norm, by integers
    and small values, and its diagonal by ``off_diagonal``.
    """

    triangle: Triangle
    units: np.ndarray | None
    off: float
    off_diagonal: float

    def check(self, fitted: Any) -> None:
        """Raise unless the sums tell how an estimator of them adjusts the rows."""
        if self.units is not None:
            check_residuals(fitted, self.triangle.factor, self.units, self.off_diagonal)


def triangle_of(estimator: Any, sums: SecureSums) -> SummedTriangle:
    """Factor of the rows of all sites, from the sums of their first and second moments."""
    return triangle_about(estimator, sums, *mean_of_all(estimator, sums))


def triangle_about(
    estimator: Any, sums: SecureSums, mean: np.ndarray, count: float
) -> SummedTriangle:
    """The same from the sums of second moments, where the mean is known."""
    d, n_rows = len(mean), max(1, round(count))
    if are_too_many(mean) and estimator._asks():
        raise ValueError(
            f"scale and partial_out by secure sums take up to {MAX_FEATURES} features, got {d}. "
            "Without secure sums they take any number, and FederatedScaler finds scales by which "
            "sites can divide their rows before a fit by secure sums."
        )
    if are_too_many(mean):
        raise ValueError(
            f"secure sums of second moments take up to {MAX_FEATURES} features, got {d}. "
            "FederatedPowerPCA takes any number, and so does FederatedPCA with n_refinements or "
            "tol."
        )
    units = units_by_sums(sums, mean, count) if estimator._asks() else None
    asked = (mean,) if units is None else (mean, units)
    sums.bound("scatter_bound", ("products", "rest"), *asked)
    shapes = {"products": (d * (d + 1) // 2,), "rest": (d,), "count": (1,)}
    found = sums.sum("second_moments", shapes, *asked)
    rest = found["rest"] / count
    scatter = np.zeros((d, d))
    scatter[np.triu_indices(d)] = (
        found["products"] - count * np.outer(rest, rest)[np.triu_indices(d)]
    )
    least = least_squares_told(scatter.diagonal(), rest, count, sums)
    if units is not None:
        lost = without_variance(scatter.diagonal(), least)
        scatter[lost], scatter[:, lost] = 0.0, 0.0
    values, V = np.linalg.eigh(scatter, UPLO="U")
    rounding = max(GRAM_ROUNDING * values[-1], np.sqrt(d) * sums.rounding("products"))
    values = np.where(values > rounding, values, 0.0)[-n_rows:]
    factor = r_factor(np.sqrt(values)[:, None] * V.T[-n_rows:])
    off = d * sums.most_rounding("products") + rounding
    off += 2 * np.sqrt(d) * sums.most_rounding("rest") * float(np.linalg.norm(rest))
    if units is not None:
        factor[:, lost] = 0.0
        factor, rest = factor * units, rest * units
    about = mean + rest
    rest -= about - mean  # what the sum has rounded
    triangle = Triangle(factor, about, rest, count, n_rows)
    return SummedTriangle(triangle, units, off, float(least.max()))


@fit_by_sums.register
def _(estimator: DistributedPCA, sums: SecureSums) -> DistributedPCA:
    summed = until_nobody_is_lost(lambda: triangle_of(estimator, sums))
    found = summed.triangle
    estimator._start()
    know_columns(estimator, sums.sites.columns)
    estimator._merge_step({"all sites": (found, found.n_rows, sums.sites.dtype)})
    summed.check(estimator)
    estimator.communication_ = sums.sites.log
    return estimator


# -------------------------------------------------------------------- rounds


@secure_work.register
def _(estimator: FederatedPowerPCA) -> dict[str, Task]:
    plain, steps = site_work(estimator), estimator.local_steps

    def bounds(site, X, mean):
        check_mean(mean, X.shape[1], estimator.center)
        scatter = scatter_bound(X, mean)
        products = scatter if steps == 1 else X.shape[0] * (1.0 + _ROUNDING)
        return {"products": products, "scatter": scatter}

    return {
        "moments_bound": Bounds(_moments),
        Moments.kind: Task(_moments),
        "scatter_bound": Bounds(bounds, fixed=0),
        TimesScatter.kind: _named(plain[TimesScatter.kind], lambda m: {"products": m}),
        Variances.kind: _named(
            plain[Variances.kind], lambda m: {"scatter": m[:-1], "count": m[-1:]}
        ),
    }


def _named(task: Task, parts: Callable[[np.ndarray], dict[str, np.ndarray]]) -> Task:
    """A task whose message is cut into parts of one scale each."""

    @wraps(task.work)
    def work(*arguments, **named):
        return parts(task.work(*arguments, **named)["message"])

    return replace(task, work=work)


class SecureRounds(Federation):
    """Rounds of secure sums over sites."""

    def __init__(self, sums: SecureSums):
        super().__init__(log=sums.sites.log)
        self.sums = sums

    def sum(
        self, function: Any, clients: Sequence[tuple], broadcast: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the sum of the answers of all sites to a query."""
        self.n_rounds += 1
        return _sum_of(function, self.sums)


@singledispatch
def _sum_of(query: Query, sums: SecureSums) -> np.ndarray:
    """The sum of the answers to a query."""
    raise TypeError(f"no answers to {type(query).__name__} are summed.")


@_sum_of.register
def _(query: Moments, sums: SecureSums) -> np.ndarray:
    sums.bound("moments_bound", ("sum", "count"))
    found = sums.sum(query.kind, {"sum": (None,), "count": (1,)})
    return np.append(found["sum"], found["count"])


@_sum_of.register
def _(query: TimesScatter, sums: SecureSums) -> np.ndarray:
    if "products" not in sums.exponents:
        sums.bound("scatter_bound", ("products", "scatter"), query.mean)
    shapes = {"products": query.shape}
    return sums.sum(query.kind, shapes, *vars(query).values())["products"]


@_sum_of.register
def _(query: Variances, sums: SecureSums) -> np.ndarray:
    (size,) = query.shape
    shapes = {"scatter": (size - 1,), "count": (1,)}
    found = sums.sum(query.kind, shapes, *vars(query).values())
    return np.append(found["scatter"], found["count"])


@fit_by_sums.register
def _(estimator: FederatedPowerPCA, sums: SecureSums) -> FederatedPowerPCA:
    def fit():
        sums.begin()
        return by_rounds(clone(estimator), sums.sites, SecureRounds(sums))

    return until_nobody_is_lost(fit)
