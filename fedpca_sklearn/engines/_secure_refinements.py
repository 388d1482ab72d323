"""`FederatedPCA` by secure sums: one of second moments, or of many features rounds of products."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state

from .._base.adjusting import adjusts, wanted_of_factor, whole_model
from .._base.certified import certify
from .._kernels import linalg
from .._kernels.certificates import Certificate
from .._kernels.sizes import kept_directions
from ..federated import FederatedPCA
from ..federated._client_refinement import most_rounds, refine_as_asked
from ..summary import Subspace
from ..summary._refinement import certificate_of_summary
from ..summary._triangle import subspace_of
from ._estimators import site_work, until_nobody_is_lost
from ._questions import MOMENTS, Task, check_mean
from ._secure_bounds import Summed, grids_of_products
from ._secure_fits import (
    SummedTriangle,
    are_too_many,
    fit_by_sums,
    mean_of_all,
    secure_work,
    triangle_about,
    work_of_second_moments,
)
from ._secure_sums import SecureSums


@secure_work.register
def _(estimator: FederatedPCA) -> dict[str, Task]:
    for name in ("estimator", "merge"):
        if getattr(estimator, name) is not None:
            raise ValueError(
                f"{name} must be None with secure sums, which sum up second moments and merge no "
                f"summaries, got {getattr(estimator, name)!r}."
            )
    tasks, plain = work_of_second_moments(estimator), site_work(estimator).get("products")
    if plain is None or adjusts(estimator):  # of few features, where no round is needed
        return tasks

    def scatter(site, own, mean):
        check_mean(mean, len(own.mean), True)
        return {"scatter": np.array([own.scatter_about(mean)])}

    def products(site, own, mean, block):
        message = plain.work(site, own, mean, block)["message"]
        found, rest, scatter, count = np.split(message, [block.size, -2, -1])
        found = found.reshape(block.shape)
        return {"products": found, "rest": rest, "scatter": scatter, "count": count}

    summed = partial(Summed, fixed=0, mean=0, reads=MOMENTS, grids=grids_of_products)
    return {**tasks, "scatter": summed(scatter), "products": summed(products, plain.times)}


@fit_by_sums.register
def _(estimator: FederatedPCA, sums: SecureSums) -> FederatedPCA:
    def fit() -> FederatedPCA:
        mean, count = mean_of_all(estimator, sums)
        if are_too_many(mean) and most_rounds(estimator) and not adjusts(estimator):
            return _refined(estimator, sums, mean, count)
        found = triangle_about(estimator, sums, mean, count)
        summary = subspace_of(found.triangle, sums.sites.dtype, wanted=wanted_of_factor(estimator))
        fitted = _fitted(estimator, sums, summary)
        found.check(fitted)
        certify(fitted, _certificate(fitted, found))
        return fitted

    return until_nobody_is_lost(fit)


def _fitted(estimator: FederatedPCA, sums: SecureSums, summary: Subspace) -> FederatedPCA:
    """The estimator with a summary of all sites."""
    adjusting = {"scale": estimator.scale, "partial_out": estimator.partial_out}
    named = summary._named(sums.sites.columns)
    fitted = FederatedPCA.from_subspaces([named], estimator.n_components, **adjusting)
    fitted.communication_ = sums.sites.log
    return fitted.set_params(**clone(estimator).get_params(deep=False))


def _certificate(fitted: FederatedPCA, found: SummedTriangle) -> Certificate:
    """What is certain about the components, beside what integers have rounded.

    Scaled, an error of the share e of the least sum of squares is one of at most 2 e of the
    scatter: e of the entries, and e of the deviations that they are divided by. Of effects of
    confounders nothing is said.
    """
    model, off, rank = whole_model(fitted), found.off, fitted.n_components_
    if fitted.partial_out is not None:
        return Certificate(np.inf, np.tile([0.0, np.inf], (rank, 1)))
    if found.units is not None:
        squares = np.square(found.triangle.factor / found.units).sum(axis=0)
        off *= 2 * model.scatter / squares[squares > 0].min(initial=np.inf)
    return certificate_of_summary(model, rank, 2 * off)


def _refined(
    estimator: FederatedPCA, sums: SecureSums, mean: np.ndarray, count: float
) -> FederatedPCA:
    """Random directions, refined by sums of products, as sites send no summaries."""
    d, wanted = len(mean), estimator.n_components
    if not isinstance(wanted, Integral):
        raise ValueError(
            f"n_components must be an integer to refine random directions of {d} features by "
            f"secure sums, got {wanted!r}."
        )
    (scatter,) = sums.sum("scatter", {"scatter": (1,)}, mean)["scatter"]
    V = linalg.random_basis(
        kept_directions(int(wanted), d), d, check_random_state(estimator.random_state)
    )
    start = Subspace.empty(d, centered=True, dtype=sums.sites.dtype)._replace(
        components=V.astype(sums.sites.dtype),
        singular_values=np.full(len(V), np.sqrt(scatter / d)),
        mean=mean,
        n_samples=count,
        scatter=float(scatter),
    )
    fitted = _fitted(estimator, sums, start)
    refine_as_asked(fitted, lambda: _multiply(sums), float(np.max(sums.most_rounding("scatter"))))
    return fitted


def _multiply(sums: SecureSums) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Sums of products over the sites."""

    def multiply(mean: np.ndarray, block: np.ndarray) -> Any:
        shapes = {"products": block.shape, "rest": mean.shape, "scatter": (1,), "count": (1,)}
        found = sums.sum("products", shapes, mean, block)
        return np.concatenate([found[name].ravel() for name in shapes])

    return multiply
