"""Secrets of secure sums: Flower's key agreement, shares and encryption, and masks from AES.

AES is that of the library cryptography, on which Flower depends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial

import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import (
    decrypt,
    encrypt,
    generate_shared_key,
)
from flwr.common.secure_aggregation.secaggplus_utils import (
    share_keys_plaintext_concat,
    share_keys_plaintext_separate,
)
from flwr.supercore.primitives.asymmetric import (
    bytes_to_private_key,
    bytes_to_public_key,
    generate_key_pairs,
    private_key_to_bytes,
    public_key_to_bytes,
    sign_message,
    verify_signature,
)

# Longest text of a public key: those of the curve have 215 bytes.
_LONGEST_KEY = 1000


def key_pair() -> tuple[bytes, bytes]:
    """A new secret key and its public key."""
    private, public = generate_key_pairs()
    return private_key_to_bytes(private), public_key_to_bytes(public)


@lru_cache(maxsize=1024)  # each key of a sum is seen more than once
def is_public_key(data: bytes) -> bool:
    """Whether a text is the public key of a pair as `key_pair` makes them."""
    if len(data) > _LONGEST_KEY:
        return False
    try:
        key = bytes_to_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        return False
    return isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == "secp384r1"


def fits_public_key(secret: bytes, public: bytes) -> bool:
    """Whether a secret key is that of a public one."""
    try:
        found = public_key_to_bytes(bytes_to_private_key(secret).public_key())
    except (ValueError, TypeError, AttributeError, UnsupportedAlgorithm):
        return False
    return found == public


def shared_keys(secret: bytes, keys: Sequence[bytes]) -> list[bytes]:
    """What the owner of a secret key has in common with those of public keys, and nobody else."""
    agree = partial(generate_shared_key, bytes_to_private_key(secret))
    return list(map(agree, map(bytes_to_public_key, keys)))


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
    total, others = np.zeros(n, np.uint64), list(others)
    for other, key in zip(others, shared_keys(secret, [keys[i] for i in others]), strict=True):
        pairwise = mask(key, question, n)
        total = total + pairwise if at < other else total - pairwise
    return total


def sealed(key: bytes, session: bytes, at: int, to: int, shares: tuple[bytes, bytes]) -> bytes:
    """Shares of two secrets, encrypted for one site in one session."""
    return encrypt(key, session + share_keys_plaintext_concat(at, to, *shares))


def opened(key: bytes, session: bytes, at: int, to: int, box: bytes) -> tuple[bytes, bytes] | None:
    """The shares in what a site has sealed for another one; None if there are none."""
    try:
        plain = decrypt(key, box)
    except InvalidToken:
        return None
    start = len(session)
    found_at, found_to, first, second = share_keys_plaintext_separate(plain[start:])
    if (plain[:start], found_at, found_to) != (session, at, to):
        return None
    return first, second


def recovered(shares: Sequence[bytes]) -> bytes | None:
    """The secret that shares were made of; None if they do not fit together."""
    try:
        return combine_shares(list(shares))
    except (ValueError, IndexError):
        return None


def signature(secret: bytes, session: bytes, at: int) -> bytes:
    """What a site signs at its place in the list of keys."""
    return sign_message(bytes_to_private_key(secret), _text(session, at))


def signers(
    session: bytes, at: int, signatures: Sequence[bytes], known: Iterable[bytes]
) -> list[bytes] | None:
    """The known key by which each other site in the list has signed it, and b"" for this one.

    None unless all have, each with another one of the known keys.
    """
    left, found = set(known), []
    for other, signed in enumerate(signatures):
        if other == at:
            found.append(b"")
            continue
        text = _text(session, other)
        signing = (k for k in left if verify_signature(bytes_to_public_key(k), text, signed))
        if (signer := next(signing, None)) is None:
            return None
        left.remove(signer)
        found.append(signer)
    return found


def _text(session: bytes, at: int) -> bytes:
    return b"fedpca_sklearn: keys of a sum" + session + at.to_bytes(8, "little")
