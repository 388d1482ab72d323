"""The questions of one secure sum at the server, and the masks that are left on it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ..communication._channel import check_room
from ..communication._federation import Message as Size
from ._masks import fits_public_key, is_public_key, mask, recovered, signed_masks
from ._messages import Answer, arrays_of
from ._secure import KEYS, SHARES, UNMASK
from ._secure_site import N_ZEROS, question_of, session_of
from ._sites import SiteLostError, as_sent

# Longest text that a site sends for one other site: its shares, encrypted, have 1.2 kB.
_LONGEST = 5000


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
            if not keys or set(keys) != set(sites.names.values()):
                keys = sites.ask(KEYS, _keys_in)
            self.names, n = list(keys), len(keys)
            check_room(n, self.bits)
            self.threshold = sites.secure.needed(n)
            self.mask_keys, self.box_keys = map(list, zip(*keys.values(), strict=True))
            bounds = [sites.announced[name].text for name in keys]
            config = {
                **{"mask_keys": self.mask_keys, "box_keys": self.box_keys},
                **{"threshold": self.threshold, "bounds": bounds},
            }
            read = partial(_boxes_in, n)
            shared = sites.ask(SHARES, read, configs=dict.fromkeys(keys, config))
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
        common = {"bits": self.bits, "signatures": self._signatures}
        configs = {
            name: {**common, "boxes": [b"" if p == name else self.boxes[p][at] for p in self.names]}
            for at, name in enumerate(self.names)
        }
        length = None if size is None else size + N_ZEROS
        read, spent = partial(_masked_in, kind, length), self.sites.private
        arrived = self.sites.ask(kind, read, *arguments, configs=configs, spent=spent)
        self._check_enough(len(arrived), "have sent their numbers")
        record = arrays_of({str(i): as_sent(a) for i, a in enumerate(arguments)})
        self._question = question_of(self.digest, kind, self.bits, record)
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
        told = self.sites.ask(UNMASK, read, configs=config, spare=True)
        self.shares = {name: shares for name, (shares, _) in told.items()}
        self.next_keys = {name: keys for name, (_, keys) in told.items()}
        self._check_enough(len(self.shares), "have helped to unmask it")
        total = np.add.reduce(list(masked.values()), axis=0)
        n, whole = len(total), True
        for at, key in enumerate(self.mask_keys):
            secret = self._secret(at)
            if secret is None:
                whole = False
                break
            if at in sent:
                total -= mask(secret, self._question, n)
            elif fits_public_key(secret, key):
                total += signed_masks(secret, at, self.mask_keys, sent, self._question, n)
        if not whole or total[-N_ZEROS:].any():
            raise RuntimeError(
                "The masks of a secure sum do not cancel: a site, nobody can tell which, has sent "
                "wrong shares or numbers."
            )
        return total[:-N_ZEROS]

    def _check_enough(self, n: int, what: str) -> None:
        if n < self.threshold:
            missing = self.sites.left_out()
            raise RuntimeError(
                f"Too few sites: {n} of {len(self.names)} {what}, a secure sum of so many needs "
                f"{self.threshold}.{f' Left out: {missing}.' if missing else ''}"
            )

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
            self.sites.leave_out(self.names[at], "its secrets cannot be put together from shares")
            raise SiteLostError
        return recovered(shares[: self.threshold])

    def record(self, n_numbers: int, arguments: tuple, arrived: Sequence[str]) -> None:
        """Add the sum to the log: numbers as floats, and the bytes of everything."""
        sent = [as_sent(a) for a in arguments]
        n_floats = sum(a.size for a in sent if a.dtype == np.float64)
        listed = sum(map(len, [*self.mask_keys, *self.box_keys])) + self._n_announced
        listed += sum(a.nbytes for a in sent)
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
