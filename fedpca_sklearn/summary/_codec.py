r"""Binary form of a subspace summary: fixed little-endian layout, checksum, no pickle.

    offset  bytes        content
    0       8            magic ``b"FEDPCA\x00"`` and the format version, 3, or 4 with a model of
                         other columns than those of the summary: scaled, without confounders
    8       1            dtype of the components: 4 (float32) or 8 (float64)
    9       1            flags: 1, the summary is about the mean and not the origin; 2, the
                         scatter of each column follows the mean
    10      4            length l of the labels (uint32)
    14      2            number of sites in the labels (uint16)
    16      8            number of features d (uint64)
    24      8            number of components k (uint64)
    32      8            effective number of samples (float64)
    40      8            scatter (float64)
    48      8 d          mean (float64)
            8 d          scatter of each column (float64), with flag 2
            8 k          singular values (float64)
            itemsize k d components, row by row
            l            labels: UTF-8 JSON with ``feature_names``, ``site``, ``sites``,
                         ``privacy``, ``model`` (number of components, 1 if columns are scaled,
                         bound on the error, positions of the confounders), and the ``library`` and
                         version that wrote them
    -4      4            CRC-32 of everything before

Versions 1 and 2 are read as well: no flag 2 and no number of sites; version 1 without labels,
version 2 with names and one site. A release that reads up to version 3 overlooks a ``model``, and
takes components from the summary as it is; version 4 is for models where that would be wrong.

A reader knows the exact length from the first 48 bytes, and a bound on the labels from d; it
allocates nothing before it has compared them with the data and with the caller's bound.
"""

from __future__ import annotations

import os
import stat
import struct
import zlib
from contextlib import nullcontext
from typing import Any

import numpy as np

from .._validation.files import written
from ._labels import MAX_NAMES, decode_labels, encode_labels, max_bytes_of_labels

MAGIC = b"FEDPCA\x00"
VERSIONS = (1, 2, 3, 4)
HEADER = struct.Struct("<7sBBBIHQQdd")
CHECKSUM = struct.Struct("<I")
DTYPES: dict[int, np.dtype[Any]] = {4: np.dtype("<f4"), 8: np.dtype("<f8")}
_CENTERED, _COLUMN_SCATTER = 1, 2
# What other files are that this library writes, by the bytes that they start with.
_KINDS = {
    MAGIC: "a subspace summary",
    b"FEDANSW": "an answer to a refinement",
    b"FEDFILL": "an answer of filled rows",
    b"FEDPAIR": "moments of pairs",
}
_PIECE = 2**20


def encode(subspace: Any) -> bytes:
    """Serialise a summary."""
    k, d = subspace.components.shape
    labels = labels_of(subspace)
    columns = subspace.column_scatter
    itemsize = subspace.components.dtype.itemsize
    if subspace.feature_names is not None and d > MAX_NAMES:
        raise ValueError(f"feature_names must be at most {MAX_NAMES} in a file, got {d}.")
    header = HEADER.pack(
        MAGIC,
        _version_of(subspace.model),
        itemsize,
        _CENTERED * bool(subspace.centered) + _COLUMN_SCATTER * (columns is not None),
        len(labels),
        len(subspace.sites),
        d,
        k,
        subspace.n_samples,
        subspace.scatter,
    )
    arrays = [subspace.mean, *([] if columns is None else [columns]), subspace.singular_values]
    body = b"".join(
        [
            header,
            *(np.ascontiguousarray(array, dtype="<f8").tobytes() for array in arrays),
            np.ascontiguousarray(subspace.components, dtype=DTYPES[itemsize]).tobytes(),
            labels,
        ]
    )
    return sealed(body)


def sealed(body: bytes) -> bytes:
    """A body and its checksum."""
    return body + CHECKSUM.pack(zlib.crc32(body))


def check_seal(view: memoryview, corrupt: str) -> None:
    """Raise unless the checksum at the end is that of everything before."""
    end = len(view) - CHECKSUM.size
    if zlib.crc32(view[:end]) != CHECKSUM.unpack(view[end:])[0]:
        raise ValueError(f"{corrupt}: its checksum does not match.")


def header_of(
    view: memoryview, header: struct.Struct, magic: bytes, version: int, what: str
) -> tuple[Any, ...]:
    """Fields of the header behind its magic and version, or an error: it is not ``what``."""
    if len(view) < header.size + CHECKSUM.size:
        raise ValueError(f"Not {what}: {len(view)} bytes are too few.")
    found = header.unpack_from(view)
    if found[:2] != (magic, version):
        other = _KINDS.get(found[0]) if found[0] != magic else None
        why = "it does not start as one" if other is None else f"it is {other}"
        raise ValueError(f"Not {what}: {why}.")
    return found[2:]


def labels_of(subspace: Any) -> bytes:
    """Labels of a summary as they stand in its file."""
    s = subspace
    return encode_labels(s.feature_names, s.site, s.sites, s.privacy, s.model)


def _version_of(model: Any) -> int:
    """Version that no reader takes for another model than it is."""
    return 4 if model is not None and model.adjusts else 3


def decode(data, max_bytes: int) -> dict[str, Any]:
    """Parse what `encode` wrote; anything else is a ValueError."""
    view = view_of(data, max_bytes)
    if len(view) < HEADER.size + CHECKSUM.size:
        raise ValueError(f"Not a subspace summary: {len(view)} bytes are too few.")
    magic, version, itemsize, flags, n_labels, n_sites, d, k, n_samples, scatter = (
        HEADER.unpack_from(view)
    )
    if magic != MAGIC:
        found = _KINDS.get(magic)
        why = "it does not start with the expected bytes" if found is None else f"it is {found}"
        raise ValueError(f"Not a subspace summary: {why}.")
    if version not in VERSIONS:
        raise ValueError(
            f"Unknown summary format version {version}; this release reads versions "
            f"{VERSIONS[0]} to {VERSIONS[-1]}."
        )
    newest = version >= 3
    unknown = flags > (3 if newest else 1) or (n_sites and not newest)
    if itemsize not in DTYPES or unknown or (not newest and (n_labels > 0) != (version == 2)):
        raise ValueError("Corrupt subspace summary: invalid dtype or flags in its header.")
    if k > d:
        raise ValueError(f"Corrupt subspace summary: {k} components of {d} features.")
    n_columns = d if flags & _COLUMN_SCATTER else 0
    at_labels = HEADER.size + 8 * (d + n_columns + k) + itemsize * k * d
    expected = at_labels + n_labels + CHECKSUM.size
    if len(view) != expected:
        raise ValueError(
            f"Corrupt subspace summary: its header announces {expected} bytes, got {len(view)}."
        )
    n_names = min(d, MAX_NAMES)
    if n_labels > max_bytes_of_labels(n_names, n_sites):
        raise ValueError(
            f"Corrupt subspace summary: {n_labels} bytes of labels are too many for {d} features "
            f"and {n_sites} sites."
        )
    check_seal(view, "Corrupt subspace summary")
    labels = decode_labels(view[at_labels : at_labels + n_labels], n_names, n_sites)
    model = labels.get("model")
    if (version == 4) != (model is not None and any(model[1:3])):
        raise ValueError("Corrupt subspace summary: its labels are of a model of another version.")
    if newest and len(labels.get("sites", ())) != n_sites:
        raise ValueError("Corrupt subspace summary: its labels are not of as many sites.")
    doubles = np.frombuffer(view, "<f8", d + n_columns + k, HEADER.size)
    components = np.frombuffer(view, DTYPES[itemsize], k * d, HEADER.size + doubles.nbytes)
    native = DTYPES[itemsize].newbyteorder("=")
    return {
        "components": components.reshape(k, d).astype(native, copy=False),
        "singular_values": doubles[d + n_columns :],
        "mean": doubles[:d],
        "n_samples": n_samples,
        "scatter": scatter,
        "centered": bool(flags & _CENTERED),
        "column_scatter": doubles[d : 2 * d] if n_columns else None,
        **labels,
    }


def view_of(data: Any, max_bytes: int) -> memoryview:
    """The bytes of what may be anything, if they are not too many."""
    try:
        view = memoryview(data).cast("B")
    except TypeError as error:
        raise TypeError(f"data must be bytes-like, got {type(data).__name__}.") from error
    if len(view) > max_bytes:
        raise ValueError(_too_large(len(view), max_bytes))
    return view


def write(file: Any, data: bytes) -> None:
    """Write to a path, as a whole or not at all, or to a binary file object."""
    if hasattr(file, "write"):
        file.write(data)
        return
    file = _path(file)
    new = not os.path.exists(file) or stat.S_ISREG(os.stat(file).st_mode)
    with written(file) if new else nullcontext(file) as path, open(path, "wb") as stream:
        stream.write(data)


def read(file: Any, max_bytes: int) -> Any:
    """Bytes of a path or of a binary file object; one more than allowed if there are more.

    Of a regular file the size is looked at first, all else is read in pieces.
    """
    if not hasattr(file, "read"):
        check_regular(_path(file))
        with open(file, "rb") as stream:
            return read(stream, max_bytes)
    size = _size_left(file)
    if size is not None and size > max_bytes:
        raise ValueError(_too_large(size, max_bytes))
    data = bytearray()
    while len(data) <= max_bytes:
        piece = file.read(min(_PIECE, max_bytes + 1 - len(data)))
        if not isinstance(piece, bytes | bytearray | memoryview):
            return piece  # `decode` names what it is
        if not piece:
            break
        data += piece
    return data


def _path(file: Any) -> Any:
    """What names a file; a number would be taken for a stream of the process, and close it."""
    try:
        return os.fspath(file)
    except TypeError as error:
        kind = type(file).__name__
        raise TypeError(f"file must be a path or a binary file object, got {kind}.") from error


def check_regular(path: Any) -> None:
    """Raise for a path of a directory, a pipe, a device or a socket."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a named pipe"}
        kind = kinds.get(stat.S_IFMT(mode), "a device or a socket")
        raise ValueError(f"file must be a regular file, {os.fspath(path)!r} is {kind}.")


def _size_left(file: Any) -> int | None:
    """Bytes from here to the end of a regular file; None where that is not known."""
    try:
        info = os.fstat(file.fileno())
        return info.st_size - file.tell() if stat.S_ISREG(info.st_mode) else None
    except (AttributeError, OSError, TypeError, ValueError):
        return None


def _too_large(size: int, max_bytes: int) -> str:
    return (
        f"A summary of {size} bytes exceeds max_bytes={max_bytes}; raise max_bytes if it comes "
        "from a trusted source."
    )
