"""Channels: what the server receives when clients send at the same time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from .._validation.checks import is_real
from .._validation.intervals import Interval
from .._validation.parameters import allowed, with_parameters

__all__ = ["Channel", "FadingChannel", "GaussianChannel", "PerfectChannel"]


@with_parameters
class Channel(BaseEstimator, ABC):
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
        try:
            schedule = np.asarray(self.dropout, dtype=np.float64)
        except ValueError:
            schedule = np.empty(0)
        if schedule.ndim != 2 or not schedule.size or not np.isin(schedule, [0, 1]).all():
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
        if is_real(self.dropout):
            return rng.uniform(size=n_clients) >= self.dropout
        schedule = np.asarray(self.dropout, dtype=bool)
        if schedule.shape[1] != n_clients:
            raise ValueError(
                f"dropout must have a column for each of {n_clients} clients, got shape "
                f"{schedule.shape}."
            )
        return ~schedule[n_before % len(schedule)]

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


def check_channel(channel: Channel | None, *, alike: bool = False) -> None:
    """Raise an error that says what is wrong with a channel, for messages that are alike or not."""
    if channel is None:
        return
    channel.validate()
    if channel.compares_clients and not alike:
        raise ValueError(
            f"channel={channel!r} compares the messages of clients, which here are not alike even "
            "if all are honest: it is for FederatedPowerPCA."
        )


def _added(messages: Iterable[np.ndarray]) -> tuple[np.ndarray | None, int]:
    """Sum of messages, None of none, and their number."""
    total, count = None, 0
    for message in messages:
        count += 1
        total = message.astype(np.float64) if total is None else np.add(total, message, out=total)
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

    _parameter_constraints: dict = {
        **Channel._parameter_constraints,
        "noise_std": [Interval(Real, 0, None, closed="left")],
    }

    def __init__(self, noise_std: float = 1e-4, *, dropout: Any = 0.0):
        super().__init__(dropout)
        self.noise_std = noise_std

    def receive(self, messages, rng):
        """Add up, with noise; see `Channel.receive`."""
        return self._with_noise(*_added(messages), rng)

    def _with_noise(self, total, count, rng):
        if count and self.noise_std:
            total += self.noise_std * rng.standard_normal(total.shape)
        return total, count


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

    _parameter_constraints: dict = {
        **GaussianChannel._parameter_constraints,
        "pilot_std": [Interval(Real, 0, None, closed="left")],
        "max_power": [Interval(Real, 0, None, closed="neither")],
        "max_delay": [Interval(Integral, 0, None, closed="left")],
        "padding": [Interval(Integral, 0, None, closed="left"), None],
    }

    def __init__(
        self,
        noise_std: float = 1e-4,
        *,
        pilot_std: float = 0.0,
        max_power: float = 10.0,
        max_delay: int = 0,
        padding: int | None = None,
        dropout: Any = 0.0,
    ):
        super().__init__(noise_std, dropout=dropout)
        self.pilot_std = pilot_std
        self.max_power = max_power
        self.max_delay = max_delay
        self.padding = padding

    @property
    def loses_clients(self):
        """Whether a message may not arrive, or not whole: weak clients do not send."""
        return True

    def receive(self, messages, rng):
        """Add up what arrives of the messages; see `Channel.receive`."""
        return self._with_noise(*_added(self._arriving(messages, rng)), rng)

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
