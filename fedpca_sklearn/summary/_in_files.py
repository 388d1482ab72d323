"""Files of strangers: regular ones, whose size is looked at before they are read."""

from __future__ import annotations

import os
import stat
from contextlib import nullcontext
from typing import Any

from .._validation.files import written

_PIECE = 2**20


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
        raise ValueError(too_large(size, max_bytes))
    data = bytearray()
    while len(data) <= max_bytes:
        piece = file.read(min(_PIECE, max_bytes + 1 - len(data)))
        if not isinstance(piece, bytes | bytearray | memoryview):
            return piece  # `view_of` names what it is
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


def too_large(size: int, max_bytes: int) -> str:
    """The message of data beyond a bound."""
    return (
        f"A summary of {size} bytes exceeds max_bytes={max_bytes}; raise max_bytes if it comes "
        "from a trusted source."
    )
