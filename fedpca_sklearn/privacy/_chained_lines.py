"""Lines of JSON in a file, each with a hash of itself and of all lines before it."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

from ._file_lock import sync_folder

# Bytes of a line at most, so that a file without line ends is not read whole.
LONGEST = 2**16
# What stands between the content of a line and its chain.
_MARK = b', "chain": '


def chain_of(line: bytes, before: str) -> str:
    """Chain of a line, which is written at its end: SHA-256 of the chain before and of the rest."""
    rest = line.rpartition(_MARK)[0]
    return hashlib.sha256(before.encode() + rest).hexdigest()


def chained(entry: dict[str, Any], before: str) -> bytes:
    """Line of a file that follows on a chain, "" for the first."""
    rest = json.dumps(entry)[:-1].encode() + _MARK
    return rest + f'"{chain_of(rest, before)}"}}\n'.encode()


def append_flushed(file: int, data: bytes, size: int, path: str) -> None:
    """Add lines at the end of a file of a size, on the disk, or take back what was written."""
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
        os.fsync(file)
        if not size:
            sync_folder(path)
    except BaseException:
        os.ftruncate(file, size)
        raise


def read_exactly(file: int, n: int) -> bytes:
    """The next n bytes of a file, fewer at its end."""
    parts, left = [], n
    while left and (part := os.read(file, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
