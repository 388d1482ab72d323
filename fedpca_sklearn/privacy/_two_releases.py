"""What the first of two private releases tells for the second: the shape of rows, a longer norm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.isotonic import isotonic_regression

from ._rows import ClippedRows, blocks_about, row_norms

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


def n_above_edge(values: np.ndarray, std: float) -> int:
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
    counts: bool = (
        True  # whether it is averaged with the second, as rows are shortened to the same norm
    )

    @classmethod
    def of(cls, M: np.ndarray, std: float) -> Shape:
        """The shape that a released second moment tells of."""
        values, directions = np.linalg.eigh(M)
        values, directions = values[::-1], directions[:, ::-1]
        variances, above = variances_along(values, std), n_above_edge(values, std)
        choices = [variances**-power for power in _POWERS]
        choices = [w * (variances.sum() / float(w @ variances)) for w in choices]  # as long as rows
        errors = [turned(w, variances, above) for w in choices]
        return cls(directions, np.sqrt(choices[int(np.argmin(errors))]), values, std)

    @property
    def matrix(self) -> np.ndarray:
        """What rows are multiplied with from the right."""
        return self.directions * self.scales

    def combined(self, M: np.ndarray, std: float) -> np.ndarray:
        """Mean of both releases by the noise of entries, in the coordinates of the second."""
        if not self.counts:
            return M
        squares = self.scales**2
        scale = float(np.trace(M)) / max(float(squares @ self.values), self.std)
        scale = min(max(scale, 1 / _UNLIKE), _UNLIKE)  # of the first release for the second one's
        noise = scale * np.outer(self.scales, self.scales) * self.std
        weights = std**2 / (std**2 + noise**2)
        return M + weights * (np.diag(scale * squares * self.values) - M)

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
        at = n_above_edge(self.values, self.std)
        a = np.outer(self.scales[at:], self.scales[at:])
        weights = self.counts * std**2 / (std**2 + (a * self.std) ** 2)
        rest = self.values[at:]
        first = np.diag(weights) * np.maximum(rest - max(0.0, float(np.median(rest))), 0.0)
        v = float((((1 - weights) * std / a) ** 2).sum(axis=1).max())
        beyond = np.geomspace(1e-3, 10, 400)[:, None] * (np.sqrt(v) + np.ptp(first))
        t = beyond + first.max()
        edge = float((t[:, 0] + v * (1 / (t - first)).mean(axis=1)).min())
        return edge / (2 * float(np.sqrt(len(first))))


# How much longer each norm is than the one before, with how many of the next each is compared, and
# how many there are at most.
_LONGER, _AHEAD, _MOST = math.sqrt(2), 3, 12
# Share of the second release's budget for each comparison, a hundredth of that of both; how many
# deviations of its noise a difference has to be beyond; and columns that are looked at, at most.
_COMPARISON, _SURELY, _COLUMNS = 1 / 75, 2.5, 50


def moments_by_norm(
    rows: ClippedRows, norms: np.ndarray, n_columns: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows y shortened to some growing norms R: sums of min(|y|, R)^2, and second moments.

    Of a moment the first columns without the diagonal, (n_norms, d, n_columns). Each is the one
    before and what longer rows add, so that few rows are multiplied more than once.
    """
    sums, moments = np.zeros(len(norms)), np.zeros((len(norms), rows.n_features, n_columns))
    for _, Y in blocks_about(rows.X, rows.center, rows.shape):
        lengths, before = row_norms(Y, None), 0.0
        for j, R in enumerate(norms):
            longer = lengths > before
            Y, lengths = Y[longer], lengths[longer]
            squares = np.minimum(lengths, R) ** 2 - before**2
            Z = Y * (np.sqrt(squares) / lengths)[:, None]
            sums[j] += squares.sum()
            moments[j] += Z.T @ Z[:, :n_columns]
            before = R
    moments[:, range(n_columns), range(n_columns)] = 0.0
    return sums.cumsum(), moments.cumsum(axis=0)


def norm_that_turns_little(
    rows: ClippedRows, terms: Any, mechanism: Any, rng: np.random.Generator
) -> tuple[float, float]:
    """Norm for a second release, the one that a search has found or a longer one, and its cost.

    Shortening rows turns components if longer rows know other directions than shorter ones. Then
    the second moment M of rows shortened to a longer norm is no multiple of that for a norm: along
    the directions that a first release has found it differs off the diagonal, by D = M_l - f M_i
    with f the ratio of the sums of squares. A norm is left for the next one where |D| for one of
    the next three is beyond its noise (Lepski's method), and larger than the noise in one row of a
    release with the longer norm, as that noise turns components more than D does otherwise. Norms
    of which the noise would be as large as the largest variance are not looked at.

    **Sensitivity.** With f from 1 to (R_l / R_i)^2 a row y adds y y^T to D, times a factor, of a
    Frobenius norm of at most R_l^2 - R_i^2. So a replaced row moves |D| by at most sqrt(2) times
    that, and each sum of squares, over R^2, by 1. Each comparison, and all sums together, cost a
    hundredth of the budget of second moments.

    Parameters
    ----------
    rows : ClippedRows
        Rows in the shape that the first release has found.
    terms : Terms
        The norm of the first release, and the budget of the second.
    mechanism : Mechanism
        Draws the noise.
    rng : Generator
        Random bits.

    Returns
    -------
    row_norm : float
        The norm.
    mu2 : float
        What the comparisons have cost.
    """
    d, shape = rows.n_features, terms.shape
    above = min(n_above_edge(shape.values, shape.std), _COLUMNS)
    largest = float((shape.scales**2 * shape.values)[:above].max(initial=0.0))
    noise = 2 * math.sqrt(d) * mechanism._OFF_DIAGONAL * terms.product_std
    n_norms = 1 + min(math.floor(math.log(max(largest / noise, 1.0), _LONGER**2)), _MOST)
    if n_norms == 1:
        return terms.row_norm, 0.0
    cost = _COMPARISON * terms.costs.product
    std = mechanism._sum_std(cost, n_norms) / 2  # of the noise on what a row moves by 1

    def noisy(values: Any) -> np.ndarray:
        return mechanism._noisy(np.atleast_1d(values), std, rng)

    norms = terms.row_norm * _LONGER ** np.arange(n_norms)
    sums, moments = moments_by_norm(rows, norms, above)
    room = math.sqrt(n_norms)
    sums = np.maximum(noisy(sums / (norms**2 * room)) * room, std) * norms**2
    i, other, spent = 0, 1, cost
    while other <= min(i + _AHEAD, n_norms - 1):
        f = min(max(sums[other] / sums[i], 1.0), (norms[other] / norms[i]) ** 2)
        most = math.sqrt(2) * (norms[other] ** 2 - norms[i] ** 2)
        (unlike,) = noisy(np.linalg.norm(moments[other] - f * moments[i]) / most)
        of_release = noise / 2 * (norms[other] / norms[0]) ** 2 / most
        turns = unlike > max(_SURELY * std, of_release)
        i, other = (i + 1, max(other, i + 2)) if turns else (i, other + 1)
        spent += cost
    return float(norms[i]), spent
