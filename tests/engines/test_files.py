"""Every protocol by files: the numbers of one process, whatever is killed, repeated or damaged."""

import hashlib
import itertools
import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext, suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from golden_cases import made
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from site_helpers import assert_same
from sklearn.base import clone
from sklearn.datasets import load_digits

from fedpca_sklearn import (
    AnalyzeGauss,
    DistributedPCA,
    FederatedPCA,
    FederatedPowerPCA,
    PrivacyLedger,
    StreamingPCA,
    SubspaceMerge,
    SubspaceTracker,
)
from fedpca_sklearn.base import ClientsTransformer
from fedpca_sklearn.engines._messages import Array, Letter, read_letter
from fedpca_sklearn.engines._parameters import constructed, construction_of
from fedpca_sklearn.engines.files import SecureAggregation, SitePolicy, Study, answer
from fedpca_sklearn.engines.protocols import Context, Message, SiteApp, SumsInProcess, Task
from fedpca_sklearn.privacy import DiscreteGaussian

X = load_digits().data[:300]
LABELS = np.repeat(["east", "north", "west"], [100, 80, 120])
PARTS = {site: X[site == LABELS] for site in np.unique(LABELS)}
ESTIMATORS = """
FederatedPCA(4, scale=True)
FederatedPCA(5, merge=RobustMerge())
FederatedPCA(0.6, missing=ConditionalFill(n_rounds=2))
FederatedPCA("held-out", missing=ConditionalFill())
FederatedPCA(3, missing=AvailablePairs(), merge=SubspaceMerge(fan_in=2))
FederatedPowerPCA(4, n_rounds=3, local_steps=2, random_state=3)
FederatedSubspaceTracker(2, batch_size=40, init=FirstSubspace(n_rows=40), random_state=0)
VerticalFederatedPCA(3, method=PowerRounds(n_rounds=4), random_state=0)
VerticalFederatedKernelPCA(3, aggregation=VFedPCA(), gamma=1e-3)
[AnalyzeGauss(1.0, 1e-5, 2.0), (FedPowerNoise(1.0, 1e-5, 2.0), [3])]
""".strip().splitlines()


def site_of(path):
    """The site of a letter."""
    return path.stem.split(".", 1)[1]


def answered(path, rows, state=None, **how):
    """What a site says that answers the question of a letter, into another file or its answer."""
    question, state = path.with_suffix(".question"), state or path.parent / f"state {site_of(path)}"
    return answer(question, how.pop("out", path.with_suffix(".answer")), rows, state=state, **how)


def go_on(folder, parts, policies=None, **how):
    """One call of next in what would be a new process, and the answers that it asks for."""
    study = Study(folder)
    fitted = study.next()
    for path in study.awaited:
        more = {} if policies is None else {"policy": policies[site_of(path)]}
        answered(path, parts[site_of(path)], **more, **how)
    return fitted


def by_files(folder, estimator, parts, policies=None, secure=None, **how):
    Study.begin(folder, estimator, list(parts), secure=secure)
    for _ in range(200):
        fitted = go_on(folder, parts, policies=policies, secure=secure, **how)
        if fitted is not None:
            return fitted
    raise AssertionError("the study does not end")


# -------------------------------------------------------------------- what goes wrong

ROUNDS = FederatedPowerPCA(3, n_rounds=2, tol=0.0, random_state=0)
HERE = clone(ROUNDS).fit(X, clients=LABELS)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    fitted = by_files(folder, ROUNDS, PARTS)
    assert_same(fitted, HERE, 1e-14)
    letters = sorted(path.name for path in folder.glob("*.question"))
    names = itertools.product(range(1, 5), PARTS)  # moments, two products, variances
    assert letters == [f"{n:04}.{site}.question" for n, site in names]
    log, here = fitted.communication_, HERE.communication_
    assert (log.rounds, log.floats_up) == (here.rounds, here.floats_up)
    return fitted


@settings(max_examples=10, deadline=None, phases=[Phase.generate])  # shrinking takes minutes
@given(data=st.data())
def test_repeated_delayed_reordered_and_damaged_letters(data, undisturbed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    Study.begin(folder, ROUNDS, list(PARTS))
    fitted = None
    while fitted is None:
        study = Study(folder)
        fitted = study.next()
        for path in data.draw(st.permutations(study.awaited)):
            what = data.draw(st.sampled_from(["answer"] * 6 + ["late", "twice", "damaged"]))
            if what == "late":
                continue
            for _ in range(1 + (what == "twice")):
                answered(path, PARTS[site_of(path)])
            if what == "damaged":
                content = bytearray(path.read_bytes())
                at = data.draw(st.integers(0, len(content) - 1))
                content[at] ^= data.draw(st.integers(1, 255))
                path.write_bytes(bytes(content))
                with pytest.raises(ValueError, match=path.name):
                    Study(folder).next()
                path.unlink()
    assert_array_equal(fitted.components_, undisturbed.components_)
    assert_array_equal(fitted.singular_values_, undisturbed.singular_values_)


def test_a_site_does_not_answer_for_another_one(tmp_path):
    """East called itself north, whose own answer was left out then: a site has one name."""
    Study.begin(tmp_path, DistributedPCA(3), list(PARTS)).next()
    for path in tmp_path.glob("*.question"):
        answered(path, PARTS[site_of(path)])
    mine = tmp_path / "0001.east.answer"
    letter, _ = read_letter(mine)
    config = {**letter.message.config, "site": "north"}
    mine.write_bytes(letter._replace(message=replace(letter.message, config=config)).to_bytes())
    fitted = Study(tmp_path).next()
    assert (fitted.clients_, fitted.missing_sites_) == (list(PARTS), {})
    assert_same(fitted, clone(fitted).fit(X, clients=LABELS))


@pytest.fixture
def begun(tmp_path):
    """A study whose sites have answered one question, and the second one of the site east."""
    Study.begin(tmp_path, ROUNDS, list(PARTS))
    go_on(tmp_path, PARTS)
    Study(tmp_path).next()
    return tmp_path / "0002.east.question"


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX needed")
def test_nobody_else_reads_the_state_of_a_site(begun, tmp_path):
    for again in range(2):  # a file that is replaced has the same
        (state,) = (tmp_path / "state east").glob("*.state")
        assert [path.stat().st_mode & 0o077 for path in (state, state.parent)] == [0, 0], again
        answered(begun, PARTS["east"])


def no_room(file):
    raise OSError(28, "No space left on device")


def test_a_site_whose_disk_was_full_answers_when_there_is_room(tmp_path, monkeypatch):
    """What it keeps was an empty file, which is none."""
    Study.begin(tmp_path, ROUNDS, list(PARTS)).next()
    question = tmp_path / "0001.east.question"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_room)
        with pytest.raises(OSError, match="No space left"):
            answered(question, PARTS["east"])
    assert not list(tmp_path.rglob("*.state"))
    assert not answered(question, PARTS["east"])


NO_ESTIMATORS = {
    "GROUSE(2)": "estimator must be one of",
    "VerticalFederatedPCA(2, method=5)": "The 'method' parameter of Vertical",
    "VerticalFederatedPCA(method='x')": "The 'method' parameter of Vertical",
    "FederatedSubspaceTracker(2, n_iter=[])": "The 'n_iter' parameter of Fed",
    **dict.fromkeys(("[1]", "5", "PerfectChannel()"), "' constructs no estimator"),
}


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({"number": 1}, "question 1 is out of turn: 1 was answered"),
        ({"after": {"east": "0" * 64}}, "does not follow from the answer of this site before it"),
        ({"after": None}, "does not follow from the answer of this site before it"),
        # a number that is left out does not hide what the question follows from
        ({"number": 7, "after": {}}, "does not follow from the answer of this site before it"),
        ({"estimator": "DistributedPCA(3)"}, "the estimator is another than in earlier questions"),
        ({"secure": {"threshold": 2}}, "the secure is another than in earlier questions"),
        ({"number": "2"}, "a question states 'number', this one does not"),
        ({"node": True}, "a question states 'node', this one does not"),
        ({"site": "../east"}, None),
        *(({"run": 5, "estimator": code}, says) for code, says in NO_ESTIMATORS.items()),
    ],
)
def test_a_site_refuses_forged_questions(about, says, begun, tmp_path):
    letter, _ = read_letter(begun)
    begun.write_bytes(letter._replace(about={**letter.about, **about}).to_bytes())
    if says is None:  # of another name: a state of its own, inside the folder
        answered(begun, PARTS["east"])
        states = [path for path in tmp_path.rglob("*.state") if "east" in str(path)]
        assert {path.parent.name for path in states} == {"state east"}
        return
    with pytest.raises(ValueError, match=says):
        answered(begun, PARTS["east"])
    assert not begun.with_suffix(".answer").exists()


def test_of_two_questions_at_once_a_site_answers_one(begun, tmp_path, monkeypatch):
    """Otherwise shares of both secrets of a site, which take its masks off."""
    (letter, _), other, reply = read_letter(begun), tmp_path / "0003.east.question", SiteApp.reply
    other.write_bytes(letter._replace(about={**letter.about, "number": 3}).to_bytes())
    beside = []

    def slow(*given):
        if not beside:
            beside.append(pool.submit(answered, other, PARTS["east"]))
            wait(beside, timeout=0.5)
        return reply(*given)

    monkeypatch.setattr(SiteApp, "reply", slow)
    with ThreadPoolExecutor(1) as pool:
        assert not answered(begun, PARTS["east"])
    with pytest.raises(ValueError, match="does not follow from the answer of this site before it"):
        beside[0].result()


def test_questions_on_many_threads_are_counted_one_after_the_other():
    """A run begins three times; an app that has answered can still be copied, and pickled."""

    class Slow(dict):
        def get(self, *of):
            found = super().get(*of)
            time.sleep(0.02)
            return found

    power = FederatedPowerPCA(2)
    app = SiteApp(lambda _: X, power, lambda _: "east", SitePolicy())
    question, context = Message("moments", {**app._stated, "nonce": "1"}), Context(1, 1)
    context.state = Slow()
    with ThreadPoolExecutor(6) as pool:
        replies = list(pool.map(app.reply, [question] * 6, [context] * 6))
    assert sum("error" in reply.config for reply in replies) == 3
    assert "error" not in deepcopy(app).reply(question, Context(1, 2)).config


def test_no_question_makes_a_line_that_a_log_cannot_have(begun, tmp_path, caplog):
    (letter, _), log = read_letter(begun), tmp_path / "site.log"
    huge, one = Array(b"", (10**4000,) * 20, "<f8"), Array(b"", (1,), "<f8")
    for how, says in (
        ({"kind": "x" * 2**20}, "has no question of the kind 'xxx"),
        ({"arrays": {"0": huge}}, "the log of the site is not what was written"),
        ({"arrays": dict.fromkeys(map(str, range(10**4)), one)}, "has 3 arguments, got 10000"),
    ):
        begun.write_bytes(letter._replace(message=replace(letter.message, **how)).to_bytes())
        state, policy = tmp_path / says.replace(" ", ""), SitePolicy(log=log)
        assert says in answered(begun, PARTS["east"], state, policy=policy)
        assert log.stat().st_size < 2**13
    assert len(caplog.text) < 2000
    begun.write_bytes(letter.to_bytes())
    assert not answered(begun, PARTS["east"], tmp_path / "new", policy=SitePolicy(log=log))


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"bits": 40}, "secure sums of bits=40 are allowed, the question is of 50"),
        ({"scale": 2.0}, "secure sums of scale=2.0 are allowed, the question is of None"),
    ],
)
def test_secure_sums_are_those_that_the_owner_allows(own, says, tmp_path):
    pytest.importorskip("flwr")
    Study.begin(tmp_path, ROUNDS, list(PARTS), secure=SecureAggregation(threshold=2)).next()
    asked = tmp_path / "0001.east.question"
    with pytest.raises(ValueError, match=says):
        answered(asked, PARTS["east"], secure=SecureAggregation(threshold=2, **own))


def test_a_coordinator_does_not_say_of_how_many_sites_noise_is_a_share(tmp_path):
    """Of 8,000 it was 1 / 89 of that of one site, and the sites may be of its making."""
    pytest.importorskip("flwr")
    how = {"trust": "sum", "noise": DiscreteGaussian()}
    mechanism, own = AnalyzeGauss(1.0, 1e-5, 60.0, **how), SecureAggregation(2, restarts=0)
    pca, policy = (
        FederatedPCA(2, mechanism=mechanism),
        SitePolicy(mechanism=mechanism, ledger=tmp_path / "ledger"),
    )
    asked = tmp_path / "0001.east.question"
    Study.begin(tmp_path, pca, list(PARTS), secure=own).next()
    for kept, stated, says in (
        (own, 8000, "secure sums of threshold=2 are allowed, the question is of 8000"),
        (None, 2, "trust='sum' needs secure sums of the owner's threshold"),
        (own, 2, None),
    ):
        letter, _ = read_letter(asked)
        secure = {**letter.about["secure"], "threshold": stated}
        asked.write_bytes(letter._replace(about={**letter.about, "secure": secure}).to_bytes())
        with nullcontext() if says is None else pytest.raises(ValueError, match=says):
            assert not answered(asked, PARTS["east"], policy=policy, secure=kept)


def test_a_coordinator_does_not_say_how_rows_are_weighted(tmp_path):
    """An estimator inside that forgets may tell the last row."""
    pca = FederatedPCA(2, estimator=StreamingPCA(2, forgetting_factor=0.99))
    Study.begin(tmp_path, pca, list(PARTS)).next()
    asked = tmp_path / "0001.east.question"
    with pytest.raises(ValueError, match="another estimator inside, which may weigh rows"):
        answered(asked, PARTS["east"])
    assert not answered(asked, PARTS["east"], estimator=pca)


def test_two_sizes_of_batches_of_a_coordinators_choice_tell_a_row(tmp_path):
    """What docs/promises.md says: the owner's own estimator has one."""
    totals = []
    for size in (40, 41):
        tracker = made(f"FederatedSubspaceTracker(2, batch_size={size}, robust=False)")
        tracker.set_params(init=made(f"FirstSubspace(n_rows={size})"))
        study = Study.begin(tmp_path / str(size), tracker, ["east", "west"])
        for _ in range(2):
            study.next()
            for path in study.awaited:
                assert not answered(path, PARTS[site_of(path)], tmp_path / f"state {size}")
        found = read_letter(study.folder / "0002.east.answer")[0].message.arrays["total"]
        totals.append(np.frombuffer(found.data))
    assert_allclose(totals[1] - totals[0], PARTS["east"][40], atol=1e-9)


def test_a_site_answers_about_the_same_rows_and_what_its_owner_allows(begun, tmp_path):
    # a row that came between two questions would be the difference of their answers
    more = np.concatenate([PARTS["east"], PARTS["west"][:1]])
    for _ in range(2):  # also about a question that has been answered
        with pytest.raises(ValueError, match="the rows are others than in earlier questions"):
            answered(begun, more)
        assert not answered(begun, PARTS["east"])
    with pytest.raises(ValueError, match="the site takes part in secure sums only"):
        answered(begun, PARTS["east"], tmp_path / "new", secure=SecureAggregation())


def test_what_is_sent_beside_arrays_is_plain(begun):
    letter, _ = read_letter(begun)
    for value in ({"a": 1}, None, [1, "a"], [[1]], [None]):
        message = replace(letter.message, config={"columns": value})
        with pytest.raises(ValueError, match="it is not whole"):
            Letter.from_bytes(letter._replace(message=message).to_bytes())


def test_a_letter_of_another_version_is_refused_by_name(begun, tmp_path):
    other = tmp_path / "other"
    other.write_bytes(begun.read_bytes().replace(b"message 2", b"message 1", 1))
    with pytest.raises(ValueError, match="other: it is of another version of messages"):
        read_letter(other)


def test_letters_are_signed_with_keys_that_were_handed_over(tmp_path):
    """Nobody on the way asks or answers in another's name, with or without a key of his own."""
    pytest.importorskip("flwr")
    from engines.secure_helpers import pem_pair

    names = list(PARTS)
    pairs = {name: pem_pair() for name in [*names, "coordinator", "stranger"]}
    public = {site: pairs[site][1] for site in names}
    coordinator = pairs["coordinator"][0], public
    own = {site: (pairs[site][0], pairs["coordinator"][1]) for site in names}
    with pytest.raises(ValueError, match=r"identity must have the public key of .* not 'lab'"):
        Study.begin(tmp_path / "b", ROUNDS, names, identity=(b"", {**public, "lab": b""}))
    Study.begin(tmp_path / "b", ROUNDS, names, identity=coordinator)
    for _ in range(20):
        study = Study(tmp_path / "b", identity=coordinator)
        study.next()
        if (fitted := study.next()) is not None:  # asked again, the questions are the same
            break
        for path in study.awaited:
            site = site_of(path)
            answered(path, PARTS[site], identity=own[site])
            if not path.name.startswith("0001"):
                continue
            good, question = path.read_bytes(), path.with_suffix(".question")
            letter = read_letter(question)[0]
            other = {k: v for k, v in letter.about.items() if k != "signature"}
            for about in (other, {**letter.about, "seed": 1}, {**other, "signature": b"no"}):
                forged = tmp_path / "forged.question"
                forged.write_bytes(letter._replace(about=about).to_bytes())
                with pytest.raises(ValueError, match="is not signed with the key of its author"):
                    answer(forged, path, PARTS[site], state=tmp_path / "new", identity=own[site])
            for key in (None, (pairs["stranger"][0], pairs["coordinator"][1])):
                answer(question, path, PARTS[site], state=tmp_path / f"{key}"[:9], identity=key)
                with pytest.raises(ValueError, match="is not signed with the key of its author"):
                    study.next()
            path.write_bytes(good)
    assert_same(fitted, HERE, 1e-14)
    assert all(b'"signature"' in p.read_bytes() for p in (tmp_path / "b").glob("0*.*"))


def test_who_writes_into_the_folder_of_a_signed_study_changes_nothing(tmp_path):
    """Neither what is fitted, by secure sums or not, nor who takes part."""
    pytest.importorskip("flwr")
    from engines.secure_helpers import pem_pair

    names = list(PARTS)
    (secret, _), stranger = pem_pair(), (pem_pair()[0], {})
    identity = secret, {site: pem_pair()[1] for site in names}
    secure = SecureAggregation(threshold=2)
    Study.begin(tmp_path, ROUNDS, names, secure=secure, identity=identity).next()
    path = tmp_path / "study.json"
    good, written = json.loads(path.read_text()), path.read_text()
    for changes in ({"secure": None}, {"estimator": "DistributedPCA()"}, {"signature": ""}):
        path.write_text(json.dumps({**good, **changes}))
        with pytest.raises(ValueError, match=r"study\.json: it is not signed with the key"):
            Study(tmp_path, identity=identity)
    path.write_text(written)
    study, without = Study(tmp_path, identity=identity), tmp_path / "0001.east.without"
    study.next()
    study.identity = stranger
    study.without("east")
    study.identity = identity
    for content in (b"", without.read_bytes()):
        without.write_bytes(content)
        with pytest.raises(ValueError, match=r"0001.east.without: it is n"):
            study.next()
    without.unlink()
    study.next()
    study.without("east")
    (tmp_path / "0001.north.without").write_bytes(without.read_bytes())  # of another site
    with pytest.raises(ValueError, match=r"0001\.north\.without: it is not signed"):
        study.next()
    (tmp_path / "0001.north.without").unlink()
    assert study.next() is None
    assert len(study.awaited) == 2


@pytest.mark.filterwarnings("ignore:Fitted without site .east.")
def test_a_site_without_which_masks_came_off_is_asked_no_more(tmp_path):
    pytest.importorskip("flwr")
    secure, fitted = SecureAggregation(threshold=2), None
    Study.begin(tmp_path, ROUNDS, list(PARTS), secure=secure)
    while fitted is None:
        fitted = (study := Study(tmp_path)).next()
        for path in study.awaited:
            if path.name == "0005.east.answer":  # its numbers are in the first sum
                study.without("east")
            else:
                answered(path, PARTS[site_of(path)], secure=secure)
    others = LABELS != "east"
    here = clone(ROUNDS).fit(X[others], clients=LABELS[others])
    assert fitted.clients_ == here.clients_
    assert_allclose(fitted.components_, here.components_, atol=1e-9)


def test_a_folder_that_others_write_into_leads_nowhere_else(tmp_path):
    begun = tmp_path / "study" / "study.json"
    Study.begin(begun.parent, ROUNDS, ["east", "west"])
    good = json.loads(begun.read_text())
    for sites in (["../east", "west"], ["east", 1], ["east", "east"], ["east"]):
        begun.write_text(json.dumps({**good, "sites": sites}))
        with pytest.raises(ValueError, match=r"study.json: it is not what was written \("):
            Study(begun.parent).next()
    for text in (json.dumps({**good, "secure": {"odd": 1}}), "[" * 200_000):
        begun.write_text(text)
        with pytest.raises(ValueError, match="it is not what was written"):
            Study(begun.parent)
    begun.write_text(json.dumps(good))
    question, said = (begun.parent / f"0001.east.{what}" for what in ("question", "answer"))
    question.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"0001\.east\.question is a link"):
        Study(begun.parent).next()
    assert not (tmp_path / "elsewhere").exists()
    question.unlink()
    study = Study(begun.parent)
    study.next()
    without = question.with_suffix(".without")
    without.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"0001\.east\.without is a link"):
        study.without("east")
    without.unlink()
    (own := tmp_path / "rows.csv").write_text("of the site")
    said.symlink_to(own)
    with pytest.raises(ValueError, match=r"0001\.east\.answer is a link"):
        answer(question, said, PARTS["east"], state=tmp_path / "state")
    assert own.read_text() == "of the site"
    for other in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        said.unlink()
        other(said)
        with pytest.raises(ValueError, match="file must be a regular file"):
            study.next()
    said.unlink()
    os.mkfifo(said)
    with pytest.raises(ValueError, match="file must be a regular file"):
        answer(question, said, PARTS["east"], state=tmp_path / "state")


def test_answers_that_were_changed_later_are_noticed(begun, tmp_path):
    first = tmp_path / "0001.east.answer"
    answered(first, PARTS["west"], tmp_path / "another state")
    with pytest.raises(RuntimeError, match=r"0002.*question.* another question than follows"):
        Study(tmp_path).next()


def test_an_answer_of_another_site_is_not_taken(begun, tmp_path):
    for path in tmp_path.glob("0002.*.question"):
        answered(path, PARTS[site_of(path)])
    east, west = (tmp_path / f"0002.{site}.answer" for site in ("east", "west"))
    sent = east.read_bytes()
    for cut in (0, 10, 30, 200, -1):
        east.write_bytes(sent[:cut])
        with pytest.raises(ValueError, match=r"0002\.east\.answer: it is no"):
            Study(tmp_path).next()
    os.truncate(east, 2**36 + 1)  # which takes no room
    with pytest.raises(ValueError, match=r"0002\.east\.answer: it is too large for a message"):
        Study(tmp_path).next()
    east.write_bytes(west.read_bytes())
    with pytest.raises(ValueError, match=r"0002\.east\.answer answers another question"):
        Study(tmp_path).next()


# -------------------------------------------------------------------- protocols of one's own


# The estimator of one's own in docs/extending_flower.md is fitted over every transport.
TOTAL = Task(
    lambda site, own: {"sum": own.total, "count": [own.n_samples]},
    reads="moments",
    bound=lambda n, mean, scatter: {"sum": n * mean, "count": n},
)
SHAPES = {"sum": (None,), "count": (1,)}


def summed(shapes=SHAPES, **changes):
    shards = [("east", slice(100)), ("west", slice(100, None))]
    return SumsInProcess({"total": replace(TOTAL, **changes)}, X, None, shards).sum("total", shapes)


@pytest.mark.parametrize("secure", [None, SecureAggregation(threshold=2)])
def test_nobody_would_add_the_noise_of_a_mechanism_of_ones_own(tmp_path, secure):
    pytest.importorskip("flwr")

    class Totals(ClientsTransformer):
        def __init__(self, mechanism=None):
            self.mechanism = mechanism

        _step = None

        def site_tasks(self):
            return {"total": TOTAL}

    own = {"noise": DiscreteGaussian(), "ledger": PrivacyLedger(tmp_path / "ledger")}
    noisy = Totals(AnalyzeGauss(1.0, 1e-5, 1.0, **own))
    with pytest.raises(ValueError, match="mechanism must be None: tasks of Totals would draw no"):
        SiteApp(lambda _: X, noisy, str, SitePolicy(), secure)
    own_tasks = type("Own", (FederatedPCA,), {"site_tasks": Totals.site_tasks})
    with pytest.raises(TypeError, match="Own has site_tasks and is asked as its base"):
        SiteApp(lambda _: X, own_tasks(2), str, SitePolicy(), secure)


def test_a_bound_that_does_not_hold_is_an_error_in_one_process():
    with pytest.raises(ValueError, match=r"Client .*bound of 'sum' must be at least"):
        summed(bound=lambda n, mean, scatter: {"sum": 1e-3 * n * mean, "count": n})
    with pytest.raises(ValueError, match=r"bound must be of \['count', 'sum'\], .* got \['sum'\]"):
        summed(bound=lambda n, mean, scatter: {"sum": n * mean})


def test_bounds_and_sums_in_one_process_are_of_moments():
    with pytest.raises(ValueError, match="a bound needs reads='moments', got 'summary'"):
        Task(lambda site, X: {}, reads="summary", bound=lambda *given: {})
    tasks = {"rows": Task(lambda site, X: {}, reads="summary")}
    with pytest.raises(ValueError, match="tasks must read 'moments', 'rows' reads 'summary'"):
        SumsInProcess(tasks, X, None, [])


class Roots(ClientsTransformer):
    """Sums of the roots of the means of sites, with a share of the bound that holds."""

    def __init__(self, share=1.0, n_components=1):
        self.share, self.n_components = share, n_components

    _step = None

    def site_tasks(self):
        def work(site, own):
            with np.errstate(invalid="ignore"):
                return {"roots": np.sqrt(own.mean)}

        def bound(n, mean, scatter):
            return {"roots": self.share * np.sqrt(mean)}

        return {"batch": Task(work, reads="moments", bound=bound)}  # a kind of others, too

    def fit_over(self, sites):
        self.mean_ = sites.sum("batch", {"roots": (None,)})["roots"]


@pytest.mark.parametrize(
    ("share", "n_wrong"),
    [(1.0, 0), (1.0, 1), (1.0, 2), (1.0, 4), (0.01, 0), (1e-4, 0), (1e-12, 0), (0.0, 0)],
)
def test_a_masked_sum_beyond_its_bound_is_an_error(share, n_wrong):
    """Sites cannot refuse by their numbers: what is NaN, or above a bound, shows in the sum."""
    pytest.importorskip("flwr")
    from fedpca_sklearn.engines.flower import fit_sites
    from fedpca_sklearn.engines.testing import InProcessGrid

    secure = SecureAggregation(threshold=3)
    parts = {site: X[i::5, :5] + (-20.0 if i < n_wrong else 1.0) for i, site in enumerate("abcde")}
    grid = InProcessGrid.of_rows(Roots(share), parts, secure=secure)
    expects = nullcontext()
    if (share, n_wrong) != (1.0, 0):
        says = "sum of 'roots' must be within 5 times the bound of its task"
        expects = pytest.raises(ValueError, match=says)
    with expects:
        found = fit_sites(grid, Roots(share), secure=secure, wait=0).mean_
        want = sum(np.sqrt(rows.mean(axis=0)) for rows in parts.values())
        assert_allclose(found, want, rtol=1e-12)


@pytest.mark.parametrize(
    ("given_", "found"), [("f4", "f4"), ("f8", "f8"), ("i8", "f8"), ("u1", "f8")]
)
def test_the_dtype_of_rows_in_one_process_is_a_float(given_, found):
    rows = X.astype(given_)
    sites = SumsInProcess({"total": TOTAL}, rows, None, [("east", slice(100))])
    assert sites.dtype == FederatedPCA(2).fit(rows).components_.dtype == np.dtype(found)
    sites.sum("total", SHAPES)
    assert sites.log.bytes_up == 8 * sites.log.floats_up == 8 * 65


@pytest.mark.parametrize("shapes", [{"sum": (None,), "count": (None,)}, {"sum": (None, 1)}])
def test_masked_numbers_tell_one_length(shapes):
    """In one process, where all shapes could be seen, it is the same."""
    with pytest.raises(ValueError, match=r"shapes must be known, but for one of \(None,\), got"):
        summed(shapes)


@pytest.mark.parametrize("shapes", [{"sum": (64,)}, {"sum": (63,), "count": (1,)}])
def test_a_sum_is_of_the_arrays_that_were_asked_for(shapes):
    """Of any shape where a length is not known, and without a bound."""
    found = summed(bound=None)
    assert_allclose(found["sum"], X.sum(axis=0), rtol=1e-12)
    assert found["count"] == len(X)
    with pytest.raises(ValueError, match=r"Client 'east': an answer has arrays of shapes .*sum"):
        summed(shapes)


# -------------------------------------------------------------------- studies and texts


def test_a_study_draws_its_random_state_once_and_a_folder_has_one_study(tmp_path, monkeypatch):
    study = Study.begin(tmp_path, FederatedPowerPCA(3), ["a", "b"])
    drawn = study.estimator.random_state
    assert isinstance(drawn, int)
    assert Study(tmp_path).estimator.random_state == drawn
    for looks in (Path.exists, lambda path: False):  # before another process has begun
        monkeypatch.setattr(Path, "exists", looks)
        with pytest.raises(ValueError, match="exists: a folder has one study"):
            Study.begin(tmp_path, ROUNDS, ["a", "b"])
    assert [path.name for path in tmp_path.iterdir()] == ["study.json"]
    path = tmp_path / "study.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "run": "x"}))
    with pytest.raises(ValueError, match=r"study\.json: it is not what was written"):
        Study(tmp_path)


def test_names_of_sites(tmp_path):
    says = "sites must be (at least min_sites=2 different names|names that files can have)"
    same = ["\u00e9", "e\u0301"]  # one name, which a file system or a summary may compose
    for sites in (["a"], ["a", "a"], same, ["a", "../b"], ["a", ".b"], ["a", ""], ["a", "b" * 241]):
        with pytest.raises(ValueError, match=says):
            pytest.fail(f"{Study.begin(tmp_path / 'new', ROUNDS, sites)} of {sites}")
    with pytest.raises(ValueError, match="at least threshold=3 different names"):
        Study.begin(tmp_path / "new", ROUNDS, ["a", "b"], secure=SecureAggregation(threshold=3))
    assert not (tmp_path / "new").exists()


def test_an_estimator_that_sites_cannot_fit_begins_no_study(tmp_path):
    noisy = FederatedPCA(2, mechanism=AnalyzeGauss(1.0, 1e-5, 9.0, trust="sum"))
    for wrong, words in [
        (SubspaceTracker(2), "must be one of .*FederatedPCA"),
        (FederatedPCA("x"), "'n_components' parameter"),
        (noisy, "needs secure sums"),
    ]:
        with pytest.raises(TypeError if "one of" in words else ValueError, match=words):
            Study.begin(tmp_path, wrong, ["a", "b"])
    assert not list(tmp_path.iterdir())


def test_a_construction_is_read_as_it_was():
    for code in ESTIMATORS:
        text = construction_of(made(code))
        assert construction_of(constructed(text)) == text
        assert repr(constructed(text)) == repr(made(code))


def test_arrays_and_infinities_are_constructed():
    init = np.linspace(0, 1, 6).reshape(2, 3)
    text = construction_of(FederatedPowerPCA(2, init=init, tol=np.float64(0.1)))
    assert text == f"FederatedPowerPCA(n_components=2, init={init.tolist()!r}, tol=0.1)" or (
        constructed(text).get_params()["init"] == init.tolist()
    )
    assert construction_of(AnalyzeGauss(float("inf"), 1e-5, 1.0)).count("1e999") == 1
    assert constructed("AnalyzeGauss(1e999, 1e-5, row_norm=1.0)").epsilon == float("inf")


TEXTS = """
__import__('os').system('true') ; open('x') ; NpyRows('x') ; PrivacyLedger('x') ; lambda: 1
FederatedPCA(merge=open) ; FederatedPCA(**{}) ; FederatedPCA(n_jobs=2) ; FederatedPCA(1, 2)
AnalyzeGauss(1.0, 1e-5, ledger='x') ; [x for x in ()] ; FederatedPCA.fit
FederatedPCA(3 ; FederatedPCA(nobody=3)
"""


LONG = "(" * 1000 + ")" * 1000, "1" + " " * 10**6


def test_texts_that_construct_nothing():
    why = r"construct|public class|one by one|one process|no constant"
    for text in (*re.split(" ; |\n", TEXTS.strip()), *LONG):
        with pytest.raises(ValueError, match=why):
            pytest.fail(f"{constructed(text)} of {text[:40]}")


def test_what_no_text_constructs():
    class Own(SubspaceMerge):
        pass

    with pytest.raises(ValueError, match="a parameter is a Own, expected constants"):
        construction_of(FederatedPCA(merge=Own()))
    with pytest.raises(ValueError, match="a parameter is NaN"):
        construction_of(FederatedPowerPCA(tol=float("nan")))


@pytest.fixture(scope="module")
def message(tmp_path_factory):
    """A message with a configuration of all kinds."""
    folder = tmp_path_factory.mktemp("letter")
    Study.begin(folder, ROUNDS, list(PARTS)).next()
    letter, _ = read_letter(folder / "0001.east.question")
    return replace(letter.message, config={"a": 1, "b": b"\x00", "c": ["x"]})


@settings(max_examples=60)
@given(content=st.binary(max_size=200), at=st.integers(0, 400), byte=st.integers(1, 255))
def test_no_letter_is_anything_but_whole(content, at, byte, message):
    whole = Letter({"n": 1}, message).to_bytes()
    assert Letter.from_bytes(whole).to_bytes() == whole
    broken = bytearray(whole)
    broken[at % len(whole)] ^= byte
    for data in (bytes(content), bytes(broken), whole[: at % len(whole)], whole + content[:1]):
        with suppress(ValueError):  # and no other error
            Letter.from_bytes(data)


OVERLAPPING = '[1], "<f8", 8], ["y", [1], "<f8", -8], ["z", [1], "<f8"'


@pytest.mark.parametrize(
    "what", [*(f'{s}, "<f8"' for s in ("[Infinity]", "[1.5]", "[true]", '"12"', "{}")), OVERLAPPING]
)
def test_the_shape_of_an_array_is_a_list_of_whole_numbers_and_its_length_is_none_below_zero(what):
    listed = f'[["x", {what}, 8]]'
    text = f'{{"about": {{}}, "kind": "rows", "config": {{}}, "arrays": {listed}}}'.encode()
    start = Letter({}, Message("rows")).to_bytes().partition(b"\n")[0] + b"\n"
    whole = start + len(text).to_bytes(8, "little") + text + bytes(8)
    with pytest.raises(ValueError, match="it is not whole, or not what was written"):
        Letter.from_bytes(whole + hashlib.sha256(whole).digest())
