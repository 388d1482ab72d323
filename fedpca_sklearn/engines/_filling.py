"""Estimators whose sites fill missing entries in by what all of them say, over rounds."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone

from .._validation.checks import check_at_most_features
from ..federated import FederatedPCA
from ..federated._conditional_fill import (
    Seen,
    check_filling,
    entries_of_client,
    fill_in_rounds,
    filled_rows,
    means_only,
    pooled_means,
    record_means,
    take_filled,
    with_covariance,
)
from ..federated._local_fit import Site
from ..summary import Subspace
from ._estimators import (
    check_count,
    check_squares,
    know_columns,
)
from ._messages import Answer
from ._questions import Given, RefusedError, Task, check_patterns
from ._sites import Sites

# What questions about filled rows read.
FILLED = "rows: holes are filled by a model of all sites"
# Share by which the weight of a site's rows may differ from one answer to the next.
_SAME_WEIGHT = 1e-9


class _Entries(NamedTuple):
    """First answer of a site: means of columns, weights of their entries, and of the rows."""

    means: np.ndarray
    counts: np.ndarray
    n: float


def fill_tasks(estimator: FederatedPCA, summary: Callable) -> dict[str, Task]:
    """What a site does where ``missing`` is `ConditionalFill`.

    ``summary(site, X, weight=, columns=, of_filled=)`` is what it sends of whole rows, after a last
    function has changed their summary.
    """
    check_filling(estimator)

    def entries(site, X, *, weight, min_rows, min_rows_of_pattern=None):
        _check_few(X, weight, min_rows, min_rows_of_pattern)
        n = X.shape[0] if weight is None else weight.sum()
        return {"entries": np.stack(entries_of_client(site, X, weight)), "count": [float(n)]}

    def filled(site, X, model, sums, *, weight, columns, min_rows, min_rows_of_pattern=None):
        _check_few(X, weight, min_rows, min_rows_of_pattern)
        query = query_of(model, sums, X.shape[1], estimator.n_components)
        return summary(
            site,
            filled_rows(X, query),
            weight=weight,
            columns=columns,
            of_filled=partial(with_covariance, X=X, weight=weight, query=query),
        )

    times = estimator.missing.n_rounds + 1
    models = Given("models that fill rows", lambda model, sums: [model, sums], times)
    return {
        "entries": Task(
            entries,
            reads="rows: each column has a mean of the entries that are there",
            missing=True,
        ),
        "filled": Task(
            filled,
            times,
            reads=FILLED,
            given=(models,),
            missing=True,
        ),
    }


def _check_few(
    X: Any, weight: np.ndarray | None, min_rows: int, min_rows_of_pattern: int | None
) -> None:
    """Raise where a column is there, or is not, in so few rows that sums tell them."""
    rows = X if weight is None else X[weight > 0]
    check_patterns(rows, min_rows_of_pattern)
    _, there = entries_of_client(None, rows, None)
    if any(((n > 0) & (n < min_rows)).any() for n in (there, rows.shape[0] - there)):
        raise RefusedError(
            f"a column that fewer than min_rows={min_rows} rows have, or have not: what is sent "
            "would tell them"
        )


def fit_by_filling(
    estimator: FederatedPCA, sites: Sites, read: Callable[[Answer], tuple[Subspace, int]]
) -> FederatedPCA:
    """Fit an estimator of rows that sites fill in; ``read(answer)`` has summary and rows.

    Where a site is lost, the others go on: they were given a model of all, and take no other.
    """
    first = sites.ask("entries", _entries)
    fitted = clone(estimator)
    fitted._start()
    know_columns(fitted, sites.columns)
    means, _, n = _pooled(first.values())
    check_at_most_features(estimator.n_components, len(means))
    record_means(fitted, len(first), len(means))
    summarise = partial(_summarise, fitted, sites, first, read)
    fill_in_rounds(fitted, means_only(means, n), summarise)
    return fitted


def _pooled(sites: Collection[_Entries]) -> tuple[np.ndarray, np.ndarray, float]:
    """Means of the columns of sites, weights of their entries, and of the rows."""
    means, counts = pooled_means([(site.means, site.counts) for site in sites])
    return means, counts, sum(site.n for site in sites)


def _summarise(
    fitted: FederatedPCA,
    sites: Sites,
    first: dict[str, _Entries],
    read: Callable[[Answer], tuple[Subspace, int]],
    query: Subspace,
) -> tuple[list[str], Seen]:
    """Let the sites fill their rows in, and merge the summaries of them."""

    def read_filled(answer: Answer) -> Site:
        summary, n_rows = read(answer)
        n = first[answer.site].n
        if fitted.estimator is None and not abs(summary.n_samples - n) <= _SAME_WEIGHT * n:
            raise answer.refused("a summary of other rows than those of its first answer")
        return Site(None, n_rows, summary._replace(site=answer.site))

    model = np.vstack([query.mean, query.components])
    sums = [query.n_samples, query.scatter, *query.singular_values]
    found = sites.ask("filled", read_filled, model, sums)
    take_filled(fitted, found.items())
    seen, n_rows = ([getattr(first[site], what) for site in found] for what in ("counts", "n"))
    return list(found), Seen(np.stack(seen), np.array(n_rows))


def query_of(model: np.ndarray, sums: np.ndarray, d: int, n_components: Any) -> Subspace:
    """What a question says of all rows, or a refusal if no rows have it.

    ``model`` is their mean and under it the directions, ``sums`` are their number, their scatter
    and singular values.
    """
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


def _entries(answer: Answer) -> _Entries:
    """The first answer of a site, which must fit those of the others."""
    means, counts = answer.array("entries", (2, None))
    (n,) = answer.array("count", (1,))
    check_count(answer, n)
    answer.agree("number of features", len(means))
    if (counts < 0).any() or (counts > n * (1 + _SAME_WEIGHT)).any():
        raise answer.refused("counts of entries that no rows have")
    check_squares(answer, means, 0.0, answer.dtype)
    return _Entries(means, counts, float(n))
