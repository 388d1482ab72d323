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
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from sklearn.base import clone

from ..communication._channel import exponent_of
from ..federated import FederatedPCA, FederatedScaler
from ..federated import _private as releasing
from ..federated._summaries import fitted_on
from ..privacy import Mechanism, PrivacyNoiseWarning, ScalerNoise
from ..privacy._ledger import Account, Accounts
from ..privacy._mechanism import Terms
from ..privacy._scaler_noise import ROUNDS
from ..rounds import FederatedPowerPCA
from ..rounds._queries import Moments, PrivateClient, TimesScatter, Variances
from ..summary import Subspace
from ._estimators import Secure, Tasks, summary_received, symmetric
from ._messages import Answer
from ._questions import RefusedError, Task
from ._secure import Bounds, Grid, SecureAggregation, announced
from ._site_policy import Site
from ._sites import SecureSums, Sites

# Deviations of the noise beyond which a message does not fit the public scale.
DEVIATIONS = 64
# What questions to a site with a mechanism read.
CLIPPED = "rows: each is cut to the length that the mechanism's noise is made for"


# -------------------------------------------------------------------- messages of single sites


def private_summaries(estimator: FederatedPCA) -> Tasks:
    """What a site does about the one question of `FederatedPCA` with a mechanism."""
    mechanism = estimator.mechanism

    def summary(site: str, X: Any, *, who: Site) -> dict[str, Any]:
        d = X.shape[1]
        costs = mechanism.costs(d, 1, 1 / mechanism.n_releases)
        mu2 = mechanism.cost(costs, d)
        keep = releasing.private_directions(clone(estimator)._directions_needed(), d)

        def make(rng: np.random.Generator) -> np.ndarray:
            seeds = tuple(int(word) for word in rng.integers(2**32, size=4))
            release = releasing.Release(mechanism, mechanism.terms(X, costs), X, seeds, keep)
            found = releasing.private_summary(site, release)
            who.state_spent(mechanism)
            privacy = releasing.stated(mechanism, who.privacy["mu2"], releasing.norm_found(found))
            return np.frombuffer(found._replace(privacy=privacy).to_bytes(), np.uint8)

        return {"summary": who.release("summary", mechanism, mu2, make)}

    return {"summary": Task(summary, reads=CLIPPED)}


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


def _number(site: str, X: Any) -> dict[str, np.ndarray]:
    """What a site announces: a power of two of the number of its rows, which is public."""
    return announced(*X.shape)


_ANNOUNCED = {"bounds": Task(_number, reads="summary")}


def of_release(secure: Secure, *arguments: np.ndarray) -> tuple[np.ndarray, ...]:
    """What a release depends on; to secure sums it is new whatever was released before."""
    return arguments if secure is None else (np.frombuffer(os.urandom(32), np.uint8),)


class Releases:
    """What a site releases: messages, or with ``secure`` what it adds to secure sums."""

    def __init__(self, mechanism: Mechanism, n_products: int, secure: Secure = None):
        self.mechanism, self.n_products, self.secure = mechanism, n_products, secure
        self.n_shares = secure.threshold if secure and mechanism.trust == "sum" else 1

    def task(self, work: Callable, times: int = 1, rank: Any = None) -> Task:
        """A release that is added up."""
        return Task(work, times, reads=CLIPPED, grids=self.grids, rank=rank)

    def terms(self, d: int) -> Terms:
        """Bounds of rows of d columns, and the noise of one site, which depend on no row."""
        costs = self.mechanism.costs(d, self.n_products, 1 / self.mechanism.n_releases)
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
        (n, d), terms = X.shape, self.terms(X.shape[1])
        total = np.zeros(d)
        if terms.costs.mean is not None:
            make = partial(self.mechanism.noisy_sum, terms.clipped(X), terms)
            total = self.release(who, "sum", terms, make, d)
        return {"sum": total, "count": np.array([float(n)])}

    def release(
        self, who: Site, kind: str, terms: Terms, make: Callable, d: int, *of: np.ndarray
    ) -> np.ndarray:
        """A release of the sum, or of a product."""
        is_sum = kind == "sum"
        costs = terms.costs if is_sum else terms.costs._replace(mean=None)
        mu2 = self.mechanism.cost(costs, d, int(not is_sum), self.n_shares)
        return who.release(kind, self.mechanism, mu2, make, *of_release(self.secure, *of))

    def first(self) -> Tasks:
        """What begins a fit by sums."""
        begins = {} if self.secure is None else _ANNOUNCED
        return {**begins, Moments.kind: self.task(self.moments)}

    def all_sites(self, total: np.ndarray, count: float) -> PrivateClient:
        """All sites as one client, the sum of whose rows was released."""
        rows, of = SimpleNamespace(n_rows=count), (self.mechanism, self.terms(len(total)))
        return PrivateClient("all sites", rows, *of, (), total)


def private_second_moments(estimator: FederatedPCA, secure: SecureAggregation) -> Tasks:
    """What a site adds to the one sum of `FederatedPCA` with a mechanism."""
    releases = Releases(estimator.mechanism, 1, secure)

    def second_moments(site, X, *, who):
        d, terms = X.shape[1], releases.terms(X.shape[1])
        rows = terms.clipped(X)

        def make(rng: np.random.Generator) -> np.ndarray:
            columns = estimator.mechanism.noisy_columns(rows, slice(0, d), terms, rng)
            return columns[np.triu_indices(d)]

        return {"products": releases.release(who, "second_moments", terms, make, d)}

    return {**releases.first(), "second_moments": releases.task(second_moments)}


def private_rounds(estimator: FederatedPowerPCA, secure: Secure = None) -> Tasks:
    """What a site releases in rounds of `FederatedPowerPCA` with a mechanism.

    It is about the public centre; the server, which knows the sum of all, takes their mean off.
    """
    releases = Releases(estimator.mechanism, estimator.n_rounds + 1, secure)

    def released(kind):
        def work(site, X, V, *, who):
            d, terms = X.shape[1], releases.terms(X.shape[1])
            of = site, terms.clipped(X), estimator.mechanism, terms, (), np.zeros(d)
            make = partial(kind(V, np.zeros(d)).released, PrivateClient(*of))
            return {"products": releases.release(who, kind.kind, terms, make, d, V)}

        return work

    def rank(d):
        return estimator.n_components or d

    return {
        **releases.first(),
        TimesScatter.kind: releases.task(released(TimesScatter), estimator.n_rounds, rank),
        Variances.kind: releases.task(released(Variances), rank=rank),
    }


def fit_private(estimator: FederatedPCA, sites: Sites) -> FederatedPCA:
    """Fit `FederatedPCA` with a mechanism, by summaries or by one secure sum of second moments."""
    releases = Releases(estimator.mechanism, 1, sites.secure)
    if isinstance(sites, SecureSums):
        summaries, n_sources = [_summary_of_sums(estimator, sites, releases)], len(sites.names)
    else:
        found = sites.ask("summary", partial(summary_received, private=True))
        summaries = [summary._replace(site=site) for site, summary in found.items()]
        n_sources = 1
    fitted = fitted_on(estimator, summaries)
    terms = releases.terms(sites.n_features)
    return shown(fitted, sites, releasing.show_above_noise(fitted, terms, n_sources))


def _summary_of_sums(estimator: FederatedPCA, sums: SecureSums, releases: Releases) -> Subspace:
    """Summary of all sites, of which each has released its second moment."""
    d = sums.n_features
    total, (count,) = sums.sum(Moments.kind, {"sum": (d,), "count": (1,)}).values()
    above = sums.sum("second_moments", {"products": (d * (d + 1) // 2,)})["products"]
    terms, keep = releases.terms(d), releasing.private_directions(estimator._directions_needed(), d)
    M, n_rows = iter([symmetric(above, d)]), max(1, round(float(count)))
    known = None if terms.costs.mean is None else total
    summary = estimator.mechanism.summary(M, known, n_rows, terms, keep, sums.dtype)
    mu2 = max(spent for spent, _ in sums.spent.values())
    return summary._replace(privacy=releasing.stated(estimator.mechanism, mu2))


# -------------------------------------------------------------------- FederatedScaler


def private_scales(mechanism: ScalerNoise, secure: Secure = None) -> Tasks:
    """What a site adds to the sums of `FederatedScaler` with a mechanism."""
    mechanism.validate()
    n_shares = 1 if secure is None else secure.threshold

    def size(site: str, X: Any) -> dict[str, np.ndarray]:
        return {"n_rows": np.full(X.shape[1], float(X.shape[0]))}

    def task(kind: str, turn: int) -> Task:
        def released(site: str, X: Any, *arguments: np.ndarray, who: Site) -> dict[str, np.ndarray]:
            _check_lengths(mechanism, X.shape[1], *arguments[1:])

            def make(rng: np.random.Generator) -> np.ndarray:
                return mechanism._message(kind, X, turn, *arguments, n_shares=n_shares, rng=rng)

            mu2 = mechanism._cost_of(kind, turn, X.shape[1], n_shares)
            of = of_release(secure, *arguments)
            return {kind: who.release(_in_turn(kind, turn), mechanism, mu2, make, *of)}

        def grids(bounds: Bounds) -> dict[str, Grid]:
            noise = DEVIATIONS * mechanism._std(kind, turn, bounds.n_features)
            bound = exponent_of(2.0**bounds.rows + noise)
            return {kind: Grid(bound, exact=math.isfinite(mechanism.epsilon))}

        sent = ("about",) if kind == "counts" else ("about", "lengths")
        return Task(released, reads=CLIPPED, grids=grids, arguments=sent)

    kinds = [(kind, turn) for turn in range(len(ROUNDS)) for kind in ("counts", "sums")]
    exact = Task(size, reads="summary", grids=lambda b: {"n_rows": Grid(b.rows, exact=True)})
    tasks = {"n_rows": exact} | {_in_turn(*which): task(*which) for which in kinds}
    return tasks if secure is None else {**_ANNOUNCED, **tasks}


def _in_turn(kind: str, turn: int) -> str:
    return f"{kind}_{turn + 1}"


def _check_lengths(mechanism: ScalerNoise, d: int, lengths: Any = None) -> None:
    """Raise unless a server's lengths are those of some round."""
    if lengths is None:
        return
    least, largest = mechanism._lengths[[0, -1]]
    if lengths.shape != (mechanism._n_groups(d),):
        raise RefusedError(f"the lengths must have shape ({mechanism._n_groups(d)},)")
    if not ((least <= lengths) & (lengths <= largest)).all():
        raise RefusedError(f"lengths must be from {least:g} to {largest:g}")


def fit_private_scales(scaler: FederatedScaler, sites: Sites) -> FederatedScaler:
    """Fit `FederatedScaler` with a mechanism by sums over sites.

    Without secure sums they are of the sites that are left in each round: a fit that began anew
    would ask them for more than their budgets hold.
    """
    mechanism: Any = scaler.mechanism
    mechanism.validate()
    of_each: dict[str, Any] = {}

    def check_size(answer: Answer, n: np.ndarray) -> None:
        answer.check_count(n[0])
        if (n != np.floor(n[0])).any():
            raise answer.refused("numbers of rows that are not one whole number")
        answer.agree("number of features", len(n))

    found = sites.added("n_rows", {"n_rows": (None,)}, (), check_size, of_each=of_each)
    sizes = {site: float(n[0]) for site, (n,) in of_each.items()}  # where answers are seen
    n_rows, d = found["n_rows"][0], sites.n_features
    if not 1 <= n_rows < 2**53:
        raise RuntimeError(
            f"The sites' numbers of rows add up to {n_rows}, expected a number of rows."
        )

    def total(kind: str, turn: int, *arguments: np.ndarray) -> tuple[np.ndarray, float]:
        shapes, noise = {kind: mechanism._shape(kind, d)}, mechanism._std(kind, turn, d)

        def check(answer: Answer, found: np.ndarray) -> None:
            if np.abs(found).max() > sizes[answer.site] * (1 + 1e-9) + DEVIATIONS * noise:
                raise answer.refused("more than its rows and their noise add up to")

        if not sites.secure:
            sites.begin()  # with the sites that are left
        asked, sent = (_in_turn(kind, turn), shapes, arguments), np.hstack(arguments)
        found = sites.added(*asked, check, sites.log, sent)[kind]
        return found, sum(map(sizes.__getitem__, sites.members)) if sizes else n_rows

    n_sources: float = len(sites.names)
    if mechanism.trust == "sum":  # by secure sums only
        n_sources /= sites.secure.threshold
    found = mechanism._found(total, d, n_sources)
    scaler.n_features_in_ = d
    scaler._show(list(sites.names.values()), [found])
    return shown(scaler, sites, None)
