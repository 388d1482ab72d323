"""Values that are written to files and read from files of strangers, without pickle."""

from __future__ import annotations

import os
import stat
from abc import abstractmethod
from contextlib import nullcontext
from typing import Any, ClassVar, TypeVar

import numpy as np

from .._validation.files import written
from .._validation.texts import check_text
from ._codec import LAYOUTS, decode, encode, too_large

MAX_BYTES = 2**30
_PIECE = 2**20
Value = TypeVar("Value", bound="InFiles")


class InFiles:
    """What is written to files, and read from files, by the layout of its kind.

    A subclass names its ``_kind`` in `_codec`, and what is stored.
    """

    _kind: ClassVar[int]

    @abstractmethod
    def _head(self) -> tuple[int, dict[str, Any]]:
        """Flags and numbers that are stored."""

    @abstractmethod
    def _labels(self) -> bytes:
        """Names and statements that are stored."""

    @abstractmethod
    def _stored(self) -> dict[str, np.ndarray]:
        """Arrays that are stored; a ValueError if a name may not stand in a file."""

    @classmethod
    @abstractmethod
    def _read(cls: type[Value], found: dict[str, Any]) -> Value:
        """The valid value of what `decode` has found, or a ValueError."""

    @abstractmethod
    def _replace(self: Value, **changes: Any) -> Value:
        """The same with other values of some fields."""

    @property
    def nbytes(self) -> int:
        """Length of `to_bytes`, without building it."""
        flags, numbers = self._head()
        return LAYOUTS[self._kind].size(flags, {**numbers, "labels": len(self._labels())})

    def to_bytes(self) -> bytes:
        """Serialise without pickle.

        Returns
        -------
        data : bytes
            ``nbytes`` of them: arrays and numbers, names and sites if there are any, and a
            checksum.

        Raises
        ------
        ValueError
            If a name may not stand in a file, see `Subspace`: columns of a data frame have any.
        """
        arrays = self._stored()
        return encode(self._kind, *self._head(), arrays, self._labels())

    @classmethod
    def from_bytes(cls: type[Value], data: Any, *, max_bytes: int = MAX_BYTES) -> Value:
        """Read what `to_bytes` wrote; the data need not be trusted.

        Parameters
        ----------
        data : bytes-like
            What `to_bytes` returned.
        max_bytes : int, default=2**30
            Larger data is refused before anything is allocated.

        Returns
        -------
        value : object of this class
            What was written.

        Raises
        ------
        ValueError
            If the data is anything but valid.
        """
        found = decode(data, cls._kind, max_bytes)
        with np.errstate(all="ignore"):  # hostile values are judged by the validation
            return cls._read(found)

    def save(self, file: str | os.PathLike | Any, *, site: str | None = None) -> None:
        """Write `to_bytes` to a path or a binary file object.

        A file at the path is there as a whole or not at all, also if something fails.

        Parameters
        ----------
        file : path or file object
            Where to write; a file at the path is replaced, and its permissions are kept.
        site : str, default=None
            Who the rows belong to, written into the file. None: the ``site`` that is known.
        """
        named = self if site is None else self._replace(site=check_text("site", site))
        _write(file, named.to_bytes())

    @classmethod
    def load(
        cls: type[Value], file: str | os.PathLike | Any, *, max_bytes: int = MAX_BYTES
    ) -> Value:
        """Read from a path or a binary file object; see `from_bytes`.

        Parameters
        ----------
        file : path or file object
            Of a regular file; its size is looked at before it is read. A directory, a named pipe
            or a device is a ValueError.
        max_bytes : int, default=2**30
            A larger file is refused before anything is allocated.

        Returns
        -------
        value : object of this class
            What was written.
        """
        return cls.from_bytes(_read_file(file, max_bytes), max_bytes=max_bytes)


def _write(file: Any, data: bytes) -> None:
    """Write to a path, as a whole or not at all, or to a binary file object."""
    if hasattr(file, "write"):
        file.write(data)
        return
    file = _path(file)
    new = not os.path.exists(file) or stat.S_ISREG(os.stat(file).st_mode)
    with written(file) if new else nullcontext(file) as path, open(path, "wb") as stream:
        stream.write(data)


def _read_file(file: Any, max_bytes: int) -> Any:
    """Bytes of a path or of a binary file object; one more than allowed if there are more.

    Of a regular file the size is looked at first, all else is read in pieces.
    """
    if not hasattr(file, "read"):
        check_regular(_path(file))
        with open(file, "rb") as stream:
            return _read_file(stream, max_bytes)
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
