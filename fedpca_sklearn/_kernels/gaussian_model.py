"""Normal distribution with a low-rank covariance plus noise: density and precision."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .observed import SeenModel


@dataclass(frozen=True)
class GaussianModel:
    """Covariance S (V^T diag(variance) V + noise (I - V^T V)) S with S = diag(scale), about zero.

    Parameters
    ----------
    basis : ndarray of shape (k, d)
        V: orthonormal rows.
    variance : ndarray of shape (k,)
        Variance along each row of V.
    noise : float
        Variance in each direction orthogonal to V.
    scale : ndarray of shape (d,), default=None
        None: ones.
    """

    basis: np.ndarray
    variance: np.ndarray
    noise: float
    scale: np.ndarray | None = None

    @classmethod
    def per_column(cls, V: np.ndarray, variance: np.ndarray, residual: np.ndarray) -> GaussianModel:
        """The model with covariance V^T diag(variance) V + diag(residual).

        In columns divided by the roots of their residuals the noise is one in all directions.

        Parameters
        ----------
        V : ndarray of shape (k, d)
        variance : ndarray of shape (k,)
        residual : ndarray of shape (d,)
            Positive.

        Returns
        -------
        model : GaussianModel
        """
        scale = np.sqrt(residual)
        _, s, basis = np.linalg.svd(np.sqrt(variance)[:, None] * V / scale, full_matrices=False)
        return cls(basis, 1 + s**2, 1.0, scale)

    def log_density(self, Z: np.ndarray, squared_norms: np.ndarray) -> np.ndarray:
        """Logarithm of the density at rows.

        Parameters
        ----------
        Z : ndarray of shape (n, k)
            Coordinates in the basis of the rows divided by the scale.
        squared_norms : ndarray of shape (n,)
            Of the same rows.

        Returns
        -------
        log_density : ndarray of shape (n,)
        """
        rank, d = self.basis.shape
        # minus infinity where the model has no variance at all, and of rows whose squares overflow
        with np.errstate(over="ignore", invalid="ignore"):
            Z = Z**2
            result = d * np.log(2 * np.pi) + np.log(self.variance).sum() + Z @ (1 / self.variance)
            if rank < d:
                rest = np.maximum(squared_norms - Z.sum(axis=1), 0)
                rest[np.isinf(squared_norms)] = np.inf
                result += (d - rank) * np.log(self.noise) + rest / self.noise
        if self.scale is not None:
            result += 2 * np.log(self.scale).sum()
        return -0.5 * result

    def log_density_of_seen(self, Y: np.ndarray) -> np.ndarray:
        """Logarithm of the marginal density of the entries that are there.

        Parameters
        ----------
        Y : ndarray of shape (n, d)
            Rows about zero; NaN is a missing entry.

        Returns
        -------
        log_density : ndarray of shape (n,)
            Of a row without entries 0. Cost: see `observed`.
        """
        model = SeenModel.of(self.basis, self.variance, self.noise)
        if self.scale is None:
            return model.log_density(Y)
        return model.log_density(Y / self.scale) - ~np.isnan(Y) @ np.log(self.scale)

    def precision(self) -> np.ndarray:
        """Inverse of the covariance, of shape (d, d)."""
        V, variance, noise = self.basis, self.variance, self.noise
        if V.shape[0] == V.shape[1]:
            precision = (V.T / variance) @ V
        else:
            precision = (V.T * (1 / variance - 1 / noise)) @ V
            precision[np.diag_indices_from(precision)] += 1 / noise
        if self.scale is not None:
            precision /= self.scale
            precision /= self.scale[:, None]
        return precision
