"""Rows with missing entries by secure sums: moments of pairs of columns, or of filled rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import Any

import numpy as np
from sklearn.base import clone

from .._kernels.pair_moments import means_of_columns
from .._validation.checks import check_at_most_features
from ..federated import AvailablePairs, ConditionalFill
from ..federated._available_pairs import take_pairs
from ..federated._conditional_fill import (
    Seen,
    fill_in_rounds,
    filled_rows,
    means_only,
    record_means,
    take_filled,
    with_covariance,
)
from ..federated._local_fit import Site
from ..summary import PairMoments, Subspace
from ..summary._triangle import subspace_of
from ._estimators import are_too_large, know_columns, site_work
from ._filling import query_of
from ._pairs import PAIRED, check_rows_of_pairs
from ._questions import RefusedError, Task
from ._secure import SecureAggregation
from ._secure_bounds import BOUNDS, Bounds, Grid, Grids, Summed, grids_of_second_moments
from ._secure_fits import MAX_FEATURES, symmetric, triangle_about
from ._secure_site import Open
from ._secure_sums import SecureSums
from ._tracked_rows import dense

# Powers of two by which squares of rows that a model has filled may exceed those of the entries
# that were observed.
_FILLED = 40
# Who all rows belong to, of which the server knows sums.
_ALL = "all sites"


@singledispatch
def secure_work_of_missing(
    missing: Any, estimator: Any, secure: SecureAggregation
) -> dict[str, Task]:
    """What a site adds up where entries are missing, by kind of question."""
    raise ValueError(f"missing must be None or AvailablePairs() over a network, got {missing!r}.")


@singledispatch
def fit_missing_by_sums(missing: Any, estimator: Any, sums: SecureSums) -> Any:
    """Fit an estimator of rows with missing entries by secure sums, at the server."""


def _tasks_of_entries(check: Callable[..., None], reads: str, pairs: bool) -> dict[str, Task]:
    """What begins a fit: bounds of the observed entries, their sums and numbers.

    With ``pairs`` also the `Seen.pairs` of each site.
    """

    def bounds(site, X, *, weight, min_rows, min_rows_of_pattern=None):
        check(site, X, weight=weight, min_rows=min_rows, min_rows_of_pattern=min_rows_of_pattern)
        d = X.shape[1]
        if d > MAX_FEATURES:
            raise RefusedError(f"second moments are summed of up to {MAX_FEATURES} features")
        means, _ = means_of_columns(X, weight)
        roots = np.ones(X.shape[0]) if weight is None else np.sqrt(weight)
        n = float(roots @ roots)
        with np.errstate(over="ignore", invalid="ignore"):
            scatter = np.square(np.nan_to_num(dense(X) - means) * roots[:, None]).sum(axis=0)
        if are_too_large(means, float(scatter.sum()) / n, X.dtype):
            raise RefusedError("values that are too large")
        return {BOUNDS: Bounds.of_numbers(n, d, means, scatter).vector}

    def entries(site, X, *, weight, min_rows, min_rows_of_pattern=None):
        check(site, X, weight=weight, min_rows=min_rows, min_rows_of_pattern=min_rows_of_pattern)
        means, counts = means_of_columns(X, weight)
        n = X.shape[0] if weight is None else weight.sum()
        found = {"sum": means * counts, "seen": counts, "rows": np.array([float(n)])}
        if pairs:
            found["together"] = np.outer(counts, counts / n)[np.triu_indices(len(counts))]
        return found

    return {
        "bounds": Open(bounds, reads=reads, missing=True),
        "entries": Summed(entries, reads=reads, missing=True, grids=_grids_of_entries),
    }


def _grids_of_entries(bounds: Bounds) -> Grids:
    total = Grid(bounds.rows + bounds.mean + 1, (bounds.rows + bounds.scatter) // 2)
    return {"sum": total, **dict.fromkeys(("seen", "together", "rows"), Grid(bounds.rows))}


class _Entries:
    """Means of the columns of all sites, numbers of their entries, and of the rows."""

    def __init__(self, estimator: Any, sums: SecureSums, pairs: bool):
        sums.begin()
        sums.announce("bounds")
        d = next(iter(sums.announced.values())).n_features
        check_at_most_features(estimator.n_components, d)
        shapes = {"sum": (d,), "seen": (d,), "rows": (1,)}
        if pairs:
            shapes["together"] = (d * (d + 1) // 2,)
        found = sums.sum("entries", shapes)
        self.seen, (self.n,) = found["seen"], found["rows"]
        (lost,) = np.nonzero(self.seen < 0.5)
        if len(lost):
            raise ValueError(f"column {lost[0]} is observed in 0 rows of all sites; leave it out.")
        self.mean, self.n_rows = found["sum"] / self.seen, max(1, round(float(self.n)))
        self.together = symmetric(found["together"], d) if pairs else None


# -------------------------------------------------------------------- pairs of columns


@secure_work_of_missing.register
def _(missing: AvailablePairs, estimator: Any, secure: SecureAggregation) -> dict[str, Task]:
    site_work(estimator)

    def check(site, X, *, weight, min_rows, min_rows_of_pattern=None):
        there = PairMoments.from_rows(X if weight is None else X[weight > 0])
        check_rows_of_pairs(there.counts, min_rows)

    def pairs(site, X, mean, *, weight, min_rows):
        check(site, X, weight=weight, min_rows=min_rows)  # rows may be others than before
        own = PairMoments.from_rows(X, sample_weight=weight)
        if mean.shape != own.origin.shape:
            raise RefusedError(f"the mean must have shape {own.origin.shape}, got {mean.shape}")
        gaps = own.means + (own.origin - mean)[:, None]
        above = np.triu_indices(len(mean))
        return {
            "counts": own.counts[above],
            "rest": (own.counts * gaps).ravel(),
            "products": (own.products + own.counts * gaps * gaps.T)[above],
        }

    summed = Summed(pairs, reads=PAIRED, missing=True, mean=0, grids=_grids_of_pairs)
    return {**_tasks_of_entries(check, PAIRED, False), "pairs": summed}


def _grids_of_pairs(bounds: Bounds) -> Grids:
    about = np.maximum(bounds.scatter, bounds.about_mean)
    rest = np.repeat((bounds.rows + about) // 2 + 1, bounds.n_features)
    products = grids_of_second_moments(bounds)["products"]
    return {"counts": Grid(bounds.rows), "rest": Grid(rest), "products": products}


@fit_missing_by_sums.register
def _(missing: AvailablePairs, estimator: Any, sums: SecureSums) -> Any:
    fitted, entries = clone(estimator), _Entries(estimator, sums, False)
    d = len(entries.mean)
    m = d * (d + 1) // 2
    shapes = {"counts": (m,), "rest": (d * d,), "products": (m,)}
    found = sums.sum("pairs", shapes, entries.mean)
    counts, products = (symmetric(found[name], d) for name in ("counts", "products"))
    rest = found["rest"].reshape(d, d) / np.maximum(counts, 1e-9)
    moments: Any = PairMoments._trusted(
        counts=counts,
        means=rest,
        products=products - counts * rest * rest.T,
        origin=entries.mean,
        n_samples=float(entries.n),
        feature_names=None,
        site=None,
        sites=(),
        single=sums.dtype == np.float32,
    )
    fitted._start()
    know_columns(fitted, sums.columns)
    take_pairs(fitted, [(_ALL, Site(None, entries.n_rows, moments))])
    fitted.communication_ = sums.log
    return fitted


# -------------------------------------------------------------------- filled rows


@secure_work_of_missing.register
def _(missing: ConditionalFill, estimator: Any, secure: SecureAggregation) -> dict[str, Task]:
    plain = site_work(estimator)

    def filled(site, X, model, sums, *, weight, min_rows, min_rows_of_pattern=None):
        check = plain["entries"].work  # rows may be others than before
        check(site, X, weight=weight, min_rows=min_rows, min_rows_of_pattern=min_rows_of_pattern)
        query = query_of(model, sums, X.shape[1], estimator.n_components)
        own = Subspace.from_rows(filled_rows(X, query), sample_weight=weight)
        own = with_covariance(own, X, weight, query)
        factor = own.singular_values[:, None] * own.components.astype(np.float64)
        n, gap = own.n_samples, own.mean - query.mean
        products = factor.T @ factor + n * np.outer(gap, gap)
        above = np.triu_indices(len(gap))
        return {"products": products[above], "rest": n * gap, "count": np.array([n])}

    # where a site is lost, all begin again, with models of the others
    of_one = plain["filled"].given[0]
    given = (of_one._replace(most=of_one.most * (1 + secure.restarts)),)
    task = {**vars(plain["filled"]), "work": filled, "given": given}
    filled_rows_of = Summed(**task, grids=_grids_of_filled)
    entries = _tasks_of_entries(plain["entries"].work, plain["entries"].reads, True)
    return {**entries, "filled": filled_rows_of}


def _grids_of_filled(bounds: Bounds) -> Grids:
    grids = grids_of_second_moments(bounds)
    for name, more in {"products": _FILLED, "rest": _FILLED // 2}.items():
        size = grids[name].exponent if grids[name].size is None else grids[name].size
        grids |= {name: Grid(grids[name].exponent + more, size)}  # type: ignore[operator]
    return grids


@fit_missing_by_sums.register
def _(missing: ConditionalFill, estimator: Any, sums: SecureSums) -> Any:
    fitted, entries = clone(estimator), _Entries(estimator, sums, True)
    fitted._start()
    know_columns(fitted, sums.columns)
    record_means(fitted, 1, len(entries.mean))

    def summarise(query: Subspace) -> tuple[list[str], Seen]:
        model = np.vstack([query.mean, query.components])
        of_all = [query.n_samples, query.scatter, *query.singular_values]
        told = triangle_about(
            estimator, sums, query.mean, float(entries.n), kind="filled", arguments=(model, of_all)
        )
        summary = subspace_of(told.triangle, sums.dtype)
        take_filled(fitted, [(_ALL, Site(None, entries.n_rows, summary))])
        return [_ALL], Seen(entries.seen[None], np.array([entries.n]), entries.together)

    fill_in_rounds(fitted, means_only(entries.mean, float(entries.n)), summarise)
    fitted.communication_ = sums.log
    return fitted
