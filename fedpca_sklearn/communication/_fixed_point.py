"""Fixed point in a ring of integers: what masks can be added to, and a channel that rounds so."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from numbers import Integral, Real
from typing import Any

import numpy as np

from .._validation.intervals import Interval
from ._channel import Channel

__all__ = ["FixedPointChannel"]

# Exponents of the powers of two that bound what is sent. Smaller numbers than the least are zero;
# of the largest, 2^40 messages can be added up in float64.
LEAST, LARGEST = -960, 983
# Bits of a number beside its sign. Fewer than 22 lose what single precision keeps; of more than 60
# only a few messages could be added up.
FEWEST_BITS, MOST_BITS, DEFAULT_BITS = 22, 60, 50
# What sums stay below in absolute value: half of the ring of integers modulo 2^64.
_HALF = 2**63


class OutOfRangeError(ValueError):
    """A message does not fit the scale; the text tells nothing about its numbers."""


def exponent_of(values: Any) -> int:
    """Least e with all absolute values up to 2^e, or an error above the largest."""
    largest = float(np.abs(values).max(initial=0.0))
    fraction, exponent = np.frexp(largest)
    e = int(exponent) - int(fraction == 0.5)
    if not np.isfinite(largest) or e > LARGEST:
        raise OutOfRangeError(f"numbers above 2^{LARGEST} cannot be added up")
    return max(e, LEAST) if largest else LEAST


def encode(values: np.ndarray, exponent: Any, bits: int) -> np.ndarray:
    """Multiples of 2^(exponent - bits), rounded, as elements of the ring of integers modulo 2^64.

    ``exponent`` is one number, or one for each entry.

    Raises
    ------
    OutOfRangeError
        If an absolute value exceeds 2^exponent; nothing is clipped.
    """
    with np.errstate(over="ignore", under="ignore"):
        scaled = np.rint(np.ldexp(np.asarray(values, dtype=np.float64), bits - exponent))
    if not np.abs(scaled).max(initial=0.0) <= 2.0**bits:
        raise OutOfRangeError("a number is not within the scale")
    return scaled.astype(np.int64).view(np.uint64)


def decode(total: np.ndarray, exponent: Any, bits: int) -> np.ndarray:
    """The sum of real numbers whose elements of the ring add up to ``total``."""
    with np.errstate(under="ignore"):
        return np.ldexp(total.view(np.int64).astype(np.float64), exponent - bits)


def check_room(n_messages: int, bits: int) -> None:
    """Raise if the sum of so many messages could leave the ring."""
    if n_messages * 2**bits >= _HALF:
        raise ValueError(f"bits={bits} leaves no room to add up {n_messages} messages in 64 bits.")


class FixedPointChannel(Channel):
    """The sum of messages that were rounded to integers, as secure aggregation adds them up.

    Masks that hide a message and cancel in the sum need integers. Each number of a message is
    rounded to a multiple of a power of two, and the integers are added modulo 2^64; the sum is
    exact. It shows in one process what rounding costs over a network: at 50 bits no more than the
    arithmetic of float64.

    Parameters
    ----------
    bits : int, default=50
        Bits of a number besides its sign, from 22 to 60. The resolution is 2^-bits of the scale;
        2^(63 - bits) messages or more are an error.
    scale : float or None, default=None
        Bound on the absolute values in the message of a client, made a power of two upwards. A
        larger value is an error, and nothing is clipped; so is a bound at which the last entry
        of a vector is rounded to zero: it is a count in the rounds of this library. None: of each
        round the least power of two that is enough. Of a vector, the last entry then has a scale of
        its own.
    dropout : float in [0, 1) or array-like of shape (n_rounds, n_clients), default=0.0
        As in `Channel`.

    See Also
    --------
    PerfectChannel : The sum in floating point.

    Notes
    -----
    Rounding adds at most ``scale 2^-(bits + 1)`` to each number of each message. Time and memory
    are O(m) for messages of m numbers; without ``scale`` all messages of a round are held at once.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import FixedPointChannel
    >>> messages = [np.array([[0.1, 3.0]]), np.array([[0.2, -1.5]])]
    >>> total, n = FixedPointChannel(bits=22).receive(messages, np.random.RandomState(0))
    >>> n, total - [[0.3, 1.5]]
    (2, array([[1.90734863e-07, 0.00000000e+00]]))
    """

    _parameter_constraints: dict = {
        **Channel._parameter_constraints,
        "bits": [Interval(Integral, FEWEST_BITS, MOST_BITS, closed="both")],
        "scale": [Interval(Real, 0, 2.0**LARGEST, closed="right"), None],
    }

    def __init__(self, bits: int = DEFAULT_BITS, *, scale: float | None = None, dropout: Any = 0.0):
        super().__init__(dropout)
        self.bits = bits
        self.scale = scale

    def receive(
        self, messages: Iterable[np.ndarray], rng: np.random.RandomState
    ) -> tuple[np.ndarray | None, int]:
        """Add up integers modulo 2^64; see `Channel.receive`."""
        exponent: Any = None
        if self.scale is not None:
            exponent = exponent_of(self.scale)
        elif messages := list(messages):
            exponent = _least_exponents(messages)
        total, count = None, 0
        for message in messages:
            integers = encode(message, exponent, self.bits)
            if message.ndim == 1 and message[-1:].any() and not integers[-1:].any():
                raise OutOfRangeError(
                    f"scale={self.scale!r} is too large with bits={self.bits}: the last entry of "
                    "a message, which counts rows, is rounded to zero"
                )
            total = integers if total is None else np.add(total, integers, out=total)
            count += 1
        check_room(count, self.bits)
        return None if total is None else decode(total, exponent, self.bits), count


def _least_exponents(messages: list[np.ndarray]) -> Any:
    """Exponent that is enough for all messages; of vectors another one for the last entry."""
    largest = reduce(np.maximum, map(np.abs, messages))
    if largest.ndim != 1:
        return exponent_of(largest)
    exponents = np.full(len(largest), exponent_of(largest[:-1]))
    exponents[-1:] = exponent_of(largest[-1:])
    return exponents
