"""Signatures of sites under the list of keys of a sum, by Flower's functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flwr.supercore.primitives.asymmetric import (
    bytes_to_private_key,
    bytes_to_public_key,
    sign_message,
    verify_signature,
)

__all__ = ["signature", "signers"]


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
