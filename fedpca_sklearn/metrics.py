"""Distances between subspaces and the quality of a reconstruction."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, svds
from sklearn.utils import check_array

from ._kernels.rows import centred_where_full, entries_once
from ._kernels.threads import TINY_CALL, threads_for
from ._kernels.too_large import too_large
from ._validation.arrays import in_numpy
from ._validation.checks import check_rows

__all__ = ["excess_error", "reconstruction_error", "subspace_distance"]

METRICS = ("sin", "projection", "chordal", "euclidean")


def _orthonormal_columns(name: str, components: Any) -> np.ndarray:
    """Orthonormal basis (d x rank) of the span of the rows."""
    if hasattr(components, "components_"):
        kind = type(components).__name__
        raise TypeError(f"{name} must be rows that span a subspace, got {kind}: give components_.")
    array = check_array(in_numpy(components), dtype=np.float64, input_name=name)
    if array.shape[0] > array.shape[1]:
        raise ValueError(f"{name} must have at most as many rows as columns, got {array.shape}.")
    Q, R, _ = scipy.linalg.qr(array.T, mode="economic", pivoting=True, check_finite=False)
    size = np.abs(np.diag(R))
    if size[0] == 0:
        raise ValueError(f"{name} must span at least one direction, got zeros only.")
    return Q[:, size > max(array.shape) * np.finfo(np.float64).eps * size[0]]


def subspace_distance(A: Any, B: Any, *, metric: str = "sin") -> float:
    """Distance between the spans of two sets of rows.

    Parameters
    ----------
    A, B : array-like of shape (k_A, d) and (k_B, d)
        Rows that span the subspaces; they need not be orthonormal.
    metric : {"sin", "projection", "chordal", "euclidean"}, default="sin"
        "sin": sine of the largest principal angle, between 0 and 1. With unequal dimensions, the
        angle of the smaller subspace to the larger one.
        "projection": Frobenius norm of the difference of the projectors.
        "chordal": root of the sum of the squared sines of all principal angles; for equal
        dimensions the projection distance divided by sqrt(2).
        "euclidean": least Frobenius norm of the difference of orthonormal bases of subspaces of
        equal dimension; of two vectors the distance of the vectors of unit length, with signs that
        make it least. Between 0 and sqrt(2 k).

    Returns
    -------
    distance : float
        Accurate down to about 1e-15: sines are computed from residuals, not from cosines. Cost
        O(d k^2).

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn.metrics import subspace_distance
    >>> subspace_distance([[1.0, 0.0, 0.0]], [[1.0, 1e-12, 0.0]])
    1e-12
    """
    if metric not in METRICS:
        raise ValueError(f"metric must be one of {str(METRICS)[1:-1]}, got {metric!r}.")
    A, B = _orthonormal_columns("A", A), _orthonormal_columns("B", B)
    if A.shape[0] != B.shape[0]:
        raise ValueError(
            f"A and B must have the same number of columns, got {A.shape[0]} and {B.shape[0]}."
        )
    if A.shape[1] > B.shape[1]:
        A, B = B, A
    if metric == "euclidean":
        if A.shape[1] != B.shape[1]:
            raise ValueError(
                "metric='euclidean' needs subspaces of equal dimension, got dimensions "
                f"{A.shape[1]} and {B.shape[1]}."
            )
        # of the nearest bases: 2 - 2 cos = 4 sin(angle / 2)^2, summed
        return float(2 * np.linalg.norm(np.sin(scipy.linalg.subspace_angles(A, B) / 2)))
    residual = A - B @ (B.T @ A)
    sines = np.minimum(scipy.linalg.svdvals(residual, check_finite=False), 1.0)
    if metric == "sin":
        return float(sines[0])
    squares = float(sines @ sines)
    if metric == "chordal":
        return float(np.sqrt(squares))
    return float(np.sqrt(2 * squares + (B.shape[1] - A.shape[1])))


@np.errstate(over="ignore", invalid="ignore")  # a sum of squares that overflows is an error
def _centred(X: Any, mean: Any):
    """X less a vector, as ``(Z, rest, total)``: rows Z - rest^T and their sum of squares.

    Dense rows are centred, ``rest = 0``. In sparse rows only the columns without an implicit zero
    are, so that nothing is densified, and nothing cancels.
    """
    X = check_rows(in_numpy(X))
    n, d = X.shape
    if mean is None:
        mean = np.asarray(X.mean(axis=0, dtype=np.float64)).ravel()
    mean = np.asarray(mean, dtype=np.float64)
    if mean.shape not in ((), (d,)) or not np.isfinite(mean).all():
        raise ValueError(f"mean must be finite, a number or of shape ({d},), got {mean!r}.")
    mean = np.broadcast_to(mean, (d,))
    if sp.issparse(X):
        Z, rest = centred_where_full(entries_once(sp.csr_array(X, dtype=np.float64)), mean)
        deviations, stored = Z.data - rest[Z.indices], np.bincount(Z.indices, minlength=d)
        total = float(deviations @ deviations + (n - stored) @ rest**2)
    else:
        Z, rest = X - mean, np.zeros(d)
        total = float(np.einsum("ij,ij->", Z, Z))
    if not np.isfinite(total):
        raise too_large("sum of squares")
    return Z, rest, total


def _basis(components: Any, Z: Any) -> np.ndarray:
    basis = _orthonormal_columns("components", components)
    if len(basis) != Z.shape[1]:
        raise ValueError(
            f"components must have as many columns as X, {Z.shape[1]}, got {len(basis)}."
        )
    return basis


def _captured(Z: Any, mean: np.ndarray, basis: np.ndarray) -> float:
    P = Z @ basis - mean @ basis
    return float(np.einsum("ij,ij->", P, P))


def reconstruction_error(X: Any, components: Any, mean: Any = None) -> float:
    """Sum of squared distances of rows from the affine subspace of the components.

    Parameters
    ----------
    X : {array-like, sparse matrix} of shape (n, d)
    components : array-like of shape (k, d)
        Rows that span the subspace; they need not be orthonormal.
    mean : array-like of shape (d,) or float, default=None
        Point of the subspace; None takes the mean of X, 0 the origin.

    Returns
    -------
    error : float
        ``||(X - mean)(I - P)||_F^2``. Sparse X is not densified.
    """
    Z, mean, total = _centred(X, mean)
    return max(total - _captured(Z, mean, _basis(components, Z)), 0.0)


def _least_error(Z: Any, mean: np.ndarray, total: float, k: int) -> float:
    """Error of the best k components of centred rows."""
    n, d = Z.shape
    if k >= min(n, d) or total == 0:
        return 0.0
    if not sp.issparse(Z) and min(n, d) <= 2500:
        G = Z.T @ Z if n >= d else Z @ Z.T
        return total - float(np.linalg.eigvalsh(G)[-k:].sum())

    def times(v: np.ndarray) -> np.ndarray:  # by X - 1 mean^T, without forming it
        return Z @ v - mean @ v

    def times_transposed(u: np.ndarray) -> np.ndarray:
        return Z.T @ u - np.multiply.outer(mean, u.sum(axis=0))

    rows = LinearOperator(Z.shape, times, times_transposed, times, np.float64, times_transposed)
    start = np.random.default_rng(0).standard_normal(min(n, d))
    return total - float((svds(rows, k=k, v0=start, tol=1e-10)[1] ** 2).sum())


def excess_error(X: Any, components: Any, mean: Any = None) -> float:
    """Reconstruction error relative to the best subspace of the same dimension, minus one.

    Parameters
    ----------
    X : {array-like, sparse matrix} of shape (n, d)
    components : array-like of shape (k, d)
        Rows that span the subspace; they need not be orthonormal.
    mean : array-like of shape (d,) or float, default=None
        As in `reconstruction_error`; the best subspace goes through the same point.

    Returns
    -------
    excess : float
        Zero for the leading principal components of X; infinite where the best subspace has no
        error and this one has. Cost O(n d min(n, d)) up to 2,500 rows or columns, else Lanczos.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.decomposition import PCA, IncrementalPCA
    >>> from fedpca_sklearn import StreamingPCA
    >>> from fedpca_sklearn.metrics import excess_error
    >>> X = load_digits().data
    >>> for pca in PCA(10), IncrementalPCA(10), StreamingPCA(10):
    ...     print(f"{excess_error(X, pca.fit(X).components_):.4f}")
    0.0000
    0.0034
    0.0000
    """
    Z, mean, total = _centred(X, mean)
    n, d = Z.shape
    with threads_for(max(Z.size, 16 * min(n, d) ** 2), TINY_CALL):
        basis = _basis(components, Z)
        error = total - _captured(Z, mean, basis)
        best = _least_error(Z, mean, total, basis.shape[1])
    noise = 1e-13 * total
    if best <= noise:
        return 0.0 if error <= 10 * noise else float("inf")
    return max(error / best - 1, 0.0)
