"""Frequent Directions: Liberty; Ghashami et al.; the robust variant of Luo et al."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np

from .._base.fitted import computed
from .._kernels import linalg
from .._kernels.sizes import slices_of
from .._validation.checks import AT_LEAST_ONE, allowed, with_parameters
from ._tracker import Tracker, rows_at_once


@with_parameters
class FrequentDirections(Tracker):
    """Deterministic matrix sketch of a stream of rows, and its leading directions.

    The sketch B has ``sketch_size`` rows. Whenever as many new rows have come, the squared
    singular values of both together are lowered by the ``sketch_size``-th largest. The error of the
    scatter matrix has a bound that holds for every stream, whatever the rows.

    Parameters
    ----------
    n_components : int or None, default=None
        Directions to show. None: 10, or all features where there are fewer.
    sketch_size : int or None, default=None
        Rows l of the sketch, more than ``n_components``. None: 2 n_components.
    robust : bool, default=False
        Robust Frequent Directions [3]_: half of what is lowered is kept as a multiple of the
        identity, ``alpha_``; B^T B + alpha I halves the bound.
    center : bool, default=True
        Subtract the running mean. False: about the origin, as in [1]_.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features)
    sketch_ : ndarray of shape (n_sketch, n_features)
        B, with orthogonal rows; ``sketch_.T @ sketch_`` is below the scatter matrix by at most
        ``shrinkage_`` in any direction.
    shrinkage_ : float
        Sum of the squared singular values that were subtracted, at most
        ||A - A_k||_F^2 / (sketch_size - k) for every k < sketch_size.
    alpha_ : float
        ``shrinkage_ / 2`` if ``robust``, else 0.
    singular_values_, explained_variance_, explained_variance_ratio_ : ndarray of shape \
            (n_components_,)
        Measured on the rows as they came; the singular values of the sketch are too small.
    mean_, noise_variance_, n_components_, n_samples_, n_samples_seen_, subspace_
        As in `StreamingPCA`.

    See Also
    --------
    StreamingPCA : Keeps singular values as they are; usually far more accurate.

    Notes
    -----
    A row costs O(d l) operations: every l rows the 2 l x 2 l Gram matrix and one rotation. Memory
    O(d l). Rows that do not fill a block are sketched on a copy when the result is read.

    References
    ----------
    .. [1] E. Liberty, "Simple and deterministic matrix sketching", KDD 2013.
    .. [2] M. Ghashami, E. Liberty, J. M. Phillips, D. P. Woodruff, "Frequent directions: simple and
       deterministic matrix sketching", SIAM J. Comput. 2016.
    .. [3] L. Luo, C. Chen, Z. Zhang, W.-J. Li, T. Zhang, "Robust frequent directions with
       application in online learning", 2017, arXiv:1705.05067.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import FrequentDirections, excess_error
    >>> X = load_digits().data
    >>> sketch = FrequentDirections(5, sketch_size=20).fit(X)
    >>> round(excess_error(X, sketch.components_), 4)
    0.0
    """

    _takes_arrays = True

    sketch_ = computed()
    shrinkage_ = computed()
    alpha_ = computed()

    _fixed = (*Tracker._fixed, "sketch_size")

    n_components: int | None = None
    _: KW_ONLY
    sketch_size: int | None = allowed(AT_LEAST_ONE, None, default=None)
    robust: bool = allowed("boolean", default=False)
    center: bool = True

    def _size(self, d: int) -> int:
        rank = self._rank(d)
        size = 2 * rank if self.sketch_size is None else self.sketch_size
        if size <= rank:
            raise ValueError(f"sketch_size={size} must be larger than n_components={rank}.")
        return size

    def _rows_at_once(self, d: int) -> int:
        return rows_at_once(d, self._size(d))

    def _begin(self, d: int, rng: np.random.RandomState) -> _Sketch:
        return _Sketch(np.zeros((0, d)), np.zeros(0), 0.0)

    def _updated(self, state: _Sketch, Z: np.ndarray) -> _Sketch:
        size = self._size(Z.shape[1])
        V, s, lowered = state.V, state.s, state.lowered
        for rows in slices_of(len(Z), size):  # Fast Frequent Directions of [2]_
            M = np.concatenate([s[:, None] * V, Z[rows]])
            squares, W = linalg.eigh_top(M @ M.T, size)
            squares, W = squares[:size].clip(0), W[:, :size]
            low = float(squares[size - 1]) if len(M) > size else 0.0
            keep = int(np.sum(squares > max(low, len(M) * np.finfo(float).eps * squares[0])))
            V = linalg.orthonormalised((W[:, :keep] / np.sqrt(squares[:keep])).T @ M)
            s, lowered = np.sqrt(squares[:keep] - low), lowered + low
        return _Sketch(V, s, lowered)

    def _basis(self, state: _Sketch) -> np.ndarray:
        rank = self._rank(state.V.shape[1])
        return linalg.complete_basis(state.V[:rank], rank)

    def _show_state(self, state: _Sketch) -> None:
        self.sketch_ = (state.s[:, None] * state.V).astype(self.components_.dtype)
        self.shrinkage_ = state.lowered
        self.alpha_ = state.lowered / 2 if self.robust else 0.0


@dataclass(frozen=True)
class _Sketch:
    """Rows ``diag(s) V`` with orthonormal V, and by how much squares were lowered."""

    V: np.ndarray
    s: np.ndarray
    lowered: float
