"""Stochastic power iterations: Oja's rule in mini-batches, and the method in blocks of rows."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from numbers import Real
from typing import Any, Literal

import numpy as np
from sklearn.utils._param_validation import StrOptions

from .._base.fitted import computed
from .._kernels import linalg
from .._kernels.sizes import slices_of
from .._validation.checks import AT_LEAST_ONE, Interval, allowed, with_parameters
from ._tracker import START, Tracker, rows_at_once


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
        Q, sizes, before, t = state.Q, state.sizes, state.n_rows, state.n_steps
        for at in slices_of(len(Z), self.batch_size):
            rows = Z[at]
            C = rows @ Q.T
            gradient, n, t = C.T @ rows, before + len(rows), t + 1
            if self.learning_rate == "averaged":
                sizes = sizes * (before / n) + np.einsum("ij,ij->j", C, C)
                gradient /= np.where(sizes > 0, sizes, 1.0)[:, None]
                # the stronger keeps what two have in common
                order = np.argsort(-sizes, kind="stable")
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
            Q, before = linalg.orthonormalised(Q + gradient), n
        return _Oja(Q, sizes, before, t)

    def _basis(self, state: _Oja) -> np.ndarray:
        return state.Q


@dataclass(frozen=True)
class _Oja:
    """Basis, for each component what its steps are the inverse of, number of rows and of steps."""

    Q: np.ndarray
    sizes: np.ndarray
    n_rows: int
    n_steps: int


@with_parameters
class StreamingPowerMethod(Tracker):
    """Power method whose every step takes a fresh block of rows.

    A block of ``block_size`` rows multiplies the basis by its scatter matrix, without forming it;
    then the basis is made orthonormal again. With blocks of one size only the last ones matter for
    a strong spectrum: it follows a subspace that moves, and its accuracy is that of a few blocks
    however long the stream is. Rows of an unfinished block wait in the product and do not yet move
    the basis, except for those of the first one. By default all rows count, at any time.

    Parameters
    ----------
    n_components : int or None, default=None
        Number of components. None: 10, or all features where there are fewer.
    block_size : int or "auto", default="auto"
        Rows per step. "auto": as many as have come before, and their products stay in the sum, so
        that all rows count (as in history PCA [2]_). An int: blocks of this size, each with a sum
        of its own, as in [1]_; Grammenos et al. (2019) take the number of features.
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
    n_steps_ : int
        Blocks that were finished, without rows that the first basis was made from.
    singular_values_, explained_variance_, explained_variance_ratio_ : ndarray of shape \
            (n_components_,)
        Not part of the method: measured on the rows, in the basis of their block.
    mean_, noise_variance_, n_components_, n_samples_, n_samples_seen_, subspace_
        As in `StreamingPCA`.

    Notes
    -----
    [1]_, Algorithm 1. By default n rows make about log2(n / n_components) steps. Time O(d k) a row
    and O(d k^2) a block, memory O(d k).

    References
    ----------
    .. [1] I. Mitliagkas, C. Caramanis, P. Jain, "Memory limited, streaming PCA", NeurIPS 2013.
    .. [2] P. Yang, C.-J. Hsieh, J.-L. Wang, "History PCA: a new algorithm for streaming PCA", 2018,
       arXiv:1802.05447.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import StreamingPowerMethod, excess_error
    >>> X = load_digits().data
    >>> power = StreamingPowerMethod(5).fit(X)
    >>> power.n_steps_, round(excess_error(X, power.components_), 2)
    (7, 0.0)
    """

    _takes_arrays = True

    n_steps_ = computed()

    _fixed = (*Tracker._fixed, "init", "block_size")

    n_components: int | None = None
    _: KW_ONLY
    block_size: int | Literal["auto"] = allowed(StrOptions({"auto"}), AT_LEAST_ONE, default="auto")
    center: bool = True
    init: Any = allowed(*START["init"], default="rows")
    random_state: Any = allowed(*START["random_state"], default=None)

    def _rows_at_once(self, d: int) -> int:
        most = rows_at_once(d)
        return most if self.block_size == "auto" else min(int(self.block_size), most)

    def _begin_at(self, V: np.ndarray, Z: np.ndarray) -> _Power:
        if self.block_size == "auto":
            return _Power(V, (Z @ V.T).T @ Z, len(Z), 2 * max(len(Z), len(V)), 0)
        return _Power(V, np.zeros_like(V), 0, int(self.block_size), 0)

    def _updated(self, state: _Power, Z: np.ndarray) -> _Power:
        start = 0
        while start < len(Z):
            stop = min(len(Z), start + state.size - state.n_rows)
            rows = Z[start:stop]
            S = state.S + (rows @ state.Q.T).T @ rows
            state = replace(state, S=S, n_rows=state.n_rows + len(rows))
            if state.n_rows == state.size:  # the next block
                Q, n, t = state.stepped(), state.n_rows, state.n_steps + 1
                if self.block_size == "auto":
                    state = _Power(Q, state.S, n, 2 * n, t)
                else:
                    state = _Power(Q, np.zeros_like(Q), 0, int(self.block_size), t)
            start = stop
        return state

    def _basis(self, state: _Power) -> np.ndarray:
        waits = self.block_size != "auto" and state.n_steps
        return state.Q if waits else state.stepped()

    def _show_state(self, state: _Power) -> None:
        self.n_steps_ = state.n_steps


@dataclass(frozen=True)
class _Power:
    """Basis Q; sum S of the products of rows with it; rows in S, and at the next step; steps."""

    Q: np.ndarray
    S: np.ndarray
    n_rows: int
    size: int
    n_steps: int

    def stepped(self) -> np.ndarray:
        """The basis of the product; directions without rows stay as they are."""
        scale = np.abs(self.S).max()
        if not scale > 0:
            return self.Q
        # a little of the old basis decides where the product is rank-deficient
        return linalg.orthonormalised(self.S / scale + 1e-14 * self.Q)
