"""Units in which the columns of rows are alike, so that a cut is that of the adjusted rows.

Directions of large columns hide those of small ones: below 1e-16 of them nothing is left, and what
is cut are the small columns first. Rows that will be adjusted are therefore summarised and merged
in units of powers of two, which round nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from .._kernels.rows import entries_once
from .._kernels.sizes import EXACT_ORDER, SMALL_DIMENSION, row_slices
from .._validation.checks import is_integer
from .._validation.feature_names import names_known
from ._adjusted import Adjusting, cut_beside, is_certain
from ._directions import ALIKE
from ._exact import Factor, ScatterMatrix, added
from ._merging import merge_subspaces, pooled_moments
from ._scaling import deviations, rescaled, rows_of, scatter_of_columns
from ._subspace import Subspace
from ._updating import was_truncated

# What confounders exceed all other columns together by, where directions are cut. What is cut of
# them, and with it the error of their effects squared, falls with the fourth power.
_PROMINENT = 2.0**8
# Exponents of units: products of two and their inverses are finite, also in float32.
_LARGEST_EXPONENT = {np.dtype(np.float64): 250, np.dtype(np.float32): 60}


def units_for(
    deviation: np.ndarray, adjusting: Adjusting, cuts: bool, dtype: np.dtype
) -> np.ndarray | None:
    """Units of columns with such deviations; None where the rows' own serve as well.

    ``cuts``: whether directions are cut.
    """
    there = deviation > 0
    if not adjusting or not there.any():
        return None
    if not cuts and deviation[there].max() <= ALIKE * deviation[there].min():
        return None
    units = deviation.copy()
    if cuts and not adjusting.scale:  # a cut of the others as they are
        units[:] = deviation.max()
    if cuts and adjusting.confounders:
        some = list(adjusting.confounders)
        units[some] = deviation[some] / (_PROMINENT * np.sqrt(there.sum()))
    most = _LARGEST_EXPONENT[dtype]
    exponents = np.frexp(np.where(there & (units > 0), units, 1.0))[1].clip(-most, most)
    alike = not np.ptp(exponents[there])
    return None if alike else np.ldexp(1.0, exponents)


def _now(sources: tuple, how: Hashable, make: Callable[[], Subspace]) -> Subspace:
    return make()


def _same(summary: Subspace) -> Subspace:
    return summary


def merge_units(
    summaries: Sequence[Subspace],
    adjusting: Adjusting,
    n_components: int | float | None,
    judged: bool = False,
) -> np.ndarray | None:
    """Units for a merge of summaries that fit together; None where their own serve as well."""
    there = [s for s in summaries if s.n_samples > 0]
    if not adjusting or not there:
        return None
    total = pooled_moments(there)[0]
    columns = total.column_scatter
    if columns is None:  # of a site that has cut nothing, or an error
        columns = np.sum([scatter_of_columns(s) for s in there], axis=0)
    deviation = deviations(columns, total.mean, total.n_samples)
    if judged:
        return np.where(deviation > 0, deviation, 1.0)
    cuts = n_components is not None and total.n_features > SMALL_DIMENSION
    cuts = cuts or any(map(was_truncated, there))
    return units_for(deviation, adjusting, cuts, total._dtype)


def alike(
    summaries: list[Subspace],
    adjusting: Adjusting,
    n_components: int | float | None,
    judged: bool = False,
    once: Callable[[tuple, Hashable, Callable[[], Subspace]], Subspace] = _now,
) -> tuple[list[Subspace], Callable[[Subspace], Subspace]]:
    """Summaries in units in which their columns are alike, and what makes a summary one of rows.

    ``judged``: whether the merge compares sites, so that the units are those of scaled rows.
    ``once(sources, how, make)`` may return what has been made of the same before.
    """
    units = merge_units(summaries, adjusting, n_components, judged)
    if units is None:
        return summaries, _same
    how = units.tobytes()
    parts = [once((s,), how, partial(rescaled, s, 1 / units)) for s in summaries]
    return parts, partial(rescaled, factors=units)


def added_up(
    summaries: list[Subspace], adjusting: Adjusting, n_components: int | float | str | None
) -> Subspace | None:
    """The sum of the scatter matrices that summaries hold, which is right in any units.

    None where one of them holds none, or where the sum is not certain to tell the components.
    """
    held = [s._leading for s in summaries if isinstance(s._leading, ScatterMatrix)]
    if not adjusting or not held or len(held) < sum(s.n_samples > 0 for s in summaries):
        return None
    total, corrections = _moments(summaries)
    total = total._replace(_leading=added(held, corrections, _dtype_of(summaries)))
    most = n_components if is_integer(n_components) else None
    return total if is_certain(total, adjusting, most) else None


def merged_beside(
    summaries: list[Subspace], adjusting: Adjusting, n_components: int | float | None
) -> Subspace | None:
    """The merge of summaries that were cut beside the confounders, cut beside them.

    None where nothing is adjusted or cut, and of many directions.
    """
    if not adjusting or summaries[0].n_features <= SMALL_DIMENSION:
        return None
    if n_components is None or not is_integer(n_components):
        return None
    if sum(s.n_components + 1 for s in summaries) > EXACT_ORDER:
        return None
    if not any(s.n_samples > 0 for s in summaries):
        return None
    total, corrections = _moments(summaries)
    parts = [rows_of(s) for s in summaries if s.n_samples > 0]
    held = Factor(np.concatenate([*parts, corrections]), _dtype_of(summaries))
    most = int(n_components) - len(adjusting.confounders)
    return cut_beside(total._replace(_leading=held), adjusting, most)


def _dtype_of(summaries: list[Subspace]) -> np.dtype:
    return np.result_type(*(s._dtype for s in summaries))


def _moments(summaries: list[Subspace]) -> tuple[Subspace, np.ndarray]:
    """What `pooled_moments` returns, with the names of the columns."""
    total, corrections = pooled_moments([s for s in summaries if s.n_samples > 0])
    names = names_known(summaries)
    return total._named(names), corrections


def merge_alike(
    summaries: list[Subspace], n_components: int | float | None, adjusting: Adjusting
) -> Subspace:
    """Merge summaries in units in which their columns are alike."""
    total = added_up(summaries, adjusting, n_components)
    if total is not None:
        return total
    parts, undone = alike(summaries, adjusting, n_components)
    return undone(merge_subspaces(parts, n_components))


class StreamUnits:
    """Units of the columns of a stream, which change where the rows do.

    Parameters
    ----------
    adjusting : Adjusting
    cuts : bool
        Whether directions are cut from the summary of the stream.
    """

    def __init__(self, adjusting: Adjusting, cuts: bool):
        self._adjusting, self._cuts = adjusting, cuts
        self._units: np.ndarray | None = None
        self.started = False

    def taken(
        self, summary: Subspace, rows: Any, weight: np.ndarray | None
    ) -> tuple[Subspace, Any]:
        """A summary and the next rows in units that fit both."""
        if not self._adjusting:
            return summary, rows
        with np.errstate(over="ignore", invalid="ignore"):  # the update says what is too large
            deviation = self._deviations(summary, rows, weight)
        if not np.isfinite(deviation).all():
            return self.undone(summary), rows
        if not self.started or self._outgrown(deviation):
            summary = self.undone(summary)
            self._units = units_for(deviation, self._adjusting, self._cuts, summary._dtype)
            self.started = True
            if self._units is not None:
                summary = rescaled(summary, 1 / self._units)
        if self._units is None:
            return summary, rows
        factors = (1 / self._units).astype(rows.dtype)
        if sp.issparse(rows):
            data = rows.data * factors[rows.indices]
            return summary, sp.csr_array((data, rows.indices, rows.indptr), rows.shape)
        return summary, rows * factors

    def undone(self, summary: Subspace) -> Subspace:
        """A summary in the units of the rows."""
        return summary if self._units is None else rescaled(summary, self._units)

    def _outgrown(self, deviation: np.ndarray) -> bool:
        """Whether columns have become much larger than their units, or than the others."""
        units = 1.0 if self._units is None else self._units
        there = deviation / units
        there = there[there > 0]
        return bool(len(there)) and bool(there.max() > ALIKE * _PROMINENT * there.min())

    def _deviations(self, summary: Subspace, rows: Any, weight: np.ndarray | None) -> np.ndarray:
        """About the deviations of the columns, with the next rows."""
        past = self._units if self._units is not None else np.ones(rows.shape[1])
        rows, w = entries_once(rows), np.ones(rows.shape[0]) if weight is None else weight
        n, n_before = float(w.sum()), summary.n_samples
        if not n + n_before:
            return np.zeros(rows.shape[1])
        before = summary.mean * past
        mean = np.asarray(w @ rows).ravel() / n if n else before
        if sp.issparse(rows):
            new = np.maximum(w @ rows.power(2) - n * mean**2, 0)
        else:
            new = np.zeros(rows.shape[1])
            for at in row_slices(*rows.shape):
                new += w[at] @ np.square(rows[at] - mean)
        apart = (mean - before) * (n / (n + n_before))
        scatter = summary.column_scatter * past**2 + new + apart * (mean - before) * n_before
        return deviations(scatter, before + apart, n + n_before)
