"""GROUSE: rank-one steps on the Grassmannian from rows with missing entries. Balzano et al."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from numbers import Real
from typing import Any, Literal

import numpy as np
from sklearn.utils._param_validation import StrOptions

from .._kernels import linalg
from .._kernels.tolerances import UNDETERMINED_RCOND
from .._validation.checks import Interval, allowed, with_parameters
from ._affine import AffineTracker, Move
from ._forgetting import EMPTY, Memory, inverse_covariance, recent_power

# First value of the covariance of the coordinates, relative to the mean square of the first rows.
_REGULARIZATION = 1e-2


@dataclass(frozen=True)
class Steps:
    """Which direction of the subspace a row turns, and by how much.

    "averaged": from all rows, by recursive least squares; P is the inverse covariance of
    coordinates, empty until a row is not zero. Others from a row alone: "greedy", or in proportion
    to residual and projection.
    """

    size: float | str
    P: np.ndarray
    memory: Memory = EMPTY

    @classmethod
    def of(cls, size: float | str, C: np.ndarray, d: int) -> Steps:
        """After rows of d entries with coordinates C, if any."""
        if size != "averaged" or not C.any():
            return cls(size, np.zeros((0, 0)))
        power = float(np.sum(C**2)) / (len(C) * d)
        return cls(size, inverse_covariance(C, power), Memory(len(C)))

    def turned(self, R: np.ndarray) -> Steps:
        """Steps where coordinates a have become R a."""
        if not len(self.P):
            return self
        back = np.linalg.inv(R)
        return replace(self, P=back.T @ self.P @ back)

    def turn(
        self, w: np.ndarray, residual: float, size: float, n_seen: int, d: int
    ) -> tuple[np.ndarray, float, Steps]:
        """Direction that turns, in coordinates, the angle towards the residual, and later steps.

        Parameters
        ----------
        w : ndarray of shape (k,)
            Coordinates of the row, not zero.
        residual, size : float
            Norms of the residual and of the row, where it is seen; above 0.
        n_seen, d : int
            Entries of the row that are there, and of a whole one.
        """
        if self.size != "averaged":
            projection = float(np.linalg.norm(w))
            if self.size == "greedy":
                angle = float(np.arctan2(residual, projection))
            else:
                angle = float(self.size) * residual * projection
            return w / projection, angle, self
        f, memory = self.memory.after(residual**2, size**2, n_seen, d, len(w))
        h = self.P @ w
        gain = h / (f + w @ h)
        P = (self.P - gain[:, None] * h) / f
        length = float(np.linalg.norm(gain))
        return gain / length, float(np.arctan(length * residual)), Steps(self.size, P, memory)


# Residuals below this share of a row are rounding errors: the row fits. The root of GRAM_ROUNDING,
# as squares of residuals of whole rows are differences of squares.
_FITS = 1e-7
# The same where the residual itself is computed.
_FITS_WITH_HOLES = 1e-14


@with_parameters
class GROUSE(AffineTracker):
    """Subspace tracking by one geodesic step per row; missing entries are NaN.

    Each row turns one direction of the subspace towards its residual, along a geodesic of the
    Grassmannian. Rows may have missing entries. A row that the subspace explains, one orthogonal to
    it and one with no more entries than components leave the basis as it is.

    Parameters
    ----------
    n_components : int or None, default=None
        Number of components. None: 10, or all features where there are fewer.
    step_size : float, "averaged" or "greedy", default="averaged"
        "averaged": the direction and the angle that fit this row and, in the mean, those before,
        by the gain g of recursive least squares [3]_: g turns by arctan(|g| |residual|). Noise
        averages out; weights as those of `PETRELS` with ``forgetting_factor="growing"``.
        "greedy": the projection of the row turns by arctan(|residual| / |projection|) [2]_, which
        fits the row exactly, without noise. A float eta: by eta |residual| |projection| [1]_, in
        units of the rows squared, so that rows should have norms near 1. It may change between
        calls of `partial_fit`.
    center : bool, default=True
        The mean is a part of the model: rows have a constant entry more, and the rule one component
        more, as a running mean of observed entries is not where rows of low rank are. False: about
        the origin, as in [1]_.
    init : {"rows", "random"} or array-like of shape (n_components, n_features), default="rows"
        First basis. "rows": the SVD of the first 2 n_components rows, whose missing entries are
        filled in by a soft SVD of their own; random where too few entries are there for that, as
        about half of them. "random": as in [1]_. Or its rows.
    random_state : int, RandomState instance or None, default=None
        Seed of a random basis; with ``init="rows"`` of the directions in which the rows do not
        vary.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features)
    singular_values_, explained_variance_, explained_variance_ratio_ : ndarray of shape \
            (n_components_,)
        Not part of the method: measured on the least-squares coordinates of the rows as they came.
    mean_, noise_variance_, n_components_, n_samples_, n_samples_seen_, subspace_
        As in `StreamingPCA`; the total variance from the entries that are there. Where entries are
        missing, the mean is that of the observed ones within the affine subspace, and the noise at
        least that of recent rows.

    Notes
    -----
    Time O(d k + |observed| k^2) for a row with missing entries. Whole rows are taken through in the
    coordinates of the basis and of the b = 32 rows of a block, with the same numbers as row by row:
    O(d (k + b)) a row in matrix products, and O((k + b) k) for itself. The basis is made
    orthonormal after every block.

    `transform` and `impute` take rows with missing entries: these are predicted by their means
    given the rest of their row, as in `SubspaceTracker`, with the noise of recent rows.

    References
    ----------
    .. [1] L. Balzano, R. Nowak, B. Recht, "Online identification and tracking of subspaces from
       highly incomplete information", Allerton 2010.
    .. [2] L. Balzano, S. J. Wright, "On GROUSE and incremental SVD", CAMSAP 2013.
    .. [3] B. Yang, "Projection approximation subspace tracking", IEEE Trans. Signal Processing
       1995, for the gain.

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

    n_components: int | None = None
    _: KW_ONLY
    step_size: float | Literal["averaged", "greedy"] = allowed(
        StrOptions({"averaged", "greedy"}),
        Interval(Real, 0, None, closed="neither"),
        default="averaged",
    )
    center: bool = True
    init: Any = "rows"
    random_state: Any = None

    def _begin_at(self, V: np.ndarray, Z: np.ndarray) -> _Grouse:
        return _Grouse(V, Steps.of(self.step_size, Z @ V.T, V.shape[1]))

    def _moved(self, state: _Grouse, move: Move) -> _Grouse:
        V, R = move.of_basis(state.V)
        return _Grouse(V, state.steps.turned(R))

    def _updated(self, state: _Grouse, Z: np.ndarray) -> _Grouse:
        if not np.nan_to_num(Z).any():
            return state
        steps, P = state.steps, state.steps.P
        if self.step_size != "averaged":  # which may have changed
            steps = Steps(self.step_size, np.zeros((0, 0)))
        elif len(P):  # which stays symmetric
            steps = replace(steps, P=(P + P.T) / 2)
        else:  # P begins small against the rows
            power = recent_power(0.0, Z, 1.0)
            steps = Steps("averaged", np.eye(len(state.V)) / (_REGULARIZATION * power))
        take = self._rows_with_holes if np.isnan(Z).any() else self._whole_rows
        V, steps = take(state.V, Z, steps)
        return _Grouse(linalg.orthonormalised(V), steps)

    def _basis(self, state: _Grouse) -> np.ndarray:
        return state.V

    @staticmethod
    def _rows_with_holes(V: np.ndarray, Z: np.ndarray, steps: Steps) -> tuple[np.ndarray, Steps]:
        """Rows with missing entries: [1]_, Algorithm 1."""
        V = V.copy()
        for z in Z:
            there = np.flatnonzero(~np.isnan(z))
            if len(there) <= len(V):
                continue
            part, known = V[:, there], z[there]
            w = np.linalg.lstsq(part.T, known, rcond=UNDETERMINED_RCOND)[0]
            r = known - w @ part
            projection, residual = float(np.linalg.norm(w)), float(np.linalg.norm(r))
            size = float(np.linalg.norm(known))
            if min(projection, residual) <= _FITS_WITH_HOLES * size:
                continue
            u, angle, steps = steps.turn(w, residual, size, len(there), len(z))
            step = (np.cos(angle) - 1) * (u @ V)
            step[there] += np.sin(angle) / residual * r
            V += u[:, None] * step
        return V, steps

    @staticmethod
    def _whole_rows(V: np.ndarray, Z: np.ndarray, steps: Steps) -> tuple[np.ndarray, Steps]:
        """Whole rows, with the basis as ``K.T @ [V; Z]`` for the block."""
        k, d = V.shape
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
            u, angle, steps = steps.turn(w, residual**0.5, square**0.5, d, d)
            towards = np.sin(angle) / residual**0.5  # of the residual, z - K w
            step = K @ ((np.cos(angle) - 1) * u - towards * w)
            step[k + t] += towards
            K += step[:, None] * u
        return K[:k].T @ V + K[k:].T @ Z, steps


@dataclass(frozen=True)
class _Grouse:
    """Basis, and what says how the next row turns it."""

    V: np.ndarray
    steps: Steps
