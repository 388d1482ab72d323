"""Local work of a client of `FederatedPCA`: a sub-estimator, and the summary of it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, clone
from sklearn.utils import get_tags

from .._base.batches import count_rows
from .._kernels.device_rows import in_memory
from .._kernels.rows import entries_once
from .._kernels.too_large import TooLargeError
from .._validation.checks import check_rows, is_integer
from .._validation.texts import check_text
from ..streaming import StreamingPCA
from ..streaming._sizes import directions_kept
from ..summary import Subspace
from ..summary._updating import updated
from ._clients import label_order

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


@dataclass(frozen=True)
class Summarised:
    """Clients of which nothing is kept but a summary, from which `StreamingPCA` can go on.

    ``prototype`` is not fitted: it says how many directions are kept.
    """

    prototype: StreamingPCA

    def kept(self, d: int) -> tuple[int | None, Any]:
        """Bound on the directions kept of d features, and the function that chooses fewer."""
        pca = self.prototype
        beside = 0 if pca.partial_out is None else int(np.size(pca.partial_out))
        return directions_kept(pca.n_components, pca.oversampling, beside, d, None)

    def work(self, before: Site | None, X: Any, weight: Any) -> Site:
        """Local work of one client: its summary with more rows."""
        X, n_rows = check_rows(X), 0
        past = Subspace.empty(X.shape[1], centered=True, dtype=X.dtype)
        if before is not None and before.n_rows:
            past, n_rows = self._past(before), before.n_rows
            X = X.astype(past._dtype, copy=False)
        max_keep, keep = self.kept(X.shape[1])
        asked = self.prototype.n_components
        adjusted = self.prototype._asks()  # whose components are others
        wanted = asked if is_integer(asked) and not adjusted else None
        with np.errstate(all="ignore"):
            summary = updated(past, X, weight, max_keep=max_keep, keep=keep, wanted=wanted)
        return Site(self, n_rows + count_rows(X, weight), summary)

    def _past(self, before: Site) -> Subspace:
        """Summary to go on from; rows come without the names of the columns."""
        if not before.summary.centered:
            self.fitted(before)  # which says that it is not
        return before.summary._replace(feature_names=None)

    def fitted(self, site: Site) -> StreamingPCA:
        """The estimator that the client of a summary has fitted."""
        summary = site.summary._replace(feature_names=None)
        parameters = self.prototype.get_params(deep=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of rows that span fewer directions
            return StreamingPCA.from_subspace(summary, n_samples_seen=site.n_rows, **parameters)


class Estimators(Mapping):
    """Label -> fitted sub-estimator, which is made of a summary when somebody asks for it."""

    def __init__(self, sites: Mapping[Any, Site]):
        self._sites = {label: site for label, site in sites.items() if site.estimator is not None}
        self._made: dict[Any, Any] = {}

    def __getitem__(self, label: Any) -> Any:
        site = self._sites[label]
        if not isinstance(site.estimator, Summarised):
            return site.estimator
        if label not in self._made:
            self._made[label] = site.estimator.fitted(site)
        return self._made[label]

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(self._sites, key=label_order))

    def __len__(self) -> int:
        return len(self._sites)

    def __repr__(self) -> str:
        return repr(dict(self))


def fit_site(
    label: Any,
    before: Site | None,
    prototype: Summarised | BaseEstimator,
    seed: int | None,
    X: Any,
    weight: Any,
    method: str,
) -> Site:
    """Local work of one client: its summary, or a fit of its estimator, or a copy of it."""
    if isinstance(prototype, Summarised):
        known = None if before is None else before.estimator
        if known is None or isinstance(known, Summarised):
            return (known or prototype).work(before, X, weight)
        prototype = prototype.prototype
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
            _check_columns_have_entries(X, prototype)
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


def _check_columns_have_entries(X: Any, estimator: BaseEstimator) -> None:
    """Raise for a column without entries, of which a tracker's summary says that it is zero."""
    if sp.issparse(X):
        n_missing = np.bincount(X.indices[np.isnan(X.data)], minlength=X.shape[1])
    else:
        n_missing = np.isnan(X[:1]).sum(axis=0)  # most have entries in the first row
        n_missing = np.isnan(X).sum(axis=0) if n_missing.any() else n_missing
    (lost,) = np.nonzero(n_missing == X.shape[0])
    if len(lost) and get_tags(estimator).input_tags.allow_nan:
        raise ValueError(
            f"column {lost[0]} has no entries, and a summary would tell that it is constant. "
            "missing=AvailablePairs() and missing=ConditionalFill() take such rows."
        )


def _going_on(before: Site, prototype: Any) -> BaseEstimator:
    """Copy of a site's estimator, or an estimator that continues from the site's summary."""
    if isinstance(before.estimator, Summarised):
        return before.estimator.fitted(before)
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
