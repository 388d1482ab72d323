"""A channel for clients that may lie: the sum of the messages that agree."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import Any

import numpy as np

from .._kernels.majority import agreement_with_majority
from .._validation.intervals import Interval
from ._channel import Channel

__all__ = ["RobustSum"]

# A message is apart whose cosine with the others is lower than is typical by so many times what the
# majority reaches, or what a typical one lacks to 1, which are squares of angles; in any case by
# such a share of it.
_REACH_OF_SQUARES, _LOST = 8.0, 0.75
# Roundings of equal messages.
_ROUNDING = 1e-8
# Messages so many times as long as a typical one are apart.
_LONG = 10.0


class RobustSum(Channel):
    """The sum of the messages that agree with the majority, where a server sees each of them.

    Messages are compared by the cosines between them, so that clients may have more rows or fewer,
    and by their lengths. Who is apart in a round is left out of it, and who was in most rounds
    stays out.

    It is the opposite of a sum that hides its parts: with secure aggregation, over the air, or with
    a mechanism with ``trust="sum"``, which is refused, there is nothing to compare. For
    `FederatedPowerPCA`; other estimators refuse it, whose clients send what is not alike.

    Parameters
    ----------
    max_bad : int or None, default=None
        Clients that may be wrong, at most, fewer than half. None: as many as can be.

    Attributes
    ----------
    suspects_ : dict
        Position of a client -> share of the rounds in which it was apart, above a half.
        `FederatedPowerPCA` shows it by label.

    See Also
    --------
    RobustMerge : For one exchange of summaries.

    Notes
    -----
    The agreement of a message is the median of its cosines with the s - max_bad messages that agree
    best. Liars who know the rule stay just inside; see `RobustMerge`. Time O(s^2 m) for messages of
    m floats, memory O(s m): all messages of a round are held at once.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import FederatedPowerPCA, RobustSum, subspace_distance
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((1000, 8)) * [5, 4, 1, 1, 1, 1, 1, 1]
    >>> site = np.repeat(np.arange(10), 100)
    >>> X[site == 3] = 10 * X[site == 3, ::-1]
    >>> for channel in None, RobustSum():
    ...     pca = FederatedPowerPCA(2, channel=channel, random_state=0).fit(X, clients=site)
    ...     print(round(subspace_distance(pca.components_, np.eye(2, 8)), 2))
    1.0
    0.02
    >>> pca.suspects_
    {3: 1.0}
    """

    _parameter_constraints: dict = {"max_bad": [Interval(Integral, 0, None, closed="left"), None]}

    dropout = 0.0
    compares_clients = True

    def __init__(self, max_bad: int | None = None):
        self.max_bad = max_bad

    @property
    def loses_clients(self) -> bool:
        """Whether a message may not arrive: yes, that of a suspect."""
        return True

    def receive(
        self, messages: Iterable[np.ndarray], rng: np.random.RandomState
    ) -> tuple[np.ndarray | None, int]:
        """Add up those that agree; see `Channel.receive`."""
        sent = [np.asarray(message, dtype=np.float64) for message in messages]
        if not sent:
            return None, 0
        apart = _apart(np.stack([message.ravel() for message in sent]), self._most_bad(len(sent)))
        before: Any = getattr(self, "_rounds", (0, np.zeros(len(sent))))
        rounds, times = before[0] + 1, before[1] + apart
        self._rounds = rounds, times
        self.suspects_ = {i: m / rounds for i, m in enumerate(times.tolist()) if m > rounds / 2}
        left = [m for i, m in enumerate(sent) if not apart[i] and i not in self.suspects_]
        return (sum(left[1:], left[0].copy()) if left else None), len(sent)

    def _most_bad(self, n_clients: int) -> int:
        most = (n_clients - 1) // 2
        if self.max_bad is not None and self.max_bad > most:
            raise ValueError(
                f"max_bad={self.max_bad} must be fewer than half of the {n_clients} clients."
            )
        return most if self.max_bad is None else self.max_bad


def _apart(messages: np.ndarray, max_bad: int) -> np.ndarray:
    """Which of the messages are apart: at most ``max_bad``, those that agree least."""
    n_core = len(messages) - max_bad
    if not max_bad:
        return np.zeros(len(messages), dtype=bool)
    largest = np.abs(messages).max(axis=1, keepdims=True)
    units = messages / np.where(largest > 0, largest, 1.0)
    lengths = np.linalg.norm(units, axis=1)
    units /= np.where(lengths > 0, lengths, 1.0)[:, None]
    typical, core = agreement_with_majority(units @ units.T, n_core)
    middle, least = float(np.median(typical[core])), float(typical[core].min())
    limit = _REACH_OF_SQUARES * max(middle - least, 1 - middle, _ROUNDING)
    limit = min(limit, _LOST * max(middle, 0.0))
    lengths = lengths * largest[:, 0]
    too_long = lengths > _LONG * np.median(lengths)
    badness = np.where(too_long, np.inf, middle - typical)
    badness[core] = np.where(too_long[core], np.inf, -1.0)
    worst = np.argsort(-badness, kind="stable")[:max_bad]
    apart = np.zeros(len(messages), dtype=bool)
    apart[worst] = badness[worst] > limit
    return apart
