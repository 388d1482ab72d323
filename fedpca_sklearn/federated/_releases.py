"""Releases of private clients of `FederatedPCA`, which are merged as their summaries."""

from __future__ import annotations

import math
from abc import abstractmethod
from numbers import Integral
from typing import Any

import numpy as np

from .._kernels.sizes import kept_directions
from ..communication import Federation
from ..privacy._mechanism import Terms
from ..privacy._seeds import seeds_of
from ..privacy._useless import edge, edge_of_sum, noise_message
from ..summary import Subspace, merge_subspaces
from ._clients import StreamingClientsTransformer, rows_of
from ._local_fit import Site
from ._private import (
    Release,
    SpendsPrivacy,
    check_all_rows,
    private_summary,
    refuse_weight,
    stated,
    summary_of_sums,
)

# In the place of a client where only sums over clients are known.
_SUM = 0


class ReleasesMixin(SpendsPrivacy, StreamingClientsTransformer):
    """What private clients send, and what is said about its noise."""

    mechanism: Any
    random_state: Any
    n_jobs: int | None
    _clients: dict[Any, Site]
    _trust: str | None

    @abstractmethod
    def _directions_needed(self) -> int | float | None:
        """Directions that are wanted of each client."""

    @abstractmethod
    def _merge_all(self) -> None:
        """Merge what every client has sent and set the fitted attributes."""

    def _private_step(
        self, X: Any, weight: Any, shards: list[tuple[Any, Any]], fresh: bool
    ) -> list[Any]:
        """One release of each client, after its account has been charged for it."""
        refuse_weight(weight)
        mechanism, d = self.mechanism, X.shape[1]
        labels = [label for label, _ in shards]
        costs = mechanism.costs(d, 1, 1 / mechanism.n_releases)
        mu2 = mechanism.cost(costs, d, n_shares=len(shards))
        self._open_accounts(fresh).check(labels, mechanism, mu2)
        check_all_rows(X, shards, self.n_jobs)
        max_keep = self._private_directions(d)
        seeds = seeds_of(self.random_state)
        terms = mechanism.terms(X, costs, len(shards))
        accounts = self._charge(labels, mechanism, mu2, fresh)
        releases = [
            (label, Release(mechanism, terms, rows, (*seeds, *accounts.numbers(label)), max_keep))
            for label, rows, _ in rows_of(X, None, shards)
        ]
        if mechanism.trust == "sum":
            summary = summary_of_sums(Federation(self.n_jobs, log=self.communication_), releases)
            made = {_SUM: self._with_release(_SUM, summary, max_keep)}
        else:
            fitted = self._map(private_summary, releases, shards)
            made = {
                label: self._with_release(label, summary, max_keep) for label, summary in fitted
            }
        first = not self._clients
        self._clients = {**self._clients, **made}
        self._merge_all()
        if first:
            self._noise_message = self._message_of_noise(terms, terms.n_shares)
        return labels

    def _refuse_noise(self, summaries: list[Subspace]) -> None:
        """Raise where variances of rows are asked for, and some summaries have noise in theirs."""
        counted = isinstance(self.n_components, str)
        if (counted or self._asks()) and any(s.privacy is not None for s in summaries):
            what = f"n_components={self.n_components!r} takes"
            what = what if counted else "scale and partial_out take"
            raise ValueError(
                f"{what} variances for those of rows, and a summary has the noise of a privacy "
                "mechanism."
            )

    def _private_directions(self, d: int) -> int | None:
        """Directions that a client keeps of a private second moment; None: all."""
        wanted = self._directions_needed()
        return kept_directions(min(int(wanted), d), d) if isinstance(wanted, Integral) else None

    def _message_of_noise(self, terms: Terms, n_sources: int) -> str | None:
        """Text of a warning if the first releases of all clients together look like noise.

        Each summary has the noise of ``n_sources`` clients.
        """
        d, shares = len(self.mean_), math.sqrt(n_sources)
        summaries = [site.summary for site in self._clients.values()]
        size = self.mechanism._OFF_DIAGONAL * terms.product_std * shares
        spike = of_means = 0.0
        if terms.costs.mean is not None:  # n m m^T, of which m has noise, is taken off
            t = terms.mean_std * shares
            distances = [np.linalg.norm(s.mean - terms.origin(d)) for s in summaries]
            spike = float(max(distances)) * t * math.sqrt(d)
            if len(summaries) > 1:  # and the means of clients differ by their noise
                n = self.n_samples_ / len(summaries)
                of_means = (t * (math.sqrt(d) + math.sqrt(len(summaries) - 1))) ** 2 / n
                of_means = min(of_means, self.n_samples_ * terms.row_norm**2)
        spectra = [s.singular_values.astype(np.float64) ** 2 for s in summaries]
        noise = edge_of_sum(edge(size, d, spike), spectra, d) + of_means
        largest = float(self.subspace_.singular_values.max(initial=0.0)) ** 2
        return noise_message(largest, noise, d)

    def _with_release(self, label: Any, summary: Subspace, max_keep: int | None) -> Site:
        """The releases of a client so far, or of sums over clients, merged."""
        n_rows = round(summary.n_samples)
        if label in self._clients:
            before = self._clients[label]
            summary = merge_subspaces([before.summary, summary], max_keep)
            n_rows += before.n_rows
        mu2 = self._accounts.mu2(None if self._trust == "sum" else label)
        privacy = stated(self.mechanism, mu2)
        return Site(None, n_rows, summary._replace(privacy=privacy))
