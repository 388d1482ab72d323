"""Rounds in which clients fill missing entries in by what all of them say, wherever they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .._base.batches import float_dtype
from .._dask import RowChunks
from ..communication._federation import Message
from ..summary import Subspace
from ..summary._held_out import held_out_components
from ..summary._merging import in_float64
from ._clients import label_order, rows_of
from ._conditional_fill import (
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
from ._refined import RefinesMixin


class FillingMixin(RefinesMixin):
    """What goes to the clients and comes back where ``missing`` is `ConditionalFill`.

    Each round is a query, the components, means and variances of all rows, and for it a summary of
    the rows of each client as it has filled them in.
    """

    missing: Any

    def _check_filling(self) -> None:
        """Raise where it is not known by how many components rows are filled in."""
        self._check_parameters()
        if self.n_components is None:
            raise ValueError(
                f"n_components must be a number or a share with missing={self.missing!r}, by which "
                "rows are filled in, got None."
            )

    def _filling_step(self, X: Any, weight: Any, shards: list[Any]) -> list[Any]:
        """The rounds over rows in this process."""
        if isinstance(X, RowChunks):
            raise TypeError(
                f"X is a dask.array, whose chunks missing={self.missing!r} does not fill in; "
                "AvailablePairs() and X.compute() do without."
            )
        self._check_filling()
        found = dict(self._map(entries_of_client, rows_of(X, weight, shards), shards))
        means, _ = pooled_means(list(found.values()))
        weights = np.ones(X.shape[0]) if weight is None else weight
        n, of_rows = float(weights.sum()), dict.fromkeys(found, 0.0)
        for label, at in shards:
            of_rows[label] += float(weights[at].sum())
        X = X.astype(float_dtype(X), copy=False)

        def summarise(query: Subspace) -> tuple[list[Any], np.ndarray, np.ndarray]:
            self._reset()
            log = self.communication_.copy()
            labels = self._step(filled_rows(X, query), weight, shards, "fit")
            if len(query.components):
                self.communication_ = log  # what is sent has the covariances as well
                self._take_filled(self._with_covariances(query, X, weight, shards).items())
            n_rows = np.array([of_rows[label] for label in labels])
            return labels, np.stack([found[label][1] for label in labels]), n_rows

        self._record_means(len(shards), len(means))
        return self._fill_in_rounds(means_only(means, n), summarise)

    def _with_covariances(
        self, query: Subspace, X: Any, weight: Any, shards: list[Any]
    ) -> dict[Any, Site]:
        """Clients with the conditional covariance of what was missing in their summaries."""
        clients = dict(self._clients)

        def work(label: Any, rows: Any, weights: Any) -> Site:
            site = clients[label]
            return site._replace(summary=with_covariance(site.summary, rows, weights, query))

        return clients | dict(self._map(work, rows_of(X, weight, shards), shards))

    def _fill_in_rounds(
        self,
        query: Subspace,
        summarise: Callable[[Subspace], tuple[list[Any], np.ndarray, np.ndarray]],
    ) -> list[Any]:
        """The rounds that the parameter asks for, by summaries wherever the rows are.

        ``summarise(query)`` lets clients fill their rows in and merges the summaries of them; it
        returns their labels, and the weights of their entries in each column and of their rows.
        """
        labels: list[Any] = []
        for _ in range(self.missing.n_rounds + 1):
            self._record_query(query, len(labels))
            labels, seen, n_rows = summarise(query)
            self._show_filled(query, seen, n_rows)
            known = self._values()["subspace_"]._part(self.n_components_)
            query = in_float64(known)._replace(site=None)
        return labels

    def _take_filled(self, found: Iterable[tuple[Any, Site]]) -> None:
        """Merge the summaries of filled rows that clients have sent."""
        self._reset()
        self._clients = dict(found)
        self._merge_all()
        self.clients_ = sorted(self._clients, key=label_order)

    def _show_filled(self, query: Subspace, seen: np.ndarray, n_rows: np.ndarray) -> None:
        """Set the fitted attributes: the variances that whole rows would have had."""
        subspace = self._values()["subspace_"]
        # rows of clients that fade count for fewer, whatever is missing in them
        seen, n_rows = (of * (subspace.n_samples / n_rows.sum()) for of in (seen, n_rows))
        n_missing = n_rows.sum() - seen.sum(axis=0)
        n, d = subspace.n_samples, subspace.n_features
        rank, most = self.n_components, int(np.ceil(seen.sum() / n)) - 1
        if rank != "held-out":
            check_entries_enough(n, d, self.n_components_, float(n_missing.sum()))
        if len(query.components):
            subspace = with_unseen_noise(subspace, n_missing, noise_of(query))
        else:
            warn_of_groups(
                groups_apart(subspace, seen, n_rows), getattr(self, "feature_names_in_", None)
            )
            subspace = unattenuated(subspace, seen, n_rows)
            most = min(most, subspace.n_components // 2)  # the least variances are not of a model
        if rank == "held-out":  # by rows of which as many have two columns both
            rank = held_out_components(subspace, n * float(seen.sum() / n / d) ** 2, most)
        self._set_fitted(subspace, rank, self.n_samples_)

    def _record_means(self, n_clients: int, d: int) -> None:
        """Note the first round: means and counts of entries, and the means of all."""
        up, down = [Message(2 * d, 16 * d)] * n_clients, [Message(d, 8 * d)] * n_clients
        self.communication_.record(up, down)

    def _record_query(self, query: Subspace, n_clients: int) -> None:
        """Note a query that goes down; that of means belongs to the first round."""
        k, d = query.components.shape
        if k:
            n_floats = k * d + d + k + 1
            self.communication_.record(down=[Message(n_floats, 8 * n_floats)] * n_clients)
