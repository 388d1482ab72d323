"""Secure sums of messages with noise: what a site releases to the sum, and what the server makes.

A site knows that a sum has at least ``threshold`` sites, so that with ``trust="sum"`` each adds one
share in so many of the noise. Messages are about the public centre and on the grid of their noise;
the mean of all is taken off their sum. Nothing is sent twice: of two sums with the same message of
some sites the difference would have the noise of the others alone.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from types import SimpleNamespace
from typing import Any

import numpy as np
from sklearn.base import clone

from .._validation.checks import check_at_most_features
from ..communication import Federation
from ..communication._fixed_point import exponent_of
from ..federated import FederatedPCA
from ..federated._private import private_directions, show_above_noise, shown_first, stated
from ..privacy import Mechanism
from ..privacy._mechanism import Terms
from ..privacy._rows import ClippedRows
from ..rounds import FederatedPowerPCA
from ..rounds._private_client import PrivateClient
from ..rounds._queries import Moments, TimesScatter, Variances
from ._estimators import until_nobody_is_lost
from ._private import CLIPPED, PrivateTask, show_spent, warn_of_noise
from ._questions import Task, check_basis
from ._rounds import by_rounds
from ._secure import SecureAggregation
from ._secure_bounds import BOUNDS, Bounds, Grid, Summed
from ._secure_fits import symmetric
from ._secure_site import Open
from ._secure_sums import SecureSums
from ._site_privacy import Site

# Deviations of the noise beyond which a message does not fit the public scale.
_DEVIATIONS = 64


@dataclass(frozen=True)
class PrivateSum(PrivateTask, Summed):
    """Work that is handed the `Site` in the place of its name, and added up."""


class _Releases:
    """What a site adds to secure sums, charged to its ledger."""

    def __init__(self, mechanism: Mechanism, secure: SecureAggregation, n_products: int):
        self.mechanism, self.n_products = mechanism, n_products
        self.n_shares = secure.threshold if mechanism.trust == "sum" else 1

    def task(self, work: Callable, times: int = 1) -> PrivateSum:
        """A release that is added up; its noise, if there is any, is on a grid."""
        on_grid = math.isfinite(self.mechanism.epsilon)
        return PrivateSum(work, times, reads=CLIPPED, grids=self.grids, on_grid=on_grid)

    def terms(self, d: int) -> Terms:
        """Bounds of the rows and the noise of one site."""
        share = 1 / self.mechanism.n_releases
        costs = self.mechanism.costs(d, self.n_products, share)
        return self.mechanism.terms(np.empty((0, d)), costs, self.n_shares)

    def clipped(self, X: Any, terms: Terms) -> ClippedRows:
        """Rows as they may be used."""
        return ClippedRows.of(X, terms.center, terms.row_norm)

    def bounds(self, site: str, X: Any) -> dict[str, np.ndarray]:
        """What the site announces: a power of two of the number of its rows, which is public."""
        return {BOUNDS: Bounds.of_numbers(*X.shape).vector}

    def grids(self, bounds: Bounds) -> dict[str, Grid]:
        """Grids of what the sites add up, which their bounds and public numbers tell."""
        n, terms = 2.0**bounds.rows, self.terms(bounds.n_features)
        products = n * terms.row_norm**2 + _DEVIATIONS * terms.product_std
        total = n * terms.row_norm
        if terms.costs.mean is not None:
            total += _DEVIATIONS * terms.mean_std
        of = {"count": n, "sum": total, "products": products}
        return {name: Grid(exponent_of(bound)) for name, bound in of.items()}

    def moments(self, site: Site, X: Any) -> dict[str, np.ndarray]:
        """Sum of the rows about the public centre, and their number."""
        n, d = X.shape
        terms, total = self.terms(d), np.zeros(d)
        if terms.costs.mean is not None:
            mu2 = self.mechanism.cost(terms.costs, d, 0, self.n_shares)

            def make(rng: np.random.Generator) -> np.ndarray:
                return self.mechanism._noisy(self.clipped(X, terms).sum(), terms.mean_std, rng)

            total = self.release(site, Moments.kind, mu2, make)
        site.state_spent(self.mechanism)
        return {"sum": total, "count": np.array([float(n)])}

    def product(self, site: Site, kind: str, d: int, make: Callable) -> dict[str, np.ndarray]:
        """One release of the second moment, or of a product with it."""
        costs = self.terms(d).costs._replace(mean=None)
        mu2 = self.mechanism.cost(costs, d, n_shares=self.n_shares)
        return {"products": self.release(site, kind, mu2, make)}

    def release(self, site: Site, kind: str, mu2: float, make: Callable) -> np.ndarray:
        """A release of its own, whatever was released before."""
        new = np.frombuffer(os.urandom(32), np.uint8)
        return site.release(kind, self.mechanism, mu2, make, new)

    def client(self, X: Any) -> PrivateClient:
        """Rows as rounds ask about them."""
        d = X.shape[1]
        terms = self.terms(d)
        return PrivateClient(0, self.clipped(X, terms), self.mechanism, terms, (), np.zeros(d))


@singledispatch
def private_secure_tasks(estimator: Any, secure: SecureAggregation) -> dict[str, Task]:
    """What a site adds to the secure sums of an estimator with a mechanism, by kind of question."""
    raise TypeError(
        "secure sums with a mechanism need FederatedPCA or FederatedPowerPCA, got "
        f"{type(estimator).__name__}."
    )


@singledispatch
def fit_private_by_sums(estimator: Any, sums: SecureSums) -> Any:
    """Fit an estimator with a mechanism by secure sums, at the server."""


def _agreed(releases: _Releases) -> dict[str, Task]:
    return {
        "bounds": Open(releases.bounds, reads="summary"),
        Moments.kind: releases.task(releases.moments),
    }


def _shown(fitted: Any, sums: SecureSums, message: str | None) -> Any:
    show_spent(fitted, sums.sites)
    fitted.communication_ = sums.sites.log
    warn_of_noise(message)
    return fitted


# -------------------------------------------------------------------- one second moment


@private_secure_tasks.register
def _(estimator: FederatedPCA, secure: SecureAggregation) -> dict[str, Task]:
    releases = _Releases(estimator.mechanism, secure, 1)

    def second_moments(site: Site, X: Any) -> dict[str, np.ndarray]:
        d = X.shape[1]
        terms = releases.terms(d)

        def make(rng: np.random.Generator) -> np.ndarray:
            rows = releases.clipped(X, terms)
            columns = estimator.mechanism.noisy_columns(rows, slice(0, d), terms, rng)
            return columns[np.triu_indices(d)]

        return releases.product(site, "second_moments", d, make)

    return {**_agreed(releases), "second_moments": releases.task(second_moments)}


@fit_private_by_sums.register
def _(estimator: FederatedPCA, sums: SecureSums) -> FederatedPCA:
    mechanism, releases = estimator.mechanism, _Releases(estimator.mechanism, sums.secure, 1)

    def fit() -> FederatedPCA:
        rounds = _PrivateSums(estimator, sums, releases)
        count = rounds.sum(Moments(), [])[-1]
        d = len(rounds.total)
        check_at_most_features(estimator.n_components, d)
        above = sums.sum("second_moments", {"products": (d * (d + 1) // 2,)})["products"]
        M = symmetric(above, d)
        terms, keep = releases.terms(d), private_directions(estimator._directions_needed(), d)
        total = None if terms.costs.mean is None else rounds.total
        dtype = sums.sites.dtype
        summary = mechanism.summary(iter([M]), total, max(1, round(count)), terms, keep, dtype)
        mu2 = max(spent for spent, _ in sums.sites.spent.values())
        summary = summary._replace(privacy=stated(mechanism, mu2))
        fitted = FederatedPCA.from_subspaces([summary], shown_first(estimator))
        fitted.set_params(**estimator.get_params(deep=False))
        return _shown(fitted, sums, show_above_noise(fitted, terms, len(sums.sites.names)))

    return until_nobody_is_lost(fit)


# -------------------------------------------------------------------- rounds


@private_secure_tasks.register
def _(estimator: FederatedPowerPCA, secure: SecureAggregation) -> dict[str, Task]:
    releases = _Releases(estimator.mechanism, secure, estimator.n_rounds + 1)

    def along(
        site: Site, X: Any, kind: type[TimesScatter] | type[Variances], V: np.ndarray
    ) -> dict[str, np.ndarray]:
        d = X.shape[1]
        check_basis(V, d, min(estimator.n_components or d, d))
        query, client = kind(V, np.zeros(d)), releases.client(X)
        return releases.product(site, kind.kind, d, lambda rng: query.released(client, rng))

    def times_scatter(site: Site, X: Any, V: np.ndarray) -> dict[str, np.ndarray]:
        return along(site, X, TimesScatter, V)

    def variances(site: Site, X: Any, V: np.ndarray) -> dict[str, np.ndarray]:
        return along(site, X, Variances, V)

    return {
        **_agreed(releases),
        TimesScatter.kind: releases.task(times_scatter, estimator.n_rounds),
        Variances.kind: releases.task(variances),
    }


class _PrivateSums(Federation):
    """Rounds of secure sums of releases, about the mean of all."""

    def __init__(self, estimator: Any, sums: SecureSums, releases: _Releases):
        super().__init__(log=sums.sites.log)
        self.mechanism, self.sums, self.releases = estimator.mechanism, sums, releases
        sums.begin()
        sums.private = True

    def sum(
        self, function: Any, clients: Sequence[tuple], broadcast: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the sum of the answers of all sites to a query."""
        self.n_rounds += 1
        if isinstance(function, Moments):
            self.sums.announce("bounds")
            found = self.sums.sum(function.kind, {"sum": (None,), "count": (1,)})
            self.total, (self.count,) = found["sum"], found["count"]
            return self._all().moments()
        k = len(function.V)
        shape = (k**2 + 1,) if isinstance(function, Variances) else function.V.shape
        released = self.sums.sum(function.kind, {"products": shape}, function.V)["products"]
        return function.about_mean(self._all(), released)

    def _all(self) -> PrivateClient:
        """All sites as one client, whose sum was released."""
        terms, rows = self.releases.terms(len(self.total)), SimpleNamespace(n_rows=self.count)
        return PrivateClient("all sites", rows, self.mechanism, terms, (), self.total)


@fit_private_by_sums.register
def _(estimator: FederatedPowerPCA, sums: SecureSums) -> FederatedPowerPCA:
    releases = _Releases(estimator.mechanism, sums.secure, estimator.n_rounds + 1)

    def fit() -> FederatedPowerPCA:
        rounds = _PrivateSums(estimator, sums, releases)
        fitted = by_rounds(clone(estimator), sums.sites, rounds)
        terms = releases.terms(fitted.components_.shape[1])
        return _shown(fitted, sums, fitted._message_of_noise(terms, len(sums.sites.names)))

    return until_nobody_is_lost(fit)
