"""The point about which rows are clipped, found privately."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._exponential import range_of
from ._private_norm import Aim, check_bounds, check_share, cost_of_search, found_norm
from ._rows import ClippedRows, row_norms

__all__ = ["PrivateCenter"]

N_ROUNDS = 3
# What the norms of the rounds are for.
OF_ROUND = Aim(8, 10)
# Largest share of a round for the search of its norm, and the noise that is little enough.
_NORM, _ROWS = 0.4, 200
# Steps are taken if they are this many times sqrt(d) above d, in squares of the noise.
_ABOVE = 4


@dataclass(frozen=True)
class PrivateCenter:
    """A centre for clipping that is found privately: ``center=`` of a mechanism.

    Rows whose mean is far from the origin are long, and need much noise about the origin. A share
    of the budget finds a point near their mean, a release of its own in the account and a ledger.

    Parameters
    ----------
    bounds : tuple of float, default=(1e-3, 1e4)
        Between which lengths of rows the search looks, about the origin and about the points that
        it finds; see `PrivateNorm`. Public.
    share : float, default=0.15
        Largest share of the budget (of mu^2) of each release for the search. What it does not need,
        as of many rows, is spent on the release.

    Notes
    -----
    Up to three rounds. A round finds a norm R for the rows about the point so far, first the
    origin, as `PrivateNorm` does but for T = 0.4, so that few rows are clipped. Then it moves the
    point by the mean of the rows, clipped to R about that point, with Gaussian noise. A replaced
    row moves the sum of clipped rows by at most 2 R, so that noise of standard deviation 2 R / mu
    on each feature costs mu^2. R and the point were released before, and adaptive composition adds
    mu^2 up. The noise of the mean has a standard deviation of 2 R / (n mu), and a mean of squared
    norm a^2 tells of a move only if a^2 is beyond (d + 4 sqrt(d)) times the square of that. Then it
    is shortened by the factor of James and Stein, 1 - d (2 R / (n mu))^2 / a^2; otherwise the point
    stays, and the rounds end. So about a good point nothing is lost to noise, and from a far one
    each round comes nearer. Shortening is post-processing. What rounds that are left out would have
    cost is spent on the release: whatever was released before, all costs add up to its budget.

    Of the budget b of the release, as mu^2, a round takes (200 / n)^2 for its norm and b^(2/3)
    (d / n^2)^(1/3) for its mean, but at most 0.4 and 0.6 of a third of ``share``.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import AnalyzeGauss, FederatedPCA, make_spiked, subspace_distance
    >>> X, V = make_spiked(20_000, 30, spikes=[9.0, 4.0], random_state=0)
    >>> private = AnalyzeGauss(1.0, 1e-5, row_norm="private", center="private")
    >>> pca = FederatedPCA(2, mechanism=private, n_clients=1, random_state=0).fit(X + 100)
    >>> subspace_distance(pca.components_, V) < 0.1
    True
    """

    bounds: tuple[float, float] = (1e-3, 1e4)
    share: float = 0.15

    def __post_init__(self) -> None:
        check_bounds(self.bounds)
        check_share(self.share)

    def cost(self, n: float, d: int, mu2: float) -> float:
        """What the search costs at most, with all its rounds.

        Parameters
        ----------
        n : float
            Number of rows.
        d : int
            Number of columns.
        mu2 : float
            Budget of the release, as mu^2.

        Returns
        -------
        mu2 : float
            At most ``share`` of the budget.
        """
        return N_ROUNDS * (self._cost_of_norm(n, mu2) + self._cost_of_mean(n, d, mu2))

    def _cost_of_norm(self, n: float, mu2: float) -> float:
        return cost_of_search(n, mu2, _NORM * self.share / N_ROUNDS, _ROWS)

    def _rows_needed(self, mu2: float) -> float:
        """Rows of which the norm of a round is seldom far too large: 5 more in its exponent."""
        return 45 / range_of(_NORM * self.share / N_ROUNDS * mu2)

    def _cost_of_mean(self, n: float, d: int, mu2: float) -> float:
        enough = (d * mu2**2 / n**2) ** (1 / 3) if math.isfinite(mu2) else math.inf
        return min((1 - _NORM) * self.share / N_ROUNDS * mu2, enough)

    def found(
        self, X: Any, mechanism: Any, mu2: float, rng: np.random.Generator
    ) -> tuple[np.ndarray, float]:
        """A point near the mean of some rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Finite rows.
        mechanism : Mechanism
            Draws the noise on sums of rows.
        mu2 : float
            Budget of the release, of which the search takes its share; infinite: no noise.
        rng : Generator
            Random bits.

        Returns
        -------
        center : ndarray of shape (d,)
            The point.
        mu2 : float
            What the search has cost.
        """
        n, d = X.shape
        of_norm, of_mean = self._cost_of_norm(n, mu2), self._cost_of_mean(n, d, mu2)
        point, spent = np.zeros(d), 0.0
        for _ in range(N_ROUNDS):
            spent += of_norm + of_mean
            R = found_norm(row_norms(X, point), self.bounds, OF_ROUND, of_norm, rng)
            std = mechanism._sum_std(of_mean, d) * R
            total = mechanism._noisy(ClippedRows.of(X, point, R).sum(), std, rng)
            step = _step(total / n, std / n, R)
            if not step.any():
                break
            point = point + step
        return point, spent


def _step(mean: np.ndarray, std: float, R: float) -> np.ndarray:
    """A noisy mean of rows of norm R, shortened by what is noise; nothing if that may be all."""
    d, a = len(mean), float(np.linalg.norm(mean))
    if a**2 <= (d + _ABOVE * math.sqrt(d)) * std**2:
        return np.zeros(d)
    return mean * min(1 - d * std**2 / a**2, R / a)
