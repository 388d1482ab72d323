"""Variances along principal directions of rows whose columns are independent."""

from __future__ import annotations

import numpy as np

from .sizes import slices_of

# Entries of the matrices of draws that are made at once: 32 MB.
_ENTRIES = 2**22


def null_variances(
    column_variances: np.ndarray, degrees_of_freedom: int, n_draws: int, rng: np.random.Generator
) -> np.ndarray:
    """Draw eigenvalues of the covariance of independent normal columns with given variances.

    Parameters
    ----------
    column_variances : ndarray of shape (d,)
        Sample variances of the columns, positive, which every draw has.
    degrees_of_freedom : int
        m, at least 1: of n centred rows n - 1.
    n_draws : int
        Number of draws.
    rng : Generator
        Source of the draws.

    Returns
    -------
    variances : ndarray of shape (n_draws, min(m, d))
        Decreasing in each row. A draw takes O(min(m, d)^2 d) operations and no rows: where m >= d,
        it is Bartlett's triangle of a Wishart matrix. The correlations of independent normal
        columns do not depend on their sample variances, which are then set.
    """
    d, m = len(column_variances), degrees_of_freedom
    order = min(m, d)
    scale = np.sqrt(column_variances)
    found = np.empty((n_draws, order))
    for at in slices_of(n_draws, max(1, _ENTRIES // max(order * d, 1))):
        size = at.stop - at.start
        if m >= d:
            A = np.tril(rng.standard_normal((size, d, d)), -1)
            A[:, np.arange(d), np.arange(d)] = np.sqrt(
                rng.chisquare(float(m) - np.arange(d), (size, d))
            )
        else:
            A = rng.standard_normal((size, d, m))
        A *= (scale / np.linalg.norm(A, axis=2))[..., None]
        products = A @ A.transpose(0, 2, 1) if m >= d else A.transpose(0, 2, 1) @ A
        found[at] = np.linalg.eigvalsh(products)[:, ::-1]
    return np.maximum(found, 0.0)
