"""Accounts that cannot be argued with, in an estimator and in a ledger.

From the side of somebody who wants one release more than was promised. The oracle is the plain sum
of mu^2 of all releases that were computed, counted where they are computed.
"""

import copy
import json
import math
import os
import pickle
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import joblib
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import GridSearchCV

from fedpca_sklearn import (
    AnalyzeGauss,
    FederatedPCA,
    FederatedPowerPCA,
    FedPowerNoise,
    ModSuLQ,
    PrivacyBudgetError,
    PrivacyLeakWarning,
    PrivacyLedger,
    StreamingModSuLQ,
    SubspaceMerge,
)
from fedpca_sklearn.federated import _private
from fedpca_sklearn.privacy import Mechanism, PrivacySpent, SecondMomentMechanism, gaussian_cost
from fedpca_sklearn.privacy._gaussian import epsilon_of, mu_of
from fedpca_sklearn.rounds._queries import Variances

# small data: what is released is mostly noise
pytestmark = pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning")
inf = math.inf
every_trust = pytest.mark.parametrize("trust", ["client", "sum"])


def rows(n=60, d=6, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d)) * np.linspace(2, 0.5, d)


def private(epsilon=1.0, **options):
    return AnalyzeGauss(epsilon, 1e-5, 3.0, **options)


def epsilon_after(n_releases, of):
    """Epsilon of some of the releases that a budget of 1 is split over."""
    return epsilon_of(mu_of(1.0, 1e-5) * math.sqrt(n_releases / of), 1e-5)


@pytest.fixture
def computed(monkeypatch):
    """Seeds of the noise of all messages that clients of `FederatedPCA` compute."""
    seeds, message = [], _private.Release.message

    def recording(self, rows, kind, arguments, number):
        seeds.append((*self.seeds, number))
        return message(self, rows, kind, arguments, number)

    monkeypatch.setattr(_private.Release, "message", recording)
    return seeds


class FailingMerge(SubspaceMerge):
    """A merge that fails when it is told to."""

    fails = True

    def _merge(self, parts, n_components, kept):
        if type(self).fails:
            raise RuntimeError("the server fell over")
        return super()._merge(parts, n_components, kept)


@pytest.fixture
def failing(monkeypatch):
    """Switch of the merges."""
    monkeypatch.setattr(FailingMerge, "fails", True)
    return lambda fails: monkeypatch.setattr(FailingMerge, "fails", fails)


# ------------------------------------------------------------------------ a charge is for good


@every_trust
@pytest.mark.parametrize("kind", [AnalyzeGauss, ModSuLQ, StreamingModSuLQ])
def test_a_release_with_a_bound_from_the_data_is_never_forgotten(kind, trust):
    mechanism = kind(1.0, 1e-5, "data", n_releases=3, trust=trust)
    model = FederatedPCA(2, mechanism=mechanism, random_state=0)
    with pytest.warns(PrivacyLeakWarning):
        model.partial_fit(rows())
    assert model.privacy_spent_ == (inf, 1e-5)
    model.set_params(mechanism__row_norm=1.0)
    assert model.privacy_spent_ == (inf, 1e-5)
    model.partial_fit(rows())
    assert model.privacy_spent_ == (inf, 1e-5)
    model.set_params(mechanism=None)
    assert model.privacy_spent_ == (inf, 1e-5)
    assert model.set_params(mechanism=kind(1.0, 1e-5, 1.0)).fit(rows()).privacy_spent_[0] < 2


@every_trust
def test_a_failing_merge_leaves_the_account_charged(trust, computed, failing):
    """A hundred tries have as many releases as the budget, and each noise of its own."""
    model = FederatedPCA(
        2, merge=FailingMerge(), mechanism=private(n_releases=3, trust=trust), random_state=0
    )
    refused = 0
    for _ in range(100):
        try:
            model.partial_fit(rows(), clients=["a"] * 60)
        except PrivacyBudgetError:
            refused += 1
        except RuntimeError:
            assert not hasattr(model, "components_")
    assert refused == 97
    assert len(computed) == 3 * 2  # a sum and a second moment
    assert len(set(computed)) == len(computed)
    assert_allclose(model.privacy_spent_, (1.0, 1e-5), rtol=1e-9)


@every_trust
def test_a_failing_call_changes_nothing_but_the_account(trust, failing):
    failing(False)
    model = FederatedPCA(
        2, merge=FailingMerge(), mechanism=private(n_releases=3, trust=trust), random_state=0
    ).partial_fit(rows())
    before = {k: v for k, v in vars(model).items() if k != "_accounts"}
    before = pickle.dumps(before)
    failing(True)
    with pytest.raises(RuntimeError):
        model.partial_fit(rows(seed=1))
    after = {k: v for k, v in vars(model).items() if k != "_accounts"}
    assert pickle.dumps(after) == before
    assert_allclose(model.privacy_spent_.epsilon, epsilon_after(2, 3), rtol=1e-9)
    with pytest.raises(RuntimeError):
        model.fit(rows(seed=1))  # a fit that fails is charged to the account that stays
    assert_allclose(model.privacy_spent_.epsilon, 1.0, rtol=1e-9)
    failing(False)
    with pytest.raises(PrivacyBudgetError):
        model.partial_fit(rows())
    model.fit(rows())
    assert_allclose(model.privacy_spent_.epsilon, epsilon_after(1, 3), rtol=1e-9)


def test_an_interruption_at_any_point_after_the_charge_keeps_it(monkeypatch):
    """Whatever `FederatedPCA` calls once a client has computed a message."""
    for name in ("summary_of_sums", "private_summary"):
        trust = "sum" if name == "summary_of_sums" else "client"
        whole = getattr(_private, name)

        def interrupted(*arguments, whole=whole):
            whole(*arguments)
            raise KeyboardInterrupt

        model = FederatedPCA(2, mechanism=private(trust=trust))
        with monkeypatch.context() as patch:
            patch.setattr(_private, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                model.partial_fit(rows())
        with pytest.raises(PrivacyBudgetError):
            model.partial_fit(rows())


@pytest.mark.parametrize("fitted", [False, True])
def test_rounds_that_fail_are_spent(fitted, monkeypatch):
    mechanism = FedPowerNoise(1.0, 1e-5, 3.0)
    model = FederatedPowerPCA(2, n_rounds=2, mechanism=mechanism, random_state=0)
    if fitted:
        model.fit(rows())
    monkeypatch.setattr(Variances, "private", None)
    with pytest.raises(TypeError):
        model.fit(rows())
    mu = mu_of(1.0, 1e-5) * math.sqrt(1 + fitted)
    assert_allclose(model.privacy_spent_.epsilon, epsilon_of(mu, 1e-5), rtol=1e-9)
    assert hasattr(model, "components_") == fitted


def test_what_is_refused_beforehand_costs_nothing():
    model = FederatedPowerPCA(2, n_rounds=2, mechanism=FedPowerNoise(1.0, 1e-5, 3.0))
    wrong = [
        {"init": np.eye(3)},
        {"mechanism__center": np.zeros(3)},
    ]
    for options in wrong:
        other = clone(model).set_params(**options)
        with pytest.raises(ValueError, match="shape"):
            other.fit(rows())
        assert not hasattr(other, "privacy_spent_")
    bad = rows()
    bad[-1, 0] = np.nan
    for other in (clone(model), FederatedPCA(2, mechanism=private())):
        with pytest.raises(ValueError, match=r"Client 1: .*NaN"):
            other.fit(bad)
        assert not hasattr(other, "privacy_spent_")


# ------------------------------------------------------------------------------------- labels


@pytest.mark.parametrize(
    ("first", "second"),
    [(1, "1"), ("1", 1), ("1", " 1"), ("1", "1\t"), ("caf\u00e9", "cafe\u0301")],
)
@pytest.mark.parametrize("fails", [False, True])
def test_a_client_has_one_account_however_it_is_written(first, second, fails, failing):
    failing(fails)
    model = FederatedPCA(2, merge=FailingMerge(), mechanism=private(), random_state=0)
    try:
        model.partial_fit(rows(), clients=[first] * 60)
    except RuntimeError:
        assert fails
    with pytest.raises(ValueError, match=re.escape(f"{first!r} and {second!r}")):
        model.partial_fit(rows(), clients=[second] * 60)


def test_two_spellings_in_one_call_are_refused():
    model = FederatedPCA(2, mechanism=private())
    with pytest.raises(ValueError, match="' 1' and '1'"):
        model.fit(rows(), clients=["1", " 1"] * 30)
    with pytest.raises(ValueError, match="' 1' and '1'"):
        FederatedPowerPCA(2, mechanism=FedPowerNoise(1.0, 0.1, 1.0)).fit(
            rows(), clients=["1", " 1"] * 30
        )


def test_numbers_of_any_type_are_one_client():
    model = FederatedPCA(2, mechanism=private(n_releases=3), random_state=0)
    for labels in (np.ones(60, np.int8), list(np.ones(60)), np.ones(60, np.uint64)):
        model.partial_fit(rows(), clients=labels)
    with pytest.raises(PrivacyBudgetError):
        model.partial_fit(rows(), clients=[True] * 60)
    assert_allclose(model.privacy_spent_.epsilon, 1.0, rtol=1e-9)


# ------------------------------------------------------------------------------------- ledger


@pytest.fixture
def ledger(tmp_path):
    return PrivacyLedger(tmp_path / "ledger.jsonl")


def lines_of(ledger):
    return [json.loads(line) for line in Path(ledger.path).read_text().splitlines()]


def test_a_line_says_what_was_released(ledger):
    model = FederatedPCA(2, mechanism=private(n_releases=2, ledger=ledger))
    model.fit(rows(), clients=np.repeat(["north", " s\u00fcd"], 30))
    first, second = lines_of(ledger)
    assert (first["label"], second["label"]) == ("s\u00fcd", "north")
    assert (first["id"], second["id"]) == (1, 2)
    for line in (first, second):
        assert line["mechanism"] == "AnalyzeGauss"
        assert (line["epsilon"], line["delta"], line["share"]) == (1.0, 1e-5, 0.5)
        assert_allclose(line["mu2"], mu_of(1.0, 1e-5) ** 2 / 2)
        assert line["time"].endswith("+00:00")
    assert_allclose(model.privacy_spent_, ledger.spent(1e-5)["north"])
    assert model.privacy_spent_.account == ledger.path
    assert repr(ledger.path) in repr(model.privacy_spent_)


def test_without_a_ledger_what_is_shown_is_of_this_fit_alone():
    model = FederatedPCA(2, mechanism=private()).fit(rows())
    assert "of this fit alone" in repr(model.privacy_spent_)
    epsilon, _ = spent = pickle.loads(pickle.dumps(model.privacy_spent_))
    assert spent == model.privacy_spent_ == (epsilon, 1e-5)
    moved = pickle.loads(pickle.dumps(PrivacySpent(1.0, 0.1).counted_in("here")))
    assert moved.account == "here"


def again(model, X=None):
    """Whether one more fit is refused, with nothing written."""
    size = os.path.getsize(model.mechanism.ledger.path)
    with pytest.raises(PrivacyBudgetError, match="no budget left in the ledger"):
        model.fit(rows() if X is None else X)
    assert os.path.getsize(model.mechanism.ledger.path) == size


@every_trust
@pytest.mark.parametrize("kind", [AnalyzeGauss, FedPowerNoise])
def test_a_second_fit_a_copy_and_a_pickle_are_refused(kind, trust, ledger):
    mechanism = kind(1.0, 1e-5, 3.0, ledger=ledger, trust=trust)
    model = (
        FederatedPCA(2, mechanism=mechanism)
        if kind is AnalyzeGauss
        else FederatedPowerPCA(2, n_rounds=2, mechanism=mechanism)
    ).fit(rows())
    for other in (
        model,
        clone(model),
        copy.copy(model),
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        clone(model).set_params(mechanism__ledger=PrivacyLedger(ledger.path)),
        FederatedPCA(2, mechanism=private(ledger=ledger)),
    ):
        again(other, np.full((60, 6), 1e300))
    assert_allclose(ledger.spent(1e-5)["1"], (1.0, 1e-5), rtol=1e-9)


def test_an_exhausted_ledger_refuses_before_rows_are_looked_at(ledger):
    model = FederatedPCA(2, mechanism=private(ledger=ledger)).fit(rows())
    again(model, np.full((60, 6), np.nan))


def test_labels_of_all_kinds_have_one_account_in_a_ledger(ledger):
    FederatedPCA(2, mechanism=private(ledger=ledger)).fit(rows(), clients=[1] * 60)
    for label in ("1", " 1", True):
        model = FederatedPCA(2, mechanism=private(ledger=ledger))
        with pytest.raises(PrivacyBudgetError):
            model.fit(rows(), clients=[label] * 60)


@pytest.mark.parametrize("label", ["a\u200b", "a\u2065", "\x1b[2Ja", "a" * 70_000])
def test_no_label_is_a_second_account_that_looks_alike_or_spoils_the_file(ledger, label):
    """A line of more than 64 KB would never be read again."""
    FederatedPCA(2, mechanism=private(ledger=ledger)).fit(rows(), clients=["a"] * 60)
    before = lines_of(ledger)
    with pytest.raises(ValueError, match="clients must"):
        FederatedPCA(2, mechanism=private(ledger=ledger)).fit(rows(), clients=[label] * 60)
    assert lines_of(ledger) == before


def test_a_failing_merge_is_written(ledger, failing):
    model = FederatedPCA(2, merge=FailingMerge(), mechanism=private(ledger=ledger))
    with pytest.raises(RuntimeError):
        model.fit(rows())
    failing(False)
    again(model)


def test_a_search_is_refused_when_the_budget_is_spent(ledger):
    model = FederatedPCA(2, mechanism=private(n_releases=3, ledger=ledger))
    search = GridSearchCV(model, {"n_components": [1, 2]}, cv=2, refit=False)
    with (
        pytest.warns(FitFailedWarning, match="no budget left in the ledger"),
        pytest.warns(UserWarning, match="non-finite"),
    ):
        search.fit(rows())
    assert np.isnan(search.cv_results_["split1_test_score"]).sum() == 1
    assert len(lines_of(ledger)) == 3 * 2  # two shards each


def test_the_flushed_line_comes_before_the_noise(ledger, monkeypatch):
    events, message, sync = [], _private.Release.message, os.fsync

    def recorded(what, function):
        def call(*arguments):
            events.append(what)
            return function(*arguments)

        return call

    monkeypatch.setattr(_private.Release, "message", recorded("noise", message))
    monkeypatch.setattr(os, "fsync", recorded("fsync", sync))
    FederatedPCA(2, mechanism=private(ledger=ledger)).fit(rows())
    assert events[0] == "fsync"
    assert events.index("noise") > max(i for i, e in enumerate(events) if e == "fsync")


def test_a_full_disk_releases_nothing(ledger, computed, monkeypatch):
    FederatedPCA(2, mechanism=private(n_releases=2, ledger=ledger)).fit(rows())
    size, n_computed = os.path.getsize(ledger.path), len(computed)
    write = os.write

    def full(file, data):
        write(file, bytes(data[:20]))
        raise OSError(28, "No space left on device")

    model = FederatedPCA(2, mechanism=private(n_releases=2, ledger=ledger))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            model.fit(rows())
    assert os.path.getsize(ledger.path) == size
    assert len(computed) == n_computed
    model.fit(rows())
    again(model)


def one_release(path):
    """1 if a release fits into the ledger."""
    model = FederatedPCA(1, mechanism=private(n_releases=4, ledger=PrivacyLedger(path)))
    try:
        model.fit(rows(20), clients=["a"] * 20)
    except PrivacyBudgetError:
        return 0
    return 1


def test_threads_and_processes_share_the_budget(ledger):
    with ThreadPoolExecutor(8) as pool:
        won = sum(pool.map(one_release, [ledger.path] * 8))
    assert won == 4
    os.remove(ledger.path)
    with joblib.parallel_config(backend="loky", n_jobs=2):
        won = sum(joblib.Parallel()(joblib.delayed(one_release)(ledger.path) for _ in range(8)))
    assert won == 4
    assert [line["id"] for line in lines_of(ledger)] == [1, 2, 3, 4]
    shared = FederatedPCA(1, mechanism=private(n_releases=4, ledger=ledger))
    with pytest.raises(PrivacyBudgetError):
        shared.fit(rows(20), clients=["a"] * 20)


def test_a_crash_while_noise_is_drawn_is_spent(ledger):
    """A process that is killed at its first random number."""
    code = (
        "import os, numpy as np, fedpca_sklearn as f\n"
        "np.random.default_rng = lambda *a: os._exit(9)\n"
        f"m = f.AnalyzeGauss(1.0, 1e-5, 3.0, ledger=f.PrivacyLedger({ledger.path!r}))\n"
        "f.FederatedPCA(1, mechanism=m).fit(np.eye(4), clients=['a'] * 4)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    model = FederatedPCA(1, mechanism=private(ledger=ledger))
    with pytest.raises(PrivacyBudgetError):
        model.fit(rows(), clients=["a"] * 60)


@pytest.mark.parametrize("cut", range(1, 260, 7))
def test_a_line_that_was_cut_off_is_spent_or_refuses(ledger, cut):
    """Never more than the two releases of the budget, wherever the crash was."""
    for _ in range(2):
        FederatedPCA(1, mechanism=private(n_releases=2, ledger=ledger)).fit(
            rows(), clients=["a"] * 60
        )
    size = os.path.getsize(ledger.path)
    last = Path(ledger.path).read_bytes().splitlines(keepends=True)[-1]
    cut = min(cut, len(last) - 1)
    os.truncate(ledger.path, size - cut)
    model = FederatedPCA(1, mechanism=private(n_releases=2, ledger=PrivacyLedger(ledger.path)))
    readable = b'"time"' in last[:-cut] or last[:-cut].count(b", ") >= 2
    with pytest.raises(ValueError, match="no budget left" if readable else "cut off") as caught:
        model.fit(rows(), clients=["a"] * 60)
    assert isinstance(caught.value, PrivacyBudgetError) == readable
    if readable:  # what is there now is whole
        assert [line["id"] for line in lines_of(ledger)] == [1, 2]
        assert_allclose(PrivacyLedger(ledger.path).spent(1e-5)["a"].epsilon, 1.0, rtol=1e-9)


TAMPERINGS = {
    "a cost is lowered": lambda lines: [lines[0].replace(b"0.0", b"0.00", 1), *lines[1:]],
    "a label is changed": lambda lines: [lines[0].replace(b'"a"', b'"b"'), *lines[1:]],
    "a line is left out": lambda lines: [lines[0], *lines[2:]],
    "the first is left out": lambda lines: lines[1:],
    "lines are exchanged": lambda lines: [lines[1], lines[0], *lines[2:]],
    "a line comes twice": lambda lines: [*lines, lines[-1]],
    "not JSON": lambda lines: [*lines, b"hello\n"],
    "a number": lambda lines: [*lines, b"1\n"],
    "a list": lambda lines: [*lines, b'[1, "chain"]\n'],
    "deep": lambda lines: [*lines, b"[" * 50_000 + b"\n"],
    "an empty line": lambda lines: [*lines, b"\n"],
    "no text": lambda lines: [*lines, b"\xff\xfe\n"],
    "no end": lambda lines: [*lines, b"x" * 100_000],
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_a_ledger_that_is_not_what_was_written_is_refused(ledger, name):
    for _ in range(3):
        FederatedPCA(1, mechanism=private(n_releases=5, ledger=ledger)).fit(
            rows(), clients=["a"] * 60
        )
    lines = Path(ledger.path).read_bytes().splitlines(keepends=True)
    Path(ledger.path).write_bytes(b"".join(TAMPERINGS[name](lines)))
    before = Path(ledger.path).read_bytes()
    fresh = PrivacyLedger(ledger.path)
    with pytest.raises(ValueError, match=r"The ledger .*ledger\.jsonl .*no release"):
        fresh.spent(1e-5)
    model = FederatedPCA(1, mechanism=private(n_releases=5, ledger=fresh))
    with pytest.raises(ValueError, match="The ledger"):
        model.fit(rows(), clients=["a"] * 60)
    assert not hasattr(model, "privacy_spent_")
    assert Path(ledger.path).read_bytes() == before
    if name in ("a label is changed", "lines are exchanged"):
        # who has read the lines before looks at the last of them only, and remembers the others
        assert_allclose(ledger.spent(1e-5)["a"].epsilon, epsilon_after(3, 5), rtol=1e-9)
        return
    with pytest.raises(ValueError, match="no release"):
        ledger.spent(1e-5)


def test_a_ledger_that_was_put_back_is_noticed_by_who_has_seen_more(ledger):
    model = FederatedPCA(1, mechanism=private(n_releases=2, ledger=ledger))
    model.fit(rows())
    old = Path(ledger.path).read_bytes()
    model.fit(rows())
    stored = pickle.dumps(model)
    for content in (old, b""):
        Path(ledger.path).write_bytes(content)
        for other in (model, pickle.loads(stored), pickle.loads(pickle.dumps(model))):
            with pytest.raises(ValueError, match=r"bytes and had"):
                other.fit(rows())
    os.remove(ledger.path)
    with pytest.raises(ValueError, match=r"has 0 bytes and had"):
        pickle.loads(stored).fit(rows())


def test_a_ledger_that_forked_is_noticed(ledger):
    """Put back, then gone on with by somebody else beyond its old size."""
    model = FederatedPCA(1, mechanism=private(n_releases=9, ledger=ledger))
    model.fit(rows())
    old = Path(ledger.path).read_bytes()
    model.fit(rows())
    Path(ledger.path).write_bytes(old)
    other = FederatedPCA(1, mechanism=private(n_releases=9, ledger=PrivacyLedger(ledger.path)))
    other.fit(rows(), clients=["somebody with a longer name"] * 60)
    other.fit(rows(), clients=["somebody with a longer name"] * 60)
    with pytest.raises(ValueError, match="was changed before byte"):
        model.fit(rows())


def test_only_what_is_new_is_read(ledger, monkeypatch):
    model = FederatedPCA(1, mechanism=private(n_releases=1000, ledger=ledger))
    for _ in range(50):
        model.fit(rows(8), clients=["a"] * 8)
    n_read, entry = [0], PrivacyLedger._lines

    def counted(self, stream, known):
        found = entry(self, stream, known)
        n_read[0] += found.n_lines - known.n_lines
        return found

    monkeypatch.setattr(PrivacyLedger, "_lines", counted)
    for other in (model, clone(model), copy.deepcopy(model)):
        other.fit(rows(8), clients=["a"] * 8)
    assert n_read[0] == 0
    FederatedPCA(1, mechanism=private(n_releases=1000, ledger=PrivacyLedger(ledger.path))).fit(
        rows(8), clients=["a"] * 8
    )
    assert n_read[0] == 53
    model.fit(rows(8), clients=["a"] * 8)
    assert n_read[0] == 54  # what the other object has added


def test_infinite_costs_are_kept_and_refuse_finite_budgets(ledger):
    mechanism = AnalyzeGauss(1.0, 1e-5, "data", ledger=ledger)
    with pytest.raises(PrivacyBudgetError):  # before the warning
        FederatedPCA(1, mechanism=mechanism).fit(rows())
    open_handed = private(inf, ledger=ledger)
    model = FederatedPCA(1, mechanism=open_handed).fit(rows()).fit(rows())
    assert model.privacy_spent_ == (inf, 1e-5)
    assert lines_of(ledger)[0]["mu2"] == "inf"
    assert PrivacyLedger(ledger.path).spent(0.1)["0"] == (inf, 0.1)
    again(FederatedPCA(1, mechanism=private(1e6, ledger=ledger)))


def test_a_ledger_that_joins_later_counts_what_it_has_seen(ledger):
    model = FederatedPCA(1, mechanism=private(n_releases=3), random_state=0)
    model.partial_fit(rows())
    model.set_params(mechanism__ledger=ledger).partial_fit(rows())
    assert_allclose(model.privacy_spent_.epsilon, epsilon_after(2, 3), rtol=1e-9)
    assert_allclose(ledger.spent(1e-5)["0"].epsilon, epsilon_after(1, 3), rtol=1e-9)


def test_results_are_those_without_a_ledger(ledger):
    plain = FederatedPCA(2, mechanism=private(), random_state=0).fit(rows())
    model = FederatedPCA(2, mechanism=private(ledger=ledger), random_state=0).fit(rows())
    assert_array_equal(model.components_, plain.components_)


def test_the_ledger_is_a_checked_parameter(ledger, tmp_path):
    with pytest.raises(ValueError, match="ledger"):
        FederatedPCA(1, mechanism=private(ledger="file")).fit(rows())
    with pytest.raises(ValueError, match="delta must be between 0 and 1"):
        ledger.spent(1.0)
    assert ledger.spent(0.1) == {}
    assert not os.path.exists(ledger.path)
    assert "ledger.jsonl" in repr(private(ledger=ledger))
    os.chdir(tmp_path)
    assert PrivacyLedger("ledger.jsonl").path == ledger.path


# --------------------------------------------------------------- mechanisms state their own cost


def laplace(self, shape, std, rng):
    return rng.laplace(scale=std, size=shape)


def test_who_draws_other_noise_says_what_it_costs():
    for base in (SecondMomentMechanism, AnalyzeGauss, ModSuLQ, StreamingModSuLQ):
        with pytest.raises(TypeError, match="must define _noise_cost, because it defines _noise"):
            type("Laplace", (base,), {"_noise": laplace})
    mixin = type("Mixin", (), {"_noise": laplace})
    with pytest.raises(TypeError, match="Mixin must define _noise_cost"):
        type("Laplace", (mixin, AnalyzeGauss), {})
    for name, stated in (
        ("noisy_columns", "_noise_cost"),
        ("noisy_sum", "_sum_cost"),
    ):
        with pytest.raises(TypeError, match=f"must define {stated}, because it defines {name}"):
            type("Other", (AnalyzeGauss,), {name: laplace})
    for name in ("noisy_sum", "noisy_product", "noisy_variances"):
        with pytest.raises(TypeError, match=f"because it defines {name}"):
            type("Other", (FedPowerNoise,), {name: laplace})
    type("Renamed", (AnalyzeGauss,), {"column_blocks": AnalyzeGauss.column_blocks})
    assert issubclass(AnalyzeGauss, Mechanism)


def test_the_account_is_charged_what_the_mechanism_states():
    class Unproven(AnalyzeGauss):
        """Noise of which nobody has shown anything."""

        def _noise(self, shape, std, rng):
            return laplace(self, shape, std, rng)

        def _noise_cost(self, std, n_features, n_shares):
            return inf

    class Twice(AnalyzeGauss):
        """Noise that is twice as large as the budget asks for."""

        def _noise(self, shape, std, rng):
            return 2 * super()._noise(shape, std, rng)

        def _noise_cost(self, std, n_features, n_shares):
            return gaussian_cost(math.sqrt(2), 2 * std)

    class Half(AnalyzeGauss):
        """Noise that is half as large."""

        def _noise(self, shape, std, rng):
            return super()._noise(shape, std, rng) / 2

        def _noise_cost(self, std, n_features, n_shares):
            return gaussian_cost(math.sqrt(2), std / 2)

    spent = [
        FederatedPCA(2, mechanism=kind(1.0, 1e-5, 3.0, mean="fixed")).fit(rows()).privacy_spent_
        for kind in (Unproven, Twice)
    ]
    assert spent[0] == (inf, 1e-5)
    assert_allclose(spent[1].epsilon, epsilon_of(mu_of(1.0, 1e-5) / 2, 1e-5), rtol=1e-9)
    with pytest.raises(PrivacyBudgetError):
        FederatedPCA(2, mechanism=Half(1.0, 1e-5, 3.0)).fit(rows())
