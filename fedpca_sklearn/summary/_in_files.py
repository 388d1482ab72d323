"""Values that are written to files and read from files of strangers, without pickle."""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import Any, TypeVar

from .._validation.texts import check_text
from . import _codec

MAX_BYTES = 2**30
Value = TypeVar("Value", bound="InFiles")


class InFiles:
    """Write what ``to_bytes`` returns; read what ``from_bytes`` takes."""

    @abstractmethod
    def to_bytes(self) -> bytes:
        """Serialise without pickle.

        Returns
        -------
        data : bytes
            With what tells whether they have changed.
        """

    @classmethod
    @abstractmethod
    def _decoded(cls: type[Value], data: Any, max_bytes: int) -> Value:
        """Read what `to_bytes` wrote, or raise a ValueError."""

    @abstractmethod
    def _replace(self: Value, **changes: Any) -> Value:
        """The same with other values of some fields."""

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
        return cls._decoded(data, max_bytes)

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
        _codec.write(file, named.to_bytes())

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
        return cls.from_bytes(_codec.read(file, max_bytes), max_bytes=max_bytes)
