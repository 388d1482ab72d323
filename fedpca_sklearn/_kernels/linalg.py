"""Linear algebra of orthonormal bases, and rows less their parts along a few directions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeAlias, TypeVar

import numpy as np
import scipy.linalg
from scipy.linalg.blas import dnrm2, dsymv, dsyrk
from scipy.linalg.lapack import dormqr, dpotrf, dsytrf, dsytrf_lwork, dtpqrt, dtrtri
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

from .sizes import (
    COLUMNS_OF_THREADS,
    few_of_all,
    row_slices,
    slices_of,
    very_few_of_all,
)
from .tolerances import ORTHONORMALITY_TOL, RANK_EPS

# Condition number, in Frobenius norms and for each row, up to which Cholesky's factor of the
# products of rows makes them orthonormal to working precision.
_WELL_CONDITIONED = 3.0
# Columns that dtpqrt reduces at a time: the best of 8, 16, 24 and 32 up to 350 columns, within a
# tenth of it up to 1,000.
_COLUMNS_AT_ONCE = 16
# Vectors that a Krylov space grows by at a time.
KRYLOV_BLOCK = 8
# Whether it suffices takes an eigenproblem, so it is asked when it has grown by 1 / 16.
_LOOKS = 16
_FLOAT64 = np.dtype(np.float64)
_Pairs: TypeAlias = tuple[np.ndarray, np.ndarray]
MaybeFound = TypeVar("MaybeFound", _Pairs, _Pairs | None)
# Sizes of entries, or their inverses, from which on other units are better.
_FAR = 1e100
# Rows of a triangle that are written over the other one at once.
_ROWS_OF_MIRROR = 64
# Restarts of ARPACK at most, after which white noise of 2,000 columns has converged; and the last
# eigenvalue as a share of the first, beside which rounding errors are small.
_RESTARTS, _LEAST_SHARE = 10, 1e-10
_EPS = float(np.finfo(np.float64).eps)
# Share of the largest eigenvalue of a scatter matrix above which its eigenvectors are right to some
# thousand roundings.
_TO_ROUNDING = 1e-3
# Entries of a Gram matrix that are looked at at once.
_GRAM_ENTRIES = 2**20


def flip_signs(V: np.ndarray) -> np.ndarray:
    """Make the largest loading of each row positive, in place and without temporaries."""
    rows = np.arange(len(V))
    high = V[rows, V.argmax(axis=1)]
    low = V[rows, V.argmin(axis=1)]
    negative = -low > high
    if negative.any():
        V *= np.where(negative, -1, 1).astype(V.dtype)[:, None]
    return V


def orthonormality_error(V: np.ndarray) -> float:
    """Largest entry of ``|V V^T - I|``; NaN where products overflow, so compare with ``<=``."""
    k, error = len(V), 0.0
    for rows in row_slices(k, k, _GRAM_ENTRIES):
        G = V[rows] @ V[rows.start :].T
        G[np.diag_indices(len(G))] -= 1
        error = np.maximum(error, np.abs(G, out=G).max())  # of a NaN, the NaN
    return float(error)


def orthonormalised(V: np.ndarray) -> np.ndarray:
    """Rows made orthonormal to working precision, one after the other as by Gram and Schmidt.

    By Cholesky's factor of ``V V^T`` where rows are nearly orthonormal, in a third of the time of
    Householder's QR, which does the rest.
    """
    k = V.shape[0]
    if k > 0 and V.dtype == np.float64:
        with np.errstate(over="ignore", invalid="ignore"):
            L, failed = dpotrf(V @ V.T, lower=1)
            inverse, _ = dtrtri(L, lower=1)
            if not failed and np.linalg.norm(L) * np.linalg.norm(inverse) < _WELL_CONDITIONED * k:
                return inverse @ V
    Q, R = scipy.linalg.qr(V.T, mode="economic", check_finite=False)
    return np.ascontiguousarray((Q * np.where(np.diag(R) < 0, -1, 1)).T)


def complete_basis(V: np.ndarray, n_rows: int) -> np.ndarray:
    """Extend orthonormal rows to ``n_rows``, by the coordinate axes that they cover least.

    Householder's reflections that turn axes to the rows turn those, so that they are orthonormal
    to the rows and to each other whatever the rows are. The result is deterministic. Cost
    O(d k n_rows).
    """
    k, d = V.shape
    m = n_rows - k
    if m <= 0:
        return V
    by_cover = np.argsort(np.einsum("ij,ij->j", V, V, dtype=np.float64), kind="stable")
    least, most = by_cover[:m], by_cover[m:][::-1]
    order = np.concatenate([most[:k], least, most[k:]])
    turned = np.zeros((d, m), order="F")
    turned[np.arange(k, n_rows), np.arange(m)] = 1
    if k:
        columns = V[:, order].T.astype(np.float64)
        (reflections, tau), _ = scipy.linalg.qr(columns, mode="raw", check_finite=False)
        turned = dormqr("L", "N", reflections, tau, turned, 64 * m, overwrite_c=1)[0]
    extra = np.empty((m, d))
    extra[:, order] = turned.T
    return np.concatenate([V, flip_signs(extra).astype(V.dtype)])


def random_basis(k: int, d: int, rng: np.random.RandomState) -> np.ndarray:
    """Orthonormal rows of shape (k, d) that span a random subspace."""
    return np.linalg.qr(rng.standard_normal((d, k)))[0].T


def numerical_rank(s: np.ndarray) -> int:
    """Number of singular values, in decreasing order, that are not rounding errors."""
    return int(np.sum(s > RANK_EPS * np.finfo(np.float64).eps * s[0])) if len(s) else 0


def top_right_singular(
    M: np.ndarray, count: Callable[[np.ndarray], int]
) -> tuple[np.ndarray, np.ndarray]:
    """Top right singular vectors and values of a float64 matrix by Householder QR and an SVD.

    ``M`` is destroyed, and not copied if its longer side is contiguous. ``count`` returns how
    many of the singular values are wanted.
    """
    Q, R = None, M
    if M.shape[0] > M.shape[1]:
        R = scipy.linalg.qr(M, mode="raw", overwrite_a=True, check_finite=False)[1]
    elif M.shape[0] < M.shape[1]:
        Q, R = scipy.linalg.qr(M.T, mode="economic", overwrite_a=True, check_finite=False)
        R = R.T
    _, s, Vt = scipy.linalg.svd(R, full_matrices=False, check_finite=False)
    p = count(s)
    V = Vt[:p] if Q is None else Vt[:p] @ Q.T
    return np.ascontiguousarray(V), s[:p].copy()


def top_of_rows(
    M: np.ndarray, rank: int, count: Callable[[np.ndarray], int] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """As many right singular vectors and values of rows, from their products where these tell.

    Where ten digits are not certain by `top_right_singular`: as many as ``count`` returns, or all
    that are not rounding errors.
    """
    few = len(M) < M.shape[1]
    lam, W = eigh_top(M @ M.T if few else M.T @ M, rank)
    p = min(rank, len(lam))
    if not lam[p - 1] > _CERTAIN * lam[0]:
        V, s = top_right_singular(M.copy(), count or (lambda s: min(rank, numerical_rank(s))))
        return flip_signs(V), s
    V, s = W[:, :p].T, np.sqrt(lam[:p])
    V = (V / s[:, None]) @ M if few else V
    return flip_signs(np.ascontiguousarray(V)), s


def has_products(M: np.ndarray) -> bool:
    """Whether entries are neither so small nor so large that their products have no digits."""
    return bool(1 / _FAR < np.abs(M).max(initial=0.0) < _FAR)


def r_factor(M: np.ndarray) -> np.ndarray:
    """R factor of a matrix, with as many rows as it has singular values."""
    return np.asarray(np.linalg.qr(M, mode="r"))  # an array, whatever numpy's annotation says


def triangle(R: np.ndarray, M: np.ndarray, trapezoidal: bool = False) -> np.ndarray:
    """R factor of an R factor and further rows stacked below it: another one if ``trapezoidal``.

    A full triangle takes LAPACK's structured QR: about half the time of a dense one with d to 2 d
    rows, a third with another triangle.
    """
    d = M.shape[1]
    if trapezoidal and len(R) < len(M):
        R, M = M, R
    if not len(M):
        return R
    if 0 < len(R) == d:
        upper, rows = np.array(R, order="F"), np.array(M, order="F")
        known = len(M) if trapezoidal else 0, min(_COLUMNS_AT_ONCE, d), upper, rows
        return dtpqrt(*known, overwrite_a=1, overwrite_b=1)[0]
    both = np.empty((len(R) + len(M), d), order="F")
    both[: len(R)], both[len(R) :] = R, M
    return scipy.linalg.qr(both, mode="raw", overwrite_a=True, check_finite=False)[1][:d]


def top_of_scatter(
    lam: np.ndarray,
    W: np.ndarray,
    count: Callable[[np.ndarray], int],
    forced: bool = False,
    n_certain: int | None = None,
    lost: float = 0.0,
    dtype: np.dtype = _FLOAT64,
) -> tuple[np.ndarray, np.ndarray] | None:
    """Right singular vectors and values of M from leading eigenpairs of a small ``M.T @ M``.

    None where they are not certain to ten digits, or of products in float32 to three, unless
    ``forced``. ``count`` returns how many of the singular values are kept; of these the first
    ``n_certain`` must be certain (None: all). ``lost`` is an energy that was in the matrix and was
    taken off again.
    """
    s = np.sqrt(lam.clip(0))
    p = count(s)
    least = p if n_certain is None else min(n_certain, p)
    rounding = rounding_of_scatter(float(lam[:1].max(initial=0.0)), lost, dtype)
    if not forced and (least == 0 or lam[least - 1] <= rounding / ORTHONORMALITY_TOL[dtype]):
        return None
    p = min(p, int(np.sum(lam > len(W) * rounding)))
    return W[:, :p].T, s[:p].copy()


def rounding_of_scatter(largest: float, lost: float = 0.0, dtype: np.dtype = _FLOAT64) -> float:
    """Error of the eigenvalues of a scatter matrix, see `top_of_scatter`.

    Relative to an eigenvalue it is about eps lam_1 / lam_i. Roundings of float32 are added up in
    float64, where their signs average out: .05 to 1 eps of lam_1. Those of products that repeat in
    many rows do not: 3 to 8 eps for pixels / 255 and for tenths of a degree, up to 25 for counts
    with deviations of 200 to 700.
    """
    return (4 if dtype == np.float64 else 1) * float(np.finfo(dtype).eps) * max(largest, lost)


def norm_of_scatter(G: np.ndarray) -> float:
    """At least the Frobenius norm of a lower triangle, and so the largest eigenvalue."""
    whole, diagonal = dnrm2(G.ravel("K")), dnrm2(G.diagonal())
    return whole * math.sqrt(2 - (diagonal / whole) ** 2) if whole else 0.0


def bounds_of_largest(G: np.ndarray) -> tuple[float, float]:
    """Bounds of the largest eigenvalue of a lower triangle that is not zero.

    The eigenvalues' squares, of sum |G|_F^2, add up to at most the largest one times the trace. The
    norm may be sqrt(2) times as large as that of Frobenius.
    """
    norm = norm_of_scatter(G)
    return norm / 2 * (norm / float(G.trace())), norm


def least_certain(largest: float, lost: float = 0.0, dtype: np.dtype = _FLOAT64) -> float:
    """Eigenvalue of a scatter matrix up to which it is not certain, see `top_of_scatter`."""
    return rounding_of_scatter(largest, lost, dtype) / ORTHONORMALITY_TOL[dtype]


# Share of the largest eigenvalue from which on another one is certain, of products in float64.
_CERTAIN = least_certain(1.0)


def eigh_top(
    G: np.ndarray,
    max_rank: int,
    overwrite: bool = False,
    few: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Leading eigenpairs in decreasing order; all of them unless a ``few`` of many are wanted.

    Only the lower triangle is read. With ``overwrite`` a matrix in Fortran's order may be destroyed
    instead of copied.
    """
    m, max_rank = G.shape[0], max(max_rank, 1)
    largest = float(G.diagonal().max(initial=0.0))
    if 0 < largest < 1 / _FAR or _FAR < largest < np.inf:
        # some drivers of LAPACK lose half of the digits there
        unit = 2.0 ** max(min(-math.frexp(largest)[1], 1000), -1000)
        lam, W = eigh_top(G * unit, max_rank, True, few)
        return lam / unit, W
    if few or few_of_all(max_rank, m):
        by_lanczos = very_few_of_all(max_rank, m) and G.dtype == np.float64
        found = _pairs_by_lanczos(G, max_rank) if by_lanczos else None
        found = found or _few_pairs(G, max_rank)
        if found is not None:
            return found
    if overwrite and m > COLUMNS_OF_THREADS:  # in place: numpy takes two matrices more
        lam, W = scipy.linalg.eigh(G, driver="evd", overwrite_a=True, check_finite=False)
    else:  # numpy releases the interpreter's lock
        lam, W = np.linalg.eigh(G)
    return lam[::-1], W[:, ::-1]


def _few_pairs(G: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The first few eigenpairs in decreasing order, from a copy of G; None where LAPACK has none.

    Its bisection (dstebz) finds fewer of them, or says that it failed, where many eigenvalues are
    equal, as those of I - 1/m.
    """
    few = (len(G) - count, len(G) - 1)
    try:
        lam, W = scipy.linalg.eigh(G, subset_by_index=few, driver="evr", check_finite=False)
    except scipy.linalg.LinAlgError:
        return None
    return (lam[::-1], W[:, ::-1]) if len(lam) == count else None


def _pairs_by_lanczos(G: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The first few eigenpairs by ARPACK, from products of the lower triangle with vectors.

    None where it does not converge soon, or where they are not certain to be the first ones. An
    eigenvalue may be missed that is equal to another one, or whose vector is hidden from the first
    vector of the Krylov space. Cholesky's method tells whether what the pairs leave of the matrix
    has an eigenvalue above the last of them.
    """
    m, lower = len(G), not G.flags.c_contiguous
    half = np.asfortranarray(G if lower else G.T)
    times = LinearOperator((m, m), partial(dsymv, 1.0, half, lower=lower), dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(m)
    how = {"v0": start, "ncv": 2 * count + 20, "maxiter": _RESTARTS}
    try:
        lam, W = eigsh(times, count, which="LA", **how)
    except ArpackError:
        return None
    if not lam[0] > _LEAST_SHARE * lam[-1]:
        return None
    rest = dsyrk(1.0, W * np.sqrt(lam), beta=-1.0, c=half, lower=lower)
    rest[np.diag_indices(m)] += lam[0]
    if dpotrf(rest, lower=lower, overwrite_a=1)[1]:
        return None
    return lam[::-1], W[:, ::-1]


def n_above(G: np.ndarray, number: float) -> int:
    """How many eigenvalues of a lower triangle exceed a number.

    As many as pivots of D are positive, where the matrix less the number is L D L^T, by Sylvester's
    law of inertia. No eigenproblem is solved: it takes about as long as Cholesky's method.
    """
    m = len(G)
    unit = 2.0 ** max(min(-math.frexp(G.diagonal().max(initial=0.0))[1], 1000), -1000)
    C = np.multiply(G, unit, order="F")
    C[np.diag_indices(m)] -= number * unit
    if not m:
        return 0
    work = int(dsytrf_lwork(m, lower=1)[0])
    D, pivots, _ = dsytrf(C, lower=1, lwork=work, overwrite_a=1)
    # those of two columns have one positive and one negative eigenvalue
    return int(np.sum(D.diagonal()[pivots > 0] > 0) + np.sum(pivots < 0) // 2)


def all_certain(M: np.ndarray) -> bool:
    """Whether products of few rows tell all their singular values to ten digits."""
    if not has_products(M):
        return False
    G = np.tril(M @ M.T)
    return n_above(G, _CERTAIN * norm_of_scatter(G)) == len(G)


def mirror(A: np.ndarray) -> None:
    """Write the lower triangle over the upper one."""
    for at in slices_of(len(A), _ROWS_OF_MIRROR):
        square = A[at, at]
        square[:] = np.tril(square) + np.tril(square, -1).T
        A[: at.start, at] = A[at, : at.start].T


def block_krylov(
    apply: Callable[[np.ndarray], np.ndarray], size: int, p: int, n_certain: int, tol: float
) -> tuple[np.ndarray, np.ndarray]:
    """Leading eigenpairs of a positive semi-definite operator from a growing block Krylov space.

    Block Lanczos with full orthogonalisation and Rayleigh-Ritz: products with blocks of vectors
    cost less than one by one, and repeated eigenvalues are found. Where the space becomes
    invariant, it goes on from fresh random directions, until those bring nothing better.

    Parameters
    ----------
    apply : callable
        Multiplies the operator with a (size, b) matrix.
    size, p : int
        Order of the operator, number of pairs returned.
    n_certain : int
        The first so many pairs decide on convergence; the others are the best in the space.
    tol : float
        Aim for the residual of a wanted pair relative to its eigenvalue; the eigenvalue's own
        relative error is then of order tol^2. The space stops growing at ``max(256, 8 p)`` vectors,
        converged or not.

    Returns
    -------
    eigenvalues, eigenvectors : ndarray of shape (p,) and (size, p)
        In decreasing order; fewer where the operator has fewer that are not rounding errors.
    """
    width = min(KRYLOV_BLOCK, size)
    limit = min(size, max(256, 8 * p))
    rng = np.random.default_rng(0)
    # Vectors are rows: BLAS takes up to twice as long for products with a few long columns.
    Q = np.empty((min(limit, 4 * p + 2 * width), size))
    T = np.zeros((limit, limit))
    n, new = 0, orthonormal_columns(rng.standard_normal((width, size)).T).T
    next_look, largest, before = min(p, limit), 0.0, np.empty(0)
    while True:
        m = n + len(new)
        if m > len(Q):
            Q = np.concatenate([Q[:n], np.empty((min(limit, 2 * m) - n, size))])
        Q[n:m] = new
        basis = Q[:m]
        W = np.ascontiguousarray(apply(np.ascontiguousarray(new.T)).T)
        H = W @ basis.T
        T[n:m, :m], T[:m, n:m] = H, H.T
        W -= H @ basis
        new, R, order = scipy.linalg.qr(W.T, mode="economic", pivoting=True, check_finite=False)
        largest = max(largest, float(np.linalg.norm(H, 2)))
        floor = size * np.finfo(np.float64).eps * largest
        exhausted = np.all(np.abs(H) <= floor)  # fresh directions add nothing to the space
        known = new[:, : int(np.sum(np.abs(np.diag(R)) > floor))].T
        invariant = not len(known)
        ended = m == limit or (exhausted and invariant)
        if ended or invariant or m >= next_look:
            lam, S = (found[..., ::-1] for found in np.linalg.eigh(T[:m, :m]))
            coupling = np.zeros_like(R)
            coupling[:, order] = R
            residuals = np.linalg.norm(coupling @ S[n:m], axis=0)
            close = np.all(residuals[:n_certain] <= np.maximum(tol * lam[:n_certain], floor))
            if invariant:  # another one may hold further pairs with the same eigenvalues
                as_before = len(before) == p and np.all(np.abs(lam[:p] - before) <= floor)
                converged, before = bool(as_before), lam[:p]
            else:
                tells = exhausted or residuals.max() > floor
                converged = bool(m >= p and close and tells and not len(before))
            if ended or converged:
                break
            next_look = m + max(1, m // _LOOKS)
        new = known if len(known) else rng.standard_normal((width, size))
        new = new[: limit - m]
        # once more, as what was left may be little beside what was taken off
        new = orthonormal_columns((new - (new @ basis.T) @ basis).T).T
        n = m
    p = min(p, m)
    return lam[:p], (S[:, :p].T @ basis).T


def orthonormal_columns(M: np.ndarray) -> np.ndarray:
    """Orthonormal basis of the span of columns, which are destroyed."""
    return scipy.linalg.qr(M, mode="economic", overwrite_a=True, check_finite=False)[0]


def within_used(R: np.ndarray, find: Callable[[np.ndarray], MaybeFound]) -> MaybeFound:
    """Directions that are found in the columns that are not zero; others have no loading."""
    used = np.asarray(R.any(axis=0))
    if used.all() or not used.any():
        return find(R)
    found = find(R[:, used])
    if found is None:
        return found
    wide = np.zeros((len(found[0]), len(used)))
    wide[:, used] = found[0]
    return wide, found[1]


def right_singular(R: np.ndarray, rank: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Right singular vectors and values of a factor with at most d rows, up to its rank."""
    if not len(R):
        return R, np.zeros(0)
    count = numerical_rank if rank is None else (lambda s: rank)
    if len(R) < R.shape[1] and has_products(R):
        return top_of_rows(R, len(R), count)
    V, s = top_right_singular(R.copy(), count)
    return flip_signs(V), s


def leading_of_factor(
    R: np.ndarray, count: int, to_rounding: bool = True
) -> tuple[np.ndarray, np.ndarray] | None:
    """Leading right singular vectors and values of a factor R, from eigenvectors of R R^T.

    None if the last eigenvalue is below 1e-3 of the first, where R R^T loses digits (not
    ``to_rounding``: below 1e-5, where ten are not certain), or if entries are so small or large
    that their squares do. Singular values are those of R on the vectors.
    """
    if not has_products(R):
        return None
    lam, U = eigh_top(R @ R.T, count)
    if not lam[-1] > (_TO_ROUNDING if to_rounding else _CERTAIN) * lam[0]:
        return None
    Q = np.linalg.qr(R.T @ U)[0]
    _, s, W = scipy.linalg.svd(R @ Q, full_matrices=False, check_finite=False)
    return flip_signs(np.array(W @ Q.T, order="C")), s


def two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rounded sum, and what rounding took off it (Knuth)."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)
