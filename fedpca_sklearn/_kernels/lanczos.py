"""A few leading eigenpairs of a symmetric matrix from a Krylov space of one vector.

Products with one vector run at the speed of the cache that holds the matrix, so that some dozens of
them take a fraction of a reduction to tridiagonal form, which multiplies as often as the matrix has
rows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import numpy as np
from scipy.special import gammaincinv

from .sizes import VECTORS_OF_DOUBT, vectors_of_first_look, vectors_of_lanczos

_EPS = float(np.finfo(np.float64).eps)
# Residual of a pair as a share of the gap behind the last one, which is the sine of an angle: in
# roundings, or in those of a less precise matrix. A gap below the third share of that eigenvalue
# counts as so much.
_SINE, _SINE_OF_MATRIX, _LEAST_GAP = 450, 1 / 64, 1e-3
# Smallest eigenvalue, as a share of the largest, beside which rounding errors are small.
_LEAST_SHARE = 1e-10
# Share of the vectors so far at most until the next look, and of those that it will take at the
# present rate.
_LOOKS, _SURELY = 4, 0.7
# Roundings of the largest eigenvalue by which numbers of the projected matrix are off at most.
_OFF = 8
# Multiples of the least pair in reserve above which no eigenvalue is missed; of the roundings by
# which numbers are off, where the space shows fewer pairs than there is room for; and down to which
# share of it another such number may be looked for.
_RESERVES, _ALL_KNOWN, _LITTLE = 2.0, 64.0, 0.8
# Vectors for each direction of a factor that is kept, so that cut rows lose as little as by an SVD:
# for power laws of 500 features within a hundredth.
_ROOM = 2
# Relative rounding error of such a sum.
_ROUNDINGS_OF_SUM = 1e-12
# Share of the largest number on the diagonal below which a vector is made orthogonal once more.
_SMALL = 1e-3
# Residual below which a pair will soon be close, as a share of its eigenvalue. Of 8 power laws with
# exponents from 0 to 1, spaces where half of the pairs were so at the first look converged before
# they were full, and no others.
_SOON = 1e-4
# Squared component that a random vector has along any one direction, but for one time in a million.
_LEAST_COMPONENT = 2 * float(gammaincinv(0.5, 1e-6))


def leading_by_lanczos(
    apply: Callable[[np.ndarray], np.ndarray],
    diagonal: np.ndarray,
    count: int,
    reserves: int = 0,
    factor: bool = False,
    eps: float = _EPS,
) -> tuple[np.ndarray, np.ndarray] | None:
    """Leading eigenpairs of a symmetric matrix, or None where they are not certain.

    Lanczos's method, each vector made orthogonal to all before. The space of one vector holds one
    direction of several with equal eigenvalues, and nothing of a direction that is orthogonal to
    the vector. So it is asked whether all eigenvalues above some x are in the space: the last one
    wanted, or less for pairs in reserve. The matrix is a tridiagonal one in the space, with
    eigenvalues theta_i, C across it, and tied to one vector q there; by the inertia of its Schur
    complement there are no others if C + c q q^T has none above x, where c is the sum of
    (tie_i)^2 / (x - theta_i) over theta_i < x. That is told by a second space, from a vector g at
    random that depends on the matrix: an eigenvector of which the space says nothing has an
    eigenvalue below x, or a component along g as one in a million.

    Parameters
    ----------
    apply : callable
        Multiplies the matrix with a vector; the answer is overwritten.
    diagonal : ndarray of shape (d,)
        That of the matrix. As g follows from a digest of it, rows whose direction is hidden from g
        would have to agree with it to the last bit.
    count : int
        Number of pairs.
    reserves : int, default=0
        Number of further pairs, only as close as the space has them, of a matrix without negative
        eigenvalues; no eigenvalue above twice the last one is missed.
    factor : bool, default=False
        Whether the matrix is M M^T, of which right singular vectors are wanted.
    eps : float, default=that of float64
        Relative rounding error of the matrix, or of the vectors in the end.

    Returns
    -------
    eigenvalues, eigenvectors : ndarray of shape (p,) and (p, d)
        In decreasing order, vectors as rows; p = count + reserves, or fewer where the space has
        fewer. With reserves they are those of Nystroem's approximation from the products with the
        space, which never exceeds the matrix; of a factor those of its projection to the space,
        P M M^T P, as M^T P M never exceeds M^T M. None where the space would have to grow beyond
        `vectors_of_lanczos`, as for white noise, where several eigenvalues are equal, or where they
        are of very different sizes.
    """
    size = len(diagonal)
    basis = np.empty((min(vectors_of_lanczos(count), size), size))
    start = np.random.default_rng(0).standard_normal(size)
    if reserves:  # where the matrix is zero, there is nothing to approximate
        start = apply(start)
    space = _Space(apply, basis, start)
    least_vectors = _ROOM * (count + reserves) if reserves else 0
    sine = max(_SINE * _EPS, _SINE_OF_MATRIX * eps)
    found = _converged(space, count, least_vectors, sine)
    if found is None:
        return None
    lam, S = found
    Q, least = basis[: space.n], float(lam[count - 1])
    if lam[count:].max(initial=0.0) >= least:
        return None
    q, ties, off = space.next, space.off_diagonal[-1] * S[-1], _OFF * eps * lam[0]
    x, W, p = least, np.empty(0), count
    if reserves:
        sizes, W = (lam, np.empty(0)) if factor else _approximation(lam, ties, off)
        p = min(count + reserves, int(np.sum(sizes > off)))
        all_known = p < count + reserves
        x = min(least, _ALL_KNOWN * off if all_known else _RESERVES * float(sizes[p - 1]))
    x, more = _between(lam, ties, x)
    if _may_hide(lam[count:], ties[count:], least, least - x + more):
        return None

    def across(v: np.ndarray) -> np.ndarray:
        y = apply(v)
        y += more * (q @ v) * q
        return y - (Q @ y) @ Q

    digest = hashlib.blake2b(diagonal.tobytes(), digest_size=32).digest()
    g = np.random.default_rng(np.frombuffer(digest, "<u4")).standard_normal(size)
    for _ in range(2):
        g -= (Q @ g) @ Q
    rest = _Space(across, np.empty((VECTORS_OF_DOUBT, size)), g)
    if not _none_above(rest, x, float(g @ g)):
        return None
    if factor or not reserves:
        return lam[:p].copy(), S[:, :p].T @ Q
    return sizes[:p], (S @ W[:-1, :p]).T @ Q + np.outer(W[-1, :p], q)


def _between(lam: np.ndarray, ties: np.ndarray, x: float) -> tuple[float, float]:
    """A number at or little below x, and the sum of (tie_i)^2 / (number - lam_i) for less lam_i.

    That for which the sum is least: eigenvalues of the space that are next to it say nothing.
    """
    xs = x * np.linspace(1, _LITTLE, 9)[:, None]
    below = lam < xs
    sums = np.sum(np.where(below, ties**2, 0) / np.where(below, xs - lam, 1), axis=1)
    best = int(np.argmin(sums - xs[:, 0]))
    return float(xs[best, 0]), float(sums[best])


def _may_hide(lam: np.ndarray, ties: np.ndarray, least: float, most: float) -> bool:
    """Whether an eigenvalue above the last wanted one may hide under less ones in the space.

    They count as found where they are above x, however far from the eigenvalues they still are.
    With C + c q q^T at most x, C + (c + y - x) q q^T is at most y, so that none is above y where
    the sum of (tie_i)^2 / (y - theta_i) is at most c + y - x.
    """
    below = lam < least
    return float(np.sum(ties[below] ** 2 / (least - lam[below]))) > most * (1 + _ROUNDINGS_OF_SUM)


class _Space:
    """A Krylov space that grows vector by vector.

    Attributes
    ----------
    basis : ndarray of shape (limit, size)
        Place of its orthonormal vectors, of which the first ``n`` are made.
    diagonal, off_diagonal : list of float
        Of the tridiagonal matrix that the operator is in the space.
    """

    def __init__(self, apply, basis, start):
        self.apply, self.basis, self.limit = apply, basis, len(basis)
        self.basis[0] = start / math.sqrt(start @ start)
        self.n = 0
        self.diagonal: list[float] = []
        self.off_diagonal: list[float] = []
        self._left, self._largest = np.empty(0), 0.0

    @property
    def next(self) -> np.ndarray:
        """The vector by which it would grow; zero where it is invariant."""
        return self._left / (self.off_diagonal[-1] or 1.0)

    def grow(self, n_vectors: int) -> tuple[float, bool]:
        """Grow to some vectors, or until it is invariant.

        Returns the last number beside the diagonal, and whether it has ended: that is a rounding
        error, or not finite.
        """
        size, ended = 0.0, False
        while self.n < n_vectors and not ended:
            n = self.n
            if n:
                np.divide(self._left, self.off_diagonal[-1], out=self.basis[n])
            q, basis = self.basis[n], self.basis[: n + 1]
            y = self.apply(q)
            diagonal = float(q @ y)
            y -= diagonal * q
            if n:
                y -= self.off_diagonal[-1] * self.basis[n - 1]
            y -= (basis @ y) @ basis
            size, self._largest = math.sqrt(y @ y), max(self._largest, diagonal)
            if size <= _SMALL * self._largest:  # beside which roundings are not
                y -= (basis @ y) @ basis
                size = math.sqrt(y @ y)
            self._left, self.n = y, n + 1
            self.diagonal.append(diagonal)
            self.off_diagonal.append(size)
            ended = not _EPS * self._largest < size < math.inf
        return size, ended


def _converged(
    space: _Space, count: int, least_vectors: int, sine: float
) -> tuple[np.ndarray, np.ndarray] | None:
    """The pairs of a space that grows until the leading ones are as close as they shall be.

    Vectors are columns of coordinates in its basis. It has ``least_vectors`` in the end, unless it
    is invariant.
    """
    look, before, at = vectors_of_first_look(count), 0.0, 0
    while space.n < space.limit:
        size, ended = space.grow(min(look, space.limit))
        n = space.n
        if not math.isfinite(size) or n < (count if ended else look):
            return None
        lam, S = _pairs(space)
        least = lam[count - 1]
        residuals = size * np.abs(S[-1, :count])
        soon = ended or 2 * np.sum(residuals <= _SOON * lam[:count]) >= count
        if not (soon and least > _LEAST_SHARE * lam[0]):
            return None
        gap = least - lam[count] if n > count else least
        off = residuals.max() / (sine * max(gap, _LEAST_GAP * least))
        if ended or (off <= 1 and n >= least_vectors):
            return lam, S
        if off <= 1:  # the others are not as close yet
            look = least_vectors
            continue
        more = n // _LOOKS
        if off < before:  # at the rate since the last look, which grows
            rate = math.log(before / off) / (n - at)
            more = min(more, int(_SURELY * math.log(off) / rate))
        before, at, look = off, n, n + 1 + more
    return None


def _approximation(lam: np.ndarray, ties: np.ndarray, off: float) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of Nystroem's approximation, in decreasing order, vectors as columns.

    With coordinates along the eigenvectors in the space, and the vector beside it last, the matrix
    is [diag(lam), ties; ties, x]; the approximation is the one of least x without negative
    eigenvalues. Where an eigenvalue is hardly more than rounding errors, x is rather too small.
    """
    n = len(lam)
    x = np.sum((np.abs(ties) - off).clip(0) ** 2 / (lam.clip(0) + off))
    N = np.diag(np.append(lam, x))
    N[n, :n] = ties
    lam, W = np.linalg.eigh(N)
    return lam[::-1], W[:, ::-1]


def _pairs(space: _Space) -> tuple[np.ndarray, np.ndarray]:
    """The eigenpairs of the tridiagonal matrix, in decreasing order.

    As of a full one: for some dozens of rows LAPACK takes less time so than for a few pairs.
    """
    T = np.diag(space.diagonal)
    below = np.arange(1, len(T))
    T[below, below - 1] = space.off_diagonal[:-1]
    lam, S = np.linalg.eigh(T)
    return lam[::-1], S[:, ::-1]


def _none_above(space: _Space, x: float, squared: float) -> bool:
    """Whether a space from a random vector shows that its operator has no eigenvalue above x.

    With g the vector, of a squared norm that is known, u a unit eigenvector to an eigenvalue above
    x and f any polynomial, |f(lambda) g.u| <= ||f(S) g||. The f of least norm with f(x) = 1 is a
    sum of the orthonormal polynomials of the space, ||f(S) g||^2 = ||g||^2 / sum of p_i(x)^2, and
    grows beyond x where x is above all their zeros.
    """
    p = total = 1.0
    before = off_diagonal = 0.0
    while space.n < space.limit:
        size, _ = space.grow(space.n + 1)
        more = (x - space.diagonal[-1]) * p - off_diagonal * before
        if not more > 0:
            return False
        if size <= _EPS * x:  # whatever g has a component of is in the space
            return True
        before, p, off_diagonal = p, more / size, size
        total += p * p
        if total * _LEAST_COMPONENT > squared:
            return True
    return False
