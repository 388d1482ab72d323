"""Messages of sites and server: named arrays and a configuration, checked as untrusted."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ._records import Array

# How `numpy.save` begins, and the header that it writes for an array of numbers. Numpy's own reader
# takes any Python literal there, and fails in many ways.
_MAGIC = b"\x93NUMPY\x01\x00"
_HEADER = re.compile(
    rb"\{'descr': '([<>|][a-zA-Z][0-9]*)', 'fortran_order': (False|True), "
    rb"'shape': \(([0-9]{0,18}(?:, [0-9]{1,18}){0,7}),?\), \} *\n"
)
# Arrays, axes and characters of a name that are listed of what another party sends.
_LISTED = 32
# Name of the array that a site sends in place of all others when it has no such batch.
OVER = "over"
# Characters of a text from another party that are shown.
_SHOWN = 300


class BadMessageError(ValueError):
    """A message of another party has not the content that it should have."""


def arrays_of(found: Mapping[str, Any]) -> dict[str, Array]:
    """Arrays as they are sent, row by row."""
    return {name: Array.of(values) for name, values in found.items()}


def sizes_of(arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Shapes, bytes and hash of arrays as they travel, for a log; what another party announces."""
    digest = hashlib.sha256()
    shapes: dict[str, list[int]] = {}
    for name in sorted(arrays):
        digest.update(arrays[name].data)
        if len(shapes) < _LISTED:
            shapes[shown(name)[:_LISTED]] = [int(n) for n in arrays[name].shape[:_LISTED]]
    n_bytes = sum(len(array.data) for array in arrays.values())
    return {"shapes": shapes, "bytes": n_bytes, "sha256": digest.hexdigest()}


def read_array(array: Array, dtype: str = "<f8", shape: tuple | None = None) -> np.ndarray:
    """Finite array of a message, read without `Array.numpy`, which allocates any stated size.

    Nothing is allocated before dtype, size and shape are what they should be, None in ``shape``
    where any length will do.
    """
    data = array.data
    start = 10 + int.from_bytes(data[8:10], "little")
    header = _HEADER.fullmatch(data, 10, start)
    if array.stype != "numpy.ndarray" or data[:8] != _MAGIC or header is None:
        raise BadMessageError("not a numpy array")
    found, by_columns, lengths = (group.decode() for group in header.groups())
    announced = tuple(int(length) for length in lengths.split(",") if length)
    there = len(data) - start
    size = math.prod(announced) * np.dtype(dtype).itemsize
    if found != dtype or by_columns == "True" or size != there or not size:
        raise BadMessageError(
            f"an array of {there} bytes that announces dtype {found} and shape {announced}"
            f"{' by columns' * (by_columns == 'True')}, expected dtype {dtype}"
        )
    fits = shape is None or (
        len(shape) == len(announced)
        and all(m in (None, n) for m, n in zip(shape, announced, strict=True))
    )
    if not fits:
        raise BadMessageError(f"an array of shape {announced}, expected {shape}")
    values = np.frombuffer(data, dtype, offset=start).reshape(announced)
    if not np.isfinite(values).all():
        raise BadMessageError("NaN or infinity")
    return values.astype(values.dtype.newbyteorder("="))


def shown(text: str) -> str:
    """What another party wrote, in one line of printable characters, shortened."""
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
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
        except BadMessageError as error:
            raise self.refused(f"as {name!r} {error}") from None

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

    def refused(self, what: str) -> BadMessageError:
        """Error that says what the site sent, and leaves it out."""
        return BadMessageError(f"sent {what}")
