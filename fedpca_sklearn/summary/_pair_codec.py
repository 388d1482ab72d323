r"""Binary form of the moments of pairs of columns.

Little-endian, with a checksum, without pickle:

offset  bytes          content
0       8              magic ``b"FEDPAIR"`` and the format version, 1
8       1              4 if the rows are float32, 8 if float64
9       1              0
10      2              number of sites in the labels (uint16)
12      4              length l of the labels (uint32)
16      8              number of features d (uint64)
24      8              weight of the rows (float64)
32      8 d            origin (float64)
        4 d (d + 1)    lower triangle of the counts, row by row (float64)
        4 d (d + 1)    lower triangle of the products, row by row (float64)
        8 d^2          means (float64)
        l              labels, as in a file of a summary
-4      4              CRC-32 of everything before
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from . import _codec
from ._labels import MAX_NAMES, decode_labels, encode_labels, max_bytes_of_labels

_MAGIC, _VERSION = b"FEDPAIR", 1
_HEADER = struct.Struct("<7sBBBHIQd")
_CORRUPT = "Corrupt moments of pairs"


def _labels(moments: Any) -> bytes:
    return encode_labels(moments.feature_names, moments.site, moments.sites, None)


def size_of(moments: Any) -> int:
    """Length of `encode`'s result."""
    frame = _HEADER.size + _codec.CHECKSUM.size
    return frame + 8 * (moments.n_floats - 1) + len(_labels(moments))


def encode(moments: Any) -> bytes:
    """Serialise moments."""
    d, labels = moments.n_features, _labels(moments)
    kind = 4 if moments.single else 8
    sizes = kind, 0, len(moments.sites), len(labels), d, moments.n_samples
    lower = np.tril_indices(d)
    arrays = moments.origin, moments.counts[lower], moments.products[lower], moments.means
    body = _HEADER.pack(_MAGIC, _VERSION, *sizes)
    body += b"".join(np.ascontiguousarray(array, "<f8").tobytes() for array in arrays) + labels
    return _codec.sealed(body)


def decode(data: Any, max_bytes: int) -> dict[str, Any]:
    """Parse what `encode` wrote; anything else is a ValueError."""
    view = _codec.view_of(data, max_bytes)
    if len(view) < _HEADER.size + _codec.CHECKSUM.size:
        raise ValueError(f"Not moments of pairs: {len(view)} bytes are too few.")
    magic, version, kind, zero, n_sites, n_labels, d, n_samples = _HEADER.unpack_from(view)
    if (magic, version) != (_MAGIC, _VERSION):
        raise ValueError("Not moments of pairs: the data does not start as they do.")
    n_numbers = d + d * (d + 1) + d * d
    expected = _HEADER.size + 8 * n_numbers + n_labels + _codec.CHECKSUM.size
    n_names = min(d, MAX_NAMES)
    fits = kind in (4, 8) and not zero and n_labels <= max_bytes_of_labels(n_names, n_sites)
    if not fits or len(view) != expected:
        raise ValueError(f"{_CORRUPT}: the header does not fit to {len(view)} bytes.")
    _codec.check_seal(view, _CORRUPT)
    body = view[: -_codec.CHECKSUM.size]
    labels = decode_labels(body[len(body) - n_labels :], n_names, n_sites)
    for name in ("privacy", "model"):
        labels.pop(name, None)
    numbers = np.frombuffer(view, "<f8", n_numbers, _HEADER.size)
    origin, counts, products, means = np.split(
        numbers, np.cumsum([d, d * (d + 1) // 2, d * (d + 1) // 2])
    )
    return {
        "origin": origin,
        "counts": _from_lower(counts, d),
        "products": _from_lower(products, d),
        "means": means.reshape(d, d),
        "n_samples": n_samples,
        "single": kind == 4,
        **labels,
    }


def _from_lower(numbers: np.ndarray, d: int) -> np.ndarray:
    """Symmetric matrix with this lower triangle."""
    A = np.zeros((d, d))
    A[np.tril_indices(d)] = numbers
    A.T[np.tril_indices(d)] = numbers
    return A
