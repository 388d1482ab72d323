"""Number of components by entries held out: what a model of the others says of each."""

from __future__ import annotations

import numpy as np

from ._subspace import Subspace

# Power of a share of rows that components of new rows lose: two for the coefficients of a column,
# one as the leading variances of a sample are too large.
_POWER = 3
# Noise in an entry that counts as none, as a share of the mean variance.
_NO_NOISE = 1e-12


# The rule's name, as ``n_components``.
HELD_OUT = "held-out"


def held_out_errors(subspace: Subspace, n_rows: float, most: int) -> np.ndarray:
    """Squared error of entries held out, by the number of components, from 0 to at most ``most``.

    The mean of an entry given the others of its row in probabilistic PCA of r components is off by
    ``(P x)_j / P_jj``, with the inverse P of the model's covariance. So the sum of squares over all
    rows of a summary is ``(P S P)_jj / P_jj^2``, for all r in O(k d) from the k directions. It is
    divided by ``(1 - (r + 1) / n)^3``, as these rows have made the model.

    Parameters
    ----------
    subspace : Subspace
    n_rows : float
        Rows that say as much of two columns as those of the summary.
    most : int

    Returns
    -------
    errors : ndarray of shape (m,)
        In a unit of the summary.
    """
    d, columns = subspace.n_features, _scatter_of_columns(subspace)
    unit = float(columns.sum()) / d or 1.0
    columns = columns / unit
    variances = (subspace.singular_values / np.sqrt(unit)) ** 2
    last = min(most, len(variances), d - 1, int(np.ceil(n_rows)) - 2)
    variances = variances[: max(last, 0)]
    variances = variances[variances > _NO_NOISE * d]
    squares = subspace.components[: len(variances)].astype(np.float64) ** 2

    def summed(terms: np.ndarray) -> np.ndarray:
        return np.concatenate([np.zeros((1, d)), np.cumsum(terms, axis=0)])

    r, values = np.arange(len(variances) + 1), variances[:, None]
    beyond = np.maximum(columns - summed(values * squares), 0.0)
    noise = np.maximum(beyond.sum(axis=1) / (d - r), _NO_NOISE)[:, None]
    inside = noise * summed(squares / values)
    outside = np.maximum(1 - summed(squares), 0.0)
    off = (noise * inside + beyond) / np.maximum(inside + outside, _NO_NOISE) ** 2
    return off.sum(axis=1) / np.maximum(1 - (r + 1) / n_rows, _NO_NOISE) ** _POWER


def _scatter_of_columns(subspace: Subspace) -> np.ndarray:
    """Sum of squares of each column; where it is not known what was cut is alike in all."""
    if subspace.column_scatter is not None:
        return subspace.column_scatter
    rows = subspace._rows
    cut = max(subspace.scatter - float(np.sum(subspace.singular_values**2)), 0.0)
    return np.einsum("ij,ij->j", rows, rows) + cut / subspace.n_features


def held_out_components(
    subspace: Subspace, n_rows: float | None = None, most: int | None = None
) -> int:
    """Number of components, at least 1, with which entries held out are predicted best."""
    n_rows = subspace.n_samples if n_rows is None else n_rows
    errors = held_out_errors(subspace, n_rows, subspace.n_features if most is None else most)
    return max(1, int(np.argmin(errors)))
