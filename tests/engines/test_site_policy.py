"""The owner's rules at a site, against a server that asks for more, again, or after a restart."""

import hashlib
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import numpy as np
import pytest
from engines.site_helpers import (
    MEAN,
    PARTS,
    Array,
    Site,
    V,
    fit,
    grid_of,
    kind_of,
    made,
    sending,
    table,
    whole,
)
from flwr.app import ConfigRecord
from sklearn.base import clone

from fedpca_sklearn import AnalyzeGauss, FederatedPCA, FederatedPowerPCA, PrivacyLedger
from fedpca_sklearn.__main__ import main
from fedpca_sklearn.engines import _site_policy
from fedpca_sklearn.engines._parameters import stated
from fedpca_sklearn.engines.flower import SitePolicy, fit_sites
from fedpca_sklearn.privacy._gaussian import epsilon_of, mu_of
from fedpca_sklearn.privacy._ledger import chained

pytestmark = pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning")
POWER = made("FederatedPowerPCA(3, n_rounds=6, tol=0.0, acceleration=None, random_state=0)")
PCA_3 = made("FederatedPCA(3)")
GAUSS, NOISE = made("AnalyzeGauss(1.0, 1e-5, 20.0)"), made("FedPowerNoise(1.0, 1e-5, 20.0)")
PRIVATE = FederatedPCA(3, mechanism=GAUSS)
PRIVATE_ROUNDS = FederatedPowerPCA(3, n_rounds=2, tol=0.0, mechanism=NOISE, random_state=0)
both = pytest.mark.parametrize("estimator", [PRIVATE, PRIVATE_ROUNDS], ids=["summary", "rounds"])
# a quarter of the budget, by a mechanism that states a smaller one
PART = epsilon_of(mu_of(1.0, 1e-5) / 2, 1e-5)
QUARTER = FederatedPCA(3, mechanism=AnalyzeGauss(PART, 1e-5, 20.0))


@pytest.fixture
def at(tmp_path):
    """Rules of a site with files in a folder of its own."""

    def policy(site="north", **rules):
        files = {"ledger": tmp_path / f"{site}.ledger", "log": tmp_path / f"{site}.log"}
        return SitePolicy(**files, **rules)

    policy.log, policy.ledger = tmp_path / "north.log", tmp_path / "north.ledger"
    policy.folder = tmp_path
    return policy


def lines(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


def refusals(log):
    return [line["why"] for line in lines(log) if line["event"] == "refusal"]


def refusal(site, kind, *arguments, **options):
    """Why a site refuses a question, as the server is told."""
    config, arrays = site.ask(kind, *arguments, **options)
    assert not arrays
    return config["error"]


def without_north(estimator, why, policies, log=None, **options):
    """The others go on, the server says who was left out and why, and so does the site's log."""
    with pytest.warns(UserWarning, match="Fitted without"):
        fitted = fit(estimator, policies=policies, **options)
    assert fitted.clients_ == ["east", "west"]
    (reason,) = fitted.missing_sites_.values()
    assert why in reason
    assert log is None or any(why in text for text in refusals(log))
    return fitted


# -------------------------------------------------------------------- what is refused


def test_a_site_whose_rules_do_not_allow_a_fit_is_named_and_the_others_go_on(at):
    others = FederatedPCA(3).fit(np.concatenate([PARTS["east"], PARTS["west"]]))
    few = {"north": at(min_rows=61)}
    fitted = without_north(PCA_3, "fewer than min_rows=61 rows", few, at.log)
    np.testing.assert_allclose(fitted.singular_values_, others.singular_values_)
    allowed = [FederatedPCA, FederatedPowerPCA]
    why = "the estimator must be FederatedPCA, FederatedPowerPCA, got DistributedPCA"
    without_north(made("DistributedPCA(3)"), why, {"north": at(estimators=allowed)}, at.log)
    assert fit(PCA_3, policies={"north": at(estimators=FederatedPCA)}).clients_ == list(PARTS)
    other = type("Other", (FederatedPCA,), {})
    assert not Site(other(3), policy=at(estimators=FederatedPCA)).answers("summary")


def test_a_ninth_round_where_eight_are_allowed(at):
    """Moments, six products and variances are eight; another fit is in the same account."""
    assert fit(POWER, policies={"north": at(max_rounds=8)}).clients_ == list(PARTS)
    again = {"north": at(max_rounds=8)}  # started anew
    without_north(POWER, "more than max_rounds=8 rounds", again, at.log, run=2)
    in_the_middle = {"north": at("another", max_rounds=7)}
    fitted = without_north(POWER, "more than max_rounds=7 rounds", in_the_middle)
    others = np.concatenate([PARTS["east"], PARTS["west"]])
    np.testing.assert_allclose(fitted.mean_, others.mean(axis=0))


def test_what_is_refused_is_written_and_counts_for_the_day_and_as_a_round(at):
    site = Site(POWER, policy=at(max_rounds=5))
    wrong = (V * (1 + 1e-5), MEAN, 1), (np.eye(8)[:4], MEAN, 1), (V, MEAN, 2)
    said = [refusal(site, "times_scatter", *arguments) for arguments in wrong]
    said_so = [word in why for word, why in zip(("orthon", "k <= 3", "steps"), said, strict=True)]
    assert said_so == [True] * 3
    assert refusals(at.log) == said
    assert site.answers("moments")
    assert site.answers("variances", V, MEAN)
    assert not site.answers("moments")
    assert not Site(POWER, policy=at(max_queries_per_day=6)).answers("moments")
    Site(POWER, policy=at("another")).ask("moments", nonce=None)
    why = "refused: a question needs a nonce of 1 to 64 characters"
    assert refusals(at.folder / "another.log") == [why]


def test_a_server_that_starts_run_after_run(at):
    """Flower's own counts begin anew with each run; those of the log do not."""
    sites = [Site(PCA_3, run=run, policy=at(max_queries_per_day=4)) for run in range(1, 11)]
    assert sum(site.answers("summary") for site in sites) == 4
    why = "refused: more than max_queries_per_day=4 questions today"
    assert [text[: len(why)] for text in refusals(at.log)] == [why] * 6


def test_the_next_day_questions_are_answered_again(at, monkeypatch):
    class Clock(_site_policy.datetime):
        day = 1

        @classmethod
        def now(cls, tz):
            return cls(2026, 5, cls.day, tzinfo=tz)

    monkeypatch.setattr(_site_policy, "datetime", Clock)
    for Clock.day, answers in ((1, True), (1, False), (2, True), (2, False)):
        site = Site(PCA_3, policy=at(max_queries_per_day=1))
        assert site.answers("summary") == answers
    Clock.day = 3
    assert not Site(PCA_3, policy=at(max_rounds=2)).answers("summary")
    # a clock that is set back, as whoever answers its network requests can, begins no new day
    for Clock.day, answers in ((2, True), (1, False), (2, False), (3, False), (4, True)):
        site = Site(PCA_3, policy=at(max_queries_per_day=2))
        assert site.answers("summary") == answers


# -------------------------------------------------------------------- budgets


@both
def test_an_overspent_budget_after_a_restart(at, estimator):
    first = fit(estimator, policies={site: at(site) for site in PARTS})
    assert first.clients_ == list(PARTS)
    assert first.privacy_spent_ == pytest.approx((1.0, 1e-5))
    assert first.privacy_spent_.account == "the ledgers of the sites"
    for site in ("east", "west"):  # their owners take new ledgers
        for kind in ("ledger", "log", "log.head"):
            (at.folder / f"{site}.{kind}").unlink()
    policies = {site: at(site) for site in PARTS}
    without_north(estimator, "no budget is left", policies, at.log, run=2)


@pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyLeakWarning")
@pytest.mark.parametrize(
    "code",
    [
        "FederatedPCA(3, mechanism=AnalyzeGauss(50.0, 1e-5, 20.0))",
        "FederatedPCA(3, mechanism=AnalyzeGauss(np.inf, 1e-5, 20.0))",
        "FederatedPCA(3, mechanism=AnalyzeGauss(1.0, 0.5, 20.0))",
        "FederatedPCA(3, mechanism=AnalyzeGauss(1.0, 1e-5, 'data'))",
        "FederatedPCA(3, mechanism=AnalyzeGauss(2.0, 1e-5, 1e6))",
        "FederatedPCA(3, mechanism=ModSuLQ(1.0, 1e-5, 20.0))",
        "FederatedPCA(3)",
        "DistributedPCA(3)",
    ],
)
def test_what_costs_more_than_the_owner_grants(at, code):
    kind = "factor" if "Distributed" in code else "summary"
    why = refusal(Site(made(code), policy=at(mechanism=GAUSS)), kind)
    assert why.startswith("refused: ")
    assert "budget" in why or "mechanism must be AnalyzeGauss" in why
    assert refusals(at.log) == [why]


@pytest.mark.parametrize("mechanism", [GAUSS, [NOISE, GAUSS]], ids=["one", "several"])
def test_one_account_whatever_a_site_calls_itself_and_whoever_asks(at, mechanism):
    spent, others = [], PrivacyLedger(at.folder / "of who asks")
    quarter = clone(QUARTER).set_params(mechanism__ledger=others)
    for run in range(1, 7):
        own = {"site": lambda context, run=run: f"site {run}", "policy": at(mechanism=mechanism)}
        config, arrays = Site(quarter, run=run, **own).ask("summary")
        spent += [config["epsilon"]] if arrays else []
    shares = np.sqrt([0.25, 0.5, 0.75, 1.0])
    assert spent == pytest.approx([epsilon_of(mu_of(1.0, 1e-5) * s, 1e-5) for s in shares])
    # nobody gets the budget back by cutting lines off the ledger alone
    at.ledger.write_bytes(at.ledger.read_bytes().splitlines(keepends=True)[0])
    why = refusal(Site(QUARTER, run=9, policy=at(mechanism=mechanism)), "summary")
    assert "the ledger of the site holds less than its log says" in why


def test_rounds_are_charged_when_they_are_asked_for_and_what_comes_again_costs_nothing(at):
    site, sent, shares = Site(PRIVATE_ROUNDS, policy=at(mechanism=NOISE)), [], []
    for kind, *arguments in (
        *[("moments",), ("times_scatter", V)] * 2,
        ("times_scatter", V[::-1]),
        ("variances", V),
    ):
        config, arrays = site.ask(kind, *arguments)
        sent.append(whole(arrays))
        shares.append(config["mu2"] / mu_of(1.0, 1e-5) ** 2)
    charged = [0.2, *[0.2 + 0.8 / 3] * 3, 0.2 + 1.6 / 3, 1.0]
    np.testing.assert_allclose(shares, charged)
    np.testing.assert_array_equal(sent[0], sent[2])
    np.testing.assert_array_equal(sent[1], sent[3])
    assert np.abs(sent[4][::-1] - sent[3]).max() > 1  # another basis is another release
    assert len(PrivacyLedger(at.ledger).spent(1e-5)) == 1
    other = Site(PRIVATE_ROUNDS, run=2, policy=at(mechanism=NOISE))
    assert not other.answers("moments")
    assert not other.answers("times_scatter", V)


def test_the_line_of_the_ledger_comes_before_the_noise(at, monkeypatch):
    def interrupted(state):
        raise KeyboardInterrupt  # as if the power failed

    with monkeypatch.context() as patch:
        patch.setattr(_site_policy, "seeds_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Site(PRIVATE, policy=at()).ask("summary")
    assert "no budget is left" in refusal(Site(PRIVATE, run=2, policy=at()), "summary")


def test_processes_side_by_side_share_a_ledger_and_a_log(at):
    """Eight apps at work at once on files of one site: four parts fit, and four are refused."""

    def answered(estimator, **rules):
        sites = [Site(estimator, run=run, policy=at(**rules)) for run in range(1, 9)]
        with ThreadPoolExecutor(8) as pool:
            return sum(pool.map(lambda site: site.answers("summary"), sites))

    assert answered(QUARTER, mechanism=GAUSS) == 4
    assert [line["line"] for line in lines(at.log)] == list(range(1, 17))
    assert main(["audit", str(at.log)]) == 0
    assert answered(PCA_3, max_rounds=10) == 2  # the log has eight


def test_a_seed_in_the_app_is_not_that_of_the_noise(at):
    """The server wrote the app, so it knows the seed."""
    estimator = FederatedPCA(3, mechanism=GAUSS, random_state=0)
    sent = [Site(estimator, policy=at(site)).ask("summary")[1]["summary"] for site in "ab"]
    assert not np.array_equal(*sent)


def test_a_private_site_lost_between_rounds_costs_the_others_nothing_more(at):
    """The others send again what they have released, and go on from there."""
    lost = []

    def spoil(site, message, reply):
        lost.extend([site] * (kind_of(message) == "times_scatter" and site == "west"))
        return None if site == "west" and len(lost) > 1 else reply

    policies = {site: at(site, mechanism=NOISE) for site in PARTS}
    with pytest.warns(UserWarning, match="Fitted without"):
        fitted = fit(PRIVATE_ROUNDS, spoil=spoil, policies=policies)
    assert fitted.clients_ == ["east", "north"]
    assert fitted.n_iter_ == 2
    assert np.isnan(fitted.changes_[0])
    assert fitted.privacy_spent_ == pytest.approx((1.0, 1e-5))
    others = np.concatenate([PARTS["east"], PARTS["north"]])
    assert np.linalg.norm(fitted.mean_ - others.mean(axis=0)) < 20
    assert fitted.n_samples_ == 140


def test_rounds_before_two_sites_are_lost_are_not_spent_again(at):
    at_question, n_asked = {"west": 2, "north": 3}, Counter()

    def spoil(site, message, reply):
        n_asked[site] += kind_of(message) == "times_scatter"
        return None if n_asked[site] >= at_question.get(site, np.inf) else reply

    policies = {site: at(site, mechanism=NOISE) for site in PARTS}
    options, estimator = {"min_sites": 1}, clone(PRIVATE_ROUNDS).set_params(n_rounds=4)
    with pytest.warns(UserWarning, match="Fitted without"):
        fitted = fit(estimator, spoil=spoil, policies=policies, options=options)
    assert fitted.clients_ == ["east"]
    assert fitted.n_iter_ == 4
    assert fitted.privacy_spent_ == pytest.approx((1.0, 1e-5))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("mu2", value) for value in (None, -1.0, float("nan"), 1e300, "nothing", 7)),
        *(("delta", value) for value in (None, 0.0, 1.0, float("nan"), "nothing", 1)),
    ],
)
def test_a_site_that_states_no_account_is_left_out(at, name, value):
    def spoil(site, message, reply):
        return sending(**{name: value})(message, reply) if site == "west" else reply

    why = "what it has spent" if name == "mu2" else r"a number in \(0, 1\)"
    with pytest.warns(UserWarning, match=f"{name}=.*expected {why}"):
        fitted = fit(PRIVATE, spoil=spoil, policies={site: at(site) for site in PARTS})
    assert fitted.clients_ == ["east", "north"]


@pytest.mark.parametrize("heedless", [False, True])
def test_a_site_without_a_mechanism_among_private_ones_is_left_out(at, heedless):
    """It refuses; one that answers what it is not asked states nothing about its privacy."""
    estimators = {"east": PRIVATE, "north": PRIVATE, "west": PCA_3}
    grid = grid_of(estimators, policies={site: at(site) for site in PARTS})
    west = grid.apps[3]

    def another(message, context):
        config = message.content["config"]
        message.content["config"] = ConfigRecord({**config, **stated(PCA_3)})
        return west(message, context)

    grid.apps[3] = another if heedless else west
    why = "states nothing about its privacy" if heedless else "mechanism is None, got AnalyzeGauss"
    with pytest.warns(UserWarning, match=why):
        fitted = fit_sites(grid, PRIVATE, min_sites=2, wait=0)
    assert fitted.clients_ == ["east", "north"]


# -------------------------------------------------------------------- the log


@pytest.fixture
def written(at):
    """A log of three runs, two of them refused."""
    for run in (1, 2, 3):
        Site(PRIVATE, run=run, policy=at()).ask("summary")
    return at.log


def test_a_line_says_what_came_and_went(at, written, capsys):
    question, answer, _, refusal, *_ = found = lines(written)
    events = ["question", "answer", "question", "refusal", "question", "refusal"]
    assert [line["event"] for line in found] == events
    asked = {"run": "1", "kind": "summary", "estimator": "FederatedPCA", "bytes": 0}
    assert asked.items() <= question.items()
    assert answer["of"] == 1
    assert answer["mu2"] == pytest.approx(mu_of(1.0, 1e-5) ** 2)
    assert (answer["epsilon"], answer["delta"]) == pytest.approx((1.0, 1e-5))
    assert refusal["of"] == 3
    assert "no budget is left" in refusal["why"]
    assert all(line["time"].startswith("20") for line in found)
    site = Site(POWER, policy=at())
    site.ask("moments")
    _, arrays = site.ask("times_scatter", V, MEAN, 1)
    *_, question, answer = lines(written)
    assert question["shapes"] == {"0": [3, 8], "1": [8], "2": []}
    assert answer["shapes"] == {"products": [3, 8]}
    data = Array(arrays["products"]).data
    assert answer["sha256"] == hashlib.sha256(data).hexdigest()
    assert answer["bytes"] == len(data)
    assert main(["audit", str(written)]) == 0
    sent = sum(line["bytes"] for line in lines(written) if line["event"] == "answer")
    assert f"  {sent} bytes sent\n" in capsys.readouterr().out


TAMPERED = {  # what reads the chain of a ledger reads that of a log, in test_accounts.py
    "changed": lambda data: data.replace(b'"refusal"', b'"answer" ', 1),
    "whole lines cut off": lambda data: b"".join(data.splitlines(keepends=True)[:-2]),
    "half a line cut off": lambda data: data[:-20],
    "the end of a line cut off": lambda data: data[:-1],
    "emptied": lambda data: b"",
}


@pytest.mark.parametrize("what", list(TAMPERED))
def test_a_log_that_is_not_what_was_written(at, written, what, capsys):
    written.write_bytes(TAMPERED[what](written.read_bytes()))
    before = written.read_bytes()
    assert main(["audit", str(written)]) == 1
    assert "NOT WHOLE" in capsys.readouterr().out
    why = refusal(Site(PCA_3, run=9, policy=at()), "summary")
    assert "the log of the site is not what was written" in why
    assert written.read_bytes() == before


def test_a_log_that_is_cut_off_or_written_anew_while_its_process_runs(at, written):
    """With as many lines as the head says, each of which continues the chain."""
    site, data = Site(PCA_3, run=9, policy=at()), written.read_bytes()
    assert site.answers("summary")
    written.write_bytes(data)
    why = "the log of the site is not what was written"
    assert why in refusal(site, "summary")
    assert written.read_bytes() == data
    (at.folder / "north.log.head").unlink()
    written.unlink()
    assert Site(PCA_3, policy=at()).answers("summary")
    chain, anew = "", b""
    for line in lines(written):
        entry = {name: value for name, value in line.items() if name != "chain"}
        anew += chained({**entry, "run": "another"}, chain)
        chain = json.loads(anew.splitlines()[-1])["chain"]
    written.write_bytes(anew)
    assert why in refusal(Site(PCA_3, policy=at()), "summary")


def test_a_log_that_was_deleted_one_whose_head_was_and_what_a_crash_left(at, written):
    data = written.read_bytes()
    written.unlink()
    assert not Site(PCA_3, policy=at()).answers("summary")
    written.write_bytes(data + b'{"line": 7, "time": "2026')
    assert Site(PCA_3, run=7, policy=at()).answers("summary")
    assert written.read_bytes().startswith(data)  # the rest of a line is taken off
    assert main(["audit", str(written)]) == 0
    (at.folder / "north.log.head").unlink()
    assert not Site(PCA_3, run=8, policy=at()).answers("summary")


def test_a_full_disk_answers_nothing(at, monkeypatch):
    append, room = _site_policy.ledgers.append_flushed, count()

    def full(*arguments):
        if next(room) == 1:  # the answer
            raise OSError(28, "No space left on device")
        append(*arguments)

    monkeypatch.setattr(_site_policy.ledgers, "append_flushed", full)
    assert refusal(Site(PCA_3, policy=at()), "summary").startswith("OSError, ")


def test_an_auditor_reads_days_kinds_and_refusals(at, written, capsys):
    Site(POWER, policy=at(min_rows=300)).ask("moments")
    assert main(["audit", str(written)]) == 0
    text = capsys.readouterr().out
    for words in (
        f"{lines(written)[0]['time'][:10]}  4 questions, 1 answered, 3 refused",
        *("summary", "moments", "2 x refused: no budget is left"),
        *("1 x refused: fewer than min_rows=300 rows", "epsilon 1, delta 1e-05"),
        "8 lines, the chain is whole",
    ):
        assert words in text
    assert "x ?" not in text
    assert main(["audit", str(at.folder / "none.log")]) == 1
    assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "odd",
    [
        {"time": "\x1b[2J\nall well"},
        {"time": "2026-W20-5T00:00"},
        {"event": "answer", "bytes": float("inf")},
        {"event": "answer", "epsilon": 10**400, "delta": 0.5},
    ],
    ids=["escape", "week", "infinite", "huge"],
)
def test_an_auditor_of_a_log_that_a_site_has_made_up(odd, tmp_path, capsys):
    """Whoever writes the log can make its chain; what is shown is the auditor's terminal."""
    entry = {"time": "2026-05-01T00:00", "event": "question", "kind": "\x1b[2J"}
    (tmp_path / "site.log").write_bytes(chained({**entry, **odd}, ""))
    assert main(["audit", str(tmp_path / "site.log")]) == 1
    out, _ = capsys.readouterr()
    assert "NOT WHOLE after 0 lines" in out
    assert all(line.isprintable() for line in out.splitlines())
    assert "all well" not in [line.strip() for line in out.splitlines()]


# -------------------------------------------------------------------- parameters


RULES = table("""
min_rows=0; min_rows=True | min_rows must be an integer of at least 1, got
max_rounds=8 | max_rounds needs a log
max_queries_per_day=8 | max_queries_per_day needs a log
max_rounds=0, log="x" | max_rounds must be an integer of at least 1
max_queries_per_day=1.5, log="x" | max_queries_per_day must be an integer
mechanism=GAUSS | mechanism needs a ledger
mechanism=AnalyzeGauss(-1.0, 1e-5, 1.0), ledger="x" | epsilon
mechanism=[], ledger="x" | mechanism must be a mechanism or several
estimators=[]; estimators=[FederatedPCA(3)] | estimators must be a class or several
""")


def test_rules_are_checked():
    for rules, why in RULES:
        for rule in rules.split("; "):
            with pytest.raises(ValueError, match=why):
                pytest.fail(f"{rule}: {eval(f'SitePolicy({rule})')}")
