"""Estimators of the room `federated` at sites, each of which sends one message, or one a batch.

A summary and refinements, a triangular factor, sums of columns, or an eigenspace. By secure sums
`FederatedPCA` is fitted to second moments, or of many features by rounds of products.
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

from .._base import adjusting
from .._kernels import linalg
from .._kernels.certificates import N_PROBES, Certificate
from .._kernels.row_moments import ColumnMoments, means_of_columns
from .._kernels.sizes import kept_directions
from .._kernels.tolerances import GRAM_ROUNDING
from ..communication._federation import Message as Size
from ..federated import DistributedPCA, FederatedPCA, FederatedScaler, OnlineDistributedPCA
from ..federated._client_refinement import most_rounds, refine_as_asked
from ..federated._distributed_pca import TruncatedDistributedPCA, factor_message, local_message
from ..federated._federated_scaler import local_moments
from ..federated._local_fit import Site
from ..federated._online_distributed_pca import local_eigenspace
from ..federated._private import private_directions
from ..federated._summaries import fit_site, fitted_on, work_of_clients
from ..rounds._queries import Moments, Shapes, parted
from ..summary import Subspace
from ..summary._metric import merged
from ..summary._projection_mean import ProjectionMean
from ..summary._refinement import certificate_of_summary, products_of
from ..summary._triangle import Triangle, subspace_of, triangle_of_rows
from . import _estimators as shared
from . import _private
from ._estimators import Secure, Tasks, fit_estimator, partial_fit_estimator, site_work
from ._messages import Answer
from ._missing import fit_missing, missing_tasks
from ._questions import MOMENTS, RefusedError, Task, are_few
from ._secure import Bounds, Grid, Grids, SecureAggregation, grids_of_sums
from ._sites import SecureSums, Sites

# Share by which the rows of a product may differ from those of the site's summary, in float32.
_SAME = 1e-4


# -------------------------------------------------------------------- FederatedPCA


@site_work.register
def _(estimator: FederatedPCA, secure: Secure = None) -> Tasks:
    if secure:
        return _moments_of_site(estimator, secure)
    if estimator.mechanism is not None:
        return _private.private_summaries(estimator)

    def summary_of(site, X, weight, columns):
        local = clone(estimator)
        shared.know_columns(local, columns)
        prototype = work_of_clients(local, X, "fit", weight is not None)
        rng = check_random_state(local.random_state)
        seed = (rng.randint(2**31 - 1) + crc32(site.encode())) % (2**31 - 1)  # sites differ
        return fit_site(site, None, prototype, seed, X, weight, "fit").summary

    def summary(site, X, *, weight, columns, min_rows):
        found = summary_of(site, X, weight, columns)
        if own and weight is None and found.n_samples < min_rows:
            raise RefusedError(f"the estimator forgets all but fewer than min_rows={min_rows} rows")
        return shared.value_sent("summary", found, X, weight)

    if estimator.missing is not None:
        return missing_tasks(estimator, summary_of)
    own = estimator.estimator is not None
    reads = "rows: an estimator of one's own takes them" if own else "summary"
    return shared.one_message("summary", summary, reads=reads) | refinement_tasks(estimator)


@fit_estimator.register
@partial_fit_estimator.register
def _(estimator: FederatedPCA, sites: Sites, batch: int | None = None) -> FederatedPCA | None:
    if estimator.mechanism is not None:
        return _private.fit_private(estimator, sites)
    if estimator.missing is not None:
        return fit_missing(estimator, sites, batch)
    if isinstance(sites, SecureSums):
        return _by_sums(estimator, sites)
    if hasattr(estimator, "subspace_"):
        sites.know({"centring": estimator.subspace_.centered})
    read = partial(shared.summary_and_rows, estimator=estimator)
    if not (found := shared.received(estimator, sites, "summary", read, batch)):
        return None
    fitted = _with_summaries(estimator, found)
    if batch is None and most_rounds(fitted):
        sent = {site: summary for site, (summary, _) in found.items()}
        sites.log.record(sent.values())
        sites.begin(sent)
        refine_as_asked(fitted, lambda: partial(_multiply, sites, sent))
    return fitted


def _kept(estimator: FederatedPCA, d: int) -> int | None:
    """Directions that a merge keeps; None where that is not known before."""
    wanted = adjusting.with_confounders(estimator, estimator._directions_needed())
    return private_directions(wanted, d)


def _with_summaries(estimator: Any, found: dict[str, tuple[Subspace, int]]) -> FederatedPCA:
    """Estimator that has merged what sites sent, each with what it had sent before."""
    seen, d = estimator._clients, next(iter(found.values()))[0].n_features
    max_rank, made = _kept(estimator, d), {}
    for site, (summary, n_rows) in found.items():
        if site in seen:
            n_rows += seen[site].n_rows
            before = seen[site].summary._replace(site=None)  # the same site, not the same rows
            summary = merged([before, summary], max_rank, adjusting.adjusting_of(estimator, d))
        made[site] = Site(None, n_rows, summary._replace(site=site))
    estimator._clients = {**seen, **made}
    estimator._merge_all()
    return estimator


# -------------------------------------------------------------------- TruncatedDistributedPCA


@site_work.register
def _(estimator: TruncatedDistributedPCA, secure: Secure = None) -> Tasks:
    if secure:
        raise ValueError(
            "TruncatedDistributedPCA has no secure sums: summaries that sites have cut do not add "
            "up. DistributedPCA is exact, and its sums do."
        )

    def summary(site, X, *, weight):
        found = local_message(site, X, weight, estimator.local_threshold)
        return shared.value_sent("summary", found, X, weight)

    return {"summary": Task(summary, reads="summary")}


@fit_estimator.register
def _(estimator: TruncatedDistributedPCA, sites: Sites) -> TruncatedDistributedPCA:
    found = sites.ask("summary", _cut_summary)
    sent = {site: summary for site, (summary, _) in found.items()}
    estimator._show(sent, list(sent), sum(n_rows for _, n_rows in found.values()))
    return estimator


def _cut_summary(answer: Answer) -> tuple[Subspace, int]:
    """A summary that tells of no scatter but that along its directions."""
    summary, n_rows = shared.summary_and_rows(answer)
    s = summary.singular_values.astype(np.float64)
    if not summary.centered or summary.column_scatter is not None:
        raise answer.refused("another summary than of leading components")
    return summary._replace(scatter=float(s @ s)), n_rows


# -------------------------------------------------------------------- refinements


def refinement_tasks(estimator: FederatedPCA) -> Tasks:
    """What a site answers after its summary, if the estimator is to be refined."""
    n_rounds = most_rounds(estimator)

    def products(site, own, mean, V):
        return parted(_shapes_of_products(V), products_of(own, mean, V))

    def rank(d):
        return (_kept(estimator, d) or d) + N_PROBES

    return {"products": _summed(products, n_rounds, rank=rank)} if n_rounds else {}


# Sums of moments about a mean, the first argument, which stays the same.
_summed: Any = partial(Task, fixed=0, reads=MOMENTS, grids=grids_of_sums)


def _shapes_of_products(block: np.ndarray) -> Shapes:
    return {"products": (block.size,), "rest": block.shape[1:], "scatter": (1,), "count": (1,)}


def _multiply(
    sites: Sites, sent: Mapping[str, Subspace], mean: np.ndarray, block: np.ndarray
) -> np.ndarray:
    """Sums of products over sites, which have sent these summaries unless sums are secure."""

    def check(answer: Answer, products: np.ndarray, rest: np.ndarray, *sums: np.ndarray) -> None:
        """Leave a site out whose products are of other rows than its summary."""
        (scatter,), (count,) = sums
        summary = sent[answer.site]
        n, difference = summary.n_samples, summary.mean.astype(np.float64) - mean
        about = summary.scatter + n * float(difference @ difference)
        reach = np.sqrt(about / n) + float(np.abs(mean).max(initial=0.0))
        with np.errstate(over="ignore"):  # as liars can make it
            size = float(np.linalg.norm(products / (about or 1.0)))
            within = block @ products.reshape(block.shape).T
        same = (
            abs(count - n) <= _SAME * n
            and float(np.abs(rest / n - difference).max()) <= _SAME * reach
            and abs(scatter - about) <= _SAME * (about + n * float(mean @ mean) * _SAME)
            and size <= (1 + _SAME) * (about > 0)  # of an orthonormal block
            and np.trace(within) <= (1 + _SAME) * about
            and np.abs(within - within.T).max(initial=0.0) <= _SAME * about
        )
        if not same:
            raise answer.refused("products of other rows than those of its summary")

    shapes = _shapes_of_products(block)
    found = sites.added("products", shapes, (mean, block), check, sites.log, block)
    return np.concatenate([*found.values()])


# -------------------------------------------------------------------- secure sums


def _moments_of_site(estimator: FederatedPCA, secure: SecureAggregation) -> Tasks:
    """What a site adds up to secure sums."""
    if estimator.mechanism is not None:
        return _private.private_second_moments(estimator, secure)
    for name in ("estimator", "merge"):
        why = ", which sum up second moments and merge no summaries"
        shared.check_needed(estimator, name, None, why)
    if estimator.missing is not None:
        return missing_tasks(estimator, secure=secure)
    tasks, products = shared.work_of_second_moments(estimator), refinement_tasks(estimator)
    if not products or adjusting.adjusts(estimator):  # of few features, where no round is needed
        return tasks

    def scatter(site, own, mean):
        return {"scatter": np.array([own.scatter_about(mean)])}

    return {**tasks, "scatter": _summed(scatter), **products}


def _by_sums(estimator: FederatedPCA, sums: SecureSums) -> FederatedPCA:
    """Fit by secure sums of second moments."""
    mean, count = shared.mean_of_all(sums)
    if (
        len(mean) > shared.MAX_FEATURES
        and most_rounds(estimator)
        and not adjusting.adjusts(estimator)
    ):
        return _refined(estimator, sums, mean, count)
    found = shared.triangle_about(estimator, sums, mean, count)
    summary = subspace_of(
        found.triangle, sums.dtype, n_certain=adjusting.n_certain_of_factor(estimator)
    )
    fitted = fitted_on(estimator, [summary._named(sums.columns)])
    found.check(fitted)
    adjusting.certify(fitted, _certificate(fitted, found))
    return fitted


def _certificate(fitted: FederatedPCA, found: shared.SummedTriangle) -> Certificate:
    """What is certain about the components, beside what integers have rounded.

    Scaled, an error of the share e of the least sum of squares is one of at most 2 e of the
    scatter: e of the entries, and e of the deviations that they are divided by. Of effects of
    confounders nothing is said.
    """
    model, off, rank = adjusting.untruncated_model(fitted), found.off, fitted.n_components_
    if fitted.partial_out is not None:
        return Certificate(np.inf, np.tile([0.0, np.inf], (rank, 1)))
    if fitted.scale:
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
    rng, kept = check_random_state(estimator.random_state), kept_directions(int(wanted), d)
    V = linalg.random_basis(kept, d, rng)
    sizes, known = np.full(len(V), np.sqrt(scatter / d)), (mean, count, float(scatter), True)
    summary = Subspace._trusted(V.astype(sums.dtype), sizes, *known)
    fitted = fitted_on(estimator, [summary._named(sums.columns)])
    most = float(np.max(sums.most_rounding("scatter")))
    refine_as_asked(fitted, lambda: partial(_multiply, sums, {}), most)
    return fitted


# -------------------------------------------------------------------- DistributedPCA


@site_work.register
def _(estimator: DistributedPCA, secure: Secure = None) -> Tasks:
    if estimator.missing is not None:
        return missing_tasks(estimator, secure=secure)
    if secure:
        return shared.work_of_second_moments(estimator)

    def factor(site, X, *, weight):
        t = triangle_of_rows(X, weight)
        above = t.factor[np.triu_indices(len(t.factor), m=X.shape[1])]
        sent = {"factor": above, "mean": t.mean, "mean_rest": t.mean_rest, "count": [t.n_samples]}
        return sent | shared.rows_sent(X, weight)

    return shared.one_message("factor", factor, reads="summary")


@fit_estimator.register
@partial_fit_estimator.register
def _(estimator: DistributedPCA, sites: Sites, batch: int | None = None) -> DistributedPCA | None:
    if estimator.missing is not None:
        return fit_missing(estimator, sites, batch)
    if isinstance(sites, SecureSums):
        sums = shared.triangle_about(estimator, sites, *shared.mean_of_all(sites))
        shared.know_columns(estimator, sites.columns)
        estimator._merge_step({"all sites": (sums.triangle, sums.triangle.n_rows, sites.dtype)})
        sums.check(estimator)
        return estimator
    if not (found := shared.received(estimator, sites, "factor", _triangle, batch)):
        return None
    parts = [part for part, _, _ in found.values()]
    d = len(parts[0].mean)
    log = estimator.communication_.copy()
    estimator._merge_step(found)
    estimator.communication_ = log  # all factors went to the server
    sizes = [factor_message(part.factor) for part in parts]
    log.record([Size(m.n_floats + d + 1, m.nbytes + 16 * d + 8) for m in sizes])
    return estimator


def _triangle(answer: Answer) -> tuple[Triangle, int, np.dtype]:
    """The factor of a site, its number of rows and their dtype."""
    (count,) = answer.array("count", (1,))
    answer.check_count(count)
    if count != count // 1 and "rows" not in answer.arrays:
        raise answer.refused(f"count={count}, expected a whole number of rows")
    there, n_rows = answer.n_rows(count)
    mean = answer.array("mean", (None,))
    d = len(mean)
    m = min(there, d)
    rest = answer.array("mean_rest", (d,))
    above = answer.array("factor", (m * d - m * (m - 1) // 2,))
    with np.errstate(over="ignore"):
        squares = float(above @ above) / count
        answer.check_squares(np.abs(mean) + np.abs(rest), squares)
    answer.agree("number of features", d)
    factor = np.zeros((m, d))
    factor[np.triu_indices(m, m=d)] = above
    return Triangle(factor, mean, rest, float(count), there), n_rows, answer.dtype


# -------------------------------------------------------------------- FederatedScaler


@site_work.register
def _(estimator: FederatedScaler, secure: Secure = None) -> Tasks:
    if estimator.mechanism is not None:
        return _private.private_scales(estimator.mechanism, secure)

    def squares(site, own, mean):
        rest, n = own.deviation(mean), own.n_samples
        return {"scatter": own.column_scatter + rest**2 / n, "rest": rest, "count": np.array([n])}

    if secure:
        return {**shared.tasks_of_moments(by_column=True), "squares": _summed(squares)}

    def moments(site, X, *, weight, min_rows):
        with np.errstate(over="ignore", invalid="ignore"):
            _, there = means_of_columns(X if weight is None else X[weight > 0], None)
        if are_few(min_rows, there):  # their mean would tell them
            raise RefusedError(f"a column with fewer than min_rows={min_rows} entries")
        return {"moments": np.stack(local_moments(site, X, weight))}

    reads = "rows: each column has moments of the entries that are there"
    return shared.one_message("moments", moments, reads=reads, missing=True)


@fit_estimator.register
@partial_fit_estimator.register
def _(estimator: FederatedScaler, sites: Sites, batch: int | None = None) -> FederatedScaler | None:
    if estimator.mechanism is not None:
        return _private.fit_private_scales(estimator, sites)
    if isinstance(sites, SecureSums):
        found = {"all sites": _moments_of_sums(sites)}
    elif not (found := shared.received(estimator, sites, "moments", _moments_received, batch)):
        return None
    estimator.n_features_in_ = sites.n_features
    estimator._show(list(found), found.values())
    estimator.communication_.record(found.values())
    return estimator


def _moments_received(answer: Answer) -> ColumnMoments:
    """Moments in an answer, checked to be of some rows."""
    count, mean, rest, squares = found = ColumnMoments(*answer.array("moments", (4, None)))
    answer.agree("number of features", len(mean))
    there = count > 0
    if not ((count >= 0) & (count < 2**53) & (squares >= 0)).all():
        raise answer.refused("counts or sums of squares that no rows have")
    if any(values[~there].any() for values in (mean, rest, squares)) or not there.any():
        raise answer.refused("moments of columns without entries")
    if (np.abs(rest) > np.sqrt(squares) + np.abs(mean)).any():
        raise answer.refused("means whose rests are larger than rounding leaves")
    of_rows = float((squares / np.where(there, count, 1)).sum())
    answer.check_squares(mean, of_rows, np.dtype(np.float64))
    return found


def _moments_of_sums(sums: SecureSums) -> ColumnMoments:
    mean, _ = shared.mean_of_all(sums)
    shapes = {"scatter": mean.shape, "rest": mean.shape, "count": (1,)}
    found = sums.sum("squares", shapes, mean)
    (n,), rest = found["count"], found["rest"]
    about = mean + rest / n
    squares = np.maximum(found["scatter"], 0.0)
    return ColumnMoments(np.full(mean.shape, n), about, rest / n - (about - mean), squares)


# -------------------------------------------------------------------- OnlineDistributedPCA

# Eigenvalues of a mean of projections that are taken for zero.
_LEAST = 1e-12


@site_work.register
def _(estimator: OnlineDistributedPCA, secure: Secure = None) -> Tasks:
    if secure:
        return _spaces_of_site(estimator)
    size, center, measured = estimator._size, estimator.center, estimator.variances == "measured"

    def space(site, X, *, weight):
        start = Subspace.empty(X.shape[1], centered=center, dtype=X.dtype)
        found, _ = local_eigenspace(site, X, weight, start, size, measured)
        return shared.value_sent("summary", found, X, weight)

    def moments(site, own, V):
        products = own.products(own.mean if center else np.zeros_like(own.mean), V)
        values, U = np.linalg.eigh(products @ V.T)
        return {"factor": np.sqrt(values.clip(0))[:, None] * U.T}

    tasks = {"space": Task(space, begins=True, batches=True, reads="summary")}
    second = Task(moments, batches=True, reads=MOMENTS, rank=estimator._eigenpairs_kept)
    return tasks | ({"moments": second} if measured else {})


@partial_fit_estimator.register
def _(estimator: OnlineDistributedPCA, sites: Sites, batch: int) -> OnlineDistributedPCA | None:
    sites.know({"centring": estimator.center})
    take: Any = _take_sums if isinstance(sites, SecureSums) else _take_spaces
    log = estimator.communication_

    def begun() -> list[str]:
        estimator.communication_ = log.copy()
        return take(estimator, sites, batch)

    there = sites.until_nobody_is_lost(begun)
    if not there:
        return None
    estimator._add_clients(there)
    return estimator


def _take_spaces(estimator: OnlineDistributedPCA, sites: Any, batch: int) -> list[str]:
    """Take the eigenspaces of a batch; the sites that have one."""
    found = sites.ask_batch("space", partial(_space, estimator._size), batch)
    if found:
        state = estimator._state_before(sites.n_features, sites.dtype)
        estimator._take_step(found, state, partial(_measured, sites, batch, found))
    return list(found)


def _space(size: int | None, answer: Answer) -> tuple[Subspace, int]:
    """Eigenspace of a site's batch, and number of rows."""
    space, n_rows = shared.summary_and_rows(answer)
    if size is not None and space.n_components > size:
        raise answer.refused(f"{space.n_components} directions, expected at most {size}")
    return space, n_rows


def _measured(
    sites: Sites, batch: int, found: dict[str, tuple[Subspace, int]], basis: np.ndarray
) -> list[np.ndarray]:
    """Factors of the rows of the sites that sent an eigenspace; an error if one is lost."""

    def read(answer: Answer) -> np.ndarray:
        factor = answer.array("factor", (None, basis.shape[1]))
        if len(factor) > basis.shape[1]:
            raise answer.refused(f"a factor of {len(factor)} rows, expected {basis.shape[1]}")
        with np.errstate(over="ignore"):
            answer.check_squares(0.0, float(np.square(factor).sum()))
        return factor

    factors = sites.ask_batch("moments", read, batch, basis.T, there=found)
    return [factors[site] for site in found]


# -------------------------------------------------------------------- secure sums


def _spaces_of_site(estimator: OnlineDistributedPCA) -> Tasks:
    """What a site adds up to secure sums."""
    center = estimator.center
    why = ": summaries that sites have cut do not add up"
    shared.check_needed(estimator, "variances", "measured", why)

    def space(site, own, mean):
        d = len(mean)
        shared.check_few_features(d)
        size = estimator._size or d  # leading directions about the rows' own mean, or zero
        values, V = linalg.eigh_top(own.matrix_about(own.mean if center else np.zeros(d)), size)
        kept = values[:size] > GRAM_ROUNDING * max(values[0], np.finfo(float).tiny)
        V = np.ascontiguousarray(V[:, :size].T[kept])
        share = own.n_samples if estimator.weighting == "rows" else 1.0
        gap = own.deviation(mean) / own.n_samples
        return {
            "projection": share * (V.T @ V)[np.triu_indices(d)],
            "share": np.array([share]),
            "scatter": own.column_scatter + own.n_samples * gap**2,
        }

    def moments(site, own, V, mean):
        return {"products": (own.products(mean, V) @ V.T)[np.triu_indices(len(V))]}

    def grids_of_space(bounds: Bounds) -> Grids:
        share = Grid(bounds.rows if estimator.weighting == "rows" else 0)
        return {**grids_of_sums(bounds), "projection": share, "share": share}

    summed = partial(Task, reads=MOMENTS, batches=True, center=center, grids=grids_of_sums)
    return {
        "bounds": shared.task_of_bounds(batches=True, begins=True),
        "totals": shared.of_query(Moments, batches=True),
        "space": summed(space, grids=grids_of_space),
        "moments": summed(moments, rank=estimator._eigenpairs_kept),
    }


def _take_sums(estimator: OnlineDistributedPCA, sums: Any, batch: int) -> list[str]:
    """Take sums over a batch; the sites that have one, if they are enough."""
    if not (there := [*sums.begin_batch("bounds", batch)]):
        return there
    d, by_rows = sums.n_features, estimator.weighting == "rows"
    total, (n,) = sums.sum("totals", {"sum": (d,), "count": (1,)}).values()
    about = total / n if estimator.center else np.zeros(d)
    shapes = {"projection": (d * (d + 1) // 2,), "share": (1,), "scatter": (d,)}
    found = sums.sum("space", shapes, about)
    (share,) = found["share"]
    values, V = np.linalg.eigh(shared.symmetric(found["projection"], d) / share)
    kept = values > _LEAST
    # their own mean of projections has these rows
    projected = np.sqrt(values[kept])[::-1, None] * V.T[kept][::-1]
    columns = np.maximum(found["scatter"], 0.0)
    sizes, known = np.zeros(len(projected)), (about, float(n), float(columns.sum()))
    rows = Subspace._trusted(projected, sizes, *known, estimator.center, column_scatter=columns)

    def average(mean: ProjectionMean, spaces: list[Subspace]) -> ProjectionMean:
        """The mean of projections with those of the sites."""
        of_step, weight = rows, float(share)
        if estimator.average == "steps":
            k = estimator.n_components or estimator._size
            V = linalg.orthonormalised(rows.components[:k])
            of_step = rows._replace(components=V, singular_values=np.zeros(len(V)))
            weight = rows.n_samples if by_rows else 1.0
        return mean.add([of_step], [weight], estimator._eigenpairs_kept(d))

    def measure(basis: np.ndarray) -> list[np.ndarray]:
        """Factor of the rows of all sites about their mean, in a basis."""
        m = basis.shape[1]
        shapes = {"products": (m * (m + 1) // 2,)}
        found = sums.sum("moments", shapes, basis.T, about)
        values, U = np.linalg.eigh(shared.symmetric(found["products"], m))
        return [np.sqrt(values.clip(0))[:, None] * U.T]

    of_all = {"all sites": (rows, max(1, round(rows.n_samples)))}
    estimator._take_step(of_all, estimator._state_before(d, sums.dtype), measure, average)
    return there
