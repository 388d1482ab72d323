"""Files that are there as a whole or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def written(path: Any, new: int = 0o666) -> Iterator[str]:
    """Path of a file that takes the place of another if nothing fails, and is deleted otherwise.

    It has the permissions of the other one, or ``new``. Who reads meanwhile, or after a crash,
    finds the other one; of several writers the last one stays. A link stays one.
    """
    asked = os.fsdecode(path)
    path = os.path.realpath(asked)
    folder, name = os.path.split(path)
    partial = os.path.join(folder, f".{name[:40]}.{secrets.token_hex(8)}.part")
    mode, mine = None, True
    if os.path.exists(path):
        os.close(os.open(path, os.O_WRONLY))  # the error of a file that may not be written
        mode = stat.S_IMODE(os.stat(path).st_mode)
    try:
        try:
            opened = os.open(
                partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, new if mode is None else mode
            )
        except OSError as error:  # of the folder, about a name that nobody has asked for
            mine = False
            raise OSError(error.errno, error.strerror, asked) from None
        os.close(opened)
        if mode is not None:
            os.chmod(partial, mode)
        yield partial
        os.replace(partial, path)
    except BaseException:
        if mine:
            with suppress(FileNotFoundError):
                os.unlink(partial)
        raise
