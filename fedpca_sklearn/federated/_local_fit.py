"""A client of `FederatedPCA` that fits an estimator of its own, and the summary of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, clone

from .._base.batches import count_rows
from .._kernels.device_rows import in_memory
from .._kernels.rows import entries_once
from .._kernels.too_large import TooLargeError
from .._validation.texts import check_text
from ..communication._federation import Message
from ..streaming import StreamingPCA
from ..summary import Subspace

# Values whose fourth powers, as solvers may form them, are still finite.
_LARGE = 1e70


class Site(NamedTuple):
    """State of a client in the simulation.

    ``estimator`` is fitted to its rows; or `Summarised`, where the summary is the whole state; or
    None, of a client that came as a summary.
    """

    estimator: Any
    n_rows: int
    summary: Subspace

    @property
    def message(self) -> Message:
        """Size of the summary."""
        return Message(*self.summary._size())


def fit_estimator(
    before: Site | None,
    prototype: BaseEstimator,
    seed: int | None,
    X: Any,
    weight: Any,
    method: str,
) -> Site:
    """Local work of a client: a fit of its estimator, or of a copy of what it has fitted."""
    estimator: Any
    n_rows, n_samples, scatter = count_rows(X, weight), float(X.shape[0]), 0.0
    if weight is not None:
        n_samples = float(weight.sum())
    if before is None:
        estimator = clone(prototype)
        if seed is not None and "random_state" in estimator.get_params(deep=False):
            estimator.set_params(random_state=int(seed))
    else:
        estimator, n_rows = _going_on(before, prototype), n_rows + before.n_rows
        n_samples, scatter = n_samples + before.summary.n_samples, before.summary.scatter
    if not isinstance(estimator, StreamingPCA):
        X = entries_once(in_memory(X))  # others square entries as they are stored
        if before is None:
            _check_columns_have_entries(X)
    options = {} if weight is None else {"sample_weight": weight}
    with np.errstate(all="ignore"), _named_if_too_large(X, estimator):
        getattr(estimator, method)(X, **options)
        if isinstance(estimator, StreamingPCA):
            return Site(estimator, n_rows, estimator._flush())
        known = {"n_samples": n_samples}
        if not hasattr(estimator, "mean_"):  # about the origin, as TruncatedSVD
            known["scatter"] = scatter + _sum_of_squares(X, weight)
        return Site(estimator, n_rows, Subspace.from_estimator(estimator, **known))


@contextmanager
def _named_if_too_large(X: Any, estimator: BaseEstimator) -> Iterator[None]:
    """Say that values are too large where another library's estimator fails on large values."""
    try:
        yield
    except (ValueError, np.linalg.LinAlgError) as error:
        values = X.data if sp.issparse(X) else X
        if isinstance(error, TooLargeError) or isinstance(estimator, StreamingPCA):
            raise
        largest = float(np.nanmax(np.abs(values)))
        if not _LARGE < largest < np.inf:
            raise
        name = type(estimator).__name__
        message = f"X holds values that are too large for {name}, up to {largest:.1e}."
        raise TooLargeError(message) from error


def _check_columns_have_entries(X: Any) -> None:
    """Raise for a column without entries, of which a tracker's summary says that it is zero."""
    if sp.issparse(X):
        n_missing = np.bincount(X.indices[np.isnan(X.data)], minlength=X.shape[1])
    else:
        n_missing = np.isnan(X[:1]).sum(axis=0)  # most have entries in the first row
        n_missing = np.isnan(X).sum(axis=0) if n_missing.any() else n_missing
    (lost,) = np.nonzero(n_missing == X.shape[0])
    if len(lost):
        raise ValueError(
            f"column {lost[0]} has no entries, and a summary would tell that it is constant. "
            "missing=AvailablePairs() and missing=ConditionalFill() take such rows."
        )


def _going_on(before: Site, prototype: Any) -> BaseEstimator:
    """Copy of a site's estimator, or an estimator that continues from the site's summary."""
    if before.estimator is not None:
        return deepcopy(before.estimator)
    if not before.n_rows:
        return clone(prototype)
    if not hasattr(prototype, "from_subspace"):
        raise ValueError(
            f"it was given as a summary, from which {type(prototype).__name__} cannot go on, "
            "unlike StreamingPCA; use another label for further rows."
        )
    summary = before.summary._replace(feature_names=None)  # rows come without names
    parameters = clone(prototype).get_params(deep=False)
    return prototype.from_subspace(summary, n_samples_seen=before.n_rows, **parameters)


def with_label_as_site(label: Any, site: Site) -> Site:
    """Site whose summary has the client's label as name, so that no later merge counts it twice."""
    if not isinstance(label, str):
        return site
    named = site.summary._replace(site=check_text("site", label))
    return site._replace(summary=named)


def _sum_of_squares(X: Any, weight: np.ndarray | None) -> float:
    if sp.issparse(X):
        of_rows = sp.csr_array(X, dtype=np.float64).power(2).sum(axis=1)
    else:
        of_rows = np.einsum("ij,ij->i", X, X, dtype=np.float64)
    return float(of_rows.sum() if weight is None else of_rows @ weight)


def labels_of_sites(subspaces: list[Subspace]) -> list[Any]:
    """Sites, or positions where one is not known."""
    sites = [s.site for s in subspaces]
    return list(range(len(sites))) if None in sites else sites


def rows_of_summary(part: Any) -> int:
    """Rows that moments or a summary stand for, as a whole number."""
    return max(1, round(part.n_samples)) if part.n_samples > 0 else 0
