"""Components above the noise of a release: how many are named, when a warning comes, and plans.

Oracles are the true span, the first component of the rows without noise, and what fits find.
"""

import re
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose
from privacy_helpers import every_mechanism, every_trust, inf, model_of

from fedpca_sklearn import (
    AnalyzeGauss,
    FedPowerNoise,
    ModSuLQ,
    PrivacyNoiseWarning,
    StreamingModSuLQ,
    make_spiked,
    subspace_distance,
)
from fedpca_sklearn.privacy import PrivacyBoundWarning, PrivacyPlan
from fedpca_sklearn.privacy._above_noise import n_within
from fedpca_sklearn.privacy._gaussian import epsilon_of, mu_of

quiet = pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning")


# ------------------------------------------------------------------ how many are named


@quiet
@pytest.mark.parametrize(
    ("d", "distance", "center"), [(20, 8, 0), (60, 8, 0), (20, 2, 0), (20, 8, 50)]
)
def test_the_noise_of_a_far_mean_is_no_component_and_hides_none(d, distance, center):
    """Rows about a mean far from the centre that was given, varying along one axis or none."""
    draws, named, true, false = 40, 0, 0, 0
    mechanism = AnalyzeGauss(1.0, 1e-5, row_norm=10.0, center=[center] * d, mean="private")
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        X = rng.normal(center, 0.05, (5000, d))
        X[:, 0] += distance
        alone = model_of(mechanism, 2, n_clients=1, random_state=seed).fit(X)
        X[:, 1] += rng.normal(0.0, rng.uniform(0.2, 2.5), len(X))
        model = model_of(mechanism, 2, n_clients=1, random_state=seed).fit(X)
        above, cosines = model.n_components_above_noise_, np.abs(model.components_[:, 1])
        false += alone.n_components_above_noise_ > 0
        false += bool(np.any(cosines[:above] < 0.3))
        true += cosines[0] > 0.7
        named += cosines[0] > 0.7 and above > 0
    assert false / (2 * draws) <= 0.05
    assert named >= 0.9 * true
    assert true > 0.25 * draws


def spiked(n=20_000, d=60):
    return make_spiked(n, d, spikes=[30.0, 20.0], random_state=0)[0]


def private(epsilon=1.0, **options):
    return AnalyzeGauss(epsilon, 1e-5, row_norm=12.0, **options)


@quiet
@every_trust
def test_as_many_components_as_are_above_noise_which_batches_and_clients_share(trust):
    X = spiked()
    model, asked = (model_of(private(trust=trust), k, n_clients=1) for k in ("above_noise", 2))
    assert model.fit(X).n_components_ == model.n_components_above_noise_ == 2
    assert_allclose(model.components_, asked.fit(X).components_)
    model.set_params(mechanism=private(1e-3)).fit(X)
    assert (model.n_components_above_noise_, model.n_components_) == (0, 1)
    without = model_of(private(inf), None).fit(spiked(500, 8))
    assert without.n_components_above_noise_ == 8
    batches = model_of(private(1.5, n_releases=2, trust=trust), "above_noise", n_clients=2)
    batches.partial_fit(X[:10_000]).partial_fit(X[10_000:])
    assert batches.n_components_above_noise_ == batches.n_components_ == 2


@quiet
@pytest.mark.parametrize(("energy", "above"), [(1, 0), (2, 1)])
def test_what_is_beyond_few_directions_is_that_of_each_release(energy, above):
    """Axes of one energy, or the first one of twice as much, in two releases of few directions."""
    rows = np.repeat(np.eye(260), [40 * energy, *[40] * 259], axis=0)
    model = model_of(AnalyzeGauss(20.0, 1e-5, 1.0, mean="fixed", n_releases=2), 1, n_clients=1)
    model.partial_fit(rows).partial_fit(rows)
    assert model.n_components_above_noise_ == above


# ------------------------------------------------------------------ the warning


def power_law(n, d, alpha, seed=0):
    """Rows of norm 1 at most, and the first principal direction."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    X = (rng.standard_normal((n, d)) * np.arange(1.0, d + 1) ** -alpha) @ basis
    return X / np.linalg.norm(X, axis=1).max(), basis[0]


def fitted(mechanism, seed=0, **options):
    if isinstance(mechanism, FedPowerNoise):
        options = {"n_rounds": 3, "acceleration": None, "tol": 1e-6, **options}
    return model_of(mechanism, 3, random_state=seed, **options)


def warned(model, X):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X)
    assert {w.category for w in caught} <= {PrivacyNoiseWarning}
    return bool(caught)


@every_trust
@pytest.mark.parametrize("n_clients", [1, 5])
@every_mechanism
@pytest.mark.parametrize("mean", ["private", "fixed"])
def test_225_rows_at_epsilon_1_are_noise_and_useful_releases_do_not_warn(
    kind, n_clients, trust, mean
):
    for useful in (False, True)[: 1 + (kind in (AnalyzeGauss, FedPowerNoise))]:
        X, first = power_law(5000, 20, 1.0) if useful else power_law(225, 31, 0.1)
        mechanism = kind(4.0 if useful else 1.0, 1e-5, 1.0, trust=trust, mean=mean)
        hits = []
        for seed in range(3):
            model = fitted(mechanism, seed, n_clients=n_clients)
            hits.append(warned(model, X))
            assert (abs(model.components_[0] @ first) > 0.9) == useful
        assert sum(hits) == 0 if useful else sum(hits) >= 2


@pytest.mark.parametrize("kind", [AnalyzeGauss, FedPowerNoise])
def test_the_warning_names_the_ratio_and_loses_no_result(kind):
    X, _ = power_law(225, 31, 0.3)
    model = fitted(kind(0.3, 1e-5, 1.0))
    with pytest.raises(PrivacyNoiseWarning, match=r"signal-to-noise ratio, .* is (0\.\d+|1\.?0?)"):
        model.fit(X)  # pytest turns warnings into errors
    assert model.components_.shape == (3, 31)
    assert abs(model.privacy_spent_.epsilon - 0.3) < 1e-9


def test_a_warning_names_the_components_beyond_if_they_were_asked_for():
    X = spiked()
    with pytest.warns(PrivacyNoiseWarning, match="Components 3 to 5 of 5 cannot be told"):
        model_of(private(), 5, n_clients=1).fit(X)
    for n_components in (2, None, "above_noise"):
        assert not warned(model_of(private(), n_components, n_clients=1), X)


def test_rounds_of_rows_that_are_alike_in_all_directions_warn_and_later_calls_do_not_again():
    X = np.random.default_rng(0).standard_normal((20_000, 20))
    X /= np.linalg.norm(X, axis=1).max()
    assert warned(fitted(FedPowerNoise(1.0, 1e-5, 1.0), n_clients=1), X)  # however large they are
    model = model_of(AnalyzeGauss(1.0, 1e-5, 1.0, n_releases=2), 2, n_clients=1)
    with pytest.warns(PrivacyNoiseWarning):
        model.partial_fit(X[:50])
    model.partial_fit(X[50:100])


# ------------------------------------------------------------------ plans

VARIANCES = np.r_[9.0, 4.0, 1.0, np.full(17, 0.1)]


@quiet
@pytest.mark.filterwarnings("ignore:A private search for a norm took")
@pytest.mark.parametrize(
    ("mechanism", "n", "variances"),
    [
        (AnalyzeGauss(1.0, 1e-5, 4.0), 3000, VARIANCES),
        (AnalyzeGauss(1.0, 1e-5, 0.6), 2000, np.arange(1.0, 21) ** -2),  # nearly all are shortened
        (AnalyzeGauss(1.0, 1e-5, "private", center="private"), 10_000, VARIANCES),
        (ModSuLQ(4.0, 1e-5, 4.0), 10_000, VARIANCES),
        (StreamingModSuLQ(4.0, 1e-5, 4.0), 60_000, VARIANCES),
    ],
)
def test_fits_find_what_was_planned(mechanism, n, variances):
    """Shortened rows are no longer normal, and 20 draws vary: within a half of the error."""
    plan = mechanism.plan(n, 20, 2, spectrum=variances)
    errors, above = [], []
    for run in range(10):
        X = np.random.default_rng(run).standard_normal((n, 20)) * np.sqrt(variances)
        model = model_of(mechanism, 2, n_clients=1, random_state=run).fit(X)
        V = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[2][:2]
        errors.append(subspace_distance(model.components_, V))
        above.append(model.n_components_above_noise_)
    assert 1 / 1.5 < plan.error / np.mean(errors) < 1.5
    assert abs(plan.n_components_above_noise - np.mean(above)) < 1


def test_half_and_twice_are_plans_of_their_own():
    half, plan, twice = (
        AnalyzeGauss(factor, 1e-5, 4.0).plan(3000, 20, 2, spectrum=VARIANCES)
        for factor in (0.5, 1.0, 2.0)
    )
    assert half.error > plan.error > twice.error
    AnalyzeGauss(1.0, 1e-5, 4.0).plan(3000, 2, 1, spectrum=[1e-312])  # no overflow
    for factor, alone, other in ((0.5, half, plan.half), (2.0, twice, plan.twice)):
        assert other == PrivacyPlan(factor, alone.error, alone.n_components_above_noise)
    # a mean that is known costs nothing
    fixed = AnalyzeGauss(1.0, 1e-5, 4.0, mean="fixed").plan(3000, 20, 2, spectrum=VARIANCES)
    assert twice.error < fixed.error < plan.error
    long = np.arange(1.0, 21) ** -2
    long *= 4.0**2 / long.sum()  # rows are about as long as row_norm
    by_default = AnalyzeGauss(1.0, 1e-5, 4.0).plan(3000, 20, 2)
    assert by_default == AnalyzeGauss(1.0, 1e-5, 4.0).plan(3000, 20, 2, spectrum=long)
    without = AnalyzeGauss(inf, 1e-5, 4.0).plan(100, 10, 3)
    assert without.error < 1e-7
    assert without.n_components_above_noise == 10


def test_a_plan_for_too_few_rows_warns():
    searching = AnalyzeGauss(1.0, 1e-5, "private", center="private")
    with pytest.warns(PrivacyBoundWarning) as caught:
        searching.plan(100, 5, 2)
    for one, words in zip(caught, ("center needs 744", "row_norm needs 314") * 3, strict=False):
        assert words in str(one.message)
    searching.plan(2000, 5, 2)
    with pytest.warns(PrivacyBoundWarning) as split:
        AnalyzeGauss(1.0, 1e-5, "private", center="private", n_releases=9).plan(2000, 5, 2)
    ninth = epsilon_of(mu_of(1.0, 1e-5) / 3, 1e-5)  # of the budget, which is mu^2
    with pytest.warns(PrivacyBoundWarning) as alone:
        AnalyzeGauss(ninth, 1e-5, "private", center="private").plan(2000, 5, 2)
    needed = [
        [re.search(r"needs (\d+)", str(one.message))[1] for one in caught]
        for caught in (split, alone)
    ]
    assert needed[0] == needed[1]


def test_means_that_lean_by_their_noise_ask_more_of_a_component_across_them():
    """A cosine of 2/3, and half of the squared lean more."""
    found = [n_within(np.array([[0.7, 0.71]]), np.eye(1, 2), lean) for lean in (0, 0.25, 0.3, 9)]
    assert found == [1, 1, 0, 0]
