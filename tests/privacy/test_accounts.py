"""Accounts that cannot be argued with, in an estimator and in a ledger.

From the side of somebody who wants one release more than was promised. The oracle is the plain sum
of mu^2 of all releases that were computed, counted where they are computed.
"""

import copy
import json
import math
import multiprocessing
import os
import pickle
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from privacy_helpers import ONE_ROUND, every_trust, inf, model_of, mostly_noise, rows
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from fedpca_sklearn import (
    AnalyzeGauss,
    FederatedPCA,
    FedPowerNoise,
    PerfectChannel,
    PrivacyBudgetError,
    PrivacyLeakWarning,
    PrivacyLedger,
    SubspaceMerge,
)
from fedpca_sklearn.federated import _private
from fedpca_sklearn.privacy import PrivacySpent, SecondMomentMechanism, _ledger, gaussian_cost
from fedpca_sklearn.privacy._gaussian import epsilon_of, mu_of
from fedpca_sklearn.privacy._ledger import Account, Accounts, locked
from fedpca_sklearn.rounds._queries import Variances

pytestmark = mostly_noise
ONE = ["a"] * 60


def private(epsilon=1.0, **options):
    return AnalyzeGauss(epsilon, 1e-5, 3.0, **options)


def model(k=2, merge=None, **options):
    return FederatedPCA(k, merge=merge, mechanism=private(**options), random_state=0)


def composed(n_releases, of):
    """What some of the releases cost that a budget of 1 is split over."""
    return epsilon_of(mu_of(1.0, 1e-5) * math.sqrt(n_releases / of), 1e-5), 1e-5


def assert_spent(found, n_releases=1, of=1):
    assert_allclose(found, composed(n_releases, of), rtol=1e-9)


@pytest.fixture
def computed(monkeypatch):
    """Seeds of the noise of all messages that clients of `FederatedPCA` compute."""
    seeds, message = [], _private.Release.message

    def recording(self, rows, kind, arguments, number):
        seeds.append((*self.seeds, number))
        return message(self, rows, kind, arguments, number)

    monkeypatch.setattr(_private.Release, "message", recording)
    return seeds


@pytest.fixture
def failing(monkeypatch):
    """Switch of merges that fail, or the error with which they do."""
    merge, fails = SubspaceMerge._merge, [True]

    def either(self, parts, n_components, kept):
        if fails[0]:
            raise RuntimeError("the server fell over") if fails[0] is True else fails[0]
        return merge(self, parts, n_components, kept)

    monkeypatch.setattr(SubspaceMerge, "_merge", either)
    return partial(fails.__setitem__, 0)


# ------------------------------------------------------------------------ a charge is for good


@every_trust
def test_each_call_is_spent_and_one_too_many_is_refused_before_rows_are_looked_at(trust):
    X, labels = rows(), np.repeat(["a", "b"], 30)
    pca = model(n_releases=3, trust=trust)
    # b draws level in the third call: the maximum stays
    for part, n_spent in ((slice(60), 1), (slice(30), 2), (slice(30, 60), 2), (slice(30), 3)):
        pca.partial_fit(X[part], clients=labels[part])
        assert_spent(pca.privacy_spent_, n_spent, 3)
    before = pickle.dumps(pca)
    with pytest.raises(PrivacyBudgetError, match=r"Client 'a' has no budget left.*n_releases=3"):
        pca.partial_fit(np.full((60, 6), np.nan), clients=labels)
    assert pickle.dumps(pca) == before
    pca.partial_fit(X[30:], clients=labels[30:]).partial_fit(X[30:], clients=["c"] * 30)
    assert_spent(pca.privacy_spent_)
    if trust == "client":  # each states its own
        for label, n_spent in (("a", 3), ("b", 3), ("c", 1)):
            assert_spent(pca.summaries_[label].privacy[:2], n_spent, 3)
    assert_spent(pca.fit(X, clients=labels).privacy_spent_, 1, 3)  # from scratch


@pytest.mark.parametrize("mean", ["private", "fixed"])
def test_all_rounds_are_spent_whenever_a_fit_stops(mean):
    mechanism = FedPowerNoise(1.0, 1e-5, 3.0, mean=mean, mean_share=0.3)
    absent = np.zeros((1, 2), dtype=bool)
    lossy = PerfectChannel(dropout=np.concatenate([absent, ~absent, absent, absent]))
    for options in ({}, {"tol": 1.0}, {"channel": lossy}):
        options = {"n_rounds": 7, "tol": 0, "acceleration": None, **options}
        assert_spent(model_of(mechanism, 2, **options).fit(rows()).privacy_spent_)


@every_trust
@pytest.mark.parametrize("kind", ONE_ROUND)
def test_a_bound_from_the_data_promises_nothing_and_is_never_forgotten(kind, trust):
    mechanism = kind(1.0, 1e-5, "data", n_releases=3, trust=trust)
    pca = FederatedPCA(2, mechanism=mechanism, random_state=0)
    with pytest.warns(PrivacyLeakWarning, match="largest norm"):
        pca.partial_fit(rows())
    spent = [pca.privacy_spent_, pca.set_params(mechanism__row_norm=1.0).privacy_spent_]
    spent += [pca.partial_fit(rows()).privacy_spent_, pca.set_params(mechanism=None).privacy_spent_]
    assert spent == [(inf, 1e-5)] * 4
    assert pca.set_params(mechanism=kind(1.0, 1e-5, 1.0)).fit(rows()).privacy_spent_[0] < 2


def test_a_smaller_budget_on_the_way_is_kept():
    pca = model(n_releases=2).partial_fit(rows()).set_params(mechanism__epsilon=0.25)
    with pytest.raises(PrivacyBudgetError, match="no budget left"):
        pca.partial_fit(rows())
    assert_spent(pca.privacy_spent_, 1, 2)


@every_trust
@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("fitted", [False, True])
def test_a_failing_merge_leaves_all_but_the_account_which_is_charged(
    trust, written, fitted, computed, failing, ledger
):
    """Many tries have as many releases as the budget, and each noise of its own."""

    def state():
        kept = {k: v for k, v in vars(pca).items() if k not in ("_accounts", "mechanism")}
        return pickle.dumps(kept)

    pca = model(
        merge=SubspaceMerge(), n_releases=3, trust=trust, ledger=ledger if written else None
    )
    if fitted:
        failing(False)
        pca.partial_fit(rows(), clients=ONE)
    failing(True)
    before, refused = state(), 0
    for error in [RuntimeError, KeyboardInterrupt] * 10:
        failing(error)
        try:
            pca.partial_fit(rows(seed=1), clients=ONE)
        except PrivacyBudgetError:
            refused += 1
        except error:
            assert state() == before
    assert refused == 17 + fitted
    assert len(computed) == len(set(computed)) == 3 * 2  # a sum and a second moment
    assert_spent(pca.privacy_spent_)
    if written:  # another ledger, of which nothing is spent
        pca.set_params(mechanism__ledger=PrivacyLedger(f"{ledger.path}.2"))
    failing(False)  # a fit that fails is charged to the account that stays
    assert_spent(pca.fit(rows()).privacy_spent_, 1, 3)
    failing(True)
    with pytest.raises(RuntimeError):
        pca.fit(rows(seed=1))
    assert_spent(pca.privacy_spent_, 2, 3)


@pytest.mark.parametrize("fitted", [False, True])
def test_rounds_that_fail_are_spent(fitted, monkeypatch):
    pca = model_of(FedPowerNoise(1.0, 1e-5, 3.0), 2, n_rounds=2)
    if fitted:
        pca.fit(rows())
    monkeypatch.setattr(Variances, "private", None)
    with pytest.raises(TypeError):
        pca.fit(rows())
    assert_spent(pca.privacy_spent_, 1 + fitted, 1)
    assert hasattr(pca, "components_") == fitted


def test_accounts_are_not_shared_by_clones_copies_and_searches():
    X, mechanism = rows(80), private()
    before = dict(vars(mechanism))
    pca = FederatedPCA(2, mechanism=mechanism, random_state=0).fit(X)
    fresh, restored = clone(pca), pickle.loads(pickle.dumps(pca))
    assert not hasattr(fresh, "privacy_spent_")
    assert restored.privacy_spent_ == pca.privacy_spent_
    for spent in (pca, restored, fresh.partial_fit(X)):
        with pytest.raises(PrivacyBudgetError):
            spent.partial_fit(X)
    search = GridSearchCV(clone(pca), {"mechanism__epsilon": [0.5, 2.0]}).fit(X)
    epsilon = search.best_params_["mechanism__epsilon"]
    assert_allclose(search.best_estimator_.privacy_spent_, (epsilon, 1e-5), rtol=1e-9)
    assert vars(mechanism) == before
    assert not hasattr(pca.set_params(mechanism=None).fit(X), "privacy_spent_")


# ------------------------------------------------------------------------------------- labels


@pytest.mark.parametrize(
    ("first", "second"),
    [(1, "1"), ("1", 1), ("1", " 1"), ("1", "1\t"), ("caf\u00e9", "caf\u00e9 ")],
)
@pytest.mark.parametrize("fails", [False, True])
def test_a_client_has_one_account_however_it_is_written(first, second, fails, failing):
    failing(fails)
    pca = model(merge=SubspaceMerge())
    try:
        pca.partial_fit(rows(), clients=[first] * 60)
    except RuntimeError:
        assert fails
    with pytest.raises(ValueError, match=re.escape(f"{first!r} and {second!r}")):
        pca.partial_fit(rows(), clients=[second] * 60)


def test_numbers_of_any_type_are_one_client():
    pca = model(n_releases=3)
    for labels in (np.ones(60, np.int8), list(np.ones(60)), np.ones(60, np.uint64)):
        pca.partial_fit(rows(), clients=labels)
    with pytest.raises(PrivacyBudgetError):
        pca.partial_fit(rows(), clients=[True] * 60)
    assert_spent(pca.privacy_spent_)


# ------------------------------------------------------------------------------------- ledger


@pytest.fixture
def ledger(tmp_path):
    return PrivacyLedger(tmp_path / "ledger.jsonl")


def lines_of(ledger):
    return [json.loads(line) for line in Path(ledger.path).read_text().splitlines()]


def again(pca, X=None, **labels):
    """One more fit is refused, before rows are looked at and with nothing written."""
    before = Path(pca.mechanism.ledger.path).read_bytes()
    with pytest.raises(PrivacyBudgetError, match="no budget left in the ledger"):
        pca.fit(np.full((60, 6), np.nan) if X is None else X, **labels)
    assert Path(pca.mechanism.ledger.path).read_bytes() == before


def test_a_line_says_what_was_released(ledger, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert PrivacyLedger("ledger.jsonl").path == ledger.path
    assert ledger.spent(0.1) == {}
    assert not os.path.exists(ledger.path)
    labels = np.repeat(["north", " s\u00fcd"], 30)
    pca = model(n_releases=2, ledger=ledger).fit(rows(), clients=labels)
    for line, named in zip(lines_of(ledger), [("s\u00fcd", 1), ("north", 2)], strict=True):
        assert (line["label"], line["id"], line["mechanism"]) == (*named, "AnalyzeGauss")
        assert (line["epsilon"], line["delta"], line["share"]) == (1.0, 1e-5, 0.5)
        assert_allclose(line["mu2"], mu_of(1.0, 1e-5) ** 2 / 2)
        assert line["time"].endswith("+00:00")
    assert_allclose(pca.privacy_spent_, ledger.spent(1e-5)["north"])
    assert pca.privacy_spent_.account == ledger.path
    assert repr(ledger.path) in repr(pca.privacy_spent_)
    other = model(n_releases=2, ledger=ledger).fit(rows(), clients=["north"] * 60)
    assert_spent(other.privacy_spent_)  # by both estimators
    plain = model(n_releases=2).fit(rows(), clients=labels)
    assert_array_equal(pca.components_, plain.components_)
    assert "of this fit alone" in repr(plain.privacy_spent_)
    for spent in (plain.privacy_spent_, PrivacySpent(1.0, 0.1).counted_in("here")):
        moved = pickle.loads(pickle.dumps(spent))
        assert (moved, moved.account) == (spent, spent.account)


@every_trust
@pytest.mark.parametrize("kind", [AnalyzeGauss, FedPowerNoise])
def test_a_second_fit_a_copy_and_a_pickle_are_refused(kind, trust, ledger):
    mechanism = kind(1.0, 1e-5, 3.0, ledger=ledger, trust=trust)
    options = {"n_rounds": 2} if kind is FedPowerNoise else {}
    pca = model_of(mechanism, 2, **options).fit(rows(), clients=np.repeat([0, 1], 30))
    for same in (pca, clone(pca), copy.copy(pca), copy.deepcopy(pca), pickle.dumps(pca)):
        again(pickle.loads(same) if isinstance(same, bytes) else same)
    again(clone(pca).set_params(mechanism__ledger=PrivacyLedger(ledger.path)))
    for label in (1, "1", " 1", True):
        again(model(ledger=ledger), rows(), clients=[label] * 60)
    assert_spent(ledger.spent(1e-5)["1"])


@pytest.mark.parametrize("label", ["a\u200b", "a\u2065", "\x1b[2Ja", "a" * 70_000])
def test_no_label_is_a_second_account_that_looks_alike_or_spoils_the_file(ledger, label):
    """A line of more than 64 KB would never be read again."""
    model(ledger=ledger).fit(rows(), clients=ONE)
    before = lines_of(ledger)
    with pytest.raises(ValueError, match="clients must"):
        model(ledger=ledger).fit(rows(), clients=[label] * 60)
    assert lines_of(ledger) == before


def test_the_flushed_line_comes_before_the_noise(ledger, monkeypatch):
    events = []

    def watched(owner, name):
        function = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given: (events.append(name), function(*given))[1])

    watched(_private.Release, "message")
    watched(os, "fsync")
    model(ledger=ledger).fit(rows())
    assert events[0] == "fsync"
    assert "fsync" not in events[events.index("message") :]


def test_a_full_disk_releases_nothing(ledger, computed, monkeypatch):
    pca, write = model(n_releases=2, ledger=ledger).fit(rows()), os.write
    size, n_computed = os.path.getsize(ledger.path), len(computed)

    def full(file, data):
        write(file, bytes(data[:20]))
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            pca.fit(rows())
    assert os.path.getsize(ledger.path) == size
    assert len(computed) == n_computed
    again(pca.fit(rows()))


def test_threads_share_the_budget(ledger):
    def one_release(_):
        """1 if a release fits into the ledger."""
        try:
            model(1, n_releases=4, ledger=PrivacyLedger(ledger.path)).fit(rows(), clients=ONE)
        except PrivacyBudgetError:
            return 0
        return 1

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(one_release, range(8))) == 4
    assert [line["id"] for line in lines_of(ledger)] == [1, 2, 3, 4]
    again(model(n_releases=4, ledger=ledger), clients=ONE)


def test_a_file_has_one_writer_at_a_time(tmp_path):
    path, inside = str(tmp_path / "lines"), threading.Event()

    def second():
        with locked(path):
            inside.set()

    writer = threading.Thread(target=second)
    with locked(path):
        writer.start()
        assert not inside.wait(0.2)
    assert inside.wait(60)
    writer.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_process_that_was_forked_meanwhile_does_not_keep_the_lock(tmp_path):
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
    with locked(tmp_path / "lines"):
        child.start()
    with locked(tmp_path / "lines"):
        assert child.is_alive()
    child.kill()
    child.join()


def test_a_line_that_was_cut_off_refuses_until_it_is_deleted(ledger):
    """Nothing was released for it: the noise is drawn once the whole line is on the disk."""
    model(1, n_releases=2, ledger=ledger).fit(rows(), clients=ONE)
    pca = model(1, n_releases=2, ledger=ledger).fit(rows(), clients=ONE)
    whole = Path(ledger.path).read_bytes()
    first, last = whole.splitlines(keepends=True)
    for cut in {*range(1, len(last), 9), len(last) - 1}:
        Path(ledger.path).write_bytes(whole[:-cut])
        for _ in range(2):
            with pytest.raises(ValueError, match=f"cut off.*beyond byte {len(first)}"):
                clone(pca).set_params(mechanism__ledger=PrivacyLedger(ledger.path)).fit(rows())
        assert Path(ledger.path).read_bytes() == whole[:-cut]
    Path(ledger.path).write_bytes(first)
    fresh = PrivacyLedger(ledger.path)
    model(1, n_releases=2, ledger=fresh).fit(rows(), clients=ONE)
    assert_spent(fresh.spent(1e-5)["a"])


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
    pca = model(1, n_releases=5, ledger=ledger)
    for _ in range(3):
        pca.fit(rows(), clients=ONE)
    lines = Path(ledger.path).read_bytes().splitlines(keepends=True)
    changed = b"".join(TAMPERINGS[name](lines))
    Path(ledger.path).write_bytes(changed)
    fresh = PrivacyLedger(ledger.path)
    other = model(1, n_releases=5, ledger=fresh)
    for call in (lambda: fresh.spent(1e-5), lambda: other.fit(rows(), clients=ONE)):
        with pytest.raises(ValueError, match=r"The ledger .*ledger\.jsonl .*no release"):
            call()
    assert not hasattr(other, "privacy_spent_")
    assert Path(ledger.path).read_bytes() == changed
    if name in ("a label is changed", "lines are exchanged"):
        # who has read the lines before looks at the last of them only, and remembers the others
        assert_spent(ledger.spent(1e-5)["a"], 3, 5)
        return
    with pytest.raises(ValueError, match="no release"):
        ledger.spent(1e-5)


def test_a_ledger_that_was_put_back_or_forked_is_noticed_by_who_has_seen_more(ledger):
    pca, file = model(1, n_releases=9, ledger=ledger).fit(rows()), Path(ledger.path)
    old, stored = file.read_bytes(), pickle.dumps(pca.fit(rows()))
    for content in (old, b"", None):
        file.unlink() if content is None else file.write_bytes(content)
        for other in (pca, pickle.loads(stored), pickle.loads(pickle.dumps(pca))):
            with pytest.raises(ValueError, match=f"has {len(content or b'')} bytes and had"):
                other.fit(rows())
    # put back, then gone on with by somebody else beyond its old size
    file.write_bytes(old)
    other = model(1, n_releases=9, ledger=PrivacyLedger(ledger.path))
    for _ in range(2):
        other.fit(rows(), clients=["somebody with a longer name"] * 60)
    with pytest.raises(ValueError, match="was changed before byte"):
        pca.fit(rows())


def test_infinite_costs_are_kept_and_refuse_finite_budgets(ledger):
    with pytest.raises(PrivacyBudgetError):  # before the warning
        FederatedPCA(1, mechanism=AnalyzeGauss(1.0, 1e-5, "data", ledger=ledger)).fit(rows())
    pca = model(1, epsilon=inf, ledger=ledger).fit(rows()).fit(rows())
    assert pca.privacy_spent_ == (inf, 1e-5)
    assert lines_of(ledger)[0]["mu2"] == "inf"
    assert PrivacyLedger(ledger.path).spent(0.1)["0"] == (inf, 0.1)
    again(model(1, epsilon=1e6, ledger=ledger))


def test_a_ledger_that_joins_later_counts_what_it_has_seen(ledger):
    pca = model(n_releases=3).partial_fit(rows())
    pca.set_params(mechanism__ledger=ledger).partial_fit(rows())
    assert_spent(pca.privacy_spent_, 2, 3)
    assert_spent(ledger.spent(1e-5)["0"], 1, 3)


# --------------------------------------------------------------- mechanisms state their own cost


def laplace(self, shape, std, rng):
    return rng.laplace(scale=std, size=shape)


def test_who_draws_other_noise_says_what_it_costs():
    mixin = type("Mixin", (), {"_noise": laplace})
    for bases, name, words in (
        *(((base,), "_noise", "_noise_cost") for base in (SecondMomentMechanism, *ONE_ROUND)),
        ((mixin, AnalyzeGauss), None, "Mixin must define _noise_cost"),
        ((AnalyzeGauss,), "noisy_columns", "_noise_cost"),
        ((AnalyzeGauss,), "noisy_sum", "_sum_cost"),
        ((AnalyzeGauss,), "_noisy", "_sum_cost"),
        *(((FedPowerNoise,), f"noisy_{what}", "") for what in ("sum", "product", "variances")),
    ):
        with pytest.raises(TypeError, match=rf"{words}.*, because it defines"):
            type("Other", bases, {name: laplace} if name else {})
    type("Renamed", (AnalyzeGauss,), {"column_blocks": AnalyzeGauss.column_blocks})


@pytest.mark.parametrize("wrong", [math.nan, -1.0])
def test_a_cost_that_is_none_is_refused_before_anything_is_charged(ledger, wrong):
    kind = type("Other", (AnalyzeGauss,), {"_noise_cost": lambda self, *sizes: wrong})
    pca = FederatedPCA(1, mechanism=kind(1.0, 1e-5, 1.0, mean="fixed", ledger=ledger))
    with pytest.raises(ValueError, match=f"Other: noise must cost 0 or more, got {wrong}"):
        pca.fit(rows())
    assert not Path(ledger.path).exists() or not lines_of(ledger)


def test_the_account_is_charged_what_the_mechanism_states():
    def scaled(factor, cost):
        """Noise that is so many times as large as the budget asks for, and what it states."""

        class Scaled(AnalyzeGauss):
            def _noise(self, shape, std, rng):
                return factor * super()._noise(shape, std, rng)

            def _noise_cost(self, std, n_features, n_shares):
                return cost(factor * std)

        return FederatedPCA(2, mechanism=Scaled(1.0, 1e-5, 3.0, mean="fixed"))

    gaussian = partial(gaussian_cost, math.sqrt(2))
    assert scaled(1, lambda std: inf).fit(rows()).privacy_spent_ == (inf, 1e-5)
    assert_spent(scaled(2, gaussian).fit(rows()).privacy_spent_, 1, 4)
    with pytest.raises(PrivacyBudgetError):
        scaled(0.5, gaussian).fit(rows())


def test_accounts_that_are_added_cost_both_and_their_calls_have_no_numbers_twice():
    """Noise is drawn by the number of a call: two calls with one number have the same noise."""
    accounts = Accounts({"0": Account(0, 0.5, 1.0)}, n_calls=2)
    others = {"0": Account(0, 0.25, 2.0, 2.0), "1": Account(1, 0.25, 2.0, 2.0)}
    accounts.add(Accounts(others, n_calls=3))
    assert accounts.numbers([0]) == [(0, 4)]
    assert accounts.of == {"0": Account(0, 0.75, 3.0, 2.0), "1": Account(1, 0.25, 2.0, 2.0)}


@pytest.mark.parametrize(
    ("label", "mu2", "words"),
    [
        ("west", math.nan, "mu2 must be at least 0, got nan"),  # of which no sum exceeds a budget
        ("west", -1.0, "mu2 must be at least 0, got -1.0"),
        (" west", 1.0, "label must be a text without spaces around it, got ' west'"),
        ("cafe\u0301", 1.0, "label must be a text"),
        (7, 1.0, "label must be a text .*, got 7"),
    ],
)
def test_a_ledger_refuses_a_line_of_no_account_or_of_no_cost(tmp_path, label, mu2, words):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(_ledger.chained({"label": label, "mu2": mu2}, ""))
    with pytest.raises(ValueError, match=words):
        PrivacyLedger(path).spent(1e-5)


def test_a_ledger_that_is_replaced_before_its_lock_is_held_is_refused(ledger, monkeypatch):
    """Or the release would be written into a file that has no name any more."""
    pca = model(n_releases=3, ledger=ledger).fit(rows())
    before, lock = Path(ledger.path).read_bytes(), _ledger._lock

    def replaced(descriptor):
        other = Path(ledger.path + ".other")
        other.write_bytes(before)
        os.replace(other, ledger.path)
        lock(descriptor)

    monkeypatch.setattr(_ledger, "_lock", replaced)
    with pytest.raises(ValueError, match="was replaced while it was opened: no release"):
        pca.fit(rows())
    assert Path(ledger.path).read_bytes() == before
