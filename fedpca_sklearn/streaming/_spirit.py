"""SPIRIT: tracking with a number of components that follows the energy. Papadimitriou et al."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from .._base.fitted import computed
from .._kernels import linalg
from .._validation.intervals import AT_LEAST_ONE, Interval, allowed, with_parameters
from ._forgetting import HALF_LIFE, Fading
from ._tracker import Tracker, fit, partial_fit

__all__ = ["SPIRIT"]


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
