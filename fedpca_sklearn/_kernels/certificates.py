"""How far the leading directions of an approximation may be from those of a scatter matrix.

Throughout S = A + E: A is known and never exceeds S, so that E is positive semi-definite.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
from scipy.special import gammaincinv

from .linalg import r_factor
from .sizes import SMALL_EIGENPROBLEM
from .subspace_passes import nystrom, nystrom_factor
from .tolerances import RANK_EPS

# Vectors at random that are multiplied beside the directions, and the probability with which they
# may hide the largest eigenvalue of what is left.
N_PROBES = 8
FAILURE = 1e-6
# Share of the trace of E below which products are rounding errors.
_ROUNDING = 1e-13
# Values tried for that eigenvalue, and numbers of directions that are told from the rest.
_VALUES, _SPLITS = 80, 10


@dataclass(frozen=True)
class Certificate:
    """What is certain about leading directions.

    Attributes
    ----------
    sine : float
        At most this is the sine of the largest angle to the directions of the scatter matrix; inf
        where nothing is known.
    eigenvalues : ndarray of shape (r, 2)
        Between these are the r leading eigenvalues of the scatter matrix.
    """

    sine: float
    eigenvalues: np.ndarray


def rounding_of(scatter: float, n_samples: float, dtype: np.dtype) -> float:
    """What rounding errors may add to a scatter matrix of so many rows."""
    return float((RANK_EPS + np.sqrt(n_samples)) * np.finfo(dtype).eps * scatter)


def certificate_of_cut(
    values: np.ndarray, rank: int, n_features: int, scatter: float, rounding: float
) -> Certificate:
    """Certificate of the leading eigenvectors of A where only the trace t of E is known.

    With eigenvalues a of A and the gap g = a_r - a_{r+1}, E - t / 2 has a norm of at most t / 2,
    and Davis and Kahan's sin 2 theta theorem gives sin(2 angle) <= t / g for t < g; the angle grows
    with E without a jump, so that it is below 45 degrees. Weyl: eigenvalues grow by t at most.

    Parameters
    ----------
    values : ndarray of shape (k,)
        Eigenvalues of A, decreasing; all others are zero.
    rank, n_features : int
        Number of leading directions, and of all.
    scatter : float
        Trace of S.
    rounding : float
        What rounding errors may have added.
    """
    values = np.concatenate([values, np.zeros(max(rank + 1 - len(values), 0))])
    more = max(scatter - float(values.sum()), 0.0) + rounding
    gap = values[rank - 1] - values[rank]
    sine = float(np.sin(np.arcsin(more / gap) / 2)) if more < gap else np.inf
    if rank == n_features:
        sine = 0.0
    top = values[:rank]
    return Certificate(sine, np.stack([(top - rounding).clip(0), top + more], axis=1))


def certificate_of_products(
    basis: np.ndarray,
    products: np.ndarray,
    n_start: int,
    probes: np.ndarray,
    n_products: int,
    rank: int,
    scatter: float,
    rounding: float,
    off: float = 0.0,
) -> Certificate:
    """Certificate of the leading directions of Nystroem's approximation A.

    E vanishes on the basis. Its norm e is at most its trace, and at most what `largest_eigenvalue`
    says of the approximation from the start alone, from which A takes more away. The rest is
    geometry: `_sine` for the angle, and S <= A + e P, with P the projection across the basis, for
    the eigenvalues.

    Parameters
    ----------
    basis, products : ndarray of shape (m, d)
        A block Krylov space whose first ``n_start`` rows do not depend on the probes, and whose
        first block spans them and the probes.
    probes : ndarray of shape (p, d)
        Independent standard normal numbers.
    n_products : int
        Blocks of the space.
    rank, scatter, rounding
        As in `certificate_of_cut`.
    off : float
        As in `nystrom_factor`.
    """
    d = basis.shape[1]
    rounding += off
    V, s = nystrom(basis, products, off)
    s = s**2
    left = max(scatter - float(s.sum()), 0.0)
    if len(probes) and left > rounding:
        F = nystrom_factor(basis[:n_start], products[:n_start], off)

        def times(P):
            return (P @ basis.T) @ products - (P @ F.T) @ F

        most = max(scatter - float(np.sum(F**2)), 0.0)
        left = min(left, largest_eigenvalue(times, probes, n_products, most))
    left += rounding
    frame, across = _frame(V, basis)
    s = np.concatenate([s, np.zeros(max(len(frame), rank + 1) - len(s))])
    of_frame = s[: len(frame)]
    upper = np.linalg.eigvalsh(np.diag(of_frame) + left * across)
    upper = np.sort(np.concatenate([upper, np.full(min(d - len(frame), rank), left)]))[::-1]
    upper = np.concatenate([upper, np.zeros(rank)])[:rank]
    between = np.stack([(s[:rank] - rounding).clip(0), upper + rounding], axis=1)
    if rank >= d:
        return Certificate(0.0, between)
    if rank > len(frame):  # the last ones are as good as any
        return Certificate(np.inf, between)
    return Certificate(_sine(of_frame, across, rank, left, rounding), between)


def largest_eigenvalue(times, probes: np.ndarray, n_products: int, most: float) -> float:
    """Bound on the largest eigenvalue of E from products with random vectors, or ``most``.

    With its eigenvector u and g = probes u, independent of E, |g|^2 is below its quantile q with
    the probability FAILURE. For a polynomial f, |f(lambda)| |g| <= ||f(E) probes||. Here f is the
    one of least mean square for f(x) = 1 (Christoffel); its zeros are real and below x where x is
    above those of the last orthogonal polynomial, so that |f| grows from there: if |f(x)| sqrt(q)
    exceeds the norm, no eigenvalue is above x. For one vector this is the bound of van Dorsselaer,
    Hochstenbach and van der Vorst (2000) in another form.
    """
    mass = 2 * gammaincinv(len(probes) / 2, FAILURE)
    norm = float(np.linalg.norm(probes))
    blocks, diagonal, off_diagonal = [probes / norm], [], []
    for _ in range(n_products):  # Lanczos, with all probes as one vector
        W = times(blocks[-1])
        diagonal.append(float(np.sum(W * blocks[-1])))
        for block in blocks:
            W = W - np.sum(W * block) * block
        size = float(np.linalg.norm(W))
        off_diagonal.append(
            max(size, _ROUNDING * most)
        )  # zero where E has few different eigenvalues
        blocks.append(W / off_diagonal[-1])
        if size < off_diagonal[-1]:
            break
    n = len(off_diagonal)
    ties = np.diag(off_diagonal[: n - 1], 1)
    zeros = np.linalg.eigvalsh(np.diag(diagonal[:n]) + ties + ties.T)
    p = len(probes)
    R = r_factor(np.concatenate(blocks).T)
    parts = np.stack([R[:, i * p : (i + 1) * p] for i in range(n + 1)])
    for x in np.geomspace(max(zeros[-1], _ROUNDING * most) * 1.001, most, _VALUES):
        at_x = [0.0, 1 / norm]
        for i in range(n):
            above = off_diagonal[i - 1] * at_x[-2] if i else 0.0
            at_x.append(((x - diagonal[i]) * at_x[-1] - above) / off_diagonal[i])
        f = np.array(at_x[1:])
        if np.linalg.norm(np.tensordot(f, parts, 1), 2) < np.sqrt(mass) * (f @ f):
            return float(x)
    return most


def _frame(V: np.ndarray, basis: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Orthonormal rows of the span of V and of the basis, V first, and P among them."""
    rest = basis
    for _ in range(2):
        rest = rest - (rest @ V.T) @ V
    Q, R, _ = scipy.linalg.qr(rest.T, mode="economic", pivoting=True, check_finite=False)
    more = Q[:, np.abs(np.diag(R)) > 1e-12].T
    frame = np.concatenate([V, more[: V.shape[1] - len(V)]])
    beyond = frame - (frame @ basis.T) @ basis
    return frame, beyond @ beyond.T


def _sine(values: np.ndarray, across: np.ndarray, rank: int, e: float, rounding: float) -> float:
    """Bound on the sine of the angle to the leading directions of S, the best of some splits.

    Directions of A after the first r are split: W, known well, and Z, all others. Along X = X1 + X2
    + X3, parts of the leading directions of S, with eigenvalues of at least those of A,
    |X2| <= (|W E V| + |W E Z| |X3|) / (a_r - |W S W|) and likewise |X3|: Davis and Kahan's sine
    theorem for each. E <= e P bounds every part of E by e times sines of angles to the basis.
    """
    m, best, least = len(values), np.inf, values[rank - 1]
    of_V = np.sqrt(_largest(across[:rank, :rank]))
    n_splits = _SPLITS if m <= SMALL_EIGENPROBLEM else _SPLITS // 3
    steps = np.geomspace(1, max(m - rank, 1), n_splits).astype(int)
    for at in sorted({rank, *np.minimum(m, rank + steps).tolist()}):
        W = slice(rank, at)
        of_W = np.sqrt(_largest(across[W, W]))
        gap_W = least - _largest(np.diag(values[W]) + e * across[W, W])
        gap_Z = least - max(e, _largest(np.diag(values[at:]) + e * across[at:, at:]))
        tie = e * of_W
        if at == rank:
            gap, x2, x3 = gap_Z, 0.0, e * of_V
        else:
            gap = (gap_W + gap_Z) / 2 - np.hypot((gap_W - gap_Z) / 2, tie)
            det = gap_W * gap_Z - tie**2
            x2 = e * of_V * (of_W * gap_Z + tie) * gap / det if gap > 0 else 0.0
            x3 = e * of_V * (gap_W + tie * of_W) * gap / det if gap > 0 else 0.0
        if gap > 0:
            best = min(best, (float(np.hypot(x2, x3)) + rounding) / gap)
    return best


def _largest(M: np.ndarray) -> float:
    return max(float(np.linalg.eigvalsh(M)[-1]), 0.0) if len(M) else 0.0
