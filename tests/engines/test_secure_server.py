"""Secure sums whose server tries to learn a single site's numbers: the sites refuse."""

import math
import os
from collections import defaultdict
from itertools import combinations

import numpy as np
import pytest

pytest.importorskip("cryptography")
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from engines.secure_helpers import BITS, N, Server, are_near, pem_pair
from engines.site_helpers import ROWS, Array, made
from flwr.app import ArrayRecord
from scipy.stats import chisquare

from fedpca_sklearn.engines import _secure_sum
from fedpca_sklearn.engines._secure_sum import (
    fits_public_key,
    is_public_key,
    key_pair,
    mask,
    opened,
    question_of,
    recovered,
    sealed,
    session_of,
    shared_keys,
    shares_of,
    signature,
    signed_masks,
)
from fedpca_sklearn.engines.flower import SecureAggregation

POWER = made("FederatedPowerPCA(3, random_state=0)")
PRIME = 2**521 - 1
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


def test_each_question_of_a_sum_is_asked_once():
    """Two answers with the same masks would tell the difference of what they hide."""
    Server().refused(0, "secure_keys", why="a secure sum is of a run that has begun")
    server = Server().keys()
    server.refused(0, "moments", boxes=[], bits=BITS, why=ONCE)
    server.keys().shares()
    server.refused(0, "secure_shares", **server.lists(), why=ONCE)
    server = Server(estimator=POWER).keys().shares()
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


# -------------------------------------------------------------------- keys and boxes


def other_key(kind):
    """A public key of another kind."""
    key = ec.generate_private_key(ec.SECP256R1()) if kind == "curve" else None
    key = rsa.generate_private_key(65537, 1024) if kind == "rsa" else key
    if kind == "rsa":
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        return key.public_key().public_bytes(serialization.Encoding.PEM, form)
    form = serialization.PublicFormat.CompressedPoint
    return key.public_key().public_bytes(serialization.Encoding.X962, form)


def garbled_bounds(bounds, at, by):
    """Announced bounds with another exponent."""
    vector = np.frombuffer(bounds).copy()
    vector[at] += by
    return vector.tobytes()


def with_keys(mask_keys, box_keys, threshold=2):
    """The lists of keys that the server shows to site 0."""
    return lambda s: {
        "mask_keys": mask_keys(s.mask_keys),
        "box_keys": box_keys(s.box_keys),
        "threshold": threshold,
    }


def same(keys):
    return keys


def others_bounds(*numbers):
    """Bounds of the last site."""
    return lambda s: {"bounds": [*s.bounds[:2], np.array(numbers, float).tobytes()]}


SENT, ENOUGH = "must be some of 3 sites, each once", "this site and 1 others must have sent numbers"
LISTED, DIFFERENT = "must be in the list", "two different public keys"
# What site 0 is asked after the keys ("lists"), the shares ("boxes") or the numbers ("sent")
ASKED = [
    *(
        ("sent", {"sent": sent}, SENT)
        for sent in ([0, 0], [0, 1, 1], [0, 3], [0, -1], ["0", "1"], 3)
    ),
    *(("sent", {"sent": sent}, ENOUGH) for sent in ([0], [1, 2], [])),
    *(("lists", with_keys(same, same, n), "from 2") for n in (1, 4, 2.0)),
    ("lists", with_keys(lambda k: k[1:], lambda k: k[1:]), LISTED),
    ("lists", with_keys(same, lambda k: [key_pair()[1], *k[1:]]), LISTED),
    ("lists", with_keys(lambda k: k[:1] * 2, lambda k: k[:1] * 2), DIFFERENT),
    ("lists", with_keys(lambda k: [*k, k[1]], lambda k: [*k, key_pair()[1]], 3), DIFFERENT),
    ("lists", with_keys(same, lambda k: k[:2]), DIFFERENT),
    ("lists", with_keys(lambda k: [*k[:2], other_key("curve")], same), DIFFERENT),
    ("lists", with_keys(same, lambda k: [*k[:2], other_key("rsa")]), DIFFERENT),
    ("lists", with_keys(lambda k: ["key"] * 3, same), "mask_keys must be a list of bytes"),
    ("lists", with_keys(same, lambda k: [*k[:2], k[2] + b"\n" * 1000]), DIFFERENT),
    ("lists", lambda s: {"bounds": [garbled_bounds(s.bounds[0], 3, 30), *s.bounds[1:]]}, "bounds"),
    ("lists", lambda s: {"bounds": [garbled_bounds(s.bounds[0], 3, -30), *s.bounds[1:]]}, "bounds"),
    ("lists", lambda s: {"bounds": s.bounds[:2]}, "bounds"),
    ("lists", {"bounds": 3}, "bounds"),
    ("lists", others_bounds(5.0, 8, 2, 0.5), "whole numbers"),
    ("lists", others_bounds(5.0, 8, 2, np.nan), "whole numbers"),
    ("lists", others_bounds(5.0, 8, 2, 984), "exponents from -960 to 983"),
    ("lists", others_bounds(-961, 8, 2, 3), "exponents from -960 to 983"),
    ("lists", others_bounds(5.0, 8, 2), "whole numbers"),
    ("lists", others_bounds(5.0, 7, 2, 3), "of the same columns"),
    ("lists", others_bounds(5.0, 8, *[2] * 6), "of 8 columns, or of all together"),
    *(("boxes", {"bits": bits}, "bits must be 50") for bits in (40, "50")),
    *(("boxes", {"boxes": boxes}, "boxes must be") for boxes in ([b"", b""], 3)),
    ("boxes", lambda s: {"boxes": [s.boxes[1][0], s.boxes[1][0], s.boxes[2][0]]}, "boxes must be"),
    # boxes for another site, or from another site, do not open
    ("boxes", lambda s: {"boxes": [b"", s.boxes[1][2], s.boxes[2][1]]}, "shares of 1 sites open"),
    ("boxes", lambda s: {"boxes": [b"", s.boxes[2][0], s.boxes[1][0]]}, "shares of 1 sites open"),
]


@pytest.mark.parametrize(("when", "changes", "why"), ASKED)
def test_a_site_refuses_what_no_honest_server_of_sums_asks(when, changes, why):
    server = Server().keys()
    if when != "lists":
        server.shares()
    if when == "sent":
        server.masked()
    changes = changes(server) if callable(changes) else changes
    if when == "sent":
        server.refused(0, "secure_unmask", **changes, why=why)
        server.refused(0, "secure_unmask", sent=[0, 1, 2], why=ONCE)
    elif when == "lists":
        server.refused(0, "secure_shares", **server.lists(**changes), why=why)
    else:
        server.refused(0, "moments", **server.question(0, **changes), why=why)


def test_a_site_insists_on_its_own_threshold_and_on_room_for_the_sum():
    server = Server(secure=SecureAggregation(threshold=3)).keys()
    server.refused(0, "secure_shares", **server.lists(threshold=2), why="from 3 to 3")
    server = Server(secure=SecureAggregation(threshold=2, bits=60)).keys()
    more = [key_pair()[1] for _ in range(10)]
    keys = {"mask_keys": server.mask_keys + more[:5], "box_keys": server.box_keys + more[5:]}
    why = "bits=60 leaves no room to add up 8 messages"
    server.refused(0, "secure_shares", **server.lists(threshold=7, **keys), why=why)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((np.eye(8)[[0, 0]], ROWS.mean(axis=0), 1), "orthonormal"),
        ((np.eye(8)[:4], ROWS.mean(axis=0), 1), "k <= 3"),
        ((np.eye(3, 8), np.full(8, 1e3), 1), "the mean must be within the bounds that the sites"),
    ],
)
def test_questions_are_checked_as_without_masks(arguments, why):
    server = Server(estimator=POWER).keys().shares()
    server.refused(0, "times_scatter", *arguments, **server.question(0), why=why)


def test_questions_are_counted_as_without_masks():
    server = Server()
    for _ in range(3):
        server.keys().shares().masked()
    server.refused(0, "bounds", why="a run begins again at most 2 times")


def test_masks_with_a_key_and_its_negative_do_not_cancel():
    # a server and one site that helps it: the point of the other site's key, mirrored
    (a, public_a), (_, public_b) = key_pair(), key_pair()
    mirrored = bytes([public_b[0] ^ 1]) + public_b[1:]
    assert is_public_key(mirrored)
    keys, question = [public_b, public_a, mirrored], b"q" * 32
    assert signed_masks(a, 1, keys, range(3), question, N).any()


@pytest.mark.parametrize(("threshold", "n"), [(2, 3), (5, 6), (18, 20)])
def test_as_many_shares_as_the_threshold_tell_a_secret_and_fewer_any_other(threshold, n):
    secret, other = os.urandom(48), os.urandom(48)
    shares = shares_of(secret, threshold, n)
    rng = np.random.default_rng(0)
    for _ in range(5):
        few = [shares[i] for i in rng.permutation(n)[:threshold]]
        assert recovered(few) == secret
        assert recovered([few[0][:-1] + bytes([few[0][-1] ^ 1]), *few[1:]]) != secret
        # with one value less, there is a last one for which they tell another secret
        x, y = (
            [int.from_bytes(share[at], order) for share in few]
            for at, order in ((slice(4), "little"), (slice(4, None), "big"))
        )
        weights = [
            math.prod(b * pow(b - a, -1, PRIME) for b in x if b != a) % PRIME for a in x
        ]  # Lagrange's, at zero
        rest = sum(w * v for w, v in zip(weights[1:], y[1:], strict=True))
        last = (int.from_bytes(other, "big") - rest) * pow(weights[0], -1, PRIME) % PRIME
        assert recovered([few[0][:4] + last.to_bytes(66, "big"), *few[1:]]) == other
    assert shares_of(secret, 2, 2) != shares_of(secret, 2, 2)


def test_boxes_tell_the_server_nothing_and_are_bound_to_the_sum():
    session, another = b"s" * 32, b"t" * 32
    (a, public_a), (b, public_b), (c, _) = (key_pair() for _ in range(3))
    key = shared_keys(a, [public_b])[0]
    assert key == shared_keys(b, [public_a])[0] != shared_keys(c, [public_b])[0]
    box = sealed(key, session, 0, 1, (b"seed" * 17 + b"..", b"key"))
    assert b"seed" not in box
    assert opened(key, session, 0, 1, box) == (b"seed" * 17 + b"..", b"key")
    for wrong in (
        (shared_keys(c, [public_b])[0], session, 0, 1, box),
        (key, another, 0, 1, box),
        (key, session, 1, 0, box),
        (key, session, 0, 2, box),
        (key, session, 2, 1, box),
        (key, session, 0, 1, box[:-1] + b"0"),
        (key, session, 0, 1, b""),
    ):
        assert opened(*wrong) is None


# -------------------------------------------------------------------- bounds


def test_bounds_are_signed_and_seen():
    """A site does not unmask what others have added up under other bounds than it has seen."""
    server = Server(3, list(known(*(pem_pair() for _ in range(3))))).keys()
    told = []
    for i in range(3):
        bounds = list(server.bounds)
        if i == 0:
            bounds[2] = garbled_bounds(bounds[2], 3, 30)
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


def test_a_fit_begins_with_the_question_that_is_counted():
    """Sums asked before it would be one fit more than ``restarts`` allows."""
    server = Server(secure=SecureAggregation(threshold=2, restarts=0)).keys().shares().masked()
    assert all(len(numbers) == N for numbers in server.numbers)
    server.refused(0, "bounds", why="a run begins again at most 0 times")
    server = Server(secure=SecureAggregation(threshold=2, restarts=0)).keys()
    server.sites[0].context.state["fedpca_sklearn"]["run"] = 0
    server.shares()
    server.refused(0, "moments", **server.question(0), why="a run of which begins with 'bounds'")


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
            if fits_public_key(secret, server.mask_keys[owner]):
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
        bounds[other] = garbled_bounds(bounds[other], 3, 30)
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
        key = shared_keys(box_secret, [box_keys[0]])[0]
        shares.append(opened(key, session, 0, at, boxes[at])[0])
        answers.append(sealed(key, session, at, 0, (b"x" * 52, b"y")))
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
    identities, stranger = [pem_pair() for _ in range(3)], pem_pair()
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


def test_a_site_is_not_another_one_in_a_second_run():
    """A list of keys that is the same at all sites has the own one, too."""
    secret, public = pem_pair()
    everybody = SecureAggregation(threshold=2, identity=lambda _: (secret, [public, public + b" "]))
    server = Server(2, everybody)
    server.sites[1].context.run_id = 2
    server.keys().shares()
    for i in range(2):
        server.refused(i, "moments", **server.question(i), why="all other sites must have signed")


def test_signatures_are_of_one_sum():
    everybody = list(known(*(pem_pair() for _ in range(3))))
    server = Server(3, everybody).keys().shares().masked()
    old = server.signatures
    server.keys().shares()
    assert not set(old) & set(server.signatures)
    question = server.question(0, signatures=[b"", *old[1:]])
    server.refused(0, "moments", **question, why="all other sites must have signed")
    for wrong in (lambda own, a, b: [own, b, a], lambda own, a, b: [own, a], lambda own, *_: [own]):
        server = Server(3, everybody).keys().shares()
        question = server.question(0, signatures=wrong(*server.signatures))
        server.refused(0, "moments", **question, why="all other sites must have signed")


def test_sums_of_a_fit_over_other_sites_are_not_unmasked():
    """Two sums of one fit that differ by a site are its numbers, and no fit begins again."""
    everybody = list(known(*(pem_pair() for _ in range(4))))
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


def test_two_beginnings_over_sites_that_differ_tell_a_site():
    """A server pretends that a site is lost, and the fit begins anew, as the promises say."""
    server = Server(4, list(known(*(pem_pair() for _ in range(4)))))
    totals = []
    for sent in ([0, 1, 2, 3], [0, 1, 2]):
        server.keys().shares().masked()
        shares = [server.tell(i, "secure_unmask", sent=sent)[0]["shares"] for i in sent]
        totals.append(unmasked(server, shares, sent))
    assert are_near(totals[0] - totals[1], server.own_numbers(ROWS[3::4]))


# -------------------------------------------------------------------- masks


@pytest.fixture
def repeatable(monkeypatch):
    """Secrets from a seed."""
    rng = np.random.default_rng(0)

    def key(curve):
        return ec.derive_private_key(int.from_bytes(rng.bytes(40), "little"), curve)

    class Drawn:
        urandom = rng.bytes

    monkeypatch.setattr(ec, "generate_private_key", key)
    monkeypatch.setattr(_secure_sum, "os", Drawn)


def is_uniform(numbers):
    counts = np.bincount(np.frombuffer(np.asarray(numbers).tobytes(), np.uint8), minlength=256)
    return chisquare(counts).pvalue > 1e-3


def test_a_masked_message_is_uniform_over_many_seeds(repeatable):
    """Two sites of the same rows, sixty times: a message is noise, and so is any of it."""
    rows, received = np.repeat(ROWS[:10], 2, axis=0), defaultdict(list)
    server = Server(2, rows=rows)
    for _ in range(60):
        server.keys().shares().masked()
        for i, numbers in enumerate(server.numbers):
            received[i].append(numbers)
        server.forget()
    assert not is_uniform([server.own_numbers(rows[::2])] * 60)
    for messages in map(np.array, received.values()):
        assert messages.shape == (60, N)
        assert is_uniform(messages)
        assert is_uniform(np.diff(messages, axis=0))
        assert is_uniform(np.diff(messages, axis=1))
        for column in messages.T:
            assert is_uniform(column)
    # the masks of a pair are gone in the sum, and the masks of each are left
    assert is_uniform(np.array(received[0]) + np.array(received[1]))


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
