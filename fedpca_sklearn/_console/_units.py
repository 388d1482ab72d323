"""A check of units: columns of sites that are a hundredfold apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..summary import Subspace

# Nearer to a hundredfold than to tenfold.
_APART = 10**1.5
# The deviation of five normal rows is so much too small in two columns of a million.
_FEWEST = 5
# Of the mean: what rounding leaves of the deviation of a constant column is less.
_CONSTANT = 1e-6
_SHOWN = 5


def unlike_units(summaries: Sequence[Subspace], who: Sequence[str]) -> list[str]:
    """Warnings about columns whose means or deviations at sites are a hundredfold apart.

    A mean is compared with the larger of the other's mean and deviation, so that means near zero
    are not judged. A column that is constant at a site says nothing about its unit there, unless
    by its value.

    Parameters
    ----------
    summaries : sequence of Subspace
        With the same columns.
    who : sequence of str
        Names of the sites.

    Returns
    -------
    warnings : list of str
        A line for each of the first columns, and one for how many more there are.
    """
    judged = [i for i, s in enumerate(summaries) if s.n_samples >= _FEWEST]
    if len(judged) < 2:
        return []
    names = summaries[0].feature_names
    names_or_numbers = [
        str(j + 1) if names is None else repr(names[j]) for j in range(summaries[0].n_features)
    ]
    means = np.abs([summaries[i].mean for i in judged])
    deviations = np.array([_deviations(summaries[i]) for i in judged])
    sizes = np.maximum(means, deviations)
    deviations[deviations <= _CONSTANT * means] = 0
    found: dict[int, str] = {}
    for what, values, others in (("deviation", deviations, deviations), ("mean", means, sizes)):
        least = np.where(others > 0, others, np.inf).argmin(axis=0)
        most = values.argmax(axis=0)
        columns = np.arange(len(names_or_numbers))
        high, low = values[most, columns], others[least, columns]
        for j in np.flatnonzero((low > 0) & (high >= _APART * low)):
            found.setdefault(
                int(j),
                f"column {names_or_numbers[j]}: the {what} of {who[judged[most[j]]]} is "
                f"{high[j]:.3g}, of {who[judged[least[j]]]} {values[least[j], j]:.3g}; are the "
                "units the same?",
            )
    lines = [found[j] for j in sorted(found)]
    more = len(lines) - _SHOWN
    return lines[:_SHOWN] + ([f"and {more} more columns like these."] if more > 0 else [])


def _deviations(summary: Subspace) -> np.ndarray:
    """Standard deviation of each column; of what was kept, where that of all is not known."""
    scatter = summary.column_scatter
    if scatter is None:
        scatter = (summary.singular_values**2) @ summary.components.astype(np.float64) ** 2
    return np.sqrt(np.maximum(scatter, 0.0) / summary.degrees_of_freedom)
