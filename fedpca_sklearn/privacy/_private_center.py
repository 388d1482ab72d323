"""The point about which rows are clipped, found privately."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ._private_norm import Aim, check_bounds, check_share, found_norm
from ._rows import ClippedRows, row_norms

__all__ = ["PrivateCenter"]

# What the norms of the rounds are for; each round comes closer.
ROUNDS = (Aim(6, 12), Aim(6, 12))
# Share of a round for the search of its norm.
_NORM = 0.4


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
    share : float, default=0.12
        Share of the budget (of mu^2) of each release that the search costs.

    Notes
    -----
    Two rounds, each with half of the share. A round finds a norm R for the rows about the point so
    far, first the origin, as `PrivateNorm` does but for a mean weight of 0.15, so that few rows are
    clipped, with 0.4 of its part. The rest pays for the mean of the rows, clipped to R
    about that point, with Gaussian noise. A replaced row moves the sum of clipped rows by at most
    2 R, so that noise of standard deviation 2 R / mu on each feature costs mu^2. R and the point
    were released before, and adaptive composition adds mu^2 up. The mean is off by 2 R sqrt(d) / (n
    mu), which is far less than R for many rows, so that the second round begins nearer. The result
    is the average of the points of both rounds with weights 1 / R^2, by which their noise is least;
    that, and shortening a mean to R, are post-processing.

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
    share: float = 0.12

    def __post_init__(self) -> None:
        check_bounds(self.bounds)
        check_share(self.share)

    def found(self, X: Any, mechanism: Any, mu2: float, rng: np.random.Generator) -> np.ndarray:
        """A point near the mean of some rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Finite rows.
        mechanism : Mechanism
            Draws the noise on sums of rows.
        mu2 : float
            What the search may cost, as mu^2; infinite: without noise.
        rng : Generator
            Random bits.

        Returns
        -------
        center : ndarray of shape (d,)
            The point.
        """
        n, d = X.shape
        of_round = mu2 / len(ROUNDS)
        points, weights = [np.zeros(d)], []
        for aim in ROUNDS:
            point = points[-1]
            of_rows = row_norms(X, point)
            R = found_norm(of_rows, self.bounds, aim, _NORM * of_round, rng)
            std = mechanism._sum_std((1 - _NORM) * of_round, d) * R
            total = mechanism._noisy(ClippedRows.of(X, point, R).sum(), std, rng)
            mean = total / n
            mean *= min(1.0, R / (float(np.linalg.norm(mean)) or 1.0))
            points.append(point + mean)
            weights.append(1 / R**2)
        return np.average(points[1:], axis=0, weights=weights)
