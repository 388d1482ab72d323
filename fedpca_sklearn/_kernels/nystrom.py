"""Leading directions of a scatter matrix from its products with a few directions.

With orthonormal rows V and products T = V S, Nystroem's approximation is T^T (T V^T)^-1 T. It never
exceeds S, equals S on the rows of V, and its directions are those of the products: one product
brings what Rayleigh and Ritz need a second one for.
"""

from __future__ import annotations

import numpy as np

from . import linalg
from .tolerances import GRAM_ROUNDING

# A product below this share of the largest adds nothing to the space.
_EXHAUSTED = 1e-13


def nystrom_factor(basis: np.ndarray, products: np.ndarray, off: float = 0.0) -> np.ndarray:
    """Rows F, of which ``F.T @ F`` is Nystroem's approximation.

    Parameters
    ----------
    basis, products : ndarray of shape (m, d)
        Orthonormal rows, and the same times the scatter matrix.
    off : float
        How far the products may be off by more than rounding errors.
    """
    H = basis @ products.T
    values, Y = np.linalg.eigh((H + H.T) / 2)
    least = GRAM_ROUNDING * max(float(values.max(initial=0.0)), np.finfo(float).tiny)
    known = values > max(least, off)
    return (Y[:, known] / np.sqrt(values[known])).T @ products


def nystrom(
    basis: np.ndarray, products: np.ndarray, off: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Directions of the approximation, and singular values: the roots of its eigenvalues."""
    F = nystrom_factor(basis, products, off)
    if not len(F):
        return F, np.zeros(0)
    lam, W = np.linalg.eigh(F @ F.T)
    found = linalg.top_of_scatter(lam[::-1], W[:, ::-1], len)
    if found is not None:
        W, s = found
        return (W / s[:, None]) @ F, s
    _, s, V = np.linalg.svd(F, full_matrices=False)
    return V, s


class ProductSpace:
    """A block Krylov space: directions, and their products with a scatter matrix.

    Parameters
    ----------
    start : ndarray of shape (k, d)
        Rows that span the first block; those before are kept as they are if they are orthonormal.

    Attributes
    ----------
    basis, products : ndarray of shape (m, d)
        All blocks so far.
    block : ndarray of shape (b, d)
        Orthonormal rows of the next block, whose product is wanted; none where the space is whole.
    n_products : int
        Number of blocks so far.
    """

    def __init__(self, start: np.ndarray):
        self.basis = self.products = np.empty((0, start.shape[1]))
        self.block = linalg.orthonormalised(start)
        self.n_products = 0

    def add(self, products: np.ndarray) -> None:
        """Take the product of the block, and find the next block."""
        self.basis = np.concatenate([self.basis, self.block])
        self.products = np.concatenate([self.products, products])
        self.n_products += 1
        rest = _orthogonal_to(self.basis, products)
        _, sizes, rows = np.linalg.svd(rest, full_matrices=False)
        largest = np.abs(self.products).max(initial=0.0)
        room = self.basis.shape[1] - len(self.basis)
        rows = rows[: min(room, int(np.sum(sizes > _EXHAUSTED * largest)))]
        self.block = linalg.orthonormalised(_orthogonal_to(self.basis, rows)) if len(rows) else rows


def _orthogonal_to(basis: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Rows less their part along a basis."""
    for _ in range(2):  # twice is enough
        rows = rows - (rows @ basis.T) @ basis
    return rows
