"""Secure sums whose server tries to learn a single site's numbers: the sites refuse."""

import os
from collections import defaultdict
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import chisquare

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from flwr.app import Array, ArrayRecord, ConfigRecord
from test_hostile_server import ROWS, Site

from fedpca_sklearn import FederatedPCA, FederatedPowerPCA
from fedpca_sklearn.communication._fixed_point import encode
from fedpca_sklearn.engines import _flower_masks, _flower_secure_site
from fedpca_sklearn.engines._flower_masks import (
    key_pair,
    mask,
    opened,
    recovered,
    sealed,
    shared_key,
    signed_masks,
)
from fedpca_sklearn.engines._flower_secure_site import question_of, session_of
from fedpca_sklearn.engines._flower_signatures import signature
from fedpca_sklearn.engines.flower import SecureAggregation

SCALE = 2.0**20
SECURE = SecureAggregation(threshold=2, scale=SCALE)
E, BITS = 20, 50
# what a site sends about the question "moments": the sums of eight columns, their number, a zero
N = 10


class Server:
    """Sites, and a server that asks each of them what it likes."""

    def __init__(self, n=3, secure=SECURE, estimator=None, rows=ROWS):
        estimator = FederatedPCA(3) if estimator is None else estimator
        each = secure if isinstance(secure, list) else [secure] * n
        self.sites = [Site(estimator, rows[i::n], secure=each[i]) for i in range(n)]
        self.threshold = each[0].needed(n)

    def tell(self, i, kind, *arguments, **config):
        """What site i answers: its configuration and its arrays."""
        record = ConfigRecord({"nonce": "once", **config})
        return self.sites[i].ask(kind, *arguments, config=record)

    def keys(self):
        told = [self.tell(i, "secure_keys")[0] for i in range(len(self.sites))]
        self.mask_keys = [config["mask_key"] for config in told]
        self.box_keys = [config["box_key"] for config in told]
        return self

    def lists(self, **changes):
        """What the server says in the second question."""
        config = {"mask_keys": self.mask_keys, "box_keys": self.box_keys}
        return {**config, "threshold": self.threshold, **changes}

    def shares(self):
        told = [self.tell(i, "secure_shares", **self.lists())[0] for i in range(len(self.sites))]
        self.boxes = [config["boxes"] for config in told]
        self.signatures = [config.get("signature", b"") for config in told]
        return self

    def question(self, i, **changes):
        """What the server says in the third question."""
        boxes = [own[i] for own in self.boxes]
        told = {"boxes": boxes, "bits": BITS, "exponents": [E, E], "signatures": self.signatures}
        return {**told, **changes}

    def begun(self):
        """The first sum of a fit without a public scale, and shares for the next."""
        sites, question = range(len(self.sites)), {"exponents": []}
        self.keys().shares()
        for i in sites:
            self.tell(i, "moments_bound", **self.question(i, **question))
        return self.keys().shares()

    def masked(self):
        sites = range(len(self.sites))
        self.numbers = [self.tell(i, "moments", **self.question(i))[1]["masked"] for i in sites]
        return self

    def refused(self, i, kind, *arguments, why, **config):
        """Nothing comes back but the reason."""
        told, arrays = self.tell(i, kind, *arguments, **config)
        assert arrays == {}
        assert set(told) <= {"site", "nonce", "error"}
        assert told["error"].startswith("refused: ")
        assert why in told["error"]

    def forget(self):
        """Begin another run as far as the counts of the sites are concerned."""
        for site in self.sites:
            site.context.state["fedpca_sklearn"]["run"] = 0
            site.context.state["fedpca_sklearn.sums_begun"]["begun"] = 0

    def question_digest(self):
        session = session_of(self.threshold, self.mask_keys, self.box_keys)
        return question_of(session, "moments", BITS, [E, E], {})


ONCE = "this site takes part in secure sums only"


def own_numbers(rows):
    """The integers that a site masks, and the zero."""
    sums = encode(np.append(len(rows), rows.sum(axis=0)), E, BITS)
    return np.append(sums, np.zeros(1, np.uint64))


# -------------------------------------------------------------------- the order of questions


def test_an_honest_server_learns_the_sum():
    server = Server().keys().shares().masked()
    shares = [server.tell(i, "secure_unmask", sent=[0, 1, 2])[0]["shares"] for i in range(3)]
    total = np.add.reduce(server.numbers)
    for owner in range(3):
        seed = recovered([shares[i][owner] for i in (0, 2)])
        total -= mask(seed, server.question_digest(), N)
    assert total.tolist() == np.add.reduce([own_numbers(ROWS[i::3]) for i in range(3)]).tolist()


def test_a_site_gives_one_kind_of_share_of_a_site_once():
    """The share of a site's own mask and that of its key together take all masks off."""
    server = Server().keys().shares().masked()
    told, _ = server.tell(0, "secure_unmask", sent=[0, 1])
    assert len(told["shares"]) == 3
    server.refused(0, "secure_unmask", sent=[0, 2], why=ONCE)
    server.refused(0, "secure_unmask", sent=[0, 1], why=ONCE)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        ([0], "this site and 1 others must have sent numbers"),
        ([1, 2], "this site and 1 others must have sent numbers"),
        ([0, 0], "must be some of 3 sites, each once"),
        ([0, 1, 1], "must be some of 3 sites, each once"),
        ([0, 3], "must be some of 3 sites, each once"),
        ([0, -1], "must be some of 3 sites, each once"),
        (["0", "1"], "must be some of 3 sites, each once"),
        ([], "this site and 1 others must have sent numbers"),
        (3, "must be some of 3 sites, each once"),
    ],
)
def test_who_is_said_to_have_sent_numbers(sent, why):
    server = Server().keys().shares().masked()
    server.refused(0, "secure_unmask", sent=sent, why=why)
    server.refused(0, "secure_unmask", sent=[0, 1, 2], why=ONCE)


def test_each_question_of_a_sum_is_asked_once():
    """Two answers with the same masks would tell the difference of what they hide."""
    server = Server().keys()
    server.refused(0, "moments", boxes=[], bits=BITS, exponents=[E, E], why=ONCE)
    server.keys().shares()
    server.refused(0, "secure_shares", **server.lists(), why=ONCE)
    server.keys().shares().masked()
    server.refused(0, "moments", **server.question(0), why=ONCE)
    server.refused(0, "secure_unmask", sent=[0, 1, 2], why=ONCE)


def test_a_sum_is_not_used_again():
    """What is left of an earlier sum opens nothing in the next: keys are new for each."""
    old = Server()
    old.keys().shares()
    lists, question = old.lists(), old.question(0)
    old.masked()
    numbers = old.numbers[0]
    old.keys()
    assert not set(lists["mask_keys"]) & set(old.mask_keys)
    old.refused(0, "secure_shares", **lists, why="the keys of this site must be in the list")
    old.keys().shares()
    old.refused(0, "moments", **question, why="shares of 1 sites open, the sum needs 2")
    old.keys().shares()
    old.forget()
    old.masked()
    assert not (old.numbers[0] == numbers).any()


def test_another_run_does_not_go_on_with_a_sum():
    server = Server().keys()
    server.sites[0].context._run_id = server.sites[0].context.run_id = 2
    server.refused(0, "secure_shares", **server.lists(), why=ONCE)


def test_numbers_without_masks_are_refused():
    estimator = FederatedPowerPCA(3, random_state=0)
    site = Server(estimator=estimator)
    for kind, arguments in {
        "moments": (),
        "times_scatter": (np.eye(3, 8), np.zeros(8), 1),
        "variances": (np.eye(3, 8), np.zeros(8)),
    }.items():
        site.refused(0, kind, *arguments, why=ONCE)
    for kind in ("summary", "factor"):
        with pytest.raises(ValueError, match="No query function"):
            site.tell(0, kind)


def test_questions_are_checked_and_counted_as_without_masks():
    mean = ROWS.mean(axis=0)
    for V, why in {
        "a basis of one direction twice": (np.eye(8)[[0, 0]], "orthonormal"),
        "more directions": (np.eye(8)[:4], "k <= 3"),
    }.values():
        server = Server(estimator=FederatedPowerPCA(3, random_state=0)).keys().shares()
        question = server.question(0, exponents=[E])
        server.refused(0, "times_scatter", V, mean, 1, **question, why=why)
    server = Server()
    for _ in range(3):
        server.keys().shares().masked()
    server.keys().shares()
    server.refused(0, "moments", **server.question(0), why="a run begins at most 3 times")


# -------------------------------------------------------------------- keys and boxes


def other_key(kind):
    """A public key of another kind."""
    key = ec.generate_private_key(ec.SECP256R1()) if kind == "curve" else None
    key = rsa.generate_private_key(65537, 1024) if kind == "rsa" else key
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, form)


LISTS = {
    "of this site alone": (lambda s: (s.mask_keys[:1], s.box_keys[:1], 1), "from 2 to 1"),
    "with a threshold of one": (lambda s: (s.mask_keys, s.box_keys, 1), "from 2 to 3"),
    "with a threshold above all": (lambda s: (s.mask_keys, s.box_keys, 4), "from 2 to 3"),
    "with a threshold that is no integer": (lambda s: (s.mask_keys, s.box_keys, 2.0), "from 2"),
    "without this site": (lambda s: (s.mask_keys[1:], s.box_keys[1:], 2), "must be in the list"),
    "with this site's keys exchanged": (
        lambda s: (
            [s.box_keys[0], *s.mask_keys[1:]],
            [s.mask_keys[0], *s.box_keys[1:]],
            2,
        ),
        "must be in the list",
    ),
    "with another key for this site": (
        lambda s: (s.mask_keys, [key_pair()[1], *s.box_keys[1:]], 2),
        "must be in the list",
    ),
    "with this site twice": (
        lambda s: ([*s.mask_keys[:1] * 2], [*s.box_keys[:1] * 2], 2),
        "two different public keys",
    ),
    "with another site twice": (
        lambda s: ([*s.mask_keys, s.mask_keys[1]], [*s.box_keys, key_pair()[1]], 3),
        "two different public keys",
    ),
    "with fewer keys for boxes": (lambda s: (s.mask_keys, s.box_keys[:2], 2), "two different"),
    "with no key": (lambda s: (s.mask_keys, [*s.box_keys[:2], b"key"], 2), "two different"),
    "with a key of another curve": (
        lambda s: ([*s.mask_keys[:2], other_key("curve")], s.box_keys, 2),
        "two different",
    ),
    "with an RSA key": (
        lambda s: (s.mask_keys, [*s.box_keys[:2], other_key("rsa")], 2),
        "two diff",
    ),
    "of texts": (lambda s: (["key"] * 3, s.box_keys, 2), "mask_keys must be a list of bytes"),
    "empty": (lambda s: ([], [], 2), "two different public keys"),
}


@pytest.mark.parametrize(("lists", "why"), LISTS.values(), ids=LISTS)
def test_lists_of_keys(lists, why):
    server = Server().keys()
    mask_keys, box_keys, threshold = lists(server)
    told = {"mask_keys": mask_keys, "box_keys": box_keys, "threshold": threshold}
    server.refused(0, "secure_shares", **told, why=why)


def test_a_site_insists_on_its_own_threshold():
    server = Server(secure=SecureAggregation(threshold=3, scale=SCALE)).keys()
    server.refused(0, "secure_shares", **server.lists(threshold=2), why="from 3 to 3")


def test_a_sum_of_more_sites_than_the_ring_has_room_for():
    server = Server(secure=SecureAggregation(threshold=2, bits=60, scale=SCALE)).keys()
    more = [key_pair()[1] for _ in range(10)]
    lists = server.lists(
        mask_keys=[*server.mask_keys, *more[:5]],
        box_keys=[*server.box_keys, *more[5:]],
        threshold=7,
    )
    server.refused(0, "secure_shares", **lists, why="bits=60 leaves no room to add up 8 messages")


def test_boxes_are_of_all_others_and_for_this_site():
    for change in (lambda b: b[:2], lambda b: [b[1], *b[1:]], lambda b: [*b[:2], b""], lambda b: 3):
        server = Server().keys().shares()
        question = server.question(0)
        question["boxes"] = change(question["boxes"])
        server.refused(0, "moments", **question, why="boxes must be")
    # boxes for another site, from another site, and nonsense do not open
    for pick in (lambda b: [b"", b[1][2], b[2][1]], lambda b: [b"", b[2][0], b[1][0]]):
        server = Server().keys().shares()
        question = server.question(0, boxes=pick(server.boxes))
        server.refused(0, "moments", **question, why="shares of 1 sites open, the sum needs 2")
    server = Server().keys().shares()
    question = server.question(0, boxes=[b"", b"nonsense", server.boxes[2][0]])
    assert server.tell(0, "moments", **question)[1]["masked"].shape == (N,)


def test_boxes_tell_the_server_nothing_and_are_bound_to_the_sum():
    session, another = b"s" * 32, b"t" * 32
    (a, public_a), (b, public_b), (c, _) = (key_pair() for _ in range(3))
    key = shared_key(a, public_b)
    assert key == shared_key(b, public_a) != shared_key(c, public_b)
    box = sealed(key, session, 0, 1, (b"seed", b"key"))
    assert b"seed" not in box
    assert opened(key, session, 0, 1, box) == (b"seed", b"key")
    for wrong in (
        (shared_key(c, public_b), session, 0, 1, box),
        (key, another, 0, 1, box),
        (key, session, 1, 0, box),
        (key, session, 0, 2, box),
        (key, session, 0, 1, box[:-1] + b"0"),
        (key, session, 0, 1, b""),
    ):
        assert opened(*wrong) is None


# -------------------------------------------------------------------- scales


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"bits": 40}, "bits must be 50"),
        ({"bits": "50"}, "bits must be 50"),
        ({"exponents": [E]}, "2 exponents are needed"),
        ({"exponents": E}, "a list of exponents is needed"),
        ({"exponents": [E, E + 1]}, "the scale must be 1.04858e+06"),
        ({"exponents": [E, 0.5]}, "exponents must be integers"),
        ({"exponents": [E, 984]}, "exponents must be integers from -960 to 983"),
    ],
)
def test_scales_and_bits(change, why):
    server = Server().keys().shares()
    config = server.question(0, **change)
    if change.get("exponents") == [E, 0.5]:
        config["exponents"] = [20.0, 0.5]
    server.refused(0, "moments", **config, why=why)


def test_a_scale_that_is_too_small_is_refused_and_clips_nothing():
    server = Server(secure=SecureAggregation(threshold=2)).begun()
    server.refused(0, "moments", **server.question(0, exponents=[9, 2]), why="out of range")


def test_a_fit_begins_with_the_question_that_is_counted():
    """Sums asked before it would be one fit more than ``restarts`` allows."""
    server = Server(secure=SecureAggregation(threshold=2, restarts=0)).keys().shares()
    why = "a fit begins with 'moments_bound'"
    server.refused(0, "moments", **server.question(0), why=why)
    server.keys().shares()
    question = server.question(0, exponents=[E] * 3)
    server.refused(0, "second_moments", ROWS.mean(axis=0), **question, why=why)
    server.begun().masked()
    assert all(len(numbers) == N for numbers in server.numbers)
    server.keys().shares()
    question = server.question(0, exponents=[])
    server.refused(0, "moments_bound", **question, why="a fit begins again at most 0 times")


# -------------------------------------------------------------------- lies that differ by site


def unmasked(server, shares, sent):
    """What all shares that the server got take off the sum of some sites' numbers."""
    n, digest = len(server.sites), server.question_digest()
    total = np.add.reduce([server.numbers[i] for i in sent])
    for owner in range(n):
        got = [s[owner] for s in shares if s[owner]]
        for few in combinations(got, server.threshold):
            secret = recovered(few)
            if secret is None:
                continue
            if b"PRIVATE KEY" in secret:
                if owner not in sent:
                    total += signed_masks(secret, owner, server.mask_keys, sent, digest, N)
                break
            if owner in sent:
                total -= mask(secret, digest, N)
                break
    return total


@pytest.mark.parametrize("sent", [[0], [0, 1], [0, 1, 2]])
def test_a_server_that_tells_sites_different_things_about_the_lost(sent):
    """Site 0 of four, lost to all others or not: only the sum of enough sites comes out."""
    server = Server(4).keys().shares().masked()
    lies = [[0, 1, 2], [0, 1, 3], [0, 2, 3], [0, 1, 3]] if len(sent) < 3 else [sent] * 3
    shares = [server.tell(i, "secure_unmask", sent=lie)[0]["shares"] for i, lie in enumerate(lies)]
    total = unmasked(server, shares, sent)
    expected = np.add.reduce([own_numbers(ROWS[i::4]) for i in sent])
    assert (total.tolist() == expected.tolist()) == (len(sent) == 3)


def test_sites_that_were_asked_different_things_tell_nothing():
    """The masks of a pair depend on the question; all seeds are known, and nothing cancels."""
    server = Server(secure=SecureAggregation(threshold=2)).begun()
    asked = [[E, E], [E, E], [E, E + 1]]
    server.numbers = [
        server.tell(i, "moments", **server.question(i, exponents=e))[1]["masked"]
        for i, e in enumerate(asked)
    ]
    shares = [server.tell(i, "secure_unmask", sent=[0, 1, 2])[0]["shares"] for i in range(3)]
    assert unmasked(server, shares, [0, 1, 2])[-1] != 0


# -------------------------------------------------------------------- forged sites


def numbers_among_forged_sites(server, signers=()):
    """What the only site answers to a server that pretends to be two more, without the masks."""
    server.keys()
    forged = [(key_pair(), key_pair()) for _ in range(2)]
    mask_keys = [*server.mask_keys, *(public for (_, public), _ in forged)]
    box_keys = [*server.box_keys, *(public for _, (_, public) in forged)]
    server.mask_keys, server.box_keys, server.threshold = mask_keys, box_keys, 2
    (boxes,) = [server.tell(0, "secure_shares", **server.lists())[0]["boxes"]]
    session, shares, answers = session_of(2, mask_keys, box_keys), [], [b""]
    for at, (_, (box_secret, _)) in enumerate(forged, start=1):
        key = shared_key(box_secret, box_keys[0])
        shares.append(opened(key, session, 0, at, boxes[at])[0])
        answers.append(sealed(key, session, at, 0, (b"x", b"y")))
    question = {"boxes": answers, "bits": BITS, "exponents": [E, E]}
    signatures = [b"", *(signature(key, session, at) for at, key in enumerate(signers, start=1))]
    told, arrays = server.tell(0, "moments", **question, signatures=signatures)
    if not arrays:
        return told["error"]
    numbers = arrays["masked"]
    digest = server.question_digest()
    numbers = numbers - mask(recovered(shares), digest, N)
    for at, ((secret, _), _) in enumerate(forged, start=1):
        numbers = numbers + signed_masks(secret, at, mask_keys, [0], digest, N)
    return numbers.tolist()


def test_a_server_that_forges_the_other_sites_reads_a_site_without_identity():
    """What docs/promises.md says is not protected from."""
    assert numbers_among_forged_sites(Server(1)) == own_numbers(ROWS).tolist()


def known(*identities):
    """For each site, what it is told of the keys of all."""
    for secret, public in identities:
        others = [key for _, key in identities if key != public]
        yield SecureAggregation(
            threshold=2, scale=SCALE, identity=lambda _, own=(secret, others): own
        )


def test_a_site_with_an_identity_knows_forged_sites():
    identities, stranger = [key_pair() for _ in range(3)], key_pair()
    own, _, _ = known(*identities)
    (secret_a, _), (secret_b, _), (secret_c, _) = identities
    error = "refused: all other sites must have signed the keys, with keys known here"
    for secrets in ((), (secret_b,), (secret_b, secret_b), (stranger[0], secret_c)):
        padded = (*secrets, *[stranger[0]] * (2 - len(secrets)))
        assert numbers_among_forged_sites(Server(1, own), padded) == error
    assert numbers_among_forged_sites(Server(1, own), (secret_a, secret_b)) == error
    # sites that work with the server can still leave this one alone
    assert (
        numbers_among_forged_sites(Server(1, own), (secret_b, secret_c))
        == own_numbers(ROWS).tolist()
    )


def test_signatures_are_of_one_sum():
    server = Server(3, list(known(*(key_pair() for _ in range(3)))))
    server.keys().shares().masked()
    old = server.signatures
    server.keys().shares()
    assert not set(old) & set(server.signatures)
    question = server.question(0, signatures=[b"", *old[1:]])
    server.refused(0, "moments", **question, why="all other sites must have signed")
    server.keys().shares()
    _, one, two = server.signatures
    question = server.question(0, signatures=[b"", two, one])
    server.refused(0, "moments", **question, why="all other sites must have signed")


def test_sums_of_a_fit_over_other_sites_are_not_unmasked():
    """Two sums of one fit that differ by a site are its numbers, and no fit begins again."""
    everybody = list(known(*(key_pair() for _ in range(4))))
    for sent, lost in ([0, 1, 2, 3], [0, 1, 2]), ([0, 1, 2], [0, 1, 3]):
        server = Server(4, everybody).keys().shares().masked()
        for i in sent:
            assert "shares" in server.tell(i, "secure_unmask", sent=sent)[0]
        again = server.keys().shares()
        question = {"exponents": [E] * 3}
        for i in lost:
            told, _ = again.tell(
                i, "second_moments", ROWS.mean(axis=0), **again.question(i, **question)
            )
            assert "error" not in told
        for i in set(sent) & set(lost):
            again.refused(i, "secure_unmask", sent=lost, why="other sites than the fit began with")
    # of a fit that begins again the sites may be others: how often it does is theirs to say
    server = Server(4, everybody)
    for sent in ([0, 1, 2, 3], [0, 1, 2]):
        server.keys().shares().masked()
        assert "shares" in server.tell(0, "secure_unmask", sent=sent)[0]


# -------------------------------------------------------------------- masks


@pytest.fixture
def repeatable(monkeypatch):
    """Secrets from a seed."""
    rng = np.random.default_rng(0)

    def key_pairs():
        key = ec.derive_private_key(int.from_bytes(rng.bytes(40), "little"), ec.SECP384R1())
        return key, key.public_key()

    class Drawn:
        urandom = rng.bytes

    monkeypatch.setattr(_flower_masks, "generate_key_pairs", key_pairs)
    monkeypatch.setattr(_flower_secure_site, "os", Drawn)


def is_uniform(numbers):
    counts = np.bincount(np.frombuffer(np.asarray(numbers).tobytes(), np.uint8), minlength=256)
    return chisquare(counts).pvalue > 1e-3


def test_a_masked_message_is_uniform_over_a_hundred_seeds(repeatable):
    """Two sites of the same rows, hundred times: a message is noise, and so is any of it."""
    rows, received = np.repeat(ROWS[:10], 2, axis=0), defaultdict(list)
    server = Server(2, rows=rows)
    for _ in range(100):
        server.keys().shares().masked()
        for i, numbers in enumerate(server.numbers):
            received[i].append(numbers)
        server.forget()
    assert not is_uniform([own_numbers(rows[::2])] * 100)
    for messages in map(np.array, received.values()):
        assert messages.shape == (100, N)
        assert is_uniform(messages)
        assert is_uniform(np.diff(messages, axis=0))
        assert is_uniform(np.diff(messages, axis=1))
        for column in messages.T:
            assert is_uniform(column)
    # the masks of a pair are gone in the sum, and the masks of each are left
    assert is_uniform(np.array(received[0]) + np.array(received[1]))


def test_every_bit_of_a_secret_counts():
    """Flower's generator of masks folds a key into 32 bits, so that a server can try all."""
    secret = bytes(range(32))
    folded = secret[4:8] + secret[:4] + secret[8:]  # the same 32 bits
    masks = [mask(key, b"question", 100) for key in (secret, folded)]
    assert not (masks[0] == masks[1]).any()
    assert not (masks[0] == mask(secret, b"another", 100)).any()


def test_arguments_are_part_of_the_question():
    def record(array):
        return ArrayRecord({"0": Array(np.asarray(array, float))})

    session = b"s" * 32
    one = question_of(session, "a", 50, [1], record([1.0]))
    assert one == question_of(session, "a", 50, [1], record([1.0]))
    assert one not in {
        question_of(b"t" * 32, "a", 50, [1], record([1.0])),
        question_of(session, "b", 50, [1], record([1.0])),
        question_of(session, "a", 40, [1], record([1.0])),
        question_of(session, "a", 50, [2], record([1.0])),
        question_of(session, "a", 50, [1], record([1.5])),
        question_of(session, "a", 50, [1], record([[1.0]])),
    }
