"""Oja's rule for several components, in mini-batches."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from .._kernels import linalg
from .._kernels.slices import slices_of
from ._tracker import Tracker, rows_at_once

__all__ = ["OjaPCA"]


class OjaPCA(Tracker):
    """Stochastic gradient ascent on the explained variance, with orthonormalisation.

    Parameters
    ----------
    n_components : int or None, default=None
        Number of components. None: 10, or all features where there are fewer.
    learning_rate : float or "adaptive", default="adaptive"
        "adaptive": the step of AdaOja [2]_, for each component the inverse root of the sum of all
        its squared gradients; it needs no knowledge of the scale of the rows. A float c: steps
        c / t at the t-th batch, for c near 1 / (gap of the eigenvalues) [1]_.
    batch_size : int, default=32
        Rows per step.
    center : bool, default=True
        Subtract the running mean. False: about the origin, as in [1]_.
    random_state : int, RandomState instance or None, default=None
        Seed of the first basis.

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
    orthonormalisation of [2]_. Time O(d k) a row and O(d k^2) a batch, memory O(d k). Rows of an
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
    >>> oja = OjaPCA(5, random_state=0).fit(X)
    >>> round(excess_error(X, oja.components_), 2)
    0.02
    """

    _parameter_constraints: dict = {
        **Tracker._parameter_constraints,
        "learning_rate": [StrOptions({"adaptive"}), Interval(Real, 0, None, closed="neither")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
    }

    _fixed = (*Tracker._fixed, "batch_size")

    def __init__(
        self,
        n_components: int | None = None,
        *,
        learning_rate: float | Literal["adaptive"] = "adaptive",
        batch_size: int = 32,
        center: bool = True,
        random_state: Any = None,
    ):
        self.n_components = n_components
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.center = center
        self.random_state = random_state

    def _rows_at_once(self, d: int) -> int:
        return rows_at_once(d, self.batch_size)

    def _begin(self, d: int, rng: np.random.RandomState) -> _Oja:
        Q = linalg.random_basis(self._rank(d), d, rng)
        return _Oja(Q, np.zeros(len(Q)), 0)

    def _updated(self, state: _Oja, Z: np.ndarray) -> _Oja:
        Q, norms, t = state.Q, state.norms, state.n_steps
        for at in slices_of(len(Z), self.batch_size):
            rows = Z[at]
            t += 1
            gradient = (rows @ Q.T).T @ rows
            gradient /= len(rows)
            if self.learning_rate == "adaptive":
                largest = float(np.abs(gradient).max()) or 1.0  # squares may vanish or overflow
                gradient /= largest
                sizes = np.sqrt(np.einsum("ij,ij->i", gradient, gradient))
                norms = np.hypot(norms, largest * sizes)
                gradient *= (largest / np.where(norms > 0, norms, 1.0))[:, None]
            else:
                gradient *= self.learning_rate / t
            Q = linalg.orthonormalised(Q + gradient)
        return _Oja(Q, norms, t)

    def _basis(self, state: _Oja) -> np.ndarray:
        return state.Q


@dataclass(frozen=True)
class _Oja:
    """Basis, norms of all gradients of each component, number of steps."""

    Q: np.ndarray
    norms: np.ndarray
    n_steps: int
