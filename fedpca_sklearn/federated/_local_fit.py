"""Local work of a client of `FederatedPCA`: a sub-estimator, and the summary of it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, clone
from sklearn.utils import get_tags

from .._base.batches import RowBuffer, count_rows, is_bounded, is_bounded_state
from .._kernels.device_rows import in_memory
from .._kernels.rows import entries_once
from .._kernels.sizes import exact_dimension
from .._kernels.threads import computed_once, threads_for_call
from .._kernels.too_large import TooLargeError
from .._validation.checks import check_rows, is_integer, number_or_none
from .._validation.texts import check_text
from ..communication._federation import Message
from ..streaming import StreamingPCA
from ..streaming._sizes import Sizes
from ..summary import Subspace
from ..summary._exact import ScatterMatrix
from ..summary._updating import updated
from ._clients import label_order

# Values whose fourth powers, as solvers may form them, are still finite.
_LARGE = 1e70
# Entries of the rows that wait at a client: 512 kB, or a square where a stream would keep one.
_WAITING_ENTRIES = 2**16


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


class WaitingSite:
    """State of a client with rows in a buffer, as `Site`; its summary is computed when read.

    What is read changes no later number: more rows follow those in the buffer, after those before,
    of which a scatter matrix is kept where a stream would keep one. Copies and pickles have no
    rows, but the summary.

    Parameters
    ----------
    before : Site
        Without the rows in the buffer, and with all directions where a scatter matrix has them.
    buffer : RowBuffer
    k : int
        Number of directions of the summary before.
    used : ndarray of shape (d,)
        Columns that are not constant.
    """

    def __init__(self, before: Site, buffer: RowBuffer, k: int, used: np.ndarray):
        self.before, self.buffer, self.k, self.used = before, buffer, k, used
        self.estimator, self.n_rows = before.estimator, before.n_rows + buffer.n

    @computed_once
    def settled(self) -> Site:
        """The client with its rows in the summary, which is as large as what is sent."""
        return self.estimator.cut(self.whole)

    @computed_once
    def whole(self) -> Site:
        """The same before directions are cut."""
        return self.estimator.after_batch(self.before, self.buffer.rows)

    @property
    def summary(self) -> Subspace:
        """Summary of all rows."""
        return self.settled.summary

    @property
    def message(self) -> Message:
        """Size of the summary, to which each row in the buffer adds a direction if one can come.

        None comes any more where many rows before span fewer than there are columns.
        """
        known, k, n = self.before.summary, self.k, self.buffer.n
        if n and self.before.n_rows <= 2 * known.n_features:
            k = max(k, min(k + n, self.n_rows - 1, self.estimator.most(self.used)))
        return Message(*known._size_with(k))

    def _replace(self, **changes: Any) -> Site:
        return self.settled._replace(**changes)

    def __reduce__(self):
        return _resumed, (self.whole, self.buffer.room)


@dataclass(frozen=True)
class Summarised:
    """Clients of which nothing is kept but a summary, from which `StreamingPCA` can go on.

    ``prototype`` is not fitted: it says how many directions are kept. ``wanted``: components of the
    rows as they are that will be read; None: all.
    """

    prototype: StreamingPCA
    wanted: int | None = None

    def most(self, used: np.ndarray) -> int:
        """Directions that a summary may have of columns of which these are not constant."""
        kept = Sizes(self.prototype).kept(len(used))[0]
        return min(len(used) if kept is None else kept, int(np.count_nonzero(used)))

    def after(self, site: Site | WaitingSite | None, X: Any) -> Site | WaitingSite | None:
        """A client after more rows, of which few wait for others; None where more is to be checked.

        Taken are rows of moderate size, in an array, after such rows, or of a new client.
        """
        if site is None:
            site = Site(self, 0, _no_rows(X.shape[1], X.dtype))
        waiting = site if isinstance(site, WaitingSite) else self._waiting(site)
        if waiting is None or type(X) is not np.ndarray:
            return None
        before, buffer, k, used = waiting.before, waiting.buffer, waiting.k, waiting.used
        if X.dtype != buffer.dtype or not is_bounded(X.ravel()):
            return None
        if len(X) < buffer.room:
            longer = buffer.with_rows(X)
            if longer.n < longer.room:
                if not used.all():
                    one = before.summary.mean if before.n_rows else longer.rows[0]
                    used = used | (one != X).any(axis=0)
                return WaitingSite(before, longer, k, used)
            after = self.after_batch(before, longer.rows)
        else:
            after = self.after_batch(waiting.whole, X)
        return self._waiting(after, buffer.room, k) or self.cut(after)

    def _waiting(self, site: Site, room: int = 0, k: int = 0) -> WaitingSite | None:
        """A client whose rows may wait; None where sums of moderate rows may overflow.

        Of k directions that it had before none is lost.
        """
        summary = site.summary
        mean, dtype, columns = summary.mean, summary._dtype, summary.column_scatter
        if columns is None or not summary.centered:
            return None
        if not is_bounded_state(mean, summary.total_variance, dtype):
            return None
        used = columns > 0
        k = k if k and k == self.most(used) else self._directions(summary, used)
        nothing = np.empty((0, len(mean)), dtype)
        return WaitingSite(site, RowBuffer(nothing, room or self._room(len(mean))), k, used)

    def _directions(self, summary: Subspace, used: np.ndarray) -> int:
        """Directions that are sent of a summary."""
        most, held = self.most(used), summary._leading
        if isinstance(held, ScatterMatrix) and held.certainty.n_known >= most:
            return most  # as so many eigenvalues are certain
        return min(most, summary.n_components)

    def holds(self, d: int) -> int | None:
        """Directions that are kept of d features: all, where a stream would keep all."""
        max_keep, keep = Sizes(self.prototype).kept(d)
        wanted = self.prototype.n_components
        if max_keep is None or keep is not None or not is_integer(wanted):
            return max_keep
        return d if d <= exact_dimension(int(wanted)) else max_keep

    def cut(self, site: Site) -> Site:
        """A client with the directions that it sends."""
        max_keep, keep = Sizes(self.prototype).kept(site.summary.n_features)
        if keep is not None or max_keep is None:
            return site
        return site._replace(summary=site.summary._part(max_keep))

    def _room(self, d: int) -> int:
        """Rows from which on a client takes them."""
        sizes, wanted = self.prototype._sizes, number_or_none(self.prototype.n_components)
        few = isinstance(wanted, float) or d > exact_dimension(wanted)
        least = min(sizes.few(d), d) if few else d
        return min(sizes.block(d), max(_WAITING_ENTRIES // d, least))

    def after_batch(self, before: Site, X: np.ndarray) -> Site:
        """A client after rows of moderate size, all of them at once."""
        if not len(X):
            return before
        d = X.shape[1]
        with threads_for_call(d * max(len(X), 16 * d)):
            return self.work(before, X, whole=True)

    def work(self, before: Any, X: Any, weight: Any = None, whole: bool = False) -> Site:
        """Local work of one client: its summary with more rows, which have been checked.

        ``whole``: with all directions where a stream would keep all.
        """
        if before is not None and before.n_rows:
            past, n_rows = self._past(before), before.n_rows
            X = X.astype(past._dtype, copy=False)
        else:
            past, n_rows = _no_rows(X.shape[1], X.dtype), 0
        max_keep, keep = Sizes(self.prototype).kept(X.shape[1])
        wanted = self.wanted
        if whole and (holds := self.holds(X.shape[1])) != max_keep:
            max_keep, wanted = holds, max_keep
        with np.errstate(all="ignore"):
            summary = updated(past, X, weight, max_keep=max_keep, keep=keep, wanted=wanted)
        return Site(self, n_rows + count_rows(X, weight), summary)

    def _past(self, before: Site | WaitingSite) -> Subspace:
        """Summary to go on from; rows come without the names of the columns."""
        if not before.summary.centered:
            self.fitted(before)  # which says that it is not
        return before.summary._replace(feature_names=None)

    def fitted(self, site: Site | WaitingSite) -> StreamingPCA:
        """The estimator that the client of a summary has fitted."""
        summary = site.summary._replace(feature_names=None)
        parameters = self.prototype.get_params(deep=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of rows that span fewer directions
            return StreamingPCA.from_subspace(summary, n_samples_seen=site.n_rows, **parameters)


def fitted_estimators(sites: Mapping[Any, Site]) -> dict[Any, Any]:
    """Label -> fitted sub-estimator, of a client that keeps a summary one that goes on from it."""
    found = {label: sites[label].estimator for label in sorted(sites, key=label_order)}
    return {
        label: estimator.fitted(sites[label]) if isinstance(estimator, Summarised) else estimator
        for label, estimator in found.items()
        if estimator is not None
    }


def _resumed(whole: Site, room: int) -> WaitingSite | Site:
    """Copy of a client whose rows have been taken out of its buffer."""
    return whole.estimator._waiting(whole, room) or whole.estimator.cut(whole)


@lru_cache(maxsize=4)
def _no_rows(d: int, dtype: np.dtype) -> Subspace:
    """Summary that clients begin with."""
    return Subspace.empty(d, dtype=dtype)


def fit_site(
    label: Any,
    before: Site | WaitingSite | None,
    prototype: Summarised | BaseEstimator,
    seed: int | None,
    X: Any,
    weight: Any,
    method: str,
) -> Site | WaitingSite:
    """Local work of one client: its summary, or a fit of its estimator, or a copy of it."""
    if isinstance(prototype, Summarised):
        known: Summarised | BaseEstimator | None = None if before is None else before.estimator
        if known is None or isinstance(known, Summarised):
            after = None
            goes_on = before is None or (known is not None and before.n_rows)
            if weight is None and method == "partial_fit" and goes_on:
                after = (known or prototype).after(before, X)
            return after or (known or prototype).work(before, check_rows(X), weight)
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


def _going_on(before: Site | WaitingSite, prototype: Any) -> BaseEstimator:
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


def rows_of_summary(part: Any) -> int:
    """Rows that moments or a summary stand for, as a whole number."""
    return max(1, round(part.n_samples)) if part.n_samples > 0 else 0
