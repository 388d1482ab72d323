"""The audit of `bench privacy_audit`, small: promises hold, and faults are caught."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from fedpca_sklearn import AnalyzeGauss, FedPowerNoise, ModSuLQ, StreamingModSuLQ
from fedpca_sklearn.privacy._gaussian import mu_of

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import privacy_audit as audit

# small data: what is released is mostly noise
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning"),
    pytest.mark.filterwarnings("ignore::fedpca_sklearn.privacy.PrivacyBoundWarning"),
]


def gaussians(mu, n_runs, seed=0):
    """Samples of two normal distributions, in one of three coordinates."""
    here, there = np.random.default_rng(seed).standard_normal((2, n_runs, 3))
    here[:, 1] += mu
    return here, there


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_the_attack_wins_nearly_all_there_is_and_never_more(epsilon):
    mu = mu_of(epsilon, audit.DELTA)
    bounds = [
        audit.lower_bound(*gaussians(mu, 40_000, seed), audit.DELTA, 0.05) for seed in range(20)
    ]
    assert 0.75 * epsilon < np.mean(bounds) < epsilon
    assert sum(bound > epsilon for bound in bounds) <= 5  # one in twenty, of twenty


def test_intervals_are_those_of_clopper_and_pearson():
    stats = pytest.importorskip("scipy.stats")
    hits, false = np.repeat([1.0, 0.0], [60, 40]), np.repeat([1.0, 0.0], [20, 80])
    power = stats.binomtest(60, 100).proportion_ci(0.98, "exact").low
    size = stats.binomtest(20, 100).proportion_ci(0.98, "exact").high
    found = audit._bound(hits, false, 1, 0.5, 0.01, 0.02)
    assert abs(found - math.log((power - 0.01) / size)) < 1e-9


def test_what_cannot_be_told_apart_and_what_can_without_doubt():
    here, there = gaussians(0.0, 2000)
    assert audit.lower_bound(here, there, 0.01) == 0.0
    there[:, 2] = 0.25  # one number without noise
    here[:, 2] = 0.5
    assert audit.lower_bound(here, there, 0.01) > 4


@pytest.mark.parametrize("trust", ["client", "sum"])
@pytest.mark.parametrize("mean", ["private", "fixed"])
@pytest.mark.parametrize(
    ("kind", "epsilon"),
    [(AnalyzeGauss, 1.0), (ModSuLQ, 4.0), (StreamingModSuLQ, 10.0), (FedPowerNoise, 1.0)],
)
def test_nothing_gives_away_more_than_is_stated(kind, epsilon, mean, trust):
    mechanism = kind(epsilon, audit.DELTA, audit.R, mean=mean, mean_share=0.5, trust=trust)
    pair = "axes" if mean == "fixed" else "mirrored"
    rows = list(audit.audited(mechanism, pair, 1500, 60))
    assert [row["seen"] for row in rows] == ["messages", "attributes"]
    assert {row["verdict"] for row in rows} == {"holds"}
    for row in rows:
        assert row["lower bound"] <= row["stated"] <= epsilon * (1 + 1e-9)
    if (kind, mean) == (AnalyzeGauss, "fixed"):  # a bound that can be broken
        assert rows[0]["lower bound"] > 0.25


@pytest.mark.parametrize("fault", audit.FAULTS, ids=lambda fault: fault.name)
def test_faults_are_caught(fault):
    row = audit.attacked(fault, 8000)
    assert row["verdict"] == "caught"
    assert row["lower bound"] > row["stated"]


@pytest.mark.parametrize("what", audit.SEARCHES)
def test_searches_give_away_no_more_than_is_stated(what):
    epsilon, bound = audit.search_audited(what, 3000)
    assert 0.1 < bound <= epsilon  # a bound that can be broken


@pytest.mark.parametrize("pair", audit.WHOLE_PAIRS)
def test_searches_and_release_together_give_away_no_more_than_is_stated(pair):
    epsilon, bound = audit.whole_audited(pair, 400)
    assert bound <= epsilon


def test_a_shape_gives_away_no_more_than_is_stated():
    with audit.stretched():
        epsilon, bound = audit.whole_audited("two axes", 1000)
    assert 0.1 < bound <= epsilon  # a bound that can be broken


@pytest.mark.parametrize("name", audit.WHOLE_FAULTS)
def test_faults_of_searches_and_releases_together_are_caught(name):
    row = audit.whole_attacked(name, 2200)
    assert row["lower bound"] > row["stated"] == 2.0


@pytest.mark.parametrize("pair", audit.ROW_PAIRS)
def test_counts_of_scores_give_away_no_more_than_is_stated(pair):
    epsilon, bound = audit.counts_audited(pair, 3000)
    assert bound <= epsilon
    assert bound > 0.3 or pair == "far away"  # a bound that can be broken


@pytest.mark.parametrize("name", audit.COUNT_FAULTS)
def test_faults_of_counts_are_caught(name):
    assert audit.counts_attacked(name, 4000)["verdict"] == "caught"


@pytest.mark.parametrize("name", audit.SEARCH_FAULTS)
def test_faults_of_searches_are_caught(name):
    assert audit.search_attacked(name, 3000)["verdict"] == "caught"


@pytest.mark.parametrize("pair", audit.SCALE_PAIRS)
def test_sums_for_scales_give_away_no_more_than_is_stated(pair):
    epsilon, bound = audit.scales_audited(pair, 3000)
    assert (0.3 if pair == "in other bins" else 0.05) < bound <= epsilon


@pytest.mark.parametrize("name", audit.SCALE_FAULTS)
def test_faults_of_sums_for_scales_are_caught(name):
    assert audit.scales_attacked(name, 3000)["verdict"] == "caught"
