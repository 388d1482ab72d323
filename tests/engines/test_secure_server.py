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
from fedpca_sklearn.engines import _masks, _secure_site
from fedpca_sklearn.engines._masks import (
    key_pair,
    mask,
    opened,
    recovered,
    sealed,
    shared_key,
    signature,
    signed_masks,
)
from fedpca_sklearn.engines._messages import arrays_of
from fedpca_sklearn.engines._secure import Bounds, grids_of_sums
from fedpca_sklearn.engines._secure_site import question_of, session_of
from fedpca_sklearn.engines.flower import SecureAggregation

SECURE = SecureAggregation(threshold=2)
BITS = 50
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
        record = ConfigRecord({**self.sites[i].stated, "nonce": "once", **config})
        return self.sites[i].ask(kind, *arguments, config=record)

    def keys(self, begin=True):
        if begin:  # a fit, with what the sites announce
            told = [self.tell(i, "bounds")[1]["bounds"] for i in range(len(self.sites))]
            self.bounds = [bounds.astype("<f8").tobytes() for bounds in told]
        told = [self.tell(i, "secure_keys")[0] for i in range(len(self.sites))]
        self.mask_keys = [config["mask_key"] for config in told]
        self.box_keys = [config["box_key"] for config in told]
        return self

    def lists(self, **changes):
        """What the server says in the second question."""
        config = {"mask_keys": self.mask_keys, "box_keys": self.box_keys, "bounds": self.bounds}
        return {**config, "threshold": self.threshold, **changes}

    def shares(self):
        told = [self.tell(i, "secure_shares", **self.lists())[0] for i in range(len(self.sites))]
        self.boxes = [config["boxes"] for config in told]
        self.signatures = [config.get("signature", b"") for config in told]
        return self

    def question(self, i, **changes):
        """What the server says in the third question."""
        boxes = [own[i] for own in self.boxes]
        return {"boxes": boxes, "bits": BITS, "signatures": self.signatures, **changes}

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
        session = session_of(self.threshold, self.mask_keys, self.box_keys, self.bounds)
        return question_of(session, "moments", BITS, {})

    def unmasked_total(self, numbers, kind, arguments):
        """The integers of a sum, as all sites help to unmask it."""
        n, given = len(self.sites), enumerate(arguments)
        record = arrays_of({str(i): np.asarray(a, float) for i, a in given})
        session = session_of(self.threshold, self.mask_keys, self.box_keys, self.bounds)
        question, sent = question_of(session, kind, BITS, record), list(range(n))
        shares = [self.tell(i, "secure_unmask", sent=sent)[0]["shares"] for i in sent]
        total = np.add.reduce(numbers)
        for owner in sent:
            total -= mask(recovered([s[owner] for s in shares]), question, len(total))
        return total.tolist()

    def own_numbers(self, rows):
        """The integers that a site masks, and the zero."""
        bounds = Bounds.of_all([Bounds.read(np.frombuffer(text)) for text in self.bounds])
        grids, numbers = grids_of_sums(bounds), {"count": [len(rows)], "sum": rows.sum(axis=0)}
        asked, words = question_of(b"", "moments", BITS, {}), []
        for name, values in numbers.items():
            how = BITS, len(self.mask_keys), asked + name.encode()
            words.append(grids[name].encode(values, *how))
        return np.concatenate([*words, np.zeros(1, np.uint64)])


def are_near(words, others):
    """Whether integers differ by what roundings of four sites can make."""
    return np.abs((np.asarray(words) - others).view(np.int64)).max() <= 8


ONCE = "this site takes part in secure sums only"


# -------------------------------------------------------------------- the order of questions


def test_an_honest_server_learns_the_sum():
    server = Server().keys().shares().masked()
    shares = [server.tell(i, "secure_unmask", sent=[0, 1, 2])[0]["shares"] for i in range(3)]
    total = np.add.reduce(server.numbers)
    for owner in range(3):
        seed = recovered([shares[i][owner] for i in (0, 2)])
        total -= mask(seed, server.question_digest(), N)
    expected = np.add.reduce([server.own_numbers(ROWS[i::3]) for i in range(3)])
    assert are_near(total, expected)


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
    server.refused(0, "moments", boxes=[], bits=BITS, why=ONCE)
    server.keys().shares()
    server.refused(0, "secure_shares", **server.lists(), why=ONCE)
    server = Server(estimator=FederatedPowerPCA(3, random_state=0)).keys().shares()
    question = server.question(0)
    for why in None, ONCE:
        basis = np.eye(3, 8), ROWS.mean(axis=0), 1
        if why is None:
            assert server.tell(0, "times_scatter", *basis, **question)[1]
        else:
            server.refused(0, "times_scatter", *basis, **question, why=why)
    server = Server().keys().shares().masked()
    server.tell(0, "secure_unmask", sent=[0, 1, 2])
    server.refused(0, "secure_unmask", sent=[0, 1, 2], why=ONCE)


def test_a_sum_is_not_used_again():
    """What is left of an earlier sum opens nothing in the next: keys are new for each."""
    old = Server()
    old.keys().shares()
    lists, question = old.lists(), old.question(0)
    old.masked()
    numbers = old.numbers[0]
    old.keys(begin=False)
    assert not set(lists["mask_keys"]) & set(old.mask_keys)
    old.refused(0, "secure_shares", **lists, why="the keys of this site must be in the list")
    old.keys().shares()
    old.refused(0, "moments", **question, why="shares of 1 sites open, the sum needs 2")
    old.keys().shares().masked()
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
        site.refused(0, kind, why=f"no question of the kind {kind!r}")


def test_questions_are_checked_and_counted_as_without_masks():
    mean = ROWS.mean(axis=0)
    for V, why in {
        "a basis of one direction twice": (np.eye(8)[[0, 0]], "orthonormal"),
        "more directions": (np.eye(8)[:4], "k <= 3"),
    }.values():
        server = Server(estimator=FederatedPowerPCA(3, random_state=0)).keys().shares()
        question = server.question(0)
        server.refused(0, "times_scatter", V, mean, 1, **question, why=why)
    server = Server()
    for _ in range(3):
        server.keys().shares().masked()
    server.refused(0, "bounds", why="a run begins at most 3 times")


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
    told = server.lists(mask_keys=mask_keys, box_keys=box_keys, threshold=threshold)
    server.refused(0, "secure_shares", **told, why=why)


def test_a_site_insists_on_its_own_threshold():
    server = Server(secure=SecureAggregation(threshold=3)).keys()
    server.refused(0, "secure_shares", **server.lists(threshold=2), why="from 3 to 3")


def test_a_sum_of_more_sites_than_the_ring_has_room_for():
    server = Server(secure=SecureAggregation(threshold=2, bits=60)).keys()
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


# -------------------------------------------------------------------- bounds


@pytest.mark.parametrize("bits", [40, "50"])
def test_bits_are_those_of_the_site(bits):
    server = Server().keys().shares()
    server.refused(0, "moments", **server.question(0, bits=bits), why="bits must be 50")


def changed(bounds, at, by):
    """Announced bounds with another exponent."""
    vector = np.frombuffer(bounds).copy()
    vector[at] += by
    return vector.tobytes()


BOUNDS = {
    "larger ones for this site": lambda b: [changed(b[0], 3, 30), *b[1:]],
    "smaller ones for this site": lambda b: [changed(b[0], 3, -30), *b[1:]],
    "none": lambda b: [],
    "too few": lambda b: b[:2],
    "another list": lambda b: 3,
}


@pytest.mark.parametrize("change", BOUNDS.values(), ids=BOUNDS)
def test_a_site_sees_its_own_bounds_in_the_list(change):
    server = Server().keys()
    why = "bounds"
    server.refused(0, "secure_shares", **server.lists(bounds=change(server.bounds)), why=why)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (np.array([5.0, 8, 2, 0.5]), "whole numbers"),
        (np.array([5.0, 8, 2, np.nan]), "whole numbers"),
        (np.array([5.0, 8, 2, 2000]), "exponents from -960 to 983"),
        (np.array([5.0, 8, 2]), "whole numbers"),
        (np.array([5.0, 7, 2, 3]), "of the same columns"),
        (np.array([5.0, 8, *[2] * 6]), "of 8 columns, or of all together"),
    ],
)
def test_bounds_of_other_sites_are_bounds(other, why):
    server = Server().keys()
    bounds = [*server.bounds[:2], other.tobytes()]
    server.refused(0, "secure_shares", **server.lists(bounds=bounds), why=why)


def test_bounds_are_signed_and_seen():
    """A site does not unmask what others have added up under other bounds than it has seen."""
    server = Server(3, list(known(*(key_pair() for _ in range(3))))).keys()
    told = []
    for i in range(3):
        bounds = list(server.bounds)
        if i == 0:
            bounds[2] = changed(bounds[2], 3, 30)
        told.append(server.tell(i, "secure_shares", **server.lists(bounds=bounds))[0])
    server.boxes = [config["boxes"] for config in told]
    server.signatures = [config["signature"] for config in told]
    for i in range(3):
        server.refused(i, "moments", **server.question(i), why="must have signed")


def test_bounds_tell_powers_of_two_of_number_mean_and_scatter():
    server = Server(secure=SecureAggregation(threshold=2))
    (announced,) = server.tell(0, "bounds")[1].values()
    rows = ROWS[::3]
    numbers = [len(rows), np.linalg.norm(rows.mean(axis=0)), len(rows) * rows.var(axis=0).sum()]
    assert announced.tolist() == [np.ceil(np.log2(numbers[0])), 8, *np.ceil(np.log2(numbers[1:]))]


def test_rows_beyond_a_public_scale_take_no_part_whatever_is_asked():
    server = Server(secure=SecureAggregation(threshold=2, scale=4.0))
    for _ in range(2):
        server.refused(0, "bounds", why="out of range: the rows are not within the scale")
    fine = Server(secure=SecureAggregation(threshold=2, scale=2.0**40))
    rows, _, mean, scatter = fine.tell(0, "bounds")[1]["bounds"]
    assert (mean, scatter) == (np.ceil((40 - rows) / 2), 40)


def test_a_mean_beyond_the_bounds_is_refused():
    server = Server().keys().shares().masked()
    server.keys(begin=False).shares()
    mean = np.full(8, 1e3)
    why = "the mean must be within the bounds that the sites have announced"
    server.refused(0, "second_moments", mean, **server.question(0), why=why)


def test_a_fit_begins_with_the_question_that_is_counted():
    """Sums asked before it would be one fit more than ``restarts`` allows."""
    server = Server(secure=SecureAggregation(threshold=2, restarts=0)).keys().shares().masked()
    assert all(len(numbers) == N for numbers in server.numbers)
    server.refused(0, "bounds", why="a fit begins again at most 0 times")
    server = Server(secure=SecureAggregation(threshold=2, restarts=0)).keys()
    server.sites[0].context.state["fedpca_sklearn.sums_begun"]["run"] = "another"
    server.shares()
    server.refused(0, "moments", **server.question(0), why="a fit begins with 'bounds'")


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
    expected = np.add.reduce([server.own_numbers(ROWS[i::4]) for i in sent])
    assert are_near(total, expected) == (len(sent) == 3)


def test_sites_that_were_told_different_bounds_tell_nothing():
    """The masks of a pair depend on the bounds; all seeds are known, and nothing cancels."""
    server = Server().keys()
    told = []
    for i in range(3):
        other = (i + 1) % 3  # each site sees another one with larger bounds
        bounds = list(server.bounds)
        bounds[other] = changed(bounds[other], 3, 30)
        told.append(server.tell(i, "secure_shares", **server.lists(bounds=bounds))[0])
    server.boxes, server.signatures = [config["boxes"] for config in told], [b""] * 3
    server.refused(0, "moments", **server.question(0), why="shares of 1 sites open")


# -------------------------------------------------------------------- forged sites


def numbers_among_forged_sites(server, signers=()):
    """What the only site answers to a server that pretends to be two more, without the masks."""
    server.keys()
    forged = [(key_pair(), key_pair()) for _ in range(2)]
    mask_keys = [*server.mask_keys, *(public for (_, public), _ in forged)]
    box_keys = [*server.box_keys, *(public for _, (_, public) in forged)]
    server.mask_keys, server.box_keys, server.threshold = mask_keys, box_keys, 2
    server.bounds = server.bounds * 3
    (boxes,) = [server.tell(0, "secure_shares", **server.lists())[0]["boxes"]]
    session = session_of(2, mask_keys, box_keys, server.bounds)
    shares, answers = [], [b""]
    for at, (_, (box_secret, _)) in enumerate(forged, start=1):
        key = shared_key(box_secret, box_keys[0])
        shares.append(opened(key, session, 0, at, boxes[at])[0])
        answers.append(sealed(key, session, at, 0, (b"x", b"y")))
    question = {"boxes": answers, "bits": BITS}
    signatures = [b"", *(signature(key, session, at) for at, key in enumerate(signers, start=1))]
    told, arrays = server.tell(0, "moments", **question, signatures=signatures)
    if not arrays:
        return told["error"]
    numbers = arrays["masked"]
    digest = server.question_digest()
    numbers = numbers - mask(recovered(shares), digest, N)
    for at, ((secret, _), _) in enumerate(forged, start=1):
        numbers = numbers + signed_masks(secret, at, mask_keys, [0], digest, N)
    return numbers


def test_a_server_that_forges_the_other_sites_reads_a_site_without_identity():
    """What docs/promises.md says is not protected from."""
    server = Server(1)
    assert are_near(numbers_among_forged_sites(server), server.own_numbers(ROWS))


def known(*identities):
    """For each site, what it is told of the keys of all."""
    for secret, public in identities:
        others = [key for _, key in identities if key != public]
        yield SecureAggregation(threshold=2, identity=lambda _, own=(secret, others): own)


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
    server = Server(1, own)
    found = numbers_among_forged_sites(server, (secret_b, secret_c))
    assert are_near(found, server.own_numbers(ROWS))


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
        again = server.keys(begin=False).shares()
        for i in lost:
            told, _ = again.tell(i, "second_moments", ROWS.mean(axis=0), **again.question(i))
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

    monkeypatch.setattr(_masks, "generate_key_pairs", key_pairs)
    monkeypatch.setattr(_secure_site, "os", Drawn)


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
    assert not is_uniform([server.own_numbers(rows[::2])] * 100)
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
    one = question_of(session, "a", 50, record([1.0]))
    assert one == question_of(session, "a", 50, record([1.0]))
    assert one not in {
        question_of(b"t" * 32, "a", 50, record([1.0])),
        question_of(session, "b", 50, record([1.0])),
        question_of(session, "a", 40, record([1.0])),
        question_of(session, "a", 50, record([1.5])),
        question_of(session, "a", 50, record([[1.0]])),
    }
