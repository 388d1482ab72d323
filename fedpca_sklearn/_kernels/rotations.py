"""Rotations of rows in time O(d log d) a row: no d x d matrix."""

from __future__ import annotations

from math import isqrt

import numpy as np
import scipy.fft


def random_rotation(rows: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Multiply rows by a random orthogonal matrix: random signs and a cosine transform, twice.

    ``signs`` has the shape (2, d), or (2, n, d) for a matrix of its own for each row.
    """
    for sign in signs:
        rows = scipy.fft.dct(rows * sign, norm="ortho", axis=1)
    return rows


def turned_pairs(rows: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Rows with neighbouring coordinates turned in their planes; angles are of (n, d // 2)."""
    pairs = 2 * angles.shape[-1]
    z = rows[:, 0:pairs:2] + 1j * rows[:, 1:pairs:2]
    z *= np.exp(1j * angles)
    rows = rows.copy()
    rows[:, 0:pairs:2], rows[:, 1:pairs:2] = z.real, z.imag
    return rows


class SteadyRotation:
    """Subspaces exp(-times[t] B) P of a skew-symmetric B, which turns all planes of a frame.

    Parameters
    ----------
    start : ndarray of shape (k, d)
        P, in the frame.
    times : ndarray of shape (n,)
    speeds : ndarray of shape (d // 2,)
        Angle of each plane in a unit of time.
    signs : ndarray of shape (2, d)
        Of the frame.
    """

    def __init__(self, start: np.ndarray, times: np.ndarray, speeds: np.ndarray, signs: np.ndarray):
        self.start, self.times, self.speeds, self.signs = start, times, speeds, signs

    def rows(self, coefficients: np.ndarray) -> np.ndarray:
        """Rows with these coefficients in the basis of their time."""
        angles = np.multiply.outer(self.times, self.speeds)
        return random_rotation(turned_pairs(coefficients @ self.start, angles), self.signs)

    def subspace_at(self, t: int) -> np.ndarray:
        """Orthonormal basis of row t."""
        return random_rotation(turned_pairs(self.start, self.times[t] * self.speeds), self.signs)


class RandomWalk:
    """Subspaces P_t = exp(-B_t) P_(t-1) with a skew-symmetric B_t in a frame of its own.

    Bases are carried on from row to row in the frame of the row, O(k d log d) each. Some sqrt(n) of
    them are kept, from which the others follow.

    Parameters
    ----------
    start : ndarray of shape (k, d)
        P_0, in the frame of row 0.
    angles : ndarray of shape (d // 2,)
        By which every B_t turns the planes of its frame.
    signs : ndarray of shape (2, n, d)
        Of the frames.
    """

    def __init__(self, start: np.ndarray, angles: np.ndarray, signs: np.ndarray):
        self.angles, self.signs = angles, signs
        self.spacing = isqrt(signs.shape[1])
        self.kept = [start]

    def _next(self, basis: np.ndarray, t: int) -> np.ndarray:
        """Basis of row t, in its frame, from that of the row before: one transform is its own."""
        (outer, inner), (new_outer, new_inner) = self.signs[:, t - 1], self.signs[:, t]
        basis = scipy.fft.dct(basis * outer, norm="ortho", axis=1) * (inner * new_inner)
        basis = scipy.fft.idct(basis, norm="ortho", axis=1) * new_outer
        return turned_pairs(basis, self.angles)

    def rows(self, coefficients: np.ndarray) -> np.ndarray:
        """Rows with these coefficients in the basis of their time."""
        rows = np.empty((len(coefficients), self.signs.shape[2]))
        basis = self.kept[0]
        self.kept = []
        for t, row in enumerate(coefficients):
            basis = self._next(basis, t) if t else basis
            if t % self.spacing == 0:
                self.kept.append(basis)
            rows[t] = row @ basis
        return random_rotation(rows, self.signs)

    def subspace_at(self, t: int) -> np.ndarray:
        """Orthonormal basis of row t."""
        t = range(self.signs.shape[1])[t]
        first = t - t % self.spacing
        basis = self.kept[first // self.spacing]
        for s in range(first + 1, t + 1):
            basis = self._next(basis, s)
        return random_rotation(basis, self.signs[:, t])
