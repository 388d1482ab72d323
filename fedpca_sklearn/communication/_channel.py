"""Channels: what the server receives when clients send at the same time, also as integers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import field
from functools import reduce
from numbers import Integral, Real
from typing import Any

import numpy as np

from .._validation.checks import Interval, Strategy, allowed, float_array, is_real, with_parameters

# Exponents of the powers of two that bound what is sent. Smaller numbers than the least are zero;
# of the largest, 2^40 messages can be added up in float64.
LEAST, LARGEST = -960, 983
# Bits of a number beside its sign. Fewer than 22 lose what single precision keeps; of more than 60
# only a few messages could be added up.
FEWEST_BITS, MOST_BITS, DEFAULT_BITS = 22, 60, 50
# What sums stay below in absolute value: half of the ring of integers modulo 2^64.
_HALF = 2**63


@with_parameters
class Channel(Strategy):
    """Base of the channels, on which the messages of a round add up.

    A subclass writes ``receive(messages, rng)``: an iterable of arrays of one shape and a random
    state in; what arrives of them, one array of that shape, or None if nobody sends, and the number
    of messages in it out. Where a message may not arrive, or not whole, it writes the property
    `loses_clients` as well. All have a parameter ``dropout``.

    Parameters
    ----------
    dropout : float in [0, 1) or array-like of shape (n_rounds, n_clients), default=0.0
        Probability with which a client takes no part in a round, or the schedule of those that do
        not (True), begun again when it ends.
    """

    # Whether messages are compared, which must then be seen, and be alike where clients are.
    compares_clients = False
    # Whether a client was left out in the midst of rounds, which then begin again without it.
    begins_again = False

    dropout: Any = allowed(Interval(Real, 0, 1, closed="left"), "array-like", default=0.0)

    def validate(self) -> None:
        """Raise a ValueError that names a wrong parameter; estimators call it before they start."""
        self._validate_params()
        if is_real(self.dropout):
            return
        schedule = float_array("dropout", self.dropout, 2)
        if not len(schedule) or not np.isin(schedule, [0, 1]).all():
            raise ValueError(
                "dropout must be a probability or of shape (n_rounds, n_clients), with a round or "
                f"more of True and False, got {self.dropout!r}."
            )

    @property
    def loses_clients(self) -> bool:
        """Whether a message may not arrive, or not whole."""
        return bool(np.any(self.dropout))

    def present(self, n_clients: int, n_before: int, rng: np.random.RandomState) -> np.ndarray:
        """Draw the clients that take part in a round.

        Parameters
        ----------
        n_clients : int
            Number of clients that could take part.
        n_before : int
            Rounds before this one.
        rng : RandomState
            Random numbers of the channel.

        Returns
        -------
        present : ndarray of shape (n_clients,), bool
            True where a client takes part.
        """
        schedule = np.asarray(self.dropout)
        if not schedule.ndim:
            return rng.uniform(size=n_clients) >= schedule
        if schedule.shape[1] != n_clients:
            raise ValueError(
                f"dropout must have a column for each of {n_clients} clients, got shape "
                f"{schedule.shape}."
            )
        return ~schedule[n_before % len(schedule)].astype(bool)

    def taken(self, question: Any, answers: Iterable[np.ndarray]) -> Iterable[np.ndarray]:
        """Return the messages of a round that are added up: all, unless a channel compares them.

        Parameters
        ----------
        question : callable
            What clients were asked.
        answers : iterable of ndarray
            Messages of those that were `present`, in order.

        Returns
        -------
        taken : iterable of ndarray
            For `receive`.
        """
        return answers

    @abstractmethod
    def receive(
        self, messages: Iterable[np.ndarray], rng: np.random.RandomState
    ) -> tuple[np.ndarray | None, int]:
        """Return the sum of messages, all sent at the same time, as the server receives it.

        Parameters
        ----------
        messages : iterable of ndarray
            One array of each client that takes part, all of the same shape.
        rng : RandomState
            Random numbers of the channel.

        Returns
        -------
        total : ndarray or None
            All that arrives of them: one array. None if nobody sends.
        n_sent : int
            Number of messages in it.
        """


def check_channel(channel: Channel | None, *, comparable: bool = False) -> None:
    """Raise an error that says what is wrong with a channel, for messages that are alike or not."""
    if channel is None:
        return
    channel.validate()
    if channel.compares_clients and not comparable:
        raise ValueError(
            f"channel={channel!r} compares the messages of clients, which here are not alike even "
            "if all are honest: it is for FederatedPowerPCA."
        )


def _added(messages: Iterable[np.ndarray], dtype: Any = np.float64) -> tuple[Any, int]:
    """Sum of messages, None of none, and their number."""
    total, count = None, 0
    for message in messages:
        count += 1
        total = message.astype(dtype) if total is None else np.add(total, message, out=total)
    return total, count


class PerfectChannel(Channel):
    """The sum of the messages, or secure aggregation.

    Parameters
    ----------
    dropout : float in [0, 1) or array-like of shape (n_rounds, n_clients), default=0.0
        As in `Channel`.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import PerfectChannel
    >>> PerfectChannel().receive([np.ones(2), np.array([1.0, 2.0])], np.random.RandomState(0))
    (array([2., 3.]), 2)
    """

    def receive(self, messages, rng):
        """Add up; see `Channel.receive`."""
        return _added(messages)


@with_parameters
class GaussianChannel(Channel):
    """The sum of the messages and white noise, fresh in each round (over-the-air computation).

    Parameters
    ----------
    noise_std : float, default=1e-4
        Standard deviation of the noise on each entry of the sum, in units of the messages.
    dropout : float in [0, 1) or array-like of shape (n_rounds, n_clients), default=0.0
        As in `Channel`.

    References
    ----------
    .. [1] P. Narayanamurthy, N. Vaswani, A. Ramamoorthy, "Federated over-air subspace tracking from
       incomplete and corrupted data", IEEE Transactions on Signal Processing 2022, section IV.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import GaussianChannel
    >>> total, n = GaussianChannel(0.1).receive([np.zeros(10_000)] * 3, np.random.RandomState(0))
    >>> round(float(total.std()), 3), n
    (0.099, 3)
    """

    noise_std: float = allowed(Interval(Real, 0, None, closed="left"), default=1e-4)
    dropout: Any = field(default=0.0, kw_only=True)

    def receive(self, messages, rng):
        """Add up, with noise; see `Channel.receive`."""
        total, count = _added(self._arriving(messages, rng))
        if count and self.noise_std:
            total += self.noise_std * rng.standard_normal(total.shape)
        return total, count

    def _arriving(self, messages, rng):
        return messages


@with_parameters
class FadingChannel(GaussianChannel):
    """The sum over fading links, which clients compensate as far as their power allows.

    In each round every client has a complex gain h (Rayleigh fading, of mean square 1), which it
    estimates from a pilot and compensates by sending its message over the estimate. One whose gain
    is so weak that this takes more than ``max_power`` does not send. Clients start up to
    ``max_delay`` entries late; messages end with ``padding`` zeros, within which a late one still
    arrives whole. The delay is known from the pilot.

    Parameters
    ----------
    noise_std : float, default=1e-4
        As in `GaussianChannel`.
    pilot_std : float, default=0.0
        Root mean square of the error of the estimated gain. What arrives is then weaker, by 1 / (1
        + pilot_std^2) on average.
    max_power : float, default=10.0
        Power over that of the message from which on a client does not send: with perfect pilots a
        share of 1 - exp(-1 / max_power) of all.
    max_delay : int, default=0
        Delays are uniform from 0 to this.
    padding : int or None, default=None
        None: ``max_delay``. With fewer the last entries of late messages are lost.
    dropout : float in [0, 1) or array-like of shape (n_rounds, n_clients), default=0.0
        As in `Channel`, before fading.

    References
    ----------
    .. [1] P. Narayanamurthy, N. Vaswani, A. Ramamoorthy, "Federated over-air subspace tracking from
       incomplete and corrupted data", IEEE Transactions on Signal Processing 2022, section IV-A.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import FadingChannel
    >>> rng = np.random.RandomState(0)
    >>> total, n = FadingChannel(0.0, max_power=2).receive([np.ones(2)] * 1000, rng)
    >>> n, total  # 1000 exp(-1 / 2) = 607 are expected
    (597, array([597., 597.]))
    """

    pilot_std: float = allowed(Interval(Real, 0, None, closed="left"), default=0.0)
    max_power: float = allowed(Interval(Real, 0, None, closed="neither"), default=10.0)
    max_delay: int = allowed(Interval(Integral, 0, None, closed="left"), default=0)
    padding: int | None = allowed(Interval(Integral, 0, None, closed="left"), None, default=None)

    @property
    def loses_clients(self):
        """Whether a message may not arrive, or not whole: weak clients do not send."""
        return True

    def _arriving(self, messages, rng):
        padding = self.max_delay if self.padding is None else self.padding
        for message in messages:
            gain, error = rng.standard_normal((2, 2)) @ [1, 1j] / np.sqrt(2)
            delay = rng.randint(self.max_delay + 1)
            estimate = gain + self.pilot_std * error
            if abs(estimate) ** -2 > self.max_power:
                continue
            arriving = (gain / estimate).real * message
            lost = min(max(delay - padding, 0), arriving.size)
            arriving.flat[arriving.size - lost :] = 0.0
            yield arriving


# -------------------------------------------------------------------- fixed point in a ring


def exponents_of(values: Any) -> np.ndarray:
    """Least e with an absolute value up to 2^e, of each, from `LEAST` to `LARGEST`."""
    fractions, exponents = np.frexp(np.abs(np.ravel(values).astype(np.float64)))
    found = np.where(fractions == 0, LEAST, exponents - (fractions == 0.5))
    return found.clip(LEAST, LARGEST).astype(np.int64)


def exponent_of(values: Any) -> int:
    """Least e with all absolute values up to 2^e, or an error above the largest."""
    largest = np.abs(values).max(initial=0.0)
    if not largest <= 2.0**LARGEST:
        raise ValueError(f"numbers above 2^{LARGEST} cannot be added up")
    return int(exponents_of(largest)[0])


def encode(values: np.ndarray, exponent: Any, bits: int) -> np.ndarray:
    """Multiples of 2^(exponent - bits), rounded, as elements of the ring of integers modulo 2^64.

    ``exponent`` is one number, or one for each entry.

    Raises
    ------
    ValueError
        If an absolute value exceeds 2^exponent; nothing is clipped, and the text has no number.
    """
    with np.errstate(over="ignore"):
        scaled = np.rint(np.ldexp(np.asarray(values, dtype=np.float64), bits - exponent))
    if not np.abs(scaled).max(initial=0.0) <= 2.0**bits:
        raise ValueError("a number is not within the scale")
    return scaled.astype(np.int64).view(np.uint64)


def decode(total: np.ndarray, exponent: Any, bits: int) -> np.ndarray:
    """The sum of real numbers whose elements of the ring add up to ``total``."""
    return np.ldexp(total.view(np.int64).astype(np.float64), exponent - bits)


def check_room(n_messages: int, bits: int) -> None:
    """Raise if the sum of so many messages could leave the ring."""
    if n_messages * 2**bits >= _HALF:
        raise ValueError(f"bits={bits} leaves no room to add up {n_messages} messages in 64 bits.")


@with_parameters
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
    dropout : float in [0, 1) or array-like of shape (n_rounds, n_clients), default=0.0
        As in `Channel`.
    scale : float or None, default=None
        Bound on the absolute values in the message of a client, made a power of two upwards. A
        larger value is an error, and nothing is clipped; so is a bound at which the last entry
        of a vector is rounded to zero: it is a count in the rounds of this library. None: of each
        round the least power of two that is enough. Of a vector, the last entry then has a scale of
        its own.

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

    bits: int = allowed(
        Interval(Integral, FEWEST_BITS, MOST_BITS, closed="both"), default=DEFAULT_BITS
    )
    scale: float | None = allowed(
        Interval(Real, 0, 2.0**LARGEST, closed="right"), None, default=None, kw_only=True
    )
    dropout: Any = field(default=0.0, kw_only=True)

    def receive(self, messages, rng):
        """Add up integers modulo 2^64; see `Channel.receive`."""
        exponent: Any = None
        if self.scale is not None:
            exponent = exponent_of(self.scale)
        elif messages := list(messages):
            largest = reduce(np.maximum, map(np.abs, messages))
            exponent = exponent_of(largest)
            if largest.ndim == 1:  # the last entry has a scale of its own
                exponent = np.full(len(largest), exponent_of(largest[:-1]))
                exponent[-1:] = exponent_of(largest[-1:])

        def integers_of(message: np.ndarray) -> np.ndarray:
            integers = encode(message, exponent, self.bits)
            if message.ndim == 1 and message[-1:].any() and not integers[-1:].any():
                raise ValueError(
                    f"scale={self.scale!r} is too large with bits={self.bits}: the last entry of "
                    "a message, which counts rows, is rounded to zero"
                )
            return integers

        total, count = _added(map(integers_of, messages), np.uint64)
        check_room(count, self.bits)
        return None if total is None else decode(total, exponent, self.bits), count
