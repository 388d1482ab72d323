"""Estimators of which a site with missing entries sends the moments of pairs of columns."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from sklearn.base import clone

from .._validation.checks import check_at_most_features
from ..federated import AvailablePairs
from ..federated._available_pairs import take_pairs
from ..federated._local_fit import Site
from ..summary import PairMoments
from ._estimators import check_count, check_squares, rows_sent, rows_told
from ._messages import Answer
from ._questions import RefusedError, Task
from ._sites import Sites

# What questions about pairs of columns read.
PAIRED = "rows: each pair of columns has moments of the rows that have both"


def pair_tasks(missing: Any) -> dict[str, Task]:
    """What a site does where ``missing`` is `AvailablePairs`."""
    if not isinstance(missing, AvailablePairs):
        raise ValueError(
            f"missing must be None or AvailablePairs() over a network, got {missing!r}."
        )

    def pairs(site, X, *, weight, min_rows):
        there = PairMoments.from_rows(X if weight is None else X[weight > 0])
        check_rows_of_pairs(there.counts, min_rows)
        moments = PairMoments.from_rows(X, sample_weight=weight)
        sent = {"pairs": np.frombuffer(moments._replace(feature_names=None).to_bytes(), np.uint8)}
        return sent | rows_sent(X, weight)

    task = partial(Task, pairs, reads=PAIRED, missing=True)
    return {"pairs": task(), "pairs_of_batch": task(begins=True, batches=True)}


def check_rows_of_pairs(counts: np.ndarray, min_rows: int) -> None:
    """Raise where sums, or their differences, are of so few rows that they tell them."""
    lacking = np.diag(counts)[:, None] - counts  # rows with one column and without another
    if any(((n > 0) & (n < min_rows)).any() for n in (counts, lacking)):
        raise RefusedError(
            f"fewer than {min_rows} rows have a pair of columns, or one column and not another: "
            "their moments would tell them"
        )


def fit_by_pairs(estimator: Any, sites: Sites) -> Any:
    """Fit an estimator of the moments of all sites."""
    fitted = clone(estimator)
    fitted._start()
    return _with_pairs(fitted, sites.ask("pairs", _pairs))


def partial_fit_by_pairs(estimator: Any, sites: Sites, batch: int) -> Any:
    """Take the moments of a batch of each site into an estimator; None without any."""
    if not hasattr(estimator, "components_"):
        estimator._start()
    found = sites.ask_batch("pairs_of_batch", _pairs, batch)
    if not found:
        return None
    estimator.communication_ = estimator.communication_.copy()
    estimator._add_clients(list(found))
    return _with_pairs(estimator, found)


def _with_pairs(estimator: Any, found: dict[str, Site]) -> Any:
    check_at_most_features(estimator.n_components, next(iter(found.values())).summary.n_features)
    take_pairs(estimator, found.items())
    return estimator


def _pairs(answer: Answer) -> Site:
    """The moments in an answer, which must fit those of the others."""
    data = answer.array("pairs", (None,), "|u1")
    try:
        moments = PairMoments.from_bytes(data)
    except ValueError as error:
        raise answer.refused(f"no valid moments: {error}") from None
    check_count(answer, moments.n_samples)
    dtype = np.dtype(np.float32 if moments.single else np.float64)
    check_squares(answer, moments.mean, moments.scatter / moments.n_samples, dtype)
    answer.agree("number of features", moments.n_features)
    named: Any = moments._replace(site=answer.site, feature_names=None)
    return Site(None, rows_told(answer, moments.n_samples)[1], named)
