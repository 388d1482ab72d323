"""Rows that clients fill in by the subspace of all, and what summaries of them lack."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from .._kernels.column_moments import is_rounding
from .._kernels.linalg import flip_signs
from .._kernels.missing import filled_in, gram_inverses, noise_ridge
from .._kernels.observed import patterns_of
from .._kernels.pair_moments import means_of_columns
from .._kernels.sizes import SMALL_DIMENSION, row_slices
from .._kernels.tolerances import RANK_EPS
from .._kernels.too_large import check_squares
from .._validation.checks import check_finite
from ..summary import Subspace, merge_subspaces
from ..summary._updating import lacks_directions

# Correlation up to which two columns have no row in common.
NEVER_TOGETHER = 1e-8
# Columns of a group that a warning names.
_NAMED = 10
# Columns up to which the noise of missing entries turns directions, and a first model is that of
# pairs of columns.
DENSE = 1024
# Rounding of a sum of weights, beside their sum.
_ROUNDED = 1e-9


def entries_of_client(label: Any, X: Any, weight: Any) -> tuple[np.ndarray, np.ndarray]:
    """Local work of one client: the mean of each column, and the weight of its entries."""
    check_finite(X, allow_nan=True)
    check_squares(X)
    return means_of_columns(X, weight)


class Seen(NamedTuple):
    """What is there of rows with missing entries.

    Parameters
    ----------
    entries : ndarray of shape (s, d)
        Weight of the entries of each column at each of s clients.
    rows : ndarray of shape (s,)
        Weight of the rows of each client.
    together : ndarray of shape (d, d) or None
        `pairs`, where they are known of all clients together.
    """

    entries: np.ndarray
    rows: np.ndarray
    together: np.ndarray | None = None

    def times(self, share: float) -> Seen:
        """The same of rows that count less."""
        together = None if self.together is None else share * self.together
        return Seen(share * self.entries, share * self.rows, together)

    @property
    def pairs(self) -> np.ndarray:
        """Weight of the rows that have two columns both, if the entries of a client lack at random.

        ``sum_i entries_ia entries_ib / rows_i``.
        """
        found = (self.entries.T / self.rows) @ self.entries
        found = found if self.together is None else self.together.copy()
        np.fill_diagonal(found, self.entries.sum(axis=0))
        return found


def pooled_means(found: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Means of columns of all clients, and the weight of their entries."""
    means, counts = (np.stack(parts) for parts in zip(*found, strict=True))
    total = counts.sum(axis=0)
    (lost,) = np.nonzero(total == 0)
    if len(lost):
        raise ValueError(f"column {lost[0]} is observed in 0 rows of all clients; leave it out.")
    origin = means[np.argmax(counts, axis=0), np.arange(means.shape[1])]
    return origin + (counts * (means - origin)).sum(axis=0) / total, total


def means_only(means: np.ndarray, n_samples: float) -> Subspace:
    """The model that fills rows in by means."""
    d = len(means)
    return Subspace(np.zeros((0, d)), np.zeros(0), means, n_samples, 0.0)


def noise_of(query: Subspace) -> float:
    """Variance of an entry beyond the directions of a model, 0 where it is rounding."""
    squares = query.singular_values**2
    left, rest = query.n_features - len(squares), query.scatter - float(squares.sum())
    if rest <= RANK_EPS * np.finfo(np.float64).eps * query.scatter:
        rest = 0.0
    return rest / left / query.n_samples if left else float(squares[-1]) / query.n_samples


def filled_rows(X: Any, query: Subspace) -> Any:
    """Copy of rows whose missing entries are filled in by the means and directions of all rows.

    Parameters
    ----------
    X : ndarray or sparse array of shape (n, d)
    query : Subspace
        The model of probabilistic PCA: variances along its directions, and the rest of the scatter
        alike in all others. Without directions rows are filled in by the means.
    """
    V, ridge = query.components.astype(np.float64), _ridge_of(query)

    def fill(rows: np.ndarray) -> np.ndarray:
        return filled_in(rows, rows, np.isnan(rows), V, query.mean, ridge)

    return filled_by(X, fill)


def _ridge_of(query: Subspace) -> np.ndarray | None:
    """Ridge of the coordinates in a model, or None: least squares."""
    if not len(query.components):
        return None
    return noise_ridge(query.singular_values**2 / query.n_samples, noise_of(query))


def with_covariance(summary: Subspace, X: Any, weight: Any, query: Subspace) -> Subspace:
    """The summary of filled rows with the conditional covariance of what was missing.

    Parameters
    ----------
    summary : Subspace
        Of the rows as they were filled in.
    X : ndarray or sparse array of shape (n, d)
        The same rows, NaN where an entry is missing.
    weight : ndarray of shape (n,) or None
    query : Subspace
        The model that they were filled in by.

    Returns
    -------
    summary : Subspace
        Its scatter has grown by the sum, over rows, of the covariance of their missing entries
        given the others, but for the noise of each entry. O(n d k^2) time.
    """
    ridge = _ridge_of(query)
    if ridge is None:
        return summary
    V, noise = query.components.astype(np.float64), noise_of(query)
    whole = summary.n_features <= SMALL_DIMENSION and not lacks_directions(summary)
    keep = None if whole else len(summary.components)
    beyond = Subspace.empty(summary.n_features, centered=False)
    noise *= summary.n_samples / (X.shape[0] if weight is None else weight.sum())  # of what counts
    for rows, times in _rows_with_holes(X, weight):
        for group in patterns_of(~np.isnan(rows), len(V)):
            lost = ~group.seen
            inverse, _ = gram_inverses(group.seen, V, ridge=ridge)
            values, U = np.linalg.eigh(inverse)
            number = np.bincount(group.of_row, times[group.rows], len(lost))
            sizes = np.sqrt(noise * number[:, None] * np.maximum(values, 0.0))
            spread = (U * sizes[:, None, :]).transpose(0, 2, 1) @ V * lost[:, None, :]
            beyond = beyond.update(spread.reshape(-1, V.shape[1]), keep)
    return with_scatter(summary, beyond, keep)


def _rows_with_holes(X: Any, weight: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows that lack entries, some at a time, with their weights."""
    weight = np.ones(X.shape[0]) if weight is None else weight
    for part in row_slices(X.shape[0], X.shape[1]):
        rows = X[part].toarray() if sp.issparse(X) else X[part]
        holes = np.isnan(rows).any(axis=1)
        if holes.any():
            yield rows[holes], weight[part][holes]


def with_scatter(summary: Subspace, more: Subspace, keep: int | None = None) -> Subspace:
    """The summary with the scatter of another one about the same mean; of its rows and labels."""
    if not len(more.components):
        return summary
    about = summary._replace(site=None, model=None, privacy=None, feature_names=None)
    part = more._replace(mean=summary.mean, n_samples=summary.n_samples, centered=True)
    both = merge_subspaces([about, part], keep)
    return summary._replace(
        components=both.components.astype(summary.components.dtype),
        singular_values=both.singular_values,
        scatter=both.scatter,
        column_scatter=both.column_scatter,
    )


def filled_by(X: Any, fill: Callable[[np.ndarray], np.ndarray]) -> Any:
    """Copy of rows with their missing entries filled in; of sparse rows few are dense at once.

    Parameters
    ----------
    X : ndarray or sparse array of shape (n, d)
    fill : callable
        Of dense rows; returns them without missing entries.
    """
    if not sp.issparse(X):
        return fill(X)
    filled = X.copy()
    at = np.flatnonzero(np.isnan(X.data))  # row by row
    rows, first, row_of = np.unique(
        np.searchsorted(X.indptr, at, side="right") - 1, return_index=True, return_inverse=True
    )
    ends = np.append(first, len(at))
    for part in row_slices(len(rows), X.shape[1]):
        some = at[ends[part.start] : ends[part.stop]]
        local = row_of[ends[part.start] : ends[part.stop]] - part.start
        filled.data[some] = fill(X[rows[part]].toarray())[local, X.indices[some]]
    return filled


def unattenuated(subspace: Subspace, seen: Seen) -> Subspace:
    """What rows filled in by means say of whole ones, if the entries of a site lack at random.

    Products of two columns are then those of the rows that have both.

    Parameters
    ----------
    subspace : Subspace
        Of all rows, filled in by the means of columns.
    seen : Seen

    Returns
    -------
    subspace : Subspace
        Leading directions of the matrix, which need not be positive definite; above `DENSE` columns
        those of ``subspace``.
    """
    n, d = subspace.n_samples, subspace.n_features
    if d > DENSE or not len(subspace.components):
        return subspace
    S, together = scatter_of(subspace), seen.pairs
    S *= np.divide(n, together, out=np.zeros((d, d)), where=together > 0)
    values, U = np.linalg.eigh(S)
    values, total = values[::-1], float(np.trace(S))
    kept = (values > 0) & (np.cumsum(values) <= total)
    kept[0] = True
    components = flip_signs(U[:, ::-1].T[kept]).astype(subspace.components.dtype)
    scatter = max(total, float(values[kept].sum()))
    s = np.sqrt(np.maximum(values[kept], 0.0))
    return subspace._replace(components=components, singular_values=s, scatter=scatter)


def scatter_of(subspace: Subspace) -> np.ndarray:
    """Scatter matrix of a summary, with the scatter of columns beyond its directions."""
    rows = subspace.singular_values[:, None] * subspace.components.astype(np.float64)
    S = rows.T @ rows
    if subspace.column_scatter is not None:
        np.fill_diagonal(S, subspace.column_scatter)
    return S


def groups_apart(subspace: Subspace, seen: Seen) -> list[np.ndarray]:
    """Groups of columns of which no row has two, from rows filled in by means.

    Then the products of their columns are zero but for rounding, and no client has entries enough
    of two columns for a row with both. One group where that is not known: of many columns, or of
    directions that were cut.

    Parameters
    ----------
    subspace : Subspace
    seen : Seen
    """
    d = subspace.n_features
    if d > DENSE or lacks_directions(subspace):
        return [np.arange(d)]
    S = scatter_of(subspace)
    sizes = np.sqrt(np.maximum(S.diagonal(), 0.0))
    (varies,) = np.nonzero(~is_rounding(sizes / np.sqrt(subspace.n_samples), subspace.mean))
    linked = np.abs(S) > NEVER_TOGETHER * sizes[:, None] * sizes
    number, labels = connected_components(linked[np.ix_(varies, varies)], directed=False)
    if number > 1:
        shares = (seen.entries / seen.rows[:, None])[:, varies]
        most = np.stack([shares[:, labels == group].max(axis=1) for group in range(number)], axis=1)
        two = np.stack([(most + of_group[:, None]).max(axis=0) for of_group in most.T])
        number, joined = connected_components(two > 1 + _ROUNDED, directed=False)
        labels = joined[labels]
    return [varies[labels == group] for group in range(number)]


def warn_of_groups(groups: list[np.ndarray], names: Any) -> None:
    """Warn of groups of columns of which no row has two, and name two of them."""
    if len(groups) < 2:
        return

    def named(group: np.ndarray) -> str:
        some = [str(column if names is None else names[column]) for column in group[:_NAMED]]
        more = f" and {len(group) - _NAMED} more" if len(group) > _NAMED else ""
        return ", ".join(some) + more

    others = "" if len(groups) == 2 else f", nor with {len(groups) - 2} other groups"
    warnings.warn(
        f"columns {named(groups[0])} are never observed in a row with columns {named(groups[1])}"
        f"{others}: no entry tells how they vary together, and components that join them are not "
        "determined. Fit the groups by themselves, or add rows that have both.",
        UserWarning,
        stacklevel=2,
    )


def check_entries_enough(n: float, d: int, rank: int, n_missing: float) -> None:
    """Raise where the entries that are there are no more than coordinates of rows."""
    if n_missing and n * (d - rank) <= n_missing:
        raise ValueError(
            f"n_components={rank} leaves too few entries to know the noise: {n * d - n_missing:g} "
            f"are there, and rows have {n * rank:g} coordinates. Ask for fewer components."
        )


def with_unseen_noise(subspace: Subspace, n_missing: np.ndarray, noise: float) -> Subspace:
    """The summary of filled rows with the noise that missing entries would have had.

    Parameters
    ----------
    subspace : Subspace
        Of filled rows and the conditional covariance of what was missing.
    n_missing : ndarray of shape (d,)
        Weight of the rows in which each column is missing.
    noise : float
        Variance of the noise of an entry in the model that filled them in.
    """
    energy, d = noise * np.maximum(n_missing, 0.0), subspace.n_features
    if not energy.any():
        return subspace
    if d <= DENSE:
        more = Subspace.empty(d, centered=False).update(np.diag(np.sqrt(energy)))
        return with_scatter(subspace, more)
    V, columns = subspace.components.astype(np.float64), subspace.column_scatter
    return subspace._replace(
        singular_values=np.sqrt(subspace.singular_values**2 + V**2 @ energy),
        scatter=subspace.scatter + float(energy.sum()),
        column_scatter=None if columns is None else columns + energy,
    )
