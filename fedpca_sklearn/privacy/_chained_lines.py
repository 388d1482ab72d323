"""Files of lines of JSON, each with a hash of itself and of all lines before it; one writer."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
    import msvcrt

# Bytes of a line at most, so that a file without line ends is not read whole.
LONGEST = 2**16
# What stands between the content of a line and its chain.
_MARK = b', "chain": '
# Byte that stands for the whole file on Windows, where a locked byte cannot be read.
_FAR = 2**40
# Seconds between two tries, on Windows.
_PAUSE = 0.05


def chain_of(line: bytes, before: str) -> str:
    """Chain of a line, which is written at its end: SHA-256 of the chain before and of the rest."""
    rest = line.rpartition(_MARK)[0]
    return hashlib.sha256(before.encode() + rest).hexdigest()


def chained(entry: dict[str, Any], before: str) -> bytes:
    """Line of a file that follows on a chain, "" for the first."""
    rest = json.dumps(entry)[:-1].encode() + _MARK
    return rest + f'"{chain_of(rest, before)}"}}\n'.encode()


def followed(
    stream: Any, known: Any, after: Callable[..., Any], error: Callable[[str], Exception]
) -> Any:
    """What is known after the whole lines that a stream goes on with.

    ``known`` has the ``chain`` and ``n_lines`` of those before, and ``after(known, line, entry)``
    is the same with one more. ``error(text)`` is raised where a line is not what was written.
    """
    while (line := stream.readline(LONGEST)).endswith(b"\n"):
        try:
            entry = json.loads(line)
            if entry["chain"] != chain_of(line, known.chain):
                raise ValueError("it does not continue the lines before")
            known = after(known, line, entry)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as why:
            text = f"is not what was written from line {known.n_lines + 1} on: {why}"
            raise error(text) from None
    if len(line) == LONGEST:
        raise error(f"has a line {known.n_lines + 1} without an end")
    return known


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


@contextmanager
def locked(path: str) -> Iterator[int]:
    """Open a file to read and append, made if it is not there, and hold its lock.

    Each call opens the file anew, so that its lock excludes other threads as well.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
    try:
        _lock(descriptor)
        yield descriptor
    finally:
        os.close(descriptor)  # which gives the lock back


def _lock(descriptor: int) -> None:
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return
    while True:
        os.lseek(descriptor, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            time.sleep(_PAUSE)
        else:
            return


def sync_folder(path: str) -> None:
    """Flush the entry of a new file in its folder to disk, where folders can be opened."""
    try:
        descriptor = os.open(os.path.dirname(path), os.O_RDONLY)
    except OSError:  # Windows
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
