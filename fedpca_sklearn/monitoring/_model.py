"""How unlike rows are: squared prediction error and T2 beside their limits, and which entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from .._kernels.missing import coordinates
from .._kernels.observed import SeenModel, patterns_of
from .._kernels.rows import coordinates_and_norms
from .._kernels.tolerances import RANK_EPS
from ..summary import Subspace
from ._limits import (
    completed_spectrum,
    limit_of_q,
    limit_of_t2,
    moments_of_the_rest,
    variances_of_new_rows,
)

# Degrees of freedom of the rest of the rows, below which nothing is said of new ones.
_LEAST_DEGREES = 3


@dataclass(frozen=True, eq=False)
class MonitorModel:
    """A subspace, and what new normal rows do along it and outside.

    Rows are about ``mean``, and divided by ``scale`` if there is one; all else is of such rows.
    ``basis`` (k, d) are the directions with a variance, ``variances`` (k,) those of new rows along
    them, ``moments`` of the rest, see `moments_of_the_rest`, in units of the variance ``unit``, so
    that their cubes are finite, and ``noise`` its variance in a direction. ``level`` is the false
    alarm rate of either statistic. ``t2_limits[j]`` is the limit of T2 in j dimensions.
    """

    mean: np.ndarray
    scale: np.ndarray | None
    basis: np.ndarray
    variances: np.ndarray
    moments: np.ndarray
    unit: float
    noise: float
    n_samples: float
    level: float
    q_limit: float
    t2_limits: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(
        cls,
        components: np.ndarray,
        subspace: Subspace,
        contamination: float,
        mean: np.ndarray,
        scale: np.ndarray | None = None,
    ) -> MonitorModel:
        """The model of the leading directions of a summary.

        Parameters
        ----------
        components : ndarray of shape (k, d)
            The directions, in the order of those of the summary.
        subspace : Subspace
            Of the rows as they are scaled, with more directions than k or as many; directions that
            it does not have are without variance.
        contamination : float
            Share of new rows that exceed a limit.
        mean : ndarray of shape (d,)
            Of the rows in their own units.
        scale : ndarray of shape (d,), default=None
            What columns are divided by; None: nothing.
        """
        d, n = subspace.n_features, subspace.n_samples
        spectrum = completed_spectrum(subspace, len(components))
        eps = RANK_EPS * np.finfo(components.dtype).eps
        total = subspace.total_variance
        k = min(len(components), int(np.sum(subspace.explained_variance > eps * total)))
        level = 1 - np.sqrt(1 - contamination) if 0 < k < d else contamination
        limits, q_limit, noise = np.full(k + 1, np.inf), np.inf, total / d
        variances, moments = spectrum[:k], np.zeros(3)
        unit = float(np.ldexp(1.0, np.frexp(total)[1] - 1)) if total > 0 else 1.0
        if n - 1 - k >= _LEAST_DEGREES:
            variances = variances_of_new_rows(spectrum / unit, k, n - 1) * unit
            moments = moments_of_the_rest(spectrum / unit, variances / unit, n, max(d - k, 1))
            noise = moments[0] / max(d - k, 1) * unit
            size = eps * (mean if scale is None else mean / scale)
            rounding = eps * total + float(size @ size)
            if k < d:
                q_limit = max(limit_of_q(moments, level) * unit, rounding, np.finfo(float).tiny)
            limits[1:] = [limit_of_t2(j, n, level) for j in range(1, k + 1)]
        largest = float(variances.max(initial=noise))
        with np.errstate(over="ignore"):
            of_t2 = np.minimum(1 / (variances * limits[-1]), np.finfo(float).max)
        return cls(
            mean=mean,
            scale=scale,
            basis=components[:k].astype(np.float64),
            variances=variances,
            moments=moments,
            unit=unit,
            noise=max(noise, np.finfo(float).eps * largest, np.finfo(float).tiny),
            n_samples=n,
            level=level,
            q_limit=q_limit,
            t2_limits=limits,
            weights=np.column_stack([np.ones(k), of_t2]),
        )

    def shares(self, X: Any) -> np.ndarray:
        """Q and T2 of rows over their limits, of shape (n, 2); NaN is a missing entry."""
        norms = np.empty(X.shape[0])
        Z = coordinates_and_norms(X, self.basis, self.mean, norms, self.scale)
        if np.isnan(norms).any():
            with np.errstate(over="ignore", invalid="ignore"):
                return self._shares_of_seen(self._centred(X))
        with np.errstate(over="ignore", invalid="ignore"):
            Z *= Z
            sums = Z @ self.weights
            sums[:, 0] = np.maximum(norms - sums[:, 0], 0.0)
            sums[np.isinf(norms)] = np.inf
            sums[:, 0] /= self.q_limit
        return sums

    def _shares_of_seen(self, Y: np.ndarray) -> np.ndarray:
        """The same for the entries of centred rows that are there.

        Their marginal distribution has a part along the basis and one outside, as that of whole
        rows: the residual of least squares, with as many dimensions as there are entries more than
        directions, and the coordinates of least squares, in units of their own covariance.
        """
        k = len(self.basis)
        seen, result = ~np.isnan(Y), np.empty((len(Y), 2))
        model = SeenModel.of(self.basis, self.variances, self.noise)
        for group in patterns_of(seen, k):
            there, y = seen[group.rows], Y[group.rows]
            inverses, _ = model.factors(group.seen)
            fitted = coordinates(y, self.basis)[0] @ self.basis
            y = np.where(there, y, 0.0)
            c = model.posterior(y, there, inverses[group.of_row])
            rest, gap = np.where(there, y - fitted, 0.0), np.where(there, fitted - c @ model.W, 0.0)
            result[group.rows, 0] = np.einsum("ij,ij->i", rest, rest)
            t2 = np.einsum("ij,ij->i", gap, gap) / model.noise + np.einsum("ij,ij->i", c, c)
            result[group.rows, 1] = t2
        size = seen.sum(axis=1)
        result[np.isnan(result)] = np.inf
        result[size <= k, 0] = 0.0  # what is fitted exactly leaves rounding errors
        result /= np.column_stack([self._q_limits(size), self.t2_limits[np.minimum(size, k)]])
        return result

    def _centred(self, X: Any) -> np.ndarray:
        """Dense rows about the mean, and scaled."""
        Y = (X.toarray() if sp.issparse(X) else X) - self.mean
        return Y if self.scale is None else Y / self.scale

    def _q_limits(self, size: np.ndarray) -> np.ndarray:
        """Limits of Q for rows with so many entries; the others take an equal share each."""
        k, d = self.basis.shape
        free, at = np.unique(np.maximum(size - k, 0), return_inverse=True)
        if not np.isfinite(self.q_limit):
            return np.full(len(size), np.inf)
        shares = free / max(d - k, 1)
        limits = [limit_of_q(self.moments * share, self.level) * self.unit for share in shares]
        least = np.finfo(float).tiny if self.moments[0] > 0 else self.q_limit
        return np.maximum(limits, least)[at]

    def deviations(self, X: Any) -> np.ndarray:
        """By how much each entry is off what the others of its row predict, of shape (n, d)."""
        Y = self._centred(X)
        seen, result = ~np.isnan(Y), np.full(Y.shape, np.nan)
        model = SeenModel.of(self.basis, self.variances, self.noise)
        for group in patterns_of(seen, len(self.basis)):
            there = seen[group.rows]
            y = np.where(there, Y[group.rows], 0.0)
            inverses, _ = model.factors(group.seen)
            c = model.posterior(y, there, inverses[group.of_row])
            # diagonal of the precision matrix by the Woodbury identity, times noise
            taken = np.square(inverses @ model.W).sum(axis=1) / model.noise
            diagonal = np.maximum(1 - taken, np.finfo(float).eps)[group.of_row]
            with np.errstate(over="ignore", invalid="ignore"):
                z = (y - c @ model.W) / np.sqrt(model.noise * diagonal)
            result[group.rows] = np.where(there, z, np.nan)
        return result
