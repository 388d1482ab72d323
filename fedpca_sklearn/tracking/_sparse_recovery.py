"""Sparse outliers of rows near a known subspace: modified compressed sensing, in batches."""

from __future__ import annotations

from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import check_array

from .._kernels import linalg
from .._kernels.observed import gram_inverses
from .._kernels.tolerances import GIVEN_BASIS_TOL
from .._validation.arrays import in_numpy
from .._validation.checks import check_integer, float_array

__all__ = ["projected_sparse_recovery"]

# Relative duality gap for finding supports, and iterations between two looks at it.
_GAP = 1e-3
_BETWEEN = 10
# Over-relaxation of the Douglas-Rachford iteration, and its step over the largest projected entry.
_RELAXATION = 1.6
_STEP = 0.1
# A projected row below this share of the row is a rounding error.
_ROUNDING = 1e-12


def projected_sparse_recovery(
    X: Any,
    components: Any,
    xi: Any = 0.0,
    *,
    tol: float = 1e-3,
    max_iter: int = 1000,
) -> tuple[np.ndarray, np.ndarray]:
    """Sparse part of rows that lie near a subspace but for outliers and missing entries.

    Solves, for each row y, the problem of modified compressed sensing

        min ||s||_1 over the entries that are there,  subject to  ||Psi (y - s)|| <= xi,

    with Psi the projection on the orthogonal complement of the subspace, and s free where entries
    are missing.

    Parameters
    ----------
    X : array-like of shape (n, d)
        Rows about the mean, NaN where missing.
    components : array-like of shape (k, d)
        Orthonormal basis of the subspace.
    xi : float or array-like of shape (n,), default=0.0
        Norm of what is neither in the subspace nor sparse.
    tol : float, default=1e-3
        A row is finished when its duality gap is at most so much of its objective, and then does
        not depend on the others.
    max_iter : int, default=1000
        Iterations after which a row is returned as it is.

    Returns
    -------
    sparse : ndarray of shape (n, d)
        Feasible; zero where X is missing.
    gap : ndarray of shape (n,)
        The minimum is at least ``1 - gap`` times the objective; above ``tol`` where ``max_iter``
        was reached.

    Notes
    -----
    Algorithm 4, line 5 of [1]_. Missing entries are eliminated: minimising over them leaves the
    projection on the complement of the basis restricted to the entries that are there, which costs
    a k x k system a row, once. The rest is Douglas-Rachford splitting for all rows together:
    soft-thresholding, and the projection on the constraint, in closed form because Psi is a
    projection. An iteration is four products with the basis, O(n d k). Any p with Psi p = p, zero
    where entries are missing, and no entry above 1 bounds the minimum from below by
    ``<p, y> - xi ||p||``; the iteration's own dual variable, projected and scaled, gives the gap.

    References
    ----------
    .. [1] P. Narayanamurthy, N. Vaswani, A. Ramamoorthy, "Federated over-air subspace tracking from
       incomplete and corrupted data", IEEE Transactions on Signal Processing 2022.
    .. [2] N. Vaswani, W. Lu, "Modified-CS: modifying compressive sensing for problems with
       partially known support", IEEE Transactions on Signal Processing 2010.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import make_subspace_stream, projected_sparse_recovery
    >>> stream = make_subspace_stream(50, 300, 5, delta=0, outliers=0.1, random_state=0)
    >>> V = stream.subspace_at(0)
    >>> sparse, gap = projected_sparse_recovery(stream.X, V, tol=1e-6)
    >>> bool(np.allclose(sparse, np.where(stream.missing, 0, stream.sparse), atol=1e-3))
    True
    >>> bool(gap.max() <= 1e-6)
    True
    """
    X = check_array(in_numpy(X), dtype=np.float64, ensure_all_finite="allow-nan", input_name="X")
    V = float_array("components", components, 2, np.float64)
    if V.shape[1] != X.shape[1]:
        raise ValueError(f"components must have {X.shape[1]} columns as X, got shape {V.shape}.")
    if not linalg.is_orthonormal(V, GIVEN_BASIS_TOL):
        raise ValueError("components must be orthonormal rows.")
    if np.asarray(xi).dtype.kind not in "iuf":
        raise ValueError(f"xi must be numbers, got {xi!r}.")
    xi = np.asarray(xi, dtype=np.float64)
    if xi.shape not in ((), (len(X),)) or not np.all(xi >= 0):
        raise ValueError(f"xi must be non-negative, a number or one for each row, got {xi!r}.")
    if not (isinstance(tol, Real) and tol > 0):
        raise ValueError(f"tol must be a positive number, got {tol!r}.")
    check_integer("max_iter", max_iter)
    return recover(X, V, np.broadcast_to(xi, len(X)), tol, max_iter)


def recover(
    Z: np.ndarray, V: np.ndarray, xi: Any, tol: float, max_iter: int
) -> tuple[np.ndarray, np.ndarray]:
    """Core of `projected_sparse_recovery`; ``xi`` may be a function of the projected rows.

    They are NaN where rows are.
    """
    seen = ~np.isnan(Z)
    fits = Fits.to(seen, V)
    Z = np.where(seen, Z, 0.0)
    sparse, gaps = np.zeros_like(Z), np.zeros(len(Z))
    Y = Z - fits.nearest(Z)
    xi = xi(np.where(seen, Y, np.nan)) if callable(xi) else xi
    active = np.flatnonzero(
        np.linalg.norm(Y, axis=1) > np.maximum(xi, _ROUNDING * np.linalg.norm(Z, axis=1))
    )
    if not len(active):
        return sparse, gaps
    fits, Y, xi = fits.of_rows(active), Y[active], xi[active, None]
    gaps[active] = np.inf
    step = _STEP * np.abs(Y).max(axis=1, keepdims=True)
    U = Y.copy()
    for i in range(1, max_iter + 1):
        clipped = np.clip(U, -step, step)
        S = U - clipped
        feasible = fits.nearest(S - clipped, Y, xi)
        if i % _BETWEEN == 0 or i == max_iter:
            p = clipped / step
            p -= fits.nearest(p)
            p /= np.maximum(1.0, np.abs(p).max(axis=1, keepdims=True))
            lower = np.einsum("ij,ij->i", p, Y) - xi[:, 0] * np.linalg.norm(p, axis=1)
            best = fits.nearest(S, Y, xi)
            upper = np.abs(best).sum(axis=1)
            open_rows = gaps[active] > tol  # a row that is finished stays as it is
            sparse[active[open_rows]] = best[open_rows]
            # a row of zeros is within xi but for rounding, and nothing is sparser
            share = np.divide(lower, upper, out=np.ones_like(upper), where=upper > 0)
            gaps[active[open_rows]] = np.maximum(1.0 - share, 0.0)[open_rows]
            more = gaps[active] > tol
            if not more.any():
                break
            if more.mean() < 0.8:
                fits, active, Y, xi = fits.of_rows(more), active[more], Y[more], xi[more]
                step, U, S, feasible = step[more], U[more], S[more], feasible[more]
        feasible -= S
        feasible *= _RELAXATION
        U += feasible
    return sparse, gaps


class Fits(NamedTuple):
    """How a basis is fitted to rows that are zero where entries are missing."""

    V: np.ndarray
    mask: np.ndarray | None = None
    inverse: np.ndarray | None = None

    @classmethod
    def to(cls, seen: np.ndarray, V: np.ndarray) -> Fits:
        """Of rows with these entries."""
        if seen.all() or not len(V):
            return cls(V)
        return cls(V, seen.astype(np.float64), gram_inverses(seen, V)[0])

    def of_rows(self, which: np.ndarray) -> Fits:
        """Those of some of the rows."""
        if self.mask is None or self.inverse is None:
            return self
        return Fits(self.V, self.mask[which], self.inverse[which])

    def nearest(
        self, S: np.ndarray, Y: np.ndarray | None = None, xi: np.ndarray | None = None
    ) -> np.ndarray:
        """The rows nearest to S that lie within xi of Y, but for the subspace; or in it."""
        C = S @ self.V.T
        if self.inverse is not None:
            C = (self.inverse @ C[:, :, None])[:, :, 0]
        R = C @ self.V
        if self.mask is not None:
            R *= self.mask
        if Y is None or xi is None:
            return R
        R += Y
        R -= S
        norms = np.sqrt(np.einsum("ij,ij->i", R, R))[:, None]
        R *= np.maximum(1.0 - xi / np.maximum(norms, np.finfo(np.float64).tiny), 0.0)
        R += S
        return R
