"""Lock on a file, for one writer at a time among threads and processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
    import msvcrt

# Byte that stands for the whole file on Windows, where a locked byte cannot be read.
_FAR = 2**40
# Seconds between two tries, on Windows.
_PAUSE = 0.05


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
