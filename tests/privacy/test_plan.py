"""Plans: what they expect is what fits of such rows find."""

import math

import numpy as np
import pytest

from fedpca_sklearn import (
    AnalyzeGauss,
    FederatedPCA,
    ModSuLQ,
    StreamingModSuLQ,
    subspace_distance,
)
from fedpca_sklearn.privacy import (
    PrivacyBoundWarning,
    PrivacyPlan,
    PrivateCenter,
    PrivateNorm,
)
from fedpca_sklearn.privacy._private_center import OF_ROUND
from fedpca_sklearn.privacy._private_norm import aim_for_moments, found_norm

pytestmark = [
    pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning"),
    pytest.mark.filterwarnings("ignore:A private search for a norm took"),
]
VARIANCES = np.r_[9.0, 4.0, 1.0, np.full(17, 0.1)]


def fitted(mechanism, n, k, runs):
    """Mean error and components above noise of fits of normal rows."""
    errors, above = [], []
    for run in range(runs):
        rng = np.random.default_rng(run)
        X = rng.standard_normal((n, 20)) * np.sqrt(VARIANCES)
        model = FederatedPCA(k, mechanism=mechanism, n_clients=1, random_state=run).fit(X)
        V = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[2][:k]
        errors.append(subspace_distance(model.components_, V))
        above.append(model.n_components_above_noise_)
    return np.mean(errors), np.mean(above)


@pytest.mark.parametrize(
    ("mechanism", "n"),
    [
        (AnalyzeGauss(1.0, 1e-5, 4.0), 3000),
        (AnalyzeGauss(1.0, 1e-5, "private", center="private"), 10_000),
        (ModSuLQ(4.0, 1e-5, 4.0), 10_000),
        (StreamingModSuLQ(4.0, 1e-5, 4.0), 60_000),
    ],
)
def test_fits_find_what_was_planned(mechanism, n):
    """Shortened rows are no longer normal, and 20 draws vary: within a half of the error."""
    plan = mechanism.plan(n, 20, 2, spectrum=VARIANCES)
    error, above = fitted(mechanism, n, 2, 10)
    assert 1 / 1.5 < plan.error / error < 1.5
    assert abs(plan.n_components_above_noise - above) < 1


def test_half_and_twice_are_plans_of_their_own():
    plan = AnalyzeGauss(1.0, 1e-5, 4.0).plan(3000, 20, 2, spectrum=VARIANCES)
    assert (plan.half.epsilon, plan.epsilon, plan.twice.epsilon) == (0.5, 1.0, 2.0)
    assert plan.half.error > plan.error > plan.twice.error
    for factor, other in ((0.5, plan.half), (2.0, plan.twice)):
        alone = AnalyzeGauss(factor, 1e-5, 4.0).plan(3000, 20, 2, spectrum=VARIANCES)
        assert other == PrivacyPlan(factor, alone.error, alone.n_components_above_noise)


def test_without_noise_there_is_no_error():
    plan = AnalyzeGauss(math.inf, 1e-5, 4.0).plan(100, 10, 3)
    assert plan.error < 1e-7
    assert plan.n_components_above_noise == 10


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ((0, 5, 2), "n must be"),
        ((10, 5, 6), "n_components=6 must be at most"),
        ((10, 5, 2, [1.0, -1.0]), "spectrum must have 1 to d=5"),
        ((10, 5, 2, np.ones(6)), "spectrum must have 1 to d=5"),
    ],
)
def test_plans_of_nothing(arguments, what):
    n, d, k, *spectrum = arguments
    with pytest.raises(ValueError, match=what):
        AnalyzeGauss(1.0, 1e-5, 4.0).plan(n, d, k, spectrum=spectrum[0] if spectrum else None)


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_searches_of_as_many_rows_as_are_asked_for_find_no_far_too_large_norm(epsilon):
    budget = AnalyzeGauss(epsilon, 1e-5, 1.0).budget()
    norm, center = PrivateNorm(), PrivateCenter()
    few = [math.ceil(search._rows_needed(budget)) for search in (norm, center)]
    aims = [aim_for_moments(few[0], budget), OF_ROUND]
    costs = [norm.cost(few[0], 1, budget), center._cost_of_norm(few[1], budget)]
    for n, aim, cost in zip(few, aims, costs, strict=True):
        of_rows = np.random.default_rng(0).uniform(0.5, 1.5, n)
        rngs = (np.random.default_rng([1, run]) for run in range(200))
        found = [found_norm(of_rows, norm.bounds, aim, cost, rng) for rng in rngs]
        assert np.mean(np.array(found) > 8) < 0.05


def test_a_plan_for_too_few_rows_warns():
    private = AnalyzeGauss(1.0, 1e-5, "private", center="private")
    with pytest.warns(PrivacyBoundWarning) as caught:
        private.plan(100, 5, 2)
    assert len(caught) == 2
    assert "center needs 744" in str(caught[0].message)
    assert "row_norm needs 314" in str(caught[1].message)
    private.plan(2000, 5, 2)


def test_a_norm_of_the_rows_has_no_plan():
    with pytest.raises(ValueError, match="row_norm must be a number or 'private' for a plan"):
        AnalyzeGauss(1.0, 1e-5, "data").plan(10, 5, 2)
