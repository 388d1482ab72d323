"""Messages of a server and its sites, and what a site keeps between them, whatever carries them."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Array:
    """An array as it travels: what `numpy.save` writes, and the shape that is announced."""

    data: bytes
    shape: tuple[int, ...]
    dtype: str
    stype: str = "numpy.ndarray"

    @classmethod
    def of(cls, values: Any) -> Array:
        """An array row by row, without Python objects."""
        array, buffer = np.asarray(values, order="C"), BytesIO()
        np.save(buffer, array, allow_pickle=False)
        return cls(buffer.getvalue(), array.shape, str(array.dtype))

    def numpy(self) -> np.ndarray:
        """The array, of bytes that this party has written."""
        return np.load(BytesIO(self.data), allow_pickle=False)


@dataclass(frozen=True)
class Message:
    """A question to one site, or what it replied: named arrays, and numbers and texts by name.

    Attributes
    ----------
    kind : str
        Kind of the question.
    config : dict
        Numbers, texts, bytes, and lists of them.
    arrays : dict of str to Array
    error : str or None
        Why there is no reply, as far as what carries messages knows.
    """

    kind: str
    config: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass
class Context:
    """Who a site is for what carries its messages, and what it keeps during a run.

    Attributes
    ----------
    node_id, run_id : int
    given : object
        What the owner's functions are called with: for Flower its own context.
    run_config : dict
        What the server has configured, and therefore knows.
    state : dict of str to dict
        Records by name, which nobody else reads: numbers, texts and bytes, or arrays.
    """

    node_id: int
    run_id: int
    given: Any = None
    run_config: Mapping[str, Any] = field(default_factory=dict)
    state: dict[str, dict[str, Any]] = field(default_factory=dict)


class Carrier(ABC):
    """What carries questions from a server to its sites, and replies back.

    It knows no estimator: it delivers `Message` objects. Sites are numbered.
    """

    @abstractmethod
    def nodes(self) -> list[int]:
        """Numbers of the sites that are there."""

    @abstractmethod
    def exchange(self, questions: dict[int, Message], timeout: float) -> dict[int, Message]:
        """The first reply of each site to the question that it was asked, by its number.

        A site is absent that has not replied within ``timeout`` seconds.
        """

    def nonce(self) -> str:
        """Random text of a question, which its reply has to repeat."""
        return secrets.token_hex(16)
