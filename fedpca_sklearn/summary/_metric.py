"""Updates and merges of rows that are adjusted when components are read.

Up to the exact dimension nothing is cut: a summary is a scatter matrix where that is certain, else
a factor, in which QR keeps the digits of each column. Where directions are cut, those of large
columns hide those of small ones: below 1e-16 of them nothing is left, and what is cut are the small
columns first. There columns have a metric, powers of two near their deviations, which round
nothing; or the rows that confounders explain are kept whole, beside the leading directions of what
is left.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from .._kernels.linalg import triangle
from .._kernels.rows import columns_about, entries_once
from .._kernels.sizes import EXACT_ORDER, FEW_ROWS, SMALL_DIMENSION, passes_pay, scatter_pays
from .._validation.checks import is_integer
from .._validation.containers import names_known
from . import _updating
from ._adjusted import (
    Adjusting,
    adjusted,
    deviations,
    is_certain,
    rescaled,
    scatter_of_columns,
    with_scatter_shown,
)
from ._directions import ALIKE
from ._exact import Factor, ScatterMatrix, added
from ._merging import merge_subspaces, pooled_moments
from ._subspace import Subspace
from ._updating import unit_of, was_truncated

# What confounders exceed all other columns together by, where directions are cut. What is cut of
# them, and with it the error of their effects squared, falls with the fourth power.
_PROMINENT = 2.0**8
# Powers of two by which units may come apart before they are renewed, by an SVD of what is kept.
_SAME = 3
# Exponents of units: products of two and their inverses are finite, also in float32.
_LARGEST_EXPONENT = {np.dtype(np.float64): 250, np.dtype(np.float32): 60}


def updated_by_block(
    summary: Subspace,
    rows: Any,
    weight: np.ndarray | None,
    *,
    adjusting: Adjusting,
    **options: Any,
) -> Subspace:
    """Update a summary with one block of validated rows, which are adjusted when they are read.

    ``options`` are those of the function of this name in `_updating`, of which ``n_certain`` is the
    number of components that are read.
    """
    if weight is not None:
        unit = unit_of(max(float(weight.max()), summary.n_samples))
        if unit < 1:
            past, w = summary.decay(1 / unit), weight / unit
            return updated_by_block(past, rows, w, adjusting=adjusting, **options).decay(unit)
    n_certain, fading = options.pop("n_certain"), options.pop("forgetting_factor")
    summary, rows, weight = _updating.faded(summary, rows, weight, fading)
    n, d = rows.shape
    if not n:
        return summary
    most, cuts = options["max_rank"], options["choose_rank"] is not None
    if not cuts and most in (None, d):
        return _exact(summary, rows, weight, adjusting, n_certain)
    plain = not cuts and options["svd_solver"] == "auto"
    plain = plain and (d <= SMALL_DIMENSION or _updating.is_made_dense(rows))
    if plain and (n <= FEW_ROWS or adjusting.confounders) and not passes_pay(n, d, most):
        most -= len(adjusting.confounders)
        candidate = None
        if scatter_pays(n, d, options["max_rank"], by_qr=True):
            candidate = _summed(summary, rows, weight, adjusting, most)
        elif not isinstance(summary._leading, ScatterMatrix):
            candidate = _updating.stacked_by_block(summary, rows, weight)
        if candidate is not None:
            return truncated_given_confounders(candidate, adjusting, most)
    return _in_units(summary, rows, weight, adjusting, options)


def _exact(
    summary: Subspace, rows: Any, weight: np.ndarray | None, adjusting: Adjusting, most: int | None
) -> Subspace:
    """Update a summary of which nothing is cut: with a scatter matrix, or else with a factor."""
    read_next = getattr(summary._leading, "is_read", False)  # as after the rows before
    after = _summed(summary, rows, weight, adjusting, most, read_next)
    if after is None:
        after = _updating.stacked_by_block(summary, rows, weight)
        after = after._replace(_leading=_canonical(after._rows, after._dtype))
    return after


def _canonical(rows: np.ndarray, dtype: np.dtype) -> Factor:
    """The factor R of rows with a positive diagonal, which their scatter matrix tells."""
    R = np.triu(triangle(rows[:0], rows))
    return Factor(R * np.where(R.diagonal() < 0, -1.0, 1.0)[:, None], dtype)


def _summed(
    summary: Subspace,
    rows: Any,
    weight: np.ndarray | None,
    adjusting: Adjusting,
    most: int | None,
    read_next: bool = True,
) -> Subspace | None:
    """Update a summary by the scatter matrix of a block, if adjusted directions follow from it."""
    for precision in {summary._dtype: None, np.dtype(np.float64): None}:
        candidate = _updating.scatter_updated_by_block(summary, rows, weight, precision)
        if candidate is not None and is_certain(candidate, adjusting, most, read_next):
            return candidate
    return None


def truncated_given_confounders(summary: Subspace, adjusting: Adjusting, most: int) -> Subspace:
    """Keep the confounders whole, and so many leading directions of the rows that are adjusted."""
    found = adjusted(summary, adjusting, most)
    return found.restored(found.model, summary)


# -------------------------------------------------------------------------------------- the metric


def _in_units(
    summary: Subspace, rows: Any, weight: np.ndarray | None, adjusting: Adjusting, options: Any
) -> Subspace:
    """Update a summary in units in which its columns and those of the rows are alike."""
    with np.errstate(over="ignore", invalid="ignore"):  # the update says what is too large
        deviation = _deviations(summary, rows, weight)
    units, known = None, getattr(summary._leading, "units", None)
    if np.isfinite(deviation).all():
        units = units_for(deviation, adjusting, True, summary._dtype)
    if units is not None and known is not None and np.ptp(np.log2(units / known)) <= _SAME:
        units = known
    if units is None:
        return _updating.updated_by_block(summary, rows, weight, **options)
    factors = (1 / units).astype(rows.dtype)
    if sp.issparse(rows):
        data = rows.data * factors[rows.indices]
        rows = sp.csr_array((data, rows.indices, rows.indptr), rows.shape)
    else:
        rows = rows * factors
    after = _updating.updated_by_block(rescaled(summary, 1 / units), rows, weight, **options)
    return rescaled(after, units)


def units_for(
    deviation: np.ndarray, adjusting: Adjusting, cuts: bool, dtype: np.dtype
) -> np.ndarray | None:
    """Units of columns with such deviations; None where the rows' own serve as well.

    ``cuts``: whether directions are cut.
    """
    there = deviation > 0
    if not there.any():
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
    return np.ldexp(1.0, exponents)


def _deviations(summary: Subspace, rows: Any, weight: np.ndarray | None) -> np.ndarray:
    """About the deviations of the columns, with the next rows."""
    rows, w = entries_once(rows), np.ones(rows.shape[0]) if weight is None else weight
    n, n_before, before = float(w.sum()), summary.n_samples, summary.mean
    mean = np.asarray(w @ rows).ravel() / n
    new = columns_about(rows, mean, weight)
    shift = (mean - before) * (n / (n + n_before))
    scatter = scatter_of_columns(summary) + new + shift * (mean - before) * n_before
    return deviations(scatter, before + shift, n + n_before)


# -------------------------------------------------------------------------------------- merges


def merged(
    summaries: list[Subspace],
    n_components: int | float | None,
    adjusting: Adjusting,
    n_certain: int | float | None = None,
) -> Subspace:
    """Merge summaries of disjoint sets of rows, which are adjusted when they are read.

    By the sum of their scatter matrices where that tells the ``n_certain`` components (None:
    ``n_components``), else by their rows.
    """
    there = [s for s in summaries if s.n_samples > 0]
    if not adjusting or not there:
        return merge_subspaces(summaries, n_components)
    total, corrections = pooled_moments(there)
    total = total._named(names_known(summaries))
    dtype, d = np.result_type(*[s._dtype for s in summaries]), total.n_features
    matrices = [s._leading for s in there if isinstance(s._leading, ScatterMatrix)]
    if len(matrices) == len(there):
        whole = total._replace(_leading=added(matrices, corrections, dtype))
        n_certain = n_components if n_certain is None else n_certain
        if is_certain(whole, adjusting, int(n_certain) if is_integer(n_certain) else None):
            return whole
    few = sum(len(s._rows) + 1 for s in there) <= EXACT_ORDER
    if few and is_integer(n_components) and d > SMALL_DIMENSION:
        rows = np.concatenate([*(s._rows for s in there), corrections])
        whole = total._replace(_leading=Factor(rows, dtype))
        return truncated_given_confounders(
            whole, adjusting, int(n_components) - len(adjusting.confounders)
        )
    parts, restored = equilibrated(summaries, adjusting, n_components)
    return restored(merge_subspaces(parts, n_components))


def _now(sources: tuple, how: Hashable, make: Callable[[], Subspace]) -> Subspace:
    return make()


def equilibrated(
    summaries: Sequence[Subspace],
    adjusting: Adjusting,
    n_components: int | float | None,
    compares_sites: bool = False,
    once: Callable[[tuple, Hashable, Callable[[], Subspace]], Subspace] = _now,
) -> tuple[list[Subspace], Callable[[Subspace], Subspace]]:
    """Summaries whose columns are equilibrated, and the function that undoes it on their merge.

    ``compares_sites``: whether the merge compares sites, so that units are those of scaled rows.
    ``once(sources, how, make)`` may return what has been made of the same before.
    """
    if compares_sites:  # a merge of theirs does not tell who has stated too little
        summaries = [with_scatter_shown(s) if s.n_samples > 0 else s for s in summaries]
    units = _units_of_merge(summaries, adjusting, n_components, compares_sites)
    if units is None:
        return list(summaries), lambda summary: summary
    how = units.tobytes()
    parts = [once((s,), how, partial(rescaled, s, 1 / units)) for s in summaries]
    return parts, partial(rescaled, factors=units)


def _units_of_merge(
    summaries: Sequence[Subspace], adjusting: Adjusting, n_components: Any, compares_sites: bool
) -> np.ndarray | None:
    there = [s for s in summaries if s.n_samples > 0]
    total = pooled_moments(there)[0]
    columns = total.column_scatter
    if columns is None:  # of a site that has cut nothing, or an error
        columns = np.sum([scatter_of_columns(s) for s in there], axis=0)
    deviation = deviations(columns, total.mean, total.n_samples)
    if compares_sites:
        return np.where(deviation > 0, deviation, 1.0)
    cuts = n_components is not None and total.n_features > SMALL_DIMENSION
    cuts = cuts or any(map(was_truncated, there))
    return units_for(deviation, adjusting, cuts, total._dtype)
