"""What is kept of the rows that were scored: recent p-values, and how many were flagged."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import betabinom

# T2 looks where single rows are the least surprising; of whole rows it is a part of the distance,
# too. So its p-value counts twice, as those of its family in a weighted Bonferroni correction.
_LESS = np.array([0.0, np.log(2), 0.0])
# Share of the scores that the tail stands for, and least number of them.
_TAIL, _LEAST_TAIL = 0.1, 10
# Where the line of the tail ends, in its means.
_FAR = 1e100
# Steps of the level, as a share of it: 0.005 at a level of 0.05. Rows that one limit has judged
# count as so many at most. The level falls so many times below zero at most, from where it takes as
# many rows to come back as scores are kept.
_STEP, _MOST_AT_ONCE, _FLOOR = 0.1, 200, 20
# Windows without drift whose numbers vary as those of independent rows, supposed before the first.
_WINDOWS = 8
# Share of a window of which all rows may be flagged together: windows just below an alarm, one
# after the other, could otherwise raise the number until no change gives an alarm.
_TOGETHER = 0.1


@dataclass(frozen=True, eq=False)
class ByVariances:
    """p-values as the variances have them: those of Q and T2, either with the same ``limit``.

    Below it T2 counts less, as rows that are near in the subspace are not usual for that.
    """

    limit: float

    def combined(self, surprises: np.ndarray) -> np.ndarray:
        """One number for each row, from minus the logarithms of p-values, (n, 3)."""
        t2 = surprises[:, 1] * np.minimum(surprises[:, 1] / self.limit, 1.0) ** 2
        return np.maximum(surprises[:, 0], t2)

    def parts(self, combined: float) -> np.ndarray:
        """The surprise of each kind at which `combined` is this, which is the limit or more."""
        return np.array([combined, combined, np.inf])


@dataclass(frozen=True, eq=False)
class ByScores:
    """p-values by the ranks among those of recent rows, continued by an exponential tail.

    Each of the three kinds has a line of corners ``surprises`` (m, 3), 0 first and one far away
    last, and ``heights`` (m,), minus the logarithms of the shares of rows above.
    """

    surprises: np.ndarray
    heights: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> ByScores:
        """Of recent rows (m, 3)."""
        m = len(values)
        ordered = np.concatenate([np.zeros((1, 3)), np.sort(values, axis=0)])
        heights = -np.log(np.arange(m + 1, 0, -1) / (m + 1))
        first = m - min(max(int(_TAIL * m), _LEAST_TAIL), m - 1)
        before = max(2 * first - m, 0)  # not from the tail itself, in which there may be outliers
        mean = (ordered[first] - ordered[before]) / (heights[first] - heights[before])
        far = ordered[first] + np.where(mean > 0, mean, 1.0) * _FAR
        return cls(
            np.concatenate([ordered[: first + 1], far[None]]),
            np.append(heights[: first + 1], heights[first] + _FAR),
        )

    def combined(self, surprises: np.ndarray) -> np.ndarray:
        """The largest of the three for each row, as minus the logarithm of a p-value."""
        found = np.empty(surprises.shape)
        for j in range(3):
            found[:, j] = np.interp(surprises[:, j], self.surprises[:, j], self.heights)
        return np.where(surprises > 0, found - _LESS, 0.0).max(axis=1, initial=0.0)

    def parts(self, combined: float) -> np.ndarray:
        """The surprise of each kind at which `combined` is this."""
        heights, ordered = combined + _LESS, self.surprises
        return np.array([np.interp(heights[j], self.heights, ordered[:, j]) for j in range(3)])


def upper(values: np.ndarray, level: float) -> float:
    """What another value like these exceeds with a probability of at most ``level``.

    The ceil((m + 1) (1 - level))-th smallest of m, which is exact for values without ties whose
    order is random, whatever their distribution is. Infinity where m is too small.
    """
    m = len(values)
    rank = max(int(np.ceil((m + 1) * (1 - level) * (1 - 1e-12))), 1)
    return float(np.partition(values, rank - 1)[rank - 1]) if rank <= m else np.inf


@dataclass(frozen=True)
class Limit:
    """Above which combined p-values are flagged; it rests on ``n_rows`` rows.

    ``level`` is that of the quantile. It grows while fewer rows are flagged than ``contamination``
    says, and falls while more are (adaptive conformal inference, Gibbs and Candes 2021), so that
    the share is right also while scores become smaller or larger.
    """

    value: float
    level: float
    n_rows: float

    def after(self, flagged: np.ndarray, contamination: float) -> Limit:
        """The same with the level after more rows, which were flagged or not by this limit."""
        counted = min(1.0, _MOST_AT_ONCE / max(len(flagged), 1))
        step = counted * _STEP * contamination * np.sum(contamination - flagged)
        return replace(self, level=float(np.clip(self.level + step, -_FLOOR * contamination, 0.5)))

    def by(self, combined: np.ndarray) -> Limit:
        """By recent rows: their quantile, or the largest where it is beyond them."""
        value = min(upper(combined, max(self.level, 0.0)), float(combined.max()))
        return Limit(value, self.level, len(combined))


@dataclass(frozen=True, eq=False)
class RecentScores:
    """The p-values of the last half of the rows since limits began, at most ``size`` of them.

    Half of the rows, so that what was scored while the model was still learning is forgotten as
    fast as it was learnt; ``enough`` of them, if there are as many. ``n_new`` rows have come, of
    which ``n_flagged`` were flagged, since limits were last taken from these.
    """

    size: int
    enough: int
    values: np.ndarray
    n_rows: int = 0
    n_new: int = 0
    n_flagged: int = 0

    def extended(self, values: np.ndarray, n_flagged: int = 0) -> RecentScores:
        """These and the values of more rows."""
        more, n_rows = len(values), self.n_rows + len(values)
        kept = max(min(n_rows // 2, self.size), self.enough)
        values = np.concatenate([self.values, values])[-kept:]
        n_flagged += self.n_flagged
        return RecentScores(self.size, self.enough, values, n_rows, self.n_new + more, n_flagged)

    def begun(self, values: np.ndarray) -> RecentScores:
        """With values of rows that one model has scored, all of which count."""
        n = 2 * len(values)
        return replace(self, values=values[-self.size :], n_rows=n, n_new=n)


@dataclass(frozen=True)
class DriftTest:
    """Whether more rows of a window are flagged than a limit that holds would flag.

    Windows of ``window`` rows follow each other. Where a limit rests on m rows, the number of
    flagged rows in a window is beta-binomial, and a window without drift gives an alarm with a
    probability of at most ``level``. Where flagged rows come together, numbers vary more: then m is
    what makes their variance that of the windows so far, ``n_windows`` without an alarm of which
    ``spread`` is the sum of squared deviations, over the variance of rows that are independent. An
    alarm comes as soon as the number is reached. It lasts until a window is without one; meanwhile
    there is no other. ``since`` are the rows since an alarm was given.
    """

    window: int
    level: float
    n_rows: int = 0
    n_flagged: int = 0
    n_total: int = 0
    since: float = np.inf
    lasts: bool = False
    points: tuple[int, ...] = ()
    n_windows: int = 0
    spread: float = 0.0

    def after(self, flagged: np.ndarray, contamination: float, m: float) -> DriftTest:
        """The state after more rows, which were flagged or not by a limit that rests on m rows.

        Rows after an alarm are not counted, as their limit is that of before.
        """
        most = self._most(contamination, m)
        now = replace(self, n_total=self.n_total + len(flagged), since=self.since + len(flagged))
        rows, n_flagged, lasts = self.n_rows, self.n_flagged, self.lasts
        for i, row in enumerate(flagged, 1):
            rows, n_flagged = rows + 1, n_flagged + int(row)
            if n_flagged > most and not lasts:
                point, rest = self.n_total + i, len(flagged) - i
                points = (*self.points, point)[-1000:]
                return replace(now, n_rows=0, n_flagged=0, lasts=True, since=rest, points=points)
            if rows == self.window:
                lasts = lasts and n_flagged > most
                if not lasts:
                    now = now._with_window(n_flagged, contamination)
                rows = n_flagged = 0
        return replace(now, n_rows=rows, n_flagged=n_flagged, lasts=lasts)

    def _most(self, contamination: float, m: float) -> int:
        """Flagged rows of a window up to which there is no alarm."""
        times = (_WINDOWS + self.spread) / (_WINDOWS + self.n_windows)
        times = min(times, _TOGETHER * self.window)
        if times > 1 and self.window > 1:
            m = min(m, max((self.window - times) / (times - 1), 0.0))
        alpha, beta = contamination * (m + 1), (1 - contamination) * (m + 1)
        return int(betabinom.isf(self.level, self.window, alpha, beta))

    def _with_window(self, n_flagged: int, contamination: float) -> DriftTest:
        """The state after a window without an alarm."""
        usual = contamination * self.window
        square = (n_flagged - usual) ** 2 / (usual * (1 - contamination))
        return replace(self, n_windows=self.n_windows + 1, spread=self.spread + square)
