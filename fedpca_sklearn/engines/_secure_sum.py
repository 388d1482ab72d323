"""One secure sum: what a site does about its questions, and how the server puts them.

Keys, shares, masked numbers, and what takes off the masks of others. Key agreement, encryption and
masks are of the library cryptography, on which Flower depends.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import chain
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.supercore.primitives import asymmetric

from ..communication._channel import check_room
from ..communication._federation import Message as Size
from ._messages import OVER, Answer, Context, Message, SiteLostError, numbered, read_array
from ._questions import RUN, RefusedError
from ._secure import BOUNDS, KEYS, SHARES, UNMASK, Bounds, SecureAggregation, grids_of

# Zeros at the end of what is masked: anything else in the sum shows that masks are left on it.
N_ZEROS = 1
# Record of the site's own state: secrets and peers of the sum that goes on. A process that is
# started for a message finds there what an earlier one knew.
_SUM = "fedpca_sklearn.sum"
# What is kept of a fit until it begins again.
_BOUNDS, _SITES = "fixed bounds", "fixed sites"


def session_of(threshold: int, *lists: Sequence[bytes]) -> bytes:
    """Digest of who takes part in a sum: lists of keys for masks and boxes, and of bounds.

    Keys are new for each sum.
    """
    return digest([b"sum", threshold.to_bytes(8, "little"), *chain(*lists)])


def question_of(session: bytes, kind: str, bits: int, arguments: Mapping[str, Any]) -> bytes:
    """Digest of what is asked of all sites: masks of different questions do not cancel."""
    texts = [session, repr((kind, bits)).encode()]
    for name in sorted(arguments):
        texts += name.encode(), repr(arguments[name].shape).encode(), arguments[name].data
    return digest(texts)


# -------------------------------------------------------------------- at a site


class SiteSums:
    """The steps of a secure sum at a site."""

    def __init__(self, secure: SecureAggregation, tasks: dict[str, Any]):
        self.secure, self.tasks = secure, tasks
        # what is told in answer to questions that are about no rows
        self.steps = {KEYS: self._keys, SHARES: self._shares, UNMASK: self._unmask}

    def sent(self, message: Message, context: Context, numbers: dict) -> dict[str, np.ndarray]:
        """Arrays that are sent in answer to a question, in place of the numbers of its task."""
        task = self.tasks[message.kind]
        if task.grids is not None or task.bound is not None:
            return {"masked": self._masked(message, context, numbers)}
        if BOUNDS not in numbers:
            return numbers
        vector = numbers[BOUNDS]  # which hold for all sums until the fit begins again
        if self.secure.scale is not None:
            vector = Bounds.read(vector).within(self.secure.scale).vector
        context.state[RUN][_BOUNDS] = vector.tobytes()
        return {**numbers, BOUNDS: vector}

    def _keys(self, message: Message, context: Context) -> dict[str, Any]:
        """New keys for one sum; what was left of another is forgotten."""
        if context.state.get(RUN, {}).get("id") != str(context.run_id):
            raise RefusedError("a secure sum is of a run that has begun")
        (mask_secret, mask_key), (box_secret, box_key) = key_pair(), key_pair()
        public = {"mask_key": mask_key, "box_key": box_key}
        _keep(context, SHARES, mask_secret=mask_secret, box_secret=box_secret, **public)
        return public

    def _shares(self, message: Message, context: Context) -> dict[str, Any]:
        """A share of each of two secrets for every site, encrypted for it."""
        own, config = _taken(context, SHARES), message.config
        mask_keys, box_keys, bounds = _texts(config, "mask_keys", "box_keys", "bounds")
        threshold = self._checked_threshold(mask_keys, box_keys, config.get("threshold"))
        pairs = list(zip(mask_keys, box_keys, strict=True))
        public = own["mask_key"], own["box_key"]
        if public not in pairs:
            raise RefusedError("the keys of this site must be in the list of keys as it sent them")
        at = pairs.index(public)
        common = _common_bounds(context, bounds, at, len(pairs))
        session, seed = session_of(threshold, mask_keys, box_keys, bounds), os.urandom(_SECRET)
        seed_shares = shares_of(seed, threshold, len(pairs))
        key_shares = shares_of(own["mask_secret"], threshold, len(pairs))
        keys = shared_keys(own["box_secret"], [*box_keys[:at], *box_keys[at + 1 :]])
        keys.insert(at, b"")
        shares = list(zip(seed_shares, key_shares, strict=True))
        boxes = [sealed(k, session, at, to, shares[to]) if k else b"" for to, k in enumerate(keys)]
        secret, all_bounds = own["mask_secret"], common.vector.tobytes()
        about = {"at": at, "threshold": threshold, "session": session, "bounds": all_bounds}
        secrets = {"seed": seed, "mask_secret": secret, "own_shares": list(shares[at])}
        _keep(context, "masked", mask_keys=mask_keys, keys=keys, **about, **secrets)
        signed = b""
        if self.secure.identity is not None:
            signed = signature(self.secure.identity(context.given)[0], session, at)
        return {"boxes": boxes, "signature": signed}

    def _checked_threshold(self, mask_keys: list, box_keys: list, threshold: Any) -> int:
        """The number of sites that unmask a sum of those with these keys, if all are acceptable."""
        keys, n = [*mask_keys, *box_keys], len(mask_keys)
        different = n == len(box_keys) and 0 < 2 * n == len(set(keys))
        if not different or not all(map(is_public_key, keys)):
            raise RefusedError("the lists of keys must hold two different public keys of each site")
        least = self.secure.needed(n)
        if type(threshold) is not int or not least <= threshold <= n:
            raise RefusedError(f"a sum of {n} sites needs a threshold from {least} to {n}")
        try:
            check_room(n, self.secure.bits)
        except ValueError as error:
            raise RefusedError(str(error)) from None
        return threshold

    def _masked(self, message: Message, context: Context, numbers: dict) -> np.ndarray:
        """The numbers that were asked for, masked."""
        own, kind, arguments = _taken(context, "masked"), message.kind, message.arrays
        if OVER in numbers:
            raise RefusedError("the site has no such batch")
        at, keys, others = own["at"], own["mask_keys"], self._signers(own, message, context)
        seed_shares, key_shares = _opened_boxes(own, message)
        if (bits := message.config.get("bits")) != self.secure.bits:
            raise RefusedError(f"bits must be {self.secure.bits}")
        task, bounds = self.tasks[kind], Bounds.read(own["bounds"])
        if "mean" in task.takes:
            place = [*task.takes].index("mean") + task.batches + task.matched
            bounds.check_mean(read_array(arguments[str(place)]))
        seed, grids = question_of(b"", kind, bits, arguments), grids_of(task, bounds)
        how, words = (bits, len(keys)), []
        for name, sent in sorted(numbers.items()):
            exact, grid = np.asarray(sent, dtype=np.float64), grids[name]
            words.append(grid.encode(exact, *how, seed + name.encode()))
            if grid.exact and (grid.decode(words[-1], exact.shape, *how) != exact).any():
                raise RefusedError("the grid of the noise is finer than the scale of secure sums")
        integers = np.concatenate([*words, np.zeros(N_ZEROS, np.uint64)])
        question, n = question_of(own["session"], kind, bits, arguments), len(integers)
        integers += mask(own["seed"], question, n)
        integers += signed_masks(own["mask_secret"], at, keys, range(len(keys)), question, n)
        shares = {"seed_shares": seed_shares, "key_shares": key_shares}
        _keep(context, UNMASK, at=at, threshold=own["threshold"], signers=others, **shares)
        return integers

    def _signers(self, own: dict[str, Any], message: Message, context: Context) -> list[bytes]:
        """Who the other sites are, by place; an empty list where nobody is known."""
        if self.secure.identity is None:
            return []
        (signatures,) = _texts(message.config, "signatures")
        secret, known = self.secure.identity(context.given)
        whole = len(signatures) == len(own["mask_keys"])
        who = own["session"], own["at"], signatures, known, public_of(secret)
        found = signers(*who) if whole else None
        if found is None:
            raise RefusedError("all other sites must have signed the keys, with keys known here")
        return found

    def _unmask(self, message: Message, context: Context) -> dict[str, Any]:
        """One share of each site: of its own mask if its numbers arrived, of its key if not.

        New keys come along, for the next sum.
        """
        own = _taken(context, UNMASK)
        at, n, threshold = own["at"], len(own["seed_shares"]), own["threshold"]
        sent = message.config.get("sent")
        if not isinstance(sent, list) or sorted(set(sent) & set(range(n))) != sorted(sent):
            raise RefusedError(f"those who sent numbers must be some of {n} sites, each once")
        if at not in sent or len(sent) < threshold:
            raise RefusedError(f"this site and {threshold - 1} others must have sent numbers")
        if own["signers"]:
            sites = sorted(own["signers"][i] for i in sent)
            if context.state[RUN].setdefault(_SITES, sites) != sites:  # which would tell a site's
                raise RefusedError("a sum is over other sites than the fit began with")
        shares = [own["seed_shares" if i in sent else "key_shares"][i] for i in range(n)]
        return {"shares": shares, **self._keys(message, context)}


def _opened_boxes(own: dict[str, Any], message: Message) -> tuple[list[bytes], list[bytes]]:
    """The shares that this site has of the two secrets of each, empty where a box does not open."""
    (boxes,), keys, at = _texts(message.config, "boxes"), own["keys"], own["at"]
    if len(boxes) != len(keys) or boxes.count(b"") != 1 or boxes[at]:
        raise RefusedError("boxes must be those of all other sites whose keys were listed")
    pairs = [
        own["own_shares"] if i == at else opened(keys[i], own["session"], i, at, box) or (b"", b"")
        for i, box in enumerate(boxes)
    ]
    seed_shares, key_shares = map(list, zip(*pairs, strict=True))
    if (good := sum(map(bool, seed_shares))) < own["threshold"]:
        raise RefusedError(f"shares of {good} sites open, the sum needs {own['threshold']}")
    return seed_shares, key_shares


def _common_bounds(context: Context, bounds: list[bytes], at: int, n: int) -> Bounds:
    """The largest of the bounds that n sites have announced, this one its own."""
    if len(bounds) != n or bounds[at] != context.state.get(RUN, {}).get(_BOUNDS):
        raise RefusedError("the bounds of this site must be in the list as it has announced them")
    try:
        return Bounds.of_all(bounds)
    except ValueError as error:
        raise RefusedError(str(error)) from None


def _keep(context: Context, stage: str, **values: Any) -> None:
    """Keep what the next stage of a sum needs, in the state of the node, which stays there."""
    context.state[_SUM] = {"stage": stage, "run": str(context.run_id), **values}


def _taken(context: Context, stage: str) -> dict[str, Any]:
    """What was kept for a stage. It is there once: each question of a sum is asked once."""
    own, context.state[_SUM] = context.state.get(_SUM, {}), {}
    if own.get("stage") != stage or own.get("run") != str(context.run_id):
        raise RefusedError(
            "this site takes part in secure sums only: keys, shares, numbers, unmasking, each once"
        )
    return own


def _texts(config: Mapping[str, Any], *names: str) -> list[list[bytes]]:
    """Lists of bytes in a question."""
    lists: list[Any] = list(map(config.get, names))
    for name, found in zip(names, lists, strict=True):
        if not isinstance(found, list) or set(map(type, found)) - {bytes}:
            raise RefusedError(f"{name} must be a list of bytes")
    return lists


# -------------------------------------------------------------------- at the server

# Longest text that a site sends for one other site: its shares, encrypted, have 168 bytes.
_LONGEST = 1000


class Session:
    """Sites that have exchanged keys and shares for one sum.

    Sites that are lost before their shares have arrived are left out, and the others begin again.

    Parameters
    ----------
    sites : SecureSums
    keys : dict of str to tuple
        Public keys of the sites, by name, that came with the sum before; or nothing.

    Attributes
    ----------
    next_keys : dict of str to tuple
        Public keys for another sum, by name, that came with the shares that unmask this one.
    """

    def __init__(self, sites: Any, keys: dict[str, tuple]):
        self.sites, self.bits = sites, sites.secure.bits
        while True:
            if set(keys) != set(sites.names.values()):
                keys = sites.ask(KEYS, _keys_in)
            self.names, n = list(keys), len(keys)
            check_room(n, self.bits)
            self.threshold = sites.secure.needed(n)
            self.mask_keys, self.box_keys = map(list, zip(*keys.values(), strict=True))
            bounds = list(map(sites.announced.__getitem__, keys))
            config = {"mask_keys": self.mask_keys, "box_keys": self.box_keys, "bounds": bounds}
            config["threshold"] = self.threshold
            shared = sites.ask(SHARES, partial(_boxes_in, n), configs=dict.fromkeys(keys, config))
            if len(shared) == n:
                break
            keys = {}
        self.boxes = {name: boxes for name, (boxes, _) in shared.items()}
        self._signatures = [signature for _, signature in shared.values()]
        self.digest = session_of(self.threshold, self.mask_keys, self.box_keys, bounds)
        self._n_announced = sum(map(len, bounds))

    def masked(self, kind: str, size: int | None, arguments: tuple) -> dict[str, np.ndarray]:
        """Masked integers of the sites, by name: those of which they arrived.

        Raises
        ------
        RuntimeError
            If they are too few to unmask the sum.
        """
        configs = {}
        for at, name in enumerate(self.names):
            boxes = [b"" if peer == name else self.boxes[peer][at] for peer in self.names]
            configs[name] = {"bits": self.bits, "signatures": self._signatures, "boxes": boxes}
        length = None if size is None else size + N_ZEROS
        read = partial(_masked_in, kind, length)
        arrived = self.sites.ask(kind, read, *arguments, configs=configs)
        self._check_enough(len(arrived), "have sent their numbers")
        self._sent = numbered(arguments)
        self._question = question_of(self.digest, kind, self.bits, self._sent)
        return arrived

    def unmasked(self, masked: dict[str, np.ndarray]) -> np.ndarray:
        """The sum of masked integers, without the masks.

        Raises
        ------
        RuntimeError
            If too few sites answer, or masks do not cancel.
        SiteLostError
            If a site has given shares that the others cannot use; it is left out.
        """
        sent = [self.names.index(name) for name in masked]
        read = partial(_shares_in, len(self.names))
        config = {name: {"sent": sent} for name in masked}
        answers = self.sites.ask(UNMASK, read, configs=config, spare=True)
        self.shares = {name: shares for name, (shares, _) in answers.items()}
        self.next_keys = {name: keys for name, (_, keys) in answers.items()}
        self._check_enough(len(self.shares), "have helped to unmask it")
        total = np.add.reduce(list(masked.values()), axis=0)
        n = len(total)
        for at, key in enumerate(self.mask_keys):
            if (secret := self._secret(at)) is None:
                break  # its mask stays, and is seen
            if at in sent:
                total -= mask(secret, self._question, n)
            elif fits_public_key(secret, key):
                total += signed_masks(secret, at, self.mask_keys, sent, self._question, n)
        if total[-N_ZEROS:].any():
            raise RuntimeError(
                "The masks of a secure sum do not cancel: a site, nobody can tell which, has sent "
                "wrong shares or numbers."
            )
        return total[:-N_ZEROS]

    def _check_enough(self, n: int, what: str) -> None:
        if n < self.threshold:
            needs = f"a secure sum of so many needs {self.threshold}"
            raise self.sites.too_few(f"{n} of {len(self.names)} {what}, {needs}")

    def _secret(self, at: int) -> bytes | None:
        """The secret of a site, from the shares of others: each has the number of its place.

        None if shares do not fit together. A site of which too few others have a share has sent
        them none that they can open: no more than may be lost can say so wrongly.
        """
        shares = [
            texts[at]
            for name, texts in self.shares.items()
            if int.from_bytes(texts[at][:4], "little") == self.names.index(name) + 1
        ]
        if len(shares) < self.threshold:
            node = self.sites.nodes[self.names[at]]
            self.sites.leave_out(node, "its secrets cannot be put together from shares")
            raise SiteLostError
        return recovered(shares[: self.threshold])

    def record(self, n_numbers: int, arrived: Sequence[str]) -> None:
        """Add the sum to the log: numbers as floats, and the bytes of everything."""
        sent = self._sent.values()
        n_floats = sum(math.prod(a.shape) for a in sent if a.dtype == "<f8")
        listed = sum(map(len, [*self.mask_keys, *self.box_keys])) + self._n_announced
        listed += sum(len(a.data) for a in sent)
        up, down = [], []
        for at, name in enumerate(self.names):
            numbers, own = n_numbers * (name in arrived), [self.mask_keys[at], self.box_keys[at]]
            texts = [*self.boxes[name], *self.shares.get(name, []), *own]
            up.append(Size(numbers, 8 * numbers + sum(map(len, texts))))
            boxes = [self.boxes[peer][at] for peer in self.names]
            down.append(Size(n_floats, listed + sum(map(len, boxes))))
        self.sites.log.record(up, down, summed=True)


def _keys_in(answer: Answer) -> tuple[bytes, bytes]:
    """Public keys for masks and for boxes."""
    keys: Any = answer.config.get("mask_key"), answer.config.get("box_key")
    if set(map(type, keys)) != {bytes} or len(set(keys)) < 2 or not all(map(is_public_key, keys)):
        raise answer.refused("no two public keys")
    return keys


def _boxes_in(n: int, answer: Answer) -> tuple[list[bytes], bytes]:
    """A text for each of n sites, and a signature or nothing."""
    signature: Any = answer.config.get("signature", b"")
    if not isinstance(signature, bytes) or len(signature) > _LONGEST:
        raise answer.refused("as 'signature' what is none")
    return _texts_in("boxes", n, answer), signature


def _shares_in(n: int, answer: Answer) -> tuple[list[bytes], tuple[bytes, bytes]]:
    """A share of each of n sites, and keys for the next sum."""
    return _texts_in("shares", n, answer), _keys_in(answer)


def _texts_in(name: str, n: int, answer: Answer) -> list[bytes]:
    """A text for each of n sites."""
    texts = answer.config.get(name)
    if not isinstance(texts, list) or len(texts) != n:
        raise answer.refused(f"as {name!r} no list for {n} sites")
    if set(map(type, texts)) - {bytes} or max(map(len, texts)) > _LONGEST:
        raise answer.refused(f"as {name!r} what is no list of texts")
    return texts


def _masked_in(kind: str, size: int | None, answer: Answer) -> np.ndarray:
    """Masked integers, as many as the others send."""
    numbers = answer.array("masked", (size,), "<u8")
    if size is None:
        answer.agree(f"number of masked sums of {kind}", len(numbers))
    return numbers


# -------------------------------------------------------------------- masks

# The curve of all keys; bytes of a public key, and of a secret one or the seed of a mask.
_CURVE, _PUBLIC, _SECRET = ec.SECP384R1(), 49, 48
# Shares are values of a polynomial modulo a prime beyond all secrets: bytes of a place and a value.
_PRIME, _PLACE, _VALUE = 2**521 - 1, 4, 66
# Random bytes with which an encryption begins.
_NONCE = 12


def key_pair() -> tuple[bytes, bytes]:
    """A new secret key and its public key."""
    key = ec.generate_private_key(_CURVE)
    return key.private_numbers().private_value.to_bytes(_SECRET, "big"), _public_of(key)


@lru_cache(maxsize=1024)
def is_public_key(data: bytes) -> bool:
    """Whether a text is the public key of a pair as `key_pair` makes them."""
    with suppress(ValueError):
        return len(data) == _PUBLIC and _public(data) is not None
    return False


def fits_public_key(secret: bytes, public: bytes) -> bool:
    """Whether a secret key is that of a public one."""
    with suppress(ValueError):
        return _public_of(ec.derive_private_key(int.from_bytes(secret, "big"), _CURVE)) == public
    return False


def shared_keys(secret: bytes, keys: Sequence[bytes]) -> list[bytes]:
    """What the owner of a secret key has in common with those of public keys, and nobody else.

    It depends on both public keys: a point of the curve and its negative agree on the same number
    with everybody, so that masks with both could cancel.
    """
    own, found = ec.derive_private_key(int.from_bytes(secret, "big"), _CURVE), []
    public = _public_of(own)
    for key in keys:
        pair = b"shared key" + b"".join(sorted([public, key]))
        derived = HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=pair)
        found.append(derived.derive(own.exchange(ec.ECDH(), _public(key))))
    return found


@lru_cache(maxsize=1024)  # each key of a sum is seen more than once
def _public(data: bytes) -> ec.EllipticCurvePublicKey:
    return ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, data)


def _public_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


def digest(parts: Iterable[bytes]) -> bytes:
    """Hash of a sequence of texts."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return found.digest()


def mask(secret: bytes, question: bytes, n: int) -> np.ndarray:
    """Integers modulo 2^64 that look random to all who do not know a secret.

    ``question`` is the digest of what the mask is for: another one is another mask.
    """
    key = HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=question).derive(secret)
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(8 * n)), "<u8").astype(np.uint64)


def signed_masks(
    secret: bytes, at: int, keys: Sequence[bytes], others: Iterable[int], question: bytes, n: int
) -> np.ndarray:
    """Sum of the masks that a site shares with others, so signed that pairs cancel."""
    total, others = np.zeros(n, np.uint64), [i for i in others if i != at]
    for other, key in zip(others, shared_keys(secret, [keys[i] for i in others]), strict=True):
        pairwise = mask(key, question, n)
        total = total + pairwise if at < other else total - pairwise
    return total


def sealed(key: bytes, session: bytes, at: int, to: int, shares: tuple[bytes, bytes]) -> bytes:
    """Shares of a seed and of a key, encrypted for one site in one session."""
    nonce, place = os.urandom(_NONCE), session + bytes(f" {at} {to}", "ascii")
    return nonce + AESGCM(key).encrypt(nonce, b"".join(shares), place)


def opened(key: bytes, session: bytes, at: int, to: int, box: bytes) -> tuple[bytes, bytes] | None:
    """The shares in what a site has sealed for another one; None if there are none."""
    nonce, place = box[:_NONCE], session + bytes(f" {at} {to}", "ascii")
    with suppress(InvalidTag, ValueError):
        plain = AESGCM(key).decrypt(nonce, box[_NONCE:], place)
        return plain[: _PLACE + _VALUE], plain[_PLACE + _VALUE :]
    return None


def shares_of(secret: bytes, threshold: int, n: int) -> list[bytes]:
    """Shares of a secret, of which a threshold tells it and fewer tell nothing (Shamir 1979).

    Each is its place, from 1 to n, and the value there of a polynomial with random coefficients,
    which at 0 is the secret.
    """
    coefficients = [*map(secrets.randbelow, [_PRIME] * (threshold - 1))]
    coefficients.append(int.from_bytes(secret, "big"))
    found = []
    for place in range(1, n + 1):
        value = 0
        for coefficient in coefficients:
            value = (value * place + coefficient) % _PRIME
        found.append(place.to_bytes(_PLACE, "little") + value.to_bytes(_VALUE, "big"))
    return found


def recovered(shares: Sequence[bytes]) -> bytes | None:
    """The secret that shares of different places were made of; None if they do not fit together."""
    places = [int.from_bytes(share[:_PLACE], "little") for share in shares]
    values = [int.from_bytes(share[_PLACE:], "big") for share in shares]
    secret = sum(map(int.__mul__, values, _weights_at_zero(tuple(places)))) % _PRIME
    with suppress(OverflowError):
        return secret.to_bytes(_SECRET, "big")
    return None


@lru_cache(maxsize=16)  # all secrets of a sum have shares of the same places
def _weights_at_zero(places: tuple[int, ...]) -> list[int]:
    """Lagrange's weights, by which values at some places are the value at 0."""
    weights = []
    for here in places:
        others = [other for other in places if other != here]
        over = math.prod([other - here for other in others])
        weights.append(math.prod(others) * pow(over, -1, _PRIME) % _PRIME)
    return weights


def signature(secret: bytes, session: bytes, at: int) -> bytes:
    """What a site signs at its place in the list of keys."""
    return asymmetric.sign_message(asymmetric.bytes_to_private_key(secret), _text(session, at))


def public_of(secret: bytes) -> bytes:
    """The public key, as owners hand it over, of a secret one."""
    return asymmetric.public_key_to_bytes(asymmetric.bytes_to_private_key(secret).public_key())


def signers(
    session: bytes, at: int, signatures: Sequence[bytes], known: Iterable[bytes], own: bytes = b""
) -> list[bytes] | None:
    """The known key by which each other site in the list has signed it, and b"" for this one.

    None unless all have, each with another one of the known keys, and none with the site's ``own``:
    a server that has one site answer in two runs as two sites would learn its numbers.
    """
    verified, keys = asymmetric.verify_signature, map(asymmetric.bytes_to_public_key, known)
    left, found = {asymmetric.public_key_to_bytes(key): key for key in keys}, list[bytes]()
    left.pop(own, None)
    for other, signed in enumerate(signatures):
        if other == at:
            found.append(b"")
            continue
        text = _text(session, other)
        signing = (k for k, public in left.items() if verified(public, text, signed))
        if (signer := next(signing, None)) is None:
            return None
        del left[signer]
        found.append(signer)
    return found


def _text(session: bytes, at: int) -> bytes:
    return b"fedpca_sklearn: keys of a sum" + session + at.to_bytes(8, "little")
