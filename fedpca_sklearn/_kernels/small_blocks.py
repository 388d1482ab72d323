"""Principal directions of many small blocks of rows at once, each about its own mean."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .linalg import sign_vectors
from .tolerances import ORTHONORMALITY_TOL


class SmallBlocks(NamedTuple):
    """What `summaries_of_blocks` finds; where ``certain`` is not true, nothing holds."""

    components: np.ndarray
    singular_values: np.ndarray
    means: np.ndarray
    column_scatter: np.ndarray
    certain: np.ndarray


def summaries_of_blocks(blocks: np.ndarray, most: int) -> SmallBlocks:
    """Directions of c blocks of n rows, by the Gram matrices of their centred rows.

    As by the first block of a stream (`stack.DenseBlock`), with the same certificates: the spread
    of the eigenvalues, and the orthonormality of the directions. Blocks with entries that are not
    finite are not certain either.

    Parameters
    ----------
    blocks : ndarray of shape (c, n, d), float32 or float64
        Of at least two rows and more columns.
    most : int
        Bound on the directions kept, at least 1.

    Returns
    -------
    found : SmallBlocks
        ``min(most, n - 1)`` directions of each block, as centring takes one.
    """
    n, dtype = blocks.shape[1], blocks.dtype
    with np.errstate(all="ignore"):
        shift = blocks[:, 0].astype(np.float64)
        Z = np.empty_like(blocks)
        np.subtract(blocks, shift[:, None], out=Z, casting="same_kind")
        offset = Z.mean(axis=1, dtype=np.float64)
        Z -= offset[:, None].astype(dtype)
        column_scatter = np.einsum("cij,cij->cj", Z, Z, dtype=np.float64)
        G = (Z @ Z.transpose(0, 2, 1)).astype(np.float64, copy=False)
        certain = np.isfinite(column_scatter.sum(axis=1)) & np.isfinite(G).all(axis=(1, 2))
        G[~certain] = 0.0
        lam, U = np.linalg.eigh(G)
        lam, U = lam[:, :0:-1][:, :most], U[:, :, :0:-1][:, :, :most]
        certain &= lam[:, -1] > n * np.finfo(dtype).eps * lam[:, 0]
        s = np.sqrt(lam)
        W = np.ascontiguousarray((U / s[:, None]).transpose(0, 2, 1), dtype=dtype)
        V = W @ Z
        certain &= _are_orthonormal(V, ORTHONORMALITY_TOL[dtype])
    negative = -V.min(axis=2) > V.max(axis=2)
    np.negative(V, out=V, where=negative[:, :, None])
    return SmallBlocks(V, s, shift + offset, column_scatter, certain)


def _are_orthonormal(V: np.ndarray, tol: float) -> np.ndarray:
    """`linalg.is_orthonormal` for each of many bases."""
    close = np.ones(len(V), dtype=bool)
    for x in sign_vectors(V.shape[1], V.dtype):
        there_and_back = V @ (x @ V)[:, :, None]
        close &= np.abs(there_and_back[:, :, 0] - x).max(axis=1) <= tol
    return close
