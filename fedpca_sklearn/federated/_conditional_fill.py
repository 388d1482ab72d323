"""Missing entries at clients: rounds in which rows are filled in by the subspace of all."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from .._base.batches import float_dtype
from .._dask import RowChunks
from .._kernels.linalg import flip_signs
from .._kernels.observed import filled_in, gram_inverses, noise_ridge, patterns_of
from .._kernels.row_moments import RoundingNoise, is_rounding, means_of_columns
from .._kernels.sizes import SMALL_DIMENSION, kept_directions, row_slices
from .._kernels.tolerances import RANK_EPS
from .._kernels.too_large import check_squares
from .._validation.checks import AT_LEAST_ONE, allowed, check_finite, with_parameters
from ..communication._federation import Message
from ..summary import Subspace
from ..summary._exact import ScatterMatrix
from ..summary._merging import in_float64
from ..summary._rank_selection import HELD_OUT, held_out_components
from ..summary._updating import lacks_directions, stacked_by_block, updated
from ._available_pairs import MissingStrategy
from ._clients import label_order, rows_of
from ._local_fit import Site
from ._summaries import take_summaries


@with_parameters
class ConditionalFill(MissingStrategy):
    """PCA of rows with missing entries by EM for probabilistic PCA, over rounds of summaries.

    As ``missing`` of `FederatedPCA`; NaN in X is then a missing entry. In each round the server
    sends the components and variances of all clients. Clients fill their rows in by the means of
    the missing entries given the others of the row in probabilistic PCA, and add the covariance
    that these entries have given the others. So variances are those of whole rows.

    Parameters
    ----------
    n_rounds : int, default=2
        Steps of EM. Rows with little noise beside strong directions, and most entries missing, take
        up to ten, and sixty where large entries are missing before others. With more than two, rows
        that are not so are fitted too closely.

    Warns
    -----
    UserWarning
        If columns are in groups of which no row has two, up to 256 columns: both are named.

    See Also
    --------
    AvailablePairs : One round, and no model of the rows; for up to some hundred columns.
    FederatedSubspaceTracker : The server sees sums only, rows may change with time.

    Notes
    -----
    Rows should have ``n_components`` strong directions and noise. Then it loses less than available
    pairs, takes columns that no client measures together, and sends summaries, not matrices.

    The rounds begin with rows filled in by means. Products of two columns are then too small by the
    share of the rows that have both. The server divides by it, as if the entries of each client
    lacked at random (up to 1,024 columns); the steps of EM that follow do not suppose it. Where
    entries lack otherwise, as by site, more rounds are better.

    Sparse rows stay sparse: entries that are stored as NaN are missing, and the others are zero. A
    ``merge`` that compares sites is refused, as rows are filled in by what all of them say.

    The noise of a missing entry, which is no part of what clients send, is added by the server,
    which knows how many entries of each column are missing.

    Each client sends 2 d floats and n_rounds + 1 summaries, and takes d and n_rounds (k d + d + k +
    1); ``communication_`` counts summaries and models as rounds of their own. The covariances are
    in the summaries, whose size stays. A row costs O(d k^2) a round, and with missing entries as
    much as k rows of the summary; the rows are copied. Sites take
    the same rounds over Flower (`fit_sites`) and by files (`engines.files.Study`).

    No row leaves its client, but summaries of the same rows, filled in differently, differ by the
    rows with missing entries: a server that follows the protocol learns more of these than of
    others, of a row that alone has two columns the product of its deviations in them, and one that
    sends another model of its choice can learn single rows. It is for sites that trust the server
    to send what the rounds give.

    References
    ----------
    .. [1] M. Tipping, C. Bishop, "Probabilistic principal component analysis", JRSS B 1999: EM with
       the missing entries as what is hidden (section 3.3).

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

    _leaves = MissingStrategy._leaves | {"estimator", "merge"}
    _rules = frozenset({HELD_OUT})
    _goes_on = False

    n_rounds: int = allowed(AT_LEAST_ONE, default=2)

    def _take(self, pca: Any, X: Any, weight: Any, shards: list[Any]) -> list[Any]:
        if isinstance(X, RowChunks):
            raise TypeError(
                f"X is a dask.array, whose chunks missing={pca.missing!r} does not fill in; "
                "AvailablePairs() and X.compute() do without."
            )
        check_filling(pca)
        X = X.astype(float_dtype(X), copy=False)
        found = dict(pca._map(entries_of_client, rows_of(X, weight, shards), shards))
        means, _ = pooled_means(list(found.values()))
        weights = np.ones(X.shape[0]) if weight is None else weight
        of_rows = {label: float(weights[at].sum()) for label, at in shards}

        def fill(query: Subspace) -> tuple[dict[Any, Site], Seen]:
            pca._reset()
            log = pca.communication_.copy()
            labels = take_summaries(pca, filled_rows(X, query), weight, shards, "fit")
            pca.communication_ = log  # what is sent has the covariances as well
            n_rows = np.array([of_rows[label] for label in labels])
            seen = Seen(np.stack([found[label][1] for label in labels]), n_rows)
            clients = dict(pca._clients)

            def with_covariances(label: Any, rows: Any, weights: Any) -> Site:
                site = clients[label]
                return site._replace(summary=with_covariance(site.summary, rows, weights, query))

            calls = rows_of(X, weight, shards)
            return clients | dict(pca._map(with_covariances, calls, shards)), seen

        return fill_in_rounds(pca, len(shards), means, float(weights.sum()), fill)

    def _merge_others(self, pca: Any) -> None:
        raise ValueError(
            f"remove cannot be with missing={self!r}: the rows of the others were filled in by "
            "what the client's told; fit without it."
        )


def check_filling(pca: Any) -> None:
    """Raise where it is not known by how many components rows are filled in."""
    pca._check_parameters()
    if pca.n_components is None:
        raise ValueError(
            f"n_components must be a number or a share with missing={pca.missing!r}, by which "
            "rows are filled in, got None."
        )


def fill_in_rounds(
    pca: Any,
    n_clients: int,
    means: np.ndarray,
    n: float,
    fill: Callable[[Subspace], tuple[dict[Any, Site], Seen]],
) -> list[Any]:
    """The rounds that the parameter asks for, by summaries wherever the rows are.

    They begin with means of the columns of n rows, which ``n_clients`` have sent. ``fill(query)``
    lets clients fill their rows in; it returns their summaries, and what is there of their rows.
    """
    d, found = len(means), dict[Any, Site]()
    up, down = [Message(2 * d, 16 * d)] * n_clients, [Message(d, 8 * d)] * n_clients
    pca.communication_.record(up, down)
    query = Subspace(np.zeros((0, d)), np.zeros(0), means, n, 0.0)
    for _ in range(pca.missing.n_rounds + 1):
        k = len(query.components)
        if k:  # the query of means belongs to the first round
            size = k * d + d + k + 1
            pca.communication_.record(down=[Message(size, 8 * size)] * len(found))
        found, seen = fill(query)
        pca._reset()
        pca._clients = found
        pca._merge_all()
        pca.clients_ = sorted(found, key=label_order)
        _show_filled(pca, query, seen)
        known = pca._values()["subspace_"]._part(pca.n_components_)
        query = in_float64(known)._replace(site=None)
    _warn_of_few_pairs(query, seen)
    return list(found)


def _show_filled(pca: Any, query: Subspace, seen: Seen) -> None:
    """Set the fitted attributes: the variances that whole rows would have had."""
    subspace = pca._values()["subspace_"]
    # rows of clients that fade count for fewer, whatever is missing in them
    seen = seen.times(subspace.n_samples / seen.rows.sum())
    n, d = subspace.n_samples, subspace.n_features
    lacking, k = float(seen.missing.sum()), pca.n_components_
    rank, most = pca.n_components, int(np.ceil(d - lacking / n)) - 1
    if rank != HELD_OUT and lacking and n * (d - k) <= lacking:
        raise ValueError(
            f"n_components={k} leaves too few entries to know the noise: {n * d - lacking:g} "
            f"are there, and rows have {n * k:g} coordinates. Ask for fewer components."
        )
    if len(query.components):
        subspace = with_unseen_noise(subspace, seen.missing, noise_of(query))
    else:
        warn_of_groups(groups_apart(subspace, seen), getattr(pca, "feature_names_in_", None))
        subspace = unattenuated(subspace, seen)
        most = min(most, subspace.n_components // 2)  # the least variances are not of a model
    if rank == HELD_OUT:
        rank = held_out_components(subspace, seen.usual_pairs, most)
    pca._set_fitted(subspace, rank, pca.n_samples_)


def _warn_of_few_pairs(model: Subspace, seen: Seen) -> None:
    """Warn where noise may be much of the last variance, as few rows have two columns both."""
    k = len(model.components)
    if not k or not seen.missing.any():
        return
    seen = seen.times(model.n_samples / seen.rows.sum())  # rows that fade count for fewer
    noise = noise_of(model) * model.n_features / seen.usual_pairs
    if noise > _NOISY * model.explained_variance[-1]:
        warnings.warn(
            f"two columns have entries in the same row about {seen.usual_pairs:.0f} times, which "
            f"is few for {model.n_features} columns with this noise: the variance of component {k} "
            "may be off by a tenth to a half. Ask for fewer components, or fit more rows.",
            UserWarning,
            stacklevel=2,
        )


# Correlation up to which two columns have no row in common.
NEVER_TOGETHER = 1e-8
# Share of the last variance that noise may be: with more, variances were off by a tenth and more.
_NOISY = 0.035
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
    known_pairs : ndarray of shape (d, d) or None
        `pairs`, where they are known of all clients together.
    """

    entries: np.ndarray
    rows: np.ndarray
    known_pairs: np.ndarray | None = None

    def times(self, share: float) -> Seen:
        """The same of rows that count less."""
        known_pairs = None if self.known_pairs is None else share * self.known_pairs
        return Seen(share * self.entries, share * self.rows, known_pairs)

    @property
    def missing(self) -> np.ndarray:
        """Weight of the rows in which each column is missing, 0 where it is rounding."""
        n = float(self.rows.sum())
        found = n - self.entries.sum(axis=0)
        return np.where(found > _ROUNDED * n, found, 0.0)

    @property
    def usual_pairs(self) -> float:
        """Weight of the rows that have two columns both, by the share of all entries."""
        n, d = float(self.rows.sum()), self.entries.shape[1]
        return n * float(self.entries.sum() / n / d) ** 2

    @property
    def pairs(self) -> np.ndarray:
        """Weight of the rows that have two columns both, if the entries of a client lack at random.

        ``sum_i entries_ia entries_ib / rows_i``.
        """
        found = (self.entries.T / self.rows) @ self.entries
        found = found if self.known_pairs is None else self.known_pairs.copy()
        np.fill_diagonal(found, self.entries.sum(axis=0))
        return found


def pooled_means(found: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Means of columns of all clients, and the weight of their entries."""
    means, counts = (np.stack(parts) for parts in zip(*found, strict=True))
    total = counts.sum(axis=0)
    for lost in np.flatnonzero(total == 0):
        raise ValueError(f"column {lost} is observed in 0 rows of all clients; leave it out.")
    origin = means[np.argmax(counts, axis=0), np.arange(means.shape[1])]
    return origin + (counts * (means - origin)).sum(axis=0) / total, total


def noise_of(query: Subspace) -> float:
    """Variance of an entry beyond the directions of a model, 0 where it is rounding."""
    squares = query.singular_values**2
    left, rest = query.n_features - len(squares), query.scatter - float(squares.sum())
    if rest <= RANK_EPS * np.finfo(np.float64).eps * query.scatter:
        rest = 0.0
    return rest / left / query.n_samples if left else float(squares[-1]) / query.n_samples


def filled_rows(X: Any, query: Subspace, noise: RoundingNoise | None = None) -> Any:
    """Copy of rows whose missing entries are filled in by the means and directions of all rows.

    Parameters
    ----------
    X : ndarray or sparse array of shape (n, d)
    query : Subspace
        The model of probabilistic PCA: variances along its directions, and the rest of the scatter
        alike in all others. Without directions rows are filled in by the means.
    noise : RoundingNoise or None
        At a site, where the model is of a server's choice.
    """
    V, ridge = query.components.astype(np.float64), _ridge_of(query)

    def fill(A: np.ndarray) -> np.ndarray:
        lost = np.isnan(A)
        if noise is None:
            return filled_in(A, A, lost, V, query.mean, ridge)
        Z = noise.on(A - query.mean)
        Z = filled_in(Z, Z, lost, V, np.zeros(Z.shape[1]), ridge)
        return np.where(lost, noise.added(Z, query.mean, A.dtype), A).astype(A.dtype)

    return filled_by(X, fill)


def _ridge_of(query: Subspace) -> np.ndarray | None:
    """Ridge of the coordinates in a model, or None: least squares."""
    if not len(query.components):
        return None
    variances, d = query.singular_values**2 / query.n_samples, query.n_features
    return noise_ridge(variances, noise_of(query), d)


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
    noise *= summary.n_samples / (X.shape[0] if weight is None else weight.sum())  # of what counts
    for rows, times in _rows_with_holes(X, weight):
        for group in patterns_of(~np.isnan(rows), len(V)):
            lost = ~group.seen
            inverse, _ = gram_inverses(group.seen, V, ridge=ridge)
            values, U = np.linalg.eigh(inverse)
            number = np.bincount(group.of_row, times[group.rows], len(lost))
            sizes = np.sqrt(noise * number[:, None] * np.maximum(values, 0.0))
            spread = (U * sizes[:, None, :]).transpose(0, 2, 1) @ V * lost[:, None, :]
            summary = with_scatter(summary, spread.reshape(-1, V.shape[1]), keep)
    return summary


def _rows_with_holes(X: Any, weight: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows that lack entries, some at a time, with their weights."""
    weight = np.ones(X.shape[0]) if weight is None else weight
    for part in row_slices(X.shape[0], X.shape[1]):
        rows = X[part].toarray() if sp.issparse(X) else X[part]
        holes = np.isnan(rows).any(axis=1)
        if holes.any():
            yield rows[holes], weight[part][holes]


def with_scatter(summary: Subspace, rows: np.ndarray, keep: int | None = None) -> Subspace:
    """The summary with the scatter of more rows about its mean; of as many rows and labels."""
    origin, known = np.zeros(summary.n_features), summary._leading
    about = summary._replace(mean=origin, centered=False)
    if keep is not None:
        reserves = kept_directions(keep, summary.n_features)
        both = updated(about, rows, max_rank=reserves, n_certain=keep).truncate(keep)
    elif isinstance(known, ScatterMatrix):
        both = updated(about, rows, n_certain=known.certainty.n_certain or None)
    else:  # one decomposition, when directions are read
        both = stacked_by_block(about, rows, None)
    names = ("_leading",) if both._leading is not None else ("components", "singular_values")
    return summary._replace(
        **{name: getattr(both, name) for name in names},
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
    S, known_pairs = scatter_of(subspace), seen.pairs
    S *= np.divide(n, known_pairs, out=np.zeros((d, d)), where=known_pairs > 0)
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
        return with_scatter(subspace, np.diag(np.sqrt(energy)))
    V, columns = subspace.components.astype(np.float64), subspace.column_scatter
    return subspace._replace(
        singular_values=np.sqrt(subspace.singular_values**2 + V**2 @ energy),
        scatter=subspace.scatter + float(energy.sum()),
        column_scatter=None if columns is None else columns + energy,
    )
