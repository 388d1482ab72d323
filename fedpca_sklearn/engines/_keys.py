"""Keys of rows at sites that own columns: hashed with a secret of the sites, and matched."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._validation.checks import is_integer, is_real
from .._validation.texts import composed
from ._questions import RefusedError

# Bytes of a hashed key, of what tells a salt from others, and the least that a salt has.
KEY_BYTES, MARK_BYTES, _SALT_BYTES = 32, 8, 16


class HashedKeys(NamedTuple):
    """Hashed keys of a site's rows, and what sites with the same salt have in common.

    Parameters
    ----------
    hashes : ndarray of shape (n, 32), uint8
    mark : ndarray of shape (8,), uint8
    """

    hashes: np.ndarray
    mark: np.ndarray

    def positions(self, common: np.ndarray) -> np.ndarray:
        """Rows that have the keys that a server says are common, in its order."""
        if common.ndim != 2 or common.shape[1] != KEY_BYTES:
            raise RefusedError(f"keys must have shape (n, {KEY_BYTES}), got {common.shape}")
        at = {key: i for i, key in enumerate(_rows(self.hashes))}
        wanted = _rows(common)
        if sorted(set(wanted)) != wanted:
            raise RefusedError("common keys must be sorted and differ")
        if not at.keys() >= set(wanted):
            raise RefusedError("common keys must be keys of the site")
        return np.array([at[key] for key in wanted])


def hashed_keys(keys: Any, salt: Any, n: int, public: Iterable[Any] = ()) -> HashedKeys:
    """HMAC-SHA256 of the key of each of n rows. No error tells a key.

    Parameters
    ----------
    keys, salt
        As in `SiteRows`.
    n : int
    public : iterable
        What the server knows, and what is therefore no salt.
    """
    secret = salt.encode() if isinstance(salt, str) else salt
    if not isinstance(secret, bytes) or len(secret) < _SALT_BYTES:
        raise RefusedError(f"the salt of the keys must have {_SALT_BYTES} bytes at least")
    if any(secret == (known.encode() if isinstance(known, str) else known) for known in public):
        raise RefusedError("the salt of the keys comes from the server")
    texts = [_text(key) for key in np.asarray(keys, dtype=object).ravel().tolist()]
    if len(texts) != n:
        raise ValueError(f"keys must have one key per row, {n}, got {len(texts)}.")
    if len(set(texts)) < n:
        raise RefusedError("keys must differ, and some come more than once")
    data = b"".join(hmac.digest(secret, b"key " + text.encode(), "sha256") for text in texts)
    mark = hmac.digest(secret, b"salt", "sha256")[:MARK_BYTES]
    return HashedKeys(
        np.frombuffer(data, np.uint8).reshape(n, KEY_BYTES), np.frombuffer(mark, np.uint8)
    )


def _text(key: Any) -> str:
    """One spelling of a key."""
    if isinstance(key, str) and key:
        return composed(key)
    if not isinstance(key, bool) and (is_integer(key) or (is_real(key) and key == key // 1)):
        return str(int(key))
    raise ValueError("keys must be strings or whole numbers, none of them missing.")


def sorted_keys(hashes: np.ndarray) -> np.ndarray:
    """Hashed keys in an order that tells nothing about that of the rows."""
    return _as_array(sorted(_rows(hashes)))


def common_keys(of_sites: Sequence[np.ndarray]) -> np.ndarray:
    """Hashed keys that all sites have, sorted, of shape (n, 32)."""
    return _as_array(sorted(set.intersection(*(set(_rows(hashes)) for hashes in of_sites))))


def _rows(hashes: np.ndarray) -> list[bytes]:
    return [row.tobytes() for row in hashes]


def _as_array(rows: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(rows), np.uint8).reshape(-1, KEY_BYTES)
