"""PETRELS: recursive least squares for each feature, from rows with missing entries. Chi et al."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import scipy.linalg
from sklearn.utils._param_validation import Interval

from .._base.missing_entries import MissingEntriesMixin
from .._kernels import linalg
from .._kernels.tolerances import GRAM_ROUNDING, UNDETERMINED_RCOND
from ._recursive_least_squares import LIMIT, recent_power
from ._tracker import Tracker

__all__ = ["PETRELS"]


class PETRELS(MissingEntriesMixin, Tracker):
    """Parallel estimation and tracking by recursive least squares; missing entries are NaN.

    Each row gets its coordinates from the entries that are there, and each feature that is there
    refits its loadings to all coordinates so far by recursive least squares with forgetting.

    Parameters
    ----------
    n_components : int or None, default=None
        Number of components. None: 10, or all features where there are fewer.
    forgetting_factor : float in (0, 1], default=0.98
        Factor by which the weight of a row shrinks with every later row; lambda of [1]_.
    regularization : float, default=1e-2
        First value of the covariance of the coordinates, relative to the mean square of the first
        rows that are not zero.
    center : bool, default=True
        Subtract the running mean of each feature's observed entries, which forgets as well. False:
        about the origin, as in [1]_.
    random_state : int, RandomState instance or None, default=None
        Seed of the first basis.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features)
        Orthonormal basis of the tracked subspace.
    singular_values_, explained_variance_, explained_variance_ratio_ : ndarray of shape \
            (n_components_,)
        Not part of the method: measured on the least-squares coordinates of the rows as they came.
    mean_, noise_variance_, n_components_, n_samples_, n_samples_seen_, subspace_
        As in `StreamingPCA`; the total variance from the entries that are there.

    Notes
    -----
    [1]_, Algorithm 1, but for rows with no more entries than components: they fit any basis, and
    only age the others, where [1]_ refits with them. Memory O(d k^2) and time O(d k^2) a row as
    soon as entries are missing, for all features at once; O(d k) before. `transform` takes rows
    with missing entries: their coordinates are by least squares.

    References
    ----------
    .. [1] Y. Chi, Y. C. Eldar, R. Calderbank, "PETRELS: parallel subspace estimation and tracking
       by recursive least squares from partial observations", IEEE Trans. Signal Processing 2013.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import PETRELS, subspace_distance
    >>> rng = np.random.default_rng(0)
    >>> V = np.linalg.qr(rng.standard_normal((100, 5)))[0].T
    >>> X = rng.standard_normal((1500, 5)) @ V
    >>> X[rng.random(X.shape) < 0.7] = np.nan
    >>> petrels = PETRELS(5, center=False, random_state=0).fit(X)
    >>> subspace_distance(petrels.components_, V) < 1e-6
    True
    """

    _parameter_constraints: dict = {
        **Tracker._parameter_constraints,
        "forgetting_factor": [Interval(Real, 0, 1, closed="right")],
        "regularization": [Interval(Real, 0, None, closed="neither")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        n_components: int | None = None,
        *,
        forgetting_factor: float = 0.98,
        regularization: float = 1e-2,
        center: bool = True,
        random_state: Any = None,
    ):
        self.n_components = n_components
        self.forgetting_factor = forgetting_factor
        self.regularization = regularization
        self.center = center
        self.random_state = random_state

    def _begin(self, d: int, rng: np.random.RandomState) -> _Petrels:
        return _Petrels(linalg.random_basis(self._rank(d), d, rng).T, None)

    def _updated(self, state: _Petrels, Z: np.ndarray) -> _Petrels:
        power = recent_power(state.power, Z, self.forgetting_factor)
        if power == 0:  # nothing but zeros so far
            return state
        U, P, start = state.U, state.P, 1 / (self.regularization * power)
        if P is None:
            P = np.eye(U.shape[1]) * start
        holes = bool(np.isnan(Z).any())
        if P.ndim == 2 and not holes:
            U, P = self._whole_rows(U, P, Z)
            return _Petrels(U, P, power).balanced(start)
        if P.ndim == 2:  # from here on each feature has its own
            P = np.repeat(P[None], len(U), axis=0)
        U, P = U.copy(), P.copy()
        for z in Z:
            self._row(U, P, z)
        return _Petrels(U, P, power).balanced(start)

    def _row(self, U: np.ndarray, P: np.ndarray, z: np.ndarray) -> None:
        """One row, in place."""
        f = self.forgetting_factor
        there = ~np.isnan(z)
        known = there.nonzero()[0]
        P /= f
        if len(known) <= U.shape[1]:
            return
        part = U[known]
        a = np.linalg.lstsq(part, z[known], rcond=UNDETERMINED_RCOND)[0]
        h = P[known] @ a
        g = h / (1 + h @ a)[:, None]
        U[known] = part + (z[known] - part @ a)[:, None] * g
        P[known] -= g[:, :, None] * h[:, None, :]

    def _whole_rows(
        self, U: np.ndarray, P: np.ndarray, Z: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Whole rows: all features share P; U is ``[U, Z^T] K`` for the block."""
        f, k = self.forgetting_factor, U.shape[1]
        K = np.zeros((k + len(Z), k))
        K[:k] = np.eye(k)
        products = np.concatenate([U.T @ Z.T, Z @ Z.T])
        squares = np.diag(products[k:])
        M = U.T @ U
        for t, q in enumerate(products.T):
            y = q @ K
            a = np.linalg.lstsq(M, y, rcond=GRAM_ROUNDING)[0]
            h = P @ a / f
            g = h / (1 + h @ a)
            K -= (K @ a)[:, None] * g
            K[k + t] += g
            P = P / f - g[:, None] * h
            # the residual is orthogonal to U
            M = M + max(float(squares[t] - y @ a), 0.0) * (g[:, None] * g)
        return U @ K[:k] + Z.T @ K[k:], P

    def _basis(self, state: _Petrels) -> np.ndarray:
        return linalg.orthonormalised(state.U.T)


@dataclass(frozen=True)
class _Petrels:
    """Loadings (d, k), inverse covariance of coordinates (one, or one a feature), recent power."""

    U: np.ndarray
    P: np.ndarray | None
    power: float = 0.0

    def balanced(self, start: float) -> _Petrels:
        """The same model with orthonormal loadings and a bounded, symmetric P.

        With U = Q R the coordinates a become R a, so that U stays well-conditioned whatever the
        rows; while nothing new is observed, P would grow without bound.
        """
        Q, R = scipy.linalg.qr(self.U, mode="economic", check_finite=False)
        sizes = np.abs(np.diag(R))
        least = sizes.max() / LIMIT
        R += np.diag(np.where(sizes < least, least, 0.0))
        back = scipy.linalg.solve_triangular(R, np.eye(len(R)), check_finite=False)
        P = back.T @ self.P @ back
        P = (P + np.swapaxes(P, -1, -2)) / 2
        trace = np.trace(P, axis1=-2, axis2=-1)
        P *= np.minimum(1.0, LIMIT * len(R) * start / trace)[..., None, None]
        return _Petrels(Q, P, self.power)
