"""How the rows of a block fade: by a factor for each row, or with the time between rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

# The least share of the past that a rule keeps when a row comes, however long ago it was.
_LEAST = 1e-8


@dataclass(frozen=True)
class Fading:
    """Fading of the rows of a block.

    Attributes
    ----------
    factor : float
        On the weight of a row with each step.
    steps : ndarray of shape (m,)
        From the row before to each row: 1, or the half-lives between their times.
    """

    factor: float
    steps: np.ndarray

    @classmethod
    def by_rows(cls, factor: float, m: int) -> Fading:
        """Fading by a factor for each of m rows."""
        return cls(factor, np.ones(m))

    def __getitem__(self, rows: Any) -> Fading:
        return Fading(self.factor, self.steps[rows])

    @property
    def past(self) -> float:
        """What is left of rows before the block, at its end."""
        return float(self.factor ** self.steps.sum())

    @property
    def ages(self) -> np.ndarray:
        """Steps from each row to the end of the block."""
        at = np.cumsum(self.steps)
        return at[-1:] - at

    @property
    def factors(self) -> np.ndarray:
        """What each row leaves of the rows before it: of numbers that a rule divides by.

        After a long time 1e-8 is left, so that directions which later rows do not show stay.
        """
        return np.maximum(self.factor**self.steps, _LEAST)


@dataclass(frozen=True)
class Clock:
    """Time of the last row that was taken, and the times of those to come that are known by now."""

    last: np.datetime64 | None = None
    times: np.ndarray = field(default_factory=lambda: np.empty(0, "datetime64[s]"))

    @property
    def newest(self) -> np.datetime64 | None:
        """The latest time that is known."""
        return self.times[-1] if len(self.times) else self.last

    def with_more(self, times: np.ndarray) -> Clock:
        """Clock that knows the times of more rows, in their order."""
        newest = times[:1] if self.newest is None else np.array([self.newest])
        seen = np.concatenate([newest, times])
        back = np.flatnonzero(seen[1:] < seen[:-1])
        if len(back):
            raise ValueError(
                "times must not decrease, as a tracker takes rows in their order, got "
                f"{times[back[0]]} at row {back[0]}, after a later time."
            )
        return Clock(self.last, np.concatenate([self.times, times]))

    def steps(self, m: int, half_life: np.timedelta64) -> np.ndarray:
        """Half-lives between each of the next m rows and the row before it, 0 for the first one."""
        times = self.times[:m]
        before = times[:1] if self.last is None else np.array([self.last])
        return np.diff(np.concatenate([before, times])) / half_life

    def after(self, m: int) -> Clock:
        """Clock after m more rows."""
        if not len(self.times):
            return self
        rest = self.times[m:]  # of a large batch, unless little is left
        return Clock(self.times[m - 1], rest.copy() if len(rest) < m else rest)


NO_TIMES = Clock()
