"""Private rounds of the power method: what they cost, clients that add noise, and a warning."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._validation.checks import check_rows
from ..federated._private import check_all_rows, open_accounts, refuse_weight
from ..privacy import FedPowerNoise
from ..privacy._above_noise import edge, noise_message, spike_of_mean
from ..privacy._mechanism import Terms
from ..privacy._rows import ClippedRows


@dataclass(frozen=True)
class PrivateClient:
    """A client of the power method whose rows are clipped and whose messages carry noise.

    It centres its products by the mean of all clients and by its own noisy sum, which were
    released before: post-processing.
    """

    label: Any
    rows: Any
    mechanism: FedPowerNoise
    terms: Terms
    seeds: tuple[int, ...]
    total: np.ndarray  # the sum of the clipped rows, with noise

    @classmethod
    def of(
        cls, label: Any, rows: Any, mechanism: FedPowerNoise, terms: Terms, seeds: tuple[int, ...]
    ) -> PrivateClient:
        """Check and clip a client's rows."""
        rows = ClippedRows.of(check_rows(rows), terms.center, terms.row_norm)
        return cls.released(label, rows, mechanism, terms, seeds)

    @classmethod
    def released(
        cls,
        label: Any,
        rows: ClippedRows,
        mechanism: FedPowerNoise,
        terms: Terms,
        seeds: tuple[int, ...],
    ) -> PrivateClient:
        """A client of clipped rows, which has drawn the noise of their sum."""
        total = np.zeros(rows.X.shape[1])
        if terms.costs.mean is not None:
            total = mechanism.noisy_sum(rows.sum(), terms, np.random.default_rng([*seeds, 0]))
        return cls(label, rows, mechanism, terms, seeds, total)

    @property
    def n_samples(self) -> float:
        """Number of rows, which is public."""
        return float(self.rows.n_rows)

    @property
    def origin(self) -> np.ndarray:
        """The public centre."""
        return self.terms.origin(len(self.total))

    def noise(self, turn: int) -> np.random.Generator:
        """Where the noise of a round comes from; that of the sum has been drawn before."""
        return np.random.default_rng([*self.seeds, turn + 1])

    def moments(self) -> np.ndarray:
        """The noisy sum of the rows, which is the same whenever it is sent, and their number."""
        return np.append(self.total + self.n_samples * self.origin, self.n_samples)

    def about(self, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """From the centre to a mean, and the noisy sum of the clipped rows about that mean."""
        shift = mean - self.origin
        return shift, self.total - self.n_samples * shift


def check_private(pca: Any, mechanism: FedPowerNoise) -> None:
    """Raise where parameters of an estimator and its mechanism exclude each other."""
    mechanism.validate()
    mechanism.refuse_searches("rounds of products have one norm and centre for all")
    if pca.channel is not None and pca.channel.compares_clients:
        hides = "trust='sum' hides" if mechanism.trust == "sum" else "mechanism adds noise to"
        raise ValueError(
            f"{hides} the messages of clients, which channel={pca.channel!r} compares."
        )
    if pca.local_steps > 1:
        raise ValueError(
            "mechanism needs local_steps=1, because what a client makes orthonormal has no "
            f"bounded sensitivity, got {pca.local_steps}."
        )
    if not pca.center and (mechanism.mean != "fixed" or mechanism.center is not None):
        raise ValueError(
            f"center=False needs a mechanism with mean='fixed' and center=None, got {mechanism!r}."
        )
    if mechanism.trust == "sum" and pca.channel is not None and pca.channel.loses_clients:
        raise ValueError(
            "trust='sum' needs a channel that loses no client, with the noise that protects "
            f"the others, got {pca.channel!r}."
        )


def terms_of(pca: Any, X: Any, weight: Any, shards: list[tuple[Any, Any]]) -> Terms:
    """Bounds and noise of private clients, which are charged for all rounds."""
    refuse_weight(weight)
    mechanism, d, n_products = pca.mechanism, X.shape[1], pca.n_rounds + 1
    labels = [label for label, _ in shards]
    costs = mechanism.costs(d, n_products)
    mu2 = mechanism.cost(costs, d, n_products, len(shards))
    accounts = open_accounts(pca, fresh=True)
    accounts.check(labels, mechanism, mu2)
    check_all_rows(X, shards, pca.n_jobs)
    terms = mechanism.terms(X, costs, len(shards))
    accounts.charge(labels, mechanism, mu2)
    pca._accounts = accounts
    return terms


def message_of_noise(pca: Any, terms: Terms, n_clients: int) -> str | None:
    """Text of a warning if the last round found no more than in random directions."""
    rank, d = pca.components_.shape
    sources = math.sqrt(n_clients)
    size = pca.mechanism._OFF_DIAGONAL * terms.product_std * sources
    spike = 0.0
    if terms.costs.mean is not None:
        distance = float(np.linalg.norm(pca.subspace_.mean - terms.origin(d)))
        spike = spike_of_mean(distance, terms.mean_std * sources, d)  # that rounds converge to
    largest = float(pca.subspace_.singular_values.max(initial=0.0)) ** 2
    found = largest - pca.subspace_.scatter / d if rank < d else largest
    return noise_message(found, edge(size, rank, spike), rank)
