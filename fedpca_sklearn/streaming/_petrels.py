"""PETRELS: recursive least squares for each feature, from rows with missing entries. Chi et al."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from numbers import Real
from typing import Any, Literal

import numpy as np
import scipy.linalg
from sklearn.utils._param_validation import StrOptions

from .._kernels import linalg
from .._kernels.tolerances import GRAM_ROUNDING, UNDETERMINED_RCOND
from .._validation.checks import Interval, allowed, with_parameters
from ._affine import AffineTracker, Move
from ._forgetting import (
    EMPTY,
    HALF_LIFE,
    LIMIT,
    Fading,
    Memory,
    age,
    bound,
    inverse_covariance,
    recent_power,
)
from ._tracker import fit, partial_fit


@with_parameters
class PETRELS(AffineTracker):
    """Parallel estimation and tracking by recursive least squares; missing entries are NaN.

    Each row gets its coordinates from the entries that are there, and each feature that is there
    refits its loadings to all coordinates so far by recursive least squares with forgetting.

    Parameters
    ----------
    n_components : int or None, default=None
        Number of components. None: 10, or all features where there are fewer.
    forgetting_factor : float in (0, 1] or "growing", default="growing"
        Factor by which the weight of a row shrinks with every later row; lambda of [1]_, who take
        0.98. "growing": 1 at whole rows, (n / (n + 1))^((1 - s) / s) at a row of which a share s is
        there, so that noise averages out over a stream whose subspace stays. n is the number of
        rows before; while the mean square of recent residuals is below all before it falls with
        it, and the power is 1 / s, so that a subspace without noise is found to rounding. So it
        is always where the first basis is not from rows. Mean and variances do not fade.
    half_life : float, str, timedelta or None, default=None
        The same in another unit, as in `StreamingPCA`: the number of later rows after which a row
        has half its weight, or a time such as "1h"; then rows come with ``times``, in order. After
        a long gap the rule keeps 1e-8 of the past. ``forgetting_factor`` must be as by default.
    regularization : float, default=1e-2
        First value of the covariance of the coordinates, relative to the mean square of the first
        rows that are not zero. Where the first basis is from rows, theirs is the first value.
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
        Orthonormal basis of the tracked subspace.
    singular_values_, explained_variance_, explained_variance_ratio_ : ndarray of shape \
            (n_components_,)
        Not part of the method: measured on the least-squares coordinates of the rows as they came.
    mean_, noise_variance_, n_components_, n_samples_, n_samples_seen_, subspace_, last_time_
        As in `StreamingPCA`; the total variance from the entries that are there. Where entries are
        missing, the mean is that of the observed ones within the affine subspace, and the noise at
        least that of recent rows.

    Notes
    -----
    [1]_, Algorithm 1, but for rows with no more entries than components: they fit any basis, and
    only age the others, where [1]_ refits with them. Memory O(d k^2) and time O(d k^2) a row as
    soon as entries are missing, for all features at once; O(d k) before. `transform` and `impute`
    take rows with missing entries: these are predicted by their means given the rest of their row,
    as in `SubspaceTracker`, with the noise of recent rows.

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

    # `times` travels through pipelines and searches without a request by the user
    __metadata_request__fit = {"times": True}
    __metadata_request__partial_fit = {"times": True}
    fit = fit
    partial_fit = partial_fit

    n_components: int | None = None
    _: KW_ONLY
    forgetting_factor: float | Literal["growing"] = allowed(
        StrOptions({"growing"}), Interval(Real, 0, 1, closed="right"), default="growing"
    )
    half_life: Any = allowed(*HALF_LIFE, default=None)
    regularization: float = allowed(Interval(Real, 0, None, closed="neither"), default=1e-2)
    center: bool = True
    init: Any = "rows"
    random_state: Any = None

    def _begin_at(self, V: np.ndarray, Z: np.ndarray) -> _Petrels:
        power = recent_power(0.0, Z, 1.0)
        if power == 0:
            return _Petrels(V.T, None)
        P = inverse_covariance(Z @ V.T, power)
        return _Petrels(V.T, P, power, Memory(len(Z), patient=True))

    def _moved(self, state: _Petrels, move: Move) -> _Petrels:
        return replace(state, U=move.of(state.U.T).T)

    def _faded(self, state: _Petrels, Z: np.ndarray, fading: Fading) -> _Petrels:
        power = recent_power(state.power, Z, fading.to_end[0])
        if power == 0:  # nothing but zeros so far
            return state
        U, P, start = state.U, state.P, 1 / (self.regularization * power)
        P = np.eye(U.shape[1]) * start if P is None else P.copy()
        factors, most = fading.factors.tolist(), LIMIT * start
        grows, memory = self.half_life is None and self.forgetting_factor == "growing", state.memory
        if P.ndim == 2 and not np.isnan(Z).any():
            U = self._whole_rows(U, P, Z, factors, most)
            if grows:  # rows of zeros say nothing
                memory = memory.with_whole_rows(int(Z.any(axis=1).sum()))
        else:
            U = U.copy()
            # from here on each feature has its own
            P = np.repeat(P[None], len(U), axis=0) if P.ndim == 2 else P
            for z, f in zip(Z, factors, strict=True):
                if f < 1:
                    age(P, f, most)
                memory = self._row(U, P, z, memory, grows)
        return _Petrels(U, P, power, memory).balanced(most)

    _updated = _faded  # type: ignore[assignment]

    @staticmethod
    def _row(U: np.ndarray, P: np.ndarray, z: np.ndarray, memory: Memory, grows: bool) -> Memory:
        """One row, in place; it takes weight from those before if the memory ``grows``."""
        known = np.flatnonzero(~np.isnan(z))
        if len(known) <= U.shape[1]:
            return memory
        part = U[known]
        a = np.linalg.lstsq(part, z[known], rcond=UNDETERMINED_RCOND)[0]
        r = z[known] - part @ a
        square = float(z[known] @ z[known])
        if grows and square > 0:  # zeros say nothing
            left, memory = memory.after(float(r @ r), square, len(known), *U.shape)
            if left < 1:
                P /= left
        h = P[known] @ a
        g = h / (1 + h @ a)[:, None]
        U[known] = part + r[:, None] * g
        P[known] -= g[:, :, None] * h[:, None, :]
        return memory

    @staticmethod
    def _whole_rows(
        U: np.ndarray, P: np.ndarray, Z: np.ndarray, factors: list[float], most: float
    ) -> np.ndarray:
        """Whole rows: all features share P, changed in place; U is ``[U, Z^T] K`` for the block."""
        k = U.shape[1]
        K = np.zeros((k + len(Z), k))
        K[:k] = np.eye(k)
        products = np.concatenate([U.T @ Z.T, Z @ Z.T])
        squares = np.diag(products[k:])
        M = U.T @ U
        for t, (q, f) in enumerate(zip(products.T, factors, strict=True)):
            y = q @ K
            a = np.linalg.lstsq(M, y, rcond=GRAM_ROUNDING)[0]
            residual = max(float(squares[t] - y @ a), 0.0)  # orthogonal to U
            if f < 1:
                age(P, f, most)
            h = P @ a
            g = h / (1 + h @ a)
            K -= (K @ a)[:, None] * g
            K[k + t] += g
            P -= g[:, None] * h
            M = M + residual * (g[:, None] * g)
        return U @ K[:k] + Z.T @ K[k:]

    def _basis(self, state: _Petrels) -> np.ndarray:
        return linalg.orthonormalised(state.U.T)


@dataclass(frozen=True)
class _Petrels:
    """Loadings (d, k), inverse covariance of coordinates, one or one a feature, power, memory."""

    U: np.ndarray
    P: np.ndarray | None
    power: float = 0.0
    memory: Memory = EMPTY

    def balanced(self, most: float) -> _Petrels:
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
        bound(P, most)
        return replace(self, U=Q, P=P)
