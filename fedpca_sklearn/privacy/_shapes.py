"""What a first release tells of the shape of rows, so that the second needs less noise.

In the spirit of CoinPress (Biswas, Dong, Kamath and Ullman 2020), with two rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.isotonic import isotonic_regression

# Part of the budget of second moments for the first of two releases.
FIRST = 0.25
# Powers of variances by which squares of rows are divided; the one with the least error is taken.
_POWERS = 0.0, 0.1, 0.2, 0.3, 0.4
# Least variance of a direction, over the noise of the first release off the diagonal.
_LEAST = 0.5
# By how much sums of squares of the two releases may differ; more is noise.
_UNLIKE = 2.0


def variances_along(values: np.ndarray, std: float) -> np.ndarray:
    """Expected variances along the eigenvectors of a noisy matrix, in the order of its eigenvalues.

    An eigenvector of a noisy eigenvalue x has the variance x - 2 std^2 sum_j 1 / (x - x_j) without
    the noise, for symmetric Gaussian noise of a standard deviation off the diagonal (Bun, Allez,
    Bouchaud and Potters 2016). Falls with the eigenvalues by isotonic regression.
    """
    x = values / std
    differences = x[:, None] - x
    found = x - 2 * (differences / (differences**2 + 0.25)).sum(axis=1)
    found = isotonic_regression(found, increasing=False)
    least = max(_LEAST, 1e-3 * float(found.mean()))
    return std * np.maximum(found, least)


def n_above(values: np.ndarray, std: float) -> int:
    """Directions that a release can tell from noise about the middle eigenvalue."""
    d = len(values)
    edge = max(0.0, float(np.median(values))) + 2 * std * np.sqrt(d)
    return min(int(np.sum(values > edge)), d - 1)


def turned(squares: np.ndarray, variances: np.ndarray, above: int) -> float:
    """Mean logarithm of how far noise turns components towards what is not above noise, squared."""
    if not above:
        return 0.0
    gaps = variances[:above, None] - variances[above:] + variances[-1]
    noise = 1 / (squares[:above, None] * squares[above:])
    return float(np.log((noise / gaps**2).sum(axis=1)).mean())


@dataclass(frozen=True, eq=False)
class Shape:
    """Directions and scales of a first release, in which rows are shortened for the second.

    Row y becomes z = a (U^T y) with larger scales a where the variance is smaller. Noise for rows z
    of a norm R is then smaller by 1 / (a_i a_j) in the entries of y: there is little noise where
    there is little variance. Squares a^2 = variance^(-1/2) have the least noise in all, (sum_i 1 /
    a_i^2) (sum_i a_i^2 variance_i), and equal scales keep more of few strong components over many
    equal variances. Of some powers that one is taken with the least expected turn of the components
    that are above noise. All follows from the released matrix, so that it costs nothing.
    """

    directions: np.ndarray  # (d, d), in columns
    scales: np.ndarray  # (d,)
    values: np.ndarray  # (d,), eigenvalues of the first release
    std: float  # its noise off the diagonal

    @classmethod
    def of(cls, M: np.ndarray, std: float) -> Shape:
        """The shape that a released second moment tells of."""
        values, directions = np.linalg.eigh(M)
        values, directions = values[::-1], directions[:, ::-1]
        variances, above = variances_along(values, std), n_above(values, std)
        choices = [variances**-power for power in _POWERS]
        choices = [w * (variances.sum() / float(w @ variances)) for w in choices]  # as long as rows
        errors = [turned(w, variances, above) for w in choices]
        return cls(directions, np.sqrt(choices[int(np.argmin(errors))]), values, std)

    @property
    def matrix(self) -> np.ndarray:
        """What rows are multiplied with from the right."""
        return self.directions * self.scales

    def _weights(self, M: np.ndarray, std: float) -> tuple[float, np.ndarray]:
        """Scale of the first release for the second one's, and weights of its entries."""
        squares = self.scales**2
        scale = float(np.trace(M)) / max(float(squares @ self.values), self.std)
        scale = min(max(scale, 1 / _UNLIKE), _UNLIKE)
        noise = scale * np.outer(self.scales, self.scales) * self.std
        return scale, std**2 / (std**2 + noise**2)

    def combined(self, M: np.ndarray, std: float) -> np.ndarray:
        """Mean of both releases by the noise of entries, in the coordinates of the second."""
        scale, weights = self._weights(M, std)
        first = np.diag(scale * self.scales**2 * self.values)
        return M + weights * (first - M)

    def moment(self, M: np.ndarray) -> np.ndarray:
        """A second moment of rows z as one of rows y."""
        M = M / np.outer(self.scales, self.scales)
        return self.directions @ M @ self.directions.T

    def mean(self, mean: np.ndarray) -> np.ndarray:
        """A mean of rows z as one of rows y."""
        return self.directions @ (mean / self.scales)

    def noise(self, std: float) -> float:
        """Noise off the diagonal of a matrix without shape whose edge is that of both releases.

        In the directions that the first release cannot tell from noise. There its eigenvalues x_i
        with their weights are known, and the noise of the second has variances of a sum v in a row.
        The edge of the two is the least t + v mean_i(1 / (t - x_i)) for t beyond all x_i (Pastur).
        """
        at = n_above(self.values, self.std)
        a = np.outer(self.scales[at:], self.scales[at:])
        weights = std**2 / (std**2 + (a * self.std) ** 2)
        rest = self.values[at:]
        first = np.diag(weights) * np.maximum(rest - max(0.0, float(np.median(rest))), 0.0)
        v = float((((1 - weights) * std / a) ** 2).sum(axis=1).max())
        beyond = np.geomspace(1e-3, 10, 400)[:, None] * (np.sqrt(v) + np.ptp(first))
        t = beyond + first.max()
        edge = float((t[:, 0] + v * (1 / (t - first)).mean(axis=1)).min())
        return edge / (2 * float(np.sqrt(len(first))))
