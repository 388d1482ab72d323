"""PAST and PASTd (Yang), and SPIRIT (Papadimitriou et al.), which adapts the rank of PASTd."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from .._base.fitted import computed
from .._kernels import linalg
from .._validation.checks import AT_LEAST_ONE, Interval, allowed, with_parameters
from ._forgetting import HALF_LIFE, LIMIT, Fading, age, bound, inverse_covariance, recent_power
from ._tracker import START, Tracker, fit, partial_fit


@with_parameters
class PAST(Tracker):
    """Projection approximation subspace tracking: recursive least squares for the basis.

    Parameters
    ----------
    n_components : int or None, default=None
        Number of components. None: 10, or all features where there are fewer.
    forgetting_factor : float in (0, 1], default=1.0
        Factor by which the weight of a row shrinks with every later row; beta of [1]_, who takes
        0.97 to 0.995. 1.0: all rows count alike, for streams whose subspace stays.
    half_life : float, str, timedelta or None, default=None
        The same in another unit, as in `StreamingPCA`: the number of later rows after which a row
        has half its weight, or a time such as "1h"; then rows come with ``times``, in order. After
        a long gap the rule keeps 1e-8 of the past. ``forgetting_factor`` must be as by default.
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
    mean_, noise_variance_, n_components_, n_samples_, n_samples_seen_, subspace_, last_time_
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

    # `times` travels through pipelines and searches without a request by the user
    __metadata_request__fit = {"times": True}
    __metadata_request__partial_fit = {"times": True}
    fit = fit
    partial_fit = partial_fit

    _fixed = (*Tracker._fixed, "init", "deflation")

    n_components: int | None = None
    _: KW_ONLY
    forgetting_factor: float = allowed(Interval(Real, 0, 1, closed="right"), default=1.0)
    half_life: Any = allowed(*HALF_LIFE, default=None)
    deflation: bool = allowed("boolean", default=False)
    center: bool = True
    init: Any = allowed(*START["init"], default="rows")
    random_state: Any = allowed(*START["random_state"], default=None)

    def _begin_at(self, V: np.ndarray, Z: np.ndarray) -> _Past:
        power = recent_power(0.0, Z, 1.0)
        if power == 0:
            return _Past(V, np.zeros(0))
        C = Z @ V.T
        P = np.sum(C**2, axis=0) if self.deflation else inverse_covariance(C, power)
        return _Past(V, P, power)

    def _faded(self, state: _Past, Z: np.ndarray, fading: Fading) -> _Past:
        power = recent_power(state.power, Z, fading.to_end[0])
        if power == 0:  # nothing but zeros so far
            return state
        P, k = state.P, len(state.W)
        if not len(P):  # small against the first rows that are not zero
            P = np.full(k, power) if self.deflation else np.eye(k) / power
        state, factors = _Past(state.W, P, power), fading.factors.tolist()
        return (self._deflated if self.deflation else self._jointly)(state, Z, factors)

    _updated = _faded  # type: ignore[assignment]

    def _jointly(self, state: _Past, Z: np.ndarray, factors: list[float]) -> _Past:
        W, P, most = state.W, state.P.copy(), LIMIT / state.power
        k = len(W)
        K = np.zeros((k + len(Z), k))
        K[:k] = np.eye(k)
        products = np.concatenate([W @ Z.T, Z @ Z.T])
        for t, (q, f) in enumerate(zip(products.T, factors, strict=True)):
            y = q @ K
            if f < 1:
                age(P, f, most)
            h = P @ y
            g = h / (1 + y @ h)
            K -= (K @ y)[:, None] * g
            K[k + t] += g
            P -= g[:, None] * h
        bound(P, most)  # while rows are zero P grows
        return _Past(K[:k].T @ W + K[k:].T @ Z, (P + P.T) / 2, state.power)

    def _deflated(self, state: _Past, Z: np.ndarray, factors: list[float]) -> _Past:
        W, power = state.W.copy(), state.P.copy()
        for z, f in zip(Z.copy(), factors, strict=True):
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


@with_parameters
class SPIRIT(Tracker):
    """Hidden variables of a stream, as many as hold a share of its energy.

    Components are tracked by deflation; one is added when they hold less than ``lower`` of the
    energy seen, and the last one is dropped when they hold more than ``upper``.

    Parameters
    ----------
    n_components : int, default=1
        Components to start with.
    lower, upper : float in [0, 1], default=0.95 and 0.98
        Bounds of the share of the energy, f_E and F_E of [1]_; 0 and 1 switch one off.
    forgetting_factor : float in (0, 1], default=0.96
        Factor by which the weight of a row shrinks with every later row; lambda of [1]_.
    half_life : float, str, timedelta or None, default=None
        The same in another unit, as in `StreamingPCA`: the number of later rows after which a row
        has half its weight, or a time such as "1h"; then rows come with ``times``, in order. After
        a long gap the rule keeps 1e-8 of the past. ``forgetting_factor`` must be as by default.
    hold_off : int, default=10
        Rows after a change of the number of components before the next one, and before the first.
    center : bool, default=True
        Subtract the running mean, which forgets as well. False: about the origin, as in [1]_.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features)
    n_components_ : int
        Number of components now, at most the number of rows.
    energy_ratio_ : float
        Share of the energy that the components hold, as the method counts it.
    singular_values_, explained_variance_, explained_variance_ratio_ : ndarray of shape \
            (n_components_,)
        Measured on the rows as they came.
    mean_, noise_variance_, n_samples_, n_samples_seen_, subspace_, last_time_
        As in `StreamingPCA`.

    See Also
    --------
    EnergyBounds : The same bounds as a rank rule of `StreamingPCA`.

    Notes
    -----
    [1]_, Algorithms TrackW and SPIRIT; energies are measured after the update with a row. O(d k^2)
    a row, with a loop over the components. They are made orthonormal after each row by a QR
    factorisation, in the place of Gram-Schmidt, which loses components that are nearly dependent.
    Where they are not, energy is counted twice or not at all, and the number of components is
    erratic.
    A new component starts as the coordinate axis of the largest residual entry of its row; one that
    starts as the axis of a constant feature would never move.

    Without forgetting, on spectra that fall slowly, the number of components grows with the stream.

    References
    ----------
    .. [1] S. Papadimitriou, J. Sun, C. Faloutsos, "Streaming pattern discovery in multiple
       time-series", VLDB 2005.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import SPIRIT
    >>> spirit = SPIRIT(center=False).fit(load_digits().data)
    >>> spirit.n_components_
    10
    """

    energy_ratio_ = computed()

    # `times` travels through pipelines and searches without a request by the user
    __metadata_request__fit = {"times": True}
    __metadata_request__partial_fit = {"times": True}
    fit = fit
    partial_fit = partial_fit

    n_components: int = allowed(AT_LEAST_ONE, default=1)
    _: KW_ONLY
    lower: float = allowed(Interval(Real, 0, 1, closed="both"), default=0.95)
    upper: float = allowed(Interval(Real, 0, 1, closed="both"), default=0.98)
    forgetting_factor: float = allowed(Interval(Real, 0, 1, closed="right"), default=0.96)
    half_life: Any = allowed(*HALF_LIFE, default=None)
    hold_off: int = allowed(Interval(Integral, 0, None, closed="left"), default=10)
    center: bool = True

    def _validate_params(self) -> None:
        super()._validate_params()
        if not self.lower < self.upper:
            raise ValueError(
                f"SPIRIT needs lower < upper, got lower={self.lower!r} and upper={self.upper!r}."
            )

    def _begin(self, d: int, rng: np.random.RandomState) -> _Spirit:
        k = self.n_components
        return _Spirit(np.eye(k, d), np.zeros(k), 0.0, 0.0, 0.0, 0)

    def _faded(self, state: _Spirit, Z: np.ndarray, fading: Fading) -> _Spirit:
        d = Z.shape[1]
        W, power = state.W.copy(), state.power.copy()
        weight, explained, energy, rest = (
            state.weight,
            state.explained,
            state.energy,
            state.rows_since_change,
        )
        for z, f in zip(Z, fading.factors.tolist(), strict=True):
            square = float(z @ z)
            if energy == 0 < square:  # the first row that is not zero
                power += 1e-2 * square / np.count_nonzero(z)
                W = np.zeros_like(W)
                W[np.arange(len(W)), np.argsort(-np.abs(z), kind="stable")[: len(W)]] = 1
            rest += 1
            if square > 0:
                x = z.copy()
                for i, w in enumerate(W):
                    y = float(w @ x)
                    power[i] = f * power[i] + y * y
                    if power[i] > 0:
                        w += (y / power[i]) * (x - y * w)
                    x -= y * w
                W = linalg.orthonormalised(W)
            y = W @ z
            explained, energy, weight = (
                f * explained + float(y @ y),
                f * energy + square,
                f * weight + 1,
            )
            if rest > self.hold_off:
                if square > 0 and explained < self.lower * energy and len(W) < d:
                    W = _with_axis(W, z - y @ W)
                    # small against recent rows
                    power = np.append(power, 1e-2 * energy / (weight * np.count_nonzero(z)))
                    rest = 0
                elif self.upper < 1 and explained > self.upper * energy and len(W) > 1:
                    W, power, rest = W[:-1], power[:-1], 0
        return _Spirit(W, power, weight, explained, energy, rest)

    _updated = _faded  # type: ignore[assignment]

    def _basis(self, state: _Spirit) -> np.ndarray:
        return state.W

    def _show_state(self, state: _Spirit) -> None:
        self.energy_ratio_ = state.explained / state.energy if state.energy > 0 else 1.0


@dataclass(frozen=True)
class _Spirit:
    """Components and powers; weight, energy held and energy of all rows; rows at this rank."""

    W: np.ndarray
    power: np.ndarray
    weight: float
    explained: float
    energy: float
    rows_since_change: int


def _with_axis(W: np.ndarray, residual: np.ndarray) -> np.ndarray:
    """Orthonormal rows and one more, towards the axis of the largest residual entry."""
    if not residual.any():
        return linalg.complete_basis(W, len(W) + 1)
    axis = np.zeros((1, W.shape[1]))
    axis[0, np.argmax(np.abs(residual))] = 1
    return linalg.orthonormalised(np.concatenate([W, axis]))
