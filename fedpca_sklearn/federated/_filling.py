"""What is made of missing entries at clients: rounds in which they are filled in by all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from numbers import Integral
from typing import Any

import numpy as np

from .._base.batches import float_dtype
from .._dask import RowChunks
from .._validation.intervals import Interval
from ..communication._federation import Message
from ..summary import Subspace
from ..summary._merging import in_float64
from ..summary._rank_selection import HELD_OUT, held_out_components
from ._available_pairs import MissingStrategy
from ._clients import label_order, rows_of
from ._conditional_fill import (
    Seen,
    check_entries_enough,
    entries_of_client,
    filled_rows,
    groups_apart,
    means_only,
    noise_of,
    pooled_means,
    unattenuated,
    warn_of_groups,
    with_covariance,
    with_unseen_noise,
)
from ._local_fit import Site
from ._summaries import take_summaries

__all__ = ["ConditionalFill"]


class ConditionalFill(MissingStrategy):
    """PCA of rows with missing entries by EM for probabilistic PCA, over rounds of summaries.

    As ``missing`` of `FederatedPCA`; NaN in X is then a missing entry. In each round the server
    sends the components and variances of all clients. Clients fill their rows in by the means of
    the missing entries given the others of the row in probabilistic PCA, and add the covariance
    that these entries have given the others. So variances are those of whole rows.

    Parameters
    ----------
    n_rounds : int, default=2
        Steps of EM.

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

    _parameter_constraints: dict = {"n_rounds": [Interval(Integral, 1, None, closed="left")]}
    _leaves = MissingStrategy._leaves | {"estimator", "merge"}
    _rules = frozenset({HELD_OUT})

    def __init__(self, n_rounds: int = 2):
        self.n_rounds = n_rounds

    def _take(self, pca: Any, X: Any, weight: Any, shards: list[Any]) -> list[Any]:
        if isinstance(X, RowChunks):
            raise TypeError(
                f"X is a dask.array, whose chunks missing={pca.missing!r} does not fill in; "
                "AvailablePairs() and X.compute() do without."
            )
        check_filling(pca)
        found = dict(pca._map(entries_of_client, rows_of(X, weight, shards), shards))
        means, _ = pooled_means(list(found.values()))
        weights = np.ones(X.shape[0]) if weight is None else weight
        n, of_rows = float(weights.sum()), dict.fromkeys(found, 0.0)
        for label, at in shards:
            of_rows[label] += float(weights[at].sum())
        X = X.astype(float_dtype(X), copy=False)

        def summarise(query: Subspace) -> tuple[list[Any], Seen]:
            pca._reset()
            log = pca.communication_.copy()
            labels = take_summaries(pca, filled_rows(X, query), weight, shards, "fit")
            if len(query.components):
                pca.communication_ = log  # what is sent has the covariances as well
                take_filled(pca, _with_covariances(pca, query, X, weight, shards).items())
            n_rows = np.array([of_rows[label] for label in labels])
            return labels, Seen(np.stack([found[label][1] for label in labels]), n_rows)

        record_means(pca, len(shards), len(means))
        return fill_in_rounds(pca, means_only(means, n), summarise)

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


def _with_covariances(
    pca: Any, query: Subspace, X: Any, weight: Any, shards: list[Any]
) -> dict[Any, Site]:
    """Clients with the conditional covariance of what was missing in their summaries."""
    clients = dict(pca._clients)

    def work(label: Any, rows: Any, weights: Any) -> Site:
        site = clients[label]
        return site._replace(summary=with_covariance(site.summary, rows, weights, query))

    return clients | dict(pca._map(work, rows_of(X, weight, shards), shards))


def fill_in_rounds(
    pca: Any,
    query: Subspace,
    summarise: Callable[[Subspace], tuple[list[Any], Seen]],
) -> list[Any]:
    """The rounds that the parameter asks for, by summaries wherever the rows are.

    ``summarise(query)`` lets clients fill their rows in and merges the summaries of them; it
    returns their labels, and what is there of their rows.
    """
    labels: list[Any] = []
    for _ in range(pca.missing.n_rounds + 1):
        _record_query(pca, query, len(labels))
        labels, seen = summarise(query)
        _show_filled(pca, query, seen)
        known = pca._values()["subspace_"]._part(pca.n_components_)
        query = in_float64(known)._replace(site=None)
    return labels


def take_filled(pca: Any, found: Iterable[tuple[Any, Site]]) -> None:
    """Merge the summaries of filled rows that clients have sent."""
    pca._reset()
    pca._clients = dict(found)
    pca._merge_all()
    pca.clients_ = sorted(pca._clients, key=label_order)


def _show_filled(pca: Any, query: Subspace, seen: Seen) -> None:
    """Set the fitted attributes: the variances that whole rows would have had."""
    subspace = pca._values()["subspace_"]
    # rows of clients that fade count for fewer, whatever is missing in them
    share = subspace.n_samples / seen.rows.sum()
    seen = seen.times(share)
    n_missing = seen.rows.sum() - seen.entries.sum(axis=0)
    n, d = subspace.n_samples, subspace.n_features
    rank, most = pca.n_components, int(np.ceil(seen.entries.sum() / n)) - 1
    if rank != HELD_OUT:
        check_entries_enough(n, d, pca.n_components_, float(n_missing.sum()))
    if len(query.components):
        subspace = with_unseen_noise(subspace, n_missing, noise_of(query))
    else:
        warn_of_groups(groups_apart(subspace, seen), getattr(pca, "feature_names_in_", None))
        subspace = unattenuated(subspace, seen)
        most = min(most, subspace.n_components // 2)  # the least variances are not of a model
    if rank == HELD_OUT:  # by rows of which as many have two columns both
        rank = held_out_components(subspace, n * float(seen.entries.sum() / n / d) ** 2, most)
    pca._set_fitted(subspace, rank, pca.n_samples_)


def record_means(pca: Any, n_clients: int, d: int) -> None:
    """Note the first round: means and counts of entries, and the means of all."""
    up, down = [Message(2 * d, 16 * d)] * n_clients, [Message(d, 8 * d)] * n_clients
    pca.communication_.record(up, down)


def _record_query(pca: Any, query: Subspace, n_clients: int) -> None:
    """Note a query that goes down; that of means belongs to the first round."""
    k, d = query.components.shape
    if k:
        n_floats = k * d + d + k + 1
        pca.communication_.record(down=[Message(n_floats, 8 * n_floats)] * n_clients)
