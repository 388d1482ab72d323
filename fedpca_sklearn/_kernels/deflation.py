"""Rows less their parts along a few directions, whose products in float32 are rounded less.

Products in float32 are rounded to eps of the largest eigenvalue of what is multiplied, which is too
much for eigenvalues that are far smaller. So the parts along a few directions U of large variance
are taken off the rows first, z' = z - U y with y = U^T z. The scatter matrix of z is that of z',
plus U B and its transpose, where B is the sum of y (z' + U y / 2)^T. That holds for any U and for
whatever numbers y are: neither has to be exact, and the roundings of z' itself are few.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg.blas import dsyr2k

from .thin_products import sums_in_groups


class DeflatedParts:
    """Takes the parts along directions off rows, and adds them to a scatter matrix in the end.

    Parameters
    ----------
    directions : ndarray of shape (q, d)
    dtype : dtype
        Of the rows and of the products with them.
    """

    def __init__(self, directions: np.ndarray, dtype: np.dtype):
        q, d = directions.shape
        self._U = directions.astype(dtype)
        self._UT = np.ascontiguousarray(self._U.T)
        self._across, self._within, self._squares = np.zeros((q, d)), np.zeros((q, q)), np.zeros(d)

    def take_off(self, Z: np.ndarray) -> None:
        """Change rows in place."""
        self._squares += sums_in_groups(np.ones((len(Z), 1), Z.dtype), np.square(Z))[0]
        Y = Z @ self._UT
        Z -= Y @ self._U
        self._across += sums_in_groups(Y, Z)
        Y = Y.astype(np.float64)
        self._within += Y.T @ Y

    def added(self, G: np.ndarray) -> np.ndarray:
        """Lower triangle of the scatter of all, from that of the changed rows.

        Squares of columns are those of the rows as they were: of a column that is small beside a
        direction's loading they would be a difference of larger numbers.
        """
        U = self._U.astype(np.float64)
        B = self._across + self._within @ U / 2
        G = dsyr2k(1.0, U.T, B.T, beta=1.0, c=G, lower=1, overwrite_c=1)
        np.fill_diagonal(G, self._squares)
        return G


def largest_left(lam: np.ndarray, W: np.ndarray, directions: np.ndarray) -> float:
    """The largest eigenvalue at most of a scatter matrix of rows without some parts of them.

    That of the parts which its leading eigenpairs, the columns of W, are left with, and the
    least of them, above which no other one is.
    """
    A = np.sqrt(lam.clip(0))[:, None] * (W.T @ directions.T)
    return float(np.linalg.norm(np.diag(lam) - A @ A.T, 2) + lam[-1].clip(0))
