"""Rows with missing entries at sites: moments of pairs of columns, or of rows that are filled in.

Sites fill missing entries in by what all of them say, over rounds. Both ways have secure sums.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np

from .._kernels.row_moments import RoundingNoise, means_of_columns, without_tiny
from ..federated import ConditionalFill, FederatedPCA
from ..federated import _conditional_fill as filling
from ..federated._available_pairs import take_pairs
from ..federated._conditional_fill import Seen
from ..federated._local_fit import Site
from ..summary import PairMoments, Subspace
from ..summary._triangle import subspace_of
from . import _estimators as shared
from ._estimators import Secure, Tasks
from ._messages import Answer
from ._questions import Given, RefusedError, Task, are_few, check_patterns, dense
from ._secure import Bounds, Grid, Grids, announced, grids_of_second_moments, grids_of_sums
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


def missing_tasks(estimator: Any, summary_of: Any = None, secure: Secure = None) -> Tasks:
    """What a site does where entries are missing, with secure sums or without.

    ``summary_of(site, X, weight, columns)`` is the summary of rows without missing entries; None:
    one from which nothing is cut.
    """
    if isinstance(estimator.missing, ConditionalFill):
        return fill_tasks(estimator, summary_of, secure)
    if secure is None:
        return shared.one_message("pairs", _pairs_sent, reads=PAIRED, missing=True)
    summed = Task(_pairs_summed, reads=PAIRED, missing=True, grids=_grids_of_pairs)
    return {**_first(_check_pairs, PAIRED, secure), "pairs": summed}


def _pairs_sent(site, X, *, weight, min_rows):
    _check_pairs(X, weight, min_rows)
    moments = PairMoments.from_rows(X, sample_weight=weight)._replace(feature_names=None)
    return shared.value_sent("pairs", moments, X, weight)


def _pairs_summed(site, X, mean, *, weight, min_rows):
    _check_pairs(X, weight, min_rows)  # rows may be others than before
    own = PairMoments.from_rows(X, sample_weight=weight)
    gaps = own.means + (own.origin - mean)[:, None]
    above = np.triu_indices(len(mean))
    return {
        "counts": own.counts[above],
        "rest": (own.counts * gaps).ravel(),
        "products": (own.products + own.counts * gaps * gaps.T)[above],
    }


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


def fill_tasks(estimator: FederatedPCA, summary_of: Any, secure: Secure) -> Tasks:
    """What a site does where ``missing`` is `ConditionalFill`; see `missing_tasks`."""
    filling.check_filling(estimator)

    def filled(site, X, model, sums, *, weight, min_rows, columns=None, min_rows_of_pattern=None):
        _check_few(X, weight, min_rows, min_rows_of_pattern)  # rows may be others than before
        query = _query_of(model, sums, X.shape[1], estimator.n_components)
        rows = filling.filled_rows(X, query, RoundingNoise(X, model, sums))
        whole = partial(Subspace.from_rows, rows, sample_weight=weight)
        found = summary_of(site, rows, weight, columns) if summary_of else whole()
        found = filling.with_covariance(found, X, weight, query)
        if secure is None:
            return shared.value_sent("summary", found, X, weight)
        factor = found.singular_values[:, None] * found.components.astype(np.float64)
        n, gap = found.n_samples, found.mean - query.mean
        products = factor.T @ factor + n * np.outer(gap, gap)
        above = np.triu_indices(len(gap))
        return {"products": products[above], "rest": n * gap, "count": np.array([n])}

    # where a site is lost from secure sums, all begin again, with models of the others
    times = estimator.missing.n_rounds + 1
    most = times * (1 + secure.restarts if secure else 1)
    models = Given("models that fill rows", lambda model, sums: [model, sums], most)
    grids = _grids_of_filled if secure else None
    task = Task(filled, times, reads=FILLED, given=(models,), missing=True, grids=grids)
    return {**_first(_check_few, OBSERVED, secure, pairs=secure is not None), "filled": task}


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
    """Fit an estimator of rows that sites fill in, of which they send summaries or sums.

    Where a site is lost that sends summaries, the others go on: they were given a model of all, and
    take no other.
    """
    mean, seen, first = _entries_of_all(sites, isinstance(sites, SecureSums))
    shared.know_columns(estimator, sites.columns)
    n = float(np.sum(seen.rows))

    def read_filled(answer: Answer) -> Site:
        summary, n_rows = shared.summary_and_rows(answer, estimator)
        _, n = first[answer.site]
        if estimator.estimator is None and not abs(summary.n_samples - n) <= _SAME_WEIGHT * n:
            raise answer.refused("a summary of other rows than those of its first answer")
        return Site(None, n_rows, summary._replace(site=answer.site))

    def fill(query: Subspace) -> tuple[dict[str, Site], Seen]:
        if isinstance(sites, SecureSums):
            summed = shared.triangle_about(
                estimator, sites, query.mean, n, "filled", *_sent(query)
            ).triangle
            return {_ALL: Site(None, max(1, round(n)), subspace_of(summed, sites.dtype))}, seen
        found = sites.ask("filled", read_filled, *_sent(query))
        return found, Seen(*map(np.array, zip(*map(first.__getitem__, found), strict=True)))

    filling.fill_in_rounds(estimator, len(first) or 1, mean, n, fill)
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
        return Subspace(without_tiny(model[1:]), sums[2:], model[0], sums[0], sums[1])
    except ValueError as error:
        raise RefusedError(f"the model is none of rows: {error}") from None


# -------------------------------------------------------------------- sums that begin a fit


def _first(check: Callable[..., None], reads: str, secure: Secure, pairs: bool = False) -> Tasks:
    """What is asked first about the observed entries of rows that pass a check: sums and numbers.

    Bounds before them by secure sums; with ``pairs`` also the `Seen.pairs` of each site, where
    these are summed.
    """

    def bounds(site, X, *, weight, min_rows, min_rows_of_pattern=None):
        check(X, weight, min_rows, min_rows_of_pattern)
        d = X.shape[1]
        shared.check_few_features(d)
        means, _ = means_of_columns(X, weight)
        w = np.ones(X.shape[0]) if weight is None else weight
        with np.errstate(over="ignore", invalid="ignore"):
            scatter = w @ np.square(np.nan_to_num(dense(X) - means))
        return announced(w.sum(), d, means, scatter, X.dtype)

    def entries(site, X, *, weight, min_rows, min_rows_of_pattern=None):
        check(X, weight, min_rows, min_rows_of_pattern)
        means, counts = filling.entries_of_client(site, X, weight)
        n = X.shape[0] if weight is None else weight.sum()
        found = {"sum": means * counts, "counts": counts, "count": np.array([float(n)])}
        if pairs:
            found["together"] = np.outer(counts, counts / n)[np.triu_indices(len(counts))]
        return found

    task = partial(Task, reads=reads, missing=True)
    first = {"bounds": task(bounds)} if secure else {}
    return {**first, "entries": task(entries, grids=grids_of_sums)}


def _grids_of_pairs(bounds: Bounds) -> Grids:
    about = np.maximum(bounds.scatter, bounds.about_mean)
    rest = np.repeat((bounds.rows + about) // 2 + 1, bounds.n_features)
    return {**grids_of_second_moments(bounds), "rest": Grid(rest)}


def _grids_of_filled(bounds: Bounds) -> Grids:
    grids = grids_of_second_moments(bounds)
    wider = {"products": _FILLED, "rest": _FILLED // 2}
    return {**grids, **{name: grids[name].wider(more) for name, more in wider.items()}}


# -------------------------------------------------------------------- at the server


def _entries_of_all(sites: Sites, pairs: bool) -> tuple[np.ndarray, Seen, dict[str, Any]]:
    """Means of the columns of all sites, what is there of their rows, and of each if it is seen."""
    d, of_each = sites.n_features, dict[str, list[np.ndarray]]()

    def check(answer: Answer, total: np.ndarray, counts: np.ndarray, count: np.ndarray) -> None:
        (n,) = count
        answer.check_count(n)
        answer.agree("number of features", len(total))
        most = n * (1 + _SAME_WEIGHT)
        if len(counts) != len(total) or not ((counts >= 0) & (counts <= most)).all():
            raise answer.refused("counts of entries that no rows have")
        if total[counts == 0].any():
            raise answer.refused("sums of columns without entries")
        with np.errstate(over="ignore"):
            answer.check_squares(total / np.where(counts, counts, 1.0), 0.0)

    shapes = {"sum": (d,), "counts": (d,), "count": (1,)}
    if pairs:
        shapes["together"] = (d * (d + 1) // 2,)
    found = sites.added("entries", shapes, (), check, of_each=of_each)
    of_sites = {site: (counts, float(n)) for site, (_, counts, (n,)) in of_each.items()}
    counts, d = found["counts"], sites.n_features
    (lost,) = np.nonzero(counts < 0.5 if sites.secure else counts == 0)
    if len(lost):
        raise ValueError(f"column {lost[0]} is observed in 0 rows of all sites; leave it out.")
    known_pairs = shared.symmetric(found["together"], d) if pairs else None
    return found["sum"] / counts, Seen(counts[None], found["count"], known_pairs), of_sites


def fit_missing(estimator: Any, sites: Sites, batch: int | None = None) -> Any:
    """Fit an estimator of rows with missing entries, or take a batch in; None without any."""
    fills = isinstance(estimator.missing, ConditionalFill)
    if fills and batch is not None:
        raise ValueError(
            f"missing={estimator.missing!r} takes all rows of a site at once, as each is filled in "
            "anew: fit_sites does."
        )
    if fills:
        return _fit_by_filling(estimator, sites)
    if isinstance(sites, SecureSums):
        mean, seen, _ = _entries_of_all(sites, False)
        shared.know_columns(estimator, sites.columns)
        found: Any = {_ALL: _summed_pairs(sites, mean, float(seen.rows[0]))}
    elif not (found := shared.received(estimator, sites, "pairs", _pairs, batch)):
        return None
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
