"""Estimators with a mechanism at sites: what a site releases, and what the server is told of it.

To secure sums each site adds one release of its own. It knows that a sum has at least ``threshold``
sites, so that with ``trust="sum"`` each adds one share in so many of the noise. Messages are about
the public centre and on the grid of their noise; the mean of all is taken off their sum. Nothing is
sent twice: of two sums with the same message of some sites the difference would have the noise of
the others alone.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any

import numpy as np
from sklearn.base import clone

from .._validation.checks import check_at_most_features
from ..communication._channel import exponent_of
from ..federated import FederatedPCA
from ..federated._private import (
    Release,
    norm_found,
    private_directions,
    private_summary,
    show_above_noise,
    shown_first,
    stated,
)
from ..privacy import Mechanism, PrivacyNoiseWarning
from ..privacy._accounts import Account, Accounts
from ..privacy._mechanism import Terms
from ..rounds import FederatedPowerPCA
from ..rounds._private_rounds import PrivateClient
from ..rounds._queries import Moments, Query, TimesScatter, Variances
from ._questions import Task, check_basis
from ._secure import BOUNDS, Bounds, Grid, SecureAggregation
from ._secure_fits import Rounds, symmetric
from ._site_policy import Site
from ._sites import SecureSums, Sites

# Deviations of the noise beyond which a message does not fit the public scale.
DEVIATIONS = 64
# What questions to a site with a mechanism read.
CLIPPED = "rows: each is cut to the length that the mechanism's noise is made for"


# -------------------------------------------------------------------- messages of single sites


def private_summaries(estimator: FederatedPCA) -> dict[str, Task]:
    """What a site does about the one question of `FederatedPCA` with a mechanism."""
    mechanism = estimator.mechanism

    def summary(site: str, X: Any, *, who: Site) -> dict[str, Any]:
        d = X.shape[1]
        costs = mechanism.costs(d, 1, 1 / mechanism.n_releases)
        mu2 = mechanism.cost(costs, d)
        keep = private_directions(clone(estimator)._directions_needed(), d)

        def make(rng: np.random.Generator) -> np.ndarray:
            seeds = tuple(int(word) for word in rng.integers(2**32, size=4))
            release = Release(mechanism, mechanism.terms(X, costs), X, seeds, keep)
            found = private_summary(site, release)
            who.state_spent(mechanism)
            privacy = stated(mechanism, who.privacy["mu2"], norm_found(found))
            return np.frombuffer(found._replace(privacy=privacy).to_bytes(), np.uint8)

        return {"summary": who.release("summary", mechanism, mu2, make)}

    return {"summary": Task(summary, reads=CLIPPED)}


def private_rounds(
    estimator: FederatedPowerPCA, products: Callable[..., Query], variances: Callable[..., Query]
) -> dict[str, Task]:
    """What a site does about each kind of question of `FederatedPowerPCA` with a mechanism.

    ``products(site, d, *arguments)`` and ``variances`` make checked queries.
    """
    releases = Releases(estimator.mechanism, estimator.n_rounds + 1)

    def moments(site, X, *, who):
        return {"message": releases.client(X, who).moments()}

    def released(query_of):
        @wraps(query_of, updated=())
        def work(site, X, *arguments, who):
            query, client = query_of(site, X.shape[1], *arguments), releases.client(X, who)
            return {"message": query.about_mean(client, releases.product(query, client, who))}

        return work

    clipped = partial(Task, reads=CLIPPED)
    return {
        Moments.kind: clipped(moments),
        TimesScatter.kind: clipped(released(products), estimator.n_rounds, fixed=1),
        Variances.kind: clipped(released(variances), fixed=1),
    }


def shown(fitted: Any, sites: Sites, message: str | None) -> Any:
    """A fit with what the sites state to have spent, also those that were left out later.

    A warning if there is a message: what they released looks like noise.
    """
    of = {site: Account(site, 1.0, mu2) for site, (mu2, _) in sites.spent.items()}
    delta = max(delta for _, delta in sites.spent.values())
    fitted._accounts = Accounts(of, 1, delta, "the ledgers of the sites")
    if message is not None:
        warnings.warn(message, PrivacyNoiseWarning, stacklevel=2)
    return fitted


# -------------------------------------------------------------------- secure sums


def announced(site: str, X: Any) -> dict[str, np.ndarray]:
    """What a site announces: a power of two of the number of its rows, which is public."""
    return {BOUNDS: Bounds.of_numbers(*X.shape).vector}


class Releases:
    """What a site releases: messages, or with ``secure`` what it adds to secure sums."""

    def __init__(
        self, mechanism: Mechanism, n_products: int, secure: SecureAggregation | None = None
    ):
        self.mechanism, self.n_products, self.secure = mechanism, n_products, secure
        self.n_shares = secure.threshold if secure and mechanism.trust == "sum" else 1

    def task(self, work: Callable, times: int = 1) -> Task:
        """A release that is added up."""
        return Task(work, times, reads=CLIPPED, grids=self.grids)

    def terms(self, X: Any) -> Terms:
        """Bounds of the rows and the noise of one site; of sums they do not depend on the rows."""
        share, d = 1 / self.mechanism.n_releases, X.shape[1]
        costs = self.mechanism.costs(d, self.n_products, share)
        rows = X if self.secure is None else np.empty((0, d))
        return self.mechanism.terms(rows, costs, self.n_shares)

    def grids(self, bounds: Bounds) -> dict[str, Grid]:
        """Grids of what the sites add up, which their bounds and public numbers tell."""
        n, terms = 2.0**bounds.rows, self.terms(np.empty((0, bounds.n_features)))
        products = n * terms.row_norm**2 + DEVIATIONS * terms.product_std
        total = n * terms.row_norm
        if terms.costs.mean is not None:
            total += DEVIATIONS * terms.mean_std
        of = {"count": n, "sum": total, "products": products}
        noise = math.isfinite(self.mechanism.epsilon)  # which is on a grid
        return {name: Grid(exponent_of(bound), exact=noise) for name, bound in of.items()}

    def client(self, X: Any, who: Site, total: np.ndarray | None = None) -> PrivateClient:
        """The site as a client that has released the sum of its rows, or another ``total``."""
        terms, mechanism = self.terms(X), self.mechanism
        rows = terms.clipped(X)
        if total is None and terms.costs.mean is not None:
            make = partial(mechanism._noisy, rows.sum(), terms.mean_std)
            total = self.release(who, "sum", terms.costs, make, X.shape[1], 0)
        who.state_spent(mechanism)
        total = np.zeros(X.shape[1]) if total is None else total
        return PrivateClient(who.name, rows, mechanism, terms, (), total)

    def moments(self, site: str, X: Any, *, who: Site) -> dict[str, np.ndarray]:
        """Sum of the rows about the public centre, and their number."""
        return {"sum": self.client(X, who).total, "count": np.array([float(X.shape[0])])}

    def product(self, query: Any, client: PrivateClient, who: Site) -> np.ndarray:
        """One release of a product with the second moment."""
        make, costs = partial(query.released, client), client.terms.costs._replace(mean=None)
        return self.release(who, query.kind, costs, make, len(client.total), 1, query.V)

    def release(
        self, who: Site, kind: str, costs: Any, make: Callable, d: int, n: int, *of: np.ndarray
    ) -> np.ndarray:
        """A release of n products, to sums of its own whatever was released before."""
        mu2 = self.mechanism.cost(costs, d, n, self.n_shares)
        new = () if self.secure is None else (np.frombuffer(os.urandom(32), np.uint8),)
        return who.release(kind, self.mechanism, mu2, make, *(new or of))

    def first(self) -> dict[str, Task]:
        """What begins a fit by sums."""
        return {
            "bounds": Task(announced, reads="summary"),
            Moments.kind: self.task(self.moments),
        }


def private_second_moments(estimator: FederatedPCA, secure: SecureAggregation) -> dict[str, Task]:
    """What a site adds to the one sum of `FederatedPCA` with a mechanism."""
    releases = Releases(estimator.mechanism, 1, secure)

    def second_moments(site, X, *, who):
        d = X.shape[1]
        client = releases.client(X, who, np.zeros(d))

        def make(rng: np.random.Generator) -> np.ndarray:
            columns = estimator.mechanism.noisy_columns(client.rows, slice(0, d), client.terms, rng)
            return columns[np.triu_indices(d)]

        costs = client.terms.costs._replace(mean=None)
        return {"products": releases.release(who, "second_moments", costs, make, d, 1)}

    return {**releases.first(), "second_moments": releases.task(second_moments)}


def private_sums_of_rounds(
    estimator: FederatedPowerPCA, secure: SecureAggregation
) -> dict[str, Task]:
    """What a site adds to the sums of `FederatedPowerPCA` with a mechanism."""
    releases = Releases(estimator.mechanism, estimator.n_rounds + 1, secure)

    def released(kind):
        def work(site, X, V, *, who):
            d = X.shape[1]
            check_basis(V, d, min(estimator.n_components or d, d))
            client = releases.client(X, who, np.zeros(d))
            return {"products": releases.product(kind(V, np.zeros(d)), client, who)}

        return work

    return {
        **releases.first(),
        TimesScatter.kind: releases.task(released(TimesScatter), estimator.n_rounds),
        Variances.kind: releases.task(released(Variances)),
    }


class PrivateSums(Rounds):
    """Rounds of secure sums of releases, about the mean of all."""

    def __init__(self, sums: Any, releases: Releases):
        super().__init__(sums)
        self.releases = releases

    def total(self, query: Any) -> np.ndarray:
        """Sum of the answers of all sites to a query."""
        if isinstance(query, Moments):
            total = super().total(query)
            self.sum_of_rows, self.count = total[:-1], total[-1]
            return self._all().moments()
        k = len(query.V)
        shape = (k**2 + 1,) if isinstance(query, Variances) else query.V.shape
        released = self.sites.sum(query.kind, {"products": shape}, query.V)["products"]
        return query.about_mean(self._all(), released)

    def _all(self) -> PrivateClient:
        """All sites as one client, whose sum was released."""
        total, rows = self.sum_of_rows, SimpleNamespace(n_rows=self.count)
        terms = self.releases.terms(total[None])
        return PrivateClient("all sites", rows, self.releases.mechanism, terms, (), total)


def fit_private_sum(estimator: FederatedPCA, sums: SecureSums) -> FederatedPCA:
    """Fit `FederatedPCA` with a mechanism by one secure sum of second moments."""
    mechanism, releases = estimator.mechanism, Releases(estimator.mechanism, 1, sums.secure)
    rounds = PrivateSums(sums, releases)
    count, total = rounds.sum(Moments(), [])[-1], rounds.sum_of_rows
    d = len(total)
    check_at_most_features(estimator.n_components, d)
    above = sums.sum("second_moments", {"products": (d * (d + 1) // 2,)})["products"]
    terms, keep = releases.terms(total[None]), private_directions(estimator._directions_needed(), d)
    M, n_rows = iter([symmetric(above, d)]), max(1, round(count))
    known = None if terms.costs.mean is None else total
    summary = mechanism.summary(M, known, n_rows, terms, keep, sums.dtype)
    mu2 = max(spent for spent, _ in sums.spent.values())
    summary = summary._replace(privacy=stated(mechanism, mu2))
    fitted = FederatedPCA.from_subspaces([summary], shown_first(estimator))
    fitted.set_params(**estimator.get_params(deep=False))
    return shown(fitted, sums, show_above_noise(fitted, terms, len(sums.names)))
