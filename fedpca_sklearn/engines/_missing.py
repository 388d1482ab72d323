"""Rows with missing entries at sites: moments of pairs of columns, or of rows that are filled in.

Sites fill missing entries in by what all of them say, over rounds. Both ways have secure sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np

from .._kernels.row_moments import means_of_columns
from ..federated import ConditionalFill, FederatedPCA
from ..federated import _conditional_fill as filling
from ..federated._available_pairs import take_pairs
from ..federated._conditional_fill import Seen
from ..federated._local_fit import Site
from ..summary import PairMoments, Subspace
from ..summary._triangle import subspace_of
from . import _estimators as shared
from ._estimators import Tasks, site_work
from ._messages import Answer
from ._questions import Given, RefusedError, Task, are_few, check_patterns, dense
from ._secure import BOUNDS, Bounds, Grid, Grids, grids_of_second_moments, grids_of_sums
from ._sites import SecureSums, Sites

# What questions read.
PAIRED = "rows: each pair of columns has moments of the rows that have both"
OBSERVED = "rows: each column has a mean of the entries that are there"
FILLED = "rows: holes are filled by a model of all sites"
# Share by which the weight of a site's rows may differ from one answer to the next.
_SAME_WEIGHT = 1e-9
# Powers of two by which squares of rows that a model has filled may exceed those of the entries
# that were observed.
_FILLED = 40
# Who all rows belong to, of which the server knows sums.
_ALL = "all sites"


# -------------------------------------------------------------------- pairs of columns


def missing_tasks(estimator: Any, summary_of: Any = None) -> Tasks:
    """What a site does where entries are missing.

    ``summary_of(site, X, weight, columns)`` is the summary of rows without missing entries.
    """
    if isinstance(estimator.missing, ConditionalFill):
        return fill_tasks(estimator, summary_of)

    def pairs(site, X, *, weight, min_rows):
        _check_pairs(X, weight, min_rows)
        moments = PairMoments.from_rows(X, sample_weight=weight)._replace(feature_names=None)
        return shared.value_sent("pairs", moments, X, weight)

    return shared.one_message("pairs", pairs, reads=PAIRED, missing=True)


def _check_pairs(X: Any, weight: np.ndarray | None, min_rows: int, of_pattern: Any = None) -> None:
    """Raise where sums, or their differences, are of so few rows that they tell them."""
    counts = PairMoments.from_rows(X if weight is None else X[weight > 0]).counts
    lacking = np.diag(counts)[:, None] - counts  # rows with one column and without another
    if are_few(min_rows, counts, lacking):
        raise RefusedError(
            f"fewer than {min_rows} rows have a pair of columns, or one column and not another: "
            "their moments would tell them"
        )


def _pairs(answer: Answer) -> Site:
    """The moments in an answer, which must fit those of the others."""
    moments = shared.value_received(answer, "pairs", PairMoments.from_bytes, "moments")
    dtype = np.dtype(np.float32 if moments.single else np.float64)
    answer.check_squares(moments.mean, moments.scatter / moments.n_samples, dtype)
    answer.agree("number of features", moments.n_features)
    named: Any = moments._replace(site=answer.site, feature_names=None)
    return Site(None, answer.n_rows(moments.n_samples)[1], named)


# -------------------------------------------------------------------- filled rows


def fill_tasks(estimator: FederatedPCA, summary_of: Callable) -> Tasks:
    """What a site does where ``missing`` is `ConditionalFill`; see `missing_tasks`."""
    filling.check_filling(estimator)

    def entries(site, X, *, weight, min_rows, min_rows_of_pattern=None):
        _check_few(X, weight, min_rows, min_rows_of_pattern)
        n = X.shape[0] if weight is None else weight.sum()
        found = filling.entries_of_client(site, X, weight)
        return {"entries": np.stack(found), "count": [float(n)]}

    def filled(site, X, model, sums, *, weight, columns, min_rows, min_rows_of_pattern=None):
        _check_few(X, weight, min_rows, min_rows_of_pattern)
        query = _query_of(model, sums, X.shape[1], estimator.n_components)
        found = summary_of(site, filling.filled_rows(X, query), weight, columns)
        found = filling.with_covariance(found, X, weight, query)
        return shared.value_sent("summary", found, X, weight)

    times = estimator.missing.n_rounds + 1
    models = Given("models that fill rows", lambda model, sums: [model, sums], times)
    return {
        "entries": Task(entries, reads=OBSERVED, missing=True),
        "filled": Task(filled, times, reads=FILLED, given=(models,), missing=True),
    }


def _check_few(X: Any, weight: Any, min_rows: int, min_rows_of_pattern: int | None) -> None:
    """Raise where a column is there, or is not, in so few rows that sums tell them."""
    rows = X if weight is None else X[weight > 0]
    check_patterns(rows, min_rows_of_pattern)
    _, there = filling.entries_of_client(None, rows, None)
    if are_few(min_rows, there, rows.shape[0] - there):
        raise RefusedError(
            f"a column that fewer than min_rows={min_rows} rows have, or have not: what is sent "
            "would tell them"
        )


def _fit_by_filling(estimator: FederatedPCA, sites: Sites) -> FederatedPCA:
    """Fit an estimator of rows that sites fill in.

    Where a site is lost, the others go on: they were given a model of all, and take no other.
    """
    first = sites.ask("entries", _entries)
    shared.know_columns(estimator, sites.columns)
    means, _ = filling.pooled_means([(means, counts) for means, counts, _ in first.values()])

    def read_filled(answer: Answer) -> Site:
        summary, n_rows = shared.summary_and_rows(answer)
        _, _, n = first[answer.site]
        if estimator.estimator is None and not abs(summary.n_samples - n) <= _SAME_WEIGHT * n:
            raise answer.refused("a summary of other rows than those of its first answer")
        return Site(None, n_rows, summary._replace(site=answer.site))

    def fill(query: Subspace) -> tuple[dict[str, Site], Seen]:
        found = sites.ask("filled", read_filled, *_sent(query))
        _, counts, n = map(np.array, zip(*map(first.__getitem__, found), strict=True))
        return found, Seen(counts, n)

    filling.fill_in_rounds(estimator, len(first), means, sum(n for _, _, n in first.values()), fill)
    return estimator


def _sent(query: Subspace) -> tuple[np.ndarray, list[float]]:
    """What a question says of all rows: their mean above the directions; number, scatter, values.

    `_query_of` reads it.
    """
    sums = [query.n_samples, query.scatter, *query.singular_values]
    return np.vstack([query.mean, query.components]), sums


def _query_of(model: np.ndarray, sums: np.ndarray, d: int, n_components: Any) -> Subspace:
    """What a question says of all rows, or a refusal if no rows have it."""
    if model.ndim != 2 or model.shape[1] != d:
        raise RefusedError(f"the model must have shape (1 + k, {d}), got {model.shape}")
    if sums.shape != (len(model) + 1,):
        raise RefusedError(f"the sums must have shape ({len(model) + 1},), got {sums.shape}")
    most = min(int(n_components), d) if isinstance(n_components, Integral) else d
    if len(model) - 1 > most:
        raise RefusedError(f"the model must have at most {most} directions, got {len(model) - 1}")
    try:
        return Subspace(model[1:], sums[2:], model[0], sums[0], sums[1])
    except ValueError as error:
        raise RefusedError(f"the model is none of rows: {error}") from None


def _entries(answer: Answer) -> tuple[np.ndarray, np.ndarray, float]:
    """First answer of a site: means of columns, weights of their entries, and of the rows."""
    means, counts = answer.array("entries", (2, None))
    (n,) = answer.array("count", (1,))
    answer.check_count(n)
    answer.agree("number of features", len(means))
    if (counts < 0).any() or (counts > n * (1 + _SAME_WEIGHT)).any():
        raise answer.refused("counts of entries that no rows have")
    answer.check_squares(means, 0.0)
    return means, counts, float(n)


# -------------------------------------------------------------------- secure sums at a site


def missing_by_sums(estimator: Any, restarts: int) -> Tasks:
    """What a site adds up where entries are missing, by kind of question."""
    if isinstance(estimator.missing, ConditionalFill):
        return _filled_by_sums(estimator, restarts)

    def pairs(site, X, mean, *, weight, min_rows):
        _check_pairs(X, weight, min_rows)  # rows may be others than before
        own = PairMoments.from_rows(X, sample_weight=weight)
        gaps = own.means + (own.origin - mean)[:, None]
        above = np.triu_indices(len(mean))
        return {
            "counts": own.counts[above],
            "rest": (own.counts * gaps).ravel(),
            "products": (own.products + own.counts * gaps * gaps.T)[above],
        }

    summed = Task(pairs, reads=PAIRED, missing=True, grids=_grids_of_pairs)
    return {**_first_by_sums(_check_pairs, PAIRED, False), "pairs": summed}


def _filled_by_sums(estimator: FederatedPCA, restarts: int) -> Tasks:
    """What a site adds up where ``missing`` is `ConditionalFill`."""
    plain = site_work(estimator)

    def filled(site, X, model, sums, *, weight, min_rows, min_rows_of_pattern=None):
        _check_few(X, weight, min_rows, min_rows_of_pattern)  # rows may be others than before
        query = _query_of(model, sums, X.shape[1], estimator.n_components)
        own = Subspace.from_rows(filling.filled_rows(X, query), sample_weight=weight)
        own = filling.with_covariance(own, X, weight, query)
        factor = own.singular_values[:, None] * own.components.astype(np.float64)
        n, gap = own.n_samples, own.mean - query.mean
        products = factor.T @ factor + n * np.outer(gap, gap)
        above = np.triu_indices(len(gap))
        return {"products": products[above], "rest": n * gap, "count": np.array([n])}

    # where a site is lost, all begin again, with models of the others
    of_one = plain["filled"].given[0]
    given = (of_one._replace(most=of_one.most * (1 + restarts)),)
    summed = replace(plain["filled"], work=filled, given=given, grids=_grids_of_filled)
    return {**_first_by_sums(_check_few, OBSERVED, True), "filled": summed}


def _first_by_sums(check: Callable[..., None], reads: str, pairs: bool) -> Tasks:
    """What begins a fit: bounds of the observed entries, their sums and numbers.

    With ``pairs`` also the `Seen.pairs` of each site.
    """

    def bounds(site, X, *, weight, min_rows, min_rows_of_pattern=None):
        check(X, weight, min_rows, min_rows_of_pattern)
        d = X.shape[1]
        shared.check_few_features(d)
        means, _ = means_of_columns(X, weight)
        w = np.ones(X.shape[0]) if weight is None else weight
        with np.errstate(over="ignore", invalid="ignore"):
            scatter = w @ np.square(np.nan_to_num(dense(X) - means))
        return {BOUNDS: Bounds.of_numbers(w.sum(), d, means, scatter, X.dtype).vector}

    def entries(site, X, *, weight, min_rows, min_rows_of_pattern=None):
        check(X, weight, min_rows, min_rows_of_pattern)
        means, counts = means_of_columns(X, weight)
        n = X.shape[0] if weight is None else weight.sum()
        found = {"sum": means * counts, "counts": counts, "count": np.array([float(n)])}
        if pairs:
            found["together"] = np.outer(counts, counts / n)[np.triu_indices(len(counts))]
        return found

    return {
        "bounds": Task(bounds, reads=reads, missing=True),
        "entries": Task(entries, reads=reads, missing=True, grids=grids_of_sums),
    }


def _grids_of_pairs(bounds: Bounds) -> Grids:
    about = np.maximum(bounds.scatter, bounds.about_mean)
    rest = np.repeat((bounds.rows + about) // 2 + 1, bounds.n_features)
    return {**grids_of_second_moments(bounds), "rest": Grid(rest)}


def _grids_of_filled(bounds: Bounds) -> Grids:
    grids = grids_of_second_moments(bounds)
    wider = {"products": _FILLED, "rest": _FILLED // 2}
    return {**grids, **{name: grids[name].wider(more) for name, more in wider.items()}}


# -------------------------------------------------------------------- secure sums at the server


def _entries_of_all(sums: SecureSums, pairs: bool) -> tuple[np.ndarray, Seen]:
    """Means of the columns of all sites, and what is there of their rows."""
    d = sums.n_features
    shapes = {"sum": (d,), "counts": (d,), "count": (1,)}
    if pairs:
        shapes["together"] = (d * (d + 1) // 2,)
    found = sums.sum("entries", shapes)
    (lost,) = np.nonzero(found["counts"] < 0.5)
    if len(lost):
        raise ValueError(f"column {lost[0]} is observed in 0 rows of all sites; leave it out.")
    known_pairs = shared.symmetric(found["together"], d) if pairs else None
    return found["sum"] / found["counts"], Seen(found["counts"][None], found["count"], known_pairs)


def fit_missing(estimator: Any, sites: Sites, batch: int | None = None) -> Any:
    """Fit an estimator of rows with missing entries, or take a batch in; None without any."""
    fills = isinstance(estimator.missing, ConditionalFill)
    if fills and batch is not None:
        raise ValueError(
            f"missing={estimator.missing!r} takes all rows of a site at once, as each is filled in "
            "anew: fit_sites does."
        )
    if isinstance(sites, SecureSums):
        mean, seen = _entries_of_all(sites, fills)
        shared.know_columns(estimator, sites.columns)
        if fills:
            return _fill_by_sums(estimator, sites, mean, seen)
        found: Any = {_ALL: _summed_pairs(sites, mean, float(seen.rows[0]))}
    elif fills:
        return _fit_by_filling(estimator, sites)
    elif not (found := shared.received(estimator, sites, "pairs", _pairs, batch)):
        return None
    estimator.communication_ = estimator.communication_.copy()
    take_pairs(estimator, found.items())
    return estimator


def _summed_pairs(sums: SecureSums, mean: np.ndarray, n: float) -> Site:
    """Moments of the pairs of columns of all sites."""
    d = len(mean)
    m = d * (d + 1) // 2
    found = sums.sum("pairs", {"counts": (m,), "rest": (d * d,), "products": (m,)}, mean)
    counts, products = (shared.symmetric(found[name], d) for name in ("counts", "products"))
    rest = found["rest"].reshape(d, d) / np.maximum(counts, 1e-9)
    values = {"counts": counts, "means": rest, "products": products - counts * rest * rest.T}
    about = {"origin": mean, "n_samples": n, "single": sums.dtype == np.float32}
    names = {"feature_names": None, "site": None, "sites": ()}
    moments: Any = PairMoments._trusted(**values, **about, **names)
    return Site(None, max(1, round(n)), moments)


def _fill_by_sums(fitted: Any, sums: SecureSums, mean: np.ndarray, seen: Seen) -> FederatedPCA:
    """Let the sites fill their rows in, and add up moments of them, over rounds."""
    n = float(seen.rows[0])

    def fill(query: Subspace) -> tuple[dict[str, Site], Seen]:
        found = shared.triangle_about(fitted, sums, query.mean, n, "filled", *_sent(query))
        summary = subspace_of(found.triangle, sums.dtype)
        return {_ALL: Site(None, max(1, round(n)), summary)}, seen

    filling.fill_in_rounds(fitted, 1, mean, n, fill)
    return fitted
