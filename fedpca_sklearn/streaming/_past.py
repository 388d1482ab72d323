"""PAST and PASTd: projection approximation subspace tracking. Yang."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from .._kernels import linalg
from .._validation.intervals import Interval
from ._recursive_least_squares import LIMIT, inverse_covariance, recent_power
from ._start import StartedTracker

__all__ = ["PAST"]


class PAST(StartedTracker):
    """Projection approximation subspace tracking: recursive least squares for the basis.

    Parameters
    ----------
    n_components : int or None, default=None
        Number of components. None: 10, or all features where there are fewer.
    forgetting_factor : float in (0, 1], default=1.0
        Factor by which the weight of a row shrinks with every later row; beta of [1]_, who takes
        0.97 to 0.995. 1.0: all rows count alike, for streams whose subspace stays.
    deflation : bool, default=False
        True: PASTd, one component after the other; O(d k) a row, but with a loop over the
        components.
    center : bool, default=True
        Subtract the running mean, which forgets as well. False: about the origin, as in [1]_.
    init : {"rows", "random"} or array-like of shape (n_components, n_features), default="rows"
        First basis. "rows": the SVD of the first 2 n_components rows. "random": as in [1]_. Or its
        rows.
    random_state : int, RandomState instance or None, default=None
        Seed of a random basis; with ``init="rows"`` of the directions in which the rows do not
        vary.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features)
        Orthonormal basis of the tracked subspace; the tracked basis itself is only nearly
        orthonormal.
    singular_values_, explained_variance_, explained_variance_ratio_ : ndarray of shape \
            (n_components_,)
        Not part of the method: measured on the rows as they came.
    mean_, noise_variance_, n_components_, n_samples_, n_samples_seen_, subspace_
        As in `StreamingPCA`.

    Notes
    -----
    [1]_, Tables I (PAST) and II (PASTd). PAST is taken through a block of b = 32 rows in the
    coordinates of the basis and of the rows, with the same numbers as row by row: O(d (k + b)) a
    row in matrix products, and O((k + b) k) for itself. Memory O(d k).

    References
    ----------
    .. [1] B. Yang, "Projection approximation subspace tracking", IEEE Trans. Signal Processing
       1995.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import PAST, excess_error
    >>> X = load_digits().data
    >>> past = PAST(5).fit(X)
    >>> round(excess_error(X, past.components_), 2)
    0.0
    """

    _parameter_constraints: dict = {
        **StartedTracker._parameter_constraints,
        "forgetting_factor": [Interval(Real, 0, 1, closed="right")],
        "deflation": ["boolean"],
    }

    _fixed = (*StartedTracker._fixed, "deflation")

    def __init__(
        self,
        n_components: int | None = None,
        *,
        forgetting_factor: float = 1.0,
        deflation: bool = False,
        center: bool = True,
        init: Any = "rows",
        random_state: Any = None,
    ):
        self.n_components = n_components
        self.forgetting_factor = forgetting_factor
        self.deflation = deflation
        self.center = center
        self.init = init
        self.random_state = random_state

    def _begin_at(self, V: np.ndarray, Z: np.ndarray) -> _Past:
        power = recent_power(0.0, Z, self.forgetting_factor)
        if power == 0:
            return _Past(V, np.zeros(0))
        C = Z @ V.T
        P = np.sum(C**2, axis=0) if self.deflation else inverse_covariance(C, power)
        return _Past(V, P, power)

    def _updated(self, state: _Past, Z: np.ndarray) -> _Past:
        power = recent_power(state.power, Z, self.forgetting_factor)
        if power == 0:  # nothing but zeros so far
            return state
        P, k = state.P, len(state.W)
        if not len(P):  # small against the first rows that are not zero
            P = np.full(k, power) if self.deflation else np.eye(k) / power
        state = _Past(state.W, P, power)
        return self._deflated(state, Z) if self.deflation else self._together(state, Z)

    def _together(self, state: _Past, Z: np.ndarray) -> _Past:
        W, P, f = state.W, state.P, self.forgetting_factor
        k = len(W)
        K = np.zeros((k + len(Z), k))
        K[:k] = np.eye(k)
        products = np.concatenate([W @ Z.T, Z @ Z.T])
        for t, q in enumerate(products.T):
            y = q @ K
            h = P @ y
            g = h / (f + y @ h)
            K -= (K @ y)[:, None] * g
            K[k + t] += g
            P = (P - g[:, None] * h) / f
        # while rows are zero P grows without bound
        P *= min(1.0, LIMIT * k / (state.power * np.trace(P)))
        return _Past(K[:k].T @ W + K[k:].T @ Z, (P + P.T) / 2, state.power)

    def _deflated(self, state: _Past, Z: np.ndarray) -> _Past:
        W, power, f = state.W.copy(), state.P.copy(), self.forgetting_factor
        for z in Z.copy():
            for i, w in enumerate(W):
                y = float(w @ z)
                power[i] = max(f * power[i] + y * y, state.power / LIMIT)
                w += (y / power[i]) * (z - y * w)
                z -= y * w
        # after rows of zeros the first other row can make a component huge
        norms = np.linalg.norm(W, axis=1, keepdims=True)
        W /= np.where(norms > 10, norms, 1)
        return _Past(W, power, state.power)

    def _basis(self, state: _Past) -> np.ndarray:
        return linalg.orthonormalised(state.W)


@dataclass(frozen=True)
class _Past:
    """Basis, inverse covariance (with deflation: power) of the coordinates, recent power."""

    W: np.ndarray
    P: np.ndarray  # empty until a row is not zero
    power: float = 0.0
