"""`FederatedHeteroscedasticPCA` at sites: rounds of sums, between which each keeps its noise."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import clone

from .._validation.checks import check_at_most_features
from ..communication import Federation
from ..rounds import FederatedHeteroscedasticPCA
from ..rounds._client import Client
from ..rounds._expected_scores import ExpectedScores, Weighted
from ..rounds._heteroscedastic_pca import ROUNDS
from ..rounds._power_method import moments_by_sum
from ..rounds._queries import Moments, Scatter, TimesScatter, Variances
from ._estimators import fit_estimator, refuse_channel, site_work, until_nobody_is_lost
from ._questions import ASKED, MOMENTS, RefusedError, Task, check_basis, check_mean
from ._rounds import SiteRounds
from ._site_privacy import Site
from ._sites import Sites

# Record of the site's own state: the question that was answered last, and numbers before and after.
_KEPT = "fedpca_sklearn.kept"


@dataclass(frozen=True)
class KeepingTask(Task):
    """Work that takes what the site has kept of the round before, None at first.

    It returns its arrays and the number that the site keeps now. A question that comes again starts
    from what was kept before it.
    """

    def answer(
        self, site: Site, X: Any, arguments: list[np.ndarray], **more: Any
    ) -> dict[str, Any]:
        """What is sent, by name."""
        state = site.context.state
        asked, kept = state[ASKED], dict(state.get(_KEPT, {}))
        of = hashlib.sha256(b"".join(a.tobytes() for a in arguments)).hexdigest()
        before = 0.0  # of the first question of a fit
        if asked["scores"] > 1:
            before = kept["before" if kept["of"] == of else "now"]
        sent, now = self.work(site.name, X, *arguments, kept=before or None)
        state[_KEPT] = {"of": of, "before": before, "now": float(now)}
        return sent


@site_work.register
def _(estimator: FederatedHeteroscedasticPCA) -> dict[str, Task]:
    refuse_channel(estimator.channel)
    center = estimator.center

    def rank(d):
        return min(estimator.n_components, d)

    def check(d, V, mean, steps=1, most=1):
        check_mean(mean, d, center)
        check_basis(V, d, min(most * rank(d), d))
        if np.shape(steps) or steps != 1:
            raise RefusedError("local_steps must be 1")

    def weighted(query, unit, own):
        check_unit(unit)
        few = rank(len(own.mean)) + 1
        return {"message": Weighted(query, float(unit), center, few).answer(own)}

    def moments(site, own):
        return {"message": Moments().answer(own)}

    def scatter(site, own, mean):
        check_mean(mean, len(own.mean), center)
        return {"message": Scatter(mean).answer(own)}

    def products(site, own, V, mean, steps):
        check(len(own.mean), V, mean, steps)
        return {"message": TimesScatter(V, mean).answer(own)}

    def variances(site, own, V, mean):
        check(len(own.mean), V, mean, most=2)  # the factors, and what a product adds to them
        return {"message": Variances(V, mean).answer(own)}

    def weighted_moments(site, own, unit):
        return weighted(Moments(), unit, own)

    def weighted_products(site, own, V, mean, steps, unit):
        check(len(own.mean), V, mean, steps)
        return weighted(TimesScatter(V, mean), unit, own)

    def weighted_variances(site, own, V, mean, unit):
        check(len(own.mean), V, mean)
        return weighted(Variances(V, mean), unit, own)

    def scores(site, own, F, mean, unit, *, kept):
        d = len(own.mean)
        check_mean(mean, d, center)
        check_unit(unit)
        if F.ndim != 2 or F.shape[1] != d or not 0 < len(F) <= rank(d):
            raise RefusedError(f"factors must have shape (k, {d}) with k <= {rank(d)}")
        query = ExpectedScores(F, mean, float(unit))
        found, v = query.sums(own, kept)
        return {"message": query.message(found, own.n_samples)}, v

    task = partial(Task, reads=MOMENTS)
    return {
        "moments": task(moments),
        "scatter": task(scatter),
        "weighted_moments": task(weighted_moments),
        "weighted_times_scatter": task(weighted_products, ROUNDS),
        "weighted_variances": task(weighted_variances),
        "scores": KeepingTask(scores, estimator.n_rounds, reads=MOMENTS),
        "times_scatter": task(products),
        "variances": task(variances),
    }


def check_unit(unit: np.ndarray) -> None:
    """Refuse what is no deviation of rows."""
    if unit.shape or not 1e-150 < unit < 1e150:
        raise RefusedError("the unit must be one number in (1e-150, 1e150)")


@fit_estimator.register
def _(estimator: FederatedHeteroscedasticPCA, sites: Sites) -> FederatedHeteroscedasticPCA:
    return until_nobody_is_lost(lambda: by_rounds(clone(estimator), sites, SiteRounds(sites)))


def by_rounds(
    estimator: FederatedHeteroscedasticPCA, sites: Any, rounds: Federation
) -> FederatedHeteroscedasticPCA:
    """Fit by rounds of sums over sites."""
    mean, count = moments_by_sum(rounds, [])
    check_at_most_features(estimator.n_components, len(mean))
    estimator._start()
    estimator.communication_ = sites.log
    mean = mean if estimator.center else np.zeros(len(mean))
    clients = [Client(site, None) for site in sites.names.values()]
    n_rows, (_, start) = max(1, round(count)), estimator._random_states()
    estimator._fit_rounds(rounds, rounds, clients, mean, n_rows, sites.dtype, start)
    estimator.noise_variances_ = {}  # they stay at the sites
    return estimator
