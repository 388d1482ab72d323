"""What is kept of the rows that were scored: recent scores, and how many were flagged."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.stats import betabinom


@dataclass
class RecentScores:
    """The last scores, at most ``size``, and a quantile of theirs that a new one keeps."""

    size: int
    values: np.ndarray = field(default_factory=lambda: np.empty(0))

    def extended(self, scores: np.ndarray) -> RecentScores:
        """The last of these and of more scores."""
        return RecentScores(self.size, np.concatenate([self.values, scores])[-self.size :])

    def limit(self, level: float) -> float:
        """What another score like these exceeds with a probability of at most ``level``.

        The ceil((m + 1) (1 - level))-th smallest of m, which is exact for scores without ties
        whose order is random, whatever their distribution is. Infinity where m is too small.
        """
        m = len(self.values)
        rank = int(np.ceil((m + 1) * (1 - level) * (1 - 1e-12)))
        return float(np.partition(self.values, rank - 1)[rank - 1]) if rank <= m else np.inf


@dataclass
class DriftTest:
    """Whether more rows of a window are flagged than a limit that holds would flag.

    Windows of ``window`` rows follow each other. Where a limit rests on m rows, the number of
    flagged rows in a window is beta-binomial, and a window without drift gives an alarm with a
    probability of at most ``level``. An alarm comes as soon as the number is reached.
    """

    window: int
    level: float
    n_rows: int = 0
    n_flagged: int = 0
    n_total: int = 0
    points: tuple[int, ...] = ()

    def after(self, flagged: np.ndarray, contamination: float, m: float) -> DriftTest:
        """The state after more rows, which were flagged or not by a limit that rests on m rows."""
        alpha, beta = contamination * (m + 1), (1 - contamination) * (m + 1)
        most = int(betabinom.isf(self.level, self.window, alpha, beta))
        rows, n_flagged, total, points = self.n_rows, self.n_flagged, self.n_total, self.points
        for row in flagged:
            rows, total, n_flagged = rows + 1, total + 1, n_flagged + int(row)
            if n_flagged > most:
                points = (*points, total)[-1000:]
                rows = n_flagged = 0
            elif rows == self.window:
                rows = n_flagged = 0
        return DriftTest(self.window, self.level, rows, n_flagged, total, points)
