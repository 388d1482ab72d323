"""Mechanisms at sites: noise as in one process, the accounts of ledgers, and what a log holds.

Plain, each site adds its noise; by secure sums each adds a share of that of the sum.
"""

import json
import os
import secrets
from collections import defaultdict
from contextlib import suppress
from itertools import count

import numpy as np
import pytest
from engines.site_helpers import (
    Site,
    arrays,
    assert_refused,
    fit,
    grid_of,
    lost,
    made,
    put,
    sending,
    spoiling,
)
from scipy.stats import ks_2samp, levene
from sklearn.base import clone

from fedpca_sklearn import PrivacyLedger
from fedpca_sklearn.engines import _site_policy
from fedpca_sklearn.engines._messages import sizes_of
from fedpca_sklearn.engines._sites import SecureSums
from fedpca_sklearn.engines.flower import SecureAggregation, SitePolicy, partial_fit_sites
from fedpca_sklearn.privacy import PrivacyNoiseWarning
from fedpca_sklearn.privacy._gaussian import epsilon_of, mu_of

pytestmark = [
    pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning"),
    pytest.mark.filterwarnings("ignore::fedpca_sklearn.privacy.PrivacyBoundWarning"),
]
ROWS = np.random.default_rng(0).standard_normal((600, 5)) * [3.0, 2.0, 1.0, 1.0, 1.0] + 0.5
PARTS = {"east": ROWS[:300], "north": ROWS[300:420], "west": ROWS[420:]}
LABELS = np.repeat(list(PARTS), [300, 120, 180])
SECURE = SecureAggregation(threshold=3, restarts=0)
COARSE = SecureAggregation(threshold=3, restarts=0, bits=22)
INIT = "init=np.eye(5)[:2]"
SHARED = "3.0, 1e-5, 8.0, trust='sum', noise=DiscreteGaussian()"
SUMMARY = made(f"FederatedPCA(2, mechanism=AnalyzeGauss({SHARED}))")
ROUNDS = made(
    f"FederatedPowerPCA(2, n_rounds=2, tol=0.0, mechanism=FedPowerNoise({SHARED}), {INIT})"
)
SCALER = made(f"FederatedScaler(mechanism=ScalerNoise({SHARED.replace(' 8.0,', '')}))")
PLAIN_SUMMARY = made("FederatedPCA(2, mechanism=AnalyzeGauss(8.0, 1e-3, 4.0))")
PLAIN_ROUNDS = made(
    f"FederatedPowerPCA(2, n_rounds=1, tol=0.0, mechanism=FedPowerNoise(8.0, 1e-3, 4.0), {INIT})"
)
PLAIN_SCALER = made("FederatedScaler(mechanism=ScalerNoise(8.0, 1e-3))")
both = pytest.mark.parametrize("estimator", [SUMMARY, ROUNDS], ids=["summary", "rounds"])


def private_fit(estimator, folder, secure=SECURE, spoil=None, run=1, parts=PARTS, log=False):
    def policy(site):
        return SitePolicy(ledger=folder / site, log=folder / f"{site}.log" if log else None)

    policies = {site: policy(site) for site in parts}
    return fit(estimator, parts, spoil, secure, policies=policies, run=run)


@pytest.fixture
def known_noise(monkeypatch):
    """Noise from the operating system, the same in each run of the tests."""
    bits = np.random.default_rng(5)
    monkeypatch.setattr(secrets, "randbits", lambda k: int.from_bytes(bits.bytes(k // 8), "big"))
    monkeypatch.setattr(os, "urandom", bits.bytes)


STATISTICS = {
    "first variance": lambda pca: pca.explained_variance_[0],
    "loading": lambda pca: abs(pca.components_[0, 0]),
    "mean": lambda pca: pca.mean_[0],
}
OF_SCALES = {"scale": lambda scaler: scaler.scale_[0], "mean": STATISTICS["mean"]}


@pytest.mark.usefixtures("known_noise")
@pytest.mark.parametrize(
    ("estimator", "statistics"),
    [(PLAIN_SUMMARY, STATISTICS), (PLAIN_ROUNDS, STATISTICS), (PLAIN_SCALER, OF_SCALES)],
    ids=["summary", "rounds", "scales"],
)
def test_noise_over_flower_is_that_of_one_process(estimator, statistics, tmp_path):
    """Two samples of 45 fits each; a sample with about a third of the noise is told from them."""

    def sample(asked):
        return [clone(asked).set_params(random_state=s).fit(*few) for s in range(45)]

    parts = {site: rows[:30] for site, rows in PARTS.items() if site != "north"}
    few = np.concatenate(list(parts.values())), None, np.repeat(list(parts), 30)
    there = []
    for run in range(45):
        (tmp_path / str(run)).mkdir()
        there.append(private_fit(estimator, tmp_path / str(run), None, parts=parts))
    here, other = sample(estimator), sample(clone(estimator).set_params(mechanism__epsilon=60.0))
    for name, statistic in statistics.items():
        samples = [[statistic(pca) for pca in fits] for fits in (there, here, other)]
        assert ks_2samp(*samples[:2]).pvalue > 1e-3, name  # six comparisons
        others = samples[0], samples[2]
        assert min(ks_2samp(*others).pvalue, levene(*others).pvalue) < 1e-3, name
    assert {tuple(np.round(pca.privacy_spent_, 9)) for pca in there} == {(8.0, 1e-3)}
    assert there[0].mechanism.ledger is None


@pytest.mark.parametrize(("estimator", "secure"), [(PLAIN_SUMMARY, None), (SUMMARY, SECURE)])
def test_each_of_two_releases_has_half_of_the_budget(estimator, secure, tmp_path):
    found = private_fit(clone(estimator).set_params(mechanism__n_releases=2), tmp_path, secure)
    epsilon, delta = estimator.mechanism.epsilon, estimator.mechanism.delta
    half = epsilon_of(mu_of(epsilon, delta) / np.sqrt(2), delta)
    assert found.privacy_spent_.epsilon == pytest.approx(half, rel=1e-4)


@pytest.mark.parametrize("unit", [1.0, 1e4])
@both
def test_secure_sums_without_noise_are_pca_of_the_clipped_rows(estimator, unit, tmp_path):
    exact = clone(estimator).set_params(mechanism__epsilon=np.inf, mechanism__row_norm=8.0 * unit)
    found = private_fit(exact, tmp_path, parts={site: unit * X for site, X in PARTS.items()})
    expected = clone(exact).fit(unit * ROWS, clients=LABELS)
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-6)
    np.testing.assert_allclose(found.components_, expected.components_, atol=1e-6)
    np.testing.assert_allclose(found.mean_, expected.mean_, atol=1e-9 * unit)
    assert found.n_samples_ == 600


@pytest.mark.parametrize("noise", ["", "noise=DiscreteGaussian(), trust='sum', "])
@pytest.mark.parametrize("one_scale", [False, True])
def test_scales_over_sites_without_noise_are_those_of_one_process(noise, one_scale, tmp_path):
    code = f"FederatedScaler(mechanism=ScalerNoise(np.inf, 1e-5, {noise}one_scale={one_scale}))"
    found = private_fit(made(code), tmp_path, SECURE if noise else None)
    expected = made(code).fit(ROWS, clients=LABELS)
    np.testing.assert_allclose(found.scale_, expected.scale_, rtol=1e-6)
    np.testing.assert_allclose(found.mean_, expected.mean_, atol=1e-6)
    assert (found.n_samples_seen_, found.clients_) == (600, expected.clients_)
    log = found.communication_  # three rounds of two sums, and with secure sums that of the rows
    assert log.rounds == (7 if noise else 6)
    assert log.floats_up > 3 * 6 * 5


IMPOSSIBLE = [
    ("n_rows", 1e200, "expected a number of rows"),
    ("n_rows", -5.0, "expected a number of rows"),
    ("n_rows", 0.5, "expected a number of rows"),
    ("n_rows", 2.5, "not one whole number"),
    ("counts_1", 1e200, "more than its rows and their noise"),
    ("sums_2", -1e17, "more than its rows and their noise"),
    ("counts_3", None, "no answer"),
    ("n_rows", "east", "calls itself 'east': node 1 has this name"),
]


@pytest.mark.parametrize(("kind", "value", "why"), IMPOSSIBLE)
def test_a_site_with_impossible_sums_or_none_is_left_out_within_the_budget(
    kind, value, why, tmp_path
):
    """The others are not asked anew: with the sums so far their budgets are spent."""
    shape = {"n": (5,), "c": (5, 49), "s": (10,)}[kind[0]]
    name = kind if kind == "n_rows" else kind.split("_")[0]
    if value is None:
        change = lost(kind=kind)
    elif isinstance(value, str):
        change = spoiling(sending(site=value), kind=kind)
    else:
        change = spoiling(arrays(**{name: np.full(shape, value)}), kind=kind)
    with pytest.warns(UserWarning, match="Fitted without"):
        found = private_fit(PLAIN_SCALER, tmp_path, None, spoil=change)
    (reason,) = found.missing_sites_.values()
    assert why in reason
    assert found.n_samples_seen_ == 420  # of east and north
    assert 7.9 < found.privacy_spent_.epsilon <= 8.0 * (1 + 1e-9)


def test_batches_have_no_private_scales(tmp_path):
    scaler = made("FederatedScaler(mechanism=ScalerNoise(1.0, 1e-5))")
    policies = {site: SitePolicy(ledger=tmp_path / site) for site in PARTS}
    with pytest.raises(ValueError, match="mechanism must be None for batches"):
        partial_fit_sites(grid_of(scaler, policies=policies), scaler, wait=0)
    assert not list(tmp_path.iterdir())


def test_a_server_cannot_ask_for_more_sums_than_there_are_or_beyond_the_bounds(tmp_path):
    estimator = made("FederatedScaler(mechanism=ScalerNoise(1.0, 1e-5))")
    ledger = PrivacyLedger(tmp_path / "ledger")
    site, zero = Site(estimator, ROWS, policy=SitePolicy(ledger=ledger)), np.zeros(5)
    assert_refused(site, "counts_1", np.zeros(4), why="the mean must have shape (5,), got (4,)")
    assert_refused(site, "sums_1", zero, np.ones(4), why="shape (5,)")
    assert_refused(site, "sums_2", zero, np.full(5, 1e-9), why="from 0.001")
    assert ledger.spent(1e-5) == {}
    assert site.answers("counts_3", zero)
    (before,) = ledger.spent(1e-5).values()
    assert_refused(site, "counts_3", zero + 1, why="more than 1 questions")
    assert [*ledger.spent(1e-5).values()] == [before]


@both
def test_what_is_asked_twice_has_noise_of_its_own(estimator, tmp_path, monkeypatch):
    """A message that comes again in a sum of other sites would be taken off by subtraction."""
    made_here, release, added = [], _site_policy.Site.release, SecureSums.added

    def recorded(self, kind, mechanism, mu2, make, *arguments):
        made_here.append(release(self, kind, mechanism, mu2, make, *arguments))
        assert (release(self, kind, mechanism, 0.0, make, *arguments) == made_here[-1]).all()
        return made_here[-1]

    def asked_again(self, kind, *of, **how):
        return [added(self, kind, *of, **how) for _ in range(1 + (kind == "times_scatter"))][-1]

    monkeypatch.setattr(_site_policy.Site, "release", recorded)
    monkeypatch.setattr(SecureSums, "added", asked_again)
    with suppress(RuntimeError):  # as one question is too many
        private_fit(estimator, tmp_path)
    assert len({array.tobytes() for array in made_here}) == len(made_here)


# -------------------------------------------------------------------- accounts


@pytest.mark.parametrize("trust", ["sum", "client"])
@both
def test_a_budget_is_spent_once_in_all_runs(estimator, trust, tmp_path):
    asked = clone(estimator).set_params(mechanism__trust=trust)
    found = private_fit(asked, tmp_path)
    epsilon, delta = found.privacy_spent_
    assert 3.0 * (1 - 1e-3) < epsilon <= 3.0 * (1 + 1e-9)
    assert (delta, found.privacy_spent_.account) == (1e-5, "the ledgers of the sites")
    with pytest.raises(RuntimeError, match="no budget is left for one more release"):
        private_fit(asked, tmp_path, run=2)


@both
def test_a_grid_below_the_resolution_is_refused_and_counts(estimator, tmp_path):
    """It is no answer, but else a refusal could be asked for as often as it tells something."""
    for run in (1, 2):  # a site that is started anew
        with pytest.raises(RuntimeError, match="finer than the scale of secure sums"):
            private_fit(estimator, tmp_path, COARSE, run=run, log=True)
    lines = lines_of(tmp_path, "west")
    begun = [line["kind"] for line in lines if line["event"] == "question"]
    assert [line["kind"] for line in lines if line["event"] == "refusal"] == [begun[-1]] * 2
    assert begun[-1] not in [line["kind"] for line in lines if line["event"] == "answer"]
    tally = SitePolicy(log=tmp_path / "west.log").log.read()
    assert tally.rounds == len(begun)
    assert tally.mu2 == max((line["mu2"] for line in lines if "mu2" in line), default=0.0)


MORE = spoiling(arrays(masked=lambda words: words[1:]), kind="n_rows")
LESS = arrays(masked=put(slice(5), lambda words: words - np.uint64(2**61)))


@pytest.mark.parametrize(
    ("estimator", "spoil", "why"),
    [
        (SUMMARY, lost(kind="second_moments"), "a run begins again at most 0 times"),
        (ROUNDS, lost(kind="times_scatter"), "a run begins again at most 0 times"),
        # where the server does not know how many columns there are
        (SCALER, MORE, "'west' .its number of masked sums of n_rows is 5"),
        (SCALER, spoiling(LESS, kind="n_rows"), "numbers of rows add up to -.*, expected a numb"),
    ],
)
def test_what_ends_a_fit_by_private_sums(estimator, spoil, why, tmp_path):
    parts = PARTS if estimator is SCALER else {**PARTS, "south": ROWS[:100]}
    with pytest.raises(RuntimeError, match=why):
        private_fit(estimator, tmp_path, spoil=spoil, parts=parts)


def test_of_shares_of_noise_more_sites_than_the_threshold_add_more(tmp_path, monkeypatch):
    """What six sites of a threshold of three add has twice the variance of the noise of one."""
    find, seen = type(SCALER.mechanism)._found, []

    def noted(mechanism, total, d, n_sources):
        seen.append(n_sources)
        return find(mechanism, total, d, n_sources)

    monkeypatch.setattr(type(SCALER.mechanism), "_found", noted)
    private_fit(SCALER, tmp_path, parts={f"site {i}": ROWS[i::6] for i in range(6)})
    assert seen == [2.0]


def test_more_components_than_columns_cost_no_budget(tmp_path):
    with pytest.raises(ValueError, match="n_components=9"):
        private_fit(clone(SUMMARY).set_params(n_components=9), tmp_path, log=True)
    kinds = {line["kind"] for line in lines_of(tmp_path, "west")}
    assert "bounds" in kinds
    assert not kinds & {"moments", "second_moments"}


def test_variances_that_overflow_in_a_sum_leave_a_private_site_out(tmp_path):
    large = spoiling(arrays(products=np.full(5, 1e290)), kind="variances")
    with pytest.warns(UserWarning, match=r"'west' .*values that are too large: mean squares of"):
        found = private_fit(PLAIN_ROUNDS, tmp_path, None, large)
    assert found.clients_ == ["east", "north"]


@pytest.mark.filterwarnings("default::fedpca_sklearn.PrivacyNoiseWarning")
def test_noise_of_more_sites_than_the_threshold_is_seen_as_noise(tmp_path, monkeypatch):
    """Each of eight adds a half of the variance: the noise is twice as large as that of two."""
    seeds = count()
    monkeypatch.setattr(_site_policy, "seeds_of", lambda state: next(seeds))
    parts = {f"site {i}": 1e-3 * ROWS[20 * i : 20 * i + 20] for i in range(8)}
    with pytest.warns(PrivacyNoiseWarning):
        private_fit(SUMMARY, tmp_path, SecureAggregation(threshold=2, restarts=0), parts=parts)


def test_sites_find_norms_and_centres_of_their_own(tmp_path):
    """With so much budget that noise is small, beside one process: norms, mean, components."""
    private = made("AnalyzeGauss(1e4, 1e-3, 'private', center='private')")
    asked = made("FederatedPCA('above_noise')").set_params(mechanism=clone(private))
    found = private_fit(asked, tmp_path, None)
    here = clone(asked).set_params(random_state=0).fit(ROWS, clients=LABELS)
    norms = [pca.subspace_.privacy.row_norm for pca in (found, here)]
    assert abs(np.log2(norms[0] / norms[1])) < 0.6  # longer norms are sqrt(2) apart
    assert found.n_components_ == found.n_components_above_noise_
    assert found.mean_ == pytest.approx(here.mean_, abs=0.05)
    assert found.privacy_spent_.epsilon == pytest.approx(1e4, rel=1e-6)
    for site in PARTS:
        lines = [json.loads(line) for line in (tmp_path / site).read_text().splitlines()]
        assert [line.get("release") for line in lines] == ["center", "row_norm", None]


# -------------------------------------------------------------------- the log of a site


def lines_of(folder, site):
    return [json.loads(line) for line in (folder / f"{site}.log").read_text().splitlines()]


def test_the_log_has_the_hash_of_what_left_the_site_and_not_of_its_numbers(tmp_path):
    left = defaultdict(list)

    def note(site, message, reply):
        left[site].append(sizes_of(reply.content.array_records["arrays"]))
        return reply

    private_fit(SUMMARY, tmp_path, spoil=note, log=True)
    for site in PARTS:
        answers = [line for line in lines_of(tmp_path, site) if line["event"] == "answer"]
        noted = [{name: line[name] for name in left[site][0]} for line in answers]
        assert noted == left[site]
        assert len(answers) == 2 + 2 * 3  # bounds and keys, rounds of two sums
        masked = [line for line in answers if line["kind"] == "second_moments"]
        assert [line["shapes"] for line in masked] == [{"masked": [16]}]
