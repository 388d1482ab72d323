"""`FederatedPCA` and `TruncatedDistributedPCA` at sites: one summary of each, and refinements.

By secure sums `FederatedPCA` is fitted to second moments, or of many features by rounds of
products.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from numbers import Integral
from typing import Any
from zlib import crc32

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state

from .._base.adjusting import (
    adjusting_of,
    adjusts,
    n_certain_of_factor,
    untruncated_model,
    with_confounders,
)
from .._base.certified import certify
from .._kernels import linalg
from .._kernels.certificates import N_PROBES, Certificate
from .._kernels.sizes import kept_directions
from .._validation.checks import check_at_most_features
from ..communication._federation import message_of
from ..federated import ConditionalFill, FederatedPCA, TruncatedDistributedPCA
from ..federated._client_refinement import most_rounds, refine_as_asked
from ..federated._distributed_pca import local_message
from ..federated._local_fit import Site
from ..federated._summaries import fit_site, work_of_clients
from ..summary import Subspace
from ..summary._metric import merged
from ..summary._refinement import certificate_of_summary, products_of
from ..summary._triangle import subspace_of
from ._estimators import (
    fit_estimator,
    know_columns,
    one_message,
    partial_fit_estimator,
    received,
    rows_sent,
    site_work,
    summary_and_rows,
    value_sent,
)
from ._messages import Answer
from ._missing import fill_tasks, fit_missing, missing_by_sums, pair_tasks
from ._private import fit_private, private_second_moments, private_summaries
from ._questions import MOMENTS, Task, check_basis, check_mean
from ._secure import SecureAggregation, grids_of_sums
from ._secure_fits import (
    Rounds,
    SummedTriangle,
    are_too_many,
    check_needed,
    mean_of_all,
    names_in,
    secure_work,
    triangle_about,
    work_of_second_moments,
)
from ._sites import SecureSums, Sites

# Share by which the rows of a product may differ from those of the site's summary, in float32.
_SAME = 1e-4


# -------------------------------------------------------------------- FederatedPCA


@site_work.register
def _(estimator: FederatedPCA) -> dict[str, Task]:
    if estimator.mechanism is not None:
        return private_summaries(estimator)

    def summary(site, X, *, weight, columns, of_filled=None):
        local = clone(estimator)
        know_columns(local, columns)
        prototype = work_of_clients(local, X, "fit", weight is not None)
        rng = check_random_state(local.random_state)
        seed = (rng.randint(2**31 - 1) + crc32(site.encode())) % (2**31 - 1)  # sites differ
        found = fit_site(site, None, prototype, seed, X, weight, "fit").summary
        found = found if of_filled is None else of_filled(found)
        return value_sent("summary", found) | rows_sent(X, weight)

    if isinstance(estimator.missing, ConditionalFill):
        return fill_tasks(estimator, summary)
    if estimator.missing is not None:
        return pair_tasks()
    own = estimator.estimator is not None
    reads = "rows: an estimator of one's own takes them" if own else "summary"
    return one_message("summary", summary, reads=reads) | refinement_tasks(estimator)


@fit_estimator.register
def _(estimator: FederatedPCA, sites: Sites) -> FederatedPCA:
    if estimator.missing is not None:
        return fit_missing(estimator, sites)
    if estimator.mechanism is not None:
        return fit_private(estimator, sites)
    if isinstance(sites, SecureSums):
        return _by_sums(estimator, sites)
    found = received(estimator, sites, "summary", summary_and_rows, None)
    fitted = _with_summaries(estimator, found)
    if most_rounds(fitted):
        sent = {site: summary for site, (summary, _) in found.items()}
        fitted.communication_ = sites.log
        refine_as_asked(fitted, lambda: partial(_multiply, sites, sent))
    return fitted


@partial_fit_estimator.register
def _(estimator: FederatedPCA, sites: Sites, batch: int) -> FederatedPCA | None:
    if estimator.mechanism is not None:  # what each batch costs is not accounted for
        raise ValueError(
            f"mechanism must be None for batches over a network, got {estimator.mechanism!r}; "
            "fit_sites takes all rows of a site at once."
        )
    if isinstance(estimator.missing, ConditionalFill):
        raise ValueError(
            f"missing={estimator.missing!r} takes all rows of a site at once, as each is filled in "
            "anew: fit_sites does."
        )
    if estimator.missing is not None:
        return fit_missing(estimator, sites, batch)
    if hasattr(estimator, "subspace_"):
        sites.expect(centring=estimator.subspace_.centered)
    found = received(estimator, sites, "summary", summary_and_rows, batch)
    return _with_summaries(estimator, found) if found else None


def _with_summaries(estimator: Any, found: dict[str, tuple[Subspace, int]]) -> FederatedPCA:
    """Estimator that has merged what sites sent, each with what it had sent before."""
    seen, d = estimator._clients, next(iter(found.values()))[0].n_features
    check_at_most_features(estimator.n_components, d)
    wanted = with_confounders(estimator, estimator._directions_needed())
    max_rank = kept_directions(min(int(wanted), d), d) if isinstance(wanted, Integral) else None
    made = {}
    for site, (summary, n_rows) in found.items():
        if site in seen:
            n_rows += seen[site].n_rows
            before = seen[site].summary._replace(site=None)  # the same site, not the same rows
            summary = merged([before, summary], max_rank, adjusting_of(estimator, d))
        made[site] = Site(None, n_rows, summary._replace(site=site))
    estimator._clients = {**seen, **made}
    estimator._merge_all()
    return estimator


# -------------------------------------------------------------------- TruncatedDistributedPCA


@site_work.register
def _(estimator: TruncatedDistributedPCA) -> dict[str, Task]:
    def summary(site, X, *, weight):
        found = local_message(site, X, weight, estimator.local_threshold)
        return value_sent("summary", found) | rows_sent(X, weight)

    return {"summary": Task(summary, reads="summary")}


@fit_estimator.register
def _(estimator: TruncatedDistributedPCA, sites: Sites) -> TruncatedDistributedPCA:
    found = sites.ask("summary", _cut_summary)
    sent = {site: summary for site, (summary, _) in found.items()}
    check_at_most_features(estimator.n_components, sites.n_features)
    estimator._start()
    estimator._show(sent, list(sent), sum(n_rows for _, n_rows in found.values()))
    return estimator


def _cut_summary(answer: Answer) -> tuple[Subspace, int]:
    """A summary that tells of no scatter but that along its directions."""
    summary, n_rows = summary_and_rows(answer)
    s = summary.singular_values.astype(np.float64)
    if not summary.centered or summary.column_scatter is not None:
        raise answer.refused("another summary than of leading components")
    return summary._replace(scatter=float(s @ s)), n_rows


# -------------------------------------------------------------------- refinements


def refinement_tasks(estimator: FederatedPCA) -> dict[str, Task]:
    """What a site answers after its summary, if the estimator is to be refined."""
    n_rounds = most_rounds(estimator)
    wanted = with_confounders(estimator, estimator._directions_needed())

    def products(site, own, mean, block):
        d = len(own.mean)
        check_mean(mean, d, True)
        kept = kept_directions(min(int(wanted), d), d) if isinstance(wanted, Integral) else d
        check_basis(block, d, min(d, kept + N_PROBES))
        return {"message": products_of(own, mean, block)}

    task = Task(products, n_rounds, fixed=0, reads=MOMENTS, parts=_names_of_products)
    return {"products": task} if n_rounds else {}


def _names_of_products(n: int, d: int) -> np.ndarray:
    return names_in({"products": None, "rest": d, "scatter": 1, "count": 1}, n)


def _multiply(
    sites: Sites, sent: Mapping[str, Subspace], mean: np.ndarray, block: np.ndarray
) -> np.ndarray:
    """Sums of products over the sites of these summaries; an error if one is lost."""

    def read(answer: Answer) -> np.ndarray:
        message = answer.array("message", (block.size + len(mean) + 2,))
        _check_rows(answer, message, sent[answer.site], mean, block)
        return message

    messages = sites.ask("products", read, mean, block, there=sent)
    up, down = map(message_of, (next(iter(messages.values())), block))
    sites.log.record([up] * len(messages), [down] * len(messages), summed=True)
    return np.sum(list(messages.values()), axis=0)


def _check_rows(
    answer: Answer, message: np.ndarray, summary: Subspace, mean: np.ndarray, block: np.ndarray
) -> None:
    """Leave a site out whose products are of other rows than its summary."""
    products, deviation, (scatter, count) = np.split(message, [block.size, -2])
    n, difference = summary.n_samples, summary.mean.astype(np.float64) - mean
    about = summary.scatter + n * float(difference @ difference)
    reach = np.sqrt(about / n) + float(np.abs(mean).max(initial=0.0))
    with np.errstate(over="ignore"):  # as liars can make it
        size = float(np.linalg.norm(products))
        within = block @ products.reshape(block.shape).T
    same = (
        abs(count - n) <= _SAME * n
        and float(np.abs(deviation / n - difference).max()) <= _SAME * reach
        and abs(scatter - about) <= _SAME * (about + n * float(mean @ mean) * _SAME)
        and size <= (1 + _SAME) * about  # of an orthonormal block
        and np.trace(within) <= (1 + _SAME) * about
        and np.abs(within - within.T).max(initial=0.0) <= _SAME * about
    )
    if not same:
        raise answer.refused("products of other rows than those of its summary")


# -------------------------------------------------------------------- secure sums


@secure_work.register
def _(estimator: FederatedPCA, secure: SecureAggregation) -> dict[str, Task]:
    if estimator.mechanism is not None:
        return private_second_moments(estimator, secure)
    for name in ("estimator", "merge"):
        why = ", which sum up second moments and merge no summaries"
        check_needed(estimator, name, None, why)
    if estimator.missing is not None:
        return missing_by_sums(estimator, secure)
    tasks, plain = work_of_second_moments(estimator), site_work(estimator).get("products")
    if plain is None or adjusts(estimator):  # of few features, where no round is needed
        return tasks

    def scatter(site, own, mean):
        check_mean(mean, len(own.mean), True)
        return {"scatter": np.array([own.scatter_about(mean)])}

    about = Task(scatter, fixed=0, reads=MOMENTS, grids=grids_of_sums)
    return {**tasks, "scatter": about, "products": plain}


def _by_sums(estimator: FederatedPCA, sums: SecureSums) -> FederatedPCA:
    """Fit by secure sums of second moments."""
    mean, count = mean_of_all(estimator, sums)
    if are_too_many(mean) and most_rounds(estimator) and not adjusts(estimator):
        return _refined(estimator, sums, mean, count)
    found = triangle_about(estimator, sums, mean, count)
    summary = subspace_of(found.triangle, sums.dtype, n_certain=n_certain_of_factor(estimator))
    fitted = _fitted(estimator, sums, summary)
    found.check(fitted)
    certify(fitted, _certificate(fitted, found))
    return fitted


def _fitted(estimator: FederatedPCA, sums: SecureSums, summary: Subspace) -> FederatedPCA:
    """The estimator with a summary of all sites."""
    adjusting = {"scale": estimator.scale, "partial_out": estimator.partial_out}
    named = summary._named(sums.columns)
    fitted = FederatedPCA.from_subspaces([named], estimator.n_components, **adjusting)
    return fitted.set_params(**clone(estimator).get_params(deep=False))


def _certificate(fitted: FederatedPCA, found: SummedTriangle) -> Certificate:
    """What is certain about the components, beside what integers have rounded.

    Scaled, an error of the share e of the least sum of squares is one of at most 2 e of the
    scatter: e of the entries, and e of the deviations that they are divided by. Of effects of
    confounders nothing is said.
    """
    model, off, rank = untruncated_model(fitted), found.off, fitted.n_components_
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
    sizes, known = np.full(len(V), np.sqrt(scatter / d)), (mean, count, float(scatter), True)
    fitted = _fitted(estimator, sums, Subspace._trusted(V.astype(sums.dtype), sizes, *known))

    def multiply(mean: np.ndarray, block: np.ndarray) -> Any:
        names = _names_of_products(block.size + d + 2, d)
        return Rounds(sums).numbers("products", names, mean, block)

    refine_as_asked(fitted, lambda: multiply, float(np.max(sums.most_rounding("scatter"))))
    return fitted


@secure_work.register
def _(estimator: TruncatedDistributedPCA, secure: SecureAggregation) -> dict[str, Task]:
    raise ValueError(
        "TruncatedDistributedPCA has no secure sums: summaries that sites have cut do not add up. "
        "DistributedPCA is exact, and its sums do."
    )
