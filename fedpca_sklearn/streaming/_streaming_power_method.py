"""Memory-limited streaming PCA by a block power method: Mitliagkas et al."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal

import numpy as np
from sklearn.utils._param_validation import StrOptions

from .._base.fitted import computed
from .._kernels import linalg
from .._validation.intervals import AT_LEAST_ONE, allowed, with_parameters
from ._tracker import START, Tracker, rows_at_once

__all__ = ["StreamingPowerMethod"]


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
            if state.n_rows == state.size:
                state = self._next_block(state)
            start = stop
        return state

    def _next_block(self, state: _Power) -> _Power:
        Q, n, t = state.stepped(), state.n_rows, state.n_steps + 1
        if self.block_size == "auto":
            return _Power(Q, state.S, n, 2 * n, t)
        return _Power(Q, np.zeros_like(Q), 0, int(self.block_size), t)

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
