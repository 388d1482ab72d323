"""GROUSE: rank-one steps on the Grassmannian from rows with missing entries. Balzano et al."""

from __future__ import annotations

from numbers import Real
from typing import Any, Literal

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from .._base.missing_entries import MissingEntriesMixin
from .._kernels import linalg
from .._kernels.tolerances import UNDETERMINED_RCOND
from ._tracker import Tracker

__all__ = ["GROUSE"]

# Residuals below this share of a row are rounding errors: the row fits. The root of GRAM_ROUNDING,
# as squares of residuals are differences of squares.
_FITS = 1e-7


class GROUSE(MissingEntriesMixin, Tracker):
    """Subspace tracking by one geodesic step per row; missing entries are NaN.

    Each row turns the basis towards its residual, along a geodesic of the Grassmannian. Rows may
    have missing entries. A row that the subspace explains, one orthogonal to it and one with no
    more entries than components leave the basis as it is.

    Parameters
    ----------
    n_components : int or None, default=None
        Number of components. None: 10, or all features where there are fewer.
    step_size : float or "greedy", default="greedy"
        "greedy": the angle arctan(|residual| / |projection|) [2]_, which fits the row exactly,
        without noise. A float eta: the angle eta |residual| |projection| of [1]_, in units of the
        rows squared, so that rows should have norms near 1.
    center : bool, default=True
        Subtract the running mean of each feature's observed entries. False: about the origin, as in
        [1]_.
    random_state : int, RandomState instance or None, default=None
        Seed of the first basis.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features)
    singular_values_, explained_variance_, explained_variance_ratio_ : ndarray of shape \
            (n_components_,)
        Not part of the method: measured on the least-squares coordinates of the rows as they came.
    mean_, noise_variance_, n_components_, n_samples_, n_samples_seen_, subspace_
        As in `StreamingPCA`; the total variance from the entries that are there.

    Notes
    -----
    Time O(d k + |observed| k^2) for a row with missing entries. Whole rows are taken through in the
    coordinates of the basis and of the b = 32 rows of a block, with the same numbers as row by row:
    O(d (k + b)) a row in matrix products, and O((k + b) k) for itself. The basis is made
    orthonormal after every block.

    `transform` takes rows with missing entries: their coordinates are by least squares.

    References
    ----------
    .. [1] L. Balzano, R. Nowak, B. Recht, "Online identification and tracking of subspaces from
       highly incomplete information", Allerton 2010.
    .. [2] L. Balzano, S. J. Wright, "On GROUSE and incremental SVD", CAMSAP 2013.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import GROUSE, subspace_distance
    >>> rng = np.random.default_rng(0)
    >>> V = np.linalg.qr(rng.standard_normal((100, 5)))[0].T
    >>> X = rng.standard_normal((3000, 5)) @ V
    >>> X[rng.random(X.shape) < 0.7] = np.nan
    >>> grouse = GROUSE(5, center=False, random_state=0).fit(X)
    >>> subspace_distance(grouse.components_, V) < 1e-6
    True
    """

    _parameter_constraints: dict = {
        **Tracker._parameter_constraints,
        "step_size": [StrOptions({"greedy"}), Interval(Real, 0, None, closed="neither")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        n_components: int | None = None,
        *,
        step_size: float | Literal["greedy"] = "greedy",
        center: bool = True,
        random_state: Any = None,
    ):
        self.n_components = n_components
        self.step_size = step_size
        self.center = center
        self.random_state = random_state

    def _begin(self, d: int, rng: np.random.RandomState) -> np.ndarray:
        return linalg.random_basis(self._rank(d), d, rng)

    def _updated(self, state: np.ndarray, Z: np.ndarray) -> np.ndarray:
        if np.isnan(Z).any():
            V = state.copy()
            for z in Z:
                self._row(V, z)
        else:
            V = self._whole_rows(state, Z)
        return linalg.orthonormalised(V)

    def _basis(self, state: np.ndarray) -> np.ndarray:
        return state

    def _angle(self, projection: float, residual: float) -> tuple[float, float]:
        """Weights of p and r in the step ``(a p + b r) w^T``, for norms of p and r."""
        if self.step_size == "greedy":
            angle = np.arctan2(residual, projection)
        else:
            angle = self.step_size * residual * projection
        a = (np.cos(angle) - 1) / projection**2
        return a, np.sin(angle) / (residual * projection)

    def _row(self, V: np.ndarray, z: np.ndarray) -> None:
        """One row with missing entries, in place: [1]_, Algorithm 1."""
        there = np.flatnonzero(~np.isnan(z))
        if len(there) <= len(V):
            return
        part, known = V[:, there], z[there]
        w = np.linalg.lstsq(part.T, known, rcond=UNDETERMINED_RCOND)[0]
        r = known - w @ part
        projection, residual = float(np.linalg.norm(w)), float(np.linalg.norm(r))
        if min(projection, residual) <= _FITS * float(np.linalg.norm(known)):
            return
        a, b = self._angle(projection, residual)
        step = (a * w) @ V
        step[there] += b * r
        V += w[:, None] * step

    def _whole_rows(self, V: np.ndarray, Z: np.ndarray) -> np.ndarray:
        """Whole rows, with the basis as ``K.T @ [V; Z]`` for the block."""
        k = len(V)
        K = np.zeros((k + len(Z), k))
        K[:k] = np.eye(k)
        products = np.concatenate([V @ Z.T, Z @ Z.T])
        squares = np.diag(products[k:])
        for t, (q, square) in enumerate(zip(products.T, squares.tolist(), strict=True)):
            w = q @ K
            projection = float(w @ w)
            residual = square - projection
            if min(projection, residual) <= _FITS**2 * square:
                continue
            a, b = self._angle(projection**0.5, residual**0.5)
            # p = K w and r = z - p
            step = (a - b) * (K @ w)
            step[k + t] += b
            K += step[:, None] * w
        return K[:k].T @ V + K[k:].T @ Z
