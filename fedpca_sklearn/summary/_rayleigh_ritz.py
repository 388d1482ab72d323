"""A summary along given directions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.linalg

from .._kernels import linalg
from ._subspace import Subspace


def rayleigh_ritz(total: Subspace, V: np.ndarray, factor: np.ndarray) -> Subspace:
    """Summary by given orthonormal directions, rotated to the principal axes among them.

    ``factor.T @ factor`` is the scatter matrix of the rows within the directions. All of them are
    kept, also those without variance; count, mean, scatter and dtype are those of ``total``.
    """
    if not len(V):
        return total
    few = max(len(V) - len(factor), 0)
    factor = np.concatenate([factor, np.zeros((few, len(V)))])
    _, s, W = scipy.linalg.svd(factor, full_matrices=False, check_finite=False)
    V = linalg.flip_signs(W @ V).astype(total.components.dtype, copy=False)
    scatter = max(total.scatter, float(s @ s))
    return total._replace(components=V, singular_values=s, scatter=scatter)


def factor_along(parts: Sequence[Subspace], V: np.ndarray) -> np.ndarray:
    """Factor of the scatter matrix along directions, of the rows about the means of their parts.

    What lies beyond the components of a part counts as none.
    """
    return np.concatenate(
        [part.singular_values[:, None] * (part.components @ V.T) for part in parts]
    )
