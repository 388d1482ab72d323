"""Messages as files: a header in JSON, and the bytes of the arrays behind it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from typing import Any, NamedTuple

from .._validation.files import written
from ._messages import Array, Message

_MAGIC = b"fedpca message 1\n"
# Bytes of a header, and of a whole file, that are read.
_HEADER, _LARGEST = 2**26, 2**36
# Kinds of what is sent beside arrays.
_PLAIN = bool, int, float, str, bytes
# Bytes of a digest at the end, by which damage is noticed.
_DIGEST = 32


class Letter(NamedTuple):
    """A message, and what a carrier of files states beside it.

    Parameters
    ----------
    about : dict
        Numbers and texts: the run, its estimator, and who is asked.
    message : Message
    """

    about: dict[str, Any]
    message: Message

    def to_bytes(self) -> bytes:
        """The letter as it is written; equal ones have equal bytes."""
        kind, config, arrays, _ = vars(self.message).values()
        listed = [[name, a.shape, a.dtype, a.stype, len(a.data)] for name, a in arrays.items()]
        header = {"about": self.about, "kind": kind, "config": dict(config), "arrays": listed}
        text = json.dumps(header, default=_without_bytes, sort_keys=True).encode()
        start = [_MAGIC, len(text).to_bytes(8, "little"), text]
        whole = b"".join([*start, *(array.data for array in arrays.values())])
        return whole + hashlib.sha256(whole).digest()

    @classmethod
    def from_bytes(cls, data: bytes) -> Letter:
        """A letter of another party, whose arrays are not looked at; a ValueError for none."""
        data, digest = data[:-_DIGEST], data[-_DIGEST:]
        start = len(_MAGIC) + 8
        size = int.from_bytes(data[len(_MAGIC) : start], "little")
        if data[: len(_MAGIC)] != _MAGIC or not 0 < size <= min(_HEADER, len(data) - start):
            raise ValueError("it is no question, and no answer to one")
        try:
            header = json.loads(data[start : start + size], object_hook=_with_bytes)
            about, kind, config = (header[name] for name in ("about", "kind", "config"))
            fits = isinstance(about, dict) and isinstance(kind, str) and isinstance(config, dict)
            fits = fits and all(map(_is_plain, config.values()))
            at, arrays = start + size, {}
            for name, shape, dtype, stype, length in header["arrays"]:
                end = at + length
                if not at <= end <= len(data) or not isinstance(dtype + stype + name, str):
                    raise ValueError
                sizes = tuple(int(n) for n in shape)
                arrays[name], at = Array(data[at:end], sizes, dtype, stype), end
            if not fits or at != len(data) or hashlib.sha256(data).digest() != digest:
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError("it is not whole, or not what was written") from None
        return cls(about, Message(kind, config, arrays))


def read_letter(path: Any) -> tuple[Letter, str]:
    """A letter in a file, and the digest of the file."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size > _LARGEST:
            raise ValueError(f"{os.fspath(path)}: it is too large for a message.")
        data = file.read()
    try:
        return Letter.from_bytes(data), digest_of(data)
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: {error}.") from None


def write_bytes(path: Any, data: bytes) -> None:
    """Write a file that is there as a whole, or not at all."""
    with written(path) as partial, open(partial, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def digest_of(data: bytes) -> str:
    """What tells a file from every other one."""
    return hashlib.sha256(data).hexdigest()


def _is_plain(value: Any) -> bool:
    """Whether a value is a number, a text, bytes, or a list of one of these kinds."""
    if isinstance(value, list):
        return len({type(one) for one in value}) < 2 and all(type(one) in _PLAIN for one in value)
    return type(value) in _PLAIN


def _without_bytes(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} in a message")


def _with_bytes(found: dict[str, Any]) -> Any:
    if found.keys() != {"base64"}:
        return found
    return base64.b64decode(found["base64"], validate=True)
