"""Oja's rule for several components, in mini-batches."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Any, Literal

import numpy as np
from sklearn.utils._param_validation import StrOptions

from .._kernels import linalg
from .._kernels.sizes import slices_of
from .._validation.intervals import AT_LEAST_ONE, Interval, allowed, with_parameters
from ._tracker import START, Tracker, rows_at_once

__all__ = ["OjaPCA"]


@with_parameters
class OjaPCA(Tracker):
    """Stochastic gradient ascent on the explained variance, with orthonormalisation.

    Parameters
    ----------
    n_components : int or None, default=None
        Number of components. None: 10, or all features where there are fewer.
    learning_rate : float, "averaged" or "adaptive", default="averaged"
        "averaged": for each component the inverse of the sum of its squared coordinates, in which
        rows count more the later they come, so that all rows count and none needs a scale.
        "adaptive": the step of AdaOja [2]_, the inverse root of the sum of all its squared
        gradients. A float c: steps c / t at the t-th batch, for c near 1 / (gap of the
        eigenvalues) [1]_.
    batch_size : int, default=1
        Rows per step; [2]_ takes more. One basis serves all of them: few are more accurate, many
        faster, as a step makes the basis orthonormal in O(d k^2).
    center : bool, default=True
        Subtract the running mean. False: about the origin, as in [1]_.
    init : {"rows", "random"} or array-like of shape (n_components, n_features), default="rows"
        First basis. "rows": the SVD of the first 2 n_components rows. "random": as in [1]_. Or its
        rows.
    random_state : int, RandomState instance or None, default=None
        Seed of a random basis; with ``init="rows"`` of the directions in which the rows do not
        vary.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features)
    singular_values_, explained_variance_, explained_variance_ratio_ : ndarray of shape \
            (n_components_,)
        Not part of the method: measured on the rows as they came.
    mean_, noise_variance_, n_components_, n_samples_, n_samples_seen_, subspace_
        As in `StreamingPCA`.

    Notes
    -----
    Q <- orth(Q + eta mean(z z^T) Q), Oja (1982) with the mini-batches and the
    orthonormalisation of [2]_; with "averaged" steps components are made orthonormal in the order
    of their power. Time O(d k) a row and O(d k^2) a batch, memory O(d k). Rows of an
    unfinished batch wait, and move a copy of the basis when the result is read.

    References
    ----------
    .. [1] E. Oja, "Simplified neuron model as a principal component analyzer", J. Math. Biology
       1982.
    .. [2] A. Henriksen, R. Ward, "AdaOja: adaptive learning rates for streaming PCA", 2019,
       arXiv:1905.12115.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import OjaPCA, excess_error
    >>> X = load_digits().data
    >>> oja = OjaPCA(5).fit(X)
    >>> round(excess_error(X, oja.components_), 2)
    0.0
    """

    _takes_arrays = True

    _fixed = (*Tracker._fixed, "init", "batch_size")

    n_components: int | None = None
    _: KW_ONLY
    learning_rate: float | Literal["averaged", "adaptive"] = allowed(
        StrOptions({"averaged", "adaptive"}),
        Interval(Real, 0, None, closed="neither"),
        default="averaged",
    )
    batch_size: int = allowed(AT_LEAST_ONE, default=1)
    center: bool = True
    init: Any = allowed(*START["init"], default="rows")
    random_state: Any = allowed(*START["random_state"], default=None)

    def _rows_at_once(self, d: int) -> int:
        return rows_at_once(d, self.batch_size)

    def _begin_at(self, V: np.ndarray, Z: np.ndarray) -> _Oja:
        if self.learning_rate == "averaged":
            return _Oja(V, np.sum((Z @ V.T) ** 2, axis=0), len(Z), 0)
        return _Oja(V, np.zeros(len(V)), 0, 0)

    def _updated(self, state: _Oja, Z: np.ndarray) -> _Oja:
        for at in slices_of(len(Z), self.batch_size):
            state = self._step(state, Z[at])
        return state

    def _step(self, state: _Oja, rows: np.ndarray) -> _Oja:
        Q, sizes, n, t = state.Q, state.sizes, state.n_rows + len(rows), state.n_steps + 1
        C = rows @ Q.T
        gradient = C.T @ rows
        if self.learning_rate == "averaged":
            sizes = sizes * (state.n_rows / n) + np.einsum("ij,ij->j", C, C)
            gradient /= np.where(sizes > 0, sizes, 1.0)[:, None]
            order = np.argsort(-sizes, kind="stable")  # the stronger keeps what two have in common
            Q, gradient, sizes = Q[order], gradient[order], sizes[order]
        elif self.learning_rate == "adaptive":
            gradient /= len(rows)
            largest = float(np.abs(gradient).max()) or 1.0  # squares may vanish or overflow
            gradient /= largest
            lengths = np.sqrt(np.einsum("ij,ij->i", gradient, gradient))
            sizes = np.hypot(sizes, largest * lengths)
            gradient *= (largest / np.where(sizes > 0, sizes, 1.0))[:, None]
        else:
            gradient *= self.learning_rate / (t * len(rows))
        return _Oja(linalg.orthonormalised(Q + gradient), sizes, n, t)

    def _basis(self, state: _Oja) -> np.ndarray:
        return state.Q


@dataclass(frozen=True)
class _Oja:
    """Basis, for each component what its steps are the inverse of, number of rows and of steps."""

    Q: np.ndarray
    sizes: np.ndarray
    n_rows: int
    n_steps: int
