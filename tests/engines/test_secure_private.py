"""Noise of a sum over secure sums: what arrives, what it costs, and who may ask for it."""

import json
import os
import secrets
from collections import defaultdict
from itertools import count

import numpy as np
import pytest
from scipy import stats
from sklearn.base import clone

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")

from test_flower import InProcessGrid

from fedpca_sklearn import AnalyzeGauss, FederatedPCA, FederatedPowerPCA, FedPowerNoise
from fedpca_sklearn.engines import _private, _site_policy
from fedpca_sklearn.engines._messages import sizes_of
from fedpca_sklearn.engines.flower import SecureAggregation, SitePolicy, client_app, fit_sites
from fedpca_sklearn.privacy import DiscreteGaussian, PrivacyNoiseWarning

pytestmark = pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning")
SECURE = SecureAggregation(threshold=3, restarts=0)
ROWS = np.random.default_rng(0).standard_normal((600, 5)) * [3.0, 2.0, 1.0, 1.0, 1.0] + 0.5
PARTS = {"east": ROWS[:300], "north": ROWS[300:420], "west": ROWS[420:]}
LABELS = np.repeat(list(PARTS), [300, 120, 180])
NOISE = {"trust": "sum", "noise": DiscreteGaussian()}
SUMMARY = FederatedPCA(2, mechanism=AnalyzeGauss(3.0, 1e-5, 8.0, **NOISE))
ROUNDS = FederatedPowerPCA(
    2, n_rounds=2, tol=0.0, mechanism=FedPowerNoise(3.0, 1e-5, 8.0, **NOISE), init=np.eye(5)[:2]
)
BY_KIND = {"ids": lambda estimator: type(estimator).__name__}


def private_fit(estimator, folder, secure=SECURE, spoil=None, run=1, parts=PARTS, log=False):
    def load(rows):
        return lambda context: rows

    def policy(site):
        return SitePolicy(ledger=folder / site, log=folder / f"{site}.log" if log else None)

    apps = [
        client_app(load(rows), estimator, policy=policy(site), secure=secure)
        for site, rows in parts.items()
    ]
    grid = InProcessGrid(apps, list(parts), spoil)
    for context in grid.contexts.values():
        context.run_id = run
    return fit_sites(grid, estimator, wait=0, secure=secure)


@pytest.mark.parametrize("estimator", [SUMMARY, ROUNDS], **BY_KIND)
def test_secure_sums_without_noise_are_pca_of_the_clipped_rows(estimator, tmp_path):
    exact = clone(estimator).set_params(mechanism__epsilon=np.inf)
    fitted = private_fit(exact, tmp_path)
    expected = clone(exact).fit(ROWS, clients=LABELS)
    np.testing.assert_allclose(fitted.explained_variance_, expected.explained_variance_, rtol=1e-6)
    np.testing.assert_allclose(fitted.components_, expected.components_, atol=1e-6)
    np.testing.assert_allclose(fitted.mean_, expected.mean_, atol=1e-9)
    assert fitted.n_samples_ == 600


@pytest.mark.parametrize("trust", ["sum", "client"])
@pytest.mark.parametrize("estimator", [SUMMARY, ROUNDS], **BY_KIND)
def test_a_budget_is_spent_once_in_all_runs(estimator, trust, tmp_path):
    asked = clone(estimator).set_params(mechanism__trust=trust)
    fitted = private_fit(asked, tmp_path)
    epsilon, delta = fitted.privacy_spent_
    assert 3.0 * (1 - 1e-3) < epsilon <= 3.0 * (1 + 1e-9)
    assert delta == 1e-5
    assert fitted.privacy_spent_.account == "the ledgers of the sites"
    assert fitted.clients_ == list(PARTS)
    with pytest.raises(RuntimeError, match="no budget is left for one more release"):
        private_fit(asked, tmp_path, run=2)


def test_the_noise_of_the_sum_is_that_of_one_process(tmp_path, monkeypatch):
    """Three sites of a threshold of three add a third of the variance each."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    secret = np.random.default_rng(5)  # for the operating system's: all runs are alike
    monkeypatch.setattr(secrets, "randbits", lambda k: int.from_bytes(secret.bytes(k // 8), "big"))
    monkeypatch.setattr(_private.os, "urandom", secret.bytes)
    there = []
    for run in range(10):
        (tmp_path / str(run)).mkdir()
        there.append(private_fit(SUMMARY, tmp_path / str(run)))
    here = [clone(SUMMARY).set_params(random_state=s).fit(ROWS, clients=LABELS) for s in range(200)]
    exact = clone(SUMMARY).set_params(mechanism__epsilon=np.inf).fit(ROWS)

    def errors(fits):
        return np.concatenate([pca.mean_ - exact.mean_ for pca in fits])

    assert stats.ks_2samp(errors(there), errors(here)).pvalue > 0.01


@pytest.mark.parametrize("estimator", [SUMMARY, ROUNDS], **BY_KIND)
def test_what_is_asked_twice_has_noise_of_its_own(estimator, tmp_path, monkeypatch):
    """A message that comes again in a sum of other sites would be taken off by subtraction."""
    made = []
    release = _site_policy.Site.release

    def recorded(self, kind, mechanism, mu2, make, *arguments):
        made.append((self.name, release(self, kind, mechanism, mu2, make, *arguments)))
        again = release(self, kind, mechanism, 0.0, make, *arguments)
        np.testing.assert_array_equal(again, made[-1][1])
        return made[-1][1]

    monkeypatch.setattr(_site_policy.Site, "release", recorded)
    private_fit(estimator, tmp_path)
    numbers = [tuple(np.ravel(array)) for _, array in made]
    assert len(set(numbers)) == len(numbers)


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"needs SecureAggregation\(restarts=0\)"):
        client_app(
            lambda context: ROWS,
            SUMMARY,
            policy=SitePolicy(ledger="x"),
            secure=SecureAggregation(threshold=3),
        )
    normal = clone(SUMMARY).set_params(mechanism__noise=None)
    with pytest.raises(ValueError, match="needs noise that survives integers"):
        client_app(lambda context: ROWS, normal, policy=SitePolicy(ledger="x"), secure=SECURE)
    with pytest.raises(ValueError, match="needs noise that survives integers"):
        fit_sites(InProcessGrid([], []), normal, wait=0, secure=SECURE)


@pytest.mark.parametrize("estimator", [SUMMARY, ROUNDS], **BY_KIND)
def test_a_grid_below_the_resolution_is_refused(estimator, tmp_path):
    with pytest.raises(RuntimeError, match="finer than the scale of secure sums"):
        private_fit(estimator, tmp_path, SecureAggregation(threshold=3, restarts=0, bits=22))


def test_a_lost_site_ends_the_fit(tmp_path):
    def spoil(site, message, reply):
        lost = message.metadata.message_type == "query.second_moments" and site == "west"
        return None if lost else reply

    parts = {**PARTS, "south": ROWS[:100]}
    with pytest.raises(RuntimeError, match="a fit begins again at most 0 times"):
        private_fit(SUMMARY, tmp_path, spoil=spoil, parts=parts)


@pytest.mark.filterwarnings("default::fedpca_sklearn.PrivacyNoiseWarning")
def test_noise_of_more_sites_than_the_threshold_is_seen_as_noise(tmp_path, monkeypatch):
    """Each of eight adds a half of the variance: the noise is twice as large as that of two."""

    seeds = count()
    monkeypatch.setattr(_site_policy, "seeds_of", lambda state: next(seeds))
    parts = {f"site {i}": 1e-3 * ROWS[20 * i : 20 * i + 20] for i in range(8)}
    with pytest.warns(PrivacyNoiseWarning):
        private_fit(SUMMARY, tmp_path, SecureAggregation(threshold=2, restarts=0), parts=parts)


# -------------------------------------------------------------------- the log of a site


def events(folder, site="west"):
    """Event and kind of the lines of a log, and the lines."""
    found = [json.loads(line) for line in (folder / f"{site}.log").read_text().splitlines()]
    return [(line["event"], line["kind"]) for line in found], found


def test_the_log_has_the_hash_of_what_left_the_site_and_not_of_its_numbers(tmp_path):
    left = defaultdict(list)

    def note(site, message, reply):
        left[site].append(sizes_of(reply.content.array_records["arrays"]))
        return reply

    private_fit(SUMMARY, tmp_path, spoil=note, log=True)
    for site in PARTS:
        _, lines = events(tmp_path, site)
        answers = [line for line in lines if line["event"] == "answer"]
        noted = [{name: line[name] for name in left[site][0]} for line in answers]
        assert noted == left[site]
        assert len(answers) == 2 + 2 * 3  # bounds and keys, rounds of two sums
        masked = [line for line in answers if line["kind"] == "second_moments"]
        assert [line["shapes"] for line in masked] == [{"masked": [16]}]


def test_what_is_refused_when_it_is_masked_is_no_answer_but_counts(tmp_path):
    """Else a refusal could be asked for as often as it tells something."""
    fine = SecureAggregation(threshold=3, restarts=0, bits=22)
    for run in (1, 2):  # a site that is started anew
        with pytest.raises(RuntimeError, match="finer than the scale of secure sums"):
            private_fit(SUMMARY, tmp_path, fine, run=run, log=True)
    noted, lines = events(tmp_path)
    begun = [kind for event, kind in noted if event == "question"]
    assert [kind for event, kind in noted if event == "refusal"] == [begun[-1]] * 2
    assert ("answer", begun[-1]) not in noted
    spent = [line["mu2"] for line in lines if "mu2" in line]
    tally = SitePolicy(log=tmp_path / "west.log").log.read()
    assert tally.rounds == len(begun)
    assert tally.mu2 == max(spent, default=0.0)
