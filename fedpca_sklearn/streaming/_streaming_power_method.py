"""Memory-limited streaming PCA by a block power method: Mitliagkas et al."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from .._kernels import linalg
from ._tracker import Tracker, rows_at_once

__all__ = ["StreamingPowerMethod"]


class StreamingPowerMethod(Tracker):
    """Power method whose every step takes a fresh block of rows.

    A block of ``block_size`` rows multiplies the basis by its scatter matrix, without forming it;
    then the basis is made orthonormal again. Rows of an unfinished block wait in the product and do
    not yet move the basis, except for those of the first block. Only the last blocks matter for a
    strong spectrum, so it follows a subspace that moves, and its accuracy is that of a few blocks
    however long the stream is.

    Parameters
    ----------
    n_components : int or None, default=None
        Number of components. None: 10, or all features where there are fewer.
    block_size : int or "auto", default="auto"
        Rows per step. "auto": the number of features, as Grammenos et al. (2020) set it.
    center : bool, default=True
        Subtract the running mean. False: about the origin, as in [1]_.
    random_state : int, RandomState instance or None, default=None
        Seed of the basis before the first block.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features)
    n_steps_ : int
        Blocks that were finished.
    singular_values_, explained_variance_, explained_variance_ratio_ : ndarray of shape \
            (n_components_,)
        Not part of the method: measured on the rows, in the basis of their block.
    mean_, noise_variance_, n_components_, n_samples_, n_samples_seen_, subspace_
        As in `StreamingPCA`.

    Notes
    -----
    [1]_, Algorithm 1. Time O(d k) a row and O(d k^2) a block, memory O(d k).

    References
    ----------
    .. [1] I. Mitliagkas, C. Caramanis, P. Jain, "Memory limited, streaming PCA", NeurIPS 2013.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import StreamingPowerMethod, excess_error
    >>> X = load_digits().data
    >>> power = StreamingPowerMethod(5, random_state=0).fit(X)
    >>> power.n_steps_, round(excess_error(X, power.components_), 2)
    (28, 0.14)
    """

    _parameter_constraints: dict = {
        **Tracker._parameter_constraints,
        "block_size": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
    }

    _fixed = (*Tracker._fixed, "block_size")

    def __init__(
        self,
        n_components: int | None = None,
        *,
        block_size: int | Literal["auto"] = "auto",
        center: bool = True,
        random_state: Any = None,
    ):
        self.n_components = n_components
        self.block_size = block_size
        self.center = center
        self.random_state = random_state

    def _block(self, d: int) -> int:
        return d if self.block_size == "auto" else self.block_size

    def _rows_at_once(self, d: int) -> int:
        return min(self._block(d), rows_at_once(d))

    def _begin(self, d: int, rng: np.random.RandomState) -> _Power:
        Q = linalg.random_basis(self._rank(d), d, rng)
        return _Power(Q, np.zeros_like(Q), 0, 0)

    def _updated(self, state: _Power, Z: np.ndarray) -> _Power:
        size = self._block(Z.shape[1])
        start = 0
        while start < len(Z):
            stop = min(len(Z), start + size - state.n_rows)
            rows = Z[start:stop]
            S = state.S + (rows @ state.Q.T).T @ rows
            state = _Power(state.Q, S, state.n_rows + len(rows), state.n_steps)
            if state.n_rows == size:
                state = state.step()
            start = stop
        return state

    def _basis(self, state: _Power) -> np.ndarray:
        return state.Q if state.n_steps else state.step().Q

    def _show_state(self, state: _Power) -> None:
        self.n_steps_ = state.n_steps


@dataclass(frozen=True)
class _Power:
    """Basis Q, its product S with the scatter of the rows of the block so far, and counts."""

    Q: np.ndarray
    S: np.ndarray
    n_rows: int
    n_steps: int

    def step(self) -> _Power:
        """The basis of the product; directions without rows stay as they are."""
        scale = np.abs(self.S).max()
        Q = self.Q
        if scale > 0:
            # a little of the old basis decides where the product is rank-deficient
            Q = linalg.orthonormalised(self.S / scale + 1e-14 * self.Q)
        return _Power(Q, np.zeros_like(Q), 0, self.n_steps + 1)
