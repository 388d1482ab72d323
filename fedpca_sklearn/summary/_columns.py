"""Some of the columns of a summary, or all in another order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._kernels.linalg import flip_signs, numerical_rank
from ._subspace import Subspace
from ._updating import was_truncated


def select_columns(subspace: Subspace, columns: Sequence[int]) -> Subspace:
    """Summary of the same rows in other columns.

    Parameters
    ----------
    subspace : Subspace
    columns : sequence of int
        Positions of the columns to keep, each once, in the order of the result.

    Returns
    -------
    selected : Subspace
        Exact where nothing was cut; else the scatter of the columns is exact, and the directions
        are below it as they were before.

    Raises
    ------
    ValueError
        If directions were cut and the scatter of single columns is not known.
    """
    chosen = np.asarray(columns)
    names = subspace.feature_names
    of_columns = subspace.column_scatter
    kept = {
        "mean": subspace.mean[chosen],
        "column_scatter": None if of_columns is None else of_columns[chosen],
        "feature_names": None if names is None else tuple(names[j] for j in columns),
    }
    parts = subspace.components[:, chosen]
    if len(chosen) == subspace.n_features:
        return subspace._replace(components=flip_signs(np.array(parts)), **kept)
    if of_columns is None and was_truncated(subspace):
        raise ValueError("it lacks the scatter of its columns, so that none can be left out.")
    scaled = subspace.singular_values[:, None] * parts.astype(np.float64)
    _, s, V = np.linalg.svd(scaled, full_matrices=False)
    rank = numerical_rank(s)
    s, V = s[:rank], flip_signs(V[:rank]).astype(parts.dtype, copy=False)
    energy = float(s @ s)
    scatter = energy if of_columns is None else max(energy, float(of_columns[chosen].sum()))
    return subspace._replace(components=V, singular_values=s, scatter=scatter, **kept)
