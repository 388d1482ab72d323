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
from ..privacy._rows import ClippedRows
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


def _clipped(X: Any, terms: Terms) -> ClippedRows:
    """Rows as they may be used."""
    return ClippedRows.of(X, terms.center, terms.row_norm)


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
    mechanism, n_products = estimator.mechanism, estimator.n_rounds + 1

    def client(X: Any, who: Site) -> PrivateClient:
        d = X.shape[1]
        costs = mechanism.costs(d, n_products)
        terms = mechanism.terms(X, costs)
        rows, total = _clipped(X, terms), np.zeros(d)
        if costs.mean is not None:
            mu2 = mechanism.cost(costs, d, 0)
            make = partial(mechanism.noisy_sum, rows.sum(), terms)
            total = who.release("sum", mechanism, mu2, make)
        return PrivateClient(who.name, rows, mechanism, terms, (), total)

    def moments(site, X, *, who):
        message = client(X, who).moments()
        who.state_spent(mechanism)
        return {"message": message}

    def released(query_of):
        @wraps(query_of, updated=())
        def work(site, X, *arguments, who):
            d = X.shape[1]
            query, asked = query_of(site, d, *arguments), client(X, who)
            mu2 = mechanism.cost(asked.terms.costs._replace(mean=None), d)
            make = partial(query.released, asked)
            release = who.release(query.kind, mechanism, mu2, make, query.V)
            return {"message": query.about_mean(asked, release)}

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
    """What a site adds to secure sums, charged to its ledger."""

    def __init__(self, mechanism: Mechanism, secure: SecureAggregation, n_products: int):
        self.mechanism, self.n_products = mechanism, n_products
        self.n_shares = secure.threshold if mechanism.trust == "sum" else 1

    def task(self, work: Callable, times: int = 1) -> Task:
        """A release that is added up."""
        return Task(work, times, reads=CLIPPED, grids=self.grids)

    def terms(self, d: int) -> Terms:
        """Bounds of the rows and the noise of one site."""
        share = 1 / self.mechanism.n_releases
        costs = self.mechanism.costs(d, self.n_products, share)
        return self.mechanism.terms(np.empty((0, d)), costs, self.n_shares)

    def grids(self, bounds: Bounds) -> dict[str, Grid]:
        """Grids of what the sites add up, which their bounds and public numbers tell."""
        n, terms = 2.0**bounds.rows, self.terms(bounds.n_features)
        products = n * terms.row_norm**2 + DEVIATIONS * terms.product_std
        total = n * terms.row_norm
        if terms.costs.mean is not None:
            total += DEVIATIONS * terms.mean_std
        of = {"count": n, "sum": total, "products": products}
        noise = math.isfinite(self.mechanism.epsilon)  # which is on a grid
        return {name: Grid(exponent_of(bound), exact=noise) for name, bound in of.items()}

    def moments(self, site: str, X: Any, *, who: Site) -> dict[str, np.ndarray]:
        """Sum of the rows about the public centre, and their number."""
        n, d = X.shape
        terms, total = self.terms(d), np.zeros(d)
        if terms.costs.mean is not None:
            mu2 = self.mechanism.cost(terms.costs, d, 0, self.n_shares)

            def make(rng: np.random.Generator) -> np.ndarray:
                return self.mechanism._noisy(_clipped(X, terms).sum(), terms.mean_std, rng)

            total = self.release(who, Moments.kind, mu2, make)
        who.state_spent(self.mechanism)
        return {"sum": total, "count": np.array([float(n)])}

    def product(self, who: Site, kind: str, d: int, make: Callable) -> dict[str, np.ndarray]:
        """One release of the second moment, or of a product with it."""
        costs = self.terms(d).costs._replace(mean=None)
        mu2 = self.mechanism.cost(costs, d, n_shares=self.n_shares)
        return {"products": self.release(who, kind, mu2, make)}

    def release(self, who: Site, kind: str, mu2: float, make: Callable) -> np.ndarray:
        """A release of its own, whatever was released before."""
        new = np.frombuffer(os.urandom(32), np.uint8)
        return who.release(kind, self.mechanism, mu2, make, new)

    def first(self) -> dict[str, Task]:
        """What begins a fit."""
        return {
            "bounds": Task(announced, reads="summary"),
            Moments.kind: self.task(self.moments),
        }


def private_second_moments(estimator: FederatedPCA, secure: SecureAggregation) -> dict[str, Task]:
    """What a site adds to the one sum of `FederatedPCA` with a mechanism."""
    releases = Releases(estimator.mechanism, secure, 1)

    def second_moments(site, X, *, who):
        d = X.shape[1]
        terms = releases.terms(d)

        def make(rng: np.random.Generator) -> np.ndarray:
            rows = _clipped(X, terms)
            columns = estimator.mechanism.noisy_columns(rows, slice(0, d), terms, rng)
            return columns[np.triu_indices(d)]

        return releases.product(who, "second_moments", d, make)

    return {**releases.first(), "second_moments": releases.task(second_moments)}


def private_sums_of_rounds(
    estimator: FederatedPowerPCA, secure: SecureAggregation
) -> dict[str, Task]:
    """What a site adds to the sums of `FederatedPowerPCA` with a mechanism."""
    releases = Releases(estimator.mechanism, secure, estimator.n_rounds + 1)

    def released(kind):
        def work(site, X, V, *, who):
            d = X.shape[1]
            check_basis(V, d, min(estimator.n_components or d, d))
            terms, query = releases.terms(d), kind(V, np.zeros(d))
            rows = _clipped(X, terms)
            client = PrivateClient(0, rows, releases.mechanism, terms, (), np.zeros(d))
            return releases.product(who, kind.kind, d, partial(query.released, client))

        return work

    return {
        **releases.first(),
        TimesScatter.kind: releases.task(released(TimesScatter), estimator.n_rounds),
        Variances.kind: releases.task(released(Variances)),
    }


class PrivateSums(Rounds):
    """Rounds of secure sums of releases, about the mean of all."""

    def __init__(self, sums: SecureSums, releases: Releases):
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
        terms = self.releases.terms(len(total))
        return PrivateClient("all sites", rows, self.releases.mechanism, terms, (), total)


def fit_private_sum(estimator: FederatedPCA, sums: SecureSums) -> FederatedPCA:
    """Fit `FederatedPCA` with a mechanism by one secure sum of second moments."""
    mechanism, releases = estimator.mechanism, Releases(estimator.mechanism, sums.secure, 1)
    rounds = PrivateSums(sums, releases)
    count, total = rounds.sum(Moments(), [])[-1], rounds.sum_of_rows
    d = len(total)
    check_at_most_features(estimator.n_components, d)
    above = sums.sum("second_moments", {"products": (d * (d + 1) // 2,)})["products"]
    terms, keep = releases.terms(d), private_directions(estimator._directions_needed(), d)
    M, n_rows = iter([symmetric(above, d)]), max(1, round(count))
    known = None if terms.costs.mean is None else total
    summary = mechanism.summary(M, known, n_rows, terms, keep, sums.dtype)
    mu2 = max(spent for spent, _ in sums.spent.values())
    summary = summary._replace(privacy=stated(mechanism, mu2))
    fitted = FederatedPCA.from_subspaces([summary], shown_first(estimator))
    fitted.set_params(**estimator.get_params(deep=False))
    fitted.communication_ = sums.log
    return shown(fitted, sums, show_above_noise(fitted, terms, len(sums.names)))
