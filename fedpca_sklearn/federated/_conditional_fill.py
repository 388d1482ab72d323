"""What is made of missing entries at clients: rows are filled in by the subspace of all."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse as sp

from .._kernels.missing import filled_in, noise_ridge
from .._kernels.pair_moments import means_of_columns
from .._kernels.sizes import row_slices
from .._kernels.tolerances import RANK_EPS
from .._kernels.too_large import check_squares
from .._validation.checks import check_finite
from .._validation.intervals import Interval
from ..summary import Subspace
from ._available_pairs import MissingStrategy

__all__ = ["ConditionalFill"]


class ConditionalFill(MissingStrategy):
    """PCA of rows whose missing entries are filled in by the subspace of all clients, over rounds.

    As ``missing`` of `FederatedPCA`; NaN in X is then a missing entry. Rows are filled in by the
    means of all clients, summarised and merged. In each further round the server sends the merged
    components, and clients fill their rows in anew, by the means of the missing entries given the
    others of the row in probabilistic PCA, as `SubspaceTracker` does.

    Parameters
    ----------
    n_rounds : int, default=2
        Times that rows are filled in by the components.

    See Also
    --------
    AvailablePairs : One round, and no model of the rows; for up to some hundred columns.
    FederatedSubspaceTracker : The server sees sums only, rows may change with time.

    Notes
    -----
    Rows should have ``n_components`` strong directions and noise. Then it loses less than available
    pairs, takes columns that no client measures together, and sends summaries, not matrices. The
    directions depend on the rounds; where the rows are of exactly that rank the error falls by the
    share of missing entries, or a little more, in each.

    Sparse rows stay sparse: entries that are stored as NaN are missing, and the others are zero. A
    ``merge`` that compares sites is refused, as rows are filled in by what all of them say.

    What is filled in has no noise. So the variance outside the components is taken from the entries
    that are there, less the ``n_components`` coordinates of each row: with m missing entries in n
    rows of d columns, sigma^2 = (what is left of filled rows) / (n (d - k) - m), and m sigma^2 is
    added to the total variance.

    Each client sends 2 d floats and n_rounds + 1 summaries, and takes d and n_rounds (k d + d + k +
    1); ``communication_`` counts summaries and models as rounds of their own. A row costs O(d k^2)
    a round; the rows are copied. Sites that exchange files begin with `FederatedPCA.from_fills`,
    and Flower's sites are fitted as ever.

    No row leaves its client, but summaries of the same rows, filled in differently, differ by the
    rows with missing entries: a server that follows the protocol learns more of these than of
    others, of a row that alone has two columns the product of its deviations in them, and one that
    sends another model of its choice can learn single rows. It is for sites that trust the server
    to send what the rounds give.

    References
    ----------
    .. [1] M. Tipping, C. Bishop, "Probabilistic principal component analysis", JRSS B 1999; its EM
       algorithm for missing entries (section 3.3), without the conditional covariance within
       the components.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import ConditionalFill, FederatedPCA, make_power_law
    >>> X = make_power_law(2000, 300, alpha=2.0, random_state=0)
    >>> holes = np.where(np.random.default_rng(0).random(X.shape) < 0.3, np.nan, X)
    >>> sites = np.arange(2000) % 4
    >>> FederatedPCA(3).fit(X, clients=sites).explained_variance_.round(3)
    array([1.04 , 0.24 , 0.109])
    >>> by_means = np.where(np.isnan(holes), np.nanmean(holes, axis=0), holes)
    >>> FederatedPCA(3).fit(by_means, clients=sites).explained_variance_.round(3)
    array([0.511, 0.12 , 0.055])
    >>> pca = FederatedPCA(3, missing=ConditionalFill()).fit(holes, clients=sites)
    >>> pca.explained_variance_.round(3)
    array([1.039, 0.239, 0.109])
    """

    _parameter_constraints: dict = {"n_rounds": [Interval(Integral, 1, None, closed="left")]}
    _leaves = MissingStrategy._leaves | {"estimator", "merge"}

    def __init__(self, n_rounds: int = 2):
        self.n_rounds = n_rounds


def entries_of_client(label: Any, X: Any, weight: Any) -> tuple[np.ndarray, np.ndarray]:
    """Local work of one client: the mean of each column, and the weight of its entries."""
    check_finite(X, allow_nan=True)
    check_squares(X)
    return means_of_columns(X, weight)


def pooled_means(found: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Means of columns of all clients, and the weight of their entries."""
    means, counts = (np.stack(parts) for parts in zip(*found, strict=True))
    total = counts.sum(axis=0)
    (lost,) = np.nonzero(total == 0)
    if len(lost):
        raise ValueError(f"column {lost[0]} is observed in 0 rows of all clients; leave it out.")
    origin = means[np.argmax(counts, axis=0), np.arange(means.shape[1])]
    return origin + (counts * (means - origin)).sum(axis=0) / total, total


def filled_rows(X: Any, query: Subspace) -> Any:
    """Copy of rows whose missing entries are filled in by the means and directions of all rows.

    Parameters
    ----------
    X : ndarray or sparse array of shape (n, d)
    query : Subspace
        The model of probabilistic PCA: variances along its directions, and the rest of the scatter
        alike in all others. Without directions rows are filled in by the means.
    """
    V, squares = query.components.astype(np.float64), query.singular_values**2
    left, rest = query.n_features - len(squares), query.scatter - float(squares.sum())
    if rest <= RANK_EPS * np.finfo(np.float64).eps * query.scatter:
        rest = 0.0
    ridge = noise_ridge(squares, rest / left if left else float(squares[-1]))

    def fill(rows: np.ndarray) -> np.ndarray:
        return filled_in(rows, rows, np.isnan(rows), V, query.mean, ridge)

    return filled_by(X, fill)


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


def with_unseen_variance(subspace: Subspace, shares: np.ndarray, rank: int) -> Subspace:
    """The summary of filled rows with the noise that missing entries would have had.

    Parameters
    ----------
    subspace : Subspace
        Of filled rows.
    shares : ndarray of shape (d,)
        Share of the entries of each column that are missing.
    rank : int
        Components that rows were filled in by, k.
    """
    n, d = subspace.n_samples, subspace.n_features
    n_missing = n * shares
    m = float(n_missing.sum())
    free = n * (d - rank) - m
    if m and free <= 0:
        raise ValueError(
            f"n_components={rank} leaves too few entries to know the noise: {n * d - m:g} are "
            f"there, and rows have {n * rank:g} coordinates. Ask for fewer components."
        )
    if not m:
        return subspace
    explained = float(np.square(subspace.singular_values[:rank]).sum())
    square = max(subspace.scatter - explained, 0.0) / free
    columns = subspace.column_scatter
    return subspace._replace(
        scatter=subspace.scatter + square * m,
        column_scatter=None if columns is None else columns + square * n_missing,
    )
