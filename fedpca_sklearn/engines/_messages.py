"""Messages of sites and server: named arrays and a configuration, checked, also in files."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from .._validation.files import written
from ..rounds._queries import LARGEST
from ..summary._codec import check_regular


@dataclass(frozen=True)
class Array:
    """An array as it travels: its bytes row by row, and the shape and dtype that are announced."""

    data: bytes
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, values: Any) -> Array:
        """An array of numbers or bytes."""
        array = np.asarray(values)
        return cls(array.tobytes(), array.shape, array.dtype.str)


@dataclass(frozen=True)
class Message:
    """A question to one site, or what it replied: named arrays, and numbers and texts by name.

    Attributes
    ----------
    kind : str
        Kind of the question.
    config : dict
        Numbers, texts, bytes, and lists of them.
    arrays : dict of str to Array
    error : str or None
        Why there is no reply, as far as what carries messages knows.
    """

    kind: str
    config: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass
class Context:
    """Who a site is for what carries its messages, and what it keeps during a run.

    Attributes
    ----------
    node_id, run_id : int
    given : object
        What the owner's functions are called with: for Flower its own context.
    run_config : dict
        What the server has configured, and therefore knows.
    state : dict of str to dict
        Records by name, which nobody else reads: numbers, texts and bytes.
    """

    node_id: int
    run_id: int
    given: Any = None
    run_config: Mapping[str, Any] = field(default_factory=dict)
    state: dict[str, dict[str, Any]] = field(default_factory=dict)


class Carrier(ABC):
    """What carries questions from a server to its sites, and replies back.

    It knows no estimator: it delivers `Message` objects. Sites are numbered.
    """

    @abstractmethod
    def nodes(self) -> list[int]:
        """Numbers of the sites that are there."""

    @abstractmethod
    def exchange(self, questions: dict[int, Message], timeout: float) -> dict[int, Message]:
        """The first reply of each site to the question that it was asked, by its number.

        A site is absent that has not replied within ``timeout`` seconds.
        """

    def name(self, node: int) -> str:
        """What a site is called before it has answered."""
        return f"node {node}"

    def nonce(self) -> str:
        """Random text of a question, which its reply has to repeat."""
        return secrets.token_hex(16)


# Arrays, axes and characters of a name that are listed of what another party sends.
_LISTED = 32
# Name of the array that a site sends in place of all others when it has no such batch.
OVER = "over"
# Largest mean square of a row, by dtype, and of the mean about which others then take theirs: what
# sites with fewer than 2^53 rows send can then be added up, and shown in the dtype.
_LARGEST_SQUARE = {"float32": 2.0**124, "float64": 2.0**924}
_MEAN_SHARE = 1 / 16
# Characters of a text from another party that are shown.
_SHOWN = 300


def numbered(arguments: Iterable[Any]) -> dict[str, Array]:
    """Arguments of a question as they are sent: bytes as they are, and all others as float64."""
    arrays = map(np.asarray, arguments)
    sent = (a if a.dtype == np.uint8 else a.astype(np.float64) for a in arrays)
    return {str(i): Array.of(array) for i, array in enumerate(sent)}


def arrays_of(found: Mapping[str, Any]) -> dict[str, Array]:
    """Arrays as they are sent."""
    return dict(zip(found, map(Array.of, found.values()), strict=True))


def sizes_of(arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Shapes, bytes and hash of arrays as they travel, for a log; what another party announces."""
    listed = [(shown(name)[:_LISTED], arrays[name]) for name in sorted(arrays)]
    shapes = {name: [int(n) for n in a.shape[:_LISTED]] for name, a in listed[:_LISTED]}
    data = b"".join(array.data for _, array in listed)
    return {"shapes": shapes, "bytes": len(data), "sha256": digest_of(data)}


def read_array(array: Array, dtype: str = "<f8", shape: tuple | None = None) -> np.ndarray:
    """Finite array of a message, read without `Array.numpy`, which allocates any stated size.

    Nothing is allocated before dtype, size and shape are what they should be, None in ``shape``
    where any length will do.
    """
    sizes, lengths = tuple(array.shape[:_LISTED]), {1, *array.shape}
    size = math.prod(sizes) * np.dtype(dtype).itemsize
    fine = len(sizes) == len(array.shape) and 0 < min(lengths) <= max(lengths) < 2**63
    if array.dtype != dtype or not fine or size != len(array.data):
        raise ValueError(
            f"an array of {len(array.data)} bytes that announces dtype {shown(array.dtype)} and "
            f"shape {sizes if fine else 'none'}, expected dtype {dtype}"
        )
    if shape is not None and not fits(shape, sizes):
        raise ValueError(f"an array of shape {sizes}, expected {shape}")
    values = np.frombuffer(array.data, dtype).reshape(sizes)
    if not np.isfinite(values).all():
        raise ValueError("NaN or infinity")
    return values.astype(values.dtype.newbyteorder("="))


def fits(shape: tuple[int | None, ...], lengths: tuple[int, ...]) -> bool:
    """Whether a shape, None where any length will do, has these lengths."""
    same = len(shape) == len(lengths)
    return same and all(m in (None, n) for m, n in zip(shape, lengths, strict=True))


def shown(text: str, most: int = _SHOWN) -> str:
    """What another party wrote, in one line of printable characters, shortened."""
    text = text if len(text) <= most else f"{text[:most]}..."
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@dataclass(frozen=True)
class Answer:
    """Message of a site; reading it raises errors that tell what is wrong."""

    site: str
    config: dict
    arrays: dict
    traits: dict[str, Any] = field(default_factory=dict)

    def array(self, name: str, shape: tuple, dtype: str = "<f8") -> np.ndarray:
        """Return a finite array of a dtype and a shape, None where any length will do."""
        if name not in self.arrays:
            raise self.refused(f"no array {name!r}")
        try:
            return read_array(self.arrays[name], dtype, shape)
        except ValueError as error:
            raise self.refused(f"as {name!r} {error}") from None

    def summand(self, name: str, shape: tuple, largest: float = LARGEST) -> np.ndarray:
        """The same, of numbers of which those of very many sites can be added up."""
        found = self.array(name, shape)
        self.check_size(found, largest=largest)
        return found

    def check_size(self, *arrays: np.ndarray, largest: float) -> None:
        """Leave the site out whose numbers cannot be added up."""
        if any(np.abs(array).max() > largest for array in arrays):
            raise self.refused("values that are too large: their sum would overflow")

    @property
    def over(self) -> bool:
        """Whether the site has no such batch."""
        return set(self.arrays) == {OVER}

    def agree(self, trait: str, value: Any) -> None:
        """Note what must be the same at all sites: the site is left out where most differ."""
        self.traits[trait] = value

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the rows."""
        name = self.config.get("dtype")
        if name not in ("float32", "float64"):
            raise self.refused(f"dtype={shown(repr(name))}, expected 'float32' or 'float64'")
        return np.dtype(name)

    def refused(self, what: str) -> ValueError:
        """Error that says what the site sent, and leaves it out."""
        return ValueError(f"sent {what}")

    def check_count(self, count: float) -> None:
        """Leave the site out unless a number can be one of rows."""
        if not 1 <= count < 2**53:
            raise self.refused(f"count={count}, expected a number of rows")

    def check_squares(self, mean: Any, squares: float, dtype: Any = None) -> None:
        """Leave the site out if its values would overflow in those of all sites."""
        size = too_large(mean, squares, self.dtype if dtype is None else np.dtype(dtype))
        if size is not None:
            raise self.refused(f"values that are too large: mean squares of {size:.1e} per row")

    def n_rows(self, count: float) -> list[int]:
        """How many weighted rows there are, and stand for; without weights both are their count."""
        if "rows" not in self.arrays:
            return [max(1, round(count))] * 2
        found = self.array("rows", (2,))
        for number in found:
            self.check_count(number)
        if (found != found // 1).any():
            raise self.refused(f"rows={found.tolist()}, expected a whole number")
        return list(map(int, found))


def too_large(mean: Any, squares: float, dtype: np.dtype) -> float | None:
    """Mean squares of values, by their mean or in all, that would overflow in those of all sites.

    None of values that would not.
    """
    with np.errstate(over="ignore"):
        of_mean = float(np.square(mean).sum())
    largest = _LARGEST_SQUARE[dtype.name]
    fits = of_mean <= _MEAN_SHARE * largest and squares <= largest
    return None if fits else max(of_mean, squares)


# -------------------------------------------------------------------- messages as files
#
# A header in JSON, and the bytes of the arrays behind it.

_LETTER, _OF_ANY_VERSION = b"fedpca message 2\n", b"fedpca message "
# Bytes of a header, and of a whole file, that are read.
_LONGEST_HEADER, _LARGEST = 2**26, 2**36
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
        listed = [[name, a.shape, a.dtype, len(a.data)] for name, a in arrays.items()]
        header = {"about": self.about, "kind": kind, "config": dict(config), "arrays": listed}
        text = json.dumps(header, default=_without_bytes, sort_keys=True).encode()
        start = [_LETTER, len(text).to_bytes(8, "little"), text]
        whole = b"".join([*start, *(array.data for array in arrays.values())])
        return whole + hashlib.sha256(whole).digest()

    @classmethod
    def from_bytes(cls, data: bytes) -> Letter:
        """A letter of another party, whose arrays are not looked at; a ValueError for none."""
        data, digest = data[:-_DIGEST], data[-_DIGEST:]
        start = len(_LETTER) + 8
        size = int.from_bytes(data[len(_LETTER) : start], "little")
        most = min(_LONGEST_HEADER, len(data) - start)
        if data.startswith(_OF_ANY_VERSION) and not data.startswith(_LETTER):
            raise ValueError("it is of another version of messages, of another release")
        if not data.startswith(_LETTER) or not 0 < size <= most:
            raise ValueError("it is no question, and no answer to one")
        try:
            header = json.loads(data[start : start + size], object_hook=_with_bytes)
            about, kind, config = (header[name] for name in ("about", "kind", "config"))
            fits = isinstance(about, dict) and isinstance(kind, str) and isinstance(config, dict)
            fits = fits and all(map(_is_plain, config.values()))
            at, arrays = start + size, {}
            for name, shape, dtype, length in header["arrays"]:
                end = at + length
                if not at <= end <= len(data) or not isinstance(dtype + name, str):
                    raise ValueError
                if not isinstance(shape, list) or {type(n) for n in shape} - {int}:
                    raise ValueError
                arrays[name], at = Array(data[at:end], tuple(shape), dtype), end
            if not fits or at != len(data) or hashlib.sha256(data).digest() != digest:
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError("it is not whole, or not what was written") from None
        return cls(about, Message(kind, config, arrays))


def read_letter(path: Any) -> tuple[Letter, str]:
    """A letter in a file, and the digest of the file."""
    check_regular(path)
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size > _LARGEST:
            raise ValueError(f"{os.fspath(path)}: it is too large for a message.")
        data = file.read()
    try:
        return Letter.from_bytes(data), digest_of(data)
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: {error}.") from None


def write_bytes(path: Any, data: bytes, new: int = 0o666) -> None:
    """Write a file atomically; an error if the path is a link or no regular file."""
    if os.path.islink(path):
        raise ValueError(f"{os.fspath(path)} is a link.")
    if os.path.exists(path):
        check_regular(path)
    with written(path, new) as partial, open(partial, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def digest_of(data: bytes) -> str:
    """What tells a file from every other one."""
    return hashlib.sha256(data).hexdigest()


def digest_of_arrays(arrays: Iterable[np.ndarray], first: bytes = b"") -> str:
    """What tells some arrays from all others."""
    parts = (repr(array.shape).encode() + array.tobytes() for array in arrays)
    return digest_of(b"".join([first, *parts]))


def _is_plain(value: Any) -> bool:
    """Whether a value is a number, a text, bytes, or a list of one of these kinds."""
    if isinstance(value, list):
        return len({type(one) for one in value}) < 2 and all(type(one) in _PLAIN for one in value)
    return type(value) in _PLAIN


def _without_bytes(value: Any) -> Any:
    if not isinstance(value, bytes):
        raise TypeError(f"{type(value).__name__} in a message")
    return {"base64": base64.b64encode(value).decode()}


def _with_bytes(found: dict[str, Any]) -> Any:
    if found.keys() != {"base64"}:
        return found
    return base64.b64decode(found["base64"], validate=True)


class SiteLostError(Exception):
    """A site that took part in earlier rounds is left out."""
