r"""Binary form of a subspace summary: fixed little-endian layout, checksum, no pickle.

    offset  bytes        content
    0       8            magic ``b"FEDPCA\x00\x01"`` (the last byte is the format version)
    8       1            dtype of the components: 4 (float32) or 8 (float64)
    9       1            1 if the summary is about the mean, 0 if about the origin
    10      6            zero
    16      8            number of features d (uint64)
    24      8            number of components k (uint64)
    32      8            effective number of samples (float64)
    40      8            scatter (float64)
    48      8 d          mean (float64)
            8 k          singular values (float64)
            itemsize k d components, row by row
    -4      4            CRC-32 of everything before

A reader knows the exact length from the first 48 bytes and allocates nothing before it has
compared that length with the data and with the caller's bound.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np

MAGIC = b"FEDPCA\x00\x01"
HEADER = struct.Struct("<8sBB6sQQdd")
CHECKSUM = struct.Struct("<I")
DTYPES = {4: np.dtype("<f4"), 8: np.dtype("<f8")}


def encode(components, singular_values, mean, n_samples, scatter, centered) -> bytes:
    """Serialise the fields of a summary."""
    k, d = components.shape
    header = HEADER.pack(
        MAGIC, components.dtype.itemsize, bool(centered), bytes(6), d, k, n_samples, scatter
    )
    body = b"".join(
        [
            header,
            np.ascontiguousarray(mean, dtype="<f8").tobytes(),
            np.ascontiguousarray(singular_values, dtype="<f8").tobytes(),
            np.ascontiguousarray(components, dtype=DTYPES[components.dtype.itemsize]).tobytes(),
        ]
    )
    return body + CHECKSUM.pack(zlib.crc32(body))


def decode(data, max_bytes: int) -> dict[str, Any]:
    """Parse what `encode` wrote; anything else is a ValueError."""
    try:
        view = memoryview(data).cast("B")
    except TypeError as error:
        raise TypeError(f"data must be bytes-like, got {type(data).__name__}.") from error
    if len(view) > max_bytes:
        raise ValueError(
            f"A summary of {len(view)} bytes exceeds max_bytes={max_bytes}; raise max_bytes if "
            "it comes from a trusted source."
        )
    if len(view) < HEADER.size + CHECKSUM.size:
        raise ValueError(f"Not a subspace summary: {len(view)} bytes are too few.")
    magic, itemsize, centered, padding, d, k, n_samples, scatter = HEADER.unpack_from(view)
    if magic[:7] != MAGIC[:7]:
        raise ValueError("Not a subspace summary: it does not start with the expected bytes.")
    if magic != MAGIC:
        raise ValueError(
            f"Unknown summary format version {magic[7]}; this release reads version {MAGIC[7]}."
        )
    if itemsize not in DTYPES or centered > 1 or any(padding):
        raise ValueError("Corrupt subspace summary: invalid dtype or flags in its header.")
    if k > d:
        raise ValueError(f"Corrupt subspace summary: {k} components of {d} features.")
    expected = HEADER.size + 8 * d + 8 * k + itemsize * k * d + CHECKSUM.size
    if len(view) != expected:
        raise ValueError(
            f"Corrupt subspace summary: its header announces {expected} bytes, got {len(view)}."
        )
    body, (checksum,) = view[: -CHECKSUM.size], CHECKSUM.unpack(view[-CHECKSUM.size :])
    if zlib.crc32(body) != checksum:
        raise ValueError("Corrupt subspace summary: its checksum does not match.")
    at = HEADER.size
    mean = np.frombuffer(view, "<f8", d, at).astype(np.float64)
    singular_values = np.frombuffer(view, "<f8", k, at + 8 * d).astype(np.float64)
    components = np.frombuffer(view, DTYPES[itemsize], k * d, at + 8 * d + 8 * k).reshape(k, d)
    return {
        "components": components.astype(DTYPES[itemsize].newbyteorder("=")),
        "singular_values": singular_values,
        "mean": mean,
        "n_samples": n_samples,
        "scatter": scatter,
        "centered": bool(centered),
    }
