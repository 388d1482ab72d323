"""Means and scales of columns by sums with noise: the mechanism of `FederatedScaler`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import KW_ONLY, field
from typing import Any

import numpy as np

from .._kernels.row_moments import ColumnMoments
from .._validation.checks import allowed, with_parameters
from ._gaussian import DiscreteGaussian
from ._mechanism import NOISE, Mechanism
from ._private_searches import PrivacyBoundWarning, bounds_of
from ._rows import blocks_about

# Parts of the budget for the rounds: the first two have to come near the mean only.
ROUNDS = 0.15, 0.15, 0.7
# Lengths for each doubling.
_FINE = 2
# Share of the rows that may be longer than the length to which they are cut.
_BEYOND = 0.02
# What rows shortened to one norm have left, as a mean of squares over that of the norm, which is
# near their size as a scale is; and norms that are tried.
_LEFT, _NORMS = 0.8, 400
# Deviations of the noise on a mean square that do not count as a variance.
_DEVIATIONS = 3
# Largest share of the rows that noise may look like, and that is cut because of it.
_MOST_NOISE, _MOST = 0.25, 0.5


@with_parameters
class ScalerNoise(Mechanism):
    """Noise on the sums of which `FederatedScaler` has its means and scales.

    For rows of which nothing is known: neither where columns are, nor how much they vary. Scaled
    rows have a mean near 0 and a squared norm of about d, so that ``row_norm=sqrt(d)`` and
    ``center=0`` suit a mechanism behind the scaler, also where one norm is needed for all clients
    (``trust="sum"``, secure sums, `FedPowerNoise`).

    Parameters
    ----------
    epsilon : float
        Above 0; budget of each client, in all. ``inf``: no noise, entries are still cut.
    delta : float
        Between 0 and 1; should be far below one over the number of rows.
    trust : {"client", "sum"}, default="client"
        "client": what each client sends is private. "sum": each of K clients adds noise of 1 / K of
        the variance, for when nobody sees more than the sum.
    ledger : PrivacyLedger or None, default=None
        Where all releases are counted, before they are computed.
    noise : DiscreteGaussian or None, default=None
        `DiscreteGaussian`: integer multiples of a grid, which secure sums need. None: normal
        numbers.
    bounds : tuple of float, default=(1e-3, 1e4)
        Between which lengths the search looks, of entries about the origin and about the means
        found so far. Public: to be chosen without a look at the rows, in their unit.
    one_scale : bool, default=False
        One scale for all columns, for columns of one unit: R / sqrt(d), with the largest norm R to
        which rows may be shortened and have a mean of squares of 0.8 R^2. It needs less noise, as a
        row counts once and not in each column. Of very many rows norms beyond sqrt(d) are better
        for a mechanism behind it, as `PrivateNorm` chooses them.

    See Also
    --------
    AnalyzeGauss : For the components. Epsilons of both add up.
    PrivateCenter, PrivateNorm : The same for single clients, within the budget of one mechanism.

    Notes
    -----
    Three rounds of two sums, with 15, 15 and 70 % of the budget (of mu^2), half of it for each sum.
    The first sum counts, for every column, how many entries have which distance to the point so
    far, first the origin, in two bins for each doubling between the bounds. Distances are cut to
    the least length w beyond which there are at most 2 % of the rows, or what noise may look like
    if that is more: sqrt(2 log m) of its deviations, of m counts. The second sum is that of y = (x
    - point) / w so cut, and of y^2. The point moves by their mean, and the last round tells the
    variance, w^2 (mean of y^2 - (mean of y)^2). A column whose entries are all within the least
    length counts as constant: scale 1.

    With ``one_scale`` rows take the place of entries. R is the largest norm of which the mean of
    min(1, |y|^2 / R^2) is 0.8, by the counts of the last round, and ``var_`` the square of the
    scale.

    A replaced row leaves a bin in each of d columns and comes into another, so that counts move by
    sqrt(2 d). It moves y by at most 2 in each column, and y and y^2 together too: (a + b)^2 (1 + (a
    - b)^2) <= 4 for 0 <= a, b <= 1. So the second sum moves by 2 sqrt(d); with ``one_scale`` d is 1
    there. Points and lengths follow from what was released.

    Time O(n d), memory O(d) at each client. A client sends d (B + 2) floats a round, for B = 48
    bins with these bounds.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import FederatedScaler
    >>> from fedpca_sklearn.privacy import ScalerNoise
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((20_000, 3)) * [0.1, 1.0, 100.0] + [5.0, 0.0, -300.0]
    >>> scaler = FederatedScaler(mechanism=ScalerNoise(1.0, 1e-6), n_clients=1, random_state=0)
    >>> scaler.fit(X).scale_.round(2)
    array([ 0.1 ,  0.99, 99.99])
    >>> print("epsilon = {:.3f}, delta = {:g}".format(*scaler.privacy_spent_))
    epsilon = 1.000, delta = 1e-06
    """

    row_norm: float = field(default=1.0, init=False)
    center: Any = field(default=None, init=False)
    mean: str = field(default="private", init=False)
    mean_share: float | None = field(default=None, init=False)
    _: KW_ONLY
    bounds: tuple[float, float] = allowed("array-like", default=(1e-3, 1e4))
    one_scale: bool = allowed("boolean", default=False)
    noise: DiscreteGaussian | None = allowed(*NOISE, default=None)

    def validate(self) -> None:
        """Raise an error that names a wrong parameter."""
        super().validate()
        bounds_of(self.bounds)

    @property
    def _lengths(self) -> np.ndarray:
        """Lengths that entries may be cut to."""
        least, largest = bounds_of(self.bounds)
        size = 1 + math.ceil(_FINE * math.log2(largest / least))
        return np.geomspace(least, largest, size)

    def _n_groups(self, d: int) -> int:
        """Columns that have a length of their own."""
        return 1 if self.one_scale else d

    def _shape(self, kind: str, d: int) -> tuple[int, ...]:
        """Shape of what is summed."""
        G = self._n_groups(d)
        return (G, 1 + len(self._lengths)) if kind == "counts" else (d + G,)

    def _noise_cost(self, std: float, n_features: int, n_shares: int) -> float:
        G = self._n_groups(n_features)
        n = math.prod(self._shape("counts", n_features))
        return self._gaussian_cost(math.sqrt(2 * G), std, n, n_shares)

    def _sum_cost(self, std: float, n_features: int, n_shares: int) -> float:
        G = self._n_groups(n_features)
        return self._gaussian_cost(2 * math.sqrt(G), std, n_features + G, n_shares)

    def _std(self, kind: str, turn: int, d: int) -> float:
        """Standard deviation of the noise on the sum over all clients with ``trust="sum"``."""
        part, moved = self.budget() * ROUNDS[turn] / 2, 2 if kind == "counts" else 4
        if self.noise is not None:
            part = self.noise.gaussian_part(part, math.prod(self._shape(kind, d)))
        return math.sqrt(moved * self._n_groups(d) / part)

    def _cost_of(self, kind: str, turn: int, d: int, n_shares: int) -> float:
        """What a sum of a round costs, as mu^2."""
        cost = self._noise_cost if kind == "counts" else self._sum_cost
        return cost(self._std(kind, turn, d), d, n_shares if self.trust == "sum" else 1)

    def _message(
        self,
        kind: str,
        X: Any,
        turn: int,
        *arguments: np.ndarray,
        n_shares: int,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """What a client adds to a sum, with its noise; arguments are the point, and the lengths."""
        exact = (self._counts if kind == "counts" else self._cut_sums)(X, *arguments)
        std = self._std(kind, turn, X.shape[1]) / math.sqrt(n_shares if self.trust == "sum" else 1)
        return self._noisy(exact, std, rng)

    def _counts(self, X: Any, point: np.ndarray) -> np.ndarray:
        """Numbers of entries of each column, or of rows, by their distance to a point."""
        shape, lengths = self._shape("counts", X.shape[1]), self._lengths
        counts = np.zeros(math.prod(shape))
        for _, Y in blocks_about(X, point):
            bins = np.searchsorted(lengths, self._sizes(Y))
            at = bins + shape[1] * np.arange(shape[0])
            counts += np.bincount(at.ravel(), minlength=len(counts))
        return counts.reshape(shape)

    def _cut_sums(self, X: Any, point: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Sums of entries about a point, cut to lengths and over them, and of their squares."""
        d = X.shape[1]
        sums, squares = np.zeros(d), np.zeros(len(lengths))
        for _, Y in blocks_about(X, point):
            sizes = self._sizes(Y)
            sums += (Y / np.maximum(sizes, lengths)).sum(axis=0)
            squares += np.square(np.minimum(sizes / lengths, 1.0)).sum(axis=0)
        return np.concatenate([sums, squares])

    def _sizes(self, Y: np.ndarray) -> np.ndarray:
        return np.hypot.reduce(Y, axis=1, keepdims=True) if self.one_scale else np.abs(Y)

    def _found(
        self, total: Callable[..., tuple[np.ndarray, float]], d: int, n_sources: float
    ) -> ColumnMoments:
        """Moments of the columns.

        ``total(kind, turn, *arguments)`` is a noisy sum, and over how many rows. ``n_sources``
        clients each have all the noise of their sums.
        """
        point = np.zeros(d)
        for turn in range(len(ROUNDS)):
            counts, n = total("counts", turn, point)
            noise = self._std("counts", turn, d) * math.sqrt(n_sources)
            w, known = self._cut(counts, n, noise, turn == len(ROUNDS) - 1)
            sums, n = total("sums", turn, point, w)
            sums = sums / n
            mean, squares = sums[:d].reshape(len(w), -1), sums[d:]
            point = point + (w[:, None] * mean).ravel()
        n_entries, none = np.full(d, float(n)), np.zeros(d)
        if self.one_scale:
            var = self._norm(counts[0], w[0]) ** 2 / d
            return ColumnMoments(n_entries, point, none, np.full(d, n * var if known[0] else 0.0))
        noise = _DEVIATIONS * self._std("sums", turn, d) * math.sqrt(n_sources) / n
        shares = np.maximum(squares - mean[:, 0] ** 2, noise)
        return ColumnMoments(n_entries, point, none, n * np.where(known, w**2 * shares, 0.0))

    def _norm(self, counts: np.ndarray, longest: float) -> float:
        """The largest norm of which shortened rows have most, of rows up to a length."""
        lengths = self._lengths
        middles = np.sqrt(lengths * np.append(lengths[0], lengths[:-1]))
        n = np.where(lengths <= longest, counts[:-1], 0.0)
        norms = np.geomspace(lengths[0], 2 * longest, _NORMS)
        left = np.minimum((middles / norms[:, None]) ** 2, 1.0) @ n
        return float(norms[left >= _LEFT * n.sum()].max(initial=lengths[0]))

    def _cut(
        self, counts: np.ndarray, n: float, noise: float, last: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Lengths beyond which there are few entries, and whether there are any."""
        lengths = self._lengths
        noise *= math.sqrt(2 * math.log(counts.size))  # seldom more in any bin
        needed = noise * math.sqrt(len(lengths) / 2) / _MOST_NOISE
        if last and needed > n:
            _warn(
                f"{n:.0f} rows are too few for a private search for {len(counts)} scales, which "
                f"may be anything: it needs some {needed:.0f}, or a larger epsilon, or "
                "one_scale=True."
            )
        beyond = np.cumsum(counts[:, :0:-1], axis=1)[:, ::-1]  # longer than each length
        bins = np.arange(len(lengths), 0, -1)
        few = beyond <= np.clip(noise * np.sqrt(bins), _BEYOND * n, _MOST * n)
        at = np.where(few.any(axis=1), few.argmax(axis=1), len(lengths) - 1)
        if (at == len(lengths) - 1).any():
            _warn(
                f"A private search for scales took {lengths[-1]:.3g}, the upper one of its bounds "
                f"{self.bounds[0]:g} and {self.bounds[1]:g}; give others if entries may be larger."
            )
        return lengths[at], at > 0


def _warn(message: str) -> None:
    warnings.warn(message, PrivacyBoundWarning, stacklevel=4)
