"""Estimators with a mechanism at sites: what a site releases, and what the server is told of it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import clone

from ..federated import FederatedPCA
from ..federated._private import Release, norm_found, private_directions, private_summary, stated
from ..privacy import PrivacyNoiseWarning
from ..privacy._accounts import Account, Accounts
from ..privacy._rows import ClippedRows
from ..rounds import FederatedPowerPCA
from ..rounds._private_client import PrivateClient
from ..rounds._queries import Moments, TimesScatter, Variances
from ._messages import Answer, shown
from ._questions import Task
from ._site_privacy import Site
from ._sites import Sites

# Largest mu^2 that a site can have spent, other than infinity.
_LARGEST = 2.0**40
# What questions to a site with a mechanism read.
CLIPPED = "rows: each is cut to the length that the mechanism's noise is made for"


@dataclass(frozen=True)
class PrivateTask(Task):
    """Work that is handed the `Site` in the place of its name, for its releases."""

    def answer(
        self, site: Site, X: Any, arguments: list[np.ndarray], **more: Any
    ) -> dict[str, Any]:
        """What is sent, by name."""
        return self.work(site, X, *arguments, **more)


# -------------------------------------------------------------------- summaries


def private_summaries(estimator: FederatedPCA) -> dict[str, Task]:
    """What a site does about the one question of `FederatedPCA` with a mechanism."""
    mechanism = estimator.mechanism

    def summary(site: Site, X: Any) -> dict[str, Any]:
        d = X.shape[1]
        costs = mechanism.costs(d, 1, 1 / mechanism.n_releases)
        mu2 = mechanism.cost(costs, d)
        keep = private_directions(clone(estimator)._directions_needed(), d)

        def make(rng: np.random.Generator) -> np.ndarray:
            seeds = tuple(int(word) for word in rng.integers(2**32, size=4))
            release = Release(mechanism, mechanism.terms(X, costs), X, seeds, keep)
            found = private_summary(site.name, release)
            site.state_spent(mechanism)
            privacy = stated(mechanism, site.privacy["mu2"], norm_found(found))
            return np.frombuffer(found._replace(privacy=privacy).to_bytes(), np.uint8)

        return {"summary": site.release("summary", mechanism, mu2, make)}

    return {"summary": PrivateTask(summary, reads=CLIPPED)}


# -------------------------------------------------------------------- rounds


def private_rounds(estimator: FederatedPowerPCA, check: Callable[..., None]) -> dict[str, Task]:
    """What a site does about each kind of question of `FederatedPowerPCA` with a mechanism.

    ``check(d, V, mean, local_steps)`` refuses arguments that no honest server sends.
    """
    mechanism, n_products = estimator.mechanism, estimator.n_rounds + 1

    def client(site: Site, X: Any) -> PrivateClient:
        d = X.shape[1]
        costs = mechanism.costs(d, n_products)
        terms = mechanism.terms(X, costs)
        rows = ClippedRows.of(X, terms.center, terms.row_norm)
        total = np.zeros(d)
        if costs.mean is not None:
            total = site.release(
                "sum",
                mechanism,
                mechanism.cost(costs, d, 0),
                lambda rng: mechanism.noisy_sum(rows.sum(), terms, rng),
            )
        return PrivateClient(site.name, rows, mechanism, terms, (), total)

    def moments(site: Site, X: Any) -> dict[str, Any]:
        message = client(site, X).moments()
        site.state_spent(mechanism)
        return {"message": message}

    def along(site: Site, X: Any, query: TimesScatter | Variances) -> dict[str, Any]:
        asked, d = client(site, X), X.shape[1]
        mu2 = mechanism.cost(asked.terms.costs._replace(mean=None), d)
        make = partial(query.released, asked)
        released = site.release(query.kind, mechanism, mu2, make, query.V)
        return {"message": query.about_mean(asked, released)}

    def times_scatter(
        site: Site, X: Any, V: np.ndarray, mean: np.ndarray, local_steps: np.ndarray
    ) -> dict[str, Any]:
        check(X.shape[1], V, mean, local_steps)
        return along(site, X, TimesScatter(V, mean))

    def variances(site: Site, X: Any, V: np.ndarray, mean: np.ndarray) -> dict[str, Any]:
        check(X.shape[1], V, mean)
        return along(site, X, Variances(V, mean))

    clipped = partial(PrivateTask, reads=CLIPPED)
    return {
        Moments.kind: clipped(moments),
        TimesScatter.kind: clipped(times_scatter, estimator.n_rounds, fixed=1),
        Variances.kind: clipped(variances, fixed=1),
    }


# -------------------------------------------------------------------- the server


def with_spent(sites: Sites, read: Callable[[Answer], Any]) -> Callable[[Answer], Any]:
    """Read answers of sites that state what they have spent, and keep that."""

    def reading(answer: Answer) -> Any:
        value = read(answer)
        mu2, delta = answer.config.get("mu2"), answer.config.get("delta")
        if not isinstance(mu2, float) or not (0 <= mu2 <= _LARGEST or mu2 == math.inf):
            raise answer.refused(f"mu2={shown(repr(mu2))}, expected what it has spent")
        if not isinstance(delta, float) or not 0 < delta < 1:
            raise answer.refused(f"delta={shown(repr(delta))}, expected a number in (0, 1)")
        sites.spent[answer.site] = mu2, delta
        return value

    return reading


def show_spent(fitted: FederatedPCA | FederatedPowerPCA, sites: Sites) -> None:
    """Set ``privacy_spent_`` to what the sites state, also those that were left out later."""
    of = {site: Account(site, 1.0, mu2) for site, (mu2, _) in sites.spent.items()}
    delta = max(delta for _, delta in sites.spent.values())
    fitted._accounts = Accounts(of, 1, delta, "the ledgers of the sites")


def warn_of_noise(message: str | None) -> None:
    """Warn if what the sites released looks like noise."""
    if message is not None:
        warnings.warn(message, PrivacyNoiseWarning, stacklevel=2)
