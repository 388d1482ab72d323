"""The audit of `bench privacy_audit`, small: promises hold, and faults are caught."""

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


AUDITED = [  # of what, how many runs, and how much an attack wins at least
    *((audit.search_audited, what, 3000, 0.1) for what in audit.SEARCHES),
    *((audit.whole_audited, pair, 600, -1) for pair in audit.WHOLE_PAIRS),
    *zip([audit.counts_audited] * 2, audit.ROW_PAIRS, [3000] * 2, [0.3, -1], strict=True),
    *zip([audit.scales_audited] * 2, audit.SCALE_PAIRS, [3000] * 2, [0.05, 0.3], strict=True),
]


@pytest.mark.parametrize(("audited", "what", "n_runs", "least"), AUDITED)
def test_searches_counts_and_scales_give_away_no_more_than_is_stated(audited, what, n_runs, least):
    epsilon, bound = audited(what, n_runs)
    assert least < bound <= epsilon


def test_a_shape_gives_away_no_more_than_is_stated():
    with audit.stretched():
        epsilon, bound = audit.whole_audited("two axes", 1000)
    assert 0.1 < bound <= epsilon  # a bound that can be broken


FAULTS = [
    *((audit.attacked, fault, 8000) for fault in audit.FAULTS),
    *((audit.search_attacked, name, 3000) for name in audit.SEARCH_FAULTS),
    *((audit.whole_attacked, name, 2000) for name in audit.WHOLE_FAULTS),
    *((audit.counts_attacked, name, 8000) for name in audit.COUNT_FAULTS),
    *((audit.scales_attacked, name, 4000) for name in audit.SCALE_FAULTS),
]


@pytest.mark.parametrize(("attacked", "fault", "n_runs"), FAULTS, ids=str)
def test_faults_are_caught(attacked, fault, n_runs):
    row = attacked(fault, n_runs)
    assert row["verdict"] == "caught"
    assert row["lower bound"] > row["stated"]
