"""The owner's rules at a site, against a server that asks for more, again, or after a restart."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")

from engines.site_helpers import MEAN, ROWS, InProcessGrid, Site, V
from flwr.app import Array, ArrayRecord, ConfigRecord

from fedpca_sklearn import (
    AnalyzeGauss,
    DistributedPCA,
    FederatedPCA,
    FederatedPowerPCA,
    FedPowerNoise,
    ModSuLQ,
    PrivacyLedger,
)
from fedpca_sklearn.__main__ import main
from fedpca_sklearn.engines._parameters import stated
from fedpca_sklearn.engines.flower import SitePolicy, client_app, fit_sites
from fedpca_sklearn.privacy._chained_lines import chained
from fedpca_sklearn.privacy._gaussian import epsilon_of, mu_of

pytestmark = pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning")
PARTS = {"east": ROWS[:80], "north": ROWS[80:140], "west": ROWS[140:]}
POWER = FederatedPowerPCA(3, n_rounds=6, tol=0.0, acceleration=None, random_state=0)
GAUSS = AnalyzeGauss(1.0, 1e-5, 20.0)
NOISE = FedPowerNoise(1.0, 1e-5, 20.0)
PRIVATE = FederatedPCA(3, mechanism=GAUSS)
PRIVATE_ROUNDS = FederatedPowerPCA(3, n_rounds=2, tol=0.0, mechanism=NOISE, random_state=0)
BY_KIND = {"ids": lambda estimator: type(estimator).__name__}


@pytest.fixture
def at(tmp_path):
    """Rules of a site with files in a folder of its own."""

    def policy(site="north", ledger=True, log=True, **rules):
        files = {"ledger": tmp_path / f"{site}.ledger", "log": tmp_path / f"{site}.log"}
        kept = {name: files[name] for name, here in (("ledger", ledger), ("log", log)) if here}
        return SitePolicy(**kept, **rules)

    policy.folder = tmp_path
    return policy


def grid(estimator, policies, parts=PARTS, run=1, spoil=None):
    """Sites whose processes are started anew, each with rules of its own."""

    def load(rows):
        return lambda context: rows

    estimators = estimator if isinstance(estimator, dict) else dict.fromkeys(parts, estimator)
    apps = [
        client_app(load(rows), estimators[site], policy=policies.get(site))
        for site, rows in parts.items()
    ]
    made = InProcessGrid(apps, list(parts), spoil)
    for context in made.contexts.values():
        context.run_id = run
    return made


def fit(estimator, policies, server=None, **options):
    server = estimator if server is None else server
    return fit_sites(grid(estimator, policies, **options), server, min_sites=2, wait=0)


def lines(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


def refusals(log):
    return [line["why"] for line in lines(log) if line["event"] == "refusal"]


def assert_left_out(fitted, site, why, log):
    """The others go on, the server says who was left out and why, and so does the site's log."""
    assert fitted.clients_ == [name for name in PARTS if name != site]
    (reason,) = fitted.missing_sites_.values()
    assert why in reason
    assert any(why in text for text in refusals(log))


# -------------------------------------------------------------------- what is refused


def test_a_site_with_few_rows_is_named_and_the_others_go_on(at):
    policies = {"north": at(min_rows=61)}
    with pytest.warns(UserWarning, match="Fitted without"):
        fitted = fit(FederatedPCA(3), policies)
    assert_left_out(fitted, "north", "fewer than min_rows=61 rows", at.folder / "north.log")
    expected = FederatedPCA(3).fit(np.concatenate([PARTS["east"], PARTS["west"]]))
    np.testing.assert_allclose(fitted.singular_values_, expected.singular_values_)


def test_a_ninth_round_where_eight_are_allowed(at):
    """Moments, six products and variances are eight; another fit is in the same account."""
    policies = {"north": at(max_rounds=8)}
    assert fit(POWER, policies).clients_ == list(PARTS)
    policies = {"north": at(max_rounds=8)}  # started anew
    with pytest.warns(UserWarning, match="Fitted without"):
        fitted = fit(POWER, policies, run=2)
    assert_left_out(fitted, "north", "more than max_rounds=8 rounds", at.folder / "north.log")


def test_a_round_too_many_in_the_middle_of_a_fit(at):
    policies = {"north": at(max_rounds=7)}
    with pytest.warns(UserWarning, match="Fitted without"):
        fitted = fit(POWER, policies)
    assert fitted.clients_ == ["east", "west"]
    assert "max_rounds=7" in fitted.missing_sites_["north"]
    others = np.concatenate([PARTS["east"], PARTS["west"]])
    np.testing.assert_allclose(fitted.mean_, others.mean(axis=0))


def test_a_site_that_gets_another_basis_is_named_and_the_others_go_on(at):
    """A server that sends one site what is no basis learns nothing from it."""
    made = grid(POWER, {"north": at()})
    honest = made.apps[2]

    def robbed(message, context):
        arguments = dict(message.content.array_records["arguments"])
        if "0" in arguments:
            arguments["0"] = Array(arguments["0"].numpy() * (1 + 1e-5))
        message.content["arguments"] = ArrayRecord(arguments)
        return honest(message, context)

    made.apps[2] = robbed
    with pytest.warns(UserWarning, match="Fitted without"):
        fitted = fit_sites(made, POWER, wait=0)
    assert fitted.clients_ == ["east", "west"]
    assert "the basis must have orthonormal rows" in fitted.missing_sites_["north"]
    (text,) = refusals(at.folder / "north.log")
    assert "the basis must have orthonormal rows" in text
    others = np.concatenate([PARTS["east"], PARTS["west"]])
    np.testing.assert_allclose(fitted.mean_, others.mean(axis=0))


@pytest.mark.parametrize(
    ("basis", "why"), [(V * (1 + 1e-5), "orthonormal rows"), (np.eye(8)[:4], "k <= 3")]
)
def test_a_basis_that_is_none_is_refused_and_written(at, basis, why):
    site = Site(POWER, policy=at())
    assert site.answers("moments")
    config, arrays = site.ask("times_scatter", basis, MEAN, 1)
    assert not arrays
    assert why in config["error"]
    (text,) = refusals(at.folder / "north.log")
    assert text == config["error"]
    assert site.answers("times_scatter", V, MEAN, 1)


def test_estimators_that_the_owner_does_not_allow(at):
    policies = {"north": at(estimators=[FederatedPCA, FederatedPowerPCA])}
    with pytest.warns(UserWarning, match="Fitted without"):
        fitted = fit(DistributedPCA(3), policies)
    why = "the estimator must be FederatedPCA, FederatedPowerPCA, got DistributedPCA"
    assert_left_out(fitted, "north", why, at.folder / "north.log")
    assert fit(FederatedPCA(3), {"north": at(estimators=FederatedPCA)}).clients_ == list(PARTS)

    class Other(FederatedPCA):
        pass

    assert not Site(Other(3), policy=at(estimators=FederatedPCA)).answers("summary")


def test_a_server_that_starts_run_after_run(at):
    """Flower's own counts begin anew with each run; those of the log do not."""
    answered = 0
    for run in range(1, 11):
        site = Site(FederatedPCA(3), run=run, policy=at(max_queries_per_day=4))
        answered += site.answers("summary")
    assert answered == 4
    texts = refusals(at.folder / "north.log")
    assert len(texts) == 6
    assert all("more than max_queries_per_day=4 questions today" in text for text in texts)


def test_the_next_day_questions_are_answered_again(at, monkeypatch):
    from fedpca_sklearn.engines import _site_log

    class Clock(_site_log.datetime):
        day = 1

        @classmethod
        def now(cls, tz):
            return cls(2026, 5, cls.day, tzinfo=tz)

    monkeypatch.setattr(_site_log, "datetime", Clock)
    for Clock.day, answers in ((1, True), (1, False), (2, True), (2, False)):
        site = Site(FederatedPCA(3), policy=at(max_queries_per_day=1))
        assert site.answers("summary") == answers
    Clock.day = 3
    assert not Site(FederatedPCA(3), policy=at(max_rounds=2)).answers("summary")
    # a clock that is set back, as whoever answers its network requests can, begins no new day
    for Clock.day, answers in ((2, True), (1, False), (2, False), (3, False), (4, True)):
        site = Site(FederatedPCA(3), policy=at(max_queries_per_day=2))
        assert site.answers("summary") == answers


def test_what_is_refused_counts_for_the_day_and_as_a_round(at):
    site = Site(POWER, policy=at(max_rounds=5))
    for _ in range(3):
        assert not site.answers("times_scatter", V, MEAN, 2)
    assert site.answers("moments")
    assert site.answers("variances", V, MEAN)
    assert not site.answers("moments")
    site = Site(POWER, policy=at(max_queries_per_day=6))
    assert not site.answers("moments")


def test_a_question_without_a_nonce_is_written(at):
    Site(POWER, policy=at()).ask("moments", nonce=None)
    assert refusals(at.folder / "north.log") == [
        "refused: a question needs a nonce of 1 to 64 characters"
    ]


# -------------------------------------------------------------------- budgets


@pytest.mark.parametrize("estimator", [PRIVATE, PRIVATE_ROUNDS], **BY_KIND)
def test_an_overspent_budget_after_a_restart(at, estimator):
    def policies():
        return {site: at(site) for site in PARTS}

    first = fit(estimator, policies())
    assert first.clients_ == list(PARTS)
    assert first.privacy_spent_ == pytest.approx((1.0, 1e-5))
    assert first.privacy_spent_.account == "the ledgers of the sites"
    for site in ("east", "west"):  # their owners take new ledgers
        (at.folder / f"{site}.ledger").unlink()
        (at.folder / f"{site}.log").unlink()
        (at.folder / f"{site}.log.head").unlink()
    with pytest.warns(UserWarning, match="Fitted without"):
        second = fit(estimator, policies(), run=2)
    assert_left_out(second, "north", "no budget is left", at.folder / "north.log")


OTHERS = {
    "more epsilon": (PRIVATE, {"mechanism__epsilon": 50.0}),
    "no noise": (PRIVATE, {"mechanism__epsilon": float("inf")}),
    "more delta": (PRIVATE, {"mechanism__delta": 0.5}),
    "a bound from the rows": (PRIVATE, {"mechanism__row_norm": "data"}),
    "a larger bound": (PRIVATE, {"mechanism__epsilon": 2.0, "mechanism__row_norm": 1e6}),
    "another mechanism": (PRIVATE, {"mechanism": ModSuLQ(1.0, 1e-5, 20.0)}),
    "no mechanism": (PRIVATE, {"mechanism": None}),
    "another estimator": (DistributedPCA(3), {}),
}


@pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyLeakWarning")
@pytest.mark.parametrize("what", list(OTHERS))
def test_what_costs_more_than_the_owner_grants(at, what):
    estimator, parameters = OTHERS[what]
    asked = clone(estimator).set_params(**parameters)
    kind = "factor" if isinstance(asked, DistributedPCA) else "summary"
    site = Site(asked, policy=at(mechanism=GAUSS))
    config, arrays = site.ask(kind)
    assert not arrays
    assert config["error"].startswith("refused: ")
    assert "budget" in config["error"] or "mechanism must be AnalyzeGauss" in config["error"]
    assert refusals(at.folder / "north.log") == [config["error"]]


@pytest.mark.parametrize("rule", [{}, {"mechanism": [NOISE, GAUSS]}])
def test_one_account_whatever_a_site_calls_itself_and_whoever_asks(at, rule):
    def named(name):
        return lambda context: name

    # a quarter of the budget each time, by a mechanism that states a smaller one
    part = epsilon_of(mu_of(1.0, 1e-5) / 2, 1e-5)
    asked = FederatedPCA(3, mechanism=AnalyzeGauss(part, 1e-5, 20.0))
    rule = rule or {"mechanism": GAUSS}
    spent = []
    for run in range(1, 7):
        site = Site(asked, run=run, site=named(f"site {run}"), policy=at(**rule))
        config, arrays = site.ask("summary")
        spent += [config["epsilon"]] if arrays else []
    assert spent == pytest.approx(
        [epsilon_of(mu_of(1.0, 1e-5) * s, 1e-5) for s in (0.5, 0.5**0.5, 0.75**0.5, 1.0)]
    )


def test_rounds_are_charged_when_they_are_asked_for(at):
    site = Site(PRIVATE_ROUNDS, policy=at(mechanism=NOISE))
    budget = mu_of(1.0, 1e-5) ** 2
    shares = []
    for kind, arguments in (
        ("moments", ()),
        ("times_scatter", (V, MEAN, 1)),
        ("times_scatter", (V[::-1], MEAN, 1)),
        ("variances", (V, MEAN)),
    ):
        config, arrays = site.ask(kind, *arguments)
        assert arrays
        shares.append(config["mu2"] / budget)
    np.testing.assert_allclose(shares, [0.2, 0.2 + 0.8 / 3, 0.2 + 1.6 / 3, 1.0])
    other = Site(PRIVATE_ROUNDS, run=2, policy=at(mechanism=NOISE))
    assert not other.answers("moments")
    assert not other.answers("times_scatter", V, MEAN, 1)


def test_what_is_asked_again_in_a_run_is_sent_again_for_nothing(at):
    site = Site(PRIVATE_ROUNDS, policy=at())
    (_, total), (before, sent) = site.ask("moments"), site.ask("times_scatter", V, MEAN, 1)
    (_, total_again), (after, sent_again) = (
        site.ask("moments"),
        site.ask("times_scatter", V, MEAN, 1),
    )
    np.testing.assert_array_equal(total["message"], total_again["message"])
    np.testing.assert_array_equal(sent["message"], sent_again["message"])
    assert after["mu2"] == before["mu2"]
    assert len(PrivacyLedger(at.folder / "north.ledger").spent(1e-5)) == 1
    # another basis is another release
    config, arrays = site.ask("times_scatter", V[::-1], MEAN, 1)
    assert config["mu2"] > before["mu2"]
    assert np.abs(arrays["message"][::-1] - sent["message"]).max() > 1


def test_a_ledger_with_less_than_the_log_says(at):
    """Nobody gets the budget back by cutting lines off the ledger alone."""
    part = epsilon_of(mu_of(1.0, 1e-5) / 2, 1e-5)
    asked = FederatedPCA(3, mechanism=AnalyzeGauss(part, 1e-5, 20.0))
    for run in (1, 2):
        assert Site(asked, run=run, policy=at(mechanism=GAUSS)).answers("summary")
    ledger = at.folder / "north.ledger"
    ledger.write_bytes(ledger.read_bytes().splitlines(keepends=True)[0])
    config, arrays = Site(asked, run=3, policy=at(mechanism=GAUSS)).ask("summary")
    assert not arrays
    assert "the ledger of the site holds less than its log says" in config["error"]


def test_the_line_of_the_ledger_comes_before_the_noise(at, monkeypatch):

    from fedpca_sklearn.engines import _site_policy

    def interrupted(state):
        raise KeyboardInterrupt  # as if the power failed

    monkeypatch.setattr(_site_policy, "seeds_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Site(PRIVATE, policy=at()).ask("summary")
    monkeypatch.undo()
    config, arrays = Site(PRIVATE, run=2, policy=at()).ask("summary")
    assert not arrays
    assert "no budget is left" in config["error"]


def test_processes_side_by_side_share_a_ledger_and_a_log(at):
    """Eight apps at work at once on files of one site: four parts fit, and four are refused."""
    part = epsilon_of(mu_of(1.0, 1e-5) / 2, 1e-5)
    asked = FederatedPCA(3, mechanism=AnalyzeGauss(part, 1e-5, 20.0))
    sites = [Site(asked, run=run, policy=at(mechanism=GAUSS)) for run in range(1, 9)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda site: site.answers("summary"), sites))
    assert sum(answers) == 4
    written = lines(at.folder / "north.log")
    assert [line["line"] for line in written] == list(range(1, 17))
    assert main(["audit", str(at.folder / "north.log")]) == 0


def test_the_same_with_rounds(at):
    sites = [Site(FederatedPCA(3), run=run, policy=at(max_rounds=3)) for run in range(1, 9)]
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(lambda site: site.answers("summary"), sites)) == 3


def test_a_seed_in_the_app_is_not_that_of_the_noise(at):
    """The server wrote the app, so it knows the seed."""
    estimator = FederatedPCA(3, mechanism=GAUSS, random_state=0)
    sent = [Site(estimator, policy=at(site)).ask("summary")[1]["summary"] for site in "ab"]
    assert not np.array_equal(*sent)


def test_a_private_site_lost_between_rounds_costs_the_others_nothing_more(at):
    """The others send again what they have released, and go on from there."""
    lost = []

    def spoil(site, message, reply):
        if message.metadata.message_type == "query.times_scatter" and site == "west":
            lost.append(site)
        return None if site == "west" and len(lost) > 1 else reply

    policies = {site: at(site, mechanism=NOISE) for site in PARTS}
    with pytest.warns(UserWarning, match="Fitted without"):
        fitted = fit(PRIVATE_ROUNDS, policies, spoil=spoil)
    assert fitted.clients_ == ["east", "north"]
    assert fitted.n_iter_ == 2
    assert np.isnan(fitted.changes_[0])
    assert fitted.privacy_spent_ == pytest.approx((1.0, 1e-5))
    others = np.concatenate([PARTS["east"], PARTS["north"]])
    assert np.linalg.norm(fitted.mean_ - others.mean(axis=0)) < 20
    assert fitted.n_samples_ == 140


@pytest.mark.parametrize("stated", [None, -1.0, float("nan"), 1e300, "nothing", 7])
def test_a_site_that_states_no_account_is_left_out(at, stated):
    def spoil(site, message, reply):
        if site == "west":
            config = dict(reply.content.config_records["config"])
            config = {**config, "mu2": stated} if stated is not None else config
            if stated is None:
                del config["mu2"]
            reply.content.config_records["config"] = type(reply.content.config_records["config"])(
                config
            )
        return reply

    policies = {site: at(site) for site in PARTS}
    with pytest.warns(UserWarning, match="expected what it has spent"):
        fitted = fit(PRIVATE, policies, spoil=spoil)
    assert fitted.clients_ == ["east", "north"]


@pytest.mark.parametrize("estimator", [PRIVATE, PRIVATE_ROUNDS], **BY_KIND)
def test_sparse_rows_and_single_precision_at_private_sites(at, estimator):
    parts = {
        "east": sp.csr_array(PARTS["east"]),
        "north": PARTS["north"].astype(np.float32),
        "west": sp.csr_matrix(PARTS["west"].astype(np.float32)),
    }
    for epsilon in (1.0, np.inf):
        private = clone(estimator).set_params(mechanism__epsilon=epsilon)
        policies = {site: at(f"{site} {epsilon}") for site in parts}
        fitted = fit(private, policies, parts=parts)
        assert fitted.clients_ == list(parts)
        assert np.isfinite(fitted.explained_variance_).all()
    assert fitted.privacy_spent_.epsilon == np.inf
    clipped = ROWS * np.minimum(1, 20 / np.linalg.norm(ROWS, axis=1))[:, None]
    np.testing.assert_allclose(fitted.mean_, clipped.mean(axis=0), rtol=1e-5)


def test_a_site_without_a_mechanism_among_private_ones(at):
    estimators = {"east": PRIVATE, "north": PRIVATE, "west": FederatedPCA(3)}
    policies = {site: at(site) for site in PARTS}
    with pytest.warns(UserWarning, match=r"refused: .* mechanism is None, got AnalyzeGauss"):
        fitted = fit(estimators, policies, server=PRIVATE)
    assert fitted.clients_ == ["east", "north"]


def test_a_site_that_answers_what_it_is_not_asked_states_its_privacy(at):
    estimators = {"east": PRIVATE, "north": PRIVATE, "west": FederatedPCA(3)}
    made = grid(estimators, {site: at(site) for site in PARTS})
    heedless = made.apps[3]

    def west(message, context):
        config = message.content["config"]
        message.content["config"] = ConfigRecord({**config, **stated(estimators["west"])})
        return heedless(message, context)

    made.apps[3] = west
    with pytest.warns(UserWarning, match="states nothing about its privacy"):
        fitted = fit_sites(made, PRIVATE, min_sites=2, wait=0)
    assert fitted.clients_ == ["east", "north"]


# -------------------------------------------------------------------- the log


def written(at, **rules):
    """A log of three runs, one of them refused."""
    for run in (1, 2, 3):
        Site(PRIVATE, run=run, policy=at(**rules)).ask("summary")
    return at.folder / "north.log"


def test_a_line_says_what_came_and_went(at):
    log = written(at)
    events = [line["event"] for line in lines(log)]
    assert events == ["question", "answer", "question", "refusal", "question", "refusal"]
    question, answer, _, refusal, *_ = lines(log)
    assert question["run"] == "1"
    assert question["kind"] == "summary"
    assert question["estimator"] == "FederatedPCA"
    assert question["bytes"] == 0
    assert answer["of"] == 1
    assert answer["mu2"] == pytest.approx(mu_of(1.0, 1e-5) ** 2)
    assert (answer["epsilon"], answer["delta"]) == pytest.approx((1.0, 1e-5))
    assert refusal["of"] == 3
    assert "no budget is left" in refusal["why"]
    assert all(line["time"].startswith("20") for line in lines(log))


def test_hashes_in_the_log_are_those_of_what_was_sent(at):
    import hashlib

    site = Site(POWER, policy=at())
    site.ask("moments")
    _, arrays = site.ask("times_scatter", V, MEAN, 1)
    *_, question, answer = lines(at.folder / "north.log")
    assert question["shapes"] == {"0": [3, 8], "1": [8], "2": []}
    assert answer["shapes"] == {"message": [3, 8]}
    data = Array(arrays["message"]).data
    assert answer["sha256"] == hashlib.sha256(data).hexdigest()
    assert answer["bytes"] == len(data)


def changed(data):
    return data.replace(b'"refusal"', b'"answer" ', 1)


def one_left_out(data):
    parts = data.splitlines(keepends=True)
    return b"".join(parts[:2] + parts[3:])


def two_exchanged(data):
    parts = data.splitlines(keepends=True)
    return b"".join([*parts[:2], parts[3], parts[2], *parts[4:]])


def one_added(data):
    return data + data.splitlines(keepends=True)[-1]


TAMPERED = {
    "changed": changed,
    "one left out": one_left_out,
    "two exchanged": two_exchanged,
    "one added": one_added,
    "whole lines cut off": lambda data: b"".join(data.splitlines(keepends=True)[:-2]),
    "half a line cut off": lambda data: data[:-20],
    "the end of a line cut off": lambda data: data[:-1],
    "emptied": lambda data: b"",
    "no line ends": lambda data: data.replace(b"\n", b" ") * 50,
    "junk": lambda data: os.urandom(300),
}


@pytest.mark.parametrize("what", list(TAMPERED))
def test_a_log_that_is_not_what_was_written(at, what, capsys):
    log = written(at)
    log.write_bytes(TAMPERED[what](log.read_bytes()))
    before = log.read_bytes()
    assert main(["audit", str(log)]) == 1
    assert "NOT WHOLE" in capsys.readouterr().out
    policies = {"north": at()}
    with pytest.warns(UserWarning, match="Fitted without"):
        fitted = fit(FederatedPCA(3), policies, run=9)
    assert fitted.clients_ == ["east", "west"]
    assert "the log of the site is not what was written" in fitted.missing_sites_["node 2"]
    assert log.read_bytes() == before


def test_a_log_that_was_deleted_and_one_whose_head_was(at):
    log = written(at)
    data = log.read_bytes()
    log.unlink()
    assert not Site(FederatedPCA(3), policy=at()).answers("summary")
    log.write_bytes(data)
    assert Site(FederatedPCA(3), run=7, policy=at()).answers("summary")
    (at.folder / "north.log.head").unlink()
    assert not Site(FederatedPCA(3), run=8, policy=at()).answers("summary")


def test_what_a_crash_left_of_a_line_is_taken_off(at):
    log = written(at)
    whole = log.read_bytes()
    log.write_bytes(whole + b'{"line": 7, "time": "2026')
    assert Site(FederatedPCA(3), run=7, policy=at()).answers("summary")
    assert log.read_bytes().startswith(whole)
    assert main(["audit", str(log)]) == 0


def test_a_full_disk_answers_nothing(at, monkeypatch):
    from fedpca_sklearn.engines import _site_log

    append, room = _site_log.append_flushed, count()

    def full(*arguments):
        if next(room) == 1:  # the answer
            raise OSError(28, "No space left on device")
        append(*arguments)

    monkeypatch.setattr(_site_log, "append_flushed", full)
    config, arrays = Site(FederatedPCA(3), policy=at()).ask("summary")
    assert not arrays
    assert config["error"].startswith("OSError, ")


def test_an_auditor_reads_days_kinds_and_refusals(at, capsys):
    log = written(at)
    site = Site(POWER, policy=at(min_rows=300))
    site.ask("moments")
    assert main(["audit", str(log)]) == 0
    text = capsys.readouterr().out
    day = lines(log)[0]["time"][:10]
    assert f"{day}  4 questions, 1 answered, 3 refused" in text
    assert "summary" in text
    assert "moments" in text
    assert "2 x refused: no budget is left" in text
    assert "1 x refused: fewer than min_rows=300 rows" in text
    assert "epsilon 1, delta 1e-05" in text
    assert "8 lines, the chain is whole" in text


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


def test_an_auditor_of_no_log(tmp_path, capsys):
    assert main(["audit", str(tmp_path / "none.log")]) == 1
    assert "error: " in capsys.readouterr().err


# -------------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ({"min_rows": 0}, "min_rows must be an integer of at least 1, got 0"),
        ({"min_rows": True}, "min_rows must be an integer"),
        ({"max_rounds": 8}, "max_rounds needs a log"),
        ({"max_queries_per_day": 8}, "max_queries_per_day needs a log"),
        ({"max_rounds": 0, "log": "x"}, "max_rounds must be an integer of at least 1"),
        ({"max_queries_per_day": 1.5, "log": "x"}, "max_queries_per_day must be an integer"),
        ({"mechanism": GAUSS}, "mechanism needs a ledger"),
        ({"mechanism": AnalyzeGauss(-1.0, 1e-5, 1.0), "ledger": "x"}, "epsilon"),
        ({"mechanism": [], "ledger": "x"}, "mechanism must be a mechanism or several"),
        ({"estimators": []}, "estimators must be a class or several"),
        ({"estimators": [FederatedPCA(3)]}, "estimators must be a class or several"),
    ],
)
def test_rules_are_checked(rules, why):
    with pytest.raises(ValueError, match=why):
        SitePolicy(**rules)
