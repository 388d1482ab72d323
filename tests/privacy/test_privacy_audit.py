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


# An audit, what it looks at, how often, and a bound that can be broken
AUDITS = [
    *((audit.search_audited, what, 3000, 0.1) for what in audit.SEARCHES),
    *((audit.whole_audited, pair, 400, -1) for pair in audit.WHOLE_PAIRS),
    *(
        (audit.counts_audited, *of)
        for of in (("across the plane", 3000, 0.3), ("far away", 3000, -1))
    ),
    *(
        (audit.scales_audited, *of)
        for of in (("mirrored", 3000, 0.05), ("in other bins", 3000, 0.3))
    ),
]
FAULTS = [
    *((audit.attacked, fault, 8000) for fault in audit.FAULTS),
    *((audit.whole_attacked, name, 2200) for name in audit.WHOLE_FAULTS),
    *((audit.counts_attacked, name, 4000) for name in audit.COUNT_FAULTS),
    *((audit.search_attacked, name, 3000) for name in audit.SEARCH_FAULTS),
    *((audit.scales_attacked, name, 3000) for name in audit.SCALE_FAULTS),
]


@pytest.mark.parametrize(("attack", "what", "n_runs", "least"), AUDITS)
def test_no_search_count_or_sum_gives_away_more_than_is_stated(attack, what, n_runs, least):
    epsilon, bound = attack(what, n_runs)
    assert least < bound <= epsilon


def test_a_shape_gives_away_no_more_than_is_stated():
    with audit.stretched():
        epsilon, bound = audit.whole_audited("two axes", 1000)
    assert 0.1 < bound <= epsilon  # a bound that can be broken


@pytest.mark.parametrize(("attack", "fault", "n_runs"), FAULTS)
def test_faults_are_caught(attack, fault, n_runs):
    row = attack(fault, n_runs)
    assert row["lower bound"] > row["stated"]
